"""One SQLite file, when a transaction cannot be ended as it should, or the disk takes nothing more."""

from __future__ import annotations

import resource
import signal
import sqlite3
from collections.abc import Iterator
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


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow: as a full disk, for this process alone."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("is_strict", [True, False], ids=["books", "others"])
async def test_a_disk_that_is_full_when_we_start_is_waited_for(
    tmp_path: Path, is_strict: bool, request: pytest.FixtureRequest
) -> None:
    layout = sqlite.TableLayout(1, come_to, is_strict)
    before = sqlite.Database(tmp_path / "x.sqlite", layout, writes=True)
    await before.open()
    await before.close()
    request.getfixturevalue("full_disk")
    opened = sqlite.Database(tmp_path / "x.sqlite", layout, writes=True)
    with pytest.raises(errors.Unreachable, match="cannot be used"):
        await opened.open()
    with pytest.raises(errors.Unreachable, match="cannot be used"):
        await opened.run(count, -1)  # it is not empty: it is not seen
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    assert await opened.run(count, -1) == 0
    await opened.close()


async def test_a_folder_that_may_not_be_written_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").mkdir()
    opened = sqlite.Database(tmp_path / "x.sqlite", sqlite.TableLayout(1, come_to), writes=True)
    with pytest.raises(errors.Misconfigured, match="cannot be used"):
        await opened.open()
