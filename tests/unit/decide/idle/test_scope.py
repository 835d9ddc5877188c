"""Scope is scope: what the flags leave out is not ours, whatever stands on it."""

from typing import Any

import pytest
from tests import builders
from tests.builders import NOW, World, busy, idle, pattern, paused_marks, pending_marks

from fallow import names
from fallow.decide.idle import plan
from fallow.model.decision import Alert, Mark, Memory
from fallow.model.policies.idle import IdlePolicy, Scope
from fallow.model.selectors import Selector
from fallow.model.units import HOUR, MINUTE, rfc3339

POLITE = builders.rule(notice=builders.notice(grace=5 * MINUTE))
OUTSIDE: dict[str, dict[str, Any]] = {
    "other-namespace": {"namespace": pattern("web")},
    "excluded-namespace": {"exclude_namespaces": pattern("m.")},
    "protected-namespace": {"protected_namespaces": pattern("ml")},
    "not-watched": {"watch_namespaces": ("web",)},
    "excluded-pod": {"exclude_pods": pattern("llm-.*")},
    "other-model": {"model": pattern("NVIDIA T4")},
    "other-letter": {"letters": frozenset("s")},
}
MARKED: dict[str, dict[str, Any]] = {
    "notice-and-idle": {"annotations": pending_marks(NOW - 7 * 24 * HOUR)},
    "notice-and-busy": {"annotations": pending_marks(NOW - MINUTE), "gpus": [busy()]},
    "notice-and-opted-out": {
        "annotations": {**pending_marks(NOW - MINUTE), names.OPT_OUT: names.OPT_OUT_VALUE}
    },
    "ack-by-hand": {"annotations": {names.ACK_UNTIL: rfc3339(NOW + HOUR)}},
    "ack-unreadable": {"annotations": {names.ACK_UNTIL: "tomorrow"}},
    "ack-expired": {"annotations": {names.ACK_UNTIL: rfc3339(NOW - HOUR)}},
    "asked-back": {
        "annotations": paused_marks(NOW - HOUR, resume_requested="me"), "body": {"spec": {"replicas": 0}}
    },
    "undone-by-others": {"annotations": paused_marks(NOW - HOUR)},
    "idle-and-unmarked": {},
}


def make(world: World, **scope: Any) -> Any:
    mandate = builders.mandate(POLITE, scope=Scope(**{"letters": frozenset("ds"), **scope}))
    return plan.make_plan(world.snapshot(), mandate, Memory(), NOW)


@pytest.mark.accepts("idle", 57)
@pytest.mark.parametrize("said", MARKED.values(), ids=MARKED.keys())
@pytest.mark.parametrize("scope", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_nothing_is_written_on_what_is_not_ours(scope: dict[str, Any], said: dict[str, Any]) -> None:
    world = World()
    world.workload(**said)
    assert make(world).decisions != ()
    assert make(world, **scope).decisions == ()


def test_what_we_paused_under_a_model_is_still_ours_without_pods() -> None:
    world = World()
    marks = paused_marks(NOW - HOUR, resume_requested="me")
    world.workload(annotations=marks, pods=[], body={"spec": {"replicas": 0}})
    (resume,) = make(world, model=pattern("NVIDIA A100")).decisions
    assert resume.by == "me"


def test_what_a_policy_is_not_for_loses_its_notice() -> None:
    world = World()
    world.workload(annotations=pending_marks(NOW - MINUTE))
    mandate = builders.mandate(builders.rule(kinds=frozenset({"StatefulSet"})))
    (mark,) = plan.make_plan(world.snapshot(), mandate, Memory(), NOW).decisions
    assert isinstance(mark, Mark)


@pytest.mark.accepts("idle", 57)
@pytest.mark.parametrize(("asked", "reported"), [
    (None, {"both", "here", "nobody"}), ("ml", {"here"}), ("ml|web", {"both", "here"}),
])
def test_a_policy_is_reported_on_by_whose_namespaces_it_holds_in(asked: str | None, reported: set[str]) -> None:
    world = World()
    for place in ("ml/a", "ml/b", "web/c"):
        world.workload(place, labels={"for": "here" if place == "ml/a" else "both"})
    world.policies = [
        IdlePolicy(
            name=name, uid=name, generation=1, rule=builders.rule(name=name),
            workload_selector=Selector({"for": name}),
        )
        for name in ("both", "here", "nobody")
    ]
    assert make(world, namespace=asked and pattern(asked)).policies.keys() == reported


def test_an_unreadable_ack_does_not_keep_the_notice_of_a_busy_workload() -> None:
    world = World()
    world.workload(gpus=[busy()], annotations={names.ACK_UNTIL: "tomorrow", **pending_marks(NOW - MINUTE)})
    mark, alert = make(world).decisions
    assert isinstance(alert, Alert)
    assert alert.event == names.Event.INVALID_ACK
    assert (mark.because, set(mark.changes)) == ("it is active again", set(pending_marks(NOW)))


def test_a_quiet_one_outside_is_still_shown() -> None:
    world = World()
    world.workload(gpus=[idle()])
    assert make(world, namespace=pattern("web")).findings[0].skip == "Excluded"
