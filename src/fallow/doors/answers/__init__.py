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


def instant(value: Instant | None) -> str | None:
    return None if value is None else units.rfc3339(value)


def many(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
