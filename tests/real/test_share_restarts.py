"""Whom sharing hurt is restarted, rolling, on a real API server and within the bounds of our own account."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import msgspec
import pytest

from fallow import names, telemetry
from fallow.act import share_statuses
from fallow.model import units
from fallow.model.history import AuditEntry, Happened
from fallow.model.policies import sharing_crd
from fallow.model.policies.sharing import HurtGuard
from fallow.model.seen import Known, Register
from fallow.model.share_hurts import RevertsKept, ShareRevert
from fallow.stories import share_guard
from fallow.stories.turn import Turn
from tests import builders
from tests.real import cluster as clusters
from tests.real import test_bounds, test_hands
from tests.unit.act.examples import workload_of
from tests.unit.decide.sharing import scenes

Object = dict[str, Any]
bounded = test_bounds.bounded
SHARED = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "mps", names.OPTIMIZATION_POLICY: "small"}
DAEMONS: Object = {
    "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "daemons"},
    "spec": {"selector": {"matchLabels": {"app": "llm"}}, "template": test_hands.TEMPLATE},
}


class Yard:
    """Owners on a real server that are in back-off and still share."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.cluster, self.now, self.world = cluster, time.time(), builders.World()
        self.until, self.entries, self.reverts = units.rfc3339(self.now + 86_000), list[AuditEntry](), list[str]()

    async def add(self, manifest: Object, name: str, **spec: Any) -> Object:
        made = copy.deepcopy(manifest)
        marks = {names.BACKOFF_UNTIL: self.until, names.REVERTED_POLICY: "small"}
        made["metadata"] = {"name": name, "annotations": marks}
        made["spec"] |= spec
        made["spec"]["selector"] = {"matchLabels": {"app": name}}
        made["spec"]["template"]["metadata"] = {"labels": {"app": name}, "annotations": {"theirs": "stays"}}
        return await test_hands.settled(self.cluster, await self.cluster.apply(made))

    def see(self, *things: Object, hurt: bool = True) -> None:
        """As a mirror would have it; `hurt`: our own status names it."""
        self.world = builders.World()
        for thing in things:
            place = self.world.pod(f"{thing['metadata']['name']}-0", annotations=SHARED)
            self.world.workloads.append(msgspec.structs.replace(workload_of(thing), pods=(place,)))
        self.reverts = [thing["metadata"]["uid"] for thing in things] if hurt else []

    async def tick(self, *, held: str = "", **policy: Any) -> None:
        kept = RevertsKept(tuple(ShareRevert(uid, self.now - 600) for uid in self.reverts))
        asked = scenes.policy(**{
            "guard": HurtGuard(restarts_on_revert=True), "status": sharing_crd.write_reverts(kept), **policy,
        })

        async def enter(entry: AuditEntry) -> None:
            self.entries.append(entry)

        async with test_hands.hands_on(self.cluster) as hands:
            story = share_guard.ShareGuardStory(
                sights=share_guard.GuardSights(
                    policies=lambda: Known((asked,)), pods=lambda: self.world.pods,
                    workloads=lambda: self.world.workloads, read=None,
                    namespaces=lambda: Register(self.world.namespaces), nodes=lambda: Register(self.world.nodes),
                ),
                acts=share_guard.GuardHands(
                    hands=hands, statuses=share_statuses.ShareStatuses(hands.writer._api), held=lambda _: held,
                    enter=enter,
                ),
                metrics=telemetry.Telemetry(),
            )
            await story.tick(Turn(
                clock=lambda: self.now, monotonic=time.monotonic, budget=60.0, stopping=asyncio.Event(),
                leads=lambda: True,
            ))

    async def is_restarted(self, thing: Object) -> bool:
        found = await self.cluster.refresh(thing)
        notes = found["spec"]["template"]["metadata"]["annotations"]
        assert notes["theirs"] == "stays"
        assert (names.RESTARTED_AT in notes) is (names.SHARING_RESTARTED in found["metadata"]["annotations"])
        return names.RESTARTED_AT in notes


@pytest.mark.parametrize("kind", ["deployment", "statefulset", "daemonset"])
async def test_each_kind_that_rolls_is_restarted_once_for_its_back_off(bounded: clusters.Cluster, kind: str) -> None:
    yard = Yard(bounded)
    thing = await yard.add(test_hands.BUILT_IN.get(kind, DAEMONS), f"hurt-{kind}")
    before = thing["metadata"]["generation"]
    yard.see(thing, hurt=False)  # whoever writes our marks on what is his own has nothing restarted by us
    await yard.tick()
    yard.see(thing)
    await yard.tick(guard=HurtGuard())
    await yard.tick(held="frozen")
    assert not await yard.is_restarted(thing)
    await yard.tick()
    assert await yard.is_restarted(thing)
    found = await bounded.refresh(thing)
    assert found["metadata"]["generation"] == before + 1
    await yard.tick()  # by what a mirror that is late shows: it is read again, and nothing is done twice
    yard.see(await bounded.refresh(thing))
    await yard.tick()
    assert (await bounded.refresh(thing))["metadata"]["generation"] == before + 1
    assert [(each.type, each.ref and each.ref.name) for each in yard.entries] == [
        (Happened.restarted, thing["metadata"]["name"])
    ]
    events = await bounded.objects("events.k8s.io/v1", "Event")
    assert [one["regarding"]["name"] for one in events if one["reason"] == names.Event.SHARING_RESTARTED] == [
        thing["metadata"]["name"]
    ]


async def test_one_in_a_turn_and_what_does_not_roll_is_left(bounded: clusters.Cluster) -> None:
    yard, deployment = Yard(bounded), test_hands.BUILT_IN["deployment"]
    left = [
        await yard.add(deployment, "at-once", strategy={"type": "Recreate"}),
        await yard.add(deployment, "paused", paused=True),
    ]
    first, second = [await yard.add(deployment, name) for name in ("first", "second")]
    yard.see(*left, first, second)
    await yard.tick()
    assert [await yard.is_restarted(each) for each in (*left, first, second)] == [False, False, True, False]
    yard.see(*left, await bounded.refresh(first), second)
    await yard.tick()
    assert [await yard.is_restarted(each) for each in (*left, first, second)] == [False, False, True, True]


async def test_a_stolen_token_restarts_nothing_without_the_mark_and_changes_no_template_by_it(
    bounded: clusters.Cluster,
) -> None:
    yard = Yard(bounded)
    thing = await yard.add(test_hands.BUILT_IN["deployment"], "llm")
    restart: Object = {"template": {"metadata": {"annotations": {names.RESTARTED_AT: "2026-11-17T00:00:00Z"}}}}
    mark: Object = {"annotations": {names.SHARING_RESTARTED: yard.until}}
    theirs: Object = {"template": {"metadata": {"annotations": {"theirs": "changed"}}}}
    image: Object = {"template": {"metadata": restart["template"]["metadata"], "spec": {"hostNetwork": True}}}
    async with test_bounds.thief_on(bounded) as thief:
        assert "without a mark" in await thief.is_refused(thing, {"spec": restart})
        await thief.is_refused(thing, {"metadata": {"annotations": {names.SHARING_RESTARTED: "x"}}, "spec": restart})
        for spec in (theirs, image):
            assert "in the spec of" in await thief.is_refused(thing, {"metadata": mark, "spec": spec})
        await thief.send(thing, {"metadata": mark, "spec": restart})
    assert await yard.is_restarted(thing)
