"""The admission policy of deploy/acting on a real API server: our own account, even if it may do everything, can do
what a pause, a resume and a mark do, and nothing else.

The account is given every right there is, so that what is refused is refused by the policy. Its token is used as a
thief would: by merge patch, JSON patch, server-side apply, PUT, on the object and on its parts.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import functools
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import yaml

from fallow import names
from fallow.act import execute
from fallow.model import kinds, pointers
from fallow.model.decision import Status
from fallow.model.policies import budget_crd
from tests.real import cluster as clusters
from tests.real import crds, test_deploy, test_hands
from tests.real import test_transactions as transactions
from tests.unit.act.examples import EXAMPLES, NOW, workload_of

Object = dict[str, Any]
BOUNDS = "acting/15-bounds.yaml"
OPENED = {"containers": [{"name": "main", "image": "evil.invalid/miner:1"}], "hostPID": True}


@dataclasses.dataclass
class Thief:
    """Holds the account's token."""

    cluster: clusters.Cluster
    http: aiohttp.ClientSession

    async def send(self, thing: Object, body: Any, how: str = "merge", part: str = "", **query: str) -> Object:
        path = await self.cluster._path_of(thing) + (f"/{part}" if part else "")
        method = "PUT" if how == "put" else "PATCH"
        kind = "application/json" if how == "put" else clusters._PATCH_TYPES[how]
        return await self.ask(method, path, body, kind, **query)

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        data = None if body is None else json.dumps(body)
        async with self.http.request(method, path, data=data, params=query, headers={"Content-Type": kind}) as answer:
            content = await answer.json(content_type=None)
            if answer.status >= 300:
                raise clusters.Refused(answer.status, content)
            return content

    async def is_refused(self, thing: Object, body: Any, how: str = "merge", part: str = "", **query: str) -> str:
        """By the policy, not by anything else; its sentence."""
        by_policy = r"403: .*gpu-pruner-bounds.*denied request: gpu-pruner: "
        with pytest.raises(clusters.Refused, match=by_policy) as refused:
            await self.send(thing, body, how, part, **query)
        return str(refused.value).rpartition("gpu-pruner: ")[2]


@pytest.fixture
async def bounded(cluster: clusters.Cluster) -> clusters.Cluster:
    """The same cluster, but what the product does is done with the bounded account's token."""
    system = f"{cluster.namespace}-own"
    await cluster.make_namespace(system)
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    account = await cluster.service_account("gpu-pruner", everything, namespace=system)
    for thing in test_deploy.manifests(BOUNDS, namespace=system):
        await cluster.apply(thing)
    cluster.kubeconfig = account
    async with thief_on(cluster) as thief:
        await cluster.wait_until(functools.partial(_is_bound, thief))
    return cluster


@contextlib.asynccontextmanager
async def thief_on(cluster: clusters.Cluster) -> AsyncIterator[Thief]:
    token = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]["token"]
    trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(cluster.plane.ca)))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(cluster.plane.url, connector=trust, headers=headers) as http:
        yield Thief(cluster, http)


async def _is_bound(thief: Thief) -> bool:
    """The API server learns of new policies, and of new rights, through its own watch."""
    path = f"/api/v1/namespaces/{thief.cluster.namespace}/configmaps"
    try:
        await thief.ask("POST", path, {"metadata": {"name": "probe"}}, dryRun="All")
    except clusters.Refused as refused:
        return "gpu-pruner-bounds" in str(refused)
    return False


# ---- what the product does passes ------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 56)
@pytest.mark.parametrize("name", EXAMPLES)
async def test_every_kind_goes_and_comes_back_within_the_bounds(bounded: clusters.Cluster, name: str) -> None:
    await test_hands.test_every_kind_goes_and_comes_back(bounded, name)


@pytest.mark.parametrize("marks", [{}, {"paused": "true"}, {"paused-replicas": "5"}], ids=["bare", "paused", "pinned"])
async def test_a_keda_pair_goes_and_comes_back_within_the_bounds(
    bounded: clusters.Cluster, marks: dict[str, str]
) -> None:
    await test_hands.test_a_keda_pair_goes_and_comes_back(bounded, marks)


