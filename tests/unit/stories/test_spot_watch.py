"""A spot node's watch against loopback metadata of the three clouds and an API server that keeps one node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.loopback import Asked

from fallow import names
from fallow.clients import metadata, node_marks
from fallow.doors.spot import run
from fallow.model.units import parse_instant, rfc3339
from fallow.stories.spot_watch import SpotWatch

NOW = parse_instant("2026-11-17T10:00:00Z")
ENDS = rfc3339(NOW + 120)
Answer = web.Response | None


class World:
    """Metadata of one cloud and the node; what a test sets is what the next poll hears."""

    def __init__(self, cloud: str) -> None:
        self.cloud, self.now = cloud, NOW
        self.action: Answer = None
        self.advice: Answer = None
        self.preempted = web.Response(text="FALSE", headers={"Metadata-Flavor": "Google"})
        self.events: Any = {"DocumentIncarnation": 1, "Events": []}
        self.token = web.Response(text="tok")
        self.node: dict[str, Any] = {"metadata": {"uid": "u1", "annotations": {"other": "stays"}}}
        self.patches: list[dict[str, Any]] = []
        self.refuses_patch = 0
        self.looks = 0

    def notice(self) -> None:
        """As each cloud says it; 30 s or 120 s ahead."""
        self.action = web.json_response({"action": "terminate", "time": ENDS})
        self.preempted = web.Response(text="TRUE", headers={"Metadata-Flavor": "Google"})
        self.events = {"DocumentIncarnation": 2, "Events": [
            event("Preempt", ["other_1"]), event("Freeze", ["vm_0"]), event("Preempt", ["vm_0", "other_1"])]}

    def answer(self, asked: Asked) -> web.Response:
        return loopback.again(self.find(asked) or web.Response(status=404))

    def find(self, asked: Asked) -> Answer:
        if asked.path == "/api/v1/nodes/gpu-1":
            return self.keep(asked)
        self.looks += 1
        match self.cloud, asked.path:
            case "aws", "/latest/api/token":
                assert asked.method == "PUT"
                return self.token
            case "aws", "/latest/meta-data/spot/instance-action":
                assert asked.headers["X-aws-ec2-metadata-token"] == "tok"
                return self.action
            case "aws", "/latest/meta-data/events/recommendations/rebalance":
                return self.advice
            case "gcp", "/computeMetadata/v1/instance/preempted":
                assert asked.headers["Metadata-Flavor"] == "Google"
                assert asked.query == {"wait_for_change": "true", "timeout_sec": "5"}
                return self.preempted
            case "gcp", "/computeMetadata/v1/instance/id":
                return web.Response(text="123", headers={"Metadata-Flavor": "Google"})
            case "azure", "/metadata/instance/compute/name":
                assert asked.headers["Metadata"] == "true"
                return web.Response(text="vm_0")
            case "azure", "/metadata/scheduledevents":
                assert asked.query == {"api-version": "2020-07-01"}
                return self.events if isinstance(self.events, web.Response) else web.json_response(self.events)
        return None

    def keep(self, asked: Asked) -> web.Response:
        assert asked.headers["Authorization"] == "Bearer node-token"
        if asked.method == "PATCH":
            assert asked.headers["Content-Type"] == "application/merge-patch+json"
            if self.refuses_patch:
                return web.Response(status=self.refuses_patch)
            patch = json.loads(asked.body)
            assert patch["metadata"]["uid"] == self.node["metadata"]["uid"]
            self.patches.append(patch["metadata"]["annotations"])
            self.node["metadata"]["annotations"] |= patch["metadata"]["annotations"]
        return web.json_response(self.node)


def event(kind: str, resources: list[str], **said: str) -> dict[str, Any]:
    from datetime import UTC, datetime

    not_before = format_datetime(datetime.fromtimestamp(NOW + 30, UTC), usegmt=True)
    return {"EventId": "e", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": resources,
            "EventStatus": "Scheduled", "NotBefore": not_before, **said}


@asynccontextmanager
async def watching(world: World, tmp_path: Path, cloud: str = "") -> AsyncIterator[Callable[[], Any]]:
    """What polls once, and then says whether it is up."""
    token = tmp_path / "token"
    token.write_text("node-token\n")
    async with loopback.serve(world.answer) as server:
        def make() -> SpotWatch:
            clouds = {name: each(server.url) for name, each in metadata.CLOUDS.items() if cloud in ("", name)}
            marks = node_marks.NodeMarks(server.url, "gpu-1", token_file=str(token), authority_file="")
            return SpotWatch(clouds, marks, interval=5.0, clock=lambda: world.now)

        watch = make()

        async def poll(*, anew: bool = False) -> bool:
            nonlocal watch
            watch = make() if anew else watch
            await asyncio.to_thread(watch.poll)
            assert run.show(watch, "gpu-1").endswith(
                f'gpu_autoscaler_spot_watch_up{{node="gpu-1"}} {int(watch.is_up)}\n')
            return watch.is_up

        yield poll


LEADS = {"aws": 120, "gcp": 30, "azure": 30}


@pytest.mark.parametrize("cloud", LEADS)
async def test_a_notice_is_written_on_the_node_once(cloud: str, tmp_path: Path) -> None:
    world = World(cloud)
    async with watching(world, tmp_path) as poll:
        assert await poll()  # which cloud it is, it found out by itself
        assert world.patches == []
        world.notice()
        for _ in range(3):
            assert await poll()
            world.now += 5
        written = {names.SPOT_WARNING: rfc3339(NOW), names.SPOT_TERMINATION: rfc3339(NOW + LEADS[cloud])}
        assert world.patches == [written]
        assert await poll(anew=True)  # started again
        assert world.patches == [written]
        assert world.node["metadata"]["annotations"]["other"] == "stays"


def google(text: str, **headers: str) -> web.Response:
    return web.Response(text=text, headers={"Metadata-Flavor": "Google", **headers})


def day(**said: Any) -> Callable[[World], None]:
    return lambda world: [setattr(world, key, value) for key, value in said.items()] and None


BAD: dict[str, tuple[str, Callable[[World], None]]] = {
    "aws 500": ("aws", day(action=web.Response(status=500))),
    "aws garbage": ("aws", day(action=web.Response(text="<html>"))),
    "aws a list": ("aws", day(action=web.json_response(["terminate"]))),
    "aws no time": ("aws", day(action=web.json_response({"action": "terminate"}))),
    "aws an odd time": ("aws", day(action=web.json_response({"action": "terminate", "time": "soon"}))),
    "aws long ago": ("aws", day(action=web.json_response({"action": "stop", "time": "2020-01-01T00:00:00Z"}))),
    "aws one day": ("aws", day(action=web.json_response({"action": "stop", "time": "9999-01-01T00:00:00Z"}))),
    "aws advice 500": ("aws", day(advice=web.Response(status=500))),
    "aws advice garbage": ("aws", day(advice=web.json_response({"noticeTime": 7}))),
    "aws no token": ("aws", day(token=web.Response(status=403))),
    "aws a token with a line": ("aws", day(token=web.Response(text="a\r\nX-Evil: b"))),
    "aws huge": ("aws", day(action=web.Response(body=b" " * (2 * 1024 * 1024)))),
    "gcp 500": ("gcp", day(preempted=web.Response(status=500, text="TRUE"))),
    "gcp 404": ("gcp", day(preempted=web.Response(status=404, text="TRUE"))),
    "gcp somebody else": ("gcp", day(preempted=web.Response(text="TRUE"))),
    "gcp garbage": ("gcp", day(preempted=google("true, perhaps"))),
    "gcp a page": ("gcp", day(preempted=google("<html>TRUE</html>"))),
    "azure 500": ("azure", day(events=web.Response(status=500))),
    "azure garbage": ("azure", day(events=web.Response(text="Preempt"))),
    "azure no events": ("azure", day(events={"DocumentIncarnation": 1})),
    "azure odd events": ("azure", day(events={"Events": ["Preempt"]})),
    "azure no time": ("azure", day(events={"Events": [event("Preempt", ["vm_0"], NotBefore="")]})),
    "azure one day": ("azure", day(events={"Events": [
        event("Preempt", ["vm_0"], NotBefore="Mon, 19 Sep 2050 18:29:47 GMT")]})),
}


@pytest.mark.accepts("scaling", 19)
@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_read_is_no_notice_and_the_watch_is_not_up(name: str, tmp_path: Path) -> None:
    cloud, spoil = BAD[name]
    world = World(cloud)
    spoil(world)
    async with watching(world, tmp_path, cloud) as poll:
        assert not await poll()
        assert not await poll()
        assert world.patches == []
        restored = World(cloud)
        for key in ("action", "advice", "preempted", "events", "token"):
            setattr(world, key, getattr(restored, key))
        assert await poll()


@pytest.mark.accepts("scaling", 19)
async def test_metadata_that_is_nowhere_is_no_notice(tmp_path: Path) -> None:
    world = World("nobody")
    async with watching(world, tmp_path) as poll:
        assert not await poll()
    assert world.looks == 3  # each was asked, and none answered as its own
    watch = SpotWatch(
        {"aws": metadata.AwsMetadata("http://127.0.0.1:1")},
        node_marks.NodeMarks("http://127.0.0.1:1", "n", token_file="", authority_file=""), interval=5.0,
        clock=lambda: NOW,
    )
    watch.poll()
    assert not watch.is_up


async def test_a_recommendation_has_no_end_and_an_interruption_after_it_adds_one(tmp_path: Path) -> None:
    world = World("aws")
    world.advice = web.json_response({"noticeTime": rfc3339(NOW)})
    async with watching(world, tmp_path, "aws") as poll:
        assert await poll()
        assert await poll(anew=True)
        assert world.patches == [{names.SPOT_WARNING: rfc3339(NOW)}]
        world.notice()
        world.now += 60
        assert await poll()
        assert await poll()
    assert world.patches[1:] == [{names.SPOT_TERMINATION: ENDS}]


async def test_machines_of_others_and_other_events_are_not_ours(tmp_path: Path) -> None:
    world = World("azure")
    world.events = {"Events": [event("Preempt", ["vm_1", "vm_00"]), event("Reboot", ["vm_0"]), event("Preempt", [])]}
    async with watching(world, tmp_path, "azure") as poll:
        assert await poll()
        assert world.patches == []
        world.events = {"Events": [event("Preempt", ["vm_0"], EventStatus="Started", NotBefore="")]}
        assert await poll()
    assert world.patches[0][names.SPOT_TERMINATION] == rfc3339(NOW)


async def test_a_node_that_cannot_be_written_is_tried_again_and_a_later_notice_is_another(tmp_path: Path) -> None:
    world = World("gcp")
    world.notice()
    world.refuses_patch = 403
    async with watching(world, tmp_path, "gcp") as poll:
        assert not await poll()
        world.refuses_patch = 0
        assert await poll()
        assert len(world.patches) == 1
        world.preempted = google("FALSE")  # a false alarm
        assert await poll()
        assert len(world.patches) == 1  # nothing is taken back
        world.now += 3600
        world.notice()
        assert await poll()
    assert world.patches[1] == {
        names.SPOT_WARNING: rfc3339(NOW + 3600), names.SPOT_TERMINATION: rfc3339(NOW + 3630)}


async def test_a_token_that_is_over_is_renewed(tmp_path: Path) -> None:
    world = World("aws")
    is_over = [True]

    def find(asked: Asked) -> Answer:
        if asked.path.endswith("instance-action") and is_over.pop() if is_over else False:
            return web.Response(status=401)
        return World.find(world, asked)

    world.find = find  # type: ignore[method-assign]
    async with watching(world, tmp_path, "aws") as poll:
        assert await poll()
