"""The kinds of owners that are followed: how each is read, and what of its objects is kept; and companions, arranged by what they steer.

In: a resource the server has, and its row in the table of kinds, if it has one. Out: `Watched`.
A kind outside the table that serves /scale is read where its definition says its replicas stand; where the definition may not be read,
its metadata is followed and the replicas are read from /scale, once per version of the object. Of any other kind only metadata is read.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model import cluster, kinds, pointers, selectors
from fallow.observe.cluster import following, objects, owners

_CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")


class Watched:
    """One kind of owner or companion. `following` is set once it is followed."""

    following: following.Following[objects.Seen]

    def __init__(
        self, resource: kube.Resource, row: kinds.Kind | None, *, pointer: str | None = None, reads: tuple[str, ...] = ()
    ) -> None:
        """`row` None: a link that is never a workload we could pause. `pointer`: of a kind outside the table, where its replicas stand."""
        self.resource = resource
        self.row = row
        self.pointer = pointer
        self.is_read_by_scale = row is not None and row.letter == "x" and pointer is None
        self.reads = row.reads if row is not None and not self.is_read_by_scale else reads
        self._scales: dict[str, tuple[str, dict[str, Any]]] = {}

    def see(self, item: objects.Item) -> objects.Seen:
        return objects.see(item, self.resource, self.reads)

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
            return ref.uid in self.following.store
        return any((seen.ref.namespace, seen.ref.name) == (ref.namespace, ref.name) for seen in self.following.store.values())

    async def read(self, api: kube.Api, namespace: str, name: str) -> objects.Seen:
        """The object as it is now."""
        place = namespace if self.resource.namespaced else None
        seen = self.see(await api.get(self.resource, place, name, kind=objects.Item))
        return msgspec.structs.replace(seen, body=await self._read_scale(api, seen)) if self.is_read_by_scale else seen

    async def read_scales(self, api: kube.Api) -> bool:
        """Read the replicas of whatever changed since; whether anything had."""
        changed = [seen for seen in self.following.store.values() if self._scales.get(seen.ref.uid, ("",))[0] != seen.resource_version]
        for seen in changed:
            self._scales[seen.ref.uid] = seen.resource_version, await self._read_scale(api, seen)
        self._scales = {uid: scale for uid, scale in self._scales.items() if uid in self.following.store}
        return bool(changed)

    async def _read_scale(self, api: kube.Api, seen: objects.Seen) -> dict[str, Any]:
        """{} where it may not be read: the brain then finds that replicas are not known."""
        place = seen.ref.namespace if self.resource.namespaced else None
        try:
            return pointers.prune(await api.read_scale(self.resource, place, seen.ref.name), ("/spec/replicas",))
        except errors.ClientError:
            return {}


# A pod that owns others and holds no GPU itself. Pods are not followed for this: their owners never change.
POD = Watched(kube.PODS, None)


async def watch_unknown(
    api: kube.Api, resource: kube.Resource, found: discovery.Discovery, *, is_other_version: bool
) -> Watched:
    """A kind outside the table, or one of it in a version that we cannot read."""
    if is_other_version or not resource.scalable:
        return Watched(resource, None)
    pointer = await _find_pointer(api, resource, found)
    return Watched(resource, kinds.generic(resource.group, resource.version, resource.kind, pointer), pointer=pointer)


async def _find_pointer(api: kube.Api, resource: kube.Resource, found: discovery.Discovery) -> str | None:
    """Where the replicas stand, by the kind's definition; None if that may not be read, or there is none (an aggregated server)."""
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


# ---- companions ---------------------------------------------------------------------------------------------------------------


def _as_companion(seen: objects.Seen) -> cluster.Companion:
    return cluster.Companion(seen.ref, seen.resource_version, seen.labels, seen.annotations, seen.body)


def by_target(found: Iterable[objects.Seen]) -> dict[owners.Steered, tuple[cluster.Companion, ...]]:
    index: dict[owners.Steered, tuple[cluster.Companion, ...]] = {}
    for seen in found:
        target = (seen.ref.namespace, *kinds.scale_target(seen.body))
        index[target] = (*index.get(target, ()), _as_companion(seen))
    return index


def by_job(found: Iterable[objects.Seen]) -> dict[str, tuple[cluster.Companion, ...]]:
    index: dict[str, tuple[cluster.Companion, ...]] = {}
    for seen in found:
        if uid := seen.labels.get(names.KUEUE_JOB_UID):
            index[uid] = (*index.get(uid, ()), _as_companion(seen))
    return index


def by_namespace(found: Iterable[objects.Seen]) -> dict[str, tuple[tuple[selectors.Selector, cluster.Companion], ...]]:
    index: dict[str, tuple[tuple[selectors.Selector, cluster.Companion], ...]] = {}
    for seen in found:
        selector = objects.selector_of(seen.body)
        if selector is not None:
            index[seen.ref.namespace] = (*index.get(seen.ref.namespace, ()), (selector, _as_companion(seen)))
    return index
