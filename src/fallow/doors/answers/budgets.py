"""A CostBudget as commands and API show it: what may be spent, what was, what comes of it.

In: CostBudgets as the cluster has them, with our last status on them. Out: BudgetRows. What is not known is None.
"""

from collections.abc import Mapping
from typing import Any

from fallow.doors import answers
from fallow.model import units
from fallow.model.policies.budget import STALE_AFTER, CostBudget
from fallow.model.units import Instant


class BudgetRow(answers.Shape, frozen=True, kw_only=True):
    name: str
    scope: str
    amount: str | None
    currency: str | None
    spent: str | None
    projected: str | None
    used_percent: float | None
    level: str | None  # ok, warning, exceeded
    mode: str
    enforcing: bool
    why: str  # it restricts, or does not
    period_start: str | None
    period_end: str | None
    pace: float | None
    unpriced_gpu_hours: float | None
    exceeded_since: str | None
    override_until: str | None
    override_by: str | None
    override_reason: str | None
    override_cost: str | None
    alerts: tuple[str, ...]  # that fired in this period
    problems: tuple[str, ...]
    updated: str | None
    is_stale: bool


def row(of: CostBudget, scope: str, now: Instant) -> BudgetRow:
    said, standing = of.standing.status, of.standing
    period, override = said.get("period") or {}, said.get("override") or {}
    fired = tuple(f"{each.get('alertName')}{' (seen)' if each.get('acknowledged') else ''}"
                  for each in said.get("alertsFired") or ())
    enforcing, ready = _condition(said, "Enforcing"), _condition(said, "Ready")
    complete = _condition(said, "Complete")
    problems = [each.get("message", "") for each in (ready, complete) if each.get("status") == "False"]
    updated = standing.last_updated
    return BudgetRow(
        name=of.name, scope=scope, amount=None if of.amount is None else f"{of.amount:.2f}",
        currency=standing.currency or of.currency or None, spent=said.get("currentSpend"),
        projected=said.get("projectedMonthlySpend"), used_percent=_number(said.get("percentageUsed")),
        level=said.get("budgetStatus"), mode=str(of.enforcement.mode), enforcing=standing.is_enforced,
        why=enforcing.get("message", ""), period_start=period.get("start"), period_end=period.get("end"),
        pace=_number(said.get("pace")), unpriced_gpu_hours=_number(said.get("unpricedGPUHours")),
        exceeded_since=said.get("exceededSince"), override_until=override.get("until"),
        override_by=override.get("by"), override_reason=override.get("reason"), override_cost=override.get("cost"),
        alerts=fired, problems=tuple(dict.fromkeys([*of.invalid, *filter(None, problems)])),
        updated=None if updated is None else units.rfc3339(updated),
        is_stale=updated is None or now - updated > STALE_AFTER,
    )


def _condition(said: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    found = (each for each in said.get("conditions") or () if each.get("type") == type_)
    return next(found, {})


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
