"""Courtesy through the commands: who is told, who may keep it, what is written, and that everything comes back.

`gpu-pruner -r scale-down` acts and `fallow` verbs answer, each a process of its own, on a real cluster with a real
Prometheus. Operators (KEDA, KServe, LWS) are not here; what they would do to an object is done by the test, as they
were seen to do it.
"""

from __future__ import annotations

import asyncio
import datetime
import json

import pytest

from fallow import names
from tests.real import build, crds, faults, history, product, scene
from tests.real import cluster as clusters

Object = clusters.Object
Scene = scene.Scene
marks_of = scene.marks_of


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> Scene:
    return await Scene(cluster, prometheus).prepare()


async def see(stage: Scene, kind: str, name: str = "llm", version: str = "apps/v1") -> Object:
    return await stage.cluster.get(version, kind, name)


async def wait_for_pods(stage: Scene, count: int, app: str = "llm") -> list[Object]:
    async def as_many() -> bool:
        return len(await stage.cluster.pods(f"app={app}")) == count

    await stage.cluster.wait_until(as_many)
    return await stage.cluster.pods(f"app={app}")


def ago(minutes: float) -> str:
    return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def owned_by(manifest: Object, owner: Object, labels: dict[str, str] | None = None) -> Object:
    meta = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": True,
    }
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels or {}, "ownerReferences": [reference]}}


async def annotate(stage: Scene, thing: Object, **marks: str | None) -> Object:
    """Keys of our own, `_` for `-`."""
    changes = {f"{names.GROUP}/{key.replace('_', '-')}": value for key, value in marks.items()}
    return await stage.cluster.patch(thing, {"metadata": {"annotations": changes}})


# ---- paused, and back ------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 11, 15, 39)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
async def test_what_is_paused_comes_back_without_prometheus(stage: Scene, kind: str) -> None:
    manifest = clusters.replicated("apps/v1", kind, "llm", 3, 1)
    await stage.quiet(manifest, pods=3)
    await stage.begin()
    assert "ownerReferences" not in (await see(stage, kind))["metadata"]
    assert "pause" in await stage.prune()
    paused = await see(stage, kind)
    assert paused["spec"]["replicas"] == 0
    record = marks_of(paused)[names.ORIGINAL_STATE]
    assert json.loads(record)["fields"] == {"/spec/replicas": 3}
    await wait_for_pods(stage, 0)
    await stage.prune()  # once more: nothing is left to do, and the first record survives
    again = await stage.fallow("pause", f"{kind}/llm", code=0)
    assert "AlreadyPaused" in again
    assert marks_of(await see(stage, kind))[names.ORIGINAL_STATE] == record
    assert len(stage.writes(f"{kind.lower()}s/llm")) == 1
    await stage.prometheus.kill()
    assert "Resumed" in await stage.fallow("resume", f"{kind}/llm")
    back = await see(stage, kind)
    assert back["spec"]["replicas"] == 3
    assert not set(marks_of(back)) & set(names.PAUSE_KEYS)
    assert marks_of(back)[names.RESUMED_BY].startswith("user:")
    assert await stage.reasons() == ["IdleDetected", "ScaledToZero", "Resumed"]
    await stage.cluster.wait_until(lambda: stage.cluster.ready_pods("app=llm", 3))


@pytest.mark.accepts("idle", 39)
async def test_a_record_that_is_there_is_never_overwritten(stage: Scene) -> None:
    """Somebody scaled it up again behind our back and left our record: it tells of the first size, and stays what it
    is."""
    await stage.deployment()
    await stage.begin()
    made = await see(stage, "Deployment")
    record = '{"v":1,"fields":{"/spec/replicas":7},"companions":[]}'
    await annotate(stage, made, original_state=record)
    said = await stage.prune()
    now = await see(stage, "Deployment")
    assert (marks_of(now)[names.ORIGINAL_STATE], now["spec"]["replicas"]) == (record, 1), said
    assert "RecordPresent" in said


