"""Workloads as data: what we think of them, why, what comes next, what was done; and in which order people want it.

In: findings, plans, outcomes, acknowledgements. Out: dictionaries and words; layout is the door's matter.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fallow import names, verbs
from fallow.act.notices import text
from fallow.doors import answers
from fallow.model import cluster, decision, kinds, marks, units, usage
from fallow.model.units import Instant

ORDER = (decision.Verdict.idle, decision.Verdict.unknown, decision.Verdict.active)  # what wants attention first
PAUSED = "paused"


def reference(ref: cluster.Ref) -> dict[str, Any]:
    named = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    return {"apiVersion": ref.api_version, "kind": ref.kind, **named}


def row(finding: decision.Finding, now: Instant) -> dict[str, Any]:
    """One line of `fallow idle`."""
    return {
        **reference(finding.workload.ref),
        "gpus": finding.gpus, "idleGpus": finding.idle_gpus, "models": list(finding.models),
        "verdict": str(finding.verdict), "reason": str(finding.reason), "because": finding.because,
        "idleSince": answers.instant(finding.idle_since), "atLeast": finding.at_least,
        "idleSeconds": None if finding.idle_since is None else round(now - finding.idle_since),
        "pausedAt": answers.instant(marks.paused_at(finding.workload)), "policy": finding.rule.name,
        "skip": finding.skip_label, "skipBecause": finding.skip_because or None, "nextAction": _next_action(finding),
    }


def _next_action(finding: decision.Finding) -> dict[str, Any] | None:
    upcoming = finding.next_action
    return None if upcoming is None else {"type": str(upcoming), "at": answers.instant(finding.next_at)}


def explanation(
    finding: decision.Finding, gpus: Sequence[decision.GpuFinding], patch: Mapping[str, Any] | None, now: Instant,
    lost: Sequence[usage.LostSignal] = (),
) -> dict[str, Any]:
    """The full answer to "why", with the evidence GPU by GPU, and what was `lost`. `patch`: what a pause sends."""
    skip = [] if finding.skip is None else [{"skip": finding.skip_label, "because": finding.skip_because}]
    return {
        "workload": reference(finding.workload.ref), "verdict": str(finding.verdict),
        "reasons": [{"reason": str(finding.reason), "because": finding.because}], "skips": skip,
        "policy": finding.rule.name,
        "idleSince": answers.instant(finding.idle_since), "atLeast": finding.at_least, "neverUsed": finding.never_used,
        "pausedAt": answers.instant(marks.paused_at(finding.workload)), "windowSeconds": round(finding.window),
        "coverage": finding.coverage, "gpus": [_gpu(gpu) for gpu in gpus],
        "lostSignals": [{"signal": each.signal, "because": each.because} for each in lost],
        "owner": [{"kind": link.kind, "name": link.name, "uid": link.uid} for link in finding.workload.chain],
        "nextAction": _next_action(finding), "patch": patch, "cost": None, "asOf": answers.instant(now),
    }


def _gpu(gpu: decision.GpuFinding) -> dict[str, Any]:
    return {
        "uuid": gpu.gpu, "node": gpu.node, "pod": gpu.pod, "model": gpu.model,
        "verdict": str(gpu.verdict), "reason": str(gpu.reason), "because": gpu.because,
        "signals": {name: _signal(values) for name, values in gpu.signals.items()},
    }


def _signal(values: Mapping[str, float | None]) -> dict[str, Any]:
    samples, newest = values.get("samples"), answers.instant(values.get("newest"))
    mean = {"mean": values["mean"]} if "mean" in values else {}  # of primary ratios only
    return {"max": values.get("max"), **mean, "samples": None if samples is None else round(samples), "newest": newest}


def totals(numbers: decision.Totals) -> dict[str, Any]:
    counts = sorted(numbers.verdicts.items(), key=lambda item: -item[1])
    return {
        "workloads": numbers.workloads, "pods": numbers.pods, "gpus": numbers.gpus,
        "activeGpus": numbers.active_gpus, "idleGpus": numbers.idle_gpus, "unknownGpus": numbers.unknown_gpus,
        "verdicts": [{"verdict": str(on.verdict), "reason": on.label, "workloads": count} for on, count in counts],
    }


def status(plan: decision.Plan, seen: cluster.Snapshot, paused: Iterable[cluster.Workload]) -> dict[str, Any]:
    """The cluster in numbers, what stands paused by us, and what could not be seen."""
    trouble = seen.evidence.trouble
    return {
        **totals(plan.totals), "paused": [reference(workload.ref) for workload in paused],
        "frozenUntil": answers.instant(plan.freeze.until if plan.freeze else None),
        "source": None if trouble is None else {"reason": trouble.reason, "because": trouble.because},
        "missing": [{"what": missing.what, "because": missing.because} for missing in seen.missing],
        "asOf": answers.instant(plan.at),
    }


def outcome(done: decision.Outcome) -> dict[str, Any]:
    return {"status": str(done.status), "at": answers.instant(done.at), "detail": done.detail, "after": done.after}


def paused(workload: cluster.Workload) -> dict[str, Any]:
    """What stands paused by us: since when, by whom, why, how many GPUs it gave back, and how to bring it back."""
    kind, ref = kinds.of(workload), workload.ref
    said = kinds.record_target(kind, workload).annotations if kind else {}
    return {
        "namespace": ref.namespace, "workload": text.typed(ref), "since": said.get(names.PAUSED_AT),
        "by": said.get(names.PAUSED_BY), "gpus": marks.read_count(said.get(names.PAUSED_GPUS)),
        "reason": said.get(names.PAUSED_REASON),
    }


def ack(found: verbs.Ack) -> dict[str, str | None]:
    named = {"namespace": found.ref.namespace, "workload": found.ref.short}
    return {**named, "until": found.until, "by": found.by, "reason": found.reason}


def freeze(answer: verbs.FreezeAnswer, namespace: str) -> dict[str, str | bool | None]:
    frozen = {"frozen": answer.until is not None, "until": answer.until}
    return {**frozen, "namespace": namespace, "holder": answer.holder or None, "answer": str(answer.heard)}


def verdict(finding: decision.Finding) -> str:
    """What stands paused by us holds no GPU that could be judged: people want to see that, not that we cannot tell."""
    is_paused = finding.gpus == 0 and marks.paused_at(finding.workload) is not None
    return PAUSED if is_paused else str(finding.verdict)


def next_step(finding: decision.Finding) -> str:
    """What comes next, or why nothing does."""
    if verdict(finding) == PAUSED:
        return finding.skip_label or ""
    if finding.verdict is not decision.Verdict.idle:
        return str(finding.reason)
    if finding.skip is not None:
        until = f" until {units.clock_time(finding.next_at)} UTC" if finding.next_at else ""
        return f"{finding.skip_label}{until}"
    return str(finding.next_action or "")


def listed(plan: decision.Plan, *, everything: bool) -> list[decision.Finding]:
    """Those that are idle, or all; what wants attention first, the longest idle before the others."""
    findings = [plan.findings[index] for index in range(len(plan.findings))]
    shown = [each for each in findings if everything or each.verdict is decision.Verdict.idle]
    shown.sort(key=lambda each: (ORDER.index(each.verdict), each.idle_since or plan.at, str(each.workload.ref)))
    return shown


def counted(numbers: decision.Totals) -> list[tuple[str, str, int]]:
    """(verdict, reason, workloads): what wants attention first, the many before the few."""
    rows = sorted(numbers.verdicts.items(), key=lambda row: (ORDER.index(row[0].verdict), -row[1], row[0].label))
    at_rest = decision.Reason.AlreadyPaused
    return [(PAUSED if on.reason is at_rest else str(on.verdict), on.label, count) for on, count in rows]
