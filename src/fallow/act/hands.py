"""Doing it: each decision becomes the requests that act/workloads.py builds, and an Outcome.

In: a decision and the workload as it was just read. Out: an Outcome, or one of the clients' errors for act/execute.py to judge.
A dry run sends the patches of pauses and resumes with dryRun=All (scope client: not at all) and writes no mark, Event or notice.
Invariant: what is paused, at 0 or finished is not patched; where a record was written and its act did not follow, the record goes again;
nothing but Events is ever created, and nothing is deleted.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import msgspec

from fallow import names
from fallow.act import hooks, notify, reports, workloads
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, decision, kinds, pointers, record, units
from fallow.model.decision import Code, Detail, Outcome, Status
from fallow.model.policies import idle
from fallow.model.units import Instant

log = logging.getLogger(__name__)

DryRun: TypeAlias = Literal["server", "client"] | None
Lookup: TypeAlias = Callable[[str, str, str], kubernetes.Resource | None]  # group, version, kind

RESUME_RETRIES = 5
_RELEASE_TRIES = 3
_HOOK_ABORTS = 3


class _Told(TypedDict):
    """Who pauses, and why: the same on every object of one pause."""

    by: str
    reason_text: str


class _Complaint(NamedTuple):
    """Why a hook stopped the pause."""

    because: str
    code: Detail | None = None


class NotShown(errors.BadAnswer):
    """The server took the patch, and its answer lacks what was written."""


class Hands:
    """All that changes anything in the cluster for the sake of idle workloads."""

    def __init__(
        self, api: kubernetes.Api, lookup: Lookup, *, reporting_instance: str, compat_annotations: bool = True, dry_run: DryRun = None,
        own_pod: cluster.Ref | None = None, suspend_schedules: bool = False,
    ) -> None:
        """`suspend_schedules`: with a Job its CronJob is suspended too (letter `c`)."""
        self._api = api
        self._lookup = lookup
        self._compat = compat_annotations
        self.dry_run = dry_run
        self._own_pod = own_pod
        self._suspend_schedules = suspend_schedules
        self._hook_aborts: dict[str, int] = {}  # uid -> cycles in a row in which its hook stopped the pause
        self.reports = reports.PolicyReports(api, lookup)
        self.announcer = notify.Announcer(api, reporting_instance=reporting_instance)

    # ---- pause ----------------------------------------------------------------------------------------------------------------

    async def pause(
        self, pause: decision.Pause, workload: cluster.Workload, pods: Sequence[cluster.Pod], now: Instant, *,
        by: str = names.FIELD_MANAGER, may_act: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Pauses `workload`, just read. Raises errors.Conflict if it changed even since then: look again before another try."""
        rule, kind = pause.finding.rule, kinds.of(workload)
        if kind is None:
            return Outcome(pause, Status.refused, now, f"there is no way to pause {workload.ref.short}", code=Detail.ManagedByUnknownOwner)
        if obstacle := _find_obstacle(pause, kind, workload, now):
            return obstacle
        told: _Told = {"by": by, "reason_text": pause.reason_text}
        schedule = _schedule_of(workload) if self._suspend_schedules else None
        try:
            writes = workloads.pause_writes(workload, kind, rule, now, gpus=pause.finding.gpus, schedule=schedule, **told)
        except workloads.CannotWrite as refusal:
            return Outcome(pause, Status.refused, now, refusal.because, code=refusal.code)
        if self.dry_run is None and (complaint := await self._ask_hooks(workload, pods, rule)):
            return Outcome(pause, Status.refused, now, complaint.because, code=complaint.code)
        if not may_act():  # a hook may take a minute
            return Outcome(pause, Status.overtaken, now, "not done: we are no longer the one who may act")
        if self.dry_run != "client":
            await self._send_pause(kinds.target_row(kind, workload), writes)
        replicas = workloads.current_replicas(kind, workload)
        note = notify.pause_note(pause.finding, kind, replicas, now, is_dry=self.dry_run is not None)
        if schedule is not None and self.dry_run != "client":
            note += await self._pause_schedule(schedule, workload, rule, now, told)
        if self.dry_run is None:
            await self.announcer.announce(workload.ref, kind.event, note, now, next(iter(pods), None))
        return Outcome(pause, self._done, now, note, workloads.recorded_fields(writes[0]), dict(writes[-1].shows))

    async def _pause_schedule(
        self, ref: cluster.Ref, job: cluster.Workload, rule: idle.Rule, now: Instant, told: "_Told"
    ) -> str:
        """Lest the CronJob start the next run. The Job is paused in any case: what goes wrong here is only said."""
        row = kinds.CRON_JOB
        try:
            cron = _alone(job, ref, await self._read(ref))
            if not kinds.is_paused(row, cron):
                (write,) = workloads.pause_writes(cron, row, rule, now, gpus=0, **told)
                await self._send(write, names.FIELD_MANAGER)
        except (errors.ClientError, workloads.CannotWrite) as problem:
            log.warning("the schedule of %s goes on: %s", job.ref, problem)
            return f". Its schedule {ref.short} goes on"
        return f". Its schedule {ref.short} is suspended too"

    async def _ask_hooks(self, workload: cluster.Workload, pods: Sequence[cluster.Pod], rule: idle.Rule) -> "_Complaint | None":
        complaint = await hooks.call(pods, rule.action.hook.timeout)
        if complaint is None or rule.action.hook.on_failure == "continue":
            self._hook_aborts.pop(workload.ref.uid, None)
            return None
        aborts = self._hook_aborts[workload.ref.uid] = self._hook_aborts.get(workload.ref.uid, 0) + 1
        if aborts >= _HOOK_ABORTS:
            return _Complaint(complaint, Detail.HookFailing)
        return _Complaint(f"not paused in this cycle: {complaint}")

    async def _send_pause(self, row: kinds.Kind, writes: Sequence[workloads.Write]) -> None:
        try:
            answer = await self._send(writes[0], names.FIELD_MANAGER)
        except NotShown:  # the record is on it and the pause is not
            await self._forget(writes[0])
            raise
        for act in writes[1:]:
            try:
                await self._send(_at_version(act, answer), names.FIELD_MANAGER)
            except errors.ClientError as problem:
                if isinstance(problem, errors.Rejected | NotShown) or not await self._stands(row, act):
                    await self._forget(writes[0])
                raise

    async def _stands(self, row: kinds.Kind, act: workloads.Write) -> bool:
        """After a write of which we do not know whether it was done: is it? When even that is not known, yes: the record must stay."""
        try:
            found = await self._read(act.ref, act.subresource)
        except errors.NotFound:
            return False
        except errors.ClientError:
            return True
        return row.holds(kinds.view(found, _annotations(found)))

    async def _forget(self, write: workloads.Write) -> None:
        if self.dry_run is not None:
            return
        try:
            await self._send(workloads.forget_write(write), names.FIELD_MANAGER)
        except errors.ClientError as problem:
            log.warning("the record of a pause that did not happen is still on %s: %s", write.ref, problem)

    # ---- resume ---------------------------------------------------------------------------------------------------------------

    async def resume(self, resume: decision.Resume, now: Instant, *, replicas: int | None = None) -> Outcome:
        """Brings it back to what was recorded, or to `replicas`. Reads everything afresh, and again when it changes under us."""
        conflict: errors.Conflict | None = None
        for _ in range(RESUME_RETRIES + 1):
            try:
                done = await self._resume_once(resume, now, replicas)
            except errors.Conflict as problem:
                conflict = problem
                continue
            if self.dry_run is None and done.status is Status.done:
                await self.announcer.announce(resume.workload.ref, names.Event.RESUMED, done.detail, now)
            return done
        return Outcome(resume, Status.overtaken, now, f"{resume.workload.ref} kept changing while it was being resumed: {conflict}")

    async def _resume_once(self, resume: decision.Resume, now: Instant, replicas: int | None) -> Outcome:
        workload = await self._reread(resume.workload)
        kind = kinds.of(workload)
        if kind is None:
            return Outcome(resume, Status.refused, now, f"there is no way to resume {workload.ref.short}", code=Code.NoOriginalState)
        place = workloads.resume_way(kind, workload)
        target = _target_of(place, workload)
        found = _find_record(kind, target, replicas)
        if not _is_down(place, kind, workload):
            await self._clear(workload, target, now, resume.by)
            marks = "only our marks were cleared" if self.dry_run is None else "only our marks would be cleared"
            return Outcome(resume, Status.overtaken, now, f"{workload.ref.short} runs, so {marks}", code=Code.AlreadyRunning)
        if found is None:
            because = f"{workload.ref.short} has no readable record of a pause by us"
            return Outcome(resume, Status.refused, now, because, code=Code.NoOriginalState)
        if self.dry_run == "client":
            return Outcome(resume, Status.dry_run, now, f"would resume {workload.ref.short}", after=dict(found.fields))
        row = kinds.KUEUE_WORKLOAD if place is kinds.Way.kueue else kind
        return await self._bring_back(resume, _Return(workload, row, place, target, found), now)

    async def _bring_back(self, resume: decision.Resume, back: "_Return", now: Instant) -> Outcome:
        workload, row = back.workload, back.row
        fields = workloads.restored_fields(row, workload, back.target, back.found)
        fields = workloads.raise_replicas(row, workload, fields)
        marks = workloads.resume_marks(row, back.target.annotations, now, resume.by, resume.remember)
        for ref in workloads.companion_refs(back.found, workload.ref.namespace, kinds.CRON_JOB.kind):
            await self._resume_schedule(ref, workload, marks)
        if back.place is kinds.Way.keda:
            answer = await self._resume_scaled(back, fields, marks)
        elif back.place is kinds.Way.scale:
            answer = await self._resume_by_scale(back, fields, marks)
        else:
            answer = await self._send(workloads.resume_write(back.target, fields, marks), names.RESUME_FIELD_MANAGER)
        await self._release(back.target.ref, answer, [*fields, *row.pauses(workload, idle.Rule(), now)])
        if back.place is kinds.Way.kueue and names.RESUME_REQUESTED in workload.annotations:
            await self._send(workloads.annotate(workload.ref, {names.RESUME_REQUESTED: None}), names.RESUME_FIELD_MANAGER)
        sentence = _tell_return(resume, back, answer, is_dry=self.dry_run is not None)
        return Outcome(resume, self._done, now, sentence, dict(back.found.fields), fields)

    async def _resume_by_scale(self, back: "_Return", fields: Mapping[str, Any], marks: Mapping[str, str | None]) -> dict[str, Any]:
        """First the act, then the marks: an interruption between them leaves marks that the next resume clears."""
        ref, shows = back.target.ref, {"/spec/replicas": fields["/spec/replicas"]}
        guards = {"uid": ref.uid, "resourceVersion": back.target.resource_version}
        body = {"metadata": guards, "spec": {"replicas": fields["/spec/replicas"]}}
        await self._send(workloads.Write(ref, body, shows, "scale"), names.RESUME_FIELD_MANAGER)
        return await self._send(workloads.annotate(ref, marks), names.RESUME_FIELD_MANAGER)

    async def _resume_scaled(self, back: "_Return", fields: dict[str, Any], marks: Mapping[str, str | None]) -> dict[str, Any]:
        """The ScaledObject first; then its target, which KEDA may be changing at the same time."""
        for scaler in back.workload.scaled_objects:
            await self._restore_companion(scaler)
        path, target = back.row.replica_path or "/spec/replicas", back.target
        floors = [pointers.read(scaler.body, "/spec/minReplicaCount") for scaler in back.workload.scaled_objects]
        for turn in range(RESUME_RETRIES + 1):
            wanted = workloads.raise_replicas(back.row, back.workload, fields, pointers.read(target.body, path), *floors)
            try:
                return await self._send(workloads.resume_write(target, wanted, marks), names.RESUME_FIELD_MANAGER)
            except errors.Conflict:
                if turn == RESUME_RETRIES:
                    raise errors.ServerFault(500, f"{target.ref} kept changing while its replicas were being restored") from None
                target = _target_of(kinds.Way.own, await self._reread(back.workload))
        raise AssertionError("the last try either returns or raises")

    async def _resume_schedule(self, ref: cluster.Ref, job: cluster.Workload, marks: Mapping[str, str | None]) -> None:
        """Only if the record of our own pause is on it and the pause still stands."""
        for companion in await self._reread_companions([ref]):
            cron = _alone(job, companion.ref, companion.body)
            found = record.read(cron.annotations.get(names.ORIGINAL_STATE))
            if found is not None and kinds.is_paused(kinds.CRON_JOB, cron):
                target = _target_of(kinds.Way.own, cron)
                fields = workloads.restored_fields(kinds.CRON_JOB, cron, target, found)
                answer = await self._send(workloads.resume_write(target, fields, marks), names.RESUME_FIELD_MANAGER)
                await self._release(companion.ref, answer, fields)

    async def _restore_companion(self, scaler: cluster.Companion) -> None:
        target = kinds.Target(scaler.ref, scaler.resource_version, scaler.annotations, kinds.view(scaler.body, scaler.annotations))
        found = record.read(scaler.annotations.get(names.ORIGINAL_STATE))
        if found is None and not kinds.SCALED_OBJECT.holds(target.body):
            return
        fields = found.fields if found else {pointers.annotation(names.KEDA_PAUSED_REPLICAS): None}
        write = workloads.resume_write(target, fields, {names.ORIGINAL_STATE: None})
        answer = await self._send(write, names.RESUME_FIELD_MANAGER)
        await self._release(scaler.ref, answer, fields)

    async def _clear(self, workload: cluster.Workload, target: kinds.Target, now: Instant, by: str) -> None:
        """Takes our marks off something that runs; writes nothing where there are none."""
        ours = [name for name in (*names.PAUSE_KEYS, names.RESUME_REQUESTED) if name in target.annotations]
        if self.dry_run is not None:
            return
        if ours:
            marks: dict[str, str | None] = dict.fromkeys(ours)
            marks |= {names.RESUMED_AT: units.rfc3339(now), names.RESUMED_BY: by}
            await self._send(workloads.annotate(target.ref, marks, resource_version=target.resource_version), names.RESUME_FIELD_MANAGER)
        for scaler in workload.scaled_objects:
            if names.ORIGINAL_STATE in scaler.annotations:
                await self._send(workloads.annotate(scaler.ref, {names.ORIGINAL_STATE: None}), names.RESUME_FIELD_MANAGER)

    async def _release(self, ref: cluster.Ref, answer: dict[str, Any], written: Sequence[str] | Mapping[str, Any]) -> None:
        """Gives up the fields of the pause, so that the owner's next apply does not conflict with us. Failing that harms nothing else."""
        if self.dry_run is not None:
            return
        resource = self._resource(ref)
        for _ in range(_RELEASE_TRIES):
            operations = workloads.release_operations(answer, written)
            if not operations:
                return
            try:
                await self._api.json_patch(resource, ref.namespace, ref.name, operations, field_manager=names.RESUME_FIELD_MANAGER)
            except (errors.Conflict, errors.Invalid):  # it changed meanwhile, and the test of its version failed
                with contextlib.suppress(errors.ClientError):
                    answer = await self._read(ref)
            except errors.ClientError as problem:
                log.warning("we still own fields of %s, and a server-side apply may conflict: %s", ref, problem)
                return
            else:
                return
        log.warning("we still own fields of %s, and a server-side apply may conflict: it keeps changing", ref)

    # ---- notices, acks, marks -------------------------------------------------------------------------------------------------

    async def warn(self, warn: decision.Warn, now: Instant) -> Outcome:
        """Tells the owner; what was delivered, and only that, is then written on the object."""
        if self.dry_run is not None:
            return Outcome(warn, Status.dry_run, now, f"would tell the owner of {warn.finding.workload.ref}")
        note = notify.notice_note(warn, kinds.of(warn.finding.workload), now)
        failures = [failure for channel in warn.channels if (failure := await self._deliver(warn, channel, note, now))]
        if not _is_delivered(warn, failures):
            because = "the notice was not delivered: " + ("; ".join(failures) or "no channel is configured")
            await self.announcer.announce(warn.finding.workload.ref, names.Event.NOTICE_FAILED, because, now)
            return Outcome(warn, Status.failed, now, because)
        changes = workloads.with_aliases(workloads.notice_changes(warn, now), self._compat)
        await self._send(workloads.annotate(warn.finding.workload.marks_ref, changes), names.FIELD_MANAGER)
        return Outcome(warn, Status.done, now, "; ".join([note, *failures]), after=changes)

    async def _deliver(self, warn: decision.Warn, channel: idle.Channel, note: str, now: Instant) -> str | None:
        if channel.type != "event":
            return f"channel type {channel.type} is not available yet"
        try:
            await self.announcer.publish(warn.finding.workload.ref, names.Event.NOTICE_SENT, note, now)
        except errors.ClientError as problem:
            return f"channel {channel.name}: {problem}"
        return None

    async def mark(self, mark: decision.Mark, now: Instant) -> Outcome:
        if self.dry_run is not None:
            return Outcome(mark, Status.dry_run, now, mark.because)
        changes = workloads.with_aliases(mark.changes, self._compat)
        await self._send(workloads.annotate(mark.on, changes, resource_version=mark.resource_version), names.FIELD_MANAGER)
        if mark.event:
            await self.announcer.announce(mark.workload.ref, mark.event, mark.because, now)
        return Outcome(mark, Status.done, now, mark.because, after=changes)

    async def alert(self, alert: decision.Alert, now: Instant) -> Outcome:
        """Only an Event; about ourselves it goes on our own pod, if we run in one."""
        if self.dry_run is not None:
            return Outcome(alert, Status.dry_run, now, alert.because)
        ref = alert.workload.ref if alert.workload else self._own_pod
        if ref is not None:
            await self.announcer.announce_once(ref, alert.event, alert.because, now, alert.episode)
        return Outcome(alert, Status.done, now, alert.because)

    async def acknowledge(self, workload: cluster.Workload, *, until: Instant, by: str, reason: str, now: Instant) -> Outcome:
        mark = workloads.ack_mark(workload, until=until, by=by, reason=reason, now=now)
        kind = kinds.of(workload)
        if kind is not None and kinds.is_paused(kind, workload):
            return Outcome(mark, Status.refused, now, f"{workload.ref.short} is paused; resume it instead", code=Code.AlreadyPaused)
        return await self.mark(mark, now)

    async def unacknowledge(self, workload: cluster.Workload, *, by: str, now: Instant) -> list[Outcome]:
        """One Outcome for each place an ack stood; none when there was no ack."""
        return [await self.mark(mark, now) for mark in workloads.unack_marks(workload, by=by)]

    # ---- the wire -------------------------------------------------------------------------------------------------------------

    @property
    def _done(self) -> Status:
        return Status.done if self.dry_run is None else Status.dry_run

    def _resource(self, ref: cluster.Ref) -> kubernetes.Resource:
        resource = self._lookup(ref.group, ref.version, ref.kind)
        if resource is None:
            raise errors.NotFound(404, f"the API server does not know {ref.kind} in {ref.api_version}")
        return resource

    async def _send(self, write: workloads.Write, manager: str) -> dict[str, Any]:
        answer = await self._api.merge_patch(
            self._resource(write.ref), write.ref.namespace, write.ref.name, write.body,
            field_manager=manager, dry_run=self.dry_run == "server", subresource=write.subresource,
        )
        answer = kinds.full_scale(answer) if write.subresource == "scale" else answer
        for pointer, value in write.shows.items():
            if (shown := pointers.read(answer, pointer)) != value:
                raise NotShown(f"{write.ref} was patched, but its {pointer} is {shown!r} and not {value!r}")
        return answer

    async def _read(self, ref: cluster.Ref, subresource: str | None = None) -> dict[str, Any]:
        resource = self._resource(ref)
        if subresource == "scale":
            return kinds.full_scale(await self._api.read_scale(resource, ref.namespace, ref.name))
        found = await self._api.get(resource, ref.namespace, ref.name)
        uid = found["metadata"].get("uid")
        if ref.uid and uid != ref.uid:
            raise errors.NotFound(404, f"{ref} is gone; another object has its name now")
        return found

    async def _reread(self, workload: cluster.Workload) -> cluster.Workload:
        """The workload and the objects that pause it, as they are at this moment, whole: others may have added what no row reads."""
        found = await self._read(workload.ref)
        annotations = _annotations(found)
        row = kinds.of(workload)
        is_scale = row is not None and row.letter == "x" and workload.replicas_pointer is None
        body = await self._read(workload.ref, "scale") if is_scale else found
        return msgspec.structs.replace(
            workload, resource_version=found["metadata"]["resourceVersion"], labels=found["metadata"].get("labels") or {},
            annotations=annotations, marks=annotations if workload.marks_ref == workload.ref else workload.marks,
            body=body, kueue=await self._reread_companions([each.ref for each in workload.kueue]),
            scaled_objects=await self._reread_companions(_scaler_refs(workload, annotations)),
        )

    async def _reread_companions(self, refs: Sequence[cluster.Ref]) -> tuple[cluster.Companion, ...]:
        companions = []
        for ref in refs:
            with contextlib.suppress(errors.NotFound):  # gone: it steers nothing any more
                found = await self._read(ref)
                metadata = found["metadata"]
                known = msgspec.structs.replace(ref, uid=metadata["uid"])
                labels = metadata.get("labels") or {}
                companions.append(cluster.Companion(known, metadata["resourceVersion"], labels, _annotations(found), found))
        return tuple(companions)


