"""Does anybody wait for the GPUs of an idle workload? Asked only where a rule pauses under pressure only.

In: the snapshot, its waiting pods and who waits in Kueue, now. Out: a Queue of what they ask for; each pause that is
granted takes its GPUs off the queue, so that no more is freed than is waited for. What is already on its way out is
taken off first.
Only what surely helps counts: the same resource, on a node that the waiting pod's selector and affinity accept, and
that has as many as one pod asks for: one that fits nowhere would have everything paused and still wait. Where
Kueue cannot be seen no pressure is known, and nothing is paused for its sake: with all in sight others might go first.
"""

import collections
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow.model import cluster, kinds, selectors, units
from fallow.model.seen import Unseen, sure
from fallow.model.units import Instant

PATIENCE: Final = 60.0  # a pod that waits less may just be waiting for the scheduler


class _Want(msgspec.Struct):
    """Of all who ask for the same, and may go to the same nodes."""

    who: cluster.Pod | cluster.Waiting
    left: collections.Counter[str]


class Queue:
    """What is asked for and not yet on its way. `gpus`: how many that are."""

    def __init__(self, snapshot: cluster.Snapshot, waiting: Iterable[cluster.Pod], now: Instant) -> None:
        self._snapshot = snapshot
        found = [] if isinstance(snapshot.queued, Unseen) else find_waiting(snapshot, waiting, now)
        self._wants = _gather(found)
        self._helped: dict[tuple[str, str], list[_Want]] = {}  # by node and resource; who comes first is last
        self.gpus = sum(want.left.total() for want in self._wants)
        for pod in self._leaving():
            self._take(pod)

    def serve(self, workload: cluster.Workload) -> bool:
        """Would pausing it give somebody a GPU? If so, its GPUs are spoken for."""
        pods = (self._snapshot.pods[index] for index in workload.pods)
        return sum(self._take(pod) for pod in pods if not pod.terminating) > 0

    def _leaving(self) -> Iterable[cluster.Pod]:
        for workload in self._snapshot.workloads if self._wants else ():
            is_paused = _may_be_paused(workload)
            for pod in (self._snapshot.pods[index] for index in workload.pods):
                if pod.node and (is_paused or pod.terminating):
                    yield pod

    def _take(self, pod: cluster.Pod) -> bool:
        node, before = self._snapshot.nodes.known.get(pod.node), self.gpus  # who cannot be seen helps nobody
        for resource, count in pod.resources.items() if node else ():
            wants = self._find_helped(node, resource) if node else []
            while count and wants:
                used = min(count, wants[-1].left[resource])
                wants[-1].left[resource] -= used
                count, self.gpus = count - used, self.gpus - used
                if not wants[-1].left[resource]:
                    wants.pop()
        return self.gpus < before

    def _find_helped(self, node: cluster.Node, resource: str) -> list[_Want]:
        """Looked up once for each node: thousands may wait, and thousands be idle."""
        key = node.name, resource
        if key not in self._helped:
            self._helped[key] = [each for each in self._wants if each.left[resource] and _accepts(each.who, node)][::-1]
        return self._helped[key]


def _gather(found: Iterable[cluster.Pod | cluster.Waiting]) -> list[_Want]:
    """In the order in which the first of each kind came."""
    wants: dict[bytes, _Want] = {}
    for who in found:
        alike = msgspec.json.encode((_ask_of_one(who), who.node_selector, who.affinity), order="deterministic")
        wants.setdefault(alike, _Want(who, collections.Counter())).left.update(who.resources)
    return list(wants.values())


def _ask_of_one(who: cluster.Pod | cluster.Waiting) -> Mapping[str, int]:
    return who.each if isinstance(who, cluster.Waiting) else who.resources


def _may_be_paused(workload: cluster.Workload) -> bool:
    """One that is as nobody foresaw counts as on its way out: so less is freed, not more."""
    with contextlib.suppress(Exception):
        return kinds.stands_paused(workload)
    return True


def waits(pod: cluster.Pod, now: Instant) -> bool:
    """Is it waiting, and long enough for that to count?"""
    since = pod.unschedulable_since
    is_due = since is not None and now - since >= PATIENCE
    return is_due and not pod.node and not pod.terminating and bool(pod.resources)


def find_waiting(
    snapshot: cluster.Snapshot, waiting: Iterable[cluster.Pod], now: Instant
) -> list[cluster.Pod | cluster.Waiting]:
    """All who are seen to wait for GPUs long enough."""
    queued = (each for each in sure(snapshot.queued) if now - each.since >= PATIENCE)
    return [*(pod for pod in waiting if waits(pod, now)), *queued]


def count_waiting(snapshot: cluster.Snapshot, waiting: Iterable[cluster.Pod], now: Instant) -> int:
    """GPUs that are waited for, whoever might free them."""
    return sum(sum(who.resources.values()) for who in find_waiting(snapshot, waiting, now))


def why_not(workload: cluster.Workload, snapshot: cluster.Snapshot) -> str:
    if isinstance(snapshot.queued, Unseen):
        return f"whether anybody waits for GPUs is not known: who waits in Kueue cannot be seen: {snapshot.queued.why}"
    return f"nobody waits for the GPUs of {workload.ref.short} for {units.humane(PATIENCE)} or longer"


def _accepts(pod: cluster.Pod | cluster.Waiting, node: cluster.Node | None) -> bool:
    if node is None or any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    if node.offers and any(count > node.offers.get(resource, 0) for resource, count in _ask_of_one(pod).items()):
        return False
    return selectors.accepts(pod.affinity, node.name, node.labels)
