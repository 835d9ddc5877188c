"""What cycles add up to: GPU seconds, acks, pauses prevented, what is paused and waited for, the log's sentence."""

import msgspec
import pytest
from prometheus_client import parser
from tests import builders
from tests.builders import NOW

from fallow import names, telemetry
from fallow.account import tally
from fallow.decide.idle import plan as brain
from fallow.model import cluster, decision, usage
from fallow.model.decision import Outcome, Status
from fallow.model.units import HOUR, rfc3339

IDLE, ACTIVE = "fallow_workload_idle_gpu_seconds_total", "fallow_workload_active_gpu_seconds_total"


class Entries:
    """Books, and cycles to enter."""

    def __init__(self, *, dry_run: bool = False) -> None:
        self.metrics = telemetry.Telemetry()
        self.books = tally.Books(self.metrics, dry_run=dry_run, source="prometheus")

    def enter(self, seen: cluster.Snapshot, *outcomes: Outcome, failure: str = "") -> decision.Plan:
        plan = brain.make_plan(seen, builders.mandate(), decision.Memory(), seen.taken_at)
        self.books.enter(decision.Cycle(plan, seen, outcomes, failure, 0.1), seen.taken_at)
        return plan

    def read(self, name: str) -> dict[tuple[str, ...], float]:
        families = parser.text_string_to_metric_families(self.metrics.text().decode())
        return {
            tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value
            for family in families for sample in family.samples if sample.name == name
        }

    def number(self, name: str) -> float:
        return self.read(name)[()]


def later(seen: cluster.Snapshot, seconds: float, **said) -> cluster.Snapshot:
    """The very same objects, looked at again."""
    return msgspec.structs.replace(seen, taken_at=seen.taken_at + seconds, **said)


def decided(seen: cluster.Snapshot, kind: type[decision.Decision]) -> decision.Decision:
    """The one decision of this kind."""
    plan = brain.make_plan(seen, builders.mandate(), decision.Memory(), NOW)
    [found] = [each for each in plan.decisions if isinstance(each, kind)]
    return found


# ---- GPU seconds ---------------------------------------------------------------------------------------------------


def test_gpu_seconds_run_from_one_good_cycle_to_the_next():
    entries, world = Entries(), builders.World()
    world.workload("ml/quiet", gpus=[builders.idle()] * 2, replicas=2)
    world.workload("ml/mixed", gpus=[builders.idle(), builders.busy()])
    world.workload("ml/unseen", gpus=[builders.unseen()])
    seen = world.snapshot()
    entries.enter(seen)
    assert (entries.read(IDLE), entries.read(ACTIVE)) == ({}, {})
    entries.enter(later(seen, 10))
    assert entries.read(IDLE) == {("Deployment", "quiet", "ml"): 40, ("Deployment", "mixed", "ml"): 10}
    assert entries.read(ACTIVE) == {("Deployment", "mixed", "ml"): 10}
    entries.enter(later(seen, 15))
    entries.enter(later(seen, 20))
    assert entries.read(ACTIVE) == {("Deployment", "mixed", "ml"): 20}  # also when nobody scraped between


def test_nothing_is_counted_over_a_cycle_that_failed():
    entries, world = Entries(), builders.World()
    world.workload("ml/busy", gpus=[builders.busy()])
    seen = world.snapshot()
    entries.enter(seen)
    entries.enter(later(seen, 100), failure="no Prometheus")
    entries.enter(later(seen, 200))
    assert entries.read(ACTIVE) == {}
    entries.enter(later(seen, 205))
    assert entries.read(ACTIVE) == {("Deployment", "busy", "ml"): 5}


def test_what_a_workload_held_until_it_changed_is_not_lost():
    entries, world = Entries(), builders.World()
    world.workload("ml/busy", gpus=[builders.busy()])
    entries.enter(world.snapshot())
    world.workload("ml/new", gpus=[builders.busy()])
    seen = later(world.snapshot(), 10)
    entries.enter(seen)
    entries.enter(later(seen, 5))
    assert entries.read(ACTIVE) == {("Deployment", "busy", "ml"): 15, ("Deployment", "new", "ml"): 5}


