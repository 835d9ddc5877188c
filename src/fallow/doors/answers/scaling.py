"""Nodes that come and go, told: what each policy would add and let go, who waits for a node, why every node stays.

In: the plan of one cycle, and what it rests on. Out: a ScalingPage, for `fallow scale plan`, the API and the page of
nodes; lines for whoever asks about one node or one pod.
Invariant: what is not known is None or said in words; sentences are the brain's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fallow.doors import answers
from fallow.model import price_book, scaling, scaling_plan, units
from fallow.model.scaling import ScalingSight
from fallow.model.scaling_plan import NodeStay, PolicyPlan, ScalingPlan
from fallow.model.seen import Known
from fallow.model.units import DAY, HOUR

_SHOWN_HOURS: Final = int(DAY / HOUR)
# Of a node that stays one wonders why only for these: the others are what one expects.
_TOLD: Final = frozenset(NodeStay) - {NodeStay.Needed, NodeStay.Busy, NodeStay.NotOurs}


class WhyTold(answers.Shape, frozen=True, kw_only=True):
    reason: str
    because: str


class GrowthTold(answers.Shape, frozen=True, kw_only=True):
    """`pods`: for whom. `per_hour`: what all of them cost; None: not known."""

    pool: str
    capacity_type: str
    instance_type: str | None
    count: int
    reason: str
    because: str
    pods: tuple[str, ...]
    per_hour: float | None


class MoveTold(answers.Shape, frozen=True, kw_only=True):
    pod: str
    node: str


class ReleaseTold(answers.Shape, frozen=True, kw_only=True):
    node: str
    kind: str
    because: str
    moves: tuple[MoveTold, ...]
    per_hour: float | None


class OnTheWay(answers.Shape, frozen=True, kw_only=True):
    pool: str
    capacity_type: str
    count: int
    since: str


class SoldOut(answers.Shape, frozen=True, kw_only=True):
    pool: str
    capacity_type: str
    instance_type: str | None
    zone: str | None
    until: str
    failures: int


class GuessTold(answers.Shape, frozen=True, kw_only=True):
    """`error`: how far off such guesses were lately, as a share of what was wanted. `ahead`: GPUs in each of the coming
    hours. `refused`: why no node is started ahead of it; None: one is, or would be."""

    model: str
    error: float | None
    confidence: float | None
    peak_gpus: float | None
    utilization: float | None
    nodes: int | None
    busy_at: str | None
    ahead: tuple[float, ...]
    refused: str | None


class SpotTold(answers.Shape, frozen=True, kw_only=True):
    """What share of spot nodes would do, and the one that is set; `daily`: share of them taken back on a day."""

    share: float
    is_set: float
    daily: float
    because: str


class DemandTold(answers.Shape, frozen=True, kw_only=True):
    """GPUs in use and waited for, by the hour; None where nobody looked."""

    ends_at: str
    gpus: tuple[float | None, ...]


class PolicyScaling(answers.Shape, frozen=True, kw_only=True):
    """`acts`: False: this is advice. `gpus`: of all its nodes; None: of one it is not known. `blocked`, `brakes`: why
    it does less than it would."""

    name: str
    mode: str
    acts: bool
    driver: str
    provider: str
    nodes: int
    gpus: int | None
    desired: int
    by_capacity_type: dict[str, int]
    pending_pods: int
    utilization: float | None
    per_hour: float | None
    because: str
    blocked: tuple[WhyTold, ...]
    brakes: tuple[WhyTold, ...]
    grows: tuple[GrowthTold, ...]
    releases: tuple[ReleaseTold, ...]
    headroom: tuple[WhyTold, ...]
    gangs: tuple[WhyTold, ...]
    in_flight: tuple[OnTheWay, ...]
    sold_out: tuple[SoldOut, ...]
    guess: GuessTold | None
    spot_advice: SpotTold | None
    demand: DemandTold | None


class WaitingTold(answers.Shape, frozen=True, kw_only=True):
    """`fit`: what the pod means for nodes; `held`: why it is nobody's demand. `where`: a node or a pool."""

    namespace: str
    pod: str
    fit: str
    held: str | None
    because: str
    policy: str | None
    where: str | None


class NodeFate(answers.Shape, frozen=True, kw_only=True):
    node: str
    policy: str
    verdict: str
    because: str
    unneeded_since: str | None


class ScalingPage(answers.Shape, frozen=True, kw_only=True):
    """`unseen`: why nothing could be planned; None where something was. `per_hour`: what the plan changes, None where a
    price is not known."""

    as_of: str | None
    policies: tuple[PolicyScaling, ...]
    pods: tuple[WaitingTold, ...]
    nodes: tuple[NodeFate, ...]
    per_hour: float | None
    currency: str = price_book.LIST_CURRENCY
    unseen: str | None


