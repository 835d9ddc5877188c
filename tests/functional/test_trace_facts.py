"""The shipped traces, read whole and judged offline: what is known of them from elsewhere comes out here too."""

from __future__ import annotations

import numpy as np
import pytest

from fallow.model.units import HOUR, MINUTE
from fallow.sim import backtest, cast, packs, tuning
from fallow.sim.traces import openb
from fallow.sim.traces import published as traces
from fallow.sim.world import laws
from fallow.sim.world.lives import NONE, LifeSpan
from fallow.sim.world.nouns import SimState
from tests import builders
from tests.unit.sim import folder
from tests.unit.sim.traces import test_traces


def test_the_real_one_is_read_whole() -> None:
    trace = traces.read_gentd26(folder.find(traces.GENTD26))
    assert (len(trace.parts), trace.span.step, trace.report.rows) == (77, 57.0, 89698)
    assert trace.report.left_out["without a duty: not known"] == 2065
    assert (trace.percents != NONE).sum() == 89698 - 2065
    world = traces.to_world(trace)
    world.advance(HOUR)
    assert {one.state for one in world.workloads} <= {
        SimState.running, SimState.absent, SimState.finished, SimState.starting
    }
    assert (world.done[:, 30] == trace.percents[:, 30])[world.running].all()


def test_the_demand_of_helios_is_met_by_as_many_gpus() -> None:
    demands, left = traces.read_helios(folder.find(traces.HELIOS))
    assert (len(demands), left.rows) == (8, 8 * 44640)
    demand = max(demands, key=lambda one: one.total)
    parts = traces.demand_parts(demand, LifeSpan(0.0, MINUTE, 1440))
    asked = [
        sum(part.gpus for part in parts if test_traces.stands(part, minute * MINUTE)) for minute in range(0, 1440, 30)
    ]
    assert all(0 <= level - wanted < 8 for level, wanted in zip(asked, demand.wanted[:1440:30].tolist(), strict=True))


def _ratio(history: tuning.Silences, window: float, cost: float) -> float:
    """Against the best fixed window in hindsight, to the minute."""
    best = min(tuning.measure(history, minutes * MINUTE, cost * MINUTE).cost_gpu_hours for minutes in range(1, 12 * 60))
    return tuning.measure(history, window, cost * MINUTE).cost_gpu_hours / best


@pytest.mark.parametrize(("cost", "thirty", "sixty"), [(30.0, 1.05, 1.005), (60.0, 1.20, 1.01)])
def test_on_the_real_trace_it_costs_no_more_than_two_percent_over_hindsight(
    cost: float, thirty: float, sixty: float
) -> None:
    trace = traces.read_gentd26(folder.find(traces.GENTD26))
    history = tuning.find_silences(trace.parts, trace.percents, trace.span.step)
    window = tuning.recommend(history, trace.parts, cost * MINUTE).all.window
    assert _ratio(history, window, cost) <= 1.02
    assert _ratio(history, 30 * MINUTE, cost) == pytest.approx(thirty, abs=0.006)
    assert _ratio(history, 60 * MINUTE, cost) == pytest.approx(sixty, abs=0.002)


@pytest.mark.parametrize(
    ("cost", "mean", "most"), [(15.0, 1.01, 1.02), (30.0, 1.01, 1.02), (60.0, 1.01, 1.02), (120.0, 1.015, 1.04)]
)
def test_chosen_on_half_of_the_pods_it_holds_on_the_other_half(cost: float, mean: float, most: float) -> None:
    trace = traces.read_gentd26(folder.find(traces.GENTD26))
    history = tuning.find_silences(trace.parts, trace.percents, trace.span.step)
    rng, ratios = np.random.default_rng(5), []
    for _ in range(8):
        half = np.isin(history.whose, rng.permutation(len(trace.parts))[: len(trace.parts) // 2])
        window = tuning.choose(history.take(half), cost * MINUTE)
        ratios.append(_ratio(history.take(~half), window, cost))
    assert np.mean(ratios) <= mean
    assert max(ratios) <= most


@pytest.mark.parametrize("seed", [1, 2])
def test_no_law_is_broken_in_a_day_of_real_lives(seed: int) -> None:
    real = traces.read_gentd26(folder.find(traces.GENTD26))
    world = cast.make_world(seed=seed, nodes=6, hours=24, real=real)
    try:
        result = backtest.run(world, builders.mandate(builders.rule(notice=builders.notice())))
    except laws.LawBroken as broken:
        pytest.fail(str(broken))
    assert result.total.pauses > 0
    assert tuning.of_world(world).seconds.max() > 1800


def test_the_real_ones_are_read_whole() -> None:
    root = folder.find("openb/openb_pod_list_default.csv.gz").parents[1]
    trace = openb.read(root, "default")
    assert (len(trace.nodes), sum(node.gpus for node in trace.nodes.values()), len(trace.pods)) == (1213, 6212, 8152)
    assert sorted(trace.orders) == [42, 43, 44, 45, 46]
    assert not any(any(report.left_out.values()) for report in trace.reports.values())
    run = trace.arrive(42)
    assert sum(pod.gpus * pod.milli for pod in run.pods) / 6_212_000 == pytest.approx(1.3, abs=0.001)
    curves, _ = openb.read_published(root)
    assert curves["default", "FGD", 42][100] == 95.14


def test_the_cluster_of_openb_stands() -> None:
    root = folder.find("openb/openb_pod_list_default.csv.gz").parents[1]
    trace = openb.read(root, "default")
    world = cast.make_openb_world(trace.nodes.values(), trace.pods.values(), hours=1)
    assert len(world.workloads) == 7064
    assert sum(one.state is SimState.running for one in world.workloads) > 6000
    models = {"A10", "G2", "G3", "P100", "T4", "V100-16GB", "V100-32GB"}
    assert {node.model for node in world.nodes.values()} == models


def test_a_published_run_comes_out_as_it_was_published() -> None:
    """One of the real ones; all of them are in `make bench`."""
    root = folder.find("openb/published_allocation_curves.csv.gz").parents[1]
    ours = packs.play(packs.of_trace(openb.read(root, "default"), 42), "BestFit", 42, cpu=lambda: 0.0).curve
    published = openb.read_published(root)[0]["default", "BestFit", 42]
    assert max(abs(ours.at(percent) - published[percent]) for percent in range(5, 131)) <= 0.0101
