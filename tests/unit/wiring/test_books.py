"""The one writer of the ledger by its terms, what nodes cost by the prices that were seen last, and a store that is
away when the daemon starts."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import cost_scenes
from tests.builders import NOW, World

from fallow import settings
from fallow.account import ledger
from fallow.account.spool import Spool
from fallow.clients import errors
from fallow.model import budgets, node_facts
from fallow.model.cost import CapacityType, CostBatch, CostQuery
from fallow.model.energy import EnergyTerms
from fallow.model.price_book import PriceBook
from fallow.model.price_table import PriceRow
from fallow.model.seen import Known, Unseen
from fallow.observe.prices import PricesSeen
from fallow.stories.prices import PricesTurn
from fallow.wiring import books as wiring
from fallow.wiring.billing import NodeBilling

AT = int(NOW)


def bills(*rows: PriceRow, nodes: Any = ()) -> NodeBilling:
    made = NodeBilling(region="", clock=lambda: NOW)
    facts = tuple(node_facts.read(node) for node in nodes)
    made.take(PricesTurn(NOW, PricesSeen(at=NOW, book=Known(PriceBook(given=rows, shipped=())), nodes=facts)))
    return made


def row(price: str, **said: Any) -> PriceRow:
    found = {"instance_type": "p4d.24xlarge", "gpus": 8, "source": "contract", "retrieved_at": NOW, **said}
    return PriceRow(price=Decimal(price), **found)


def node(name: str = "n1", instance_type: str = "p4d.24xlarge", **labels: str) -> Any:
    world = World()
    said = {"node.kubernetes.io/instance-type": instance_type, "nvidia.com/gpu.count": "8", **labels}
    world.node(name, product="NVIDIA-A100-SXM4-40GB", labels=said)
    return world.snapshot().nodes.known[name]


class Writers:
    """Two daemons over one ledger."""

    def __init__(self, path: Path, spool: Path | None = None) -> None:
        self.path, self.terms, self._spool = path, [1, 1], spool

    @contextlib.asynccontextmanager
    async def both(self) -> AsyncIterator[list[wiring.LedgerWriter]]:
        opened = [ledger.on_file(self.path) for _ in self.terms]
        for each in opened:
            await each.open()
        try:
            yield [
                wiring.LedgerWriter(each, term=lambda at=at: self.terms[at], billing=bills())  # type: ignore[misc]
                for at, each in enumerate(opened)
            ]
        finally:
            for each in opened:
                await each.close()


def intervals(until: int = AT) -> Any:
    return tuple(cost_scenes.held("GPU-0", until - 3600, until, cost_scenes.key("red", "train"), is_open=True))


async def test_who_begins_to_lead_has_the_ledger_and_who_led_is_refused_until_it_leads_again(tmp_path: Path) -> None:
    writers = Writers(tmp_path / "costs.sqlite")
    async with writers.both() as (first, second):
        await first.read_open()
        await first.write(intervals=intervals(), removed=(), at=AT, epoch=1)
        found = await second.read_open()  # of the same term: a Lease that was deleted counts anew
        assert ([each.t1 for each in found.intervals], found.checkpoint, found.rolled_until) == ([AT], AT, None)
        for _ in range(2):  # it does not take it back while nothing changed
            with pytest.raises(errors.ClientError, match="is another daemon writing to the same store"):
                await first.write(intervals=(), removed=(), at=AT + 60, epoch=1)
        await second.write(intervals=(), removed=(), at=AT + 60, epoch=1)
        writers.terms[0] = 2
        await first.claim()  # for a budget, say: a book of before is not written by it
        with pytest.raises(errors.ClientError, match="has changed hands since the books were read"):
            await first.write(intervals=(), removed=(), at=AT + 90, epoch=1)
        assert (await first.read_open()).checkpoint == AT + 60
        await first.write(intervals=(), removed=(), at=AT + 120, epoch=2)
        with pytest.raises(errors.ClientError):
            await second.write(intervals=(), removed=(), at=AT + 180, epoch=1)
        total = await first.ledger.sums(CostQuery(begin=0, end=AT + 3600))
        assert sum(each.total.gpu_micro_seconds for each in total) == (3600 + 120) * 10**6


@pytest.mark.accepts("cost", 5)
async def test_of_two_who_take_the_ledger_at_the_same_instant_one_has_it(tmp_path: Path) -> None:
    writers = Writers(tmp_path / "costs.sqlite")
    async with writers.both() as both:
        for term in range(1, 21):
            writers.terms = [term, term]
            await asyncio.gather(*(each.claim() for each in both), return_exceptions=True)
            writes = (each.write(intervals=(), removed=(), at=AT + term, epoch=term) for each in both)
            ended = await asyncio.gather(*writes, return_exceptions=True)
            assert sum(one is None for one in ended) <= 1
            assert all(isinstance(one, errors.ClientError) for one in ended if one is not None)


async def test_what_waits_in_the_spool_is_in_the_books_before_they_are_read(tmp_path: Path) -> None:
    waiting = Spool(tmp_path / "spool")
    waiting.open()
    waiting.append(CostBatch(at=AT, intervals=intervals()))
    opened = ledger.on_file(tmp_path / "costs.sqlite", spool=Spool(tmp_path / "spool"))
    await opened.open()
    writer = wiring.LedgerWriter(opened, term=lambda: None, billing=bills())
    found = await writer.read_open()
    assert [(each.t0, each.t1) for each in found.intervals] == [(AT - 3600, AT)]
    await opened.close()


async def test_what_is_refused_is_said_whoever_writes_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a batch that waited: it comes with the next one, be that of the books, of savings or of prices."""
    waiting = Spool(tmp_path / "spool")
    waiting.open()
    backwards = [msgspec.structs.replace(each, t1=each.t0 - 60) for each in intervals()]
    waiting.append(CostBatch(at=AT, intervals=tuple(backwards)))
    opened = ledger.on_file(tmp_path / "costs.sqlite", spool=Spool(tmp_path / "spool"))
    await opened.open()
    await wiring.LedgerWriter(opened, term=lambda: None, billing=bills()).write_batch(CostBatch())
    await opened.close()
    assert "not booked: interval" in caplog.text
    assert "it ends before it begins" in caplog.text


