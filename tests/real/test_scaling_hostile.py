"""Liars and broken clouds, on a real API server: a node that ends is emptied whoever fails, and nobody's machine is
ended by another's claim."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from fallow import names
from fallow.model import scaling, units
from fallow.model.machines import MachineNotice
from fallow.model.scaling import DrainKind, DrainRecord
from tests.real import cluster as clusters
from tests.real.scaling_scene import SCENE, Scene, open_scene


@pytest.fixture
async def scene(cluster: clusters.Cluster) -> AsyncIterator[Scene]:
    async with open_scene(cluster) as made:
        yield made


async def warn(scene: Scene, name: str, lead: float) -> None:
    now = time.time() + scene.later
    said = {names.SPOT_WARNING: units.rfc3339(now), names.SPOT_TERMINATION: units.rfc3339(now + lead)}
    node = await scene.cluster.get("v1", "Node", name)
    await scene.cluster.patch(node, {"metadata": {"annotations": said}})


@pytest.mark.accepts("scaling", 17)
@pytest.mark.parametrize("ails", ["down", "hangs"])
async def test_a_node_that_ends_is_emptied_whether_or_not_its_cloud_answers(scene: Scene, ails: str) -> None:
    await scene.policy()
    ends, stays = await scene.node("ends", "spot"), await scene.node("stays")
    scene.busy(ends=0.9, stays=0.9)
    host = {"kubernetes.io/hostname": ends}
    await scene.cluster.deployment("llm", 1, 2, nodeSelector=host)
    await scene.turn()
    scene.cloud.ails = ails
    await warn(scene, ends, 30.0)
    began = time.monotonic()
    done = await scene.turn()
    took = time.monotonic() - began
    cordoned, _, taints = await scene.marks(ends)
    assert (cordoned, taints) == (True, {"spot-interruption"})
    assert "was evicted" in done, done
    assert took < 10, f"{took:.1f} s of 30: a cloud that does not answer is not waited for"
    assert await scene.marks(stays) == (False, set(), set())


async def test_nobody_ends_anothers_machine_by_claiming_it(scene: Scene) -> None:
    """A node that joined with the provider's id of a busy one, and is empty: to remove it would be to end that one."""
    await scene.policy(scaleDownCooldownSeconds=0, unneededSeconds=60)
    victim, liar = await scene.node("victim"), await scene.node("liar")
    await scene.cluster.deployment("llm", 1, 4, nodeSelector={"kubernetes.io/hostname": victim})
    twin = await scene.cluster.get("v1", "Node", liar)
    await scene.cluster.delete(twin)
    labels = {SCENE: scene.cluster.namespace, names.SCALING_GROUP: "on-demand", names.OWN_CAPACITY: "on-demand"}
    made = await scene.cluster.gpu_node(liar, gpus=4, labels=labels)
    await scene.cluster.patch(made, {"spec": {"providerID": f"pretend://{victim}"}})
    scene.busy(victim=0.9, liar=0.0)
    for _ in range(3):
        await scene.turn()
        scene.later += 400.0
    assert scene.cloud.removed == []
    assert await scene.marks(liar) == (False, set(), set())
    plan = scene.story._last.plan
    assert plan is not None
    because = {each.node: each.because for each in plan.nodes}
    assert "the same machine" in because[liar]
    # It writes itself the record of a drain whose machine was told to go a while ago: that is told again.
    made = await scene.cluster.get("v1", "Node", liar)
    now = time.time() + scene.later
    record = DrainRecord(
        v=1, policy=scene.cluster.namespace, since=now - 120, reason=DrainKind.empty, because="x", cordoned_by_us=True,
        removing=now - 61,
    )
    await scene.cluster.patch(made, {"metadata": {"annotations": {names.SCALE_DOWN: scaling.write(record)}}})
    for _ in range(2):
        scene.later += 61.0
        await scene.turn()
    assert scene.cloud.removed == []
    assert await scene.cluster.find("v1", "Node", victim) is not None


async def test_a_queue_that_forgets_nothing_and_a_notice_of_long_ago_hold_nothing_up(scene: Scene) -> None:
    await scene.policy()
    ends = await scene.node("ends", "spot")
    scene.busy(ends=0.9)
    scene.cloud.ails = "deaf"
    scene.cloud.told = [MachineNotice(provider_id="pretend://nobody", seen_at=time.time(), receipt="r")]
    assert "is heard again later" in await scene.turn()
    assert (await scene.status())["currentNodes"] == 1
    await warn(scene, ends, -3600.0)  # long over: somebody's old annotation
    scene.later += 31.0
    scene.wakes.clear()
    await scene.turn()
    assert await scene.marks(ends) == (False, {"spot-interruption-warning", "spot-termination-time"}, set())
    assert scene.wakes == [], "nothing is to be done sooner"


@pytest.mark.parametrize("lead", [7200.0, 3.2e8])
async def test_an_end_that_somebody_made_up_cordons_nothing(scene: Scene, lead: float) -> None:
    await scene.policy()
    there = await scene.node("there", "spot")
    scene.busy(there=0.9)
    await warn(scene, there, lead)
    await scene.turn()
    cordoned, _, taints = await scene.marks(there)
    assert (cordoned, taints, scene.cloud.asked) == (False, set(), [])


async def test_a_notice_that_nobody_may_heed_makes_us_deaf_to_none(scene: Scene) -> None:
    """Of a node that no policy means: the queue is read all the same, and the next look is not before its time."""
    await scene.policy()
    ours, nobodys = await scene.node("ours", "spot"), f"nobodys-{scene.cluster.namespace}"
    scene.busy(ours=0.9)
    await scene.cluster.gpu_node(nobodys)
    await warn(scene, nobodys, 600.0)
    await scene.turn()
    notice = MachineNotice(provider_id=f"pretend://{ours}", seen_at=time.time(), ends_at=time.time() + 120, receipt="r")
    scene.cloud.told = [notice]
    scene.later += 31.0
    await scene.turn()
    assert scene.cloud.told == []
    await scene.turn()
    cordoned, _, taints = await scene.marks(ours)
    assert (cordoned, taints) == (True, {"spot-interruption"})
    assert await scene.marks(nobodys) == (False, {"spot-interruption-warning", "spot-termination-time"}, set())
