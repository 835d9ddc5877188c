"""Nodes that come and go on a real API server, with the real scheduler and the real Eviction API; only the cloud is
pretended. A story that is made anew has forgotten everything, as after a kill -9: what it must know stands on the node
or in the policy's status."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fallow import names
from fallow.act import headroom
from fallow.model import emptying, leaving, scaling, units
from fallow.model.cost import CapacityType
from fallow.model.leaving import LeavingNode
from fallow.model.machines import (
    MachineNotice,
)
from fallow.model.policies.scaling import NodeDriver, NodePool
from fallow.model.scaling_plan import Headroom
from fallow.model.seen import Known
from tests.real import cluster as clusters
from tests.real import crds
from tests.real.scaling_scene import SCENE, Killed, Scene, open_scene, waiting


@pytest.fixture
async def scene(cluster: clusters.Cluster) -> AsyncIterator[Scene]:
    async with open_scene(cluster) as made:
        yield made


@pytest.mark.accepts("scaling", 1)
@pytest.mark.accepts("scaling", 8)
@pytest.mark.accepts("scaling", 9)
@pytest.mark.accepts("scaling", 25)
async def test_pods_that_wait_grow_a_pool_once_whoever_is_killed_and_whatever_prometheus_says(scene: Scene) -> None:
    await scene.policy(mode="recommend", spotInstancePercentage=1)
    await scene.cluster.apply(waiting("llm", 2, scene, annotations={names.SPOT_OK: "true"}))
    await scene.wait_for("llm", 2)
    scene.later = 150.0
    assert await scene.turn() == ""
    status = await scene.status()
    assert (status["pendingPods"], status["desiredNodes"], status["currentNodes"]) == (2, 2, 0)
    assert "averageGPUUtilization" not in status
    assert await scene.condition("Ready") == ("True", "AsSpecified")
    assert scene.cloud.asked == []
    assert {each.uri.partition("?")[0].rpartition("/")[2] for each in scene.written()} == {"status"}
    written = len(scene.written())
    scene.later += 30.0
    await scene.turn()
    assert len(scene.written()) == written, "what did not change is not written again"
    # In earnest: killed after the cloud did it, and before anybody could write that down.
    await scene.policy(spotInstancePercentage=1)
    scene.cloud.dies = "after"
    scene.cloud.empty = {"spot"}
    scene.later += 31.0
    with pytest.raises(Killed):
        await scene.turn()
    assert [(each.group, each.base, each.count) for each in scene.cloud.asked] == [("spot", 0, 2), ("on-demand", 0, 2)]
    assert scene.cloud.targets == {"spot": 0, "on-demand": 2}
    status = await scene.status()
    assert [(each["pool"], each["count"], each["base"]) for each in status["inFlight"]] == [("on-demand", 2, 0)]
    assert [(each["pool"], each["zone"], each["failures"]) for each in status["stockouts"]] == [("spot", "a", 1)]
    scene.cloud.dies = ""
    scene.fresh()
    scene.later += 31.0
    await scene.turn()
    await scene.turn()
    assert (len(scene.cloud.asked), scene.cloud.targets["on-demand"]) == (2, 2)
    # Killed before the cloud heard of it: the next one asks for the very same, once.
    await scene.cluster.apply(waiting("more", 1, scene))
    await scene.wait_for("more", 1)
    scene.later += 300.0
    scene.cloud.dies = "before"
    with pytest.raises(Killed):
        await scene.turn()
    scene.cloud.dies = ""
    lost = scene.cloud.asked[-1]
    assert scene.cloud.targets["on-demand"] == 2
    scene.fresh()
    scene.later += 31.0
    await scene.turn()
    await scene.turn()
    assert scene.cloud.asked[-1] == lost
    assert (len(scene.cloud.asked), scene.cloud.targets["on-demand"]) == (4, 3)
    # What is there, and idle as far as anybody could think, stays: nobody knows how busy it is.
    for name in ("a", "b", "c"):
        await scene.node(name)
    scene.cloud.targets["on-demand"] = 3
    scene.later += 7200.0
    await scene.turn()
    scene.later += 7200.0
    await scene.turn()
    assert scene.cloud.removed == []
    assert (await scene.status())["inFlight"] == []


@pytest.mark.accepts("scaling", 5)
async def test_whoever_waits_behind_a_gate_a_queue_or_a_choice_is_nobodys_demand(scene: Scene) -> None:
    await scene.policy()
    here = {SCENE: scene.cluster.namespace}
    for name, more, gates in (
        ("gated", {}, ["example.com/wait"]), ("queued", {}, ["kueue.x-k8s.io/admission"]),
        ("going", {"finalizers": ["example.com/stay"]}, []), ("chosen", {}, []),
    ):
        template = clusters.pod_template(name, 4, nodeSelector=here)
        spec = {**template["spec"], **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {})}
        metadata = {**template["metadata"], "name": name, **more}
        await scene.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    for name in ("going", "chosen"):
        await scene.wait_for(name, 1)
    await scene.cluster.delete(await scene.cluster.get("v1", "Pod", "going"))
    chosen = await scene.cluster.get("v1", "Pod", "chosen")
    await scene.cluster.patch(chosen, {"status": {"nominatedNodeName": "somewhere"}}, part="status")
    scene.later = 600.0
    await scene.turn()
    plan = scene.story._last.plan
    assert plan is not None
    held = {each.pod.name: str(each.held) for each in plan.pods if each.pod.namespace == scene.cluster.namespace}
    assert held == {
        "gated": "SchedulingGated", "queued": "Queued", "going": "BeingDeleted", "chosen": "Nominated"
    }
    assert (scene.cloud.asked, (await scene.status())["pendingPods"]) == ([], 0)
    await scene.cluster.patch(await scene.cluster.get("v1", "Pod", "going"), {"metadata": {"finalizers": None}})


@pytest.mark.accepts("scaling", 10)
@pytest.mark.accepts("scaling", 11)
@pytest.mark.accepts("scaling", 14)
async def test_exactly_the_empty_node_goes_and_then_the_one_that_only_a_cpu_pod_holds(scene: Scene) -> None:
    await scene.policy(scaleDownCooldownSeconds=60)
    for name in ("a", "b", "c"):
        await scene.node(name)
    await scene.cluster.gpu_node(f"cpu-{scene.cluster.namespace}", gpus=0)
    for name in ("a", "b"):
        host = {"kubernetes.io/hostname": f"{name}-{scene.cluster.namespace}"}
        await scene.cluster.deployment(f"work-{name}", 1, 3, nodeSelector=host)
    daemon = {"selector": {"matchLabels": {"app": "agent"}}, "template": clusters.pod_template("agent", 0)}
    await scene.cluster.apply(
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": daemon}
    )
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=agent", 4))
    scene.busy(a=0.9, b=0.9, c=0.0)
    assert await scene.turn() == ""
    assert await scene.pass_time(590.0) == ""
    scene.later += 31.0
    said = await scene.turn()
    assert "it is drained" in said
    assert "its machine was told to go" in said
    assert scene.cloud.removed == [f"c-{scene.cluster.namespace}"]
    status = await scene.status()
    assert "lastScaleDownTime" in status
    assert status["lastScalingAction"].startswith("scale_down")
    assert scene.account.saved_hourly(scene.cluster.namespace, time.time() + scene.later) == 10.0
    # A GPU node that a pod without GPUs holds: it may go where that fits elsewhere.
    await scene.node("d")
    others = [await scene.cluster.get("v1", "Node", f"{name}-{scene.cluster.namespace}") for name in ("a", "b", "cpu")]
    for each in others:
        await scene.cluster.patch(each, {"spec": {"unschedulable": True}})
    await scene.cluster.deployment("squatter", 1, 0)
    for each in others:
        await scene.cluster.patch(each, {"spec": {"unschedulable": None}})
    where = [pod["spec"]["nodeName"] for pod in await scene.cluster.pods("app=squatter")]
    assert where == [f"d-{scene.cluster.namespace}"]
    scene.busy(a=0.9, b=0.9, d=0.0)
    scene.later += 61.0
    await scene.turn()
    assert "was evicted" in await scene.pass_time(700.0)

    async def is_removed() -> bool:
        scene.later += 15.0
        await scene.turn()
        return f"d-{scene.cluster.namespace}" in scene.cloud.removed

    await scene.cluster.wait_until(is_removed)
    assert len(scene.cloud.removed) == 2
    # One that consolidation has emptied and cordoned goes as any other that nobody needs.
    node = await scene.cluster.get("v1", "Node", await scene.node("e"))
    record = emptying.EmptyingRecord(v=1, since=0.0, cordoned_by_us=True, because="hardly used", empty_since=0.0)
    await scene.cluster.patch(node, {
        "metadata": {"annotations": {names.EMPTYING: emptying.write(record)}}, "spec": {"unschedulable": True},
    })
    scene.busy(a=0.9, b=0.9, e=0.0)
    scene.later += 61.0
    await scene.turn()
    await scene.pass_time(700.0)
    assert scene.cloud.removed[2:] == [f"e-{scene.cluster.namespace}"]


@pytest.mark.accepts("scaling", 12)
async def test_a_budget_that_allows_nobody_keeps_its_pod_and_the_node_is_given_back(scene: Scene) -> None:
    await _build_under_used(scene)
    await scene.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "moved"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "moved"}}},
    })

    async def is_counted() -> bool:
        found = await scene.cluster.get("policy/v1", "PodDisruptionBudget", "moved")
        return bool(found.get("status", {}).get("currentHealthy") == 1)

    await scene.cluster.wait_until(is_counted)
    (before,) = await scene.cluster.pods("app=moved")
    node = f"a-{scene.cluster.namespace}"
    await scene.turn()
    said = await scene.pass_time(700.0)
    assert "it is drained" in said
    assert "disruption budget" in said
    assert await scene.marks(node) == (True, {"scale-down"}, {"scale-down"})
    scene.later += 11.0
    scene.fresh()  # killed: it is tried again, for what is left of the quarter of an hour
    assert "disruption budget" in await scene.turn()
    scene.later += 900.0
    await scene.turn()
    cordoned, ours, taints = await scene.marks(node)
    assert (cordoned, taints, "scale-down" in ours, "scale-down-rests-until" in ours) == (False, set(), False, True)
    (after,) = await scene.cluster.pods("app=moved")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    told = {event["reason"] for event in await scene.cluster.events(namespace="default")
            if event["regarding"].get("name") == node}
    assert {"ScaleDown", "ScaleDownCancelled"} <= told
    assert scene.cloud.removed == []
    await scene.pass_time(700.0)
    assert (await scene.marks(node))[0] is False, "it rests for an hour"


async def test_a_node_that_joins_is_labelled_so_that_a_pod_which_asks_for_its_pool_comes(scene: Scene) -> None:
    await scene.policy()
    node = await scene.node("a")
    chosen = {SCENE: scene.cluster.namespace, names.NODE_POOL: "on-demand", names.OWN_INSTANCE_TYPE: "h100"}
    await scene.cluster.apply(clusters.replicated("apps/v1", "Deployment", "picky", 1, 1, nodeSelector=chosen))
    await scene.wait_for("picky", 1)
    scene.cloud.kind = "h100"
    await scene.turn()
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=picky", 1))
    written = [each for each in scene.written("/nodes/") if (each.body or {}).get("metadata", {}).get("labels")]
    scene.later += 31.0
    await scene.turn()
    assert len([each for each in scene.written(f"/nodes/{node}") if "labels" in (each.body or {})["metadata"]]) == 1
    assert len(written) == 1


async def test_a_pod_whose_place_was_taken_while_a_budget_refused_is_not_sent_away(scene: Scene) -> None:
    await _build_under_used(scene)
    budget = await scene.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "moved"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "moved"}}},
    })
    await scene.turn()
    assert "it is drained" in await scene.pass_time(700.0)
    host = {"kubernetes.io/hostname": f"b-{scene.cluster.namespace}"}
    await scene.cluster.deployment("filler", 1, 1, nodeSelector=host)
    await scene.cluster.delete(budget)
    for _ in range(3):
        scene.later += 31.0
        assert "was evicted" not in await scene.turn()
    assert (await scene.marks(f"a-{scene.cluster.namespace}"))[0] is True
    await scene.cluster.delete(await scene.cluster.get("apps/v1", "Deployment", "filler"))
    await scene.cluster.wait_until(lambda: _is_gone(scene, "filler"))
    scene.later += 31.0
    assert "was evicted" in await scene.turn()


async def _build_under_used(scene: Scene) -> None:
    """node a holds one pod that fits on node b."""
    await scene.policy()
    for name in ("a", "b"):
        await scene.node(name)
    host = {"kubernetes.io/hostname": f"b-{scene.cluster.namespace}"}
    await scene.cluster.deployment("busy", 1, 3, nodeSelector=host)
    other = await scene.cluster.get("v1", "Node", f"b-{scene.cluster.namespace}")
    await scene.cluster.patch(other, {"spec": {"unschedulable": True}})
    await scene.cluster.deployment("moved", gpus=1, nodeSelector={SCENE: scene.cluster.namespace})
    await scene.cluster.patch(other, {"spec": {"unschedulable": None}})
    scene.busy(a=0.05, b=0.9)


@pytest.mark.accepts("scaling", 13)
async def test_a_drain_is_undone_for_a_pod_that_would_fit_there_and_where_we_may_act_no_more(scene: Scene) -> None:
    await _build_under_used(scene)
    await scene.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "moved"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "moved"}}},
    })
    node = f"a-{scene.cluster.namespace}"
    await scene.turn()
    assert "it is drained" in await scene.pass_time(700.0)
    await scene.cluster.apply(waiting("new", 1, scene, gpus=3))
    await scene.wait_for("new", 1)
    scene.later += 31.0
    said = await scene.turn()
    assert (await scene.marks(node))[0] is False, said
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=new", 1))
    assert scene.cloud.asked == []
    # Switched to advice while a node is drained: it is given back.
    await scene.cluster.delete(await scene.cluster.get("apps/v1", "Deployment", "new"))
    found = await scene.cluster.get("v1", "Node", node)
    await scene.cluster.patch(found, {"metadata": {"annotations": {names.DRAIN_RESTS_UNTIL: None}}})
    await scene.cluster.wait_until(lambda: _is_gone(scene, "new"))
    scene.later += 31.0
    await scene.turn()
    assert "it is drained" in await scene.pass_time(700.0)
    scene.acts = False
    scene.fresh()
    scene.later += 31.0
    await scene.turn()
    assert (await scene.marks(node))[0::2] == (False, set())


@pytest.mark.accepts("scaling", 15)
async def test_a_drain_that_runs_is_held_up_by_a_brake_and_undone_where_people_take_its_node_away(
    scene: Scene
) -> None:
    await _build_under_used(scene)
    budget = await scene.cluster.apply({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "moved"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "moved"}}},
    })
    await scene.turn()
    assert "it is drained" in await scene.pass_time(700.0)
    for name in "cdef":
        await scene.node(name)
        await scene.cluster.break_node(f"{name}-{scene.cluster.namespace}")
    await scene.cluster.delete(budget)
    (before,) = await scene.cluster.pods("app=moved")
    scene.later += 31.0
    assert await scene.turn() == ""
    assert await scene.condition("ScalingHalted") == ("True", "TooManyUnready")
    (after,) = await scene.cluster.pods("app=moved")
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "nobody is evicted into such a cluster"
    node = f"a-{scene.cluster.namespace}"
    assert (await scene.marks(node))[0]
    found = await scene.cluster.get("v1", "Node", node)
    await scene.cluster.patch(found, {"metadata": {"labels": {SCENE: "by-hand"}}})
    scene.later += 31.0
    assert "does not mean it any more" in await scene.turn()
    assert (await scene.marks(node))[0::2] == (False, set())
    assert scene.cloud.removed == []


async def _is_gone(scene: Scene, app: str) -> bool:
    return not await scene.cluster.pods(f"app={app}")


@pytest.mark.accepts("scaling", 15)
@pytest.mark.accepts("scaling", 16)
@pytest.mark.accepts("scaling", 21)
async def test_nothing_moves_while_nodes_are_unready_measurements_jump_or_others_drive(scene: Scene) -> None:
    await scene.policy()
    letters = "abcdefghij"
    for name in letters:
        await scene.node(name)
        host = {"kubernetes.io/hostname": f"{name}-{scene.cluster.namespace}"}
        await scene.cluster.apply(clusters.replicated(
            "apps/v1", "Deployment", f"w-{name}", 1, 1, nodeSelector=host
        ))
    await scene.cluster.wait_until(lambda: _count_ready(scene, 10))
    scene.busy(**dict.fromkeys(letters, 0.9))
    await scene.turn()
    scene.busy(**dict.fromkeys(letters, 0.0))
    scene.later += 31.0
    await scene.turn()
    assert await scene.condition("ScalingHalted") == ("True", "MetricsJump")
    await scene.pass_time(700.0)
    assert scene.cloud.removed == []
    for name in letters[:5]:
        await scene.cluster.break_node(f"{name}-{scene.cluster.namespace}")
    await scene.cluster.apply(waiting("more", 1, scene))
    await scene.wait_for("more", 1)
    scene.later += 300.0
    await scene.turn()
    assert await scene.condition("ScalingHalted") == ("True", "TooManyUnready")
    assert (scene.cloud.asked, scene.cloud.removed) == ([], [])
    scene.cloud.owner = "cluster-autoscaler"
    scene.later += 31.0
    await scene.turn()
    assert await scene.condition("Ready") == ("False", "OwnedByOtherAutoscaler")


async def _count_ready(scene: Scene, count: int) -> bool:
    found = await scene.cluster.pods()
    return sum(any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
               for pod in found) == count


@pytest.mark.accepts("scaling", 17)
async def test_a_spot_node_is_cordoned_replaced_and_left_in_order_before_it_ends(scene: Scene) -> None:
    await scene.policy()
    node = await scene.node("a", group="spot")
    host = {SCENE: scene.cluster.namespace}
    for name, rank, grace in (("late", "high", 60), ("soon", "low", 30)):
        await scene.cluster.deployment(
            name, gpus=2, nodeSelector=host, terminationGracePeriodSeconds=grace,
            annotations={names.EVICTION_PRIORITY: rank, names.SPOT_OK: "true"},
        )
    scene.busy(a=0.9)
    await scene.turn()
    ends = time.time() + scene.later + 120.0
    scene.cloud.told = [MachineNotice(provider_id=f"pretend://{node}", seen_at=ends - 120, ends_at=ends, receipt="r")]
    scene.fresh()
    await scene.turn()  # it becomes an annotation, which the watch tells of
    said = await scene.turn()
    assert scene.cloud.told == []
    cordoned, ours, taints = await scene.marks(node)
    assert (cordoned, "spot-record" in ours, taints) == (True, True, {"spot-interruption"}), said
    assert sum(each.count for each in scene.cloud.asked) == 1
    order = [each.uri for each in scene.written(verbs=("create", "patch"))]
    first = next(place for place, uri in enumerate(order) if "/eviction" in uri)
    assert any("nodes/" in uri for uri in order[:first])
    flights = [place for place, each in enumerate(scene.written(verbs=("create", "patch")))
               if "/status" in each.uri and (each.body or {}).get("status", {}).get("inFlight")]
    assert flights, "the replacement is in the status"
    assert flights[0] < first, "and was asked for before anybody was evicted"
    evicted = [each.uri for each in scene.written("/eviction", ("create",))]
    assert len(evicted) == 1, "who goes last is not evicted yet"
    scene.fresh()
    scene.later += 25.0
    await scene.turn()
    bodies = [each.body for each in scene.written("/eviction", ("create",))]
    graces = [body["deleteOptions"].get("gracePeriodSeconds") for body in bodies]
    assert len(bodies) == 2
    assert all(grace is None or grace >= 1 for grace in graces)
    assert all(body["deleteOptions"]["preconditions"]["uid"] for body in bodies)


@pytest.mark.accepts("scaling", 17)
async def test_a_notice_that_comes_while_all_is_looked_at_moves_nobody_before_the_replacement(scene: Scene) -> None:
    await scene.policy()
    node = await scene.node("a", group="spot")
    await scene.cluster.deployment(
        "one", gpus=4, nodeSelector={SCENE: scene.cluster.namespace},
        annotations={names.EVICTION_PRIORITY: "low", names.SPOT_OK: "true"},
    )
    scene.busy(a=0.9)
    ends = units.rfc3339(time.time() + 120.0)

    async def tell() -> None:
        said = {names.SPOT_WARNING: ends, names.SPOT_TERMINATION: ends}
        await scene.cluster.patch(await scene.cluster.get("v1", "Node", node), {"metadata": {"annotations": said}})
        await scene.eyes.list_once()

    scene.meanwhile = tell
    await scene.turn()
    assert [each.uri for each in scene.written("/eviction", ("create",))] == []
    scene.meanwhile = None
    await scene.turn()
    assert sum(each.count for each in scene.cloud.asked) == 1
    assert len(scene.written("/eviction", ("create",))) == 1



async def test_a_pod_that_nobody_makes_again_stays_and_two_budgets_block(scene: Scene) -> None:
    await scene.policy()
    node = await scene.node("a")
    template = clusters.pod_template("alone", 1, nodeSelector={"kubernetes.io/hostname": node})
    await scene.cluster.create({
        "apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "alone"},
        "spec": template["spec"],
    })
    await scene.cluster.wait_until(lambda: scene.cluster.ready_pods("app=alone", 1))
    await scene.node("b")
    scene.busy(a=0.0, b=0.9)
    await scene.turn()
    found = await scene.eyes.look_at(node, time.time())
    assert found is not None
    assert [each.fixed for each in found[1]] == ["has no controller that would make it again"]
    pod = await scene.cluster.get("v1", "Pod", "alone")
    await scene.cluster.patch(pod, {"metadata": {"annotations": {names.EVICTABLE: "true"}}})
    found = await scene.eyes.look_at(node, time.time())
    assert found is not None
    assert [each.fixed for each in found[1]] == [""]
    for name in ("one", "two"):
        await scene.cluster.apply({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "alone"}}},
        })

    async def nothing(_: Any) -> None:
        raise AssertionError("no machine is to go")

    there = LeavingNode(node=found[0], pods=found[1], policy=None)
    step = leaving.EvictNow(found[1][0].id)

    async def is_blocked() -> bool:
        done = await scene.story._hands.leaving.carry_out(there, step, time.time(), nothing)
        return bool(done.blocked) and done.refused == found[1][0].id.uid

    await scene.cluster.wait_until(is_blocked)


@pytest.mark.accepts("scaling", 20)
async def test_where_karpenter_drives_no_cloud_is_asked_and_room_is_kept_as_its_kinds_have_it(scene: Scene) -> None:
    await scene.cluster.apply_crds(crds.NODE_POOL, crds.CAPACITY_BUFFER)
    await scene.policy()
    labels = {SCENE: scene.cluster.namespace, names.KARPENTER_NODEPOOL: "gpu"}
    await scene.cluster.gpu_node(f"k-{scene.cluster.namespace}", gpus=4, labels=labels)
    await scene.cluster.apply({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpu"},
        "spec": {"limits": {"nvidia.com/gpu": "4"}},
    })
    await scene.cluster.apply(waiting("llm", 2, scene))
    await scene.cluster.wait_until(lambda: _has_waiting(scene))
    scene.later = 600.0
    await scene.turn()
    assert scene.cloud.asked == []
    assert (await scene.status())["driver"] == "karpenter"
    seen = scene.story._last.sight
    assert seen is not None
    assert isinstance(seen.drivers, Known)
    assert seen.drivers.value.karpenter
    assert seen.drivers.value.buffers == "v1beta1"
    assert seen.groups == {}
    pool = NodePool(name="gpu", tier=CapacityType.on_demand, group="gpu", gpus=4)
    room = Headroom(
        policy="p", driver=NodeDriver.karpenter, pool=pool, asks={names.GPU: 4}, nodes=2, since=0.0,
        because="a peak is expected",
    )
    hands = headroom.HeadroomHands(scene.api, scene.cluster.namespace)
    assert len(await hands.keep([room], "v1beta1")) == 1
    assert await hands.keep([room], "v1beta1") == []
    name = headroom.name_of("p", pool)
    buffer = await scene.cluster.get("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer", name)
    assert buffer["spec"] == {
        "podTemplateRef": {"name": name}, "replicas": 2, "provisioningStrategy": "buffer.x-k8s.io/active-capacity"
    }
    again = headroom.HeadroomHands(scene.api, scene.cluster.namespace)
    assert await again.keep([room], "v1beta1") == [], "whoever is started anew knows that it is the same"
    shared = msgspec.structs.replace(room, asks={names.GPU_SHARED: 16})
    assert len(await again.keep([shared], "v1beta1")) == 1, "a pool that changed is asked for as it is now"
    template = await scene.cluster.get("v1", "PodTemplate", name)
    assert template["template"]["spec"]["containers"][0]["resources"]["limits"] == {names.GPU_SHARED: "16"}
    assert len(await again.keep([], "")) == 1
    assert (await scene.cluster.refresh(buffer))["spec"]["replicas"] == 0
    # Without that kind: placeholders that anybody may push aside, and that are nobody's demand.
    plain = headroom.HeadroomHands(scene.api, scene.cluster.namespace)
    await plain.keep([room], "")
    made = await scene.cluster.get("apps/v1", "Deployment", name)
    assert made["spec"]["template"]["spec"]["priorityClassName"] == names.HEADROOM_CLASS
    await scene.cluster.wait_until(lambda: scene.cluster.pods(f"{names.HEADROOM}=gpu"))
    await scene.eyes.list_once()
    pods = scene.eyes._pods.seen
    assert isinstance(pods, Known)
    held = {each.held for each in pods.value if each.id.name.startswith(name)}
    assert held <= {scaling.WaitHold.Placeholder}
    await scene.cluster.delete(made)


async def _has_waiting(scene: Scene) -> bool:
    found = await scene.cluster.pods("app=llm")
    return any(each.get("reason") == "Unschedulable" for pod in found for each in pod["status"].get("conditions", ()))
