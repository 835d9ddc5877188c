"""The resume of one workload: everything is read afresh, and again when it changes under us.

In: a decision to resume. Out: an Outcome, or one of the clients' errors. It comes back to what was recorded, never less
than its autoscalers ask for; where it runs already, only our marks go.
Under KEDA two parties write. When its ScaledObject is given back, KEDA takes a turn of its own, and its write may come
after ours and win. So the record stays until we have looked again after that turn: for a moment here, and where KEDA
takes longer, in the next cycle (or when the command is repeated). `resume-requested` on the ScaledObject says that a
resume is under way, so that whoever comes next finishes it.
Invariant: without a readable record nothing is restored from a guess, and nothing that a pause of its kind cannot have
recorded (checking.py). An interruption between two writes leaves marks or a record that the next resume finds; what the
server's answer does not show keeps its record.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from fallow import names
from fallow.act import sending
from fallow.act.sending import PatchWriter
from fallow.act.workloads import bodies, checking, releasing, rereading, restoring
from fallow.clients import errors
from fallow.model import cluster, decision, kinds, marks, pointers, record, stops, units
from fallow.model.decision import Code, Outcome, Status
from fallow.model.seen import sure
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

RETRIES = 5
_LOOKS = 12  # at what KEDA does after its ScaledObject is its own again
_HELD_AT = "/status/pausedReplicaCount"  # of a ScaledObject: set while KEDA holds its target, gone with its first turn
_MANAGER = names.RESUME_FIELD_MANAGER


class Size(msgspec.Struct, frozen=True):
    """How many replicas somebody wants back. `is_forced`: also where the record is intact and says otherwise."""

    replicas: int
    is_forced: bool = False


class _Return(msgspec.Struct, frozen=True):
    """What a resume has found: the workload, how it was paused, and where the way back stands."""

    workload: cluster.Workload
    row: kinds.Kind  # of the target
    way: kinds.Way
    target: kinds.Target
    found: record.Record


class _NotYet(Exception):
    """KEDA has not taken its turn: only the next look can tell."""


async def resume(
    writer: PatchWriter, resume: decision.Resume, now: Instant, size: Size | None = None, *, turn: Seconds
) -> Outcome:
    """Brings it back to what was recorded, or to `size`. `turn`: between two looks at what KEDA does."""
    for _ in range(RETRIES + 1):
        try:
            return await _resume_once(writer, resume, now, size, turn)
        except restoring.Remade as problem:
            because = str(problem)
            break
        except errors.Conflict as problem:
            because = f"{resume.workload.ref} kept changing while it was being resumed: {problem}"
        except _NotYet:
            given = f"{resume.workload.ref.short} has its size, and its ScaledObject is KEDA's again"
            because = f"{given}, which has not taken its turn yet: the record stays until then; repeat it to look again"
            break
    return Outcome(resume, Status.overtaken, now, because)


async def _resume_once(
    writer: PatchWriter, resume: decision.Resume, now: Instant, size: Size | None, turn: Seconds
) -> Outcome:
    workload = await rereading.reread(writer, resume.workload)
    kind, short = kinds.of(workload), workload.ref.short
    if kind is None:
        because = f"there is no way to resume {short}"
        return Outcome(resume, Status.refused, now, because, code=Code.NoOriginalState)
    way, target = kinds.way(kind, workload), kinds.record_target(kind, workload)
    partly = kinds.still_paused(kind, workload)
    is_half = bool(partly) or marks.is_half_taken(resume.workload) or marks.is_coming_back(workload)
    if not kinds.holds_pause(kind, workload) and not is_half:
        because = f"{short} runs, so there is nothing to bring back; marks of ours on it are cleared"
        if kinds.is_tender(workload):
            because = f"{short} runs; marks of ours on it count for nothing, and clearing them would restart its pods"
        else:
            await resume_schedules(writer, workload, now, resume.by)
            await _clear(writer, workload, target, now, resume.by)
        if marks.read_all(workload, names.PENDING_SINCE):
            keep = f"fallow ack {kinds.typed(workload.ref)} -n {workload.ref.namespace}"
            because = f"{short} runs; its owner was told that it will be paused, and that stands: to keep it, {keep}"
        return Outcome(resume, Status.overtaken, now, because, code=Code.AlreadyRunning)
    row = _record_row(kind, workload)
    is_void = marks.is_stale(target.annotations) and not marks.is_coming_back(workload)
    found = None if is_void else record.read(target.annotations.get(names.ORIGINAL_STATE))
    found = _find_count(kind, workload, found)
    fault = await _find_fault(writer, row, workload, found)
    if size is not None:
        intact = None if fault else found
        if objection := _object_to_size(kind, workload, intact, size):
            return Outcome(resume, Status.refused, now, objection[1], code=objection[0])
        found, fault = _force(kind.replica_path or "", intact, size.replicas), None
    if found is None or fault:
        lacking = f"{short} has no readable record of a pause by us"
        because = f"the record on {short} names {fault}; nothing was changed" if fault else lacking
        return Outcome(resume, Status.refused, now, because, code=Code.NoOriginalState)
    if partly and size is None:  # what others brought back is theirs
        found = msgspec.structs.replace(found, fields={pointer: found.fields[pointer] for pointer in partly})
    if writer.dry_run == "client":
        return Outcome(resume, Status.dry_run, now, f"would resume {short}", after=dict(found.fields))
    return await _bring_back(writer, resume, _Return(workload, row, way, target, found), now, turn)


async def _find_fault(
    writer: PatchWriter, row: kinds.Kind, workload: cluster.Workload, found: record.Record | None
) -> str | None:
    """What in the record is not ours: its own word first, then the objects that it names."""
    if found is None:
        return None
    named = bodies.companion_refs(found, workload.ref.namespace, kinds.CRON_JOB)
    return checking.find_fault(row, workload, found, await rereading.reread_companions(writer, named))


def _find_count(kind: kinds.Kind, workload: cluster.Workload, found: record.Record | None) -> record.Record | None:
    """Who paused a kind outside the table may have read its definition, while we may not, or the other way round: their
    record names another place, and holds one count all the same."""
    if kind.letter != "x" or kind.replica_path is None or found is None or len(found.fields) != 1:
        return found
    ((pointer, count),) = found.fields.items()
    is_elsewhere = workload.replicas_pointer is None or pointer == "/spec/replicas"
    if not is_elsewhere or not isinstance(count, int):
        return found
    return msgspec.structs.replace(found, fields={kind.replica_path: count})


def _object_to_size(
    kind: kinds.Kind, workload: cluster.Workload, intact: record.Record | None, size: Size
) -> tuple[Code | None, str] | None:
    """Why a size given by hand is not taken: a record that can be read knows better, unless it is overruled."""
    short = workload.ref.short
    if kind.replica_path is None:
        return None, f"{short} has no number of replicas that could be given"
    if intact is None:
        rest = ", ".join(_find_rest(kind, workload))
        because = f"{short} is held down by {rest} too, and no record tells what stood there"
        return (Code.NoOriginalState, because) if rest else None
    if size.is_forced or intact.fields.get(kind.replica_path) == size.replicas:
        return None
    holds = f"the record on {short} is intact and holds {bodies.describe(intact.fields)}"
    return Code.RecordIntact, f"{holds}: leave out --replicas to bring that back, or add --force to overrule it"


def _find_rest(kind: kinds.Kind, workload: cluster.Workload) -> list[str]:
    """What besides its replicas stands at the value of a pause: a number alone does not bring it back."""
    body = kinds.as_target(workload).body
    others = [pointer for pointer in kind.writes if pointer != kind.replica_path]
    return [pointer for pointer in others if str(pointers.read(body, pointer)).lower() in ("0", "true")]


def _force(path: str, found: record.Record | None, replicas: int) -> record.Record:
    known = found or record.Record(1, {})
    return msgspec.structs.replace(known, fields=known.fields | {path: replicas})


async def _clear(writer: PatchWriter, workload: cluster.Workload, target: kinds.Target, now: Instant, by: str) -> None:
    """Takes our marks off something that runs; writes nothing where there are none."""
    if writer.is_dry:
        return
    ours = [name for name in (*names.PAUSE_KEYS, names.RESUME_REQUESTED) if name in target.annotations]
    if ours:
        changes = dict.fromkeys(ours) | {names.RESUMED_AT: units.rfc3339(now), names.RESUMED_BY: by}
        version = target.resource_version
        await writer.send(sending.annotate(target.ref, changes, resource_version=version, manager=_MANAGER))
    for scaler in kinds.scalers(workload):
        await _clear_scaler(writer, scaler)


async def _bring_back(
    writer: PatchWriter, resume: decision.Resume, back: _Return, now: Instant, turn: Seconds
) -> Outcome:
    workload, row = back.workload, back.row
    fields = bodies.raise_replicas(row, workload, bodies.restored_fields(row, back.target, back.found))
    remember = {**marks.fight(workload, now), **resume.remember}
    changes = bodies.resume_marks(row, back.target.annotations, now, resume.by, remember)
    for ref in bodies.companion_refs(back.found, workload.ref.namespace, kinds.CRON_JOB):
        await _resume_schedule(writer, ref, workload, changes)
    match back.way:
        case kinds.Way.keda:
            answer = await _send_under_keda(writer, back, fields, changes, resume.by, turn)
        case _:
            answer = await _send(writer, back.way, back.target, fields, changes)
    written = (*fields, *row.writes, *record.fields_in(back.target.annotations))
    await releasing.release(writer, back.target.ref, answer, written)
    if back.way is kinds.Way.kueue and names.RESUME_REQUESTED in workload.annotations:
        await _take_request(writer, workload.ref)
    because = _describe(resume, back, answer, is_dry=writer.is_dry)
    return Outcome(resume, writer.done, now, because, dict(back.found.fields), fields)


async def _take_request(writer: PatchWriter, ref: cluster.Ref) -> None:
    """Off the job, whose Kueue Workload runs again by now: what goes wrong here is not the resume's failure, and the
    next cycle takes off a request that nothing is left to do about."""
    try:
        await writer.send(sending.annotate(ref, {names.RESUME_REQUESTED: None}, manager=_MANAGER))
    except errors.ClientError as problem:
        log.warning("%s is still on %s: %s", names.RESUME_REQUESTED, ref, problem)


async def _send(
    writer: PatchWriter, way: kinds.Way, target: kinds.Target, fields: Mapping[str, Any], changes: bodies.Marks
) -> dict[str, Any]:
    """The fields and that it was resumed; with the answer that shows them, the record goes. Where every write restarts
    its pods, all in one that was rehearsed, for two would do so twice."""
    if not changes:
        return await writer.send(bodies.restore_write(target, fields))
    row = kinds.find(target.ref.group, target.ref.kind)
    if row is None or row.marks_on is None:
        return await restoring.restore(writer, way, target, fields, changes, along=_find_set(changes))
    write = bodies.resume_write(target, fields, changes)
    await writer.rehearse(write)
    try:
        return await writer.send(write)
    except sending.NotShown:
        if not writer.is_dry:
            before = {name: target.annotations.get(name) for name in changes}
            await writer.send(sending.annotate(target.ref, before, manager=_MANAGER))
        raise


def _find_set(changes: bodies.Marks) -> dict[str, str | None]:
    """Of the marks of a resume, those that say so; the others take its pause away."""
    return {name: value for name, value in changes.items() if value is not None}


async def resume_schedules(writer: PatchWriter, job: cluster.Workload, now: Instant, by: str) -> None:
    """Of a Job that others brought back: its CronJob would stay behind without anybody who knows of it."""
    kind = kinds.of(job)
    if kind is None or writer.is_dry:
        return
    said = kinds.record_target(kind, job).annotations
    found = None if marks.is_stale(said) else record.read(said.get(names.ORIGINAL_STATE))
    refs = bodies.companion_refs(found, job.ref.namespace, kinds.CRON_JOB)
    if refs and not await _find_fault(writer, _record_row(kind, job), job, found):
        changes = bodies.resume_marks(kinds.CRON_JOB, {}, now, by, {})
        for ref in refs:
            await _resume_schedule(writer, ref, job, changes)


def _record_row(kind: kinds.Kind, workload: cluster.Workload) -> kinds.Kind:
    return kinds.KUEUE_WORKLOAD if kinds.way(kind, workload) is kinds.Way.kueue else kind


async def _resume_schedule(writer: PatchWriter, ref: cluster.Ref, job: cluster.Workload, changes: bodies.Marks) -> None:
    """Only if the record of our own pause is on it and the pause still stands."""
    for companion in await rereading.reread_companions(writer, [ref]):
        cron = rereading.alone(job, companion)
        found = record.read(cron.annotations.get(names.ORIGINAL_STATE))
        if found is not None and kinds.is_paused(kinds.CRON_JOB, cron):
            target = kinds.as_target(cron)
            fields = bodies.restored_fields(kinds.CRON_JOB, target, found)
            await releasing.release(writer, ref, await _send(writer, kinds.Way.own, target, fields, changes), fields)


# ---- under KEDA ------------------------------------------------------------------------------------------------------


async def _send_under_keda(
    writer: PatchWriter, back: _Return, fields: dict[str, Any], changes: bodies.Marks, by: str, turn: Seconds
) -> dict[str, Any]:
    """The ScaledObject first; then its target, which KEDA may be changing at the same time; the record last. That it
    was resumed stands on the target before the ScaledObject forgets it."""
    scalers = kinds.pausing_scalers(back.workload)
    if marks.is_coming_back(back.workload):
        await _set_replicas(writer, back, fields, {})
    else:
        for scaler in scalers:
            await _give_back(writer, scaler, by)
        if scalers and not writer.is_dry and not await _look_again(writer, back, fields, turn):
            raise _NotYet
    await writer.send(sending.annotate(back.target.ref, _find_set(changes), manager=_MANAGER))
    for scaler in await rereading.reread_companions(writer, [each.ref for each in scalers]):
        await _clear_scaler(writer, scaler)
    return await _set_replicas(writer, back, fields, changes)


async def _clear_scaler(writer: PatchWriter, scaler: cluster.Companion) -> None:
    ours = [name for name in (names.ORIGINAL_STATE, names.RESUME_REQUESTED) if name in scaler.annotations]
    if ours:
        answer = await writer.send(sending.annotate(scaler.ref, dict.fromkeys(ours), manager=_MANAGER))
        await releasing.release(writer, scaler.ref, answer, kinds.SCALED_OBJECT.writes)


async def _give_back(writer: PatchWriter, scaler: cluster.Companion, by: str) -> None:
    """As it was before the pause, with its record still on it, and a word that we are at it."""
    target, row = kinds.as_target(scaler), kinds.SCALED_OBJECT
    found = record.read(scaler.annotations.get(names.ORIGINAL_STATE))
    if found and kinds.find_fault(row, found):  # not ours: KEDA's hold is all that is lifted
        found = None
    fields = found.fields if found else dict.fromkeys(row.writes)
    if found or row.holds(target.body):
        await writer.send(bodies.resume_write(target, fields, {names.RESUME_REQUESTED: by}))


async def _look_again(writer: PatchWriter, back: _Return, fields: dict[str, Any], turn: Seconds) -> bool:
    """Has KEDA taken its turn, and does the size stand after it? Where KEDA's write won, ours is repeated."""
    for _ in range(_LOOKS):
        await _set_replicas(writer, back, fields, {})
        await asyncio.sleep(turn)
        seen = await rereading.reread(writer, back.workload)
        if _has_turned(seen) and rereading.is_at(seen.body, _want(back, seen, fields)):
            return True
    return False


