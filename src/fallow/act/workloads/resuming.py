"""The resume of one workload: everything is read afresh, and again when it changes under us.

In: a decision to resume. Out: an Outcome, or one of the clients' errors. It comes back to what was recorded, never less
than its autoscalers ask for; where it runs already, only our marks go.
Invariant: without a readable record nothing is restored from a guess. An interruption between two writes leaves marks
or a record that the next resume finds.
"""

import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from fallow import names
from fallow.act import sending
from fallow.act.sending import PatchWriter, Write
from fallow.act.workloads import bodies, rereading
from fallow.clients import errors
from fallow.model import cluster, decision, kinds, pointers, record, units
from fallow.model.decision import Code, Outcome, Status
from fallow.model.policies import idle
from fallow.model.seen import sure
from fallow.model.units import Instant

log = logging.getLogger(__name__)

RETRIES = 5
_RELEASE_TRIES = 3
_MANAGER = names.RESUME_FIELD_MANAGER


class _Return(msgspec.Struct, frozen=True):
    """What a resume has found: the workload, how it was paused, and where the way back stands."""

    workload: cluster.Workload
    row: kinds.Kind  # of the target
    way: kinds.Way
    target: kinds.Target
    found: record.Record


async def resume(writer: PatchWriter, resume: decision.Resume, now: Instant, replicas: int | None = None) -> Outcome:
    """Brings it back to what was recorded, or to `replicas`."""
    for _ in range(RETRIES + 1):
        try:
            return await _resume_once(writer, resume, now, replicas)
        except errors.Conflict as problem:
            because = f"{resume.workload.ref} kept changing while it was being resumed: {problem}"
    return Outcome(resume, Status.overtaken, now, because)


async def _resume_once(writer: PatchWriter, resume: decision.Resume, now: Instant, replicas: int | None) -> Outcome:
    workload = await rereading.reread(writer, resume.workload)
    kind, short = kinds.of(workload), workload.ref.short
    if kind is None:
        because = f"there is no way to resume {short}"
        return Outcome(resume, Status.refused, now, because, code=Code.NoOriginalState)
    way = bodies.resume_way(kind, workload)
    target = bodies.resume_target(way, workload)
    if not _is_down(way, kind, workload):
        await _clear(writer, workload, target, now, resume.by)
        because = f"{short} runs, so only our marks {'would be' if writer.is_dry else 'were'} cleared"
        return Outcome(resume, Status.overtaken, now, because, code=Code.AlreadyRunning)
    found = _find_record(kind, target, replicas)
    if found is None:
        because = f"{short} has no readable record of a pause by us"
        return Outcome(resume, Status.refused, now, because, code=Code.NoOriginalState)
    if writer.dry_run == "client":
        return Outcome(resume, Status.dry_run, now, f"would resume {short}", after=dict(found.fields))
    row = kinds.KUEUE_WORKLOAD if way is kinds.Way.kueue else kind
    return await _bring_back(writer, resume, _Return(workload, row, way, target, found), now)


def _is_down(way: kinds.Way, kind: kinds.Kind, workload: cluster.Workload) -> bool:
    """Does its pause value stand? Under KEDA its own 0 counts too: we may have been interrupted half-way."""
    if way is kinds.Way.kueue:
        return kinds.KUEUE_WORKLOAD.holds(bodies.resume_target(way, workload).body)
    own = kind.holds(kinds.as_target(workload).body)
    scalers = sure(workload.scaled_objects) if way is kinds.Way.keda else ()
    return own or any(kinds.SCALED_OBJECT.holds(kinds.as_target(scaler).body) for scaler in scalers)


async def _clear(writer: PatchWriter, workload: cluster.Workload, target: kinds.Target, now: Instant, by: str) -> None:
    """Takes our marks off something that runs; writes nothing where there are none."""
    if writer.is_dry:
        return
    ours = [name for name in (*names.PAUSE_KEYS, names.RESUME_REQUESTED) if name in target.annotations]
    if ours:
        marks = dict.fromkeys(ours) | {names.RESUMED_AT: units.rfc3339(now), names.RESUMED_BY: by}
        version = target.resource_version
        await writer.send(sending.annotate(target.ref, marks, resource_version=version, manager=_MANAGER))
    for scaler in sure(workload.scaled_objects):
        if names.ORIGINAL_STATE in scaler.annotations:
            await writer.send(sending.annotate(scaler.ref, {names.ORIGINAL_STATE: None}, manager=_MANAGER))


def _find_record(kind: kinds.Kind, target: kinds.Target, replicas: int | None) -> record.Record | None:
    said = target.annotations
    found = None if bodies.is_stale(said) else record.read(said.get(names.ORIGINAL_STATE))
    if replicas is None or kind.replica_path is None:
        return found
    known = found or record.Record(1, {})
    return msgspec.structs.replace(known, fields=known.fields | {kind.replica_path: replicas})


