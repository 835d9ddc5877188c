"""Karpenter itself, on its own pretend provider and a control plane of its own: it adds nodes for pods that wait and
removes those that we have emptied, and no cloud is ever asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import yaml

from fallow import names
from fallow.act.budgets import node_pools
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.answers import scaling as answers
from fallow.model.cost import CapacityType
from fallow.model.node_pools import PoolSeen
from fallow.model.policies.scaling import NodeDriver, NodePool
from fallow.model.scaling_plan import Headroom
from fallow.model.seen import Known
from fallow.observe import node_pools as observed
from tests.real import build, world
from tests.real import cluster as clusters
from tests.real.conftest import need
from tests.real.scaling_scene import SCENE, PretendMachines, Scene, open_scene, waiting

GROUP = "gpu"
LABEL = f"{names.KARPENTER_NODEPOOL}={GROUP}"


class NoCloud(PretendMachines):
    """Whoever asks it anything fails."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("groups", "machines", "wants", "grow", "remove", "notices", "forget"):
            raise AssertionError(f"a cloud was asked: {name}")
        return super().__getattribute__(name)


@pytest.fixture
async def scene(
    start_control_plane: Callable[[world.Options], Awaitable[clusters.Cluster]], tmp_path: pathlib.Path
) -> AsyncIterator[Scene]:
    need("karpenter", "karpenter-crds")
    cluster = await start_control_plane(world.PLAIN)
    files = sorted(build.need("karpenter-crds").glob("*.yaml"))
    await cluster.apply_crds(*(each for file in files for each in yaml.safe_load_all(file.read_text()) if each))
    with running(cluster, tmp_path):
        async with open_scene(cluster) as made:
            made.cloud = NoCloud(cluster)
            made.fresh()
            await made.policy({
                "name": "gpu", "capacityType": "on-demand", "group": GROUP, "instanceTypes": ["gpu-2"],
                "gpusPerNode": 2, "cpu": 16, "memory": "64Gi",
            }, scaleDownCooldownSeconds=0, unneededSeconds=60)
            await begin(made, "4")
            yield made


