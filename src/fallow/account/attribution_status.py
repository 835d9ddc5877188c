"""What a CostAttribution shows: whose cost, grouped by what its makers asked for, in a status that stays small.

In: a CostAttribution, sums of the ledger, how many pods of the scope run now. Out: the status as JSON; the questions to
ask for it. Parts add up to their whole, to the cent; beyond the rows that there is room for they are one, `__other__`.
Invariant: never more than 200 rows, never more than 256 KiB.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow.model import cost, units
from fallow.model.cost import (
    Amounts,
    BookedSaving,
    CostFilter,
    CostQuery,
    CostSum,
    Dimension,
    DimensionName,
    Nano,
    SavingKind,
    SpendState,
)
from fallow.model.money import spread, top, whole
from fallow.model.policies import crd
from fallow.model.policies.attribution_crd import (
    MOST_ROWS,
    AttributionCondition,
    AttributionDay,
    AttributionGroup,
    CostAttributionStatus,
    DetailedBreakdown,
    SavingsStatus,
)
from fallow.model.policies.budget import CostAttribution
from fallow.model.units import Instant

MOST_BYTES: Final = 256 * 1024
_DAYS: Final = 30
_PARTS: Final = {
    "by_pod": DimensionName.pod, "by_gpu_type": DimensionName.model, "by_capacity_type": DimensionName.capacity,
    "by_node": DimensionName.node,
}


_SAVED: Final = {
    SavingKind.spot: "spot", SavingKind.sharing: "sharing", SavingKind.autoscaling: "autoscaling",
    SavingKind.waste: "waste_eliminated",
}


class AttributionQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """Of one attribution; each is answered by sums. `parts`: by field of the breakdown."""

    groups: CostQuery
    hours: CostQuery
    days: CostQuery
    parts: Mapping[str, CostQuery]


class AttributionAnswers(msgspec.Struct, frozen=True, kw_only=True):
    groups: Sequence[CostSum]
    hours: Sequence[CostSum]
    days: Sequence[CostSum]
    parts: Mapping[str, Sequence[CostSum]]
    saved: Sequence[BookedSaving] | None = None  # of these namespaces, in the reporting period; None: not known


class ScopePods(msgspec.Struct, frozen=True):
    """None: not known."""

    pods: int | None
    gpus: int | None


def ask(of: CostAttribution, where: tuple[CostFilter, ...], now: Instant) -> AttributionQuestions:
    """`hours`: the last 24, to the second; `days`: today and the whole ones before it."""
    end = int(now)
    begin, today = end - of.period, end // cost.DAY * cost.DAY
    return AttributionQuestions(
        groups=CostQuery(begin=begin, end=end, by=of.track_by, where=where),
        hours=CostQuery(begin=end - cost.DAY, end=end, where=where, step=cost.CostStep.hour),
        days=CostQuery(begin=today - (_DAYS - 1) * cost.DAY, end=end, where=where, step=cost.CostStep.day),
        parts={
            field: CostQuery(begin=begin, end=end, by=(Dimension(name),), where=where) for field, name in _PARTS.items()
        },
    )


def make_status(
    of: CostAttribution, found: AttributionAnswers, running: ScopePods, now: Instant, *, missing: Sequence[str] = ()
) -> dict[str, Any]:
    total = _sum(found.groups)
    days, hours = _by_time(found.days), _by_time(found.hours)
    priced = total.gpu_micro_seconds - total.unpriced
    gaps = [*missing, *([f"{_hours(total.unpriced):,.1f} GPU-hours have no price"] if total.unpriced else [])]
    status = CostAttributionStatus(
        observed_generation=of.generation, total_cost=whole(total.cost),
        daily_cost=whole(sum(hours.values())), monthly_cost=whole(sum(days.values())),
        hourly_cost=whole(hours.get(int(now) // cost.HOUR * cost.HOUR - cost.HOUR, 0)),
        active_pods=running.pods, active_gpus=running.gpus, gpu_hours=_hours(total.gpu_micro_seconds),
        cost_per_gpu_hour=whole(total.cost * cost.GPU_HOUR // priced) if priced > 0 else None,
        last_updated=units.rfc3339(now), detailed_breakdown=_break_down(found, hours, days),
        historical_data=_history(found.days), groups=_group(found.groups),
        savings=None if found.saved is None else _save(found.saved, total.cost),
        conditions=_say(of, {
            "Ready": ("True", "Valid", "every field was understood"),
            "Complete": ("False", "Missing", "; ".join(gaps)) if gaps else (
                "True", "Complete", "every GPU-hour has a price"
            ),
        }, now),
    )
    return fit(crd.plain(msgspec.to_builtins(status)))


def choose_savings(
    of: CostAttribution, rows: Sequence[BookedSaving], meant: Collection[str] | None
) -> tuple[BookedSaving, ...] | None:
    """Of those namespaces (None: all); what was saved is booked by namespace alone, so that of a team, a label or an
    experiment it is not known."""
    if of.scope.teams or of.scope.labels or of.scope.experiment:
        return None
    mine = (row for row in rows if row.realised and not row.is_dry_run)
    return tuple(
        row for row in mine
        if (meant is None or row.namespace in meant)
        and (not of.scope.namespaces or row.namespace in of.scope.namespaces)
    )


def _save(rows: Sequence[BookedSaving], paid: Nano) -> SavingsStatus:
    """Only what was realised. Of a kind that nobody measures nothing is said."""
    by_kind: dict[SavingKind, Nano] = dict.fromkeys(cost.MEASURED_SAVINGS, 0)
    for row in rows:
        by_kind[row.kind] = by_kind.get(row.kind, 0) + row.saved
    saved = sum(by_kind.values())
    shown = spread({_SAVED[kind]: amount for kind, amount in by_kind.items()})
    percent = round(100 * saved / (paid + saved), 2) if paid + saved > 0 else None
    return SavingsStatus(
        total=whole(saved), baseline_cost=whole(paid + saved), savings_percentage=percent, **shown
    )


def refuse(of: CostAttribution, reason: str, because: str, now: Instant) -> dict[str, Any]:
    """Of one that cannot be shown; what it showed before is gone, for it may be another's by now."""
    said = {"Ready": ("False", reason, because), "Complete": ("Unknown", reason, because)}
    return crd.plain({"observedGeneration": of.generation, "conditions": _say(of, said, now)})


