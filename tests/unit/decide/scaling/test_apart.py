"""Pods that only go where none of their like is: an empty node always does, and each needs one of its own."""

import pytest
from tests.unit.decide.scaling.stage import (
    NOW,
    SPOT,
    first,
    fits,
    grown,
    look,
    node,
    pod,
    pods,
    policy,
    pool,
    sight,
)

from fallow.model.machines import CloudMachine, MachineState
from fallow.model.scaling import SpendLimit
from fallow.model.scaling_plan import GrowReason
from fallow.model.seen import Known


@pytest.mark.parametrize(("beside", "nodes"), [(0, 3), (8, 4), (9, 5)])
def test_each_gets_a_node_of_its_own_beside_those_for_others(beside: int, nodes: int) -> None:
    made = look(sight(policy(), *pods(3, 1, name="a", apart=True), *pods(beside, 1, name="b")))
    assert set(fits(made).values()) == {"NeedsNode"}
    assert grown(made) == {"main": nodes}
    (grow,) = first(made).grows
    assert (len(grow.pods), len(set(grow.pods))) == (3 + beside, 3 + beside)
    assert f"{3 + beside} pods" in grow.because


def test_a_node_that_nobody_uses_is_enough_and_one_that_comes_is_one_pods() -> None:
    """So that a node which does not help after all is not added again and again."""
    two = pods(2, 1, apart=True)
    made = look(sight(policy(), *two, node("n0"), node("n1"), pod("there", 1, "n1")))
    assert sorted(fits(made).items()) == [("p0", "FitsNow"), ("p1", "NeedsNode"), ]
    coming = CloudMachine(
        id="i-1", group="group-main", state=MachineState.pending, provider_id="cloud://i-1", launched_at=NOW - 60
    )
    made = look(sight(policy(), *two, machines={"default": Known((coming,))}))
    assert sorted(fits(made).values()) == ["FitsInFlight", "NeedsNode"]


def test_what_a_budget_allows_is_not_exceeded() -> None:
    """It is counted in one packing: so its pods come to one after the other."""
    four = pods(4, 1, apart=True, spot_ok=True)
    limit = SpendLimit(budget="ml", pods=frozenset(each.id.uid for each in four), most_spot_nodes=1)
    rule = policy(pool("spot", SPOT), spot_share=1.0)
    assert grown(look(sight(rule, *four, limits=Known((limit,))))) == {"spot": 1}
    assert grown(look(sight(rule, *four))) == {"spot": 4}


def test_who_must_leave_a_spot_node_is_replaced_although_where_it_fits_is_not_known() -> None:
    ends = node("n0", tier=SPOT, warned_at=NOW, ends_at=NOW + 120)
    guest = pod("a", 1, "n0", apart=True, unclear="minds which pods are beside it")
    (grow,) = first(look(sight(policy(), ends, guest))).grows
    assert (grow.reason, grow.count) == (GrowReason.SpotReplacement, 1)
    lost = pod("a", 1, "n0", unclear="asks for devices by claims")
    assert first(look(sight(policy(), ends, lost))).grows == ()
