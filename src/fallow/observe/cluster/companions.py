"""What else has a say over workloads: autoscalers, queues, disruption budgets, claims and our policies.

In: an Area and what the server has. Out: each kind followed as soon as it is there; companions by what they steer.
Invariant: a kind that is there and cannot be seen is unseen (`rest`), never taken for one that is not there.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from fallow import names
from fallow.model import cluster, kinds, selectors
from fallow.model.seen import ABSENT, Rest, Unseen
from fallow.observe.cluster import following, objects, owners, served, watched

K = TypeVar("K")
V = TypeVar("V")

Fresh: TypeAlias = Mapping[owners.Key, Mapping[str, objects.Seen | None]]  # by kind and uid, read anew; None: gone

CLAIM: owners.Key = ("resource.k8s.io", "ResourceClaim")
POLICY: owners.Key = (names.GROUP, names.POLICY_KIND)
HPA: owners.Key = ("autoscaling", "HorizontalPodAutoscaler")
PDB: owners.Key = ("policy", "PodDisruptionBudget")
SCALED_OBJECT: owners.Key = kinds.SCALED_OBJECT.key
KUEUE: owners.Key = kinds.KUEUE_WORKLOAD.key
_STEERING: Mapping[owners.Key, tuple[tuple[str, ...], ...]] = {  # versions we can read, what is read, what is written
    HPA: (("v2",), kinds.HPA_READS, ()),
    PDB: (("v1",), kinds.BUDGET_READS, ()),
    **{row.key: (row.versions, row.reads, row.writes) for row in (kinds.SCALED_OBJECT, kinds.KUEUE_WORKLOAD)},
}


class Companions:
    def __init__(self, area: following.Area, found: served.Served, *, use_policies: bool) -> None:
        self.followings: dict[owners.Key, following.Following[Any]] = {}
        self.watched: dict[owners.Key, watched.WatchedKind] = {}  # those that steer workloads
        self._area, self._served = area, found
        self._plain: dict[owners.Key, Callable[[objects.Item], Any]] = {CLAIM: objects.see_claim}
        if use_policies:
            self._plain[POLICY] = objects.see_policy

    def follow_new(self) -> list[following.Following[Any]]:
        """What the server has and we do not follow yet; still to be begun."""
        new: dict[owners.Key, following.Following[Any]] = {}
        for key, see in self._plain.items():
            resource = self._served.found.find(*key)
            if resource is not None and key not in self.followings:
                new[key] = self._area.follow(resource, objects.Item, see)
        for key, (versions, reads, writes) in _STEERING.items():
            resource = self._served.find(key, versions)
            if resource is not None and key not in self.followings:
                kind = self.watched[key] = watched.WatchedKind(resource, None, reads=reads, writes=writes)
                kind.following = new[key] = self._area.follow(resource, objects.Item, kind.see)
        self.followings |= new
        return list(new.values())

    def drop_gone(self) -> list[following.Following[Any]]:
        """Those that the server has no longer; still to be ended. Where it did not say, they stay, and are blind."""
        gone = [key for key, one in self.followings.items() if self._served.is_gone(key, one.resource.version)]
        for key in gone:
            self.watched.pop(key, None)
        return [self.followings.pop(key) for key in gone]

    def stamp(self, key: owners.Key) -> following.Stamp:
        return self.followings[key].stamp if key in self.followings else ()

    def store(self, key: owners.Key) -> Mapping[str, Any]:
        """By uid."""
        return self.followings[key].store if key in self.followings else {}

    def claims(self) -> dict[tuple[str, str], objects.Claim]:
        """By namespace and name."""
        return {(claim.namespace, claim.name): claim for claim in self.store(CLAIM).values()}

    def rest(self, key: owners.Key) -> Rest:
        """What all that is not in its store is: surely not there, or not seen."""
        if key in self.followings:
            return self.followings[key].rest
        is_wanted = key in _STEERING or key in self._plain
        if is_wanted and self._served.found.is_unavailable(key[0]):
            return Unseen(f"the server of {key[0]} does not answer")
        why = self.why_unread(key)
        return Unseen(why) if why else ABSENT

    def why_unread(self, key: owners.Key) -> str:
        """Why what the server has of a kind cannot be followed: it has no version that we know. "": it can, or there is
        no such kind."""
        if key not in _STEERING or key in self.followings:
            return ""
        served, versions = self._served.found.find(*key), _STEERING[key][0]
        if served is None:
            return ""
        return f"they are served as {served.version}, and we can read {' and '.join(versions)} only"

    @property
    def unread(self) -> dict[str, str]:
        """Those, by group and kind, and why."""
        found = {f"{kind} ({group})": self.why_unread((group, kind)) for group, kind in _STEERING}
        return {name: why for name, why in found.items() if why}

    def find_queued(self) -> tuple[owners.Named, ...]:
        """Namespace and job of each Kueue Workload that carries our record."""
        paused = [seen for seen in self.store(KUEUE).values() if names.PAUSED_AT in seen.annotations]
        return tuple((seen.ref.namespace, seen.owner) for seen in paused if seen.owner is not None)


def renew(store: Mapping[str, objects.Seen], fresh: Fresh, key: owners.Key) -> Mapping[str, objects.Seen]:
    """The store of a kind with what was read anew in place of what it has."""
    if key not in fresh:
        return store
    return {uid: seen for uid, seen in {**store, **fresh[key]}.items() if seen is not None}


def by_target(found: Iterable[objects.Seen]) -> dict[owners.Steered, tuple[cluster.Companion, ...]]:
    return _index(((seen.ref.namespace, *kinds.scale_target(seen.body)), _as_companion(seen)) for seen in found)


def by_job(found: Iterable[objects.Seen]) -> dict[tuple[str, str], tuple[cluster.Companion, ...]]:
    """By namespace, too: anybody may write another's uid into a label, in a namespace of his own."""
    named = ((seen.labels.get(names.KUEUE_JOB_UID), seen) for seen in found)
    return _index(((seen.ref.namespace, uid), _as_companion(seen)) for uid, seen in named if uid)


def by_namespace(found: Iterable[objects.Seen]) -> dict[str, tuple[tuple[selectors.Selector, cluster.Companion], ...]]:
    selecting = ((objects.selector_of(seen.body), seen) for seen in found)
    return _index((seen.ref.namespace, (one, _as_companion(seen))) for one, seen in selecting if one is not None)


def _index(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    index: dict[K, tuple[V, ...]] = {}
    for key, value in pairs:
        index[key] = (*index.get(key, ()), value)
    return index


def _as_companion(seen: objects.Seen) -> cluster.Companion:
    return cluster.Companion(
        seen.ref, seen.resource_version, seen.labels, seen.annotations, seen.body, seen.writer, seen.is_ours
    )
