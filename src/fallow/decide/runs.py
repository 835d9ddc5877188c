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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from fallow.model.runs import (
    LEAST_USE,
    SHORTEST,
    Contender,
    Foretold,
    Outlook,
    PastRun,
    Prediction,
    Preemption,
    PreemptionAdvice,
    RoomAsked,
    Task,
)

FEWEST: Final = 30  # runs, before anything is foretold
LONGEST: Final = 2_000  # runs that are looked back on
_OWN: Final = 10  # of its owner's last runs; three at least
_FEWEST_OWN: Final = 3
_SHRINK: Final = 10  # as many runs of its class weigh as much as what is known of the group
_RIDGE: Final = 1.0
_REFIT: Final = 50  # runs after which the line is drawn anew
_LONGEST: Final = 10 * 365 * 24 * 60.0  # minutes: nothing that ran for longer was ever booked
_MOST_GPUS: Final = 1_000_000
_LATEST: Final = 253_402_300_799.0  # the end of the year 9999: of no later second a date can be told
_WORDS: Final = ("pytorch", "tensorflow", "jupyter")
MOST_NAMED: Final = 10  # of those who could make room for one that waits
_WORTH: Final = (3, 10)  # of what remains, a task must be shorter than this to be let in

Floats: TypeAlias = npt.NDArray[np.float64]
Guess: TypeAlias = tuple[float, Foretold]


def _is_sane(run: PastRun) -> bool:
    """One that cannot be true would spoil the means of all that are like it, and the order of the rest."""
    use = 0.0 if run.use is None else run.use
    return 0 <= run.minutes <= _LONGEST and 0 <= use <= 1 and 0 <= run.task.gpus <= _MOST_GPUS and all(
        0 <= each <= _LATEST for each in (run.task.begins_at, run.task.memory_gib, run.task.cores)
    )


class Past:
    """Runs in the order of their ends, and what they tell of one figure of a task."""

    def __init__(
        self, runs: Iterable[PastRun], figure: Callable[[PastRun], float | None], least: float, most: float
    ) -> None:
        measured = [
            (run.ended_at, run.task, value) for run in runs if _is_sane(run) and (value := figure(run)) is not None
        ]
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
        return _middle(self._ascending)

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


def _middle(ascending: Sequence[float]) -> float:
    middle = len(ascending) // 2
    return (ascending[~middle] + ascending[middle]) / 2


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return _mean([wrong for wrong, _ in pairs]), _mean([rival for _, rival in pairs])


# ---- what remains ----------------------------------------------------------------------------------------------------


def expect_rest(runs: Iterable[PastRun], task: Task, age: float) -> float | None:
    """Minutes that remain of one that has run so long: what its owner's runs that went on as long still had before
    them. None: none of them did."""
    rests = [run.minutes - age for run in runs if run.task.owner == task.owner and run.minutes >= age]
    return _mean(rests) if rests else None


class Rests:
    """What remained of runs, from how long they had gone on: by the owner, and by the median of all as a rival."""

    def __init__(self, runs: Sequence[PastRun]) -> None:
        self._runs = sorted(filter(_is_sane, runs), key=lambda run: run.ended_at)[-LONGEST:]
        self._of_owner = defaultdict[str, list[PastRun]](list)
        for run in self._runs:
            self._of_owner[run.task.owner].append(run)
        self._errors: dict[float, tuple[float, float]] = {}

    def predict(self, task: Task, age: float) -> Prediction | None:
        value = expect_rest(self._of_owner.get(task.owner, ()), task, age)
        if len(self._runs) < FEWEST or value is None:
            return None
        error, rival = self._errors_about(age)
        return Prediction(value, Foretold.owner, len(self._runs), error, rival) if error < rival else None

    def _errors_about(self, age: float) -> tuple[float, float]:
        """At the power of two at or below it: so many ages are asked for, and a few worked out."""
        about = 2.0 ** math.floor(math.log2(age)) if age >= 1 else 0.0
        if about not in self._errors:
            self._errors[about] = self._look_back(about)
        return self._errors[about]

    def _look_back(self, age: float) -> tuple[float, float]:
        """Of each run, when it had gone on so long, from those that were over by then."""
        lasting, missed = [run for run in self._runs if run.minutes >= age], list[tuple[float, float]]()
        own, ascending, waiting = defaultdict[str, list[float]](list), list[float](), iter(lasting)
        following = next(waiting, None)
        for run in sorted(lasting, key=lambda run: run.task.begins_at):
            while following is not None and following.ended_at <= run.task.begins_at + 60 * age:
                own[following.task.owner].append(following.minutes)
                bisect.insort(ascending, following.minutes)
                following = next(waiting, None)
            if known := own.get(run.task.owner):
                wrong = abs(_mean(known) - run.minutes)
                missed.append((wrong, abs(_middle(ascending) - run.minutes)))
        return _means(missed) if missed else (math.inf, math.inf)


