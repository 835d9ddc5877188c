"""Nodes before anybody waits for them: marks on those that we started, room and requests where somebody else drives.

In: the latest cycle. Out: annotations, CapacityBuffers or placeholders, ProvisioningRequests; what was done, a sentence
each. `fared`: of this turn, by policy, whether nodes that were started ahead of demand were used.
"""

from collections.abc import Awaitable, Sequence

from fallow import names
from fallow.account.scaling import ScalingAccount
from fallow.clients import errors
from fallow.model import scaling_status, units
from fallow.model.scaling_plan import Headroom
from fallow.model.seen import Known
from fallow.stories.scaling.terms import ScalingCycle, ScalingHands, ScalingStoryTerms
from fallow.stories.turn import Turn


class AheadOfDemand:
    def __init__(self, hands: ScalingHands, terms: ScalingStoryTerms, account: ScalingAccount) -> None:
        self._hands, self._terms, self._account = hands, terms, account
        self.fared: dict[str, list[bool]] = {}
        self._owes = False  # a status tells of room, which may have to go

    async def mark_started(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """On nodes that were started ahead of demand, until when they stay; later, whether anybody came: each counts
        when it says so itself."""
        self.fared = {}
        nodes = {each.name: each for each in made.find_nodes()}
        for plan in made.policies:
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
                    self.fared.setdefault(plan.policy.name, []).append(plan.prewarmed[name])
                    self._account.note_prewarmed(plan.policy.name, is_used=plan.prewarmed[name])

    async def keep_room(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """Ahead of demand, where somebody else adds machines; of a policy that is gone, or acts no longer, none. What
        is not seen, or frozen, stays as it is: who removes us has taken it away."""
        drivers = made.sight.drivers if made.sight is not None else None
        if not isinstance(drivers, Known) or made.plan is None or made.plan.unseen:
            return
        may_keep = self._terms.is_on and self._terms.acts
        self._owes |= any(scaling_status.read(each.policy.status).rooms for each in made.policies)
        rooms = [room for each in made.policies if may_keep and each.acts for room in each.headroom]
        if may_keep or self._owes:  # who never acted has no right to look for room that stands
            await self._keep(rooms, drivers.value.buffers, turn, done)

    async def drop_room(self, turn: Turn, done: list[str]) -> None:
        """There is no policy."""
        if self._terms.acts:
            await self._keep((), "", turn, done)

    async def _keep(self, rooms: Sequence[Headroom], version: str, turn: Turn, done: list[str]) -> None:
        if not turn.may_act() or self._terms.frozen(turn.now):
            return
        try:
            done += await self._hands.headroom.keep(rooms, version)
            self._owes = False
        except errors.ClientError as problem:
            done.append(f"room ahead of demand stays as it is: {problem}")

    async def keep_requests(self, made: ScalingCycle, turn: Turn, done: list[str]) -> None:
        """For gangs, where cluster-autoscaler adds machines: made once, and gone when nobody waits for it."""
        drivers = made.sight.drivers if made.sight is not None else None
        if not isinstance(drivers, Known) or made.plan is None or made.plan.unseen:
            return
        asked = {each.name: each for plan in made.policies if plan.acts for each in plan.gangs}
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
