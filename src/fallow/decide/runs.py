"""How long will it run, how busy will it be, and is it worth making room for something shorter?

In: runs that ended, and a task that waits or runs. Out: a Prediction with its error on the past, or None; advice.
The first that can say something says it: the owner's last runs, those like it, a line through all of them.
Invariant: no number without the error that it had on runs it had not seen; one that was no better than the median of
all runs is not given. Of fewer than thirty runs nothing is foretold.
"""

import bisect
import datetime
import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fallow.model.runs import LEAST_USE, SHORTEST, Foretold, PastRun, Prediction, Preemption, PreemptionAdvice, Task

FEWEST: Final = 30  # runs, before anything is foretold
LONGEST: Final = 2_000  # runs that are looked back on
_OWN: Final = 10  # of its owner's last runs; three at least
_FEWEST_OWN: Final = 3
_SHRINK: Final = 10  # as many runs of its class weigh as much as what is known of the group
_RIDGE: Final = 1.0
_REFIT: Final = 50  # runs after which the line is drawn anew
_WORDS: Final = ("pytorch", "tensorflow", "jupyter")
_WORTH: Final = (3, 10)  # of what remains, a task must be shorter than this to be let in

Floats: TypeAlias = npt.NDArray[np.float64]
Guess: TypeAlias = tuple[float, Foretold]


class Past:
    """Runs in the order of their ends, and what they tell of one figure of a task."""

    def __init__(
        self, runs: Iterable[PastRun], figure: Callable[[PastRun], float | None], least: float, most: float
    ) -> None:
        measured = [(run.ended_at, run.task, value) for run in runs if (value := figure(run)) is not None]
        self._rows = sorted(measured, key=lambda row: (row[0], row[1].owner))[-LONGEST:]
        self._least, self._most = least, most
        self._seen = _Seen()
        for _, task, value in self._rows:
            self._seen.add(task, value)
        self._errors: Mapping[Foretold, tuple[float, float]] | None = None

    def predict(self, task: Task) -> Prediction | None:
        if len(self._rows) < FEWEST:
            return None
        guess = self._seen.guess(task)
        if guess is None:
            return None
        value, by = guess
        error, rival = self.errors.get(by, (math.inf, math.inf))
        if not error < rival:
            return None
        return Prediction(self._clip(value), by, len(self._rows), error, rival)

    @property
    def errors(self) -> Mapping[Foretold, tuple[float, float]]:
        """Of each way the mean error on runs that it had not seen, and that of the median of all before them."""
        if self._errors is None:
            self._errors = self._look_back()
        return self._errors

    def _look_back(self) -> Mapping[Foretold, tuple[float, float]]:
        """Each run is foretold from those that had ended when it began."""
        seen, missed = _Seen(), defaultdict[Foretold, list[tuple[float, float]]](list)
        waiting = iter(self._rows)
        following = next(waiting, None)
        for _, task, value in sorted(self._rows, key=lambda row: row[1].begins_at):
            while following is not None and following[0] <= task.begins_at:
                seen.add(following[1], following[2])
                following = next(waiting, None)
            if seen.count >= FEWEST and (guess := seen.guess(task)) is not None:
                wrong = abs(self._clip(guess[0]) - value)
                missed[guess[1]].append((wrong, abs(seen.median - value)))
        return {by: _means(pairs) for by, pairs in missed.items()}

    def _clip(self, value: float) -> float:
        return min(max(value, self._least), self._most)


def past_minutes(runs: Iterable[PastRun]) -> Past:
    return Past(runs, lambda run: run.minutes, SHORTEST, math.inf)


def past_use(runs: Iterable[PastRun]) -> Past:
    return Past(runs, lambda run: run.use, LEAST_USE, 1.0)