async def _bring_back(writer: PatchWriter, resume: decision.Resume, back: _Return, now: Instant) -> Outcome:
    workload, row = back.workload, back.row
    restored = bodies.restored_fields(row, workload, back.target, back.found)
    fields = bodies.raise_replicas(row, workload, restored)
    marks = bodies.resume_marks(row, back.target.annotations, now, resume.by, resume.remember)
    for ref in bodies.companion_refs(back.found, workload.ref.namespace, kinds.CRON_JOB.kind):
        await _resume_schedule(writer, ref, workload, marks)
    match back.way:
        case kinds.Way.keda:
            answer = await _send_under_keda(writer, back, fields, marks)
        case kinds.Way.scale:
            answer = await _send_by_scale(writer, back, fields["/spec/replicas"], marks)
        case _:
            answer = await writer.send(bodies.resume_write(back.target, fields, marks))
    await _release(writer, back.target.ref, answer, [*fields, *row.pauses(workload, idle.Rule(), now)])
    if back.way is kinds.Way.kueue and names.RESUME_REQUESTED in workload.annotations:
        await writer.send(sending.annotate(workload.ref, {names.RESUME_REQUESTED: None}, manager=_MANAGER))
    because = _describe(resume, back, answer, is_dry=writer.is_dry)
    return Outcome(resume, writer.done, now, because, dict(back.found.fields), fields)


async def _send_by_scale(writer: PatchWriter, back: _Return, replicas: Any, marks: bodies.Marks) -> dict[str, Any]:
    """First the act, then the marks: an interruption between them leaves marks that the next resume clears."""
    ref, guards = back.target.ref, {"uid": back.target.ref.uid, "resourceVersion": back.target.resource_version}
    body = {"metadata": guards, "spec": {"replicas": replicas}}
    await writer.send(Write(ref, body, {"/spec/replicas": replicas}, "scale", _MANAGER))
    return await writer.send(sending.annotate(ref, marks, manager=_MANAGER))


async def _send_under_keda(
    writer: PatchWriter, back: _Return, fields: dict[str, Any], marks: bodies.Marks
) -> dict[str, Any]:
    """The ScaledObject first; then its target, which KEDA may be changing at the same time."""
    scalers = sure(back.workload.scaled_objects)
    for scaler in scalers:
        await _restore_scaler(writer, scaler)
    path, target = back.row.replica_path or "/spec/replicas", back.target
    floors = [pointers.read(scaler.body, "/spec/minReplicaCount") for scaler in scalers]
    for turn in range(RETRIES + 1):
        current = pointers.read(target.body, path)
        wanted = bodies.raise_replicas(back.row, back.workload, fields, current, *floors)
        try:
            return await writer.send(bodies.resume_write(target, wanted, marks))
        except errors.Conflict:
            if turn < RETRIES:
                target = kinds.as_target(await rereading.reread(writer, back.workload))
    raise errors.ServerFault(500, f"{target.ref} kept changing while its replicas were being restored")


async def _restore_scaler(writer: PatchWriter, scaler: cluster.Companion) -> None:
    target, found = kinds.as_target(scaler), record.read(scaler.annotations.get(names.ORIGINAL_STATE))
    if found or kinds.SCALED_OBJECT.holds(target.body):
        fields = found.fields if found else {pointers.annotation(names.KEDA_PAUSED_REPLICAS): None}
        await _send(writer, target, fields, {names.ORIGINAL_STATE: None})


async def _resume_schedule(writer: PatchWriter, ref: cluster.Ref, job: cluster.Workload, marks: bodies.Marks) -> None:
    """Only if the record of our own pause is on it and the pause still stands."""
    for companion in await rereading.reread_companions(writer, [ref]):
        cron = rereading.alone(job, companion)
        found = record.read(cron.annotations.get(names.ORIGINAL_STATE))
        if found is not None and kinds.is_paused(kinds.CRON_JOB, cron):
            target = kinds.as_target(cron)
            await _send(writer, target, bodies.restored_fields(kinds.CRON_JOB, cron, target, found), marks)


async def _send(writer: PatchWriter, target: kinds.Target, fields: Mapping[str, Any], marks: bodies.Marks) -> None:
    """Restores the object, and gives up what was written on it."""
    answer = await writer.send(bodies.resume_write(target, fields, marks))
    await _release(writer, target.ref, answer, fields)


async def _release(writer: PatchWriter, ref: cluster.Ref, answer: Mapping[str, Any], written: Collection[str]) -> None:
    """Gives up the fields of the pause, lest the owner's next apply conflict with us. Failing that harms nothing."""
    because = "it keeps changing"
    for _ in range(_RELEASE_TRIES):
        operations = bodies.release_operations(answer, written)
        if not operations or writer.is_dry:
            return
        try:
            await writer.operate(ref, operations, _MANAGER)
            return
        except (errors.Conflict, errors.Invalid):  # it changed meanwhile, and the test of its entries failed
            with contextlib.suppress(errors.ClientError):
                answer = await writer.read(ref)
        except errors.ClientError as problem:
            because = str(problem)
            break
    log.warning("we still own fields of %s, and a server-side apply may conflict: %s", ref, because)


def _describe(resume: decision.Resume, back: _Return, answer: Mapping[str, Any], *, is_dry: bool) -> str:
    workload, ref = back.workload, back.workload.ref
    which = f"{ref.kind} {ref.namespace}/{ref.name}"
    sentences = [f"Would resume {which}." if is_dry else f"Resumed {which} by {resume.by}."]
    if back.way is kinds.Way.kueue and not kinds.has_condition(answer, "Admitted", "True"):
        sentences.append("Queued: it starts when Kueue has quota for it.")
    floors = [pointers.read(each.body, "/spec/minReplicaCount") for each in sure(workload.scaled_objects)]
    if back.way is kinds.Way.keda and not all(floors):
        sentences.append("KEDA may scale it to 0 again at its next poll while no trigger is active.")
    if sure(workload.hpas) and back.row.replica_path:
        sentences.append("Its HPA wakes within 45 s.")
    return " ".join(sentences)
