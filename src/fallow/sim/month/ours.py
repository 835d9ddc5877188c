"""Our own side of the month: the brain of scaling, every 30 seconds, with hands that reach into the scene.

In: the scene, the policy, what is out of order (`Senses`). Out: grown and released nodes; what stands on nodes and in
the policy's status, which outlives us; `memory`, which does not. The order is that of the story: look, plan, grow by
the hands of the product, which write what is meant into the status first, write on nodes, let nodes go step by step.
As in the story, who newly waits, or has now waited long enough, brings the next look forward, to ten seconds after the
last at the earliest: that is how often the rival looks.
A cycle is left out only while nothing happens in the scene, nobody waits and no time that the brain counts runs out.
Invariant: `laws` is asked before every pod is sent away, every machine is removed and every growth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.act.growing import Grower, Grown
from fallow.act.scaling_statuses import ScalingStatuses
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import scaling
from fallow.model import scaling_status, units
from fallow.model.cluster import PodId
from fallow.model.leaving import (
    BeginDrain,
    BeginSpot,
    DeleteNow,
    EvictNow,
    LeavingNode,
    LeavingStep,
    RemoveMachine,
    UndoDrain,
)
from fallow.model.machines import Growth, MachineGroup, WantOfMachines
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import DemandPast, DriversSeen, ScaledNode, ScalingMemory, ScalingSight
from fallow.model.scaling_plan import Grow, PolicyPlan
from fallow.model.seen import Input, Known, Unseen, sure
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.sim.cloud import CloudFault
from fallow.sim.month import claims
from fallow.sim.month.scene import MonthNode, Scene

PACE: Final[Seconds] = 30.0
_HURRY: Final[Seconds] = 10.0  # while a node is leaving, or somebody newly waits
_GATHERING: Final[Seconds] = 1.0  # of those who come together
_HISTORY: Final = 28 * 24
_US: Final = "fallow"


class Senses(msgspec.Struct):
    """What is wrong with what we see. `off`: how far our clock is off; `refusing`: budgets that let no pod go."""

    measured: str = ""  # why no use is known; "": it is
    reads_zero: bool = False
    off: Seconds = 0.0
    refusing: bool = False


class Killed(Exception):
    """The process ends here, whatever it was about to do."""


class Laws(msgspec.Struct):
    """What must hold, asked at the moment it could break."""

    broken: list[str] = msgspec.field(default_factory=list)

    def check_evict(self, scene: Scene, node: MonthNode, name: str) -> None:
        job = node.pods[name].job
        if node.spot is None and scene.find_room(job, frozenset({node.name})) is None:
            self.broken.append(f"{node.name}: {name} was sent away and has room nowhere else")
        if not job.may_move and node.spot is None:
            self.broken.append(f"{node.name}: {name} must not be moved")

    def check_stray(self, scene: Scene, machine: str) -> None:
        node = next((node for node in scene.nodes.values() if node.machine.id == machine), None)
        if node is not None:
            self.broken.append(f"{machine} was called a stray and is node {node.name}")

    def check_remove(self, node: MonthNode) -> None:
        if node.pods:
            self.broken.append(f"{node.name} was removed with {len(node.pods)} pods on it")

    def count_homeless(self, scene: Scene, patience: Seconds) -> int:
        """Who fits onto no machine that was on its way before, by whoever; less those asked for just now."""
        seen = scene.now - (MINUTE if CloudFault.lagging in scene.cloud.faults else 0.0)
        young = [one for one in scene.cloud.coming() if scene.now - one.launched_at < patience]
        asked = [one for one in young if one.is_asked_for and one.launched_at == scene.now]
        coming = [one for one in young if one.launched_at < (scene.now if one.is_asked_for else seen)]
        leaving = [pod for node in scene.nodes.values() if node.ends_at is not None for pod in node.pods.values()]
        asking = [pod.job for pod in (*scene.waiting.values(), *leaving)]
        room = [one.group.shape.gpus or 0 for one in coming]
        homeless = claims.put(asking, [claims.claim_of(one.group) for one in coming], room)
        return len(homeless) - len(asked)

    def check_growth(self, group: str, started: int, homeless: int) -> None:
        """Nothing is grown twice for the same pods."""
        if started > homeless:
            self.broken.append(f"{started} of {group} for {homeless} who fit onto none that comes")

    def check_target(self, group: str, before: int, after: int, homeless: int) -> None:
        """Nothing is asked for twice for the same pods, whether or not there is any: `before`, `after`: how many
        machines the group lacked."""
        if after > max(before, homeless):
            self.broken.append(f"{group} is to start {after} more for {homeless} who fit onto none that comes")


class StatusServer:
    """The API server, as far as it keeps the status of a policy."""

    def __init__(self, ours: "Ours") -> None:
        self._ours = ours

    async def apply(
        self, resource: kube.Resource, namespace: str | None, name: str, body: Mapping[str, Any], *, field_manager: str,
        force: bool = False, dry_run: bool = False, subresource: str | None = None,
    ) -> dict[str, Any]:
        self._ours.before_effect()
        self._ours.status = dict(body["status"])
        return {}


class CheckedHands:
    """The cloud, with the laws asked at every change. `wanted`: what is being grown for; None: what an earlier self
    may have asked for."""

    def __init__(self, ours: "Ours") -> None:
        self._ours = ours
        self.wanted: Grow | None = None

    async def grow(self, growth: Growth) -> None:
        ours, cloud, group = self._ours, self._ours.cloud, growth.group
        ours.before_effect()
        homeless = ours.laws.count_homeless(ours.scene, ours.policy.provision_patience)
        lacked, started = cloud.lacking(group), cloud.started
        await cloud.grow(growth)
        if self.wanted is not None and self.wanted.pods:
            ours.laws.check_growth(group, cloud.started - started, homeless)
            ours.laws.check_target(group, lacked, cloud.lacking(group) + cloud.started - started, homeless)
        ours.before_effect()

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        self._ours.before_effect()
        for each in ids:
            self._ours.laws.check_stray(self._ours.scene, each)
        await self._ours.cloud.remove(group, ids)


class Ours:
    """`status`: of the policy, as it stands in the cluster."""

    def __init__(self, scene: Scene, policy: ScalingPolicy) -> None:
        self.scene, self.policy, self.cloud = scene, policy, scene.cloud
        self.status: dict[str, Any] = {}
        self.senses, self.laws = Senses(), Laws()
        self.grown = self.released = self.killed = 0
        self.keeps = policy.unneeded
        self.reasons: dict[str, int] = {}
        self.before_effect: Callable[[], None] = lambda: None  # raises Killed
        self._hours: list[float] = []
        self._hour_sum, self._summed_at = 0.0, scene.now
        self._version, self._due = -1, -math.inf
        self._looked = self._woken = self._waited = -math.inf
        self.forget()

    def forget(self) -> None:
        """As a process that begins anew does."""
        past = msgspec.structs.replace(self.policy, status=self.status)
        self.memory, self._kept = scaling.recall(ScalingMemory(), [past]), scaling.KeptSight()
        self._asked: set[str] = set()  # tokens of growth that this process asked for
        self._refused: dict[str, set[str]] = {}
        self._refused_at: dict[str, Instant] = {}
        self._due = -math.inf

    @property
    def now(self) -> Instant:
        return self.scene.now + self.senses.off

    # ---- when -------------------------------------------------------------------------------------------------------

    def next_look(self) -> Instant:
        scene = self.scene
        if any(node.spot is not None for node in scene.nodes.values()):
            return scene.now + _HURRY
        regular = soon = _round_up(scene.now + 1.0)
        if scene.version == self._version and not scene.waiting and self._due > soon:
            regular = max(soon, min(_round_up(scene.next_change()), self._due))
        comes = scene.now if self._has_fresh_demand() else scene.next_arrival() + _GATHERING
        early = min(comes, self._waited - self.senses.off)
        self._woken = max(early, self._looked + _HURRY, scene.now)
        return min(regular, self._woken)

    def _has_fresh_demand(self) -> bool:
        return any(pod.since > self._looked for pod in self.scene.waiting.values())

    def _find_due(self, plan: PolicyPlan) -> Instant:
        """The next time that the brain waits for."""
        if plan.in_flight or plan.brakes or any(node.drain for node in self.scene.nodes.values()):
            return -math.inf
        times = [since + self.policy.unneeded for since in self.memory.unneeded.values()]
        busy = [since + scaling.BUSY_FOR for since in self.memory.busy.values()]
        times += [at for at in busy if at > self.now]
        return _round_up(min(times)) if times else math.inf

    async def tick(self) -> None:
        self._count_demand()
        if self.scene.now == self._woken < self._waited - self.senses.off and not self._has_fresh_demand():
            return  # who came has found a place
        self._looked = self.scene.now
        try:
            await self._cycle()
        except Killed:
            self.killed += 1
            self.forget()

    async def _cycle(self) -> None:
        await self._heed_notices()
        self._version = self.scene.version
        sight = await self._look()
        self.memory = scaling.note_looks(self.memory, sight, self.now)
        plan = scaling.plan(sight, self.memory, self.now, kept=self._kept)
        self.memory = plan.memory
        (mine,) = plan.policies
        if mine.full_at is None:
            self.status = {key: value for key, value in self.status.items() if key != "fullAtGPUs"}
        stands = await self._grow_all(mine, sight.groups[self.policy.name])
        for release in mine.releases:
            node = self.scene.nodes.get(release.node)
            if node is not None:
                self.before_effect()
                await self._step(node, scaling.begin_drain(release, self._see_node(node), self.now))
        await self._let_go(mine)
        self._remember(stands)
        self.scene.place()
        self._due = self._find_due(mine)
        self._waited = math.inf if mine.due is None else mine.due

    # ---- look -------------------------------------------------------------------------------------------------------

    async def _look(self) -> ScalingSight:
        policy = msgspec.structs.replace(self.policy, status=self.status)
        groups, machines, wants = await self._ask_cloud()
        return ScalingSight(
            taken_at=self.now, policies=Known((policy,)),
            pods=Known(tuple(self.scene.see(pod) for pod in self.scene.pods.values())),
            nodes=Known(tuple(map(self._see_node, self.scene.nodes.values()))), drivers=Known(DriversSeen()),
            groups={policy.name: groups}, machines={policy.name: machines}, wants=wants, prices=self.cloud.prices,
            past={policy.name: self._past()}, measured=self.senses.measured,
        )

    async def _ask_cloud(self) -> tuple[Any, Any, tuple[WantOfMachines, ...]]:
        ids = [pool.group for pool in self.policy.pools]
        try:
            groups = await self.cloud.groups(ids)
            machines = [one for each in ids for one in await self.cloud.machines(each)]
            wants = [one for each in ids for one in await self.cloud.wants(each)]
        except errors.ClientError as problem:
            return Unseen(str(problem)), Unseen(str(problem)), ()
        return Known(groups), Known(tuple(machines)), tuple(wants)

    def _see_node(self, node: MonthNode) -> ScaledNode:
        group, senses = node.machine.group, self.senses
        use = None if senses.measured else 0.0 if senses.reads_zero else self.scene.find_use(node)
        key = node.version, use, node.is_ready, node.cordoned_by, node.drain, node.spot, node.ends_at, node.rests_until
        if node.seen is None or node.seen[0] != key:
            node.seen = key, ScaledNode(
                name=node.name, uid=f"uid-{node.machine.id}", version=str(node.version),
                provider_id=node.machine.provider_id, labels={names.NODE_POOL: group.id, **group.shape.labels},
                taints=self.scene.list_taints(node), has=group.shape.has or {}, gpus=node.gpus, is_ready=node.is_ready,
                is_cordoned=bool(node.cordoned_by), created_at=node.created_at, tier=group.tier,
                instance_type=group.shape.instance_type, zone=node.machine.zone, pool=group.id, price=group.price,
                use=use, drain=node.drain, spot=node.spot, warned_at=node.warned_at, ends_at=node.ends_at,
                rests_until=node.rests_until, prewarmed_until=node.prewarmed_until,
            )
        return node.seen[1]

    async def _heed_notices(self) -> None:
        try:
            notices = await self.cloud.notices()
            by_id = {node.machine.provider_id: node for node in self.scene.nodes.values()}
            for notice in notices:
                if node := by_id.get(notice.provider_id):
                    node.warned_at, node.ends_at = notice.seen_at, notice.ends_at
            await self.cloud.forget(notices)
        except errors.ClientError:
            return

    def _count_demand(self) -> None:
        """Hourly means of GPUs in use and waited for."""
        now = self.scene.now
        wanted = float(sum(pod.job.gpus for pod in self.scene.pods.values()))
        while now - self.scene.begins >= HOUR * (len(self._hours) + 1):
            ends = self.scene.begins + HOUR * (len(self._hours) + 1)
            self._hours.append((self._hour_sum + wanted * (ends - self._summed_at)) / HOUR)
            self._hour_sum, self._summed_at = 0.0, ends
        self._hour_sum += wanted * (now - self._summed_at)
        self._summed_at = now

    def _past(self) -> DemandPast:
        ends = self.scene.begins + HOUR * len(self._hours)
        return DemandPast(ends_at=ends, hours=tuple(self._hours[-_HISTORY:]))

    # ---- more -------------------------------------------------------------------------------------------------------

    def _remember(self, stands: Grown) -> None:
        """What must not be forgotten stands in the status."""
        self.before_effect()
        failures, last = self.memory.failures.get(self.policy.name, (0, 0.0))
        self.status = {
            **self.status, "inFlight": scaling_status.write_in_flight(stands.in_flight),
            "stockouts": scaling_status.write_stockouts(stands.stockouts),
            "providerFailures": failures, "lastProviderFailureTime": units.rfc3339(last),
        }

    async def _grow_all(self, plan: PolicyPlan, groups: Input[tuple[MachineGroup, ...]]) -> Grown:
        """By the hands of the product, in the order of its story."""
        grower = Grower(ScalingStatuses(StatusServer(self)), scaling.note_shortage)
        targets = {each.id: each.target for each in sure(groups) if each.target is not None}
        hands = CheckedHands(self)
        if plan.acts:
            await grower.ask_again(plan, hands, targets, self._asked)
            await grower.drop(plan.strays, hands)
        self._asked |= {each.token for each in plan.in_flight}
        there, stands = dict(plan.there), Grown(in_flight=plan.in_flight, stockouts=plan.stockouts, said="")
        for wanted in plan.grows if plan.acts else ():
            hands.wanted = wanted
            stands = await grower.grow(plan.policy, wanted, hands, there, stands, self.now)
            self._asked |= {each.token for each in stands.in_flight}
            self._note_cloud(failed=bool(stands.failure))
            if stands.failure:
                break
            self.grown += stands.count
            self.reasons[wanted.reason] = self.reasons.get(wanted.reason, 0) + stands.count
        return stands

    def _note_cloud(self, *, failed: bool) -> None:
        if failed:
            self.memory = scaling.note_failure(self.memory, self.policy.name, self.now)
        else:
            self.memory = scaling.clear_failures(self.memory, self.policy.name)

    # ---- less -------------------------------------------------------------------------------------------------------

    async def _let_go(self, plan: PolicyPlan) -> None:
        for node in list(self.scene.nodes.values()):
            if node.drain is None and node.spot is None and node.ends_at is None:
                continue
            there = LeavingNode(
                node=self._see_node(node), pods=tuple(map(self.scene.see, node.pods.values())), policy=self.policy,
                wanted=plan.wanted.get(node.name, ""), stuck=plan.stuck.get(node.name, ""),
                refused=frozenset(self._refused.get(node.name, ())),
                refused_at=self._refused_at.get(node.name),
            )
            for step in scaling.advance(there, self.now):
                self.before_effect()
                await self._step(node, step)

    async def _step(self, node: MonthNode, step: LeavingStep) -> None:
        node.version += 1
        match step:
            case BeginDrain(record=drain):
                node.drain, node.cordoned_by = drain, _US
            case BeginSpot(record=spot):
                node.spot, node.drain, node.cordoned_by = spot, None, _US
            case EvictNow(pod=pod):
                self._evict(node, pod)
            case DeleteNow(pod=pod):
                self._send_away(node, pod)
            case RemoveMachine(record=drain):
                node.drain = drain
                await self._remove(node)
            case UndoDrain(rests=rests):
                node.drain = node.spot = node.warned_at = node.ends_at = None
                node.cordoned_by, node.rests_until = "", self.now + rests

    async def _remove(self, node: MonthNode) -> None:
        """From here on the cooldown runs, if its cloud has heard of it."""
        self.laws.check_remove(node)
        self.before_effect()
        is_new = not node.machine.is_told
        try:
            await self.cloud.remove(node.machine.group.id, [node.machine.id])
        except errors.ClientError:
            self._note_cloud(failed=True)
            return
        self._note_cloud(failed=False)
        if is_new:
            self.released += 1
            self.before_effect()
            self.status = {**self.status, "lastScaleDownTime": units.rfc3339(self.now)}

    def _evict(self, node: MonthNode, pod: PodId) -> None:
        if self.senses.refusing:
            self._refused.setdefault(node.name, set()).add(pod.uid)
            self._refused_at[node.name] = self.now
            return
        if pod.name in node.pods:
            self.laws.check_evict(self.scene, node, pod.name)
        self._send_away(node, pod)

    def _send_away(self, node: MonthNode, pod: PodId) -> None:
        found = node.pods.get(pod.name)
        if found is not None and found.id == pod:
            self.scene.send_away(found)
            self.scene.place()


def _round_up(at: Instant) -> Instant:
    return math.ceil(at / PACE) * PACE if math.isfinite(at) else at
