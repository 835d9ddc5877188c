"""Nodes that come and go, on loopback: what was being let go when everything of ours ended, and others that hang."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
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
from fallow.observe.scaling import clouds, sight
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
    """`ails`: how often a list of nodes fails first. `has_kind`: AutoscalingPolicies are served; these are there."""

    def __init__(
        self, there: dict[str, Any], *, ails: int = 0, has_kind: bool = True, policies: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.node, self.ails, self.has_kind, self.node_lists = there, ails, has_kind, 0
        self.policies = list(policies)

    async def answer(self, asked: loopback.Asked) -> web.Response:
        if "watch" in asked.query:
            await asyncio.sleep(30)
        if asked.path.endswith("/autoscalingpolicies"):
            status = 200 if self.has_kind else 404
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.policies}, status=status)
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


def start(
    api: kube.Api, use: Callable[[float], Awaitable[DeviceUse]] = _know_nothing, cloud: Any = None
) -> tuple[sight.ScalingEyes, scaling.ScalingStory]:
    sources = sight.ScalingSources(use=use, why_kept=_keep_nobody, find_cloud=lambda policy: cloud, patience=0.5)
    eyes = sight.ScalingEyes(api, sources)
    announcer, statuses = events.Announcer(api, reporting_instance="test"), scaling_statuses.ScalingStatuses(api)
    return eyes, scaling.ScalingStory(
        eyes=eyes, find_cloud=lambda policy: cloud, account=ScalingAccount(telemetry.Telemetry(), put=lambda _: None),
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


class HangingCloud:
    """It takes every question, and answers none."""

    def __getattr__(self, name: str) -> Any:
        async def hang(*_: object) -> Any:
            await asyncio.sleep(3600)

        return hang


async def _hang(_: float) -> DeviceUse:
    await asyncio.sleep(3600)
    return {}


@pytest.mark.accepts("scaling", 1)
async def test_who_takes_questions_and_answers_none_does_not_end_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus, the cloud and its queue, all at once: pods that wait are still counted, and drains go on or end."""
    monkeypatch.setattr(clouds, "PATIENCE", 0.5)
    monkeypatch.setattr(clouds, "HEARD", 0.5)
    policy = {
        "metadata": {"name": "gone", "uid": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {
            "provider": "custom", "driver": "direct", "mode": "act",
            "nodePools": [{"name": "main", "capacityType": "on-demand", "group": "g"}],
        },
    }
    old = msgspec.structs.replace(RECORD, since=NOW - 3600)
    server = Server(node(**{names.SCALE_DOWN: nouns.write(old)}), policies=[policy])
    async with loopback.serve(server.answer) as at, kube.Api(config.Access(server=at.url, context="test")) as api:
        eyes, story = start(api, _hang, HangingCloud())
        await eyes.list_once()
        turn = Turn(
            clock=lambda: NOW, monotonic=time.monotonic, budget=5, stopping=asyncio.Event(), leads=lambda: True
        )
        made = await story.tick(turn)
        (sent,) = [each for each in at.asked if each.method == "PATCH" and each.path == "/api/v1/nodes/gpu-1"]
    assert made.plan is not None
    assert "does not answer" in made.plan.policies[0].because
    assert msgspec.json.decode(sent.body)["spec"]["unschedulable"] is None
