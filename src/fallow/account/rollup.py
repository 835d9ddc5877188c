"""What intervals amount to between two instants: the one arithmetic of roll-ups and reports.

In: intervals as columns, and windows that do not overlap. Out: sums by window, key, state and holder.
Every amount is a difference of a function of time that is rounded once, half to even, to whole units:

    cost(t)    rate x (t - t0) / 3600, from the interval's begin
    use(t)     what cost(t) grew since the hour (or the interval) began x use of that hour, after all full hours before
    energy(t)  the energy of the hour x the part of it that is over, after all full hours before

Invariant: [a, b) and [b, c) come to [a, c) to the last digit, also in use and energy; an hour comes to the same whether
it is asked for whole or in pieces. An hour of a used interval without a measured use is `use_unknown`.
"""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fallow.model.cost import HOUR, WHOLE, SpendState

Ints: TypeAlias = npt.NDArray[np.int64]
Window: TypeAlias = tuple[int, int]
Hours: TypeAlias = Sequence[int | None]

STATES: Final = tuple(SpendState)
USED: Final = STATES.index(SpendState.used)
UNKNOWN: Final = STATES.index(SpendState.use_unknown)
_NO_INTS: Final = np.zeros(0, np.int64)
NOT_KNOWN: Final = -1  # in columns only: a rate, a use or an energy that is None elsewhere
_USE_BYTES: Final = 3  # a use is at most 1,000,000
_ENERGY_BYTES: Final = 5
MOST_ENERGY: Final = 256**_ENERGY_BYTES - 2  # mJ of an hour: 300 kW


class SpanColumns(NamedTuple):
    """Intervals, a row for each. `use`, `energy`: of their hours, packed; None = none was measured."""

    t0: Ints
    t1: Ints
    share: Ints
    state: Ints
    rate: Ints
    key: Ints
    holder: Ints  # all 0 where nobody asks for it
    use: Sequence[bytes | None]
    energy: Sequence[bytes | None]


_NO_SPANS: Final = SpanColumns(*(_NO_INTS,) * 7, (), ())
_HALF: Final = 2**31  # what amounts are divided by, so that sums of each part fit


class AmountColumns(NamedTuple):
    """A row for each window, key, state and holder that has something."""

    window: Ints
    key: Ints
    state: Ints
    holder: Ints
    amounts: Ints  # a row each: cost, use cost, GPU time, unpriced GPU time, energy


def pack_use(rows: Sequence[Hours]) -> tuple[list[bytes | None], list[int]]:
    """Each row without the unmeasured hours at its end, None where there are no others; and which rows have values that
    no use can have: what is packed of those is worth nothing."""
    return _pack(rows, _USE_BYTES, WHOLE)


def pack_energy(rows: Sequence[Hours]) -> tuple[list[bytes | None], list[int]]:
    return _pack(rows, _ENERGY_BYTES, MOST_ENERGY)


def unpack_use(packed: bytes | None) -> tuple[int | None, ...]:
    return _unpack(packed, _USE_BYTES)


def unpack_energy(packed: bytes | None) -> tuple[int | None, ...]:
    return _unpack(packed, _ENERGY_BYTES)


def fill_use(packed: bytes | None, other: bytes | None) -> bytes | None:
    """The first one, and where it has nothing the other."""
    return _fill(packed, other, _USE_BYTES)


def fill_energy(packed: bytes | None, other: bytes | None) -> bytes | None:
    return _fill(packed, other, _ENERGY_BYTES)


def _pack(rows: Sequence[Hours], width: int, most: int) -> tuple[list[bytes | None], list[int]]:
    blank, lengths = 256**width - 1, [len(row) for row in rows]
    values = _flatten(rows, blank)
    if values is None or (len(values) and not 0 <= values.min() <= values.max() <= blank):
        odd = [at for at, row in enumerate(rows) if any(one is not None and not 0 <= one <= most for one in row)]
        return _pack([() if at in set(odd) else row for at, row in enumerate(rows)], width, most)[0], odd
    is_blank = values == blank
    if is_blank.all():
        return [None] * len(rows), []
    digits = values.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - width :].tobytes()
    ends = itertools.accumulate((length * width for length in lengths), initial=0)
    found: list[bytes | None] = [digits[begin:end] or None for begin, end in itertools.pairwise(ends)]
    if is_blank.any():  # of a value that ends in such bytes these are put back
        known = [packed.rstrip(b"\xff") if packed else b"" for packed in found]
        found = [packed + b"\xff" * (-len(packed) % width) or None for packed in known]
    is_odd = (values > most) & ~is_blank
    row_of = np.repeat(np.arange(len(rows)), lengths) if is_odd.any() else _NO_INTS
    return found, np.unique(row_of[is_odd]).tolist() if len(row_of) else []


