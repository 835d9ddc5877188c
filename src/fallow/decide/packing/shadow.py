"""SPP, shadow-price packing: a pod goes where the loss costs least at the prices of what usually comes.

Greedy: never refuses what fits, moves nothing, knows only the mix of pods. Over nodes with room and, for a sharing pod,
their GPUs:

    1. least cost, in steps of 0.02 GPUs: the cores at mu, and of the GPU
         sharing s milli of a GPU with r free      nu(r) - nu(r - s), the value of the rest before and after
         k whole GPUs                              lam * k
       plus, per GPU, a surcharge for a model that pods bound to it will soon want more of than is free
    2. best FGD grade
    3. CPU where GPUs do not need it: least GPU left without 12 cores beside it (nothing where CPU is scarce everywhere)
    4. tie order, then the lower GPU

All keys are whole numbers, packed into one.

Balanced is SPP with one more term of the cost. Prices are per core and per GPU, and so do not see that a node with GPUs
and no cores left is worth nothing. GPUs are stranded where a node's free CPU is less than the pods that want GPUs ask
for beside them, on average of the sample; what a pod strands, or saves from it, is part of its cost. Where the sample
asks for clearly more CPU than there is, GPUs will be stranded whatever is done, and sparing them here and there only
spreads it: then that term is nothing. Also, prices from few pods are noisier, by the square root of how many there are:
Balanced takes larger steps of cost then.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from fallow.decide.packing import fragments, prices
from fallow.decide.packing.lp import CORE, Floats, Unsolved
from fallow.decide.packing.packer import Ask, PackingPolicy, Scores
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod, Room

STEP: Final = 0.02  # GPUs; finer differences of cost are noise of the prices
MANY_PODS: Final = 5_000  # in a sample; from fewer, steps are larger
STEPS_MOST: Final = 3.0  # times STEP
SCARCE: Final = 0.5  # GPUs that the scarcest model costs more, per unit of want over what is free
SCARCE_STEP: Final = 0.1
SCARCE_MOST: Final = 3.0
CORES_PER_GPU: Final = 12  # below that a free GPU is of little use
STRANDED: Final = 0.3  # what a stranded GPU costs, in GPUs: chosen once for all traces
SHORT: Final = 1.05  # the sample's CPU per GPU over the cluster's: above it GPUs are stranded in any case
TIGHT: Final = 0.95  # the same: above it there is no node to spare CPU on
COST_MOST, GRADES, BESIDE = 1 << 14, 1 << 7, 1 << 22  # width of the keys in 64 bits; 19 are left for the tie order


def make_balanced(nodes: Nodes, sample: Sequence[PackingPod], known: prices.Prices | None = None) -> PackingPolicy:
    """SPP that also keeps CPU beside free GPUs, and trusts prices from few pods less."""
    coarser = min(max(math.sqrt(MANY_PODS / max(len(sample), 1)), 1.0), STEPS_MOST)
    return make_spp(nodes, sample, known, "Balanced", STRANDED, STEP * coarser)


def make_spp(
    nodes: Nodes, sample: Sequence[PackingPod], known: prices.Prices | None = None, name: str = "SPP",
    stranded: float = 0.0, step: float = STEP,
) -> PackingPolicy:
    """SPP at these prices, or at prices solved here. Without prices FGD decides, and says why."""
    try:
        known = known or prices.solve(nodes, sample)
    except Unsolved as reason:
        return fragments.make_fgd(nodes, sample, fallback=str(reason))
    shadow = Shadow(nodes, sample, known, stranded, step)
    return PackingPolicy(name, shadow.score, shadow.measure_scarcity if shadow.has_bound else None)


class Shadow:
    """The prices of a cluster as tables, and the score made of them."""

    def __init__(
        self, nodes: Nodes, sample: Sequence[PackingPod], known: prices.Prices, stranded: float, step: float
    ) -> None:
        spread = known.spread(nodes)  # all costs are in steps
        self._mu, self._lam, self._nu = spread.mu / step, spread.lam / step, spread.nu.ravel() / step
        self._scarce = SCARCE * SCARCE_STEP / GPU / step
        self._fragments = fragments.Fragments(nodes, fragments.find_popular(sample))
        counts = fragments.count_classes(sample)
        wanted = prices.weigh_models(nodes, counts)
        cpu, gpu = sum(n * each.cpu for each, n in counts.items()), fragments.find_demand(counts)
        beside = sum(n * each.cpu for each, n in counts.items() if each.gpus)
        wants, has = cpu * nodes.capacity, gpu * int(nodes.cpu.sum())  # CPU per GPU, of the sample and of the cluster
        self._stranded = stranded / GPU / step if wants <= SHORT * has else 0.0
        self._is_tight = wants > TIGHT * has
        self._per_gpu = max(beside, 1) / max(gpu, 1)
        self.has_bound, self._wants = bool(wanted.any()), [float(each) for each in wanted]
        self._capacity = max(nodes.capacity, 1)
        # Asked for again and again between two changes of one room.
        self._measured: tuple[Room | None, int, tuple[int, ...]] = (None, 0, ())

    def measure_scarcity(self, room: Room) -> tuple[int, ...]:
        """Per model, in steps: what pods bound to it will want while the rest fills, over what of it is free."""
        if self._measured[:2] == (room, room.clock):
            return self._measured[2]
        free: list[int] = room.free_of_model.tolist()  # a handful of models: plain numbers are faster than columns
        share = sum(free) / self._capacity
        both = zip(self._wants, free, strict=True)
        want = [min(wanted * share / max(milli / GPU, 1), SCARCE_MOST) for wanted, milli in both]
        self._measured = room, room.clock, tuple([round(each / SCARCE_STEP) for each in want])
        return self._measured[2]

    def score(self, room: Room, rows: Ints, ask: Ask) -> Scores:
        grade = self._fragments.grade(self._fragments.fall(room, rows, ask))
        best, gpu = grade - GRADES * np.rint(self._cost(room, rows, ask)), np.zeros(len(rows), np.int64)
        if ask.is_sharing:
            best = np.where(room.gpu.take(rows, axis=0) >= ask.milli, best, -np.inf)
            gpu, best = best.argmax(axis=1), np.maximum.reduce(best, axis=1)
        return np.maximum(best, -GRADES * COST_MOST).astype(np.int64) * BESIDE + self._beside(room, rows, ask), gpu

    def _cost(self, room: Room, rows: Ints, ask: Ask) -> Floats:
        """In steps; for a sharing pod per node and GPU."""
        group = room.nodes.group.take(rows)
        cpu: Floats = self._mu.take(group) * (ask.cpu / CORE)
        if self._stranded:
            cpu += self._stranded * self._strand(room, rows, ask)
        if not ask.gpus:
            return cpu
        if self.has_bound:
            models = room.nodes.model.take(rows)
            cpu += np.array(self.measure_scarcity(room)).take(models) * (self._scarce * ask.gpus * ask.milli)
        if not ask.is_sharing:
            whole: Floats = cpu + self._lam.take(group) * ask.gpus
            return whole
        rest = (group * (GPU + 1))[:, None] + room.gpu.take(rows, axis=0)
        lost: Floats = self._nu.take(rest) - self._nu.take(rest - ask.milli)  # of no meaning where there is less
        lost += cpu[:, None]
        return lost

    def _strand(self, room: Room, rows: Ints, ask: Ask) -> Floats:
        """GPU milli without CPU beside them, after less before."""
        before = room.free.take(rows) - room.cpu.take(rows) / self._per_gpu
        after = before - (ask.gpus * ask.milli - ask.cpu / self._per_gpu)
        stranded: Floats = np.maximum(0, after) - np.maximum(0, before)
        return stranded

    def _beside(self, room: Room, rows: Ints, ask: Ask) -> Ints:
        """How much better GPUs and the CPU beside them fit together afterwards."""
        if self._is_tight:
            return np.zeros(len(rows), np.int64)
        lacks = CORES_PER_GPU * room.free.take(rows) - room.cpu.take(rows)
        left = lacks + (ask.cpu - CORES_PER_GPU * ask.gpus * ask.milli)
        better: Ints = np.maximum(0, lacks) - np.maximum(0, left) if ask.gpus else -left
        return np.minimum(np.maximum(better, 1 - BESIDE // 2), BESIDE // 2 - 1)
