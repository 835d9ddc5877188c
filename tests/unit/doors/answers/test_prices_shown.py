"""What GPUs cost where they are shown: by the price book where books are kept, at list price where nobody keeps any,
and not known where the book does not know; never a list price beside a booked one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World

from fallow.decide.idle import plan as brain
from fallow.doors.answers import cost as telling
from fallow.doors.answers import field, nodes, waste
from fallow.doors.answers import rows as listing
from fallow.doors.answers import workloads as naming
from fallow.model import decision, price_book
from fallow.model.cost import NodeRates
from fallow.model.seen import ABSENT, Known, Unseen

T4 = "Tesla-T4"
LIST = float(price_book.LIST["T4"])


def see(rates: Any) -> Any:
    world = World()
    for name in ("node-1", "node-2"):
        world.node(name, product=T4)
        world.nodes[name] = msgspec.structs.replace(world.nodes[name], gpus=2, offers={"nvidia.com/gpu": 2})
    world.workload("ml/quiet", gpus=[builders.idle(model=T4)] * 2, pod={"node": "node-1"})
    return msgspec.structs.replace(world.snapshot(), rates=rates)


def rows_of(seen: Any) -> list[listing.ApiRow]:
    made = brain.make_plan(seen, builders.mandate(), decision.Memory(), NOW)
    return [
        listing.make_row(naming.count(made, at), seen, NOW, revision=1) for at in range(len(seen.workloads))
    ]


BOTH = Known(NodeRates("EUR", {"node-1": Decimal(3), "node-2": Decimal(1)}))
ONE = Known(NodeRates("EUR", {"node-1": Decimal(3)}))


@pytest.mark.parametrize(("rates", "pool", "each"), [
    (ABSENT, LIST, [2 * LIST, 2 * LIST]), (BOTH, 2.0, [6.0, 2.0]), (ONE, None, [6.0, None]),
    (Unseen("prices have not been looked up yet"), None, [None, None]),
], ids=["no-books", "booked", "one-not-known", "unseen"])
def test_pools_and_nodes_cost_what_the_price_book_says(
    rates: Any, pool: float | None, each: list[float | None]
) -> None:
    seen = see(rates)
    maker = field.FieldMaker(seen, {row.uid: row for row in rows_of(seen)}, book=price_book.LIST)
    page = maker.page(1)
    assert [one.per_gpu_hour for one in page.pools] == [pool]
    shown = nodes.show_nodes(page, seen, maker.measured, NOW, {}, book=price_book.LIST)
    assert [row.per_hour for row in shown] == [None if cost is None else round(cost, 2) for cost in each]


def booked(per_gpu_hour: float | None) -> telling.CostReportPage:
    row = telling.SpendRow(
        key="ml/Deployment/quiet", keys=("ml", "Deployment", "quiet"), gpu_hours=10.0, cost=30.0, used=0.0,
        allocated_unused=0.0, held_idle=30.0, use_unknown=0.0, share=1.0, use=0.0, per_gpu_hour=per_gpu_hour, kwh=0.0,
        energy_cost=None, co2_kg=None, unpriced_gpu_hours=0.0, change=None,
    )
    platform = telling.PlatformTold(cost=0.0, gpu_hours=0.0, kwh=0.0, energy_cost=None, co2_kg=None, parts=())
    window = telling.WindowTold(start="", end="")
    return telling.CostReportPage(
        window=window, as_of="", currency="EUR", basis="allocation", by=(), rows=(row,), held=row, platform=platform,
        rest=0.0, total=30.0, gpu_hours=10.0, unpriced_gpu_hours=0.0, stale_prices=(), estimated_prices=(),
        before=None,
        is_energy_in_cost=False,
    )


@pytest.mark.parametrize(("rates", "report", "per_hour", "currency", "is_list"), [
    (ABSENT, None, round(2 * LIST, 4), "USD", True),  # a person looks, and nobody keeps books
    (BOTH, None, 6.0, "EUR", False),
    (ABSENT, booked(3.0), 6.0, "EUR", False),  # a person looks, and names a ledger
    (ABSENT, booked(None), None, "EUR", False),
    (ONE, booked(2.5), 6.0, "EUR", False),
])
def test_what_is_wasted_has_one_source_of_money(
    rates: Any, report: telling.CostReportPage | None, per_hour: float | None, currency: str, is_list: bool
) -> None:
    page = waste.find_waste(rows_of(see(rates)), report, price_book.LIST_CURRENCY)
    assert (page.lines[0].per_hour, page.currency, page.is_list) == (per_hour, currency, is_list)


def test_who_stands_paused_is_not_told_to_take_less() -> None:
    rows = [msgspec.structs.replace(row, group="paused", idle_gpus=0) for row in rows_of(see(ABSENT))]
    assert waste.find_waste(rows, booked(3.0), "USD").lines[0].helps.startswith("it stands paused: nothing, until ")
    helps = waste.find_waste([], booked(3.0), "USD").lines[0].helps
    assert helps.startswith("fallow optimize says whether"), "mean use does not tell its peaks, nor what it holds"
