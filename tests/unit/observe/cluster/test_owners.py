"""Resolving, as tables: from the owners that stand above a pod to the workload, or to the trouble with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from fallow import names
from fallow.model import cluster, kinds, selectors
from fallow.model.cluster import Trouble
from fallow.model.seen import ABSENT, Known, Unseen, sure
from fallow.observe.cluster import companions, objects, owners

GROUPS = {
    "Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps", "DaemonSet": "apps", "Job": "batch",
    "CronJob": "batch", "InferenceService": "serving.kserve.io", "LLMInferenceService": "serving.kserve.io",
    "Revision": "serving.knative.dev", "LeaderWorkerSet": "leaderworkerset.x-k8s.io", "RayCluster": "ray.io",
    "RayJob": "ray.io", "Trainer": "acme.io", "DisaggregatedSet": "disaggregatedset.x-k8s.io",
}


def ref(kind: str, name: str) -> cluster.Ref:
    return cluster.Ref(GROUPS.get(kind, ""), "v1", kind, "ml", name, f"{kind}-{name}")


def owner(kind: str, name: str, uid: str | None = None) -> cluster.Owner:
    return cluster.Owner(GROUPS.get(kind, ""), "v1", kind, name, uid or f"{kind}-{name}")


def thing(text: str, above: str | None = None, body: Mapping[str, Any] | None = None, **more: Any) -> objects.Seen:
    """`thing("ReplicaSet/a", "Deployment/a")`"""
    up = owner(*above.split("/")) if above else None
    return objects.Seen(ref=ref(*text.split("/")), owner=up, resource_version="7", body=body or {}, **more)


def pod(name: str, above: str | None = None, **more: Any) -> cluster.Pod:
    facts: dict[str, Any] = {
        "namespace": "ml", "name": name, "uid": f"Pod-{name}", "node": "n1", "phase": "Running", "terminating": False,
        "owner": owner(*above.split("/")) if above else None, "labels": {}, "annotations": {},
        "resources": {names.GPU: 1}, "claims": (), "claimed": 0, "created_at": 0.0, "started_at": 0.0, "ready": True,
        "ready_since": 0.0, "ip": "", "static": False, "node_selector": {}, "affinity": None,
        "unschedulable_since": None,
    }
    return cluster.Pod(**{**facts, **more})


def view(*found: cluster.Pod | objects.Seen, **more: Any) -> owners.View:
    stores: dict[owners.Key, dict[str, objects.Seen]] = {}
    for each in found:
        if isinstance(each, objects.Seen):
            stores.setdefault((each.ref.group, each.ref.kind), {})[each.ref.uid] = each
    facts: dict[str, Any] = {
        "pods": tuple(each for each in found if isinstance(each, cluster.Pod)), "stores": stores, "pointers": {},
        "lost": {}, "queued": (), "rows": {(row.group, row.kind): row for row in kinds.KINDS},
    }
    steering = ("hpas", "scaled_objects", "kueue", "budgets")
    indexed = {name: given if isinstance(given := more.pop(name, {}), Unseen) else Known(given) for name in steering}
    everything = {**facts, **indexed, **more}
    return owners.View(owned=owners.group_by_owner(everything["pods"]), **everything)


def resolve(seen: owners.View, look_past: frozenset[str] = frozenset()) -> dict[str, Trouble | None]:
    return {workload.ref.short: workload.trouble for workload in owners.resolve(seen, {"ml": look_past})}


def chain(*texts: str) -> list[objects.Seen]:
    """Objects from the lowest to the topmost, each owned by the next."""
    return [thing(text, above) for text, above in zip(texts, (*texts[1:], None), strict=True)]


@pytest.mark.parametrize(
    ("links", "workload", "trouble"),
    [
        pytest.param(["ReplicaSet/a", "Deployment/a"], "Deployment/a", None, id="deployment"),
        pytest.param(["StatefulSet/a"], "StatefulSet/a", None, id="bare-stateful-set"),
        pytest.param(["ReplicaSet/a"], "ReplicaSet/a", None, id="bare-replica-set"),
        pytest.param(["StatefulSet/a", "LeaderWorkerSet/a"], "LeaderWorkerSet/a", None, id="lws-leader"),
        pytest.param(["Job/a", "CronJob/a"], "Job/a", None, id="job-of-a-schedule"),
        pytest.param(
            ["ReplicaSet/a", "Deployment/a", "InferenceService/a"], "InferenceService/a", None, id="kserve-standard"
        ),
        pytest.param(
            ["ReplicaSet/a", "Deployment/a", "Trainer/a"], "Trainer/a", Trouble.ManagedByUnknownOwner,
            id="unknown-owner",
        ),
        pytest.param(["RayCluster/a", "RayJob/a"], "RayJob/a", None, id="ray-job"),
    ],
)
def test_the_workload_is_the_topmost_object(links: list[str], workload: str, trouble: Trouble | None) -> None:
    assert resolve(view(pod("p", links[0]), *chain(*links))) == {workload: trouble}


@pytest.mark.parametrize(
    ("one", "trouble"),
    [
        (pod("p"), {"Pod/p": Trouble.BarePod}),
        (pod("p", "DaemonSet/a"), {"DaemonSet/a": Trouble.NonScalable}),
        (pod("p", "Node/n1", static=True), {"Pod/p": Trouble.NonScalable}),
        (pod("p", "Node/n1"), {"Node/n1": Trouble.NonScalable}),
    ],
    ids=["bare", "daemon-set", "static", "owned-by-its-node"],
)
def test_pods_that_no_scaling_can_stop(one: cluster.Pod, trouble: dict[str, Trouble]) -> None:
    assert resolve(view(one)) == trouble


@pytest.mark.parametrize("other", ["uid", "name", "kind", "group"])
def test_an_owner_must_fit_by_group_kind_name_and_uid(other: str) -> None:
    named = {"uid": owner("StatefulSet", "a", "reborn"), "name": owner("StatefulSet", "b", "StatefulSet-a"),
             "kind": owner("ReplicaSet", "a", "StatefulSet-a"),
             "group": cluster.Owner("acme.io", "v1", "StatefulSet", "a", "StatefulSet-a")}[other]
    seen = view(pod("p", owner=named), thing("StatefulSet/a"))
    assert list(resolve(seen).values()) == [Trouble.OwnerLookupFailed], "not followed"
    assert len(owners.find_gaps(seen).missing) == 1, "but to be looked up"


def forged(name: str, kind: str, says: str, **more: Any) -> cluster.Pod:
    """A pod of another tenant that names the uid of ReplicaSet/a as its owner's."""
    return pod(name, owner=owner(kind, says, "ReplicaSet-a"), **{"namespace": "evil", **more})


