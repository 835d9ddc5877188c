"""What happens between two requests: kill -9 after any write, another's write between look and patch, an object made
anew under its name.

The product talks to the real API server through a proxy that does these things at the right moment.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
from typing import Any

import pytest

from fallow import names
from tests.real import cluster as clusters
from tests.real import crds, faults, product

ACT = ("-r", "scale-down")
Object = dict[str, Any]


# ---- kill -9 ---------------------------------------------------------------------------------------------------------


class Killer:
    """Lets the first write with these words reach the server, and kills who sent it before it learns the answer."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.victim: subprocess.Popen[bytes] | None = None
        self.has_struck = False

    async def __call__(self, exchange: faults.Exchange) -> faults.web.StreamResponse:
        is_write = exchange.request.method != "GET" and "dryRun" not in exchange.request.query
        if not is_write or self.words not in exchange.text or self.has_struck:
            return await exchange.forward()
        await exchange.fetch()
        assert self.victim is not None
        self.victim.kill()
        self.has_struck = True
        return faults.web.Response(status=500)


class Scene:
    """One workload in a namespace of its own, and the product that will be killed on it."""

    def __init__(self, stage: product.Stage, step: str) -> None:
        self.step = step
        self.namespace = f"{stage.namespace}-{step}"
        self.system = f"{stage.system}-{step}"
        self._stage = stage

    async def build(self, with_scaler: bool) -> None:
        cluster = self._stage.cluster
        for place in (self.namespace, self.system):
            await cluster.make_namespace(place)
        manifest = clusters.replicated("apps/v1", "Deployment", "quiet", 2, 1)
        manifest["metadata"]["namespace"] = self.namespace
        self.workload = await cluster.apply(manifest)
        self.scaler = await cluster.apply(_scaler(self.namespace)) if with_scaler else None
        await cluster.wait_until(lambda: cluster.ready_pods("app=quiet", 2, self.namespace))
        for pod in await cluster.age("app=quiet", product.MINUTES, self.namespace):
            self._stage.measure(pod, 0.0)

    async def play(self, pruner: product.Product) -> None:
        """Killed, then run again in peace; then resumed."""
        async with product.proxy_to_api_server(self._stage.cluster.plane) as proxy:
            killer = proxy.fault = Killer(STEPS[self.step])
            through = self._kubeconfig(pruner, proxy.url)
            killed = pruner.spawn(*ACT, "--kubeconfig", str(through), *self._flags, env={"POD_NAMESPACE": self.system})
            killer.victim = killed.process
            assert (await killed.ended(), killer.has_struck) == (-9, True), killed.log
        await self._let_the_lease_run_out()
        for _ in range(2):  # where marks were left behind, one look puts them in order and the next one acts
            again = await pruner.prune(*ACT, *self._flags, env={"POD_NAMESPACE": self.system})
            assert again.code == 0, again.said

    @property
    def _flags(self) -> list[str]:
        return ["--watch-namespaces", self.namespace]

    def _kubeconfig(self, pruner: product.Product, url: str) -> pathlib.Path:
        """The product's own, by way of the proxy."""
        text = pruner.kubeconfig.read_text().replace(self._stage.cluster.plane.url, url)
        path = pruner.kubeconfig.with_name(f"{self.system}.kubeconfig")
        path.write_text(text)
        return path

    async def _let_the_lease_run_out(self) -> None:
        """Without waiting for it: nobody renews it any more."""
        metadata = {"name": names.LEASE, "namespace": self.system}
        await self._stage.cluster.delete(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        )

    async def look(self) -> list[Object]:
        found = [self.workload] if self.scaler is None else [self.workload, self.scaler]
        return [await self._stage.cluster.refresh(each) for each in found]


def _scaler(namespace: str) -> Object:
    spec = {"scaleTargetRef": {"name": "quiet"}, "minReplicaCount": 1, "maxReplicaCount": 4, "triggers": []}
    metadata = {"name": "quiet", "namespace": namespace}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata, "spec": spec}


def _marks(thing: Object) -> Object:
    found: Object = thing["metadata"].get("annotations") or {}
    return found


def _acts(pruner: product.Product, scene: Scene, plural: str) -> list[Object]:
    """Patches that stopped something, taken by the server."""
    asked = [
        one.body
        for one in pruner.writes(f"{scene.namespace}/{plural}/quiet")
        if one.verb == "patch" and one.code == 200 and "dryRun" not in one.uri
    ]
    return [
        body for body in asked if '"0"' in json.dumps(_marks(body)) or (body.get("spec") or {}).get("replicas") == 0
    ]


# What one look writes, in this order, and a word by which each is known.
STEPS = {
    "lease": "/leases", "told": "IdleDetected", "paused": names.PAUSED_AT, "scaler": names.KEDA_PAUSED_REPLICAS,
    "event": "ScaledToZero", "released": '"holderIdentity":""',
}


