"""What one cycle is worth remembering: entries for what was done and refused, for what people did meanwhile.

In: cycles, one after the other. Out: Entries, Turns of conditions, Levels, what was held idle. What people did (an
ack, a resume by command) is read from the marks it left, so that it is known whichever way it went.
Invariant: nothing is told twice: what stands already when we first look was told by whoever was here then, and what we
did ourselves is told by the whole second, as the mark says it that it leaves.
"""

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from fallow import names
from fallow.account import idle_hours, node_hours
from fallow.model import bills, cluster, decision, history, marks, price_book, shares, units
from fallow.model.decision import Outcome, Status
from fallow.model.history import AuditEntry, CameBy, Condition, Happened, HeldIdle, Levels, Turned
from fallow.model.units import Instant
from fallow.model.usage import Floats, Indices

_BUSY, _IDLE, _UNKNOWN, _PAUSED = range(4)
_CONDITIONS = (Condition.busy, Condition.idle, Condition.unknown, Condition.paused)
_FAILED = {Status.failed: Happened.failed, Status.refused: Happened.refused}
_TEXT = 256  # characters of what people and servers say


class Chapter(msgspec.Struct, frozen=True):
    """What one cycle adds."""

    entries: tuple[AuditEntry, ...] = ()
    turns: tuple[Turned, ...] = ()
    levels: Levels | None = None
    held: tuple[HeldIdle, ...] = ()


