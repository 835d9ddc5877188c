"""The dashboard of costs on a real Prometheus that has our metrics: every panel has something to show, and the same in
dollars as in another currency."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import parser

from fallow import telemetry
from fallow.account import cost_gauges
from tests import ROOT, cost_scenes
from tests.cost_scenes import TODAY
from tests.real import history
from tests.unit.account import test_cost_gauges as gauges

BOARD = json.loads((ROOT / "dashboards" / "gpu-cost.json").read_text())
QUERIES = {(panel["title"], at): target["expr"] for panel in BOARD["panels"]
           for at, target in enumerate(panel.get("targets", ()))}
AT = TODAY + 12 * 3600


async def measure(currency: str) -> telemetry.Telemetry:
    """Of a ledger with a day in it, and a budget."""
    metrics = telemetry.Telemetry()
    made = cost_gauges.CostGauges(metrics)
    async with cost_scenes.opened(
        [*gauges.running(), *cost_scenes.example()], at=AT, currency=currency
    ) as ledger:
        await made.read(ledger, float(TODAY - 3600))  # energy counts from here
        metrics.text()
        await made.read(ledger, float(AT))
    metrics.replace("gpu_autoscaler_budget_percentage", {("team",): 70.0})
    for name in ("spend", "projected"):
        metrics.replace_money(f"gpu_autoscaler_budget_{name}", currency, {("team",): 700.0})
    return metrics


async def ask(prometheus: history.PrometheusWorld, currency: str) -> dict[tuple[str, int], Any]:
    text = (await measure(currency)).text().decode()
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("gpu_autoscaler_") and not sample.name.endswith("_bucket"):
                prometheus.series(sample.name, sample.labels, constant=sample.value)
    await prometheus.start()
    found = {key: await prometheus.query(query) for key, query in QUERIES.items()}
    await prometheus.stop()
    return {
        key: sorted((sorted(one["metric"].items()), round(float(one["value"][1]), 6)) for one in rows)
        for key, rows in found.items()
    }


@pytest.mark.parametrize("currency", ["USD", "EUR"])
async def test_every_panel_has_something_to_show(prometheus: history.PrometheusWorld, currency: str) -> None:
    found = await ask(prometheus, currency)
    empty = [title for title, rows in found.items() if not rows]
    assert empty == [("Saved this month, by type", 3)], "nothing measures scaling"
    assert not [rows for rows in found.values() if any("currency" in dict(labels) for labels, _ in rows)]
    [(_, total)] = found["Month to date", 0]
    assert total == pytest.approx(786.48 + 2 * 4.09625 * 12, abs=0.01)
