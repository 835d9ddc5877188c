"""Acknowledgements in numbers: how many were given, and how many pauses they prevented.

In: the plans of good cycles. Out: gpu_pruner_acknowledgments_total, once per ack;
gpu_pruner_scaledowns_prevented_total, once per ack and idle episode. Acks that stand when we first look were counted
by whoever was here then. An episode ends when its workload is active.
"""

from collections.abc import Iterator

from fallow import telemetry
from fallow.model import cluster, decision, marks

Ack = tuple[str, str]  # UID of the workload (or name of the namespace), until when


class Acks:
    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._known: set[Ack] | None = None
        self._prevented: set[Ack] = set()
        self._seen: tuple[object, object] = (None, None)
        self._covered: dict[int, Ack] = {}  # workloads under an ack

    def enter(self, plan: decision.Plan, seen: cluster.Snapshot) -> None:
        if self._seen[0] is not seen.workloads or self._seen[1] is not seen.namespaces:
            self._seen = seen.workloads, seen.namespaces
            self._covered = dict(_find_covered(seen))
            standing = set(self._covered.values())
            if self._known is not None:
                self._metrics.add("gpu_pruner_acknowledgments_total", len(standing - self._known))
            self._known = standing
        for index, (_, until) in self._covered.items():
            finding = plan.findings[index]
            prevented = finding.workload.ref.uid, until
            if finding.verdict is decision.Verdict.active:
                self._prevented.discard(prevented)
            elif finding.skip is decision.Reason.Acknowledged and prevented not in self._prevented:
                self._prevented.add(prevented)
                self._metrics.add("gpu_pruner_scaledowns_prevented_total")


def _find_covered(seen: cluster.Snapshot) -> Iterator[tuple[int, Ack]]:
    read = marks.ack_until
    spaces = {name: until for name, space in seen.namespaces.known.items() if (until := read(space.annotations))}
    for index, workload in enumerate(seen.workloads):
        if until := read(workload.marks) or read(workload.annotations):
            yield index, (workload.ref.uid, until)
        elif workload.ref.namespace in spaces:
            yield index, (workload.ref.namespace, spaces[workload.ref.namespace])
