"""The plain policies: what makes a node good, one function each; and `prepare`, which finds a policy by its name.

In: the room, the rows of the nodes to be scored, what is asked. Out: a whole number per node (larger is better; cut,
not rounded: that is part of each rule) and the GPU that a sharing pod would take there.
c, g = free CPU and GPU milli of a node before the pod; the largest machine of the published runs has 128 cores and 8
GPUs, and scores are measured by it.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from fallow.decide.packing import auto, fragments, lp, packer, prices, shadow
from fallow.decide.packing.packer import Ask, PackingPolicy, Scores
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod, Room, count_whole

CORES: Final = 128_000
GPUS: Final = 8_000


def first_fit(room: Room, rows: Ints, ask: Ask) -> Scores:
    return np.zeros(len(rows), np.int64), tightest(room, rows, ask)


def best_fit(room: Room, rows: Ints, ask: Ask) -> Scores:
    return _fullness(room, rows, ask), tightest(room, rows, ask)


def worst_fit(room: Room, rows: Ints, ask: Ask) -> Scores:
    return -_fullness(room, rows, ask), room.gpu[rows].argmax(axis=1)


def dot_prod(room: Room, rows: Ints, ask: Ask) -> Scores:
    """Prefers nodes that have little of what the pod wants much of."""
    product = room.cpu[rows] / CORES * (ask.cpu / CORES) + room.free[rows] / GPUS * (ask.gpus * ask.milli / GPUS)
    return (100 * (1 - product / 2)).astype(np.int64), tightest(room, rows, ask)


def gpu_clustering(room: Room, rows: Ints, ask: Ask) -> Scores:
    """Keeps pods of one kind together: those that share a GPU, those that take one, two, ..."""
    if not ask.gpus:
        return first_fit(room, rows, ask)
    takers, kind = room.takers[rows] > 0, count_whole(ask.gpus, ask.milli)
    same = takers[:, kind] if kind < takers.shape[1] else np.zeros(len(rows), np.bool_)
    others = takers.sum(axis=1) > same
    return 25 * (GPUS - room.free[rows]) // GPUS + 50 * same + 25 * ~others, tightest(room, rows, ask)


def gpu_packing(room: Room, rows: Ints, ask: Ask) -> Scores:
    """GPUs in use before untouched ones, nodes in use before empty ones, empty nodes with few GPUs before others."""
    gpu = tightest(room, rows, ask)
    if not ask.gpus:
        return np.zeros(len(rows), np.int64), gpu
    count, free = room.nodes.gpus[rows], room.gpu[rows, gpu]
    untouched = np.where(free == GPU, ask.gpus, 0) if ask.is_sharing else ask.gpus
    in_use = np.where(untouched > 0, np.maximum(50 - untouched, 33), np.maximum(100 - free * 100 // GPU // 10, 50))
    return np.where(room.whole[rows] == count, np.maximum(33 - count, count), in_use), gpu


def tightest(room: Room, rows: Ints, ask: Ask) -> Ints:
    """The GPU with least room that is enough for a sharing pod."""
    if not ask.is_sharing:
        return np.zeros(len(rows), np.int64)
    free = room.gpu[rows]
    gpu: Ints = np.where(free >= ask.milli, free, GPU + 1).argmin(axis=1)
    return gpu


def _fullness(room: Room, rows: Ints, ask: Ask) -> Ints:
    cpu, gpu = room.cpu[rows] - ask.cpu, room.free[rows] - ask.gpus * ask.milli
    return (100 * (1 - 0.5 * cpu / CORES - 0.5 * gpu / GPUS)).astype(np.int64)


PLAIN: Final = {
    "FirstFit": first_fit, "BestFit": best_fit, "WorstFit": worst_fit, "DotProd": dot_prod,
    "GPUClustering": gpu_clustering, "GPUPacking": gpu_packing, "Random": first_fit,
}
PRICED: Final = ("SPP", "Balanced")
POLICIES: Final = (*PLAIN, "FGD", *PRICED, "Auto")


def spell(name: str) -> str:
    """The name of a policy as we write it, from any case."""
    spelling = {policy.lower(): policy for policy in POLICIES}.get(name.lower())
    if spelling is None:
        raise ValueError(f"no packing policy is called {name}; there are {', '.join(POLICIES)}")
    return spelling


def prepare(
    name: str, nodes: Nodes, sample: Sequence[PackingPod], seed: int = 0, order: Ints | None = None,
    known: prices.Prices | None = None,
) -> PackingPolicy:
    """The policy of that name, any case, made for a cluster and the mix of pods it is asked for.

    The seed is for Random's draws and for Auto's rehearsal, the tie order for the latter; `known` spares the prices to
    be solved again. The policy's name is the one that decides.
    """
    match spell(name):
        case "Auto":
            ranks = packer.order_nodes(nodes.names, "") if order is None else order
            return prepare(rehearse(nodes, sample, ranks, seed=seed).chosen, nodes, sample)
        case "FGD":
            return fragments.make_fgd(nodes, sample)
        case "SPP":
            return shadow.make_spp(nodes, sample, known)
        case "Balanced":
            return shadow.make_balanced(nodes, sample, known)
        case plain:
            draw = np.random.default_rng(seed) if plain == "Random" else None
            return PackingPolicy(plain, PLAIN[plain], draw=draw)


def rehearse(
    nodes: Nodes, sample: Sequence[PackingPod], order: Ints, *, in_force: str = auto.FIRST, seed: int = 0,
    may_go_on: Callable[[], bool] = lambda: True, known: prices.Prices | None = None,
) -> auto.Rehearsal:
    """Auto's choice, with what it was made from; `known` as for `prepare`."""
    solved = {0: known} if known else {}

    def prepare_on(name: str, stage: Nodes) -> PackingPolicy:
        """Candidates that go by prices go by the same ones."""
        if name in PRICED and not solved:
            with contextlib.suppress(lp.Unsolved):  # the candidate itself finds that out, and says why
                solved[0] = prices.solve(stage, sample)
        return prepare(name, stage, sample, known=solved.get(0))

    return auto.rehearse(nodes, sample, order, prepare_on, in_force=in_force, seed=seed, may_go_on=may_go_on)
