"""What nodes that we launched are told to say of themselves."""

from typing import Any

import pytest
from tests.unit.decide.scaling.stage import ON_DEMAND, RESERVED, SPOT, first, look, node, policy, pool, sight

from fallow import names
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine, MachineState
from fallow.model.scaling import DriversSeen, ScaledNode
from fallow.model.seen import Known, Unseen


def label(*nodes: ScaledNode, tier: CapacityType = ON_DEMAND, machine: Any = None, **about: Any) -> dict[str, Any]:
    rule = policy(pool(tier=tier, group="us-east1/gpus", gpu_type="A100 (40 GB)"))
    made = CloudMachine(**{
        "id": "n1", "group": "us-east1/gpus", "state": MachineState.running, "provider_id": "cloud://n1",
        "instance_type": "large", "tier": CapacityType.unknown, **(machine or {}),
    })
    seen = {"machines": {rule.name: Known((made,))}, **about}
    return dict(first(look(sight(rule, *nodes, **seen))).labels)


def test_a_node_of_ours_is_told_what_it_is_and_keeps_what_it_says() -> None:
    says = {names.NODE_POOL: "main", names.OWN_CAPACITY: "spot", names.SCALING_GROUP: "gpus",
            names.OWN_INSTANCE_TYPE: "large"}  # what is no value of a label is left out
    assert label(node("n1"), tier=SPOT) == {"n1": says}
    assert label(node("n1", labels={names.OWN_CAPACITY: "x", names.NODE_POOL: "main"}), tier=SPOT) == {
        "n1": {names.SCALING_GROUP: "gpus", names.OWN_INSTANCE_TYPE: "large"}
    }
    assert label(node("n1", labels=says)) == {}


@pytest.mark.parametrize(("pool_is", "machine_is", "told"), [
    (SPOT, CapacityType.unknown, "spot"), (ON_DEMAND, SPOT, "spot"), (RESERVED, ON_DEMAND, "reserved"),
    (SPOT, ON_DEMAND, "on-demand"),
])
def test_how_it_is_paid_for_is_its_machines_word_but_for_reservations(pool_is: Any, machine_is: Any, told: str) -> None:
    made = label(node("n1"), tier=pool_is, machine={"tier": machine_is})
    assert made["n1"][names.OWN_CAPACITY] == told


@pytest.mark.parametrize("about", [
    {"machine": {"provider_id": "cloud://other"}}, {"machine": {"group": "us-east1/others"}},
    {"machine": {"state": MachineState.deleting}}, {"machines": {"default": Unseen("timeout")}},
    {"drivers": Known(DriversSeen(karpenter=True))},
], ids=str)
def test_who_is_not_surely_ours_is_told_nothing(about: dict[str, Any]) -> None:
    assert label(node("n1"), **about) == {}


def test_of_two_that_say_they_are_one_machine_neither_is_told() -> None:
    assert label(node("n1"), node("n2", provider_id="cloud://n1")) == {}
