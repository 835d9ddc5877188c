"""What people ask for about sharing: GPUSharingPolicy (who shares a GPU, and how), GPUNodeConfig (how a node is cut).

As they are meant; how they are written is sharing_crd.py. Which policy holds for a pod is said by decide/sharing; what
becomes of a node, by its repartition.
Invariant: one that is wrong in any way says so in `invalid`, and then changes nothing.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from fallow.model.classes import WorkClass
from fallow.model.selectors import Selector
from fallow.model.units import Instant, Seconds


class Strategy(StrEnum):
    mig = "mig"
    mps = "mps"
    timeslicing = "timeslicing"
    exclusive = "exclusive"
    auto = "auto"


class SharingMode(StrEnum):
    audit = "audit"
    enforce = "enforce"


class Disruption(StrEnum):
    wait = "wait"
    evict = "evict"


class HurtGuard(msgspec.Struct, frozen=True, kw_only=True):
    """When sharing counts as having hurt somebody."""

    max_restarts: int = 2
    latency_query: str = ""
    max_latency_ratio: float = 1.25
    restarts_on_revert: bool = False


class SharingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`work`: empty = every class. `profile`: of MIG; "" = chosen by need. `slice_ms`: heeded where parts are given by
    claims. `active_threads`, `memory_limit`: neither NVIDIA's device plugin nor its DRA driver does that for several
    pods."""

    name: str
    uid: str = ""
    generation: int = 0
    created_at: Instant = 0.0
    strategy: Strategy
    mode: SharingMode = SharingMode.audit
    node_selector: Mapping[str, str] = {}
    namespace_selector: Selector = Selector()
    pod_selector: Selector = Selector()
    work: frozenset[WorkClass] = frozenset()
    priority: int = 0
    rollout_percent: int = 100
    profile: str = ""
    max_clients: int = 16
    active_threads: int = 100
    memory_limit: int | None = None  # MiB
    replicas: int = 4
    slice_ms: int = 100
    fairness: str = "roundrobin"
    guard: HurtGuard = HurtGuard()
    invalid: tuple[str, ...] = ()
    reverts_too_often: bool = False  # by our own status: it acts as audit
    status: Mapping[str, Any] = {}  # as we wrote it last

    @property
    def rank(self) -> tuple[int, Instant, str]:
        """Of several that match the lowest counts: high priority, then old, then by name."""
        return -self.priority, self.created_at, self.name

    @property
    def enforces(self) -> bool:
        return self.mode is SharingMode.enforce and not self.reverts_too_often and not self.invalid

    def selects(self, place: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """By the labels of a namespace and of a pod in it."""
        return self.namespace_selector.matches(place) and self.pod_selector.matches(labels)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one node is to be cut. `profiles`: of every GPU, one for each instance; () keeps the layout it has."""

    name: str
    uid: str = ""
    generation: int = 0
    created_at: Instant = 0.0
    node: str
    mode: SharingMode = SharingMode.audit
    mig: bool = False
    profiles: tuple[str, ...] = ()
    mig_config: str = ""
    mps_clients: int | None = None  # None = no MPS
    slicing_replicas: int | None = None  # None = no time-slicing
    disruption: Disruption = Disruption.wait
    drain_timeout: Seconds = 3600.0
    is_going: bool = False  # somebody deletes it
    has_finalizer: bool = False
    invalid: tuple[str, ...] = ()
    status: Mapping[str, Any] = {}  # as we wrote it last
