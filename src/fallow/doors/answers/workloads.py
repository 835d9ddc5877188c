"""Workloads as answers: what we think of them, why, what comes next, what was done; and in which order people want it.

In: findings, plans, outcomes, acknowledgements. Out: structs and words; layout is the door's matter.
Which workloads are of interest is a Selection: whatever is counted or listed is counted or listed of the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fallow import names, verbs
from fallow.doors import answers
from fallow.doors.answers import forecasts, money, sharing
from fallow.model import bills, cluster, decision, kinds, marks, pointers, price_book, reasons, record, units, usage
from fallow.model.patterns import Pattern
from fallow.model.units import Instant

ORDER = (decision.Verdict.idle, decision.Verdict.unknown, decision.Verdict.active)  # what wants attention first
PAUSED = "paused"


class WorkloadName(answers.Shape, frozen=True, kw_only=True):
    """One object in the cluster, by everything that identifies it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Upcoming(answers.Shape, frozen=True, kw_only=True):
    type: str  # notice or pause
    at: str | None


class WorkloadRow(WorkloadName, frozen=True, kw_only=True):
    """One line of `fallow idle`."""

    gpus: int
    idle_gpus: int
    active_gpus: int
    unknown_gpus: int
    models: tuple[str, ...]
    verdict: str
    reason: str
    because: str
    idle_since: str | None
    at_least: bool
    idle_seconds: int | None
    paused_at: str | None
    policy: str
    skip: str | None
    skip_because: str | None
    next_action: Upcoming | None
    cost: money.Cost | None


class ReasonGiven(answers.Shape, frozen=True, kw_only=True):
    """`helps`: what to do about it, "" where nobody needs to."""

    reason: str
    because: str
    helps: str


class SkipGiven(answers.Shape, frozen=True, kw_only=True):
    skip: str | None
    because: str
    helps: str


class SignalSeen(answers.Shape, frozen=True, kw_only=True):
    max: float | None
    mean: float | msgspec.UnsetType | None = msgspec.UNSET  # of primary ratios only
    samples: int | None
    newest: str | None


class GpuEvidence(answers.Shape, frozen=True, kw_only=True):
    uuid: str
    index: int | None
    node: str
    pod: str
    model: str
    share: float
    verdict: str
    reason: str
    because: str
    signals: dict[str, SignalSeen]


class SignalMissed(answers.Shape, frozen=True, kw_only=True):
    signal: str
    because: str


class SourceIgnored(answers.Shape, frozen=True, kw_only=True):
    """An exporter that is not believed."""

    who: str
    because: str


class OwnerLink(answers.Shape, frozen=True, kw_only=True):
    kind: str
    name: str
    uid: str


class PauseTold(answers.Shape, frozen=True, kw_only=True):
    """A pause of ours that stands, as its marks tell it. `returns_to`: what a resume restores, by JSON pointer."""

    at: str | None
    by: str | None
    policy: str | None
    reason: str | None
    gpus: int | None
    replicas: int | None
    returns_to: dict[str, Any]


class Explanation(answers.Shape, frozen=True, kw_only=True):
    """The full answer to "why", with the evidence GPU by GPU, and what was lost. `held`: how many GPUs, measured or
    not. `action`: what its policy does in the end; `widened`: how many times its window is as long as it says, because
    too many pauses were undone. `patch`: what a pause would send. `suspect`: why it may be kept busy only to be left
    alone, where somebody looked for that. `sharing`: whether its pods share GPUs, where somebody looked for that."""

    workload: WorkloadName
    verdict: str
    reasons: tuple[ReasonGiven, ...]
    skips: tuple[SkipGiven, ...]
    policy: str
    action: str
    held: int
    idle_since: str | None
    at_least: bool
    never_used: bool
    paused_at: str | None
    pause: PauseTold | None
    window_seconds: int
    coverage: float | None
    gpus: tuple[GpuEvidence, ...]
    lost_signals: tuple[SignalMissed, ...]
    ignored: tuple[SourceIgnored, ...]
    owner: tuple[OwnerLink, ...]
    next_action: Upcoming | None
    patch: Mapping[str, Any] | None
    cost: money.Cost | None
    as_of: str | None
    widened: float = 1.0
    suspect: str | None = None
    sharing: sharing.ShareTold | None = None
    forecast: forecasts.ForecastTold | None = None


class OutcomeTold(answers.Shape, frozen=True, kw_only=True):
    status: str
    at: str | None
    detail: str
    after: Any


class PausedRow(WorkloadName, frozen=True, kw_only=True):
    """What stands paused by us, as its marks tell it. `workload`: as it is typed to bring it back."""

    workload: str
    since: str | None
    by: str | None
    policy: str | None
    gpus: int | None
    reason: str | None
    replicas: int | None


class AckRow(WorkloadName, frozen=True, kw_only=True):
    """`void`: why it does not hold; None for one that does."""

    workload: str
    until: str
    holds: bool
    void: str | None
    by: str | None
    reason: str | None


class FreezeTold(answers.Shape, frozen=True, kw_only=True):
    frozen: bool
    until: str | None
    namespace: str
    holder: str | None
    answer: str