@pytest.mark.parametrize("says", [("DaemonSet", "zzz"), ("DaemonSet", "a"), ("ReplicaSet", "zzz"), ("ReplicaSet", "a")])
@pytest.mark.parametrize("namespace", ["evil", "ml"])
def test_what_one_pod_says_of_its_owner_leads_no_other_astray(says: tuple[str, str], namespace: str) -> None:
    links = chain("ReplicaSet/a", "Deployment/a", "InferenceService/a")
    fake = forged("e", *says, namespace=namespace)
    named = cluster.Ref("apps", "v1", says[0], namespace, says[1], "ReplicaSet-a")
    lost = {named: owners.Lost(Trouble.OwnerMissing, "there is none")}
    seen = view(fake, pod("p", "ReplicaSet/a"), *links, lost=lost)
    assert not owners.find_gaps(seen).missing
    if (namespace, says) == ("ml", ("ReplicaSet", "a")):  # which is the truth
        assert only(seen).pods == (0, 1)
        return
    found = {workload.ref.short: workload for workload in owners.resolve(seen, {})}
    assert (found["InferenceService/a"].pods, found["InferenceService/a"].trouble) == ((1,), None)
    assert [one.trouble for one in found.values() if one.pods == (0,)] != [None]


def test_a_chain_is_looked_up_whoever_else_names_its_uids() -> None:
    seen = view(forged("e", "DaemonSet", "zzz"), pod("p", "ReplicaSet/a"), thing("ReplicaSet/a", "Deployment/a"))
    assert {each.short for each in owners.find_gaps(seen).missing} == {"Deployment/a"}