@pytest.mark.accepts("idle", 39)
@pytest.mark.parametrize("with_scaler", [False, True], ids=["plain", "keda"])
async def test_killed_after_any_write_it_ends_the_same(
    stage: product.Stage, folder: pathlib.Path, with_scaler: bool
) -> None:
    await stage.cluster.gpu_node("gpu-2", 8)
    if with_scaler:
        await stage.cluster.apply_crds(crds.KINDS["ScaledObject"])
    steps = ("paused", "scaler", "event") if with_scaler else [step for step in STEPS if step != "scaler"]
    scenes = [Scene(stage, step) for step in steps]
    await asyncio.gather(*(scene.build(with_scaler) for scene in scenes))
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        await asyncio.gather(*(scene.play(pruner) for scene in scenes))
        for scene in scenes:
            workload, *scaler = await scene.look()
            record = json.loads(_marks(workload)[names.ORIGINAL_STATE])
            assert record["fields"] == {"/spec/replicas": 2}, scene.step
            if with_scaler:
                assert _marks(scaler[0])[names.KEDA_PAUSED_REPLICAS] == "0", scene.step
            else:
                assert workload["spec"]["replicas"] == 0, scene.step
            assert len(_acts(pruner, scene, "scaledobjects" if with_scaler else "deployments")) == 1, scene.step
            assert names.PAUSE_REVERSALS not in _marks(workload), scene.step
        ends = await asyncio.gather(
            *(pruner.fallow("resume", "Deployment/quiet", "-n", scene.namespace) for scene in scenes)
        )
        assert {end.code for end in ends} == {0}, ends
    for scene in scenes:
        workload, *scaler = await scene.look()
        assert workload["spec"]["replicas"] == 2
        assert not set(_marks(workload)) & set(names.PAUSE_KEYS)
        assert not scaler or not set(_marks(scaler[0])) & {names.KEDA_PAUSED_REPLICAS, names.ORIGINAL_STATE}


# ---- somebody else is quicker ----------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 22)
@pytest.mark.parametrize("what", ["label", "ack", "opt-out", "scaled"])
async def test_a_change_between_look_and_patch_is_looked_at_first(
    stage: product.Stage, folder: pathlib.Path, what: str
) -> None:
    """A 409 for the patch. Only where the workload is still idle and nobody's is it sent again, with the new
    version."""
    changes: dict[str, Object] = {
        "label": {"metadata": {"labels": {"touched": "yes"}}},
        "ack": {"metadata": {"annotations": {names.ACK_UNTIL: "2099-01-01T00:00:00Z"}}},
        "opt-out": {"metadata": {"annotations": {names.OPT_OUT: names.OPT_OUT_VALUE}}},
        "scaled": {"spec": {"replicas": 0}},
    }
    quiet = await stage.workload("quiet", replicas=2)
    await stage.prometheus.start()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):
        meanwhile = faults.meanwhile(lambda: stage.cluster.patch(quiet, changes[what]))
        proxy.fault = faults.only(names.PAUSED_AT, meanwhile, times=1)
        end = await pruner.prune(*ACT)
        assert end.code == 0, end.said
        patches = [
            one.code for one in pruner.writes("/deployments/quiet") if one.verb == "patch" and product.is_pause(one)
        ]
    assert patches == ([409, 200] if what == "label" else [409])
    assert await stage.is_paused(quiet) is (what == "label")


@pytest.mark.accepts("idle", 36)
async def test_an_object_made_anew_between_look_and_patch_is_not_the_one(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet")

    async def replace() -> None:
        await stage.cluster.delete(quiet, propagationPolicy="Orphan")
        await stage.cluster.wait_until(lambda: _is_gone(stage, quiet))
        await stage.cluster.apply(clusters.replicated("apps/v1", "Deployment", "quiet", 1, 1))

    await stage.prometheus.start()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):
        proxy.fault = faults.only(names.PAUSED_AT, faults.meanwhile(replace), times=1)
        end = await pruner.prune(*ACT)
        assert end.code == 0, end.said
        assert "UnsupportedField" not in end.said
        assert pruner.pauses("quiet") == []
    assert not await stage.is_paused(quiet)


async def _is_gone(stage: product.Stage, thing: Object) -> bool:
    return await stage.cluster.find(thing["apiVersion"], thing["kind"], thing["metadata"]["name"]) is None


# ---- answers that get lost -------------------------------------------------------------------------------------------


async def test_a_pause_whose_answer_was_lost_is_not_sent_twice(stage: product.Stage, folder: pathlib.Path) -> None:
    quiet = await stage.workload("quiet", replicas=2)
    await stage.prometheus.start()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):
        proxy.fault = faults.only(names.PAUSED_AT, faults.cut, times=1)
        first = await pruner.prune(*ACT)
        second = await pruner.prune(*ACT)
        assert (first.code, second.code) == (3, 0), first.said + second.said
        assert len(pruner.pauses("quiet")) == 1
    assert await stage.is_paused(quiet)


async def test_a_source_that_dies_before_the_second_look_stops_the_pause(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet")
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        pod = (await stage.cluster.pods("app=quiet"))[0]["metadata"]["name"]
        proxy.fault = faults.only(f"{pod}%22", faults.only("max_over_time", faults.html))  # peaks by name: again
        end = await pruner.prune(*ACT, env={"PROMETHEUS_URL": proxy.url})
        assert "the second look found: " in end.err, end.said
        assert pruner.writes("/deployments") == []
    assert not await stage.is_paused(quiet)
