"""Which NodePools of Karpenter get no more GPUs while a budget throttles, and which have their own limits back.

In: the budgets at one instant, the NodePools, whether they may be held. Out: a PoolPlan.
Invariant: a NodePool serves everybody, so only a budget of the whole cluster holds one, and only one of which all that
it makes is closed. A limit is never raised. What is not known holds nothing; a record without a throttle in force is
always undone.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from fallow import names
from fallow.model import node_pools, quantities
from fallow.model.budgets import BudgetState, WhyEnforced
from fallow.model.cost import CapacityType
from fallow.model.node_pools import PoolSeen
from fallow.model.policies.budget import CostBudget, EnforcementMode

NARROW: Final = "NodePools stay as they are, because they serve others, too"


class PoolEdits(StrEnum):
    """`said`: what would be done is only said, because it is a dry run, or budgets restrict nobody."""

    off = "off"
    said = "said"
    done = "done"


class HoldPool(msgspec.Struct, frozen=True):
    """It may have no more than `gpus`, which is what it has."""

    pool: PoolSeen
    gpus: int
    budgets: tuple[str, ...]


class FreePool(msgspec.Struct, frozen=True):
    """It has its own limits back."""

    pool: PoolSeen
    because: str


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`left`: what is closed and stays as it is all the same, or cannot be given back; a sentence each."""

    holds: tuple[HoldPool, ...] = ()
    frees: tuple[FreePool, ...] = ()
    left: tuple[str, ...] = ()


def plan(states: Iterable[BudgetState], pools: Iterable[PoolSeen], edits: PoolEdits) -> PoolPlan:
    closing = [state.budget for state in states if _is_in_force(state, edits)]
    holds, frees, left = list[HoldPool](), list[FreePool](), list[str]()
    for pool in pools:
        by = _find_closing(pool, closing)
        if pool.record is not None and node_pools.read(pool.record) is None:
            left.append(f"NodePool {pool.name} has a record in {names.ORIGINAL_LIMITS} that cannot be read: put its "
                        "limits right yourself, and take that annotation away")
        elif pool.record is not None:
            frees += [] if by and edits is PoolEdits.done else [FreePool(pool, _say_over(edits))]
        elif by and (why := _find_why_left(pool)):
            left.append(f"NodePool {pool.name} stays as it is: {why}")
        elif by and pool.gpus is not None:
            holds.append(HoldPool(pool, pool.gpus, by))
    return PoolPlan(holds=tuple(holds), frees=tuple(frees), left=tuple(left))


def is_narrow(of: CostBudget) -> bool:
    """Would it close NodePools, were it of the whole cluster?"""
    return bool(_closed(of)) and not of.scope.is_whole


def _is_in_force(state: BudgetState, edits: PoolEdits) -> bool:
    would = edits is PoolEdits.said and state.enforced is WhyEnforced.NotEnabled
    is_on = edits is not PoolEdits.off and (state.is_enforced or would)
    return is_on and state.budget.scope.is_whole and bool(_closed(state.budget))


def _closed(of: CostBudget) -> frozenset[CapacityType]:
    """`maxSpotInstances` and `maxGPUs` are counts of a scope, which no limit of one NodePool says: gates keep them."""
    if of.enforcement.mode is not EnforcementMode.throttle:
        return frozenset()
    rule = of.enforcement.throttle
    closed = {CapacityType.on_demand: rule.block_on_demand, CapacityType.spot: rule.block_spot}
    return frozenset(tier for tier, is_closed in closed.items() if is_closed)


def _find_closing(pool: PoolSeen, closing: Iterable[CostBudget]) -> tuple[str, ...]:
    """The budgets that together close all that it makes; none: something of it is open, or not known."""
    if not pool.tiers:
        return ()
    found = {of.name: _closed(of) & pool.tiers for of in closing}
    is_shut = frozenset[CapacityType]().union(*found.values()) == pool.tiers
    return tuple(sorted(name for name, tiers in found.items() if tiers)) if is_shut else ()


def _find_why_left(pool: PoolSeen) -> str:
    """"": it can be held, and that changes something."""
    if pool.is_fixed:
        return "it keeps a fixed number of nodes, and takes no limit of GPUs"
    if pool.gpus is None:
        return "Karpenter has not said how many GPUs it has"
    limit = (pool.limits or {}).get(names.GPU)
    if limit is None:
        return ""
    try:
        most = quantities.parse(str(limit))
    except ValueError:
        return f"its own limit of GPUs cannot be read: {limit}"
    return f"its own limit of {limit} GPUs is reached" if most <= pool.gpus else ""


def _say_over(edits: PoolEdits) -> str:
    if edits is PoolEdits.done:
        return "no budget of the whole cluster closes all that it makes any more"
    return "NodePools may not be held any more (--cost-enforcement-edit-node-pools, --cost-enforcement, --run-mode)"
