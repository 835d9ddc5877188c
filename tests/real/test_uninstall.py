"""`fallow uninstall` on a real API server, with everything half done that a daemon may have been killed at: what it
would do is said first and changes nothing; then all is given back, only what is ours goes, and what cannot is named."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
import yaml

from fallow import names
from fallow.act import giving_back, headroom
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide.sharing import claims
from fallow.model import emptying, partition, scaling
from fallow.model.policies.sharing import Strategy
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import crds, product, test_webhook

Object = dict[str, Any]
OURS = [each for path in sorted((ROOT / "deploy" / "base").glob("1*crd*.yaml"))
        for each in yaml.safe_load_all(path.read_text()) if each]
WORD = dict([names.MANAGED_BY])
GPU = {"limits": {"nvidia.com/gpu": 1}}


@pytest.fixture
async def home(cluster: clusters.Cluster) -> str:
    await cluster.apply_crds(*OURS, crds.PROVISIONING_REQUEST, crds.CAPACITY_BUFFER)
    await cluster.make_namespace(f"{cluster.namespace}-home")
    return f"{cluster.namespace}-home"


async def type_in(cluster: clusters.Cluster, *words: str, code: int = 0, kubeconfig: pathlib.Path | None = None) -> str:
    env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig or cluster.kubeconfig)}
    done = await product.run("fallow", "uninstall", *words, env=env)
    assert done.code == code, done.said
    return done.said


async def keep_room(cluster: clusters.Cluster, home: str) -> list[Object]:
    """As a daemon does, and one object of somebody else's beside each."""
    def named(name: str, labels: dict[str, str]) -> Object:
        return {"name": name, "namespace": home, "labels": labels}

    pause = {"metadata": {"labels": {"app": "room"}}, "spec": {"containers": [
        {"name": "pause", "image": headroom.PAUSE, "resources": GPU}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "room"}}, "template": pause}
    buffer = {"podTemplateRef": {"name": "fallow-headroom-a"}, "replicas": 2}
    ours = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named("fallow-headroom-a", WORD), "spec": spec},
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": named("fallow-headroom-a", WORD), "template": pause},
        {"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
         "metadata": named("fallow-headroom-a", WORD), "spec": buffer},
        {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
         "metadata": named(f"{names.GANG_PREFIX}a", WORD), "spec": {
             "provisioningClassName": "a", "podSets": [{"count": 1, "podTemplateRef": {"name": "fallow-headroom-a"}}]}},
    ]
    theirs = {**ours[0], "metadata": named("fallow-headroom-theirs", {}), "spec": {**spec, "replicas": 0}}
    extender = {**ours[0], "metadata": named("fallow-extender", WORD), "spec": {**spec, "replicas": 0}}
    return [await cluster.apply(each) for each in (*ours, theirs, extender)]


async def hold_nodes(cluster: clusters.Cluster) -> dict[str, Object]:
    drain = scaling.DrainRecord(v=1, policy="a", since=1.0, reason=scaling.DrainKind("empty"), because="empty",
                                cordoned_by_us=True)
    spot = scaling.SpotRecord(v=1, policy="a", since=1.0, ends_at=None, cordoned_by_us=False)
    emptied = emptying.EmptyingRecord(v=1, since=1.0, cordoned_by_us=True, because="hardly used")
    marks = {
        "drained": ({names.SCALE_DOWN: scaling.write(drain)}, names.SCALE_DOWN),
        "spot": ({names.SPOT_RECORD: scaling.write(spot)}, names.SPOT_INTERRUPTION),
        "emptied": ({names.EMPTYING: emptying.write(emptied)}, ""),
        "left": ({names.MOVE: "{", names.PLACE_HELD: "{"}, ""),
    }
    nodes = {}
    for name, (said, taint) in marks.items():
        node = await cluster.gpu_node(f"{cluster.namespace}-{name}")
        theirs = {"key": "team.example/ours", "effect": "NoSchedule"}
        taints = [theirs, *([{"key": taint, "effect": "NoSchedule"}] if taint else [])]
        spec = {"unschedulable": True, "taints": taints}
        await cluster.patch(node, {"metadata": {"annotations": said}, "spec": spec})
        nodes[name] = node
    return nodes


