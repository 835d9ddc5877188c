"""A node that leaves, and the steps by which it does: drained by us, or taken back by its cloud.

In: a LeavingNode, read just before each step. Out: one LeavingStep or several, as decide/scaling finds them due and
act/leaving carries them out.
Invariant: a step says all that it takes; what of it was not done is found missing at the next look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from fallow.model.cluster import PodId
from fallow.model.policies.scaling import NodeDriver, ScalingPolicy
from fallow.model.scaling import DrainRecord, ScaledNode, ScaledPod, SpotRecord
from fallow.model.scaling_plan import Brake
from fallow.model.units import HOUR, Instant, Seconds


class LeavingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with everybody on it, read just before a step; `use` as it was last measured. `wanted`: a pod that waits
    and would fit here. `stuck`: why its pods would have no place elsewhere. `refused`: uids whose eviction was refused
    so far, `refused_at`: the last time. `blocked`: why an eviction can never be granted. `driver`: who removes the
    machine. `unlisted`: why its cloud cannot be told to end its machine (it lists none, or does not answer); "": it
    can. `is_gone`: its cloud was asked, and has it no more. `brakes`: those of the
    policy that hold, and why."""

    node: ScaledNode
    pods: tuple[ScaledPod, ...]
    policy: ScalingPolicy | None  # None: it is gone
    driver: NodeDriver = NodeDriver.direct
    wanted: str = ""
    stuck: str = ""
    refused: frozenset[str] = frozenset()
    refused_at: Instant | None = None
    blocked: str = ""
    unlisted: str = ""
    is_gone: bool = False
    brakes: Mapping[Brake, str] = {}


class BeginDrain(msgspec.Struct, frozen=True):
    """Record, cordon and taint in one patch."""

    record: DrainRecord


class BeginSpot(msgspec.Struct, frozen=True):
    """Record, cordon and taint in one patch; a record of a drain and its taint go with it."""

    record: SpotRecord


class EvictNow(msgspec.Struct, frozen=True):
    """By the Eviction API, with its uid. `grace` None: the pod's own."""

    pod: PodId
    grace: Seconds | None = None


class DeleteNow(msgspec.Struct, frozen=True):
    """The machine ends anyway, and a budget refused until the last moment."""

    pod: PodId
    grace: Seconds


class RemoveMachine(msgspec.Struct, frozen=True):
    """The record first, then the cloud; one that is told so again is no error."""

    record: DrainRecord


class DeleteNode(msgspec.Struct, frozen=True):
    """Its machine is gone, and its object stayed."""

    because: str


class UndoDrain(msgspec.Struct, frozen=True):
    """Taints and records go, and the cordon where it was ours; it then rests."""

    because: str
    uncordons: bool
    rests: Seconds = HOUR


class StayPut(msgspec.Struct, frozen=True):
    because: str


LeavingStep: TypeAlias = (
    BeginDrain | BeginSpot | EvictNow | DeleteNow | RemoveMachine | DeleteNode | UndoDrain | StayPut
)
