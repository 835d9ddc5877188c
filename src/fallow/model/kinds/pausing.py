"""What the table says of one workload: through which object it is paused, whether it is, what a pause would bring.

In: a row and a Workload as the eyes saw it (its body pruned to what its row `reads`), and the rule that applies.
Out: which fields of which object to write, whether it is paused or finished, warnings, and every objection to a pause.
What is written, where (`pause_target`) and where the record of the way back stands (`record_target`) differ only under
KEDA and Kueue.
Invariant: nothing here guesses; companions that are unclear are an objection, never a pause.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from fallow import names
from fallow.model import cluster, pointers
from fallow.model.decision import Detail
from fallow.model.kinds import table
from fallow.model.kinds.row import Fields, Kind, Objection
from fallow.model.policies import idle
from fallow.model.units import Instant


class Way(StrEnum):
    """Through which object a workload is paused."""

    own = "own"  # its own fields
    scale = "scale"  # its /scale, because we may not know where its replicas stand
    keda = "keda"  # its ScaledObject; the record is on the workload
    kueue = "kueue"  # its Kueue Workload, which also carries the record; nothing is written on the job


class Target(msgspec.Struct, frozen=True):
    """One object that a pause writes on. `body` has the annotations in their place."""

    ref: cluster.Ref
    resource_version: str
    annotations: Mapping[str, str]
    body: Mapping[str, Any]


def view(body: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    """The object as its pointers see it: what was read of it, with its annotations in their place."""
    return {**body, "metadata": {"annotations": dict(annotations)}}


def way(kind: Kind, workload: cluster.Workload) -> Way:
    if kind.is_queued and len(workload.kueue) == 1:
        return Way.kueue
    if kind.replica_path and kind.verb == "scaled to 0" and len(scalers(workload)) == 1:
        return Way.keda
    return own_way(kind, workload)


def own_way(kind: Kind, workload: cluster.Workload) -> Way:
    return Way.scale if kind.letter == "x" and workload.replicas_pointer is None else Way.own


def scalers(workload: cluster.Workload) -> tuple[cluster.Companion, ...]:
    """The ScaledObjects that scale this very object; those of its children belong to its operator."""
    own = (workload.ref.group, workload.ref.kind, workload.ref.name)
    return tuple(scaler for scaler in workload.scaled_objects if scale_target(scaler.body) == own)


def scale_target(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """(group, kind, name) of an HPA's or a ScaledObject's scaleTargetRef; the defaults are KEDA's."""
    target = pointers.read(body, "/spec/scaleTargetRef") or {}
    group = str(target.get("apiVersion") or "apps/v1").rpartition("/")[0]
    return group, target.get("kind") or "Deployment", target.get("name") or ""


def pause_target(kind: Kind, workload: cluster.Workload) -> Target:
    """The object whose fields stop the workload."""
    through = way(kind, workload)
    return _target(scalers(workload)[0]) if through is Way.keda else record_target(kind, workload)


def record_target(kind: Kind, workload: cluster.Workload) -> Target:
    """The object that carries original-state and paused-*."""
    return _target(workload.kueue[0] if way(kind, workload) is Way.kueue else workload)


def _target(held: cluster.Workload | cluster.Companion) -> Target:
    return Target(held.ref, held.resource_version, held.annotations, view(held.body, held.annotations))


def target_row(kind: Kind, workload: cluster.Workload) -> Kind:
    """The row of the object that pause_target names."""
    return {Way.kueue: table.KUEUE_WORKLOAD, Way.keda: table.SCALED_OBJECT}.get(way(kind, workload), kind)


