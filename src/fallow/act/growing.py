"""Adds nodes: what is asked for stands in the policy's status first, then the cloud is asked; where it has none, the
next pool at once.

In: a Grow that was decided, the cloud, how many machines its groups have and await, what is in flight. Out: Grown: what
is in flight and out of stock now, and a sentence. Whoever is killed in between finds in the status from how many it
started: asking again is growing once.
Invariant: no cloud is asked for what is not in the status. What may or may not have been carried out stays in flight;
what certainly was not does not.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Protocol

import msgspec

from fallow.act.scaling_statuses import Deed, ScalingStatuses
from fallow.clients import errors
from fallow.clients.clouds import CloudHands
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine, Growth
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import InFlight, StockOut
from fallow.model.scaling_plan import Grow, GrowReason, PolicyPlan
from fallow.model.units import Instant

WORDS: Mapping[GrowReason, str] = {GrowReason.Forecast: "prewarm", GrowReason.SpotReplacement: "spot_replace"}


class NoteShortage(Protocol):
    """One more shortage, as the brain remembers it."""

    def __call__(
        self, stockouts: Sequence[StockOut], *, pool: str, tier: CapacityType, now: Instant, instance_type: str = "",
        zone: str = "",
    ) -> tuple[StockOut, ...]: ...


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """`pool`: of which machines are on their way now, and `count`: how many; None: of none, as far as is known.
    `failure`: what the cloud said that is no shortage."""

    in_flight: tuple[InFlight, ...]
    stockouts: tuple[StockOut, ...]
    said: str
    pool: NodePool | None = None
    count: int = 0
    failure: str = ""


class Grower:
    def __init__(self, statuses: ScalingStatuses, note_shortage: NoteShortage) -> None:
        self._statuses, self._note_shortage = statuses, note_shortage

    async def grow(
        self, policy: ScalingPolicy, wanted: Grow, cloud: CloudHands, there: MutableMapping[str, int],
        before: Grown, now: Instant,
    ) -> Grown:
        """`there`: machines of the groups, those still to be started included, and as they become. `before`: what
        stands in the status. Of no pool more is asked for than it may have: what is lacking then is planned anew. A
        shortage is forgotten when machines come, not when a target is taken. Raises what the API server says where that
        cannot be written: nothing was asked for then."""
        in_flight, stockouts, said = before.in_flight, before.stockouts, list[str]()
        for pool, many in ((wanted.pool, wanted.count), *((each.pool, each.count) for each in wanted.others)):
            base = there.get(pool.group)
            if base is None:
                said.append(f"pool {pool.name}: the size of its group is not known")
                continue
            count = min(many, pool.most - base)
            if count <= 0:
                said.append(f"pool {pool.name} has as many as it may")
                continue
            made = _start(wanted, pool, count, base, in_flight, policy, now)
            deed = Deed(
                action=f"{word_of(wanted)}: {count} of {pool.name}", reason=wanted.because, grew=True,
                full_at=wanted.held,
            )
            stood = self._statuses.find(policy)  # to which it goes back where nothing was started
            await self._statuses.note_growth(policy, (*in_flight, made), stockouts, deed, now)
            growth = Growth(group=pool.group, count=count, base=base, token=made.token)
            try:
                await cloud.grow(growth)
            except (errors.OutOfStock, errors.QuotaSpent) as problem:
                stockouts = self._note(stockouts, pool, problem, now)
                await self._statuses.note_growth(policy, in_flight, stockouts, None, now, stood=stood)
                said.append(f"pool {pool.name}: {problem}")
                continue
            except errors.ClientError as problem:
                if _is_undone(problem):
                    await self._statuses.note_growth(policy, in_flight, stockouts, None, now, stood=stood)
                else:  # it may have heard us: what is in flight will show
                    in_flight = (*in_flight, made)
                is_stale = isinstance(problem, errors.Conflict | errors.Invalid)  # planned anew, and no fault of its
                said.append(f"pool {pool.name}: {'' if is_stale else 'its cloud failed: '}{problem}")
                return Grown(
                    in_flight=in_flight, stockouts=stockouts, said="; ".join(said),
                    failure="" if is_stale else str(problem),
                )
            there[pool.group] = base + count
            said.append(f"{count} more of pool {pool.name} ({pool.tier}): {wanted.because}")
            return Grown(
                in_flight=(*in_flight, made), stockouts=stockouts, pool=pool, count=count, said="; ".join(said)
            )
        return Grown(in_flight=in_flight, stockouts=stockouts, said="; ".join(said) or "no pool can be asked")

    async def ask_again(
        self, plan: PolicyPlan, cloud: CloudHands, targets: Mapping[str, int], asked: Collection[str]
    ) -> list[str]:
        """What an earlier self wrote down, and may have been killed before it asked: never for more than that.
        `asked`: tokens of what this process asked for. What was done, a sentence each."""
        groups, said = {pool.name: pool.group for pool in plan.policy.pools}, list[str]()
        for each in plan.in_flight:
            group = groups.get(each.pool, "")
            if each.token in asked or each.machine or group not in targets or targets[group] >= each.base + each.count:
                continue
            try:
                await cloud.grow(Growth(group=group, count=each.count, base=each.base, token=each.token))
            except errors.ClientError as problem:
                said.append(f"pool {each.pool}: {problem}")
            else:
                said.append(f"pool {each.pool}: {each.count} more are asked for again")
        return said

    async def drop(self, strays: Sequence[CloudMachine], cloud: CloudHands) -> list[str]:
        """Machines that never became nodes."""
        said = list[str]()
        for each in strays:
            try:
                await cloud.remove(each.group, [each.id])
            except errors.ClientError as problem:
                said.append(f"machine {each.id} of {each.group}: {problem}")
            else:
                said.append(f"machine {each.id} of {each.group} never became a node, and goes")
        return said

    def _note(
        self, stockouts: Sequence[StockOut], pool: NodePool, problem: errors.ClientError, now: Instant
    ) -> tuple[StockOut, ...]:
        kind, zone = (problem.instance_type, problem.zone) if isinstance(problem, errors.OutOfStock) else ("", "")
        return self._note_shortage(
            stockouts, pool=pool.name, tier=pool.tier, now=now, instance_type=kind, zone=zone
        )


def _is_undone(problem: errors.ClientError) -> bool:
    """Whether what was asked for was certainly not carried out."""
    if isinstance(problem, errors.Rejected):
        return problem.status < 500 and problem.status != 408  # one that took too long to ask
    return isinstance(problem, errors.Misconfigured) or (
        isinstance(problem, errors.Unreachable) and problem.is_undone
    )


def word_of(wanted: Grow) -> str:
    return WORDS.get(wanted.reason, "scale_up")


def _start(
    wanted: Grow, pool: NodePool, count: int, base: int, in_flight: Sequence[InFlight], policy: ScalingPolicy,
    now: Instant,
) -> InFlight:
    return InFlight(
        pool=pool.name, tier=pool.tier, count=count, base=base, since=now,
        token=f"fallow-{policy.name}-{pool.name}-{now:.0f}-{len(in_flight)}",
        instance_type=wanted.instance_type if pool is wanted.pool else "",
        is_prewarm=wanted.reason is GrowReason.Forecast,
    )
