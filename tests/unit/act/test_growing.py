"""Growth by the real hands and the pretend cloud: what is asked for once, what was refused for sure, where to go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fallow.act.growing import Grower, Grown
from fallow.act.scaling_statuses import ScalingStatuses
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import scaling
from fallow.model import scaling_status
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth, MachineShape
from fallow.model.policies.scaling import MachineProvider, NodePool, ScalingMode, ScalingPolicy
from fallow.model.scaling_plan import Grow, GrowReason, OtherPool
from fallow.model.units import HOUR
from fallow.sim.cloud import CloudFault, Drought, PretendCloud, PretendGroup

NOW = 1_800_000_000.0
A, B = (NodePool(name=name, tier=CapacityType.on_demand, group=name, gpus=8, most=5) for name in "ab")
POLICY = ScalingPolicy(name="p", mode=ScalingMode.act, provider=MachineProvider.custom, pools=(A, B))
GROUP = PretendGroup(id="a", shape=MachineShape(instance_type="big", gpus=8), zones=("zone-a",))
BEFORE = Grown(in_flight=(), stockouts=(), said="")


class Server:
    """Keeps the status of the policy; `wrote`: all that it was."""

    def __init__(self) -> None:
        self.wrote = list[dict[str, Any]]()

    async def apply(
        self, resource: kube.Resource, namespace: str | None, name: str, body: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        self.wrote.append(dict(body["status"]))
        return {}


def make_cloud(**about: Any) -> PretendCloud:
    droughts = about.pop("droughts", ())
    both = [msgspec.structs.replace(GROUP, id=name, **about) for name in "ab"]
    return PretendCloud(both, lambda: NOW, droughts=droughts)


async def grow(cloud: Any, there: dict[str, int] | None = None, **about: Any) -> tuple[Grown, Server]:
    wanted = Grow(
        policy="p", pool=A, tier=A.tier, reason=GrowReason.PendingPods, because="they wait", **{"count": 2, **about}
    )
    server = Server()
    hands = Grower(ScalingStatuses(server), scaling.note_shortage)
    there = {"a": 0, "b": 0} if there is None else there
    return await hands.grow(POLICY, wanted, cloud, there, BEFORE, NOW), server


async def targets(cloud: PretendCloud) -> list[int | None]:
    return [group.target for group in await cloud.groups(["a", "b"])]


async def test_what_is_asked_for_stands_in_the_status_before_the_cloud_is_asked() -> None:
    cloud = make_cloud()
    grown, server = await grow(cloud)
    assert (await targets(cloud), grown.pool, grown.count, grown.failure) == ([2, 0], A, 2, "")
    (written,) = server.wrote
    assert scaling_status.read(written).in_flight == grown.in_flight
    assert "lastScaleUpTime" in written


async def test_a_target_that_was_raised_in_vain_is_not_raised_again() -> None:
    """Of three that were asked for one came: two more are on their way already, whatever the target is."""
    cloud = make_cloud(tells_later=True, target=1, droughts=[Drought(0.0, NOW + HOUR)])
    await cloud.grow(Growth(group="a", count=2, base=1, token="t"))
    grown, _ = await grow(cloud, {"a": 1, "b": 1})
    assert await targets(cloud) == [3, 1]
    assert [(each.base, each.count) for each in grown.in_flight] == [(1, 2)]
    grown, _ = await grow(cloud, {"a": 1, "b": 1}, count=3)
    assert await targets(cloud) == [4, 1]


@pytest.mark.parametrize(("fault", "said"), [
    (errors.rejection(429, "too often"), True), (errors.rejection(403, "not allowed"), True),
    (errors.rejection(401, "who are you"), True), (errors.rejection(404, "no group"), True),
    (errors.Unreachable("no connection", is_undone=True), True), (errors.Misconfigured("no key"), True),
    (errors.rejection(409, "somebody lowered it"), False), (errors.rejection(400, "too many"), False),
], ids=str)
async def test_what_was_surely_refused_is_not_on_its_way(fault: errors.ClientError, said: bool) -> None:
    """And no cooldown runs from it; a fault of the cloud is told apart from what was planned on an old sight."""
    grown, server = await grow(Refusing(fault))
    assert (grown.in_flight, grown.pool, grown.count) == ((), None, 0)
    assert bool(grown.failure) is said
    assert scaling_status.read(server.wrote[-1]).in_flight == ()
    assert "lastScaleUpTime" not in server.wrote[-1]


@pytest.mark.parametrize("fault", [
    errors.Unreachable("no answer in time"), errors.rejection(500, "oops"), errors.rejection(408, "too slow"),
    errors.BadAnswer("no JSON"),
], ids=str)
async def test_what_may_have_been_heard_stays_on_its_way_and_is_no_success(fault: errors.ClientError) -> None:
    grown, server = await grow(Refusing(fault))
    assert [(each.pool, each.count) for each in grown.in_flight] == [("a", 2)]
    assert scaling_status.read(server.wrote[-1]).in_flight == grown.in_flight
    assert (grown.pool, grown.failure) == (None, str(fault))


class Refusing:
    def __init__(self, fault: errors.ClientError) -> None:
        self._fault = fault

    async def grow(self, growth: Growth) -> None:
        raise self._fault

    async def remove(self, group: str, ids: Any) -> None:
        raise self._fault


async def test_where_a_pool_is_out_of_stock_the_next_is_asked_for_as_many_as_do_there() -> None:
    class OnlyB(PretendCloud):
        async def grow(self, growth: Growth) -> None:
            if growth.group == "a":
                raise errors.OutOfStock("none", instance_type="big", zone="zone-a")
            await super().grow(growth)

    cloud = OnlyB([GROUP, msgspec.structs.replace(GROUP, id="b")], lambda: NOW)
    grown, server = await grow(cloud, others=(OtherPool(B, 3),))
    assert (await targets(cloud), grown.pool, grown.count) == ([0, 3], B, 3)
    assert [(each.pool, each.failures) for each in grown.stockouts] == [("a", 1)]
    assert scaling_status.read(server.wrote[-1]).stockouts == grown.stockouts


async def test_a_shortage_is_not_forgotten_because_a_target_was_taken() -> None:
    server, cloud = Server(), make_cloud(tells_later=True)
    shut = scaling.note_shortage((), pool="a", tier=A.tier, now=NOW - HOUR)
    wanted = Grow(policy="p", pool=A, tier=A.tier, count=1, reason=GrowReason.PendingPods, because="they wait")
    before = msgspec.structs.replace(BEFORE, stockouts=shut)
    hands = Grower(ScalingStatuses(server), scaling.note_shortage)
    grown = await hands.grow(POLICY, wanted, cloud, {"a": 0}, before, NOW)
    assert grown.stockouts == shut


async def test_while_the_cloud_is_down_nothing_is_on_its_way() -> None:
    cloud = make_cloud()
    cloud.faults.add(CloudFault.down)
    grown, _ = await grow(cloud, others=(OtherPool(B, 2),))
    assert (grown.in_flight, bool(grown.failure)) == ((), True)