@pytest.mark.accepts("idle", 12)
async def test_of_a_leader_worker_set_only_the_set_is_written_on(stage: Scene) -> None:
    await stage.cluster.apply_crds(crds.KINDS["LeaderWorkerSet"])
    group = await stage.cluster.apply({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "big"},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2}},
    })
    (leader,) = await stage.quiet(owned_by(clusters.replicated("apps/v1", "StatefulSet", "big", 1, 1), group))
    owner = {"apiVersion": "v1", "kind": "Pod", **leader}
    await stage.quiet(owned_by(clusters.replicated("apps/v1", "StatefulSet", "big-0", 1, 1), owner))
    await stage.begin()
    assert (await stage.rows("-e", "dsl"))["big"]["kind"] == "LeaderWorkerSet"
    assert (await stage.rows())["big"]["skip"] == "KindDisabled"
    await stage.prune("-e", "dsl")
    assert (await see(stage, "LeaderWorkerSet", "big", "leaderworkerset.x-k8s.io/v1"))["spec"]["replicas"] == 0
    assert stage.writes("/statefulsets/") == []
    await stage.fallow("resume", "LeaderWorkerSet/big")
    assert (await see(stage, "LeaderWorkerSet", "big", "leaderworkerset.x-k8s.io/v1"))["spec"]["replicas"] == 1


@pytest.mark.accepts("idle", 13)
async def test_what_an_unknown_owner_would_restore_is_not_touched(stage: Scene) -> None:
    await stage.cluster.apply_crds(crds.KINDS["Opaque"])
    owner = await stage.cluster.apply(
        {"apiVersion": "example.com/v1", "kind": "Opaque", "metadata": {"name": "top"}, "spec": {}}
    )
    await stage.quiet(owned_by(clusters.replicated("apps/v1", "Deployment", "llm", 1, 1), owner))
    await stage.begin()
    (row,) = (await stage.rows()).values()
    assert (row["kind"], row["verdict"], row["skip"], row["nextAction"]) == (
        "Opaque", "idle", "ReportOnly:ManagedByUnknownOwner", None
    )
    await stage.prune("-e", "drsinx")
    assert stage.writes() == []


async def test_a_pause_by_hand_can_be_tried_is_refused_to_the_kept_and_comes_back(stage: Scene) -> None:
    await stage.deployment(replicas=2, busy=0.9)  # whether idle or not
    tried = await stage.fallow("pause", "Deployment/llm", "--dry-run")
    assert tried.startswith(f"Would scale Deployment {stage.namespace}/llm from 2 to 0")
    await stage.fallow("ack", "Deployment/llm", "--hours", "1")
    assert "--force" in await stage.fallow("pause", "Deployment/llm", code=1)
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 2
    said = await stage.fallow("pause", "Deployment/llm", "--force", "--reason", "over the weekend")
    assert "over the weekend (user:" in said
    paused = await see(stage, "Deployment")
    assert (paused["spec"]["replicas"], marks_of(paused)[names.PAUSED_REASON]) == (0, "over the weekend")
    assert (await stage.fallow("resume", "Deployment/llm", "--dry-run")).startswith("Would resume")
    untouched = await see(stage, "Deployment")  # but for its status, which the controllers write as the pods go
    assert (untouched["spec"], marks_of(untouched)) == (paused["spec"], marks_of(paused))
    await stage.fallow("resume", "Deployment/llm")
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 2
    assert "AlreadyRunning" in await stage.fallow("resume", "Deployment/llm")


async def test_a_lost_record_is_said_and_the_size_can_be_given(stage: Scene) -> None:
    await stage.deployment(replicas=2)
    await stage.fallow("pause", "Deployment/llm")
    await annotate(stage, await see(stage, "Deployment"), original_state="{half a rec")
    assert "NoOriginalState" in await stage.fallow("resume", "Deployment/llm", code=1)
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 0
    await stage.fallow("resume", "Deployment/llm", "--replicas", "5")
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 5


async def test_a_size_given_beside_an_intact_record_needs_force(stage: Scene) -> None:
    await stage.deployment(replicas=2)
    await stage.fallow("pause", "Deployment/llm")
    said = await stage.fallow("resume", "Deployment/llm", "--replicas", "5", code=1)
    assert "is intact and holds /spec/replicas 2: leave out --replicas to bring that back" in " ".join(said.split())
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 0
    await stage.fallow("resume", "Deployment/llm", "--replicas", "5", "--force")
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 5


async def test_an_annotation_asks_for_it_back(stage: Scene) -> None:
    """For whoever may annotate and has no command at hand."""
    await stage.deployment()
    await stage.begin()
    await stage.prune()
    await wait_for_pods(stage, 0)
    await annotate(stage, await see(stage, "Deployment"), resume_requested="ada")
    await stage.prune()
    back = await see(stage, "Deployment")
    assert (back["spec"]["replicas"], marks_of(back)[names.RESUMED_BY]) == (1, "ada")
    assert not set(marks_of(back)) & {*names.PAUSE_KEYS, names.RESUME_REQUESTED}


