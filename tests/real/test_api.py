"""The API of a real daemon, over a real API server and a real Prometheus: what it reads is what is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from fallow import names
from tests.real import product, provider


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


# ---- a leader goes while pages are open ------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 26)
async def test_one_look_ends_although_a_dashboard_is_asked_for(stage: product.Stage, tmp_path: pathlib.Path) -> None:
    await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    async with product.product_on(stage, tmp_path) as pruner:
        ended = await pruner.prune("--dashboard-port", str(product.free_port()))
        assert ended.code == 0, ended.said


class Page:
    """An open live page: what came, and under which number."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer, self.last = answer, 0

    async def next_cycle(self) -> Any:
        """The data of the next `cycle` event."""
        name = ""
        async with asyncio.timeout(60):
            async for raw in self._answer.content:
                field, _, value = raw.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    self.last = int(value)
                elif field == "data" and name == "cycle":
                    return json.loads(value)
        raise AssertionError("the page was closed")


@contextlib.asynccontextmanager
async def open_page(daemon: product.Daemon, last: int | None = None) -> AsyncIterator[Page]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.get(
        f"{daemon.url}/api/v1/events", headers=headers
    ) as answer:
        assert answer.status == 200
        yield Page(answer)


async def give_pod(stage: product.Stage, name: str, address: str) -> None:
    """As the kubelet writes where a replica is reached; nothing runs in it."""
    spec = {"containers": [{"name": "main", "image": "none"}], "nodeSelector": {"nobody": "fits"}}
    metadata = {"name": name, "namespace": stage.system}
    made = await stage.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    await stage.cluster.patch(made, {"status": {"podIP": address, "podIPs": [{"ip": address}]}}, part="status")


@pytest.mark.accepts("idle", 27)
async def test_a_leader_goes_and_open_pages_go_on(stage: product.Stage, tmp_path: pathlib.Path) -> None:
    busy = await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    async with product.product_on(stage, tmp_path) as pruner:
        port, hosts = product.free_port(), {"one": "127.0.0.2", "two": "127.0.0.3"}

        async def start(name: str) -> product.Daemon:
            address = f"{hosts[name]}:{port}"
            started = await pruner.start("--dashboard-addr", address, "-r", "scale-down", env={"POD_NAME": name})
            started.url = f"http://{address}"
            return started

        leader = await start("one")
        await leader.until(leader.is_leading)
        heir = await start("two")
        await heir.until(heir.is_ready)
        rows = (await read(heir, "/api/v1/workloads"))["items"]
        assert [(row["name"], row["verdict"]) for row in rows] == [("busy", "active")]  # a follower's own look
        page = await read(heir, "/api/v1/overview")
        assert (page["isLeader"], page["givenBackToday"]["gpuHours"]) == (False, None)
        for path in ("decisions", "savings", "digest", "states"):  # of what it did not write down it says so
            status, text = await heir.get(f"/api/v1/{path}")
            assert (status, json.loads(text)["error"]["code"]) == (503, "NotLeading"), text
            assert "one, which leads, cannot be asked" in text
        await give_pod(stage, "one", hosts["one"])
        for path in ("decisions", "states", f"workloads/{stage.namespace}/Deployment/busy/history"):
            theirs = await read(leader, f"/api/v1/{path}")
            assert (await read(heir, f"/api/v1/{path}")).keys() == theirs.keys()
        async with open_page(leader) as first, open_page(heir) as second, provider.browser_on(heir.url) as browser:
            await first.next_cycle()
            before = await second.next_cycle()
            asked = {"namespace": stage.namespace, "kind": "Deployment", "name": "busy", "hours": 4}
            status, _ = await browser.press("/api/v1/acks", {**asked, "email": "ada@example.com"})
            assert status == 201  # a follower writes it itself
            assert (await stage.now(busy))["metadata"]["annotations"][names.ACK_BY] == "unverified:ada@example.com"
            states = [(await read(each, "/api/v1/states?window=24h"))["total"] for each in (leader, heir)]
            assert states[0] == states[1]
            assert any(states[1])
            assert await leader.terminate() == 0
            await heir.until(heir.is_leading)
            after = await second.next_cycle()  # the same open page
            assert after["revision"] > before["revision"]
            async with open_page(heir, first.last) as moved:  # and the one that was open at who is gone
                assert (await moved.next_cycle())["counts"]["all"] == 1
        assert (await read(heir, "/api/v1/overview"))["isLeader"] is True
        (kept,) = (await read(heir, "/api/v1/acks"))["items"]
        assert kept["by"] == "unverified:ada@example.com"
