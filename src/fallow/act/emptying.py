"""Empties nodes, a step at a time: cordon, evict one pod, wait, give back.

In: a node as it was looked at, and a step that was decided. Out: one sentence on what was done. Pods go by the Eviction
API alone, so that PodDisruptionBudgets are heeded, each with its uid.
Invariant: the record is written before what it tells of, in the same request where that is possible, and with the
version that was looked at; the cordon goes in the same request as the record. A refusal is kept in the record.
"""

from typing import Any, Final

import msgspec

from fallow import names
from fallow.act import evicting
from fallow.act.events import Announcer
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, emptying, units
from fallow.model.cluster import PodId
from fallow.model.emptying import EmptyingRecord, NodeNow
from fallow.model.units import Instant

_MANAGER: Final = "fallow-consolidation"


class Emptier:
    def __init__(self, api: kube.Api, announcer: Announcer) -> None:
        self._api, self._announcer = api, announcer

    async def carry_out(self, there: NodeNow, step: emptying.EmptyingStep, now: Instant) -> str:
        """Raises errors.Conflict where the node is not as it was looked at: nothing was done then."""
        match step:
            case emptying.Begin(record):
                await self._patch(there, record, {"unschedulable": True})
                return await self._tell(there, names.Event.EMPTYING, f"it is emptied: {record.because}", now)
            case emptying.WriteRecord(record):
                await self._patch(there, record)
                if record.empty_since is None:
                    return "the pod is Ready elsewhere"
                return await self._tell(there, names.Event.EMPTIED, "it is empty", now)
            case emptying.Evict(record):
                return await self._evict(there, record)
            case emptying.Stop(reason, because, uncordons):
                await self._give_back(there, f"{units.rfc3339(now)} {reason}: {because}", uncordons=uncordons)
                return await self._tell(there, names.Event.EMPTYING_STOPPED, f"{reason}: {because}", now)
            case emptying.Wait(because):
                return because

    async def _evict(self, there: NodeNow, record: EmptyingRecord) -> str:
        leaving = record.leaving
        if leaving is None:
            raise ValueError("nobody is to be evicted")
        if record != there.record:
            there = await self._patch(there, record)
        done = await evicting.evict(self._api, PodId(leaving.namespace, leaving.name, leaving.uid))
        if done.refusal and done.refusal != record.refusal:
            await self._patch(there, msgspec.structs.replace(record, refusal=done.refusal))
        return done.said

    async def _patch(self, there: NodeNow, record: EmptyingRecord, spec: dict[str, Any] | None = None) -> NodeNow:
        annotations, labels = {names.EMPTYING: emptying.write(record)}, {names.CONSOLIDATION: names.BEING_EMPTIED}
        return await self._send(there, {"annotations": annotations, "labels": labels}, spec)

    async def _give_back(self, there: NodeNow, result: str, *, uncordons: bool) -> None:
        annotations = {names.EMPTYING: None, names.EMPTYING_RESULT: result}
        meta = {"annotations": annotations, "labels": {names.CONSOLIDATION: "done"}}
        await self._send(there, meta, {"unschedulable": None} if uncordons else None)

    async def forget(self, name: str) -> None:
        """What was done an hour ago no longer counts; the result stays to be read."""
        body = {"metadata": {"labels": {names.CONSOLIDATION: None}}}
        await self._api.merge_patch(kube.NODES, None, name, body, field_manager=_MANAGER)

    async def _send(self, there: NodeNow, meta: dict[str, Any], spec: dict[str, Any] | None) -> NodeNow:
        body: dict[str, Any] = {"metadata": {"uid": there.uid, "resourceVersion": there.version, **meta}}
        if spec is not None:
            body["spec"] = spec
        made = await self._api.merge_patch(kube.NODES, None, there.name, body, field_manager=_MANAGER)
        return msgspec.structs.replace(there, version=made["metadata"]["resourceVersion"])

    async def _tell(self, there: NodeNow, reason: str, note: str, now: Instant) -> str:
        await self._announcer.announce(cluster.node_ref(there.name, there.uid), reason, note, now)
        return note
