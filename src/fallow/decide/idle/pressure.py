"""Does anybody wait for the GPUs of an idle workload? Asked only where a rule pauses under pressure only.

In: the snapshot, its waiting pods, now. Out: a Queue of what they ask for; each pause that is granted takes its GPUs
off the queue, so that no more is freed than is waited for. What is already on its way out is taken off first.
Only what surely helps counts: the same resource, on a node that the waiting pod's selector and affinity accept.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from fallow.model import cluster, kinds, selectors, units
from fallow.model.units import Instant

PATIENCE: Final = 60.0  # a pod that waits less may just be waiting for the scheduler


class _Want(msgspec.Struct):
    pod: cluster.Pod
    left: dict[str, int]


class Queue:
    """What is asked for and not yet on its way."""

    def __init__(self, snapshot: cluster.Snapshot, waiting: Iterable[cluster.Pod], now: Instant) -> None:
        self._snapshot = snapshot
        self._wants = [_Want(pod, dict(pod.resources)) for pod in waiting if waits(pod, now)]
        for pod in self._leaving():
            self._take(pod)

    @property
    def gpus(self) -> int:
        """GPUs that are still waited for."""
        return sum(count for want in self._wants for count in want.left.values())

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
        node, has_helped = self._snapshot.nodes.known.get(pod.node), False  # who cannot be seen helps nobody
        for resource, count in pod.resources.items() if node else ():
            for want in self._wants:
                if count and want.left.get(resource) and _accepts(want.pod, node):
                    used = min(count, want.left[resource])
                    want.left[resource] -= used
                    count -= used
                    has_helped = True
        return has_helped


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


def count_waiting(waiting: Iterable[cluster.Pod], now: Instant) -> int:
    """GPUs that pods wait for, whoever might free them."""
    return sum(sum(pod.resources.values()) for pod in waiting if waits(pod, now))


def why_not(workload: cluster.Workload) -> str:
    return f"no pod waits for the GPUs of {workload.ref.short} for {units.humane(PATIENCE)} or longer"


def _accepts(pod: cluster.Pod, node: cluster.Node | None) -> bool:
    if node is None or any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    if pod.affinity is None:
        return True
    return isinstance(pod.affinity, list) and any(_term_holds(term, node) for term in pod.affinity)


def _term_holds(term: Any, node: cluster.Node) -> bool:
    """All its expressions; an empty term accepts nothing."""
    if not isinstance(term, Mapping):
        return False
    asked = [(node.labels, one) for one in term.get("matchExpressions") or []]
    asked += [({"metadata.name": node.name}, one) for one in term.get("matchFields") or []]
    return bool(asked) and all(
        isinstance(one, Mapping)
        and selectors.holds(labels, one.get("key", ""), one.get("operator"), one.get("values") or [])
        for labels, one in asked
    )
