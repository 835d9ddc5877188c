"""The other end of the wire: a small API server that keeps objects and heeds preconditions, dryRun and `/scale`.

It answers on 127.0.0.1 as kube-apiserver does where the hands depend on it: another uid is 422 with the cause
metadata.uid, an old resourceVersion is 409, a JSON patch whose test fails is 422. Tests script faults with `fail`, and
see every request in `requests`. Faults, and what others do meanwhile, come after the rehearsal of a pause and meet only
what is really written, unless a test `meets_dry` runs too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Self

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.unit.act.examples import Object

from fallow.clients.kubernetes import api as kubernetes


class Seen(msgspec.Struct):
    method: str
    path: str
    query: dict[str, str]
    body: Any


class Server:
    """Objects by path. Use as `async with`."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[Seen] = []
        self.before: Callable[[Seen], None] | None = None  # what somebody else does in the meantime, before a write
        self.seen: Callable[[Seen], None] | None = None  # the same, before any request
        self.meets_dry = False
        self._faults: list[tuple[str, str, int, Object]] = []
        self._version = 100
        self._drops: list[tuple[str, str, bool]] = []

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._server = TestServer(app, host="127.0.0.1")
        await self._server.start_server()
        self.url = str(self._server.make_url("/")).rstrip("/")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    # ---- what tests say ----

    def add(self, thing: Object) -> Object:
        self.objects[path_of(thing)] = copy.deepcopy(thing)
        return thing

    def now(self, thing: Object) -> Object:
        return self.objects[path_of(thing)]

    def fail(
        self, method: str, contains: str, status: int, *, causes: list[Object] | None = None, message: str = "no",
        times: int = 1,
    ) -> None:
        """The next such request is answered with this, and not done."""
        body = {
            "kind": "Status", "status": "Failure", "message": message, "code": status,
            "details": {"causes": causes or []},
        }
        self._faults += [(method, contains, status, body)] * times

    def drop(self, method: str, contains: str, *, done: bool) -> None:
        """The connection breaks at the next such request, after or before it was carried out."""
        self._drops.append((method, contains, done))

    def touch(self, thing: Object, change: Callable[[Object], None] = lambda found: None) -> None:
        """Somebody else changes it."""
        found = self.objects[path_of(thing)]
        change(found)
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)

    def writes(self, *, dry: bool = False) -> list[Seen]:
        """Every write that was asked for on objects; Events are not counted."""
        done = [seen for seen in self.requests if seen.method != "GET" and "/events.k8s.io/" not in seen.path]
        return [seen for seen in done if ("dryRun" in seen.query) is dry]

    @property
    def events(self) -> list[Object]:
        return [thing for path, thing in self.objects.items() if "/events.k8s.io/" in path]

    # ---- what the hands see ----

    async def _answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        seen = Seen(request.method, request.path, dict(request.query), json.loads(text) if text else None)
        self.requests.append(seen)
        if "dryRun" in seen.query and not self.meets_dry:
            status, body = self._serve(seen, request.content_type)
            return web.json_response(body, status=status)
        if self.seen:
            self.seen(seen)
        for fault in self._faults:
            if fault[0] == seen.method and fault[1] in seen.path:
                self._faults.remove(fault)
                return web.json_response(fault[3], status=fault[2])
        if self.before and seen.method != "GET":
            self.before(seen)
        dropped = next((drop for drop in self._drops if drop[0] == seen.method and drop[1] in seen.path), None)
        if dropped is None or dropped[2]:
            status, body = self._serve(seen, request.content_type)
        if dropped is not None:
            self._drops.remove(dropped)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(body, status=status)

    def _serve(self, seen: Seen, content_type: str) -> tuple[int, Object]:
        if seen.method == "POST":
            path = f"{seen.path}/{seen.body['metadata']['name']}"
            if path in self.objects:
                return 409, _status(409, f"{path} already exists")
            self.objects[path] = seen.body | {"metadata": seen.body["metadata"] | {"uid": path, "resourceVersion": "1"}}
            return 201, self.objects[path]
        path = seen.path.removesuffix("/scale")
        found = self.objects.get(path)
        if found is None:
            return 404, _status(404, f"{path} not found")
        if seen.method == "GET":
            return 200, found if path == seen.path else _scale(found)
        return self._patch(path, seen, content_type, is_scale=path != seen.path)

    def _patch(self, path: str, seen: Seen, content_type: str, is_scale: bool) -> tuple[int, Object]:
        found = self.objects[path]
        if "json-patch" in content_type:
            changed = copy.deepcopy(found)
            for step in seen.body:
                *above, last = step["path"].strip("/").split("/")
                holder = changed
                for name in above:
                    holder = holder[int(name) if isinstance(holder, list) else name]
                place = int(last) if isinstance(holder, list) else last
                if step["op"] == "test" and (not _has(holder, place) or holder[place] != step["value"]):
                    return 422, _status(422, "the test failed")
                if step["op"] == "replace":
                    holder[place] = step["value"]
                if step["op"] == "remove":
                    del holder[place]
        else:
            metadata = seen.body.get("metadata") or {}
            if metadata.get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
                return 422, _status(422, "uid mismatch", [{"field": "metadata.uid", "message": "field is immutable"}])
            current = found["metadata"]["resourceVersion"]
            if metadata.get("resourceVersion", current) != current:
                return 409, _status(409, "the object has been modified")
            changed = merged(found, {"spec": {"size": seen.body["spec"]["replicas"]}} if is_scale else seen.body)
        if "dryRun" not in seen.query:
            self._version += 1
            changed["metadata"] = changed["metadata"] | {"resourceVersion": str(self._version)}
            self.objects[path] = changed
        return 200, _scale(changed) if is_scale else changed


def merged(body: Any, patch: Any) -> Any:
    """RFC 7386, written again: the product's own must not judge itself."""
    if not isinstance(patch, dict):
        return patch
    result = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        result[key] = merged(result.get(key), value)
    return {key: value for key, value in result.items() if value is not None}


def path_of(thing: Object) -> str:
    resource = lookup(*_names(thing))
    assert resource is not None
    return resource.path(thing["metadata"]["namespace"], thing["metadata"]["name"])


def _names(thing: Object) -> tuple[str, str, str]:
    group, _, version = thing["apiVersion"].rpartition("/")
    return group, version, thing["kind"]


def lookup(group: str, version: str, kind: str) -> kubernetes.Resource | None:
    """Discovery, as far as these tests need it."""
    if kind == "Opaque":
        return None
    return kubernetes.Resource(group, version, kind.lower() + "s", kind, namespaced=True, scalable=True)


def _scale(thing: Object) -> Object:
    size = thing["spec"].get("size")
    spec = {"replicas": size} if size else {}  # a 0 is left out, as Go does
    return {"kind": "Scale", "metadata": thing["metadata"], "spec": spec}


def _has(holder: Any, place: Any) -> bool:
    return place < len(holder) if isinstance(holder, list) else place in holder


def _status(code: int, message: str, causes: list[Object] | None = None) -> Object:
    return {"kind": "Status", "code": code, "message": message, "details": {"causes": causes or []}}
