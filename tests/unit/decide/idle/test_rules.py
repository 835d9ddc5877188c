"""Which rule holds, what the flags leave out, and when a rule is at work."""

from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World, pattern

from fallow.decide.idle import plan, rules
from fallow.model import work
from fallow.model.decision import Finding, Memory, Reason, Verdict
from fallow.model.policies import idle
from fallow.model.policies.idle import IdlePolicy, Scope, Selector, Slot
from fallow.model.seen import ABSENT, Known, Register, Unseen
from fallow.model.units import HOUR, MINUTE, parse_instant


def idle_policy(name: str, priority: int = 0, **said: Any) -> IdlePolicy:
    return IdlePolicy(name=name, uid=name, generation=1, rule=builders.rule(name=name), priority=priority, **said)


def find(world: World, mandate: idle.Mandate | None = None) -> Finding:
    return plan.make_plan(world.snapshot(), mandate or builders.mandate(), Memory(), NOW).findings[0]


def test_the_highest_priority_wins_and_ties_go_by_name() -> None:
    world = World()
    world.workload()
    world.policies = [idle_policy("b", 1), idle_policy("c", 2), idle_policy("a", 2)]
    assert find(world).rule.name == "a"
    assert find(world, builders.mandate(use_policies=False)).rule.name == "flags"
    in_force = plan.rules_in_force(builders.mandate(), Known(tuple(world.policies)))
    assert [rule.name for rule in in_force] == ["a", "c", "b", "flags"]


MATCHES = {
    "everything": ({}, True),
    "namespace": ({"namespaces": (pattern("m."),)}, True),
    "namespace-matches-as-a-whole": ({"namespaces": (pattern("m"),)}, False),
    "namespace-label": ({"namespace_selector": Selector({"team": "a"})}, True),
    "other-namespace-label": ({"namespace_selector": Selector({"team": "b"})}, False),
    "workload-label": ({"workload_selector": Selector({"app": "llm"})}, True),
    "workload-expression": ({"workload_selector": Selector({}, (("app", "NotIn", ("llm",)),))}, False),
    "all-pods": ({"pod_selector": Selector({"tier": "gpu"})}, True),
    "not-all-pods": ({"pod_selector": Selector({"role": "head"})}, False),
    "model": ({"gpu_models": (pattern("NVIDIA.*"),)}, True),
    "other-model": ({"gpu_models": (pattern("NVIDIA H100"),)}, False),
    "class": ({"classes": frozenset({"batch"})}, True),
    "other-class": ({"classes": frozenset({"notebook"})}, False),
}


@pytest.mark.parametrize(("said", "matches"), MATCHES.values(), ids=MATCHES.keys())
def test_a_policy_is_for_whom_all_its_selectors_fit(said: dict[str, Any], matches: bool) -> None:
    world = World()
    world.namespace("ml", labels={"team": "a"})
    pods = [world.pod(labels={"tier": "gpu", "role": "head"}), world.pod(labels={"tier": "gpu"})]
    world.workload(pods=pods, labels={"app": "llm"})
    world.policies = [idle_policy("special", **said)]
    assert (find(world).rule.name == "special") is matches


@pytest.mark.parametrize("what", ["model", "namespace"])
def test_what_is_not_known_never_moves_a_workload_to_a_laxer_rule(what: str) -> None:
    world = World()
    world.node("node-1", product=None)
    world.workload(gpus=[builders.idle(model="")])
    by_model, by_label = {"gpu_models": (pattern("NVIDIA H100"),)}, {"namespace_selector": Selector({"a": "b"})}
    world.policies = [idle_policy("special", **(by_model if what == "model" else by_label))]
    snapshot = world.snapshot(namespaces=Register({}, Unseen("403")))
    finding = plan.make_plan(snapshot, builders.mandate(), Memory(), NOW).findings[0]
    assert (finding.rule.name, finding.skip_label) == ("special", "ReportOnly:PolicyUnclear")


