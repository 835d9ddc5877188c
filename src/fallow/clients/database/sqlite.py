"""One SQLite file, or one in memory: opened with care, used by one thread at a time.

In: where it is, which layout is wanted and how to come to it. Out: `run`, which gives work the connection within one
transaction. The file is opened in WAL mode, so that a command may read while a daemon writes.
Invariant: a transaction is there whole or not at all. A file that is no database is set aside, one of another program
refused, and one of a layout that is not ours is never guessed at: who only reads it finds nothing. Books are stricter:
what was committed outlives a power cut, and a file that cannot be read is refused, for nobody's money begins anew.
"""

import asyncio
import contextlib
import pathlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from fallow.clients import errors
from fallow.clients.database.session import SqlRow

T = TypeVar("T")

_APPLICATION = 0x66616C6C  # "fall": says that the file is ours
_PATIENCE_SECONDS = 5.0
_MEMORY = ":memory:"
_PASSES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL})


class TableLayout(msgspec.Struct, frozen=True):
    """`version`: what we speak. `come_to`: makes it of a file that has another one (0: a new file), or raises
    errors.Misconfigured where that cannot be. `is_strict`: these are books."""

    version: int
    come_to: Callable[[sqlite3.Connection, int], None]
    is_strict: bool = False


class Database:
    """`path` None: in memory, and gone with us."""

    def __init__(self, path: pathlib.Path | None, layout: TableLayout, *, writes: bool) -> None:
        self._path, self._layout, self._writes = path, layout, writes
        self._turn = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_away = False  # it was to be opened, and could not be for now
        self._file: tuple[int, int] | None = None  # which one, of books

    async def open(self) -> None:
        """Raises Misconfigured where the directory cannot be used; Unreachable where the disk is full, fails or is
        locked for now: whatever is run later tries again."""
        await self._in_thread(self._open)

    async def run(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Within one transaction; `otherwise` where there is nothing to read."""
        return await self._in_thread(lambda: self._run(work, otherwise, "IMMEDIATE" if self._writes else "DEFERRED"))

    async def read(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """The same for what only reads: it waits for no writer."""
        return await self._in_thread(lambda: self._run(work, otherwise, "DEFERRED"))

    @property
    def is_busy(self) -> bool:
        return self._turn.locked()

    async def close(self) -> None:
        if self._connection is not None:
            await self._in_thread(self._connection.close)
            self._connection = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._turn:
            working = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:  # a thread cannot be stopped: the next one must not begin beside it
                await asyncio.wait({working})
                raise
            except sqlite3.Error as problem:
                raise errors.Unreachable(f"{self._path or _MEMORY} cannot be used: {problem}") from problem

    def _run(self, work: Callable[[sqlite3.Connection], T], otherwise: T, kind: str) -> T:
        if self._is_away:
            self._open()
        if self._connection is None:
            return otherwise
        if self._find_file() != self._file:  # SQLite goes on with a file that nobody can find any more
            raise errors.Vanished(f"{self._path} was removed or replaced while we used it")
        with _transaction(self._connection, kind):
            return work(self._connection)

    def _open(self) -> None:
        try:
            self._try_open()
        except errors.Unreachable:
            self._is_away = True
            raise
        self._is_away = False

    def _try_open(self) -> None:
        path = self._path
        if path is None:
            self._connect(_MEMORY)
            return
        try:
            if self._writes:
                path.parent.mkdir(parents=True, exist_ok=True)
            if self._writes or path.exists():
                self._connect(path)
        except sqlite3.OperationalError as problem:  # no right to write, no room: the file itself may be sound
            kind = errors.Unreachable if problem.sqlite_errorcode & 0xFF in _PASSES else errors.Misconfigured
            raise kind(f"{path} cannot be used: {problem}") from problem
        except sqlite3.DatabaseError as problem:
            if self._layout.is_strict:
                raise errors.Misconfigured(f"{path} cannot be read as a database: {problem}") from problem
            if self._writes:
                _set_aside(path)
                self._connect(path)
        except OSError as problem:
            why = problem.strerror or problem
            raise errors.Misconfigured(f"{path.parent} cannot be used: {why}") from problem

    def _connect(self, path: pathlib.Path | str) -> None:
        made = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            version = self._find_version(made)
            is_ours = version == self._layout.version
            if version > self._layout.version and self._layout.is_strict:
                raise errors.Misconfigured(f"{path} was written by a newer version of fallow ({version}); use that one")
            if self._writes:
                self._prepare(made)
                is_ours = True
        except BaseException:
            made.close()
            raise
        if is_ours:
            self._connection, self._file = made, self._find_file()
        else:
            made.close()

    def _find_file(self) -> tuple[int, int] | None:
        """None: there is none, or it may go."""
        if self._path is None or not self._layout.is_strict:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _find_version(self, database: sqlite3.Connection) -> int:
        """Of our layout; 0: there is nothing yet."""
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            raise errors.Misconfigured(f"{self._path} is the database of another program; give a directory of our own")
        return int(version) if tables else 0

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA journal_mode=WAL")
        # NORMAL: a power cut may lose the last transaction, never the file.
        database.execute(f"PRAGMA synchronous={'FULL' if self._layout.is_strict else 'NORMAL'}")
        with _transaction(database, "IMMEDIATE"):
            version = self._find_version(database)
            if version != self._layout.version:
                self._layout.come_to(database, version)
                database.execute(f"PRAGMA application_id={_APPLICATION}")
                database.execute(f"PRAGMA user_version={self._layout.version}")


class SqliteSession:
    """A connection within its transaction, as SqlSession has it."""

    among = "IN (SELECT value FROM json_each(?))"

    def __init__(self, on: sqlite3.Connection) -> None:
        self._on = on

    def listed(self, values: Sequence[int] | Sequence[str]) -> str:
        return msgspec.json.encode(values).decode()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[SqlRow]:
        return self._on.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._on.execute(sql, values).rowcount

    def add(self, table: str, columns: Sequence[str], rows: Iterable[SqlRow]) -> None:
        marks = ", ".join("?" * len(columns))
        self._on.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def replace(
        self, table: str, columns: Sequence[str], rows: Sequence[SqlRow], *, key: int, there: Sequence[SqlRow],
        gone: Sequence[SqlRow],
    ) -> None:
        same = " AND ".join(f"{one} = ?" for one in columns[:key])
        self._on.executemany(f"DELETE FROM {table} WHERE {same}", gone)
        marks = ", ".join("?" * len(columns))
        into = f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        self._on.executemany(into, map(tuple, rows))  # a named one takes half as long again


def _set_aside(path: pathlib.Path) -> None:
    """A file that is no database: it may be a broken one of ours, or somebody's. It is kept under another name."""
    path.replace(path.with_name(f"{path.name}.unreadable"))
    for rest in ("-wal", "-shm"):
        path.with_name(path.name + rest).unlink(missing_ok=True)


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection, kind: str) -> Iterator[None]:
    database.execute(f"BEGIN {kind}")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:  # a commit may fail, too; and SQLite itself rolls back where there is no room
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
