"""A pause taken back: what it changed and did not get is restored, and only then its record goes.

In: an object with our record on which something stands that is neither the record nor the pause (a webhook changed our
request, or we were interrupted), as it was just seen. Out: the object as recorded, without marks of a pause and with
those that the pause had cleared; or an error, and the record is still there for the next cycle.
Invariant: what somebody else has written meanwhile is never overwritten; the order is restoring.py's.
"""

import logging

from fallow import names
from fallow.act import sending
from fallow.act.sending import PatchWriter
from fallow.act.workloads import bodies, releasing, rereading, restoring
from fallow.clients import errors
from fallow.model import cluster, decision, kinds, record
from fallow.model.decision import Code, Outcome, Status
from fallow.model.units import Instant

log = logging.getLogger(__name__)

_TRIES = 6


async def undo(writer: PatchWriter, undo: decision.Undo, now: Instant) -> Outcome:
    """What an earlier cycle left half done."""
    workload = undo.workload
    kind = kinds.of(workload)
    if kind is None:
        return Outcome(undo, Status.refused, now, f"there is no way to pause {workload.ref.short}, or to undo one")
    way, target, row = kinds.way(kind, workload), kinds.pause_target(kind, workload), kinds.target_row(kind, workload)
    found = record.read(target.annotations.get(names.ORIGINAL_STATE))
    if found is None or (fault := kinds.find_fault(row, found)):
        because = f"its record names {fault}" if found else "it has no readable record of a pause by us"
        return Outcome(undo, Status.refused, now, f"{target.ref.short}: {because}", code=Code.NoOriginalState)
    if not writer.is_dry:
        await put_back(writer, row, way, target, found)
        if way is kinds.Way.keda:
            await forget(writer, workload.ref, record.read(workload.annotations.get(names.ORIGINAL_STATE)))
    was, stood = bodies.describe(found.fields), bodies.describe(rereading.values(target, found))
    ends = "would be put back" if writer.is_dry else "is as it was again"
    because = f"{undo.because}: it was {was}, stood at {stood}, and {ends}"
    return Outcome(undo, writer.done, now, because, rereading.values(target, found), dict(found.fields))


async def put_back(
    writer: PatchWriter, row: kinds.Kind, way: kinds.Way, target: kinds.Target, found: record.Record
) -> None:
    """Every recorded field of this one object, then its marks; again where it changes under us, but not by our own."""
    expected = [rereading.values(target, found), dict(found.fields)]
    for _ in range(_TRIES):
        fields = bodies.restored_fields(row, target, found)
        try:
            answer = await restoring.restore(writer, way, target, fields, bodies.undo_marks(found))
            await releasing.release(writer, target.ref, answer, [*fields, *row.writes])
            return
        except errors.Conflict as problem:
            last = problem
        target = await rereading.see(writer, way, target.ref)
        if rereading.values(target, found) not in expected:
            raise last
    raise last


async def forget(writer: PatchWriter, ref: cluster.Ref, found: record.Record | None) -> None:
    """A record whose act did not follow. Without a version: whatever changed since, it is void."""
    if writer.is_dry:
        return
    changes = bodies.undo_marks(found or record.Record(1, {}))
    try:
        await writer.send(sending.annotate(ref, changes))
    except errors.ClientError as problem:
        log.warning("the record of a pause that did not happen is still on %s: %s", ref, problem)
