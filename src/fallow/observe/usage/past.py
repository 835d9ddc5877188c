"""Since when exactly is a GPU idle? What was found in the past, how long it stays true, and how answers become rows.

In: a Usage, the rows that are wanted, answers about stretches of the past (spans.py). Out: per wanted row when
the last activity was over (-inf = looked and found none), since when the row was watched without a longer gap,
and the samples of its window where several series measured it one after the other.
A finding is remembered while the row stays idle: a row found idle over its window now, and found idle less than a
window ago, was idle all the time between; and if there was no longer gap since, it was watched, too.
Invariant: what could not be asked stays nan, and is not remembered.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from fallow.model import cluster, usage
from fallow.model.units import HOUR, Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import labels, queries, rows, spans
from fallow.observe.usage.readings import NOTHING, Numbers, Readings, Topic, What, series_of

MOST_SAMPLES: Final = 15e6  # of one look-back: about a second of Prometheus's time
MOST_SAMPLES_ONCE: Final = 1e6  # ... of who remembers nothing of it, and will ask again
_OF_ALL: Final = 0.75  # of them for everybody; with the rest, some are looked at all the way

Speakers: TypeAlias = dict[queries.GpuMetric, usage.Bools]  # by primary, of which rows it says when they were active


class Found(msgspec.Struct, gc=False):
    last_active: Instant
    observed_since: Instant
    confirmed_at: Instant
    newest: Instant  # sample, when it was confirmed


class Counted(msgspec.Struct):
    """What the window shows of its own completeness, per row."""

    count: usage.Floats  # of the primary with the most samples
    newest: usage.Floats
    thin: usage.Bools  # there may be a longer gap in it
    limit: usage.Floats  # seconds that are a longer gap


def count_window(seen: usage.Usage, speakers: Speakers) -> Counted:
    count, newest = np.full(seen.rows, np.nan), np.full(seen.rows, np.nan)
    for metric, speaks in speakers.items():
        if metric.signal in seen.count:
            count = np.fmax(count, np.where(speaks, seen.count[metric.signal], np.nan))
        if metric.signal in seen.newest:
            newest = np.fmax(newest, np.where(speaks, seen.newest[metric.signal], np.nan))
    thin = spans.is_thin(count, seen.interval, seen.window)
    return Counted(count, newest, thin, usage.longest_gap(seen.interval))


class IdleTimes:
    """Findings by GPU, pod and threshold."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, float], Found] = {}
        self._swept: Instant = -math.inf

    def recall(
        self, seen: usage.Usage, wanted: Numbers, pods: Sequence[cluster.Pod], threshold: float, counted: Counted,
        now: Instant,
    ) -> tuple[dict[int, Found], list[int]]:
        """What is still true, by row; and the rows of which nothing is."""
        known, unknown = dict[int, Found](), list[int]()
        find, gpus, earliest = self._found.get, seen.gpu, now - seen.window
        columns = (wanted, seen.pod[wanted], counted.newest[wanted], counted.thin[wanted], counted.limit[wanted])
        for row, pod, newest, thin, limit in zip(*(column.tolist() for column in columns), strict=True):
            found = find((gpus[row], pods[pod].uid, threshold))
            is_true = found is not None and earliest <= found.confirmed_at <= now
            if found is None or not is_true or (thin and now - found.newest > limit):
                unknown.append(row)
            else:
                found.confirmed_at, found.newest = now, newest
                known[row] = found
        return known, unknown

    def keep(
        self, seen: usage.Usage, wanted: Numbers, pods: Sequence[cluster.Pod], threshold: float, counted: Counted,
        now: Instant,
    ) -> None:
        """Remember what is known of these rows now."""
        for row in wanted.tolist():
            last, since = float(seen.last_active[row]), float(seen.observed_since[row])
            if not math.isnan(last):
                found = Found(last, since, now, float(counted.newest[row]))
                self._found[seen.gpu[row], pods[seen.pod[row]].uid, threshold] = found

    def forget_before(self, instant: Instant) -> None:
        """Now and then: what is too old is not recalled anyway."""
        if instant - self._swept < HOUR:
            return
        self._swept = instant
        self._found = {key: found for key, found in self._found.items() if found.confirmed_at >= instant}