def test_gpu_seconds_are_bounded_in_series(monkeypatch):
    monkeypatch.setattr(telemetry, "MOST_WORKLOAD_SERIES", 2)
    entries, world = Entries(), builders.World()
    for index in range(5):
        world.workload(f"ml/busy-{index}", gpus=[builders.busy()])
    seen = world.snapshot()
    for seconds in (0, 10, 20):
        entries.enter(later(seen, seconds))
    assert entries.read(ACTIVE) == {
        ("Deployment", "busy-0", "ml"): 20, ("Deployment", "busy-1", "ml"): 20, ("_other",) * 3: 60
    }


# ---- acks ----------------------------------------------------------------------------------------------------------


def acked(until: float = NOW + HOUR) -> dict[str, str]:
    return {names.ACK_UNTIL: rfc3339(until), names.ACK_AT: rfc3339(NOW - 60)}


def of(annotations: dict[str, str] | None, gpu: builders.Gpu | None = None) -> cluster.Snapshot:
    world = builders.World()
    world.workload("ml/llm", gpus=[gpu or builders.idle()], annotations=annotations)
    return world.snapshot()


def acks_of(entries: Entries) -> tuple[float, float]:
    return entries.number("gpu_pruner_acknowledgments_total"), entries.number("gpu_pruner_scaledowns_prevented_total")


def test_an_ack_counts_once_and_prevents_once_per_episode():
    entries = Entries()
    entries.enter(of(None))
    assert acks_of(entries) == (0, 0)
    given = of(acked())
    for seconds in (0, 60, 120):
        entries.enter(later(given, seconds))
    assert acks_of(entries) == (1, 1)
    entries.enter(of(acked(), builders.busy()))  # used again: the episode is over
    assert acks_of(entries) == (1, 1)
    entries.enter(of(acked()))
    assert acks_of(entries) == (1, 2)
    entries.enter(of(acked(NOW + 2 * HOUR)))  # another ack
    assert acks_of(entries) == (2, 3)


def test_an_ack_that_stood_before_us_was_counted_by_another():
    entries = Entries()
    entries.enter(of(acked()))
    assert acks_of(entries) == (0, 1)


def test_an_ack_of_a_namespace_is_one_ack_and_prevents_each_of_its_pauses():
    entries = Entries()
    entries.enter(of(None))
    world = builders.World()
    for name in ("ml/a", "ml/b", "other/c"):
        world.workload(name)
    world.namespace("ml", annotations=acked())
    entries.enter(world.snapshot())
    assert acks_of(entries) == (1, 2)


def test_nothing_is_known_of_acks_in_a_cycle_that_failed():
    entries, world = Entries(), builders.World()
    world.workload(annotations=acked())
    world.trouble = usage.SourceTrouble("SourceError", "no Prometheus")
    entries.enter(world.snapshot(), failure="no Prometheus")
    assert acks_of(entries) == (0, 0)


# ---- what stands in the cluster ------------------------------------------------------------------------------------


def test_the_gauges_of_the_last_known_check_outlive_a_failure():
    entries, world = Entries(), builders.World()
    world.workload("ml/quiet", gpus=[builders.idle()] * 4)
    entries.enter(world.snapshot())
    world.trouble = usage.SourceTrouble("SourceError", "no Prometheus")
    entries.enter(world.snapshot(), failure="no Prometheus")
    assert entries.number("gpu_pruner_idle_gpus") == 4  # not 0: nobody knows
    assert entries.number("gpu_pruner_query_failures_total") == 1
    assert entries.read("fallow_idle_source_up") == {("prometheus",): 0}
    assert entries.read("fallow_idle_workloads") == {("SourceDown", "unknown"): 1}
    assert entries.number("gpu_pruner_pods_checked_total") == 1


def test_coverage_is_that_of_the_worst_gpu_of_a_node():
    entries, world = Entries(), builders.World()
    world.workload("ml/a", gpus=[builders.idle(), builders.idle(coverage=0.25)], pod={"node": "n1"})
    world.workload("ml/b", gpus=[builders.busy(coverage=0.9)], pod={"node": "n2"})
    entries.enter(world.snapshot())
    assert entries.read("fallow_idle_coverage_ratio") == {("n1",): pytest.approx(0.25), ("n2",): pytest.approx(0.9)}
    world = builders.World()
    world.workload("ml/b", pod={"node": "n2"})
    entries.enter(world.snapshot())
    assert entries.read("fallow_idle_coverage_ratio") == {("n2",): 1}


