"""What a backtest costs, and what its recommendation is worth, on the real trace GenTD26 and on a pretend day of a
large cluster.

    python -m benchmarks backtest

The trace is read from the folder FALLOW_TRACES; without it its figures are skipped, and that is said.
"""

import functools
import multiprocessing
import os
import pathlib
import resource
import sys
import time
from concurrent import futures

import numpy as np
from tests import builders

from benchmarks import figures
from fallow.model.policies import idle
from fallow.model.units import MINUTE
from fallow.sim import backtest, cast, tuning
from fallow.sim.traces import published

TRACE = pathlib.Path(os.environ.get("FALLOW_TRACES") or "no folder", published.GENTD26)


def mandate(*, notice: bool) -> idle.Mandate:
    rule = builders.rule(notice=builders.notice() if notice else None)
    return builders.mandate(rule, brakes=idle.Brakes())


def replay() -> None:
    began = time.perf_counter()
    trace = read_trace()
    read = time.perf_counter() - began
    began = time.perf_counter()
    # Forked, so that the trace that was read need not be written down for other processes.
    with futures.ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        results = list(pool.map(_replay, tuning.WINDOWS))
    took = time.perf_counter() - began
    measured = f"{took:.1f} s on {os.cpu_count()} processors, and {read:.1f} s to read it"
    figures.show(f"GenTD26, {len(trace.parts)} pods, {len(results)} windows", measured, "5 s", took <= 5)


@functools.cache
def read_trace() -> published.Trace:
    return published.read_gentd26(TRACE)


def _replay(window: float) -> backtest.BacktestResult:
    return backtest.run(published.to_world(read_trace()), backtest.with_window(mandate(notice=False), window))


def recommend(cost: float) -> None:
    trace = read_trace()
    history = tuning.find_silences(trace.parts, trace.percents, trace.span.step)
    window = tuning.recommend(history, trace.parts, cost * MINUTE).all.window
    ratio, half, whole = (_ratio(history, each, cost) for each in (window, 30 * MINUTE, 60 * MINUTE))
    measured = f"{ratio:.4f} times the best in hindsight at {window / MINUTE:g} minutes"
    measured += f" (30 minutes {half:.3f}, 60 minutes {whole:.3f})"
    figures.show(f"recommended window, a resume at {cost:g} GPU-minutes", measured, "1.02", ratio <= 1.02)
    rng, ratios = np.random.default_rng(0), []
    for _ in range(10):
        some = np.isin(history.whose, rng.permutation(len(trace.parts))[: len(trace.parts) // 2])
        ratios.append(_ratio(history.take(~some), tuning.choose(history.take(some), cost * MINUTE), cost))
    measured = f"{np.mean(ratios):.4f} in the mean of ten, {max(ratios):.4f} at worst"
    figures.show("  chosen on half of the pods, judged on the other", measured, "1.02", max(ratios) <= 1.02)


def _ratio(history: tuning.Silences, window: float, cost: float) -> float:
    tried = (tuning.measure(history, minutes * MINUTE, cost * MINUTE) for minutes in range(1, 12 * 60))
    best = min(point.cost_gpu_hours for point in tried)
    return tuning.measure(history, window, cost * MINUTE).cost_gpu_hours / best


def live_a_day() -> None:
    before = time.process_time()
    world = cast.make_world(seed=1, nodes=1000, workloads=3000)
    result = backtest.run(world, mandate(notice=True))
    took, peak = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{result.total.workloads} workloads, {result.ticks} looks, {result.total.pauses} pauses"
    measured, is_met = f"{took:.0f} CPU s, {peak:.0f} MB", took <= 60 and peak <= 500
    figures.show(f"a day of 1,000 nodes, 8,000 GPUs, {what}", measured, "60 CPU s, 500 MB", is_met)


def main() -> None:
    if TRACE.is_file():
        replay()
        recommend(30.0)
        recommend(60.0)
    else:
        print(f"  skipped: no {published.GENTD26} in FALLOW_TRACES", file=sys.stderr)
    live_a_day()


if __name__ == "__main__":
    main()
