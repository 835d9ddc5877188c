"""The objects of a pretend cluster, in memory, with the rules of etcd and of every Kubernetes object.

In: plain JSON objects (dicts), by group, kind, namespace and name. Out: `Entry`s, one per version of an object, with
their bytes encoded once; `Change`s, to whoever subscribed, and a bounded history of them for watches that come back.
It keeps uid, resourceVersion, generation, creationTimestamp, managedFields, finalizers, preconditions, and deletes what
a deleted owner or namespace leaves behind. What a kind's fields mean is not known here.
Invariant: an object that was handed in or out is never changed by anybody; every change has a new, higher version.
"""

import functools
import itertools
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fallow.model import pointers, units
from fallow.sim.servers import ownership

Object: TypeAlias = dict[str, Any]
GroupKind: TypeAlias = tuple[str, str]

_HISTORY = 5_000  # changes remembered per kind
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
# Besides the custom ones: the kinds whose objects have a generation.
_COUNTED = frozenset({
    ("", "Pod"), ("apps", "Deployment"), ("apps", "StatefulSet"), ("apps", "ReplicaSet"), ("apps", "DaemonSet"),
    ("batch", "Job"), ("batch", "CronJob"), ("policy", "PodDisruptionBudget"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
})
_SERVED_AS = ("kind", "apiVersion")
# What nobody may change by writing the object.
_KEPT = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


class Key(NamedTuple):
    group: str
    kind: str
    namespace: str  # "" for what has none
    name: str

    @property
    def home(self) -> GroupKind:
        return self.group, self.kind

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"


class NotStored(LookupError):
    """There is no such object."""


class Exists(ValueError):
    """There is one of that name already."""


class Overtaken(ValueError):
    """The object is not the one, or not in the version, that the writer looked at. `field`: uid or resourceVersion."""

    def __init__(self, field: str, asked: str, found: str) -> None:
        super().__init__(f"{field} is {found}, not {asked}")
        self.field, self.asked, self.found = field, asked, found


class TooOld(ValueError):
    """The history no longer reaches back to that version."""


class Entry(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One version of one object."""

    key: Key
    object: Object
    version: int

    @functools.cached_property
    def body(self) -> bytes:
        """The JSON object without kind and apiVersion, which may be served in several versions."""
        return msgspec.json.encode({name: part for name, part in self.object.items() if name not in _SERVED_AS})

    @functools.cached_property
    def metadata(self) -> bytes:
        """Only the metadata, as `{"metadata":...}`."""
        return msgspec.json.encode({"metadata": self.object["metadata"]})


class Change(NamedTuple):
    type: str  # ADDED, MODIFIED, DELETED
    entry: Entry
    before: Entry | None
    by: str  # the field manager who did it


class Writer(NamedTuple):
    """Who writes, and on which terms. `manager` "" leaves managedFields alone."""

    manager: str = ""
    subresource: str = ""
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False


WORLD = Writer()


class Store:
    def __init__(self, clock: Callable[[], float], *, seed: int = 0, history: int = _HISTORY) -> None:
        self.version = 1
        self._clock = clock
        self._random = random.Random(seed)
        self._kinds: dict[GroupKind, dict[str, Entry]] = {}
        self._order: dict[GroupKind, list[str]] = {}
        self._history: dict[GroupKind, deque[Change]] = {}
        self._forgotten: dict[GroupKind, int] = {}
        self._length = history
        self._children: dict[str, set[Key]] = {}
        self._listeners: list[tuple[Callable[[Change], None], GroupKind | None]] = []
        self._unheard: deque[Change] = deque()
        self._is_spreading = False

    def find(self, key: Key) -> Entry | None:
        return self._kinds.get(key.home, {}).get(key.path)

    def get(self, key: Key) -> Entry:
        found = self.find(key)
        if found is None:
            raise NotStored(key)
        return found

    def entries(self, group: str, kind: str, namespace: str = "") -> list[Entry]:
        """All of a kind, or those in a namespace, in the order of their names."""
        found = self._kinds.get((group, kind), {})
        if (group, kind) not in self._order:
            self._order[group, kind] = sorted(found)
        listed = [found[path] for path in self._order[group, kind]]
        return [entry for entry in listed if entry.key.namespace == namespace] if namespace else listed

    def changes_since(self, group: str, kind: str, version: int) -> list[Change]:
        """What happened after that version, oldest first."""
        if version < self._forgotten.get((group, kind), 0):
            raise TooOld(f"the history of {kind} begins at {self._forgotten[group, kind]}, not at {version}")
        history = reversed(self._history.get((group, kind), ()))
        return list(itertools.takewhile(lambda change: change.entry.version > version, history))[::-1]

    def begin_history(self, group: str, kind: str) -> None:
        """A kind that is served from now on: nobody can watch it from earlier."""
        self._forgotten.setdefault((group, kind), self.version)

    def forget_history(self) -> None:
        """As etcd's compaction does: watches can go on only from now."""
        for gk, history in self._history.items():
            history.clear()
            self._forgotten[gk] = self.version

    def subscribe(self, listener: Callable[[Change], None], of: GroupKind | None = None) -> Callable[[], None]:
        """`listener` hears every change (of one kind), in order, until the function that is returned is called."""
        mine = (listener, of)
        self._listeners.append(mine)
        return lambda: self._listeners.remove(mine)

    def name(self, obj: Object) -> Object:
        """With a name of its own where only the beginning of one is given."""
        metadata = obj["metadata"]
        if metadata.get("name") or not metadata.get("generateName"):
            return obj
        suffix = "".join(self._random.choices(_SUFFIX, k=5))
        return {**obj, "metadata": {**metadata, "name": metadata["generateName"] + suffix}}

    def create(self, obj: Object, writer: Writer = WORLD) -> Entry:
        obj = self.name(obj)
        key = key_of(obj)
        if self.find(key) is not None:
            raise Exists(key)
        metadata = {name: part for name, part in obj["metadata"].items() if part is not None}
        uid = uuid.UUID(int=self._random.getrandbits(128), version=4)
        metadata |= {"uid": str(uid), "creationTimestamp": units.rfc3339(self._clock())}
        if key.home in _COUNTED or is_custom(key.group):
            metadata["generation"] = 1
        made = {**obj, "metadata": metadata}
        if writer.manager and "managedFields" not in metadata:
            self._own(made, {}, writer)
        return self._put(key, made, None, writer)

    def write(self, key: Key, obj: Object, writer: Writer = WORLD, *, is_owned: bool = False) -> Entry:
        """Put `obj` in the place of the object. `is_owned`: its managedFields are right as they are."""
        old = self.get(key)
        _guard(old, writer)
        before = old.object["metadata"]
        metadata = {name: part for name, part in obj["metadata"].items() if name not in _KEPT and part is not None}
        metadata |= {name: before[name] for name in (*_KEPT, "resourceVersion", "generation") if name in before}
        new = {**obj, "metadata": metadata}
        if "managedFields" not in metadata and "managedFields" in before:
            metadata["managedFields"] = before["managedFields"]
        if writer.manager and not is_owned:
            self._own(new, old.object, writer)
        if new == old.object:
            return old
        if "generation" in metadata and _is_asked_anew(key, old.object, new):
            metadata["generation"] = before["generation"] + 1
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            return self._remove(old, new, writer)
        return self._put(key, new, old, writer)

    def patch(self, key: Key, patch: Object, writer: Writer = WORLD) -> Entry:
        """A JSON merge patch."""
        return self.write(key, pointers.apply_merge_patch(self.get(key).object, patch), writer)

    def delete(self, key: Key, writer: Writer = WORLD, *, orphan: bool = False) -> Entry:
        """Delete it, or mark it as deleted while it has finalizers; and all that it owned, or `orphan`."""
        old = self.get(key)
        _guard(old, writer)
        metadata = old.object["metadata"]
        if metadata.get("finalizers"):
            if "deletionTimestamp" in metadata:
                return old
            marked = {**metadata, "deletionTimestamp": units.rfc3339(self._clock()), "deletionGracePeriodSeconds": 0}
            return self._put(key, {**old.object, "metadata": marked}, old, writer)
        if orphan and not writer.dry_run:
            self._children.pop(metadata["uid"], None)
        return self._remove(old, old.object, writer)

    def _own(self, new: Object, old: Object, writer: Writer) -> None:
        time, custom = units.rfc3339(self._clock()), is_custom(key_of(new).group)
        managed = ownership.update(old, new, writer.manager, time=time, custom=custom, subresource=writer.subresource)
        if managed:
            new["metadata"]["managedFields"] = managed
        else:
            new["metadata"].pop("managedFields", None)

    def _put(self, key: Key, obj: Object, before: Entry | None, writer: Writer) -> Entry:
        if writer.dry_run:
            return Entry(key, obj, self.version)
        entry = self._count_up(key, obj)
        self._kinds.setdefault(key.home, {})[key.path] = entry
        if before is None:
            self._order.pop(key.home, None)
        self._link(before, entry)
        self._spread(Change("MODIFIED" if before else "ADDED", entry, before, writer.manager))
        return entry

    def _remove(self, old: Entry, last: Object, writer: Writer) -> Entry:
        key = old.key
        if not writer.dry_run:
            del self._kinds[key.home][key.path]
            self._order.pop(key.home, None)
            self._link(old, None)
            self._spread(Change("DELETED", self._count_up(key, last), old, writer.manager))
            for child in list(self._left_behind(old)):
                if self.find(child) is not None:
                    self.delete(child)
        return Entry(key, last, old.version)

    def _count_up(self, key: Key, obj: Object) -> Entry:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        return Entry(key, {**obj, "metadata": metadata}, self.version)

    def _link(self, before: Entry | None, after: Entry | None) -> None:
        old, new = ({owner["uid"] for owner in _owners(entry)} if entry else set() for entry in (before, after))
        key = (after or before).key  # type: ignore[union-attr]  # one of the two is there
        for uid in old - new:
            self._children.get(uid, set()).discard(key)
        for uid in new - old:
            self._children.setdefault(uid, set()).add(key)

    def _left_behind(self, gone: Entry) -> Iterator[Key]:
        for child in self._children.pop(gone.object["metadata"]["uid"], ()):
            owners = _owners(entry) if (entry := self.find(child)) else []
            if not any(self._lives(child.namespace, owner) for owner in owners):
                yield child
        if gone.key.home == ("", "Namespace"):
            for kind in list(self._kinds):
                yield from [entry.key for entry in self.entries(*kind, namespace=gone.key.name)]

    def _lives(self, namespace: str, owner: Object) -> bool:
        group, kind = owner["apiVersion"].rpartition("/")[0], owner["kind"]
        found = [self.find(Key(group, kind, within, owner["name"])) for within in (namespace, "")]
        return any(entry is not None and entry.object["metadata"]["uid"] == owner["uid"] for entry in found)

    def _spread(self, change: Change) -> None:
        """One after the other, also when a listener writes: everybody hears of changes in their order."""
        home = change.entry.key.home
        history = self._history.setdefault(home, deque())
        history.append(change)
        if len(history) > self._length:
            self._forgotten[home] = history.popleft().entry.version
        self._unheard.append(change)
        if self._is_spreading:
            return
        self._is_spreading = True
        try:
            while self._unheard:
                news = self._unheard.popleft()
                for listener, of in list(self._listeners):
                    if of in (None, news.entry.key.home):
                        listener(news)
        finally:
            self._is_spreading = False


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return Key(obj["apiVersion"].rpartition("/")[0], obj["kind"], metadata.get("namespace") or "", metadata["name"])


def is_custom(group: str) -> bool:
    """Groups of CustomResourceDefinitions have a dot, and those with .k8s.io are the project's own."""
    return "." in group and not group.endswith(".k8s.io")


def _is_asked_anew(key: Key, old: Object, new: Object) -> bool:
    """Whether the generation grows: it counts what is asked of an object, not what is reported of it."""
    if key.kind == "Deployment" and old["metadata"].get("annotations") != new["metadata"].get("annotations"):
        return True  # as the real one does, because they are copied to its ReplicaSets
    names = (old.keys() | new.keys()) - {"metadata", "status", "apiVersion", "kind"}
    return any(old.get(name) != new.get(name) for name in names)


def _guard(entry: Entry, writer: Writer) -> None:
    metadata = entry.object["metadata"]
    for field, asked in (("uid", writer.uid), ("resourceVersion", writer.version)):
        if asked is not None and asked != metadata[field]:
            raise Overtaken(field, asked, metadata[field])


def _owners(entry: Entry) -> list[Object]:
    return entry.object["metadata"].get("ownerReferences") or []
