"""One GPU through time: since when it is there and at which rate, who held which part of it, whose that was and in
which state; and the intervals that were made of it.

Facts carry the second from which on they hold. They may come late and in any order: what follows from them is made anew
from the first second on that differs (pieces.py).
"""

import bisect
from collections.abc import Callable
from fractions import Fraction
from typing import Final, Generic, TypeVar

import msgspec

from fallow.model.cost import WHOLE, CostKey, Interval, Micro, Rate, Second, SpendState

T = TypeVar("T")
NOBODY: Final = ""
WHOEVER: Final = "*"


def invent(node: str, number: int) -> str:
    """A name of our own for a GPU that nobody named yet, such as no driver gives."""
    return f"{node}#{number}"


def is_invented(gpu: str) -> bool:
    return "#" in gpu


class Versions(Generic[T]):
    """What holds from which second on; before the first of them nothing does."""

    __slots__ = ("since", "values")

    def __init__(self, since: Second, value: T) -> None:
        self.since, self.values = [since], [value]

    def at(self, second: Second) -> T:
        if second >= self.since[-1]:  # nearly always
            return self.values[-1]
        return self.values[max(0, bisect.bisect_right(self.since, second) - 1)]

    @property
    def last(self) -> T:
        return self.values[-1]

    def amend(self, since: Second, change: Callable[[T], T]) -> Second | None:
        """Change all that holds from then on; the first second that differs, None = nothing does."""
        at = bisect.bisect_left(self.since, since)
        if at and (at == len(self.since) or self.since[at] != since):
            self.since.insert(at, since)
            self.values.insert(at, self.values[at - 1])
        first = None
        for index in range(at, len(self.values)):
            changed = change(self.values[index])
            if changed != self.values[index]:
                first = self.since[index] if first is None else first
                self.values[index] = changed
        self._join(at)
        return first

    def _join(self, at: int) -> None:
        """One version where two that follow each other are equal."""
        for index in range(len(self.values) - 1, max(0, at - 1), -1):
            if self.values[index] == self.values[index - 1]:
                del self.since[index], self.values[index]

    def forget_before(self, second: Second) -> None:
        gone = bisect.bisect_right(self.since, second) - 1
        if gone > 0:
            del self.since[:gone], self.values[:gone]


class Face(msgspec.Struct, frozen=True, gc=False):
    """All about a Holding that is no time. `low`, `high`: where in the GPU its part lies, where that is fixed."""

    key: CostKey
    state: SpendState
    share: Micro = WHOLE
    low: Fraction | None = None
    high: Fraction | None = None
    ack_id: str = ""


class Ground(msgspec.Struct, frozen=True, gc=False):
    """What is true of a GPU whoever holds it. `is_counted`: all GPUs of its node are known, so that what nobody holds
    is unallocated; else nobody can tell."""

    key: CostKey
    rate: Rate | None
    is_counted: bool = True


class Holding:
    """A pod's part of a GPU. `end` None: it goes on. `means`: the mean use of each hour, as far as it was measured."""

    __slots__ = ("begin", "end", "faces", "gpu", "means", "pod_name", "pod_uid", "slot")

    def __init__(
        self, gpu: str, slot: str, pod_uid: str, pod_name: str, begin: Second, face: Face, end: Second | None = None
    ) -> None:
        self.gpu, self.slot, self.pod_uid, self.pod_name = gpu, slot, pod_uid, pod_name
        self.begin, self.end, self.faces = begin, end, Versions(begin, face)
        self.means: dict[Second, HourMean] = {}

    def split(self, at: Second) -> "Holding":
        """Cut in two: the part before is given back, this one goes on from there."""
        before = Holding(self.gpu, self.slot, self.pod_uid, self.pod_name, self.begin, self.faces.at(self.begin), at)
        before.faces.since, before.faces.values = list(self.faces.since), list(self.faces.values)
        before.means, self.begin = dict(self.means), at
        self.faces.forget_before(at)
        self.faces.since[0] = at
        return before

    def covers(self, second: Second) -> bool:
        return self.begin <= second and (self.end is None or second < self.end)

    def overlaps(self, begin: Second, end: Second | None) -> bool:
        return (self.end is None or begin < self.end) and (end is None or self.begin < end)


class HourMean(msgspec.Struct, frozen=True, gc=False):
    """`is_final`: of the whole hour, with the idle part of it; else what the latest look showed of what works."""

    use: Micro
    is_final: bool = False


class Gpu:
    """One GPU through time. `pieces` are the intervals given out, the oldest first."""

    __slots__ = ("begin", "changed", "end", "energy", "grounds", "holdings", "name", "pieces")

    def __init__(self, name: str, begin: Second, ground: Ground) -> None:
        self.name, self.begin = name, begin
        self.end: Second | None = None
        self.grounds, self.holdings = Versions(begin, ground), list[Holding]()
        self.pieces: list[Interval] = []
        self.energy: dict[Second, dict[str, int]] = {}  # by hour, then by pod, WHOEVER or NOBODY; mJ
        self.changed: Second | None = begin

    def touch(self, since: Second | None) -> None:
        if since is not None:
            self.changed = since if self.changed is None else min(since, self.changed)
