"""A real daemon with no right but the shipped ones, within the bounds, a real API server and Karpenter's own definition
of NodePools: a throttle of the whole cluster holds them, and whatever ends it gives them back as they were."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import yaml

from fallow import names
from tests import ROOT
from tests.real import build, history, product, test_bounds, test_budget_events, test_deploy, world
from tests.real import cluster as clusters
from tests.real.conftest import need

Object = dict[str, Any]
KARPENTER = "karpenter.sh/v1"
GPU, KEY = names.GPU, names.ORIGINAL_LIMITS
SHIPPED = (*test_budget_events.SHIPPED, "deploy/enforcement/node-pools/10-role.yaml")
WHOLE: Object = {"type": "cluster"}


class Manager(product.Product):
    @property
    def flags(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig), "-r", "scale-down"]


class Yard:
    """NodePools, a node with a price, and the daemon that looks at what is spent."""

    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.desk = test_budget_events.Desk(cluster, prometheus, folder)
        self.system = self.desk.stage.system

    async def prepare(self) -> None:
        await self.desk.prepare()
        files = (each for path in SHIPPED for each in yaml.safe_load_all((ROOT / path).read_text()))
        rules = [rule for each in files if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]
        account = await self.cluster.service_account("gpu-pruner", rules, namespace=self.system)
        for thing in test_deploy.manifests(test_bounds.BOUNDS, namespace=self.system):
            await self.cluster.apply(thing)
        self.manager = Manager(
            self.desk.stage, account, self.folder, f"system:serviceaccount:{self.system}:gpu-pruner"
        )

    async def pool(self, name: str, *tiers: str, gpus: str = "2", **spec: Any) -> Object:
        ref = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
        wanted = [{"key": names.KARPENTER_CAPACITY, "operator": "In", "values": list(tiers)}]
        made = await self.cluster.create({
            "apiVersion": KARPENTER, "kind": "NodePool", "metadata": {"name": name, "annotations": {"mine": "stays"}},
            "spec": {"template": {"spec": {"nodeClassRef": ref, "requirements": wanted}}, **spec},
        })
        return await self.cluster.patch(made, {"status": {"resources": {"nodes": "1", GPU: gpus}}}, part="status")

    async def find(self, name: str) -> Object:
        return await self.cluster.get(KARPENTER, "NodePool", name)

    async def is_held(self, name: str) -> bool:
        return KEY in (await self.find(name))["metadata"]["annotations"]

    async def is_free(self, name: str) -> bool:
        return not await self.is_held(name)

    async def budget(self, of: str, scope: Object, **rule: Any) -> Object:
        return await self.cluster.create({
            "apiVersion": test_budget_events.VERSION, "kind": "CostBudget", "metadata": {"name": self.desk.name(of)},
            "spec": {"scope": scope, "budget": {"amount": 1}, "enforcement": {
                "mode": "throttle", "gracePeriod": "0s", "throttleConfig": rule,
            }},
        })

    async def start(self, edits: str = "true") -> product.Daemon:
        daemon = await self.manager.start(
            "--cost", "true", "--cost-tracking-interval", "1s", "--cost-currency", "EUR", "--cost-enforcement", "true",
            "--cost-enforcement-edit-node-pools", edits, "--webhook-certificate", "false", "--state-dir",
            str(self.folder / "state"), env={"POD_NAME": "books-0"},
        )
        await daemon.until(daemon.is_ready)
        return daemon

    async def type_in(self, *words: str) -> product.Ended:
        env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(self.cluster.kubeconfig)}
        return await product.run("fallow", *words, env=env)


@pytest.fixture
async def yard(
    start_control_plane: Callable[[world.Options], Awaitable[clusters.Cluster]],
    prometheus: history.PrometheusWorld, folder: pathlib.Path,
) -> AsyncIterator[Yard]:
    need("karpenter-crds")
    cluster = await start_control_plane(world.PLAIN)
    files = sorted(build.need("karpenter-crds").glob("*.yaml"))
    await cluster.apply_crds(*(each for file in files for each in yaml.safe_load_all(file.read_text()) if each))
    made = Yard(cluster, prometheus, folder)
    await made.prepare()
    yield made
    await made.manager.close()


def kept(pool: Object) -> tuple[Object, Object]:
    """What of it a budget must leave, or put back."""
    return pool["spec"], pool["metadata"]["annotations"]


@pytest.mark.accepts("cost", 17)
async def test_a_throttle_holds_pools_and_a_killed_daemon_gives_them_back_as_they_were(yard: Yard) -> None:
    held = [
        await yard.pool("bare", "on-demand"), await yard.pool("full", "on-demand", limits={GPU: "16", "cpu": 1000}),
        await yard.pool("weighed", "on-demand", limits={"cpu": "1k"}, weight=7, gpus="0"),
    ]
    theirs = await yard.pool("theirs", "on-demand", limits={GPU: "8"})
    others = [
        await yard.pool("spot", "spot"), await yard.pool("both", "spot", "on-demand"),
        await yard.pool("reached", "on-demand", limits={GPU: "2"}),
    ]
    daemon = await yard.start()
    await yard.budget("narrow", {"type": "namespace", "namespaces": [yard.cluster.namespace]}, blockOnDemand=True)
    await daemon.until(lambda: told(yard, "narrow"))
    assert not [each for each in (*held, theirs, *others) if await yard.is_held(each["metadata"]["name"])]

    whole = await yard.budget("whole", WHOLE, blockOnDemand=True)
    for each in (*held, theirs):
        await daemon.until(lambda name=each["metadata"]["name"]: yard.is_held(name))
    bare, full, weighed = [await yard.find(each["metadata"]["name"]) for each in held]
    assert bare["spec"]["limits"] == {GPU: "2"}
    assert full["spec"]["limits"] == {GPU: "2", "cpu": 1000}
    assert weighed["spec"] == {**held[2]["spec"], "limits": {GPU: "0", "cpu": "1k"}}
    record = json.loads(full["metadata"]["annotations"][KEY])
    assert (record["limits"], record["budgets"]) == ({GPU: "16", "cpu": 1000}, [yard.desk.name("whole")])
    assert [kept(await yard.find(each["metadata"]["name"])) for each in others] == [kept(each) for each in others]
    await yard.cluster.patch(theirs, {"spec": {"limits": {GPU: "12"}}})

    daemon.process.kill()
    await yard.cluster.patch(whole, {"spec": {"budget": {"amount": 1_000_000_000}}})
    daemon = await yard.start()
    for each in (*held, theirs):
        await daemon.until(lambda name=each["metadata"]["name"]: yard.is_free(name))
    assert [kept(await yard.find(each["metadata"]["name"])) for each in held] == [kept(each) for each in held]
    assert (await yard.find("theirs"))["spec"]["limits"] == {GPU: "12"}
    assert "no Event" not in daemon.log
    found = await yard.cluster.events(namespace="default")
    mine = [each["reason"] for each in found if each["regarding"]["name"] == "bare"]
    assert sorted(mine) == ["NodePoolGivenBack", "NodePoolHeld"]


async def told(yard: Yard, of: str) -> bool:
    return "BudgetEnforced" in await yard.desk.reasons(of)


async def test_switched_off_lifted_or_removed_it_gives_them_back(yard: Yard) -> None:
    before = await yard.pool("gpu", "spot", limits={GPU: 8})
    await yard.budget("whole", WHOLE, blockSpotCreation=True)
    daemon = await yard.start()
    await daemon.until(lambda: yard.is_held("gpu"))
    daemon.process.kill()
    daemon = await yard.start("false")
    await daemon.until(lambda: yard.is_free("gpu"))
    assert kept(await yard.find("gpu")) == kept(before)
    daemon.process.kill()

    daemon = await yard.start()
    await daemon.until(lambda: yard.is_held("gpu"))
    daemon.process.kill()
    said = await yard.type_in("cost", "lift", yard.desk.name("whole"))
    assert (said.code, "NodePool gpu has its own limits back" in said.said) == (0, True), said.said
    assert kept(await yard.find("gpu")) == kept(before)

    daemon = await yard.start()
    await daemon.until(lambda: yard.is_held("gpu"))
    said = await yard.type_in("uninstall", "-n", yard.system)
    assert "held by a budget: NodePool gpu" in said.said
    assert await yard.is_held("gpu")
    said = await yard.type_in("uninstall", "-n", yard.system, "--yes")
    assert (said.code, "NodePool gpu has its own limits back" in said.said) == (0, True), said.said
    await daemon.more_cycles(3)
    assert kept(await yard.find("gpu")) == kept(before)  # frozen, the daemon does not do it again


async def test_the_bounds_leave_of_a_pool_the_limit_of_gpus_with_its_record(yard: Yard) -> None:
    made = await yard.pool("gpu", "on-demand", limits={GPU: "8", "cpu": "64"}, weight=3)
    cluster = yard.cluster
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    kubeconfig = await cluster.service_account("gpu-pruner", everything, namespace=yard.system)
    cluster.kubeconfig = kubeconfig
    async with test_bounds.thief_on(cluster) as thief:
        await cluster.wait_until(lambda: test_bounds._is_bound(thief))
        record = {"metadata": {"annotations": {KEY: "{}"}}}
        for spec in (
            {"weight": 9}, {"limits": {"cpu": "1"}}, {"limits": None}, {"limits": {"nodes": "3"}},
            {"template": {"metadata": {"labels": {"a": "b"}}}}, {"disruption": {"consolidateAfter": "1s"}},
        ):
            said = await thief.is_refused(made, {**record, "spec": spec})
            assert said.startswith("in the spec of NodePool nothing but the limit of nvidia.com/gpu"), said
        said = await thief.is_refused(made, {"spec": {"limits": {GPU: "4"}}})
        assert said.startswith("the limit of a NodePool is not its to change without the record")
        assert "annotations of others" in await thief.is_refused(made, {"metadata": {"annotations": {"mine": "x"}}})
        await thief.send(made, {**record, "spec": {"limits": {GPU: "4"}}})
        await thief.send(made, {"metadata": {"annotations": {KEY: None}}, "spec": {"limits": {GPU: "8"}}})
    assert kept(await yard.find("gpu")) == kept(made)
