"""What one client may take of the listener: bytes, time, and a connection of a bounded number.

In: uvicorn's protocol, one for each connection. Out: the same, which refuses or ends what goes beyond: a head that is
too long (431), a body that is (413; where nothing reads one, any body), a second request before the first is answered
(400), a request that is not there in time, an answer that is not taken. When there are too many connections, the one
that has kept us waiting longest for its request goes, so that those who only hold connections keep nobody out.
Invariant: whatever clients do, a probe of the kubelet is answered.
"""

import asyncio
import http
from typing import Any, Final

import httptools
from uvicorn.protocols.http import httptools_impl

from fallow.model.units import Seconds

MOST_HEAD: Final = 64 * 1024
MOST_CONNECTIONS: Final = 200
MOST_PAGE_CONNECTIONS: Final = 700  # 500 of which may be live pages
MOST_PAGE_BODY: Final = 64 * 1024
REQUEST: Seconds = 10.0  # to send a request
ANSWER: Seconds = 30.0  # to take the answer


class _Refused(Exception):
    """Ends the parsing of a request that is not accepted."""


class BoundedProtocol(httptools_impl.HttpToolsProtocol):
    """One connection."""

    most_body = 0
    most_connections = MOST_CONNECTIONS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.waits_since: float | None = None  # None: its request is there
        self._size = 0  # bytes of the request so far
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal = http.HTTPStatus.BAD_REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if sum(not each.transport.is_closing() for each in self.connections) > self.most_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.waits_since is None and not self._is_answering():
            self._await_request()
        self._size += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # it asks for another protocol and gets HTTP/1.1, as it may
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        if self.waits_since is not None and self._size > MOST_HEAD + self.most_body:
            has_head = self.cycle is not None and not self.cycle.response_complete
            too_large = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            self._refuse(too_large if has_head else http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self._is_too_much():
            raise _Refused
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.waits_since, self._size = None, 0
        self._set_deadline(ANSWER)
        super().on_message_complete()

    def _is_too_much(self) -> bool:
        named, size = dict(self.headers), sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if size > MOST_HEAD:
            self._refusal = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        elif (b"transfer-encoding" in named and not self.most_body) or self._announced(named) > self.most_body:
            self._refusal = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return self._refusal is not http.HTTPStatus.BAD_REQUEST or self._is_answering()

    def _announced(self, named: dict[bytes, bytes]) -> int:
        """Bytes of the body. One without a number here comes in chunks, and is counted as they come."""
        length = named.get(b"content-length", b"0")
        return int(length) if length.isdigit() and len(length) < 19 else self.most_body + 1

    def _is_answering(self) -> bool:
        is_made = self.cycle is None or self.cycle.response_complete
        return not is_made or self.transport.get_write_buffer_size() > 0

    def _await_request(self) -> None:
        self.waits_since = self.loop.time()
        self._set_deadline(REQUEST)

    def _set_deadline(self, seconds: Seconds | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._end_if_late)

    def _end_if_late(self) -> None:
        if self.waits_since is not None or self._is_answering():
            self.transport.abort()

    def _make_room(self) -> None:
        held = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        waiting = [(each.waits_since, each) for each in held if each.waits_since is not None and each is not self]
        open_ = [(since, each) for since, each in waiting if not each.transport.is_closing()]
        _, longest = min(open_, key=lambda one: one[0], default=(0.0, self))
        longest.transport.abort()

    def _refuse(self, status: http.HTTPStatus) -> None:
        if not self.transport.is_closing():
            body = f"{status.value}: {status.phrase}\n".encode()
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            self.transport.close()


class PageProtocol(BoundedProtocol):
    """A connection of the dashboard: it may carry a small body, and its answer may last, as live pages do, as long as
    it is taken."""

    most_body = MOST_PAGE_BODY
    most_connections = MOST_PAGE_CONNECTIONS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._was_full = False  # half a minute ago something was waiting to be taken

    def _end_if_late(self) -> None:
        is_full = self.transport.get_write_buffer_size() > 0
        if self.waits_since is not None or (is_full and self._was_full):
            self.transport.abort()
        elif self._is_answering():
            self._was_full = is_full
            self._set_deadline(ANSWER)
