"""Runs: what a workload's pods did from their beginning to their end, and what is expected of one that goes on.

In: the books, where every run that ended stands. Out: nouns of prediction and of advice on preemption.
Invariant: minutes and use are measured; what was not measured is None, never 0.
"""

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


class Preemption(StrEnum):
    """What speaks for it or against it."""

    WorthIt = "WorthIt"
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
