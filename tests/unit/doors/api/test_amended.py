"""What somebody did is told at once, and until a cycle has seen it: in the lists, in their sums, on its own page."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World
from tests.unit.doors.api.serving import StandingLoop

from fallow import names, settings
from fallow.account import savings
from fallow.doors.answers import past
from fallow.doors.answers import rows as telling
from fallow.doors.api import editions, events, live
from fallow.model import cluster, units
from fallow.model.history import Levels
from fallow.model.units import DAY, HOUR, MINUTE

MANDATE = builders.mandate(builders.rule(notice=builders.notice(grace=30 * MINUTE)), acting=True)
KEEP = telling.KeepTold(
    until="2026-11-15T16:00:00Z", by="api:ana", reason="demo", at="2026-11-15T12:00:00Z", idle_seconds=0, cost=None
)


@pytest.fixture
def world() -> World:
    made = World()
    made.workload("ml/quiet", gpus=[builders.idle()])
    made.workload("ml/busy", gpus=[builders.busy()])
    return made


class Told:
    """Editions over a loop that stands, by a clock of their own."""

    def __init__(self, world: World) -> None:
        self.now, self.loop, self.world = NOW, StandingLoop(NOW), world
        options = msgspec.structs.replace(settings.read_flags({"daemon_mode": True}, {}), mandate=MANDATE)
        self.editions = editions.Editions(self.loop, options, lambda: self.now)  # type: ignore[arg-type]
        self.loop.look_at(world, MANDATE)

    async def row(self, name: str) -> Any:
        latest = await self.editions.latest()
        assert latest is not None
        return next(row for row in latest.rows if row.name == name)


def written(world: World, said: dict[str, str], replicas: int = 1) -> tuple[cluster.Workload, ...]:
    """The workloads as they are now, with these annotations on the first, as kubectl or a command would write them."""
    first, *rest = world.snapshot().workloads
    after = msgspec.structs.replace(first, annotations=said, marks=said, body={"spec": {"replicas": replicas}})
    return after, *rest


async def test_an_acknowledgement_that_was_written_past_us_is_told_at_once_everywhere(world: World) -> None:
    told = Told(world)
    assert (await told.row("quiet")).state == "idle"
    there = written(world, {
        names.ACK_UNTIL: units.rfc3339(NOW + 8 * HOUR), names.ACK_BY: "user:ana", names.ACK_AT: units.rfc3339(NOW + 5),
    })
    told.editions.list_now = lambda: there
    before = await told.editions.latest()
    row, latest = await told.row("quiet"), await told.editions.latest()
    assert (row.state, row.keep.by, row.keep.until) == ("kept", "user:ana", units.rfc3339(NOW + 8 * HOUR))
    assert latest is before  # it was judged once
    finding = latest.plan.findings[0]
    assert (finding.skip_label, latest.plan.at) == ("Acknowledged", NOW)  # as `why` and `status` tell it
    assert latest.plan.memory.confirmed == told.loop.ended.plan.memory.confirmed  # nothing is confirmed by a question
    told.editions.list_now = lambda: world.snapshot().workloads  # and taken back
    told.editions._looks_from = 0.0  # some milliseconds later
    assert (await told.row("quiet")).state == "idle"


async def test_who_writes_annotations_all_the_time_does_not_keep_us_busy(world: World) -> None:
    """Judging took a second, on a cluster of many: it is not done again within ten."""
    told, ticks = Told(world), iter([100.0, 101.0, 105.0, 112.0, 113.0])
    told.editions._monotonic = lambda: next(ticks)
    keep = written(world, {names.ACK_UNTIL: units.rfc3339(NOW + 8 * HOUR)})
    told.editions.list_now = lambda: keep
    states = [(await told.row("quiet")).state]
    free = written(world, {})
    told.editions.list_now = lambda: free
    states += [(await told.row("quiet")).state, (await told.row("quiet")).state]
    assert states == ["kept", "kept", "idle"]


async def test_who_makes_pods_all_the_time_does_not_have_us_look_for_owners_at_every_question(world: World) -> None:
    """Nothing is written, and yet each time all is found out anew."""
    told = Told(world)
    now, looks = 100.0, 0

    def look() -> tuple[cluster.Workload, ...]:
        nonlocal now, looks
        now, looks = now + 0.2, looks + 1  # it takes 200 ms
        return tuple(world.snapshot().workloads)

    told.editions._monotonic, told.editions.list_now = lambda: now, look
    for _ in range(100):  # one question every 50 ms
        await told.row("quiet")
        now += 0.05
    assert looks <= 4


@pytest.mark.parametrize(("said", "replicas", "state"), [
    (builders.paused_marks(NOW + 5), 0, "paused"), ({"gpuautoscaler.io/idle": "ignore"}, 1, "left"),
], ids=["paused", "opted-out"])
async def test_whatever_else_somebody_wrote_is_told_at_once(
    world: World, said: dict[str, str], replicas: int, state: str
) -> None:
    told = Told(world)
    there = written(world, said, replicas)
    told.editions.list_now = lambda: there
    assert (await told.row("quiet")).state == state
    assert (await told.row("busy")).state == "busy"


async def test_a_resume_is_told_at_once() -> None:
    world = World()
    marks, asleep = builders.paused_marks(NOW - HOUR), {"spec": {"replicas": 0}}
    world.workload("ml/rests", gpus=[], pods=[], annotations=marks, body=asleep)
    told = Told(world)
    assert (await told.row("rests")).state == "paused"
    there = written(world, {names.RESUMED_AT: units.rfc3339(NOW + 5)}, 3)
    told.editions.list_now = lambda: there
    assert (await told.row("rests")).state == "resuming"


async def test_a_keep_is_told_before_the_next_cycle_and_dropped_when_one_has_looked(world: World) -> None:
    told = Told(world)
    row = await told.row("quiet")
    assert row.state == "idle"
    ref, told.now = world.workloads[0].ref, NOW + 60
    coming = told.editions.amend(ref, lambda row: telling.as_kept(row, KEEP))
    assert coming is not None
    assert (coming.state, coming.keep, coming.revision > row.revision) == ("kept", KEEP, True)
    told.editions.touch()
    row = await told.row("quiet")
    assert (row.state, row.group, row.next.type, row.revision) == ("kept", "kept", "keepEnds", coming.revision)
    told.loop.look_at(world, MANDATE)  # a cycle that began before: it cannot have seen it
    assert (await told.row("quiet")).state == "kept"
    world.now = NOW + 120
    told.loop.look_at(world, MANDATE)
    assert (await told.row("quiet")).state == "idle", "by what it saw, nobody keeps it"


async def test_of_two_deeds_the_later_hides_no_earlier_one_until_that_was_seen(world: World) -> None:
    told = Told(world)
    await told.row("quiet")
    ref, told.now = world.workloads[0].ref, NOW + 10
    told.editions.amend(ref, lambda row: telling.as_paused(row, at=NOW + 10, by="api:bob", reason="by hand"))
    told.editions.touch()
    told.now = NOW + 20
    coming = told.editions.amend(ref, lambda row: telling.as_kept(row, KEEP))
    told.editions.touch()
    for row in (coming, await told.row("quiet")):
        assert row is not None
        assert (row.state, row.rest is not None, row.keep) == ("paused", True, KEEP), "its GPUs are gone: no word of it"
    world.now = NOW + 15  # a cycle that saw the pause, and not the keep
    told.loop.look_at(world, MANDATE)
    row = await told.row("quiet")
    assert (row.rest, row.keep) == (None, KEEP)


async def test_each_deed_leads_to_the_state_that_follows_it(world: World) -> None:
    told = Told(world)
    idle, busy = await told.row("quiet"), await told.row("busy")
    kept = telling.as_kept(idle, KEEP)
    assert (telling.as_released(kept).state, telling.as_released(kept).keep) == ("idle", None)
    paused = telling.as_paused(idle, at=NOW, by="api:ana", reason="by hand")
    assert paused.rest is not None
    assert (paused.state, paused.group, paused.rest.by, paused.next) == ("paused", "paused", "api:ana", None)
    back = telling.as_resumed(paused)
    assert (back.state, back.rest, back.verdict) == ("resuming", None, "unknown")
    assert (telling.as_kept(busy, KEEP).state, telling.as_kept(busy, KEEP).keep) == ("busy", KEEP)


@pytest.mark.parametrize(
    ("free", "taken"), [(10.0, 0.0), (4.0, 0.0), (1.0, 1.5), (0.0, 2.0)], ids=["many", "as many", "few", "none"]
)
def test_what_is_given_back_and_not_among_the_free_was_taken(free: float, taken: float) -> None:
    """Four GPUs rest for an hour; counted every quarter of it, of which the second half is of another state."""
    spans = [savings.PauseSpan(uid="u", gpus=4.0, begins=NOW, ends=NOW + HOUR)]
    levels = [
        Levels(at=NOW + at * MINUTE, total=8, busy=0, idle=0, kept=0, unknown=0, free=free if at < 30 else 10.0)
        for at in (0, 15, 30, 45)
    ]
    assert past.taken_between(spans, levels, NOW, NOW + HOUR) == taken


def test_where_nobody_counted_the_free_ones_nobody_knows_what_was_taken() -> None:
    spans = [savings.PauseSpan(uid="u", gpus=4.0, begins=NOW, ends=NOW + HOUR)]
    unseen = [Levels(at=NOW, total=None, busy=0, idle=0, kept=0, unknown=0, free=None)]
    assert past.taken_between(spans, unseen, NOW, NOW + HOUR) is None
    assert past.taken_between(spans, [], NOW, NOW + HOUR) is None


@pytest.mark.parametrize(("since", "known"), [
    (None, [False, False, False]), (NOW - DAY, [False, True, True]), (NOW, [False, False, True]),
    (NOW - 9 * DAY, [True, True, True]),
], ids=["never", "since-yesterday", "since-today", "long-ago"])
def test_of_a_day_before_anything_was_written_down_nothing_is_known_and_that_is_not_zero(
    since: float | None, known: list[bool]
) -> None:
    hours = {day: past.DayHours(0.0, 0.0) for day in past.find_days(3, NOW)}
    page = past.show_savings(hours, (), is_dry=False, source="books", since=since, until=NOW)
    assert [day.gpu_hours for day in page.days] == [0.0 if each else None for each in known]
    assert [day.taken_gpu_hours for day in page.days] == [0.0 if each else None for each in known]


async def test_a_cycle_that_cannot_be_told_to_live_pages_ends_nothing_and_the_next_one_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told, changes = Told(world), events.Changes()

    def stumble(row: telling.ApiRow) -> telling.ApiRow:
        raise RecursionError("nobody foresaw this")

    told.editions.amend(world.workloads[0].ref, stumble)
    page = changes.listen(None)
    await page.take(1.0)  # its greeting
    telling_it = asyncio.create_task(live.LiveTeller(told.editions, changes, every=0.01).run())
    async with asyncio.timeout(10):
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        told.now, world.now = NOW + HOUR, NOW + HOUR
        told.loop.look_at(world, MANDATE)
        assert b"event: cycle" in await page.take(5.0)
    assert len([each for each in caplog.records if each.exc_info]) == 1  # not once a second
    telling_it.cancel()
    await asyncio.wait({telling_it})


async def test_live_pages_are_sent_what_is_new_and_what_is_gone(world: World) -> None:
    told, changes = Told(world), events.Changes()
    page = changes.listen(None)
    await page.take(1.0)  # its greeting
    telling_it = asyncio.create_task(live.LiveTeller(told.editions, changes, every=0.01).run())
    first = await page.take(5.0)
    later = World(NOW + MINUTE)
    later.workload("ml/quiet", gpus=[builders.idle()])
    quiet, busy = (each.ref.uid.encode() for each in world.workloads)
    told.now, later.workloads[0] = NOW + MINUTE, msgspec.structs.replace(later.workloads[0], ref=world.workloads[0].ref)
    told.loop.look_at(later, MANDATE)
    second = await page.take(5.0)
    telling_it.cancel()
    await asyncio.wait({telling_it})
    assert (first.count(b"event: workload"), quiet in first, busy in first) == (2, True, True)
    assert b'{"uid":"' + busy + b'","gone":true}' in second


async def test_a_row_that_only_grew_older_is_not_sent_again(world: World) -> None:
    """Its sentence says another time, and so does what is due: the state is the same."""
    told, changes = Told(world), events.Changes()
    page = changes.listen(None)
    await page.take(1.0)  # its greeting
    telling_it = asyncio.create_task(live.LiveTeller(told.editions, changes, every=0.01).run())
    await page.take(5.0)
    told.now, world.now = NOW + MINUTE, NOW + MINUTE
    told.loop.look_at(world, MANDATE)
    second = await page.take(5.0)
    telling_it.cancel()
    await asyncio.wait({telling_it})
    assert b"event: cycle" in second
    assert b"event: workload" not in second
