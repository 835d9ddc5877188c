"""A follower and what rests on the audit: asked of the leader, or said that it cannot be; never its own empty pages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.doors.api.serving import Client, serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow.clients import replicas
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.api import endpoints, leader
from fallow.model.history import AuditEntry, CameBy, Happened

ONE = "/api/v1/workloads/ml/Deployment/quiet"
AUDITED = [
    each.path.replace("{namespace}/{kind}/{name}", "ml/Deployment/quiet")
    for each in endpoints.ENDPOINTS if each.is_leaders
]


def pod(status: dict[str, Any]) -> Callable[[loopback.Asked], web.Response]:
    return lambda asked: web.json_response({"kind": "Pod", "metadata": {"name": "one"}, "status": status})


@contextlib.asynccontextmanager
async def following(
    port: int, *, holder: str | None = "one", answer: loopback.Answer | None = None
) -> AsyncIterator[tuple[Client, loopback.Loopback]]:
    """A follower of the leader at that port of this machine; `answer`: the API server's."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(loopback.serve(answer or pod({"podIP": "127.0.0.1"})))
        api = await stack.enter_async_context(kube.Api(config.Access(server=server.url, context="")))
        door = leader.LeaderDoor(
            api, await stack.enter_async_context(replicas.Replicas(timeout=1.0)), holder=lambda: holder,
            namespace="gpu", port=port, monotonic=time.monotonic,
        )
        client = await stack.enter_async_context(serving(make_world(), MANDATE, leader=door.answer))
        client.loop.health.leading = False
        yield client, server


def entry(at: float) -> AuditEntry:
    return AuditEntry(at=at, type=Happened.frozen, sentence="a test", actor="ada", source=CameBy.api)


def port_of(client: Client) -> int:
    return int(client.url.rpartition(":")[2])


def test_all_that_rests_on_the_audit_is_the_leaders_to_tell() -> None:
    named = {path.rpartition("/")[2] for path in AUDITED}
    assert named == {
        "summary", "stats", "history", "decisions", "states", "pace", "savings", "digest", "regrets", "gaming",
    }


@pytest.mark.accepts("idle", 27)
async def test_a_follower_passes_on_what_the_leader_wrote_down() -> None:
    world = make_world()
    async with serving(world, MANDATE) as one, following(port_of(one)) as (two, server):
        await one.kept.enter(entry(world.now - 60))
        for path in AUDITED:
            assert (await two.ask(path))[0] == 200, path
        assert [each["sentence"] for each in (await two.get("/api/v1/decisions?limit=5"))["items"]] == ["a test"]
        status, _, headers = await two.ask("/api/v1/decisions")
        again = await two.ask("/api/v1/decisions", headers={"If-None-Match": headers["ETag"]})
        assert (status, again[0]) == (200, 304)
        assert (await two.ask("/api/v1/decisions?limit=nine"))[0] == 400
    assert [asked.path for asked in server.asked] == ["/api/v1/namespaces/gpu/pods/one"]  # remembered


async def test_what_a_follower_sees_itself_it_tells_without_what_is_written_down_elsewhere() -> None:
    async with following(1) as (two, _):
        await two.kept.enter(entry(0.0))
        page = await two.get("/api/v1/overview")
        assert page["givenBackToday"] == {"gpuHours": None, "takenGpuHours": None, "source": "audit"}
        assert {row["strip"] for row in (await two.get("/api/v1/workloads"))["items"]} == {None}
        assert (await two.get(f"{ONE}/explain"))["verdict"] == "idle"


UNREACHED = {
    "nobody-leads": ({"holder": None}, "nobody leads at this moment"),
    "no-pod": ({"answer": lambda asked: web.json_response({}, status=404)}, "one, which leads, cannot be asked: "),
    "no-address": ({"answer": pod({})}, "its pod gpu/one has no address"),
    "no-answer": ({}, "one, which leads, cannot be asked: http://127.0.0.1:1 cannot be reached"),
}


@pytest.mark.parametrize(("given", "says"), UNREACHED.values(), ids=UNREACHED)
async def test_a_leader_that_cannot_be_asked_is_a_sentence_and_not_an_empty_page(
    given: dict[str, Any], says: str
) -> None:
    async with following(1, **given) as (two, _):
        for path in AUDITED:
            status, body, headers = await two.ask(path)
            assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "NotLeading", "5"), path
            assert body["error"]["message"].startswith("this rests on what the leader wrote down")
            assert says in body["error"]["message"]


async def test_who_the_leader_does_not_know_is_told_what_helps() -> None:
    given = {"Authorization": "Bearer ada", "Cookie": "a=b", "X-Other": "no", "Accept": "text/html"}
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(loopback.serve(lambda asked: web.json_response({}, status=401)))
        two, _ = await stack.enter_async_context(following(int(one.url.rpartition(":")[2])))
        status, body, _ = await two.ask("/api/v1/pace", headers=given)
    assert (status, "--session-key-file" in body["error"]["message"]) == (503, True)
    [asked] = one.asked
    assert (asked.headers["Authorization"], asked.headers["Cookie"]) == ("Bearer ada", "a=b")
    assert asked.headers[leader.PASSED_ON] == "1"
    assert "X-Other" not in asked.headers


async def test_two_replicas_that_both_follow_do_not_ask_each_other_for_ever() -> None:
    async with following(1) as (one, _), following(port_of(one)) as (two, _):
        status, body, _ = await two.ask("/api/v1/pace")
    assert (status, body["error"]["message"]) == (
        503, "this rests on what the leader wrote down, and nobody leads at this moment"
    )
