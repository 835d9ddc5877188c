"""Whom a spent budget denies, whom it changes, and that on doubt it does neither."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from fallow import names
from fallow.decide import admission
from fallow.decide.admission import AdmitReason, PodWanted
from fallow.model.policies import budget
from fallow.model.policies.budget import EnforcementMode
from fallow.model.seen import ABSENT, Unseen
from fallow.sim.servers.kubernetes import patches

NOW = 1_793_700_000.0
STANDING = budget.BudgetStanding(
    last_updated=NOW - 60, is_enforced=True, spend="51204.1", currency="USD", exceeded_since=NOW - 7200
)


def make(mode: str = "block", **more: Any) -> budget.CostBudget:
    throttle = budget.ThrottleRule(**more.pop("throttle", {}))
    return budget.CostBudget(**{
        "name": "b", "uid": "u", "generation": 1, "scope": budget.SpendScope(), "amount": Decimal(50000),
        "period": budget.BudgetPeriod(), "standing": STANDING,
        "enforcement": budget.EnforcementRule(mode=EnforcementMode(mode), throttle=throttle), **more,
    })


def restricting(*found: budget.CostBudget, mode: str = "block", now: float = NOW) -> list[str]:
    return [each.name for each in admission.find_restricting(found, EnforcementMode(mode), now).budgets]


def test_the_sentence_says_what_was_spent_since_when_and_the_way_past_it():
    assert admission.deny(make()) == (
        "budget b exceeded: 51,204.10 of 50,000.00 USD since 2026-11-03; see fallow cost budget b; "
        "override: fallow cost override b --for 4h --reason TEXT"
    )


@pytest.mark.parametrize(("standing", "restricts"), [
    ({}, True), ({"is_enforced": False}, False), ({"last_updated": NOW - 901}, False), ({"last_updated": None}, False),
    ({"last_updated": NOW - 899}, True), ({"last_updated": NOW + 30}, True), ({"last_updated": 4070908800.0}, False),
])
def test_only_a_status_of_now_restricts(standing, restricts):
    of = make(standing=msgspec.structs.replace(STANDING, **standing))
    assert bool(restricting(of)) is restricts


@pytest.mark.parametrize("changed", [{"enabled": False}, {"invalid": ("spec.alerts: bad",)}])
def test_a_budget_that_is_off_or_wrong_restricts_nobody(changed):
    assert restricting(make(**changed)) == []


def test_each_path_heeds_its_own_mode():
    assert restricting(make("throttle"), mode="block") == []
    assert restricting(make("throttle"), mode="throttle") == ["b"]


@pytest.mark.parametrize(("until", "seen", "restricts"), [
    (NOW + 60, None, False), (NOW - 60, None, True),
    (NOW + 60, budget.OverrideSeen("x", NOW - 300, NOW - 1), True),  # it has lasted as long as it may
    (NOW + 60, budget.OverrideSeen("another", NOW - 300, NOW - 1), False),
])
def test_an_override_holds_at_once_and_no_longer_than_the_controller_says(until, seen, restricts):
    wish = budget.OverrideWish("x", until, "user:ada", "r")
    of = make(wish=wish, standing=msgspec.structs.replace(STANDING, override=seen))
    assert bool(restricting(of)) is restricts


@pytest.mark.parametrize(("pod", "is_exempt", "reason"), [
    (PodWanted(namespace="a"), False, AdmitReason.NoGpus),
    (PodWanted(namespace="a", has_gpus=True), True, AdmitReason.Exempt),
    (PodWanted(namespace="a", has_gpus=True), False, None),
])
def test_some_are_never_asked_about(pod, is_exempt, reason):
    assert admission.look_past(pod, is_exempt=is_exempt) is reason


def test_a_scope_that_is_not_known_means_nobody():
    of = make(scope=budget.SpendScope(teams=("ml",)))
    whose = budget.PodTraits(namespace="a", labels={}, above=Unseen("forbidden"), around=ABSENT)
    found = admission.find_restricting([of], EnforcementMode.block, NOW)
    assert admission.find_meant(found, whose) == ((), AdmitReason.ScopeUnknown)


# ---- throttle --------------------------------------------------------------------------------------------------------

CLOSED, CAPPED = {"block_on_demand": True}, {"max_gpus": 4}


def changed(body: dict[str, Any], **throttle: Any) -> dict[str, Any]:
    """The pod after the patch."""
    spec, metadata = body.get("spec", {}), body.get("metadata", {})
    pod = PodWanted(
        namespace="a", has_gpus=True, annotations=metadata.get("annotations"), node_name=spec.get("nodeName", ""),
        node_selector=spec.get("nodeSelector", {}), affinity=spec.get("affinity"),
        gates=tuple(each["name"] for each in spec.get("schedulingGates", ())),
    )
    whole = {"metadata": metadata, "spec": spec}
    return patches.json_patch(whole, list(admission.change(pod, [make("throttle", throttle=throttle)])))


def terms_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    node = pod["spec"]["affinity"]["nodeAffinity"]
    return node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": node, "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}


def test_a_closed_tier_asks_for_spot_or_reserved_nodes_by_any_of_their_labels():
    terms = terms_of(changed({"spec": {}}, **CLOSED))
    assert [term["matchExpressions"][0]["key"] for term in terms] == [key for key, _ in names.CHEAP_NODES]


def test_what_a_pod_required_before_it_still_requires():
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    made = changed({"spec": {"affinity": required({"matchExpressions": [zone]})}}, **CLOSED)
    assert all(zone in term["matchExpressions"] for term in terms_of(made))
    assert "podAntiAffinity" in made["spec"]["affinity"]


def test_made_twice_it_changes_nothing():
    once = changed({"metadata": {}, "spec": {}}, **CLOSED, **CAPPED)
    assert changed(once, **CLOSED, **CAPPED) == once


@pytest.mark.parametrize("body", [
    {"metadata": {"annotations": {names.SPOT_OK: "false"}}},
    {"spec": {"nodeSelector": {"karpenter.sh/capacity-type": "on-demand"}}},
    {"spec": {"affinity": required({"matchExpressions": [
        {"key": "eks.amazonaws.com/capacityType", "operator": "In", "values": ["ON_DEMAND"]}
    ]})}},
], ids=["says-so", "selects", "requires"])
def test_a_pod_that_does_not_fit_cheap_nodes_waits(body):
    made = changed({"metadata": {}, "spec": {}, **body}, **CLOSED)
    assert made["spec"]["schedulingGates"] == [{"name": names.BUDGET_GATE}]
    assert made["metadata"]["annotations"][names.GATED_BY] == "b"


def test_a_cap_lets_every_new_pod_wait_behind_the_others_gates():
    spec = {"schedulingGates": [{"name": "other"}]}
    made = changed({"metadata": {"annotations": {"x": "y"}}, "spec": spec}, **CAPPED)
    assert made["spec"]["schedulingGates"] == [{"name": "other"}, {"name": names.BUDGET_GATE}]
    assert made["metadata"]["annotations"] == {"x": "y", names.GATED_BY: "b"}
    assert "affinity" not in made["spec"]


@pytest.mark.parametrize("throttle", [CLOSED, CAPPED])
def test_a_pod_whose_maker_chose_its_node_cannot_be_made_to_wait(throttle):
    meant = [make("throttle", throttle=throttle)]
    assert "leave out nodeName" in admission.find_bound(PodWanted(namespace="a", node_name="n"), meant)
    assert admission.find_bound(PodWanted(namespace="a"), meant) == ""
    assert admission.find_bound(PodWanted(namespace="a", node_name="n"), [make("throttle")]) == ""
