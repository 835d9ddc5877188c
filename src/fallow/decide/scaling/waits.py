"""Why no node is added yet for pods that need one: each of them is told, and so is whoever reads the plan.

In: the board of one cycle, a policy that we drive, what it adds. Out: a sentence for each pod for which none is added,
and one for the policy; "" where a node is added for all of them.
Invariant: no sentence has a time that runs on, so that what did not change reads the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from fallow.decide.scaling import brakes, demand, fit, grow, tiers
from fallow.decide.scaling.board import ScalingBoard, open_up
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.pack import Opening
from fallow.decide.scaling.templates import NodeTemplate
from fallow.decide.scaling.tiers import TierCounts
from fallow.model import units
from fallow.model.cost import CapacityType
from fallow.model.scaling import ScaledPod
from fallow.model.scaling_plan import Brake, Grow
from fallow.model.seen import Unseen


class WaitsFound(msgspec.Struct, frozen=True):
    """`notes`: by uid of the pod."""

    notes: Mapping[str, str] = {}
    because: str = ""


def look(
    board: ScalingBoard, ground: PolicyGround, halts: Mapping[Brake, str], grows: Sequence[Grow], counts: TierCounts
) -> WaitsFound:
    """`counts`: with what is added now."""
    needs = board.found.needs.get(ground.policy.name, [])
    if not needs or not ground.is_driven_by_us:
        return WaitsFound()
    served = {pod.uid for each in grows for pod in each.pods}
    left = [pod for pod in needs if pod.id.uid not in served]
    if not left:
        return WaitsFound()
    delay = _find_delay(board, ground, halts, needs)
    notes = {pod.id.uid: delay for pod in left} if delay else _find_limits(left, open_up(board, ground), counts)
    why = Counter(notes.values()).most_common(1)[0][0]
    wait = "waits" if len(left) == 1 else "wait"
    return WaitsFound(notes, f"{units.many(len(left), 'pod')} {wait} for a node, and none is added yet: {why}")


def _find_delay(
    board: ScalingBoard, ground: PolicyGround, halts: Mapping[Brake, str], needs: Sequence[ScaledPod]
) -> str:
    """What keeps anybody from having one now."""
    policy, grew_at, now = ground.policy, ground.past.grew_at, board.now
    for brake in brakes.HALTS_ALL:
        if brake in halts:
            return halts[brake]
    if isinstance(board.sight.limits, Unseen):
        return f"what budgets forbid is not seen: {board.sight.limits.why}"
    if grow.is_resting(policy, grew_at, now) and not board.arrived[policy.name].retries:
        rests = units.spoken(policy.grow_rest)
        until = units.rfc3339((grew_at or now) + policy.grow_rest)
        return f"nodes were added less than {rests} ago (scaleUpCooldownSeconds); the next may be added at {until}"
    if grow.find_reason(policy, needs, now) is not None:
        return ""
    patience = units.spoken(policy.pending_patience)
    due = grow.find_due(policy, needs, grew_at, now)
    at = "" if due is None else f"; if they still wait at {units.rfc3339(due)}, one is added"
    return f"no pod has waited for more than {patience} (pendingPodTimeoutSeconds){at}"


def _find_limits(pods: Sequence[ScaledPod], opening: Opening, counts: TierCounts) -> dict[str, str]:
    """By uid: which limit keeps it from having one. Of thousands that are alike it is found out once."""
    notes, known = dict[str, str](), dict[object, str]()
    for pod in pods:
        allowed = opening.purse.order(pod.id.uid, opening.tiers)
        key = tuple(sorted(pod.asks.items())), fit.constrain(pod), allowed, tiers.may_use_spot(pod)
        if key not in known:
            known[key] = _find_limit(pod, opening, counts, allowed)
        notes[pod.id.uid] = known[key]
    return notes


def _find_limit(
    pod: ScaledPod, opening: Opening, counts: TierCounts, allowed: Sequence[CapacityType]
) -> str:
    if counts.total >= opening.policy.most:
        return f"the policy has its maximum of {units.many(opening.policy.most, 'node')} (maxNodes)"
    wanted = fit.constrain(pod)
    would = [each for each in opening.templates.values() if demand.hosts(each, pod.asks, wanted)]
    found = (f"pool {each.pool.name} {_find_shut(each, pod, opening, counts, allowed)}" for each in would)
    return "; ".join(found) or "no pool is open to it"


def _find_shut(
    template: NodeTemplate, pod: ScaledPod, opening: Opening, counts: TierCounts, allowed: Sequence[CapacityType]
) -> str:
    pool = template.pool
    most = opening.rooms.get(pool.name, 0)
    if pool.name in opening.shut:
        return "is sold out"
    if counts.by_pool.get(pool.name, 0) >= most:
        return f"has its maximum of {units.many(most, 'node')}"
    if pool.tier not in opening.tiers:
        return f"is {pool.tier}, which the policy does not use"
    if pool.tier not in allowed:
        return f"is {pool.tier}, which a budget forbids"
    if pool.tier is CapacityType.spot and not tiers.may_use_spot(pod):
        return "is spot, and nobody said that the pod may be interrupted"
    if pool.tier is CapacityType.spot and not tiers.is_spot_open(opening.policy, counts):
        return "is spot, and there are as many spot nodes as spotInstancePercentage allows"
    return "is open to it: it is served by a later look"
