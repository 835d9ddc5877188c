"""What a digest counts: hours held idle, acknowledgements with their cost, what pauses gave back, what was not seen."""

import sqlite3

import msgspec
import pytest
from tests import builders, cost_scenes
from tests.builders import DAY, HOUR, MINUTE, NOW, World

from fallow.account import audit, chronicle, digest, held_idle, savings
from fallow.act.notices import digesting
from fallow.decide.idle import plan as brain
from fallow.doors.answers import cost_books
from fallow.model import cluster, decision, windows
from fallow.model.cost import UNIT, BookedSaving, CostQuery, SavingKind, SpendState
from fallow.model.history import AuditEntry, CameBy, Condition, Happened, Turned
from fallow.model.units import rfc3339

T4 = "Tesla-T4"
ASK = digest.DigestAsk(since=NOW - 7 * DAY, until=NOW, is_dry=False, cluster_name="prod", interval=5 * MINUTE)
ACK = {
    "gpuautoscaler.io/ack-until": rfc3339(NOW + DAY), "gpuautoscaler.io/ack-by": "user:ana",
    "gpuautoscaler.io/ack-reason": "demo <b>", "gpuautoscaler.io/ack-at": rfc3339(NOW - DAY),
}


@pytest.fixture
async def kept():
    made = audit.Audit(None)
    await made.open()
    yield made
    await made.close()


def make_world() -> World:
    world = World()
    world.node("node-1", product=T4)
    world.workload("ml/quiet", gpus=[builders.idle(model=T4)] * 2)
    world.workload("ml/kept", gpus=[builders.idle(model=T4)], annotations=ACK)
    world.workload("web/odd", gpus=[builders.idle(model="Unknown")])
    world.workload("web/busy", gpus=[builders.busy(model=T4)])
    return world


def cycle_of(world: World, at: float) -> decision.Cycle:
    seen = world.snapshot(version=1)
    return decision.Cycle(brain.make_plan(seen, builders.mandate(), decision.Memory(), at), seen, (), "", 0.1)


async def play(kept: audit.Audit, world: World, hours: float, *, fails: range = range(0)) -> decision.Cycle:
    """Cycles every five minutes until now; those with these numbers fail."""
    told, latest = chronicle.Chronicle(), cycle_of(world, NOW)
    seen, steps = latest.snapshot, int(hours * 12)
    for step in range(steps + 1):
        at = NOW - (steps - step) * 5 * MINUTE
        plan = msgspec.structs.replace(latest.plan, at=at)
        became = decision.Cycle(plan, seen, (), "Prometheus does not answer" if step in fails else "", 0.1)
        kept.put(told.add(became, at))
    await kept.flush(NOW)
    return latest


def saving(hours: float, *, at: int, is_realised: bool, dollars: int = 0, is_dry: bool = False) -> BookedSaving:
    details = msgspec.json.encode({"gpuHours": hours}).decode()
    return BookedSaving(
        id=f"{hours}-{is_realised}-{is_dry}", at=at, namespace="ml", kind=SavingKind.waste, saved=dollars * UNIT,
        baseline=dollars * UNIT, actual=0, details=details, realised=is_realised, is_dry_run=is_dry,
    )


