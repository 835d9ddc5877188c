"""Live pages over real sockets: what changed, in order, once; who comes back; who is too slow; who is too many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from starlette.requests import Request
from tests.unit.doors.api.scene import open_scene, serve

from fallow.doors.api import events
from fallow.doors.api.refusals import Denied


async def anybody(request: Request) -> None:
    """May read."""


@contextlib.asynccontextmanager
async def live(changes: events.Changes, keep_alive: float = 15.0) -> AsyncIterator[str]:
    async with serve([events.make_route(changes, anybody, keep_alive)]) as origin:
        try:
            yield f"{origin}/api/v1/events"
        finally:
            changes.close()


@contextlib.asynccontextmanager
async def page(url: str, last: str | None = None) -> AsyncIterator[Any]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as got:
        assert got.status == 200
        assert got.headers["Content-Type"].startswith("text/event-stream")
        assert (await got.content.readuntil(b"\n\n")) == b"retry: 2000\n\n"
        yield got.content


async def read_event(content: Any) -> dict[str, Any]:
    async with asyncio.timeout(5):
        text = (await content.readuntil(b"\n\n")).decode()
    fields = dict(line.split(": ", 1) for line in text.strip().split("\n"))
    return {**fields, "data": msgspec.json.decode(fields["data"])} if "data" in fields else fields


async def test_a_batch_comes_in_order_and_its_last_event_bears_the_revision() -> None:
    changes = events.Changes(41)
    async with live(changes) as url, page(url) as content:
        changes.publish([("workload", {"uid": "a"}), ("cycle", {"revision": 42})])
        first, second = await read_event(content), await read_event(content)
    assert first == {"event": "workload", "data": {"uid": "a"}}
    assert second == {"event": "cycle", "id": "42", "data": {"revision": 42}}


async def test_who_comes_back_gets_what_was_missed_and_no_more() -> None:
    changes = events.Changes()
    for at in range(1, 4):
        changes.publish([("ack", {"at": at})])
    async with live(changes) as url, page(url, "1") as content:
        found = [await read_event(content), await read_event(content)]
        changes.publish([("ack", {"at": 4})])
        found.append(await read_event(content))
    assert [each["data"]["at"] for each in found] == [2, 3, 4]


@pytest.mark.parametrize("last", ["999", "-1", "abc", "9" * 50, "0"])
async def test_who_was_away_too_long_is_told_to_look_anew(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_PAST", 100)
    changes = events.Changes()
    changes.publish([("cycle", {"counts": 7})])
    for _ in range(10):
        changes.publish([("ack", {"text": "x" * 50})])
    async with live(changes) as url, page(url, last) as content:
        told = await read_event(content)
    assert told == {"event": "cycle", "id": "11", "data": {"counts": 7, "revision": 11, "missed": True}}


async def test_silence_is_kept_alive() -> None:
    changes = events.Changes()
    async with live(changes, keep_alive=0.01) as url, page(url) as content:
        assert await content.readuntil(b"\n\n") == b": still here\n\n"


async def test_nothing_is_sent_where_nothing_changed() -> None:
    assert events.Changes(5).publish([]) == 5


async def test_who_does_not_read_is_cut_off_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_WAITING", 200_000)
    changes = events.Changes()
    async with live(changes) as url, page(url) as content:
        host, port = url.removeprefix("http://").partition("/")[0].split(":")
        slow = socket.create_connection((host, int(port)))
        slow.send(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            while changes.listeners < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while changes.listeners > 1:
                changes.publish([("workload", {"text": "x" * 100_000})])
                await read_event(content)
        slow.close()
        changes.publish([("cycle", {})])
        assert (await read_event(content))["event"] == "cycle"


async def test_there_are_at_most_so_many_and_who_leaves_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_LISTENERS", 1)
    changes = events.Changes()
    async with live(changes) as url:
        async with page(url), aiohttp.ClientSession() as session, session.get(url) as refused:
            assert (refused.status, (await refused.json())["error"]["code"]) == (503, "TooManyListeners")
        async with asyncio.timeout(5):
            while changes.listeners:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with page(url):
            assert changes.listeners == 1


async def test_who_may_not_read_gets_no_events() -> None:
    async with open_scene("kube") as scene:
        assert (await scene.ask("GET", "/api/v1/events")).status == 401
        assert (await scene.ask("GET", "/api/v1/events", token="of-eve")).status == 403


async def test_a_keep_is_seen_on_open_pages() -> None:
    async with open_scene("kube") as scene:
        url, bob = f"{scene.origin}/api/v1/events", {"Authorization": "Bearer of-bob"}
        async with aiohttp.ClientSession() as session, session.get(url, headers=bob) as got:
            await got.content.readuntil(b"\n\n")
            asked = {"namespace": "ml", "kind": "Deployment", "name": "llm", "hours": 4}
            assert (await scene.ask("POST", "/api/v1/acks", asked, token="of-ada")).status == 201
            told = await read_event(got.content)
    assert (told["event"], told["id"]) == ("ack", "1")
    assert (told["data"]["workload"]["name"], told["data"]["keep"]["by"]) == ("llm", "api:ada")


def test_too_many_is_a_refusal_that_says_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_LISTENERS", 0)
    with pytest.raises(Denied) as refused:
        events.Changes().listen(None)
    assert refused.value.headers == {"Retry-After": "30"}
