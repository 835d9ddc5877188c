"""A watch: what happens to the objects of a kind, line by line, as it happens.

In: a Call and a function that writes to the client. Out: ADDED, MODIFIED, DELETED, BOOKMARK and ERROR lines for a time.
Invariant: with a selector, what begins to match is ADDED, what no longer does is DELETED; nothing is said twice.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, reading, refusals, selectors

_BOOKMARK_SECONDS = 60.0
_LONGEST_SECONDS = 1800.0
_MOST_UNREAD = 50_000  # a client so far behind is cut off, and lists again
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Watch:
    def __init__(self, call: calls.Call, store: stores.Store, clock: Callable[[], float]) -> None:
        self._call, self._store, self._clock = call, store, clock
        self._test = selectors.read(call.kind, call.query.get("labelSelector", ""), call.query.get("fieldSelector", ""))
        self._after, self._from_start = _read_version(call)
        self._unread: deque[stores.Change] = deque()
        self._wake = asyncio.Event()

    @property
    def seconds(self) -> float:
        return float(reading.read_number(self._call.query.get("timeoutSeconds", "")) or _LONGEST_SECONDS)

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write lines until cancelled, or until the client is too far behind."""
        unsubscribe = self._store.subscribe(self._hear, self._call.kind.home)
        try:
            await write(b"".join(self._begin()))
            while len(self._unread) < _MOST_UNREAD:
                changes = [self._unread.popleft() for _ in range(len(self._unread))]
                if lines := b"".join(self._tell(changes)):
                    await write(lines)
                elif not self._unread:
                    await self._rest(write)
        except stores.TooOld:
            await write(_line("ERROR", msgspec.json.encode(refusals.too_old(self._after).to_status())))
        finally:
            unsubscribe()

    def _hear(self, change: stores.Change) -> None:
        self._unread.append(change)
        self._wake.set()

    async def _rest(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(_BOOKMARK_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            if self._wants_bookmarks:
                await write(self._bookmark({}))

    @property
    def _wants_bookmarks(self) -> bool:
        return self._call.query.get("allowWatchBookmarks") in ("true", "1")

    def _begin(self) -> Iterable[bytes]:
        """What is there, or what has happened since the version asked for."""
        kind = self._call.kind
        if not self._from_start:
            yield from self._tell(self._store.changes_since(*kind.home, self._after))
            return
        for entry in self._store.entries(*kind.home, namespace=self._call.path.namespace):
            if self._shows(entry):
                yield self._write("ADDED", entry)
        if self._wants_bookmarks:
            yield self._bookmark(_INITIAL_END)

    def _tell(self, changes: Iterable[stores.Change]) -> Iterable[bytes]:
        namespace = self._call.path.namespace
        for change in changes:
            entry = change.entry
            if entry.version <= self._after or (namespace and entry.key.namespace != namespace):
                continue
            was = change.before is not None and self._shows(change.before)
            now = change.type != "DELETED" and self._shows(entry)
            if was or now:
                yield self._write("MODIFIED" if was and now else "ADDED" if now else "DELETED", entry)

    def _shows(self, entry: stores.Entry) -> bool:
        return self._test is None or self._test(entry.object)

    def _write(self, type_: str, entry: stores.Entry) -> bytes:
        return _line(type_, reading.represent(self._call, entry, self._clock()))

    def _bookmark(self, annotations: dict[str, str]) -> bytes:
        metadata = {"resourceVersion": str(self._store.version)} | ({"annotations": annotations} if annotations else {})
        shown = {"kind": self._call.kind.kind, "apiVersion": self._call.kind.api_version, "metadata": metadata}
        return _line("BOOKMARK", msgspec.json.encode(shown))


def _line(type_: str, obj: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), obj)


def _read_version(call: calls.Call) -> tuple[int, bool]:
    """The version after which to begin, and whether what is there now comes first."""
    text = call.query.get("resourceVersion", "")
    if not text.isdecimal() and text:
        why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise refusals.ApiRefusal(500, f'resourceVersion: Invalid value: "{text}": {why}')
    return int(text or 0), text in ("", "0") or call.query.get("sendInitialEvents") == "true"
