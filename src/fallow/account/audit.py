"""The audit: what happened, kept for 180 days in one SQLite file, or in memory where there is no state directory.

In: chapters of the chronicle, entries for what people did through a door. Out: entries, counts, conditions, levels
and hours held idle of the past. The only SQL of it.
Invariant: an entry stands once, however often it is written; every table is bounded; a database that cannot be written
loses nothing that fits into the queue, and reading goes on from what is there.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from fallow.account import chronicle
from fallow.clients import errors
from fallow.clients.database import sqlite
from fallow.model import cluster, history
from fallow.model.history import AuditEntry, CameBy, Condition, Happened, HeldIdle, Levels
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds

log = logging.getLogger(__name__)

FILE: Final = "audit.sqlite"
LEVELS_EVERY: Final[Seconds] = 5 * MINUTE
HOURS_EVERY: Final[Seconds] = 6 * HOUR  # what was held idle is kept in stretches of this length
_TURNS_KEPT: Final[Seconds] = 31 * DAY
# Entries and turns: an entry takes some 300 bytes, 2 KB at most. In memory there is less room than on a disk.
_MOST_ON_DISK: Final = (500_000, 1_000_000)
_MOST_IN_MEMORY: Final = (20_000, 100_000)
_MOST_WAITING: Final = 5_000  # chapters' rows, while the database cannot be written
_TABLES: Final = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, at REAL NOT NULL, type TEXT NOT NULL, grp TEXT, version TEXT,"
    " kind TEXT, namespace TEXT, name TEXT, uid TEXT NOT NULL, gpus INTEGER, sentence TEXT NOT NULL,"
    " detail TEXT NOT NULL, actor TEXT NOT NULL, source TEXT NOT NULL,"
    " reason TEXT NOT NULL, policy TEXT NOT NULL, code TEXT NOT NULL)",
    "CREATE UNIQUE INDEX entries_once ON entries (uid, type, at)",
    "CREATE INDEX entries_by_time ON entries (at)",
    "CREATE TABLE turns (uid TEXT NOT NULL, at REAL NOT NULL, condition TEXT, PRIMARY KEY (uid, at)) WITHOUT ROWID",
    "CREATE INDEX turns_by_time ON turns (at)",
    "CREATE TABLE levels (bucket INTEGER PRIMARY KEY, at REAL NOT NULL, total REAL, busy REAL NOT NULL,"
    " idle REAL NOT NULL, kept REAL NOT NULL, unknown REAL NOT NULL, free REAL)",
)
_SECOND: Final = (  # what the second layout has more
    "ALTER TABLE entries ADD COLUMN per_hour REAL",
    "CREATE TABLE held (bucket INTEGER NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,"
    " model TEXT NOT NULL, idle REAL NOT NULL, kept REAL NOT NULL,"
    " PRIMARY KEY (bucket, namespace, kind, name, model)) WITHOUT ROWID",
)
_THIRD: Final = ("ALTER TABLE entries ADD COLUMN shares REAL",)
_CHANGES: Final = (_TABLES, _SECOND, _THIRD)  # from an empty file on, layout by layout
_FIELDS: Final = (
    "number", "at", "type", "grp", "version", "kind", "namespace", "name", "uid", "gpus", "sentence", "detail", "actor",
    "source", "reason", "policy", "code", "per_hour",
    "shares",
)


def _come_to(on: sqlite3.Connection, version: int) -> None:
    """A file of a later layout is not ours to change."""
    if version > len(_CHANGES):
        newer = f"the audit was written by a newer version ({version})"
        raise errors.Misconfigured(f"{newer}; use that, or another directory")
    for change in (change for some in _CHANGES[version:] for change in some):
        on.execute(change)


Past: TypeAlias = list[tuple[Instant, Condition | None]]  # since when in which condition, the oldest first
Rows: TypeAlias = list[tuple[Any, ...]]

LAYOUT: Final = sqlite.TableLayout(len(_CHANGES), _come_to)


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: all that are given must fit. `before`: a number; older ones follow."""

    since: Instant = 0.0
    until: Instant = float("inf")
    types: frozenset[Happened] = frozenset()
    namespace: str = ""
    kind: str = ""
    name: str = ""
    before: int | None = None
    limit: int = 100


