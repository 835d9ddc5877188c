"""Objects as they are at this moment, whole: others may have added to them what no row reads.

In: a workload, or references to it and to what steers it. Out: the same, read afresh, and what stands in its fields.
What is gone steers nothing any more.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fallow import names
from fallow.act.sending import PatchWriter
from fallow.act.workloads import bodies
from fallow.clients import errors
from fallow.model import cluster, kinds, pointers, record
from fallow.model.seen import ABSENT, Unseen, several, sure


def annotations(found: Mapping[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def seen_in(ref: cluster.Ref, answer: Mapping[str, Any]) -> kinds.Target:
    """The object as an answer shows it."""
    said = annotations(answer)
    return kinds.Target(ref, answer["metadata"]["resourceVersion"], said, kinds.view(answer, said))


async def see(writer: PatchWriter, way: kinds.Way, ref: cluster.Ref) -> kinds.Target:
    found = seen_in(ref, await writer.read(ref))
    if way is not kinds.Way.scale:
        return found
    scale = await writer.read(ref, "scale")
    return msgspec.structs.replace(found, body=kinds.view(scale, found.annotations))


def values(target: kinds.Target, found: record.Record) -> dict[str, Any]:
    """What stands now in the fields that were recorded."""
    return {pointer: pointers.read(target.body, pointer) for pointer in found.fields}


def is_at(body: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    return all(pointers.read(body, pointer) == value for pointer, value in fields.items())


async def reread(writer: PatchWriter, workload: cluster.Workload) -> cluster.Workload:
    """The workload and the objects that pause it."""
    found = await writer.read(workload.ref)
    row, said = kinds.of(workload), annotations(found)
    is_scale = row is not None and kinds.own_way(row, workload) is kinds.Way.scale
    return msgspec.structs.replace(
        workload, resource_version=found["metadata"]["resourceVersion"], labels=found["metadata"].get("labels") or {},
        annotations=said, marks=workload.marks if workload.has_marks_elsewhere else said,
        body=await writer.read(workload.ref, "scale") if is_scale else found,
        kueue=await _reread_all(writer, workload.kueue, [each.ref for each in sure(workload.kueue)]),
        scaled_objects=await _reread_all(writer, workload.scaled_objects, _scaler_refs(workload, said)),
    )


async def _reread_all(
    writer: PatchWriter, before: cluster.Steering, refs: Iterable[cluster.Ref]
) -> cluster.Steering:
    """Those that are named, anew. Where it could not be seen whether there are any, naming none says nothing."""
    found = await reread_companions(writer, refs)
    return before if isinstance(before, Unseen) and not found else several(found)


async def reread_companions(writer: PatchWriter, refs: Iterable[cluster.Ref]) -> tuple[cluster.Companion, ...]:
    companions = []
    for ref in refs:
        with contextlib.suppress(errors.NotFound):
            companions.append(await reread_companion(writer, ref))
    return tuple(companions)


async def reread_companion(writer: PatchWriter, ref: cluster.Ref) -> cluster.Companion:
    found = await writer.read(ref)
    metadata = found["metadata"]
    known, labels = msgspec.structs.replace(ref, uid=metadata["uid"]), metadata.get("labels") or {}
    return cluster.Companion(known, metadata["resourceVersion"], labels, annotations(found), found)


def alone(job: cluster.Workload, schedule: cluster.Companion) -> cluster.Workload:
    """The CronJob of a Job as a workload of its own, without anything that steers it."""
    return msgspec.structs.replace(
        job, ref=schedule.ref, resource_version=schedule.resource_version, annotations=schedule.annotations,
        body=schedule.body, chain=(), chain_bodies=(), marks_ref=schedule.ref, marks=schedule.annotations,
        hpas=ABSENT, scaled_objects=ABSENT, kueue=ABSENT, budgets=ABSENT,
    )


def _scaler_refs(workload: cluster.Workload, said: Mapping[str, str]) -> list[cluster.Ref]:
    """The ScaledObjects of this very object, and those that the record names."""
    found = record.read(said.get(names.ORIGINAL_STATE))
    recorded = bodies.companion_refs(found, workload.ref.namespace, kinds.SCALED_OBJECT)
    return list({ref.name: ref for ref in (*recorded, *(each.ref for each in kinds.scalers(workload)))}.values())
