"""The kinds of workload we can pause: one row each. Eyes, brain, hands, flags and the roles in deploy/ all read this
table, and no other module spells a kind: adding a kind is adding a row. What needs a function is in stops.py.

In: a Workload as the eyes saw it (its body pruned to what its row `reads`) and the rule that applies. Out: which fields
of which object to write, and whether it stands paused or is finished; what speaks against a pause is in objections.py.
What is written, where (`pause_target`) and where the record of the way back stands (`record_target`) differ only under
KEDA and Kueue.
Invariant: nothing here guesses. A field that is absent is absent.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.model import cluster, pointers, record, stops
from fallow.model.policies import idle
from fallow.model.seen import sure
from fallow.model.stops import Fields, Objection
from fallow.model.units import Instant

Key: TypeAlias = tuple[str, str]  # group, kind
Pauses: TypeAlias = Callable[[cluster.Workload, idle.Rule, Instant], Fields]
Holds: TypeAlias = Callable[[Mapping[str, Any]], bool]
Objects: TypeAlias = Callable[[cluster.Workload, idle.Rule], Objection | None]

ANY_TAIL = "-.+"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `pauses` gives the fields of a pause; `holds` says of an object with its annotations that they stand."""

    kind: str
    group: str
    versions: tuple[str, ...]  # acceptable, best first; () = whatever discovery prefers
    letter: str  # of --enabled-resources; "" = no workload of its own: a companion
    needs_group: bool = False  # typed with its group, because another API has a kind of that name
    shorts: tuple[str, ...] = ()  # what kubectl calls it for short, in every cluster that has it
    work: str | None = None  # the class of work its pods do, where the kind tells
    pod_tail: str = ANY_TAIL  # RE2: what stands behind its name in the names of its pods

    reads: tuple[str, ...]  # JSON pointers kept in Workload.body; annotations and labels are kept beside it
    verb: Literal["scaled to 0", "suspended", "stopped"]
    pauses: Pauses
    writes: tuple[str, ...]  # every JSON pointer that a pause may write or record; in a list, that of every member
    remembers: tuple[str, ...] = ()  # recorded with a pause, though it does not write there
    holds: Holds
    replica_path: str | None = None
    ends: tuple[str, frozenset[str]] | None = None  # where the end is read: a phase, or conditions that are True
    resumes: Mapping[str, Any] = {}  # written at resume whatever was recorded
    touches: tuple[str, ...] = ()  # annotations that, where they exist, are set to now at resume

    objects: tuple[Objects, ...] = ()
    manager: tuple[str, str] | None = None  # where `managedBy` stands, and the controller that is the kind's own
    managers: Mapping[str, str] = {}  # by version, where another controller serves that one
    is_queued: bool = False  # Kueue suspends and resumes it itself; serving kinds under Kueue keep their own row
    deletes_claims: tuple[str, ...] = ()  # makes volume claims; when their retention policy counts in a pause
    in_order: bool = False  # stops its pods one after another, unless podManagementPolicy says otherwise
    ignores_stop: Callable[[cluster.Workload], bool] | None = None  # was its stop annotation not heeded?
    loses_work: bool = False  # a pause throws away the work since the last checkpoint
    is_lasting: bool = False  # its pods do work that an eviction would lose
    warns: tuple[str, ...] = ()  # what a pause of it brings
    warns_below: str = ""  # what a pause of something that it owns brings

    may_own: bool = False  # makes objects of other kinds, perhaps ones that we cannot follow
    relays: bool = False  # others make it to make their pods; these bear the labels that its maker selects
    is_schedule: bool = False  # pausing it stops nothing that runs: what it started is the workload
    outlived_by: str = ""  # the kind it runs in, which is the workload once this one is finished
    between: tuple[str, ...] = ()  # kinds of its group, outside this table, that stand between it and its pods
    named_by: tuple[str, Mapping[str, str]] | None = None  # label of a pod with its name, and those beside it
    marks_on: Key | None = None  # annotations on it restart its pods: marks go to the object of this kind below it

    @property
    def key(self) -> Key:
        return self.group, self.kind

    @property
    def plural(self) -> str:
        """The resource, as roles name it."""
        return f"{self.kind.lower()}s"

    @property
    def event(self) -> str:
        return names.Event.SUSPENDED if self.verb == "suspended" else names.Event.SCALED_TO_ZERO


