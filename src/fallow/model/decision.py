"""The closed set of answers: what we think of each workload, what we mean to do, and what became of it.

Every answer has a `reason` (one CamelCase word of a closed set) and a `because` (a sentence a user understands).
Only the verdict `idle` may lead to a notice or a pause; `unknown` never does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from fallow.model import bills, cluster, usage
from fallow.model.long_memory import Freeze, LongMemory
from fallow.model.policies import idle
from fallow.model.units import Instant


class Verdict(StrEnum):
    idle = "idle"
    active = "active"
    unknown = "unknown"


class Reason(StrEnum):
    """Why. Grouped by what they explain."""

    # A GPU is active, or idle.
    Busy = "Busy"
    NeverUsed = "NeverUsed"
    GoneIdle = "GoneIdle"
    # We cannot tell.
    ExporterDown = "ExporterDown"
    FrozenSeries = "FrozenSeries"
    ExporterSuspect = "ExporterSuspect"
    SignalContradiction = "SignalContradiction"
    SharedDevice = "SharedDevice"
    BlankSamples = "BlankSamples"
    NoSignal = "NoSignal"
    MigUtilOnly = "MigUtilOnly"
    Stale = "Stale"
    FutureSamples = "FutureSamples"
    LowCoverage = "LowCoverage"
    MissingGpuSeries = "MissingGpuSeries"
    ReservationOpaque = "ReservationOpaque"
    PodStarting = "PodStarting"
    NodeNotReady = "NodeNotReady"
    NodeUnseen = "NodeUnseen"
    NotReady = "NotReady"
    TooYoung = "TooYoung"
    SourceDown = "SourceDown"
    WarmingUp = "WarmingUp"
    OwnerLookupFailed = "OwnerLookupFailed"
    Odd = "Odd"  # something about it is as nobody foresaw: considering it failed
    NoGpuPods = "NoGpuPods"  # nothing of it runs on a GPU now
    # Idle, and yet we leave it alone.
    Acknowledged = "Acknowledged"
    OptedOut = "OptedOut"
    KindDisabled = "KindDisabled"
    Excluded = "Excluded"
    ProtectedNamespace = "ProtectedNamespace"
    Immune = "Immune"
    FightHold = "FightHold"
    InNotice = "InNotice"
    Confirming = "Confirming"
    NoPressure = "NoPressure"
    OutsideSchedule = "OutsideSchedule"
    Capped = "Capped"
    BackingOff = "BackingOff"  # its pause was tried in vain
    Frozen = "Frozen"
    AlreadyPaused = "AlreadyPaused"
    ReportOnly = "ReportOnly"


class Detail(StrEnum):
    """The word after `ReportOnly:`. Grouped by who finds it."""

    # The eyes, of the way up from its pods: the words of cluster.Trouble that only report.
    OwnerMissing = "OwnerMissing"
    OwnerForbidden = "OwnerForbidden"
    ManagedByUnknownOwner = "ManagedByUnknownOwner"
    BarePod = "BarePod"
    NonScalable = "NonScalable"
    # Something that has a say in it may not be read: its policies, its namespace, its autoscaler.
    Unseen = "Unseen"
    # The rules that are there, or are not.
    NoPolicy = "NoPolicy"
    InvalidPolicy = "InvalidPolicy"
    PolicyUnclear = "PolicyUnclear"
    Report = "Report"
    NoChannel = "NoChannel"
    NotifyOnly = "NotifyOnly"
    # The row of its kind, and its companions.
    PvcDeletedOnScale = "PvcDeletedOnScale"
    RolloutBusy = "RolloutBusy"
    KnativeRollout = "KnativeRollout"
    AlreadyScalesToZero = "AlreadyScalesToZero"
    RayJobNotSuspendable = "RayJobNotSuspendable"
    NoRoles = "NoRoles"
    KServeNoStop = "KServeNoStop"
    ReplicasUnknown = "ReplicasUnknown"
    ManagedByOther = "ManagedByOther"
    KueueWorkloadUnclear = "KueueWorkloadUnclear"
    ScaledObjectUnclear = "ScaledObjectUnclear"
    HpaScaleToZero = "HpaScaleToZero"
    PdbProtected = "PdbProtected"
    GitOpsManaged = "GitOpsManaged"
    NoPlaceForMarks = "NoPlaceForMarks"
    # The hands, when they were about to write.
    RecordPresent = "RecordPresent"
    RecordTooLarge = "RecordTooLarge"
    UnsupportedField = "UnsupportedField"
    HookFailing = "HookFailing"


class Step(StrEnum):
    """What an idle workload waits for, or takes in this cycle."""

    notice = "notice"
    pause = "pause"


class Heading(msgspec.Struct, frozen=True):
    """What a workload is counted under: its verdict, and the reason for it or for leaving it alone."""

    verdict: Verdict
    reason: Reason
    detail: Detail | None = None  # the word after `ReportOnly:`

    @property
    def label(self) -> str:
        """`Acknowledged`, or `ReportOnly:BarePod`."""
        return f"{self.reason}:{self.detail}" if self.detail else str(self.reason)


class GpuFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What we think of one GPU in a pod's hands, with the evidence."""

    gpu: str
    index: str  # on its node, as the driver counts; "" = not known
    node: str
    pod: str
    model: str
    verdict: Verdict
    reason: Reason
    because: str
    signals: Mapping[str, Mapping[str, float | None]]  # {"gr_engine": {"max": 0.0, "mean": 0.0, ...}}


