"""Parts of GPUs by ResourceClaims on a real API server with the real scheduler, on ResourceSlices as NVIDIA's driver
publishes them: the daemon's story keeps the templates, the webhook gives them to pods, the scheduler allocates."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from fallow import names
from fallow.act import claim_templates
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide.sharing import claims
from fallow.model import patterns
from fallow.model.claims import MakeTemplate
from fallow.model.policies import budget_crd, sharing_crd
from fallow.model.policies.sharing import Strategy
from fallow.observe import budgets
from fallow.observe import sharing as watching
from fallow.stories.share_claims import ClaimsCycle
from fallow.stories.turn import Turn
from fallow.wiring import sharing as wiring
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import test_node_stories, world
from tests.real.test_sharing_webhook import NEEDS_8, asked, counted, create, make_policy
from tests.real.test_webhook import Gate, pod

GROUP = "resource.k8s.io/v1"
PRODUCT = "NVIDIA A100-SXM4-80GB"
Object = dict[str, Any]


def mig_device(number: int, profile: str = "1g.10gb", memory: str = "9856Mi", **more: Any) -> Object:
    name = f"gpu-0-mig-{profile.replace('.', '')}-19-{number}"
    return {
        "name": name, "attributes": {
            "type": {"string": "mig"}, "profile": {"string": profile}, "productName": {"string": PRODUCT},
            "uuid": {"string": f"MIG-{number}"}, "parentUUID": {"string": "GPU-0"},
            "driverVersion": {"version": "580.65.6"},
        },
        "capacity": {"memory": {"value": memory}, "multiprocessors": {"value": "14"},
                     f"memorySlice{number}": {"value": "1"}}, **more,
    }


def gpu_device(number: int, shares: int | None = None) -> Object:
    """With `shares`, as the driver publishes it with consumableShares: N."""
    bounds = {"default": "0", "validRange": {"min": "0", "max": "81920Mi", "step": "1Mi"}}
    memory: Object = {"value": "81920Mi", **({"requestPolicy": bounds} if shares else {})}
    several = {"default": "1", "validRange": {"min": "1", "max": str(shares), "step": "1"}}
    return {
        "name": f"gpu-{number}", "attributes": {
            "type": {"string": "gpu"}, "productName": {"string": PRODUCT}, "uuid": {"string": f"GPU-{number}"},
            "architecture": {"string": "Ampere"}, "cudaComputeCapability": {"version": "8.0.0"},
        },
        "capacity": {"memory": memory, **(
            {"shares": {"value": str(shares), "requestPolicy": several}} if shares else {}
        )},
        **({"allowMultipleAllocations": True} if shares else {}),
    }


async def publish(cluster: clusters.Cluster, node: str, *devices: Object, classes: bool = True) -> None:
    """A node, and what NVIDIA's driver and its chart make beside it."""
    await cluster.gpu_node(node, gpus=0, labels={"pool": cluster.namespace})

    async def is_open() -> bool:
        return not (await cluster.get("v1", "Node", node))["spec"].get("taints")

    await cluster.wait_until(is_open)
    await cluster.apply({
        "apiVersion": GROUP, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{names.DRA_DRIVER}"},
        "spec": {"driver": names.DRA_DRIVER, "nodeName": node, "devices": list(devices),
                 "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    })
    for name, kind in ((names.DRA_GPU_CLASS, "gpu"), (names.DRA_MIG_CLASS, "mig")) if classes else ():
        chosen = f"device.driver == '{names.DRA_DRIVER}' && device.attributes['{names.DRA_DRIVER}'].type == '{kind}'"
        await cluster.apply({
            "apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": chosen}}]},
        })


