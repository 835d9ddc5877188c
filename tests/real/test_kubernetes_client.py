"""Our client on a real API server: what only a real one does. What it does on both is in
tests/functional/test_api.py."""

import pathlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from fallow.clients import errors
from fallow.clients.kubernetes import api, config, discovery, follow
from fallow.model.secret import Secret
from tests.real import cluster as clusters
from tests.real import crds

CONFIG_MAPS = api.Resource("", "v1", "configmaps", "ConfigMap", True)
DEPLOYMENTS = api.Resource("apps", "v1", "deployments", "Deployment", True, scalable=True)


class Meta(msgspec.Struct, frozen=True):
    uid: str
    name: str
    namespace: str = ""


class Named(msgspec.Struct, frozen=True):
    metadata: Meta


def access_to(kubeconfig: pathlib.Path | str) -> config.Access:
    return config.load_access(kubeconfig=str(kubeconfig), context=None, environment={})


@pytest_asyncio.fixture
async def client(cluster: clusters.Cluster) -> AsyncIterator[api.Api]:
    async with api.Api(access_to(cluster.plane.kubeconfig), qps=200) as running:
        yield running


async def make_maps(client: api.Api, cluster: clusters.Cluster, *names: str) -> None:
    for name in names:
        await client.create(CONFIG_MAPS, cluster.namespace, {"metadata": {"name": name, "labels": {"made-by": "test"}}})


async def test_a_client_certificate_a_token_and_a_stranger(cluster: clusters.Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]
    for kubeconfig in (await cluster.user("ada", rules), await cluster.service_account("robot", rules)):
        async with api.Api(access_to(kubeconfig)) as allowed:
            await make_maps(allowed, cluster, kubeconfig.stem.partition(".")[0])
            with pytest.raises(errors.Forbidden, match="cannot list resource"):
                await follow.Follower(allowed, api.PODS, item=Named, keep=lambda pod: pod).list_once()
    nobody = msgspec.structs.replace(access_to(kubeconfig), token=Secret("not-a-token"))
    async with api.Api(nobody) as refused:
        with pytest.raises(errors.Unauthorized):
            await refused.get(api.NAMESPACES, None, cluster.namespace)


async def test_the_server_tells_who_we_are(cluster: clusters.Cluster) -> None:
    async with api.Api(access_to(await cluster.user("ada"))) as ada:
        assert await ada.who_am_i() == "ada"
    stranger = msgspec.structs.replace(access_to(await cluster.service_account("robot")), token=Secret("not-a-token"))
    async with api.Api(stranger) as refused:
        assert await refused.who_am_i() is None


async def test_impersonation(cluster: clusters.Cluster) -> None:
    headers = (
        ("Impersonate-User", "ada"), ("Impersonate-Group", "team:ml"), ("Impersonate-Extra-example.org%2Fwhy", "test")
    )
    access = msgspec.structs.replace(access_to(cluster.plane.kubeconfig), impersonation=headers)
    review = api.Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False)
    async with api.Api(access) as client:
        answer = await client.create(review, None, {"apiVersion": review.api_version, "kind": review.kind})
    info = answer["status"]["userInfo"]
    assert (info["username"], "team:ml" in info["groups"], info["extra"]) == (
        "ada", True, {"example.org/why": ["test"]}
    )


async def test_discovery_finds_kinds_and_their_scale(cluster: clusters.Cluster, client: api.Api) -> None:
    await cluster.apply_crds(*crds.KINDS.values())
    before = client.requests_sent
    found = await discovery.discover(client)
    assert client.requests_sent - before == 2
    plain = [msgspec.structs.replace(each, also=()) for each in found.resources]
    assert DEPLOYMENTS in plain
    scalable = {(each.group, each.kind): each.scalable for each in found.resources}
    assert (scalable["example.com", "Scalable"], scalable["apps", "DaemonSet"]) == (True, False)
    for known in (api.PODS, api.NODES, api.NAMESPACES, api.LEASES, api.EVENTS):
        assert known in plain
    assert found.unavailable == {}


async def test_patches_of_every_kind(cluster: clusters.Cluster, client: api.Api) -> None:
    made = await cluster.apply(clusters.replicated("apps/v1", "Deployment", "llm", 3, 1))
    where = (DEPLOYMENTS, cluster.namespace, "llm")
    tried = await client.merge_patch(*where, {"spec": {"replicas": 0}}, field_manager="fallow", dry_run=True)
    assert tried["spec"]["replicas"] == 0
    assert (await client.read_scale(*where))["spec"]["replicas"] == 3
    await client.merge_patch(*where, {"spec": {"replicas": 2}}, field_manager="fallow", subresource="scale")
    test = {"op": "test", "path": "/metadata/uid", "value": made["metadata"]["uid"]}
    add = {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}
    changed = await client.json_patch(*where, [test, add], field_manager="fallow")
    assert (changed["spec"]["replicas"], changed["metadata"]["annotations"]["a"]) == (2, "b")


async def test_refusals_of_the_real_server(cluster: clusters.Cluster, client: api.Api) -> None:
    made = await cluster.apply(clusters.replicated("apps/v1", "Deployment", "llm", 0, 1))
    where = (DEPLOYMENTS, cluster.namespace, "llm")

    async def patch(body: dict[str, Any]) -> None:
        await client.merge_patch(*where, body, field_manager="fallow")

    with pytest.raises(errors.Invalid, match="unknown field"):
        await patch({"spec": {"suspend": True}})
    with pytest.raises(errors.Conflict):  # another uid: the object was made anew meanwhile
        await patch({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})
    await patch({"metadata": {"labels": {"touched": "yes"}}})
    with pytest.raises(errors.Conflict):
        await patch({"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"replicas": 1}})
    with pytest.raises(errors.Invalid) as caught:
        await patch({"spec": {"replicas": -1}})
    assert [field for field, _ in caught.value.causes] == ["spec.replicas"]
    with pytest.raises(errors.NotFound):
        await client.get(DEPLOYMENTS, cluster.namespace, "nobody")


async def test_events(cluster: clusters.Cluster, client: api.Api) -> None:
    await cluster.gpu_node("gpu-1")
    await cluster.deployment("llm", replicas=1)
    (pod,) = await cluster.pods("app=llm")
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": cluster.namespace, "name": name, "uid": uid}
    event = {
        "metadata": {"name": "fallow-1"}, "eventTime": "2026-05-04T12:00:00.123456Z", "type": "Normal",
        "reason": "Looked", "action": "look", "reportingController": "fallow", "reportingInstance": "test",
        "regarding": regarding, "note": "hello",
    }
    assert (await client.create(api.EVENTS, cluster.namespace, event))["reason"] == "Looked"
