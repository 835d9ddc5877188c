"""Readings per series into the columns of a Usage per window, and all of them into the evidence of a cycle.

In: the readings of this cycle, the layouts (which series speaks of which row), what was learned before. Out: an
Evidence whose look-back is not done yet. Invariant: nan where nothing believable was read; count and newest stand with
a believable peak only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fallow.model import usage
from fallow.model.units import Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import labels, paces, queries, rows
from fallow.observe.usage.readings import INSTANT, NOTHING, Readings, SeriesReading, Topic, What

_ENOUGH_TO_BE_FROZEN = 0.5  # of the window measured, before energy that does not move says anything


class Measured(msgspec.Struct, kw_only=True):
    """What the columns of all windows are made of."""

    readings: Readings
    facts: Sequence[labels.Facts]
    serving: Sequence[labels.Facts]  # of the series that tell of requests
    jobs: labels.Jobs
    expected_interval: Seconds | None
    intervals: Mapping[Seconds, Mapping[str, Seconds]]  # by window and job, learned from all series of it
    down: frozenset[tuple[str, str]]  # (job, instance) that cannot be scraped now
    floors: Mapping[str, float]  # lowest power per board
    lost: tuple[usage.LostSignal, ...] = ()
    unreadable: int = 0  # label sets that say nothing


class _Sheet(NamedTuple):
    """One window of it."""

    measured: Measured
    layout: rows.RowLayout
    window: Seconds

    def read(self, topic: Topic) -> usage.Floats | None:
        """Values by number of series; None if nobody exports it."""
        found = self.measured.readings.get(topic, NOTHING)
        return found.by_series(len(self.measured.facts)) if len(found.series) else None


def no_evidence(now: Instant, trouble: usage.SourceTrouble | None) -> usage.Evidence:
    return usage.Evidence(at=now, usage={}, trouble=trouble, unallocated=0, gpus_per_node={}, lost_signals=())


def build_evidence(
    measured: Measured, held: rows.Holders, layouts: Mapping[Seconds, rows.RowLayout], now: Instant
) -> usage.Evidence:
    if not layouts:
        return no_evidence(now, None)
    shortest, sheets = layouts[min(layouts)], [_Sheet(measured, layout, window) for window, layout in layouts.items()]
    return usage.Evidence(
        at=now, usage={sheet.window: _build_usage(sheet, held) for sheet in sheets}, trouble=None,
        unallocated=shortest.unallocated, gpus_per_node=shortest.per_node, lost_signals=measured.lost,
        ignored=(*shortest.ignored, *_name_unreadable(measured.unreadable)),
    )


def _name_unreadable(count: int) -> tuple[usage.Ignored, ...]:
    if not count:
        return ()
    why = "their labels cannot be read or are too long, so nobody knows what they speak of"
    return (usage.Ignored(f"{count} series", why),)


def _build_usage(sheet: _Sheet, held: rows.Holders) -> usage.Usage:
    layout, size = sheet.layout, len(sheet.layout.gpu)
    peak: dict[Signal, usage.Floats] = {}
    for metric in (*queries.PRIMARIES, *queries.OTHERS):
        _add_peak(sheet, metric, peak)
    reading = sheet.measured.readings.get(Topic(What.requests, "", sheet.window), NOTHING)
    requests = _count_requests(reading, sheet.measured.serving, held)
    if requests.size and not np.isnan(requests).all():
        peak[Signal.requests] = requests[layout.pod]
    count = _read_counts(sheet, peak)
    interval = _intervals_of_rows(sheet)
    return usage.Usage(
        window=sheet.window, pod=layout.pod, gpu=layout.gpu, model=layout.model, mig=layout.mig, shared=layout.shared,
        peak=peak, mean=_read_means(sheet, peak), count=count, interval=interval,
        newest={metric.signal: one for metric, one in _read_primaries(sheet, What.newest, INSTANT, peak)},
        exporter_up=_find_up(sheet), exporter_frozen=_find_frozen(sheet, count, interval),
        power_floor=_read_floors(sheet), last_active=np.full(size, np.nan), observed_since=np.full(size, np.nan),
        version=layout.version, index=layout.index, blank=_find_blanks(sheet),
    )


def _count_requests(reading: SeriesReading, facts: Sequence[labels.Facts], held: rows.Holders) -> usage.Floats:
    """Per pod; nan for a pod whose server tells nothing. Without bounds: who says too much must not hide the others."""
    by_pod = np.full(len(held.pods), np.nan)
    for number, value in zip(*reading, strict=True):
        if value >= 0.0:
            for holder in held.holders(facts[number]):
                by_pod[holder] = np.fmax(by_pod[holder], value)
    return by_pod


def learn_intervals(
    found: Readings, jobs: labels.Jobs, layout: rows.RowLayout, window: Seconds, pace_of: Mapping[str, Seconds]
) -> dict[str, Seconds]:
    """Seconds between samples of each job: its best series shows how often it is scraped, over the window and of late.

    The shorter of both counts. Over the window alone, a job that began three minutes ago would look like one that is
    scraped rarely, and its three minutes like a whole window. And a lone series with holes in it would look like a
    slow one that is complete; so no job is slower than its targets are scraped. Where nobody knows how often that is,
    nothing is learned, and what it sampled covers no window.
    """
    counts = layout.vouched(_highest_counts(found, len(jobs.of_series), window))
    most = np.full(len(jobs.names), np.nan)
    np.fmax.at(most, jobs.of_series, counts)
    learned = {jobs.names[one]: paces.interval_of(float(most[one]), window) for one in np.flatnonzero(most > 0)}
    return {job: min(interval, pace_of[job]) for job, interval in learned.items() if job in pace_of}


def _highest_counts(found: Readings, known: int, window: Seconds) -> usage.Floats:
    highest = np.full(known, np.nan)
    for metric in queries.PRIMARIES:
        np.fmax.at(highest, *found.get(Topic(What.count, metric.name, window), NOTHING))
    return highest


def _add_peak(sheet: _Sheet, metric: queries.GpuMetric, peak: dict[Signal, usage.Floats]) -> None:
    values = sheet.read(Topic(What.peak, metric.name, sheet.window))
    if values is None:
        return
    fold = np.fmin if metric.signal is Signal.last_kernel else np.fmax
    column = sheet.layout.edges(metric.join).spread(queries.believe(values, metric), len(sheet.layout.gpu), fold)
    peak[metric.signal] = np.fmax(peak[metric.signal], column) if metric.signal in peak else column


def stands_still(found: Readings, windows: Collection[Seconds]) -> bool:
    """Whether any board's energy does not move."""
    grown = (found.get(Topic(What.increase, queries.ENERGY, window), NOTHING).values for window in windows)
    return any(bool((values == 0.0).any()) for values in grown)