@contextlib.contextmanager
def running(cluster: clusters.Cluster, folder: pathlib.Path) -> Iterator[None]:
    kinds = [{
        "name": "gpu-2", "architecture": "amd64", "operatingSystems": ["linux"],
        "offerings": [{"Price": 2.0, "Available": True, "Requirements": [
            {"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]},
        ]}],
        "resources": {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110", names.GPU: "2"},
    }]
    file = folder / "instance-types.json"
    file.write_text(json.dumps(kinds))
    command = [
        str(build.need("karpenter")), "--disable-leader-election", f"--metrics-port={_free_port()}",
        f"--health-probe-port={_free_port()}", f"--instance-types-file-path={file}",
        "--feature-gates=CapacityBuffer=true",
    ]
    environment = {**os.environ, "KUBECONFIG": str(cluster.plane.kubeconfig)}
    with (folder / "karpenter.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def begin(scene: Scene, most: str) -> dict[str, Any]:
    await scene.cluster.apply(
        {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    )
    ref = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    wanted = [{"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["on-demand"]}]
    return await scene.cluster.apply({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": GROUP}, "spec": {
            "limits": {names.GPU: most}, "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "15s"},
            "template": {
                "metadata": {"labels": {SCENE: scene.cluster.namespace}},
                "spec": {"nodeClassRef": ref, "requirements": wanted, "expireAfter": "Never"},
            },
        },
    })


async def nodes(scene: Scene) -> list[str]:
    return sorted(each["metadata"]["name"] for each in await scene.cluster.objects("v1", "Node", labelSelector=LABEL))


async def home(scene: Scene, app: str) -> str:
    (pod,) = await scene.cluster.pods(f"app={app}")
    found: str = pod["spec"]["nodeName"]
    return found


async def run(scene: Scene, name: str, gpus: int, selector: dict[str, str] | None = None) -> str:
    """Where it came to."""
    chosen = selector or {SCENE: scene.cluster.namespace}
    await scene.cluster.apply(clusters.replicated("apps/v1", "Deployment", name, 1, gpus, nodeSelector=chosen))
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods(f"app={name}", 1))
    return await home(scene, name)


async def turn_until_gone(scene: Scene, node: str) -> None:
    """The story goes on as it would; Karpenter needs real time to see that a node is empty."""
    async with asyncio.timeout(120):
        while node in await nodes(scene):
            every = await nodes(scene)
            scene.use = lambda every=every: {each: {f"{each}-{gpu}": 0.05 for gpu in range(2)} for each in every}
            scene.later += 31.0
            await scene.turn()
            await asyncio.sleep(1)


async def has_counted(scene: Scene, nodes: str) -> bool:
    """Karpenter writes what a NodePool has some time after its nodes are there."""
    theirs = await scene.cluster.get("karpenter.sh/v1", "NodePool", GROUP)
    return bool(theirs.get("status", {}).get("resources", {}).get("nodes") == nodes)


def tell_pod(scene: Scene, name: str) -> str:
    last = scene.story._last
    page = answers.show(last.plan, last.sight)
    return next((each.because for each in page.pods if each.pod.startswith(name)), "")


@pytest.mark.accepts("scaling", 20)
@pytest.mark.accepts("scaling", 14)
async def test_karpenter_adds_what_we_say_it_will_and_removes_what_we_emptied(scene: Scene) -> None:
    # Nobody's node is there yet, and Karpenter drives all the same: it has a NodePool.
    await scene.cluster.apply(waiting("big", 1, scene, gpus=2))
    await scene.cluster.wait_until(lambda: scene.cluster.pods("app=big"))
    await scene.turn()
    assert (await scene.status())["driver"] == "karpenter"
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=big", 1))
    first = await home(scene, "big")
    second = await run(scene, "small", 1)
    assert await nodes(scene) == sorted({first, second})
    # Its limit is four GPUs, and another node would have two more, as soon as it has counted those it has.
    await scene.cluster.wait_until(lambda: has_counted(scene, "2"))
    await scene.cluster.apply(waiting("more", 1, scene, gpus=2))
    await scene.wait_for("more", 1)
    scene.later = 300.0
    await scene.turn()
    assert "Karpenter adds no node of pool gpu: its NodePool gpu has" in tell_pod(scene, "more")
    theirs = await scene.cluster.get("karpenter.sh/v1", "NodePool", GROUP)
    await scene.cluster.patch(theirs, {"spec": {"limits": {names.GPU: "8"}}})
    scene.later += 31.0
    await scene.turn()
    said = tell_pod(scene, "more")
    assert said.endswith("karpenter sees it, and adds one") or await scene.cluster.ready_pods("app=more", 1)
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=more", 1))
    third = await home(scene, "more")
    # Under-used: the one GPU pod of the second node fits beside another on the first.
    there = {SCENE: scene.cluster.namespace, "kubernetes.io/hostname": await host(scene, first)}
    await free(scene, "big")
    await run(scene, "pinned", 1, selector=there)
    await turn_until_gone(scene, second)
    assert await home(scene, "small") == first
    assert third in await nodes(scene)
    # Squatted: nobody uses the GPUs of the third, and the pod without any has room on the first.
    await scene.cluster.patch(await scene.cluster.get("v1", "Node", first), {"spec": {"unschedulable": True}})
    assert await run(scene, "plain", 0) == third
    await scene.cluster.patch(await scene.cluster.get("v1", "Node", first), {"spec": {"unschedulable": None}})
    await free(scene, "more")
    await turn_until_gone(scene, third)
    assert await home(scene, "plain") == first
    assert await nodes(scene) == [first]
    # Room ahead of demand is a buffer as Karpenter's own definition has it, and Karpenter adds the node.
    last = scene.story._last.sight
    assert last is not None
    assert isinstance(last.drivers, Known)
    pool = NodePool(
        name="gpu", tier=CapacityType.on_demand, group=GROUP, gpus=2, labels={SCENE: scene.cluster.namespace}
    )
    room = Headroom(
        policy=scene.cluster.namespace, driver=NodeDriver.karpenter, pool=pool, asks={names.GPU: 2}, nodes=1, since=0.0,
        because="a peak is expected",
    )
    await scene.story._hands.headroom.keep([room], last.drivers.value.buffers)

    async def came() -> bool:
        return len(await nodes(scene)) == 2

    await scene.cluster.wait_until(came)


@pytest.mark.accepts("scaling", 14)
async def test_what_a_budget_holds_gets_no_further_node_until_it_is_given_back(scene: Scene) -> None:
    before = (await scene.cluster.get("karpenter.sh/v1", "NodePool", GROUP))["spec"]
    first = await run(scene, "first", 2)
    await scene.cluster.wait_until(lambda: has_counted(scene, "1"))
    access = config.load_access(kubeconfig=str(scene.cluster.kubeconfig), context=None, environment={})
    async with kube.Api(access) as api:
        await retried(lambda: hold(api))
        await scene.cluster.apply(waiting("next", 1, scene, gpus=2))
        await scene.wait_for("next", 1)
        await scene.cluster.wait_until(lambda: is_stopped(scene), timeout=60)
        assert await nodes(scene) == [first]
        assert await home(scene, "first") == first
        scene.later = 300.0
        await scene.turn()
        assert "while budget all is exceeded" in tell_pod(scene, "next")
        await retried(lambda: give_back(api))
    assert (await scene.cluster.get("karpenter.sh/v1", "NodePool", GROUP))["spec"] == before
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=next", 1))
    assert len(await nodes(scene)) == 2


async def hold(api: kube.Api) -> None:
    pool = await see(api)
    assert (pool.tiers, pool.gpus, pool.record) == (frozenset({CapacityType.on_demand}), 2, None)
    await node_pools.hold(api, pool, 2, ("all",), 0.0)


async def give_back(api: kube.Api) -> None:
    assert await node_pools.give_back(api, await see(api)) == "has its own limits back"


async def see(api: kube.Api) -> PoolSeen:
    seen = await observed.find(api)
    assert isinstance(seen, Known)
    return seen.value[0]


async def retried(act: Callable[[], Awaitable[None]]) -> None:
    """Karpenter writes on it, too."""
    for _ in range(9):
        with contextlib.suppress(errors.Conflict):
            await act()
            return
    await act()


async def is_stopped(scene: Scene) -> bool:
    """By Karpenter's own word."""
    found = await scene.cluster.events()
    said = [f"{each.get('note')}" for each in found if each["reason"] == "FailedScheduling"]
    return any("limit" in each for each in said)


async def free(scene: Scene, name: str) -> None:
    await scene.cluster.delete(await scene.cluster.get("apps/v1", "Deployment", name))
    await scene.cluster.wait_until(lambda: _is_gone(scene, name))


async def _is_gone(scene: Scene, name: str) -> bool:
    return not await scene.cluster.pods(f"app={name}")


async def host(scene: Scene, node: str) -> str:
    found: str = (await scene.cluster.get("v1", "Node", node))["metadata"]["labels"]["kubernetes.io/hostname"]
    return found
