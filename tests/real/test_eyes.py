"""The eyes on a real cluster: real controllers make the chains, the real API server refuses, forgets and goes away."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import cluster as nouns
from fallow.model.cluster import Trouble
from fallow.observe.cluster import mirror
from tests.real import cluster as clusters
from tests.real import crds, world

Object = dict[str, Any]
Start = Callable[[world.Options], Awaitable[clusters.Cluster]]
STRANGERS = {"Opaque": {}, "Scalable": {"size": 4}}  # kinds that the table does not know, and their spec


@contextlib.asynccontextmanager
async def opened(kubeconfig: Path, **options: Any) -> AsyncIterator[mirror.Mirror]:
    access = config.load_access(kubeconfig=str(kubeconfig), context=None, environment={})
    async with kube.Api(access, qps=1000) as api, mirror.Mirror(api, **options) as seen:
        yield seen


async def look(cluster: clusters.Cluster, kubeconfig: Path | None = None) -> dict[str, nouns.Workload]:
    """One-shot: the workloads in the test's namespace, by what people call them."""
    async with opened(kubeconfig or cluster.kubeconfig) as seen:
        await seen.list_all(time.time())
        return by_name(seen, cluster)


def by_name(seen: mirror.Mirror, cluster: clusters.Cluster) -> dict[str, nouns.Workload]:
    return {each.ref.short: each for each in seen.workloads({}) if each.ref.namespace == cluster.namespace}


def owned(manifest: Object, owner: Object) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": True,
    }
    changed = copy.deepcopy(manifest)
    changed["metadata"]["ownerReferences"] = [reference]
    return changed


def bare_pod(name: str, node: str = "", **more: Any) -> Object:
    template = clusters.pod_template(name, 1, **more)
    if node:
        template["spec"]["nodeName"] = node
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]}, "spec": template["spec"]
    }


@pytest.fixture(autouse=True)
async def gpus(cluster: clusters.Cluster) -> None:
    await cluster.gpu_node("gpu-1", gpus=16)


async def test_what_the_real_controllers_make_is_resolved(cluster: clusters.Cluster) -> None:
    await cluster.deployment("llm", replicas=2, gpus=2)
    await cluster.run(clusters.replicated("apps/v1", "StatefulSet", "db", 2, 1), 2)
    await cluster.run(clusters.job("train"), 1)
    await cluster.create(bare_pod("shell"))
    found = await look(cluster)
    assert {name: each.trouble for name, each in found.items()} == {
        "Deployment/llm": None, "StatefulSet/db": None, "Job/train": None, "Pod/shell": Trouble.BarePod,
    }
    assert [link.kind for link in found["Deployment/llm"].chain] == ["ReplicaSet", "Deployment"]
    assert len(found["Deployment/llm"].pods) == len(found["StatefulSet/db"].pods) == 2
    assert found["Deployment/llm"].body["spec"] == {"replicas": 2, "selector": {"matchLabels": {"app": "llm"}}}


async def test_pods_and_nodes_are_described(cluster: clusters.Cluster) -> None:
    await cluster.gpu_node("gpu-2", replicas=4, sharing="time-slicing")
    await cluster.deployment("llm", replicas=1, gpus=2)
    await cluster.age("app=llm", minutes=90)
    await cluster.apply(clusters.replicated("apps/v1", "Deployment", "huge", 1, 64))
    await cluster.wait_until(lambda: cluster.events("FailedScheduling"))
    async with opened(cluster.kubeconfig) as seen:
        now = time.time()
        await seen.list_all(now)
        by_app = {pod.labels["app"]: pod for pod in seen.pods if pod.namespace == cluster.namespace}
        running, waiting = by_app["llm"], by_app["huge"]
        assert (running.node in ("gpu-1", "gpu-2"), running.phase, running.ready, running.gpu_count) == (
            True, "Running", True, 2
        )
        assert running.started_at is not None
        assert running.ready_since is not None
        assert 5390 < now - running.started_at < 5500
        assert 5390 < now - running.ready_since < 5500
        assert (waiting.node, waiting.phase, waiting.started_at, waiting.gpu_count) == ("", "Pending", None, 64)
        assert waiting.unschedulable_since is not None
        nodes = seen.nodes.known
        assert (nodes["gpu-1"].ready, nodes["gpu-1"].shared, nodes["gpu-2"].shared) == (True, False, True)
        assert seen.nodes.known["gpu-1"].gpu_product == "NVIDIA-H100-80GB-HBM3"


