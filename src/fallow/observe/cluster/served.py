"""Which kinds the server has, and when it is time to ask again.

In: an Api. Out: `find` and its like, over what discovery said last; `is_due` says when that may be outdated: for a
while after any CustomResourceDefinition changed, or every so often where those may not be watched.
Invariant: what was found stays the best we know while the server does not answer.
"""

from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model import kinds
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import following, objects, owners

# A new CRD is served a little after it is there: how long after a change of CRDs we keep asking what the server has.
_SETTLING_SECONDS: Seconds = 300.0
# How often the server is asked what it has where we may not watch CRDs.
_REDISCOVERY_SECONDS: Seconds = 600.0

_CRD: owners.Key = ("apiextensions.k8s.io", "CustomResourceDefinition")


class Served:
    """The server's kinds. `version` grows with every time it was asked."""

    def __init__(self, area: following.Area) -> None:
        self.found = discovery.Discovery((), {})
        self.version = 0
        self.definitions: following.Following[str] | None = None
        self._area = area
        self._asked_at: Instant = 0.0
        self._settling_until: Instant = 0.0
        self._stamp: following.Stamp = ()

    async def ask(self, now: Instant) -> None:
        """Raises if the server cannot be asked."""
        self.found, self._asked_at = await discovery.discover(self._area.api), now
        self.version += 1

    def follow_definitions(self) -> list[following.Following[str]]:
        """The CRDs, from now on, if they are there and not followed yet."""
        resource = self.found.find(*_CRD)
        if resource is None or self.definitions is not None:
            return []
        self.definitions = self._area.follow(resource, objects.Bare, objects.name_of, metadata_only=True)
        return [self.definitions]

    def settle(self) -> None:
        """What definitions there are by now is known; only a change of them is news."""
        self._stamp = self.definitions.stamp if self.definitions else ()

    def is_due(self, now: Instant) -> bool:
        if self.definitions is None or self.definitions.why_blind():
            return now - self._asked_at >= _REDISCOVERY_SECONDS
        if self.definitions.stamp != self._stamp:
            self._stamp, self._settling_until = self.definitions.stamp, now + _SETTLING_SECONDS
        return now < self._settling_until

    def find(self, key: owners.Key, versions: tuple[str, ...]) -> kube.Resource | None:
        """The kind in a version that we can read."""
        found = (self.found.find_version(key[0], version, key[1]) for version in versions)
        return next((resource for resource in found if resource is not None), None)

    def find_called(self, text: str) -> frozenset[owners.Key]:
        """The server's kinds that people call so: by its own words for them, or by those of our table."""
        ours = {row.key for row in kinds.KINDS if kinds.is_called(row.key, text) and self.found.find(*row.key)}
        return self.found.find_called(text) | ours

    def is_gone(self, key: owners.Key, version: str) -> bool:
        """Does the server, of which we know all it has in that group, have the kind in that version no longer?"""
        is_known = self.version > 0 and not self.found.is_unavailable(key[0])
        return is_known and self.found.find_version(key[0], version, key[1]) is None

    def find_row(self, key: owners.Key) -> tuple[kube.Resource, kinds.Kind] | None:
        """A kind of the table, if the server has it so that we can read it."""
        row = kinds.find(*key)
        resource = self.find(key, row.versions) if row else None
        return (resource, row) if resource is not None and row is not None else None
