"""Sentences for people: what was done or will be done to a workload, why, and how to undo or prevent it.

In: findings, decisions, rows of the table of kinds. Out: text, the important part first: its end may be cut.
"""

from fallow import names
from fallow.model import cluster, decision, kinds, units
from fallow.model.policies import idle
from fallow.model.units import Instant

_VERBS = {
    "scaled to 0": ("Scaled", "Would scale"), "suspended": ("Suspended", "Would suspend"),
    "stopped": ("Stopped", "Would stop"),
}


def idle_sentence(finding: decision.Finding, now: Instant) -> str:
    """`12 GPUs idle for 47m (policy default)`."""
    gpus = units.many(finding.gpus, "GPU")
    rule = "flags" if finding.rule.name == "flags" else f"policy {finding.rule.name}"
    if finding.idle_since is None:
        return f"{gpus} idle ({rule})"
    least = "at least " if finding.at_least else ""
    return f"{gpus} idle for {least}{units.humane(now - finding.idle_since)} ({rule})"


def pause_note(
    finding: decision.Finding, kind: kinds.Kind, replicas: int | None, now: Instant, *, is_dry: bool = False
) -> str:
    """What was done, why, and how to undo it; of a dry run what would be done."""
    ref = finding.workload.ref
    done, would = _VERBS[kind.verb]
    size = "" if kind.verb != "scaled to 0" else " to 0" if replicas is None else f" from {replicas} to 0"
    why = idle_sentence(finding, now) if finding.verdict is decision.Verdict.idle else finding.because
    note = f"{would if is_dry else done} {ref.kind} {ref.namespace}/{ref.name}{size}: {why}."
    return note if is_dry else f"{note} Resume: fallow resume {kinds.typed(ref)} -n {ref.namespace}"


def notice_note(finding: decision.Finding, pauses_at: Instant | None, now: Instant) -> str:
    """What will happen, when, how to keep it, and what its owner should know before that."""
    ref, kind = finding.workload.ref, kinds.of(finding.workload)
    parts = [f"{ref.kind} {ref.namespace}/{ref.name}: {idle_sentence(finding, now)}."]
    if pauses_at is not None and kind is not None:
        parts.append(f"It will be {kind.verb} at {units.clock_time(pauses_at)} UTC at the earliest.")
    parts.append(keep_sentence(ref, finding.rule))
    if kind is not None:
        parts += (f"| {warning}" for warning in warnings(finding.workload, kind, finding.rule))
    return " ".join(parts)


def keep_sentence(ref: cluster.Ref, rule: idle.Rule) -> str:
    """How its owner keeps it, for how long: the line as it is typed."""
    held = min(idle.USUAL_ACK, rule.consent.max_ack)
    hours = "" if held == idle.USUAL_ACK else f" --hours {units.hours(held)}"
    return f"Keep it for {units.humane(held)}: fallow ack {kinds.typed(ref)} -n {ref.namespace}{hours}"


def warnings(workload: cluster.Workload, kind: kinds.Kind, rule: idle.Rule) -> list[str]:
    """What a pause of this workload brings with it, one sentence each."""
    found = kinds.warnings(kind, workload)
    found.append(f"While it is paused, a server-side apply of another value conflicts with {names.FIELD_MANAGER}.")
    if rule.action.gitops == "act" and (tool := kinds.gitops_tool(workload)):
        found.append(_gitops_hint(tool, workload.ref))
    return found


def _gitops_hint(tool: str, ref: cluster.Ref) -> str:
    """What the owner's GitOps tool must be told, lest it undo the pause: for Argo CD YAML on one line."""
    if tool != "Argo CD":
        return f"{tool} may undo it at its next run."
    group = f"group: {ref.group}, " if ref.group else ""
    ignored = f"{{{group}kind: {ref.kind}, name: {ref.name}, managedFieldsManagers: [{names.FIELD_MANAGER}]}}"
    snippet = f"{{ignoreDifferences: [{ignored}], syncPolicy: {{syncOptions: [RespectIgnoreDifferences=true]}}}}"
    return f"Argo CD may undo it unless its Application has: {snippet}"