async def test_workers_of_a_leader_worker_set_are_found_through_their_leader(cluster: clusters.Cluster) -> None:
    await cluster.apply_crds(crds.KINDS["LeaderWorkerSet"])
    top = await cluster.apply(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "lws"},
            "spec": {"replicas": 1},
        }
    )
    await cluster.run(owned(clusters.replicated("apps/v1", "StatefulSet", "lead", 1, 1), top), 1)
    (leader,) = await cluster.pods("app=lead")
    await cluster.run(owned(clusters.replicated("apps/v1", "StatefulSet", "work", 2, 1), leader), 2)
    found = await look(cluster)
    assert list(found) == ["LeaderWorkerSet/lws"]
    assert len(found["LeaderWorkerSet/lws"].pods) == 3
    assert [link.kind for link in found["LeaderWorkerSet/lws"].chain] == [
        "StatefulSet", "Pod", "StatefulSet", "LeaderWorkerSet"
    ]


async def run_strangers(cluster: clusters.Cluster) -> None:
    await cluster.apply_crds(*(crds.KINDS[kind] for kind in STRANGERS))
    for kind, spec in STRANGERS.items():
        top = await cluster.apply(
            {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "big"}, "spec": spec}
        )
        await cluster.run(owned(clusters.replicated("apps/v1", "Deployment", kind.lower(), 1, 1), top), 1)


async def test_owners_of_kinds_that_nobody_told_us_about(cluster: clusters.Cluster) -> None:
    await run_strangers(cluster)
    found = await look(cluster)
    assert {name: each.trouble for name, each in found.items()} == {
        "Opaque/big": Trouble.ManagedByUnknownOwner, "Scalable/big": None
    }
    assert (found["Scalable/big"].replicas_pointer, found["Scalable/big"].body) == ("/spec/size", {"spec": {"size": 4}})


READS = [
    {"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["example.com"], "resources": ["scalables"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["example.com"], "resources": ["scalables/scale"], "verbs": ["get"]},
    # What steers or guards workloads, where an earlier test has brought it: unseen, it would make all of them unseen.
    {"apiGroups": ["keda.sh"], "resources": ["scaledobjects"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "list", "watch"]},
]


async def test_with_few_rights_the_rest_is_still_seen(cluster: clusters.Cluster) -> None:
    await run_strangers(cluster)
    await cluster.deployment("llm")
    await cluster.run(clusters.replicated("apps/v1", "StatefulSet", "db", 1, 1), 1)
    eve = await cluster.service_account("eve", READS)
    async with opened(eve, use_policies=False) as seen:
        await seen.list_all(time.time())
        found = by_name(seen, cluster)
        assert {name: each.trouble for name, each in found.items()} == {
            "Opaque/big": Trouble.OwnerForbidden, "Scalable/big": None, "StatefulSet/db": Trouble.OwnerForbidden,
            "Deployment/llm": None,
        }
        assert {"statefulsets.apps", "opaques.example.com"} <= {each.what for each in seen.missing}
        assert (found["Scalable/big"].replicas_pointer, found["Scalable/big"].body) == (
            None, {"spec": {"replicas": 4}}
        ), "read from /scale"


async def test_an_orphan_stands_for_itself_and_a_vanished_kind_is_a_missing_owner(cluster: clusters.Cluster) -> None:
    made = await cluster.deployment("llm")
    await cluster.delete(made, propagationPolicy="Orphan")
    nobody = {"apiVersion": "gone.example/v1", "kind": "Gone", "metadata": {"name": "old", "uid": "0-1-2"}}
    await cluster.create(owned(bare_pod("left"), nobody))

    async def is_orphaned() -> bool:
        return not any(
            each["metadata"].get("ownerReferences") for each in await cluster.objects("apps/v1", "ReplicaSet")
        )

    await cluster.wait_until(is_orphaned)
    found = await look(cluster)
    kinds = {each.ref.kind: each.trouble for each in found.values()}
    assert kinds == {"ReplicaSet": None, "Gone": Trouble.OwnerMissing}


async def test_a_static_pod_is_not_ours_to_scale(cluster: clusters.Cluster) -> None:
    await cluster.create(bare_pod("fixed", node="gpu-1", annotations={names.MIRROR_POD: "hash"}))
    found = await look(cluster)
    assert {name: each.trouble for name, each in found.items()} == {"Pod/fixed": Trouble.NonScalable}


async def test_gpus_of_a_resource_claim_are_counted(cluster: clusters.Cluster) -> None:
    claim = await cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "two"},
            "spec": {
                "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}
            },
        }
    )
    results = [
        {"request": "gpu", "driver": names.DRA_DRIVER, "pool": "gpu-1", "device": f"gpu-{number}"}
        for number in range(2)
    ]
    await cluster.patch(claim, {"status": {"allocation": {"devices": {"results": results}}}}, part="status")
    template = clusters.pod_template(
        "dra", 0, nodeName="gpu-1", resourceClaims=[{"name": "g", "resourceClaimName": "two"}]
    )
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dra"}, "spec": template["spec"]})
    async with opened(cluster.kubeconfig) as seen:
        await seen.list_all(time.time())
        assert [pod.gpu_count for pod in seen.pods if pod.namespace == cluster.namespace] == [2]