# ---- KServe ----------------------------------------------------------------------------------------------------------


async def make_inference_service(stage: Scene, **marks: str) -> Object:
    """As KServe has it in Standard mode: the service, and a Deployment of its own that runs the pods."""
    await stage.cluster.apply_crds(crds.KINDS["InferenceService"])
    service = await stage.cluster.apply({
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "spec": {"predictor": {"minReplicas": 1}},
        "metadata": {"name": "bert", "annotations": {names.KSERVE_MODE: "RawDeployment", **marks}},
    })
    label = {names.KSERVE_ISVC_LABEL: "bert"}
    child = clusters.replicated("apps/v1", "Deployment", "bert-predictor", 1, 1, labels=label)
    await stage.quiet(owned_by(child, service, label))
    return service


@pytest.mark.accepts("idle", 14)
@pytest.mark.parametrize("marks", [{}, {names.KSERVE_STOP: "false"}], ids=["absent", "false"])
async def test_an_inference_service_is_stopped_by_its_own_annotation(stage: Scene, marks: dict[str, str]) -> None:
    service = await make_inference_service(stage, **marks)
    await stage.begin()
    await stage.prune()
    stopped = await stage.cluster.refresh(service)
    assert marks_of(stopped)[names.KSERVE_STOP] == "true"
    assert stopped["spec"] == service["spec"]
    await stage.cluster.delete(await see(stage, "Deployment", "bert-predictor"))  # what KServe does then
    await wait_for_pods(stage, 0, "bert-predictor")
    await stage.fallow("resume", "InferenceService/bert")
    back = await stage.cluster.refresh(service)
    assert {key: value for key, value in marks_of(back).items() if "kserve" in key} == {
        names.KSERVE_MODE: "RawDeployment", **marks
    }
    assert not set(marks_of(back)) & set(names.PAUSE_KEYS)


@pytest.mark.accepts("idle", 31)
async def test_notice_and_ack_leave_an_inference_service_itself_alone(stage: Scene) -> None:
    """Any change of its metadata would make KServe restart its pods: the child Deployment carries the marks."""
    service = await make_inference_service(stage)
    before = await stage.cluster.pods("app=bert-predictor")
    await stage.begin()
    await stage.make_policy()
    await stage.prune()
    child = await see(stage, "Deployment", "bert-predictor")
    assert names.PENDING_SINCE in marks_of(child)
    await stage.fallow("ack", "InferenceService/bert", "--hours", "2")
    child = await see(stage, "Deployment", "bert-predictor")
    assert (names.ACK_UNTIL in marks_of(child), names.PENDING_SINCE in marks_of(child)) == (True, False)
    assert (await stage.rows())["bert"]["skip"] == "Acknowledged"
    now = await stage.cluster.refresh(service)
    assert now["metadata"]["resourceVersion"] == service["metadata"]["resourceVersion"]
    assert stage.writes("/inferenceservices/") == []
    assert [pod["metadata"]["uid"] for pod in await stage.cluster.pods("app=bert-predictor")] == [
        pod["metadata"]["uid"] for pod in before
    ]


# ---- KEDA ------------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 16, 38)
@pytest.mark.parametrize("marks", [{}, {names.KEDA_PAUSED: "true"}], ids=["bare", "already-paused"])
async def test_a_keda_target_goes_and_comes_back_through_its_scaled_object(stage: Scene, marks: dict[str, str]) -> None:
    await stage.cluster.apply_crds(crds.KINDS["ScaledObject"])
    await stage.deployment(replicas=3)
    scaler = await stage.cluster.apply({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "so", "annotations": marks},
        "spec": {"scaleTargetRef": {"name": "llm"}, "minReplicaCount": 1, "triggers": []},
    })
    await stage.begin()
    await stage.prune()
    held = marks_of(await stage.cluster.refresh(scaler))
    assert {key: value for key, value in held.items() if "keda" in key} == {**marks, names.KEDA_PAUSED_REPLICAS: "0"}
    target = await see(stage, "Deployment")
    assert target["spec"]["replicas"] == 3, "KEDA scales it, not we"
    await stage.cluster.patch(target, {"spec": {"replicas": 0}}, part="scale")  # what KEDA does then
    await wait_for_pods(stage, 0)
    await resume_through_a_conflict(stage, target)
    assert marks_of(await stage.cluster.refresh(scaler)) == marks_of(scaler)
    back = await see(stage, "Deployment")
    assert back["spec"]["replicas"] == 3
    assert not set(marks_of(back)) & set(names.PAUSE_KEYS)


