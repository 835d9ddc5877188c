"""What became of GPUSharingPolicies: every minute, into their status.

    look    policies and nodes as the cluster has them; every few minutes, where there are policies, all running pods
    plan    how each stands, and how many pods it changed or would change
    tell    its status

The webhook only reads, and must be quick: what it did is found by who looks afterwards. Nothing else is ever written.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from fallow import telemetry
from fallow.act.share_statuses import ShareStatuses
from fallow.clients import errors
from fallow.decide import sharing
from fallow.model import cluster
from fallow.model.claims import ClaimGround
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen
from fallow.model.share_hurts import PolicyReverts
from fallow.model.sharing import OwnerUse, PolicyCounts, PolicyStanding, TopOwner
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe.share_pods import RunningPod
from fallow.stories.turn import Complaint, Turn, stumbling

INTERVAL: Final[Seconds] = MINUTE
COUNTED: Final[Seconds] = 5 * MINUTE  # between two looks at all running pods


class PolicySights(msgspec.Struct, frozen=True, kw_only=True):
    """`policies` by rank. `owners`: of pods, by their uid, as far as they are known. `use`: of an owner, by its uid.
    `reverts`: of a policy, by its name; None where nobody counted. `claims`: where parts are given by them."""

    policies: Callable[[], Input[tuple[SharingPolicy, ...]]]
    nodes: Callable[[], Input[sharing.PartIndex]]
    namespaces: Callable[[], Register[cluster.Namespace]]
    owners: Callable[[], Mapping[str, TopOwner]]
    use: Callable[[str], Input[OwnerUse]]
    reverts: Callable[[str], PolicyReverts | None]
    running: Callable[[], Awaitable[tuple[RunningPod, ...]]]
    claims: Callable[[], Input[ClaimGround]] = lambda: ABSENT


class PoliciesCycle(msgspec.Struct, frozen=True, kw_only=True):
    """`policies` by rank; `standings` by their names."""

    policies: tuple[SharingPolicy, ...] = ()
    standings: Mapping[str, PolicyStanding] = {}
    failure: str = ""


class SharePoliciesStory:
    def __init__(
        self, *, sights: PolicySights, statuses: ShareStatuses, terms: Callable[[], Awaitable[sharing.ShareTerms]],
        metrics: telemetry.Telemetry, by_claims: bool = False,
    ) -> None:
        """`terms`: the webhook's, as they are now."""
        self._sights, self._statuses, self._terms, self._metrics = sights, statuses, terms, metrics
        self._by_claims = by_claims
        self._counted: tuple[Instant, frozenset[tuple[str, int]], Mapping[str, PolicyCounts]] | None = None
        self._complaint = Complaint("what becomes of GPUSharingPolicies is not told: %s")
        self._uncounted = Complaint("pods that share GPUs are not counted: %s")

    async def tick(self, turn: Turn) -> PoliciesCycle:
        made = await self.look(turn)
        known = self._sights.policies()
        for policy in known.value if isinstance(known, Known) else ():
            if policy.name in made.standings and turn.may_act():
                await self._statuses.report_policy(policy, made.standings[policy.name], turn.now)
        self._complaint.note(made.failure)
        return made

    async def look(self, turn: Turn) -> PoliciesCycle:
        known = self._sights.policies()
        if isinstance(known, Unseen):
            return self.fail(known.why, turn)
        if not isinstance(known, Known):
            self._forget_counts()
            return PoliciesCycle()
        counts, nodes = await self._count(known.value, turn), self._sights.nodes()
        with stumbling():
            by_claims = sharing.ByClaims(sharing.find_interval(known.value)) if self._by_claims else None
            standings = {each.name: self._stand(each, nodes, counts, by_claims) for each in known.value}
            return PoliciesCycle(policies=known.value, standings=standings)

    def fail(self, because: str, turn: Turn) -> PoliciesCycle:
        self._complaint.note(because)
        self._forget_counts()
        return PoliciesCycle(failure=because)

    def _forget_counts(self) -> None:
        """What was counted before tells nothing of now."""
        self._counted = None
        self._metrics.replace("gpu_autoscaler_shared_pods", {})

    def _stand(
        self, policy: SharingPolicy, nodes: Input[sharing.PartIndex], counts: Mapping[str, PolicyCounts] | None,
        by_claims: sharing.ByClaims | None,
    ) -> PolicyStanding:
        made = sharing.stand_policy(policy, nodes, self._sights.reverts(policy.name), by_claims)
        counted = None if counts is None else counts.get(policy.name, PolicyCounts())
        return msgspec.structs.replace(made, counts=counted)

    async def _count(self, policies: tuple[SharingPolicy, ...], turn: Turn) -> Mapping[str, PolicyCounts] | None:
        """Every few minutes, and when a policy is another one; None: nobody knows."""
        which = frozenset((each.uid, each.generation) for each in policies)
        last = self._counted
        if last is not None and last[1] == which and 0 <= turn.now - last[0] < COUNTED:
            return last[2]
        try:
            running, terms = await turn.in_time(self._list())
        except errors.ClientError as problem:
            self._uncounted.note(str(problem))
            self._forget_counts()
            return None
        self._uncounted.note("")
        with stumbling():
            owners, nodes = self._sights.owners(), self._sights.nodes()
            seen = ((each.pod, self._look_around(each, policies, nodes, owners)) for each in running)
            counts = sharing.count_pods(seen, terms, turn.now)
            shared = sharing.count_shared(each.pod for each in running)
        self._metrics.replace("gpu_autoscaler_shared_pods", {(str(way),): many for way, many in shared.items()})
        self._counted = turn.now, which, counts
        return counts

    async def _list(self) -> tuple[tuple[RunningPod, ...], sharing.ShareTerms]:
        return await self._sights.running(), await self._terms()

    def _look_around(
        self, of: RunningPod, policies: tuple[SharingPolicy, ...], nodes: Input[sharing.PartIndex],
        owners: Mapping[str, TopOwner],
    ) -> sharing.ShareAround:
        owner: Input[TopOwner] = Unseen("its owners are not known") if of.is_owned else ABSENT
        use: Input[OwnerUse] = ABSENT
        if of.uid in owners:
            owner, use = Known(owners[of.uid]), self._sights.use(owners[of.uid].uid)
        return sharing.ShareAround(
            namespace=self._sights.namespaces().find(of.pod.namespace), policies=Known(policies), nodes=nodes,
            owner=owner, use=use, claims=self._sights.claims(),
        )
