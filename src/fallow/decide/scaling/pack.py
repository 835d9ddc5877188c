"""How many new nodes of which pools: pods that need one are packed on empty nodes, opened one at a time.

In: pods in the order of service, templates, what is open for whom. Out: the nodes to open with who goes where, and who
is left over because a limit binds.
The first pod that is left says in which tier a node is opened; of its pools the best by priority and price of what is
placed. It is then filled by whoever comes next and fits. Where one pool serves few pods, other orders are tried too,
for the least count is what is paid.
Invariant: limits cut from the end; a pod that fits no empty node opens none.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide.scaling import demand, fit, tiers
from fallow.decide.scaling.demand import PodRun
from fallow.decide.scaling.fit import Bools, Constraint, Ints
from fallow.decide.scaling.foresight import Floats
from fallow.decide.scaling.templates import NodeTemplate
from fallow.decide.scaling.tiers import Purse, ScalingTerms, TierCounts
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import ScaledPod

MOST_REORDERED: Final = 200  # pods
MOST_MATCHED: Final = 64  # pods: all threes of them are looked at
_SHUFFLES: Final = 500
_REFILLS: Final = 600
_EMPTIED: Final = 4  # nodes beside the emptiest
_HAIR: Final = 1e-9


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What may be opened. `rooms`: how many nodes of each pool there may be at most. `shut`: pools that are out of
    stock. `tiers`: as they are tried. `avoid`: pools that are only taken where nothing else is. `mixed`: those of which
    a node may turn out to be on spot, so that they are for nobody who must not be."""

    policy: ScalingPolicy
    templates: Mapping[str, NodeTemplate]
    rooms: Mapping[str, int]
    purse: Purse
    terms: ScalingTerms
    shut: frozenset[str] = frozenset()
    tiers: tuple[CapacityType, ...]
    avoid: frozenset[str] = frozenset()
    mixed: frozenset[str] = frozenset()
    currency: str = "USD"

    def find_tiers(self, pool: NodePool) -> tuple[CapacityType, ...]:
        """What a node of it may turn out to be."""
        return (pool.tier, CapacityType.spot) if pool.name in self.mixed else (pool.tier,)


class OpenedNode(msgspec.Struct):
    template: NodeTemplate
    pods: list[ScaledPod]


class Packed(msgspec.Struct):
    opened: list[OpenedNode]
    left: list[ScaledPod]  # nothing is open for them, or a limit binds


