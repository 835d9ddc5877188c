"""What a node is to whoever bills it: cloud, place, machine, GPUs, and whether it is lent, bought or cheap for a while.

In: a Node with its labels. Out: NodeFacts. Labels are read in the words of every cloud; the name of the GPU model is
the one of the whole product (model/gpus.py).
Invariant: what no label says is "", None or `unknown`, never a guess: but GKE and AKS mark what is spot, so that a node
of theirs without the mark is on demand.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.model import cluster, gpus, shares
from fallow.model.cost import CapacityType

AWS: Final = "aws"
GCP: Final = "gcp"
AZURE: Final = "azure"
_CLOUDS: Final = {"aws": AWS, "gce": GCP, "azure": AZURE}  # how a providerID begins
_MARK_SPOT: Final = frozenset({GCP, AZURE})
_CAPACITY: Final = {
    "spot": CapacityType.spot, "ec2spot": CapacityType.spot, "preemptible": CapacityType.spot,
    "on-demand": CapacityType.on_demand, "ondemand": CapacityType.on_demand, "normal": CapacityType.on_demand,
    "od": CapacityType.on_demand, "regular": CapacityType.on_demand, "standard": CapacityType.on_demand,
    "reserved": CapacityType.reserved, "capacity-block": CapacityType.reserved,
}


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`provider`: aws, gcp, azure, or "" where its providerID names none of them. `gpus`: physical ones; None = not
    known. `annotated`: the price per hour that stands on the node, as text."""

    node: str
    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    capacity_type: CapacityType = CapacityType.unknown
    gpu_model: str = ""
    gpus: int | None = None
    cpu: int | None = None  # milli-cores
    memory: int | None = None  # MiB
    annotated: str | None = None


def read(node: cluster.Node, *, region: str = "") -> NodeFacts:
    """`region`: where nodes that do not say it are."""
    provider = _CLOUDS.get(node.provider_id.partition("://")[0], "")
    return NodeFacts(
        node=node.name, provider=provider, region=_first(node.labels, names.REGION) or region,
        zone=_first(node.labels, names.ZONE), instance_type=_first(node.labels, names.INSTANCE_TYPE),
        capacity_type=find_capacity(node.labels, provider), gpu_model=find_model(node), gpus=count_gpus(node),
        cpu=node.cpu, memory=node.memory, annotated=node.price_per_hour,
    )


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def find_capacity(labels: Mapping[str, str], provider: str) -> CapacityType:
    """Karpenter's word first: it bought the node."""
    if any(labels.get(key) == "true" for key in names.GKE_SPOT):
        return CapacityType.spot
    keys = (names.KARPENTER_CAPACITY, names.EKS_CAPACITY, names.GKE_PROVISIONING, names.AKS_PRIORITY)
    for key in (*keys, names.OWN_CAPACITY, *names.NODE_LIFECYCLE):
        if found := _CAPACITY.get(labels.get(key, "").lower().replace("_", "-")):
            return found
    return CapacityType.on_demand if provider in _MARK_SPOT else CapacityType.unknown


def find_model(node: cluster.Node) -> str:
    """"" where no label tells."""
    memory = _whole(node.labels.get(names.GPU_MEMORY, ""))
    if node.gpu_product:
        return gpus.normalise(node.gpu_product, memory)
    accelerator = node.labels.get(names.GKE_ACCELERATOR, "")
    return gpus.normalise_gke(accelerator, memory) if accelerator else ""


def count_gpus(node: cluster.Node) -> int | None:
    """Those that are in the machine: also one that is ill and not offered. A node that offers its MIG instances as
    plain GPUs counts these, and not its GPUs."""
    is_cut = "-MIG-" in (node.gpu_product or "")
    keys = (*(() if is_cut else (names.GPU_COUNT,)), *names.KARPENTER_GPU_COUNT)
    said = (_whole(node.labels.get(key, "")) for key in keys)
    return max((count for count in (*said, shares.count_physical(node)) if count), default=None)


@functools.lru_cache(1024)
def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
