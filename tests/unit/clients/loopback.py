"""A web server on 127.0.0.1 that answers as a test says and remembers what it was asked."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

Answer = Callable[["Asked"], web.Response | Awaitable[web.Response]]


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    form: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


class Loopback:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.url = ""

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        form = {key: str(value) for key, value in (await request.post()).items()}
        asked = Asked(request.method, request.path, dict(request.query), form, dict(request.headers), body)
        self.asked.append(asked)
        answer = self.answer(asked)
        return answer if isinstance(answer, web.Response) else await answer


@asynccontextmanager
async def serve(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    server = Loopback(answer)
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", server._handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def in_turn(*answers: Answer) -> Answer:
    """The first answer to the first request, and so on; the last one from then on."""
    left = list(answers)

    def answer(asked: Asked) -> web.Response | Awaitable[web.Response]:
        return (left.pop(0) if len(left) > 1 else left[0])(asked)

    return answer


def again(answer: web.Response) -> web.Response:
    """The same once more: one that was sent cannot be sent again."""
    headers = {name: value for name, value in answer.headers.items() if name != "Content-Length"}
    return web.Response(body=answer.body, status=answer.status, headers=headers)
