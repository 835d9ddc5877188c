"""Who owns which field of an object: managedFields, and server-side apply.

In: an object before and after (or what somebody applies), and the manager's name. Out: the new managedFields; for an
apply the merged object too, or `Conflicts`. Built-in kinds merge their well-known lists by key; the lists of custom
kinds are owned as a whole.
Invariant: a field somebody changed is theirs alone; a field that is gone is nobody's;
objects handed in are never changed.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]
Manager: TypeAlias = tuple[str, str, str]  # name, operation, subresource

_NOT_OWNED = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "selfLink", "managedFields",
})
_NAMED = ("containers", "initContainers", "ephemeralContainers", "env", "volumes", "imagePullSecrets", "resourceClaims")
_KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_NAMED, ("name",)), **dict.fromkeys(("conditions", "addresses"), ("type",)),
    **dict.fromkeys(("hostAliases", "podIPs"), ("ip",)), "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",), "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_SETS = frozenset({"finalizers"})
# Maps that are one value.
_WHOLE = frozenset({
    "f:selector", "f:labelSelector", "f:nodeSelector", "f:fieldRef", "f:secretKeyRef", "f:configMapKeyRef",
})
# Parents that every built-in object has, so that nobody adds them.
_GIVEN = frozenset({"f:metadata", "f:spec", "f:status", "f:template", "f:jobTemplate", "f:strategy", "f:containers"})


_BRANCH = object()  # stands for a parent, whose fields have owners of their own


class Conflicts(Exception):
    """Others own what was to be applied with another value: (manager, apiVersion, field as the server writes it)."""

    def __init__(self, fields: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(f"{len(fields)} conflicts")
        self.fields = tuple(fields)


def list_keys(field: str, items: Sequence[Any], *, custom: bool) -> tuple[str, ...]:
    """The members by which items of that list are known; () for a list that is one value."""
    if (custom and field != "ownerReferences") or not items or not all(isinstance(item, Mapping) for item in items):
        return ()
    if field == "ports":
        return ("containerPort", "protocol") if "containerPort" in items[0] else ("port", "protocol")
    return _KEYS.get(field, ())


def identify(item: Mapping[str, Any], keys: Iterable[str]) -> tuple[Any, ...]:
    return tuple(item.get(key, "TCP" if key == "protocol" else None) for key in keys)


def _flatten(value: Any, path: Path, custom: bool) -> Iterator[tuple[Path, Any]]:
    """Every leaf with its value, every parent with _BRANCH."""
    if isinstance(value, dict) and value and (custom or not path or path[-1] not in _WHOLE):
        if path:
            yield path, _BRANCH
        for name, member in value.items():
            if member is not None:
                yield from _flatten(member, (*path, f"f:{name}"), custom)
    elif isinstance(value, list) and (items := _name_items(value, path[-1][2:], custom)):
        yield path, _BRANCH
        for name, item in items:
            yield from _flatten(item, (*path, name), custom)
    else:
        yield path, value


def _name_items(items: list[Any], field: str, custom: bool) -> list[tuple[str, Any]]:
    if field in _SETS:
        return [(f"v:{json.dumps(item)}", item) for item in items]
    if not (keys := list_keys(field, items, custom=custom)):
        return []
    named = [dict(zip(keys, identify(item, keys), strict=True)) for item in items]
    return [(f"k:{json.dumps(name, separators=(',', ':'))}", item) for name, item in zip(named, items, strict=True)]


def _fields(obj: Mapping[str, Any], custom: bool) -> dict[Path, Any]:
    owned = {name: part for name, part in obj.items() if name not in ("apiVersion", "kind", "metadata")}
    metadata = {name: part for name, part in (obj.get("metadata") or {}).items() if name not in _NOT_OWNED}
    whole = {"metadata": metadata, **owned} if metadata else owned
    return dict(_flatten(whole, (), custom)) if whole else {}


def _encode(paths: Iterable[Path]) -> Object:
    """The fieldsV1 form."""
    tree: Object = {}
    for path in sorted(paths):
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node["."] = {}
    return _tidy(tree)


def _tidy(node: Object) -> Object:
    return {name: {} if below == {".": {}} else _tidy(below) for name, below in node.items()}


def _decode(fields: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, below in fields.items():
        if name == ".":
            yield above
        elif not below:
            yield (*above, name)
        else:
            yield from _decode(below, (*above, name))


class _Managers:
    """The entries of managedFields with their fields as sets of paths, by manager, operation and subresource."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = {
            (entry["manager"], entry.get("operation", "Update"), entry.get("subresource", "")):
            (dict(entry), set(_decode(entry.get("fieldsV1") or {})))
            for entry in entries if entry.get("manager")
        }

    def find(self, who: Manager) -> set[Path]:
        return self._entries[who][1] if who in self._entries else set()

    def others(self, who: Manager) -> list[tuple[Object, set[Path]]]:
        return [owned for manager, owned in self._entries.items() if manager != who]

    def forget(self, paths: set[Path]) -> None:
        for _, owned in self._entries.values():
            owned -= paths

    def write(self, who: Manager, paths: set[Path], version: str, time: str) -> None:
        self._entries.pop(who, None)
        manager, operation, subresource = who
        entry = {"manager": manager, "operation": operation, "apiVersion": version, "time": time}
        part = {"subresource": subresource} if subresource else {}
        self._entries[who] = ({**entry, "fieldsType": "FieldsV1", **part}, paths)

    def to_list(self) -> list[Object]:
        entries = [{**entry, "fieldsV1": _encode(paths)} for entry, paths in self._entries.values() if paths]
        return sorted(entries, key=lambda entry: (entry["operation"], entry.get("time", ""), entry["manager"]))


