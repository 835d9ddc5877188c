"""The other end of the wire: a small HTTP server that answers as told and remembers what it was asked.

`Server.on(method, path, answer, ...)` gives the answers of one path in order; the last one repeats. An answer is an
async function of the request. What is not told is answered with 404, as a Kubernetes Status.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web

from fallow.clients.kubernetes import config

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Seen(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: Any
    body: bytes
    at: float
    certificate: dict[str, Any] | None

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Server:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[Seen] = []
        self.open = 0
        self.most_open = 0
        self._tls = tls
        self._answers: dict[tuple[str, str], list[Answer]] = {}

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self._answers[method, path] = list(answers)

    def count(self, method: str, path: str | None = None) -> int:
        return sum(each.method == method and path in (None, each.path) for each in self.seen)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def access(self) -> config.Access:
        return config.Access(server=self.url, context="test")

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await self._remember(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._choose(request)(request)
        finally:
            self.open -= 1

    async def _remember(self, request: web.Request) -> None:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport else None
        body = await request.read()
        raw_path = request.raw_path.partition("?")[0]
        self.seen.append(
            Seen(
                request.method,
                raw_path,
                dict(request.query),
                request.headers.copy(),
                body,
                time.monotonic(),
                certificate,
            )
        )

    def _choose(self, request: web.Request) -> Answer:
        answers = self._answers.get((request.method, request.raw_path.partition("?")[0]), [status(404, "NotFound")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


def give(body: Any, *, code: int = 200, headers: dict[str, str] | None = None, after: float = 0.0) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        if after:
            await asyncio.sleep(after)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return web.Response(body=data, status=code, headers=headers, content_type="application/json")

    return answer


def status(
    code: int,
    reason: str,
    message: str = "",
    causes: list[dict[str, str]] | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message or reason,
    }
    return give(body | ({"details": {"causes": causes}} if causes else {}), code=code, headers=headers)


async def drop(request: web.Request) -> web.StreamResponse:
    """The request was received whole; then the connection breaks."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def eventually(is_true: Callable[[], object], what: str = "it", seconds: float = 10.0) -> None:
    """Poll until true; the only waiting in these tests."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen in {seconds} s")
        await asyncio.sleep(0.005)