@pytest.mark.parametrize("is_paused", [False, True])
def test_nobody_passes_for_a_workload_by_its_uid(is_paused: bool) -> None:
    """Whatever is remembered of a workload is remembered by its uid."""
    liar = pod("e", owner=owner("DaemonSet", "zzz", "StatefulSet-a"), namespace="evil")
    top = thing("StatefulSet/a", annotations={names.PAUSED_AT: "2026-01-01T00:00:00Z"} if is_paused else {})
    found = owners.resolve(view(liar, top, *(() if is_paused else (pod("p", "StatefulSet/a"),))), {})
    assert {each.ref.short: (each.ref.uid, each.trouble) for each in found} == {
        "Pod/e": ("Pod-e", Trouble.OwnerMissing), "StatefulSet/a": ("StatefulSet-a", None),
    }


def test_a_cluster_wide_owner_stands_above_any_namespace() -> None:
    top = objects.Seen(ref=cluster.Ref("acme.io", "v1", "Trainer", "", "a", "Trainer-a"), owner=None)
    assert resolve(view(pod("p", "StatefulSet/a"), thing("StatefulSet/a", "Trainer/a"), top)) == {
        "Trainer/a": Trouble.ManagedByUnknownOwner
    }


def test_a_loop_of_owners_ends() -> None:
    seen = view(pod("p", "Trainer/a"), thing("Trainer/a", "Trainer/b"), thing("Trainer/b", "Trainer/a"))
    assert list(resolve(seen).values()) == [Trouble.OwnerLookupFailed]
    assert owners.find_gaps(seen).missing == set()


@pytest.mark.parametrize("status", ["Complete", "Failed"])
def test_a_ray_cluster_that_outlived_its_job_is_the_workload(status: str) -> None:
    done = thing("RayJob/a", body={"status": {"jobDeploymentStatus": status}})
    assert resolve(view(pod("p", "RayCluster/a"), thing("RayCluster/a", "RayJob/a"), done)) == {"RayCluster/a": None}


@pytest.mark.parametrize(
    ("listed", "workload"),
    [
        ("Trainer", {"Deployment/a": None}),
        ("Trainer.acme.io", {"Deployment/a": None}),
        ("Trainer.other.io", {"Trainer/a": Trouble.ManagedByUnknownOwner}),
    ],
)
def test_what_admins_look_past(listed: str, workload: dict[str, Trouble | None]) -> None:
    seen = view(pod("p", "ReplicaSet/a"), *chain("ReplicaSet/a", "Deployment/a", "Trainer/a"))
    assert resolve(seen, frozenset({listed})) == workload


def test_what_is_looked_past_need_not_be_readable() -> None:
    lost = {ref("Trainer", "a"): owners.Lost(Trouble.OwnerForbidden, "may not be read")}
    seen = view(
        pod("p", "ReplicaSet/a"), thing("ReplicaSet/a", "Deployment/a"), thing("Deployment/a", "Trainer/a"), lost=lost
    )
    assert resolve(seen, frozenset({"Trainer"})) == {"Deployment/a": None}
    (workload,) = owners.resolve(seen, {"ml": frozenset({"Trainer"})})
    assert [owner.kind for owner in workload.passed] == ["Trainer"]
    assert resolve(seen) == {"Trainer/a": Trouble.OwnerForbidden}


@pytest.mark.parametrize(
    ("links", "passed"),
    [
        (("ReplicaSet/a", "Deployment/a", "Trainer/a"), ["Trainer"]),
        (("Job/a", "CronJob/a"), []),
        (("ReplicaSet/a", "Deployment/a"), []),
    ],
    ids=["listed", "schedule", "nobody"],
)
def test_what_was_looked_past_is_told_but_not_a_schedule(links: tuple[str, ...], passed: list[str]) -> None:
    (workload,) = owners.resolve(view(pod("p", links[0]), *chain(*links)), {"ml": frozenset({"Trainer", "CronJob"})})
    assert [owner.kind for owner in workload.passed] == passed


def test_looking_past_holds_in_its_namespace_only() -> None:
    seen = view(pod("p", "ReplicaSet/a"), *chain("ReplicaSet/a", "Deployment/a", "Trainer/a"))
    (workload,) = owners.resolve(seen, {"hr": frozenset({"Trainer"})})
    assert workload.trouble is Trouble.ManagedByUnknownOwner


# ---- labels ----