def _has_turned(workload: cluster.Workload) -> bool:
    return all(pointers.read(scaler.body, _HELD_AT) is None for scaler in kinds.scalers(workload))


def _want(back: _Return, seen: cluster.Workload, fields: dict[str, Any]) -> dict[str, Any]:
    """The highest of what was recorded, what stands now and what KEDA asks for at least."""
    current = pointers.read(seen.body, back.row.replica_path or "/spec/replicas")
    floors = [pointers.read(scaler.body, "/spec/minReplicaCount") for scaler in kinds.scalers(seen)]
    return bodies.raise_replicas(back.row, seen, fields, current, *floors)


async def _set_replicas(
    writer: PatchWriter, back: _Return, fields: dict[str, Any], changes: bodies.Marks
) -> dict[str, Any]:
    """The size, and with it `changes`; where there are none and the size stands, nothing is written."""
    for _ in range(RETRIES + 1):
        seen = await rereading.reread(writer, back.workload)
        wanted = _want(back, seen, fields)
        if not changes and rereading.is_at(seen.body, wanted):
            return dict(seen.body)
        try:
            return await _send(writer, kinds.Way.own, kinds.as_target(seen), wanted, changes)
        except errors.Conflict:
            continue
    raise errors.ServerFault(500, f"{back.target.ref} kept changing while its replicas were being restored")


def _describe(resume: decision.Resume, back: _Return, answer: Mapping[str, Any], *, is_dry: bool) -> str:
    workload, ref = back.workload, back.workload.ref
    which = f"{ref.kind} {ref.namespace}/{ref.name}"
    sentences = [f"Would resume {which}." if is_dry else f"Resumed {which} by {resume.by}."]
    if back.way is kinds.Way.kueue and not stops.has_condition(answer, "Admitted", "True"):
        sentences.append("Queued: it starts when Kueue has quota for it.")
    floors = [pointers.read(each.body, "/spec/minReplicaCount") for each in kinds.scalers(workload)]
    if back.way is kinds.Way.keda and not all(floors):
        sentences.append("KEDA may scale it to 0 again at its next poll while no trigger is active.")
    if sure(workload.hpas) and back.row.replica_path:
        sentences.append("Its HPA wakes within 45 s.")
    return " ".join(sentences)
