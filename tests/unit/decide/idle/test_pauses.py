"""What becomes of a pause: asked back, without effect, undone, fought over."""

import json
from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World, idle, paused_marks

from fallow import names
from fallow.decide.idle import pauses, plan
from fallow.model import cluster, usage
from fallow.model import marks as reading
from fallow.model.decision import Alert, Heading, Mark, Memory, Plan, Reason, Resume, Undo, Verdict
from fallow.model.long_memory import Freeze
from fallow.model.units import DAY, HOUR, MINUTE, rfc3339

ZERO = {"spec": {"replicas": 0}}
CHILD = cluster.Ref("apps", "v1", "Deployment", "ml", "child", "uid-child")


def make(world: World, **said: Any) -> Plan:
    return plan.make_plan(world.snapshot(**said), builders.mandate(), Memory(), NOW)


def acts(made: Plan) -> list[Any]:
    return [each for each in made.decisions if not isinstance(each, Alert)]


def test_a_paused_workload_is_left_alone() -> None:
    world = World()
    world.workload(pods=(), annotations=paused_marks(NOW - HOUR), body=ZERO)
    made = make(world)
    assert made.decisions == ()
    assert (made.findings[0].reason, made.findings[0].skip) == (Reason.NoGpuPods, Reason.AlreadyPaused)
    assert made.totals.verdicts == {Heading(Verdict.unknown, Reason.AlreadyPaused): 1}


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("text", [None, "{half a rec"], ids=["gone", "unreadable"])
def test_a_pause_without_its_record_is_told_with_the_way_back(text: str | None) -> None:
    world, said = World(), {**paused_marks(NOW - HOUR), names.ORIGINAL_REPLICAS: "3"}
    said = {key: value for key, value in said.items() if key != names.ORIGINAL_STATE}
    world.workload(pods=(), annotations=said | ({} if text is None else {names.ORIGINAL_STATE: text}), body=ZERO)
    (alert,) = make(world).decisions
    assert isinstance(alert, Alert)
    assert alert.event == names.Event.RESUME_FAILED
    assert alert.because.endswith("To bring it back: fallow resume Deployment/llm -n ml --replicas 3")


@pytest.mark.accepts("idle", 15)
@pytest.mark.parametrize("state", ["calm", "frozen", "source-down"])
@pytest.mark.parametrize(("value", "by"), [("ada", "ada"), ("", "annotation")])
def test_who_asks_for_it_gets_it_back_whatever_else_is_wrong(state: str, value: str, by: str) -> None:
    world = World()
    world.workload(pods=(), annotations={**paused_marks(NOW - HOUR), names.RESUME_REQUESTED: value}, body=ZERO)
    if state == "source-down":
        world.trouble = usage.SourceTrouble("SourceError", "no answer")
    (resume,) = make(world, freeze=Freeze(NOW + HOUR, "by hand") if state == "frozen" else None).decisions
    assert isinstance(resume, Resume)
    assert (resume.by, resume.remember) == (by, {})


def test_a_request_without_a_pause_is_taken_away_and_nothing_is_paused_meanwhile() -> None:
    world = World()
    world.workload(annotations={names.RESUME_REQUESTED: "ada"})
    made = make(world)
    (mark,) = acts(made)
    assert (mark.changes, mark.event) == ({names.RESUME_REQUESTED: None}, names.Event.RESUME_FAILED)
    assert made.findings[0].skip is Reason.Immune


# ---- verify --------------------------------------------------------------------------------------------------------


SLOW = {"spec": {"replicas": 0, "template": {"spec": {"terminationGracePeriodSeconds": 600}}}}


