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


async def give_pod(stage: product.Stage, name: str, address: str) -> None:
    """As the kubelet writes where a replica is reached; nothing runs in it."""
    spec = {"containers": [{"name": "main", "image": "none"}], "nodeSelector": {"nobody": "fits"}}
    metadata = {"name": name, "namespace": stage.system}
    made = await stage.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    await stage.cluster.patch(made, {"status": {"podIP": address, "podIPs": [{"ip": address}]}}, part="status")


HOSTS, PROXY = {"one": "127.0.0.2", "two": "127.0.0.3"}, "127.0.0.9"


class Replicas:
    """Two of them at one port, each on an address of its own; people come by a proxy that stands elsewhere."""

    def __init__(self, stage: product.Stage, pruner: product.Product, folder: pathlib.Path) -> None:
        self._stage, self._pruner, self._port, self._key = stage, pruner, product.free_port(), folder / "session-key"
        self._key.write_text("k" * 32)

    async def start(self, name: str) -> product.Daemon:
        address = f"{HOSTS[name]}:{self._port}"
        started = await self._pruner.start(
            "--dashboard-addr", address, "--dashboard-auth", "proxy", "--trusted-proxy", f"{PROXY}/32",
            "--session-key-file", str(self._key), "-r", "scale-down", env={"POD_NAME": name},
        )
        started.url = f"http://{address}"
        await give_pod(self._stage, name, HOSTS[name])
        return started


@contextlib.asynccontextmanager
async def person_on(daemon: product.Daemon, name: str = "ada") -> AsyncIterator[provider.Browser]:
    """Somebody whom the proxy has logged in."""
    way = aiohttp.TCPConnector(local_addr=(PROXY, 0))
    async with aiohttp.ClientSession(
        connector=way, cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(None, sock_read=60),
        headers={"X-Forwarded-User": name},
    ) as http:
        yield provider.Browser(http, daemon.url)


def at_rest(page: dict[str, Any]) -> dict[str, Any]:
    """Without the instants of the asking: the two replicas may be asked in two seconds."""
    until = {"givenBackToday": {**page["givenBackToday"], "until": 0}} if "givenBackToday" in page else {}
    return {**page, **until, "now": 0}


@pytest.mark.accepts("idle", 27)
async def test_nobody_notices_which_replica_answers_nor_that_the_leader_goes(
    stage: product.Stage, tmp_path: pathlib.Path
) -> None:
    busy = await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    await stage.cluster.user("ada", [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]},
        {"apiGroups": [names.GROUP], "resources": [names.POLICY_PLURAL], "verbs": ["get", "update"]},
    ])
    async with product.product_on(stage, tmp_path) as pruner, contextlib.AsyncExitStack() as stack:
        both = Replicas(stage, pruner, tmp_path)
        leader = await both.start("one")
        await leader.until(leader.is_leading)
        heir = await both.start("two")
        await heir.until(heir.is_ready)
        there = await stack.enter_async_context(person_on(leader))
        here = await stack.enter_async_context(person_on(heir))
        for path in ("overview", "workloads", "gpus", "decisions", "savings", "states", "policies", "acks"):
            (status, page), (_, theirs) = await here.read(f"/api/v1/{path}"), await there.read(f"/api/v1/{path}")
            assert (status, page.keys()) == (200, theirs.keys()), path
            assert at_rest(page) == at_rest(theirs) or page["revision"] != theirs["revision"], path
        stranger = await heir.get("/api/v1/decisions")
        assert stranger[0] == 401

        live = Page(await stack.enter_async_context(here.http.get(f"{heir.url}/api/v1/events")))
        before = await live.next_cycle()
        asked = {"namespace": stage.namespace, "kind": "Deployment", "name": "busy", "hours": 4, "reason": "a run"}
        assert (await here.press("/api/v1/acks", asked))[0] == 201
        one = f"/api/v1/workloads/{stage.namespace}/Deployment/busy"
        assert (await here.press(f"{one}/resume", {}))[0] == 409  # it runs
        annotations = (await stage.now(busy))["metadata"]["annotations"]
        assert annotations[names.ACK_BY] == "api:ada"
        for person in (there, here):  # the same book, whoever opens it
            _, book = await person.read("/api/v1/decisions?limit=10")
            told = [(each["type"], each["actor"], each["source"]) for each in book["items"]]
            assert told[:2] == [("refused", "api:ada", "api"), ("kept", "api:ada", "api")]

        assert await leader.terminate() == 0
        with contextlib.suppress(aiohttp.ClientError, AssertionError):  # the page ends with who told it, or goes on
            await live.next_cycle()
        await heir.until(heir.is_leading)
        again = Page(await stack.enter_async_context(
            here.http.get(f"{heir.url}/api/v1/events", headers={"Last-Event-ID": str(live.last)})
        ))
        after = await again.next_cycle()
        assert (after["revision"] > before["revision"], after["counts"]["all"]) == (True, 1)
        status, page = await here.read("/api/v1/overview")
        assert (status, page["isLeader"]) == (200, True)
        _, kept = await here.read("/api/v1/acks")
        assert [each["by"] for each in kept["items"]] == ["api:ada"]
        assert (await here.press("/api/v1/freeze", {"forSeconds": 600, "reason": "after"}))[0] == 200
