"""Which nodes may go: empty ones, squatted ones, under-used ones whose pods fit elsewhere; and why all others stay.

In: the nodes of one policy with who is on them, what is free everywhere, since when each was not needed. Out: a
NodeVerdict for every node, the releases, and what to remember. Nodes are judged in the order in which they would go,
so that each is only called unneeded together with all before it.
Invariant: a node goes only if nobody is on it, or everybody on it may move and has a place; what is not known stays.
"""

from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from fallow.decide.scaling import demand, fit, spot, words
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.fit import Bools, FreeRoom
from fallow.model import units
from fallow.model.cluster import PodId
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import NodePool, ScalingPolicy, ShrinkOrder
from fallow.model.scaling import DrainKind, ScaledNode, ScaledPod, WaitHold
from fallow.model.scaling_plan import NodeStay, NodeVerdict, Release
from fallow.model.units import Instant

_ORDER = (DrainKind.empty, DrainKind.squatted, DrainKind.under_used)
Moves = tuple[tuple[PodId, str], ...]


class Guests(msgspec.Struct, frozen=True):
    """Who is on a node and does not belong to it."""

    gpu: tuple[ScaledPod, ...] = ()
    other: tuple[ScaledPod, ...] = ()
    fixed: str = ""  # who must stay, and why; "": everybody may go
    going: bool = False  # somebody is just leaving
    is_headroom: bool = False  # a placeholder of ours is there

    @property
    def movable(self) -> tuple[ScaledPod, ...]:
        return (*self.gpu, *self.other)


NOBODY = Guests()


def count_guests(pods: Sequence[ScaledPod]) -> Guests:
    there = [pod for pod in pods if not pod.stays]
    if not there:
        return NOBODY
    gpu = tuple(pod for pod in there if fit.count_gpus(pod.asks) or pod.unclear)
    fixed = next((pod for pod in there if pod.fixed or pod.unclear), None)
    why = f"{fixed.id.namespace}/{fixed.id.name} must stay: {fixed.fixed or fixed.unclear}" if fixed else ""
    other = tuple(pod for pod in there if not (fit.count_gpus(pod.asks) or pod.unclear))
    return Guests(
        gpu, other, why, any(pod.is_going for pod in there), any(pod.held is WaitHold.Placeholder for pod in there)
    )


class Stay(msgspec.Struct, frozen=True):
    reason: NodeStay
    because: str


class Candidate(msgspec.Struct, frozen=True):
    node: ScaledNode
    kind: DrainKind
    guests: Guests


class Simulated(msgspec.Struct, frozen=True):
    """By node: where its pods would go; None: not all of them fit. `homes`: nodes that others' pods would come to."""

    moves: Mapping[str, Moves | None]
    homes: Mapping[str, str]


def find_stay(node: ScaledNode, pool: NodePool | None, unlisted: Container[str], now: Instant) -> Stay | None:
    """Why a node is not even looked at; None: it is. `unlisted`: nodes whose machines nobody could remove."""
    if spot.is_taken_back(node, now):
        return Stay(NodeStay.Interrupted, "its cloud takes it back")
    if node.is_broken:
        return Stay(NodeStay.CannotTell, "it has a record of ours that cannot be read")
    if node.drain is not None or node.is_going:
        return Stay(NodeStay.Releasing, node.drain.because if node.drain is not None else "it is being deleted")
    if pool is None:
        return Stay(NodeStay.NotOurs, "no pool of the policy claims it")
    if node.name in unlisted:
        return Stay(NodeStay.NotOurs, "its machine is not among those that the cloud lists for the policy's pools")
    if not node.is_ready:
        return Stay(NodeStay.CannotTell, "it is not Ready")
    if node.is_cordoned and not node.is_emptied:
        return Stay(NodeStay.Cordoned, "somebody else cordoned it")
    if node.kept:
        return Stay(NodeStay.Kept, node.kept)
    if node.tier is CapacityType.reserved and not pool.releases_reserved:
        return Stay(NodeStay.Reserved, "it is paid for anyway")
    if node.prewarmed_until is not None and now < node.prewarmed_until:
        return Stay(NodeStay.Prewarmed, f"it was started ahead of demand, until {units.rfc3339(node.prewarmed_until)}")
    if node.rests_until is not None and now < node.rests_until:
        return Stay(NodeStay.Rests, f"its last drain was undone; it rests until {units.rfc3339(node.rests_until)}")
    return None


