"""The pause of one workload, a transaction: rehearsed, then record and act, verified by the answer, taken back where it
half took.

In: a decision to pause and the workload as it was just read. Out: an Outcome, or one of the clients' errors for
act/execute.py to judge; errors.Conflict: it changed even since then, and must be looked at before another try.
Invariant: what is paused, at 0, finished or in trouble is not patched; it ends paused with a complete record, or as it
was without one. Whatever interrupts us in between, what stands on the object tells the next cycle which way to go
(model/marks.py).
"""

import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from fallow import names
from fallow.act import hooks, sending
from fallow.act.notices import text
from fallow.act.sending import PatchWriter, Write
from fallow.act.workloads import bodies, rereading, undoing
from fallow.clients import errors
from fallow.model import cluster, decision, kinds, objections, record, stops
from fallow.model.decision import Code, Detail, Outcome, Status
from fallow.model.units import Instant

log = logging.getLogger(__name__)


async def pause(
    writer: PatchWriter, asking: hooks.Hooks, pause: decision.Pause, workload: cluster.Workload,
    pods: Sequence[cluster.Pod], now: Instant, *, by: str, may_act: Callable[[], bool], with_schedule: bool,
    namespace: cluster.Namespace | None,
) -> Outcome:
    """`with_schedule`: of a Job its CronJob is suspended too. `namespace`: as it was when its consent was looked at;
    None: it was not asked."""
    kind = kinds.of(workload)
    if kind is None:
        because = f"there is no way to pause {workload.ref.short}"
        return Outcome(pause, Status.refused, now, because, code=Detail.ManagedByUnknownOwner)
    if obstacle := _find_obstacle(pause, kind, workload, now) or await _find_claims(writer, pause, kind, workload, now):
        return obstacle
    schedule = kinds.find_schedule(workload) if with_schedule else None
    try:
        steps = bodies.pause_writes(workload, kind, pause, now, by=by, schedule=schedule, pods=pods)
    except bodies.CannotWrite as refusal:
        return Outcome(pause, Status.refused, now, refusal.because, code=refusal.code)
    await _rehearse(writer, steps)
    if not writer.is_dry and (complaint := await asking.ask(workload.ref, pods, pause.finding.rule.action.hook, now)):
        return Outcome(pause, Status.refused, now, complaint[0], code=complaint[1])
    if not may_act():  # a hook may take a minute
        because = "not done: frozen, or no longer the one who may act"
        return Outcome(pause, Status.overtaken, now, because, code=Code.NotBegun)
    await _expect_unchanged(writer, workload, steps[0].ref)
    await _expect_consent(writer, namespace)
    before = record.read(steps[0].body["metadata"]["annotations"][names.ORIGINAL_STATE])
    note = text.pause_note(pause.finding, kind, bodies.current_replicas(kind, workload), now, is_dry=writer.is_dry)
    if writer.dry_run == "client":
        note += " (not checked)"
    else:
        log.info("pausing %s, which was %s", workload.ref, bodies.describe(before.fields) if before else "")
        await _send(writer, kind, workload, steps)
        note += await _pause_schedule(writer, schedule, workload, pause, now, by) if schedule else ""
    return Outcome(pause, writer.done, now, note, before.fields if before else {}, dict(steps[-1].shows))


def _find_obstacle(pause: decision.Pause, kind: kinds.Kind, workload: cluster.Workload, now: Instant) -> Outcome | None:
    """Never patch what is paused, at 0 or finished: a second patch would overwrite the way back."""
    short, trouble = workload.ref.short, workload.trouble
    if trouble is not None:  # something that has a say in it is not as we know it, or could not be seen
        code = None if trouble is cluster.Trouble.OwnerLookupFailed else Detail(trouble)
        return Outcome(pause, Status.refused, now, workload.trouble_because or str(trouble), code=code)
    if kinds.is_paused(kind, workload):
        return Outcome(pause, Status.overtaken, now, f"{short} does not run any more", code=Code.AlreadyPaused)
    if kinds.is_finished(kind, workload.body):
        return Outcome(pause, Status.overtaken, now, f"{short} has finished")
    if found := objections.find(kind, workload, pause.finding.rule):
        return Outcome(pause, Status.refused, now, found[1], code=found[0])
    return None


async def _find_claims(
    writer: PatchWriter, pause: decision.Pause, kind: kinds.Kind, workload: cluster.Workload, now: Instant
) -> Outcome | None:
    """Of a kind that we know by its /scale only, the eyes have not seen whether it makes volumes."""
    if kinds.way(kind, workload) is not kinds.Way.scale:
        return None
    whole = msgspec.structs.replace(workload, body=await writer.read(workload.ref))
    found = stops.makes_no_claims(whole, pause.finding.rule)
    return Outcome(pause, Status.refused, now, found[1], code=found[0]) if found else None


async def _expect_unchanged(writer: PatchWriter, workload: cluster.Workload, written: cluster.Ref) -> None:
    """Where people say that they keep it, if not on the object that is written, whose version guards the patch."""
    elsewhere = {workload.ref: workload.resource_version}
    if workload.marks_version is not None:
        elsewhere[workload.marks_ref] = workload.marks_version
    for ref, version in elsewhere.items():
        with contextlib.suppress(errors.NotFound):  # what is gone says nothing
            if ref.uid != written.uid and (await writer.read(ref))["metadata"]["resourceVersion"] != version:
                raise errors.rejection(409, f"{ref} was changed since it was looked at")


