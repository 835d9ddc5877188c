"""Real databases: the same answers from all, servers that go away and come back, writers that are killed, old names."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from decimal import Decimal

import msgspec
import psycopg
import pytest

from fallow.account import ledger_postgres, spool
from fallow.account.ledger import LedgerWentBack, StaleWriter
from fallow.account.schema import tables
from fallow.clients import errors
from fallow.model import cost
from fallow.model.cost import (
    DAY,
    HOUR,
    UNIT,
    BookedBatch,
    BookedSaving,
    BudgetReading,
    CostBatch,
    CostQuery,
    CostStep,
    SavingKind,
)
from fallow.model.secret import Secret
from tests import ROOT, ledger_writer, ledgers
from tests.ledgers import MIDNIGHT, lasting, part_of
from tests.real import databases
from tests.real.ledger_places import ServerPlace
from tests.unit.account import test_ledger_killed
from tests.unit.account.conftest import FilePlace

DIMENSIONS = tuple(map(cost.read_dimension, ("namespace", "team", "model", "node")))


async def answers(place, history):
    books = place.ledger()
    await books.open()
    chance = random.Random(7)
    for batch in history.batches:
        await books.write(batch, 1)
        if chance.random() < 0.4:
            await books.roll_up(batch.at - HOUR, 1)
    found = [await books.read_intervals(history.begin, history.end), await books.total_since_start()]
    for zone, step in itertools.product(("UTC", "Asia/Kolkata"), (None, *CostStep)):
        for by in (DIMENSIONS, (cost.read_dimension("pod"),)):
            begin, end = history.begin + 333, history.end - 222
            found.append(await books.sums(CostQuery(begin=begin, end=end, by=by, step=step, zone=zone)))
    await books.close()
    return found


@pytest.mark.accepts("cost", 6)
@pytest.mark.parametrize("seed", range(4))
async def test_all_stores_give_the_same_answers(postgres_server, timescale_server, tmp_path, seed):
    history = ledgers.make_history(seed, ledger_writer.STEPS, ledger_writer.BEGIN)
    places = (FilePlace(tmp_path / "ledger"), ServerPlace(postgres_server), ServerPlace(timescale_server))
    on_file, on_postgres, on_timescale = [await answers(place, history) for place in places]
    assert on_file == on_postgres
    assert on_file == on_timescale
    assert len(on_file[0]) > 10


@pytest.mark.accepts("cost", 6)
async def test_without_the_licence_nothing_is_tried_that_needs_it(timescale_server):
    place = ServerPlace(timescale_server)
    assert place.run("SHOW timescaledb.license") == [("apache",)]
    books = place.ledger()
    await books.open()
    days = [lasting(part_of(), MIDNIGHT + day * DAY, MIDNIGHT + (day + 1) * DAY) for day in range(5)]
    await books.write(CostBatch(intervals=tuple(days)), 1)
    chunks = "SELECT count(*) FROM timescaledb_information.chunks WHERE hypertable_schema = current_schema()"
    assert place.run(chunks) == [(5,)]
    await books.roll_up(MIDNIGHT + 5 * DAY, 1)
    await books.forget(cost.CostRetention(intervals=2 * DAY), MIDNIGHT + 5 * DAY, 1)
    assert place.run(chunks) == [(2,)]
    found = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + 5 * DAY))
    assert ledgers.total(found).cost == 120 * UNIT
    await books.close()
    assert place.run("SELECT count(*) FROM timescaledb_information.continuous_aggregates") == [(0,)]
    ours = [line for line in (timescale_server.home / "log").read_text().splitlines() if line.startswith("fallow")]
    assert not [line for line in ours if "license" in line]  # its own jobs complain of it


@pytest.mark.accepts("cost", 5)
async def test_a_writer_killed_anywhere_leaves_the_same_ledger(postgres_server):
    place = ServerPlace(postgres_server)
    await test_ledger_killed.check_killed_writers("server", place.dsn, ServerPlace(postgres_server))


# ---- away, and back --------------------------------------------------------------------------------------------------


@pytest.fixture
async def wire(postgres_server):
    made = databases.Wire(postgres_server.port)
    await made.join()
    yield made
    await made.cut()


def ledger_over(wire, dsn, path):
    over = psycopg.conninfo.make_conninfo(dsn, port=wire.port, sslmode="disable")
    return ledger_postgres.on_postgres(Secret(over), spool=spool.Spool(path))


@pytest.mark.accepts("cost", 25)
async def test_a_database_that_is_down_for_an_hour_loses_and_doubles_nothing(postgres_server, wire, tmp_path):
    place = ServerPlace(postgres_server)
    books = ledger_over(wire, place.dsn, tmp_path / "spool")
    await books.open()
    begin, pods = MIDNIGHT + 600, itertools.count()
    open_one, truth = None, []
    for minute in range(180):
        now = begin + minute * 60
        if minute == 60:
            await wire.cut()
        if minute == 120:
            await wire.join()
        intervals = []
        if minute % 7 == 0:  # another pod takes the GPU
            if open_one is not None:
                truth.append(msgspec.structs.replace(open_one, t1=now, is_open=False))
                intervals.append(truth[-1])
            open_one = lasting(part_of(pod=f"p{next(pods)}"), now, now, is_open=True)
            intervals.append(open_one)
        done = await books.write(CostBatch(at=now, intervals=tuple(intervals)), 1)
        assert (done.refused, done.unwritten) == ((), "")
        rolled = await books.roll_up(now - HOUR, 1)
        assert rolled == (now if minute < 60 or minute >= 120 else begin + 59 * 60) // HOUR * HOUR - HOUR
        assert done.is_spooled == (60 <= minute < 120)
        assert bool(books.trouble) == (60 <= minute < 120)
    truth.append(msgspec.structs.replace(open_one, t1=now))
    assert await books.read_intervals(begin, now + 1) == truth
    found = await books.sums(CostQuery(begin=begin, end=now))
    assert ledgers.total(found).cost == sum(one.cost(begin, now) for one in truth)
    assert place.run("SELECT count(*) FROM cost_intervals") == [(len(truth),)]
    await books.close()


@pytest.mark.accepts("cost", 5, 25)
@pytest.mark.parametrize("seed", range(6))
async def test_a_wire_that_breaks_anywhere_leaves_the_same_ledger(postgres_server, wire, tmp_path, seed):
    """In the middle of a batch, of a commit, of a replay; and the writer may be gone before it is whole again."""
    place, chance = ServerPlace(postgres_server), random.Random(seed)
    history = ledgers.make_history(seed, ledger_writer.STEPS, ledger_writer.BEGIN)
    path, epoch = tmp_path / "spool", 1
    books = ledger_over(wire, place.dsn, path)
    await books.open()
    waited = 0
    for batch in history.batches:
        if chance.random() < 0.6:
            wire.cut_after(chance.randrange(1, 2500))
        done = await books.write(batch, epoch)
        assert (done.refused, done.unwritten) == ((), "")
        waited += done.is_spooled
        if chance.random() < 0.2:
            await books.close()
            books, epoch = ledger_over(wire, place.dsn, path), epoch + 1
            await books.open()  # whether it is there or not
        if chance.random() < 0.5:
            await wire.join()
    await wire.join()
    assert waited
    assert (await books.write(CostBatch(at=history.end), epoch)) == cost.BookedBatch()
    assert await books.read_intervals(history.begin, history.end + 1) == history.truth
    assert path.stat().st_size == 0
    await books.close()


@pytest.mark.accepts("cost", 25)
async def test_a_server_that_comes_up_after_us_gets_all_that_waited(tmp_path):
    with databases.postgres() as server:
        server.stop()
        books = ledger_postgres.on_postgres(Secret(server.dsn()), spool=spool.Spool(tmp_path / "spool"))
        await books.open()
        for hour in range(3):
            begin = MIDNIGHT + hour * HOUR
            one = lasting(part_of(), begin, begin + HOUR)
            assert (await books.write(CostBatch(at=begin + HOUR, intervals=(one,)), 3)).is_spooled
        with pytest.raises(errors.Unreachable):
            await books.sums(CostQuery(begin=0, end=DAY))
        server.start()
        assert await books.write(CostBatch(at=MIDNIGHT + 3 * HOUR), 3) == cost.BookedBatch()
        found = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY))
        assert ledgers.total(found).cost == 3 * UNIT
        server.stop()  # and it goes again, while connections are open
        server.start()
        assert await books.write(CostBatch(at=MIDNIGHT + 4 * HOUR), 3) == cost.BookedBatch()
        assert await books.write(CostBatch(at=MIDNIGHT + 5 * HOUR), 3) == cost.BookedBatch()
        await books.close()


async def test_without_a_spool_a_server_that_is_away_is_said_without_the_password():
    dsn = f"host=127.0.0.1 port={databases.free_port()} user=fallow password=hunter2 dbname=costs"
    books = ledger_postgres.on_postgres(Secret(dsn))
    with pytest.raises(errors.Unreachable, match=r"PostgreSQL at 127.0.0.1:\d+/costs cannot be used") as said:
        await books.open()
    assert "hunter2" not in str(said.value)
    with pytest.raises(errors.Misconfigured, match="is no address of PostgreSQL") as said:
        await ledger_postgres.on_postgres(Secret("host='hunter2")).open()
    assert "hunter2" not in str(said.value)


# ---- tables ----------------------------------------------------------------------------------------------------------


async def test_a_newer_ledger_is_refused_in_a_sentence_and_left_alone(postgres_server):
    place = ServerPlace(postgres_server)
    books = place.ledger()
    await books.open()
    await books.close()
    place.run("UPDATE ledger_meta SET schema_version = 99")
    for writes in (True, False):
        with pytest.raises(errors.Misconfigured, match=r"by a newer version of fallow \(99\); use that one"):
            await place.ledger(writes=writes).open()
    assert place.run("SELECT schema_version FROM ledger_meta") == [(99,)]


async def test_who_only_looks_makes_no_tables(postgres_server):
    place = ServerPlace(postgres_server)
    with pytest.raises(errors.Unreachable, match=r"there is no ledger of this version at PostgreSQL at 127"):
        await place.ledger(writes=False).open()
    assert place.run("SELECT to_regclass('ledger_meta')") == [(None,)]


async def test_a_user_without_rights_hears_so(postgres_server):
    place = ServerPlace(postgres_server)
    postgres_server.run("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    books = ledger_postgres.on_postgres(Secret(psycopg.conninfo.make_conninfo(place.dsn, user="guest")))
    with pytest.raises(errors.Misconfigured, match="does not let us: permission denied"):
        await books.open()


@pytest.mark.parametrize("kind", ["postgres", "timescale"])
async def test_the_old_names_are_views_to_be_read(request, kind):
    place = ServerPlace(request.getfixturevalue(f"{kind}_server"))
    books = place.ledger()
    await books.open()
    what = part_of(rate=UNIT + 1, at=ledgers.key("ml", team="red", app="x"), share=250_000)
    await books.write(CostBatch(at=MIDNIGHT + 90 * 60, intervals=(
        lasting(what, MIDNIGHT, MIDNIGHT, is_open=True, use=(500_000,), energy_mj=(3_600_000,)),
    ), savings=(BookedSaving(
        id="1", at=MIDNIGHT, namespace="ml", kind=SavingKind.spot, saved=UNIT // 2, baseline=UNIT, actual=UNIT // 2,
    ),)), 1)
    await books.roll_up(MIDNIGHT + HOUR, 1)
    await books.write_budgets([BudgetReading(
        at=MIDNIGHT, budget="b", team="red", limit=100 * UNIT, spend=80 * UNIT, used_micro=800_000, status="warning",
    )], [], 1)
    ((name, spent, per_hour, gpus, labels, at),) = place.run(
        "SELECT pod_name, cumulative_cost, hourly_rate, gpu_count, labels, extract(epoch FROM time) FROM cost_data"
    )
    rate = Decimal("1.000000001")
    assert (name, per_hour, gpus, labels, at) == ("llm-0", rate, Decimal("0.25"), '{"app":"x"}', MIDNIGHT)
    (in_ledger,) = await books.sums(CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY))
    assert spent * UNIT == in_ledger.total.cost == 1_500_000_002  # 1,500,000,001.5, to even
    columns = "namespace, team, state, cost, use_cost, gpu_hours, energy_kwh"
    assert place.run(f"SELECT {columns} FROM cost_hourly_summary") == [
        ("ml", "red", "used", rate, Decimal("0.5"), Decimal("0.25"), Decimal("0.000001"))
    ]
    assert place.run("SELECT savings_amount, optimization_type FROM cost_savings") == [(Decimal("0.5"), "spot")]
    assert place.run("SELECT budget_name, percentage_used FROM budget_tracking") == [("b", Decimal(80))]
    for view in ("cost_data", "cost_hourly_summary", "cost_daily_summary"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="cannot delete from view"):
            place.run(f"DELETE FROM {view}")
    await books.close()


def test_nobody_loads_the_driver_who_does_not_ask_for_it():
    said = (
        "import sys\nfrom fallow.account import ledger, ledger_postgres\nassert 'psycopg' not in sys.modules\n"
        "sys.modules['psycopg'] = None\nimport asyncio\nfrom fallow.model.secret import Secret\n"
        "asyncio.run(ledger_postgres.on_postgres(Secret('host=x')).open())\n"
    )
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Misconfigured: PostgreSQL needs the extra: pip install 'fallow[postgres]'" in done.stderr


async def test_two_that_start_at_once_make_the_tables_once(postgres_server):
    place = ServerPlace(postgres_server)
    both = [place.ledger(), place.ledger()]
    await asyncio.gather(*(one.open() for one in both))
    assert [(await one.read_meta()).schema_version for one in both] == [tables.VERSION] * 2
    for one in both:
        await one.close()


@pytest.mark.accepts("cost", 5)
async def test_of_two_that_take_the_ledger_at_the_same_instant_one_has_it(postgres_server):
    place = ServerPlace(postgres_server)
    both = [place.ledger(), place.ledger()]
    for one in both:
        await one.open()
    for epoch in range(1, 11):
        ended = await asyncio.gather(*(one.claim(epoch) for one in both), return_exceptions=True)
        assert sorted(map(type, ended), key=str) == sorted([type(None), StaleWriter], key=str)
    for one in both:
        await one.close()



async def looked(books, minute, what):
    end = MIDNIGHT + 60 * minute
    return await books.write(CostBatch(at=end, intervals=(lasting(what, MIDNIGHT, end, is_open=True),)), 1)


@pytest.mark.parametrize("name", ["GPU-\0", "GPU-" + random.Random(1).randbytes(3000).hex()], ids=["nul", "long"])
async def test_what_an_exporter_calls_a_gpu_keeps_nobody_else_from_being_booked(postgres_server, tmp_path, name):
    books = ServerPlace(postgres_server).ledger(spool=spool.Spool(tmp_path / "spool"))
    await books.open()
    for minute in (1, 2):
        ends = MIDNIGHT + 60 * minute
        parts = (part_of(name, pod="a"), part_of("GPU-1", pod="b"))
        both = [lasting(part, MIDNIGHT, ends, is_open=True) for part in parts]
        assert await books.write(CostBatch(at=ends, intervals=tuple(both)), 1) == BookedBatch()
    found = await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY)
    assert sorted(each.slice.gpu for each in found) == sorted([cost.as_booked(name), "GPU-1"])
    assert {each.t1 for each in found} == {MIDNIGHT + 120}
    await books.close()


async def test_a_batch_that_no_server_can_keep_is_set_aside_and_those_behind_it_are_written(postgres_server, tmp_path):
    path = tmp_path / "spool"
    waiting = spool.Spool(path)
    books = ServerPlace(postgres_server).ledger(spool=waiting)
    await books.open()
    odd = CostBatch(savings=(BookedSaving(
        id="s", at=MIDNIGHT, namespace="a\0b", kind=SavingKind.spot, saved=1, baseline=2, actual=1,
    ),))
    waiting.append(odd, 1)
    waiting.append(CostBatch(at=MIDNIGHT + 60, intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + 60),)), 1)
    (said,) = (await books.write(odd, 1)).refused[1:]
    assert f"is refused, and kept in {path}.refused: " in said
    assert (books.trouble, waiting.count) == ("", 0)
    assert len(await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY)) == 1
    aside = spool.Spool(tmp_path / "spool.refused")
    aside.open()
    assert [batch.savings for _, batch in aside.read()] == [odd.savings, odd.savings]
    await books.close()


@pytest.mark.accepts("cost", 25)
async def test_a_server_that_comes_back_empty_is_noticed_and_the_tables_are_made_anew(postgres_server, tmp_path):
    place = ServerPlace(postgres_server)
    books = place.ledger(spool=spool.Spool(tmp_path / "spool"))
    await books.open()
    await looked(books, 1, part_of())
    ((schema,),) = place.run("SELECT current_schema()")
    place.run(f"DROP SCHEMA {schema} CASCADE")
    place.run(f"CREATE SCHEMA {schema}")
    assert (await looked(books, 2, part_of())).is_spooled
    assert "has lost our tables" in books.trouble
    with pytest.raises(LedgerWentBack, match="older than we left it"):
        await looked(books, 3, part_of())
    assert (await looked(books, 4, part_of())) == BookedBatch()
    assert [each.t1 for each in await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY)] == [MIDNIGHT + 240]
    await books.close()
