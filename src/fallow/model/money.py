"""Amounts of money as text, so that the parts add up to the whole: the largest remainders get the missing cents.

In: nano units of the currency. Out: decimal text with two places.
"""

from collections.abc import Mapping

from fallow.model import cost
from fallow.model.cost import Nano

_CENT = cost.UNIT // 100
MOST_SHOWN = 20


def whole(amount: Nano) -> str:
    """Half to even."""
    return _show(_round(amount))


def spread(parts: Mapping[str, Nano]) -> dict[str, str]:
    """Each part; together they are `whole` of their sum."""
    total = sum(parts.values())
    if total <= 0:
        return {name: whole(amount) for name, amount in parts.items()}
    shares = cost.divide(_round(total), tuple(max(0, amount) for amount in parts.values()))
    return {name: _show(share) for name, share in zip(parts, shares, strict=True)}


def top(parts: Mapping[str, Nano], most: int = MOST_SHOWN) -> dict[str, Nano]:
    """The largest first; what is beyond them is one part."""
    ranked = sorted(parts.items(), key=lambda each: (-each[1], each[0]))
    shown = {name or cost.NONE: amount for name, amount in ranked[:most]}
    rest = sum(amount for _, amount in ranked[most:])
    return {**shown, cost.OTHER: shown.get(cost.OTHER, 0) + rest} if len(ranked) > most else shown


def _round(amount: Nano) -> int:
    whole_cents, rest = divmod(amount, _CENT)
    return whole_cents + (rest * 2 > _CENT or (rest * 2 == _CENT and whole_cents % 2 == 1))


def _show(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 100}.{number % 100:02d}"
