"""A node of a real API server is cut anew, with NVIDIA's programs stood in for; every look is that of a process that
has just begun, and the clock is the test's."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import yaml

from fallow import names, telemetry
from fallow.act import events
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import partition
from fallow.model.policies import nodeconfig_crd
from fallow.model.seen import several
from fallow.observe.cluster import pods
from fallow.settings.sharing import PartitionSettings
from fallow.stories import sharing
from fallow.stories.turn import Turn
from fallow.wiring import sharing as wiring
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import nvidia

VERSION = "gpuautoscaler.io/v1alpha1"
SEVEN = {"migEnabled": True, "migProfiles": ["1g.5gb"] * 7}
START = 1_794_900_000.0


class Shop:
    """One node, its config and its pods, and the story as it would run beside them."""

    def __init__(self, cluster: clusters.Cluster, api: kube.Api) -> None:
        self.cluster, self.api, self.now = cluster, api, START
        self.node, self.config = f"gpu-{cluster.namespace}", f"cut-{cluster.namespace}"
        self.maps = PartitionSettings(
            plugin_map=(cluster.namespace, "device-plugin-config"),
            mig_map=(cluster.namespace, "fallow-mig-parted-config"),
        )
        self.metrics = telemetry.Telemetry()
        self.seen: list[str] = []
        self.overlooked: set[str] = set()  # pods that came after the look, and before what it leads to

    async def open(self, **spec: Any) -> None:
        await self.cluster.gpu_node(self.node, gpus=nvidia.GPUS, product="NVIDIA-A100-SXM4-40GB", labels={
            names.GPU_COUNT: str(nvidia.GPUS), names.MPS_CAPABLE: "false", names.MIG_STRATEGY: "mixed",
            "karpenter.sh/nodepool": self.cluster.namespace,
        })
        body = {"nodeName": self.node, "mode": "enforce", **spec}
        await self.cluster.create({
            "apiVersion": VERSION, "kind": "GPUNodeConfig", "metadata": {"name": self.config}, "spec": body,
        })

    async def hold(self, name: str = "busy", **metadata: Any) -> dict[str, Any]:
        """A pod that runs on the node with one of its GPUs."""
        made = clusters.pod_template(name, 1)
        made["spec"]["nodeName"] = self.node
        return await self.cluster.create({
            "apiVersion": "v1", "kind": "Pod", **made,
            "metadata": {**made["metadata"], "name": name, "namespace": self.cluster.namespace, **metadata},
        })

    async def find_owner(self, name: str = "maker") -> list[dict[str, Any]]:
        """For a pod that would be made again, so that it could be evicted."""
        made = await self.cluster.create({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": self.cluster.namespace},
        })
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made["metadata"]["uid"]}
        return [{**owner, "controller": True}]

    async def tick(self, *, seconds: float = 10.0, writes: int = 1000) -> str:
        """One look of a new process, which is killed after so many writes. Its step and reason."""
        reader, left = pods.PodReader(), [writes]
        pages = self.api.list_pages(kube.PODS, item=pods.PodItem, field_selector=pods.ALIVE)
        read = [reader.read(item) async for page in pages for item in page.items]
        found = several(tuple(
            pod for pod in read if pod is not None and pod.node == self.node and pod.name not in self.overlooked
        ))
        made = wiring.make_story(
            self.maps, api=self.api, reader=reader, announcer=events.Announcer(self.api, reporting_instance="test"),
            metrics=self.metrics, find_pods=lambda: found,
        )
        story = made.story.tick.__self__  # type: ignore[attr-defined]
        await self.settle(made)

        def leads() -> bool:
            left[0] -= 1
            return left[0] >= 0

        cycle: sharing.SharingCycle = await story.tick(Turn(
            clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=leads
        ))
        assert cycle.failure == ""
        self.now += seconds
        [turn] = [each for each in cycle.turns if each.node == self.node] or [None]
        said = f"{turn.step}/{turn.reason}" if turn else ""
        if not self.seen or self.seen[-1] != said:
            self.seen.append(said)
        return said

    async def settle(self, made: wiring.SharingParts) -> None:
        """Both followers have listed; then they end with their process."""
        tasks = [asyncio.create_task(run()) for run in made.background]
        look = made.story.look
        turn = Turn(clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(),
                    leads=lambda: False)
        while True:
            cycle: Any = await look(turn)
            if not cycle.failure:
                break
            await asyncio.sleep(0.02)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, *ends: str, seconds: float = 10.0, writes: int = 1000, most: int = 200) -> str:
        for _ in range(most):
            said = await self.tick(seconds=seconds, writes=writes)
            if said in ends:
                return said
        raise AssertionError(self.seen)

    async def look(self) -> dict[str, Any]:
        return await self.cluster.get("v1", "Node", self.node)

    async def is_cordoned(self) -> bool:
        return bool((await self.look())["spec"].get("unschedulable"))

    async def labels(self) -> dict[str, str]:
        found: dict[str, str] = (await self.look())["metadata"]["labels"]
        return found

    async def record(self) -> partition.RepartitionRecord:
        return partition.read((await self.look())["metadata"]["annotations"][names.REPARTITION])

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.cluster.get(VERSION, "GPUNodeConfig", self.config))["status"]
        return found

    def programs(self, *answers: str) -> nvidia.Programs:
        return nvidia.Programs(self.cluster, self.node, self.maps.plugin_map, answers, self.maps.mig_map)


def shipped_rules() -> list[dict[str, Any]]:
    """With which it is installed."""
    rules = []
    for file in ("base/20-reader.yaml", "sharing/10-role.yaml"):
        for each in yaml.safe_load_all((ROOT / "deploy" / file).read_text()):
            rules += (each or {}).get("rules") or []
    return rules


@pytest.fixture
async def shop(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> AsyncIterator[Shop]:
    await cluster.apply_crds(nodeconfig_crd.define())
    async with AsyncExitStack() as stack:
        account = await cluster.service_account("sharing", shipped_rules())
        access = config.load_access(kubeconfig=str(account), context=None, environment={})
        api = await stack.enter_async_context(kube.Api(access, qps=1000))
        made = Shop(cluster, api)
        yield made
        for each in (await cluster.find(VERSION, "GPUNodeConfig", made.config),):
            if each is not None:  # so that no test waits for another's finalizer
                await cluster.patch(each, {"metadata": {"finalizers": None}})
                await cluster.delete(await cluster.refresh(each))


@pytest.mark.accepts("packing", 11)
async def test_a_running_pod_is_waited_for_and_then_the_node_is_cut(shop: Shop) -> None:
    await shop.open(**SEVEN)
    busy = await shop.hold(ownerReferences=await shop.find_owner())
    async with nvidia.running(shop.programs()):
        for _ in range(8):
            await shop.tick()
        assert shop.seen[-1] == "Draining/Running"
        assert await shop.is_cordoned()
        assert names.MIG_CONFIG not in await shop.labels()
        assert (await shop.status())["step"] == "Draining"
        assert (await shop.cluster.refresh(busy))["metadata"].get("deletionTimestamp") is None
        await shop.cluster.request(
            "DELETE", f"/api/v1/namespaces/{shop.cluster.namespace}/pods/busy", gracePeriodSeconds="0"
        )
        await shop.until("Ready/Ready", seconds=1.0)
    assert (await shop.labels())[names.MIG_CONFIG] == "all-1g.5gb"
    assert not await shop.is_cordoned()
    said = await shop.status()
    assert (said["phase"], said["conditions"][0]["status"], said["previous"]) == ("Ready", "True", {})
    assert b'gpu_autoscaler_repartitions_total{outcome="done"} 1.0' in shop.metrics.text()


@pytest.mark.accepts("packing", 12)
async def test_a_failure_brings_the_old_label_back(shop: Shop) -> None:
    await shop.open(**SEVEN)
    await shop.cluster.patch(await shop.look(), {"metadata": {"labels": {names.MIG_CONFIG: "all-balanced"}}})
    programs = shop.programs("success", "failed", "success")
    await programs.look()
    async with nvidia.running(programs):
        await shop.until("Failed/StateFailed", seconds=1.0)
    assert ((await shop.labels())[names.MIG_CONFIG], await shop.is_cordoned()) == ("all-balanced", False)
    assert (await shop.status())["phase"] == "Failed"
    assert await told(shop) == []


async def test_old_labels_are_not_written_under_a_pod_that_came_in_the_last_moment(shop: Shop) -> None:
    await shop.open(**SEVEN)
    async with nvidia.running(shop.programs("silence", "success")):
        await shop.until("Verifying/Running", seconds=1.0)
        shop.overlooked = {"came"}
        await shop.hold("came")
        for _ in range(8):
            await shop.tick(seconds=300.0)
        assert (shop.seen[-1], (await shop.labels())[names.MIG_CONFIG]) == ("RollingBack/VerifyTimeout", "all-1g.5gb")
        path = f"/api/v1/namespaces/{shop.cluster.namespace}/pods/came"
        await shop.cluster.request("DELETE", path, gracePeriodSeconds="0")
        await shop.until("Failed/VerifyTimeout", seconds=1.0)
    assert ((await shop.labels())[names.MIG_CONFIG], await shop.is_cordoned()) == ("all-disabled", False)


async def told(shop: Shop) -> list[str]:
    found = await shop.cluster.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
    ours = [each for each in found["items"] if each.get("reportingController") == names.REPORTING_CONTROLLER]
    return [each["reason"] for each in ours if each["regarding"]["name"] == shop.node]


@pytest.mark.accepts("packing", 12)
async def test_a_way_back_that_fails_leaves_it_cordoned_with_an_event(shop: Shop) -> None:
    await shop.open(**SEVEN)
    async with nvidia.running(shop.programs("failed", "failed")):
        await shop.until("Failed/RepartitionFailed", seconds=1.0)
        assert await shop.is_cordoned()
        for _ in range(8):  # whoever cuts the node writes on it, too, and may be faster
            if (await shop.record()).is_stuck:
                break
            await shop.tick(seconds=1.0)
        assert (await shop.record()).is_stuck
    assert await told(shop) == ["RepartitionFailed"]
    assert shop.metrics.read("gpu_autoscaler_stuck_nodes") == 1  # which an alert rests on


@pytest.mark.accepts("packing", 13)
@pytest.mark.parametrize("answers", [("success",), ("failed", "success")], ids=["there", "and-back"])
async def test_a_process_killed_after_every_few_writes_comes_to_the_same_end(
    shop: Shop, answers: tuple[str, ...]
) -> None:
    await shop.open(**SEVEN)
    async with nvidia.running(shop.programs(*answers)):
        for turn in range(120):
            said = await shop.tick(seconds=1.0, writes=turn % 4)
            if await shop.is_cordoned():
                record = await shop.record()
                assert record.cordoned_by_us
                assert record.is_running
            elif said in ("Ready/Ready", "Failed/StateFailed"):
                break
    assert said == ("Ready/Ready" if answers == ("success",) else "Failed/StateFailed")
    assert not await shop.is_cordoned()


async def test_time_slicing_adds_its_key_and_leaves_those_of_others(shop: Shop) -> None:
    await shop.open(timeSlicingEnabled=True, timeSlicingReplicas=4)
    theirs = {"default": "version: v1\n", "fallow-timeslicing-9": "version: v1\n"}
    place, name = shop.maps.plugin_map
    await shop.cluster.create({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": place}, "data": theirs,
    })
    async with nvidia.running(shop.programs()):
        await shop.until("Ready/Ready", seconds=1.0)
    data = (await shop.cluster.get("v1", "ConfigMap", name, place))["data"]
    assert set(data) == {"default", "fallow-timeslicing-9", "fallow-timeslicing-4"}
    assert data["default"] == theirs["default"]
    assert (await shop.labels())[names.PLUGIN_CONFIG] == "fallow-timeslicing-4"
    assert (await shop.look())["status"]["allocatable"]["nvidia.com/gpu.shared"] == "32"
    await shop.tick()
    assert (await shop.status())["timeSlicingStatus"] == {
        "enabled": True, "physicalGPUs": 8, "virtualGPUs": 32, "replicasPerGPU": 4,
    }


async def test_a_budget_of_no_disruption_ends_in_the_old_layout_with_nobody_lost(shop: Shop) -> None:
    await shop.open(**SEVEN, disruption="evict", drainTimeoutSeconds=60)
    labels = {"app": "guarded"}
    busy = await shop.hold(labels=labels, ownerReferences=await shop.find_owner())
    alone = await shop.hold("alone")
    await shop.hold("free", ownerReferences=await shop.find_owner("other"))
    await shop.cluster.create({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "none", "namespace": shop.cluster.namespace},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": labels}},
    })
    async with nvidia.running(shop.programs()):
        await shop.until("Failed/DrainTimeout", seconds=15.0)
    assert not await shop.is_cordoned()
    for pod in (busy, alone):
        assert (await shop.cluster.refresh(pod))["metadata"].get("deletionTimestamp") is None
    asked = shop.cluster.requests(verbs=["create"], contains=f"{shop.cluster.namespace}/pods/")
    evicted = {(each.uri.split("/")[-2], each.code) for each in asked if each.uri.endswith("/eviction")}
    assert evicted == {("busy", 429), ("free", 201)}  # who may not go keeps nobody else


@pytest.mark.accepts("packing", 7)
async def test_a_pod_that_asks_for_a_mode_that_there_is_not_is_told_once(shop: Shop) -> None:
    await shop.open(mode="audit")
    busy = await shop.hold(annotations={names.SHARING_MODE: "turbo"})
    for _ in range(3):
        await shop.tick()
    path = f"/apis/events.k8s.io/v1/namespaces/{shop.cluster.namespace}/events"
    listed = (await shop.cluster.request("GET", path))["items"]
    found = [each for each in listed if each["reason"] == "InvalidSharingMode"]
    assert [(each["regarding"]["uid"], each["type"]) for each in found] == [(busy["metadata"]["uid"], "Warning")]


@pytest.mark.accepts("packing", 14)
async def test_an_illegal_layout_touches_nothing(shop: Shop) -> None:
    await shop.open(migEnabled=True, migProfiles=["4g.20gb", "4g.20gb"])
    before = await shop.labels()
    assert await shop.tick() == "Failed/IllegalLayout"
    assert (await shop.labels(), await shop.is_cordoned()) == (before, False)
    managers = {each["manager"] for each in (await shop.look())["metadata"]["managedFields"]}
    assert names.FIELD_MANAGER not in managers
    [condition] = (await shop.status())["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "IllegalLayout")


async def test_a_config_deleted_in_mid_change_goes_when_the_old_layout_is_back(shop: Shop) -> None:
    await shop.open(**SEVEN)
    await shop.hold()
    for _ in range(4):
        await shop.tick()
    assert shop.seen[-1] == "Draining/Running"
    await shop.cluster.delete(await shop.cluster.get(VERSION, "GPUNodeConfig", shop.config))
    assert await shop.cluster.find(VERSION, "GPUNodeConfig", shop.config) is not None
    for _ in range(6):
        await shop.tick()
    assert await shop.cluster.find(VERSION, "GPUNodeConfig", shop.config) is None
    assert not await shop.is_cordoned()
