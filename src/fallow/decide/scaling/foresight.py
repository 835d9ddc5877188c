"""How many GPUs will be wanted in the next hours, and whether that guess has earned any trust.

In: hourly means of the GPUs in use and waited for, a row per series, nan where nothing was seen. Out: a guess for each
of the coming hours by the model that did best lately, the errors of all models, and a confidence.
Every model guesses at the same origins of the past, every six hours, from what was known then. A model with a season is
believed only where it was a tenth better than saying "as now" over the last two weeks.
Invariant: an hour that nobody saw is neither nought nor as the last one: it teaches nothing and judges nobody.
"""

from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

WEEK: Final = 168  # hours
HISTORY: Final = 4 * WEEK
REHEARSED: Final = 2 * WEEK  # how far back guesses are judged
STEP: Final = 6  # hours between two origins
MOST_GAPS: Final = 0.2
_BETTER: Final = 0.9  # of the error of "as now": who is not below is not believed
_FEWEST_WINDOWS: Final = 20
_NEAR: Final = 0.2
_FADES: Final = 0.5 ** (1 / 2)  # what a week counts for beside the next one: half in 14 days
_DAY: Final = 24
_LEVEL, _TREND, _SEASON, _DAMPING = 0.3, 0.01, 0.2, 0.9


class Guesser(StrEnum):
    persistence = "persistence"
    hour_of_week = "hour-of-week"
    holt_winters = "holt-winters"


class Guesses(NamedTuple):
    """What each model said at each origin: models x origins x series x hours ahead."""

    origins: Ints
    said: Floats


class Foresight(NamedTuple):
    """Of each series; nan and False where there is too little of it to say anything."""

    ahead: Floats  # GPUs in each of the coming hours
    guesser: Ints  # an index of Guesser
    errors: Floats  # models x series: sum of misses by sum of what was
    confidence: Floats  # share of windows whose peak was nearly right

    def is_seasonal(self) -> Bools:
        return self.guesser > 0


def foresee(demand: Floats, slots: Ints, horizon: int, *, node: float) -> Foresight:
    """`demand`: series x hours, the last one just ended. `slots`: the hour of the week of each of them and of those to
    come. `node`: the GPUs of one node, which a peak may be off by."""
    hours = demand.shape[1]
    first = max(_DAY, hours - REHEARSED)
    guesses = guess(demand, slots, _origins(first, hours), horizon)
    misses, sizes = judge(demand, guesses)
    past = guesses.origins + horizon <= hours
    chosen, errors = _choose(misses[:, past], sizes[past])
    near = _find_near(demand, guesses, chosen, node)[past]
    judged = ~np.isnan(near)
    windows = judged.sum(axis=0)
    with np.errstate(invalid="ignore"):
        confidence = np.where(windows >= _FEWEST_WINDOWS, np.nansum(near, axis=0) / np.maximum(windows, 1), 0.0)
    ahead = _take(guesses.said[:, -1], chosen)
    ahead[np.isnan(demand).mean(axis=1) > MOST_GAPS] = np.nan
    return Foresight(ahead, chosen, errors, confidence)


def rehearse(demand: Floats, slots: Ints, horizon: int, *, first: int) -> tuple[Floats, float]:
    """The pooled error of each model from hour `first` on, and that of the model which would have been chosen each
    time by what was known then."""
    hours = demand.shape[1]
    guesses = guess(demand, slots, _origins(_DAY, hours - horizon), horizon)
    misses, sizes = judge(demand, guesses)
    tried = np.flatnonzero(guesses.origins >= first)
    missed = 0.0
    for place in tried.tolist():
        at = guesses.origins[place]
        known = (guesses.origins + horizon <= at) & (guesses.origins >= at - REHEARSED)
        chosen, _ = _choose(misses[:, known], sizes[known])
        missed += float(_take(misses[:, place], chosen).sum())
    total = float(sizes[tried].sum())
    return misses[:, tried].sum(axis=(1, 2)) / total, missed / total