LLM = {names.PART_OF_LABEL: names.LLM_PART_OF, names.NAME_LABEL: "chat"}
ISVC = {names.KSERVE_ISVC_LABEL: "bert"}
LWS = {names.LWS_NAME_LABEL: "chat-lws"}
LOST = {ref("Revision", "r"): owners.Lost(Trouble.OwnerForbidden, "may not be read")}


@pytest.mark.parametrize(
    ("labels", "workload"),
    [
        (LLM | LWS, {"LLMInferenceService/chat": None}),
        (ISVC, {"InferenceService/bert": None}),
        (LWS, {"LeaderWorkerSet/chat-lws": None}),
        ({names.KSERVE_ISVC_LABEL: "gone"}, {"Revision/r": Trouble.OwnerForbidden}),
        ({names.NAME_LABEL: "chat"}, {"Revision/r": Trouble.OwnerForbidden}),
    ],
    ids=["llm-first", "kserve", "lws", "no-such-object", "not-part-of-an-llm"],
)
def test_labels_name_the_workload_of_a_chain_that_stops_early(
    labels: dict[str, str], workload: dict[str, Trouble | None]
) -> None:
    tops = [thing("LLMInferenceService/chat"), thing("InferenceService/bert"), thing("LeaderWorkerSet/chat-lws")]
    lost = {
        **LOST,
        cluster.Ref("serving.kserve.io", "", "InferenceService", "ml", "gone", ""): owners.Lost(
            Trouble.OwnerMissing, "gone"
        ),
    }
    assert resolve(view(pod("p", "Revision/r", labels=labels), *tops, lost=lost)) == workload


def test_labels_do_not_overrule_a_chain_that_reaches_the_top() -> None:
    seen = view(
        pod("p", "ReplicaSet/a", labels=ISVC), *chain("ReplicaSet/a", "Deployment/a"), thing("InferenceService/bert")
    )
    assert resolve(seen) == {"Deployment/a": None}


def test_an_object_named_by_a_label_is_looked_up_by_name_once_the_chain_is_lost() -> None:
    one = pod("p", "Revision/r", labels=ISVC)
    assert {each.name for each in owners.find_gaps(view(one)).missing} == {"r"}, "first the owner itself"
    gaps = owners.find_gaps(view(one, lost=LOST))
    assert {(each.kind, each.name, each.uid) for each in gaps.missing} == {("InferenceService", "bert", "")}
    assert gaps.named == {("ml", "serving.kserve.io", "InferenceService", "bert")}


def test_a_worker_whose_leader_is_gone_belongs_to_its_leader_worker_set_by_label() -> None:
    lost = {ref("Pod", "lead"): owners.Lost(Trouble.OwnerMissing, "gone")}
    worker = pod("p", "StatefulSet/w", labels=LWS)
    assert resolve(view(worker, thing("StatefulSet/w", "Pod/lead"), thing("LeaderWorkerSet/chat-lws"), lost=lost)) == {
        "LeaderWorkerSet/chat-lws": None
    }


# ---- what a workload is told about itself ----


def only(seen: owners.View) -> cluster.Workload:
    (workload,) = owners.resolve(seen, {})
    return workload


def test_all_pods_of_a_workload_come_together_whatever_way_they_go() -> None:
    lws = [
        thing("LeaderWorkerSet/a"), thing("StatefulSet/lead", "LeaderWorkerSet/a"),
        thing("StatefulSet/work", "Pod/lead"),
    ]
    workload = only(
        view(pod("lead", "StatefulSet/lead"), pod("w1", "StatefulSet/work"), pod("w2", "StatefulSet/work"), *lws)
    )
    assert workload.pods == (0, 1, 2)
    assert [link.kind for link in workload.chain] == ["StatefulSet", "Pod", "StatefulSet", "LeaderWorkerSet"]