def test_policies_or_a_namespace_that_cannot_be_seen_leave_nothing_ours_to_pause() -> None:
    world = World()
    world.workload()
    hidden: list[dict[str, Any]] = [{"policies": Unseen("403")}, {"namespaces": Register({}, Unseen("403"))}]
    for said in (*hidden, {"namespaces": Register({})}):
        found = plan.make_plan(world.snapshot(**said), builders.mandate(), Memory(), NOW)
        assert (found.findings[0].skip_label, found.decisions) == ("ReportOnly:Unseen", ())
    found = plan.make_plan(world.snapshot(**hidden[0]), builders.mandate(use_policies=False), Memory(), NOW)
    assert found.findings[0].skip is None


def test_the_model_of_the_node_stands_in_for_one_that_was_not_measured() -> None:
    world = World()
    world.node("node-1", product="NVIDIA H100")
    world.workload(gpus=[builders.idle(model="")])
    world.policies = [idle_policy("special", gpu_models=(pattern("NVIDIA H100"),))]
    finding = find(world)
    assert (finding.rule.name, finding.models, finding.skip) == ("special", ("NVIDIA H100",), None)


def test_the_matches_of_an_invalid_policy_are_reported_only() -> None:
    world = World()
    world.workload()
    world.policies = [idle_policy("broken", invalid=("spec.windows.goneIdle: '30' is not a duration",))]
    finding = find(world)
    assert finding.skip_label == "ReportOnly:InvalidPolicy"
    assert "spec.windows.goneIdle" in finding.skip_because


def test_where_a_policy_is_required_the_flags_only_report() -> None:
    world = World()
    world.workload()
    assert find(world, builders.mandate(require_policy=True)).skip_label == "ReportOnly:NoPolicy"


SCOPES = {
    "all": ({}, None),
    "letter-off": ({"letters": frozenset("s")}, Reason.KindDisabled),
    "protected": ({"protected_namespaces": pattern("ml|kube-system")}, Reason.ProtectedNamespace),
    "other-namespace-asked": ({"namespace": pattern("web")}, Reason.Excluded),
    "this-namespace-asked": ({"namespace": pattern("m.*")}, None),
    "namespace-excluded": ({"exclude_namespaces": pattern("ml")}, Reason.Excluded),
    "a-pod-excluded": ({"exclude_pods": pattern("llm-1")}, Reason.Excluded),
    "model-asked": ({"model": pattern("NVIDIA A100")}, None),
    "other-model-asked": ({"model": pattern("NVIDIA A10G")}, Reason.Excluded),
    "not-watched": ({"watch_namespaces": ("web",)}, Reason.Excluded),
}


@pytest.mark.parametrize(("said", "skip"), SCOPES.values(), ids=SCOPES.keys())
def test_flags_say_how_far_we_reach(said: dict[str, Any], skip: Reason | None) -> None:
    world = World()
    world.workload(replicas=2)
    assert find(world, builders.mandate(scope=Scope(**said))).skip is skip


@pytest.mark.parametrize(("gpus", "skip"), [
    ([builders.idle(), builders.idle(model="NVIDIA T4")], Reason.Excluded),
    ([builders.idle(model="")], Reason.Excluded),
], ids=["mixed", "not-known"])
def test_all_gpus_must_be_of_the_model_asked_for(gpus: list[Any], skip: Reason) -> None:
    world = World()
    world.node("node-1", product=None)
    world.workload(gpus=gpus)
    assert find(world, builders.mandate(scope=Scope(model=pattern("NVIDIA A100")))).skip is skip


@pytest.mark.parametrize(("kinds", "skip"), [
    (frozenset({"Deployment"}), None), (frozenset({"Deployment.apps"}), None),
    (frozenset({"StatefulSet"}), Reason.KindDisabled),
])
def test_a_policy_may_name_its_kinds_instead_of_the_letters(kinds: frozenset[str], skip: Reason | None) -> None:
    world = World()
    world.workload()
    assert find(world, builders.mandate(builders.rule(kinds=kinds), scope=Scope(letters=frozenset("s")))).skip is skip


# ---- schedules -----------------------------------------------------------------------------------------------------

NIGHTS = Slot(frozenset({4}), 22 * 60, 6 * 60, "Europe/Berlin")  # from Friday night into Saturday
DAY = Slot(frozenset(range(5)), 9 * 60, 17 * 60, "UTC")


