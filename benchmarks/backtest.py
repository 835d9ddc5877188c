"""What a backtest costs, and what its recommendation is worth, on the real trace GenTD26 and on a pretend day of a
large cluster.

    python -m benchmarks backtest

The trace is read from the folder FALLOW_TRACES (default ../shared/data); without it its figures are skipped, and that
is said.
"""

import os
import pathlib
import resource
import sys
import time

import numpy as np
from tests import builders

from benchmarks import figures
from fallow.model.policies import idle
from fallow.model.units import MINUTE
from fallow.sim import backtest, cast, tuning
from fallow.sim.traces import gentd26

FOLDER = pathlib.Path(os.environ.get("FALLOW_TRACES") or pathlib.Path(__file__).parents[1].parent / "shared" / "data")


def mandate(*, notice: bool) -> idle.Mandate:
    rule = builders.rule(notice=builders.notice() if notice else None)
    return builders.mandate(rule, brakes=idle.Brakes())


def replay() -> None:
    began = time.perf_counter()
    trace = gentd26.read_gentd26(FOLDER / gentd26.GENTD26)
    read = time.perf_counter() - began
    mandates = {f"{window / MINUTE:g}m": backtest.with_window(mandate(notice=False), window) for window in tuning.WINDOWS}
    began = time.perf_counter()
    results = backtest.compare(lambda: gentd26.to_world(trace), mandates)
    took = time.perf_counter() - began
    told = f"{took:.1f} s on {os.cpu_count()} processors, and {read:.1f} s to read it"
    figures.show(f"GenTD26, {len(trace.parts)} pods, {len(results)} windows", told, "5 s", took <= 5)


def recommend(cost: float) -> None:
    trace = gentd26.read_gentd26(FOLDER / gentd26.GENTD26)
    history = tuning.of_trace(trace)
    window = tuning.recommend(history, trace.parts, cost * MINUTE).all.window
    told = f"{_ratio(history, window, cost):.4f} times the best in hindsight at {window / MINUTE:g} minutes"
    told += f" (30 minutes {_ratio(history, 30 * MINUTE, cost):.3f}, 60 minutes {_ratio(history, 60 * MINUTE, cost):.3f})"
    figures.show(f"recommended window, a resume at {cost:g} GPU-minutes", told, "1.02", _ratio(history, window, cost) <= 1.02)
    rng, ratios = np.random.default_rng(0), []
    for _ in range(10):
        half = np.isin(history.whose, rng.permutation(len(trace.parts))[: len(trace.parts) // 2])
        ratios.append(_ratio(history.take(~half), tuning.choose(history.take(half), cost * MINUTE), cost))
    told = f"{np.mean(ratios):.4f} in the mean of ten, {max(ratios):.4f} at worst"
    figures.show("  chosen on half of the pods, judged on the other", told, "1.02", max(ratios) <= 1.02)


def _ratio(history: tuning.Silences, window: float, cost: float) -> float:
    best = min(tuning.measure(history, minutes * MINUTE, cost * MINUTE).cost_gpu_hours for minutes in range(1, 12 * 60))
    return tuning.measure(history, window, cost * MINUTE).cost_gpu_hours / best


def live_a_day() -> None:
    before = time.process_time()
    world = cast.make_world(seed=1, nodes=1000, workloads=3000)
    result = backtest.run(world, mandate(notice=True))
    took, peak = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"a day of 1,000 nodes, 8,000 GPUs, {result.total.workloads} workloads, {result.ticks} looks, {result.total.pauses} pauses"
    figures.show(what, f"{took:.0f} CPU s, {peak:.0f} MB", "60 CPU s, 500 MB", took <= 60 and peak <= 500)


def main() -> None:
    if (FOLDER / gentd26.GENTD26).is_file():
        replay()
        recommend(30.0)
        recommend(60.0)
    else:
        print(f"  skipped: no {gentd26.GENTD26} in FALLOW_TRACES", file=sys.stderr)
    live_a_day()


if __name__ == "__main__":
    main()
