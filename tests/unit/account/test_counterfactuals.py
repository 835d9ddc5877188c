"""What would have been paid and was not: once for each GPU-second, at the price that was paid, or not at all."""

from typing import Any

import pytest
from tests import cost_scenes
from tests.cost_scenes import P4D, TODAY, YESTERDAY

from fallow.account import counterfactuals, saving_books
from fallow.account.counterfactuals import NodeClaim, RemovedNode
from fallow.account.savings import PauseSpan
from fallow.doors.answers import cost_books
from fallow.doors.answers.cost_books import CostBooks
from fallow.model.cluster import Ref
from fallow.model.cost import (
    HOUR,
    UNIT,
    WHOLE,
    BookedSaving,
    CapacityType,
    CostBatch,
    Interval,
    Sharing,
    SpendState,
)
from fallow.model.windows import TimeSpan

AT = YESTERDAY + 10 * HOUR  # it is paused
RED = cost_scenes.key("red", "train")
BLUE = cost_scenes.key("blue", "serve")
DAY_BEFORE = TimeSpan(YESTERDAY, TODAY)


def pause(**said: Any) -> PauseSpan:
    found = {
        "uid": "u", "gpus": 1.0, "begins": float(AT), "ends": float(AT + 4 * HOUR), "paused_at": float(AT),
        "ref": Ref("apps", "v1", "Deployment", "red", "train", "u"), "policy": "p", **said,
    }
    return PauseSpan(**found)


def before(gpu: str = "GPU-0", **said: Any) -> list[Interval]:
    return [*cost_scenes.held(gpu, AT - HOUR, AT, RED, SpendState.held_idle, **said)]


def elsewhere() -> list[Interval]:
    """So that somebody looked."""
    return [*cost_scenes.held("GPU-x", YESTERDAY, TODAY, cost_scenes.key("web", "x", node="node-9"))]


def nobody_knows(key: Any, at: int) -> None:
    """What it costs on demand."""


async def book(
    intervals: list[Interval], *spans: PauseSpan, on_demand: Any = nobody_knows, **said: Any
) -> CostBatch:
    async with cost_scenes.opened([*intervals, *elsewhere()]) as ledger:
        return await saving_books.find_savings(ledger, spans, YESTERDAY, TODAY, on_demand, **said)


def sums(rows: tuple[BookedSaving, ...]) -> dict[tuple[str, bool], tuple[int, int, float]]:
    return {
        (row.kind.value, row.realised): (row.saved, row.baseline, counterfactuals.read_details(row).gpu_hours)
        for row in rows
    }


async def test_what_somebody_else_took_is_money_and_what_nobody_took_is_hours():
    after = [*cost_scenes.free("GPU-0", AT, AT + HOUR), *cost_scenes.held("GPU-0", AT + HOUR, TODAY, BLUE)]
    made = await book([*before(), *after], pause())
    assert sums(made.savings) == {
        ("waste", True): (3 * P4D, 3 * P4D, 3.0), ("waste", False): (0, P4D, 1.0),
    }
    assert {row.namespace for row in made.savings} == {"red"}


async def test_a_gpu_that_two_pauses_gave_back_one_after_the_other_is_claimed_once():
    """Red is paused, blue takes its GPU for an hour and is paused, too; then the node goes: 4 hours, and not 7. When
    blue comes back elsewhere the rest is red's again."""
    blue = Ref("apps", "v1", "Deployment", "blue", "serve", "v")
    second = pause(uid="v", paused_at=float(AT + HOUR), begins=float(AT + HOUR), ends=float(AT + 3 * HOUR), ref=blue)
    made = await book([*before(), *cost_scenes.held("GPU-0", AT, AT + HOUR, BLUE)], pause(), second)
    assert {row.namespace: row.saved for row in made.savings} == {"red": 2 * P4D, "blue": 2 * P4D}


async def test_a_node_that_is_gone_while_we_look_is_money_and_one_that_nobody_looked_at_is_not():
    made = await book(before(), pause())
    assert sums(made.savings) == {("waste", True): (4 * P4D, 4 * P4D, 4.0)}
    async with cost_scenes.opened(before()) as alone:  # and nothing else was seen after it
        blind = await saving_books.find_savings(alone, [pause()], YESTERDAY, TODAY, nobody_knows)
    assert blind.savings == ()


