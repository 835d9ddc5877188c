"""What the ledger answers beyond sums by group: each key by itself, what was acknowledged, which prices were used; and
that what is asked again is as new as what was written."""

from tests import cost_scenes
from tests.cost_scenes import PRICE, TODAY, YESTERDAY

from fallow.model import cost
from fallow.model.cost import DAY, HOUR, Amounts, CostBatch, CostQuery, CostStep, SpendState

NAMESPACE = cost.read_dimension("namespace")
ASKED = CostQuery(begin=YESTERDAY - 30, end=TODAY, by=(NAMESPACE,))


def total(sums) -> int:
    return sum(one.total.cost for one in sums)


async def test_what_is_asked_again_is_as_new_as_what_was_written():
    async with cost_scenes.opened(cost_scenes.example(), roll=TODAY) as ledger:
        first = await ledger.sums(ASKED)
        assert await ledger.sums(ASKED) == first
        more = cost_scenes.held("GPU-9", YESTERDAY, TODAY, cost_scenes.key("red", "late"))
        await ledger.write(CostBatch(at=TODAY, intervals=tuple(more)), 1)  # into hours that are summed up
        late = await ledger.sums(ASKED)
        await ledger.roll_up(TODAY, 1)
        assert await ledger.sums(ASKED) == late
    assert total(late) - total(first) == 24 * cost_scenes.P4D


async def test_keys_by_themselves_come_to_the_same_in_hours_and_whole():
    async with cost_scenes.opened(cost_scenes.example()) as ledger:
        hours = await ledger.sums_of_keys(CostQuery(begin=YESTERDAY, end=TODAY, step=CostStep.hour))
        await ledger.roll_up(TODAY, 1)
        assert await ledger.sums_of_keys(CostQuery(begin=YESTERDAY, end=TODAY, step=CostStep.hour)) == hours
        whole = await ledger.sums_of_keys(CostQuery(begin=YESTERDAY, end=TODAY))
    by_key: dict[object, Amounts] = {}
    for one in hours:
        by_key[one.key] = by_key.get(one.key, Amounts()) + one.total
    assert by_key == {one.key: one.total for one in whole}
    assert total(hours) == 786_480_000_000


async def test_prices_and_acknowledgements_of_a_window():
    other = cost_scenes.held("GPU-9", TODAY, TODAY + HOUR, cost_scenes.key("red", "x"), price="other")
    async with cost_scenes.opened([*cost_scenes.example(), *other], at=TODAY + HOUR) as ledger:
        assert await ledger.read_used_prices(YESTERDAY, TODAY) == {PRICE}
        assert await ledger.read_used_prices(TODAY, TODAY + DAY) == {"other"}
        kept = await ledger.read_acked(YESTERDAY, TODAY)
        assert await ledger.read_acked(YESTERDAY, YESTERDAY + HOUR) == []
    assert {(one.slice.ack_id, one.slice.state) for one in kept} == {("ack-1", SpendState.held_idle)}
