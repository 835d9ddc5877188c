"""The watch of a spot node as it is shipped: its process, with the shipped rights and bounds, on a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from fallow import names
from fallow.model.units import parse_instant, rfc3339
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import product, shipped
from tests.unit.clients import loopback

FOLDER = ROOT / "deploy" / "spot-watch"
MOST_MEMORY = 25 * 1024  # KiB
OURS = (names.SPOT_WARNING, names.SPOT_TERMINATION)


async def place(cluster: clusters.Cluster, *files: str) -> str:
    """As shipped, under names of this test's own; its namespace, account and DaemonSet have the same one."""
    own = f"{cluster.namespace}-spot"
    for file in files:
        for each in yaml.safe_load_all((FOLDER / file).read_text().replace("fallow-spot-watch", own)):
            if each:
                await cluster.apply(each)
    return own


async def install(cluster: clusters.Cluster) -> str:
    """The account's token."""
    own = await place(cluster, "00-namespace.yaml", "10-role.yaml", "15-bounds.yaml")
    asked = {"spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{own}/serviceaccounts/{own}/token"
    token: str = (await cluster.request("POST", path, asked))["status"]["token"]
    return token


async def remove(cluster: clusters.Cluster) -> None:
    for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
        version = "admissionregistration.k8s.io/v1"
        await cluster.delete(await cluster.get(version, kind, f"{cluster.namespace}-spot"))


def read_peak(pid: int) -> int:
    """The most memory that it ever had, in KiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    print(f"spot-watch: at most {found[1]} KiB")
    return int(found[1])


async def patch(cluster: clusters.Cluster, token: str, body: Any) -> int:
    """As whoever stole the watch's token."""
    trust = ssl.create_default_context(cafile=str(cluster.plane.ca))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    async with aiohttp.ClientSession() as session, session.patch(
        f"{cluster.plane.url}/api/v1/nodes/gpu-1", data=json.dumps(body), headers=headers, ssl=trust
    ) as got:
        return got.status


@pytest.mark.accepts("scaling", 19)
async def test_the_shipped_watch_notes_an_interruption_and_can_do_nothing_else(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    said: dict[str, Any] = {"status": 500}

    def answer(asked: loopback.Asked) -> web.Response:
        if asked.method == "PUT":
            return web.Response(text="tok")
        if asked.path.endswith("instance-action"):
            return web.json_response(said.get("body"), status=said["status"])
        return web.Response(status=404)

    await cluster.gpu_node("gpu-1", gpus=1)
    token = await install(cluster)
    (tmp_path / "token").write_text(token)
    port = product.free_port()
    async with loopback.serve(answer) as cloud, aiohttp.ClientSession() as session:
        process = await asyncio.create_subprocess_exec(
            str(product.BIN / "fallow"), "spot-watch", "--node-name", "gpu-1", "--interval", "1s",
            *("--aws-metadata-url", cloud.url, "--gcp-metadata-url", cloud.url, "--azure-metadata-url", cloud.url),
            *("--metrics-addr", f"127.0.0.1:{port}", "--server", cluster.plane.url),
            *("--token-file", str(tmp_path / "token"), "--certificate-authority", str(cluster.plane.ca)),
            env={"PATH": os.environ["PATH"]},
        )

        async def up() -> str | None:
            try:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as got:
                    found = re.search(r'^gpu_autoscaler_spot_watch_up\{node="gpu-1"\} ([01])$', await got.text(), re.M)
                    return found[1] if found else None
            except aiohttp.ClientError:
                return None

        async def is_up(wanted: str) -> bool:
            return await up() == wanted

        async def notes() -> dict[str, str]:
            node = await cluster.get("v1", "Node", "gpu-1")
            kept = node["metadata"].get("annotations", {})
            return {key: value for key, value in kept.items() if key in OURS}

        try:
            await cluster.wait_until(lambda: is_up("0"), 60)  # the cloud answers 500
            asked = len(cloud.asked)
            await cluster.wait_until(lambda: _later(cloud, asked + 4), 30)
            assert await is_up("0")
            assert await notes() == {}
            said.update(status=404)
            await cluster.wait_until(lambda: is_up("1"), 30)
            ends = rfc3339(time.time() + 120)
            said.update(status=200, body={"action": "terminate", "time": ends})
            found = await cluster.wait_until(notes, 30)
            assert set(found) == set(OURS)
            assert found[names.SPOT_TERMINATION] == ends
            assert abs(parse_instant(found[names.SPOT_WARNING]) - time.time()) < 30
            version = (await cluster.get("v1", "Node", "gpu-1"))["metadata"]["annotations"]
            asked = len(cloud.asked)
            await cluster.wait_until(lambda: _later(cloud, asked + 4), 30)
            assert await is_up("1")
            assert (await cluster.get("v1", "Node", "gpu-1"))["metadata"]["annotations"] == version
            assert read_peak(process.pid) < MOST_MEMORY
            user = f"system:serviceaccount:{cluster.namespace}-spot:{cluster.namespace}-spot"
            rights = shipped.granted(shipped.rules("spot-watch/10-role.yaml"))
            assert shipped.used(cluster, user) == rights, "none is missing, none unused"
        finally:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 30) == 0

    assert await patch(cluster, token, {"metadata": {"annotations": {names.SPOT_WARNING: rfc3339(0)}}}) == 200
    for body in (
        {"spec": {"unschedulable": True}}, {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}}, {"metadata": {"annotations": {names.SPOT_TERMINATION: None}}},
    ):
        assert await patch(cluster, token, body) in (403, 422)
    await remove(cluster)


async def test_its_pod_is_let_in_and_runs_on_spot_nodes_alone(cluster: clusters.Cluster) -> None:
    """At the Pod Security level of its namespace; at `restricted`, that of the daemon's, it is not."""
    node = await cluster.gpu_node(f"{cluster.namespace}-taken", labels={"karpenter.sh/capacity-type": "spot"})
    await cluster.gpu_node(f"{cluster.namespace}-stays", labels={"karpenter.sh/capacity-type": "on-demand"})
    own = await place(cluster, *sorted(path.name for path in FOLDER.glob("[0-9]*.yaml")))
    (pod,) = await cluster.wait_until(lambda: cluster.ready_pods(f"app.kubernetes.io/name={own}", 1, own))
    assert pod["spec"]["nodeName"] == node["metadata"]["name"]
    meta = {"name": "elsewhere", "namespace": f"{cluster.namespace}-home"}
    await cluster.make_namespace(meta["namespace"], {"pod-security.kubernetes.io/enforce": "restricted"})
    spec = {key: pod["spec"][key] for key in ("hostNetwork", "containers", "securityContext")}
    plain = {**spec, "containers": [{**spec["containers"][0], "volumeMounts": []}]}
    with pytest.raises(clusters.Refused, match=r"violates PodSecurity .*hostNetwork=true.*hostPort"):
        await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": plain})


async def _later(cloud: loopback.Loopback, wanted: int) -> bool:
    return len(cloud.asked) >= wanted
