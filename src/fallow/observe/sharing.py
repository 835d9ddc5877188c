"""What sharing looks at in the cluster, kept equal to the server's by list and watch: policies, node configs, nodes.

In: an Api. Out: SharingPolicies in the order of their rank, NodeConfigs, nodes with the parts of GPUs that they
advertise (for the webhook), and nodes with the record of a change (for the controller).
Invariant: a kind that the server does not have is absent; one that cannot be seen is unseen. A quantity that cannot be
read is not advertised.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import owner_use, partition
from fallow.model.owner_use import UseTable
from fallow.model.partition import Documents, PartitionNode, RepartitionRecord
from fallow.model.policies import nodeconfig_crd, sharing_crd
from fallow.model.policies.sharing import NodeConfig, SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.sharing import NodeTaint, OwnerUse, PartNode
from fallow.model.units import Instant
from fallow.observe.budgets import Watching
from fallow.observe.cluster import objects, pods

_NOTHING: Final = msgspec.Raw(b"null")
# By which labels providers name what grows and shrinks together; of several the first counts.
POOL_LABELS: Final = (
    "karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
)


class _SharingMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None


class SharingItem(msgspec.Struct, frozen=True):
    """A GPUSharingPolicy or GPUNodeConfig, half decoded."""

    metadata: _SharingMeta = _SharingMeta()
    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING

    def whole(self) -> dict[str, Any]:
        """As the readers of the resources take it."""
        return {
            "metadata": msgspec.to_builtins(self.metadata), "spec": msgspec.json.decode(self.spec),
            "status": msgspec.json.decode(self.status),
        }


def watch_policies(api: kube.Api) -> Watching[SharingPolicy]:
    return Watching(api, kube.SHARING_POLICIES, SharingItem, lambda item: sharing_crd.parse(item.whole()))


def watch_node_configs(api: kube.Api) -> Watching[NodeConfig]:
    return Watching(api, kube.NODE_CONFIGS, SharingItem, lambda item: nodeconfig_crd.parse(item.whole()))


def rank(seen: Input[tuple[SharingPolicy, ...]]) -> Input[tuple[SharingPolicy, ...]]:
    return Known(tuple(sorted(seen.value, key=lambda each: each.rank))) if isinstance(seen, Known) else seen


# ---- what owners used ------------------------------------------------------------------------------------------------


class UseItem(msgspec.Struct, frozen=True):
    metadata: _SharingMeta = _SharingMeta()
    data: dict[str, str] | None = None


def watch_owner_use(api: kube.Api, namespace: str) -> Watching[UseTable]:
    """What the daemon that lives there tells of it."""
    return Watching(api, kube.CONFIG_MAPS, UseItem, _see_use, only=(namespace, names.OWNER_USE))


def _see_use(item: UseItem) -> UseTable:
    return owner_use.read((item.data or {}).get(owner_use.KEY, ""))


def find_use(seen: Input[tuple[UseTable, ...]], uid: str, now: Instant) -> Input[OwnerUse]:
    """Of an owner, by its uid. Where no daemon tells it, nobody measures it: that is absent."""
    return seen.value[0].find(uid, now) if isinstance(seen, Known) else seen


# ---- nodes -----------------------------------------------------------------------------------------------------------


class _NodeTaintItem(msgspec.Struct):
    key: str = ""
    value: str = ""
    effect: str = ""


class _SharingNodeSpec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[_NodeTaintItem] | None = None


class _SharingNodeMeta(msgspec.Struct, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class SharingNodeItem(msgspec.Struct):
    metadata: _SharingNodeMeta = msgspec.field(default_factory=_SharingNodeMeta)
    spec: _SharingNodeSpec = msgspec.field(default_factory=_SharingNodeSpec)
    status: objects.NodeStatus = msgspec.field(default_factory=objects.NodeStatus)


def watch_part_nodes(api: kube.Api) -> Watching[PartNode]:
    return Watching(api, kube.NODES, SharingNodeItem, see_part_node)


def see_part_node(item: SharingNodeItem) -> PartNode:
    return PartNode(
        name=item.metadata.name, labels=item.metadata.labels or {}, offers=_read_offers(item.status.allocatable),
        is_ready=objects.is_ready(item.status), is_cordoned=item.spec.unschedulable,
        taints=_see_taints(item),
    )


def _see_taints(item: SharingNodeItem) -> tuple[NodeTaint, ...]:
    return tuple(NodeTaint(each.key, each.value, each.effect) for each in item.spec.taints or ())


def _read_offers(allocatable: Mapping[str, str] | None) -> dict[str, int]:
    """GPUs and parts of them."""
    return {
        name: int(text) for name, text in (allocatable or {}).items()
        if (name in (names.GPU, names.GPU_SHARED) or name.startswith(names.MIG_PREFIX))
        and text.isdecimal() and len(text) <= 6
    }


def keep_parts(seen: Input[tuple[PartNode, ...]]) -> Input[tuple[PartNode, ...]]:
    """Only nodes that share GPUs or cut them: of others no part can be had."""
    if isinstance(seen, Unseen) or not isinstance(seen, Known):
        return seen
    return Known(tuple(node for node in seen.value if names.GPU_SHARING in node.labels or any(
        name != names.GPU for name in node.offers
    )))


def watch_partition_nodes(api: kube.Api) -> Watching[PartitionNode]:
    """Nodes with GPUs, and whatever has a record of ours; of a cluster's other nodes nothing is kept."""
    return Watching(api, kube.NODES, SharingNodeItem, _keep_partition_node)


