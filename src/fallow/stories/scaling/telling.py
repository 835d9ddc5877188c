"""What people hear of nodes that come and go: the statuses of policies, Events about pods and policies, the log.

In: a plan, and what became of it. Out: writes that change nothing but what is told. Said once each, not at every turn.
Without leave to act only statuses are written.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.account.scaling import ScalingAccount
from fallow.act import scaling_statuses
from fallow.act.growing import Grown
from fallow.decide import scaling as deciding
from fallow.model import cluster, scaling_status, seen
from fallow.model.scaling import ScalingMemory
from fallow.model.scaling_plan import Blocked, Fit, PolicyPlan, ScalingPlan
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.stories.scaling.terms import ScalingCycle, ScalingHands, ScalingStoryTerms
from fallow.stories.turn import Turn

log = logging.getLogger("fallow")

_STUCK: Final[Seconds] = 5 * MINUTE  # a pod that fits and is not scheduled for so long is told of
_MOST_TOLD: Final = 20  # Events about pods in one turn


class ScalingTeller:
    def __init__(self, hands: ScalingHands, terms: ScalingStoryTerms, account: ScalingAccount) -> None:
        self._hands, self._terms, self._account = hands, terms, account
        self._said: dict[str, str] = {}

    async def tell_statuses(
        self, plan: ScalingPlan, turn: Turn, *, stands: Mapping[str, Grown], fared: Mapping[str, Sequence[bool]],
        memory: ScalingMemory,
    ) -> None:
        """By policy: `stands`: what is on its way since this turn; `fared`: nodes started ahead that were settled."""
        for each in plan.policies:
            if not turn.may_act():
                return
            before = self._hands.statuses.find(each.policy)
            kept, stand = scaling_status.read(before), stands.get(each.policy.name)
            shown = msgspec.structs.replace(
                each, acts=each.acts and self._terms.acts, in_flight=stand.in_flight if stand else each.in_flight,
                stockouts=stand.stockouts if stand else each.stockouts,
            )
            prewarms = deciding.count_prewarms(kept.hits, kept.misses, fared.get(each.policy.name, ()))
            interruptions = self._account.interruptions(each.policy, kept.interruptions)
            more = interruptions - kept.interruptions
            status = scaling_statuses.make(
                shown, before, turn.now, interruptions=interruptions,
                watch=self._account.spot.watch(each.policy.name, kept.spot_watch, more, turn.now),
                savings=self._account.saved_hourly(each.policy.name, turn.now),
                prewarms=prewarms, failed=memory.failures.get(each.policy.name),
            )
            await self._hands.statuses.write(each.policy, status)
            await self._tell_policy(each, kept.hits, kept.misses, prewarms, turn.now)

    async def _tell_policy(
        self, plan: PolicyPlan, hits: int, misses: int, prewarms: tuple[int, int], now: Instant
    ) -> None:
        if not (self._terms.acts and plan.policy.acts):
            return
        if stopped := plan.blocked.get(Blocked.LimitReached, ""):
            await self._hands.announcer.announce_once(plan.policy.ref, names.Event.LIMIT_REACHED, stopped, now, stopped)
        lost = deciding.find_distrust(*prewarms)
        if lost and not deciding.find_distrust(hits, misses):
            await self._hands.announcer.announce(
                plan.policy.ref, names.Event.PREWARMING_OFF,
                f"{lost}: none is any more, until enablePredictiveScaling is switched off and on again", now,
            )

    async def tell_pods(self, made: ScalingCycle, turn: Turn) -> None:
        """Once each: who fits and is not scheduled, and whom no pool fits. Where every policy only advises, nobody."""
        if not self._terms.acts or not any(each.policy.acts for each in made.policies):
            return
        waits = {each.id.uid: each.waits_since for each in seen.sure(made.sight.pods)} if made.sight else {}
        sent = 0
        for verdict in made.plan.pods if made.plan else ():
            since = waits.get(verdict.pod.uid)
            is_stuck = verdict.fit is Fit.FitsNow and since is not None and turn.now - since >= _STUCK
            if (not is_stuck and verdict.fit is not Fit.NoPoolFits) or verdict.pod.uid in self._account.informed:
                continue
            if not turn.may_act() or sent == _MOST_TOLD:
                return
            sent += 1
            reason = names.Event.FITS_BUT_UNSCHEDULED if is_stuck else names.Event.NO_POOL_FITS
            ref = cluster.Ref("", "v1", "Pod", *verdict.pod)
            await self._hands.announcer.announce_once(ref, reason, verdict.because, turn.now, f"{since or 0:.0f}")
            self._account.informed.add(verdict.pod.uid)
        self._account.informed &= waits.keys()

    def tell_log(self, plan: ScalingPlan) -> None:
        """A line when something else is true than before."""
        said = {each.policy.name: each.because for each in plan.policies if each.because}
        for name, because in said.items():
            if self._said.get(name) != because:
                log.info("nodes of policy %s: %s", name, because)
        self._said = said
