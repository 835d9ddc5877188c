"""Nodes that were started ahead of demand, on a real API server: they say so themselves, stay until their time is up,
and are counted once, whoever is killed in between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from fallow import names
from fallow.model import units
from fallow.model.scaling import DemandPast
from fallow.model.units import HOUR
from tests.real import cluster as clusters
from tests.real import crds
from tests.real.scaling_scene import KIND, SCENE, VERSION, Scene, open_scene

RESULTS = "gpu_autoscaler_prewarm_total"


@pytest.fixture
async def scene(cluster: clusters.Cluster) -> AsyncIterator[Scene]:
    async with open_scene(cluster) as made:
        yield made
    for each in await cluster.objects("apps/v1", "Deployment"):  # placeholders, which would make their pods again
        await cluster.delete(each, propagationPolicy="Background")


def expect_more(level: float = 8.0) -> DemandPast:
    """Four weeks in which the eight hours that begin now were busy every day."""
    ends = time.time() // HOUR * HOUR
    hours = (level if -number % 24 < 8 else 0.5 for number in range(672, 0, -1))
    return DemandPast(ends_at=ends, hours=tuple(hours))


async def marks(scene: Scene, *names_of: str) -> list[str]:
    found = [await scene.cluster.get("v1", "Node", each) for each in names_of]
    return [each["metadata"].get("annotations", {}).get(names.PREWARMED_UNTIL, "") for each in found]


async def again(scene: Scene, later: float = 31.0) -> None:
    scene.fresh()
    scene.later += later
    while "cannot be marked" in await scene.turn():  # it changed since it was looked at: that is for the next turn
        scene.later += 31.0


async def without(scene: Scene, kind: str) -> None:
    """Tests before this one on the same control plane may have had it."""
    definition = "apiextensions.k8s.io/v1", "CustomResourceDefinition", kind
    found = await scene.cluster.find(*definition)
    if found is not None:
        await scene.cluster.delete(found)

    async def is_gone() -> bool:
        return await scene.cluster.find(*definition) is None

    await scene.cluster.wait_until(is_gone)


async def fared(scene: Scene) -> tuple[int, int]:
    said = (await scene.status())["predictiveScaling"]
    return said["hits"], said["misses"]


async def test_a_node_started_ahead_says_so_stays_and_is_a_hit_or_a_miss_once(scene: Scene) -> None:
    await scene.policy(enablePredictiveScaling=True, maxNodes=2, scaleDownCooldownSeconds=60, unneededSeconds=60)
    scene.past = expect_more()
    await scene.turn()
    assert [(each.group, each.count) for each in scene.cloud.asked] == [("spot", 1), ("on-demand", 1)]
    assert [each["prewarm"] for each in (await scene.status())["inFlight"]] == [True, True]
    used, idle = await scene.node("a", "spot"), await scene.node("b")
    scene.cloud.targets = {"spot": 1, "on-demand": 1}
    scene.busy(a=0.0, b=0.0)
    await again(scene)
    until = [units.read_instant(each) for each in await marks(scene, used, idle)]
    assert all(each is not None and 5300 < each - time.time() <= 5400 + 31 for each in until)
    assert (await scene.status())["inFlight"], "until all of them say so themselves"
    await again(scene)
    assert (await scene.status())["inFlight"] == []
    # Nobody needs them for long, and they stay.
    await scene.pass_time(1200.0)
    assert (scene.cloud.removed, len(scene.cloud.asked)) == ([], 2)
    await scene.cluster.deployment("llm", gpus=4, nodeSelector={"kubernetes.io/hostname": used})
    await again(scene)
    assert await marks(scene, used) == [names.PREWARM_USED]
    assert await fared(scene) == (1, 0)
    await again(scene)
    assert await fared(scene) == (1, 0), "each counts once"
    # The ninth of ten was in vain, and so is this one.
    policy = await scene.cluster.get(VERSION, KIND, scene.cluster.namespace)
    said = {"predictiveScaling": {"hits": 4, "misses": 5}}
    await scene.cluster.patch(policy, {"status": said}, part="status")
    await again(scene, 2 * HOUR)
    assert await marks(scene, idle) == [names.PREWARM_UNUSED]
    assert await fared(scene) == (4, 6)
    for word in ("hit", "miss"):
        assert f'{RESULTS}{{policy="{scene.cluster.namespace}",result="{word}"}} 1.0' in scene.metrics.text().decode()
    told = [each for each in await scene.cluster.events(names.Event.PREWARMING_OFF, "default")
            if each["regarding"]["name"] == scene.cluster.namespace]
    assert len(told) == 1
    assert "of 10 nodes that were started ahead of time 4 were used" in told[0]["note"]
    await again(scene)
    assert len(scene.cloud.asked) == 2, "nothing is started ahead any more"


async def test_where_another_drives_a_node_that_came_for_a_placeholder_is_used_once_that_is_pushed_aside(
    scene: Scene,
) -> None:
    await without(scene, "capacitybuffers.autoscaling.x-k8s.io")
    await scene.policy(
        {"name": "on-demand", "capacityType": "on-demand"}, driver="cluster-autoscaler", enablePredictiveScaling=True,
        maxNodes=2,
    )
    scene.past = expect_more()
    await scene.turn()
    (room,) = (await scene.status())["predictiveScaling"]["headroom"]
    assert (room["pool"], room["nodes"]) == ("on-demand", 2)
    assert scene.cloud.asked == []
    first, second = await scene.node("a"), await scene.node("b")
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods(f"{names.HEADROOM}=on-demand", 2))
    await again(scene)
    assert all(units.read_instant(each) is not None for each in await marks(scene, first, second))
    (kept,) = (await scene.status())["predictiveScaling"]["headroom"]
    assert kept == room, "what came for it is no reason to ask for less"
    await scene.cluster.deployment("llm", gpus=4, nodeSelector={SCENE: scene.cluster.namespace})
    (pod,) = await scene.cluster.pods("app=llm")
    idle = second if pod["spec"]["nodeName"] == first else first
    await again(scene)
    assert await marks(scene, pod["spec"]["nodeName"]) == [names.PREWARM_USED]
    assert await fared(scene) == (1, 0)
    scene.past = expect_more(level=0.5)  # nothing is expected any more
    await again(scene)
    assert await marks(scene, idle) == [names.PREWARM_UNUSED]
    assert await fared(scene) == (1, 1)
    assert (await scene.status())["predictiveScaling"]["headroom"] == []


async def find_sizes(scene: Scene, version: str, kind: str) -> list[int]:
    found = await scene.cluster.objects(version, kind, scene.cluster.namespace)
    return [each["spec"]["replicas"] for each in found if names.HEADROOM in each["metadata"].get("labels", {})]


@pytest.mark.accepts("scaling", 20)
async def test_where_karpenter_drives_room_is_a_buffer_of_what_its_nodes_have(scene: Scene) -> None:
    """A pool that does not say what its nodes have: that is learned from one, of shared GPUs."""
    await scene.cluster.apply_crds(crds.NODE_POOL, crds.CAPACITY_BUFFER)
    group = f"gpu-{scene.cluster.namespace}"
    labels = {SCENE: scene.cluster.namespace, names.KARPENTER_NODEPOOL: group}
    node = await scene.cluster.gpu_node(f"k-{scene.cluster.namespace}", gpus=0, labels={
        **labels, names.GPU_COUNT: "4", names.GPU_REPLICAS: "4",
    })
    more = {names.GPU_SHARED: "16"}
    await scene.cluster.patch(node, {"status": {"allocatable": more, "capacity": more}}, part="status")
    pool = {"name": "shared", "capacityType": "on-demand", "group": group, "gpusPerNode": None, "cpu": None,
            "memory": None, "instanceTypes": None}
    await scene.policy(pool, driver="karpenter", enablePredictiveScaling=True, maxNodes=4)
    scene.past = expect_more()
    await scene.turn()
    assert sum(await find_sizes(scene, "autoscaling.x-k8s.io/v1beta1", "CapacityBuffer")) > 0
    (template,) = await scene.cluster.objects("v1", "PodTemplate", scene.cluster.namespace)
    assert template["template"]["spec"]["containers"][0]["resources"]["limits"] == more
    assert template["template"]["spec"]["nodeSelector"][names.KARPENTER_NODEPOOL] == group
    assert scene.cloud.asked == []


@pytest.mark.parametrize("how", ["recommend", "deleted", "off", "deleted-and-started-anew"])
async def test_room_goes_with_the_policy_that_wanted_it(scene: Scene, how: str) -> None:
    await without(scene, "capacitybuffers.autoscaling.x-k8s.io")
    pool = {"name": "on-demand", "capacityType": "on-demand"}
    await scene.policy(pool, driver="cluster-autoscaler", enablePredictiveScaling=True, maxNodes=2)
    scene.past = expect_more()
    await scene.turn()
    assert await find_sizes(scene, "apps/v1", "Deployment") == [2]
    if how == "recommend":
        await scene.policy(
            pool, driver="cluster-autoscaler", enablePredictiveScaling=True, maxNodes=2, mode="recommend"
        )
    elif how.startswith("deleted"):
        await scene.cluster.delete(await scene.cluster.get(VERSION, KIND, scene.cluster.namespace))
    scene.acts = how != "off"
    if how in ("off", "deleted-and-started-anew"):
        scene.fresh()
    scene.later += 31.0
    assert "no more room is kept" in await scene.turn()
    assert await find_sizes(scene, "apps/v1", "Deployment") == [0]
