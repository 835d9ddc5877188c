"""Moves a pod so that another fits in its place, a step at a time: both places are kept, then one eviction.

In: a move as it was looked at, and a step that was decided. Out: one sentence on what was done. The pod goes by the
Eviction API alone, so that PodDisruptionBudgets are heeded, with its uid.
Invariant: the record is written before what it tells of, with the version that was looked at, and goes last: whoever
finds one finds both places by it. A refusal is kept in the record.
"""

from typing import Any, Final

import msgspec

from fallow import names
from fallow.act import evicting
from fallow.act.events import Announcer
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, moving, units
from fallow.model.cluster import PodId
from fallow.model.moving import MoveEnd, MoveNode, MoveNow, MoveRecord
from fallow.model.units import Instant

_MANAGER: Final = "fallow-defrag"


class Mover:
    def __init__(self, api: kube.Api, announcer: Announcer) -> None:
        self._api, self._announcer = api, announcer

    async def begin(self, source: MoveNode, step: moving.BeginMove, now: Instant) -> str:
        """Raises errors.Conflict where the node is not as it was looked at: nothing was done then."""
        annotations = {names.MOVE: moving.write(step.record), names.PLACE_HELD: moving.write(step.here)}
        await self._send(source, annotations, names.BEING_LEFT)
        return await self._tell(source, names.Event.POD_MOVING, step.record.because, now)

    async def carry_out(self, there: MoveNow, step: moving.MoveStep, now: Instant) -> str:
        """Raises errors.Conflict, as above."""
        match step:
            case moving.HoldTarget(place):
                if there.target is None:
                    raise ValueError("there is no node on which a place could be kept")
                await self._send(there.target, {names.PLACE_HELD: moving.write(place)}, names.BEING_HELD)
                return f"a place is kept on {there.target.name}"
            case moving.EvictMoved(record):
                return await self._evict(there, record)
            case moving.EndMove(reason, because):
                return await self._end(there, reason, because, now)
            case moving.WaitMove(because):
                return because

    async def _evict(self, there: MoveNow, record: MoveRecord) -> str:
        source, gone = there.source, record.moved
        if record != there.record:
            source = await self._send(source, {names.MOVE: moving.write(record)})
        done = await evicting.evict(self._api, PodId(gone.namespace, gone.name, gone.uid))
        if done.refusal and done.refusal != record.refusal:
            noted = msgspec.structs.replace(record, refusal=done.refusal)
            await self._send(source, {names.MOVE: moving.write(noted)})
        return done.said

    async def _end(self, there: MoveNow, reason: MoveEnd, because: str, now: Instant) -> str:
        record, said = there.record, f"{reason}: {because}"
        held = there.target.held if there.target is not None else None
        if record is not None and there.target is not None and held is not None and held.move == record.move:
            await self.free(there.target)
        in_vain = record.waits.namespace if record is not None and reason in moving.IN_VAIN else None
        await self._send(there.source, {
            names.MOVE: None, names.PLACE_HELD: None, names.MOVE_RESULT: f"{units.rfc3339(now)} {said}",
            names.MOVED_IN_VAIN: in_vain,
            names.MOVED_OWNER: record.owner if record is not None and record.evicting is not None else None,
        }, names.MOVE_DONE)
        event = names.Event.POD_MOVED if reason is MoveEnd.Moved else names.Event.MOVE_STOPPED
        return await self._tell(there.source, event, said, now)

    async def free(self, node: MoveNode) -> None:
        """Nothing is kept there any more."""
        await self._send(node, {names.PLACE_HELD: None}, None)

    async def clear(self, node: MoveNode) -> None:
        """Neither a place nor a move, nor what is remembered of one."""
        marks = (names.PLACE_HELD, names.MOVE, names.MOVED_IN_VAIN, names.MOVED_OWNER)
        await self._send(node, dict.fromkeys(marks), None)

    async def forget(self, name: str) -> None:
        """What was done long ago no longer counts; the result stays to be read."""
        annotations = {names.MOVED_IN_VAIN: None, names.MOVED_OWNER: None}
        body = {"metadata": {"labels": {names.DEFRAG: None}, "annotations": annotations}}
        await self._api.merge_patch(kube.NODES, None, name, body, field_manager=_MANAGER)

    async def _send(
        self, node: MoveNode, annotations: dict[str, Any], label: str | None = names.BEING_LEFT
    ) -> MoveNode:
        meta = {"annotations": annotations, "labels": {names.DEFRAG: label}}
        body = {"metadata": {"uid": node.uid, "resourceVersion": node.version, **meta}}
        made = await self._api.merge_patch(kube.NODES, None, node.name, body, field_manager=_MANAGER)
        return msgspec.structs.replace(node, version=made["metadata"]["resourceVersion"])

    async def _tell(self, node: MoveNode, reason: str, note: str, now: Instant) -> str:
        await self._announcer.announce(cluster.node_ref(node.name, node.uid), reason, note, now)
        return note
