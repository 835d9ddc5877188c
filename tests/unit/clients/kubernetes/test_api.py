"""Requests: how they look on the wire, how refusals read, what is tried again and what must not be."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.clients.kubernetes import wire

from fallow.clients import errors
from fallow.clients.kubernetes import api
from fallow.model.secret import Secret

DEPLOYMENTS = api.Resource("apps", "v1", "deployments", "Deployment", True, scalable=True)
NODE = "/api/v1/nodes/n"
LLM = "/apis/apps/v1/namespaces/ml/deployments/llm"


# Addresses


@pytest.mark.parametrize(
    ("resource", "where", "expected"),
    [
        (api.PODS, (), "/api/v1/pods"),
        (api.PODS, ("ml",), "/api/v1/namespaces/ml/pods"),
        (api.PODS, ("ml", "p", "eviction"), "/api/v1/namespaces/ml/pods/p/eviction"),
        (api.NODES, ("ignored", "n"), "/api/v1/nodes/n"),
        (api.NAMESPACES, (None, "ml"), "/api/v1/namespaces/ml"),
        (DEPLOYMENTS, ("ml", "llm", "scale"), LLM + "/scale"),
        (DEPLOYMENTS, ("a/b", "c?d#e%f"), "/apis/apps/v1/namespaces/a%2Fb/deployments/c%3Fd%23e%25f"),
        (api.EVENTS, ("ml",), "/apis/events.k8s.io/v1/namespaces/ml/events"),
        (api.LEASES, ("ml", "l"), "/apis/coordination.k8s.io/v1/namespaces/ml/leases/l"),
    ],
)
def test_paths(resource: api.Resource, where: tuple[Any, ...], expected: str) -> None:
    assert resource.path(*where) == expected


@pytest.mark.parametrize("where", [("", "x"), ("ml", ""), ("ml", ".."), (".", "x"), (None, "x")])
def test_a_name_that_would_address_something_else_is_refused(where: tuple[Any, ...]) -> None:
    with pytest.raises(errors.Invalid):
        DEPLOYMENTS.path(*where)


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_name_leaves_its_place_in_the_path(namespace: str, name: str) -> None:
    try:
        path = DEPLOYMENTS.path(namespace, name)
    except (errors.Invalid, UnicodeEncodeError):
        return
    parts = path.split("/")
    assert (len(parts), parts[5], parts[1]) == (8, parts[5], "apis")
    assert not set(path) & set("?#\\ \n")


def test_api_versions() -> None:
    assert (api.PODS.api_version, DEPLOYMENTS.api_version) == ("v1", "apps/v1")


async def test_quoted_names_arrive_as_they_were_sent(server: wire.Server, client: api.Api) -> None:
    path = DEPLOYMENTS.path("ml", "a/b%c")
    server.on("GET", path, wire.give({"found": True}))
    assert await client.get(DEPLOYMENTS, "ml", "a/b%c") == {"found": True}


async def test_a_path_in_the_servers_address_is_kept(server: wire.Server) -> None:
    server.on("GET", f"/k8s/clusters/c-1{NODE}", wire.give({"found": True}))
    async with api.Api(msgspec.structs.replace(server.access, server=f"{server.url}/k8s/clusters/c-1")) as client:
        assert await client.get(api.NODES, None, "n") == {"found": True}


# Headers and bodies


async def test_headers(server: wire.Server) -> None:
    access = msgspec.structs.replace(
        server.access,
        token=Secret("abc"),
        impersonation=(("Impersonate-User", "ada"), ("Impersonate-Group", "ml"), ("Impersonate-Group", "ops")),
    )
    server.on("GET", NODE, wire.give({}, headers={"Set-Cookie": "a=b"}))
    async with api.Api(access) as client:
        await client.get(api.NODES, None, "n")
        await client.get(api.NODES, None, "n")
    headers = server.seen[1].headers
    assert headers["Authorization"] == "Bearer abc"
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("fallow/")
    assert headers.getall("Impersonate-Group") == ["ml", "ops"]
    assert headers["Impersonate-User"] == "ada"
    assert "Cookie" not in headers
    assert "Content-Type" not in headers


WRITES: dict[str, tuple[Any, tuple[str, str, dict[str, str], str, Any]]] = {
    "create": (
        lambda c: c.create(DEPLOYMENTS, "ml", {"a": 1}),
        ("POST", "/apis/apps/v1/namespaces/ml/deployments", {}, "application/json", {"a": 1}),
    ),
    "replace": (
        lambda c: c.replace(DEPLOYMENTS, "ml", "llm", {"a": 1}),
        ("PUT", LLM, {}, "application/json", {"a": 1}),
    ),
    "merge": (
        lambda c: c.merge_patch(DEPLOYMENTS, "ml", "llm", {"a": None}, field_manager="fallow"),
        (
            "PATCH",
            LLM,
            {"fieldManager": "fallow", "fieldValidation": "Strict"},
            "application/merge-patch+json",
            {"a": None},
        ),
    ),
    "merge-scale-dry": (
        lambda c: c.merge_patch(DEPLOYMENTS, "ml", "llm", {}, field_manager="f", dry_run=True, subresource="scale"),
        (
            "PATCH",
            LLM + "/scale",
            {"fieldManager": "f", "fieldValidation": "Strict", "dryRun": "All"},
            "application/merge-patch+json",
            {},
        ),
    ),
    "json": (
        lambda c: c.json_patch(DEPLOYMENTS, "ml", "llm", [{"op": "test"}], field_manager="f"),
        ("PATCH", LLM, {"fieldManager": "f"}, "application/json-patch+json", [{"op": "test"}]),
    ),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_writes_on_the_wire(server: wire.Server, client: api.Api, verb: str) -> None:
    send, (method, path, params, content_type, body) = WRITES[verb]
    server.on(method, path, wire.give({"kind": "Answer"}, code=201))
    assert await send(client) in ({"kind": "Answer"}, None)
    (seen,) = server.seen
    assert (seen.query, seen.headers["Content-Type"], seen.json) == (params, content_type, body)


async def test_reads(server: wire.Server, client: api.Api) -> None:
    class Slim(msgspec.Struct):
        kind: str

    server.on("GET", NODE, wire.give({"kind": "Node", "spec": {}}))
    server.on("GET", LLM + "/scale", wire.give({"kind": "Scale", "spec": {"replicas": 3}}))
    assert await client.get(api.NODES, None, "n", kind=Slim) == Slim("Node")
    assert (await client.read_scale(DEPLOYMENTS, "ml", "llm"))["spec"] == {"replicas": 3}
    assert client.requests_sent == 2


# Refusals


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.Invalid),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Gone),
        (422, errors.Invalid),
        (418, errors.Rejected),
        (302, errors.Rejected),
    ],
)
async def test_refusals_keep_the_servers_words(
    server: wire.Server, client: api.Api, code: int, kind: type[errors.Rejected]
) -> None:
    causes = [
        {"field": "spec.replicas", "message": "must be >= 0"},
        {"reason": "FieldManagerConflict", "message": 'conflict with "kubectl"'},
    ]
    server.on("GET", NODE, wire.status(code, "Because", "no, and this is why", causes))
    with pytest.raises(kind) as caught:
        await client.get(api.NODES, None, "n")
    problem = caught.value
    assert (type(problem), str(problem), problem.status) == (kind, "no, and this is why", code)
    assert problem.causes == (("spec.replicas", "must be >= 0"), ("FieldManagerConflict", 'conflict with "kubectl"'))
    assert len(server.seen) == 1


@pytest.mark.accepts("idle", 36)
async def test_a_refusal_that_comes_in_two_parts_is_read_to_its_end(server: wire.Server, client: api.Api) -> None:
    body = msgspec.json.encode(
        {"kind": "Status", "message": "no such thing", "details": {"causes": [{"field": "patch", "message": "x"}]}}
    )

    async def in_two_parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=422)
        await response.prepare(request)
        await response.write(body[:20])
        await asyncio.sleep(0.05)  # so that the first part is there before the second
        await response.write(body[20:])
        return response

    server.on("GET", "/api/v1/namespaces/ml/pods/a", in_two_parts)
    with pytest.raises(errors.Invalid, match="no such thing") as caught:
        await client.get(api.PODS, "ml", "a")
    assert caught.value.causes == (("patch", "x"),)


async def test_another_uid_is_a_conflict(server: wire.Server, client: api.Api) -> None:
    causes = [{"field": "metadata.uid", "message": "Precondition failed"}]
    server.on("PATCH", LLM, wire.status(422, "Invalid", "UID in precondition", causes))
    with pytest.raises(errors.Conflict):
        await client.merge_patch(DEPLOYMENTS, "ml", "llm", {}, field_manager="f")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "body", [b"<html>login</html>", b"", b'{"kind": "Other"}', b"\xff\xfe"], ids=["html", "empty", "other", "binary"]
)
async def test_a_refusal_that_is_not_kubernetes(server: wire.Server, client: api.Api, body: bytes) -> None:
    server.on("GET", NODE, wire.give(body, code=403))
    with pytest.raises(errors.Forbidden, match=r"^GET /api/v1/nodes/n was answered with HTTP 403 and no explanation$"):
        await client.get(api.NODES, None, "n")


@pytest.mark.parametrize("body", [b"<html>", b"", b"[1]", b"\xff\xfe"], ids=["html", "empty", "list", "binary"])
async def test_a_good_answer_that_cannot_be_read(server: wire.Server, client: api.Api, body: bytes) -> None:
    server.on("GET", NODE, wire.give(body))
    with pytest.raises(errors.BadAnswer, match="cannot be read"):
        await client.get(api.NODES, None, "n")


# What is tried again


async def test_a_read_is_tried_three_times(server: wire.Server, client: api.Api) -> None:
    server.on("GET", NODE, wire.status(503, "Unavailable"), wire.drop, wire.give({"kind": "Node"}))
    assert await client.get(api.NODES, None, "n") == {"kind": "Node"}
    assert client.requests_sent == len(server.seen) == 3


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (wire.status(500, "InternalError"), errors.ServerFault),
        (wire.drop, errors.Unreachable),
        (wire.status(429, "Busy"), errors.Throttled),
    ],
    ids=["500", "drop", "429"],
)
async def test_a_read_is_tried_no_more_than_three_times(
    server: wire.Server, client: api.Api, answer: wire.Answer, kind: type[errors.ClientError]
) -> None:
    server.on("GET", NODE, answer)
    with pytest.raises(kind):
        await client.get(api.NODES, None, "n")
    assert client.requests_sent == len(server.seen) == 3


@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize(
    "answer", [wire.drop, wire.status(500, "InternalError"), wire.status(504, "Timeout")], ids=["drop", "500", "504"]
)
async def test_a_write_that_may_have_been_done_is_sent_exactly_once(
    server: wire.Server, client: api.Api, verb: str, answer: wire.Answer
) -> None:
    send, (method, path, *_) = WRITES[verb]
    server.on(method, path, answer)
    with pytest.raises((errors.Unreachable, errors.ServerFault)):
        await send(client)
    assert client.requests_sent == len(server.seen) == 1


@pytest.mark.parametrize("verb", ["merge", "replace"])
async def test_nor_when_it_goes_out_on_a_connection_used_before(
    server: wire.Server, client: api.Api, verb: str
) -> None:
    send, (method, path, *_) = WRITES[verb]
    server.on(method, path, wire.give({"kind": "Answer"}), wire.drop)
    await send(client)
    with pytest.raises(errors.Unreachable):
        await send(client)
    assert len(server.seen) == 2


@pytest.mark.accepts("idle", 22)
async def test_a_conflict_is_not_retried_blindly(server: wire.Server, client: api.Api) -> None:
    server.on("PATCH", LLM, wire.status(409, "Conflict"))
    with pytest.raises(errors.Conflict):
        await client.merge_patch(DEPLOYMENTS, "ml", "llm", {}, field_manager="f")
    assert len(server.seen) == 1


async def test_a_write_is_sent_again_when_no_connection_came_about() -> None:
    async with wire.Server() as gone:
        access = gone.access
    async with api.Api(access) as client:
        with pytest.raises(errors.Unreachable, match="no connection"):
            await client.create(DEPLOYMENTS, "ml", {})
        assert client.requests_sent == 3


async def test_a_write_is_sent_again_on_429_after_the_time_asked_for(server: wire.Server, client: api.Api) -> None:
    server.on("PATCH", LLM, wire.status(429, "TooManyRequests", headers={"Retry-After": "1"}), wire.give({"ok": True}))
    assert await client.merge_patch(DEPLOYMENTS, "ml", "llm", {}, field_manager="f") == {"ok": True}
    first, second = (each.at for each in server.seen)
    assert second - first >= 1.0


async def test_a_wait_longer_than_we_sit_out_is_the_callers(server: wire.Server, client: api.Api) -> None:
    server.on("GET", NODE, wire.status(429, "TooManyRequests", headers={"Retry-After": "3600"}))
    with pytest.raises(errors.Throttled):
        await client.get(api.NODES, None, "n")
    assert len(server.seen) == 1


@pytest.mark.parametrize(("method", "tries"), [("GET", 3), ("PATCH", 1)])
async def test_an_answer_that_does_not_come(server: wire.Server, method: str, tries: int) -> None:
    server.on(method, NODE, wire.hang)
    async with api.Api(server.access, timeout=0.1) as client:
        with pytest.raises(errors.Unreachable, match=r"no answer in 0\.1 s"):
            await client.request(method, NODE)
    assert len(server.seen) == tries


# Limits


async def test_no_more_than_so_many_at_once(server: wire.Server) -> None:
    server.on("GET", NODE, wire.give({}, after=0.02))
    async with api.Api(server.access, qps=10_000, in_flight=3) as client:
        await asyncio.gather(*(client.get(api.NODES, None, "n") for _ in range(12)))
    assert (server.most_open, len(server.seen)) == (3, 12)


async def test_no_more_than_so_many_a_second(server: wire.Server) -> None:
    server.on("GET", NODE, wire.give({}))
    began = time.monotonic()
    async with api.Api(server.access, qps=50, in_flight=2) as client:
        await asyncio.gather(*(client.get(api.NODES, None, "n") for _ in range(22)))
    assert time.monotonic() - began >= 20 / 50


async def test_a_watch_holds_no_place_among_those_in_flight(server: wire.Server) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(3600)
        return response

    server.on("GET", "/api/v1/pods", endless)
    server.on("GET", NODE, wire.give({"kind": "Node"}))
    async with api.Api(server.access, in_flight=1) as client, client.watch(api.PODS, resource_version="1", seconds=300):
        assert await client.get(api.NODES, None, "n") == {"kind": "Node"}


# Lists


class Slim(msgspec.Struct, frozen=True):
    metadata: api.ObjectMeta
    size: int = 0


def page(names: str, *, following: str = "", version: str = "7", **more: Any) -> wire.Answer:
    items = [{"metadata": {"uid": name, "resourceVersion": "1"}} | more.get(name, {}) for name in names]
    return wire.give({"items": items, "metadata": {"resourceVersion": version, "continue": following}})


async def read_all(client: api.Api, **more: Any) -> list[tuple[str, bool]]:
    pages = client.list_pages(api.PODS, item=Slim, **more)
    return [("".join(item.metadata.uid for item in each.items), each.restarted) async for each in pages]


async def test_pages_are_followed(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api/v1/namespaces/ml/pods", page("ab", following="x/=&"), page("cd", following="y"), page(""))
    selected = {"namespace": "ml", "label_selector": "a in (b,c)", "field_selector": "spec.nodeName=n", "limit": 2}
    assert await read_all(client, **selected) == [("ab", False), ("cd", False), ("", False)]
    common = {"limit": "2", "labelSelector": "a in (b,c)", "fieldSelector": "spec.nodeName=n"}
    assert [each.query for each in server.seen] == [common, common | {"continue": "x/=&"}, common | {"continue": "y"}]


async def test_a_list_that_is_overtaken_begins_anew_and_says_so(server: wire.Server, client: api.Api) -> None:
    gone = wire.status(410, "Expired", "The provided continue parameter is too old")
    server.on("GET", "/api/v1/pods", page("ab", following="x"), gone, page("bc", following="y"), page("d"))
    assert await read_all(client) == [("ab", False), ("bc", True), ("d", False)]


async def test_who_gathers_a_list_that_begins_anew_has_everybody_once(server: wire.Server, client: api.Api) -> None:
    gone = wire.status(410, "Expired", "The provided continue parameter is too old")
    server.on("GET", "/api/v1/pods", page("ab", following="x"), gone, page("bc", following="y"), page("d"))
    assert await client.gather(api.PODS, item=Slim, keep=lambda each: each.metadata.uid) == ["b", "c", "d"]


async def test_a_list_that_is_always_overtaken_ends(server: wire.Server, client: api.Api) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        chosen = wire.status(410, "Expired") if "continue" in request.query else page("a", following="x")
        return await chosen(request)

    server.on("GET", "/api/v1/pods", answer)
    with pytest.raises(errors.Gone):
        await read_all(client)
    assert len(server.seen) == 8


async def test_a_list_that_goes_in_circles_ends(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api/v1/pods", page("a", following="x"))
    with pytest.raises(errors.BadAnswer, match="again and again"):
        await read_all(client)


DEEP = b"[" * 5000 + b"]" * 5000


async def test_one_object_that_is_nested_too_deep_hides_no_other(server: wire.Server, client: api.Api) -> None:
    deep = b'{"metadata":{"uid":"b","namespace":"ml","name":"evil"},"spec":{"a \\"[":' + DEEP + b"}}"
    body = b'{"items":[{"metadata":{"uid":"a"}},' + deep + b',{"metadata":{"uid":"c"}}]}'
    server.on("GET", "/api/v1/pods", wire.give(body))
    (page,) = [each async for each in client.list_pages(api.PODS, item=Slim)]
    assert [item.metadata.uid for item in page.items] == ["a", "c"]
    assert [(meta.uid, meta.namespace, meta.name) for meta in page.unreadable] == [("b", "ml", "evil")]


async def test_an_answer_that_is_nested_too_deep_is_a_bad_one(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api/v1/namespaces/ml/pods/p", wire.give(b'{"spec":' + DEEP + b"}"))
    with pytest.raises(errors.BadAnswer):
        await client.get(api.PODS, "ml", "p")


async def test_one_object_that_does_not_fit_hides_no_other(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api/v1/pods", page("abc", b={"size": "huge"}, c={"size": 3}, following="x"), page("d"))
    pages = [each async for each in client.list_pages(api.PODS, item=Slim)]
    assert [[item.metadata.uid for item in each.items] for each in pages] == [["a", "c"], ["d"]]
    assert [[meta.uid for meta in each.unreadable] for each in pages] == [["b"], []]
    assert pages[0].resource_version == "7"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"items": 7}'])
async def test_a_list_that_is_none(server: wire.Server, client: api.Api, body: bytes) -> None:
    server.on("GET", "/api/v1/pods", wire.give(body))
    with pytest.raises(errors.BadAnswer):
        await read_all(client)


async def test_null_items_are_none(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api/v1/pods", wire.give({"items": None, "metadata": {}}))
    assert await read_all(client) == [("", False)]


async def test_metadata_only_is_asked_for_by_accept(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api/v1/pods", page("a"))
    await read_all(client, metadata_only=True)
    assert (
        server.seen[0].headers["Accept"]
        == "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    )


async def test_the_api_must_be_entered(server: wire.Server) -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        await api.Api(server.access).get(api.NODES, None, "n")