class Chronicle:
    def __init__(self, book: price_book.ModelPrices = price_book.LIST) -> None:
        self._book, self._idle, self._nodes = book, idle_hours.IdleHours(), node_hours.NodeHours()
        self._failing = False
        self._is_frozen: bool | None = None  # None: nobody has looked yet, and what stands was told before us
        self._workloads: tuple[cluster.Workload, ...] | None = None
        self._conditions: Indices = np.zeros(0, np.int64)
        self._said: dict[str, tuple[str | None, str | None]] | None = None  # uid -> ack-until, resumed-at
        self._paused: dict[str, tuple[Instant, str]] = {}  # uid -> since when, by which rule, at the last look
        self._version: int | None = None  # of the snapshot that these two are of
        self._share: Floats = np.zeros(0)
        self._total: float | None = None

    def add(self, cycle: decision.Cycle, now: Instant) -> Chapter:
        acts = (entry_of(each, self._price(each)) for each in cycle.outcomes)
        entries = [*self._failures(cycle, now), *filter(None, acts)]
        plan, seen = cycle.plan, cycle.snapshot
        if plan is None or seen is None or cycle.failure:
            self._idle.forget()
            return Chapter(tuple(entries), self._nodes.forget(now))
        entries += self._freezes(plan, now)
        codes = _find_conditions(plan, seen.workloads, self._conditions if self._workloads is seen.workloads else None)
        if seen.workloads is not self._workloads:
            entries += self._news(seen.workloads, now)
        entries += [each for entry in entries if (each := self._regret(entry)) is not None]
        if seen.workloads is not self._workloads:
            paused = ((each, marks.paused_at(each)) for each in seen.workloads)
            self._paused = {each.ref.uid: (at, _rule_of(each)) for each, at in paused if at and _is_ours(each)}
        turns = (*self._turns(seen.workloads, codes, now), *self._nodes.enter(seen, now))
        self._measure(seen)
        self._workloads, self._conditions = seen.workloads, codes
        self._idle.enter(plan, seen, self._share)
        return Chapter(tuple(entries), turns, _count(plan, self._share, self._total), self._idle.take(now))

    def _price(self, outcome: Outcome) -> float | None:
        if not isinstance(outcome.decision, decision.Pause):
            return None
        return bills.make(outcome.decision.finding.holdings, self._book).per_hour

    def _measure(self, seen: cluster.Snapshot) -> None:
        """What of a physical GPU each GPU of a workload is, and how many there are: anew when an object changed."""
        if self._version is None or self._version != seen.version:
            held = (shares.of_workload(each, seen) for each in seen.workloads)
            self._share = np.array([one.gpus / one.instances if one.instances else 1.0 for one in held], np.float64)
            self._total = shares.count_cluster(seen)
            self._version = seen.version

    def _regret(self, entry: AuditEntry) -> AuditEntry | None:
        """Of what came back too soon. Its own marks no longer say when it was paused."""
        if entry.type not in (Happened.resumed, Happened.brought_back) or entry.ref is None:
            return None
        began, rule = self._paused.get(entry.ref.uid, (-math.inf, ""))
        if entry.at - began > history.REGRET_WITHIN:
            return None
        sentence = f"{entry.sentence.removesuffix('.')}, {units.spoken(entry.at - began)} after its pause"
        return msgspec.structs.replace(entry, type=Happened.regretted, sentence=sentence, policy=rule)

    def _failures(self, cycle: decision.Cycle, now: Instant) -> Iterator[AuditEntry]:
        """The first of several in a row."""
        if cycle.failure and not self._failing:
            yield AuditEntry(
                at=now, type=Happened.no_decision, sentence=f"{cycle.failure}; nothing was sent or paused",
                actor=names.FIELD_MANAGER, source=CameBy.cycle,
            )
        self._failing = bool(cycle.failure)

    def _freezes(self, plan: decision.Plan, now: Instant) -> Iterator[AuditEntry]:
        was_frozen, self._is_frozen = self._is_frozen, plan.freeze is not None
        if plan.freeze is not None and (was_frozen is False or plan.newly_frozen):
            sentence = str(plan.freeze)
            yield AuditEntry(
                at=now, type=Happened.frozen, sentence=sentence, actor=names.FIELD_MANAGER, source=CameBy.cycle
            )
        elif plan.freeze is None and was_frozen:
            yield AuditEntry(
                at=now, type=Happened.unfrozen, sentence="notices and pauses are allowed again",
                actor=names.FIELD_MANAGER, source=CameBy.cycle,
            )

    def _news(self, workloads: Iterable[cluster.Workload], now: Instant) -> Iterator[AuditEntry]:
        """What people did since the last look, by the marks it left."""
        known, self._said = self._said, {}
        for workload in workloads:
            if not workload.marks and not workload.annotations:
                continue
            said = marks.ack_until(workload.marks) or marks.ack_until(workload.annotations), _resumed(workload)
            if said == (None, None):
                continue
            self._said[workload.ref.uid] = said
            if known is not None:
                yield from _compare(workload, known.get(workload.ref.uid, (None, None)), said, now)

    def _turns(self, workloads: tuple[cluster.Workload, ...], codes: Indices, now: Instant) -> Iterator[Turned]:
        if self._workloads is workloads:
            for index in np.flatnonzero(codes != self._conditions).tolist():
                yield Turned(workloads[index].ref.uid, now, _CONDITIONS[codes[index]])
            return
        uids = (each.ref.uid for each in self._workloads or ())
        before = dict(zip(uids, self._conditions.tolist(), strict=True))
        for workload, code in zip(workloads, codes.tolist(), strict=True):
            if before.pop(workload.ref.uid, None) != code:
                yield Turned(workload.ref.uid, now, _CONDITIONS[code])
        yield from (Turned(uid, now, None) for uid in before)


def _find_conditions(
    plan: decision.Plan, workloads: tuple[cluster.Workload, ...], before: Indices | None
) -> Indices:
    """As codes, by workload. Who is paused is found out when the objects changed, and holds no GPU."""
    held_idle, held_active = plan.held.idle > 0, plan.held.active > 0
    if before is not None:
        at_rest = before == _PAUSED
    else:
        at_rest = np.array([marks.paused_at(each) is not None for each in workloads], np.bool_)
    found = np.where(held_active, _BUSY, np.where(held_idle, _IDLE, np.where(at_rest, _PAUSED, _UNKNOWN)))
    return np.asarray(found, np.int64)


def _count(plan: decision.Plan, share: Floats, total: float | None) -> Levels:
    """In physical GPUs, so that they add up. Of the idle ones as many are kept as are in pieces."""
    busy, idle, unknown = (float(held @ share) for held in (plan.held.active, plan.held.idle, plan.held.unknown))
    kept = idle * plan.totals.kept_gpus / plan.totals.idle_gpus if plan.totals.idle_gpus else 0.0
    whole = None if total is None else max(total, busy + idle + unknown)
    free = None if whole is None else whole - busy - idle - unknown
    levels = {"total": whole, "busy": busy, "idle": idle - kept, "kept": kept, "unknown": unknown, "free": free}
    return Levels(at=plan.at, **{name: None if one is None else round(one, 3) for name, one in levels.items()})  # type: ignore[arg-type]


