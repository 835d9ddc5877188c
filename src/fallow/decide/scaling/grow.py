"""Whether a policy grows now, why, and by what: the reasons of section 3 of the specification, each with its nodes.

In: who needs a node, how the policy stands, an Opening. Out: Grow values, one for each pool and reason.
Invariant: unknown use is no reason to grow; a cooldown runs from a growth that was really started; a spot replacement
waits for nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide.scaling import demand, fit, pack, tiers, words
from fallow.decide.scaling.brakes import PolicyUse
from fallow.decide.scaling.demand import PodRun
from fallow.decide.scaling.fit import FreeRoom
from fallow.decide.scaling.pack import OpenedNode, Opening
from fallow.decide.scaling.templates import NodeTemplate
from fallow.decide.scaling.tiers import TierCounts
from fallow.model.classes import WorkClass
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import ScaledNode, ScaledPod, ScalingMemory
from fallow.model.scaling_plan import Grow, GrowReason, OtherPool
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
    before, had = msgspec.structs.replace(opening, purse=opening.purse.copy()), counts.copy()
    packed = pack.pack(pods, opening, counts)
    return _sum_up(reason, packed.opened, before, had, len(pods)), packed.left


def count_held(nodes: Sequence[ScaledNode], room: FreeRoom) -> int:
    """GPUs, in pieces of any kind, that pods have on these nodes."""
    free = room.gpus[room.find_rows(node.name for node in nodes)]
    return sum(fit.count_gpus(node.has) for node in nodes) - int(np.maximum(free, 0).sum())


def for_use(opening: Opening, counts: TierCounts, held: int) -> list[Grow]:
    """R3: one node, of the pool that would be taken for anybody. `held`: GPUs that somebody has."""
    best = choose_any(opening, counts)
    if best is None:
        return []
    made = _sum_up(GrowReason.HighUtilization, [OpenedNode(best, [])], opening, counts, 0)
    counts.open(best.pool.name, best.pool.tier)
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
    """`opening`, `counts`: as they were before any of these was opened."""
    pools = dict.fromkeys(node.template.pool.name for node in opened)
    base = words.grows(reason, waiting, opening.policy)
    made = []
    for name in pools:
        without = msgspec.structs.replace(opening, purse=opening.purse.copy()), counts.copy()
        for node in opened:
            if node.template.pool.name != name:
                pack.open_node(node, *without)
        made.append(_make(reason, base, [node for node in opened if node.template.pool.name == name], *without))
    return made


def _make(
    reason: GrowReason, base: str, nodes: Sequence[OpenedNode], opening: Opening, counts: TierCounts
) -> Grow:
    """`opening`, `counts`: as they would be without these nodes."""
    template, pods = nodes[0].template, [pod for node in nodes for pod in node.pods]
    pool = template.pool
    return Grow(
        policy=opening.policy.name, pool=pool, tier=pool.tier, count=len(nodes), reason=reason,
        because=words.counted(base, len(nodes), pool, template.price, opening.currency),
        pods=tuple(pod.id for pod in pods), instance_type=template.instance_type, price=template.price,
        others=_find_others(template, pods, opening, counts),
    )


def _find_others(
    template: NodeTemplate, pods: Sequence[ScaledPod], opening: Opening, counts: TierCounts
) -> tuple[OtherPool, ...]:
    """Where to go on in the same cycle if there is nothing: pools that may be opened for all of its pods, as if there
    were no others, in the order of tiers and prices."""
    tried, runs = _rank_tiers(template.pool.tier, opening.tiers), demand.run_up(demand.order(pods))
    found = [
        (other, many) for name, other in opening.templates.items()
        if name != template.pool.name and other.pool.tier in tried and name not in opening.shut
        and all(demand.hosts(other, run.asks, run.wanted) for run in runs)
        and (many := _count_of(other, runs, opening, counts))
    ]
    found.sort(key=lambda each: (tried.index(each[0].pool.tier), *tiers.rank(
        each[0], each[0].milli, pods[0].work if pods else WorkClass.batch, opening.terms
    )))
    return tuple(OtherPool(other.pool, many) for other, many in found)


def _count_of(other: NodeTemplate, runs: Sequence[PodRun], opening: Opening, counts: TierCounts) -> int:
    """How many nodes of it they take; 0: it is not for all of them."""
    alone = msgspec.structs.replace(
        opening, templates={other.pool.name: other}, tiers=(other.pool.tier,), avoid=frozenset()
    )
    return pack.count_nodes(runs, alone, counts) if runs else int(choose_any(alone, counts) is not None)


def _rank_tiers(first: CapacityType, every: Sequence[CapacityType]) -> list[CapacityType]:
    return [first, *(tier for tier in every if tier is not first)]


def replace(opening: Opening, tier: CapacityType, pool: str) -> Opening:
    """For pods of a node that goes: the same tier, another pool, then the tiers that come next."""
    return msgspec.structs.replace(
        opening, tiers=tuple(_rank_tiers(tier, opening.tiers)), avoid=frozenset({pool})
    )


def count(grows: Iterable[Grow]) -> int:
    return sum(each.count for each in grows)
