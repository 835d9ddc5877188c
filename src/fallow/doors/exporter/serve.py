"""The exporter's HTTP/1.1: GET and HEAD of a few pages, over TLS and behind a password if so configured.

In: a listening socket, the Gate, and a table path -> what answers. The parser is httptools; the rest is small enough to
be our own, and keeps the process 5 MB lighter than a general server would. Every connection is a task: a slow one holds
up nobody, and it has only so much time and so many bytes for its request. When there are too many, the one that has
kept us waiting longest goes.
Invariant: no body is accepted and nothing but the Accept and Authorization headers is looked at.
"""

import asyncio
import contextlib
import http
import logging
import socket
import ssl
from collections.abc import Callable, Mapping

import httptools
import msgspec

from fallow.doors.exporter import access

log = logging.getLogger("fallow.exporter")

MOST_CONNECTIONS = 64
MOST_HEAD_BYTES = 16 * 1024
_HANDSHAKE = 10.0  # seconds for TLS
_HEAD = 10.0  # seconds until the first request is complete
_KEPT = 120.0  # seconds until the next one is: longer than people's scrape intervals
_SEND = 30.0  # seconds to take an answer

_END = b"\r\n\r\n"


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class Route(msgspec.Struct, frozen=True):
    """`answer` gets the Accept header. Without `is_open` credentials are asked for, if there are any."""

    answer: Callable[[str], HttpAnswer]
    is_open: bool = False


NOT_FOUND = HttpAnswer(404, b"404: there are /metrics, /healthz and /readyz\n")
NOT_ALLOWED = HttpAnswer(405, b"405: only GET\n", headers=(("Allow", "GET, HEAD"),))
NO_BODIES = HttpAnswer(413, b"413: a request with a body is not accepted\n")
TOO_LONG = HttpAnswer(431, b"431: the request's header is too long\n")
UNREADABLE = HttpAnswer(400, b"400: this is not a request\n")
_REALM = ("WWW-Authenticate", 'Basic realm="gpu-idle-exporter"')
UNAUTHORIZED = HttpAnswer(401, b"401: credentials are asked for\n", headers=(_REALM,))
BROKEN = HttpAnswer(500, b"500: see the log\n")


class RequestHead:
    """One request's head, as the parser tells it."""

    def __init__(self, head: bytes) -> None:
        """Raises httptools.HttpParserError if it is none."""
        self.url = b""
        self.headers: dict[str, str] = {}
        self.method = ""
        self.is_kept = False
        self._parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(httptools.HttpParserUpgrade):  # it asks for HTTP/2 and gets HTTP/1.1, as it may
            self._parser.feed_data(head)
        del self._parser  # or the two of them would live on for each other

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:  # later the parser does not know any more
        self.method = self._parser.get_method().decode("latin-1")
        self.is_kept = self._parser.should_keep_alive() and not self.has_body

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0").strip("0") != ""

    @property
    def path(self) -> str:
        return (httptools.parse_url(self.url).path or b"").decode("latin-1")


def parse(head: bytes) -> RequestHead | None:
    """None: it is not a request."""
    with contextlib.suppress(httptools.HttpParserError):
        return request if (request := RequestHead(head)).method else None
    return None


class PageServer:
    def __init__(self, listener: socket.socket, gate: access.Gate, routes: Mapping[str, Route]) -> None:
        self._listener, self._gate, self._routes = listener, gate, routes
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}  # those of which we wait for a request, the longest first

    async def serve(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    client, _ = await loop.sock_accept(self._listener)
                except OSError as problem:  # no more files to open, or the client is gone already
                    log.warning("a connection could not be accepted: %s", problem)
                    await asyncio.sleep(0.1)
                    continue
                self._receive(client)
        finally:
            self._listener.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _receive(self, client: socket.socket) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            longest = next(iter(self._waiting), None)
            if longest is None:
                client.close()
                return
            longest.cancel()
            del self._waiting[longest]
        task = asyncio.create_task(self._attend(client))
        self._connections.add(task)
        self._waiting[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._connections.discard(task)
        self._waiting.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("a connection ended by a defect", exc_info=problem)

    async def _attend(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MOST_HEAD_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tls = self._gate.current().tls
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, client, ssl=tls, ssl_handshake_timeout=_HANDSHAKE if tls else None,
            )
        except (OSError, ssl.SSLError) as problem:
            log.debug("no TLS with a client: %s", problem)
            client.close()
            return
        transport.set_write_buffer_limits(high=0)  # drain() then waits until all is sent
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            patience = _HEAD
            while await self._exchange(reader, writer, patience):
                patience = _KEPT
        except (OSError, asyncio.IncompleteReadError):  # it went away, or took too long
            pass
        finally:
            if transport.get_write_buffer_size():  # it does not take its answer: do not wait for it
                transport.abort()
            transport.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: float) -> bool:
        """One request and its answer; whether another may follow."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = None
        try:
            async with asyncio.timeout(patience):
                request = parse(await reader.readuntil(_END))
        except asyncio.LimitOverrunError:
            await _send(writer, TOO_LONG, is_kept=False)
            return False
        finally:
            self._waiting.pop(task, None)
        is_kept, is_head = (request.is_kept, request.method == "HEAD") if request else (False, False)
        await _send(writer, await self._answer(request), is_kept=is_kept, is_head=is_head)
        return is_kept

    async def _answer(self, request: RequestHead | None) -> HttpAnswer:
        if request is None:
            return UNREADABLE
        if request.method not in ("GET", "HEAD"):
            return NOT_ALLOWED
        if request.has_body:
            return NO_BODIES
        try:
            route = self._routes.get(request.path)
            if route is not None and route.is_open:
                return route.answer("")
            if not await self._gate.admits(request.headers.get("authorization", "")):
                return UNAUTHORIZED
            return NOT_FOUND if route is None else route.answer(request.headers.get("accept", ""))
        except httptools.HttpParserInvalidURLError:
            return UNREADABLE
        except Exception:  # a defect of ours, in one answer
            log.exception("an answer failed")
            return BROKEN


async def _send(writer: asyncio.StreamWriter, answer: HttpAnswer, *, is_kept: bool, is_head: bool = False) -> None:
    fields = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *answer.headers]
    fields += [] if is_kept else [("Connection", "close")]
    status = f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}"
    head = "\r\n".join((status, *(f"{name}: {value}" for name, value in fields)))
    writer.write(head.encode("latin-1") + _END)
    if not is_head:
        writer.write(answer.body)
    async with asyncio.timeout(_SEND):
        await writer.drain()
