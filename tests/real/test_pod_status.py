"""`gpu-autoscaler status` as it is typed, by the real Prometheus: what every GPU in a pod's hands does now."""

from __future__ import annotations

import json

from fallow.doors.cli import pod_status
from tests.real import cluster as clusters
from tests.real import history, scene


async def test_every_gpu_of_every_pod_and_what_is_not_known_is_no_0(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld
) -> None:
    stage = await scene.Scene(cluster, prometheus).prepare()
    for name, busy, more in (
        ("busy", 0.9, {"DCGM_FI_DEV_FB_FREE": 40_000.0, "DCGM_FI_DEV_GPU_TEMP": 61.0}), ("bare", 0.0, {}),
    ):
        (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", name, 1, 1))
        stage.measure(pod, busy, more=more)
    await stage.run(clusters.replicated("apps/v1", "Deployment", "dark", 1, 1))
    await stage.begin()
    here = ("status", "-n", stage.namespace)
    page = json.loads((await stage.type("gpu-autoscaler", *here, "-o", "json")).out)
    rows = {row["pod"].split("-")[0]: row for row in page["rows"]}
    busy, bare, dark = rows["busy"], rows["bare"], rows["dark"]
    assert (busy["node"], busy["gpu"], busy["gpuUtil"]) == (stage.node, "0", 0.9)
    assert (busy["memUtil"], busy["memUsedMib"], busy["powerWatts"], busy["tempCelsius"]) == (0.5, 40_000, 72, 61)
    assert (bare["gpuUtil"], bare["memUtil"], bare["memUsedMib"], bare["tempCelsius"]) == (0, None, 40_000, None)
    assert (dark["gpu"], dark["gpuUtil"], dark["powerWatts"]) == (None, None, None)
    assert page["summary"]["gpus"] >= 16
    assert page["summary"]["busy"] >= 1
    shown = (await stage.type("fallow", *here, "--pods")).out
    assert shown.split()[: len(pod_status.COLUMNS)] == list(pod_status.COLUMNS)
    line = next(each for each in shown.splitlines() if dark["pod"] in each).split()
    assert line[3:] == ["-"] * 6
    assert "jobs per GPU" in shown
    gone = await stage.type("gpu-autoscaler", "status", PROMETHEUS_URL="", code=4)
    assert "--prometheus-url" in gone.err
    away = await stage.type("gpu-autoscaler", "status", PROMETHEUS_URL="http://127.0.0.1:1", code=1)
    assert "Prometheus at http://127.0.0.1:1 cannot be reached" in away.err
    assert "is the cluster up" not in away.err, "it is, and it was asked first"
