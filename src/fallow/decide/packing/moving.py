"""Which pod is moved so that another, which waits, fits in its place; and what comes next where one is being moved.

In: a Capacity, what else keeps a pod where it is, which schedulers ask the extender, `now`. Out: a MoveChoice: the
first move of the plan that `fallow pack defrag` prints, of pods that may really be moved; or why there is none.
`advance`: the next step of a move, from its record and how everything is now; a value, so that a kill between any two
steps loses nothing.
Invariant: nobody is evicted before the extender says that it keeps both places; whoever is moved may be (as where nodes
are emptied) and holds one GPU or one share, because of others the extender is not asked. One move at a time.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from fallow.decide.packing import consolidate, defrag, live
from fallow.decide.packing.kept import WhyKept, nothing
from fallow.model import cluster, moving
from fallow.model.capacity import Machine
from fallow.model.moving import HeldPlace, MovedPod, MoveEnd, MoveNow, MoveRecord, MoveStep
from fallow.model.units import MINUTE, Instant, Seconds

# For so long a scheduler found no place for it: whoever adds nodes has had time to start one.
WAITED: Final[Seconds] = 10 * MINUTE
KEPT_WITHIN: Final[Seconds] = 2 * MINUTE  # by the extender, or nothing is done
LASTS: Final[Seconds] = consolidate.EVICT_TIMEOUT  # a refusal, or what comes after the eviction


class MoveChoice(msgspec.Struct, frozen=True):
    """`because`: why nothing is moved, where nothing is."""

    moved: cluster.Pod | None = None
    waits: cluster.Pod | None = None
    source: str = ""
    target: str = ""
    because: str = ""


class MoveRests(msgspec.Struct, frozen=True):
    """What is left alone for now. `nodes`: somebody was moved from there a short while ago; nobody is from there, or to
    there. `owners`: uids of those whose pod was; none of theirs goes again. `in_vain`: namespaces of pods for which
    somebody was, and which did not come: the next pod that its people make is not believed, either. `served`: uids of
    pods for which a machine is on its way."""

    nodes: Collection[str] = ()
    owners: Collection[str] = ()
    in_vain: Collection[str] = ()
    served: Collection[str] = ()

    def let_go(self, pod: cluster.Pod) -> bool:
        return pod.node not in self.nodes and (pod.owner is None or pod.owner.uid not in self.owners)

    def let_in(self, pod: cluster.Pod) -> bool:
        return pod.namespace not in self.in_vain and pod.uid not in self.served


NO_RESTS: Final = MoveRests()


def choose(
    seen: cluster.Capacity, now: Instant, *, why_kept: WhyKept = nothing, schedulers: Collection[str],
    rests: MoveRests = NO_RESTS,
) -> MoveChoice:
    """Who has more priority is never moved for who has less; so those with the most come first."""
    settled, terms = live.settle(seen, now), _MoveTerms(schedulers, _find_taints(seen.machines))
    waiting = {
        f"{pod.namespace}/{pod.name}": pod for pod in seen.pods
        if is_stuck(pod, now) and terms.are_met_by(pod) and rests.let_in(pod)
    }
    first = [pod for pod in settled.waiting if pod.name in waiting]
    if not first:
        return MoveChoice(because="no pod waits of which it is known where it would fit")
    names, room = settled.room.nodes.names, settled.room
    rows = set(names)
    seated = [pod for pod in seen.pods if pod.node in rows]
    may_go = [rests.let_go(pod) and terms.are_met_by(pod) and _may_go(pod, now, why_kept) for pod in seated]
    barred = [row for row, name in enumerate(names) if name in rests.nodes]
    for priority in sorted({_rank(pod) for pod in waiting.values()}, reverse=True):
        running = [
            msgspec.structs.replace(each, is_movable=may and _rank(pod) <= priority)
            for pod, may, each in zip(seated, may_go, settled.running, strict=True)
        ]
        alike = [pod for pod in first if _rank(waiting[pod.name]) == priority]
        found = defrag.plan_moves(room, running, alike, settled.order, 1, barred)
        for move in found.moves:
            return MoveChoice(
                seated[move.number], waiting[move.pod.name], names[move.source.node], names[move.target.node]
            )
        room = found.room
    return MoveChoice(because="no single move of a pod that may be moved would let one in that waits")


class _MoveTerms(msgspec.Struct, frozen=True):
    """What both pods of a move must meet, so that it is known where they go and whom their scheduler asks. `taints`:
    effects that the taint of GPUs has anywhere; which node it is, is not asked."""

    schedulers: Collection[str]
    taints: frozenset[str]

    def are_met_by(self, pod: cluster.Pod) -> bool:
        needs = pod.needs
        return needs.scheduler in self.schedulers and self.taints <= set(needs.tolerates) and not needs.beyond


def _find_taints(machines: Sequence[Machine]) -> frozenset[str]:
    usable = (machine for machine in machines if machine.gpus and not machine.left_out)
    return frozenset(effect for machine in usable for effect in machine.taints)


def _rank(pod: cluster.Pod) -> int:
    return pod.priority or 0


def is_stuck(pod: cluster.Pod, now: Instant) -> bool:
    """Whether it has waited long enough for somebody to be moved for it."""
    since = pod.unschedulable_since
    return not pod.node and since is not None and since <= now - WAITED and not pod.terminating


def _is_single(pod: cluster.Pod) -> bool:
    return pod.needs.gpus + pod.needs.shared == 1


def _may_go(pod: cluster.Pod, now: Instant, why_kept: WhyKept) -> bool:
    is_fit = _is_single(pod) and pod.owner is not None and not pod.terminating and pod.ready
    return is_fit and not (why_kept(pod) or consolidate.why_fixed(pod, now))


def begin(choice: MoveChoice, ready: int, now: Instant) -> moving.BeginMove | None:
    """`ready`: the owner's pods that are Ready. None: nothing was chosen."""
    moved, waits = choice.moved, choice.waits
    if moved is None or waits is None or moved.owner is None:
        return None
    move = f"{int(now)}-{waits.uid}"
    gone = MovedPod(moved.uid, moved.namespace, moved.name)
    comes = MovedPod(waits.uid, waits.namespace, waits.name)
    record = MoveRecord(
        v=1, move=move, since=now, moved=gone, owner=moved.owner.uid, ready=ready, waits=comes, target=choice.target,
        because=f"{comes} waits and fits where {gone} is, which fits on {choice.target}",
    )
    return moving.BeginMove(record, _place(record, waits, pod=waits.uid))


