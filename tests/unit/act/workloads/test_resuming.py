"""A resume against a small API server: back to what was recorded, never to a guess, however often it is overtaken."""

from __future__ import annotations

import json

import pytest
from tests.unit.act.carrying import MakeHands, Object, annotations, carry, resume_of
from tests.unit.act.examples import NOW, identified, make, workload_of
from tests.unit.act.server import Seen, Server

from fallow import names
from fallow.act import hands as doing
from fallow.act.workloads import resuming
from fallow.decide.idle import pauses
from fallow.model import decision, kinds
from fallow.model.decision import Status
from fallow.model.policies import idle

WAS_THREE = '{"v":1,"fields":{"/spec/replicas":3}}'
PAUSED = {names.ORIGINAL_STATE: WAS_THREE, names.PAUSED_AT: "2026-11-14T20:00:00Z", names.ORIGINAL_REPLICAS: "3"}


async def test_something_that_others_started_only_loses_our_marks(server: Server, hands: doing.Hands) -> None:
    said = {**PAUSED, names.RESUME_REQUESTED: "yes"}
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 5}, annotations=said)))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.overtaken
    assert outcome.detail.startswith("AlreadyRunning")
    assert server.now(thing)["spec"] == {"replicas": 5}
    assert set(annotations(server.now(thing))) == {names.RESUMED_AT, names.RESUMED_BY}


async def test_who_resumes_what_runs_and_was_told_of_a_pause_hears_how_to_keep_it(
    server: Server, hands: doing.Hands
) -> None:
    said = {names.PENDING_SINCE: "2026-11-14T20:00:00Z"}
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 5}, annotations=said)))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.because.endswith(f"to keep it, fallow ack Deployment/llm -n {thing['metadata']['namespace']}")
    assert server.now(thing) == thing


@pytest.mark.accepts("idle", 60)
async def test_old_marks_on_a_service_that_runs_are_left_alone(server: Server, hands: doing.Hands) -> None:
    said = {names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/x":1}}', names.PAUSED_AT: "2026-11-14T20:00:00Z"}
    service = make("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {}}, annotations=said)
    thing = server.add(identified(service))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.detail.startswith("AlreadyRunning")
    assert server.now(thing) == thing, "clearing them would restart its pods"


RECORDS = {
    "none": {},
    "corrupt": {names.ORIGINAL_STATE: "{"},
    "undone": {**PAUSED, names.RESUMED_AT: "2026-11-14T21:00:00Z"},
}


@pytest.mark.accepts("idle", 34)
@pytest.mark.parametrize("marks", RECORDS.values(), ids=RECORDS)
async def test_without_a_record_nothing_is_guessed_and_a_number_forces(
    server: Server, hands: doing.Hands, marks: dict[str, str]
) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=marks)))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.refused
    assert outcome.detail.startswith("NoOriginalState")
    assert server.writes() == []
    forced = await hands.resume(resume_of(workload_of(thing)), NOW, replicas=2)
    assert forced.status is Status.done
    assert server.now(thing)["spec"]["replicas"] == 2


@pytest.mark.parametrize(("replicas", "forced", "after"), [(2, False, 0), (2, True, 2), (3, False, 3)])
async def test_a_number_overrules_an_intact_record_only_by_force(
    server: Server, hands: doing.Hands, replicas: int, forced: bool, after: int
) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=PAUSED)))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW, replicas=replicas, is_forced=forced)
    assert server.now(thing)["spec"]["replicas"] == after
    assert (outcome.status is Status.done) is bool(after)
    if not after:
        assert outcome.detail == (
            "RecordIntact: the record on Deployment/llm is intact and holds /spec/replicas 3: "
            "leave out --replicas to bring that back, or add --force to overrule it"
        )
        assert server.writes() == []


async def test_a_number_for_what_is_not_counted_is_refused(server: Server, hands: doing.Hands) -> None:
    thing = server.add(paused("Notebook"))
    outcome = await hands.resume(resume_of(workload_of(thing)), NOW, replicas=2)
    assert (outcome.status, server.writes()) == (Status.refused, [])
    assert outcome.because == "Notebook/llm has no number of replicas that could be given"


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
    assert len(server.writes()) == resuming.RETRIES + 1


async def test_what_is_remembered_stays(server: Server, hands: doing.Hands) -> None:
    record = json.dumps({"v": 1, "fields": {"/metadata/annotations/serving.kserve.io~1stop": None}})
    marks = {names.ORIGINAL_STATE: record, names.KSERVE_STOP: "true"}
    thing = server.add(identified(make("serving.kserve.io/v1beta1", "InferenceService", annotations=marks)))
    remember = {names.KSERVE_NO_STOP: "2026-11-14T23:46:40Z"}
    resume = decision.Resume(workload_of(thing), "fallow", "KServe ignores stop", remember)
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

        def race(_: object) -> None:
            if next(raced, False):
                server.touch(thing, lambda found: _put_before(found, other))

        server.before = race
    assert (await hands.resume(resume_of(workload_of(thing)), NOW)).status is Status.done
    entries = server.now(thing)["metadata"]["managedFields"]
    ours = [entry for entry in entries if entry["manager"] == names.FIELD_MANAGER]
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


async def test_a_forbidden_resume_says_who_can_do_it(server: Server, hands: doing.Hands) -> None:
    thing = server.add(paused("Deployment"))
    server.fail("PATCH", "/deployments", 403)
    outcome = await carry(hands, resume_of(workload_of(thing)))
    (event,) = server.events
    assert outcome.status is Status.failed
    assert event["note"].startswith("Not resumed: 403 no; an account that may patch it")
    assert event["note"].endswith("fallow resume Deployment/llm -n team-a")


