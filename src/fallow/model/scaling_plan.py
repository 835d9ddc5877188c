"""What is decided of nodes that come and go: a verdict for every pod that waits and every node, and what to do.

Made by decide/scaling of a ScalingSight: a ScalingPlan, with a PolicyPlan for each policy: what it adds and lets go,
and why it does no more. How one node then leaves is leaving.py.
Invariant: every verdict has a sentence for people, and a word of a closed set for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from fallow.model.cluster import PodId
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine
from fallow.model.policies.scaling import NodeDriver, NodePool, ScalingPolicy
from fallow.model.scaling import DrainKind, GangRequest, InFlight, ScalingMemory, StockOut, WaitHold
from fallow.model.units import Instant


class Fit(StrEnum):
    """What a pod that waits means for nodes."""

    FitsNow = "FitsNow"
    FitsInFlight = "FitsInFlight"
    NeedsNode = "NeedsNode"
    NoPoolFits = "NoPoolFits"
    Held = "Held"  # see WaitHold
    CannotTell = "CannotTell"


class PodVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`where`: a node or a pool. `policy`: whose pools were tried."""

    pod: PodId
    fit: Fit
    because: str
    held: WaitHold | None = None
    policy: str = ""
    where: str = ""


class NodeStay(StrEnum):
    """Why a node stays, or what is done with it."""

    Needed = "Needed"
    Busy = "Busy"
    UseUnknown = "UseUnknown"
    NotLongUnneeded = "NotLongUnneeded"
    Unmovable = "Unmovable"
    NoRoomElsewhere = "NoRoomElsewhere"
    Kept = "Kept"
    Reserved = "Reserved"
    Prewarmed = "Prewarmed"
    Rests = "Rests"
    AtMinimum = "AtMinimum"
    DemandWaits = "DemandWaits"
    CoolingDown = "CoolingDown"
    Disruption = "Disruption"
    Halted = "Halted"
    CannotTell = "CannotTell"
    Cordoned = "Cordoned"  # by somebody else
    Releasing = "Releasing"  # it is drained, or would be
    Interrupted = "Interrupted"
    NotOurs = "NotOurs"  # no policy means it


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    policy: str
    stay: NodeStay
    because: str
    kind: DrainKind | None = None
    since: Instant | None = None  # unneeded since


class GrowReason(StrEnum):
    PendingPods = "PendingPods"
    QueueLong = "QueueLong"
    QueueSlow = "QueueSlow"
    HighUtilization = "HighUtilization"
    Forecast = "Forecast"
    SpotReplacement = "SpotReplacement"


class OtherPool(msgspec.Struct, frozen=True):
    """Where to go on if a pool has nothing: so many nodes of it do as well."""

    pool: NodePool
    count: int


class Grow(msgspec.Struct, frozen=True, kw_only=True):
    """So many more nodes of a pool. `others`: to try in the same cycle where this one is out of stock. `held`: GPUs of
    the policy that somebody has, where that these are all is the reason."""

    policy: str
    pool: NodePool
    tier: CapacityType
    count: int
    reason: GrowReason
    because: str
    pods: tuple[PodId, ...] = ()
    instance_type: str = ""
    price: float | None = None  # of one, an hour
    others: tuple[OtherPool, ...] = ()
    held: int | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Begin to drain a node, so that its machine can go."""

    policy: str
    node: str
    uid: str
    kind: DrainKind
    because: str
    moves: tuple[tuple[PodId, str], ...] = ()  # who would go where


class Brake(StrEnum):
    TooManyUnready = "TooManyUnready"
    MetricsJump = "MetricsJump"
    Window = "Window"
    ProviderFailing = "ProviderFailing"


class Blocked(StrEnum):
    """Why a policy does not do what it would."""

    Overlap = "Overlap"
    OwnedByOtherAutoscaler = "OwnedByOtherAutoscaler"
    ProviderUnavailable = "ProviderUnavailable"
    NoPoolFits = "NoPoolFits"
    LimitReached = "LimitReached"  # of Karpenter's NodePool: pods wait for it
    Invalid = "Invalid"
    Disabled = "Disabled"
    Unseen = "Unseen"  # pods, nodes, what budgets forbid or who drives are not seen


class Headroom(msgspec.Struct, frozen=True, kw_only=True):
    """What `driver` is asked to start ahead of demand: so many nodes of a pool, `since` when. `asks`: the GPUs of one,
    by resource as it will advertise them."""

    policy: str
    driver: NodeDriver
    pool: NodePool
    asks: Mapping[str, int]
    nodes: int
    since: Instant
    because: str


class GangRoom(msgspec.Struct, frozen=True):
    """So many nodes of a pool. `asks`: as in a Headroom."""

    pool: NodePool
    asks: Mapping[str, int]
    nodes: int


class GangAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that a gang needs at once, asked of cluster-autoscaler: so many of each pool. `request`: the one that
    stands already; None: it is to be made."""

    policy: str
    gang: str
    name: str
    rooms: tuple[GangRoom, ...] = ()
    request: GangRequest | None = None

    @property
    def nodes(self) -> int:
        return self.request.nodes if self.request is not None else sum(room.nodes for room in self.rooms)


class SpotAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What share of spot nodes would do, by how often they were taken back on a day. Shown, never applied."""

    share: float
    daily: float
    because: str


class DemandGuess(msgspec.Struct, frozen=True, kw_only=True):
    """`peak`: GPUs at the coming one. `model`, `error`: by which, and how far off it was lately. `ahead`: GPUs in each
    of the coming hours. `refused`: why nothing is started ahead of it; "": something is, or would be."""

    peak: float | None = None
    utilization: float | None = None
    nodes: int | None = None
    confidence: float | None = None
    busy_at: Instant | None = None
    model: str = ""
    error: float | None = None
    ahead: tuple[float, ...] = ()
    refused: str = ""


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Of one policy. `blocked`, `brakes`: with a sentence each. `desired`: nodes there should be. `use`: mean of its
    GPUs; None: not known. `acts`: False where this is only advice; `heeds`: nodes that end are emptied, whether or not
    their cloud answers. `strays`: machines that never became nodes and go. `there`: machines by group, those that were
    asked for and are still to be started included: from so many it grows.
    `wanted`: a pod that waits, by the node that is drained and that it fits. `stuck`: nodes that are drained whose pods
    have no place elsewhere by now, and why. `labels`: by node that we launched, those that it lacks. `started`: nodes
    started ahead of demand that do not say so yet, and until when they stay; `prewarmed`: those whose turn is over, and
    whether one came. `full_at`: as in the status, or None where somebody came since. `due`: when those who need a node
    will have waited long enough, where they have not."""

    policy: ScalingPolicy
    driver: NodeDriver = NodeDriver.direct
    acts: bool = False
    heeds: bool = False
    blocked: Mapping[Blocked, str] = {}
    brakes: Mapping[Brake, str] = {}
    grows: tuple[Grow, ...] = ()
    releases: tuple[Release, ...] = ()
    headroom: tuple[Headroom, ...] = ()
    gangs: tuple[GangAsk, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    arrived: tuple[InFlight, ...] = ()  # of those in status, what is there now
    late: tuple[InFlight, ...] = ()  # that never came
    strays: tuple[CloudMachine, ...] = ()
    there: Mapping[str, int] = {}
    wanted: Mapping[str, str] = {}
    stuck: Mapping[str, str] = {}
    labels: Mapping[str, Mapping[str, str]] = {}
    started: Mapping[str, Instant] = {}
    prewarmed: Mapping[str, bool] = {}
    stockouts: tuple[StockOut, ...] = ()
    guess: DemandGuess | None = None
    spot_advice: SpotAdvice | None = None
    nodes: int = 0
    by_tier: Mapping[CapacityType, int] = {}
    desired: int = 0
    pending: int = 0
    use: float | None = None
    full_at: int | None = None
    due: Instant | None = None
    cost: float | None = None  # of an hour of all its nodes; None: of one it is not known
    because: str = ""


class ScalingPlan(msgspec.Struct, frozen=True, kw_only=True):
    taken_at: Instant
    policies: tuple[PolicyPlan, ...] = ()
    pods: tuple[PodVerdict, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    memory: ScalingMemory = ScalingMemory()
    unseen: str = ""  # why nothing could be planned at all
