"""Whom a pod's GPUs are attributed to: its owner, the class of its work, and team, project and so on by labels.

In: pods with their workloads and namespaces, look by look; which labels are kept. Out: a CostKey for a pod on a GPU,
and which pods are somebody else's than before.
A label of the pod wins over one of its workload, and that over one of its namespace. What the namespace says is booked
beside it, for budgets: tenants write labels of pods, administrators those of namespaces.
Invariant: a namespace that is not seen keeps the labels that were seen last; beyond so many sets of labels all further
ones are `__other__`, but for whom an administrator made pay.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

from fallow import names
from fallow.model import cluster, cost, work
from fallow.model.cost import CostKey, Dims, Sharing
from fallow.model.seen import Register

DIMS: Final = {
    "team": "team", "project": "project", "experiment_id": "experiment-id", "cost_center": "cost-center",
    "user": "user",
}
_PAID_BY: Final = {  # what a budget may be for, besides labels: under which name, by which label
    f"{cost.PAYER}{cost.DimensionName.team}": DIMS["team"],
    f"{cost.PAYER}{cost.DimensionName.experiment}": DIMS["experiment_id"],
}
_pods_of, _pod_uid = operator.attrgetter("pods"), operator.attrgetter("uid")
KEPT_LABELS: Final = frozenset({*DIMS.values(), names.NAME_LABEL})


class _HeldBy(NamedTuple):
    """Of a workload, what matters here."""

    kind: str
    name: str
    uid: str
    labels: Mapping[str, str]
    type: str = ""


class Whose:
    """`labels`: asked at every look, for people name others as time goes by. `own`: namespaces whose pods are ours."""

    def __init__(self, labels: Iterable[str], own: Iterable[str]) -> None:
        self._wanted, self._own = labels, frozenset(own)
        self._want(tuple(sorted(set(labels))))
        self._owners: dict[str, _HeldBy] = {}  # by uid of the pod
        self._labels_of: dict[str, Mapping[str, str]] = {}  # by uid of the workload, of some too that are gone
        self._spaces: dict[str, Mapping[str, str]] = {}  # labels, as last known
        self._dims: dict[Dims, Dims] = {}
        self._seen: tuple[object, object] = (None, None)

    def see(
        self, pods: tuple[cluster.Pod, ...], workloads: tuple[cluster.Workload, ...],
        namespaces: Register[cluster.Namespace], held: Mapping[str, cluster.Pod],
    ) -> set[str]:
        """Of the pods that hold, those that are not whose they were, or of which more is wanted."""
        changed = self._see_spaces(namespaces, held) if namespaces is not self._seen[1] else set()
        if (labels := tuple(sorted(set(self._wanted)))) != self._labels:
            self._want(labels)
            changed = set(held)
        if workloads is not self._seen[0]:
            changed |= self._see_workloads(pods, workloads, namespaces, held.keys())
        self._seen = workloads, namespaces
        return changed

    def _want(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._paid_by = (*_PAID_BY.items(), *((f"{cost.PAYER}label:{key}", key) for key in labels))

    def _see_spaces(self, namespaces: Register[cluster.Namespace], held: Mapping[str, cluster.Pod]) -> set[str]:
        spaces = {name: space.labels for name, space in namespaces.known.items()}
        moved = {name for name, labels in spaces.items() if self._spaces.get(name, {}) != labels}
        self._spaces |= spaces
        return {uid for uid, pod in held.items() if pod.namespace in moved} if moved else set()

    def _see_workloads(
        self, pods: tuple[cluster.Pod, ...], workloads: tuple[cluster.Workload, ...],
        namespaces: Register[cluster.Namespace], held: Set[str],
    ) -> set[str]:
        """Only workloads whose labels are others than before, and those of pods that were never seen: labels that are
        the same are mostly the very same object. All are looked through every minute, so once."""
        known, changed = self._labels_of, set[str]()
        if len(known) > 2 * len(workloads):  # most of them are gone
            known = self._labels_of = {uid: known[uid] for one in workloads if (uid := one.ref.uid) in known}
        for workload in [one for one in workloads if known.get(one.ref.uid) is not one.labels]:
            known[workload.ref.uid] = workload.labels
            changed |= self._see_workload(workload, pods, namespaces, held)
        if len(self._owners) < len(held):  # whoever has one holds
            new = held - self._owners.keys()
            places = set(itertools.compress(itertools.count(), map(new.__contains__, map(_pod_uid, pods))))
            strangers = map(places.isdisjoint, map(_pods_of, workloads))
            for workload in itertools.compress(workloads, map(operator.not_, strangers)):
                changed |= self._see_workload(workload, pods, namespaces, new)
        return changed

    def _see_workload(
        self, workload: cluster.Workload, pods: tuple[cluster.Pod, ...], namespaces: Register[cluster.Namespace],
        wanted: Set[str],
    ) -> set[str]:
        changed = set()
        for index in workload.pods:
            uid = pods[index].uid
            if uid in wanted:
                found = _describe(workload, pods[index], namespaces)
                if found != self._owners.get(uid):
                    self._owners[uid] = found
                    changed.add(uid)
        return changed

    def meet(
        self, pod: cluster.Pod, workloads: tuple[cluster.Workload, ...], namespaces: Register[cluster.Namespace]
    ) -> None:
        """One that is gone already: its workload may be there still."""
        above = pod.owner.uid if pod.owner else pod.uid
        for workload in workloads:
            if workload.ref.uid == above or any(link.uid == above for link in workload.chain):
                self._owners[pod.uid] = _describe(workload, pod, namespaces)

    def forget(self, uid: str) -> None:
        self._owners.pop(uid, None)

    def workload_of(self, uid: str) -> str:
        """Of a pod: the uid of what it belongs to."""
        known = self._owners.get(uid)
        return known.uid if known else ""

    def key_of(self, pod: cluster.Pod, ground: CostKey, sharing: Sharing) -> CostKey:
        owner = self._owners.get(pod.uid) or _own(pod)
        return CostKey(
            cluster=ground.cluster, node=pod.node, instance_type=ground.instance_type, region=ground.region,
            capacity_type=ground.capacity_type, gpu_model=ground.gpu_model, sharing=sharing, namespace=pod.namespace,
            owner_kind=owner.kind, owner_name=owner.name, workload_type=owner.type, dims=self._find_dims(pod, owner),
        )

    def _find_dims(self, pod: cluster.Pod, owner: _HeldBy) -> Dims:
        space = self._spaces.get(pod.namespace, {})
        said = (space, owner.labels, pod.labels)  # the last one wins
        found = {label: value for labels in said for label, value in labels.items() if value}
        values = {field: found.get(label, "") for field, label in DIMS.items()}
        kept = [(key, found[key]) for key in self._labels if key in found]
        if pod.namespace in self._own:
            values["team"] = cost.PLATFORM
        else:
            kept = sorted([*kept, *self._find_paid_by(space)])
        return self._bound_dims(Dims(labels=tuple(kept), **values))

    def _bound_dims(self, dims: Dims) -> Dims:
        """The one object for all that are equal; beyond the most there may be, what is left of it."""
        for each, most in ((dims, cost.MOST_LABEL_SETS), (cost.soften(dims), 2 * cost.MOST_LABEL_SETS)):
            if (known := self._dims.get(each)) is not None:
                return known
            if len(self._dims) < most:
                self._dims[each] = each
                return each
        return cost.fold(dims)

    def _find_paid_by(self, space: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Also where the pod says the same: of a set that is folded nothing else is left."""
        for name, key in self._paid_by:
            if value := space.get(key):
                yield name, value


def _describe(
    workload: cluster.Workload, pod: cluster.Pod, namespaces: Register[cluster.Namespace]
) -> _HeldBy:
    ref = workload.ref
    kind, _ = work.classify(workload, (pod,), namespaces.find(ref.namespace))
    return _HeldBy(cost.as_foreign(ref.kind), cost.as_foreign(ref.name), ref.uid, workload.labels, kind)


def _own(pod: cluster.Pod) -> _HeldBy:
    """Of whom nothing more is known than stands on itself."""
    above = pod.owner
    if above is None:
        return _HeldBy("Pod", pod.name, pod.uid, {})
    return _HeldBy(cost.as_foreign(above.kind), cost.as_foreign(above.name), above.uid, {})
