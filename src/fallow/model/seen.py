"""Seen, absent, unseen: what every input of the brain is before it is a value.

An empty answer is *absent*: whoever was asked has none. What could not be asked for, may not be read, or is older than
it may be is *unseen*, and says why. Only what is known or absent may excuse anything; unseen makes unknown whatever it
could have excused.
Invariant: none of the three is true or false, so that no `if` can read an unseen one as empty: who wants the value says
what becomes of the other two (`match`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class _Neither(msgspec.Struct, frozen=True):
    """Without truth: mypy finds who asks for it (truthy-bool), and who gets by it fails."""

    if not TYPE_CHECKING:

        def __bool__(self):
            raise TypeError("it is neither true nor false: say what becomes of known, absent and unseen")


class Known(_Neither, Generic[T], frozen=True):
    value: T


class Absent(_Neither, frozen=True):
    """Surely not there."""


class Unseen(_Neither, frozen=True):
    """There may be some, or none. `why` is a phrase for people."""

    why: str


Input: TypeAlias = Known[T] | Absent | Unseen
Rest: TypeAlias = Absent | Unseen

ABSENT = Absent()


class Register(msgspec.Struct, Generic[T], frozen=True):
    """Things by name. What is not among the known ones is all alike: absent, or unseen.

    Whoever only shows or counts may read `known`; who decides asks `find`.
    """

    known: Mapping[str, T]
    rest: Rest = ABSENT

    def find(self, name: str) -> Input[T]:
        return Known(self.known[name]) if name in self.known else self.rest


def several(found: tuple[T, ...]) -> Input[tuple[T, ...]]:
    """Of an answer that was complete."""
    return Known(found) if found else ABSENT


def sure(found: Input[tuple[T, ...]]) -> tuple[T, ...]:
    """Those that are there without doubt: for who reads or follows what they say, never for who rests on there being
    none."""
    return found.value if isinstance(found, Known) else ()
