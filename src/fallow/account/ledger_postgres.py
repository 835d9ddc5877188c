"""The ledger on PostgreSQL, with TimescaleDB where that is there.

In: a DSN. Out: a Ledger, whose tables are made or brought to our version by the first who writes.
Invariant: a newer version is refused in a sentence and nothing of it is touched; two that start at once make the tables
once.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from fallow.account.ledger import Ledger
from fallow.account.schema import POSTGRES, SqlDialect, questions, tables, timescale, views
from fallow.account.spool import Spool
from fallow.clients import errors
from fallow.clients.database import postgres
from fallow.clients.database.session import SqlSession
from fallow.model.secret import Secret

T = TypeVar("T")
_READERS: Final = 3


def on_postgres(
    dsn: Secret[str], *, currency: str = "USD", spool: Spool | None = None, writes: bool = True
) -> Ledger:
    """Not `writes`: for a command that looks at what a daemon keeps."""
    return Ledger(PostgresLedgerStore(dsn, writes=writes), currency=currency, spool=spool, writes=writes)


class PostgresLedgerStore:
    """One connection that writes and some that read."""

    def __init__(self, dsn: Secret[str], *, writes: bool) -> None:
        self.dialect: SqlDialect = POSTGRES
        self._may_write = writes
        self._writer = postgres.PostgresDatabase(dsn, writes=writes)
        self._readers = [postgres.PostgresDatabase(dsn, writes=False) for _ in range(_READERS)]

    async def open(self) -> None:
        has_chunks = await self._writer.run(self._prepare)
        self.dialect = msgspec.structs.replace(POSTGRES, has_chunks=has_chunks)

    def _prepare(self, on: SqlSession) -> bool:
        if self._may_write:
            on.rows(questions.LOCK_TABLES)
        ((there,),) = on.rows(questions.IS_THERE)
        version = int(on.rows(questions.VERSION)[0][0]) if there else 0
        if version > tables.VERSION:
            raise errors.Misconfigured(
                f"{self._writer.where} was written by a newer version of fallow ({version}); use that one"
            )
        if version < tables.VERSION:
            self._come_to(on, version)
        return bool(on.rows(timescale.IS_THERE) and on.rows(timescale.HAS_CHUNKS))

    def _come_to(self, on: SqlSession, version: int) -> None:
        if not self._may_write:
            raise errors.Unreachable(f"there is no ledger of this version at {self._writer.where}")
        for change in tables.find_changes(version, POSTGRES):
            on.run(change)
        if version == 0 and on.rows(timescale.IS_THERE):
            on.rows(timescale.MAKE_CHUNKS)
        for view in views.find_views(POSTGRES):
            on.run(view)

    async def close(self) -> None:
        for one in (*self._readers, self._writer):
            await one.close()

    async def write(self, work: Callable[[SqlSession], T]) -> T:
        return await self._writer.run(work)

    async def read(self, work: Callable[[SqlSession], T]) -> T:
        return await next((one for one in self._readers if not one.is_busy), self._readers[0]).run(work)
