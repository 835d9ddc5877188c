"""What GPUs cost an hour, as an answer; None where nobody knows. Counted in model/bills.py.

In: Bills. Out: a Cost; and what has no price, added up.
"""

from collections import Counter
from collections.abc import Iterable

from fallow.doors import answers
from fallow.model import bills


class Cost(answers.Shape, frozen=True, kw_only=True):
    """`is_list`: by list prices, because nobody keeps books; else by what the nodes cost."""

    per_hour: float
    currency: str
    is_list: bool = True

    def __str__(self) -> str:
        return say_hourly(self.per_hour, self.currency, is_list=self.is_list)


def say_hourly(amount: float, currency: str, *, is_list: bool) -> str:
    said = f"${amount:,.2f}" if currency == "USD" else f"{amount:,.2f} {currency}"
    return f"{said} an hour{' at list price' if is_list else ''}"


class Unpriced(answers.Shape, frozen=True, kw_only=True):
    """GPUs without a price, and why. `model`: as --price takes it; None where a price would not help."""

    model: str | None
    because: str
    gpus: int


def find_cost(bill: bills.Bill) -> Cost | None:
    """None: it is not known of all of them, or there are none."""
    return None if bill.per_hour is None else Cost(per_hour=bill.per_hour, currency=bill.currency, is_list=bill.is_list)


def list_unpriced(every: Iterable[bills.Bill]) -> tuple[Unpriced, ...]:
    """The most first."""
    counts = Counter[str]()
    for one in (one for bill in every for one in bill.unpriced):
        counts[one.model] += one.pieces
    most_first = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(
        Unpriced(model=model or None, because=f"of {model or 'a model that is not known'}", gpus=count)
        for model, count in most_first
    )
