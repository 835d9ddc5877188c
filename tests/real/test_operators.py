"""What operators and people do to what we paused, as it was seen under the real ones, on a real API server.

KServe, Knative, Kueue, Kruise and the training operators are not here: stand-ins in the tests do what those did.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import yaml
from docs import roles

from fallow import names
from fallow.decide.idle import consent, pauses
from fallow.model import cluster as nouns
from fallow.model import decision, kinds
from fallow.model.policies import idle
from fallow.model.units import HOUR
from tests.real import cluster as clusters
from tests.real import crds, history, scene, test_deploy, test_eyes, test_hands
from tests.unit.act import examples

Object = dict[str, Any]
Cluster = clusters.Cluster


@pytest.fixture
async def stage(cluster: Cluster, prometheus: history.PrometheusWorld) -> scene.Scene:
    return await scene.Scene(cluster, prometheus).prepare()


async def look(cluster: Cluster, short: str) -> nouns.Workload:
    """As a daemon sees it that starts now."""
    return (await test_eyes.look(cluster))[short]


async def pause(cluster: Cluster, thing: Object) -> Object:
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, thing)
    assert outcome.status.value == "done", outcome.detail
    return await cluster.refresh(thing)


# ---- who undid a pause -----------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 23)
@pytest.mark.parametrize("part", ["", "scale"], ids=["by-a-patch", "through-scale"])
async def test_who_undid_a_pause_is_who_owns_its_field(cluster: Cluster, part: str) -> None:
    paused = await pause(cluster, await test_hands.make(cluster, "statefulset"))
    await cluster.patch(paused, {"spec": {"replicas": 2}}, part=part, fieldManager="rival")
    await cluster.patch(paused, {"metadata": {"labels": {"touched": "later"}}}, fieldManager="zealot")
    assert (await look(cluster, "StatefulSet/llm")).writer == "rival"


@pytest.mark.accepts("idle", 23)
async def test_a_stop_annotation_that_was_removed_leaves_nobody_to_name(cluster: Cluster) -> None:
    paused = await pause(cluster, await test_hands.make(cluster, "notebook"))
    gone = {"metadata": {"annotations": {names.NOTEBOOK_STOPPED: None}}}
    await cluster.patch(paused, gone, fieldManager="rival")
    await cluster.patch(paused, {"metadata": {"labels": {"touched": "later"}}}, fieldManager="zealot")
    assert (await look(cluster, "Notebook/llm")).writer == ""


# ---- the last of its kind (Kruise) -----------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 59)
@pytest.mark.parametrize("how", ["command", "all", "annotation"])
async def test_a_clone_set_that_is_paused_comes_back_although_no_pod_names_its_kind(
    stage: scene.Scene, how: str
) -> None:
    await stage.cluster.apply_crds(crds.KINDS["CloneSet"])
    made = await stage.cluster.apply({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "clones"},
        "spec": {"replicas": 1},
    })
    (pod,) = await stage.quiet(test_eyes.owned(test_eyes.bare_pod("llm"), made))
    await stage.begin()
    said = await stage.prune("-e", "x")
    assert (await stage.cluster.refresh(made))["spec"]["replicas"] == 0
    await stage.cluster.delete(pod | {"apiVersion": "v1", "kind": "Pod"})  # what Kruise does then
    await stage.cluster.wait_until(lambda: _has_no_pods(stage.cluster))
    (row,) = json.loads((await stage.type("fallow", "paused", "-n", stage.namespace, "-o", "json")).out)
    assert (row["workload"], row["gpus"]) == ("CloneSet.apps.kruise.io/clones", 1)
    if how == "command":
        printed = re.search(r"Resume: (fallow resume \S+ -n \S+)", said)
        assert printed, said
        await stage.type(*printed[1].split())
    elif how == "all":
        await stage.type("fallow", "resume", "--all", "-n", stage.namespace)
    else:
        await stage.cluster.patch(made, {"metadata": {"annotations": {names.RESUME_REQUESTED: "ada"}}})
        await stage.prune("-e", "x")
    back = await stage.cluster.refresh(made)
    assert (back["spec"]["replicas"], names.PAUSED_AT in scene.marks_of(back)) == (1, False)
    assert json.loads((await stage.type("fallow", "paused", "-n", stage.namespace, "-o", "json")).out) == []


async def _has_no_pods(cluster: Cluster) -> bool:
    return not await cluster.pods()


# ---- KServe and Knative ----------------------------------------------------------------------------------------------

SERVING, KSERVE = "serving.knative.dev/v1", "serving.kserve.io/v1beta1"
LABEL = {names.KSERVE_ISVC_LABEL: "bert"}


def inference_service(mode: str) -> Object:
    about = {"name": "bert", "annotations": {names.KSERVE_MODE: mode}}
    spec = {"predictor": {"minReplicas": 1}}
    return {"apiVersion": KSERVE, "kind": "InferenceService", "metadata": about, "spec": spec}


async def make_chain(cluster: Cluster, *above: tuple[str, str, str], top: Object | None = None) -> Object:
    """What Knative makes, from the top down: (apiVersion, kind, name) each; the lowest one."""
    await cluster.apply_crds(*crds.KNATIVE)
    made: Object = top or {}
    for version, kind, name in above:
        one = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {}}
        made = await cluster.apply(test_eyes.owned(one, made) if made else one)
    return made


async def make_knative(cluster: Cluster, top: Object, number: int = 1) -> Object:
    """Knative's own objects under an InferenceService, for one Revision; that one."""
    return await make_chain(
        cluster, (SERVING, "Service", "bert-predictor"), (SERVING, "Configuration", "bert-predictor"),
        (SERVING, "Revision", f"bert-predictor-{number:05}"), top=top,
    )


