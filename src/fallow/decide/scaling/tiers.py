"""Which way of paying, and which pool inside it: what is open for a pod, and what is best of it.

In: a policy, its templates, how many nodes there are of each tier (those on their way included), stock-outs, budgets.
Out: for a pod the pools that are open, tier by tier in the order asked for; the score of a machine type.
Spot is open while fewer nodes are spot than the share allows, or there are none at all (0 of 0 would be never).
Invariant: a pod that did not say it may be interrupted, trains or is the only replica of a service never pays for spot.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from fallow.decide.scaling import remembered
from fallow.decide.scaling.templates import NodeTemplate
from fallow.model.classes import WorkClass
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import ScaledPod, SpendLimit, SpotRuns, StockOut
from fallow.model.scaling_plan import SpotAdvice
from fallow.model.units import DAY, HOUR, Instant, Seconds

_HAIR: Final = 1e-9
_WATCHED: Final[Seconds] = 7 * DAY  # before anything is advised
_OFTEN, _SELDOM = 0.1, 0.02  # of the spot nodes, taken back on a day
_SHARES: Final = (0.4, 0.6, 0.75)  # advised: where they are taken back often, sometimes, seldom


class InstanceScore(StrEnum):
    """What is weighed first between pools of one priority: the price of what is placed, or the article's score."""

    price = "price"
    article = "article"


class ScalingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags say for all policies."""

    score: InstanceScore = InstanceScore.price


class TierCounts(msgspec.Struct):
    """Nodes of a policy, those on their way included, as they are opened one by one. `mixed`: the share of spot that
    people say of pools whose groups mix."""

    by_tier: dict[CapacityType, int]
    by_pool: dict[str, int]
    mixed: Mapping[str, float] = {}

    @property
    def total(self) -> int:
        return sum(self.by_tier.values())

    def add(self, pool: str, tier: CapacityType, count: int = 1) -> None:
        self.by_tier[tier] = self.by_tier.get(tier, 0) + count
        self.by_pool[pool] = self.by_pool.get(pool, 0) + count

    def open(self, pool: str, tier: CapacityType, count: int = 1) -> None:
        """Nodes to come: of a group that mixes, every so manieth is on spot."""
        share = self.mixed.get(pool)
        if share is None:
            self.add(pool, tier, count)
            return
        for _ in range(count):
            there = self.by_pool.get(pool, 0)
            is_spot = int((there + 1) * share + _HAIR) > int(there * share + _HAIR)
            self.add(pool, CapacityType.spot if is_spot else CapacityType.on_demand)

    def copy(self) -> "TierCounts":
        return TierCounts(dict(self.by_tier), dict(self.by_pool), self.mixed)


def may_use_spot(pod: ScaledPod) -> bool:
    """As its people said; unsaid, training and the only replica of a service need a yes."""
    if pod.spot_ok is not None:
        return pod.spot_ok
    if pod.work is WorkClass.training:
        return False
    return not (pod.work is WorkClass.inference and (pod.replicas is None or pod.replicas <= 1))


def is_spot_open(policy: ScalingPolicy, counts: TierCounts) -> bool:
    if not policy.spot or policy.spot_share <= 0:
        return False
    if policy.spot_share >= 1 or counts.total == 0:
        return True
    return counts.by_tier.get(CapacityType.spot, 0) < round(policy.spot_share * counts.total, 9)


def advise(watch: SpotRuns | None, now: Instant) -> SpotAdvice | None:
    """What share of spot nodes would do; None: less than a week is known, or of less than seven days of a node."""
    if watch is None or now - watch.since < _WATCHED or watch.node_hours * HOUR < _WATCHED:
        return None
    daily = watch.interruptions * DAY / (watch.node_hours * HOUR)
    share = _SHARES[0] if daily > _OFTEN else _SHARES[2] if daily < _SELDOM else _SHARES[1]
    days = f"{watch.node_hours * HOUR / DAY:.0f} days of spot nodes"
    return SpotAdvice(
        share=share, daily=daily,
        because=f"{watch.interruptions} were taken back in {days}, {daily:.1%} a day: a share of {share:g} would do",
    )


class Purse:
    """What budgets forbid, by pod. `on_spot`: the spot node that a pod runs on, by its uid."""

    def __init__(self, limits: Sequence[SpendLimit], on_spot: Mapping[str, str]) -> None:
        self._by_pod: dict[str, list[int]] = {}
        self._limits, self._opened = tuple(limits), 0
        self._held = [{on_spot[uid] for uid in limit.pods if uid in on_spot} for limit in limits]
        for place, limit in enumerate(limits):
            for uid in limit.pods:
                self._by_pod.setdefault(uid, []).append(place)

    def copy(self) -> "Purse":
        made = copy.copy(self)
        made._held = [set(held) for held in self._held]
        return made

    def is_limited(self, uid: str) -> bool:
        return uid in self._by_pod

    def order(self, uid: str, tiers: tuple[CapacityType, ...]) -> tuple[CapacityType, ...]:
        """The tiers that are left of these for a pod, as they are to be tried."""
        places = self._by_pod.get(uid)
        if not places:
            return tiers
        closed = frozenset[CapacityType]().union(*(self._limits[place].closed for place in places))
        if any(self._is_spent(place) for place in places):
            closed |= {CapacityType.spot}
        left = [tier for tier in tiers if tier not in closed]
        if any(self._limits[place].prefers_on_demand for place in places):
            left.sort(key=lambda tier: tier is not CapacityType.on_demand)
        return tuple(left)

    def _is_spent(self, place: int) -> bool:
        most = self._limits[place].most_spot_nodes
        return most is not None and len(self._held[place]) >= most

    def open_spot(self, uids: Iterable[str]) -> None:
        """A spot node was opened for these pods."""
        self._opened += 1
        for uid in uids:
            for place in self._by_pod.get(uid, ()):
                self._held[place].add(f"+{self._opened}")


def find_open(
    policy: ScalingPolicy, pod: ScaledPod, counts: TierCounts, purse: Purse, tiers: tuple[CapacityType, ...]
) -> tuple[CapacityType, ...]:
    """The tiers that a pod may start a node of now, in order."""
    left = purse.order(pod.id.uid, tiers)
    if may_use_spot(pod) and is_spot_open(policy, counts):
        return left
    return tuple(tier for tier in left if tier is not CapacityType.spot)


def find_shut(
    policy: ScalingPolicy, templates: Mapping[str, NodeTemplate], stockouts: Sequence[StockOut], now: Instant
) -> frozenset[str]:
    """Pools of which nothing is to be had for a while."""
    return frozenset(
        pool.name for pool in policy.pools
        if pool.name in templates and remembered.is_shut(stockouts, pool, pool.tier, now)
    )


def score(template: NodeTemplate, work: WorkClass) -> float:
    """The article's: of memory, GPUs and cost, by what the pod does; -1: not known."""
    if not template.price or not template.gpus or template.gpu_memory is None:
        return -1.0
    of_gpu = template.price / template.gpus
    memory = template.gpus * template.gpu_memory / 1024
    if work is WorkClass.inference:
        return memory / template.price / of_gpu
    return (template.gpus if work is WorkClass.training else 1) * memory / of_gpu


def rank(template: NodeTemplate, placed: int, work: WorkClass, terms: ScalingTerms) -> tuple[float | str, ...]:
    """The least is best. `placed`: milli-GPU that a new node would take of what waits."""
    price = template.price / placed if template.price is not None and placed else float("inf")
    scored = -score(template, work)
    first, second = (price, scored) if terms.score is InstanceScore.price else (scored, price)
    return -template.pool.priority, first, second, template.pool.name
