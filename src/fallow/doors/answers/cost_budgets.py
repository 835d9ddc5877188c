"""Budgets as a page: how far each is used, how it got there, what will come of it.

In: the CostBudgets of the cluster with our last status on them, the ledger. Out: a BudgetsPage, the fullest first.
A budget that only the ledger knows (its object is gone, or is not seen here) is told as it was read last, for a day.
Invariant: nothing is written; what is not known is None. What was spent day by day is the ledger's, and ends where
somebody looked last.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fallow.act.budgets import words
from fallow.doors import answers
from fallow.doors.answers import budgets
from fallow.doors.answers import cost as telling
from fallow.doors.answers.budgets import BudgetRow
from fallow.doors.answers.cost import WindowTold
from fallow.doors.answers.cost_books import NAMESPACE, CostBooks
from fallow.model import cost, units
from fallow.model.cost import BudgetReading, CostFilter, CostQuery, CostStep, Second
from fallow.model.policies.budget import CostBudget
from fallow.model.units import Instant

MOST_BURNS: Final = 24  # budgets whose days are told; one sees no more of them at once
_READINGS: Final[Second] = cost.DAY  # a budget that nobody read for longer is gone
_BY_HOUR: Final[Second] = 3 * cost.DAY  # of a period that is no longer


class AlertFired(answers.Shape, frozen=True, kw_only=True):
    """`threshold`: percent of the limit. `is_seen`: somebody has acknowledged it."""

    alert: str
    at: str
    threshold: float
    is_seen: bool


class OverrideTold(answers.Shape, frozen=True, kw_only=True):
    until: str
    by: str
    reason: str
    cost: float | None


class SpentUntil(answers.Shape, frozen=True, kw_only=True):
    """Since the period began."""

    at: str
    spend: float


class BudgetTold(answers.Shape, frozen=True, kw_only=True):
    """As it was read last. `projected`: what its period will come to, None where it is too early to tell. `mode`: what
    happens when it is spent; `why`: it does, or does not now. `burn`: from the begin of its period until somebody
    looked last."""

    budget: str
    at: str | None
    namespace: str
    team: str
    scope: str | None
    limit: float | None
    spend: float | None
    percentage_used: float | None
    status: str | None
    period: WindowTold | None
    projected: float | None
    mode: str | None
    is_enforced: bool
    why: str
    alerts: tuple[AlertFired, ...]
    override: OverrideTold | None
    unpriced_gpu_hours: float | None
    problems: tuple[str, ...]
    burn: tuple[SpentUntil, ...]


class BudgetsPage(answers.Shape, frozen=True, kw_only=True):
    """`books_since`: what was spent before is not known, and in no budget."""

    as_of: str
    books_since: str | None
    currency: str
    items: tuple[BudgetTold, ...]


async def read_budgets(books: CostBooks, now: Instant) -> BudgetsPage:
    meta, began, readings = await asyncio.gather(
        books.ledger.read_meta(), books.ledger.read_began(),
        books.ledger.read_budgets(int(now) - _READINGS, int(now) + 1),
    )
    there = sorted(books.budgets(), key=lambda one: (-_used(one), one.name))
    until = min(int(now), meta.seen_until)
    burns = await asyncio.gather(*(_read_burn(books, one, began, until) for one in there[:MOST_BURNS]))
    items = [_tell(one, burn, now) for one, burn in zip(there, burns, strict=False)]
    items += [_tell(one, (), now) for one in there[MOST_BURNS:]]
    items += _tell_readings(readings, {one.name for one in there})
    return BudgetsPage(
        as_of=units.rfc3339(meta.seen_until), currency=meta.currency,
        books_since=None if began is None else units.rfc3339(began),
        items=tuple(sorted(items, key=lambda one: (-(one.percentage_used or 0.0), one.budget))),
    )


def _used(one: CostBudget) -> float:
    return float(one.standing.status.get("percentageUsed") or 0.0)


# ---- how it was spent ------------------------------------------------------------------------------------------------


async def _read_burn(
    books: CostBooks, of: CostBudget, began: Second | None, until: Second
) -> tuple[SpentUntil, ...]:
    """By days of its own calendar, or by hours where it is short; from when books are kept."""
    bounds = _find_bounds(of)
    where = _find_filters(of)
    if bounds is None or where is None or began is None or until <= max(bounds[0], began):
        return ()
    begin, end = max(bounds[0], began), min(bounds[1], until)
    step = CostStep.hour if bounds[1] - bounds[0] <= _BY_HOUR else CostStep.day
    sums = await books.sums(CostQuery(begin=begin, end=end, where=where, step=step, zone=of.period.zone))
    spent, burn = 0, [SpentUntil(at=units.rfc3339(begin), spend=0.0)]
    for one in sums:
        spent += one.total.cost
        burn.append(SpentUntil(at=units.rfc3339(min(one.end, end)), spend=telling.money(spent)))
    if sums and sums[-1].end < end:  # nothing was spent since
        burn.append(SpentUntil(at=units.rfc3339(end), spend=telling.money(spent)))
    return tuple(burn)


def _find_bounds(of: CostBudget) -> tuple[Second, Second] | None:
    period: Mapping[str, Any] = of.standing.status.get("period") or {}
    start, end = units.read_instant(period.get("start")), units.read_instant(period.get("end"))
    return None if start is None or end is None else (int(start), int(end))


def _find_filters(of: CostBudget) -> tuple[CostFilter, ...] | None:
    """None: nobody is known to be meant; a filter without values would mean everybody."""
    filters = of.scope.filters(payer=True)
    if of.scope.namespace_selector is None:
        return filters
    meant = of.standing.namespaces
    return (*filters, CostFilter(NAMESPACE, frozenset(meant))) if meant else None


# ---- as it is told ---------------------------------------------------------------------------------------------------


def _tell(of: CostBudget, burn: Sequence[SpentUntil], now: Instant) -> BudgetTold:
    row = budgets.row(of, words.scope_words(of.scope), now)
    problems = (*row.problems, *(["its status is old: is a leader running?"] if row.is_stale else []))
    return BudgetTold(
        budget=of.name, at=row.updated, namespace=_one(of.scope.namespaces), team=_one(of.scope.teams),
        scope=row.scope, limit=_money(row.amount), spend=_money(row.spent), percentage_used=row.used_percent,
        status=row.level, period=_tell_period(row), projected=_money(row.projected), mode=row.mode,
        is_enforced=row.enforcing, why=row.why, alerts=_tell_alerts(of), override=_tell_override(row),
        unpriced_gpu_hours=row.unpriced_gpu_hours, problems=problems, burn=tuple(burn),
    )


def _one(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""


def _money(text: str | None) -> float | None:
    return None if text is None else float(text)


def _tell_period(row: BudgetRow) -> WindowTold | None:
    if row.period_start is None or row.period_end is None:
        return None
    return WindowTold(start=row.period_start, end=row.period_end)


def _tell_alerts(of: CostBudget) -> tuple[AlertFired, ...]:
    fired: Iterable[Mapping[str, Any]] = of.standing.status.get("alertsFired") or ()
    return tuple(
        AlertFired(alert=str(one.get("alertName")), at=str(one.get("timestamp")),
                   threshold=float(one.get("threshold") or 0.0), is_seen=_has_seen(of, one))
        for one in fired
    )


def _has_seen(of: CostBudget, fired: Mapping[str, Any]) -> bool:
    """Also since its status was written."""
    start = of.standing.period_start
    return bool(fired.get("acknowledged")) or (start is not None and of.has_seen(str(fired.get("alertName")), start))


def _tell_override(row: BudgetRow) -> OverrideTold | None:
    if row.override_until is None:
        return None
    return OverrideTold(
        until=row.override_until, by=row.override_by or "", reason=row.override_reason or "",
        cost=_money(row.override_cost),
    )


def _tell_readings(readings: Iterable[BudgetReading], known: set[str]) -> list[BudgetTold]:
    """The newest of each."""
    newest = {one.budget: one for one in sorted(readings, key=lambda each: each.at) if one.budget not in known}
    return [
        BudgetTold(
            budget=one.budget, at=units.rfc3339(one.at), namespace=one.namespace, team=one.team, scope=None,
            limit=telling.money(one.limit), spend=telling.money(one.spend),
            percentage_used=round(one.used_micro / 10_000, 2), status=one.status, period=None, projected=None,
            mode=None, is_enforced=False, why="", alerts=(), override=None, unpriced_gpu_hours=None, problems=(),
            burn=(),
        )
        for one in newest.values()
    ]