@pytest.mark.parametrize(("slot", "at", "inside"), [
    (DAY, "2026-11-13T09:00:00Z", True),
    (DAY, "2026-11-13T08:59:59Z", False),
    (DAY, "2026-11-13T17:00:00Z", False),
    (DAY, "2026-11-14T12:00:00Z", False),
    (NIGHTS, "2026-11-13T20:59:00Z", False),
    (NIGHTS, "2026-11-13T21:00:00Z", True),
    (NIGHTS, "2026-11-14T04:59:00Z", True),
    (NIGHTS, "2026-11-14T05:00:00Z", False),
    (NIGHTS, "2026-11-15T04:00:00Z", False),
    (NIGHTS, "2026-07-10T20:00:00Z", True),
    (Slot(frozenset({6}), 0, 0, "UTC"), "2026-11-15T12:00:00Z", True),
])
def test_a_slot_is_a_stretch_of_the_week_in_its_own_zone(slot: Slot, at: str, inside: bool) -> None:
    now = parse_instant(at)
    assert (rules.why_not_now(builders.rule(active_slots=(slot,)), now) is None) is inside
    assert (rules.why_not_now(builders.rule(freeze_slots=(slot,)), now) is not None) is inside


def test_a_zone_that_cannot_be_read_never_allows_anything() -> None:
    odd = Slot(frozenset(range(7)), 0, 0, "Mars/Olympus")
    assert rules.why_not_now(builders.rule(active_slots=(odd,)), NOW)
    assert rules.why_not_now(builders.rule(freeze_slots=(odd,)), NOW)


def test_outside_its_schedule_an_idle_workload_waits_and_inside_it_goes() -> None:
    world = World()
    world.workload()
    mandate = builders.mandate(builders.rule(active_slots=(Slot(frozenset({6}), 12 * 60 + 10, 13 * 60, "UTC"),)))
    seen, memory, cache = world.snapshot(), Memory(), plan.Cache()
    for after, skip in ((0.0, Reason.OutsideSchedule), (10 * MINUTE, None), (HOUR, Reason.OutsideSchedule)):
        world.now = NOW + after  # the same objects, a later look: the answer must not come from the cache
        snapshot = msgspec.structs.replace(seen, evidence=world.snapshot().evidence)
        made = plan.make_plan(snapshot, mandate, memory, world.now, cache)
        memory = made.memory
        assert (made.findings[0].verdict, made.findings[0].skip) == (Verdict.idle, skip)


# ---- classes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "said", "expected"), [
    ("Deployment", {"pod": {"labels": {"gpuautoscaler.io/workload-type": "serving"}}}, ("inference", "label")),
    ("Deployment", {"labels": {"gpu-autoscaler.io/workload-type": "dev"}}, ("notebook", "label")),
    ("Notebook", {"annotations": {"gpuautoscaler.io/workload-type": "training"}}, ("training", "label")),
    ("Notebook", {"labels": {"gpuautoscaler.io/workload-type": "gaming"}}, ("notebook", "owner")),
    ("PyTorchJob", {}, ("training", "owner")),
    ("RayJob", {}, ("batch", "owner")),
    ("Deployment", {"gpus": [builders.idle(), builders.idle()]}, ("training", "resources")),
    ("Deployment", {}, ("batch", "default")),
], ids=["pod-label", "alias", "annotation", "unknown-word", "owner", "ray", "several-gpus", "default"])
def test_the_first_source_that_answers_gives_the_class(
    kind: str, said: dict[str, Any], expected: tuple[str, str]
) -> None:
    world = World()
    world.workload(kind=kind, **said)
    assert work.classify(world.workloads[0], world.pods, ABSENT) == expected


def test_the_namespace_speaks_last_of_those_who_speak() -> None:
    world = World()
    world.namespace("ml", labels={"gpuautoscaler.io/workload-type": "inference"})
    world.workload()
    assert work.classify(world.workloads[0], world.pods, Known(world.namespaces["ml"])) == ("inference", "label")
