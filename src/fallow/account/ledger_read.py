"""What the ledger answers, each function within one read transaction: one instant of it, whatever is written meanwhile.

In: a question. Out: sums of groups, intervals, savings, budgets.
Sums are those of whole days and whole hours where they are rolled up, and of intervals for the rest: the edges of a
window within an hour, and what is newer. Invariant: both ways come to the same to the last digit (see rollup), so a
window is the sum of its pieces, however it is cut. Where intervals were forgotten an hour is divided evenly.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from fallow.account import ledger_rows, rollup
from fallow.account.ledger_rows import LAST, IntervalNames, IntervalRow
from fallow.account.ledger_stored import read_listed, read_meta, read_window
from fallow.account.rollup import AmountColumns
from fallow.account.schema import questions
from fallow.clients.database.session import SqlSession
from fallow.model import calendar
from fallow.model.cost import (
    DAY,
    HOUR,
    NONE,
    OTHER,
    PAYER,
    UNALLOCATED,
    UNIT,
    Amounts,
    BookedAlert,
    BookedPrice,
    BookedSaving,
    BudgetReading,
    CapacityType,
    CostFilter,
    CostKey,
    CostQuery,
    CostSum,
    DemandHour,
    Dimension,
    DimensionName,
    Dims,
    Interval,
    KeySum,
    LedgerMeta,
    Nano,
    Second,
    Sharing,
    SpendState,
)

Range: TypeAlias = tuple[int, Second, Second]  # a piece by its number, and what of it
Name: TypeAlias = tuple[str, ...]  # of a group

_MOST_REMEMBERED: Final = 200_000
_MOST_GROUPINGS: Final = 8
_MOST_PIECES_AT_ONCE: Final = 500  # values of one statement are bounded
_HOURLY: Final = "cost_hourly"
_DAILY: Final = "cost_daily"
_OF_KEY: Final = {
    DimensionName.cluster: "cluster", DimensionName.namespace: "namespace", DimensionName.controller_kind: "owner_kind",
    DimensionName.controller: "owner_name", DimensionName.node: "node", DimensionName.instance: "instance_type",
    DimensionName.model: "gpu_model", DimensionName.capacity: "capacity_type", DimensionName.sharing: "sharing",
    DimensionName.workload_class: "workload_type",
}
_OF_DIMS: Final = {
    DimensionName.team: "team", DimensionName.project: "project", DimensionName.experiment: "experiment_id",
    DimensionName.cost_center: "cost_center", DimensionName.user: "user",
}
# What only a holder has: where nobody holds it, that is said instead.
_OF_HOLDER: Final = frozenset({
    DimensionName.namespace, DimensionName.pod, DimensionName.controller_kind, DimensionName.controller,
    DimensionName.workload_class, DimensionName.label, *_OF_DIMS,
})


class RolledBook:
    """Sums of buckets, as they were read: who asks for a week or a month again and again asks for the same days and
    hours until the next roll-up."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str, tuple[Range, ...]], AmountColumns] = {}

    def recall(
        self, generation: int, table: str, ranges: Sequence[Range], read: Callable[[], AmountColumns]
    ) -> AmountColumns:
        """`generation`: of what is rolled up. `read`: asked where nothing is remembered of it."""
        asked = (generation, table, tuple(ranges))
        found = self._found.get(asked)
        if found is None:
            found = read()
            kept = {key: one for key, one in list(self._found.items()) if key[0] == generation}
            if sum(len(one.key) for one in kept.values()) + len(found.key) > _MOST_REMEMBERED:
                kept = {}
            self._found = {**kept, asked: found} if len(found.key) <= _MOST_REMEMBERED else kept
        return found


class NameBook:
    """Keys by number, as they were read: they never change. `groups`: what they are called where somebody groups by
    these, by number and state."""

    def __init__(self) -> None:
        self.keys: dict[int, CostKey] = {}
        self.groups: dict[tuple[Dimension, ...], dict[tuple[int, int], Name]] = {}
        self.rolled = RolledBook()

    def named_by(self, by: tuple[Dimension, ...]) -> "dict[tuple[int, int], Name]":
        """Of the last few that were asked for."""
        if by not in self.groups and len(self.groups) >= _MOST_GROUPINGS:
            self.groups.clear()
        return self.groups.setdefault(by, {})

    def read_keys(self, on: SqlSession, numbers: Iterable[int]) -> None:
        missing = [one for one in set(numbers) if one not in self.keys]
        if len(self.keys) + len(missing) > _MOST_REMEMBERED:
            self.keys.clear()
            self.groups.clear()
            missing = list(set(numbers))
        for row in read_listed(on, questions.KEY_ROWS, missing):
            self.keys[row[0]] = _read_key(row[1:])


