"""What nodes have and what pods ask of them, as packing sees it: of all pods, not only of those with GPUs.

In: an Api, asked by one list of nodes and one of pods. Out: a Capacity.
Of a machine that must not be packed, and of a tenant that must not be moved or cannot be judged, the first reason why is kept.
Invariant: a pod that cannot be read at all ends the look: nobody could say on whose node it runs. Nothing is written anywhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import follow
from fallow.model import kinds, quantities
from fallow.model.capacity import Capacity, Machine, Tenant
from fallow.observe.cluster import following, objects, pods

_SAFE_TO_EVICT: Final = names.SAFE_TO_EVICT
_EVICTABLE: Final = f"{names.GROUP}/evictable"
_SELF_EVIDENT: Final = frozenset({names.GPU_PRODUCT, names.GPU_PRESENT, names.OS_LABEL, names.ARCH_LABEL})


# ---- the server's words -------------------------------------------------------------------------------------------------------


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None

    def asked(self) -> dict[str, str]:
        """A limit without a request is a request."""
        return {**(self.limits or {}), **(self.requests or {})}


class _Container(msgspec.Struct, rename="camel", gc=False):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Volume(msgspec.Struct, rename="camel", gc=False):
    persistent_volume_claim: Any = None
    host_path: Any = None


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    overhead: dict[str, str] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: list[Any] | None = None
    resource_claims: list[Any] | None = None
    volumes: list[_Volume] | None = None


class PodItem(msgspec.Struct, gc=False):
    metadata: pods.Meta
    spec: _PodSpec


class _Taint(msgspec.Struct):
    key: str
    effect: str = ""


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _NodeStatus(msgspec.Struct):
    allocatable: dict[str, str] | None = None
    conditions: list[objects.Condition] | None = None


class NodeItem(msgspec.Struct):
    metadata: objects.Meta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


# ---- looking ------------------------------------------------------------------------------------------------------------------


async def look(api: kube.Api) -> Capacity:
    """One list of each. Raises where nodes or pods may not be read: half of them would make full nodes look free."""
    nodes = following.Following(kube.NODES, {"": follow.Follower(api, kube.NODES, item=NodeItem, keep=see_node)})
    tenants = following.Following(
        kube.PODS, {"": follow.Follower(api, kube.PODS, item=PodItem, keep=see_pod, field_selector=pods.ALIVE)}
    )
    async with following.Starter() as starter:
        await starter.begin([nodes, tenants])
    for problem in (*nodes.problems, *tenants.problems):
        raise problem
    if tenants.unreadable:
        raise errors.BadAnswer(f"{tenants.unreadable} pods cannot be read, so what is free on their nodes cannot be told")
    waiting = sorted(tenants.store.values(), key=lambda tenant: (tenant.created_at, tenant.namespace, tenant.name))
    machines = sorted(nodes.store.values(), key=lambda machine: machine.name)
    return Capacity(tuple(machines), tuple(waiting), await _identify(api), nodes.unreadable)


async def _identify(api: kube.Api) -> str:
    try:
        return (await api.get(kube.NAMESPACES, None, "kube-system", kind=kube.BareObject)).metadata.uid
    except errors.ClientError:
        return ""


def see_node(item: NodeItem) -> Machine:
    labels, has = item.metadata.labels or {}, item.status.allocatable or {}
    try:
        replicas = max(1, _whole(labels.get(names.GPU_REPLICAS, "1")))
        seats = sum(_whole(has.get(resource)) for resource in (names.GPU, names.GPU_SHARED))
        cpu, memory, most = (
            quantities.parse_milli(has.get("cpu", "0"), up=False), quantities.parse_mebi(has.get("memory", "0"), up=False),
            _whole(has.get("pods", "110")),
        )  # fmt: skip
    except ValueError as problem:
        return Machine(item.metadata.name, "", 0, 0, 0, 0, left_out=f"what it has cannot be read: {problem}")
    product = labels.get(names.GPU_PRODUCT, "")
    return Machine(item.metadata.name, product, cpu, memory, seats // replicas, most, replicas, _why_left_out(item, has))


def _whole(text: str | None) -> int:
    return int(quantities.parse(text or "0"))


def _why_left_out(item: NodeItem, has: Mapping[str, str]) -> str:
    if item.spec.unschedulable:
        return "is cordoned"
    if not any(condition.type == "Ready" and condition.status == "True" for condition in item.status.conditions or ()):
        return "is not Ready"
    if any(taint.effect in ("NoSchedule", "NoExecute") and taint.key != names.GPU for taint in item.spec.taints or ()):
        return "has a taint that only some pods tolerate"
    if any(resource.startswith(names.MIG_PREFIX) and _whole(count) for resource, count in has.items()):
        return "is cut by MIG: its instances are fixed"
    return ""


def see_pod(item: PodItem) -> Tenant:
    meta, spec = item.metadata, item.spec
    try:
        asked, unknown = _add_up(spec), _why_unknown(spec)
    except ValueError as problem:
        asked, unknown = {}, f"what it asks for cannot be read: {problem}"
    return Tenant(
        namespace=meta.namespace, name=meta.name, node=spec.node_name, cpu=asked.get("cpu", 0), memory=asked.get("memory", 0),
        gpus=asked.get(names.GPU, 0), shared=asked.get(names.GPU_SHARED, 0), products=_products(spec),
        created_at=meta.creation_timestamp.timestamp(), unknown=unknown, unclear=_why_unclear(spec), fixed=_why_fixed(meta, spec),
    )  # fmt: skip


def _products(spec: _PodSpec) -> tuple[str, ...]:
    product = (spec.node_selector or {}).get(names.GPU_PRODUCT)
    return (product,) if product else ()


def _add_up(spec: _PodSpec) -> dict[str, int]:
    """As the scheduler counts: containers and sidecars together, or the init container that asks for more while it runs."""
    lasting = _sum(_amounts(container) for container in spec.containers)
    beside: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in spec.init_containers or ():
        amounts = _amounts(container)
        if container.restart_policy == "Always":
            beside = _sum([beside, amounts])
        most = _most(most, _sum([beside, amounts]) if container.restart_policy != "Always" else beside)
    return _sum([_most(_sum([lasting, beside]), most), _read(spec.overhead or {})])


def _amounts(container: _Container) -> dict[str, int]:
    return _read(container.resources.asked()) if container.resources else {}


def _read(asked: Mapping[str, str]) -> dict[str, int]:
    readers: dict[str, Callable[[str], int]] = {
        "cpu": quantities.parse_milli, "memory": quantities.parse_mebi, names.GPU: _whole, names.GPU_SHARED: _whole,
    }  # fmt: skip
    return {name: readers[name](text) for name, text in asked.items() if name in readers}


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}


def _why_unknown(spec: _PodSpec) -> str:
    resources = [container.resources for container in [*spec.containers, *(spec.init_containers or ())] if container.resources]
    if spec.resource_claims:
        return "asks for devices by claims"
    if any(name.startswith(names.MIG_PREFIX) for each in resources for name in each.asked()):
        return "asks for a MIG instance"
    return ""


def _why_unclear(spec: _PodSpec) -> str:
    if set(spec.node_selector or {}) - _SELF_EVIDENT:
        return "selects nodes by other labels than the GPU's product"
    if ((spec.affinity or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
        return "requires nodes by affinity"
    if _binds(spec):
        return "minds which pods are beside it"
    return ""


def _binds(spec: _PodSpec) -> bool:
    affinity = spec.affinity or {}
    return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.topology_spread_constraints)


def _why_fixed(meta: pods.Meta, spec: _PodSpec) -> str:
    marks = {**(meta.labels or {}), **(meta.annotations or {})}
    controller = next((reference.kind for reference in meta.owner_references or () if reference.controller), None)
    is_training = marks.get(names.WORKLOAD_TYPE, marks.get(names.WORKLOAD_TYPE_ALIAS)) == "training" or controller in kinds.LASTING
    if controller is None or names.MIRROR_POD in marks:
        return "has no controller that would make it again"
    if controller == "DaemonSet":
        return "belongs to its node"
    if is_training and marks.get(_EVICTABLE) != "true":
        return "does work that an eviction would lose"
    if marks.get(names.KARPENTER_DO_NOT_DISRUPT) == "true" or marks.get(_SAFE_TO_EVICT) == "false":
        return "asked not to be disrupted"
    if _has_volume(spec.volumes or ()):
        return "has a volume that may be of its node"
    return ""


def _has_volume(volumes: Sequence[_Volume]) -> bool:
    return any(volume.persistent_volume_claim is not None or volume.host_path is not None for volume in volumes)
