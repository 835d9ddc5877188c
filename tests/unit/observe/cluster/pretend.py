"""A small API server on 127.0.0.1 that has whatever a test puts into it, lists, watches, refuses and forgets on demand.

In: `put`, `remove`, `forbid`, `fail`, `cut_watches`. Out: the wire, and `requests`, every request that came.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config

Object = dict[str, Any]

BUILT_IN = (
    "v1 pods Pod =po", "v1 nodes Node -", "v1 namespaces Namespace -",
    "v1 replicationcontrollers ReplicationController + scale", "apps/v1 deployments Deployment + scale",
    "apps/v1 replicasets ReplicaSet + scale", "apps/v1 statefulsets StatefulSet + scale",
    "apps/v1 daemonsets DaemonSet", "batch/v1 jobs Job", "batch/v1 cronjobs CronJob",
    "autoscaling/v2 horizontalpodautoscalers HorizontalPodAutoscaler",
    "policy/v1 poddisruptionbudgets PodDisruptionBudget", "resource.k8s.io/v1 resourceclaims ResourceClaim",
    "apiextensions.k8s.io/v1 customresourcedefinitions CustomResourceDefinition -",
)
KSERVE = (
    "serving.kserve.io/v1beta1 inferenceservices InferenceService",
    "serving.kserve.io/v1alpha2 llminferenceservices LLMInferenceService",
)
LWS = ("leaderworkerset.x-k8s.io/v1 leaderworkersets LeaderWorkerSet + scale",)
KEDA = ("keda.sh/v1alpha1 scaledobjects ScaledObject",)
KUEUE = ("kueue.x-k8s.io/v1beta1 workloads Workload",)
POLICIES = ("gpuautoscaler.io/v1alpha1 idlepolicies IdlePolicy -",)


class Served:
    """A kind the server has: `apps/v1 deployments Deployment + scale`, with `-` for a cluster-scoped one, and `=deploy`
    for what it is called for short."""

    def __init__(self, text: str) -> None:
        version, self.plural, self.kind, *rest = text.split()
        self.group, _, self.version = version.rpartition("/")
        self.namespaced = "-" not in rest
        self.scalable = "scale" in rest
        self.short = [word.removeprefix("=") for word in rest if word.startswith("=")]
        self.objects: dict[str, Object] = {}
        self.watchers: list[tuple[str, asyncio.Queue[Object | None]]] = []


class Server:
    def __init__(self, *kinds: str) -> None:
        self.kinds = {served.plural: served for served in map(Served, (*BUILT_IN, *kinds))}
        self.requests: list[tuple[str, str, str]] = []  # verb, plural, query
        self.forbidden: set[tuple[str, str]] = set()  # verb, plural
        self.failing: set[tuple[str, str]] = set()
        self.silent: set[tuple[str, str]] = set()  # verbs on what is asked for and never answered
        self.complaint = "etcd is on holiday"  # of what fails
        self._versions = itertools.count(1)
        self.stale = False  # the next watches find their version too old

    def install(self, kind: str) -> None:
        served = Served(kind)
        self.kinds[served.plural] = served

    def put(self, plural: str, thing: Object) -> Object:
        served = self.kinds[plural]
        thing["metadata"]["resourceVersion"] = str(next(self._versions))
        uid = thing["metadata"]["uid"]
        self._tell(served, "MODIFIED" if uid in served.objects else "ADDED", thing)
        served.objects[uid] = thing
        return thing

    def put_all(self, things: Iterable[tuple[str, Object]]) -> None:
        for plural, thing in things:
            self.put(plural, thing)

    def remove(self, plural: str, uid: str) -> None:
        gone = self.kinds[plural].objects.pop(uid)
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        self._tell(self.kinds[plural], "DELETED", gone)

    def _tell(self, served: Served, type_: str, thing: Object) -> None:
        for namespace, queue in served.watchers:
            if namespace in ("", thing["metadata"].get("namespace", "")):
                queue.put_nowait({"type": type_, "object": json.loads(json.dumps(thing))})

    def cut_watches(self, plural: str) -> None:
        for _, queue in self.kinds[plural].watchers:
            queue.put_nowait(None)

    def asked(self, verb: str, plural: str = "") -> int:
        return sum(1 for each in self.requests if each[0] == verb and plural in ("", each[1]))

    # ---- the wire ----

    async def __aenter__(self) -> Server:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = self._runner.addresses[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        for plural in self.kinds:
            self.cut_watches(plural)
        await self._runner.cleanup()

    def api(self, **options: Any) -> kube.Api:
        access = config.Access(server=f"http://127.0.0.1:{self.url[1]}", context="test")
        return kube.Api(access, **{"qps": 10_000, **options})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if len(parts) == 1:
            self.requests.append(("discover", parts[0], ""))
            return web.json_response(self._discovery(is_core=parts[0] == "api"))
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, *names = rest
        verb = ("scale" if len(names) == 2 else "get") if names else "watch" if request.query.get("watch") else "list"
        self.requests.append((verb, plural, request.query_string))
        served = self.kinds.get(plural)
        if served is None:
            return _refuse(404, "NotFound", "the server could not find the requested resource")
        if (verb, plural) in self.forbidden:
            return _refuse(403, "Forbidden", f'{plural} is forbidden: User "eve" cannot {verb} resource')
        if (verb, plural) in self.failing:
            return _refuse(500, "InternalError", self.complaint)
        if (verb, plural) in self.silent:
            await asyncio.Event().wait()
        if names:
            return self._one(served, namespace, names)
        if verb == "watch":
            return await self._watch(served, namespace, request)
        return self._list(served, namespace, request)

    def _one(self, served: Served, namespace: str, names: list[str]) -> web.Response:
        for thing in served.objects.values():
            if thing["metadata"]["name"] == names[0] and thing["metadata"].get("namespace", "") == namespace:
                if len(names) == 2:
                    return web.json_response({"kind": "Scale", "spec": {"replicas": thing["spec"]["size"]}})
                return web.json_response(thing)
        return _refuse(404, "NotFound", f'{served.plural} "{names[0]}" not found')

    def _list(self, served: Served, namespace: str, request: web.Request) -> web.Response:
        found = [thing for thing in served.objects.values() if _fits(thing, namespace, request)]
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        token = {"continue": str(start + limit)} if len(found) > start + limit else {}
        version = next(self._versions)
        return web.json_response(
            {"metadata": {"resourceVersion": str(version), **token}, "items": found[start : start + limit]}
        )

    async def _watch(self, served: Served, namespace: str, request: web.Request) -> web.StreamResponse:
        if self.stale:
            return _refuse(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        queue: asyncio.Queue[Object | None] = asyncio.Queue()
        served.watchers.append((namespace, queue))
        try:
            while (event := await queue.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        except ConnectionResetError:
            pass
        finally:
            served.watchers.remove((namespace, queue))
        return response

    def _discovery(self, is_core: bool) -> Object:
        groups: dict[str, dict[str, list[Object]]] = {}
        for served in self.kinds.values():
            if (served.group == "") == is_core:
                groups.setdefault(served.group, {}).setdefault(served.version, []).append(_describe(served))
        items = [
            {
                "metadata": {"name": group},
                "versions": [{"version": version, "resources": found} for version, found in versions.items()],
            }
            for group, versions in groups.items()
        ]
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}


def _describe(served: Served) -> Object:
    subresources = [{"subresource": "scale"}] if served.scalable else []
    return {
        "resource": served.plural, "responseKind": {"kind": served.kind},
        "scope": "Namespaced" if served.namespaced else "Cluster", "verbs": ["get", "list", "watch"],
        "subresources": subresources, "singularResource": served.kind.lower(), "shortNames": served.short,
    }


def _fits(thing: Object, namespace: str, request: web.Request) -> bool:
    meta, chosen = thing["metadata"], request.query.get("fieldSelector", "")
    if chosen.startswith("metadata.name=") and meta["name"] != chosen.removeprefix("metadata.name="):
        return False
    wanted = next((each for each in chosen.split(",") if each.startswith("spec.nodeName=")), "")
    if wanted and thing["spec"].get("nodeName") != wanted.removeprefix("spec.nodeName="):
        return False
    if "status.phase!=" in chosen and thing["status"]["phase"] in ("Succeeded", "Failed"):
        return False
    return namespace in ("", meta.get("namespace", ""))


def _refuse(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


# ---- objects ----


def made(
    name: str, owner: Object | None = None, *, namespace: str | None = "ml", kind: str = "", version: str = "",
    **more: Any,
) -> Object:
    """Any object; its uid is its kind and name, so that tests can tell them apart."""
    meta: Object = {"name": name, "uid": f"{kind or 'x'}-{name}", "creationTimestamp": "2026-11-15T08:00:00Z"}
    if namespace is not None:
        meta["namespace"] = namespace
    for key in ("labels", "annotations"):
        if key in more:
            meta[key] = more.pop(key)
    if owner is not None:
        meta["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Other", "name": "bystander", "uid": "bystander"},
            {
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"], "controller": True,
            },
        ]
    return {"apiVersion": version, "kind": kind, "metadata": meta, **more}


def pod(
    name: str, owner: Object | None = None, *, gpus: int = 1, node: str = "n1", spec: Object | None = None, **more: Any
) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "resources": {"limits": limits}}
    status = {
        "phase": "Running", "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T08:02:00Z"}],
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-15T08:01:00Z"}}}],
    }
    body = {"containers": [container], "nodeName": node, **(spec or {})}
    return made(name, owner, kind="Pod", version="v1", spec=body, status=more.pop("status", status), **more)


def replica_set(name: str, owner: Object | None = None, **more: Any) -> Object:
    return made(name, owner, kind="ReplicaSet", version="apps/v1", **{"spec": {"replicas": 1}, **more})


def deployment(name: str, owner: Object | None = None, **more: Any) -> Object:
    return made(
        name, owner, kind="Deployment", version="apps/v1", **{"spec": {"replicas": 1, "template": {"spec": {}}}, **more}
    )


def deployed(
    name: str, pods: int = 1, namespace: str = "ml", owner: Object | None = None, **more: Any
) -> list[tuple[str, Object]]:
    """A Deployment, its ReplicaSet and so many pods."""
    top = deployment(name, owner, namespace=namespace, **more)
    middle = replica_set(f"{name}-rs", top, namespace=namespace)
    return [
        ("deployments", top),
        ("replicasets", middle),
        *(
            ("pods", pod(f"{name}-{number}", middle, namespace=namespace, labels={"app": name}))
            for number in range(pods)
        ),
    ]


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
        await asyncio.sleep(0.005)
