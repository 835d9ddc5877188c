"""A follower and what it is asked: the leader answers it, as if it had been asked itself; or it is said that it cannot,
and the follower goes on alone as far as that hurts nobody."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from tests import cost_scenes
from tests.unit.clients import loopback
from tests.unit.doors.api.scene import KEY
from tests.unit.doors.api.serving import Client, make_forecasts, serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow.clients import replicas
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors import listen
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.api import auth, endpoints, leader, sessions
from fallow.model.history import AuditEntry, CameBy, Happened

ONE = "/api/v1/workloads/ml/Deployment/quiet"
AUDITED = [
    each.path.replace("{namespace}/{kind}/{name}", "ml/Deployment/quiet")
    for each in endpoints.ENDPOINTS if each.is_leaders
]


def pod(status: dict[str, Any]) -> Callable[[loopback.Asked], web.Response]:
    return lambda asked: web.json_response({"kind": "Pod", "metadata": {"name": "one"}, "status": status})


def gate_on(api: kube.Api, *, leads_as: str | None = None) -> auth.FrontGate:
    return auth.FrontGate(
        "email", api, sessions.Seals(KEY), clock=lambda: 0.0, monotonic=time.monotonic, leads_as=lambda: leads_as
    )


def nowhere() -> kube.Api:
    return kube.Api(config.Access(server="http://127.0.0.1:1", context=""))


@contextlib.asynccontextmanager
async def leading() -> AsyncIterator[Client]:
    """It knows whom another replica vouches for; else it answers its own machine only."""
    world, guard = make_world(), gate_on(nowhere(), leads_as="one").identify
    async with serving(world, MANDATE, guard=guard, forecasts=make_forecasts(world)) as one:
        yield one


@contextlib.asynccontextmanager
async def following(
    port: int, *, holder: str | None = "one", answer: loopback.Answer | None = None, shares_key: bool = True,
    books: CostBooks | None = None,
) -> AsyncIterator[tuple[Client, loopback.Loopback]]:
    """A follower of the leader at that port of 127.0.0.1; `answer`: the API server's."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(loopback.serve(answer or pod({"podIP": "127.0.0.1"})))
        api = await stack.enter_async_context(kube.Api(config.Access(server=server.url, context="")))
        door = leader.LeaderDoor(
            api, await stack.enter_async_context(replicas.Replicas(connect=1.0, silence=1.0)), gate_on(api),
            leads=lambda: False, holder=lambda: holder, namespace="gpu", shares_key=shares_key,
            monotonic=time.monotonic,
        )
        listener = listen.open_listener(("127.0.0.2", port))
        served = serving(make_world(), MANDATE, leader=door, listener=listener, books=books)
        client = await stack.enter_async_context(served)
        client.loop.health.leading = False
        yield client, server


def entry(at: float) -> AuditEntry:
    return AuditEntry(at=at, type=Happened.frozen, sentence="a test", actor="ada", source=CameBy.api)


def port_of(client: Client) -> int:
    return int(client.url.rpartition(":")[2])


def free_port() -> int:
    with contextlib.closing(listen.open_listener(("127.0.0.1", 0))) as found:
        return int(found.getsockname()[1])


def test_all_that_rests_on_the_audit_or_on_stories_that_only_a_leader_runs_is_the_leaders_to_tell() -> None:
    named = {path.rpartition("/")[2] for path in AUDITED}
    assert named == {
        "summary", "stats", "history", "decisions", "states", "pace", "savings", "digest", "regrets", "gaming",
        "sharing", "scaling", "preemption",
    }


@pytest.mark.accepts("idle", 27)
async def test_a_follower_answers_as_the_leader_does() -> None:
    async with leading() as one, following(port_of(one)) as (two, server):
        await one.kept.enter(entry(make_world().now - 60))
        for path in (*AUDITED, "/api/v1/overview", "/api/v1/workloads", "/api/v1/gpus", f"{ONE}/explain"):
            status, body, headers = await two.ask(path)
            theirs = await one.ask(path)
            assert (status, body, headers["ETag"]) == (200, theirs[1], theirs[2]["ETag"]), path
        assert [each["sentence"] for each in (await two.get("/api/v1/decisions?limit=5"))["items"]] == ["a test"]
        assert (await two.get("/api/v1/overview"))["isLeader"] is True
        again = await two.ask("/api/v1/decisions", headers={"If-None-Match": headers["ETag"]})
        assert again[0] == 304
        assert (await two.ask("/api/v1/decisions?limit=nine"))[0] == 400
        assert (await two.ask("/api/v1/workloads/ml/Deployment/no%20such"))[0] in (400, 404)
    assert [asked.path for asked in server.asked] == ["/api/v1/namespaces/gpu/pods/one"]  # remembered


