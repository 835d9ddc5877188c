"""A node that is being emptied, on loopback: nobody is moved before what people said is seen."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web
from tests import builders
from tests.unit.clients import loopback
from tests.unit.decide.packing import test_live

from fallow import names, telemetry
from fallow.act import emptying as acting
from fallow.act import events
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import packing
from fallow.model import cluster, emptying, units
from fallow.model.capacity import Machine, Needs
from fallow.observe.cluster import emptied
from fallow.stories import consolidation
from fallow.stories.turn import Turn

NOW = 1_800_000_000.0
LEAVING = emptying.Leaving("u1", "ml", "p", "o", 1, NOW - 10)
RECORD = emptying.EmptyingRecord(v=1, since=NOW - 60, cordoned_by_us=True, because="x", leaving=LEAVING)
NODE = {
    "metadata": {
        "name": "n", "uid": "n-1", "resourceVersion": "7", "labels": {names.CONSOLIDATION: names.BEING_EMPTIED},
        "annotations": {names.EMPTYING: emptying.write(RECORD)},
    },
    "spec": {"unschedulable": True},
}
POD = {
    "metadata": {"name": "p", "namespace": "ml", "uid": "u1", "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": True},
    ]},
    "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": "Running"},
}


def answer(asked: loopback.Asked) -> web.Response:
    if asked.method != "GET":
        return web.json_response(NODE)
    if asked.path == "/api/v1/nodes/n":
        return web.json_response(NODE)
    return web.json_response({"metadata": {}, "items": [NODE if asked.path == "/api/v1/nodes" else POD]})


async def capacity() -> cluster.Capacity:
    raise AssertionError("nothing is planned while a node is emptied")


async def blind() -> packing.WhyKept:
    raise errors.Unreachable("pods are not seen yet")


@pytest.mark.parametrize(("held", "changed"), [("", set()), ("switched off", {"/api/v1/nodes/n"})])
async def test_whoever_begins_blind_moves_nobody_and_gives_back_all_the_same(held: str, changed: set[str]) -> None:
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        story = consolidation.ConsolidationStory(
            eyes=consolidation.ConsolidationEyes(emptied.NodeEyes(api, lambda *_: ""), capacity, blind),
            hands=acting.Emptier(api, events.Announcer(api, reporting_instance="test")),
            metrics=telemetry.Telemetry(), terms=consolidation.ConsolidationTerms(held=lambda _: held),
        )
        turn = Turn(clock=lambda: NOW, monotonic=lambda: 0.0, budget=60, stopping=asyncio.Event(), leads=lambda: True)
        if held:
            assert "SwitchedOff" in (await story.tick(turn)).done
        else:
            with pytest.raises(errors.Unreachable):
                await story.tick(turn)
        written = {each.path for each in server.asked if each.method != "GET" and "events" not in each.path}
        assert written == changed


class Quarry:
    """Two nodes with GPUs, one of them half in use by shares; or nobody answers."""

    def __init__(self) -> None:
        self.is_away = False
        self.metrics = telemetry.Telemetry()
        self.story = consolidation.ConsolidationStory(
            eyes=consolidation.ConsolidationEyes(cast(emptied.NodeEyes, self), self.look_around, self.why_kept),
            hands=cast(acting.Emptier, None), metrics=self.metrics,
            terms=consolidation.ConsolidationTerms(held=lambda _: "it only looks"),
        )

    async def find_touched(self) -> list[emptied.TouchedNode]:
        return []

    async def why_kept(self) -> packing.WhyKept:
        return lambda _: ""

    async def look_around(self) -> cluster.Capacity:
        if self.is_away:
            raise errors.Unreachable("away")
        machines = tuple(
            Machine(name=name, product="NVIDIA-A100-SXM4-80GB", cpu=64_000, memory=500_000, gpus=2, pods=100)
            for name in ("a", "b")
        )
        needs = Needs(cpu=1000, memory=1000, gpus=1)
        world = builders.World()
        world.pod("holds", node="a", needs=needs)
        return cluster.Capacity(machines, tuple(world.pods), "c-1", 0)

    async def tick(self, at: float) -> None:
        turn = Turn(clock=lambda: at, monotonic=lambda: 0.0, budget=60, stopping=asyncio.Event(), leads=lambda: True)
        try:
            await self.story.tick(turn)
        except errors.ClientError as problem:
            self.story.fail(str(problem), turn)

    def read(self, begin: str) -> list[str]:
        return [line for line in self.metrics.text().decode().splitlines() if line.startswith(begin)]


async def test_what_is_free_is_told_as_long_as_somebody_looks_and_no_old_figure_stays() -> None:
    quarry = Quarry()
    await quarry.tick(NOW)
    assert quarry.read("gpu_autoscaler_capacity_gpus ") == ["gpu_autoscaler_capacity_gpus 4.0"]
    assert quarry.read("gpu_autoscaler_allocated_gpus ") == ["gpu_autoscaler_allocated_gpus 1.0"]
    assert quarry.read("gpu_autoscaler_packing_bound_ratio ") == ["gpu_autoscaler_packing_bound_ratio 0.25"]
    assert quarry.read("gpu_memory_fragmentation_score{") == [
        f'gpu_memory_fragmentation_score{{gpu_id="{gpu}",node="{node}"}} 0.0' for node in "ab" for gpu in (0, 1)
    ]
    quarry.is_away = True
    await quarry.tick(NOW + consolidation.PLANNED)
    for name in ("capacity_gpus", "allocated_gpus", "fragmentation_ratio", "packing_bound_ratio"):
        assert quarry.read(f"gpu_autoscaler_{name} ") == [f"gpu_autoscaler_{name} NaN"]
    assert not quarry.read("gpu_memory_fragmentation_score{")
    quarry.is_away = False
    await quarry.tick(NOW + 2 * consolidation.PLANNED)
    assert quarry.read("gpu_autoscaler_capacity_gpus ") == ["gpu_autoscaler_capacity_gpus 4.0"]


@pytest.mark.parametrize(("result", "begins"), [
    ("Refused: ml/p could not be evicted", False), ("NotTaken: it was empty, and nobody took it away", True),
], ids=["refused", "not-taken"])
async def test_a_node_that_somebody_would_not_leave_is_not_tried_again_two_hours_later(
    result: str, begins: bool
) -> None:
    past = {
        "metadata": {
            "name": "low", "uid": "n-low", "resourceVersion": "7", "labels": {names.CONSOLIDATION: "done"},
            "annotations": {names.EMPTYING_RESULT: f"{units.rfc3339(NOW - 7200)} {result}"},
        },
    }

    def speak(asked: loopback.Asked) -> web.Response:
        is_list = asked.path in ("/api/v1/nodes", "/api/v1/pods")
        listed = [past] if asked.path == "/api/v1/nodes" else []
        return web.json_response({"metadata": {}, "items": listed} if is_list else past)

    async def count() -> cluster.Capacity:
        pods = (test_live.tenant("p", "low"), *(test_live.tenant(f"u{number}", "used") for number in range(2)))
        return cluster.Capacity((test_live.machine("low", 4), test_live.machine("used", 4)), pods, "c", 0)

    async def keep_nobody() -> packing.WhyKept:
        return lambda _: ""

    async with loopback.serve(speak) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        story = consolidation.ConsolidationStory(
            eyes=consolidation.ConsolidationEyes(emptied.NodeEyes(api, lambda *_: ""), count, keep_nobody),
            hands=acting.Emptier(api, events.Announcer(api, reporting_instance="test")),
            metrics=telemetry.Telemetry(), terms=consolidation.ConsolidationTerms(held=lambda _: ""),
        )
        turn = Turn(clock=lambda: NOW, monotonic=lambda: 0.0, budget=60, stopping=asyncio.Event(), leads=lambda: True)
        assert ("it is emptied" in (await story.tick(turn)).done) is begins
        written = [each for each in server.asked if each.method == "PATCH" and each.path == "/api/v1/nodes/low"]
    assert bool(written) is begins
