"""The kinds of workload we can pause: one row each. Eyes, brain and hands all read this table; adding a kind is adding a row.

In: a Workload as the eyes saw it (its body pruned to what its row `reads`) and the rule that applies. Out: which fields of which object
to write, whether it stands paused or is finished, and every objection that its own fields raise against a pause.
What is written, where (`pause_target`) and where the record of the way back stands (`record_target`) differ only under KEDA and Kueue.
Invariant: nothing here guesses. A field that is absent is absent; a kind, mode or companion that is unclear is an objection, never a pause.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.model import cluster, kserve, pointers, record, units
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.units import Instant

Fields: TypeAlias = dict[str, Any]  # JSON pointer -> value
Objection: TypeAlias = tuple[Detail, str]  # the word after `ReportOnly:`, and a sentence
Pauses: TypeAlias = Callable[[cluster.Workload, idle.Rule, Instant], Fields]
Holds: TypeAlias = Callable[[Mapping[str, Any]], bool]
Objects: TypeAlias = Callable[[cluster.Workload, idle.Rule], Objection | None]


class Kind(msgspec.Struct, frozen=True):
    """One row. `pauses` gives the fields of a pause; `holds` says of an object (annotations included) that it stands at its pause value."""

    kind: str
    group: str
    versions: tuple[str, ...]  # acceptable, best first; () = whatever discovery prefers
    letter: str  # "" = no workload of its own: a companion
    reads: tuple[str, ...]  # JSON pointers kept in Workload.body; annotations and labels are kept beside it
    verb: Literal["scaled to 0", "suspended", "stopped"]
    event: str
    pauses: Pauses
    holds: Holds
    loses_work: bool = False
    replica_path: str | None = None
    ends: tuple[str, frozenset[str]] | None = None  # where the end is read: a phase, or conditions that are True
    manager: tuple[str, str] | None = None  # where `managedBy` stands, and the controller that is the kind's own
    objects: tuple[Objects, ...] = ()
    resumes: Mapping[str, Any] = {}  # written at resume whatever was recorded
    touches: tuple[str, ...] = ()  # annotations that, where they exist, are set to now at resume

    @property
    def label(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


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


# ---- what a pause writes ------------------------------------------------------------------------------------------------------


def _writes(fields: Fields) -> Pauses:
    return lambda workload, rule, now: dict(fields)


def _stands_at(fields: Fields) -> Holds:
    return lambda body: all(pointers.read(body, pointer) == value for pointer, value in fields.items())


_STOPPED = pointers.annotation(names.NOTEBOOK_STOPPED)
_MIN_SCALE = pointers.join(("spec", "template", "metadata", "annotations", names.KNATIVE_MIN_SCALE))
_RUN_SUSPEND = "/spec/runPolicy/suspend"
_KEDA_REPLICAS = pointers.annotation(names.KEDA_PAUSED_REPLICAS)


def _stop_notebook(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    return {_STOPPED: units.rfc3339(now)}


def _empty_roles(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    roles = pointers.read(workload.body, "/spec/roles") or []
    return {f"/spec/roles/{index}/spec/replicas": 0 for index in range(len(roles))}


def _has_empty_roles(body: Mapping[str, Any]) -> bool:
    roles = pointers.read(body, "/spec/roles") or []
    return bool(roles) and all(pointers.read(role, "/spec/replicas") == 0 for role in roles)


def _is_stopped_knative(body: Mapping[str, Any]) -> bool:
    written = record.fields_in(body["metadata"]["annotations"])
    recorded = any(pointer == _MIN_SCALE or _MIN_SCALE.startswith(f"{pointer}/") for pointer in written)
    return recorded and pointers.read(body, _MIN_SCALE) == "0"


# ---- what speaks against a pause ----------------------------------------------------------------------------------------------


def _keeps_volumes(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if _deletes_claims(workload.body, workload.ref.kind == "StatefulSet"):
        return Detail.PvcDeletedOnScale, f"scaling {workload.ref.short} to 0 would delete the volumes of its pods"
    return None


def _deletes_claims(body: Mapping[str, Any], only_scaled: bool) -> bool:
    """Would the claims made from its templates go with the pods? Below another object, being deleted is as likely as being scaled."""
    spec = pointers.read(body, "/spec/leaderWorkerTemplate") or pointers.read(body, "/spec") or {}
    kept = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    moments = ("whenScaled",) if only_scaled else ("whenScaled", "whenDeleted")
    return bool(spec.get("volumeClaimTemplates")) and any(kept.get(moment) == "Delete" for moment in moments)


def _keeps_volumes_below(workload: cluster.Workload) -> Objection | None:
    links = [link for link in workload.chain if link.kind in ("StatefulSet", "LeaderWorkerSet")]
    for link, body in zip(links, workload.chain_bodies, strict=False):
        if link.uid != workload.ref.uid and _deletes_claims(body, only_scaled=False):
            return Detail.PvcDeletedOnScale, f"pausing {workload.ref.short} would delete the volumes of {link.kind}/{link.name} below it"
    return None


def _is_calm_rollout(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if pointers.read(workload.body, "/spec/paused") is True:
        return Detail.RolloutBusy, f"{workload.ref.short} is paused in the middle of a rollout"
    counted = pointers.read(workload.body, "/spec/strategy/blueGreen/previewReplicaCount") is not None
    status = pointers.read(workload.body, "/status/blueGreen") or {}
    preview, active = status.get("previewSelector"), status.get("activeSelector")
    if counted and preview and preview != active:
        return Detail.RolloutBusy, f"{workload.ref.short} has a preview up with its own replica count"
    return None


def _may_roll_knative(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if not rule.action.allow_knative_rollout:
        return Detail.KnativeRollout, f"pausing {workload.ref.short} would roll a new Revision, which first needs a free GPU"
    if pointers.read(workload.body, _MIN_SCALE) == "0":
        return Detail.AlreadyScalesToZero, f"{workload.ref.short} has min-scale 0 already: Knative itself keeps the pods"
    return None


def _is_suspendable_ray_job(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    status = pointers.read(workload.body, "/status/jobDeploymentStatus")
    if pointers.read(workload.body, "/spec/shutdownAfterJobFinishes") is not True:
        return Detail.RayJobNotSuspendable, f"{workload.ref.short} has no shutdownAfterJobFinishes: KubeRay would fail it for good"
    if pointers.read(workload.body, "/spec/clusterSelector"):
        return Detail.RayJobNotSuspendable, f"{workload.ref.short} runs on a cluster it selected: KubeRay would fail it for good"
    if status not in ("Initializing", "Running"):
        return Detail.RayJobNotSuspendable, f"{workload.ref.short} is {status or 'in no known state'}, not Initializing or Running"
    return None


def _has_roles(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    roles = pointers.read(workload.body, "/spec/roles")
    if roles and all(isinstance(role, Mapping) for role in roles):
        return None
    return Detail.NoRoles, f"{workload.ref.short} has no roles that could be scaled to 0"


def full_scale(scale: Mapping[str, Any]) -> dict[str, Any]:
    """A Scale with its count: the API server leaves a 0 out of it, but never the spec."""
    return {**scale, "spec": {"replicas": 0} | (scale.get("spec") or {})}


def _is_empty_scale(body: Mapping[str, Any]) -> bool:
    return "spec" in body and full_scale(body)["spec"]["replicas"] == 0


def _shows_replicas(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if workload.replicas_pointer is None and "spec" not in workload.body:
        return Detail.ReplicasUnknown, f"neither the definition nor the /scale of {workload.ref.short} could be read"
    return None


# ---- the table ----------------------------------------------------------------------------------------------------------------

_REPLICAS = "/spec/replicas"
_RETENTION = ("/spec/volumeClaimTemplates", "/spec/persistentVolumeClaimRetentionPolicy")
_ORDER = ("/spec/podManagementPolicy", "/spec/template/spec/terminationGracePeriodSeconds")
_LWS_RETENTION = tuple(pointer.replace("/spec", "/spec/leaderWorkerTemplate", 1) for pointer in _RETENTION)
_CONDITIONS = "/status/conditions"
_DONE = frozenset({"Complete", "Completed", "Succeeded", "Failed"})


def _replicas(
    kind: str, group: str, letter: str, *versions: str, at: str = _REPLICAS, reads: tuple[str, ...] = (), objects: tuple[Objects, ...] = (),
) -> Kind:
    return Kind(
        kind, group, versions, letter, (at, "/status/replicas", *reads), "scaled to 0", names.Event.SCALED_TO_ZERO,
        _writes({at: 0}), _stands_at({at: 0}), replica_path=at, objects=objects,
    )


def _suspends(
    kind: str, group: str, letter: str, *versions: str, at: str = "/spec/suspend", reads: tuple[str, ...] = (),
    ends: str | None = _CONDITIONS, manager: tuple[str, str] | None = None, objects: tuple[Objects, ...] = (),
    resumes: Mapping[str, Any] | None = None,
) -> Kind:
    kept = (at, *((ends,) if ends else ()), *((manager[0],) if manager else ()), *reads)
    return Kind(
        kind, group, versions, letter, kept, "suspended", names.Event.SUSPENDED, _writes({at: True}), _stands_at({at: True}),
        loses_work=letter == "j", ends=(ends, _DONE) if ends else None, manager=manager, objects=objects, resumes=resumes or {},
    )


def _stops(
    kind: str, group: str, letter: str, *versions: str, pauses: Pauses, holds: Holds, reads: tuple[str, ...],
    objects: tuple[Objects, ...] = (), replica_path: str | None = None, touches: tuple[str, ...] = (),
) -> Kind:
    return Kind(
        kind, group, versions, letter, reads, "stopped", names.Event.SCALED_TO_ZERO, pauses, holds,
        replica_path=replica_path, objects=objects, touches=touches,
    )


# Of kinds whose pods all match the object's own label selector; the server refuses anything else.
SELECTOR = "/spec/selector"
_TRAINING = ("/spec/runPolicy/managedBy", "kubeflow.org/training-operator")

KINDS: tuple[Kind, ...] = (
    _replicas("Deployment", "apps", "d", "v1", reads=(SELECTOR,)),
    _replicas("ReplicaSet", "apps", "r", "v1", reads=(SELECTOR,)),
    _replicas("StatefulSet", "apps", "s", "v1", reads=(SELECTOR, *_RETENTION, *_ORDER), objects=(_keeps_volumes,)),
    _replicas("LeaderWorkerSet", "leaderworkerset.x-k8s.io", "l", "v1", reads=_LWS_RETENTION, objects=(_keeps_volumes,)),
    Kind("DisaggregatedSet", "disaggregatedset.x-k8s.io", ("v1", "v1alpha1"), "l", ("/spec/roles",), "scaled to 0",
         names.Event.SCALED_TO_ZERO, _empty_roles, _has_empty_roles, objects=(_has_roles,)),
    _replicas("Rollout", "argoproj.io", "o", "v1alpha1", objects=(_is_calm_rollout,),
              reads=(SELECTOR, "/spec/paused", "/spec/strategy/blueGreen/previewReplicaCount", "/status/blueGreen")),
    _stops("Notebook", "kubeflow.org", "n", "v1", "v1beta1", reads=("/status/readyReplicas",),
           pauses=_stop_notebook, holds=lambda body: names.NOTEBOOK_STOPPED in body["metadata"]["annotations"],
           touches=(names.NOTEBOOK_LAST_ACTIVITY, names.NOTEBOOK_LAST_CHECK)),  # for cullers that do not renew them
    _stops("Workspace", "kubeflow.org", "w", "v1beta1", reads=("/spec/paused", "/status/state"),
           pauses=_writes({"/spec/paused": True}), holds=_stands_at({"/spec/paused": True})),
    _stops("InferenceService", "serving.kserve.io", "i", "v1beta1", objects=(kserve.object_to_service,),
           reads=(kserve.MIN_REPLICAS, "/status/deploymentMode", _CONDITIONS), pauses=kserve.stop_service, holds=kserve.is_stopped_service),
    _stops("LLMInferenceService", "serving.kserve.io", "m", "v1alpha2", "v1alpha1", pauses=kserve.stop_llm, holds=kserve.is_stopped_llm,
           reads=(_REPLICAS, "/spec/prefill/replicas", "/spec/scaling", "/spec/prefill/scaling", _CONDITIONS),
           objects=(kserve.object_to_llm,), replica_path=_REPLICAS),
    _stops("Service", "serving.knative.dev", "k", "v1", reads=(_MIN_SCALE,), pauses=_writes({_MIN_SCALE: "0"}), holds=_is_stopped_knative,
           objects=(_may_roll_knative,)),
    _suspends("Job", "batch", "j", "v1", reads=(SELECTOR,), manager=("/spec/managedBy", "kubernetes.io/job-controller")),
    _suspends("CronJob", "batch", "c", "v1", ends=None, reads=("/spec/concurrencyPolicy",)),
    _suspends("JobSet", "jobset.x-k8s.io", "j", "v1alpha2", manager=("/spec/managedBy", "jobset.sigs.k8s.io/jobset-controller")),
    _suspends("TrainJob", "trainer.kubeflow.org", "j", "v1alpha1", manager=("/spec/managedBy", names.TRAINJOB_MANAGER)),
    _suspends("AppWrapper", "workload.codeflare.dev", "j", "v1beta2", ends="/status/phase",
              manager=("/spec/managedBy", "workload.codeflare.dev/appwrapper")),
    *(_suspends(kind, "kubeflow.org", "j", "v1", at=_RUN_SUSPEND, manager=_TRAINING)
      for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")),
    _suspends("MPIJob", "kubeflow.org", "j", "v1", "v2beta1", at=_RUN_SUSPEND,
              manager=("/spec/runPolicy/managedBy", "kubeflow.org/mpi-operator")),
    _suspends("RayJob", "ray.io", "j", "v1", ends="/status/jobDeploymentStatus", objects=(_is_suspendable_ray_job,),
              manager=("/spec/managedBy", "ray.io/kuberay-operator"), reads=("/spec/shutdownAfterJobFinishes", "/spec/clusterSelector")),
    # KubeRay never resumes on null, and taking a false away later recreates all pods: false is written and stays.
    _suspends("RayCluster", "ray.io", "y", "v1", ends=None, manager=("/spec/managedBy", "ray.io/kuberay-operator"),
              reads=("/status/state",), resumes={"/spec/suspend": False}),
    _suspends("RayService", "ray.io", "y", "v1", ends=None, manager=("/spec/managedBy", "ray.io/kuberay-operator")),
)

# Companions: never workloads of their own, but read, and two of them written, for the workloads they steer.
SCALED_OBJECT = _stops(
    "ScaledObject", "keda.sh", "", "v1alpha1", reads=("/spec/scaleTargetRef", "/spec/minReplicaCount", "/status/pausedReplicaCount"),
    pauses=_writes({_KEDA_REPLICAS: "0"}), holds=_stands_at({_KEDA_REPLICAS: "0"}),
)
KUEUE_WORKLOAD = Kind(
    "Workload", "kueue.x-k8s.io", ("v1beta2", "v1beta1"), "", ("/spec/active", "/spec/queueName", "/spec/podSets", _CONDITIONS),
    "suspended", names.Event.SUSPENDED, _writes({"/spec/active": False}), _stands_at({"/spec/active": False}), loses_work=True,
)
CRON_JOB = next(row for row in KINDS if row.kind == "CronJob")  # paused along with its Job where asked for
HPA_READS = ("/spec/scaleTargetRef", "/spec/minReplicas")
BUDGET_READS = ("/spec/selector", "/spec/minAvailable", "/spec/maxUnavailable")

_QUEUED = frozenset("jy")  # serving kinds under Kueue keep their own row
_BY_NAME = {(row.group, row.kind): row for row in KINDS}


def all_kinds() -> tuple[Kind, ...]:
    return KINDS


def find(group: str, kind: str) -> Kind | None:
    return _BY_NAME.get((group, kind))


@lru_cache(maxsize=256)
def generic(group: str, version: str, kind: str, replicas_pointer: str | None) -> Kind:
    """A row for any kind that serves /scale; without the pointer its body is that of its Scale object."""
    row = _replicas(kind, group, "x", version, at=replicas_pointer or _REPLICAS, objects=(_shows_replicas,))
    return row if replicas_pointer else msgspec.structs.replace(row, holds=_is_empty_scale)


def of(workload: cluster.Workload) -> Kind | None:
    """The row of this workload; None where we have no way to pause it."""
    ref = workload.ref
    row = find(ref.group, ref.kind)
    if row is not None or workload.trouble is not None:
        return row
    return generic(ref.group, ref.version, ref.kind, workload.replicas_pointer)


prune = pointers.prune


# ---- asking the table ---------------------------------------------------------------------------------------------------------


def way(kind: Kind, workload: cluster.Workload) -> Way:
    if kind.letter in _QUEUED and len(workload.kueue) == 1:
        return Way.kueue
    if kind.replica_path and kind.verb == "scaled to 0" and len(scalers(workload)) == 1:
        return Way.keda
    return Way.scale if kind.letter == "x" and workload.replicas_pointer is None else Way.own


def scalers(workload: cluster.Workload) -> tuple[cluster.Companion, ...]:
    """The ScaledObjects that scale this very object; those of its children belong to its operator."""
    return tuple(scaler for scaler in workload.scaled_objects if _scales(scaler, workload.ref))


def _scales(scaler: cluster.Companion, ref: cluster.Ref) -> bool:
    target = pointers.read(scaler.body, "/spec/scaleTargetRef") or {}
    group = str(target.get("apiVersion") or "apps/v1").rpartition("/")[0]
    return (group, target.get("kind") or "Deployment", target.get("name")) == (ref.group, ref.kind, ref.name)


def pause_target(kind: Kind, workload: cluster.Workload) -> Target:
    """The object whose fields stop the workload."""
    match way(kind, workload):
        case Way.kueue:
            return _as_target(workload.kueue[0])
        case Way.keda:
            return _as_target(scalers(workload)[0])
        case _:
            return _own_target(workload)


def record_target(kind: Kind, workload: cluster.Workload) -> Target:
    """The object that carries original-state and paused-*."""
    return _as_target(workload.kueue[0]) if way(kind, workload) is Way.kueue else _own_target(workload)


def _own_target(workload: cluster.Workload) -> Target:
    return Target(workload.ref, workload.resource_version, workload.annotations, view(workload.body, workload.annotations))


def _as_target(companion: cluster.Companion) -> Target:
    return Target(companion.ref, companion.resource_version, companion.annotations, view(companion.body, companion.annotations))


def target_row(kind: Kind, workload: cluster.Workload) -> Kind:
    """The row of the object that pause_target names."""
    return {Way.kueue: KUEUE_WORKLOAD, Way.keda: SCALED_OBJECT}.get(way(kind, workload), kind)


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


def has_condition(body: Mapping[str, Any], type_: str, status: str, reason: str | None = None) -> bool:
    """Does its status say so? How Job, JobSet and KServe confirm that they have stopped."""
    found = [condition for condition in pointers.read(body, _CONDITIONS) or [] if condition.get("type") == type_]
    return any(condition.get("status") == status and reason in (None, condition.get("reason")) for condition in found)


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


def _is_managed_here(kind: Kind, workload: cluster.Workload) -> Objection | None:
    if kind.manager is None:
        return None
    manager = pointers.read(workload.body, kind.manager[0])
    if manager in (None, "", kind.manager[1]):
        return None
    return Detail.ManagedByOther, f"{workload.ref.short} is managed by {manager}, not by its kind's own controller"


def _is_clear_to_kueue(kind: Kind, workload: cluster.Workload) -> Objection | None:
    managed = names.KUEUE_QUEUE in workload.labels or bool(workload.kueue)
    if kind.letter not in _QUEUED or not managed or len(workload.kueue) == 1:
        return None
    return Detail.KueueWorkloadUnclear, f"Kueue queues {workload.ref.short}, but has {len(workload.kueue)} Workloads for it instead of one"


def _is_clear_to_autoscalers(kind: Kind, workload: cluster.Workload) -> Objection | None:
    if kind.verb != "scaled to 0":
        return None
    if len(scalers(workload)) > 1:
        return Detail.ScaledObjectUnclear, f"several ScaledObjects scale {workload.ref.short}"
    if any(pointers.read(hpa.body, "/spec/minReplicas") == 0 for hpa in workload.hpas):
        return Detail.HpaScaleToZero, f"an HPA with minReplicas 0 scales {workload.ref.short} and would wake it at once"
    return None


def _is_left_by_rule(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if rule.action.respect_pdb and workload.budgets:
        return Detail.PdbProtected, f"a PodDisruptionBudget ({workload.budgets[0].ref.name}) protects its pods, and the rule respects that"
    if rule.action.respect_pdb and workload.unseen_budgets:
        return Detail.PdbProtected, f"whether a PodDisruptionBudget protects its pods cannot be seen: {workload.unseen_budgets}"
    if rule.action.gitops == "report" and (tool := gitops_tool(workload)):
        return Detail.GitOpsManaged, f"{workload.ref.short} is managed by {tool}, and the rule only reports those"
    return None


def gitops_tool(workload: cluster.Workload) -> str | None:
    """Which GitOps tool left its mark on the object."""
    marks = {names.ARGOCD_TRACKING: "Argo CD", names.FLUX_NAME: "Flux", names.HELM_RELEASE: "Helm"}
    found = (tool for mark, tool in marks.items() if mark in workload.annotations or mark in workload.labels)
    return next(found, None)
