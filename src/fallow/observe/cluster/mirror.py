"""A local copy of what we follow in the cluster, slim: GPU pods, what owns them, and what else steers or protects them.

In: an Api. `list_all` fills it once (one-shot), `follow` keeps it equal to the server's by watches (daemon); `refresh` then looks up
whatever owner was named and not seen yet. Out: `pods`, `nodes`, `namespaces`, `policies`, `workloads(...)` and `missing`.
Of the objects that could own pods only those are kept that do, or that carry our marks: `_wanted` names them. Pods come first, then the
kinds they name, then the kinds those name; an object that turns out to be wanted after it was forgotten is read by itself.
Invariant: while nothing changed the same objects are handed out again, and no request is made. A kind that cannot be seen does not
stop the others; without pods there is nothing to say, and that raises.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery, follow
from fallow.model import cluster, kinds
from fallow.model.cluster import Trouble
from fallow.model.policies import idle
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import following, objects, owners, pods, watched

T = TypeVar("T", bound=follow.FollowedItem)
K = TypeVar("K")
V = TypeVar("V")

# How long a broken watch of pods may take to mend before the cycle is given up.
_PATIENCE_SECONDS: Seconds = 10.0
# A new CRD is served a little after it is there: how long after a change of CRDs we keep asking what the server has.
_SETTLING_SECONDS: Seconds = 300.0
# How often the server is asked what it has where we may not watch CRDs.
_REDISCOVERY_SECONDS: Seconds = 600.0
_RETRY_FORBIDDEN_SECONDS: Seconds = 600.0

_CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")
_CLAIM = ("resource.k8s.io", "ResourceClaim")
_POLICY = (names.GROUP, names.POLICY_KIND)
_HPA = ("autoscaling", "HorizontalPodAutoscaler")
_PDB = ("policy", "PodDisruptionBudget")
_SCALED_OBJECT = kinds.SCALED_OBJECT.key
_KUEUE = kinds.KUEUE_WORKLOAD.key
_COMPANIONS: Mapping[owners.Key, tuple[tuple[str, ...], tuple[str, ...]]] = {  # kind -> versions we can read, what is read
    _HPA: (("v2",), kinds.HPA_READS),
    _PDB: (("v1",), kinds.BUDGET_READS),
    _SCALED_OBJECT: (kinds.SCALED_OBJECT.versions, kinds.SCALED_OBJECT.reads),
    _KUEUE: (kinds.KUEUE_WORKLOAD.versions, kinds.KUEUE_WORKLOAD.reads),
}


class Mirror:
    """The copy, as an async context manager: leaving it ends all watches."""

    def __init__(
        self, api: kube.Api, *, watch_namespaces: Collection[str] = (), gpu_resources: Collection[str] = (), use_policies: bool = True
    ) -> None:
        """`gpu_resources`: names of further resources that are GPUs."""
        self.api = api
        self.reader = pods.PodReader(frozenset(gpu_resources))
        self._places = tuple(sorted(watch_namespaces)) or ("",)
        self._use_policies = use_policies
        self._starter = following.Starter()
        self._found = discovery.Discovery((), {})
        self._found_at: Instant = 0.0
        self._settling_until: Instant = 0.0
        self._crd_stamp: following.Stamp = ()
        self._wanted: set[str] = set()
        self._named: set[owners.Steered] = set()
        self._lost: dict[cluster.Ref, owners.Lost] = {}
        self._link_pods: dict[str, objects.Seen] = {}
        self._lookups = 0  # grows with every single look-up, so that what was made before is made again
        self._kinds: dict[owners.Key, watched.Watched] = {}
        self._companions: dict[owners.Key, watched.Watched] = {}
        self._memory: dict[str, tuple[Any, Any]] = {}
        self._pods = self._follow_pods()
        self._nodes = self._everywhere(kube.NODES, objects.NodeItem, objects.see_node)
        self._spaces = self._follow_namespaces()
        self._read_spaces: dict[str, cluster.Namespace] = {}
        self._claims: following.Following[objects.Claim] | None = None
        self._policies: following.Following[idle.IdlePolicy] | None = None
        self._crds: following.Following[str] | None = None

    async def __aenter__(self) -> Self:
        await self._starter.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._starter.__aexit__(kind, problem, trace)

    # ---- filling ----

    async def list_all(self, now: Instant) -> None:
        """Everything once, by lists; again, anew. Raises if the server cannot be asked, or gives no pods."""
        await self._fill(now)

    async def follow(self, now: Instant) -> None:
        """As list_all, and from then on by watches until the context is left. May be tried again after it raised."""
        self._starter.stays = True
        await self._fill(now)

    async def _fill(self, now: Instant) -> None:
        await self._discover(now)
        self._new_followings()
        await self._starter.begin([*self._all(), *((self._crds,) if self._crds else ())])
        self._require_pods()
        self._crd_stamp = self._crds.stamp if self._crds else ()
        await self._read_namespaces()
        await self._close_gaps(now)
        await self._follow_table()
        await self._close_gaps(now)

    async def refresh(self, now: Instant) -> None:
        """Make good what watches alone cannot: new owners, new kinds. Raises if the pods cannot be trusted to be current."""
        self._starter.check()
        await self._wait_for_pods()
        self._require_pods()
        if self._starter.stays and self._is_discovery_due(now):
            await self._discover_again(now)
        await self._read_namespaces()
        self._forget_lost(now)
        await self._close_gaps(now)

    async def _discover(self, now: Instant) -> None:
        self._found, self._found_at = await discovery.discover(self.api), now
        self._lookups += 1

    async def _discover_again(self, now: Instant) -> None:
        with contextlib.suppress(errors.ClientError):  # what we know of the server's kinds is still the best we have
            await self._discover(now)
        await self._starter.begin(self._new_followings())
        await self._follow_table()

    def _is_discovery_due(self, now: Instant) -> bool:
        if self._crds is None or self._crds.why_blind():
            return now - self._found_at >= _REDISCOVERY_SECONDS
        if self._crds.stamp != self._crd_stamp:
            self._crd_stamp, self._settling_until = self._crds.stamp, now + _SETTLING_SECONDS
        return now < self._settling_until

    async def _wait_for_pods(self) -> None:
        """A watch that breaks is mended in a second or so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS if self._starter.stays else 0):
                for follower in self._pods.followers.values():
                    while follower.problem is not None:
                        follower.changed.clear()
                        await follower.changed.wait()

    def _require_pods(self) -> None:
        for problem in self._pods.problems:
            raise problem
        if self._pods.unreadable:  # one of them may be the busy pod of a workload that looks idle
            raise errors.BadAnswer(f"{self._pods.unreadable} pods could not be read, so nothing can be said about any workload")

    # ---- what is followed ----

    def _everywhere(
        self, resource: kube.Resource, item: type[T], keep: Callable[[T], K | None], **options: Any
    ) -> following.Following[K]:
        """In the whole cluster, or for a namespaced resource in each namespace we were given."""
        places = self._places if resource.namespaced else ("",)
        followers = {
            place: follow.Follower(self.api, resource, item=item, keep=keep, namespace=place or None, **options) for place in places
        }
        return following.Following(resource, followers)

    def _follow_pods(self) -> following.Following[cluster.Pod]:
        return self._everywhere(kube.PODS, pods.PodItem, self.reader.read, field_selector=pods.ALIVE)

    def _follow_namespaces(self) -> following.Following[cluster.Namespace]:
        """Each by its name where we were given names: that can be granted without showing all others."""
        followers = {
            place: follow.Follower(
                self.api, kube.NAMESPACES, item=objects.Bare, keep=objects.see_namespace, metadata_only=True,
                field_selector=f"metadata.name={place}" if place else None,
            )
            for place in self._places
        }  # fmt: skip
        return following.Following(kube.NAMESPACES, followers)

    async def _read_namespaces(self) -> None:
        """A Role in a namespace may grant to read that namespace, but not to list or watch it: consent stands there, so it is read."""
        for place in filter(None, self._spaces.blind_places()):
            try:
                self._read_spaces[place] = objects.see_namespace(await self.api.get(kube.NAMESPACES, None, place, kind=objects.Bare))
            except errors.ClientError:
                self._read_spaces.pop(place, None)

    def _new_followings(self) -> list[following.Following[Any]]:
        """Companions, claims and policies that the server has and we do not follow yet."""
        new: list[following.Following[Any]] = []
        for key, (versions, reads) in _COMPANIONS.items():
            resource = self._find(key, versions)
            if resource is not None and key not in self._companions:
                found = self._companions[key] = watched.Watched(resource, None, reads=reads)
                found.following = self._everywhere(resource, objects.Item, found.see)
                new.append(found.following)
        if self._claims is None and (resource := self._found.find(*_CLAIM)):
            self._claims = self._everywhere(resource, objects.Item, objects.see_claim)
            new.append(self._claims)
        if self._use_policies and self._policies is None and (resource := self._found.find(*_POLICY)):
            self._policies = self._everywhere(resource, objects.Item, objects.see_policy)
            new.append(self._policies)
        if self._starter.stays and self._crds is None and (resource := self._found.find(*_CRD)):
            self._crds = self._everywhere(resource, objects.Bare, lambda item: item.metadata.name, metadata_only=True)
            new.append(self._crds)
        return new

    def _find(self, key: owners.Key, versions: tuple[str, ...]) -> kube.Resource | None:
        """The kind in a version that we can read."""
        found = (self._found.find_version(key[0], version, key[1]) for version in versions)
        return next((resource for resource in found if resource is not None), None)

    async def _follow_table(self) -> None:
        """Kinds that no pod named: they may hold what we paused."""
        keys = [(row.group, row.kind) for row in kinds.KINDS if self._find((row.group, row.kind), row.versions)]
        await asyncio.gather(*(self._follow_kind(key) for key in keys if key not in self._kinds))

    async def _follow_kind(self, key: owners.Key) -> watched.Watched | None:
        """Follow one kind of owner; None if the server does not have it."""
        row = kinds.find(*key)
        resource = self._find(key, row.versions) if row else None
        if resource is not None and row is not None:
            found = watched.Watched(resource, row)
        elif (resource := self._found.find(*key)) is not None:
            found = await watched.watch_unknown(self.api, resource, self._found, is_other_version=row is not None)
        else:
            return None
        found.following = self._everywhere(
            found.resource, objects.Item, lambda item: found.see(item) if self._is_wanted(key, item.metadata) else None,
            metadata_only=not found.reads,
        )  # fmt: skip
        self._kinds[key] = found
        await self._starter.begin([found.following])
        return found

    def _is_wanted(self, key: owners.Key, meta: objects.Meta) -> bool:
        if meta.uid in self._wanted or objects.has_our_marks(meta.annotations):
            return True
        return bool(self._named) and (meta.namespace, *key, meta.name) in self._named

    # ---- owners that were named and not seen ----

    async def _close_gaps(self, now: Instant) -> None:
        for _ in range(owners.MOST_OWNERS + 1):
            gaps = self._remember("gaps", self._stamp, self._find_gaps)
            if not gaps.missing:
                break
            await self.look_up(gaps.missing, now)
        await self._read_scales()

    def _forget_lost(self, now: Instant) -> None:
        kept = {ref: lost for ref, lost in self._lost.items() if lost.retry_at > now or self._is_hopeless(ref)}
        self._lookups += len(kept) < len(self._lost)
        self._lost = kept

    def _is_hopeless(self, ref: cluster.Ref) -> bool:
        """Is its kind still unseen, or still not there? Then asking for it again says nothing new."""
        kind = self._kinds.get(_kind_of(ref))
        if kind is not None:
            return kind.following.why_blind(ref.namespace) is not None
        return _kind_of(ref) != owners.POD and self._found.find(*_kind_of(ref)) is None

    def _find_gaps(self) -> owners.Gaps:
        gaps = owners.find_gaps(self.view())
        self._wanted, self._named = gaps.uids, gaps.named
        self._lost = {ref: lost for ref, lost in self._lost.items() if ref in gaps.lost}
        self._link_pods = {uid: link for uid, link in self._link_pods.items() if uid in gaps.uids}
        return gaps

    async def look_up(self, missing: Collection[cluster.Ref], now: Instant) -> None:
        """Get these: by a list where their kind is not followed yet, else one by one. Afterwards each is seen, or lost."""
        by_kind = itertools.groupby(sorted(missing, key=_kind_of), key=_kind_of)
        await asyncio.gather(*(self._look_up_kind(key, list(refs), now) for key, refs in by_kind))
        self._lookups += 1

    async def _look_up_kind(self, key: owners.Key, refs: list[cluster.Ref], now: Instant) -> None:
        if key == owners.POD:
            await asyncio.gather(*(self._fetch(watched.POD, ref, now) for ref in refs))
            return
        found = self._kinds.get(key)
        is_new = found is None
        if found is None:
            found = await self._follow_kind(key)
        if found is None:
            self._lose(refs, self._why_absent(key, now))
            return
        for ref in [ref for ref in refs if not found.has(ref)]:
            if problem := found.following.why_blind(ref.namespace):
                self._lose([ref], _lost_by(problem, ref, now, retry_at=now))
            elif is_new and not found.following.unreadable:  # the list just made knew it was wanted, and did not have it
                self._lose([ref], _gone(ref))
        await asyncio.gather(*(self._fetch(found, ref, now) for ref in refs if ref not in self._lost and not found.has(ref)))

    async def _fetch(self, kind: watched.Watched, ref: cluster.Ref, now: Instant) -> None:
        try:
            seen = await kind.read(self.api, ref.namespace, ref.name)
        except errors.ClientError as problem:
            retry_at = now + _RETRY_FORBIDDEN_SECONDS if isinstance(problem, errors.Forbidden) else now
            self._lose([ref], _lost_by(problem, ref, now, retry_at))
            return
        if ref.uid not in ("", seen.ref.uid):
            self._lose([ref], _gone(ref))
        elif kind is watched.POD:
            self._link_pods[seen.ref.uid] = seen
        else:
            kind.following.learn(ref.namespace, seen.ref.uid, seen)

    def _lose(self, refs: Iterable[cluster.Ref], lost: owners.Lost) -> None:
        self._lost.update(dict.fromkeys(refs, lost))

    def _why_absent(self, key: owners.Key, now: Instant) -> owners.Lost:
        name = f"{key[1]} ({key[0] or 'core'})"
        if self._found.is_unavailable(key[0]):
            return owners.Lost(Trouble.OwnerLookupFailed, f"the server does not say whether it has the kind {name}", now)
        return owners.Lost(Trouble.OwnerMissing, f"the server has no kind {name}", now)

    async def _read_scales(self) -> None:
        """Replica counts of kinds whose definition we may not read."""
        blind = [kind for kind in self._kinds.values() if kind.is_read_by_scale]
        changes = [await kind.read_scales(self.api) for kind in blind]
        self._lookups += any(changes)

    # ---- what is handed out ----

    @property
    def _stamp(self) -> tuple[Any, ...]:
        return self._lookups, tuple(self._read_spaces), *(each.stamp for each in self._all())

    def _all(self) -> list[following.Following[Any]]:
        """All that what is handed out is made of."""
        optional = (self._claims, self._policies)
        owning = (*self._companions.values(), *self._kinds.values())
        return [
            self._pods, self._nodes, self._spaces, *(each for each in optional if each is not None), *(each.following for each in owning)
        ]  # fmt: skip

    def _remember(self, name: str, key: Any, make: Callable[[], V]) -> V:
        """The same answer as last time as long as the key is the same."""
        found = self._memory.get(name)
        if found is None or found[0] != key:
            value = make()
            self._memory[name] = key, value
            return value
        return found[1]  # type: ignore[no-any-return]

    @property
    def pods(self) -> tuple[cluster.Pod, ...]:
        return self._remember("pods", (self._pods.stamp, self._claims and self._claims.stamp), self._assemble_pods)

    def _assemble_pods(self) -> tuple[cluster.Pod, ...]:
        return self.settle_claims(self._pods.store.values())

    def settle_claims(self, found: Iterable[cluster.Pod]) -> tuple[cluster.Pod, ...]:
        """The pods that hold GPUs, now that their claims are known; where those cannot be seen, the number stays unknown."""
        claims = self._claims.store.values() if self._claims else ()
        held = {(claim.namespace, claim.name): claim.gpus for claim in claims}
        settled = (msgspec.structs.replace(pod, claimed=pods.count_claimed(pod, held)) if pod.claims else pod for pod in found)
        return tuple(pod for pod in settled if pod.resources or pod.claimed != 0)

    @property
    def nodes(self) -> Mapping[str, cluster.Node]:
        return self._remember("nodes", self._nodes.stamp, lambda: {node.name: node for node in self._nodes.store.values()})

    @property
    def namespaces(self) -> Mapping[str, cluster.Namespace]:
        return self._remember("namespaces", (self._spaces.stamp, dict(self._read_spaces)), self._gather_namespaces)

    def _gather_namespaces(self) -> dict[str, cluster.Namespace]:
        return {**self._read_spaces, **{each.name: each for each in self._spaces.store.values()}}

    @property
    def policies(self) -> tuple[idle.IdlePolicy, ...]:
        if self._policies is None:
            return ()
        found = self._policies
        known = sorted(found.store.values(), key=lambda each: each.name)
        # By generation, which a written status does not change: our own reports are no news.
        return self._remember("policies", tuple((each.uid, each.generation) for each in known), lambda: tuple(known))

    def workloads(self, look_past: Mapping[str, frozenset[str]]) -> tuple[cluster.Workload, ...]:
        """`look_past` by namespace, see owners.resolve."""
        return self._remember("workloads", (self._stamp, look_past), lambda: owners.resolve(self.view(), look_past))

    @property
    def missing(self) -> tuple[cluster.Missing, ...]:
        known = [each for each in self._all() if each is not self._spaces or set(each.blind_places()) - set(self._read_spaces)]
        found = [cluster.Missing(_name(each.resource), str(problem)) for each in known for problem in each.problems]
        odd = [each for each in known if each.unreadable]
        found += [cluster.Missing(_name(each.resource), f"{each.unreadable} of them could not be read") for each in odd]
        found += [cluster.Missing(group, why) for group, why in self._found.unavailable.items()]
        return tuple(found)

    def find_resource(self, group: str, version: str, kind: str) -> kube.Resource | None:
        """Where the server serves a kind, if it does."""
        return self._found.find_version(group, version, kind)

    async def read_anew(self, ref: cluster.Ref) -> objects.Seen:
        """An owner or a companion as it is now."""
        kind = self._kinds.get(_kind_of(ref)) or self._companions.get(_kind_of(ref))
        if kind is None:
            raise errors.BadAnswer(f"{ref.short} is of a kind that is not followed")
        return await kind.read(self.api, ref.namespace, ref.name)

    def view(self) -> owners.View:
        return self._remember("view", self._stamp, lambda: self.view_with(self.pods, {}))

    def view_with(
        self, alive: tuple[cluster.Pod, ...], fresh: Mapping[owners.Key, Mapping[str, objects.Seen | None]]
    ) -> owners.View:
        """The mirror's view, but with these pods instead of its own, and with what was read anew (None: gone)."""
        stores = {key: _renew(kind.store, fresh.get(key)) for key, kind in self._kinds.items()}
        return owners.View(
            pods=alive,
            stores={**stores, owners.POD: self._link_pods},
            rows={key: kind.row for key, kind in self._kinds.items() if kind.row is not None},
            pointers={key: kind.pointer for key, kind in self._kinds.items()},
            lost=self._lost,
            hpas=self._index(_HPA, watched.by_target, fresh),
            scaled_objects=self._index(_SCALED_OBJECT, watched.by_target, fresh),
            kueue=self._index(_KUEUE, watched.by_job, fresh),
            queued=self._queued(),
            budgets=self._index(_PDB, watched.by_namespace, fresh),
            namespaces=self.namespaces,
            unseen_policies=self._why_unseen(_POLICY, self._policies) if self._use_policies else "",
            unseen_namespaces=str(self._spaces.why_blind() or ""),
            unseen_scalers=self._why_unseen(_SCALED_OBJECT, self._companion(_SCALED_OBJECT)),
            unseen_queues=self._why_unseen(_KUEUE, self._companion(_KUEUE)),
            unseen_budgets=self._why_unseen(_PDB, self._companion(_PDB)),
        )

    def _index(
        self,
        key: owners.Key,
        make: Callable[[Iterable[objects.Seen]], dict[Any, V]],
        fresh: Mapping[owners.Key, Mapping[str, objects.Seen | None]],
    ) -> dict[Any, V]:
        found = self._companions.get(key)
        if found is None:
            return {}
        if key in fresh:
            return make(_renew(found.store, fresh[key]).values())
        return self._remember(f"index of {key[1]}", found.following.stamp, lambda: make(found.store.values()))

    def _queued(self) -> tuple[tuple[str, cluster.Owner], ...]:
        found = self._companions.get(_KUEUE)
        paused = [seen for seen in found.store.values() if names.PAUSED_AT in seen.annotations] if found else []
        return tuple((seen.ref.namespace, seen.owner) for seen in paused if seen.owner is not None)

    def _companion(self, key: owners.Key) -> following.Following[Any] | None:
        found = self._companions.get(key)
        return found.following if found else None

    def _why_unseen(self, key: owners.Key, found: following.Following[Any] | None) -> str:
        if found is not None:
            return str(found.why_blind() or "")
        return f"the server of {key[0]} does not answer" if self._found.is_unavailable(key[0]) else ""


def _kind_of(ref: cluster.Ref) -> owners.Key:
    return ref.group, ref.kind


def _renew(store: Mapping[str, objects.Seen], fresh: Mapping[str, objects.Seen | None] | None) -> Mapping[str, objects.Seen]:
    return {uid: seen for uid, seen in {**store, **fresh}.items() if seen is not None} if fresh else store


def _name(resource: kube.Resource) -> str:
    """`deployments.apps`, as kubectl calls it."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _gone(ref: cluster.Ref) -> owners.Lost:
    return owners.Lost(Trouble.OwnerMissing, f"{ref.short} is named as an owner, and there is no such object any more")


def _lost_by(problem: errors.ClientError, ref: cluster.Ref, now: Instant, retry_at: Instant) -> owners.Lost:
    match problem:
        case errors.NotFound():
            return _gone(ref)
        case errors.Forbidden():
            return owners.Lost(Trouble.OwnerForbidden, f"{ref.short} may not be read: {problem}", retry_at)
        case _:
            return owners.Lost(Trouble.OwnerLookupFailed, f"{ref.short} could not be read: {problem}", retry_at)
