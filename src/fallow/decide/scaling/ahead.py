"""What is expected beyond what is there: nodes to start now, or headroom to ask another autoscaler for.

In: the board of one cycle, a policy. Out: Expected: the guess, growth or headroom, nodes whose turn is over.
Invariant: nothing is opened under a brake or while pods that are here wait.
"""

from collections.abc import Mapping, Sequence

import msgspec

from fallow.decide.scaling import demand, fit, grow, prewarm
from fallow.decide.scaling.board import ScalingBoard, find_counted, open_up
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.tiers import TierCounts
from fallow.model.scaling import DemandGuess, Fit, Grow, GrowReason, Headroom, ScaledPod


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    guess: DemandGuess | None = None
    grows: list[Grow] = []
    headroom: tuple[Headroom, ...] = ()
    over: Mapping[str, bool] = {}


def look(board: ScalingBoard, ground: PolicyGround, counts: TierCounts, *, may_open: bool) -> Expected:
    """R4: nodes for what is expected beyond what is there."""
    policy, now = ground.policy, board.now
    rule, past = policy.prewarming, board.sight.past.get(policy.name)
    guests = [board.kept.guests(node.name).gpu for node in ground.nodes]
    over = prewarm.settle(ground.nodes, list(map(bool, guests)), now)
    sizes = [template.gpus for template in board.templates[policy.name].values() if template.gpus]
    if rule is None or past is None or not sizes:
        return Expected(over=over)
    outlook: prewarm.DemandOutlook | None = board.kept.ask(
        f"foresee {policy.name}", (past.ends_at, len(past.hours), rule, max(sizes)),
        lambda: prewarm.foresee(past, rule, float(max(sizes))),
    )
    if outlook is None:
        return Expected(over=over)
    capacity = float(sum(node.gpus or 0 for node in find_counted(ground, now)))
    said = prewarm.guess(outlook, rule, capacity, now)
    why_not = prewarm.find_refusal(outlook, rule, said.peak, capacity, (ground.past.hits, ground.past.misses))
    if why_not or not may_open:
        return Expected(guess=said, over=over)
    running = [pod for each in guests for pod in each if pod.held is None]
    grows = _open_ahead(board, ground, counts, said.peak or 0.0, running)
    headroom = tuple(
        Headroom(policy=policy.name, pool=each.pool, nodes=each.count, until=now + rule.ahead + rule.release,
                 because=each.because) for each in grows
    )
    there = counts.total + (0 if ground.is_driven_by_us else grow.count(grows))
    return Expected(guess=msgspec.structs.replace(said, nodes=there), grows=grows, headroom=headroom, over=over)


def _open_ahead(
    board: ScalingBoard, ground: PolicyGround, counts: TierCounts, peak: float, running: Sequence[ScaledPod]
) -> list[Grow]:
    needs = board.found.needs.get(ground.policy.name, [])
    held = sum(fit.measure(pod.asks) for pod in (*running, *needs)) / 1000
    expected = prewarm.imagine(peak - held, running, needs)
    homes = [place for place in board.places if not place.policies or ground.policy.name in place.policies]
    if not ground.is_driven_by_us:  # what is there only for our placeholders is what is asked for, not an answer to it
        full = board.kept.room.find_rows(
            node.name for node in ground.nodes if board.kept.guests(node.name).is_headroom
        )
        homes = [msgspec.structs.replace(place, may=place.may & ~full) if place.fit is Fit.FitsNow else place
                 for place in homes]
    listed = {ground.policy.name: list(board.templates[ground.policy.name].values())}
    left = demand.judge(expected, homes, listed).needs.get(ground.policy.name, [])
    opened = counts if ground.is_driven_by_us else counts.copy()
    return grow.for_pods(GrowReason.Forecast, left, open_up(board, ground), opened)[0]
