"""What the mirror hands out, made anew only when what it is made of changed.

In: the parts that follow the cluster. Out: pods, nodes, namespaces, policies, workloads, what is missing, and versions:
equal numbers, equal contents.
Invariant: nothing here asks the server for anything; while nothing changed the same objects are handed out again.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fallow.clients.kubernetes import api as kube
from fallow.model import cluster
from fallow.model.policies import idle
from fallow.model.seen import Input, Known, Register, Unseen, several
from fallow.model.units import Seconds
from fallow.observe.cluster import companions, following, hosts, lookup, namespaces, objects, owners, served, watched
from fallow.observe.cluster import queued as queueing
from fallow.observe.cluster.pods import PodReader, settle_claims
from fallow.observe.usage import trust

V = TypeVar("V")

_MOST_PAST = 4  # times as many exporters that are no more may be remembered as there are
_MOST_NAMED = 3  # in one sentence
LookPast = Mapping[str, frozenset[str]]  # by namespace, see owners.resolve


class Parts(msgspec.Struct, frozen=True):
    """What a mirror is made of."""

    served: served.Served
    hosts: hosts.Hosts
    namespaces: namespaces.Namespaces
    companions: companions.Companions
    kinds: watched.OwnerKinds
    lookup: lookup.Lookup
    reader: PodReader

    def followings(self) -> list[following.Following[Any]]:
        """All that what is handed out is made of."""
        return [
            *self.hosts.followings, self.namespaces.following, *self.companions.followings.values(),
            *(kind.following for kind in self.kinds.watched.values()),
        ]


class Contents:
    def __init__(self, parts: Parts, belief: trust.Belief | None = None) -> None:
        self._parts = parts
        self._belief = belief
        self._has_exporters = functools.lru_cache(objects.MOST_SHARED)(belief.may_be_in if belief else _nowhere)
        self._exporters_before: dict[tuple[str, str], trust.ExporterPod] = {}
        self._memo = following.Memo()

    @property
    def pods(self) -> tuple[cluster.Pod, ...]:
        """Those that hold GPUs, or ask for some."""
        found = self._parts.hosts.pods
        made_of = found.stamp, self._parts.companions.stamp(companions.CLAIM)
        return self._memo.recall("pods", made_of, lambda: self.settle_claims(found.store.values()))

    def settle_claims(self, found: Iterable[cluster.Pod]) -> tuple[cluster.Pod, ...]:
        """The pods that hold GPUs, now that their claims are known; of claims not seen the number stays unknown."""
        claims = self._parts.companions.claims()
        settled = (settle_claims(pod, claims) for pod in found)
        return tuple(pod for pod in settled if pod.resources or pod.claimed != 0)

    def take_departures(self) -> tuple[cluster.Departure, ...]:
        """Pods with GPUs that went since this was asked last."""
        return self.settle_departures(self._parts.hosts.departures.take())

    def give_back_departures(self, gone: Sequence[cluster.Departure]) -> None:
        self._parts.hosts.departures.give_back(gone)

    def settle_departures(self, gone: Iterable[cluster.Departure]) -> tuple[cluster.Departure, ...]:
        claims = self._parts.companions.claims()
        return tuple(msgspec.structs.replace(one, pod=settle_claims(one.pod, claims)) for one in gone)

    @property
    def sees_all(self) -> bool:
        """Are pods of all namespaces followed?"""
        return "" in self._parts.hosts.pods.followers

    @property
    def nodes(self) -> Register[cluster.Node]:
        found = self._parts.hosts.nodes
        made_of = found.stamp, found.rest
        return self._memo.recall(
            "nodes", made_of, lambda: Register({node.name: node for node in found.store.values()}, found.rest)
        )

    @property
    def exporters(self) -> trust.KnownExporters:
        """Whom of those who show metrics we believe, and where they run. Made anew only when a pod of them differs."""
        found, belief = self._parts.hosts.pods, self._belief
        if belief is None:
            return trust.NOBODY
        pods = self._memo.recall("exporters", found.stamp, lambda: self._find_exporters(found.store.values()))
        version = self._memo.version("exporters")
        return self._memo.recall("belief", version, lambda: self._believe(belief, pods))

    def _find_exporters(self, pods: Iterable[cluster.Pod]) -> tuple[trust.ExporterPod, ...]:
        believed = (pod for pod in pods if pod.ip and self._has_exporters(pod.namespace))
        return tuple(trust.ExporterPod(pod.namespace, pod.name, pod.node, pod.ip) for pod in believed)

    def _believe(self, belief: trust.Belief, pods: tuple[trust.ExporterPod, ...]) -> trust.KnownExporters:
        before = self._exporters_before if len(self._exporters_before) <= _MOST_PAST * len(pods) else {}
        watched = [namespace for namespace in self._parts.hosts.pods.followers if namespace]
        unseen = f"only pods in {', '.join(sorted(watched))} are seen" if watched else ""
        made = trust.KnownExporters(belief, pods, unseen=unseen, before=before)
        self._exporters_before = dict(made.known)
        return made

    @property
    def namespaces(self) -> Register[cluster.Namespace]:
        found = self._parts.namespaces
        made_of = found.following.stamp, found.following.rest, found.read
        return self._memo.recall("namespaces", made_of, lambda: found.register)

    @property
    def policies(self) -> Input[tuple[idle.IdlePolicy, ...]]:
        found, rest = self._parts.companions.store(companions.POLICY), self._parts.companions.rest(companions.POLICY)
        known = sorted(found.values(), key=lambda each: each.name)
        # By generation, which a written status does not change: our own reports are no news.
        made_of, seen = [(each.uid, each.generation) for each in known], several(tuple(known))
        return self._memo.recall("policies", (made_of, rest), lambda: rest if isinstance(rest, Unseen) else seen)

    @property
    def queued(self) -> Input[tuple[cluster.Waiting, ...]]:
        """Who waits in Kueue."""
        beside, reader = self._parts.companions, self._parts.reader
        if isinstance(rest := beside.rest(companions.KUEUE), Unseen):
            return rest
        found, stamp = beside.store(companions.KUEUE), beside.stamp(companions.KUEUE)
        return self._memo.recall("queued", stamp, lambda: several(queueing.find_waiting(found.values(), reader)))

    def workloads(self, look_past: LookPast) -> tuple[cluster.Workload, ...]:
        made_of = self._stamp, look_past
        return self._memo.recall("workloads", made_of, lambda: owners.resolve(self.view(), look_past))

    @property
    def gaps(self) -> owners.Gaps:
        return self._memo.recall("gaps", self._stamp, lambda: owners.find_gaps(self.view()))

    # ---- versions: sums of numbers that only grow ----

    @property
    def version_of_hosts(self) -> int:
        """The same number while no GPU pod, no node and no exporter differs."""
        _ = self.pods, self.nodes, self.exporters
        return self._memo.version("pods", "nodes", *(("exporters",) if self._belief else ()))

    def version(self, look_past: LookPast) -> int:
        """The same number while no pod, node, namespace, policy or workload differs."""
        _ = self.pods, self.nodes, self.namespaces, self.policies, self.workloads(look_past)
        return self._memo.version("pods", "nodes", "namespaces", "policies", "workloads")

    @property
    def _stamp(self) -> tuple[Any, ...]:
        """Of all that workloads are made of."""
        _ = self.pods
        parts = self._parts
        watched = (*parts.companions.watched.values(), *parts.kinds.watched.values())
        asked = parts.lookup.version + parts.kinds.version + parts.served.version
        return self._memo.version("pods"), asked, [kind.following.stamp for kind in watched]

    # ---- owners and companions ----

    def view(self) -> owners.View:
        return self._memo.recall("view", self._stamp, lambda: self.view_with(self.pods, {}))

    def view_with(self, alive: tuple[cluster.Pod, ...], fresh: companions.Fresh) -> owners.View:
        """The mirror's view, but with these pods instead of its own, and with what was read anew (None: gone)."""
        beside, kinds, by_target = self._parts.companions, self._parts.kinds.watched, companions.by_target
        stores = {key: companions.renew(kind.store, fresh, key) for key, kind in kinds.items()}
        owned = self._owned if alive is self.pods else owners.group_by_owner(alive)
        return owners.View(
            pods=alive, owned=owned, stores={**stores, owners.POD: self._parts.lookup.link_pods},
            rows={key: kind.row for key, kind in kinds.items() if kind.row is not None},
            pointers={key: kind.pointer for key, kind in kinds.items()}, lost=self._parts.lookup.lost,
            hpas=self._index(companions.HPA, by_target, fresh), queued=beside.find_queued(),
            scaled_objects=self._index(companions.SCALED_OBJECT, by_target, fresh),
            kueue=self._index(companions.KUEUE, companions.by_job, fresh),
            budgets=self._index(companions.PDB, companions.by_namespace, fresh),
        )

    @property
    def _owned(self) -> owners.Owned:
        return self._memo.recall("owned", self._memo.version("pods"), lambda: owners.group_by_owner(self.pods))

    def _index(
        self, key: owners.Key, make: Callable[[Iterable[objects.Seen]], dict[Any, V]], fresh: companions.Fresh
    ) -> Input[Mapping[Any, V]]:
        rest = self._parts.companions.rest(key)
        if isinstance(rest, Unseen):
            return rest
        store, stamp = self._parts.companions.store(key), self._parts.companions.stamp(key)
        if key in fresh:
            return Known(make(companions.renew(store, fresh, key).values()))
        return Known(self._memo.recall(f"index of {key[1]}", stamp, lambda: make(store.values())))

    def ages(self, monotonic: float) -> dict[str, Seconds]:
        """By kind, for how long the server has said nothing of it."""
        heard = ((_name(each.resource), each.heard_at) for each in self._parts.followings())
        return {name: max(0.0, monotonic - at) for name, at in heard if at is not None}

    @property
    def missing(self) -> tuple[cluster.Missing, ...]:
        spaces = self._parts.namespaces
        known = [each for each in self._parts.followings() if each is not spaces.following or not spaces.are_all_read]
        found = [cluster.Missing(_name(each.resource), str(problem)) for each in known for problem in each.problems]
        odd = [each for each in known if each.unreadable]
        found += [cluster.Missing(_name(each.resource), _count_unreadable(each)) for each in odd]
        silent, unread = self._parts.served.found.unavailable, self._parts.companions.unread
        return (*found, *(cluster.Missing(what, why) for what, why in (*silent.items(), *unread.items())))


def _nowhere(_: str) -> bool:
    return False


def _count_unreadable(found: following.Following[Any]) -> str:
    shown = found.unreadable_names[:_MOST_NAMED]
    return f"{found.unreadable} of them could not be read" + (f", such as {', '.join(shown)}" if shown else "")


def _name(resource: kube.Resource) -> str:
    """`deployments.apps`, as kubectl calls it."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