def _flatten(rows: Sequence[Hours], blank: int) -> Ints | None:
    """All hours, one after the other; None: one of them is too large for any number of ours. To look at each of them by
    itself takes twice as long, and is for those alone that have hours which were not measured."""
    flat = list(itertools.chain.from_iterable(rows))
    try:
        return np.array(flat, np.int64)
    except OverflowError:
        return None
    except TypeError:
        return _flatten([[blank if one is None else one for one in flat]], blank)


def _unpack(packed: bytes | None, width: int) -> tuple[int | None, ...]:
    if packed is None:
        return ()
    blank = b"\xff" * width
    parts = (packed[at : at + width] for at in range(0, len(packed), width))
    return tuple(None if part == blank else int.from_bytes(part) for part in parts)


def _fill(packed: bytes | None, other: bytes | None, width: int) -> bytes | None:
    if other is None or packed == other:
        return packed
    if packed is not None and len(packed) >= len(other) and b"\xff" * width not in packed:
        return packed
    mine, theirs = _unpack(packed, width), _unpack(other, width)
    both = itertools.zip_longest(mine, theirs)
    return _pack([[its if one is None else one for one, its in both]], width, 256**width)[0][0]


def mean_uses(begins: Sequence[int], ends: Sequence[int], packed: Sequence[bytes | None]) -> list[int | None]:
    """Of the hours that were measured, by the seconds that each row has of them."""
    found = [
        None if one is None or begin >= end else int.from_bytes(one) if len(one) == _USE_BYTES else NOT_KNOWN
        for one, begin, end in zip(packed, begins, ends, strict=True)
    ]
    several = [at for at, mean in enumerate(found) if mean == NOT_KNOWN]
    if several:
        of_them = ([column[at] for at in several] for column in (begins, ends, packed))
        for at, mean in zip(several, _mean_hours(*of_them), strict=True):  # type: ignore[arg-type]
            found[at] = mean
    return found


