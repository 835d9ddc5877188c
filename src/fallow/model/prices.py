"""What a GPU costs an hour, by model: a small book of list prices, for reports that want to speak of money.

In: a model as nodes and exporters spell it; prices that people give. Out: US dollars per GPU-hour, or None: a model
that is not in the book has no price, and never that of another one.
Source: on-demand list prices of one AWS instance type each (Linux, N. Virginia, undated), divided by its GPUs:
p4de.24xlarge 40.96, p4d.24xlarge 32.77, p3.2xlarge 3.06, g5.xlarge 1.006, g4dn.xlarge 0.526.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, TypeAlias

from fallow.model import gpus

Book: TypeAlias = Mapping[str, Decimal]  # by the name that gpus.normalise gives

CURRENCY: Final = "USD"
DEFAULT: Final[Book] = {
    "A100-80GB": Decimal("5.12"),
    "A100-40GB": Decimal("4.09625"),
    "V100-16GB": Decimal("3.06"),
    "A10G": Decimal("1.006"),
    "T4": Decimal("0.526"),
}


def find(model: str, book: Book = DEFAULT) -> Decimal | None:
    return book.get(gpus.normalise(model))


def read_prices(texts: Iterable[str]) -> Book:
    """Those that were given as MODEL=DOLLARS; ValueError names the first that is none."""
    return dict(map(_read_price, texts))


def _read_price(text: str) -> tuple[str, Decimal]:
    model, _, amount = text.partition("=")
    try:
        cost = Decimal(amount)
    except InvalidOperation:
        cost = Decimal("NaN")
    if not model.strip() or not (cost.is_finite() and cost >= 0):
        raise ValueError(f"{text!r} is not MODEL=DOLLARS such as H100-80GB-HBM3=2.99")
    return gpus.normalise(model), cost
