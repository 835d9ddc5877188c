"""Nodes that come and go, as the brain sees them: who waits, which nodes there are, what is kept between two cycles.

In: what the eyes found at one instant (a ScalingSight); ScalingMemory, handed back from the cycle before. What is
decided of it is scaling_plan.py. A node that is drained carries its record (`DrainRecord`), one whose cloud takes it
back a SpotRecord: what was meant is on the object before it is done.
Invariant: what is not known is None or Unseen, and then nothing is removed. Losing the memory makes us slower only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, TypeVar

import msgspec

from fallow.model.classes import WorkClass
from fallow.model.cluster import Owner, PodId
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine, MachineGroup, MachineShape, WantOfMachines
from fallow.model.policies.scaling import PoolTaint, ScalingPolicy
from fallow.model.seen import ABSENT, Input, Register
from fallow.model.units import Instant, Seconds

T = TypeVar("T")

# ---- what is seen ----------------------------------------------------------------------------------------------------


class EvictionRank(StrEnum):
    """In which order pods go from a node that ends."""

    low = "low"
    medium = "medium"
    high = "high"


class WaitHold(StrEnum):
    """Why a pod that waits is nobody's demand, whatever fits."""

    SchedulingGated = "SchedulingGated"
    Nominated = "Nominated"  # the scheduler has chosen a node and makes room there
    Queued = "Queued"  # a Kueue Workload that is not admitted
    VolumeUnbound = "VolumeUnbound"  # the only reason that it waits
    BeingDeleted = "BeingDeleted"
    NotJudged = "NotJudged"  # the scheduler has not said yet that it fits nowhere
    Placeholder = "Placeholder"  # our own headroom


class NodeToleration(msgspec.Struct, frozen=True, gc=False):
    """`key` "": all. `operator`: Exists or Equal."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class ScaledPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that runs or waits, as far as nodes that come and go concern it. `asks`: by resource as nodes advertise it
    (`cpu` in milli-cores, `memory` in MiB, GPU resources in pieces). `unclear`: why it cannot be said what it takes or
    where it fits; `fixed`: why it must not be moved; "": nothing speaks against it. `apart`: it only goes to a node on
    which none of its like is, so that an empty one always does."""

    id: PodId
    node: str = ""
    asks: Mapping[str, int]
    unclear: str = ""
    apart: bool = False
    fixed: str = ""
    held: WaitHold | None = None
    stays: bool = False  # it belongs to its node: a DaemonSet's, or a static pod
    is_going: bool = False
    is_ready: bool = False
    owner: Owner | None = None
    created_at: Instant = 0.0
    waits_since: Instant | None = None  # unschedulable since; None: it does not wait, or nobody said since when
    priority: int = 0
    work: WorkClass = WorkClass.batch
    replicas: int | None = None  # of its workload; None: not known
    spot_ok: bool | None = None  # as its people said; None: they did not
    rank: EvictionRank = EvictionRank.medium
    grace: Seconds = 30.0
    node_selector: Mapping[str, str] = {}
    affinity: Any = None  # required node affinity, as the API has it
    tolerations: tuple[NodeToleration, ...] = ()
    gang: str = ""  # namespace, kind and name of those that only start together; "": it starts alone
    gang_size: int | None = None  # as its people said; None: they did not


class DrainKind(StrEnum):
    empty = "empty"
    squatted = "squatted"  # no GPU pod, and those without fit elsewhere
    under_used = "under-used"
    failed = "failed"  # it never became Ready


class DrainRecord(msgspec.Struct, frozen=True, rename="camel"):
    """On the node in the very patch that cordons it. `removing`: from when on its cloud is told to end its machine,
    `asked`: when last; `is_told`: it has heard it, and that the node goes is in the books."""

    v: Literal[1]
    policy: str
    since: Instant
    reason: DrainKind
    because: str
    cordoned_by_us: bool
    refused: str = ""  # what an eviction was last answered
    removing: Instant | None = None
    asked: Instant | None = None
    is_told: bool = False


class SpotRecord(msgspec.Struct, frozen=True, rename="camel"):
    """On the node in the very patch that cordons it: its cloud takes it back."""

    v: Literal[1]
    policy: str
    since: Instant
    ends_at: Instant | None  # None: a recommendation
    cordoned_by_us: bool


class ScaledNode(msgspec.Struct, frozen=True, kw_only=True):
    """`pool`: of the policy, by name; "": none claims it. `has`: allocatable, by resource. `use`: mean of all its GPUs
    over five minutes, 0 to 1. `kept`: why it must not be released; `twin`: why its machine may be another node's.
    `is_broken`: there is a record, and it cannot be read. `is_emptied`: consolidation has emptied and cordoned it, for
    whoever takes it. `driver_pool`: the Karpenter NodePool that it is of. `prewarmed_until`: it was started ahead of
    demand, and nobody has come yet; `was_prewarmed`: it was, whatever became of it."""

    name: str
    uid: str
    version: str
    provider_id: str = ""
    labels: Mapping[str, str] = {}
    taints: tuple[PoolTaint, ...] = ()
    has: Mapping[str, int]
    gpus: int | None = None
    is_ready: bool = False
    is_cordoned: bool = False
    is_going: bool = False
    created_at: Instant
    tier: CapacityType = CapacityType.on_demand
    instance_type: str = ""
    zone: str = ""
    pool: str = ""
    driver_pool: str = ""
    price: float | None = None
    use: float | None = None
    kept: str = ""
    twin: str = ""
    drain: DrainRecord | None = None
    spot: SpotRecord | None = None
    is_broken: bool = False
    is_emptied: bool = False
    warned_at: Instant | None = None  # spot-interruption-warning, as its watch wrote it
    ends_at: Instant | None = None  # spot-termination-time
    rests_until: Instant | None = None  # after a drain that was undone
    prewarmed_until: Instant | None = None
    was_prewarmed: bool = False


class SpendLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What an exceeded budget forbids, and to whose pods (uids)."""

    budget: str
    pods: frozenset[str]
    closed: frozenset[CapacityType] = frozenset()
    most_spot_nodes: int | None = None
    prefers_on_demand: bool = False


class PoolLimit(msgspec.Struct, frozen=True):
    """Of a NodePool of Karpenter: what it has and may have of a resource, in cores, bytes or pieces; said in words."""

    resource: str
    used: float
    most: float
    said: str


class GangState(StrEnum):
    """What became of a request, as its conditions say."""

    asked = "Asked"  # nobody has answered
    accepted = "Accepted"
    provisioned = "Provisioned"
    expired = "BookingExpired"  # the nodes were there, and are no longer kept
    failed = "Failed"


class GangRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A ProvisioningRequest of ours, as it stands."""

    name: str
    uid: str
    version: str
    policy: str
    gang: str
    nodes: int
    since: Instant
    state: GangState = GangState.asked
    because: str = ""


class DriversSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Who else moves machines here. `limits`: of Karpenter's NodePools. `gangs`: requests of ours, by name."""

    karpenter: bool = False
    cluster_autoscaler: bool = False
    buffers: str = ""  # the version of CapacityBuffer that is served; "": none
    requests: bool = False  # ProvisioningRequest is served
    limits: Mapping[str, tuple[PoolLimit, ...]] = {}
    gangs: Mapping[str, GangRequest] = {}


class DemandPast(msgspec.Struct, frozen=True, kw_only=True):
    """Hourly means of GPUs in use and waited for, of one policy; nan where nobody looked. `ends_at`: of the last."""

    ends_at: Instant
    hours: tuple[float, ...]


class ScalingSight(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: all that run or wait. `nodes`: all. `groups`: by policy. `machines`: by policy, of groups of its pools.
    `shapes`: what a machine type has, by its name, where anybody knows. `prices`: of an hour, by machine type and tier.
    `wants`: what clouds said they could not give lately. `measured`: why use is not known anywhere; "": it may be.
    `currency`: of all prices."""

    taken_at: Instant
    policies: Input[tuple[ScalingPolicy, ...]]
    pods: Input[tuple[ScaledPod, ...]]
    nodes: Input[tuple[ScaledNode, ...]]
    drivers: Input[DriversSeen]
    groups: Mapping[str, Input[tuple[MachineGroup, ...]]] = {}
    machines: Mapping[str, Input[tuple[CloudMachine, ...]]] = {}
    wants: tuple[WantOfMachines, ...] = ()
    shapes: Register[MachineShape] = Register({})
    prices: Mapping[tuple[str, CapacityType], float] = {}
    limits: Input[tuple[SpendLimit, ...]] = ABSENT
    past: Mapping[str, DemandPast] = {}
    measured: str = ""
    currency: str = "USD"


# ---- what is kept, between cycles and in the policy's status ---------------------------------------------------------


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that were asked for and are no nodes yet. In status first; `base`: machines that its group had then, or
    was still to start. `machine`: the one that is meant, where nobody asked for it (a group replaced one that went) or
    it `is_late` and must go."""

    pool: str
    tier: CapacityType
    count: int
    base: int
    token: str
    since: Instant
    instance_type: str = ""
    zone: str = ""
    is_prewarm: bool = False
    machine: str = ""
    is_late: bool = False


class StockOut(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    tier: CapacityType
    until: Instant
    failures: int
    instance_type: str = ""
    zone: str = ""


class SpotRuns(msgspec.Struct, frozen=True, kw_only=True):
    """How long spot nodes ran since, and how many of them were taken back."""

    since: Instant
    node_hours: int = 0
    interruptions: int = 0


class RoomAhead(msgspec.Struct, frozen=True, kw_only=True):
    """Headroom that was asked for, as the status has it."""

    pool: str
    nodes: int
    since: Instant


class ScalingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`unneeded`: nodes by uid, since when nobody needs them. `under_used`: share of nodes in the cycle before.
    `calm`: cycles since a jump of the measurements. `busy`: policies by name, since when all their GPUs are.
    `taken_at`: of the look it is of."""

    taken_at: Instant | None = None
    unneeded: Mapping[str, Instant] = {}
    under_used: Mapping[str, float] = {}
    calm: Mapping[str, int] = {}
    busy: Mapping[str, Instant] = {}
    failures: Mapping[str, tuple[int, Instant]] = {}  # of the provider, in a row, and the last
    unanswered: Mapping[str, tuple[int, Instant]] = {}  # looks at what it has, in the same way


def read_drain(text: str | None) -> DrainRecord | None:
    """None: there is none that can be read."""
    return _read(text, DrainRecord)


def read_spot(text: str | None) -> SpotRecord | None:
    return _read(text, SpotRecord)


def _read(text: str | None, shape: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=shape) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def write(record: DrainRecord | SpotRecord) -> str:
    return msgspec.json.encode(record).decode()
