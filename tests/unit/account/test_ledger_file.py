"""A ledger on a file: what is refused, who may look while another writes, and a file that cannot be written."""

from __future__ import annotations

import sqlite3

import pytest
from tests import ledgers
from tests.ledgers import MIDNIGHT, lasting, part_of

from fallow.account import ledger, spool
from fallow.account.ledger import LedgerWentBack
from fallow.clients import errors
from fallow.model import cost
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


@pytest.mark.accepts("cost", 5, 25)
async def test_a_transaction_that_fails_in_its_middle_leaves_nothing_behind_nor_in_memory(new_place, tmp_path):
    """Numbers of names that were rolled back would be those of nobody, or of the next."""
    place = new_place()
    books = place.ledger(spool=spool.Spool(tmp_path / "waiting"))
    await books.open()
    await books.write(CostBatch(at=MIDNIGHT), 1)  # from now on it believes its memory
    _tell(place, "CREATE TRIGGER full BEFORE INSERT ON cost_intervals BEGIN SELECT RAISE(ABORT, 'no room'); END")
    assert await books.write(DAY_OF_ONE, 1) == BookedBatch(is_spooled=True)
    assert "no room" in books.trouble
    _tell(place, "DROP TRIGGER full")
    assert await books.write(CostBatch(at=MIDNIGHT + DAY + 60), 1) == BookedBatch()
    assert [each.slice for each in await books.read_intervals(MIDNIGHT, MIDNIGHT + DAY)] == [part_of()]
    assert ledgers.total(await books.sums(ALL)).cost == 24 * UNIT
    await books.close()


def _tell(place, sql):
    with sqlite3.connect(place.path) as other:
        other.execute(sql)
    other.close()


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


def until(minute, what=None, **more):
    """A look of that minute, in which somebody holds it since midnight."""
    end = MIDNIGHT + 60 * minute
    return CostBatch(at=end, intervals=(lasting(what or part_of(), MIDNIGHT, end, is_open=True, **more),))


async def books_on(place, **options):
    made = place.ledger(**options)
    await made.open()
    return made


@pytest.mark.accepts("cost", 3, 5, 25)
async def test_what_waited_while_another_kept_the_ledger_is_not_booked_on_top_of_it(new_place, tmp_path, caplog):
    place, waiting = new_place(), spool.Spool(tmp_path / "waiting")
    mine, other = await books_on(place, spool=waiting), await books_on(place)
    await mine.claim(1)
    waiting.append(until(10, part_of(slot="slot-0", pod="seen-by-one")), 1)  # which the ledger did not get
    await other.claim(2)
    await other.write(DAY_OF_ONE, 2)
    await mine.claim(3)
    waiting.append(CostBatch(at=MIDNIGHT + DAY + 60), 3)
    await mine.write(CostBatch(at=MIDNIGHT + DAY + 120), 3)
    assert ledgers.total(await mine.sums(ALL)).gpu_micro_seconds == DAY * 10**6
    assert "1 batches that waited are not booked: another has kept the ledger since" in caplog.text
    assert (await mine.read_meta()).seen_until == MIDNIGHT + DAY + 120
    assert waiting.count == 0
    await mine.close()
    await other.close()


@pytest.mark.accepts("cost", 5, 25)
async def test_what_waited_is_booked_by_later_lives_of_the_same_writer(new_place, tmp_path):
    """Also where one of them took the ledger, and was killed before it had replayed anything."""
    place, path = new_place(), tmp_path / "waiting"
    for epoch in range(1, 4):
        waiting = spool.Spool(path)
        books = await books_on(place, spool=waiting)
        await books.claim(epoch)
        if epoch == 1:
            waiting.append(until(10), 1)
        await books.close()
    books = await books_on(place, spool=spool.Spool(path))
    assert await books.write(CostBatch(at=MIDNIGHT + 1200), 4) == BookedBatch()
    assert ledgers.total(await books.sums(ALL)).gpu_micro_seconds == 1200 * 10**6
    await books.close()


@pytest.mark.accepts("cost", 25)
async def test_where_batches_that_waited_are_gone_the_books_are_told_to_be_read_anew(new_place, tmp_path, caplog):
    place, waiting = new_place(), spool.Spool(tmp_path / "waiting")
    books = await books_on(place, spool=waiting)
    waiting.append(until(1), 1)
    (tmp_path / "waiting").unlink()
    await books.write(CostBatch(), 1)  # of others: they keep no book
    with pytest.raises(LedgerWentBack, match="1 batches that waited in the spool are gone"):
        await books.write(until(2), 1)
    assert await books.write(until(3), 1) == BookedBatch()
    assert "1 of 1 batches are gone" in caplog.text
    assert ledgers.total(await books.sums(ALL)).gpu_micro_seconds == 180 * 10**6
    await books.close()


@pytest.mark.accepts("cost", 25)
async def test_a_file_that_was_removed_is_noticed_and_made_anew(new_place, tmp_path, caplog):
    place = new_place()
    books = await books_on(place, spool=spool.Spool(tmp_path / "waiting"))
    await books.write(until(1), 1)
    for each in place.path.parent.glob(f"{place.path.name}*"):
        each.unlink()
    assert await books.write(until(2), 1) == BookedBatch(is_spooled=True)
    assert "was removed or replaced while we used it" in books.trouble
    with pytest.raises(LedgerWentBack, match="older than we left it"):
        await books.write(until(3), 1)
    await books.close()
    again = await books_on(place)
    assert ledgers.total(await again.sums(ALL)).gpu_micro_seconds == 180 * 10**6
    assert "it is opened anew" in caplog.text
    await again.close()


@pytest.mark.accepts("cost", 3, 5)
async def test_a_ledger_that_comes_back_older_gives_no_number_of_before_to_another(new_place, caplog):
    """A replica that lagged, a backup: an interval that names a number which is gone would be the next one's."""
    place = new_place()
    books = await books_on(place)
    await books.write(until(1), 1)
    looking = await books_on(place, writes=False)
    backup = sqlite3.connect(":memory:")
    with sqlite3.connect(place.path) as on:
        on.backup(backup)
    two = part_of("GPU-2", pod="victim-0", at=ledgers.key("victim"))
    await books.write(until(2, two), 1)
    by = (cost.read_dimension("namespace"),)
    asked = CostQuery(begin=MIDNIGHT, end=MIDNIGHT + DAY, by=by)
    for each in (books, looking):
        assert len(await each.sums(asked)) == 2  # and their names are remembered
    backup.backup(on)
    on.close()
    backup.close()
    with pytest.raises(LedgerWentBack, match="what was written last is gone from it"):
        await books.write(until(3, part_of("GPU-3", pod="other-0", at=ledgers.key("other"))), 1)
    assert await books.write(until(4, two), 1) == BookedBatch()
    for who in (books, looking):
        found = {each.key: each.total.gpu_micro_seconds for each in await who.sums(asked)}
        assert found == dict.fromkeys((("ml",), ("other",), ("victim",)), 240 * 10**6)
        await who.close()
    assert "the books are read anew" in caplog.text