@pytest.mark.parametrize("is_dry", [False, True])
async def test_where_books_are_kept_a_digest_has_their_figures(kept, is_dry):
    """The audit has 40 hours held idle and nothing given back: where books are kept, no one asks it."""
    latest, day = await play(kept, make_world(), 10), cost_scenes.TODAY
    quiet, odd = (cost_scenes.key(*of, node="node-1") for of in (("ml", "quiet"), ("web", "odd")))
    idle = SpendState.held_idle
    booked = [
        *cost_scenes.held("GPU-0", day, day + 3 * 3600, quiet, idle, rate=2 * 10**9),
        *cost_scenes.held("GPU-0", day + 3 * 3600, day + 4 * 3600, quiet, idle, rate=2 * 10**9, ack="a-1"),
        *cost_scenes.held("GPU-0", day + 4 * 3600, day + 9 * 3600, quiet, rate=2 * 10**9),
        *cost_scenes.held("GPU-1", day, day + 3600, odd, idle, rate=None),
    ]
    saved = (
        saving(5.0, at=day, is_realised=True, dollars=10), saving(3.0, at=day, is_realised=False),
        saving(9.0, at=day, is_realised=False, dollars=18, is_dry=True),
    )
    asked = msgspec.structs.replace(ASK, is_dry=is_dry)
    async with cost_scenes.opened(booked, prices=(), savings=saved, currency="EUR") as ledger:
        days = await held_idle.read_booked(ledger, ledger.sums, "EUR", ASK.since, ASK.until, NOW)
        report = await ledger.sums(CostQuery(begin=int(ASK.since), end=int(ASK.until)))
    made = await digest.make(kept, latest, asked, days)
    places = {each.name: (each.gpu_hours, each.kept_gpu_hours, each.cost, each.unpriced_gpu_hours)
              for each in made.workloads}
    assert places == {"quiet": (4.0, 1.0, 8.0, 0.0), "odd": (1.0, 0.0, None, 1.0)}
    assert (made.idle.gpu_hours, made.idle.cost, made.idle.unpriced_gpu_hours) == (5.0, 8.0, 1.0)
    assert made.idle.cost == sum(one.parts[idle].cost for one in report) / UNIT  # as `fallow cost` says it
    back = made.savings
    assert (back.gpu_hours, back.taken_gpu_hours, back.cost) == ((9.0, None, 18.0) if is_dry else (8.0, 5.0, 10.0))
    text = digesting.write_text(made)
    assert "5.0 GPU-hours held idle (8.00 EUR, 1.0 GPU-hours have no price)" in text
    taken = "(worked out until 12:00 UTC); 5.0 GPU-hours of these were taken by others, saved 10.00 EUR"
    said = "9.0 GPU-hours would have been" if is_dry else taken
    assert (said in text, "no books are kept" in text) == (True, False), text


async def test_a_digest_has_the_cents_of_a_cost_report_and_they_add_up(kept):
    """Three namespaces with a third of a cent each: rounded one by one they would be nothing, and the whole a cent."""
    day, idle = cost_scenes.TODAY, SpendState.held_idle
    booked = [
        row for number in range(6)
        for row in cost_scenes.held(
            f"GPU-{number}", day, day + 3600, cost_scenes.key(f"n{number // 2}", f"w{number}", node="node-1"), idle,
            rate=10**9 + 3_333_333 + number,
        )
    ]
    async with cost_scenes.opened(booked, prices=()) as ledger:
        days = await held_idle.read_booked(ledger, ledger.sums, "EUR", ASK.since, ASK.until, None)
        asked = cost_books.SpendAsk(span=windows.TimeSpan(int(ASK.since), int(ASK.until)))
        page = await cost_books.read_report(cost_books.CostBooks(ledger=ledger), asked)
    made = await digest.make(kept, None, ASK, days)
    assert {each.namespace: each.cost for each in made.namespaces} == {row.key: row.held_idle for row in page.rows}
    for rows in (made.namespaces, made.workloads):
        assert round(sum(each.cost for each in rows), 2) == made.idle.cost == page.held.held_idle


async def test_what_is_not_worked_out_yet_is_said_so(kept):
    async with cost_scenes.opened([]) as ledger:
        days = await held_idle.read_booked(ledger, ledger.sums, "EUR", ASK.since, ASK.until, None)
    made = await digest.make(kept, None, ASK, days)
    assert made.savings.gpu_hours is None
    assert "Given back\n  not worked out yet: that is done every hour" in digesting.write_text(made)


