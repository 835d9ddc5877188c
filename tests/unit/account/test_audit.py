"""What happened is kept: once, bounded, over a restart, and whatever the database does."""

import asyncio
import pathlib
import sqlite3
from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW

from fallow import names
from fallow.account import audit, chronicle
from fallow.clients import errors
from fallow.decide.idle import plan as brain
from fallow.model import cluster, decision, history, long_memory
from fallow.model.decision import Outcome, Status
from fallow.model.history import AuditEntry, CameBy, Condition, Happened, Levels, Turned
from fallow.model.units import DAY, rfc3339

REF = cluster.Ref("apps", "v1", "Deployment", "ml", "llm", "u-1")
LEVELS = Levels(at=NOW, total=8.0, busy=8.0, idle=0.0, kept=0.0, unknown=0.0, free=0.0)


def entry(
    at: float = NOW, type_of: Happened = Happened.paused, ref: cluster.Ref | None = REF, **more: Any
) -> AuditEntry:
    return AuditEntry(at=at, type=type_of, sentence="paused", actor="fallow", source=CameBy.cycle, ref=ref, **more)


async def opened(directory: pathlib.Path | None) -> audit.Audit:
    made = audit.Audit(str(directory) if directory else None)
    await made.open()
    return made


@pytest.fixture(params=["file", "memory"])
async def kept(request, tmp_path):
    made = await opened(tmp_path if request.param == "file" else None)
    yield made
    await made.close()


async def test_what_is_written_comes_back_the_newest_first(kept):
    first, second = entry(), entry(NOW + 60, Happened.resumed, policy="night", reason="GoneIdle")
    for each in (first, second, second):
        await kept.enter(each)
    found = await kept.read(audit.AuditQuery())
    assert [msgspec.structs.replace(each, number=0) for each in found] == [second, first]


@pytest.mark.parametrize(("asked", "numbers"), [
    ({"types": frozenset({Happened.paused})}, [2, 1]), ({"namespace": "ml", "name": "llm"}, [3, 1]),
    ({"since": NOW + 30}, [3, 2]), ({"until": NOW + 60}, [2, 1]), ({"before": 3, "limit": 1}, [2]),
    ({"name": "' OR 1=1 --"}, []),
])
async def test_entries_are_found_by_what_is_asked(kept, asked, numbers):
    other = msgspec.structs.replace(REF, namespace="b", name="x", uid="u-2")
    for each in (entry(), entry(NOW + 50, ref=other), entry(NOW + 60, Happened.kept)):
        await kept.enter(each)
    assert [each.number for each in await kept.read(audit.AuditQuery(**asked))] == numbers


async def test_a_restart_loses_nothing(tmp_path):
    kept = await opened(tmp_path)
    await kept.enter(entry())
    await kept.close()
    again = await opened(tmp_path)
    assert len(await again.read(audit.AuditQuery())) == 1
    await again.close()


async def test_what_is_too_old_goes_and_the_last_condition_stays(kept):
    old = NOW - history.KEPT_FOR - DAY
    turns = [Turned("u-1", old, Condition.idle), Turned("u-1", old + 60, Condition.busy), Turned("u-2", old, None)]
    kept.put(chronicle.Chapter((entry(old), entry(NOW)), tuple(turns), LEVELS))
    await kept.flush(NOW)
    assert [each.at for each in await kept.read(audit.AuditQuery())] == [NOW]
    assert await kept.conditions(["u-1", "u-2"], NOW - DAY) == {"u-1": [(old + 60, Condition.busy)]}


async def test_a_clock_that_is_years_ahead_makes_nothing_forgotten(kept):
    """A cycle that fails because of it is written down all the same."""
    kept.put(chronicle.Chapter((entry(NOW),), (Turned("u-1", NOW, None),), LEVELS))
    await kept.flush(NOW)
    ahead = entry(NOW + 3000 * DAY, Happened.no_decision)
    await kept.enter(ahead)
    assert [each.at for each in await kept.read(audit.AuditQuery())] == [ahead.at, NOW]
    assert [each.at for each in await kept.levels(0.0)] == [NOW]


async def test_while_the_database_cannot_be_written_what_happens_waits(tmp_path):
    kept = await opened(tmp_path)
    other = sqlite3.connect(tmp_path / audit.FILE, isolation_level=None)
    kept._database._connection.execute("PRAGMA busy_timeout=10")
    other.execute("BEGIN EXCLUSIVE")
    await kept.enter(entry())
    assert "locked" in kept.trouble
    other.execute("ROLLBACK")
    await kept.enter(entry(NOW + 1))
    assert kept.trouble == ""
    assert len(await kept.read(audit.AuditQuery())) == 2
    other.close()
    await kept.close()


