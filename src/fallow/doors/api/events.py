"""Live pages: what changed, to everybody who listens (server-sent events), each change encoded once.

In: changes, as the end of a cycle and every write publish them. Out: `GET /api/v1/events`. A batch of changes has one
revision, which rises; it stands as `id` on the last event of the batch, so that who breaks off in its midst gets all of
it again. Who comes back with `Last-Event-ID` gets what they missed, if it is still there; else the latest `cycle` with
`missed: true`: look anew.
Invariant: memory is bounded: so many listeners, so many bytes for each that does not take them (then it is cut off), so
many of the past.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fallow.doors.api import refusals
from fallow.doors.api.refusals import Denied
from fallow.model.units import Seconds

Event: TypeAlias = tuple[str, Any]  # its name, and what can be encoded as JSON
Guard: TypeAlias = Callable[[Request], Awaitable[None]]

MOST_LISTENERS: Final = 500
KEEP_ALIVE: Final[Seconds] = 15.0
_MOST_WAITING: Final = 4 * 1024 * 1024  # bytes that one listener has not taken yet
_MOST_PAST: Final = 8 * 1024 * 1024  # bytes of past batches
_HELLO: Final = b"retry: 2000\n\n"
_STILL_HERE: Final = b": still here\n\n"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Listener:
    """One open page: what it has yet to be sent."""

    def __init__(self) -> None:
        self.is_cut_off = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()

    def put(self, batch: bytes) -> None:
        if self._size + len(batch) > _MOST_WAITING:
            self.cut_off()
            return
        self._waiting.append(batch)
        self._size += len(batch)
        self._news.set()

    def cut_off(self) -> None:
        self.is_cut_off = True
        self._waiting.clear()
        self._news.set()

    async def take(self, patience: Seconds) -> bytes:
        """All that waits; b"" where nothing came in that time."""
        try:
            async with asyncio.timeout(patience):
                await self._news.wait()
        except TimeoutError:
            return b""
        taken = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._news.clear()
        return taken


class Changes:
    """The hub. `revision`: of the last batch; answers of reads carry it too."""

    def __init__(self, first: int = 0, count: Callable[[], int] | None = None) -> None:
        """`first`: where to go on counting, so that a restart does not look like the past to open pages. `count`: who
        counts, where others have a share in it."""
        self.revision, self._count = first, count
        self._listeners: set[Listener] = set()
        self._past: deque[tuple[int, bytes]] = deque()
        self._past_size = 0
        self._forgotten = first  # of all up to this one nothing is known
        self._cycle: Any = None

    def publish(self, batch: Sequence[Event], revision: int | None = None) -> int:
        """To everybody, as one; the new revision, which is counted here where none is given. Only what changed."""
        if not batch:
            return self.revision
        counted = revision or (self._count() if self._count else 0)
        self.revision = max(self.revision + 1, counted)
        self._cycle = next((data for name, data in reversed(batch) if name == "cycle"), self._cycle)
        encoded = _encode(batch, self.revision)
        self._remember(encoded)
        for listener in self._listeners:
            listener.put(encoded)
        # One that is cut off cannot say so itself: it hangs in what it is being sent. The listener ends its connection.
        self._listeners = {each for each in self._listeners if not each.is_cut_off}
        return self.revision

    def _remember(self, encoded: bytes) -> None:
        self._past.append((self.revision, encoded))
        self._past_size += len(encoded)
        while self._past_size > _MOST_PAST:
            self._forgotten, gone = self._past.popleft()
            self._past_size -= len(gone)

    def listen(self, last_seen: int | None) -> Listener:
        """Raises Denied where too many do already."""
        if len(self._listeners) >= MOST_LISTENERS:
            raise Denied(503, "TooManyListeners", f"{MOST_LISTENERS} pages are open already", retry_after=30)
        listener = Listener()
        listener.put(_HELLO + self._catch_up(last_seen))
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def close(self) -> None:
        """Everybody out: we stop."""
        for listener in self._listeners:
            listener.cut_off()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def _catch_up(self, last_seen: int | None) -> bytes:
        if last_seen is None or last_seen == self.revision:
            return b""
        if self._forgotten <= last_seen < self.revision:
            return b"".join(encoded for revision, encoded in self._past if revision > last_seen)
        if self._cycle is None:  # there is nothing that could have been missed
            return b""
        latest = msgspec.to_builtins(self._cycle)
        return _encode([("cycle", {**latest, "revision": self.revision, "missed": True})], self.revision)


def _encode(batch: Sequence[Event], revision: int) -> bytes:
    lines = [f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n" for name, data in batch]
    return b"".join(lines[:-1]) + f"id: {revision}\n".encode() + lines[-1]


def make_route(
    changes: Changes, guard: Guard, keep_alive: Seconds = KEEP_ALIVE, leads: Callable[[], bool] = lambda: True
) -> Route:
    """`leads`: a page that was open when that changed asks anew, of who leads now."""

    async def show(request: Request) -> Response:
        try:
            await guard(request)
            listener = changes.listen(_read_last(request.headers.get("Last-Event-ID")))
        except Denied as refused:
            return refusals.show(refused)
        news = _tell(changes, listener, keep_alive, leads)
        return StreamingResponse(news, headers=_HEADERS, media_type="text/event-stream")

    return Route("/api/v1/events", show)


async def _tell(
    changes: Changes, listener: Listener, keep_alive: Seconds, leads: Callable[[], bool]
) -> AsyncIterator[bytes]:
    led = leads()
    try:
        while not listener.is_cut_off and leads() is led:
            news = await listener.take(keep_alive)
            if not listener.is_cut_off:
                yield news or _STILL_HERE
    finally:
        changes.leave(listener)


def _read_last(text: str | None) -> int | None:
    """What is no revision of ours is as good as one that is long past."""
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
