"""Nodes for pods that only go where none of their like is: a node for each of them.

In: pods that need one, an Opening. Out: Grow values, one for each pool. Who a budget limits is counted with all others,
because what it allows is counted by one packing alone: the rest of them is served by later looks.
"""

from collections.abc import Sequence

import msgspec

from fallow.decide.scaling import grow, words
from fallow.decide.scaling.pack import Opening
from fallow.decide.scaling.tiers import TierCounts
from fallow.model.scaling import ScaledPod
from fallow.model.scaling_plan import Grow, GrowReason


def for_pods(reason: GrowReason, pods: Sequence[ScaledPod], opening: Opening, counts: TierCounts) -> list[Grow]:
    """What is opened for them."""
    alone, others = list[ScaledPod](), list[ScaledPod]()
    for pod in pods:
        (alone if pod.apart and not opening.purse.is_limited(pod.id.uid) else others).append(pod)
    made = grow.for_pods(reason, others, opening, counts)[0] if others else []
    if not alone:
        return made
    for pod in alone:
        made += grow.for_pods(reason, [pod], opening, counts)[0]
    by_pool: dict[str, list[Grow]] = {}
    for each in made:
        by_pool.setdefault(each.pool.name, []).append(each)
    base = words.grows(reason, len(pods), opening.policy)
    return [_add_up(every, base, opening.currency) for every in by_pool.values()]


def _add_up(every: Sequence[Grow], base: str, currency: str) -> Grow:
    first, count = every[0], grow.count(every)
    return msgspec.structs.replace(
        first, count=count, pods=tuple(pod for each in every for pod in each.pods),
        because=words.counted(base, count, first.pool, first.price, currency),
        others=tuple(pool for pool in first.others if all(pool in each.others for each in every)),
    )
