"""What of a pod is changed so that it asks for a part of a GPU: a JSON patch, and nothing but what is named here.

In: a pod with exactly one whole GPU, the part that it is given, now. Out: operations on its GPU's request and limit, on
its claims where the part is given by one, on its node selector, tolerations and annotations.
Invariant: images, commands, environment, volumes, security, priority, CPU, memory, labels and other containers are
never touched. Made twice, it changes nothing the second time: the verdict is then AlreadyOptimized.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from fallow import names
from fallow.model import pointers, units
from fallow.model.sharing import PartGiven, SharePod
from fallow.model.units import Instant

Patch: TypeAlias = tuple[dict[str, Any], ...]
_CLAIM: Final = "gpu"  # what the pod calls it; it has no other: who has claims is left alone
_TOLERATION: Final = {"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"}


def change(pod: SharePod, given: PartGiven, now: Instant) -> Patch:
    return (
        *_change_request(pod, given), *_select_nodes(pod, given.part.selector), *_tolerate(pod),
        *_annotate(pod, given, now),
    )


def _put(value: Any, *path: str) -> dict[str, Any]:
    return {"op": "add", "path": pointers.join(path), "value": value}


def _change_request(pod: SharePod, given: PartGiven) -> list[dict[str, Any]]:
    if given.part.resource == names.GPU:  # nodes that share without renaming: it asks for the same, elsewhere
        return []
    container = pod.containers[given.container]
    resources = ("spec", "containers", str(given.container), "resources")
    made: list[dict[str, Any]] = []
    for where, asked in (("limits", container.limits), ("requests", container.requests)):
        path = (*resources, where)
        if given.part.template:
            if asked is not None and names.GPU in asked:
                made.append({"op": "remove", "path": pointers.join((*path, names.GPU))})
            continue
        if asked is None:
            made.append(_put({given.part.resource: "1"}, *path))
            continue
        if names.GPU in asked:
            made.append({"op": "remove", "path": pointers.join((*path, names.GPU))})
        made.append(_put("1", *path, given.part.resource))
    if given.part.template:
        claim = {"name": _CLAIM, "resourceClaimTemplateName": given.part.template}
        made += [_put([{"name": _CLAIM}], *resources, "claims"), _put([claim], "spec", "resourceClaims")]
    return made


def _select_nodes(pod: SharePod, selector: Mapping[str, str]) -> list[dict[str, Any]]:
    if pod.node_selector is None:
        return [_put(dict(selector), "spec", "nodeSelector")] if selector else []
    missing = {key: value for key, value in selector.items() if pod.node_selector.get(key) != value}
    return [_put(value, "spec", "nodeSelector", key) for key, value in missing.items()]


def _tolerate(pod: SharePod) -> list[dict[str, Any]]:
    if pod.tolerations is None:
        return [_put([_TOLERATION], "spec", "tolerations")]
    tolerated = any(
        each.key in ("", names.GPU) and each.operator == "Exists" and each.effect in ("", "NoSchedule")
        for each in pod.tolerations
    )
    return [] if tolerated else [_put(_TOLERATION, "spec", "tolerations", "-")]


def _annotate(pod: SharePod, given: PartGiven, now: Instant) -> list[dict[str, Any]]:
    said = {
        names.OPTIMIZED: "true", names.ORIGINAL_GPU_REQUEST: "1",
        names.OPTIMIZATION_STRATEGY: str(given.part.strategy), names.OPTIMIZATION_TIMESTAMP: units.rfc3339(now),
        **({names.OPTIMIZATION_POLICY: given.policy} if given.policy else {}),
    }
    if pod.annotations is None:
        return [_put(said, "metadata", "annotations")]
    return [_put(value, "metadata", "annotations", key) for key, value in said.items()]
