"""The record of a pause outlives whatever comes, goes or cannot be seen meanwhile, on a real API server: as long as the
workload is down, its way back is there, and it is listed as paused.
"""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fallow import names
from fallow.act import execute
from fallow.decide.idle import pauses
from fallow.model import cluster as nouns
from fallow.model import decision, marks
from fallow.model.decision import Status
from fallow.model.policies import idle
from tests.real import cluster as clusters
from tests.real import faults, product, test_eyes, test_hands
from tests.real import test_transactions as transactions
from tests.unit.act import examples
from tests.unit.act.examples import NOW

Object = dict[str, Any]
Cluster = clusters.Cluster
LLM = "Deployment/llm"
BLIND = [  # without the definitions of kinds
    {"apiGroups": ["example.com"], "resources": ["scalables", "scalables/scale"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
]


async def paused(cluster: Cluster, name: str = "deployment", **more: Any) -> Object:
    thing = await test_hands.make(cluster, name)
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, thing, **more)
    assert outcome.status is Status.done, outcome.detail
    return await cluster.refresh(thing)


async def resume(cluster: Cluster, workload: nouns.Workload, **more: Any) -> decision.Outcome:
    async with test_hands.hands_on(cluster) as hands:
        return await hands.resume(test_hands.resume_of(workload), NOW + 60, **more)


async def resume_seen(cluster: Cluster, short: str) -> None:
    """It is listed as paused, and comes back."""
    workload = (await test_eyes.look(cluster))[short]
    assert marks.paused_at(workload) == NOW
    outcome = await resume(cluster, workload)
    assert outcome.status is Status.done, outcome.detail


async def paused_by_keda(cluster: Cluster) -> tuple[Object, Object]:
    target, scaler = await transactions.pair(cluster)
    async with test_hands.hands_on(cluster) as hands:
        see = lambda: test_hands.with_scaler(cluster, target, scaler)  # noqa: E731
        assert (await test_hands.carry_seen(hands, see)).status is Status.done
    await cluster.patch(target, {"spec": {"replicas": 0}}, part="scale", fieldManager="keda")
    return await test_hands.settled(cluster, target), scaler


# ---- what steers it comes, goes, or is seen late ---------------------------------------------------------------------


async def test_a_scaled_object_that_comes_after_the_pause_leaves_the_record(cluster: Cluster) -> None:
    before = await paused(cluster)
    await test_hands.make_scaler(cluster)
    assert await transactions.next_cycle(cluster, LLM) == []
    await resume_seen(cluster, LLM)
    assert (await cluster.refresh(before))["spec"]["replicas"] == 3


async def test_a_scaled_object_that_is_made_anew_leaves_the_record(cluster: Cluster) -> None:
    target, scaler = await paused_by_keda(cluster)
    await cluster.delete(scaler)
    assert await transactions.next_cycle(cluster, LLM) == []
    await test_hands.make_scaler(cluster)
    assert await transactions.next_cycle(cluster, LLM) == []
    await resume_seen(cluster, LLM)
    assert (await cluster.refresh(target))["spec"]["replicas"] == 3


async def test_a_scaled_object_that_is_seen_late_leaves_the_record(cluster: Cluster) -> None:
    target, scaler = await transactions.pair(cluster)
    late = await test_hands.with_scaler(cluster, target, scaler)
    async with test_hands.hands_on(cluster) as hands:
        see = lambda: test_hands.with_scaler(cluster, target, scaler)  # noqa: E731
        assert (await test_hands.carry_seen(hands, see)).status is Status.done
        seen = msgspec.structs.replace(await see(), scaled_objects=late.scaled_objects)
        decisions = pauses.tend(seen, (), idle.Rule(), NOW + 1)
        assert [type(each) for each in decisions] == [decision.Mark]
        (outcome,) = await execute.carry_out(decisions, hands, transactions.no_look, NOW + 1)
    assert outcome.status is Status.overtaken
    assert "its record stays" in outcome.detail
    assert names.ORIGINAL_STATE in transactions.marks_of(await cluster.refresh(target))


async def test_a_second_kueue_workload_leaves_the_pause_as_it_is(cluster: Cluster) -> None:
    on = await transactions.play_kueue(cluster)
    async with test_hands.hands_on(cluster) as hands:
        assert (await on.pause(hands)).status is Status.done
    job, queued = on.things
    await cluster.apply({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True}, "metadata": {
            "name": "another", "labels": {names.KUEUE_JOB_UID: job["metadata"]["uid"]},
            "ownerReferences": queued["metadata"]["ownerReferences"]},
    })
    assert marks.paused_at((await test_eyes.look(cluster))[on.short]) == NOW
    await cluster.patch(job, {"metadata": {"annotations": {names.RESUME_REQUESTED: "ada"}}})
    (outcome,) = await transactions.next_cycle(cluster, on.short)
    assert (type(outcome.decision), outcome.status) == (decision.Resume, Status.done)
    assert (await cluster.refresh(queued))["spec"]["active"] is True


