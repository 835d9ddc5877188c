"""How long should a GPU be quiet before it is paused? What each window would have done, and the one to recommend.

In: windows as backtest.py played them; silences, each the time a workload was quiet, and whether activity ended it;
what one resume costs, in GPU-seconds; the share of pauses that may be regretted. Out: figures, all of them as played,
and a recommended window with what it rests on; or in words why there is none.
Silences choose, the play decides: of the windows that were played it is the first that is as long as the one the
silences ask for and whose pauses are regretted no more often than people accept.
The cost of a window is the idle GPU time burned while waiting for it, plus the price of every resume it causes. Its
smallest value over a history rests on a few silences that happened to end just after it, so the curve is first averaged
over windows that are nearly the same: what is recommended is the middle of a good stretch, not a lucky point. A few
silences of every length are added that nobody has seen yet, so that a short history does not promise too much. A class
or a workload gets a window of its own only where that one also wins on the half of the history it was not chosen from.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np

from fallow.model.units import DAY, HOUR, MINUTE, Seconds, humane
from fallow.model.usage import Bools, Floats, Indices
from fallow.sim import backtest
from fallow.sim.world.lives import ACTIVE, NONE, Percents
from fallow.sim.world.nouns import Part
from fallow.sim.world.owners import REGRET
from fallow.sim.world.world import World

_MINUTES: Final = (10, 15, 20, 30, 45, 60, 75, 90, 120, 180, 240, 360)
WINDOWS: Final[tuple[Seconds, ...]] = tuple(minutes * MINUTE for minutes in _MINUTES)
_HOLE: Final = 180.0  # a stretch of the unknown that is longer cuts a silence
_GRID: Final[Floats] = np.geomspace(MINUTE, DAY, 240)  # windows that are tried
_LEAST, _MOST = 10 * MINUTE, DAY  # windows that are recommended
_ALIKE: Final = 0.25  # windows whose logarithms differ by less tell nearly the same
_UNSEEN: Final = 5.0  # silences of any length, from a minute to a day, that every history is taken to lack
_WEIGHTS: Final[Floats] = np.exp(-0.5 * (np.subtract.outer(np.log(_GRID), np.log(_GRID)) / _ALIKE) ** 2)
_ENOUGH: Final = 40  # silences under which nothing is recommended, and nobody gets a window of its own
_CROWD: Final = 6  # workloads under which a class does not
_WINS: Final = 0.97  # of the cost of the more general window, on history it was not chosen from


class PlayedWindow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a window did to a past, as the controller's brain played it: the very figures of `fallow backtest`."""

    window: Seconds
    reclaimed_gpu_hours: float
    idle_gpu_hours: float  # held without activity all the same
    money: Decimal
    unpriced_gpu_hours: float
    pauses: int
    regrets: int
    resumes: int
    waited: Seconds
    cost_gpu_hours: float  # what idled all the same, and the price of the resumes

    @property
    def regretted(self) -> float:
        """Share of its pauses."""
        return self.regrets / self.pauses if self.pauses else 0.0


def weigh(window: Seconds, sums: backtest.BacktestSums, resume_cost: Seconds) -> PlayedWindow:
    copied = {name: getattr(sums, name) for name in PlayedWindow.__struct_fields__ if hasattr(sums, name)}
    cost = sums.idle_gpu_hours + sums.resumes * resume_cost / HOUR
    return PlayedWindow(window=window, cost_gpu_hours=cost, **copied)


class Silences(msgspec.Struct):
    """One entry per silence, those of one workload in their order."""

    seconds: Floats
    ended: Bools  # by activity; False: by the end of what is known
    gpus: Floats
    whose: Indices  # number of the workload

    def take(self, which: Any) -> "Silences":
        return Silences(self.seconds[which], self.ended[which], self.gpus[which], self.whose[which])


