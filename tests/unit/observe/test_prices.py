"""What is known of prices: the operator's table and the cloud's list, through failures, restarts and nonsense."""

from collections.abc import Sequence
from decimal import Decimal

import pytest
from tests.unit.observe import market
from tests.unit.observe.market import HEAD, NOW, PLAIN, node

from fallow.clients import errors
from fallow.model import cost
from fallow.model.price_book import Origin
from fallow.model.price_table import PriceRow
from fallow.model.seen import Known, Unseen
from fallow.model.units import DAY, HOUR, MINUTE, Instant
from fallow.observe.prices import PricesSeen

OWN = f"{HEAD}\nazure,,,Standard_NC6s_v3,,1,on-demand,node_hour,2.5,USD,,,contract,2026-11-01\n"


def price(seen: PricesSeen, name: str = "aks-0", at: Instant | None = None) -> tuple[Decimal, Origin] | None:
    assert isinstance(seen.book, Known)
    [facts] = [each for each in seen.nodes if each.node == name]
    found = seen.book.value.find(facts, seen.at if at is None else at)
    return None if found is None else (Decimal(found.rate.nano) / cost.UNIT, found.origin)


async def test_the_operators_own_word_comes_before_the_clouds() -> None:
    async with market.opened() as here:
        watch = here.watch()
        assert price(await watch.look([node(), PLAIN], NOW)) == (3, Origin.fetched)
        here.give(OWN)
        seen = await watch.look([node(), PLAIN], NOW + MINUTE)
    assert price(seen) == (Decimal("2.5"), Origin.given)
    assert [facts.node for facts in seen.nodes] == ["aks-0"], "without GPUs there is nothing to price"
    assert seen.problems == ()


async def test_bad_lines_of_the_table_are_told_and_the_rest_holds() -> None:
    async with market.opened() as here:
        here.give(OWN + OWN.splitlines()[1].replace("2.5", "-1").replace("NC6", "NC12") + "\nx\n" * 30)
        seen = await here.watch(fetcher=None).look([node()], NOW)
    assert price(seen) == (Decimal("2.5"), Origin.given)
    assert seen.problems[0] == "ConfigMap gpu/gpu-autoscaler-prices, line 3: price_per_hour -1 is negative"
    assert len(seen.problems) == 21
    assert seen.problems[-1] == "ConfigMap gpu/gpu-autoscaler-prices: 11 further lines refused"


async def test_what_is_reserved_stands_beside_the_prices_and_its_bad_lines_are_told() -> None:
    async with market.opened() as here:
        watch = here.watch(fetcher=None)
        here.give(None, status=403)
        assert isinstance((await watch.look([node()], NOW)).committed, Unseen)
        reserved = "instance_type,count,source\np5.48xlarge,4,contract\np5.48xlarge,many,contract\n"
        here.give(OWN, **{"commitments.csv": reserved})
        seen = await watch.look([node()], NOW)
        assert isinstance(seen.committed, Known)
        assert [(each.instance_type, each.count) for each in seen.committed.value] == [("p5.48xlarge", 4)]
        assert seen.problems == (
            "ConfigMap gpu/gpu-autoscaler-prices, commitments.csv, line 3: count 'many' is not a whole number between "
            "1 and 10,000",
        )
        here.give(None, status=403)  # what was read stays
        assert (await watch.look([node()], NOW)).committed == seen.committed
        here.give(None)
        assert (await watch.look([node()], NOW)).committed == Known(())


async def test_a_table_that_was_never_read_leaves_everything_unpriced_and_one_that_was_stays() -> None:
    async with market.opened() as here:
        watch = here.watch(fetcher=None)
        here.give(None, status=403)
        blind = await watch.look([node()], NOW)
        assert blind.book == Unseen("the ConfigMap gpu/gpu-autoscaler-prices could not be read")
        [problem] = blind.problems
        assert problem.startswith(
            "the ConfigMap gpu/gpu-autoscaler-prices cannot be read, and nothing has a price until it can be: "
        )
        here.give(OWN)
        assert price(await watch.look([node()], NOW)) == (Decimal("2.5"), Origin.given)
        here.give(None, status=403)
        kept = await watch.look([node()], NOW)
    assert price(kept) == (Decimal("2.5"), Origin.given)
    assert "its last prices stay" in kept.problems[0]


@pytest.mark.parametrize(("table", "key", "because"), [
    (OWN, "prices.txt", "the ConfigMap gpu/gpu-autoscaler-prices has no key prices.csv"),
    ("", "prices.csv", "ConfigMap gpu/gpu-autoscaler-prices, line 1: the columns unit, price_per_hour, currency, "
     "source, retrieved_at are missing"),
], ids=["another key", "empty"])
async def test_a_table_that_is_none_is_said(table: str, key: str, because: str) -> None:
    async with market.opened() as here:
        here.give(table, key=key)
        assert (await here.watch(fetcher=None).look([], NOW)).problems == (because,)


async def test_lists_are_asked_when_they_are_due_and_at_once_for_a_new_machine() -> None:
    async with market.opened() as here:
        watch = here.watch()

        async def asked_by(at: Instant, *nodes: object) -> int:
            before = len(here.asked)
            await watch.look(nodes, at)  # type: ignore[arg-type]
            return len(here.asked) - before

        assert await asked_by(NOW, PLAIN) == 0
        assert await asked_by(NOW, node()) == 1
        assert await asked_by(NOW + 6 * HOUR - 1, node()) == 0
        assert await asked_by(NOW + 6 * HOUR, node()) == 1
        assert await asked_by(NOW + 6 * HOUR + 1, node(), node("b", kind="Standard_NC12s_v3")) == 2
        spot = node("c", spot=True)
        assert await asked_by(NOW + 7 * HOUR, node(), spot) == 1, "the spot list is new"
        assert await asked_by(NOW + 7 * HOUR + 9 * MINUTE, node(), spot) == 0
        assert await asked_by(NOW + 7 * HOUR + 10 * MINUTE, node(), spot) == 1