async def make_elsewhere(cluster: clusters.Cluster) -> dict[str, Object]:
    """What a daemon makes outside of its namespace, and templates that only look like ours."""
    asks = claims.make_asks(Strategy.timeslicing, "", "Short")
    cut, other = (claims.make_asks(Strategy.mig, profile, "") for profile in ("1g.10gb", "7g.80gb"))
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}

    def template(name: str, asked: Object, labels: Object = WORD) -> Object:
        return {**kind, "metadata": {"name": name, "labels": labels}, "spec": {"spec": asked}}

    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -10,
           "metadata": {"name": names.HEADROOM_CLASS}}
    things = {
        "ours": template("fallow-timeslicing", asks), "cut": template("fallow-mig-1g.10gb", cut),
        "changed": template("fallow-mig-1g.20gb", other), "unlabelled": template("fallow-mig-7g.80gb", other, {}),
        "otherwise called": template("theirs", asks), "class": low,
    }
    for each in yaml.safe_load_all((ROOT / "deploy/webhook/40-configurations.yaml").read_text()):
        things[each["kind"]] = each
    return {name: await cluster.apply(each) for name, each in things.items()}


async def find_all(cluster: clusters.Cluster, things: dict[str, Object]) -> set[str]:
    return {name for name, each in things.items()
            if await cluster.find(each["apiVersion"], each["kind"], each["metadata"]["name"])}


async def state(cluster: clusters.Cluster, node: Object) -> tuple[bool, set[str], set[str]]:
    now = await cluster.refresh(node)
    ours = {names.SCALE_DOWN, names.SPOT_RECORD, names.EMPTYING, names.MOVE, names.PLACE_HELD}
    records = ours & set(now["metadata"].get("annotations") or {})
    taints = {each["key"] for each in now["spec"].get("taints") or ()} & {
        "team.example/ours", names.SCALE_DOWN, names.SPOT_INTERRUPTION}
    return bool(now["spec"].get("unschedulable")), taints, records


async def test_all_that_is_half_done_is_given_back_and_what_is_not_ours_stays(
    cluster: clusters.Cluster, home: str
) -> None:
    kept, nodes = await keep_room(cluster, home), await hold_nodes(cluster)
    made = await make_elsewhere(cluster)
    spec = {"containers": [{"name": "a", "image": "a", "resources": GPU}],
            "schedulingGates": [{"name": "team.example/gate"}, {"name": names.BUDGET_GATE}]}
    pod = await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "spec": spec})

    said = await type_in(cluster, "-n", home)
    assert "nothing was done: repeat it with --yes" in said
    for word in ("waits: pod gated", f"node {nodes['drained']['metadata']['name']} is let go",
                 f"node {nodes['left']['metadata']['name']} has a place that is kept for a pod",
                 "4 nodes would be given back", "keeps room: CapacityBuffer fallow-headroom-a",
                 "would go: PriorityClass gpu-autoscaler-headroom", "would go: MutatingWebhookConfiguration",
                 f"would go: ResourceClaimTemplate fallow-timeslicing in {cluster.namespace}"):
        assert word in said
    assert (await state(cluster, nodes["drained"]))[0], "a rehearsal changes nothing"
    assert all([await cluster.find(each["apiVersion"], each["kind"], each["metadata"]["name"], home) for each in kept])
    assert await find_all(cluster, made) == set(made)

    said = await type_in(cluster, "-n", home, "--yes")
    assert "nothing is paused or held by fallow any more" in said
    assert f"kubectl -n {home} delete --ignore-not-found lease/gpu-pruner" in said
    assert await state(cluster, nodes["drained"]) == (False, {"team.example/ours"}, set())
    assert await state(cluster, nodes["emptied"]) == (False, {"team.example/ours"}, set())
    assert await state(cluster, nodes["spot"]) == (True, {"team.example/ours"}, set()), "its cordon was not ours"
    assert await state(cluster, nodes["left"]) == (True, {"team.example/ours"}, set()), "nor was this one"
    assert (await cluster.refresh(pod))["spec"]["schedulingGates"] == [{"name": "team.example/gate"}]
    there = {(each["kind"], each["metadata"]["name"])
             for each in kept if await cluster.find(each["apiVersion"], each["kind"], each["metadata"]["name"], home)}
    assert there == {("Deployment", "fallow-headroom-theirs"), ("Deployment", "fallow-extender")}
    assert await find_all(cluster, made) == {"changed", "unlabelled", "otherwise called"}
    again = await type_in(cluster, "-n", home, "--yes")
    assert "keeps no more room" not in again, "a second time there is nothing left to do"


