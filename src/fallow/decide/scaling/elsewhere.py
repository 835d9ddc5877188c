"""Where another autoscaler adds machines: what it is about to do for pods that wait, what stops it, and gangs for which
it is asked to add several nodes at once or none.

In: the board of one cycle, a policy that Karpenter or cluster-autoscaler drives. Out: HandedOver: a sentence for each
pod that needs a node, why pods wait for a limit, requests for gangs.
A gang is what its people marked as one (`ScaledPod.gang`), all of it there and waiting, that needs more than one node.
Invariant: one request for a gang; one that stands is kept until nobody of the gang waits, or it has failed for a while.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.decide.scaling import demand, fit, grow, words
from fallow.decide.scaling.board import ScalingBoard, open_up
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.templates import NodeTemplate
from fallow.decide.scaling.tiers import TierCounts
from fallow.model import seen, units
from fallow.model.policies.scaling import NodeDriver
from fallow.model.scaling import DriversSeen, GangState, PoolLimit, ScaledPod
from fallow.model.scaling_plan import GangAsk, GangRoom, GrowReason
from fallow.model.seen import Known
from fallow.model.units import MINUTE, Instant, Seconds

_AGAIN: Final[Seconds] = 10 * MINUTE  # after which what failed is asked for anew
_MOST_GANGS: Final = 20  # of a policy at a time
_OVER: Final = (GangState.failed, GangState.expired)
_NOBODY: Final = DriversSeen()


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """`notes`: by uid of the pod. `stopped`: which limit keeps pods waiting; "": none."""

    notes: Mapping[str, str] = {}
    stopped: str = ""
    gangs: tuple[GangAsk, ...] = ()


def look(board: ScalingBoard, ground: PolicyGround, counts: TierCounts, *, may_open: bool) -> HandedOver:
    if ground.is_driven_by_us:
        return HandedOver()
    drivers = board.sight.drivers.value if isinstance(board.sight.drivers, Known) else _NOBODY
    needs = board.found.needs.get(ground.policy.name, [])
    templates = board.templates[ground.policy.name]
    limits = _find_limits(ground, templates, drivers)
    gangs = _find_gangs(board, ground, drivers, counts, needs if may_open else ())
    notes, stopped = dict[str, str](), dict[str, int]()
    by_gang = {each.gang: each for each in gangs}
    for pod in needs:
        because = _find_stop(pod, templates.values(), limits)
        if because:
            stopped[because] = stopped.get(because, 0) + 1
        elif pod.gang in by_gang:
            because = words.together(by_gang[pod.gang])
        notes[pod.id.uid] = because or f"{ground.driver} sees it, and adds one"
    said = [f"{units.many(count, 'pod')} wait: {because}" for because, count in stopped.items()]
    return HandedOver(notes=notes, stopped="; ".join(said), gangs=gangs)


# ---- limits of Karpenter's NodePools ---------------------------------------------------------------------------------


def _find_limits(
    ground: PolicyGround, templates: Mapping[str, NodeTemplate], drivers: DriversSeen
) -> dict[str, str]:
    """By pool: why Karpenter adds none of it."""
    if ground.driver is not NodeDriver.karpenter:
        return {}
    found = {}
    for name, template in templates.items():
        group = template.pool.group
        limit = next((each for each in drivers.limits.get(group, ()) if _is_reached(each, template)), None)
        if limit is not None:
            found[name] = f"Karpenter adds no node of pool {name}: its NodePool {group} {limit.said}"
    return found


def _is_reached(limit: PoolLimit, template: NodeTemplate) -> bool:
    has = template.has or {}
    more = {"nodes": 1.0, "cpu": has.get("cpu", 0) / 1000, "memory": has.get("memory", 0) * float(2**20)}
    return limit.used >= limit.most or limit.used + more.get(limit.resource, has.get(limit.resource, 0)) > limit.most


def _find_stop(pod: ScaledPod, templates: Iterable[NodeTemplate], limits: Mapping[str, str]) -> str:
    """Where every pool that would do for it is stopped, why."""
    wanted = fit.constrain(pod)
    would = [each.pool.name for each in templates if demand.hosts(each, pod.asks, wanted)]
    return limits[would[0]] if would and all(name in limits for name in would) else ""


# ---- gangs -----------------------------------------------------------------------------------------------------------


def _find_gangs(
    board: ScalingBoard, ground: PolicyGround, drivers: DriversSeen, counts: TierCounts, needs: Sequence[ScaledPod]
) -> tuple[GangAsk, ...]:
    if ground.driver is not NodeDriver.cluster_autoscaler or not drivers.requests:
        return ()
    templates = board.templates[ground.policy.name]
    waiting, sizes = _count_gangs(seen.sure(board.sight.pods))
    made = list[GangAsk]()
    for request in sorted(drivers.gangs.values(), key=lambda each: each.name):
        is_over = request.state in _OVER and board.now - request.since > _AGAIN
        if request.policy == ground.policy.name and waiting.get(request.gang) and not is_over:
            made.append(GangAsk(policy=request.policy, gang=request.gang, name=request.name, request=request))
    asked, opened = {each.gang for each in made} | {each.gang for each in drivers.gangs.values()}, counts.copy()
    by_gang: dict[str, list[ScaledPod]] = {}
    for pod in needs:
        if pod.gang and pod.gang not in asked and sizes[pod.gang] >= (pod.gang_size or 0):
            by_gang.setdefault(pod.gang, []).append(pod)
    for gang, pods in by_gang.items():
        tried = opened.copy()
        grows, left = grow.for_pods(GrowReason.PendingPods, pods, open_up(board, ground), tried)
        if left or grow.count(grows) < 2 or len(made) >= _MOST_GANGS or not _are_patient(ground, pods, board.now):
            continue
        opened = tried
        made.append(GangAsk(
            policy=ground.policy.name, gang=gang, name=_name(ground.policy.name, gang),
            rooms=tuple(GangRoom(each.pool, templates[each.pool.name].boards, each.count) for each in grows),
        ))
    return tuple(made)


def _count_gangs(pods: Iterable[ScaledPod]) -> tuple[dict[str, int], dict[str, int]]:
    """By gang: who waits, and who is there at all."""
    waiting, there = dict[str, int](), dict[str, int]()
    for pod in pods:
        if pod.gang and not pod.is_going:
            waiting[pod.gang] = waiting.get(pod.gang, 0) + (not pod.node)
            there[pod.gang] = there.get(pod.gang, 0) + 1
    return waiting, there


def _are_patient(ground: PolicyGround, pods: Sequence[ScaledPod], now: Instant) -> bool:
    """All have waited for long enough, so that nobody of them is still being made."""
    return all(
        pod.waits_since is not None and now - pod.waits_since > ground.policy.pending_patience for pod in pods
    )


def _name(policy: str, gang: str) -> str:
    return f"{names.GANG_PREFIX}{hashlib.sha256(f'{policy}/{gang}'.encode()).hexdigest()[:16]}"
