"""Shadow prices of a cluster: what a core, a GPU and each size of rest are worth to the pods that usually come; the
bound.

In: nodes and a sample of pods. Out: `Prices` per group of alike nodes (the mean over programs from a light to a heavy
load, so that the prices serve while the cluster fills), and the largest GPU share that any packer could reach on given
arrivals.

    mu[t]   a core on group t       lam[t]   an untouched GPU       nu[t](r)   what a GPU with r milli can be cut into
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide.packing import fragments, lp
from fallow.decide.packing.lp import CORE, Floats, Unsolved
from fallow.decide.packing.room import GPU, Group, Nodes, PackingPod

LOADS: Final = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2)
CPU_WORTH: Final = 0.02  # GPUs per core: a pod without GPUs is worth something too
GRIDS: Final = (1, 10, 25, 50, 100, 250)  # milli; the finest that gives few enough patterns is taken


class Prices(msgspec.Struct, frozen=True, eq=False):
    groups: tuple[Group, ...]
    mu: Floats  # per group, per core
    lam: Floats  # per group, per GPU
    nu: Floats  # per group and free milli 0..1000

    def spread(self, nodes: Nodes) -> "Prices":
        """For the groups of these nodes; one without prices takes its model's nearest (CPU per GPU), else the mean."""
        weights = np.array([self._weigh(group) for group in nodes.groups]).reshape(len(nodes.groups), len(self.groups))
        return Prices(nodes.groups, weights @ self.mu, weights @ self.lam, weights @ self.nu)

    def _weigh(self, group: Group) -> Floats:
        kin = [i for i, known in enumerate(self.groups) if known.model == group.model]
        if group in self.groups:
            chosen = [self.groups.index(group)]
        elif kin:
            chosen = [min(kin, key=lambda i: (abs(_cpu_per_gpu(self.groups[i]) - _cpu_per_gpu(group)), i))]
        else:
            chosen = list(range(len(self.groups)))
        return np.bincount(chosen, minlength=len(self.groups)) / len(chosen)


def solve(nodes: Nodes, sample: Sequence[PackingPod], seconds: float = lp.SECONDS) -> Prices:
    """Raises lp.Unsolved with the reason."""
    counts = fragments.count_classes(sample)
    demand = fragments.find_demand(counts)
    if not demand or not nodes.capacity:
        raise Unsolved("NothingToPrice")
    grid = find_grid({each.milli for each in counts})
    wishes = [
        _make_wish(
            each, nodes.groups, count=count * nodes.capacity / demand, milli=lp.coarsen(each.milli, grid, up=True),
            worth=each.gpu_milli / GPU + CPU_WORTH * each.cpu / CORE,
        )
        for each, count in counts.items()
    ]
    numbers = Counter(nodes.group.tolist())
    stocks = [lp.Stock(numbers[i], group.cpu, group.gpus) for i, group in enumerate(nodes.groups)]
    program = lp.Program(stocks, wishes, seconds)
    if program.is_empty:
        raise Unsolved("NothingToPrice")
    solved = [program.solve(load) for load in LOADS]
    mu, lam = np.mean([each.mu for each in solved], axis=0), np.mean([each.lam for each in solved], axis=0)
    worth = value_rests(np.concatenate([each.sig for each in solved]), solved[0].sizes)
    return Prices(nodes.groups, mu, lam, worth.reshape(len(solved), *lam.shape, GPU + 1).mean(axis=0))


def value_rests(sig: Floats, sizes: Sequence[int]) -> Floats:
    """nu: the most that can be earned by cutting r milli into pieces of known sizes, for r = 0..1000."""
    nu, pieces = np.zeros((GPU + 1, len(sig))), np.ascontiguousarray(sig.T)
    for r in range(1, GPU + 1):
        nu[r] = nu[r - 1]
        for size, piece in zip(sizes, pieces, strict=True):
            if size <= r:
                np.maximum(nu[r], nu[r - size] + piece, out=nu[r])
    return nu.T


def find_bound(nodes: Nodes, arrivals: Sequence[PackingPod], seconds: float = lp.SECONDS) -> float:
    """The largest GPU % that any packer, free to reject and to cut pods, could have allocated. Raises lp.Unsolved."""
    if not nodes.capacity:
        raise Unsolved("NothingToPrice")
    sound = (pod for pod in arrivals if not pod.find_fault())
    counts = Counter(PackingPod("", pod.cpu, pod.memory, pod.gpus, pod.milli, pod.models) for pod in sound)
    numbers = Counter((group, row.memory) for group, row in zip(nodes.group.tolist(), nodes.rows, strict=True))
    groups = [nodes.groups[number] for number, _ in numbers]
    stocks = [lp.Stock(n, nodes.groups[i].cpu, nodes.groups[i].gpus, memory) for (i, memory), n in numbers.items()]
    grid = find_grid({each.milli for each in counts})
    wishes = [
        _make_wish(each, groups, count=n, milli=lp.coarsen(each.milli, grid, up=False), worth=each.gpu_milli / GPU)
        for each, n in counts.items()
    ]
    gpus = lp.Program(stocks, wishes, seconds).solve(1.0).value
    return min(100.0, 100 * gpus * GPU / nodes.capacity)  # sizes that were made coarser take less than they are worth


def find_grid(sizes: set[int]) -> int:
    """1 where sizes can be taken as they are."""
    for grid in GRIDS[:-1]:
        coarse = {lp.coarsen(milli, grid, up=True) for milli in sizes}
        if lp.cut_patterns(sorted(size for size in coarse if 0 < size < GPU)) is not None:
            return grid
    return GRIDS[-1]


def weigh_models(nodes: Nodes, counts: Mapping[PackingPod, int]) -> Floats:
    """W: GPUs that pods bound to each model will want, with the whole sample scaled to the cluster."""
    capacity = np.bincount(nodes.model, nodes.gpus, len(nodes.models))
    wanted, demand = np.zeros(len(nodes.models)), fragments.find_demand(counts)
    for each, count in counts.items():
        own = capacity * np.array([each.gpus > 0 and model in each.models for model in nodes.models], np.float64)
        if own.sum():
            wanted += own / own.sum() * each.gpus * each.milli * count / demand * capacity.sum()
    return wanted


def _make_wish(pod: PackingPod, groups: Sequence[Group], *, count: float, milli: int, worth: float) -> lp.Wish:
    accepted = frozenset(i for i, group in enumerate(groups) if pod.accepts(group.model))
    return lp.Wish(
        count=count, worth=worth, cpu=pod.cpu, gpus=pod.gpus, milli=milli, accepted=accepted, memory=pod.memory
    )


def _cpu_per_gpu(group: Group) -> float:
    return group.cpu / CORE / max(group.gpus, 1)
