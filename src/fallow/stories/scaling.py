"""Nodes that come and go: every half minute who waits for one and which nobody needs; at once where a cloud takes one
back.

    look    policies, pods, nodes, who drives, what clouds have, how busy GPUs are
    plan    a verdict for every pod that waits and every node; what to add, what to let go
    act     nodes that leave first, replacements before the first eviction, then growth, then whom nobody needs
    account metrics, demand of the hour, what was removed
    tell    the policies' statuses, Events, the audit, the log

Without leave to act only the statuses are written, and what an earlier self began is given back. What was begun stands
on the node and in the status: who is killed between two steps goes on from there. Between two full looks only nodes
that leave are looked at, as often as their deadlines need; who newly waits for a GPU, or has now waited long enough,
brings the next full look forward.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.account.scaling import ScalingAccount
from fallow.act import scaling_statuses
from fallow.act.events import Announcer
from fallow.act.growing import Grower, Grown
from fallow.act.headroom import HeadroomHands
from fallow.act.leaving import LeavingHands, node_ref
from fallow.act.scaling_statuses import Deed, ScalingStatuses
from fallow.clients import errors
from fallow.decide import scaling as deciding
from fallow.model import cluster, scaling_status, seen, units
from fallow.model.cost import DemandHour
from fallow.model.history import Happened
from fallow.model.machines import CloudMachine, MachineGroup
from fallow.model.policies.scaling import NodeDriver, ScalingPolicy
from fallow.model.scaling import (
    BeginDrain,
    Blocked,
    EvictNow,
    Fit,
    GrowReason,
    LeavingNode,
    LeavingStep,
    PolicyPlan,
    RemoveMachine,
    ScaledNode,
    ScalingMemory,
    ScalingPlan,
    ScalingSight,
    StayPut,
    UndoDrain,
)
from fallow.model.seen import Known
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe.scaling.clouds import FindCloud, hear, may_ask
from fallow.observe.scaling.sight import ScalingEyes, is_leaving
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 30.0
BUDGET: Final[Seconds] = 60.0
SOON: Final[Seconds] = 5.0  # until the next step of a node that its cloud takes back
HASTE: Final[Seconds] = 10.0  # between two full looks, where somebody new waits or has waited long enough
GATHERING: Final[Seconds] = 1.0  # from the first who waits until the look, for those who come together
DRAINING: Final[Seconds] = 10.0  # ... of one that is drained
_STUCK: Final[Seconds] = 5 * MINUTE  # a pod that fits and is not scheduled for so long is told of
_MOST_STEPS: Final = 64  # of one node in one turn, those included that came too late
_MOST_TOLD: Final = 20  # Events about pods in one turn


class ScalingHands(msgspec.Struct, frozen=True):
    leaving: LeavingHands
    grower: Grower
    headroom: HeadroomHands
    statuses: ScalingStatuses
    announcer: Announcer


class ScalingStoryTerms(msgspec.Struct, frozen=True, kw_only=True):
    """`is_on`: nodes are planned for at all; `acts`: and plans carried out, where a policy says so. `frozen`: why
    nothing may be begun now; "": it may. `wake_in`: asks for the next turn after so many seconds."""

    is_on: bool = True
    acts: bool = False
    interval: Seconds = INTERVAL  # between two full looks
    frozen: Callable[[Instant], str] = lambda now: ""
    brain: deciding.ScalingTerms = deciding.ScalingTerms()
    wake_in: Callable[[Seconds], None] = lambda seconds: None


class ScalingCycle(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`, `sight`: the latest."""

    plan: ScalingPlan | None = None
    sight: ScalingSight | None = None
    done: tuple[str, ...] = ()
    failure: str = ""


class _Refusals(msgspec.Struct):
    """Of one node: whose eviction was refused, when last, and whether it can never be granted."""

    uids: set[str] = msgspec.field(default_factory=set)
    at: Instant | None = None
    blocked: str = ""


async def _keep_nothing(_: Sequence[DemandHour]) -> None:
    return None


