"""Pods of openb that come and go: as they did in life, or drawn so that the cluster is always asked for as much.

In: a trace that tells when its pods came and went. Out: a Flow for decide/packing/replay.py, the same by its seed.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide import packing
from fallow.model.units import Seconds
from fallow.sim.traces import openb
from fallow.sim.traces.published import TraceError


class Flow(msgspec.Struct, frozen=True, eq=False):
    """Who leaves just before which arrival, by number. The first `begun` stand there at the beginning."""

    pods: tuple[packing.PackingPod, ...]
    departures: Mapping[int, Sequence[int]]
    begun: int


def live(trace: openb.OpenbTrace) -> Flow:
    """The pods as they came and went in life."""
    lives = _find_lives(trace)
    order = np.argsort([created for created, _, _ in lives], kind="stable")
    begins, ends = (np.array([lives[i][which] for i in order]) for which in (0, 1))
    return Flow(tuple(lives[i][2] for i in order), _leave(begins, ends), 0)


def draw(trace: openb.OpenbTrace, seed: int, load: float, count: int) -> Flow:
    """`count` pods of the list at random, each for as long as it lived, at a rate that always asks for `load` times the
    GPUs.

    In life these pods asked for a hundredth of this cluster. Those who would stand there at any instant come first:
    long lives are the likelier to be met, and each has a part of its life behind it.
    """
    lives, rng = _find_lives(trace), np.random.default_rng(seed)
    life = np.array([max(ended - created, 1.0) for created, ended, _ in lives])
    held = np.array([pod.gpus * pod.milli for _, _, pod in lives]) * life
    capacity = packing.GPU * sum(node.gpus for node in trace.nodes.values())
    if not np.isfinite(life).all() or not held.any() or not capacity:
        raise TraceError(f"the trace {trace.name} does not tell for how long its pods held GPUs")
    rate = load * capacity / held.mean()
    there = rng.choice(len(lives), int(rate * life.mean()), p=life / life.sum())
    came, begins = rng.integers(len(lives), size=count), np.cumsum(rng.exponential(1 / rate, count))
    ends = np.concatenate([life[there] * rng.random(len(there)), begins + life[came]])
    pods = tuple(lives[i][2] for i in (*there, *came))
    return Flow(pods, _leave(np.concatenate([np.zeros(len(there)), begins]), ends), len(there))


def _find_lives(trace: openb.OpenbTrace) -> list[tuple[Seconds, Seconds, packing.PackingPod]]:
    """From when to when each pod was there; for ever, if it did not leave."""
    times = [
        (each.created, math.inf if each.deleted is None else each.deleted, each.pod)
        for each in trace.pods.values() if each.created is not None
    ]
    if not times:
        raise TraceError(f"the trace {trace.name} does not tell when its pods came and went")
    return times


def _leave(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> dict[int, list[int]]:
    """Who leaves just before which arrival, by number; at the soonest before the next one."""
    soonest = np.searchsorted(begins, np.maximum(ends, begins), side="left")
    before = np.maximum(soonest, np.arange(len(begins)) + 1)
    departures: dict[int, list[int]] = {}
    for number in np.flatnonzero(np.isfinite(ends)).tolist():
        departures.setdefault(int(before[number]), []).append(number)
    return departures
