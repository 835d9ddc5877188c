"""What was scraped, in minutes: for each series a ring of 60 s buckets, in columns.

In: samples (columns, values, instants). Out: for any window up to the horizon what Prometheus would say of it: the
highest, the lowest, the mean, how many, how much a counter grew, the newest. The past: by_row.py.
A Track holds one metric; all Tracks turn with the same Ring. What a metric needs no column for has none.
Invariant: nan where nothing believable was sampled. Values are stored in 32 bits, rounded away from quiet (the highest
up, the lowest down), so that no activity is lost by storing it. A minute that is only partly in the window counts in
full for activity, and in proportion for coverage.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.model import usage
from fallow.model.units import MINUTE, Instant, Seconds

Columns: TypeAlias = NDArray[np.int64]
Small: TypeAlias = NDArray[np.float32]
Cells: TypeAlias = NDArray[Any]  # float32; of counts uint8
Field = Literal["high", "low", "count", "sum", "grown"]
A = TypeVar("A", bound=np.generic)

# Of all buckets, half of what the manifests give our pod; 800 GPUs with dcgm-exporter's defaults and a window of 30 min
# take 70 MiB.
MOST_BYTES: Final = 256 * 2**20
_FIRST_COLUMNS = 16
_BYTES: Final[Mapping[Field, int]] = {"high": 4, "low": 4, "count": 1, "sum": 4, "grown": 4}


class Full(Exception):
    """No room for further series."""


class Span(NamedTuple):
    """The buckets of a window, the oldest first, and the share of each that lies in it."""

    rows: Columns
    weights: usage.Floats


class Ring:
    """Which row of the columns a minute is. `head` is the newest one; rows of minutes that come anew must be wiped."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes
        self.head: int | None = None

    def row(self, minute: NDArray[np.int64]) -> Columns:
        return minute % self.minutes

    def advance(self, minute: int) -> Columns:
        """The rows that are now of other minutes than before."""
        if self.head is None or minute - self.head >= self.minutes:
            fresh = np.arange(self.minutes, dtype=np.int64)
        else:
            fresh = self.row(np.arange(self.head + 1, minute + 1, dtype=np.int64))
        self.head = minute if self.head is None else max(minute, self.head)
        return fresh

    def span(self, start: Instant, now: Instant) -> Span:
        """Minutes of which any part lies in (start, now]."""
        if self.head is None:
            return Span(np.zeros(0, dtype=np.int64), np.zeros(0))
        last = min(int(now // MINUTE), self.head)
        first = max(int(start // MINUTE), self.head - self.minutes + 1)
        minutes = np.arange(first, last + 1, dtype=np.int64)
        return Span(self.row(minutes), np.minimum(1.0, (minutes + 1) - start / MINUTE))

    def minute_of_rows(self) -> Columns:
        """The minute that each row stands for."""
        rows = np.arange(self.minutes, dtype=np.int64)
        head = self.head or 0
        return head - (head - rows) % self.minutes


class Track:
    """One metric. Column c is the series called `keys[c]`, whose labels have the number `series[c]`, as others may."""

    def __init__(self, ring: Ring, fields: Iterable[Field]) -> None:
        self._ring = ring
        self.keys: list[bytes] = []
        self.column_of: dict[bytes, int] = {}
        self.fields: dict[Field, Cells] = {name: _blank(name, ring.minutes, _FIRST_COLUMNS) for name in fields}
        self._numbers = np.zeros(_FIRST_COLUMNS, dtype=np.int64)
        self.latest = np.full(_FIRST_COLUMNS, np.nan)
        self.newest = np.full(_FIRST_COLUMNS, -np.inf)  # instant of the newest believable sample
        self.seen = np.full(_FIRST_COLUMNS, -np.inf)  # instant of the last page it was on, believable or not

    @property
    def size(self) -> int:
        return len(self.keys)

    @property
    def series(self) -> Columns:
        return self._numbers[: self.size]

    @property
    def bytes_per_column(self) -> int:
        return self._ring.minutes * sum(_BYTES[name] for name in self.fields) + 32

    @property
    def capacity(self) -> int:
        return len(self.latest)

    def add(self, key: bytes, number: int) -> int:
        """A new column."""
        if self.size == self.capacity:
            self._move(self._ring, slice(None), slice(None), 2 * self.capacity)
            self._numbers = _spread(self._numbers, self.capacity, 0)
        self._numbers[self.size] = number
        self.column_of[key] = self.size
        self.keys.append(key)
        return self.size - 1

    def _move(self, ring: Ring, rows: Columns | slice, columns: Columns | slice, capacity: int) -> None:
        """These columns to the front of new cells, with their rows now in these."""
        self._ring = ring
        for name, cells in self.fields.items():
            kept, fresh = cells[:, columns], _blank(name, ring.minutes, capacity)
            fresh[rows, : kept.shape[1]] = kept
            self.fields[name] = fresh
        self.latest = _spread(self.latest[columns], capacity, np.nan)
        self.newest, self.seen = (_spread(each[columns], capacity, -np.inf) for each in (self.newest, self.seen))

    def turn(self, ring: Ring, minutes: Columns) -> None:
        """Onto a longer ring; `minutes` are those of the rows until now."""
        self._move(ring, ring.row(minutes), slice(None), self.capacity)

    def wipe(self, rows: Columns) -> None:
        if not self.size:
            return
        for name, cells in self.fields.items():
            cells[rows] = 0 if name == "count" else np.nan

    # ---- in ----

    def take(self, columns: Columns, values: usage.Floats, stamps: usage.Floats, now: Instant, counts: bool) -> None:
        """Samples of one round; nan is no sample. Of several of a column all are heeded, and counted as one."""
        np.maximum.at(self.seen, columns, now)
        is_new = ~np.isnan(values) & (stamps > self.newest[columns])
        columns, values, stamps = columns[is_new], values[is_new], stamps[is_new]
        # Of the future only the instant is kept, for the brain to see.
        minutes = (np.minimum(stamps, now) // MINUTE).astype(np.int64)
        is_held = minutes > (self._ring.head or 0) - self._ring.minutes
        columns, values, stamps, minutes = columns[is_held], values[is_held], stamps[is_held], minutes[is_held]
        self._fill(self._ring.row(minutes), columns, values, counts)
        self.latest[columns] = values
        np.maximum.at(self.newest, columns, stamps)

    def _fill(self, rows: Columns, columns: Columns, values: usage.Floats, counts: bool) -> None:
        if "high" in self.fields:
            np.fmax.at(self.fields["high"], (rows, columns), round_up(values))
        if "low" in self.fields:
            np.fmin.at(self.fields["low"], (rows, columns), -round_up(-values))
        if "count" in self.fields and counts:
            cells = self.fields["count"]
            cells[rows, columns] = np.minimum(cells[rows, columns], 254) + 1
        if "sum" in self.fields and counts:
            cells = self.fields["sum"]
            cells[rows, columns] = round_up(np.nan_to_num(cells[rows, columns]) + values)
        if "grown" in self.fields:
            before = self.latest[columns]
            rise = np.where(values >= before, values - before, values)  # a counter that fell began anew
            cells = self.fields["grown"]
            grown = cells[rows, columns]
            cells[rows, columns] = np.where(np.isnan(before), grown, np.nan_to_num(grown) + round_up(rise))

    # ---- out: one value per column ----

    def peak(self, span: Span) -> usage.Floats:
        return self._fold("high", span, np.fmax)

    def lowest(self, span: Span) -> usage.Floats:
        return self._fold("low", span, np.fmin)

    def increase(self, span: Span) -> usage.Floats:
        if not self.size:
            return np.empty(0)
        cells = self.fields["grown"][span.rows, : self.size]
        return np.where(np.isnan(cells).all(axis=0), np.nan, np.nansum(cells, axis=0, dtype=np.float64))

    def count(self, span: Span) -> usage.Floats:
        found: usage.Floats = span.weights @ self.fields["count"][span.rows, : self.size]
        return found

    def mean(self, span: Span) -> usage.Floats:
        sums, counts = (self.fields[name][span.rows, : self.size] for name in ("sum", "count"))
        known = np.where(np.isnan(sums), 0, counts).sum(axis=0, dtype=np.float64)
        total = np.nansum(sums, axis=0, dtype=np.float64)
        found: usage.Floats = np.divide(total, known, out=np.full(self.size, np.nan), where=known > 0)
        return found

    def _fold(self, name: Field, span: Span, fold: np.ufunc) -> usage.Floats:
        if not self.size:
            return np.empty(0)
        cells = self.fields[name][span.rows, : self.size]
        found: usage.Floats = fold.reduce(cells, axis=0, initial=np.nan).astype(np.float64)
        return found

    def ends(self, span: Span) -> usage.Floats:
        """When each minute of the span is over: before the end of the first with data nothing is vouched for."""
        return np.multiply(self._ring.minute_of_rows()[span.rows] + 1, MINUTE, dtype=np.float64)

    # ---- tidying, and over a restart ----

    def keep(self, columns: Columns, numbers: Columns) -> None:
        """Only these columns stay, in this order, now with these numbers."""
        spare = max(_FIRST_COLUMNS, len(columns))
        self._move(self._ring, slice(None), columns, spare)
        self.keys = [self.keys[column] for column in columns]
        self.column_of = {key: column for column, key in enumerate(self.keys)}
        self._numbers = _spread(numbers, spare, 0)

    def dump(self, minute: int) -> tuple[list[bytes], "Minute"]:
        """The keys of all columns that have data in this minute, and their data."""
        cells = {name: found[minute % self._ring.minutes, : self.size] for name, found in self.fields.items()}
        has = (self.seen[: self.size] >= minute * MINUTE) & (self.seen[: self.size] < (minute + 1) * MINUTE)
        for name, found in cells.items():
            has |= found > 0 if name == "count" else ~np.isnan(found)
        at = np.flatnonzero(has)
        more = [column[at].tobytes() for column in (self.latest, self.newest, self.seen)]
        kept = {name: found[at].tobytes() for name, found in cells.items()}
        return [self.keys[column] for column in at], Minute(kept, more)

    def load(self, minute: int, found: "Minute", columns: Columns) -> None:
        """`columns` are ours for those of the minute, in its order; -1 = no longer. Minutes come the oldest first."""
        held = columns >= 0
        at = columns[held]
        for name, content in found.cells.items():
            cells = self.fields[name]
            cells[minute % self._ring.minutes, at] = np.frombuffer(content, dtype=cells.dtype)[held]
        for column, content in zip((self.latest, self.newest, self.seen), found.more, strict=True):
            column[at] = np.frombuffer(content, dtype=np.float64)[held]


class Minute(msgspec.Struct, array_like=True, frozen=True):
    """One metric in one minute: the cells of its columns by field, and their latest, newest and seen."""

    cells: dict[Field, bytes]
    more: list[bytes]


class Tracks:
    """All tracks, by metric."""

    def __init__(self, fields: Mapping[str, Iterable[Field]], horizon: Seconds) -> None:
        self._fields = {metric: tuple(names) for metric, names in fields.items()}
        self._open(_minutes(horizon))

    def empty(self) -> None:
        self._open(self.ring.minutes)

    def _open(self, minutes: int) -> None:
        self.ring = Ring(minutes)
        self.tracks = {metric: Track(self.ring, names) for metric, names in self._fields.items()}

    def stretch(self, horizon: Seconds) -> None:
        """Keep for longer from now on, as far as there is room; what is there stays."""
        room = MOST_BYTES * self.ring.minutes // max(self._bytes(), 1)
        minutes = min(_minutes(horizon), room)
        if minutes <= self.ring.minutes:
            return
        was, self.ring = self.ring, Ring(minutes)
        self.ring.head = was.head
        for track in self.tracks.values():
            track.turn(self.ring, was.minute_of_rows())

    def advance(self, now: Instant) -> None:
        fresh = self.ring.advance(int(now // MINUTE))
        if len(fresh):
            for track in self.tracks.values():
                track.wipe(fresh)

    def add(self, metric: str, key: bytes, number: int) -> int:
        """A new column of this metric. Raises Full."""
        track = self.tracks[metric]
        if track.size == track.capacity and self._bytes() + track.bytes_per_column * track.capacity > MOST_BYTES:
            raise Full(f"more series than fit into {MOST_BYTES // 2**20} MiB of measurements")
        return track.add(key, number)

    def _bytes(self) -> int:
        return sum(track.bytes_per_column * track.capacity for track in self.tracks.values())

    def __len__(self) -> int:
        return sum(track.size for track in self.tracks.values())


def _minutes(horizon: Seconds) -> int:
    return int(horizon // MINUTE) + 2  # the minute now, and the one that is only partly within


def round_up(values: usage.Floats) -> Small:
    """In 32 bits, never below what it was."""
    small = values.astype(np.float32)
    return np.where(small < values, np.nextafter(small, np.float32(np.inf)), small)


def _blank(name: Field, minutes: int, columns: int) -> Cells:
    if name == "count":
        return np.zeros((minutes, columns), dtype=np.uint8)
    return np.full((minutes, columns), np.nan, dtype=np.float32)


def _spread(values: NDArray[A], size: int, fill: float) -> NDArray[A]:
    column = np.full(size, fill, dtype=values.dtype)
    column[: len(values)] = values
    return column
