"""Metrics of what GPUs cost: as the ledger has it, bounded, and in no currency that it is not in."""

import pytest
from prometheus_client import parser
from tests import cost_scenes
from tests.builders import NOW
from tests.cost_scenes import TODAY

from fallow import telemetry
from fallow.account import cost_gauges
from fallow.model.cost import DAY, HOUR, UNIT, WHOLE, BookedSaving, CostBatch, SavingKind, SpendState

AT = int(NOW)


def samples(metrics: telemetry.Telemetry) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parser.text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def running():
    yield from cost_scenes.held("GPU-0", TODAY, TODAY + HOUR, cost_scenes.key("red", "a"), use=0.5, is_open=True,
                                energy=3_600_000)
    yield from cost_scenes.held("GPU-1", TODAY, TODAY + HOUR, cost_scenes.key("blue", "b"), SpendState.held_idle,
                                is_open=True, ack="ack-9", share=WHOLE // 2, slot="0")
    yield from cost_scenes.free("GPU-1", TODAY, TODAY + HOUR, is_open=True, share=WHOLE // 2, slot="1")
    yield from cost_scenes.held("GPU-2", TODAY, TODAY + HOUR, cost_scenes.key("blue", "odd", node="node-2"), rate=None,
                                is_open=True)


async def read(*, metrics=None, most_pods=5000, at=AT, currency="USD", more=(), savings=(), gauges=None):
    metrics = metrics or telemetry.Telemetry()
    made = gauges or cost_gauges.CostGauges(metrics, most_pods=most_pods)
    batch = {"savings": tuple(savings)} if savings else {}
    async with cost_scenes.opened([*running(), *more], at=at, currency=currency, **batch) as ledger:
        await made.read(ledger, at)
    return samples(metrics)


async def test_they_say_what_the_ledger_has():
    found = await read(more=cost_scenes.example())
    hours = (AT - TODAY) / HOUR
    assert found["gpu_autoscaler_total_cost_usd"][()] == pytest.approx(786.48 + 2 * 4.09625 * hours)
    assert found["gpu_autoscaler_hourly_cost_rate_usd"][()] == pytest.approx(2 * 4.09625)
    assert found["gpu_autoscaler_idle_cost_usd"]["held_idle", "red"] == pytest.approx(65.54)
    assert found["gpu_autoscaler_idle_cost_usd"]["unallocated", "__unallocated__"] == pytest.approx(
        450.5875 + 4.09625 / 2 * hours)
    assert found["gpu_autoscaler_namespace_cost_usd"]["green",] == pytest.approx(73.7325)
    assert found["gpu_autoscaler_dimension_cost_usd"]["model", "A100-40GB"] == pytest.approx(
        786.48 - 450.5875 + 1.5 * 4.09625 * hours)
    pods = list(found["gpu_autoscaler_pod_cost_usd"])
    assert {"red", "red-a", "A100-40GB", "on-demand"} in list(map(set, pods))
    assert all("red-train" not in labels for labels in pods)  # it does not run any more
    assert found["gpu_autoscaler_unpriced_gpu_hours"][()] == pytest.approx(hours)
    assert found["gpu_autoscaler_ledger_lag_seconds"][()] == 0.0
    assert found["gpu_autoscaler_ack_cost_usd"][()] == pytest.approx(4.09625 / 2 * hours)


async def test_opencost_finds_its_nodes_and_containers():
    found = await read()
    [gpu] = found["node_gpu_hourly_cost"].values()
    assert gpu == pytest.approx(4.09625)
    assert sorted(found["node_gpu_count"].values()) == [1.0, 2.0]
    assert list(found["node_total_hourly_cost"].values()) == [pytest.approx(2 * 4.09625)]
    allocated = {labels[-1]: share for labels, share in found["container_gpu_allocation"].items()}
    assert allocated == {"red-a": 1.0, "blue-b": 0.5, "blue-odd": 1.0}


async def test_what_is_not_known_is_not_there():
    metrics = telemetry.Telemetry()
    cost_gauges.CostGauges(metrics)
    assert [name for name in samples(metrics) if "cost" in name or "savings" in name] == []


async def test_another_currency_is_never_called_dollars():
    found = await read(currency="EUR")
    assert found["gpu_autoscaler_hourly_cost_rate_cost"]["EUR",] == pytest.approx(2 * 4.09625)
    assert found["gpu_autoscaler_total_cost"]["EUR",] > 0
    assert [name for name in found if name.endswith("_usd")] == []


async def test_series_are_bounded_and_lose_no_money():
    many = [one for number in range(30) for one in cost_scenes.held(
        f"GPU-{100 + number}", TODAY, TODAY + HOUR, cost_scenes.key("red", f"x{number}"), is_open=True)]
    free, bound = await read(more=many), await read(more=many, most_pods=5)
    pods, few = free["gpu_autoscaler_pod_cost_usd"], bound["gpu_autoscaler_pod_cost_usd"]
    assert (len(pods), len(few)) == (32, 6)  # the one without a price has no cost
    assert sum(few.values()) == pytest.approx(sum(pods.values()))
    assert len(bound["container_gpu_allocation"]) == 6
    assert len(free["gpu_autoscaler_workload_cost_usd"]) == 20


async def test_savings_are_those_that_were_realised():
    def row(number, kind, saved, **said):
        return BookedSaving(id=str(number), at=TODAY, namespace="red", kind=kind, saved=saved * UNIT,
                            baseline=5 * UNIT, actual=0, details='{"gpuHours": 2.0}', **said)

    rows = [row(1, SavingKind.waste, 5, realised=True), row(2, SavingKind.waste, 0), row(3, SavingKind.spot, 2,
            realised=True), row(4, SavingKind.waste, 9, realised=True, is_dry_run=True)]
    found = await read(savings=rows)
    assert found["gpu_autoscaler_total_savings_usd"][()] == 7.0
    assert found["gpu_autoscaler_sharing_savings_usd"][()] == 0.0
    assert "gpu_autoscaler_autoscaling_savings_usd" not in found, "nobody measures it: 0 would be a figure"
    assert (found["gpu_autoscaler_waste_savings_usd"][()], found["gpu_autoscaler_spot_savings_usd"][()]) == (5.0, 2.0)
    assert found["gpu_autoscaler_freed_gpu_hours"][()] == 2.0


async def test_energy_is_counted_from_when_we_started_and_never_falls():
    metrics = telemetry.Telemetry()
    gauges = cost_gauges.CostGauges(metrics)
    async with cost_scenes.opened(running(), at=TODAY) as ledger:
        await gauges.read(ledger, TODAY)
        assert "gpu_autoscaler_energy_joules_total" not in samples(metrics)
        await ledger.write(CostBatch(at=TODAY + HOUR), 1)
        await gauges.read(ledger, TODAY + HOUR)
        assert samples(metrics)["gpu_autoscaler_energy_joules_total"]["red",] == pytest.approx(3600)
        await gauges.read(ledger, TODAY + HOUR)
        assert samples(metrics)["gpu_autoscaler_energy_joules_total"]["red",] == pytest.approx(3600)


async def test_a_month_is_projected_when_it_is_old_enough():
    found = await read(more=cost_scenes.example())
    spent = 786.48 + 2 * 4.09625 * (AT - TODAY) / HOUR
    assert found["gpu_autoscaler_month_projected_cost_usd"][()] == pytest.approx(
        spent * 30 * DAY / (AT - (TODAY - 14 * DAY)), rel=1e-6)
