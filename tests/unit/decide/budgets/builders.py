"""Budgets and what was spent on them, for tests of the rules."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fallow.decide.budgets import plan, scope
from fallow.model import budgets, cost
from fallow.model.policies import budget, idle
from fallow.model.seen import Known, Register

DAY0 = 1_793_577_600  # 2026-11-02T00:00:00Z, a Monday
HOUR, DAY = 3600, 86400
SLACK = idle.Channel("slack-1", idle.ChannelType.slack)
MAIL = idle.Channel("email-1", idle.ChannelType.email)
PAGER = idle.Channel("pagerduty-1", idle.ChannelType.pagerduty)
ALLOWED = plan.BudgetTerms(enforces=True)


def alert(threshold: Any, *channels: idle.Channel, **more: Any) -> budget.AlertRule:
    return budget.AlertRule(name=f"at-{threshold}", threshold=Decimal(threshold), channels=channels, **more)


def make(amount: Any = 1000, *alerts: budget.AlertRule, days: int = 30, **more: Any) -> budget.CostBudget:
    return budget.CostBudget(**{
        "name": "b", "uid": "u", "generation": 1, "scope": budget.SpendScope(), "amount": Decimal(amount),
        "alerts": alerts, "period": budget.BudgetPeriod(length=days * DAY, start=float(DAY0)), **more,
    })


def books(now: float, **more: Any) -> budgets.BooksSeen:
    return budgets.BooksSeen(**{"currency": "USD", "until": now, "began": float(DAY0 - 60 * DAY), **more})


def spent(total: Any, **more: Any) -> budgets.SpendSeen:
    return budgets.SpendSeen(**{"total": int(Decimal(total) * cost.UNIT), "unpriced": 0, **more})


def look(
    of: budget.CostBudget, total: Any, now: float, *, terms: plan.BudgetTerms = ALLOWED, streaks: Any = None,
    seen: budgets.BooksSeen | None = None, **more: Any,
) -> budgets.BudgetState:
    """One evaluation, and what it comes to."""
    ledger = seen or books(now)
    asked = plan.question(of, Register({}), Known(ledger), terms, now)
    if isinstance(asked, budgets.BudgetState):
        return asked
    return plan.evaluate(asked, spent(total, **more), ledger, streaks or {}, terms, now)


def asked_of(of: budget.CostBudget, namespaces: Register[Any], now: float) -> scope.BudgetQuestions:
    found = plan.question(of, namespaces, Known(books(now)), ALLOWED, now)
    assert isinstance(found, plan.BudgetAsked), found
    return found.questions
