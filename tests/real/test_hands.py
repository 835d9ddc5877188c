"""The hands on a real API server: every kind, preconditions, who owns a field, KEDA and Kueue pairs, dry runs, rights.

KEDA, Kueue and the other operators are not here; what they would do to an object is done by the test, as they were seen
to do it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fallow import names
from fallow.act import execute, marking
from fallow.act import hands as doing
from fallow.clients.kubernetes import api as kubernetes
from fallow.clients.kubernetes import config, discovery
from fallow.model import cluster as nouns
from fallow.model import decision, kinds, pointers
from fallow.model.decision import Outcome, Status
from fallow.model.policies import idle
from tests.real import cluster as clusters
from tests.real import crds
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, companion_of, pause_of, workload_of

Object = dict[str, Any]
Cluster = clusters.Cluster
TEMPLATE = clusters.pod_template("llm", 1)
STRIPPED = ("resourceVersion", "generation", "managedFields", "creationTimestamp", "annotations")

BUILT_IN: dict[str, Object] = {
    "deployment": clusters.replicated("apps/v1", "Deployment", "llm", 3, 1),
    "replicaset": clusters.replicated("apps/v1", "ReplicaSet", "llm", 2, 1),
    "statefulset": clusters.replicated("apps/v1", "StatefulSet", "llm", 2, 1),
    "job": clusters.job("llm"),
    "job-unsaid": clusters.job("llm"),
    "cronjob": {
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "llm"},
        "spec": {"schedule": "0 3 1 1 *", "jobTemplate": {"spec": clusters.job("llm")["spec"]}},
    },
}


@contextlib.asynccontextmanager
async def hands_on(cluster: Cluster, kubeconfig: Any = None, **more: Any) -> AsyncIterator[doing.Hands]:
    access = config.load_access(kubeconfig=str(kubeconfig or cluster.kubeconfig), context=None, environment={})
    async with kubernetes.Api(access, qps=1000) as api:
        found = await discovery.discover(api)
        yield doing.Hands(api, found.find_version, reporting_instance="gpu-pruner-0", **more)


async def make(cluster: Cluster, name: str) -> Object:
    """One of the examples, on the server."""
    manifest = copy.deepcopy(BUILT_IN.get(name) or EXAMPLES[name])
    manifest["metadata"]["namespace"] = cluster.namespace
    status = manifest.pop("status", None)
    kind = "KnativeService" if manifest["kind"] == "Service" else manifest["kind"]
    if kind in crds.KINDS:
        await cluster.apply_crds(crds.KINDS[kind])
    made = await cluster.apply(manifest)
    if status:
        await cluster.patch(made, {"status": status}, part="status")
    return await settled(cluster, made)


async def settled(cluster: Cluster, thing: Object) -> Object:
    """Controllers write into a new object for a moment; wait until its version stands still, and until whoever has a
    controller here was seen by it."""
    seen = [thing]

    async def is_same() -> bool:
        now = await cluster.refresh(thing)
        seen.append(now)
        if thing["apiVersion"] == "apps/v1" and not now.get("status", {}).get("observedGeneration"):
            return False
        return len(seen) > 3 and len({each["metadata"]["resourceVersion"] for each in seen[-3:]}) == 1

    await cluster.wait_until(is_same)
    return seen[-1]


async def carry(hands: doing.Hands, workload: nouns.Workload, fresh: nouns.Workload | None = None) -> Outcome:
    pause = pause_of(workload)

    async def look_again(_: Any) -> dict[str, execute.SecondLook]:
        return {workload.ref.uid: execute.SecondLook(fresh or workload, pause.finding)}

    (outcome,) = await execute.carry_out([pause], hands, look_again, NOW)
    return outcome


def resume_of(workload: nouns.Workload) -> decision.Resume:
    return decision.Resume(workload, "ada", "asked for")


def annotations(thing: Object) -> Object:
    found: Object = thing["metadata"].get("annotations") or {}
    return found


def essence(thing: Object) -> Object:
    """What a user wrote: no status, no bookkeeping of the server's or ours."""
    heeded = ("serving.kserve.io/stop", "kubeflow-resource-stopped")
    kept = {name: value for name, value in annotations(thing).items() if name in heeded}
    metadata = {name: value for name, value in thing["metadata"].items() if name not in STRIPPED}
    return {"metadata": metadata | {"annotations": kept}, "spec": thing.get("spec", {})}