def _mean_hours(begins: Sequence[int], ends: Sequence[int], packed: Sequence[bytes | None]) -> list[int | None]:
    length, values = _spread(packed, _USE_BYTES)
    if not len(values):
        return [None] * len(packed)
    row = np.repeat(np.arange(len(packed)), length)
    t0, t1 = np.array(begins, np.int64)[row], np.array(ends, np.int64)[row]
    hour = (t0 // HOUR + np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)) * HOUR
    seconds = np.where(values < 0, 0, np.maximum(np.minimum(t1, hour + HOUR) - np.maximum(t0, hour), 0))
    used, over = (
        np.diff(np.concatenate((np.zeros(1, np.int64), np.cumsum(column)))[np.append(0, np.cumsum(length))])
        for column in (values * seconds, seconds)
    )
    return [value // by if by else None for value, by in zip(used.tolist(), over.tolist(), strict=True)]


def _spread(packed: Sequence[bytes | None], width: int) -> tuple[Ints, Ints]:
    """How many hours each row has, and all of them one after the other."""
    length = np.fromiter((len(one) // width if one else 0 for one in packed), np.int64, len(packed))
    digits = np.frombuffer(b"".join(one for one in packed if one), np.uint8).reshape(-1, width).astype(np.int64)
    values: Ints = digits @ (256 ** np.arange(width - 1, -1, -1, dtype=np.int64))
    values[values == 256**width - 1] = NOT_KNOWN
    return length, values


def sum_up(spans: SpanColumns, windows: Sequence[Window]) -> AmountColumns:
    """`windows`: in order, none overlapping another."""
    if not windows or not len(spans.t0):
        return _group(*(_NO_INTS,) * 4, np.zeros((0, 5), np.int64))
    row, begin, end, window = _cut(spans, windows)
    t0, t1, rate, share, state = (
        spans.t0[row], spans.t1[row], spans.rate[row], spans.share[row], spans.state[row]
    )
    hour = begin // HOUR
    first, last = np.maximum(t0, hour * HOUR), np.minimum(t1, (hour + 1) * HOUR)  # what the interval has of this hour
    in_hour = hour - t0 // HOUR
    use = _pick(spans.use, _USE_BYTES, row, in_hour)
    energy = np.maximum(_pick(spans.energy, _ENERGY_BYTES, row, in_hour), 0)
    is_used, is_priced = (state == USED) & (use >= 0), rate >= 0
    priced = np.maximum(rate, 0)
    used = np.where(is_used, use, 0)
    at_first, at_begin, at_end = (_cost(priced, when - t0) for when in (first, begin, end))
    time = share * (end - begin)
    amounts = np.stack((
        at_end - at_begin,
        _share(at_end - at_first, used) - _share(at_begin - at_first, used),
        time,
        np.where(is_priced, 0, time),
        _half_even(energy * (end - first), last - first) - _half_even(energy * (begin - first), last - first),
    ), axis=1)
    state = np.where((state == USED) & (use < 0), UNKNOWN, state)
    return _group(window, spans.key[row], state, spans.holder[row], amounts)


def _cut(spans: SpanColumns, windows: Sequence[Window]) -> tuple[Ints, Ints, Ints, Ints]:
    """Pieces that lie within one interval, one hour and one window: its row, begin, end, window."""
    edges = np.array(windows, np.int64)
    begin, end = np.maximum(spans.t0, edges[0, 0]), np.minimum(spans.t1, edges[-1, 1])
    hours = np.arange(begin.min() // HOUR * HOUR, end.max() + HOUR, HOUR, dtype=np.int64)
    cuts = np.unique(np.concatenate((hours, edges.ravel())))
    low, high = np.searchsorted(cuts, begin, "right") - 1, np.searchsorted(cuts, end, "left")
    count = np.where(begin < end, high - low, 0)
    row = np.repeat(np.arange(len(count)), count)
    cut = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    piece_begin, piece_end = np.maximum(begin[row], cuts[cut]), np.minimum(end[row], cuts[cut + 1])
    window = np.searchsorted(edges[:, 0], piece_begin, "right") - 1
    is_inside = piece_end <= edges[window, 1]  # else it lies between two windows
    return row[is_inside], piece_begin[is_inside], piece_end[is_inside], window[is_inside]


def _pick(packed: Sequence[bytes | None], width: int, row: Ints, hour: Ints) -> Ints:
    """Of each row, the value of that hour of it."""
    length, values = _spread(packed, width)
    start, values = np.cumsum(length) - length, np.append(values, NOT_KNOWN)
    return values[np.where(hour < length[row], start[row] + hour, len(values) - 1)]


def _cost(rate: Ints, seconds: Ints) -> Ints:
    """rate x seconds / 3600, in two steps: their product may be more than 64 bits hold."""
    return _round(rate // HOUR * seconds, rate % HOUR * seconds, np.int64(HOUR))


def _share(amount: Ints, micro: Ints) -> Ints:
    return _round(amount // WHOLE * micro, amount % WHOLE * micro, np.int64(WHOLE))


def _half_even(number: Ints, by: Ints) -> Ints:
    return _round(np.zeros_like(number), number, by)


def _round(whole: Ints, number: Ints, by: Ints | np.int64) -> Ints:
    """whole + number / by, half to even."""
    more, rest = np.divmod(number, by)
    found = whole + more
    up: Ints = found + ((rest * 2 > by) | ((rest * 2 == by) & (found % 2 == 1)))
    return up


def _group(window: Ints, key: Ints, state: Ints, holder: Ints, amounts: Ints) -> AmountColumns:
    order = np.lexsort((holder, state, key, window))
    sorted_by = np.stack((window, key, state, holder), axis=1)[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (sorted_by[1:] != sorted_by[:-1]).any(axis=1)
    starts = np.flatnonzero(is_first)
    sums = np.add.reduceat(amounts[order], starts, axis=0) if len(starts) else amounts
    names = sorted_by[starts]
    return AmountColumns(names[:, 0], names[:, 1], names[:, 2], names[:, 3], sums)


# ---- sums of sums ----------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Sequence[int]]) -> Ints:
    """Rows of a window, a key, a state and five amounts."""
    return np.array(rows, np.int64).reshape(-1, 8)


def join(found: Sequence[AmountColumns]) -> AmountColumns:
    if not found:
        return sum_up(_NO_SPANS, ())
    return AmountColumns(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def group_exactly(window: Ints, group: Ints, state: Ints, amounts: Ints) -> list[tuple[int, int, int, list[int]]]:
    """As whole numbers of any size: what many groups come to need not fit into 64 bits. Sorted."""
    high, low = amounts // _HALF, amounts % _HALF
    sums = _group(window, group, state, np.zeros_like(window), np.concatenate((high, low), axis=1))
    columns = (sums.window, sums.key, sums.state, sums.amounts)
    return [
        (at, of, code, [values[one] * _HALF + values[one + 5] for one in range(5)])
        for at, of, code, values in zip(*(column.tolist() for column in columns), strict=True)
    ]
