"""One SQLite file, or one in memory: opened with care, used by one thread at a time.

In: where it is, which layout is wanted and how to come to it. Out: `run`, which gives work the connection within one
transaction. The file is opened in WAL mode, so that a command may read while a daemon writes.
Invariant: a transaction is there whole or not at all. A file that is no database is set aside, one of another program
refused, and one of a layout that is not ours is never guessed at: who only reads it finds nothing.
"""

import asyncio
import contextlib
import pathlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from fallow.clients import errors

T = TypeVar("T")

_APPLICATION = 0x66616C6C  # "fall": says that the file is ours
_PATIENCE_SECONDS = 5.0
_MEMORY = ":memory:"


class TableLayout(msgspec.Struct, frozen=True):
    """`version`: what we speak. `come_to`: makes it of a file that has another one (0: a new file), or raises
    errors.Misconfigured where that cannot be."""

    version: int
    come_to: Callable[[sqlite3.Connection, int], None]


class Database:
    """`path` None: in memory, and gone with us."""

    def __init__(self, path: pathlib.Path | None, layout: TableLayout, *, writes: bool) -> None:
        self._path, self._layout, self._writes = path, layout, writes
        self._turn = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Raises Misconfigured where the directory cannot be used."""
        await self._in_thread(self._open)

    async def run(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Within one transaction; `otherwise` where there is nothing to read."""
        return await self._in_thread(lambda: self._run(work, otherwise))

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

    def _run(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        if self._connection is None:
            return otherwise
        with _transaction(self._connection, "IMMEDIATE" if self._writes else "DEFERRED"):
            return work(self._connection)

    def _open(self) -> None:
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
            raise errors.Misconfigured(f"{path} cannot be used: {problem}") from problem
        except sqlite3.DatabaseError:
            if self._writes:
                _set_aside(path)
                self._connect(path)
        except OSError as problem:
            why = problem.strerror or problem
            raise errors.Misconfigured(f"{path.parent} cannot be used: {why}") from problem

    def _connect(self, path: pathlib.Path | str) -> None:
        made = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            is_ours = self._find_version(made) == self._layout.version
            if self._writes:
                self._prepare(made)
                is_ours = True
        except BaseException:
            made.close()
            raise
        if is_ours:
            self._connection = made
        else:
            made.close()

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
        database.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last transaction, never the file
        with _transaction(database, "IMMEDIATE"):
            version = self._find_version(database)
            if version != self._layout.version:
                self._layout.come_to(database, version)
                database.execute(f"PRAGMA application_id={_APPLICATION}")
                database.execute(f"PRAGMA user_version={self._layout.version}")


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
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
