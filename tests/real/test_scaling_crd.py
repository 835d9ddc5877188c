"""AutoscalingPolicy on a real API server: defaults, what it refuses and how, the columns that people see."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import pytest

from fallow.model.policies import scaling_crd
from tests import bad_scaling
from tests.real import build
from tests.real import cluster as clusters


@pytest.fixture
async def ready(cluster: clusters.Cluster) -> clusters.Cluster:
    await cluster.apply_crds(scaling_crd.define())
    return cluster


def written(cluster: clusters.Cluster, spec: dict[str, Any]) -> dict[str, Any]:
    version, kind = "gpuautoscaler.io/v1alpha1", "AutoscalingPolicy"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": cluster.namespace}, "spec": spec}


@pytest.mark.accepts("scaling", 23)
async def test_the_api_server_refuses_what_is_wrong_and_names_the_field(ready: clusters.Cluster) -> None:
    unrefused, unnamed = [], {}
    for name, (spec, field) in bad_scaling.BAD.items():
        try:
            await ready.create(written(ready, spec))
        except clusters.Refused as refused:
            causes = [cause.get("field") for cause in refused.status.get("details", {}).get("causes", [])]
            if field not in causes:
                unnamed[name] = str(refused)
        else:
            unrefused.append(name)
    assert (unrefused, unnamed) == ([], {})


async def test_the_api_server_takes_what_is_right_and_fills_in_the_same_defaults(ready: clusters.Cluster) -> None:
    for spec in bad_scaling.GOOD.values():
        made = await ready.create(written(ready, spec))
        read = scaling_crd.parse(made)
        assert read.invalid == ()
        assert scaling_crd.parse({**made, "spec": spec}) == read  # ours are the server's
        await ready.delete(made)


async def test_columns_and_short_name(ready: clusters.Cluster) -> None:
    made = await ready.create(written(ready, bad_scaling.policy()))
    condition = {
        "type": "Ready", "status": "True", "reason": "Fine", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-11-17T12:00:00Z",
    }
    status = {
        "driver": "karpenter", "currentNodes": 3, "desiredNodes": 4, "pendingPods": 9, "averageGPUUtilization": 0.5,
        "conditions": [condition],
    }
    await ready.patch(made, {"status": status}, part="status")
    line = [str(build.need("kubectl")), "--kubeconfig", str(ready.kubeconfig), "get", "asp", ready.namespace]
    done = await asyncio.to_thread(subprocess.run, line, capture_output=True, check=True, timeout=60)
    head, row = (text.split() for text in done.stdout.decode().splitlines())
    assert head == ["NAME", "PROVIDER", "DRIVER", "NODES", "DESIRED", "PENDING", "UTIL", "READY", "AGE"]
    assert row[:8] == [ready.namespace, "aws", "karpenter", "3", "4", "9", "0.5", "True"]
