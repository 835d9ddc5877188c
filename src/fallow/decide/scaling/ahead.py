"""What is expected beyond what is there: nodes to start now, or headroom to ask another autoscaler for.

In: the board of one cycle, a policy. Out: Expected: the guess, growth or headroom, nodes whose turn is over.
Invariant: nothing is opened under a brake or while pods that are here wait.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fallow import names
from fallow.decide.scaling import demand, fit, grow, prewarm
from fallow.decide.scaling.board import ScalingBoard, find_counted, open_up
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.tiers import TierCounts
from fallow.model.policies.scaling import Prewarming
from fallow.model.scaling import ScaledNode, ScaledPod, WaitHold
from fallow.model.scaling_plan import DemandGuess, Fit, Grow, GrowReason, Headroom
from fallow.model.units import Instant


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """`started`: nodes that came ahead of demand and do not say so yet, and until when they stay. `over`: those whose
    turn is over, and whether anybody came."""

    guess: DemandGuess | None = None
    grows: list[Grow] = []
    headroom: tuple[Headroom, ...] = ()
    started: Mapping[str, Instant] = {}
    over: Mapping[str, bool] = {}


def look(board: ScalingBoard, ground: PolicyGround, counts: TierCounts, *, may_open: bool) -> Expected:
    """R4: nodes for what is expected beyond what is there."""
    policy, now = ground.policy, board.now
    rule, past = policy.prewarming, board.sight.past.get(policy.name)
    guests = [[pod for pod in board.kept.guests(node.name).gpu if pod.held is None] for node in ground.nodes]
    over = prewarm.settle(ground.nodes, list(map(bool, guests)), now)
    started = _find_started(board, ground, rule)
    sizes = [template.gpus for template in board.templates[policy.name].values() if template.gpus]
    if rule is None or past is None or not sizes:
        return Expected(started=started, over=over)
    outlook: prewarm.DemandOutlook | None = board.kept.ask(
        f"foresee {policy.name}", (past.ends_at, len(past.hours), rule, max(sizes)),
        lambda: prewarm.foresee(past, rule, float(max(sizes))),
    )
    if outlook is None:
        return Expected(started=started, over=over)
    counted, kept_free = find_counted(ground, now), _find_kept_free(board, ground, started)
    said = prewarm.guess(outlook, rule, _add_gpus(counted), now)
    ours = _add_gpus(node for node in counted if node not in kept_free)
    why_not = prewarm.find_refusal(outlook, rule, said.peak, ours, (ground.past.hits, ground.past.misses))
    said = msgspec.structs.replace(said, refused=why_not)
    grows = list[Grow]()
    if may_open and not why_not:
        running = [pod for each in guests for pod in each]
        grows = _open_ahead(board, ground, counts, said.peak or 0.0, running, kept_free)
        there = counts.total + (0 if ground.is_driven_by_us else grow.count(grows) - len(kept_free))
        said = msgspec.structs.replace(said, nodes=there)
    if ground.is_driven_by_us:
        return Expected(guess=said, grows=grows, started=started, over=over)
    since = {each.pool: each.since for each in ground.past.rooms}
    made = board.templates[policy.name]
    headroom = tuple(Headroom(
        policy=policy.name, driver=ground.driver, pool=each.pool, asks=made[each.pool.name].boards, nodes=each.count,
        since=since.get(each.pool.name, now), because=each.because,
    ) for each in grows)
    asked = {each.pool.name for each in headroom}
    gone = {node.name: False for node in ground.nodes
            if node.prewarmed_until is not None and ground.pools[node.name] not in asked}
    return Expected(guess=said, headroom=headroom, started=started, over={**gone, **over})


def _find_started(board: ScalingBoard, ground: PolicyGround, rule: Prewarming | None) -> Mapping[str, Instant]:
    """Where we drive, what came of such growth. Where another does, nodes that came since room was asked for, as many
    as that was, and that nobody is on or about to be placed on."""
    if ground.is_driven_by_us or rule is None:
        return board.arrived[ground.policy.name].started
    taken = {verdict.where for verdict in board.found.verdicts if verdict.fit is Fit.FitsNow}
    made: dict[str, Instant] = {}
    for room in ground.past.rooms:
        came = [node for node in sorted(ground.nodes, key=lambda each: (each.created_at, each.name))
                if ground.pools[node.name] == room.pool and node.created_at >= room.since]
        free = [
            node.name for node in came
            if not node.was_prewarmed and node.is_ready and fit.count_gpus(node.has) and node.name not in taken
            and all(pod.held is WaitHold.Placeholder for pod in board.kept.guests(node.name).gpu)
        ]
        left = max(0, room.nodes - sum(node.was_prewarmed for node in came))
        made |= dict.fromkeys(free[:left], prewarm.find_end(rule, room.since, board.now))
    return made


def _find_kept_free(
    board: ScalingBoard, ground: PolicyGround, started: Mapping[str, Instant]
) -> list[ScaledNode]:
    """Where another drives, nodes that are there only because room was asked for: no answer to what is asked for."""
    if ground.is_driven_by_us:
        return []
    return [node for node in find_counted(ground, board.now)
            if board.kept.guests(node.name).is_headroom or node.prewarmed_until is not None or node.name in started]


def _add_gpus(nodes: Iterable[ScaledNode]) -> float:
    return float(sum(node.gpus or 0 for node in nodes))


def _open_ahead(
    board: ScalingBoard, ground: PolicyGround, counts: TierCounts, peak: float, running: Sequence[ScaledPod],
    kept_free: Sequence[ScaledNode],
) -> list[Grow]:
    needs = board.found.needs.get(ground.policy.name, [])
    held = sum(fit.measure(pod.asks) for pod in (*running, *needs)) / 1000
    listed = {ground.policy.name: list(board.templates[ground.policy.name].values())}
    kinds = sorted({kind for template in listed[ground.policy.name] for kind in template.boards})
    expected = prewarm.imagine(peak - held, running, needs, kinds[0] if kinds else names.GPU)
    homes = [place for place in board.places if not place.policies or ground.policy.name in place.policies]
    full = board.kept.room.find_rows(node.name for node in kept_free)
    homes = [msgspec.structs.replace(place, may=place.may & ~full) if place.fit is Fit.FitsNow else place
             for place in homes]
    left = demand.judge(expected, homes, listed).needs.get(ground.policy.name, [])
    opened = counts if ground.is_driven_by_us else counts.copy()
    for node in kept_free:
        opened.add(ground.pools[node.name], node.tier, -1)
    return grow.for_pods(GrowReason.Forecast, left, open_up(board, ground), opened)[0]