@pytest.mark.parametrize(("kind", "body", "paused_for", "is_said"), [
    ("Deployment", ZERO, 9.9 * MINUTE, False),
    ("Deployment", ZERO, 10 * MINUTE, True),
    ("StatefulSet", ZERO, 10 * MINUTE, False),
    ("StatefulSet", ZERO, 11.5 * MINUTE, True),
    ("StatefulSet", {"spec": {"replicas": 0, "podManagementPolicy": "Parallel"}}, 10 * MINUTE, True),
    ("StatefulSet", SLOW, 30 * MINUTE, False),
    ("StatefulSet", SLOW, 40 * MINUTE, True),
])
@pytest.mark.parametrize("terminating", [False, True], ids=["running", "terminating"])
def test_pods_that_stay_are_reported_once(
    kind: str, body: dict[str, Any], paused_for: float, is_said: bool, terminating: bool
) -> None:
    world = World()
    pods = [world.pod(gpus=[idle()], terminating=terminating)]
    world.workload(kind=kind, pods=pods, annotations=paused_marks(NOW - paused_for), body=body)
    marks = acts(make(world))
    assert [mark.event for mark in marks] == [names.Event.PAUSE_INEFFECTIVE] * is_said
    if is_said:
        assert marks[0].changes == {names.PAUSE_INEFFECTIVE_AT: rfc3339(NOW)}
        world.workloads.clear()
        noted = paused_marks(NOW - paused_for, pause_ineffective_at=rfc3339(NOW))
        world.workload(kind=kind, pods=pods, annotations=noted, body=body)
        assert acts(make(world)) == []


STOPPED = {names.KSERVE_STOP: "true"}
KSERVE = {
    "not-heeded": ({}, 120.0, "auto", True),
    "too-early": ({}, 119.0, "auto", False),
    "ready-false-stopped": (
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Stopped"}]}}, 200.0, "auto", False
    ),
    "stopped-true": ({"status": {"conditions": [{"type": "Stopped", "status": "True"}]}}, 200.0, "auto", False),
    "ready-false-otherwise": (
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Busy"}]}}, 200.0, "auto", True
    ),
    "told-to-use-stop": ({}, 200.0, "stop", False),
}


@pytest.mark.parametrize(("body", "paused_for", "method", "resumes"), KSERVE.values(), ids=KSERVE.keys())
def test_a_kserve_that_ignores_stop_gets_its_service_back_and_is_remembered(
    body: dict[str, Any], paused_for: float, method: Any, resumes: bool
) -> None:
    world = World()
    said = {**paused_marks(NOW - paused_for), **STOPPED}
    world.workload(kind="InferenceService", annotations=said, body=body, marks={}, marks_on=CHILD)
    rule = builders.rule()
    mandate = builders.mandate(
        msgspec.structs.replace(rule, action=msgspec.structs.replace(rule.action, kserve_method=method))
    )
    found = [
        each for each in plan.make_plan(world.snapshot(), mandate, Memory(), NOW).decisions if isinstance(each, Resume)
    ]
    assert [each.remember for each in found] == [{names.KSERVE_NO_STOP: rfc3339(NOW)}] * resumes


def test_a_stopped_inference_service_without_pods_is_simply_paused() -> None:
    world = World()
    world.workload(kind="InferenceService", pods=(), annotations={**paused_marks(NOW - HOUR), **STOPPED}, body={})
    assert make(world).decisions == ()


# ---- half taken, and half brought back -----------------------------------------------------------------------------

HALVES = {
    "a-webhook's-value": ({"spec": {"replicas": 1}}, True, Undo),
    "brought-back-already": ({"spec": {"replicas": 3}}, True, Resume),  # and whoever did was interrupted
    "somebody-else's": ({"spec": {"replicas": 1}}, False, Mark),
    "absent": ({"spec": {}}, True, Mark),
}


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize(("body", "is_ours", "what"), HALVES.values(), ids=HALVES)
def test_half_a_pause_is_put_back_and_no_resume_of_others(body: dict[str, Any], is_ours: bool, what: type) -> None:
    world = World()
    world.workload(annotations=paused_marks(NOW - MINUTE), body=body, is_ours=is_ours)
    (act,) = acts(make(world))
    assert type(act) is what


SCALER = cluster.Ref("keda.sh", "v1alpha1", "ScaledObject", "ml", "so", "uid-so")
KEDA_RECORD = (
    '{"v":1,"fields":{"/spec/replicas":3},'
    '"companions":[{"apiVersion":"keda.sh/v1alpha1","kind":"ScaledObject","name":"so"}]}'
)
LAST_RESUME = {names.RESUMED_AT: rfc3339(NOW - 30 * MINUTE), names.RESUMED_BY: "ada"}


