"""All that changes anything in the cluster for the sake of idle workloads: do it, then tell it on the object.

In: a decision and, for a pause, the workload as it was just read. Out: an Outcome, or one of the clients' errors for
act/execute.py to judge. A dry run sends the patches of pauses and resumes with dryRun=All (scope client: not at all)
and writes no mark, Event or notice.
Invariant: an Event follows what it tells of; nothing but Events is ever created, and nothing is deleted.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from fallow import names, tracing
from fallow.act import events, hooks, marking, reports, sending
from fallow.act.notices import afterwards, courier, delivery, senders
from fallow.act.workloads import dropping, pausing, resuming, undoing
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, decision, kinds, marks
from fallow.model.decision import Delivery, Outcome, Status
from fallow.model.seen import sure
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

KEDA_TURN = 0.25  # its first write was seen 65 ms after it got its ScaledObject back


class Hands:
    """One pair of hands on one cluster: what writes, what tells, and how."""

    def __init__(
        self, api: kubernetes.Api, lookup: sending.Lookup, *, reporting_instance: str, compat_annotations: bool = True,
        dry_run: sending.DryRun = None, own_pod: cluster.Ref | None = None, suspend_schedules: bool = False,
        keda_turn: Seconds = KEDA_TURN, wires: senders.Senders | None = None, address: delivery.Address | None = None,
        traces: tracing.Traces | None = None, note: Callable[[Delivery], None] = lambda each: None,
    ) -> None:
        """`suspend_schedules`: with a Job its CronJob is suspended too (letter `c`). `keda_turn`: how long KEDA is
        given, after it got its ScaledObject back, before we look at what it made of it. `wires`, `address`: by which
        and as whom owners are told; `note`: is handed what became of messages that no Outcome waits for."""
        self._traces = traces or tracing.Traces()
        self.writer = sending.PatchWriter(api, lookup, dry_run)
        self.announcer = events.Announcer(api, reporting_instance=reporting_instance)
        self.reports = reports.PolicyReports(api, lookup)
        address, out = address or delivery.Address(), courier.Courier(self.announcer, wires)
        self.messenger = delivery.Messenger(self.writer, self.announcer, out, address, compat=compat_annotations)
        self.afterwards = afterwards.Afterwards(out, address, note)
        self._hooks = hooks.Hooks()
        self._compat = compat_annotations
        self._own_pod = own_pod
        self._suspend_schedules = suspend_schedules
        self._keda_turn = keda_turn

    async def pause(
        self, pause: decision.Pause, workload: cluster.Workload, pods: Sequence[cluster.Pod], now: Instant, *,
        by: str = names.FIELD_MANAGER, may_act: Callable[[], bool] = lambda: True,
        namespace: cluster.Namespace | None = None,
    ) -> Outcome:
        """`namespace`: as it was when its consent was looked at; None: whatever it says, it is paused."""
        kind = kinds.of(workload)
        name = tracing.PAUSES.get(kind.letter if kind else "", tracing.PAUSE)
        with self._traces.span(name, kind=workload.ref.kind, workload=f"{workload.ref.namespace}/{workload.ref.name}"):
            outcome = await pausing.pause(
                self.writer, self._hooks, pause, workload, pods, now, by=by, may_act=may_act,
                with_schedule=self._suspend_schedules, namespace=namespace,
            )
        await self._forget_notice(outcome, workload)
        await self._tell(outcome, workload.ref, kind.event if kind else None, now, next(iter(pods), None))
        if outcome.status is Status.done:
            self.afterwards.owe(pause.finding, outcome.because, now)
        return outcome

    async def resume(
        self, resume: decision.Resume, now: Instant, *, replicas: int | None = None, is_forced: bool = False
    ) -> Outcome:
        """`replicas`: where the record is lost; with `is_forced` also against one that is intact."""
        size = None if replicas is None else resuming.Size(replicas, is_forced)
        outcome = await resuming.resume(self.writer, resume, now, size, turn=self._keda_turn)
        await self._forget_notice(outcome, resume.workload)
        await self._tell(outcome, resume.workload.ref, names.Event.RESUMED, now)
        if outcome.status is Status.refused and not self.writer.is_dry:  # who asked by annotation reads it here only
            note = f"Not resumed: {outcome.detail}"
            await self.announcer.announce(resume.workload.ref, names.Event.RESUME_FAILED, note, now)
        return outcome

    async def undo(self, undo: decision.Undo, now: Instant) -> Outcome:
        outcome = await undoing.undo(self.writer, undo, now)
        await self._tell(outcome, undo.workload.ref, names.Event.PAUSE_FAILED, now)
        return outcome

    async def warn(
        self, warns: Sequence[decision.Warn], now: Instant, clock: Callable[[], Instant], may: Callable[[], bool]
    ) -> list[Outcome]:
        return await self.messenger.warn(warns, now, clock, may)

    def tell_afterwards(
        self, workloads: Iterable[cluster.Workload], noticed: Iterable[decision.Finding], now: Instant
    ) -> None:
        """The acts of a cycle are over. `workloads`: as they were before; `noticed`: those with a notice."""
        if not self.writer.is_dry:
            resting = (each.ref.uid for each in workloads if marks.paused_at(each) is not None)
            self.afterwards.begin(now, resting, noticed)

    async def mark(self, mark: decision.Mark, now: Instant) -> Outcome:
        if self.writer.is_dry:
            return Outcome(mark, Status.dry_run, now, mark.because)
        is_last = mark.changes.get(names.ORIGINAL_STATE, "") is None  # the record goes, and with it the way back
        if is_last and (kept := await dropping.prepare(self.writer, mark, now)):
            return kept
        changes = marking.with_aliases(mark.changes, self._compat)
        await self.writer.send(sending.annotate(mark.on, changes, resource_version=mark.resource_version))
        outcome = Outcome(mark, Status.done, now, mark.because, after=changes)
        await self._tell(outcome, mark.workload.ref, mark.event, now)
        return outcome

    async def alert(self, alert: decision.Alert, now: Instant) -> Outcome:
        """Only an Event; about ourselves it goes on our own pod, if we run in one."""
        ref = alert.workload.ref if alert.workload else self._own_pod
        if ref is not None and not self.writer.is_dry:
            await self.announcer.announce_once(ref, alert.event, alert.because, now, alert.episode)
        return Outcome(alert, self.writer.done, now, alert.because)

    async def _forget_notice(self, outcome: Outcome, workload: cluster.Workload) -> None:
        """Of a job under Kueue: its Workload carries the pause, while the notice may stand on the job itself."""
        pending = [key for key in names.PENDING_KEYS if key in workload.annotations]
        if outcome.status is not Status.done or not sure(workload.kueue) or not pending:
            return
        try:
            await self.writer.send(sending.annotate(workload.ref, dict.fromkeys(pending)))
        except errors.ClientError as problem:  # it is void all the same: idleness is measured anew
            log.warning("the notice is still on %s: %s", workload.ref, problem)

    async def _tell(
        self, outcome: Outcome, ref: cluster.Ref, event: str | None, now: Instant, related: cluster.Pod | None = None
    ) -> None:
        """What was done, and nothing else."""
        if outcome.status is Status.done and event:
            with self._traces.span(tracing.EVENT, reason=event):
                await self.announcer.announce(ref, event, outcome.because, now, related)