class RunPast:
    """All that is known of runs, made ready once for many questions."""

    def __init__(self, runs: Sequence[PastRun]) -> None:
        runs = [run for run in runs if _is_sane(run)]
        self.count, self._own = len(runs), Counter(run.task.owner for run in runs)
        self.minutes, self.use, self.rests = past_minutes(runs), past_use(runs), Rests(runs)

    def foretell(self, task: Task, age: float | None) -> Outlook:
        """`age`: minutes for which it has run; None: it waits."""
        found = Outlook(
            minutes=self.minutes.predict(task), use=self.use.predict(task), runs=self.count,
            own=self._own[task.owner], rest=None if age is None else self.rests.predict(task, age),
        )
        if (found.minutes, found.use, found.rest) != (None, None, None):
            return found
        return msgspec.structs.replace(found, because=self._why_nothing())

    def _why_nothing(self) -> str:
        if self.count < FEWEST:
            return f"{self.count} runs are over and known, and fewer than {FEWEST} foretell nothing"
        return f"of {self.count} runs none foretells it better than the median of all of them would"


# ---- advice ----------------------------------------------------------------------------------------------------------


def ask_for_room(incoming: Contender, running: Iterable[Contender]) -> RoomAsked:
    """`running`: all that run; who holds less than it asks for makes no room for it."""
    enough = (each for each in running if _has_enough(each, incoming))
    weighed = [(each, _weigh(each, incoming)) for each in enough]
    first = sorted(weighed, key=lambda one: (not one[1].is_yes, one[0].priority or 0, -_minutes(one[0])))
    counts = Counter(advice.reason for _, advice in weighed)
    return RoomAsked(incoming=incoming, counts=counts, named=tuple(first[:MOST_NAMED]))


def _has_enough(running: Contender, incoming: Contender) -> bool:
    return all(running.resources.get(name, 0) >= many for name, many in incoming.resources.items())


def _minutes(of: Contender) -> float:
    return of.minutes.value if of.minutes is not None else 0.0


def _weigh(running: Contender, incoming: Contender) -> PreemptionAdvice:
    return advise_preemption(
        running_priority=running.priority, incoming_priority=incoming.priority, fixed=running.fixed,
        remaining=running.minutes.value if running.minutes is not None else None,
        incoming=incoming.minutes.value if incoming.minutes is not None else None,
    )


def advise_preemption(
    *, running_priority: int | None, incoming_priority: int | None, fixed: str, remaining: float | None,
    incoming: float | None,
) -> PreemptionAdvice:
    """Minutes. Making room is worth it for who is more important and needs little of what is left."""
    if running_priority is None or incoming_priority is None:
        return PreemptionAdvice(Preemption.PriorityUnknown, "nobody knows the priority of one of them")
    if running_priority >= incoming_priority:
        return PreemptionAdvice(
            Preemption.PriorityNotHigher, f"its priority {incoming_priority} is not above {running_priority}"
        )
    if fixed:
        return PreemptionAdvice(Preemption.NotMovable, f"what runs may not be moved: {fixed}")
    if remaining is None:
        return PreemptionAdvice(Preemption.RestUnknown, "nobody knows how long what runs will go on")
    if incoming is None:
        return PreemptionAdvice(Preemption.DurationUnknown, "nobody knows how long what waits will run")
    part, whole = _WORTH
    figures = f"{incoming:.0f} min against {remaining:.0f} min that remain"
    if whole * incoming < part * remaining:
        return PreemptionAdvice(Preemption.WorthIt, f"{figures}: less than {part / whole:.0%} of it")
    return PreemptionAdvice(Preemption.NotShortEnough, f"{figures}: not less than {part / whole:.0%} of it")
