"""What all exporters showed, as the readings that a Prometheus would give of it.

In: pages of exporters. Out: readings with the same keys and the same meaning as the answers to queries.py, so that the
same columns are made of them (usage/readings.py).
An exporter of ours also says itself since when it watches a pod's GPU and when that was last active: where it has seen
a whole quiet window, that counts as if we had.
Invariant: what is not believable is no sample. A series that left its exporter's page has no newest sample. An exporter
has room for what the GPUs of its node can mean and no more, so that no page crowds out another.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from fallow.clients import exposition
from fallow.model import usage
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds
from fallow.model.usage import Signal
from fallow.names import NodeMetric
from fallow.observe.scrape import buckets, by_row, targets
from fallow.observe.scrape.buckets import Columns, Field
from fallow.observe.usage import labels, queries, rows
from fallow.observe.usage.readings import SeriesReading, Topic, What, join

Key: TypeAlias = tuple[str, str]  # of an exporter: its job and instance

# As far as Prometheus looks back for the value of an instant: an older one is no value of now.
_CURRENT: Final[Seconds] = 300.0
_UNBROKEN = 5  # minutes without data before the time after them counts as a new beginning
_LAST_ACTIVE: Final = NodeMetric.POD_LAST_ACTIVE
_OBSERVED_SINCE: Final = NodeMetric.POD_OBSERVED_SINCE
_VOUCHES = (_LAST_ACTIVE, _OBSERVED_SINCE)
_OF_PROCESSES = ("process", "instance")  # scopes that speak of the pod itself
_SERVING = frozenset((*queries.REQUEST_GAUGES, *queries.REQUEST_COUNTERS))
_METRICS: Final = {metric.name: metric for metric in (*queries.PRIMARIES, *queries.OTHERS)}
_OURS = frozenset((*_VOUCHES, queries.HOLDS, *(name for name, metric in _METRICS.items() if metric.own)))
_RATIOS: Final = tuple(metric for metric in queries.PRIMARIES if metric.signal in usage.RATIOS)
_KERNELS: Final = next(metric for metric in queries.PRIMARIES if metric.signal is Signal.last_kernel)
_PROCESS_SM: Final = next(metric for metric in queries.PRIMARIES if metric.signal is Signal.process_sm)


def _fields() -> dict[str, tuple[Field, ...]]:
    """What is kept of each metric: only what is asked of it."""
    fields: dict[str, tuple[Field, ...]] = {metric.name: ("high",) for metric in queries.OTHERS}
    fields |= {metric.name: ("high", "count") for metric in queries.PRIMARIES}
    fields |= {metric.name: ("high", "count", "sum") for metric in _RATIOS}
    fields |= {metric.name: ("high", "low", "count", "sum") for metric in queries.POWER}
    fields |= {metric.name: ("high", "low") for metric in queries.OTHERS if metric.signal is Signal.fb_growth}
    fields |= dict.fromkeys((*_VOUCHES, queries.HOLDS), ())
    fields |= dict.fromkeys(queries.REQUEST_GAUGES, ("high",))
    return fields | dict.fromkeys((queries.ENERGY, *queries.REQUEST_COUNTERS), ("grown",))


FIELDS: Final = _fields()
# Series on one page for each GPU of its node: every signal for a board, its 7 instances, and the pods that share it.
PER_GPU: Final = 16 * len(FIELDS)
USUAL_GPUS: Final = 16  # of a node whose number is not known
_PAGES: Final = 4  # as many pages of one exporter are remembered, with pods that came and went
_ORDER: Final = {metric: index for index, metric in enumerate(FIELDS)}
_NAMES: Final = tuple(FIELDS)


class Taken(NamedTuple):
    """The page of one exporter."""

    known: "Exporter"
    page: exposition.Page


_UNASKED = -2  # in Exporter: not asked yet for its column


class Exporter:
    """What is known of one exporter: how to read its pages, and where its series are kept."""

    def __init__(self, target: targets.ScrapeTarget) -> None:
        self.target = target
        self.reader = exposition.Reader(FIELDS)
        self._stamp: tuple[int, int] | None = None
        self._tracks: list[int] = []
        self._columns: list[int] = []

    def locate(self, samples: "Scraped", page: exposition.Page) -> tuple[Columns, Columns]:
        """Track and column of each sample; column -1 = not wanted. Raises buckets.Full."""
        stamp = (samples.generation, self.reader.generation)
        if stamp != self._stamp:
            self._stamp, self._tracks, self._columns = stamp, [], []
        new = self.reader.series[len(self._tracks) :]
        self._tracks += [_ORDER[series.metric] for series in new]
        self._columns += [_UNASKED] * len(new)
        numbers = np.array(page.numbers, dtype=np.int64)
        columns = np.array(self._columns, dtype=np.int64)[numbers]
        # Only what is on this page: the reader also remembers series that are gone, whose columns would go again.
        for number in numbers[columns == _UNASKED].tolist():
            self._columns[number] = samples.find_column(self.reader.series[number], self.target)
        return np.array(self._tracks, dtype=np.int64)[numbers], np.array(self._columns, dtype=np.int64)[numbers]


class Scraped:
    """Everything measured, up to the horizon."""

    def __init__(self, *, honor_labels: bool, interval: Seconds, horizon: Seconds) -> None:
        self._honor_labels = honor_labels
        self._interval = interval
        self.table = buckets.Tracks(FIELDS, horizon)
        self.generation = 0  # grows when columns are no longer where they were
        self.gpus_of_node: Mapping[str, int] = {}
        self._pages: dict[Key, Instant] = {}  # its last good page
        self._held: Counter[Key] = Counter()  # columns of each exporter
        self._cleared: dict[Key, Instant] = {}
        self._open_books()

    def _open_books(self) -> None:
        self.facts: list[labels.Facts] = []
        # As scraped, `pod` is the workload's: nothing has been renamed on the way, and nobody added the exporter's own.
        foreign = msgspec.structs.replace(labels.foreign(self._honor_labels), sure=True)
        serving = msgspec.structs.replace(labels.serving(self._honor_labels), sure=True)
        kernels = msgspec.structs.replace(labels.kernels(self._honor_labels), sure=True)
        room = labels.LabelRoom()
        books = [labels.LabelBook(each, self.facts, room) for each in (foreign, labels.OWN, serving, kernels)]
        self._foreign, self._own, self._serving, self._kernels = books

    def _book(self, metric: str) -> labels.LabelBook:
        if metric in _SERVING:
            return self._serving
        if metric == _KERNELS.name:
            return self._kernels
        return self._own if metric in _OURS else self._foreign

    def forget_all(self) -> None:
        self.table.empty()
        self._pages = {}
        self._held.clear()
        self.generation += 1
        self._open_books()

    # ---- in ----

    def take(self, taken: Iterable[Taken], now: Instant, *, counts: bool) -> dict[str, str]:
        """One round of pages; by address, why one could not be taken. `counts` = it is one of the regular rounds."""
        self.table.advance(now)
        parts: list[tuple[Columns, Columns, usage.Floats, usage.Floats]] = []
        refused: dict[str, str] = {}
        for known, page in taken:
            try:
                located = self._locate(known, page, now)
            except buckets.Full as problem:
                refused[known.target.url] = str(problem)
                continue
            stamps = np.full(len(page.numbers), now)
            stamps[list(page.stamps)] = list(page.stamps.values())
            parts.append((*located, np.array(page.values, dtype=np.float64), stamps))
            self._pages[known.target.key] = now
        if parts:
            tracks, columns, values, stamps = (np.concatenate(some) for some in zip(*parts, strict=True))
            self._fill(tracks, columns, values, stamps, now, counts)
        return refused

    def _locate(self, known: "Exporter", page: exposition.Page, now: Instant) -> tuple[Columns, Columns]:
        """Raises buckets.Full where it shows more than its node can have."""
        key, most = known.target.key, PER_GPU * self._gpus_of(known.target.key)
        if len(page.numbers) > most:
            raise buckets.Full(f"{len(page.numbers)} series, where {self._gpus_of(key)} GPUs have at most {most}")
        try:
            return known.locate(self, page)
        except buckets.Full:
            if now - self._cleared.get(key, -math.inf) < HOUR:
                raise
            self._cleared[key] = now
            last = self._pages.get(key, -math.inf)
            self._keep(lambda track: (track.seen[: track.size] >= last) | ~self._is_of(track, key))
            return known.locate(self, page)

    def _gpus_of(self, key: Key) -> int:
        return self.gpus_of_node.get(key[1]) or USUAL_GPUS

    def _is_of(self, track: buckets.Track, key: Key) -> usage.Bools:
        return np.array([(self.facts[one].job, self.facts[one].target) == key for one in track.series], np.bool_)

    def _fill(
        self, tracks: Columns, columns: Columns, values: usage.Floats, stamps: usage.Floats, now: Instant, counts: bool
    ) -> None:
        order = np.argsort(tracks, kind="stable")
        order = order[columns[order] >= 0]
        bounds = np.searchsorted(tracks[order], np.arange(len(_NAMES) + 1))
        for index, metric in enumerate(_NAMES):
            some = order[bounds[index] : bounds[index + 1]]
            if len(some):
                self.table.tracks[metric].take(columns[some], _believe(metric, values[some]), stamps[some], now, counts)

    def find_column(self, series: exposition.Series, target: targets.ScrapeTarget) -> int:
        """The column of a series, made if need be; -1 = it is not wanted. Raises buckets.Full."""
        metric, is_of_process = series.metric, series.labels.get("scope", "process") in _OF_PROCESSES
        if not is_of_process and (metric in _VOUCHES or metric == _PROCESS_SM.name):
            return -1
        full = {**series.labels, "job": target.job, "instance": target.instance}
        if metric in _SERVING and target.pod:  # a model server speaks of itself
            full = {"pod": target.pod, "namespace": target.namespace, **full}
        return self.find_column_of(metric, msgspec.json.encode(full, order="sorted"))

    def find_column_of(self, metric: str, key: bytes) -> int:
        """The same, of a series that is called so. Raises buckets.Full."""
        column = self.table.tracks[metric].column_of.get(key)
        return self._add(metric, key) if column is None else column

    def _add(self, metric: str, key: bytes) -> int:
        number = self._number(metric, key)
        whose = (self.facts[number].job, self.facts[number].target)
        most = _PAGES * PER_GPU * self._gpus_of(whose)
        if self._held[whose] >= most:
            raise buckets.Full(f"more than {most} series within a day")
        self._held[whose] += 1
        return self.table.add(metric, key, number)

    def _number(self, metric: str, key: bytes) -> int:
        """Series whose labels differ in nothing that is read have the same number, as after `max by (L)`."""
        book = self._book(metric)
        read = frozenset(book.dialect.by.split(","))
        said = msgspec.json.decode(key, type=dict[str, str])
        kept = {name: value for name, value in said.items() if name in read and value}
        return book.number([msgspec.Raw(msgspec.json.encode(kept, order="sorted"))])[0]

    def tidy(self, gone_before: Instant) -> None:
        """Forget series that were on no page since then, if they are many."""
        gone = sum(int((track.seen[: track.size] < gone_before).sum()) for track in self.table.tracks.values())
        if gone <= max(1000, len(self.table) // 4):
            return
        self._keep(lambda track: track.seen[: track.size] >= gone_before)

    def _keep(self, stays: Callable[[buckets.Track], usage.Bools]) -> None:
        """Forget all other series."""
        kept = {metric: np.flatnonzero(stays(track)) for metric, track in self.table.tracks.items()}
        self._open_books()
        self.generation += 1
        self._held.clear()
        for metric, track in self.table.tracks.items():
            numbers = [self._number(metric, track.keys[column]) for column in kept[metric]]
            track.keep(kept[metric], np.array(numbers, dtype=np.int64))
            self._held.update((self.facts[number].job, self.facts[number].target) for number in numbers)

    # ---- out: a window ----

    def readings(self, windows: Iterable[Seconds], now: Instant) -> dict[Topic, SeriesReading]:
        found = {Topic(What.newest, metric.name): self._newest(metric.name, now) for metric in queries.PRIMARIES}
        found[Topic(What.holds, queries.HOLDS)] = self._newest(queries.HOLDS, now)
        for window in windows:
            span = self.table.ring.span(now - window, now)
            for metric in _METRICS.values():
                found[Topic(What.peak, metric.name, window)] = self._peak(metric, span, now - window, now)
            for metric in queries.PRIMARIES:
                found[Topic(What.count, metric.name, window)] = self._count(metric.name, span, window, now)
            for metric in _RATIOS:
                found[Topic(What.mean, metric.name, window)] = self._mean(metric.name, span)
            found[Topic(What.increase, queries.ENERGY, window)] = self._increase(queries.ENERGY, span, now - window)
            found[Topic(What.requests, "", window)] = join([
                *(self._high(name, span, now - window) for name in queries.REQUEST_GAUGES),
                *(self._increase(name, span, now - window) for name in queries.REQUEST_COUNTERS),
            ])
        return found

    def _peak(self, metric: queries.GpuMetric, span: buckets.Span, start: Instant, now: Instant) -> SeriesReading:
        track = self.table.tracks[metric.name]
        if metric.signal is Signal.last_kernel:  # the latest word; of several containers the one that was active last
            return _reading(track, self._is_current(track, now), track.latest[: track.size], np.fmin)
        if metric.signal is Signal.fb_growth:
            return _reading(track, _since(track, start), track.peak(span) - track.lowest(span))
        return self._high(metric.name, span, start)

    def _high(self, metric: str, span: buckets.Span, start: Instant) -> SeriesReading:
        track = self.table.tracks[metric]
        return _reading(track, _since(track, start), track.peak(span))

    def _increase(self, metric: str, span: buckets.Span, start: Instant) -> SeriesReading:
        track = self.table.tracks[metric]
        return _reading(track, _since(track, start), track.increase(span))

    def _newest(self, metric: str, now: Instant) -> SeriesReading:
        track = self.table.tracks[metric]
        return _reading(track, self._is_current(track, now), track.newest[: track.size])

    def _count(self, metric: str, span: buckets.Span, window: Seconds, now: Instant) -> SeriesReading:
        track = self.table.tracks[metric]
        counts = track.count(span)
        if metric == _PROCESS_SM.name:
            last, since = self._vouched(track, now)
            was_quiet = ~(last >= now - window)
            counts = np.where(was_quiet, np.fmax(counts, np.clip(now - since, 0.0, window) / self._interval), counts)
        return _reading(track, counts > 0, counts)

    def _mean(self, metric: str, span: buckets.Span) -> SeriesReading:
        track = self.table.tracks[metric]
        means = track.mean(span)
        return _reading(track, ~np.isnan(means), means)

    def count_rows(self, seen: usage.Usage, layout: rows.RowLayout, now: Instant) -> usage.Usage:
        """With all samples of rows that several series measured, one after the other."""
        span, count = self.table.ring.span(now - seen.window, now), dict(seen.count)
        for metric in queries.PRIMARIES:
            if metric.signal in count:
                track, edges = self.table.tracks[metric.name], layout.edges(metric.join)
                together = by_row.count_together(track, by_row.pair(track, edges), seen.rows, span)
                is_known = ~np.isnan(count[metric.signal])
                count[metric.signal] = np.where(is_known, np.fmax(count[metric.signal], together), np.nan)
        return msgspec.structs.replace(seen, count=count)

    def _is_current(self, track: buckets.Track, now: Instant) -> usage.Bools:
        """Which columns have a value of now: not long ago, and still there on their exporter's last page."""
        last_page = np.array([self._pages.get((one.job, one.target), -math.inf) for one in self.facts], np.float64)
        is_there = track.seen[: track.size] >= last_page[track.series] if track.size else np.zeros(0, dtype=np.bool_)
        found: usage.Bools = is_there & (track.newest[: track.size] >= now - _CURRENT)
        return found

    def _vouched(self, track: buckets.Track, now: Instant) -> tuple[usage.Floats, usage.Floats]:
        """When the exporter itself last saw activity, and since when it watches, by column; nan = it does not say."""
        last, since = (self._latest(metric, now)[track.series] for metric in _VOUCHES)
        return last, since

    def _latest(self, metric: str, now: Instant) -> usage.Floats:
        """By number of series."""
        track, latest = self.table.tracks[metric], np.full(len(self.facts), np.nan)
        current = self._is_current(track, now)
        np.fmax.at(latest, track.series[current], track.latest[: track.size][current])
        return latest

    # ---- out: the past ----

    def has_past(self, lookback: Seconds, now: Instant) -> tuple[int, ...]:
        """The numbers of all series that the look-back may speak of."""
        met = [self._newest(queries.HOLDS, now).series]
        met += [track.series[_since(track, now - lookback)] for track in map(self._track, queries.PRIMARIES)]
        return tuple(np.unique(np.concatenate(met)).tolist())

    def watch(
        self, metric: queries.GpuMetric, layout: rows.RowLayout, lookback: Seconds, threshold: float, now: Instant
    ) -> by_row.WatchedRows:
        """When each row of the layout was last active, and since when it is watched without a longer gap."""
        track, size, span = self._track(metric), len(layout.gpu), self.table.ring.span(now - lookback, now)
        edges, gap = layout.edges(metric.join), float(usage.longest_gap(np.array([self._interval]))[0])
        pairs, least = by_row.pair(track, edges), threshold / metric.scale
        found = by_row.watch(track, pairs, size, span, track.ends(span), least, gap)
        if metric is not _PROCESS_SM:
            return found
        last, since = np.full(size, np.nan), np.full(size, np.nan)
        for column, said, fold in zip((last, since), self._vouched(track, now), (np.fmax, np.fmin), strict=True):
            fold.at(column, pairs.rows, said[pairs.columns])
        return by_row.WatchedRows(np.fmax(found.active, last), np.fmin(found.since, since))

    def draw(
        self, gpus: Collection[str], span: usage.DrawnSpan, believes: Callable[[labels.Facts], bool]
    ) -> dict[str, usage.Floats]:
        """The highest of every step, as a ratio, by the best signal that each GPU has at the time."""
        ring, drawn = self.table.ring, dict[str, usage.Floats]()
        found = ring.span(span.start - span.step, span.end + MINUTE)
        ends = (ring.minute_of_rows()[found.rows] + 1) * MINUTE
        places = np.ceil((ends - span.start) / span.step - 1e-9).astype(np.int64)
        is_in = (places >= 0) & (places < span.points)
        for metric in _RATIOS:
            track = self._track(metric)
            for gpu, columns in self._columns_of(track, gpus, believes).items():
                cells = np.fmax.reduce(track.fields["high"][np.ix_(found.rows[is_in], columns)], axis=1, initial=np.nan)
                values = np.full(span.points, np.nan)
                np.fmax.at(values, places[is_in], queries.believe(cells.astype(np.float64), metric))
                known = drawn.setdefault(gpu, values)
                drawn[gpu] = np.where(np.isnan(known), values, known)
        return drawn

    def _columns_of(
        self, track: buckets.Track, gpus: Collection[str], believes: Callable[[labels.Facts], bool]
    ) -> dict[str, list[int]]:
        columns: dict[str, list[int]] = {}
        for column, number in enumerate(track.series.tolist()):
            facts = self.facts[number]
            board = facts.uuid or facts.spot
            gpu = f"{board}/{facts.instance}" if facts.instance else board
            if gpu in gpus and believes(facts):
                columns.setdefault(gpu, []).append(column)
        return columns

    def _track(self, metric: queries.GpuMetric) -> buckets.Track:
        return self.table.tracks[metric.name]

    def hour(self, start: Instant) -> dict[Topic, SeriesReading]:
        """Of the hour of the clock that began then, as far as it is kept."""
        span = self.table.ring.span(start, start + HOUR - 1)
        found = {
            Topic(What.mean, metric.name, HOUR): self._mean(metric.name, span) for metric in (*_RATIOS, *queries.POWER)
        }
        found[Topic(What.increase, queries.ENERGY, HOUR)] = self._increase(queries.ENERGY, span, start)
        return found

    def floors(self, now: Instant) -> dict[Topic, SeriesReading]:
        """The lowest power of a day, and of how many samples."""
        found: dict[Topic, SeriesReading] = {}
        span = self.table.ring.span(now - DAY, now)
        for metric in queries.POWER:
            track = self.table.tracks[metric.name]
            everything = np.ones(track.size, dtype=np.bool_)
            found[Topic(What.lowest, metric.name, DAY)] = _reading(track, everything, track.lowest(span), np.fmin)
            found[Topic(What.samples, metric.name, DAY)] = _reading(track, everything, track.count(span))
        return found

    def measuring_since(self, now: Instant) -> Instant | None:
        """Since when something was measured, up to now, without a longer gap; None = nothing was."""
        ring = self.table.ring
        has = np.zeros(ring.minutes, dtype=np.bool_)
        for metric in queries.PRIMARIES:
            track = self.table.tracks[metric.name]
            has |= (track.fields["count"][:, : track.size] > 0).any(axis=1)
        minutes = np.sort(ring.minute_of_rows()[has])
        if not len(minutes) or now // MINUTE - minutes[-1] > _UNBROKEN:
            return None
        breaks = np.flatnonzero(np.diff(minutes) > _UNBROKEN)
        return float(minutes[breaks[-1] + 1 if len(breaks) else 0] * MINUTE)

    def is_vouched(self, now: Instant) -> bool:
        """Whether any exporter remembers for us."""
        track = self.table.tracks[_OBSERVED_SINCE]
        return bool(self._is_current(track, now).any())


def _believe(metric: str, values: usage.Floats) -> usage.Floats:
    """As it came, in the exporter's unit; nan where it is no reading."""
    known = _METRICS.get(metric)
    if known is not None:
        return np.where(np.isnan(queries.believe(values, known)), np.nan, values)
    return np.where((values >= 0.0) & (values < math.inf), values, np.nan)


def _since(track: buckets.Track, start: Instant) -> usage.Bools:
    return track.seen[: track.size] >= start


def _reading(track: buckets.Track, held: usage.Bools, values: usage.Floats, fold: np.ufunc = np.fmax) -> SeriesReading:
    """One value per number; nan where there is a series and no value."""
    if not track.size:  # most metrics that could be measured are not
        return SeriesReading(track.series, values)
    numbers, index = np.unique(track.series[held], return_inverse=True)
    folded = np.full(len(numbers), np.nan)
    fold.at(folded, index, values[held])
    return SeriesReading(numbers, folded)
