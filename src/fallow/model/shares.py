"""GPUs as shares of physical ones: what a pod holds, and what a node has, in a unit that adds up to the cluster.

In: pods, nodes, the catalogue of models. Out: PhysicalUnits: a whole GPU is 1, a MIG instance its compute slices of all
that its model has, a replica of a shared GPU one of as many.
Invariant: what is not known is None and never 0; the capacity of a node is never less than what its pods hold.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.model import cluster, gpus
from fallow.model.seen import Unseen

_PROFILE: Final = re.compile(r"(\d+)g\.\d+gb(?:[.+]me)?")
_USUAL_SLICES: Final = 7


class PhysicalUnit(msgspec.Struct, frozen=True):
    """One of what pods ask for. `size`: in compute slices, of a MIG instance; `of`: how many the whole GPU has."""

    resource: str
    share: float = 1.0
    profile: str | None = None
    size: int | None = None
    of: int = _USUAL_SLICES


@functools.lru_cache(4096)
def find_unit(resource: str, product: str, replicas: int) -> PhysicalUnit:
    """By the resource's own name, or, where a node offers its instances as plain GPUs, by the name of its product."""
    found = _PROFILE.search(resource if resource.startswith(names.MIG_PREFIX) else product.partition("-MIG-")[2])
    if found is None:
        return PhysicalUnit(resource, 1.0 / replicas)
    model, size = gpus.find(product), int(found[1])
    of = model.mig.compute if model and model.mig else _USUAL_SLICES
    return PhysicalUnit(resource, min(1.0, size / of) / replicas, found[0].replace(".me", "+me"), size, of)


def replicas_of(node: cluster.Node | None) -> int:
    text = "1" if node is None else node.labels.get(names.GPU_REPLICAS, "1")
    return max(1, int(text)) if text.isdecimal() and len(text) < 5 else 1


def unit_on(node: cluster.Node | None, resource: str) -> PhysicalUnit:
    return find_unit(resource, (node.gpu_product if node else None) or "", replicas_of(node))


def held_by(pod: cluster.Pod, node: cluster.Node | None) -> Iterator[PhysicalUnit]:
    """What it has on its node, one by one; nothing while it has none, or after its end."""
    if not pod.node or pod.has_ended or pod.namespace in names.RESERVATION_NAMESPACES:
        return
    for resource, count in pod.resources.items():
        unit = unit_on(node, resource)
        if resource == names.GPU_SHARED and unit.share == 1.0:
            unit = PhysicalUnit(resource, _fraction_of(pod))
        yield from (unit for _ in range(count))
    yield from (PhysicalUnit(names.DRA_DRIVER) for _ in range(pod.claimed or 0))


def _fraction_of(pod: cluster.Pod) -> float:
    """Of a pod that asked another scheduler for a part of a GPU, in its own words."""
    try:
        asked = float(pod.annotations.get(names.GPU_FRACTIONS[0], "1"))
    except ValueError:
        return 1.0
    return asked if 0.0 < asked <= 1.0 else 1.0


def offered_by(node: cluster.Node) -> Mapping[str, int] | None:
    """By resource; None where it is not known."""
    if node.gpus is None:
        return None
    return node.offers or ({names.GPU: node.gpus} if node.gpus else {})


def count_physical(node: cluster.Node) -> int | None:
    """How many GPUs are in it. A node that is cut tells its instances: of what is left over of a GPU nobody hears, so
    that whole GPUs are counted."""
    offered = offered_by(node)
    if offered is None:
        return None
    least = math.ceil(round(sum(unit_on(node, name).share * count for name, count in offered.items()), 6))
    said = node.labels.get(names.GPU_COUNT, "")
    is_cut = any(name.startswith(names.MIG_PREFIX) for name in offered)
    return max(least, int(said)) if is_cut and said.isdecimal() and len(said) < 4 else least


def layout_of(node: cluster.Node) -> str:
    """whole, mig, slices or mps."""
    if "-MIG-" in (node.gpu_product or "") or any(name.startswith(names.MIG_PREFIX) for name in node.offers):
        return "mig"
    if not node.shared:
        return "whole"
    return "mps" if node.labels.get(names.GPU_SHARING) == "mps" else "slices"


class WorkloadShare(msgspec.Struct, frozen=True):
    """What one workload holds: physical GPUs, and in how many pieces."""

    gpus: float
    instances: int
    profile: str | None


def of_workload(workload: cluster.Workload, seen: cluster.Snapshot) -> WorkloadShare:
    units = list(_units_of(workload, seen))
    profiles = {unit.profile for unit in units if unit.profile}
    return WorkloadShare(
        round(sum(unit.share for unit in units), 4), len(units), profiles.pop() if len(profiles) == 1 else None
    )


def _units_of(workload: cluster.Workload, seen: cluster.Snapshot) -> Iterable[PhysicalUnit]:
    for index in workload.pods:
        pod = seen.pods[index]
        yield from held_by(pod, seen.nodes.known.get(pod.node))


def count_cluster(seen: cluster.Snapshot) -> float | None:
    """Physical GPUs of all nodes; None where not all of them are seen."""
    if not is_capacity_known(seen):
        return None
    return float(sum(count_physical(node) or 0 for node in seen.nodes.known.values()))


def is_capacity_known(seen: cluster.Snapshot) -> bool:
    return not isinstance(seen.nodes.rest, Unseen) and all(node.gpus is not None for node in seen.nodes.known.values())