def _read_key(row: Sequence[Any]) -> CostKey:
    cluster, node, instance, region, capacity, model, sharing, namespace, kind, owner, workload = row[:11]
    team, project, experiment, center, user, said = row[11:]
    labels = tuple(sorted(msgspec.json.decode(said, type=dict[str, str]).items()))
    return CostKey(
        cluster=cluster, node=node, instance_type=instance, region=region, capacity_type=CapacityType(capacity),
        gpu_model=model, sharing=Sharing(sharing), namespace=namespace, owner_kind=kind, owner_name=owner,
        workload_type=workload, dims=Dims(team, project, experiment, center, user, labels),
    )


# ---- sums ------------------------------------------------------------------------------------------------------------


class Split(msgspec.Struct):
    """From which table what of a window comes. `parts_of`: a table, a bucket of it, its length, and what of it."""

    days: list[Range]
    hours: list[Range]
    windows: list[Range]
    parts_of: list[tuple[str, Second, Second, Range]]


def sums(on: SqlSession, names: NameBook, asked: CostQuery) -> list[CostSum]:
    """Sorted by piece and key."""
    by_pod = any(one.name is DimensionName.pod for one in (*asked.by, *(fit.on for fit in asked.where)))
    pieces = calendar.cut(asked.begin, asked.end, asked.step, asked.zone)
    found = _find(on, names.rolled, pieces, by_pod=by_pod)
    group, named = _name_groups(on, names, asked, found, by_pod=by_pod)
    sums_of = rollup.group_exactly(found.window, group, found.state, found.amounts)
    return _make_sums(sums_of, pieces, named)


def sum_rolled_costs(on: SqlSession, until: Second) -> Nano:
    """Of all that is summed up until then."""
    day = until - until % DAY
    found = (
        on.rows(questions.TOTAL_OF.replace("{table}", table), window)
        for table, window in ((_DAILY, (0, day)), (_HOURLY, (day, until)))
    )
    return sum(int(whole) * UNIT + int(rest) for ((whole, rest),) in found)


def sum_costs(on: SqlSession, names: NameBook, begin: Second, end: Second) -> Nano:
    """Of all of it, whosoever it was: so nobody is named."""
    return sum(_find(on, names.rolled, [(begin, end)], by_pod=False).amounts[:, 0].tolist())


def sums_of_keys(on: SqlSession, names: NameBook, asked: CostQuery) -> list[KeySum]:
    """The same before anything is grouped, in the order of time. Filters hold; what to group by does not matter."""
    pieces = calendar.cut(asked.begin, asked.end, asked.step, asked.zone)
    found = _find(on, names.rolled, pieces, by_pod=False)
    names.read_keys(on, set(found.key.tolist()))
    groups = dict[tuple[int, int], dict[SpendState, Amounts]]()
    for piece, key, code, amounts in rollup.group_exactly(found.window, found.key, found.state, found.amounts):
        state = rollup.STATES[code]
        if any(amounts) and _fits(asked.where, names.keys[key], state, ""):
            groups.setdefault((piece, key), {})[state] = _amounts(amounts)
    return [
        KeySum(key=names.keys[key], begin=pieces[piece][0], end=pieces[piece][1], parts=parts)
        for (piece, key), parts in groups.items()
    ]


def _find(
    on: SqlSession, rolled: RolledBook, pieces: Sequence[tuple[Second, Second]], *, by_pod: bool
) -> AmountColumns:
    stored = read_meta(on)
    meta, split = stored.meta, _split(pieces, stored.meta, by_pod=by_pod)
    sums_of = (
        rolled.recall(stored.generation, table, some, functools.partial(_sum_rolled, on, table, length, some))
        for table, length, ranges in ((_DAILY, DAY, split.days), (_HOURLY, HOUR, split.hours))
        for some in _bunch(ranges)
    )
    return rollup.join([
        *sums_of, *_sum_parts(on, split.parts_of), *_sum_intervals(on, split.windows, meta.seen_until, by_pod=by_pod),
    ])


