"""Which NodePools get no more GPUs under a throttle, which are given back, and why all others stay as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.decide.budgets import builders
from tests.unit.decide.budgets.builders import DAY0, HOUR, look, make

from fallow import names
from fallow.decide.budgets import node_pools, plan
from fallow.decide.budgets.node_pools import PoolEdits
from fallow.model import budgets
from fallow.model import node_pools as pools
from fallow.model.cost import CapacityType
from fallow.model.policies import budget
from fallow.model.selectors import Selector

NOW = float(DAY0 + HOUR)
ON_DEMAND, SPOT, RESERVED = CapacityType.on_demand, CapacityType.spot, CapacityType.reserved
NARROW = [
    {"type": budget.ScopeType.team, "teams": ("ml",)}, {"namespaces": ("ml",)}, {"labels": (("tier", "gold"),)},
    {"experiment": "e"}, {"namespace_selector": Selector(match_labels={"team": "ml"})},
    {"type": budget.ScopeType.namespace, "namespaces": ("ml",)}, {"type": budget.ScopeType.namespace},
]


def pool(*tiers: CapacityType, **more: Any) -> pools.PoolSeen:
    return pools.PoolSeen(**{
        "name": "gpu", "uid": "p", "version": "7", "tiers": frozenset(tiers) if tiers else None, "gpus": 4, **more,
    })


def throttle(name: str = "all", mode: str = "throttle", scope: Any = None, **rule: Any) -> budget.CostBudget:
    closes = budget.ThrottleRule(**(rule or {"block_on_demand": True}))
    how = budget.EnforcementRule(mode=budget.EnforcementMode(mode), grace=0.0, throttle=closes)
    return make(1000, name=name, uid=name, enforcement=how, scope=budget.SpendScope(**(scope or {})))


def exceeded(of: budget.CostBudget, total: int = 2000, **more: Any) -> budgets.BudgetState:
    return look(of, total, NOW, **more)


def judge(*found: pools.PoolSeen, by: Any = None, edits: PoolEdits = PoolEdits.done) -> node_pools.PoolPlan:
    states = [exceeded(throttle())] if by is None else by
    return node_pools.plan(states, found, edits)


def record(**more: Any) -> str:
    said = {"limits": None, "gpus": "4", "budgets": ("all",), "since": "2026-11-02T00:00:00Z", **more}
    return pools.write(pools.PoolRecord(**said))


@pytest.mark.parametrize(("tiers", "rule", "is_held"), [
    ({ON_DEMAND}, {"block_on_demand": True}, True),
    ({SPOT}, {"block_spot": True}, True),
    ({ON_DEMAND, SPOT}, {"block_on_demand": True, "block_spot": True}, True),
    ({ON_DEMAND, SPOT}, {"block_on_demand": True}, False),
    ({ON_DEMAND, RESERVED}, {"block_on_demand": True}, False),
    ({SPOT}, {"block_on_demand": True}, False),
    ({RESERVED}, {"block_on_demand": True, "block_spot": True}, False),
    ({ON_DEMAND}, {"prefer_on_demand": True}, False),
    ({SPOT}, {"max_spot_instances": 0, "max_gpus": 0}, False),  # counts of a scope: the gate keeps them
    (set(), {"block_on_demand": True, "block_spot": True}, False),  # it does not say how it pays
])
def test_a_pool_is_held_where_all_that_it_makes_is_closed(tiers, rule, is_held):
    found = judge(pool(*tiers), by=[exceeded(throttle(**rule))])
    assert [(each.gpus, each.budgets) for each in found.holds] == ([(4, ("all",))] if is_held else [])
    assert (found.frees, found.left) == ((), ())


def test_two_budgets_may_close_a_pool_together():
    spot = throttle("spot", block_spot=True)
    (held,) = judge(pool(ON_DEMAND, SPOT), by=[exceeded(throttle()), exceeded(spot)]).holds
    assert held.budgets == ("all", "spot")
    (held,) = judge(pool(ON_DEMAND), by=[exceeded(throttle()), exceeded(spot)]).holds
    assert held.budgets == ("all",)


@pytest.mark.parametrize("scope", NARROW, ids=str)
def test_a_narrower_scope_holds_no_pool_and_says_so(scope):
    terms = msgspec.structs.replace(builders.ALLOWED, pools=PoolEdits.done)
    seen = budgets.SpendSeen(total=0, unpriced=0)
    state = budgets.BudgetState(
        budget=throttle(scope=scope), ready=budgets.WhyReady.Valid, ready_because="", spend=seen,
        enforced=budgets.WhyEnforced.Enforced,
    )
    assert judge(pool(ON_DEMAND), by=[state]) == node_pools.PoolPlan()
    assert node_pools.is_narrow(state.budget)
    team = throttle(scope={"namespaces": ("ml",)})
    said = exceeded(team, terms=terms).enforced_because
    assert said.endswith("; NodePools stay as they are, because they serve others, too")
    assert node_pools.NARROW not in exceeded(throttle(), terms=terms).enforced_because
    assert node_pools.NARROW not in exceeded(team).enforced_because  # nobody asked for it


@pytest.mark.parametrize("by", [
    [], [exceeded(throttle(), 10)], [exceeded(throttle(mode="block"))], [exceeded(throttle(mode="alert"))],
    [exceeded(throttle(), terms=plan.BudgetTerms())],
    [exceeded(throttle(), seen=builders.books(NOW - 3600))],
    [exceeded(throttle(), seen=builders.books(NOW, missing=("costs wait",)))],
    [exceeded(msgspec.structs.replace(throttle(), enabled=False))],
    [exceeded(msgspec.structs.replace(throttle(), invalid=("spec.alerts",)))],
    [exceeded(msgspec.structs.replace(throttle(), wish=budget.OverrideWish("x", NOW + 60, "ada", "why")))],
], ids=["gone", "within", "block", "alert", "not-allowed", "old", "incomplete", "disabled", "invalid", "overridden"])
def test_without_a_throttle_in_force_none_is_held_and_what_was_is_given_back(by):
    assert judge(pool(ON_DEMAND), by=by).holds == ()
    (freed,) = judge(pool(ON_DEMAND, record=record()), by=by).frees
    assert freed.because == "no budget of the whole cluster closes all that it makes any more"


def test_what_is_held_stays_so_as_long_as_it_is_closed():
    assert judge(pool(ON_DEMAND, record=record())) == node_pools.PoolPlan()
    assert judge(pool(ON_DEMAND, record=record(), gpus=None)) == node_pools.PoolPlan()
    assert len(judge(pool(ON_DEMAND, SPOT, record=record())).frees) == 1  # somebody opened it for spot
    assert len(judge(pool(record=record())).frees) == 1


@pytest.mark.parametrize("edits", [PoolEdits.off, PoolEdits.said])
def test_switched_off_it_gives_back(edits):
    (freed,) = judge(pool(ON_DEMAND, record=record()), edits=edits).frees
    assert freed.because.startswith("NodePools may not be held any more")
    assert bool(judge(pool(ON_DEMAND), edits=edits).holds) == (edits is PoolEdits.said)


def test_while_budgets_restrict_nobody_it_says_what_it_would_do():
    by = [exceeded(throttle(), terms=plan.BudgetTerms())]
    assert by[0].enforced is budgets.WhyEnforced.NotEnabled
    assert len(judge(pool(ON_DEMAND), by=by, edits=PoolEdits.said).holds) == 1
    assert judge(pool(ON_DEMAND), by=by, edits=PoolEdits.done).holds == ()


@pytest.mark.parametrize(("more", "why"), [
    ({"gpus": None}, "Karpenter has not said how many GPUs it has"),
    ({"is_fixed": True}, "it keeps a fixed number of nodes, and takes no limit of GPUs"),
    ({"limits": {names.GPU: "4"}}, "its own limit of 4 GPUs is reached"),
    ({"limits": {names.GPU: 2}}, "its own limit of 2 GPUs is reached"),
    ({"limits": {names.GPU: "many"}}, "its own limit of GPUs cannot be read: many"),
])
def test_what_is_not_known_or_would_change_nothing_is_left_and_said(more, why):
    found = judge(pool(ON_DEMAND, **more))
    assert (found.holds, found.frees) == ((), ())
    assert found.left == (f"NodePool gpu stays as it is: {why}",)


@pytest.mark.parametrize("limits", [None, {}, {"cpu": "100"}, {names.GPU: "5"}, {names.GPU: 8, "cpu": 1}])
def test_a_limit_is_only_ever_lowered(limits):
    (held,) = judge(pool(ON_DEMAND, limits=limits)).holds
    assert held.gpus == 4


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"limits": 3}', '{"limits": {"cpu": true}}', "[" * 5000])
@pytest.mark.parametrize("edits", PoolEdits)
def test_a_record_that_cannot_be_read_is_touched_by_nobody(text, edits):
    found = judge(pool(ON_DEMAND, record=text), edits=edits)
    assert (found.holds, found.frees) == ((), ())
    assert "cannot be read" in found.left[0]


# ---- the way back ----------------------------------------------------------------------------------------------------

GPU = names.GPU


@pytest.mark.parametrize(("original", "now", "wanted"), [
    (None, {GPU: "4"}, {"limits": None}),
    ({}, {GPU: "4"}, {"limits": {GPU: None}}),
    ({GPU: "16"}, {GPU: "4"}, {"limits": {GPU: "16"}}),
    ({GPU: 16, "cpu": 100}, {GPU: "4", "cpu": 100}, {"limits": {GPU: 16}}),
    ({"cpu": "1k"}, {GPU: "4", "cpu": "1k"}, {"limits": {GPU: None}}),
    (None, {GPU: "4", "cpu": "50"}, {"limits": {GPU: None}}),  # cpu is somebody else's, meanwhile
    ({GPU: "16"}, {GPU: 4}, {"limits": {GPU: "16"}}),  # spelled otherwise
    ({GPU: "16"}, {GPU: "32"}, {}), ({GPU: "16"}, {}, {}), (None, None, {}), (None, {"cpu": "1"}, {}),
])
def test_the_way_back_is_the_limit_that_was_there_and_nothing_where_somebody_else_wrote_one(original, now, wanted):
    kept = pools.read(record(limits=original))
    assert kept is not None
    assert kept.limits == original
    assert pools.find_way_back(kept, now) == wanted


def test_scopes():
    assert budget.SpendScope().is_whole
    assert not [scope for scope in NARROW if budget.SpendScope(**scope).is_whole]