async def resume_through_a_conflict(stage: Scene, target: Object) -> None:
    """Somebody else changes the target just before our patch arrives there: a 409, which is tried again after another
    look."""
    async with product.proxy_to_api_server(stage.cluster.plane) as proxy:
        kubeconfig = await stage.cluster.service_account("ada", product.ALL_RIGHTS, through=proxy.url)

        async def touch() -> None:
            await stage.cluster.patch(target, {"metadata": {"labels": {"touched": "yes"}}})

        proxy.fault = faults.only(
            f"PATCH /apis/apps/v1/namespaces/{stage.namespace}/deployments/llm?", faults.meanwhile(touch), times=1
        )
        await stage.fallow("resume", "Deployment/llm", kubeconfig=kubeconfig)
    assert [asked.code for asked in stage.writes("/deployments/llm?") if "fallow-resume" in asked.uri][:2] == [409, 200]


# ---- notices ---------------------------------------------------------------------------------------------------------


async def test_a_notice_then_the_grace_then_the_pause(stage: Scene) -> None:
    await stage.deployment(replicas=2)
    await stage.begin()
    await stage.make_policy()
    assert (await stage.rows())["llm"]["nextAction"]["type"] == "notice"
    await stage.prune()
    told = await see(stage, "Deployment")
    marks = marks_of(told)
    assert {names.IDLE_SINCE, names.IDLE_EPISODE, names.PENDING_SINCE, names.PENDING_SINCE_ALIAS} <= set(marks)
    assert told["spec"]["replicas"] == 2
    row = (await stage.rows())["llm"]
    assert (row["skip"], row["nextAction"]["type"], row["policy"]) == ("InNotice", "pause", f"tell-{stage.namespace}")
    await stage.prune()  # within the grace: nothing more is said, nothing is done
    assert marks_of(await see(stage, "Deployment"))[names.PENDING_SINCE] == marks[names.PENDING_SINCE]
    await annotate(stage, told, pending_since=ago(6))  # six minutes later
    await stage.prune()
    paused = await see(stage, "Deployment")
    assert paused["spec"]["replicas"] == 0
    assert not set(marks_of(paused)) & set(names.PENDING_KEYS)
    # Each once, though three runs told.
    assert sorted(await stage.reasons()) == ["IdleDetected", "IdleNoticeSent", "ScaledToZero"]
    (notice,) = await stage.cluster.events("IdleNoticeSent")
    assert f"fallow ack Deployment/llm -n {stage.namespace}" in notice["note"]


@pytest.mark.accepts("idle", 19)
async def test_a_mark_from_an_earlier_idleness_is_no_notice(stage: Scene) -> None:
    """Told a week ago, active since, idle again now: the grace of then is not the grace of now."""
    await stage.deployment(busy=[0.7] * 61 + [0.0] * 120)  # quiet for an hour
    await stage.begin()
    await stage.make_policy()
    week = ago(7 * 24 * 60)
    await annotate(
        stage, await see(stage, "Deployment"), pending_since=week, idle_since=week, idle_episode="0123456789ab"
    )
    assert (await stage.rows())["llm"]["nextAction"]["type"] == "notice"
    await stage.prune()
    told = await see(stage, "Deployment")
    assert told["spec"]["replicas"] == 1
    assert marks_of(told)[names.PENDING_SINCE] > ago(5)
    assert marks_of(told)[names.IDLE_EPISODE] != "0123456789ab"
    assert "IdleNoticeSent" in await stage.reasons()


@pytest.mark.accepts("idle", 42)
async def test_a_notice_that_outlived_ten_hours_without_data_is_given_anew(stage: Scene) -> None:
    """Told before the gap, quiet for an hour after it: nobody knows what was in between."""
    (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "llm", 1, 1), minutes=12 * 60)
    stage.measure(pod, [0.0] * 120 + [None] * 1200 + [0.0] * 120)
    await stage.begin()
    await stage.make_policy()
    early = ago(11.5 * 60)
    await annotate(stage, await see(stage, "Deployment"), pending_since=early, idle_since=early)
    await stage.prune()
    warned = await see(stage, "Deployment")
    assert (warned["spec"]["replicas"], marks_of(warned)[names.PENDING_SINCE] > ago(5)) == (1, True)
    assert marks_of(warned)[names.IDLE_SINCE] > ago(61), "not before the end of the gap"
    assert "IdleNoticeSent" in await stage.reasons()
    await annotate(stage, warned, pending_since=ago(6))  # six minutes later
    await stage.prune()
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 0


