"""What is written into the ledger, each function within one transaction of the one writer.

In: a batch of one look, and the epoch of who looked. Out: which intervals were refused, each in a sentence; the rest is
written. Invariant: on one part of one GPU no two intervals overlap. What was summed up and is changed again is summed
up anew: `rolled_until` goes back in the same transaction, so that no report shows the old sums.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow.account import ledger_names, ledger_rows, rollup
from fallow.account.ledger_names import NumberBook, Place
from fallow.account.ledger_rows import LAST, IntervalRow, PackedHours
from fallow.account.ledger_stored import StoredMeta, read_listed, read_meta, read_window
from fallow.account.schema import SqlDialect, questions, timescale
from fallow.clients.database.session import SqlRow, SqlSession
from fallow.model.cost import (
    DAY,
    DEMAND_KEPT,
    HOUR,
    BookedAlert,
    BookedSaving,
    BudgetReading,
    CostBatch,
    CostRetention,
    DemandHour,
    Interval,
    IntervalRef,
    LedgerMeta,
    Second,
)

_KEY: Final = 3  # columns of an interval's key: day, part and begin
_OVERLAPS: Final = "it overlaps another interval on the same part"


class StaleWriter(Exception):
    """Another writer has the ledger: a later one, whose epoch is higher."""


def claim(on: SqlSession, book: NumberBook, epoch: int, question: str = questions.CLAIM) -> StoredMeta:
    """First in every transaction that writes. Raises StaleWriter and LedgerWentBack."""
    before = read_meta(on)
    book.heed(before)
    if on.run(question, (epoch, book.sign(epoch), epoch)) != 1:
        raise StaleWriter(f"the ledger is kept by a writer of epoch {read_meta(on).meta.epoch}, and ours is {epoch}")
    return before


def write(on: SqlSession, book: NumberBook, batch: CostBatch, epoch: int, spooled: str = "") -> list[str]:
    """`spooled`: the record of the spool that this is, and that is done with it."""
    stored = claim(on, book, epoch)
    if spooled and spooled == stored.spooled:
        return []
    meta, refused = stored.meta, list[str]()
    ledger_names.number_prices(on, book, (), batch.prices)
    changed = _write_intervals(on, book, batch, meta, refused)
    _write_savings(on, batch.savings, batch.removed_savings)
    seen = max(meta.seen_until, batch.at)
    if meta.seen_until < min(seen, meta.rolled_until):  # what is open goes on, in hours that are summed up
        changed = min([changed, *(max(t1, meta.seen_until) for (t1,) in on.rows(questions.OPEN_ENDS))])
    rolled = min(meta.rolled_until, changed - changed % HOUR)
    if (seen, rolled) != (meta.seen_until, meta.rolled_until):
        on.run(questions.SET_WRITTEN, (seen, rolled, int(rolled != meta.rolled_until)))
    if spooled:
        on.run(questions.SET_SPOOLED, (spooled,))
    return refused


def _write_intervals(
    on: SqlSession, book: NumberBook, batch: CostBatch, meta: LedgerMeta, refused: list[str]
) -> Second:
    """From when on something else is known; LAST = nothing."""
    good, packed = _check(batch.intervals, meta, refused)
    rows = ledger_rows.make_rows(good, packed, ledger_names.number(on, book, good, batch.shared))
    ledger_names.number_parts(on, book, [(one.gpu, one.slot) for one in batch.removed])
    removed = [(ref, (ref.t0 // DAY, book.parts[ref.gpu, ref.slot])) for ref in batch.removed]
    there = _read_places(on, book, {*(row[:2] for row in rows), *(place for _, place in removed)})
    was = dict[tuple[Place, Second], IntervalRow | None]()  # of each that is touched, what stood there
    pods = _find_pods(on, book, batch.removed) if removed else {}
    for ref, place in removed:
        if (old := there[place].get(ref.t0)) and old.pod == pods.get(ref.pod_uid):
            was[place, ref.t0] = there[place].pop(ref.t0)
    for one, row in zip(good, rows, strict=True):
        place, t0 = row[:2], row.t0
        beside = there[place]
        old = beside.get(t0)
        if _put(beside, old, row):
            was.setdefault((place, t0), old)
        else:
            refused.append(ledger_rows.refuse(one.ref, _OVERLAPS))
    book.places.update(there)
    return _store(on, was, there, meta)


def _check(
    intervals: Sequence[Interval], meta: LedgerMeta, refused: list[str]
) -> tuple[Sequence[Interval], PackedHours]:
    """Those that are good by themselves, with their hours."""
    packed = ledger_rows.pack_hours(intervals)
    bad = {**packed.odd, **ledger_rows.find_faults(intervals, meta.intervals_from)}
    if not bad:
        return intervals, packed
    refused += [ledger_rows.refuse(intervals[at].ref, bad[at]) for at in sorted(bad)]
    good = [one for at, one in enumerate(intervals) if at not in bad]
    return good, ledger_rows.pack_hours(good)


def _find_pods(on: SqlSession, book: NumberBook, removed: Iterable[IntervalRef]) -> Mapping[str, int]:
    """One that the ledger has never heard of has none."""
    asked = {ref.pod_uid for ref in removed}
    known = {uid: book.pods[uid] for uid in asked if uid in book.pods}
    if len(known) < len(asked):
        known |= dict(read_listed(on, questions.FIND_PODS, list(asked - known.keys())))
    return known


def _read_places(on: SqlSession, book: NumberBook, places: Iterable[Place]) -> dict[Place, dict[Second, IntervalRow]]:
    """What is there already, by its begin. What we remember is changed as it is written, and forgotten if it fails."""
    found, by_day = dict[Place, dict[Second, IntervalRow]](), defaultdict[int, list[int]](list)
    for place in places:
        if (known := book.places.get(place)) is None:
            known = {}
            by_day[place[0]].append(place[1])
        found[place] = known
    question = questions.OF_PARTS.replace("{among}", on.among)
    for day, parts in by_day.items():
        for row in on.rows(question, (day, day * DAY, day * DAY + DAY, on.listed(parts))):
            found[day, row[1]][row[2]] = IntervalRow._make(row)
    return found


def _put(there: dict[Second, IntervalRow], old: IntervalRow | None, row: IntervalRow) -> bool:
    """False, and nothing changed, where it would overlap another. `old`: what begins with it; one without any length
    yields to whoever comes."""
    if old is not None:
        if old.pod == row.pod:
            row = ledger_rows.merge(old, row)
        elif old.t0 < old.t1:
            return False
    begin, end = row.t0, row.t1
    if len(there) > (old is not None):
        for other in there.values():
            if other.t0 < end and begin < other.t1 and other.t0 != begin:
                return False
    there[begin] = row
    return True


def _store(
    on: SqlSession, was: Mapping[tuple[Place, Second], IntervalRow | None],
    there: Mapping[Place, dict[Second, IntervalRow]], meta: LedgerMeta,
) -> Second:
    changed, rows, standing, gone = LAST, list[IntervalRow](), list[SqlRow](), list[SqlRow]()
    for (place, t0), old in was.items():
        row = there[place].get(t0)
        if row is None:
            gone.append((*place, t0))
            changed = min(changed, t0)
        elif row != old:
            rows.append(row)
            if old is None:
                changed = min(changed, t0)
            else:
                standing.append(row[:_KEY])
                if t0 < meta.rolled_until:  # else it cannot matter to what is summed up
                    changed = min(changed, ledger_rows.changed_from(old, row, meta.seen_until))
    if rows or gone:
        on.replace("cost_intervals", questions.INTERVALS, rows, key=_KEY, there=standing, gone=gone)
    return changed


# ---- roll-ups --------------------------------------------------------------------------------------------------------


def roll_up(on: SqlSession, book: NumberBook, until: Second, epoch: int) -> Second:
    """The next hours, until the end of their day at most. Out: up to where everything is summed up now."""
    meta = claim(on, book, epoch).meta
    ((first,),) = on.rows(questions.FIRST_DAY)
    begin = max(meta.rolled_until, min(until, first * DAY) if first is not None else until)
    day = begin - begin % DAY
    end = min(until, day + DAY)
    if end <= meta.rolled_until:
        return meta.rolled_until
    windows = [(hour, hour + HOUR) for hour in range(begin, end, HOUR)]
    rows = read_window(on, begin, end, meta.seen_until)
    found = rollup.sum_up(ledger_rows.make_columns(rows, by_pod=False), windows)
    on.run(questions.DELETE_HOURS, (begin, end))
    buckets = begin + found.window * HOUR
    on.add("cost_hourly", questions.ROLLED, zip(
        buckets.tolist(), found.key.tolist(), found.state.tolist(), *found.amounts.T.tolist(), strict=True
    ))
    if end == day + DAY:
        on.run(questions.DELETE_DAY, (day,))
        on.run(questions.ADD_DAY, (day, day, end))
    on.run(questions.SET_ROLLED, (end,))
    return end


def keep_total(on: SqlSession, book: NumberBook, total: int, epoch: int) -> None:
    if total > claim(on, book, epoch).total:
        on.run(questions.SET_TOTAL, (str(total),))


def forget(
    on: SqlSession, book: NumberBook, retention: CostRetention, now: Second, epoch: int, dialect: SqlDialect
) -> None:
    """Only what is summed up: intervals of days that are, hours of days that are. `now` counts as far as that, which
    follows looks alone that knew the time: a clock that is wrong for one hour must not cost a year of books."""
    meta = claim(on, book, epoch).meta
    now = min(now, meta.rolled_until)
    rolled_day = meta.rolled_until - meta.rolled_until % DAY
    intervals, hours = (
        max(before, min(rolled_day, (now - kept) // DAY * DAY))
        for before, kept in ((meta.intervals_from, retention.intervals), (meta.hours_from, retention.hours))
    )
    if dialect.has_chunks:
        on.rows(timescale.DROP_CHUNKS, (intervals,))
    on.run(questions.FORGET_INTERVALS, (intervals // DAY,))
    on.run(questions.FORGET_HOURS, (hours,))
    on.run(questions.FORGET_BUDGETS, (now - retention.hours,))
    on.run(questions.FORGET_PODS)
    on.run(questions.SET_FORGOTTEN, (intervals, hours))
    book.forget()


# ---- savings and budgets ---------------------------------------------------------------------------------------------


def _write_savings(on: SqlSession, savings: Sequence[BookedSaving], removed: Sequence[str]) -> None:
    once = {one.id: one for one in savings}
    gone = [*once, *removed]
    if gone:
        on.run(questions.DELETE_SAVINGS.replace("{among}", on.among), (on.listed(gone),))
    if once:
        on.add("ledger_savings", questions.SAVINGS, map(_saving_row, once.values()))


def _saving_row(one: BookedSaving) -> SqlRow:
    money = (one.saved, one.baseline, one.actual)
    return one.id, one.at, one.namespace, one.kind.value, *money, one.details, int(one.realised), int(one.is_dry_run)


def write_budgets(
    on: SqlSession, book: NumberBook, readings: Sequence[BudgetReading], alerts: Sequence[BookedAlert], epoch: int
) -> None:
    claim(on, book, epoch)
    read = {(one.budget, one.at): one for one in readings}
    for key in read:
        on.run(questions.DELETE_BUDGET, key)
    if read:
        on.add("ledger_budgets", questions.BUDGETS, [_reading_row(one) for one in read.values()])
    states = {(one.budget_uid, one.period_start, one.alert, one.channel): one for one in alerts}
    for named in states:
        on.run(questions.DELETE_ALERT, named)
    if states:
        on.add("budget_alerts", questions.ALERTS, [msgspec.structs.astuple(one) for one in states.values()])


def write_demand(on: SqlSession, book: NumberBook, hours: Sequence[DemandHour], epoch: int) -> None:
    """And what is older than anybody learns from goes."""
    claim(on, book, epoch)
    once = {(one.policy, one.hour): round(one.gpus * 1000) for one in hours}
    for key in once:
        on.run(questions.DELETE_DEMAND, key)
    if once:
        on.add("scaling_demand", questions.DEMAND, [(*key, milli) for key, milli in once.items()])
        on.run(questions.FORGET_DEMAND, (max(hour for _, hour in once) - DEMAND_KEPT,))


def _reading_row(one: BudgetReading) -> tuple[Any, ...]:
    return one.budget, one.at, one.namespace, one.team, one.limit, one.spend, one.used_micro, one.status

