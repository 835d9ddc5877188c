"""GPUs by the kind of work on them: only what is a pod's own counts, and what is not known has no series."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from tests import builders

from fallow import names, telemetry
from fallow.account import work_gauges
from fallow.model import cluster
from fallow.model.cost import NodeRates
from fallow.model.seen import Known, Unseen
from fallow.model.usage import Signal


def lines(metrics: telemetry.Telemetry, name: str) -> list[str]:
    return [line for line in metrics.text().decode().splitlines() if line.startswith(name)]


def indexed(seen: cluster.Snapshot) -> cluster.Snapshot:
    """With the GPUs' places on their nodes."""
    ((window, use),) = seen.evidence.usage.items()
    numbered = msgspec.structs.replace(use, index=tuple(str(row) for row in range(use.rows)))
    return msgspec.structs.replace(seen, evidence=msgspec.structs.replace(seen.evidence, usage={window: numbered}))


def enter(world: builders.World, **said: object) -> telemetry.Telemetry:
    metrics = telemetry.Telemetry()
    gauges = work_gauges.WorkGauges(metrics)
    gauges.enter(indexed(world.snapshot(**said)))
    return metrics


def test_how_busy_is_told_of_own_processes_in_percent_and_never_of_a_whole_device() -> None:
    world = builders.World()
    own = builders.Gpu(signals={Signal.process_sm: 0.25})
    world.workload("ml/book", gpus=[own], labels={names.WORKLOAD_TYPE: "notebook"})
    world.workload("ml/device", gpus=[builders.busy()])
    assert lines(enter(world), "gpu_utilization_by_workload_type{") == [
        'gpu_utilization_by_workload_type{gpu_id="0",node="node-1",workload_type="notebook"} 25.0'
    ]


def test_who_waits_is_counted_by_class_and_priority() -> None:
    world = builders.World()
    waits = {"node": "", "phase": "Pending", "started_at": None}
    world.workload("ml/llm", replicas=2, gpus=[builders.unseen()], pod={**waits, "priority_class": "high"},
                   labels={names.WORKLOAD_TYPE: "serving"})
    world.workload("ml/run", gpus=[builders.unseen()], pod=waits)
    world.workload("ml/runs")
    assert sorted(lines(enter(world), "gpu_job_queue_length{")) == [
        'gpu_job_queue_length{priority="high",workload_type="inference"} 2.0',
        'gpu_job_queue_length{priority="none",workload_type="batch"} 1.0',
    ]


@pytest.mark.parametrize(("rates", "cost"), [
    (Known(NodeRates("EUR", {"node-1": Decimal("3.50")})), ["3.5"]), (Known(NodeRates("EUR")), []),
    (Unseen("the books are shut"), []),
], ids=["priced", "no price", "unseen"])
def test_an_hour_costs_what_the_book_says_and_without_a_price_nothing_is_said(rates: object, cost: list[str]) -> None:
    world = builders.World()
    world.node("node-1", labels={names.INSTANCE_TYPE[0]: "p4d.24xlarge"})
    world.workload("ml/run", replicas=2)
    begin = 'cost_per_gpu_hour_by_workload{instance_type="p4d.24xlarge",workload_type="batch"} '
    assert lines(enter(world, rates=rates), "cost_per_gpu_hour_by_workload{") == [begin + each for each in cost]


def test_after_a_look_that_failed_nothing_old_is_told() -> None:
    metrics, world = telemetry.Telemetry(), builders.World()
    world.workload("ml/run", gpus=[builders.unseen()], pod={"node": "", "phase": "Pending"})
    gauges = work_gauges.WorkGauges(metrics)
    gauges.enter(world.snapshot())
    assert lines(metrics, "gpu_job_queue_length{")
    gauges.forget()
    assert not lines(metrics, "gpu_job_queue_length{")
