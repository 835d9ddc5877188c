"""A pause against a small API server: what is written, in which order, and what is never touched."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.unit.act import examples
from tests.unit.act.carrying import Object, annotations, carry, resume_of
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, pause_of, workload_of
from tests.unit.act.server import Server

from fallow import names
from fallow.act import execute
from fallow.act import hands as doing
from fallow.model import cluster, kinds, marks
from fallow.model.decision import Status
from fallow.model.policies import idle


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
    first, *others = [seen.query["fieldManager"] for seen in server.writes()]
    assert (first, set(others)) == (names.FIELD_MANAGER, {names.RESUME_FIELD_MANAGER})
    assert all(seen.query["fieldValidation"] == "Strict" for seen in server.writes())


async def test_where_its_gpus_were_is_told_while_it_rests_and_no_longer(server: Server, hands: doing.Hands) -> None:
    """Its pods are gone then, and whoever looks later could not know what the pause gave back."""
    thing = server.add(identified(EXAMPLES["deployment"]))
    pause, held = pause_of(workload_of(thing)), [
        msgspec.structs.replace(examples.pod(name), node=node, resources={"nvidia.com/gpu": 4})
        for name, node in (("llm-0", "gpu-1"), ("llm-1", "gpu-1"), ("llm-2", "gpu-2"), ("llm-3", ""))
    ]
    await carry(hands, pause, execute.SecondLook(workload_of(thing), pause.finding, "", tuple(held)))
    stopped = server.now(thing)
    assert marks.read_nodes(workload_of(stopped)) == {"gpu-1": {"nvidia.com/gpu": 8}, "gpu-2": {"nvidia.com/gpu": 4}}
    await hands.resume(resume_of(workload_of(stopped)), NOW + 60)
    assert names.PAUSED_NODES not in annotations(server.now(thing))


def test_a_workload_on_very_many_nodes_tells_of_as_many_as_fit() -> None:
    pods = [msgspec.structs.replace(examples.pod(), node=f"gpu-{number:050}") for number in range(200)]
    told = marks.write_nodes(msgspec.structs.replace(pod, resources={"nvidia.com/gpu": 8}) for pod in pods)
    assert 3900 < len(told) <= 4096


async def test_the_event_says_what_happened_and_how_to_undo_it(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    pause = pause_of(workload)
    await carry(hands, pause, execute.SecondLook(workload, pause.finding, "", (examples.pod(),)))
    (event,) = server.events
    assert event["note"] == (
        "Scaled Deployment team-a/llm from 3 to 0: 12 GPUs idle for 47m (policy default). "
        "Resume: fallow resume Deployment/llm -n team-a"
    )
    assert event["regarding"] == {
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "llm", "namespace": "team-a", "uid": "u-1",
    }
    assert event["related"]["name"] == "llm-0"
    assert (event["type"], event["action"], event["reportingInstance"]) == ("Normal", "scale_down", "gpu-pruner-0")


async def test_a_failed_event_fails_nothing(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("POST", "/events", 403)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.done
    assert server.now(thing)["spec"]["replicas"] == 0


UNTOUCHED = {
    "at-0": (make("apps/v1", "Deployment", {"replicas": 0}), "AlreadyPaused"),
    "suspended": (make("batch/v1", "Job", {"suspend": True}), "AlreadyPaused"),
    "finished": (
        make("batch/v1", "Job", {}, status={"conditions": [{"type": "Complete", "status": "True"}]}), "finished"
    ),
    "stopped-notebook": (
        make("kubeflow.org/v1", "Notebook", annotations={"kubeflow-resource-stopped": "x"}), "AlreadyPaused"
    ),
    "ray-job": (
        make("ray.io/v1", "RayJob", {}, status={"jobDeploymentStatus": "Running"}), "ReportOnly:RayJobNotSuspendable"
    ),
    "old-record": (
        make("apps/v1", "Deployment", {"replicas": 3}, annotations={names.ORIGINAL_STATE: "{}"}), "RecordPresent"
    ),
}


@pytest.mark.accepts("idle", 37, 39)
@pytest.mark.parametrize(("thing", "says"), UNTOUCHED.values(), ids=UNTOUCHED)
async def test_what_is_paused_at_0_finished_or_objects_is_not_patched(
    server: Server, hands: doing.Hands, thing: Object, says: str
) -> None:
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
    fresh = await carry(hands, decided, execute.SecondLook(workload_of(server.now(thing)), decided.finding))
    assert (stale.status, fresh.status) == (Status.overtaken, Status.overtaken)
    assert annotations(server.now(thing))[names.ORIGINAL_STATE] == first == '{"v":1,"fields":{"/spec/replicas":3}}'


async def test_what_an_ended_pause_left_on_an_inference_service_does_not_stop_the_next(
    server: Server, hands: doing.Hands
) -> None:
    left = {names.ORIGINAL_STATE: '{"v":1,"fields":{}}', names.PAUSED_AT: "2026-11-01T00:00:00Z"}
    thing = server.add(identified(make("serving.kserve.io/v1beta1", "InferenceService", annotations=left)))
    child = cluster.Ref("apps", "v1", "Deployment", "team-a", "llm-predictor", "u-2")
    assert (await carry(hands, pause_of(workload_of(thing, marks_ref=child, marks={})))).status is Status.done
    fields = json.loads(annotations(server.now(thing))[names.ORIGINAL_STATE])["fields"]
    assert fields == {"/metadata/annotations/serving.kserve.io~1stop": None}


async def test_a_patch_that_the_answer_does_not_show_is_a_failure_and_leaves_no_record(
    server: Server, hands: doing.Hands
) -> None:
    thing = server.add(identified(EXAMPLES["rayservice"]))

    def drop(seen: Any) -> None:
        seen.body.pop("spec", None)  # an old operator's definition prunes what it does not know

    server.before = drop
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "/spec/suspend is None" in outcome.detail
    assert not set(annotations(server.now(thing))) & set(names.PAUSE_KEYS)


async def test_a_failing_hook_aborts_and_is_reported_after_three(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    pause = pause_of(workload_of(thing))
    pods = (examples.pod(hook=":1/save"),)  # nobody listens on port 1
    look = execute.SecondLook(pause.finding.workload, pause.finding, "", pods)
    details = [(await carry(hands, pause, look)).detail for _ in range(3)]
    assert ["HookFailing" in detail for detail in details] == [False, False, True]
    assert server.writes() == []


async def test_a_rule_may_pause_in_spite_of_its_hook(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    rule = msgspec.structs.replace(examples.RULE, action=idle.Action(hook=idle.Hook(5.0, "continue")))
    pause = pause_of(workload_of(thing), rule)
    look = execute.SecondLook(pause.finding.workload, pause.finding, "", (examples.pod(hook=":1/save"),))
    assert (await carry(hands, pause, look)).status is Status.done