class Audit:
    """`directory` None: in memory."""

    def __init__(self, directory: str | None, *, writes: bool = True) -> None:
        path = Path(directory) / FILE if directory else None
        self._database = sqlite.Database(path, LAYOUT, writes=writes)
        self._most = _MOST_ON_DISK if path else _MOST_IN_MEMORY
        self._waiting: deque[chronicle.Chapter] = deque(maxlen=_MOST_WAITING)
        self._writing = asyncio.Lock()
        self.trouble = ""  # why it could not be written last
        self._pruned_at: Instant = 0.0

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    def put(self, chapter: chronicle.Chapter) -> None:
        """To be written with the next flush."""
        self._waiting.append(chapter)

    async def flush(self, now: Instant) -> None:
        """Never raises for what the database does: what could not be written waits, and is said."""
        async with self._writing:
            chapters, forgets = tuple(self._waiting), abs(now - self._pruned_at) > HOUR
            self._waiting.clear()
            try:
                await self._database.run(lambda on: _write(on, chapters, (now, *self._most) if forgets else None), None)
            except errors.ClientError as problem:
                if not self.trouble:
                    log.warning("what happens cannot be written down, and waits: %s", problem)
                self.trouble = str(problem)
                self._waiting.extendleft(reversed(chapters))
                return
            self.trouble, self._pruned_at = "", now if forgets else self._pruned_at

    async def enter(self, entry: AuditEntry) -> None:
        """For a door: what somebody just did."""
        self.put(chronicle.Chapter((entry,)))
        await self.flush(entry.at)

    async def read(self, asked: AuditQuery) -> list[AuditEntry]:
        """The newest first."""
        return await self._database.read(lambda on: _read(on, asked), [])

    async def _rows(self, ask: Callable[[sqlite3.Connection], Rows]) -> Rows:
        return await self._database.read(ask, [])

    async def count(self, since: Instant, until: Instant = float("inf")) -> dict[Happened, int]:
        query = "SELECT type, count(*) FROM entries WHERE at >= ? AND at < ? GROUP BY type"
        found = await self._rows(lambda on: on.execute(query, (since, _finite(until))).fetchall())
        return {Happened(type_of): number for type_of, number in found}

    async def pace(
        self, types: Iterable[Happened], since: Instant, step: Seconds, until: Instant
    ) -> Mapping[Happened, Sequence[int]]:
        """How many of each in every step of time."""
        steps, wanted = int((until - since) // step) + 1, tuple(types)
        query = (
            f"SELECT type, CAST((at - ?) / ? AS INTEGER) AS turn, count(*) FROM entries WHERE at >= ? AND at < ?"
            f" AND type IN ({', '.join('?' * len(wanted))}) GROUP BY type, turn"
        )
        given = (since, step, since, _finite(until), *wanted)
        rows = await self._rows(lambda on: on.execute(query, given).fetchall())
        found = {type_of: [0] * steps for type_of in wanted}
        for type_of, turn, number in rows:
            found[Happened(type_of)][turn] = number
        return found

    async def conditions(self, uids: Iterable[str], since: Instant) -> dict[str, Past]:
        """What each was in since then, the oldest first; the first one may have begun before."""
        wanted = list(uids)
        return await self._database.read(lambda on: _read_conditions(on, wanted, since), {})

    async def held(self, since: Instant, until: Instant = float("inf")) -> list[HeldIdle]:
        """Summed up by workload and model, of the stretches that began in that time."""
        query = (
            "SELECT namespace, kind, name, model, sum(idle), sum(kept), min(bucket) FROM held"
            " WHERE bucket >= ? AND bucket < ? GROUP BY namespace, kind, name, model"
        )
        given = (_bucket(since), _finite(until) / HOURS_EVERY)
        fields = ("namespace", "kind", "name", "model", "idle", "kept")
        return [
            HeldIdle(**dict(zip(fields, row[:-1], strict=True)), at=row[-1] * HOURS_EVERY)
            for row in await self._rows(lambda on: on.execute(query, given).fetchall())
        ]

    async def read_began(self) -> Instant | None:
        """Nothing is known of the time before; None: nothing was written down."""
        query = "SELECT min(at) FROM levels UNION ALL SELECT min(at) FROM entries"
        found = [at for (at,) in await self._rows(lambda on: on.execute(query).fetchall()) if at is not None]
        return min(found, default=None)

    async def levels(self, since: Instant, until: Instant = float("inf")) -> list[Levels]:
        query = "SELECT at, total, busy, idle, kept, unknown, free FROM levels WHERE at >= ? AND at < ? ORDER BY bucket"
        rows = await self._rows(lambda on: on.execute(query, (since, _finite(until))).fetchall())
        fields = ("at", "total", "busy", "idle", "kept", "unknown", "free")
        return [Levels(**dict(zip(fields, row, strict=True))) for row in rows]


def _bucket(at: Instant) -> int:
    return int(at // HOURS_EVERY)


def _finite(until: Instant) -> Instant:
    return min(until, 1e18)


def _write(
    on: sqlite3.Connection, chapters: Sequence[chronicle.Chapter], bounds: tuple[Instant, int, int] | None
) -> None:
    """`bounds`: also forget what is too old by then, and what is more than so many entries and turns."""
    marks = ", ".join("?" * (len(_FIELDS) - 1))
    entries = [_row(each) for chapter in chapters for each in chapter.entries]
    on.executemany(f"INSERT OR IGNORE INTO entries ({', '.join(_FIELDS[1:])}) VALUES ({marks})", entries)
    turns = [(each.uid, each.at, each.condition) for chapter in chapters for each in chapter.turns]
    on.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?, ?)", turns)
    levels = [_level_row(chapter.levels) for chapter in chapters if chapter.levels is not None]
    on.executemany("INSERT OR REPLACE INTO levels VALUES (?, ?, ?, ?, ?, ?, ?, ?)", levels)
    on.executemany(
        "INSERT INTO held VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
        " SET idle = idle + excluded.idle, kept = kept + excluded.kept",
        [_held_row(each) for chapter in chapters for each in chapter.held],
    )
    if bounds is not None:
        _forget(on, *bounds)


def _forget(on: sqlite3.Connection, now: Instant, most_entries: int, most_turns: int) -> None:
    """What is too old, and what is too much. Of turns the last one of each workload stays: it still holds.

    `now` counts as far as we last looked, which needs a clock that is right: a wrong one must not cost half a year."""
    ((seen,),) = on.execute("SELECT coalesce(max(at), 0) FROM levels").fetchall()
    now = min(now, seen)
    on.execute("DELETE FROM entries WHERE at < ?", (now - history.KEPT_FOR,))
    on.execute(
        "DELETE FROM entries WHERE number <= (SELECT number FROM entries ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (most_entries,),
    )
    on.execute("DELETE FROM levels WHERE at < ?", (now - history.KEPT_FOR,))
    later = "SELECT 1 FROM turns AS later WHERE later.uid = turns.uid AND later.at > turns.at AND later.at < ?"
    old = now - _TURNS_KEPT
    on.execute(f"DELETE FROM turns WHERE at < ? AND (condition IS NULL OR EXISTS ({later}))", (old, old))
    on.execute(
        "DELETE FROM turns WHERE at <= (SELECT at FROM turns ORDER BY at DESC LIMIT 1 OFFSET ?)", (most_turns,)
    )
    on.execute("DELETE FROM held WHERE bucket < ?", (_bucket(old),))
    on.execute(
        "DELETE FROM held WHERE bucket <= (SELECT bucket FROM held ORDER BY bucket DESC LIMIT 1 OFFSET ?)",
        (most_turns,),
    )


def _row(entry: AuditEntry) -> tuple[Any, ...]:
    ref = entry.ref
    named = (ref.group, ref.version, ref.kind, ref.namespace, ref.name, ref.uid) if ref else (None,) * 5 + ("",)
    said = (entry.sentence, entry.detail, entry.actor, entry.source, entry.reason, entry.policy, entry.code)
    return entry.at, entry.type, *named, entry.gpus, *said, entry.per_hour, entry.shares


def _held_row(held: HeldIdle) -> tuple[Any, ...]:
    return _bucket(held.at), held.namespace, held.kind, held.name, held.model, held.idle, held.kept


def _level_row(levels: Levels) -> tuple[Any, ...]:
    return (
        int(levels.at // LEVELS_EVERY), levels.at, levels.total, levels.busy, levels.idle, levels.kept, levels.unknown,
        levels.free,
    )


def _read(on: sqlite3.Connection, asked: AuditQuery) -> list[AuditEntry]:
    where, terms = ["at >= ?", "at < ?"], list[Any]([asked.since, _finite(asked.until)])
    for field, value in (("namespace", asked.namespace), ("kind", asked.kind), ("name", asked.name)):
        if value:
            where.append(f"{field} = ?")
            terms.append(value)
    if asked.types:
        where.append(f"type IN ({', '.join('?' * len(asked.types))})")
        terms += sorted(asked.types)
    if asked.before is not None:
        where.append("number < ?")
        terms.append(asked.before)
    query = f"SELECT {', '.join(_FIELDS)} FROM entries WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?"
    return [_read_entry(row) for row in on.execute(query, (*terms, asked.limit))]


def _read_entry(row: tuple[Any, ...]) -> AuditEntry:
    found = dict(zip(_FIELDS, row, strict=True))
    named = [found.pop(key) for key in ("grp", "version", "kind", "namespace", "name", "uid")]
    type_of, source = Happened(found.pop("type")), CameBy(found.pop("source"))
    return AuditEntry(**found, type=type_of, source=source, ref=cluster.Ref(*named) if named[-1] else None)


def _read_conditions(
    on: sqlite3.Connection, uids: Sequence[str], since: Instant
) -> dict[str, Past]:
    found: dict[str, Past] = {}
    before = "SELECT at, condition FROM turns WHERE uid = ? AND at < ? ORDER BY at DESC LIMIT 1"
    after = "SELECT at, condition FROM turns WHERE uid = ? AND at >= ? ORDER BY at"
    for uid in uids:
        rows = [*on.execute(before, (uid, since)), *on.execute(after, (uid, since))]
        if rows:
            found[uid] = [(at, Condition(letter) if letter else None) for at, letter in rows]
    return found