# ---- which ones: the same for everything that is counted or listed ---------------------------------------------------


class WorkloadCount(msgspec.Struct, frozen=True):
    """One workload, and how many of its GPUs are what."""

    finding: decision.Finding
    idle: int
    active: int
    unknown: int
    each: tuple[decision.GpuFinding, ...] = ()  # GPU by GPU, only where they are of several models

    @property
    def gpus(self) -> int:
        return self.idle + self.active + self.unknown

    def count_idle(self) -> Mapping[str, int]:
        """Its idle GPUs by model; "" where it is not known."""
        models = self.finding.models
        if len(models) <= 1:
            return {"".join(models): self.idle}
        found = Counter(gpu.model for gpu in self.each if gpu.verdict is decision.Verdict.idle)
        return found if found.total() == self.idle else {"": self.idle}

    @property
    def is_partly_idle(self) -> bool:
        return self.idle > 0 and self.finding.verdict is not decision.Verdict.idle


class Selection(msgspec.Struct, frozen=True):
    """The workloads that were asked for, in the order of the snapshot."""

    workloads: tuple[WorkloadCount, ...]
    at: Instant

    @property
    def active(self) -> int:
        return sum(one.active for one in self.workloads)

    @property
    def idle(self) -> int:
        return sum(one.idle for one in self.workloads)

    @property
    def unknown(self) -> int:
        return sum(one.unknown for one in self.workloads)


def view(plan: decision.Plan, namespace: Pattern | None = None, model: Pattern | None = None) -> Selection:
    """`model`: all of its GPUs are known to match; what holds none has no model that could."""
    every = (count(plan, index) for index in range(len(plan.findings)))
    return Selection(tuple(one for one in every if _is_asked_for(one.finding, namespace, model)), plan.at)


def count(plan: decision.Plan, index: int) -> WorkloadCount:
    finding, columns = plan.findings[index], (plan.held.idle, plan.held.active, plan.held.unknown)
    idle, active, unknown = (int(column[index]) for column in columns)
    each = tuple(plan.findings.evidence(index)) if len(finding.models) > 1 else ()
    return WorkloadCount(finding, idle, active, unknown, each)


def _is_asked_for(finding: decision.Finding, namespace: Pattern | None, model: Pattern | None) -> bool:
    if namespace is not None and not namespace.fullmatch(finding.workload.ref.namespace):
        return False
    if model is None:
        return True
    return bool(finding.models) and all(model.fullmatch(each) for each in finding.models)


# ---- answers, made of our nouns --------------------------------------------------------------------------------------


def identify(ref: cluster.Ref) -> dict[str, str]:
    named = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    return {"api_version": ref.api_version, "kind": ref.kind, **named}


def read_ref(name: WorkloadName) -> cluster.Ref:
    group, _, version = name.api_version.rpartition("/")
    return cluster.Ref(group, version, name.kind, name.namespace, name.name, name.uid)


def reference(ref: cluster.Ref) -> WorkloadName:
    return WorkloadName(**identify(ref))


def _find_upcoming(finding: decision.Finding) -> Upcoming | None:
    step = finding.next_action
    return None if step is None else Upcoming(type=str(step), at=answers.instant(finding.next_at))


def explanation(
    finding: decision.Finding, gpus: Sequence[decision.GpuFinding], patch: Mapping[str, Any] | None, now: Instant,
    seen: usage.Evidence | None = None, book: price_book.ModelPrices = price_book.LIST, suspect: str | None = None,
) -> Explanation:
    """`seen`: of which it is told what is missing."""
    workload, bill = finding.workload, bills.make(finding.holdings, book)
    physical, pieces = sum(each.gpus for each in finding.holdings), sum(each.pieces for each in finding.holdings)
    share = round(physical / pieces, 6) if pieces else 1.0  # of a physical GPU, that each of its GPUs is
    own = decision.Heading(finding.verdict, finding.reason)
    skip = () if finding.skip is None else (
        SkipGiven(skip=finding.skip_label, because=finding.skip_because, helps=find_help(finding)),
    )
    return Explanation(
        workload=reference(workload.ref), verdict=str(finding.verdict), skips=skip, policy=finding.rule.name,
        reasons=(ReasonGiven(reason=str(finding.reason), because=finding.because, helps=reasons.what_helps(own)),),
        idle_since=answers.instant(finding.idle_since), at_least=finding.at_least, never_used=finding.never_used,
        paused_at=answers.instant(marks.paused_at(workload)), pause=tell_pause(workload),
        window_seconds=round(finding.window), coverage=finding.coverage,
        gpus=tuple(_gpu(gpu, share) for gpu in gpus),
        action=str(finding.rule.action.type), held=finding.gpus,
        lost_signals=tuple(
            SignalMissed(signal=each.signal, because=each.because) for each in (seen.lost_signals if seen else ())
        ),
        ignored=tuple(SourceIgnored(who=each.who, because=each.because) for each in (seen.ignored if seen else ())),
        owner=tuple(OwnerLink(kind=link.kind, name=link.name, uid=link.uid) for link in workload.chain),
        next_action=_find_upcoming(finding), patch=patch, cost=money.find_cost(bill), as_of=answers.instant(now),
        widened=finding.rule.widened, suspect=suspect,
    )


