"""Which of those who could be paused are paused now: the longest idle times GPUs first, as pressure and caps allow.

In: a Sight, what was remembered, who could go, what stands paused. Out: a Choice: who goes, in that
order, and the standing of everybody who has to wait.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from fallow.decide.idle import brakes, judge, pressure
from fallow.decide.idle.courtesy import Standing
from fallow.model import marks
from fallow.model.decision import Memory, Reason, Step
from fallow.model.units import HOUR, Instant


class Choice(msgspec.Struct, frozen=True):
    chosen: list[int]
    waiting: Mapping[int, Standing]


def choose(sight: judge.Sight, memory: Memory, pausable: list[int], paused: Mapping[int, Instant | None]) -> Choice:
    chosen: list[int] = []
    waiting: dict[int, Standing] = {}
    if not pausable:
        return Choice(chosen, waiting)
    pretended = _find_pretended(sight, memory)
    caps = brakes.Caps(sight.mandate.brakes, _count_spent(sight, paused, pretended))
    queue, ordered = _queue_up(sight, pretended), _put_in_order(sight, pausable)
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


def _put_in_order(sight: judge.Sight, pausable: list[int]) -> list[int]:
    at = np.array(pausable)
    gpu_seconds = (sight.now - sight.idle_since[at]) * sight.arranged.gpus[at]
    ordered: list[int] = at[np.argsort(-gpu_seconds, kind="stable")].tolist()
    return ordered


def _ask(sight: judge.Sight, index: int, caps: brakes.Caps, queue: pressure.Queue | None) -> Standing | None:
    """The standing of one that has to wait; None: it goes, and what it takes is taken off."""
    workload, arranged = sight.snapshot.workloads[index], sight.arranged
    rule, gpus = arranged.ruling(index).rule, int(arranged.gpus[index])
    needed = queue if rule.action.pressure == "only" else None
    reason, because = Reason.Capped, caps.why_not(workload.ref.namespace, rule, gpus)
    if needed is not None and (not needed.gpus or (because is None and not needed.serve(workload))):
        reason, because = Reason.NoPressure, pressure.why_not(workload)
    if because is not None:
        return Standing(skip=reason, because=because, next_action=Step.pause)
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
    sight: judge.Sight, paused: Mapping[int, Instant | None], pretended: Mapping[int, Instant]
) -> brakes.Spent:
    """What this hour took; and what it is a share of: what is held now, and what this hour's pauses freed."""
    arranged, workloads = sight.arranged, sight.snapshot.workloads
    freed: Counter[str] = Counter()
    for index, at in paused.items():
        if at is not None and sight.now - at < HOUR:
            gpus = marks.paused_gpus(workloads[index])
            freed[arranged.ruling(index).rule.name] += 1 if gpus is None else gpus  # not written down: one at least
    spent, allocated = Counter(freed), Counter(freed)
    for index, at in pretended.items():
        if sight.now - at < HOUR:  # a dry run's are still held
            spent[arranged.ruling(index).rule.name] += int(arranged.gpus[index])
    held = np.bincount(arranged.rule_of, arranged.gpus, len(arranged.rulings)).astype(int).tolist()
    for ruling, gpus in zip(arranged.rulings, held, strict=True):
        allocated[ruling.rule.name] += gpus
    return brakes.Spent(spent.total(), spent, allocated.total(), allocated)
