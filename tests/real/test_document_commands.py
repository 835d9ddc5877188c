"""What the documents say to install, switch on, upgrade and remove it, typed as it stands there on a control plane of
its own, whose nodes pretend to run pods.

The pages are typed one after the other, as somebody reads them who begins with nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from tests import ROOT, documents
from tests.real import build, world
from tests.real import cluster as clusters

NAMESPACE = "gpu-pruner-system"


async def type_in(cluster: clusters.Cluster, block: documents.Block) -> None:
    """In a shell at the top of the repository; every line of it must succeed."""
    path = f"{build.need('kubectl').parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", block.text.replace("NAMESPACE", cluster.namespace), cwd=ROOT,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, f"{block}:\n{block.text}\n{said.decode()}"


async def test_one_installs_switches_on_upgrades_and_removes_as_the_pages_say(
    start_control_plane: Callable[[world.Options], Awaitable[clusters.Cluster]],
) -> None:
    cluster = await start_control_plane(world.PLAIN)
    await cluster.gpu_node("gpu-1")
    blocks = [block for page in documents.INSTALLING for block in documents.blocks(ROOT / page)]
    *before, last = [block for block in blocks if block.is_foreign and not block.why]
    for block in before:
        await type_in(cluster, block)
    assert await cluster.get("v1", "ConfigMap", "gpu-pruner-acting", namespace=NAMESPACE)
    assert await cluster.get("apps/v1", "Deployment", "gpu-pruner", namespace=NAMESPACE)
    await type_in(cluster, last)
    assert "delete" in last.text
    left = await cluster.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")
    assert [each["metadata"]["name"] for each in left["items"] if "gpu-pruner" in each["metadata"]["name"]] == []