class Point(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One window over the silences, were every pause allowed and at once. To choose by, never to be shown."""

    window: Seconds
    burned_gpu_hours: float  # idle before the pause
    saved_gpu_hours: float
    pauses: int
    interruptions: int  # pauses that activity ended: somebody had to resume
    regrets: int  # of these, within 15 minutes
    cost_gpu_hours: float  # burned, and the price of the interruptions


class Advice(msgspec.Struct, frozen=True, rename="camel"):
    """The window that silences ask for, and what it rests on: all, class, or workload."""

    window: Seconds
    rests_on: str
    silences: int
    point: Point


class Recommendation(msgspec.Struct, frozen=True, rename="camel"):
    all: Advice
    by_class: Mapping[str, Advice]
    by_workload: Mapping[str, Advice]  # `namespace/name`


def of_world(world: World) -> Silences:
    """Of what its workloads want to do, were they never paused."""
    return find_silences([one.part for one in world.workloads], world.wanted, world.span.step)


def find_silences(parts: Sequence[Part], percents: Percents, step: Seconds) -> Silences:
    """A workload is quiet while all of its GPUs are, and not known where one is not, unless another is active."""
    found: list[tuple[int, int, int, bool]] = []
    first = 0
    for number, part in enumerate(parts):
        rows = percents[first : first + part.seats]
        first += part.seats
        known = rows != NONE
        active, quiet = (known & (rows >= ACTIVE)).any(axis=0), (known & (rows < ACTIVE)).all(axis=0)
        found += [(number, part.seats, length, ended) for length, ended in _runs(active, quiet, int(_HOLE // step))]
    columns = np.array(found, np.float64).reshape(-1, 4)
    return Silences(columns[:, 2] * step, columns[:, 3] > 0, columns[:, 1], columns[:, 0].astype(np.int64))


def _runs(active: Bools, quiet: Bools, most_unknown: int) -> Iterable[tuple[int, bool]]:
    """Steps from the first quiet one to the activity that ends it, or to the last before a long stretch of unknown."""
    spots = np.flatnonzero(quiet)
    if not len(spots):
        return
    busy = np.flatnonzero(active)
    next_busy = np.append(busy, len(active) + most_unknown + 1)[np.searchsorted(busy, spots)]
    following = np.append(spots[1:], len(active) + 2 * most_unknown + 2)
    is_last = (next_busy < following) | (following - spots - 1 > most_unknown)
    begin = 0
    for at in np.flatnonzero(is_last).tolist():
        ended = bool(next_busy[at] < following[at] and next_busy[at] - spots[at] - 1 <= most_unknown)
        stop = next_busy[at] if ended else spots[at] + 1
        yield int(stop - spots[begin]), ended
        begin = at + 1


def measure(silences: Silences, window: Seconds, resume_cost: Seconds) -> Point:
    """`resume_cost` in GPU-seconds for one resume."""
    is_paused = silences.seconds > window
    interrupts = is_paused & silences.ended
    burned = float((np.minimum(silences.seconds, window) * silences.gpus).sum())
    saved = float((np.maximum(silences.seconds - window, 0.0) * silences.gpus).sum())
    count = int(interrupts.sum())
    return Point(
        window=window, burned_gpu_hours=burned / HOUR, saved_gpu_hours=saved / HOUR, pauses=int(is_paused.sum()),
        interruptions=count, regrets=int((interrupts & (silences.seconds - window <= REGRET)).sum()),
        cost_gpu_hours=(burned + count * resume_cost) / HOUR,
    )


def _costs(silences: Silences, resume_cost: Seconds) -> Floats:
    """Of every window of the grid, in GPU-seconds: sums over the sorted silences, once."""
    order = np.argsort(silences.seconds)
    seconds, gpus = silences.seconds[order], silences.gpus[order]
    at = np.searchsorted(seconds, _GRID, side="right")
    shorter = np.concatenate([[0.0], np.cumsum(seconds * gpus)])[at]
    longer = gpus.sum() - np.concatenate([[0.0], np.cumsum(gpus)])[at]
    ended = silences.ended.sum() - np.concatenate([[0], np.cumsum(silences.ended[order])])[at]
    return np.asarray(shorter + longer * _GRID + ended * resume_cost, np.float64)


def _cost_unseen(gpus: float, resume_cost: Seconds) -> Floats:
    """Of one silence whose length nobody knows: any order of magnitude is as likely as any other."""
    lengths, windows = _GRID[None, :], _GRID[:, None]
    costs = np.minimum(lengths, windows) * gpus + (lengths > windows) * resume_cost
    return np.asarray(costs.mean(axis=1), np.float64)


def choose(silences: Silences, resume_cost: Seconds) -> Seconds:
    """The window whose neighbourhood costs least. Without any silence: the shortest that pays at worst twice."""
    if not len(silences.seconds):
        return min(max(resume_cost, _LEAST), _MOST)
    costs = _costs(silences, resume_cost) + _UNSEEN * _cost_unseen(float(silences.gpus.mean()), resume_cost)
    smooth = _WEIGHTS @ costs / _WEIGHTS.sum(axis=1)
    smooth[(_GRID < _LEAST) | (_GRID > _MOST)] = np.inf
    return float(round(_GRID[int(smooth.argmin())] / MINUTE)) * MINUTE


def recommend(silences: Silences, parts: Sequence[Part], resume_cost: Seconds) -> Recommendation:
    """For all; for each class with enough history, else as for all; for each workload too, else as for its class."""
    general = _advise(silences, choose(silences, resume_cost), "all", resume_cost)
    class_of = np.array([part.class_ for part in parts])
    classes: dict[str, Advice] = {}
    for name in sorted({part.class_ for part in parts}):
        mine = silences.take(class_of[silences.whose] == name)
        is_crowd = len(np.unique(mine.whose)) >= _CROWD
        half = (mine.whose % 2 == 0) & is_crowd  # no half, no window of its own
        classes[name] = _specialise(mine, half, general, "class", resume_cost)
    workloads = {}
    for number in np.unique(silences.whose).tolist():
        mine = silences.take(silences.whose == number)
        earlier = np.arange(len(mine.seconds)) < len(mine.seconds) // 2
        advice = _specialise(mine, earlier, classes[parts[number].class_], "workload", resume_cost)
        workloads[f"{parts[number].namespace}/{parts[number].name}"] = advice
    return Recommendation(general, classes, workloads)


def _specialise(mine: Silences, half: Bools, wider: Advice, name: str, resume_cost: Seconds) -> Advice:
    """A window of its own only where each half of the history does better with the window that the other half chose."""
    as_before = _advise(mine, wider.window, wider.rests_on, resume_cost)
    if len(mine.seconds) < _ENOUGH or not half.any() or half.all():
        return as_before
    one, other = mine.take(half), mine.take(~half)
    blind = _cost(other, choose(one, resume_cost), resume_cost) + _cost(one, choose(other, resume_cost), resume_cost)
    if blind > _WINS * as_before.point.cost_gpu_hours:
        return as_before
    return _advise(mine, choose(mine, resume_cost), name, resume_cost)


def _cost(silences: Silences, window: Seconds, resume_cost: Seconds) -> float:
    return measure(silences, window, resume_cost).cost_gpu_hours


def _advise(silences: Silences, window: Seconds, rests_on: str, resume_cost: Seconds) -> Advice:
    return Advice(window, rests_on, len(silences.seconds), measure(silences, window, resume_cost))


# ---- what may be recommended -----------------------------------------------------------------------------------------


def find_lack(silences: Silences, length: Seconds) -> str:
    """What a history of this length lacks for a recommendation, and how much more of it is needed; "": nothing."""
    count = int((silences.seconds >= _LEAST).sum())
    if count >= _ENOUGH:
        return ""
    there = f"{count} silences of {humane(_LEAST)} or more in {humane(length)}"
    more = f"about {humane(length * _ENOUGH / count)} of such a history" if count else "a history in which GPUs rest"
    return f"there are {there}, and {_ENOUGH} are needed: {more}"


def settle(window: Seconds, played: Sequence[PlayedWindow], accepted: float) -> PlayedWindow | None:
    """The first that is no shorter than this, and whose pauses are regretted no more often than accepted."""
    by_length = sorted(played, key=lambda one: one.window)
    return next((one for one in by_length if one.window >= window and one.regretted <= accepted), None)
