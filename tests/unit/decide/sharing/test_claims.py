"""Parts of GPUs by ResourceClaims: which there are, what a template asks for, and which templates come and go."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing
from fallow.decide.sharing import claims
from fallow.model import cluster, patterns
from fallow.model.claims import (
    ClaimDevice,
    ClaimGround,
    ClaimTemplate,
    MakeTemplate,
    MarkTemplate,
    RemoveTemplate,
)
from fallow.model.policies.sharing import SharingMode, SharingPolicy, Strategy
from fallow.model.seen import ABSENT, Absent, Known, Unseen
from fallow.model.selectors import Selector
from fallow.model.sharing import KeptWhole, PartGiven, PartNode

PRODUCT = "NVIDIA A100-SXM4-80GB"
SMALL = ClaimDevice(product=PRODUCT, profile="1g.10gb", memory=9856)
LARGE = ClaimDevice(product=PRODUCT, profile="3g.40gb", memory=40320)
SHARED = ClaimDevice(product=PRODUCT, memory=81920, shares=4)
WHOLE = ClaimDevice(product=PRODUCT, memory=81920)
CROWDED = ClaimDevice(product=PRODUCT, profile="1g.10gb", memory=9856, shares=4)
BOUNDLESS = ClaimDevice(product=PRODUCT, memory=81920, shares=None)
TERMS = msgspec.structs.replace(scenes.TERMS, by_claims=True)
MIG, TURNS = "fallow-mig-1g.10gb", "fallow-timeslicing"


def node(*devices: ClaimDevice, **more: Any) -> PartNode:
    return PartNode(**{"name": "dra", "devices": devices, **more})


def template(name: str = MIG, interval: str = "", **more: Any) -> ClaimTemplate:
    [(strategy, profile)] = claims.read_name(name)
    asks = claims.make_asks(strategy, profile, interval)
    return ClaimTemplate(**{"namespace": "ml", "name": name, "uid": "t-1", "asks": asks, **more})


def ground(*templates: ClaimTemplate, classes: frozenset[str] = claims.CLASSES) -> ClaimGround:
    return ClaimGround(classes, {(each.namespace, each.name): each for each in templates})


def judge(
    policy: SharingPolicy, *devices: ClaimDevice, around: Any = None, memory: str = "8Gi", **more: Any
) -> PartGiven | KeptWhole:
    known = Known(ground(template(MIG), template("fallow-mig-3g.40gb"), template(TURNS))) if around is None else around
    where = scenes.around(policy, nodes=(node(*devices),), claims=known)
    return scenes.judge(scenes.needing(memory, **more), where, TERMS)


@pytest.mark.parametrize(("strategy", "devices", "memory", "name"), [
    ("mig", (SMALL, LARGE), "8Gi", MIG), ("mig", (SMALL, LARGE), "12Gi", "fallow-mig-3g.40gb"),
    ("timeslicing", (WHOLE, SHARED), "20Gi", TURNS), ("auto", (SMALL, SHARED), "8Gi", MIG),
    ("auto", (WHOLE, SHARED), "8Gi", TURNS),
], ids=["smallest", "next", "by-turns", "auto", "auto-skips-mps"])
def test_the_smallest_part_that_is_enough_is_asked_for_by_its_template(
    strategy: str, devices: tuple[ClaimDevice, ...], memory: str, name: str
) -> None:
    given = judge(scenes.policy(strategy), *devices, memory=memory)
    assert isinstance(given, PartGiven)
    assert (given.part.template, given.part.resource, given.part.selector) == (name, "", {})


@pytest.mark.parametrize(("strategy", "devices", "memory"), [
    ("mig", (SMALL,), "12Gi"), ("mig", (CROWDED,), "8Gi"), ("mig", (SMALL, CROWDED), "8Gi"),
    ("timeslicing", (WHOLE,), "8Gi"), ("timeslicing", (BOUNDLESS,), "8Gi"), ("timeslicing", (SHARED,), "21Gi"),
    ("mps", (WHOLE, SHARED, SMALL), "8Gi"), ("mig", (), "8Gi"),
], ids=[
    "too-small", "instance-of-many", "one-of-them-of-many", "one-claim-alone", "no-bound", "too-many", "mps", "nothing",
])
def test_a_device_by_which_nothing_would_be_shared_or_with_anybody_is_no_part(
    strategy: str, devices: tuple[ClaimDevice, ...], memory: str
) -> None:
    kept = judge(scenes.policy(strategy), *devices, memory=memory)
    assert isinstance(kept, KeptWhole)
    assert kept.reason == "NoTargetNode"
    assert ("MPS" in kept.because) is (strategy == "mps")


@pytest.mark.parametrize(("around", "reason"), [
    (ABSENT, "ClaimsNotServed"), (Known(ground(template(), classes=frozenset())), "ClaimsNotServed"),
    (Known(ground(template(), classes=frozenset({names.DRA_GPU_CLASS}))), "ClaimsNotServed"),
    (Unseen("the API server is away"), "NotLoaded"), (Known(ground()), "TemplateMissing"),
    (Known(ground(template(namespace="other"))), "TemplateMissing"),
    (Known(ground(template(is_ours=False))), "TemplateMissing"),
    (Known(ground(template(leaving_since=scenes.NOW))), "TemplateMissing"),
    (Known(ground(template(asks={"devices": {"requests": []}}))), "TemplateMissing"),
    (Known(ground(template(asks=template(MIG.replace("1g.10", "3g.40")).asks))), "TemplateMissing"),
])
def test_whatever_is_missing_or_not_ours_leaves_the_pod_whole(around: Any, reason: str) -> None:
    kept = judge(scenes.policy("mig"), SMALL, around=around)
    assert isinstance(kept, KeptWhole)
    assert kept.reason == reason


def test_an_audit_needs_no_template() -> None:
    given = judge(scenes.policy("mig", mode=SharingMode.audit), SMALL, around=Known(ground()))
    assert isinstance(given, PartGiven)
    assert (given.is_audited, given.part.called) == (True, f"a claim by template {MIG}")


def test_what_the_server_adds_to_a_template_makes_it_no_other() -> None:
    asks = template().asks
    [request] = asks["devices"]["requests"]
    more = {"devices": {"requests": [{**request, "exactly": {**request["exactly"], "tolerations": []}}], "x": 1}}
    assert isinstance(judge(scenes.policy("mig"), SMALL, around=Known(ground(template(asks=more)))), PartGiven)
    doubled = {"devices": {"requests": [request, request]}}
    assert isinstance(judge(scenes.policy("mig"), SMALL, around=Known(ground(template(asks=doubled)))), KeptWhole)


def test_the_patch_replaces_the_gpu_by_a_claim_and_touches_nothing_else() -> None:
    given = judge(scenes.policy("mig", node_selector={}), SMALL)
    assert isinstance(given, PartGiven)
    made = sharing.change(scenes.needing(), given, scenes.NOW)
    operations = {each["path"]: each.get("value") for each in made if not each["path"].startswith("/metadata")}
    assert operations == {
        "/spec/containers/0/resources/limits/nvidia.com~1gpu": None,
        "/spec/containers/0/resources/requests/nvidia.com~1gpu": None,
        "/spec/containers/0/resources/claims": [{"name": "gpu"}],
        "/spec/resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": MIG}],
        "/spec/tolerations": [{"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"}],
    }


@pytest.mark.parametrize(("milliseconds", "interval"), [
    (1, "Short"), (2, "Medium"), (10, "Medium"), (11, "Long"), (1000, "Long"), (100, ""),
])
def test_turns_are_as_long_as_asked_for_and_without_a_word_as_the_driver_has_them(
    milliseconds: int, interval: str
) -> None:
    policy = scenes.policy("timeslicing", slice_ms=milliseconds)
    assert claims.find_interval([scenes.policy("mig"), policy]) == interval
    made = claims.make_asks(Strategy.timeslicing, "", interval)["devices"]
    settings = [each["opaque"]["parameters"] for each in made.get("config", ())]
    assert settings == ([] if not interval else [{
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }])


def test_an_instance_is_asked_for_by_its_profile_and_its_template_called_by_it() -> None:
    made = claims.make_asks(Strategy.mig, "1g.10gb+me", "Short")["devices"]
    [request] = made["requests"]
    assert request["exactly"]["deviceClassName"] == "mig.nvidia.com"
    assert request["exactly"]["selectors"] == [
        {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '1g.10gb+me'"}}
    ]
    assert "config" not in made
    name = claims.name_template(Strategy.mig, "1g.10gb+me")
    assert (name, list(claims.read_name(name))) == ("fallow-mig-1g.10gb.me", [(Strategy.mig, "1g.10gb+me")])
    assert list(claims.read_name("fallow-other")) == []


# ---- which templates there are to be ---------------------------------------------------------------------------------


PLACES = {name: cluster.Namespace(name, {"team": name}, {}) for name in ("ml", "web")}
ML_ONLY = Selector({"team": "ml"})


def plan(
    *policies: SharingPolicy, templates: tuple[ClaimTemplate, ...] = (), devices: tuple[ClaimDevice, ...] = (SMALL,),
    now: float = scenes.NOW, **more: Any,
) -> list[Any]:
    sights = claims.ClaimSights(**{
        "policies": policies, "namespaces": PLACES, "nodes": sharing.PartIndex((node(*devices),)),
        "ground": ground(*templates), "exempt": patterns.compile_pattern("kube-system"), **more,
    })
    return list(sharing.plan_claims(sights, now))


def test_enforcing_policies_have_a_template_for_each_part_that_nodes_offer_in_each_of_their_namespaces() -> None:
    made = plan(scenes.policy("auto"), devices=(SMALL, LARGE, SHARED, WHOLE))
    assert [(each.namespace, each.name) for each in made] == [
        (place, name) for place in ("ml", "web") for name in (MIG, "fallow-mig-3g.40gb", TURNS)
    ]
    one = scenes.policy("mig", profile="1g.10gb", namespace_selector=ML_ONLY)
    assert [(each.namespace, each.name) for each in plan(one, one, devices=(SMALL, LARGE, SHARED))] == [("ml", MIG)]


@pytest.mark.parametrize("more", [
    {"policies": ()}, {"policies": (scenes.policy("mig", mode=SharingMode.audit),)},
    {"policies": (scenes.policy("exclusive"),)}, {"policies": (scenes.policy("mps"),)},
    {"policies": (scenes.policy("mig", invalid=("wrong",)),)},
    {"policies": (scenes.policy("mig", reverts_too_often=True),)},
    {"ground": ClaimGround()}, {"exempt": patterns.compile_pattern("ml|web")},
    {"nodes": sharing.PartIndex((node(SMALL, is_cordoned=True),))},
    {"namespaces": {"ml": cluster.Namespace("ml", dict([names.WEBHOOK_DISABLED]), {})}},
], ids=["none", "audits", "exclusive", "mps", "wrong", "hurts", "no-classes", "exempt", "cordoned", "switched-off"])
def test_otherwise_there_is_none(more: dict[str, Any]) -> None:
    assert plan(scenes.policy("mig"), **more) == []


def test_one_that_nobody_wants_is_marked_and_goes_when_no_webhook_can_know_it_without_the_mark() -> None:
    left = template()
    assert plan(templates=(left,)) == [MarkTemplate(left, scenes.NOW)]
    marked = template(leaving_since=scenes.NOW)
    assert plan(templates=(marked,), now=scenes.NOW + claims.KEPT_AFTER_MARK - 1) == []
    late = scenes.NOW + claims.KEPT_AFTER_MARK
    assert plan(templates=(marked,), now=late) == [RemoveTemplate(marked)]
    assert plan(scenes.policy("mig", namespace_selector=ML_ONLY), templates=(marked,), now=late) == [
        MarkTemplate(marked, None)
    ]


@pytest.mark.parametrize("odd", [template(is_ours=False), template(is_ours=False, leaving_since=1.0)])
def test_what_is_not_ours_is_never_touched(odd: ClaimTemplate) -> None:
    assert plan(templates=(odd,)) == []
    assert plan(scenes.policy("mig", namespace_selector=ML_ONLY), templates=(odd,)) == []


def test_a_node_that_is_away_takes_no_template_with_it() -> None:
    policy = scenes.policy("mig", namespace_selector=ML_ONLY)
    assert plan(policy, templates=(template(),), devices=()) == []
    other = msgspec.structs.replace(policy, profile="3g.40gb")
    assert plan(other, templates=(template(),), devices=()) == [MarkTemplate(template(), scenes.NOW)]


def test_another_length_of_turns_is_another_template_once_the_old_one_is_gone() -> None:
    policy = scenes.policy("timeslicing", slice_ms=5, namespace_selector=ML_ONLY)
    old = template(TURNS)
    assert plan(policy, templates=(old,), devices=(SHARED,)) == [MarkTemplate(old, scenes.NOW)]
    [made] = plan(policy, devices=(SHARED,))
    assert isinstance(made, MakeTemplate)
    assert made.asks == template(TURNS, "Medium").asks


# ---- how a policy stands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "devices", "ready"), [
    ("mig", (SMALL,), "Ready"), ("mig", (CROWDED,), "NoTargetNode"), ("mps", (SHARED,), "NoTargetNode"),
    ("timeslicing", (SHARED,), "Ready"), ("timeslicing", (WHOLE,), "NoTargetNode"), ("auto", (SHARED,), "Ready"),
    ("auto", (), "NoTargetNode"),
])
def test_a_policy_is_ready_by_what_is_given_by_claims(
    strategy: str, devices: tuple[ClaimDevice, ...], ready: str
) -> None:
    nodes = Known(sharing.PartIndex((node(*devices), scenes.CUT, scenes.SLICED, scenes.MPS)))
    standing = sharing.stand_policy(scenes.policy(strategy), nodes, by_claims=sharing.ByClaims())
    assert standing.ready[1] == ready


@pytest.mark.parametrize(("more", "interval", "reason"), [
    ({"slice_ms": 5}, "Medium", "AsAsked"), ({"slice_ms": 5}, "Short", "SliceMsIgnored"),
    ({}, "Short", "SliceMsIgnored"), ({"slice_ms": 5, "mode": SharingMode.audit}, "", "AsAsked"),
    ({"fairness": "weighted"}, "", "FairnessModeIgnored"), ({"memory_limit": 4096}, "", "MpsUnsupported"),
])
def test_of_what_it_asks_for_only_what_the_driver_cannot_do_is_said(
    more: dict[str, Any], interval: str, reason: str
) -> None:
    standing = sharing.stand_policy(scenes.policy("auto", **more), ABSENT, by_claims=sharing.ByClaims(interval))
    assert standing.degraded[1] == reason


def test_nodes_that_are_not_seen_make_no_policy_ready() -> None:
    seen: Unseen | Absent = Unseen("away")
    assert sharing.stand_policy(scenes.policy("mig"), seen, by_claims=sharing.ByClaims()).ready[0] == "Unknown"


# ---- whom nobody may trust -------------------------------------------------------------------------------------------


def test_an_instance_has_no_more_memory_than_it_is_called_by() -> None:
    lying = ClaimDevice(product=PRODUCT, profile="1g.10gb", memory=81920)
    kept = judge(scenes.policy("mig"), lying, memory="20Gi")
    assert isinstance(kept, KeptWhole)
    assert isinstance(judge(scenes.policy("mig"), lying, memory="8Gi"), PartGiven)


@pytest.mark.parametrize(("place", "more"), [
    ("exactly", {"adminAccess": True}), ("exactly", {"tolerations": [{"operator": "Exists"}]}),
    ("exactly", {"selectors": [{"cel": {"expression": "true"}}]}), ("devices", {"config": [{"opaque": {}}]}),
    ("devices", {"constraints": [{"matchAttribute": "a/b"}]}), ("request", {"firstAvailable": [{"name": "other"}]}),
], ids=["admin", "tolerations", "selectors", "config", "constraints", "first"])
def test_a_template_that_says_more_than_we_wrote_is_given_to_nobody(place: str, more: dict[str, Any]) -> None:
    made = template(TURNS)
    asks = json.loads(json.dumps(made.asks))
    [request] = asks["devices"]["requests"]
    {"devices": asks["devices"], "request": request, "exactly": request["exactly"]}[place].update(more)
    edited = msgspec.structs.replace(made, asks=asks)
    kept = judge(scenes.policy("timeslicing"), SHARED, around=Known(ground(edited)))
    assert isinstance(kept, KeptWhole)


def test_what_the_server_leaves_empty_says_nothing() -> None:
    made = template(TURNS)
    asks = {**made.asks, "devices": {**made.asks["devices"], "constraints": None, "config": []}}
    given = judge(scenes.policy("timeslicing"), SHARED, around=Known(ground(msgspec.structs.replace(made, asks=asks))))
    assert isinstance(given, PartGiven)


@pytest.mark.parametrize("profile", ["1g.10gb' || true", "../x", "9" * 5000, "\x00", "1g.10gb "])
def test_a_profile_that_a_pod_makes_up_gives_it_nothing(profile: str) -> None:
    marks = {names.SHARING_MODE: "mig", names.SHARING_PROFILE: profile}
    kept = judge(scenes.policy("mig"), SMALL, LARGE, annotations=marks)
    assert isinstance(kept, KeptWhole)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_mark_from_the_future_neither_keeps_a_template_for_ever_nor_from_anybody(is_wanted: bool) -> None:
    far = template(MIG, leaving_since=scenes.NOW + 1e9)
    sights = claims.ClaimSights(
        policies=(scenes.policy("mig"),) if is_wanted else (),
        namespaces={"ml": cluster.Namespace(name="ml", labels={}, annotations={})},
        nodes=sharing.PartIndex(()), ground=ground(far), exempt=patterns.compile_pattern("kube-system"),
    )
    assert sharing.plan_claims(sights, scenes.NOW) == (MarkTemplate(far, None if is_wanted else scenes.NOW),)
