"""The local copy stays equal to the server's: through bookmarks, broken lines, cuts, compaction and odd objects."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from tests.unit.clients.kubernetes import wire
from tests.unit.clients.kubernetes.cluster import PODS, Cluster

from fallow.clients import errors, retry
from fallow.clients.kubernetes import api, follow


class Meta(msgspec.Struct, frozen=True):
    uid: str
    name: str = ""
    namespace: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: Meta
    gpus: int = 0
    noise: int = 0


def keep_gpu_pods(pod: Pod) -> tuple[str, int] | None:
    """What the tests remember of a pod; nothing of those without GPUs."""
    if pod.gpus < 0:
        raise ValueError("a pod cannot have fewer than no GPUs")
    return (pod.metadata.name, pod.gpus) if pod.gpus else None


Pods: TypeAlias = follow.Follower[Pod, tuple[str, int]]


@pytest.fixture
def cluster(server: wire.Server) -> Cluster:
    made = Cluster(server)
    made.put("a", gpus=1)
    made.put("b", gpus=2)
    made.put("plain")
    return made


def make(client: api.Api, **more: Any) -> Pods:
    waits = {"retry_seconds": 0.01, "slow_retry_seconds": 0.05}
    return follow.Follower(client, api.PODS, item=Pod, keep=keep_gpu_pods, **(waits | more))


@contextlib.asynccontextmanager
async def running(follower: Pods) -> AsyncIterator[Pods]:
    task = asyncio.create_task(follower.run())
    try:
        yield follower
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest_asyncio.fixture
async def pods(client: api.Api, cluster: Cluster) -> AsyncIterator[Pods]:
    """A follower that has listed and is watching."""
    async with running(make(client)) as follower:
        await wire.eventually(lambda: cluster.watches, "the watch")
        yield follower


def holds(follower: Pods, **expected: int) -> Callable[[], bool]:
    return lambda: follower.store == {uid: (uid, gpus) for uid, gpus in expected.items()}


async def test_one_list_fills_the_store_with_what_is_kept(client: api.Api, cluster: Cluster) -> None:
    follower = make(client)
    assert (follower.synced, follower.synced_at, follower.generation) == (False, None, 0)
    await follower.list_once()
    assert follower.store == {"a": ("a", 1), "b": ("b", 2)}
    assert (follower.synced, follower.generation, follower.problem) == (True, 1, None)
    assert follower.synced_at is not None
    await follower.list_once()
    assert follower.generation == 1  # nothing changed
    cluster.delete("a")
    await follower.list_once()
    assert (follower.generation, set(follower.store)) == (2, {"b"})


async def test_a_list_that_fails_raises_and_leaves_the_store(
    client: api.Api, cluster: Cluster, server: wire.Server
) -> None:
    follower = make(client)
    await follower.list_once()
    server.on("GET", PODS, wire.status(403, "Forbidden"))
    with pytest.raises(errors.Forbidden):
        await follower.list_once()
    assert set(follower.store) == {"a", "b"}


async def test_changes_arrive(pods: Pods, cluster: Cluster) -> None:
    cluster.put("c", gpus=3)
    cluster.put("a", gpus=4)
    cluster.delete("b")
    await wire.eventually(holds(pods, a=4, c=3))
    cluster.put("a", gpus=0)  # no longer of interest: forgotten
    await wire.eventually(holds(pods, c=3))
    assert (cluster.lists, pods.problem, pods.synced) == (1, None, True)


async def test_only_what_is_kept_counts_as_a_change(pods: Pods, cluster: Cluster) -> None:
    before = pods.generation
    pods.changed.clear()
    cluster.put("a", gpus=1, noise=7)
    cluster.put("plain", noise=1)
    cluster.put("c", gpus=1)
    await wire.eventually(lambda: "c" in pods.store)
    assert (pods.generation, pods.changed.is_set()) == (before + 1, True)


async def test_a_shared_event_wakes_for_any_follower(client: api.Api, cluster: Cluster) -> None:
    changed = asyncio.Event()
    async with running(make(client, changed=changed)) as follower:
        await asyncio.wait_for(changed.wait(), 5)
        assert follower.changed is changed


async def test_a_watch_asks_for_bookmarks_and_a_random_end(pods: Pods, cluster: Cluster, server: wire.Server) -> None:
    query = server.seen[-1].query
    assert (query["allowWatchBookmarks"], query["resourceVersion"], query["watch"]) == ("true", "3", "1")
    assert 240 <= int(query["timeoutSeconds"]) <= 480


@pytest.mark.parametrize("abruptly", [False, True], ids=["ended", "cut"])
async def test_a_watch_that_ends_goes_on_from_where_it_was(pods: Pods, cluster: Cluster, abruptly: bool) -> None:
    cluster.put("c", gpus=3)
    await wire.eventually(lambda: "c" in pods.store)
    cluster.end_watches(abruptly)
    cluster.put("d", gpus=4)
    cluster.delete("a")
    await wire.eventually(holds(pods, b=2, c=3, d=4))
    await wire.eventually(lambda: pods.problem is None)
    assert cluster.watched_from[1] == "4"
    assert cluster.lists == 1


async def test_a_bookmark_moves_the_place_on(pods: Pods, cluster: Cluster) -> None:
    cluster.bookmark()
    heard = pods.synced_at
    cluster.bookmark()
    await wire.eventually(lambda: pods.synced_at != heard)
    cluster.end_watches()
    await wire.eventually(lambda: len(cluster.watched_from) > 1)
    assert cluster.watched_from[1] in ("4", "5")
    assert (cluster.lists, pods.generation) == (1, 1)


@pytest.mark.parametrize("as_status", [False, True], ids=["error-event", "http-410"])
async def test_a_delete_missed_in_a_gap_shows_after_compaction(pods: Pods, cluster: Cluster, as_status: bool) -> None:
    cluster.expire_with_status = as_status
    cluster.delete("a")  # this is told
    cluster.end_watches(abruptly=True)
    cluster.delete("b")  # this is not
    cluster.put("c", gpus=3)
    cluster.compact()
    await wire.eventually(holds(pods, c=3))
    await wire.eventually(lambda: pods.synced and pods.problem is None and cluster.watches)
    assert cluster.lists == 2


async def test_an_error_event_of_any_code_leads_to_a_new_list(pods: Pods, cluster: Cluster) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is unwell"}}
    cluster.send(msgspec.json.encode(error) + b"\n")
    await wire.eventually(lambda: cluster.lists == 2 and pods.problem is None and cluster.watches)
    assert pods.synced


@pytest.mark.parametrize(
    "line",
    [b"{broken\n", b"[]\n", b"\xff\xfe\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {"metadata": {}}}\n'],
    ids=["json", "list", "binary", "no-object", "no-uid"],
)
async def test_a_line_that_is_no_event_leads_to_a_new_list(
    pods: Pods, cluster: Cluster, line: bytes
) -> None:
    del cluster.objects["a"]  # and nobody tells
    cluster.send(line)
    await wire.eventually(holds(pods, b=2))
    assert cluster.lists == 2
    await wire.eventually(lambda: cluster.watches and pods.problem is None)
    cluster.put("c", gpus=3)
    await wire.eventually(holds(pods, b=2, c=3))


async def test_what_went_wrong_is_said_while_it_does(pods: Pods, cluster: Cluster, server: wire.Server) -> None:
    server.on("GET", PODS, wire.status(403, "Forbidden", "pods is forbidden"))
    pods.changed.clear()
    cluster.send(b"{broken\n")
    await wire.eventually(lambda: isinstance(pods.problem, errors.Forbidden))
    assert (pods.synced, pods.changed.is_set(), set(pods.store)) == (False, True, {"a", "b"})
    server.on("GET", PODS, cluster._answer)
    await wire.eventually(lambda: pods.synced and pods.problem is None)


async def test_half_a_line_is_dropped_and_comes_again(pods: Pods, cluster: Cluster) -> None:
    cluster.send(b'{"type": "DELETED", "object": {"metadata": {"uid": "a", "resourceVersion": "99"')
    cluster.end_watches()
    await wire.eventually(lambda: len(cluster.watched_from) == 2)
    assert cluster.watched_from == ["3", "3"]
    assert holds(pods, a=1, b=2)()
    assert cluster.lists == 1


async def test_lines_may_come_in_any_pieces(pods: Pods, cluster: Cluster) -> None:
    lines = b"".join(
        msgspec.json.encode(
            {
                "type": "ADDED",
                "object": {"metadata": {"uid": f"x{n}", "name": f"x{n}", "resourceVersion": "9"}, "gpus": n},
            }
        )
        + b"\n"
        for n in range(1, 4)
    )
    for start in range(0, len(lines), 7):
        cluster.send(lines[start : start + 7])
    cluster.send(b"\n \n")
    await wire.eventually(holds(pods, a=1, b=2, x1=1, x2=2, x3=3))


async def test_an_object_that_does_not_fit_is_left_out_and_counted_until_it_fits_or_goes(
    pods: Pods, cluster: Cluster
) -> None:
    cluster.put("a", gpus="many")  # what we knew of it is no longer true
    await wire.eventually(holds(pods, b=2))
    assert (pods.unreadable, cluster.lists) == (1, 1)
    cluster.put("b", gpus=-1)  # `keep` cannot make sense of it
    await wire.eventually(holds(pods))
    assert pods.unreadable == 2
    cluster.put("a", gpus=1)
    cluster.delete("b")
    await wire.eventually(holds(pods, a=1))
    assert pods.unreadable == 0


async def test_an_object_that_is_nested_too_deep_is_left_out_and_named(pods: Pods, cluster: Cluster) -> None:
    meta = b'{"metadata":{"uid":"a","namespace":"ml","name":"evil","resourceVersion":"9"},"spec":'
    cluster.send(b'{"type":"MODIFIED","object":' + meta + b"[" * 5000 + b"]" * 5000 + b"}}\n")
    await wire.eventually(holds(pods, b=2))
    assert (pods.unreadable, pods.unreadable_names, cluster.lists, pods.problem) == (1, ("ml/evil",), 1, None)


async def test_what_nobody_foresaw_blinds_a_follower_and_is_tried_again(client: api.Api, cluster: Cluster) -> None:
    fails = [True]

    def keep(pod: Pod) -> tuple[str, int] | None:
        if fails:
            raise RuntimeError("nobody foresaw this")
        return keep_gpu_pods(pod)

    follower = follow.Follower(client, api.PODS, item=Pod, keep=keep, retry_seconds=0.01)
    async with running(follower):
        await wire.eventually(lambda: follower.problem is not None)
        assert not follower.synced
        fails.clear()
        await wire.eventually(holds(follower, a=1, b=2))


async def test_a_deleted_object_that_does_not_fit_is_gone(pods: Pods, cluster: Cluster) -> None:
    cluster.put("a", gpus="many")
    cluster.delete("a")
    await wire.eventually(holds(pods, b=2))
    await wire.eventually(lambda: pods.unreadable == 0)


async def test_objects_that_do_not_fit_hide_no_other_in_a_list(client: api.Api, cluster: Cluster) -> None:
    cluster.put("a", gpus="many")
    cluster.put("c", gpus=-1)
    follower = make(client)
    await follower.list_once()
    assert (set(follower.store), follower.unreadable, follower.synced) == ({"b"}, 2, True)


async def test_a_list_that_begins_anew_drops_what_it_had(client: api.Api, server: wire.Server) -> None:
    def page(uids: str, following: str = "") -> wire.Answer:
        items = [{"metadata": {"uid": uid, "name": uid}, "gpus": 1} for uid in uids]
        return wire.give({"items": items, "metadata": {"resourceVersion": "5", "continue": following}})

    server.on("GET", PODS, page("ab", "x"), wire.status(410, "Expired"), page("bc", "y"), page("d"))
    follower = make(client)
    await follower.list_once()
    assert set(follower.store) == {"b", "c", "d"}


@pytest.mark.parametrize("code", [401, 403, 404], ids=["unauthorized", "forbidden", "no-such-kind"])
async def test_what_only_people_can_mend_is_tried_again_slowly(client: api.Api, server: wire.Server, code: int) -> None:
    server.on("GET", PODS, wire.status(code, "No"))
    async with running(make(client, slow_retry_seconds=0.2)) as follower:
        await wire.eventually(lambda: server.count("GET") >= 3)
        gaps = [after.at - before.at for before, after in zip(server.seen, server.seen[1:], strict=False)]
        assert min(gaps) >= 0.15
        assert isinstance(follower.problem, errors.Rejected)
        assert not follower.synced
        Cluster(server).put("a", gpus=1)
        await wire.eventually(holds(follower, a=1))
        await wire.eventually(lambda: follower.problem is None)


async def test_a_server_that_is_away_is_noted_and_the_store_stays(
    client: api.Api, server: wire.Server, pods: Pods, cluster: Cluster
) -> None:
    server.on("GET", PODS, wire.drop)
    cluster.end_watches(abruptly=True)
    await wire.eventually(lambda: isinstance(pods.problem, errors.Unreachable))
    assert (pods.synced, set(pods.store)) == (True, {"a", "b"})
    server.on("GET", PODS, cluster._answer)
    cluster.delete("a")
    await wire.eventually(holds(pods, b=2))
    await wire.eventually(lambda: pods.problem is None)


async def test_a_server_that_always_says_410_is_not_hammered(client: api.Api, server: wire.Server) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await wire.status(410, "Expired")(request)
        return await wire.give({"items": [], "metadata": {"resourceVersion": "1"}})(request)

    server.on("GET", PODS, answer)
    async with running(make(client, retry_seconds=0.1)) as follower:
        await wire.eventually(
            lambda: server.count("GET") >= 8 and isinstance(follower.problem, errors.Gone)
        )  # a list that works ends it
    lists = [each.at for each in server.seen if "watch" not in each.query]
    assert lists[1] - lists[0] < 0.05  # once, at once
    assert lists[3] - lists[2] > 0.09  # then with growing patience


@pytest.mark.parametrize(
    "answer", [wire.status(403, "Forbidden"), wire.status(500, "InternalError")], ids=["forbidden", "broken"]
)
async def test_where_only_lists_work_they_are_repeated(
    client: api.Api, cluster: Cluster, server: wire.Server, answer: wire.Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PATIENCE", retry.Patience(1, 0.25))

    async def lists_only(request: web.Request) -> web.StreamResponse:
        return await (answer if "watch" in request.query else cluster._answer)(request)

    server.on("GET", PODS, lists_only)
    async with running(make(client)) as follower:
        await wire.eventually(holds(follower, a=1, b=2))
        cluster.delete("a")
        await wire.eventually(holds(follower, b=2))
        await wire.eventually(lambda: isinstance(follower.problem, errors.Rejected))


async def test_metadata_only_asks_for_it_in_list_and_watch(
    client: api.Api, cluster: Cluster, server: wire.Server
) -> None:
    async with running(make(client, metadata_only=True, label_selector="a=b")):
        await wire.eventually(lambda: cluster.watches)
    accepts = [each.headers["Accept"].split(";")[1] for each in server.seen]
    assert accepts == ["as=PartialObjectMetadataList", "as=PartialObjectMetadata"]
    assert [each.query["labelSelector"] for each in server.seen] == ["a=b", "a=b"]


# The garbage collector


async def test_the_collector_rests_while_listing_and_comes_back_when_the_last_is_done(
    client: api.Api, server: wire.Server
) -> None:
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await wire.give({"items": [], "metadata": {}})(request)

    server.on("GET", PODS, wire.give({"items": [], "metadata": {}}), slow)
    assert gc.isenabled()
    try:
        quick, late = asyncio.create_task(make(client).list_once()), asyncio.create_task(make(client).list_once())
        await quick
        assert not gc.isenabled()
        release.set()
        await late
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with follow.collector_at_rest(), pytest.raises(ZeroDivisionError), follow.collector_at_rest():
            raise ZeroDivisionError
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