async def carry_in_the_end(cluster: Cluster, hands: doing.Hands, thing: Object, **more: Any) -> Outcome:
    """As the next cycles would: an object whose controller writes just now gives way, and is tried again."""

    async def see() -> nouns.Workload:
        return workload_of(await settled(cluster, thing), **more)

    return await carry_seen(hands, see)


async def carry_seen(hands: doing.Hands, see: Callable[[], Awaitable[nouns.Workload]]) -> Outcome:
    for _ in range(5):
        outcome = await carry(hands, await see())
        if outcome.status is not Status.overtaken:
            break
    return outcome


@pytest.mark.accepts("idle", 11, 12, 14, 15, 37)
@pytest.mark.parametrize("name", EXAMPLES)
async def test_every_kind_goes_and_comes_back(cluster: Cluster, name: str) -> None:
    before = await make(cluster, name)
    async with hands_on(cluster) as hands:
        outcome = await carry_in_the_end(cluster, hands, before)
        assert outcome.status is Status.done, outcome.detail
        stopped = await cluster.refresh(before)
        workload = workload_of(stopped)
        kind = kinds.of(workload)
        assert kind is not None
        assert kinds.is_paused(kind, workload)
        again = await carry(hands, workload)
        assert again.status is Status.overtaken
        outcome = await hands.resume(resume_of(workload), NOW + 60)
        assert outcome.status is Status.done, outcome.detail
    back = await cluster.refresh(before)
    assert essence(back) == essence(before)
    assert {key for key in annotations(back) if key.startswith(names.GROUP)} == {names.RESUMED_AT, names.RESUMED_BY}
    ours = [event for event in await cluster.events() if event["reportingController"] == "gpu-pruner"]
    assert {event["reason"] for event in ours} == {kind.event, "Resumed"}


@pytest.mark.accepts("idle", 15)
async def test_pods_go_and_come_back(cluster: Cluster) -> None:
    await cluster.gpu_node("gpu-1")
    made = await cluster.deployment("llm", replicas=3)
    async with hands_on(cluster) as hands:
        assert (await carry_in_the_end(cluster, hands, made)).status is Status.done
        await cluster.wait_until(lambda: _has_no_pods(cluster))
        assert (await hands.resume(resume_of(workload_of(await cluster.refresh(made))), NOW + 60)).status is Status.done
    await cluster.wait_until(lambda: cluster.ready_pods("app=llm", 3))


async def _has_no_pods(cluster: Cluster) -> bool:
    return not await cluster.pods("app=llm")


# ---- preconditions and refusals --------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 22, 36)
@pytest.mark.parametrize("how", ["changed", "recreated"])
@pytest.mark.parametrize("name", ["deployment", "notebook"])
async def test_an_object_that_changed_after_the_look_is_not_patched(cluster: Cluster, name: str, how: str) -> None:
    before = await make(cluster, name)
    workload = workload_of(before)
    if how == "changed":
        await cluster.patch(before, {"metadata": {"labels": {"touched": "yes"}}})
    else:
        await cluster.delete(before, propagationPolicy="Background")
        await cluster.wait_until(lambda: _is_gone(cluster, before))
        await make(cluster, name)
    async with hands_on(cluster) as hands:
        outcome = await carry(hands, workload)
    assert outcome.status is Status.overtaken
    assert "UnsupportedField" not in outcome.detail
    now = await cluster.refresh(before)
    assert not set(annotations(now)) & set(names.PAUSE_KEYS)
    assert now["spec"].get("replicas") == before["spec"].get("replicas")


async def _is_gone(cluster: Cluster, thing: Object) -> bool:
    return await cluster.find(thing["apiVersion"], thing["kind"], thing["metadata"]["name"]) is None


@pytest.mark.accepts("idle", 22)
async def test_a_conflict_with_a_second_look_that_still_finds_it_idle_succeeds(cluster: Cluster) -> None:
    before = await make(cluster, "deployment")
    await cluster.patch(before, {"metadata": {"labels": {"touched": "yes"}}})
    looks = [workload_of(before), workload_of(await settled(cluster, before))]
    pause = pause_of(looks[0])

    async def look_again(_: Any) -> dict[str, execute.SecondLook]:
        return {pause.finding.workload.ref.uid: execute.SecondLook(looks.pop(0), pause.finding)}

    async with hands_on(cluster) as hands:
        (outcome,) = await execute.carry_out([pause], hands, look_again, NOW)
    assert outcome.status is Status.done
    assert (await cluster.refresh(before))["spec"]["replicas"] == 0


