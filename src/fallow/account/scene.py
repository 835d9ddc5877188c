"""What stands in the cluster, in numbers: what is paused by us, what is waited for, how well each node is measured.

In: snapshots. Out: fallow_idle_paused_workloads, fallow_idle_pressure_gpus, fallow_idle_coverage_ratio. Objects are counted anew only when
they are not the same as before; coverage is worked out when somebody scrapes.
"""

from collections import Counter

import numpy as np

from fallow import names, telemetry
from fallow.decide.idle import pauses, pressure
from fallow.model import cluster, usage
from fallow.model.usage import Floats, Indices


class Scene:
    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._workloads: tuple[cluster.Workload, ...] = ()
        self._pods: tuple[cluster.Pod, ...] = ()
        self._nodes: tuple[str, ...] = ()
        self._node_of: Indices = np.zeros(0, np.int64)  # per pod
        self._waiting: list[cluster.Pod] = []
        self._unwritten: usage.Usage | None = None
        metrics.before_scrape(self._write_coverage)

    def enter(self, seen: cluster.Snapshot) -> None:
        if seen.workloads is not self._workloads:
            self._workloads = seen.workloads
            marked = [workload for workload in seen.workloads if names.PAUSED_AT in workload.annotations or workload.kueue]
            paused = Counter(workload.ref.kind for workload in marked if pauses.paused_at(workload) is not None)
            self._metrics.replace("fallow_idle_paused_workloads", {(kind,): count for kind, count in paused.items()})
        if seen.pods is not self._pods:
            self._count_pods(seen.pods)
        waited = sum(sum(pod.resources.values()) for pod in self._waiting if pressure.waits(pod, seen.taken_at))
        self._metrics.set("fallow_idle_pressure_gpus", waited)
        if seen.evidence.usage:
            self._unwritten = seen.evidence.usage[min(seen.evidence.usage)]

    def _count_pods(self, pods: tuple[cluster.Pod, ...]) -> None:
        self._pods = pods
        self._waiting = [pod for pod in pods if pod.unschedulable_since is not None]
        places: dict[str, int] = {}
        self._node_of = np.array([places.setdefault(pod.node, len(places)) for pod in pods], np.int64)
        self._nodes = tuple(places)

    def _write_coverage(self) -> None:
        if self._unwritten is None:
            return
        lowest = np.full(len(self._nodes), np.inf)
        np.minimum.at(lowest, self._node_of[self._unwritten.pod], _coverage(self._unwritten))
        measured = np.flatnonzero(np.isfinite(lowest)).tolist()
        self._metrics.replace("fallow_idle_coverage_ratio", {(self._nodes[place],): float(lowest[place]) for place in measured})
        self._unwritten = None


def _coverage(use: usage.Usage) -> Floats:
    """Per row: of its best measured primary."""
    best = np.zeros(use.rows)
    for samples in use.count.values():
        best = np.fmax(best, samples * use.interval / use.window)
    return np.minimum(best, 1.0)
