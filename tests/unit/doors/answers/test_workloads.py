"""Answers as data: the same words for the terminal, JSON and YAML. What is not known is null and never 0."""

import json

import msgspec
import pytest
import yaml
from tests import builders
from tests.builders import HOUR, MINUTE, NOW, World

from fallow.decide.idle import plan as brain
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import show
from fallow.model import decision, usage

MANDATE = builders.mandate()


def judged(world):
    snapshot = world.snapshot()
    return snapshot, brain.make_plan(snapshot, MANDATE, decision.Memory(), world.now)


def plain(answer):
    """As it is on the wire."""
    return json.loads(msgspec.json.encode(answer))


def row_of(world, index=0):
    seen, plan = judged(world)
    return telling.line(telling.make_row(answers.count(plan, index), seen, NOW))


def first_row(world):
    return plain(row_of(world))


def first_explanation(world):
    findings = judged(world)[1].findings
    return plain(answers.explanation(findings[0], findings.evidence(0), None, NOW))


WORLDS = {
    "idle": [builders.idle(for_=2 * HOUR)], "active": [builders.busy()], "never-used": [builders.never_used()],
    "unmeasured": [builders.unseen()], "stale": [builders.idle(age=10 * MINUTE)],
    "mixed": [builders.idle(), builders.busy()],
    "not-looked-back": [builders.idle(looked_back=False)],
}


def world_of(name):
    world = World()
    world.workload("ml/llm", gpus=WORLDS[name])
    return world


@pytest.mark.parametrize("name", WORLDS)
def test_every_answer_can_be_written_in_every_form(name):
    """Plain strings, numbers, booleans and null: nothing of the brain's own columns slips through."""
    plan = judged(world_of(name))[1]
    one, evidence = answers.count(plan, 0), plan.findings.evidence(0)
    for answer in (row_of(world_of(name)), answers.explanation(one.finding, evidence, None, NOW)):
        assert plain(answer) == json.loads(json.dumps(msgspec.to_builtins(answer)))  # json knows no numpy
        assert yaml.safe_load(show.encode(answer, "yaml")) == json.loads(show.encode(answer, "json")) == plain(answer)


def keys_of(value):
    """Every name of a field, but those of maps: signals have their own names, and pointers are no names."""
    if isinstance(value, list):
        return {key for each in value for key in keys_of(each)}
    if not isinstance(value, dict):
        return set()
    rest = {key: each for key, each in value.items() if key not in ("signals", "patch", "returnsTo")}
    return set(rest) | keys_of(list(rest.values()))


@pytest.mark.parametrize("name", WORLDS)
def test_names_are_camel_case(name):
    assert [key for key in keys_of([first_row(world_of(name)), first_explanation(world_of(name))]) if "_" in key] == []


def test_an_idle_row_says_since_when_and_what_comes_next():
    row = first_row(world_of("idle"))
    assert (row["kind"], row["namespace"], row["name"], row["apiVersion"]) == ("Deployment", "ml", "llm", "apps/v1")
    assert (row["verdict"], row["reason"], row["gpus"], row["idleGpus"]) == ("idle", "GoneIdle", 1, 1)
    assert (row["idleSince"], row["idleSeconds"], row["atLeast"]) == ("2026-11-15T10:00:00Z", 7200, False)
    assert (row["skip"], row["nextAction"]) == (None, {"type": "pause", "at": "2026-11-15T12:00:00Z"})


@pytest.mark.parametrize("name", ["active", "unmeasured", "stale", "mixed"])
def test_what_is_not_idle_has_no_idle_time_and_no_next_step(name):
    row = first_row(world_of(name))
    assert row["verdict"] != "idle"
    assert [row[field] for field in ("idleSince", "idleSeconds", "nextAction", "skip", "skipBecause")] == [None] * 5
    assert row["because"]


