"""The way back: what stood in the fields that a pause overwrites, as the annotation original-state holds it.

In: the object before the pause and the pointers to be written; later the annotation's text. Out: the record, and what
in one cannot be ours: whoever may annotate an object can write a record, and have it restored by somebody mightier.
Invariant: a record that cannot be read, or has another version, is no record; nothing is restored from a guess, and
nothing that a pause of this kind never writes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from fallow import names
from fallow.model import pointers

MOST_REPLICAS: Final = 1_000_000  # no operator runs more; a larger number would not even fit the field
_SWITCHES: Final = frozenset({"suspend", "paused", "active"})  # of what we write: the rest are texts or counts


class CompanionName(msgspec.Struct, frozen=True, rename="camel"):
    """Another object that was changed for this pause, in the same namespace, with a record of its own."""

    api_version: str
    kind: str
    name: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    v: Literal[1]
    fields: dict[str, Any]  # JSON pointer -> former value; None = was absent
    companions: tuple[CompanionName, ...] = ()
    marks: dict[str, str] = {}  # of a notice or a resume, which the pause cleared: they come back if it is taken back


def read(text: str | None) -> Record | None:
    """None where there is none, or one that cannot be trusted."""
    try:
        record = msgspec.json.decode(text, type=Record) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return record if record and all(pointer.startswith("/") for pointer in record.fields) else None


def find_fault(found: Record, writes: Iterable[str]) -> str | None:
    """What in it no pause that writes only there can have recorded, in a phrase; None: nothing."""
    patterns = tuple(writes)
    for pointer, value in found.fields.items():
        if not any(_may_name(pointer, value, pattern) for pattern in patterns):
            return f"{pointer}, which no pause of this kind writes"
        if not _may_hold(pointer, value):
            return f"{_spell(value)} for {pointer}, which that cannot have been"
    strange = found.marks.keys() - set(names.CLEARED_BY_PAUSE)
    return f"{min(strange)}, which no pause clears" if strange else None


def _may_name(pointer: str, value: Any, pattern: str) -> bool:
    """A place of the pattern, or above it what was absent as a whole; a list is never absent as a whole."""
    depth, wanted = len(pointers.parts(pointer)), pointers.parts(pattern)
    highest = wanted.index(pointers.EVERY) + 1 if pointers.EVERY in wanted else 2
    is_deep_enough = depth == len(wanted) or (value is None and depth >= highest)
    return is_deep_enough and pointers.leads_to(pointer, pattern)


def _may_hold(pointer: str, value: Any) -> bool:
    path = pointers.parts(pointer)
    if value is None or "annotations" in path[:-1]:
        return value is None or isinstance(value, str)
    if not is_count(pointer):
        return isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_REPLICAS


def is_count(pointer: str) -> bool:
    """Of what we write, is it a number of replicas, and neither a text nor a switch?"""
    *above, last = pointers.parts(pointer)
    return "annotations" not in above and last not in _SWITCHES


def _spell(value: Any) -> str:
    """Briefly; what is nested may be so deep that nobody can spell it."""
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else f"{value!r:.40}"


def fields_in(annotations: Mapping[str, str]) -> frozenset[str]:
    """The pointers whose former values an object's annotations remember."""
    found = read(annotations.get(names.ORIGINAL_STATE))
    return frozenset(found.fields) if found else frozenset()


def write(record: Record) -> str:
    return msgspec.json.encode(record).decode()


def remember(body: Mapping[str, Any], written: Iterable[str]) -> dict[str, Any]:
    """The former values of what is to be written; of an absent one the highest absent parent: no empty one is left."""
    found = ((pointer, pointers.read(body, pointer)) for pointer in written)
    return {pointer if value is not None else pointers.highest_absent(body, pointer): value for pointer, value in found}