class Yard:
    """A node whose GPUs are given by claims, and the daemon's story as a process that has just begun."""

    def __init__(self, gate: Gate, api: kube.Api) -> None:
        self.gate, self.cluster, self.api, self.now = gate, gate.cluster, api, time.time()

    async def open(self, *devices: Object, classes: bool = True) -> None:
        await publish(self.cluster, f"dra-{self.cluster.namespace}", *devices, classes=classes)

    async def tick(self, *, writes: int = 1000) -> ClaimsCycle:
        """One look of a new process, which is killed after so many writes."""
        policies, places = watching.watch_policies(self.api), budgets.watch_namespaces(self.api)
        named, left = budgets.Places(places), [writes]
        made = wiring.make_claims(
            self.api, policies=lambda: watching.rank(policies.seen), namespaces=lambda: named.register,
            exempt=patterns.compile_pattern("kube-system"),
        )

        def leads() -> bool:
            left[0] -= 1
            return left[0] >= 0

        def turn(may: Any) -> Turn:
            return Turn(clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=may)

        tasks = [asyncio.create_task(run()) for run in (policies.run, places.run, *made.background)]
        try:
            while True:
                found: Any = await made.story.look(turn(lambda: False))
                if not found.failure:
                    break
                await asyncio.sleep(0.02)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        cycle: ClaimsCycle = await made.story.tick.__self__.tick(turn(leads))  # type: ignore[attr-defined]
        assert cycle.failure == ""
        return cycle

    async def templates(self, place: str) -> dict[str, Object]:
        found = await self.cluster.objects(GROUP, "ResourceClaimTemplate", place)
        return {each["metadata"]["name"]: each for each in found}

    async def share(self, place: str, name: str, **more: Any) -> Object:
        """The pod, once the webhook gives it a claim."""
        async def is_given() -> bool:
            probe = await create(self.gate, place, pod(name, **more), dryRun="All")
            return "resourceClaims" in probe["spec"]

        await self.cluster.wait_until(is_given)
        return await create(self.gate, place, pod(name, **more))

    async def allocated(self, place: str, name: str) -> Object:
        """What its claim got, once it runs."""
        async def find() -> Object | None:
            made = await self.cluster.get("v1", "Pod", name, place)
            named = [each.get("resourceClaimName") for each in made["status"].get("resourceClaimStatuses") or ()]
            if made["status"].get("phase") != "Running" or not named:
                return None
            claim = await self.cluster.get(GROUP, "ResourceClaim", named[0], place)
            [result] = claim["status"]["allocation"]["devices"]["results"]
            return {**result, "node": made["spec"]["nodeName"]}

        found: Object = await self.cluster.wait_until(find)
        return found


def shipped_rules() -> list[Object]:
    files = ("deploy/base/20-reader.yaml", "deploy/sharing/10-role.yaml")
    made = [each for file in files for each in yaml.safe_load_all((ROOT / file).read_text())]
    return [rule for each in made if each["kind"] == "ClusterRole" for rule in each["rules"]]


@pytest.fixture
async def yard(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> AsyncIterator[Yard]:
    await cluster.apply_crds(budget_crd.define(), sharing_crd.define())
    gate = Gate(cluster, tmp_path)
    account = await cluster.service_account("daemon", shipped_rules())
    access = config.load_access(kubeconfig=str(account), context=None, environment={})
    try:
        await gate.start("--rewrite-requests", "true", "--sharing-backend", "dra")
        await gate.configure()
        async with kube.Api(access, qps=500) as api:
            yield Yard(gate, api)
        every = (await cluster.request("GET", f"/apis/{GROUP}/resourceclaimtemplates"))["items"]
        for each in every:  # or the next test would see them
            await cluster.delete({"apiVersion": GROUP, "kind": "ResourceClaimTemplate", **each})
    finally:
        await gate.stop()


@pytest.mark.accepts("packing", 4, 5)
async def test_a_whole_gpu_becomes_a_claim_of_an_instance_that_the_scheduler_allocates(yard: Yard) -> None:
    place = await yard.gate.place("in")
    await yard.open(mig_device(0), mig_device(1), mig_device(4, "3g.40gb", "40320Mi"))
    await make_policy(yard.gate)
    await yard.tick()
    assert sorted(await yard.templates(place)) == ["fallow-mig-1g.10gb", "fallow-mig-3g.40gb"]
    made = await yard.share(place, "llm", annotations=NEEDS_8)
    assert names.GPU not in {**asked(made).get("limits", {}), **asked(made).get("requests", {})}
    assert asked(made)["claims"] == [{"name": "gpu"}]
    assert made["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "fallow-mig-1g.10gb"}
    ]
    assert made["metadata"]["annotations"][names.OPTIMIZED] == "true"
    got = await yard.allocated(place, "llm")
    assert got["device"] in (mig_device(0)["name"], mig_device(1)["name"])
    assert got["node"] == f"dra-{yard.cluster.namespace}"
    again = pod("again", annotations=made["metadata"]["annotations"])
    again["spec"]["containers"][0]["resources"] = asked(made)
    again["spec"]["resourceClaims"] = made["spec"]["resourceClaims"]
    again["spec"]["nodeSelector"] = made["spec"]["nodeSelector"]
    same = await create(yard.gate, place, again, dryRun="All")
    assert (asked(same), same["metadata"]["annotations"]) == (asked(made), made["metadata"]["annotations"])
    assert (await yard.tick()).writes == ()


async def test_pods_share_a_gpu_that_goes_to_several_claims_and_never_take_one_that_does_not(yard: Yard) -> None:
    """The other GPU of the node has room, and stays whole."""
    place = await yard.gate.place("in")
    await yard.open(gpu_device(0), gpu_device(1, shares=4))
    await make_policy(yard.gate, strategy="timeslicing", timeSlicingConfig={"sliceMs": 5})
    await yard.tick()
    for number in range(4):
        await yard.share(place, f"nb-{number}")
    got = [await yard.allocated(place, f"nb-{number}") for number in range(4)]
    assert [each["device"] for each in got] == ["gpu-1"] * 4
    assert all(each["consumedCapacity"]["shares"] == "1" for each in got)
    claim, *_ = await yard.cluster.objects(GROUP, "ResourceClaim", place)
    [setting] = claim["spec"]["devices"]["config"]
    assert setting["opaque"]["parameters"]["sharing"] == {
        "strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Medium"},
    }
    await create(yard.gate, place, pod("fifth"))
    await asyncio.sleep(2)
    fifth = await yard.cluster.get("v1", "Pod", "fifth", place)
    assert fifth["status"]["phase"] == "Pending"