async def test_where_no_books_are_kept_a_digest_says_so_and_from_when_idle_counts(kept):
    made = await digest.make(kept, await play(kept, make_world(), 10), ASK)
    assert made.source == "audit"
    assert "no books are kept: idle counts from the verdict on, at list prices" in digesting.write_text(made)


async def test_hours_held_idle_are_counted_by_workload_and_namespace_with_what_they_cost(kept):
    made = await digest.make(kept, await play(kept, make_world(), 10), ASK)
    assert (made.cluster, made.since, made.until) == ("prod", rfc3339(NOW - 7 * DAY), rfc3339(NOW))
    found = {(each.namespace, each.name): (each.gpu_hours, each.kept_gpu_hours, each.cost) for each in made.workloads}
    assert found == {
        ("ml", "quiet"): (20.0, 0.0, 10.52), ("ml", "kept"): (10.0, 10.0, 5.26), ("web", "odd"): (10.0, 0.0, None)
    }
    places = [(each.namespace, each.gpu_hours, each.cost) for each in made.namespaces]
    assert places == [("ml", 30.0, 15.78), ("web", 10.0, None)]
    assert (made.idle.gpu_hours, made.idle.cost, made.idle.unpriced_gpu_hours) == (40.0, 15.78, 10.0)


@pytest.mark.parametrize(("second", "cost"), [(builders.idle, 56.46), (builders.busy, None)])
async def test_what_is_of_several_models_costs_what_each_does_if_all_of_it_is_idle(kept, second, cost):
    world = World()
    world.node("node-1", product=T4)
    world.workload("ml/mixed", gpus=[builders.idle(model="NVIDIA A100-SXM4-80GB"), second(model=T4)])
    made = await digest.make(kept, await play(kept, world, 10), ASK)
    assert (made.idle.gpu_hours, made.idle.cost) == (20.0 if cost else 10.0, cost)


async def test_an_acknowledgement_is_told_with_what_it_cost(kept):
    [ack] = (await digest.make(kept, await play(kept, make_world(), 10), ASK)).acks
    assert (ack.namespace, ack.name, ack.by, ack.reason) == ("ml", "kept", "user:ana", "demo <b>")
    assert (ack.until, ack.gpu_hours, ack.cost) == (rfc3339(NOW + DAY), 10.0, 5.26)


async def test_only_the_first_so_many_are_named(kept):
    made = await digest.make(kept, await play(kept, make_world(), 1), msgspec.structs.replace(ASK, top=1))
    assert [each.name for each in made.workloads] == ["quiet"]
    assert [each.namespace for each in made.namespaces] == ["ml"]
    assert made.idle.gpu_hours == 4.0  # and all are counted


async def test_while_nothing_is_known_nothing_counts_as_idle_and_that_is_said(kept):
    """Ten hours, of which the middle five could not be seen."""
    made = await digest.make(kept, await play(kept, make_world(), 10, fails=range(30, 90)), ASK)
    hours = {each.name: each.gpu_hours for each in made.workloads}
    assert hours["quiet"] == pytest.approx(10.0, abs=0.2)
    assert made.health.seen_share == pytest.approx(5 / 168, abs=0.002)
    assert made.health.known_share == 1.0
    assert made.health.no_decision == 1


async def test_without_any_past_a_digest_says_so():
    empty = audit.Audit(None)
    await empty.open()
    made = await digest.make(empty, None, ASK)
    await empty.close()
    assert (made.health.seen_share, made.health.known_share) == (0.0, None)
    assert made.health.trouble == "no cycle has ended yet"
    assert (made.workloads, made.acks, made.savings.gpu_hours, made.savings.cost) == ((), (), 0.0, None)


# ---- what pauses gave back -------------------------------------------------------------------------------------------


def entry(
    at: float, type_of: Happened, uid: str = "u-1", *, gpus: int | None = 4, source: CameBy = CameBy.cycle,
    per_hour: float | None = 2.0,
) -> AuditEntry:
    ref = cluster.Ref("apps", "v1", "Deployment", "ml", uid, uid)
    return AuditEntry(at=at, type=type_of, sentence="", actor="fallow", source=source, ref=ref, gpus=gpus,
                      per_hour=per_hour)


