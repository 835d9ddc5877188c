"""The mirror against a server on the wire: what it keeps, what it asks for, and what it says it could not see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.unit.observe.cluster import pretend
from tests.unit.observe.usage.gpu_pods import BELIEF

from fallow import names
from fallow.clients import errors
from fallow.model import cluster
from fallow.model.cluster import Trouble
from fallow.model.seen import ABSENT, Unseen, sure
from fallow.observe.cluster import mirror
from fallow.observe.usage import trust

NOW = 1_794_735_600.0


@pytest.fixture
async def server() -> AsyncIterator[pretend.Server]:
    async with pretend.Server(*pretend.KSERVE, *pretend.LWS, *pretend.KUEUE, *pretend.POLICIES) as running:
        running.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", labels={"team": "a"}))
        running.put(
            "nodes",
            pretend.made(
                "n1", namespace=None, kind="Node", status={"conditions": [{"type": "Ready", "status": "True"}]}
            ),
        )
        yield running


async def look(server: pretend.Server, **options: Any) -> mirror.Mirror:
    """One-shot."""
    async with server.api() as api, mirror.Mirror(api, **options) as seen:
        await seen.list_all(NOW)
        return seen


def names_of(workloads: tuple[cluster.Workload, ...]) -> list[str]:
    return sorted(workload.ref.short for workload in workloads)


def troubles(seen: mirror.Mirror) -> dict[str, Trouble | None]:
    return {workload.ref.short: workload.trouble for workload in seen.workloads({})}


# ---- one-shot ----


@pytest.mark.parametrize(
    ("offers", "gpus"),
    [
        ({"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti"}, 8), ({"cpu": "4500m"}, 0), (None, None),
        ({"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu": "0"}, 7), ({"nvidia.com/gpu": "many"}, None),
        ({"example.com/gpu": "4", "other.com/gpu": "4"}, 4),
    ],
    ids=str,
)
async def test_a_node_offers_what_it_says_it_can_give(
    server: pretend.Server, offers: dict[str, str] | None, gpus: int | None
) -> None:
    said = {} if offers is None else {"allocatable": offers}
    server.put("nodes", pretend.made("n2", namespace=None, kind="Node", status=said))
    seen = await look(server, gpu_resources=["example.com/gpu"])
    assert seen.nodes.known["n2"].gpus == gpus


async def test_only_gpu_pods_and_what_owns_them_are_kept(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm", pods=3))
    web = pretend.deployment("web")
    server.put("deployments", web)
    server.put("pods", pretend.pod("web-1", pretend.replica_set("web-rs", web), gpus=0))
    seen = await look(server)
    assert sorted(pod.name for pod in seen.pods) == ["llm-0", "llm-1", "llm-2"]
    (workload,) = seen.workloads({})
    assert (workload.ref.short, workload.ref.api_version, workload.pods) == ("Deployment/llm", "apps/v1", (0, 1, 2))
    assert workload.body == {"spec": {"replicas": 1}}, "only what the kind's row reads is kept"
    assert [owner.kind for owner in workload.chain] == ["ReplicaSet", "Deployment"]
    assert "Deployment-web" not in seen.contents.view().stores["apps", "Deployment"]
    assert seen.missing == ()


def exporter(name: str, namespace: str = "gpu-operator") -> pretend.Object:
    address = {"phase": "Running", "podIP": f"10.0.0.{len(name)}"}
    return pretend.pod(name, gpus=0, node="n1", namespace=namespace, status=address, labels={"bulk": "x"})


async def test_pods_of_exporters_namespaces_are_known_by_their_address(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    server.put("pods", exporter("dcgm"))
    server.put("pods", exporter("dcgm-evil", "tenant"))
    async with server.api() as api, mirror.Mirror(api, belief=BELIEF) as seen:
        await seen.follow(NOW)
        before, version = seen.contents.exporters, seen.contents.version_of_hosts
        assert list(before.known.values()) == [trust.ExporterPod("gpu-operator", "dcgm", "n1", "10.0.0.4")]
        assert [pod.name for pod in seen.pods] == ["llm-0"], "they hold no GPUs"
        assert (seen.contents.exporters, seen.contents.version_of_hosts) == (before, version)
        server.remove("pods", exporter("dcgm")["metadata"]["uid"])
        server.put("pods", exporter("dcgm-new"))
        await pretend.until(lambda: len(seen.contents.exporters.known) == 2)  # the one that is gone was one, too
        assert seen.contents.version_of_hosts > version
    assert seen.contents.exporters.is_believed("gpu-operator")
    assert not seen.contents.exporters.unseen


async def test_where_only_some_namespaces_are_seen_exporters_elsewhere_are_unseen(server: pretend.Server) -> None:
    seen = await look(server, watch_namespaces=["ml"], belief=BELIEF)
    assert seen.contents.exporters.unseen == "only pods in ml are seen"


async def test_a_thousand_pods_of_250_deployments_cost_at_most_40_requests(server: pretend.Server) -> None:
    for number in range(250):
        server.put_all(pretend.deployed(f"llm{number}", pods=4))
    seen = await look(server)
    assert len(seen.workloads({})) == 250
    assert server.asked("get") == 0, "lists, not a GET per object"
    assert len(server.requests) <= 40


async def test_what_is_handed_out_stays_the_same_while_nothing_changes(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        before = (seen.pods, seen.nodes, seen.namespaces, seen.policies, seen.workloads({}))
        sent = api.requests_sent
        await seen.refresh(NOW + 180)
        after = (seen.pods, seen.nodes, seen.namespaces, seen.policies, seen.workloads({}))
        assert all(old is new for old, new in zip(before, after, strict=True))
        assert api.requests_sent == sent


async def test_a_paused_deployment_without_pods_is_a_workload_and_its_replica_set_is_not(
    server: pretend.Server,
) -> None:
    marks = {names.PAUSED_AT: "2026-11-15T08:00:00Z"}
    paused = server.put("deployments", pretend.deployment("llm", spec={"replicas": 0}, annotations=marks))
    server.put("replicasets", pretend.replica_set("llm-rs", paused, annotations=marks))
    seen = await look(server)
    (workload,) = seen.workloads({})
    assert (workload.ref.short, workload.pods, workload.annotations) == ("Deployment/llm", (), marks)


async def test_a_job_paused_through_kueue_is_seen_through_its_kueue_workload(server: pretend.Server) -> None:
    job = server.put("jobs", pretend.made("train", kind="Job", version="batch/v1", spec={"suspend": True}))
    marks: Any = {"labels": {names.KUEUE_JOB_UID: "Job-train"}, "annotations": {names.PAUSED_AT: "x"}}
    server.put("workloads", pretend.made("job-train", job, kind="Workload", spec={"active": False}, **marks))
    seen = await look(server)
    (workload,) = seen.workloads({})
    assert (workload.ref.short, workload.pods) == ("Job/train", ())
    assert [companion.body for companion in sure(workload.kueue)] == [{"spec": {"active": False}}]


async def test_kubectls_copy_of_an_object_is_not_kept(server: pretend.Server) -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}" * 1000, "team": "a"}
    server.put_all(pretend.deployed("llm", annotations=annotations))
    seen = await look(server)
    assert seen.workloads({})[0].annotations == {"team": "a"}


async def test_a_second_list_shows_nothing_old(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        server.forbidden.add(("list", "deployments"))
        server.put("pods", pretend.pod("new"))
        await seen.list_all(NOW + 60)
        assert troubles(seen) == {"Deployment/llm": Trouble.OwnerForbidden, "Pod/new": Trouble.BarePod}


# ---- what cannot be seen ----


@pytest.mark.parametrize(
    ("spoil", "trouble"),
    [
        (lambda server: server.forbidden.add(("list", "deployments")), Trouble.OwnerForbidden),
        (lambda server: server.failing.add(("list", "deployments")), Trouble.OwnerLookupFailed),
        (lambda server: server.remove("deployments", "Deployment-llm"), Trouble.OwnerMissing),
        (lambda server: server.kinds.pop("deployments"), Trouble.OwnerMissing),
    ],
    ids=["forbidden", "failing", "deleted", "kind-gone"],
)
async def test_an_owner_that_cannot_be_had_is_trouble_and_never_a_smaller_workload(
    server: pretend.Server, spoil: Callable[[pretend.Server], None], trouble: Trouble
) -> None:
    server.put_all(pretend.deployed("llm"))
    server.put_all(
        [("statefulsets", made := pretend.made("db", kind="StatefulSet", version="apps/v1", spec={"replicas": 1}))]
    )
    server.put("pods", pretend.pod("db-0", made))
    spoil(server)
    assert troubles(await look(server)) == {"Deployment/llm": trouble, "StatefulSet/db": None}


async def test_a_forbidden_kind_is_missing_in_the_servers_own_words(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    server.forbidden |= {("list", "deployments"), ("list", "nodes")}
    seen = await look(server)
    assert {each.what for each in seen.missing} == {"deployments.apps", "nodes"}
    assert 'User "eve" cannot list' in seen.missing[0].because
    assert len(seen.pods) == 1
    assert isinstance(seen.nodes.find("n1"), Unseen)


@pytest.mark.parametrize("verdict", ["forbidden", "failing"])
async def test_without_pods_there_is_nothing_to_say(server: pretend.Server, verdict: str) -> None:
    getattr(server, verdict).add(("list", "pods"))
    with pytest.raises(errors.ClientError):
        await look(server)


async def test_a_pod_that_cannot_be_read_hides_no_activity(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    server.put("pods", pretend.pod("odd", status={"phase": 7}))
    with pytest.raises(errors.BadAnswer, match="1 pods could not be read"):
        await look(server)


@pytest.mark.parametrize(
    ("plural", "field"),
    [
        ("scaledobjects", "scaled_objects"), ("horizontalpodautoscalers", "hpas"), ("workloads", "kueue"),
        ("poddisruptionbudgets", "budgets"),
    ],
)
async def test_what_is_there_and_may_not_be_read_is_unseen(server: pretend.Server, plural: str, field: str) -> None:
    server.install(*pretend.KEDA)
    server.forbidden.add(("list", plural))
    server.put_all(pretend.deployed("llm"))
    (workload,) = (await look(server)).workloads({})
    found = getattr(workload, field)
    assert isinstance(found, Unseen)
    assert plural in found.why


async def test_where_policies_or_consent_cannot_be_seen_they_are_unseen(server: pretend.Server) -> None:
    server.forbidden |= {("list", "idlepolicies"), ("list", "namespaces")}
    server.put_all(pretend.deployed("llm"))
    seen = await look(server)
    assert isinstance(seen.policies, Unseen)
    assert isinstance(seen.namespaces.find("ml"), Unseen)


async def test_nodes_that_may_not_be_read_are_unseen_and_others_absent(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    assert (await look(server)).nodes.find("no-such-node") == ABSENT
    server.forbidden.add(("list", "nodes"))
    seen = await look(server)
    assert isinstance(seen.nodes.find("n1"), Unseen)
    assert not seen.nodes.known


# ---- kinds outside the table ----

UNKNOWN = "acme.io/v1 trainers Trainer"


def crd(path: str) -> pretend.Object:
    version = {"name": "v1", "subresources": {"scale": {"specReplicasPath": path}}}
    return pretend.made(
        "trainers.acme.io", namespace=None, kind="CustomResourceDefinition", spec={"versions": [version]}
    )


def run_trainer(server: pretend.Server) -> None:
    trainer = server.put(
        "trainers", pretend.made("big", kind="Trainer", version="acme.io/v1", spec={"size": 4, "other": 1})
    )
    server.put_all(pretend.deployed("llm", owner=trainer))


async def test_an_unknown_kind_without_scale_is_report_only(server: pretend.Server) -> None:
    server.install(UNKNOWN)
    run_trainer(server)
    assert troubles(await look(server)) == {"Trainer/big": Trouble.ManagedByUnknownOwner}


async def test_an_unknown_kind_with_scale_is_read_where_its_definition_says(server: pretend.Server) -> None:
    server.install(UNKNOWN + " + scale")
    server.put("customresourcedefinitions", crd(".spec.size"))
    run_trainer(server)
    (workload,) = (await look(server)).workloads({})
    assert (workload.ref.short, workload.trouble, workload.replicas_pointer) == ("Trainer/big", None, "/spec/size")
    assert workload.body == {"spec": {"size": 4}}


async def test_where_definitions_may_not_be_read_replicas_come_from_scale(server: pretend.Server) -> None:
    server.install(UNKNOWN + " + scale")
    server.forbidden.add(("get", "customresourcedefinitions"))
    run_trainer(server)
    (workload,) = (await look(server)).workloads({})
    assert (workload.trouble, workload.replicas_pointer, workload.body) == (None, None, {"spec": {"replicas": 4}})
    assert server.asked("scale") == 1


async def test_a_table_kind_in_a_version_we_cannot_read_is_report_only(server: pretend.Server) -> None:
    server.install("leaderworkerset.x-k8s.io/v9 leaderworkersets LeaderWorkerSet + scale")
    top = server.put(
        "leaderworkersets", pretend.made("llm", kind="LeaderWorkerSet", version="leaderworkerset.x-k8s.io/v9")
    )
    server.put("pods", pretend.pod("llm-0", top))
    assert troubles(await look(server)) == {"LeaderWorkerSet/llm": Trouble.ManagedByUnknownOwner}


async def test_a_worker_below_a_leader_without_gpus_finds_its_leader_worker_set(server: pretend.Server) -> None:
    lws = server.put(
        "leaderworkersets", pretend.made("llm", kind="LeaderWorkerSet", version="leaderworkerset.x-k8s.io/v1")
    )
    leaders = server.put("statefulsets", pretend.made("llm", lws, kind="StatefulSet", version="apps/v1"))
    leader = server.put("pods", pretend.pod("llm-0", leaders, gpus=0))
    workers = server.put("statefulsets", pretend.made("llm-0", leader, kind="StatefulSet", version="apps/v1"))
    server.put("pods", pretend.pod("llm-0-1", workers))
    (workload,) = (await look(server)).workloads({})
    assert workload.ref.short == "LeaderWorkerSet/llm"
    assert [owner.kind for owner in workload.chain] == ["StatefulSet", "Pod", "StatefulSet", "LeaderWorkerSet"]
    assert server.asked("get", "pods") == 1


# ---- namespaces, claims, policies ----


async def test_given_namespaces_nothing_else_is_asked_for(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    server.put_all(pretend.deployed("other", namespace="hr"))
    seen = await look(server, watch_namespaces=["ml", "lab"])
    assert names_of(seen.workloads({})) == ["Deployment/llm"]
    assert list(seen.namespaces.known) == ["ml"]
    assert server.asked("list", "pods") == 2
    assert {query.count("metadata.name") for verb, plural, query in server.requests if plural == "namespaces"} == {1}


async def test_a_namespace_that_may_only_be_read_is_read(server: pretend.Server) -> None:
    server.forbidden |= {("list", "namespaces"), ("watch", "namespaces")}
    server.put_all(pretend.deployed("llm"))
    async with server.api() as api, mirror.Mirror(api, watch_namespaces=["ml"]) as seen:
        await seen.list_all(NOW)
        assert (seen.namespaces.known["ml"].labels, seen.missing) == ({"team": "a"}, ())
        before = seen.namespaces
        await seen.refresh(NOW)
        assert seen.namespaces is before
        server.put(
            "namespaces", pretend.made("ml", namespace=None, kind="Namespace", annotations={names.OPT_OUT: "ignore"})
        )
        await seen.refresh(NOW)
        assert seen.namespaces.known["ml"].annotations == {names.OPT_OUT: "ignore"}
        server.forbidden.add(("get", "namespaces"))
        await seen.refresh(NOW)
        assert isinstance(seen.namespaces.find("ml"), Unseen)
        assert [each.what for each in seen.missing] == ["namespaces"]


async def test_following_may_be_tried_again(server: pretend.Server) -> None:
    server.put_all(pretend.deployed("llm"))
    server.failing.add(("list", "pods"))
    async with server.api() as api, mirror.Mirror(api) as seen:
        with pytest.raises(errors.ServerFault):
            await seen.follow(NOW)
        server.failing.clear()
        await pretend.until(lambda: bool(server.kinds["pods"].watchers))
        await seen.follow(NOW)
        assert names_of(seen.workloads({})) == ["Deployment/llm"]
        await pretend.until(lambda: bool(server.kinds["deployments"].watchers))
        assert {len(served.watchers) for served in server.kinds.values()} <= {0, 1}, "nothing is followed twice"


async def test_policies_that_nobody_wants_are_not_asked_for(server: pretend.Server) -> None:
    seen = await look(server, use_policies=False)
    assert (server.asked("list", "idlepolicies"), seen.policies) == (0, ABSENT)


def claim(name: str, driver: str = names.DRA_DRIVER, devices: int = 2, **more: Any) -> pretend.Object:
    results = [{"driver": driver, "device": f"gpu-{number}", **more} for number in range(devices)]
    return pretend.made(name, kind="ResourceClaim", status={"allocation": {"devices": {"results": results}}})


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ([claim("c")], [2]),
        ([claim("c", driver="net.example")], []),
        ([claim("c", adminAccess=True)], []),
        ([], [None]),
    ],
    ids=["gpus", "another-driver", "only-lent-to-a-monitor", "claim-not-seen"],
)
async def test_a_pod_with_claims_holds_what_was_allocated(
    server: pretend.Server, given: list[pretend.Object], counts: list[int | None]
) -> None:
    for each in given:
        server.put("resourceclaims", each)
    server.put("pods", pretend.pod("p", gpus=0, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}))
    seen = await look(server)
    assert [pod.gpu_count for pod in seen.pods] == counts


async def test_policies_are_read(server: pretend.Server) -> None:
    server.put(
        "idlepolicies", pretend.made("b", namespace=None, kind="IdlePolicy", spec={"windows": {"goneIdle": "1h"}})
    )
    server.put("idlepolicies", pretend.made("a", namespace=None, kind="IdlePolicy", spec={"priority": "high"}))
    first, second = sure((await look(server)).policies)
    assert (first.name, bool(first.invalid)) == ("a", True)
    assert (second.name, second.invalid, second.rule.gone_idle) == ("b", (), 3600.0)


# ---- the daemon ----


@pytest.fixture
async def seen(server: pretend.Server) -> AsyncIterator[mirror.Mirror]:
    server.put_all(pretend.deployed("llm"))
    async with server.api() as api, mirror.Mirror(api) as following:
        await following.follow(NOW)
        unheeded = {"daemonsets", "replicationcontrollers"}
        await pretend.until(
            lambda: all(served.watchers for plural, served in server.kinds.items() if plural not in unheeded)
        )
        yield following


async def test_in_steady_state_no_request_is_made(server: pretend.Server, seen: mirror.Mirror) -> None:
    before = len(server.requests)
    for cycle in range(3):
        await seen.refresh(NOW + 180 * cycle)
    assert len(server.requests) == before
    assert names_of(seen.workloads({})) == ["Deployment/llm"]


async def test_what_was_forgotten_and_is_wanted_later_is_read_by_itself_and_then_followed(
    server: pretend.Server, seen: mirror.Mirror
) -> None:
    things = dict(pretend.deployed("late"))
    server.put("deployments", things["deployments"])
    server.put("replicasets", things["replicasets"])
    server.put("pods", things["pods"])
    await pretend.until(lambda: len(seen.pods) == 2)
    await seen.refresh(NOW + 180)
    assert names_of(seen.workloads({})) == ["Deployment/late", "Deployment/llm"]
    assert (server.asked("get", "replicasets"), server.asked("get", "deployments")) == (1, 1)
    server.put("deployments", {**things["deployments"], "spec": {"replicas": 7}})
    await pretend.until(lambda: any(workload.body == {"spec": {"replicas": 7}} for workload in seen.workloads({})))
    assert server.asked("get") == 2


async def test_a_deletion_missed_by_a_broken_watch_is_noticed(server: pretend.Server, seen: mirror.Mirror) -> None:
    server.stale = True
    del server.kinds["pods"].objects["Pod-llm-0"]  # nobody is told
    server.cut_watches("pods")
    await pretend.until(lambda: seen.pods == ())
    server.stale = False


async def test_a_kind_installed_later_is_found_by_its_definition(server: pretend.Server, seen: mirror.Mirror) -> None:
    server.install(*pretend.KEDA)
    server.put("scaledobjects", pretend.made("llm", kind="ScaledObject", spec={"scaleTargetRef": {"name": "llm"}}))
    server.put("customresourcedefinitions", pretend.made("scaledobjects.keda.sh", namespace=None))
    await pretend.until(lambda: bool(seen._parts.served.definitions and seen._parts.served.definitions.store))
    await seen.refresh(NOW + 180)
    (workload,) = seen.workloads({})
    assert [companion.ref.short for companion in sure(workload.scaled_objects)] == ["ScaledObject/llm"]


async def test_an_owner_that_could_not_be_read_is_tried_again_and_a_gone_one_is_not(
    server: pretend.Server, seen: mirror.Mirror
) -> None:
    server.put("pods", pretend.pod("orphan", pretend.replica_set("never-there")))
    await pretend.until(lambda: len(seen.pods) == 2)
    await seen.refresh(NOW)
    assert troubles(seen)["ReplicaSet/never-there"] is Trouble.OwnerMissing
    things = dict(pretend.deployed("late"))
    server.failing.add(("get", "replicasets"))
    server.put_all(things.items())
    await pretend.until(lambda: len(seen.pods) == 3)
    await seen.refresh(NOW + 180)
    assert troubles(seen)["ReplicaSet/late-rs"] is Trouble.OwnerLookupFailed
    server.failing.clear()
    before = server.asked("get", "replicasets")
    await seen.refresh(NOW + 360)
    assert troubles(seen) == {
        "Deployment/llm": None, "Deployment/late": None, "ReplicaSet/never-there": Trouble.OwnerMissing
    }
    assert server.asked("get", "replicasets") == before + 1


async def test_rights_that_are_taken_away_show(server: pretend.Server, seen: mirror.Mirror) -> None:
    server.forbidden |= {("list", "deployments"), ("watch", "deployments")}
    server.cut_watches("deployments")
    await pretend.until(lambda: bool(seen.missing))
    await seen.refresh(NOW + 180)
    before = seen.workloads({})
    assert troubles(seen) == {"Deployment/llm": Trouble.OwnerForbidden}
    await seen.refresh(NOW + 360)
    assert seen.workloads({}) is before, "nothing changed, and nothing was asked for in vain"
    server.forbidden.clear()
    for follower in seen._parts.kinds.watched["apps", "Deployment"].following.followers.values():
        await follower.list_once()  # as it does by itself a minute later
    await seen.refresh(NOW + 540)
    assert troubles(seen) == {"Deployment/llm": None}
