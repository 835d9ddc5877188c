"""How a GPU may be cut by MIG, and where on which GPU an instance strands the least.

In: profiles of a model (model/gpus.py), layouts by name, what is free on GPUs, the demand for profiles. Out: whether a
layout is legal and if not why, and a Spot: which GPU, at which memory slice.
A legal layout: every instance at a start of its profile, no memory slice taken twice, compute slices enough, no profile
more often than it may be. What is free on a GPU is (mask of memory slices, number of compute slices): 256 masks on a
GPU of eight slices, so every score is looked up in a table made once per model and demand. Scores are whole numbers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fallow.decide.packing.room import Ints
from fallow.model.gpus import Mig, Model, Profile


class Slices(msgspec.Struct, frozen=True):
    """What is free on a GPU. Bit i of `mask` is memory slice i."""

    mask: int
    compute: int

    def take(self, profile: Profile, start: int) -> "Slices":
        """Raises ValueError, and changes nothing, where it does not fit."""
        if start not in profile.starts or not self.has_room(profile, start):
            free = f"{self.mask:#b} and {self.compute} compute"
            raise ValueError(f"{profile.name} does not fit at memory slice {start}: free are {free}")
        return Slices(self.mask & ~_bits(profile, start), self.compute - profile.compute)

    def give(self, profile: Profile, start: int) -> "Slices":
        """The exact opposite of `take`. Raises ValueError where the instance is not there."""
        if self.mask & _bits(profile, start):
            raise ValueError(f"{profile.name} does not stand at memory slice {start}: free are {self.mask:#b}")
        return Slices(self.mask | _bits(profile, start), self.compute + profile.compute)

    def has_room(self, profile: Profile, start: int) -> bool:
        bits = _bits(profile, start)
        return self.mask & bits == bits and self.compute >= profile.compute


def _bits(profile: Profile, start: int) -> int:
    return ((1 << profile.memory) - 1) << start


def empty(mig: Mig) -> Slices:
    return Slices((1 << mig.memory) - 1, mig.compute)


class IllegalLayout(msgspec.Struct, frozen=True):
    """A layout that this GPU cannot have, and why, in one sentence."""

    because: str


def judge(layout: Sequence[str], model: Model) -> IllegalLayout | None:
    """None if the layout (one name per instance, of one GPU) is legal. The empty one is: nothing stands there."""
    shown = f"[{','.join(layout)}]"
    if model.mig is None:
        return IllegalLayout(f"{shown} cannot be laid out: no MIG profiles of {model.name} are known")
    found = {name: model.mig.find(name) for name in layout}
    unknown = [name for name, profile in found.items() if profile is None]
    if unknown:
        why = f"it has no profile {unknown[0]}; there are {', '.join(profile.name for profile in model.mig.profiles)}"
        return IllegalLayout(f"{shown} is no layout of {model.name}: {why}")
    fault = _find_fault([profile for name in layout if (profile := found[name])], model.mig)
    return IllegalLayout(f"{shown} is no legal layout of {model.name}: {fault}") if fault else None


def _find_fault(profiles: Sequence[Profile], mig: Mig) -> str:
    for profile, count in Counter(profiles).items():
        if count > profile.most:
            return f"{profile.name} stands {count} times, {profile.most} at most"
    compute, memory = sum(profile.compute for profile in profiles), sum(profile.memory for profile in profiles)
    if compute > mig.compute:
        return f"it takes {compute} compute slices of {mig.compute}"
    if memory > mig.memory:
        return f"it takes {memory} memory slices of {mig.memory}"
    return "" if _can_stand(profiles, empty(mig)) else "no starts leave every instance memory slices of its own"


def _can_stand(profiles: Sequence[Profile], free: Slices) -> bool:
    """Is there a start for each? The large ones first, they have least choice."""
    if not profiles:
        return True
    first, *rest = sorted(profiles, key=lambda profile: (-profile.memory, len(profile.starts), profile.name))
    starts = (start for start in first.starts if free.has_room(first, start))
    return any(_can_stand(rest, free.take(first, start)) for start in starts)


class Spot(msgspec.Struct, frozen=True):
    gpu: int
    start: int


class SliceScores:
    """The scores of one model under one demand.

    Fragmentation of a GPU, F = sum over profiles k of p_k * (free memory slices - slices that k could still use): free,
    and of no use to what is asked for. An instance goes where F falls most; among equals to the largest start, then by
    tie order.
    """

    def __init__(self, mig: Mig, demand: Mapping[str, int] | None = None) -> None:
        """`demand`: how often each profile is asked for; without it all alike. What is not known weighs nothing."""
        weights = [(demand or {}).get(profile.name, 0) for profile in mig.profiles]
        weights = weights if any(weights) else [1] * len(mig.profiles)
        masks, compute = range(1 << mig.memory), np.arange(mig.compute + 1)
        free = np.array([mask.bit_count() for mask in masks], np.int64)[:, None]
        self._table: Ints = np.zeros((len(masks), len(compute)), np.int64)  # F by (mask, compute)
        for profile, weight in zip(mig.profiles, weights, strict=True):
            fitting = np.array([_count(profile, mask) for mask in masks], np.int64)[:, None]
            self._table += weight * (free - profile.memory * np.minimum(fitting, compute // profile.compute))

    def fragmentation(self, free: Slices) -> int:
        """In memory slices times demand."""
        return int(self._table[free.mask, free.compute])

    def place(self, gpus: Sequence[Slices], profile: Profile, order: Sequence[int] | None = None) -> Spot | None:
        """`order`: a rank per GPU; without it the first goes first. None where there is no room."""
        ranks = order if order is not None else range(len(gpus))
        found = [
            (self.fragmentation(free) - self.fragmentation(free.take(profile, start)), start, -ranks[gpu], gpu)
            for gpu, free in enumerate(gpus) for start in profile.starts if free.has_room(profile, start)
        ]
        if not found:
            return None
        _, start, _, gpu = max(found)
        return Spot(gpu, start)


def _count(profile: Profile, mask: int) -> int:
    """Most instances that fit side by side: starts are a profile's length apart or closer, so from the left is best."""
    count = 0
    for start in profile.starts:
        bits = _bits(profile, start)
        if count < profile.most and mask & bits == bits:
            mask &= ~bits
            count += 1
    return count
