"""Workloads as Kubernetes shows them: what the product reads of them, and what their operators make of a pause."""

from __future__ import annotations

import pytest

from fallow import names
from fallow.model import kinds, objections, pointers
from fallow.model.policies import idle
from fallow.sim.world import edits, shapes


def make(kind: str) -> dict[str, object]:
    return shapes.make_workload(
        kind, "ml", "thing", "u-1", replicas=3, gpus=2, resource=names.GPU, group_size=2, class_="batch"
    )


@pytest.mark.parametrize("kind", shapes.SHAPES)
def test_what_the_product_pauses_by_is_what_the_operator_stops_by(kind: str) -> None:
    """Two tables, written apart: the product's fields of a pause, and what each operator is documented to heed."""
    thing = make(kind)
    row = kinds.of(edits.see(thing))
    assert row is not None
    assert shapes.wanted(thing) in (3, None)
    assert not kinds.is_paused(row, edits.see(thing))
    paused = pointers.apply_merge_patch(
        thing, pointers.merge_patch(thing, row.pauses(edits.see(thing), idle.Rule(), 0.0))
    )
    assert shapes.wanted(paused) == 0
    assert kinds.is_paused(row, edits.see(paused))


@pytest.mark.parametrize("kind", shapes.SHAPES)
def test_nothing_about_it_speaks_against_a_pause(kind: str) -> None:
    thing = make(kind)
    workload = edits.see(thing)
    row = kinds.of(workload)
    assert row is not None
    assert objections.find(row, workload, idle.Rule()) is None
    assert not kinds.is_finished(row, workload.body)


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "AppWrapper", "RayJob", *shapes.TRAINING_JOBS])
def test_what_has_ended_says_so_in_its_own_words(kind: str) -> None:
    thing = make(kind)
    ended = {**thing, "status": shapes.make_status(thing, 0, 0.0, finished=True)}
    workload = edits.see(ended)
    row = kinds.of(workload)
    assert row is not None
    assert kinds.is_finished(row, workload.body)


def test_a_service_of_kserve_with_an_autoscaler_reads_zero_as_one() -> None:
    thing = make("InferenceService")
    thing["spec"] = {"predictor": {"minReplicas": 0}}
    assert shapes.wanted(thing) == 1


def test_every_foreign_kind_has_a_definition() -> None:
    defined = {(each["spec"]["group"], each["spec"]["names"]["kind"]) for each in shapes.make_definitions()}
    foreign = {
        (row.api_version.partition("/")[0], kind) for kind, row in shapes.SHAPES.items() if "." in row.api_version
    }
    assert defined == foreign
