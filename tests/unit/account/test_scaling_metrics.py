"""Metrics of nodes that come and go: every name of the specification once, with its labels; what is not known is not
there."""

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.decide.scaling.stage import (
    NOW,
    ON_DEMAND,
    SPOT,
    long_unneeded,
    look,
    node,
    pod,
    pods,
    policy,
    pool,
    sight,
)

from fallow import names, telemetry
from fallow.account.scaling import ScalingAccount, count_demand
from fallow.model.policies.scaling import Prewarming, ScalingMode
from fallow.model.scaling import ScaledNode, ScaledPod, ScalingSight
from fallow.model.scaling_plan import Grow, GrowReason
from fallow.model.seen import Unseen

POLICY = frozenset({"policy"})
TIER = POLICY | {"capacity_type"}
# Section 10; of several policies each is told apart.
NAMES = {
    "scaling_actions_total": TIER | {"action", "success"}, "scaling_duration_seconds": POLICY | {"action"},
    "node_count": TIER, "desired_node_count": POLICY, "cluster_utilization": POLICY, "pending_pods": POLICY,
    "underutilized_nodes": POLICY, "spot_interruptions_total": POLICY, "spot_termination_warnings": POLICY,
    "spot_savings_percentage": POLICY, "estimated_monthly_cost_usd": TIER, "estimated_monthly_savings_usd": POLICY,
    "predictive_scaling_enabled": POLICY, "predicted_utilization": POLICY, "prediction_confidence": POLICY,
    "scale_up_cooldown_remaining_seconds": POLICY, "scale_down_cooldown_remaining_seconds": POLICY,
    "multi_tier_scaling_enabled": POLICY, "capacity_type_preference": TIER, "reconcile_errors_total": frozenset(),
    "reconcile_duration_seconds": frozenset(), "last_reconcile_timestamp": frozenset(),
    "pending_pods_by_verdict": POLICY | {"verdict"}, "scaling_blocked": POLICY | {"reason"},
    "brake_engaged": POLICY | {"reason"}, "stockout": TIER | {"pool"}, "drain_duration_seconds": POLICY,
    "prewarm_total": POLICY | {"result"}, "forecast_wape": POLICY | {"model"}, "squatted_nodes": POLICY,
}


def test_every_name_of_the_specification_is_declared_once_with_its_labels() -> None:
    declared: dict[str, list[frozenset[str]]] = {}
    for metric in telemetry.METRICS:
        declared.setdefault(metric.name, []).append(frozenset(metric.labels))
    for name, labels in NAMES.items():
        assert declared.get(f"gpu_autoscaler_{name}") == [labels], name


def measure(seen: ScalingSight) -> dict[str, dict[tuple[str, ...], float]]:
    metrics = telemetry.Telemetry()
    ScalingAccount(metrics).measure(seen, look(seen), NOW, 0.1)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            key = tuple(value for label, value in sorted(sample.labels.items()) if label != "policy")
            found.setdefault(sample.name.removeprefix("gpu_autoscaler_"), {})[key] = sample.value
    return found


def test_what_is_there_is_told() -> None:
    rule = policy(pool(), pool("cheap", SPOT), prewarming=Prewarming())
    found = measure(sight(rule, node("a"), node("b", tier=SPOT, pool="cheap"), pod("x", 8, "a"), *pods(2, 8)))
    assert found["node_count"] == {("spot",): 1, ("on-demand",): 1, ("reserved",): 0}
    assert found["cluster_utilization"] == {(): 0.5}
    assert found["pending_pods"] == {(): 1}
    assert found["pending_pods_by_verdict"] == {("FitsNow",): 1, ("NeedsNode",): 1}
    assert found["capacity_type_preference"] == {("spot",): 1, ("on-demand",): 2, ("reserved",): 3}
    assert found["estimated_monthly_cost_usd"] == {("spot",): 5840, ("on-demand",): 5840}
    assert (found["predictive_scaling_enabled"], found["multi_tier_scaling_enabled"]) == ({(): 1}, {(): 1})
    assert found["last_reconcile_timestamp"] == {(): NOW}


