"""KEDA, Kueue, /scale and schedules: two writes, one pause. The way back is complete on each, and none is half done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.act import examples
from tests.unit.act.carrying import MakeHands, annotations, carry, resume_of
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, pause_of, workload_of
from tests.unit.act.server import Seen, Server

from fallow import names
from fallow.act import hands as doing
from fallow.model import cluster, decision, kinds
from fallow.model.decision import Status

Object = dict[str, Any]


def scaled_object(least: int | None = 1, **marks: str) -> Object:
    spec: Object = {"scaleTargetRef": {"name": "llm"}} | ({} if least is None else {"minReplicaCount": least})
    found = {f"autoscaling.keda.sh/{name}": value for name, value in marks.items()}
    made = make("keda.sh/v1alpha1", "ScaledObject", spec, name="so", annotations={"team": "a"} | found)
    return identified(made, "u-so", "70")


class Pair:
    """A Deployment and its ScaledObject on the server."""

    def __init__(self, server: Server, scaler: Object) -> None:
        self.server = server
        self.scaler = server.add(scaler)
        self.target = server.add(identified(EXAMPLES["deployment"]))

    @property
    def workload(self) -> cluster.Workload:
        companion = examples.companion_of(self.server.now(self.scaler), kinds.SCALED_OBJECT.reads)
        return workload_of(self.server.now(self.target), scaled_objects=(companion,))

    def keda_scales_to(self, replicas: int) -> None:
        self.server.touch(self.target, lambda found: found["spec"].update(replicas=replicas))


MARKS: dict[str, dict[str, str]] = {
    "bare": {}, "paused": {"paused": "true"}, "pinned": {"paused-replicas": "5"},
    "both": {"paused": "true", "paused-replicas": "2"},
}


@pytest.mark.accepts("idle", 16, 38)
@pytest.mark.parametrize("conflicts", [0, 1, 5])
@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
async def test_only_the_scaled_object_is_paused_and_both_come_back_exactly(
    server: Server, hands: doing.Hands, marks: dict[str, str], conflicts: int
) -> None:
    pair = Pair(server, scaled_object(**marks))
    before = annotations(pair.scaler)
    assert (await carry(hands, pause_of(pair.workload))).status is Status.done
    assert annotations(server.now(pair.scaler))[names.KEDA_PAUSED_REPLICAS] == "0"
    assert server.now(pair.target)["spec"] == {"replicas": 3}
    record = json.loads(annotations(server.now(pair.target))[names.ORIGINAL_STATE])
    assert record == {
        "v": 1, "fields": {"/spec/replicas": 3},
        "companions": [{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "so"}],
    }
    pair.keda_scales_to(0)
    server.fail("PATCH", "/deployments", 409, times=conflicts)
    outcome = await hands.resume(resume_of(pair.workload), NOW + 60)
    assert outcome.status is Status.done, outcome.detail
    assert annotations(server.now(pair.scaler)) == before
    assert server.now(pair.target)["spec"] == {"replicas": 3}
    assert set(annotations(server.now(pair.target))) == {names.RESUMED_AT, names.RESUMED_BY}


@pytest.mark.parametrize(
    ("current", "least", "back"), [(0, 1, 3), (0, 7, 7), (0, None, 3)], ids=["recorded", "minimum", "no-minimum"]
)
async def test_a_keda_target_comes_back_with_the_highest_of_three(
    server: Server, hands: doing.Hands, current: int, least: int | None, back: int
) -> None:
    pair = Pair(server, scaled_object(least))
    await carry(hands, pause_of(pair.workload))
    pair.keda_scales_to(current)
    outcome = await hands.resume(resume_of(pair.workload), NOW + 60)
    assert server.now(pair.target)["spec"]["replicas"] == back
    assert ("no trigger is active" in outcome.detail) is (least is None)


async def test_keda_may_scale_while_we_do(server: Server, hands: doing.Hands) -> None:
    pair = Pair(server, scaled_object())
    await carry(hands, pause_of(pair.workload))
    pair.keda_scales_to(0)
    workload = pair.workload
    scales = iter([9])  # once, just before our first write on the target

    def race(seen: Seen) -> None:
        if "/deployments" in seen.path and (replicas := next(scales, None)):
            pair.keda_scales_to(replicas)

    server.before = race
    outcome = await hands.resume(resume_of(workload), NOW + 60)
    assert outcome.status is Status.done
    assert server.now(pair.target)["spec"]["replicas"] == 9


async def test_a_refused_scaled_object_takes_the_record_away_again(server: Server, hands: doing.Hands) -> None:
    pair = Pair(server, scaled_object())
    server.fail("PATCH", "/scaledobjects", 403)
    outcome = await carry(hands, pause_of(pair.workload))
    assert outcome.status is Status.failed
    assert not set(annotations(server.now(pair.target))) & set(names.PAUSE_KEYS)
    assert annotations(server.now(pair.scaler)) == {"team": "a"}


@pytest.mark.parametrize("done", [True, False], ids=["done", "not-done"])
async def test_a_lost_answer_keeps_the_record_for_the_next_cycle(
    server: Server, hands: doing.Hands, done: bool
) -> None:
    pair = Pair(server, scaled_object())
    server.drop("PATCH", "/scaledobjects", done=done)
    outcome = await carry(hands, pause_of(pair.workload))
    assert outcome.status is Status.failed
    assert names.ORIGINAL_STATE in annotations(server.now(pair.target))
    assert (annotations(server.now(pair.scaler)).get(names.KEDA_PAUSED_REPLICAS) == "0") is done


async def test_a_void_record_on_a_scaled_object_does_not_stop_the_next_pause(
    server: Server, hands: doing.Hands
) -> None:
    scaler = scaled_object()
    scaler["metadata"]["annotations"][names.ORIGINAL_STATE] = "{}"  # left by somebody who ended the pause by hand
    pair = Pair(server, scaler)
    assert (await carry(hands, pause_of(pair.workload))).status is Status.done
    await hands.resume(resume_of(pair.workload), NOW + 60)
    assert annotations(server.now(pair.scaler)) == {"team": "a"}


async def test_already_running_is_judged_before_the_scaled_object_is_touched(
    server: Server, hands: doing.Hands
) -> None:
    pair = Pair(server, scaled_object())
    await carry(hands, pause_of(pair.workload))
    server.touch(pair.scaler, lambda found: found["metadata"]["annotations"].update({names.KEDA_PAUSED_REPLICAS: "4"}))
    outcome = await hands.resume(resume_of(pair.workload), NOW + 60)
    assert outcome.detail.startswith("AlreadyRunning")
    assert annotations(server.now(pair.scaler)) == {"team": "a", names.KEDA_PAUSED_REPLICAS: "4"}
    assert server.now(pair.target)["spec"] == {"replicas": 3}


def held(pair: Pair, at: int | None) -> None:
    """What KEDA says of itself: where it holds its target."""
    pair.server.touch(pair.scaler, lambda found: found.update(status={"pausedReplicaCount": at}))


@pytest.mark.accepts("idle", 62)
async def test_a_write_of_kedas_that_wins_is_corrected_before_anybody_says_resumed(
    server: Server, hands: doing.Hands
) -> None:
    pair = Pair(server, scaled_object())
    await carry(hands, pause_of(pair.workload))
    pair.keda_scales_to(0)
    held(pair, 0)
    workload, looks = pair.workload, iter(range(9))

    def take_turn(seen: Seen) -> None:
        if seen.method == "GET" and "/deployments" in seen.path and next(looks) == 3:  # after our first write there
            pair.keda_scales_to(1)
            held(pair, None)

    server.seen = take_turn
    outcome = await hands.resume(resume_of(workload), NOW + 60)
    assert outcome.status is Status.done, outcome.detail
    assert server.now(pair.target)["spec"]["replicas"] == 3
    sizes = [seen.body["spec"]["replicas"] for seen in server.writes() if "replicas" in seen.body.get("spec", {})]
    assert sizes == [3, 3], "set, and set again after KEDA's own write"


@pytest.mark.accepts("idle", 62)
async def test_until_keda_has_taken_its_turn_the_record_stays(server: Server, hands: doing.Hands) -> None:
    pair = Pair(server, scaled_object())
    await carry(hands, pause_of(pair.workload))
    pair.keda_scales_to(0)
    held(pair, 0)
    outcome = await carry(hands, resume_of(pair.workload))
    assert outcome.status is Status.overtaken
    assert "has not taken its turn yet" in outcome.because
    assert server.now(pair.target)["spec"]["replicas"] == 3
    assert names.ORIGINAL_STATE in annotations(server.now(pair.target))
    assert server.events[1:] == [], "nobody says Resumed"
    pair.keda_scales_to(1)  # late, and it won
    outcome = await carry(hands, resume_of(pair.workload))  # the next cycle, or the command repeated
    assert outcome.status is Status.done
    assert server.now(pair.target)["spec"]["replicas"] == 3
    assert set(annotations(server.now(pair.target))) == {names.RESUMED_AT, names.RESUMED_BY}
    assert annotations(server.now(pair.scaler)) == {"team": "a"}


async def test_an_interrupted_resume_is_finished_by_the_next(server: Server, hands: doing.Hands) -> None:
    pair = Pair(server, scaled_object())
    await carry(hands, pause_of(pair.workload))
    pair.keda_scales_to(0)
    server.fail("PATCH", "/deployments", 500)
    assert (await carry(hands, resume_of(pair.workload))).status is Status.failed
    assert names.KEDA_PAUSED_REPLICAS not in annotations(server.now(pair.scaler))
    assert (await carry(hands, resume_of(pair.workload))).status is Status.done
    assert server.now(pair.target)["spec"]["replicas"] == 3
    assert annotations(server.now(pair.scaler)) == {"team": "a"}


async def test_a_scaled_object_that_is_gone_does_not_stop_a_resume(server: Server, hands: doing.Hands) -> None:
    pair = Pair(server, scaled_object())
    await carry(hands, pause_of(pair.workload))
    pair.keda_scales_to(0)
    workload = pair.workload
    del server.objects["/apis/keda.sh/v1alpha1/namespaces/team-a/scaledobjects/so"]
    assert (await carry(hands, resume_of(workload))).status is Status.done
    assert server.now(pair.target)["spec"]["replicas"] == 3


# ---- Kueue -----------------------------------------------------------------------------------------------------------


def kueue_workload(admitted: bool = False) -> Object:
    status = {"conditions": [{"type": "Admitted", "status": "True" if admitted else "False"}]}
    made = make("kueue.x-k8s.io/v1beta2", "Workload", {"active": True}, name="job-llm", status=status)
    return identified(made, "u-w", "90")


def of_kueue(server: Server, job: Object, held: Object) -> cluster.Workload:
    return workload_of(server.now(job), kueue=(examples.companion_of(server.now(held), kinds.KUEUE_WORKLOAD.reads),))


@pytest.mark.accepts("idle", 17)
@pytest.mark.parametrize("admitted", [True, False], ids=["quota-free", "quota-taken"])
@pytest.mark.parametrize("name", ["job", "pytorchjob", "raycluster"])
async def test_kueue_is_paused_and_resumed_without_a_write_on_the_job(
    server: Server, hands: doing.Hands, name: str, admitted: bool
) -> None:
    job, held = server.add(identified(EXAMPLES[name])), server.add(kueue_workload(admitted))
    before = json.dumps(server.now(job))
    assert (await carry(hands, pause_of(of_kueue(server, job, held)))).status is Status.done
    stopped = server.now(held)
    assert stopped["spec"] == {"active": False}
    assert {names.ORIGINAL_STATE, names.PAUSED_AT, names.PAUSED_BY} <= set(annotations(stopped))
    outcome = await hands.resume(resume_of(of_kueue(server, job, held)), NOW + 60)
    assert outcome.status is Status.done
    assert ("Queued" in outcome.detail) is not admitted
    assert server.now(held)["spec"] == {"active": True}
    assert set(annotations(server.now(held))) == {names.RESUMED_AT, names.RESUMED_BY}
    assert json.dumps(server.now(job)) == before


async def test_a_request_on_the_job_is_answered_there(server: Server, hands: doing.Hands) -> None:
    asked = make("batch/v1", "Job", {"suspend": False}, annotations={names.RESUME_REQUESTED: "please"})
    job = server.add(identified(asked))
    held = server.add(kueue_workload())
    await carry(hands, pause_of(of_kueue(server, job, held)))
    await hands.resume(decision.Resume(of_kueue(server, job, held), "annotation", "asked for"), NOW + 60)
    assert annotations(server.now(job)) == {}
    assert server.now(job)["spec"] == {"suspend": False}


# ---- generic kinds by /scale -----------------------------------------------------------------------------------------


async def test_a_kind_whose_definition_we_may_not_read_is_scaled_by_its_subresource(
    server: Server, hands: doing.Hands
) -> None:
    thing = server.add(identified(make("example.com/v1", "Unread", {"size": 7})))
    seen = {"body": {"spec": {"replicas": 7}}, "replicas_pointer": None}
    assert (await carry(hands, pause_of(workload_of(thing, **seen)))).status is Status.done
    stopped = server.now(thing)
    assert stopped["spec"]["size"] == 0
    assert [seen.path.endswith("/scale") for seen in server.writes()] == [False, True]
    assert json.loads(annotations(stopped)[names.ORIGINAL_STATE])["fields"] == {"/spec/replicas": 7}
    workload = workload_of(stopped, body={"spec": {"replicas": 0}}, replicas_pointer=None)
    assert (await hands.resume(resume_of(workload), NOW)).status is Status.done
    assert server.now(thing)["spec"]["size"] == 7
    assert set(annotations(server.now(thing))) == {names.RESUMED_AT, names.RESUMED_BY}


async def test_a_refused_scale_takes_the_record_away_again(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("example.com/v1", "Unread", {"size": 7})))
    server.fail("PATCH", "/scale", 403)
    outcome = await carry(hands, pause_of(workload_of(thing, body={"spec": {"replicas": 7}}, replicas_pointer=None)))
    assert outcome.status is Status.failed
    assert server.now(thing)["spec"] == {"size": 7}
    assert not set(annotations(server.now(thing))) & set(names.PAUSE_KEYS)


# ---- schedules -------------------------------------------------------------------------------------------------------

NIGHTLY = {"suspend": False, "concurrencyPolicy": "Forbid"}
CRON = identified(make("batch/v1", "CronJob", NIGHTLY, name="nightly"), "u-cron", "55")
JOB_OWNER = cluster.Owner("batch", "v1", "Job", "llm", "u-1")
UNDER_CRON = (JOB_OWNER, cluster.Owner("batch", "v1", "CronJob", "nightly", "u-cron"))


@pytest.mark.parametrize("asked", [True, False], ids=["with-c", "without-c"])
async def test_a_schedule_is_suspended_with_its_job_only_if_asked_for(
    server: Server, make_hands: MakeHands, asked: bool
) -> None:
    job, cron = server.add(identified(EXAMPLES["job"])), server.add(CRON)
    hands = make_hands(suspend_schedules=asked)
    outcome = await carry(hands, pause_of(workload_of(job, chain=UNDER_CRON)))
    assert outcome.status is Status.done
    assert server.now(job)["spec"]["suspend"] is True
    assert server.now(cron)["spec"]["suspend"] is asked
    assert ("schedule CronJob/nightly is suspended too" in outcome.detail) is asked
    await hands.resume(resume_of(workload_of(server.now(job), chain=UNDER_CRON)), NOW + 60)
    assert server.now(job)["spec"]["suspend"] is False
    assert server.now(cron)["spec"] == cron["spec"]
    assert not set(annotations(server.now(cron))) & set(names.PAUSE_KEYS)


async def test_a_schedule_that_its_owner_suspended_stays_so(server: Server, make_hands: MakeHands) -> None:
    job = server.add(identified(EXAMPLES["job"]))
    cron = server.add(identified(make("batch/v1", "CronJob", {"suspend": True}, name="nightly"), "u-cron", "55"))
    hands = make_hands(suspend_schedules=True)
    await carry(hands, pause_of(workload_of(job, chain=UNDER_CRON)))
    await hands.resume(resume_of(workload_of(server.now(job), chain=UNDER_CRON)), NOW + 60)
    assert server.now(cron) == cron


async def test_a_schedule_that_cannot_be_suspended_does_not_undo_the_pause(
    server: Server, make_hands: MakeHands
) -> None:
    job, cron = server.add(identified(EXAMPLES["job"])), server.add(CRON)
    server.fail("PATCH", "/cronjobs", 403)
    outcome = await carry(make_hands(suspend_schedules=True), pause_of(workload_of(job, chain=UNDER_CRON)))
    assert outcome.status is Status.done
    assert "schedule CronJob/nightly goes on" in outcome.detail
    assert (server.now(job)["spec"]["suspend"], server.now(cron)) == (True, cron)