def fill_known(result: usage.Usage, known: Mapping[int, Found]) -> None:
    at = list(known)
    result.last_active[at] = [found.last_active for found in known.values()]
    result.observed_since[at] = [found.observed_since for found in known.values()]


def copy_of(seen: usage.Usage) -> usage.Usage:
    """With columns of its own for what is looked up."""
    count = {signal: column.copy() for signal, column in seen.count.items()}
    last_active, observed_since = seen.last_active.copy(), seen.observed_since.copy()
    return msgspec.structs.replace(seen, last_active=last_active, observed_since=observed_since, count=count)


def find_speakers(seen: usage.Usage) -> Speakers:
    speakers = usage.find_speakers(seen, seen.mig, seen.shared)
    return {metric: speakers[metric.signal] for metric in queries.PRIMARIES if metric.signal in speakers}


def read_kernels(seen: usage.Usage, speakers: Speakers) -> usage.Floats:
    """When the last kernel ran, per row: the exporter itself says that there was none since."""
    nothing = np.full(seen.rows, np.nan)
    for metric, speaks in speakers.items():
        if metric.signal is Signal.last_kernel and metric.signal in seen.newest:
            return np.where(speaks, seen.newest[metric.signal] - seen.peak[metric.signal], np.nan)
    return nothing


def want(
    seen: usage.Usage, at: Numbers, warned: usage.Floats, counted: Counted, pods: Sequence[cluster.Pod], now: Instant
) -> spans.Wanted:
    started = [pods[pod].started_at for pod in seen.pod[at].tolist()]
    age = np.array([math.inf if each is None else now - each for each in started], dtype=np.float64)
    return spans.Wanted(
        rows=at, window=seen.window, interval=seen.interval[at], count=counted.count[at], age=age, warned=now - warned
    )


def fill_found(result: usage.Usage, search: spans.Search, kernels: usage.Floats, now: Instant) -> None:
    at = search.wanted.rows
    last = np.where(np.isnan(search.active_ago), -math.inf, now - search.active_ago)
    result.last_active[at] = np.fmax(last, kernels[at])
    result.observed_since[at] = np.fmin(now - search.quiet_for, kernels[at])


def fill_counts(result: usage.Usage, search: spans.Search, cover: Numbers) -> None:
    """`cover`: of each row, by which primary it was counted."""
    at, better = search.wanted.rows, search.was_whole & (search.in_window > np.nan_to_num(search.wanted.count))
    for number in sorted(set(cover[at[better]].tolist())):
        rows_of_it = better & (cover[at] == number)
        result.count[queries.PRIMARIES[number].signal][at[rows_of_it]] = search.in_window[rows_of_it]


def choose_cover(seen: usage.Usage, speakers: Speakers) -> Numbers:
    """By which primary (its place in the table) each row is counted: the one with the most samples; -1 = by none.

    Where no sample of the window counts, no older one would, either: nobody knows how often that job is scraped.
    """
    best, chosen = np.zeros(seen.rows), np.full(seen.rows, -1, dtype=np.int64)
    for number, metric in enumerate(queries.PRIMARIES):
        if metric.signal is not Signal.last_kernel and metric in speakers and metric.signal in seen.count:
            samples = np.where(speakers[metric], np.nan_to_num(seen.count[metric.signal]), 0.0)
            chosen, best = np.where(samples > best, number, chosen), np.maximum(best, samples)
    return chosen


def place_rows(seen: usage.Usage, layout: rows.RowLayout) -> Numbers:
    """Where the layout has each row of the Usage; -1 = nowhere."""
    index = {key: row for row, key in enumerate(zip(layout.pod.tolist(), layout.gpu, strict=True))}
    wanted = zip(seen.pod.tolist(), seen.gpu, strict=True)
    return np.array([index.get(key, -1) for key in wanted], dtype=np.int64)


