"""What stands in the cluster, in numbers: what is paused by us, how well each node is measured.

In: snapshots. Out: fallow_idle_paused_workloads, fallow_idle_coverage_ratio. Objects are counted anew only when they
are not the same as before; coverage is worked out when somebody scrapes.
"""

from collections import Counter

import numpy as np

from fallow import names, telemetry
from fallow.model import cluster, marks, usage
from fallow.model.seen import sure
from fallow.model.usage import Floats, Indices


class Gauges:
    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._workloads: tuple[cluster.Workload, ...] = ()
        self._pods: tuple[cluster.Pod, ...] = ()
        self._nodes: tuple[str, ...] = ()
        self._node_of: Indices = np.zeros(0, np.int64)  # per pod
        self._unwritten: usage.Usage | None = None
        metrics.before_scrape(self._write_coverage)

    def enter(self, seen: cluster.Snapshot) -> None:
        if seen.workloads is not self._workloads:
            self._workloads = seen.workloads
            marked = (each for each in seen.workloads if names.PAUSED_AT in each.annotations or sure(each.kueue))
            paused = Counter((each.ref.kind,) for each in marked if marks.paused_at(each) is not None)
            self._metrics.replace("fallow_idle_paused_workloads", paused)
        if seen.pods is not self._pods:
            self._pods, numbers = seen.pods, dict[str, int]()
            self._node_of = np.array([numbers.setdefault(pod.node, len(numbers)) for pod in seen.pods], np.int64)
            self._nodes = tuple(numbers)
        if seen.evidence.usage:
            self._unwritten = seen.evidence.usage[min(seen.evidence.usage)]

    def _write_coverage(self) -> None:
        if self._unwritten is None:
            return
        lowest = np.full(len(self._nodes), np.inf)
        np.minimum.at(lowest, self._node_of[self._unwritten.pod], _coverage(self._unwritten))
        found = zip(self._nodes, lowest.tolist(), strict=True)
        self._metrics.replace("fallow_idle_coverage_ratio", {(node,): share for node, share in found if share < np.inf})
        self._unwritten = None


def _coverage(use: usage.Usage) -> Floats:
    """Per row: of its best measured primary."""
    best = np.zeros(use.rows)
    for samples in use.count.values():
        best = np.fmax(best, samples * use.interval / use.window)
    return np.minimum(best, 1.0)
