"""Reserved machines that nobody ran, over a real ledger: booked once, corrected, never guessed, and totals add up."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests import cost_scenes

from fallow.account import intervals, ledger, reports
from fallow.account.reports import ReportAsk
from fallow.model import commitments, cost, price_table
from fallow.model.commitments import Commitment
from fallow.model.cost import HOUR, UNIT, UNUSED_COMMITMENT, CapacityType, CostBatch, CostQuery
from fallow.model.price_book import PriceBook
from fallow.model.price_table import PriceRow
from fallow.model.seen import Known, Unseen
from fallow.observe.prices import PricesSeen
from fallow.stories import commitments as story
from fallow.stories.prices import PricesTurn
from fallow.stories.turn import Turn
from fallow.wiring import books as wiring
from fallow.wiring.billing import NodeBilling

BEGIN = cost_scenes.TODAY
PRICE = PriceRow(
    instance_type="p4d.24xlarge", gpus=8, capacity_type=CapacityType.reserved, price=Decimal(16), source="contract",
    retrieved_at=float(BEGIN),
)
TWO = Commitment(region="us-east-1", instance_type="p4d.24xlarge", count=2, source="contract 7")


def reserved(gpu: str, begin: int, end: int) -> Any:
    key = cost_scenes.key("red", "train", capacity_type=CapacityType.reserved)
    return cost_scenes.held(gpu, begin, end, key, rate=2 * UNIT)


class Desk:
    """One of two reserved machines ran: 8 GPUs at 2.00 each, from the hour's begin."""

    def __init__(self, opened: ledger.Ledger, *prices: PriceRow) -> None:
        self.ledger, self.billing = opened, NodeBilling(region="", clock=lambda: float(BEGIN))
        self.billing.take(PricesTurn(float(BEGIN), PricesSeen(
            at=float(BEGIN), book=Known(PriceBook(given=prices, shipped=())), committed=Known((TWO,))
        )))

    async def tick(self, now: int) -> story.CommitmentsTurn:
        async def write(batch: CostBatch) -> None:
            booked = await self.ledger.write(batch, 1)
            assert booked.refused == ()

        made = story.CommitmentsStory(story.CommitmentBooks(
            ledger=self.ledger, known=lambda: self.billing.committed, find=self.billing.find_reserved,
            name_prices=self.billing.list_booked, write=write, cluster="main",
        ))
        return await made.tick(Turn(
            clock=lambda: float(now), monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        ))

    async def report(self, hours: int, by: str = "namespace") -> reports.CostReport:
        end, dimension = BEGIN + hours * HOUR, cost.read_dimension(by)
        sums = await self.ledger.sums(CostQuery(begin=BEGIN, end=end, by=(dimension,)))
        return reports.make_report(sums, ReportAsk(by=(dimension,), begin=BEGIN, end=end, currency="USD"))


async def open_ledger(path: Path, *some: Any, at: int) -> ledger.Ledger:
    opened = ledger.on_file(path / "costs.sqlite")
    await opened.open()
    await opened.claim(1)
    await opened.write(CostBatch(at=at, intervals=tuple(one for each in some for one in each)), 1)
    return opened


def machine(begin: int, end: int) -> Any:
    return [one for at in range(8) for one in reserved(f"GPU-{at}", begin, end)]


@pytest.mark.parametrize("rolled", [False, True])
async def test_what_is_reserved_and_not_there_is_the_platforms_and_totals_add_up(tmp_path: Path, rolled: bool) -> None:
    """Two machines at 16.00 for two hours are 64.00. One ran for an hour and a half."""
    opened = await open_ledger(tmp_path, machine(BEGIN, BEGIN + HOUR + 1800), at=BEGIN + 2 * HOUR + 300)
    desk = Desk(opened, PRICE)
    for _ in range(3):  # again and again the same
        await desk.tick(BEGIN + 2 * HOUR + 300)
    if rolled:
        await opened.roll_up(BEGIN + 2 * HOUR, 1)
        assert (await desk.tick(BEGIN + 2 * HOUR + 900)).unused == 0  # closed
    made = await desk.report(2)
    assert [(row.key, row.cost) for row in made.rows] == [(("red",), Decimal("24.00"))]
    assert [(part.key, part.cost, part.gpu_hours) for part in made.platform] == [
        (UNUSED_COMMITMENT, Decimal("40.00"), 20.0),
    ]
    assert made.total == Decimal("64.00")
    assert [part.key for part in (await desk.report(2, "team")).platform] == [UNUSED_COMMITMENT]
    await opened.close()


