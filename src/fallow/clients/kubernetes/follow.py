"""A local copy of one resource, kept equal to the server's by list and watch.

In: a resource, a slim Struct to decode its objects into, and `keep`, which says what to remember of each (None:
nothing). Out: `store`, uid -> what is kept; `generation`, which grows whenever it changes; `problem`, why it is not
being followed right now; whoever wants to know is told of each that goes (`parted`). The Struct needs `.metadata` with
uid and names, nothing else. Fields it does not name are skipped by the decoder, which is what makes this cheap.
Invariant: after a gap (410, an ERROR event, a broken line) the store is replaced by a complete list, so no delete is
ever missed; a resource version is moved on only past lines that were taken in.
"""

import asyncio
import contextlib
import gc
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import nesting, transport

log = logging.getLogger(__name__)

# client-go's own: long enough to be cheap, random so that followers do not come back all at once.
_WATCH_SECONDS = (240, 480)
_LONGEST_RETRY_SECONDS = 30.0
# What says nothing about where we are in the stream. (403 may mean that we may list but not watch: then we list.)
_PASSING = (errors.Unreachable, errors.ServerFault, errors.Throttled, errors.Misconfigured, errors.Unauthorized)
# A watch that fails this often in a row may never work (a proxy that holds it back, say), while lists do.
_FAILURES_UNTIL_LIST = 5
# What content of one object can make of whoever looks at it.
ODD = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
# An object is at most about 3 MB in etcd; a line that outgrows this is no event.
_LONGEST_LINE_BYTES = 32 * 1024 * 1024


class HasUid(Protocol):
    @property
    def uid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...


class FollowedItem(Protocol):
    """What a Follower asks of the Struct it decodes into."""

    @property
    def metadata(self) -> HasUid: ...


T = TypeVar("T", bound=FollowedItem)
K = TypeVar("K")


class _Event(msgspec.Struct, Generic[K]):
    type: str
    object: K


_ROUGH_EVENT: msgspec.json.Decoder[_Event[msgspec.Raw]] = msgspec.json.Decoder(_Event[msgspec.Raw])