async def _expect_consent(writer: PatchWriter, looked_at: cluster.Namespace | None) -> None:
    """No version of the workload guards what its Namespace says. So that is read last: between the server's answer to
    this and its taking the patch an ack there comes too late, and nothing in Kubernetes can close that."""
    if looked_at is not None and await writer.read_namespace(looked_at.name) != looked_at:
        raise errors.rejection(409, f"Namespace {looked_at.name} was changed since it was looked at")


async def _rehearse(writer: PatchWriter, steps: Sequence[Write]) -> None:
    """Something that clamps our values or strips our record is met by a dry run, which kills no pod and loses no way
    back. Every hour a pause is tried again, and every half of one would cost pods."""
    if writer.is_dry:
        return
    for step in steps:
        await writer.rehearse(step)


async def _send(writer: PatchWriter, kind: kinds.Kind, workload: cluster.Workload, steps: Sequence[Write]) -> None:
    first, *acts = steps
    row, way = kinds.target_row(kind, workload), kinds.way(kind, workload)
    try:
        answer = await writer.send(first)
    except sending.NotShown as half:
        if acts:  # nothing is written yet but marks, of which not all came about
            await undoing.forget(writer, first.ref, _record_in(first))
            raise
        raise await _take_back(writer, row, way, first, half) from None
    for act in acts:
        if act.subresource is not None:  # a Scale is guarded by the version that its object got from the first write
            act.body["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"]
        await _follow(writer, row, way, first, act)


async def _follow(writer: PatchWriter, row: kinds.Kind, way: kinds.Way, first: Write, act: Write) -> None:
    """The second of two writes. Where it does not come about, what the first one changed is put back."""
    try:
        await _send_twice(writer, way, first, act)
    except sending.NotShown as half:
        raise await _take_back(writer, row, way, first, half, act) from None
    except errors.ClientError as problem:
        if _is_undone(problem):
            await undoing.forget(writer, first.ref, _record_in(first))
        raise  # else it may be done, or will be in a moment: the record stays, and the next cycle sees which


async def _send_twice(writer: PatchWriter, way: kinds.Way, first: Write, act: Write) -> None:
    """Once more where the object was just changed by somebody else, and not in what a pause is about."""
    try:
        await writer.send(act)
    except errors.Conflict:
        found, is_scale = await rereading.see(writer, way, act.ref), way is kinds.Way.scale
        kept = _record_in(first if is_scale else act)
        if kept is None or rereading.values(found, kept) != kept.fields:
            raise
        version = found.resource_version
        await writer.send(bodies.scale_write(act.ref, version, 0) if is_scale else bodies.pause_scaler(found))


def _record_in(write: Write) -> record.Record | None:
    return record.read(write.body["metadata"]["annotations"][names.ORIGINAL_STATE])


async def _take_back(
    writer: PatchWriter, row: kinds.Kind, way: kinds.Way, first: Write, half: sending.NotShown, act: Write | None = None
) -> sending.NotShown:
    """A pause of which the server made something else: neither the record nor the pause. What to say about it."""
    last = act or first
    found = _record_in(first if last.subresource else last)
    if writer.is_dry or found is None:
        return half
    was = bodies.describe(found.fields)
    target = rereading.seen_in(last.ref, half.answer)
    try:
        await undoing.put_back(writer, row, way, target, found)
        if way is kinds.Way.keda:
            await undoing.forget(writer, first.ref, _record_in(first))
    except errors.ClientError as problem:
        is_kept = names.ORIGINAL_STATE in target.annotations
        then = "the record stays for the next cycle" if is_kept else "put it back by hand, for its record was stripped"
        because = f"what stood there ({was}) could not be put back: {problem}; {then}"
        return sending.NotShown(f"{half}, and {because}", half.answer)
    return sending.NotShown(f"{half}; it was put back to {was}", half.answer)


def _is_undone(problem: errors.ClientError) -> bool:
    """Was it certainly not carried out, and never will be?"""
    if isinstance(problem, errors.Unreachable):
        return problem.is_undone
    return isinstance(problem, errors.Rejected) and problem.status < 500


async def _pause_schedule(
    writer: PatchWriter, ref: cluster.Ref, job: cluster.Workload, pause: decision.Pause, now: Instant, by: str
) -> str:
    """Lest the CronJob start the next run. The Job is paused in any case: what goes wrong here is only said."""
    try:
        cron = rereading.alone(job, await rereading.reread_companion(writer, ref))
        if not kinds.is_paused(kinds.CRON_JOB, cron):
            without = msgspec.structs.replace(pause, finding=msgspec.structs.replace(pause.finding, gpus=0))
            steps = bodies.pause_writes(cron, kinds.CRON_JOB, without, now, by=by)
            await _rehearse(writer, steps)
            await _send(writer, kinds.CRON_JOB, cron, steps)
    except (errors.ClientError, bodies.CannotWrite) as problem:
        log.warning("the schedule of %s goes on: %s", job.ref, problem)
        return f". Its schedule {ref.short} goes on"
    return f". Its schedule {ref.short} is suspended too"
