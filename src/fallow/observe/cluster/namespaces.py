"""The namespaces, with what they consent to: followed, or where that is not granted, each read by itself.

In: an Area. Out: `register`, by name.
Invariant: where we were given names each is followed by its name: that can be granted without showing all others.
"""

import contextlib

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import follow
from fallow.model import cluster
from fallow.model.seen import ABSENT, Register
from fallow.observe.cluster import following, objects


class Namespaces:
    def __init__(self, area: following.Area) -> None:
        self.following: following.Following[cluster.Namespace] = following.Following(
            kube.NAMESPACES, {name: _follow(area.api, name) for name in area.namespaces}
        )
        self.read: dict[str, cluster.Namespace] = {}  # those read by themselves
        self._api = area.api

    async def read_singly(self) -> None:
        """A Role in a namespace may grant to read that namespace, but not to list or watch it: consent stands there."""
        found: dict[str, cluster.Namespace] = {}
        for name in filter(None, self.following.blind_namespaces()):
            with contextlib.suppress(errors.ClientError):
                found[name] = objects.see_namespace(await self._api.get(kube.NAMESPACES, None, name, kind=objects.Bare))
        self.read = found

    @property
    def register(self) -> Register[cluster.Namespace]:
        """By name."""
        known = {**self.read, **{each.name: each for each in self.following.store.values()}}
        return Register(known, ABSENT if self.are_all_read and not self.following.unreadable else self.following.rest)

    @property
    def are_all_read(self) -> bool:
        """Is every namespace that cannot be followed read instead?"""
        return self.read.keys() >= set(self.following.blind_namespaces())


def _follow(api: kube.Api, name: str) -> follow.Follower[objects.Bare, cluster.Namespace]:
    return follow.Follower(
        api, kube.NAMESPACES, item=objects.Bare, keep=objects.see_namespace, metadata_only=True,
        field_selector=f"metadata.name={name}" if name else None,
    )