@pytest.mark.parametrize("case", [
    test_hands.test_a_job_of_kueue_is_not_written_on, test_hands.test_a_schedule_goes_and_comes_back_with_its_job,
    test_hands.test_a_generic_kind_is_scaled_without_its_definition,
    test_hands.test_notice_and_ack_of_an_inference_service_leave_it_and_its_pods_alone,
    test_hands.test_a_repeated_event_is_a_series,
    test_hands.test_after_a_resume_the_owner_applies_another_count_without_a_conflict,
], ids=lambda case: case.__name__.removeprefix("test_"))
async def test_what_else_the_hands_do_stays_within_the_bounds(bounded: clusters.Cluster, case: Any) -> None:
    await case(bounded)


async def test_the_lease_and_the_status_of_policies_are_its_own(bounded: clusters.Cluster) -> None:
    system = f"{bounded.namespace}-own"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": names.LEASE}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{system}/leases"
    async with thief_on(bounded) as thief:
        made = await thief.ask("POST", leases, lease)
        made["metadata"]["annotations"] = {names.FROZEN_UNTIL: "2026-11-15T09:30:00Z"}
        await thief.send(made, made, "put")
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", leases.replace(system, bounded.namespace), lease)


@contextlib.asynccontextmanager
async def hooked(bounded: clusters.Cluster) -> AsyncIterator[list[Object]]:
    """Both configurations of the webhook, which ask nobody about anything."""
    made = []
    for thing in test_deploy.manifests("webhook/40-configurations.yaml"):
        thing["webhooks"][0]["namespaceSelector"]["matchLabels"] = {"test": bounded.namespace}
        made.append(await bounded.apply(thing))
    yield made