def show(plan: ScalingPlan | None, sight: ScalingSight | None, failure: str = "") -> ScalingPage:
    """`plan` None: nobody has looked yet."""
    if plan is None:
        return ScalingPage(
            as_of=None, policies=(), pods=(), nodes=(), per_hour=None, currency=price_book.LIST_CURRENCY,
            unseen=failure or "nobody has looked yet"
        )
    prices = find_prices(sight)
    boards = _count_gpus(plan, sight)
    policies = tuple(_tell_policy(each, sight, prices, boards) for each in plan.policies)
    return ScalingPage(
        as_of=units.rfc3339(plan.taken_at), policies=policies, pods=tuple(map(tell_pod, plan.pods)),
        nodes=tuple(map(tell_node, plan.nodes)), per_hour=_change(policies),
        currency=price_book.LIST_CURRENCY if sight is None else sight.currency, unseen=failure or plan.unseen or None,
    )


def find_prices(sight: ScalingSight | None) -> Mapping[str, float | None]:
    """Of an hour of each node."""
    if sight is None or not isinstance(sight.nodes, Known):
        return {}
    return {node.name: node.price for node in sight.nodes.value}


def _count_gpus(plan: ScalingPlan, sight: ScalingSight | None) -> Mapping[str, int | None]:
    """Of all nodes of each policy."""
    if sight is None or not isinstance(sight.nodes, Known):
        return {}
    has = {node.name: node.gpus for node in sight.nodes.value}
    found: dict[str, int | None] = {}
    for each in plan.nodes:
        before, more = found.get(each.policy, 0), has.get(each.node)
        found[each.policy] = None if before is None or more is None else before + more
    return found


def _change(policies: tuple[PolicyScaling, ...]) -> float | None:
    added = [each.per_hour for policy in policies for each in policy.grows]
    saved = [each.per_hour for policy in policies for each in policy.releases]
    known = [each for each in (*added, *saved) if each is not None]
    if len(known) < len(added) + len(saved):
        return None
    return round(sum(each or 0.0 for each in added) - sum(each or 0.0 for each in saved), 2)


def _tell_policy(
    plan: PolicyPlan, sight: ScalingSight | None, prices: Mapping[str, float | None], boards: Mapping[str, int | None]
) -> PolicyScaling:
    policy = plan.policy
    return PolicyScaling(
        name=policy.name, mode=str(policy.mode), acts=plan.acts, driver=str(plan.driver),
        provider=str(policy.provider), nodes=plan.nodes, gpus=boards.get(policy.name), desired=plan.desired,
        by_capacity_type={str(tier): count for tier, count in plan.by_tier.items() if count},
        pending_pods=plan.pending, utilization=_round(plan.use, 4), per_hour=_round(plan.cost, 2),
        because=plan.because, blocked=_whys(plan.blocked), brakes=_whys(plan.brakes),
        grows=tuple(map(_tell_growth, plan.grows)),
        releases=tuple(_tell_release(each, prices.get(each.node)) for each in plan.releases),
        headroom=tuple(
            WhyTold(reason=f"{answers.many(each.nodes, 'node')} of {each.pool.name}", because=each.because)
            for each in plan.headroom
        ),
        gangs=tuple(
            WhyTold(reason=str(each.request.state if each.request else scaling.GangState.asked),
                    because=f"{answers.many(each.nodes, 'node')} at once for {each.gang}"
                    + (f": {each.request.because}" if each.request and each.request.because else ""))
            for each in plan.gangs
        ),
        in_flight=tuple(
            OnTheWay(pool=each.pool, capacity_type=str(each.tier), count=each.count, since=units.rfc3339(each.since))
            for each in plan.in_flight if not each.is_late
        ),
        sold_out=tuple(map(_tell_stock, plan.stockouts)), guess=_tell_guess(plan.guess),
        spot_advice=_tell_spot(plan), demand=_tell_demand(sight, policy.name),
    )


def _whys(found: Mapping[scaling_plan.Blocked, str] | Mapping[scaling_plan.Brake, str]) -> tuple[WhyTold, ...]:
    return tuple(WhyTold(reason=str(reason), because=because) for reason, because in found.items())


def _tell_growth(each: scaling_plan.Grow) -> GrowthTold:
    return GrowthTold(
        pool=each.pool.name, capacity_type=str(each.tier), instance_type=each.instance_type or None, count=each.count,
        reason=str(each.reason), because=each.because, pods=tuple(f"{pod.namespace}/{pod.name}" for pod in each.pods),
        per_hour=None if each.price is None else round(each.price * each.count, 2),
    )


def _tell_release(each: scaling_plan.Release, price: float | None) -> ReleaseTold:
    moves = tuple(MoveTold(pod=f"{pod.namespace}/{pod.name}", node=node) for pod, node in each.moves)
    return ReleaseTold(
        node=each.node, kind=str(each.kind), because=each.because, moves=moves, per_hour=_round(price, 2)
    )


def _tell_stock(each: scaling.StockOut) -> SoldOut:
    return SoldOut(
        pool=each.pool, capacity_type=str(each.tier), instance_type=each.instance_type or None, zone=each.zone or None,
        until=units.rfc3339(each.until), failures=each.failures,
    )


