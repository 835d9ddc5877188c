"""Where Karpenter or cluster-autoscaler adds machines, on a real API server: what is asked of them for pods that start
together, what they answer, and what is told where a limit stops them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fallow import names
from fallow.doors.answers import scaling as answers
from tests.real import cluster as clusters
from tests.real import crds
from tests.real.scaling_scene import SCENE, Scene, open_scene, waiting

VERSION, KIND = "autoscaling.x-k8s.io/v1", "ProvisioningRequest"


@pytest.fixture
async def scene(cluster: clusters.Cluster) -> AsyncIterator[Scene]:
    async with open_scene(cluster) as made:
        yield made


def explain(scene: Scene) -> str:
    last = scene.story._last
    return "; ".join(f"{word}: {said}" for word, said in
                     answers.tell_of_policy(answers.show(last.plan, last.sight), scene.cluster.namespace))


async def again(scene: Scene) -> str:
    scene.fresh()
    scene.later += 31.0
    return await scene.turn()


def train(scene: Scene, workers: int) -> dict[str, Any]:
    template = clusters.pod_template("train", 4, nodeSelector={SCENE: scene.cluster.namespace})
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {
            "parallelism": workers, "completions": workers, "completionMode": "Indexed", "template": template,
        },
    }


async def test_a_gang_gets_one_request_whose_answer_is_told_and_which_goes_with_the_last_that_waits(
    scene: Scene,
) -> None:
    await scene.cluster.apply_crds(crds.PROVISIONING_REQUEST)
    await scene.policy({"name": "big", "capacityType": "on-demand", "group": ""}, driver="cluster-autoscaler")
    await scene.cluster.apply(train(scene, 2))
    await scene.wait_for("train", 2)
    scene.later = 150.0
    assert f"2 nodes at once are asked for {scene.cluster.namespace}/train" in await scene.turn()
    (request,) = await scene.cluster.objects(VERSION, KIND, scene.cluster.namespace)
    assert request["spec"]["provisioningClassName"] == "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    assert request["spec"]["parameters"] == {"ValidUntilSeconds": "600"}
    ((pods),) = request["spec"]["podSets"]
    assert pods["count"] == 2
    template = await scene.cluster.get("v1", "PodTemplate", pods["podTemplateRef"]["name"])
    assert template["template"]["spec"]["nodeSelector"] == {SCENE: scene.cluster.namespace}
    assert template["template"]["spec"]["containers"][0]["resources"]["limits"] == {names.GPU: "4"}
    # Whoever is started anew finds it there.
    await again(scene)
    assert len(scene.written("provisioningrequests", ("create",))) == 1
    condition = {
        "type": "Provisioned", "status": "True", "reason": "CapacityIsFound", "message": "capacity is found",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await scene.cluster.patch(request, {"status": {"conditions": [condition]}}, part="status")
    await again(scene)
    (told,) = (await scene.status())["gangs"]
    assert (told["nodes"], told["state"], told["message"]) == (2, "Provisioned", "capacity is found")
    assert "2 nodes at once for" in explain(scene)
    assert "(Provisioned" in explain(scene)
    plan = scene.story._last.plan
    assert plan is not None
    assert all("cluster-autoscaler was asked for 2 nodes at once" in each.because for each in plan.pods
               if each.pod.namespace == scene.cluster.namespace)
    for name in ("a", "b"):
        await scene.node(name)
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=train", 2))
    assert "ends (Provisioned)" in await again(scene)
    assert await scene.cluster.objects(VERSION, KIND, scene.cluster.namespace) == []
    await again(scene)
    assert "gangs" not in await scene.status() or (await scene.status())["gangs"] == []
    assert scene.cloud.asked == []


async def test_pods_that_wait_for_a_limit_of_karpenter_are_told_so(scene: Scene) -> None:
    await scene.cluster.apply_crds(crds.NODE_POOL)
    group = f"gpu-{scene.cluster.namespace}"
    await scene.policy({"name": "gpu", "capacityType": "on-demand", "group": group}, driver="karpenter")
    labels = {SCENE: scene.cluster.namespace, names.KARPENTER_NODEPOOL: group}
    await scene.cluster.gpu_node(f"k-{scene.cluster.namespace}", gpus=4, labels=labels)
    made = await scene.cluster.apply({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": group},
        "spec": {"limits": {names.GPU: "6"}},
    })
    await scene.cluster.patch(made, {"status": {"resources": {names.GPU: "4", "nodes": "1"}}}, part="status")
    await scene.cluster.apply(waiting("llm", 2, scene))
    await scene.wait_for("llm", 1)
    scene.later = 600.0
    await scene.turn()
    assert await scene.condition("Ready") == ("False", "LimitReached")
    said = f"its NodePool {group} has 4 of at most 6 {names.GPU}"
    assert said in explain(scene)
    plan = scene.story._last.plan
    assert plan is not None
    (waits,) = [each for each in plan.pods if each.pod.namespace == scene.cluster.namespace]
    assert waits.because.endswith(said)
    await again(scene)
    told = [each for each in await scene.cluster.events(names.Event.LIMIT_REACHED, "default")
            if each["regarding"]["name"] == scene.cluster.namespace]
    assert len(told) == 1
    assert said in told[0]["note"]
    # More room: Karpenter will do it, and nobody else.
    await scene.cluster.patch(made, {"spec": {"limits": {names.GPU: "8"}}})
    await again(scene)
    assert (await scene.condition("Ready"))[0] == "True"
    assert scene.cloud.asked == []
