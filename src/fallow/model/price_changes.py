"""What becomes of the prices that are known when others are fetched: they are confirmed, replaced, or stay.

In: the fetched rows so far, what a cloud says now. Out: the rows from now on, and what is suspicious. A price holds
from the moment it is known: the old one ends at that instant and stays for the hours before. One that is more than five
times the last, or less than a fifth, is not taken: the old one stays, unconfirmed, and so grows old.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final, TypeAlias

import msgspec

from fallow.model import price_table
from fallow.model.price_table import PriceRow
from fallow.model.units import DAY, Instant, Seconds

SUSPICIOUS: Final = 5
KEPT: Final[Seconds] = 2 * DAY  # a price that ended: books are closed two hours late
FORGOTTEN: Final[Seconds] = 400 * DAY  # one that nobody confirmed

_What: TypeAlias = tuple[str, ...]


class SuspiciousPrice(msgspec.Struct, frozen=True):
    """In quarantine: `row` is what was fetched, `before` the price that stays."""

    row: PriceRow
    before: PriceRow

    @property
    def because(self) -> str:
        new, old = self.row, self.before
        what = " ".join(filter(None, (new.instance_type or new.gpu_model, f"({new.capacity_type})")))
        where = f" in {new.zone or new.region}" if new.zone or new.region else ""
        change = "more than five times" if new.price > old.price else "less than a fifth of"
        return (
            f"{new.source} says {new.price.normalize():f} {new.currency} for {what}{where}, {change} the price before, "
            f"{old.price.normalize():f}: the old one stays; if the new one is right, put it into your own table"
        )


class Absorbed(msgspec.Struct, frozen=True):
    """`changed`: those of `rows` that are not as they were; `checked`: of what was said, what is not suspicious now."""

    rows: tuple[PriceRow, ...]
    changed: tuple[PriceRow, ...] = ()
    suspicious: tuple[SuspiciousPrice, ...] = ()
    checked: frozenset[_What] = frozenset()


def absorb(known: Iterable[PriceRow], fetched: Iterable[PriceRow], now: Instant) -> Absorbed:
    rows = {row.id: row for row in known if not _is_past(row, now)}
    open_rows = {row.what: row for row in rows.values() if row.valid_to is None}
    changed, suspicious, checked = dict[str, PriceRow](), list[SuspiciousPrice](), set[_What]()
    for row in fetched:
        before = open_rows.get(row.what) or _find_shipped(row)
        if before is not None and is_suspicious(row.price, before.price):
            suspicious.append(SuspiciousPrice(row, before))
            continue
        checked.add(row.what)
        for each in _replace(open_rows.get(row.what), row, now):
            changed[each.id] = each
            if each.valid_to is None:
                open_rows[row.what] = each
    return Absorbed(tuple({**rows, **changed}.values()), tuple(changed.values()), tuple(suspicious), frozenset(checked))


def is_suspicious(new: Decimal, old: Decimal) -> bool:
    return new > old * SUSPICIOUS or new * SUSPICIOUS < old


def _replace(before: PriceRow | None, row: PriceRow, now: Instant) -> Iterable[PriceRow]:
    """The same price is the same row, seen again; another one begins where the old one ends."""
    if before is None:
        yield msgspec.structs.replace(row, valid_from=now if row.valid_from is None else row.valid_from)
    elif before.price == row.price:
        yield msgspec.structs.replace(before, retrieved_at=row.retrieved_at)
    else:
        yield msgspec.structs.replace(before, valid_to=now)
        yield msgspec.structs.replace(row, valid_from=now)


def _find_shipped(row: PriceRow) -> PriceRow | None:
    """For the first price of a machine: what the list that we ship says of it."""
    return _shipped().get((price_table.fold_type(row.instance_type), row.capacity_type, row.currency))


def _shipped() -> Mapping[tuple[str, str, str], PriceRow]:
    rows = price_table.shipped().rows
    return {(price_table.fold_type(row.instance_type), row.capacity_type, row.currency): row for row in rows
            if row.instance_type}


def _is_past(row: PriceRow, now: Instant) -> bool:
    is_over = row.valid_to is not None and now - row.valid_to > KEPT
    return is_over or now - row.retrieved_at > FORGOTTEN
