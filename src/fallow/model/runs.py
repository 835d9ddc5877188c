"""Runs: what a workload's pods did from their beginning to their end, and what is expected of one that goes on.

In: the books, where every run that ended stands. Out: nouns of prediction and of advice on preemption.
Invariant: minutes and use are measured; what was not measured is None, never 0.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from fallow.model.units import Instant

SHORTEST: Final = 5.0  # minutes that are ever foretold
LEAST_USE: Final = 0.1


def name_owner(namespace: str, kind: str, name: str) -> str:
    """As a Task calls it."""
    return f"{namespace}/{kind}/{name}"


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a piece of work before it runs. `owner`: its topmost one, by uid or by name."""

    owner: str
    namespace: str
    work_class: str
    gpus: int
    begins_at: Instant
    image: str = ""
    memory_gib: float = 0.0
    cores: float = 0.0


class PastRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that ended. `use`: its mean, 0-1; None: not measured."""

    task: Task
    minutes: float
    use: float | None = None

    @property
    def ended_at(self) -> Instant:
        return self.task.begins_at + 60 * self.minutes


class Foretold(StrEnum):
    """By what."""

    owner = "owner"  # the median of its last runs
    group = "group"  # the mean of its like, drawn to that of its class
    features = "features"  # a line through what all runs had in common


class Prediction(msgspec.Struct, frozen=True):
    """`error`: the mean of what this way was wrong by on runs that ended; `rival`: of the median of all runs before."""

    value: float
    by: Foretold
    samples: int
    error: float
    rival: float


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of one task: minutes from its beginning, mean use, minutes from now. None: nothing is foretold,
    and where all three are None `because` says why. `runs`: that are known, `own`: of its owner."""

    minutes: Prediction | None = None
    use: Prediction | None = None
    rest: Prediction | None = None
    runs: int = 0
    own: int = 0
    because: str = ""


class Preemption(StrEnum):
    """What speaks for it or against it."""

    WorthIt = "WorthIt"
    PriorityUnknown = "PriorityUnknown"
    PriorityNotHigher = "PriorityNotHigher"
    NotMovable = "NotMovable"
    RestUnknown = "RestUnknown"
    DurationUnknown = "DurationUnknown"
    NotShortEnough = "NotShortEnough"


class PreemptionAdvice(msgspec.Struct, frozen=True):
    """Advice, never an act."""

    reason: Preemption
    because: str

    @property
    def is_yes(self) -> bool:
        return self.reason is Preemption.WorthIt


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that waits for GPUs, or has some. `minutes`: that it will run, or that remain. `fixed`: why what runs may
    not be moved; "" = it may be."""

    namespace: str
    name: str
    resources: Mapping[str, int]
    priority: int | None
    minutes: Prediction | None = None
    node: str = ""
    owner: str = ""
    fixed: str = ""
    since: Instant = 0.0


class RoomAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one that waits. `counts`: how many of those who hold as much were told what; `named`: some of them,
    those first for whom it would be worth it."""

    incoming: Contender
    counts: Mapping[Preemption, int]
    named: tuple[tuple[Contender, PreemptionAdvice], ...]


class RoomAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: of all that wait, who comes first; `runs`: that are known, and why none are, if none are."""

    waiting: tuple[RoomAsked, ...]
    all_waiting: int
    runs: int
    because: str = ""
