"""Which slots on which nodes are free: a scheduler small enough for a pretend cluster.

In: how many slots each node has and what sort they are. Out: slots for a pod, all on one node, or None. Slots are
numbered through the whole cluster, node after node.
Invariant: a slot is given to one at a time.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from fallow.model.usage import Bools, Indices

_MANY: Final = np.iinfo(np.int64).max


class FreeSlots:
    """`sorts`: of each node (mode, model). `crowds`: how many of its slots share a GPU that several pods are given;
    they are handed out as the device plugin does it, to the GPU that is shared least."""

    def __init__(self, sizes: Sequence[int], sorts: Sequence[tuple[str, str]], crowds: Sequence[int]) -> None:
        ends: list[int] = np.cumsum(sizes).tolist()
        self.firsts = [0, *ends][:-1]
        self.node_of: Indices = np.repeat(np.arange(len(sizes)), sizes)
        self._sorts = list(sorts)
        firsts = zip(self.firsts, sizes, crowds, strict=True)
        self._free = [[first + place for place in _spread(size, crowd)] for first, size, crowd in firsts]
        self._counts = np.array(sizes, np.int64)
        self._open = np.ones(len(sizes), np.bool_)
        self._suiting: dict[tuple[str, str], Bools] = {}

    def set_open(self, node: int, is_open: bool) -> None:
        """A closed node is given nobody new."""
        self._open[node] = is_open

    def add(self, size: int, sort: tuple[str, str], crowd: int) -> int:
        """One more node, after all others; its first slot."""
        self._free.append([])
        self._counts, self._open = np.append(self._counts, 0), np.append(self._open, True)
        self._sorts.append(sort)
        return self.lay_anew(len(self._free) - 1, size, sort, crowd)

    def lay_anew(self, node: int, size: int, sort: tuple[str, str], crowd: int) -> int:
        """A node that nobody is on has other slots from now on, numbered after all others; the first of them."""
        first = len(self.node_of)
        self.node_of = np.append(self.node_of, np.full(size, node))
        self._free[node], self._counts[node] = [first + place for place in _spread(size, crowd)], size
        self._sorts[node] = sort
        self._suiting.clear()
        return first

    def take(self, mode: str, model: str, count: int) -> tuple[int, ...] | None:
        """On the fullest node that still has room. model "" = any."""
        fits = self._suits(mode, model) & self._open & (self._counts >= count)
        if not fits.any():
            return None
        return self.take_on(int(np.where(fits, self._counts, _MANY).argmin()), count)

    def take_on(self, node: int, count: int) -> tuple[int, ...] | None:
        """On this one."""
        if self._counts[node] < count:
            return None
        self._counts[node] -= count
        return tuple(self._free[node].pop() for _ in range(count))

    def give_back(self, slots: Iterable[int]) -> None:
        for slot in slots:
            node = int(self.node_of[slot])
            self._free[node].append(slot)
            self._counts[node] += 1

    def _suits(self, mode: str, model: str) -> Bools:
        if (mode, model) not in self._suiting:
            suits = [its_mode == mode and model in ("", its_model) for its_mode, its_model in self._sorts]
            self._suiting[mode, model] = np.array(suits, np.bool_)
        return self._suiting[mode, model]


def _spread(size: int, crowd: int) -> list[int]:
    """In the order in which they are given, from the end: one of each GPU, then the next of each."""
    return sorted(range(size), key=lambda place: (place % crowd, place), reverse=True)
