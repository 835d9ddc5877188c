"""Nodes of the pretend world that come and go, and who was on them."""

import numpy as np

from fallow.model.units import MINUTE
from fallow.sim import cast
from fallow.sim.world.lives import LifeSpan
from fallow.sim.world.nouns import Part, SimNode, SimState
from fallow.sim.world.world import World


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


def test_a_machine_that_was_never_there_is_a_node_with_gpus_of_its_own() -> None:
    world = make(Part("ml", "one", gpus=8), Part("ml", "two", gpus=8), nodes=[SimNode("n1")])
    world.join(SimNode("n2"))
    world.advance(2 * MINUTE)
    assert {pod.node for one in world.workloads for pod in one.pods} == {"n1", "n2"}
    (slot, *_) = world.workloads[1].pods[0].slots
    node, _, part = world.device_of(slot)
    assert (node.name, part) == ("n2", 0)
    assert world.uuids[slot] not in world.uuids[:8]
    world.cordon("n2", True)
    world.take("n2")
    assert not world.nodes["n2"].cordoned, "whoever is gone is emptied no more"
    assert world.workloads[1].state is SimState.waiting
