"""The pause of one workload: the way back is written with it, and goes again where the pause did not follow.

In: a decision to pause and the workload as it was just read. Out: an Outcome, or one of the clients' errors for
act/execute.py to judge; errors.Conflict: it changed even since then, and must be looked at before another try.
Invariant: what is paused, at 0 or finished is not patched; a record whose act did not follow does not stay.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from fallow import names
from fallow.act import hooks, sending
from fallow.act.notices import text
from fallow.act.sending import PatchWriter, Write
from fallow.act.workloads import bodies, rereading
from fallow.clients import errors
from fallow.model import cluster, decision, kinds, record
from fallow.model.decision import Code, Detail, Outcome, Status
from fallow.model.units import Instant

log = logging.getLogger(__name__)


async def pause(
    writer: PatchWriter, asking: hooks.Hooks, pause: decision.Pause, workload: cluster.Workload,
    pods: Sequence[cluster.Pod], now: Instant, *, by: str, may_act: Callable[[], bool], with_schedule: bool,
) -> Outcome:
    """`with_schedule`: of a Job its CronJob is suspended too."""
    kind = kinds.of(workload)
    if kind is None:
        because = f"there is no way to pause {workload.ref.short}"
        return Outcome(pause, Status.refused, now, because, code=Detail.ManagedByUnknownOwner)
    if obstacle := _find_obstacle(pause, kind, workload, now):
        return obstacle
    schedule = _schedule_of(workload) if with_schedule else None
    try:
        steps = bodies.pause_writes(workload, kind, pause, now, by=by, schedule=schedule)
    except bodies.CannotWrite as refusal:
        return Outcome(pause, Status.refused, now, refusal.because, code=refusal.code)
    if not writer.is_dry and (complaint := await asking.ask(workload.ref, pods, pause.finding.rule.action.hook, now)):
        return Outcome(pause, Status.refused, now, complaint[0], code=complaint[1])
    if not may_act():  # a hook may take a minute
        because = "not done: frozen, or no longer the one who may act"
        return Outcome(pause, Status.overtaken, now, because, code=Code.NotBegun)
    before = record.read(steps[0].body["metadata"]["annotations"][names.ORIGINAL_STATE])
    note = text.pause_note(pause.finding, kind, bodies.current_replicas(kind, workload), now, is_dry=writer.is_dry)
    if writer.dry_run == "client":
        note += " (not checked)"
    else:
        await _send(writer, kinds.target_row(kind, workload), steps)
        note += await _pause_schedule(writer, schedule, workload, pause, now, by) if schedule else ""
    return Outcome(pause, writer.done, now, note, before.fields if before else {}, dict(steps[-1].shows))


def _find_obstacle(pause: decision.Pause, kind: kinds.Kind, workload: cluster.Workload, now: Instant) -> Outcome | None:
    """Never patch what is paused, at 0 or finished: a second patch would overwrite the way back."""
    short = workload.ref.short
    if kinds.is_paused(kind, workload):
        return Outcome(pause, Status.overtaken, now, f"{short} does not run any more", code=Code.AlreadyPaused)
    if kinds.is_finished(kind, workload.body):
        return Outcome(pause, Status.overtaken, now, f"{short} has finished")
    if found := kinds.objection(kind, workload, pause.finding.rule):
        return Outcome(pause, Status.refused, now, found[1], code=found[0])
    return None


async def _send(writer: PatchWriter, row: kinds.Kind, steps: Sequence[Write]) -> None:
    first, *acts = steps
    try:
        answer = await writer.send(first)
    except sending.NotShown:  # the record is on it and the pause is not
        await _forget(writer, first.ref)
        raise
    for act in acts:
        if act.subresource is not None:  # a Scale is guarded by the version that its object got from the first write
            act.body["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"]
        try:
            await writer.send(act)
        except errors.ClientError as problem:
            if isinstance(problem, errors.Rejected | sending.NotShown) or not await _stands(writer, row, act):
                await _forget(writer, first.ref)
            raise


async def _stands(writer: PatchWriter, row: kinds.Kind, act: Write) -> bool:
    """Was a write done that ended in an error? When even that is not known, yes: the record must stay."""
    try:
        found = await writer.read(act.ref, act.subresource)
    except errors.NotFound:
        return False
    except errors.ClientError:
        return True
    return row.holds(kinds.view(found, rereading.annotations(found)))


async def _forget(writer: PatchWriter, ref: cluster.Ref) -> None:
    """Takes a record away whose act did not follow. Without resourceVersion: whatever changed, the record is void."""
    if writer.is_dry:
        return
    try:
        await writer.send(sending.annotate(ref, dict.fromkeys(names.PAUSE_KEYS)))
    except errors.ClientError as problem:
        log.warning("the record of a pause that did not happen is still on %s: %s", ref, problem)


def _schedule_of(workload: cluster.Workload) -> cluster.Ref | None:
    """The CronJob above a Job, as the eyes put it at the end of the chain."""
    above = workload.chain[-1] if workload.chain else None
    if above is None or above.uid == workload.ref.uid or (above.group, above.kind) != kinds.CRON_JOB.key:
        return None
    return cluster.Ref(above.group, above.version, above.kind, workload.ref.namespace, above.name, above.uid)


async def _pause_schedule(
    writer: PatchWriter, ref: cluster.Ref, job: cluster.Workload, pause: decision.Pause, now: Instant, by: str
) -> str:
    """Lest the CronJob start the next run. The Job is paused in any case: what goes wrong here is only said."""
    try:
        cron = rereading.alone(job, await rereading.reread_companion(writer, ref))
        if not kinds.is_paused(kinds.CRON_JOB, cron):
            without = msgspec.structs.replace(pause, finding=msgspec.structs.replace(pause.finding, gpus=0))
            await writer.send(*bodies.pause_writes(cron, kinds.CRON_JOB, without, now, by=by))
    except (errors.ClientError, bodies.CannotWrite) as problem:
        log.warning("the schedule of %s goes on: %s", job.ref, problem)
        return f". Its schedule {ref.short} goes on"
    return f". Its schedule {ref.short} is suspended too"
