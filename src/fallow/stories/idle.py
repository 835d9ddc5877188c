"""The story of idle workloads: look, plan, act, account, tell.

In: the eyes, the hands, the books, a Turn of the loop. Out: a Cycle: what was seen, decided, and became of it.
A failed cycle changes nothing, and is counted and told. What the brain wants to be told again is kept here between
cycles; memory that matters is on the objects and the Lease, so that a kill between any two steps loses nothing: what is
about to be paused is written down before, and what was not paused is taken out again after.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fallow import names, settings, tracing
from fallow.account import audit, chronicle, tally
from fallow.act import execute, sending
from fallow.act import hands as doing
from fallow.act.workloads import bodies
from fallow.clients import errors
from fallow.clients.kubernetes import lease
from fallow.decide.idle import plan as brain
from fallow.model import cluster, decision, kinds, long_memory, marks
from fallow.model.policies import idle
from fallow.model.units import Instant
from fallow.observe.cluster import snapshot
from fallow.stories.turn import Turn, stumbling

log = logging.getLogger("fallow")

Said = Mapping[str, str]  # the annotations of the Lease
Note = Callable[[lease.MakeChanges], Awaitable[None]]  # writes there; a successor finds it


class Look(msgspec.Struct, frozen=True):
    """One look without any act, for those who only ask."""

    snapshot: cluster.Snapshot
    plan: decision.Plan
    options: settings.Settings
    failure: str = ""

    def __repr__(self) -> str:
        """Short, for Python writes out what `asyncio.run` returned when it takes its signal handler back: with all that
        stands in here, that took most of the time of a command."""
        return f"Look({len(self.snapshot.workloads)} workloads)"

    @property
    def paused(self) -> list[cluster.Workload]:
        """By us, and still standing."""
        return [workload for workload in self.snapshot.workloads if marks.paused_at(workload) is not None]

    def explain(self, index: int) -> tuple[decision.Finding, list[decision.GpuFinding]]:
        return self.plan.findings[index], self.plan.findings.evidence(index)

    def writes_of(self, finding: decision.Finding) -> tuple[sending.Write, ...]:
        """What a pause would send, for people who want to know before; nothing where there is none to come."""
        kind = kinds.of(finding.workload)
        if kind is None or finding.verdict is not decision.Verdict.idle:
            return ()
        pods = [self.snapshot.pods[index] for index in finding.workload.pods]
        pause = decision.Pause(finding, finding.because)
        with contextlib.suppress(bodies.CannotWrite):
            return bodies.pause_writes(finding.workload, kind, pause, self.plan.at, pods=pods)
        return ()

    def patch_of(self, finding: decision.Finding) -> dict[str, Any] | None:
        """The same by object; None: nothing."""
        return {str(write.ref): write.body for write in self.writes_of(finding)} or None


def find_written(seen: cluster.Snapshot, there: Iterable[cluster.Workload]) -> cluster.Snapshot:
    """The same with what stands on its workloads now (`there`), whoever wrote it since; the very same where that is
    nothing new. What was measured is of then, and so are the pods that it was measured of."""
    now, found = {each.ref.uid: each for each in there}, list(seen.workloads)
    for index, before in enumerate(seen.workloads):
        after = now.get(before.ref.uid, before)
        if (after.annotations, after.marks) != (before.annotations, before.marks):
            found[index] = msgspec.structs.replace(after, pods=before.pods, strays=before.strays)
    is_same = all(after is before for after, before in zip(found, seen.workloads, strict=True))
    return seen if is_same else msgspec.structs.replace(seen, workloads=tuple(found), version=None)


def judge_anew(plan: decision.Plan, seen: cluster.Snapshot, mandate: idle.Mandate) -> decision.Plan:
    """What the plan of a cycle would be by what was written since, for those who ask: nothing is done or remembered of
    it. The cycle has counted itself; it does not count twice."""
    confirmed = {uid: count - 1 for uid, count in plan.memory.confirmed.items()}
    with stumbling():
        return brain.make_plan(seen, mandate, msgspec.structs.replace(plan.memory, confirmed=confirmed), plan.at)


class IdleStory:
    """One cluster, one source of measurements, one pair of hands. `note`: writes on the Lease; None: there is none.
    `kept`: where what happened is kept."""

    def __init__(
        self, *, options: settings.Settings, eyes: snapshot.Eyes, hands: doing.Hands, books: tally.Books,
        note: Note | None, kept: audit.Audit | None = None, traces: tracing.Traces | None = None,
    ) -> None:
        self._traces = traces or tracing.Traces()
        self._options, self._mandate = options, options.mandate
        self._eyes, self._hands, self._books, self._note = eyes, hands, books, note
        self._memory, self._cache = decision.Memory(), brain.Cache()
        self._audit, self._chronicle = kept, chronicle.Chronicle()
        self._gate = execute.FreezeGate()
        self._missing: frozenset[cluster.Missing] = frozenset()  # as last told
        self._odd: Mapping[cluster.Ref, str] = {}  # as last told
        self._widened: Mapping[str, float] = {}  # as last told

    async def tick(self, turn: Turn) -> decision.Cycle:
        """One cycle. Raises what the outside does to a look; whatever happens to an act is an Outcome."""
        with self._traces.span(tracing.CYCLE):
            return await self._tick(turn)

    async def _tick(self, turn: Turn) -> decision.Cycle:
        # 1. Look: what is true at this instant, what is in flight, what is not seen; then closer at what looks idle.
        with self._traces.span(tracing.LOOK):
            seen = await self._look(turn)
        # 2. Plan: a finding for every workload; the noes too.
        with self._traces.span(tracing.PLAN), stumbling():
            plan = brain.make_plan(seen, self._mandate, self._memory, turn.now, self._cache)
        # 3. Act: each decision alone, looked at once more just before; a dry run goes the same way and changes nothing.
        with self._traces.span(tracing.ACT, decisions=len(plan.decisions)):
            outcomes, unwritten = await self._act(turn, seen, plan)
        cycle = decision.Cycle(plan, seen, outcomes, self._failure_of(seen) or unwritten, turn.took)
        # 4. and 5. Account and tell.
        self._enter(cycle, turn)
        if self._audit is not None:
            await self._audit.flush(turn.now)
        return cycle

    async def look(self, turn: Turn) -> Look:
        """The first two steps, for those who only ask: nothing is remembered of it."""
        seen = await self._look(turn)
        with stumbling():
            plan = brain.make_plan(seen, self._mandate, decision.Memory(), turn.now, self._cache)
        return Look(seen, plan, self._options, self._failure_of(seen))

    def fail(self, because: str, turn: Turn) -> decision.Cycle:
        """A cycle in which nothing could be decided."""
        cycle = decision.Cycle(None, None, (), because, turn.took)
        self._enter(cycle, turn)
        return cycle

    async def _look(self, turn: Turn) -> cluster.Snapshot:
        with stumbling():
            in_force = brain.rules_in_force(self._mandate, self._eyes.policies)
        # 1a. What everything needs: the objects, and the measurements over the windows of the rules.
        seen = await turn.in_time(self._eyes.take_snapshot(in_force, turn.now))
        # 1b. Closer, at what looks idle: since when exactly.
        with stumbling():
            candidates = brain.candidate_rows(seen, self._mandate, turn.now, self._cache)
        return await turn.in_time(self._eyes.look_back(seen, candidates, turn.now))

    async def _act(
        self, turn: Turn, seen: cluster.Snapshot, plan: decision.Plan
    ) -> tuple[tuple[decision.Outcome, ...], str]:
        """What became of it, and why our memory could not be written down before: then nothing was told or paused."""
        expected = brain.expect(plan) if self._mandate.acting else plan.memory.long
        unwritten = await self._write_down(lambda said: {
            **_remembered(expected, said, turn.now), **_frozen(plan, said, turn.now), **self._new_kinds(plan, said)
        })
        # By the Lease as it was last read, which is seconds ago while we lead.
        self._gate.why_shut = lambda: unwritten or _why_frozen(self._eyes.lease_annotations(), turn.clock())

        async def look_again(pauses: Sequence[decision.Pause]) -> Mapping[str, execute.SecondLook]:
            return await self._look_again(turn, pauses)

        outcomes = tuple(await execute.carry_out(
            plan.decisions, self._hands, look_again, turn.now, turn.may_act, turn.clock, self._gate
        ))
        self._memory = brain.remember(plan, outcomes)
        if late := await self._write_down(lambda said: _remembered(self._memory.long, said, turn.now)):
            log.warning("%s; it says more than was done until the next cycle", late)
        if self._options.loop.daemon and turn.may_act():
            await self._hands.reports.write(seen, plan, turn.now)
        noticed = [plan.findings[index] for index in sorted(plan.noticed)]
        self._hands.tell_afterwards(seen.workloads, noticed, turn.now)
        return outcomes, unwritten

    def answer(self, said: Said, now: Instant) -> lease.Changes:
        """To whoever froze or unfroze us, with the next renewal of the Lease: from now on no pause begins, or may.
        A freeze that is over by our clock holds nothing back: that is not confirmed."""
        asked = said.get(names.FROZEN_UNTIL)
        if asked == said.get(names.FROZEN_SEEN) or self._gate.in_flight:
            return {}
        return {names.FROZEN_SEEN: asked} if asked is None or _why_frozen(said, now) else {}

    async def _write_down(self, make: lease.MakeChanges) -> str:
        """On the Lease, where a successor and people find it; why not, if that failed."""
        if self._note is None:
            return ""
        try:
            await self._note(make)
        except errors.ClientError as problem:
            return f"our memory could not be written on the Lease: {problem}"
        return ""

    def _new_kinds(self, plan: decision.Plan, said: Said) -> dict[str, str]:
        """Before their first pause: what is paused must be found again when none of its pods lives."""
        pauses = (each for each in plan.decisions if isinstance(each, decision.Pause) and self._mandate.acting)
        refs = [each.finding.workload.ref for each in pauses]
        outside = [(ref.group, ref.version, ref.kind) for ref in refs if kinds.find(ref.group, ref.kind) is None]
        return long_memory.add_kinds(said, outside)

    async def _look_again(self, turn: Turn, pauses: Sequence[decision.Pause]) -> Mapping[str, execute.SecondLook]:
        """The second look: read again, measure again, judge again by the same brain."""
        now = turn.clock()
        workloads = [pause.finding.workload for pause in pauses]
        rules = {pause.finding.rule.name: pause.finding.rule for pause in pauses}
        fresh = await turn.in_time(self._eyes.look_again(workloads, tuple(rules.values()), now))
        gone = {missing.what: missing.because for missing in fresh.missing}
        indices = {workload.ref.uid: index for index, workload in enumerate(fresh.workloads)}
        meant = {indices[ref.uid]: pause for pause in pauses if (ref := pause.finding.workload.ref).uid in indices}
        judged, looks = brain.judge_again(fresh, meant, self._mandate, now), {}
        for ref in (workload.ref for workload in workloads):
            looks[ref.uid] = execute.SecondLook(None, None, gone.get(str(ref), "it is gone"))
        for index, (finding, because) in judged.items():
            workload = fresh.workloads[index]
            pods = tuple(fresh.pods[pod] for pod in workload.pods)
            space = fresh.namespaces.known.get(workload.ref.namespace)
            looks[workload.ref.uid] = execute.SecondLook(workload, finding, because, pods, space)
        return looks

    def _failure_of(self, seen: cluster.Snapshot) -> str:
        """A daemon that has not measured for long enough yet is well: that passes. Who looks once could not decide."""
        trouble = seen.evidence.trouble
        if trouble is None or (trouble.reason == decision.Reason.WarmingUp and self._options.loop.daemon):
            return ""
        return trouble.because

    def _enter(self, cycle: decision.Cycle, turn: Turn) -> None:
        # 4. Account: the numbers of this cycle.
        self._books.enter(cycle, turn.now)
        if self._audit is not None:
            chapter = self._chronicle.add(cycle, turn.now)
            self._books.enter_regrets(chapter.entries)
            self._audit.put(chapter)
        # 5. Tell: a line per act, a sentence about the cycle, and what could not be seen.
        tell(cycle)
        if cycle.snapshot is not None:
            lost = cycle.snapshot.evidence.lost_signals
            unasked = (cluster.Missing(f"signal {each.signal}", each.because) for each in lost)
            self._tell_missing((*cycle.snapshot.missing, *unasked))
        if cycle.plan is not None:
            self._tell_odd(cycle.plan.odd)
            self._tell_widened({week.rule: week.widened for week in cycle.plan.memory.long.weeks})

    def _tell_missing(self, missing: Sequence[cluster.Missing]) -> None:
        """Once, not in every cycle: what may not be seen today may mostly not be seen tomorrow."""
        for one in missing:
            if one not in self._missing:
                log.warning("not seen: %s: %s", one.what, one.because)
        self._missing = frozenset(missing)

    def _tell_widened(self, widened: Mapping[str, float]) -> None:
        for rule, by in widened.items():
            if by != self._widened.get(rule, 1.0):
                why = "too many of its pauses were undone at once" if by > self._widened.get(rule, 1.0) else "few were"
                log.info("policy %s waits %.4g times as long as it says: %s", rule, by, why)
        self._widened = widened

    def _tell_odd(self, odd: Mapping[cluster.Ref, str]) -> None:
        """Once: whoever made it is not going to mend it within the minute."""
        for ref, why in odd.items():
            if self._odd.get(ref) != why:
                log.warning("%s could not be considered and is unknown: %s", ref, why)
        self._odd = odd


def _remembered(memory: long_memory.LongMemory, said: Said, now: Instant) -> dict[str, str]:
    """Nothing where that stands there, whenever it was written."""
    known, lost = long_memory.read(said, now)
    is_known = not lost and msgspec.structs.replace(known, at=memory.at) == memory
    return {} if is_known else long_memory.write(memory)


def _why_frozen(said: Said, now: Instant) -> str | None:
    freeze = long_memory.read_freeze(said, now)
    return str(freeze) if freeze and freeze.holds(now) else None


def _frozen(plan: decision.Plan, said: Said, now: Instant) -> dict[str, str]:
    """A freeze of our own, unless somebody asked for a longer one meanwhile."""
    standing = long_memory.read_freeze(said, now)
    if plan.freeze is None or not plan.newly_frozen or (standing and standing.until >= plan.freeze.until):
        return {}
    return long_memory.write_freeze(plan.freeze)


def tell(cycle: decision.Cycle) -> None:
    """One line per thing done or not done, with all that an auditor asks for in its JSON form; then the cycle."""
    for outcome in cycle.outcomes:
        level = logging.ERROR if outcome.status is decision.Status.failed else logging.INFO
        log.log(level, "%s: %s", _headline(outcome), outcome.detail, extra={"fields": tally.audit_fields(outcome)})
    if cycle.plan is None:
        log.error("no decision, nothing changed: %s; %.2f s", cycle.failure, cycle.took)
    else:
        level = logging.ERROR if cycle.failure else logging.INFO
        log.log(level, "%s; %.2f s", tally.sentence(cycle.plan, cycle.outcomes, cycle.failure), cycle.took)


def _headline(outcome: decision.Outcome) -> str:
    what = type(outcome.decision).__name__.lower()
    workload = decision.workload_of(outcome.decision)
    whom = f" {workload.ref.namespace}/{workload.ref.name}" if workload else ""
    return f"would {what}{whom}" if outcome.status is decision.Status.dry_run else f"{what}{whom} {outcome.status}"