def predictor(owner: Object, name: str = "bert-predictor") -> Object:
    return test_eyes.owned(clusters.replicated("apps/v1", "Deployment", name, 1, 1, labels=LABEL), owner)


@pytest.mark.accepts("idle", 60)
async def test_notice_ack_and_unack_of_a_service_in_knative_mode_make_no_revision(stage: scene.Scene) -> None:
    """Knative makes a Revision, which needs another GPU, for every change of the service's metadata."""
    await stage.cluster.apply_crds(crds.KINDS["InferenceService"])
    service = await stage.cluster.apply(inference_service("Serverless"))
    await stage.quiet(predictor(await make_knative(stage.cluster, service), "bert-00001-deployment"))
    await stage.begin()
    await stage.make_policy()

    async def marks() -> set[str]:
        seen = await stage.cluster.refresh(service)
        assert seen["metadata"]["resourceVersion"] == service["metadata"]["resourceVersion"], "this rolls a Revision"
        child = await stage.cluster.get("apps/v1", "Deployment", "bert-00001-deployment")
        return set(scene.marks_of(child)) & {names.PENDING_SINCE, names.ACK_UNTIL}

    await stage.prune()
    assert await marks() == {names.PENDING_SINCE}
    await stage.fallow("ack", "InferenceService/bert", "--hours", "2")
    assert await marks() == {names.ACK_UNTIL}
    assert (await stage.rows())["bert"]["skip"] == "Acknowledged"
    await stage.fallow("unack", "InferenceService/bert")
    assert await marks() == set()
    assert stage.writes("/inferenceservices/") == stage.writes("/services/") == []


@pytest.mark.accepts("idle", 60)
async def test_without_a_deployment_in_sight_an_inference_service_is_only_reported(stage: scene.Scene) -> None:
    await stage.cluster.apply_crds(crds.KINDS["InferenceService"])
    service = await stage.cluster.apply(inference_service("Serverless"))
    child = clusters.replicated("apps/v1", "StatefulSet", "bert-predictor", 1, 1, labels=LABEL)
    await stage.quiet(test_eyes.owned(child, service))
    await stage.begin()
    await stage.prune()
    assert (await stage.rows())["bert"]["skip"] == "ReportOnly:NoPlaceForMarks"
    assert "NoPlaceForMarks" in await stage.fallow("ack", "InferenceService/bert", "--hours", "2", code=1)
    assert stage.writes("/inferenceservices/") == stage.writes("/statefulsets/") == []


@pytest.mark.accepts("idle", 63)
@pytest.mark.parametrize("mode", ["Standard", "Knative"])
async def test_an_inference_service_that_others_bring_back_three_times_is_held(cluster: Cluster, mode: str) -> None:
    """KServe deletes the Deployment that carries the marks with every stop, and Knative with every new Revision."""
    await cluster.gpu_node("gpu-1", gpus=4)
    await cluster.apply_crds(crds.KINDS["InferenceService"])
    service = await cluster.apply(inference_service(mode))
    for turn in range(3):
        await _start(cluster, service, mode, turn)
        assert await _tend(cluster, HOUR * turn) is None, "nothing is held yet"
        await _pause_bert(cluster, HOUR * turn + 1)
        await _stop(cluster)
        gone = {"metadata": {"annotations": {names.KSERVE_STOP: None}}}
        await cluster.patch(service, gone, fieldManager="rival")
    for turn in (3, 4):  # also when the Deployment is made anew
        await _start(cluster, service, mode, turn)
        assert await _tend(cluster, HOUR * turn) is not None
        await _stop(cluster)


async def _start(cluster: Cluster, service: Object, mode: str, turn: int) -> None:
    """What KServe does when nothing says stop."""
    owner = service if mode == "Standard" else await make_knative(cluster, service, turn + 1)
    await cluster.run(predictor(owner), 1)


async def _stop(cluster: Cluster) -> None:
    await cluster.delete(await cluster.get("apps/v1", "Deployment", "bert-predictor"))
    await cluster.wait_until(lambda: _has_no_pods(cluster))


async def _pause_bert(cluster: Cluster, later: float) -> None:
    service = await look(cluster, "InferenceService/bert")
    async with test_hands.hands_on(cluster) as hands:
        outcome = await hands.pause(examples.pause_of(service), service, (), examples.NOW + later)
    assert outcome.status.value == "done", outcome.detail


