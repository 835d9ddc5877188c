"""What came of a policy: whether it can be done, what of it nobody heeds, and whom it applies to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing
from fallow.model.policies.sharing import SharingMode, SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.sharing import PartNode, PolicyCounts, SharePod


def index(*nodes: PartNode) -> Input[sharing.PartIndex]:
    return Known(sharing.PartIndex(nodes))


@pytest.mark.parametrize(("policy", "nodes", "status", "reason"), [
    (scenes.policy("mig"), index(scenes.CUT), "True", "Ready"),
    (scenes.policy("mig"), index(scenes.SLICED), "False", "NoTargetNode"),
    (scenes.policy("mig", profile="2g.20gb"), index(scenes.CUT), "True", "Ready"),
    (scenes.policy("mig", profile="7g.80gb"), index(scenes.CUT), "False", "NoTargetNode"),
    (scenes.policy("mig", profile="3g.7gb"), index(scenes.CUT), "False", "ProfileNotInCatalogue"),
    (scenes.policy("mps"), index(scenes.SLICED), "False", "NoTargetNode"),
    (scenes.policy("mps"), index(scenes.MPS), "True", "Ready"),
    (scenes.policy("timeslicing"), index(scenes.SLICED), "True", "Ready"),
    (scenes.policy("timeslicing", node_selector={"pool": "x"}), index(scenes.SLICED), "False", "NoTargetNode"),
    (scenes.policy("auto"), index(scenes.CUT), "True", "Ready"),
    (scenes.policy("auto"), index(scenes.MPS), "True", "Ready"),
    (scenes.policy("auto"), index(), "False", "NoTargetNode"),
    (scenes.policy("auto"), ABSENT, "False", "NoTargetNode"),
    (scenes.policy("auto"), Unseen("forbidden"), "Unknown", "NotSeen"),
    (scenes.policy("exclusive"), Unseen("forbidden"), "True", "Ready"),
    (scenes.policy("auto", invalid=("spec.podSelector: no",)), index(scenes.CUT), "False", "InvalidSelector"),
    (scenes.policy("auto", invalid=("spec.priority: no",)), index(scenes.CUT), "False", "InvalidSpec"),
])
def test_a_policy_is_ready_where_a_node_offers_what_it_asks_for(
    policy: SharingPolicy, nodes: Input[sharing.PartIndex], status: str, reason: str
) -> None:
    assert sharing.stand_policy(policy, nodes).ready[:2] == (status, reason)


@pytest.mark.parametrize(("strategy", "more", "reason"), [
    ("mps", {}, "AsAsked"), ("mps", {"active_threads": 50}, "EqualSharesOnly"),
    ("auto", {"memory_limit": 512}, "EqualSharesOnly"), ("timeslicing", {"memory_limit": 512}, "AsAsked"),
    ("timeslicing", {"slice_ms": 5}, "SliceMsIgnored"), ("mps", {"slice_ms": 5}, "AsAsked"),
    ("timeslicing", {"fairness": "weighted"}, "FairnessModeIgnored"),
    ("timeslicing", {"fairness": "weighted", "reverts_too_often": True}, "TooManyReverts"),
])
def test_what_the_device_plugin_cannot_do_is_said(strategy: str, more: dict[str, Any], reason: str) -> None:
    found = sharing.stand_policy(scenes.policy(strategy, **more), index(scenes.MPS, scenes.SLICED))
    assert found.degraded[:2] == ("False" if reason == "AsAsked" else "True", reason)


def test_pods_are_counted_by_the_policy_that_changed_or_would_change_them() -> None:
    marks = {names.OPTIMIZED: "true", names.OPTIMIZATION_POLICY: "small"}
    changed = scenes.pod(scenes.container(None), annotations=marks, node_name="cut")
    whole = scenes.needing("8Gi", node_name="gpu-1")
    out = scenes.needing("8Gi", annotations={names.OPTIMIZE: "false"}, node_name="gpu-1")
    unknown, unseen = scenes.pod(node_name="gpu-1"), scenes.around(scenes.policy("mig"), owner=Unseen("no"))
    near = scenes.around(scenes.policy("mig", mode=SharingMode.audit))
    seen = [(changed, near), (whole, near), (whole, near), (out, near), (unknown, near), (whole, unseen)]
    assert sharing.count_pods(seen, scenes.TERMS, scenes.NOW) == {"small": PolicyCounts(applied=1, audited=2)}


@pytest.mark.parametrize(("labels", "marks", "reasons"), [
    ({}, {}, []),
    ({}, {names.SHARING_MODE: "mps"}, []),
    ({}, {names.SHARING_MODE: "turbo"}, ["InvalidSharingMode"]),
    ({names.WORKLOAD_TYPE: "gaming"}, {}, ["UnknownWorkloadType"]),
    ({}, {names.SHARING: "enabled", names.SHARING.replace(names.GROUP, names.SEED_GROUP): "disabled"},
     ["ConflictingAnnotation"]),
    ({}, {names.SHARING: "enabled", names.SHARING.replace(names.GROUP, names.SEED_GROUP): "enabled"}, []),
])
def test_who_wrote_what_nobody_understands_is_told(
    labels: dict[str, str], marks: dict[str, str], reasons: list[str]
) -> None:
    assert [each.reason for each in sharing.find_pod_events(labels, marks)] == reasons


def test_shared_pods_are_counted_by_our_own_words_alone() -> None:
    def made(way: str, **more: str) -> SharePod:
        marks = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: way, **more}
        return scenes.pod(scenes.container(None), annotations=marks)

    seen = [made("mig"), made("mig"), made("mps"), made("tenants-word"), scenes.pod()]
    assert sharing.count_shared(seen) == {"mig": 2, "mps": 1, "timeslicing": 0}