class _Return(msgspec.Struct, frozen=True):
    """What a resume has found: the workload, how it was paused, and where the way back stands."""

    workload: cluster.Workload
    row: kinds.Kind  # of the target
    place: kinds.Way
    target: kinds.Target
    found: record.Record


def _find_obstacle(pause: decision.Pause, kind: kinds.Kind, workload: cluster.Workload, now: Instant) -> Outcome | None:
    """Never patch what is paused, at 0 or finished: a second patch would overwrite the way back."""
    if kinds.is_paused(kind, workload):
        return Outcome(pause, Status.overtaken, now, f"{workload.ref.short} does not run any more", code=Code.AlreadyPaused)
    if kinds.is_finished(kind, workload.body):
        return Outcome(pause, Status.overtaken, now, f"{workload.ref.short} has finished")
    if found := kinds.objection(kind, workload, pause.finding.rule):
        return Outcome(pause, Status.refused, now, found[1], code=found[0])
    return None


def _annotations(found: Mapping[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def _at_version(write: workloads.Write, answer: Mapping[str, Any]) -> workloads.Write:
    """A Scale is guarded by the version that its object got from the first write."""
    if write.subresource is None:
        return write
    metadata = {**write.body["metadata"], "resourceVersion": answer["metadata"]["resourceVersion"]}
    return msgspec.structs.replace(write, body={**write.body, "metadata": metadata})


def _is_delivered(warn: decision.Warn, failures: Sequence[str]) -> bool:
    return not failures if warn.finding.rule.notice.require_all and warn.channels else len(failures) < len(warn.channels)


def _scaler_refs(workload: cluster.Workload, annotations: Mapping[str, str]) -> list[cluster.Ref]:
    """The ScaledObjects of this very object, and those that the record names."""
    found = record.read(annotations.get(names.ORIGINAL_STATE))
    recorded = workloads.companion_refs(found, workload.ref.namespace, kinds.SCALED_OBJECT.kind)
    return list({ref.name: ref for ref in (*recorded, *(each.ref for each in kinds.scalers(workload)))}.values())


def _schedule_of(workload: cluster.Workload) -> cluster.Ref | None:
    """The CronJob above a Job, as the eyes put it at the end of the chain."""
    above = workload.chain[-1] if workload.chain else None
    if above is None or above.uid == workload.ref.uid or (above.group, above.kind) != kinds.CRON_JOB.key:
        return None
    return cluster.Ref(above.group, above.version, above.kind, workload.ref.namespace, above.name, above.uid)


def _alone(job: cluster.Workload, ref: cluster.Ref, found: Mapping[str, Any]) -> cluster.Workload:
    """The CronJob of a Job as a workload of its own, without anything that steers it."""
    said = _annotations(found)
    return msgspec.structs.replace(
        job, ref=ref, resource_version=found["metadata"]["resourceVersion"], annotations=said, body=found, chain=(), chain_bodies=(),
        marks_ref=ref, marks=said, hpas=(), scaled_objects=(), kueue=(), budgets=(),
    )


def _target_of(place: kinds.Way, workload: cluster.Workload) -> kinds.Target:
    """Where the record stands."""
    if place is kinds.Way.kueue and workload.kueue:
        held = next((each for each in workload.kueue if names.ORIGINAL_STATE in each.annotations), workload.kueue[0])
        return kinds.Target(held.ref, held.resource_version, held.annotations, kinds.view(held.body, held.annotations))
    return kinds.Target(workload.ref, workload.resource_version, workload.annotations, kinds.view(workload.body, workload.annotations))


def _find_record(kind: kinds.Kind, target: kinds.Target, replicas: int | None) -> record.Record | None:
    found = None if workloads.is_stale(target.annotations) else record.read(target.annotations.get(names.ORIGINAL_STATE))
    if replicas is None or kind.replica_path is None:
        return found
    known = found or record.Record(1, {})
    return msgspec.structs.replace(known, fields=known.fields | {kind.replica_path: replicas})


def _is_down(place: kinds.Way, kind: kinds.Kind, workload: cluster.Workload) -> bool:
    """Does it still stand at its pause value? Under KEDA the target at 0 counts too: we may have been interrupted half-way."""
    own = kind.holds(kinds.view(workload.body, workload.annotations))
    if place is kinds.Way.keda:
        return own or any(kinds.SCALED_OBJECT.holds(kinds.view(each.body, each.annotations)) for each in workload.scaled_objects)
    if place is kinds.Way.kueue:
        return kinds.KUEUE_WORKLOAD.holds(_target_of(place, workload).body)
    return own


def _tell_return(resume: decision.Resume, back: _Return, answer: Mapping[str, Any], *, is_dry: bool) -> str:
    workload = back.workload
    place = f"{workload.ref.kind} {workload.ref.namespace}/{workload.ref.name}"
    sentences = [f"Would resume {place}." if is_dry else f"Resumed {place} by {resume.by}."]
    if back.place is kinds.Way.kueue and not kinds.has_condition(answer, "Admitted", "True"):
        sentences.append("Queued: it starts when Kueue has quota for it.")
    if back.place is kinds.Way.keda and any(not pointers.read(each.body, "/spec/minReplicaCount") for each in workload.scaled_objects):
        sentences.append("KEDA may scale it to 0 again at its next poll while no trigger is active.")
    if workload.hpas and back.row.replica_path:
        sentences.append("Its HPA wakes within 45 s.")
    return " ".join(sentences)
