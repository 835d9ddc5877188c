"""Which node could be emptied, so that its GPUs are whole again, and what comes next where one is being emptied.

In: a Capacity, what else keeps a pod where it is, `now`. Out: a ConsolidationPlan: the node that is least
trouble with where each of its pods would fit, and for every other GPU node why not. `advance`: the next step of a node
that is being emptied, from its record and how it is now; a value, so that a kill between any two steps loses nothing.
Invariant: a pod is only ever moved if it may be (a controller makes it again, it lost no work, nobody asked for it to
stay, it is older than ten minutes) and there is room for all of the node's pods on nodes that are in use. What is not
known stays.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np

from fallow.decide.packing import live, packer, policies
from fallow.decide.packing.kept import WhyKept, nothing
from fallow.decide.packing.room import GPU, Ints, PackingPod, Placement
from fallow.model import cluster, emptying, marks
from fallow.model.emptying import EmptyingRecord, EmptyingStep, Leaving, NodeNow, StopReason
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds

THRESHOLD: Final = 0.5  # of its GPUs in use: a node above it is not worth the moves
PER_HOUR: Final = 0.1  # of the GPU nodes
EVICT_TIMEOUT: Final[Seconds] = 600.0
EMPTY_FOR: Final[Seconds] = 30 * MINUTE  # kept for whoever takes nodes away


class StayReason(StrEnum):
    """Why a node is not emptied."""

    Busy = "Busy"
    Empty = "Empty"
    Unmovable = "Unmovable"
    NoRoomElsewhere = "NoRoomElsewhere"
    Rests = "Rests"
    NextTime = "NextTime"


class StayingNode(msgspec.Struct, frozen=True):
    node: str
    reason: StayReason
    because: str


class EmptyNode(msgspec.Struct, frozen=True):
    """`moves`: pod and the node where it would fit, in the order they go."""

    node: str
    because: str
    moves: tuple[tuple[str, str], ...]


class ConsolidationPlan(msgspec.Struct, frozen=True):
    chosen: EmptyNode | None
    staying: tuple[StayingNode, ...]
    notes: tuple[str, ...]


class _Guest(msgspec.Struct, frozen=True):
    tenant: cluster.Pod
    pod: PackingPod
    placement: Placement
    fixed: str


def plan(
    seen: cluster.Capacity, now: Instant, *, why_kept: WhyKept = nothing, threshold: float = THRESHOLD,
    resting: Collection[str] = (),
) -> ConsolidationPlan:
    """`resting`: nodes that are left alone for now, as `rests` says."""
    settled = live.settle(seen, now)
    guests = _find_guests(settled, seen, now, why_kept)
    room, staying, candidates = settled.room, list[StayingNode](), list[int]()
    for row in np.flatnonzero(room.nodes.gpus > 0).tolist():
        stays = _why_stays(row, settled, guests.get(row, ()), threshold, resting)
        if stays is None:
            candidates.append(row)
        else:
            staying.append(stays)
    taints = {machine.name: set(machine.taints) for machine in seen.machines}
    candidates.sort(key=lambda row: (_used(settled, row), len(guests[row]), settled.order[row]))
    chosen: EmptyNode | None = None
    for row in candidates:
        name = room.nodes.names[row]
        if chosen is not None:
            staying.append(StayingNode(name, StayReason.NextTime, f"{chosen.node} is less trouble; one at a time"))
        elif (moves := _find_moves(settled, row, guests[row], taints)) is None:
            why = "its pods do not all fit on other nodes that are in use"
            staying.append(StayingNode(name, StayReason.NoRoomElsewhere, why))
        else:
            used = f"{_used(settled, row) / GPU:g} of its {room.nodes.gpus.item(row)} GPUs are in use"
            chosen = EmptyNode(name, f"{used}, and its {len(moves)} pods fit elsewhere", moves)
    return ConsolidationPlan(chosen, tuple(staying), settled.notes)


def _used(settled: live.LiveCluster, row: int) -> int:
    return settled.room.nodes.gpus.item(row) * GPU - settled.room.free.item(row)


def _find_guests(
    settled: live.LiveCluster, seen: cluster.Capacity, now: Instant, why_kept: WhyKept
) -> Mapping[int, list[_Guest]]:
    """Who would have to go, by row; what belongs to a node goes with it."""
    rows = set(settled.room.nodes.names)
    seated = [tenant for tenant in seen.pods if tenant.node in rows]
    guests: dict[int, list[_Guest]] = {}
    for tenant, running in zip(seated, settled.running, strict=True):
        if not tenant.belongs_to_node:
            fixed = why_kept(tenant) or why_fixed(tenant, now)
            guest = _Guest(tenant, running.pod, running.placement, fixed)
            guests.setdefault(running.placement.node, []).append(guest)
    return guests


def why_fixed(tenant: cluster.Pod, now: Instant) -> str:
    """Why a pod must not be moved; "": it may be."""
    if why := tenant.needs.fixed or tenant.needs.unknown or tenant.needs.unclear or tenant.needs.beyond:
        return why
    until = marks.latest(tenant.annotations.get(key) for key in marks.ACKS)
    if until is not None and until > now:
        return "somebody keeps it by an acknowledgement"
    return "" if tenant.created_at <= now - live.SETTLED else "has hardly begun"


def _why_stays(
    row: int, settled: live.LiveCluster, guests: Sequence[_Guest], threshold: float, resting: Collection[str]
) -> StayingNode | None:
    name, gpus = settled.room.nodes.names[row], settled.room.nodes.gpus.item(row)
    used = _used(settled, row)
    if not guests:
        return StayingNode(name, StayReason.Empty, "nobody is there who would have to go")
    if used >= threshold * gpus * GPU:
        return StayingNode(name, StayReason.Busy, f"{used / GPU:g} of its {gpus} GPUs are in use")
    if name in resting:
        return StayingNode(name, StayReason.Rests, "it was emptied, or that was tried, a short while ago")
    fixed = next((guest for guest in guests if guest.fixed), None)
    if fixed is None:
        return None
    who = f"{fixed.tenant.namespace}/{fixed.tenant.name}"
    return StayingNode(name, StayReason.Unmovable, f"{who} must stay: {fixed.fixed}")


def _find_moves(
    settled: live.LiveCluster, row: int, guests: Sequence[_Guest], taints: Mapping[str, set[str]]
) -> tuple[tuple[str, str], ...] | None:
    """The large ones first. Nodes on which no GPU is in use are no home: that would only move the hole. `taints`: of
    GPUs, which not every guest tolerates, by node."""
    nodes, everywhere = settled.room.nodes, np.arange(len(settled.room.nodes))
    engine = packer.Packer(nodes, policies.prepare("BestFit", nodes, ()), settled.order)
    engine.room = settled.room.copy()
    homes: Ints = everywhere[(everywhere != row) & (engine.room.whole < nodes.gpus)]
    moves = list[tuple[str, str]]()
    for guest in sorted(guests, key=lambda each: (-each.pod.gpu_milli, -each.pod.cpu, each.tenant.name)):
        tolerated = set(guest.tenant.needs.tolerates)
        open_to_it = np.array([taints[nodes.names[home]] <= tolerated for home in homes], dtype=bool)
        found = engine.rank(guest.pod, homes[open_to_it], 1)
        if not found:
            return None
        engine.room.add(guest.pod, found[0])
        moves.append((f"{guest.tenant.namespace}/{guest.tenant.name}", nodes.names[found[0].node]))
    return tuple(moves)


# ---- the node that is being emptied ----------------------------------------------------------------------------------


def may_begin(gpu_nodes: int, emptied: Sequence[Instant], now: Instant) -> bool:
    """At most a tenth of the GPU nodes in an hour, at least one. `emptied`: when others were begun."""
    recent = sum(at > now - HOUR for at in emptied)
    return recent < max(1, int(gpu_nodes * PER_HOUR))


def rests(ended: str, at: Instant | None, now: Instant) -> bool:
    """Whether a node is left alone yet. `ended`: how its emptying did, and when. Where that was in vain for a day: else
    one tenant whose pod is refused last would have those of all others evicted, hour by hour."""
    return at is not None and -MINUTE <= now - at < (DAY if ended in emptying.IN_VAIN else HOUR)


def begin(now_there: NodeNow, because: str, now: Instant) -> EmptyingStep:
    record = EmptyingRecord(v=1, since=now, cordoned_by_us=not now_there.is_cordoned, because=because)
    return emptying.Begin(record)


def advance(
    there: NodeNow, now: Instant, *, is_on: bool = True, timeout: Seconds = EVICT_TIMEOUT
) -> EmptyingStep | None:
    """None: this node is not being emptied. `is_on`: emptying is still wanted."""
    record = there.record
    if record is None:
        broken = "its record cannot be read"  # only nodes that were not cordoned are ever begun with
        return emptying.Stop(StopReason.RecordBroken, broken, uncordons=True) if there.is_broken else None
    if not there.is_cordoned:
        return emptying.Stop(StopReason.ChangedByOther, "somebody uncordoned it", uncordons=False)
    if not is_on:
        return _stop(record, StopReason.SwitchedOff, "nodes are no longer to be emptied")
    if record.leaving is not None:
        return _see_off(there, record, record.leaving, now, timeout)
    return _go_on(there, record, now)


def _see_off(
    there: NodeNow, record: EmptyingRecord, leaving: Leaving, now: Instant, timeout: Seconds
) -> EmptyingStep:
    """The pod that was to go: still there, or not come back yet, or both done."""
    who, is_late = f"{leaving.namespace}/{leaving.name}", is_over(leaving.since, timeout, now)
    pod = next((each for each in there.pods if each.uid == leaving.uid), None)
    if pod is not None and not pod.is_going:
        if pod.fixed or pod.stays:  # somebody said so since, while it was refused; or it never was one to go
            because = f"{who} must stay: {pod.fixed or 'it belongs to its node'}"
            return _stop(record, StopReason.Unmovable, because)
        if is_late:
            said = record.refusal or "the API server did not say why"
            return _stop(record, StopReason.Refused, f"{who} could not be evicted for {timeout:g} s: {said}")
        return emptying.Evict(record)
    if pod is not None or there.ready < leaving.ready:
        if is_late:
            return _stop(record, StopReason.ReplacementLate, f"{who} did not come back within {timeout:g} s")
        return emptying.Wait(f"{who} is not Ready elsewhere yet")
    return emptying.WriteRecord(msgspec.structs.replace(record, leaving=None, refusal=""))


def _go_on(there: NodeNow, record: EmptyingRecord, now: Instant) -> EmptyingStep:
    left = [pod for pod in there.pods if not pod.stays and not pod.is_going]
    if fixed := next((pod for pod in left if pod.fixed), None):
        return _stop(record, StopReason.Unmovable, f"{fixed.namespace}/{fixed.name} must stay: {fixed.fixed}")
    if left:
        pod = min(left, key=lambda each: (each.namespace, each.name))
        leaving = Leaving(pod.uid, pod.namespace, pod.name, pod.owner, pod.ready, since=now)
        return emptying.Evict(msgspec.structs.replace(record, leaving=leaving))
    if record.empty_since is None:
        return emptying.WriteRecord(msgspec.structs.replace(record, empty_since=now))
    if is_over(record.empty_since, EMPTY_FOR, now):
        return _stop(record, StopReason.NotTaken, "it was empty, and nobody took it away")
    return emptying.Wait("it is empty, for whoever takes nodes away")


def is_over(since: Instant, seconds: Seconds, now: Instant) -> bool:
    """Also where the clock was set back since: for how long, nobody knows, and a cordon must not last as long."""
    return now - since >= seconds or since - now > MINUTE


def _stop(record: EmptyingRecord, reason: StopReason, because: str) -> emptying.Stop:
    return emptying.Stop(reason, because, uncordons=record.cordoned_by_us)