async def test_what_the_books_learn_late_is_taken_back(tmp_path: Path) -> None:
    opened = await open_ledger(tmp_path, machine(BEGIN, BEGIN + 1800), at=BEGIN + HOUR + 300)
    desk = Desk(opened, PRICE)
    assert (await desk.tick(BEGIN + HOUR + 300)).unused == 12
    await opened.write(CostBatch(at=BEGIN + HOUR + 360, intervals=tuple(
        one for at in range(8) for one in reserved(f"GPU-{at + 8}", BEGIN, BEGIN + HOUR)
    )), 1)
    assert (await desk.tick(BEGIN + HOUR + 600)).unused == 4
    made = await desk.report(1)
    assert (made.total, made.platform[0].cost) == (Decimal("32.00"), Decimal("8.00"))
    await opened.close()


@pytest.mark.parametrize("price", [
    PriceRow(instance_type="p4d.24xlarge", gpus=8, price=Decimal(32), source="list", retrieved_at=1.0), None,
], ids=["only-on-demand", "none"])
async def test_where_nobody_knows_how_many_gpus_it_has_nothing_is_claimed(
    tmp_path: Path, price: PriceRow | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The price of another kind of capacity is not its price, and says nothing of its GPUs."""
    opened = await open_ledger(tmp_path, machine(BEGIN, BEGIN + 1800), at=BEGIN + HOUR + 300)
    desk = Desk(opened, *([price] if price else []))
    assert (await desk.tick(BEGIN + HOUR + 300)).unused == 0
    assert "how many GPUs a p4d.24xlarge has is not known" in caplog.text
    await opened.close()


async def test_an_hour_in_which_nobody_looked_and_a_table_that_was_not_read_claim_nothing(tmp_path: Path) -> None:
    opened = await open_ledger(tmp_path, machine(BEGIN + 2 * HOUR, BEGIN + 3 * HOUR), at=BEGIN + 3 * HOUR + 300)
    desk = Desk(opened, PRICE)
    await desk.tick(BEGIN + 3 * HOUR + 300)
    made = await desk.report(2)
    assert (made.total, made.gpu_hours) == (Decimal(0), 0.0)
    desk.billing.committed = Unseen("the ConfigMap could not be read")
    assert (await desk.tick(BEGIN + 4 * HOUR)).unused == 0
    assert (await desk.report(3)).total == Decimal("32.00")  # what was written stays
    await opened.close()


async def test_of_the_hour_in_which_the_books_begin_nothing_is_claimed(tmp_path: Path) -> None:
    opened = await open_ledger(tmp_path, machine(BEGIN + 2400, BEGIN + 2 * HOUR), at=BEGIN + 2 * HOUR)
    desk = Desk(opened, PRICE)
    assert (await desk.tick(BEGIN + 2 * HOUR)).unused == 8, "of the second hour one machine of two"
    booked = await opened.read_intervals(BEGIN, BEGIN + 2 * HOUR)
    assert {one.t0 for one in booked if one.slice.key.namespace == UNUSED_COMMITMENT} == {BEGIN + HOUR}
    await opened.close()


async def test_the_books_begin_anew_without_taking_a_commitment_for_a_gpu(tmp_path: Path) -> None:
    opened = await open_ledger(tmp_path, machine(BEGIN, BEGIN + HOUR), at=BEGIN + HOUR + 300)
    await Desk(opened, PRICE).tick(BEGIN + HOUR + 300)
    writer = wiring.LedgerWriter(opened, term=lambda: 2, billing=NodeBilling(region="", clock=lambda: float(BEGIN)))
    found = await writer.read_open()
    assert {each.slice.key.namespace for each in found.intervals} == {"red"}
    book = intervals.Book(BEGIN, 180)
    book.resume(found.intervals, found.checkpoint or 0)
    assert len(book.gpus) <= 8
    await opened.close()


def test_a_table_of_commitments_is_read_line_by_line() -> None:
    table = commitments.read_csv(
        "instance_type,count,region,valid_from,valid_to,source\n"
        "p4d.24xlarge,2,us-east-1,2026-01-01,2027-01-01,contract 7\n"
        "p4d.24xlarge,none,us-east-1,,,contract 8\n,1,,,,contract 9\ng5.xlarge,1,,,,\n"
        "g5.xlarge,1,,2027-01-01,2026-01-01,contract 10\n"
    )
    [row] = table.rows
    assert (row.count, row.region, row.valid_from) == (2, "us-east-1", price_table.read_instant("x", "2026-01-01"))
    assert [(each.line, each.because.split()[0]) for each in table.refused] == [
        (3, "count"), (4, "instance_type"), (5, "source"), (6, "valid_from"),
    ]
    assert commitments.read_csv("a,b\n1,2\n").refused[0].because == (
        "the columns instance_type, count, source are missing"
    )