def _place(record: MoveRecord, of: cluster.Pod, *, pod: str = "", owner: str = "") -> HeldPlace:
    needs = of.needs
    return HeldPlace(
        v=1, move=record.move, namespace=of.namespace, until=record.since + moving.KEPT_FOR, cpu=needs.cpu,
        memory=needs.memory, gpus=needs.gpus, shared=needs.shared, pod=pod, owner=owner, leaving=record.moved.uid,
        products=needs.products, priority=_rank(of), scheduler=needs.scheduler,
    )


# ---- a move that runs ------------------------------------------------------------------------------------------------


def advance(there: MoveNow, now: Instant, *, is_on: bool = True) -> MoveStep:
    """`is_on`: moves are still wanted. Where they are not, nobody is evicted any more; but whoever was comes back to
    the place that is kept."""
    record = there.record
    if record is None:
        return moving.EndMove(MoveEnd.RecordBroken, "its record cannot be read")
    if record.is_overdue(now):
        return moving.EndMove(MoveEnd.Overdue, f"it did not begin within the last {moving.KEPT_FOR:g} s")
    if record.evicting is not None and (there.moved is None or there.moved.terminating):
        return _see_over(there, record, record.evicting, now)
    if not is_on:
        return moving.EndMove(MoveEnd.SwitchedOff, "pods are no longer to be moved")
    return _why_over(there, record, now) or (
        _prepare(there, record, now) if record.evicting is None else _try_again(there, record, record.evicting, now)
    )


def _why_over(there: MoveNow, record: MoveRecord, now: Instant) -> moving.EndMove | None:
    """The pod is still where it was: whatever is not as it was ends it."""
    if because := _why_not_needed(there, record):
        return moving.EndMove(MoveEnd.NotNeeded, because)
    if because := _why_changed(there, record, now):
        return moving.EndMove(MoveEnd.ChangedByOther, because)
    return moving.EndMove(MoveEnd.Unmovable, f"{record.moved} must stay: {there.fixed}") if there.fixed else None


