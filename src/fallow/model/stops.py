"""What is particular to single kinds: what a pause of one writes when that depends on the object, and what speaks
against it.

In: a workload as the eyes saw it, and the rule. Out: the fields of a pause, whether an object stands stopped, and an
objection where its own fields (volumes, a rollout under way, a job that would fail for good) speak against a pause. The
rows of kinds.py call these; what most kinds share needs no function and is in the row itself.
Invariant: nothing here guesses: what is absent is absent, what is unclear an objection. minReplicas 0 of KServe is
written only where KServe really makes it 0 pods; elsewhere it would be fought over for ever.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from fallow import names
from fallow.model import cluster, pointers, record, units
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.seen import Absent
from fallow.model.units import Instant

Fields: TypeAlias = dict[str, Any]  # JSON pointer -> value
Objection: TypeAlias = tuple[Detail, str]  # the word after `ReportOnly:`, and a sentence

CONDITIONS = "/status/conditions"
MIN_SCALE = pointers.join(("spec", "template", "metadata", "annotations", names.KNATIVE_MIN_SCALE))
STOP = pointers.annotation(names.KSERVE_STOP)
MIN_REPLICAS = "/spec/predictor/minReplicas"
CLAIM_TEMPLATES = "/spec/volumeClaimTemplates"
ROLES = "/spec/roles"
ROLE_SIZES = pointers.join(("spec", "roles", pointers.EVERY, "spec", "replicas"))
_SERVERLESS = frozenset({"Serverless", "Knative"})


def has_condition(body: Mapping[str, Any], type_: str, status: str, reason: str | None = None) -> bool:
    """Does its status say so? How Job, JobSet and KServe confirm that they have stopped."""
    found = [condition for condition in pointers.read(body, CONDITIONS) or [] if condition.get("type") == type_]
    return any(condition.get("status") == status and reason in (None, condition.get("reason")) for condition in found)


def stop_notebook(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    return {pointers.annotation(names.NOTEBOOK_STOPPED): units.rfc3339(now)}


def empty_roles(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    roles = pointers.read(workload.body, ROLES)
    named = filter(_has_name, roles if isinstance(roles, list) else ())
    return {_size_of(role["name"]): 0 for role in named}


def _size_of(role: str) -> str:
    return pointers.join(("spec", "roles", pointers.named(role), "spec", "replicas"))


def has_empty_roles(body: Mapping[str, Any]) -> bool:
    """All of them; where we paused it, those that the record names: one that was added since runs beside the pause."""
    roles = pointers.read(body, ROLES)
    if not isinstance(roles, list) or not roles:
        return False
    recorded = record.fields_in(body["metadata"]["annotations"])
    counted = [role for role in roles if _has_name(role) and _size_of(role["name"]) in recorded] or roles
    return all(pointers.read(role, "/spec/replicas") == 0 for role in counted)


def _has_name(role: Any) -> bool:
    return isinstance(role, Mapping) and isinstance(role.get("name"), str)


def is_stopped_knative(body: Mapping[str, Any]) -> bool:
    written = record.fields_in(body["metadata"]["annotations"])
    recorded = any(pointer == MIN_SCALE or MIN_SCALE.startswith(f"{pointer}/") for pointer in written)
    return recorded and pointers.read(body, MIN_SCALE) == "0"


def would_delete_claims(body: Mapping[str, Any], moments: tuple[str, ...]) -> bool:
    """Would the claims made from its templates go with the pods at one of these moments of their retention policy?"""
    spec = pointers.read(body, "/spec/leaderWorkerTemplate") or pointers.read(body, "/spec") or {}
    kept = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    return bool(spec.get("volumeClaimTemplates")) and any(kept.get(moment) == "Delete" for moment in moments)


def is_calm_rollout(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if pointers.read(workload.body, "/spec/paused") is True:
        return Detail.RolloutBusy, f"{workload.ref.short} is paused in the middle of a rollout"
    counted = pointers.read(workload.body, "/spec/strategy/blueGreen/previewReplicaCount") is not None
    status = pointers.read(workload.body, "/status/blueGreen") or {}
    preview, active = status.get("previewSelector"), status.get("activeSelector")
    if counted and preview and preview != active:
        return Detail.RolloutBusy, f"{workload.ref.short} has a preview up with its own replica count"
    return None


def may_roll_knative(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    short = workload.ref.short
    if not rule.action.allow_knative_rollout:
        return Detail.KnativeRollout, f"pausing {short} would roll a new Revision, which first needs a free GPU"
    if pointers.read(workload.body, MIN_SCALE) == "0":
        return Detail.AlreadyScalesToZero, f"{short} has min-scale 0 already: Knative itself keeps the pods"
    return None


def is_suspendable_ray_job(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
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


def has_roles(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    roles = pointers.read(workload.body, ROLES)
    is_named = isinstance(roles, list) and bool(roles) and all(map(_has_name, roles))
    if is_named and len({role["name"] for role in roles}) == len(roles):
        return None
    return Detail.NoRoles, f"{workload.ref.short} has no roles, each with a name of its own, that could be scaled to 0"


def makes_no_claims(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    """Of a kind that nobody told us about: what becomes of its volumes at 0, its operator alone knows."""
    if not pointers.read(workload.body, CLAIM_TEMPLATES):
        return None
    because = f"{workload.ref.short} makes volumes for its pods, and whether they outlive a scaling to 0 is not known"
    return Detail.PvcDeletedOnScale, because


def shows_replicas(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if workload.replicas_pointer is not None or "spec" in workload.body:
        return None
    return Detail.ReplicasUnknown, f"neither the definition nor the /scale of {workload.ref.short} could be read"


def stop_service(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    return {MIN_REPLICAS: 0} if _wants_min_replicas(workload, rule) else {STOP: "true"}


def _wants_min_replicas(workload: cluster.Workload, rule: idle.Rule) -> bool:
    ignores_stop = names.KSERVE_NO_STOP in workload.annotations
    return rule.action.kserve_method == "min-replicas" or (rule.action.kserve_method == "auto" and ignores_stop)


def is_stopped_service(body: Mapping[str, Any]) -> bool:
    # A user's own minReplicas 0 is no pause: only the one that we recorded counts.
    is_ours = MIN_REPLICAS in record.fields_in(body["metadata"]["annotations"])
    return _says_stop(body) or (is_ours and pointers.read(body, MIN_REPLICAS) == 0)


def _says_stop(body: Mapping[str, Any]) -> bool:
    return str(pointers.read(body, STOP)).lower() == "true"  # KServe reads it in any case


def mode(workload: cluster.Workload) -> str | None:
    """`Serverless`, `Knative`, `RawDeployment`, `Standard`..., or None where KServe has not said."""
    found = workload.annotations.get(names.KSERVE_MODE) or pointers.read(workload.body, "/status/deploymentMode")
    return str(found) if found else None


def object_to_service(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    if not _wants_min_replicas(workload, rule):
        return None
    short, unscaled = workload.ref.short, workload.annotations.get(names.KSERVE_AUTOSCALER) == "none"
    if mode(workload) not in _SERVERLESS and not unscaled:  # with an HPA KServe reads 0 as 1 and writes for ever
        because = f"KServe does not heed {names.KSERVE_STOP} on {short}, and in its mode minReplicas 0 means 1"
        return Detail.KServeNoStop, because
    if pointers.read(workload.body, MIN_REPLICAS) == 0:
        return Detail.AlreadyScalesToZero, f"{short} has minReplicas 0 already: its own autoscaler keeps the pods"
    return None


def stop_llm(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> Fields:
    """By replicas where nothing autoscales it: gentler, because its Services and children stay.

    Of a prefill side without a count that is no way: KServe takes the null that is put back for "keep 0".
    """
    counts = ["/spec/replicas"]
    if pointers.read(workload.body, "/spec/prefill") is not None:  # where there is none, writing it would create a pool
        counts.append("/spec/prefill/replicas")
    if _is_autoscaled(workload) or any(pointers.read(workload.body, count) is None for count in counts):
        return {STOP: "true"}
    return dict.fromkeys(counts, 0)


def _is_autoscaled(workload: cluster.Workload) -> bool:
    configs = (pointers.read(workload.body, pointer) for pointer in ("/spec/scaling", "/spec/prefill/scaling"))
    steering = (workload.hpas, workload.scaled_objects)  # one that may be there counts as there
    return any(config is not None for config in configs) or not all(isinstance(found, Absent) for found in steering)


def is_stopped_llm(body: Mapping[str, Any]) -> bool:
    prefill = pointers.read(body, "/spec/prefill")
    empty = pointers.read(body, "/spec/replicas") == 0 and (prefill is None or pointers.read(prefill, "/replicas") == 0)
    return _says_stop(body) or empty


def object_to_llm(workload: cluster.Workload, rule: idle.Rule) -> Objection | None:
    by_annotation = STOP in stop_llm(workload, rule, 0.0)
    if by_annotation and (names.KSERVE_NO_STOP in workload.annotations or rule.action.kserve_method == "min-replicas"):
        because = f"only {names.KSERVE_STOP} could stop {workload.ref.short}, and it is not heeded or not allowed"
        return Detail.KServeNoStop, because
    return None


def ignores_stop(workload: cluster.Workload) -> bool:
    """Told by annotation to stop, and no condition says that it has? Old versions do not know the annotation."""
    said, body = workload.annotations, workload.body
    if said.get(names.KSERVE_STOP, "").lower() != "true" or names.KSERVE_NO_STOP in said:
        return False
    return not has_condition(body, "Ready", "False", "Stopped") and not has_condition(body, "Stopped", "True")