# ---- the table -------------------------------------------------------------------------------------------------------

SELECTOR = "/spec/selector"  # of kinds whose pods all match it; the server refuses anything else
_REPLICAS = "/spec/replicas"
_MANAGED_BY = "/spec/managedBy"
_RETENTION = ("volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy")
_DONE = frozenset({"Complete", "Completed", "Succeeded", "Failed"})


def _writes(fields: Fields) -> Pauses:
    return lambda workload, rule, now: dict(fields)


def _stands_at(fields: Fields) -> Holds:
    return lambda body: all(pointers.read(body, pointer) == value for pointer, value in fields.items())


def _replicas(
    kind: str, group: str, letter: str, *versions: str, at: str = _REPLICAS, reads: tuple[str, ...] = (), **more: Any
) -> Kind:
    return Kind(
        kind=kind, group=group, versions=versions, letter=letter, reads=(at, "/status/replicas", *reads),
        verb="scaled to 0", pauses=_writes({at: 0}), writes=(at,), holds=_stands_at({at: 0}), replica_path=at, **more,
    )


def _suspends(
    kind: str, group: str, letter: str, *versions: str, at: str = "/spec/suspend", reads: tuple[str, ...] = (),
    ends: str | None = None, manager: tuple[str, str] | None = None, **more: Any,
) -> Kind:
    kept = (at, *((ends,) if ends else ()), *((manager[0],) if manager else ()), *reads)
    return Kind(
        kind=kind, group=group, versions=versions, letter=letter, reads=kept,
        verb="suspended", pauses=_writes({at: True}), writes=(at,), holds=_stands_at({at: True}),
        ends=(ends, _DONE) if ends else None, manager=manager, **more,
    )


def _job(kind: str, group: str, *versions: str, manager: tuple[str, str], **more: Any) -> Kind:
    """A kind that runs to its end, under Kueue where there is one."""
    more = {"ends": stops.CONDITIONS, "is_lasting": True, **more}
    return _suspends(kind, group, "j", *versions, manager=manager, loses_work=True, is_queued=True, **more)


def _kubeflow_job(kind: str, *versions: str, **more: Any) -> Kind:
    manager = ("/spec/runPolicy/managedBy", "kubeflow.org/training-operator")
    return _job(kind, "kubeflow.org", *versions, at="/spec/runPolicy/suspend", manager=manager, **more)


def _stops(kind: str, group: str, letter: str, *versions: str, **more: Any) -> Kind:
    return Kind(kind=kind, group=group, versions=versions, letter=letter, **{"verb": "stopped", **more})


def _stops_at(kind: str, group: str, letter: str, *versions: str, at: str, value: Any, **more: Any) -> Kind:
    """Stopped by one field."""
    there = {at: value}
    about = {"pauses": _writes(there), "writes": (at,), "holds": _stands_at(there)}
    return _stops(kind, group, letter, *versions, **{**about, **more})


_KUBERAY = (_MANAGED_BY, "ray.io/kuberay-operator")

_NUMBER = "-[0-9]+"