class Wishes(msgspec.Struct, frozen=True):
    """Whom owners want told, as they wrote it on the workload or, for lack of that, on its Namespace."""

    notify: str = ""
    mentions: str = ""
    owner: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What we think of one workload in this cycle. `skip` and `detail` say why an idle one is left alone."""

    workload: cluster.Workload
    verdict: Verdict
    reason: Reason
    because: str
    rule: idle.Rule
    gpus: int  # GPUs its pods hold
    idle_gpus: int
    models: tuple[str, ...]
    window: float  # seconds of quiet the rule asks for
    idle_since: Instant | None = None
    at_least: bool = False  # idle_since is only as far back as we looked
    never_used: bool = False
    coverage: float | None = None
    skip: Reason | None = None
    detail: Detail | None = None
    skip_because: str = ""
    next_action: Step | None = None
    next_at: Instant | None = None
    wishes: Wishes = Wishes()
    holdings: tuple[bills.ModelHolding, ...] = ()  # what these GPUs are, by which they have a price

    @property
    def skip_label(self) -> str | None:
        return None if self.skip is None else Heading(self.verdict, self.skip, self.detail).label


class Findings(msgspec.Struct):
    """One Finding per workload of the snapshot, made when somebody asks: 20,000 busy ones need no 20,000 sentences."""

    make: Callable[[int], Finding]
    evidence: Callable[[int], list[GpuFinding]]  # GPU by GPU
    count: int
    made: dict[int, Finding] = {}

    def __getitem__(self, index: int) -> Finding:
        if index not in self.made:
            self.made[index] = self.make(index)
        return self.made[index]

    def __len__(self) -> int:
        return self.count


# ---- decisions: what we mean to do ---------------------------------------------------------------------------------


class Proof(msgspec.Struct, frozen=True):
    """What a workload was judged by: GPU by GPU, and the pods that hold them."""

    gpus: tuple[GpuFinding, ...] = ()
    pods: tuple[cluster.Pod, ...] = ()


UNPROVEN: Final = Proof()  # nobody asked


class Warn(msgspec.Struct, frozen=True):
    """Tell the owner; on delivery, and only then, write the idle episode on the object."""

    finding: Finding
    episode: str
    idle_since: Instant
    pauses_at: Instant | None  # when the grace ends; None: notice only
    channels: tuple[idle.Channel, ...]
    proof: Proof = UNPROVEN  # where one of the channels is for programs, which want it


REASON_CHARACTERS: Final = 200  # of paused-reason, at most


class Pause(msgspec.Struct, frozen=True):
    """Stop it, with the way back in the same patch. A second look comes before."""

    finding: Finding
    reason_text: str  # goes into paused-reason, cut to REASON_CHARACTERS
    pods: frozenset[str] = frozenset()  # UIDs of the pods it was decided on: the second look must find the very same
    notice_at: Instant | None = None  # dry run only: when the notice it rests on would have been delivered


class Resume(msgspec.Struct, frozen=True):
    """Bring it back: somebody asked for it by annotation, or our own pause did not work (KServe without stop)."""

    workload: cluster.Workload
    by: str
    because: str
    remember: Mapping[str, str] = {}  # annotations to leave behind, such as kserve-no-stop


class Undo(msgspec.Struct, frozen=True):
    """Put back what a pause of ours changed and did not get: something stands there that nobody asked for."""

    workload: cluster.Workload
    because: str


class Mark(msgspec.Struct, frozen=True):
    """Bookkeeping on the object: marks withdrawn, an ack stamped or ended, a pause that others undid."""

    workload: cluster.Workload
    on: cluster.Ref  # the workload or its marks_ref
    resource_version: str | None  # precondition, where the marks must still be the ones we read
    changes: Mapping[str, str | None]  # None = remove
    event: str | None  # names.Event, or nothing
    because: str


class Alert(msgspec.Struct, frozen=True):
    """Only an Event, once per episode: an idle workload found, an ack that cannot be read."""

    workload: cluster.Workload | None  # None: about ourselves (a freeze)
    event: str
    because: str
    episode: str  # what makes it "once"


Decision: TypeAlias = Warn | Pause | Resume | Undo | Mark | Alert


def workload_of(each: Decision) -> cluster.Workload | None:
    return each.finding.workload if isinstance(each, Warn | Pause) else each.workload


class Status(StrEnum):
    done = "done"
    dry_run = "dry_run"  # would have been done, and the API server agreed where it was asked
    overtaken = "overtaken"  # the second look found it changed
    refused = "refused"  # the API server said no to this one
    failed = "failed"


class Code(StrEnum):
    """What programs may tell apart in an Outcome, beyond its status and the Details."""

    AlreadyPaused = "AlreadyPaused"
    AlreadyRunning = "AlreadyRunning"
    NoOriginalState = "NoOriginalState"
    RecordIntact = "RecordIntact"  # another size was asked for than the one that is recorded
    NotBegun = "NotBegun"  # we were frozen, stopped or no longer the leader before it could begin


class Delivery(msgspec.Struct, frozen=True):
    """What became of a message on one channel."""

    channel: str
    type: idle.ChannelType
    failure: str = ""  # why it is not known to have been delivered; "" = it was


class Outcome(msgspec.Struct, frozen=True):
    """What became of one decision."""

    decision: Decision
    status: Status
    at: Instant
    because: str  # a sentence; for refused ones `would fail: 403 ...` or the server's message
    before: Any = None
    after: Any = None
    code: Code | Detail | None = None
    deliveries: tuple[Delivery, ...] = ()  # of a notice

    @property
    def detail(self) -> str:
        """For people: the code, if there is one, and the sentence."""
        if self.code is None:
            return self.because
        return f"{'ReportOnly:' if isinstance(self.code, Detail) else ''}{self.code}: {self.because}"


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The cycle in numbers."""

    workloads: int
    pods: int
    gpus: int  # allocated GPUs looked at
    active_gpus: int
    idle_gpus: int
    unknown_gpus: int
    kept_gpus: int  # of the idle ones: those of acknowledged workloads
    waiting_gpus: int  # that pods wait for, for long enough to count
    gpus_by_model: Mapping[tuple[Verdict, str], int]  # model "" = not known
    verdicts: Mapping[Heading, int]  # workloads


