"""Amounts of money in cents: the one place in which they are rounded.

In: nano units of the currency. Out: whole cents, or decimal text with two places. An amount is rounded half to even, as
the ledger rounds; of several that stand together the largest remainders get the missing cents, so that the parts add up
to the whole.
"""

from collections.abc import Mapping, Sequence

from fallow.model import cost
from fallow.model.cost import Nano

_CENT = cost.UNIT // 100
MOST_SHOWN = 20


def whole(amount: Nano) -> str:
    return _show(to_cent(amount))


def spread(parts: Mapping[str, Nano]) -> dict[str, str]:
    """Each part; together they are `whole` of their sum."""
    return {name: _show(cents) for name, cents in zip(parts, to_cents(list(parts.values())), strict=True)}


def top(parts: Mapping[str, Nano], most: int = MOST_SHOWN) -> dict[str, Nano]:
    """The largest first; what is beyond them is one part."""
    ranked = sorted(parts.items(), key=lambda each: (-each[1], each[0]))
    shown = {name or cost.NONE: amount for name, amount in ranked[:most]}
    rest = sum(amount for _, amount in ranked[most:])
    return {**shown, cost.OTHER: shown.get(cost.OTHER, 0) + rest} if len(ranked) > most else shown


def to_cents(amounts: Sequence[Nano], total: int | None = None) -> list[int]:
    """Each within one of its amount; they sum to `total`, or else to the rounded sum."""
    cents = [amount // _CENT for amount in amounts]
    total = to_cent(sum(amounts)) if total is None else total
    by_rest = sorted(range(len(amounts)), key=lambda index: (-(amounts[index] % _CENT), index))
    for index in by_rest[: total - sum(cents)]:
        cents[index] += 1
    return cents


def to_table(rows: Sequence[Sequence[Nano]], sums: Sequence[int], columns: Sequence[int]) -> list[list[int]]:
    """Cents of each cell; rows and columns sum to what is said of them, whatever the rows are grouped by. `sums`: of
    rows, `columns`: of columns, both in cents and of one total. Each row alone comes first; then a cent moves within a
    row, where that is least wrong, until the columns agree too."""
    made = [to_cents(row, total) for row, total in zip(rows, sums, strict=True)]
    while over := _compare(made, columns):
        much, little = over
        chosen = max(
            (at for at, cells in enumerate(made) if cells[much] > 0),
            key=lambda at: (rows[at][little] > 0, _excess(made, rows, at, much) - _excess(made, rows, at, little), -at),
        )
        made[chosen][much] -= 1
        made[chosen][little] += 1
    return made


def _compare(made: Sequence[Sequence[int]], columns: Sequence[int]) -> tuple[int, int] | None:
    """A column that has too much, and one that has too little; None: all agree."""
    off = [sum(cells) - wanted for cells, wanted in zip(zip(*made, strict=True), columns, strict=True)] if made else []
    return (off.index(max(off)), off.index(min(off))) if off and max(off) > 0 > min(off) else None


def _excess(made: Sequence[Sequence[int]], rows: Sequence[Sequence[Nano]], row: int, column: int) -> Nano:
    return made[row][column] * _CENT - rows[row][column]


def to_cent(amount: Nano) -> int:
    whole_cents, rest = divmod(amount, _CENT)
    return whole_cents + (rest * 2 > _CENT or (rest * 2 == _CENT and whole_cents % 2 == 1))


def _show(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 100}.{number % 100:02d}"
