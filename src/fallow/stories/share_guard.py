"""The guard of those who share GPUs: every five minutes, whether sharing hurt somebody, and whole GPUs back if it did.

    look    owners whose first shared pod is less than a day old; what Prometheus tells of them, now and before
    plan    who was hurt, by what
    act     the policy's status first (the brake), then the back-off on the owner, which the webhook heeds; in a later
            turn, where its policy says so (restartOnRevert), one of them is restarted, rolling
    tell    an Event on the owner, a counter, a line in the log and, of a restart, in the audit

Whatever cannot be asked hurts nobody. Nothing that runs is touched but by such a restart.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import names, telemetry
from fallow.act import hands as doing
from fallow.act.restarting import Restarter
from fallow.act.share_statuses import ShareStatuses
from fallow.clients import errors
from fallow.decide import sharing
from fallow.model import cluster, kinds
from fallow.model.decision import Status
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.model.policies import sharing_crd
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import Input, Known, Unseen
from fallow.model.share_hurts import (
    EVALUATED,
    Hurt,
    HurtSeen,
    PolicyReverts,
    RestartEnded,
    RevertsKept,
    SharedOwner,
    ShareRestart,
    ShareRevert,
)
from fallow.model.units import Instant, Seconds
from fallow.stories.turn import Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = EVALUATED
Read: TypeAlias = Callable[[Sequence[SharedOwner], Instant], Awaitable[Mapping[str, HurtSeen]]]


class GuardSights(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: what the workloads' places point into. `read` None: there is no Prometheus to ask, or none to believe."""

    policies: Callable[[], Input[tuple[SharingPolicy, ...]]]
    pods: Callable[[], Sequence[cluster.Pod]]
    workloads: Callable[[], Sequence[cluster.Workload]]
    read: Read | None


class GuardHands(msgspec.Struct, frozen=True, kw_only=True):
    """`held`: why nothing that runs is restarted now; "" = it may be. `enter`: into the audit."""

    hands: doing.Hands
    statuses: ShareStatuses
    held: Callable[[Instant], str] = lambda _: ""
    enter: Callable[[AuditEntry], Awaitable[None]] | None = None


class GuardCycle(msgspec.Struct, frozen=True, kw_only=True):
    """`because`: why nobody can tell whether anybody was hurt."""

    watched: int = 0
    hurt: tuple[tuple[SharedOwner, Hurt], ...] = ()
    because: str = ""
    failure: str = ""