class Held(msgspec.Struct, frozen=True):
    """GPUs in the hands of each workload of the snapshot, at this instant."""

    idle: usage.Indices
    active: usage.Indices
    unknown: usage.Indices  # those that it asked for and nobody measures, too


class HeldRows(msgspec.Struct, frozen=True, kw_only=True):
    """Each pod's hold on a GPU that was judged, row by row, for the books."""

    pod: usage.Ints  # index into Snapshot.pods
    gpu: tuple[str, ...]
    mig: usage.Bools
    shared: usage.Bools
    idle_since: usage.Floats  # nan: it is not idle, or its workload is not
    use: usage.Floats  # mean of the window; nan: not measured, or not so that anything may be said


class Alerted(msgspec.Struct, frozen=True):
    """An Alert about marks that was given: it is not given twice."""

    uid: str
    episode: str


class Tried(msgspec.Struct, frozen=True):
    """What was done about a workload: the name of the decision."""

    act: str
    uid: str


class Vain(msgspec.Struct, frozen=True):
    """It failed, so often in a row, the last time on this version of the object; until then others go first."""

    count: int
    until: Instant
    version: str


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the brain wants to be told again in the next cycle. Losing it only makes us slower to act, or try once more
    what is refused; all but `long`, which for that reason stands on the Lease too."""

    at: Instant = 0.0  # of the cycle it is of
    term: int | None = None  # how often the Lease had changed hands
    long: LongMemory = LongMemory()
    confirmed: Mapping[str, int] = {}  # workload UID -> cycles in a row it was found idle
    announced: Mapping[str, str] = {}  # workload UID -> the idle episode of which IdleDetected told
    alerted: frozenset[Alerted] = frozenset()
    would_be_paused: Mapping[str, Instant] = {}  # dry run: UID -> when it would have been paused
    would_be_pending: Mapping[str, Instant] = {}  # dry run: UID -> when its notice would have been delivered
    freeze: Freeze | None = None  # a freeze of ours that was not yet seen on the Lease
    refused: Mapping[str, str] = {}  # UID -> what its API server said to the pause (Detail.UnsupportedField)
    vain: Mapping[Tried, Vain] = {}  # all but pauses, which `long` has


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything we think and mean to do in this cycle, in the order it is to be done."""

    at: Instant
    findings: Findings
    decisions: tuple[Decision, ...]
    freeze: Freeze | None  # the one that holds
    newly_frozen: bool
    totals: Totals
    held: Held
    policies: Mapping[str, idle.Tally]  # by name, of the policies that are there
    memory: Memory
    noticed: frozenset[int] = frozenset()  # workloads with a mark of a notice
    odd: Mapping[cluster.Ref, str] = {}  # workloads that could not be considered, and what went wrong
    rows: HeldRows | None = None


class Cycle(msgspec.Struct, frozen=True):
    """What one tick did. `failure` is why no decision was possible."""

    plan: Plan | None  # None: not even the cluster could be seen
    snapshot: cluster.Snapshot | None
    outcomes: tuple[Outcome, ...]
    failure: str
    took: float  # seconds