def afford(seen: usage.Usage, at: Numbers, speakers: Speakers, lookback: Seconds, most: float) -> Seconds:
    """How far back so many rows are looked at, for so many samples.

    Where thousands turn idle at once, they are "at least" so long idle; whoever was warned before that is looked at as
    far as the notice all the same (spans.py).
    """
    per_second = float(np.nansum(_cost(seen, at, speakers)))
    if per_second * lookback <= most:
        return lookback
    return max(_OF_ALL * most / per_second, seen.window)


def choose_some(
    seen: usage.Usage, search: spans.Search, speakers: Speakers, pods: Sequence[cluster.Pod], reached: Seconds,
    lookback: Seconds, most: float,
) -> Numbers:
    """Of rows that were quiet and covered as far back as they were looked at, those that are looked at all the way: as
    many as can be afforded, in whole workloads. Who is known to be idle for longer comes first."""
    at = search.wanted.rows[(search.quiet_for >= reached) & (search.quiet_for < search.wanted.age)]
    groups: dict[str, list[int]] = {}
    for row in at.tolist():
        pod = pods[seen.pod[row]]
        groups.setdefault(pod.owner.uid if pod.owner else pod.uid, []).append(row)
    chosen, left = list[int](), (1.0 - _OF_ALL) * most
    for _, some in sorted(groups.items(), key=lambda one: pods[seen.pod[one[1][0]]].name):
        left -= lookback * float(np.nansum(_cost(seen, np.array(some), speakers)))
        if left < 0:
            break
        chosen += some
    return np.array(sorted(chosen), dtype=np.int64)


def _cost(seen: usage.Usage, at: Numbers, speakers: Speakers) -> usage.Floats:
    """Samples a second: a server reads each once for each primary, and once to count."""
    passes = np.ones(len(at)) + sum(speaks[at] for speaks in speakers.values())
    return np.asarray(passes / seen.interval[at])


class Translator:
    """From series to the rows of a Usage. The past may have series that the window does not."""

    def __init__(
        self, seen: usage.Usage, held: rows.Holders, facts: Sequence[labels.Facts], layout: rows.RowLayout
    ) -> None:
        self._seen, self._held, self._facts = seen, held, facts
        self._adopt(layout)

    def _adopt(self, layout: rows.RowLayout) -> None:
        self._layout, self._known = layout, frozenset(layout.series)
        self._place: Numbers | None = None
        if layout.gpu is not self._seen.gpu:
            self._place = place_rows(self._seen, layout)

    def meet(self, readings: Readings) -> None:
        """Whatever these speak of gets its place."""
        met = series_of(readings, len(self._facts))
        if not self._known.issuperset(met):
            everything = sorted(self._known.union(met))
            self._adopt(
                rows.RowLayout(self._held, self._facts, everything, has_believed=self._layout.has_believed)
            )

    def column(self, readings: Readings, topic: Topic, metric: queries.GpuMetric) -> usage.Floats:
        """The highest of any series of each row of the Usage; nan = none."""
        values = readings.get(topic, NOTHING).by_series(len(self._facts))
        values = self._layout.vouched(values) if topic.what is What.past else values
        column = self._layout.edges(metric.join).spread(values, len(self._layout.gpu))
        # A row that the layout does not have (-1) takes the nan at the end.
        return column if self._place is None else np.append(column, np.nan)[self._place]


def read_answer(
    readings: Readings, number: int, at: Numbers, speakers: Speakers, cover: Numbers, threshold: float,
    translator: Translator,
) -> spans.Answer:
    """What was answered of one stretch (by its number), for these rows."""
    busy, odd, count = np.zeros(len(at), np.bool_), np.zeros(len(at), np.bool_), np.zeros(len(at))
    for metric, speaks in speakers.items():
        topic = Topic(What.busy, metric.name, float(number))
        if topic in readings:
            highest = np.where(speaks, translator.column(readings, topic, metric), np.nan)[at]
            busy |= (highest >= threshold / metric.scale) & (highest <= metric.top)
            odd |= highest > metric.top
        topic = Topic(What.past, metric.name, float(number))
        if topic in readings:
            samples = np.nan_to_num(translator.column(readings, topic, metric)[at])
            count = np.where(cover[at] == queries.PRIMARIES.index(metric), samples, count)
    return spans.Answer(busy, odd, count)