async def test_an_operator_without_the_field_is_report_only(cluster: Cluster) -> None:
    await cluster.apply_crds(crds.OLD_RAY_SERVICE)
    try:
        manifest = copy.deepcopy(EXAMPLES["rayservice"])
        manifest["metadata"]["namespace"] = cluster.namespace
        before = await cluster.apply(manifest)
        async with hands_on(cluster) as hands:
            outcome = await carry(hands, workload_of(before))
        assert outcome.status is Status.refused
        assert outcome.detail.startswith("ReportOnly:UnsupportedField")
        assert not set(annotations(await cluster.refresh(before))) & set(names.PAUSE_KEYS)
    finally:
        await cluster.apply_crds(crds.KINDS["RayService"])


# ---- who owns the field ----------------------------------------------------------------------------------------------


def counted(replicas: int) -> Object:
    return clusters.replicated("apps/v1", "Deployment", "llm", replicas, 1)


@pytest.mark.accepts("idle", 35)
async def test_after_a_resume_the_owner_applies_another_count_without_a_conflict(cluster: Cluster) -> None:
    made = await cluster.apply(counted(3), manager="owner")
    async with hands_on(cluster) as hands:
        assert (await carry_in_the_end(cluster, hands, made)).status is Status.done
        with pytest.raises(clusters.Refused) as refused:  # while it is paused the conflict is expected
            await cluster.apply(counted(5), manager="owner", force=False)
        assert refused.value.code == 409
        await hands.resume(resume_of(workload_of(await cluster.refresh(made))), NOW + 60)
    await cluster.apply(counted(5), manager="owner", force=False)
    back = await cluster.refresh(made)
    assert back["spec"]["replicas"] == 5
    ours = [entry for entry in back["metadata"]["managedFields"] if entry["manager"].startswith(names.FIELD_MANAGER)]
    assert all("f:spec" not in entry["fieldsV1"] for entry in ours)


@pytest.mark.accepts("idle", 34)
async def test_marks_that_an_undo_copied_back_are_no_pause(cluster: Cluster) -> None:
    made = await make(cluster, "deployment")
    async with hands_on(cluster) as hands:
        await carry_in_the_end(cluster, hands, made)
        paused = annotations(await cluster.refresh(made))
        await hands.resume(resume_of(workload_of(await cluster.refresh(made))), NOW + 60)
        copied = {name: value for name, value in paused.items() if name in names.PAUSE_KEYS}
        undone = await cluster.patch(made, {"metadata": {"annotations": copied}})  # kubectl rollout undo
        workload = workload_of(undone)
        kind = kinds.of(workload)
        assert kind is not None
        assert not kinds.holds_pause(kind, workload)
        outcome = await hands.resume(resume_of(workload), NOW + 120)
    assert outcome.detail.startswith("AlreadyRunning")
    back = await cluster.refresh(made)
    assert back["spec"]["replicas"] == 3
    assert not set(annotations(back)) & set(names.PAUSE_KEYS)


# ---- KEDA and Kueue --------------------------------------------------------------------------------------------------


async def make_scaler(cluster: Cluster, **marks: str) -> Object:
    await cluster.apply_crds(crds.KINDS["ScaledObject"])
    return await cluster.apply({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "spec": {"scaleTargetRef": {"name": "llm"}, "minReplicaCount": 1},
        "metadata": {"name": "so", "annotations": {f"autoscaling.keda.sh/{name}": marks[name] for name in marks}},
    })


async def with_scaler(cluster: Cluster, target: Object, scaler: Object) -> nouns.Workload:
    companion = companion_of(await cluster.refresh(scaler), kinds.SCALED_OBJECT.reads)
    return workload_of(await settled(cluster, target), scaled_objects=(companion,))


