"""A ledger of an earlier version on a real server, brought up to ours: no row is lost, whoever dies on the way."""

from __future__ import annotations

import asyncio
import contextlib
import time

import psycopg
import pytest

from fallow.account.schema import tables
from fallow.clients import errors
from fallow.model import cost
from fallow.model.cost import (
    HOUR,
    UNIT,
    BookedAlert,
    BookedSaving,
    BudgetReading,
    CostBatch,
    CostQuery,
    DemandHour,
    SavingKind,
)
from tests import ledger_writer, ledgers
from tests.ledgers import MIDNIGHT, lasting, part_of
from tests.real import old_ledgers
from tests.real.ledger_places import ServerPlace

SEED = 3
NOW = ledger_writer.BEGIN + sum(ledger_writer.STEPS)
BY = tuple(map(cost.read_dimension, ("namespace", "team", "node")))
VERSIONS = range(1, tables.VERSION)


@pytest.fixture(params=["postgres", "timescale"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
async def written(server):
    """A ledger of today with something in every table that there always was."""
    place = ServerPlace(server)
    async with opened(place) as books:
        await ledger_writer.write_all(books, SEED, 1)
        await books.write(CostBatch(at=NOW, savings=(BookedSaving(
            id="s", at=MIDNIGHT, namespace="ml", kind=SavingKind.spot, saved=UNIT, baseline=2 * UNIT, actual=UNIT,
        ),)), 1)
        reading = BudgetReading(at=MIDNIGHT, budget="b", limit=100, spend=80, used_micro=800_000, status="warning")
        alert = BookedAlert(budget_uid="u", period_start=MIDNIGHT, alert="at-80", channel="slack", state="fired")
        await books.write_budgets([reading], [alert], 1)
        await books.roll_up(MIDNIGHT + HOUR, 1)
    assert all(place.run(f"SELECT count(*) FROM {name}") > [(0,)] for name in old_ledgers.TABLES)
    return place


@contextlib.asynccontextmanager
async def opened(place, **options):
    books = place.ledger(**options)
    await books.open()
    yield books
    await books.close()


def old(server, written, version):
    place = ServerPlace(server)
    old_ledgers.make_old(place, version, written)
    return place


def rows_of(place):
    """All of every old table, but for the version."""
    found = {}
    for name in old_ledgers.TABLES:
        columns = [one for one in old_ledgers.columns_of(place, name) if one not in ('"schema_version"', '"is_shared"')]
        found[name] = sorted(place.run(f"SELECT {', '.join(columns)} FROM {name}"), key=str)
    return found


def version_of(place):
    return place.run("SELECT schema_version FROM ledger_meta")[0][0]


async def answers(books):
    asked = CostQuery(begin=ledger_writer.BEGIN, end=NOW, by=BY, step=cost.CostStep.hour)
    return [
        await books.sums(asked), await books.read_intervals(ledger_writer.BEGIN, NOW), await books.total_since_start(),
        await books.read_savings(0, NOW), await books.read_budgets(0, NOW), await books.read_alerts(),
        await books.read_prices(),
    ]


async def check_usable(place, written):
    """What was there is read as before, and what only ours can book is booked."""
    async with opened(written, writes=False) as then, opened(place) as now:
        assert await answers(now) == await answers(then)
        later = lasting(part_of("GPU-new", pod="late"), NOW, NOW + 60)
        done = await now.write(CostBatch(at=NOW + 60, intervals=(later,), shared=("uid-late",)), 2)
        assert (done.refused, done.unwritten) == ((), "")
        assert await now.read_shared(["uid-late", "uid-pod-0"]) == {"uid-late"}
        hour = DemandHour(policy="p", hour=MIDNIGHT, gpus=2.5)
        await now.write_demand([hour], 2)
        assert await now.read_demand(0) == [hour]
        assert ledgers.total(await now.sums(CostQuery(begin=NOW, end=NOW + 60, by=BY))).cost >= UNIT // 60
    assert place.run("SELECT count(*) FROM cost_data WHERE pod_name = 'late'") == [(1,)]


@pytest.mark.accepts("cost", 5, 6)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_ledger_of_an_earlier_version_comes_to_ours_and_loses_no_row(server, written, version):
    place = old(server, written, version)
    before = rows_of(place)
    with pytest.raises(errors.Unreachable, match="no ledger of this version"):
        await place.ledger(writes=False).open()  # who only reads changes nothing
    assert (version_of(place), rows_of(place)) == (version, before)
    async with opened(place):
        assert (version_of(place), rows_of(place)) == (tables.VERSION, before)
    await check_usable(place, written)


@pytest.mark.accepts("cost", 5)
@pytest.mark.parametrize("version", VERSIONS)
async def test_who_dies_between_two_steps_leaves_the_ledger_as_it_was(server, written, version):
    """The last step waits for a table of that name that another one is about to make; all steps before it are done."""
    place = old(server, written, version)
    before = rows_of(place)
    with psycopg.connect(place.dsn) as other:
        other.execute("CREATE TABLE scaling_demand (one INT)")
        opening = asyncio.create_task(place.ledger().open())
        await asyncio.to_thread(kill_who_waits, place, other.info.backend_pid)
        with pytest.raises(errors.ClientError):
            await opening
        other.rollback()
    assert (version_of(place), rows_of(place)) == (version, before)
    assert ('"is_shared"' in old_ledgers.columns_of(place, "cost_pods")) == (version > 1)
    await check_usable(place, written)


def kill_who_waits(place, on):
    until = time.monotonic() + 90
    asked = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {on} = ANY(pg_blocking_pids(pid))"
    while not place.run(asked):
        assert time.monotonic() < until, "nobody waits"
        time.sleep(0.05)
