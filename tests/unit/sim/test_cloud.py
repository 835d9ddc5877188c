"""The pretend cloud does what real ones do to us: it is late, out of stock, takes machines back, lies and bills."""

from collections.abc import Callable

import msgspec
import pytest

from fallow.clients import clouds, errors
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth, MachineShape, MachineState
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.sim.cloud import CloudFault, Drought, PretendCloud, PretendGroup

GROUP = PretendGroup(
    id="gpu-8", shape=MachineShape(instance_type="big-8g", gpus=8, price=20.0), zones=("a", "b"), most=10,
    boots=(3 * MINUTE, 3 * MINUTE),
)
SPOT = msgspec.structs.replace(GROUP, id="gpu-8-spot", tier=CapacityType.spot, taken_a_day=2.0)


class Hands:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def open_cloud(*groups: PretendGroup, **more: object) -> tuple[PretendCloud, Hands]:
    clock = Hands()
    make: Callable[..., PretendCloud] = PretendCloud
    return make(groups or (GROUP,), clock, **more), clock


def growth(count: int, base: int = 0, group: str = GROUP.id) -> Growth:
    return Growth(group=group, count=count, base=base, token="t")


async def test_a_machine_boots_becomes_a_node_and_is_paid_for_from_its_start() -> None:
    cloud, clock = open_cloud()
    asked: clouds.Cloud = cloud
    await asked.grow(growth(2))
    assert [one.state for one in await asked.machines(GROUP.id)] == [MachineState.pending] * 2
    clock.at += 2 * MINUTE
    assert cloud.standing() == ()
    clock.at += MINUTE
    assert [one.zone for one in cloud.standing()] == ["a", "b"]
    clock.at += HOUR - 3 * MINUTE
    assert cloud.bill() == pytest.approx(40.0)


async def test_asking_twice_grows_once_and_never_shrinks() -> None:
    cloud, _ = open_cloud()
    await cloud.grow(growth(3))
    await cloud.grow(growth(3))
    await cloud.grow(growth(1))
    assert [group.target for group in await cloud.groups([GROUP.id])] == [3]
    with pytest.raises(errors.Conflict):
        await cloud.grow(growth(1, base=4))  # somebody lowered it
    assert cloud.started == 3


async def test_exactly_the_named_machine_goes_and_the_target_with_it() -> None:
    cloud, clock = open_cloud(msgspec.structs.replace(GROUP, target=3))
    first, second, third = cloud.standing()
    await cloud.remove(GROUP.id, [second.id, second.id, "gone-long-ago"])
    await cloud.remove(GROUP.id, [second.id])
    clock.at += HOUR
    assert [one.id for one in cloud.standing()] == [first.id, third.id]
    assert (await cloud.groups([GROUP.id]))[0].target == 2
    assert cloud.bill() == pytest.approx(40.0 + 20 * 30 / HOUR)


async def test_a_zone_in_want_is_passed_by_and_none_left_is_said() -> None:
    dry = Drought(0.0, 5000.0, "a"), Drought(2000.0, 5000.0, "b")
    cloud, clock = open_cloud(droughts=dry)
    await cloud.grow(growth(2))
    assert {one.zone for one in await cloud.machines(GROUP.id)} == {"b"}
    clock.at = 2500.0
    with pytest.raises(errors.OutOfStock) as caught:
        await cloud.grow(growth(1, base=2))
    assert caught.value.instance_type == "big-8g"
    assert (await cloud.groups([GROUP.id]))[0].target == 2
    clock.at = 5000.0
    await cloud.grow(growth(1, base=2))
    assert cloud.started == 3


async def test_a_group_whose_target_is_a_wish_tells_later_what_it_lacks() -> None:
    late = msgspec.structs.replace(GROUP, tells_later=True, quota=1)
    cloud, clock = open_cloud(late, droughts=[Drought(0.0, 2000.0)])
    await cloud.grow(growth(2))
    assert [want.is_quota for want in await cloud.wants(GROUP.id)] == [False]
    clock.at = 2000.0
    assert len(await cloud.machines(GROUP.id)) == 1
    assert [want.is_quota for want in await cloud.wants(GROUP.id)] == [True]


