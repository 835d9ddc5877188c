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
from tests.real import product
from tests.unit.clients import loopback

FOLDER = ROOT / "deploy" / "spot-watch"
MOST_MEMORY = 25 * 1024  # KiB
OURS = (names.SPOT_WARNING, names.SPOT_TERMINATION)


async def install(cluster: clusters.Cluster) -> str:
    """As shipped, in this test's namespace and under names of its own; the account's token."""
    own = f"{cluster.namespace}-spot"
    for place in ("10-role.yaml", "15-bounds.yaml"):
        text = (FOLDER / place).read_text().replace("gpu-pruner-system", cluster.namespace)
        for each in yaml.safe_load_all(text.replace("fallow-spot-watch", own)):
            await cluster.apply(each)
    asked = {"spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/{own}/token"
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


async def _later(cloud: loopback.Loopback, wanted: int) -> bool:
    return len(cloud.asked) >= wanted
