"""A node whose GPUs are being cut or shared anew: what is seen of it, the record of the change, what there is to write.

In: nothing; eyes fill in PartitionNode, the brain makes NodeTurns. Out: the record as it stands in the node's
annotation (JSON), and back.
Invariant: the record holds the way back. It is written in the very request that cordons, labels or uncordons, so that
whoever reads the node afterwards knows what was done to it by whom.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from fallow.model import units
from fallow.model.sharing import NodeTaint, PartNode
from fallow.model.units import Instant


class RepartitionStep(StrEnum):
    Planned = "Planned"
    Cordoning = "Cordoning"
    Draining = "Draining"
    Labelling = "Labelling"
    Verifying = "Verifying"
    Uncordoning = "Uncordoning"
    RollingBack = "RollingBack"
    Ready = "Ready"
    Failed = "Failed"


class RepartitionReason(StrEnum):
    """Why a node's change waits, runs, ended or will not begin."""

    Ready = "Ready"
    Running = "Running"
    Audit = "Audit"
    NotActing = "NotActing"
    InvalidConfig = "InvalidConfig"
    DuplicateNode = "DuplicateNode"
    NodeGone = "NodeGone"
    NodeNotReady = "NodeNotReady"
    NotSeen = "NotSeen"
    GpuUnknown = "GpuUnknown"
    IllegalLayout = "IllegalLayout"
    MpsUnsupported = "MpsUnsupported"
    OnlyKey = "OnlyKey"
    OtherChange = "OtherChange"
    TooSoon = "TooSoon"
    PodWaits = "PodWaits"
    Withdrawn = "Withdrawn"
    DrainTimeout = "DrainTimeout"
    LabelTimeout = "LabelTimeout"
    StateFailed = "StateFailed"
    ConfigMapNotUsed = "ConfigMapNotUsed"
    VerifyTimeout = "VerifyTimeout"
    ChangedByOther = "ChangedByOther"
    RepartitionFailed = "RepartitionFailed"
    RecordUnreadable = "RecordUnreadable"


class NodeLayout(msgspec.Struct, frozen=True, rename="camel"):
    """The two labels (None: absent), and what the node advertises by them (None: nobody knows)."""

    mig_config: str | None = None
    device_plugin_config: str | None = None
    offers: Mapping[str, int] | None = None


class RepartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`config`, `uid`: the GPUNodeConfig. `until`: when this step has taken too long. `is_labelled`: our labels were
    written, and not yet taken back. `has_rebooted`: it was given the time that a reboot takes. `wish`: what was asked
    for, in short."""

    config: str
    uid: str
    before: NodeLayout
    after: NodeLayout
    step: RepartitionStep
    since: Instant
    until: Instant | None = None
    cordoned_by_us: bool = False
    is_labelled: bool = False
    has_rebooted: bool = False
    reason: RepartitionReason = RepartitionReason.Running
    wish: str = ""

    @property
    def is_running(self) -> bool:
        return self.step not in (RepartitionStep.Ready, RepartitionStep.Failed)

    @property
    def is_stuck(self) -> bool:
        """The way back failed, and the node is cordoned by us."""
        return self.step is RepartitionStep.Failed and self.cordoned_by_us


class _Written(msgspec.Struct, rename="camel", omit_defaults=True):
    """As it stands in the annotation."""

    config: str
    uid: str
    before: NodeLayout = msgspec.field(name="from")
    after: NodeLayout = msgspec.field(name="to")
    step: RepartitionStep
    since: str
    cordoned_by_us: bool
    until: str | None = None
    is_labelled: bool = msgspec.field(default=False, name="labelled")
    has_rebooted: bool = msgspec.field(default=False, name="rebooted")
    reason: RepartitionReason = RepartitionReason.Running
    wish: str = ""


def write(record: RepartitionRecord) -> str:
    fields = msgspec.structs.asdict(record)
    fields["since"] = units.rfc3339(record.since)
    fields["until"] = None if record.until is None else units.rfc3339(record.until)
    return msgspec.json.encode(_Written(**fields)).decode()


def read(text: str) -> RepartitionRecord:
    """Raises ValueError for what is no record."""
    try:
        found = msgspec.json.decode(text, type=_Written)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise ValueError(f"it is no record of a change: {problem}") from None
    fields = msgspec.structs.asdict(found)
    fields["since"] = units.parse_instant(found.since)
    fields["until"] = None if found.until is None else units.parse_instant(found.until)
    return RepartitionRecord(**fields)


def is_changing(text: str) -> bool:
    """Whether a change runs by this record, or hangs; one that is over leaves its record behind."""
    try:
        record = read(text)
    except ValueError:
        return True
    return record.is_running or record.is_stuck


class PartitionNode(msgspec.Struct, frozen=True, kw_only=True):
    """`offers`: GPUs and parts of them that it advertises now. `record`: None where there is none; text that is no
    record is in `unreadable`. `pool`: of whom only some may change at once."""

    name: str
    resource_version: str = ""
    labels: Mapping[str, str] = {}
    offers: Mapping[str, int] = {}
    is_ready: bool = True
    is_cordoned: bool = False
    pool: str = ""
    record: RepartitionRecord | None = None
    unreadable: str = ""
    taints: tuple[NodeTaint, ...] = ()

    @property
    def parts(self) -> PartNode:
        """As pods are seated there."""
        return PartNode(
            name=self.name, labels=self.labels, offers=self.offers, is_ready=self.is_ready,
            is_cordoned=self.is_cordoned, taints=self.taints,
        )


class NodeSharing(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's GPUs are shared now, by what it advertises and is labelled. `way`: mps, time-slicing, or "".
    `profiles`: MIG instances by profile. `holding`: pods with a share; None: they are not seen."""

    way: str = ""
    profiles: Mapping[str, int] = {}
    shares: int = 0
    gpus: int | None = None
    replicas: int | None = None
    holding: int | None = None


