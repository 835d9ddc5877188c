"""Where another autoscaler adds machines: what it will do and what stops it is said; gangs are asked for once."""

from typing import Any

import msgspec
import pytest
from tests.unit.decide.scaling.stage import GPU, NOW, first, look, node, pod, pods, policy, pool, sight

from fallow.model.policies.scaling import NodeDriver
from fallow.model.scaling import DriversSeen, GangRequest, GangState, PoolLimit
from fallow.model.scaling_plan import ScalingPlan
from fallow.model.seen import Known

CLUSTER_AUTOSCALER = {"driver": NodeDriver.cluster_autoscaler}
KARPENTER = {"driver": NodeDriver.karpenter}


def gang(count: int, gpus: int = 8, **more: Any) -> list[Any]:
    return pods(count, gpus, name="g", **{"gang": "ml/train", **more})


def plan(*things: Any, seen: DriversSeen | None = None, **about: Any) -> ScalingPlan:
    rule = policy(**{**CLUSTER_AUTOSCALER, **about})
    return look(sight(rule, *things, drivers=Known(seen or DriversSeen(cluster_autoscaler=True, requests=True))))


def asked(made: ScalingPlan) -> list[tuple[str, int, bool]]:
    return [(each.gang, each.nodes, each.request is None) for each in first(made).gangs]


def test_a_gang_that_needs_several_nodes_is_asked_for_once() -> None:
    made = plan(*gang(3), node("n0"), pod("busy", 8, "n0"))
    assert asked(made) == [("ml/train", 3, True)]
    assert [(each.pool.name, each.asks, each.nodes) for each in first(made).gangs[0].rooms] == [("main", {GPU: 8}, 3)]
    assert first(made).grows == ()
    assert all("3 nodes at once for ml/train" in each.because for each in made.pods)
    again = plan(*gang(3), seen=standing(first(made).gangs[0].name))
    assert asked(again) == [("ml/train", 3, False)]
    assert "(Accepted: soon)" in again.pods[0].because


def standing(name: str, state: GangState = GangState.accepted, ago: float = 60.0, **more: Any) -> DriversSeen:
    request = GangRequest(
        name=name, uid="u", version="1", policy="default", gang="ml/train", nodes=3, since=NOW - ago, state=state,
        because="soon",
    )
    made = msgspec.structs.replace(request, **more)
    return DriversSeen(cluster_autoscaler=True, requests=True, gangs={name: made})


@pytest.mark.parametrize(("things", "about"), [
    (gang(1), {}), (gang(2, gpus=4), {}), (pods(3, 8), {}), (gang(3, gang_size=4), {}),
    (gang(3, waits_since=NOW - 60), {}), (gang(3), {"most": 2}), (gang(3), KARPENTER),
    (gang(3), {"driver": NodeDriver.direct}),
], ids=["one", "one-node", "no-gang", "not-all-there", "just-come", "too-many", "karpenter", "direct"])
def test_nothing_else_is_a_gang(things: list[Any], about: dict[str, Any]) -> None:
    assert first(plan(*things, **about)).gangs == ()


def test_without_that_kind_nothing_is_asked_for() -> None:
    assert first(plan(*gang(3), seen=DriversSeen(cluster_autoscaler=True))).gangs == ()


@pytest.mark.parametrize(("state", "ago", "stays"), [
    (GangState.accepted, 6000.0, True), (GangState.provisioned, 6000.0, True), (GangState.failed, 300.0, True),
    (GangState.failed, 700.0, False), (GangState.expired, 700.0, False),
])
def test_a_request_stays_while_somebody_waits_and_is_not_asked_for_beside_one_that_failed(
    state: GangState, ago: float, stays: bool,
) -> None:
    made = plan(*gang(3), seen=standing("r", state, ago))
    assert asked(made) == ([("ml/train", 3, False)] if stays else [])


def test_a_request_goes_once_nobody_of_the_gang_waits_or_another_policy_is_meant() -> None:
    there = [each for number in range(3) for each in (node(f"n{number}"), pod(f"g{number}", 8, f"n{number}",
                                                                             gang="ml/train"))]
    assert asked(plan(*there, seen=standing("r"))) == []
    assert asked(plan(*gang(3), seen=standing("r", policy="other"))) == []


# ---- limits of Karpenter ---------------------------------------------------------------------------------------------


def limited(resource: str, used: float, most: float) -> DriversSeen:
    return DriversSeen(karpenter=True, limits={"group-main": (PoolLimit(resource, used, most, "has so much"),)})


@pytest.mark.parametrize(("resource", "used", "most", "stops"), [
    ("nvidia.com/gpu", 8, 8, True), ("nvidia.com/gpu", 8, 15, True), ("nvidia.com/gpu", 8, 16, False),
    ("cpu", 0, 1000, False), ("cpu", 950, 1000, True), ("memory", 1, 2.0**60, False), ("memory", 1, 2.0**34, True),
    ("nodes", 1, 1, True), ("nodes", 1, 2, False), ("example.com/x", 0, 1, False),
])
def test_pods_that_wait_for_a_limit_are_told_so(resource: str, used: float, most: float, stops: bool) -> None:
    made = plan(*pods(2, 8), node("n0"), pod("b", 8, "n0"), seen=limited(resource, used, most), **KARPENTER)
    assert ("LimitReached" in first(made).blocked) is stops
    if stops:
        said = "Karpenter adds no node of pool main: its NodePool group-main has so much"
        assert first(made).because == f"2 pods wait: {said}"
        assert all(each.because.endswith(said) for each in made.pods)
    else:
        assert all(each.because.endswith("karpenter sees it, and adds one") for each in made.pods)


def test_a_limit_of_one_pool_stops_nobody_who_fits_another() -> None:
    about = {"pools": (pool(), pool("other")), **KARPENTER}
    made = plan(*pods(1, 8), seen=limited("nodes", 1, 1), **about)
    assert first(made).blocked == {}


def test_a_limit_that_nobody_waits_for_is_none() -> None:
    assert first(plan(node("n0"), seen=limited("nodes", 1, 1), **KARPENTER)).blocked == {}
