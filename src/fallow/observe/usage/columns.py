"""Readings per series into the columns of one window's Usage.

In: the readings of this cycle, the layout (which series speaks of which row), what was learned before. Out: a Usage with its
look-back not done yet. Invariant: nan where nothing believable was read; count and newest are only told of a believable peak.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fallow.model import usage
from fallow.model.units import DAY, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import asking, labels, queries, rows

_SHORTEST_INTERVAL: Seconds = 5.0
_LONGEST_INTERVAL: Seconds = 120.0
_FLOOR_COVERAGE = 0.8  # of a day measured before the lowest power of that day says something
_ENOUGH_TO_BE_FROZEN = 0.5  # of the window measured, before energy that does not move says anything


class Known(msgspec.Struct):
    """What the columns are made of."""

    readings: Mapping[asking.Key, asking.Reading]
    facts: Sequence[labels.Facts]
    jobs: labels.Jobs
    layout: rows.Layout
    window: Seconds
    expected_interval: Seconds | None
    intervals: Mapping[str, Seconds]  # per job, learned from all series of it
    requests: usage.Floats  # per pod
    down: frozenset[tuple[str, str]]  # (job, instance) that cannot be scraped now
    floors: Mapping[str, float]  # lowest power per board

    def reading(self, what: str, metric: str, window: Seconds) -> usage.Floats | None:
        """Values by number of series; None if nobody exports it."""
        found = self.readings.get((what, metric, window))
        return found.by_series(len(self.facts)) if found is not None and len(found.series) else None


def build_usage(known: Known) -> usage.Usage:
    layout, size = known.layout, len(known.layout.gpu)
    peak: dict[Signal, usage.Floats] = {}
    for metric in (*queries.PRIMARIES, *queries.OTHERS):
        _add_peak(known, metric, peak)
    if known.requests.size and not np.isnan(known.requests).all():
        peak[Signal.requests] = known.requests[layout.pod]
    count = _read_primaries(known, "count", known.window, peak)
    interval = _intervals_of_rows(known)
    return usage.Usage(
        window=known.window,
        pod=layout.pod,
        gpu=layout.gpu,
        model=layout.model,
        mig=layout.mig,
        shared=layout.shared,
        peak=peak,
        count=count,
        newest=_read_primaries(known, "newest", 0.0, peak),
        interval=interval,
        exporter_up=_find_up(known),
        exporter_frozen=_find_frozen(known, count, interval),
        power_floor=_read_floors(known),
        last_active=np.full(size, np.nan),
        observed_since=np.full(size, np.nan),
    )


def count_requests(reading: asking.Reading | None, facts: Sequence[labels.Facts], place: rows.Place) -> usage.Floats:
    """Per pod; nan for a pod whose server tells nothing."""
    by_pod = np.full(len(place.pods), np.nan)
    for number, value in zip(*(reading or asking.NOTHING), strict=True):
        if 0.0 <= value < math.inf:
            for holder in place.holders(facts[number]):
                by_pod[holder] = np.fmax(by_pod[holder], value)
    return by_pod


def find_floors(
    readings: Mapping[asking.Key, asking.Reading], facts: Sequence[labels.Facts], interval: Seconds | None
) -> dict[str, float] | None:
    """The lowest power of each board, where a day of it was measured; None if that could not be asked."""
    found: dict[str, float] = {}
    for metric in queries.POWER:
        lowest, counts = readings.get(("lowest", metric.name, DAY)), readings.get(("samples", metric.name, DAY))
        if lowest is None or counts is None:
            return None
        samples = counts.by_series(len(facts))
        enough = _FLOOR_COVERAGE * DAY / (interval or interval_of(samples, DAY))
        for number, watts in zip(lowest.series, queries.believe(lowest.values, metric), strict=True):
            uuid = facts[number].uuid
            if uuid and watts >= 0.0 and samples[number] >= enough:
                found[uuid] = min(found.get(uuid, math.inf), float(watts))
    return found


def learn_intervals(
    readings: Mapping[asking.Key, asking.Reading], jobs: labels.Jobs, window: Seconds, targets: Sequence[labels.Facts] = ()
) -> dict[str, Seconds]:
    """Seconds between samples of each job: its best series shows how often it is scraped, over the window and of late.

    The shorter of both counts. Over the window alone, a job that began three minutes ago would look like one that is scraped rarely, and
    its three minutes like a whole window.
    """
    counts = _highest_counts(readings, len(jobs.of_series), window)
    most = np.full(len(jobs.names), np.nan)
    np.fmax.at(most, jobs.of_series, counts)
    found = {jobs.names[number]: interval_of(most[number : number + 1], window) for number in np.flatnonzero(most > 0)}
    for metric in queries.PRIMARIES:
        paces = readings.get(("pace", metric.name, queries.PACE))
        for series, pace in zip(paces.series.tolist(), paces.values, strict=True) if paces else ():
            job = targets[series].job
            # n samples are n - 1 intervals apart: never shorter than it is, or a job that is scraped rarely would never cover a window.
            found[job] = min(found.get(job, _LONGEST_INTERVAL), interval_of(np.array([pace - 1.0]), queries.PACE))
    return found


def interval_of(counts: usage.Floats, window: Seconds) -> Seconds:
    """Seconds between samples, where these counts were met in a window; the longest that is believed where there were none."""
    most = float(np.fmax.reduce(counts, initial=0.0))
    return min(max(window / most, _SHORTEST_INTERVAL), _LONGEST_INTERVAL) if most > 0.0 else _LONGEST_INTERVAL


def _highest_counts(readings: Mapping[asking.Key, asking.Reading], known: int, window: Seconds) -> usage.Floats:
    highest = np.full(known, np.nan)
    for metric in queries.PRIMARIES:
        if (reading := readings.get(("count", metric.name, window))) is not None:
            np.fmax.at(highest, reading.series, reading.values)
    return highest


def _add_peak(known: Known, metric: queries.Metric, peak: dict[Signal, usage.Floats]) -> None:
    values = known.reading("peak", metric.name, known.window)
    if values is None:
        return
    fold = np.fmin if metric.signal is Signal.last_kernel else np.fmax
    column = edges_for(known.layout, metric).spread(queries.believe(values, metric), len(known.layout.gpu), fold)
    peak[metric.signal] = np.fmax(peak[metric.signal], column) if metric.signal in peak else column


def _read_primaries(known: Known, what: str, window: Seconds, peak: Mapping[Signal, usage.Floats]) -> dict[Signal, usage.Floats]:
    columns = {}
    for metric in queries.PRIMARIES:
        values = known.reading(what, metric.name, window)
        if values is not None and metric.signal in peak:
            column = edges_for(known.layout, metric).spread(values, len(known.layout.gpu))
            columns[metric.signal] = np.where(np.isnan(peak[metric.signal]), np.nan, column)
    return columns


def _intervals_of_rows(known: Known) -> usage.Floats:
    """Of several jobs that measure a row the most frequent counts: it asks for the most samples."""
    size = len(known.layout.gpu)
    if known.expected_interval is not None:
        return np.full(size, known.expected_interval)
    counts = _highest_counts(known.readings, len(known.facts), known.window)
    by_job = np.array([known.intervals.get(name, np.nan) for name in known.jobs.names])
    by_series = np.where(counts > 0, by_job[known.jobs.of_series], np.nan)
    return known.layout.device.spread(by_series, size, np.fmin)


def _find_up(known: Known) -> usage.Bools:
    is_down = np.full(len(known.facts), np.nan)
    if known.down:
        for number in known.layout.series:
            if (known.facts[number].job, known.facts[number].target) in known.down:
                is_down[number] = 1.0
    return np.isnan(known.layout.device.spread(is_down, len(known.layout.gpu)))


def _find_frozen(known: Known, count: Mapping[Signal, usage.Floats], interval: usage.Floats) -> usage.Bools:
    size = len(known.layout.gpu)
    grown = known.reading("increase", queries.ENERGY, known.window)
    if grown is None:
        return np.zeros(size, dtype=np.bool_)
    measured = np.zeros(size, dtype=np.bool_)
    for samples in count.values():
        measured |= samples * interval >= _ENOUGH_TO_BE_FROZEN * known.window
    frozen: usage.Bools = measured & (known.layout.board.spread(grown, size) == 0.0)
    return frozen


def _read_floors(known: Known) -> usage.Floats:
    if not known.floors:
        return np.full(len(known.layout.gpu), np.nan)
    return np.array([known.floors.get(board, np.nan) for board in known.layout.boards], dtype=np.float64)


def edges_for(layout: rows.Layout, metric: queries.Metric) -> rows.Edges:
    match metric.join:
        case "own":
            return layout.own
        case "device":
            return layout.device
        case "board":
            return layout.board
