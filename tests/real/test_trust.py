"""Whom to believe, on a real API server and a real Prometheus: a tenant's pod that forges measurements, and a GPU that
only holds a context.

The commands are called in this process, with the flags' own defaults.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from fallow import names, settings
from fallow.model import decision
from fallow.wiring import daemon
from tests.real import cluster as clusters
from tests.real import history, scene
from tests.unit.clients import loopback

Cluster = clusters.Cluster
Findings = dict[str, decision.Finding]
PROCESS = "gpu_idle_pod_gpu_utilization_percent"
GPU = "GPU-shared"
HOUR = 3600.0


class Trusting(scene.Scene):
    """A scene that is looked at from here, exporters' namespace included."""

    @property
    def exporters(self) -> str:
        return f"nvidia-{self.namespace}"

    async def exporter(self, namespace: str, name: str = "exporter", port: int = 9835, address: str = "") -> Any:
        """A pod that calls itself an exporter, on the GPU node; with an address, where something really listens."""
        ports = [{"name": "metrics", "containerPort": port}]
        container = {"name": "main", "image": "example.invalid/exporter:1", "ports": ports}
        labels = {names.NAME_LABEL: names.NODE_EXPORTER, "app": name}
        await self.cluster.make_namespace(namespace)
        await self.cluster.apply({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": self.node, "terminationGracePeriodSeconds": 1, "containers": [container]},
        })
        (pod,) = await self.cluster.wait_until(lambda: self.cluster.ready_pods(f"app={name}", 1, namespace))
        if not address:
            return pod
        status = {"podIP": address, "podIPs": [{"ip": address}]}
        return await self.cluster.patch(pod, {"status": status}, part="status")

    async def look(self, **given: Any) -> tuple[Findings, dict[str, str]]:
        """What is found of each workload, and what was not seen."""
        spaces = ",".join((self.namespace, self.exporters))
        asked = {"kubeconfig": str(self.kubeconfig), "watch_namespaces": spaces, **given}
        found = (await daemon.look(settings.read_flags(asked, {"POD_NAMESPACE": f"{self.namespace}-own"}))).look
        plan = found.plan
        findings = [plan.findings[index] for index in range(len(plan.findings))]
        missing = {one.what: one.because for one in found.snapshot.missing}
        return {finding.workload.ref.name: finding for finding in findings}, missing

    def say_processes(self, exporter: Any, percents: dict[str, float], **target: str) -> None:
        """What a page with these numbers becomes in Prometheus, scraped from that pod."""
        meta = exporter["metadata"]
        scraped = {
            "job": "pods", "instance": f"{exporter['status']['podIP']}:9835", "namespace": meta["namespace"],
            "pod": meta["name"], **target,
        }
        for workload, percent in percents.items():
            labels = {
                "workload_pod": workload, "workload_namespace": self.namespace, "uuid": GPU, "node": self.node,
                "scope": "process",
            }
            self.prometheus.series(PROCESS, labels | scraped, constant=percent, minutes=scene.MINUTES)


async def prepare(cluster: Cluster, prometheus: history.PrometheusWorld, **node: Any) -> Trusting:
    stage = Trusting(cluster, prometheus)
    await stage.prepare(**node)
    await cluster.make_namespace(stage.exporters)
    return stage


