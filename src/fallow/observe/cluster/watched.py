"""The kinds of owners that are followed: how each is read, and what of its objects is kept.

In: a resource the server has, and its row in the table of kinds, if any. Out: a `WatchedKind`; `OwnerKinds`: all.
A kind outside the table that serves /scale is read where its definition says its replicas stand; where the definition
may not be read, its metadata is followed and the replicas are read from /scale, once per version of the object. Of any
other kind only metadata is read.
Of the objects that could own pods only those are kept that do, or that carry our marks: `want` names them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery, follow
from fallow.model import cluster, kinds, pointers
from fallow.observe.cluster import following, objects, owners, served

_CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")


class WatchedKind:
    """One kind of owner or companion. `following` is set once it is followed."""

    following: following.Following[objects.Seen]

    def __init__(
        self, resource: kube.Resource, row: kinds.Kind | None = None, pointer: str | None = None,
        reads: tuple[str, ...] = (), writes: tuple[str, ...] = (),
    ) -> None:
        """`row` None: a link that is never a workload we could pause. `pointer`: where replicas stand, if known."""
        self.resource = resource
        self.row = row
        self.pointer = pointer
        self.is_read_by_scale = row is not None and row.letter == "x" and pointer is None
        self.reads = row.reads if row is not None and not self.is_read_by_scale else reads
        self._writes = row.writes if row is not None and not self.is_read_by_scale else writes
        self._scales: dict[str, tuple[str, dict[str, Any]]] = {}

    def see(self, item: objects.Item) -> objects.Seen:
        return objects.see(item, self.resource, self.reads, self._writes)

    @property
    def store(self) -> Mapping[str, objects.Seen]:
        """By uid."""
        if not self.is_read_by_scale:
            return self.following.store
        return {uid: self._with_scale(seen) for uid, seen in self.following.store.items()}

    def _with_scale(self, seen: objects.Seen) -> objects.Seen:
        found = self._scales.get(seen.ref.uid)
        return msgspec.structs.replace(seen, body=found[1]) if found and found[0] == seen.resource_version else seen

    def has(self, ref: cluster.Ref) -> bool:
        if ref.uid:
            found = self.following.store.get(ref.uid)
            return found is not None and _is_at(found.ref, ref)
        return any(_is_at(seen.ref, ref) for seen in self.following.store.values())

    async def read(self, api: kube.Api, namespace: str, name: str) -> objects.Seen:
        """The object as it is now."""
        seen = self._see_one(await api.get(self.resource, self._within(namespace), name, kind=objects.Item))
        return msgspec.structs.replace(seen, body=await self._read_scale(api, seen)) if self.is_read_by_scale else seen

    def _see_one(self, item: objects.Item) -> objects.Seen:
        try:
            return self.see(item)
        except follow.ODD as problem:
            because = f"it cannot be understood: {type(problem).__name__} ({problem})"
            raise errors.BadAnswer(f"{self.resource.kind}/{item.metadata.name}: {because}") from problem

    def _within(self, namespace: str) -> str | None:
        return namespace if self.resource.namespaced else None

    async def read_scales(self, api: kube.Api) -> bool:
        """Read the replicas of whatever changed since, or could not be read; whether anything is known anew."""
        found = self.following.store.values()
        changed = [seen for seen in found if self._scales.get(seen.ref.uid, ("",))[0] != seen.resource_version]
        read = {seen.ref.uid: (seen.resource_version, await self._read_scale(api, seen)) for seen in changed}
        known = {uid: scale for uid, scale in read.items() if scale[1]}  # the others are asked for again
        kept = {uid: scale for uid, scale in self._scales.items() if uid in self.following.store}
        self._scales = kept | known
        return bool(known)

    async def _read_scale(self, api: kube.Api, seen: objects.Seen) -> dict[str, Any]:
        """{} where it cannot be read: the brain then finds that replicas are not known."""
        try:
            scale = await api.read_scale(self.resource, self._within(seen.ref.namespace), seen.ref.name)
            return pointers.prune(scale, ("/spec/replicas",))
        except errors.ClientError:
            return {}


def _is_at(found: cluster.Ref, ref: cluster.Ref) -> bool:
    """Where an owner of something in that namespace may stand, by that name."""
    return found.name == ref.name and found.namespace in (ref.namespace, "")


# A pod that owns others and holds no GPU itself. Pods are not followed for this: their owners never change.
POD = WatchedKind(kube.PODS, None)


async def watch_unknown(
    api: kube.Api, resource: kube.Resource, found: discovery.Discovery, *, is_other_version: bool
) -> WatchedKind:
    """A kind outside the table, or one of it in a version that we cannot read."""
    if is_other_version or not resource.scalable:
        return WatchedKind(resource, None)
    pointer = await _find_pointer(api, resource, found)
    row = kinds.generic(resource.group, resource.version, resource.kind, pointer)
    return WatchedKind(resource, row, pointer)


async def _find_pointer(api: kube.Api, resource: kube.Resource, found: discovery.Discovery) -> str | None:
    """Where replicas stand, by the definition; None if that may not be read, or there is none (aggregated servers)."""
    if "." not in resource.group:  # the server's own kinds: all have it there
        return "/spec/replicas"
    definitions = found.find(*_CRD)
    try:
        crd = await api.get(definitions, None, f"{resource.plural}.{resource.group}") if definitions else {}
    except errors.ClientError:
        return None
    for version in crd.get("spec", {}).get("versions", ()):
        if version.get("name") == resource.version:
            path = version.get("subresources", {}).get("scale", {}).get("specReplicasPath", "")
            return path.replace(".", "/") or None  # a JSON path without brackets, says the API: .spec.replicas
    return None


class OwnerKinds:
    """All kinds of owners that are followed: those of the table, and whatever else owns GPU pods."""

    def __init__(self, area: following.Area, starter: following.Starter, found: served.Served) -> None:
        self.watched: dict[owners.Key, WatchedKind] = {}
        self.version = 0  # grows when replicas changed that no watch shows
        self._area, self._starter, self._served = area, starter, found
        self._wanted = owners.Gaps(set(), set(), set(), set())

    def want(self, gaps: owners.Gaps) -> None:
        """From now on keep what the chains name."""
        self._wanted = gaps

    async def follow_table(self, called: str = "") -> None:
        """Kinds that no pod named, those called so ("": all): they may hold what we paused."""
        rows = (row.key for row in kinds.KINDS if self._served.find_row(row.key))
        await self.follow_all(key for key in rows if not called or key in self._served.find_called(called))

    async def follow_all(self, keys: Iterable[owners.Key]) -> None:
        """Those that are not followed yet, as far as the server has them."""
        await asyncio.gather(*(self.follow(key) for key in keys if key not in self.watched))

    def find_scalable(self, called: str) -> set[owners.Key]:
        """Kinds outside the table that serve /scale and are called so, with or without their group; "": all."""
        served = (each for each in self._served.found.resources if each.scalable and each.namespaced)
        keys = {(each.group, each.kind) for each in served}
        meant = self._served.find_called(called) if called else keys
        return {key for key in keys & meant if kinds.find(*key) is None}

    def drop_gone(self) -> list[following.Following[Any]]:
        """Kinds that the server has no longer; still to be ended."""
        gone = [key for key, kind in self.watched.items() if self._served.is_gone(key, kind.resource.version)]
        return [self.watched.pop(key).following for key in gone]

    async def follow(self, key: owners.Key) -> WatchedKind | None:
        """Follow one kind of owner; None if the server does not have it."""
        found = await self._choose(key)
        if found is None:
            return None
        found.following = self._area.follow(
            found.resource, objects.Item, lambda item: found.see(item) if self._is_wanted(key, item.metadata) else None,
            metadata_only=not found.reads,
        )
        self.watched[key] = found
        await self._starter.begin([found.following])
        return found

    async def _choose(self, key: owners.Key) -> WatchedKind | None:
        if (known := self._served.find_row(key)) is not None:
            return WatchedKind(*known)
        resource, is_other_version = self._served.found.find(*key), kinds.find(*key) is not None
        if resource is None:
            return None
        return await watch_unknown(self._area.api, resource, self._served.found, is_other_version=is_other_version)

    def _is_wanted(self, key: owners.Key, meta: objects.Meta) -> bool:
        if meta.uid in self._wanted.uids or objects.has_our_marks(meta.annotations):
            return True
        return bool(self._wanted.named) and (meta.namespace, *key, meta.name) in self._wanted.named

    async def read_scales(self) -> None:
        """Replica counts of kinds whose definition we may not read."""
        blind = [kind for kind in self.watched.values() if kind.is_read_by_scale]
        self.version += any([await kind.read_scales(self._area.api) for kind in blind])