class _Table:
    """Runs of pods as columns: what each asks for, and which templates would host it."""

    def __init__(self, runs: Sequence[PodRun], templates: Mapping[str, NodeTemplate]) -> None:
        resources = sorted({resource for run in runs for resource, count in run.asks.items() if count > 0})
        self.runs = runs
        self.resources = resources
        self.asks: Ints = np.array(
            [[*(max(0, run.asks.get(each, 0)) for each in resources), 1] for run in runs], np.int64
        ).reshape(len(runs), len(resources) + 1)
        self.left: Ints = np.array([len(run.pods) for run in runs], np.int64)
        self.has = {name: self._list_amounts(template) for name, template in templates.items()}
        self.hosts = {name: self._find_hosted(name, template) for name, template in templates.items()}
        self.milli = {
            name: [fit.measure(run.asks, template.replicas) for run in runs] for name, template in templates.items()
        }

    def _list_amounts(self, template: NodeTemplate) -> Ints:
        has = template.has or {}
        return np.array([*(fit.clip(has.get(each, 0)) for each in self.resources),
                         has.get(fit.PODS, fit.BOUNDLESS)], np.int64)

    def _find_hosted(self, name: str, template: NodeTemplate) -> Bools:
        if template.has is None:
            return np.zeros(len(self.runs), np.bool_)
        said: dict[Constraint, bool] = {}
        for run in self.runs:
            if run.wanted not in said:
                said[run.wanted] = fit.accepts(run.wanted, template.labels, template.taints)
        accepted = np.array([said[run.wanted] for run in self.runs], np.bool_)
        accepted &= (self.asks <= self.has[name]).all(axis=1)
        return accepted

    def fill(self, name: str, first: int, may: Bools) -> list[tuple[int, int]]:
        """Who goes on a new node beside the first run: run and how many."""
        free = self.has[name].copy()
        open_to = may & self.hosts[name] & (self.left > 0)
        placed: list[tuple[int, int]] = []
        at = first
        while True:
            asks = self.asks[at]
            some = asks > 0
            many = min(int(self.left[at]), int((free[some] // asks[some]).min()))
            free -= many * asks
            placed.append((at, many))
            open_to[at] = False
            fits = open_to & (self.asks <= free).all(axis=1)
            at = int(fits.argmax())
            if not fits[at]:
                return placed


def pack(pods: Sequence[ScaledPod], opening: Opening, counts: TierCounts) -> Packed:
    """`counts` grows as nodes are opened."""
    first = _pack_runs(demand.run_up(pods), opening, counts.copy())
    chosen = first
    pools = {each.template.pool.name for each in first.opened}
    is_limited = any(opening.purse.is_limited(pod.id.uid) for pod in pods)
    if not first.left and not is_limited and 1 < len(pods) <= MOST_REORDERED and len(pools) == 1:
        chosen = _try_orders(pods, first, opening, counts)
    for opened in chosen.opened:
        counts.open(opened.template.pool.name, opened.template.pool.tier)
    return chosen


def _pack_runs(runs: Sequence[PodRun], opening: Opening, counts: TierCounts) -> Packed:
    table, packed, given = _Table(runs, opening.templates), Packed([], []), [0] * len(runs)
    allowed = _Allowed(runs, opening)
    for at, run in enumerate(runs):
        while table.left[at] > 0:
            best = _choose(at, run, table, opening, counts, allowed)
            if best is None:
                packed.left += run.pods[given[at]:]
                table.left[at] = 0
                break
            template, placed = best
            pods: list[ScaledPod] = []
            for other, many in placed:
                pods += runs[other].pods[given[other]:given[other] + many]
                given[other] += many
                table.left[other] -= many
            packed.opened.append(OpenedNode(template, pods))
            open_node(packed.opened[-1], opening, counts)
    return packed


def open_node(node: OpenedNode, opening: Opening, counts: TierCounts) -> None:
    """It is counted from now on, for the policy and for budgets."""
    pool = node.template.pool
    counts.open(pool.name, pool.tier)
    if CapacityType.spot in opening.find_tiers(pool):
        opening.purse.open_spot(pod.id.uid for pod in node.pods)


def count_nodes(runs: Sequence[PodRun], opening: Opening, counts: TierCounts) -> int:
    """How many nodes of what is open they take, one after the other; 0: not all of them find a place."""
    packed = _pack_runs(runs, msgspec.structs.replace(opening, purse=opening.purse.copy()), counts.copy())
    return 0 if packed.left else len(packed.opened)


class _Allowed:
    """Who may go on a node of which tier, apart from how many spot nodes there may be."""

    def __init__(self, runs: Sequence[PodRun], opening: Opening) -> None:
        self._runs, self._opening = runs, opening
        every = {tier: np.ones(len(runs), np.bool_) for tier in CapacityType}
        every[CapacityType.spot] = np.array([all(map(tiers.may_use_spot, run.pods)) for run in runs], np.bool_)
        self._by_tier = every
        self._kept: dict[tuple[CapacityType, ...], Bools] = {}
        self._limited = [at for at, run in enumerate(runs)
                         if any(opening.purse.is_limited(pod.id.uid) for pod in run.pods)]

    def of(self, pool: NodePool) -> Bools:
        needed = self._opening.find_tiers(pool)
        if needed not in self._kept:
            self._kept[needed] = np.logical_and.reduce([self._by_tier[tier] for tier in needed])
        may = self._kept[needed].copy() if self._limited else self._kept[needed]
        for at in self._limited:
            may[at] &= all(len(self._opening.purse.order(pod.id.uid, needed)) == len(needed)
                           for pod in self._runs[at].pods)
        return may


def _choose(
    at: int, run: PodRun, table: _Table, opening: Opening, counts: TierCounts, allowed: _Allowed
) -> tuple[NodeTemplate, list[tuple[int, int]]] | None:
    if counts.total >= opening.policy.most:
        return None
    open_tiers = tiers.find_open(opening.policy, run.pods[0], counts, opening.purse, opening.tiers)
    for avoided in (False, True):
        for tier in open_tiers:
            found = [
                (template, table.fill(name, at, allowed.of(template.pool)))
                for name, template in opening.templates.items()
                if template.pool.tier is tier and table.hosts[name][at] and name not in opening.shut
                and (name not in opening.mixed or allowed.of(template.pool)[at])
                and (name in opening.avoid) is avoided
                and counts.by_pool.get(name, 0) < opening.rooms.get(name, 0)
            ]
            if found:
                return min(found, key=lambda each: tiers.rank(
                    each[0], sum(many * table.milli[each[0].pool.name][other] for other, many in each[1]),
                    run.pods[0].work, opening.terms,
                ))
    return None


# ---- fewer, by another order -----------------------------------------------------------------------------------------


def _try_orders(pods: Sequence[ScaledPod], first: Packed, opening: Opening, counts: TierCounts) -> Packed:
    """All that wait are served by one pool: whichever order needs the fewest nodes."""
    template = first.opened[0].template
    least = _find_bound(pods, template)
    best = first
    for key in _list_keys(template):
        if len(best.opened) <= least:
            break
        runs = demand.run_up(sorted(pods, key=lambda pod: (key(pod), pod.id)))
        tried = _pack_runs(runs, opening, counts.copy())
        if not tried.left and len(tried.opened) < len(best.opened):
            best = tried
    if len(best.opened) > least + 1 and len(pods) <= MOST_MATCHED:
        parts = _list_parts(pods, template)
        tight = _match(parts, range(len(pods)))
        fewer = _shuffle(parts, min(len(best.opened), len(tight)) - 1) or tight
        fewer = _refill(parts, fewer, least + 1)
        if len(fewer) < len(best.opened):
            best = Packed([OpenedNode(template, [pods[at] for at in each]) for each in fewer], [])
    return best


def _list_parts(pods: Sequence[ScaledPod], template: NodeTemplate) -> Floats:
    """Of a node that is empty, what each pod takes: pods x resources."""
    has = {resource: amount for resource, amount in (template.has or {}).items() if amount > 0}
    return np.array([[max(0, pod.asks.get(each, 0)) / has[each] for each in has] for pod in pods])


def _shuffle(parts: Floats, most: int) -> list[list[int]]:
    """Hundreds of orders at once, near the one by size, each pod on the fullest node that has room: one that needs no
    more than so many nodes; none: no order does. What is drawn is the same every time."""
    draw, every = np.random.default_rng(0), np.arange(_SHUFFLES)
    size = parts.max(axis=1) + parts.sum(axis=1) / 8
    shaken = draw.uniform(0, 1, (_SHUFFLES, 1)) * draw.uniform(-0.5, 0.5, (_SHUFFLES, len(parts)))
    orders = np.argsort(-size * (1 + shaken), axis=1, kind="stable")
    free = np.full((_SHUFFLES, most, parts.shape[1]), 1.0 + _HAIR)
    where, fails = np.zeros((_SHUFFLES, len(parts)), np.int64), np.zeros(_SHUFFLES, np.bool_)
    for step in range(len(parts)):
        pod = orders[:, step]
        fits: Bools = np.asarray((free >= parts[pod][:, None, :]).all(axis=2))
        chosen = np.where(fits, free.sum(axis=2), np.inf).argmin(axis=1)
        fails |= ~fits[every, chosen]
        free[every, chosen] -= parts[pod]
        where[every, pod] = chosen
    if fails.all():
        return []
    found = where[int(fails.argmin())]
    return [np.flatnonzero(found == node).tolist() for node in np.unique(found)]


def _refill(parts: Floats, nodes: list[list[int]], most: int) -> list[list[int]]:
    """Of the nodes the emptiest and a few others are emptied and filled anew, over and over, until there are no more
    than so many. What is drawn is the same every time."""
    draw, best, score = np.random.default_rng(0), nodes, _score(parts, nodes)
    for _ in range(_REFILLS):
        if len(best) <= most:
            break
        ranked = sorted(best, key=lambda node: float(parts[node].sum()))
        chosen = {0, *draw.choice(np.arange(1, len(ranked)), min(_EMPTIED, len(ranked) - 1), replace=False).tolist()}
        kept = [list(node) for at, node in enumerate(ranked) if at not in chosen]
        loose = [at for place in chosen for at in ranked[place]]
        free = np.array([1.0 + _HAIR - parts[node].sum(axis=0) for node in kept])
        loose.sort(key=lambda at: -parts[at].sum() * draw.uniform(0.5, 1.5))
        left = _put_beside(parts, loose, kept, free)
        made = [*kept, *_match(parts, left)]
        tried = _score(parts, made)
        if tried >= score:
            best, score = made, tried
    return best


def _score(parts: Floats, nodes: list[list[int]]) -> tuple[int, float]:
    """The more, the better: few nodes, and some of them full."""
    return -len(nodes), float(sum(parts[node].sum() ** 2 for node in nodes))


def _put_beside(parts: Floats, loose: Sequence[int], kept: list[list[int]], free: Floats) -> list[int]:
    """Each on the fullest node that has room; who is left."""
    left = list[int]()
    for at in loose:
        fits = (free >= parts[at]).all(axis=1) if len(kept) else np.zeros(0, np.bool_)
        if not fits.any():
            left.append(at)
            continue
        node = int(np.where(fits, free.sum(axis=1), np.inf).argmin())
        kept[node].append(at)
        free[node] -= parts[at]
    return left


def _match(parts: Floats, chosen: Iterable[int]) -> list[list[int]]:
    """Node after node around the largest that is left, with the three others beside it that leave least free."""
    left = sorted(chosen, key=lambda at: (-parts[at].max(), -parts[at].sum(), at))
    nodes: list[list[int]] = []
    while left:
        node = [left.pop(0)]
        while beside := _find_beside(parts, left, 1.0 + _HAIR - parts[node].sum(axis=0)):
            node += beside
            left = [at for at in left if at not in beside]
        nodes.append(node)
    return nodes


def _find_beside(parts: Floats, left: Sequence[int], free: Floats) -> list[int]:
    """Of one, two or three pods that fit together, those that take most; where many more fit, the largest alone."""
    fitting = [at for at in left if (parts[at] <= free).all()]
    if len(fitting) <= 1 or sum(sorted(parts[fitting].max(axis=1))[:4]) <= free.max() - _HAIR:
        return fitting[:1]
    best, most = fitting[:1], float(parts[fitting[0]].sum())
    for many in (2, 3):
        groups = np.array(list(itertools.combinations(fitting, many)), np.int64)
        if not len(groups):
            break
        taken = parts[groups].sum(axis=1)
        sums = np.where((taken <= free).all(axis=1), taken.sum(axis=1), -1.0)
        at = int(sums.argmax())
        if sums[at] > most + _HAIR:
            best, most = groups[at].tolist(), float(sums[at])
    return best


def _find_bound(pods: Sequence[ScaledPod], template: NodeTemplate) -> int:
    """No packing needs fewer."""
    has = template.has or {}
    asked: dict[str, int] = {}
    for pod in pods:
        for resource, amount in pod.asks.items():
            asked[resource] = asked.get(resource, 0) + amount
    return max(1, *(-(-amount // has[resource]) for resource, amount in asked.items() if amount and has.get(resource)))


def _list_keys(template: NodeTemplate) -> list[Callable[[ScaledPod], float]]:
    has = {resource: amount for resource, amount in (template.has or {}).items() if amount > 0}

    def part(pod: ScaledPod, resource: str) -> float:
        return pod.asks.get(resource, 0) / has[resource]

    def make(resource: str) -> Callable[[ScaledPod], float]:
        return lambda pod: -part(pod, resource)

    whole: list[Callable[[ScaledPod], float]] = [
        lambda pod: -max(part(pod, resource) for resource in has),
        lambda pod: -sum(part(pod, resource) for resource in has),
        lambda pod: -sum(part(pod, resource) ** 2 for resource in has),
    ]
    return whole + [make(resource) for resource in sorted(has)]