def _keep_partition_node(item: SharingNodeItem) -> PartitionNode | None:
    found = see_partition_node(item)
    has_gpus = any(key.startswith(names.NVIDIA) for key in (*found.labels, *found.offers))
    return found if has_gpus or found.record is not None or found.unreadable else None


def see_partition_node(item: SharingNodeItem) -> PartitionNode:
    labels = item.metadata.labels or {}
    record, unreadable = _read_record((item.metadata.annotations or {}).get(names.REPARTITION))
    return PartitionNode(
        name=item.metadata.name, resource_version=item.metadata.resource_version, labels=labels,
        offers=_read_offers(item.status.allocatable), is_ready=objects.is_ready(item.status),
        is_cordoned=item.spec.unschedulable, record=record, unreadable=unreadable,
        pool=next((labels[key] for key in POOL_LABELS if key in labels), ""), taints=_see_taints(item),
    )


async def list_holding(api: kube.Api, node: str, reader: pods.PodReader) -> tuple[str, ...]:
    """Who holds GPUs of it at this instant, asked of the server itself: the second look, before labels change."""
    pages = api.list_pages(kube.PODS, item=pods.PodItem, field_selector=f"spec.nodeName={node},{pods.ALIVE}")
    found = [reader.read(item) async for page in pages for item in page.items]
    return tuple(f"{pod.namespace}/{pod.name}" for pod in found if pod is not None and (pod.resources or pod.claims))


async def read_documents(api: kube.Api, place: tuple[str, str]) -> Input[Documents]:
    """The keys of a ConfigMap, decoded; text that is no YAML stays text."""
    import yaml  # only who changes nodes needs it

    try:
        found = await api.get(kube.CONFIG_MAPS, *place)
    except errors.NotFound:
        return ABSENT
    except errors.ClientError as problem:
        return Unseen(f"{'/'.join(place)}: {problem}")
    made: dict[str, Any] = {}
    for key, text in (found.get("data") or {}).items():
        try:
            made[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            made[key] = text
    return Known(made)


def find_mig_configs(seen: Input[Documents]) -> Input[Documents]:
    """mig-parted's configurations by name."""
    if not isinstance(seen, Known):
        return seen
    document = seen.value.get(partition.MIG_KEY)
    listed = document.get("mig-configs") if isinstance(document, Mapping) else None
    return Known(listed if isinstance(listed, Mapping) else {})


def _read_record(text: str | None) -> tuple[RepartitionRecord | None, str]:
    try:
        return (None if text is None else partition.read(text)), ""
    except ValueError as problem:
        return None, str(problem)