@pytest.mark.accepts("cost", 8)
async def test_a_price_that_changes_leaves_the_hours_before_alone() -> None:
    async with market.opened() as here:
        watch = here.watch()
        await watch.look([node()], NOW)
        here.listed = 4.0
        seen = await watch.look([node()], NOW + 6 * HOUR)
    assert price(seen, at=NOW + 6 * HOUR - 1) == (3, Origin.fetched)
    assert price(seen) == (4, Origin.fetched)
    assert price(seen, at=NOW - 1) == (Decimal("3.06"), Origin.other_region), "nothing had been fetched then"


@pytest.mark.accepts("cost", 9)
async def test_with_the_list_away_old_prices_stay_and_turn_stale() -> None:
    async with market.opened() as here:
        watch = here.watch()
        before = await watch.look([node()], NOW)
        here.listed = None
        later = await watch.look([node()], NOW + 6 * HOUR)
        assert price(later) == (3, Origin.fetched)
        assert later.problems == ("prices (on-demand) could not be fetched: the price list answered 400",)
        asked = len(here.asked)
        await watch.look([node()], NOW + 6 * HOUR + 4 * MINUTE)
        assert len(here.asked) == asked, "not again at once"
        await watch.look([node()], NOW + 6 * HOUR + 5 * MINUTE)
        assert len(here.asked) == asked + 1
        old = await watch.look([node()], NOW + 91 * DAY)
    assert isinstance(before.book, Known)
    assert isinstance(old.book, Known)
    rates = [seen.value.find_rate(old.nodes[0], at) for seen, at in (
        (before.book, NOW), (old.book, NOW + 90 * DAY), (old.book, NOW + 91 * DAY)
    )]
    assert [rate is not None and (rate.nano, rate.stale) for rate in rates] == [
        (3_000_000_000, False), (3_000_000_000, False), (3_000_000_000, True)
    ]


@pytest.mark.accepts("cost", 9)
@pytest.mark.parametrize(("said", "change"), [(300.0, "more than five times"), (0.03, "less than a fifth of")])
async def test_a_price_that_nobody_can_believe_is_quarantined_until_it_is_well_again(said: float, change: str) -> None:
    async with market.opened() as here:
        watch = here.watch()
        await watch.look([node()], NOW)
        here.listed = said
        seen = await watch.look([node()], NOW + 6 * HOUR)
        assert price(seen) == (3, Origin.fetched)
        assert [each.because for each in seen.suspicious] == [
            f"Azure Retail Prices says {said:g} USD for Standard_NC6s_v3 (on-demand) in eastus, {change} the price "
            "before, 3: the old one stays; if the new one is right, put it into your own table"
        ]
        assert (await watch.look([node()], NOW + 7 * HOUR)).suspicious == seen.suspicious
        here.listed = 3.5
        well = await watch.look([node()], NOW + 12 * HOUR)
    assert well.suspicious == ()
    assert price(well) == (Decimal("3.5"), Origin.fetched)


@pytest.mark.accepts("cost", 9)
async def test_the_first_price_is_held_against_the_shipped_one() -> None:
    async with market.opened() as here:
        here.listed = 306.0
        seen = await here.watch().look([node()], NOW)
    assert price(seen) == (Decimal("3.06"), Origin.other_region)
    assert len(seen.suspicious) == 1
    assert seen.fetched == ()


async def test_fetched_prices_outlive_a_restart() -> None:
    kept: list[PriceRow] = []

    async def recall() -> Sequence[PriceRow]:
        return kept

    async with market.opened() as here:
        kept += (await here.watch().look([node()], NOW)).fetched
        here.listed = None
        seen = await here.watch(recall=recall).look([node()], NOW + HOUR)
        assert price(seen) == (3, Origin.fetched)
        here.listed = 3.0
        confirmed = await here.watch(recall=recall).look([node()], NOW + 2 * HOUR)
    assert [row.id for row in confirmed.fetched] == [row.id for row in kept], "it is still the same price"
    assert confirmed.fetched[0].retrieved_at == NOW + 2 * HOUR


async def test_what_cannot_be_recalled_is_asked_for_again_and_strangers_are_not_taken() -> None:
    answers: list[Sequence[PriceRow] | errors.ClientError] = [
        errors.Unreachable("the ledger is away"),
        [PriceRow(instance_type="Standard_NC6s_v3", price=Decimal(1), source="contract", retrieved_at=NOW)],
    ]

    async def recall() -> Sequence[PriceRow]:
        answer = answers.pop(0)
        if isinstance(answer, errors.ClientError):
            raise answer
        return answer

    async with market.opened() as here:
        watch = here.watch(recall=recall)
        assert (await watch.look([node()], NOW)).problems == (
            "prices of an earlier run cannot be read: the ledger is away",
        )
        seen = await watch.look([node()], NOW + MINUTE)
        await watch.look([node()], NOW + 2 * MINUTE)
    assert price(seen) == (3, Origin.fetched)
    assert answers == []


async def test_a_spot_node_has_the_spot_price_and_what_it_saves_is_known() -> None:
    async with market.opened() as here:
        seen = await here.watch().look([node(spot=True)], NOW)
    assert price(seen) == (1, Origin.fetched)
    assert isinstance(seen.book, Known)
    bought = seen.book.value.find_on_demand(seen.nodes[0], NOW)
    assert bought is not None
    assert bought.nano == 3_000_000_000
