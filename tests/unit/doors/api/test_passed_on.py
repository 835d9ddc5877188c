"""What people change at a replica that follows: it is done and written down where somebody leads, in their name; and
nobody else can speak in it. Each replica here has a cluster of its own, so that one sees who did it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from tests.builders import HOUR
from tests.unit.clients import loopback
from tests.unit.doors.api.scene import KEY, Scene, open_scene
from tests.unit.doors.api.test_events import page, read_event
from tests.unit.doors.api.test_leader import free_port
from tests.unit.doors.api.test_slack import KEEP, SECRET, Pressed, encode

from fallow import names
from fallow.clients.messages import post
from fallow.doors import listen
from fallow.doors.api import auth, leader, sessions, slack
from fallow.model.history import CameBy, Happened
from fallow.model.secret import Secret
from fallow.settings.serving import AuthMode

ACKS = "/api/v1/acks"
LLM, OFF, KEPT = (f"/api/v1/workloads/ml/Deployment/{name}" for name in ("llm", "off", "kept"))
ACK = {"namespace": "ml", "kind": "Deployment", "name": "llm", "hours": 4}


class Two(NamedTuple):
    """Replicas: one leads, one follows."""

    one: Scene
    two: Scene


@contextlib.asynccontextmanager
async def replicas(mode: AuthMode, *, shares_key: bool = True, more: Any = None) -> AsyncIterator[Two]:
    """The proxy stands where the follower is reached, and nowhere near the leader."""
    port = free_port()
    async with (
        open_scene(mode, trusted=["10.9.9.9/32"], listener=listen.open_listener(("127.0.0.3", port)), more=more) as one,
        open_scene(
            mode, trusted=["127.0.0.0/8"], listener=listen.open_listener(("127.0.0.2", port)), follows="127.0.0.3",
            shares_key=shares_key, more=more,
        ) as two,
    ):
        yield Two(one, two)


def add_lease(scene: Scene) -> None:
    named = {"name": names.LEASE, "namespace": "ml"}
    scene.store.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named, "spec": {}})


WAYS: dict[AuthMode, tuple[dict[str, str], str]] = {
    "proxy": ({"X-Forwarded-User": "ada", "X-Forwarded-Groups": "team"}, "api:ada"),
    "kube": ({"Authorization": "Bearer of-ada"}, "api:ada"),
    "oidc": ({"Cookie": "session"}, "api:ada"),
}


async def press(scene: Scene, mode: AuthMode, method: str, path: str, body: Any = None) -> Any:
    headers = dict(WAYS[mode][0])
    if mode == "oidc":
        session = sessions.Seals(KEY).write(sessions.Session("ada", ("team",), scene.now + HOUR))
        scene.browser.cookie_jar.update_cookies({sessions.SESSION: session})
        headers = {}
    return await scene.press(method, path, body, **headers)


@pytest.mark.accepts("idle", 27)
@pytest.mark.parametrize("mode", WAYS)
async def test_what_is_asked_of_a_follower_is_done_and_written_down_where_somebody_leads(mode: AuthMode) -> None:
    async with replicas(mode) as (one, two):
        add_lease(one)
        for method, path, body, status in (
            ("POST", ACKS, ACK, 201), ("DELETE", f"{ACKS}/ml/Deployment/llm", None, 204),
            ("POST", f"{LLM}/pause", {"reason": "night"}, 202), ("POST", f"{OFF}/resume", {}, 202),
            ("POST", "/api/v1/freeze", {"forSeconds": 600, "reason": "look"}, 200),
            ("POST", "/api/v1/freeze", {"off": True}, 200), ("POST", f"{KEPT}/resume", {}, 409),
        ):
            assert (await press(two, mode, method, path, body)).status == status, path
            await one.look_again()
        told = {(each.type, each.actor, each.source) for each in await one.audited()}
        assert await two.audited() == []
        assert (two.thing("llm")["spec"]["replicas"], one.thing("llm")["spec"]["replicas"]) == (1, 0)
    assert told == {(type_of, WAYS[mode][1], CameBy.api) for type_of in (
        Happened.kept, Happened.released, Happened.paused, Happened.resumed, Happened.frozen, Happened.unfrozen,
        Happened.refused,
    )}


async def test_an_address_alone_keeps_by_whichever_replica() -> None:
    async with replicas("email") as (one, two):
        answer = await two.press("POST", ACKS, {**ACK, "email": "ada@example.com"})
        assert (answer.status, one.marks("llm")[names.ACK_BY]) == (201, "unverified:ada@example.com")
        assert names.ACK_BY not in two.marks("llm")
        assert (await two.press("POST", f"{LLM}/pause", {})).status == 403
        assert [each.type for each in await one.audited()] == [Happened.refused, Happened.kept]


async def test_who_may_not_is_refused_by_the_leader_in_its_words() -> None:
    async with replicas("kube") as (one, two):
        answer = await two.ask("POST", f"{LLM}/pause", {}, token="of-bob")
        assert (answer.status, answer.body["missing"]) == (403, "patch on deployments in ml")
        assert [each.actor for each in await one.audited()] == ["api:bob"]


async def test_a_page_of_somebody_else_is_refused_at_the_door_it_came_to() -> None:
    async with replicas("proxy") as (one, two):
        answer = await two.ask("POST", ACKS, ACK, headers={**WAYS["proxy"][0], "Origin": "https://evil.example"})
        assert (answer.status, answer.code) == (403, "BadOrigin")
        assert (one.marks("llm"), two.marks("llm")) == ({}, {})


async def test_without_a_common_key_a_bearer_token_is_shown_again_and_nothing_else_is() -> None:
    async with replicas("kube", shares_key=False) as (one, two):
        assert (await two.ask("POST", ACKS, ACK, token="of-ada")).status == 201
        assert names.ACK_BY in one.marks("llm")
        assert (await press(two, "oidc", "POST", f"{LLM}/pause", {})).code == "NotLeading"


# ---- nobody else can speak in somebody's name ------------------------------------------------------------------------


def voucher(
    scene: Scene, *, key: Secret[bytes] = KEY, body: bytes = b"{}", path: str = f"{LLM}/pause", **more: Any
) -> str:
    said: dict[str, Any] = {
        "name": "ada", "groups": (), "is_verified": True, "address": "10.0.0.1", "number": "n", "until": scene.now + 60,
    }
    asked = f"{more.pop('to', 'one')} {more.pop('method', 'POST')} {path} {hashlib.sha256(body).hexdigest()}"
    return sessions.Seals(key).vouch(sessions.Voucher(**{**said, **more}), asked)


FORGED = {
    "another-key": {"key": Secret(b"x" * 32)}, "another-path": {"path": f"{OFF}/pause"},
    "another-question": {"path": f"{LLM}/pause?force=1"}, "another-body": {"body": b'{"force":true}'},
    "another-method": {"method": "GET"}, "another-leader": {"to": "two"}, "over": {"until": 0.0},
}


@pytest.mark.parametrize("mode", ["email", "kube", "proxy"])
@pytest.mark.parametrize("how", FORGED.values(), ids=FORGED)
async def test_a_voucher_that_is_not_for_exactly_this_is_worth_nothing(mode: AuthMode, how: dict[str, Any]) -> None:
    async with open_scene(mode, trusted=["10.0.0.0/8"]) as scene:
        forged = {auth.VOUCHER_HEADER: voucher(scene, **how), leader.PASSED_ON: "1"}
        answer = await scene.ask("POST", f"{LLM}/pause", {}, headers={**forged, "X-Forwarded-User": "ada"})
        assert (answer.status, scene.thing("llm")["spec"]["replicas"]) == (401, 1)


@pytest.mark.parametrize("garbage", ["", ".", "e30.", "a" * 40_000, "\u00e9.x", "W10.x"])
async def test_garbage_for_a_voucher_is_nobody(garbage: str) -> None:
    async with open_scene("kube") as scene:
        answer = await scene.ask("POST", f"{LLM}/pause", {}, token="of-ada", headers={auth.VOUCHER_HEADER: garbage})
        assert (answer.status, scene.thing("llm")["spec"]["replicas"]) == (401, 1)


async def test_a_voucher_is_good_for_one_write() -> None:
    async with open_scene("kube") as scene:
        good = {auth.VOUCHER_HEADER: voucher(scene)}
        assert (await scene.ask("POST", f"{LLM}/pause", {}, headers=good)).status == 202
        assert (await scene.ask("POST", f"{LLM}/pause", {}, headers=good)).status == 401
    assert KEY.reveal().decode() not in good[auth.VOUCHER_HEADER]


@pytest.mark.parametrize("is_reached", [True, False], ids=["leader-reached", "leader-away"])
async def test_who_heard_a_voucher_has_nothing_done_again_by_another_replica(is_reached: bool) -> None:
    async with replicas("kube") as (one, two):
        heard = {auth.VOUCHER_HEADER: voucher(one, path=f"{OFF}/resume")}
        assert (await one.ask("POST", f"{OFF}/resume", {}, headers=heard)).status == 202
        two.holder = "one" if is_reached else None
        assert (await two.ask("POST", f"{OFF}/resume", {}, headers=heard)).code == "NotLeading"
        assert [each.type for each in await one.audited()] == [Happened.resumed]
        assert two.thing("off")["spec"]["replicas"] == 0


# ---- the leader cannot be asked --------------------------------------------------------------------------------------


async def test_alone_a_follower_keeps_resumes_and_freezes_and_takes_nothing_away() -> None:
    listener = listen.open_listener(("127.0.0.2", free_port()))
    async with open_scene("kube", follows="127.0.0.3", listener=listener) as two:
        add_lease(two)
        assert (await two.ask("POST", ACKS, ACK, token="of-ada")).status == 201
        assert (await two.ask("POST", f"{OFF}/resume", {}, token="of-ada")).status == 202
        assert (await two.ask("POST", "/api/v1/freeze", {"forSeconds": 600}, token="of-ada")).status == 200
        await two.look_again()
        for method, path, body in (
            ("POST", f"{LLM}/pause", {}), ("DELETE", f"{ACKS}/ml/Deployment/llm", None),
            ("POST", "/api/v1/freeze", {"off": True}),
        ):
            answer = await two.ask(method, path, body, token="of-ada")
            assert (answer.status, answer.code) == (503, "NotLeading"), path
            assert answer.message.endswith("nothing was done")
        assert (two.thing("llm")["spec"]["replicas"], names.ACK_UNTIL in two.marks("llm")) == (1, True)


async def test_what_the_leader_may_have_done_is_not_done_once_more() -> None:
    async def never(asked: loopback.Asked) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with loopback.serve(never) as one:
        port = int(one.url.rpartition(":")[2])
        listener = listen.open_listener(("127.0.0.2", port))
        async with open_scene("kube", follows="127.0.0.1", listener=listener) as two:
            answer = await two.ask("POST", f"{OFF}/resume", {}, token="of-ada")
            assert (answer.status, answer.code, "may have done it" in answer.message) == (504, "NotKnown", True)
            assert two.thing("off")["spec"]["replicas"] == 0


# ---- live pages and Slack --------------------------------------------------------------------------------------------


async def test_a_page_at_a_follower_hears_what_happens_at_the_leader_until_another_leads() -> None:
    async with replicas("email") as (one, two), page(f"{two.origin}/api/v1/events") as content:
        one.changes.publish([("cycle", {"revision": 7})], 7)
        assert await read_event(content) == {"event": "cycle", "id": "7", "data": {"revision": 7}}
        two.holder, two.leads = "two", True
        one.changes.publish([("cycle", {"revision": 8})], 8)
        await read_event(content)
        async with asyncio.timeout(5):
            assert await content.read() == b""  # the page comes back by itself


async def test_a_page_ends_where_it_was_open_when_who_leads_changes() -> None:
    async with open_scene("email") as one, page(f"{one.origin}/api/v1/events") as content:
        one.leads = False
        one.changes.publish([("cycle", {"revision": 7})])
        await read_event(content)
        async with asyncio.timeout(5):
            assert await content.read() == b""


@pytest.mark.accepts("idle", 21)
async def test_a_press_has_its_effect_once_whichever_replica_slack_reaches() -> None:
    async with contextlib.AsyncExitStack() as stack:
        heard = await stack.enter_async_context(loopback.serve(lambda asked: web.Response(text="ok")))
        poster = await stack.enter_async_context(post.Poster({}))
        made: list[slack.Buttons] = []

        def routes(scene: Scene) -> Any:
            made.append(slack.Buttons(
                Secret(SECRET), scene.deeds, poster, clock=lambda: scene.now, monotonic=lambda: scene.ticks,
                hosts=(heard.url,), leader=scene.door,
            ))
            return made[-1].routes()

        one, two = await stack.enter_async_context(replicas("email", more=routes))
        for each in made:
            stack.push_async_callback(each.close)
        body = encode({"user": {"id": "U1", "username": "ada"}, "actions": [KEEP], "response_url": heard.url})
        answers = [await Pressed(scene, heard, made[0]).send(body) for scene in (two, one, two)]
        assert [(each.status, each.body) for each in answers] == [(200, "Acknowledged"), (200, "OK"), (200, "OK")]
        assert (one.marks("llm")[names.ACK_BY], two.marks("llm")) == ("slack:ada(U1)", {})
        assert [each.source for each in await one.audited()] == [CameBy.slack]
        assert msgspec.json.decode(heard.asked[0].body)["replace_original"] is True
