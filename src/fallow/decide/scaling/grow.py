"""Whether a policy grows now, why, and by what: the reasons of section 3 of the specification, each with its nodes.

In: who needs a node, how the policy stands, an Opening. Out: Grow values, one for each pool and reason.
Invariant: unknown use is no reason to grow; a cooldown runs from a growth that was really started; a spot replacement
waits for nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide.scaling import demand, fit, pack, tiers, words
from fallow.decide.scaling.brakes import PolicyUse
from fallow.decide.scaling.fit import FreeRoom
from fallow.decide.scaling.pack import OpenedNode, Opening
from fallow.decide.scaling.templates import NodeTemplate
from fallow.decide.scaling.tiers import TierCounts
from fallow.model.classes import WorkClass
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import Grow, GrowReason, ScaledNode, ScaledPod, ScalingMemory
from fallow.model.units import MINUTE, Instant, Seconds

BUSY_FOR: Final[Seconds] = 5 * MINUTE
_HAIR: Final[Seconds] = 0.01  # more than the time that must have passed


def find_reason(policy: ScalingPolicy, needs: Sequence[ScaledPod], now: Instant) -> GrowReason | None:
    """R1 and R2: pods that wait."""
    waits = [max(0.0, now - pod.waits_since) for pod in needs if pod.waits_since is not None]
    if len(needs) > policy.queue_length:
        return GrowReason.QueueLong
    if waits and sum(waits) / len(waits) > policy.queue_wait:
        return GrowReason.QueueSlow
    return GrowReason.PendingPods if any(wait > policy.pending_patience for wait in waits) else None


def find_due(
    policy: ScalingPolicy, needs: Sequence[ScaledPod], grew_at: Instant | None, now: Instant
) -> Instant | None:
    """When R1 or R2 will hold for those who wait now, if nobody comes and none goes."""
    since = [pod.waits_since for pod in needs if pod.waits_since is not None]
    if not since:
        return None
    at = now if find_reason(policy, needs, now) else min(
        min(since) + policy.pending_patience, sum(since) / len(since) + policy.queue_wait
    ) + _HAIR
    rested = grew_at + policy.grow_rest if grew_at is not None and is_resting(policy, grew_at, now) else now
    return max(at, rested) if max(at, rested) > now else None


def is_resting(policy: ScalingPolicy, grew_at: Instant | None, now: Instant) -> bool:
    """Since the last growth that was started."""
    return grew_at is not None and abs(now - grew_at) < policy.grow_rest


def find_busy(
    policy: ScalingPolicy, measured: PolicyUse, room: FreeRoom, own: Callable[[], Iterable[str]], memory: ScalingMemory,
    now: Instant,
) -> Instant | None:
    """Since when its GPUs are used above the threshold and none is free; None: they are not, or nobody knows."""
    if measured.use is None or measured.use <= policy.grow_above:
        return None
    if (room.gpus[room.find_rows(own())] > 0).any():
        return None
    return min(memory.busy.get(policy.name, now), now)


def for_pods(
    reason: GrowReason, pods: Sequence[ScaledPod], opening: Opening, counts: TierCounts
) -> tuple[list[Grow], list[ScaledPod]]:
    """What is opened for them, and who is left over."""
    packed = pack.pack(pods, opening, counts)
    return _sum_up(reason, packed.opened, opening, counts, len(pods)), packed.left


def count_held(nodes: Sequence[ScaledNode], room: FreeRoom) -> int:
    """GPUs, in pieces of any kind, that pods have on these nodes."""
    free = room.gpus[room.find_rows(node.name for node in nodes)]
    return sum(fit.count_gpus(node.has) for node in nodes) - int(np.maximum(free, 0).sum())


def for_use(opening: Opening, counts: TierCounts, held: int) -> list[Grow]:
    """R3: one node, of the pool that would be taken for anybody. `held`: GPUs that somebody has."""
    best = choose_any(opening, counts)
    if best is None:
        return []
    counts.add(best.pool.name, best.pool.tier)
    made = _sum_up(GrowReason.HighUtilization, [OpenedNode(best, [])], opening, counts, 0)
    return [msgspec.structs.replace(each, held=held) for each in made]


def choose_any(opening: Opening, counts: TierCounts) -> NodeTemplate | None:
    if counts.total >= opening.policy.most:
        return None
    for tier in opening.tiers:
        if tier is CapacityType.spot and not tiers.is_spot_open(opening.policy, counts):
            continue
        found = [
            template for name, template in opening.templates.items()
            if template.pool.tier is tier and template.has is not None and name not in opening.shut
            and counts.by_pool.get(name, 0) < opening.rooms.get(name, 0)
        ]
        if found:
            return min(found, key=lambda each: tiers.rank(each, each.milli, WorkClass.batch, opening.terms))
    return None


def _sum_up(
    reason: GrowReason, opened: Sequence[OpenedNode], opening: Opening, counts: TierCounts, waiting: int
) -> list[Grow]:
    by_pool: dict[str, list[OpenedNode]] = {}
    for node in opened:
        by_pool.setdefault(node.template.pool.name, []).append(node)
    base = words.grows(reason, waiting, opening.policy)
    return [_make(reason, base, nodes, opening, counts) for nodes in by_pool.values()]


def _make(
    reason: GrowReason, base: str, nodes: Sequence[OpenedNode], opening: Opening, counts: TierCounts
) -> Grow:
    template, pods = nodes[0].template, [pod for node in nodes for pod in node.pods]
    pool = template.pool
    return Grow(
        policy=opening.policy.name, pool=pool, tier=pool.tier, count=len(nodes), reason=reason,
        because=words.counted(base, len(nodes), pool.name, pool.tier, template.price),
        pods=tuple(pod.id for pod in pods), instance_type=template.instance_type, price=template.price,
        others=_find_others(template, pods, opening, counts),
    )


def _find_others(
    template: NodeTemplate, pods: Sequence[ScaledPod], opening: Opening, counts: TierCounts
) -> tuple[NodePool, ...]:
    """Where to go on in the same cycle if there is nothing: pools that host all of its pods, as tiers and prices go."""
    tried = _rank_tiers(template.pool.tier, opening.tiers)
    runs = demand.run_up(pods)
    found = [
        other for name, other in opening.templates.items()
        if name != template.pool.name and other.pool.tier in tried and name not in opening.shut
        and counts.by_pool.get(name, 0) < opening.rooms.get(name, 0)
        and (other.pool.tier is not CapacityType.spot or all(map(tiers.may_use_spot, pods)))
        and all(other.pool.tier in opening.purse.order(pod.id.uid, (other.pool.tier,)) for pod in pods)
        and all(demand.hosts(other, run.asks, run.wanted) for run in runs)
    ]
    found.sort(key=lambda other: (tried.index(other.pool.tier), *tiers.rank(
        other, other.milli, pods[0].work if pods else WorkClass.batch, opening.terms
    )))
    return tuple(other.pool for other in found)


def _rank_tiers(first: CapacityType, every: Sequence[CapacityType]) -> list[CapacityType]:
    return [first, *(tier for tier in every if tier is not first)]


def replace(opening: Opening, tier: CapacityType, pool: str) -> Opening:
    """For pods of a node that goes: the same tier, another pool, then the tiers that come next."""
    return msgspec.structs.replace(
        opening, tiers=tuple(_rank_tiers(tier, opening.tiers)), avoid=frozenset({pool})
    )


def count(grows: Iterable[Grow]) -> int:
    return sum(each.count for each in grows)


def by_pool(grows: Iterable[Grow]) -> Mapping[str, int]:
    made: dict[str, int] = {}
    for each in grows:
        made[each.pool.name] = made.get(each.pool.name, 0) + each.count
    return made
