"""Disruption budgets, asked at the moment of an eviction: how many pods must be healthy, and how many are."""

import math
from collections.abc import Mapping
from typing import Any

from fallow.model import pointers
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import refusals, selectors

_BUDGET = ("policy", "PodDisruptionBudget")
_FREE = ("Pending", "Succeeded", "Failed")


def check(store: stores.Store, pod: stores.Entry) -> None:
    """Refuses if evicting the pod would leave too few."""
    metadata = pod.object["metadata"]
    if pointers.read(pod.object, "/status/phase") in _FREE or "deletionTimestamp" in metadata:
        return
    found = [entry for entry in store.entries(*_BUDGET, namespace=pod.key.namespace) if _covers(entry, pod)]
    if len(found) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise refusals.ApiRefusal(500, message)
    for budget in found:
        covered = [entry for entry in store.entries("", "Pod", namespace=pod.key.namespace) if _covers(budget, entry)]
        healthy, wanted = sum(_is_ready(entry) for entry in covered), _needed(budget.object.get("spec") or {}, len(covered))
        if not (healthy > wanted or (not _is_ready(pod) and healthy >= wanted > 0)):
            message = f"The disruption budget {budget.key.name} needs {wanted} healthy pods and has {healthy} currently"
            causes = [{"reason": "DisruptionBudget", "message": message}]
            raise refusals.ApiRefusal(
                429, "Cannot evict pod as it would violate the pod's disruption budget.", details={"causes": causes}
            )


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