class ShareGuardStory:
    def __init__(self, *, sights: GuardSights, acts: GuardHands, metrics: telemetry.Telemetry) -> None:
        self._sights, self._acts, self._metrics = sights, acts, metrics
        self._hands, self._statuses = acts.hands, acts.statuses
        self._restarter = Restarter(acts.hands.writer, acts.hands.announcer, sharing.refuse_restart)
        self._noted: dict[str, RevertsKept] = {}  # by policy: what we wrote, until it is seen there
        self._counts: Mapping[str, PolicyReverts] = {}
        self._left: dict[str, str] = {}  # whose restart was refused for which back-off: said once
        self._said = ""

    async def tick(self, turn: Turn) -> GuardCycle:
        made = await self.look(turn)
        for owner, hurt in made.hurt:
            if turn.may_act():
                await self._revert(owner, hurt, turn.now)
        with stumbling():
            self._count(turn.now)
        await self._restart_one(turn)
        if made.because and made.because != self._said:
            log.warning("whether sharing hurts anybody cannot be told: %s", made.because)
        self._said = made.because
        return made

    async def look(self, turn: Turn) -> GuardCycle:
        known = self._sights.policies()
        if isinstance(known, Unseen):
            return self.fail(known.why, turn)
        with stumbling():
            policies = known.value if isinstance(known, Known) else ()
            watched = sharing.find_watched(self._sights.workloads(), self._sights.pods(), policies, turn.now)
        if not watched:
            return GuardCycle()
        if self._sights.read is None:
            return GuardCycle(watched=len(watched), because="there is no Prometheus that is believed")
        try:
            seen = await turn.in_time(self._sights.read(watched, turn.now))
        except errors.ClientError as problem:
            return GuardCycle(watched=len(watched), because=str(problem))
        judged = ((each, sharing.judge_hurt(seen[each.workload.ref.uid], each.guard)) for each in watched)
        return GuardCycle(watched=len(watched), hurt=tuple((each, hurt) for each, hurt in judged if hurt is not None))

    def fail(self, because: str, turn: Turn) -> GuardCycle:
        return GuardCycle(failure=because)

    def find_reverts(self, policy: str) -> PolicyReverts | None:
        """As they were last counted."""
        return self._counts.get(policy)

    async def _revert(self, owner: SharedOwner, hurt: Hurt, now: Instant) -> None:
        mark = sharing.revert(owner, hurt, now)
        try:
            if not self._hands.writer.is_dry:
                await self._note(owner, now)
                await self._revert_schedule(owner, hurt, now)
            done = await self._hands.mark(mark, now)
        except errors.ClientError as problem:
            log.warning("sharing hurt %s, and it did not get whole GPUs back: %s", owner.workload.ref, problem)
            return
        log.warning("%s: %s (%s)", owner.workload.ref, mark.because, done.status)
        if done.status is Status.done:
            self._metrics.add("gpu_autoscaler_sharing_reverts_total", 1, (owner.strategy, str(hurt.reason)))

    async def _revert_schedule(self, owner: SharedOwner, hurt: Hurt, now: Instant) -> None:
        """Before the Job, which is not looked at again once it has its mark. Without the right (letter c) its own
        further pods have whole GPUs all the same."""
        above = kinds.find_schedule(owner.workload)
        if above is None:
            return
        try:
            marks = (await self._hands.writer.read(above))["metadata"].get("annotations") or {}
            await self._hands.mark(sharing.revert_schedule(owner, hurt, above, marks, now), now)
        except (errors.Forbidden, errors.NotFound) as problem:
            log.warning("what %s begins next shares GPUs again: %s", above, problem)

    async def _note(self, owner: SharedOwner, now: Instant) -> None:
        policy = next((each for each in self._list_policies() if each.name == owner.policy), None)
        if policy is None:  # the pod itself asked to share, or its policy is gone
            return
        kept = sharing.keep_reverts(self._find_noted(policy, now), now, ShareRevert(owner.workload.ref.uid, now))
        await self._statuses.note_reverts(policy, kept)
        self._noted[policy.uid] = kept

    def _find_noted(self, policy: SharingPolicy, now: Instant) -> RevertsKept:
        """What stands there, or what we wrote where that is not seen yet: whichever has more."""
        there = sharing.keep_reverts(sharing_crd.read_reverts(policy.status), now)
        ours = sharing.keep_reverts(self._noted.get(policy.uid, RevertsKept()), now)
        return max(ours, there, key=len)

    def _count(self, now: Instant) -> None:
        workloads, pods, policies = self._sights.workloads(), self._sights.pods(), self._list_policies()
        self._counts = {
            each.name: sharing.count_reverts(each, workloads, pods, self._find_noted(each, now), now)
            for each in policies
        }
        self._noted = {each.uid: self._noted[each.uid] for each in policies if each.uid in self._noted}

    # ---- restarts ----

    async def _restart_one(self, turn: Turn) -> None:
        """One in a turn: what is made anew needs whole GPUs, and those must be free."""
        with stumbling():
            policies = self._list_policies()
            reverts = {each.name: self._find_noted(each, turn.now) for each in policies}
            found = sharing.find_restarts(
                self._sights.workloads(), self._sights.pods(), policies, reverts, turn.now
            )
        self._left = {each.workload.ref.uid: each.until for each in found if self._is_left(each)}
        for each in found:
            if self._is_left(each) or not turn.may_act() or self._acts.held(turn.now):
                continue
            if await self._restart(each, turn.now):
                return

    def _is_left(self, restart: ShareRestart) -> bool:
        return self._left.get(restart.workload.ref.uid) == restart.until

    async def _restart(self, restart: ShareRestart, now: Instant) -> bool:
        ref = restart.workload.ref
        try:
            ended = await self._restarter.restart(restart, now)
        except errors.ClientError as problem:
            ended = RestartEnded(because=str(problem), may_follow=True)
        said = "is restarted" if ended.is_done else "is not restarted"
        log.warning("%s, which sharing hurt, %s: %s", ref, said, ended.because)
        if not ended.may_follow:
            self._left[ref.uid] = restart.until
        if ended.is_done and self._acts.enter is not None:
            await self._acts.enter(AuditEntry(
                at=now, type=Happened.restarted, sentence=ended.because, actor=names.FIELD_MANAGER,
                source=CameBy.cycle, ref=ref, policy=restart.policy,
            ))
        return ended.is_done

    def _list_policies(self) -> tuple[SharingPolicy, ...]:
        known = self._sights.policies()
        return known.value if isinstance(known, Known) else ()
