"""What the mirror hands out, made anew only when what it is made of changed.

In: the parts that follow the cluster. Out: pods, nodes, namespaces, policies, workloads, what is missing, and versions: equal numbers,
equal contents.
Invariant: nothing here asks the server for anything; while nothing changed the same objects are handed out again.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from fallow.clients.kubernetes import api as kube
from fallow.model import cluster
from fallow.model.policies import idle
from fallow.observe.cluster import companions, following, hosts, lookup, namespaces, objects, owners, pods, served, watched

V = TypeVar("V")

LookPast = Mapping[str, frozenset[str]]  # by namespace, see owners.resolve


class Parts(msgspec.Struct, frozen=True):
    """What a mirror is made of."""

    served: served.Served
    hosts: hosts.Hosts
    namespaces: namespaces.Namespaces
    companions: companions.Companions
    kinds: watched.OwnerKinds
    lookup: lookup.Lookup

    def followings(self) -> list[following.Following[Any]]:
        """All that what is handed out is made of."""
        return [
            self.hosts.pods, self.hosts.nodes, self.namespaces.following, *self.companions.followings.values(),
            *(kind.following for kind in self.kinds.watched.values()),
        ]


class Contents:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._memo = following.Memo()

    @property
    def pods(self) -> tuple[cluster.Pod, ...]:
        """Those that hold GPUs, or ask for some."""
        found = self._parts.hosts.pods
        made_of = found.stamp, self._parts.companions.stamp(companions.CLAIM)
        return self._memo.recall("pods", made_of, lambda: self.settle_claims(found.store.values()))

    def settle_claims(self, found: Iterable[cluster.Pod]) -> tuple[cluster.Pod, ...]:
        """The pods that hold GPUs, now that their claims are known; where those cannot be seen, the number stays unknown."""
        held = self._parts.companions.count_claimed()
        replace = msgspec.structs.replace
        settled = (replace(pod, claimed=pods.count_claimed(pod, held)) if pod.claims else pod for pod in found)
        return tuple(pod for pod in settled if pod.resources or pod.claimed != 0)

    @property
    def nodes(self) -> Mapping[str, cluster.Node]:
        found = self._parts.hosts.nodes
        return self._memo.recall("nodes", found.stamp, lambda: {node.name: node for node in found.store.values()})

    @property
    def namespaces(self) -> Mapping[str, cluster.Namespace]:
        found = self._parts.namespaces
        return self._memo.recall("namespaces", (found.following.stamp, found.read), lambda: found.known)

    @property
    def policies(self) -> tuple[idle.IdlePolicy, ...]:
        known = sorted(self._parts.companions.store(companions.POLICY).values(), key=lambda each: each.name)
        # By generation, which a written status does not change: our own reports are no news.
        return self._memo.recall("policies", [(each.uid, each.generation) for each in known], lambda: tuple(known))

    def workloads(self, look_past: LookPast) -> tuple[cluster.Workload, ...]:
        made_of = self._stamp, look_past
        return self._memo.recall("workloads", made_of, lambda: owners.resolve(self.view(), look_past))

    @property
    def gaps(self) -> owners.Gaps:
        return self._memo.recall("gaps", self._stamp, lambda: owners.find_gaps(self.view()))

    # ---- versions ----

    @property
    def version_of_hosts(self) -> int:
        """The same number while no GPU pod and no node differs."""
        made_of = self._version("pods", self.pods), self._version("nodes", self.nodes)
        self._memo.recall("hosts", made_of, lambda: made_of)
        return self._memo.version("hosts")

    def version(self, look_past: LookPast) -> int:
        """The same number while no pod, node, namespace, policy or workload differs."""
        made_of = (
            self.version_of_hosts, self._version("namespaces", self.namespaces), self._version("policies", self.policies),
            self._version("workloads", self.workloads(look_past)),
        )
        self._memo.recall("all", made_of, lambda: made_of)
        return self._memo.version("all")

    def _version(self, name: str, _recalled: object) -> int:
        return self._memo.version(name)

    @property
    def _stamp(self) -> tuple[Any, ...]:
        """Of all that workloads are made of."""
        parts = self._parts
        steering = [kind.following.stamp for kind in (*parts.companions.watched.values(), *parts.kinds.watched.values())]
        return (
            self._version("pods", self.pods), self._version("namespaces", self.namespaces), parts.lookup.version,
            parts.kinds.version, parts.served.version, parts.namespaces.following.stamp,
            parts.companions.stamp(companions.POLICY), steering,
        )

    # ---- owners and companions ----

    def view(self) -> owners.View:
        return self._memo.recall("view", self._stamp, lambda: self.view_with(self.pods, {}))

    def view_with(self, alive: tuple[cluster.Pod, ...], fresh: companions.Fresh) -> owners.View:
        """The mirror's view, but with these pods instead of its own, and with what was read anew (None: gone)."""
        beside, kinds = self._parts.companions, self._parts.kinds.watched
        stores = {key: companions.renew(kind.store, fresh.get(key)) for key, kind in kinds.items()}
        return owners.View(
            pods=alive,
            stores={**stores, owners.POD: self._parts.lookup.link_pods},
            rows={key: kind.row for key, kind in kinds.items() if kind.row is not None},
            pointers={key: kind.pointer for key, kind in kinds.items()},
            lost=self._parts.lookup.lost,
            hpas=self._index(companions.HPA, companions.by_target, fresh),
            scaled_objects=self._index(companions.SCALED_OBJECT, companions.by_target, fresh),
            kueue=self._index(companions.KUEUE, companions.by_job, fresh),
            queued=beside.find_queued(),
            budgets=self._index(companions.PDB, companions.by_namespace, fresh),
            namespaces=self.namespaces,
            unseen_policies=beside.why_unseen(companions.POLICY),
            unseen_namespaces=str(self._parts.namespaces.following.why_blind() or ""),
            unseen_scalers=beside.why_unseen(companions.SCALED_OBJECT),
            unseen_queues=beside.why_unseen(companions.KUEUE),
            unseen_budgets=beside.why_unseen(companions.PDB),
        )

    def _index(
        self, key: owners.Key, make: Callable[[Iterable[objects.Seen]], dict[Any, V]], fresh: companions.Fresh
    ) -> dict[Any, V]:
        store = self._parts.companions.store(key)
        if key in fresh:
            return make(companions.renew(store, fresh[key]).values())
        stamp = self._parts.companions.stamp(key)
        return self._memo.recall(f"index of {key[1]}", stamp, lambda: make(store.values()))

    @property
    def missing(self) -> tuple[cluster.Missing, ...]:
        spaces = self._parts.namespaces
        known = [each for each in self._parts.followings() if each is not spaces.following or not spaces.are_all_read]
        found = [cluster.Missing(_name(each.resource), str(problem)) for each in known for problem in each.problems]
        odd = [each for each in known if each.unreadable]
        found += [cluster.Missing(_name(each.resource), f"{each.unreadable} of them could not be read") for each in odd]
        return (*found, *(cluster.Missing(group, why) for group, why in self._parts.served.found.unavailable.items()))


def _name(resource: kube.Resource) -> str:
    """`deployments.apps`, as kubectl calls it."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
