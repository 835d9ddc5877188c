"""What a new node of a pool will be: what it has, its labels and taints, what it costs.

In: a pool, the nodes of it that live with what belongs to them, its group in the cloud, shapes and prices of machine
types. Out: a NodeTemplate; `has` None where nobody knows, and then nothing is known to fit.
A node that lives tells best, for what the spec says is only for the first one: a template that promises more than nodes
have would be grown for again and again.
Invariant: what belongs to every node (DaemonSets) is taken off; a label that a new node may not have is not promised.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.decide.scaling import fit
from fallow.model import gpus as gpu_models
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineGroup, MachineShape
from fallow.model.policies.scaling import NodePool, PoolSharing, PoolTaint
from fallow.model.policies.sharing import Strategy
from fallow.model.scaling import ScaledNode, ScaledPod
from fallow.model.seen import Known, Register

_CORE: Final = 1000
# What comes with a GPU where nobody says it: as much as large machines have, and not more, or a pod that fits no
# machine would be grown for, and again once that node is gone.
_CPU_OF_GPU: Final = 12 * _CORE
_MEMORY_OF_GPU: Final = 128 * 1024
_OF_OTHERS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", f"{names.GROUP}/")
_OF_ONE: Final = (names.HOSTNAME, names.SCALE_DOWN, *names.ZONE)  # labels that differ from node to node


class NodeTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas`: how many pods share a GPU. `source`: who said, for people."""

    pool: NodePool
    has: Mapping[str, int] | None
    labels: Mapping[str, str] = {}
    taints: tuple[PoolTaint, ...] = ()
    gpus: int | None = None
    gpu_memory: int | None = None  # MiB of each
    replicas: int = 4
    instance_type: str = ""
    price: float | None = None
    source: str = ""

    @property
    def boards(self) -> dict[str, int]:
        """All its GPUs, by resource."""
        return {resource: count for resource, count in (self.has or {}).items() if count > 0 and fit.is_gpu(resource)}

    @property
    def milli(self) -> int:
        return 0 if self.has is None else fit.measure(self.has, self.replicas)


class ShapeBook(msgspec.Struct, frozen=True):
    """What is known of machine types, whoever said."""

    shapes: Register[MachineShape] = Register({})
    prices: Mapping[tuple[str, CapacityType], float] = {}


class NodesAlike(msgspec.Struct, frozen=True):
    """Of the nodes of a pool that live: the one that has most, and what all of them have."""

    model: str  # "": none shows a GPU
    labels: Mapping[str, str] = {}
    taints: tuple[PoolTaint, ...] = ()


def compare(alive: Sequence[ScaledNode]) -> NodesAlike:
    best = max(alive, key=lambda node: (fit.measure(node.has), node.name), default=None)
    if best is None or not fit.count_gpus(best.has):
        return NodesAlike("")
    shared = set(alive[0].labels.items()).intersection(*(node.labels.items() for node in alive[1:]))
    taints = tuple(taint for taint in alive[0].taints if all(taint in node.taints for node in alive))
    return NodesAlike(best.name, dict(sorted(shared)), taints)


def make(
    pool: NodePool, alike: NodesAlike, model: ScaledNode | None, belongings: Sequence[ScaledPod],
    group: MachineGroup | None, book: ShapeBook,
) -> NodeTemplate:
    """`model`: the node that `alike` names; `belongings`: what belongs to it."""
    kinds = pool.instance_types or (group.instance_types if group else ())
    kind = kinds[0] if kinds else ""
    shape = _find_shape(group, book, kind)
    has, source = _find_amounts(pool, model, belongings, shape)
    return NodeTemplate(
        pool=pool, has=has, labels=_find_labels(pool, alike, group, kind),
        taints=_find_taints(pool, alike), gpus=_find_gpus(pool, model, shape),
        replicas=_find_replicas(pool, model), gpu_memory=_find_memory(pool, shape),
        instance_type=kind, price=_find_price(pool, model, shape, book, kind), source=source,
    )


def _find_shape(group: MachineGroup | None, book: ShapeBook, kind: str) -> MachineShape | None:
    """What its cloud says of the group; what it leaves open, as machines of the kind are known."""
    found = book.shapes.find(kind)
    known = found.value if kind and isinstance(found, Known) else None
    if group is None or group.shape is None or group.shape.instance_type not in ("", kind):
        return known
    if known is None:
        return group.shape
    said = {field: value for field, value in msgspec.structs.asdict(group.shape).items() if value not in (None, "", {})}
    return msgspec.structs.replace(known, **said)


