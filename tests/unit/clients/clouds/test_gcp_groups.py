"""Managed instance groups against a loopback server that keeps groups as Compute Engine documents them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.loopback import Asked, Loopback

from fallow.clients import errors, retry
from fallow.clients.clouds.gcp import credentials as google
from fallow.clients.clouds.gcp.groups import SCOPE, GoogleGroups, GoogleWire
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth, MachineState
from fallow.model.units import parse_instant

NOW = parse_instant("2026-11-17T10:00:00Z")
AT_ONCE = retry.Patience(tries=3, first_wait=0.001, longest_wait=5.0)
ZONAL, REGIONAL = "us-central1-a/gpus", "us-central1/gpus"
HOME = "https://www.googleapis.com/compute/v1/projects/p"
GROWTH = Growth(group=ZONAL, count=2, base=3, token="t")


def refusal(status: int, reason: str, message: str = "it said") -> web.Response:
    said = {"code": status, "message": message, "errors": [{"message": message, "domain": "usageLimits",
                                                            "reason": reason}]}
    return web.json_response({"error": said}, status=status)


class Compute:
    """One group, at the zone or the region; `refuses`: how what ends so is answered instead."""

    def __init__(self) -> None:
        self.manager: dict[str, Any] = {
            "kind": "compute#instanceGroupManager", "name": "gpus", "targetSize": 3,
            "zone": f"{HOME}/zones/us-central1-a", "instanceTemplate": f"{HOME}/global/instanceTemplates/t1",
            "status": {"isStable": True},
        }
        self.template: dict[str, Any] = {
            "machineType": "a2-highgpu-1g", "scheduling": {"provisioningModel": "SPOT", "preemptible": True},
        }
        self.machines = {f"gpus-{number}": ("NONE", "RUNNING") for number in range(3)}
        self.errors: list[dict[str, Any]] = []
        self.clusters: web.Response | list[dict[str, Any]] = []
        self.refuses: dict[str, web.Response] = {}
        self.done: dict[str, Any] = {}

    def answer(self, asked: Asked) -> web.Response:
        verb = asked.path.rpartition("/")[2]
        if verb == "token":
            return web.json_response({"access_token": "t0ken", "expires_in": 3599})
        assert asked.headers["Authorization"] == "Bearer t0ken"
        if verb in self.refuses:
            return loopback.again(self.refuses[verb])
        return loopback.again(getattr(self, f"on_{verb}", self.on_other)(asked))

    def on_gpus(self, asked: Asked) -> web.Response:
        where = asked.path.removeprefix("/compute/v1/projects/p/")
        assert where.removesuffix("/instanceGroupManagers/gpus") in ("zones/us-central1-a", "regions/us-central1")
        return web.json_response(self.manager)

    def on_t1(self, asked: Asked) -> web.Response:
        return web.json_response({"name": "t1", "properties": self.template})

    def on_listManagedInstances(self, asked: Asked) -> web.Response:  # noqa: N802
        assert asked.method == "POST"
        begin = int(asked.query.get("pageToken", "0"))
        listed = [
            {"instance": f"{HOME}/zones/us-central1-a/instances/{name}", "currentAction": action,
             **({"instanceStatus": status, "id": f"77{name[-1]}"} if status else {})}
            for name, (action, status) in self.machines.items()
        ]
        more = {"nextPageToken": str(begin + 2)} if begin + 2 < len(listed) else {}
        return web.json_response({"managedInstances": listed[begin:begin + 2], **more})

    def on_instances(self, asked: Asked) -> web.Response:
        assert asked.path == "/compute/v1/projects/p/zones/us-central1-a/instances"
        assert asked.query["fields"] == "items(id,creationTimestamp),nextPageToken"
        begin = int(asked.query.get("pageToken", "0"))
        items = [{"id": f"77{name[-1]}", "creationTimestamp": "2026-11-17T01:58:00.000-08:00"}
                 for name, (_, status) in self.machines.items() if status]
        more = {"nextPageToken": str(begin + 2)} if begin + 2 < len(items) else {}
        return web.json_response({"items": items[begin:begin + 2], **more} if items else {})

    def on_listErrors(self, asked: Asked) -> web.Response:  # noqa: N802
        return web.json_response({"items": self.errors})

    def on_clusters(self, asked: Asked) -> web.Response:
        return self.clusters if isinstance(self.clusters, web.Response) else web.json_response(
            {"clusters": self.clusters})

    def on_resize(self, asked: Asked) -> web.Response:
        if asked.query["requestId"] not in self.done:  # as Google does: the same is done once
            self.done[asked.query["requestId"]] = None
            self.manager["targetSize"] = int(asked.query["size"])
        return web.json_response({"kind": "compute#operation", "status": "PENDING", "operationType": "resize"})

    def on_deleteInstances(self, asked: Asked) -> web.Response:  # noqa: N802
        said = json.loads(asked.body)
        assert said["skipInstancesOnValidationError"] is True
        for each in said["instances"]:
            self.machines[each.rpartition("/")[2]] = ("DELETING", "RUNNING")
        self.manager["targetSize"] -= len(said["instances"])
        return web.json_response({"kind": "compute#operation", "status": "RUNNING"})

    def on_other(self, asked: Asked) -> web.Response:
        return refusal(404, "notFound", f"The resource '{asked.path}' was not found")


@asynccontextmanager
async def gcp(compute: Compute, **said: Any) -> AsyncIterator[tuple[GoogleGroups, Loopback]]:
    async with loopback.serve(compute.answer) as server, GoogleWire("Google", {}, patience=AT_ONCE, **said) as asking:
        signer = google.make_signer({}, SCOPE, google.GoogleAddresses(metadata=server.url))
        yield GoogleGroups(
            asking, signer, project="p", clock=lambda: NOW, url=server.url, engine=server.url), server


def verbs(server: Loopback) -> list[str]:
    return [asked.path.rpartition("/")[2] for asked in server.asked]


@pytest.mark.accepts("scaling", 9)
@pytest.mark.parametrize("group", [ZONAL, REGIONAL])
async def test_a_group_grows_once_and_loses_exactly_the_machines_that_are_named(group: str) -> None:
    compute = Compute()
    async with gcp(compute) as (cloud, server):
        [found] = await cloud.groups([group])
        assert (found.target, found.tier, found.instance_types) == (3, CapacityType.spot, ("a2-highgpu-1g",))
        assert (found.zones, found.owner, found.error) == (("us-central1-a",), "", "")
        for _ in range(2):
            await cloud.grow(Growth(group=group, count=2, base=3, token="t"))
            assert compute.manager["targetSize"] == 5
        await cloud.grow(Growth(group=group, count=1, base=1, token="old"))
        with pytest.raises(errors.Conflict, match="somebody lowered that"):
            await cloud.grow(Growth(group=group, count=1, base=9, token="u"))
        assert verbs(server).count("resize") == 1

        machines = await cloud.machines(group)
        assert [(each.id, each.provider_id) for each in machines[:1]] == [
            ("zones/us-central1-a/instances/gpus-0", "gce://p/us-central1-a/gpus-0")
        ]
        assert [each.state for each in machines] == [MachineState.running] * 3
        assert {(each.tier, each.instance_type) for each in machines} == {(CapacityType.spot, "a2-highgpu-1g")}
        going = [machines[1].id, "zones/us-central1-a/instances/gone"]
        for _ in range(2):
            await cloud.remove(group, going)
            assert compute.manager["targetSize"] == 4
        assert compute.machines["gpus-1"][0] == "DELETING"
        assert [action for action, _ in compute.machines.values()].count("DELETING") == 1
        assert verbs(server).count("deleteInstances") == 1
        assert (await cloud.notices(), await cloud.forget([])) == ((), None)


@pytest.mark.parametrize(("action", "status", "state"), [
    ("CREATING", "", ""), ("RECREATING", "", ""), ("CREATING", "STAGING", "pending"),
    ("VERIFYING", "RUNNING", "running"),
    ("RECREATING", "RUNNING", "pending"), ("DELETING", "RUNNING", "deleting"), ("ABANDONING", "", "deleting"),
    ("NONE", "STOPPING", "deleting"), ("NONE", "TERMINATED", "gone"), ("RECREATING", "TERMINATED", "pending"),
])
async def test_what_state_a_machine_is_in(action: str, status: str, state: str) -> None:
    compute = Compute()
    compute.machines = {"gpus-0": (action, status)}
    async with gcp(compute) as (cloud, _):
        assert [each.state.value for each in await cloud.machines(ZONAL)] == ([state] if state else [])


async def test_since_when_a_machine_runs_is_asked_once_and_nobodys_business_where_we_may_not() -> None:
    compute = Compute()
    async with gcp(compute) as (cloud, server):
        for _ in range(2):
            assert {each.launched_at for each in await cloud.machines(ZONAL)} == {NOW - 120}
        assert verbs(server).count("instances") == 2  # pages
        compute.machines["gpus-3"] = ("CREATING", "PROVISIONING")
        assert [each.launched_at for each in await cloud.machines(ZONAL)] == [NOW - 120] * 4
        assert verbs(server).count("instances") == 4
    compute.refuses["instances"] = refusal(403, "forbidden")
    async with gcp(compute) as (cloud, _):
        assert [each.launched_at for each in await cloud.machines(ZONAL)] == [None] * 4


POOL = {"nodePools": [{"instanceGroupUrls": [f"{HOME}/zones/us-central1-a/instanceGroupManagers/gke-c-gpus-grp"],
                       "autoscaling": {"enabled": True, "maxNodeCount": 3}}]}
OWNERS: dict[str, tuple[Any, str, str]] = {
    "an autoscaler": ([], "gpus", "Compute Engine's autoscaler"),
    "its own of GKE": ([POOL], "gke-c-gpus-grp", "Kubernetes Engine's autoscaler"),
    "GKE without": ([{"nodePools": [{**POOL["nodePools"][0], "autoscaling": {}}]}], "gke-c-gpus-grp", ""),
    "GKE that does not say": (refusal(403, "forbidden"), "gke-c-gpus-grp", "Kubernetes Engine's autoscaler, perhaps"),
}


@pytest.mark.accepts("scaling", 21)
@pytest.mark.parametrize("name", OWNERS)
async def test_a_group_that_somebody_else_resizes_has_an_owner(name: str) -> None:
    clusters, group, owner = OWNERS[name]
    compute = Compute()
    compute.clusters = clusters
    if group == "gpus":
        compute.manager["status"]["autoscaler"] = f"{HOME}/zones/us-central1-a/autoscalers/a"
    setattr(compute, f"on_{group}", lambda _: web.json_response(compute.manager))
    async with gcp(compute) as (cloud, _):
        [found] = await cloud.groups([f"us-central1-a/{group}"])
    assert found.error == ""
    assert found.owner.startswith(owner)
    assert bool(found.owner) is bool(owner)


@pytest.mark.parametrize(("template", "tier"), [
    ({"machineType": "m"}, CapacityType.on_demand), ({"scheduling": {"preemptible": True}}, CapacityType.spot),
    ({"scheduling": {"provisioningModel": "RESERVATION_BOUND"}}, CapacityType.reserved),
    ({"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION"}}, CapacityType.reserved),
])
async def test_the_tier_is_its_templates(template: dict[str, Any], tier: CapacityType) -> None:
    compute = Compute()
    compute.template = template
    async with gcp(compute) as (cloud, _):
        [found] = await cloud.groups([ZONAL])
    assert found.tier is tier


async def test_a_group_may_choose_among_machines_and_what_we_may_not_read_is_unknown() -> None:
    compute = Compute()
    compute.manager["instanceFlexibilityPolicy"] = {"instanceSelections": {"a": {"machineTypes": ["x", "y"]}}}
    compute.manager["distributionPolicy"] = {"zones": [{"zone": f"{HOME}/zones/us-central1-{z}"} for z in "ab"]}
    compute.refuses["t1"] = refusal(403, "forbidden")
    async with gcp(compute) as (cloud, _):
        [found] = await cloud.groups([REGIONAL])
    assert (found.instance_types, found.zones) == (("x", "y"), ("us-central1-a", "us-central1-b"))
    assert (found.tier, found.shape) == (CapacityType.unknown, None)


def failure(code: str, at: str = "2026-11-17T09:55:00.000-00:00") -> dict[str, Any]:
    return {
        "error": {"code": code, "message": "The zone does not have enough resources"}, "timestamp": at,
        "instanceActionDetails": {"action": "CREATING", "instance": f"{HOME}/zones/us-central1-a/instances/gpus-9"},
    }


async def test_why_no_machine_came_stands_in_the_groups_errors() -> None:
    compute = Compute()
    compute.errors = [
        failure("ZONE_RESOURCE_POOL_EXHAUSTED"), failure("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        failure("QUOTA_EXCEEDED"), failure("INVALID_FIELD"), failure("QUOTA_EXCEEDED", "2026-11-17T08:00:00Z"),
    ]
    async with gcp(compute) as (cloud, _):
        found = await cloud.wants(ZONAL)
    assert [(each.zone, each.is_quota) for each in found] == [
        ("us-central1-a", False), ("us-central1-a", False), ("us-central1-a", True)]


REFUSALS = {
    "throttled": (refusal(403, "rateLimitExceeded"), errors.Throttled),
    "quota": (refusal(403, "quotaExceeded"), errors.QuotaSpent),
    "busy": (refusal(400, "resourceNotReady"), errors.Conflict),
    "denied": (refusal(403, "forbidden", "t0ken may not"), errors.Forbidden),
    "no token": (refusal(401, "authError", "t0ken is bad"), errors.Unauthorized),
    "wrong": (refusal(400, "invalid"), errors.Invalid),
    "down": (web.Response(status=503), errors.ServerFault),
    "an operation that failed at once": (web.json_response({"status": "DONE", "error": {"errors": [
        {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no"}]}}), errors.OutOfStock),
    "no operation": (web.Response(text="ok"), errors.BadAnswer),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_is_refused_is_told_by_what_it_means_and_sent_once(name: str) -> None:
    answer, error = REFUSALS[name]
    compute = Compute()
    compute.refuses = {"resize": answer, "deleteInstances": answer}
    async with gcp(compute) as (cloud, server):
        with pytest.raises(error) as caught:
            await cloud.grow(GROWTH)
        with pytest.raises(error):
            await cloud.remove(ZONAL, ["zones/us-central1-a/instances/gpus-0"])
    assert "t0ken" not in str(caught.value)
    assert (verbs(server).count("resize"), verbs(server).count("deleteInstances")) == (1, 1)


GARBAGE = [b"", b"[]", b'{"targetSize": "three"}', b'{"name": "gpus"}', b"\xff", b"{" * 5000, b" " * 60_000]


@pytest.mark.parametrize("body", GARBAGE)
async def test_garbage_is_a_group_with_an_error_and_nothing_is_done_by_it(body: bytes) -> None:
    compute = Compute()
    compute.refuses["gpus"] = web.Response(body=body)
    async with gcp(compute, longest=50_000) as (cloud, server):
        [found, odd] = await cloud.groups([ZONAL, "../../x"])
        assert found.error
        assert odd.error == "'../../x' is not ZONE/NAME or REGION/NAME of a managed instance group"
        with pytest.raises(errors.BadAnswer):
            await cloud.grow(GROWTH)
    assert "resize" not in verbs(server)


async def test_a_negative_target_and_a_group_that_is_not_there_are_errors() -> None:
    compute = Compute()
    compute.manager["targetSize"] = -1
    async with gcp(compute) as (cloud, server):
        found = await cloud.groups([ZONAL, "us-central1-b/other"])
        with pytest.raises(errors.Conflict):
            await cloud.grow(GROWTH)
    assert [bool(each.error) for each in found] == [True, True]
    assert "notFound" in found[1].error
    assert "resize" not in verbs(server)


async def test_a_cloud_that_is_down_is_asked_three_times_and_raises_for_all() -> None:
    compute = Compute()
    compute.refuses["gpus"] = web.Response(status=502)
    async with gcp(compute) as (cloud, server):
        with pytest.raises(errors.ServerFault):
            await cloud.groups([ZONAL])
    assert verbs(server).count("gpus") == 3
