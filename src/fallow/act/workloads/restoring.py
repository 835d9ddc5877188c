"""The end of a pause on one object: its fields and who ended it; then, on the version that shows them, its marks go.

In: the object as it was just seen, what its fields were, the marks of the end. Out: the server's last answer; or an
error, and the record is still there.
Invariant: the record goes only while the object equals it. An end that somebody asked for stands in the request that
brings the fields back: whoever finds it between the two requests knows that it was resumed. A status that changes
meanwhile is no reason to stop; what somebody else made of the fields is, and is never overwritten.
"""

import logging
from collections.abc import Mapping
from typing import Any

from fallow import names
from fallow.act import sending
from fallow.act.sending import PatchWriter
from fallow.act.workloads import bodies, rereading
from fallow.clients import errors
from fallow.model import cluster, kinds, pointers

log = logging.getLogger(__name__)

_TRIES = 6
_MANAGER = names.RESUME_FIELD_MANAGER


class Remade(errors.Conflict):
    """Its fields were put back, and somebody made something else of them before its marks could go."""


async def restore(
    writer: PatchWriter, way: kinds.Way, target: kinds.Target, fields: Mapping[str, Any], marks: bodies.Marks,
    *, along: bodies.Marks | None = None,
) -> dict[str, Any]:
    """`along`: of the marks, those that are written with the fields. errors.Conflict: it changed before its fields were
    written. NotShown: the server made something else of them."""
    version = target.resource_version
    if not rereading.is_at(target.body, fields):
        if way is kinds.Way.scale:
            write = bodies.scale_write(target.ref, version, fields["/spec/replicas"], _MANAGER)
            version = (await writer.send(write))["metadata"]["resourceVersion"]
        else:
            version = (await _write(writer, target, fields, along or {}))["metadata"]["resourceVersion"]
    return await _end(writer, way, target.ref, version, fields, marks)


async def _write(
    writer: PatchWriter, target: kinds.Target, fields: Mapping[str, Any], along: bodies.Marks
) -> dict[str, Any]:
    """What says that it was resumed makes its record void, so that is written only with what will be shown; a webhook
    that makes something else of the fields gets them alone, and the record counts on."""
    log.info("%s is put back to %s", target.ref, bodies.describe(fields))
    if not along or not await _will_be_shown(writer, bodies.resume_write(target, fields, along)):
        return await writer.send(bodies.restore_write(target, fields))
    try:
        return await writer.send(bodies.resume_write(target, fields, along))
    except sending.NotShown:
        if not writer.is_dry:
            before = {name: target.annotations.get(name) for name in along}
            await writer.send(sending.annotate(target.ref, before, manager=_MANAGER))
        raise


async def _will_be_shown(writer: PatchWriter, write: sending.Write) -> bool:
    try:
        if not writer.is_dry:
            await writer.rehearse(write)
    except sending.NotShown:
        return False
    return True


async def _end(
    writer: PatchWriter, way: kinds.Way, ref: cluster.Ref, version: str, fields: Mapping[str, Any], marks: bodies.Marks
) -> dict[str, Any]:
    for _ in range(_TRIES):
        try:
            return await writer.send(sending.annotate(ref, marks, resource_version=version, manager=_MANAGER))
        except errors.Conflict as problem:
            last = problem
        seen = await rereading.see(writer, way, ref)
        if not rereading.is_at(seen.body, fields):
            stands = bodies.describe({pointer: pointers.read(seen.body, pointer) for pointer in fields})
            raise Remade(409, f"{ref} was put back, and at once somebody made it {stands}: its record stays")
        version = seen.resource_version
    raise last
