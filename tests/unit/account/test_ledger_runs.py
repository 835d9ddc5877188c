"""What the ledger tells of pods: who shares by us and what that saved, and how long those ran that are over."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests import cost_scenes
from tests.cost_scenes import P4D, TODAY, YESTERDAY

from fallow import telemetry
from fallow.account import cost_gauges, ledger, saving_books
from fallow.account.schema import SQLITE, tables
from fallow.model.cost import DAY, HOUR, WHOLE, CostBatch, Interval, SavingKind, Sharing
from fallow.model.runs import PastRun

TRAIN = cost_scenes.key("red", "train")
FIRST = [*cost_scenes.held("GPU-9", YESTERDAY, TODAY, cost_scenes.key("web", "x"), pod="first")]


def sharers(count: int, sharing: Sharing = Sharing.timeslicing, hours: int = 4) -> list[Interval]:
    """One of them goes an hour before the others."""
    of = cost_scenes.key("red", "serve", sharing=sharing)
    return [
        one for number in range(count)
        for one in cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + (hours - (number == 0)) * HOUR, of,
                                    share=WHOLE // 4, slot=str(number), pod=f"pod-{number}")
    ]


async def find(intervals: list[Interval], *shared: str) -> CostBatch:
    async with cost_scenes.opened([*intervals, *FIRST], shared=shared) as made:
        return await saving_books.find_savings(made, (), YESTERDAY, TODAY, lambda key, at: None)


@pytest.mark.accepts("cost", 22)
@pytest.mark.parametrize("sharing", [Sharing.mig, Sharing.mps, Sharing.timeslicing, Sharing.dra])
async def test_pods_that_we_made_share_saved_a_gpu_each_beyond_the_first_while_they_overlapped(
    sharing: Sharing
) -> None:
    (row,) = (await find(sharers(3, sharing), "pod-0", "pod-1", "pod-2")).savings
    assert (row.kind, row.realised, row.saved) == (SavingKind.sharing, True, (2 * 3 + 1) * P4D)
    assert row.baseline - row.actual == row.saved


async def test_each_namespace_saved_what_its_own_pods_did_not_pay() -> None:
    both = [
        one for space, slot in (("red", "0"), ("red", "1"), ("blue", "2"))
        for one in cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + HOUR,
                                    cost_scenes.key(space, "serve", sharing=Sharing.mps), share=WHOLE // 4, slot=slot,
                                    pod=f"pod-{slot}")
    ]
    rows = {row.namespace: row for row in (await find(both, "pod-0", "pod-1", "pod-2")).savings}
    assert sum(row.saved for row in rows.values()) == 2 * P4D
    assert (rows["red"].baseline, rows["blue"].baseline) == (2 * P4D, P4D)
    assert rows["red"].saved == pytest.approx(2 * rows["blue"].saved, abs=2)


@pytest.mark.parametrize("shared", [(), ("pod-1",), ("somebody",)])
async def test_who_shares_by_himself_was_not_saved_by_us(shared: tuple[str, ...]) -> None:
    assert (await find(sharers(3), *shared)).savings == ()


async def test_what_sharing_saved_is_a_gauge_and_is_not_claimed_twice() -> None:
    shared = ("pod-0", "pod-1", "pod-2")
    async with cost_scenes.opened([*sharers(3), *FIRST], shared=shared) as made:
        for _ in range(2):
            found = await saving_books.find_savings(made, (), YESTERDAY, TODAY, lambda key, at: None)
            await made.write(found, 1)
        metrics = telemetry.Telemetry()
        await cost_gauges.CostGauges(metrics, most_pods=10, max_age=90 * DAY).read(made, float(TODAY))
        shown = dict(line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if line[0] != "#")
        assert float(shown["gpu_autoscaler_sharing_savings_usd"]) == pytest.approx(7 * P4D / 1e9)


async def test_a_run_is_a_pod_that_is_over_and_whose_beginning_was_seen() -> None:
    run = [*cost_scenes.held("GPU-0", YESTERDAY + HOUR, YESTERDAY + 3 * HOUR, TRAIN, use=0.5, pod="a"),
           *cost_scenes.held("GPU-1", YESTERDAY + HOUR, YESTERDAY + 3 * HOUR, TRAIN, use=0.7, pod="a")]
    over_midnight = [*cost_scenes.held("GPU-2", TODAY - HOUR, TODAY + HOUR, TRAIN, use=None, pod="b")]
    open_ = [*cost_scenes.held("GPU-3", TODAY, TODAY + HOUR, TRAIN, is_open=True, pod="c")]
    async with cost_scenes.opened([*FIRST, *run, *over_midnight, *open_], at=TODAY + HOUR) as made:
        late, early = await made.read_runs(YESTERDAY, 10)
        assert (early.task.owner, early.task.work_class, early.task.gpus) == ("red/Deployment/train", "training", 2)
        assert (early.task.begins_at, early.minutes) == (YESTERDAY + HOUR, 120)
        assert early.use == pytest.approx(0.6)
        assert (late.minutes, late.use) == (120, None)
        assert await made.read_runs(YESTERDAY, 1) == [late]
        assert await made.read_runs(TODAY, 10) == []  # b came before, so nobody knows when


async def test_a_run_that_was_hardly_measured_has_no_use() -> None:
    run = [*cost_scenes.held("GPU-0", YESTERDAY + HOUR, YESTERDAY + 2 * HOUR, TRAIN, use=0.5, pod="a"),
           *cost_scenes.held("GPU-0", YESTERDAY + 2 * HOUR, YESTERDAY + 3 * HOUR, TRAIN, pod="a", slot="x")]
    async with cost_scenes.opened([*FIRST, *run]) as made:
        (found,) = await made.read_runs(YESTERDAY, 10)
        assert (found.minutes, found.use) == (120, None)


async def test_of_an_empty_ledger_nothing_ran() -> None:
    made = ledger.on_file(None)
    await made.open()
    assert await made.read_runs(YESTERDAY, 10) == list[PastRun]()
    await made.close()


async def test_a_file_of_the_version_before_is_brought_up_to_ours(tmp_path: Path) -> None:
    place = tmp_path / "ledger.sqlite"
    async with cost_scenes.opened(FIRST, place):
        pass
    with sqlite3.connect(place) as on:
        on.execute("ALTER TABLE cost_pods DROP COLUMN is_shared")
        on.execute("DROP TABLE scaling_demand")
        on.execute("UPDATE ledger_meta SET schema_version = 1")
        on.execute("PRAGMA user_version=1")
    made = ledger.on_file(place)
    await made.open()
    await made.claim(2)
    more = tuple(cost_scenes.held("GPU-0", TODAY, TODAY + HOUR, TRAIN, pod="a"))
    assert (await made.write(CostBatch(at=TODAY + DAY // 2, intervals=more, shared=("a",)), 2)).refused == ()
    assert await made.read_shared({"a", "first"}) == {"a"}
    await made.close()
    assert "cost_pods ADD COLUMN" in tables.find_changes(1, SQLITE)[0]
