"""One SQLite file, when a transaction cannot be ended as it should."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fallow.clients import errors
from fallow.clients.database import sqlite


def come_to(on: sqlite3.Connection, version: int) -> None:
    on.execute("CREATE TABLE whole (id INTEGER PRIMARY KEY)")
    on.execute("CREATE TABLE part (of_id INTEGER REFERENCES whole (id) DEFERRABLE INITIALLY DEFERRED)")


def count(on: sqlite3.Connection) -> int:
    return int(on.execute("SELECT count(*) FROM part").fetchone()[0])


def fail_to_commit(on: sqlite3.Connection) -> int:
    """What is deferred is found wanting by the commit itself, as a full or a locked disk is."""
    on.execute("PRAGMA defer_foreign_keys = ON")
    on.execute("INSERT INTO part VALUES (7)")
    return 1


def fill_up(on: sqlite3.Connection) -> int:
    """SQLite may roll back by itself where there is no room; a statement that says so stands for that here."""
    on.execute("INSERT INTO part VALUES (NULL)")
    on.execute("INSERT OR ROLLBACK INTO whole VALUES (1), (1)")
    return 1


@pytest.mark.parametrize(("work", "says"), [(fail_to_commit, "FOREIGN KEY"), (fill_up, "UNIQUE")])
async def test_what_could_not_be_committed_is_gone_and_the_next_one_is_not_in_its_way(
    tmp_path: Path, work: object, says: str
) -> None:
    opened = sqlite.Database(tmp_path / "x.sqlite", sqlite.TableLayout(1, come_to), writes=True)
    await opened.open()
    await opened.run(lambda on: 0, 0)
    assert opened._connection is not None
    opened._connection.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(errors.Unreachable, match=says):
        await opened.run(work, 0)  # type: ignore[arg-type]
    assert await opened.run(count, -1) == 0
    await opened.close()
