"""The pretend API server: it listens on loopback, reads requests, has them answered, and can be made to misbehave.

In: a Store, a clock, and perhaps tokens (token -> user) and rules (user -> PolicyRules). Out: a kubeconfig.
Faults are switched on by attributes and methods: `slow` seconds before every answer, `go_down` and `come_up`,
`conflicts` (how many of the next writes are refused with 409), `expire` (every page and watch is too old), `refused`
(plurals that may not be read for now, answered with `refusal`), `cut_watches`.
Invariant: a request is carried out in one stretch after its body was read; a request that is refused changed nothing.
"""

import asyncio
import base64
import contextlib
import email.utils
import functools
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, catalogue, discovery, reading, refusals, reviews, watching, writing

Object: TypeAlias = dict[str, Any]

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_HEALTH = ("/healthz", "/livez", "/readyz")
_LARGEST_BODY = 32 * 1024 * 1024
_JSON = "application/json"
_DISCOVERY = f"{_JSON};g=apidiscovery.k8s.io;v=v2;as={discovery.AGGREGATED}"
_NOT_CACHED = {"Cache-Control": "no-cache, private"}
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


class KubernetesServer:
    def __init__(
        self, store: stores.Store, clock: Callable[[], float], *, tokens: Mapping[str, calls.ApiUser] | None = None,
        rules: Mapping[str, Sequence[Object]] | None = None,
    ) -> None:
        self.slow, self.conflicts, self.url = 0.0, 0, ""
        self.refused, self.refusal = frozenset[str](), 500
        self._store, self._clock, self._tokens = store, clock, tokens
        self._is_down, self._authority = False, b""
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.Task[Any]] = set()
        self._clocks: dict[int, Callable[[], float]] = {}  # by port, of doors with another clock
        self._doorkeeper = reviews.Doorkeeper(tokens, rules or {})
        self._catalogue = catalogue.Catalogue(store)
        self._reader = reading.ObjectReader(store)
        self._writer = writing.ObjectWriter(store, clock)
        store.subscribe(self._furnish, ("", "Namespace"))
        for name in _NAMESPACES:
            if store.find(stores.Key("", "Namespace", "", name)) is None:
                store.create(_namespace(name))

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None, authority: bytes = b""
    ) -> str:
        """Listen, and say where. With `tls`, `authority` is the PEM by which clients know the server."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._answer)
        app.on_response_prepare.append(self._date)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        self._authority = authority
        bound = self._runner.addresses[0][1]
        self.url = f"{'https' if tls else 'http'}://{host}:{bound}"
        return self.url

    async def open_door(self, clock: Callable[[], float], host: str = "127.0.0.1", port: int = 0) -> str:
        """Another address of the same server, for those who live by another clock: its answers are dated by that."""
        assert self._runner is not None, "it is not started"
        before = set(self._runner.addresses)
        await web.TCPSite(self._runner, host, port).start()
        (bound,) = set(self._runner.addresses) - before
        self._clocks[bound[1]] = clock
        return f"http://{host}:{bound[1]}"

    async def stop(self) -> None:
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    def kubeconfig(self, url: str = "") -> Object:
        """For kubectl and the product; with tokens, the first of them is the user's. `url`: of another door."""
        cluster: Object = {"server": url or self.url}
        if self._authority:
            cluster["certificate-authority-data"] = base64.b64encode(self._authority).decode()
        user = {"token": next(iter(self._tokens))} if self._tokens else {}
        context = {"cluster": "pretend", "user": "pretend", "namespace": "default"}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "pretend",
            "clusters": [{"name": "pretend", "cluster": cluster}], "users": [{"name": "pretend", "user": user}],
            "contexts": [{"name": "pretend", "context": context}],
        }

    def go_down(self) -> None:
        """From now on connections break without an answer, those of watches too."""
        self._is_down = True
        self.cut_watches()

    def come_up(self) -> None:
        self._is_down = False

    def expire(self) -> None:
        """Pages and watches cannot be gone on with: 410."""
        self._reader.expire()
        self._store.forget_history()

    def cut_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()

    async def _date(self, request: web.Request, response: web.StreamResponse) -> None:
        """By the world's clock, not by that of the machine we run on, unless the door has one of its own."""
        listening = request.transport.get_extra_info("sockname") if request.transport else ("", 0)
        clock = self._clocks.get(listening[1], self._clock)
        response.headers["Date"] = email.utils.formatdate(clock(), usegmt=True)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.slow:
            await asyncio.sleep(self.slow)
        if self._is_down:
            _break_connection(request)
        try:
            return await self._serve(request)
        except refusals.ApiRefusal as refusal:
            return _respond(calls.ApiAnswer(msgspec.json.encode(refusal.to_status()), refusal.code))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path in _HEALTH:
            return web.Response(text="ok")
        user = self._doorkeeper.identify(request.headers)
        path = calls.read_path(request.path)
        if path is None or not self._catalogue.has_version(path.group, path.version):
            return self._describe(request)
        kind = self._catalogue.find(path.group, path.version, path.plural)
        if kind is None or (path.subresource and path.subresource not in kind.subresources):
            raise refusals.no_such_path()
        if not calls.is_json_acceptable(request.headers.get("Accept", "")):
            raise refusals.ApiRefusal(406, "only the following media types are accepted: application/json")
        call = calls.Call(
            kind=kind, path=path, method=request.method, query=request.query, headers=request.headers,
            body=await request.read(), user=user,
        )
        self._doorkeeper.check(call)
        if call.method == "GET" and path.plural in self.refused:
            raise refusals.ApiRefusal(self.refusal, f"{path.plural} cannot be read now")
        if call.method == "GET" and not path.name and call.query.get("watch") in ("1", "true"):
            return await self._watch(request, call)
        return _respond(self._carry_out(call))

    def _describe(self, request: web.Request) -> web.Response:
        document = discovery.describe(self._catalogue.all(), request.path, request.headers.get("Accept", ""))
        if document is None:
            return web.Response(status=404, text="404 page not found\n")
        is_aggregated = document.get("kind") == discovery.AGGREGATED
        return _respond(calls.ApiAnswer(msgspec.json.encode(document)), _DISCOVERY if is_aggregated else _JSON)

    def _carry_out(self, call: calls.Call) -> calls.ApiAnswer:
        if call.method in _WRITES and self.conflicts > 0:
            self.conflicts -= 1
            raise call.refuse_conflict()
        if call.kind.verbs == ("create",) and call.method == "POST":
            return self._doorkeeper.answer(call)
        work = self._find_work(call)
        if work is None:
            message = "the server does not allow this method on the requested resource"
            raise refusals.ApiRefusal(405, message, details={})
        try:
            return work(call)
        except (TypeError, AttributeError, LookupError, ValueError) as problem:  # of a type that it must not have
            what = f'{call.kind.kind} in version "{call.kind.version}"'
            raise refusals.bad(f"{what} cannot be handled: {problem!r}") from problem

    def _find_work(self, call: calls.Call) -> Callable[[calls.Call], calls.ApiAnswer] | None:
        writer, scale = self._writer, call.kind.scale
        if call.path.subresource == "scale" and scale is not None:
            work = writer.write_scale if call.method in ("PUT", "PATCH") else writer.read_scale
            return functools.partial(work, scale=scale)
        if call.path.subresource == "eviction":
            return writer.evict if call.method == "POST" else None
        if call.path.name:
            works = {"GET": self._get, "PUT": writer.replace, "PATCH": writer.patch, "DELETE": writer.delete}
            return works.get(call.method) if not call.path.subresource or call.method != "DELETE" else None
        collection: dict[str, Callable[[calls.Call], calls.ApiAnswer]] = {
            "GET": lambda call: calls.ApiAnswer(self._reader.list(call, self._clock())),
            "POST": writer.create,
            "DELETE": functools.partial(writer.delete_all, reader=self._reader),
        }
        return collection.get(call.method)

    def _get(self, call: calls.Call) -> calls.ApiAnswer:
        return calls.ApiAnswer(reading.represent(call, reading.get(call, self._store), self._clock()))

    async def _watch(self, request: web.Request, call: calls.Call) -> web.StreamResponse:
        watch = watching.Watch(call, self._store, self._clock)
        response = web.StreamResponse(headers={"Content-Type": _JSON, **_NOT_CACHED})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None  # a request is always handled by a task
        self._watches.add(task)
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(watch.seconds):
                    await watch.run(_writer_of(response))
        finally:
            self._watches.discard(task)
        return response

    def _furnish(self, change: stores.Change) -> None:
        """Every namespace has a ServiceAccount, as on a real cluster."""
        namespace = change.entry.key.name
        account = stores.Key("", "ServiceAccount", namespace, "default")
        if change.type == "ADDED" and self._store.find(account) is None:
            metadata = {"name": "default", "namespace": namespace}
            self._store.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def _namespace(name: str) -> Object:
    metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
    spec, status = {"finalizers": ["kubernetes"]}, {"phase": "Active"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": spec, "status": status}


def _writer_of(response: web.StreamResponse) -> Callable[[bytes], Awaitable[None]]:
    async def write(data: bytes) -> None:
        if data:
            await response.write(data)

    return write


def _break_connection(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError  # nobody is left to answer


def _respond(answer: calls.ApiAnswer, content_type: str = _JSON) -> web.Response:
    headers = {"Content-Type": content_type, **_NOT_CACHED}
    response = web.Response(body=answer.body, status=answer.code, headers=headers)
    for warning in answer.warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response