class Follower(Generic[T, K]):
    """One resource, followed. Read `store` afresh each time: a new list replaces it."""

    def __init__(
        self, api: kube.Api, resource: kube.Resource, *, item: type[T], keep: Callable[[T], K | None],
        namespace: str | None = None, label_selector: str | None = None, field_selector: str | None = None,
        metadata_only: bool = False, changed: asyncio.Event | None = None,
        retry_seconds: float = 1.0, slow_retry_seconds: float = 60.0,
        parted: Callable[[K, T | None], None] | None = None, watch_seconds: tuple[int, int] = _WATCH_SECONDS,
    ) -> None:
        """`changed` is set on every change, and may be shared.

        `slow_retry_seconds` is for what only people can mend (401, 403, 404). `parted` is given what was kept of one
        that is gone, and the object as it was at its end: None if it was only found missing. `watch_seconds`: between
        which a watch ends and is opened anew; who must know that it is not cut off opens it often.
        """
        self.store: dict[str, K] = {}
        self.generation = 0
        self.synced = False  # store was complete, and all that changed since can still be told
        self.synced_at: float | None = None  # monotonic; when the server last said something we took in
        self.problem: errors.ClientError | None = None
        self.changed = changed if changed is not None else asyncio.Event()
        self._api = api
        self._resource = resource
        self._item = item
        self._keep, self._parted = keep, parted
        self._scope: dict[str, Any] = {
            "namespace": namespace, "label_selector": label_selector, "field_selector": field_selector,
            "metadata_only": metadata_only,
        }
        kind: Any = item
        self._decoder = msgspec.json.Decoder(_Event[kind])
        self._unreadable: dict[str, str] = {}  # by uid, what people call it
        self._version = ""
        self._failures = 0
        self._retry_seconds = retry_seconds
        self._watch_seconds = watch_seconds
        self._slow_retry_seconds = slow_retry_seconds

    @property
    def unreadable(self) -> int:
        """How many objects are on the server whose content we cannot read; they are not in the store."""
        return len(self._unreadable)

    @property
    def unreadable_names(self) -> tuple[str, ...]:
        """What people call those, where that could be read: `namespace/name`."""
        return tuple(sorted(filter(None, self._unreadable.values())))

    async def list_once(self) -> None:
        """Fill the store by one list."""
        with collector_at_rest():
            store, unreadable = await self._list()
            is_change = store != self.store or unreadable != self._unreadable or not self.synced
            for uid in self.store.keys() - store.keys() if self._parted else ():
                self._part(uid, None)
            self.store, self._unreadable = store, unreadable
            self.synced, self.synced_at = True, time.monotonic()
            if is_change:
                self._announce()
        self.problem = None

    async def run(self) -> None:
        """Follow until cancelled; what goes wrong is in `problem`, and is tried again."""
        while True:
            try:
                if not self.synced:
                    await self.list_once()
                began = time.monotonic()
                await self._watch()
                # Ended in order; but however often the server ends it, we do not come back more often than this.
                await asyncio.sleep(max(0.0, began + self._retry_seconds - time.monotonic()))
            except errors.ClientError as problem:
                await self._recover(problem)
            except Exception as problem:  # a bug, or content that nobody foresaw: blind for this kind, not for others
                log.exception("%s cannot be followed", self._resource.plural)
                self.synced = False
                await self._recover(errors.BadAnswer(f"unexpected {type(problem).__name__} ({problem})"))

    async def _list(self) -> tuple[dict[str, K], dict[str, str]]:
        store: dict[str, K] = {}
        unreadable: dict[str, str] = {}
        async for page in self._api.list_pages(self._resource, item=self._item, **self._scope):
            if page.restarted:
                store, unreadable = {}, {}
            for number, meta in enumerate(page.unreadable):
                unreadable[meta.uid or f"nameless {len(unreadable)}.{number}"] = _call(meta)
            for item in page.items:
                self._take(item, store, unreadable)
            self._version = page.resource_version
        return store, unreadable

    def _take(self, item: T, store: dict[str, K], unreadable: dict[str, str]) -> None:
        """Remember one object, or forget it."""
        uid = item.metadata.uid
        if not uid:
            unreadable["nameless"] = _call(item.metadata)
            return
        unreadable.pop(uid, None)
        try:
            kept = self._keep(item)
        except ODD:  # content of one must not stop the others
            unreadable[uid] = _call(item.metadata)
            kept = None
        if kept is None:
            store.pop(uid, None)
        else:
            store[uid] = kept

    def _announce(self) -> None:
        self.generation += 1
        self.changed.set()

    async def _recover(self, problem: errors.ClientError) -> None:
        """Note what went wrong and wait. What says that our place in the stream may be gone makes us list again."""
        self._failures += 1
        if not isinstance(problem, _PASSING) or self._failures >= _FAILURES_UNTIL_LIST:
            self.synced = False
        if isinstance(problem, errors.Gone) and self._failures == 1:
            return  # overtaken, which is normal after a gap: list at once
        self.problem = problem
        self.changed.set()
        await asyncio.sleep(self._patience(problem))

    def _patience(self, problem: errors.ClientError) -> float:
        is_refused = isinstance(problem, errors.Unauthorized | errors.Forbidden | errors.NotFound)
        # A server that has just started refuses everybody until it has read its roles: who was served before asks again
        # soon.
        if is_refused and (self.synced_at is None or time.monotonic() - self.synced_at > 10 * self._slow_retry_seconds):
            return self._slow_retry_seconds * random.uniform(0.8, 1.2)
        longest = self._retry_seconds * 2.0 ** min(self._failures - 1, 10)
        return min(longest, _LONGEST_RETRY_SECONDS) * random.uniform(0.5, 1.0)

    async def _watch(self) -> None:
        """One watch, to its end. Returning means: go on from where we are."""
        last_line, began, seconds = b"", time.monotonic(), random.randint(*self._watch_seconds)
        watch = self._api.watch(self._resource, resource_version=self._version, seconds=seconds, **self._scope)
        try:
            async with watch as chunks:
                self.synced_at = time.monotonic()
                if self.problem is not None:
                    self.problem = None
                    self.changed.set()
                async for line in _split_lines(chunks):
                    self._take_line(line)
                    last_line = line
        finally:
            if last_line:  # reading the version once, at the end, spares item types a field and every event the work
                self._version = _version_of(last_line) or self._version
            if time.monotonic() - began > _LONGEST_RETRY_SECONDS:
                self._failures = 0

    def _take_line(self, line: bytes) -> None:
        try:
            event = self._decoder.decode(line)
            is_plain = event.type in ("ADDED", "MODIFIED", "DELETED") and bool(event.object.metadata.uid)
        except kube.UNREADABLE:
            is_plain = False
        if is_plain:
            self._take_event(event.type, event.object)
        else:
            self._take_odd_line(line)
        self.synced_at = time.monotonic()

    def _take_event(self, type_: str, item: T) -> None:
        uid = item.metadata.uid
        before = (self.store.get(uid), uid in self._unreadable)
        if type_ == "DELETED":
            self._part(uid, item)
            self._forget(uid)
        else:
            self._take(item, self.store, self._unreadable)
        if (self.store.get(uid), uid in self._unreadable) != before:
            self._announce()

    def _part(self, uid: str, last: T | None) -> None:
        kept = self.store.get(uid)
        if self._parted is not None and kept is not None:
            self._parted(kept, last)

    def _forget(self, uid: str) -> None:
        self.store.pop(uid, None)
        self._unreadable.pop(uid, None)

    def _take_odd_line(self, line: bytes) -> None:
        """A bookmark, an error, an object that does not fit our type, or no event at all."""
        try:
            event = _read_roughly(line)
        except kube.UNREADABLE as problem:
            raise errors.BadAnswer(f"watch of {self._resource.plural}: a line is no event: {problem}") from problem
        if event.type == "BOOKMARK":
            return
        if event.type == "ERROR":
            self.synced = False  # whatever it says, nothing after it can be relied on
            raise _error_of(event.object)
        meta = kube.read_meta(event.object)
        if not meta.uid:
            raise errors.BadAnswer(f"watch of {self._resource.plural}: an object has no uid")
        if event.type == "DELETED":
            self._part(meta.uid, None)
        self._forget(meta.uid)  # what we knew of it is no longer true
        if event.type != "DELETED":
            self._unreadable[meta.uid] = _call(meta)
        self._announce()


