"""The relay to Prometheus: for people who are known, one path, 30 seconds, 10 MiB."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.doors.api.scene import Scene, open_scene

from fallow.clients.prometheus import client as prometheus
from fallow.doors.api import relay
from fallow.settings.serving import AuthMode

PATH = "/prom/gpus/api/v1/query"
UP = {"status": "success", "data": {"resultType": "vector", "result": []}}


@contextlib.asynccontextmanager
async def relaying(
    answer: Any = lambda asked: web.json_response(UP), mode: AuthMode = "kube", longest: float = relay.LONGEST
) -> AsyncIterator[tuple[Scene, loopback.Loopback]]:
    async with loopback.serve(answer) as source, prometheus.Prometheus(source.url) as asked:

        def routes(scene: Scene) -> Any:
            return [relay.make_route({"gpus": asked, "far": asked}, scene.rights, lambda: scene.now, longest)]

        async with open_scene(mode, more=routes) as scene:
            yield scene, source


async def test_who_may_see_everything_asks_prometheus_and_gets_its_answer_as_it_is() -> None:
    async with relaying() as (scene, source):
        answer = await scene.ask("GET", f"{PATH}?query=up%7Bjob%3D%22x%22%7D&time=1700000000", token="of-bob")
        assert (answer.status, answer.body) == (200, UP)
        (asked,) = source.asked
        assert (asked.form["query"], asked.form["time"]) == ('up{job="x"}', "1700000000.000")
        await scene.ask("GET", f"{PATH}?query=up", token="of-bob")
        assert source.asked[1].form["time"] == f"{scene.now:.3f}"


@pytest.mark.parametrize(("mode", "token", "status"), [
    ("kube", "", 401), ("kube", "of-nobody", 401), ("kube", "of-eve", 403), ("email", "", 403), ("proxy", "", 401),
])
async def test_nobody_else_asks_anything(mode: AuthMode, token: str, status: int) -> None:
    async with relaying(mode=mode) as (scene, source):
        assert (await scene.ask("GET", f"{PATH}?query=up", token=token)).status == status
        assert source.asked == []


ODD = [
    "", "?query=", "?query=up&time=noon", "?query=up&time=nan", "?query=up&time=1e300", "?query=up&step=5",
    "?query=" + "x" * 20_000,
]


@pytest.mark.parametrize("asked", ODD, ids=lambda text: text[:20])
async def test_what_is_no_question_is_refused(asked: str) -> None:
    async with relaying() as (scene, source):
        answer = await scene.ask("GET", PATH + asked, token="of-ada")
        assert (answer.status, answer.code, source.asked) == (400, "BadParameter", [])


@pytest.mark.parametrize("path", [
    "/prom/other/api/v1/query?query=up", "/prom/gpus/api/v1/query_range?query=up", "/prom/gpus/api/v1/admin/tsdb",
    "/prom/gpus/../gpus/api/v1/labels",
])
async def test_other_paths_and_clusters_are_not_there(path: str) -> None:
    async with relaying() as (scene, source):
        assert (await scene.ask("GET", path, token="of-ada")).status == 404
        assert source.asked == []


async def test_an_answer_is_ten_mebibytes_at_most() -> None:
    for size, status in ((relay.MOST_BYTES, 200), (relay.MOST_BYTES + 1, 502)):
        async with relaying(lambda asked, size=size: web.Response(body=b"x" * size)) as (scene, _):
            answer = await scene.ask("GET", f"{PATH}?query=up", token="of-ada")
            assert answer.status == status


async def test_a_question_takes_thirty_seconds_at_most() -> None:
    assert relay.LONGEST == 30.0
    never = asyncio.Event()

    async def hang(asked: loopback.Asked) -> web.Response:
        await never.wait()
        return web.Response()

    async with relaying(hang, longest=0.05) as (scene, _):
        answer = await scene.ask("GET", f"{PATH}?query=up", token="of-ada")
        assert (answer.status, answer.code) == (504, "TooSlow")
        never.set()


async def test_what_prometheus_refuses_is_said() -> None:
    words = {"status": "error", "errorType": "bad_data", "error": "parse error: unexpected )"}
    async with relaying(lambda asked: web.json_response(words, status=400)) as (scene, _):
        answer = await scene.ask("GET", f"{PATH}?query=up)", token="of-ada")
        assert (answer.status, answer.code) == (400, "BadQuery")
        assert "unexpected )" in answer.message
    async with relaying(lambda asked: web.Response(status=503)) as (scene, _):
        assert (await scene.ask("GET", f"{PATH}?query=up", token="of-ada")).status == 502


async def test_a_further_cluster_is_asked_by_its_name_and_an_unknown_one_is_nobody() -> None:
    async with relaying() as (scene, source):
        assert (await scene.ask("GET", "/prom/far/api/v1/query?query=up", token="of-bob")).status == 200
        assert len(source.asked) == 1
        unknown = await scene.ask("GET", "/prom/near/api/v1/query?query=up", token="of-bob")
        assert (unknown.status, "'gpus', 'far'" in unknown.message) == (404, True)
        assert len(source.asked) == 1
