"""A ledger on a file: what is refused, who may look while another writes, and a file that cannot be written."""

from __future__ import annotations

import sqlite3

import pytest
from tests import ledgers
from tests.ledgers import MIDNIGHT, lasting, part_of

from fallow.account import ledger, spool
from fallow.clients import errors
from fallow.model.cost import DAY, UNIT, BookedBatch, CostBatch, CostQuery

DAY_OF_ONE = CostBatch(at=MIDNIGHT + DAY, intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + DAY),))
ALL = CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY)


async def kept(place, batch=DAY_OF_ONE, **options):
    books = place.ledger(**options)
    await books.open()
    await books.write(batch, 1)
    await books.close()


@pytest.mark.parametrize("writes", [True, False])
async def test_a_newer_file_is_refused_in_a_sentence_and_left_alone(new_place, writes):
    place = new_place()
    await kept(place)
    with sqlite3.connect(place.path) as on:
        on.execute("PRAGMA user_version = 99")
    on.close()
    before = place.path.read_bytes()
    with pytest.raises(errors.Misconfigured, match=r"written by a newer version of fallow \(99\); use that one"):
        await place.ledger(writes=writes).open()
    assert place.path.read_bytes() == before


@pytest.mark.parametrize("writes", [True, False])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(new_place, writes):
    """Books do not begin anew because they cannot be read: budgets would think that nothing was spent."""
    place = new_place()
    place.path.write_bytes(b"once upon a time " * 100)
    with pytest.raises(errors.Misconfigured, match="cannot be read as a database: file is not a database"):
        await place.ledger(writes=writes).open()
    assert place.path.read_bytes() == b"once upon a time " * 100
    assert [each.name for each in place.path.parent.iterdir()] == [place.path.name]


async def test_who_only_looks_finds_what_is_there_and_makes_nothing(new_place):
    place = new_place()
    looking = place.ledger(writes=False)
    await looking.open()
    with pytest.raises(errors.Unreachable, match=f"there is no ledger at {place.path}"):
        await looking.sums(ALL)
    assert not place.path.exists()
    await kept(place)
    await looking.close()
    await looking.open()
    assert ledgers.total(await looking.sums(ALL)).cost == 24 * UNIT
    await looking.close()


@pytest.mark.accepts("cost", 25)
async def test_a_file_that_another_program_holds_makes_batches_wait(new_place, tmp_path):
    place = new_place()
    books = place.ledger(spool=spool.Spool(tmp_path / "waiting"))
    await books.open()
    with sqlite3.connect(place.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await books.write(DAY_OF_ONE, 1) == BookedBatch(is_spooled=True)
        assert "database is locked" in books.trouble
        assert await books.sums(ALL) == []  # whoever reads waits for nobody
        other.execute("ROLLBACK")
    other.close()
    assert await books.write(CostBatch(at=MIDNIGHT + DAY + 60), 1) == BookedBatch()
    assert ledgers.total(await books.sums(ALL)).cost == 24 * UNIT
    assert (books.trouble, (tmp_path / "waiting").stat().st_size) == ("", 0)
    await books.close()


@pytest.mark.accepts("cost", 25)
async def test_what_no_spool_takes_is_said_and_no_look_fails(new_place, tmp_path):
    place, full = new_place(), spool.Spool(tmp_path / "waiting")
    books = place.ledger(spool=full)
    await books.open()
    full.append(CostBatch(at=MIDNIGHT - 2 * DAY))  # a day of batches and more
    with sqlite3.connect(place.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        done = await books.write(DAY_OF_ONE, 1)
        other.execute("ROLLBACK")
    other.close()
    assert "has batches of 24 hours and takes no more" in done.unwritten
    assert full.count == 1
    assert await books.write(DAY_OF_ONE, 1) == BookedBatch()
    await books.close()


@pytest.mark.parametrize("read", [
    lambda books: books.sums(ALL), lambda books: books.sums_of_keys(ALL), lambda books: books.read_acked(0, 2**33),
    lambda books: books.read_used_prices(0, 2**33), lambda books: books.read_intervals(0, 2**33),
], ids=["sums", "keys", "acks", "prices", "intervals"])
async def test_one_that_could_not_be_opened_at_the_start_is_opened_by_whoever_reads_it_first(new_place, read):
    place = new_place()
    await kept(place)
    books = place.ledger()
    assert await read(books) is not None
    assert ledgers.total(await books.sums(ALL)).cost == 24 * UNIT
    await books.close()


async def test_a_spool_of_another_program_is_refused(new_place, tmp_path):
    (tmp_path / "notes").write_text("somebody's notes, and no spool")
    with pytest.raises(errors.Misconfigured, match=r"the cost spool cannot be used: .* is no spool of ours"):
        await new_place().ledger(spool=spool.Spool(tmp_path / "notes")).open()


async def test_in_memory_it_answers_the_same():
    books = ledger.on_file(None)
    await books.open()
    await books.write(DAY_OF_ONE, 1)
    await books.roll_up(MIDNIGHT + DAY, 1)
    assert ledgers.total(await books.sums(ALL)).cost == 24 * UNIT
    await books.close()


async def test_the_old_names_can_be_asked_by_sql(new_place):
    place = new_place()
    await kept(place)
    with sqlite3.connect(place.path) as on:
        found = on.execute("SELECT time, pod_name, gpu_count, hourly_rate, cumulative_cost FROM cost_data").fetchall()
        for view in ("cost_hourly_summary", "cost_daily_summary", "cost_savings", "budget_tracking"):
            assert on.execute(f"SELECT * FROM {view}").fetchall() == []
    on.close()
    assert found == [("2026-09-13 00:00:00", "llm-0", 1.0, 1.0, 24.0)]


async def test_what_is_refused_of_a_batch_that_waited_is_said_with_the_next_one(new_place, tmp_path):
    place, waiting = new_place(), spool.Spool(tmp_path / "waiting")
    books = place.ledger(spool=waiting)
    await books.open()
    await books.write(DAY_OF_ONE, 1)
    waiting.append(CostBatch(at=MIDNIGHT + DAY, intervals=(lasting(part_of(pod="b"), MIDNIGHT + 5, MIDNIGHT + 9),)))
    assert await books.roll_up(MIDNIGHT + DAY, 1) == MIDNIGHT + DAY
    done = await books.write(CostBatch(at=MIDNIGHT + DAY + 60), 1)
    assert ["it overlaps another interval" in one for one in done.refused] == [True]
    assert (await books.write(CostBatch(at=MIDNIGHT + DAY + 120), 1)).refused == ()
    await books.close()