def pause_fields(kind: Kind, workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    """What a pause writes on its pause_target."""
    return target_row(kind, workload).pauses(workload, rule, now)


def is_paused(kind: Kind, workload: cluster.Workload) -> bool:
    """Does it stand at its pause value, by whomever: itself, its ScaledObject or its Kueue Workload?"""
    if kind.holds(view(workload.body, workload.annotations)):
        return True
    return way(kind, workload) in (Way.keda, Way.kueue) and holds_pause(kind, workload)


def holds_pause(kind: Kind, workload: cluster.Workload) -> bool:
    """Is the very value still set by which we paused it? Marks of a pause count only so long."""
    return target_row(kind, workload).holds(pause_target(kind, workload).body)


def is_finished(kind: Kind, body: Mapping[str, Any]) -> bool:
    """Has it run to its end, well or badly?"""
    if kind.ends is None:
        return False
    where, words = kind.ends
    found = pointers.read(body, where)
    if isinstance(found, list):
        return any(condition.get("type") in words and condition.get("status") == "True" for condition in found)
    return found in words


def warnings(kind: Kind, workload: cluster.Workload) -> list[str]:
    """What a pause of this kind brings with it, one sentence each."""
    lost = ["Suspending it loses the work since its last checkpoint."] if kind.loses_work else []
    above = (table.find(link.group, link.kind) for link in workload.chain if link.uid != workload.ref.uid)
    return [*lost, *kind.warns, *(row.warns_below for row in above if row and row.warns_below)]


# ---- what speaks against a pause -------------------------------------------------------------------------------------


def objection(kind: Kind, workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    """The first thing on the object itself, or on its companions, that speaks against pausing it under this rule."""
    for own in kind.objects:
        if found := own(workload, rule):
            return found
    return (
        _keeps_volumes_below(workload)
        or _is_managed_here(kind, workload)
        or _is_clear_to_kueue(kind, workload)
        or _is_clear_to_autoscalers(kind, workload)
        or _is_left_by_rule(workload, rule)
    )


def _keeps_volumes_below(workload: cluster.Workload) -> Objection | None:
    """Below another object, being deleted is as likely as being scaled."""
    links = [link for link in workload.chain if (link.group, link.kind) in table.WITH_CLAIMS]
    for link, body in zip(links, workload.chain_bodies, strict=False):
        if link.uid != workload.ref.uid and table.would_delete_claims(body, ("whenScaled", "whenDeleted")):
            lost = f"the volumes of {link.kind}/{link.name} below it"
            return Detail.PvcDeletedOnScale, f"pausing {workload.ref.short} would delete {lost}"
    return None


def _is_managed_here(kind: Kind, workload: cluster.Workload) -> Objection | None:
    if kind.manager is None:
        return None
    manager = pointers.read(workload.body, kind.manager[0])
    if manager in (None, "", kind.manager[1]):
        return None
    return Detail.ManagedByOther, f"{workload.ref.short} is managed by {manager}, not by its kind's own controller"


def _is_clear_to_kueue(kind: Kind, workload: cluster.Workload) -> Objection | None:
    managed = names.KUEUE_QUEUE in workload.labels or bool(workload.kueue)
    if not kind.is_queued or not managed or len(workload.kueue) == 1:
        return None
    because = f"Kueue queues {workload.ref.short}, but has {len(workload.kueue)} Workloads for it instead of one"
    return Detail.KueueWorkloadUnclear, because


def _is_clear_to_autoscalers(kind: Kind, workload: cluster.Workload) -> Objection | None:
    if kind.verb != "scaled to 0":
        return None
    short = workload.ref.short
    if len(scalers(workload)) > 1:
        return Detail.ScaledObjectUnclear, f"several ScaledObjects scale {short}"
    if any(pointers.read(hpa.body, "/spec/minReplicas") == 0 for hpa in workload.hpas):
        return Detail.HpaScaleToZero, f"an HPA with minReplicas 0 scales {short} and would wake it at once"
    return None


def _is_left_by_rule(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if rule.action.respect_pdb and workload.budgets:
        because = f"({workload.budgets[0].ref.name}) protects its pods, and the rule respects that"
        return Detail.PdbProtected, f"a PodDisruptionBudget {because}"
    if rule.action.respect_pdb and (unseen := workload.unseen_budgets):
        return Detail.PdbProtected, f"whether a PodDisruptionBudget protects its pods cannot be seen: {unseen}"
    if rule.action.gitops == "report" and (tool := gitops_tool(workload)):
        return Detail.GitOpsManaged, f"{workload.ref.short} is managed by {tool}, and the rule only reports those"
    return None


def gitops_tool(workload: cluster.Workload) -> str | None:
    """Which GitOps tool left its mark on the object."""
    marks = {names.ARGOCD_TRACKING: "Argo CD", names.FLUX_NAME: "Flux", names.HELM_RELEASE: "Helm"}
    return next((tool for mark, tool in marks.items() if mark in workload.annotations or mark in workload.labels), None)
