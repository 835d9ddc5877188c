"""What each budget and each attribution has come to, written into its status: `kubectl get costbudgets` tells.

In: BudgetStates, the records of their alerts; statuses of attributions as they were made. Out: one server-side apply of
the status for each that changed; the same again only after some minutes, so that who reads it knows that we live.
Invariant: what is not known now stays as it was last known, with its time; whether it restricts is always of now.
"""

import logging
from collections.abc import Iterable, Mapping
from decimal import ROUND_DOWN, Decimal
from typing import Any

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cost, money, units
from fallow.model.budgets import READY, AlertRecord, AlertState, BudgetState, WhyReady
from fallow.model.policies import budget_crd, crd
from fallow.model.policies.budget import CostAttribution
from fallow.model.policies.budget_crd import (
    BreakdownStatus,
    BudgetCondition,
    CostBudgetStatus,
    FiredStatus,
    OverrideStatus,
    PeriodStatus,
)
from fallow.model.units import DAY, MINUTE, Instant, Seconds

log = logging.getLogger("fallow")

REFRESH: Seconds = 5 * MINUTE  # well below what is stale
_UNTIMED = ("lastUpdated",)


def make_status(
    state: BudgetState, records: Iterable[AlertRecord], missing_secrets: tuple[str, ...], now: Instant
) -> dict[str, Any]:
    """As JSON has it."""
    of, previous = state.budget, state.budget.standing.status
    said = crd.conditions(BudgetCondition, _conditions(state, missing_secrets), of.generation, previous, now)
    if state.period is None or state.spend is None or state.percent is None:
        kept = _floats(previous)
        return {**kept, **crd.plain({
            "enforcementActive": False, "observedGeneration": of.generation, "conditions": said,
        })}
    fired = [each for each in records if each.period_start == state.period.start and each.state is AlertState.fired]
    status = CostBudgetStatus(
        observed_generation=of.generation, current_spend=money.whole(state.spend.total), currency=state.currency,
        projected_monthly_spend=None if state.forecast.projected is None else f"{state.forecast.projected:.2f}",
        percentage_used=_round(state.percent, "0.01"), budget_status=state.level,
        days_remaining=round((state.period.end - now) / DAY, 1),
        alerts_fired=tuple(_fired(state, each) for each in sorted(fired, key=lambda each: each.fired_at)),
        enforcement_active=state.is_enforced,
        exceeded_since=None if state.exceeded_since is None else units.rfc3339(state.exceeded_since),
        last_updated=units.rfc3339(now), breakdown=_breakdown(state),
        period=PeriodStatus(
            units.rfc3339(state.period.start), units.rfc3339(state.period.end),
            state.namespaces[: budget_crd.MOST_NAMESPACES],
        ),
        pace=None if state.forecast.pace is None else _round(state.forecast.pace, "0.001"),
        unpriced_gpu_hours=round(state.spend.unpriced / cost.GPU_HOUR, 3), override=_override(state),
        conditions=said,
    )
    return {key: value for key, value in crd.plain(msgspec.to_builtins(status)).items() if value is not None}


def _round(number: Decimal, step: str) -> float:
    """Down: 99.999 is not 100."""
    return float(number.quantize(Decimal(step), ROUND_DOWN))


def _fired(state: BudgetState, record: AlertRecord) -> FiredStatus:
    rule = next((each for each in state.budget.alerts if each.name == record.alert), None)
    threshold = float(rule.threshold) if rule is not None else 0.0
    is_seen = state.budget.has_seen(record.alert, record.period_start)
    return FiredStatus(record.alert, units.rfc3339(record.fired_at), threshold, is_seen)


def _breakdown(state: BudgetState) -> BreakdownStatus:
    parts = state.spend.breakdowns if state.spend is not None else {}
    shown = {title: money.spread(money.top(found)) for title, found in parts.items()}
    return BreakdownStatus(
        by_namespace=shown.get("byNamespace", {}), by_label=shown.get("byLabel", {}),
        by_instance_type=shown.get("byInstanceType", {}), spot_vs_on_demand=shown.get("spotVsOnDemand", {}),
    )


def _override(state: BudgetState) -> OverrideStatus | None:
    held, spent = state.override, state.spend.overridden if state.spend is not None else None
    if held is None:
        return None
    return OverrideStatus(
        until=units.rfc3339(held.until), by=held.by, reason=held.reason, asked=held.asked,
        since=units.rfc3339(held.since), cost=None if spent is None else money.whole(spent),
    )


def _conditions(state: BudgetState, missing_secrets: tuple[str, ...]) -> dict[str, tuple[str, str, str]]:
    ready = ("True" if state.ready in READY else "False", str(state.ready), state.ready_because)
    if missing_secrets and state.ready is WhyReady.Valid:
        ready = "False", str(WhyReady.SecretMissing), "; ".join(missing_secrets)
    complete = ("True", "Complete", "every GPU-hour of the period has a price")
    if state.spend is None:
        complete = ("Unknown", str(state.ready), state.ready_because)
    elif state.gaps:
        complete = ("False", "Missing", "; ".join(state.gaps))
    enforcing = "True" if state.is_enforced else "False"
    return {
        "Ready": ready, "Complete": complete,
        "Enforcing": (enforcing, str(state.enforced), state.enforced_because or state.ready_because),
    }


def _floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _floats(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_floats(member) for member in value]
    return float(value) if isinstance(value, Decimal) else value


class StatusWriter:
    """Of budgets and attributions alike."""

    def __init__(self, api: kubernetes.Api) -> None:
        self._api = api
        self._written: dict[str, tuple[Instant, dict[str, Any]]] = {}  # by uid: when, and what but for its time
        self._failing = False

    async def write_budget(self, state: BudgetState, status: dict[str, Any], now: Instant) -> bool:
        """False: it does not stand there."""
        return await self._write(kubernetes.COST_BUDGETS, state.budget.name, state.budget.uid, status, REFRESH, now)

    async def write_attribution(self, of: CostAttribution, status: dict[str, Any], now: Instant) -> None:
        await self._write(kubernetes.COST_ATTRIBUTIONS, of.name, of.uid, status, float("inf"), now)

    async def _write(
        self, resource: kubernetes.Resource, name: str, uid: str, status: dict[str, Any], refresh: Seconds, now: Instant
    ) -> bool:
        """`refresh`: after so long also what has not changed."""
        untimed = {key: value for key, value in status.items() if key not in _UNTIMED}
        at, before = self._written.get(uid, (float("-inf"), None))
        if untimed == before and now - at < refresh:
            return True
        body = {
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, "uid": uid},
            "status": status,
        }
        try:
            await self._api.apply(
                resource, None, name, body, field_manager=names.FIELD_MANAGER, force=True, subresource="status"
            )
        except errors.NotFound:  # deleted meanwhile
            return False
        except errors.ClientError as problem:
            if not self._failing:
                log.warning("the status of %s %s cannot be written: %s", resource.kind, name, problem)
            self._failing = True
            return False
        self._failing, self._written[uid] = False, (now, untimed)
        return True
