"""What we say, as plain data: the same words for the terminal, for JSON and later for the API.

In: findings of the brain, outcomes of the hands. Out: dictionaries of strings, numbers and None, ready to be encoded.
Instants are RFC 3339; None is "not known". One file per kind of answer; what all of them need stands here.
"""

from fallow.model import units
from fallow.model.units import Instant


def instant(value: Instant | None) -> str | None:
    return None if value is None else units.rfc3339(value)
