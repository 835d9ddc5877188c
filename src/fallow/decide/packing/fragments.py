"""Fragmentation: GPU that is free and yet of no use to the pods that usually come; and FGD, the policy that adds least.

Popular classes m, with weight p_m, are what usually comes. On a node with R_g milli free on GPU g, class m (CPU d, k
GPUs of s) can use

    sum of R_g over GPUs with R_g >= s   if the node hosts one such pod (CPU >= d, model accepted, k GPUs with R_g >= s)
    nothing                              otherwise, and always for a class without GPUs

and the rest of what is free is fragmented for m; the node's fragmentation F is the mean over the classes.
How it is made fast: a class with one GPU can use of GPU g either all of R_g or nothing, and a class with several takes
untouched GPUs only. So what is usable is a sum over the GPUs of a table by (model, CPU left, R_g), plus a table by
(model, CPU left, untouched GPUs). Weights are kept as counts of pods, F as milli times counts: no rounding.
"""

import bisect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing.packer import Ask, PackingPolicy, Scores
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod, Room

POPULAR: Final = 0.95  # of the pods; rarer classes are noise (Weng et al., ATC'23)
MOST_CLASSES: Final = 500  # of a live cluster; tables and prices grow with them


class Cause(StrEnum):
    """What a node lacks for a class. Only q3 is not fragmentation."""

    LackBoth = "q1_lack_both"
    LackGpu = "q2_lack_gpu"
    Satisfied = "q3_satisfied"
    LackCpu = "q4_lack_cpu"
    CpuOnlySatisfied = "xl_satisfied"
    CpuOnlyLackCpu = "xr_lack_cpu"
    NoAccess = "no_access"


def count_classes(sample: Sequence[PackingPod]) -> Counter[PackingPod]:
    """How many pods of each class, told apart by all but name and memory; what no machine could host is not counted."""
    return Counter(_find_class(pod) for pod in sample if not pod.find_fault())


def _find_class(pod: PackingPod) -> PackingPod:
    return PackingPod("", pod.cpu, 0, pod.gpus, pod.milli, pod.models)


def keep_usual(sample: Sequence[PackingPod]) -> tuple[PackingPod, ...]:
    """Without the rarest of very many classes: whoever makes thousands of pods, each of another size, keeps nobody
    waiting for what is learned of them."""
    counts = count_classes(sample)
    if len(counts) <= MOST_CLASSES:
        return tuple(sample)
    usual = {each for each, _ in counts.most_common(MOST_CLASSES)}
    return tuple(pod for pod in sample if _find_class(pod) in usual)


def find_demand(counts: Mapping[PackingPod, int]) -> int:
    """GPU milli that all these pods ask for."""
    return sum(each.gpu_milli * count for each, count in counts.items())


def find_popular(sample: Sequence[PackingPod]) -> dict[PackingPod, int]:
    """The most frequent classes, until they make up 95 % of the pods."""
    counts = count_classes(sample)
    ordered = sorted(counts, key=lambda c: (counts[c], c.cpu, c.milli, c.gpus, "|".join(c.models)), reverse=True)
    popular, seen = dict[PackingPod, int](), 0
    for each in ordered:
        popular[each] = counts[each]
        seen += counts[each]
        if seen >= POPULAR * counts.total():
            break
    return popular


