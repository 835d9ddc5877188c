"""Adds nodes: what is asked for stands in the policy's status first, then the cloud is asked; where it has none, the
next pool at once.

In: a Grow that was decided, the cloud with the targets of its groups, what is in flight. Out: Grown: what is in flight
and out of stock now, and a sentence. Whoever is killed in between finds the target that it started from in the status:
asking again is growing once.
Invariant: no cloud is asked for what is not in the status. What may or may not have been carried out stays in flight.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Protocol

import msgspec

from fallow.act.scaling_statuses import Deed, ScalingStatuses
from fallow.clients import errors
from fallow.clients.clouds import Cloud
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine, Growth
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import Grow, GrowReason, InFlight, PolicyPlan, StockOut
from fallow.model.units import Instant

WORDS: Mapping[GrowReason, str] = {GrowReason.Forecast: "prewarm", GrowReason.SpotReplacement: "spot_replace"}


class NoteShortage(Protocol):
    def __call__(
        self, stockouts: Sequence[StockOut], *, pool: str, tier: CapacityType, now: Instant, instance_type: str = "",
        zone: str = "",
    ) -> tuple[StockOut, ...]: ...


class Shortages(msgspec.Struct, frozen=True):
    """What becomes of stock-outs, as the brain has it."""

    note: NoteShortage
    clear: Callable[..., tuple[StockOut, ...]]


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """`pool`: where it was asked for, and `count`: how many; None: nowhere. `failure`: what the cloud said that is no
    shortage."""

    in_flight: tuple[InFlight, ...]
    stockouts: tuple[StockOut, ...]
    said: str
    pool: NodePool | None = None
    count: int = 0
    failure: str = ""


class Grower:
    def __init__(self, statuses: ScalingStatuses, shortages: Shortages) -> None:
        self._statuses, self._shortages = statuses, shortages

    async def grow(
        self, policy: ScalingPolicy, wanted: Grow, cloud: Cloud, targets: MutableMapping[str, int],
        before: Grown, now: Instant,
    ) -> Grown:
        """`targets`: of the groups, as the cloud said, and as they become. `before`: what stands in the status. Of no
        pool more is asked for than it may have: what is lacking then is planned anew. Raises what the API server says
        where that cannot be written: nothing was asked for then."""
        in_flight, stockouts, said = before.in_flight, before.stockouts, list[str]()
        for pool in (wanted.pool, *wanted.others):
            base = targets.get(pool.group)
            if base is None:
                said.append(f"pool {pool.name}: the size of its group is not known")
                continue
            count = min(wanted.count, pool.most - base)
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
            except (errors.Conflict, errors.Invalid) as problem:  # it was not done, and is planned anew
                await self._statuses.note_growth(policy, in_flight, stockouts, None, now, stood=stood)
                said.append(f"pool {pool.name}: {problem}")
                break
            except errors.ClientError as problem:  # it may have heard us: what is in flight will show
                return Grown(
                    in_flight=(*in_flight, made), stockouts=stockouts, pool=pool, count=count, failure=str(problem),
                    said="; ".join([*said, f"pool {pool.name}: its cloud failed: {problem}"]),
                )
            targets[pool.group] = base + count
            cleared = self._shortages.clear(stockouts, pool=pool.name, tier=pool.tier)
            said.append(f"{count} more of pool {pool.name} ({pool.tier}): {wanted.because}")
            return Grown(in_flight=(*in_flight, made), stockouts=cleared, pool=pool, count=count, said="; ".join(said))
        return Grown(in_flight=in_flight, stockouts=stockouts, said="; ".join(said) or "no pool can be asked")

    async def ask_again(
        self, plan: PolicyPlan, cloud: Cloud, targets: Mapping[str, int], asked: Collection[str]
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

    async def drop(self, strays: Sequence[CloudMachine], cloud: Cloud) -> list[str]:
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
        return self._shortages.note(
            stockouts, pool=pool.name, tier=pool.tier, now=now, instance_type=kind, zone=zone
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