KINDS: tuple[Kind, ...] = (
    _replicas("Deployment", "apps", "d", "v1", reads=(SELECTOR,), shorts=("deploy",),
              pod_tail="-[a-z0-9]+-[a-z0-9]{5}"),
    _replicas("ReplicaSet", "apps", "r", "v1", reads=(SELECTOR,), relays=True, shorts=("rs",)),
    _replicas("StatefulSet", "apps", "s", "v1", shorts=("sts",), in_order=True, deletes_claims=("whenScaled",),
              pod_tail=_NUMBER,
              reads=(SELECTOR, *(f"/spec/{name}" for name in _RETENTION),
                     "/spec/podManagementPolicy", "/spec/template/spec/terminationGracePeriodSeconds")),
    _replicas("LeaderWorkerSet", "leaderworkerset.x-k8s.io", "l", "v1", shorts=("lws",),
              reads=tuple(f"/spec/leaderWorkerTemplate/{name}" for name in _RETENTION),
              deletes_claims=("whenScaled", "whenDeleted"), named_by=(names.LWS_NAME_LABEL, {})),
    _stops("DisaggregatedSet", "disaggregatedset.x-k8s.io", "l", "v1", "v1alpha1", reads=(stops.ROLES,),
           verb="scaled to 0", pauses=stops.empty_roles, writes=(stops.ROLE_SIZES,), holds=stops.has_empty_roles,
           may_own=True, objects=(stops.has_roles,)),
    _replicas("Rollout", "argoproj.io", "o", "v1alpha1", shorts=("ro",), objects=(stops.is_calm_rollout,),
              reads=(SELECTOR, "/spec/paused", "/spec/strategy/blueGreen/previewReplicaCount", "/status/blueGreen")),
    _stops("Notebook", "kubeflow.org", "n", "v1", "v1beta1", shorts=("nb",), work="notebook", pod_tail=_NUMBER,
           reads=("/status/readyReplicas",),
           pauses=stops.stop_notebook, writes=(pointers.annotation(names.NOTEBOOK_STOPPED),),
           holds=lambda body: names.NOTEBOOK_STOPPED in body["metadata"]["annotations"],
           touches=(names.NOTEBOOK_LAST_ACTIVITY, names.NOTEBOOK_LAST_CHECK)),  # for cullers that do not renew them
    _stops_at("Workspace", "kubeflow.org", "w", "v1beta1", work="notebook", reads=("/spec/paused", "/status/state"),
              at="/spec/paused", value=True),
    _stops("InferenceService", "serving.kserve.io", "i", "v1beta1", shorts=("isvc",), work="inference", may_own=True,
           reads=(stops.MIN_REPLICAS, "/status/deploymentMode", stops.CONDITIONS),
           pauses=stops.stop_service, writes=(stops.STOP, stops.MIN_REPLICAS), holds=stops.is_stopped_service,
           objects=(stops.object_to_service,),
           ignores_stop=stops.ignores_stop, marks_on=("apps", "Deployment"), named_by=(names.KSERVE_ISVC_LABEL, {}),
           warns=("KServe deletes its Deployment, HPA, Service and Ingress and makes them anew; it comes back with "
                  "minReplicas. Setting or removing annotations on it by hand restarts its pods or rolls a Revision: "
                  "acknowledge by command or on the Namespace.",)),
    _stops("LLMInferenceService", "serving.kserve.io", "m", "v1alpha2", "v1alpha1", shorts=("llmisvc",),
           work="inference", may_own=True,
           reads=(_REPLICAS, "/spec/prefill/replicas", "/spec/scaling", "/spec/prefill/scaling", stops.CONDITIONS),
           pauses=stops.stop_llm, writes=(stops.STOP, _REPLICAS, "/spec/prefill/replicas"), holds=stops.is_stopped_llm,
           objects=(stops.object_to_llm,),
           ignores_stop=stops.ignores_stop, replica_path=_REPLICAS,
           named_by=(names.NAME_LABEL, {names.PART_OF_LABEL: names.LLM_PART_OF})),
    _stops_at("Service", "serving.knative.dev", "k", "v1", needs_group=True, shorts=("ksvc", "kservice"),
              work="inference", may_own=True,
              reads=(stops.MIN_SCALE,), at=stops.MIN_SCALE, value="0", holds=stops.is_stopped_knative,
              objects=(stops.may_roll_knative,), between=("Configuration", "Revision")),
    _job("Job", "batch", "v1", reads=(SELECTOR,), pod_tail="-[a-z0-9]{5}",
         manager=(_MANAGED_BY, "kubernetes.io/job-controller")),
    _suspends("CronJob", "batch", "c", "v1", shorts=("cj",), reads=("/spec/concurrencyPolicy",), is_schedule=True,
              warns_below="Where its CronJob has concurrencyPolicy Forbid, no later run starts while this one is "
                          "suspended."),
    _job("JobSet", "jobset.x-k8s.io", "v1alpha2", work="training", is_lasting=False, may_own=True,
         manager=(_MANAGED_BY, "jobset.sigs.k8s.io/jobset-controller")),
    _job("TrainJob", "trainer.kubeflow.org", "v1alpha1", work="training", may_own=True,
         manager=(_MANAGED_BY, names.TRAINJOB_MANAGER)),
    _job("AppWrapper", "workload.codeflare.dev", "v1beta2", ends="/status/phase", is_lasting=False, may_own=True,
         manager=(_MANAGED_BY, "workload.codeflare.dev/appwrapper")),
    *(_kubeflow_job(kind, "v1", work="training") for kind in ("PyTorchJob", "TFJob", "XGBoostJob")),
    _kubeflow_job("PaddleJob", "v1"),
    _kubeflow_job("JAXJob", "v1", work="training"),
    _kubeflow_job("MPIJob", "v1", "v2beta1", work="training", may_own=True,
                  managers={"v2beta1": "kubeflow.org/mpi-operator"}),  # v1 is the training operator's
    _job("RayJob", "ray.io", "v1", work="batch", ends="/status/jobDeploymentStatus", is_lasting=False, manager=_KUBERAY,
         reads=("/spec/shutdownAfterJobFinishes", "/spec/clusterSelector"), objects=(stops.is_suspendable_ray_job,),
         may_own=True, outlived_by="RayCluster", warns=("The job restarts from its beginning.",)),
    # KubeRay never resumes on null, and taking a false away later recreates all pods: false is written and stays.
    _suspends("RayCluster", "ray.io", "y", "v1", manager=_KUBERAY, reads=("/status/state",), is_queued=True,
              is_lasting=True, resumes={"/spec/suspend": False}),
    _suspends("RayService", "ray.io", "y", "v1", work="inference", manager=_KUBERAY, is_queued=True, may_own=True),
)

