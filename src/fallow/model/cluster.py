"""What there is: pods that hold GPUs, the nodes they run on, the workloads they belong to, at one instant.

The eyes build these from the API server's words; the brain only reads them. What is None was not known, never 0.
Whether anything changed since an earlier Snapshot is told by its `version`, never by comparing objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from fallow.model import capacity, cost, seen, usage
from fallow.model.long_memory import Freeze, LongMemory
from fallow.model.policies import idle
from fallow.model.units import Instant


class Owner(msgspec.Struct, frozen=True, gc=False):
    """A controller reference as it stands on an object, or the object it names."""

    group: str
    version: str
    kind: str
    name: str
    uid: str


class Ref(msgspec.Struct, frozen=True, gc=False):
    """One object in the cluster, by everything that identifies it."""

    group: str
    version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def short(self) -> str:
        """`Deployment/llm`, as people type it."""
        return f"{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.kind})"


def node_ref(name: str, uid: str) -> Ref:
    return Ref("", "v1", "Node", "", name, uid)


class ClaimedGpu(msgspec.Struct, frozen=True, gc=False):
    """A device that a ResourceClaim was given. `memory`: what of it, in MiB, where it is given in parts; None = all.
    `profile`: of the MIG instance that it is. `is_shared`: it may go to further claims."""

    pool: str
    name: str
    memory: int | None = None
    profile: str = ""
    is_shared: bool = False


class PodId(NamedTuple):
    """A pod, by all that tells it from others."""

    namespace: str
    name: str
    uid: str


class Pod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that holds, or asks for, GPUs; where capacity is counted, any pod. All else about it is forgotten."""

    namespace: str
    name: str
    uid: str
    node: str  # "" while unscheduled
    phase: str
    terminating: bool
    owner: Owner | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]  # ours and the few others' in names.py; nothing else is kept
    resources: Mapping[str, int]  # GPU resource name -> count, as the scheduler adds up containers and init containers
    claims: tuple[str, ...]  # names of the ResourceClaims it uses
    claimed: int | None  # GPUs allocated by those claims; None = a claim could not be seen
    created_at: Instant
    started_at: Instant | None  # latest start of a GPU container; None while any of them is not running
    ready: bool
    ready_since: Instant | None
    ip: str
    static: bool  # a mirror pod of the kubelet
    node_selector: Mapping[str, str]
    affinity: Any  # required node affinity terms of a pod that waits; None otherwise
    unschedulable_since: Instant | None
    needs: capacity.Needs = capacity.NOT_COUNTED
    bound_at: Instant | None = None  # when a node was chosen for it; None = not yet, or not known
    ended_at: Instant | None = None  # when its last container ended for good; None = it runs, or nobody knows
    part: Mapping[str, int] = {}  # of each GPU, as HAMi reads it: resource -> MiB or percent; {} = all of it
    devices: tuple[ClaimedGpu, ...] = ()  # that its claims were given, as far as those are seen
    priority_class: str = ""  # by name, of a pod that waits
    priority: int | None = None  # that the server gave it; None: it did not say

    @property
    def id(self) -> PodId:
        return PodId(self.namespace, self.name, self.uid)

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def belongs_to_node(self) -> bool:
        """It goes with its node, and would be made there again at once."""
        return self.static or (self.owner is not None and self.owner.kind == "DaemonSet")

    @property
    def gpu_count(self) -> int | None:
        """How many GPUs it asked for; None when a claim could not be seen."""
        if self.claimed is None:
            return None
        return sum(self.resources.values()) + self.claimed


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that are still to be made, and wait in a queue until there is room for them."""

    resources: Mapping[str, int]  # of all of them
    each: Mapping[str, int]  # of one of them
    node_selector: Mapping[str, str]
    affinity: Any  # as of a Pod
    since: Instant


class Departure(msgspec.Struct, frozen=True, gc=False):
    """A pod that is no longer there, as it was last. `ended_at`: when its last container ended; `gone_at`: when we
    heard that it went. Both None: it was found missing, and nobody knows since when."""

    pod: Pod
    ended_at: Instant | None = None
    gone_at: Instant | None = None


class RegisteredGpu(msgspec.Struct, frozen=True, gc=False):
    """A physical GPU of a node, by who hands out parts of it."""

    uuid: str
    memory: int  # MiB


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node, as far as it concerns GPUs on it."""

    name: str
    hostname: str
    addresses: tuple[str, ...]
    ready: bool
    gpu_product: str | None
    shared: bool  # gpu.replicas > 1, or a sharing strategy other than none
    labels: Mapping[str, str]
    gpus: int | None = None  # that it offers, a MIG instance or a shared one's replica as one each; None = not known
    machine: capacity.Machine | None = None  # None = its room is not counted
    offers: Mapping[str, int] = {}  # the same by resource, where it is known
    provider_id: str = ""  # by which its cloud knows it
    price_per_hour: str | None = None  # that its owner wrote on it, as it stands there
    cpu: int | None = None  # milli-cores of the machine; None = not known
    memory: int | None = None  # MiB
    created_at: Instant | None = None
    boards: tuple[RegisteredGpu, ...] = ()  # as HAMi registers them; () = it does not


