"""The hands against a small API server: what is written, in which order, and what becomes of it when the server says no."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, pause_of, workload_of
from tests.unit.act.server import Server

from fallow import names
from fallow.act import execute
from fallow.act import hands as doing
from fallow.clients import errors
from fallow.model import cluster, decision, kinds
from fallow.model.decision import Status
from fallow.model.policies import idle

Object = dict[str, Any]
MakeHands = Callable[..., doing.Hands]


def resume_of(workload: cluster.Workload, by: str = "ada") -> decision.Resume:
    return decision.Resume(workload, by, "asked for")


async def carry(hands: doing.Hands, each: decision.Decision, look: execute.Look | None = None, **more: Any) -> decision.Outcome:
    """One decision, with a second look that finds what the first one found unless the test says otherwise."""

    async def look_again(pauses: Any) -> dict[str, execute.Look]:
        found = look or execute.Look(pauses[0].finding.workload, pauses[0].finding)
        return {pauses[0].finding.workload.ref.uid: found}

    (outcome,) = await execute.carry_out([each], hands, look_again, NOW, **more)
    return outcome


def annotations(thing: Object) -> Object:
    found: Object = thing["metadata"].get("annotations", {})
    return found


async def there_and_back(server: Server, hands: doing.Hands, thing: Object, **more: Any) -> tuple[Object, Object]:
    """The object paused, and resumed again."""
    server.add(thing)
    outcome = await carry(hands, pause_of(workload_of(thing, **more)))
    assert outcome.status is Status.done, outcome.detail
    stopped = server.now(thing)
    outcome = await hands.resume(resume_of(workload_of(stopped, **more)), NOW + 60)
    assert outcome.status is Status.done, outcome.detail
    return stopped, server.now(thing)


@pytest.mark.accepts("idle", 11, 12, 14, 15)
@pytest.mark.parametrize("name", EXAMPLES)
async def test_every_kind_goes_and_comes_back(server: Server, hands: doing.Hands, name: str) -> None:
    before = identified(EXAMPLES[name])
    stopped, back = await there_and_back(server, hands, before)
    workload = workload_of(stopped)
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.is_paused(kind, workload)
    assert back["spec"] == before["spec"]
    assert {key for key in annotations(back) if key.startswith(names.GROUP)} == {names.RESUMED_AT, names.RESUMED_BY}
    assert [event["reason"] for event in server.events] == [kind.event, names.Event.RESUMED]
    assert [seen.query["fieldManager"] for seen in server.writes()] == [names.FIELD_MANAGER, names.RESUME_FIELD_MANAGER]
    assert all(seen.query["fieldValidation"] == "Strict" for seen in server.writes())


async def test_the_event_says_what_happened_and_how_to_undo_it(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    await carry(hands, pause_of(workload), execute.Look(workload, pause_of(workload).finding, "", (examples.pod(),)))
    (event,) = server.events
    assert event["note"] == (
        "Scaled Deployment team-a/llm from 3 to 0: 12 GPUs idle for 47m (policy default). Resume: fallow resume Deployment/llm -n team-a"
    )
    assert event["regarding"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm", "namespace": "team-a", "uid": "u-1"}
    assert event["related"]["name"] == "llm-0"
    assert (event["type"], event["action"], event["reportingInstance"]) == ("Normal", "scale_down", "gpu-pruner-0")


async def test_a_failed_event_fails_nothing(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("POST", "/events", 403)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.done
    assert server.now(thing)["spec"]["replicas"] == 0


# ---- what is not touched ------------------------------------------------------------------------------------------------------

UNTOUCHED = {
    "at-0": (make("apps/v1", "Deployment", {"replicas": 0}), "AlreadyPaused"),
    "suspended": (make("batch/v1", "Job", {"suspend": True}), "AlreadyPaused"),
    "finished": (make("batch/v1", "Job", {}, status={"conditions": [{"type": "Complete", "status": "True"}]}), "finished"),
    "stopped-notebook": (make("kubeflow.org/v1", "Notebook", annotations={"kubeflow-resource-stopped": "x"}), "AlreadyPaused"),
    "ray-job": (make("ray.io/v1", "RayJob", {}, status={"jobDeploymentStatus": "Running"}), "ReportOnly:RayJobNotSuspendable"),
    "old-record": (make("apps/v1", "Deployment", {"replicas": 3}, annotations={names.ORIGINAL_STATE: "{}"}), "RecordPresent"),
}


@pytest.mark.accepts("idle", 37, 39)
@pytest.mark.parametrize(("thing", "says"), UNTOUCHED.values(), ids=UNTOUCHED)
async def test_what_is_paused_at_0_finished_or_objects_is_not_patched(server: Server, hands: doing.Hands, thing: Object, says: str) -> None:
    outcome = await carry(hands, pause_of(workload_of(server.add(identified(thing)))))
    assert outcome.status in (Status.overtaken, Status.refused)
    assert says in outcome.detail
    assert server.requests == []


@pytest.mark.accepts("idle", 13)
async def test_an_unknown_owner_is_not_patched(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(identified(make("example.com/v1", "Opaque")), trouble=cluster.Trouble.ManagedByUnknownOwner)
    outcome = await carry(hands, pause_of(workload))
    assert (outcome.status, server.requests) == (Status.refused, [])


@pytest.mark.accepts("idle", 39)
async def test_a_second_pause_leaves_the_first_record(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    decided = pause_of(workload_of(thing))
    assert (await carry(hands, decided)).status is Status.done
    first = annotations(server.now(thing))[names.ORIGINAL_STATE]
    stale = await carry(hands, decided)  # from an old look: the precondition stops it
    fresh = await carry(hands, decided, execute.Look(workload_of(server.now(thing)), decided.finding))
    assert (stale.status, fresh.status) == (Status.overtaken, Status.overtaken)
    assert annotations(server.now(thing))[names.ORIGINAL_STATE] == first == '{"v":1,"fields":{"/spec/replicas":3}}'


async def test_what_an_ended_pause_left_on_an_inference_service_does_not_stop_the_next(server: Server, hands: doing.Hands) -> None:
    left = {names.ORIGINAL_STATE: '{"v":1,"fields":{}}', names.PAUSED_AT: "2026-11-01T00:00:00Z"}
    thing = server.add(identified(make("serving.kserve.io/v1beta1", "InferenceService", annotations=left)))
    child = cluster.Ref("apps", "v1", "Deployment", "team-a", "llm-predictor", "u-2")
    assert (await carry(hands, pause_of(workload_of(thing, marks_ref=child, marks={})))).status is Status.done
    fields = json.loads(annotations(server.now(thing))[names.ORIGINAL_STATE])["fields"]
    assert fields == {"/metadata/annotations/serving.kserve.io~1stop": None}


# ---- conflicts and refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 22, 36)
@pytest.mark.parametrize("how", ["changed", "recreated"])
@pytest.mark.parametrize("still_idle", [True, False], ids=["still-idle", "busy-now"])
async def test_a_conflict_is_looked_at_again_and_never_retried_blindly(
    server: Server, hands: doing.Hands, how: str, still_idle: bool
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    looks = 0

    async def look_again(pauses: Any) -> dict[str, execute.Look]:
        nonlocal looks
        looks += 1
        seen = workload_of(server.now(thing))
        if looks == 1:  # between this look and the patch somebody else is faster
            server.touch(thing, lambda found: found["metadata"].update(uid="u-9") if how == "recreated" else None)
            return {"u-1": execute.Look(seen, pauses[0].finding)}
        return {"u-1": execute.Look(seen, pauses[0].finding if still_idle else None, "it is busy now")}

    (outcome,) = await execute.carry_out([pause_of(workload_of(thing))], hands, look_again, NOW)
    assert looks == 2
    may = still_idle and how == "changed"  # another object of the same name is not the one that was decided on
    assert outcome.status is (Status.done if may else Status.overtaken)
    assert len(server.writes()) == (2 if may else 1)
    assert "UnsupportedField" not in outcome.detail
    assert server.now(thing)["spec"]["replicas"] == (0 if may else 3)


async def test_a_second_conflict_waits_for_the_next_cycle(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("PATCH", "/deployments", 409, times=5)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.overtaken
    assert len(server.writes()) == 2


UNKNOWN = [{"reason": "FieldValueInvalid", "field": "patch", "message": 'Invalid value: unknown field "spec.suspend"'}]
REFUSALS: dict[str, tuple[int, list[Object], Status, str]] = {
    "unknown-field": (422, UNKNOWN, Status.refused, "ReportOnly:UnsupportedField"),
    "bad-request": (400, [], Status.refused, "ReportOnly:UnsupportedField"),
    "webhook-says-no": (422, [{"field": "spec.replicas", "message": "too few"}], Status.failed, "422 no"),
    "forbidden": (403, [], Status.failed, "403 no"),
    "server-fault": (500, [], Status.failed, "500 no"),
    "gone": (404, [], Status.overtaken, "it is gone"),
}


@pytest.mark.parametrize(("status", "causes", "becomes", "says"), REFUSALS.values(), ids=REFUSALS)
async def test_each_refusal_means_what_it_means(
    server: Server, hands: doing.Hands, status: int, causes: list[Object], becomes: Status, says: str
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("PATCH", "/deployments", status, causes=causes)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is becomes
    assert outcome.detail.startswith(says)
    assert [event["reason"] for event in server.events] == ([names.Event.PAUSE_FAILED] if becomes is Status.failed else [])


async def test_one_failure_stops_only_itself(server: Server, hands: doing.Hands) -> None:
    things = [server.add(identified(EXAMPLES[name], f"u-{name}")) for name in ("statefulset", "deployment", "notebook")]
    server.fail("PATCH", "/deployments", 403)
    pauses = [pause_of(workload_of(thing)) for thing in things]

    async def look_again(wanted: Any) -> dict[str, execute.Look]:
        return {pause.finding.workload.ref.uid: execute.Look(pause.finding.workload, pause.finding) for pause in wanted}

    outcomes = await execute.carry_out(pauses, hands, look_again, NOW)
    assert [outcome.status for outcome in outcomes] == [Status.done, Status.failed, Status.done]


async def test_a_patch_that_the_answer_does_not_show_is_a_failure_and_leaves_no_record(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["rayservice"]))

    def drop(seen: Any) -> None:
        seen.body.pop("spec", None)  # an old operator's definition prunes what it does not know

    server.before = drop
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "/spec/suspend is None" in outcome.detail
    assert not set(annotations(server.now(thing))) & set(names.PAUSE_KEYS)


async def test_an_odd_object_fails_alone(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": ["odd"]})))
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert (outcome.status, server.writes()) == (Status.refused, [])


async def test_what_nobody_foresaw_fails_alone(server: Server, hands: doing.Hands) -> None:
    odd = workload_of(identified(EXAMPLES["deployment"]), hpas=("not a companion",))
    outcome = await carry(hands, pause_of(odd))
    assert outcome.status is Status.failed
    assert outcome.detail.startswith("unexpected AttributeError")
    assert server.writes() == []


# ---- the second look and the lease --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [execute.Look(None, None, "it is gone"), None], ids=["gone", "nothing-known"])
async def test_without_a_second_look_nothing_happens(server: Server, hands: doing.Hands, look: execute.Look | None) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))

    async def look_again(pauses: Any) -> dict[str, execute.Look]:
        return {workload.ref.uid: look} if look else {}

    (outcome,) = await execute.carry_out([pause_of(workload)], hands, look_again, NOW)
    assert (outcome.status, server.requests) == (Status.overtaken, [])


async def test_a_look_that_fails_stops_the_pauses_and_nothing_else(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    mark = decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, None, "active again")

    async def look_again(pauses: Any) -> dict[str, execute.Look]:
        raise errors.Unreachable("no Prometheus")

    outcomes = await execute.carry_out([pause_of(workload), mark], hands, look_again, NOW)
    assert [outcome.status for outcome in outcomes] == [Status.overtaken, Status.done]
    assert "no Prometheus" in outcomes[0].detail


async def test_a_lease_lost_while_a_hook_runs_stops_the_patch(server: Server, hands: doing.Hands) -> None:
    pause = pause_of(workload_of(server.add(identified(EXAMPLES["deployment"]))))
    left = iter([True, False])
    outcome = await carry(hands, pause, may_act=lambda: next(left))
    assert (outcome.status, server.writes()) == (Status.overtaken, [])


async def test_a_look_with_a_bug_stops_only_the_pauses(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    mark = decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, None, "active again")

    async def look_again(pauses: Any) -> dict[str, execute.Look]:
        raise KeyError("oops")

    outcomes = await execute.carry_out([pause_of(workload), mark], hands, look_again, NOW)
    assert [outcome.status for outcome in outcomes] == [Status.overtaken, Status.done]


async def test_a_lost_lease_stops_between_decisions(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    mark = decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, None, "active again")
    left = iter([True, False, False])

    async def look_again(pauses: Any) -> dict[str, execute.Look]:
        raise AssertionError("nobody may look any more")

    outcomes = await execute.carry_out([mark, mark, pause_of(workload)], hands, look_again, NOW, lambda: next(left))
    assert [outcome.status for outcome in outcomes] == [Status.done, Status.overtaken, Status.overtaken]
    assert len(server.writes()) == 1


# ---- dry run ------------------------------------------------------------------------------------------------------------------


def everything(workload: cluster.Workload) -> list[decision.Decision]:
    pause = pause_of(workload)
    return [
        decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, names.Event.ACK_EXPIRED, "over"),
        decision.Warn(pause.finding, "abc", NOW - 60, NOW + 300, (idle.Channel("e", "event"),)),
        decision.Alert(workload, names.Event.IDLE_DETECTED, "idle", "abc"),
        pause,
    ]


@pytest.mark.accepts("idle", 28)
@pytest.mark.parametrize("scope", ["server", "client"])
async def test_a_dry_run_changes_nothing_and_asks_the_server_only_in_its_scope(server: Server, make_hands: MakeHands, scope: str) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    before = json.dumps(server.objects, sort_keys=True)
    hands = make_hands(dry_run=scope)
    outcomes = [await carry(hands, each) for each in everything(workload_of(thing))]
    assert {outcome.status for outcome in outcomes} == {Status.dry_run}
    assert json.dumps(server.objects, sort_keys=True) == before
    assert len(server.writes(dry=True)) == (1 if scope == "server" else 0)
    assert len(server.requests) == len(server.writes(dry=True))


@pytest.mark.accepts("idle", 28)
async def test_missing_rights_show_in_a_dry_run(server: Server, make_hands: MakeHands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("PATCH", "/deployments", 403, message='deployments.apps "llm" is forbidden')
    outcome = await carry(make_hands(dry_run="server"), pause_of(workload_of(thing)))
    assert outcome.status is Status.refused
    assert outcome.detail == 'would fail: 403 deployments.apps "llm" is forbidden'
    assert server.events == []


async def test_a_dry_resume_changes_nothing(server: Server, make_hands: MakeHands) -> None:
    marks = {names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":3}}', names.PAUSED_AT: "2026-11-14T20:00:00Z"}
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=marks)))
    before = json.dumps(server.objects, sort_keys=True)
    outcome = await make_hands(dry_run="server").resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.dry_run
    assert json.dumps(server.objects, sort_keys=True) == before


# ---- resume -------------------------------------------------------------------------------------------------------------------

WAS_THREE = '{"v":1,"fields":{"/spec/replicas":3}}'
PAUSED = {names.ORIGINAL_STATE: WAS_THREE, names.PAUSED_AT: "2026-11-14T20:00:00Z", names.ORIGINAL_REPLICAS: "3"}


async def test_something_that_others_started_only_loses_our_marks(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 5}, annotations={**PAUSED, names.RESUME_REQUESTED: "yes"})))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.overtaken
    assert outcome.detail.startswith("AlreadyRunning")
    assert server.now(thing)["spec"] == {"replicas": 5}
    assert set(annotations(server.now(thing))) == {names.RESUMED_AT, names.RESUMED_BY}


RECORDS = {
    "none": {},
    "corrupt": {names.ORIGINAL_STATE: "{"},
    "undone": {**PAUSED, names.RESUMED_AT: "2026-11-14T21:00:00Z"},
}


@pytest.mark.accepts("idle", 34)
@pytest.mark.parametrize("marks", RECORDS.values(), ids=RECORDS)
async def test_without_a_record_nothing_is_guessed_and_a_number_forces(server: Server, hands: doing.Hands, marks: dict[str, str]) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=marks)))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.refused
    assert outcome.detail.startswith("NoOriginalState")
    assert server.writes() == []
    forced = await hands.resume(resume_of(workload_of(thing)), NOW, replicas=2)
    assert forced.status is Status.done
    assert server.now(thing)["spec"]["replicas"] == 2


async def test_a_resume_reads_again_when_it_is_overtaken(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=PAUSED)))
    server.fail("PATCH", "/deployments", 409, times=3)
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.done
    assert server.now(thing)["spec"]["replicas"] == 3


async def test_a_resume_that_is_always_overtaken_gives_up(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=PAUSED)))
    server.fail("PATCH", "/deployments", 409, times=50)
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.overtaken
    assert len(server.writes()) == doing.RESUME_RETRIES + 1


async def test_what_is_remembered_stays(server: Server, hands: doing.Hands) -> None:
    marks = {names.ORIGINAL_STATE: json.dumps({"v": 1, "fields": {"/metadata/annotations/serving.kserve.io~1stop": None}})}
    thing = server.add(identified(make("serving.kserve.io/v1beta1", "InferenceService", annotations=marks | {names.KSERVE_STOP: "true"})))
    resume = decision.Resume(workload_of(thing), "fallow", "KServe ignores stop", {names.KSERVE_NO_STOP: "2026-11-14T23:46:40Z"})
    assert (await hands.resume(resume, NOW)).status is Status.done
    assert set(annotations(server.now(thing))) == {names.KSERVE_NO_STOP, names.RESUMED_AT, names.RESUMED_BY}


@pytest.mark.parametrize("race", [False, True], ids=["quiet", "raced"])
async def test_our_fields_are_given_up_after_a_resume(server: Server, hands: doing.Hands, race: bool) -> None:
    thing = identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=PAUSED))
    fields = {"f:spec": {"f:replicas": {}, "f:x": {}}}
    thing["metadata"]["managedFields"] = [{"manager": names.FIELD_MANAGER, "fieldsV1": fields}]
    server.add(thing)
    if race:
        raced = iter([False, True])
        other = {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {}}
        server.before = lambda seen: server.touch(thing, lambda found: _put_before(found, other)) if next(raced, False) else None
    assert (await hands.resume(resume_of(workload_of(thing)), NOW)).status is Status.done
    ours = [entry for entry in server.now(thing)["metadata"]["managedFields"] if entry["manager"] == names.FIELD_MANAGER]
    assert ours == [{"manager": names.FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:x": {}}}}]
    assert server.now(thing)["spec"]["replicas"] == 3


def _put_before(found: Object, entry: Object) -> None:
    """Somebody else's entry comes to stand before ours, so that ours is no longer where it was."""
    found["metadata"]["managedFields"].insert(0, entry)