async def share(stage: Trusting, busy: float = 0.97) -> dict[str, str]:
    """Two tenants of one GPU that works; the names of their pods."""
    found = {}
    for name in ("victim", "forger"):
        (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", name, 1, 1))
        stage.measure(pod, busy, uuid=GPU)
        found[name] = pod["metadata"]["name"]
    return found


# ---- per-process zeros -----------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 47)
@pytest.mark.parametrize("gone", ["", "namespace"], ids=["as the operator scrapes it", "by its address alone"])
async def test_zeros_that_a_tenant_has_prometheus_scrape_acquit_nobody(
    cluster: Cluster, prometheus: history.PrometheusWorld, gone: str
) -> None:
    stage = await prepare(cluster, prometheus, gpus=1, replicas=4, sharing="time-slicing")
    pods = await share(stage)
    forger = (await stage.cluster.pods("app=forger"))[0]
    target = {"namespace": "", "pod": ""} if gone else {}
    stage.say_processes(forger, {pods["victim"]: 0.0, pods["forger"]: 90.0}, **target)
    await stage.begin()
    findings, missing = await stage.look(prometheus_url=prometheus.url)
    assert findings["victim"].reason is decision.Reason.SharedDevice
    assert [what for what in missing if what.startswith(names.UNTRUSTED_EXPORTER)] == [
        f"UntrustedExporter {stage.namespace}/{pods['forger']}"
    ]
    findings, _ = await stage.look(prometheus_url=prometheus.url, trust_metrics=True)
    assert findings["victim"].verdict is decision.Verdict.idle, "this is what the lie is for"


@pytest.mark.accepts("idle", 8)
@pytest.mark.parametrize("told_by", ["labels", "address"])
async def test_processes_shown_by_an_exporter_of_the_node_are_believed(
    cluster: Cluster, prometheus: history.PrometheusWorld, told_by: str
) -> None:
    stage = await prepare(cluster, prometheus, gpus=1, replicas=4, sharing="time-slicing")
    pods = await share(stage)
    exporter = await stage.exporter(stage.exporters)
    target = {"instance": f"{stage.node}:9835"} if told_by == "labels" else {"namespace": "", "pod": ""}
    stage.say_processes(exporter, {pods["victim"]: 97.0, pods["forger"]: 0.0}, **target)
    await stage.begin()
    findings, missing = await stage.look(prometheus_url=prometheus.url)
    assert {name: str(finding.verdict) for name, finding in findings.items()} == {"victim": "active", "forger": "idle"}
    assert not [what for what in missing if what.startswith(names.UNTRUSTED_EXPORTER)]


@pytest.mark.accepts("idle", 47)
async def test_a_tenants_page_about_a_neighbours_gpu_changes_nothing(
    cluster: Cluster, prometheus: history.PrometheusWorld
) -> None:
    """Zeros of the victim's GPU in DCGM's own words: left out where a believed exporter speaks, and named."""
    stage = await prepare(cluster, prometheus, gpus=4)
    (victim,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "victim", 1, 1))
    (forger,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "forger", 1, 1))
    uuid = stage.measure(victim, 0.97)
    stage.measure(forger)
    meta = forger["metadata"]
    forged = {
        "UUID": uuid, "exported_pod": victim["metadata"]["name"], "exported_namespace": stage.namespace, "job": "pods",
        "instance": f"{forger['status']['podIP']}:1", "namespace": meta["namespace"], "pod": meta["name"],
    }
    for name in ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"):
        prometheus.series(name, forged, constant=0.0, minutes=scene.MINUTES)
    await stage.begin()
    findings, missing = await stage.look(prometheus_url=prometheus.url)
    assert findings["victim"].reason is decision.Reason.Busy
    assert f"UntrustedExporter {meta['namespace']}/{meta['name']}" in missing


@contextlib.asynccontextmanager
async def serving(page: str) -> AsyncIterator[tuple[int, loopback.Loopback]]:
    async with loopback.serve(lambda _: web.Response(text=page)) as server:
        yield int(server.url.rpartition(":")[2]), server


def remembered(stage: Trusting, percents: dict[str, float], quiet_for: float) -> str:
    """A page of our exporter, which has watched for long."""
    lines = []
    for workload, percent in percents.items():
        whose = f'workload_pod="{workload}",workload_namespace="{stage.namespace}",uuid="{GPU}",scope="process"'
        last = time.time() - (0.0 if percent else quiet_for)
        for name, value in (
            (PROCESS, percent), ("gpu_idle_pod_gpu_last_active_timestamp_seconds", last),
            ("gpu_idle_pod_gpu_observed_since_timestamp_seconds", time.time() - 2 * HOUR),
        ):
            lines.append(f"{name}{{{whose}}} {value}\n")
    return "".join([*lines, f'gpu_idle_device_utilization_percent{{uuid="{GPU}"}} 97\n'])


@pytest.mark.accepts("idle", 47)
async def test_a_tenants_pod_that_calls_itself_an_exporter_is_not_read(
    cluster: Cluster, prometheus: history.PrometheusWorld
) -> None:
    stage = await prepare(cluster, prometheus, gpus=1, replicas=4, sharing="time-slicing")
    pods = await share(stage)
    truth = remembered(stage, {pods["victim"]: 97.0, pods["forger"]: 0.0}, HOUR)
    lie = remembered(stage, {pods["victim"]: 0.0, pods["forger"]: 97.0}, HOUR)
    async with serving(truth) as (true_port, _), serving(lie) as (false_port, forged):
        await stage.exporter(stage.namespace, "evil", false_port, "127.0.0.1")
        alone, missing = await stage.look(source="scrape")
        assert alone["victim"].verdict is decision.Verdict.unknown
        await stage.exporter(stage.exporters, "true", true_port, "127.0.0.1")
        beside, _ = await stage.look(source="scrape")
        assert forged.asked == []
    assert f"UntrustedExporter {stage.namespace}/evil" in missing
    assert (beside["victim"].verdict, beside["forger"].verdict) == (decision.Verdict.active, decision.Verdict.idle)


STAND_INS = {
    "scraped by the operator": (
        {"namespace": "evil", "pod": "evil-0"}, ("exported_namespace", "exported_pod"), decision.Reason.MissingGpuSeries
    ),
    "scraped by annotations": (
        {"kubernetes_namespace": "evil", "kubernetes_pod_name": "evil-0"}, ("namespace", "pod"),
        decision.Reason.MissingGpuSeries,
    ),
    "nobody can tell": ({}, ("namespace", "pod"), decision.Reason.Stale),
}


