"""Pages kept over a restart.

In: names (each gets a number once) and pages (bytes of one instant). Out: all of them again, after a restart.
Invariant: a page is there whole or not at all, and with it every name it may speak of. Pages of another layout are
worth nothing: who writes begins anew.
"""

import pathlib
import sqlite3
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fallow.clients.database import sqlite

_TABLES = (
    "CREATE TABLE names (number INTEGER PRIMARY KEY, name BLOB NOT NULL)",
    "CREATE TABLE pages (at INTEGER PRIMARY KEY, content BLOB NOT NULL)",
)


class KeptPages(NamedTuple):
    names: dict[int, bytes]
    pages: list[tuple[int, bytes]]  # the oldest first


class Pages:
    """One file of pages. `version` is the layout of what is in them."""

    def __init__(self, path: pathlib.Path, version: int, *, writes: bool) -> None:
        self._database = sqlite.Database(path, sqlite.TableLayout(version, _begin_anew), writes=writes)

    async def open(self) -> None:
        """Raises Misconfigured where the directory cannot be used."""
        await self._database.open()

    async def read(self, since: int) -> KeptPages:
        return await self._database.run(lambda on: _read(on, since), KeptPages({}, []))

    async def add(
        self, names: Mapping[int, bytes], at: int, content: bytes, forget_before: int,
        keep: Iterable[int] | None = None,
    ) -> None:
        """New names and one page, in one transaction; older pages go, and with `keep` all names but those."""
        kept = None if keep is None else set(keep)
        await self._database.run(lambda on: _add(on, names, at, content, forget_before, kept), None)

    async def close(self) -> None:
        await self._database.close()


def _begin_anew(on: sqlite3.Connection, version: int) -> None:
    for table in ("names", "pages"):
        on.execute(f"DROP TABLE IF EXISTS {table}")
    for table in _TABLES:
        on.execute(table)


def _read(on: sqlite3.Connection, since: int) -> KeptPages:
    names = dict(on.execute("SELECT number, name FROM names"))
    pages = on.execute("SELECT at, content FROM pages WHERE at >= ? ORDER BY at", (since,)).fetchall()
    return KeptPages(names, pages)


def _add(
    on: sqlite3.Connection, names: Mapping[int, bytes], at: int, content: bytes, forget_before: int,
    keep: set[int] | None,
) -> None:
    on.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", names.items())
    on.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", (at, content))
    on.execute("DELETE FROM pages WHERE at < ?", (forget_before,))
    if keep is not None:
        known = on.execute("SELECT number FROM names").fetchall()
        on.executemany("DELETE FROM names WHERE number = ?", [one for one in known if one[0] not in keep])
