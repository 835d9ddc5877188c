"""The way back: what stood in the fields that a pause overwrites, as the annotation original-state holds it.

In: the object before the pause and the pointers to be written; later the annotation's text. Out: the record.
Invariant: a record that cannot be read, or has another version, is no record; nothing is restored from a guess.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from fallow import names
from fallow.model import pointers


class CompanionName(msgspec.Struct, frozen=True, rename="camel"):
    """Another object that was changed for this pause, in the same namespace, with a record of its own."""

    api_version: str
    kind: str
    name: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    v: Literal[1]
    fields: dict[str, Any]  # JSON pointer -> former value; None = was absent
    companions: tuple[CompanionName, ...] = ()


def read(text: str | None) -> Record | None:
    """None where there is none, or one that cannot be trusted."""
    try:
        record = msgspec.json.decode(text, type=Record) if text else None
    except (msgspec.DecodeError, UnicodeError):
        return None
    return record if record and all(pointer.startswith("/") for pointer in record.fields) else None


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