def test_nodes_of_a_tier_that_is_not_tried_are_counted_all_the_same() -> None:
    first_tier_alone = policy(pool(), tiers=(SPOT,))
    found = measure(sight(first_tier_alone, node("a"), pod("x", 8, "a")))
    assert found["node_count"] == {("spot",): 0, ("on-demand",): 1}


def test_advice_to_let_a_node_go_is_counted_with_its_tier() -> None:
    metrics, rule = telemetry.Telemetry(), policy(pool(tier=SPOT), mode=ScalingMode.recommend)
    seen = sight(rule, node("a", tier=SPOT))
    ScalingAccount(metrics).measure(seen, look(seen, long_unneeded(node("a"))), NOW, 0.1)
    text = metrics.text().decode()
    assert re.search(r'scaling_actions_total{[^}]*"scale_down"[^}]*"spot"[^}]*"dry_run"[^}]*} 1.0', text)


def test_a_node_that_was_to_go_and_stays_is_no_success() -> None:
    metrics = telemetry.Telemetry()
    ScalingAccount(metrics).note_kept(node("a"), "default")
    assert re.search(r'scaling_actions_total{[^}]*"scale_down"[^}]*success="false"[^}]*} 1.0', metrics.text().decode())


@pytest.mark.parametrize("name", [
    "cluster_utilization", "predicted_utilization", "prediction_confidence", "forecast_wape", "spot_savings_percentage",
    "estimated_monthly_cost_usd", "estimated_monthly_savings_usd", "brake_engaged", "stockout",
])
def test_what_is_not_known_is_not_there(name: str) -> None:
    rule = policy(pool(tier=ON_DEMAND), prewarming=Prewarming())
    found = measure(sight(rule, node("a", price=None, use=None), measured="Prometheus is down"))
    assert not re.search(r"\bnan\b", str(found.get(name, {})))
    assert found.get(name, {}) == {}


def demand(*things: ScaledNode | ScaledPod, **more: Any) -> dict[str, float]:
    seen = sight(more.pop("rule", None), *things, **more)
    return count_demand(seen, look(seen))


def test_demand_is_what_is_held_and_waited_for_in_gpus_of_every_kind() -> None:
    cut = node("cut", labels={names.GPU_REPLICAS: "2"}, has={names.GPU_SHARED: 16})
    mig = pod("m", 0, "a", asks={names.MIG_PREFIX + "3g.40gb": 2})
    found = demand(node("a"), pod("x", 4, "a"), mig, *pods(2, 8))
    assert found == {"default": pytest.approx(4 + 6 / 7 + 16, abs=0.01)}
    assert demand(cut, pod("s", 0, "cut", asks={names.GPU_SHARED: 3})) == {"default": 1.5}


def test_one_pod_that_fits_no_pool_and_a_cloud_that_is_away_hide_nobodys_demand() -> None:
    assert demand(node("a"), pod("x", 8, "a"), pod("huge", 16)) == {"default": 8.0}
    assert demand(node("a"), pod("x", 8, "a"), groups={"default": Unseen("timeout")}) == {"default": 8.0}
    assert demand(node("a"), pod("x", 8, "a"), rule=policy(enabled=False)) == {}
    assert demand(pod("x", 8), nodes=Unseen("timeout")) == {}


def test_only_what_a_cloud_took_is_a_success_and_audited() -> None:
    metrics, told = telemetry.Telemetry(), []
    account, rule = ScalingAccount(metrics, put=told.append), policy()
    wanted = Grow(
        policy="default", pool=rule.pools[0], tier=ON_DEMAND, count=1, reason=GrowReason.PendingPods, because="it waits"
    )
    account.note_growth(rule, wanted, None, "its cloud failed", NOW, 0.1)
    assert told == []
    account.note_growth(rule, wanted, rule.pools[0], "1 more", NOW, 0.1)
    assert len(told) == 1
    text = metrics.text().decode()
    for success in ("true", "false"):
        assert re.search(rf'scaling_actions_total{{[^}}]*success="{success}"[^}}]*}} 1.0', text)
