"""What a GPU costs an hour, by model: a small book of list prices, for reports that want to speak of money.

In: a model as nodes and exporters spell it. Out: US dollars per GPU-hour, or None: a model that is not in the book has no price, and never
that of another one.
Source: on-demand list prices of one AWS instance type each (Linux, N. Virginia, undated), divided by its GPUs: p4de.24xlarge 40.96,
p4d.24xlarge 32.77, p3.2xlarge 3.06, g5.xlarge 1.006, g4dn.xlarge 0.526.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, TypeAlias

Book: TypeAlias = Mapping[str, Decimal]

DEFAULT: Final[Book] = {
    "A100-80GB": Decimal("5.12"),
    "A100-40GB": Decimal("4.09625"),
    "V100-16GB": Decimal("3.06"),
    "A10G": Decimal("1.006"),
    "T4": Decimal("0.526"),
}
_MAKER = re.compile(r"^(NVIDIA-|nvidia-|Tesla-|tesla-)+")
_REST = re.compile(r"-(SHARED|MIG-\S+)$")
_FORM = re.compile(r"-(SXM\d|PCIE|PCIe)(?=-|$)")


def normalise(model: str) -> str:
    """`NVIDIA A100-SXM4-80GB` and `NVIDIA-A100-SXM4-80GB-MIG-1g.10gb` -> `A100-80GB`."""
    return _FORM.sub("", _REST.sub("", _MAKER.sub("", model.strip().replace(" ", "-"))))


def find(model: str, book: Book = DEFAULT) -> Decimal | None:
    return book.get(normalise(model))
