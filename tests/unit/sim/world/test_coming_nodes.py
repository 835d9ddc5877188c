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
