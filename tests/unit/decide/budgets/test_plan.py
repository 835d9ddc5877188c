"""When alerts fire and end, when a budget restricts and lifts, and which pods go on: evaluation by evaluation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.decide.budgets import builders
from tests.unit.decide.budgets.builders import DAY, DAY0, HOUR, MAIL, PAGER, SLACK, alert, look, make

from fallow.decide.budgets import gates, plan
from fallow.model import budgets, cluster
from fallow.model.budgets import AlertState, SendState, WhyEnforced
from fallow.model.policies import budget
from fallow.model.seen import ABSENT, Register

ENDS = DAY0 + 30 * DAY


class Days:
    """Evaluations in a row: what is remembered is what a ledger and a status would."""

    def __init__(self, of: budget.CostBudget) -> None:
        self.of, self.memory, self.streaks = of, {}, {}
        self.plan = budgets.BudgetPlan(states=())

    def see(self, total, now, **more) -> list[str]:
        """What happened: `at-80 fired`."""
        state = look(self.of, total, now, streaks=self.streaks, **more)
        self.plan = plan.plan([state], self.memory, now)
        self.streaks = state.streaks
        delivered = [_deliver(record) for record in self.plan.records]
        self.memory = self.memory | {record.key: record for record in delivered}
        override = None if state.override is None else budget.OverrideSeen(
            state.override.asked, state.override.since, state.override.until
        )
        self.of = msgspec.structs.replace(self.of, standing=budget.BudgetStanding(
            last_updated=now, period_start=float(state.period.start), exceeded_since=state.exceeded_since,
            is_enforced=state.is_enforced, override=override,
        ))
        return [f"{record.alert} {record.state}" for record in self.plan.records]

    @property
    def state(self) -> budgets.BudgetState:
        return self.plan.states[0]


def _deliver(record: budgets.AlertRecord) -> budgets.AlertRecord:
    done = (msgspec.structs.replace(each, state=SendState.delivered) for each in record.sendings)
    return msgspec.structs.replace(record, sendings=tuple(done))


# ---- alerts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "level"), [
    ("799.99", "ok"), ("800", "warning"), ("999.99", "warning"), ("1000", "exceeded"), ("1000.01", "exceeded"),
])
def test_a_budget_is_ok_below_80_percent_and_exceeded_from_100_on(total, level):
    assert look(make(1000), total, DAY0 + DAY).level == level


@pytest.mark.accepts("cost", 14)
def test_each_alert_fires_once_in_a_period_and_is_armed_again_by_the_next_one():
    days = Days(make(1000, alert(80, SLACK), alert(100, MAIL, PAGER)))
    seen = [said for turn in range(100) for said in days.see(turn * 12, DAY0 + turn * HOUR)]
    assert seen == ["at-80 fired", "at-100 fired"]
    assert days.see(1, ENDS + 60) == ["at-80 resolved", "at-100 resolved"]
    told = [(each.channel, each.event) for record in days.plan.records for each in record.sendings]
    assert told == [("slack-1", "fired"), ("email-1", "fired"), ("pagerduty-1", "fired"), ("pagerduty-1", "resolved")]
    assert days.see(850, ENDS + 120) == ["at-80 fired"]


def test_an_alert_ends_two_points_below_and_fires_again_a_day_after_it_did():
    days = Days(make(1000, alert(80, PAGER)))
    assert days.see(10, DAY0 + 1) == []
    assert days.see(800, DAY0 + HOUR) == ["at-80 fired"]
    assert days.see(781, DAY0 + 2 * HOUR) == []
    assert days.see(779, DAY0 + 3 * HOUR) == ["at-80 resolved"]
    assert days.see(800, DAY0 + 4 * HOUR) == []
    assert days.see(800, DAY0 + 25 * HOUR - 1) == []
    assert days.see(800, DAY0 + 25 * HOUR) == ["at-80 fired"]


def test_a_new_budget_that_is_over_several_tells_of_the_highest_only():
    days = Days(make(1000, alert(50, SLACK), alert(80, SLACK), alert(100, SLACK), alert(120, SLACK)))
    assert days.see(1050, DAY0 + HOUR) == ["at-50 passed", "at-80 passed", "at-100 fired"]
    assert [len(record.sendings) for record in days.plan.records] == [0, 0, 1]
    assert days.see(1060, DAY0 + 2 * HOUR) == []
    assert days.see(1200, DAY0 + 3 * HOUR) == ["at-120 fired"]


def test_who_was_never_reached_is_not_told_that_it_is_over():
    fired = plan.plan([look(make(1000, alert(80, PAGER)), 900, DAY0 + 1)], {}, DAY0 + 1).records
    waiting = {record.key: record for record in fired}
    of = make(1000, alert(80, PAGER), standing=budget.BudgetStanding(last_updated=1.0))
    (record,) = plan.plan([look(of, 0, DAY0 + 2)], waiting, DAY0 + 2).records
    assert (record.state, record.sendings) == (AlertState.resolved, ())


def test_what_was_not_delivered_by_the_end_of_its_period_is_still_told_and_then_its_end():
    fired = plan.plan([look(make(1000, alert(80, SLACK, PAGER)), 900, DAY0 + 1)], {}, DAY0 + 1).records
    of = make(1000, alert(80, SLACK, PAGER), standing=budget.BudgetStanding(last_updated=1.0))
    (record,) = plan.plan([look(of, 0, ENDS + 1)], {each.key: each for each in fired}, ENDS + 1).records
    assert record.state is AlertState.resolved
    assert [(each.channel, each.event, each.state) for each in record.sendings] == [
        ("slack-1", "fired", "pending"), ("pagerduty-1", "fired", "pending"),
    ]
    assert plan.plan([look(of, 0, ENDS + 60)], {record.key: record}, ENDS + 60).records == ()
    late = _deliver(record)
    (record,) = plan.plan([look(of, 0, ENDS + 120)], {late.key: late}, ENDS + 120).records
    assert [(each.channel, each.event, each.state) for each in record.sendings[2:]] == [
        ("pagerduty-1", "resolved", "pending"),
    ]
    assert plan.plan([look(of, 0, ENDS + 180)], {record.key: record}, ENDS + 180).records == ()


def test_a_forecast_alert_needs_a_tenth_of_the_period_and_three_evaluations_in_a_row():
    rule = alert(100, SLACK, basis=budget.AlertBasis.forecast)
    days = Days(make(1000, rule))
    high, low = {"recent": 7 * 50 * 10**9}, {"recent": 7 * 10**9}
    young = {"seen": builders.books(ENDS, began=float(DAY0))}
    for minute in range(5):
        assert days.see(100, DAY0 + 2 * DAY + minute * 60, **high, **young) == []  # a fifteenth has passed
    at = DAY0 + 8 * DAY
    assert [days.see(100, at + 60 * turn, **which, **young) for turn, which in enumerate([high, high, low, high, high])
            ] == [[]] * 5
    assert days.see(100, at + 300, **high, **young) == ["at-100 fired"]
    assert days.see(100, at + 360, **high, **young) == []
    assert days.see(100, at + 420, **low, **young) == ["at-100 resolved"]


def test_an_alert_of_a_budget_that_is_gone_is_closed():
    days = Days(make(1000, alert(80, PAGER)))
    days.see(10, DAY0 + 1)
    days.see(900, DAY0 + 60)
    (closed,) = plan.plan([], days.memory, DAY0 + 120).records
    assert closed.state is AlertState.resolved


def test_records_survive_as_rows_of_the_ledger():
    days = Days(make(1000, alert(80, SLACK, PAGER), alert(90)))
    days.see(10, DAY0 + 1)
    days.see(950, DAY0 + 60)
    stored = [row for record in days.memory.values() for row in budgets.rows(record)]
    assert [(row.alert, row.channel) for row in stored] == [("at-80", "slack-1"), ("at-80", "pagerduty-1"),
                                                               ("at-90", "")]
    assert budgets.join(stored) == days.memory


# ---- restricting -----------------------------------------------------------------------------------------------------

BLOCK = budget.EnforcementRule(mode=budget.EnforcementMode.block, grace=2.0 * HOUR)


@pytest.mark.accepts("cost", 17)
def test_it_restricts_after_the_grace_period_not_before_and_lifts_at_once():
    days = Days(make(1000, enforcement=BLOCK))
    for minutes in range(0, 120, 10):
        days.see(1001, DAY0 + DAY + minutes * 60)
        assert days.state.enforced is WhyEnforced.GracePeriod
    days.see(1001, DAY0 + DAY + 7200)
    assert [each.mode for each in days.plan.begun] == ["block"]
    days.see(1001, DAY0 + DAY + 7260)
    assert (len(days.plan.restricts), days.plan.begun, days.plan.lifts) == (1, (), ())
    days.of = msgspec.structs.replace(days.of, amount=make(2000).amount)
    days.see(1001, DAY0 + DAY + 7320)
    assert [each.budget for each in days.plan.lifts] == ["b"]
    assert days.plan.restricts == ()


def test_a_break_begins_the_grace_period_anew_and_so_does_a_new_period():
    days = Days(make(1000, enforcement=BLOCK))
    days.see(1001, DAY0 + DAY)
    days.see(999, DAY0 + DAY + HOUR)
    days.see(1001, DAY0 + DAY + 2 * HOUR)
    days.see(1001, DAY0 + DAY + 3 * HOUR)
    assert days.state.enforced is WhyEnforced.GracePeriod
    days.see(1001, DAY0 + DAY + 4 * HOUR)
    assert days.state.is_enforced
    days.see(1001, ENDS + 1)
    assert days.state.enforced is WhyEnforced.GracePeriod


EXCEEDED = {"standing": budget.BudgetStanding(exceeded_since=float(DAY0), last_updated=1.0), "enforcement": BLOCK}
NOW = DAY0 + DAY


@pytest.mark.parametrize(("of", "more", "why"), [
    (make(1000, **EXCEEDED), {}, "Enforced"),
    (make(1000, **EXCEEDED), {"terms": plan.BudgetTerms()}, "NotEnabled"),
    (make(1000, **EXCEEDED), {"seen": builders.books(NOW - 901)}, "LedgerStale"),
    (make(1000, **EXCEEDED), {"seen": builders.books(NOW + 901)}, "LedgerStale"),
    (make(1000, **EXCEEDED), {"seen": builders.books(NOW - 899)}, "Enforced"),
    (make(1000, **EXCEEDED), {"seen": builders.books(NOW, missing=("an hour is missing",))}, "DataIncomplete"),
    (make(1000, **EXCEEDED), {"unpriced": 1}, "Enforced"),  # a second without a price is no way past it
    (make(2000, **EXCEEDED), {"unpriced": 1}, "WithinBudget"),
    (make(1000, **EXCEEDED, invalid=("spec.alerts: bad",)), {}, "NotReady"),
    (make(1000, **{**EXCEEDED, "enforcement": budget.EnforcementRule()}), {}, "AlertOnly"),
    (make(2000, **EXCEEDED), {}, "WithinBudget"),
])
def test_it_restricts_only_what_it_surely_may(of, more, why):
    state = look(of, 1500, NOW, **more)
    assert state.enforced == why
    assert state.is_enforced is (why == "Enforced")


def test_an_override_holds_as_long_as_it_was_asked_for_but_never_longer_than_it_may():
    wish = budget.OverrideWish("in a month", DAY0 + 40 * DAY, "user:ada", "release")
    days = Days(make(1000, **EXCEEDED, wish=wish, days=90))
    days.see(1500, NOW)
    assert days.state.enforced is WhyEnforced.Overridden
    assert "ada" in days.state.enforced_because
    days.see(1500, NOW + 72 * HOUR - 1)
    assert days.state.enforced is WhyEnforced.Overridden
    days.see(1500, NOW + 72 * HOUR)
    assert days.state.is_enforced
    days.of = msgspec.structs.replace(days.of, wish=budget.OverrideWish("again", NOW + 90 * HOUR, "user:ada", ""))
    days.see(1500, NOW + 73 * HOUR)
    assert days.state.override.until == NOW + 90 * HOUR
    days.see(1500, NOW + 90 * HOUR)
    assert days.state.is_enforced


# ---- gates -----------------------------------------------------------------------------------------------------------


def waiting(
    name: str, at: float, gpus: int | None = 1, budgets_: tuple[str, ...] = ("b",), *, namespace: str = "ml",
    labels: dict[str, str] | None = None, is_cheap: bool = False,
) -> gates.HeldPod:
    pod = budgets.GatedPod(
        ref=cluster.Ref("", "v1", "Pod", namespace, name, name), created_at=at, gpus=gpus, budgets=budgets_,
        gates=("gpuautoscaler.io/budget",),
    )
    whose = budget.PodTraits(namespace=namespace, labels=labels or {}, above=ABSENT, around=ABSENT)
    return gates.HeldPod(pod=pod, whose=whose, is_cheap=is_cheap)


def holding(name: str = "b", scope: dict[str, Any] | None = None, **throttle: Any) -> dict[str, budget.CostBudget]:
    rule = budget.EnforcementRule(
        mode=budget.EnforcementMode.throttle, throttle=budget.ThrottleRule(**throttle), grace=0.0
    )
    of = make(1000, scope=budget.SpendScope(**(scope or {"namespaces": ("ml",)})), enforcement=rule)
    return {name: msgspec.structs.replace(of, name=name)}


def released(pods, throttled, uses):
    return [pod.ref.name for pod in gates.release(pods, throttled, uses)]


def test_gates_go_oldest_first_as_far_as_there_is_room():
    pods = [waiting("new", 3), waiting("old", 1, gpus=2), waiting("middle", 2)]
    cap = holding(max_gpus=8)
    assert released(pods, cap, {"b": gates.ScopeUse(5, 0)}) == ["old", "middle"]
    assert released(pods, cap, {"b": gates.ScopeUse(8, 0)}) == []
    assert released(pods, cap, {}) == []


@pytest.mark.parametrize(("gpus", "room", "goes_on"), [
    (0, 1, True), (0, 0, False), (1, 1, True), (2, 1, False), (None, 8, False),
], ids=["a-part-counts-as-one", "which-there-is-not", "one", "two", "a-claim-is-not-there"])
def test_every_pod_takes_at_least_one_and_who_cannot_run_waits(gpus, room, goes_on):
    found = released([waiting("a", 1, gpus=gpus)], holding(max_gpus=8), {"b": gates.ScopeUse(8 - room, 0)})
    assert found == (["a"] if goes_on else [])


def test_without_a_budget_that_holds_them_all_gates_go():
    assert released([waiting("a", 1), waiting("b", 2)], {}, {}) == ["a", "b"]


def test_a_cap_of_spot_nodes_lets_one_pod_go_on_at_a_time():
    cap = holding(max_spot_instances=5)
    pods = [waiting("a", 1), waiting("b", 2)]
    assert released(pods, cap, {"b": gates.ScopeUse(9, 4)}) == ["a"]
    assert released(pods, cap, {"b": gates.ScopeUse(9, 5)}) == []


def test_a_pod_that_two_budgets_mean_waits_for_both():
    caps = holding(max_gpus=8) | holding("c", max_gpus=1)
    uses = {"b": gates.ScopeUse(0, 0), "c": gates.ScopeUse(1, 0)}
    assert released([waiting("a", 1, budgets_=("b", "c")), waiting("z", 2)], caps, uses) == ["z"]


@pytest.mark.parametrize("cap", [{}, {"max_gpus": 100}, {"max_spot_instances": 100}], ids=["alone", "gpus", "nodes"])
def test_while_on_demand_is_closed_who_could_run_there_waits_however_much_room_there_is(cap):
    pods = [waiting("unfit", 1), waiting("spot", 2, is_cheap=True)]
    assert released(pods, holding(block_on_demand=True, **cap), {"b": gates.ScopeUse(0, 0)}) == ["spot"]


@pytest.mark.parametrize("cap", [{"max_gpus": 4}, {"max_spot_instances": 4}], ids=["gpus", "nodes"])
@pytest.mark.parametrize(("scope", "theirs"), [
    ({"namespaces": ("ml",)}, {}), ({"teams": ("blue",)}, {"labels": {"team": "blue"}}),
], ids=["of-another-namespace", "by-a-label-of-their-own"])
def test_strangers_that_name_a_budget_take_none_of_its_room(cap, scope, theirs):
    strangers = [waiting(f"x{at}", at, namespace="stranger", **theirs) for at in range(5)]
    mine = waiting("job", 100, labels={"team": "blue"})
    found = released([*strangers, mine], holding(scope=scope, **cap), {"b": gates.ScopeUse(0, 0)})
    assert "job" in found


# ---- what only tenants say -------------------------------------------------------------------------------------------


def test_what_pods_say_of_themselves_tells_but_restricts_nobody():
    """Else a tenant of a namespace without labels spends another team's budget, and that team is kept out."""
    block = budget.EnforcementRule(mode=budget.EnforcementMode.block, grace=0.0)
    of = make(1000, alert(100, SLACK), scope=budget.SpendScope(teams=("blue",)), enforcement=block)
    days, unit = Days(of), 10**9
    assert days.see(1500, DAY0 + HOUR, vouched=400 * unit) == ["at-100 fired"]
    assert (days.state.enforced, days.state.exceeded_since) == (WhyEnforced.OnlyClaimed, None)
    days.see(1500, DAY0 + 2 * HOUR, vouched=1000 * unit)
    assert days.state.enforced is WhyEnforced.Enforced


@pytest.mark.parametrize(("scope", "mode", "is_asked"), [
    ({"teams": ("blue",)}, "block", True), ({"labels": (("app", "x"),)}, "throttle", True),
    ({"experiment": "e"}, "block", True), ({"teams": ("blue",)}, "alert", False), ({}, "block", False),
    ({"teams": ("blue",), "namespaces": ("a",)}, "block", False),
])
def test_it_is_asked_for_where_a_tenant_could_claim_the_scope_and_it_would_hurt(scope, mode, is_asked):
    rule = budget.EnforcementRule(mode=budget.EnforcementMode(mode))
    asked = builders.asked_of(make(scope=budget.SpendScope(**scope), enforcement=rule), Register({}), DAY0 + HOUR)
    assert (asked.vouched is not None) is is_asked
