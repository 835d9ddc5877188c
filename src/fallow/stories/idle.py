"""The story of idle workloads: look, plan, act, account, tell.

In: the eyes, the hands, the books, a Turn of the loop. Out: a Cycle: what was seen, decided, and became of it.
A failed cycle changes nothing, and is counted and told. What the brain wants to be told again is kept here between
cycles; memory that matters is on the objects and the Lease, so that a kill between any two steps loses nothing.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from fallow import names, settings
from fallow.account import tally
from fallow.act import execute
from fallow.act import hands as doing
from fallow.act.workloads import bodies
from fallow.decide.idle import plan as brain
from fallow.model import cluster, decision, kinds, long_memory, marks, units
from fallow.observe.cluster import snapshot
from fallow.stories.turn import Turn

log = logging.getLogger("fallow")

Freeze = Callable[[Mapping[str, str | None]], Awaitable[None]]  # writes marks of a freeze where a successor finds them


class Look(msgspec.Struct, frozen=True):
    """One look without any act, for those who only ask."""

    snapshot: cluster.Snapshot
    plan: decision.Plan
    options: settings.Settings
    failure: str = ""

    @property
    def paused(self) -> list[cluster.Workload]:
        """By us, and still standing."""
        return [workload for workload in self.snapshot.workloads if marks.paused_at(workload) is not None]

    def explain(self, index: int) -> tuple[decision.Finding, list[decision.GpuFinding]]:
        return self.plan.findings[index], self.plan.findings.evidence(index)

    def patch_of(self, finding: decision.Finding) -> dict[str, Any] | None:
        """What a pause would send, for people who want to know before."""
        kind = kinds.of(finding.workload)
        if kind is None or finding.verdict is not decision.Verdict.idle:
            return None
        with contextlib.suppress(bodies.CannotWrite):
            writes = bodies.pause_writes(finding.workload, kind, decision.Pause(finding, finding.because), self.plan.at)
            return {str(write.ref): write.body for write in writes}
        return None


class IdleStory:
    """One cluster, one source of measurements, one pair of hands. `freeze`: where a freeze is kept; None: nowhere."""

    def __init__(
        self, *, options: settings.Settings, eyes: snapshot.Eyes, hands: doing.Hands, books: tally.Books,
        freeze: Freeze | None,
    ) -> None:
        self._options, self._mandate = options, options.mandate
        self._eyes, self._hands, self._books, self._freeze = eyes, hands, books, freeze
        self._memory, self._cache = decision.Memory(), brain.Cache()
        self._missing: frozenset[cluster.Missing] = frozenset()  # as last told
        self._odd: Mapping[cluster.Ref, str] = {}  # as last told

    async def tick(self, turn: Turn) -> decision.Cycle:
        """One cycle. Raises what the outside does to a look; whatever happens to an act is an Outcome."""
        # 1. Look: what is true at this instant, what is in flight, what is not seen; then closer at what looks idle.
        seen = await self._look(turn)
        # 2. Plan: a finding for every workload; the noes too.
        plan = brain.make_plan(seen, self._mandate, self._memory, turn.now, self._cache)
        # 3. Act: each decision alone, looked at once more just before; a dry run goes the same way and changes nothing.
        outcomes = await self._act(turn, seen, plan)
        cycle = decision.Cycle(plan, seen, outcomes, self._failure_of(seen), turn.took)
        # 4. and 5. Account and tell.
        self._enter(cycle, turn)
        return cycle

    async def look(self, turn: Turn) -> Look:
        """The first two steps, for those who only ask: nothing is remembered of it."""
        seen = await self._look(turn)
        plan = brain.make_plan(seen, self._mandate, decision.Memory(), turn.now, self._cache)
        return Look(seen, plan, self._options, self._failure_of(seen))

    def fail(self, because: str, turn: Turn) -> decision.Cycle:
        """A cycle in which nothing could be decided."""
        cycle = decision.Cycle(None, None, (), because, turn.took)
        self._enter(cycle, turn)
        return cycle

    async def _look(self, turn: Turn) -> cluster.Snapshot:
        in_force = brain.rules_in_force(self._mandate, self._eyes.policies)
        # 1a. What everything needs: the objects, and the measurements over the windows of the rules.
        seen = await turn.in_time(self._eyes.take_snapshot(in_force, turn.now))
        # 1b. Closer, at what looks idle: since when exactly.
        candidates = brain.candidate_rows(seen, self._mandate, turn.now, self._cache)
        return await turn.in_time(self._eyes.look_back(seen, candidates, turn.now))

    async def _act(self, turn: Turn, seen: cluster.Snapshot, plan: decision.Plan) -> tuple[decision.Outcome, ...]:
        await self._keep_freeze(plan)
        await self._keep_kinds(plan)

        async def look_again(pauses: Sequence[decision.Pause]) -> Mapping[str, execute.SecondLook]:
            return await self._look_again(turn, pauses)

        outcomes = tuple(
            await execute.carry_out(plan.decisions, self._hands, look_again, turn.now, turn.may_act, turn.clock)
        )
        self._memory = brain.remember(plan, outcomes)
        if self._options.loop.daemon and turn.may_act():
            await self._hands.reports.write(seen, plan, turn.now)
        return outcomes

    async def _keep_freeze(self, plan: decision.Plan) -> None:
        """A freeze outlives us: it stands on the Lease, where a successor and people find it."""
        if plan.newly_frozen and plan.frozen_until is not None and self._freeze is not None:
            until = units.rfc3339(plan.frozen_until)
            await self._freeze({names.FROZEN_UNTIL: until, names.FROZEN_BECAUSE: plan.frozen_because})

    async def _keep_kinds(self, plan: decision.Plan) -> None:
        """Before their first pause: what is paused must be found again when none of its pods lives."""
        refs = [each.finding.workload.ref for each in plan.decisions if isinstance(each, decision.Pause)]
        outside = [ref for ref in refs if kinds.find(ref.group, ref.kind) is None]
        changes = long_memory.add_kinds(self._eyes.lease_annotations(), outside)
        if changes and self._freeze is not None and self._mandate.acting:
            await self._freeze(changes)

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
            looks[workload.ref.uid] = execute.SecondLook(workload, finding, because, pods)
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
        # 5. Tell: a line per act, a sentence about the cycle, and what could not be seen.
        tell(cycle)
        if cycle.snapshot is not None:
            self._tell_missing(cycle.snapshot.missing)
        if cycle.plan is not None:
            self._tell_odd(cycle.plan.odd)

    def _tell_missing(self, missing: Sequence[cluster.Missing]) -> None:
        """Once, not in every cycle: what may not be seen today may mostly not be seen tomorrow."""
        for one in missing:
            if one not in self._missing:
                log.warning("not seen: %s: %s", one.what, one.because)
        self._missing = frozenset(missing)

    def _tell_odd(self, odd: Mapping[cluster.Ref, str]) -> None:
        """Once: whoever made it is not going to mend it within the minute."""
        for ref, why in odd.items():
            if self._odd.get(ref) != why:
                log.warning("%s could not be considered and is unknown: %s", ref, why)
        self._odd = odd


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
    workload = tally.workload_of(outcome.decision)
    whom = f" {workload.ref.namespace}/{workload.ref.name}" if workload else ""
    return f"would {what}{whom}" if outcome.status is decision.Status.dry_run else f"{what}{whom} {outcome.status}"
