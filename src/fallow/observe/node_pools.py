"""NodePools of Karpenter: which GPUs each may add and has, and what a budget has written on it.

In: an Api. Out: PoolSeen, absent where the server has no NodePool v1; unseen where they are not all seen.
Invariant: how a NodePool pays is known only where its requirements name it; what Karpenter has not counted is unknown.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model import quantities
from fallow.model.cost import CapacityType
from fallow.model.node_pools import PoolSeen
from fallow.model.seen import ABSENT, Input, Known, Unseen

_KNOWN: Final = frozenset(str(each) for each in CapacityType)


class _PoolMeta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    annotations: dict[str, str] | None = None


class _NodesRequirement(msgspec.Struct):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _NodesSpec(msgspec.Struct):
    requirements: tuple[_NodesRequirement, ...] | None = None


class _NodesTemplate(msgspec.Struct):
    spec: _NodesSpec = msgspec.field(default_factory=_NodesSpec)


class _PoolWish(msgspec.Struct):
    template: _NodesTemplate = msgspec.field(default_factory=_NodesTemplate)
    limits: dict[str, str | int] | None = None
    replicas: int | None = None


class _PoolCount(msgspec.Struct):
    resources: dict[str, str | int] | None = None


class PoolItem(msgspec.Struct):
    metadata: _PoolMeta
    spec: _PoolWish = msgspec.field(default_factory=_PoolWish)
    status: _PoolCount = msgspec.field(default_factory=_PoolCount)


async def find(api: kube.Api) -> Input[tuple[PoolSeen, ...]]:
    try:
        return await _list(api)
    except errors.NotFound:
        return ABSENT
    except errors.Forbidden as problem:
        return await _find_absent(api, problem)
    except errors.ClientError as problem:
        return Unseen(f"NodePools are not seen: {problem}")


async def _list(api: kube.Api) -> Input[tuple[PoolSeen, ...]]:
    found = list[PoolSeen]()
    async for page in api.list_pages(kube.NODE_POOLS, item=PoolItem):
        if page.unreadable:
            return Unseen(f"NodePool {page.unreadable[0].name} cannot be read")
        found = [*([] if page.restarted else found), *map(_see, page.items)]
    return Known(tuple(found)) if found else ABSENT


async def _find_absent(api: kube.Api, refusal: errors.Forbidden) -> Input[tuple[PoolSeen, ...]]:
    """Who may not ask is refused, whether there is such a kind or not; everybody may ask which kinds there are."""
    what = kube.NODE_POOLS
    try:
        served = await discovery.discover(api)
    except errors.ClientError:
        return Unseen(f"NodePools are not seen: {refusal}")
    is_there = served.find_version(what.group, what.version, what.kind) is not None or served.is_unavailable(what.group)
    return Unseen(f"NodePools are not seen: {refusal}") if is_there else ABSENT


def _see(item: PoolItem) -> PoolSeen:
    meta, spec = item.metadata, item.spec
    return PoolSeen(
        name=meta.name, uid=meta.uid, version=meta.resource_version,
        tiers=_find_tiers(spec.template.spec.requirements or ()), limits=spec.limits,
        gpus=_count(item.status.resources), is_fixed=spec.replicas is not None,
        record=(meta.annotations or {}).get(names.ORIGINAL_LIMITS),
    )


def _find_tiers(requirements: Iterable[_NodesRequirement]) -> frozenset[CapacityType] | None:
    """All requirements hold together; those that name no values only narrow it down further."""
    named = [
        set(each.values or ()) for each in requirements
        if each.key == names.KARPENTER_CAPACITY and each.operator == "In"
    ]
    together = set.intersection(*named) if named else set[str]()
    return frozenset(map(CapacityType, together)) if together and together <= _KNOWN else None


def _count(resources: dict[str, str | int] | None) -> int | None:
    """Karpenter counts all that a NodePool has, so that a resource which is not among it is none."""
    if not resources:
        return None
    try:
        count = quantities.parse(str(resources.get(names.GPU, 0)))
    except ValueError:
        return None
    return int(count) if count.denominator == 1 and count >= 0 else None