def test_volumes_of_every_set_below_are_shown() -> None:
    keeps = {"spec": {"replicas": 1}}
    loses = {"spec": {"volumeClaimTemplates": [{}], "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}}
    sets = [thing("StatefulSet/a", "DisaggregatedSet/d", keeps), thing("StatefulSet/b", "DisaggregatedSet/d", loses)]
    workload = only(view(pod("p", "StatefulSet/a"), pod("q", "StatefulSet/b"), *sets, thing("DisaggregatedSet/d")))
    links = [link.name for link in workload.chain if link.kind == "StatefulSet"]
    assert dict(zip(links, workload.chain_bodies, strict=True)) == {"a": keeps, "b": loses}


def test_a_job_of_a_schedule_names_the_schedule() -> None:
    workload = only(view(pod("p", "Job/a"), *chain("Job/a", "CronJob/nightly")))
    assert [(link.kind, link.name) for link in workload.chain] == [("Job", "a"), ("CronJob", "nightly")]


@pytest.mark.accepts("idle", 31, 60)
@pytest.mark.parametrize(
    "above", [["InferenceService/a"], ["Revision/a", "Configuration/a", "Service/a", "InferenceService/a"]],
    ids=["standard", "knative"],
)
def test_marks_of_an_inference_service_go_on_the_deployment_that_holds_the_gpus(above: list[str]) -> None:
    child = thing("Deployment/a", above[0], annotations={"m": "1"})
    workload = only(view(pod("p", "ReplicaSet/a"), thing("ReplicaSet/a", "Deployment/a"), child, *chain(*above)))
    assert (workload.ref.kind, workload.marks_ref, workload.marks, workload.marks_version) == (
        "InferenceService", ref("Deployment", "a"), {"m": "1"}, "7"
    )


def test_while_one_revision_follows_another_marks_stay_where_they_are() -> None:
    told = {names.PENDING_SINCE: "2026-11-15T10:00:00Z"}
    sets = [thing("ReplicaSet/a", "Deployment/a"), thing("ReplicaSet/b", "Deployment/b")]
    children = [
        thing("Deployment/a", "InferenceService/a"), thing("Deployment/b", "InferenceService/a", annotations=told)
    ]
    seen = view(pod("p", "ReplicaSet/a"), pod("q", "ReplicaSet/b"), *sets, *children, thing("InferenceService/a"))
    assert only(seen).marks_ref == ref("Deployment", "b")


def test_marks_of_all_others_go_on_the_workload() -> None:
    workload = only(view(pod("p", "ReplicaSet/a"), *chain("ReplicaSet/a", "Deployment/a")))
    assert (workload.marks_ref, workload.marks_version) == (workload.ref, None)


def test_without_a_deployment_in_sight_an_inference_service_has_no_place_for_marks() -> None:
    workload = only(view(pod("p", "StatefulSet/a"), *chain("StatefulSet/a", "InferenceService/a")))
    assert (workload.marks_ref == workload.ref, kinds.is_markable(workload)) == (True, False)


def test_marks_that_were_copied_down_can_be_told_from_a_persons_own() -> None:
    said = {"gpuautoscaler.io/ack-until": "2026-11-20T00:00:00Z"}
    links = [
        thing("ReplicaSet/llm-1", "Deployment/llm", annotations=said),
        thing("Deployment/llm", annotations={"team": "ml"}),
    ]
    assert only(view(pod("llm-1-a", "ReplicaSet/llm-1"), *links)).chain_annotations == (said,)


def companion(kind: str, name: str, body: Mapping[str, Any], **more: Any) -> objects.Seen:
    return objects.Seen(ref=ref(kind, name), owner=None, resource_version="1", labels=more.get("labels", {}), body=body)


def test_autoscalers_are_found_for_any_link_of_the_chain() -> None:
    on_child = {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}}
    elsewhere = {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "b"}}}
    hpas = companions.by_target(
        [companion("HorizontalPodAutoscaler", "h", on_child), companion("HorizontalPodAutoscaler", "i", elsewhere)]
    )
    scalers = companions.by_target([companion("ScaledObject", "s", {"spec": {"scaleTargetRef": {"name": "a"}}})])
    seen = view(
        pod("p", "ReplicaSet/a"), *chain("ReplicaSet/a", "Deployment/a", "InferenceService/a"), hpas=hpas,
        scaled_objects=scalers,
    )
    workload = only(seen)
    assert [each.ref.name for each in sure(workload.hpas)] == ["h"]
    assert [each.ref.name for each in sure(workload.scaled_objects)] == ["s"], (
        "KEDA's default target is a Deployment of apps/v1"
    )


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchLabels": {"app": "b"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({}, True),
        (None, False),
    ],
    ids=["fits", "other", "expression", "empty-selects-all", "absent-selects-none"],
)
def test_disruption_budgets_are_found_by_the_pods_labels(selector: Any, fits: bool) -> None:
    body = {"spec": {"selector": selector} if selector is not None else {}}
    budgets = companions.by_namespace([companion("PodDisruptionBudget", "b", body)])
    workload = only(view(pod("p", "StatefulSet/a", labels={"app": "a"}), thing("StatefulSet/a"), budgets=budgets))
    assert bool(sure(workload.budgets)) is fits