# Companions: never workloads of their own, but read, and two of them written, for the workloads they steer.
SCALED_OBJECT = _stops_at(
    "ScaledObject", "keda.sh", "", "v1alpha1", at=pointers.annotation(names.KEDA_PAUSED_REPLICAS), value="0",
    remembers=(pointers.annotation(names.KEDA_PAUSED),),
    reads=("/spec/scaleTargetRef", "/spec/minReplicaCount", "/status/pausedReplicaCount"),
)
KUEUE_WORKLOAD = _stops_at(
    "Workload", "kueue.x-k8s.io", "", "v1beta2", "v1beta1", at="/spec/active", value=False, verb="suspended",
    reads=("/spec/active", "/spec/queueName", "/spec/podSets", stops.CONDITIONS), loses_work=True,
)
HPA_READS = ("/spec/scaleTargetRef", "/spec/minReplicas")
BUDGET_READS = ("/spec/selector", "/spec/minAvailable", "/spec/maxUnavailable")

# Where it stands how each kind replaces its pods; all of them roll where it does not say.
HOW_REPLACED: Mapping[str, str] = {
    "Deployment": "/spec/strategy/type", "StatefulSet": "/spec/updateStrategy/type",
    "DaemonSet": "/spec/updateStrategy/type",
}
CRON_JOB = next(row for row in KINDS if row.is_schedule)  # paused along with its Job where asked for
WITH_CLAIMS = frozenset(row.key for row in KINDS if row.deletes_claims)
LASTING = frozenset(row.kind for row in KINDS if row.is_lasting)
_BY_KEY = {row.key: row for row in KINDS}
_WORK = {row.key: row.work for row in KINDS} | {("apps.nvidia.com", "NIMService"): "inference"}
# The outer one first: a pod of a multi-node LLMInferenceService bears the label of its LeaderWorkerSet too.
_NAMED = tuple((row.key, *row.named_by) for row in reversed(KINDS) if row.named_by)


