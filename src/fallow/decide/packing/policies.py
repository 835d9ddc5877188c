"""The plain policies: what makes a node good, one function each; and `prepare`, which finds a policy by its name.

In: the state, the rows of the nodes to be scored, what is asked. Out: a whole number per node (larger is better; cut, not rounded: that is
part of each rule) and the GPU that a sharing pod would take there.
c, g = free CPU and GPU milli of a node before the pod; the largest machine of the published runs has 128 cores and 8 GPUs, and scores are
measured by it.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from fallow.decide.packing import fragments, lp, place, prices, rehearse, shadow
from fallow.decide.packing.place import Ask, Policy, Scores
from fallow.decide.packing.state import GPU, Ints, Nodes, Pod, State

CORES: Final = 128_000
GPUS: Final = 8_000
HUGE: Final = 1 << 20


def first_fit(state: State, rows: Ints, ask: Ask) -> Scores:
    return np.zeros(len(rows), np.int64), tightest(state, rows, ask)


def best_fit(state: State, rows: Ints, ask: Ask) -> Scores:
    return _fullness(state, rows, ask), tightest(state, rows, ask)


def worst_fit(state: State, rows: Ints, ask: Ask) -> Scores:
    return -_fullness(state, rows, ask), state.gpu[rows].argmax(axis=1)


def dot_prod(state: State, rows: Ints, ask: Ask) -> Scores:
    """Prefers nodes that have little of what the pod wants much of."""
    product = state.cpu[rows] / CORES * (ask.cpu / CORES) + state.free[rows] / GPUS * (ask.gpus * ask.milli / GPUS)
    return (100 * (1 - product / 2)).astype(np.int64), tightest(state, rows, ask)


def gpu_clustering(state: State, rows: Ints, ask: Ask) -> Scores:
    """Keeps pods of one kind together: those that share a GPU, those that take one, two, ..."""
    if not ask.gpus:
        return first_fit(state, rows, ask)
    kinds = state.kinds[rows] > 0
    same = kinds[:, ask.kind] if ask.kind < kinds.shape[1] else np.zeros(len(rows), np.bool_)
    others = kinds.sum(axis=1) > same
    return 25 * (GPUS - state.free[rows]) // GPUS + 50 * same + 25 * ~others, tightest(state, rows, ask)


def gpu_packing(state: State, rows: Ints, ask: Ask) -> Scores:
    """GPUs in use before untouched ones, nodes in use before empty ones, empty nodes with few GPUs before large ones."""
    gpu = tightest(state, rows, ask)
    if not ask.gpus:
        return np.zeros(len(rows), np.int64), gpu
    count = state.nodes.gpus[rows]
    free = state.gpu[rows, gpu]
    untouched = np.where(free == GPU, ask.gpus, 0) if ask.is_sharing else ask.gpus
    in_use = np.where(untouched > 0, np.maximum(50 - untouched, 33), np.maximum(100 - free * 100 // GPU // 10, 50))
    return np.where(state.whole[rows] == count, np.maximum(33 - count, count), in_use), gpu


def tightest(state: State, rows: Ints, ask: Ask) -> Ints:
    """The GPU with least room that is enough for a sharing pod."""
    if not ask.is_sharing:
        return np.zeros(len(rows), np.int64)
    free = state.gpu[rows]
    gpu: Ints = np.where(free >= ask.milli, free, HUGE).argmin(axis=1)
    return gpu


def _fullness(state: State, rows: Ints, ask: Ask) -> Ints:
    cpu, gpu = state.cpu[rows] - ask.cpu, state.free[rows] - ask.gpus * ask.milli
    return (100 * (1 - 0.5 * cpu / CORES - 0.5 * gpu / GPUS)).astype(np.int64)


PLAIN: Final = {
    "FirstFit": first_fit, "BestFit": best_fit, "WorstFit": worst_fit, "DotProd": dot_prod,
    "GPUClustering": gpu_clustering, "GPUPacking": gpu_packing, "Random": first_fit,
}
PRICED: Final = ("SPP", "Balanced")
NAMES: Final = (*PLAIN, "FGD", *PRICED, "Auto")


def prepare(
    name: str, nodes: Nodes, sample: Sequence[Pod], seed: int = 0, order: Ints | None = None, known: prices.Prices | None = None,
) -> Policy:
    """The policy of that name, any case, made for a cluster and the mix of pods it is asked for.

    The seed is for Random's draws and for Auto's rehearsal, the tie order for the latter; `known` spares the prices to be solved again.
    The policy's name is the one that decides.
    """
    spelling = {known.lower(): known for known in NAMES}.get(name.lower())
    if spelling is None:
        raise ValueError(f"no packing policy is called {name}; there are {', '.join(NAMES)}")
    if spelling == "Auto":
        ranks = place.order_nodes(nodes.names, "") if order is None else order
        return prepare(rehearse_all(nodes, sample, ranks, seed=seed).chosen, nodes, sample)
    if spelling == "FGD":
        return fragments.make_fgd(nodes, sample)
    if spelling == "SPP":
        return shadow.make_spp(nodes, sample, known)
    if spelling == "Balanced":
        return shadow.make_balanced(nodes, sample, known)
    return Policy(spelling, PLAIN[spelling], draw=np.random.default_rng(seed) if spelling == "Random" else None)


def rehearse_all(
    nodes: Nodes, sample: Sequence[Pod], order: Ints, *,
    in_force: str = rehearse.FIRST, seed: int = 0, may_go_on: Callable[[], bool] = lambda: True, known: prices.Prices | None = None,
) -> rehearse.Rehearsal:
    """Auto's choice, with what it was made from; `known` as for `prepare`."""
    solved = {0: known} if known else {}

    def prepare_on(name: str, stage: Nodes) -> Policy:
        """Candidates that go by prices go by the same ones."""
        if name in PRICED and not solved:
            with contextlib.suppress(lp.Unsolved):  # the candidate itself finds that out, and says why
                solved[0] = prices.solve(stage, sample)
        return prepare(name, stage, sample, known=solved.get(0))

    return rehearse.rehearse(nodes, sample, order, prepare_on, in_force=in_force, seed=seed, may_go_on=may_go_on)
