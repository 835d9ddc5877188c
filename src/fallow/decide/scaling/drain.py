"""A node that is being emptied so that its machine can go: its record says how far it is, each call what comes next.

    BeginDrain -> EvictNow ... -> RemoveMachine -> (the Node object goes, or DeleteNode)
            \\__________\\-> UndoDrain

In: a LeavingNode, read just before; now. Out: the steps that are due, in order; StayPut: to wait.
Invariant: whatever of a step is not done is found missing the next time. Anybody's word stops a drain: a pod that must
stay, a pod that waits and fits, people who uncordon it, a policy that is gone; a brake holds it up. Only once its
machine was told to go is there no way back. Its object is deleted only where its cloud says that the machine is gone.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from fallow.decide.scaling import brakes as brakes_of
from fallow.decide.scaling import fit
from fallow.model import units
from fallow.model.leaving import (
    BeginDrain,
    DeleteNode,
    EvictNow,
    LeavingNode,
    LeavingStep,
    RemoveMachine,
    StayPut,
    UndoDrain,
)
from fallow.model.policies.scaling import NodeDriver
from fallow.model.scaling import DrainKind, DrainRecord, EvictionRank, ScaledNode, ScaledPod
from fallow.model.scaling_plan import Brake, Release
from fallow.model.units import MINUTE, Instant, Seconds

ASK_AGAIN: Final[Seconds] = 10.0
NODE_STAYS: Final[Seconds] = 15 * MINUTE  # its object, after its machine was told to go
_TELL_AGAIN: Final[Seconds] = MINUTE  # its cloud, as long as the machine is there
_TAKEN_WITHIN: Final[Seconds] = 30 * MINUTE  # by another autoscaler, once it is empty
RANKS: Final = tuple(EvictionRank)  # who goes first


def begin(release: Release, node: ScaledNode, now: Instant) -> BeginDrain:
    return BeginDrain(DrainRecord(
        v=1, policy=release.policy, since=now, reason=release.kind, because=release.because,
        cordoned_by_us=node.is_emptied or not node.is_cordoned,
    ))


def find_objection(release: Release, there: LeavingNode) -> str:
    """Why a drain does not begin after all, by what is there just before; "": it does."""
    node, moves = there.node, {pod for pod, _ in release.moves}
    if there.driver is NodeDriver.direct and there.unlisted:
        return there.unlisted
    if release.kind is DrainKind.failed:
        return ""
    if node.is_cordoned and not node.is_emptied:
        return "somebody has cordoned it"
    if not node.is_ready:
        return "it is not Ready any more"
    came = (pod.id for pod in there.pods if not (pod.stays or pod.is_going or pod.id in moves))
    return next((f"{pod.namespace}/{pod.name} has come since" for pod in came), node.kept)


def advance(there: LeavingNode, record: DrainRecord, now: Instant) -> LeavingStep:
    if record.removing is not None:
        return _see_off(there, record, record.removing, now)
    if why := _find_end(there, record):
        return UndoDrain(why, uncordons=record.cordoned_by_us and there.node.is_cordoned)
    assert there.policy is not None
    is_late = abs(now - record.since) > there.policy.drain_patience  # a clock that was set back counts, too
    if halt := find_halt(there.brakes, record.reason):
        uncordons = record.cordoned_by_us
        return UndoDrain(f"no node may go now: {halt}", uncordons=uncordons) if is_late else StayPut(halt)
    if record.reason is DrainKind.failed:
        return _remove(there, record, now)
    left = [pod for pod in there.pods if not pod.stays]
    if not left:
        return _remove(there, record, now)
    if is_late:
        return undo_late(record, there.policy.drain_patience, len(left))
    if record.reason is DrainKind.under_used and there.node.use is None:
        return StayPut("how much its GPUs are used is not known now")
    if there.stuck:
        return StayPut(there.stuck)
    return evict_next(there, now)


def find_halt(brakes: Mapping[Brake, str], kind: DrainKind) -> str:
    """Why no node of this kind may go now; "": it may. What never came is not measured, and no window keeps it."""
    halting = brakes.keys() & brakes_of.HALTS_ALL if kind is DrainKind.failed else brakes
    return next((brakes[each] for each in brakes if each in halting), "")


def _find_end(there: LeavingNode, record: DrainRecord) -> str:
    """Why a drain must be undone; "": it goes on."""
    policy, node = there.policy, there.node
    if policy is None or not policy.acts:
        return f"policy {record.policy} is gone, acts no longer or does not mean it any more"
    if not node.is_cordoned:
        return "somebody uncordoned it"
    if node.kept:
        return f"somebody wants it to stay: {node.kept}"
    if record.reason is DrainKind.failed:
        was_of_use = any(not pod.stays for pod in there.pods)
        return "it is Ready after all" if node.is_ready else "somebody is on it" if was_of_use else ""
    if there.wanted:
        return f"{there.wanted} waits and fits here"
    if there.blocked:
        return there.blocked
    guests = [pod for pod in there.pods if not pod.stays]
    if fixed := next((pod for pod in guests if (pod.fixed or pod.unclear) and not pod.is_going), None):
        return f"{fixed.id.namespace}/{fixed.id.name} must stay: {fixed.fixed or fixed.unclear}"
    if record.reason is not DrainKind.under_used and any(fit.count_gpus(pod.asks) for pod in guests):
        return "a pod uses its GPUs again"
    if record.reason is DrainKind.under_used and node.use is not None and node.use >= policy.shrink_below:
        return "its GPUs are used again"
    return ""


def undo_late(record: DrainRecord, patience: Seconds, left: int) -> UndoDrain:
    said = f": {record.refused}" if record.refused else ""
    because = f"{units.many(left, 'pod')} were still there after {units.spoken(patience)}{said}"
    return UndoDrain(because, uncordons=record.cordoned_by_us)


def evict_next(there: LeavingNode, now: Instant) -> LeavingStep:
    """One at a time, the lowest in rank first: where one is refused, nobody else is moved in vain."""
    left = [pod for pod in there.pods if not pod.stays and not pod.is_going]
    if not left:
        return StayPut("waits for its last pods to end")
    pod = min(left, key=rank)
    if there.refused_at is not None and 0 <= now - there.refused_at < ASK_AGAIN:
        return StayPut(f"{pod.id.namespace}/{pod.id.name} may not go yet; asked again every {ASK_AGAIN:.0f} s")
    return EvictNow(pod.id)


def rank(pod: ScaledPod) -> tuple[int, str, str]:
    return RANKS.index(pod.rank), pod.id.namespace, pod.id.name


def _remove(there: LeavingNode, record: DrainRecord, now: Instant) -> LeavingStep:
    assert there.policy is not None
    patience = there.policy.drain_patience
    if there.driver is NodeDriver.direct:
        if not there.unlisted:
            return _tell(record, now, now)
        if abs(now - record.since) > patience:
            return UndoDrain(f"its machine cannot be removed: {there.unlisted}", uncordons=record.cordoned_by_us)
        return StayPut(there.unlisted)
    if abs(now - record.since) > patience + _TAKEN_WITHIN:
        return UndoDrain("it was empty, and nobody took it away", uncordons=record.cordoned_by_us)
    return StayPut(f"it is empty, for {there.driver} to take away")


def _tell(record: DrainRecord, removing: Instant, now: Instant) -> RemoveMachine:
    return RemoveMachine(msgspec.structs.replace(record, removing=removing, asked=now))


def _see_off(there: LeavingNode, record: DrainRecord, removing: Instant, now: Instant) -> LeavingStep:
    """Whether the cloud heard of it is not known after a crash: it is told again, which does no harm. Unless somebody
    has come, past cordon and taint: then it is told nothing more, and a machine that is still there stays."""
    is_late, said = abs(now - removing) > NODE_STAYS, "its machine was told to go"
    if any(not pod.stays and not pod.is_going for pod in there.pods) and there.node.is_ready:
        if is_late:
            return UndoDrain("pods are on it, and its machine never went", uncordons=record.cordoned_by_us)
        return StayPut(f"{said}, and pods have come since")
    if there.policy is None or not there.policy.acts:
        if is_late and there.node.is_ready:
            return UndoDrain("nobody may act for it any more, and its machine never went",
                             uncordons=record.cordoned_by_us)
        return StayPut(f"{said}; policy {record.policy} is gone or acts no longer")
    if there.is_gone:
        since = units.spoken(max(0.0, now - removing))
        return DeleteNode(f"{said} {since} ago, and is gone") if is_late else StayPut("its machine is gone")
    if there.unlisted:
        return StayPut(f"{said}; {there.unlisted}")
    asked = removing if record.asked is None else record.asked
    return _tell(record, min(removing, now), now) if abs(now - asked) >= _TELL_AGAIN else StayPut(said)