UNREACHED = {
    "nobody-leads": ({"holder": None}, "nobody leads at this moment"),
    "no-pod": ({"answer": lambda asked: web.json_response({}, status=404)}, "one, which leads, cannot be asked: "),
    "no-address": ({"answer": pod({})}, "its pod gpu/one has no address"),
    "no-answer": ({}, "one, which leads, cannot be asked: http://127.0.0.1:{port} cannot be reached"),
    "no-key": ({"shares_key": False}, "this one cannot vouch for you to who leads; give all replicas the same --sess"),
}


@pytest.mark.parametrize("given", [given for given, _ in UNREACHED.values()], ids=UNREACHED)
@pytest.mark.parametrize("keeps_books", [False, True], ids=["audit", "books"])
async def test_a_follower_without_its_leader_does_not_say_that_nothing_was_given_back(
    given: dict[str, Any], keeps_books: bool
) -> None:
    async with cost_scenes.opened(cost_scenes.example()) as ledger:
        books = CostBooks(ledger=ledger) if keeps_books else None
        async with following(free_port(), books=books, **given) as (two, _):
            (own,) = (await two.get("/api/v1/all-clusters"))["clusters"]
    assert (own["sight"], own["givenBackGpuHours"]) == ("seen", None)


@pytest.mark.parametrize(("given", "says"), UNREACHED.values(), ids=UNREACHED)
async def test_a_leader_that_cannot_be_asked_is_a_sentence_and_not_an_empty_page(
    given: dict[str, Any], says: str
) -> None:
    port = free_port()
    async with following(port, **given) as (two, _):
        for path in AUDITED:
            status, body, headers = await two.ask(path)
            assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "NotLeading", "5"), path
            assert body["error"]["message"].startswith("this rests on what the leader wrote down")
            assert says.format(port=port) in body["error"]["message"]
        await two.kept.enter(entry(0.0))  # what it sees itself it tells, without what is written down elsewhere
        page = await two.get("/api/v1/overview")
        unknown = {"gpuHours": None, "takenGpuHours": None, "source": "audit", "until": page["now"]}
        assert (page["isLeader"], page["givenBackToday"]) == (False, unknown)
        assert {row["strip"] for row in (await two.get("/api/v1/workloads"))["items"]} == {None}
        assert (await two.get(f"{ONE}/explain"))["verdict"] == "idle"


async def test_a_leader_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    async with following(free_port(), answer=pod({"podIP": "127.0.0.1"})) as (two, server):
        for _ in range(3):
            assert (await two.ask("/api/v1/pace"))[0] == 503
    assert len(server.asked) == 1


async def test_a_leader_that_does_not_believe_us_is_named_with_what_helps() -> None:
    given = {"Cookie": "a=b", "X-Other": "no", "Accept": "text/html"}
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(loopback.serve(lambda asked: web.json_response({}, status=401)))
        two, _ = await stack.enter_async_context(following(int(one.url.rpartition(":")[2])))
        status, body, _ = await two.ask("/api/v1/pace", headers=given)
    assert (status, "--session-key-file" in body["error"]["message"]) == (503, True)
    [asked] = one.asked
    assert asked.headers[leader.PASSED_ON] == "1"
    assert not {"Cookie", "X-Other"} & set(asked.headers)
    assert asked.headers["Accept"] == "*/*"


async def test_two_replicas_that_both_follow_do_not_ask_each_other_for_ever() -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        listener = listen.open_listener(("127.0.0.1", port))
        api = await stack.enter_async_context(nowhere())
        door = leader.LeaderDoor(
            api, await stack.enter_async_context(replicas.Replicas(connect=1.0)), gate_on(api), leads=lambda: False,
            holder=lambda: "two", namespace="gpu", shares_key=True, monotonic=time.monotonic,
        )
        guard = gate_on(api).identify
        one = await stack.enter_async_context(
            serving(make_world(), MANDATE, leader=door, listener=listener, guard=guard)
        )
        one.loop.health.leading = False
        two, _ = await stack.enter_async_context(following(port))
        status, body, _ = await two.ask("/api/v1/pace")
    assert (status, body["error"]["message"]) == (503, "the replica that was asked leads no more; ask again")
