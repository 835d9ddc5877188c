"""Nodes that come and go, end to end: the daemon as it is deployed, a real API server and scheduler, a real Prometheus
with what DCGM shows, and Auto Scaling groups on a server that speaks as AWS does (moto). Only the kubelet that a new
machine would start, and the cloud's controller that deletes the Node of a machine that is gone, are played."""

from __future__ import annotations

import json
import pathlib
import sqlite3
import time
from typing import Any

import pytest

from fallow import names
from fallow.clients.clouds.aws.groups import AwsGroups
from fallow.model.policies import scaling_crd
from tests.real import cluster as clusters
from tests.real import history, product, shipped
from tests.real.test_aws_groups import ENVIRONMENT, find_target, make_group, moto, opened

__all__ = ["moto"]  # a fixture
VERSION, KIND, SCENE = "gpuautoscaler.io/v1alpha1", "AutoscalingPolicy", "scene"
SHIPPED = ("base/20-reader.yaml", "acting/10-role.yaml", "scaling/10-role.yaml", "cost/15-role.yaml")
GROUP, GPUS, PER_HOUR, AHEAD = "gpu-group", 4, 36.0, 600


class Scaler(product.Product):
    """Sees all namespaces, as a daemon does."""

    @property
    def flags(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig), "-r", "scale-down"]


class GroupScene:
    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path) -> None:
        self.cluster, self.stage, self.folder = cluster, product.Stage(cluster, prometheus), folder
        self.user = f"system:serviceaccount:{self.stage.system}:scaler"
        self.name, self.node, self.api = cluster.namespace, f"machine-{cluster.namespace}", product.free_port()

    async def prepare(self) -> Scaler:
        """What its GPUs will do once the machine is there is known: nothing."""
        await self.cluster.apply_crds(scaling_crd.define())
        await self.cluster.make_namespace(self.stage.system)
        for gpu in range(GPUS):
            self.stage.prometheus.dcgm_gpu(self.node, gpu, until=self.stage.prometheus.now + AHEAD, minutes=60)
        await self.stage.prometheus.start()
        rights = await shipped.account(self.cluster, "scaler", *SHIPPED, namespace=self.stage.system)
        return Scaler(self.stage, rights, self.folder, self.user)

    async def ask_for_policy(self) -> None:
        pool = {
            "name": "pool", "group": GROUP, "capacityType": "on-demand", "instanceTypes": ["g5.xlarge"],
            "gpusPerNode": GPUS, "cpu": 128, "memory": "1Ti", "pricePerHour": str(PER_HOUR),
            "labels": {SCENE: self.name},
        }
        await self.cluster.apply({
            "apiVersion": VERSION, "kind": KIND, "metadata": {"name": self.name}, "spec": {
                "provider": "aws", "driver": "direct", "mode": "act", "nodeSelector": {SCENE: self.name},
                "pendingPodTimeoutSeconds": 0, "scaleUpCooldownSeconds": 0, "scaleDownCooldownSeconds": 0,
                "unneededSeconds": 60, "nodePools": [pool],
            },
        })

    async def start(self, scaler: Scaler, moto: str) -> product.Daemon:
        daemon = await scaler.start(
            "--scaling", "act", "--autoscaling-provider", "aws", "--autoscaling-aws-region", "us-east-1",
            "--autoscaling-aws-endpoint", moto, "--autoscaling-reconcile-interval", "5s", "--cost", "true",
            "--cost-tracking-interval", "1s", "--state-dir", str(self.folder / "state"),
            "--dashboard-addr", f"127.0.0.1:{self.api}", env={**ENVIRONMENT, "POD_NAME": "scaler-0"},
        )
        await daemon.until(daemon.is_ready)
        return daemon

    async def join(self, provider_id: str) -> dict[str, Any]:
        """As its kubelet does it."""
        labels = {SCENE: self.name, names.OWN_CAPACITY: "on-demand", names.INSTANCE_TYPE[0]: "g5.xlarge"}
        made = await self.cluster.gpu_node(self.node, GPUS, labels=labels)
        price = {"metadata": {"annotations": {names.PRICE_PER_HOUR: str(PER_HOUR)}}}
        return await self.cluster.patch(made, {"spec": {"providerID": provider_id}, **price})

    async def status(self) -> dict[str, Any]:
        return (await self.cluster.get(VERSION, KIND, self.name)).get("status") or {}

    def count(self, metrics: dict[str, float], action: str) -> float:
        return sum(
            value for sample, value in metrics.items() if sample.startswith("gpu_autoscaler_scaling_actions_total")
            and f'policy="{self.name}"' in sample and f'action="{action}"' in sample and 'success="true"' in sample
        )

    def read_booked(self) -> tuple[int, int, int]:
        """Of the node's GPUs: how many are still paid for, nano an hour of all of them, and for how many seconds. By
        SQL: no line of the product reads it for us."""
        on = sqlite3.connect(f"file:{self.folder / 'state' / 'costs.sqlite'}?mode=ro", uri=True)
        try:
            rows = on.execute(
                "SELECT part.gpu_uuid, i.t0, i.t1, i.rate_nano, i.is_open FROM cost_intervals i"
                " JOIN cost_parts part USING (part_id) JOIN cost_keys key USING (key_id) WHERE key.node = ?",
                (self.node,),
            ).fetchall()
        finally:
            on.close()
        rates = {gpu: rate for gpu, _, _, rate, _ in rows}
        return sum(is_open for *_, is_open in rows), sum(rates.values()), sum(t1 - t0 for _, t0, t1, _, _ in rows)


