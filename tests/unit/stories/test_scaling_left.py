"""A node that was being let go when everything of ours ended, on loopback: its policy is gone, and nobody says why it
stays cordoned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.unit.clients import loopback

from fallow import names, telemetry
from fallow.account.scaling import ScalingAccount
from fallow.act import events, growing, headroom, leaving, scaling_statuses
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import scaling as deciding
from fallow.model import scaling as nouns
from fallow.observe.scaling import sight
from fallow.observe.usage.device_use import DeviceUse
from fallow.stories import scaling
from fallow.stories.turn import Turn

NOW = 1_800_000_000.0
RECORD = nouns.DrainRecord(
    v=1, policy="gone", since=NOW - 60, reason=nouns.DrainKind.empty, because="x", cordoned_by_us=True
)


def node(**annotations: str) -> dict[str, Any]:
    taint = {"key": names.SCALE_DOWN, "effect": "NoSchedule"}
    return {
        "metadata": {"name": "gpu-1", "uid": "n-1", "resourceVersion": "7", "annotations": annotations, "labels": {}},
        "spec": {"unschedulable": True, "taints": [taint]},
        "status": {"allocatable": {names.GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Server:
    """`ails`: how often a list of nodes fails first. `has_kind`: AutoscalingPolicies are served, of which there is
    none."""

    def __init__(self, there: dict[str, Any], *, ails: int = 0, has_kind: bool = True) -> None:
        self.node, self.ails, self.has_kind, self.node_lists = there, ails, has_kind, 0

    async def answer(self, asked: loopback.Asked) -> web.Response:
        if "watch" in asked.query:
            await asyncio.sleep(30)
        if asked.path.endswith("/autoscalingpolicies"):
            status = 200 if self.has_kind else 404
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []}, status=status)
        if asked.path == "/api/v1/nodes":
            self.node_lists += 1
            if self.node_lists <= self.ails:
                return web.json_response({"code": 403, "reason": "Forbidden"}, status=403)
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [self.node]})
        if asked.path == "/api/v1/nodes/gpu-1":
            return web.json_response(self.node)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})


async def _know_nothing(_: float) -> DeviceUse:
    raise errors.Unreachable("away")


async def _keep_nobody(_: float) -> Callable[[Any], str]:
    return lambda pod: ""


def start(api: kube.Api) -> tuple[sight.ScalingEyes, scaling.ScalingStory]:
    eyes = sight.ScalingEyes(api, sight.ScalingSources(use=_know_nothing, why_kept=_keep_nobody))
    announcer, statuses = events.Announcer(api, reporting_instance="test"), scaling_statuses.ScalingStatuses(api)
    return eyes, scaling.ScalingStory(
        eyes=eyes, find_cloud=lambda policy: None, account=ScalingAccount(telemetry.Telemetry(), put=lambda _: None),
        terms=scaling.ScalingStoryTerms(acts=True), hands=scaling.ScalingHands(
            leaving=leaving.LeavingHands(api, announcer), announcer=announcer, statuses=statuses,
            grower=growing.Grower(statuses, deciding.note_shortage), headroom=headroom.HeadroomHands(api, "home"),
        ),
    )


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def grant() -> Turn:
    return Turn(clock=lambda: NOW, monotonic=lambda: 0.0, budget=60, stopping=asyncio.Event(), leads=lambda: True)


@pytest.mark.parametrize("has_kind", [True, False], ids=["no-policy", "no-such-kind"])
async def test_what_an_earlier_self_had_begun_is_given_back_where_the_policy_is_gone_too(has_kind: bool) -> None:
    server = Server(node(**{names.SCALE_DOWN: nouns.write(RECORD)}), has_kind=has_kind)
    async with loopback.serve(server.answer) as at, kube.Api(config.Access(server=at.url, context="test")) as api:
        eyes, story = start(api)
        following = asyncio.create_task(eyes.run())
        try:
            await asyncio.wait_for(_until(lambda: bool(eyes.touched)), 10)
            made = await story.tick(grant())
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        (sent,) = [each for each in at.asked if each.method == "PATCH" and each.path == "/api/v1/nodes/gpu-1"]
    body = msgspec.json.decode(sent.body)
    assert (body["spec"], body["metadata"]["annotations"][names.SCALE_DOWN]) == (
        {"taints": None, "unschedulable": None}, None
    )
    assert "policy gone is gone" in "; ".join(made.done)


@pytest.mark.parametrize("ails", [0, 2])
async def test_without_a_policy_nodes_are_listed_once_and_followed_by_nobody(
    ails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "_LOOK_AGAIN", 0.05)
    server = Server(node(), ails=ails)
    async with loopback.serve(server.answer) as at, kube.Api(config.Access(server=at.url, context="test")) as api:
        eyes, _ = start(api)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                await eyes.run()
        assert server.node_lists == ails + 1
        assert not [each for each in at.asked if each.path in ("/api/v1/pods",)]