def test_gpus_are_waited_for_after_a_minute():
    entries, world = Entries(), builders.World()
    world.workload("ml/quiet")
    for name, since in (("patient", NOW - 61), ("fresh", NOW - 10)):
        waits = {"node": "", "phase": "Pending", "started_at": None, "unschedulable_since": since}
        world.workload(f"ml/{name}", gpus=[builders.unseen()] * 2, pod=waits)
    seen = world.snapshot()
    entries.enter(seen)
    assert entries.number("fallow_idle_pressure_gpus") == 2
    entries.enter(later(seen, 60))
    assert entries.number("fallow_idle_pressure_gpus") == 4


def test_paused_ones_are_counted_while_the_pause_stands():
    entries, world = Entries(), builders.World()
    world.workload("ml/paused", pods=[], body={"spec": {"replicas": 0}}, annotations=builders.paused_marks(NOW - HOUR))
    world.workload("ml/undone", body={"spec": {"replicas": 2}}, annotations=builders.paused_marks(NOW - HOUR))
    entries.enter(world.snapshot())
    assert entries.read("fallow_idle_paused_workloads") == {("Deployment",): 1}


# ---- what was done -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dry_run", "status", "done", "failed"),
    [(False, Status.done, 1, 0), (False, Status.failed, 0, 1), (False, Status.overtaken, 0, 0),
     (True, Status.dry_run, 0, 0)],
    ids=["done", "failed", "overtaken", "dry"],
)
def test_only_real_pauses_count(dry_run, status, done, failed):
    entries, world = Entries(dry_run=dry_run), builders.World()
    world.workload("ml/llm")
    seen = world.snapshot()
    pause = decided(seen, decision.Pause)
    entries.enter(seen, Outcome(pause, status, NOW, ""))
    assert entries.number("gpu_pruner_scale_successes_total") == done
    assert entries.number("gpu_pruner_scale_failures_total") == failed
    assert entries.read("gpu_pruner_scales_total") == ({("Deployment", "llm", "ml"): 1} if done else {})
    mode = "dry-run" if dry_run else "scale-down"
    assert entries.read("fallow_idle_actions_total") == {("pause", "Deployment", mode, str(status)): 1}


def test_a_pause_that_others_undid_is_a_fight_and_an_external_resume():
    entries, world = Entries(), builders.World()
    marks = builders.paused_marks(NOW - HOUR)
    world.workload("ml/undone", gpus=[builders.busy()], body={"spec": {"replicas": 2}}, annotations=marks)
    seen = world.snapshot()
    mark = decided(seen, decision.Mark)
    entries.enter(seen, Outcome(mark, Status.done, NOW, ""))
    assert entries.read("fallow_idle_fights_total") == {("Deployment",): 1}
    assert entries.read("fallow_idle_resumes_total") == {("external", "Deployment"): 1}


def test_the_sentence_of_a_cycle():
    world = builders.World()
    world.workload("ml/llm", gpus=[builders.idle(46 * 60)] * 2)
    world.workload("ml/kept", annotations=acked())
    world.workload("ml/busy", gpus=[builders.busy()])
    world.workload("ml/unseen", gpus=[builders.unseen()])
    plan = brain.make_plan(world.snapshot(), builders.mandate(), decision.Memory(), NOW)
    [pause] = [each for each in plan.decisions if isinstance(each, decision.Pause)]
    assert tally.sentence(plan, [Outcome(pause, Status.done, NOW, "")], "") == (
        "looked at 5 GPUs in 4 workloads: 1 busy, 3 idle (2 workloads: 1 acknowledged), "
        "1 cannot tell (MissingGpuSeries 1); paused ml/llm (2 GPUs idle 46m)"
    )