async def test_a_file_of_a_newer_version_is_not_touched(tmp_path):
    kept = await opened(tmp_path)
    await kept.enter(entry())
    await kept.close()
    with sqlite3.connect(tmp_path / audit.FILE) as other:
        other.execute("PRAGMA user_version=9")
    with pytest.raises(errors.Misconfigured, match="newer version"):
        await opened(tmp_path)


async def test_a_file_of_an_earlier_layout_is_read_and_written_on(tmp_path):
    kept = await opened(tmp_path)
    await kept.enter(entry())
    await kept.close()
    with sqlite3.connect(tmp_path / audit.FILE) as other:  # as the layout before had it
        other.execute("ALTER TABLE entries DROP COLUMN shares")
        other.execute("PRAGMA user_version=2")
    kept = await opened(tmp_path)
    await kept.enter(entry(NOW + 60, shares=0.5))
    assert [each.shares for each in await kept.read(audit.AuditQuery())] == [0.5, None]
    await kept.close()


async def test_counts_by_time(kept):
    for each in (entry(), entry(NOW + 10, Happened.regretted), entry(NOW + 3700)):
        await kept.enter(each)
    assert await kept.count(NOW) == {Happened.paused: 2, Happened.regretted: 1}
    paces = await kept.pace([Happened.paused, Happened.notified], NOW, 3600.0, NOW + 7200)
    assert (list(paces[Happened.paused]), list(paces[Happened.notified])) == ([1, 1, 0], [0, 0, 0])


# ---- what a cycle is worth -------------------------------------------------------------------------------------------


def cycle(seen: cluster.Snapshot, *outcomes: Outcome, failure: str = "") -> decision.Cycle:
    plan = brain.make_plan(seen, builders.mandate(), decision.Memory(), seen.taken_at)
    return decision.Cycle(plan, seen, outcomes, failure, 0.1)


def test_the_first_failed_cycle_is_told_and_the_others_are_not():
    told = chronicle.Chronicle()
    broken = decision.Cycle(None, None, (), "Prometheus is away", 0.1)
    types = [[each.type for each in told.add(broken, NOW + turn).entries] for turn in range(3)]
    assert types == [[Happened.no_decision], [], []]


def world_of(*gpus: builders.Gpu, **said) -> cluster.Snapshot:
    world = builders.World()
    for index, gpu in enumerate(gpus):
        world.workload(f"ml/w{index}", gpus=[gpu], **said)
    return world.snapshot()


def test_conditions_are_told_when_they_change_and_when_somebody_goes():
    told = chronicle.Chronicle()
    first = told.add(cycle(world_of(builders.busy(), builders.idle())), NOW)
    assert [(each.uid, each.condition) for each in first.turns] == [
        ("uid-ml/w0", Condition.busy), ("uid-ml/w1", Condition.idle), ("node/node-1", Condition.busy),
    ]
    assert told.add(cycle(world_of(builders.busy(), builders.idle())), NOW + 60).turns == ()
    last = told.add(cycle(world_of(builders.unseen())), NOW + 120)
    assert last.turns == (
        Turned("uid-ml/w0", NOW + 120, Condition.unknown), Turned("uid-ml/w1", NOW + 120, None),
    )


def test_levels_add_up():
    kept = {names.ACK_UNTIL: rfc3339(NOW + 3600), names.ACK_AT: rfc3339(NOW)}
    world = builders.World()
    for where, gpus, marks in (("ml/a", [builders.busy()] * 2, {}), ("ml/b", [builders.idle()] * 3, {}),
                               ("ml/c", [builders.idle()], kept), ("ml/d", [builders.unseen()], {})):
        world.workload(where, gpus=gpus, annotations=marks)
    unseen = chronicle.Chronicle().add(cycle(world.snapshot()), NOW).levels
    assert (unseen.busy, unseen.total, unseen.free) == (2, None, None)
    world.nodes["node-1"] = msgspec.structs.replace(world.nodes["node-1"], gpus=16)
    levels = chronicle.Chronicle().add(cycle(world.snapshot()), NOW).levels
    assert (levels.busy, levels.idle, levels.kept, levels.unknown, levels.free) == (2, 3, 1, 1, 9)
    assert levels.total == 16


def test_what_people_did_meanwhile_is_read_from_its_marks():
    told = chronicle.Chronicle()
    standing = {names.ACK_UNTIL: rfc3339(NOW + 60), names.ACK_AT: rfc3339(NOW - 60), names.ACK_BY: "user:ada"}
    assert told.add(cycle(world_of(builders.idle(), annotations=standing)), NOW).entries == ()
    longer = {**standing, names.ACK_UNTIL: rfc3339(NOW + 3600), names.ACK_AT: rfc3339(NOW + 30)}
    [found] = told.add(cycle(world_of(builders.idle(), annotations=longer)), NOW + 60).entries
    assert (found.type, found.actor, found.source, found.at) == (Happened.kept, "user:ada", CameBy.annotation, NOW + 30)