@pytest.mark.accepts("idle", 16, 38)
@pytest.mark.parametrize("marks", [{}, {"paused": "true"}, {"paused-replicas": "5"}], ids=["bare", "paused", "pinned"])
async def test_a_keda_pair_goes_and_comes_back(cluster: Cluster, marks: dict[str, str]) -> None:
    target, scaler = await make(cluster, "deployment"), await make_scaler(cluster, **marks)
    async with hands_on(cluster) as hands:
        assert (await carry_seen(hands, lambda: with_scaler(cluster, target, scaler))).status is Status.done
        assert annotations(await cluster.refresh(scaler))[names.KEDA_PAUSED_REPLICAS] == "0"
        assert (await cluster.refresh(target))["spec"]["replicas"] == 3
        await cluster.patch(target, {"spec": {"replicas": 0}}, part="scale")  # what KEDA does then
        workload = await with_scaler(cluster, target, scaler)
        await cluster.patch(target, {"metadata": {"labels": {"touched": "yes"}}})
        outcome = await hands.resume(resume_of(workload), NOW + 60)
    assert outcome.status is Status.done, outcome.detail
    assert annotations(await cluster.refresh(scaler)) == annotations(scaler)
    back = await cluster.refresh(target)
    assert back["spec"]["replicas"] == 3
    assert not set(annotations(back)) & set(names.PAUSE_KEYS)


async def test_a_forbidden_scaled_object_leaves_no_record(cluster: Cluster) -> None:
    target, scaler = await make(cluster, "deployment"), await make_scaler(cluster)
    workload = await with_scaler(cluster, target, scaler)
    rules = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]}]
    kubeconfig = await cluster.service_account("only-deployments", rules)
    async with hands_on(cluster, kubeconfig) as hands:
        outcome = await carry(hands, workload)
    assert outcome.status is Status.failed
    assert outcome.detail.startswith("403 ")
    assert not set(annotations(await cluster.refresh(target))) & set(names.PAUSE_KEYS)


@pytest.mark.accepts("idle", 17)
async def test_a_job_of_kueue_is_not_written_on(cluster: Cluster) -> None:
    await cluster.apply_crds(crds.KINDS["Workload"])
    job = await cluster.apply(clusters.job("llm"))
    labels = {names.KUEUE_JOB_UID: job["metadata"]["uid"]}
    held = await cluster.apply({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True},
        "metadata": {"name": "job-llm", "labels": labels},
    })

    async def seen() -> nouns.Workload:
        companion = companion_of(await cluster.refresh(held), kinds.KUEUE_WORKLOAD.reads)
        return workload_of(await cluster.refresh(job), kueue=(companion,))

    async with hands_on(cluster) as hands:
        assert (await carry_seen(hands, seen)).status is Status.done
        stopped = await cluster.refresh(held)
        assert stopped["spec"]["active"] is False
        assert json.loads(annotations(stopped)[names.ORIGINAL_STATE])["fields"] == {"/spec/active": True}
        outcome = await hands.resume(resume_of(await seen()), NOW + 60)
    assert outcome.status is Status.done
    assert "Queued" in outcome.detail
    assert (await cluster.refresh(held))["spec"]["active"] is True
    assert cluster.requests(verbs=["patch"], contains="/workloads/job-llm", agent="fallow/") != []
    assert cluster.requests(verbs=["patch", "update"], contains="/jobs/llm", agent="fallow/") == []


async def test_a_schedule_goes_and_comes_back_with_its_job(cluster: Cluster) -> None:
    job = await settled(cluster, await cluster.apply(clusters.job("llm")))
    nightly = copy.deepcopy(BUILT_IN["cronjob"]) | {"metadata": {"name": "nightly"}}
    cron = await settled(cluster, await cluster.apply(nightly))
    refs = [examples.ref_of(thing) for thing in (job, cron)]
    chain = tuple(nouns.Owner(ref.group, ref.version, ref.kind, ref.name, ref.uid) for ref in refs)
    async with hands_on(cluster, suspend_schedules=True) as hands:
        outcome = await carry_in_the_end(cluster, hands, job, chain=chain)
        assert outcome.status is Status.done, outcome.detail
        assert [(await cluster.refresh(thing))["spec"]["suspend"] for thing in (job, cron)] == [True, True]
        outcome = await hands.resume(resume_of(workload_of(await cluster.refresh(job), chain=chain)), NOW + 60)
        assert outcome.status is Status.done, outcome.detail
    assert [essence(await cluster.refresh(thing)) for thing in (job, cron)] == [essence(job), essence(cron)]