async def test_a_scale_that_cannot_be_read_leaves_the_record_and_is_asked_for_again(cluster: Cluster) -> None:
    unknown: Object = {"replicas_pointer": None, "body": {"spec": {"replicas": 7}}}
    await paused(cluster, "generic", **unknown)

    async def fail(exchange: faults.Exchange) -> web.StreamResponse:
        if exchange.request.path.endswith("/scale"):
            return web.Response(status=500, text="etcd leader changed")
        return await exchange.forward()

    async with product.proxy_to_api_server(cluster.plane) as proxy:
        kubeconfig = await cluster.service_account("blind", BLIND, through=proxy.url)
        async with test_eyes.opened(kubeconfig) as seen:
            proxy.fault = fail
            await seen.list_all(time.time())
            await seen.look_for("Scalable", time.time())
            unread = test_eyes.by_name(seen, cluster)["Scalable/llm"]
            assert pauses.tend(unread, (), idle.Rule(), NOW + 120) == []
            proxy.fault = None
            await seen.look_for("Scalable", time.time())
            assert marks.paused_at(test_eyes.by_name(seen, cluster)["Scalable/llm"]) == NOW


# ---- undone by others ------------------------------------------------------------------------------------------------


async def test_a_job_that_others_bring_back_brings_its_schedule_and_counts(cluster: Cluster) -> None:
    cron = await cluster.apply(copy.deepcopy(test_hands.BUILT_IN["cronjob"]) | {"metadata": {"name": "nightly"}})
    job = await test_hands.settled(cluster, await cluster.apply(test_eyes.owned(clusters.job("llm"), cron)))
    refs = [examples.ref_of(thing) for thing in (job, cron)]
    chain = tuple(nouns.Owner(ref.group, ref.version, ref.kind, ref.name, ref.uid) for ref in refs)
    for times in range(1, pauses.FIGHT + 1):
        async with test_hands.hands_on(cluster, suspend_schedules=True) as hands:
            assert (await test_hands.carry_in_the_end(cluster, hands, job, chain=chain)).status is Status.done
        assert (await cluster.refresh(cron))["spec"]["suspend"] is True
        await cluster.patch(job, {"spec": {"suspend": False}}, fieldManager="rival")
        await test_hands.settled(cluster, job)
        decisions = pauses.tend((await test_eyes.look(cluster))["Job/llm"], (), idle.Rule(), NOW + 60 * times)
        async with test_hands.hands_on(cluster) as hands:
            (outcome,) = await execute.carry_out(decisions, hands, transactions.no_look, NOW + 60 * times)
        assert outcome.status is Status.done, outcome.detail
        said = transactions.marks_of(await cluster.refresh(job))
        assert said[names.RESUMED_BY] == "external:rival"
        back = await cluster.refresh(cron)
        assert not back["spec"].get("suspend")
        assert transactions.pause_marks(back) == set()
    assert names.FIGHT_HOLD_UNTIL in said


# ---- who resumes knows less, or the record says too much -------------------------------------------------------------


