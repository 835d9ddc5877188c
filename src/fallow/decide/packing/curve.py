"""A trace from beginning to end: pods arrive in order, what does not fit is dropped; the curve says how full GPUs got.

In: nodes, arrivals, a prepared policy, the tie order. Out: a Curve: GPU milli allocated after each arrival, against GPU
milli that arrived. Where departures are given, pods leave again: `departures[i]` are the arrivals, by number, that
leave just before arrival i.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing.packer import Packer, PackingPolicy, Refusal
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod, Placement, Room


class Curve(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    policy: str
    arrived: Ints  # GPU milli, after each arrival
    allocated: Ints
    capacity: int  # GPU milli
    placements: tuple[Placement | None, ...]  # of each arrival
    refused: dict[Refusal, int]
    room: Room  # at the end

    def at(self, percent: int) -> float | None:
        """Allocated GPU % where that many % of the GPUs had arrived, the mean over `find_near`; None after the end."""
        if not self.capacity:
            return None
        near = find_near(self.arrived, self.capacity, percent)
        return round(float(np.round(self.allocated[near] * 100 / self.capacity, 2).mean()), 2) if near.any() else None

    def idle_gpus(self, percent: int) -> float | None:
        """GPUs' worth of milli that nobody holds at that point."""
        share = self.at(percent)
        return None if share is None else (100 - share) * self.capacity / GPU / 100


def find_near(arrived: Ints, capacity: int, percent: int) -> NDArray[np.bool_]:
    """The arrivals that round to that percent of the cluster's GPUs, or to it and its neighbours where none does."""
    rounded = np.rint(arrived * 100 / capacity)
    near: NDArray[np.bool_] = rounded == percent
    return near if near.any() else np.abs(rounded - percent) <= 1


def replay(
    nodes: Nodes, pods: Sequence[PackingPod], policy: PackingPolicy, order: Ints, *,
    departures: Mapping[int, Sequence[int]] | None = None, tell: Callable[[int], None] | None = None,
) -> Curve:
    """`tell` hears the number of every arrival, for a progress bar."""
    packer, leaving = Packer(nodes, policy, order), departures or {}
    placements: list[Placement | None] = []
    allocated = np.zeros(len(pods), np.int64)
    for i, pod in enumerate(pods):
        for gone in leaving.get(i, ()):
            if placement := placements[gone]:
                packer.room.remove(pods[gone], placement)
        placements.append(packer.arrive(pod))
        allocated[i] = packer.room.allocated
        if tell:
            tell(i)
    return Curve(
        policy=policy.name, arrived=add_up(pods), allocated=allocated, capacity=nodes.capacity,
        placements=tuple(placements), refused=dict(packer.refused), room=packer.room,
    )


def add_up(pods: Sequence[PackingPod]) -> Ints:
    """GPU milli asked for, by each pod and all before it."""
    return np.cumsum([pod.gpu_milli for pod in pods], dtype=np.int64)


def cut_at(pods: Sequence[PackingPod], milli: int) -> Sequence[PackingPod]:
    """The arrivals until they asked for that much GPU, the one that crosses it not included."""
    return pods[: int(np.searchsorted(add_up(pods), milli, side="right"))]