def find_kind(policy: ScalingPolicy, node: ScaledNode, guests: Guests) -> Stay | DrainKind:
    """What it would be released as, apart from whether its pods have a place."""
    if guests.is_headroom:
        return Stay(NodeStay.Prewarmed, "it is kept free for demand that is expected")
    if guests.going:
        return Stay(NodeStay.Needed, "pods of it are just ending")
    if not guests.gpu and not guests.other:
        return DrainKind.empty
    if guests.gpu and node.use is None:
        return Stay(NodeStay.UseUnknown, "how much its GPUs are used is not known")
    if guests.gpu and node.use is not None and not node.use < policy.shrink_below:
        return Stay(NodeStay.Busy, "its GPUs are used")
    if guests.fixed:
        return Stay(NodeStay.Unmovable, guests.fixed)
    return DrainKind.under_used if guests.gpu else DrainKind.squatted


def rank(policy: ScalingPolicy, candidate: Candidate) -> tuple[float | str, ...]:
    """Kind, then what is paid anyway last, then as the policy says, then the least used."""
    node = candidate.node
    of_gpu = (node.price or 0.0) / (node.gpus or 1)
    chosen = -of_gpu if policy.shrink_order is ShrinkOrder.price else float(node.tier is not CapacityType.spot)
    use = node.use if node.use is not None else 1.0
    whole = -(node.price or 0.0)  # of two alike the one that saves more
    return _ORDER.index(candidate.kind), node.tier is CapacityType.reserved, chosen, use, whole, node.name


def simulate(candidates: Sequence[Candidate], room: FreeRoom, usable: Bools) -> Simulated:
    """In order, each together with all before it. Nodes that may go are a home only where no other is, and then
    stay. `room` is changed."""
    moves: dict[str, Moves | None] = {}
    homes: dict[str, str] = {}
    others = usable & ~room.find_rows(each.node.name for each in candidates)
    later = usable & room.find_rows(each.node.name for each in candidates if each.kind is DrainKind.under_used)
    for each in candidates:
        name = each.node.name
        later &= ~room.find_rows([name])
        if name in homes:
            continue
        found = _move(each, room, (others, others | later)) if each.guests.movable else ()
        moves[name] = found
        if found is None:
            others |= usable & room.find_rows([name])  # it stays, and what is free there too
        for _, home in found or ():
            if not others[room.rows[home]]:
                homes.setdefault(home, name)
    return Simulated(moves, homes)


def _move(candidate: Candidate, room: FreeRoom, homes: Sequence[Bools]) -> Moves | None:
    """All of its pods, the large ones first, or none."""
    made: list[tuple[PodId, str]] = []
    taken: list[tuple[ScaledPod, int]] = []
    pods = sorted(candidate.guests.movable, key=lambda pod: (-fit.measure(pod.asks), -pod.asks.get("cpu", 0), pod.id))
    for run in demand.run_up(pods):
        wanted, left = room.mask(run.wanted), run.pods
        for may in homes:
            for row, many in room.place(run.asks, len(left), may & wanted) if left else ():
                taken += [(pod, row) for pod in left[:many]]
                made += [(pod.id, room.nodes[row].name) for pod in left[:many]]
                left = left[many:]
        if left:
            for back, row in taken:
                room.give_back(back.asks, row)
            return None
    return tuple(made)


def find_stuck(
    drained: Sequence[ScaledNode], guests: Callable[[str], Guests], room: FreeRoom, usable: Bools
) -> dict[str, str]:
    """Nodes that are being drained whose pods no longer all have a place elsewhere, and why. `room`: what those who
    wait leave free; it is changed."""
    stuck = {}
    for node in drained:
        there = guests(node.name)
        gpu, other = (tuple(pod for pod in pods if not pod.is_going) for pods in (there.gpu, there.other))
        left = Guests(gpu, other)
        reason = node.drain.reason if node.drain is not None else DrainKind.empty
        if left.movable and _move(Candidate(node, reason, left), room, (usable,)) is None:
            stuck[node.name] = f"its {units.many(len(left.movable), 'pod')} do not all fit elsewhere any more"
    return stuck