def test_kueue_workloads_are_found_by_the_jobs_uid() -> None:
    kueue = companions.by_job(
        [companion("Workload", "w", {}, labels={names.KUEUE_JOB_UID: "Job-a"}), companion("Workload", "v", {})]
    )
    workload = only(view(pod("p", "Job/a"), thing("Job/a"), kueue=kueue))
    assert [each.ref.name for each in sure(workload.kueue)] == ["w"]


def test_a_kueue_workload_of_another_namespace_is_nobodys() -> None:
    foreign = objects.Seen(
        ref=cluster.Ref("kueue.x-k8s.io", "v1", "Workload", "evil", "w", "w"), owner=None,
        labels={names.KUEUE_JOB_UID: "Job-a"}, annotations={names.PAUSED_AT: "2026-01-01T00:00:00Z"},
    )
    queued = (("evil", owner("Job", "a")),)
    workload = only(view(pod("p", "Job/a"), thing("Job/a"), kueue=companions.by_job([foreign]), queued=queued))
    assert (workload.kueue, workload.pods) == (ABSENT, (0,))


@pytest.mark.parametrize("which", ["hpas", "scaled_objects", "kueue", "budgets"])
def test_what_steers_and_cannot_be_seen_is_unseen_on_every_workload(which: str) -> None:
    why = Unseen("403")
    workload = only(view(pod("p", "ReplicaSet/a"), *chain("ReplicaSet/a", "Deployment/a"), **{which: why}))
    others = {"hpas", "scaled_objects", "kueue", "budgets"} - {which}
    assert getattr(workload, which) is why  # shared: 20,000 workloads need one
    assert all(getattr(workload, other) is ABSENT for other in others)


# ---- a broken chain taints ----

SELECTING = {"spec": {"selector": {"matchLabels": {"app": "a"}}}}


def stray(**labels: str) -> cluster.Pod:
    return pod("stray", "ReplicaSet/gone", labels=labels)


def lose(trouble: Trouble) -> dict[cluster.Ref, owners.Lost]:
    return {ref("ReplicaSet", "gone"): owners.Lost(trouble, "it could not be read")}


def tainted(seen: owners.View) -> set[str]:
    found = owners.resolve(seen, {})
    return {workload.ref.short for workload in found if isinstance(workload.strays, Unseen)}


BROKEN = [Trouble.OwnerLookupFailed, Trouble.OwnerForbidden, Trouble.OwnerMissing]


@pytest.mark.parametrize("trouble", BROKEN)
def test_a_pod_whose_chain_broke_taints_what_selects_it(trouble: Trouble) -> None:
    deployment = thing("Deployment/a", body=SELECTING)
    found = [pod("p", "ReplicaSet/a"), thing("ReplicaSet/a", "Deployment/a"), deployment]
    assert tainted(view(*found, stray(app="a"), lost=lose(trouble))) == {"Deployment/a"}
    assert tainted(view(*found, stray(app="b"), lost=lose(trouble))) == set()
    assert tainted(view(*found)) == set()


@pytest.mark.parametrize("trouble", BROKEN)
def test_a_pod_whose_chain_broke_taints_what_may_own_other_kinds(trouble: Trouble) -> None:
    above = [pod("p", "RayCluster/a"), *chain("RayCluster/a", "RayJob/a"), pod("q", "StatefulSet/b")]
    seen = view(*above, thing("StatefulSet/b", body=SELECTING), stray(), lost=lose(trouble))
    assert tainted(seen) == {"RayJob/a"}
    (why,) = {each.strays.why for each in owners.resolve(seen, {}) if isinstance(each.strays, Unseen)}
    assert why == "pod stray may be part of it, and whose it is could not be looked up: it could not be read"