def _call(meta: HasUid) -> str:
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def _read_roughly(line: bytes) -> _Event[msgspec.Raw]:
    """Even what is skipped must not be nested too deep."""
    try:
        return _ROUGH_EVENT.decode(line)
    except RecursionError:
        return _ROUGH_EVENT.decode(nesting.cut(line))


def _error_of(raw: msgspec.Raw) -> errors.ClientError:
    try:
        status = transport.STATUS.decode(raw)
    except kube.UNREADABLE as problem:
        return errors.BadAnswer(f"the watch ended with an error that cannot be read: {problem}")
    return status.to_error(status.code or 500)


def _version_of(line: bytes) -> str:
    try:
        return kube.read_meta(_read_roughly(line).object).resource_version
    except kube.UNREADABLE:
        return ""


async def _split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines. What stands after the last line end when the stream ends is half an event: it will come again."""
    rest: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > _LONGEST_LINE_BYTES:
            raise errors.BadAnswer(f"a watch sent a line longer than {_LONGEST_LINE_BYTES} bytes")
        if not others:
            continue
        lines = [b"".join(rest), *others[:-1]]
        rest, size = [others[-1]], len(others[-1])
        for line in lines:
            if line.strip():
                yield line


_listing = 0
_was_on = False


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """No garbage collection while many objects are made, none of which is garbage.

    What lives at the end is never looked at again. Worth a factor of 1.4 to 3.6, and afterwards a full collection
    stalls nobody. Several may be inside at once.
    """
    global _listing, _was_on
    if _listing == 0:
        _was_on = gc.isenabled()
        gc.disable()
    _listing += 1
    try:
        yield
    finally:
        _listing -= 1
        if _listing == 0 and _was_on:  # else it is somebody else's decision
            gc.collect()
            gc.freeze()
            gc.enable()