class Namespace(msgspec.Struct, frozen=True, gc=False):
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Trouble(StrEnum):
    """Why the workload above a pod is not one we may act on. All but OwnerLookupFailed are report-only."""

    OwnerMissing = "OwnerMissing"
    OwnerForbidden = "OwnerForbidden"
    ManagedByUnknownOwner = "ManagedByUnknownOwner"
    BarePod = "BarePod"
    NonScalable = "NonScalable"
    OwnerLookupFailed = "OwnerLookupFailed"  # cannot tell, rather than report-only


OWNER_UNSEEN: Final = frozenset({Trouble.OwnerLookupFailed, Trouble.OwnerMissing, Trouble.OwnerForbidden})


class Companion(msgspec.Struct, frozen=True):
    """Another object that steers the same pods: HPA, KEDA ScaledObject, Kueue Workload, PodDisruptionBudget."""

    ref: Ref
    resource_version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    body: Mapping[str, Any]  # the object, pruned to what its kind's row reads
    writer: str = ""  # as of a Workload
    is_ours: bool = False


Steering: TypeAlias = seen.Input[tuple[Companion, ...]]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The object that people think of as theirs, the pods it runs, and everything the brain must know to judge it."""

    ref: Ref
    resource_version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    body: Mapping[str, Any]  # the object, pruned to what its kind's row (model/kinds.py) reads
    pods: tuple[int, ...]  # indices into Snapshot.pods; empty for a paused one
    chain: tuple[Owner, ...]  # from the pods' direct owner up to the workload
    chain_bodies: tuple[Mapping[str, Any], ...]  # of the links of `chain` that are StatefulSets or LeaderWorkerSets
    trouble: Trouble | None
    trouble_because: str
    # Where notice, ack, idle and immunity marks are written, and the annotations found there. The workload itself,
    # except for an InferenceService: touching its metadata restarts its pods, or rolls a Revision that needs another
    # GPU, so the Deployment below it that holds the GPUs carries the marks.
    marks_ref: Ref
    marks: Mapping[str, str]
    hpas: Steering
    scaled_objects: Steering
    kueue: Steering
    budgets: Steering  # PodDisruptionBudgets whose selector fits its pods
    # Further pods that may be its own: none, or somebody's whose owners could not be followed, so that nobody can tell.
    strays: seen.Rest = seen.ABSENT
    # For a kind outside the table that serves /scale: the CRD's specReplicasPath as a JSON pointer. None where CRDs may
    # not be read; `body` is then that of its Scale object, {"spec": {"replicas": n}}.
    replicas_pointer: str | None = None
    # Annotations of ours on the links between pods and workload. Controllers copy them down and never remove them: they
    # only tell a pod's copy from a person's own word on the pod.
    chain_annotations: tuple[Mapping[str, str], ...] = ()
    passed: tuple[Owner, ...] = ()  # owners above it that some rule of its namespace looks past
    marks_version: str | None = None  # of the object that carries the marks, where that is not the workload itself
    writer: str = ""  # who else owns, since our pause, the field that paused it; "" = nobody
    is_ours: bool = False  # we alone own it: nobody wrote it since

    @property
    def has_marks_elsewhere(self) -> bool:
        """Does another object carry its marks?"""
        return self.marks_ref.uid != self.ref.uid


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds GPUs at this instant, and who did and went since it was asked for last. `sees_all`: pods of all
    namespaces are seen."""

    pods: tuple[Pod, ...]
    nodes: seen.Register[Node]
    namespaces: seen.Register[Namespace]
    workloads: tuple[Workload, ...]
    departures: tuple[Departure, ...]
    sees_all: bool


class Missing(msgspec.Struct, frozen=True):
    """Something that could not be seen, and why, in a sentence for people."""

    what: str
    because: str
    is_untrusted: bool = False  # it was there, and whose it is was not believed


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one instant, and what could not be seen."""

    taken_at: Instant
    pods: tuple[Pod, ...]
    nodes: seen.Register[Node]
    namespaces: seen.Register[Namespace]
    workloads: tuple[Workload, ...]
    evidence: usage.Evidence
    policies: seen.Input[tuple[idle.IdlePolicy, ...]]
    freeze: Freeze | None  # from the Lease
    missing: tuple[Missing, ...]
    long_memory: LongMemory = LongMemory()  # from the Lease
    queued: seen.Input[tuple[Waiting, ...]] = seen.ABSENT  # who waits in Kueue
    rates: seen.Input[cost.NodeRates] = seen.ABSENT  # what its nodes cost; absent: nobody keeps books
    lease_term: int | None = None  # how often the Lease has changed hands; None: nobody holds one
    # Of pods, nodes, namespaces, workloads and policies: an earlier snapshot of the same source with the same number
    # has the same ones. None = not known: nothing that was made of another snapshot holds for this one.
    version: int | None = None


class Capacity(msgspec.Struct, frozen=True):
    """Nodes and everybody on them or waiting for them, at one instant, as packing asks."""

    machines: tuple[capacity.Machine, ...]
    pods: tuple[Pod, ...]  # in the order they came
    cluster: str  # uid of kube-system; "" where it may not be read
    unread: int  # nodes that could not be read