class ScalingStory:
    def __init__(
        self, *, eyes: ScalingEyes, hands: ScalingHands, terms: ScalingStoryTerms, find_cloud: FindCloud,
        account: ScalingAccount, keep_hours: Callable[[Sequence[DemandHour]], Awaitable[None]] = _keep_nothing,
    ) -> None:
        """`keep_hours`: of demand, in the ledger."""
        self._eyes, self._hands, self._terms = eyes, hands, terms
        self._find_cloud, self._account, self._keep_hours = find_cloud, account, keep_hours
        self._unkept: list[DemandHour] = []
        self._memory, self._kept, self._last = ScalingMemory(), deciding.KeptSight(), ScalingCycle()
        self._refused: dict[str, _Refusals] = {}  # by uid of the node
        self._asked: set[str] = set()  # tokens of growth that this process asked a cloud for
        self._leaving: dict[str, tuple[ScaledNode, str]] = {}  # by uid: drained for somebody else, and its policy
        self._recalled = False
        self._complaint = Complaint("which nodes are needed is not known: %s")
        self._said: dict[str, str] = {}
        self._stands: dict[str, Grown] = {}  # by policy: what is on its way since this turn
        self._machines: list[CloudMachine] = []
        self._fared: dict[str, list[bool]] = {}  # by policy: nodes started ahead that were settled in this turn

    async def tick(self, turn: Turn) -> ScalingCycle:
        done: list[str] = []
        if self._is_between(turn.now):
            await self._let_go(self._last, turn, done)
            return self._keep(done, turn)
        # 1. Look. 2. Plan.
        if not isinstance(self._eyes.policies, Known) and not self._eyes.touched:
            return self._keep(done, turn)
        await self._hear(turn)
        sight, plan = await self._plan(turn)
        self._memory, self._stands, self._fared = plan.memory, {}, {}
        self._machines = [each for found in sight.machines.values() for each in seen.sure(found)]
        made = ScalingCycle(plan=plan, sight=sight)
        # 3. Act: the cordon of what ends, its replacement, whoever leaves, growth, whom nobody needs.
        if self._terms.is_on and self._terms.acts:
            await self._begin_spot(made, turn, done)
            await self._grow(made, turn, done)
            await self._mark_started(made, turn, done)
        await self._let_go(made, turn, done)
        if self._terms.is_on and self._terms.acts:
            await self._release(made, turn, done)
            await self._keep_room(made, turn, done)
            await self._keep_requests(made, turn, done)
        # 4. Account. 5. Tell.
        await self._settle(made, turn, done)
        self._last = made
        return self._keep(done, turn)

    async def look(self, turn: Turn) -> ScalingCycle:
        sight, plan = await self._plan(turn)
        return ScalingCycle(plan=plan, sight=sight)

    def fail(self, because: str, turn: Turn) -> ScalingCycle:
        self._complaint.note(because)
        self._account.note_failure()
        self._terms.wake_in(INTERVAL)
        return ScalingCycle(plan=self._last.plan, sight=self._last.sight, failure=because)

    def _keep(self, done: Sequence[str], turn: Turn) -> ScalingCycle:
        self._complaint.note("")
        for each in done:
            log.info("nodes: %s", each)
        leaving = self._eyes.touched
        if any(each.spot is not None or each.ends_at is not None for each in leaving):
            self._terms.wake_in(SOON)
        elif leaving:
            self._terms.wake_in(DRAINING)
        last = self._last.plan
        due = turn.now if self._eyes.has_fresh_demand else _find_due(last)
        if last is not None and math.isfinite(due):
            self._terms.wake_in(max(due - turn.now, HASTE - (turn.now - last.taken_at), 0.1))
        return msgspec.structs.replace(self._last, done=tuple(done))

    # ---- look and plan ----

    def _is_between(self, now: Instant) -> bool:
        """A turn for who leaves alone: all else was looked at a moment ago, and no cloud has said anything new."""
        last = self._last.plan
        if last is None or not 0 <= now - last.taken_at < self._terms.interval - 1:
            return False
        if now - last.taken_at >= HASTE and (self._eyes.has_fresh_demand or now >= _find_due(last)):
            return False
        return not any(map(_is_unheeded, self._eyes.touched))

    async def _plan(self, turn: Turn) -> tuple[ScalingSight, ScalingPlan]:
        sight = await turn.in_time(self._eyes.look(turn.now))
        if not self._recalled and isinstance(sight.policies, Known):
            self._memory, self._recalled = deciding.recall(self._memory, sight.policies.value), True
        with stumbling():
            plan = deciding.plan(sight, self._memory, turn.now, terms=self._terms.brain, kept=self._kept)
        return sight, plan

    async def _hear(self, turn: Turn) -> None:
        """Notices from queues become annotations, as those of the nodes' own watches are; then the queue forgets.
        Where another autoscaler drives, its cloud is not ours to ask, nor the queue ours to empty."""
        if not self._terms.acts or not turn.may_act():
            return
        drivers = await turn.in_time(self._eyes.find_drivers(turn.now))
        clouds = {id(cloud): cloud for each in seen.sure(self._eyes.policies)
                  if may_ask(each, drivers) and (cloud := self._find_cloud(each)) is not None}
        for cloud, notice in await turn.in_time(hear(clouds.values())):
            node = self._eyes.find_by_provider(notice.provider_id)
            if node is not None and node.spot is None:
                said = {names.SPOT_WARNING: units.rfc3339(notice.seen_at)}
                if notice.ends_at is not None:
                    said[names.SPOT_TERMINATION] = units.rfc3339(notice.ends_at)
                await self._hands.leaving.note(node, said)
            await cloud.forget([notice])

    # ---- act: whoever leaves ----

    async def _begin_spot(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """The cordon first: nobody new comes to a machine that ends."""
        for node in _find_nodes(made, _is_unheeded):
            await self._advance(node, made, turn, done, begins_only=True)

    async def _let_go(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """A notice that came while all was looked at waits for its own turn, which plans who replaces the node: else
        its pods were moved before there is a place for them."""
        planned = {each.uid for each in _find_nodes(made, is_leaving)}
        for node in self._eyes.touched:
            if not turn.may_act():
                return
            if node.uid in planned or not _is_unheeded(node):
                await self._advance(node, made, turn, done)

    async def _advance(
        self, node: ScaledNode, made: ScalingCycle, turn: Turn, done: list[str], *, begins_only: bool = False
    ) -> None:
        """Step by step, looked at anew before each; until there is nothing to do but to wait."""
        for _ in range(_MOST_STEPS):
            if not turn.may_act():
                return
            there = await self._look_at(node, made, turn)
            if there is None:
                return
            with stumbling():
                steps = deciding.advance(there, turn.clock())
            step = next((each for each in steps if not isinstance(each, StayPut)), None)
            if step is None or (begins_only and isinstance(step, EvictNow)):
                return
            try:
                if not await self._carry_out(there, step, turn, done):
                    return
            except errors.Conflict:
                log.debug("%s changed meanwhile: it is looked at again", node.name)
            except errors.ClientError as problem:
                done.append(f"{node.name}: {problem}")
                if isinstance(step, RemoveMachine):
                    self._memory = deciding.note_failure(self._memory, _policy_of(there), turn.now)
                return

    async def _look_at(self, node: ScaledNode, made: ScalingCycle, turn: Turn) -> LeavingNode | None:
        found = await turn.in_time(self._eyes.look_at(node.name, turn.now))
        if found is None or found[0].uid != node.uid:
            self._refused.pop(node.uid, None)
            return None
        now_there, pods = found
        plan = _find_plan(made.plan, now_there)
        known = next((each for each in _find_nodes(made) if each.uid == node.uid), None)
        refused = self._refused.get(node.uid, _Refusals())
        return LeavingNode(
            node=msgspec.structs.replace(now_there, use=known.use if known else None,
                                         price=known.price if known else None),
            pods=pods, policy=plan.policy if plan is not None and self._may_go_on(now_there, plan, turn) else None,
            driver=plan.driver if plan is not None else NodeDriver.direct,
            wanted=plan.wanted.get(node.name, "") if plan is not None else "",
            refused=frozenset(refused.uids), refused_at=refused.at, blocked=refused.blocked,
        )

    def _may_go_on(self, node: ScaledNode, plan: PolicyPlan, turn: Turn) -> bool:
        """What we may no longer do is given back. Spot is never halted."""
        if not (self._terms.is_on and self._terms.acts and plan.acts):
            return False
        return node.spot is not None or node.ends_at is not None or not self._terms.frozen(turn.now)

    async def _carry_out(self, there: LeavingNode, step: LeavingStep, turn: Turn, done: list[str]) -> bool:
        """Whether a further step may follow in this turn."""
        node, now = there.node, turn.clock()
        is_told = node.drain is not None and node.drain.removing is not None
        if isinstance(step, RemoveMachine) and not is_told and self._find_machine(node) is None:
            done.append(f"{node.name}: its cloud does not know its machine, so that none is removed")
            return False
        result = await self._hands.leaving.carry_out(there, step, now, lambda each: self._remove(each, there))
        done.append(f"{node.name}: {result.said}")
        if result.refused:
            kept = self._refused.setdefault(node.uid, _Refusals())
            kept.uids.add(result.refused)
            kept.at, kept.blocked = now, result.blocked or kept.blocked
        if isinstance(step, UndoDrain):
            self._refused.pop(node.uid, None)
            self._leaving.pop(node.uid, None)
            self._account.note(Happened.drain_undone, node_ref(node), step.because, now, policy=_policy_of(there))
            return False
        if isinstance(step, RemoveMachine):
            self._memory = deciding.clear_failures(self._memory, _policy_of(there))
            if not is_told:
                await self._note_removed(node, there.policy, now)
            return False
        if isinstance(step, BeginDrain) and there.driver is not NodeDriver.direct:
            self._leaving[node.uid] = node, step.record.policy
        return True

    async def _remove(self, node: ScaledNode, there: LeavingNode) -> None:
        """One that its cloud does not have any more is gone."""
        cloud, machine = self._find_cloud(there.policy) if there.policy else None, self._find_machine(node)
        if cloud is not None and machine is not None:
            await cloud.remove(machine.group, [machine.id])

    def _find_machine(self, node: ScaledNode) -> CloudMachine | None:
        found = (each for each in self._machines if node.provider_id and each.provider_id == node.provider_id)
        return next(found, None)

    async def _note_removed(self, node: ScaledNode, policy: ScalingPolicy | None, now: Instant) -> None:
        """From here on its cooldown runs, and what it would have cost is saved."""
        because = node.drain.because if node.drain is not None else "its cloud takes it back"
        if policy is not None:
            deed = Deed(action=f"scale_down: {node.name}", reason=because, shrank=True)
            await self._hands.statuses.note_deed(policy, deed, now)
        self._account.note_removed(node, policy.name if policy is not None else "", because, now)

    # ---- act: growth ----

    async def _grow(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        for plan in made.plan.policies if made.plan else ():
            cloud = self._find_cloud(plan.policy) if plan.acts and plan.driver is NodeDriver.direct else None
            if cloud is None or not turn.may_act():
                continue
            targets = _find_targets(made.sight, plan.policy.name)
            done += await self._hands.grower.ask_again(plan, cloud, targets, self._asked)
            done += await self._hands.grower.drop(await self._look_for(plan.strays, turn), cloud)
            self._asked |= {each.token for each in plan.in_flight}
            stands = Grown(in_flight=plan.in_flight, stockouts=plan.stockouts, said="")
            for wanted in plan.grows:
                is_urgent = wanted.reason is GrowReason.SpotReplacement
                if not turn.may_act() or (self._terms.frozen(turn.now) and not is_urgent):
                    break
                began = turn.took
                stands = await self._hands.grower.grow(plan.policy, wanted, cloud, targets, stands, turn.now)
                self._stands[plan.policy.name] = stands
                self._asked |= {each.token for each in stands.in_flight}
                done.append(stands.said)
                made_of = msgspec.structs.replace(wanted, count=stands.count)
                self._account.note_growth(plan.policy, made_of, stands.pool, stands.said, turn.now, turn.took - began)
                self._memory = (
                    deciding.note_failure(self._memory, plan.policy.name, turn.now) if stands.failure
                    else deciding.clear_failures(self._memory, plan.policy.name)
                )
                if stands.failure:
                    break

    async def _look_for(self, strays: Sequence[CloudMachine], turn: Turn) -> list[CloudMachine]:
        """Those that are no node even now."""
        joined = await turn.in_time(self._eyes.list_joined()) if strays else frozenset[str]()
        return [each for each in strays if each.provider_id not in joined]

    async def _mark_started(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """On nodes that were started ahead of demand, until when they stay; later, whether anybody came: each counts
        when it says so itself."""
        nodes = {each.name: each for each in _find_nodes(made)}
        for plan in made.plan.policies if made.plan else ():
            said = {name: units.rfc3339(until) for name, until in plan.started.items()}
            words = {True: names.PREWARM_USED, False: names.PREWARM_UNUSED}
            said |= {name: words[is_used] for name, is_used in plan.prewarmed.items()}
            for name, text in said.items() if plan.acts else ():
                if not turn.may_act():
                    return
                try:
                    await self._hands.leaving.note(nodes[name], {names.PREWARMED_UNTIL: text}, is_as_seen=True)
                except errors.ClientError as problem:
                    done.append(f"{name} was started ahead of demand, and cannot be marked so yet: {problem}")
                    continue
                if name in plan.prewarmed:
                    self._fared.setdefault(plan.policy.name, []).append(plan.prewarmed[name])
                    self._account.note_prewarmed(plan.policy.name, is_used=plan.prewarmed[name])

    # ---- act: whom nobody needs ----

    async def _release(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        if self._terms.frozen(turn.now):
            return
        nodes = {each.uid: each for each in _find_nodes(made)}
        for plan in made.plan.policies if made.plan else ():
            for release in plan.releases if plan.acts else ():
                node = nodes.get(release.uid)
                there = await self._look_at(node, made, turn) if node is not None and turn.may_act() else None
                if there is None or is_leaving(there.node):
                    continue
                with stumbling():
                    step = deciding.begin_drain(release, there.node, turn.now)
                try:
                    await self._carry_out(there, step, turn, done)
                except errors.Conflict:
                    done.append(f"{release.node} changed meanwhile: nothing was begun")
                    continue
                self._account.note(
                    Happened.drain_begun, node_ref(there.node), release.because, turn.now, policy=release.policy
                )
                await self._advance(there.node, made, turn, done)

    async def _keep_room(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """Ahead of demand, where somebody else adds machines."""
        drivers = made.sight.drivers if made.sight is not None else None
        if not isinstance(drivers, Known) or not made.plan or not turn.may_act():
            return
        others = [each for each in made.plan.policies if each.acts and each.driver is not NodeDriver.direct]
        if others:
            wanted = [room for each in others for room in each.headroom]
            done += await self._hands.headroom.keep(wanted, drivers.value, others[0].driver)

    async def _keep_requests(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """For gangs, where cluster-autoscaler adds machines: made once, and gone when nobody waits for it."""
        drivers = made.sight.drivers if made.sight is not None else None
        if not isinstance(drivers, Known) or made.plan is None or made.plan.unseen:
            return
        asked = {each.name: each for plan in made.plan.policies if plan.acts for each in plan.gangs}
        for request in drivers.value.gangs.values():
            if request.name not in asked and turn.may_act():
                await self._try(self._hands.headroom.drop_request(request), done)
        for each in asked.values():
            if each.request is None and turn.may_act() and not self._terms.frozen(turn.now):
                await self._try(self._hands.headroom.ask_together(each), done)

    async def _try(self, act: Awaitable[str], done: list[str]) -> None:
        try:
            done.append(await act)
        except errors.ClientError as problem:
            done.append(str(problem))

    # ---- account and tell ----

    async def _settle(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        assert made.plan is not None
        assert made.sight is not None
        await self._find_taken(made, turn)
        if self._terms.is_on:
            await self._tell_statuses(made.plan, turn)
            await self._tell_pods(made, turn)
        self._unkept += self._account.measure(made.sight, made.plan, turn.now, turn.took)
        await self._keep_demand()
        self._tell(made.plan)

    async def _keep_demand(self) -> None:
        """What cannot be written now is kept for the next time."""
        if self._unkept:
            try:
                await self._keep_hours(tuple(self._unkept))
            except errors.ClientError as problem:
                log.info("the demand of the last hour is written later: %s", problem)
                return
            self._unkept.clear()

    async def _find_taken(self, made: ScalingCycle, turn: Turn) -> None:
        """Nodes that we emptied, and that whoever drives has taken away since."""
        there = {each.uid for each in _find_nodes(made)}
        if made.sight is None or not isinstance(made.sight.nodes, Known):
            return
        plans = {each.policy.name: each.policy for each in made.plan.policies} if made.plan else {}
        for uid, (node, policy) in list(self._leaving.items()):
            if uid not in there:
                self._leaving.pop(uid)
                await self._note_removed(node, plans.get(policy), turn.now)

    async def _tell_statuses(self, plan: ScalingPlan, turn: Turn) -> None:
        for each in plan.policies:
            if not turn.may_act():
                return
            before = self._hands.statuses.find(each.policy)
            kept = scaling_status.read(before)
            stands = self._stands.get(each.policy.name)
            shown = msgspec.structs.replace(
                each, acts=each.acts and self._terms.acts, in_flight=stands.in_flight if stands else each.in_flight,
                stockouts=stands.stockouts if stands else each.stockouts,
            )
            prewarms = deciding.count_prewarms(kept.hits, kept.misses, self._fared.get(each.policy.name, ()))
            interruptions = self._account.interruptions(each.policy, kept.interruptions)
            more = interruptions - kept.interruptions
            status = scaling_statuses.make(
                shown, before, turn.now, interruptions=interruptions,
                watch=self._account.spot.watch(each.policy.name, kept.spot_watch, more, turn.now),
                savings=self._account.saved_hourly(each.policy.name, turn.now),
                prewarms=prewarms, failed=self._memory.failures.get(each.policy.name),
            )
            await self._hands.statuses.write(each.policy, status)
            if (stopped := each.blocked.get(Blocked.LimitReached, "")) and self._terms.acts:
                await self._hands.announcer.announce_once(
                    each.policy.ref, names.Event.LIMIT_REACHED, stopped, turn.now, stopped
                )
            lost = deciding.find_distrust(*prewarms)
            if lost and not deciding.find_distrust(kept.hits, kept.misses):
                await self._hands.announcer.announce(
                    each.policy.ref, names.Event.PREWARMING_OFF,
                    f"{lost}: none is any more, until enablePredictiveScaling is switched off and on again", turn.now,
                )

    async def _tell_pods(self, made: ScalingCycle, turn: Turn) -> None:
        """Once each: who fits and is not scheduled, and whom no pool fits."""
        waits = {each.id.uid: each.waits_since for each in seen.sure(made.sight.pods)} if made.sight else {}
        sent = 0
        for verdict in made.plan.pods if made.plan else ():
            since = waits.get(verdict.pod.uid)
            is_stuck = verdict.fit is Fit.FitsNow and since is not None and turn.now - since >= _STUCK
            if (not is_stuck and verdict.fit is not Fit.NoPoolFits) or verdict.pod.uid in self._account.informed:
                continue
            if not turn.may_act() or not self._terms.acts or sent == _MOST_TOLD:
                return
            sent += 1
            reason = names.Event.FITS_BUT_UNSCHEDULED if is_stuck else names.Event.NO_POOL_FITS
            ref = cluster.Ref("", "v1", "Pod", *verdict.pod)
            await self._hands.announcer.announce_once(ref, reason, verdict.because, turn.now, f"{since or 0:.0f}")
            self._account.informed.add(verdict.pod.uid)
        self._account.informed &= waits.keys()

    def _tell(self, plan: ScalingPlan) -> None:
        """A line when something else is true than before."""
        said = {each.policy.name: each.because for each in plan.policies if each.because}
        for name, because in said.items():
            if self._said.get(name) != because:
                log.info("nodes of policy %s: %s", name, because)
        self._said = said


def _find_nodes(
    made: ScalingCycle, wanted: Callable[[ScaledNode], bool] = lambda node: True
) -> Iterable[ScaledNode]:
    return [each for each in (seen.sure(made.sight.nodes) if made.sight is not None else ()) if wanted(each)]


def _is_unheeded(node: ScaledNode) -> bool:
    """Its cloud takes it back, and nobody has begun to heed it."""
    return node.spot is None and (node.ends_at or node.warned_at) is not None


def _find_plan(plan: ScalingPlan | None, node: ScaledNode) -> PolicyPlan | None:
    """Of the policy that its record names, else of the one that means it."""
    said = node.drain.policy if node.drain else node.spot.policy if node.spot else ""
    named = said or next((each.policy for each in (plan.nodes if plan else ()) if each.node == node.name), "")
    return next((each for each in (plan.policies if plan else ()) if each.policy.name == named), None)


def _find_due(plan: ScalingPlan | None) -> Instant:
    """When somebody will have waited long enough for a node."""
    return min((each.due for each in (plan.policies if plan else ()) if each.due is not None), default=math.inf)


def _find_targets(sight: ScalingSight | None, policy: str) -> dict[str, int]:
    found = sight.groups.get(policy) if sight is not None else None
    groups: tuple[MachineGroup, ...] = found.value if isinstance(found, Known) else ()
    return {each.id: each.target for each in groups if each.target is not None and not each.error}


def _policy_of(there: LeavingNode) -> str:
    return there.policy.name if there.policy is not None else ""

