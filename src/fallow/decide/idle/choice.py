"""Which of those who could be paused are paused now: the longest idle times GPUs first, as pressure and caps allow.

In: a Sight, what was remembered, who could go. Out: a Choice: who goes, in that order, and the standing of everybody
who has to wait.
Invariant: what an hour took is counted by our own memory, never by marks that tenants can write; whoever was tried in
vain goes after those who were not, so that nobody holds up the rest.
"""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from fallow.decide.idle import brakes, judge, pressure
from fallow.decide.idle.courtesy import Standing
from fallow.model import units
from fallow.model.decision import Memory, Reason, Step
from fallow.model.long_memory import Attempt, PastPause
from fallow.model.units import HOUR, Instant


class Choice(msgspec.Struct, frozen=True):
    chosen: list[int]
    waiting: Mapping[int, Standing]


def choose(sight: judge.Sight, memory: Memory, pausable: list[int]) -> Choice:
    if pausable and (found := brakes.why_none(sight.mandate.brakes, memory.long)):
        return Choice([], dict.fromkeys(pausable, _wait(*found)))
    attempts = {each.uid: each for each in memory.long.attempts}
    waits = attempts and sight.mandate.brakes.backs_off
    waiting = _find_backing_off(sight, attempts, pausable) if waits else {}
    ready = [index for index in pausable if index not in waiting]
    return _hand_out(sight, memory, _put_in_order(sight, ready, attempts), waiting) if ready else Choice([], waiting)


def _wait(reason: Reason, because: str, next_at: Instant | None = None) -> Standing:
    return Standing(skip=reason, because=because, next_action=Step.pause, next_at=next_at)


def _find_backing_off(sight: judge.Sight, attempts: Mapping[str, Attempt], pausable: list[int]) -> dict[int, Standing]:
    found = {}
    for index in pausable:
        one = attempts.get(sight.arranged.uids[index])
        if one is not None and sight.now < one.until:
            times = "once" if one.count == 1 else f"{one.count} times"
            because = f"its pause failed {times} in a row; again at {units.rfc3339(one.until)}: {one.because}"
            found[index] = _wait(Reason.BackingOff, because, one.until)
    return found


def _hand_out(sight: judge.Sight, memory: Memory, ordered: list[int], waiting: dict[int, Standing]) -> Choice:
    chosen: list[int] = []
    pretended = _find_pretended(sight, memory)
    caps = brakes.Caps(sight.mandate.brakes, _count_spent(sight, memory.long.pauses, pretended))
    queue = _queue_up(sight, pretended)
    for rank, index in enumerate(ordered):
        standing = _ask(sight, index, caps, queue)
        if standing is None:
            chosen.append(index)
        elif caps.is_full and queue is None:  # all the rest wait for one and the same reason
            waiting |= dict.fromkeys(ordered[rank:], standing)
            break
        else:
            waiting[index] = standing
    return Choice(chosen, waiting)


def _put_in_order(sight: judge.Sight, pausable: list[int], attempts: Mapping[str, Attempt]) -> list[int]:
    at, uids = np.array(pausable), sight.arranged.uids
    gpu_seconds = (sight.now - sight.idle_since[at]) * sight.arranged.gpus[at]
    tries = np.zeros(len(pausable), np.int64)
    if attempts:
        tries[:] = [attempts[uid].count if (uid := uids[index]) in attempts else 0 for index in pausable]
    ordered: list[int] = at[np.lexsort((-gpu_seconds, tries))].tolist()
    return ordered


def _ask(sight: judge.Sight, index: int, caps: brakes.Caps, queue: pressure.Queue | None) -> Standing | None:
    """The standing of one that has to wait; None: it goes, and what it takes is taken off."""
    workload, arranged = sight.snapshot.workloads[index], sight.arranged
    rule, gpus = arranged.ruling(index).rule, int(arranged.gpus[index])
    needed = queue if rule.action.pressure == "only" else None
    reason, because = Reason.Capped, caps.why_not(workload.ref.namespace, rule, gpus)
    if needed is not None and (not needed.gpus or (because is None and not needed.serve(workload))):
        reason, because = Reason.NoPressure, pressure.why_not(workload, sight.snapshot)
    if because is not None:
        return _wait(reason, because)
    caps.take(workload.ref.namespace, rule, gpus)
    return None


def _queue_up(sight: judge.Sight, pretended: Mapping[int, Instant]) -> pressure.Queue | None:
    if all(ruling.rule.action.pressure == "off" for ruling in sight.arranged.rulings):
        return None
    queue = pressure.Queue(sight.snapshot, sight.arranged.waiting, sight.now)
    for index in pretended:
        queue.serve(sight.snapshot.workloads[index])
    return queue


def _find_pretended(sight: judge.Sight, memory: Memory) -> dict[int, Instant]:
    """What a dry run holds for paused, and since when."""
    index_of, paused = sight.arranged.index_of, {} if sight.mandate.acting else memory.would_be_paused
    return {index_of[uid]: at for uid, at in paused.items() if uid in index_of}


def _count_spent(
    sight: judge.Sight, pauses: Collection[PastPause], pretended: Mapping[int, Instant]
) -> brakes.Spent:
    """What this hour took; and what it is a share of: what is in use now, and what this hour's pauses freed."""
    arranged, rules = sight.arranged, [ruling.rule.name for ruling in sight.arranged.rulings]
    taken = [(past.rule, past.gpus) for past in pauses]
    taken += [  # a dry run's are still held
        (arranged.ruling(index).rule.name, int(arranged.gpus[index])) for index, at in pretended.items()
        if sight.now - at < HOUR
    ]
    spent, allocated = Counter[str](), _count_freed(sight, pauses)
    for rule, gpus in taken:
        spent.update(dict.fromkeys((rule,) if rule else set(rules), gpus))
    held = np.bincount(arranged.rule_of, arranged.gpus_in_use, len(rules)).astype(int).tolist()
    for rule, gpus in zip(rules, held, strict=True):
        allocated[rule] += gpus
    return brakes.Spent(sum(gpus for _, gpus in taken), spent, allocated.total(), allocated)


def _count_freed(sight: judge.Sight, pauses: Collection[PastPause]) -> Counter[str]:
    """By rule, of those that are still there and hold less than they did. Who was resumed is counted as held again."""
    index_of, freed = sight.arranged.index_of, Counter[str]()
    for past in {each.uid: each for each in pauses if each.uid in index_of}.values():
        freed[past.rule] += max(0, past.gpus - int(sight.arranged.gpus[index_of[past.uid]]))
    return freed
