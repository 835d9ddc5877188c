"""What an API server answers, on the pretend one and on the real one: every row and every test runs unchanged on both.

First the rows of api_rows.py, single requests on a small scene, each with the code, the reason and the fields that
matter; then what takes several requests, our own client, and kubectl. Where the two servers differ, the pretend one is
wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from fallow import names
from fallow.act.workloads import bodies
from fallow.clients import errors
from fallow.clients.kubernetes import api, discovery, follow, lease
from fallow.model import pointers
from tests.functional import conftest
from tests.functional.api_rows import (
    DEPLOYS,
    EVENTS,
    LEASES,
    MAPS,
    NOBODY,
    OLD_EVENTS,
    PODS,
    ROWS,
    SCALES,
    Row,
    deployment,
    event,
    named,
    pod,
    scalable,
)
from tests.functional.conftest import ApiServer, Object
from tests.real import build
from tests.real import conftest as real

CONFIG_MAPS = api.Resource("", "v1", "configmaps", "ConfigMap", True)
DEPLOYMENTS = api.Resource("apps", "v1", "deployments", "Deployment", True, scalable=True)


@pytest_asyncio.fixture
async def scene(api_server: ApiServer) -> ApiServer:
    """A Deployment `d`, a Scalable `s`, a ConfigMap `c`, a Lease `l`."""
    await api_server.define("Scalable")
    await api_server.make(DEPLOYS, deployment("d"))
    await api_server.make(SCALES, scalable("s", size=3))
    await api_server.make(MAPS, named("c", data={"k": "v"}))
    await api_server.make(LEASES, named("l", spec={"holderIdentity": "a"}))
    return api_server


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
async def test_one_request(scene: ApiServer, row: Row) -> None:
    answer = await scene.ask(row.method, row.path, row.body, row.how, row.accept, **row.query)
    assert answer.code == row.code, answer.body
    if row.reason is not None:
        assert answer.body["reason"] == row.reason
    assert {
        pointer: pointers.read({"": answer.body}, "/" + pointer) for pointer in row.fields
    } == row.fields, answer.body
    assert row.says in (
        answer.body if isinstance(answer.body, str) else answer.body.get("message", "") if row.says else ""
    ), answer.body
    assert [row.warns in warning for warning in answer.warnings] == ([True] if row.warns else [])


@pytest.mark.parametrize("row", [row for row in ROWS if row.query.get("dryRun")], ids=lambda row: row.id)
async def test_a_dry_run_leaves_nothing_behind(scene: ApiServer, row: Row) -> None:
    before = (await scene.ask("GET", MAPS)).body["items"], (await scene.ask("GET", SCALES)).body["items"]
    await scene.ask(row.method, row.path, row.body, row.how, **row.query)
    assert ((await scene.ask("GET", MAPS)).body["items"], (await scene.ask("GET", SCALES)).body["items"]) == before


# ---- objects over time -----------------------------------------------------------------------------------------------


async def test_a_patch_that_changes_nothing_makes_no_version(scene: ApiServer) -> None:
    first = await scene.ask("PATCH", f"{MAPS}/c", {"metadata": {"labels": {"x": "y"}}}, "merge", fieldManager="al")
    again = await scene.ask("PATCH", f"{MAPS}/c", {"metadata": {"labels": {"x": "y"}}}, "merge", fieldManager="bob")
    assert again.body == first.body
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}
    first = await scene.ask("PATCH", f"{MAPS}/c", applied, "apply", fieldManager="bob")
    again = await scene.ask("PATCH", f"{MAPS}/c", applied, "apply", fieldManager="bob")
    assert again.body == first.body


async def test_finalizers_hold_an_object_until_they_are_gone(scene: ApiServer) -> None:
    await scene.ask("PATCH", f"{MAPS}/c", {"metadata": {"finalizers": ["example.com/wait"]}}, "merge")
    marked = await scene.ask("DELETE", f"{MAPS}/c")
    assert marked.body["kind"] == "ConfigMap"
    assert marked.body["metadata"]["deletionTimestamp"]
    assert (await scene.ask("GET", f"{MAPS}/c")).code == 200
    await scene.ask("PATCH", f"{MAPS}/c", {"metadata": {"finalizers": None}}, "merge")
    assert (await scene.ask("GET", f"{MAPS}/c")).code == 404


@pytest.mark.parametrize("policy", ["Background", "Orphan"])
async def test_what_an_owner_leaves_behind(scene: ApiServer, policy: str) -> None:
    owner = (await scene.ask("GET", f"{MAPS}/c")).body["metadata"]
    references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": owner["uid"]}]
    await scene.make(MAPS, {"metadata": {"name": "child", "ownerReferences": references}})
    await scene.ask("DELETE", f"{MAPS}/c", propagationPolicy=policy)
    await scene.wait_until(lambda: is_code(scene, f"{MAPS}/c", 404))
    if policy == "Orphan":
        assert (await scene.ask("GET", f"{MAPS}/child")).code == 200
    else:
        await scene.wait_until(lambda: is_code(scene, f"{MAPS}/child", 404))


async def is_code(server: ApiServer, path: str, code: int) -> bool:
    return (await server.ask("GET", path)).code == code


async def test_a_definition_can_be_taken_back(api_server: ApiServer) -> None:
    await api_server.define("Opaque")
    await api_server.make(
        "/apis/example.com/v1/namespaces/{ns}/opaques", {"apiVersion": "example.com/v1", "kind": "Opaque", **named("o")}
    )
    await api_server.ask("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/opaques.example.com")
    await api_server.wait_until(lambda: is_code(api_server, "/apis/example.com/v1/namespaces/{ns}/opaques", 404))


async def test_a_generated_name(scene: ApiServer) -> None:
    made = [await scene.make(MAPS, {"metadata": {"generateName": "gen-"}}) for _ in range(2)]
    names = {one["metadata"]["name"] for one in made}
    assert len(names) == 2
    assert all(name.startswith("gen-") and len(name) == 9 for name in names)


async def test_an_event_in_both_forms(api_server: ApiServer) -> None:
    await api_server.make(EVENTS, event("new"))
    seen = (await api_server.ask("GET", OLD_EVENTS, fieldSelector="involvedObject.name=p")).body["items"]
    assert [
        (one["message"], one["reportingComponent"], one["involvedObject"]["kind"]) for one in seen
    ] == [("hello", "fallow", "Pod")]
    involved = {"kind": "Pod", "namespace": api_server.namespace, "name": "q"}
    stamp = "2026-11-16T00:00:00Z"
    old = {"involvedObject": involved, "reason": "X", "message": "m", "type": "Warning", "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 2}
    await api_server.make(OLD_EVENTS, named("old", **old))
    shown = (await api_server.ask("GET", f"{EVENTS}/old")).body
    assert (shown["note"], shown["deprecatedCount"], shown["regarding"]["name"]) == ("m", 2, "q")


async def test_evictions_and_budgets(api_server: ApiServer) -> None:
    await api_server.make(PODS, pod("p", app="p"))
    await api_server.ask(
        "PATCH", f"{PODS}/p/status", {"status": {"phase": "Running", "conditions": [READY]}}, "strategic"
    )
    evict = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": api_server.namespace}
    }
    other = await api_server.ask(
        "POST", f"{PODS}/p/eviction", {**evict, "deleteOptions": {"preconditions": {"uid": "x"}}}
    )
    assert (other.code, other.body["reason"]) == (409, "Conflict")
    assert (await api_server.ask("POST", f"{PODS}/p/eviction", evict, dryRun="All")).code == 201
    budgets = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
    await api_server.make(budgets, named("keep", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}))
    refused = await refusal(api_server, evict)
    assert refused.body["reason"] == "TooManyRequests"
    words = "The disruption budget keep needs 1 healthy pods and has 1 currently"
    assert refused.body["details"]["causes"] == [{"reason": "DisruptionBudget", "message": words}]
    await api_server.ask("DELETE", f"{budgets}/keep")
    assert (await api_server.ask("POST", f"{PODS}/p/eviction", evict)).code == 201
    await api_server.wait_until(lambda: is_code(api_server, f"{PODS}/p", 404))


READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-16T00:00:00Z"}


async def refusal(server: ApiServer, evict: Object) -> conftest.Answer:
    """The real server refuses every eviction until its controller has counted; then with the numbers."""
    answer = await server.ask("POST", f"{PODS}/p/eviction", evict)
    while "has 1 currently" not in json.dumps(answer.body):
        assert answer.code == 429
        answer = await server.ask("POST", f"{PODS}/p/eviction", evict)
    return answer


# ---- who owns what ---------------------------------------------------------------------------------------------------


def owned(body: Object) -> dict[tuple[str, str, str], Object]:
    entries = body["metadata"].get("managedFields") or []
    return {(one["manager"], one["operation"], one.get("subresource",
        "")): one["fieldsV1"] for one in entries if "kube-" not in one["manager"]}


async def test_an_apply_takes_back_what_it_no_longer_says(scene: ApiServer) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    whole = deployment("z", 0)
    whole["spec"]["template"]["spec"]["containers"][0] |= {"env": env, "ports": [{"containerPort": 80}]}
    made = await scene.ask("PATCH", f"{DEPLOYS}/z", whole, "apply", fieldManager="bob")
    template = owned(made.body)["bob", "Apply", ""]["f:spec"]["f:template"]
    container = template["f:spec"]["f:containers"]['k:{"name":"main"}']
    assert container == {
        ".": {}, "f:image": {}, "f:name": {},
        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
        "f:env": {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}, "f:value": {}} for name in "AB"},
    }
    change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "B", "value": "3"}]}]}}}}
    await scene.ask("PATCH", f"{DEPLOYS}/z", change, "strategic", fieldManager="al")
    refused = await scene.ask("PATCH", f"{DEPLOYS}/z", whole, "apply", fieldManager="bob")
    assert [one["field"] for one in refused.body["details"]["causes"]] == [
        '.spec.template.spec.containers[name="main"].env[name="B"].value'
    ]
    whole["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "B", "value": "3"}]
    after = await scene.ask("PATCH", f"{DEPLOYS}/z", whole, "apply", fieldManager="bob")
    assert after.body["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "3"}]


async def test_what_a_put_says_nothing_about_keeps_its_owner(scene: ApiServer) -> None:
    await scene.ask("PATCH", f"{MAPS}/c", {"data": {"n": "m"}}, "merge", fieldManager="al")
    after = await scene.ask("PUT", f"{MAPS}/c", named("c", data={"n": "m", "k": "other"}), fieldManager="bob")
    assert {name[0]: fields for name, fields in owned(after.body).items()} == {
        "al": {"f:data": {"f:n": {}}}, "bob": {"f:data": {"f:k": {}}}, "suite": {"f:data": {}},
    }


@pytest.mark.parametrize("count", [2, 0])
@pytest.mark.parametrize(
    ("path", "field"), [(f"{DEPLOYS}/d", "replicas"), (f"{SCALES}/s", "size")], ids=["built-in", "custom"]
)
async def test_the_owner_of_a_scaled_count(scene: ApiServer, path: str, field: str, count: int) -> None:
    """A 0 is left out of a Scale, and so is nobody's."""
    await scene.ask("PATCH", f"{path}/scale", {"spec": {"replicas": count}}, "merge", fieldManager="al")
    after = owned((await scene.ask("GET", path)).body)
    assert after.get(("al", "Update", "scale")) == ({"f:spec": {f"f:{field}": {}}} if count else None)
    assert f"f:{field}" not in after["suite", "Update", ""]["f:spec"]


