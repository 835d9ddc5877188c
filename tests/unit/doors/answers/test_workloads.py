"""Answers as data: the same words for the terminal, JSON and YAML. What is not known is null and never 0."""

import json

import msgspec
import pytest
import yaml
from tests import builders
from tests.builders import HOUR, MINUTE, NOW, World

from fallow.decide.idle import plan as brain
from fallow.doors.answers import workloads as answers
from fallow.model import decision, usage

MANDATE = builders.mandate()


def judged(world):
    snapshot = world.snapshot()
    return snapshot, brain.make_plan(snapshot, MANDATE, decision.Memory(), world.now)


def first_row(world):
    return answers.row(judged(world)[1].findings[0], NOW)


def first_explanation(world):
    findings = judged(world)[1].findings
    return answers.explanation(findings[0], findings.evidence(0), None, NOW)


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
    for answer in (
        first_row(world_of(name)), first_explanation(world_of(name)), answers.totals(judged(world_of(name))[1].totals)
    ):
        as_json = json.loads(msgspec.json.encode(answer))
        assert as_json == json.loads(json.dumps(answer))  # json knows no numpy
        assert yaml.safe_load(yaml.safe_dump(answer)) == as_json


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
    answer = answers.explanation(findings[0], findings.evidence(0), None, NOW, lost)
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
    assert (answers.row(ours, NOW)["pausedAt"], answers.row(others, NOW)["pausedAt"]) == ("2026-11-15T11:00:00Z", None)
    assert (answers.verdict(ours), answers.verdict(others)) == ("paused", "unknown")
    assert first_explanation(world)["pausedAt"] == "2026-11-15T11:00:00Z"


def test_totals_count_gpus_and_workloads():
    world = World()
    for number, gpus in enumerate(WORLDS.values()):
        world.workload(f"ml/w{number}", gpus=gpus)
    totals = answers.totals(judged(world)[1].totals)
    assert totals["workloads"] == sum(each["workloads"] for each in totals["verdicts"]) == len(WORLDS)
    assert totals["gpus"] == totals["activeGpus"] + totals["idleGpus"] + totals["unknownGpus"] == 8
