"""What the ledger promises, on whatever it is kept: here on a file, in tests/real/test_ledger.py on real servers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import ledgers
from tests.ledgers import HELD, MIDNIGHT, UNKNOWN, USED, lasting, part_of

from fallow.account import ledger
from fallow.clients import errors
from fallow.model import cost
from fallow.model.cost import (
    DAY,
    HOUR,
    UNIT,
    WHOLE,
    Amounts,
    BookedAlert,
    BookedPrice,
    BookedSaving,
    BudgetReading,
    CostBatch,
    CostFilter,
    CostQuery,
    CostRetention,
    CostStep,
    SavingKind,
)

NAMESPACE = cost.read_dimension("namespace")
TEAM, POD = cost.read_dimension("team"), cost.read_dimension("pod")
# Every second of a history is counted: a quarter of the examples that others get.
ANY_STORE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=settings().max_examples // 4,
)


@contextlib.asynccontextmanager
async def opened(place, epoch=1, **options) -> AsyncIterator[ledger.Ledger]:
    books = place.ledger(**options)
    await books.open()
    try:
        await books.write(CostBatch(), epoch)
        yield books
    finally:
        await books.close()


async def cost_of(books, begin, end, **asked) -> Amounts:
    return ledgers.total(await books.sums(CostQuery(begin=begin, end=end, **asked)))


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 1)
@pytest.mark.parametrize("is_restarted", [False, True], ids=["one-writer", "a-new-writer-each-time"])
@pytest.mark.parametrize("every", [613, 1800, 10 * HOUR], ids=["10m", "30m", "once"])
async def test_ten_hours_at_one_dollar_are_ten_dollars(new_place, every, is_restarted):
    place, what = new_place(), part_of()
    looks = [*range(MIDNIGHT + every, MIDNIGHT + 10 * HOUR, every), MIDNIGHT + 10 * HOUR]
    if is_restarted:
        looks = looks[-9:]
    async with opened(place) as books:
        await books.write(CostBatch(at=MIDNIGHT, intervals=(lasting(what, MIDNIGHT, MIDNIGHT, is_open=True),)), 1)
        for at in looks if not is_restarted else ():
            await books.write(CostBatch(at=at), 1)
    for epoch, at in enumerate(looks, 2):
        async with opened(place, epoch) as books:
            (going_on,) = await books.read_open()
            await books.write(CostBatch(at=at, intervals=(msgspec.structs.replace(going_on, t1=at),)), epoch)
    async with opened(place, 99) as books:
        (going_on,) = await books.read_open()
        await books.write(CostBatch(at=looks[-1] + HOUR, intervals=(
            msgspec.structs.replace(going_on, t1=looks[-1], is_open=False),
        )), 99)
        for rolled in (MIDNIGHT, MIDNIGHT + 4 * HOUR, MIDNIGHT + DAY):
            await books.roll_up(rolled, 99)
            assert (await cost_of(books, MIDNIGHT - DAY, MIDNIGHT + DAY)).cost == 10 * UNIT
            assert (await cost_of(books, MIDNIGHT - DAY, MIDNIGHT + DAY, by=(POD,))).cost == 10 * UNIT
            assert (await cost_of(books, MIDNIGHT, MIDNIGHT + DAY, step=CostStep.hour)).cost == 10 * UNIT
            assert await books.total_since_start() == 10 * UNIT


HISTORIES = st.builds(
    ledgers.make_history, seed=st.integers(0, 2**32), begin=st.integers(MIDNIGHT - 2 * HOUR, MIDNIGHT + HOUR),
    steps=st.lists(st.integers(1, 1500), min_size=1, max_size=9),
)


@pytest.mark.accepts("cost", 3, 4, 5)
@ANY_STORE
@given(history=HISTORIES, chance=st.randoms(use_true_random=False))
async def test_any_history_comes_to_what_every_second_of_it_cost(new_place, history, chance):
    """With restarts that go back and write again, roll-ups at any time, and old batches that come once more."""
    place = new_place()
    epoch = await _live(place, history, chance)
    async with opened(place, epoch) as books:
        assert await books.read_intervals(history.begin, history.end + 1) == history.truth
        await _ask_for_some(books, history, chance)
        await _compare(books, history, chance)
        await books.roll_up((history.end // HOUR + 1) * HOUR, epoch)
        await _compare(books, history, chance)
        everything = await cost_of(books, history.begin - DAY, history.end + DAY)
        assert everything.gpu_micro_seconds == 2 * WHOLE * (history.end - history.begin)  # two GPUs, at every second


async def _ask_for_some(books, history, chance: random.Random) -> None:
    """What is open ends where another follows, also where that one is not asked for."""
    for dimension, value_of in (
        (NAMESPACE, lambda one: ledgers.by_namespace(one)[0]), (POD, lambda one: ledgers.by_team_and_pod(one)[1]),
    ):
        value = chance.choice(sorted({value_of(one) for one in history.truth}))
        where = (CostFilter(dimension, frozenset({value})),)
        found = await books.read_intervals(history.begin, history.end + 1, where)
        assert found == [one for one in history.truth if value_of(one) == value]


async def _live(place, history, chance: random.Random) -> int:
    epoch, done = 1, 0
    while done < len(history.batches):
        async with opened(place, epoch) as books:
            while done < len(history.batches):
                batch = history.batches[done]
                assert await books.write(batch, epoch) == cost.BookedBatch()
                done += 1
                if chance.random() < 0.3:
                    await books.roll_up(batch.at - chance.choice((0, HOUR, 2 * HOUR)), epoch)
                if chance.random() < 0.15:
                    break
        if done < len(history.batches):
            epoch, going_back = epoch + 1, chance.randrange(done + 1)
            async with opened(place, epoch) as books:
                for batch in history.batches[going_back:done]:  # the same again, from some earlier look on
                    await books.write(batch, epoch)
                assert await books.read_intervals(history.begin - DAY, history.end + 1) == history.truths[done - 1]
    late = [batch for batch in history.batches if not batch.removed]
    chance.shuffle(late)
    async with opened(place, epoch) as books:
        for batch in late[:3]:
            await books.write(batch, epoch)
    return epoch


async def _compare(books, history, chance: random.Random) -> None:
    cuts = sorted(chance.randrange(history.begin - 100, history.end + 100) for _ in range(3))
    for (dimensions, name), (begin, end) in zip(
        (((NAMESPACE,), ledgers.by_namespace), ((TEAM, POD), ledgers.by_team_and_pod)),
        ((cuts[0], cuts[2]), (cuts[1], cuts[2])), strict=True,
    ):
        found = await books.sums(CostQuery(begin=begin, end=end, by=dimensions))
        assert ledgers.as_groups(found) == ledgers.second_by_second(history.truth, begin, end, name)
    whole, first, second = [
        await cost_of(books, begin, end) for begin, end in ((cuts[0], cuts[2]), (cuts[0], cuts[1]), (cuts[1], cuts[2]))
    ]
    assert first + second == whole


@pytest.mark.accepts("cost", 4)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("step", list(CostStep))
async def test_the_pieces_of_a_calendar_come_to_the_whole(new_place, step, zone):
    async with opened(new_place()) as books:
        intervals = [
            lasting(part_of(rate=10**9 // 7, at=ledgers.key(team=f"t{day % 3}")), MIDNIGHT + day * DAY + 77,
                    MIDNIGHT + (day + 1) * DAY - 1003, use=(333_333,) * 24, energy_mj=(10**9 + 7,) * 24)
            for day in range(40)
        ]
        await books.write(CostBatch(intervals=tuple(intervals)), 1)
        begin, end = MIDNIGHT + 12_345, MIDNIGHT + 39 * DAY + 54_321
        for rolled in (MIDNIGHT, MIDNIGHT + 20 * DAY + 7 * HOUR, MIDNIGHT + 40 * DAY):
            await books.roll_up(rolled, 1)
            asked = CostQuery(begin=begin, end=end, by=(TEAM,), step=step, zone=zone)
            pieces, whole = await books.sums(asked), await books.sums(msgspec.structs.replace(asked, step=None))
            assert ledgers.total(pieces) == ledgers.total(whole)
            for one in whole:
                assert ledgers.total(piece for piece in pieces if piece.key == one.key) == one.total
            assert all(begin <= piece.begin < piece.end <= end for piece in pieces)


@pytest.mark.accepts("cost", 8)
async def test_after_a_change_of_price_the_hours_before_keep_the_old_one(new_place):
    noon = MIDNIGHT + 12 * HOUR
    prices = [BookedPrice(price_id=name, price_per_hour=price, source="list", retrieved_at=MIDNIGHT)
              for name, price in (("old", "2"), ("new", "3"))]
    async with opened(new_place()) as books:
        before = lasting(part_of(rate=2 * UNIT, price="old"), MIDNIGHT, noon)
        after = lasting(part_of(rate=3 * UNIT, price="new"), noon, MIDNIGHT + DAY)
        await books.write(CostBatch(intervals=(before, after), prices=tuple(prices)), 1)
        for rolled in (MIDNIGHT, MIDNIGHT + DAY):
            await books.roll_up(rolled, 1)
            hours = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY, step=CostStep.hour))
            assert [one.total.cost for one in hours] == [2 * UNIT] * 12 + [3 * UNIT] * 12
        assert await books.read_prices() == prices
        seen = [msgspec.structs.replace(prices[0], retrieved_at=noon, valid_to=noon), prices[1]]
        for told in (tuple(seen), tuple(prices)):  # of what was looked up the last counts, in whatever order it comes
            await books.write(CostBatch(prices=told), 1)
            assert await books.read_prices() == seen
        assert [one.slice.price_id for one in await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY)] == ["old", "new"]


@pytest.mark.accepts("cost", 21)
async def test_what_is_gone_from_the_cluster_stays_in_reports(new_place):
    """Nothing of a report is looked up but in the ledger; not even the intervals must still be there."""
    gone, there = ledgers.key("gone", team="red"), ledgers.key("there", team="red")
    async with opened(new_place()) as books:
        await books.write(CostBatch(intervals=(
            lasting(part_of(at=gone), MIDNIGHT, MIDNIGHT + 5 * HOUR),
            lasting(part_of(at=there, pod="other"), MIDNIGHT + 5 * HOUR, MIDNIGHT + DAY),
        )), 1)
        asked = CostQuery(begin=MIDNIGHT, end=MIDNIGHT + 30 * DAY, by=(NAMESPACE,))
        before = await books.sums(asked)
        assert [(one.key, one.total.cost) for one in before] == [(("gone",), 5 * UNIT), (("there",), 19 * UNIT)]
        await books.roll_up(MIDNIGHT + 2 * DAY, 1)
        await books.forget(CostRetention(intervals=DAY, hours=2 * DAY), MIDNIGHT + 400 * DAY, 1)
        assert await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY) == []
        assert await books.sums(asked) == before


async def test_a_clock_that_is_years_ahead_for_one_hour_makes_nothing_forgotten(new_place):
    """Looks are not made by such a clock, so nothing is summed up by it; what is forgotten never comes back."""
    async with opened(new_place()) as books:
        hour = lasting(part_of(), MIDNIGHT, MIDNIGHT + HOUR)
        await books.write(CostBatch(at=MIDNIGHT + 2 * DAY, intervals=(hour,)), 1)
        await books.roll_up(MIDNIGHT + 2 * DAY, 1)
        await books.forget(CostRetention(), MIDNIGHT + 3000 * DAY, 1)
        assert await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY) == [hour]
        late = lasting(part_of("GPU-2"), MIDNIGHT + DAY, MIDNIGHT + DAY + HOUR)
        assert (await books.write(CostBatch(at=MIDNIGHT + 2 * DAY + 60, intervals=(late,)), 1)).refused == ()
        hourly = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + HOUR))
        assert [one.total.cost for one in hourly] == [UNIT]


async def test_a_used_hour_without_a_measurement_is_unknown_and_not_idle(new_place):
    async with opened(new_place()) as books:
        await books.write(CostBatch(intervals=(
            lasting(part_of(), MIDNIGHT + 1800, MIDNIGHT + 4 * HOUR, use=(WHOLE, None, 250_000)),
        )), 1)
        for rolled in (MIDNIGHT, MIDNIGHT + DAY):
            await books.roll_up(rolled, 1)
            (one,) = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY))
            assert (one.parts[USED].cost, one.parts[USED].use_cost) == (UNIT * 3 // 2, UNIT // 2 + UNIT // 4)
            assert (one.parts[UNKNOWN].cost, one.parts[UNKNOWN].use_cost) == (2 * UNIT, 0)


async def test_groups_have_names_for_what_nobody_holds_and_nobody_said(new_place):
    dimensions = tuple(map(cost.read_dimension, ("namespace", "team", "label:app", "node", "capacity", "pod")))
    async with opened(new_place()) as books:
        await books.write(CostBatch(intervals=(
            lasting(part_of(at=ledgers.key(app="web")), MIDNIGHT, MIDNIGHT + HOUR),
            lasting(ledgers.free("GPU-2", rate=None), MIDNIGHT, MIDNIGHT + HOUR),
        )), 1)
        free, held = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + HOUR, by=dimensions))
        nobody = "__unallocated__"
        assert free.key == (nobody, nobody, nobody, "n1", "unknown", nobody)
        assert free.total == Amounts(gpu_micro_seconds=WHOLE * HOUR, unpriced=WHOLE * HOUR)
        assert held.key == ("ml", "__none__", "web", "n1", "on-demand", "llm-0")
        where = (CostFilter(cost.read_dimension("label:app"), frozenset({"web", "api"})),)
        assert (await cost_of(books, MIDNIGHT, MIDNIGHT + HOUR, where=where)).cost == UNIT
        assert len(await books.read_intervals(MIDNIGHT, MIDNIGHT + HOUR, where)) == 1


async def test_label_sets_beyond_the_most_are_others_and_cost_the_same(new_place, monkeypatch):
    monkeypatch.setattr(cost, "MOST_LABEL_SETS", 3)  # 10,000 take a minute
    place, app = new_place(), cost.read_dimension("label:app")
    for epoch in (1, 2):  # also for a writer that remembers nothing
        async with opened(place, epoch) as books:
            await books.write(CostBatch(intervals=tuple(
                lasting(part_of(f"GPU-{number}", pod=f"p{number}", at=ledgers.key(team=f"t{number}", app=f"a{number}")),
                        MIDNIGHT, MIDNIGHT + HOUR)
                for number in range(9)
            )), epoch)
            found = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY, by=(app, TEAM)))
            assert ledgers.total(found).cost == 9 * UNIT
            assert found[0].key == ("__other__", "__other__")
            assert found[0].total.cost == 3 * UNIT
            teams = [(app, team[0]) for app, team in (one.key for one in found[1:])]
            assert teams == [("__other__", "t")] * 3 + [(app, "t") for app, _ in teams[3:]]
            assert len(teams) == 6


# ---- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 5)
async def test_an_older_writer_is_refused_and_changes_nothing(new_place):
    place = new_place()
    batch = CostBatch(at=MIDNIGHT + HOUR, intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + HOUR),))
    async with opened(place, 4) as old, opened(place, 5) as new:
        for attempt in (
            old.write(batch, 4), old.claim(4), old.roll_up(MIDNIGHT + DAY, 4), old.write_budgets([], [], 4),
            old.forget(CostRetention(), MIDNIGHT, 4),
        ):
            with pytest.raises(ledger.StaleWriter, match=r"kept by a writer of epoch 5, and ours is 4"):
                await attempt
        assert (await new.read_meta()).rolled_until == (await new.read_meta()).seen_until == 0
        await new.write(batch, 5)
        assert (await old.read_meta()).seen_until == MIDNIGHT + HOUR  # it may still look


@pytest.mark.accepts("cost", 3)
async def test_what_overlaps_or_runs_backwards_is_refused_by_name_and_the_rest_is_written(new_place):
    good = lasting(part_of("GPU-2"), MIDNIGHT, MIDNIGHT + HOUR)
    there = lasting(part_of(), MIDNIGHT + 100, MIDNIGHT + 200)
    bad = {
        lasting(part_of(pod="b"), MIDNIGHT + 150, MIDNIGHT + 300): "it overlaps another interval",
        lasting(part_of(pod="b"), MIDNIGHT + 50, MIDNIGHT + 101): "it overlaps another interval",
        lasting(part_of(pod="b"), MIDNIGHT + 100, MIDNIGHT + 120): "it overlaps another interval",
        lasting(part_of("GPU-3"), MIDNIGHT + 100, MIDNIGHT + 99): "it ends before it begins",
        lasting(part_of("GPU-4"), MIDNIGHT + 100, MIDNIGHT + DAY + 1): "it is longer than its UTC day",
        lasting(part_of("GPU-5", share=WHOLE + 1), MIDNIGHT, MIDNIGHT + 1): "its share is 1000001 of 1000000",
        lasting(part_of("GPU-6", rate=-1), MIDNIGHT, MIDNIGHT + 1): "its rate is -1",
        lasting(part_of("GPU-7"), MIDNIGHT, MIDNIGHT + 1, use=(0, 0)): "it touches 1 hours, and has measurements",
        lasting(part_of("GPU-8"), MIDNIGHT, MIDNIGHT + 1, use=(WHOLE + 1,)): "a use of it is not between 0 and 1",
        lasting(part_of("GPU-9"), MIDNIGHT, MIDNIGHT + 1, energy_mj=(-1,)): "an energy of it is no energy",
    }
    async with opened(new_place()) as books:
        assert (await books.write(CostBatch(intervals=(there,)), 1)).refused == ()
        done = await books.write(CostBatch(intervals=(*bad, good)), 1)
        assert len(done.refused) == len(bad)
        said = {one.id: because for one, because in bad.items()}
        for sentence in done.refused:
            name = sentence.split()[1]
            assert f"interval {name} on GPU-" in sentence
            assert said[name] in sentence
        assert await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY) == [good, there]


async def test_a_clock_that_steps_back_shortens_nothing(new_place):
    what = part_of()
    async with opened(new_place()) as books:
        for end, is_open in ((600, True), (200, True), (700, True), (650, False), (100, True)):
            one = lasting(what, MIDNIGHT, MIDNIGHT + end, is_open=is_open, use=(end,))
            await books.write(CostBatch(at=MIDNIGHT + end, intervals=(one,)), 1)
        (found,) = await books.read_intervals(MIDNIGHT, MIDNIGHT + HOUR)
        assert (found.t1, found.is_open, found.use) == (MIDNIGHT + 700, False, (700,))
        assert (await books.read_meta()).seen_until == MIDNIGHT + 700


async def test_what_was_summed_up_and_is_changed_is_summed_up_anew(new_place):
    """An idle verdict that is dated back further than roll-ups wait."""
    async with opened(new_place()) as books:
        one = lasting(part_of(), MIDNIGHT, MIDNIGHT + 10 * HOUR, is_open=True, use=(0,) * 10)
        await books.write(CostBatch(at=MIDNIGHT + 10 * HOUR, intervals=(one,)), 1)
        assert await books.roll_up(MIDNIGHT + 8 * HOUR, 1) == MIDNIGHT + 8 * HOUR
        cut = MIDNIGHT + 3 * HOUR + 60
        await books.write(CostBatch(at=MIDNIGHT + 10 * HOUR, removed=(one.ref,), intervals=(
            msgspec.structs.replace(one, t1=cut, is_open=False, use=(0,) * 4),
            lasting(part_of(state=HELD), cut, MIDNIGHT + 10 * HOUR, is_open=True),
        )), 1)
        assert (await books.read_meta()).rolled_until == MIDNIGHT + 3 * HOUR
        for _ in range(2):
            (found,) = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY))
            assert found.parts[HELD].cost == round(6 * UNIT + UNIT * 59 / 60)
            assert found.total.cost == 10 * UNIT
            await books.roll_up(MIDNIGHT + 8 * HOUR, 1)


async def test_what_a_reader_remembers_of_sums_it_believes_until_they_change(new_place):
    """Whoever changes them: another process may write."""
    place, asked = new_place(), CostQuery(begin=MIDNIGHT, end=MIDNIGHT + 2 * DAY, step=CostStep.day)
    hours = [lasting(part_of(), MIDNIGHT + at * HOUR, MIDNIGHT + (at + 1) * HOUR) for at in range(30)]
    async with opened(place) as books, opened(place) as reader:
        await books.write(CostBatch(intervals=tuple(hours)), 1)
        assert await books.roll_up(MIDNIGHT + 27 * HOUR, 1) == MIDNIGHT + 27 * HOUR
        for until in (28, 28, 29):
            assert [one.total.cost for one in await reader.sums(asked)] == [24 * UNIT, 6 * UNIT]
            await books.roll_up(MIDNIGHT + until * HOUR, 1)
        for gone in (hours[3], hours[25]):
            before = await cost_of(reader, MIDNIGHT, MIDNIGHT + 2 * DAY)
            await books.write(CostBatch(removed=(gone.ref,)), 1)
            assert (await cost_of(reader, MIDNIGHT, MIDNIGHT + 2 * DAY)).cost == before.cost - UNIT
            for hour in (5, 26, 29):
                await books.roll_up(MIDNIGHT + hour * HOUR, 1)
                assert (await cost_of(reader, MIDNIGHT, MIDNIGHT + 2 * DAY)).cost == before.cost - UNIT


async def test_the_total_never_falls(new_place):
    place = new_place()
    one = lasting(part_of(), MIDNIGHT, MIDNIGHT + 10 * HOUR)
    async with opened(place) as books:
        await books.write(CostBatch(intervals=(one,)), 1)
        await books.roll_up(MIDNIGHT + DAY, 1)
        assert await books.total_since_start() == 10 * UNIT
        await books.write(CostBatch(removed=(one.ref,)), 1)
        assert (await cost_of(books, MIDNIGHT, MIDNIGHT + DAY)).cost == 0
        assert await books.total_since_start() == 10 * UNIT
    async with opened(place, 2) as books:
        assert await books.total_since_start() == 10 * UNIT
        await books.write(CostBatch(intervals=(lasting(part_of(rate=2 * UNIT), MIDNIGHT, MIDNIGHT + 10 * HOUR),)), 2)
        assert await books.total_since_start() == 20 * UNIT


async def test_only_what_is_summed_up_is_forgotten_and_the_past_is_still_divided_evenly(new_place):
    async with opened(new_place()) as books:
        days = [lasting(part_of(), MIDNIGHT + day * DAY, MIDNIGHT + (day + 1) * DAY) for day in range(6)]
        await books.write(CostBatch(intervals=tuple(days)), 1)
        await books.roll_up(MIDNIGHT + 4 * DAY + HOUR, 1)
        await books.forget(CostRetention(intervals=0, hours=DAY), MIDNIGHT + 6 * DAY, 1)
        meta = await books.read_meta()
        assert (meta.intervals_from, meta.hours_from) == (MIDNIGHT + 4 * DAY, MIDNIGHT + 3 * DAY)
        for begin, end in ((0, 6 * DAY), (1000, 5000), (1000, 3 * DAY + 1234), (3 * DAY + 77, 5 * DAY + 9)):
            found = await cost_of(books, MIDNIGHT + begin, MIDNIGHT + end)
            assert abs(found.cost * HOUR - UNIT * (end - begin)) <= 2 * HOUR
            middle = MIDNIGHT + (begin + end) // 2
            parts = await cost_of(books, MIDNIGHT + begin, middle), await cost_of(books, middle, MIDNIGHT + end)
            assert parts[0] + parts[1] == found
        late = await books.write(CostBatch(intervals=(days[0],)), 1)
        assert "the ledger has forgotten the intervals of that time" in late.refused[0]


async def test_a_reader_sees_one_instant_while_a_writer_writes(new_place):
    place = new_place()
    async with opened(place) as writer, opened(place) as reader:
        for hour in range(5):
            begin = MIDNIGHT + hour * HOUR
            await writer.write(CostBatch(intervals=(lasting(part_of(), begin, begin + HOUR),)), 1)
            assert (await cost_of(reader, MIDNIGHT, MIDNIGHT + DAY)).cost == (hour + 1) * UNIT


async def test_savings_and_budgets_stand_once(new_place):
    saving = BookedSaving(
        id="w1", at=MIDNIGHT, namespace="ml", kind=SavingKind.waste, saved=5, baseline=7, actual=2, realised=True,
        details='{"method":"paused"}',
    )
    reading = BudgetReading(at=MIDNIGHT, budget="b", team="red", limit=100, spend=80, used_micro=800_000, status="ok")
    alert = BookedAlert(
        budget_uid="u", period_start=MIDNIGHT, alert="at-80", channel="slack", state="fired", fired_at=MIDNIGHT
    )
    place = new_place()
    async with opened(place) as books:
        for _ in range(2):
            await books.write(CostBatch(savings=(saving, msgspec.structs.replace(saving, id="w2", at=MIDNIGHT + 9))), 1)
            await books.write_budgets([reading], [alert], 1)
        await books.write(CostBatch(savings=(msgspec.structs.replace(saving, saved=6),), removed_savings=("w2",)), 1)
        await books.write_budgets([], [msgspec.structs.replace(alert, state="resolved", resolved_at=MIDNIGHT + 5)], 1)
        assert await books.read_savings(MIDNIGHT, MIDNIGHT + DAY) == [msgspec.structs.replace(saving, saved=6)]
        assert await books.read_savings(MIDNIGHT + 1, MIDNIGHT + DAY) == []
        assert await books.read_budgets(MIDNIGHT, MIDNIGHT + 1) == [reading]
        (found,) = await books.read_alerts("u")
        assert (found.state, found.fired_at, found.resolved_at) == ("resolved", MIDNIGHT, MIDNIGHT + 5)
        assert await books.read_alerts("other") == []
        assert await books.read_alerts() == [found]


async def test_one_ledger_has_one_currency(new_place):
    place = new_place()
    async with opened(place, currency="EUR") as books:
        assert (await books.read_meta()).currency == "EUR"
    with pytest.raises(errors.Misconfigured, match="kept in EUR, and the cost currency is set to USD"):
        await place.ledger().open()
    async with opened(place, currency="EUR") as books:
        assert (await books.read_meta()).currency == "EUR"


async def test_a_question_that_cannot_be_says_why(new_place):
    async with opened(new_place()) as books:
        with pytest.raises(ValueError, match="'Mars/Olympus' is no time zone"):
            await books.sums(CostQuery(begin=0, end=DAY, step=CostStep.day, zone="Mars/Olympus"))
        with pytest.raises(ValueError, match="more than 20000 pieces"):
            await books.sums(CostQuery(begin=0, end=10**9, step=CostStep.hour))
        assert await books.sums(CostQuery(begin=DAY, end=DAY)) == []


async def test_two_writers_of_one_epoch_that_take_turns_do_not_believe_their_memory(new_place):
    """The Lease forbids it. Still nothing is overwritten that the other wrote."""
    place = new_place()
    async with opened(place) as one, opened(place) as other:
        await one.write(CostBatch(intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + 100, is_open=True),)), 1)
        await other.write(CostBatch(intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + 500),)), 1)
        late = await one.write(CostBatch(intervals=(lasting(part_of(pod="b"), MIDNIGHT + 200, MIDNIGHT + 300),)), 1)
        assert "it overlaps another interval" in late.refused[0]
        await one.write(CostBatch(intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + 200, is_open=True),)), 1)
        (found,) = await other.read_intervals(MIDNIGHT, MIDNIGHT + DAY)
        assert (found.t1, found.is_open) == (MIDNIGHT + 500, False)
