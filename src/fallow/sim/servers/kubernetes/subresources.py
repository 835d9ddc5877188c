"""What /scale shows and takes, and what /eviction asks: the Scale of an object (autoscaling/v1); disruption budgets.

In: an entry of the store, or what somebody asks for. Out: a Scale, a count, or a Refusal in the real server's words.
A count of 0 is left out, as Go leaves out zeroes. Budgets are asked at the moment of an eviction: how many pods must be
healthy, and how many are.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from fallow.model import pointers
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, catalogue, refusals, selectors

Object: TypeAlias = dict[str, Any]
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_BUDGET = ("policy", "PodDisruptionBudget")
_FREE = ("Pending", "Succeeded", "Failed")  # phases in which a pod may always go


def show_scale(entry: stores.Entry, scale: catalogue.Scale) -> Object:
    obj = entry.object
    replicas = pointers.read(obj, scale.replicas)
    status: Object = {"replicas": pointers.read(obj, scale.status) or 0}
    if text := selectors.write(pointers.read(obj, scale.selector) if scale.selector else None):
        status["selector"] = text
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1", "status": status,
        "spec": {"replicas": replicas} if replicas else {},
        "metadata": {name: obj["metadata"][name] for name in _SHOWN if name in obj["metadata"]},
    }


def read_scale(call: calls.Call, wanted: Object) -> int:
    """The count somebody asks for through a Scale."""
    spec, text = wanted.get("spec") or {}, msgspec.json.encode(wanted).decode()
    unknown = [f'unknown field "spec.{name}"' for name in spec if name != "replicas"]
    if unknown and call.query.get("fieldValidation") == "Strict":
        why = f"strict decoding error: {', '.join(unknown)}"
        raise refusals.bad_patch(text, why) if call.method == "PATCH" else refusals.bad(why)
    replicas = spec.get("replicas", 0)
    if not isinstance(replicas, int):
        why = "json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas"
        raise refusals.bad_patch(text, why)
    return replicas


def check_budgets(store: stores.Store, pod: stores.Entry) -> None:
    """Refuses if evicting the pod would leave too few."""
    if pointers.read(pod.object, "/status/phase") in _FREE or "deletionTimestamp" in pod.object["metadata"]:
        return
    found = [entry for entry in store.entries(*_BUDGET, namespace=pod.key.namespace) if _covers(entry, pod)]
    if len(found) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise refusals.ApiRefusal(500, message)
    for budget in found:
        covered = [entry for entry in store.entries("", "Pod", namespace=pod.key.namespace) if _covers(budget, entry)]
        healthy = sum(_is_ready(entry) for entry in covered)
        wanted = _needed(budget.object.get("spec") or {}, len(covered))
        if not (healthy > wanted or (not _is_ready(pod) and healthy >= wanted > 0)):
            why = f"The disruption budget {budget.key.name} needs {wanted} healthy pods and has {healthy} currently"
            causes = [{"reason": "DisruptionBudget", "message": why}]
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise refusals.ApiRefusal(429, message, details={"causes": causes})


def _covers(budget: stores.Entry, pod: stores.Entry) -> bool:
    return selectors.matches(pointers.read(budget.object, "/spec/selector"), pod.object["metadata"].get("labels") or {})


def _needed(spec: Mapping[str, Any], pods: int) -> int:
    if "maxUnavailable" in spec:
        return max(0, pods - _count(spec["maxUnavailable"], pods))
    return _count(spec.get("minAvailable", 1), pods)


def _count(value: Any, pods: int) -> int:
    return math.ceil(float(value.rstrip("%")) / 100 * pods) if isinstance(value, str) else int(value)


def _is_ready(pod: stores.Entry) -> bool:
    conditions = pointers.read(pod.object, "/status/conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
