"""Kubernetes quantities: `250m`, `64Gi`, `1e3`, as exact numbers.

In: the text of a request, a limit or what a node has. Out: an exact Fraction. What cannot be read raises ValueError
with one sentence; nothing unreadable ever becomes 0.
"""

import functools
import math
import re
from fractions import Fraction
from typing import Final

_SHAPE: Final = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)"
)
_FACTORS: Final = {
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate([*"num", "", *"kMGTPE"], -3)},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
MEBI: Final = 1024 * 1024


@functools.lru_cache(4096)  # pods of one cluster ask for the same few amounts, again and again
def parse(text: str) -> Fraction:
    found = _SHAPE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a quantity such as 250m, 4 or 64Gi")
    number, exponent, suffix = found.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent[1:]) if exponent else _FACTORS[suffix or ""])


def parse_milli(text: str, *, up: bool = True) -> int:
    """Thousandths, rounded up as the scheduler does with what is asked; down with what there is."""
    return (math.ceil if up else math.floor)(parse(text) * 1000)


def parse_mebi(text: str, *, up: bool = True) -> int:
    """MiB, rounded likewise."""
    return (math.ceil if up else math.floor)(parse(text) / MEBI)
