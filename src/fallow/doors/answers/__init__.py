"""What we say, as frozen structs: the same shapes for the terminal, for JSON and YAML, and for the API.

In: findings of the brain, outcomes of the hands. Out: structs of strings, numbers, booleans and None, ready to be
encoded; each has a function beside it that makes it of our nouns.
Names are camelCase on the wire; instants are RFC 3339; None is "not known". One file per kind of answer; what all of
them need stands here.
"""

import msgspec

from fallow.model import units
from fallow.model.units import Instant


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every answer is: fields only, by name."""


class FailureTold(Shape, frozen=True, kw_only=True):
    """The last cycles gave no decision."""

    because: str
    since: str
    cycles: int


def instant(value: Instant | None) -> str | None:
    return None if value is None else units.rfc3339(value)


def amount(gpus: float) -> str:
    """GPUs in a sentence: whole, or with one decimal."""
    return f"{round(gpus):,}" if abs(gpus - round(gpus)) < 0.05 else f"{gpus:,.1f}"


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


many = units.many