@pytest.mark.parametrize(
    ("path", "field"), [(f"{DEPLOYS}/d", "replicas"), (f"{SCALES}/s", "size")], ids=["built-in", "custom"]
)
async def test_a_field_is_let_go_after_a_resume(scene: ApiServer, path: str, field: str) -> None:
    """As the product does it: pause, resume, and release; then the user's apply is no conflict."""
    for value, manager in ((0, "fallow"), (3, "fallow-resume")):
        await scene.ask("PATCH", path, {"spec": {field: value}, "metadata": {"annotations": {"a": str(value)}}},
            "merge",
            fieldManager=manager)
    live = (await scene.ask("GET", path)).body
    applied = {"apiVersion": live["apiVersion"], "kind": live["kind"], "spec": {field: 2}}
    assert (await scene.ask("PATCH", path, applied, "apply", fieldManager="bob")).code == 409
    entries = [one for one in live["metadata"]["managedFields"] if not one["manager"].startswith("fallow")]
    operations = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    released = await scene.ask("PATCH", path, operations, "json", fieldManager="fallow")
    assert not [name for name in owned(released.body) if name[0].startswith("fallow")]
    after = await scene.ask("PATCH", path, applied, "apply", fieldManager="bob")
    assert (after.code, after.body["spec"][field]) == (200, 2)


