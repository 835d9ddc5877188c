"""Pages kept over a restart, in one SQLite file.

In: names (each gets a number once) and pages (bytes of one instant). Out: all of them again, after a restart. The file
is opened in WAL mode, so that a command may read while a daemon writes; every call runs in a thread, one at a time.
Invariant: a page is there whole or not at all, and with it every name it may speak of. A file of another layout is
never guessed at: who writes empties it, who only reads finds nothing; one that is no database is set aside, one of
another program refused.
"""

import asyncio
import contextlib
import pathlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from fallow.clients import errors

T = TypeVar("T")

_APPLICATION = 0x66616C6C  # "fall": says that the file is ours
_PATIENCE_SECONDS = 5.0
_TABLES = """
CREATE TABLE names (number INTEGER PRIMARY KEY, name BLOB NOT NULL);
CREATE TABLE pages (at INTEGER PRIMARY KEY, content BLOB NOT NULL);
"""


class KeptPages(NamedTuple):
    names: dict[int, bytes]
    pages: list[tuple[int, bytes]]  # the oldest first


class Pages:
    """One file of pages. `version` is the layout of what is in them."""

    def __init__(self, path: pathlib.Path, version: int, *, writes: bool) -> None:
        self._path = path
        self._version = version
        self._writes = writes
        self._turn = asyncio.Lock()
        self._database: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Raises Misconfigured where the directory cannot be used."""
        await self._run(self._open)

    async def read(self, since: int) -> KeptPages:
        return await self._run(lambda: self._read(since))

    async def add(
        self, names: Mapping[int, bytes], at: int, content: bytes, forget_before: int,
        keep: Iterable[int] | None = None,
    ) -> None:
        """New names and one page, in one transaction; older pages go, and with `keep` all names but those."""
        kept = None if keep is None else set(keep)
        await self._run(lambda: self._add(names, at, content, forget_before, kept))

    async def close(self) -> None:
        if self._database is not None:
            await self._run(lambda: self._database.close() if self._database else None)
            self._database = None

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turn:
            working = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:  # a thread cannot be stopped: the next one must not begin beside it
                await asyncio.wait({working})
                raise
            except sqlite3.Error as problem:
                raise errors.Unreachable(f"{self._path} cannot be used: {problem}") from problem

    def _open(self) -> None:
        try:
            if self._writes:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._writes or self._path.exists():
                self._connect()
        except sqlite3.OperationalError as problem:  # no right to write, no room: the file itself may be sound
            raise errors.Misconfigured(f"{self._path} cannot be used: {problem}") from problem
        except sqlite3.DatabaseError:
            if self._writes:
                self._set_aside()
                self._connect()
        except OSError as problem:
            why = problem.strerror or problem
            raise errors.Misconfigured(f"{self._path.parent} cannot be used: {why}") from problem

    def _connect(self) -> None:
        database = sqlite3.connect(self._path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            is_ours = self._check(database)
            if self._writes:
                self._prepare(database, is_ours)
                is_ours = True
        except BaseException:
            database.close()
            raise
        if is_ours:
            self._database = database
        else:
            database.close()

    def _check(self, database: sqlite3.Connection) -> bool:
        """Whether it has our layout, of this version."""
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            raise errors.Misconfigured(f"{self._path} is the database of another program; give a directory of our own")
        return bool(tables) and version == self._version

    def _prepare(self, database: sqlite3.Connection, is_ours: bool) -> None:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last page, never the file
        if not is_ours:
            database.executescript("DROP TABLE IF EXISTS names; DROP TABLE IF EXISTS pages;")
            database.executescript(_TABLES)
            database.execute(f"PRAGMA application_id={_APPLICATION}")
            database.execute(f"PRAGMA user_version={self._version}")

    def _set_aside(self) -> None:
        """A file that is no database: it may be a broken one of ours, or somebody's. It is kept under another name."""
        self._path.replace(self._path.with_name(f"{self._path.name}.unreadable"))
        for rest in ("-wal", "-shm"):
            self._path.with_name(self._path.name + rest).unlink(missing_ok=True)

    def _read(self, since: int) -> KeptPages:
        if self._database is None:
            return KeptPages({}, [])
        with _transaction(self._database, "DEFERRED"):
            names = dict(self._database.execute("SELECT number, name FROM names"))
            wanted = "SELECT at, content FROM pages WHERE at >= ? ORDER BY at"
            pages = self._database.execute(wanted, (since,)).fetchall()
        return KeptPages(names, pages)

    def _add(
        self, names: Mapping[int, bytes], at: int, content: bytes, forget_before: int, keep: set[int] | None
    ) -> None:
        database = self._database
        if database is None:
            return
        with _transaction(database, "IMMEDIATE"):
            database.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", names.items())
            database.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", (at, content))
            database.execute("DELETE FROM pages WHERE at < ?", (forget_before,))
            if keep is not None:
                known = database.execute("SELECT number FROM names").fetchall()
                database.executemany("DELETE FROM names WHERE number = ?", [one for one in known if one[0] not in keep])


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection, kind: str) -> Iterator[None]:
    database.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