def test_an_audit_line_says_who_did_what_to_whom_and_why():
    world = builders.World()
    world.workload("ml/llm")
    pause = decided(world.snapshot(), decision.Pause)
    fields = tally.audit_fields(Outcome(pause, Status.failed, NOW, "403", {"/spec/replicas": 1}, None))
    assert fields["workload"] == {
        "group": "apps", "kind": "Deployment", "namespace": "ml", "name": "llm", "uid": "uid-ml/llm"
    }
    who = [fields[name] for name in ("audit", "actor", "result", "policy")]
    assert who == ["Pause", "fallow", "failed", "flags"]
    assert (fields["verdict"], fields["before"]) == ("idle", {"/spec/replicas": 1})


# ---- what was given back, and what was kept --------------------------------------------------------------------------


def test_what_rests_by_a_pause_of_ours_gives_back_its_gpus_while_it_is_seen():
    entries, world = Entries(), builders.World()
    for name, by, gpus, at in (
        ("ours", "fallow", 4, NOW - HOUR), ("hers", "user:ana", 8, NOW - HOUR),
        ("old", "fallow", 2, NOW - 31 * 24 * HOUR),
    ):
        marks = builders.paused_marks(at, gpus=gpus) | {names.PAUSED_BY: by}
        world.workload(f"ml/{name}", gpus=[], pods=[], annotations=marks, body={"spec": {"replicas": 0}})
    seen = world.snapshot(version=1)
    entries.enter(seen)
    entries.enter(later(seen, 60))
    entries.enter(later(seen, 120), failure="Prometheus does not answer")
    entries.enter(later(seen, 600))
    entries.enter(later(seen, 660))
    assert entries.read("fallow_idle_saved_gpu_seconds_total") == {("scale-down",): 4 * 120.0}


NODES = {
    "slices": ('{"node-1":{"nvidia.com/mig-3g.40gb":2}}', 2, 1.0), "whole": ('{"node-1":{"nvidia.com/gpu":2}}', 2, 2.0),
    "some-of-them": ('{"node-1":{"nvidia.com/mig-3g.40gb":2}}', 3, 2.0), "not-told": ("", 3, 3.0),
}


@pytest.mark.parametrize(("nodes", "pieces", "gpus"), NODES.values(), ids=NODES)
def test_what_is_given_back_is_physical_gpus_and_not_pieces_of_them(nodes: str, pieces: int, gpus: float):
    entries, world = Entries(), builders.World()
    world.node("node-1", product="NVIDIA-A100-SXM4-80GB")
    marks = builders.paused_marks(NOW - HOUR, gpus=pieces) | {names.PAUSED_BY: "fallow", names.PAUSED_NODES: nodes}
    world.workload("ml/llm", gpus=[], pods=[], annotations=marks, body={"spec": {"replicas": 0}})
    seen = world.snapshot(version=1)
    entries.enter(seen)
    entries.enter(later(seen, 60))
    assert entries.read("fallow_idle_saved_gpu_seconds_total") == {("scale-down",): pytest.approx(gpus * 60.0, rel=0.2)}


def test_prevented_pauses_are_remembered_of_workloads_that_are_there_and_once_each():
    entries = Entries()
    for number in range(50):  # an ack that is given anew, and workloads that come and go
        world = builders.World()
        world.workload("ml/llm", gpus=[builders.idle()], annotations=acked(NOW + HOUR + number))
        world.workload(f"ml/gone-{number}", gpus=[builders.idle()], annotations=acked())
        entries.enter(world.snapshot(version=number))
    assert entries.number("gpu_pruner_scaledowns_prevented_total") == 100
    assert len(entries.books._acks._prevented) == 2


def test_gpu_seconds_under_an_acknowledgement_are_counted_while_it_is_seen():
    entries, world = Entries(), builders.World()
    ack = {names.ACK_UNTIL: rfc3339(NOW + HOUR), names.ACK_AT: rfc3339(NOW - HOUR)}
    world.workload("ml/kept", gpus=[builders.idle()] * 3, annotations=ack)
    world.workload("ml/quiet", gpus=[builders.idle()])
    seen = world.snapshot(version=1)
    entries.enter(seen)
    entries.enter(later(seen, 60))
    entries.enter(later(seen, 120), failure="Prometheus does not answer")
    entries.enter(later(seen, 600))
    assert entries.number("fallow_idle_acked_gpu_seconds_total") == 180.0

