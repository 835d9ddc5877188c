"""Buttons in Slack: every row of the table of section 8, over real sockets, with answers to a Slack on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any
from urllib import parse

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from tests.builders import HOUR
from tests.unit.clients import loopback
from tests.unit.doors.api import scene as scenes
from tests.unit.doors.api.scene import Answer, Scene, open_scene

from fallow import names
from fallow.clients import retry
from fallow.clients.messages import post
from fallow.doors.api import slack
from fallow.model import units
from fallow.model.history import CameBy, Happened
from fallow.model.secret import Secret
from fallow.sim.servers import store as stores

SECRET, BOT = "8f742231b10e8888abcd99yyyzzz85a5", "xoxb-the-bots-own"
KEEP = {"name": "ack", "value": "Deployment:ml:llm:4"}


class Pressed:
    """A scene, and the Slack that hears the answers."""

    def __init__(self, scene: Scene, heard: loopback.Loopback, buttons: slack.Buttons) -> None:
        self.scene, self.heard, self.buttons = scene, heard, buttons

    async def send(self, body: bytes, *, stamp: str | None = None, secret: str = SECRET, **headers: str) -> Answer:
        stamp = stamp or str(int(self.scene.now))
        signed = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
        own = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signed}",
               "Content-Type": "application/x-www-form-urlencoded"}
        return await self.scene.ask("POST", slack.PATH, body, headers={**own, **headers})

    async def press(self, action: Any = None, **payload: Any) -> Answer:
        return await self.send(encode({
            "user": {"id": "U1", "username": "ada", "name": "Ada"}, "actions": [action or KEEP],
            "response_url": f"{self.heard.url}/actions/T1/2/abc", **payload,
        }))

    async def told(self) -> Any:
        """The one message that came at response_url."""
        await asyncio.gather(*self.buttons._under_way)
        (asked,) = self.heard.asked
        return msgspec.json.decode(asked.body)


def encode(payload: Any) -> bytes:
    return parse.urlencode({"payload": msgspec.json.encode(payload).decode()}).encode()


@contextlib.asynccontextmanager
async def listening(patience: float = 60.0, *, token: bool = True) -> AsyncIterator[Pressed]:
    async with contextlib.AsyncExitStack() as stack:
        heard = await stack.enter_async_context(loopback.serve(lambda asked: web.Response(text="ok")))
        poster = post.Poster({}, patience=retry.Patience(tries=1, first_wait=0.0))
        await stack.enter_async_context(poster)
        made: list[slack.Buttons] = []

        def routes(scene: Scene) -> Any:
            made.append(slack.Buttons(
                Secret(SECRET), scene.deeds, poster, clock=lambda: scene.now, monotonic=lambda: scene.ticks,
                hosts=(heard.url,), patience=patience, token=Secret(BOT) if token else None,
                slack_api=f"{heard.url}/api",
            ))
            return made[0].routes()

        scene = await stack.enter_async_context(open_scene("email", more=routes))
        stack.push_async_callback(made[0].close)
        yield Pressed(scene, heard, made[0])


@pytest_asyncio.fixture
async def pressed() -> AsyncIterator[Pressed]:
    async with listening() as running:
        yield running


def is_untouched(pressed: Pressed) -> bool:
    return names.ACK_UNTIL not in pressed.scene.marks("llm") and pressed.scene.thing("off")["spec"]["replicas"] == 0


async def test_ok(pressed: Pressed) -> None:
    answer = await pressed.press()
    assert (answer.status, answer.body) == (200, "Acknowledged")
    marks, until = pressed.scene.marks("llm"), units.rfc3339(pressed.scene.now + 4 * HOUR)
    assert (marks[names.ACK_UNTIL], marks[names.ACK_BY]) == (until, "slack:ada(U1)")
    told = await pressed.told()
    assert told["replace_original"] is True
    assert until in told["attachments"][0]["title"]
    (entry,) = await pressed.scene.audited()
    assert (entry.type, entry.actor, entry.source) == (Happened.kept, "slack:ada(U1)", CameBy.slack)


async def test_resume(pressed: Pressed) -> None:
    answer = await pressed.press({"name": "resume", "value": "Deployment:ml:off:resume"})
    assert (answer.status, answer.body) == (200, "Resumed")
    assert pressed.scene.thing("off")["spec"]["replicas"] == 1
    assert pressed.scene.marks("off")[names.RESUMED_BY] == "slack:ada(U1)"


async def test_a_block_does_what_the_old_button_does(pressed: Pressed) -> None:
    block = {"type": "button", "block_id": "b1", "action_id": "ack_4", "action_ts": "1", "value": KEEP["value"],
             "text": {"type": "plain_text", "text": "Keep 4h", "emoji": True}}
    answer = await pressed.press(block, type="block_actions")
    assert (answer.status, answer.body) == (200, "Acknowledged")
    assert pressed.scene.marks("llm")[names.ACK_BY] == "slack:ada(U1)"
    back = {"action_id": "resume", "value": "Deployment:ml:off:resume"}
    assert (await pressed.press(back, type="block_actions")).body == "Resumed"


async def test_why_only_opens_the_page(pressed: Pressed) -> None:
    answer = await pressed.press({"action_id": "why", "type": "button"}, type="block_actions")
    assert (answer.status, answer.body) == (200, "OK")
    assert is_untouched(pressed)
    assert await pressed.scene.audited() == []


FORGED: dict[str, dict[str, str]] = {
    "another-secret": {"secret": "x"}, "no-signature": {"X-Slack-Signature": ""},
    "not-hex": {"X-Slack-Signature": "v0=zz"}, "too-old": {"stamp": "-301"}, "too-new": {"stamp": "301"},
    "no-time": {"X-Slack-Request-Timestamp": ""}, "words-for-time": {"stamp": "noon"},
}


@pytest.mark.accepts("idle", 21)
@pytest.mark.parametrize("how", FORGED.values(), ids=FORGED)
async def test_bad_or_missing_signature_or_skew(pressed: Pressed, how: dict[str, str]) -> None:
    given = dict(how)
    if given.get("stamp", "").lstrip("-").isdigit():
        given["stamp"] = str(int(pressed.scene.now) + int(given["stamp"]))
    payload = {"user": {"id": "U1"}, "actions": [KEEP], "response_url": f"{pressed.heard.url}/x"}
    answer = await pressed.send(encode(payload), **given)
    assert answer.status == 401
    assert is_untouched(pressed)
    assert pressed.heard.asked == []
    (entry,) = await pressed.scene.audited()
    assert (entry.type, entry.actor) == (Happened.refused, "slack:unknown")


async def test_a_body_that_was_changed_is_not_what_was_signed(pressed: Pressed) -> None:
    stamp = str(int(pressed.scene.now))
    signed = hmac.new(SECRET.encode(), f"v0:{stamp}:payload=".encode(), hashlib.sha256).hexdigest()
    own = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signed}"}
    answer = await pressed.scene.ask("POST", slack.PATH, encode({"actions": [KEEP]}), headers=own)
    assert answer.status == 401


@pytest.mark.accepts("idle", 21)
async def test_signature_seen_within_ten_minutes(pressed: Pressed) -> None:
    body = encode({"user": {"id": "U1"}, "actions": [KEEP]})
    assert (await pressed.send(body)).body == "Acknowledged"
    gone = {"metadata": {"annotations": {names.ACK_UNTIL: None}}}
    pressed.scene.store.patch(stores.Key("apps", "Deployment", "ml", "llm"), gone)
    again = await pressed.send(body)
    assert (again.status, again.body) == (200, "OK")
    assert names.ACK_UNTIL not in pressed.scene.marks("llm")


@pytest.mark.parametrize("body", [b"payload=", b"", b"payload=%20", b"other=1"])
async def test_empty_payload(pressed: Pressed, body: bytes) -> None:
    answer = await pressed.send(body)
    assert (answer.status, answer.body) == (200, "OK")


@pytest.mark.parametrize("body", [
    encode({"type": "url_verification", "challenge": "abc"}), b'{"type":"url_verification","challenge":"abc"}',
])
async def test_url_verification(pressed: Pressed, body: bytes) -> None:
    answer = await pressed.send(body)
    assert (answer.status, answer.body) == (200, "abc")


BAD = {
    "no-json": b"payload=%7B", "list": b"payload=%5B%5D", "not-utf-8": b"payload=%ff", "raw-bytes": b"\xff\xfe",
    "no-actions": encode({"user": {"id": "U1"}, "actions": []}),
    "actions-of-text": encode({"user": {"id": "U1"}, "actions": ["x"]}),
    "nobody": encode({"actions": [KEEP]}),
    **{f"value-{value}": encode({"user": {"id": "U1"}, "actions": [{"name": "ack", "value": value}]}) for value in (
        "", "Deployment:ml:llm", "Deployment:ml:llm:4:5", "Deployment:ml:llm:-4", "Deployment:ml:llm:0",
        "Deployment:ml:llm:169", "Deployment:ml:llm:1e1", "Deployment:ml:llm:NaN", "Deployment:ml:llm:four",
        "Deployment:ml:../llm:4", "Deployment:<b>:llm:4", "Deployment:ml:llm:" + "9" * 500, "Deployment:ml:llm:101",
    )},
    "another-button": encode({"user": {"id": "U1"}, "actions": [{"name": "delete", "value": "Deployment:ml:llm:4"}]}),
    "resume-hours": encode({"user": {"id": "U1"}, "actions": [{"name": "resume", "value": "Deployment:ml:off:4"}]}),
}


@pytest.mark.parametrize("body", BAD.values(), ids=[name[:24] for name in BAD])
async def test_bad_json_or_value_or_hours(pressed: Pressed, body: bytes) -> None:
    answer = await pressed.send(body)
    assert answer.status == 400
    assert is_untouched(pressed)
    assert [entry.type for entry in await pressed.scene.audited()] == [Happened.refused]


async def test_kind_disabled(pressed: Pressed) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "ml"}, "spec": {}}
    made = pressed.scene.store.create(job).object
    pod = scenes.pretend.pod("train-0")
    pod["metadata"]["ownerReferences"] = [scenes._owner(made)]
    pressed.scene.store.create(pod)
    await pressed.scene.look_again()
    answer = await pressed.press({"name": "ack", "value": "Job:ml:train:4"})
    assert answer.status == 400
    assert "--enabled-resources" in (await pressed.told())["text"]


async def test_workload_gone(pressed: Pressed) -> None:
    answer = await pressed.press({"name": "ack", "value": "Deployment:ml:gone:4"})
    assert answer.status == 404
    told = await pressed.told()
    assert (told["response_type"], told["replace_original"]) == ("ephemeral", False)
    assert "gone" in told["text"]


async def test_already_paused(pressed: Pressed) -> None:
    answer = await pressed.press({"name": "ack", "value": "Deployment:ml:off:4"})
    assert (answer.status, answer.body["response_type"]) == (200, "ephemeral")
    assert "paused" in answer.body["text"]


async def test_kubernetes_error(pressed: Pressed) -> None:
    pressed.scene.kubernetes.go_down()
    answer = await pressed.press()
    assert (answer.status, answer.body["response_type"]) == (500, "ephemeral")
    assert (await pressed.told())["text"]


@pytest.mark.accepts("idle", 21)
@pytest.mark.parametrize("address", [
    "https://hooks.slack.com.evil.example/x", "http://169.254.169.254/", "https://hooks.slack.com@evil.example/", "x",
    "https://evil.example/hooks.slack.com",
])
async def test_a_foreign_response_url_is_never_called(pressed: Pressed, address: str) -> None:
    answer = await pressed.press(response_url=address)
    assert (answer.status, answer.body) == (200, "Acknowledged")
    await asyncio.gather(*pressed.buttons._under_way)
    assert pressed.heard.asked == []


async def test_only_those_may_press_whom_the_policy_names(pressed: Pressed) -> None:
    scene = pressed.scene
    consent = msgspec.structs.replace(scenes.MANDATE.rule.consent, slack_users=frozenset({"U7"}))
    rule = msgspec.structs.replace(scenes.MANDATE.rule, consent=consent)
    scene.deeds.mandate = msgspec.structs.replace(scenes.MANDATE, rule=rule)
    answer = await pressed.press()
    assert answer.status == 403
    assert is_untouched(pressed)
    assert (await pressed.press(user={"id": "U7", "username": "grace"})).status == 200


def name_groups(pressed: Pressed, *groups: str, users: tuple[str, ...] = ()) -> None:
    consent = msgspec.structs.replace(
        scenes.MANDATE.rule.consent, slack_groups=frozenset(groups), slack_users=frozenset(users)
    )
    rule = msgspec.structs.replace(scenes.MANDATE.rule, consent=consent)
    pressed.scene.deeds.mandate = msgspec.structs.replace(scenes.MANDATE, rule=rule)


def tell_members(said: Any) -> Any:
    def answer(asked: loopback.Asked) -> web.Response:
        return web.json_response(said) if asked.path == "/api/usergroups.users.list" else web.Response(text="ok")

    return answer


async def test_those_may_press_who_are_in_a_group_that_the_policy_names(pressed: Pressed) -> None:
    name_groups(pressed, "S1", users=("U9",))
    pressed.heard.answer = tell_members({"ok": True, "users": ["U1", "U2"]})
    assert (await pressed.press()).body == "Acknowledged"
    (asked,) = [each for each in pressed.heard.asked if each.path.startswith("/api")]
    assert (asked.form, asked.headers["Authorization"]) == ({"usergroup": "S1"}, f"Bearer {BOT}")
    stranger = await pressed.press(user={"id": "U3", "username": "eve"})
    assert (stranger.status, "names who may press" in stranger.body["text"]) == (403, True)
    assert (await pressed.press(user={"id": "U9", "username": "grace"})).status == 200
    assert len([each for each in pressed.heard.asked if each.path.startswith("/api")]) == 1  # once a minute


NOT_TOLD = {
    "an-error": {"ok": False, "error": "missing_scope"}, "no-list": {"ok": True}, "no-object": ["U1"],
    "another-list": {"ok": True, "users": {"U1": 1}},
}


@pytest.mark.parametrize("said", NOT_TOLD.values(), ids=NOT_TOLD)
async def test_where_slack_does_not_tell_who_is_in_a_group_nobody_may(pressed: Pressed, said: Any) -> None:
    name_groups(pressed, "S1")
    pressed.heard.answer = tell_members(said)
    answer = await pressed.press()
    assert (answer.status, "nothing was done" in answer.body["text"]) == (500, True)
    assert is_untouched(pressed)


async def test_without_a_bot_nobody_may_by_a_group() -> None:
    async with listening(token=False) as pressed:
        name_groups(pressed, "S1")
        answer = await pressed.press()
        assert (answer.status, "SLACK_BOT_TOKEN" in answer.body["text"]) == (403, True)
        assert is_untouched(pressed)


async def test_a_name_in_slack_is_plain_where_it_is_stored(pressed: Pressed) -> None:
    await pressed.press(user={"id": "U1", "username": "<!channel>\x1b[2J ada"})
    assert pressed.scene.marks("llm")[names.ACK_BY] == "slack:channel2J ada(U1)"


async def test_an_answer_comes_in_time_and_the_rest_follows() -> None:
    async with listening(patience=0.0) as pressed:
        answer = await pressed.press()
        assert (answer.status, answer.body["response_type"]) == (200, "ephemeral")
        async with asyncio.timeout(30):
            while names.ACK_UNTIL not in pressed.scene.marks("llm"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while not pressed.heard.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await pressed.told())["replace_original"] is True


async def test_late_and_already_paused_is_told_too() -> None:
    async with listening(patience=0.0) as pressed:
        await pressed.press({"name": "ack", "value": "Deployment:ml:off:4"})
        async with asyncio.timeout(30):
            while not pressed.heard.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await pressed.told())["response_type"] == "ephemeral"


async def test_a_browser_cannot_get_anything_here(pressed: Pressed) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{pressed.scene.origin}{slack.PATH}") as got:
        assert got.status == 405