def _read_primaries(
    sheet: _Sheet, what: What, window: Seconds, peak: Mapping[Signal, usage.Floats]
) -> Iterator[tuple[queries.GpuMetric, usage.Floats]]:
    for metric in queries.PRIMARIES:
        values = sheet.read(Topic(what, metric.name, window))
        if values is not None and metric.signal in peak:
            values = sheet.layout.vouched(values)
            if what is What.count:
                values = np.where(np.isnan(_intervals_of_series(sheet)), 0.0 * values, values)
            column = sheet.layout.edges(metric.join).spread(values, len(sheet.layout.gpu))
            yield metric, np.where(np.isnan(peak[metric.signal]), np.nan, column)


def _read_counts(sheet: _Sheet, peak: Mapping[Signal, usage.Floats]) -> dict[Signal, usage.Floats]:
    """A series with a sample that is none makes its row's count unknown.

    Samples of a job of which nobody knows how often it is scraped do not count: by another's interval they would cover
    more than they do.
    """
    counts = {}
    for metric, column in _read_primaries(sheet, What.count, sheet.window, peak):
        counts[metric.signal] = np.where(_spread_flags(sheet, metric, _find_odd(sheet, metric)), np.nan, column)
    return counts


def _find_odd(sheet: _Sheet, metric: queries.GpuMetric) -> usage.Bools:
    """The series with a sample that is none, by number: their mean is no number of 0 or more, or their lowest is none
    (that is asked where it matters: sparing.py)."""
    is_odd = np.zeros(len(sheet.measured.facts), np.bool_)
    means = sheet.measured.readings.get(Topic(What.mean, metric.name, sheet.window), NOTHING)
    lowest = sheet.measured.readings.get(Topic(What.lowest, metric.name, sheet.window), NOTHING)
    is_odd[means.series[~(means.values >= 0.0)]] = True
    is_odd[lowest.series[lowest.values < 0.0]] = True
    return is_odd


def _find_blanks(sheet: _Sheet) -> dict[Signal, usage.Bools]:
    """Where a series has a sample above all that can be measured, and not only such: its highest tells nothing then.

    Until it is known that its lowest is none either, it may have readings.
    """
    found: dict[Signal, usage.Bools] = {}
    for metric in (*queries.PRIMARIES, *queries.OTHERS):
        highest = sheet.read(Topic(What.peak, metric.name, sheet.window))
        if highest is None or metric.signal is Signal.last_kernel or not (highest > metric.top).any():
            continue
        lowest = sheet.read(Topic(What.lowest, metric.name, sheet.window))
        is_blank = (highest > metric.top) & (True if lowest is None else ~(lowest > metric.top))
        rows_of_it = _spread_flags(sheet, metric, is_blank)
        found[metric.signal] = found.get(metric.signal, np.zeros_like(rows_of_it)) | rows_of_it
    return found