def guess(demand: Floats, slots: Ints, origins: Ints, horizon: int) -> Guesses:
    """By every model at every origin: what it would have said then, of the hour that begins and those after it."""
    rows, hours = demand.shape
    said = np.full((len(Guesser), len(origins), rows, horizon), np.nan)
    ahead = np.arange(1, horizon + 1)
    damped = np.cumsum(_DAMPING ** np.arange(1, horizon + 1))
    last = np.full(rows, np.nan)
    sums, counts = np.zeros((WEEK, rows)), np.zeros((WEEK, rows))
    level, trend, season = _begin(demand)
    place = {int(hour): index for index, hour in enumerate(origins)}
    for hour in range(hours + 1):
        if (index := place.get(hour)) is not None:
            coming = slots[hour + ahead - 1]
            said[0, index] = last[:, None]
            with np.errstate(invalid="ignore", divide="ignore"):
                usual = (sums[coming] / counts[coming]).T
            said[1, index] = np.where(np.isnan(usual), last[:, None], usual)
            seasonal = season[(hour + ahead - 1) % _DAY].T
            said[2, index] = np.maximum(level[:, None] + damped * trend[:, None] + seasonal, 0.0)
        if hour == hours:
            break
        seen, slot = demand[:, hour], slots[hour]
        known = ~np.isnan(seen)
        last = np.where(known, seen, last)
        sums[slot] = np.where(known, sums[slot] * _FADES + seen, sums[slot])
        counts[slot] = np.where(known, counts[slot] * _FADES + 1.0, counts[slot])
        usual_now, drift = season[hour % _DAY], _DAMPING * trend
        risen = np.where(known, _LEVEL * (seen - usual_now) + (1 - _LEVEL) * (level + drift), level + drift)
        trend = np.where(known, _TREND * (risen - level) + (1 - _TREND) * drift, drift)
        season[hour % _DAY] = np.where(known, _SEASON * (seen - risen) + (1 - _SEASON) * usual_now, usual_now)
        level = risen
    return Guesses(origins, said)


def judge(demand: Floats, guesses: Guesses) -> tuple[Floats, Floats]:
    """Of each guess the sum of its misses (models x origins x series), and of what was (origins x series); nought
    where nobody saw what was, or the hour has not been."""
    truth = _truth(demand, guesses)
    known = ~np.isnan(truth) & ~np.isnan(guesses.said).any(axis=0)
    missed = np.where(known, np.abs(guesses.said - truth), 0.0)
    return missed.sum(axis=3), np.where(known, truth, 0.0).sum(axis=2)


def _truth(demand: Floats, guesses: Guesses) -> Floats:
    """Origins x series x hours ahead; nan: not seen, or not yet."""
    rows, hours = demand.shape
    horizon = guesses.said.shape[3]
    longer = np.concatenate([demand, np.full((rows, horizon), np.nan)], axis=1)
    when = guesses.origins[:, None] + np.arange(horizon)
    return np.moveaxis(longer[:, np.minimum(when, hours + horizon - 1)], 0, 1)


def _begin(demand: Floats) -> tuple[Floats, Floats, Floats]:
    """Level, trend and season of a day, by the first day."""
    day = demand[:, :_DAY]
    known = ~np.isnan(day)
    counts = np.maximum(known.sum(axis=1), 1)
    level = np.where(known, day, 0.0).sum(axis=1) / counts
    season = np.zeros((_DAY, len(demand)))
    season[: day.shape[1]] = np.where(known, day - level[:, None], 0.0).T
    return level, np.zeros(len(demand)), season


def _origins(first: int, last: int) -> Ints:
    """Every six hours, back from the last one."""
    return np.arange(last, first - 1, -STEP, dtype=np.int64)[::-1].copy()


def _choose(misses: Floats, sizes: Floats) -> tuple[Ints, Floats]:
    """Of each series the model to believe, and the errors of all."""
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = misses.sum(axis=1) / sizes.sum(axis=0)
    best = 1 + np.argmin(np.where(np.isnan(errors[1:]), np.inf, errors[1:]), axis=0)
    least = np.take_along_axis(errors, best[None], axis=0)[0]
    is_better = (least <= _BETTER * errors[0]) & (least < errors[0])  # where nobody errs, all stays as now
    is_tried = (sizes > 0).sum(axis=0) >= _FEWEST_WINDOWS
    return np.where(is_better & is_tried, best, 0), errors


def _take(by_model: Floats, chosen: Ints) -> Floats:
    """Of models x series (x more) what the chosen one of each series says."""
    picked: Floats = by_model[chosen, np.arange(by_model.shape[1])]
    return picked.copy()


def _find_near(demand: Floats, guesses: Guesses, chosen: Ints, node: float) -> Floats:
    """Whether the peak of each window was guessed to a fifth, or to a node: origins x series; nan: not seen whole."""
    truth = _truth(demand, guesses)
    said = guesses.said[chosen, :, np.arange(demand.shape[0])]  # series x origins x hours
    peak, guessed = truth.max(axis=2), np.moveaxis(said, 0, 1).max(axis=2)
    allowed = np.maximum(_NEAR * peak, node)
    return np.where(np.isnan(peak) | np.isnan(guessed), np.nan, np.abs(guessed - peak) <= allowed)
