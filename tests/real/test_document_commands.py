"""What the documents say to install, switch on, upgrade and remove it, typed as it stands there on a control plane of
its own, whose nodes pretend to run pods.

The pages are typed one after the other, as somebody reads them who begins with nothing; that on several clusters where
fallow is installed by its chart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pathlib
from collections.abc import Awaitable, Callable

from tests import ROOT, documents
from tests.real import build, helm, world
from tests.real import cluster as clusters

NAMESPACE = "gpu-pruner-system"


async def type_in(cluster: clusters.Cluster, block: documents.Block, folder: pathlib.Path = ROOT) -> None:
    """In a shell at the top of the repository; every line of it must succeed in time, else it tells how far it came."""
    path = f"{build.need('kubectl').parent}:{build.need('helm').parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "timeout", "120", "bash", "-euxo", "pipefail", "-c", block.text.replace("NAMESPACE", cluster.namespace),
        cwd=folder, env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, f"{block}:\n{block.text}\n{said.decode()}"


async def nudge(cluster: clusters.Cluster) -> None:
    """An API server that cannot list what a definition defines of which it was told seconds ago ("storage is
    (re)initializing") does not try again to remove it before it changes: in life nobody removes so soon."""
    place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for nudged in itertools.count():
        await asyncio.sleep(2)
        for each in (await cluster.request("GET", place))["items"]:
            said = {one.get("reason") for one in each.get("status", {}).get("conditions", ())}
            if "InstanceDeletionFailed" in said:
                change = {"metadata": {"annotations": {"nudged": str(nudged)}}}
                with contextlib.suppress(clusters.Refused):  # it is gone by now
                    path = f"{place}/{each['metadata']['name']}"
                    await cluster.request("PATCH", path, change, "application/merge-patch+json")


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
    nudging = asyncio.create_task(nudge(cluster))
    await type_in(cluster, last)
    nudging.cancel()
    assert "delete" in last.text
    left = await cluster.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")
    assert [each["metadata"]["name"] for each in left["items"] if "gpu-pruner" in each["metadata"]["name"]] == []


async def test_one_shows_another_cluster_as_the_page_says(
    start_control_plane: Callable[[world.Options], Awaitable[clusters.Cluster]], tmp_path: pathlib.Path
) -> None:
    """Both halves on one cluster: the account that looks, and the dashboard that shows."""
    cluster = await start_control_plane(world.PLAIN)
    here = tmp_path / "checkout"  # a token is written there
    here.mkdir()
    (here / "charts").symlink_to(ROOT / "charts")
    installing = helm.Helm(cluster.kubeconfig, tmp_path)
    await installing.run("install", "fallow", str(helm.CHART), "--namespace", NAMESPACE, "--create-namespace")
    for block in documents.blocks(ROOT / documents.SEVERAL):
        await type_in(cluster, block, here)

    assert (here / "west.token").read_text().count(".") == 2
    assert await may(cluster, "get", "gpuautoscaler.io", "idlepolicies")
    for verb, group, resource in (("update", "gpuautoscaler.io", "idlepolicies"), ("patch", "apps", "deployments"),
                                  ("get", "", "pods"), ("get", "", "secrets")):
        assert not await may(cluster, verb, group, resource), "the page says that it changes nothing"
    deployment = await cluster.get("apps/v1", "Deployment", "gpu-pruner", namespace=NAMESPACE)
    pod = deployment["spec"]["template"]["spec"]
    [said] = [each for each in pod["containers"][0]["args"] if each.startswith("--peer=")]
    assert said == "--peer=west=https://fallow.west.example.com"
    assert "fallow-peer-west" in str(pod["volumes"])


async def may(cluster: clusters.Cluster, verb: str, group: str, resource: str) -> bool:
    """The account of the page, by the API server."""
    spec = {"user": "system:serviceaccount:viewers:fallow-viewer",
            "resourceAttributes": {"verb": verb, "group": group, "resource": resource}}
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", asked)
    return bool(answer["status"]["allowed"])
