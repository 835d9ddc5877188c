"""Which node could be emptied, and each next step of one that is: whatever is not certain stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import builders
from tests.unit.decide.packing.test_live import machine, tenant

from fallow import names
from fallow.decide import packing
from fallow.decide.packing import consolidate
from fallow.model import cluster, emptying, units
from fallow.model.capacity import Machine
from fallow.model.emptying import EmptiedPod, EmptyingRecord, Leaving, NodeNow
from fallow.model.policies import idle
from fallow.model.seen import ABSENT, Register

NOW = 1_800_000_000.0


def plan(machines: list[Machine], *pods: cluster.Pod, **more: Any) -> packing.ConsolidationPlan:
    return packing.plan_consolidation(cluster.Capacity(tuple(machines), pods, "c", 0), NOW, **more)


def change(pod: cluster.Pod, **more: Any) -> cluster.Pod:
    return msgspec.structs.replace(pod, **more)


CLUSTER = [machine("low", 4), machine("used", 4), machine("free", 4)]
USED = tuple(tenant(f"u{number}", "used") for number in range(2))


def test_the_node_with_least_in_use_is_emptied_onto_nodes_that_are_in_use() -> None:
    found = plan(CLUSTER, tenant("p", "low"), *USED)
    assert found.chosen == consolidate.EmptyNode(
        "low", "1 of its 4 GPUs are in use, and its 1 pods fit elsewhere", (("ml/p", "used"),)
    )
    assert {each.node: each.reason for each in found.staying} == {"used": "Busy", "free": "Empty"}


def test_an_empty_node_is_no_home_that_would_only_move_the_hole() -> None:
    found = plan([machine("low", 4), machine("free", 4)], tenant("p", "low"))
    assert found.chosen is None
    assert {each.node: each.reason for each in found.staying} == {"low": "NoRoomElsewhere", "free": "Empty"}


@pytest.mark.parametrize(("odd", "why"), [
    (tenant("p", "low", fixed="has no controller that would make it again"), "no controller"),
    (tenant("p", "low", fixed="does work that an eviction would lose"), "would lose"),
    (tenant("p", "low", fixed="asked not to be disrupted"), "asked not to be disrupted"),
    (tenant("p", "low", unclear="minds which pods are beside it"), "minds which pods"),
    (tenant("p", "low", beyond="asks for rdma/hca, too"), "asks for rdma/hca"),
    (tenant("p", "low", created_at=NOW - 599), "has hardly begun"),
    (change(tenant("p", "low"), annotations={names.ACK_UNTIL: units.rfc3339(NOW + 60)}), "acknowledgement"),
    (change(tenant("p", "low"), annotations={names.ACK_UNTIL_ALIAS: units.rfc3339(NOW + 60)}), "acknowledgement"),
])
def test_one_who_must_stay_keeps_the_node(odd: cluster.Pod, why: str) -> None:
    found = plan(CLUSTER, odd, *USED)
    assert found.chosen is None
    (stays,) = [each for each in found.staying if each.node == "low"]
    assert (stays.reason, why in stays.because, "ml/p must stay" in stays.because) == ("Unmovable", True, True)


@pytest.mark.parametrize(("taints", "tolerates", "goes"), [
    ((), (), True), (("NoSchedule",), (), False), (("NoSchedule",), ("NoSchedule",), True),
    (("NoExecute", "NoSchedule"), ("NoSchedule",), False),
])
def test_a_node_whose_taint_a_pod_does_not_tolerate_is_no_home(
    taints: tuple[str, ...], tolerates: tuple[str, ...], goes: bool
) -> None:
    tainted = [msgspec.structs.replace(each, taints=taints) if each.name == "used" else each for each in CLUSTER]
    found = plan(tainted, tenant("p", "low", tolerates=tolerates), *USED)
    assert (found.chosen is not None) == goes
    assert goes or {each.node: each.reason for each in found.staying}["low"] == "NoRoomElsewhere"


def test_an_acknowledgement_that_is_over_keeps_nobody_and_what_else_keeps_it_is_heeded() -> None:
    pod = change(tenant("p", "low"), annotations={names.ACK_UNTIL: units.rfc3339(NOW - 60)})
    assert plan(CLUSTER, pod, *USED).chosen is not None
    found = plan(CLUSTER, pod, *USED, why_kept=lambda each: "ada keeps it" if each.uid == pod.uid else "")
    assert found.chosen is None
    assert "ml/p must stay: ada keeps it" in {each.because for each in found.staying}


TRAINS = {names.WORKLOAD_TYPE: "Training"}


@pytest.mark.parametrize(("of_pod", "of_workload", "of_namespace", "stays"), [
    ({}, {}, {}, False), ({}, TRAINS, {}, True), ({}, {}, TRAINS, True), (TRAINS, {}, {}, True),
    ({names.EVICTABLE: "true"}, TRAINS, TRAINS, False), ({names.WORKLOAD_TYPE: "serving"}, TRAINS, TRAINS, False),
    ({}, {names.WORKLOAD_TYPE: "dev"}, TRAINS, False),
], ids=["nobody", "owner", "namespace", "pod", "evictable", "pod-first", "owner-first"])
def test_who_trains_by_what_its_people_say_stays(
    of_pod: dict[str, str], of_workload: dict[str, str], of_namespace: dict[str, str], stays: bool
) -> None:
    pod, workload = change(tenant("p", "low"), labels=of_pod), owned(of_workload)
    namespaces = Register({"ml": cluster.Namespace("ml", of_namespace, {})})
    why_kept = packing.find_kept([pod], [workload], namespaces, idle.Mandate(), NOW)
    assert why_kept(pod) == ("does work that an eviction would lose" if stays else "")
    assert (plan(CLUSTER, pod, *USED, why_kept=why_kept).chosen is None) == stays


def owned(annotations: dict[str, str]) -> cluster.Workload:
    """The Deployment of the first pod."""
    ref = cluster.Ref("apps", "v1", "Deployment", "ml", "w", "u")
    return cluster.Workload(
        ref=ref, resource_version="1", labels={}, annotations=annotations, body={}, pods=(0,), chain=(),
        chain_bodies=(), trouble=None, trouble_because="", marks_ref=ref, marks=annotations, hpas=ABSENT,
        scaled_objects=ABSENT, kueue=ABSENT, budgets=ABSENT,
    )


HELD = {names.ACK_UNTIL: units.rfc3339(NOW + 60), names.ACK_BY: "ada", names.ACK_AT: units.rfc3339(NOW - 60)}


@pytest.mark.parametrize(("of_workload", "of_namespace", "scope", "why"), [
    ({}, {}, {}, ""),
    (HELD, {}, {}, "Deployment/w is kept by ada"),
    ({}, HELD, {}, "namespace ml is kept by an acknowledgement"),
    ({}, None, {}, "namespace ml is not seen"),
    ({}, {}, {"protected_namespaces": builders.pattern("ml|sys")}, "namespace ml is protected"),
    ({}, {}, {"exclude_namespaces": builders.pattern("m.*")}, "namespace ml is excluded"),
    ({}, {}, {"namespace": builders.pattern("other")}, "namespace ml is not one of those that --namespace names"),
])
def test_people_and_flags_keep_pods_where_they_are(
    of_workload: dict[str, str], of_namespace: dict[str, str] | None, scope: dict[str, Any], why: str
) -> None:
    pod, workload = tenant("p", "low"), owned(of_workload)
    known = {} if of_namespace is None else {"ml": cluster.Namespace("ml", {}, of_namespace)}
    mandate = idle.Mandate(scope=idle.Scope(**scope))
    assert packing.find_kept([pod], [workload], Register(known), mandate, NOW)(pod) == why


@pytest.mark.parametrize(("trouble", "why"), [
    (None, ""), (cluster.Trouble.ManagedByUnknownOwner, ""),
    (cluster.Trouble.OwnerLookupFailed, "its owner is not seen: x"),
    (cluster.Trouble.OwnerMissing, "its owner is not seen: x"),
    (cluster.Trouble.OwnerForbidden, "its owner is not seen: x"),
])
def test_an_owner_that_is_not_seen_may_be_kept_and_so_is_its_pod(trouble: cluster.Trouble | None, why: str) -> None:
    pod, known = tenant("p", "low"), Register({"ml": cluster.Namespace("ml", {}, {})})
    workload = msgspec.structs.replace(owned({}), trouble=trouble, trouble_because="x")
    assert packing.find_kept([pod], [workload], known, idle.Mandate(), NOW)(pod) == why


def test_a_gpu_pod_that_nobody_is_known_to_own_stays_and_one_without_gpus_is_not_asked_for() -> None:
    pod, known = tenant("p", "low"), Register({"ml": cluster.Namespace("ml", {}, {})})
    find = packing.find_kept([], [], known, idle.Mandate(), NOW)
    assert find(pod) == "its owner is not known"
    assert find(change(pod, resources={})) == ""
    assert find(change(pod, resources={}, claims=("gpu",))) == "its owner is not known"


def test_what_belongs_to_a_node_goes_with_it() -> None:
    owner = cluster.Owner(group="apps", version="v1", kind="DaemonSet", name="agents", uid="o")
    daemon = change(tenant("d", "low", 0, fixed="belongs to its node"), owner=owner)
    found = plan(CLUSTER, tenant("p", "low"), daemon, *USED)
    assert found.chosen is not None
    assert found.chosen.moves == (("ml/p", "used"),)


def test_pods_without_gpus_must_fit_elsewhere_too() -> None:
    assert plan(CLUSTER, tenant("p", "low"), tenant("large", "low", 0, cpu=31_000 - 4000), *USED).chosen is None


@pytest.mark.parametrize(("ended", "hours"), [
    ("Refused", 24), ("ReplacementLate", 24), ("Unmovable", 24), ("ChangedByOther", 24), ("NotTaken", 1),
    ("SwitchedOff", 1), ("", 1),
])
def test_a_node_that_was_emptied_or_not_in_the_end_rests(ended: str, hours: int) -> None:
    """Whoever refuses to go is refused last, once all others were moved for nothing."""
    ends = NOW + hours * 3600
    assert [packing.rests_after_emptying(ended, NOW, at) for at in (NOW, ends - 1, ends)] == [True, True, False]
    assert not packing.rests_after_emptying(ended, NOW, NOW - 61), "a clock that was set back keeps no node for years"
    assert not packing.rests_after_emptying(ended, None, NOW)
    found = plan(CLUSTER, tenant("p", "low"), *USED, resting={"low"})
    assert (found.chosen, {each.node: str(each.reason) for each in found.staying}["low"]) == (None, "Rests")


def test_a_tenth_of_the_gpu_nodes_in_an_hour_and_one_at_least() -> None:
    assert packing.may_begin(5, [], NOW)
    assert not packing.may_begin(5, [NOW - 3599], NOW)
    assert packing.may_begin(5, [NOW - 3600], NOW)
    assert packing.may_begin(20, [NOW - 60], NOW)


# ---- the steps -------------------------------------------------------------------------------------------------------

RECORD = EmptyingRecord(v=1, since=NOW - 100, cordoned_by_us=True, because="x")
POD = EmptiedPod("u1", "ml", "p", "o", ready=1)
LEAVING = Leaving("u1", "ml", "p", "o", 1, NOW - 10)


def node(
    *pods: EmptiedPod, record: EmptyingRecord | None = RECORD, cordoned: bool = True, ready: int = 0,
    broken: bool = False,
) -> NodeNow:
    return NodeNow("n", "uid", "7", cordoned, record, broken, pods, ready)


def step(there: NodeNow, now: float = NOW, **more: Any) -> emptying.EmptyingStep | None:
    return packing.advance_emptying(there, now, **more)


def with_(**more: Any) -> EmptyingRecord:
    return msgspec.structs.replace(RECORD, **more)


def test_one_pod_after_the_other_and_each_is_waited_for() -> None:
    other = EmptiedPod("u2", "ml", "q", "o", ready=1)
    first = step(node(other, POD))
    assert first == emptying.Evict(with_(leaving=Leaving("u1", "ml", "p", "o", 1, NOW)))
    leaving = with_(leaving=LEAVING)
    assert step(node(POD, other, record=leaving)) == emptying.Evict(leaving)  # it may not have been sent
    going = msgspec.structs.replace(POD, is_going=True)
    assert isinstance(step(node(going, other, record=leaving, ready=1)), emptying.Wait)
    assert isinstance(step(node(other, record=leaving, ready=0)), emptying.Wait)
    assert step(node(other, record=leaving, ready=1)) == emptying.WriteRecord(RECORD)
    daemon = EmptiedPod("u3", "ml", "d", "x", stays=True, fixed="belongs to its node")
    assert step(node(daemon)) == emptying.WriteRecord(with_(empty_since=NOW))


@pytest.mark.accepts("packing", 20)
def test_a_refusal_that_lasts_ends_it_and_the_node_is_given_back() -> None:
    refused = with_(leaving=LEAVING, refusal="Cannot evict pod as it would violate the pod's disruption budget.")
    assert step(node(POD, record=refused), NOW + 589) == emptying.Evict(refused)
    stop = step(node(POD, record=refused), NOW + 590)
    assert isinstance(stop, emptying.Stop)
    assert (stop.reason, stop.uncordons, "disruption budget" in stop.because) == ("Refused", True, True)
    late = step(node(record=refused), NOW + 590)
    assert isinstance(late, emptying.Stop)
    assert late.reason == "ReplacementLate"


@pytest.mark.parametrize(("there", "more", "reason", "uncordons"), [
    (node(POD), {"is_on": False}, "SwitchedOff", True),
    (node(POD, record=with_(cordoned_by_us=False)), {"is_on": False}, "SwitchedOff", False),
    (node(POD, cordoned=False), {}, "ChangedByOther", False),
    (node(POD, record=None, broken=True), {}, "RecordBroken", True),
    (node(msgspec.structs.replace(POD, fixed="asked not to be disrupted")), {}, "Unmovable", True),
    (node(record=with_(empty_since=NOW - 1800)), {}, "NotTaken", True),
    (node(record=with_(empty_since=NOW + 86_400)), {}, "NotTaken", True),
    (node(POD, record=with_(leaving=Leaving("u1", "ml", "p", "o", 1, NOW + 86_400))), {}, "Refused", True),
    (node(record=with_(leaving=Leaving("u1", "ml", "p", "o", 1, NOW + 86_400))), {}, "ReplacementLate", True),
    (node(msgspec.structs.replace(POD, fixed="it is kept"), record=with_(leaving=LEAVING)), {}, "Unmovable", True),
    (node(msgspec.structs.replace(POD, stays=True), record=with_(leaving=LEAVING)), {}, "Unmovable", True),
])
def test_what_gives_a_node_back(there: NodeNow, more: dict[str, Any], reason: str, uncordons: bool) -> None:
    stop = step(there, **more)
    assert isinstance(stop, emptying.Stop)
    assert (stop.reason, stop.uncordons) == (reason, uncordons)


def test_clocks_that_differ_by_seconds_end_nothing() -> None:
    ahead = with_(leaving=Leaving("u1", "ml", "p", "o", 1, NOW + 5))
    assert step(node(POD, record=ahead)) == emptying.Evict(ahead)
    assert isinstance(step(node(record=with_(empty_since=NOW + 5))), emptying.Wait)


def test_a_node_without_a_record_is_nobodys_business() -> None:
    assert step(node(POD, record=None)) is None
    assert emptying.read('{"v": 2}') is None
    assert emptying.read("[") is None
    assert emptying.read(emptying.write(with_(leaving=LEAVING))) == with_(leaving=LEAVING)