async def test_given_one_namespace_rights_in_it_suffice(cluster: clusters.Cluster) -> None:
    await cluster.deployment("llm")
    kubeconfig = await cluster.service_account("narrow")
    subject = {"kind": "ServiceAccount", "name": "narrow", "namespace": cluster.namespace}
    rules = [{"apiGroups": ["", "apps"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "narrow"}}
    await cluster.apply({**rbac, "kind": "Role", "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "narrow"}
    await cluster.apply({**rbac, "kind": "RoleBinding", "subjects": [subject], "roleRef": role})
    async with opened(kubeconfig, watch_namespaces=[cluster.namespace], use_policies=False) as seen:
        await seen.list_all(time.time())
        assert [each.ref.short for each in seen.workloads({})] == ["Deployment/llm"]
        assert "nodes" in {each.what for each in seen.missing}


async def test_a_daemon_follows_without_asking(cluster: clusters.Cluster) -> None:
    await cluster.deployment("llm", replicas=2)
    async with opened(cluster.kubeconfig) as seen:
        await seen.follow(time.time())
        before = seen.workloads({})
        asked = seen.api.requests_sent
        await seen.refresh(time.time())
        assert seen.workloads({}) is before
        late = await cluster.deployment("late")
        await cluster.wait_until(
            lambda: len([pod for pod in seen.pods if pod.labels["app"] == "late" and pod.ready]) == 1
        )
        await seen.refresh(time.time())
        assert set(by_name(seen, cluster)) == {"Deployment/llm", "Deployment/late"}
        assert seen.api.requests_sent <= asked + 2 + 60, "one for each new owner, and the watches"
        await cluster.patch(late, {"spec": {"replicas": 0}})
        await cluster.wait_until(lambda: all(pod.labels["app"] == "llm" for pod in seen.pods))
        assert set(by_name(seen, cluster)) == {"Deployment/llm"}


async def test_a_server_that_goes_away_is_an_error_until_it_is_back(start_control_plane: Start) -> None:
    own = await start_control_plane(world.PLAIN)
    await own.create(bare_pod("before"))
    async with opened(own.kubeconfig) as seen:
        await seen.follow(time.time())
        async with own.without_api_server():
            await own.wait_until(lambda: "pods" in {each.what for each in seen.missing})
            with pytest.raises(errors.Unreachable):
                await seen.refresh(time.time())
        await own.create(bare_pod("after"))

        async def has_recovered() -> bool:
            with contextlib.suppress(errors.ClientError):
                await seen.refresh(time.time())
                return set(by_name(seen, own)) == {"Pod/before", "Pod/after"}
            return False

        await own.wait_until(has_recovered)