async def test_a_generic_kind_is_scaled_without_its_definition(cluster: Cluster) -> None:
    before = await make(cluster, "generic")
    unread: Object = {"replicas_pointer": None, "body": {"spec": {"replicas": 7}}}
    async with hands_on(cluster) as hands:
        outcome = await carry(hands, workload_of(before, **unread))
        assert outcome.status is Status.done, outcome.detail
        stopped = await cluster.refresh(before)
        assert stopped["spec"]["size"] == 0
        path = f"/apis/example.com/v1/namespaces/{cluster.namespace}/scalables/llm/scale"
        scale = pointers.prune(await cluster.request("GET", path), ("/spec/replicas",))
        workload = workload_of(stopped, replicas_pointer=None, body=scale)
        kind = kinds.of(workload)
        assert kind is not None
        assert kinds.is_paused(kind, workload)
        outcome = await hands.resume(resume_of(workload), NOW + 60)
        assert outcome.status is Status.done, outcome.detail
    back = await cluster.refresh(before)
    assert back["spec"]["size"] == 7
    assert not set(annotations(back)) & set(names.PAUSE_KEYS)
    owned = [entry for entry in back["metadata"]["managedFields"] if entry["manager"].startswith(names.FIELD_MANAGER)]
    assert all("f:spec" not in entry["fieldsV1"] for entry in owned)


# ---- dry runs and rights ---------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 28)
@pytest.mark.parametrize("name", ["deployment", "notebook", "raycluster"])
async def test_a_dry_run_is_asked_of_the_server_and_changes_nothing(cluster: Cluster, name: str) -> None:
    before = await make(cluster, name)
    async with hands_on(cluster, dry_run="server") as hands:
        outcome = await carry_in_the_end(cluster, hands, before)
    assert outcome.status is Status.dry_run, outcome.detail
    after = await cluster.refresh(before)
    assert essence(after) == essence(before)
    assert not set(annotations(after)) & set(names.PAUSE_KEYS)
    assert [event for event in await cluster.events() if event["reportingController"] == "gpu-pruner"] == []


@pytest.mark.accepts("idle", 28)
async def test_a_dry_run_without_rights_says_so(cluster: Cluster) -> None:
    before = await make(cluster, "deployment")
    rules = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}]
    kubeconfig = await cluster.service_account("reader", rules)
    async with hands_on(cluster, kubeconfig, dry_run="server") as hands:
        outcome = await carry(hands, workload_of(before))
    assert outcome.status is Status.dry_run
    assert "(not checked by the API server: 403 " in outcome.detail
    assert (await cluster.refresh(before))["spec"]["replicas"] == 3


# ---- notices, acks, events -------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 31)
async def test_notice_and_ack_of_an_inference_service_leave_it_and_its_pods_alone(cluster: Cluster) -> None:
    await cluster.gpu_node("gpu-1")
    service = await make(cluster, "isvc")
    child = await cluster.deployment("llm-predictor", replicas=1)
    pods = {pod["metadata"]["uid"] for pod in await cluster.pods("app=llm-predictor")}

    async def see() -> nouns.Workload:
        holder = await settled(cluster, child)
        version = holder["metadata"]["resourceVersion"]
        marks = {"marks_ref": examples.ref_of(child), "marks": annotations(holder), "marks_version": version}
        return workload_of(service, **marks)

    channels = (idle.Channel("e", "event"),)
    warn = decision.Warn(examples.finding_of(await see()), "abcdef123456", NOW - 60, NOW + 300, channels)
    async with hands_on(cluster) as hands:
        [told] = await hands.warn([warn], NOW, lambda: NOW, lambda: True)
        assert told.status is Status.done
        assert names.PENDING_SINCE in annotations(await cluster.refresh(child))
        ack = marking.ack_mark(await see(), until=NOW + 3600, by="ada", reason="demo", now=NOW)
        assert (await hands.mark(ack, NOW)).status is Status.done
    assert {names.ACK_UNTIL, names.ACK_BY} <= set(annotations(await cluster.refresh(child)))
    assert (await cluster.refresh(service))["metadata"]["resourceVersion"] == service["metadata"]["resourceVersion"]
    assert {pod["metadata"]["uid"] for pod in await cluster.pods("app=llm-predictor")} == pods


async def test_a_repeated_event_is_a_series(cluster: Cluster) -> None:
    made = await make(cluster, "notebook")
    ref = examples.ref_of(made)
    async with hands_on(cluster) as hands:
        for seconds in (0, 60, 120):
            await hands.announcer.publish(ref, names.Event.PAUSE_FAILED, "ü" * 2000, NOW + seconds)
    (event,) = await cluster.events(names.Event.PAUSE_FAILED)
    assert event["series"]["count"] == 3
    assert len(event["note"].encode()) <= 1024
    assert event["regarding"]["apiVersion"] == "kubeflow.org/v1"