def _bunch(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    return (ranges[at : at + _MOST_PIECES_AT_ONCE] for at in range(0, len(ranges), _MOST_PIECES_AT_ONCE))


def _split(pieces: Sequence[tuple[Second, Second]], meta: LedgerMeta, *, by_pod: bool) -> Split:
    split = Split([], [], [], [])
    rolled = 0 if by_pod else meta.rolled_until
    for number, (begin, end) in enumerate(pieces):
        if begin < rolled:
            _split_rolled(number, begin, min(end, rolled), meta, split)
        if end > rolled:
            split.windows.append((number, max(begin, rolled), end))
    split.windows.sort(key=lambda window: window[1])
    return split


def _split_rolled(number: int, begin: Second, end: Second, meta: LedgerMeta, split: Split) -> None:
    """Whole days, whole hours before and after them, and edges."""
    first_day, last_day = -(-begin // DAY) * DAY, end // DAY * DAY
    if first_day < last_day:
        split.days.append((number, first_day, last_day))
        around = [(begin, first_day), (last_day, end)]
    else:
        around = [(begin, end)]
    for part in around:
        _split_hours(number, *part, meta, split)


def _split_hours(number: int, begin: Second, end: Second, meta: LedgerMeta, split: Split) -> None:
    """Within a day and the night before it."""
    while begin < min(end, meta.hours_from):  # only its day is left
        day = begin // DAY * DAY
        until = min(end, day + DAY)
        split.parts_of.append((_DAILY, day, DAY, (number, begin, until)))
        begin = until
    first, last = -(-begin // HOUR) * HOUR, end // HOUR * HOUR
    if first < last:
        split.hours.append((number, first, last))
        edges = ((begin, first), (last, end))
    else:
        edges = ((begin, min(first, end)), (min(first, end), end))
    for edge in edges:
        if edge[0] >= edge[1]:
            continue
        if edge[0] < meta.intervals_from:
            split.parts_of.append((_HOURLY, edge[0] // HOUR * HOUR, HOUR, (number, *edge)))
        else:
            split.windows.append((number, *edge))


def _sum_rolled(on: SqlSession, table: str, length: Second, ranges: Sequence[Range]) -> AmountColumns:
    if all(end - begin == length for _, begin, end in ranges):  # a bucket each: there is nothing to sum
        return _read_buckets(on, table, ranges)
    marks = ", ".join(["(?, ?, ?)"] * len(ranges))
    question = questions.SUMS_OF.replace("{pieces}", marks).replace("{table}", table)
    found = on.rows(question, [value for one in ranges for value in one])
    rows = np.array(found, np.int64).reshape(-1, 7)
    key, state = np.divmod(rows[:, 1], questions.KINDS)
    return AmountColumns(rows[:, 0], key, state, np.zeros_like(key), rows[:, 2:])


def _read_buckets(on: SqlSession, table: str, ranges: Sequence[Range]) -> AmountColumns:
    begins = np.array([begin for _, begin, _ in ranges], np.int64)
    values = (int(begins[0]), ranges[-1][2])
    rows = rollup.table_of(on.rows(questions.BUCKETS.replace("{table}", table), values))
    at = np.searchsorted(begins, rows[:, 0], "right") - 1
    is_asked = begins[at] == rows[:, 0]  # pieces of a calendar may lie apart
    rows, numbers = rows[is_asked], np.array([number for number, _, _ in ranges], np.int64)[at[is_asked]]
    return AmountColumns(numbers, rows[:, 1], rows[:, 2], np.zeros_like(numbers), rows[:, 3:])


def _sum_parts(on: SqlSession, parts: Sequence[tuple[str, Second, Second, Range]]) -> Iterator[AmountColumns]:
    """Evenly: what a bucket had until then is rounded, so that its parts are all of it."""
    for table, bucket, length, (piece, begin, end) in parts:
        rows = on.rows(questions.BUCKETS.replace("{table}", table), (bucket, bucket + 1))
        scaled = rollup.table_of([
            (piece, key, state, *(
                amount * (end - bucket) // length - amount * (begin - bucket) // length for amount in amounts
            ))
            for _, key, state, *amounts in rows
        ])
        yield AmountColumns(scaled[:, 0], scaled[:, 1], scaled[:, 2], np.zeros_like(scaled[:, 0]), scaled[:, 3:])


def _sum_intervals(
    on: SqlSession, windows: Sequence[Range], seen_until: Second, *, by_pod: bool
) -> Iterator[AmountColumns]:
    for group in _side_by_side(windows):
        begin, end = group[0][1], -(-group[-1][2] // HOUR) * HOUR  # how an hour ends decides what its parts are
        rows = read_window(on, begin, end, seen_until)
        found = rollup.sum_up(
            ledger_rows.make_columns(rows, by_pod=by_pod), [(first, last) for _, first, last in group]
        )
        yield found._replace(window=np.array([number for number, _, _ in group], np.int64)[found.window])


def _side_by_side(windows: Sequence[Range]) -> list[list[Range]]:
    groups = list[list[Range]]()
    for window in windows:
        if groups and groups[-1][-1][2] == window[1]:
            groups[-1].append(window)
        else:
            groups.append([window])
    return groups


def _name_groups(
    on: SqlSession, names: NameBook, asked: CostQuery, found: AmountColumns, *, by_pod: bool
) -> tuple[rollup.Ints, list[tuple[str, ...]]]:
    """Of each row the number of its group (-1: it is not asked for), and what the groups are called."""
    rows = (
        np.stack((found.key, found.state, found.holder), axis=1) if by_pod
        else found.key * questions.KINDS + found.state
    )
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    each = kinds.tolist() if by_pod else [(*divmod(code, questions.KINDS), 0) for code in kinds.tolist()]
    names.read_keys(on, [key for key, _, _ in each])
    pods = _read_pods(on, {pod for _, _, pod in each}) if by_pod else {}
    numbers, number_of_kind = dict[Name, int](), list[int]()
    known = {} if by_pod or asked.where else names.named_by(asked.by)
    for key, state, pod in each:
        name = known.get((key, state))
        if name is None:
            name = _name(asked, names.keys[key], rollup.STATES[state], pods[pod][1] if by_pod else "")
            if name is not None and not by_pod:
                known[key, state] = name
        number_of_kind.append(-1 if name is None else numbers.setdefault(name, len(numbers)))
    return np.array(number_of_kind, np.int64)[kind.ravel()], list(numbers)


def _make_sums(
    sums_of: Iterable[tuple[int, int, int, list[int]]], pieces: Sequence[tuple[Second, Second]],
    named: Sequence[tuple[str, ...]],
) -> list[CostSum]:
    groups = dict[tuple[int, tuple[str, ...]], dict[SpendState, Amounts]]()
    for piece, group, state, amounts in sums_of:
        if group >= 0 and any(amounts):
            groups.setdefault((piece, named[group]), {})[rollup.STATES[state]] = _amounts(amounts)
    return [
        CostSum(key=name, begin=pieces[piece][0], end=pieces[piece][1], parts=parts)
        for (piece, name), parts in sorted(groups.items(), key=lambda one: one[0])
    ]


def _amounts(values: Sequence[int]) -> Amounts:
    cost, use_cost, time, unpriced, energy = values
    return Amounts(cost=cost, use_cost=use_cost, gpu_micro_seconds=time, unpriced=unpriced, energy_mj=energy)


def _name(asked: CostQuery, key: CostKey, state: SpendState, pod: str) -> tuple[str, ...] | None:
    """Its group; None where it is not asked for."""
    if asked.where and not _fits(asked.where, key, state, pod):
        return None
    return tuple([value_of(one, key, state, pod) for one in asked.by])


def _fits(where: Iterable[CostFilter], key: CostKey, state: SpendState, pod: str) -> bool:
    return all(value_of(fit.on, key, state, pod) in fit.values for fit in where)


def value_of(dimension: Dimension, key: CostKey, state: SpendState, pod: str) -> str:
    """As reports show it: what nobody holds is `__unallocated__`, and what nobody said `__none__`."""
    name = dimension.name
    if dimension.payer and (said := dict(key.dims.labels).get(f"{PAYER}{dimension}")):
        return said
    if dimension.vouched:
        return NONE
    if name is DimensionName.pod:
        value = pod
    elif name is DimensionName.label:
        labels = dict(key.dims.labels)
        value = labels.get(dimension.label, labels.get(OTHER, ""))
    elif name in _OF_DIMS:
        value = getattr(key.dims, _OF_DIMS[name])
    else:
        value = str(getattr(key, _OF_KEY[name]))
    if value:
        return value
    return UNALLOCATED if state is SpendState.unallocated and name in _OF_HOLDER else NONE


# ---- rows ------------------------------------------------------------------------------------------------------------


def read_intervals(
    on: SqlSession, names: NameBook, begin: Second, end: Second, where: Sequence[CostFilter]
) -> list[Interval]:
    """All that touch the window, whole."""
    if begin >= end:
        return []
    seen = read_meta(on).meta.seen_until
    if not where:
        return _make_intervals(on, names, read_window(on, begin, end, seen))
    days = (begin // DAY, (end - 1) // DAY, begin // DAY * DAY, end)
    keys = _find_keys(on, names, days, where)
    question, narrower = questions.KEYED_OF_WINDOW.replace("{among}", on.among), (*days, on.listed(sorted(keys)))
    rows = read_window(on, begin, end, seen, question, narrower) if keys else []
    found = _make_intervals(on, names, [row for row in rows if row.key in keys])
    return [one for one in found if _fits(where, one.slice.key, one.slice.state, one.slice.pod_name)]


def _find_keys(
    on: SqlSession, names: NameBook, days: tuple[int, int, Second, Second], where: Sequence[CostFilter]
) -> set[int]:
    """Those that fit in some state, whatever the pod: of ten thousand intervals a few are asked for, mostly."""
    there = [key for (key,) in on.rows(questions.KEYS_OF_WINDOW, days)]
    names.read_keys(on, there)
    of_key = [fit for fit in where if fit.on.name is not DimensionName.pod]
    states = SpendState.used, SpendState.unallocated  # all that matters is whether somebody holds it
    return {key for key in there if any(_fits(of_key, names.keys[key], state, "") for state in states)}


def read_acked(on: SqlSession, names: NameBook, begin: Second, end: Second) -> list[Interval]:
    """Those that an acknowledgement kept."""
    seen = read_meta(on).meta.seen_until
    rows = read_window(on, begin, end, seen, questions.ACKED_OF_WINDOW) if begin < end else []
    return _make_intervals(on, names, [row for row in rows if row.ack])


def read_used_prices(on: SqlSession, begin: Second, end: Second) -> frozenset[str]:
    """By id, of the days that the window touches."""
    return frozenset(price for (price,) in on.rows(questions.PRICES_OF_WINDOW, (begin // DAY, (end - 1) // DAY)))


def read_open(on: SqlSession, names: NameBook) -> list[Interval]:
    """Of the last day that was written, and of the one before it, which it may have been too early to close."""
    seen = read_meta(on).meta.seen_until
    ((last,),) = on.rows(questions.LAST_DAY)
    day = min(last or 0, seen // DAY if seen else LAST) - 1
    rows = ledger_rows.extend(on.rows(questions.SINCE_DAY, (day, day * DAY)), seen)
    return _make_intervals(on, names, [row for row in rows if row.is_open])


def _make_intervals(on: SqlSession, names: NameBook, rows: Sequence[IntervalRow]) -> list[Interval]:
    """By begin, then by part."""
    names.read_keys(on, {row.key for row in rows})
    parts = {number: (gpu, slot) for number, gpu, slot in read_listed(
        on, questions.PART_ROWS, list({row.part for row in rows})
    )}
    prices = dict(read_listed(on, questions.PRICE_IDS, list({row.price for row in rows if row.price is not None})))
    known = IntervalNames(names.keys, parts, _read_pods(on, {row.pod for row in rows}), prices)
    found = [ledger_rows.make_interval(row, known) for row in rows]
    return sorted(found, key=lambda one: (one.t0, one.slice.gpu, one.slice.slot))


def _read_pods(on: SqlSession, numbers: Iterable[int]) -> dict[int, tuple[str, str]]:
    return {number: (uid, name) for number, uid, name in read_listed(on, questions.POD_ROWS, list(numbers))}


def read_began(on: SqlSession) -> Second | None:
    """Of a day whose intervals are forgotten only the day is known."""
    ((first, day),) = on.rows(questions.BEGAN)
    if first is None or (day is not None and day + DAY <= first):
        return None if day is None else int(day)
    return int(first)


def read_prices(on: SqlSession) -> list[BookedPrice]:
    rows = on.rows(questions.PRICE_ROWS)
    return [msgspec.convert(dict(zip(questions.PRICES[1:], row, strict=True)), BookedPrice) for row in rows]


def read_savings(on: SqlSession, begin: Second, end: Second) -> list[BookedSaving]:
    fields = ("id", "at", "namespace", "kind", "saved", "baseline", "actual", "details")
    return [
        msgspec.convert(
            {**dict(zip(fields, row[:8], strict=True)), "realised": bool(row[8]), "is_dry_run": bool(row[9])},
            BookedSaving,
        )
        for row in on.rows(questions.READ_SAVINGS, (begin, end))
    ]


def read_budgets(on: SqlSession, begin: Second, end: Second) -> list[BudgetReading]:
    fields = ("budget", "at", "namespace", "team", "limit", "spend", "used_micro", "status")
    rows = on.rows(questions.READ_BUDGETS, (begin, end))
    return [BudgetReading(**dict(zip(fields, row, strict=True))) for row in rows]


def read_demand(on: SqlSession, since: Second) -> list[DemandHour]:
    rows = on.rows(questions.READ_DEMAND, (since,))
    return [DemandHour(policy=policy, hour=hour, gpus=milli / 1000) for policy, hour, milli in rows]


def read_alerts(on: SqlSession, budget_uid: str) -> list[BookedAlert]:
    fields = BookedAlert.__struct_fields__
    rows = on.rows(questions.READ_ALERTS, (budget_uid, budget_uid))
    return [BookedAlert(**dict(zip(fields, row, strict=True))) for row in rows]