async def _tend(cluster: Cluster, later: float) -> consent.Exemption | None:
    """A cycle's upkeep of its marks; then whether it is held."""
    service, now = await look(cluster, "InferenceService/bert"), examples.NOW + later
    async with test_hands.hands_on(cluster) as hands:
        for each in pauses.tend(service, (examples.pod(),), idle.Rule(), now):
            assert isinstance(each, decision.Mark)
            assert each.on == service.marks_ref
            await hands.mark(each, now)
    return pauses.find_fight(await look(cluster, "InferenceService/bert"), now)


@pytest.mark.accepts("idle", 61)
@pytest.mark.parametrize("prefill", [{}, {"replicas": 2}], ids=["uncounted", "counted"])
async def test_both_sides_of_an_llm_service_come_back(cluster: Cluster, prefill: Object) -> None:
    await cluster.apply_crds(crds.KINDS["LLMInferenceService"])
    made = await cluster.apply({
        "apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService",
        "metadata": {"name": "llm", "namespace": cluster.namespace}, "spec": {"replicas": 1, "prefill": prefill},
    })
    sides = ("llm-decode", "llm-prefill")
    await _reconcile_llm(cluster, made)
    assert [await _count(cluster, side) for side in sides] == [1, prefill.get("replicas", 1)]
    paused = await pause(cluster, made)
    await _reconcile_llm(cluster, paused)
    assert [await _count(cluster, side) for side in sides] == [0, 0]
    async with test_hands.hands_on(cluster) as hands:
        back = test_hands.resume_of(test_hands.workload_of(paused))
        assert (await hands.resume(back, time.time())).status.value == "done"
    await _reconcile_llm(cluster, await cluster.refresh(made))
    assert [await _count(cluster, side) for side in sides] == [1, prefill.get("replicas", 1)]


async def _reconcile_llm(cluster: Cluster, service: Object) -> None:
    """As KServe: told to stop it deletes both sides; a count that is absent is 1 for a new one, and else kept."""
    spec, is_stopped = service["spec"], scene.marks_of(service).get(names.KSERVE_STOP) == "true"
    for name, wanted in (("llm-decode", spec.get("replicas")), ("llm-prefill", spec["prefill"].get("replicas"))):
        there = await cluster.find("apps/v1", "Deployment", name)
        if is_stopped and there:
            await cluster.delete(there)
        elif not is_stopped and (wanted is not None or there is None):
            count = 1 if wanted is None else wanted
            await cluster.apply(clusters.replicated("apps/v1", "Deployment", name, count, 0))


async def _count(cluster: Cluster, name: str) -> int:
    there = await cluster.find("apps/v1", "Deployment", name)
    return there["spec"]["replicas"] if there else 0


@pytest.mark.accepts("idle", 64)
async def test_with_the_shipped_role_a_knative_service_is_judged(cluster: Cluster) -> None:
    text = roles.reader("As shipped.", one_namespace=False).replace(roles.HOME, cluster.namespace)
    for thing in yaml.safe_load_all(text):
        await cluster.apply(thing)
    await cluster.gpu_node("gpu-1", gpus=4)
    top = await make_chain(
        cluster, (SERVING, "Service", "bert"), (SERVING, "Configuration", "bert"), (SERVING, "Revision", "bert-00001")
    )
    await cluster.run(predictor(top, "bert-00001-deployment"), 1)
    account = await cluster.service_account("gpu-pruner")
    await test_deploy.has_settled(cluster, "list", "serving.knative.dev", "revisions")
    found = await test_eyes.look(cluster, account)
    service = found["Service/bert"]
    assert (service.ref.group, service.trouble, len(service.pods)) == ("serving.knative.dev", None, 1)


# ---- Kueue -----------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 17)
async def test_the_notice_on_a_job_of_kueue_goes_with_the_pause_and_with_the_resume(cluster: Cluster) -> None:
    await cluster.apply_crds(crds.KINDS["Workload"])
    told = {names.IDLE_SINCE: "2026-11-14T10:00:00Z", names.PENDING_SINCE: "2026-11-14T11:00:00Z"}
    job = clusters.job("llm")
    job = await cluster.apply(job | {"metadata": {"name": "llm", "annotations": told}})
    labels = {names.KUEUE_JOB_UID: job["metadata"]["uid"]}
    held = await cluster.apply({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True},
        "metadata": {"name": "job-llm", "labels": labels},
    })

    async def seen() -> nouns.Workload:
        companion = examples.companion_of(await cluster.refresh(held), kinds.KUEUE_WORKLOAD.reads)
        return examples.workload_of(await cluster.refresh(job), kueue=(companion,))

    async def is_told() -> bool:
        return bool(set(names.PENDING_KEYS) & set(scene.marks_of(await cluster.refresh(job))))

    async with test_hands.hands_on(cluster) as hands:
        assert (await test_hands.carry_seen(hands, seen)).status.value == "done"
        assert (await cluster.refresh(held))["spec"]["active"] is False
        assert not await is_told()
        await cluster.patch(job, {"metadata": {"annotations": told}})  # by a cycle that came between
        assert (await hands.resume(test_hands.resume_of(await seen()), time.time())).status.value == "done"
        assert not await is_told()
    assert (await cluster.refresh(job))["spec"].get("suspend") in (None, False)
