"""Budgets and attributions as they are in the cluster, kept equal to the server's by list and watch; whose a pod is.

In: an Api. Out: `budgets`, `attributions`: known, absent or unseen; for the admission webhook `namespaces`, and
`read_above`: the labels of a pod's topmost owner; for the story `find_traits`, of pods that are mirrored.
Invariant: a kind that the server does not have is absent; one that cannot be seen is unseen. No number goes through a
float.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery, follow
from fallow.model import cluster, kinds
from fallow.model.policies import attribution_crd, budget, budget_crd, scope_crd
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen, several
from fallow.model.sharing import TopOwner
from fallow.model.units import Seconds

STALE_AFTER: Seconds = 60.0  # since the server was last heard of, while it cannot be followed
SILENT_AFTER: Seconds = 150.0  # ... while it seems to be: bookmarks come once a minute
_NOTHING = msgspec.Raw(b"null")
_REMEMBERED: Seconds = 60.0  # the labels of an owner: for so long
_MOST_REMEMBERED = 5000
_MOST_OWNERS = 8  # above each other
_DISCOVERED: Seconds = 60.0  # so long no kind is looked for anew: anybody may name any kind as the owner of a pod
_FAILED: Seconds = 5.0  # ... after a look that failed

_OURS = (f"{names.GROUP}/", f"{names.SEED_GROUP}/")

K = TypeVar("K")


class SpendMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    generation: int = 0
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None


class SpendItem(msgspec.Struct, frozen=True):
    """A CostBudget or CostAttribution, half decoded."""

    metadata: SpendMeta = SpendMeta()
    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING

    def whole(self) -> dict[str, Any]:
        """As the readers of the resources take it."""
        return {
            "metadata": msgspec.to_builtins(self.metadata), "spec": scope_crd.decode(self.spec),
            "status": scope_crd.decode(self.status),
        }


class PlaceMeta(msgspec.Struct, frozen=True):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PlaceItem(msgspec.Struct, frozen=True):
    metadata: PlaceMeta = PlaceMeta()


class Watching(Generic[K]):
    """One resource, followed."""

    def __init__(
        self, api: kube.Api, resource: kube.Resource, item: type[Any], keep: Callable[[Any], K | None], *,
        metadata_only: bool = False, only: tuple[str, str] | None = None, field_selector: str | None = None,
    ) -> None:
        """`keep`: None for what need not be remembered. `only`: namespace and name of the one that is followed."""
        self.follower: follow.Follower[Any, K] = follow.Follower(
            api, resource, item=item, keep=keep, metadata_only=metadata_only, namespace=only[0] if only else None,
            field_selector=f"metadata.name={only[1]}" if only else field_selector,
        )
        self._resource = resource
        self._made: tuple[int, Input[tuple[K, ...]]] | None = None  # of which generation, and what it was

    async def run(self) -> None:
        await self.follower.run()

    async def list_once(self) -> None:
        """Where the server does not have it, there is none; whatever else goes wrong is in what is seen."""
        try:
            await self.follower.list_once()
        except errors.ClientError as problem:
            self.follower.problem = problem

    @property
    def seen(self) -> Input[tuple[K, ...]]:
        if self.follower.synced and not self.follower.unreadable:
            if self._made is None or self._made[0] != self.follower.generation:
                self._made = self.follower.generation, several(tuple(self.follower.store.values()))
            return self._made[1]
        problem = self.follower.problem
        if isinstance(problem, errors.NotFound):
            return ABSENT
        odd = f"{self.follower.unreadable} of them cannot be read" if self.follower.unreadable else "not seen yet"
        return Unseen(f"{self._resource.plural}: {problem or odd}")


def find_stale(watched: Iterable[Watching[Any]], monotonic: Seconds) -> str:
    """Why what is seen of them is too old to rest on; "": it is not."""
    for each in watched:
        follower = each.follower
        if follower.synced_at is None or isinstance(follower.problem, errors.NotFound):  # unseen, or none
            continue
        age = monotonic - follower.synced_at
        broken = follower.problem is not None or not follower.synced
        if age > (STALE_AFTER if broken else SILENT_AFTER):
            why = str(follower.problem) if follower.problem is not None else "it is silent"
            return f"the API server was last heard of {age:.0f} s ago: {why}"
    return ""


def watch_budgets(api: kube.Api) -> Watching[budget.CostBudget]:
    return Watching(api, kube.COST_BUDGETS, SpendItem, lambda item: budget_crd.parse(item.whole()))


def watch_attributions(api: kube.Api) -> Watching[budget.CostAttribution]:
    return Watching(api, kube.COST_ATTRIBUTIONS, SpendItem, lambda item: attribution_crd.parse(item.whole()))


def watch_namespaces(api: kube.Api) -> Watching[cluster.Namespace]:
    return Watching(api, kube.NAMESPACES, PlaceItem, _see_namespace, metadata_only=True)


def _see_namespace(item: PlaceItem) -> cluster.Namespace:
    said = {key: text for key, text in (item.metadata.annotations or {}).items() if key.startswith(_OURS)}
    return cluster.Namespace(item.metadata.name, item.metadata.labels or {}, said)


async def read_namespace(api: kube.Api, name: str) -> Input[cluster.Namespace]:
    """As it is now."""
    try:
        return Known(_see_namespace(await api.get(kube.NAMESPACES, None, name, kind=PlaceItem)))
    except errors.NotFound:
        return ABSENT
    except errors.ClientError as problem:
        return Unseen(str(problem))


async def read_budget(api: kube.Api, name: str) -> budget.CostBudget:
    """As it is now."""
    return budget_crd.parse((await api.get(kube.COST_BUDGETS, None, name, kind=SpendItem)).whole())


async def list_budgets(api: kube.Api) -> tuple[budget.CostBudget, ...]:
    pages = api.list_pages(kube.COST_BUDGETS, item=SpendItem)
    found = [budget_crd.parse(item.whole()) async for page in pages for item in page.items]
    return tuple(sorted(found, key=lambda each: each.name))


class Places:
    """The namespaces by name, made anew when they changed."""

    def __init__(self, watching: Watching[cluster.Namespace]) -> None:
        self._watching = watching
        self._made: tuple[Input[tuple[cluster.Namespace, ...]], Register[cluster.Namespace]] | None = None

    @property
    def register(self) -> Register[cluster.Namespace]:
        seen = self._watching.seen
        if self._made is None or self._made[0] is not seen:
            known = {each.name: each for each in seen.value} if isinstance(seen, Known) else {}
            self._made = seen, Register(known, seen if isinstance(seen, Unseen) else ABSENT)
        return self._made[1]


class OwnerRef(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class OwnerMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerRef] | None = None


class OwnerItem(msgspec.Struct, frozen=True):
    metadata: OwnerMeta = OwnerMeta()


class TopOwners:
    """Who stands above a pod, with labels and our annotations: asked of the server, and remembered for a minute."""

    def __init__(self, api: kube.Api, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._monotonic = api, monotonic
        self._known: dict[tuple[str, str], tuple[float, Input[TopOwner]]] = {}
        self._served = discovery.Discovery((), {})
        self._discovery: asyncio.Future[discovery.Discovery] | None = None
        self._discovered_at = 0.0

    async def read_above(self, namespace: str, references: list[OwnerRef] | None) -> Input[Mapping[str, str]]:
        """Its labels."""
        found = await self.read_top(namespace, references)
        return Known(found.value.labels) if isinstance(found, Known) else found

    async def read_top(self, namespace: str, references: list[OwnerRef] | None) -> Input[TopOwner]:
        owner = _controller(references)
        if owner is None:
            return ABSENT
        key, now = (namespace, owner.uid), self._monotonic()
        known = self._known.get(key)
        if known is None or now - known[0] > _REMEMBERED:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[key] = now, await self._climb(namespace, owner)
        return known[1]

    async def _climb(self, namespace: str, owner: OwnerRef) -> Input[TopOwner]:
        below = list[tuple[OwnerRef, OwnerMeta]]()
        try:
            for _ in range(_MOST_OWNERS):
                found = await self._read(namespace, owner)
                above = _controller(found.metadata.owner_references)
                if above is None:
                    return Known(_see_top(owner, found.metadata, below))
                below.append((owner, found.metadata))
                owner = above
        except errors.ClientError as problem:
            return Unseen(f"{owner.kind}/{owner.name}: {problem}")
        return Unseen(f"{owner.kind}/{owner.name}: too many owners above each other")

    async def _read(self, namespace: str, owner: OwnerRef) -> OwnerItem:
        group, _, version = owner.api_version.rpartition("/")
        resource = await self._find_kind(group, version, owner.kind)
        if resource is None:
            raise errors.NotFound(404, "the API server does not know that kind")
        found = await self._api.get(resource, namespace if resource.namespaced else None, owner.name, kind=OwnerItem)
        if found.metadata.uid != owner.uid:  # tenants write ownerReferences
            raise errors.NotFound(404, "another object has that name")
        return found

    async def _find_kind(self, group: str, version: str, kind: str) -> kube.Resource | None:
        """By one look for all who wait for it; it goes on where one of them has no more time."""
        if (known := self._served.find_version(group, version, kind)) is not None:
            return known
        if self._discovery is None or self._may_discover(self._discovery):
            self._discovered_at = self._monotonic()
            self._discovery = asyncio.ensure_future(discovery.discover(self._api))
        self._served = await asyncio.shield(self._discovery)
        return self._served.find_version(group, version, kind)

    def _may_discover(self, last: asyncio.Future[discovery.Discovery]) -> bool:
        age = self._monotonic() - self._discovered_at
        return last.done() and age > (_FAILED if last.cancelled() or last.exception() else _DISCOVERED)


def _see_top(owner: OwnerRef, meta: OwnerMeta, below: Sequence[tuple[OwnerRef, OwnerMeta]]) -> TopOwner:
    """A kind whose pods restart when it is marked has its back-off on the object below that carries its marks; what
    only makes workloads, as a CronJob, has that of a workload below it. Who else copies marks down is not heeded."""
    kept = {key: text for key, text in (meta.annotations or {}).items() if key.startswith(_OURS)}
    row = kinds.find(_group(owner), owner.kind)
    carries = row.marks_on if row is not None else None
    may_be_below, upper = True, owner
    for link, lower in reversed(below):
        said, kind = lower.annotations or {}, (_group(link), link.kind)
        may_be_below = may_be_below and kinds.may_be_passed((_group(upper), upper.kind))
        if (may_be_below or kind == carries) and names.BACKOFF_UNTIL in said:
            kept = {**{key: said[key] for key in names.BACKOFF_MARKS if key in said}, **kept}
        upper = link
    return TopOwner(
        group=_group(owner), kind=owner.kind, name=owner.name, uid=owner.uid,
        labels=meta.labels or {}, annotations=kept,
    )


def _group(owner: OwnerRef) -> str:
    return owner.api_version.rpartition("/")[0]


def _controller(references: list[OwnerRef] | None) -> OwnerRef | None:
    return next((each for each in references or () if each.controller), None)


def find_traits(
    pods: Sequence[cluster.Pod], workloads: Sequence[cluster.Workload], namespaces: Register[cluster.Namespace]
) -> tuple[tuple[cluster.Pod, budget.PodTraits], ...]:
    """Whose each pod is. A pod that belongs to no workload that is known, and has an owner, may be anybody's."""
    tops: dict[int, Mapping[str, str]] = {place: each.labels for each in workloads for place in each.pods}
    made = []
    for place, pod in enumerate(pods):
        above: Input[Mapping[str, str]] = Known(tops[place]) if place in tops else ABSENT
        if place not in tops and pod.owner is not None:
            above = Unseen("its owners are not known")
        found = namespaces.find(pod.namespace)
        around = Known(found.value.labels) if isinstance(found, Known) else found
        made.append((pod, budget.PodTraits(namespace=pod.namespace, labels=pod.labels, above=above, around=around)))
    return tuple(made)