class PoolAllowance:
    """How many nodes of each pool, and of the policy, may go now."""

    def __init__(self, ground: PolicyGround, now: Instant) -> None:
        policy, limit = ground.policy, ground.policy.find_disruption(now)
        there = [node for node in ground.nodes if not node.is_going]
        self._least = {pool.name: pool.least for pool in policy.pools}
        self._sizes: dict[str, int] = {}
        self._left: dict[str, int] = {}
        by_pool: dict[str, list[ScaledNode]] = {}
        for node in ground.nodes:
            by_pool.setdefault(ground.pools[node.name], []).append(node)
        for name in self._least:
            of_pool = by_pool.get(name, [])
            leaving = sum(node.is_going or not node.is_ready or node.drain is not None for node in of_pool)
            self._sizes[name] = sum(not node.is_going for node in of_pool)
            self._left[name] = limit.of(len(of_pool)) - leaving
        self._above = len(there) - policy.least
        self._most = max(1, len(there) // 5)

    def find_limit(self, pool: str) -> Stay | None:
        if self._above <= 0 or self._sizes[pool] <= self._least[pool]:
            return Stay(NodeStay.AtMinimum, "there are no more nodes than there must be")
        if self._left[pool] <= 0 or self._most <= 0:
            return Stay(NodeStay.Disruption, "as many nodes as may go at a time already do")
        return None

    def take(self, pool: str) -> None:
        self._above -= 1
        self._most -= 1
        self._sizes[pool] -= 1
        self._left[pool] -= 1


class ShrinkFound(msgspec.Struct):
    verdicts: list[NodeVerdict]
    releases: list[Release]
    unneeded: dict[str, Instant]


def judge(
    ground: PolicyGround, guests: Callable[[str], Guests], run: Callable[[Sequence[Candidate]], Simulated],
    unneeded: Mapping[str, Instant], stop: Stay | None, now: Instant,
) -> ShrinkFound:
    """`run`: the simulation. `stop`: why nothing of the policy may go now; None: it may."""
    policy, found = ground.policy, ShrinkFound([], [], {})
    pools, unlisted = {pool.name: pool for pool in policy.pools}, ground.find_unlisted()
    stays: dict[str, Stay] = {}
    candidates: list[Candidate] = []
    for node in ground.nodes:
        pool = pools.get(ground.pools.get(node.name, ""))
        there = guests(node.name)
        judged = find_stay(node, pool, unlisted, now) or find_kind(policy, node, there)
        if judged is DrainKind.empty and not ground.is_driven_by_us:
            judged = Stay(NodeStay.NotOurs, f"it is empty, for {ground.driver} to take away")
        if isinstance(judged, Stay):
            stays[node.name] = judged
        else:
            candidates.append(Candidate(node, judged, there))

    def is_ripe(each: Candidate) -> bool:
        since = unneeded.get(each.node.uid)
        return since is not None and 0 <= policy.unneeded <= now - since

    candidates.sort(key=lambda each: (not is_ripe(each), *rank(policy, each)))
    simulated, allowance = run(candidates), PoolAllowance(ground, now)
    for each in candidates:
        stay = _find_needed(each, simulated)
        since = min(unneeded.get(each.node.uid, now), now)
        if stay is None:
            found.unneeded[each.node.uid] = since
            stay = _hold_back(each, is_ripe(each), since, stop, allowance, ground)
        kind = each.kind
        if stay is None:
            found.releases.append(_release(ground, each, simulated, since))
            stay = Stay(NodeStay.Releasing, found.releases[-1].because)
        found.verdicts.append(NodeVerdict(
            node=each.node.name, policy=policy.name, stay=stay.reason, because=stay.because, kind=kind,
            since=found.unneeded.get(each.node.uid),
        ))
    found.verdicts += [
        NodeVerdict(node=name, policy=policy.name, stay=stay.reason, because=stay.because)
        for name, stay in stays.items()
    ]
    return found


def _find_needed(each: Candidate, simulated: Simulated) -> Stay | None:
    if guest := simulated.homes.get(each.node.name):
        return Stay(NodeStay.Needed, f"pods of {guest} would come here")
    if simulated.moves.get(each.node.name) is None:
        many = units.many(len(each.guests.movable), "pod")
        return Stay(NodeStay.NoRoomElsewhere, f"its {many} do not all fit elsewhere")
    return None


def _hold_back(
    each: Candidate, is_ripe: bool, since: Instant, stop: Stay | None, allowance: PoolAllowance, ground: PolicyGround
) -> Stay | None:
    if stop is not None:
        return stop
    if not is_ripe:
        return Stay(NodeStay.NotLongUnneeded, words.waited(since, ground.policy))
    pool = ground.pools[each.node.name]
    if held := allowance.find_limit(pool):
        return held
    allowance.take(pool)
    return None


def _release(ground: PolicyGround, each: Candidate, simulated: Simulated, since: Instant) -> Release:
    moves = simulated.moves.get(each.node.name) or ()
    because = words.released(each.kind, each.node.use, len(moves), since)
    return Release(
        policy=ground.policy.name, node=each.node.name, uid=each.node.uid, kind=each.kind, because=because, moves=moves
    )
