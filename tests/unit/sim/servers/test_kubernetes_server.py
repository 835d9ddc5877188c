"""What only the pretend API server has: faults on demand, users given by hand; and its parts that need no socket.

What it shares with the real one is in tests/functional/test_api.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import trustme
import yaml

from fallow.clients import errors
from fallow.clients.kubernetes import api, config, follow
from fallow.model import units
from fallow.model.secret import Secret
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, catalogue, patches, schema, selectors, server, tables

Object = dict[str, Any]
NOON = units.parse_instant("2026-11-16T12:00:00Z")
CONFIG_MAPS = api.Resource("", "v1", "configmaps", "ConfigMap", True)
REVIEWS = api.Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)
WHOAMI = api.Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False)
TOKENS = api.Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False)


class Meta(msgspec.Struct, frozen=True):
    uid: str
    name: str


class Named(msgspec.Struct, frozen=True):
    metadata: Meta


def access_of(running: server.KubernetesServer, tmp_path: Any) -> config.Access:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(running.kubeconfig()))
    return config.load_access(kubeconfig=str(path), context=None, environment={})


@pytest_asyncio.fixture
async def pretend() -> AsyncIterator[server.KubernetesServer]:
    running = server.KubernetesServer(stores.Store(lambda: NOON), lambda: NOON)
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture
async def client(pretend: server.KubernetesServer, tmp_path: Any) -> AsyncIterator[api.Api]:
    async with api.Api(access_of(pretend, tmp_path), qps=10_000) as running:
        yield running


async def make_maps(client: api.Api, *names: str) -> None:
    for name in names:
        await client.create(CONFIG_MAPS, "default", {"metadata": {"name": name}})


async def until(holds: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


# ---- faults ----------------------------------------------------------------------------------------------------------


async def test_the_next_writes_conflict_and_change_nothing(pretend: server.KubernetesServer, client: api.Api) -> None:
    await make_maps(client, "a")
    pretend.conflicts = 1
    with pytest.raises(errors.Conflict):
        await client.merge_patch(CONFIG_MAPS, "default", "a", {"data": {"x": "y"}}, field_manager="t")
    assert "data" not in await client.get(CONFIG_MAPS, "default", "a")
    await client.merge_patch(CONFIG_MAPS, "default", "a", {"data": {"x": "y"}}, field_manager="t")


async def test_a_list_that_is_overtaken_begins_anew(pretend: server.KubernetesServer, client: api.Api) -> None:
    await make_maps(client, "a", "b", "c")
    pages = []
    async for page in client.list_pages(CONFIG_MAPS, item=Named, limit=2):
        pages.append(([item.metadata.name for item in page.items], page.restarted))
        if len(pages) == 1:
            await make_maps(client, "d")
            pretend.expire()
    assert pages == [(["a", "b"], False), (["a", "b"], True), (["c", "d"], False)]


async def test_objects_without_a_namespace_come_page_by_page_too(client: api.Api) -> None:
    pages = [page async for page in client.list_pages(api.NAMESPACES, item=Named, limit=3)]
    found = [item.metadata.name for page in pages for item in page.items]
    assert found == ["default", "kube-node-lease", "kube-public", "kube-system"]


async def test_an_old_page_is_gone_when_many_lists_followed(pretend: server.KubernetesServer, client: api.Api) -> None:
    await make_maps(client, "a", "b")

    class Listed(msgspec.Struct):
        metadata: dict[str, Any]

    path = CONFIG_MAPS.path("default")
    first = msgspec.json.decode(await client.request("GET", path, params={"limit": "1"}), type=Listed)
    for number in range(70):
        await make_maps(client, f"n{number}")
        await client.request("GET", path, params={"limit": "1"})
    with pytest.raises(errors.Gone):
        await client.request("GET", path, params={"limit": "1", "continue": first.metadata["continue"]})


async def test_followers_survive_a_server_that_goes_down_and_forgets(
    pretend: server.KubernetesServer, client: api.Api
) -> None:
    await make_maps(client, "a", "b")
    follower = follow.Follower(
        client, CONFIG_MAPS, item=Named, keep=lambda each: each.metadata.name, retry_seconds=0.02
    )
    task = asyncio.create_task(follower.run())
    await until(lambda: set(follower.store.values()) == {"a", "b"})
    pretend.go_down()
    await until(lambda: isinstance(follower.problem, errors.Unreachable))
    pretend.expire()
    pretend.come_up()
    await client.request("DELETE", CONFIG_MAPS.path("default", "a"))
    await until(lambda: set(follower.store.values()) == {"b"} and follower.problem is None)
    task.cancel()


async def test_a_slow_server_is_slow(pretend: server.KubernetesServer, tmp_path: Any) -> None:
    pretend.slow = 0.3
    async with api.Api(access_of(pretend, tmp_path), timeout=0.05) as hurried:
        with pytest.raises(errors.Unreachable, match="no answer"):
            await hurried.get(api.NAMESPACES, None, "default")
    pretend.slow = 0.0


async def test_hundreds_watch_and_stopping_waits_for_none(pretend: server.KubernetesServer, tmp_path: Any) -> None:
    async with api.Api(access_of(pretend, tmp_path), qps=100_000, in_flight=400) as client:
        keep = [
            follow.Follower(client, CONFIG_MAPS, item=Named, keep=lambda each: each.metadata.name) for _ in range(200)
        ]
        tasks = [asyncio.create_task(follower.run()) for follower in keep]
        await until(lambda: all(follower.synced for follower in keep))
        await make_maps(client, "a")
        await until(lambda: all(list(follower.store.values()) == ["a"] for follower in keep), 30.0)
        began = time.monotonic()
        await pretend.stop()
        assert time.monotonic() - began < 5.0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- users -----------------------------------------------------------------------------------------------------------


async def test_tokens_rules_and_reviews(tmp_path: Any) -> None:
    own = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]}
    rules = {"ada": [own, {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]}
    running = server.KubernetesServer(
        stores.Store(lambda: NOON), lambda: NOON, tokens={"secret": calls.ApiUser("ada", ("team:ml",))}, rules=rules
    )
    await running.start()
    access = access_of(running, tmp_path)
    async with api.Api(access) as ada:
        await make_maps(ada, "a")
        with pytest.raises(errors.Forbidden, match='User "ada" cannot delete resource "configmaps" in API group ""'):
            await ada.request("DELETE", CONFIG_MAPS.path("default", "a"))
        assert (await ada.create(TOKENS, None, {"spec": {"token": "secret"}}))["status"]["user"]["username"] == "ada"
        assert (await ada.create(WHOAMI, None, {}))["status"]["userInfo"] == {"username": "ada", "groups": ["team:ml"]}
        for verb, allowed in (("get", True), ("delete", False)):
            asked = {"spec": {"resourceAttributes": {"verb": verb, "resource": "configmaps"}}}
            assert (await ada.create(REVIEWS, None, asked))["status"]["allowed"] is allowed
    async with api.Api(msgspec.structs.replace(access, token=Secret("other"))) as stranger:
        with pytest.raises(errors.Unauthorized):
            await stranger.get(CONFIG_MAPS, "default", "a")
    await running.stop()


async def test_over_tls(tmp_path: Any) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    running = server.KubernetesServer(stores.Store(lambda: NOON), lambda: NOON)
    url = await running.start(tls=context, authority=authority.cert_pem.bytes())
    assert url.startswith("https://")
    async with api.Api(access_of(running, tmp_path)) as client:
        assert (await client.get(api.NAMESPACES, None, "default"))["status"]["phase"] == "Active"
    await running.stop()


async def test_what_it_cannot_read_is_said(client: api.Api) -> None:
    body = b"k8s\x00\x9e"
    with pytest.raises(errors.Rejected, match="accepted media types include: application/json") as caught:
        await client.request(
            "POST", CONFIG_MAPS.path("default"), body=body, content_type="application/vnd.kubernetes.protobuf"
        )
    assert caught.value.status == 415


WORDS = [
    "metadata", "name", "spec", "status", "labels", "replicas", "template", "containers", "selector", "conditions",
    "finalizers",
    "ownerReferences", "uid", "managedFields",
]


def anything(chance: random.Random, depth: int = 0) -> Any:
    if depth > 3 or chance.random() < 0.3:
        return chance.choice([None, 1, -1, "x", True, [], {}, 1.5])
    if chance.random() < 0.2:
        return [anything(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    return {chance.choice(WORDS): anything(chance, depth + 1) for _ in range(chance.randint(0, 4))}


@pytest.mark.parametrize("how", ["merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml", "json"])
async def test_nonsense_is_refused_and_changes_nothing(how: str) -> None:
    store = stores.Store(lambda: NOON)
    running = server.KubernetesServer(store, lambda: NOON)
    url = f"{await running.start()}/apis/apps/v1/namespaces/default/deployments"
    metadata = {"name": "d", "namespace": "default"}
    store.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}})
    chance = random.Random(how)
    async with aiohttp.ClientSession(headers={"Content-Type": f"application/{how}"}) as http:
        for _ in range(150):
            before, body = store.version, json.dumps(anything(chance))
            method, at = ("POST", url) if how == "json" else ("PATCH", f"{url}/d?fieldManager=t")
            async with http.request(method, at, data=body) as answer:
                assert answer.status < 500, (body, await answer.text())
                assert answer.status < 400 or store.version == before, body
                assert (await answer.json())["kind"] in ("Status", "Deployment")
    await running.stop()


async def test_a_namespace_is_furnished_and_goes_with_all_that_is_in_it(
    pretend: server.KubernetesServer, client: api.Api
) -> None:
    accounts = api.Resource("", "v1", "serviceaccounts", "ServiceAccount", True)
    await client.create(api.NAMESPACES, None, {"metadata": {"name": "ml"}})
    assert await client.get(accounts, "ml", "default")
    await client.request("DELETE", api.NAMESPACES.path(None, "ml"))
    with pytest.raises(errors.NotFound):
        await client.get(accounts, "ml", "default")


# ---- the parts -------------------------------------------------------------------------------------------------------

POD = next(kind for kind in catalogue.BUILT_IN if kind.kind == "Pod")
LABELLED: Object = {"metadata": {"name": "p", "labels": {"app": "llm", "tier": "gold"}}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("labels", "fields", "chosen"),
    [
        ("app=llm", "", True), ("app==llm,tier!=gold", "", False), ("app in (llm, web),tier", "", True),
        ("app notin (llm)", "", False),
        ("!app", "", False), ("!other,app", "", True), ("other!=x", "", True), ("other=x", "", False),
        ("", "status.phase=Running", True), ("", "status.phase!=Running", False), ("", "spec.nodeName=", True),
        ("app=llm", "metadata.name=q", False),
    ],
)
def test_selectors(labels: str, fields: str, chosen: bool) -> None:
    test = selectors.read(POD, labels, fields)
    assert test is not None
    assert test(LABELLED) is chosen


@pytest.mark.parametrize(
    ("selector", "chosen", "text"),
    [
        (None, False, ""), ({}, True, ""), ({"matchLabels": {"app": "llm"}}, True, "app=llm"),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, False, "app notin (llm)"),
        ({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True, "!x"),
    ],
    ids=["none", "empty", "labels", "not-in", "absent"],
)
def test_selector_objects(selector: Object | None, chosen: bool, text: str) -> None:
    assert (selectors.matches(selector, LABELLED["metadata"]["labels"]), selectors.write(selector)) == (chosen, text)


CONTAINERS = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}


@pytest.mark.parametrize(
    ("patch", "outcome"),
    [
        ({"spec": {"containers": [{"name": "b", "image": "2"}]}}, [("a", "1"), ("b", "2")]),
        ({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}, [("b", "1")]),
        ({"spec": {"containers": [{"$patch": "replace"}, {"name": "z", "image": "9"}]}}, [("z", "9")]),
        (
            {"spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "a", "image": "3"}],
            }},
            [("b", "1"), ("a", "3")],
        ),
        ({"spec": {"$retainKeys": ["containers"], "containers": None}}, []),
    ],
    ids=["merge", "delete", "replace", "order", "null"],
)
def test_strategic_patches(patch: Object, outcome: list[tuple[str, str]]) -> None:
    merged = patches.strategic(CONTAINERS, patch)
    assert [(one["name"], one["image"]) for one in merged["spec"].get("containers", [])] == outcome


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        ({"op": "add", "path": "/list/-", "value": 3}, {"a": 1, "list": [1, 2, 3]}),
        ({"op": "add", "path": "/list/0", "value": 0}, {"a": 1, "list": [0, 1, 2]}),
        ({"op": "remove", "path": "/a"}, {"list": [1, 2]}),
        ({"op": "move", "from": "/a", "path": "/b"}, {"b": 1, "list": [1, 2]}),
        ({"op": "copy", "from": "/list/1", "path": "/a"}, {"a": 2, "list": [1, 2]}),
        ({"op": "test", "path": "/a", "value": 1}, {"a": 1, "list": [1, 2]}),
        ({"op": "test", "path": "/a", "value": 2}, None), ({"op": "remove", "path": "/z"}, None), ({"op": "add",
            "path": "/a/b",
            "value": 1}, None),
        ({"op": "replace", "path": "/z", "value": 1}, None), ({"path": "/z"}, None),
        ({"op": "add", "path": "a", "value": 1}, None),
    ],
)
def test_json_patches(operation: Object, outcome: Object | None) -> None:
    before = {"a": 1, "list": [1, 2]}
    if outcome is None:
        with pytest.raises(patches.Unfit):
            patches.json_patch(before, [operation])
    else:
        assert patches.json_patch(before, [operation]) == outcome
    assert before == {"a": 1, "list": [1, 2]}


SCHEMA: Object = {
    "type": "object", "required": ["mode"],
    "properties": {
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"}, "size": {"type": "integer", "minimum": 0},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}, "tags": {"type": "object",
            "additionalProperties": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": True}, "items": {"type": "array", "items": {"type": "object",
            "properties": {"x": {"type": "boolean"}}}},
    },
}


@pytest.mark.parametrize(
    ("value", "pruned", "unknown", "faults"),
    [
        ({}, {"mode": "a"}, [], []),
        ({"mode": "b", "bogus": 1}, {"mode": "b"}, ["bogus"], []),
        ({"mode": "z"}, {"mode": "z"}, [], ["mode"]),
        ({"mode": "a", "size": -1}, {"mode": "a", "size": -1}, [], ["size"]),
        ({"mode": "a", "size": True}, {"mode": "a", "size": True}, [], ["size"]),
        ({"mode": "a", "open": {"any": 1}, "tags": {"t": "u"}, "port": "http"}, {"mode": "a", "open": {"any": 1},
            "tags": {"t": "u"},
            "port": "http"}, [], []),
        ({"mode": "a", "items": [{"x": True}, {"y": 1, "x": 2}]}, {"mode": "a", "items": [{"x": True}, {"x": 2}]},
            ["items[1].y"],
            ["items[1].x"]),
    ],
    ids=["default", "unknown", "enum", "minimum", "type", "open", "items"],
)
def test_schemas(value: Object, pruned: Object, unknown: list[str], faults: list[str]) -> None:
    found: list[str] = []
    assert schema.prune(value, SCHEMA, found, root=False) == pruned
    assert (found, [fault[0] for fault in schema.check(pruned, SCHEMA)]) == (unknown, faults)


def test_the_columns_of_a_definition() -> None:
    columns = (
        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 1},
    )
    kind = catalogue.ServedKind(group="example.com", version="v1", plural="things", kind="Thing",
        home=("example.com", "Thing"), schema={},
        columns=columns)
    obj = {
        "metadata": {"name": "t", "creationTimestamp": "2026-11-16T11:00:00Z"}, "spec": {"mode": "a"},
        "status": {"conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]},
    }
    table = tables.write(kind, [stores.Entry(stores.Key("example.com", "Thing", "", "t"), obj, 1)], NOON, {})
    assert [
        (one["name"], one["priority"]) for one in table["columnDefinitions"]
    ] == [("Name", 0), ("Mode", 0), ("Ready", 0), ("Since", 1)]
    assert table["rows"][0]["cells"] == ["t", "a", "True", "1h"]