class Fragments:
    """The tables of a cluster and a mix of pods."""

    def __init__(self, nodes: Nodes, popular: dict[PackingPod, int]) -> None:
        self.pods = max(1, sum(popular.values()))
        self._cpus = sorted({each.cpu for each in popular})
        self._levels = np.array(self._cpus, np.int64)  # the same, for many nodes at a time
        width = max(1, int(nodes.gpus.max(initial=0)))
        shape = len(nodes.models), len(self._levels) + 1
        single, several = np.zeros((*shape, GPU + 1), np.int64), np.zeros((*shape, width + 1), np.int64)
        for each, count in popular.items():
            models = np.array([each.accepts(model) for model in nodes.models], np.bool_)
            level = int(np.searchsorted(self._levels, each.cpu)) + 1  # and every level above has CPU enough
            if each.gpus == 1:
                single[models, level:, each.milli :] += count
            elif 1 < each.gpus <= width:
                several[models, level:, each.gpus :] += count
        self._single: Ints = (single * np.arange(GPU + 1)).ravel()
        self._several: Ints = (several * np.arange(width + 1) * GPU).ravel()
        self._depth, self._width = shape[1], width + 1
        self._grades = _find_steps(self.pods)
        self._seen: tuple[Room | None, int] = (None, 0)  # whose room, at which change, is what is kept per node
        self._kept: Ints = np.zeros(0, np.int64)

    def measure(self, room: Room) -> Ints:
        """F of every node, in milli times pods."""
        return room.free * self.pods - self._usable(room.gpu, room.whole, self._locate(room.nodes.model, room.cpu))

    def find_share(self, room: Room) -> float | None:
        """% of what is free that is of no use to what usually comes; None where nothing is free."""
        free = int(room.free.sum())
        return round(100 * int(self.measure(room).sum()) / self.pods / free, 2) if free else None

    def fall(self, room: Room, rows: Ints, ask: Ask) -> Ints:
        """F before less F after, per node with room; for a sharing pod per node and GPU, without meaning if full."""
        whole, gpu = room.whole.take(rows), room.gpu.take(rows, axis=0)
        after = self._locate(room.nodes.model.take(rows), room.cpu.take(rows) - ask.cpu)
        gone = ask.gpus * ask.milli * self.pods - self._usable_now(room).take(rows)
        if not ask.is_sharing:  # the untouched GPUs it takes are all alike
            used = self._single.take(after * (GPU + 1) + GPU) * ask.gpus
            return gone + self._usable(gpu, whole - ask.gpus, after) - used
        at = (after * (GPU + 1))[:, None] + gpu
        now, then = self._single.take(at), self._single.take(at - ask.milli)
        several = self._several.take((after * self._width + whole)[:, None] - (gpu == GPU))
        fall: Ints = (gone + np.add.reduce(now, axis=1))[:, None] - now + then + several
        return fall

    def _usable_now(self, room: Room) -> Ints:
        """What is usable of every node as it is; only nodes that changed are looked at again: they are few."""
        if self._seen[0] is not room:
            self._kept = self._usable(room.gpu, room.whole, self._locate(room.nodes.model, room.cpu))
        else:
            for node in room.changed_since(self._seen[1]).tolist():
                level = bisect.bisect_right(self._cpus, room.cpu.item(node))
                at = room.nodes.model.item(node) * self._depth + level
                first, several = at * (GPU + 1), self._several.item(at * self._width + room.whole.item(node))
                self._kept[node] = sum([self._single.item(first + free) for free in room.gpu[node].tolist()]) + several
        self._seen = room, room.clock
        return self._kept

    def _locate(self, model: Ints, cpu: Ints) -> Ints:
        return model * self._depth + self._levels.searchsorted(cpu, side="right")

    def _usable(self, gpu: Ints, whole: Ints, at: Ints) -> Ints:
        usable: Ints = np.add.reduce(self._single.take((at * (GPU + 1))[:, None] + gpu), axis=1)
        return usable + self._several.take(at * self._width + whole)

    def grade(self, fall: Ints) -> Ints:
        """FGD's whole number: 50 where nothing changes, more where F falls. The cut is part of the rule."""
        return self._grades.searchsorted(fall, side="right")


def grade_fall(milli: float) -> int:
    """The grade of one fall of fragmentation, as published."""
    return int(100 / (1 + math.exp(-round(milli, 6) / GPU)))