async def test_without_a_template_or_the_classes_a_pod_is_made_as_it_is_and_the_counter_says_why(yard: Yard) -> None:
    place = await yard.gate.place("in")
    await yard.open(mig_device(0), classes=False)
    await make_policy(yard.gate)

    async def whole(reason: str) -> None:
        async def is_counted() -> bool:
            made = await create(yard.gate, place, pod("probe", annotations=NEEDS_8), dryRun="All")
            assert asked(made)["limits"][names.GPU] == "1"
            return f'outcome="unchanged",reason="{reason}"' in await counted(yard.gate)

        await yard.cluster.wait_until(is_counted)

    await whole("ClaimsNotServed")
    assert (await yard.tick()).writes == ()
    await yard.open(mig_device(0))
    await whole("TemplateMissing")
    mine = {"devices": {"requests": [{"name": "all", "exactly": {
        "deviceClassName": names.DRA_GPU_CLASS, "allocationMode": "All",
    }}]}}
    named = {"name": "fallow-mig-1g.10gb", "namespace": place}
    kept = await yard.cluster.apply({
        "apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": named, "spec": {"spec": mine},
    })
    assert (await yard.tick()).writes == ()  # somebody else's is left alone, and nobody is given it
    await whole("TemplateMissing")
    assert (await yard.cluster.refresh(kept))["metadata"]["resourceVersion"] == kept["metadata"]["resourceVersion"]


@pytest.mark.accepts("packing", 9)
async def test_while_the_webhook_is_killed_pods_are_made_as_they_are(yard: Yard) -> None:
    place = await yard.gate.place("in")
    await yard.open(mig_device(0))
    await make_policy(yard.gate)
    await yard.tick()
    await yard.share(place, "before", annotations=NEEDS_8)
    assert yard.gate.process is not None
    yard.gate.process.kill()
    yard.gate.process.wait(30)
    made = await create(yard.gate, place, pod("alive", annotations=NEEDS_8))
    assert (asked(made)["limits"][names.GPU], "resourceClaims" in made["spec"]) == ("1", False)
    assert (await yard.allocated(place, "before"))["device"] == mig_device(0)["name"]