def find(group: str, kind: str) -> Kind | None:
    return _BY_KEY.get((group, kind))


def is_called(key: Key, text: str) -> bool:
    """Does `text`, as people type it (any case, one or several, for short, with or without group), mean this kind?"""
    group, kind = key
    word, _, within = text.lower().partition(".")
    return within in ("", group) and word in words(group, kind)


def words(group: str, kind: str) -> tuple[str, ...]:
    """What people call a kind, the way they see it written first."""
    row = find(group, kind)
    return kind.lower(), f"{kind.lower()}s", *(row.shorts if row else ())


def is_listed(key: Key, listed: Collection[str]) -> bool:
    """Does a policy list this kind, as `Kind` or as `Kind.group`?"""
    group, kind = key
    return kind in listed or f"{kind}.{group}" in listed


def full_scale(scale: Mapping[str, Any]) -> dict[str, Any]:
    """A Scale with its count: the API server leaves a 0 out of it, but never the spec."""
    return {**scale, "spec": {"replicas": 0} | (scale.get("spec") or {})}


def _is_empty_scale(body: Mapping[str, Any]) -> bool:
    return "spec" in body and full_scale(body)["spec"]["replicas"] == 0


@lru_cache(maxsize=256)
def generic(group: str, version: str, kind: str, replicas_pointer: str | None) -> Kind:
    """A row for any kind that serves /scale; without the pointer its body is that of its Scale object."""
    objects = (stops.shows_replicas, stops.makes_no_claims)
    row = _replicas(
        kind, group, "x", version, at=replicas_pointer or _REPLICAS, reads=(stops.CLAIM_TEMPLATES,), may_own=True,
        objects=objects,
    )
    return row if replicas_pointer else msgspec.structs.replace(row, holds=_is_empty_scale)


def typed(ref: cluster.Ref) -> str:
    """The object as it is typed on the command line; with its group where the bare kind could mean another."""
    row = find(ref.group, ref.kind)
    return f"{ref.kind}/{ref.name}" if row and not row.needs_group else f"{ref.kind}.{ref.group}/{ref.name}"


def of(workload: cluster.Workload) -> Kind | None:
    """The row of this workload; None where we have no way to pause it."""
    ref = workload.ref
    row = find(ref.group, ref.kind)
    if row is not None or workload.trouble is not None:
        return row
    return generic(ref.group, ref.version, ref.kind, workload.replicas_pointer)


def find_schedule(workload: cluster.Workload) -> cluster.Ref | None:
    """The CronJob above a Job, as the eyes put it at the end of the chain."""
    above = workload.chain[-1] if workload.chain else None
    if above is None or above.uid == workload.ref.uid or (above.group, above.kind) != CRON_JOB.key:
        return None
    return cluster.Ref(above.group, above.version, above.kind, workload.ref.namespace, above.name, above.uid)


def may_be_passed(key: Key) -> bool:
    """May the workload be what this kind makes, and not the object itself?"""
    row = _BY_KEY.get(key)
    return row is None or row.is_schedule or bool(row.outlived_by)


def find_class(group: str, kind: str) -> str | None:
    """What work is done by what this kind owns, where the kind tells."""
    return _WORK.get((group, kind))


def named_by(labels: Mapping[str, str]) -> Iterator[tuple[Key, str]]:
    """The workloads that a pod's labels name, for when its owners lead nowhere."""
    for key, label, beside in _NAMED:
        if (name := labels.get(label)) and labels.items() >= beside.items():
            yield key, name


