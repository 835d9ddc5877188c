"""A node emptied on a real API server: budgets of pods are heeded, nobody is lost, and whoever is killed between two
steps leaves a node that says why it is cordoned. Every turn begins with nothing remembered, as after a kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fallow import names, telemetry
from fallow.act import emptying as acting
from fallow.act import events
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import packing
from fallow.model import cluster as nouns
from fallow.model import emptying
from fallow.observe.cluster import emptied, hosts
from fallow.stories import consolidation
from fallow.stories.turn import Turn
from tests.real import cluster as clusters


class Stage:
    """node-b has three of four GPUs in use, node-a one; ten minutes later."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.cluster, self.later = cluster, 700.0

    async def build(self) -> None:
        for name in ("node-a", "node-b"):
            await self.cluster.gpu_node(name, gpus=4)
        here = {"kubernetes.io/hostname": "node-b"}
        await self.cluster.deployment("busy", 3, nodeSelector=here)
        node = await self.cluster.get("v1", "Node", "node-b")
        await self.cluster.patch(node, {"spec": {"unschedulable": True}})
        await self.cluster.deployment("moved", gpus=1)
        await self.cluster.patch(node, {"spec": {"unschedulable": None}})

    @contextlib.asynccontextmanager
    async def fresh(self, *, is_acting: bool, timeout: float) -> AsyncIterator[consolidation.ConsolidationStory]:
        access = config.load_access(kubeconfig=str(self.cluster.kubeconfig), context=None, environment={})
        async with kube.Api(access) as api:
            announcer = events.Announcer(api, reporting_instance="test")

            async def look() -> nouns.Capacity:
                return await hosts.look(api)

            async def look_who_is_kept() -> packing.WhyKept:
                return lambda pod: ""

            nodes = emptied.NodeEyes(api, packing.why_fixed)
            yield consolidation.ConsolidationStory(
                eyes=consolidation.ConsolidationEyes(nodes, look, look_who_is_kept),
                hands=acting.Emptier(api, announcer), metrics=telemetry.Telemetry(),
                terms=consolidation.ConsolidationTerms(
                    held=lambda now: "" if is_acting else "switched off", timeout=timeout
                ),
            )

    async def turn(self, *, is_acting: bool = True, timeout: float = 600.0) -> str:
        """One turn of a process that was just started."""
        async with self.fresh(is_acting=is_acting, timeout=timeout) as story:
            turn = Turn(
                clock=lambda: time.time() + self.later, monotonic=time.monotonic, budget=60.0,
                stopping=asyncio.Event(), leads=lambda: True,
            )
            return (await story.tick(turn)).done

    async def node(self, name: str = "node-a") -> tuple[bool, dict[str, str]]:
        found = await self.cluster.get("v1", "Node", name)
        ours = {key: value for key, value in found["metadata"].get("annotations", {}).items() if names.GROUP in key}
        assert not found["spec"].get("unschedulable") or names.EMPTYING in ours, "cordoned without a reason"
        return bool(found["spec"].get("unschedulable")), ours

    async def turn_until(self, holds: Any, **more: Any) -> str:
        said: list[str] = []

        async def look() -> bool:
            said.append(await self.turn(**more))
            await self.node()
            return bool(holds(said[-1]))

        await self.cluster.wait_until(look)
        return said[-1]

    async def where(self, app: str) -> list[str]:
        return [pod["spec"].get("nodeName", "") for pod in await self.cluster.pods(f"app={app}")]


@pytest.fixture
def stage(cluster: clusters.Cluster) -> Stage:
    return Stage(cluster)


async def test_a_node_is_emptied_pod_by_pod_and_given_back_if_nobody_takes_it(stage: Stage) -> None:
    await stage.build()
    assert await stage.turn(is_acting=False) == ""
    assert (await stage.node())[0] is False
    assert "it is emptied: 1 of its 4 GPUs are in use" in await stage.turn()
    cordoned, marks = await stage.node()
    record = emptying.read(marks[names.EMPTYING])
    assert (cordoned, record is not None and record.cordoned_by_us) == (True, True)
    assert "was evicted" in await stage.turn()
    await stage.turn_until(lambda said: said.endswith("it is empty"))
    assert await stage.where("moved") == ["node-b"]
    stage.later += 1801
    assert "NotTaken" in await stage.turn()
    cordoned, marks = await stage.node()
    assert (cordoned, names.EMPTYING in marks) == (False, False)
    assert "NotTaken: it was empty, and nobody took it away" in marks[names.EMPTYING_RESULT]
    told = {event["reason"] for event in await stage.cluster.events(namespace="default")}
    assert {"NodeEmptying", "NodeEmptied", "NodeEmptyingStopped"} <= told


@pytest.mark.accepts("packing", 20)
async def test_a_budget_that_allows_nothing_keeps_the_pod_and_the_node_is_given_back(stage: Stage) -> None:
    await stage.build()
    await stage.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "moved"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "moved"}}},
    })

    async def is_counted() -> bool:
        found = await stage.cluster.get("policy/v1", "PodDisruptionBudget", "moved")
        return found.get("status", {}).get("currentHealthy") == 1

    await stage.cluster.wait_until(is_counted)
    (before,) = await stage.cluster.pods("app=moved")
    assert "it is emptied" in await stage.turn()
    assert "disruption budget" in await stage.turn()
    cordoned, marks = await stage.node()
    assert (cordoned, "disruption budget" in marks[names.EMPTYING]) == (True, True)
    assert "disruption budget" in await stage.turn()  # again and again, until it has lasted
    stage.later += 601
    assert "Refused: " in await stage.turn()
    cordoned, marks = await stage.node()
    assert (cordoned, names.EMPTYING in marks) == (False, False)
    assert "could not be evicted for 600 s" in marks[names.EMPTYING_RESULT]
    assert "disruption budget" in marks[names.EMPTYING_RESULT]
    (after,) = await stage.cluster.pods("app=moved")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert await stage.turn() == ""  # not again within the hour


@pytest.mark.accepts("packing", 20)
async def test_switched_off_or_uncordoned_by_somebody_or_robbed_of_its_record_it_ends(stage: Stage) -> None:
    await stage.build()
    node = await stage.cluster.get("v1", "Node", "node-a")
    for change, reason in (
        (None, "SwitchedOff"), ({"spec": {"unschedulable": None}}, "ChangedByOther"),
        ({"metadata": {"annotations": {names.EMPTYING: "{"}}}, "RecordBroken"),
    ):
        assert "it is emptied" in await stage.turn()
        if change is not None:
            await stage.cluster.patch(node, change)
        assert reason in await stage.turn(is_acting=change is not None)
        cordoned, marks = await stage.node()
        assert (cordoned, names.EMPTYING in marks, reason in marks[names.EMPTYING_RESULT]) == (False, False, True)
        await stage.cluster.patch(node, {"metadata": {"labels": {names.CONSOLIDATION: None}}})  # an hour later
    assert await stage.where("moved") == ["node-a"]