# ---- what there is to write ------------------------------------------------------------------------------------------


class PatchNode(msgspec.Struct, frozen=True, kw_only=True):
    """In one request, guarded by the version that was seen. A label of None is removed; `cordon` None: as it is."""

    node: str
    resource_version: str
    record: RepartitionRecord
    labels: Mapping[str, str | None] = {}
    cordon: bool | None = None


class WhichMap(StrEnum):
    plugin = "plugin"
    mig = "mig"


class WriteKey(msgspec.Struct, frozen=True):
    """One key of one of the two ConfigMaps that NVIDIA's programs read."""

    which: WhichMap
    key: str
    content: str


class EvictPod(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str


class SetFinalizer(msgspec.Struct, frozen=True):
    config: str
    present: bool


class TellNode(msgspec.Struct, frozen=True):
    """An Event on a node."""

    node: str
    reason: str
    message: str


PartitionWrite: TypeAlias = PatchNode | WriteKey | EvictPod | SetFinalizer | TellNode


class NodeTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of one config or node now, and the next thing to do. `writes` in this order; whatever of them is
    not done is found missing the next time. `config`: "" for a change whose object is gone."""

    config: str
    node: str
    step: RepartitionStep
    reason: RepartitionReason
    because: str
    writes: tuple[PartitionWrite, ...] = ()
    record: RepartitionRecord | None = None

    @property
    def phase(self) -> str:
        if self.step is RepartitionStep.Planned:
            return "Pending"
        return str(self.step) if self.step in (RepartitionStep.Ready, RepartitionStep.Failed) else "Configuring"


Documents: TypeAlias = Mapping[str, Any]  # the keys of a ConfigMap, decoded


# ---- what NVIDIA's programs read in ConfigMaps -----------------------------------------------------------------------

OURS: Final = "fallow-"  # how our keys, and the names of our configurations, begin
MIG_KEY: Final = "config.yaml"  # that mig-parted reads


def merge_mig(found: Any, name: str, content: str) -> str:
    """The whole document of mig-parted, in JSON, with one more configuration. `found`: what is there, decoded."""
    known = found if isinstance(found, Mapping) else {}
    others = listed if isinstance(listed := known.get("mig-configs"), Mapping) else {}
    made = {**known, "version": "v1", "mig-configs": {**others, name: msgspec.json.decode(content)}}
    return msgspec.json.encode(made).decode()
