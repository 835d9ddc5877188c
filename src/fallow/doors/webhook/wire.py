"""One connection of the API server: HTTP/1.1 by a parser in C, and nothing between a review and its answer that waits.

In: bytes, over TLS. Out: answers of the app, each in one piece; one that the app has at once is sent within the same
turn of the loop, without a task. A request that is not there in time, an answer that is not taken, a head (431) or a
body (413) that is too large, and a second request before the first is answered (400) end the connection. When there
are too many, or too much of unfinished requests, the one that has kept us waiting longest for its request goes.
Invariant: whatever one client does, another one's review is answered.
"""

import asyncio
import http
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeAlias

import httptools

from fallow.model.units import Seconds

log = logging.getLogger("fallow")

MOST_HEAD: Final = 64 * 1024
# The API server takes pods of 3 MiB, and tells each byte of them in six at most (`<` as an escape). Who is too
# large for us goes past every budget.
MOST_BODY: Final = 20 * 1024 * 1024
MOST_CONNECTIONS: Final = 200
MOST_TOGETHER: Final = 64 * 1024 * 1024  # of unfinished requests that are larger than a head may be
REQUEST: Seconds = 10.0  # to send a request
ANSWER: Seconds = 30.0  # to make an answer, and to take it
KEEP_ALIVE: Seconds = 120.0  # longer than the API server keeps an idle connection, so that it is who ends it
SWEEP: Seconds = 1.0
TEXT: Final = b"text/plain; charset=utf-8"


class WireAnswer(NamedTuple):
    status: int
    body: bytes
    content_type: bytes = TEXT


Answers: TypeAlias = Callable[[str, str, bytes], WireAnswer | Coroutine[Any, Any, WireAnswer]]


class _UnwantedRequest(Exception):
    """Ends the parsing of a request that is not accepted."""


class ReviewLine(asyncio.Protocol):
    """`deadline`: when it is ended unless something happens. `waits_since`: for its request; None: that is there.
    `working`: an answer that is being made. `size`: bytes of its request so far."""

    def __init__(self, answers: Answers, lines: "set[ReviewLine]") -> None:
        self._answers, self._lines, self._parser = answers, lines, httptools.HttpRequestParser(self)
        self._body, self._url, self.size, self._has_head = bytearray(), b"", 0, False
        self._refusal = http.HTTPStatus.BAD_REQUEST
        self.working: asyncio.Future[WireAnswer] | None = None
        self.waits_since: float | None = None
        self._is_full = False
        self.deadline = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._lines.add(self)
        self._await_request(REQUEST)
        if len(self._lines) > MOST_CONNECTIONS:
            _make_room(self._lines, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.discard(self)
        if self.working is not None:
            self.working.cancel()

    def pause_writing(self) -> None:
        """What was answered is not taken: nothing more is read until it is, and what was read already is refused."""
        self._is_full = True
        self.transport.pause_reading()
        self.deadline = time.monotonic() + ANSWER

    def resume_writing(self) -> None:
        self._is_full = False
        self.transport.resume_reading()
        self._await_request(KEEP_ALIVE)

    def _await_request(self, seconds: Seconds) -> None:
        self.waits_since = time.monotonic()
        self.deadline = self.waits_since + seconds

    # ---- a request comes in ----

    def data_received(self, data: bytes) -> None:
        if not self.size and self.working is None:
            self._await_request(REQUEST)
        self.size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # it asks for another protocol and gets HTTP/1.1, as it may
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        if self.size > MOST_HEAD and not self._has_head:
            self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self.size > MOST_HEAD + MOST_BODY:
            self._refuse(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif self.size > MOST_HEAD:
            _lighten(self._lines)

    def on_message_begin(self) -> None:
        if self.working is not None or self._is_full:
            raise _UnwantedRequest

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"content-length" and not (value.isdigit() and len(value) < 19 and int(value) <= MOST_BODY):
            self._refusal = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise _UnwantedRequest
        if key == b"expect" and value.lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        body, url, method = bytes(self._body), self._url, self._parser.get_method().decode("latin-1")
        self._body, self._url, self.size, self._has_head = bytearray(), b"", 0, False
        self.waits_since, self.deadline = None, time.monotonic() + ANSWER
        try:
            found = self._answers(method, url.partition(b"?")[0].decode("latin-1"), body)
        except Exception as problem:  # in the midst of the parser, which would call it a bad request
            self._own(problem)
            return
        if isinstance(found, WireAnswer):
            self._send(found, method)
        else:
            self.working = asyncio.ensure_future(found)
            self.working.add_done_callback(lambda done: self._finish(done, method))

    # ---- an answer goes out ----

    def _finish(self, done: asyncio.Future[WireAnswer], method: str) -> None:
        self.working = None
        if done.cancelled() or self.transport.is_closing():
            return
        if problem := done.exception():
            self._own(problem)
        else:
            self._send(done.result(), method)

    def _own(self, defect: BaseException) -> None:
        log.error("a request was not answered", exc_info=defect)
        self._refuse(http.HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, answer: WireAnswer, method: str) -> None:
        keeps = self._parser.should_keep_alive()
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            answer.status, _PHRASES[answer.status], answer.content_type, len(answer.body),
            b"" if keeps else b"connection: close\r\n",
        )
        self._await_request(KEEP_ALIVE)
        self.transport.write(head if method == "HEAD" else head + answer.body)
        if not keeps:
            self.transport.close()

    def _refuse(self, status: http.HTTPStatus) -> None:
        if not self.transport.is_closing():
            body = b"%d: %b\n" % (status, _PHRASES[status])
            head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, _PHRASES[status], TEXT, len(body)) + body)
            self.transport.close()


_PHRASES: Final = {status.value: status.phrase.encode() for status in http.HTTPStatus}


def end_late(lines: set[ReviewLine], now: float) -> None:
    for line in [each for each in lines if each.deadline < now]:
        line.transport.abort()


def _make_room(lines: set[ReviewLine], new: ReviewLine) -> None:
    waiting = [each for each in lines if each.waits_since is not None and each is not new]
    _end(min(waiting, key=_since, default=new), lines)


def _lighten(lines: set[ReviewLine]) -> None:
    heavy = [each for each in lines if each.size > MOST_HEAD]
    if sum(each.size for each in heavy) > MOST_TOGETHER:
        _end(min(heavy, key=_since), lines)


def _since(line: ReviewLine) -> float:
    return line.waits_since or 0.0


def _end(line: ReviewLine, lines: set[ReviewLine]) -> None:
    lines.discard(line)
    line.transport.abort()