def find_help(finding: decision.Finding) -> str:
    """What helps, by the reason for leaving it alone or, for lack of one, for its verdict; "" where nobody needs to."""
    return reasons.what_helps(decision.Heading(finding.verdict, finding.skip or finding.reason, finding.detail))


def _gpu(gpu: decision.GpuFinding, share: float) -> GpuEvidence:
    return GpuEvidence(
        uuid=gpu.gpu, index=int(gpu.index) if gpu.index.isdecimal() and len(gpu.index) < 4 else None, node=gpu.node,
        pod=gpu.pod, model=gpu.model, share=share, verdict=str(gpu.verdict), reason=str(gpu.reason),
        because=gpu.because,
        signals={name: _signal(values) for name, values in gpu.signals.items()},
    )


def _signal(values: Mapping[str, float | None]) -> SignalSeen:
    samples = values.get("samples")
    return SignalSeen(
        max=values.get("max"), mean=values.get("mean", msgspec.UNSET),
        samples=None if samples is None else round(samples), newest=answers.instant(values.get("newest")),
    )


def tell_pause(workload: cluster.Workload) -> PauseTold | None:
    """None where no pause of ours stands."""
    if marks.paused_at(workload) is None:
        return None
    said = _read_marks(workload)
    found = record.read(said.get(names.ORIGINAL_STATE))
    return PauseTold(
        at=said.get(names.PAUSED_AT), by=said.get(names.PAUSED_BY), policy=said.get(names.PAUSED_POLICY),
        reason=said.get(names.PAUSED_REASON), gpus=marks.read_count(said.get(names.PAUSED_GPUS)),
        replicas=marks.read_count(said.get(names.ORIGINAL_REPLICAS)), returns_to=found.fields if found else {},
    )


def _read_marks(workload: cluster.Workload) -> Mapping[str, str]:
    kind = kinds.of(workload)
    return kinds.record_target(kind, workload).annotations if kind else {}


def outcome(done: decision.Outcome) -> OutcomeTold:
    return OutcomeTold(status=str(done.status), at=answers.instant(done.at), detail=done.detail, after=done.after)


def paused(workload: cluster.Workload) -> PausedRow:
    said, ref = _read_marks(workload), workload.ref
    return PausedRow(
        **identify(ref), workload=kinds.typed(ref), since=said.get(names.PAUSED_AT), by=said.get(names.PAUSED_BY),
        policy=said.get(names.PAUSED_POLICY), gpus=marks.read_count(said.get(names.PAUSED_GPUS)),
        reason=said.get(names.PAUSED_REASON), replicas=marks.read_count(said.get(names.ORIGINAL_REPLICAS)),
    )


def acks(found: Iterable[verbs.Ack]) -> list[AckRow]:
    """Those that end first before the others."""
    rows = [
        AckRow(
            **identify(each.ref), workload=kinds.typed(each.ref), until=each.until, holds=not each.void,
            void=each.void or None, by=each.by, reason=each.reason,
        )
        for each in found
    ]
    return sorted(rows, key=lambda row: (row.until, row.namespace, row.workload))


def freeze(answer: verbs.FreezeAnswer, namespace: str) -> FreezeTold:
    return FreezeTold(
        frozen=answer.until is not None, until=answer.until, namespace=namespace, holder=answer.holder or None,
        answer=str(answer.heard),
    )


# ---- words for people ------------------------------------------------------------------------------------------------


def verdict(finding: decision.Finding) -> str:
    """What stands paused by us holds no GPU that could be judged: people want to see that, not that we cannot tell."""
    is_paused = finding.gpus == 0 and marks.paused_at(finding.workload) is not None
    return PAUSED if is_paused else str(finding.verdict)


def next_step(row: WorkloadRow) -> str:
    """What comes next, or why nothing does."""
    if row.gpus == 0 and row.paused_at is not None:
        return row.skip or ""
    if row.verdict != decision.Verdict.idle:
        return "reported only" if row.idle_gpus else row.reason
    at = units.read_instant(row.next_action.at) if row.next_action else None
    if row.skip is not None:
        return f"{row.skip} until {units.clock_time(at)} UTC" if at is not None else row.skip
    return row.next_action.type if row.next_action else ""


def return_size(pause: PauseTold) -> str:
    """`3 replicas`, or the fields that are put back where it is not counted so."""
    if pause.replicas is not None:
        return answers.many(pause.replicas, "replica")
    spelled = (f"{_spell(pointer)} {_value(value)}" for pointer, value in sorted(pause.returns_to.items()))
    return ", ".join(spelled) or "not known: its record cannot be read; say so with `fallow resume --replicas N`"


def _spell(pointer: str) -> str:
    """`/spec/replicas` -> `spec.replicas`; of an annotation its name."""
    path = pointers.parts(pointer)
    return path[-1] if "annotations" in path[:-1] else ".".join(path)


def _value(value: Any) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
