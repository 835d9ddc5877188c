"""One connection to PostgreSQL, used by one thread at a time, and made anew when it broke.

In: an address (a DSN), whether it writes. Out: `run`, which gives work a session within one transaction. Who reads sees
one instant, and waits for no writer. Many rows are added by COPY. psycopg is loaded with the first connection: it is
the extra `postgres`.
Invariant: a transaction is there whole or not at all; every wait has an end; no message holds the password.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fallow.clients import errors
from fallow.clients.database.session import SqlRow
from fallow.model.secret import Secret

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

_CONNECT_SECONDS: Final = 5
_STATEMENT_MS: Final = 60_000
_LOCK_MS: Final = 10_000
_SILENCE_MS: Final = 30_000  # of a peer that no longer acknowledges what it is sent
_SETTINGS: Final = (
    f"SET statement_timeout = {_STATEMENT_MS}; SET lock_timeout = {_LOCK_MS}; SET timezone = 'UTC';"
    f" SET idle_in_transaction_session_timeout = {_STATEMENT_MS}"
)
_TOO_MUCH: Final = "54"  # the class of what is beyond a limit of the program: asked again it is so again
_READS: Final = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


class PostgresSession:
    """A connection within its transaction, as SqlSession has it."""

    among = "= ANY(?)"

    def __init__(self, on: "psycopg.Connection[SqlRow]", types: dict[tuple[str, ...], list[int]]) -> None:
        self._on, self._types = on, types

    def listed(self, values: Sequence[int] | Sequence[str]) -> list[int] | list[str]:
        return list(values)  # type: ignore[return-value]  # mypy joins the two to a list of objects

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[SqlRow]:
        return self._on.execute(_spell(sql), values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._on.execute(_spell(sql), values).rowcount

    def add(self, table: str, columns: Sequence[str], rows: Iterable[SqlRow]) -> None:
        """By COPY, in PostgreSQL's own form: half the work of its text for both sides."""
        named = ", ".join(columns)
        types = self._find_types(table, columns)
        with self._on.cursor() as cursor, cursor.copy(f"COPY {table} ({named}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def _find_types(self, table: str, columns: Sequence[str]) -> list[int]:
        """Of each column; asked once."""
        name = (table, *columns)
        if name not in self._types:
            found = self._on.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0".encode()).description
            self._types[name] = [column.type_code for column in found or ()]
        return self._types[name]

    def replace(
        self, table: str, columns: Sequence[str], rows: Sequence[SqlRow], *, key: int, there: Sequence[SqlRow],
        gone: Sequence[SqlRow],
    ) -> None:
        if there or gone:
            self._remove(table, columns[:key], [*there, *gone])
        self.add(table, columns, rows)

    def _remove(self, table: str, columns: Sequence[str], keys: Sequence[SqlRow]) -> None:
        """All at once; what lies outside all of them is not looked at (a partition, a chunk)."""
        lists = [list(column) for column in zip(*keys, strict=True)]
        marks = ", ".join(["CAST(? AS BIGINT[])"] * len(columns))
        same = " AND ".join(f"{table}.{one} = k.{one} AND {table}.{one} BETWEEN ? AND ?" for one in columns)
        bounds = [bound for column in lists for bound in (min(column), max(column))]
        self.run(f"DELETE FROM {table} USING unnest({marks}) AS k ({', '.join(columns)}) WHERE {same}", lists + bounds)


@functools.lru_cache(1024)
def _spell(sql: str) -> bytes:
    """psycopg's marks. No text of ours has a question mark of its own, and a percent sign is one."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


class PostgresDatabase:
    """`where`: what messages call it."""

    def __init__(self, dsn: Secret[str], *, writes: bool) -> None:
        self._dsn, self._writes = dsn, writes
        self._turn = asyncio.Lock()
        self._connection: psycopg.Connection[SqlRow] | None = None
        self._types: dict[tuple[str, ...], list[int]] = {}
        self.where = "the database"

    @property
    def is_busy(self) -> bool:
        return self._turn.locked()

    async def run(self, work: Callable[[PostgresSession], T]) -> T:
        """Within one transaction. Raises Unreachable, and then nothing was done or nobody knows: ask again."""
        async with self._turn:
            working = asyncio.ensure_future(asyncio.to_thread(self._run, work))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:  # a thread cannot be stopped: the next one must not begin beside it
                await asyncio.wait({working})
                raise

    async def close(self) -> None:
        async with self._turn:
            await asyncio.to_thread(self._drop)

    def _run(self, work: Callable[[PostgresSession], T]) -> T:
        psycopg = _load()
        try:
            connection = self._begin()
            try:
                found = work(PostgresSession(connection, self._types))
            except BaseException:
                if not connection.closed:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except psycopg.Error as problem:
            self._drop()
            raise self._translate(problem) from problem
        return found

    def _begin(self) -> "psycopg.Connection[SqlRow]":
        """A connection that broke while nobody used it, as by a server's restart, is made anew: nothing was asked."""
        was_there = self._connection is not None
        connection = self._connect()
        try:
            connection.execute("BEGIN")
        except _load().OperationalError:
            if not was_there:
                raise
            self._drop()
            connection = self._connect()
            connection.execute("BEGIN")
        return connection

    def _connect(self) -> "psycopg.Connection[SqlRow]":
        if self._connection is None or self._connection.closed:
            psycopg = _load()
            self.where = _name(self._dsn)
            self._connection = psycopg.connect(
                self._dsn.reveal(), autocommit=True, connect_timeout=_CONNECT_SECONDS, application_name="fallow",
                keepalives_idle=15, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=_SILENCE_MS,
            )
            self._connection.execute(_SETTINGS if self._writes else f"{_SETTINGS}; {_READS}")
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _translate(self, problem: "psycopg.Error") -> errors.ClientError:
        psycopg = _load()
        said = " ".join(str(problem).split())
        if isinstance(problem, psycopg.DataError) or (problem.sqlstate or "").startswith(_TOO_MUCH):
            return errors.BadValue(f"{self.where} cannot keep what it was given: {said}")
        if isinstance(problem, psycopg.errors.UndefinedTable):
            return errors.Vanished(f"{self.where} has lost our tables: {said}")
        away = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
        if isinstance(problem, away):
            return errors.Unreachable(f"{self.where} cannot be used: {said}")
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            return errors.Misconfigured(f"{self.where} does not let us: {said}")
        return errors.BadAnswer(f"{self.where} refused what was asked: {said}")


def _load() -> Any:
    try:
        import psycopg
    except ImportError as problem:
        raise errors.Misconfigured(
            f"PostgreSQL needs the extra: pip install 'fallow[postgres]' ({problem})"
        ) from problem
    return psycopg


def _name(dsn: Secret[str]) -> str:
    """Without user and password."""
    psycopg = _load()
    try:
        found = psycopg.conninfo.conninfo_to_dict(dsn.reveal())
    except psycopg.Error:
        raise errors.Misconfigured("the DSN of the cost store is no address of PostgreSQL") from None
    return f"PostgreSQL at {found.get('host', 'localhost')}:{found.get('port', 5432)}/{found.get('dbname', '')}"