async def test_a_recreated_object_is_not_resumed(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=PAUSED)))
    workload = workload_of(thing)
    server.touch(thing, lambda found: found["metadata"].update(uid="u-9"))
    outcome = await carry(hands, resume_of(workload))
    assert (outcome.status, server.writes()) == (Status.overtaken, [])


async def test_a_refused_resume_tells(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=PAUSED)))
    server.fail("PATCH", "/deployments", 403)
    assert (await carry(hands, resume_of(workload_of(thing)))).status is Status.failed
    assert [event["reason"] for event in server.events] == [names.Event.RESUME_FAILED]


# ---- hooks --------------------------------------------------------------------------------------------------------------------


async def test_a_failing_hook_aborts_and_is_reported_after_three(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    pause = pause_of(workload_of(thing))
    look = execute.Look(pause.finding.workload, pause.finding, "", (examples.pod(hook=":1/save"),))  # nobody listens on port 1
    details = [(await carry(hands, pause, look)).detail for _ in range(3)]
    assert ["HookFailing" in detail for detail in details] == [False, False, True]
    assert server.requests == []


async def test_a_rule_may_pause_in_spite_of_its_hook(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    rule = msgspec.structs.replace(examples.RULE, action=idle.Action(hook=idle.Hook(5.0, "continue")))
    pause = pause_of(workload_of(thing), rule)
    look = execute.Look(pause.finding.workload, pause.finding, "", (examples.pod(hook=":1/save"),))
    assert (await carry(hands, pause, look)).status is Status.done
