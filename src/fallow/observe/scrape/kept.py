"""What was scraped, kept over a restart: one page of a database for each minute that is over.

In: Samples and the directory. Out: Samples filled again with what was written before, as far back as the horizon.
Invariant: only minutes that are over are written, so a restart loses at most the one it was in. What cannot be read
back is left out and said: measuring begins anew then, and nothing is guessed.
"""

import asyncio
import logging
import pathlib
import zlib

import msgspec
import numpy as np

from fallow.clients import errors
from fallow.clients.database import pages
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe.scrape import buckets, samples

log = logging.getLogger(__name__)

FILE = "usage.sqlite"
_LAYOUT = 1  # of what is written here; another one is not read


class _Part(msgspec.Struct, array_like=True, frozen=True):
    """One metric: the numbers of its series in the database, and their minute."""

    names: bytes
    minute: buckets.Minute


class Keeper:
    """The file in the state directory. `writes` = a daemon; a single look only reads."""

    def __init__(self, directory: str, *, interval: Seconds, writes: bool) -> None:
        """`interval`: of the scrapes. Counts that were made at another one would cover more than was measured."""
        layout = _LAYOUT * 1_000_000 + round(interval * 1000)
        self._pages = pages.Pages(pathlib.Path(directory) / FILE, layout, writes=writes)
        self._writes = writes
        self._names: dict[bytes, int] = {}
        self._next = 1
        self._written: int | None = None  # the last minute in the file
        self._begun = 0  # what is older than this minute is not ours to read
        self._generation = 0
        self._is_failing = False

    async def open(self) -> None:
        """Raises Misconfigured where the directory cannot be used."""
        await self._pages.open()

    async def restore(self, into: samples.Scraped, now: Instant) -> None:
        minute = int(now // MINUTE)
        into.table.advance(now)
        self._written = minute - 1
        try:
            kept = await self._pages.read(minute - into.table.ring.minutes + 1)
            self._next = max(kept.names, default=0) + 1
            await _load(into, [page for page in kept.pages if page[0] <= minute], kept.names)
            self._names = {name: number for number, name in kept.names.items()}
        except (ValueError, LookupError, zlib.error, msgspec.MsgspecError, errors.ClientError, buckets.Full) as problem:
            log.warning("what was measured before the restart cannot be read, measuring begins anew: %s", problem)
            into.forget_all()
            into.table.advance(now)
            self._begun = minute
        self._generation = into.generation

    async def write(self, seen: samples.Scraped, now: Instant) -> None:
        """Every minute that is over and not written yet."""
        last = int(now // MINUTE) - 1
        if not self._writes or self._written is None or self._written == last:
            return
        self._written = min(self._written, last)  # the clock may have been set back
        oldest = max(last - seen.table.ring.minutes + 2, self._begun)
        try:
            for minute in range(max(self._written + 1, oldest), last + 1):
                await self._write(seen, minute, oldest)
                self._written = minute
        except errors.ClientError as problem:
            if not self._is_failing:
                log.warning("measurements are not kept for a restart: %s", problem)
            self._is_failing = True
            return
        self._is_failing = False

    async def _write(self, seen: samples.Scraped, minute: int, oldest: int) -> None:
        fresh: dict[int, bytes] = {}
        parts: dict[str, _Part] = {}
        for metric, track in seen.table.tracks.items():
            keys, found = track.dump(minute)
            if keys:
                numbers = np.array([self._number(metric, key, fresh) for key in keys], dtype=np.int64)
                parts[metric] = _Part(numbers.tobytes(), found)
        keep = None
        if seen.generation != self._generation:  # series were forgotten: so are their names
            keep = self._forget_names(seen)
        content = zlib.compress(msgspec.msgpack.encode(parts), 1)
        try:
            await self._pages.add(fresh, minute, content, oldest, keep)
        except errors.ClientError:
            for name in fresh.values():
                self._names.pop(name, None)
            raise
        self._generation = seen.generation

    def _number(self, metric: str, key: bytes, fresh: dict[int, bytes]) -> int:
        name = b"%s %s" % (metric.encode(), key)
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = self._next
            fresh[number] = name
            self._next += 1
        return number

    def _forget_names(self, seen: samples.Scraped) -> set[int]:
        """The numbers that stay; the highest always does, lest one that older pages have is given twice."""
        held = {b"%s %s" % (metric.encode(), key) for metric, track in seen.table.tracks.items() for key in track.keys}
        self._names = {name: number for name, number in self._names.items() if name in held}
        return {*self._names.values(), self._next - 1}

    async def close(self) -> None:
        await self._pages.close()


async def _load(into: samples.Scraped, pages: list[tuple[int, bytes]], names: dict[int, bytes]) -> None:
    """All pages, the oldest first. A name that is no more belongs to a series that was forgotten."""
    columns = np.full(max(names, default=0) + 1, -1, dtype=np.int64)
    is_found = np.zeros(len(columns), dtype=np.bool_)
    for at, content in pages:
        await asyncio.sleep(0)  # a day takes a second or two: others may have their turn
        for metric, part in msgspec.msgpack.decode(zlib.decompress(content), type=dict[str, _Part]).items():
            numbers = np.frombuffer(part.names, dtype=np.int64)
            for number in numbers[~is_found[numbers]].tolist():
                is_found[number] = True
                if number in names:
                    columns[number] = into.find_column_of(metric, names[number].partition(b" ")[2])
            into.table.tracks[metric].load(at, part.minute, columns[numbers])
