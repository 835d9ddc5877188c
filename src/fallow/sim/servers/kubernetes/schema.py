"""A custom kind's structural schema at work: unknown fields are found and dropped, defaults filled in, types checked.

In: an object and its openAPIV3Schema. Out: the object as it is stored, what is wrong with it. CEL is not evaluated.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]
Fault: TypeAlias = tuple[str, str, str]  # field, reason, message

_EMBEDDED = frozenset({"apiVersion", "kind", "metadata"})
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value >= bound, "greater than or equal to"),
    "maximum": (lambda value, bound: value <= bound, "less than or equal to"),
}


def prune(value: Any, schema: Mapping[str, Any], unknown: list[str], path: str = "", *, root: bool = True) -> Any:
    """A copy without fields the schema does not have, with its defaults. What was dropped goes into `unknown`."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [prune(item, items, unknown, f"{path}[{at}]", root=False) for at, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    is_open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    kept: Object = {}
    for name, member in value.items():
        below = f"{path}.{name}" if path else name
        if (root or schema.get("x-kubernetes-embedded-resource")) and name in _EMBEDDED:
            kept[name] = member
        elif name in known:
            kept[name] = prune(member, known[name], unknown, below, root=False)
        elif isinstance(rest, Mapping):
            kept[name] = prune(member, rest, unknown, below, root=False)
        elif is_open or rest is True:
            kept[name] = member
        else:
            unknown.append(below)
    missing = [name for name, part in known.items() if "default" in part and kept.get(name) is None]
    return kept | {name: known[name]["default"] for name in missing}


def check(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[Fault]:
    """What the real server would object to, in its words."""
    type_ = schema.get("type")
    if value is None and (schema.get("nullable") or not path):
        return
    if schema.get("x-kubernetes-int-or-string"):
        type_ = None
    if type_ in _TYPES and not _TYPES[type_](value):
        name = _name_type(value)
        why = f'{path} in body must be of type {type_}: "{name}"'
        yield path, "FieldValueTypeInvalid", f'Invalid value: "{name}": {why}'
        return
    yield from _check_value(value, schema, path)
    if isinstance(value, Mapping):
        yield from _check_members(value, schema, path)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for at, item in enumerate(value):
            yield from check(item, schema["items"], f"{path}[{at}]")


def _check_members(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[Fault]:
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if value.get(name) is None:
            yield _join(path, name), "FieldValueRequired", "Required value"
    for name, member in value.items():
        part = known.get(name, rest)
        if isinstance(part, Mapping) and not (not path and name in _EMBEDDED):
            yield from check(member, part, _join(path, name))


def _check_value(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if "enum" in schema and value not in schema["enum"]:
        listed = ", ".join(f'"{choice}"' for choice in schema["enum"])
        yield path, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}'
    if isinstance(value, int | float) and not isinstance(value, bool):
        for name, (holds, words) in _BOUNDS.items():
            if name in schema and not holds(value, schema[name]):
                why = f"{path} in body should be {words} {schema[name]}"
                yield path, "FieldValueInvalid", f"Invalid value: {value}: {why}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        why = f"{path} in body should match '{schema['pattern']}'"
        yield path, "FieldValueInvalid", f'Invalid value: "{value}": {why}'


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name_type(value: Any) -> str:
    if value is None:
        return "null"
    return next(name for name in ("object", "array", "string", "boolean", "integer", "number") if _TYPES[name](value))
