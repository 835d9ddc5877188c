"""The table of docs/spec/idle.md section 13, row by row: what each path answers, by its fields. Writes with their codes
are in test_writes.py, who may in test_auth.py and test_oidc.py, live pages in test_events.py, the relay in
test_relay.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.doors.api.scene import open_scene
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow.doors.api import endpoints, writes
from fallow.doors.api.refusals import Denied
from fallow.settings.serving import AuthMode

LINE = {"name", "namespace", "kind", "gpu_model", "idle_duration"}
ONE = "/api/v1/workloads/ml/Deployment/quiet"
EXPLAINED = {
    "workload", "verdict", "reasons", "skips", "policy", "idleSince", "atLeast", "windowSeconds", "coverage", "gpus",
    "owner", "nextAction", "patch", "cost",
}


async def read(path: str) -> Any:
    async with serving(make_world(), MANDATE) as client:
        return await client.get(path)


async def test_api_status() -> None:
    body = await read("/api/status")
    assert set(body) == {"idle_workloads", "total_idle_gpus", "total_pods_checked", "last_update"}
    assert body["idle_workloads"]
    assert {frozenset(row) for row in body["idle_workloads"]} == {frozenset(LINE)}
    assert all(row["idle_duration"] is None or row["idle_duration"] > 0 for row in body["idle_workloads"])


async def test_api_v1_summary() -> None:
    body = await read("/api/v1/summary")
    assert set(body) == {"scale_downs", "idle_workloads", "pods_checked", "updated_at"}
    assert (set(body["scale_downs"]), set(body["idle_workloads"])) == ({"lifetime"}, {"current"})


@pytest.mark.parametrize("window", ["1h", "7d", "30d", ""])
async def test_api_v1_stats(window: str) -> None:
    body = await read(f"/api/v1/stats?window={window}" if window else "/api/v1/stats")
    assert set(body) == {
        "scale_downs", "idle_workloads", "prometheus_available", "pods_checked", "updated_at",
    }
    assert set(body["scale_downs"]) == {"lifetime", "in_window", "window"}
    assert body["scale_downs"]["window"] == (window or "7d")


async def test_api_v1_clusters() -> None:
    assert await read("/api/v1/clusters") == [{"name": "default", "honor_labels": False}]


@pytest.mark.parametrize("verdict", ["idle", "active", "unknown"])
async def test_api_v1_workloads(verdict: str) -> None:
    async with serving(make_world(), MANDATE) as client:
        body = await client.get(f"/api/v1/workloads?verdict={verdict}&namespace=*&limit=1")
        seen = [row["verdict"] for row in body["items"]]
        while body["next"]:
            body = await client.get(f"/api/v1/workloads?verdict={verdict}&namespace=*&limit=1&cursor={body['next']}")
            seen += [row["verdict"] for row in body["items"]]
    assert set(seen) == {verdict}
    assert len(seen) == body["total"]


async def test_api_v1_workloads_one_and_explain_and_history() -> None:
    async with serving(make_world(), MANDATE) as client:
        row, why = await client.get(ONE), await client.get(f"{ONE}/explain")
        assert (row["name"], why["workload"]["name"]) == ("quiet", "quiet")
        assert set(why) >= EXPLAINED
        assert set(why["gpus"][0]) >= {"uuid", "node", "pod", "verdict", "reason", "signals"}
        assert set(why["gpus"][0]["signals"]["gr_engine"]) >= {"max", "samples", "newest"}
        assert (why["nextAction"] is not None) or why["skips"]
        assert (await client.get(f"{ONE}/history")) == {"items": []}
        assert (await client.ask("/api/v1/workloads/ml/Deployment/none"))[0] == 404


async def test_what_is_not_paused_says_why_not() -> None:
    why = await read("/api/v1/workloads/ml/Deployment/kept/explain")
    assert why["nextAction"] is None or why["nextAction"]["type"] != "pause"
    assert why["skips"]


LISTS = {
    "/api/v1/nodes": "nodes", "/api/v1/gpus": "pools", "/api/v1/decisions?since=2026-11-01T00:00:00Z": "items",
    "/api/v1/savings?window=7d": "days", "/api/v1/regrets": "byPolicy", "/api/v1/gaming": "items",
    "/api/v1/policies": "items", "/api/v1/acks": "items",
}


@pytest.mark.parametrize("path", LISTS)
async def test_the_other_lists(path: str) -> None:
    assert isinstance((await read(path))[LISTS[path]], list)


async def test_api_v1_acks_lists_who_keeps_what() -> None:
    (ack,) = (await read("/api/v1/acks"))["items"]
    assert (ack["workload"]["name"], ack["by"], ack["active"]) == ("kept", "user:ana", True)


async def test_api_v1_freeze() -> None:
    async with open_scene("email") as scene:
        body = (await scene.ask("GET", "/api/v1/freeze")).body
    assert (body["frozen"], body["until"], body["reason"]) == (False, None, None)


def test_every_path_and_method_is_answered_by_one_table() -> None:
    read = {("GET", each.path) for each in endpoints.ENDPOINTS}
    assert read.isdisjoint((each.method, each.path) for each in writes.WRITES)


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/healthz", 200), ("/readyz", 503)])
async def test_probes_and_metrics_need_no_login(path: str, status: int) -> None:
    async def nobody(request: Any) -> None:
        raise Denied(401, "Unauthorized", "nobody is known here")

    async with serving(make_world(), MANDATE, guard=nobody) as client:
        assert (await client.ask(path))[0] == status  # not ready: no cycle has ended
        assert (await client.ask("/api/v1/overview"))[0] == 401


@pytest.mark.parametrize("mode", ["email", "kube", "proxy"])
async def test_no_other_origin_reads_along(mode: AuthMode) -> None:
    """No CORS: a browser gives another's page nothing of ours."""
    async with open_scene(mode) as scene:
        for method in ("GET", "OPTIONS"):
            answer = await scene.ask(method, "/api/v1/me", headers={"Origin": "https://evil.example"})
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]
