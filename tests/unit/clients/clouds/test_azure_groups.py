"""Scale sets and AKS pools against a loopback server that keeps them as Azure documents it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.loopback import Asked, Loopback

from fallow.clients import errors, retry
from fallow.clients.clouds.azure import credentials as azure_login
from fallow.clients.clouds.azure.groups import MANAGEMENT_URL, AzureGroups, AzureWire
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth, MachineState
from fallow.model.units import parse_instant

NOW = parse_instant("2026-11-17T10:00:00Z")
AT_ONCE = retry.Patience(tries=3, first_wait=0.001, longest_wait=5.0)
SET, POOL = "gpu-set", "cluster/gpupool"
BASE = "/subscriptions/s/resourceGroups/RG/providers"
SETS = f"{BASE}/Microsoft.Compute/virtualMachineScaleSets"
SET_PATH, POOL_PATH = f"{SETS}/gpu-set", f"{BASE}/Microsoft.ContainerService/managedClusters/cluster/agentPools/gpupool"
VM = "/subscriptions/s/resourceGroups/MC_RG/providers/Microsoft.Compute/virtualMachineScaleSets/{}/virtualMachines/{}"
BEHIND = VM.format("aks-gpupool-1-vmss", "").rstrip("/")
CREATED = "2026-11-17T09:00:00.1234567+00:00"


def refusal(status: int, code: str, message: str = "it said", **more: Any) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message, **more}}, status=status)


class Azure:
    """One scale set and one pool of three; `refuses`: by method and the end of the path, the answer instead."""

    def __init__(self) -> None:
        self.set: dict[str, Any] = {
            "name": SET, "sku": {"name": "Standard_NC24ads_A100_v4", "tier": "Standard", "capacity": 3},
            "zones": ["1", "2"], "etag": '"7"', "tags": {"team": "ml"},
            "properties": {"orchestrationMode": "Uniform", "virtualMachineProfile": {"priority": "Spot"}},
        }
        self.pool: dict[str, Any] = {"name": "gpupool", "properties": {
            "count": 3, "vmSize": "Standard_NC24ads_A100_v4", "enableAutoScaling": False, "eTag": "e1", "mode": "User",
            "scaleSetPriority": "Spot", "availabilityZones": ["1"], "nodeTaints": ["sku=gpu:NoSchedule"],
        }}
        self.machines = {f"{number}": "Succeeded" for number in range(3)}
        self.view: list[dict[str, str]] = []
        self.refuses: dict[tuple[str, str], web.Response] = {}

    def answer(self, asked: Asked) -> web.Response:
        if asked.path.startswith("/metadata/identity"):
            return web.json_response({"access_token": "t0ken", "expires_in": "3599"})
        assert asked.headers["Authorization"] == "Bearer t0ken"
        assert asked.query["api-version"]
        if held := self.refuses.get((asked.method, asked.path.rpartition("/")[2])):
            return loopback.again(held)
        return loopback.again(self.play(asked))

    def play(self, asked: Asked) -> web.Response:
        match asked.method, asked.path:
            case "GET", path if path == SET_PATH:
                return web.json_response(self.set)
            case "GET", path if path == POOL_PATH:
                return web.json_response(self.pool)
            case "GET", path if path == f"{SET_PATH}/instanceView":
                return web.json_response({"statuses": self.view})
            case "GET", path if path in (f"{SET_PATH}/virtualMachines", f"{POOL_PATH}/machines"):
                return web.json_response({"value": [
                    self.show(each, state, path.endswith("machines")) for each, state in self.machines.items()]})
            case "GET", path if path == BEHIND:
                assert asked.query["api-version"] == "2024-07-01"
                return web.json_response({"value": [
                    {"id": VM.format("AKS-GPUPOOL-1-vmss", each), "instanceId": each,
                     "properties": {"timeCreated": CREATED}} for each in self.machines]})
            case "PATCH", path if path == SET_PATH:
                assert asked.headers["If-Match"] == '"7"'
                assert list(json.loads(asked.body)) == ["sku"]
                self.set["sku"]["capacity"] = json.loads(asked.body)["sku"]["capacity"]
                return web.json_response(self.set, status=202, headers={"Azure-AsyncOperation": "https://x"})
            case "PUT", path if path == POOL_PATH:
                assert asked.headers["If-Match"] == "e1"
                self.pool = {"name": "gpupool", **json.loads(asked.body)}
                return web.json_response(self.pool, status=201)
            case "POST", path if path == f"{SET_PATH}/delete":
                return self.delete(json.loads(asked.body)["instanceIds"])
            case "POST", path if path == f"{POOL_PATH}/deleteMachines":
                return self.delete([each[-1] for each in json.loads(asked.body)["machineNames"]])
        return refusal(404, "ResourceNotFound", f"The Resource {asked.path!r} was not found.")

    def show(self, each: str, state: str, of_pool: bool) -> dict[str, Any]:
        if of_pool:
            where = VM.format("aks-gpupool-1-vmss", each)
            return {"id": f"{POOL_PATH}/machines/m", "name": f"aks-gpupool-1-vmss00000{each}", "zones": ["1"],
                    "properties": {"resourceId": where, "provisioningState": state}}
        return {"id": VM.format(SET, each), "instanceId": each, "name": f"gpu-set_{each}", "zones": ["2"],
                "properties": {"provisioningState": state, "timeCreated": CREATED}}

    def delete(self, ids: list[str]) -> web.Response:
        for each in ids:
            self.machines[each] = "Deleting"
        self.set["sku"]["capacity"] -= len(ids)
        self.pool["properties"]["count"] -= len(ids)
        return web.Response(status=202, headers={"Location": "https://x"})

    @property
    def target(self) -> tuple[int, int]:
        return self.set["sku"]["capacity"], self.pool["properties"]["count"]


@asynccontextmanager
async def azure(cloud: Azure, **said: Any) -> AsyncIterator[tuple[AzureGroups, Loopback]]:
    async with loopback.serve(cloud.answer) as server, AzureWire("Azure", {}, patience=AT_ONCE, **said) as asking:
        login = azure_login.AzureAddresses(metadata=server.url)
        signer = azure_login.make_signer({}, MANAGEMENT_URL, login)
        yield AzureGroups(
            asking, signer, subscription="s", resource_group="RG", clock=lambda: NOW, url=server.url), server


def changes(server: Loopback) -> list[str]:
    return [f"{each.method} {each.path.rpartition('/')[2]}" for each in server.asked if each.method != "GET"]


@pytest.mark.accepts("scaling", 9)
@pytest.mark.parametrize("group", [SET, POOL])
async def test_a_group_grows_once_and_loses_exactly_the_machines_that_are_named(group: str) -> None:
    world, mine = Azure(), 0 if group == SET else 1
    async with azure(world) as (cloud, server):
        [found] = await cloud.groups([group])
        assert (found.target, found.tier, found.owner, found.error) == (3, CapacityType.spot, "", "")
        assert found.instance_types == ("Standard_NC24ads_A100_v4",)
        for _ in range(2):
            await cloud.grow(Growth(group=group, count=2, base=3, token="t"))
            assert world.target[mine] == 5
        await cloud.grow(Growth(group=group, count=1, base=1, token="old"))
        with pytest.raises(errors.Conflict, match="somebody lowered that"):
            await cloud.grow(Growth(group=group, count=1, base=9, token="u"))
        assert world.pool["properties"]["nodeTaints"] == ["sku=gpu:NoSchedule"]  # and all else of the pool
        machines = await cloud.machines(group)
        assert [each.state for each in machines] == [MachineState.running] * 3
        name = "gpu-set" if group == SET else "aks-gpupool-1-vmss"
        assert machines[1].provider_id == (
            "azure:///subscriptions/s/resourceGroups/mc_rg/providers/Microsoft.Compute/virtualMachineScaleSets/"
            f"{name}/virtualMachines/1"
        )
        assert {each.launched_at for each in machines} == {parse_instant("2026-11-17T09:00:00.123456Z")}
        for _ in range(2):
            await cloud.remove(group, [machines[1].id, "gone"])
            assert world.target[mine] == 4
        assert world.machines == {"0": "Succeeded", "1": "Deleting", "2": "Succeeded"}
        assert (await cloud.notices(), await cloud.forget([])) == ((), None)
    assert len(changes(server)) == 2


@pytest.mark.accepts("scaling", 21)
async def test_who_must_not_be_driven() -> None:
    world = Azure()
    world.pool["properties"]["enableAutoScaling"] = True
    async with azure(world) as (cloud, server):
        [found] = await cloud.groups([POOL])
        assert (found.owner, found.error) == ("AKS' autoscaler", "")
        for change, because in (
            ({"tags": {"aks-managed-poolName": "gpupool"}}, "AKS keeps the scale set gpu-set: name it as CLUSTER/POOL"),
            ({"properties": {"orchestrationMode": "Flexible"}}, "is not of orchestration mode Uniform"),
        ):
            world.set = {**Azure().set, **change}
            [found, odd] = await cloud.groups([SET, "a/b/c"])
            assert because in found.error
            assert odd.error == "'a/b/c' is neither the name of a scale set nor CLUSTER/POOL of AKS"
            for asked in (cloud.grow(Growth(group=SET, count=1, base=3, token="t")), cloud.remove(SET, ["1"])):
                with pytest.raises(errors.Misconfigured, match=because):
                    await asked
    assert changes(server) == []


@pytest.mark.parametrize(("said", "state"), [
    ("Creating", "pending"), ("Updating", "running"), ("Succeeded", "running"), ("Deleting", "deleting"),
    ("Failed", "pending"), ("", "running"),
])
async def test_what_state_a_machine_is_in(said: str, state: str) -> None:
    world = Azure()
    world.machines = {"0": said}
    async with azure(world) as (cloud, _):
        assert [each.state.value for each in await cloud.machines(SET)] == [state]


REFUSALS = {
    "no stock": (refusal(409, "SkuNotAvailable"), errors.OutOfStock),
    "no stock in the zone": (refusal(409, "Conflict", details=[{"code": "ZonalAllocationFailed"}]), errors.OutOfStock),
    "quota": (refusal(409, "OperationNotAllowed", "exceeding approved Total Regional Cores quota"), errors.QuotaSpent),
    "quota of AKS": (web.json_response({"code": "ErrCode_InsufficientVCPUQuota", "message": "m"}, status=400),
                     errors.QuotaSpent),
    "busy": (refusal(409, "OperationNotAllowed", "another operation is in progress"), errors.Conflict),
    "changed meanwhile": (refusal(412, "ConditionNotMet"), errors.Conflict),
    "throttled": (web.Response(status=429, headers={"Retry-After": "17"}), errors.Throttled),
    "denied": (refusal(403, "AuthorizationFailed", "the client with t0ken"), errors.Forbidden),
    "no token": (refusal(401, "InvalidAuthenticationToken", "t0ken"), errors.Unauthorized),
    "down": (web.Response(status=503, text="<html>"), errors.ServerFault),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_is_refused_is_told_by_what_it_means_and_sent_once(name: str) -> None:
    answer, error = REFUSALS[name]
    world = Azure()
    world.refuses = {("PATCH", "gpu-set"): answer, ("PUT", "gpupool"): answer, ("POST", "delete"): answer}
    async with azure(world) as (cloud, server):
        for asked in (
            cloud.grow(Growth(group=SET, count=1, base=3, token="t")), cloud.remove(SET, ["1"]),
            cloud.grow(Growth(group=POOL, count=1, base=3, token="t")),
        ):
            with pytest.raises(error) as caught:
                await asked
            assert "t0ken" not in str(caught.value)
    if isinstance(caught.value, errors.Throttled):
        assert caught.value.retry_after == 17.0
    assert len(changes(server)) == 3


async def test_a_machine_that_goes_in_the_very_moment_takes_no_other_with_it_nor_keeps_one() -> None:
    world = Azure()

    def play(asked: Asked) -> web.Response:
        if asked.method == "POST" and world.machines["1"] == "Succeeded":
            world.machines["1"] = "Deleting"  # before our word came
            return refusal(
                400, "InvalidParameter",
                "The provided instanceId 1 is not an active Virtual Machine Scale Set VM instanceId.")
        return Azure.play(world, asked)

    world.play = play  # type: ignore[method-assign]
    async with azure(world) as (cloud, server):
        await cloud.remove(SET, ["0", "1"])
        assert world.machines == {"0": "Deleting", "1": "Deleting", "2": "Succeeded"}
        assert [json.loads(each.body) for each in server.asked if each.method == "POST"] == [
            {"instanceIds": ["0", "1"]}, {"instanceIds": ["0"]}]
    world = Azure()
    world.refuses[("POST", "delete")] = refusal(400, "InvalidParameter", "something else")
    async with azure(world) as (cloud, server):
        with pytest.raises(errors.Invalid, match="something else"):
            await cloud.remove(SET, ["0"])
    assert changes(server) == ["POST delete"]


async def test_why_no_machine_came_stands_with_the_set_or_the_pool() -> None:
    world = Azure()
    world.view = [
        {"code": "ProvisioningState/failed/AllocationFailed", "message": "no room", "time": "2026-11-17T09:59:00Z"},
        {"code": "ProvisioningState/succeeded", "message": "fine"},
        {"code": "ProvisioningState/failed/QuotaExceeded", "message": "quota"},
    ]
    async with azure(world) as (cloud, _):
        assert [(each.is_quota, each.because, each.at) for each in await cloud.wants(SET)] == [
            (False, "no room", parse_instant("2026-11-17T09:59:00Z")), (True, "quota", None)]
        assert await cloud.wants(POOL) == ()
        world.pool["properties"]["status"] = {"provisioningError": {"code": "AllocationFailed", "message": "none"}}
        world.pool["properties"]["provisioningState"] = "Scaling"  # it was said of what was asked for before
        assert await cloud.wants(POOL) == ()
        world.pool["properties"]["provisioningState"] = "Failed"
        assert [(each.is_quota, each.at) for each in await cloud.wants(POOL)] == [(False, NOW)]


async def test_a_pool_that_failed_is_asked_for_the_same_again_and_for_no_more() -> None:
    world = Azure()
    async with azure(world) as (cloud, server):
        await cloud.grow(Growth(group=POOL, count=1, base=2, token="t"))
        assert changes(server) == []
        world.pool["properties"]["provisioningState"] = "Failed"
        await cloud.grow(Growth(group=POOL, count=1, base=2, token="t"))
    assert (changes(server), world.target[1]) == (["PUT gpupool"], 3)


async def test_since_when_a_pools_machine_runs_is_asked_once_of_the_set_behind_it() -> None:
    world = Azure()
    async with azure(world) as (cloud, server):
        for _ in range(3):
            await cloud.machines(POOL)
        assert [each.path for each in server.asked].count(BEHIND) == 1
    world.refuses[("GET", "virtualMachines")] = refusal(403, "AuthorizationFailed")
    async with azure(world) as (cloud, _):
        assert [each.launched_at for each in await cloud.machines(POOL)] == [None] * 3


GARBAGE = [b"", b"[]", b'{"sku": {"capacity": "three"}}', b'{"sku": {}}', b'{"sku": {"capacity": -1}}', b"\xff",
           b" " * 60_000]


@pytest.mark.parametrize("body", GARBAGE)
async def test_garbage_is_a_group_with_an_error_and_nothing_is_done_by_it(body: bytes) -> None:
    world = Azure()
    world.refuses[("GET", "gpu-set")] = web.Response(body=body)
    async with azure(world, longest=50_000) as (cloud, server):
        [found, none] = await cloud.groups([SET, "nobodys"])
        assert found.error
        assert "ResourceNotFound" in none.error
        with pytest.raises(errors.BadAnswer):
            await cloud.grow(Growth(group=SET, count=1, base=3, token="t"))
    assert changes(server) == []


@pytest.mark.parametrize(("link", "because"), [
    ("https://evil.example/next", "leads to another host"), ("again", "more than 100 pages"),
])
async def test_pages_are_followed_here_only_and_not_for_ever(link: str, because: str) -> None:
    world = Azure()
    async with azure(world) as (cloud, server):
        onward = link if link != "again" else f"{server.url}{SET_PATH}/virtualMachines?api-version=1"
        world.refuses[("GET", "virtualMachines")] = web.json_response({"value": [], "nextLink": onward})
        with pytest.raises(errors.BadAnswer, match=because):
            await cloud.machines(SET)


async def test_a_cloud_that_is_down_is_asked_three_times_and_raises_for_all() -> None:
    world = Azure()
    world.refuses[("GET", "gpu-set")] = web.Response(status=502)
    async with azure(world) as (cloud, server):
        with pytest.raises(errors.ServerFault):
            await cloud.groups([SET])
    assert len([each for each in server.asked if each.path == SET_PATH]) == 3
