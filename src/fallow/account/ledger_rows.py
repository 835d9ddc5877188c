"""Intervals as rows of a table, as nouns and as columns, and what may be written of them.

Invariant: what is read back is what was written. What is open goes on until we looked last, but neither beyond its day
nor into the one that follows it on the same part: so a look that saw nothing new writes one number and no row.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fallow.account import rollup
from fallow.model import units
from fallow.model.cost import (
    DAY,
    HOUR,
    MOST_RATE,
    WHOLE,
    CostKey,
    Interval,
    IntervalRef,
    Second,
    Slice,
    SpendState,
)

LAST: Final[Second] = 2**40
_CODES: Final = {state: code for code, state in enumerate(rollup.STATES)}


class IntervalRow(NamedTuple):
    """In the order of the table's columns."""

    day: int
    part: int
    t0: int
    t1: int
    is_open: int
    key: int
    pod: int
    share: int
    state: int
    price: int | None
    rate: int | None
    use_mean: int | None
    use: bytes | None
    energy: bytes | None
    ack: str | None
    gap_filled: int


# By itself a row takes four times as long to make, and there are thousands.
_as_row: Callable[[Iterable[Any]], IntervalRow] = functools.partial(tuple.__new__, IntervalRow)


class NumberColumns(NamedTuple):
    """What rows name by number, a value for each row; to be read once."""

    parts: Iterable[int]
    keys: Iterable[int]
    pods: Iterable[int]
    prices: Iterable[int | None]


class IntervalNames(NamedTuple):
    """What the numbers of rows stand for."""

    keys: Mapping[int, CostKey]
    parts: Mapping[int, tuple[str, str]]
    pods: Mapping[int, tuple[str, str]]
    prices: Mapping[int, str]