@pytest.mark.parametrize("more", [{"terminating": True}, {"node": ""}, {"namespace": "other"}], ids=repr)
def test_a_pod_that_holds_nothing_or_lives_elsewhere_taints_nobody(more: dict[str, Any]) -> None:
    above = [pod("p", "RayCluster/a"), *chain("RayCluster/a", "RayJob/a")]
    held = lose(Trouble.OwnerLookupFailed)
    lost = {**held, **{cluster.Ref("apps", "v1", "ReplicaSet", "other", "gone", "ReplicaSet-gone"): one
                       for one in held.values()}}
    assert tainted(view(*above, pod("stray", "ReplicaSet/gone", **more), lost=lost)) == set()


def test_a_chain_that_ends_at_what_nothing_can_scale_taints_nobody() -> None:
    above = [pod("p", "RayCluster/a"), *chain("RayCluster/a", "RayJob/a")]
    others = [pod("d", "DaemonSet/a"), pod("bare"), pod("t", "Trainer/a"), thing("Trainer/a")]
    assert tainted(view(*above, *others)) == set()


def test_what_the_labels_name_is_no_stray() -> None:
    labels = {names.LWS_NAME_LABEL: "l"}
    above = [pod("p", "RayCluster/a"), *chain("RayCluster/a", "RayJob/a"), thing("LeaderWorkerSet/l")]
    assert tainted(view(*above, stray(**labels), lost=lose(Trouble.OwnerLookupFailed))) == set()


def test_strays_that_look_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, looks = 500, []
    matches = selectors.Selector.matches
    monkeypatch.setattr(selectors.Selector, "matches", lambda self, labels: looks.append(1) or matches(self, labels))
    sets = [one for n in range(count) for one in (pod(f"p{n}", f"StatefulSet/s{n}"), thing(f"StatefulSet/s{n}",
            body=SELECTING))]
    strays = [pod(f"q{n}", f"ReplicaSet/r{n}", labels={"app": "b"}) for n in range(count)]
    lost = {ref("ReplicaSet", f"r{n}"): owners.Lost(Trouble.OwnerMissing, "gone") for n in range(count)}
    assert tainted(view(*sets, *strays, lost=lost)) == set()
    assert len(looks) == count


def test_where_strays_differ_too_much_to_look_all_that_selects_is_in_doubt() -> None:
    found = [pod("p", "StatefulSet/s"), thing("StatefulSet/s", body=SELECTING)]
    strays = [pod(f"q{n}", f"ReplicaSet/r{n}", labels={"app": f"b{n}"}) for n in range(300)]
    lost = {ref("ReplicaSet", f"r{n}"): owners.Lost(Trouble.OwnerMissing, "gone") for n in range(300)}
    assert tainted(view(*found, *strays, lost=lost)) == {"StatefulSet/s"}


# ---- invariants ----

TEXTS = [
    "ReplicaSet/a", "ReplicaSet/b", "Deployment/a", "StatefulSet/a", "Job/a", "CronJob/a", "Trainer/a",
    "InferenceService/a", "Pod/0",
]


@hypothesis.given(
    st.lists(st.sampled_from([None, *TEXTS, "DaemonSet/d"]), max_size=6),
    st.dictionaries(st.sampled_from(TEXTS[:-1]), st.sampled_from([None, *TEXTS])), st.sets(st.sampled_from(TEXTS)),
)
def test_every_pod_has_one_workload_and_a_calm_one_was_seen_to_its_top(
    above: list[str | None], links: dict[str, str | None], lost: set[str]
) -> None:
    found = [pod(str(number), text) for number, text in enumerate(above)]
    refusal = {ref(*text.split("/")): owners.Lost(Trouble.OwnerMissing, "gone") for text in lost}
    seen = view(*found, *(thing(text, up) for text, up in links.items()), lost=refusal)
    workloads = owners.resolve(seen, {})
    assert sorted(index for workload in workloads for index in workload.pods) == list(range(len(found)))
    assert len({workload.ref.uid for workload in workloads}) == len(workloads)
    for workload in workloads:
        if workload.trouble is None:
            up = links[workload.ref.short]
            assert workload.ref.short in links
            assert up is None or up == "CronJob/a"
    gaps = owners.find_gaps(seen)
    assert all(each.short not in links and each not in refusal for each in gaps.missing)