async def test_from_when_its_pods_were_gone_and_not_from_when_they_were_told_to_go():
    lasts = [*cost_scenes.held("GPU-0", AT - HOUR, AT + 600, RED, SpendState.held_idle)]
    made = await book([*lasts, *cost_scenes.free("GPU-0", AT + 600, TODAY)], pause())
    assert sums(made.savings)["waste", False][2] == pytest.approx(4 - 600 / 3600)


async def test_a_part_of_a_gpu_is_its_share_of_the_price():
    part = {"share": WHOLE // 4, "slot": "1"}
    slices = cost_scenes.key("blue", "serve", sharing=Sharing.timeslicing)
    took = [*cost_scenes.held("GPU-0", AT, TODAY, slices, **part)]
    other = [*cost_scenes.held("GPU-0", AT, TODAY, slices, share=WHOLE // 4, slot="2")]
    made = await book([*before(**part), *took, *other], pause())
    assert sums(made.savings) == {("waste", True): (P4D, P4D, 1.0)}


@pytest.mark.parametrize("said", [{"is_regretted": True}, {"is_wrong": True}, {"ref": None}], ids=str)
async def test_a_regret_claims_nothing(said):
    assert (await book([*before(), *cost_scenes.free("GPU-0", AT, TODAY)], pause(**said))).savings == ()


async def test_a_regret_takes_back_what_was_claimed():
    async with cost_scenes.opened([*before(), *cost_scenes.free("GPU-0", AT, TODAY), *elsewhere()]) as ledger:
        first = await saving_books.find_savings(ledger, [pause()], YESTERDAY, TODAY, nobody_knows)
        await ledger.write(first, 1)
        again = await saving_books.find_savings(ledger, [pause()], YESTERDAY, TODAY, nobody_knows)
        assert ([row.id for row in again.savings], again.removed_savings) == ([row.id for row in first.savings], ())
        gone = await saving_books.find_savings(
            ledger, [pause(is_regretted=True)], YESTERDAY, TODAY, nobody_knows
        )
        await ledger.write(gone, 1)
        assert await ledger.read_savings(0, TODAY) == []


async def test_a_dry_run_is_kept_apart_and_is_in_no_sum():
    some = [*before(), *cost_scenes.held("GPU-0", AT, TODAY, BLUE)]
    async with cost_scenes.opened([*some, *elsewhere()]) as ledger:
        made = await saving_books.find_savings(ledger, [pause()], YESTERDAY, TODAY, nobody_knows, is_dry=True)
        await ledger.write(made, 1)
        page = await cost_books.read_savings(CostBooks(ledger=ledger), DAY_BEFORE)
    assert (page.saved, page.baseline, page.freed_gpu_hours, page.lines) == (0.0, 0.0, 0.0, ())
    assert (page.dry_run_gpu_hours, page.dry_run_worth) == (4.0, 16.38)


async def test_what_has_no_price_is_hours():
    made = await book([*before(rate=None), *cost_scenes.free("GPU-0", AT, TODAY, rate=None)], pause())
    assert sums(made.savings) == {("waste", False): (0, 0, 4.0)}


# ---- spot ------------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 22)
async def test_spot_saves_against_a_price_that_is_known_and_else_nothing():
    spot = cost_scenes.key("red", "train", capacity_type=CapacityType.spot)
    some = [*cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + 2 * HOUR, spot, rate=UNIT)]
    assert sums((await book(some, on_demand=lambda key, at: 3 * UNIT)).savings) == {
        ("spot", True): (4 * UNIT, 6 * UNIT, 2.0)
    }
    assert (await book(some)).savings == ()
    assert (await book(some, on_demand=lambda key, at: UNIT // 2)).savings == ()  # it was dearer: nothing was saved
    unpriced = [*cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + 2 * HOUR, spot, rate=None)]
    assert (await book(unpriced, on_demand=lambda key, at: 3 * UNIT)).savings == ()


# ---- sharing, and nodes that went ------------------------------------------------------------------------------------


def sharers(count: int) -> list[Interval]:
    of = cost_scenes.key("red", "train", sharing=Sharing.timeslicing)
    return [
        one for number in range(count)
        for one in cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + HOUR, of, share=WHOLE // 4, slot=str(number),
                                    pod=f"pod-{number}")
    ]


@pytest.mark.accepts("cost", 22)
@pytest.mark.parametrize(("pods", "gpus"), [(3, 2), (2, 1), (1, 0)])
def test_sharers_save_a_gpu_each_beyond_the_first(pods, gpus):
    rows = counterfactuals.book_sharing("GPU-0", sharers(pods), YESTERDAY, YESTERDAY + HOUR)
    assert sum(row.saved for row in rows) == gpus * P4D
    assert sum(counterfactuals.read_details(row).gpu_hours for row in rows) == gpus


def test_sharing_counts_in_the_days_that_are_asked_for_and_of_those_that_we_made_share():
    rows = counterfactuals.book_sharing("GPU-0", sharers(2), YESTERDAY + HOUR // 2, YESTERDAY + 2 * HOUR)
    assert sum(row.saved for row in rows) == P4D // 2


@pytest.mark.accepts("cost", 22)
def test_a_gpu_hour_that_was_paused_and_whose_node_went_is_claimed_once():
    span = pause(ends=float(AT + HOUR))
    rows, claims = counterfactuals.book_pause(span, before(), [], [(YESTERDAY, TODAY)])
    assert sum(row.saved for row in rows) == P4D
    node = RemovedNode(node="node-1", rate=P4D, at=AT, until=AT + HOUR)  # of one GPU
    assert counterfactuals.book_removal(node, claims) == []
    eight = RemovedNode(node="node-1", rate=8 * P4D, at=AT, until=AT + HOUR, gpus=8)
    for claimed, left in ((claims, 7), ([], 8)):
        [row] = counterfactuals.book_removal(eight, claimed)
        assert (row.saved, counterfactuals.read_details(row).gpu_hours) == (left * P4D, left)


def test_a_removed_node_saves_a_day_at_most_and_nothing_without_a_price():
    node = RemovedNode(node="node-1", rate=UNIT, at=AT, until=AT + 1000 * HOUR)
    assert sum(row.saved for row in counterfactuals.book_removal(node, [])) == 24 * UNIT
    free = RemovedNode(node="node-1", rate=None, at=AT, until=AT + HOUR)
    assert counterfactuals.book_removal(free, [NodeClaim("node-1", AT, AT + HOUR, 5, WHOLE)]) == []


# ---- are we worth it? ------------------------------------------------------------------------------------------------


async def test_roi_is_what_was_realised_against_what_we_cost():
    own = cost_scenes.held("GPU-7", YESTERDAY, YESTERDAY + HOUR, cost_scenes.key("fallow", "run", team="__platform__"))
    some = [*before(), *cost_scenes.held("GPU-0", AT, TODAY, BLUE), *own, *elsewhere()]
    async with cost_scenes.opened(some) as ledger:
        await ledger.write(await saving_books.find_savings(ledger, [pause()], YESTERDAY, TODAY, nobody_knows), 1)
        page = await cost_books.read_savings(CostBooks(ledger=ledger, invested=30 * UNIT), DAY_BEFORE)
        late = await cost_books.read_savings(CostBooks(ledger=ledger), TimeSpan(YESTERDAY + 23 * HOUR, TODAY))
        free = await cost_books.read_savings(CostBooks(ledger=ledger), TimeSpan(TODAY, TODAY + HOUR))
    assert (page.saved, page.roi.of_it_pods, page.roi.of_it_investment, page.roi.own_cost) == (16.38, 4.1, 1.0, 5.1)
    assert page.roi.ratio == pytest.approx((16.385 - 5.09625) / 5.09625, abs=1e-4)
    assert (late.saved, late.roi.own_cost) == (page.saved, page.roi.of_it_pods), "of a part of a day all of it is told"
    assert free.roi.ratio is None  # nothing to divide by
    assert [(line.type, line.saved, line.realised_gpu_hours) for line in page.lines] == [("waste", 16.38, 4.0)]
