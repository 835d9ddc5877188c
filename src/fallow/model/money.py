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


def to_cent(amount: Nano) -> int:
    whole_cents, rest = divmod(amount, _CENT)
    return whole_cents + (rest * 2 > _CENT or (rest * 2 == _CENT and whole_cents % 2 == 1))


def _show(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 100}.{number % 100:02d}"