class _Seen:
    """What was seen so far."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._ascending: list[float] = []
        self._tasks: list[Task] = []
        self._of_owner: dict[str, list[float]] = defaultdict(list)
        self._of_group: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self._of_class: dict[str, list[float]] = defaultdict(list)
        self._line: _Line | None = None

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def median(self) -> float:
        middle = len(self._ascending) // 2
        return (self._ascending[~middle] + self._ascending[middle]) / 2

    def add(self, task: Task, value: float) -> None:
        self._values.append(value)
        bisect.insort(self._ascending, value)
        self._tasks.append(task)
        self._of_owner[task.owner].append(value)
        self._of_group[_group_of(task)].append(value)
        self._of_class[task.work_class].append(value)

    def guess(self, task: Task) -> Guess | None:
        own = self._of_owner.get(task.owner, [])[-_OWN:]
        if len(own) >= _FEWEST_OWN:
            return statistics.median(own), Foretold.owner
        group = self._of_group.get(_group_of(task))
        if group:
            weight = len(group) / (len(group) + _SHRINK)
            return weight * _mean(group) + (1 - weight) * _mean(self._of_class[task.work_class]), Foretold.group
        if self._line is None or self.count - self._line.count >= _REFIT:
            self._line = _Line(self._tasks, self._values)
        return self._line.at(task), Foretold.features


class _Line:
    """Ridge regression on what can be known before a task runs, each feature scaled to its spread."""

    def __init__(self, tasks: Sequence[Task], values: Sequence[float]) -> None:
        self.count = len(values)
        table = np.array([_features(task) for task in tasks], np.float64)
        self._centre, spread = table.mean(axis=0), table.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        scaled, self._mean = (table - self._centre) / self._spread, _mean(values)
        normal = scaled.T @ scaled + _RIDGE * np.eye(table.shape[1])
        self._slopes: Floats = np.linalg.solve(normal, scaled.T @ (np.asarray(values, np.float64) - self._mean))

    def at(self, task: Task) -> float:
        scaled = (np.array(_features(task), np.float64) - self._centre) / self._spread
        return float(self._mean + scaled @ self._slopes)


def _features(task: Task) -> tuple[float, ...]:
    """As the article has them; what is not known is 0, as it is there. Python's own hash differs from run to run."""
    begins = datetime.datetime.fromtimestamp(task.begins_at, datetime.UTC)
    place = int.from_bytes(hashlib.blake2b(task.namespace.encode()).digest()) % 100
    has = (float(word in task.image.lower()) for word in _WORDS)
    when = (float(begins.hour), float(begins.weekday()))
    return (*has, float(task.gpus), task.memory_gib, task.cores, *when, float(place))


def _group_of(task: Task) -> tuple[str, str, int]:
    return task.work_class, task.namespace, task.gpus


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return _mean([wrong for wrong, _ in pairs]), _mean([rival for _, rival in pairs])


def expect_rest(runs: Iterable[PastRun], task: Task, age: float) -> float | None:
    """Minutes that remain of one that has run so long: what its owner's runs that went on as long still had before
    them. None: none of them did."""
    rests = [run.minutes - age for run in runs if run.task.owner == task.owner and run.minutes >= age]
    return _mean(rests) if rests else None


def advise_preemption(
    *, running_priority: int, incoming_priority: int, is_movable: bool, remaining: float | None, incoming: float | None
) -> PreemptionAdvice:
    """Minutes. Making room is worth it for who is more important and needs little of what is left."""
    if running_priority >= incoming_priority:
        return PreemptionAdvice(
            Preemption.PriorityNotHigher, f"its priority {incoming_priority} is not above {running_priority}"
        )
    if not is_movable:
        return PreemptionAdvice(Preemption.NotMovable, "what runs may not be moved")
    if remaining is None:
        return PreemptionAdvice(Preemption.RestUnknown, "nobody knows how long what runs will go on")
    if incoming is None:
        return PreemptionAdvice(Preemption.DurationUnknown, "nobody knows how long what waits will run")
    part, whole = _WORTH
    figures = f"{incoming:.0f} min against {remaining:.0f} min that remain"
    if whole * incoming < part * remaining:
        return PreemptionAdvice(Preemption.WorthIt, f"{figures}: less than {part / whole:.0%} of it")
    return PreemptionAdvice(Preemption.NotShortEnough, f"{figures}: not less than {part / whole:.0%} of it")
