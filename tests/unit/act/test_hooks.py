"""The hooks that pods ask for: only their own address, every one of them, in time."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.unit.act.examples import pod

from fallow.act import hooks
from fallow.model import cluster
from fallow.model.policies import idle


@pytest.mark.parametrize(
    ("hook", "ip", "url"),
    [
        (":8080/save", "10.0.0.1", "http://10.0.0.1:8080/save"),
        (":80", "10.0.0.1", "http://10.0.0.1:80/"),
        (":80/a?b=c", "fd00::1", "http://[fd00::1]:80/a?b=c"),
        ("8080/save", "10.0.0.1", None),
        (":99999/x", "10.0.0.1", None),
        (":80@evil.example/x", "10.0.0.1", None),
        ("http://evil.example/", "10.0.0.1", None),
        (":80/a b", "10.0.0.1", None),
        (":80/x", "", None),
        ("", "10.0.0.1", None),
    ],
)
def test_only_the_pods_own_address_is_ever_called(hook: str, ip: str, url: str | None) -> None:
    assert hooks.address(pod(ip=ip, hook=hook)) == url


@pytest.mark.parametrize("status", [200, 204, 302, 404, 500])
async def test_a_hook_must_answer_2xx_at_every_pod(status: int) -> None:
    called: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        called.append(f"{request.method} {request.path}")
        failing = request.path == "/b" and status
        return web.Response(status=failing or 200, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, host="127.0.0.1") as listening:
        pods = [pod(name, hook=f":{listening.port}/{name}") for name in ("a", "b")]
        complaint = await hooks.call([*pods, pod("silent")], 5.0)
    assert sorted(called) == ["POST /a", "POST /b"]
    assert complaint == (None if status < 300 else f"the hook of pod b answered {status}")


async def test_a_hook_that_hangs_is_given_up() -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/save", hang)
    async with TestServer(app, host="127.0.0.1") as listening:
        complaint = await hooks.call([pod("a", hook=f":{listening.port}/save")], 0.05)
        release.set()
    assert complaint == "the hook of pod a did not answer within 0.05 s"


async def test_the_hooks_of_a_namespace_share_one_budget_in_a_cycle() -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/save", hang)
    asking, hook = hooks.Hooks(budget=0.8), idle.Hook(timeout=0.5)
    greedy, other = (cluster.Ref("apps", "v1", "Deployment", place, "llm", place) for place in ("greedy", "other"))
    async with TestServer(app, host="127.0.0.1") as listening:
        pods = [pod("a", hook=f":{listening.port}/save")]
        said = [await asking.ask(ref, pods, hook, 1.0) for ref in (greedy, greedy, greedy, other)]
        said.append(await asking.ask(greedy, pods, hook, 2.0))
        release.set()
    used_up = "not paused in this cycle: the hooks of namespace greedy have used up their time"
    assert [one is not None and one[0] == used_up for one in said] == [False, False, True, False, False]
    assert said[2] == (used_up, None)
    assert said[3] == ("not paused in this cycle: the hook of pod a did not answer within 0.5 s", None)