async def fill(kept: audit.Audit, *entries: AuditEntry, turns: tuple[Turned, ...] = ()) -> None:
    kept.put(chronicle.Chapter(entries, turns))
    await kept.flush(NOW)


async def test_a_pause_gives_back_from_its_pods_going_to_its_end(kept):
    begun = NOW - 10 * HOUR
    await fill(
        kept, entry(begun, Happened.paused), entry(NOW - 4 * HOUR, Happened.resumed),
        turns=(Turned("u-1", begun + 30 * MINUTE, Condition.paused), Turned("u-1", NOW - 4 * HOUR, Condition.busy)),
    )
    saved = (await digest.make(kept, None, ASK)).savings
    assert (saved.gpu_hours, saved.cost, saved.pauses) == (22.0, 11.0, 1)  # five and a half hours of four GPUs


@pytest.mark.parametrize(("standing", "hours"), [({"u-1"}, 40.0), (set(), 0.0)])
async def test_a_pause_without_an_end_counts_while_it_stands_only(kept, standing, hours):
    await fill(kept, entry(NOW - 10 * HOUR, Happened.paused))
    spans = await savings.read_spans(kept, ASK.since, NOW, standing=standing, is_dry=False)
    assert savings.hours_between(spans, ASK.since, NOW) == hours


async def test_what_is_deleted_while_it_rests_gave_back_until_then(kept):
    turns = (Turned("u-1", NOW - 9 * HOUR, Condition.paused), Turned("u-1", NOW - 5 * HOUR, None))
    await fill(kept, entry(NOW - 9 * HOUR, Happened.paused), turns=turns)
    spans = await savings.read_spans(kept, ASK.since, NOW, standing=set(), is_dry=False)
    assert savings.hours_between(spans, ASK.since, NOW) == 16.0


async def test_no_pause_counts_for_more_than_thirty_days(kept):
    await fill(kept, entry(NOW - 33 * DAY, Happened.paused))
    spans = await savings.read_spans(kept, ASK.since, NOW, standing={"u-1"}, is_dry=False)
    assert savings.hours_between(spans, ASK.since, NOW) == 4 * 24 * 4.0  # of the week its first four days


async def test_a_part_of_a_gpu_gives_back_its_part(kept):
    """Eight quarters are two: else the digest has more GPU-hours than the cluster."""
    quarters = msgspec.structs.replace(entry(NOW - 10 * HOUR, Happened.paused, gpus=8), shares=2.0)
    await fill(kept, quarters)
    spans = await savings.read_spans(kept, ASK.since, NOW, standing={"u-1"}, is_dry=False)
    assert savings.hours_between(spans, ASK.since, NOW) == 20.0


async def test_a_pause_by_hand_is_nobodys_saving(kept):
    await fill(
        kept, entry(NOW - 10 * HOUR, Happened.paused, source=CameBy.api),
        entry(NOW - 10 * HOUR, Happened.paused, "u-2", per_hour=None),
    )
    spans = await savings.read_spans(kept, ASK.since, NOW, standing={"u-1", "u-2"}, is_dry=False)
    assert [span.uid for span in spans] == ["u-2"]


async def test_a_dry_run_tells_what_would_have_been_and_how_much_of_it_wrong(kept):
    begun = NOW - 10 * HOUR
    said = [entry(begun + step * 3 * MINUTE, Happened.would_pause) for step in range(3)]
    wrong = entry(begun, Happened.would_pause, "u-2", gpus=1)
    turns = (
        Turned("u-1", begun - HOUR, Condition.idle), Turned("u-1", begun + 2 * HOUR, Condition.busy),
        Turned("u-2", begun - HOUR, Condition.idle), Turned("u-2", begun + 10 * MINUTE, Condition.busy),
    )
    await fill(kept, *said, wrong, turns=turns)
    made = await digest.make(kept, None, msgspec.structs.replace(ASK, is_dry=True))
    assert made.savings.mode == "dry-run"
    assert (made.savings.pauses, made.savings.wrong) == (2, 1)
    assert made.savings.gpu_hours == pytest.approx(8 + 1 / 6, abs=0.01)
    assert made.counts.would_pause == 2


