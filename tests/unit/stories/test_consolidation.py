"""A node that is being emptied, on loopback: nobody is moved before what people said is seen."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from tests.unit.clients import loopback

from fallow import names, telemetry
from fallow.act import emptying as acting
from fallow.act import events
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import packing
from fallow.model import cluster, emptying
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
