"""The API of a real daemon, over a real API server and a real Prometheus: what it reads is what is there."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from fallow import names
from tests.real import cluster as clusters
from tests.real import history, product


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> product.Stage:
    made = product.Stage(cluster, prometheus)
    await made.build()
    return made


async def read(daemon: product.Daemon, path: str) -> Any:
    status, text = await daemon.get(path)
    assert status == 200, text
    return json.loads(text)


async def test_rows_field_and_timeline_are_of_the_real_cluster_and_follow_it(
    stage: product.Stage, tmp_path: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet")
    await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    async with product.product_on(stage, tmp_path) as pruner:
        address = f"127.0.0.1:{product.free_port()}"
        daemon = await pruner.start("--dashboard-addr", address, "-r", "dry-run")
        daemon.url = f"http://{address}"
        await daemon.until(daemon.is_ready)
        page = await read(daemon, "/api/v1/workloads?sort=name")
        rows = {row["name"]: row for row in page["items"]}
        assert {name: row["verdict"] for name, row in rows.items()} == {"busy": "active", "quiet": "idle"}
        gpus = (await read(daemon, "/api/v1/overview"))["gpus"]
        assert gpus["total"] == pytest.approx(sum(value for name, value in gpus.items() if name != "total"))
        field = await read(daemon, "/api/v1/gpus")
        nodes = [node for pool in field["pools"] for node in pool["nodes"]]
        assert sum(len(node["gpus"]) for node in nodes) == gpus["total"]
        path = f"/api/v1/workloads/{stage.namespace}/Deployment/busy"
        line = (await read(daemon, f"{path}/timeline?window=3h"))["gpus"][0]
        assert max(value for value in line["values"] if value is not None) == pytest.approx(0.5)
        assert None in line["values"]  # before it was measured
        assert (await read(daemon, f"{path}/explain"))["row"]["state"] == "busy"

        await stage.cluster.patch(quiet, {"metadata": {"annotations": {
            names.ACK_UNTIL: "2099-01-01T00:00:00Z", names.ACK_BY: "user:ana",
        }}})

        async def is_newer() -> bool:
            fresh = await read(daemon, "/api/v1/workloads")
            return bool(fresh["revision"] > page["revision"])

        await daemon.until(is_newer)
        assert pruner.writes() == []