def paused_by_keda(world: World, scaler: dict[str, str]) -> None:
    companions = [{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "so"}]
    record = {"v": 1, "fields": {"/spec/replicas": 3}, "companions": companions, "marks": LAST_RESUME}
    said = {**paused_marks(NOW - MINUTE), names.ORIGINAL_STATE: json.dumps(record)}
    body = {"spec": {"scaleTargetRef": {"name": "llm"}}}
    world.workload(annotations=said, scaled_objects=(cluster.Companion(SCALER, "9", {}, scaler, body),))


@pytest.mark.accepts("idle", 62)
def test_a_pause_that_was_begun_only_leaves_the_last_resume_as_it_was() -> None:
    world = World()
    paused_by_keda(world, {})
    (mark,) = acts(make(world))
    assert mark.changes == {**dict.fromkeys(paused_marks(NOW)), **LAST_RESUME}


@pytest.mark.parametrize("record", [{"fields": {"/spec/x": 1}}, {"marks": {names.ACK_UNTIL: "2099-01-01T00:00:00Z"}}])
def test_of_a_record_that_is_not_ours_nothing_is_put_back(record: dict[str, Any]) -> None:
    world = World()
    companions = [{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "so"}]
    said = {"v": 1, "fields": {"/spec/replicas": 3}, "companions": companions, "marks": LAST_RESUME} | record
    world.workload(annotations={**paused_marks(NOW - MINUTE), names.ORIGINAL_STATE: json.dumps(said)})
    (mark,) = acts(make(world))
    assert mark.changes == dict.fromkeys(paused_marks(NOW))


@pytest.mark.accepts("idle", 62)
def test_a_resume_that_was_begun_is_finished() -> None:
    world = World()
    paused_by_keda(world, {names.ORIGINAL_STATE: '{"v":1,"fields":{}}', names.RESUME_REQUESTED: "ada"})
    made = make(world)
    (resume,) = acts(made)
    assert isinstance(resume, Resume)
    assert resume.by == "ada"
    assert made.findings[0].skip is Reason.Immune


def test_a_scale_that_was_begun_only_is_no_resume_of_others() -> None:
    world = World()
    world.workload(kind="Scalable", annotations=paused_marks(NOW - MINUTE), body={"spec": {"replicas": 3}})
    (mark,) = pauses.tend(world.workloads[0], (), builders.rule(), NOW)
    assert isinstance(mark, Mark)
    assert mark.changes == dict.fromkeys(paused_marks(NOW))


# ---- undone by others ----------------------------------------------------------------------------------------------


def test_an_external_resume_is_noted_and_gives_immunity() -> None:
    world = World()
    world.workload(annotations=paused_marks(NOW - HOUR))
    (mark,) = acts(make(world))
    assert mark.changes == {
        **dict.fromkeys(paused_marks(NOW)), names.RESUMED_AT: rfc3339(NOW), names.RESUMED_BY: "external:somebody",
        names.PAUSE_REVERSALS: rfc3339(NOW),
    }
    assert (mark.event, mark.on, mark.resource_version) == (None, world.workloads[0].ref, "7")


def test_under_keda_who_took_the_pause_off_its_scaled_object_is_named() -> None:
    """And not KEDA, which then wrote on the target."""
    world = World()
    scaler = cluster.Companion(
        cluster.Ref("keda.sh", "v1alpha1", "ScaledObject", "ml", "so", "uid-so"), "3", {},
        {names.ORIGINAL_STATE: '{"v":1,"fields":{}}', names.KEDA_PAUSED_REPLICAS: "2"},
        {"spec": {"scaleTargetRef": {"name": "llm"}}}, "ada",
    )
    said = {**paused_marks(NOW - HOUR), names.ORIGINAL_STATE: KEDA_RECORD}
    world.workload(annotations=said, scaled_objects=(scaler,), writer="keda-operator")
    (mark,) = acts(make(world))
    assert mark.changes[names.RESUMED_BY] == "external:ada"


@pytest.mark.accepts("idle", 60)
@pytest.mark.parametrize("place", [None, CHILD], ids=["nowhere", "on-its-deployment"])
def test_an_ack_of_an_inference_service_is_stamped_only_beside_it(place: cluster.Ref | None) -> None:
    world = World()
    kept = {names.ACK_UNTIL: rfc3339(NOW + HOUR)}
    world.workload(kind="InferenceService", annotations=kept, body={}, marks={} if place else kept, marks_on=place)
    assert [each.on for each in acts(make(world))] == ([place] if place else [])