@pytest.mark.accepts("idle", 47)
@pytest.mark.parametrize("name", STAND_INS)
async def test_a_tenants_page_does_not_stand_in_for_an_exporter_that_died(
    cluster: Cluster, prometheus: history.PrometheusWorld, name: str
) -> None:
    target, (its_namespace, its_pod), reason = STAND_INS[name]
    stage = await prepare(cluster, prometheus, gpus=4)
    await stage.deployment("other", busy=0.9)
    (victim,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "victim", 1, 1))
    says = {
        "UUID": "GPU-v", "gpu": "3", "Hostname": stage.node, "modelName": "NVIDIA H100 80GB HBM3", "job": "pods",
        "instance": "10.6.6.6:9400", its_namespace: stage.namespace, its_pod: victim["metadata"]["name"], **target,
    }
    for metric in ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"):
        prometheus.series(metric, says, constant=0.0, minutes=scene.MINUTES)
    await stage.begin()
    findings, _ = await stage.look(prometheus_url=prometheus.url)
    assert (findings["victim"].verdict, findings["victim"].reason) == (decision.Verdict.unknown, reason)
    assert findings["other"].verdict is decision.Verdict.active


def forge(prometheus: history.PrometheusWorld, metric: str, minutes: float) -> None:
    """A tenant's page under the exporters' own job, scraped every five seconds, about a GPU that does not exist."""
    says = {
        "job": "nvidia-dcgm-exporter", "instance": "10.6.6.6:8000", "namespace": "evil", "pod": "evil-0",
        "exported_pod": "x", "exported_namespace": "y", "UUID": "GPU-none", "gpu": "0",
    }
    prometheus.series(metric, says, constant=0.0, minutes=minutes, every=5)


@pytest.mark.accepts("idle", 47)
async def test_a_tenants_fast_page_makes_no_window_thin(cluster: Cluster, prometheus: history.PrometheusWorld) -> None:
    stage = await prepare(cluster, prometheus, gpus=4)
    await stage.deployment("llm")
    forge(prometheus, "DCGM_FI_DEV_GPU_UTIL", scene.MINUTES)
    await stage.begin()
    findings, _ = await stage.look(prometheus_url=prometheus.url)
    assert findings["llm"].verdict is decision.Verdict.idle, findings["llm"].because


# ---- power -----------------------------------------------------------------------------------------------------------

CONTEXTS = {
    "a known model": ("NVIDIA H100 80GB HBM3", 100.0, decision.Verdict.idle),
    "an unknown model": ("NVIDIA Odd 9000", 100.0, decision.Verdict.idle),
    "a known model that works": ("NVIDIA H100 80GB HBM3", 400.0, decision.Verdict.unknown),
    "an unknown model that works": ("NVIDIA Odd 9000", 200.0, decision.Verdict.unknown),
}


@pytest.mark.accepts("idle", 46)
async def test_a_tenants_fast_page_hides_no_power_at_rest(
    cluster: Cluster, prometheus: history.PrometheusWorld
) -> None:
    stage = await prepare(cluster, prometheus, gpus=1)
    (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "llm", 1, 1))
    day = 25 * 60
    power = [60.0] * (day - 60) + [400.0] * 61
    stage.measure(pod, 0.0, power=power, model="NVIDIA Odd 9000", gpu_util=None, minutes=day, every=60)
    forge(prometheus, "DCGM_FI_DEV_POWER_USAGE", day)
    await stage.begin()
    findings, _ = await stage.look(prometheus_url=prometheus.url)
    assert findings["llm"].reason is decision.Reason.ExporterSuspect


@pytest.mark.accepts("idle", 46)
@pytest.mark.parametrize("name", CONTEXTS)
async def test_a_gpu_that_only_holds_a_context_is_idle(
    cluster: Cluster, prometheus: history.PrometheusWorld, name: str
) -> None:
    model, watts, verdict = CONTEXTS[name]
    stage = await prepare(cluster, prometheus, gpus=1)
    (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "llm", 1, 1))
    day = 25 * 60
    power = [34.0] * (day - 60) + [watts] * 61
    stage.measure(pod, 0.0, power=power, model=model, minutes=day, every=60)
    await stage.begin()
    findings, _ = await stage.look(prometheus_url=prometheus.url)
    assert findings["llm"].verdict is verdict, findings["llm"].because


# ---- instances -------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 44)
async def test_an_instance_whose_series_do_not_say_so_is_not_judged_by_utilisation(
    cluster: Cluster, prometheus: history.PrometheusWorld
) -> None:
    stage = await prepare(cluster, prometheus, gpus=0, mig={"1g.10gb": 7})
    (pod,) = await stage.run(
        clusters.replicated("apps/v1", "Deployment", "llm", 1, 1, resource="nvidia.com/mig-1g.10gb")
    )
    stage.measure(pod, gr_engine=None, gpu_util=0.0)
    await stage.begin()
    findings, _ = await stage.look(prometheus_url=prometheus.url)
    assert findings["llm"].reason is decision.Reason.MigUtilOnly
