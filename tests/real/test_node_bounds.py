"""Nodes, evictions and NVIDIA's ConfigMaps within the bounds of deploy/acting, on a real API server: what sharing and
consolidation do passes, and a thief with the same token can do nothing else with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fallow import names
from fallow.act import headroom
from fallow.model.cost import CapacityType
from fallow.model.policies import nodeconfig_crd, sharing_crd
from fallow.model.policies.scaling import NodeDriver, NodePool
from tests.real import cluster as clusters
from tests.real import crds, test_bounds

Object = dict[str, Any]
RECORDS = [names.REPARTITION, names.EMPTYING, names.SCALE_DOWN, names.SPOT_RECORD]
bounded = test_bounds.bounded
OPERATOR = "gpu-operator"


@pytest.fixture
async def thief(bounded: clusters.Cluster) -> AsyncIterator[test_bounds.Thief]:
    async with test_bounds.thief_on(bounded) as made:
        yield made


@pytest.fixture
async def node(bounded: clusters.Cluster) -> Object:
    await bounded.gpu_node(f"gpu-{bounded.namespace}", gpus=4)
    return await bounded.get("v1", "Node", f"gpu-{bounded.namespace}")


def patch(spec: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": metadata, **({"spec": spec} if spec is not None else {})}


@pytest.mark.parametrize("record", RECORDS)
async def test_a_cordon_goes_with_its_record_and_not_without(
    thief: test_bounds.Thief, node: Object, record: str
) -> None:
    assert "without a record" in await thief.is_refused(node, patch({"unschedulable": True}))
    await thief.send(node, patch({"unschedulable": True}, annotations={record: "{}"}))
    await thief.send(node, patch({"unschedulable": None}, annotations={record: None}))
    assert "unschedulable" not in (await thief.cluster.refresh(node))["spec"]


async def test_of_a_node_nothing_else_is_its_own(thief: test_bounds.Thief, node: Object) -> None:
    for label in (names.MIG_CONFIG, names.PLUGIN_CONFIG, names.CONSOLIDATION):
        await thief.send(node, patch(labels={label: "x"}))
        await thief.send(node, patch(labels={label: None}))
    taint = {"key": "x", "effect": "NoExecute"}
    for change, why in (
        (patch(labels={"node-role.kubernetes.io/control-plane": ""}), "labels"),
        (patch(labels={names.GPU_PRODUCT: "A100"}), "labels"),
        (patch({"taints": [taint]}), "taints of others"),
        (patch({"taints": [{"key": names.SCALE_DOWN, "effect": "NoExecute"}]}), "taints of others"),
        (patch({"podCIDR": "10.0.0.0/24"}), "the cordon"),
        (patch(annotations={"other.example.com/x": "y"}), "annotations of others"),
        (patch(finalizers=["example.com/for-ever"]), "metadata"),
    ):
        assert why in await thief.is_refused(node, change)
    status = {"status": {"capacity": {names.GPU: "99"}}}
    assert await thief.is_refused(node, status, part="status")
    with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
        await thief.ask("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")


async def test_its_own_taints_come_and_go_and_those_of_others_stay(thief: test_bounds.Thief, node: Object) -> None:
    others = [{"key": "team", "value": "ml", "effect": "NoSchedule"}]
    await thief.cluster.patch(node, {"spec": {"taints": others}})
    ours = [{"key": key, "effect": "NoSchedule"} for key in (names.SCALE_DOWN, names.SPOT_INTERRUPTION)]
    await thief.send(node, patch({"taints": [*others, *ours]}))
    assert "taints of others" in await thief.is_refused(node, patch({"taints": ours}))
    await thief.send(node, patch({"taints": others}))


async def test_a_node_goes_only_when_its_machine_was_told_to(thief: test_bounds.Thief, node: Object) -> None:
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    for record in ("{}", '{"v":1,"removing":null}'):
        await thief.send(node, patch(annotations={names.SCALE_DOWN: record}))
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("DELETE", path)
    await thief.send(node, patch(annotations={names.SCALE_DOWN: '{"v":1,"removing":1700000000.0}'}))
    await thief.ask("DELETE", path)


TEMPLATE = headroom.make_template(
    NodePool(name="gpu", tier=CapacityType.spot, gpus=4), NodeDriver.karpenter, {names.GPU: 4}
)


def deployment(name: str, **spec: Any) -> Object:
    """A placeholder; `spec`: what is said otherwise of its pod."""
    inside = {**TEMPLATE, "spec": {**TEMPLATE["spec"], **spec}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {names.HEADROOM: "gpu"}}, "template": inside},
    }


def locked(**otherwise: Any) -> Object:
    """A placeholder whose container is not locked as ours is."""
    (pause,) = TEMPLATE["spec"]["containers"]
    context = {**headroom.CONTAINER_SECURITY, **otherwise}
    return deployment("fallow-headroom-gpu", containers=[{**pause, "securityContext": context}])


async def test_of_pods_only_pause_runs_and_only_at_home(thief: test_bounds.Thief) -> None:
    home = f"{thief.cluster.namespace}-own"
    shell = [{"name": "pause", "image": headroom.PAUSE, "command": ["sh"]}]
    other = [{"name": "pause", "image": "example.invalid/miner:1"}]
    for place, body in (
        (thief.cluster.namespace, deployment("fallow-headroom-gpu")), (home, deployment("mine")),
        (home, deployment("fallow-headroom-gpu", containers=other)),
        (home, deployment("fallow-headroom-gpu", containers=shell)),
        (home, deployment("fallow-headroom-gpu", hostNetwork=True)),
        (home, deployment("fallow-headroom-gpu", serviceAccountName="gpu-pruner")),
        *((home, deployment("fallow-headroom-gpu", securityContext=context)) for context in (
            {"runAsUser": 0}, {"runAsNonRoot": False}, {"seccompProfile": {"type": "Unconfined"}},
            {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
        )),
        *((home, locked(**context)) for context in (
            {"privileged": True, "allowPrivilegeEscalation": True}, {"allowPrivilegeEscalation": True},
            {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
            {"readOnlyRootFilesystem": False}, {"runAsUser": 0},
        )),
    ):
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", f"/apis/apps/v1/namespaces/{place}/deployments", body)
    await thief.ask("POST", f"/apis/apps/v1/namespaces/{home}/deployments", deployment("fallow-headroom-gpu"))
    made = await thief.cluster.get("apps/v1", "Deployment", "fallow-headroom-gpu", home)
    await thief.send(made, {"spec": {"replicas": 0}})
    await thief.cluster.delete(made)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    for name, value in ((names.HEADROOM_CLASS, 1000), ("first", -10)):
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", classes, {**head, "metadata": {"name": name}, "value": value})


async def test_a_placeholder_is_let_in_where_pod_security_is_restricted(thief: test_bounds.Thief) -> None:
    """As deploy/base labels its namespace; and one of a version before, which says less, can still be shrunk."""
    cluster, home = thief.cluster, f"{thief.cluster.namespace}-own"
    name = "fallow-headroom-gpu"
    await cluster.patch(await cluster.get("v1", "Namespace", home), patch(labels={
        "pod-security.kubernetes.io/enforce": "restricted"}))
    api = f"/apis/apps/v1/namespaces/{home}/deployments"
    await cluster.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -10,
                         "metadata": {"name": names.HEADROOM_CLASS}, "preemptionPolicy": "Never"})
    await thief.ask("POST", api, deployment(name))
    await cluster.wait_until(lambda: cluster.pods(names.HEADROOM, home))
    await cluster.delete(await cluster.get("apps/v1", "Deployment", name, home))
    (pause,) = TEMPLATE["spec"]["containers"]
    older = deployment(name, securityContext={}, containers=[{**pause, "securityContext": {}}])
    await thief.ask("POST", api, older)
    made = await cluster.get("apps/v1", "Deployment", name, home)
    await thief.send(made, {"spec": {"replicas": 0}})
    await cluster.delete(made)


async def test_of_webhooks_and_priorities_only_its_own_are_its_to_delete(thief: test_bounds.Thief) -> None:
    """With the rights of an uninstall; those name the same objects."""
    own = thief.cluster.namespace
    hooks = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -10}
    for name in (f"{own}-theirs", names.WEBHOOK):
        await thief.cluster.apply({**hooks, "metadata": {"name": name}})
    for name in (f"{own}-theirs", names.HEADROOM_CLASS):
        await thief.cluster.apply({**low, "metadata": {"name": name}})
    places = ("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
              "/apis/scheduling.k8s.io/v1/priorityclasses")
    for place, name in zip(places, (names.WEBHOOK, names.HEADROOM_CLASS), strict=True):
        for other in (f"{place}/{own}-theirs", place):
            with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
                await thief.ask("DELETE", other)
        await thief.ask("DELETE", f"{place}/{name}")


async def test_a_pod_is_deleted_by_its_uid_with_some_time_left_to_it(thief: test_bounds.Thief, node: Object) -> None:
    await thief.cluster.deployment("held", nodeSelector={"kubernetes.io/hostname": node["metadata"]["name"]})
    (pod,) = await thief.cluster.pods("app=held")
    path = f"/api/v1/namespaces/{thief.cluster.namespace}/pods/{pod['metadata']['name']}"
    uid = {"preconditions": {"uid": pod["metadata"]["uid"]}}
    for options in ({"gracePeriodSeconds": 5}, {**uid, "gracePeriodSeconds": 0}):
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
    await thief.ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **uid, "gracePeriodSeconds": 5})


async def test_a_node_without_gpus_is_left_alone(thief: test_bounds.Thief) -> None:
    name = f"cpu-{thief.cluster.namespace}"
    made = await thief.cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    cordon = patch({"unschedulable": True}, annotations={names.EMPTYING: "{}"})
    assert "without GPUs" in await thief.is_refused(made, cordon)


async def test_a_pod_goes_by_an_eviction_that_names_its_uid_and_by_nothing_else(
    thief: test_bounds.Thief, node: Object
) -> None:
    template = clusters.pod_template("held", 1)
    metadata = {**template["metadata"], "name": "held"}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    pod = await thief.cluster.create(made)
    path = f"/api/v1/namespaces/{thief.cluster.namespace}/pods/held"
    eviction: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "held"}}
    for method, where, body in (("POST", f"{path}/eviction", eviction), ("DELETE", path, None)):
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask(method, where, body)
    named = {**eviction, "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}}}
    await thief.ask("POST", f"{path}/eviction", named)


async def test_nobody_is_evicted_from_a_protected_namespace(thief: test_bounds.Thief) -> None:
    eviction = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "dns"},
        "deleteOptions": {"preconditions": {"uid": "6c2c1b9e-0000-4000-8000-000000000000"}},
    }
    spec = clusters.pod_template("dns", 0)["spec"]
    await thief.cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dns", "namespace": "kube-system"}, "spec": spec}
    )
    with pytest.raises(clusters.Refused, match="protected namespace"):
        await thief.ask("POST", "/api/v1/namespaces/kube-system/pods/dns/eviction", eviction)


async def test_of_the_maps_that_others_read_only_its_own_keys_are_written(thief: test_bounds.Thief) -> None:
    await thief.cluster.make_namespace(OPERATOR)
    home = f"{thief.cluster.namespace}-own"
    for place, name, own, other in (
        (OPERATOR, "device-plugin-config", "fallow-x", "default"),
        (OPERATOR, "fallow-mig-parted-config", "config.yaml", "other.yaml"),
        (home, names.OWNER_USE, "use.json", "other.json"),
    ):
        maps = f"/api/v1/namespaces/{place}/configmaps"
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", maps, {"metadata": {"name": "another"}, "data": {own: ""}})
        with pytest.raises(clusters.Refused, match="other keys"):
            await thief.ask("POST", maps, {"metadata": {"name": name}, "data": {other: ""}})
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {own: "a"}}
        applied = "application/apply-patch+yaml"
        await thief.ask("PATCH", f"{maps}/{name}", body, applied, fieldManager="fallow", force="true")
        made = await thief.cluster.get("v1", "ConfigMap", name, place)
        await thief.send(made, {"data": {own: "b"}})
        assert "other keys" in await thief.is_refused(made, {"data": {other: "x"}})
        assert "but data" in await thief.is_refused(made, {"metadata": {"labels": {"x": "y"}}})
        assert "but data" in await thief.is_refused(made, {"immutable": True})
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("DELETE", f"{maps}/{name}")
        await thief.cluster.delete(made)


async def test_of_templates_of_claims_only_its_own_come_and_go(thief: test_bounds.Thief) -> None:
    under, place = "/apis/resource.k8s.io/v1", thief.cluster.namespace
    label, word = names.MANAGED_BY
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}

    def named(name: str, **labels: str) -> Object:
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": spec,
                "metadata": {"name": name, "labels": labels}}

    def path(where: str = place, name: str = "") -> str:
        return f"{under}/namespaces/{where}/resourceclaimtemplates{name and '/'}{name}"

    for where, body in (
        (place, named("others", **{label: word})), (place, named("fallow-x")), ("kube-system", named("fallow-x")),
        ("kube-system", named("fallow-x", **{label: word})),
    ):
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", path(where), body)
    await thief.ask("POST", path(), named("fallow-x", **{label: word}))
    mine = await thief.cluster.get("resource.k8s.io/v1", "ResourceClaimTemplate", "fallow-x", place)
    await thief.send(mine, patch(annotations={names.LEAVING_SINCE: "2026-11-17T07:20:00Z"}))
    assert await thief.is_refused(mine, patch(labels={label: "me"}))
    await thief.ask("DELETE", path(name="fallow-x"))
    other = await thief.cluster.apply({**named("fallow-y"), "metadata": {"name": "fallow-y", "namespace": place}})
    with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
        await thief.ask("DELETE", path(name=other["metadata"]["name"]))


async def test_of_our_own_objects_only_status_and_the_finalizer_are_written(thief: test_bounds.Thief) -> None:
    await thief.cluster.apply_crds(nodeconfig_crd.define())
    await thief.cluster.apply_crds(sharing_crd.define())
    head = {"apiVersion": "gpuautoscaler.io/v1alpha1", "metadata": {"name": thief.cluster.namespace}}
    config = await thief.cluster.apply({**head, "kind": "GPUNodeConfig", "spec": {"nodeName": "n"}})
    policy = await thief.cluster.apply({**head, "kind": "GPUSharingPolicy", "spec": {"strategy": "auto"}})
    await thief.send(config, patch(finalizers=[names.REPARTITION]))
    await thief.send(config, {"status": {"phase": "Pending"}}, part="status")
    await thief.send(policy, {"status": {"appliedPods": 1}}, part="status")
    for thing, change in (
        (config, patch(finalizers=["example.com/for-ever"])), (config, {"spec": {"mode": "enforce"}}),
        (config, patch(annotations={f"{names.GROUP}/x": "y"})), (policy, {"spec": {"mode": "enforce"}}),
        (policy, patch(annotations={"other.example.com/x": "y"})),
    ):
        assert await thief.is_refused(thing, change)
    await thief.send(config, patch(finalizers=None))


async def test_of_requests_to_cluster_autoscaler_only_its_own_come_and_go(thief: test_bounds.Thief) -> None:
    await thief.cluster.apply_crds(crds.PROVISIONING_REQUEST)
    home, version = f"{thief.cluster.namespace}-own", "autoscaling.x-k8s.io/v1"
    ours, others = f"{names.GANG_PREFIX}0123456789abcdef", "somebodys"

    def named(name: str, where: str) -> Object:
        sets = [{"podTemplateRef": {"name": name}, "count": 2}]
        spec = {"provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io", "podSets": sets}
        return {"apiVersion": version, "kind": "ProvisioningRequest", "spec": spec,
                "metadata": {"name": name, "namespace": where}}

    def path(where: str, name: str = "") -> str:
        return f"/apis/{version}/namespaces/{where}/provisioningrequests{name and '/'}{name}"

    for name, where in ((others, home), (ours, thief.cluster.namespace)):
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", path(where), named(name, where))
        await thief.cluster.apply(named(name, where))
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("DELETE", path(where, name))
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("DELETE", path(where))
    await thief.ask("POST", path(home), named(ours, home))
    await thief.ask("DELETE", path(home, ours))
    assert await thief.cluster.find(version, "ProvisioningRequest", ours, home) is None
