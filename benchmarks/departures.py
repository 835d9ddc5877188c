"""Packing where pods also leave: the rules side by side, the cluster asked for more than it has, pods of openb.

    python -m benchmarks departures

Every trace that tells when its pods came and went; pods drawn from its list stay for as long as they did in life
(`flows.draw`). What counts is the share of GPUs allocated, as arrivals see it, once half of them have come. Prices,
popularity and rehearsals come from the pods that stand there at the beginning: those are what a live cluster shows of
itself. Auto rehearses once per trace, on its first seed.
"""

import multiprocessing
import os
import sys
from concurrent import futures

import msgspec
import numpy as np

from benchmarks import figures, flows, packing
from fallow.decide import packing as engine
from fallow.sim.traces import openb, published

LOAD = 1.15
ARRIVALS = 10_000
SEEDS = (42, 43)
RULES = ("FGD", "SPP", "Balanced")
NOISE = 0.25  # points


class Found(msgspec.Struct):
    """Means over the seeds."""

    trace: str
    means: dict[str, float]
    auto: str


def play(name: str) -> Found | None:
    """None where the trace knows no times."""
    shares: dict[str, list[float]] = {rule: [] for rule in RULES}
    auto = ""
    for seed in SEEDS:
        scene = packing.scene_of(name, seed)
        try:
            flow = flows.draw(packing.read(name), seed, LOAD, ARRIVALS)
        except published.TraceError:
            return None
        sample = flow.pods[: flow.begun]
        known = engine.solve_prices(scene.nodes, sample)
        auto = auto or engine.rehearse(scene.nodes, sample, scene.order, known=known).chosen
        for rule, found in shares.items():
            policy = engine.prepare(rule, scene.nodes, sample, known=known)
            curve = engine.replay(scene.nodes, flow.pods, policy, scene.order, departures=flow.departures)
            found.append(100 * float(np.mean(curve.allocated[flow.begun + ARRIVALS // 2 :])) / scene.nodes.capacity)
    return Found(name, {rule: packing.mean(found) for rule, found in shares.items()}, auto)


def main() -> None:
    names = openb.find_names(packing.FOLDER)
    if not names:
        print("  skipped: no traces of openb in FALLOW_TRACES", file=sys.stderr)
        return
    with futures.ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        found = [each for each in pool.map(play, names) if each]
    what = f"({LOAD:.0%} asked for, mean of seeds {SEEDS})"
    print(f"         {'trace':12}" + "".join(f"{rule:>10}" for rule in RULES) + f"  Auto   {what}")
    for each in found:
        print(f"         {each.trace:12}" + "".join(f"{each.means[rule]:10.2f}" for rule in RULES) + f"  {each.auto}")
    for rule in ("FGD", "SPP"):
        lead = {each.trace: each.means["Balanced"] - each.means[rule] for each in found}
        worst = min(lead, key=lambda name: lead[name])
        mean = f"{packing.average(lead):+.2f} in the mean"
        print(f"         Balanced against {rule}: {lead[worst]:+.2f} at worst ({worst}), {mean}")
    lag = {each.trace: max(each.means.values()) - each.means.get(each.auto, 0.0) for each in found}
    worst = max(lag, key=lambda name: lag[name])
    below = f"{lag[worst]:.2f} below the best of {', '.join(RULES)} at worst ({worst})"
    shown = f"{below}, {packing.average(lag):.2f} in the mean"
    figures.show("Auto, with departures", shown, f"{NOISE} on each of {len(found)} traces", lag[worst] <= NOISE)


if __name__ == "__main__":
    main()
