"""What was read of series, however it was got: asked of Prometheus, or scraped by ourselves.

In: answers, or minutes of samples. Out: SeriesReadings under Topics (what, of which metric, over which window), the
same for both sources, so that the same columns are made of them. What a series' number stands for: labels.py.
Invariant: a reading that is not there was not asked, or nobody exports it; nan in it is a series without a believable
value.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fallow.model import usage
from fallow.model.units import Seconds

Numbers: TypeAlias = NDArray[np.int64]

INSTANT: Final[Seconds] = 0.0  # the window of what is read of this instant


class What(Enum):
    """Over a window, unless it says otherwise."""

    peak = auto()  # the highest; of last_kernel the latest
    count = auto()  # samples
    mean = auto()
    newest = auto()  # instant of the newest sample, now
    pace = auto()  # samples of late
    pace_before = auto()  # ... in the older half of that time
    scrapes = auto()  # of a target of late, whatever they found
    scrapes_before = auto()  # ... in the older half of that time
    holds = auto()  # which pod holds which GPU, now
    increase = auto()  # of a counter
    requests = auto()  # the most that was in flight or served
    down = auto()  # targets that cannot be scraped, now
    lowest = auto()
    samples = auto()  # of power, for its floor
    busy = auto()  # the highest of a stretch of the past, where that is activity
    past = auto()  # samples in a stretch of the past


# What makes rows.
OF_GPUS: Final = frozenset({What.peak, What.count, What.mean, What.newest, What.increase, What.holds})


class Topic(NamedTuple):
    what: What
    metric: str = ""
    window: Seconds = INSTANT


class SeriesReading(NamedTuple):
    series: Numbers
    values: usage.Floats

    def by_series(self, known: int) -> usage.Floats:
        """Values at their series' numbers; nan for all others."""
        dense = np.full(known, np.nan)
        dense[self.series] = self.values
        return dense


Readings: TypeAlias = Mapping[Topic, SeriesReading]

NOTHING: Final = SeriesReading(np.zeros(0, dtype=np.int64), np.zeros(0))


def join(some: Iterable[SeriesReading]) -> SeriesReading:
    parts = list(some)
    if len(parts) == 1:
        return parts[0]
    return SeriesReading(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def has_gpus(readings: Readings) -> bool:
    return any(len(reading.series) for key, reading in readings.items() if key.what in OF_GPUS)


def current_of(readings: Readings, known: int) -> tuple[int, ...]:
    """The numbers of series that have a value of now."""
    seen = np.zeros(known, dtype=np.bool_)
    for key, reading in readings.items():
        if key.what in (What.newest, What.holds):
            seen[reading.series[~np.isnan(reading.values)]] = True
    return tuple(np.flatnonzero(seen).tolist())


def series_of(readings: Readings, known: int, windows: Collection[Seconds] | None = None) -> tuple[int, ...]:
    """The numbers of all series that were read; with windows, of those that make rows there."""
    seen = np.zeros(known, dtype=np.bool_)
    for key, reading in readings.items():
        if windows is None or (key.what in OF_GPUS and key.window in windows):
            seen[reading.series] = True
    return tuple(np.flatnonzero(seen).tolist())
