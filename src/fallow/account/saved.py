"""GPU seconds that pauses of ours give back, as a counter: what rests, from one good cycle to the next. Of physical
GPUs: a MIG instance or a time slice is its share of one.

In: the plans of good cycles. Out: fallow_idle_saved_gpu_seconds_total, by mode: of what we paused and whose pods are
gone, at most for 30 days; of a dry run, of what it would have paused while that stays idle.
A pause that a person made is that person's. The audit knows each pause by itself (savings.py); this is for graphs.
"""

from collections.abc import Iterator

from fallow import names, telemetry
from fallow.account import savings
from fallow.model import cluster, decision, marks, shares
from fallow.model.units import Instant

NAME = "fallow_idle_saved_gpu_seconds_total"


class Saved:
    def __init__(self, metrics: telemetry.Telemetry, *, mode: str) -> None:
        self._metrics, self._mode = metrics, mode
        self._workloads: tuple[cluster.Workload, ...] | None = None
        self._resting: tuple[tuple[Instant, float], ...] = ()  # since when, how many GPUs
        self._index_of: dict[str, int] = {}
        self._last: tuple[float, Instant] | None = None  # GPUs that were saved at the last good cycle, and when

    def enter(self, plan: decision.Plan, seen: cluster.Snapshot) -> None:
        if self._last is not None and plan.at > self._last[1]:
            self._metrics.add(NAME, self._last[0] * (plan.at - self._last[1]), (self._mode,))
        if seen.workloads is not self._workloads:
            self._workloads = seen.workloads
            self._resting = tuple(_find_resting(seen))
            self._index_of = {each.ref.uid: index for index, each in enumerate(seen.workloads)}
        self._last = self._count(plan, seen), plan.at

    def forget(self) -> None:
        """A cycle failed: until the next good one nothing is known."""
        self._last = None

    def _count(self, plan: decision.Plan, seen: cluster.Snapshot) -> float:
        if self._mode == "dry-run":
            would = (self._index_of.get(uid) for uid in plan.memory.would_be_paused)
            return sum(_find_idle(index, plan, seen) for index in would if index is not None)
        return sum(gpus for since, gpus in self._resting if plan.at - since < savings.LONGEST)


def _find_idle(index: int, plan: decision.Plan, seen: cluster.Snapshot) -> float:
    """Of the pieces that it holds, the idle ones."""
    held = shares.of_workload(seen.workloads[index], seen)
    return held.gpus * min(1.0, plan.held.idle[index] / held.instances) if held.instances else 0.0


def _find_resting(seen: cluster.Snapshot) -> Iterator[tuple[Instant, float]]:
    for workload in seen.workloads:
        is_gone = all(seen.pods[pod].has_ended for pod in workload.pods)
        if names.FIELD_MANAGER not in marks.read_all(workload, names.PAUSED_BY) or not is_gone:
            continue
        if (since := marks.paused_at(workload)) is not None:
            yield since, _find_given_back(workload, seen)


def _find_given_back(workload: cluster.Workload, seen: cluster.Snapshot) -> float:
    """By what the pause noted of each node; where that is less than all, for the rest as many as it counted."""
    pieces = max((marks.read_count(text) or 0 for text in marks.read_all(workload, names.PAUSED_GPUS)), default=0)
    noted = [
        (shares.unit_on(seen.nodes.known.get(node), resource).share, count)
        for node, some in marks.read_nodes(workload).items() for resource, count in some.items()
    ]
    rest = max(0, pieces - sum(count for _, count in noted))
    return sum(share * count for share, count in noted) + rest