@pytest.mark.parametrize(("standing", "hours"), [({"u-1"}, 40.0), (set(), 0.0)], ids=["there", "gone"])
async def test_what_went_while_nobody_looked_saves_a_dry_run_nothing(kept, standing, hours):
    """A daemon that was down when its workload was deleted saw no end of it."""
    begun = NOW - 10 * HOUR
    said = [entry(begun + step * HOUR, Happened.would_pause) for step in range(3)]  # it was started anew twice
    await fill(kept, *said, turns=(Turned("u-1", begun - HOUR, Condition.idle),))
    spans = await savings.read_spans(kept, ASK.since, NOW, standing=standing, is_dry=True)
    assert (len(spans), savings.hours_between(spans, ASK.since, NOW)) == (1, hours)


async def test_a_pause_by_hand_that_is_undone_is_no_regret():
    def world(at: float, by: str, *, rests: bool) -> World:
        marks = builders.paused_marks(at) if rests else {"gpuautoscaler.io/resumed-at": rfc3339(at + 5 * MINUTE)}
        made = World()
        made.workload("ml/llm", gpus=[], pods=[], body={"spec": {"replicas": 0 if rests else 3}},
                      annotations={**marks, **({"gpuautoscaler.io/paused-by": by} if rests else {})})
        return made

    for by, expected in (("fallow", 1), ("user:ana", 0)):
        told = chronicle.Chronicle()
        told.add(cycle_of(world(NOW, by, rests=True), NOW), NOW)
        chapter = told.add(cycle_of(world(NOW, by, rests=False), NOW + 6 * MINUTE), NOW + 6 * MINUTE)
        assert [each.type for each in chapter.entries].count(Happened.regretted) == expected


# ---- the file --------------------------------------------------------------------------------------------------------


async def test_a_file_of_the_first_layout_is_taken_over_with_all_it_holds(tmp_path):
    path = tmp_path / audit.FILE
    with sqlite3.connect(path) as old:
        for table in audit._TABLES:
            old.execute(table)
        old.execute(
            "INSERT INTO entries VALUES (1, ?, 'paused', 'apps', 'v1', 'Deployment', 'ml', 'llm', 'u-1', 4, 'paused', "
            "'', 'fallow', 'cycle', '', '', '')", (NOW - HOUR,))
        old.execute(f"PRAGMA application_id={0x66616C6C}")
        old.execute("PRAGMA user_version=1")
    old.close()
    kept = audit.Audit(str(tmp_path))
    await kept.open()
    latest = await play(kept, make_world(), 1)
    [found] = await kept.read(audit.AuditQuery(types=frozenset({Happened.paused})))
    made = await digest.make(kept, latest, ASK)
    await kept.close()
    assert (found.gpus, found.per_hour) == (4, None)
    assert made.idle.gpu_hours == 4.0


async def test_what_was_held_is_bounded_in_time(kept):
    latest, later = await play(kept, make_world(), 1), NOW + 40 * DAY
    assert await kept.held(NOW - DAY, NOW + HOUR) != []
    await kept.flush(later)
    assert await kept.held(0.0, NOW + HOUR) != [], "by the clock alone nothing is forgotten"
    plan = msgspec.structs.replace(latest.plan, at=later)
    kept.put(chronicle.Chronicle().add(decision.Cycle(plan, latest.snapshot, (), "", 0.1), later))
    await kept.flush(later + 2 * HOUR)
    assert await kept.held(0.0, NOW + HOUR) == []
