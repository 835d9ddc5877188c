"""Lets nodes go, a step at a time: record, cordon and taint in one patch; evictions; the machine; or all of it undone.

In: a node as it was looked at, and a step that was decided. Out: a LeavingDone: one sentence, and what an eviction was
answered. Pods go by the Eviction API, with their uid, so that PodDisruptionBudgets are heeded; past it only from a
machine that its cloud ends.
Invariant: the record is written before what it tells of, in the same request where that is possible, with the uid and
the version that were looked at. Taints of others stay as they are. No pod is given no time at all.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from fallow import names
from fallow.act import evicting
from fallow.act.events import Announcer
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, leaving, scaling, units
from fallow.model.cluster import PodId
from fallow.model.leaving import LeavingNode
from fallow.model.scaling import DrainRecord, ScaledNode, SpotRecord
from fallow.model.units import Instant, Seconds

_MANAGER: Final = "fallow-scaling"
_LEAST_GRACE: Final = 1  # seconds: 0 would end a pod without a word
TAINTS: Final = (names.SCALE_DOWN, names.SPOT_INTERRUPTION)
_NO_DRAIN: Final = {names.SCALE_DOWN: None}
_NO_RECORDS: Final = {names.SCALE_DOWN: None, names.SPOT_RECORD: None}
# A node that consolidation has emptied is ours from here on: its record would end by uncordoning it.
_TAKEN_OVER: Final = {names.EMPTYING: None}


class LeavingDone(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: uid of the pod that was not evicted; `is_budget`: a budget said so, else asking failed. `blocked`: why
    it never can be granted. `is_deleted`: a pod was, past the Eviction API."""

    said: str
    refused: str = ""
    is_budget: bool = False
    blocked: str = ""
    is_deleted: bool = False