@pytest.mark.accepts("cost", 25)
async def test_a_batch_that_nobody_takes_is_given_back_to_who_has_it(tmp_path: Path) -> None:
    """The database is locked and a day of batches waits: the story keeps it and writes it with the next one."""
    full = Spool(tmp_path / "spool")
    opened = ledger.on_file(tmp_path / "costs.sqlite", spool=full)
    await opened.open()
    writer = wiring.LedgerWriter(opened, term=lambda: 1, billing=bills())
    await writer.claim()
    full.append(CostBatch(at=AT - 2 * 86400))
    with contextlib.closing(sqlite3.connect(tmp_path / "costs.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for write in (
            lambda: writer.write(intervals=intervals(), removed=(), at=AT, epoch=1),
            lambda: writer.write_batch(CostBatch(at=AT)),
        ):
            with pytest.raises(errors.Unreachable, match="has batches of 24 hours and takes no more"):
                await write()
        other.execute("ROLLBACK")
    await writer.write(intervals=intervals(), removed=(), at=AT, epoch=1)
    assert [each.t1 for each in await opened.read_open()] == [AT]
    await opened.close()


async def test_fetched_prices_and_alerts_come_back_as_they_were(tmp_path: Path) -> None:
    fetched = row("32.77", source="AWS Price List", capacity_type=CapacityType.spot, valid_from=NOW - 60)
    sent = budgets.Sending(channel="webhook", event=budgets.AlertEvent.fired, since=float(AT))
    record = budgets.AlertRecord(
        budget_uid="u", period_start=0, alert="at-80", state=budgets.AlertState.fired, fired_at=float(AT),
        sendings=(sent,),
    )
    async with Writers(tmp_path / "costs.sqlite").both() as (first, second):
        await first.keep_prices([fetched])
        await first.keep_alerts([record])
        assert [(each.id, each.price, each.is_fetched) for each in await second.recall_prices()] == [
            (fetched.id, fetched.price, True)
        ]
        assert await second.recall_alerts() == {record.key: record}


async def test_a_store_that_is_away_is_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    dsn = f"postgresql://fallow:hunter2@127.0.0.1:{unused_tcp_port}/costs"
    options = settings.read_flags({"cost": "true"}, {"FALLOW_COST_DSN": dsn})
    async with contextlib.AsyncExitStack() as stack:
        opened = await wiring.open_ledger(options, stack)
        assert "the store of costs is away, and the books wait for it" in caplog.text
        assert "hunter2" not in caplog.text
        writer = wiring.LedgerWriter(opened, term=lambda: 1, billing=bills())
        with pytest.raises(errors.Unreachable):
            await writer.read_open()
        with pytest.raises(errors.Unreachable):
            await wiring.make_budget_books(writer, bills(), EnergyTerms()).look()


async def test_books_in_memory_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await wiring.open_ledger(settings.read_flags({"cost": "true"}, {}), stack)
    assert "costs are kept in memory only" in caplog.text


async def test_budgets_hear_what_is_missing_and_since_when_there_are_books(tmp_path: Path) -> None:
    async with Writers(tmp_path / "costs.sqlite").both() as (first, _):
        blind = NodeBilling(region="", clock=lambda: NOW)
        empty = await wiring.make_budget_books(first, bills(), EnergyTerms()).look()
        assert empty == Known(budgets.BooksSeen(currency="USD", until=0.0, began=None))
        await first.read_open()
        await first.write(intervals=intervals(), removed=(), at=AT, epoch=1)
        seen = await wiring.make_budget_books(first, blind, EnergyTerms()).look()
        assert seen == Known(budgets.BooksSeen(
            currency="USD", until=float(AT), began=AT - 3600.0, missing=("prices have not been looked up yet",),
        ))


# ---- what nodes cost -------------------------------------------------------------------------------------------------


def test_a_bill_is_by_the_book_and_names_the_row_that_is_booked() -> None:
    own, cheap = node(), node("n2", **{"karpenter.sh/capacity-type": "spot"})
    billing = bills(row("32"), nodes=[own, cheap])
    made = billing.bill(own)
    assert made.rate is not None
    assert (made.rate.nano, made.gpus, made.instance_type) == (4 * 10**9, 8, "p4d.24xlarge")
    (booked,) = billing.list_booked({made.rate.price_id, "unknown"})
    assert (booked.price_per_hour, booked.source) == ("32", "contract")
    assert billing.bill(cheap).rate is None, "spot has no price of another kind"
    assert billing.rates == Known(type(billing.rates.value)("USD", {"n1": Decimal(4)}))  # type: ignore[union-attr]


def test_a_node_that_joined_since_prices_were_looked_up_has_one() -> None:
    billing = bills(row("32"), nodes=[node()])
    found = billing.find_rates([node(), node("n2"), node("n3", **{"karpenter.sh/capacity-type": "spot"})])
    assert isinstance(found, Known)
    assert found.value.by_node == {"n1": Decimal(4), "n2": Decimal(4)}
    assert billing.find_rates([node()]) is billing.rates


def test_prices_that_were_never_seen_are_no_prices_and_later_ones_stay() -> None:
    billing = NodeBilling(region="", clock=lambda: NOW)
    assert isinstance(billing.find_rates([node()]), Unseen)
    assert (billing.bill(node()).rate, isinstance(billing.rates, Unseen)) == (None, True)
    billing.take(PricesTurn(NOW))  # nothing was looked at
    assert billing.missing == ("prices have not been looked up yet",)
    billing.take(PricesTurn(NOW, PricesSeen(at=NOW, book=Unseen("the ConfigMap could not be read"))))
    assert billing.missing == ("prices are not known: the ConfigMap could not be read",)
    assert billing.bill(node()).rate is None
    billing.take(PricesTurn(NOW, PricesSeen(at=NOW, book=Known(PriceBook(given=[row("32")], shipped=())))))
    rate = billing.bill(node()).rate
    assert (billing.missing, rate is not None and rate.nano) == ((), 4 * 10**9)


async def test_the_books_wait_until_prices_were_looked_up_once() -> None:
    billing = NodeBilling(region="", clock=lambda: NOW)
    waiting = asyncio.create_task(billing.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    billing.take(PricesTurn(NOW, PricesSeen(at=NOW, book=Unseen("away"))))
    await waiting


def test_only_a_known_list_price_is_what_spot_saves_against() -> None:
    spot = cost_scenes.key("red", "train", capacity_type=CapacityType.spot)
    assert bills(row("32", capacity_type=CapacityType.on_demand)).find_on_demand(spot, AT) == 4 * 10**9
    assert bills(row("9", capacity_type=CapacityType.spot)).find_on_demand(spot, AT) is None
    assert NodeBilling(region="", clock=lambda: NOW).find_on_demand(spot, AT) is None


async def test_energy_counts_for_budgets_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """10 kWh at 0.30: 3.00 more, of a budget too."""
    opened = ledger.on_file(tmp_path / "costs.sqlite")
    await opened.open()
    writer = wiring.LedgerWriter(opened, term=lambda: 1, billing=bills())
    burned = cost_scenes.held(
        "GPU-0", AT // 3600 * 3600 - 3600, AT // 3600 * 3600, cost_scenes.key("red", "train"), energy=36_000_000_000
    )
    await writer.write_batch(CostBatch(at=AT, intervals=tuple(burned)))
    spent = []
    for terms in (EnergyTerms(price=Decimal("0.3")), EnergyTerms(price=Decimal("0.3"), in_cost=True)):
        sums = await wiring.make_budget_books(writer, bills(), terms).sums(CostQuery(begin=AT - 86400, end=AT))
        spent.append(sum(one.total.cost for one in sums))
    await opened.close()
    assert spent == [cost_scenes.P4D, cost_scenes.P4D + 3_000_000_000]
