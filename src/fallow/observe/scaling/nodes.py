"""All nodes as those that come and go are seen, kept equal to the server's by list and watch; who hears of a notice.

In: an Api. Out: SeenNodes: a ScaledNode as far as its object tells it, and the cluster.Node by which it is billed.
`place` says of which policy's pool each is; `join` adds what it costs and how busy it was.
Invariant: a record that cannot be read makes its node broken, never free; a quantity that cannot be read, or that no
machine has, is not advertised; a node's use is known only where that of all its GPUs is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, emptying, moving, node_facts, partition, quantities, scaling, units
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine
from fallow.model.moving import HeldPlace
from fallow.model.policies.scaling import NodePool, PoolTaint, ScalingPolicy
from fallow.model.scaling import ScaledNode
from fallow.model.units import Instant
from fallow.observe.budgets import Watching
from fallow.observe.cluster import capacity, objects
from fallow.observe.usage.device_use import DeviceUse

# By which labels providers name a group; of several the first that is there counts.
GROUP_LABELS: Final = (
    names.SCALING_GROUP, names.KARPENTER_NODEPOOL, "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
)
_LARGEST: Final = 1 << 50  # no machine has this much of anything
_KEEPING: Final = (names.SCALE_DOWN_DISABLED, names.KARPENTER_DO_NOT_DISRUPT, names.CA_SCALE_DOWN_DISABLED)


class _ScaledTaint(msgspec.Struct):
    key: str
    value: str = ""
    effect: str = ""


class _ScaledNodeSpec(objects.NodeSpec):
    unschedulable: bool = False
    taints: list[_ScaledTaint] | None = None


class ScaledNodeItem(objects.NodeItem):
    spec: _ScaledNodeSpec = msgspec.field(default_factory=_ScaledNodeSpec)


class SeenNode(msgspec.Struct, frozen=True):
    """`billed`: for who prices it. `place`: as it stands there, for a pod that is moved."""

    node: ScaledNode
    billed: cluster.Node
    place: HeldPlace | None = None


def watch(api: kube.Api, wake: Callable[[], None]) -> Watching[SeenNode]:
    """`wake`: a cloud has said that it takes one back, and nobody has begun to heed it."""

    def keep(item: ScaledNodeItem) -> SeenNode:
        found = see(item)
        if (found.node.ends_at or found.node.warned_at) is not None and found.node.spot is None:
            wake()
        return found

    return Watching(api, kube.NODES, ScaledNodeItem, keep)


def see(item: ScaledNodeItem) -> SeenNode:
    meta, billed = item.metadata, objects.see_node(item, is_gpu=_is_gpu)
    said, facts = meta.annotations or {}, node_facts.read(billed)
    drain, spot = scaling.read_drain(said.get(names.SCALE_DOWN)), scaling.read_spot(said.get(names.SPOT_RECORD))
    return SeenNode(ScaledNode(
        name=meta.name, uid=meta.uid, version=meta.resource_version, provider_id=item.spec.provider_id,
        labels=billed.labels, taints=tuple(PoolTaint(one.key, one.value, one.effect) for one in item.spec.taints or ()),
        has=_read_has(item.status.allocatable or {}), gpus=facts.gpus, is_ready=billed.ready,
        is_cordoned=item.spec.unschedulable, is_going=meta.deletion_timestamp is not None,
        created_at=billed.created_at or 0.0, tier=_read_tier(facts.capacity_type), instance_type=facts.instance_type,
        zone=facts.zone, driver_pool=billed.labels.get(names.KARPENTER_NODEPOOL, ""), kept=_why_kept(said),
        drain=drain, spot=spot, is_broken=_is_broken(said, drain, spot), is_emptied=_is_emptied(said),
        warned_at=units.read_instant(said.get(names.SPOT_WARNING)),
        ends_at=units.read_instant(said.get(names.SPOT_TERMINATION)),
        rests_until=units.read_instant(said.get(names.DRAIN_RESTS_UNTIL)),
        prewarmed_until=units.read_instant(said.get(names.PREWARMED_UNTIL)),
        was_prewarmed=names.PREWARMED_UNTIL in said,
    ), billed, moving.read_place(said.get(names.PLACE_HELD)))


def has_record(item: ScaledNodeItem) -> bool:
    """Whether somebody has begun to let it go, whatever the record says."""
    said = item.metadata.annotations or {}
    return names.SCALE_DOWN in said or names.SPOT_RECORD in said


def _is_gpu(resource: str) -> bool:
    return resource in (names.GPU, names.GPU_SHARED) or resource.startswith(names.MIG_PREFIX)


def _read_tier(found: CapacityType) -> CapacityType:
    """Where nobody says how it was bought, it is on demand."""
    return CapacityType.on_demand if found is CapacityType.unknown else found


def _read_has(allocatable: Mapping[str, str]) -> dict[str, int]:
    found = ((name, _read_amount(name, text)) for name, text in allocatable.items())
    return {name: amount for name, amount in found if amount is not None}


def _read_amount(name: str, text: str) -> int | None:
    try:
        if name in capacity.READERS:
            found = (quantities.parse_milli if name == "cpu" else quantities.parse_mebi)(text, up=False)
        else:
            found = int(quantities.parse(text))
    except ValueError:
        return None
    return found if found < _LARGEST else None


def _why_kept(said: Mapping[str, str]) -> str:
    if key := next((key for key in _KEEPING if said.get(key) == "true"), ""):
        return f"{key} says so"
    if names.REPARTITION in said and partition.is_changing(said[names.REPARTITION]):
        return "its GPUs are being cut or shared anew"
    if names.EMPTYING in said and not _is_emptied(said):
        return "it is being emptied, so that its GPUs are whole again"
    return ""


def _is_emptied(said: Mapping[str, str]) -> bool:
    record = emptying.read(said.get(names.EMPTYING))
    return record is not None and record.empty_since is not None


def _is_broken(said: Mapping[str, str], drain: object, spot: object) -> bool:
    return (names.SCALE_DOWN in said and drain is None) or (names.SPOT_RECORD in said and spot is None)


# ---- whose it is, what it costs, how busy it was --------------------------------------------------------------------


def place(
    node: ScaledNode, policies: Sequence[ScalingPolicy], machines: Mapping[str, CloudMachine]
) -> ScaledNode:
    """With the pool that claims it, of the first policy that means it. `policies`: by rank; `machines`: by the
    provider's id."""
    meant = next((each for each in policies if is_meant(each, node)), None)
    if meant is None:
        return node
    found = _find_pool(node, meant.pools, machines.get(node.provider_id) if node.provider_id else None)
    return node if found is None else msgspec.structs.replace(node, pool=found.name)