@pytest.mark.accepts("idle", 30)
def test_an_explanation_has_the_evidence_gpu_by_gpu():
    world = World()
    world.workload(
        "ml/llm", gpus=[builders.idle(), builders.busy()],
        annotations={"gpuautoscaler.io/ack-until": "2026-11-15T20:00:00Z"},
    )
    answer = first_explanation(world)
    assert set(answer) >= {
        "workload", "verdict", "reasons", "skips", "policy", "idleSince", "atLeast", "windowSeconds", "coverage",
        "gpus", "owner",
        "nextAction", "patch", "cost",
    }
    assert [(gpu["uuid"], gpu["verdict"], gpu["signals"]["gr_engine"]["max"]) for gpu in answer["gpus"]] == [
        ("GPU-0", "idle", 0.0), ("GPU-1", "active", 0.9),
    ]
    assert answer["gpus"][0]["signals"]["gr_engine"] == {"max": 0.0, "samples": 60, "newest": "2026-11-15T11:59:45Z"}
    assert (answer["windowSeconds"], answer["policy"], answer["asOf"]) == (1800, "flags", "2026-11-15T12:00:00Z")


@pytest.mark.accepts("idle", 30)
def test_an_explanation_names_the_signals_that_were_lost():
    findings = judged(world_of("idle"))[1].findings
    lost = (usage.LostSignal("tensor", "Prometheus answered 422"),)
    seen = usage.Evidence(at=NOW, usage={}, trouble=None, unallocated=0, gpus_per_node={}, lost_signals=lost)
    answer = plain(answers.explanation(findings[0], findings.evidence(0), None, NOW, seen))
    assert answer["lostSignals"] == [{"signal": "tensor", "because": "Prometheus answered 422"}]


def test_an_explanation_of_what_is_left_alone_names_the_skip():
    world = World()
    world.workload("ml/llm", annotations={"gpuautoscaler.io/idle": "ignore"})
    answer = first_explanation(world)
    assert (answer["verdict"], answer["nextAction"]) == ("idle", None)
    assert [skip["skip"] for skip in answer["skips"]] == ["OptedOut"]


def test_coverage_that_is_not_known_is_null():
    assert first_explanation(world_of("unmeasured"))["coverage"] is None
    assert first_explanation(world_of("idle"))["coverage"] == 1.0


def test_what_stands_paused_is_shown_as_that_and_since_when():
    world = World()
    world.workload("ml/llm", pods=[], body={"spec": {"replicas": 0}}, annotations=builders.paused_marks(NOW - HOUR))
    world.workload("ml/web", pods=[], body={"spec": {"replicas": 0}})  # by somebody else
    ours, others = (judged(world)[1].findings[index] for index in range(2))
    rows = [row_of(world, index) for index in range(2)]
    assert [row.paused_at for row in rows] == ["2026-11-15T11:00:00Z", None]
    assert (answers.verdict(ours), answers.verdict(others)) == ("paused", "unknown")
    assert first_explanation(world)["pausedAt"] == "2026-11-15T11:00:00Z"


def test_a_paused_one_tells_what_paused_it_and_what_it_returns_to():
    world = World()
    said = {"paused_reason": "2 GPUs idle for 1h (policy nightly)", "paused_policy": "nightly"}
    marks = builders.paused_marks(NOW - HOUR, gpus=2, **said)
    world.workload("ml/llm", pods=[], body={"spec": {"replicas": 0}}, annotations=marks)
    pause = first_explanation(world)["pause"]
    assert pause == {
        "at": "2026-11-15T11:00:00Z", "by": "fallow", "policy": "nightly", "gpus": 2, "replicas": 3,
        "reason": "2 GPUs idle for 1h (policy nightly)", "returnsTo": {"/spec/replicas": 3},
    }
    assert first_explanation(world_of("idle"))["pause"] is None


@pytest.mark.parametrize(
    ("replicas", "fields", "said"),
    [
        (3, {"/spec/replicas": 3}, "3 replicas"), (1, {}, "1 replica"),
        (None, {"/spec/suspend": None}, "spec.suspend not set"), (None, {"/spec/suspend": False}, "spec.suspend false"),
        (None, {"/metadata/annotations/serving.kserve.io~1stop": "false"}, "serving.kserve.io/stop false"),
        (None, {}, "not known: its record cannot be read; say so with `fallow resume --replicas N`"),
    ],
    ids=str,
)
def test_the_size_to_return_to_is_said_in_words(replicas, fields, said):
    nothing = dict.fromkeys(("at", "by", "policy", "reason", "gpus"))
    pause = answers.PauseTold(**nothing, replicas=replicas, returns_to=fields)
    assert answers.return_size(pause) == said


