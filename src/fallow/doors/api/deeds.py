"""What somebody outside may have done here, by whichever door: through fallow/verbs.py, shown on live pages, audited.

In: who (by name and door), a workload as people call it. Out: an Outcome that is done, or Denied.
What a follower is asked goes to who leads (leader.py). Where that cannot be asked, any replica keeps, resumes and
freezes by itself: marks are guarded by UID and version of the object, a freeze is written on the Lease, and the leader
reads both and writes them down.
Invariant: whatever was done is written down with who, when, why, what it was before and what it is now. Where it cannot
be written down, nothing is done that takes GPUs away.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from fallow import names, verbs
from fallow.account import audit
from fallow.act import hands as doing
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.doors.answers import deeds as answers
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as workload_answers
from fallow.doors.api import events
from fallow.doors.api.refusals import Denied
from fallow.model import cluster, decision, units
from fallow.model import marks as reading
from fallow.model.decision import Outcome, Status
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.model.policies import idle
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import mirror
from fallow.stories.turn import Clock

T = TypeVar("T")
MakeLease: TypeAlias = Callable[[str], verbs.OnLease]  # in whose name
AmendRow: TypeAlias = Callable[[cluster.Ref, telling.Amendment], Any]  # None: not known

_DRY = "it runs in dry-run here: nothing was written, and nothing is going to be paused"
_DRY_ALERT = "it runs in dry-run here: nothing was written; with your own rights: fallow cost budget ack {} {}"
_DECLINED = {
    verbs.Why.malformed: (400, "BadRequest"), verbs.Why.too_long: (400, "AckTooLong"),
    verbs.Why.unknown: (404, "NotFound"), verbs.Why.unclear: (409, "Unclear"), verbs.Why.held: (409, "Held"),
    verbs.Why.changed: (409, "Changed"),
}


class Doer(msgspec.Struct, frozen=True):
    """Who does it, as it stands in marks, and by which door they came."""

    by: str
    came_by: CameBy = CameBy.api


class Deeds:
    """`api`: for budgets; `on_lease`: the daemon's Lease, in somebody's name; `changes`: for live pages; `amend`: how
    their row of a workload changes by what was done; what the row is then, where it is known."""

    def __init__(
        self, *, api: kube.Api, seen: mirror.Mirror, hands: doing.Hands, mandate: idle.Mandate, kept: audit.Audit,
        changes: events.Changes, on_lease: MakeLease, clock: Clock, amend: AmendRow = lambda ref, change: None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._api, self._leads = api, leads
        self.mandate, self.clock = mandate, clock
        self._seen, self._hands, self._kept = seen, hands, kept
        self._changes, self._on_lease, self._amend = changes, on_lease, amend

    def reach(self, doer: Doer, namespace: str) -> verbs.Reach:
        return verbs.Reach(self._seen, self._hands, namespace, doer.by, self.mandate)

    async def find(self, reach: verbs.Reach, target: str) -> cluster.Workload:
        return await _carry(verbs.find(reach, target, self.clock()))

    async def keep(
        self, doer: Doer, workload: cluster.Workload, until: Instant | None, reason: str
    ) -> answers.KeepWritten:
        reach, now = self.reach(doer, workload.ref.namespace), self.clock()
        done = _settle(await _carry(verbs.keep(reach, _name(workload), until, reason, now)))
        keep = answers.kept(done.after or {})
        self._tell_ack(workload.ref, keep)
        detail = f"before: {_describe_acks(workload, now)}; now: kept until {keep.until}"
        await self._enter(doer, Happened.kept, f"kept until {keep.until}" + (f": {reason}" if reason else ""),
                          now, ref=workload.ref, reason=reason, detail=detail)
        return keep

    async def release(self, doer: Doer, workload: cluster.Workload) -> None:
        await self._demand_audit()
        reach, now = self.reach(doer, workload.ref.namespace), self.clock()
        for outcome in await _carry(verbs.release(reach, _name(workload), now)):
            _settle([outcome])
        self._tell_ack(workload.ref, None)
        detail = f"before: {_describe_acks(workload, now)}; now: not kept"
        await self._enter(doer, Happened.released, f"{doer.by} no longer keeps it", now, ref=workload.ref,
                          detail=detail)

    async def pause(self, doer: Doer, workload: cluster.Workload, reason: str, *, force: bool) -> Outcome:
        await self._demand_audit()
        reach, now = self.reach(doer, workload.ref.namespace), self.clock()
        asked = verbs.pause(reach, _name(workload), reason, now, force=force)
        return await self._finish(doer, Happened.paused, _settle(await _carry(asked)), workload, reason)

    async def resume(self, doer: Doer, workload: cluster.Workload) -> Outcome:
        reach, now = self.reach(doer, workload.ref.namespace), self.clock()
        done = _settle(await _carry(verbs.resume(reach, _name(workload), now)))
        return await self._finish(doer, Happened.resumed, done, workload, "")

    async def freeze(self, doer: Doer, seconds: Seconds, reason: str) -> answers.FreezeStanding:
        on, now = self._on_lease(doer.by), self.clock()
        answer = await _carry(verbs.freeze(on, seconds, reason, now))
        return await self._told_freeze(doer, on, answer, Happened.frozen, reason)

    async def unfreeze(self, doer: Doer) -> answers.FreezeStanding:
        await self._demand_audit()
        on = self._on_lease(doer.by)
        return await self._told_freeze(doer, on, await _carry(verbs.unfreeze(on)), Happened.unfrozen, "")

    async def see_alert(self, doer: Doer, budget: str, alert: str) -> answers.AlertSeen:
        """It only marks: nothing that a budget does waits for it."""
        if self._hands.writer.is_dry:
            raise Denied(409, "DryRun", _DRY_ALERT.format(budget, alert))
        is_new = await _carry(verbs.acknowledge_alert(self._api, budget, alert))
        if is_new:
            sentence = f"alert {alert} of budget {budget} was seen"
            await self._enter(doer, Happened.alert_seen, sentence, self.clock(), detail="now: seen in this period")
        return answers.AlertSeen(budget=budget, alert=alert, was_seen=not is_new)

    async def note_refusal(self, doer: Doer, refused: Denied, ref: cluster.Ref | None = None) -> None:
        sentence = f"refused: {refused.detail}"
        await self._enter(doer, Happened.refused, sentence, self.clock(), ref=ref, code=refused.code)

    async def _finish(
        self, doer: Doer, type_of: Happened, done: Outcome, workload: cluster.Workload, reason: str
    ) -> Outcome:
        changes: dict[Happened, telling.Amendment] = {
            Happened.paused: functools.partial(telling.as_paused, at=done.at, by=doer.by, reason=reason),
            Happened.resumed: telling.as_resumed,
        }
        self._changes.publish(self._row_event(workload.ref, changes[type_of]))
        gpus = done.decision.finding.gpus if isinstance(done.decision, decision.Pause) else None
        await self._enter(
            doer, type_of, done.because, done.at, ref=workload.ref, reason=reason, gpus=gpus,
            detail=f"before: {_tell(done.before)}; now: {_tell(done.after)}",
        )
        return done

    async def _told_freeze(
        self, doer: Doer, on: verbs.OnLease, answer: verbs.FreezeAnswer, type_of: Happened, reason: str
    ) -> answers.FreezeStanding:
        standing = answers.freeze(on.lease.annotations, self.clock(), str(answer.heard))
        news = {"until": standing.until, "because": standing.reason or "", "by": doer.by}
        self._changes.publish([("freeze", {"frozen": news if standing.frozen else None})])
        until = f"until {answer.until}" if answer.until else "no longer"
        await self._enter(doer, type_of, f"frozen {until}", self.clock(), reason=reason,
                          detail=f"now: frozen {until}, {answer.heard} by {answer.holder or 'nobody'}")
        return standing

    def _tell_ack(self, ref: cluster.Ref, keep: answers.KeepWritten | None) -> None:
        news = answers.AckChanged(workload=workload_answers.reference(ref), keep=keep)
        change: telling.Amendment = telling.as_released
        if keep is not None:
            shown = telling.KeepTold(
                until=keep.until, by=keep.by, reason=keep.reason, at=keep.at, idle_seconds=0, cost=None
            )
            change = functools.partial(telling.as_kept, keep=shown)
        self._changes.publish([*self._row_event(ref, change), ("ack", news)])

    def _row_event(self, ref: cluster.Ref, change: telling.Amendment) -> list[events.Event]:
        row = self._amend(ref, change)
        return [] if row is None else [("workload", row)]

    async def _demand_audit(self) -> None:
        """Before anything that may take GPUs away."""
        if not self._leads():
            because = "the replica that leads would write down who did it, and cannot be asked now: nothing was done"
            raise Denied(503, "NotLeading", because, retry_after=5)
        await self._kept.flush(self.clock())
        if self._kept.trouble:
            because = f"it could not be written down who did it ({self._kept.trouble}): nothing was done"
            raise Denied(503, "AuditUnavailable", because)

    async def _enter(
        self, doer: Doer, type_of: Happened, sentence: str, at: Instant, *, ref: cluster.Ref | None = None,
        gpus: int | None = None, detail: str = "", reason: str = "", code: str = "",
    ) -> None:
        """Whole seconds, as in the marks: what the next cycle reads from those is the same entry, and stands once."""
        whole = at if type_of is Happened.refused else units.parse_instant(units.rfc3339(at))
        await self._kept.enter(AuditEntry(
            at=whole, type=type_of, sentence=sentence, actor=doer.by, source=doer.came_by, ref=ref, gpus=gpus,
            detail=detail, reason=reason, code=code,
        ))


async def _carry(asked: Awaitable[T]) -> T:
    """What is declined, or goes wrong outside, as what it means for who asked."""
    try:
        return await asked
    except verbs.Declined as problem:
        status, code = _DECLINED[problem.why]
        raise Denied(status, code, str(problem)) from None
    except errors.Conflict as problem:
        raise Denied(409, "Changed", f"it changed at this very moment; look again: {problem}") from None
    except errors.Rejected as problem:
        raise Denied(502, "ClusterRefused", f"the API server did not take it: {problem}") from None
    except errors.ClientError as problem:
        raise Denied(503, "ClusterUnavailable", f"the cluster could not be asked: {problem}") from None


def _settle(outcomes: Sequence[Outcome]) -> Outcome:
    """The one outcome, if it is now as was asked."""
    (outcome,) = outcomes
    match outcome.status:
        case Status.done:
            return outcome
        case Status.dry_run:
            raise Denied(409, "DryRun", _DRY)
        case Status.failed:
            raise Denied(502, str(outcome.code or "Failed"), outcome.because)
        case status:
            raise Denied(409, str(outcome.code or status.capitalize()), outcome.because)


def _name(workload: cluster.Workload) -> str:
    """So that nothing else can be meant."""
    ref = workload.ref
    return f"{ref.kind}.{ref.group}/{ref.name}" if ref.group else f"{ref.kind}/{ref.name}"


class StandingAck(msgspec.Struct, frozen=True):
    """An acknowledgement as it is written on one object of a workload; no end: one that cannot be read."""

    until: Instant | None
    by: str


def standing_acks(workload: cluster.Workload, now: Instant) -> list[StandingAck]:
    """Those that are not over."""
    found = []
    for said in (workload.annotations, workload.marks):
        ends = units.read_instant(reading.ack_until(said))
        if reading.ack_until(said) is not None and (ends is None or ends > now):
            found.append(StandingAck(ends, said.get(names.ACK_BY) or said.get(names.ACK_BY_ALIAS) or ""))
    return found


def _describe_acks(workload: cluster.Workload, now: Instant) -> str:
    standing = standing_acks(workload, now)
    found = {f"kept until {units.rfc3339(each.until or now)} by {each.by or 'somebody'}" for each in standing}
    return ", ".join(sorted(found)) or "not kept"


def _tell(state: object) -> str:
    return "not known" if state is None else msgspec.json.encode(state).decode()
