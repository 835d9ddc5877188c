"""What budgets that restrict say to whoever chooses nodes: which ways of paying are closed, to whose pods."""

from typing import Any

import msgspec
import pytest
from tests import builders
from tests.unit.decide.budgets.builders import DAY0, make

from fallow.model.cost import CapacityType
from fallow.model.policies import budget
from fallow.model.policies.budget import EnforcementMode, EnforcementRule, PodTraits, ThrottleRule
from fallow.model.scaling import SpendLimit
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.observe.scaling import limits

NOW = float(DAY0)
SPOT, ON_DEMAND = CapacityType.spot, CapacityType.on_demand


def spent(mode: EnforcementMode = EnforcementMode.throttle, *, age: float = 60.0, **said: Any) -> budget.CostBudget:
    """One that restricts, by a status of then."""
    throttle = said.pop("throttle", ThrottleRule())
    return make(
        scope=budget.SpendScope(namespaces=("ml",)), enforcement=EnforcementRule(mode=mode, throttle=throttle),
        standing=budget.BudgetStanding(last_updated=NOW - age, is_enforced=said.pop("enforced", True)), **said,
    )


def pods() -> list[Any]:
    """One in the namespace `ml`, and one elsewhere."""
    world = builders.World()
    for name, namespace in (("mine", "ml"), ("theirs", "other")):
        world.pod(name, namespace=namespace)
    around = ABSENT
    return [(pod, PodTraits(namespace=pod.namespace, labels={}, above=ABSENT, around=around)) for pod in world.pods]


def find(of: budget.CostBudget) -> SpendLimit:
    found = limits.find(Known((of,)), pods(), NOW)
    assert isinstance(found, Known)
    [limit] = found.value
    return limit


@pytest.mark.accepts("cost", 17)
@pytest.mark.parametrize(("throttle", "says"), [
    (ThrottleRule(block_on_demand=True), {"closed": frozenset({ON_DEMAND})}),
    (ThrottleRule(block_spot=True), {"closed": frozenset({SPOT})}),
    (ThrottleRule(max_spot_instances=5, block_on_demand=True),
     {"closed": frozenset({ON_DEMAND}), "most_spot_nodes": 5}),
    (ThrottleRule(max_spot_instances=0), {"most_spot_nodes": 0}),
    (ThrottleRule(prefer_on_demand=True), {"prefers_on_demand": True}),
], ids=["on-demand", "spot", "as-the-readme-has-it", "no-spot-node", "on-demand-first"])
def test_a_throttle_closes_what_it_says_to_the_pods_of_its_scope_alone(
    throttle: ThrottleRule, says: dict[str, Any]
) -> None:
    [mine] = [pod.uid for pod, _ in pods() if pod.namespace == "ml"]
    assert find(spent(throttle=throttle)) == SpendLimit(budget="b", pods=frozenset({mine}), **says)


@pytest.mark.accepts("cost", 18)
def test_a_block_closes_every_way_of_paying() -> None:
    assert find(spent(EnforcementMode.block)).closed == frozenset({SPOT, ON_DEMAND, CapacityType.reserved})


@pytest.mark.accepts("cost", 17)
@pytest.mark.parametrize("of", [
    spent(enforced=False), spent(EnforcementMode.alert), spent(age=budget.STALE_AFTER), spent(enabled=False),
    spent(invalid=("spec.alerts[0]: odd",)),
    msgspec.structs.replace(spent(), standing=budget.BudgetStanding(is_enforced=True)),
], ids=["within", "only-tells", "old", "disabled", "invalid", "of-nobody-knows-when"])
def test_a_budget_that_does_not_surely_restrict_now_closes_nothing(of: budget.CostBudget) -> None:
    assert limits.find(Known((of,)), pods(), NOW) == ABSENT


@pytest.mark.accepts("cost", 17)
def test_budgets_that_are_not_seen_and_pods_of_nobody_knows_whom() -> None:
    unseen = Unseen("costbudgets: forbidden")
    assert limits.find(unseen, pods(), NOW) == unseen
    [(pod, traits), *_] = pods()
    of = msgspec.structs.replace(spent(), scope=budget.SpendScope(teams=("ml",)))
    anybodys = msgspec.structs.replace(traits, around=Unseen("not listed"))
    found = limits.find(Known((of,)), [(pod, anybodys)], NOW)
    assert isinstance(found, Known)
    assert [limit.pods for limit in found.value] == [frozenset()]
