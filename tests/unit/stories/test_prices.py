"""Prices as a story: looked up, kept, counted and told, while the daemon goes on whatever happens to them."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.observe import market
from tests.unit.observe.market import NOW, node

from fallow import telemetry
from fallow.act import hands
from fallow.clients import errors
from fallow.model import cluster
from fallow.model.price_table import PriceRow
from fallow.model.seen import Known
from fallow.model.units import HOUR, MINUTE
from fallow.stories import prices
from fallow.stories.turn import Turn

POD = cluster.Ref("", "v1", "Pod", market.HOME, "gpu-pruner-0", "uid-0")


class Bookshop:
    def __init__(self, here: market.Market, *, dry: bool = False, **said: Any) -> None:
        self.metrics, self.nodes, self.now = telemetry.Telemetry(), [node()], NOW
        self.story = prices.PricesStory(
            watch=here.watch(), nodes=lambda: self.nodes, metrics=self.metrics, **said,
            hands=hands.Hands(
                here.api, lambda *_: None, reporting_instance="test", own_pod=POD, dry_run="client" if dry else None
            ),
        )

    async def tick(self, at: float) -> prices.PricesTurn:
        self.now = at
        return await self.story.tick(Turn(
            clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        ))


async def test_a_suspicious_price_is_one_event_on_our_own_pod_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with market.opened() as here:
        shop = Bookshop(here)
        await shop.tick(NOW)
        here.listed = 300.0
        for minutes in (0, 1, 2):
            turn = await shop.tick(NOW + 6 * HOUR + minutes * MINUTE)
        assert turn.failure == ""
        [told] = [seen.json for seen in here.server.seen if seen.method == "POST"]
    assert (told["reason"], told["type"], told["regarding"]["name"]) == ("PriceSuspicious", "Warning", "gpu-pruner-0")
    assert told["note"].startswith("Azure Retail Prices says 300 USD for Standard_NC6s_v3 (on-demand) in eastus")
    assert len([each for each in caplog.records if "says 300 USD" in each.getMessage()]) == 1


async def test_a_dry_run_writes_no_event() -> None:
    async with market.opened() as here:
        here.listed = 300.0
        turn = await Bookshop(here, dry=True).tick(NOW)
        assert here.server.count("POST") == 0
    assert turn.seen is not None
    assert len(turn.seen.suspicious) == 1


@pytest.mark.accepts("cost", 9)
async def test_the_age_of_prices_grows_while_the_list_is_away() -> None:
    async with market.opened() as here:
        shop = Bookshop(here)
        await shop.tick(NOW)
        here.listed = None
        await shop.tick(NOW + 9 * HOUR)
    series = 'gpu_autoscaler_price_age_seconds{capacity_type="on-demand",provider="azure"}'
    assert f"{series} {9 * HOUR:.1f}\n" in shop.metrics.text().decode()


async def test_what_is_amiss_is_said_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with market.opened() as here:
        shop = Bookshop(here)
        here.listed = None
        for minutes in (0, 1, 10):
            assert (await shop.tick(NOW + minutes * MINUTE)).failure == ""
        here.listed = 3.0
        turn = await shop.tick(NOW + HOUR)
    said = [each.getMessage() for each in caplog.records if each.name == "fallow"]
    assert said == [
        "prices: prices (on-demand) could not be fetched: the price list answered 400",
        "prices: all that was amiss is well again",
    ]
    assert turn.seen is not None
    assert isinstance(turn.seen.book, Known)


async def test_fetched_rows_are_kept_and_again_when_that_failed() -> None:
    kept: list[Sequence[PriceRow]] = []
    down = True

    async def keep(rows: Sequence[PriceRow]) -> None:
        if down:
            raise errors.Unreachable("the ledger is away")
        kept.append(rows)

    async with market.opened() as here:
        shop = Bookshop(here, keep=keep)
        await shop.tick(NOW)
        down = False
        for minutes in (1, 2):
            await shop.tick(NOW + minutes * MINUTE)
    [rows] = kept
    assert [(row.instance_type, row.retrieved_at, row.valid_from) for row in rows] == [("Standard_NC6s_v3", NOW, NOW)]
