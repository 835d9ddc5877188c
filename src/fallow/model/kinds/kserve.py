"""How KServe is stopped: two kinds, two methods each, and the cases in which none of them works.

In: an InferenceService or LLMInferenceService as the eyes saw it, and the rule. Out: the fields of a pause, whether it
stands stopped, and what speaks against stopping it; and whether KServe heeded it. The rows of table.py call these.
Invariant: minReplicas 0 is written only where KServe really makes it 0 pods; elsewhere it would be fought over for
ever.
"""

from collections.abc import Mapping
from typing import Any

from fallow import names
from fallow.model import cluster, pointers, record
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.units import Instant

STOP = pointers.annotation(names.KSERVE_STOP)
MIN_REPLICAS = "/spec/predictor/minReplicas"
CONDITIONS = "/status/conditions"
_SERVERLESS = frozenset({"Serverless", "Knative"})


def stop_service(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> dict[str, Any]:
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


def object_to_service(workload: cluster.Workload, rule: idle.Rule) -> tuple[Detail, str] | None:
    if not _wants_min_replicas(workload, rule):
        return None
    short, unscaled = workload.ref.short, workload.annotations.get(names.KSERVE_AUTOSCALER) == "none"
    if mode(workload) not in _SERVERLESS and not unscaled:  # with an HPA KServe reads 0 as 1 and writes for ever
        because = f"KServe does not heed {names.KSERVE_STOP} on {short}, and in its mode minReplicas 0 means 1"
        return Detail.KServeNoStop, because
    if pointers.read(workload.body, MIN_REPLICAS) == 0:
        return Detail.AlreadyScalesToZero, f"{short} has minReplicas 0 already: its own autoscaler keeps the pods"
    return None


def stop_llm(workload: cluster.Workload, rule: idle.Rule, now: Instant) -> dict[str, Any]:
    """By replicas where nothing autoscales it: gentler, because its Services and children stay."""
    if _is_autoscaled(workload) or pointers.read(workload.body, "/spec/replicas") is None:
        return {STOP: "true"}
    fields = {"/spec/replicas": 0}
    if pointers.read(workload.body, "/spec/prefill") is not None:  # where there is none, writing it would create a pool
        fields["/spec/prefill/replicas"] = 0
    return fields


def _is_autoscaled(workload: cluster.Workload) -> bool:
    configs = (pointers.read(workload.body, pointer) for pointer in ("/spec/scaling", "/spec/prefill/scaling"))
    return any(config is not None for config in configs) or bool(workload.hpas) or bool(workload.scaled_objects)


def is_stopped_llm(body: Mapping[str, Any]) -> bool:
    prefill = pointers.read(body, "/spec/prefill")
    empty = pointers.read(body, "/spec/replicas") == 0 and (prefill is None or pointers.read(prefill, "/replicas") == 0)
    return _says_stop(body) or empty


def object_to_llm(workload: cluster.Workload, rule: idle.Rule) -> tuple[Detail, str] | None:
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


def has_condition(body: Mapping[str, Any], type_: str, status: str, reason: str | None = None) -> bool:
    """Does its status say so? How Job, JobSet and KServe confirm that they have stopped."""
    found = [condition for condition in pointers.read(body, CONDITIONS) or [] if condition.get("type") == type_]
    return any(condition.get("status") == status and reason in (None, condition.get("reason")) for condition in found)