def _resumed(workload: cluster.Workload) -> str | None:
    """When somebody resumed it. What came back past us is told where that is found out."""
    by = max(marks.read_all(workload, names.RESUMED_BY), default="")
    return None if by.startswith(names.BY_OTHERS) else max(marks.read_all(workload, names.RESUMED_AT), default=None)


def _is_ours(workload: cluster.Workload) -> bool:
    """A pause that a person made and undoes is nobody's mistake."""
    return names.FIELD_MANAGER in marks.read_all(workload, names.PAUSED_BY)


def _rule_of(workload: cluster.Workload) -> str:
    return max(marks.read_all(workload, names.PAUSED_POLICY), default="")


def _compare(
    workload: cluster.Workload, before: tuple[str | None, str | None], after: tuple[str | None, str | None],
    now: Instant,
) -> Iterator[AuditEntry]:
    (ack_before, resumed_before), (ack, resumed) = before, after
    said = {**workload.annotations, **workload.marks}
    if ack is not None and ack != ack_before:
        by, why = said.get(names.ACK_BY) or said.get(names.ACK_BY_ALIAS) or "somebody", said.get(names.ACK_REASON, "")
        at = units.read_instant(said.get(names.ACK_AT))
        sentence = f"kept until {ack}" + (f": {why}" if why else "")
        if at is not None:
            yield _entry(workload, Happened.kept, min(at, now), sentence, by)
    if resumed is not None and resumed != resumed_before and (at := units.read_instant(resumed)) is not None:
        by = max(marks.read_all(workload, names.RESUMED_BY), default="somebody")
        yield _entry(workload, Happened.resumed, min(at, now), f"resumed by {by}", by)


def _entry(workload: cluster.Workload, type_of: Happened, at: Instant, sentence: str, by: str) -> AuditEntry:
    """By a mark, which whoever may write on the object can forge: it is said as that."""
    return AuditEntry(
        at=at, type=type_of, sentence=sentence[:_TEXT], actor=by[:_TEXT], source=CameBy.annotation, ref=workload.ref
    )


def entry_of(outcome: Outcome, per_hour: float | None = None) -> AuditEntry | None:
    """What one act is worth telling. `per_hour`: what its GPUs cost."""
    act, workload = outcome.decision, decision.workload_of(outcome.decision)
    found: decision.Finding | None = act.finding if isinstance(act, decision.Warn | decision.Pause) else None
    type_of = _type_of(outcome)
    if type_of is None:
        return None
    return AuditEntry(
        at=math.floor(outcome.at), type=type_of, sentence=outcome.because[:4 * _TEXT], source=CameBy.cycle,
        actor=str(getattr(act, "by", names.FIELD_MANAGER))[:_TEXT], ref=workload.ref if workload else None,
        gpus=found.gpus if found else None, reason=str(found.reason) if found else "",
        policy=found.rule.name if found else "", code=str(outcome.code or ""), per_hour=per_hour,
        shares=round(sum(each.gpus for each in found.holdings), 4) if found and found.holdings else None,
    )


def _type_of(outcome: Outcome) -> Happened | None:
    act, status = outcome.decision, outcome.status
    if status in _FAILED:
        return None if isinstance(act, decision.Alert | decision.Mark) else _FAILED[status]
    match act:
        case decision.Warn() if status is Status.done:
            return Happened.notified
        case decision.Pause() if status is Status.done:
            return Happened.paused
        case decision.Pause() if status is Status.dry_run:
            return Happened.would_pause
        case decision.Pause() if status is Status.overtaken and outcome.code is not decision.Code.NotBegun:
            return Happened.not_paused
        case decision.Resume() if status is Status.done:
            return Happened.resumed
        case decision.Mark() if status is Status.done:
            return _type_of_mark(act)
        case _:
            return None


def _type_of_mark(mark: decision.Mark) -> Happened | None:
    if mark.changes.get(names.FIGHT_HOLD_UNTIL):
        return Happened.left
    if names.PAUSE_REVERSALS in mark.changes:
        return Happened.brought_back
    return Happened.keep_ended if mark.event == names.Event.ACK_EXPIRED else None