@pytest.mark.accepts("idle", 23)
@pytest.mark.parametrize(
    ("ago", "fight"), [((2 * HOUR, HOUR), True), ((HOUR, HOUR), True), ((25 * HOUR, HOUR), False), ((HOUR,), False)],
    ids=["third", "two-in-one-second", "old", "second"]
)
def test_the_third_external_resume_in_a_day_ends_the_fight(ago: tuple[float, ...], fight: bool) -> None:
    world = World()
    reversals = ",".join(rfc3339(NOW - each) for each in ago)
    world.workload(annotations=paused_marks(NOW - MINUTE, pause_reversals=reversals))
    (mark,) = acts(make(world))
    kept = [rfc3339(NOW - each) for each in ago if each < DAY] + [rfc3339(NOW)]
    assert mark.changes[names.PAUSE_REVERSALS] == ",".join(kept)
    assert mark.event == (names.Event.PAUSE_REVERTED if fight else None)
    assert mark.changes.get(names.FIGHT_HOLD_UNTIL) == (rfc3339(NOW + DAY) if fight else None)


@pytest.mark.accepts("idle", 34)
@pytest.mark.parametrize("body", [{"spec": {"replicas": 3}}, ZERO], ids=["running", "at-0"])
def test_marks_older_than_the_last_resume_are_cleared_without_a_word(body: dict[str, Any]) -> None:
    world = World()
    world.workload(annotations=paused_marks(NOW - 2 * HOUR, resumed_at=rfc3339(NOW - HOUR)), body=body)
    (mark,) = acts(make(world))
    assert mark.changes == dict.fromkeys(paused_marks(NOW))
    assert mark.event is None


@pytest.mark.parametrize("trouble", [cluster.Trouble.OwnerLookupFailed, cluster.Trouble.OwnerForbidden])
def test_an_object_that_could_not_be_read_is_not_taken_for_resumed(trouble: cluster.Trouble) -> None:
    world = World()
    world.workload(annotations=paused_marks(NOW - HOUR), body={}, trouble=trouble)
    assert make(world).decisions == ()


def test_marks_that_cannot_be_read_are_kept_while_the_pause_stands() -> None:
    world = World()
    world.workload(pods=(), annotations={**paused_marks(NOW), names.PAUSED_AT: "once"}, body=ZERO)
    assert make(world).decisions == ()


def test_marks_on_an_object_that_may_not_be_touched_stay_and_the_resume_is_noted_beside_it() -> None:
    world = World()
    world.workload(kind="InferenceService", annotations=paused_marks(NOW - HOUR), body={}, marks={}, marks_on=CHILD)
    (mark,) = acts(make(world))
    assert mark.on == CHILD
    assert set(mark.changes) == {names.RESUMED_AT, names.RESUMED_BY, names.PAUSE_REVERSALS}
    world.workloads.clear()
    world.workload(kind="InferenceService", annotations=paused_marks(NOW - HOUR), body={}, marks_on=CHILD,
                   marks={key: value for key, value in mark.changes.items() if value}, pods=[0])
    assert acts(make(world)) == []


def test_an_inference_service_is_not_marked_before_its_pods_are_back() -> None:
    world = World()
    world.workload(kind="InferenceService", pods=(), annotations=paused_marks(NOW - HOUR), body={})
    assert make(world).decisions == ()


def companion(annotations: dict[str, str], active: bool) -> cluster.Companion:
    ref = cluster.Ref("kueue.x-k8s.io", "v1beta2", "Workload", "ml", "job-train", "uid-kueue")
    return cluster.Companion(ref, "9", {}, annotations, {"spec": {"active": active}})


@pytest.mark.accepts("idle", 17)
def test_under_kueue_the_record_is_on_the_kueue_workload() -> None:
    world = World()
    world.workload("ml/train", "Job", pods=(), body={"spec": {}}, kueue=(companion(paused_marks(NOW - HOUR), False),))
    assert reading.paused_at(world.workloads[0]) == NOW - HOUR
    assert make(world).findings[0].skip is Reason.AlreadyPaused
    world.workloads.clear()
    world.workload("ml/train", "Job", body={"spec": {}}, kueue=(companion(paused_marks(NOW - HOUR), True),))
    (mark,) = acts(make(world))
    assert (mark.on.kind, mark.resource_version) == ("Workload", "9")