async def test_what_budgets_write_is_its_own_and_no_more(bounded: clusters.Cluster) -> None:
    system = f"{bounded.namespace}-own"
    await bounded.apply_crds(budget_crd.define())
    gates = [{"name": "other.example/gate"}, {"name": names.BUDGET_GATE}]
    template = clusters.pod_template("gated", 1, schedulingGates=gates)
    metadata = {**template["metadata"], "name": "gated"}
    pod = await bounded.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    secrets = f"/api/v1/namespaces/{system}/secrets"
    async with thief_on(bounded) as thief, hooked(bounded) as hooks:
        for place in (0, 1):
            patch = [{"op": "remove", "path": f"/spec/schedulingGates/{place}"}]
            if place == 0:
                assert "Pod" in await thief.is_refused(pod, patch, "json")
            else:
                await thief.send(pod, patch, "json")
        image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil.invalid/miner:1"}]
        assert "Pod" in await thief.is_refused(pod, image, "json")
        secret = {"metadata": {"name": names.WEBHOOK_CERTIFICATE}, "data": {"a": "YQ=="}}
        await thief.ask("POST", secrets, secret)
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", secrets, {"metadata": {"name": "another"}})
        for hook in hooks:
            bundle = base64.b64encode(bounded.plane.ca.read_bytes()).decode()
            await thief.send(hook, [
                {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle},
            ], "json")
            assert "caBundle" in await thief.is_refused(hook, [
                {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"},
            ], "json")
        named = {"metadata": {"name": bounded.namespace}}
        body = {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget", **named}
        spec = {"scope": {"type": "cluster"}, "budget": {"amount": 1}}
        budget = await bounded.apply({**body, "spec": spec})
        await thief.send(budget, {"status": {"enforcementActive": False}}, part="status")
        assert await thief.is_refused(budget, {"spec": {"budget": {"amount": 5}}})
        await thief.send(budget, {"metadata": {"annotations": {names.ALERT_ACK: "at-80@2026-11-01T00:00:00Z"}}})
        for key in (names.OVERRIDE_UNTIL, names.PAUSED_AT, "other.example/x"):
            noted = {"metadata": {"annotations": {key: "2099-01-01T00:00:00Z"}}}
            assert await thief.is_refused(budget, noted)
        assert await thief.is_refused(budget, {"metadata": {"labels": {"team": "other"}}})
        both = {"metadata": {"annotations": {names.ALERT_ACK: "x"}}, "spec": {"enabled": False}}
        assert await thief.is_refused(budget, both)


# ---- what a thief would do does not ----------------------------------------------------------------------------------

SPECS: dict[str, list[Object]] = {
    "image": [{"containers": [{"name": "main", "image": "evil.invalid/miner:1"}]}],
    "command": [{"containers": [{"name": "main", "image": "example.invalid/app:1", "command": ["sh"]}]}],
    "account": [{"serviceAccountName": "cluster-admin"}],
    "host": [{"hostPID": True}, {"hostNetwork": True}, {"nodeName": "master"}],
    "volumes": [{"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}],
    "privileged": [{
        "containers": [{"name": "main", "image": "example.invalid/app:1", "securityContext": {"privileged": True}}]
    }],
}
METADATA: dict[str, Object] = {
    "labels": {"labels": {"app": "other"}},
    "owners": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u", "controller": True}]},
    "finalizers": {"finalizers": ["example.com/for-ever"]},
    "annotations": {"annotations": {"other.example.com/x": "y"}},
    "admission": {"annotations": {"iam.amazonaws.com/role": "admin"}},
}


@pytest.mark.accepts("idle", 56)
@pytest.mark.parametrize("name", ["deployment", "replicaset", "statefulset", "cronjob"])
async def test_a_stolen_token_changes_no_pod_template(bounded: clusters.Cluster, name: str) -> None:
    """By every way of writing, with a pause in the same request or without."""
    thing = await test_hands.make(bounded, name)
    where = "/spec/jobTemplate/spec/template/spec" if name == "cronjob" else "/spec/template/spec"
    row = _row(thing)
    async with thief_on(bounded) as thief:
        for changes in SPECS.values():
            for change in changes:
                await _tries(thief, thing, row, where, change)
    assert (await bounded.refresh(thing))["spec"] == thing["spec"]


def _row(thing: Object) -> kinds.Kind:
    row = kinds.find(thing["apiVersion"].rpartition("/")[0], thing["kind"])
    assert row is not None
    return row


async def _tries(thief: Thief, thing: Object, row: kinds.Kind, where: str, change: Object) -> None:
    patch = pointers.merge_patch({}, {where: change})
    assert "in the spec of" in await thief.is_refused(thing, patch)
    with_pause = pointers.apply_merge_patch(patch, pointers.merge_patch({}, dict.fromkeys(row.writes, 0)))
    if row.writes == ("/spec/replicas",):
        await thief.is_refused(thing, with_pause)
    await thief.is_refused(thing, patch, "strategic")
    operations = [{"op": "add", "path": f"{where}/{name}", "value": value} for name, value in change.items()]
    await thief.is_refused(thing, operations, "json")
    whole = pointers.apply_merge_patch(await thief.cluster.refresh(thing), patch)
    await thief.is_refused(thing, whole, "put")
    named = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "metadata": {"name": thing["metadata"]["name"]}}
    applied = named | {"spec": pointers.apply_merge_patch(thing["spec"], patch["spec"])}
    await thief.is_refused(thing, applied, "apply", fieldManager="kubectl", force="true")


@pytest.mark.accepts("idle", 56)
@pytest.mark.parametrize("name", EXAMPLES)
async def test_of_no_kind_a_stolen_token_changes_anything_but_the_pause(bounded: clusters.Cluster, name: str) -> None:
    thing = await test_hands.make(bounded, name)
    async with thief_on(bounded) as thief:
        for change in METADATA.values():
            assert "not its to change" in await thief.is_refused(thing, {"metadata": change})
        for change in _spec_changes(thing):
            assert "in the spec of" in await thief.is_refused(thing, {"spec": change})
        gone = {"spec": dict.fromkeys(field for field in thing["spec"] if not _may_change(thing, field))}
        if gone["spec"] and thing["kind"] in crds.KINDS:
            await thief.is_refused(thing, gone)
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("DELETE", await bounded._path_of(thing))
    now = await bounded.refresh(thing)
    assert (now["spec"], now["metadata"]["uid"]) == (thing["spec"], thing["metadata"]["uid"])


def _may_change(thing: Object, field: str) -> bool:
    group = thing["apiVersion"].rpartition("/")[0]
    row = kinds.find(group, thing["kind"])
    return field == "size" if row is None else any(pointers.parts(each)[:2] == ("spec", field) for each in row.writes)


def _spec_changes(thing: Object) -> list[Object]:
    """Every field that its definition has and no pause writes, also beside one that it does."""
    kind = "KnativeService" if thing["apiVersion"] == "serving.knative.dev/v1" else thing["kind"]
    if kind not in crds.KINDS:
        return [{"template": {"spec": OPENED}}] if kind not in ("CronJob", "Job") else []
    versions = crds.KINDS[kind]["spec"]["versions"]
    fields = versions[-1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    closed = {field: schema for field, schema in fields.items() if not _may_change(thing, field)}
    found = [{field: _other(schema, thing["spec"].get(field))} for field, schema in closed.items()]
    beside = {
        "InferenceService": {"predictor": OPENED}, "LLMInferenceService": {"prefill": {"template": OPENED}},
        "KnativeService": {"template": {"spec": OPENED}},
        "DisaggregatedSet": {"roles": _opened_roles(thing)},
        "PyTorchJob": {"runPolicy": {"cleanPodPolicy": "All"}},
    }
    knative = {"template": {"metadata": {"annotations": {"sidecar.istio.io/inject": "true"}}}}
    return [*found, *([beside[kind]] if kind in beside else []), *([knative] if kind == "KnativeService" else [])]


def _opened_roles(thing: Object) -> list[Object]:
    roles = copy.deepcopy(thing["spec"].get("roles") or [])
    for role in roles:
        role["spec"] |= {"replicas": 0, "template": OPENED}
    return roles


def _other(schema: Object, now: Any) -> Any:
    others = {"string": "other", "integer": 7, "boolean": not now, "array": [{"a": OPENED}], "object": {"a": "b"}}
    return others[schema["type"]]


@pytest.mark.accepts("idle", 56)
async def test_by_the_parts_of_an_object_only_the_count_changes(bounded: clusters.Cluster) -> None:
    thing = await test_hands.make(bounded, "deployment")
    async with thief_on(bounded) as thief:
        said = await thief.is_refused(thing, {"spec": {"replicas": 1}}, part="scale")
        assert "the scale of a kind that it knows" in said
        await thief.is_refused(thing, {"status": {"replicas": 9}}, part="status")
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": bounded.namespace}}
        spec = {"containers": [{"name": "main", "image": "evil.invalid/miner:1"}]}
        with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
            await thief.ask("POST", f"/api/v1/namespaces/{bounded.namespace}/pods", {**pod, "spec": spec})
        for path in (
            f"/api/v1/namespaces/{bounded.namespace}/serviceaccounts/default/token", "/api/v1/nodes/x/proxy/pods",
            f"/api/v1/namespaces/{bounded.namespace}/pods/x/exec",
        ):
            with pytest.raises(clusters.Refused, match="gpu-pruner-bounds"):
                await thief.ask("POST", path, {"spec": {}})
    now = await bounded.refresh(thing)
    assert now["spec"] == thing["spec"]


CLAIMS = {
    "volumeClaimTemplates": [{
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }],
    "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Retain"},
}


@pytest.mark.accepts("idle", 56)
async def test_a_stolen_token_deletes_no_volumes(bounded: clusters.Cluster) -> None:
    manifest = clusters.replicated("apps/v1", "StatefulSet", "db", 2, 1)
    manifest["spec"] |= CLAIMS
    thing = await bounded.apply(manifest)
    async with thief_on(bounded) as thief:
        for fewer in (0, 1, None):
            assert "lose its volumes" in await thief.is_refused(thing, {"spec": {"replicas": fewer}})
        await thief.is_refused(thing, {"spec": {"replicas": 0}}, part="scale")
        await thief.send(thing, {"spec": {"replicas": 3}})  # as a resume does
        await bounded.patch(thing, {"spec": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain"}}})
        await thief.send(thing, {"spec": {"replicas": 0}})


@pytest.mark.accepts("idle", 56)
async def test_a_stolen_token_deletes_no_volumes_of_a_leader_worker_set(bounded: clusters.Cluster) -> None:
    thing = await test_hands.make(bounded, "lws")
    template = (thing["spec"].get("leaderWorkerTemplate") or {}) | CLAIMS
    await bounded.patch(thing, {"spec": {"leaderWorkerTemplate": template}})
    async with thief_on(bounded) as thief:
        assert "lose its volumes" in await thief.is_refused(thing, {"spec": {"replicas": 0}})


@pytest.mark.accepts("idle", 56)
@pytest.mark.parametrize("name", ["deployment", "disaggregated", "isvc", "llm-prefill", "generic"])
async def test_a_stolen_token_asks_for_no_endless_replicas(bounded: clusters.Cluster, name: str) -> None:
    thing, many = await test_hands.make(bounded, name), 2_000_000_000
    roles = [{**role, "spec": {**role["spec"], "replicas": many}} for role in thing["spec"].get("roles", ())]
    bodies: dict[str, Object] = {
        "deployment": {"replicas": many}, "disaggregated": {"roles": roles}, "generic": {"size": many},
        "isvc": {"predictor": {"minReplicas": many}}, "llm-prefill": {"prefill": {"replicas": many}},
    }
    async with thief_on(bounded) as thief:
        assert "in the spec of" in await thief.is_refused(thing, {"spec": bodies[name]})
        if name == "generic":
            assert "more than" in await thief.is_refused(thing, {"spec": {"replicas": many}}, part="scale")
            await thief.send(thing, {"spec": {"replicas": 1}}, part="scale")


@pytest.mark.accepts("idle", 56)
@pytest.mark.parametrize("place", ["kube-system", "its own"])
async def test_in_a_protected_namespace_not_even_a_pause_passes(bounded: clusters.Cluster, place: str) -> None:
    namespace = place if place == "kube-system" else f"{bounded.namespace}-own"
    manifest = clusters.replicated("apps/v1", "Deployment", f"llm-{bounded.namespace}", 0, 0)
    manifest["metadata"]["namespace"] = namespace
    thing = await bounded.apply(manifest)
    async with thief_on(bounded) as thief:
        assert "protected" in await thief.is_refused(thing, {"spec": {"replicas": 1}})
        assert "protected" in await thief.is_refused(thing, {"spec": {"replicas": 1}}, part="scale")
        assert "protected" in await thief.is_refused(thing, {"metadata": {"annotations": {names.ACK_UNTIL: "x"}}})


async def test_nobody_else_is_bound(bounded: clusters.Cluster) -> None:
    thing = await test_hands.make(bounded, "deployment")
    await bounded.patch(thing, {"spec": {"template": {"spec": {"hostPID": True}}}})
    assert (await bounded.refresh(thing))["spec"]["template"]["spec"]["hostPID"] is True


async def test_a_resume_that_a_webhook_changes_is_refused_and_the_event_says_who_can_do_it(
    bounded: clusters.Cluster
) -> None:
    thing = await test_hands.make(bounded, "deployment")
    async with test_hands.hands_on(bounded) as hands:
        assert (await test_hands.carry_in_the_end(bounded, hands, thing)).status is Status.done
        label = '[JSONPatch{op: "add", path: "/metadata/labels", value: {"cost": "x"}}]'
        await transactions.clamp(bounded, "apps", "deployments", "!has(object.metadata.labels)", label)
        await bounded.wait_until(functools.partial(_is_labelled, bounded, thing))
        resume = test_hands.resume_of(workload_of(await bounded.refresh(thing)))
        (outcome,) = await execute.carry_out([resume], hands, transactions.no_look, NOW + 60)
    assert outcome.status is Status.failed
    (event,) = await bounded.events(names.Event.RESUME_FAILED)
    assert "gpu-pruner-bounds" in event["note"]
    assert f"fallow resume Deployment/llm -n {bounded.namespace}" in event["note"]
    assert names.ORIGINAL_STATE in (await bounded.refresh(thing))["metadata"]["annotations"]


async def _is_labelled(cluster: clusters.Cluster, thing: Object) -> bool:
    tried = await cluster.patch(thing, {"metadata": {"annotations": {"a": "b"}}}, dryRun="All")
    return "labels" in tried["metadata"]