def _find_steps(pods: int) -> Ints:
    """The least fall, in milli times pods, for each grade from 1 on: a look-up is five times faster than `exp`."""
    falls = range(-65 * GPU * pods, 65 * GPU * pods)  # more than a node with 64 GPUs can change
    grades = (bisect.bisect_left(falls, each, key=lambda fall: grade_fall(fall / pods)) for each in range(1, 101))
    return np.array([falls[0] + step for step in grades], np.int64)


def make_tables(nodes: Nodes, sample: Sequence[PackingPod]) -> Fragments | None:
    """None where nothing is known of what usually comes."""
    popular = find_popular(sample)
    return Fragments(nodes, popular) if popular else None


def make_fgd(nodes: Nodes, sample: Sequence[PackingPod], fallback: str = "") -> PackingPolicy:
    """Fragmentation Gradient Descent: where fragmentation rises least."""
    fragments = Fragments(nodes, find_popular(sample))

    def score(room: Room, rows: Ints, ask: Ask) -> Scores:
        grade = fragments.grade(fragments.fall(room, rows, ask))
        if not ask.is_sharing:
            return grade, np.zeros(len(rows), np.int64)
        fitting = np.where(room.gpu.take(rows, axis=0) >= ask.milli, grade, -1)
        return np.maximum.reduce(fitting, axis=1), fitting.argmax(axis=1)

    return PackingPolicy("FGD", score, fallback=fallback)


def score_gpus(room: Room, sample: Sequence[PackingPod]) -> dict[tuple[str, int], float]:
    """By node and GPU: of what is free of it, what is too small for the pods that usually come, 0 to 1; 0 where nothing
    is free. Pods that want no GPU do not count."""
    popular = {each: count for each, count in find_popular(sample).items() if each.gpus}
    total = sum(popular.values())
    if not total:
        return {}
    lost = np.zeros(room.gpu.shape)
    for each, count in popular.items():
        lost += (room.gpu < (each.milli if each.gpus == 1 else GPU)) * (count / total)
    scores = np.where(room.gpu > 0, lost, 0.0)
    return {
        (name, gpu): round(float(scores[row, gpu]), 4)
        for row, name in enumerate(room.nodes.names) for gpu in range(int(room.nodes.gpus[row]))
    }


def split_by_cause(room: Room, sample: Sequence[PackingPod], row: int | None = None) -> dict[Cause, float]:
    """Free GPUs by what keeps the popular classes from using them; all causes together are all that is free. `row`: of
    one node alone."""
    popular = find_popular(sample)
    causes, total = dict.fromkeys(Cause, 0.0), max(1, sum(popular.values()))
    for each, count in popular.items():
        for cause, milli in _split(room, each):
            free = float(milli.sum()) if row is None else float(milli[row])
            causes[cause] += free * count / total / GPU
    return causes


def _split(room: Room, each: PackingPod) -> list[tuple[Cause, Ints]]:
    accepted = np.array([each.accepts(model) for model in room.nodes.models], np.bool_)[room.nodes.model]
    has_cpu, fits = room.cpu >= each.cpu, room.gpu >= each.milli
    if not each.gpus:
        return [(Cause.CpuOnlySatisfied, room.free * has_cpu), (Cause.CpuOnlyLackCpu, room.free * ~has_cpu)]
    has_gpu: NDArray[np.bool_] = fits.sum(axis=1) >= each.gpus
    hosts = accepted & has_cpu & has_gpu
    usable: Ints = np.where(fits, room.gpu, 0).sum(axis=1) * hosts
    return [
        (Cause.NoAccess, room.free * ~accepted),
        (Cause.LackBoth, room.free * (accepted & ~has_cpu & ~has_gpu)),
        (Cause.LackCpu, room.free * (accepted & ~has_cpu & has_gpu)),
        (Cause.LackGpu, room.free * (accepted & has_cpu & ~has_gpu) + (room.free - usable) * hosts),
        (Cause.Satisfied, usable),
    ]
