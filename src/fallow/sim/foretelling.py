"""How well the coming demand of a past could have been foretold, hour after hour, by what was known then.

In: demands of a trace (traces/published.py). Out: the error of each model on each virtual cluster and on all together.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from fallow.decide import scaling
from fallow.sim.traces import published

_MINUTES = 60
_MONDAY = 4 * 24  # 1970 began on a Thursday: hours until the first Monday


class ForetoldDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sum of misses by sum of what was; `chosen`: by the model that would have been believed each time."""

    name: str
    gpus: int
    errors: dict[str, float]
    chosen: float


class TooShort(Exception):
    """There is no hour to judge a guess by."""


def rehearse(
    demands: Sequence[published.Demand], *, horizon: int, after_days: int
) -> tuple[list[ForetoldDemand], ForetoldDemand]:
    """Of each, and of all. Raises TooShort."""
    begin, hours = _by_hour(demands)
    first = after_days * 24
    if hours.shape[1] < first + horizon:
        raise TooShort(
            f"the past is {hours.shape[1]} hours long; to judge guesses {horizon} hours ahead after {after_days} days "
            f"takes {first + horizon}"
        )
    slots = (begin - _MONDAY + np.arange(hours.shape[1] + horizon)) % scaling.WEEK
    lines = [
        _tell(demand.name, demand.total, scaling.rehearse(hours[row : row + 1], slots, horizon, first=first))
        for row, demand in enumerate(demands)
    ]
    total = sum(demand.total for demand in demands)
    return lines, _tell("all", total, scaling.rehearse(hours, slots, horizon, first=first))


def _tell(name: str, gpus: int, found: tuple[scaling.Floats, float]) -> ForetoldDemand:
    errors, chosen = found
    by_name = {guesser.value: float(error) for guesser, error in zip(scaling.Guesser, errors, strict=True)}
    return ForetoldDemand(name=name, gpus=gpus, errors=by_name, chosen=chosen)


def _by_hour(demands: Sequence[published.Demand]) -> tuple[int, scaling.Floats]:
    """The hour since 1970 with which all begin, and a row of hourly means for each; nan: no minute of it is known."""
    begin = min(one.first for one in demands) // _MINUTES
    end = max(-(-(one.first + len(one.wanted)) // _MINUTES) for one in demands)
    minutes = np.full((len(demands), (end - begin) * _MINUTES), -1, dtype=np.int64)
    for row, one in enumerate(demands):
        at = one.first - begin * _MINUTES
        minutes[row, at : at + len(one.wanted)] = one.wanted
    by_hour = minutes.reshape(len(demands), -1, _MINUTES)
    known = by_hour >= 0
    counts = known.sum(axis=2)
    sums = np.where(known, by_hour, 0).sum(axis=2)
    return begin, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