def is_meant(policy: ScalingPolicy, node: ScaledNode) -> bool:
    """By its labels; where it names none, all nodes with GPUs, and those that one of its pools claims by name."""
    if policy.node_selector:
        return all(node.labels.get(key) == value for key, value in policy.node_selector.items())
    return bool(node.gpus) or node.labels.get(names.NODE_POOL, "") in {pool.name for pool in policy.pools}


def _find_pool(node: ScaledNode, pools: Sequence[NodePool], machine: CloudMachine | None) -> NodePool | None:
    for claims in (
        lambda pool: node.labels.get(names.NODE_POOL) == pool.name,
        lambda pool: machine is not None and machine.group == pool.group,
        lambda pool: _is_of_group(node, pool),
        lambda pool: _is_alike(node, pool),
    ):
        if (found := next(filter(claims, pools), None)) is not None:
            return found
    return None


def _is_of_group(node: ScaledNode, pool: NodePool) -> bool:
    said = next((node.labels[key] for key in GROUP_LABELS if key in node.labels), "")
    return bool(pool.group) and said in (pool.group, pool.group.rpartition("/")[2])


def _is_alike(node: ScaledNode, pool: NodePool) -> bool:
    """A pool that says nothing by which nodes could be told apart claims none so."""
    if not pool.labels and not pool.instance_types:
        return False
    is_type = not pool.instance_types or node.instance_type in pool.instance_types
    is_here = not pool.zones or node.zone in pool.zones
    has_labels = all(node.labels.get(key) == value for key, value in pool.labels.items())
    return is_type and is_here and has_labels and node.tier is pool.tier


def join(
    seen: Iterable[SeenNode], policies: Sequence[ScalingPolicy], machines: Iterable[CloudMachine], use: DeviceUse,
    price_of: Callable[[cluster.Node], float | None], twins: Mapping[str, Sequence[str]], now: Instant,
) -> tuple[ScaledNode, ...]:
    """`twins`: as `find_twins` tells them."""
    by_id = {each.provider_id: each for each in machines if each.provider_id}
    return tuple(
        msgspec.structs.replace(
            keep_twin(place(_keep_held(each, now), policies, by_id), twins), use=find_use(each.node, use),
            price=price_of(each.billed) if each.node.gpus else None,
        )
        for each in seen
    )


def _keep_held(seen: SeenNode, now: Instant) -> ScaledNode:
    if seen.place is None or seen.node.kept or not seen.place.is_kept(now):
        return seen.node
    return msgspec.structs.replace(seen.node, kept="a place is kept there for a pod that is moved")


def find_twins(seen: Iterable[SeenNode]) -> dict[str, list[str]]:
    """By the provider's id, nodes that say they are the same machine: at most one of them tells the truth, and who lets
    one go would end the other's machine."""
    named: dict[str, list[str]] = {}
    for each in seen:
        if each.node.provider_id:
            named.setdefault(each.node.provider_id, []).append(each.node.name)
    return {provider_id: every for provider_id, every in named.items() if len(every) > 1}


def keep_twin(node: ScaledNode, twins: Mapping[str, Sequence[str]]) -> ScaledNode:
    others = [name for name in twins.get(node.provider_id, ()) if name != node.name]
    if not others:
        return node
    why = f"node {others[0]} says that it is the same machine"
    return msgspec.structs.replace(node, kept=node.kept or why, twin=why)


def find_use(node: ScaledNode, use: DeviceUse) -> float | None:
    boards = use.get(node.name, {})
    if not node.gpus or len(boards) < node.gpus:
        return None
    return sum(boards.values()) / len(boards)
