"""Whose cost counts for a budget, and what to ask the books for.

In: a budget, the live namespaces, the period. Out: the questions to the ledger; or why they cannot be asked.
A selector means the namespaces that fit now; one that was deleted since it was meant in this period still counts, for
what it cost was spent. Invariant: namespaces that are not all seen make the scope unknown, and an empty choice asks
nothing: a filter without values would be none.
"""

from typing import Final

import msgspec

from fallow.model import cost
from fallow.model.budgets import OverrideHeld, PeriodBounds
from fallow.model.cluster import Namespace
from fallow.model.policies import budget as policies
from fallow.model.policies.budget import CostBudget, EnforcementMode
from fallow.model.seen import Absent, Known, Register, Unseen
from fallow.model.units import Instant

_NAMESPACE: Final = cost.Dimension(cost.DimensionName.namespace)
_INSTANCE: Final = cost.Dimension(cost.DimensionName.instance)
_CAPACITY: Final = cost.Dimension(cost.DimensionName.capacity)
_TEAM: Final = cost.Dimension(cost.DimensionName.team, payer=True)


class BudgetQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """`total`: by namespace, type of node, how it is paid, and label; `namespaces`: that the selector means; `absent`:
    that it names, and that are surely not there: what they cost while they were counts all the same.
    None: there is nobody whose cost could count, or nothing to ask. `vouched`: what of it no tenant made up; None: all
    of it."""

    namespaces: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    total: cost.CostQuery | None = None
    vouched: cost.CostQuery | None = None
    hours: cost.CostQuery | None = None
    recent: cost.CostQuery | None = None
    overridden: cost.CostQuery | None = None


def ask(
    of: CostBudget, namespaces: Register[Namespace], period: PeriodBounds, override: OverrideHeld | None, now: Instant,
    *, look_back: int, short: int,
) -> BudgetQuestions | Unseen:
    meant = _find_namespaces(of, namespaces, period)
    if isinstance(meant, Unseen):
        return meant
    filters = of.scope.filters(payer=True)
    if meant is not None:
        if not meant:
            return BudgetQuestions()
        filters = (*filters, cost.CostFilter(_NAMESPACE, frozenset(meant)))
    at, this_hour = int(now), int(now) // cost.HOUR * cost.HOUR
    first = of.scope.labels[0][0] if of.scope.labels else ""
    label = cost.Dimension(cost.DimensionName.label, first, payer=True) if first else _TEAM
    by = (_NAMESPACE, _INSTANCE, _CAPACITY, label)
    return BudgetQuestions(
        namespaces=meant or (), total=cost.CostQuery(begin=period.start, end=at, by=by, where=filters),
        absent=tuple(name for name in of.scope.namespaces if isinstance(namespaces.find(name), Absent)),
        vouched=_ask_vouched(of, period, at),
        hours=cost.CostQuery(begin=this_hour - look_back, end=this_hour, where=filters, step=cost.CostStep.hour),
        recent=cost.CostQuery(begin=max(period.start, at - short), end=at, where=filters),
        overridden=None if override is None else cost.CostQuery(
            begin=max(period.start, int(override.since)), end=int(min(now, override.until)), where=filters
        ),
    )


def _ask_vouched(of: CostBudget, period: PeriodBounds, at: cost.Second) -> cost.CostQuery | None:
    """Only where the rest could do harm: who may be claimed has no selector."""
    if not of.scope.may_be_claimed or of.enforcement.mode is EnforcementMode.alert:
        return None
    where = of.scope.filters(payer=True, vouched=True)
    return cost.CostQuery(begin=period.start, end=at, where=where)


def _find_namespaces(
    of: CostBudget, namespaces: Register[Namespace], period: PeriodBounds
) -> tuple[str, ...] | Unseen | None:
    """None: it has no selector."""
    live = policies.find_live(of.scope, namespaces)
    if isinstance(live, Unseen):
        return live
    if not isinstance(live, Known):
        return None
    kept = of.standing.namespaces if of.standing.period_start == period.start else ()
    gone = {name for name in kept if name not in namespaces.known}
    return tuple(sorted({*live.value, *gone}))