def _find_amounts(
    pool: NodePool, model: ScaledNode | None, belongings: Sequence[ScaledPod], shape: MachineShape | None
) -> tuple[Mapping[str, int] | None, str]:
    if model is not None:
        return _without(model.has, belongings), f"node {model.name}"
    said = dict(shape.has) if shape is not None and shape.has is not None else {}
    if not said and shape is not None and shape.gpus:
        said = {names.GPU: shape.gpus}
    gpus = pool.gpus if pool.gpus is not None else (shape.gpus if shape is not None else None)
    if gpus is not None and (pool.gpus is not None or pool.sharing is not None):
        said = {resource: count for resource, count in said.items() if not fit.is_gpu(resource)}
        said |= _cut(gpus, pool.sharing)
    if pool.cpu is not None:
        said["cpu"] = pool.cpu * _CORE
    if pool.memory is not None:
        said["memory"] = pool.memory
    if not fit.count_gpus(said):
        return None, ""
    believed = {"cpu": (gpus or 1) * _CPU_OF_GPU, "memory": (gpus or 1) * _MEMORY_OF_GPU}
    return {**believed, **said}, "the policy" if pool.gpus is not None else "its cloud"


def _cut(gpus: int, sharing: PoolSharing | None) -> dict[str, int]:
    """What the device plugin will advertise."""
    if sharing is None or sharing.strategy is Strategy.exclusive:
        return {names.GPU: gpus}
    if sharing.strategy is Strategy.mig:
        made: dict[str, int] = {}
        for profile in sharing.profiles:
            resource = gpu_models.name_resource(profile)
            made[resource] = made.get(resource, 0) + gpus
        return made
    return {names.GPU_SHARED: gpus * sharing.replicas} if sharing.replicas > 1 else {names.GPU: gpus}


def _without(has: Mapping[str, int], belongings: Iterable[ScaledPod]) -> Mapping[str, int]:
    left = dict(has)
    for pod in belongings:
        for resource, amount in pod.asks.items():
            if resource in left:
                left[resource] = max(0, left[resource] - amount)
        if fit.PODS in left:
            left[fit.PODS] = max(0, left[fit.PODS] - 1)
    return left


def _find_labels(
    pool: NodePool, alike: NodesAlike, group: MachineGroup | None, kind: str
) -> Mapping[str, str]:
    """Of nodes that live, what they all have alike."""
    labels = dict(group.shape.labels) if group is not None and group.shape is not None else {}
    if kind and len(pool.instance_types) <= 1:
        labels |= {names.INSTANCE_TYPE[0]: kind, names.OWN_INSTANCE_TYPE: kind}
    labels |= {names.NODE_POOL: pool.name, names.OWN_CAPACITY: str(pool.tier)}
    if pool.gpu_type:
        labels |= {names.OWN_GPU_TYPE: pool.gpu_type}
    if len(pool.zones) == 1:
        labels |= {names.ZONE[0]: pool.zones[0]}
    labels |= pool.labels
    if not alike.model:
        return labels
    own = (names.HOSTNAME,) if len(pool.zones) == 1 else _OF_ONE
    return {key: value for key, value in alike.labels.items() if key not in own}


def _find_taints(pool: NodePool, alike: NodesAlike) -> tuple[PoolTaint, ...]:
    seen = [taint for taint in alike.taints if not is_passing(taint)]
    return tuple(dict.fromkeys((*pool.taints, *seen)))


def is_passing(taint: PoolTaint) -> bool:
    """One that comes and goes with the state of a node, ours among them."""
    return taint.key.startswith(_OF_OTHERS)


def _find_gpus(pool: NodePool, model: ScaledNode | None, shape: MachineShape | None) -> int | None:
    said = (model.gpus if model else None, pool.gpus, shape.gpus if shape else None)
    return next((gpus for gpus in said if gpus), None)


def _find_memory(pool: NodePool, shape: MachineShape | None) -> int | None:
    """MiB of each GPU: as its cloud says, else as its model has it."""
    if shape is not None and shape.gpu_memory is not None:
        return shape.gpu_memory
    model = gpu_models.find(shape.gpu_model if shape is not None and shape.gpu_model else pool.gpu_type)
    return None if model is None else model.memory_gib * 1024


def _find_replicas(pool: NodePool, model: ScaledNode | None) -> int:
    if model is not None and model.gpus and model.has.get(names.GPU_SHARED):
        return max(1, model.has[names.GPU_SHARED] // model.gpus)
    return pool.sharing.replicas if pool.sharing is not None and pool.sharing.replicas > 1 else 4


def _find_price(
    pool: NodePool, model: ScaledNode | None, shape: MachineShape | None, book: ShapeBook, kind: str
) -> float | None:
    said = (pool.price, book.prices.get((kind, pool.tier)), model.price if model else None,
            shape.price if shape else None)
    return next((price for price in said if price is not None and price >= 0), None)
