"""What budgets that are exceeded forbid to whom, when nodes are chosen.

In: CostBudgets with what their own status says, GPU pods with whose they are. Out: SpendLimits. The admission webhook
keeps pods out by the same words; here they close ways of paying for a node, and nobody's policy is edited.
Invariant: a budget whose status is too old, or of which nobody knows whether it means a pod, forbids that pod nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fallow.model import cluster
from fallow.model.cost import CapacityType
from fallow.model.policies import budget
from fallow.model.policies.budget import CostBudget, EnforcementMode, PodTraits
from fallow.model.policies.scaling import TIERS
from fallow.model.scaling import SpendLimit
from fallow.model.seen import Input, Known, several
from fallow.model.units import Instant

_MODES: Final = (EnforcementMode.throttle, EnforcementMode.block)


def find(
    budgets: Input[tuple[CostBudget, ...]], pods: Sequence[tuple[cluster.Pod, PodTraits]], now: Instant
) -> Input[tuple[SpendLimit, ...]]:
    if not isinstance(budgets, Known):
        return budgets
    holding = [each for each in budgets.value if _holds(each, now)]
    return several(tuple(_make(each, pods) for each in holding))


def _holds(of: CostBudget, now: Instant) -> bool:
    updated = of.standing.last_updated
    is_fresh = updated is not None and now - updated < budget.STALE_AFTER
    return of.enabled and not of.invalid and of.standing.is_enforced and is_fresh and of.enforcement.mode in _MODES


def _make(of: CostBudget, pods: Iterable[tuple[cluster.Pod, PodTraits]]) -> SpendLimit:
    meant = frozenset(pod.uid for pod, traits in pods if of.scope.covers(traits, payer=True) is True)
    if of.enforcement.mode is EnforcementMode.block:
        return SpendLimit(budget=of.name, pods=meant, closed=frozenset(TIERS))
    rule = of.enforcement.throttle
    closed = {CapacityType.on_demand: rule.block_on_demand, CapacityType.spot: rule.block_spot}
    return SpendLimit(
        budget=of.name, pods=meant, closed=frozenset(tier for tier, is_closed in closed.items() if is_closed),
        most_spot_nodes=rule.max_spot_instances, prefers_on_demand=rule.prefer_on_demand,
    )
