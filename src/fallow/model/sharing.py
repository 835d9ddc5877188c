"""What sharing is decided on, and what comes of it: a pod that somebody makes, the nodes with parts of GPUs, a verdict.

In: nothing; the eyes and the webhook fill these in. Out: nothing.
Invariant: milli-GPU and MiB are whole numbers; what is not known is None or Unseen, never 0. Every verdict has a reason
of a closed set and a sentence.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from fallow.model.claims import ClaimDevice
from fallow.model.classes import Behaviour, ClassFound, ContainerText, PodEvent
from fallow.model.policies.sharing import Strategy
from fallow.model.seen import ABSENT, Input
from fallow.model.units import Instant


class ShareReason(StrEnum):
    """Why a pod shares a GPU, would, or is left alone: one word, which is counted."""

    # It is somebody else's, or somebody said no.
    NotCreate = "NotCreate"
    NoGpus = "NoGpus"
    OptedOut = "OptedOut"
    ExemptNamespace = "ExemptNamespace"
    NodeChosen = "NodeChosen"
    StaticPod = "StaticPod"
    AlreadyOptimized = "AlreadyOptimized"
    NotOneGpu = "NotOneGpu"
    GpuInInitContainer = "GpuInInitContainer"
    AlreadyShares = "AlreadyShares"
    UsesClaims = "UsesClaims"
    OtherSharer = "OtherSharer"
    OtherScheduler = "OtherScheduler"
    VisibleDevicesSet = "VisibleDevicesSet"
    Privileged = "Privileged"
    BackOff = "BackOff"
    InvalidSharingMode = "InvalidSharingMode"
    InvalidNeed = "InvalidNeed"
    NoPolicy = "NoPolicy"
    Exclusive = "Exclusive"
    KeepsWholeGpu = "KeepsWholeGpu"
    # Nobody can tell.
    VramUnknown = "VramUnknown"
    UsageUnknown = "UsageUnknown"
    NamespaceUnseen = "NamespaceUnseen"
    OwnerUnseen = "OwnerUnseen"
    PolicyInvalid = "PolicyInvalid"
    NotLoaded = "NotLoaded"
    MirrorStale = "MirrorStale"
    Unreadable = "Unreadable"
    Deadline = "Deadline"
    Defect = "Defect"
    # There is nothing for it.
    NoTargetNode = "NoTargetNode"
    SelectorConflict = "SelectorConflict"
    ClaimsNotServed = "ClaimsNotServed"
    TemplateMissing = "TemplateMissing"
    # It shares, or would.
    Shared = "Shared"
    PolicyAudits = "PolicyAudits"
    NotInRollout = "NotInRollout"
    RewritesOff = "RewritesOff"


class ShareContainer(msgspec.Struct, frozen=True, kw_only=True):
    """`requests`, `limits`: as they are written, by resource; None where there is no such field."""

    runs: ContainerText = ContainerText()
    requests: Mapping[str, str] | None = None
    limits: Mapping[str, str] | None = None
    has_claims: bool = False
    sets_devices: bool = False
    is_privileged: bool = False

    @property
    def asked(self) -> Mapping[str, str]:
        """A limit without a request is a request."""
        return {**(self.limits or {}), **(self.requests or {})}


class PodToleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeTaint(msgspec.Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = ""


class SharePod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as somebody wants it made. `terms`: its required node affinity; None: none. `annotations`,
    `tolerations`, `node_selector`: None where it has no such field, which a patch must know."""

    namespace: str
    name: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] | None = None
    containers: tuple[ShareContainer, ...] = ()
    init_containers: tuple[ShareContainer, ...] = ()
    node_name: str = ""
    node_selector: Mapping[str, str] | None = None
    terms: Any = None
    tolerations: tuple[PodToleration, ...] | None = None
    scheduler: str = ""
    has_claims: bool = False
    is_static: bool = False

    @property
    def marks(self) -> Mapping[str, str]:
        return self.annotations or {}


class TopOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands above a pod."""

    group: str
    kind: str
    name: str
    uid: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class OwnerUse(msgspec.Struct, frozen=True, kw_only=True):
    """How an owner's pods used GPUs in the last seven days. `peak_memory`: MiB; `p95`: of SM activity, 0 to 1."""

    coverage: float
    peak_memory: int | None = None
    mean: float | None = None
    p95: float | None = None
    behaviour: Input[Behaviour] = ABSENT


class PartNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with GPUs. `offers`: what it advertises by resource (allocatable). `devices`: what is given by claims."""

    name: str
    labels: Mapping[str, str] = {}
    offers: Mapping[str, int] = {}
    devices: tuple[ClaimDevice, ...] = ()
    is_ready: bool = True
    is_cordoned: bool = False
    taints: tuple[NodeTaint, ...] = ()


class GpuPart(msgspec.Struct, frozen=True):
    """What a pod is to ask for instead of a whole GPU: a resource, or a claim that is made by a template. `selector`:
    of nodes, beside the pod's own."""

    strategy: Strategy
    resource: str = ""
    selector: Mapping[str, str] = {}
    profile: str = ""
    template: str = ""

    @property
    def called(self) -> str:
        return self.resource or f"a claim by template {self.template}"


class PolicyCounts(msgspec.Struct, frozen=True):
    """Running pods that a policy changed, and that it would have."""

    applied: int = 0
    audited: int = 0


class PolicyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions as status, reason and sentence. `counts`, `reverted`: None where nobody could count."""

    ready: tuple[str, str, str]
    degraded: tuple[str, str, str]
    counts: PolicyCounts | None = None
    reverted: int | None = None


class KeptWhole(msgspec.Struct, frozen=True, kw_only=True):
    reason: ShareReason
    because: str
    work: ClassFound | None = None
    policy: str = ""
    events: tuple[PodEvent, ...] = ()


class PartGiven(msgspec.Struct, frozen=True, kw_only=True):
    """It shares, or, where it `is_audited`, would. `reason` says which, and why."""

    part: GpuPart
    container: int  # place of the one that holds the GPU
    reason: ShareReason
    because: str
    work: ClassFound
    policy: str = ""
    events: tuple[PodEvent, ...] = ()

    @property
    def is_audited(self) -> bool:
        return self.reason is not ShareReason.Shared


class PartHad(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod asks for because we changed it, as its annotations tell it. `resource`: "" where only its nodes were
    chosen; `policy`: "" where the pod itself asked for it; `at`: None where that cannot be read."""

    strategy: str
    resource: str
    policy: str
    was: str
    at: Instant | None


class ShareBackOff(msgspec.Struct, frozen=True, kw_only=True):
    """An owner that has whole GPUs because sharing hurt it. `until`: None where what stands there is no time, and it
    does not end. `because`, `policy`: "" where nobody wrote it down."""

    until: Instant | None
    because: str
    policy: str
    times: int


class ShareWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Of a pod: what we made of it (None: nothing), and what one like it would get now."""

    pod: str
    had: PartHad | None
    verdict: PartGiven | KeptWhole
    work: ClassFound
    back_off: ShareBackOff | None = None
    assumed: str = ""  # what of the webhook nobody saw, and was assumed
