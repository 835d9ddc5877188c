"""What people ask for about nodes: AutoscalingPolicy, which pools may grow and shrink, how far, and who drives them.

As it is meant; how it is written is scaling_crd.py. Utilisation is 0 to 1.
Invariant: one that is wrong in any way says so in `invalid`, and then changes nothing.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model.cluster import Ref
from fallow.model.cost import CapacityType
from fallow.model.policies.sharing import Strategy
from fallow.model.schedule import Schedule
from fallow.model.units import MINUTE, Instant, Seconds

TIERS: Final = (CapacityType.spot, CapacityType.on_demand, CapacityType.reserved)  # ways of paying, as they are tried


class ScalingMode(StrEnum):
    recommend = "recommend"
    act = "act"


class MachineProvider(StrEnum):
    aws = "aws"
    gcp = "gcp"
    azure = "azure"
    custom = "custom"


class NodeDriver(StrEnum):
    auto = "auto"
    karpenter = "karpenter"
    cluster_autoscaler = "cluster-autoscaler"
    direct = "direct"


class ShrinkOrder(StrEnum):
    price = "price"
    spot_first = "spot-first"


class NodeLimit(msgspec.Struct, frozen=True):
    """So many nodes, or such a part of them, rounded up."""

    count: int = 0
    percent: int | None = None

    def of(self, nodes: int) -> int:
        return self.count if self.percent is None else math.ceil(nodes * self.percent / 100)


class DisruptionWindow(msgspec.Struct, frozen=True):
    """From each time of its schedule on, so long, so many nodes may go; 0: none."""

    schedule: Schedule
    length: Seconds
    most: NodeLimit

    def holds(self, now: Instant) -> bool:
        return now - self.schedule.latest(now) < self.length


class PoolSharing(msgspec.Struct, frozen=True):
    """How the GPUs of a new node are shared. `profiles`: of MIG, one for each instance of a GPU."""

    strategy: Strategy
    replicas: int = 1
    profiles: tuple[str, ...] = ()


class PoolTaint(msgspec.Struct, frozen=True):
    key: str
    value: str
    effect: str


class NodePool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind. What is None is learned from a node that lives, the provider or the price book."""

    name: str
    tier: CapacityType
    least: int = 0
    most: int = 100
    gpu_type: str = ""
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    spot_share: float = 0.6  # of a group that mixes
    priority: int = 0
    releases_reserved: bool = False
    labels: Mapping[str, str] = {}
    taints: tuple[PoolTaint, ...] = ()
    group: str = ""
    gpus: int | None = None
    cpu: int | None = None  # cores
    memory: int | None = None  # MiB
    sharing: PoolSharing | None = None
    price: float | None = None  # of an hour of the whole node


class Prewarming(msgspec.Struct, frozen=True, kw_only=True):
    horizon: Seconds = 60 * MINUTE
    ahead: Seconds = 30 * MINUTE
    least_confidence: float = 0.7
    release: Seconds = 60 * MINUTE


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`prewarming`: None where nothing is started ahead of time. `node_selector`: none = all nodes with GPUs."""

    name: str
    uid: str = ""
    generation: int = 0
    created_at: Instant = 0.0
    enabled: bool = True
    mode: ScalingMode = ScalingMode.recommend
    provider: MachineProvider = MachineProvider.custom
    driver: NodeDriver = NodeDriver.auto
    grow_above: float = 0.8
    shrink_below: float = 0.2
    grow_rest: Seconds = 180.0
    shrink_rest: Seconds = 600.0
    pending_patience: Seconds = 120.0
    queue_length: int = 10
    queue_wait: Seconds = 300.0
    least: int = 0
    most: int = 100
    spot: bool = True
    spot_share: float = 0.6
    tiers: tuple[CapacityType, ...] = TIERS
    prewarming: Prewarming | None = None
    node_selector: Mapping[str, str] = {}
    unneeded: Seconds = 600.0
    disruption: NodeLimit = NodeLimit(percent=10)
    windows: tuple[DisruptionWindow, ...] = ()
    most_unready: int = 45  # percent
    drain_patience: Seconds = 900.0
    provision_patience: Seconds = 900.0
    shrink_order: ShrinkOrder = ShrinkOrder.price
    pools: tuple[NodePool, ...] = ()
    invalid: tuple[str, ...] = ()
    status: Mapping[str, Any] = {}  # as we wrote it last

    @property
    def acts(self) -> bool:
        return self.enabled and self.mode is ScalingMode.act and not self.invalid

    @property
    def ref(self) -> Ref:
        return Ref(names.GROUP, names.POLICY_VERSION, names.SCALING_POLICY_KIND, "", self.name, self.uid)

    @property
    def rank(self) -> tuple[Instant, str]:
        """Of several that overlap the lowest rules: the oldest, then by name."""
        return self.created_at, self.name

    def find_disruption(self, now: Instant) -> NodeLimit:
        """How many of a pool's nodes may go: a window's word where one is open, the strictest of several."""
        open_now = [window.most for window in self.windows if window.holds(now)]
        return min(open_now, key=lambda most: most.of(100)) if open_now else self.disruption