# ---- asking the table ------------------------------------------------------------------------------------------------


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
    writer: str = ""  # who else owns, since our pause, what it wrote here; "" = nobody
    is_ours: bool = False  # we alone own it: nobody wrote it since


def view(body: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    """The object as its pointers see it: what was read of it, with its annotations in their place."""
    return {**body, "metadata": {"annotations": dict(annotations)}}


def way(kind: Kind, workload: cluster.Workload) -> Way:
    """As the record tells it, where there is one: what steers the workload may have come or gone since the pause."""
    if kind.is_queued and any(names.ORIGINAL_STATE in each.annotations for each in sure(workload.kueue)):
        return Way.kueue
    if found := record.read(workload.annotations.get(names.ORIGINAL_STATE)):
        return Way.keda if recorded_scalers(found) else own_way(kind, workload)
    return _steered_way(kind, workload)


def _steered_way(kind: Kind, workload: cluster.Workload) -> Way:
    if kind.is_queued and len(sure(workload.kueue)) == 1:
        return Way.kueue
    if kind.replica_path and kind.verb == "scaled to 0" and len(scalers(workload)) == 1:
        return Way.keda
    return own_way(kind, workload)


def own_way(kind: Kind, workload: cluster.Workload) -> Way:
    return Way.scale if kind.letter == "x" and workload.replicas_pointer is None else Way.own


def scalers(workload: cluster.Workload) -> tuple[cluster.Companion, ...]:
    """The ScaledObjects that scale this very object; those of its children belong to its operator."""
    own = (workload.ref.group, workload.ref.kind, workload.ref.name)
    return tuple(scaler for scaler in sure(workload.scaled_objects) if scale_target(scaler.body) == own)


def recorded_scalers(found: record.Record) -> frozenset[str]:
    """The names of the ScaledObjects that were changed for a pause."""
    ours = {(f"{SCALED_OBJECT.group}/{version}", SCALED_OBJECT.kind) for version in SCALED_OBJECT.versions}
    return frozenset(each.name for each in found.companions if (each.api_version, each.kind) in ours)


def pausing_scalers(workload: cluster.Workload) -> tuple[cluster.Companion, ...]:
    """Of those that scale it, the ones by which we paused it; without a record every one may be that."""
    found = record.read(workload.annotations.get(names.ORIGINAL_STATE))
    return tuple(each for each in scalers(workload) if found is None or each.ref.name in recorded_scalers(found))


def scale_target(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """(group, kind, name) of an HPA's or a ScaledObject's scaleTargetRef; the defaults are KEDA's."""
    target = pointers.read(body, "/spec/scaleTargetRef") or {}
    group = str(target.get("apiVersion") or "apps/v1").rpartition("/")[0]
    return group, target.get("kind") or "Deployment", target.get("name") or ""


def pause_target(kind: Kind, workload: cluster.Workload) -> Target:
    """The object whose fields stop the workload."""
    scaler = _pausing_scaler(kind, workload)
    return as_target(scaler) if scaler else record_target(kind, workload)


def _pausing_scaler(kind: Kind, workload: cluster.Workload) -> cluster.Companion | None:
    """None also where it was deleted since: KEDA leaves its target at 0 then."""
    return next(iter(pausing_scalers(workload)), None) if way(kind, workload) is Way.keda else None


def record_target(kind: Kind, workload: cluster.Workload) -> Target:
    """The object that carries original-state and paused-*."""
    if way(kind, workload) is not Way.kueue:
        return as_target(workload)
    queued = sure(workload.kueue)
    return as_target(next((each for each in queued if names.ORIGINAL_STATE in each.annotations), queued[0]))


def as_target(held: cluster.Workload | cluster.Companion) -> Target:
    body = view(held.body, held.annotations)
    return Target(held.ref, held.resource_version, held.annotations, body, held.writer, held.is_ours)


def target_row(kind: Kind, workload: cluster.Workload) -> Kind:
    """The row of the object that pause_target names."""
    if way(kind, workload) is Way.kueue:
        return KUEUE_WORKLOAD
    return SCALED_OBJECT if _pausing_scaler(kind, workload) else kind


def find_fault(row: Kind, found: record.Record) -> str | None:
    """What in a record no pause of this row can have written, in a phrase; None: nothing."""
    return record.find_fault(found, (*row.writes, *row.remembers))


def is_paused(kind: Kind, workload: cluster.Workload) -> bool:
    """Does it stand at its pause value, by whomever: itself, its ScaledObject or its Kueue Workload?"""
    if kind.holds(view(workload.body, workload.annotations)):
        return True
    return way(kind, workload) in (Way.keda, Way.kueue) and holds_pause(kind, workload)


def stands_paused(workload: cluster.Workload) -> bool:
    """The same, whatever its kind."""
    kind = of(workload)
    return kind is not None and is_paused(kind, workload)


def holds_pause(kind: Kind, workload: cluster.Workload) -> bool:
    """Is the very value still set by which we paused it? Marks of a pause count only so long.

    Under KEDA its own 0 counts too: its ScaledObject may have been made anew, and its size is in our record only.
    """
    if target_row(kind, workload).holds(pause_target(kind, workload).body):
        return True
    return way(kind, workload) is Way.keda and kind.holds(view(workload.body, workload.annotations))


def still_paused(kind: Kind, workload: cluster.Workload) -> frozenset[str]:
    """Of a pause of several fields that others undid in part, those that still stand at its value."""
    body = view(workload.body, workload.annotations)
    recorded = record.read(workload.annotations.get(names.ORIGINAL_STATE))
    if recorded is None or way(kind, workload) is not Way.own or kind.holds(body):
        return frozenset()
    wanted = kind.pauses(workload, idle.Rule(), 0.0)
    standing = {pointer: value for pointer, value in wanted.items() if pointers.read(body, pointer) == value}
    return frozenset(pointer for pointer in standing if recorded.fields.get(pointer) not in (None, standing[pointer]))


def is_finished(kind: Kind, body: Mapping[str, Any]) -> bool:
    """Has it run to its end, well or badly?"""
    if kind.ends is None:
        return False
    where, words = kind.ends
    found = pointers.read(body, where)
    if isinstance(found, list):
        conditions = [condition for condition in found if isinstance(condition, Mapping)]
        return any(condition.get("type") in words and condition.get("status") == "True" for condition in conditions)
    return isinstance(found, str) and found in words


def warnings(kind: Kind, workload: cluster.Workload) -> list[str]:
    """What a pause of this kind brings with it, one sentence each."""
    lost = ["Suspending it loses the work since its last checkpoint."] if kind.loses_work else []
    above = (find(link.group, link.kind) for link in workload.chain if link.uid != workload.ref.uid)
    return [*lost, *kind.warns, *(row.warns_below for row in above if row and row.warns_below)]


def is_tender(workload: cluster.Workload) -> bool:
    """Does every mark on it restart its pods? Then only a pause and a resume may write there."""
    row = find(workload.ref.group, workload.ref.kind)
    return row is not None and row.marks_on is not None


def is_markable(workload: cluster.Workload) -> bool:
    """Is there an object that we may write a mark on without harm to its pods?"""
    return not is_tender(workload) or workload.has_marks_elsewhere


def gitops_tool(workload: cluster.Workload) -> str | None:
    """Which GitOps tool left its mark on the object."""
    marks = {names.ARGOCD_TRACKING: "Argo CD", names.FLUX_NAME: "Flux", names.HELM_RELEASE: "Helm"}
    return next((tool for mark, tool in marks.items() if mark in workload.annotations or mark in workload.labels), None)
