"""GPU seconds that workloads held, idle and active, added up between good cycles and written out when somebody scrapes.

In: the plans of good cycles. Out: the counters fallow_workload_{idle,active}_gpu_seconds_total, bounded in series.
What was seen in one cycle holds until the next; a failed cycle breaks the chain, for nobody knows what happened
meanwhile. While the workloads are the same objects a cycle costs two additions of columns, whatever their number.
"""

import numpy as np

from fallow import telemetry
from fallow.model import cluster, decision
from fallow.model.units import Instant
from fallow.model.usage import Floats, Indices

IDLE, ACTIVE = "fallow_workload_idle_gpu_seconds_total", "fallow_workload_active_gpu_seconds_total"
_OTHER = ("_other", "_other", "_other")


class Hours:
    """The sums since the last scrape."""

    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._numbers: dict[tuple[str, str, str], int] = {}  # labels -> the number of their series
        self._last: tuple[decision.Held, Instant] | None = None
        self._begin(())
        metrics.before_scrape(self.write)

    def _begin(self, workloads: tuple[cluster.Workload, ...]) -> None:
        self._workloads = workloads
        self._series_of: Indices = np.full(len(workloads), -1, np.int64)
        self._sums = {name: np.zeros(len(workloads)) for name in (IDLE, ACTIVE)}

    def enter(self, plan: decision.Plan, workloads: tuple[cluster.Workload, ...]) -> None:
        if self._last is not None:
            held, since = self._last
            self._sums[IDLE] += held.idle * (plan.at - since)
            self._sums[ACTIVE] += held.active * (plan.at - since)
        self._last = plan.held, plan.at
        if workloads is not self._workloads:
            self.write()
            self._begin(workloads)

    def forget(self) -> None:
        """A cycle failed: until the next good one nothing is known."""
        self._last = None

    def write(self) -> None:
        """The sums go into the counters, and begin anew."""
        for name, sums in self._sums.items():
            for index in np.flatnonzero((sums > 0) & (self._series_of < 0)).tolist():
                ref = self._workloads[index].ref
                self._series_of[index] = self._number((ref.kind, ref.namespace, ref.name))
            self._write(name, sums)
            sums[:] = 0

    def _number(self, labels: tuple[str, str, str]) -> int:
        """Of its series: the first so many workloads have their own; all further ones share the last."""
        if len(self._numbers) < telemetry.MOST_WORKLOAD_SERIES:
            return self._numbers.setdefault(labels, len(self._numbers))
        return self._numbers.get(labels, len(self._numbers))

    def _write(self, name: str, sums: Floats) -> None:
        is_some, labels = sums > 0, (*self._numbers, _OTHER)
        totals = np.bincount(self._series_of[is_some], weights=sums[is_some])
        for number in np.flatnonzero(totals).tolist():
            self._metrics.add(name, float(totals[number]), labels[number])
