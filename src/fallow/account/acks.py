"""Acknowledgements in numbers: how many were given, and how many pauses they prevented.

In: the plans of good cycles. Out: gpu_pruner_acknowledgments_total, once per ack;
gpu_pruner_scaledowns_prevented_total, once per ack and idle episode; GPU seconds that were idle under one. Acks that
stand when we first look were counted by whoever was here then. An episode ends when its workload is active.
"""

from collections.abc import Iterator

from fallow import telemetry
from fallow.account.attribution import KeepingAck
from fallow.model import cluster, cost, decision, marks
from fallow.model.units import Instant

Ack = tuple[str, str]  # UID of the workload (or name of the namespace), until when


class Acks:
    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._known: set[Ack] | None = None
        self._prevented: dict[str, str] = {}  # by uid of the workload: until when the ack is that did, in this episode
        self._seen: tuple[object, object] = (None, None)
        self._covered: dict[int, Ack] = {}  # workloads under an ack
        self._held: tuple[float, Instant] | None = None  # GPUs idle under an ack at the last good cycle, and when

    def enter(self, plan: decision.Plan, seen: cluster.Snapshot) -> None:
        if self._seen[0] is not seen.workloads or self._seen[1] is not seen.namespaces:
            self._seen = seen.workloads, seen.namespaces
            self._covered = dict(find_covered(seen))
            standing = set(self._covered.values())
            if self._known is not None:
                self._metrics.add("gpu_pruner_acknowledgments_total", len(standing - self._known))
            self._known = standing
            there = {each.ref.uid for each in seen.workloads}
            self._prevented = {uid: until for uid, until in self._prevented.items() if uid in there}
        if self._held is not None:
            self._metrics.add("fallow_idle_acked_gpu_seconds_total", self._held[0] * max(0.0, plan.at - self._held[1]))
        held = 0
        for index, (_, until) in self._covered.items():
            finding = plan.findings[index]
            held += finding.idle_gpus if finding.skip is decision.Reason.Acknowledged else 0
            uid = finding.workload.ref.uid
            if finding.verdict is decision.Verdict.active:
                self._prevented.pop(uid, None)
            elif finding.skip is decision.Reason.Acknowledged and self._prevented.get(uid) != until:
                self._prevented[uid] = until
                self._metrics.add("gpu_pruner_scaledowns_prevented_total")
        self._held = held, plan.at

    def forget(self) -> None:
        """A cycle failed: until the next good one nothing is known."""
        self._held = None


def find_open(plan: decision.Plan, seen: cluster.Snapshot) -> dict[str, KeepingAck]:
    """By uid of the workload: the acknowledgements that keep idle ones. Its id is the same as long as it is the same
    one: for whom, until when."""
    found = {}
    for index, (whose, until) in find_covered(seen):
        if plan.findings[index].skip is decision.Reason.Acknowledged:
            workload = seen.workloads[index]
            space = seen.namespaces.known.get(workload.ref.namespace)
            ack = marks.find_ack(workload, space, plan.findings[index].rule.consent.max_ack, plan.at)
            found[workload.ref.uid] = KeepingAck(name_ack((whose, until)), ack.at if ack else None)
    return found


def name_ack(ack: Ack) -> str:
    """As the ledger has it."""
    return cost.as_booked("@".join(ack))


def find_covered(seen: cluster.Snapshot) -> Iterator[tuple[int, Ack]]:
    read = marks.ack_until
    spaces = {name: until for name, space in seen.namespaces.known.items() if (until := read(space.annotations))}
    for index, workload in enumerate(seen.workloads):
        if until := read(workload.marks) or read(workload.annotations):
            yield index, (workload.ref.uid, until)
        elif workload.ref.namespace in spaces:
            yield index, (workload.ref.namespace, spaces[workload.ref.namespace])
