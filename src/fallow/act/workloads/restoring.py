"""The end of a pause on one object: its fields first, then its marks, on the very version that shows the fields.

In: the object as it was just seen, what its fields were, the marks of the end. Out: the server's last answer; or an
error, and the record is still there.
Invariant: the record goes only while the object equals it. A status that changes meanwhile is no reason to stop; what
somebody else made of the fields is, and is never overwritten.
"""

from collections.abc import Mapping
from typing import Any

from fallow import names
from fallow.act import sending
from fallow.act.sending import PatchWriter
from fallow.act.workloads import bodies, rereading
from fallow.clients import errors
from fallow.model import cluster, kinds, pointers

_TRIES = 6
_MANAGER = names.RESUME_FIELD_MANAGER


class Remade(errors.Conflict):
    """Its fields were put back, and somebody made something else of them before its marks could go."""


async def restore(
    writer: PatchWriter, way: kinds.Way, target: kinds.Target, fields: Mapping[str, Any], marks: bodies.Marks
) -> dict[str, Any]:
    """errors.Conflict: it changed before its fields were written. NotShown: the server made something else of them."""
    version = target.resource_version
    if not rereading.is_at(target.body, fields):
        write = bodies.restore_write(target, fields)
        if way is kinds.Way.scale:
            write = bodies.scale_write(target.ref, version, fields["/spec/replicas"], _MANAGER)
        version = (await writer.send(write))["metadata"]["resourceVersion"]
    return await _end(writer, way, target.ref, version, fields, marks)


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
