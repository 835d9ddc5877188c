"""Nodes of the pretend world that come and go, and who is sent away from them."""

import numpy as np

from fallow.model.units import MINUTE
from fallow.sim import cast
from fallow.sim.world.lives import LifeSpan
from fallow.sim.world.world import Part, SimNode, SimState, World


def make(*parts: Part, nodes: list[SimNode]) -> World:
    span = LifeSpan(cast.MONDAY, MINUTE, 240)
    rows = np.full((sum(part.seats for part in parts), span.columns), 50, np.uint8)
    return World(nodes, parts, rows, span, start_seconds=90.0)


def test_who_waits_starts_when_a_node_joins() -> None:
    world = make(Part("ml", "one", gpus=8), nodes=[SimNode("n1", there=False)])
    assert world.workloads[0].state is SimState.waiting
    world.bring("n1")
    world.advance(2 * MINUTE)
    assert world.workloads[0].state is SimState.running


def test_who_is_on_a_node_that_goes_waits_or_starts_elsewhere() -> None:
    world = make(Part("ml", "one", gpus=8), nodes=[SimNode("n1"), SimNode("n2", there=False)])
    world.take("n1")
    assert world.workloads[0].state is SimState.waiting
    world.bring("n2")
    assert [pod.node for pod in world.workloads[0].pods] == ["n2"]


def test_a_cordoned_node_is_given_nobody_new() -> None:
    world = make(Part("ml", "late", arrives_at=cast.MONDAY + 60.0), nodes=[SimNode("n1", gpus=4), SimNode("n2")])
    world.cordon("n1", True)
    world.advance(2 * MINUTE)
    assert world.workloads[0].pods[0].node == "n2"


def test_a_pod_that_is_sent_away_starts_where_there_is_room_and_else_all_of_it_waits() -> None:
    world = make(Part("ml", "two", replicas=2, gpus=8), nodes=[SimNode("n1"), SimNode("n2"), SimNode("n3")])
    one, before = world.workloads[0], world.workloads[0].pods
    world.cordon("n1", True)
    moved = next(pod for pod in before if pod.node == "n1")
    world.evict(one, moved.name)
    after = {pod.name: pod for pod in one.pods}
    assert after[moved.name].node == "n3"
    assert after[moved.name].uid != moved.uid
    assert sum(pod.uid in {each.uid for each in before} for pod in one.pods) == 1
    assert (world.slot_of[one.seats] >= 0).all()
    world.cordon("n3", True)
    world.evict(one, moved.name)
    assert one.state is SimState.waiting