@pytest.fixture
def scene(cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path) -> GroupScene:
    return GroupScene(cluster, prometheus, folder)


@pytest.mark.accepts("scaling", 3)
@pytest.mark.accepts("scaling", 10)
async def test_a_group_grows_for_a_pod_and_its_machine_goes_when_nobody_is_on_it(scene: GroupScene, moto: str) -> None:
    async with opened(moto) as aws:
        await make_group(aws, GROUP, size=0)
        cloud, scaler = AwsGroups(aws), await scene.prepare()
        try:
            await _play(scene, scaler, cloud, moto)
        finally:
            await scaler.close()
    used = shipped.used(scene.cluster, scene.user)
    assert {("patch", "", "nodes"), ("patch", names.GROUP, "autoscalingpolicies/status")} <= used
    assert used - shipped.granted(shipped.rules(*SHIPPED)) <= shipped.EVERYBODYS


async def _play(scene: GroupScene, scaler: Scaler, cloud: AwsGroups, moto: str) -> None:
    await scene.ask_for_policy()
    daemon = await scene.start(scaler, moto)
    made = await scene.cluster.apply(clusters.replicated(
        "apps/v1", "Deployment", "waits", 1, GPUS, nodeSelector={SCENE: scene.name}
    ))

    async def has_target(wanted: int) -> bool:
        return await find_target(cloud, GROUP) == wanted

    await daemon.until(lambda: has_target(1))
    (machine,) = await cloud.machines(GROUP)
    joined_at, node = time.time(), await scene.join(machine.provider_id)
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=waits", 1))

    async def has_arrived() -> bool:
        found = await scene.status()
        return found.get("currentNodes") == 1 and not found.get("inFlight") and found.get("pendingPods") == 0

    await daemon.until(has_arrived)
    assert await has_target(1), "it grew once"
    assert scene.count(await daemon.metrics(), "scale_up") == 1
    page = await _read(scene, daemon, "/api/v1/scaling")
    assert [(each["name"], each["nodes"], each["perHour"]) for each in page["policies"]] == [(scene.name, 1, PER_HOUR)]

    await scene.cluster.delete(made)
    await daemon.until(lambda: has_target(0), timeout=150)
    assert [each for each in await cloud.machines(GROUP) if each.state == "running"] == []
    drained = await scene.cluster.refresh(node)
    assert drained["spec"]["unschedulable"] is True
    assert json.loads(drained["metadata"]["annotations"][names.SCALE_DOWN])["reason"] == "empty"
    await scene.cluster.delete(drained)  # as the cloud's controller does it

    async def is_told() -> bool:
        found = await scene.status()
        return found.get("currentNodes") == 0 and str(found.get("lastScalingAction", "")).startswith("scale_down")

    await daemon.until(is_told)
    gone_at = time.time()
    assert scene.count(await daemon.metrics(), "scale_down") == 1
    happened = [each["type"] for each in (await _read(scene, daemon, "/api/v1/decisions?limit=100"))["items"]]
    of_nodes = [each for each in happened if each.startswith(("node", "drain"))]
    assert of_nodes == ["nodeRemoved", "drainBegun", "nodesAdded"], "the newest first"

    async def is_closed() -> bool:
        return scene.read_booked()[0] == 0

    await daemon.until(is_closed)
    _, rate, seconds = scene.read_booked()
    assert rate == int(PER_HOUR * 10**9), "it is paid for as its annotation says"
    assert 60 < seconds / GPUS <= gone_at - joined_at + 2, "from when it joined until it was gone"


async def _read(scene: GroupScene, daemon: product.Daemon, path: str) -> Any:
    before, daemon.url = daemon.url, f"http://127.0.0.1:{scene.api}"
    status, text = await daemon.get(path)
    daemon.url = before
    assert status == 200, text
    return json.loads(text)
