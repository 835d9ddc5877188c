"""A local copy of what we follow in the cluster, slim: GPU pods, what owns them, and what else steers or protects them.

In: an Api. `list_all` fills it once (one-shot), `follow` keeps it equal to the server's by watches (daemon); `refresh`
then looks up whatever owner was named and not seen yet. Out: `contents`, with versions (contents.py), and `capacity`
where that is counted.
Pods come first, then the kinds they name, then the kinds those name; an object that turns out to be wanted after it was
forgotten is read by itself (lookup.py).
Invariant: while nothing changed no request is made. A kind that cannot be seen does not stop the others; without pods
there is nothing to say, and that raises.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any, Self

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model import cluster
from fallow.model.policies import idle
from fallow.model.seen import Input, Register
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import companions, contents, following, hosts, lookup, namespaces, objects, owners, pods
from fallow.observe.cluster import served as serving
from fallow.observe.cluster import watched as watching
from fallow.observe.usage import trust

# How long a broken watch of pods may take to mend before the cycle is given up.
_PATIENCE_SECONDS: Seconds = 10.0


class Mirror:
    """The copy, as an async context manager: leaving it ends all watches."""

    def __init__(
        self, api: kube.Api, *, watch_namespaces: Collection[str] = (), gpu_resources: Collection[str] = (),
        use_policies: bool = True, sees_nodes: bool = True, counts_capacity: bool = False,
        belief: trust.Belief | None = None, kept_kinds: Callable[[], Collection[owners.Key]] = tuple,
        clock: Callable[[], Instant] | None = None,
    ) -> None:
        """`gpu_resources`: names of further resources that are GPUs. `sees_nodes`: whoever measures nothing needs none.
        `counts_capacity`: keep pods without GPUs, too. `belief`: whose metrics count; None = none are looked at.
        `kept_kinds`: outside the table, of which we may have paused something. `clock`: pods that go are remembered
        with the time, for who asks (`contents.take_departures`)."""
        self.api, self._kept_kinds = api, kept_kinds
        has_exporters = belief.may_be_in if belief else lambda _: False
        self.reader = pods.PodReader(frozenset(gpu_resources), has_exporters)
        self._starter, self._refreshing = following.Starter(), asyncio.Lock()
        area = following.Area(api, tuple(sorted(watch_namespaces)) or ("",))
        served = serving.Served(area)
        kinds = watching.OwnerKinds(area, self._starter, served)
        self._parts = contents.Parts(
            served=served, kinds=kinds, namespaces=namespaces.Namespaces(area),
            hosts=hosts.Hosts(area, self.reader, counts=counts_capacity, sees_nodes=sees_nodes, clock=clock),
            lookup=lookup.Lookup(api, kinds, served),
            companions=companions.Companions(area, served, use_policies=use_policies), reader=self.reader,
        )
        self.contents = contents.Contents(self._parts, belief)

    async def __aenter__(self) -> Self:
        await self._starter.__aenter__()
        return self

    async def __aexit__(self, *why: Any) -> None:
        await self._starter.__aexit__(*why)

    async def list_all(self, now: Instant, called: str = "") -> None:
        """Everything once, by lists; again, anew. Raises if the server cannot be asked, or gives no pods.

        `called`: of the kinds that no pod names, only those that people call so; whoever asks for one thing needs no
        other."""
        await self._parts.served.ask(now)
        self._follow_new()
        definitions = self._parts.served.definitions
        await self._starter.begin([*self._parts.followings(), *((definitions,) if definitions else ())])
        self._parts.hosts.require_pods()
        self._parts.served.settle()
        await self._parts.hosts.identify()
        await self._parts.namespaces.read_singly()
        await self._close_gaps(now)
        await self._parts.kinds.follow_table(called)
        await self._parts.kinds.follow_all(self._kept_kinds())
        await self._close_gaps(now)

    async def look_for(self, called: str, now: Instant) -> None:
        """Look at the kinds called so that no pod named, too ("": at all): what is paused may be the last of its kind.

        For people who ask for it: a daemon keeps a list of what it paused.
        """
        await self._parts.kinds.follow_all(self._parts.kinds.find_scalable(called))
        await self._close_gaps(now)

    async def follow(self, now: Instant) -> None:
        """As list_all, and from then on by watches until the context is left. May be tried again after it raised."""
        self._starter.stays = True
        await self.list_all(now)

    async def refresh(self, now: Instant) -> None:
        """Make good what watches alone cannot: new owners, new kinds. Raises if pods may not be current.

        Several stories share one mirror: whoever comes second finds most of it done.
        """
        async with self._refreshing:
            await self._refresh(now)

    async def _refresh(self, now: Instant) -> None:
        self._starter.check()
        await self._starter.settle(_PATIENCE_SECONDS)
        await self._parts.hosts.wait_for_pods(_PATIENCE_SECONDS if self._starter.stays else 0)
        self._parts.hosts.require_pods()
        if self._starter.stays and (self._parts.served.is_due(now) or self._misses_kinds()):
            await self._discover_again(now)
        await self._parts.namespaces.read_singly()
        await self._parts.kinds.follow_all(self._kept_kinds())
        self._parts.lookup.retry(now)
        await self._close_gaps(now)

    async def _discover_again(self, now: Instant) -> None:
        with contextlib.suppress(errors.ClientError):  # what we know of the server's kinds is still the best we have
            await self._parts.served.ask(now)
        for gone in (*self._parts.companions.drop_gone(), *self._parts.kinds.drop_gone()):
            await self._starter.end(gone)
        await self._starter.begin(self._follow_new())
        await self._parts.kinds.follow_table()

    def _misses_kinds(self) -> bool:
        """Is a kind that we follow said not to be there? It was taken away, or its server is down."""
        return any(isinstance(each.why_blind(), errors.NotFound) for each in self._parts.followings())

    def _follow_new(self) -> list[following.Following[Any]]:
        """What the server has and we do not follow yet; only who stays wants to know of new kinds."""
        new = self._parts.companions.follow_new()
        return [*new, *self._parts.served.follow_definitions()] if self._starter.stays else new

    async def _close_gaps(self, now: Instant) -> None:
        """Until every owner that is named is seen or lost."""
        for _ in range(owners.MOST_OWNERS + 1):
            gaps = self.contents.gaps
            self._parts.kinds.want(gaps)
            self._parts.lookup.keep(gaps)
            if not gaps.missing:
                break
            await self.look_up(gaps.missing, now)
        await self._parts.kinds.read_scales()

    async def look_up(self, missing: Collection[cluster.Ref], now: Instant) -> None:
        """By a list where a kind is not followed yet, else one by one. Afterwards each is seen, or lost."""
        await self._parts.lookup.look_up(missing, now)

    async def read_anew(self, ref: cluster.Ref) -> objects.Seen:
        """An owner or a companion as it is now."""
        key = owners.key_of(ref)
        kind = self._parts.kinds.watched.get(key) or self._parts.companions.watched.get(key)
        if kind is None:
            raise errors.BadAnswer(f"{ref.short} is of a kind that is not followed")
        return await kind.read(self.api, ref.namespace, ref.name)

    def find_kinds(self, called: str) -> frozenset[owners.Key]:
        """The server's kinds that people call so."""
        return self._parts.served.find_called(called)

    @property
    def served(self) -> discovery.Discovery:
        """All that the server has."""
        return self._parts.served.found

    def find_resource(self, group: str, version: str, kind: str) -> kube.Resource | None:
        """Where the server serves a kind, if it does."""
        return self._parts.served.found.find_version(group, version, kind)

    @property
    def pods(self) -> tuple[cluster.Pod, ...]:
        return self.contents.pods

    def why_blind_to_pods(self) -> errors.ClientError | None:
        """Why the pods may not be all there are; None: they are."""
        try:
            self._parts.hosts.require_pods()
        except errors.ClientError as problem:
            return problem
        return None

    @property
    def nodes(self) -> Register[cluster.Node]:
        return self.contents.nodes

    @property
    def namespaces(self) -> Register[cluster.Namespace]:
        return self.contents.namespaces

    @property
    def policies(self) -> Input[tuple[idle.IdlePolicy, ...]]:
        return self.contents.policies

    def workloads(self, look_past: contents.LookPast) -> tuple[cluster.Workload, ...]:
        return self.contents.workloads(look_past)

    @property
    def missing(self) -> tuple[cluster.Missing, ...]:
        return self.contents.missing

    @property
    def capacity(self) -> cluster.Capacity:
        """Everybody and all nodes, as packing asks. Raises where that was not counted, or cannot be seen in full."""
        return self._parts.hosts.capacity
