"""What speaks against a pause of one workload: its own fields, what steers it, and what the rule leaves alone.

In: the row of its kind, the workload as the eyes saw it, the rule. Out: the first objection, a word and a sentence, or
None. The brain asks before a notice, the hands once more before the write.
Invariant: what cannot be seen (a queue, an autoscaler, a budget that the rule respects) is an objection.
"""

from fallow import names
from fallow.model import cluster, kinds, pointers, stops
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.seen import ABSENT, Known, Unseen, sure
from fallow.model.stops import Objection


def find(kind: kinds.Kind, workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    """The first thing on the object itself, or on its companions, that speaks against pausing it under this rule."""
    for own in kind.objects:
        if found := own(workload, rule):
            return found
    return (
        _can_be_marked(kind, workload) or _keeps_volumes(kind, workload) or _is_managed_here(kind, workload)
        or _is_clear_to_kueue(kind, workload) or _is_clear_to_autoscalers(kind, workload)
        or _is_left_by_rule(workload, rule)
    )


def _can_be_marked(kind: kinds.Kind, workload: cluster.Workload) -> Objection | None:
    if kinds.is_markable(workload):
        return None
    lower = kind.marks_on[1] if kind.marks_on else "object"
    because = f"no {lower} of {workload.ref.short} is in sight that could carry a mark"
    return Detail.NoPlaceForMarks, f"{because}; one on itself would restart its pods"


def _keeps_volumes(kind: kinds.Kind, workload: cluster.Workload) -> Objection | None:
    """Its own and those below it: there, being deleted is as likely as being scaled."""
    if kind.deletes_claims and stops.would_delete_claims(workload.body, kind.deletes_claims):
        return Detail.PvcDeletedOnScale, f"scaling {workload.ref.short} to 0 would delete the volumes of its pods"
    if not workload.chain_bodies:  # nearly all
        return None
    links = [link for link in workload.chain if (link.group, link.kind) in kinds.WITH_CLAIMS]
    for link, body in zip(links, workload.chain_bodies, strict=False):
        if link.uid != workload.ref.uid and stops.would_delete_claims(body, ("whenScaled", "whenDeleted")):
            lost = f"the volumes of {link.kind}/{link.name} below it"
            return Detail.PvcDeletedOnScale, f"pausing {workload.ref.short} would delete {lost}"
    return None


def _is_managed_here(kind: kinds.Kind, workload: cluster.Workload) -> Objection | None:
    if kind.manager is None:
        return None
    where, own = kind.manager
    manager = pointers.read(workload.body, where)
    if manager in (None, "", kind.managers.get(workload.ref.version, own)):
        return None
    return Detail.ManagedByOther, f"{workload.ref.short} is managed by {manager}, not by its kind's own controller"


def _is_clear_to_kueue(kind: kinds.Kind, workload: cluster.Workload) -> Objection | None:
    if kind.is_queued and isinstance(workload.kueue, Unseen):
        because = f"whether Kueue manages {workload.ref.short} cannot be seen: {workload.kueue.why}"
        return Detail.KueueWorkloadUnclear, because
    count = len(sure(workload.kueue))
    if not kind.is_queued or count == 1 or (count == 0 and names.KUEUE_QUEUE not in workload.labels):
        return None
    because = f"Kueue queues {workload.ref.short}, but has {count} Workloads for it instead of one"
    return Detail.KueueWorkloadUnclear, because


def _is_clear_to_autoscalers(kind: kinds.Kind, workload: cluster.Workload) -> Objection | None:
    if kind.verb != "scaled to 0":
        return None
    for found, who in ((workload.scaled_objects, "KEDA"), (workload.hpas, "an HPA")):
        if isinstance(found, Unseen):
            return Detail.Unseen, f"whether {who} scales {workload.ref.short} cannot be seen: {found.why}"
    if len(kinds.scalers(workload)) > 1:
        return Detail.ScaledObjectUnclear, f"several ScaledObjects scale {workload.ref.short}"
    if any(pointers.read(hpa.body, "/spec/minReplicas") == 0 for hpa in sure(workload.hpas)):
        return Detail.HpaScaleToZero, f"an HPA with minReplicas 0 scales {workload.ref.short} and would wake it at once"
    return None


def _is_left_by_rule(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    budgets = workload.budgets if rule.action.respect_pdb else ABSENT
    if isinstance(budgets, Known):
        because = f"({budgets.value[0].ref.name}) protects its pods, and the rule respects that"
        return Detail.PdbProtected, f"a PodDisruptionBudget {because}"
    if isinstance(budgets, Unseen):
        return Detail.PdbProtected, f"whether a PodDisruptionBudget protects its pods cannot be seen: {budgets.why}"
    if rule.action.gitops == "report" and (tool := kinds.gitops_tool(workload)):
        return Detail.GitOpsManaged, f"{workload.ref.short} is managed by {tool}, and the rule only reports those"
    return None
