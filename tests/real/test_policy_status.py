"""The daemon tells in the status of an IdlePolicy what it found for it; a condition keeps its time while it holds."""

from __future__ import annotations

import pathlib

from fallow.model.policies import idle_crd
from tests.real import cluster as clusters
from tests.real import history, product


async def test_the_status_tells_what_was_found(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, tmp_path: pathlib.Path
) -> None:
    stage = product.Stage(cluster, prometheus)
    await stage.build()
    await cluster.apply_crds(idle_crd.define())
    await stage.workload("quiet", replicas=2)
    await prometheus.start()
    made = await cluster.apply({
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "IdlePolicy", "metadata": {"name": cluster.namespace},
        "spec": {"namespaces": [cluster.namespace], "windows": {"goneIdle": "20m"}},
    })
    async with product.product_on(stage, tmp_path) as pruner:
        daemon = await pruner.start()
        await daemon.more_cycles(2)
        first = (await cluster.refresh(made))["status"]
        await daemon.more_cycles(2)
    last = (await cluster.refresh(made))["status"]
    assert (first["matchedWorkloads"], first["idleWorkloads"], first["idleGPUs"], first["pausedWorkloads"]) == (
        1, 1, 2, 0
    )
    assert {one["type"]: one["status"] for one in last["conditions"]} == {
        "Ready": "True", "DataHealthy": "True", "Frozen": "False"
    }
    assert [one["lastTransitionTime"] for one in first["conditions"]] == [
        one["lastTransitionTime"] for one in last["conditions"]
    ]
    assert first["lastEvaluationTime"] < last["lastEvaluationTime"]
