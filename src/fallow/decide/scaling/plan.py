"""The whole of one cycle: what every pod that waits means, what every node is, what each policy does, in one plan.

In: a ScalingSight, the memory of the cycle before, now; a KeptSight that makes it quick. Out: a ScalingPlan. Order: who
drives and what is blocked; what came of what was asked for; who fits where; brakes; growth; release.
Invariant: the same sight gives the same plan. What is not seen removes nothing; pods that need a node are still served
where use is not known.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fallow.decide.scaling import (
    ahead,
    apart,
    arrivals,
    brakes,
    demand,
    drivers,
    elsewhere,
    fit,
    grow,
    labels,
    remembered,
    shrink,
    spot,
    templates,
    tiers,
    waits,
    words,
)
from fallow.decide.scaling.arrivals import ComingNodes
from fallow.decide.scaling.board import ScalingBoard, find_counted, find_mixed, open_up
from fallow.decide.scaling.brakes import PolicyUse
from fallow.decide.scaling.demand import FitPlace
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.fit import Bools, FreeRoom
from fallow.decide.scaling.kept import KeptSight
from fallow.decide.scaling.pack import Opening
from fallow.decide.scaling.shrink import Stay
from fallow.decide.scaling.templates import NodeTemplate, ShapeBook
from fallow.decide.scaling.tiers import ScalingTerms, TierCounts
from fallow.model import scaling_status, seen, units
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import DrainKind, ScaledNode, ScaledPod, ScalingMemory, ScalingSight
from fallow.model.scaling_plan import (
    Blocked,
    Brake,
    Fit,
    Grow,
    GrowReason,
    NodeStay,
    NodeVerdict,
    PodVerdict,
    PolicyPlan,
    Release,
    ScalingPlan,
)
from fallow.model.seen import Absent, Unseen
from fallow.model.units import Instant

_USUAL = ScalingTerms()


def plan(
    sight: ScalingSight, memory: ScalingMemory, now: Instant, *, terms: ScalingTerms = _USUAL,
    kept: KeptSight | None = None,
) -> ScalingPlan:
    match sight.policies:
        case Unseen(why):
            unseen = f"policies are not seen: {why}"
            return ScalingPlan(taken_at=sight.taken_at, memory=remembered.lose(memory), unseen=unseen)
        case Absent():
            return ScalingPlan(taken_at=sight.taken_at, memory=remembered.lose(memory))
    policies = tuple(sorted(sight.policies.value, key=lambda each: each.rank))
    for what, found in (("pods", sight.pods), ("nodes", sight.nodes)):
        if isinstance(found, Unseen):
            return _see_nothing(policies, sight, memory, f"{what} are not seen: {found.why}")
    board = _set_up(policies, sight, memory, now, terms, kept or KeptSight())
    return _decide(board)


def _see_nothing(
    policies: Sequence[ScalingPolicy], sight: ScalingSight, memory: ScalingMemory, why: str
) -> ScalingPlan:
    made = tuple(
        PolicyPlan(
            policy=policy, driver=policy.driver, heeds=policy.acts, blocked={Blocked.Unseen: why}, because=why,
            in_flight=past.in_flight, stockouts=past.stockouts,
        ) for policy in policies for past in (scaling_status.read(policy.status),)
    )
    return ScalingPlan(taken_at=sight.taken_at, policies=made, memory=remembered.lose(memory), unseen=why)


# ---- what is there ---------------------------------------------------------------------------------------------------


def _set_up(
    policies: tuple[ScalingPolicy, ...], sight: ScalingSight, memory: ScalingMemory, now: Instant, terms: ScalingTerms,
    kept: KeptSight,
) -> ScalingBoard:
    nodes, pods = seen.sure(sight.nodes), seen.sure(sight.pods)
    kept.refresh(nodes, pods)
    overlaps, own = drivers.find_overlaps(policies, nodes), drivers.share_out(policies, nodes)
    grounds = tuple(drivers.stand(policy, sight, own[policy.name], overlaps) for policy in policies)
    live = [ground for ground in grounds if not ground.is_blocked]
    arrived = {ground.policy.name: arrivals.settle(ground, nodes, sight.wants, now) for ground in live}
    made = {ground.policy.name: _make_templates(ground, sight, kept) for ground in live}
    usable = np.array([_is_usable(node, now) for node in nodes], np.bool_)
    drained = [node for node in nodes if _may_come_back(node, now)]
    places = _list_places(kept, usable, drained, arrived, made)
    leaving = _find_leaving(live, kept, places, made, now)
    listed = {name: list(every.values()) for name, every in made.items()}
    found = demand.judge(kept.waiting, places, listed)
    return ScalingBoard(
        sight=sight, memory=memory, now=now, terms=terms, kept=kept, nodes=nodes, usable=usable, grounds=grounds,
        arrived=arrived, templates=made, leaving=leaving, places=places,
        found=found, stuck=_find_stuck(nodes, kept, places[0], usable),
    )


def _find_stuck(
    nodes: Sequence[ScaledNode], kept: KeptSight, left: FitPlace, usable: Bools
) -> dict[str, str]:
    """`left`: what those who wait leave free."""
    drained = [node for node in nodes if node.drain is not None and node.drain.removing is None]
    return shrink.find_stuck(drained, kept.guests, left.room.copy(), usable) if drained else {}


def _is_usable(node: ScaledNode, now: Instant) -> bool:
    """The scheduler may place pods there, and we do not mean to empty it."""
    return (
        node.is_ready and not (node.is_cordoned or node.is_going or node.is_broken)
        and node.drain is None and not spot.is_taken_back(node, now)
    )


def _make_templates(ground: PolicyGround, sight: ScalingSight, kept: KeptSight) -> dict[str, NodeTemplate]:
    book = ShapeBook(sight.shapes, sight.prices)
    by_pool: dict[str, list[ScaledNode]] = {}
    for node in ground.nodes:
        if node.is_ready and not node.is_going:
            by_pool.setdefault(ground.pools[node.name], []).append(node)
    made = {}
    for pool in ground.policy.pools:
        if drivers.can_reach(ground, pool):
            alive = by_pool.get(pool.name, [])
            alike = kept.compare(f"{ground.policy.name}/{pool.name}", alive)
            group = remembered.find_group(ground.groups, pool)
            model = next((node for node in alive if node.name == alike.model), None)
            made[pool.name] = templates.make(pool, alike, model, kept.belongings(alike.model), group, book)
    return made


def _list_places(
    kept: KeptSight, usable: Bools, emptied: Sequence[ScaledNode], arrived: Mapping[str, ComingNodes],
    made: Mapping[str, Mapping[str, NodeTemplate]],
) -> list[FitPlace]:
    """What is there, what we are emptying and could stop emptying, what is on its way."""
    places = [FitPlace(Fit.FitsNow, kept.room.copy(), usable)]
    drained = [_without_taints(node) for node in emptied]
    if drained:
        room = FreeRoom(drained, [pod for node in drained for pod in kept.tenants(node.name)])
        owners = tuple(node.drain.policy if node.drain else "" for node in drained)
        places.append(FitPlace(Fit.FitsInFlight, room, np.ones(len(drained), np.bool_), owners))
    coming, owners_of, shown = list[ScaledNode](), list[str](), list[str]()
    for policy, found in arrived.items():
        for each in found.open:
            template = made[policy].get(each.pool)
            if template is not None and template.has is not None:
                for _ in range(found.missing[each.token]):
                    coming.append(_imagine(template, len(coming)))
                    owners_of.append(policy)
                    shown.append(f"a node of pool {each.pool}")
    if coming:
        room = FreeRoom(coming, ())
        places.append(
            FitPlace(Fit.FitsInFlight, room, np.ones(len(coming), np.bool_), tuple(owners_of), tuple(shown))
        )
    return places


def _may_come_back(node: ScaledNode, now: Instant) -> bool:
    return (
        node.drain is not None and node.drain.removing is None and node.drain.reason is not DrainKind.failed
        and node.is_ready and not node.is_going and not spot.is_taken_back(node, now)
    )


def _without_taints(node: ScaledNode) -> ScaledNode:
    kept = tuple(taint for taint in node.taints if not templates.is_passing(taint))
    return msgspec.structs.replace(node, taints=kept)


def _imagine(template: NodeTemplate, number: int) -> ScaledNode:
    return ScaledNode(
        name=f"+{number}", uid="", version="", labels=template.labels, taints=template.taints, has=template.has or {},
        created_at=0.0,
    )


def _find_leaving(
    live: Sequence[PolicyGround], kept: KeptSight, places: Sequence[FitPlace],
    made: Mapping[str, Mapping[str, NodeTemplate]], now: Instant,
) -> dict[str, list[ScaledPod]]:
    """Served before all others: they run, and will not for long."""
    found: dict[str, list[ScaledPod]] = {}
    for ground in live:
        pods = [
            msgspec.structs.replace(pod, unclear="") if pod.apart else pod
            for node in ground.nodes if spot.is_taken_back(node, now) for pod in kept.guests(node.name).gpu
            if not pod.is_going and (pod.apart or not pod.unclear)
        ]
        if pods:
            listed = {ground.policy.name: list(made[ground.policy.name].values())}
            found[ground.policy.name] = demand.judge(pods, places, listed).needs.get(ground.policy.name, [])
    return found


# ---- what is decided -------------------------------------------------------------------------------------------------


def _decide(board: ScalingBoard) -> ScalingPlan:
    measured = {
        ground.policy.name: brakes.measure(ground.policy, find_counted(ground, board.now), board.sight.measured)
        for ground in board.grounds if not ground.is_blocked
    }
    under_used, calm = brakes.remember(measured, board.memory)
    plans, verdicts = list[PolicyPlan](), list[NodeVerdict]()
    unneeded: dict[str, Instant] = {}
    busy: dict[str, Instant] = {}
    notes: dict[str, str] = {}  # by uid of a pod: what another autoscaler is left to do for it
    for ground in board.grounds:
        if ground.is_blocked:
            plans.append(_rest(ground))
            verdicts += _hold_all(ground)
            continue
        made, judged = _decide_one(board, ground, measured[ground.policy.name], busy, notes)
        plans.append(made)
        verdicts += judged.verdicts
        unneeded |= judged.unneeded
    owned = {verdict.node for verdict in verdicts}
    verdicts += [
        NodeVerdict(node=node.name, policy="", stay=NodeStay.NotOurs, because="no policy means it")
        for node in board.nodes if node.name not in owned and (node.gpus or fit.count_gpus(node.has))
    ]
    memory = msgspec.structs.replace(
        board.memory, taken_at=board.sight.taken_at, unneeded=unneeded, under_used=under_used, calm=calm, busy=busy
    )
    return ScalingPlan(
        taken_at=board.sight.taken_at, policies=tuple(plans),
        pods=tuple(_add_note(each, notes.get(each.pod.uid, "")) for each in board.found.verdicts),
        nodes=tuple(sorted(verdicts, key=lambda each: each.node)), memory=memory,
    )


def _add_note(verdict: PodVerdict, note: str) -> PodVerdict:
    return msgspec.structs.replace(verdict, because=f"{verdict.because}; {note}") if note else verdict


def _rest(ground: PolicyGround) -> PolicyPlan:
    policy = ground.policy
    return PolicyPlan(
        policy=policy, driver=ground.driver, heeds=policy.acts and Blocked.Overlap not in ground.blocked,
        blocked=ground.blocked, because=next(iter(ground.blocked.values())), in_flight=ground.past.in_flight,
        stockouts=ground.past.stockouts, nodes=len(ground.nodes), desired=len(ground.nodes),
        by_tier=_count_tiers(ground.nodes),
    )


def _hold_all(ground: PolicyGround) -> list[NodeVerdict]:
    why = next(iter(ground.blocked.values()))
    return [NodeVerdict(node=node.name, policy=ground.policy.name, stay=NodeStay.Halted, because=why)
            for node in ground.nodes]


def _count_tiers(nodes: Sequence[ScaledNode]) -> dict[CapacityType, int]:
    made: dict[CapacityType, int] = {}
    for node in nodes:
        made[node.tier] = made.get(node.tier, 0) + 1
    return made


def _decide_one(
    board: ScalingBoard, ground: PolicyGround, measured: PolicyUse, busy: dict[str, Instant], notes: dict[str, str]
) -> tuple[PolicyPlan, shrink.ShrinkFound]:
    policy, arrived = ground.policy, board.arrived[ground.policy.name]
    found = brakes.find(policy, ground.nodes, arrived.booting, measured, board.memory, board.now)
    counts = _count(ground, arrived, board.now)
    before = counts.total
    grows = _find_grows(board, ground, measured, found, counts, busy)
    may_open = not found and not isinstance(board.sight.limits, Unseen)
    coming = ahead.look(board, ground, counts, may_open=may_open and not grows)
    if ground.is_driven_by_us and not grow.is_resting(policy, ground.past.grew_at, board.now):
        grows += coming.grows
    over = elsewhere.look(board, ground, counts, may_open=may_open)
    waiting = waits.look(board, ground, found, grows, counts)
    notes |= {**over.notes, **waiting.notes}
    stop = _find_stop(board, ground, measured, found, grows)
    judged = shrink.judge(
        ground, board.kept.guests,
        lambda candidates: board.kept.simulate(policy.name, candidates, board.usable), board.memory.unneeded,
        stop, board.now,
    )
    if Brake.MetricsJump in found:  # what was called unneeded by such measurements was not
        kinds = {verdict.node for verdict in judged.verdicts if verdict.kind is DrainKind.under_used}
        under_used = {node.uid for node in ground.nodes if node.name in kinds}
        judged.unneeded = {uid: since for uid, since in judged.unneeded.items() if uid not in under_used}
    is_halted = any(brake in found for brake in brakes.HALTS_ALL)
    releases = (*_release_all_failed(board, ground, is_halted=is_halted), *judged.releases)
    needs = board.found.needs.get(policy.name, [])
    blocked = _find_blocked(board, ground, over.stopped)
    held = grow.count_held(ground.nodes, board.kept.room) if ground.past.full_at else 0
    full_at = ground.past.full_at if held <= (ground.past.full_at or 0) else None  # else somebody came
    is_full = policy.name in busy and held == full_at
    acts = policy.acts and not ground.only_advises and Blocked.ProviderUnavailable not in ground.blocked
    made = PolicyPlan(
        policy=policy, driver=ground.driver, acts=acts, heeds=policy.acts, blocked=blocked, brakes=found,
        grows=tuple(grows),
        releases=releases, in_flight=tuple(arrived.open), arrived=tuple(arrived.arrived), late=tuple(arrived.late),
        strays=() if is_halted else tuple(arrived.strays), stockouts=arrived.stockouts, there=arrived.there,
        wanted={node: pod for node, pod in board.found.wanted.items() if ground.pools.get(node) is not None},
        stuck={node: why for node, why in board.stuck.items() if node in ground.pools}, labels=labels.find(ground),
        nodes=len(ground.nodes), by_tier=_count_tiers(ground.nodes), desired=before + grow.count(grows) - len(releases),
        guess=coming.guess, spot_advice=tiers.advise(ground.past.spot_watch, board.now), headroom=coming.headroom,
        gangs=over.gangs, started=coming.started, prewarmed=coming.over,
        pending=len(needs), use=measured.use, full_at=full_at,
        due=grow.find_due(policy, needs, ground.past.grew_at, board.now) if ground.is_driven_by_us else None,
        cost=_add_prices(ground.nodes),
        because=over.stopped or blocked.get(Blocked.Unseen, "")
        or _sum_up(ground, found, grows, releases, measured, arrived, waiting.because, is_full=is_full),
    )
    return made, judged


def _release_all_failed(board: ScalingBoard, ground: PolicyGround, *, is_halted: bool) -> list[Release]:
    arrived = board.arrived[ground.policy.name]
    unlisted = ground.find_unlisted() if arrived.failed else ()
    return [
        _release_failed(ground, node) for node in arrived.failed
        if not (is_halted or node.kept or node.is_broken or spot.is_taken_back(node, board.now))
        and node.name not in unlisted
    ]


def _find_blocked(board: ScalingBoard, ground: PolicyGround, stopped: str) -> dict[Blocked, str]:
    """`stopped`: why another autoscaler adds nothing; "": it does."""
    blocked = dict(ground.blocked)
    if board.found.nobody:
        blocked[Blocked.NoPoolFits] = f"{units.many(board.found.nobody, 'pod')} fit no pool"
    if stopped:
        blocked[Blocked.LimitReached] = stopped
    if isinstance(board.sight.limits, Unseen) and board.found.needs.get(ground.policy.name):
        blocked[Blocked.Unseen] = f"what budgets forbid is not seen: {board.sight.limits.why}"
    return blocked


def _count(ground: PolicyGround, arrived: ComingNodes, now: Instant) -> TierCounts:
    """Nodes that stay, and those on their way; one that boots is among the latter."""
    counts = TierCounts({}, {}, find_mixed(ground))
    for node in ground.nodes:
        is_removed = node.drain is not None and node.drain.removing is not None
        if not (is_removed or node.is_going or spot.is_taken_back(node, now)) and node.name not in arrived.booting:
            counts.add(ground.pools[node.name], node.tier)
    for each in arrived.open:
        counts.open(each.pool, each.tier, arrived.missing[each.token])
    return counts


def _find_grows(
    board: ScalingBoard, ground: PolicyGround, measured: PolicyUse, found: Mapping[Brake, str], counts: TierCounts,
    busy: dict[str, Instant],
) -> list[Grow]:
    policy, now = ground.policy, board.now
    opening = open_up(board, ground)
    grows = list[Grow]()
    if ground.is_driven_by_us:
        grows += _replace(board, ground, opening, counts)
    needs = board.found.needs.get(policy.name, [])
    since = grow.find_busy(policy, measured, board.kept.room, lambda: _name_usable(board, ground), board.memory, now)
    if since is not None:
        busy[policy.name] = since
    is_halted = any(brake in found for brake in brakes.HALTS_ALL)
    is_resting = grow.is_resting(policy, ground.past.grew_at, now) and not board.arrived[policy.name].retries
    if not ground.is_driven_by_us or is_halted or is_resting or isinstance(board.sight.limits, Unseen):
        return grows
    if reason := grow.find_reason(policy, needs, now):
        grows += apart.for_pods(reason, needs, opening, counts)
    elif not grows and _is_long_busy(since, now) and not board.arrived[policy.name].is_awaiting:
        held = grow.count_held(ground.nodes, board.kept.room)  # at as many it was tried, and nobody came
        grows += [] if held == ground.past.full_at else grow.for_use(opening, counts, held)
    return grows


def _is_long_busy(since: Instant | None, now: Instant) -> bool:
    return since is not None and now - since >= grow.BUSY_FOR


def _name_usable(board: ScalingBoard, ground: PolicyGround) -> list[str]:
    rows = board.kept.room.rows
    return [node.name for node in ground.nodes if board.usable[rows[node.name]]]


def _replace(board: ScalingBoard, ground: PolicyGround, opening: Opening, counts: TierCounts) -> list[Grow]:
    """R5: waits for no cooldown and heeds no brake."""
    grows = list[Grow]()
    pods = board.leaving.get(ground.policy.name, [])
    for node in ground.nodes if pods else ():
        own = [pod for pod in pods if pod.node == node.name]
        if own:
            turned = grow.replace(opening, node.tier, ground.pools[node.name])
            grows += apart.for_pods(GrowReason.SpotReplacement, own, turned, counts)
    return grows


def _find_stop(
    board: ScalingBoard, ground: PolicyGround, measured: PolicyUse, found: Mapping[Brake, str], grows: Sequence[Grow]
) -> Stay | None:
    """Why no node of the policy may go now."""
    policy, name = ground.policy, ground.policy.name
    if Blocked.ProviderUnavailable in ground.blocked:
        return Stay(NodeStay.Halted, ground.blocked[Blocked.ProviderUnavailable])
    if found:
        return Stay(NodeStay.Halted, next(iter(found.values())))
    if measured.use is None:
        return Stay(NodeStay.UseUnknown, f"how much GPUs are used is not known: {measured.why}")
    if board.found.needs.get(name) or board.found.in_flight.get(name) or board.leaving.get(name) or grows:
        return Stay(NodeStay.DemandWaits, "pods wait for nodes")
    if unclear := _find_unclear(board, ground):
        return Stay(NodeStay.CannotTell, f"what waits is not known: {unclear}")
    for last in (ground.past.grew_at, ground.past.shrank_at):
        if last is not None and board.now - last < policy.shrink_rest:
            return Stay(NodeStay.CoolingDown, f"nodes came or went less than {units.spoken(policy.shrink_rest)} ago")
    if board.arrived[name].is_awaiting or board.arrived[name].late:
        return Stay(NodeStay.CoolingDown, "nodes are on their way")
    if any(node.drain is not None for node in ground.nodes):
        return Stay(NodeStay.CoolingDown, "another node is just being drained")
    return None


def _find_unclear(board: ScalingBoard, ground: PolicyGround) -> str:
    """A pod that may mean a node of the policy, and of which it is not known what it takes."""
    room, templates = board.kept.room, board.templates[ground.policy.name].values()
    own = room.find_rows(node.name for node in ground.nodes) if board.found.unclear else board.usable
    pods = (pod for pod in board.found.unclear if demand.could_go(pod, room, own, templates))
    return next((f"{pod.id.namespace}/{pod.id.name}: {pod.unclear}" for pod in pods), "")


def _release_failed(ground: PolicyGround, node: ScaledNode) -> Release:
    took = units.spoken(ground.policy.provision_patience)
    return Release(
        policy=ground.policy.name, node=node.name, uid=node.uid, kind=DrainKind.failed,
        because=f"it was not of use within {took} of being asked for",
    )


def _add_prices(nodes: Sequence[ScaledNode]) -> float | None:
    prices = [node.price for node in nodes]
    return None if None in prices else sum(price for price in prices if price is not None)


def _sum_up(
    ground: PolicyGround, found: Mapping[Brake, str], grows: Sequence[Grow], releases: Sequence[Release],
    measured: PolicyUse, arrived: ComingNodes, waiting: str, *, is_full: bool,
) -> str:
    """The one thing that people should know of it now. `waiting`: why no node is added for who needs one."""
    if grows:
        return grows[0].because
    if releases:
        return f"{releases[0].node} goes: {releases[0].because}"
    for why in (*ground.blocked.values(), *found.values(), *filter(None, (waiting,))):
        return why
    if coming := sum(arrived.missing.values()):
        return f"nothing more is to be added while {units.many(coming, 'node')} {_be(coming)} on the way"
    if measured.use is None and ground.nodes:
        return f"nothing to add; nothing may go, for use is not known: {measured.why}"
    if is_full:
        return words.full(ground.past.full_at or 0)
    return "nothing is to be added, and nothing may go"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