def _tell_guess(guess: scaling_plan.DemandGuess | None) -> GuessTold | None:
    if guess is None:
        return None
    return GuessTold(
        model=guess.model, error=_round(guess.error, 4), confidence=_round(guess.confidence, 3),
        peak_gpus=_round(guess.peak, 1), utilization=_round(guess.utilization, 3), nodes=guess.nodes,
        busy_at=answers.instant(guess.busy_at), ahead=tuple(round(each, 2) for each in guess.ahead if each == each),
        refused=guess.refused or None,
    )


def _tell_spot(plan: PolicyPlan) -> SpotTold | None:
    found = plan.spot_advice
    return None if found is None else SpotTold(
        share=found.share, is_set=plan.policy.spot_share, daily=round(found.daily, 4), because=found.because
    )


def _tell_demand(sight: ScalingSight | None, policy: str) -> DemandTold | None:
    past = sight.past.get(policy) if sight is not None else None
    if past is None or not past.hours:
        return None
    recent = past.hours[-_SHOWN_HOURS:]
    return DemandTold(
        ends_at=units.rfc3339(past.ends_at), gpus=tuple(None if each != each else round(each, 2) for each in recent)
    )


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def tell_pod(each: scaling_plan.PodVerdict) -> WaitingTold:
    return WaitingTold(
        namespace=each.pod.namespace, pod=each.pod.name, fit=str(each.fit),
        held=str(each.held) if each.held is not None else None, because=each.because, policy=each.policy or None,
        where=each.where or None,
    )


def tell_node(each: scaling_plan.NodeVerdict) -> NodeFate:
    return NodeFate(
        node=each.node, policy=each.policy, verdict=str(each.stay), because=each.because,
        unneeded_since=answers.instant(each.since),
    )


# ---- for who asks about one node, one pod or one policy --------------------------------------------------------------


def tell_of_node(page: ScalingPage, name: str) -> Iterator[tuple[str, str]]:
    if page.unseen is not None:
        yield "scaling", f"not known: {page.unseen}"
    for each in page.nodes:
        if each.node == name:
            by = f" (AutoscalingPolicy {each.policy})" if each.policy else ""
            yield "scaling", f"{each.verdict}: {each.because}{by}"
    for policy in page.policies:
        for release in policy.releases:
            if release.node == name:
                done = "it is let go" if policy.acts else f"AutoscalingPolicy {policy.name} would let it go"
                saved = release.per_hour
                saves = "" if saved is None else f"; that saves {saved:,.2f} {page.currency} an hour"
                yield "let go", f"{done}: {release.because}{saves}"


def tell_of_policy(page: ScalingPage, name: str) -> Iterator[tuple[str, str]]:
    policy = next((each for each in page.policies if each.name == name), None)
    if policy is None:
        yield "plan", f"not known: {page.unseen or 'no plan names it'}"
        return
    yield "drives", f"{policy.driver}, {policy.provider}; {'acts' if policy.acts else 'recommends only'}"
    shares = ", ".join(f"{count} {tier}" for tier, count in policy.by_capacity_type.items())
    of = f" ({shares})" if shares else ""
    cost = "" if policy.per_hour is None else f", {policy.per_hour:,.2f} {page.currency} an hour"
    yield "nodes", f"{policy.nodes}{of}{cost}; there should be {policy.desired}"
    use = "cannot tell" if policy.utilization is None else f"{policy.utilization:.0%}"
    yield "use", f"{use}; {answers.many(policy.pending_pods, 'pod')} waiting for a node"
    for each in (*policy.blocked, *policy.brakes):
        yield "held", f"{each.reason}: {each.because}"
    for growth in policy.grows:
        yield "add", f"{answers.many(growth.count, 'node')} of {growth.pool} ({growth.reason}): {growth.because}"
    for release in policy.releases:
        yield "let go", f"{release.node} ({release.kind}): {release.because}"
    if not policy.grows and not policy.releases and policy.because:
        yield "plan", policy.because
    for gang in policy.gangs:
        yield "together", f"{gang.because} ({gang.reason})"
    for node in policy.in_flight:
        yield "coming", f"{answers.many(node.count, 'node')} of {node.pool} ({node.capacity_type}), since {node.since}"
    for stock in policy.sold_out:
        yield "sold out", f"{stock.pool} {stock.capacity_type} until {stock.until}, {stock.failures} times in a row"
    if policy.spot_advice is not None:
        yield "spot", f"{policy.spot_advice.because}; spotInstancePercentage is {policy.spot_advice.is_set:g}"
    if policy.guess is not None:
        yield "forecast", tell_guess(policy.guess)


def tell_guess(guess: GuessTold) -> str:
    error = "" if guess.error is None else f", off by {guess.error:.0%} lately"
    if guess.peak_gpus is None:
        return "too little is known of the past"
    sure = "" if guess.confidence is None else f"; {guess.confidence:.0%} of past peaks were nearly right"
    busy = "" if guess.busy_at is None else f"; next busy at {guess.busy_at}"
    rests = "" if guess.refused is None else f"; nothing is started ahead of it: {guess.refused}"
    return f"{guess.peak_gpus:g} GPUs at the coming peak by {guess.model}{error}{sure}{busy}{rests}"


def is_told(fate: NodeFate) -> bool:
    """Whether one wonders why."""
    return fate.verdict in _TOLD
