"""One workload in full: why, the checks it passed and failed, the episode so far, what a pause would write.

In: a finding with its evidence, its row, its history, what who asks may do. Out: FullExplanation: the answer of
`fallow why`, and what its page shows beside it.
Invariant: sentences are made of values; none is read. Nothing here decides: checks tell what the brain found.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from fallow.act.notices import facts, text
from fallow.act.sending import Write
from fallow.act.workloads import bodies
from fallow.decide.idle import plan as brain
from fallow.doors import answers
from fallow.doors.answers import gitops
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import cluster, decision, kinds, reasons, units, usage
from fallow.model.decision import Verdict
from fallow.model.history import AuditEntry, Happened
from fallow.model.units import HOUR, Instant

_SIGNALS: Final[Mapping[str, tuple[str, str]]] = {
    "gr_engine": ("Graphics engine", "ratio"), "sm_active": ("SM activity", "ratio"),
    "gpu_util": ("Utilisation", "ratio"), "process_sm": ("Its own processes", "ratio"),
    "last_kernel": ("Last kernel", "s"), "tensor": ("Tensor pipes", "ratio"), "dram": ("Memory bandwidth", "ratio"),
    "copy": ("Copy engine", "%"), "enc": ("Encoder", "%"), "dec": ("Decoder", "%"), "pcie": ("PCIe traffic", "B/s"),
    "fb_growth": ("Memory growth", "MiB"), "power": ("Power", "W"), "requests": ("Requests", ""),
}
_ENDS: Final = frozenset({Happened.resumed, Happened.brought_back})
_KEEP_ENDS: Final = frozenset({Happened.keep_ended, Happened.released, Happened.kept})


class MayTold(answers.Shape, frozen=True, kw_only=True):
    """`missing`: the right that lacks; `command`: what does the same at a keyboard."""

    allowed: bool
    missing: str | None
    command: str


class MayDo(answers.Shape, frozen=True, kw_only=True):
    keep: MayTold
    pause: MayTold
    resume: MayTold


class CheckTold(answers.Shape, frozen=True, kw_only=True):
    group: Literal["idle", "pausable", "waiting"]
    state: Literal["ok", "failed", "waiting"]
    sentence: str
    limit: str | None = None
    reason: str | None = None
    helps: str | None = None


class SignalTold(answers.Shape, frozen=True, kw_only=True):
    signal: str
    name: str
    measured: float | None
    unit: str
    limit: float | None
    primary: bool


class EpisodeStep(answers.Shape, frozen=True, kw_only=True):
    at: str
    kind: Literal["work", "gap", "idle", "told", "kept", "now", "pause", "paused", "resumed"]
    headline: str
    sentence: str


class WriteTold(answers.Shape, frozen=True, kw_only=True):
    method: str
    path: str
    body: dict[str, Any]


class PauseBefore(answers.Shape, frozen=True, kw_only=True):
    at: str
    until: str | None
    by: str | None
    ready_after_seconds: int | None
    regretted: bool


class SpentTold(answers.Shape, frozen=True, kw_only=True):
    idle: float | None
    idle_seconds: int | None


class KeepOffered(answers.Shape, frozen=True, kw_only=True):
    hours: int
    until: str
    cost: float | None


class FullExplanation(naming.Explanation, frozen=True, kw_only=True):
    """What `fallow why` says, and what the page of a workload shows beside it."""

    revision: int
    row: telling.ApiRow
    sentence: str
    threshold: float
    grace_seconds: float
    keep_hours: tuple[int, ...]
    max_keep_hours: float
    keep_cost: tuple[KeepOffered, ...]
    may: MayDo
    checks: tuple[CheckTold, ...]
    signals: tuple[SignalTold, ...]
    episode: tuple[EpisodeStep, ...]
    writes: tuple[WriteTold, ...]
    was: str | None
    notes: tuple[str, ...]
    gitops: str | None
    kept_before: tuple[telling.KeepTold, ...]
    paused_before: tuple[PauseBefore, ...]
    spent: SpentTold


def nobody_may(ref: cluster.Ref, missing: str | None = None) -> MayDo:
    """Before anybody was asked: no. The commands say how it is done at a keyboard."""
    typed = f"{kinds.typed(ref)} -n {ref.namespace}"
    return MayDo(**{
        verb: MayTold(allowed=False, missing=missing, command=f"fallow {command} {typed}")
        for verb, command in (("keep", "ack"), ("pause", "pause"), ("resume", "resume"))
    })


def explain(
    base: naming.Explanation, finding: decision.Finding, row: telling.ApiRow, *, now: Instant, may: MayDo,
    past: Sequence[AuditEntry], writes: Sequence[Write], frozen: str | None,
) -> FullExplanation:
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    workload, rule = finding.workload, finding.rule
    kind = kinds.of(workload)
    hours = facts.offered_hours(rule.consent)
    seconds = row.idle_seconds
    return FullExplanation(
        **fields, revision=row.revision, row=row, sentence=tell_sentence(row), threshold=rule.activity,
        grace_seconds=rule.notice.grace, keep_hours=hours, max_keep_hours=rule.consent.max_ack / HOUR,
        keep_cost=tuple(_offer(each, now, row.per_hour) for each in hours), may=may,
        checks=tuple(find_checks(finding, base, row, frozen)), signals=tuple(tell_signals(base, finding)),
        episode=tuple(tell_episode(finding, row, now)), writes=tuple(map(_tell_write, writes)),
        was=_tell_was(kind, workload) if writes else None,
        notes=tuple(text.warnings(workload, kind, rule)) if kind else (), gitops=_gitops(workload),
        kept_before=tuple(find_keeps(past)), paused_before=tuple(find_pauses(past)),
        spent=SpentTold(
            idle=None if seconds is None or row.per_hour is None else round(row.per_hour * seconds / HOUR, 2),
            idle_seconds=seconds,
        ),
    )


def _offer(hours: int, now: Instant, per_hour: float | None) -> KeepOffered:
    cost = None if per_hour is None else round(per_hour * hours, 2)
    return KeepOffered(hours=hours, until=units.rfc3339(now + hours * HOUR), cost=cost)


# ---- sentences -------------------------------------------------------------------------------------------------------


def tell_sentence(row: telling.ApiRow) -> str:
    """The first thing a person reads."""
    if row.rest is not None:
        return f"Resting since {row.rest.at}. One press brings it back."
    if row.state == "busy":
        return "At work. Nothing to do."
    if row.state == "resuming":
        return "Coming back: its pods are starting."
    if row.state == "unknown":
        return f"Cannot tell whether it works: {row.because}. It will not be paused meanwhile."
    idle = _tell_idle(row)
    if row.keep is not None and row.state == "kept":
        return f"{idle} {row.keep.by} keeps it until {row.keep.until}."
    if row.state == "left":
        return f"{idle} fallow leaves it alone: {row.skip_because}."
    if row.next is None:
        return f"{idle} Nothing will be done to it."
    when = "in the next cycle" if row.next.at is None else f"at {row.next.at}"
    if row.next.type == "notice":
        return f"{idle} Its owner will be told {when}."
    wait = f" {row.skip_because}." if row.skip_because and row.state == "idle" else ""
    earliest = "" if row.next.at is None else " at the earliest"
    return f"{idle} It will be paused {when}{earliest}, unless you keep it.{wait}"


def _tell_idle(row: telling.ApiRow) -> str:
    pieces = max(1, row.instances)
    where = "its GPU" if pieces == 1 else f"any of its {pieces} GPUs"
    if row.idle_seconds is None:
        return f"No work on {where}."
    span = units.spoken(row.idle_seconds)
    if row.never_used:
        return f"Never used in {span} on {where}."
    return f"No work for {'at least ' if row.at_least else ''}{span} on {where}."


# ---- the checks ------------------------------------------------------------------------------------------------------


def find_checks(
    finding: decision.Finding, base: naming.Explanation, row: telling.ApiRow, frozen: str | None
) -> Iterator[CheckTold]:
    if row.rest is not None:
        yield CheckTold(group="idle", state="ok", sentence=answers.capital(row.rest.reason))
    else:
        yield from _check_idle(finding, base)
        yield from _check_pausable(finding, row, frozen)
        yield from _check_waiting(finding, row)


def _check_idle(finding: decision.Finding, base: naming.Explanation) -> Iterator[CheckTold]:
    rule = finding.rule
    if finding.verdict is Verdict.unknown:
        yield CheckTold(
            group="idle", state="failed", sentence=answers.capital(finding.because), reason=str(finding.reason),
            helps=reasons.of(decision.Heading(finding.verdict, finding.reason)).helps,
        )
    measured, pods = len(base.gpus), len({gpu.pod for gpu in base.gpus})
    if measured:
        yield CheckTold(
            group="idle", state="ok" if measured >= finding.gpus else "failed",
            sentence=_tell_measured(measured, finding.gpus, pods), limit=f"{measured} of {finding.gpus}",
        )
    if finding.coverage is not None:
        yield CheckTold(
            group="idle", state="ok" if finding.coverage >= rule.coverage else "failed",
            sentence=f"{_percent(finding.coverage)} of the window is covered", limit=f"needs {_percent(rule.coverage)}",
        )
    highest = _highest(base)
    if highest is not None:
        is_quiet = highest < rule.activity
        yield CheckTold(
            group="idle", state="ok" if is_quiet else "failed", limit=f"busy from {_percent(rule.activity)}",
            sentence=f"Highest activity in {units.spoken(finding.window)} was {_percent(highest)}",
            reason=None if is_quiet else str(finding.reason),
        )


def _tell_measured(measured: int, held: int, pods: int) -> str:
    if measured < held:
        return f"{answers.many(measured, 'GPU')} of {answers.many(pods, 'pod')} measured"
    if measured == 1:
        return "Its GPU is measured"
    return f"All {measured} GPUs of {answers.many(pods, 'pod')} are measured"


def _percent(ratio: float) -> str:
    """One decimal below ten percent, where it has one."""
    shown = round(100 * ratio, 1)
    return f"{shown:g}\N{NO-BREAK SPACE}%" if shown < 10 else f"{100 * ratio:.0f}\N{NO-BREAK SPACE}%"


def _highest(base: naming.Explanation) -> float | None:
    ratios = {signal.label for signal in usage.RATIOS}
    found = [
        seen.max for gpu in base.gpus for name, seen in gpu.signals.items() if name in ratios and seen.max is not None
    ]
    return max(found, default=None)


def _check_pausable(finding: decision.Finding, row: telling.ApiRow, frozen: str | None) -> Iterator[CheckTold]:
    is_left = row.group in ("leftAlone", "kept") and finding.skip is not None
    if is_left:
        heading = decision.Heading(finding.verdict, finding.skip or finding.reason, finding.detail)
        yield CheckTold(
            group="pausable", state="failed", sentence=answers.capital(finding.skip_because), reason=heading.label,
            helps=reasons.of(heading).helps,
        )
    elif row.keep is not None:
        yield CheckTold(group="pausable", state="failed", sentence=f"Kept by {row.keep.by}", reason="Acknowledged")
    else:
        yield CheckTold(group="pausable", state="ok", sentence="Not kept, not opted out")
    kind = kinds.of(finding.workload)
    if kind is not None and not is_left:
        yield CheckTold(group="pausable", state="ok", sentence=f"A {kind.kind} can be {kind.verb}")
    state: Literal["ok", "failed"] = "ok" if frozen is None else "failed"
    words = "Not frozen" if frozen is None else f"Frozen: {frozen}"
    yield CheckTold(group="pausable", state=state, sentence=words, reason=None if frozen is None else "Frozen")


def _check_waiting(finding: decision.Finding, row: telling.ApiRow) -> Iterator[CheckTold]:
    if row.group not in ("willPause", "onTheWay"):
        return
    if finding.skip is not None:
        limit = None if finding.next_at is None else f"until {units.rfc3339(finding.next_at)}"
        yield CheckTold(
            group="waiting", state="waiting", sentence=answers.capital(finding.skip_because), limit=limit,
            reason=finding.skip_label,
        )
    yield CheckTold(group="waiting", state="waiting", sentence="A second look just before the pause")


# ---- measured --------------------------------------------------------------------------------------------------------


def tell_signals(base: naming.Explanation, finding: decision.Finding) -> Iterator[SignalTold]:
    """The highest of all its GPUs; None: no GPU has it."""
    primaries = {signal.label for signal in usage.PRIMARIES}
    limits = {signal.label: limit for signal, limit in brain.LIMITS.items()}
    ratios = {signal.label for signal in usage.RATIOS} | {"tensor", "dram"}
    seen = dict.fromkeys(name for gpu in base.gpus for name in gpu.signals)
    for name in sorted(seen, key=lambda each: list(_SIGNALS).index(each) if each in _SIGNALS else len(_SIGNALS)):
        values = [gpu.signals[name].max for gpu in base.gpus if name in gpu.signals]
        called, unit = _SIGNALS.get(name, (name, ""))
        limit = finding.rule.activity if name in ratios else finding.rule.power_watts if name == "power" else None
        known = [value for value in values if value is not None]
        yield SignalTold(
            signal=name, name=called, measured=max(known) if known else None, unit=unit,
            limit=limits.get(name, limit), primary=name in primaries,
        )


def tell_episode(finding: decision.Finding, row: telling.ApiRow, now: Instant) -> Iterator[EpisodeStep]:
    if row.rest is not None:
        yield EpisodeStep(at=row.rest.at, kind="paused", headline="Paused", sentence=row.rest.reason)
        return
    if finding.idle_since is None:
        return
    began, window = units.rfc3339(finding.idle_since), finding.window
    if finding.never_used:
        yield EpisodeStep(at=began, kind="idle", headline="Started", sentence="it has not worked since")
    else:
        words = "at the latest: nobody looked further back" if finding.at_least else "nothing above the threshold since"
        yield EpisodeStep(at=began, kind="work", headline="Last work", sentence=words)
    found = f"{units.spoken(window)} without work"
    yield EpisodeStep(at=units.rfc3339(finding.idle_since + window), kind="idle", headline="Idle", sentence=found)
    if row.told_at is not None:
        yield EpisodeStep(at=row.told_at, kind="told", headline="Owner told", sentence=", ".join(row.told_to) or "told")
    if row.keep is not None and row.keep.at is not None:
        why = f": “{row.keep.reason}”" if row.keep.reason else ""
        yield EpisodeStep(at=row.keep.at, kind="kept", headline="Kept", sentence=f"by {row.keep.by}{why}")
    yield EpisodeStep(at=units.rfc3339(now), kind="now", headline="Now", sentence=finding.because)
    if row.next is not None and row.next.type == "pause" and row.next.at is not None:
        sentence = "after a second look; nothing is deleted"
        yield EpisodeStep(at=row.next.at, kind="pause", headline="Pause", sentence=sentence)


# ---- what a pause writes ---------------------------------------------------------------------------------------------


def _tell_write(write: Write) -> WriteTold:
    return WriteTold(method="PATCH", path=_path_of(write.ref, write.subresource), body=write.body)


def _path_of(ref: cluster.Ref, subresource: str | None) -> str:
    """As an API server calls it; the plural as nearly all are made."""
    root = f"/apis/{ref.group}/{ref.version}" if ref.group else f"/api/{ref.version}"
    singular = ref.kind.lower()
    plural = f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}{'es' if singular.endswith('s') else 's'}"
    return "/".join(filter(None, (f"{root}/namespaces/{ref.namespace}/{plural}/{ref.name}", subresource)))


def _tell_was(kind: kinds.Kind | None, workload: cluster.Workload) -> str | None:
    replicas = bodies.current_replicas(kind, workload) if kind else None
    return None if replicas is None else f"was {replicas}; resume writes {replicas}"


def _gitops(workload: cluster.Workload) -> str | None:
    """What an Argo CD Application must have, lest it undo the pause."""
    return gitops.make_snippet(workload.ref, "argocd") if kinds.gitops_tool(workload) == "Argo CD" else None


# ---- before ----------------------------------------------------------------------------------------------------------


def find_keeps(past: Sequence[AuditEntry]) -> Iterator[telling.KeepTold]:
    """Those that are over, the newest first: until what ended each. `past`: the newest first."""
    ended: AuditEntry | None = None
    for entry in past:
        if entry.type is Happened.kept and ended is not None:
            yield telling.KeepTold(
                until=units.rfc3339(ended.at), by=entry.actor, reason=entry.reason or None,
                at=units.rfc3339(entry.at), idle_seconds=None, cost=None,
            )
        ended = entry if entry.type in _KEEP_ENDS else ended


def find_pauses(past: Sequence[AuditEntry]) -> Iterator[PauseBefore]:
    """Those that are over, the newest first."""
    ended: AuditEntry | None = None
    regretted = {entry.at for entry in past if entry.type is Happened.regretted}
    for entry in past:
        if entry.type is Happened.paused and ended is not None:
            yield PauseBefore(
                at=units.rfc3339(entry.at), until=units.rfc3339(ended.at), by=ended.actor, ready_after_seconds=None,
                regretted=ended.at in regretted,
            )
            ended = None
        ended = entry if entry.type in _ENDS else ended