async def test_what_cannot_be_given_back_is_named_and_it_ends_with_1(cluster: clusters.Cluster, home: str) -> None:
    """Who may not delete what keeps room, and a node that is being cut."""
    await keep_room(cluster, home)
    node = await cluster.gpu_node(f"{cluster.namespace}-cut")
    layout = partition.NodeLayout()
    record = partition.RepartitionRecord(
        config="a", uid="u", before=layout, after=layout, step=partition.RepartitionStep.Draining, since=1.0,
    )
    await cluster.patch(node, {"metadata": {"annotations": {names.REPARTITION: partition.write(record)}}})
    reads = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "patch", "update"]}]
    account = await cluster.service_account("half", reads, namespace=home)
    said = await type_in(cluster, "-n", home, "--yes", code=1, kubeconfig=account)
    assert "Deployment fallow-headroom-a still keeps room" in said
    assert f"node {node['metadata']['name']} is being cut or shared anew (Draining)" in said
    assert "nothing is paused or held by fallow any more" not in said
    blind = await cluster.service_account("blind", None, namespace=home)
    await type_in(cluster, "-n", home, "--yes", code=1, kubeconfig=blind)
    unsure = await type_in(cluster, "--yes", code=1, kubeconfig=blind)
    assert "whether a daemon runs could not be seen" in unsure, "one that was not asked to stop could pause it again"
    await cluster.patch(node, {"metadata": {"annotations": {names.REPARTITION: None}}})


async def test_pods_that_come_back_get_no_gate_from_a_webhook_that_is_about_to_go(
    cluster: clusters.Cluster, home: str, tmp_path: pathlib.Path
) -> None:
    """A budget is throttled, so every new pod waits; the pods of what is resumed are made while it is uninstalled."""
    gate = test_webhook.Gate(cluster, tmp_path)
    env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig)}
    try:
        await gate.start()
        await gate.configure()
        place = await gate.place("in")
        for each in ("Validating", "Mutating"):
            kind = f"{each}WebhookConfiguration"
            made = await cluster.get(
                "admissionregistration.k8s.io/v1", kind, f"{names.WEBHOOK}-{cluster.namespace}")
            plain = {"apiVersion": made["apiVersion"], "kind": kind, "metadata": {"name": names.WEBHOOK}}
            await cluster.apply({**plain, "webhooks": made["webhooks"]})
            await cluster.delete(made)
        await cluster.gpu_node(f"{cluster.namespace}-gpu")
        llm = clusters.replicated("apps/v1", "Deployment", "llm", 3, 1)
        llm["metadata"]["namespace"] = place
        await cluster.apply(llm)
        await cluster.wait_until(lambda: cluster.ready_pods("app=llm", 3, place))
        await gate.make_budget("throttle", maxGPUs=1)
        done = await product.run("fallow", "pause", "Deployment/llm", "-n", place, "--force", env=env)
        assert done.code == 0, done.said
        await cluster.wait_until(lambda: is_gated(cluster, place))
        await type_in(cluster, "-n", home, "--yes")
        assert not await is_gated(cluster, place), "a pod that is made after the last look would wait for ever"
        await cluster.wait_until(lambda: cluster.ready_pods("app=llm", 3, place), 20)
    finally:
        await gate.stop()


async def is_gated(cluster: clusters.Cluster, place: str) -> bool:
    """Does a pod that is made now get a gate? It stays, as others that wait do."""
    made = test_webhook.pod("waits")
    made["metadata"] = {"generateName": "waits-", "namespace": place}
    found = await cluster.request("POST", f"/api/v1/namespaces/{place}/pods", made)
    return any(each["name"] == names.BUDGET_GATE for each in found["spec"].get("schedulingGates") or ())


async def test_a_step_that_fails_holds_up_no_other_and_what_was_done_is_said(
    cluster: clusters.Cluster, home: str
) -> None:
    kept = await keep_room(cluster, home)
    rules = [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}
             for group in ("apps", "autoscaling.x-k8s.io", "batch", "coordination.k8s.io", names.GROUP)]
    core = {"apiGroups": [""], "resources": ["podtemplates", "namespaces", "pods"], "verbs": ["*"]}
    account = await cluster.service_account("no-nodes", [*rules, core], namespace=home)
    said = await type_in(cluster, "-n", home, "--yes", code=1, kubeconfig=account)
    for word in ("whether nodes are held is not seen", "CapacityBuffer fallow-headroom-a keeps no more room",
                 "something is still held"):
        assert word in said
    assert await cluster.find(kept[2]["apiVersion"], "CapacityBuffer", "fallow-headroom-a", home) is None


async def test_where_the_daemon_lived_is_not_known_no_label_makes_an_object_ours(
    cluster: clusters.Cluster, home: str
) -> None:
    kept = await keep_room(cluster, home)
    access = config.load_access(kubeconfig=str(cluster.kubeconfig), context=None, environment={})
    async with kube.Api(access) as api:
        found = [each async for each in giving_back.clear_room(api, None)]
    held = " ".join(sentence for each in found for sentence in each.held)
    assert not any(each.given_back for each in found)
    assert f"Deployment fallow-headroom-a in {home} may keep room for fallow, or be somebody's own" in held
    assert f"repeat this with -n {home}" in held
    assert all([await cluster.find(each["apiVersion"], each["kind"], each["metadata"]["name"], home) for each in kept])
