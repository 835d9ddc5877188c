"""Something goes wrong between fallow and a server: a proxy on 127.0.0.1 that forwards faithfully until told otherwise.

In: the address of a real server (Prometheus, the API server). Out: `FaultyProxy` with a `url` to use instead.
A fault is a function of a request and of `forward` that gives the answer; this file has the usual ones, a test may
write its own.
Invariant: without a fault the answer is the server's own, streamed, with its status and its content type.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

Fault = Callable[["Exchange"], Awaitable[web.StreamResponse]]
_HOP_BY_HOP = {
    "connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host", "accept-encoding"
}


class Exchange:
    """One request on its way through the proxy."""

    def __init__(self, proxy: FaultyProxy, request: web.Request, body: bytes) -> None:
        self.request = request
        self.body = body
        self._proxy = proxy

    @property
    def text(self) -> str:
        """What was asked, path and body, to look for a word in it."""
        return f"{self.request.method} {self.request.path_qs} {self.body.decode(errors='replace')}"

    async def forward(self) -> web.StreamResponse:
        """The server's own answer, streamed as it comes."""
        async with self._proxy.ask(self) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(self.request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def fetch(self) -> Any:
        """The server's own answer, whole and parsed, for a fault that changes it."""
        async with self._proxy.ask(self) as answer:
            return await answer.json()


class FaultyProxy:
    """`async with FaultyProxy(prometheus.url) as proxy:` then `proxy.fault = status(500)`, `proxy.fault = None`.

    `seen` lists every request as text. `prefix` is a path that the server does not know of; `tls` is for a https
    server.
    """

    def __init__(self, target: str, prefix: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.fault: Fault | None = None
        self.seen: list[str] = []
        self.url = ""
        self._target = target.rstrip("/")
        self._prefix = prefix
        self._tls = tls

    async def __aenter__(self) -> FaultyProxy:
        connector = aiohttp.TCPConnector(ssl=self._tls or True)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, connect=5))
        application = web.Application(client_max_size=64 * 1024**2)
        application.router.add_route("*", "/{path:.*}", self._answer)
        # A watch never ends by itself: do not wait for those still open when the test is over.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self._prefix}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    def ask(self, exchange: Exchange) -> Any:
        request = exchange.request
        path = request.path_qs.removeprefix(self._prefix)
        headers = _kept(request.headers)
        return self._http.request(request.method, f"{self._target}{path}", data=exchange.body or None, headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        exchange = Exchange(self, request, await request.read())
        self.seen.append(exchange.text)
        return await (self.fault(exchange) if self.fault else exchange.forward())


def _kept(headers: Any) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in _HOP_BY_HOP}


# --- the usual faults ---


def status(code: int, text: str = "out of order") -> Fault:
    async def fault(_: Exchange) -> web.StreamResponse:
        return web.Response(status=code, text=text)

    return fault


async def html(_: Exchange) -> web.StreamResponse:
    """A login page: 200, and not what was asked for."""
    return web.Response(text="<html><body>Please sign in</body></html>", content_type="text/html")


async def empty(_: Exchange) -> web.StreamResponse:
    """Success, and nothing found."""
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})


async def warnings(exchange: Exchange) -> web.StreamResponse:
    """The true answer, marked as perhaps incomplete, as Thanos does."""
    return web.json_response({**await exchange.fetch(), "warnings": ["a store did not answer"]})


async def partial(exchange: Exchange) -> web.StreamResponse:
    """The same in VictoriaMetrics' words."""
    return web.json_response({**await exchange.fetch(), "isPartial": True})


async def cut(exchange: Exchange) -> web.StreamResponse:
    """The connection breaks in the middle of the answer."""
    whole = json.dumps(await exchange.fetch()).encode()
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(whole))})
    await response.prepare(exchange.request)
    await response.write(whole[: len(whole) // 2])
    if exchange.request.transport is not None:
        exchange.request.transport.abort()
    return response


def slow(seconds: float) -> Fault:
    async def fault(exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await exchange.forward()

    return fault


def ahead(seconds: float) -> Fault:
    """The server's clock is ahead: its samples, and what timestamp() says of them, lie in the future."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        answer = await exchange.fetch()
        for sample in answer["data"]["result"]:
            at, value = sample["value"]
            value = str(float(value) + seconds) if "timestamp" in exchange.text else value
            sample["value"] = [at + seconds, value]
        return web.json_response(answer)

    return fault


def demand(authorization: str) -> Fault:
    """401 for whoever does not bring exactly this Authorization header."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        if exchange.request.headers.get("Authorization") != authorization:
            return web.Response(status=401, text="Unauthorized")
        return await exchange.forward()

    return fault


def only(words: str, then: Fault, times: int | None = None) -> Fault:
    """A fault for requests whose text has these words (and only so many times); the others pass, and so does the
    rehearsal of a write, which changes nothing."""
    left = times

    async def fault(exchange: Exchange) -> web.StreamResponse:
        nonlocal left
        if words not in exchange.text or "dryRun=All" in exchange.text or left == 0:
            return await exchange.forward()
        left = None if left is None else left - 1
        return await then(exchange)

    return fault


def meanwhile(action: Callable[[], Awaitable[object]]) -> Fault:
    """Somebody else is quicker: this happens just before the request arrives. Mostly inside
    `only("PATCH ...", ..., times=1)`."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        await action()
        return await exchange.forward()

    return fault
