"""What a CostAttribution shows, of the day of docs/cost-model.md and of a month of one pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests import cost_scenes
from tests.cost_scenes import DAY, HOUR, TODAY, YESTERDAY

from fallow.account import attribution_status, ledger
from fallow.account.attribution_status import AttributionAnswers, ScopePods
from fallow.doors.answers import cost_books
from fallow.model.cost import UNIT, CostBatch, Interval
from fallow.model.policies import attribution_crd


async def show(intervals: Sequence[Interval], now: float, **spec: Any) -> tuple[dict[str, Any], Any]:
    """Its status, and what the API says of the same."""
    of = attribution_crd.parse({"metadata": {"name": "all", "uid": "u", "generation": 1}, "spec": spec})
    opened = ledger.on_file(None)
    await opened.open()
    await opened.write(CostBatch(at=int(now), intervals=tuple(intervals)), 1)
    asked = attribution_status.ask(of, (), now)
    found = AttributionAnswers(
        groups=await opened.sums(asked.groups), hours=await opened.sums(asked.hours),
        days=await opened.sums(asked.days),
        parts={field: await opened.sums(query) for field, query in asked.parts.items()},
    )
    told = await cost_books.attribute(
        cost_books.CostBooks(ledger=opened),
        cost_books.AttributionAsk(name="all", by=of.track_by, where=(), seconds=of.period), now,
    )
    await opened.close()
    return attribution_status.make_status(of, found, ScopePods(1, 1), now), told


async def test_the_day_of_the_cost_model_by_namespace_as_the_api_tells_it() -> None:
    status, told = await show(cost_scenes.example(), TODAY, reportingPeriod="24h")
    rows = {each["key"]: (each["cost"], each["useCost"], each["idleCost"]) for each in status["groups"]}
    assert rows["red"] == ("163.85", "49.16", "114.70")  # 114.695, half to even
    assert rows["green"] == ("73.73", "0.00", "0.00")  # nobody measured it
    assert rows["__unallocated__"][1:] == ("0.00", "450.59")
    assert (status["totalCost"], status["gpuHours"], status["costPerGPUHour"]) == ("786.48", 192.0, "4.10")
    assert {each.key: (each.cost, each.idle_cost) for each in told.groups} == {
        key: (pytest.approx(float(row[0]), abs=0.02), pytest.approx(float(row[2]), abs=0.02))
        for key, row in rows.items()
    }
    assert (told.total_cost, told.gpu_hours) == (pytest.approx(786.48, abs=0.005), 192.0)


async def test_an_hour_a_day_and_a_month_are_as_long_as_they_say() -> None:
    """At one unit an hour, money counts hours."""
    now = TODAY + 12 * HOUR + 40 * 60
    pod = cost_scenes.held("GPU-0", YESTERDAY - 40 * DAY, now, cost_scenes.key("red", "train"), rate=UNIT)
    status, _ = await show(list(pod), now, reportingPeriod="2h")
    costs = {name: status[name] for name in ("totalCost", "hourlyCost", "dailyCost", "monthlyCost")}
    assert costs == {
        "totalCost": "2.00", "hourlyCost": "1.00", "dailyCost": "24.00", "monthlyCost": f"{29 * 24 + 12.67:.2f}",
    }
    assert [each["cost"] for each in status["historicalData"]] == ["24.00"] * 29 + ["12.67"]
    assert sum(round(float(each) * 100) for each in status["detailedBreakdown"]["byHour"].values()) == 2400
