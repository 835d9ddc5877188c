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
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.account.scaling import ScalingAccount
from fallow.act.growing import Grown
from fallow.clients import errors
from fallow.clients.clouds import Cloud
from fallow.decide import scaling as deciding
from fallow.model import seen, units
from fallow.model.cost import DemandHour
from fallow.model.machines import CloudMachine, MachineGroup, MachineNotice
from fallow.model.policies.scaling import NodeDriver
from fallow.model.scaling import ScaledNode, ScalingMemory, ScalingSight
from fallow.model.scaling_plan import GrowReason, PolicyPlan, ScalingPlan
from fallow.model.seen import Absent, Known, Unseen
from fallow.model.units import Instant, Seconds
from fallow.observe.scaling.clouds import FindCloud, hear, may_ask
from fallow.observe.scaling.nodes import is_meant
from fallow.observe.scaling.sight import ScalingEyes, is_leaving
from fallow.stories.scaling.ahead import AheadOfDemand
from fallow.stories.scaling.departures import NodeDepartures, is_unheeded
from fallow.stories.scaling.telling import ScalingTeller
from fallow.stories.scaling.terms import INTERVAL, ScalingCycle, ScalingHands, ScalingStoryTerms
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

BUDGET: Final[Seconds] = 60.0
SOON: Final[Seconds] = 5.0  # until the next step of a node that its cloud takes back
DRAINING: Final[Seconds] = 10.0  # ... of one that is drained
HASTE: Final[Seconds] = 10.0  # between two full looks, where somebody new waits or has waited long enough
GATHERING: Final[Seconds] = 1.0  # from the first who waits until the look, for those who come together
_GAP: Final = 3  # looks that may be missing, beside what one may take, before nobody can say what lasted meanwhile


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
        self._departures = NodeDepartures(
            eyes=eyes, hands=hands, terms=terms, find_cloud=find_cloud, account=account, note_cloud=self._note_cloud,
        )
        self._ahead = AheadOfDemand(hands, terms, account)
        self._teller = ScalingTeller(hands, terms, account)
        self._unkept: list[DemandHour] = []
        self._memory, self._kept, self._last = ScalingMemory(), deciding.KeptSight(), ScalingCycle()
        self._asked: set[str] = set()  # tokens of growth that this process asked a cloud for
        self._recalled = False
        self._complaint = Complaint("which nodes are needed is not known: %s")
        self._stands: dict[str, Grown] = {}  # by policy: what is on its way since this turn

    async def tick(self, turn: Turn) -> ScalingCycle:
        done: list[str] = []
        if self._is_between(turn.now):
            await self._departures.let_go(self._last, turn, done)
            return self._keep(done, turn)
        # 1. Look. 2. Plan.
        if not isinstance(self._eyes.policies, Known) and not self._eyes.touched:
            if isinstance(self._eyes.policies, Absent):
                await self._ahead.drop_room(turn, done)
            return self._keep(done, turn)
        is_hurried = self._has_news(turn.now)
        if is_hurried:  # before anybody is asked who may not answer
            await self._departures.begin_at_once(self._last, turn, done)
        else:
            await self._hear(turn, done)
        sight, plan = await self._plan(turn, hurry=is_hurried)
        self._memory, self._stands = plan.memory, {}
        made = ScalingCycle(plan=plan, sight=sight)
        # 3. Act: the cordon of what ends, its replacement, whoever leaves, growth, whom nobody needs.
        if self._terms.is_on and self._terms.acts:
            await self._departures.begin_spot(made, turn, done)
            await self._grow(made, turn, done)
            await self._label(made, turn, done)
            await self._ahead.mark_started(made, turn, done)
        await self._departures.find_gone(made, turn, done)
        await self._departures.let_go(made, turn, done)
        if self._terms.is_on and self._terms.acts:
            await self._departures.release(made, turn, done)
            await self._ahead.keep_requests(made, turn, done)
        await self._ahead.keep_room(made, turn, done)
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
        self._terms.wake_in(SOON if any(map(_ends, self._departures.list_touched(turn.now))) else INTERVAL)
        return ScalingCycle(plan=self._last.plan, sight=self._last.sight, failure=because)

    def _keep(self, done: Sequence[str], turn: Turn) -> ScalingCycle:
        self._complaint.note("")
        for each in done:
            log.info("nodes: %s", each)
        leaving = self._departures.list_touched(turn.now)
        if any(map(_ends, leaving)):
            self._terms.wake_in(SOON)
        elif leaving:
            self._terms.wake_in(DRAINING)
        last = self._last.plan
        due = turn.now if self._eyes.has_fresh_demand else self._last.due
        if last is not None and math.isfinite(due):
            self._terms.wake_in(max(due - turn.now, HASTE - (turn.now - last.taken_at), 0.1))
        return msgspec.structs.replace(self._last, done=tuple(done))

    # ---- look and plan ----

    def _is_between(self, now: Instant) -> bool:
        """A turn for who leaves alone: all else was looked at a moment ago, and no cloud has said anything new."""
        last = self._last.plan
        if last is None or not 0 <= now - last.taken_at < self._terms.interval - 1:
            return False
        if now - last.taken_at >= HASTE and (self._eyes.has_fresh_demand or now >= self._last.due):
            return False
        return not self._has_news(now)

    def _has_news(self, now: Instant) -> bool:
        """A notice that the last look did not have. One that it had, and that nobody may heed, hurries nobody."""
        unheeded = {(each.uid, each.ends_at) for each in self._eyes.touched if is_unheeded(each, now)}
        if not unheeded:
            return False
        return not unheeded <= {(each.uid, each.ends_at) for each in self._last.find_nodes(is_leaving)}

    async def _plan(self, turn: Turn, *, hurry: bool = False) -> tuple[ScalingSight, ScalingPlan]:
        sight = await turn.in_time(self._eyes.look(turn.now, hurry=hurry))
        if not self._recalled and isinstance(sight.policies, Known):
            self._memory, self._recalled = deciding.recall(self._memory, sight.policies.value), True
        self._memory = deciding.note_looks(self._memory, sight, turn.now)
        with stumbling():
            memory = deciding.bridge(self._memory, turn.now, _GAP * self._terms.interval + BUDGET)
            plan = deciding.plan(sight, memory, turn.now, terms=self._terms.brain, kept=self._kept)
        return sight, plan

    def _note_cloud(self, policy: str, now: Instant, failed: bool) -> None:
        if failed:
            self._memory = deciding.note_failure(self._memory, policy, now)
        else:
            self._memory = deciding.clear_failures(self._memory, policy)

    async def _hear(self, turn: Turn, done: list[str]) -> None:
        """Notices from queues become annotations, as those of the nodes' own watches are; then the queue forgets.
        Where another autoscaler drives, or a policy only advises, its cloud is not ours to ask, nor the queue ours to
        empty."""
        if not (self._terms.is_on and self._terms.acts and turn.may_act()):
            return
        drivers = await turn.in_time(self._eyes.find_drivers(turn.now))
        clouds = {id(cloud): cloud for each in seen.sure(self._eyes.policies)
                  if each.acts and may_ask(each, drivers) and (cloud := self._find_cloud(each)) is not None}
        for cloud, notice in await turn.in_time(hear(clouds.values())):
            try:
                await self._write_down(notice)
                await turn.in_time(cloud.forget([notice]))
            except errors.ClientError as problem:  # the queue tells it again
                done.append(f"a notice of {notice.provider_id} is heard again later: {problem}")

    async def _write_down(self, notice: MachineNotice) -> None:
        """On whose node it is, where that node's policy acts. Raises where it could not be, or nodes are not seen."""
        said = {names.SPOT_WARNING: units.rfc3339(notice.seen_at)}
        if notice.ends_at is not None:
            said[names.SPOT_TERMINATION] = units.rfc3339(notice.ends_at)
        found = self._eyes.find_by_provider(notice.provider_id)
        if isinstance(found, Unseen):
            raise errors.ClientError(f"nodes are not seen: {found.why}")
        policies = [each for each in seen.sure(self._eyes.policies) if each.enabled]
        for node in seen.sure(found):
            meant = next((each for each in policies if is_meant(each, node)), None)
            if meant is not None and meant.acts and _is_news(notice, node):
                await self._hands.leaving.note(node, said)

    # ---- act: growth ----

    async def _grow(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """What fails for one policy keeps neither the others waiting nor the nodes that end."""
        for plan in made.policies:
            cloud = self._find_cloud(plan.policy) if plan.acts and plan.driver is NodeDriver.direct else None
            if cloud is None or not turn.may_act():
                continue
            try:
                await self._grow_one(plan, cloud, _find_targets(made.sight, plan.policy.name), turn, done)
            except errors.ClientError as problem:
                done.append(f"policy {plan.policy.name}: no more is asked for in this turn: {problem}")

    async def _grow_one(
        self, plan: PolicyPlan, cloud: Cloud, targets: dict[str, int], turn: Turn, done: list[str]
    ) -> None:
        done += await self._hands.grower.ask_again(plan, cloud, targets, self._asked)
        done += await self._hands.grower.drop(await self._look_for(plan.strays, turn), cloud)
        self._asked |= {each.token for each in plan.in_flight}
        there, stands = dict(plan.there), Grown(in_flight=plan.in_flight, stockouts=plan.stockouts, said="")
        for wanted in plan.grows:
            is_urgent = wanted.reason is GrowReason.SpotReplacement
            if not turn.may_act() or (self._terms.frozen(turn.now) and not is_urgent):
                return
            began = turn.took
            stands = await self._hands.grower.grow(plan.policy, wanted, cloud, there, stands, turn.now)
            self._stands[plan.policy.name] = stands
            self._asked |= {each.token for each in stands.in_flight}
            done.append(stands.said)
            made_of = msgspec.structs.replace(wanted, count=stands.count)
            self._account.note_growth(plan.policy, made_of, stands.pool, stands.said, turn.now, turn.took - began)
            self._note_cloud(plan.policy.name, turn.now, bool(stands.failure))
            if stands.failure:
                return

    async def _label(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """Once each, as they join."""
        nodes = {each.name: each for each in made.find_nodes()}
        for plan in made.policies:
            for name, said in plan.labels.items() if plan.acts else ():
                if not turn.may_act() or self._terms.frozen(turn.now):
                    return
                try:
                    await self._hands.leaving.label(nodes[name], said)
                except errors.ClientError as problem:
                    done.append(f"{name} gets its labels later: {problem}")

    async def _look_for(self, strays: Sequence[CloudMachine], turn: Turn) -> list[CloudMachine]:
        """Those that are no node even now."""
        joined = await turn.in_time(self._eyes.list_joined()) if strays else frozenset[str]()
        return [each for each in strays if each.provider_id not in joined]

    # ---- account and tell ----

    async def _settle(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        assert made.plan is not None
        assert made.sight is not None
        if self._terms.is_on:
            await self._teller.tell_statuses(
                made.plan, turn, stands=self._stands, fared=self._ahead.fared, memory=self._memory
            )
            await self._teller.tell_pods(made, turn)
        self._unkept += self._account.measure(made.sight, made.plan, turn.now, turn.took)
        await self._keep_demand()
        self._teller.tell_log(made.plan)

    async def _keep_demand(self) -> None:
        """What cannot be written now is kept for the next time."""
        if self._unkept:
            try:
                await self._keep_hours(tuple(self._unkept))
            except errors.ClientError as problem:
                log.info("the demand of the last hour is written later: %s", problem)
                return
            self._unkept.clear()


def _ends(node: ScaledNode) -> bool:
    return node.spot is not None or node.ends_at is not None


def _is_news(notice: MachineNotice, node: ScaledNode) -> bool:
    """Whether a node whose cloud may take it back, or does, must still be told."""
    if node.spot is None:
        return True
    if notice.ends_at is None:
        return False
    return node.spot.ends_at is None or notice.ends_at > node.spot.ends_at


def _find_targets(sight: ScalingSight | None, policy: str) -> dict[str, int]:
    found = sight.groups.get(policy) if sight is not None else None
    groups: tuple[MachineGroup, ...] = found.value if isinstance(found, Known) else ()
    return {each.id: each.target for each in groups if each.target is not None and not each.error}
