"""GPU seconds that workloads held, idle and active, added up between good cycles and written out when somebody scrapes.

In: the plans of good cycles. Out: the counters fallow_workload_{idle,active}_gpu_seconds_total, bounded in series.
What was seen in one cycle holds until the next; a failed cycle breaks the chain, for nobody knows what happened meanwhile. While the
workloads are the same objects a cycle costs two additions of columns, whatever their number.
"""

import numpy as np

from fallow import telemetry
from fallow.model import cluster, decision
from fallow.model.units import Instant
from fallow.model.usage import Bools, Floats, Indices

IDLE, ACTIVE = "fallow_workload_idle_gpu_seconds_total", "fallow_workload_active_gpu_seconds_total"
_OTHER = ("_other", "_other", "_other")


class Hours:
    """The sums since the last scrape."""

    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._names = _Names()
        self._last: tuple[decision.Held, Instant] | None = None
        self._begin(())
        metrics.before_scrape(self.write)

    def _begin(self, workloads: tuple[cluster.Workload, ...]) -> None:
        self._workloads = workloads
        self._places: Indices = np.full(len(workloads), -1, np.int64)
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
            self._name((sums > 0) & (self._places < 0))
            self._write(name, sums)
            sums[:] = 0

    def _name(self, new: Bools) -> None:
        for index in np.flatnonzero(new).tolist():
            ref = self._workloads[index].ref
            self._places[index] = self._names.place((ref.kind, ref.namespace, ref.name))

    def _write(self, name: str, sums: Floats) -> None:
        is_some = sums > 0
        totals = np.bincount(self._places[is_some], weights=sums[is_some])
        for place in np.flatnonzero(totals).tolist():
            self._metrics.add(name, float(totals[place]), self._names.at(place))


class _Names:
    """Places for the first so many workloads; all further ones share the last."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, str], int] = {}
        self._labels: list[tuple[str, str, str]] = []

    def place(self, labels: tuple[str, str, str]) -> int:
        if labels not in self._places:
            if len(self._labels) == telemetry.MOST_WORKLOAD_SERIES:
                return len(self._labels)
            self._places[labels] = len(self._labels)
            self._labels.append(labels)
        return self._places[labels]

    def at(self, place: int) -> tuple[str, str, str]:
        return self._labels[place] if place < len(self._labels) else _OTHER
