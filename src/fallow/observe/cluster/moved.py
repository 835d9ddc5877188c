"""A pod that is being moved, and the two nodes of it, as they are now.

In: an Api, the rule by which a pod must not be moved, where the extender's Lease stands. Out: MovingNodes, found by our
label; a MoveNow. Asked of the API server each time: there is one move at the most, and what is done must not rest on
what was true a moment ago.
Invariant: a place counts as kept only where the extender said so of this very move, within the last minute by the API
server's clock, which both of us hear, and no process of the extender said within it that it cannot keep it: of two, one
is beside a scheduler that led until a while ago, and which it is nobody knows.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, moving, partition, units
from fallow.model.moving import MovedPod, MoveNode, MoveNow, MoveRecord
from fallow.model.seen import Known
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe.cluster import capacity, objects, pods
from fallow.observe.cluster.capacity import CountedNodeItem
from fallow.observe.cluster.emptied import WhyFixed

SAID_WITHIN: Final[Seconds] = MINUTE
_APART: Final[Seconds] = 2.0  # by which two who hear one clock differ: it says whole seconds, and answers take a while
_OTHERS: Final = {
    names.EMPTYING: "is being emptied", names.REPARTITION: "has its GPUs cut or shared anew",
    names.SCALE_DOWN: "is to leave", names.SPOT_RECORD: "is taken back by its cloud",
}


class _SaidMeta(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _SaidItem(msgspec.Struct):
    metadata: _SaidMeta


class MovingNode(msgspec.Struct, frozen=True):
    """A node with our label. `state`: what that says. `since`: when its move began or ended; None: nobody can read it.
    `target`: where the pod goes, of the node that it leaves. `owner`: the uid of that of the pod that was evicted here.
    `in_vain`: the namespace of a pod for which somebody was moved from here, and which did not come."""

    name: str
    state: str
    since: Instant | None
    target: str = ""
    owner: str = ""
    in_vain: str = ""


class MoveEyes:
    def __init__(self, api: kube.Api, why_fixed: WhyFixed, namespace: str) -> None:
        """`namespace`: of the extender's Lease."""
        self._api, self._why_fixed, self._namespace = api, why_fixed, namespace
        self._keep = capacity.keeper(pods.PodReader())

    async def find_nodes(self) -> list[MovingNode]:
        return await self._api.gather(
            kube.NODES, item=CountedNodeItem, keep=lambda each: _see_label(each.metadata), label_selector=names.DEFRAG
        )

    async def find_emptied(self) -> list[str]:
        """Nodes that are being emptied now."""
        selector = f"{names.CONSOLIDATION}={names.BEING_EMPTIED}"
        return await self._api.gather(
            kube.NODES, item=CountedNodeItem, keep=lambda each: each.metadata.name, label_selector=selector
        )

    async def look(self, name: str, now: Instant) -> MoveNow | None:
        """The move that this node is left by. None: there is no such node."""
        node = await self._get_node(name)
        if node is None:
            return None
        source = _see_node(node)
        record = moving.read_record((node.metadata.annotations or {}).get(names.MOVE))
        if record is None or record.is_overdue(now):  # whatever it names is not asked for any more
            return MoveNow(source=source, record=record)
        target, moved = await self.look_at(record.target), await self._find(record.moved)
        moved = moved if moved is not None and moved.node == name else None
        return MoveNow(
            source=source, record=record, target=target, moved=moved, waits=await self._find(record.waits),
            fixed=self._why_fixed(moved, now) if moved is not None else "",
            ready=await self.count_ready(record.moved.namespace, record.owner, record.moved.uid),
            is_kept=await self._is_kept(record, name),
        )

    async def look_at(self, name: str) -> MoveNode | None:
        node = await self._get_node(name)
        return None if node is None else _see_node(node)

    async def find_again(self, pod: cluster.Pod) -> cluster.Pod | None:
        """The same pod as it is now."""
        return await self._find(MovedPod(pod.uid, pod.namespace, pod.name))

    async def count_ready(self, namespace: str, owner: str, but: str = "") -> int:
        """Pods of this owner that are Ready, `but` for one."""
        found = await self._api.gather(
            kube.PODS, item=capacity.CountedPodItem, keep=self._keep, namespace=namespace, field_selector=pods.ALIVE
        )
        ours = (pod for pod in found if pod.owner is not None and pod.owner.uid == owner and pod.uid != but)
        return sum(pod.ready and not pod.terminating for pod in ours)

    async def _find(self, asked: MovedPod) -> cluster.Pod | None:
        """None: it is gone, or ended; another that has its name is none of it."""
        try:
            item = await self._api.get(kube.PODS, asked.namespace, asked.name, kind=capacity.CountedPodItem)
        except errors.NotFound:
            return None
        pod = self._keep(item)
        return pod if pod.uid == asked.uid and not pod.has_ended else None

    async def _get_node(self, name: str) -> CountedNodeItem | None:
        try:
            return await self._api.get(kube.NODES, None, name, kind=CountedNodeItem)
        except errors.NotFound:
            return None

    async def _is_kept(self, record: MoveRecord, source: str) -> bool:
        try:
            said = await self._api.get(kube.LEASES, self._namespace, names.EXTENDER_LEASE, kind=_SaidItem)
        except (errors.NotFound, errors.Forbidden):
            return False
        asked = {moving.name_place(record.move, node) for node in (source, record.target)}
        clock, annotations = self._api.clock, said.metadata.annotations or {}
        return isinstance(clock, Known) and _are_kept(asked, annotations, clock.value)


def _are_kept(asked: set[str], annotations: Mapping[str, str], now: Instant) -> bool:
    """Each by some process of the extender, and against the word of none. `now`: by the API server's clock."""
    voices = [moving.read_said(text) for key, text in annotations.items() if key.startswith(names.PLACES_KEPT)]
    if any(each is None for each in voices):
        return False
    fresh = [each for each in voices if each is not None and -_APART <= now - each.at <= SAID_WITHIN]
    kept = {place for each in fresh for place in each.kept}
    return asked <= kept and not any(asked & set(each.refused) for each in fresh)


def _see_label(meta: objects.Meta) -> MovingNode:
    said, state = meta.annotations or {}, (meta.labels or {}).get(names.DEFRAG, "")
    record, held = moving.read_record(said.get(names.MOVE)), moving.read_place(said.get(names.PLACE_HELD))
    ended = units.read_instant(said.get(names.MOVE_RESULT, "").partition(" ")[0])
    began = record.since if record is not None else held.until - moving.KEPT_FOR if held is not None else ended
    target = record.target if record is not None else ""
    owner, in_vain = said.get(names.MOVED_OWNER, ""), said.get(names.MOVED_IN_VAIN, "")
    return MovingNode(meta.name, state, began, target, owner, in_vain)


def _see_node(item: CountedNodeItem) -> MoveNode:
    said, meta = item.metadata.annotations or {}, item.metadata
    other = next((words for key, words in _OTHERS.items() if _runs(said, key)), "")
    return MoveNode(
        meta.name, meta.uid, meta.resource_version, closed=capacity.why_closed(item),
        held=moving.read_place(said.get(names.PLACE_HELD)), other=other,
    )


def _runs(said: dict[str, str], key: str) -> bool:
    return key in said and (key != names.REPARTITION or partition.is_changing(said[key]))