# ---- our own client --------------------------------------------------------------------------------------------------


class Meta(msgspec.Struct, frozen=True):
    uid: str
    name: str


class Named(msgspec.Struct, frozen=True):
    metadata: Meta


@pytest_asyncio.fixture
async def client(api_server: ApiServer) -> AsyncIterator[api.Api]:
    async with api.Api(api_server.access, qps=500) as running:
        yield running


async def make_maps(client: api.Api, server: ApiServer, *names: str) -> None:
    for name in names:
        await client.create(CONFIG_MAPS, server.namespace, {"metadata": {"name": name, "labels": {"made-by": "test"}}})


async def test_the_client_finds_kinds_in_both_ways(
    api_server: ApiServer, client: api.Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api_server.define("Scalable", "JobSet")
    new = await discovery.discover(client)
    for known in (api.PODS, api.NODES, api.NAMESPACES, api.LEASES, api.EVENTS):
        seen = new.find(known.group, known.kind)
        assert seen is not None
        assert msgspec.structs.replace(seen, also=()) == known
    found = new.find("apps", "Deployment")
    assert found is not None
    assert found.scalable
    custom, plain = new.find("example.com", "Scalable"), new.find("jobset.x-k8s.io", "JobSet")
    assert (custom is not None and custom.scalable, plain is not None and plain.scalable) == (True, False)
    monkeypatch.setattr(discovery, "_ACCEPT", "application/json")
    old = await discovery.discover(client)
    assert set(old.resources) == set(new.resources)


async def test_the_client_lists_by_pages_as_of_the_first(api_server: ApiServer, client: api.Api) -> None:
    await make_maps(client, api_server, *(f"m{number}" for number in range(7)))
    pages = client.list_pages(
        CONFIG_MAPS, item=Named, namespace=api_server.namespace, label_selector="made-by in (test, x)", limit=3
    )
    sizes = []
    async for page in pages:
        sizes.append([item.metadata.name for item in page.items])
        if len(sizes) == 1:
            await client.request("DELETE", CONFIG_MAPS.path(api_server.namespace, "m4"))
            await make_maps(client, api_server, "m41")
    assert sizes == [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m6"]]


async def test_the_client_patches_and_is_refused(scene: ApiServer, client: api.Api) -> None:
    where = (DEPLOYMENTS, scene.namespace, "d")
    tried = await client.merge_patch(*where, {"spec": {"replicas": 0}}, field_manager="fallow", dry_run=True)
    assert tried["spec"]["replicas"] == 0
    assert (await client.read_scale(*where))["spec"]["replicas"] == 3
    with pytest.raises(errors.Invalid, match="unknown field"):
        await client.merge_patch(*where, {"spec": {"suspend": True}}, field_manager="fallow")
    for guard in ({"uid": NOBODY}, {"resourceVersion": "3"}):
        with pytest.raises(errors.Conflict):
            await client.merge_patch(*where, {"metadata": guard, "spec": {"replicas": 0}}, field_manager="fallow")
        with pytest.raises(errors.Conflict):
            await client.merge_patch(
                *where, {"metadata": guard, "spec": {"replicas": 0}}, field_manager="fallow", subresource="scale"
            )
    with pytest.raises(errors.NotFound):
        await client.get(DEPLOYMENTS, scene.namespace, "nobody")
    paused = await client.merge_patch(*where, {"spec": {"replicas": 0}}, field_manager=names.FIELD_MANAGER)
    assert owned(paused)[names.FIELD_MANAGER, "Update", ""] == {"f:spec": {"f:replicas": {}}}
    await scene.wait_until(lambda: release(scene, client))
    assert not [name for name in owned(await client.get(*where)) if name[0] == names.FIELD_MANAGER]


async def release(scene: ApiServer, client: api.Api) -> bool:
    """Let go of what we own; False if the controller wrote the status meanwhile: the patch names its place among the
    owners."""
    where = (DEPLOYMENTS, scene.namespace, "d")
    operations = bodies.release_operations(await client.get(*where), ["/spec/replicas"])
    with contextlib.suppress(errors.Invalid):
        await client.json_patch(*where, operations, field_manager=names.FIELD_MANAGER)
        return True
    return False


@contextlib.asynccontextmanager
async def following(client: api.Api, server: ApiServer, **more: Any) -> AsyncIterator[follow.Follower[Named, str]]:
    follower = follow.Follower(
        client, CONFIG_MAPS, item=Named, keep=lambda each: each.metadata.name, namespace=server.namespace,
        label_selector="made-by=test", retry_seconds=0.05, **more,
    )
    task = asyncio.create_task(follower.run())
    try:
        yield follower
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("metadata_only", [False, True], ids=["whole", "metadata-only"])
async def test_the_client_follows(api_server: ApiServer, client: api.Api, metadata_only: bool) -> None:
    async def has(follower: follow.Follower[Named, str], *names: str) -> bool:
        return set(follower.store.values()) == set(names)

    await make_maps(client, api_server, "a", "b")
    async with following(client, api_server, metadata_only=metadata_only) as follower:
        await api_server.wait_until(lambda: has(follower, "a", "b"))
        await make_maps(client, api_server, "c")
        await client.request("DELETE", CONFIG_MAPS.path(api_server.namespace, "a"))
        await api_server.wait_until(lambda: has(follower, "b", "c"))
        # no longer selected
        await api_server.ask("PATCH", f"{MAPS}/b", {"metadata": {"labels": {"made-by": "other"}}}, "merge")
        await api_server.wait_until(lambda: has(follower, "c"))
        await api_server.ask("PATCH", f"{MAPS}/b", {"metadata": {"labels": {"made-by": "test"}}}, "merge")
        await api_server.wait_until(lambda: has(follower, "b", "c"))
        assert (follower.problem, follower.unreadable) == (None, 0)


async def test_what_a_watch_tells(api_server: ApiServer) -> None:
    first = await api_server.make(MAPS, named("w", data={"k": "1"}))
    await api_server.ask("PATCH", f"{MAPS}/w", {"data": {"k": "2"}}, "merge")
    gone = await api_server.ask("DELETE", f"{MAPS}/w")
    assert gone.code == 200
    query = {"watch": "1", "timeoutSeconds": "1", "fieldSelector": "metadata.name=w"}
    told = (await api_server.ask("GET", MAPS, resourceVersion=first["metadata"]["resourceVersion"], **query)).body
    assert [(one["type"], one["object"]["data"]["k"]) for one in told] == [("MODIFIED", "2"), ("DELETED", "2")]
    assert int(told[1]["object"]["metadata"]["resourceVersion"]) > int(told[0]["object"]["metadata"]["resourceVersion"])


@pytest.mark.parametrize("version", ["", "0"], ids=["from-now", "from-whenever"])
async def test_a_watch_may_begin_with_what_is_there(api_server: ApiServer, version: str) -> None:
    await api_server.make(MAPS, named("w"))
    query = {"watch": "1", "timeoutSeconds": "1", "fieldSelector": "metadata.name=w", "allowWatchBookmarks": "true"}
    told = (await api_server.ask("GET", MAPS, **query, **({"resourceVersion": version} if version else {}))).body
    assert [one["type"] for one in told[:2]] == ["ADDED", "BOOKMARK"]
    assert told[0]["object"]["kind"] == "ConfigMap"
    assert told[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_two_candidates_for_one_lease(api_server: ApiServer, client: api.Api) -> None:
    def candidate(identity: str) -> lease.Leadership:
        return lease.Leadership(
            client, namespace=api_server.namespace, name="leader", identity=identity, utcnow=lambda: datetime.now(UTC),
            duration_seconds=2, renew_deadline_seconds=1.5, retry_seconds=0.1,
        )

    first, second = candidate("a"), candidate("b")
    assert await first.acquire(5.0)
    assert not await second.acquire(0.3)
    await second.annotate(lambda said: {"example.org/frozen": "yes"})
    assert await first.acquire(1.0)
    assert first.annotations == {"example.org/frozen": "yes"}
    await first.release()
    assert await second.acquire(1.0)
    stored = await client.get(api.LEASES, api_server.namespace, "leader")
    assert (stored["spec"]["holderIdentity"], stored["spec"]["leaseTransitions"]) == ("b", 1)


# ---- kubectl ---------------------------------------------------------------------------------------------------------


async def kubectl(server: ApiServer, *words: str, given: str | None = None) -> str:
    real.need("kubectl")
    where = (
        "--kubeconfig", str(server.kubeconfig), "--cache-dir", f"{server.kubeconfig}.cache", "-n", server.namespace
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(build.need("kubectl")), *where, *words, stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, problems = await asyncio.wait_for(process.communicate(given.encode() if given else None), 60)
    assert process.returncode == 0, problems.decode()
    return out.decode()


async def test_kubectl_works(api_server: ApiServer) -> None:
    manifest = json.dumps(deployment("web", 2))
    assert "deployment.apps/web created" in await kubectl(api_server, "apply", "-f", "-", given=manifest)
    assert "deployment.apps/web unchanged" in await kubectl(api_server, "apply", "-f", "-", given=manifest)
    assert "deployment.apps/web configured" in await kubectl(
        api_server, "apply", "-f", "-", given=manifest.replace("app:1", "app:2")
    )
    assert "deployment.apps/web scaled" in await kubectl(api_server, "scale", "deploy/web", "--replicas=0")
    assert "deployment.apps/web annotated" in await kubectl(api_server, "annotate", "deploy", "web", "a=b")
    assert (await kubectl(api_server, "get", "deploy")).split()[:5] == [
        "NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"
    ]
    assert await kubectl(
        api_server, "get", "deploy", "web", "-o", "jsonpath={.spec.replicas} {.metadata.annotations.a}"
    ) == "0 b"
    described = await kubectl(api_server, "describe", "deploy", "web")
    assert "example.invalid/app:2" in described
    assert "web" in await kubectl(api_server, "get", "all")
    assert "deployment.apps/web serverside-applied" in await kubectl(
        api_server, "apply", "--server-side", "--force-conflicts", "-f", "-", given=manifest
    )
    assert '"web" deleted' in await kubectl(api_server, "delete", "deploy", "web")
