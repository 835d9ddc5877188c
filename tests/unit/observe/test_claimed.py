"""What a pod's claims ask for, read from a server on loopback: nothing that its maker names first hides a GPU."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback

from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model.policies.budget import ClaimWanted
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.observe import claimed

RESOURCES = [("ResourceClaim", True), ("ResourceClaimTemplate", True), ("DeviceClass", False)]
GROUP = {"name": "resource.k8s.io", "versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}],
         "preferredVersion": {"groupVersion": "resource.k8s.io/v1", "version": "v1"}}
UNDER = "/apis/resource.k8s.io/v1"


def devices(name: str) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": name}}]}}}


OBJECTS = {
    f"{UNDER}/namespaces/ml/resourceclaims/gpu": devices("gpu.nvidia.com"),
    **{f"{UNDER}/namespaces/ml/resourceclaims/{name}": {"spec": {"devices": {"requests": [one]}}} for name, one in {
        "four": {"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}},
        "either": {"name": "a", "firstAvailable": [
            {"name": "x", "deviceClassName": "mig.nvidia.com"},
            {"name": "y", "deviceClassName": "gpu.nvidia.com", "count": 2},
        ]},
        "all": {"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}},
        "looks": {"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True}},
    }.items()},
    f"{UNDER}/namespaces/ml/resourceclaimtemplates/four": {"spec": {"spec": {"devices": {"requests": [
        {"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}},
    ]}}}},
    f"{UNDER}/namespaces/ml/resourceclaims/nic": devices("nic"), f"{UNDER}/deviceclasses/nic": {"spec": {}},
}


def answer(asked: loopback.Asked) -> web.Response:
    if asked.path == "/apis":
        return web.json_response({"kind": "APIGroupList", "groups": [GROUP]})
    if asked.path in ("/api", "/api/v1"):
        return web.json_response({"kind": "APIVersions", "versions": ["v1"], "resources": []})
    if asked.path == UNDER:
        made = [{"name": f"{kind.lower()}{'es' if kind.endswith('s') else 's'}", "kind": kind, "namespaced": inside,
                 "verbs": ["get"]} for kind, inside in RESOURCES]
        return web.json_response({"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": made})
    status = 403 if asked.path.endswith("secret") else 404
    found = OBJECTS.get(asked.path)
    return web.json_response(found or {"kind": "Status", "code": status}, status=200 if found else status)


@pytest.mark.parametrize(("claims", "asks"), [
    (("gpu",), Known(True)), (("nic",), Known(False)), (("gone", "gpu"), Known(True)), (("secret", "gpu"), Known(True)),
    (("nic", "gone"), ABSENT), (("gone",), ABSENT), (("gone", "secret"), Unseen), (("secret", "gone"), Unseen),
])
async def test_one_claim_that_cannot_be_read_hides_no_other(claims: tuple[str, ...], asks: Any) -> None:
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        wanted = [ClaimWanted(resource_claim_name=each) for each in claims]
        found: Input[bool] = await claimed.ClaimReader(api).ask_for_gpus("ml", wanted)
    assert isinstance(found, Unseen) if asks is Unseen else found == asks


async def test_claims_are_read_at_the_same_time_and_a_class_once_a_minute() -> None:
    """One after the other, harmless ones would use up the second that a review has."""
    now, waiting, all_there = 0.0, 0, asyncio.Event()

    async def wait(asked: loopback.Asked) -> web.Response:
        nonlocal waiting
        if "/resourceclaims/nic-" not in asked.path:
            return answer(asked)
        waiting += 1
        if waiting >= 8:
            all_there.set()
        await all_there.wait()
        return web.json_response(devices("nic"))

    async with loopback.serve(wait) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        reader = claimed.ClaimReader(api, monotonic=lambda: now)
        wanted = [ClaimWanted(resource_claim_name=f"nic-{each}") for each in range(8)]
        for at in (0.0, 59.0, 61.0):
            now = at
            assert await reader.ask_for_gpus("ml", wanted) == Known(False)
    assert [asked.path for asked in server.asked].count(f"{UNDER}/deviceclasses/nic") == 2


@pytest.mark.parametrize("claims", [
    [ClaimWanted(resource_claim_name=f"nic-{each}") for each in range(17)],
    [ClaimWanted(resource_claim_name="many")],
], ids=["claims", "classes-of-one-claim"])
async def test_who_names_more_than_is_looked_at_asks_for_gpus_of_nobody_knows_how_many(
    claims: list[ClaimWanted]
) -> None:
    classes = [{"name": f"r{each}", "exactly": {"deviceClassName": f"nic-{each}"}} for each in range(17)]

    def tell(asked: loopback.Asked) -> web.Response:
        if asked.path.endswith("/many"):
            return web.json_response({"spec": {"devices": {"requests": classes}}})
        return answer(asked)

    async with loopback.serve(tell) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        assert await claimed.ClaimReader(api).ask_for_gpus("ml", claims) == Known(True)
        assert not isinstance(await claimed.ClaimReader(api).count_gpus("ml", claims), Known)
    assert not [asked.path for asked in server.asked if "nic-" in asked.path][1:]  # counting asks until the first


@pytest.mark.parametrize(("claims", "count"), [
    (("gpu",), Known(1)), (("four", "nic"), Known(4)), (("four", "four"), Known(8)), (("either",), Known(2)),
    (("looks",), Known(0)), ((), Known(0)), (("all",), Unseen), (("gpu", "gone"), ABSENT), (("gpu", "secret"), Unseen),
])
async def test_gpus_are_counted_as_all_claims_ask_for_them(claims: tuple[str, ...], count: Any) -> None:
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        wanted = [ClaimWanted(resource_claim_name=each) for each in claims]
        found: Input[int] = await claimed.ClaimReader(api).count_gpus("ml", wanted)
    assert isinstance(found, Unseen) if count is Unseen else found == count


async def test_a_template_counts_as_what_is_made_of_it() -> None:
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        wanted = [ClaimWanted(resource_claim_template_name="four")]
        assert await claimed.ClaimReader(api).count_gpus("ml", wanted) == Known(4)
