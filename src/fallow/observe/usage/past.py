"""Since when exactly is a GPU idle? What was found in the look-back, and how long it stays true.

In: readings of the last active minute, of the first sample, and of the minutes with data. Out: per candidate row the
instant of the last activity (-inf = looked and found none) and since when the row was watched without a gap.
A finding is remembered while the row stays idle: a row found idle over its window now, and found idle less than a
window ago, was idle all the time between. Invariant: what could not be asked stays nan, and is not remembered.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from fallow.model import cluster, usage
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import labels, queries, rows
from fallow.observe.usage.readings import NOTHING, Numbers, Readings, Topic, What, series_of

Speakers: TypeAlias = dict[queries.GpuMetric, usage.Bools]  # by primary, of which rows it says when they were active

_GAPLESS = 0.95  # of the minutes since the first sample have data: what is missing are single scrapes, not hours


class Found(msgspec.Struct, gc=False):
    last_active: Instant
    observed_since: Instant
    confirmed_at: Instant


class IdleTimes:
    """Findings by GPU, pod and threshold."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, float], Found] = {}
        self._swept: Instant = -math.inf

    def recall(
        self, seen: usage.Usage, wanted: Sequence[int], pods: Sequence[cluster.Pod], threshold: float, now: Instant
    ) -> tuple[dict[int, Found], list[int]]:
        """What is still true, by row; and the rows of which nothing is."""
        known, unknown = dict[int, Found](), list[int]()
        find, gpus, earliest = self._found.get, seen.gpu, now - seen.window
        for row, pod in zip(wanted, seen.pod[wanted].tolist(), strict=True):
            found = find((gpus[row], pods[pod].uid, threshold))
            if found is None or not earliest <= found.confirmed_at <= now:
                unknown.append(row)
            else:
                found.confirmed_at = now
                known[row] = found
        return known, unknown

    def keep(
        self, seen: usage.Usage, wanted: Sequence[int], pods: Sequence[cluster.Pod], threshold: float, now: Instant
    ) -> None:
        """Remember what is known of these rows now."""
        for row in wanted:
            last, since = float(seen.last_active[row]), float(seen.observed_since[row])
            if not math.isnan(last):
                self._found[seen.gpu[row], pods[seen.pod[row]].uid, threshold] = Found(last, since, now)

    def forget_before(self, instant: Instant) -> None:
        """Now and then: what is too old is not recalled anyway."""
        if instant - self._swept < HOUR:
            return
        self._swept = instant
        self._found = {key: found for key, found in self._found.items() if found.confirmed_at >= instant}


def copy_of(seen: usage.Usage) -> usage.Usage:
    """With columns of its own for what is looked up."""
    last_active, observed_since = seen.last_active.copy(), seen.observed_since.copy()
    return msgspec.structs.replace(seen, last_active=last_active, observed_since=observed_since)


def find_speakers(seen: usage.Usage) -> Speakers:
    speakers = usage.find_speakers(seen, seen.mig, seen.shared)
    return {metric: speakers[metric.signal] for metric in queries.PRIMARIES if metric.signal in speakers}


class Past:
    """The answers about the past, to be read row by row."""

    def __init__(
        self, held: rows.Holders, facts: Sequence[labels.Facts], readings: Readings, lookback: Seconds, now: Instant,
        witnesses: rows.Witnesses | None = None,
    ) -> None:
        self._layout = rows.RowLayout(held, facts, series_of(readings, len(facts)), witnesses=witnesses)
        self._readings, self._series = readings, len(facts)
        self._lookback, self._now = lookback, now

    def fill(self, seen: usage.Usage, wanted: list[int], speakers: Speakers) -> None:
        """Last activity and start of the watch, into each wanted row; nan where no series was found."""
        index = {key: row for row, key in enumerate(zip(self._layout.pod.tolist(), self._layout.gpu, strict=True))}
        at = np.array([index.get((int(seen.pod[row]), seen.gpu[row]), -1) for row in wanted], dtype=np.int64)
        last, since = np.full(len(wanted), np.nan), np.full(len(wanted), np.nan)
        for metric, speaks in speakers.items():
            may_speak, is_kernels = speaks[wanted], metric.signal is Signal.last_kernel
            active, watched = self._of_kernels(seen, wanted) if is_kernels else self._of(metric, at, seen.window)
            last = np.fmax(last, np.where(may_speak & ~np.isnan(watched), or_never(active), np.nan))
            since = np.fmin(since, np.where(may_speak, watched, np.nan))
        # The window itself was silent; a minute that began before it may still have been counted as active.
        seen.last_active[wanted], seen.observed_since[wanted] = np.minimum(last, self._now - seen.window), since

    def _of_kernels(self, seen: usage.Usage, wanted: Sequence[int]) -> tuple[usage.Floats, usage.Floats]:
        """The exporter itself says how long ago the last kernel was, and so that there was none since."""
        nothing = np.full(seen.rows, np.nan)
        last = (seen.newest.get(Signal.last_kernel, nothing) - seen.peak.get(Signal.last_kernel, nothing))[list(wanted)]
        return last, last

    def _of(self, metric: queries.GpuMetric, at: Numbers, window: Seconds) -> tuple[usage.Floats, usage.Floats]:
        active, first, minutes = (self._column(what, metric, at) for what in (What.active, What.first, What.minutes))
        return active, watched_since(first, minutes, self._now, window)

    def _column(self, what: What, metric: queries.GpuMetric, at: Numbers) -> usage.Floats:
        """One value per wanted row; a row that the layout does not have (-1) takes the nan at the end."""
        values = self._readings.get(Topic(what, metric.name, self._lookback), NOTHING).by_series(self._series)
        fold = np.fmin if what is What.first else np.fmax
        column = self._layout.edges(metric.join).spread(values, len(self._layout.gpu), fold)
        return np.append(column, np.nan)[at]


def watched_since(first: usage.Floats, minutes: usage.Floats, now: Instant, window: Seconds) -> usage.Floats:
    """The first sample, if there is hardly a gap since then; else only the window itself is vouched for."""
    gapless = minutes * MINUTE >= _GAPLESS * (now - first) - MINUTE
    return np.where(np.isnan(first), np.nan, np.where(gapless, first, now - window))


def or_never(last: usage.Floats) -> usage.Floats:
    return np.where(np.isnan(last), -math.inf, last)
