"""Nodes that leave, step by step, each looked at anew before every step: drained by us, or taken back by their clouds.

In: the latest cycle, and what the watch of nodes tells since. Out: what was done, a sentence each; what a policy's
status and the books must know of it. What was begun stands on the node: who is killed between two steps goes on there.
Invariant: a notice that was not planned with is cordoned at once and emptied only once its replacement was planned. A
node that ends is emptied whether or not its cloud answers. A machine is told to go only where its cloud lists it, and
what went is in the books once, whoever is killed in between.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from fallow import names
from fallow.account.scaling import ScalingAccount
from fallow.act.scaling_statuses import Deed
from fallow.clients import errors
from fallow.clients.clouds import Cloud
from fallow.decide import scaling as deciding
from fallow.model import cluster
from fallow.model.history import Happened
from fallow.model.leaving import (
    BeginDrain,
    BeginSpot,
    DeleteNow,
    LeavingNode,
    LeavingStep,
    RemoveMachine,
    StayPut,
    UndoDrain,
)
from fallow.model.machines import CloudMachine, MachineState
from fallow.model.policies.scaling import NodeDriver, ScalingPolicy
from fallow.model.scaling import ScaledNode, ScalingSight
from fallow.model.scaling_plan import PolicyPlan, Release
from fallow.model.seen import ABSENT, Absent, Input, Known, Unseen
from fallow.model.units import Instant
from fallow.observe.scaling.clouds import FindCloud
from fallow.observe.scaling.sight import ScalingEyes, is_leaving
from fallow.stories.scaling.terms import ScalingCycle, ScalingHands, ScalingStoryTerms
from fallow.stories.turn import Turn, stumbling

log = logging.getLogger("fallow")

_MOST_STEPS: Final = 64  # of one node in one turn, those included that came too late


class _Refusals(msgspec.Struct):
    """Of one node: whose eviction was refused, and whether by a budget; when last; why it can never be granted."""

    uids: dict[str, bool] = msgspec.field(default_factory=dict)
    at: Instant | None = None
    blocked: str = ""


def is_unheeded(node: ScaledNode, now: Instant) -> bool:
    """Its cloud takes it back, and nobody has begun to heed it."""
    return node.spot is None and deciding.is_taken_back(node, now)


class NodeDepartures:
    def __init__(
        self, *, eyes: ScalingEyes, hands: ScalingHands, terms: ScalingStoryTerms, find_cloud: FindCloud,
        account: ScalingAccount, note_cloud: Callable[[str, Instant, bool], None],
    ) -> None:
        """`note_cloud`: a policy's cloud was asked, then, and failed or not."""
        self._eyes, self._hands, self._terms = eyes, hands, terms
        self._find_cloud, self._account, self._note_cloud = find_cloud, account, note_cloud
        self._refused: dict[str, _Refusals] = {}  # by uid of the node
        self._awaited: dict[str, tuple[ScaledNode, str]] = {}  # by uid: not in the books yet when it goes; its policy

    def list_touched(self, now: Instant) -> list[ScaledNode]:
        """Nodes that leave now, as the watch tells it: a notice that is long over, or was none, is not waited for."""
        return [
            each for each in self._eyes.touched
            if each.is_broken or each.drain is not None or deciding.is_taken_back(each, now)
        ]

    async def begin_at_once(self, last: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """The cordon, before anybody else is asked anything."""
        for node in self._eyes.touched:
            if is_unheeded(node, turn.now):
                await self._advance(node, last, turn, done, begins_only=True)

    async def begin_spot(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """The cordon first: nobody new comes to a machine that ends."""
        for node in made.find_nodes(lambda node: is_unheeded(node, turn.now)):
            await self._advance(node, made, turn, done, begins_only=True)

    async def let_go(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """A notice that came while all was looked at waits for its own turn, which plans who replaces the node: else
        its pods were moved before there is a place for them."""
        planned = {each.uid for each in made.find_nodes(is_leaving)}
        for node in self.list_touched(turn.now):
            if not turn.may_act():
                return
            if node.uid in planned or not is_unheeded(node, turn.now):
                await self._advance(node, made, turn, done)

    async def release(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """Whom nobody needs."""
        if self._terms.frozen(turn.now):
            return
        nodes = {each.uid: each for each in made.find_nodes()}
        for plan in made.policies:
            for release in plan.releases if plan.acts else ():
                node = nodes.get(release.uid)
                if node is None or not turn.may_act():
                    continue
                try:
                    is_begun = await self._begin(release, node, made, turn, done)
                except errors.ClientError as problem:
                    done.append(f"{release.node}: nothing was begun: {problem}")
                    continue
                if is_begun:
                    await self._advance(node, made, turn, done)

    async def _begin(
        self, release: Release, node: ScaledNode, made: ScalingCycle, turn: Turn, done: list[str]
    ) -> bool:
        there = await self._look_at(node, made, turn)
        if there is None or is_leaving(there.node):
            return False
        with stumbling():
            objection = deciding.find_objection(release, there)
            step = deciding.begin_drain(release, there.node, turn.now)
        if objection:
            done.append(f"{release.node}: nothing was begun: {objection}")
            return False
        await self._carry_out(there, step, made, turn, done)
        ref = cluster.node_ref(there.node.name, there.node.uid)
        self._account.note(Happened.drain_begun, ref, release.because, turn.now, policy=release.policy)
        return True

    async def find_gone(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """Nodes that we emptied, or whose machine was told to go, and that are gone since: by whoever drives, or by a
        cloud that heard us although it did not say so."""
        if made.sight is None or isinstance(made.sight.nodes, Unseen):
            return
        there = {each.uid: each for each in made.find_nodes()}
        for node in there.values():
            plan = made.find_plan(node) if node.drain is not None else None
            if node.drain is not None and _is_awaited(node, plan.driver if plan is not None else NodeDriver.direct):
                self._awaited[node.uid] = node, node.drain.policy
            else:
                self._awaited.pop(node.uid, None)
        policies = {each.policy.name: each.policy for each in made.policies}
        for uid, (node, name) in list(self._awaited.items()):
            if uid not in there and turn.may_act():
                try:
                    await self._note_deed(node, policies.get(name), turn.now)
                except errors.ClientError as problem:
                    done.append(f"that {node.name} is gone is told later: {problem}")
                    continue
                self._enter(node, name, turn.now)

    # ---- one node ----

    async def _advance(
        self, node: ScaledNode, made: ScalingCycle, turn: Turn, done: list[str], *, begins_only: bool = False
    ) -> None:
        """Step by step, looked at anew before each; until there is nothing to do but to wait."""
        for _ in range(_MOST_STEPS):
            if not turn.may_act():
                return
            try:
                there = await self._look_at(node, made, turn)
                if there is None:
                    return
                with stumbling():
                    steps = deciding.advance(there, turn.clock())
                step = next((each for each in steps if not isinstance(each, StayPut)), None)
                if step is None or (begins_only and not isinstance(step, BeginSpot)):
                    return
                if not await self._carry_out(there, step, made, turn, done):
                    return
            except errors.Conflict:
                log.debug("%s changed meanwhile: it is looked at again", node.name)
            except errors.ClientError as problem:  # of one node: others that end must not wait for it
                done.append(f"{node.name}: {problem}")
                return

    async def _look_at(self, node: ScaledNode, made: ScalingCycle, turn: Turn) -> LeavingNode | None:
        found = await turn.in_time(self._eyes.look_at(node.name, turn.now))
        if found is None or found[0].uid != node.uid:
            self._refused.pop(node.uid, None)
            return None
        now_there, pods = found
        plan = made.find_plan(now_there)
        known = next((each for each in made.find_nodes() if each.uid == node.uid), None)
        refused = self._refused.get(node.uid, _Refusals())
        machine = _find_machine(now_there, made.sight, plan)
        may_go_on = plan is not None and self._may_go_on(now_there, plan, made, turn)
        return LeavingNode(
            node=msgspec.structs.replace(now_there, use=known.use if known else None,
                                         price=known.price if known else None),
            pods=pods, policy=plan.policy if plan is not None and may_go_on else None,
            driver=plan.driver if plan is not None else NodeDriver.direct,
            wanted=plan.wanted.get(node.name, "") if plan is not None else "",
            stuck=plan.stuck.get(node.name, "") if plan is not None else "",
            refused=frozenset(refused.uids), refused_at=refused.at, blocked=refused.blocked,
            unlisted=_why_unlisted(machine), is_gone=isinstance(machine, Absent),
            brakes=plan.brakes if plan is not None else {},
        )

    def _may_go_on(self, node: ScaledNode, plan: PolicyPlan, made: ScalingCycle, turn: Turn) -> bool:
        """What we may no longer do is given back. A node that ends is never left alone, whatever else is halted."""
        if not (self._terms.is_on and self._terms.acts):
            return False
        if node.ends_at is not None or (node.spot is not None and node.spot.ends_at is not None):
            return plan.heeds
        if not plan.acts or not made.may_mean(plan, node):
            return False
        return node.spot is not None or not self._terms.frozen(turn.now)

    async def _carry_out(
        self, there: LeavingNode, step: LeavingStep, made: ScalingCycle, turn: Turn, done: list[str]
    ) -> bool:
        """Whether a further step may follow in this turn."""
        node, now = there.node, turn.clock()
        if isinstance(step, RemoveMachine | BeginDrain):
            meant = msgspec.structs.replace(node, drain=step.record)
            if _is_awaited(meant, there.driver):
                self._awaited[node.uid] = meant, step.record.policy
        result = await self._hands.leaving.carry_out(there, step, now, lambda _: self._remove(there, made, turn))
        done.append(f"{node.name}: {result.said}")
        if result.refused:
            kept = self._refused.setdefault(node.uid, _Refusals())
            kept.uids[result.refused] = result.is_budget
            kept.at, kept.blocked = now, result.blocked or kept.blocked
        if isinstance(step, DeleteNow) and result.is_deleted:
            await self._tell_deleted(there, step, now)
        if isinstance(step, UndoDrain):
            self._refused.pop(node.uid, None)
            self._awaited.pop(node.uid, None)
            ref = cluster.node_ref(node.name, node.uid)
            if node.drain is not None:
                self._account.note_kept(node, node.drain.policy)
            self._account.note(Happened.drain_undone, ref, step.because, now, policy=_policy_of(there))
            return False
        if isinstance(step, RemoveMachine):
            if not step.record.is_told:
                await self._note_removed(there, step, now)
            return False
        return True

    # ---- its machine ----

    async def _remove(self, there: LeavingNode, made: ScalingCycle, turn: Turn) -> None:
        machine = _find_machine(there.node, made.sight, made.find_plan(there.node))
        cloud: Cloud | None = self._find_cloud(there.policy) if there.policy is not None else None
        if cloud is None or not isinstance(machine, Known):
            raise errors.ClientError(_why_unlisted(machine) or "no cloud may be asked for its machine")
        try:
            await cloud.remove(machine.value.group, [machine.value.id])
        except errors.ClientError:
            self._note_cloud(_policy_of(there), turn.now, True)
            self._account.note_kept(there.node, _policy_of(there))
            raise
        self._note_cloud(_policy_of(there), turn.now, False)

    async def _note_removed(self, there: LeavingNode, step: RemoveMachine, now: Instant) -> None:
        """The status first, which may be written twice; then the mark, so that the books have it once."""
        node = msgspec.structs.replace(there.node, drain=step.record)
        await self._note_deed(node, there.policy, now)
        await self._hands.leaving.mark_told(node, step.record)
        self._enter(node, step.record.policy, now)

    async def _note_deed(self, node: ScaledNode, policy: ScalingPolicy | None, now: Instant) -> None:
        """From here on its cooldown runs."""
        if policy is not None:
            deed = Deed(action=f"scale_down: {node.name}", reason=_why_gone(node), shrank=True)
            try:
                await self._hands.statuses.note_deed(policy, deed, now)
            except (errors.NotFound, errors.Conflict):  # deleted, or deleted and made again
                log.debug("policy %s is gone, and %s with it", policy.name, node.name)

    def _enter(self, node: ScaledNode, policy: str, now: Instant) -> None:
        """What it would have cost is saved."""
        self._awaited.pop(node.uid, None)
        self._account.note_removed(node, policy, _why_gone(node), now)

    async def _tell_deleted(self, there: LeavingNode, step: DeleteNow, now: Instant) -> None:
        pod = step.pod
        is_budget = self._refused.get(there.node.uid, _Refusals()).uids.get(pod.uid, False)
        why = "past its budget, which refused" if is_budget else "because its eviction failed"
        said = f"{pod.namespace}/{pod.name} was deleted {why} until the last moment: its machine ends anyway"
        ref = cluster.Ref("", "v1", "Pod", *pod)
        self._account.note(Happened.interrupted, ref, said, now, policy=_policy_of(there))
        await self._hands.announcer.announce(ref, names.Event.SPOT_INTERRUPTED, said, now)


def _is_awaited(node: ScaledNode, driver: NodeDriver) -> bool:
    """Whether it is not in the books yet that it goes: where another drives, once it is gone; where we do, once its
    cloud was told."""
    if node.drain is None or node.drain.is_told:
        return False
    return node.drain.removing is not None or driver is not NodeDriver.direct


def _find_machine(node: ScaledNode, sight: ScalingSight | None, plan: PolicyPlan | None) -> Input[CloudMachine]:
    """As its cloud listed it last. One of a group that cannot be read is unseen, not absent; and so is one that may be
    another's: whoever wrote a record on their own node could have that one's ended."""
    if node.twin:
        return Unseen(node.twin)
    if sight is None or plan is None:
        return Unseen("no policy means it")
    listed, groups = sight.machines.get(plan.policy.name), sight.groups.get(plan.policy.name)
    if not isinstance(listed, Known) or not isinstance(groups, Known):
        return Unseen("its cloud does not say which machines it has")
    for each in listed.value:
        if node.provider_id and each.provider_id == node.provider_id and each.state is not MachineState.gone:
            return Known(each)
    read = {each.id for each in groups.value if not each.error}
    unread = next((pool.group for pool in plan.policy.pools if pool.group and pool.group not in read), "")
    return Unseen(f"group {unread} cannot be read") if unread else ABSENT


def _why_unlisted(machine: Input[CloudMachine]) -> str:
    match machine:
        case Known():
            return ""
        case Unseen(why):
            return f"its machine is not seen: {why}"
    return "its cloud does not list its machine"


def _why_gone(node: ScaledNode) -> str:
    return node.drain.because if node.drain is not None else "its cloud takes it back"


def _policy_of(there: LeavingNode) -> str:
    return there.policy.name if there.policy is not None else ""
