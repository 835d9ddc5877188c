"""When a pod was bound, when it ended, and who went since somebody asked: to the second, over the wire."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.unit.observe.cluster import pretend
from tests.unit.observe.cluster.test_snapshot import Notes

from fallow.model import cluster, units
from fallow.model.cluster import ClaimedGpu, RegisteredGpu
from fallow.observe.cluster import departures, mirror, objects, pods, snapshot

NOW = 1_794_735_600.0
BOUND, ENDED = "2026-11-15T08:00:30Z", "2026-11-15T09:15:10Z"


def scheduled(thing: pretend.Object) -> pretend.Object:
    thing["status"]["conditions"].append({"type": "PodScheduled", "status": "True", "lastTransitionTime": BOUND})
    return thing


def ended(thing: pretend.Object, **more: Any) -> pretend.Object:
    gone = copy.deepcopy(thing)
    gone["status"]["phase"] = "Succeeded"
    gone["status"]["containerStatuses"] = [{"name": "main", "state": {"terminated": {"finishedAt": ENDED, **more}}}]
    return gone


def read(thing: pretend.Object) -> cluster.Pod:
    found = pods.PodReader().read(msgspec.json.decode(msgspec.json.encode(thing), type=pods.PodItem))
    assert found is not None
    return found


def test_a_pod_is_bound_when_a_node_was_chosen_and_ends_with_its_last_container() -> None:
    running = scheduled(pretend.pod("a"))
    assert (read(running).bound_at, read(running).ended_at) == (units.parse_instant(BOUND), None)
    over = ended(running)
    assert read(over).ended_at == units.parse_instant(ENDED)
    over["status"]["containerStatuses"].append({"name": "late", "state": {"running": {"startedAt": BOUND}}})
    assert read(over).ended_at is None
    crashed = ended(running)
    crashed["status"]["phase"] = "Running"  # it is started again
    assert read(crashed).ended_at is None
    crashed["metadata"]["deletionTimestamp"] = ENDED
    assert read(crashed).ended_at == units.parse_instant(ENDED)
    crashed["status"]["initContainerStatuses"] = [{"name": "beside", "state": {"running": {"startedAt": BOUND}}}]
    assert read(crashed).ended_at is None  # a sidecar is given its grace period after all others


def test_parts_that_hami_gives_are_read_from_limits_which_nobody_may_change() -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    thing = pretend.pod("a", spec={"containers": [{"name": "main", "resources": {"limits": limits}}]},
                        annotations={"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,30:;", "other": "x"})
    found = read(thing)
    assert found.part == {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    assert found.gpu_count == 1
    assert found.annotations == {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,30:;"}


@pytest.mark.parametrize(("said", "boards"), [
    ('[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100,"type":"x","health":true}]', (("GPU-1", 81920),)),
    ("GPU-1,10,7680,100,NVIDIA-Tesla P4,0,true:GPU-2,10,7680,100,NVIDIA-Tesla P4,0,true:",
     (("GPU-1", 7680), ("GPU-2", 7680))),
    ("[{]", ()), ('[{"id":"GPU-1"}]', ()), ("", ()), ("nonsense", ()),
])
def test_the_gpus_of_a_node_as_hami_registers_them(said: str, boards: tuple[Any, ...]) -> None:
    node = pretend.made("n", namespace=None, kind="Node", annotations={"hami.io/node-nvidia-register": said})
    found = objects.see_node(msgspec.json.decode(msgspec.json.encode(node), type=objects.NodeItem))
    assert found.boards == tuple(RegisteredGpu(*board) for board in boards)
    assert found.created_at == units.parse_instant("2026-11-15T08:00:00Z")


def test_devices_of_a_claim_and_what_of_their_memory() -> None:
    results = [
        {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0", "consumedCapacity": {"memory": "10Gi"}},
        {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-1-mig-19-4-1", "adminAccess": False},
        {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-2", "adminAccess": True},
        {"driver": "other.example", "pool": "n", "device": "nic-0"},
        {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-4-mig-1g10gb-19-4"},
        {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-3", "consumedCapacity": {"a.b/memory": "odd"}},
    ]
    claim = pretend.made("c", kind="ResourceClaim", status={"allocation": {"devices": {"results": results}}})
    found = objects.see_claim(msgspec.json.decode(msgspec.json.encode(claim), type=objects.Item))
    odd = ClaimedGpu("n", "gpu-3", is_shared=True)
    whole = (ClaimedGpu("n", "gpu-1"), ClaimedGpu("n", "gpu-4", profile="1g.10gb"), odd)
    assert found.devices == (ClaimedGpu("n", "gpu-0", 10240, is_shared=True), *whole)


@pytest.fixture
async def server() -> AsyncIterator[pretend.Server]:
    async with pretend.Server() as running:
        running.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace"))
        yield running


async def test_who_goes_is_remembered_with_his_end_and_handed_out_once(server: pretend.Server) -> None:
    thing, plain = scheduled(pretend.pod("a")), scheduled(pretend.pod("cpu", gpus=0))
    server.put("pods", thing)
    server.put("pods", plain)
    async with server.api() as api, mirror.Mirror(api, clock=lambda: NOW) as seen:
        await seen.follow(NOW)
        assert seen.contents.take_departures() == ()
        server.kinds["pods"].objects[thing["metadata"]["uid"]] = ended(thing)  # as who is deleted is told last
        server.remove("pods", thing["metadata"]["uid"])
        server.remove("pods", plain["metadata"]["uid"])
        await pretend.until(lambda: not seen.pods)
        (gone,) = seen.contents.take_departures()
        assert (gone.pod.name, gone.pod.bound_at) == ("a", units.parse_instant(BOUND))
        assert (gone.ended_at, gone.gone_at) == (units.parse_instant(ENDED), NOW)
        assert seen.contents.take_departures() == ()


async def test_of_who_ended_and_is_still_there_the_end_is_asked_for(server: pretend.Server) -> None:
    """Its last event shows it as it was before: the server filters it out because it ended."""
    things = [scheduled(pretend.pod(name)) for name in ("told", "missed", "other", "alive", "deleted")]
    for thing in things[:2]:
        server.put("pods", ended(thing))
    other, alive = things[2:4]
    server.put("pods", ended(scheduled(pretend.pod("other"))) | {"metadata": {**other["metadata"], "uid": "another"}})
    server.put("pods", alive)
    async with server.api() as api:
        first, *missed, last = map(read, things)
        gone = [cluster.Departure(pod, None, NOW) for pod in (first, last)]
        found = await departures.ask_ends(api, pods.PodReader(), gone, [pod.id for pod in missed])
    when = {one.pod.name: (one.ended_at, one.gone_at) for one in found}
    assert when == {"told": (units.parse_instant(ENDED), None), "missed": (units.parse_instant(ENDED), None),
                    "deleted": (None, NOW)}


async def test_who_went_is_told_again_where_the_look_was_cut_short(server: pretend.Server) -> None:
    thing = scheduled(pretend.pod("a"))
    server.put("pods", thing)
    async with server.api() as api, mirror.Mirror(api, clock=lambda: NOW) as seen:
        await seen.follow(NOW)
        server.silent.add(("get", "pods"))
        server.remove("pods", thing["metadata"]["uid"])
        await pretend.until(lambda: not seen.pods)
        looking = asyncio.create_task(snapshot.Eyes(seen, Notes(), clock=time.time).take_inventory(NOW))
        await pretend.until(lambda: server.asked("get", "pods") == 1)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert [gone.pod.name for gone in seen.contents.take_departures()] == ["a"]


async def test_who_came_and_went_between_two_looks_is_among_them(server: pretend.Server) -> None:
    async with server.api() as api, mirror.Mirror(api, clock=lambda: NOW) as seen:
        await seen.follow(NOW)
        thing = scheduled(pretend.pod("short"))
        server.put("pods", thing)
        server.remove("pods", thing["metadata"]["uid"])  # killed at once: no container tells when
        found = list[cluster.Departure]()
        await pretend.until(lambda: bool(found.extend(seen.contents.take_departures()) or found))
        assert (found[0].pod.name, found[0].ended_at, found[0].gone_at) == ("short", None, NOW)


async def test_of_one_that_is_found_missing_after_a_gap_nobody_knows_the_end(server: pretend.Server) -> None:
    thing = scheduled(pretend.pod("a"))
    server.put("pods", thing)
    async with server.api() as api, mirror.Mirror(api, clock=lambda: NOW) as seen:
        await seen.follow(NOW)
        del server.kinds["pods"].objects[thing["metadata"]["uid"]]  # while nobody watched
        server.stale = True
        server.cut_watches("pods")
        await pretend.until(lambda: server.asked("list", "pods") > 1)
        server.stale = False
        found = list[cluster.Departure]()
        await pretend.until(lambda: bool(found.extend(seen.contents.take_departures()) or found))
        assert (found[0].pod.name, found[0].ended_at, found[0].gone_at) == ("a", None, None)


async def test_who_has_no_use_for_it_remembers_nobody(server: pretend.Server) -> None:
    thing = scheduled(pretend.pod("a"))
    server.put("pods", thing)
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.follow(NOW)
        server.remove("pods", thing["metadata"]["uid"])
        await pretend.until(lambda: not seen.pods)
        assert seen.contents.take_departures() == ()