def find_fault(interval: Interval, known_from: Second = 0) -> str:
    """What is wrong with it by itself; "" = nothing. `known_from`: what was before is forgotten."""
    what, t0, t1 = interval.slice, interval.t0, interval.t1
    if t1 < t0:
        return "it ends before it begins"
    if not 0 <= t0 < LAST or t1 > t0 - t0 % DAY + DAY:
        return "it is longer than its UTC day"
    if not 0 < what.share <= WHOLE:
        return f"its share is {what.share} of {WHOLE}"
    if what.rate_nano is not None and not 0 <= what.rate_nano <= MOST_RATE:
        return f"its rate is {what.rate_nano}"
    measured = max(len(interval.use), len(interval.energy_mj))
    if measured > 1 and measured > (hours := max(t1 - 1, t0) // HOUR - t0 // HOUR + 1):
        return f"it touches {hours} hours, and has measurements of more"
    return "" if t0 >= known_from else "the ledger has forgotten the intervals of that time"


def find_faults(intervals: Sequence[Interval], known_from: Second) -> dict[int, str]:
    """By their place, of those that have any. Nearly always none has, which columns tell sooner than each by itself."""
    whats = [one.slice for one in intervals]
    t0, t1 = _column([one.t0 for one in intervals]), _column([one.t1 for one in intervals])
    share, rate = _column([what.share for what in whats]), _column([what.rate_nano or 0 for what in whats])
    measured = _column([max(len(one.use), len(one.energy_mj)) for one in intervals])
    good = (t1 >= t0) & (t0 >= max(known_from, 0)) & (t0 < LAST) & (t1 <= t0 - t0 % DAY + DAY)
    good &= (share > 0) & (share <= WHOLE) & (rate >= 0) & (rate <= MOST_RATE)
    good &= (measured <= 1) | (measured <= np.maximum(t1 - 1, t0) // HOUR - t0 // HOUR + 1)
    odd = np.flatnonzero(~good.astype(np.bool_)).tolist()
    return {at: because for at in odd if (because := find_fault(intervals[at], known_from))}


def _column(values: list[int]) -> npt.NDArray[Any]:
    """Of whole numbers of any size: what does not fit is wrong, and to be told so."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(values, object)


def refuse(ref: IntervalRef, because: str) -> str:
    part = f"{ref.gpu}/{ref.slot}" if ref.slot else ref.gpu
    whose = f" of pod {ref.pod_uid}" if ref.pod_uid else ""
    begin = units.rfc3339(ref.t0) if 0 <= ref.t0 < LAST else str(ref.t0)
    return f"interval {ref.id} on {part}{whose} from {begin} is refused: {because}"


class PackedHours(NamedTuple):
    """What was measured in the hours of intervals. `odd`: which of them, by their place, have what cannot be."""

    uses: list[bytes | None]
    energies: list[bytes | None]
    odd: dict[int, str]


def pack_hours(intervals: Sequence[Interval]) -> PackedHours:
    uses, odd_uses = rollup.pack_use([one.use for one in intervals])
    energies, odd_energies = rollup.pack_energy([one.energy_mj for one in intervals])
    odd = dict.fromkeys(odd_energies, "an energy of it is no energy")
    return PackedHours(uses, energies, {**odd, **dict.fromkeys(odd_uses, "a use of it is not between 0 and 1")})


def make_rows(
    intervals: Sequence[Interval], packed: PackedHours, numbers: NumberColumns
) -> list[IntervalRow]:
    """Each with the numbers of its part, key, pod and price."""
    whats, t0, t1 = [one.slice for one in intervals], [one.t0 for one in intervals], [one.t1 for one in intervals]
    columns = (
        [at // DAY for at in t0], numbers.parts, t0, t1, [int(one.is_open) for one in intervals], numbers.keys,
        numbers.pods, [what.share for what in whats], [_CODES[what.state] for what in whats], numbers.prices,
        [what.rate_nano for what in whats], rollup.mean_uses(t0, t1, packed.uses), packed.uses, packed.energies,
        [what.ack_id or None for what in whats], [int(one.gap_filled) for one in intervals],
    )
    return list(map(_as_row, zip(*columns, strict=True)))


def merge(old: IntervalRow, new: IntervalRow) -> IntervalRow:
    """The same interval, written again: it never gets shorter, and what was measured stays measured."""
    if new.t1 > old.t1 and old.use in (None, new.use) and old.energy in (None, new.energy):
        return new
    later, earlier = (old, new) if new.t1 < old.t1 else (new, old)
    is_open = new.is_open if new.t1 > old.t1 else min(old.is_open, new.is_open)
    use, energy = rollup.fill_use(later.use, earlier.use), rollup.fill_energy(later.energy, earlier.energy)
    if use != later.use:
        later = later._replace(use=use, use_mean=rollup.mean_uses([later.t0], [later.t1], [use])[0])
    if (energy, is_open) != (later.energy, later.is_open):
        later = later._replace(energy=energy, is_open=is_open)
    return later


def changed_from(old: IntervalRow, new: IntervalRow, seen_until: Second) -> Second:
    """From when on the two amount to something else; LAST = they do not."""
    if old == new:
        return LAST
    if (old.key, old.pod, old.share, old.state, old.rate) != (new.key, new.pod, new.share, new.state, new.rate):
        return new.t0
    found = LAST
    if (old.t1, old.is_open) != (new.t1, new.is_open):
        found = min(max(row.t1, seen_until) if row.is_open else row.t1 for row in (old, new))
    if (old.use, old.energy) != (new.use, new.energy):
        uses = rollup.unpack_use(old.use), rollup.unpack_use(new.use)
        energies = rollup.unpack_energy(old.energy), rollup.unpack_energy(new.energy)
        hour = min(_first_difference(*uses), _first_difference(*energies))
        found = min(found, max(new.t0, (new.t0 // HOUR + hour) * HOUR))
    return found


def _first_difference(one: Sequence[int | None], other: Sequence[int | None]) -> int:
    pairs = enumerate(itertools.zip_longest(one, other))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), LAST)


def extend(rows: Iterable[Sequence[Any]], seen_until: Second) -> list[IntervalRow]:
    """In the order of day, part and t0: what is open with the end it has by now."""
    found = [IntervalRow._make(row) for row in rows]
    for at, row in enumerate(found):
        if row.is_open and row.t1 < seen_until:
            end = min(seen_until, (row.day + 1) * DAY)
            after = found[at + 1] if at + 1 < len(found) else None
            if after is not None and (after.day, after.part) == (row.day, row.part):
                end = min(end, after.t0)
            found[at] = row._replace(t1=max(end, row.t1))
    return found


def make_columns(rows: Sequence[IntervalRow], *, by_pod: bool) -> rollup.SpanColumns:
    fields = IntervalRow._fields
    of = dict(zip(fields, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(fields, ())
    t0, t1, share, state, key, pod = (
        np.array(of[name], np.int64) for name in ("t0", "t1", "share", "state", "key", "pod")
    )
    rate = np.array([rollup.NOT_KNOWN if one is None else one for one in of["rate"]], np.int64)
    return rollup.SpanColumns(
        t0=t0, t1=t1, share=share, state=state, rate=rate, key=key, holder=pod if by_pod else np.zeros_like(pod),
        use=of["use"], energy=of["energy"],
    )


def make_interval(row: IntervalRow, names: IntervalNames) -> Interval:
    gpu, slot = names.parts[row.part]
    pod_uid, pod_name = names.pods[row.pod]
    what = Slice(
        gpu=gpu, slot=slot, share=row.share, key=names.keys[row.key], state=SpendState(rollup.STATES[row.state]),
        rate_nano=row.rate, price_id="" if row.price is None else names.prices[row.price], pod_uid=pod_uid,
        pod_name=pod_name, ack_id=row.ack or "",
    )
    return Interval(
        slice=what, t0=row.t0, t1=row.t1, is_open=bool(row.is_open), gap_filled=bool(row.gap_filled),
        use=rollup.unpack_use(row.use), energy_mj=rollup.unpack_energy(row.energy),
    )
