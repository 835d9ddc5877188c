"""`fallow why` of pods that the webhook changed or left alone, and `fallow explain` of nodes and policies, as they are
typed against a real control plane."""

from __future__ import annotations

import json
import pathlib
from collections.abc import AsyncIterator

import pytest

from fallow import names
from fallow.model.policies import budget_crd, idle_crd, nodeconfig_crd, sharing_crd
from tests.real import cluster as clusters
from tests.real import history, scene
from tests.real.test_sharing_webhook import MIG, NEEDS_8, cut_node, make_policy
from tests.real.test_webhook import Gate


class Place(scene.Scene):
    """The scene's namespace with the webhook before it."""

    gate: Gate


@pytest.fixture
async def place(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, tmp_path: pathlib.Path
) -> AsyncIterator[Place]:
    await cluster.apply_crds(budget_crd.define(), sharing_crd.define(), nodeconfig_crd.define(), idle_crd.define())
    await cluster.make_namespace(cluster.namespace, {"test": cluster.namespace})
    made = await Place(cluster, prometheus).prepare(labels={"pool": "whole"})
    made.gate = Gate(cluster, tmp_path)
    try:
        await made.gate.start("--rewrite-requests", "true")
        await made.gate.configure()
        yield made
    finally:
        await made.gate.stop()


async def start(place: Place, name: str, **marks: str) -> str:
    """A workload that asks for a whole GPU; the name of its pod."""
    annotations = {**NEEDS_8, **{f"{names.GROUP}/{key}": value for key, value in marks.items()}}
    manifest = clusters.replicated("apps/v1", "Deployment", name, 1, 1, annotations=annotations)
    (pod,) = await place.run(manifest)
    place.measure(pod)
    return str(pod["metadata"]["name"])


@pytest.mark.accepts("packing", 4)
async def test_why_says_what_happened_to_it_and_how_to_opt_out(place: Place) -> None:
    await cut_node(place.gate, {"1g.10gb": 3})
    policy = (await make_policy(place.gate))["metadata"]["name"]

    async def is_seen() -> bool:
        return names.OPTIMIZED in (await place.gate.cluster.request(
            "POST", f"/api/v1/namespaces/{place.namespace}/pods",
            {"apiVersion": "v1", "kind": "Pod", **clusters.pod_template("probe", 1, annotations=NEEDS_8),
             "metadata": {"name": "probe", "annotations": NEEDS_8}}, dryRun="All",
        ))["metadata"]["annotations"]

    await place.cluster.wait_until(is_seen)
    changed, kept = await start(place, "llm"), await start(place, "own", sharing="disabled")
    await place.begin()
    said = await place.fallow("why", "Deployment/llm")
    assert f"{changed} asked for a whole GPU and asks for {MIG} instead" in " ".join(said.split())
    assert f"GPUSharingPolicy {policy}" in " ".join(said.split())
    assert f"kubectl annotate Deployment/llm -n {place.namespace} {names.SHARING}=disabled" in " ".join(said.split())
    found = (await place.explain("Deployment/llm"))["sharing"]
    assert (found["changed"]["resource"], found["next"], found["reason"]) == (MIG, "part", "Shared")
    assert (found["workClass"], found["classSource"]) == ("batch", "default")
    left = (await place.explain(f"pod/{kept}"))["sharing"]
    assert (left["changed"], left["next"], left["reason"]) == (None, "whole", "OptedOut")
    deployment = await place.cluster.get("apps/v1", "Deployment", "llm", place.namespace)
    await place.cluster.patch(deployment, {"metadata": {"annotations": {
        names.BACKOFF_UNTIL: "2099-01-01T00:00:00Z", names.REVERTED_BECAUSE: "its pods restarted 3 times",
    }}})
    back = (await place.explain("Deployment/llm"))["sharing"]
    assert (back["reason"], back["takenBack"]["because"]) == ("BackOff", "its pods restarted 3 times")
    assert "whole GPUs until 2099-01-01T00:00:00Z" in " ".join((await place.fallow("why", "Deployment/llm")).split())
    assert json.dumps(back)