def _given(old: Mapping[str, Any], new: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The entries to go on from: what the request says, which may be none; where it says nothing, what was."""
    before, after = ((obj.get("metadata") or {}).get("managedFields") for obj in (old, new))
    return (after if after is not None else before) or []


def update(old: Object, new: Object, manager: str, *, time: str, custom: bool, subresource: str = "") -> list[Object]:
    """The managedFields of `new`, into which `manager` turned `old`."""
    parts = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    before, after = (_fields({name: obj[name] for name in parts if name in obj}, custom) for obj in (old, new))
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    changed = {path for path in changed if after[path] is not _BRANCH or not _is_given(path, custom)}
    gone = before.keys() - after.keys()
    managers = _Managers(_given(old, new))
    managers.forget(changed | gone)
    if changed:
        who = manager, "Update", subresource
        managers.write(who, managers.find(who) | changed, new.get("apiVersion", ""), time)
    return managers.to_list()


def _is_given(path: Path, custom: bool) -> bool:
    return path[-1] == "f:metadata" if custom else path[-1] in _GIVEN


def apply(
    live: Object, applied: Object, manager: str, *, time: str, custom: bool, force: bool, subresource: str = ""
) -> Object:
    """`live` with what `manager` applies, without what it no longer does, and with the new managedFields."""
    who, wanted, current = (manager, "Apply", subresource), _fields(applied, custom), _fields(live, custom)
    owned = {path for path, value in wanted.items() if value is not _BRANCH or path[-1].startswith("k:")}
    managers = _Managers(live.get("metadata", {}).get("managedFields") or [])
    before, others = managers.find(who), managers.others(who)
    different = {path for path in owned if wanted[path] is not _BRANCH and current.get(path) != wanted[path]}
    clashes = [(entry, path) for entry, paths in others for path in sorted(paths & different)]
    if clashes and not force:
        raise Conflicts([(entry["manager"], entry.get("apiVersion", ""), _describe(path)) for entry, path in clashes])
    managers.forget({path for _, path in clashes})
    kept = {path for _, paths in others for path in paths}
    merged: Object = _merge(live, applied, "", custom)
    for path in sorted(before - owned):  # a parent before what is in it
        if not any(other[: len(path)] == path for other in kept | owned):
            _remove(merged, path)
    if before != owned or merged != live:
        managers.write(who, owned, applied["apiVersion"], time)
    merged.setdefault("metadata", {})["managedFields"] = managers.to_list()
    return merged


def disown(obj: Object, field: Path) -> Object:
    """The object with a field that is nobody's; `field` such as ("spec", "replicas")."""
    managers = _Managers(obj["metadata"].get("managedFields") or [])
    managers.forget({tuple(f"f:{part}" for part in field)})
    return {**obj, "metadata": {**obj["metadata"], "managedFields": managers.to_list()}}


def _describe(path: Path) -> str:
    return "".join(f".{part[2:]}" if part.startswith("f:") else _describe_item(part) for part in path)


def _describe_item(part: str) -> str:
    value = json.loads(part[2:])
    if not isinstance(value, dict):
        return f"[={part[2:]}]"
    return f"[{','.join(f'{key}={json.dumps(member)}' for key, member in value.items())}]"


def _merge(live: Any, applied: Any, field: str, custom: bool) -> Any:
    if isinstance(applied, Mapping):
        merged = copy.deepcopy(dict(live)) if isinstance(live, Mapping) else {}
        for name, value in applied.items():
            merged[name] = _merge(merged.get(name), value, name, custom)
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        return _merge_lists(live, applied, field, custom)
    return copy.deepcopy(applied)


def _merge_lists(live: list[Any], applied: list[Any], field: str, custom: bool) -> list[Any]:
    if field in _SETS:
        return [*live, *(item for item in applied if item not in live)]
    keys = list_keys(field, applied, custom=custom)
    if not keys:
        return copy.deepcopy(applied)
    given = {identify(item, keys): item for item in applied}
    known = {identify(item, keys) for item in live}
    merged = [_merge(item, given.get(identify(item, keys), {}), field, custom) for item in live]
    return merged + [copy.deepcopy(item) for name, item in given.items() if name not in known]


def _remove(obj: Any, path: Path) -> None:
    """Take that field out of `obj`, a copy of our own."""
    for part in path[:-1]:
        obj = _step(obj, part)
        if obj is None:
            return
    last = path[-1]
    if last.startswith("f:") and isinstance(obj, dict):
        obj.pop(last[2:], None)
    elif isinstance(obj, list) and (found := _step(obj, last)) is not None:
        obj.remove(found)


def _step(obj: Any, part: str) -> Any:
    if part.startswith("f:"):
        return obj.get(part[2:]) if isinstance(obj, dict) else None
    wanted = json.loads(part[2:])
    if part.startswith("v:"):
        return next((item for item in obj if item == wanted), None)
    return next((item for item in obj if identify(item, wanted) == tuple(wanted.values())), None)