async def test_a_quota_and_a_limit_are_two_things() -> None:
    cloud, _ = open_cloud(msgspec.structs.replace(GROUP, quota=2))
    with pytest.raises(errors.QuotaSpent):
        await cloud.grow(growth(3))
    with pytest.raises(errors.Invalid):
        await cloud.grow(growth(11))
    assert cloud.started == 0


async def test_spot_machines_are_taken_back_after_a_notice_and_replaced_by_the_group() -> None:
    cloud, clock = open_cloud(SPOT)
    await cloud.grow(growth(1, group=SPOT.id))
    while not (told := await cloud.notices()):
        clock.at += 10.0
        assert clock.at < 1000.0 + 30 * DAY
    (notice,), (machine,) = told, cloud.standing()
    assert notice.provider_id == machine.provider_id
    assert notice.ends_at is not None
    assert 100 <= notice.ends_at - clock.at <= 120
    await cloud.forget(told)
    assert await cloud.notices() == ()
    clock.at = notice.ends_at
    assert [one.id for one in await cloud.machines(SPOT.id)] != [machine.id]
    assert cloud.started == 2


async def test_a_notice_can_be_brought_about_with_its_own_lead() -> None:
    cloud, clock = open_cloud(msgspec.structs.replace(GROUP, target=1))
    cloud.take_back(cloud.standing()[0].id, 30.0)
    assert [notice.ends_at for notice in await cloud.notices()] == [clock.at + 30.0]


async def test_machines_go_astray_or_by_another_name() -> None:
    odd = msgspec.structs.replace(GROUP, most=200, astray=0.2, renamed=0.2)
    cloud, clock = open_cloud(odd)
    await cloud.grow(growth(200))
    clock.at += HOUR
    standing = cloud.standing()
    assert 140 < len(standing) < 180
    assert 20 < sum(one.node != one.id for one in standing) < 60
    assert len(await cloud.machines(GROUP.id)) == 200


@pytest.mark.parametrize(("fault", "error"), [
    (CloudFault.down, errors.Unreachable), (CloudFault.throttled, errors.Throttled),
], ids=["down", "throttled"])
async def test_while_it_does_not_answer_nothing_is_done(fault: CloudFault, error: type[Exception]) -> None:
    cloud, _ = open_cloud()
    cloud.faults.add(fault)
    with pytest.raises(error):
        await cloud.grow(growth(1))
    cloud.faults.clear()
    assert (await cloud.groups([GROUP.id]))[0].target == 0


async def test_a_target_may_be_an_old_one_and_a_machine_not_listed_yet() -> None:
    cloud, clock = open_cloud()
    await cloud.groups([GROUP.id])
    cloud.faults |= {CloudFault.lying, CloudFault.lagging}
    await cloud.grow(growth(2))
    assert (await cloud.groups([GROUP.id]))[0].target == 0
    assert await cloud.machines(GROUP.id) == ()
    clock.at += MINUTE
    assert len(await cloud.machines(GROUP.id)) == 2


async def test_an_unknown_group_is_listed_with_its_error() -> None:
    cloud, _ = open_cloud()
    good, bad = await cloud.groups([GROUP.id, "nope"])
    assert (good.error, bad.error) == ("", "the pretend cloud has no group nope")
    with pytest.raises(errors.NotFound):
        await cloud.machines("nope")


async def test_the_same_seed_gives_the_same_cloud() -> None:
    async def count_nodes(seed: int) -> list[int]:
        cloud, clock = open_cloud(msgspec.structs.replace(GROUP, boots=(MINUTE, HOUR)), seed=seed)
        await cloud.grow(growth(10))
        found = []
        for _ in range(60):
            clock.at += MINUTE
            found.append(len(cloud.standing()))
        return found

    assert await count_nodes(1) == await count_nodes(1) != await count_nodes(2)
