"""Auto: no rule wins on every mix of pods, and trying is cheap. So the mix is rehearsed on an empty copy of a cluster.

In: nodes, a sample of pods, the tie order, the policy in force. Out: a Rehearsal: how full each candidate got the GPUs,
who decides from now on, and a sentence that says why.
Several arrival orders are drawn from the sample, the same for every candidate. The one in force stays unless clearly
beaten, and also where the rehearsal was not finished (`may_go_on` is asked before every play; only the caller has a
clock).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide.packing.curve import Curve, add_up, replay
from fallow.decide.packing.packer import PackingPolicy
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod

CANDIDATES: Final = ("Balanced", "SPP", "FGD", "FirstFit")
FIRST: Final = "Balanced"  # in force until something was rehearsed
PLAYS: Final = 5  # with 3, one in ten mixes that are short of cores got a candidate half a point below the best
ENOUGH_TO_STAY: Final = 4  # plays after which the one in force, if it leads, will not be beaten by the margin
MARGIN: Final = 0.03  # points of GPU % by which the one in force must be beaten
HOPELESS: Final = 0.8  # points behind the best, all on the same arrivals: not played again
FEW: Final = 4  # GPUs: on a small cluster a few of them are many points, and luck
ENOUGH: Final = 1.01  # of the cluster's GPUs: candidates are compared where 100 % arrived
MANY_NODES: Final = 1_500  # above it a smaller cluster with the same groups is played on, to stay within a minute
FEWER_NODES: Final = 1_200  # on 600 the order of close candidates turned: FGD and Balanced on openb's cpu300


class Rehearsal(msgspec.Struct, frozen=True):
    chosen: str
    shares: dict[str, float]  # mean allocated GPU % at 100 % arrived, by candidate
    because: str

    @property
    def margins(self) -> dict[str, float | None]:
        """Points by which the chosen one is ahead of each, the best first; None where it was not played itself."""
        best, ordered = self.shares.get(self.chosen), sorted(self.shares.items(), key=lambda item: -item[1])
        return {name: None if best is None else best - share for name, share in ordered}


def rehearse(
    nodes: Nodes, sample: Sequence[PackingPod], order: Ints, prepare: Callable[[str, Nodes], PackingPolicy], *,
    in_force: str = FIRST, seed: int = 0, may_go_on: Callable[[], bool] = lambda: True,
) -> Rehearsal:
    """`prepare` makes a candidate for the nodes that are played on."""
    stage, ranks = shrink(nodes, order)
    draw = np.random.default_rng(seed)
    sequences = [seq for _ in range(PLAYS) if (seq := draw_arrivals(stage, sample, draw))]
    if not sequences:
        return Rehearsal(in_force, {}, f"{in_force} stays: there is no GPU, or no pod in the sample that wants one")
    prepared = {name: prepare(name, stage) for name in CANDIDATES}
    racing = {name: policy for name, policy in prepared.items() if not policy.fallback}  # else not itself
    results: dict[str, list[float]] = {name: [] for name in racing}
    hopeless = max(HOPELESS, 100 * FEW * GPU / stage.capacity)
    for sequence in sequences:
        for name, policy in racing.items():
            if not may_go_on():
                why = f"{in_force} stays: the rehearsal was not finished in its time"
                return Rehearsal(in_force, _average(results), why)
            results[name].append(_share(replay(stage, sequence, policy, ranks)))
        shares = _average(results)
        best = max(shares.values())
        racing = {name: policy for name, policy in racing.items() if shares[name] >= best - hopeless}
        leads = len(results.get(in_force, ())) == ENOUGH_TO_STAY and shares[in_force] == best
        if len(racing) == 1 or leads:
            break
    return choose(_average(results), in_force)


def _share(played: Curve) -> float:
    """At 100 % arrived; on a small cluster one pod may step over that point, and then the end is as near."""
    found = played.at(100)
    return float(100 * played.allocated[-1] / played.capacity) if found is None else found


def _average(results: dict[str, list[float]]) -> dict[str, float]:
    return {name: float(np.mean(played)) for name, played in results.items() if played}


def choose(shares: dict[str, float], in_force: str) -> Rehearsal:
    best = max(shares, key=lambda name: shares[name])
    listed = ", ".join(f"{name} {share:.2f}" for name, share in shares.items()) + " % of GPUs allocated"
    if in_force not in shares:
        return Rehearsal(best, shares, f"{best} is best: {listed}; {in_force} could not be played")
    lead = shares[best] - shares[in_force]
    if best != in_force and lead > MARGIN:
        return Rehearsal(best, shares, f"{best} beats {in_force} by {lead:.2f} points: {listed}")
    return Rehearsal(in_force, shares, f"{in_force} stays, nothing beats it by more than {MARGIN} points: {listed}")


def draw_arrivals(nodes: Nodes, sample: Sequence[PackingPod], draw: np.random.Generator) -> list[PackingPod]:
    """The sample in any order, again and again, until all GPUs were asked for; none if they never would be.

    Every round has each pod once: drawn at random, two plays would differ more by the cores that happen to be asked for
    than by the candidates.
    """
    if not nodes.capacity or not any(pod.gpu_milli for pod in sample):
        return []
    arrivals: list[PackingPod] = []
    left = ENOUGH * nodes.capacity
    while left > 0:
        shuffled = [sample[i] for i in draw.permutation(len(sample))]
        arrivals += shuffled[: int(np.searchsorted(add_up(shuffled), left)) + 1]
        left = ENOUGH * nodes.capacity - sum(pod.gpu_milli for pod in arrivals)
    return arrivals


def shrink(nodes: Nodes, order: Ints) -> tuple[Nodes, Ints]:
    """A large cluster made smaller: of every group the same share of its nodes, in tie order, at least one."""
    if len(nodes) <= MANY_NODES:
        return nodes, order
    number = np.empty(len(nodes), np.int64)  # of a node within its group
    seen = np.zeros(len(nodes.groups), np.int64)
    for node in np.argsort(order).tolist():
        number[node] = seen[nodes.group[node]]
        seen[nodes.group[node]] += 1
    kept = np.flatnonzero(number < np.ceil(seen * (FEWER_NODES / len(nodes)))[nodes.group])
    return Nodes([nodes.rows[i] for i in kept]), np.argsort(np.argsort(order[kept]))
