"""What one cycle amounted to: our metrics, the sentence for the log, the fields of an audit line.

In: a Cycle. Out: counters moved, text. Nothing is counted twice: what lasts over cycles (an ack that prevents a pause)
is counted once per episode, and only what was really done counts as done. A cycle that could not know anything leaves
the numbers of the last one that did.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fallow import names, telemetry
from fallow.account import acks, gauges, hours, saved, work_gauges
from fallow.model import cluster, decision, units
from fallow.model.decision import Outcome, Reason, Status, Verdict
from fallow.model.history import AuditEntry, Happened
from fallow.model.policies.idle import ChannelType
from fallow.model.units import Instant

_MOST_NAMED = 3  # workloads named in the log's sentence
_SAID = {  # of the reasons to leave idle ones alone
    Reason.Acknowledged: "acknowledged", Reason.InNotice: "in notice", Reason.Capped: "capped",
    Reason.Confirming: "confirming",
}
_AT_REST = (Reason.AlreadyPaused, Reason.NoGpuPods)  # nothing runs, so there is nothing to tell


class Books:
    """Keeps the metrics in step with the cycles."""

    def __init__(self, metrics: telemetry.Telemetry, *, dry_run: bool, source: str) -> None:
        self._metrics, self._source = metrics, source
        self._mode = "dry-run" if dry_run else "scale-down"
        self._hours = hours.Hours(metrics)
        self._acks = acks.Acks(metrics)
        self._saved = saved.Saved(metrics, mode=self._mode)
        self._gauges, self._work = gauges.Gauges(metrics), work_gauges.WorkGauges(metrics)

    def enter(self, cycle: decision.Cycle, now: Instant) -> None:
        self._metrics.observe("fallow_idle_cycle_duration_seconds", cycle.took)
        self._metrics.add("fallow_idle_cycles_total", 1, ("failure" if cycle.failure else "success",))
        if cycle.failure:
            self._metrics.add("gpu_pruner_query_failures_total")
            self._hours.forget()
            self._acks.forget()
            self._saved.forget()
            self._work.forget()
        else:
            self._metrics.add("gpu_pruner_query_successes_total")
            self._metrics.set("fallow_idle_last_success_timestamp_seconds", now)
        if cycle.plan is not None and cycle.snapshot is not None:
            self._enter_look(cycle.plan, cycle.snapshot)
            if not cycle.failure:
                self._enter_plan(cycle.plan, cycle.snapshot)
        for outcome in cycle.outcomes:
            self._enter_outcome(outcome)

    def enter_regrets(self, entries: Iterable[AuditEntry]) -> None:
        """Of the audit: nobody else knows which pause a resume undid."""
        for entry in entries:
            if entry.type is Happened.regretted:
                self._metrics.add("fallow_idle_regrets_total", 1, (entry.policy,))

    def _enter_look(self, plan: decision.Plan, seen: cluster.Snapshot) -> None:
        """What is true also of a look that learned nothing of the GPUs."""
        self._metrics.set("fallow_idle_source_up", seen.evidence.trouble is None, (self._source,))
        self._metrics.set("fallow_idle_frozen", plan.freeze is not None)
        self._metrics.replace("fallow_idle_lost_signals", {(lost.signal,): 1 for lost in seen.evidence.lost_signals})
        verdicts = {(str(each.verdict), each.label): count for each, count in plan.totals.verdicts.items()}
        self._metrics.replace("fallow_idle_workloads", verdicts)
        self._metrics.replace("fallow_idle_gpus", plan.totals.gpus_by_model)
        self._metrics.set("fallow_idle_pressure_gpus", plan.totals.waiting_gpus)
        self._gauges.enter(seen)
        self._work.enter(seen)

    def _enter_plan(self, plan: decision.Plan, seen: cluster.Snapshot) -> None:
        totals, metrics = plan.totals, self._metrics
        metrics.add("gpu_pruner_query_candidates_total", totals.idle_gpus)
        pauses = sum(isinstance(each, decision.Pause) for each in plan.decisions)
        metrics.add("gpu_pruner_query_shutdown_events_total", pauses)
        metrics.set("fallow_idle_planned_pauses", pauses)
        metrics.set("gpu_pruner_idle_gpus", totals.idle_gpus)
        metrics.set("gpu_pruner_idle_workloads", _count_idle(totals))
        metrics.set("gpu_pruner_acknowledged_workloads", _count_idle(totals, Reason.Acknowledged))
        metrics.set("gpu_pruner_pods_checked", totals.pods)
        metrics.add("gpu_pruner_pods_checked_total", totals.pods)
        self._hours.enter(plan, seen.workloads)
        self._acks.enter(plan, seen)
        self._saved.enter(plan, seen)

    def _enter_outcome(self, outcome: Outcome) -> None:
        act = outcome.decision
        workload, result = decision.workload_of(act), str(outcome.status)
        kind = workload.ref.kind if workload else "fallow"
        self._metrics.add("fallow_idle_actions_total", 1, (type(act).__name__.lower(), kind, self._mode, result))
        self._enter_deliveries(outcome)
        if isinstance(act, decision.Warn) and outcome.status is Status.dry_run:
            for channel in act.channels:
                self._metrics.add("fallow_idle_notices_total", 1, (channel.type, result))
        elif isinstance(act, decision.Resume) and outcome.status is Status.done:
            by = "controller" if act.by == names.FIELD_MANAGER else "user"
            self._metrics.add("fallow_idle_resumes_total", 1, (kind, by))
        elif isinstance(act, decision.Mark) and names.PAUSE_REVERSALS in act.changes and outcome.status is Status.done:
            self._metrics.add("fallow_idle_fights_total", 1, (kind,))
            self._metrics.add("fallow_idle_resumes_total", 1, (kind, "external"))
        elif isinstance(act, decision.Pause) and self._mode == "scale-down":
            self._enter_pause(act.finding.workload.ref, outcome.status)

    def _enter_deliveries(self, outcome: Outcome) -> None:
        for each in outcome.deliveries:
            if isinstance(outcome.decision, decision.Warn):
                self._metrics.add("fallow_idle_notices_total", 1, (each.type, "failed" if each.failure else "done"))
            if each.type == ChannelType.slack:
                what = "notification_failures" if each.failure else "notifications_sent"
                self._metrics.add(f"gpu_pruner_slack_{what}_total")

    def _enter_pause(self, ref: cluster.Ref, status: Status) -> None:
        if status is Status.done:
            self._metrics.add("gpu_pruner_scale_successes_total")
            self._metrics.add_for_workload("gpu_pruner_scales_total", 1, (ref.kind, ref.namespace, ref.name))
            self._metrics.add("gpu_pruner_scales_by_kind_total", 1, (ref.kind,))
        elif status is Status.failed:
            self._metrics.add("gpu_pruner_scale_failures_total")


def _count_idle(totals: decision.Totals, reason: Reason | None = None) -> int:
    """Idle workloads; only those left alone for this reason, where one is given."""
    idle = ((each, count) for each, count in totals.verdicts.items() if each.verdict is Verdict.idle)
    return sum(count for each, count in idle if reason in (None, each.reason))


def sentence(plan: decision.Plan, outcomes: Sequence[Outcome], failure: str) -> str:
    """One line a cycle that a tired person understands."""
    totals = plan.totals
    parts = [
        f"looked at {units.many(totals.gpus, 'GPU')} in {units.many(totals.workloads, 'workload')}: "
        f"{totals.active_gpus} busy, {totals.idle_gpus} idle{_idle_detail(totals)}, "
        f"{totals.unknown_gpus} cannot tell{_unknown_detail(totals)}"
    ]
    if failure:
        parts.append(f"no decision: {failure}")
    if plan.freeze is not None:
        parts.append(str(plan.freeze))
    for status, verb in ((Status.done, "paused"), (Status.dry_run, "would pause"), (Status.failed, "failed to pause")):
        acts = (outcome.decision for outcome in outcomes if outcome.status is status)
        if paused := [act.finding for act in acts if isinstance(act, decision.Pause)]:
            parts.append(f"{verb} {_name(paused, plan.at)}")
    return "; ".join(parts)


def _idle_detail(totals: decision.Totals) -> str:
    idle, said = _count_idle(totals), ((word, _count_idle(totals, reason)) for reason, word in _SAID.items())
    details = ", ".join(f"{count} {word}" for word, count in said if count)
    return f" ({units.many(idle, 'workload')}{': ' if details else ''}{details})" if idle else ""


def _unknown_detail(totals: decision.Totals) -> str:
    unknown = [(count, each.label) for each, count in totals.verdicts.items()
               if each.verdict is Verdict.unknown and each.reason not in _AT_REST]
    named = ", ".join(f"{label} {count}" for count, label in sorted(unknown, reverse=True)[:_MOST_NAMED])
    return f" ({named})" if named else ""


def _name(paused: Sequence[decision.Finding], now: Instant) -> str:
    named = []
    for one in paused[:_MOST_NAMED]:
        quiet = f" idle {units.humane(now - one.idle_since)}" if one.idle_since is not None else ""
        named.append(f"{one.workload.ref.namespace}/{one.workload.ref.name} ({one.gpus} GPUs{quiet})")
    rest = len(paused) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def audit_fields(outcome: Outcome) -> Mapping[str, Any]:
    """Everything about one act that somebody may ask for later."""
    act, workload = outcome.decision, decision.workload_of(outcome.decision)
    fields: dict[str, Any] = {
        "audit": type(act).__name__, "at": units.rfc3339(outcome.at), "actor": getattr(act, "by", names.FIELD_MANAGER),
        "result": str(outcome.status), "before": outcome.before, "after": outcome.after,
    }
    if workload is not None:
        parts = ("group", "kind", "namespace", "name", "uid")
        fields["workload"] = {part: getattr(workload.ref, part) for part in parts}
    if isinstance(act, decision.Warn | decision.Pause):
        found, rule = act.finding, act.finding.rule.name
        fields |= {"verdict": str(found.verdict), "reason": str(found.reason), "because": found.because, "policy": rule}
    return fields