async def scale_of(cluster: Cluster) -> Object:
    path = f"/apis/example.com/v1/namespaces/{cluster.namespace}/scalables/llm/scale"
    found: Object = await cluster.request("GET", path)
    return found


@pytest.mark.accepts("idle", 59)
async def test_who_may_not_read_the_definition_resumes_what_was_paused_by_it(cluster: Cluster) -> None:
    stopped = await paused(cluster, "generic")
    blind = examples.workload_of(stopped, replicas_pointer=None, body=await scale_of(cluster))
    outcome = await resume(cluster, blind)
    assert outcome.status is Status.done, outcome.detail
    back = await cluster.refresh(stopped)
    assert back["spec"]["size"] == 7
    ours = [each for each in back["metadata"]["managedFields"] if each["manager"].startswith(names.FIELD_MANAGER)]
    assert all("f:spec" not in each["fieldsV1"] for each in ours), "the owner's next apply does not conflict"


@pytest.mark.accepts("idle", 59)
async def test_who_reads_the_definition_resumes_what_was_paused_without_it(cluster: Cluster) -> None:
    stopped = await paused(cluster, "generic", replicas_pointer=None, body={"spec": {"replicas": 7}})
    outcome = await resume(cluster, examples.workload_of(stopped))
    assert outcome.status is Status.done, outcome.detail
    assert (await cluster.refresh(stopped))["spec"]["size"] == 7


@pytest.mark.parametrize(("name", "held_by"), [("llm-prefill", "/spec/prefill/replicas"), ("llm-default", "stop")])
async def test_a_number_alone_does_not_bring_back_what_is_held_by_more(
    cluster: Cluster, name: str, held_by: str
) -> None:
    stopped = await paused(cluster, name)
    await cluster.patch(stopped, {"metadata": {"annotations": {names.ORIGINAL_STATE: None}}})
    before = await cluster.refresh(stopped)
    outcome = await resume(cluster, examples.workload_of(before), replicas=2)
    assert (outcome.status, outcome.code) == (Status.refused, decision.Code.NoOriginalState)
    assert held_by in outcome.because
    assert (await cluster.refresh(stopped))["spec"] == before["spec"]


@pytest.mark.accepts("idle", 52)
@pytest.mark.parametrize("forged", [{"/spec/minReplicaCount": 77}, {"/metadata/annotations/x": "y"}])
async def test_a_second_scaled_object_with_a_crafted_record_is_not_written(cluster: Cluster, forged: Object) -> None:
    target, scaler = await paused_by_keda(cluster)
    second = copy.deepcopy({key: scaler[key] for key in ("apiVersion", "kind", "spec")})
    said = {names.ORIGINAL_STATE: json.dumps({"v": 1, "fields": forged})}
    two = await cluster.apply({**second, "metadata": {"name": "two", "annotations": said}})
    outcome = await resume(cluster, (await test_eyes.look(cluster))[LLM])
    assert outcome.status is Status.done, outcome.detail
    assert (await cluster.refresh(target))["spec"]["replicas"] == 3
    after = await cluster.refresh(two)
    assert (after["spec"], transactions.marks_of(after)) == (two["spec"], transactions.marks_of(two))


@pytest.mark.accepts("idle", 52)
async def test_a_number_given_by_hand_restores_nothing_from_a_crafted_record(cluster: Cluster) -> None:
    target, scaler = await paused_by_keda(cluster)
    forged = json.dumps({"v": 1, "fields": {"/spec/minReplicaCount": 77}})
    await cluster.patch(scaler, {"metadata": {"annotations": {names.ORIGINAL_STATE: forged}}})
    await cluster.patch(target, {"metadata": {"annotations": {names.ORIGINAL_STATE: None}}})
    outcome = await resume(cluster, (await test_eyes.look(cluster))[LLM], replicas=2)
    assert outcome.status is Status.done, outcome.detail
    after = await cluster.refresh(scaler)
    assert after["spec"] == scaler["spec"]
    assert names.KEDA_PAUSED_REPLICAS not in transactions.marks_of(after)
