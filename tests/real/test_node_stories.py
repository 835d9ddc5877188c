"""`gpu-pruner -d` as it is shipped, with the roles and the bounds of deploy/: it cuts nodes and empties them only when
told to, and whoever kills it -9 between two steps finds no node cordoned without a reason, and its heir at work."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fallow import names
from fallow.model import emptying, partition
from tests.real import cluster as clusters
from tests.real import faults, nvidia, product, test_deploy, world

SYSTEM, OPERATOR = "gpu-pruner-system", "gpu-operator"
VERSION = "gpuautoscaler.io/v1alpha1"
ACTING = ("-r", "scale-down", "--require-policy", "true", "--sharing", "act", "--consolidation", "act")


class House:
    """A cluster on which gpu-pruner is installed, and the daemon that lives there."""

    def __init__(self, cluster: clusters.Cluster, folder: pathlib.Path) -> None:
        self.cluster, self._folder = cluster, folder
        self._daemons: list[product.Daemon] = []
        self.kubeconfig = folder / "unset"

    async def install(self, through: str | None = None) -> None:
        for name in (SYSTEM, OPERATOR):
            await self.cluster.make_namespace(name)
        await test_deploy.install_things(self.cluster, test_deploy.manifests(
            "base", "acting/10-role.yaml", "acting/15-bounds.yaml", "sharing/10-role.yaml",
            "consolidation/10-role.yaml",
        ))
        self.kubeconfig = await self.cluster.service_account("gpu-pruner", namespace=SYSTEM, through=through)

    async def start(self, *flags: str) -> product.Daemon:
        """A look every second, without anybody who measures: what is idle is not known, and nobody is paused."""
        daemon = self._spawn(*flags)
        await daemon.until(daemon.answers, timeout=120)  # a start is all CPU: on a machine that is full it takes long
        return daemon

    def _spawn(self, *flags: str) -> product.Daemon:
        port = product.free_port()
        log = self._folder / f"{port}.log"
        arguments = ["-d", "-c", "1", "--source", "scrape", "--kubeconfig", str(self.kubeconfig)]
        where = ["--metrics-addr", f"127.0.0.1:{port}"]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self._folder), "POD_NAMESPACE": SYSTEM, "POD_NAME": "one"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(product.BIN / "gpu-pruner"), *arguments, *where, *flags], env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )
        self._daemons.append(product.Daemon(process, port, log))
        return self._daemons[-1]

    async def close(self) -> None:
        for each in self._daemons:
            if each.process.poll() is None:
                await each.kill()

    async def node(self, name: str) -> dict[str, Any]:
        """As it is; never cordoned without one of our records."""
        found = await self.cluster.get("v1", "Node", name)
        marks = found["metadata"].get("annotations", {})
        has_record = names.EMPTYING in marks or _is_running(marks.get(names.REPARTITION))
        assert not found["spec"].get("unschedulable") or has_record, "cordoned without a reason"
        return found

    async def is_cordoned(self, name: str) -> bool:
        return bool((await self.node(name))["spec"].get("unschedulable"))


def _is_running(text: str | None) -> bool:
    return text is not None and partition.read(text).is_running


@pytest.fixture
async def house(start_control_plane: Any, tmp_path: pathlib.Path) -> AsyncIterator[House]:
    made = House(await start_control_plane(world.PLAIN), tmp_path)
    try:
        yield made
    finally:
        await made.close()


# ---- nodes that are cut anew -----------------------------------------------------------------------------------------


async def cut(house: House, **spec: Any) -> None:
    await house.cluster.gpu_node("gpu-1", gpus=nvidia.GPUS, product="NVIDIA-A100-SXM4-40GB", labels={
        names.GPU_COUNT: str(nvidia.GPUS), names.MPS_CAPABLE: "false", names.MIG_STRATEGY: "mixed",
    })
    body = {"nodeName": "gpu-1", "mode": "enforce", **spec}
    await house.cluster.create({
        "apiVersion": VERSION, "kind": "GPUNodeConfig", "metadata": {"name": "cut"}, "spec": body,
    })


async def status(house: House) -> dict[str, Any]:
    found: dict[str, Any] = (await house.cluster.get(VERSION, "GPUNodeConfig", "cut")).get("status") or {}
    return found


async def test_without_leave_to_act_a_config_is_only_answered(house: House) -> None:
    await house.install()
    await cut(house, timeSlicingEnabled=True, timeSlicingReplicas=4)
    before = await house.node("gpu-1")
    daemon = await house.start()

    async def is_told() -> bool:
        return bool((await status(house)).get("conditions"))

    await daemon.until(is_told)
    said = await status(house)
    assert (said["phase"], said["conditions"][0]["reason"]) == ("Pending", "NotActing")
    assert "would change nvidia.com/device-plugin.config from none to fallow-timeslicing-4" in said["message"]
    after = await house.node("gpu-1")
    assert (after["metadata"]["labels"], after["spec"]) == (before["metadata"]["labels"], before["spec"])


@pytest.mark.accepts("packing", 13)
async def test_killed_in_every_step_of_a_change_its_heir_comes_to_the_end(house: House) -> None:
    await house.install()
    await cut(house, migEnabled=True, migProfiles=["1g.5gb"] * 7)
    programs = nvidia.Programs(house.cluster, "gpu-1", (OPERATOR, "device-plugin-config"))
    daemon, killed = await house.start(*ACTING), list[str]()

    async def has_moved() -> str:
        """Into a step in which it was not killed yet."""
        marks = (await house.node("gpu-1"))["metadata"].get("annotations", {})
        step = str(partition.read(marks[names.REPARTITION]).step) if names.REPARTITION in marks else ""
        return step if step and step not in killed else ""

    async with nvidia.running(programs):
        while "Ready" not in killed:
            killed.append(await daemon.until(has_moved))
            await daemon.kill()
            await house.node("gpu-1")
            daemon = await house.start(*ACTING)
    assert {"Draining", "Labelling", "Verifying", "Ready"} <= {*killed}, killed
    assert (await house.node("gpu-1"))["metadata"]["labels"][names.MIG_CONFIG] == "all-1g.5gb"
    assert not await house.is_cordoned("gpu-1")


# ---- policies --------------------------------------------------------------------------------------------------------


async def test_the_status_of_a_policy_tells_whom_it_changed_and_whom_it_would_and_people_are_told_of_their_words(
    house: House,
) -> None:
    await house.install()
    mig = {"1g.10gb": 7}
    await house.cluster.gpu_node("cut", gpus=0, product="NVIDIA-A100-SXM4-80GB", mig=mig)
    await house.cluster.gpu_node("whole", gpus=8, product="NVIDIA-A100-SXM4-80GB")
    for name, spec in (("small", {"strategy": "mig", "priority": 1}),
                       ("odd", {"strategy": "timeslicing", "timeSlicingConfig": {"fairnessMode": "weighted"}})):
        body = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": house.cluster.namespace}}, **spec}
        await house.cluster.create({
            "apiVersion": VERSION, "kind": "GPUSharingPolicy", "metadata": {"name": name}, "spec": body,
        })
    alias = names.SHARING_PROFILE.replace(names.GROUP, names.SEED_GROUP)
    said = {names.SHARING_PROFILE: "1g.10gb", alias: "2g.20gb"}
    await hold(house, "would", 1, {names.GPU_MEMORY_NEED: "8Gi", **said}, {names.WORKLOAD_TYPE: "gaming"})
    await hold(house, "out", 1, {names.GPU_MEMORY_NEED: "8Gi", names.OPTIMIZE: "false"})
    await hold(house, "did", 0, {names.OPTIMIZED: "true", names.OPTIMIZATION_POLICY: "small"})
    daemon = await house.start()

    async def are_counted() -> bool:
        found = (await house.cluster.get(VERSION, "GPUSharingPolicy", "small")).get("status", {})
        odd = await house.cluster.get(VERSION, "GPUSharingPolicy", "odd")
        return (found.get("appliedPods"), found.get("auditedPods"), "status" in odd) == (1, 1, True)

    await daemon.until(are_counted)
    for name, expected in (
        ("small", {"Ready": ("True", "Ready"), "Degraded": ("False", "AsAsked")}),
        ("odd", {"Ready": ("False", "NoTargetNode"), "Degraded": ("True", "FairnessModeIgnored")}),
    ):
        found = (await house.cluster.get(VERSION, "GPUSharingPolicy", name))["status"]["conditions"]
        assert {each["type"]: (each["status"], each["reason"]) for each in found} == expected

    async def are_told() -> bool:
        told = {each["reason"] for each in await house.cluster.events()}
        return {"UnknownWorkloadType", "ConflictingAnnotation"} <= told

    await daemon.until(are_told)


async def hold(
    house: House, name: str, gpus: int, marks: dict[str, str], labels: dict[str, str] | None = None
) -> None:
    made = clusters.pod_template(name, gpus)
    made["spec"]["nodeName"] = "whole"
    metadata = {**made["metadata"], "name": name, "annotations": marks}
    metadata["labels"] = {**metadata.get("labels", {}), **(labels or {})}
    pod = await house.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]})

    async def runs() -> bool:
        return bool((await house.cluster.refresh(pod))["status"].get("phase") == "Running")

    await house.cluster.wait_until(runs)


# ---- nodes that are emptied ------------------------------------------------------------------------------------------


async def age_pods(exchange: faults.Exchange) -> faults.web.StreamResponse:
    """Whoever lists pods sees them an hour older: nobody can set when a pod was made."""
    request = exchange.request
    if request.method != "GET" or not request.path.endswith("/pods") or "watch" in request.query:
        return await exchange.forward()
    answer = await exchange.fetch()
    for item in answer.get("items", ()):
        made = datetime.datetime.fromisoformat(item["metadata"]["creationTimestamp"])
        item["metadata"]["creationTimestamp"] = f"{made - datetime.timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    return faults.web.json_response(answer)


@contextlib.asynccontextmanager
async def hardly_used(house: House) -> AsyncIterator[None]:
    """node-b has three of four GPUs in use, node-a one."""
    async with product.proxy_to_api_server(house.cluster.plane) as proxy:
        proxy.fault = age_pods
        await house.install(through=proxy.url)
        for name in ("node-a", "node-b"):
            await house.cluster.gpu_node(name, gpus=4)
        await house.cluster.deployment("busy", 3, nodeSelector={"kubernetes.io/hostname": "node-b"})
        node = await house.cluster.get("v1", "Node", "node-b")
        await house.cluster.patch(node, {"spec": {"unschedulable": True}})
        await house.cluster.deployment("moved", gpus=1)
        await house.cluster.patch(node, {"spec": {"unschedulable": None}})
        yield
        await house.close()


async def where(house: House, app: str) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in await house.cluster.pods(f"app={app}")]


async def test_a_daemon_killed_while_it_empties_a_node_is_succeeded_by_one_that_goes_on(house: House) -> None:
    async with hardly_used(house):
        daemon = await house.start(*ACTING)
        await daemon.until(lambda: house.is_cordoned("node-a"))
        await daemon.kill()
        assert await house.is_cordoned("node-a")
        daemon = await house.start(*ACTING)

        async def is_empty() -> bool:
            marks = (await house.node("node-a"))["metadata"].get("annotations", {})
            record = emptying.read(marks.get(names.EMPTYING))
            return record is not None and record.empty_since is not None

        await daemon.until(is_empty)
        assert await where(house, "moved") == ["node-b"]
        await daemon.kill()
        advised = await house.start("--consolidation", "recommend")

        async def is_given_back() -> bool:
            return not await house.is_cordoned("node-a")

        await advised.until(is_given_back)
    marks = (await house.node("node-a"))["metadata"]["annotations"]
    assert "SwitchedOff" in marks[names.EMPTYING_RESULT]


async def test_without_leave_to_act_a_node_that_could_be_emptied_is_only_told(house: House) -> None:
    async with hardly_used(house):
        daemon = await house.start()

        async def is_told() -> bool:
            return "node-a could be emptied: 1 of its 4 GPUs are in use" in daemon.log

        await daemon.until(is_told)

        async def are_counted() -> bool:
            found = await daemon.metrics()
            named = (f"gpu_autoscaler_{each}_gpus" for each in ("capacity", "allocated"))
            return [found.get(each) for each in named] == [8.0, 4.0]

        await daemon.until(are_counted)
        assert not await house.is_cordoned("node-a")
        assert await where(house, "moved") == ["node-a"]
