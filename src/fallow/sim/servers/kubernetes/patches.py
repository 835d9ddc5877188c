"""JSON patches and strategic merge patches. (For merge patches see `pointers`, for applies `ownership`.)

In: an object and a patch. Out: a new object, or Unfit. Nothing is changed in place.
"""

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fallow.model import pointers
from fallow.sim.servers import ownership

Object: TypeAlias = dict[str, Any]
# Lists that strategic patches merge by a key though applies take them as one value.
_STRATEGIC_KEYS = {"taints": ("key",), "tolerations": (), "ports": ("containerPort",)}


class Unfit(ValueError):
    """The patch cannot be applied to the object."""


def json_patch(obj: Object, operations: Any) -> Object:
    if not isinstance(operations, list):
        raise Unfit("a JSON patch is a list of operations")
    document: Object = copy.deepcopy(obj)
    for operation in operations:
        try:
            _operate(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise Unfit(str(problem)) from problem
    return document


def _operate(document: Object, operation: Mapping[str, Any]) -> None:
    name, path = operation["op"], pointers.parts(operation["path"])
    if name == "test":
        if _read(document, path) != operation.get("value"):
            raise Unfit(f"the test of {operation['path']} failed")
    elif name == "remove":
        _take(document, path)
    elif name == "replace":
        _read(document, path)
        _take(document, path)
        _add(document, path, operation["value"])
    elif name == "add":
        _add(document, path, operation["value"])
    elif name in ("move", "copy"):
        source = pointers.parts(operation["from"])
        value = _take(document, source) if name == "move" else copy.deepcopy(_read(document, source))
        _add(document, path, value)
    else:
        raise Unfit(f"{name!r} is no operation")


def _read(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _take(document: Any, path: Sequence[str]) -> Any:
    parent, last = _read(document, path[:-1]), path[-1]
    return parent.pop(int(last)) if isinstance(parent, list) else parent.pop(last)


def _add(document: Any, path: Sequence[str], value: Any) -> None:
    parent, last = _read(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else int(last), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise Unfit("there is no object to add a member to")


def strategic(obj: Any, patch: Any) -> Any:
    """Like a merge patch, but lists whose items have a key are merged item by item."""
    if not isinstance(patch, Mapping):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if not name.startswith("$")}
    merged = dict(obj) if isinstance(obj, Mapping) else {}
    if retained := patch.get("$retainKeys"):
        merged = {name: value for name, value in merged.items() if name in retained}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [item for item in merged.get(field) or () if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None or (isinstance(value, Mapping) and value.get("$patch") == "delete"):
            merged.pop(name, None)
        elif isinstance(value, list):
            merged[name] = _merge_list(merged.get(name) or [], value, name, patch.get(f"$setElementOrder/{name}") or ())
        else:
            merged[name] = strategic(merged.get(name), value)
    return merged


def _merge_list(items: list[Any], patch: list[Any], field: str, order: Sequence[Any]) -> list[Any]:
    if field == "finalizers":
        return [*items, *(item for item in patch if item not in items)]
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    keys = _keys(field, [*patch, *items])
    if not keys:
        return patch
    name_of = functools.partial(ownership.identify, keys=keys)
    given, known = {name_of(item): item for item in patch}, [name_of(item) for item in items]
    gone = {name for name, item in given.items() if item.get("$patch") == "delete"}
    merged = [strategic({}, item) for name, item in given.items() if name not in known and name not in gone]
    merged += [strategic(item, given.get(name_of(item), {})) for item in items if name_of(item) not in gone]
    ranks = {name_of(item): at for at, item in enumerate(order)}
    return sorted(merged, key=lambda item: ranks.get(name_of(item), len(ranks)))


def _keys(field: str, items: list[Any]) -> tuple[str, ...]:
    if field in _STRATEGIC_KEYS:
        keys = _STRATEGIC_KEYS[field]
        return keys if all(key in items[0] for key in keys) else ("port",)
    return ownership.list_keys(field, items, custom=False)