async def test_a_notice_is_as_old_as_it_is_though_the_idle_time_is_known_to_a_tenth_only(stage: Scene) -> None:
    """Busy until half an hour before the notice, eleven hours ago: that notice is a good one."""
    (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "llm", 1, 1), minutes=14 * 60)
    stage.measure(pod, [0.6] * 60 + [0.0] * 1380)
    await stage.begin()
    await stage.make_policy()
    await annotate(stage, await see(stage, "Deployment"), pending_since=ago(11 * 60), idle_since=ago(11.5 * 60))
    await stage.prune()
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 0


async def test_a_policy_that_needs_a_notice_and_has_no_way_to_send_it_never_pauses(stage: Scene) -> None:
    await stage.deployment()
    await stage.begin()
    await stage.make_policy(notice={"required": True, "channels": []})
    await stage.prune()
    row = (await stage.rows())["llm"]
    assert (row["skip"], (await see(stage, "Deployment"))["spec"]["replicas"]) == ("ReportOnly:NoChannel", 1)


# ---- acknowledgements ------------------------------------------------------------------------------------------------


async def test_an_acknowledged_workload_is_kept_until_that_ends(stage: Scene) -> None:
    await stage.deployment()
    await stage.begin()
    refused = await stage.fallow("ack", "Deployment/llm", "--hours", "400", code=2)
    assert "168" in refused
    assert stage.writes() == []
    said = await stage.fallow("ack", "Deployment/llm", "--hours", "8", "--reason", "demo at noon")
    assert "keeps it until" in said
    assert "demo at noon" in (await stage.type("fallow", "acks", "-n", stage.namespace)).out
    await stage.prune()
    made = await see(stage, "Deployment")
    assert (made["spec"]["replicas"], (await stage.rows())["llm"]["skip"]) == (1, "Acknowledged")
    await annotate(stage, made, ack_until=ago(1), ack_at=ago(60))
    await stage.cluster.patch(
        made, {"metadata": {"annotations": {names.ACK_UNTIL_ALIAS: None, names.ACK_BY_ALIAS: None}}}
    )
    await stage.prune()
    ended = await see(stage, "Deployment")
    assert not set(marks_of(ended)) & set(names.ACK_KEYS)
    assert ended["spec"]["replicas"] == 1, "the cycle that ends an ack does nothing else to it"
    await stage.prune()
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 0
    assert [reason for reason in await stage.reasons() if reason != "IdleDetected"] == [
        "Acknowledged", "AckExpired", "ScaledToZero"
    ]
    assert "AlreadyPaused" in await stage.fallow("ack", "Deployment/llm", "--hours", "1", code=1)


@pytest.mark.accepts("idle", 33)
async def test_an_ack_that_was_taken_back_has_ended_although_a_replica_set_still_carries_it(stage: Scene) -> None:
    await stage.deployment()
    await stage.begin()
    await stage.make_policy()
    await stage.prune()  # told
    await stage.fallow("ack", "Deployment/llm", "--hours", "8")
    assert names.PENDING_SINCE not in marks_of(await see(stage, "Deployment"))
    await stage.cluster.wait_until(lambda: _replica_set_says(stage, names.ACK_UNTIL))
    assert (await stage.rows())["llm"]["skip"] == "Acknowledged"
    assert "no longer keeps it" in await stage.fallow("unack", "Deployment/llm")
    assert "is not acknowledged" in await stage.fallow("unack", "Deployment/llm", code=1)
    assert await _replica_set_says(stage, names.ACK_UNTIL)
    row = (await stage.rows())["llm"]
    assert (row["skip"], row["nextAction"]["type"]) == (None, "notice")
    await stage.prune()
    made = await see(stage, "Deployment")
    assert (names.PENDING_SINCE in marks_of(made), made["spec"]["replicas"]) == (True, 1)


async def _replica_set_says(stage: Scene, key: str) -> bool:
    return any(key in marks_of(each) for each in await stage.cluster.objects("apps/v1", "ReplicaSet"))


