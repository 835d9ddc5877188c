"""Who shares a GPU, by which strategy and on which part; and everybody who is left alone, with the reason."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests.unit.decide.sharing import scenes
from tests.unit.decide.sharing.scenes import NOW, around, container, judge, mig_node, needing, pod, policy, sharing_node

from fallow import names
from fallow.decide import sharing
from fallow.decide.sharing import parts
from fallow.model import cluster, gpus, units
from fallow.model.classes import Behaviour, WorkClass
from fallow.model.policies.sharing import SharingMode, SharingPolicy, Strategy
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.selectors import Selector
from fallow.model.sharing import (
    KeptWhole,
    NodeTaint,
    OwnerUse,
    PartGiven,
    PartNode,
    PodToleration,
    ShareContainer,
    SharePod,
    ShareReason,
)
from fallow.model.units import DAY

AUTO, MIG = policy(), policy("mig")


def why(made: SharePod, where: sharing.ShareAround | None = None) -> str:
    verdict = judge(made, where if where is not None else around(MIG))
    assert isinstance(verdict, KeptWhole), verdict
    assert verdict.because
    return str(verdict.reason)


def shared(made: SharePod, where: sharing.ShareAround) -> PartGiven:
    verdict = judge(made, where)
    assert isinstance(verdict, PartGiven), verdict
    return verdict


# ---- left alone ------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("packing", 6)
@pytest.mark.parametrize(("made", "reason"), [
    (needing(namespace="kube-system"), "ExemptNamespace"),
    (needing(annotations={names.OPTIMIZE: "false"}), "OptedOut"),
    (needing(annotations={"gpu-autoscaler.io/sharing": "disabled"}), "OptedOut"),
    (needing(annotations={names.OPTIMIZE: "no"}), "OptedOut"),
    (needing(annotations={names.SHARING: "off"}), "OptedOut"),
    (needing(annotations={names.SHARING: ""}), "OptedOut"),
    (needing(annotations={names.SHARING: "disabled", "gpu-autoscaler.io/sharing": "enabled"}), "OptedOut"),
    (needing("8Gi", container("2")), "NotOneGpu"),
    (needing("8Gi", container(), container()), "NotOneGpu"),
    (needing("8Gi", container(None)), "NotOneGpu"),
    (needing("8Gi", container("1.5")), "NotOneGpu"),
    (needing("8Gi", container("one")), "NotOneGpu"),
    (needing("8Gi", container(requests={names.GPU: "2"})), "NotOneGpu"),
    (needing("8Gi", container(None), init_containers=(container(),)), "GpuInInitContainer"),
    (needing("8Gi", container(), init_containers=(container(),)), "NotOneGpu"),
    (needing("8Gi", container(limits={names.GPU: "1", "nvidia.com/mig-1g.10gb": "1"})), "AlreadyShares"),
    (needing("8Gi", container(None), container(None, limits={names.GPU_SHARED: "1"})), "AlreadyShares"),
    (needing(has_claims=True), "UsesClaims"),
    (needing("8Gi", container(has_claims=True)), "UsesClaims"),
    (needing("8Gi", container(limits={names.GPU: "1", names.HAMI_MEMORY: "3000"})), "OtherSharer"),
    (needing(annotations={"gpu-fraction": "0.5"}), "OtherSharer"),
    (needing(scheduler="kai-scheduler"), "OtherScheduler"),
    (needing("8Gi", container(sets_devices=True)), "VisibleDevicesSet"),
    (needing("8Gi", container(), container(None, is_privileged=True)), "Privileged"),
    (needing(node_name="n-1"), "NodeChosen"),
    (needing(is_static=True), "StaticPod"),
    (needing("lots"), "InvalidNeed"),
    (needing("0"), "InvalidNeed"),
    (needing(annotations={names.GPU_COMPUTE_NEED: "101"}), "InvalidNeed"),
    (needing(node_selector={names.GPU_PRODUCT: "L4"}), "NoTargetNode"),
    (needing("800Gi"), "NoTargetNode"),
    (pod(), "VramUnknown"),
])
def test_left_alone_with_a_reason(made: SharePod, reason: str) -> None:
    assert why(made) == reason


@pytest.mark.parametrize("said", [
    {names.OPTIMIZE: "True", names.SHARING: "Enabled"},
    {names.OPTIMIZE: "true", "gpu-autoscaler.io/optimize": "false"},  # ours counts
])
def test_a_yes_is_no_opt_out(said: dict[str, str]) -> None:
    assert shared(needing(annotations=said), around(MIG)).part.resource == "nvidia.com/mig-1g.10gb"


def test_an_odd_spelling_of_one_is_one() -> None:
    made = needing("8Gi", container("1000m", requests={}))
    assert shared(made, around(MIG)).part.resource == "nvidia.com/mig-1g.10gb"


@pytest.mark.accepts("packing", 7)
def test_an_unknown_mode_leaves_it_alone_and_is_said_in_an_event() -> None:
    verdict = judge(needing(annotations={names.SHARING_MODE: "turbo"}), around(MIG))
    assert isinstance(verdict, KeptWhole)
    assert verdict.reason is ShareReason.InvalidSharingMode
    assert [(each.reason, each.message) for each in verdict.events] == [(
        "InvalidSharingMode",
        "gpuautoscaler.io/sharing-mode: 'turbo' is none of mig, mps, timeslicing, exclusive; the pod keeps its whole "
        "GPU",
    )]


def owned(**annotations: str) -> Known[Any]:
    named = {f"gpuautoscaler.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return Known(msgspec.structs.replace(scenes.OWNER, annotations=named))


@pytest.mark.parametrize(("where", "reason"), [
    ({"namespace": ABSENT}, "NamespaceUnseen"), ({"namespace": Unseen("forbidden")}, "NamespaceUnseen"),
    ({"namespace": Known(cluster.Namespace("ml", {"gpuautoscaler.io/webhook": "disabled"}, {}))}, "ExemptNamespace"),
    ({"namespace": Known(cluster.Namespace("ml", {}, {names.OPTIMIZE: "false"}))}, "OptedOut"),
    ({"owner": Unseen("timed out")}, "OwnerUnseen"),
    ({"owner": owned(optimize="false")}, "OptedOut"),
    ({"owner": owned(sharing_backoff_until=units.rfc3339(NOW + 60))}, "BackOff"),
    ({"owner": owned(sharing_backoff_until="later")}, "BackOff"),
    ({"policies": Unseen("not yet")}, "NotLoaded"), ({"nodes": Unseen("not yet")}, "NotLoaded"),
    ({"nodes": ABSENT}, "NoTargetNode"), ({"policies": ABSENT}, "NoPolicy"),
])
def test_whoever_is_not_seen_or_says_no_leaves_it_alone(where: dict[str, Any], reason: str) -> None:
    assert why(needing(), around(MIG, **where)) == reason


def test_a_back_off_that_is_over_is_none() -> None:
    over = owned(sharing_backoff_until=units.rfc3339(NOW - 60))
    assert shared(needing(), around(MIG, owner=over))


# ---- who asks for it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("marks", "strategy"), [
    ({names.SHARING_MODE: "mps"}, "mps"), ({names.SHARING_MODE: "timeslicing"}, "timeslicing"),
    ({names.SHARING_MODE: "mig"}, "mig"), ({names.MPS_ENABLED: "true"}, "mps"),
    ({"gpu-autoscaler.io/timeslicing": "true"}, "timeslicing"), ({names.TIMESLICING[1]: "true"}, "timeslicing"),
    ({names.SHARING: "enabled"}, "mig"),
])
def test_the_pod_itself_goes_before_every_policy(marks: dict[str, str], strategy: str) -> None:
    verdict = shared(needing(annotations=marks), around(policy("exclusive", priority=9)))
    assert (verdict.part.strategy, verdict.policy, verdict.reason) == (strategy, "", "Shared")


def test_a_pod_may_name_its_profile_and_keeps_to_it() -> None:
    marks = {names.SHARING_MODE: "mig", names.SHARING_PROFILE: "2g.20gb"}
    assert shared(needing(annotations=marks), around()).part.profile == "2g.20gb"
    assert shared(pod(annotations=marks), around()).part.profile == "2g.20gb"  # whoever names it knows
    assert why(needing("30Gi", annotations=marks), around()) == "NoTargetNode"
    assert why(needing(annotations={**marks, names.SHARING_PROFILE: "9g.1gb"}), around()) == "NoTargetNode"
    assert why(needing(annotations={names.SHARING_MODE: "exclusive"})) == "Exclusive"


def test_of_several_policies_priority_then_age_then_name_decide() -> None:
    old, young = policy("mig", name="z", created_at=1.0), policy("exclusive", name="a", created_at=2.0)
    assert shared(needing(), around(young, old)).policy == "z"
    assert shared(needing(), around(msgspec.structs.replace(young, created_at=1.0, strategy=Strategy.mig), old)
                  ).policy == "a"
    assert why(needing(), around(msgspec.structs.replace(young, priority=1), old)) == "Exclusive"


@pytest.mark.parametrize(("changed", "matches"), [
    ({"namespace_selector": Selector({"team": "ml"})}, True), ({"namespace_selector": Selector({"team": "x"})}, False),
    ({"pod_selector": Selector({"app": "llm"})}, True), ({"pod_selector": Selector({"app": "x"})}, False),
    ({"work": frozenset({WorkClass.inference})}, True), ({"work": frozenset({WorkClass.notebook})}, False),
])
def test_a_policy_matches_by_namespace_pod_and_class(changed: dict[str, Any], matches: bool) -> None:
    verdict = judge(needing(labels={"app": "llm"}), around(policy("mig", **changed)))
    assert isinstance(verdict, PartGiven) is matches
    assert matches or verdict.reason is ShareReason.NoPolicy


def test_a_wrong_policy_that_would_decide_leaves_it_alone() -> None:
    wrong = policy("mig", name="wrong", priority=1, invalid=("spec.podSelector: no",))
    assert why(needing(), around(MIG, wrong)) == "PolicyInvalid"
    elsewhere = msgspec.structs.replace(wrong, namespace_selector=Selector({"team": "x"}))
    assert shared(needing(), around(MIG, elsewhere)).policy == "small"


@pytest.mark.parametrize(("changed", "rewrites", "reason"), [
    ({}, True, "Shared"), ({}, False, "RewritesOff"), ({"mode": SharingMode.audit}, True, "PolicyAudits"),
    ({"reverts_too_often": True}, True, "PolicyAudits"), ({"rollout_percent": 0}, True, "NotInRollout"),
])
def test_only_an_enforcing_policy_changes_anything(changed: dict[str, Any], rewrites: bool, reason: str) -> None:
    terms = msgspec.structs.replace(scenes.TERMS, rewrites=rewrites)
    verdict = judge(needing(), around(policy("mig", **changed)), terms)
    assert isinstance(verdict, PartGiven)
    assert (verdict.reason, verdict.is_audited) == (reason, reason != "Shared")


def test_a_rollout_takes_owners_and_never_lets_one_go_again() -> None:
    in_force = []
    for percent in (0, 10, 50, 90, 100):
        rolled = around(policy("mig", rollout_percent=percent))
        owners = [msgspec.structs.replace(scenes.OWNER, uid=f"u-{number}") for number in range(300)]
        in_force.append({
            owner.uid for owner in owners
            if not shared(needing(), msgspec.structs.replace(rolled, owner=Known(owner))).is_audited
        })
    assert all(before <= after for before, after in itertools.pairwise(in_force))
    assert (len(in_force[0]), len(in_force[-1])) == (0, 300)
    assert 110 < len(in_force[2]) < 190


# ---- auto ------------------------------------------------------------------------------------------------------------


def used(**more: Any) -> Known[OwnerUse]:
    return Known(OwnerUse(**{"coverage": 0.9, "peak_memory": 4000, "mean": 0.2, "p95": 0.1, **more}))


@pytest.mark.accepts("packing", 3)
def test_unknown_gpu_memory_of_a_service_leaves_it_alone_whatever_its_ram() -> None:
    made = pod(container(requests={names.GPU: "1", "memory": "8Gi"}))
    verdict = judge(made, around(AUTO))
    assert isinstance(verdict, KeptWhole)
    assert (verdict.reason, verdict.work.work if verdict.work else "") == ("VramUnknown", "inference")
    assert why(made, around(AUTO, use=used(coverage=0.79))) == "VramUnknown"
    assert why(made, around(AUTO, use=Unseen("Prometheus is down"))) == "VramUnknown"


@pytest.mark.parametrize(("image", "use", "nodes", "expected"), [
    ("vllm", used(), (scenes.CUT, scenes.MPS), "mig"), ("vllm", used(), (scenes.MPS, scenes.SLICED), "mps"),
    ("vllm", used(), (scenes.SLICED,), "timeslicing"), ("vllm", used(), (), "NoTargetNode"),
    ("jupyter", ABSENT, (scenes.CUT, scenes.MPS, scenes.SLICED), "timeslicing"),
    ("jupyter", ABSENT, (scenes.CUT, scenes.MPS), "NoTargetNode"),
    ("app", used(), (scenes.CUT, scenes.SLICED), "timeslicing"), ("app", used(mean=0.5), (), "KeepsWholeGpu"),
    ("app", used(mean=None), (), "UsageUnknown"), ("app", ABSENT, (), "VramUnknown"),
    ("torchrun", used(), (scenes.CUT,), "KeepsWholeGpu"),
    ("vllm", used(p95=0.3), (mig_node(g1_10=1),), "NoTargetNode"),  # a seventh of the SMs is not enough
    ("vllm", used(p95=0.2), (scenes.MPS,), "NoTargetNode"),  # nor is an eighth of the threads
    ("vllm", used(peak_memory=20_000), (scenes.MPS,), "NoTargetNode"),  # an eighth of its memory is not enough
])
def test_auto_goes_by_class_and_by_what_there_is(
    image: str, use: Input[OwnerUse], nodes: tuple[PartNode, ...], expected: str
) -> None:
    verdict = judge(pod(container(image=image)), around(AUTO, nodes=nodes, use=use))
    assert (verdict.part.strategy if isinstance(verdict, PartGiven) else verdict.reason) == expected


@pytest.mark.parametrize("node", [
    mig_node(g1_10=0), msgspec.structs.replace(scenes.CUT, is_ready=False),
    msgspec.structs.replace(scenes.CUT, is_cordoned=True),
    msgspec.structs.replace(scenes.CUT, taints=(NodeTaint("team", "a", "NoSchedule"),)),
])
def test_a_node_must_be_open_and_have_it(node: PartNode) -> None:
    assert why(needing(), around(MIG, nodes=(node,))) == "NoTargetNode"


@pytest.mark.parametrize(("toleration", "fits"), [
    (PodToleration("team", "Equal", "a", "NoSchedule"), True), (PodToleration("team", "Equal", "b"), False),
    (PodToleration("", "Exists"), True), (PodToleration("team", "Exists", "", "NoExecute"), False),
    (PodToleration("", "Equal", "a"), False),
])
def test_taints_are_tolerated_as_the_scheduler_reads_them(toleration: PodToleration, fits: bool) -> None:
    node = msgspec.structs.replace(scenes.CUT, taints=(
        NodeTaint("team", "a", "NoSchedule"), NodeTaint(names.GPU, "present", "NoSchedule"),
        NodeTaint("x", "", "PreferNoSchedule"),
    ))
    verdict = judge(needing(tolerations=(toleration,)), around(MIG, nodes=(node,)))
    assert isinstance(verdict, PartGiven) is fits


def test_pod_and_policy_choose_among_nodes() -> None:
    here = msgspec.structs.replace(scenes.CUT, labels={**scenes.A100, "pool": "small"})
    chosen = policy("mig", node_selector={"pool": "small"})
    assert why(needing(), around(chosen)) == "NoTargetNode"
    assert shared(needing(), around(chosen, nodes=(here,))).part.selector == {"pool": "small"}
    assert why(needing(node_selector={"pool": "large"}), around(chosen, nodes=(here,))) == "SelectorConflict"
    assert why(needing(node_selector={names.GPU_SHARING: "none"}), around(policy("mps"))) == "NoTargetNode"
    term = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["large"]}]}]
    assert why(needing(terms=term), around(MIG, nodes=(here,))) == "NoTargetNode"


def test_where_the_plugin_does_not_rename_the_request_stays() -> None:
    plain = sharing_node(renames=False)
    part = shared(needing(), around(policy("timeslicing"), nodes=(plain,))).part
    assert (part.resource, part.selector) == (names.GPU, {names.GPU_SHARING: "time-slicing"})
    both = shared(needing(), around(policy("timeslicing"), nodes=(plain, scenes.SLICED))).part
    assert both.resource == names.GPU_SHARED


def test_of_a_thousand_nodes_those_alike_are_looked_at_once_and_a_name_still_counts() -> None:
    many = tuple(
        msgspec.structs.replace(scenes.CUT, name=f"n-{number}", labels={**scenes.A100, "stamp": str(number)})
        for number in range(1000)
    )
    index = sharing.PartIndex(many)
    assert len(index.list_alike(frozenset())) == 1
    assert len(index.list_alike(frozenset({"stamp"}))) == 1000
    term = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n-7"]}]}]
    assert shared(needing(terms=term), around(MIG, nodes=many)).part.profile == "1g.10gb"
    assert why(needing(terms=[{"matchFields": [{**term[0]["matchFields"][0], "values": ["n-x"]}]}]),
               around(MIG, nodes=many)) == "NoTargetNode"
    assert shared(needing(node_selector={"stamp": "9"}), around(MIG, nodes=many))


def test_a_way_of_sharing_that_is_switched_off_is_not_taken_and_auto_takes_the_next() -> None:
    terms = msgspec.structs.replace(scenes.TERMS, without=frozenset({Strategy.mig}))
    serving = needing(labels={names.WORKLOAD_TYPE: "inference"})
    everything = around(policy("auto"), nodes=(scenes.CUT, scenes.SLICED))
    taken = [sharing.judge(serving, everything, each, NOW) for each in (scenes.TERMS, terms)]
    assert [each.part.strategy for each in taken if isinstance(each, PartGiven)] == ["mig", "timeslicing"]
    left = sharing.judge(needing(), around(MIG), terms, NOW)
    assert isinstance(left, KeptWhole)
    assert (left.reason, left.because) == ("NoTargetNode", "this way of sharing is switched off")


def test_a_pod_that_names_its_host_is_judged_by_that_host_alone() -> None:
    """Whatever else it selects by: not all nodes are gone through for it."""
    here, there = (
        msgspec.structs.replace(scenes.CUT, name=name, labels={**scenes.A100, names.HOSTNAME: name, "zone": name})
        for name in ("here", "there")
    )
    index = sharing.PartIndex((here, there))
    assert (list(index.list_on("here")), list(index.list_on("nowhere"))) == ([here], [])
    nodes = (here, there)
    assert shared(needing(node_selector={names.HOSTNAME: "here", "zone": "here"}), around(MIG, nodes=nodes))
    for odd in ({names.HOSTNAME: "here", "zone": "there"}, {names.HOSTNAME: "nowhere"}):
        assert why(needing(node_selector=odd), around(MIG, nodes=nodes)) == "NoTargetNode"


# ---- profiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "compute", "offers", "expected"), [
    ("8Gi", None, {"g1_10": 1, "g2_20": 1}, "1g.10gb"), ("10Gi", None, {"g1_10": 1, "g2_20": 1}, "2g.20gb"),
    ("10Gi", None, {"g1_20": 1, "g2_20": 1}, "1g.20gb"), ("10Gi", "20", {"g1_20": 1, "g2_20": 1}, "2g.20gb"),
    ("8Gi", "50", {"g1_10": 1, "g3_40": 1, "g4_40": 1}, "4g.40gb"), ("40Gi", None, {"g1_10": 7}, None),
    ("9850", None, {"g1_10": 1}, "1g.10gb"), ("9851", None, {"g1_10": 1}, None),
])
def test_the_smallest_profile_that_is_enough(
    memory: str, compute: str | None, offers: dict[str, int], expected: str | None
) -> None:
    marks = {names.GPU_COMPUTE_NEED: compute} if compute else {}
    verdict = judge(needing(memory, annotations=marks), around(MIG, nodes=(mig_node(**offers),)))
    assert (verdict.part.profile if isinstance(verdict, PartGiven) else None) == expected


def test_labels_know_better_than_the_book_and_the_least_of_all_nodes_counts() -> None:
    resource = "nvidia.com/mig-1g.10gb"
    told = msgspec.structs.replace(scenes.CUT, name="told", labels={**scenes.A100, f"{resource}.memory": "7000"})
    parts_of = {part.profile: part.memory for part in parts.list_profiles((scenes.CUT, told))}
    assert parts_of["1g.10gb"] == 7000
    strange = PartNode(name="s", offers={resource: 1, "nvidia.com/mig-odd": 2, "nvidia.com/mig-1g.5gb.me": 1})
    assert {part.profile: part.memory for part in parts.list_profiles((strange,))} == {
        "1g.10gb": 8704, "1g.5gb+me": 4352,
    }
    assert gpus.name_resource("1g.5gb+me") == "nvidia.com/mig-1g.5gb.me"


@pytest.mark.parametrize(("replicas", "expected"), [("0", "1g.10gb"), ("1", "1g.10gb"), ("2", None), ("odd", None)])
def test_an_instance_that_pods_take_turns_on_is_no_whole_one(replicas: str, expected: str | None) -> None:
    told = {**scenes.A100, "nvidia.com/mig-1g.10gb.replicas": replicas}
    turned = msgspec.structs.replace(mig_node("turned", g1_10=14), labels=told)
    for nodes in ((turned,), (mig_node(g1_10=7), turned)):  # nobody knows to which one a pod will go
        verdict = judge(needing("8Gi"), around(MIG, nodes=nodes))
        assert (verdict.part.profile if isinstance(verdict, PartGiven) else None) == expected


# ---- advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "p95", "need", "memory", "expected"), [
    (0.1, 0.9, 1000, 80_000, 8), (0.1, 0.9, 20_000, 80_000, 4), (0.3, 0.9, 1000, 80_000, 4),
    (0.3, 0.4, 1000, 80_000, 2), (0.6, 0.9, 1000, 80_000, 1), (0.0, 0.0, 1000, 80_000, 8),
    (0.1, 0.9, 90_000, 80_000, 1), (0.1, 0.9, None, 80_000, 1), (0.1, 0.9, 1000, None, 1),
])
def test_replica_advice(mean: float, p95: float, need: int | None, memory: int | None, expected: int) -> None:
    assert sharing.advise_replicas(mean, p95, largest_need=need, gpu_memory=memory) == expected


@pytest.mark.parametrize(("p95", "need", "most", "expected"), [
    (0.1, 1000, 16, 10), (0.0, 1000, 16, 16), (0.3, 40_000, 16, 2), (1.0, 1000, 16, 1), (0.01, 1, 48, 48),
])
def test_client_advice(p95: float, need: int, most: int, expected: int) -> None:
    assert sharing.advise_clients(p95, need=need, gpu_memory=80_000, most=most) == expected


# ---- what always holds -----------------------------------------------------------------------------------------------

COUNTS = st.sampled_from([None, "0", "1", "1", "1", "2", "1000m", "x", "-1"])
CONTAINERS = st.builds(
    container, COUNTS, st.sampled_from(["app", "vllm", "jupyter", "torchrun"]),
    is_privileged=st.sampled_from([False] * 9 + [True]),
)
MARKS = st.dictionaries(
    st.sampled_from([names.SHARING_MODE, names.SHARING, names.GPU_MEMORY_NEED, names.GPU_COMPUTE_NEED,
                     names.SHARING_PROFILE, names.OPTIMIZED, names.MPS_ENABLED]),
    st.sampled_from(["mig", "mps", "timeslicing", "enabled", "true", "8Gi", "30Gi", "20", "2g.20gb", "~"]),
)
PODS = st.builds(
    lambda containers, init, marks: pod(*containers, init_containers=tuple(init), annotations=marks),
    st.lists(CONTAINERS, min_size=1, max_size=3), st.lists(CONTAINERS, max_size=1), MARKS,
)
POLICIES = st.lists(st.builds(
    policy, st.sampled_from([*Strategy]), name=st.sampled_from("abc"), priority=st.integers(0, 2),
    created_at=st.sampled_from([1.0, 2.0]), mode=st.sampled_from([*SharingMode]),
    profile=st.sampled_from(["", "", "1g.10gb"]), rollout_percent=st.sampled_from([0, 50, 100]),
    work=st.sampled_from([frozenset(), {WorkClass.batch}, {WorkClass.inference}]),
), max_size=4)
NODES = st.lists(st.sampled_from([
    scenes.CUT, scenes.MPS, scenes.SLICED, mig_node("big", g3_40=2, g4_40=1), sharing_node(replicas=16),
    sharing_node("mps", 2), sharing_node(renames=False), PartNode(name="odd", offers={"nvidia.com/mig-1g.10gb": 1}),
]), max_size=5).map(tuple)
USES = st.sampled_from([ABSENT, Unseen("down"), used(), used(peak_memory=30_000), used(p95=0.9), used(coverage=0.1)])


@hypothesis.given(PODS, POLICIES, NODES, USES)
def test_never_more_than_one_gpu_never_less_memory_than_needed_and_always_alike(
    made: SharePod, policies: list[SharingPolicy], nodes: tuple[PartNode, ...], use: Input[OwnerUse]
) -> None:
    verdict = judge(made, around(*policies, nodes=nodes, use=use))
    assert verdict == judge(made, around(*reversed(policies), nodes=nodes[::-1], use=use)) or _tie(policies)
    assert verdict.because
    if isinstance(verdict, KeptWhole):
        return
    assert [(each.limits or {}).get(names.GPU) in ("1", "1000m") for each in made.containers].count(True) == 1
    assert not any(_holds(each) for each in made.init_containers)
    needed = sharing.needs.find(made.marks, use)
    accepted = parts.find_nodes(made, sharing.PartIndex(nodes), {})
    if needed.memory is not None and verdict.part.profile:
        [part] = [each for each in parts.list_profiles(accepted) if each.profile == verdict.part.profile]
        assert part.memory >= needed.memory
        assert part.compute >= (needed.compute or 0)
    elif needed.memory is not None:
        giving = [node for node in accepted if verdict.part.selector.items() <= node.labels.items()]
        assert any((parts.read_memory(node) or 0) >= needed.memory * (parts.count_replicas(node) or 1)
                   for node in giving)


BEHAVED = st.sampled_from([
    ABSENT, *(
        used(mean=mean, behaviour=Known(Behaviour(seconds=DAY, coverage=1.0, mean=mean, deviation=0.01, idle=idle)))
        for mean, idle in ((0.9, 0.0), (0.2, 0.0), (0.05, 0.9), (0.4, 0.0))
    ),
])


BY_CLASS = st.lists(st.builds(
    policy, st.sampled_from(["timeslicing", "mps", "exclusive"]), name=st.sampled_from("abc"),
    priority=st.integers(0, 2), work=st.sampled_from([frozenset(), {WorkClass.batch}, {WorkClass.training}]),
), min_size=1, max_size=3)


@hypothesis.given(st.sampled_from(["app", "app", "jupyter"]), BY_CLASS, BEHAVED)
def test_what_an_owner_did_and_cannot_be_seen_lets_no_other_policy_share_its_gpu(
    image: str, policies: list[SharingPolicy], use: Input[OwnerUse]
) -> None:
    made = needing("8Gi", container(image=image))
    in_sight, unseen = (judge(made, around(*policies, use=each)) for each in (use, Unseen("Prometheus is down")))
    assert isinstance(unseen, KeptWhole) or unseen.policy == in_sight.policy


@pytest.mark.parametrize(("use", "reason"), [
    (used(mean=0.9, behaviour=Known(Behaviour(seconds=DAY, coverage=1.0, mean=0.9, deviation=0.0, idle=0.0))),
     "NoPolicy"), (Unseen("Prometheus is down"), "UsageUnknown"), (ABSENT, ""),
], ids=["trains", "unseen", "nobody-measures"])
def test_a_policy_for_batch_does_not_take_whom_nobody_sees_train(use: Input[OwnerUse], reason: str) -> None:
    made = needing("8Gi", container(image="app"))
    for_batch = policy("timeslicing", work=frozenset({WorkClass.batch}))
    verdict = judge(made, around(for_batch, use=use))
    assert (str(verdict.reason) if isinstance(verdict, KeptWhole) else "") == reason


def _tie(policies: list[SharingPolicy]) -> bool:
    """Two objects of one name cannot be in a cluster."""
    return len({each.name for each in policies}) < len(policies)


def _holds(of: ShareContainer) -> bool:
    return (of.limits or {}).get(names.GPU, "0") != "0"