def _prepare(there: MoveNow, record: MoveRecord, now: Instant) -> MoveStep:
    """Nobody has been evicted yet."""
    if consolidate.is_over(record.since, KEPT_WITHIN, now):
        because = f"no extender said within {KEPT_WITHIN:g} s that it keeps both places"
        return moving.EndMove(MoveEnd.NotKept, because)
    if there.target is not None and there.target.find_held(now) is None:
        return _hold(record, there.moved)
    if not there.is_kept:
        return moving.WaitMove("the extender does not keep both places yet")
    return moving.EvictMoved(msgspec.structs.replace(record, evicting=now))


def _hold(record: MoveRecord, moved: cluster.Pod | None) -> MoveStep:
    """For the pod as it is, not as a record says that anybody may have written on a node of theirs."""
    if moved is None or moved.owner is None:
        return moving.EndMove(MoveEnd.Unmovable, f"{record.moved} has nobody who would make it again")
    if not _is_single(moved):
        return moving.EndMove(MoveEnd.Unmovable, f"{record.moved} has more or less than one GPU or share")
    return moving.HoldTarget(_place(record, moved, owner=moved.owner.uid))


def _why_not_needed(there: MoveNow, record: MoveRecord) -> str:
    waits = there.waits
    if waits is None or waits.terminating:
        return f"{record.waits} is gone, or going"
    if waits.node:
        return f"{record.waits} is on {waits.node}"
    if waits.needs.beyond:
        return f"where {record.waits} goes cannot be told: {waits.needs.beyond}"
    return f"{record.moved} is gone, or going" if there.moved is None or there.moved.terminating else ""


def _why_changed(there: MoveNow, record: MoveRecord, now: Instant) -> str:
    if there.target is None:
        return f"{record.target} is gone"
    for node in (there.source, there.target):
        if because := node.closed or node.other:
            return f"{node.name} {because}"
    held = there.target.find_held(now)
    return "" if held is None or held.move == record.move else f"another place is kept on {record.target}"


def _try_again(there: MoveNow, record: MoveRecord, since: Instant, now: Instant) -> MoveStep:
    """The eviction was refused, or never asked for."""
    if not there.is_kept or there.target is None or there.target.find_held(now) is None:
        return moving.EndMove(MoveEnd.NotKept, "the extender does not keep both places any more")
    if consolidate.is_over(since, LASTS, now):
        said = record.refusal or "the API server did not say why"
        return moving.EndMove(MoveEnd.Refused, f"{record.moved} could not be evicted for {LASTS:g} s: {said}")
    return moving.EvictMoved(record)


def _see_over(there: MoveNow, record: MoveRecord, since: Instant, now: Instant) -> MoveStep:
    """Somebody was evicted: what is left is to wait until it has its place, and who waited the other."""
    is_late = consolidate.is_over(since, LASTS, now)
    if there.moved is None and there.ready >= record.ready:
        return _see_taken(there, record, is_late=is_late)
    if is_late:
        return moving.EndMove(MoveEnd.ReplacementLate, f"{record.moved} did not come back within {LASTS:g} s")
    return moving.WaitMove(f"{record.moved} is not Ready elsewhere yet")


def _see_taken(there: MoveNow, record: MoveRecord, *, is_late: bool) -> MoveStep:
    """Who has let another be evicted and is then deleted did not come: else its people could ask for one after the
    other, and take none."""
    waits = there.waits
    if waits is None or waits.terminating:
        return moving.EndMove(MoveEnd.NotTaken, f"{record.waits} is gone, or going")
    if waits.node:
        return moving.EndMove(MoveEnd.Moved, f"{record.moved} is Ready elsewhere, and {record.waits} on {waits.node}")
    if is_late:
        return moving.EndMove(MoveEnd.NotTaken, f"{record.waits} was not bound within {LASTS:g} s")
    return moving.WaitMove(f"{record.waits} is not bound yet")