def many_workloads():
    world = World()
    for number, gpus in enumerate(WORLDS.values()):
        world.workload(f"{'ml' if number % 2 else 'web'}/w{number}", gpus=gpus)
    return world


def test_what_is_counted_is_what_the_cycle_counts():
    plan = judged(many_workloads())[1]
    view, totals = answers.view(plan), plan.totals
    assert (view.active, view.idle, view.unknown) == (totals.active_gpus, totals.idle_gpus, totals.unknown_gpus)
    assert sum(one.gpus for one in view.workloads) == totals.gpus == 8


def test_without_measurements_every_gpu_is_one_that_cannot_be_told():
    world = many_workloads()
    world.trouble = usage.SourceTrouble("SourceError", "gone")
    view = answers.view(judged(world)[1])
    assert (view.active, view.idle, view.unknown) == (0, 0, 8)


T4, A100, STRANGE = "Tesla-T4", "NVIDIA A100-SXM4-80GB", "NVIDIA-Foo-9000"


@pytest.mark.parametrize(("sort", "order"), [
    ("cost", ["dear", "cheap", "two", "strange"]), ("time", ["strange", "cheap", "dear", "two"]),
    ("gpus", ["two", "cheap", "dear", "strange"]), ("name", ["cheap", "dear", "strange", "two"]),
])
def test_idle_workloads_are_in_order_of_what_they_have_cost_unless_somebody_asks_otherwise(sort, order):
    """An A100 for two hours has cost more than a T4 for ten; what has no price is behind those that have one."""
    world = World()
    world.workload("ml/two", gpus=[builders.idle(model=T4, for_=1 * HOUR)] * 2)
    world.workload("ml/dear", gpus=[builders.idle(model=A100, for_=2 * HOUR)])
    world.workload("ml/cheap", gpus=[builders.idle(model=T4, for_=10 * HOUR)])
    world.workload("ml/strange", gpus=[builders.idle(model=STRANGE, for_=20 * HOUR)])
    seen, plan = judged(world)
    rows = [telling.make_row(one, seen, NOW) for one in answers.view(plan).workloads]
    assert [row.name for row in telling.listed(rows, everything=False, sort=sort)] == order


def test_partly_idle_ones_are_listed_after_the_idle_ones_and_the_sums_agree():
    """"Five idle replicas of ten are reported"."""
    seen, plan = judged(many_workloads())
    view = answers.view(plan)
    rows = [telling.make_row(one, seen, NOW) for one in view.workloads]
    shown = telling.listed(rows, everything=False)
    assert sum(row.idle_instances for row in shown) == view.idle
    assert [row.is_partly_idle for row in shown] == [False, False, False, True]
    assert [answers.next_step(telling.line(row)) for row in shown][-1] == "reported only"
    assert len(telling.listed(rows, everything=True)) == len(WORLDS)


def test_only_what_was_asked_for_is_there():
    world = many_workloads()
    world.workload("ml/h100", gpus=[builders.idle(model="NVIDIA H100")])
    world.workload("ml/both", gpus=[builders.idle(model="NVIDIA H100"), builders.idle()])
    plan = judged(world)[1]

    def names(*patterns):
        asked = (None if each is None else builders.pattern(each) for each in patterns)
        return {str(one.finding.workload.ref.name) for one in answers.view(plan, *asked).workloads}

    assert names("ml") == {"w1", "w3", "w5", "h100", "both"}
    assert names("ml|web") == names() == {f"w{number}" for number in range(len(WORLDS))} | {"h100", "both"}
    assert names(None, "NVIDIA H100") == {"h100"}
    assert names("m") == set()