async def test_explain_says_how_a_node_stands_and_why(place: Place) -> None:
    held = await start(place, "llm")
    config = {"apiVersion": f"{names.GROUP}/v1alpha1", "kind": "GPUNodeConfig", "metadata": {"name": place.node},
              "spec": {"nodeName": place.node, "timeSlicingEnabled": True, "timeSlicingReplicas": 4}}
    await place.cluster.apply(config)
    found = json.loads((await place.type("fallow", "explain", f"node/{place.node}", "-o", "json")).out)
    lines = {each["about"]: each["sentence"] for each in found["lines"]}
    assert lines["GPUs"] == "16 H100-80GB-HBM3: whole"
    assert lines["held"] == "1 of them, by 1 pod"
    assert lines["config"] == f"GPUNodeConfig {place.node} (audit) asks for time-slicing × 4"
    assert lines["step"] == "not begun: no daemon has said yet what becomes of it"
    assert lines["free"] == "15 of 16 GPUs"
    assert lines["empty it"].startswith("no (")
    assert [each["pod"] for each in found["holders"]] == [held]
    node = await place.cluster.get("v1", "Node", place.node)
    await place.cluster.patch(node, {"spec": {"unschedulable": True}})
    page = (await place.type("fallow", "why", "no", place.node)).out
    assert "by somebody else; fallow leaves it so" in page
    assert held in page
    wrong = await place.type("fallow", "explain", f"node/{place.node}x", code=1)
    assert wrong.err.strip() == f"Error: there is no Node {place.node}x; did you mean {place.node}?"


async def test_explain_says_what_becomes_of_objects_of_ours(place: Place) -> None:
    await cut_node(place.gate, {"1g.10gb": 3})
    kept = await start(place, "own", sharing="disabled")
    name = (await make_policy(place.gate, mode="audit"))["metadata"]["name"]
    whole = await start(place, "llm")
    found = json.loads((await place.type("fallow", "explain", f"gsp/{name}", "-o", "json")).out)
    lines = {each["about"]: each["sentence"] for each in found["lines"]}
    assert lines["asks"] == "mig, audits: it changes nothing, priority 0"
    assert lines["changed"] == "no running pod"
    assert lines["could"].startswith(f"1 running pod: {place.namespace}/{whole} with a whole GPU")
    assert kept not in lines["could"]
    assert lines["status"] == "none yet: no daemon has looked at it"
    made = await place.cluster.get(f"{names.GROUP}/v1alpha1", "GPUSharingPolicy", name)
    await place.cluster.patch(made, {"status": {"revertedWorkloads": 2, "conditions": [{
        "type": "Ready", "status": "False", "reason": "NoTargetNode", "message": "nobody offers it",
        "lastTransitionTime": "2026-11-17T10:00:00Z", "observedGeneration": 1,
    }]}}, part="status")
    page = " ".join((await place.type("fallow", "explain", f"GPUSharingPolicy/{name}")).out.split())
    assert "Ready False (NoTargetNode): nobody offers it" in page
    assert "2 workloads have whole GPUs because sharing hurt them" in page
    await place.make_policy()
    await place.begin()
    idle = " ".join((await place.type("fallow", "explain", f"idlepolicy/tell-{place.namespace}")).out.split())
    assert "action pause, priority 0" in idle
    assert f"{place.namespace}/Deployment/llm" in idle
    await place.gate.make_budget("block")
    budget = " ".join((await place.type("fallow", "explain", f"costbudget/{place.gate.budget}")).out.split())
    assert "51204.10 of 50000.00 USD" in budget
    gone = await place.type("fallow", "explain", "gpunodeconfig/nothing", code=1)
    assert gone.err.strip() == "Error: there is no GPUNodeConfig nothing"


async def test_explain_does_not_take_pods_or_namespaces_that_it_may_not_see_for_none(place: Place) -> None:
    name = (await make_policy(place.gate, mode="audit"))["metadata"]["name"]
    policies = {"apiGroups": [names.GROUP], "resources": ["gpusharingpolicies"], "verbs": ["get"]}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}

    async def explain(who: str, *rules: dict[str, list[str]]) -> dict[str, str]:
        access = await place.cluster.service_account(who, list(rules))
        typed = await place.type("fallow", "explain", f"gsp/{name}", "-o", "json", kubeconfig=access)
        return {each["about"]: each["sentence"] for each in json.loads(typed.out)["lines"]}

    blind = await explain("sees-no-pods", policies)
    assert blind["changed"].startswith("not known: ")
    assert "pods" in blind["changed"]
    assert blind["could"] == blind["changed"]
    placeless = await explain("sees-no-namespaces", policies, pods)
    assert placeless["changed"] == "no running pod"
    assert placeless["could"].startswith("not known: ")
    assert "namespaces" in placeless["could"]
