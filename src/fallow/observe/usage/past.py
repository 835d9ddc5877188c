"""Since when exactly is a GPU idle? What was found in the look-back, and how long it stays true.

In: readings of the last active minute, of the first sample, and of the minutes with data. Out: per candidate row the instant of the last
activity (-inf = looked and found none) and since when the row was watched without a gap.
A finding is remembered while the row stays idle: a row found idle over its window now, and found idle less than a window ago, was
idle all the time between. Invariant: what could not be asked stays nan, and is not remembered.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fallow.model import cluster, usage
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import asking, columns, queries, rows

_GAPLESS = 0.95  # of the minutes since the first sample have data: what is missing are single scrapes, not hours


class Found(msgspec.Struct, gc=False):
    last_active: Instant
    observed_since: Instant
    confirmed_at: Instant


class Memory:
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

    def keep(self, seen: usage.Usage, wanted: Sequence[int], pods: Sequence[cluster.Pod], threshold: float, now: Instant) -> None:
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


def may_speak(seen: usage.Usage, signal: Signal, wanted: Sequence[int]) -> usage.Bools:
    """For which of the wanted rows this primary says when they were active. On a shared GPU a pod's own signals silence the device's."""
    at = np.asarray(wanted, dtype=np.int64)
    if signal not in seen.peak:
        return np.zeros(len(at), dtype=np.bool_)
    speaks = ~np.isnan(seen.peak[signal][at])
    if signal in (Signal.process_sm, Signal.last_kernel):
        return speaks
    own = [~np.isnan(seen.peak[one][at]) for one in (Signal.process_sm, Signal.last_kernel) if one in seen.peak]
    speaks &= ~(seen.shared[at] & np.any(own, axis=0)) if own else True
    if signal in (Signal.gpu_util, Signal.device_util):
        speaks &= ~seen.mig[at]
    if signal is Signal.gpu_util:
        speaks &= ~seen.shared[at]
    return speaks


class Past:
    """The answers about the past, to be read row by row."""

    def __init__(self, layout: rows.Layout, readings: Mapping[asking.Key, asking.Reading], series: int) -> None:
        self._layout = layout
        self._readings = readings
        self._series = series
        self._place_of = {key: place for place, key in enumerate(zip(layout.pod.tolist(), layout.gpu, strict=True))}

    def find(
        self, seen: usage.Usage, wanted: Sequence[int], speaks: Mapping[queries.Metric, usage.Bools], lookback: Seconds, now: Instant
    ) -> tuple[usage.Floats, usage.Floats]:
        """Last activity and start of the watch, of each wanted row; nan where no series was found."""
        at = np.array([self._place_of.get((int(seen.pod[row]), seen.gpu[row]), -1) for row in wanted], dtype=np.int64)
        last, since = np.full(len(wanted), np.nan), np.full(len(wanted), np.nan)
        for metric, held in speaks.items():
            active, watched = (
                self._of_kernels(seen, wanted) if metric.signal is Signal.last_kernel else self._of(metric, at, lookback, now, seen.window)
            )
            last = np.fmax(last, np.where(held & ~np.isnan(watched), or_never(active), np.nan))
            since = np.fmin(since, np.where(held, watched, np.nan))
        # The window itself was silent; a minute that began before it may still have been counted as active.
        return np.minimum(last, now - seen.window), since

    def _of_kernels(self, seen: usage.Usage, wanted: Sequence[int]) -> tuple[usage.Floats, usage.Floats]:
        """The exporter itself says how long ago the last kernel was, and so that there was none since."""
        nothing = np.full(seen.rows, np.nan)
        last = (seen.newest.get(Signal.last_kernel, nothing) - seen.peak.get(Signal.last_kernel, nothing))[list(wanted)]
        return last, last

    def _of(
        self, metric: queries.Metric, at: rows.Numbers, lookback: Seconds, now: Instant, window: Seconds
    ) -> tuple[usage.Floats, usage.Floats]:
        active, first, minutes = (self._column(what, metric, at, lookback) for what in ("active", "first", "minutes"))
        return active, watched_since(first, minutes, now, window)

    def _column(self, what: str, metric: queries.Metric, at: rows.Numbers, lookback: Seconds) -> usage.Floats:
        """One value per wanted row; a row that the layout does not have (-1) takes the nan at the end."""
        reading = self._readings.get((what, metric.name, lookback), asking.NOTHING)
        fold = np.fmin if what == "first" else np.fmax
        column = columns.edges_for(self._layout, metric).spread(reading.by_series(self._series), len(self._layout.gpu), fold)
        return np.append(column, np.nan)[at]


def watched_since(first: usage.Floats, minutes: usage.Floats, now: Instant, window: Seconds) -> usage.Floats:
    """The first sample, if there is hardly a gap since then; else only the window itself is vouched for."""
    gapless = minutes * MINUTE >= _GAPLESS * (now - first) - MINUTE
    return np.where(np.isnan(first), np.nan, np.where(gapless, first, now - window))


def or_never(last: usage.Floats) -> usage.Floats:
    return np.where(np.isnan(last), -math.inf, last)