class LeavingHands:
    def __init__(self, api: kube.Api, announcer: Announcer) -> None:
        self._api, self._announcer = api, announcer

    async def carry_out(
        self, there: LeavingNode, step: leaving.LeavingStep, now: Instant,
        remove: Callable[[ScaledNode], Awaitable[None]],
    ) -> LeavingDone:
        """`remove`: has the cloud end the node's machine. Raises errors.Conflict where the node is not as it was looked
        at: nothing was done then; and what the cloud says."""
        node = there.node
        match step:
            case leaving.BeginDrain(record):
                await self._mark(node, {names.SCALE_DOWN: scaling.write(record), **_taken_over(node)}, names.SCALE_DOWN)
                note = f"it is drained, and its machine then goes: {record.because}"
                return await self._tell(node, names.Event.SCALE_DOWN, note, now)
            case leaving.BeginSpot(record):
                said = {names.SPOT_RECORD: scaling.write(record), **_NO_DRAIN, **_taken_over(node)}
                await self._mark(node, said, names.SPOT_INTERRUPTION)
                return await self._tell(node, names.Event.SPOT_INTERRUPTED, _tell_spot(record), now)
            case leaving.EvictNow(pod, grace):
                return await self._evict(node, pod, grace)
            case leaving.DeleteNow(pod, grace):
                return await self._delete(pod, grace)
            case leaving.RemoveMachine(record):
                await self._write_record(node, record)
                await remove(node)
                return LeavingDone(said="its machine was told to go")
            case leaving.DeleteNode(because):
                await self._delete_node(node)
                return LeavingDone(said=f"its Node object was deleted: {because}")
            case leaving.UndoDrain(because, uncordons, rests):
                await self._undo(node, uncordons=uncordons, rests_until=now + rests)
                return await self._tell(node, names.Event.SCALE_DOWN_CANCELLED, because, now)
            case leaving.StayPut(because):
                return LeavingDone(said=because)

    # ---- pods ----

    async def _evict(self, node: ScaledNode, pod: PodId, grace: Seconds | None) -> LeavingDone:
        done = await evicting.evict(self._api, pod, None if grace is None else _whole_grace(grace))
        if not done.refusal:
            return LeavingDone(said=done.said)
        blocked = f"{pod.namespace}/{pod.name}: {done.refusal}" if names.SEVERAL_BUDGETS in done.refusal else ""
        if node.drain is not None and node.drain.refused != done.refusal:  # on the node, where people look
            await self._write_record(node, msgspec.structs.replace(node.drain, refused=done.refusal))
        return LeavingDone(said=done.said, refused=pod.uid, is_budget=done.is_budget, blocked=blocked)

    async def _delete(self, pod: PodId, grace: Seconds) -> LeavingDone:
        options = {
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid},
            "gracePeriodSeconds": _whole_grace(grace),
        }
        path, who = kube.PODS.path(pod.namespace, pod.name), f"{pod.namespace}/{pod.name}"
        try:
            await self._api.request("DELETE", path, body=msgspec.json.encode(options), patience=kube.ONCE)
        except (errors.NotFound, errors.Conflict):
            return LeavingDone(said=f"{who} is gone already")
        return LeavingDone(said=f"{who} was deleted: its machine ends anyway", is_deleted=True)

    # ---- the node ----

    async def _mark(self, node: ScaledNode, said: Mapping[str, str | None], taint: str) -> None:
        """Record, cordon and taint together."""
        others = [each for each in await self._read_taints(node) if each.get("key") not in TAINTS]
        made = {"key": taint, "effect": "NoSchedule"}
        await self._send(node, said, {"unschedulable": True, "taints": [*others, made]})

    async def _undo(self, node: ScaledNode, *, uncordons: bool, rests_until: Instant) -> None:
        others = [each for each in await self._read_taints(node) if each.get("key") not in TAINTS]
        spec: dict[str, Any] = {"taints": others or None, **({"unschedulable": None} if uncordons else {})}
        await self._send(node, {**_NO_RECORDS, names.DRAIN_RESTS_UNTIL: units.rfc3339(rests_until)}, spec)

    async def _read_taints(self, node: ScaledNode) -> list[dict[str, Any]]:
        """As they are now, whole: what is sent replaces all of them. A node that changed meanwhile is refused then."""
        found = await self._api.get(kube.NODES, None, node.name)
        return [each for each in found.get("spec", {}).get("taints") or () if isinstance(each, dict)]

    async def _write_record(self, node: ScaledNode, record: DrainRecord) -> None:
        await self._send(node, {names.SCALE_DOWN: scaling.write(record)})

    async def note(self, node: ScaledNode, said: Mapping[str, str | None], *, is_as_seen: bool = False) -> None:
        """Annotations of ours. `is_as_seen`: only where the node is as it was looked at; else Conflict."""
        await self._send(node, said, is_as_seen=is_as_seen)

    async def label(self, node: ScaledNode, said: Mapping[str, str]) -> None:
        """What a node that we launched is to say of itself."""
        body = {"metadata": {"uid": node.uid, "labels": said}}
        await self._api.merge_patch(kube.NODES, None, node.name, body, field_manager=_MANAGER)

    async def mark_told(self, node: ScaledNode, record: DrainRecord) -> None:
        """Its cloud has heard that it goes. A node that is gone by now needs no mark."""
        try:
            await self.note(node, {names.SCALE_DOWN: scaling.write(msgspec.structs.replace(record, is_told=True))})
        except errors.NotFound:
            return

    async def _delete_node(self, node: ScaledNode) -> None:
        try:
            await self._api.delete(kube.NODES, None, node.name, uid=node.uid, resource_version=node.version)
        except errors.NotFound:
            return

    async def _send(
        self, node: ScaledNode, said: Mapping[str, str | None], spec: Mapping[str, Any] | None = None, *,
        is_as_seen: bool = True,
    ) -> None:
        meta: dict[str, Any] = {"uid": node.uid, "annotations": said}
        if is_as_seen:
            meta["resourceVersion"] = node.version
        if names.EMPTYING in said:
            meta["labels"] = {names.CONSOLIDATION: None}
        body = {"metadata": meta, **({} if spec is None else {"spec": spec})}
        await self._api.merge_patch(kube.NODES, None, node.name, body, field_manager=_MANAGER)

    async def _tell(self, node: ScaledNode, reason: str, note: str, now: Instant) -> LeavingDone:
        await self._announcer.announce(cluster.node_ref(node.name, node.uid), reason, note, now)
        return LeavingDone(said=note)


def _taken_over(node: ScaledNode) -> Mapping[str, str | None]:
    return _TAKEN_OVER if node.is_emptied else {}


def _whole_grace(grace: Seconds) -> int:
    return max(_LEAST_GRACE, math.floor(grace))


def _tell_spot(record: SpotRecord) -> str:
    if record.ends_at is None:
        return "its cloud recommends to leave it, and may soon take it back"
    return f"its cloud takes it back at {units.rfc3339(record.ends_at)}"