# ---- others who act on the same object -------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 23)
async def test_whoever_undoes_us_three_times_in_a_day_is_left_alone(stage: Scene) -> None:
    await stage.stateful()
    await stage.deployment("web", gpus=4, busy=0.9)  # or the pauses of one hour would be more than all there is
    await stage.begin()
    flags = ("--immunity", "0")
    for turn in range(3):
        said = await stage.prune(*flags)
        paused = await see(stage, "StatefulSet")
        assert paused["spec"]["replicas"] == 0, f"turn {turn}: {said}"
        await stage.cluster.patch(paused, {"spec": {"replicas": 1}}, fieldManager="rival")
        await stage.cluster.wait_until(lambda: stage.cluster.ready_pods("app=llm", 1))
        await stage.cluster.age("app=llm", scene.MINUTES)
        await stage.prune(*flags)
        noted = marks_of(await see(stage, "StatefulSet"))
        assert len(noted[names.PAUSE_REVERSALS].split(",")) == turn + 1
        assert noted[names.RESUMED_BY] == "external:rival"
        assert not set(noted) & set(names.PAUSE_KEYS)
    hold = datetime.datetime.fromisoformat(noted[names.FIGHT_HOLD_UNTIL]) - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(hours=23, minutes=59) < hold <= datetime.timedelta(hours=24)
    (told,) = await stage.cluster.events("PauseReverted")
    assert "rival" in told["note"]
    before = len(stage.writes("/statefulsets/"))
    await stage.prune(*flags)
    assert (await stage.rows(*flags))["llm"]["skip"] == "FightHold"
    assert len(stage.writes("/statefulsets/")) == before


@pytest.mark.accepts("idle", 34)
async def test_a_rollout_undo_after_a_resume_is_neither_a_pause_nor_a_fight(stage: Scene) -> None:
    await stage.deployment(replicas=2)
    await stage.begin()
    await stage.prune()
    await stage.cluster.wait_until(lambda: _replica_set_says(stage, names.PAUSED_AT))
    await wait_for_pods(stage, 0)
    await stage.fallow("resume", "Deployment/llm")
    made = await see(stage, "Deployment")
    image = {"containers": [{"name": "main", "image": "example.invalid/app:2"}]}
    await stage.cluster.patch(made, {"spec": {"template": {"spec": image}}}, "strategic")
    await stage.cluster.wait_until(lambda: _count_replica_sets(stage, 2))
    await kubectl(stage, "rollout", "undo", "deployment/llm")
    undone = await see(stage, "Deployment")
    assert names.PAUSED_AT in marks_of(undone), "the marks are back: without them this test proves nothing"
    await kubectl(stage, "rollout", "status", "deployment/llm", "--timeout=25s")
    await wait_for_pods(stage, 2)
    await stage.prune()
    after = await see(stage, "Deployment")
    assert after["spec"]["replicas"] == 2
    assert not set(marks_of(after)) & {*names.PAUSE_KEYS, names.PAUSE_REVERSALS, names.FIGHT_HOLD_UNTIL}
    assert "PauseReverted" not in await stage.reasons()
    paused = json.loads(
        (await stage.type("fallow", "status", "-o", "json", "--watch-namespaces", stage.namespace)).out
    )["paused"]
    assert paused == []


async def _count_replica_sets(stage: Scene, count: int) -> bool:
    return len(await stage.cluster.objects("apps/v1", "ReplicaSet")) == count


async def kubectl(stage: Scene, *words: str) -> None:
    command = [str(build.need("kubectl")), "--kubeconfig", str(stage.kubeconfig), "-n", stage.namespace, *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, said.decode()


@pytest.mark.accepts("idle", 35)
async def test_after_a_resume_its_owner_may_apply_another_size(stage: Scene) -> None:
    def sized(replicas: int) -> Object:
        return clusters.replicated("apps/v1", "Deployment", "llm", replicas, 1)

    await stage.quiet(sized(2), pods=2)
    await stage.begin()
    await stage.prune()
    with pytest.raises(clusters.Refused, match="409"):  # while it is paused the conflict is expected
        await stage.cluster.apply(sized(4), force=False)
    await stage.fallow("resume", "Deployment/llm")
    await stage.cluster.apply(sized(4), force=False)
    assert (await see(stage, "Deployment"))["spec"]["replicas"] == 4