def _say(
    of: CostAttribution, said: Mapping[str, tuple[str, str, str]], now: Instant
) -> tuple[AttributionCondition, ...]:
    return crd.conditions(AttributionCondition, said, of.generation, of.status, now)


def fit(status: dict[str, Any]) -> dict[str, Any]:
    """Without what is not known; and without the finest parts, where it would get too large."""
    made = {key: value for key, value in status.items() if value is not None}
    for field in ("byPod", "byNode", "byHour"):
        if len(msgspec.json.encode(made)) <= MOST_BYTES:
            return made
        made["detailedBreakdown"] = {**made["detailedBreakdown"], field: {}}
    while len(msgspec.json.encode(made)) > MOST_BYTES and made["groups"]:
        made["groups"] = made["groups"][: len(made["groups"]) // 2]
    return made


def _sum(found: Sequence[CostSum]) -> Amounts:
    return sum((each.total for each in found), Amounts())


def _hours(micro_seconds: int) -> float:
    return round(micro_seconds / cost.GPU_HOUR, 3)


def _by_time(found: Sequence[CostSum]) -> dict[cost.Second, Nano]:
    made: dict[cost.Second, Nano] = {}
    for each in found:
        made[each.begin] = made.get(each.begin, 0) + each.total.cost
    return made


def _group(found: Sequence[CostSum]) -> tuple[AttributionGroup, ...]:
    """The dearest first; cents spread over them so that they add up."""
    by_key: dict[str, Mapping[SpendState, Amounts]] = {
        "/".join(part or cost.NONE for part in each.key): each.parts for each in found
    }
    costs = {key: sum(part.cost for part in parts.values()) for key, parts in by_key.items()}
    shown = spread(top(costs, MOST_ROWS - 1))
    return tuple(
        _row(key, text, by_key[key]) if key in by_key else _rest(key, text, shown, by_key)
        for key, text in shown.items()
    )


def _row(key: str, text: str, parts: Mapping[SpendState, Amounts]) -> AttributionGroup:
    """Idle is all that did nothing, as reports count it; of what was not measured nobody knows."""
    total, unknown = sum(parts.values(), Amounts()), parts.get(SpendState.use_unknown, Amounts())
    idle = total.cost - total.use_cost - unknown.cost
    return AttributionGroup(
        key=key, cost=text, use_cost=whole(total.use_cost), idle_cost=whole(idle),
        gpu_hours=_hours(total.gpu_micro_seconds),
    )


def _rest(
    key: str, text: str, shown: Mapping[str, str], by_key: Mapping[str, Mapping[SpendState, Amounts]]
) -> AttributionGroup:
    merged: dict[SpendState, Amounts] = {}
    for name, parts in by_key.items():
        for state, amounts in parts.items() if name not in shown else ():
            merged[state] = merged.get(state, Amounts()) + amounts
    return _row(key, text, merged)


def _break_down(
    found: AttributionAnswers, hours: Mapping[int, Nano], days: Mapping[int, Nano]
) -> DetailedBreakdown:
    parts = {
        field: spread(top({each.key[0]: each.total.cost for each in sums})) for field, sums in found.parts.items()
    }
    times = {
        field: spread({units.rfc3339(at): amount for at, amount in sorted(when.items())})
        for field, when in (("by_hour", hours), ("by_day", days))
    }
    return DetailedBreakdown(**parts, **times)


def _history(found: Sequence[CostSum]) -> tuple[AttributionDay, ...]:
    held: dict[int, Amounts] = {}
    for each in found:
        held[each.begin] = held.get(each.begin, Amounts()) + each.total
    return tuple(
        AttributionDay(units.rfc3339(at), whole(amounts.cost), _hours(amounts.gpu_micro_seconds))
        for at, amounts in sorted(held.items())
    )
