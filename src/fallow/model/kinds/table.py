"""The kinds of workload we can pause: one row each, which eyes, brain and hands all read.

In: nothing. Out: KINDS, and the companions that are read, and two of them written, for the workloads they
steer; `find` and `of`. Above the rows stands what is particular to one of them: what its pause writes when that depends
on the object, and what its own fields say against a pause. KServe, which has two ways to stop, is in kserve.py.
Invariant: nothing here guesses. A field that is absent is absent; a kind, mode or state that is unclear is an
objection, never a pause.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from fallow import names
from fallow.model import cluster, pointers, record, units
from fallow.model.decision import Detail
from fallow.model.kinds import kserve
from fallow.model.kinds.row import Fields, Holds, Key, Kind, Objection, Pauses
from fallow.model.policies import idle
from fallow.model.units import Instant

SELECTOR = "/spec/selector"  # of kinds whose pods all match it; the server refuses anything else
_REPLICAS = "/spec/replicas"
_MANAGED_BY = "/spec/managedBy"
_STOPPED = pointers.annotation(names.NOTEBOOK_STOPPED)
_MIN_SCALE = pointers.join(("spec", "template", "metadata", "annotations", names.KNATIVE_MIN_SCALE))
_KEDA_REPLICAS = pointers.annotation(names.KEDA_PAUSED_REPLICAS)


# ---- what a pause writes, and what then stands -----------------------------------------------------------------------


def _writes(fields: Fields) -> Pauses:
    return lambda workload, rule, now: dict(fields)


def _stands_at(fields: Fields) -> Holds:
    return lambda body: all(pointers.read(body, pointer) == value for pointer, value in fields.items())


def _stop_notebook(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    return {_STOPPED: units.rfc3339(now)}


def _empty_roles(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    roles = pointers.read(workload.body, "/spec/roles") or []
    return {f"/spec/roles/{index}/spec/replicas": 0 for index in range(len(roles))}


def _has_empty_roles(body: Mapping[str, Any]) -> bool:
    roles = pointers.read(body, "/spec/roles") or []
    return bool(roles) and all(pointers.read(role, _REPLICAS) == 0 for role in roles)


def _is_stopped_knative(body: Mapping[str, Any]) -> bool:
    written = record.fields_in(body["metadata"]["annotations"])
    recorded = any(pointer == _MIN_SCALE or _MIN_SCALE.startswith(f"{pointer}/") for pointer in written)
    return recorded and pointers.read(body, _MIN_SCALE) == "0"


def full_scale(scale: Mapping[str, Any]) -> dict[str, Any]:
    """A Scale with its count: the API server leaves a 0 out of it, but never the spec."""
    return {**scale, "spec": {"replicas": 0} | (scale.get("spec") or {})}


def _is_empty_scale(body: Mapping[str, Any]) -> bool:
    return "spec" in body and full_scale(body)["spec"]["replicas"] == 0


# ---- what its own fields say against a pause -------------------------------------------------------------------------


def _keeps_volumes(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    row = find(workload.ref.group, workload.ref.kind)
    if row and would_delete_claims(workload.body, row.deletes_claims):
        return Detail.PvcDeletedOnScale, f"scaling {workload.ref.short} to 0 would delete the volumes of its pods"
    return None


def would_delete_claims(body: Mapping[str, Any], moments: tuple[str, ...]) -> bool:
    """Would the claims made from its templates go with the pods at one of these moments of their retention policy?"""
    spec = pointers.read(body, "/spec/leaderWorkerTemplate") or pointers.read(body, "/spec") or {}
    kept = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    return bool(spec.get("volumeClaimTemplates")) and any(kept.get(moment) == "Delete" for moment in moments)


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
    short = workload.ref.short
    if not rule.action.allow_knative_rollout:
        return Detail.KnativeRollout, f"pausing {short} would roll a new Revision, which first needs a free GPU"
    if pointers.read(workload.body, _MIN_SCALE) == "0":
        return Detail.AlreadyScalesToZero, f"{short} has min-scale 0 already: Knative itself keeps the pods"
    return None


def _is_suspendable_ray_job(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    short, status = workload.ref.short, pointers.read(workload.body, "/status/jobDeploymentStatus")
    if pointers.read(workload.body, "/spec/shutdownAfterJobFinishes") is not True:
        because = f"{short} has no shutdownAfterJobFinishes: KubeRay would fail it for good"
    elif pointers.read(workload.body, "/spec/clusterSelector"):
        because = f"{short} runs on a cluster it selected: KubeRay would fail it for good"
    elif status not in ("Initializing", "Running"):
        because = f"{short} is {status or 'in no known state'}, not Initializing or Running"
    else:
        return None
    return Detail.RayJobNotSuspendable, because


def _has_roles(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    roles = pointers.read(workload.body, "/spec/roles")
    if roles and all(isinstance(role, Mapping) for role in roles):
        return None
    return Detail.NoRoles, f"{workload.ref.short} has no roles that could be scaled to 0"


def _shows_replicas(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if workload.replicas_pointer is None and "spec" not in workload.body:
        because = f"neither the definition nor the /scale of {workload.ref.short} could be read"
        return Detail.ReplicasUnknown, because
    return None


# ---- the table -------------------------------------------------------------------------------------------------------

_RETENTION = ("volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy")
_DONE = frozenset({"Complete", "Completed", "Succeeded", "Failed"})


def _replicas(
    kind: str, group: str, letter: str, *versions: str, at: str = _REPLICAS, reads: tuple[str, ...] = (), **more: Any
) -> Kind:
    return Kind(
        kind=kind, group=group, versions=versions, letter=letter, reads=(at, "/status/replicas", *reads),
        verb="scaled to 0", pauses=_writes({at: 0}), holds=_stands_at({at: 0}), replica_path=at, **more,
    )


def _suspends(
    kind: str, group: str, letter: str, *versions: str, at: str = "/spec/suspend", reads: tuple[str, ...] = (),
    ends: str | None = None, manager: tuple[str, str] | None = None, **more: Any,
) -> Kind:
    kept = (at, *((ends,) if ends else ()), *((manager[0],) if manager else ()), *reads)
    return Kind(
        kind=kind, group=group, versions=versions, letter=letter, reads=kept,
        verb="suspended", pauses=_writes({at: True}), holds=_stands_at({at: True}),
        ends=(ends, _DONE) if ends else None, manager=manager, **more,
    )


def _job(kind: str, group: str, *versions: str, manager: tuple[str, str], **more: Any) -> Kind:
    """A kind that runs to its end, under Kueue where there is one."""
    more = {"ends": kserve.CONDITIONS, "is_lasting": True, **more}
    return _suspends(kind, group, "j", *versions, manager=manager, loses_work=True, is_queued=True, **more)


def _kubeflow_job(kind: str, *versions: str, operator: str = "training-operator", **more: Any) -> Kind:
    manager = ("/spec/runPolicy/managedBy", f"kubeflow.org/{operator}")
    return _job(kind, "kubeflow.org", *versions, at="/spec/runPolicy/suspend", manager=manager, **more)


def _stops(kind: str, group: str, letter: str, *versions: str, **more: Any) -> Kind:
    return Kind(kind=kind, group=group, versions=versions, letter=letter, **{"verb": "stopped", **more})


def _stops_at(kind: str, group: str, letter: str, *versions: str, at: str, value: Any, **more: Any) -> Kind:
    """Stopped by one field."""
    there = {at: value}
    return _stops(kind, group, letter, *versions, **{"pauses": _writes(there), "holds": _stands_at(there), **more})


_KUBERAY = (_MANAGED_BY, "ray.io/kuberay-operator")

KINDS: tuple[Kind, ...] = (
    _replicas("Deployment", "apps", "d", "v1", reads=(SELECTOR,)),
    _replicas("ReplicaSet", "apps", "r", "v1", reads=(SELECTOR,), relays=True),
    _replicas("StatefulSet", "apps", "s", "v1", in_order=True, objects=(_keeps_volumes,),
              deletes_claims=("whenScaled",), reads=(SELECTOR, *(f"/spec/{name}" for name in _RETENTION),
                     "/spec/podManagementPolicy", "/spec/template/spec/terminationGracePeriodSeconds")),
    _replicas("LeaderWorkerSet", "leaderworkerset.x-k8s.io", "l", "v1", objects=(_keeps_volumes,),
              reads=tuple(f"/spec/leaderWorkerTemplate/{name}" for name in _RETENTION),
              deletes_claims=("whenScaled", "whenDeleted"), named_by=(names.LWS_NAME_LABEL, {})),
    _stops("DisaggregatedSet", "disaggregatedset.x-k8s.io", "l", "v1", "v1alpha1", reads=("/spec/roles",),
           verb="scaled to 0", pauses=_empty_roles, holds=_has_empty_roles, objects=(_has_roles,)),
    _replicas("Rollout", "argoproj.io", "o", "v1alpha1", objects=(_is_calm_rollout,),
              reads=(SELECTOR, "/spec/paused", "/spec/strategy/blueGreen/previewReplicaCount", "/status/blueGreen")),
    _stops("Notebook", "kubeflow.org", "n", "v1", "v1beta1", work="notebook", reads=("/status/readyReplicas",),
           pauses=_stop_notebook, holds=lambda body: names.NOTEBOOK_STOPPED in body["metadata"]["annotations"],
           touches=(names.NOTEBOOK_LAST_ACTIVITY, names.NOTEBOOK_LAST_CHECK)),  # for cullers that do not renew them
    _stops_at("Workspace", "kubeflow.org", "w", "v1beta1", work="notebook", reads=("/spec/paused", "/status/state"),
              at="/spec/paused", value=True),
    _stops("InferenceService", "serving.kserve.io", "i", "v1beta1", work="inference",
           reads=(kserve.MIN_REPLICAS, "/status/deploymentMode", kserve.CONDITIONS),
           pauses=kserve.stop_service, holds=kserve.is_stopped_service, objects=(kserve.object_to_service,),
           ignores_stop=kserve.ignores_stop, marks_on=("apps", "Deployment"), named_by=(names.KSERVE_ISVC_LABEL, {}),
           warns=("KServe deletes its Deployment, HPA, Service and Ingress and makes them anew; it comes back with "
                  "minReplicas. Setting or removing annotations on it by hand restarts its pods: acknowledge by "
                  "command or on the Namespace.",)),
    _stops("LLMInferenceService", "serving.kserve.io", "m", "v1alpha2", "v1alpha1", work="inference",
           reads=(_REPLICAS, "/spec/prefill/replicas", "/spec/scaling", "/spec/prefill/scaling", kserve.CONDITIONS),
           pauses=kserve.stop_llm, holds=kserve.is_stopped_llm, objects=(kserve.object_to_llm,),
           ignores_stop=kserve.ignores_stop, replica_path=_REPLICAS,
           named_by=(names.NAME_LABEL, {names.PART_OF_LABEL: names.LLM_PART_OF})),
    _stops_at("Service", "serving.knative.dev", "k", "v1", needs_group=True, work="inference", reads=(_MIN_SCALE,),
              at=_MIN_SCALE, value="0", holds=_is_stopped_knative, objects=(_may_roll_knative,)),
    _job("Job", "batch", "v1", reads=(SELECTOR,), manager=(_MANAGED_BY, "kubernetes.io/job-controller")),
    _suspends("CronJob", "batch", "c", "v1", reads=("/spec/concurrencyPolicy",), is_schedule=True, warns_below=
              "Where its CronJob has concurrencyPolicy Forbid, no later run starts while this one is suspended."),
    _job("JobSet", "jobset.x-k8s.io", "v1alpha2", work="training", is_lasting=False,
         manager=(_MANAGED_BY, "jobset.sigs.k8s.io/jobset-controller")),
    _job("TrainJob", "trainer.kubeflow.org", "v1alpha1", work="training",
         manager=(_MANAGED_BY, names.TRAINJOB_MANAGER)),
    _job("AppWrapper", "workload.codeflare.dev", "v1beta2", ends="/status/phase", is_lasting=False,
         manager=(_MANAGED_BY, "workload.codeflare.dev/appwrapper")),
    *(_kubeflow_job(kind, "v1", work="training") for kind in ("PyTorchJob", "TFJob", "XGBoostJob")),
    _kubeflow_job("PaddleJob", "v1"),
    _kubeflow_job("JAXJob", "v1", work="training"),
    _kubeflow_job("MPIJob", "v1", "v2beta1", work="training", operator="mpi-operator"),
    _job("RayJob", "ray.io", "v1", work="batch", ends="/status/jobDeploymentStatus", is_lasting=False, manager=_KUBERAY,
         reads=("/spec/shutdownAfterJobFinishes", "/spec/clusterSelector"), objects=(_is_suspendable_ray_job,),
         outlived_by="RayCluster", warns=("The job restarts from its beginning.",)),
    # KubeRay never resumes on null, and taking a false away later recreates all pods: false is written and stays.
    _suspends("RayCluster", "ray.io", "y", "v1", manager=_KUBERAY, reads=("/status/state",), is_queued=True,
              is_lasting=True, resumes={"/spec/suspend": False}),
    _suspends("RayService", "ray.io", "y", "v1", work="inference", manager=_KUBERAY, is_queued=True),
)

# Companions: never workloads of their own, but read, and two of them written, for the workloads they steer.
SCALED_OBJECT = _stops_at(
    "ScaledObject", "keda.sh", "", "v1alpha1", at=_KEDA_REPLICAS, value="0",
    reads=("/spec/scaleTargetRef", "/spec/minReplicaCount", "/status/pausedReplicaCount"),
)
KUEUE_WORKLOAD = _stops_at(
    "Workload", "kueue.x-k8s.io", "", "v1beta2", "v1beta1", at="/spec/active", value=False, verb="suspended",
    reads=("/spec/active", "/spec/queueName", "/spec/podSets", kserve.CONDITIONS), loses_work=True,
)
HPA_READS = ("/spec/scaleTargetRef", "/spec/minReplicas")
BUDGET_READS = ("/spec/selector", "/spec/minAvailable", "/spec/maxUnavailable")

CRON_JOB = next(row for row in KINDS if row.is_schedule)  # paused along with its Job where asked for
WITH_CLAIMS = frozenset(row.key for row in KINDS if row.deletes_claims)
LASTING = frozenset(row.kind for row in KINDS if row.is_lasting)
_BY_KEY = {row.key: row for row in KINDS}
_WORK = {row.key: row.work for row in KINDS} | {("apps.nvidia.com", "NIMService"): "inference"}
# The outer one first: a pod of a multi-node LLMInferenceService bears the label of its LeaderWorkerSet too.
_NAMED = tuple((row.key, *row.named_by) for row in reversed(KINDS) if row.named_by)


def find(group: str, kind: str) -> Kind | None:
    return _BY_KEY.get((group, kind))


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


def find_class(group: str, kind: str) -> str | None:
    """What work is done by what this kind owns, where the kind tells."""
    return _WORK.get((group, kind))


def named_by(labels: Mapping[str, str]) -> Iterator[tuple[Key, str]]:
    """The workloads that a pod's labels name, for when its owners lead nowhere."""
    for key, label, beside in _NAMED:
        if (name := labels.get(label)) and labels.items() >= beside.items():
            yield key, name
