"""The pretend cluster's rented machines: which nodes they are, how they come, go and are taken back."""

from __future__ import annotations

from collections import Counter

from fallow.model.machines import Growth
from fallow.model.policies import scaling_crd
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.sim import cast, fleet, paying
from fallow.sim.world.world import World


def make(nodes: int = 16) -> tuple[World, fleet.Fleet]:
    world = cast.make_world(seed=7, nodes=nodes, bursts=True)
    return world, fleet.Fleet(world, DAY)


def test_two_models_are_rented_each_on_spot_and_on_demand_and_the_policy_says_so() -> None:
    world, made = make()
    rented = Counter(node.pool for node in world.nodes.values() if node.machine)
    assert rented == {"serve-a100": 3, "batch-v100": 4}
    assert len({node.machine for node in world.nodes.values() if node.machine}) == 7
    (written,) = made.make_policies()
    policy = scaling_crd.parse(written)
    assert (policy.invalid, policy.acts) == ((), True)
    assert {(pool.name, str(pool.tier), pool.instance_types) for pool in policy.pools} == {
        ("serve-a100", "on-demand", ("p4d.24xlarge",)), ("serve-a100-spot", "spot", ("p4d.24xlarge",)),
        ("batch-v100", "spot", ("p3.16xlarge",)), ("batch-v100-on-demand", "on-demand", ("p3.16xlarge",)),
    }


def test_where_no_node_is_of_a_sort_that_is_rented_there_is_no_policy() -> None:
    _, made = make(nodes=1)
    assert not made.is_rented
    assert made.make_policies() == []


async def test_a_machine_is_a_node_from_its_boot_to_its_end() -> None:
    world, made = make()
    before = set(world.nodes)
    await made.cloud.grow(Growth(group="serve-a100-spot", count=1, base=0, token="t"))
    assert made.follow() == []
    world.advance(5 * MINUTE)
    (new,) = made.follow()
    assert new.name not in before
    assert (new.there, new.tier, new.model, new.pool) == (True, "spot", "NVIDIA-A100-SXM4-40GB", "serve-a100-spot")
    assert str(paying.rate_of(new)) == "13.11"
    (machine,) = await made.cloud.machines("serve-a100-spot")
    assert machine.provider_id == new.machine
    await made.cloud.remove("serve-a100-spot", [machine.id])
    world.advance(MINUTE)
    assert made.follow() == []
    assert (new.there, len(made.came)) == (False, 1)


async def test_once_in_the_day_a_spot_machine_is_taken_back_from_those_who_are_on_it() -> None:
    world, made = make()
    while not (told := await made.cloud.notices()):
        world.advance(MINUTE)
        made.follow()
        assert world.now < world.span.start + DAY
    (notice,) = told
    node = next(node for node in world.nodes.values() if node.machine == notice.provider_id)
    assert any(pod.node == node.name for one in world.workloads for pod in one.pods)
    assert made.is_moving
    world.advance(HOUR)
    made.follow()
    assert not node.there
    assert not made.is_moving