@pytest.mark.accepts("packing", 13)
async def test_killed_between_any_two_writes_it_ends_with_all_templates_and_later_with_none(yard: Yard) -> None:
    place, other = await yard.gate.place("in"), await yard.gate.place("too")
    await yard.open(mig_device(0), mig_device(4, "3g.40gb", "40320Mi"), gpu_device(1, shares=4))
    policy = await make_policy(yard.gate, strategy="auto")
    every = ["fallow-mig-1g.10gb", "fallow-mig-3g.40gb", "fallow-timeslicing"]
    for _ in range(6):
        await yard.tick(writes=1)
    for where in (place, other):
        assert sorted(await yard.templates(where)) == every
    assert (await yard.tick()).writes == ()
    await yard.share(place, "llm", annotations={**NEEDS_8, names.WORKLOAD_TYPE: "inference"})
    await yard.cluster.delete(policy)
    for _ in range(6):
        await yard.tick(writes=1)
    assert (await yard.tick()).writes == ()  # all are marked, and none may go yet
    made = await create(yard.gate, place, pod("late", annotations={**NEEDS_8, names.WORKLOAD_TYPE: "inference"}))
    assert asked(made)["limits"][names.GPU] == "1"
    yard.now += claims.KEPT_AFTER_MARK
    for number in range(6, 1, -1):
        assert sum([len(await yard.templates(where)) for where in (place, other)]) == number
        await yard.tick(writes=2)  # the first is in use, and stays
    assert sorted({**await yard.templates(place), **await yard.templates(other)}) == ["fallow-mig-1g.10gb"]
    assert (await yard.allocated(place, "llm"))["device"] == mig_device(0)["name"]
    await yard.cluster.request("DELETE", f"/api/v1/namespaces/{place}/pods/llm", gracePeriodSeconds="0")
    await yard.tick()
    assert await yard.templates(place) == {}


async def test_a_template_that_somebody_else_made_meanwhile_stays_theirs(yard: Yard) -> None:
    place, asks = await yard.gate.place("in"), claims.make_asks(Strategy.mig, "1g.10gb", "")
    name = claims.name_template(Strategy.mig, "1g.10gb")
    await yard.cluster.create({
        "apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": place},
        "spec": {"spec": asks},
    })
    assert await claim_templates.ClaimHands(yard.api).do(MakeTemplate(place, name, asks)) == ""
    assert "labels" not in (await yard.templates(place))[name]["metadata"]


async def test_a_policy_that_comes_back_keeps_its_templates(yard: Yard) -> None:
    place = await yard.gate.place("in")
    await yard.open(mig_device(0))
    policy = await make_policy(yard.gate)
    await yard.tick()
    [before] = (await yard.templates(place)).values()
    await yard.cluster.delete(policy)
    await yard.tick()
    assert names.LEAVING_SINCE in (await yard.templates(place))["fallow-mig-1g.10gb"]["metadata"]["annotations"]
    await make_policy(yard.gate)
    yard.now += claims.KEPT_AFTER_MARK
    await yard.tick()
    [after] = (await yard.templates(place)).values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert names.LEAVING_SINCE not in after["metadata"].get("annotations", {})
    await yard.share(place, "llm", annotations=NEEDS_8)


# ---- the daemon as it is shipped -------------------------------------------------------------------------------------


@pytest.mark.accepts("packing", 13)
async def test_the_daemon_keeps_templates_within_its_roles_and_bounds_and_tells_how_the_policy_stands(
    start_control_plane: Any, tmp_path: pathlib.Path
) -> None:
    """Without leave to act it only tells; killed -9 and begun anew it goes on; no node is changed."""
    house = test_node_stories.House(await start_control_plane(world.PLAIN), tmp_path)
    cluster = house.cluster
    try:
        await house.install()
        await publish(cluster, "dra-1", mig_device(0))
        node = await cluster.get("v1", "Node", "dra-1")
        policy = await cluster.create({
            "apiVersion": test_node_stories.VERSION, "kind": "GPUSharingPolicy", "metadata": {"name": "small"},
            "spec": {"strategy": "mig", "mode": "enforce"},
        })

        async def stands() -> bool:
            told = (await cluster.refresh(policy)).get("status", {}).get("conditions", ())
            return any((each["type"], each["status"]) == ("Ready", "True") for each in told)

        async def is_kept() -> bool:
            path = f"/apis/{GROUP}/resourceclaimtemplates"
            every = {each["metadata"]["namespace"] for each in (await cluster.request("GET", path))["items"]}
            assert not every & {"kube-system", "gpu-operator", test_node_stories.SYSTEM}
            return cluster.namespace in every

        first = await house.start("-r", "scale-down", "--require-policy", "true", "--sharing-backend", "dra")
        await first.until(stands)
        assert not await is_kept()
        await first.kill()
        second = await house.start(*test_node_stories.ACTING, "--sharing-backend", "dra")
        await second.until(is_kept)
        await second.kill()
        after = await cluster.get("v1", "Node", "dra-1")
        assert (after["spec"], after["metadata"]["labels"]) == (node["spec"], node["metadata"]["labels"])
    finally:
        await house.close()
