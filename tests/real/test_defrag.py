"""A pod moved for another that waits, by the real scheduler with the extender beside it: both places are kept before
anybody is evicted. Every turn begins with nothing remembered, as after a kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from fallow import names, telemetry
from fallow.act import events
from fallow.act.moving import Mover
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import moving, units
from fallow.model.history import AuditEntry
from fallow.model.policies import idle
from fallow.observe.cluster import mirror, moved
from fallow.stories import defrag
from fallow.stories.turn import Turn
from fallow.wiring import consolidation
from fallow.wiring.ground import Groundwork
from tests.real import cluster as clusters
from tests.real import world
from tests.real.test_extender import Extender, scheduler

Start = Callable[[world.Options], Awaitable[clusters.Cluster]]
OLD, NEW = "Tesla-T4", "NVIDIA-A100-SXM4-80GB"


class Stage:
    """`any` has the one GPU of node `new`, which `picky` waits for; the GPU of node `old` is free."""

    def __init__(self, cluster: clusters.Cluster, extender: Extender) -> None:
        self.cluster, self.extender, self.later = cluster, extender, 700.0
        self.entries: list[AuditEntry] = []
        self.cycle = defrag.DefragCycle()  # of the last turn
        self.metrics = telemetry.Telemetry()

    def clock(self) -> float:
        return time.time() + self.later

    async def build(self) -> None:
        await self.cluster.gpu_node("new", gpus=1, product=NEW)
        await self.cluster.deployment("any")
        await self.cluster.gpu_node("old", gpus=1, product=OLD)
        picky = clusters.replicated("apps/v1", "Deployment", "picky", 1, 1, nodeSelector={names.GPU_PRODUCT: NEW})
        await self.cluster.apply(picky)
        await self.cluster.wait_until(lambda: self.is_stuck("picky"))

    async def start_extender(self) -> None:
        """And somebody comes and goes for whom it is asked: kube-scheduler does not for a pod that fits nowhere."""
        await self.extender.start(self.cluster)
        await self.cluster.deployment("asks")
        (made,) = await self.cluster.objects("apps/v1", "Deployment", fieldSelector="metadata.name=asks")
        await self.cluster.patch(made, {"spec": {"replicas": 0}})
        await self.cluster.wait_until(lambda: _is_gone(self, "asks"))

    async def is_stuck(self, app: str) -> bool:
        found = await self.cluster.pods(f"app={app}")
        said = [one for pod in found for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
        return bool(found) and all(one["status"] == "False" for one in said) and bool(said)

    @contextlib.asynccontextmanager
    async def fresh(self, *, is_acting: bool) -> AsyncIterator[defrag.DefragStory]:
        access = config.load_access(kubeconfig=str(self.cluster.kubeconfig), context=None, environment={})
        async with kube.Api(access) as api, mirror.Mirror(api) as seen:
            await seen.list_all(self.clock())
            eyes = consolidation.make_eyes(cast(Groundwork, types.SimpleNamespace(
                api=api, seen=seen, clock=self.clock, options=types.SimpleNamespace(mandate=idle.Mandate()),
            )))

            async def enter(entry: AuditEntry) -> None:
                self.entries.append(entry)

            yield defrag.DefragStory(
                eyes=defrag.DefragEyes(
                    moves=moved.MoveEyes(api, eyes.nodes.why_fixed, self.cluster.namespace), waits=lambda _: True,
                    served=frozenset, capacity=eyes.capacity, why_kept=eyes.why_kept,
                ),
                hands=Mover(api, events.Announcer(api, reporting_instance="test")), metrics=self.metrics,
                terms=defrag.DefragTerms(held=lambda now: "" if is_acting else "switched off", enter=enter),
            )

    async def turn(self, *, is_acting: bool = True) -> str:
        """One turn of a process that was just started."""
        async with self.fresh(is_acting=is_acting) as story:
            turn = Turn(
                clock=self.clock, monotonic=time.monotonic, budget=60.0,
                stopping=asyncio.Event(), leads=lambda: True,
            )
            self.cycle = await story.tick(turn)
            return self.cycle.done

    async def turn_until(self, words: str, **more: Any) -> str:
        said: list[str] = []

        async def look() -> bool:
            said.append(await self.turn(**more))
            return words in said[-1]

        try:
            await self.cluster.wait_until(look, timeout=60)
        except TimeoutError:
            raise AssertionError(f"never {words!r}: {said}") from None
        return said[-1]

    async def marks(self, name: str) -> dict[str, str]:
        found = (await self.cluster.get("v1", "Node", name))["metadata"]
        both = {**found.get("annotations", {}), **found.get("labels", {})}
        return {key: value for key, value in both.items() if key in (
            names.MOVE, names.PLACE_HELD, names.DEFRAG, names.MOVE_RESULT
        )}

    async def where(self, app: str) -> list[str]:
        return [pod["spec"].get("nodeName", "") for pod in await self.cluster.pods(f"app={app}")]

    async def is_kept(self) -> bool:
        found = await self.cluster.get("coordination.k8s.io/v1", "Lease", names.EXTENDER_LEASE)
        said = (moving.read_said(text) for key, text in found["metadata"].get("annotations", {}).items()
                if key.startswith(names.PLACES_KEPT))
        return any(each is not None and len(each.kept) == 2 for each in said)


@pytest.fixture
async def stage(start_control_plane: Start, tmp_path: pathlib.Path) -> AsyncIterator[Stage]:
    extender = Extender(tmp_path)
    cluster = await start_control_plane(world.Options(scheduler=scheduler(extender.url)))
    made = Stage(cluster, extender)
    await made.build()
    yield made
    extender.stop()


async def test_both_places_are_kept_from_others_and_the_waiting_pod_comes_in(stage: Stage) -> None:
    await stage.start_extender()
    (before,) = await stage.cluster.pods("app=any")
    assert await stage.turn(is_acting=False) == ""
    assert await stage.marks("new") == {} == await stage.marks("old")
    assert stage.cycle.choice is not None
    assert (stage.cycle.choice.source, stage.cycle.choice.target) == ("new", "old")
    await stage.turn_until("waits and fits where")
    assert (await stage.marks("new"))[names.DEFRAG] == names.BEING_LEFT
    assert "a place is kept on old" in await stage.turn()
    assert stage.cycle.move is not None
    assert (stage.cycle.source, stage.cycle.move.target, stage.cycle.choice) == ("new", "old", None)
    await stage.cluster.wait_until(stage.is_kept)
    # Whoever comes now would take the free GPU of `old`; the scheduler alone sees nothing against it.
    await stage.cluster.apply(clusters.replicated("apps/v1", "Deployment", "thief", 1, 1))
    await stage.cluster.wait_until(lambda: stage.is_stuck("thief"))
    (thief,) = await stage.cluster.pods("app=thief")
    (why,) = [one["message"] for one in thief["status"]["conditions"] if one["type"] == "PodScheduled"]
    assert "kept for a pod that is moved" in why
    await stage.turn_until("was evicted")
    await stage.turn_until("Moved: ")
    assert stage.cycle.move is None
    assert (await stage.where("picky"), await stage.where("any")) == (["new"], ["old"])
    (after,) = await stage.cluster.pods("app=any")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert await stage.where("thief") == [""]
    assert await stage.marks("old") == {}
    left = await stage.marks("new")
    assert (set(left), left[names.DEFRAG]) == ({names.DEFRAG, names.MOVE_RESULT}, "done")
    assert [entry.type for entry in stage.entries] == ["moveBegun", "podMoved"]
    told = {event["reason"] for event in await stage.cluster.events(namespace="default")}
    assert {"PodMoving", "PodMoved"} <= told
    assert 'gpu_autoscaler_defrag_moves_total{outcome="Moved"} 1.0' in stage.metrics.text().decode()
    assert await stage.turn() == "", "not again within the hour: two nodes allow one"


async def test_an_acknowledgement_that_comes_once_both_places_are_kept_keeps_the_pod(stage: Stage) -> None:
    await stage.start_extender()
    (before,) = await stage.cluster.pods("app=any")
    await stage.turn_until("waits and fits where")
    assert "a place is kept on old" in await stage.turn()
    await stage.cluster.wait_until(stage.is_kept)
    (any_,) = await stage.cluster.objects("apps/v1", "Deployment", fieldSelector="metadata.name=any")
    until = units.rfc3339(stage.clock() + 3600)
    await stage.cluster.patch(any_, {"metadata": {"annotations": {names.ACK_UNTIL: until}}})
    assert "Unmovable: " in await stage.turn()
    (after,) = await stage.cluster.pods("app=any")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_switched_off_after_the_eviction_both_come_to_their_places(stage: Stage) -> None:
    await stage.start_extender()
    await stage.turn_until("waits and fits where")
    await stage.turn_until("was evicted")
    await stage.turn_until("Moved: ", is_acting=False)
    assert (await stage.where("picky"), await stage.where("any")) == (["new"], ["old"])


async def test_without_an_extender_nobody_is_evicted(stage: Stage) -> None:
    (before,) = await stage.cluster.pods("app=any")
    await stage.turn_until("waits and fits where")
    await stage.turn()
    assert "does not keep both places yet" in await stage.turn()
    stage.later += 121
    assert "NotKept" in await stage.turn()
    assert await stage.marks("old") == {}
    assert names.PLACE_HELD not in await stage.marks("new")
    (after,) = await stage.cluster.pods("app=any")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_while_no_scheduler_has_asked_the_extender_nobody_is_evicted(stage: Stage) -> None:
    await stage.extender.start(stage.cluster)
    await stage.turn_until("waits and fits where")
    assert "a place is kept on old" in await stage.turn()
    for _ in range(5):
        assert "does not keep both places yet" in await stage.turn()
        await asyncio.sleep(1)


@pytest.mark.accepts("packing", 20)
async def test_a_budget_that_allows_nothing_keeps_the_pod_and_both_places_are_free_again(stage: Stage) -> None:
    await stage.start_extender()
    await stage.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "any"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "any"}}},
    })

    async def is_counted() -> bool:
        found = await stage.cluster.get("policy/v1", "PodDisruptionBudget", "any")
        return found.get("status", {}).get("currentHealthy") == 1

    await stage.cluster.wait_until(is_counted)
    (before,) = await stage.cluster.pods("app=any")
    assert "disruption budget" in await stage.turn_until("was not evicted")
    assert "disruption budget" in (await stage.marks("new"))[names.MOVE]
    stage.later += 601
    assert "Refused: " in await stage.turn()
    assert await stage.marks("old") == {}
    assert "disruption budget" in (await stage.marks("new"))[names.MOVE_RESULT]
    (after,) = await stage.cluster.pods("app=any")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await stage.cluster.deployment("next")
    assert await stage.where("next") == ["old"], "what was kept is free again"


async def test_switched_off_robbed_of_its_record_or_no_longer_needed_it_ends(stage: Stage) -> None:
    await stage.start_extender()
    node, target = [await stage.cluster.get("v1", "Node", name) for name in ("new", "old")]
    (picky,) = await stage.cluster.objects("apps/v1", "Deployment", fieldSelector="metadata.name=picky")
    (first,) = await stage.cluster.pods("app=any")
    for change, reason in (
        (None, "SwitchedOff"), ((node, {"metadata": {"annotations": {names.MOVE: "{"}}}), "RecordBroken"),
        ((target, {"spec": {"unschedulable": True}}), "ChangedByOther"),
        ((picky, {"spec": {"replicas": 0}}), "NotNeeded"),
    ):
        await stage.turn_until("waits and fits where")
        assert "a place is kept on old" in await stage.turn()
        if change is not None:
            await stage.cluster.patch(*change)
        if reason == "NotNeeded":
            await stage.cluster.wait_until(lambda: _is_gone(stage, "picky"))
        assert reason in await stage.turn(is_acting=change is not None)
        await stage.turn(is_acting=False)  # a place that no record knows of any more is tidied away
        assert await stage.marks("old") == {}, reason
        assert names.PLACE_HELD not in await stage.marks("new")
        await stage.cluster.patch(node, {"metadata": {"labels": {names.DEFRAG: None}}})  # an hour later
        await stage.cluster.patch(target, {"spec": {"unschedulable": None}})
    (last,) = await stage.cluster.pods("app=any")
    assert last["metadata"]["uid"] == first["metadata"]["uid"], "nobody was evicted"


async def _is_gone(stage: Stage, app: str) -> bool:
    return not await stage.cluster.pods(f"app={app}")
