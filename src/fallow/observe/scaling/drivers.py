"""Who else moves machines in this cluster: Karpenter, a cluster autoscaler, and what of theirs the server serves.

In: an Api, labels of nodes. Out: DriversSeen. Asked every few minutes: they do not come and go.
Invariant: who cannot be asked for is unseen, and then nobody says that we drive; a limit that cannot be read is none
that we could tell of.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model import node_pools, quantities, units
from fallow.model.scaling import DriversSeen, GangRequest, GangState, PoolLimit, ScaledNode
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe.cluster import objects

KARPENTER: Final = "karpenter.sh"
AUTOSCALING: Final = "autoscaling.x-k8s.io"
STATUS_MAP: Final = ("kube-system", "cluster-autoscaler-status")
ASKED: Final[Seconds] = 5 * MINUTE
_MANAGED: Final = ("cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool")


class _PoolSpec(msgspec.Struct):
    limits: dict[str, str | int] | None = None


class _PoolStatus(msgspec.Struct):
    resources: dict[str, str | int] | None = None


class NodePoolItem(msgspec.Struct):
    """A NodePool of Karpenter."""

    metadata: objects.Meta
    spec: _PoolSpec = msgspec.field(default_factory=_PoolSpec)
    status: _PoolStatus = msgspec.field(default_factory=_PoolStatus)


class _PodSet(msgspec.Struct):
    count: int = 0


class _RequestSpec(msgspec.Struct, rename="camel"):
    pod_sets: list[_PodSet] = []


class _RequestCondition(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str = ""


class _RequestStatus(msgspec.Struct):
    conditions: list[_RequestCondition] | None = None


class RequestItem(msgspec.Struct):
    """A ProvisioningRequest."""

    metadata: objects.Meta
    spec: _RequestSpec = msgspec.field(default_factory=_RequestSpec)
    status: _RequestStatus = msgspec.field(default_factory=_RequestStatus)


class DriverEyes:
    def __init__(self, api: kube.Api, namespace: str = "") -> None:
        """`namespace`: where our requests stand; "": none are made."""
        self._api, self._namespace = api, namespace
        self._asked: tuple[Instant, discovery.Discovery, bool] | None = None

    async def look(self, nodes: Iterable[ScaledNode], now: Instant) -> Input[DriversSeen]:
        try:
            served, has_map = await self._ask(now)
            unavailable = [group for group in (KARPENTER, AUTOSCALING) if served.is_unavailable(group)]
            if unavailable:
                return Unseen(f"the API server cannot tell what {unavailable[0]} has")
            pools = served.find(KARPENTER, "NodePool")
            labels = [each.labels for each in nodes]
            limits = await self._read_limits(pools) if pools is not None else {}
            is_karpenter = bool(limits) or any(names.KARPENTER_NODEPOOL in each for each in labels)
            is_managed = any(key in each for each in labels for key in _MANAGED)
            buffers = (
                each for each in names.BUFFER_VERSIONS if served.find_version(AUTOSCALING, each, "CapacityBuffer")
            )
            requests = served.find_version(AUTOSCALING, "v1", "ProvisioningRequest")
            return Known(DriversSeen(
                karpenter=is_karpenter, cluster_autoscaler=has_map or is_managed, buffers=next(buffers, ""),
                requests=requests is not None,
                gangs=await self._read_gangs(requests) if requests is not None and self._namespace else {},
                limits=limits,
            ))
        except errors.ClientError as problem:
            return Unseen(f"who else moves machines here cannot be asked for: {problem}")

    async def _ask(self, now: Instant) -> tuple[discovery.Discovery, bool]:
        if self._asked is None or not 0 <= now - self._asked[0] < ASKED:
            self._asked = now, await discovery.discover(self._api), await self._has_status_map()
        return self._asked[1], self._asked[2]

    async def _has_status_map(self) -> bool:
        try:
            await self._api.get(kube.CONFIG_MAPS, *STATUS_MAP, kind=kube.BareObject)
        except errors.NotFound:
            return False
        return True

    async def _read_limits(self, pools: kube.Resource) -> dict[str, tuple[PoolLimit, ...]]:
        pages = self._api.list_pages(pools, item=NodePoolItem)
        return {each.metadata.name: tuple(_list_limits(each)) async for page in pages for each in page.items}

    async def _read_gangs(self, requests: kube.Resource) -> dict[str, GangRequest]:
        label, word = names.MANAGED_BY
        pages = self._api.list_pages(
            requests, item=RequestItem, namespace=self._namespace, label_selector=f"{label}={word}"
        )
        found = [_read_gang(each) async for page in pages for each in page.items]
        return {each.name: each for each in found}


def _list_limits(pool: NodePoolItem) -> Iterator[PoolLimit]:
    used = pool.status.resources or {}
    for resource, limit in (pool.spec.limits or {}).items():
        most, now = _read(limit), _read(used.get(resource, "0"))
        if most is not None and now is not None:
            said = f"has {used.get(resource, 0)} of at most {limit} {resource}{_say_why(pool, resource, limit)}"
            yield PoolLimit(resource, float(now), float(most), said)


def _say_why(pool: NodePoolItem, resource: str, limit: str | int) -> str:
    record = node_pools.read((pool.metadata.annotations or {}).get(names.ORIGINAL_LIMITS, ""))
    if record is None or resource != names.GPU or str(limit) != record.gpus:
        return ""
    return f", while budget {' and '.join(record.budgets)} is exceeded"


def _read_gang(item: RequestItem) -> GangRequest:
    meta, said = item.metadata, item.metadata.annotations or {}
    true = {each.type: each.message for each in item.status.conditions or () if each.status == "True"}
    state = next((each for each in reversed(GangState) if each in true), GangState.asked)
    return GangRequest(
        name=meta.name, uid=meta.uid, version=meta.resource_version, policy=said.get(names.GANG_POLICY, ""),
        gang=said.get(names.GANG, ""), nodes=sum(each.count for each in item.spec.pod_sets),
        since=units.read_instant(meta.creation_timestamp) or 0.0, state=state, because=true.get(state, ""),
    )


def _read(text: str | int) -> Fraction | None:
    try:
        return quantities.parse(str(text))
    except ValueError:
        return None