@pytest.mark.parametrize(("after", "types"), [
    (10 * 60, [Happened.resumed, Happened.regretted]), (20 * 60, [Happened.resumed]),
], ids=["too-soon", "in-time"])
def test_a_resume_soon_after_the_pause_is_a_regret(after, types):
    told = chronicle.Chronicle()
    rests = builders.World()
    rests.workload("ml/w0", gpus=[], pods=[], annotations=builders.paused_marks(NOW), body={"spec": {"replicas": 0}})
    told.add(cycle(rests.snapshot()), NOW + 60)
    back = {names.RESUMED_AT: rfc3339(NOW + after), names.RESUMED_BY: "user:ada"}
    found = told.add(cycle(world_of(builders.busy(), annotations=back)), NOW + after + 5).entries
    assert [each.type for each in found] == types


@pytest.mark.parametrize(("status", "type_of"), [
    (Status.done, Happened.paused), (Status.dry_run, Happened.would_pause), (Status.overtaken, Happened.not_paused),
    (Status.failed, Happened.failed), (Status.refused, Happened.refused),
])
def test_every_end_of_a_pause_is_told(status, type_of):
    plan = cycle(world_of(builders.idle())).plan
    [pause] = [each for each in plan.decisions if isinstance(each, decision.Pause)]
    found = chronicle.entry_of(Outcome(pause, status, NOW, "so it went"))
    assert (found.type, found.sentence, found.gpus, found.policy) == (type_of, "so it went", 1, "flags")


async def test_what_is_written_at_the_same_time_is_written_once(kept):
    await asyncio.gather(*(kept.enter(entry(NOW + number)) for number in range(20)))
    assert len(await kept.read(audit.AuditQuery())) == 20


def test_a_resume_of_ours_is_told_once_though_its_mark_is_read_later():
    told, now = chronicle.Chronicle(), NOW + 300.25
    rests = builders.World()
    marks = {**builders.paused_marks(NOW), names.PAUSED_POLICY: "nightly"}
    rests.workload("ml/w0", gpus=[], pods=[], annotations=marks, body={"spec": {"replicas": 0}})
    seen = rests.snapshot()
    told.add(cycle(seen), NOW + 60)
    resume = Outcome(decision.Resume(seen.workloads[0], "user:ada", "asked"), Status.done, now, "Resumed by ada.")
    first = told.add(cycle(seen, resume), now).entries
    back = {names.RESUMED_AT: rfc3339(now), names.RESUMED_BY: "user:ada"}
    later = told.add(cycle(world_of(builders.busy(), annotations=back)), now + 60).entries
    keys = [(each.ref.uid, each.type, each.at) for each in (*first, *later)]
    assert len(set(keys)) == 2, "resumed, and regretted"
    [regret] = [each for each in first if each.type is Happened.regretted]
    assert (regret.policy, regret.sentence) == ("nightly", "Resumed by ada, 5 min after its pause")


def test_a_freeze_that_stood_before_us_is_not_told_again():
    frozen = {"freeze": long_memory.Freeze(NOW + 3600, "by hand")}
    told = chronicle.Chronicle()
    seen = world_of(builders.busy())
    assert told.add(cycle(msgspec.structs.replace(seen, **frozen)), NOW).entries == ()
    assert [each.type for each in told.add(cycle(seen), NOW + 60).entries] == [Happened.unfrozen]
    assert [each.type for each in told.add(cycle(msgspec.structs.replace(seen, **frozen)), NOW + 120).entries] == [
        Happened.frozen
    ]


def test_what_tenants_write_into_marks_is_cut_and_dated_by_us():
    told = chronicle.Chronicle()
    told.add(cycle(world_of(builders.idle())), NOW)
    forged = {
        names.ACK_UNTIL: rfc3339(NOW + 60), names.ACK_AT: "9999-12-30T00:00:00Z", names.ACK_BY: "x" * 100_000,
        names.ACK_REASON: "y" * 100_000,
    }
    [found] = told.add(cycle(world_of(builders.idle(), annotations=forged)), NOW + 60).entries
    assert (found.at, len(found.actor), len(found.sentence)) == (NOW + 60, 256, 256)


async def test_in_memory_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(audit, "_MOST_IN_MEMORY", (10, 10))
    kept = await opened(None)
    kept.put(chronicle.Chapter(tuple(entry(NOW + number) for number in range(50))))
    await kept.flush(NOW)
    await kept.enter(entry(NOW + 4000))
    assert len(await kept.read(audit.AuditQuery(limit=100))) == 10
    await kept.close()