async def test_a_dry_resume_changes_nothing(server: Server, make_hands: MakeHands) -> None:
    marks = {names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":3}}', names.PAUSED_AT: "2026-11-14T20:00:00Z"}
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=marks)))
    before = json.dumps(server.objects, sort_keys=True)
    outcome = await make_hands(dry_run="server").resume(resume_of(workload_of(thing)), NOW)
    assert outcome.status is Status.dry_run
    assert json.dumps(server.objects, sort_keys=True) == before


def paused(kind: str, replicas: int = 3) -> Object:
    """Of a Deployment its count, of a Notebook its stop."""
    stop = {"kubeflow-resource-stopped": "2026-11-14T23:00:00Z"} if kind == "Notebook" else {}
    pointer = "/metadata/annotations/kubeflow-resource-stopped" if stop else "/spec/replicas"
    record = json.dumps({"v": 1, "fields": {pointer: None if stop else replicas}})
    said = {names.ORIGINAL_STATE: record, names.PAUSED_AT: "2026-11-14T23:00:00Z", **stop}
    api = "kubeflow.org/v1" if stop else "apps/v1"
    return identified(make(api, kind, {} if stop else {"replicas": 0}, annotations=said))


async def test_a_stop_that_a_webhook_keeps_keeps_its_record(server: Server, hands: doing.Hands) -> None:
    thing = server.add(paused("Notebook"))
    before = annotations(server.now(thing))
    server.before = lambda seen: seen.body["metadata"].get("annotations", {}).pop("kubeflow-resource-stopped", None)
    outcome = await carry(hands, resume_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "and not None" in outcome.because
    assert annotations(server.now(thing)) == before


async def test_a_clamped_resume_that_dies_keeps_its_record(server: Server, hands: doing.Hands) -> None:
    thing = server.add(paused("Deployment"))

    def allow_one(seen: Seen) -> None:
        if "spec" in seen.body:
            seen.body["spec"]["replicas"] = min(1, seen.body["spec"]["replicas"])

    server.before, server.meets_dry = allow_one, True
    server.seen = lambda seen: server.fail("PATCH", "/deployments", 500) if len(server.writes()) == 2 else None
    outcome = await carry(hands, resume_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "is 1 and not 3" in outcome.because
    found = server.now(thing)
    assert found["spec"]["replicas"] == 1
    assert json.loads(annotations(found)[names.ORIGINAL_STATE])["fields"] == {"/spec/replicas": 3}
    assert names.RESUMED_AT not in annotations(found)


async def test_a_clamped_switch_that_dies_keeps_its_record(server: Server, hands: doing.Hands) -> None:
    thing = server.add(paused("Notebook"))
    before, server.meets_dry = annotations(server.now(thing)), True
    server.before = lambda seen: seen.body["metadata"].get("annotations", {}).pop("kubeflow-resource-stopped", None)
    server.seen = lambda seen: server.fail("PATCH", "/notebooks", 500) if len(server.writes()) == 2 else None
    assert (await carry(hands, resume_of(workload_of(thing)))).status is Status.failed
    assert annotations(server.now(thing)) == before


@pytest.mark.accepts("idle", 15)
@pytest.mark.parametrize("kind", ["Deployment", "Notebook"])
async def test_what_was_brought_back_says_so_in_the_same_request(
    server: Server, hands: doing.Hands, kind: str
) -> None:
    """Killed before the second, nobody takes it for half a pause, and its immunity holds."""
    thing = server.add(paused(kind))
    path = f"/{kind.lower()}s"
    server.seen = lambda seen: server.fail("PATCH", path, 500, times=9) if len(server.writes()) == 2 else None
    assert (await carry(hands, resume_of(workload_of(thing)))).status is Status.failed
    found = server.now(thing)
    assert not kinds.stands_paused(workload_of(found))
    assert {names.RESUMED_AT, names.RESUMED_BY, names.ORIGINAL_STATE} <= set(annotations(found))
    (mark,) = pauses.tend(workload_of(found, is_ours=True), (), idle.Rule(), NOW + 60)
    assert isinstance(mark, decision.Mark)
    assert set(mark.changes) == {names.ORIGINAL_STATE, names.PAUSED_AT}, "what says that it was resumed stays"


async def test_what_an_operator_makes_of_it_at_once_keeps_its_record(server: Server, hands: doing.Hands) -> None:
    thing, turns = server.add(paused("Deployment")), iter([False, True])

    def set_one(_: Seen) -> None:
        if next(turns, False):
            server.touch(thing, lambda found: found["spec"].update(replicas=1))

    server.before = set_one
    outcome = await carry(hands, resume_of(workload_of(thing)))
    assert outcome.status is Status.overtaken
    assert "at once somebody made it /spec/replicas 1: its record stays" in outcome.because
    assert json.loads(annotations(server.now(thing))[names.ORIGINAL_STATE])["fields"] == {"/spec/replicas": 3}


async def test_a_service_whose_resume_would_be_altered_is_not_touched(server: Server, hands: doing.Hands) -> None:
    record = json.dumps({"v": 1, "fields": {"/metadata/annotations/serving.kserve.io~1stop": None}})
    said = {names.ORIGINAL_STATE: record, names.KSERVE_STOP: "true", names.PAUSED_AT: "2026-11-14T23:00:00Z"}
    thing = server.add(identified(make("serving.kserve.io/v1beta1", "InferenceService", annotations=said)))
    server.meets_dry = True
    server.before = lambda seen: seen.body["metadata"].get("annotations", {}).pop(names.KSERVE_STOP, None)
    assert (await carry(hands, resume_of(workload_of(thing)))).status is Status.failed
    assert (server.writes(), server.now(thing)) == ([], thing)
