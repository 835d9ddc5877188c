"""Nodes that are being emptied, or were, as they are now.

In: an Api, and the rule by which a pod must not be moved. Out: TouchedNodes, found by our label; one node with its
record, its pods, and how many pods of their owners are Ready elsewhere. Asked of the API server each time: there is one
such node at the most, and what is done to it must not rest on what was true a moment ago.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, emptying, moving, units
from fallow.model.emptying import EmptiedPod, NodeNow
from fallow.model.units import Instant
from fallow.observe.cluster import capacity, objects, pods
from fallow.observe.cluster.capacity import CountedNodeItem

WhyFixed = Callable[[cluster.Pod, Instant], str]


class TouchedNode(msgspec.Struct, frozen=True):
    """`began_at`: or, where it is over, when it ended; None: that cannot be read. `ended`: how, a StopReason."""

    name: str
    is_emptying: bool
    began_at: Instant | None
    ended: str = ""


class NodeEyes:
    def __init__(self, api: kube.Api, why_fixed: WhyFixed) -> None:
        """`why_fixed`: why a pod must not be moved; "": it may be."""
        self._api, self.why_fixed = api, why_fixed
        self._keep = capacity.keeper(pods.PodReader())

    async def find_touched(self) -> list[TouchedNode]:
        return await self._api.gather(
            kube.NODES, item=CountedNodeItem, keep=lambda each: _touched(each.metadata),
            label_selector=names.CONSOLIDATION,
        )

    async def look(self, name: str, now: Instant) -> NodeNow | None:
        """None: there is no such node."""
        try:
            node = await self._api.get(kube.NODES, None, name, kind=CountedNodeItem)
        except errors.NotFound:
            return None
        said = node.metadata.annotations or {}
        text, place = said.get(names.EMPTYING), moving.read_place(said.get(names.PLACE_HELD))
        is_marked = _touched(node.metadata).is_emptying
        record, there = emptying.read(text), await self._list(f"spec.nodeName={name},{pods.ALIVE}", None)
        leaving = record.leaving if record is not None else None
        places = {pod.namespace for pod in there if not pod.belongs_to_node}
        places |= {leaving.namespace} if leaving else set()
        ready = await self._count_ready(places, name)
        return NodeNow(
            name=name, uid=node.metadata.uid, version=node.metadata.resource_version,
            pods=tuple(self._see(pod, ready, now) for pod in there), is_cordoned=node.spec.unschedulable,
            record=record, is_broken=record is None and (is_marked or text is not None),
            ready=ready[leaving.owner] if leaving is not None else 0,
            has_place_held=place is not None and place.is_kept(now),
        )

    async def _list(self, fields: str, namespace: str | None) -> list[cluster.Pod]:
        return await self._api.gather(
            kube.PODS, item=capacity.CountedPodItem, keep=self._keep, namespace=namespace, field_selector=fields
        )

    async def _count_ready(self, namespaces: Iterable[str], node: str) -> Counter[str]:
        """By the uid of their owner: pods that are Ready on other nodes."""
        found = [pod for each in sorted(namespaces) for pod in await self._list(pods.ALIVE, each)]
        elsewhere = [pod for pod in found if pod.ready and pod.node != node and not pod.terminating]
        return Counter(pod.owner.uid for pod in elsewhere if pod.owner is not None)

    def _see(self, pod: cluster.Pod, ready: Counter[str], now: Instant) -> EmptiedPod:
        owner = pod.owner.uid if pod.owner else ""
        return EmptiedPod(
            uid=pod.uid, namespace=pod.namespace, name=pod.name, owner=owner, stays=pod.belongs_to_node,
            is_going=pod.terminating, fixed="" if pod.belongs_to_node else self.why_fixed(pod, now),
            ready=ready[owner] + pod.ready,
        )


def _touched(meta: objects.Meta) -> TouchedNode:
    said, is_emptying = meta.annotations or {}, (meta.labels or {}).get(names.CONSOLIDATION) == names.BEING_EMPTIED
    began, (at, _, result) = emptying.read(said.get(names.EMPTYING)), said.get(names.EMPTYING_RESULT, "").partition(" ")
    since = began.since if began else units.read_instant(at)
    return TouchedNode(meta.name, is_emptying, since, result.partition(":")[0])
