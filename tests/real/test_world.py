"""The world the other tests stand on: is it real, quick, and does it keep what a test says?"""

from __future__ import annotations

import asyncio
import datetime
import pathlib
import subprocess
import time
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests.real import build, crds, faults, history, world
from tests.real import cluster as clusters

Start = Callable[[world.Options], Awaitable[clusters.Cluster]]
READ_DEPLOYMENTS = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}]


async def test_gpu_pods_are_scheduled_and_run(cluster: clusters.Cluster) -> None:
    await cluster.gpu_node("gpu-1", gpus=4)
    await cluster.deployment("llm", replicas=2, gpus=2)
    assert {pod["spec"]["nodeName"] for pod in await cluster.pods("app=llm")} == {"gpu-1"}
    await cluster.apply(clusters.replicated("apps/v1", "Deployment", "more", 1, 1))
    await cluster.wait_until(lambda: cluster.events("FailedScheduling"))  # the node's four are taken


async def test_the_next_test_finds_no_trace(cluster: clusters.Cluster) -> None:
    assert (await cluster.request("GET", "/api/v1/nodes"))["items"] == []
    assert (await cluster.request("GET", "/api/v1/pods"))["items"] == []


async def test_an_aged_pod_stays_old(cluster: clusters.Cluster) -> None:
    await cluster.gpu_node("gpu-1")
    await cluster.deployment("llm", replicas=1)
    (aged,) = await cluster.age("app=llm", minutes=90)
    started = datetime.datetime.fromisoformat(aged["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    assert datetime.datetime.now(datetime.UTC) - started >= datetime.timedelta(minutes=90)
    # Gives kwok a reason to look at it again.
    await cluster.patch(aged, {"metadata": {"annotations": {"touched": "yes"}}})
    await cluster.deployment("other", replicas=1)
    (later,) = await cluster.pods("app=llm")
    assert later["status"] == aged["status"]


@pytest.mark.parametrize(
    ("life", "phase", "ready"),
    [("starting", "Pending", False), ("unready", "Running", False), ("finishes", "Succeeded", False)],
)
async def test_pods_may_have_other_lives(cluster: clusters.Cluster, life: str, phase: str, ready: bool) -> None:
    await cluster.gpu_node("gpu-1")
    await cluster.apply(clusters.job("train", annotations={"fallow.test/life": life}))

    async def settled() -> bool:
        return any(
            pod["spec"].get("nodeName") and pod["status"]["phase"] == phase for pod in await cluster.pods("app=train")
        )

    await cluster.wait_until(settled)
    assert bool(await cluster.ready_pods("app=train", 1)) is ready


async def test_a_job_keeps_running_and_a_broken_node_stays_broken(cluster: clusters.Cluster) -> None:
    await cluster.gpu_node("gpu-1", replicas=4, sharing="mps", mig={"1g.10gb": 7})
    await cluster.run(clusters.job("train", resource="nvidia.com/mig-1g.10gb"), pods=1)
    await cluster.break_node("gpu-1")
    await cluster.gpu_node("gpu-2")
    node = await cluster.get("v1", "Node", "gpu-1")
    assert [one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"] == ["Unknown"]
    assert node["metadata"]["labels"]["nvidia.com/gpu.replicas"] == "4"


async def test_others_have_their_own_rights_and_are_counted(cluster: clusters.Cluster) -> None:
    robot = await cluster.service_account("robot", READ_DEPLOYMENTS)
    ada = await cluster.user("ada")
    assert [await _kubectl(robot, "get", "deployments/x"), await _kubectl(ada, "get", "deployments/x")] == [
        "NotFound", "Forbidden"
    ]
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments/x"
    by_robot = cluster.requests(f"system:serviceaccount:{cluster.namespace}:robot", contains=path)
    assert [(asked.verb, asked.code) for asked in by_robot] == [("get", 404)]
    assert [asked.code for asked in cluster.requests("ada", verbs=["get"], contains=path)] == [403]
    assert cluster.requests("ada", verbs=["patch", "create", "delete"]) == []


async def test_foreign_kinds_refuse_fields_they_do_not_have(cluster: clusters.Cluster) -> None:
    suspend = {"spec": {"suspend": True}}
    service = {
        "apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "serve"}, "spec": {"serveConfigV2": "x"}
    }
    await cluster.apply_crds(crds.OLD_RAY_SERVICE)
    made = await cluster.apply(service)
    with pytest.raises(clusters.Refused, match="unknown field") as refused:
        await cluster.patch(made, suspend, fieldValidation="Strict")
    assert refused.value.code in (400, 422)
    await cluster.apply_crds(crds.KINDS["RayService"])
    assert (await cluster.patch(made, suspend, fieldValidation="Strict"))["spec"]["suspend"] is True


async def test_every_definition_is_accepted(cluster: clusters.Cluster) -> None:
    await cluster.apply_crds(*crds.KINDS.values())
    scalable = {"apiVersion": "example.com/v1", "kind": "Scalable", "metadata": {"name": "thing"}, "spec": {"size": 3}}
    made = await cluster.apply(scalable)
    await cluster.patch(made, {"spec": {"replicas": 0}}, part="scale")
    assert (await cluster.refresh(made))["spec"] == {"size": 0}


async def test_somebody_may_be_quicker_than_a_patch(cluster: clusters.Cluster) -> None:
    made = await cluster.apply(clusters.replicated("apps/v1", "Deployment", "llm", 0, 1))
    tls = cluster.plane.admin_tls()
    body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"replicas": 1}}
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments/llm"
    async with faults.FaultyProxy(cluster.plane.url, tls=tls) as proxy, aiohttp.ClientSession() as http:
        touch = cluster.patch(made, {"metadata": {"annotations": {"a": "b"}}})
        proxy.fault = faults.only("PATCH", faults.meanwhile(lambda: touch), times=1)
        async with http.patch(
            proxy.url + path, json=body, headers={"Content-Type": "application/merge-patch+json"}
        ) as answer:
            assert answer.status == 409


async def test_another_control_plane_may_have_other_options(start_control_plane: Start) -> None:
    other = await start_control_plane(world.Options(feature_gates="HPAScaleToZero=true"))
    metric = {"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}
    spec = {"minReplicas": 0, "maxReplicas": 2, "scaleTargetRef": target, "metrics": [metric]}
    made = await other.apply(
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": spec}
    )
    assert made["spec"]["minReplicas"] == 0


async def test_a_window_of_history_is_full_and_fresh(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm-0", namespace="ml", gr_engine=0.0, gpu_util=[0.0] * 100 + [80.0] * 21)
    prometheus.dcgm_gpu("gpu-1", 1, pod="llm-1", namespace="ml", honor_labels=True, mig=(7, "1g.10gb"), gpu_util=None)
    await prometheus.start()
    now = time.time()
    counts = await prometheus.query("count_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[30m])", at=now)
    assert [int(one["value"][1]) in (60, 61) for one in counts] == [True, True]
    ages = await prometheus.query("time() - timestamp(DCGM_FI_PROF_GR_ENGINE_ACTIVE)", at=now)
    assert all(0 <= float(one["value"][1]) < 30 for one in ages)
    assert {one["metric"].get("exported_pod") or one["metric"]["pod"] for one in counts} == {"llm-0", "llm-1"}
    (peak,) = await prometheus.query('max_over_time(DCGM_FI_DEV_GPU_UTIL{exported_pod="llm-0"}[5m])', at=now)
    (before,) = await prometheus.query("max_over_time(DCGM_FI_DEV_GPU_UTIL[30m] offset 11m)", at=now)
    assert (peak["value"][1], before["value"][1]) == ("80", "0")


async def test_prometheus_can_die_and_come_back(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0)
    await prometheus.start()
    await prometheus.kill()
    with pytest.raises(aiohttp.ClientError):
        await prometheus.query("up")
    await prometheus.revive()
    assert [one["value"][1] for one in await prometheus.query("up")] == ["1"]


FAULTS = {
    "status": (faults.status(500), 500, "out of order"),
    "html": (faults.html, 200, "<html>"),
    "empty": (faults.empty, 200, '"result": []'),
    "warnings": (faults.warnings, 200, "a store did not answer"),
    "partial": (faults.partial, 200, '"isPartial": true'),
    "demand": (faults.demand("Bearer right"), 401, "Unauthorized"),
    "other requests": (faults.only("no such words", faults.status(500)), 200, '"nvidia-dcgm-exporter"'),
    "none": (None, 200, '"nvidia-dcgm-exporter"'),
}


async def test_the_proxy_does_what_it_says(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0)
    await prometheus.start()
    async with faults.FaultyProxy(prometheus.url, prefix="/tenant") as proxy:
        for name, (fault, code, words) in FAULTS.items():
            proxy.fault = fault
            answered, text = await _ask(proxy, "up")
            assert (answered, words in text) == (code, True), f"{name}: {text}"
        assert len(proxy.seen) == len(FAULTS)


async def test_the_proxy_breaks_delays_and_lies_about_the_time(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0)
    await prometheus.start()
    async with faults.FaultyProxy(prometheus.url) as proxy:
        proxy.fault = faults.cut
        with pytest.raises(aiohttp.ClientError):
            await _ask(proxy, "up")
        proxy.fault = faults.slow(30)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_ask(proxy, "up"), 0.2)
        proxy.fault = faults.ahead(3600)
        assert f"{int(prometheus.now) + 3600}" in (await _ask(proxy, "timestamp(up)"))[1]


async def _ask(proxy: faults.FaultyProxy, promql: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{proxy.url}/api/v1/query", data={"query": promql}) as answer,
    ):
        return answer.status, await answer.text()


async def _kubectl(kubeconfig: pathlib.Path, *arguments: str) -> str:
    """The reason in the error that kubectl prints."""
    command = [str(build.find("kubectl")), "--kubeconfig", str(kubeconfig), *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    return str(done.stderr).partition("(")[2].partition(")")[0]
