"""The ledger: what every part of every GPU cost, second by second, and whose it was.

In: batches of intervals from the one writer, which is whoever holds the Lease. Out: sums of any window by whatever is
asked for, intervals, savings, budgets. On a SQLite file, or on PostgreSQL (with or without TimescaleDB): same answers.
Invariant: nothing is counted twice and nothing is lost. A batch is there whole or not at all, and may be written again;
a writer of an older epoch is refused; while the database is away batches wait in a spool and are replayed in order
before anything new; reading waits for no writer.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from fallow.account import ledger_read, ledger_runs, ledger_stored, ledger_write
from fallow.account.ledger_names import LedgerWentBack, NumberBook, find_writer
from fallow.account.ledger_read import NameBook
from fallow.account.ledger_rows import LAST
from fallow.account.ledger_write import StaleWriter
from fallow.account.schema import SQLITE, SqlDialect, questions, tables, views
from fallow.account.spool import Spool, SpoolFull, WaitingBatch
from fallow.clients import errors
from fallow.clients.database import sqlite
from fallow.clients.database.session import SqlSession
from fallow.model.cost import (
    HOUR,
    BookedAlert,
    BookedBatch,
    BookedPrice,
    BookedSaving,
    BudgetReading,
    CostBatch,
    CostFilter,
    CostQuery,
    CostRetention,
    CostSum,
    DemandHour,
    Interval,
    KeySum,
    LedgerMeta,
    Nano,
    Second,
)
from fallow.model.runs import PastRun

__all__ = ["Ledger", "LedgerWentBack", "StaleWriter", "on_file"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_READERS: Final = 3


class LedgerStore(Protocol):
    """A database that gives work a session within one transaction. Raises errors.Unreachable where it is away."""

    dialect: SqlDialect

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def write(self, work: Callable[[SqlSession], T]) -> T: ...

    async def read(self, work: Callable[[SqlSession], T]) -> T: ...


class Ledger:
    """`currency`: that of a new ledger; one that is there must be of the same. `spool`: None = there is none, and a
    batch that cannot be written raises."""

    def __init__(
        self, store: LedgerStore, *, currency: str = "USD", spool: Spool | None = None, writes: bool = True
    ) -> None:
        self._store, self._currency, self._spool, self._may_write = store, currency, spool, writes
        self._is_open, self._opening = False, asyncio.Lock()
        self._book, self._names = NumberBook(), NameBook()
        self._writer = ""  # whose names and sums we remember
        self._turn = asyncio.Lock()  # batches are written in the order they come
        self._rolled_total = (-1, -1, 0)  # generation, until, and what it came to
        self._total: Nano = 0
        self._rolled: Second = 0
        self._refused = list[str]()  # of batches that waited: said with the next one
        self._behind = ""  # why the ledger lacks what whoever keeps the books believes to be there
        self.trouble = ""  # why it could not be written last

    async def open(self) -> None:
        """Raises errors.Misconfigured where the ledger is of another currency or a newer version. One that is away is
        opened as soon as it is back, if there is a spool; else errors.Unreachable."""
        if self._spool is not None:
            await self._open_spool(self._spool)
        try:
            await self._open_store()
        except errors.Unreachable as problem:
            if self._spool is None:
                raise
            self._say(str(problem))

    async def _open_store(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            try:
                await self._store.open()
                if self._may_write:
                    await self._check_currency()
            except BaseException:
                await self._store.close()
                raise
            self._is_open = True

    async def _open_spool(self, spool: Spool) -> None:
        try:
            cut = await asyncio.to_thread(spool.open)
        except (OSError, SpoolFull) as problem:
            raise errors.Misconfigured(f"the cost spool cannot be used: {problem}") from problem
        if cut:
            log.warning("%s", cut)

    async def _check_currency(self) -> None:
        stored = await self._store.write(lambda on: _set_currency(on, self._currency))
        if stored != self._currency:
            raise errors.Misconfigured(
                f"the ledger is kept in {stored}, and the cost currency is set to {self._currency};"
                " keep the currency, or give another store"
            )

    async def close(self) -> None:
        self._is_open = False
        await self._store.close()

    # ---- writing ------------------------------------------------------------------------------------------------

    async def claim(self, epoch: int) -> None:
        """From now on writers of an older epoch are refused. Raises StaleWriter where ours is not the newest: somebody
        has it or a later one. A ledger that is away is claimed by the first batch that it takes."""
        def work(on: SqlSession) -> None:
            ledger_write.claim(on, self._book, epoch, questions.TAKE)

        await self._unless_away(lambda: self._write(work), None)

    async def write(self, batch: CostBatch, epoch: int) -> BookedBatch:
        """Raises StaleWriter; never for a database that is away, as long as there is a spool. Raises LedgerWentBack
        where this batch is written, and others before it are there no longer."""
        async with self._turn:
            try:
                await self._replay(epoch)
                self._refused += await self._write_batch(batch, epoch)
            except errors.Unreachable as problem:
                if self._spool is None:
                    raise
                self._say(str(problem))
                return await self._wait_in(self._spool, batch, epoch)
            self._say("")
            if batch.at and self._behind:  # a look of whoever keeps the books
                behind, self._behind = self._behind, ""
                raise LedgerWentBack(behind)
            refused, self._refused = tuple(self._refused), []
            return BookedBatch(refused)

    async def _unless_away(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """What can be done later as well, when there is a spool."""
        try:
            return await work()
        except errors.Unreachable as problem:
            if self._spool is None:
                raise
            self._say(str(problem))
            return otherwise

    async def _write_batch(self, batch: CostBatch, epoch: int, spooled: str = "") -> list[str]:
        try:
            return await self._write(lambda on: ledger_write.write(on, self._book, batch, epoch, spooled))
        except errors.BadValue as problem:  # it would be refused for ever, and all that come after it would wait
            return [await self._set_aside(batch, epoch, str(problem))]

    async def _set_aside(self, batch: CostBatch, epoch: int, because: str) -> str:
        where = "nowhere"
        if self._spool is not None:
            try:
                where = str(await asyncio.to_thread(self._spool.set_aside, batch, epoch))
            except SpoolFull as problem:
                because = f"{because}; {problem}"
        return f"a batch of {len(batch.intervals)} intervals is refused, and kept in {where}: {because}"

    async def _wait_in(self, spool: Spool, batch: CostBatch, epoch: int) -> BookedBatch:
        try:
            await asyncio.to_thread(spool.append, batch, epoch)
        except SpoolFull as problem:
            return BookedBatch(unwritten=str(problem))
        return BookedBatch(is_spooled=True)

    async def _replay(self, epoch: int) -> None:
        """What waited, in order; each record once, even where we are killed in between. What was made before another
        kept the ledger is not: that one has booked the same time as it saw it."""
        spool = self._spool
        if spool is None or not spool.count:
            return
        done = (await self._write(lambda on: ledger_write.claim(on, self._book, epoch))).spooled
        records = await asyncio.to_thread(_read_spool, spool)
        names = [name for name, _ in records]
        waited = records[names.index(done) + 1 if done in names else 0 :]
        true = [(name, batch) for name, batch in waited if batch.epoch is None or batch.epoch >= self._book.since]
        if len(true) < len(waited):
            log.error("%d batches that waited are not booked: another has kept the ledger since they were made",
                      len(waited) - len(true))
        for name, batch in true:
            self._refused += await self._write_batch(batch, epoch, name)
        if spool.lost:
            self._behind = f"{spool.lost} batches that waited in the spool are gone"
        await asyncio.to_thread(spool.clear)

    def _say(self, trouble: str) -> None:
        if trouble and not self.trouble:
            log.warning("costs cannot be written, and wait in the spool: %s", trouble)
        elif self.trouble and not trouble:
            log.info("costs are written again")
        self.trouble = trouble

    async def _read(self, work: Callable[[SqlSession], T]) -> T:
        await self._open_store()
        try:
            return await self._store.read(self._heed_writer(work))
        except errors.Vanished as problem:
            await self._leave_store(problem)
            raise

    def _heed_writer(self, work: Callable[[SqlSession], T]) -> Callable[[SqlSession], T]:
        """What is remembered holds for one writer, which takes another name where it finds the ledger older."""

        def within(on: SqlSession) -> T:
            writer = find_writer(on)
            if writer != self._writer:
                self._remember_of(writer)
            return work(on)

        return within

    def _remember_of(self, writer: str) -> None:
        self._writer, self._names, self._rolled_total = writer, NameBook(), (-1, -1, 0)

    async def _write(self, work: Callable[[SqlSession], T]) -> T:
        await self._open_store()
        try:
            return await self._write_once(work)
        except errors.Vanished as problem:
            await self._leave_store(problem)
            raise
        except LedgerWentBack as problem:
            log.error("%s; the books are read anew", problem)
            self._behind = str(problem)
            self._remember_of("")
        return await self._write_once(work)

    async def _write_once(self, work: Callable[[SqlSession], T]) -> T:
        try:
            self._book.shrink()
            self._book.waiting = self._spool.waits_for if self._spool is not None else ("", None)
            done = await self._store.write(work)
        except BaseException:
            self._book.forget()  # numbers of a transaction that did not come to be
            raise
        self._book.confirm()
        return done

    async def _leave_store(self, problem: errors.Vanished) -> None:
        """The next who asks opens it anew, and makes what is missing."""
        async with self._opening:
            if self._is_open:
                self._is_open = False
                log.error("%s; it is opened anew", problem)
                await self._store.close()

    async def roll_up(self, until: Second, epoch: int) -> Second:
        """Sums up hours and days that are over, up to `until` (a whole hour), after all that waited was written. Out:
        up to where everything is summed up; while the ledger is away, up to where it was."""
        async with self._turn:
            self._rolled = await self._unless_away(lambda: self._roll_up(until - until % HOUR, epoch), self._rolled)
        return self._rolled

    async def _roll_up(self, until: Second, epoch: int) -> Second:
        await self._replay(epoch)
        rolled = (await self.read_meta()).rolled_until
        while rolled < until:
            rolled = await self._write(lambda on: ledger_write.roll_up(on, self._book, until, epoch))
        await self._write(lambda on: ledger_write.keep_total(on, self._book, self._sum_all(on), epoch))
        return rolled

    async def forget(self, retention: CostRetention, now: Second, epoch: int) -> None:
        """What is older than is kept, and summed up; later, while the ledger is away."""

        def work(on: SqlSession) -> None:
            ledger_write.forget(on, self._book, retention, now, epoch, self._store.dialect)

        await self._unless_away(lambda: self._write(work), None)

    async def write_budgets(
        self, readings: Sequence[BudgetReading], alerts: Sequence[BookedAlert], epoch: int
    ) -> None:
        await self._write(lambda on: ledger_write.write_budgets(on, self._book, readings, alerts, epoch))

    async def write_demand(self, hours: Sequence[DemandHour], epoch: int) -> None:
        """Of policies that scale nodes."""
        await self._write(lambda on: ledger_write.write_demand(on, self._book, hours, epoch))

    # ---- reading ------------------------------------------------------------------------------------------------

    async def read_meta(self) -> LedgerMeta:
        return (await self._read(ledger_stored.read_meta)).meta

    async def sums(self, asked: CostQuery) -> list[CostSum]:
        """ValueError where the zone or the step cannot be."""
        return await self._read(lambda on: ledger_read.sums(on, self._names, asked))

    async def sums_of_keys(self, asked: CostQuery) -> list[KeySum]:
        """The same, each key by itself: for who exports all there is."""
        return await self._read(lambda on: ledger_read.sums_of_keys(on, self._names, asked))

    async def read_open(self) -> list[Interval]:
        """What goes on, with the end it has by now: as a writer finds it when it starts."""
        return await self._read(lambda on: ledger_read.read_open(on, self._names))

    async def read_intervals(
        self, begin: Second, end: Second, where: Sequence[CostFilter] = ()
    ) -> list[Interval]:
        """All that touch [begin, end), whole."""
        return await self._read(lambda on: ledger_read.read_intervals(on, self._names, begin, end, where))

    async def read_acked(self, begin: Second, end: Second) -> list[Interval]:
        """Those of them that an acknowledgement kept."""
        return await self._read(lambda on: ledger_read.read_acked(on, self._names, begin, end))

    async def total_since_start(self) -> Nano:
        """It never falls, even where a correction made something cheaper."""
        self._total = max(self._total, await self._read(self._sum_all))
        return self._total

    def _sum_all(self, on: SqlSession) -> Nano:
        """What is rolled up is summed once for each generation of it."""
        stored = ledger_stored.read_meta(on)
        until, (generation, of, total) = stored.meta.rolled_until, self._rolled_total
        if (generation, of) != (stored.generation, until):
            total = ledger_read.sum_rolled_costs(on, until)
            self._rolled_total = (stored.generation, until, total)
        return max(stored.total, total + ledger_read.sum_costs(on, self._names, until, LAST))

    async def read_began(self) -> Second | None:
        """Nothing is known of the time before; of what was forgotten, to the day. None: it is empty."""
        return await self._read(ledger_read.read_began)

    async def read_prices(self) -> list[BookedPrice]:
        return await self._read(ledger_read.read_prices)

    async def read_used_prices(self, begin: Second, end: Second) -> frozenset[str]:
        """Ids of those that intervals of these days name."""
        return await self._read(lambda on: ledger_read.read_used_prices(on, begin, end))

    async def read_savings(self, begin: Second, end: Second) -> list[BookedSaving]:
        return await self._read(lambda on: ledger_read.read_savings(on, begin, end))

    async def read_shared(self, uids: Collection[str]) -> frozenset[str]:
        """Those of these pods that we made share a GPU."""
        return await self._read(lambda on: ledger_runs.read_shared(on, uids))

    async def read_runs(self, begin: Second, most: int) -> list[PastRun]:
        """Of pods that came since and are over, the last so many."""
        return await self._read(lambda on: ledger_runs.read_runs(on, self._names, begin, most))

    async def read_budgets(self, begin: Second, end: Second) -> list[BudgetReading]:
        return await self._read(lambda on: ledger_read.read_budgets(on, begin, end))

    async def read_demand(self, since: Second) -> list[DemandHour]:
        return await self._read(lambda on: ledger_read.read_demand(on, since))

    async def read_alerts(self, budget_uid: str = "") -> list[BookedAlert]:
        """Of one budget, or of all."""
        return await self._read(lambda on: ledger_read.read_alerts(on, budget_uid))


def _read_spool(spool: Spool) -> list[tuple[str, WaitingBatch]]:
    try:
        return spool.read()
    except (OSError, SpoolFull) as problem:
        raise errors.Unreachable(f"the cost spool cannot be read: {problem}") from problem


def _set_currency(on: SqlSession, currency: str) -> str:
    on.run(questions.SET_CURRENCY, (currency,))
    return ledger_stored.read_meta(on).meta.currency


# ---- on a file -------------------------------------------------------------------------------------------------------


def on_file(path: Path | None, *, currency: str = "USD", spool: Spool | None = None, writes: bool = True) -> Ledger:
    """`path` None: in memory. Not `writes`: for a command that looks at what a daemon keeps."""
    return Ledger(SqliteLedgerStore(path, writes=writes), currency=currency, spool=spool, writes=writes)


class SqliteLedgerStore:
    """One connection that writes and some that read: SQLite's readers wait for no writer."""

    dialect = SQLITE

    def __init__(self, path: Path | None, *, writes: bool) -> None:
        layout = sqlite.TableLayout(tables.VERSION, _come_to, is_strict=True)
        self._path = path
        self._writer = sqlite.Database(path, layout, writes=writes)
        self._readers = [sqlite.Database(path, layout, writes=False) for _ in range(_READERS if path else 0)]

    async def open(self) -> None:
        for one in (self._writer, *self._readers):
            await one.open()

    async def close(self) -> None:
        for one in (*self._readers, self._writer):
            await one.close()

    async def write(self, work: Callable[[SqlSession], T]) -> T:
        return await self._run(self._writer.run, work)

    async def read(self, work: Callable[[SqlSession], T]) -> T:
        free = next((one for one in self._readers if not one.is_busy), (*self._readers, self._writer)[0])
        return await self._run(free.read, work)

    async def _run(
        self, run: Callable[[Callable[[sqlite3.Connection], list[T]], list[T]], Awaitable[list[T]]],
        work: Callable[[SqlSession], T],
    ) -> T:
        found = await run(lambda on: [work(sqlite.SqliteSession(on))], [])
        if not found:
            raise errors.Unreachable(f"there is no ledger at {self._path}")
        return found[0]


def _come_to(on: sqlite3.Connection, version: int) -> None:
    for change in (*tables.find_changes(version, SQLITE), *views.find_views(SQLITE)):
        on.execute(change)
