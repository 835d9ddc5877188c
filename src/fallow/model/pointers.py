"""JSON Pointers into Kubernetes objects: read, prune, and turn `pointer -> value` into a JSON merge patch.

In: objects as plain dicts and lists, pointers such as `/spec/replicas` or `/metadata/annotations/a.b~1c`.
Out: new objects; nothing is changed in place. Kubernetes drops nulls, so a null and an absent member are the same thing
here: None. A pointer that is kept crosses a list by the name of a member, `/spec/roles/name=prefill/spec/replicas`: an
index, which can only be read, would mean another one as soon as somebody adds or moves one. A merge patch can only
replace a list as a whole, so `merge_patch` takes the rest of the list from the object as it is now.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

_DIGITS: Final = 6  # of an index
EVERY: Final = "name=*"  # in a pattern: whichever member of a list


@lru_cache(maxsize=4096)
def parts(pointer: str) -> tuple[str, ...]:
    """`/metadata/annotations/a~1b` -> ("metadata", "annotations", "a/b")."""
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer: it must begin with /")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


def join(path: Iterable[str]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def annotation(name: str) -> str:
    """The pointer of an object's own annotation."""
    return join(("metadata", "annotations", name))


def read(body: Any, pointer: str) -> Any:
    """The value there; None when it, or anything above it, is absent."""
    value = body
    for part in parts(pointer):
        value = _step(value, part)
        if value is None:
            return None
    return value


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict | Mapping):  # a dict is found at once, and nearly all are
        return value.get(part)
    if isinstance(value, list):
        if part.isdecimal() and len(part) <= _DIGITS:  # a record may hold any text: a book of digits, too
            return value[int(part)] if int(part) < len(value) else None
        return next((item for item in value if _is_called(item, part)), None)
    return None


def named(name: str) -> str:
    """The part of a pointer that is the member of a list with that name."""
    return f"name={name}"


def _is_called(item: Any, part: str) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("name"), str) and named(item["name"]) == part


def leads_to(pointer: str, pattern: str) -> bool:
    """Is it a place of the pattern (in which `name=*` is any member of a list), or one above it?"""
    path, wanted = parts(pointer), parts(pattern)
    return len(path) <= len(wanted) and all(
        part == want or (want == EVERY and part.startswith("name=")) for part, want in zip(path, wanted, strict=False)
    )


def is_lost(body: Any, pointer: str) -> bool:
    """Does it lead through a list that has no such member (any more)? What is not there cannot be written into."""
    for part in parts(pointer):
        below = _step(body, part)
        if below is None:
            return isinstance(body, list)
        body = below
    return False


def highest_absent(body: Any, pointer: str) -> str:
    """The topmost pointer on the way whose value is absent, at least two steps deep (no object lacks its spec);
    `pointer` if none is."""
    path = parts(pointer)
    above = (join(path[:depth]) for depth in range(2, len(path)))
    return next((each for each in above if read(body, each) is None), pointer)


def prune(body: Mapping[str, Any], pointers: Iterable[str]) -> dict[str, Any]:
    """Only the subtrees the pointers name. Parents that exist stay, if need be empty: absent ones must stay apart."""
    kept: dict[str, Any] = {}
    for pointer in pointers:
        _copy(body, kept, parts(pointer))
    return kept


def _copy(source: Mapping[str, Any], kept: dict[str, Any], path: tuple[str, ...]) -> None:
    for depth, part in enumerate(path):
        value = source.get(part)
        if value is None:
            return
        if depth == len(path) - 1 or not isinstance(value, Mapping):
            kept[part] = value
            return
        source, kept = value, kept.setdefault(part, {})


def replace(body: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of `body` with `value` at `path`; None removes the member, for a null inside a list would stay one."""
    if not path:
        return value
    if isinstance(body, list):
        return [replace(item, path[1:], value) if _is_called(item, path[0]) else item for item in body]
    members = dict(body) if isinstance(body, Mapping) else {}
    members[path[0]] = replace(members.get(path[0]), path[1:], value)
    return {name: member for name, member in members.items() if member is not None}


def merge_patch(body: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that writes `fields` (None removes) on an object that now is `body`."""
    patch: dict[str, Any] = {}
    for pointer, value in fields.items():
        _write(patch, body, parts(pointer), value)
    return patch


def _write(patch: dict[str, Any], body: Any, path: tuple[str, ...], value: Any) -> None:
    for depth, part in enumerate(path[:-1]):
        body = _step(body, part)
        if isinstance(body, list):
            patch[part] = replace(patch.get(part, body), path[depth + 1 :], value)
            return
        patch = patch.setdefault(part, {})
    patch[path[-1]] = value


def apply_merge_patch(body: Any, patch: Any) -> Any:
    """RFC 7386, to foresee what the server will make of a patch."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(body) if isinstance(body, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = apply_merge_patch(merged.get(name), value)
    return merged
