"""Nodes that leave, on a real API server, whoever fails or is killed on the way: what was begun ends, what went is in
the books once, and no notice is lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from fallow import names
from fallow.model import units
from fallow.model.history import Happened
from fallow.model.machines import MachineNotice
from tests.real import cluster as clusters
from tests.real.scaling_scene import KIND, SCENE, VERSION, Killed, Scene, open_scene


@pytest.fixture
async def scene(cluster: clusters.Cluster) -> AsyncIterator[Scene]:
    async with open_scene(cluster) as made:
        yield made


async def build(scene: Scene) -> str:
    """A node on which nobody is, beside one that works; the empty one is about to go."""
    await scene.policy(scaleDownCooldownSeconds=60, unneededSeconds=60)
    works, empty = await scene.node("works"), await scene.node("empty")
    await scene.cluster.deployment("llm", 1, 4, nodeSelector={"kubernetes.io/hostname": works})
    scene.busy(works=0.9, empty=0.0)
    await scene.turn()
    return empty


def removals(scene: Scene) -> list[str]:
    return [each.ref.name for each in scene.entries if each.type is Happened.node_removed and each.ref is not None]


async def warn(scene: Scene, name: str, lead: float) -> None:
    now = time.time() + scene.later
    said = {names.SPOT_WARNING: units.rfc3339(now), names.SPOT_TERMINATION: units.rfc3339(now + lead)}
    await scene.cluster.patch(await scene.cluster.get("v1", "Node", name), {"metadata": {"annotations": said}})


async def deploy_guarded(scene: Scene) -> None:
    """One pod, which a budget lets nobody move."""
    await scene.cluster.deployment(
        "llm", gpus=4, nodeSelector={SCENE: scene.cluster.namespace}, terminationGracePeriodSeconds=30,
        annotations={names.EVICTION_PRIORITY: "low", names.SPOT_OK: "true", names.WORKLOAD_TYPE: "inference"},
    )
    await scene.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "llm"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "llm"}}},
    })

    async def is_counted() -> bool:
        found = await scene.cluster.get("policy/v1", "PodDisruptionBudget", "llm")
        return bool(found.get("status", {}).get("currentHealthy") == 1)

    await scene.cluster.wait_until(is_counted)


@pytest.mark.parametrize("how", ["stuck", "mute", "before", "after"])
async def test_what_went_is_in_the_books_once_whoever_failed_or_was_killed(scene: Scene, how: str) -> None:
    """Its cloud failed, or did it and did not say so; or we were killed before or after it heard."""
    empty = await build(scene)
    scene.cloud.ails, scene.cloud.dies = (how, "") if how in ("stuck", "mute") else ("", how)
    if scene.cloud.dies:
        with pytest.raises(Killed):
            await scene.pass_time(100.0)
    else:
        await scene.pass_time(100.0)
    assert removals(scene) == []
    assert "lastScaleDownTime" not in await scene.status()
    scene.cloud.ails = scene.cloud.dies = ""
    if how == "before":
        scene.fresh()
    if how == "after":  # a Node that is gone before anybody looks again is nobody's to tell
        return
    await scene.pass_time(200.0)
    assert scene.cloud.removed == [empty]
    assert removals(scene) == [empty]
    status = await scene.status()
    assert status["lastScalingAction"] == f"scale_down: {empty}"
    assert status.get("providerFailures", 0) == (how == "mute")
    assert scene.account.saved_hourly(scene.cluster.namespace, time.time() + scene.later) == 10.0


async def test_a_node_whose_machine_is_no_longer_listed_is_given_back(scene: Scene) -> None:
    empty = await build(scene)
    scene.cloud.ails = "stuck"
    await scene.pass_time(100.0)
    scene.cloud.ails, scene.cloud.hidden = "", {empty}
    scene.fresh()
    await scene.turn()
    assert (await scene.marks(empty))[0] is True, "its cloud may only be late to list it"
    # One that was emptied and never told: of another group, as it turns out.
    await scene.cluster.patch(await scene.cluster.get("v1", "Node", empty), {
        "metadata": {"annotations": {names.SCALE_DOWN: None}}, "spec": {"unschedulable": None, "taints": None},
    })
    scene.fresh()
    await scene.pass_time(300.0)
    assert await scene.marks(empty) == (False, set(), set())
    assert scene.cloud.removed == []


async def test_nothing_is_begun_past_a_cordon_that_came_meanwhile(scene: Scene) -> None:
    empty = await build(scene)

    async def cordon() -> None:
        await scene.cluster.patch(await scene.cluster.get("v1", "Node", empty), {"spec": {"unschedulable": True}})

    scene.meanwhile = cordon
    assert "somebody has cordoned it" in await scene.pass_time(100.0)
    assert await scene.marks(empty) == (True, set(), set())


async def test_an_interruption_is_heard_after_a_recommendation_and_not_before_nodes_are_seen(scene: Scene) -> None:
    await scene.policy()
    node = await scene.node("a", group="spot")
    await deploy_guarded(scene)
    scene.busy(a=0.9)
    now = time.time()
    scene.cloud.told = [MachineNotice(provider_id=f"pretend://{node}", seen_at=now, receipt="1")]
    await scene.turn()
    await scene.turn()
    assert "spot-record" in (await scene.marks(node))[1]
    scene.cloud.told = [MachineNotice(provider_id=f"pretend://{node}", seen_at=now, ends_at=now + 300, receipt="2")]
    scene.fresh()
    await scene.eyes._policies.list_once()  # nodes are not seen yet
    made = await scene.story.tick(scene.grant())
    assert any("nodes are not seen" in each for each in made.done)
    assert len(scene.cloud.told) == 1
    scene.later += 31.0
    scene.fresh()
    await scene.turn()
    found = await scene.cluster.get("v1", "Node", node)
    ends = units.read_instant(found["metadata"]["annotations"][names.SPOT_TERMINATION])
    assert ends == pytest.approx(now + 300, abs=1)
    assert scene.cloud.told == []


@pytest.mark.accepts("scaling", 25)
async def test_who_only_advises_reads_no_queue_and_tells_nobody(scene: Scene) -> None:
    await scene.policy(mode="recommend")
    node = await scene.node("a", group="spot")
    scene.busy(a=0.9)
    huge = clusters.replicated("apps/v1", "Deployment", "huge", 1, 64, nodeSelector={SCENE: scene.cluster.namespace})
    await scene.cluster.apply(huge)
    await scene.wait_for("huge", 1)
    now = time.time()
    scene.cloud.told = [MachineNotice(provider_id=f"pretend://{node}", seen_at=now, ends_at=now + 120, receipt="r")]
    await scene.turn()
    await warn(scene, node, 120.0)
    scene.later += 31.0
    await scene.turn()
    assert len(scene.cloud.told) == 1
    assert {each.uri.partition("?")[0].rpartition("/")[2] for each in scene.written()} == {"status"}


@pytest.mark.accepts("scaling", 18)
async def test_a_notice_of_half_a_minute_gives_each_pod_what_is_left_of_it(scene: Scene) -> None:
    """Although the policy is deleted meanwhile, so that no growth can be written down: who ends is not held up."""
    await scene.policy()
    node = await scene.node("a", group="spot")
    await scene.cluster.deployment(
        "slow", gpus=4, nodeSelector={SCENE: scene.cluster.namespace}, terminationGracePeriodSeconds=300,
        annotations={names.EVICTION_PRIORITY: "high", names.SPOT_OK: "true"},
    )
    scene.busy(a=0.9)
    await scene.turn()

    async def delete() -> None:
        await scene.cluster.delete(await scene.cluster.get(VERSION, KIND, scene.cluster.namespace))
        scene.meanwhile = None

    await warn(scene, node, 30.0)
    scene.meanwhile = delete
    assert "no more is asked for in this turn" in await scene.turn()
    (body,) = [each.body for each in scene.written("/eviction", ("create",))]
    assert 15 <= body["deleteOptions"]["gracePeriodSeconds"] <= 25
    scene.wakes.clear()
    scene.story.fail("the server is busy", scene.grant())
    assert scene.wakes == [5.0], "half a minute would be all that there is"


async def test_who_is_deleted_past_a_budget_is_told_of(scene: Scene) -> None:
    await scene.policy()
    node = await scene.node("a", group="spot")
    await deploy_guarded(scene)
    scene.busy(a=0.9)
    await warn(scene, node, 120.0)
    assert "disruption budget" in await scene.turn()
    assert scene.written(f"/namespaces/{scene.cluster.namespace}/pods/", ("delete",)) == []
    scene.later += 90.0
    said = await scene.turn()
    told = [each.sentence for each in scene.entries if each.ref is not None and each.ref.kind == "Pod"]
    assert len(told) == 1, said
    assert "was deleted past its budget" in told[0]
    reasons = [each["reason"] for each in await scene.cluster.events() if each["regarding"]["kind"] == "Pod"]
    assert names.Event.SPOT_INTERRUPTED in reasons