def _spread_flags(sheet: _Sheet, metric: queries.GpuMetric, flags: usage.Bools) -> usage.Bools:
    """From series to the rows that any of them speaks of."""
    values = np.where(flags, 1.0, np.nan)
    return np.asarray(sheet.layout.edges(metric.join).spread(values, len(sheet.layout.gpu)) > 0)


def _read_means(sheet: _Sheet, peak: Mapping[Signal, usage.Floats]) -> dict[Signal, usage.Floats]:
    """Who was counted, and has no mean, did nothing at all: of those nothing is answered.

    A mean that is none (one sample of the series is no reading) is at most the series' peak, and counts as that: else
    one odd sample, or an odd series beside the good one, would hide a steady trickle.
    """
    means: dict[Signal, usage.Floats] = {}
    for metric in queries.PRIMARIES:
        found = sheet.measured.readings.get(Topic(What.mean, metric.name, sheet.window))
        highest = sheet.read(Topic(What.peak, metric.name, sheet.window))
        if found is not None and highest is not None and metric.signal in usage.RATIOS:
            values = np.full(len(sheet.measured.facts), np.nan)
            values[sheet.measured.readings.get(Topic(What.count, metric.name, sheet.window), NOTHING).series] = 0.0
            values[found.series] = queries.believe(found.values, metric)
            is_none = _find_odd(sheet, metric)
            is_none[found.series] |= np.isnan(values[found.series])
            values = np.where(is_none, queries.believe(highest, metric), values)
            column = sheet.layout.edges(metric.join).spread(values, len(sheet.layout.gpu))
            means[metric.signal] = np.where(np.isnan(peak[metric.signal]), np.nan, column)
    return means


def _intervals_of_series(sheet: _Sheet) -> usage.Floats:
    """As it is told, or learned of their jobs; nan where nobody knows it."""
    measured = sheet.measured
    if measured.expected_interval is not None:
        return np.full(len(measured.facts), measured.expected_interval)
    learned = measured.intervals[sheet.window]
    by_job = np.array([learned.get(name, np.nan) for name in measured.jobs.names])
    return by_job[measured.jobs.of_series]


def _intervals_of_rows(sheet: _Sheet) -> usage.Floats:
    """Of several jobs that measure a row the most frequent counts: it asks for the most samples."""
    measured, size = sheet.measured, len(sheet.layout.gpu)
    if measured.expected_interval is not None:
        return np.full(size, measured.expected_interval)
    counts = sheet.layout.vouched(_highest_counts(measured.readings, len(measured.facts), sheet.window))
    by_series = np.where(counts > 0, _intervals_of_series(sheet), np.nan)
    is_counted = sheet.layout.device.spread(counts, size) > 0
    found = sheet.layout.device.spread(by_series, size, np.fmin)
    return np.where(is_counted & np.isnan(found), paces.SHORTEST, found)


def _find_up(sheet: _Sheet) -> usage.Bools:
    facts, down = sheet.measured.facts, sheet.measured.down
    is_down = np.full(len(facts), np.nan)
    for number in sheet.layout.series if down else ():
        if (facts[number].job, facts[number].target) in down:
            is_down[number] = 1.0
    return np.isnan(sheet.layout.device.spread(is_down, len(sheet.layout.gpu)))


def _find_frozen(sheet: _Sheet, count: Mapping[Signal, usage.Floats], interval: usage.Floats) -> usage.Bools:
    measured = np.zeros(len(sheet.layout.gpu), dtype=np.bool_)
    grown = sheet.read(Topic(What.increase, queries.ENERGY, sheet.window))
    if grown is None:
        return measured
    for samples in count.values():
        measured |= samples * interval >= _ENOUGH_TO_BE_FROZEN * sheet.window
    by_all, by_vouched = (sheet.layout.board.spread(one, len(measured)) for one in (grown, sheet.layout.vouched(grown)))
    frozen: usage.Bools = measured & ((by_all == 0.0) | (by_vouched == 0.0))
    return frozen


def _read_floors(sheet: _Sheet) -> usage.Floats:
    floors = sheet.measured.floors
    if not floors:
        return np.full(len(sheet.layout.gpu), np.nan)
    return np.array([floors.get(board, np.nan) for board in sheet.layout.boards], dtype=np.float64)
