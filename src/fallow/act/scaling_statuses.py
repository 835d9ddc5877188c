"""Statuses of AutoscalingPolicies: written where they say something else than before, and always before a growth.

In: what was planned for a policy, with the status that stands there; what was done. Out: one server-side apply, or
none. Invariant: a figure that only wavers writes nothing, so that no write wakes another. What is in flight is on the
server before a cloud is asked: `note_growth` raises where it could not be written.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from fallow import names
from fallow.act.share_statuses import without_none
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import scaling_status, units
from fallow.model.cost import CapacityType
from fallow.model.policies import crd, scaling_crd
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import GangState, InFlight, SpotRuns, StockOut
from fallow.model.scaling_plan import Blocked, Brake, DemandGuess, GangAsk, PolicyPlan
from fallow.model.units import Instant, Seconds

log = logging.getLogger("fallow")

_MONTH: Final = 730  # hours
_UTILIZATION: Final = "averageGPUUtilization"
_LAG: Final[Seconds] = 60.0  # a watch that is later than this is not believed anyway
_STEP: Final = 0.05  # a mean that wavers by less is not told anew
_READY: Final = (
    Blocked.Invalid, Blocked.Overlap, Blocked.OwnedByOtherAutoscaler, Blocked.ProviderUnavailable, Blocked.Unseen,
    Blocked.Disabled, Blocked.LimitReached, Blocked.NoPoolFits,
)


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """What was last done for a policy, for its status. `grew`, `shrank`: whether it counts as that. `full_at`: GPUs
    that are all busy, where a node is added for that alone."""

    action: str
    reason: str
    grew: bool = False
    shrank: bool = False
    full_at: int | None = None


class StatusApi(Protocol):
    """As kube.Api has it."""

    async def apply(
        self, resource: kube.Resource, namespace: str | None, name: str, body: Mapping[str, Any], *, field_manager: str,
        force: bool = False, dry_run: bool = False, subresource: str | None = None,
    ) -> dict[str, Any]: ...


class ScalingStatuses:
    def __init__(self, api: StatusApi) -> None:
        self._api, self._is_failing = api, False
        self._sent: dict[str, tuple[float, dict[str, Any]]] = {}  # by uid: what was written last, and when

    def find(self, policy: ScalingPolicy) -> Mapping[str, Any]:
        """As it stands there: what we wrote a moment ago, where the watch may not tell that yet."""
        at, sent = self._sent.get(policy.uid, (-math.inf, {}))
        return sent if time.monotonic() - at < _LAG else policy.status

    async def write(self, policy: ScalingPolicy, status: Mapping[str, Any]) -> None:
        """Only where it says something else. A failure is told once."""
        if not _differs(self.find(policy), status):
            return
        try:
            await self._apply(policy, status)
        except (errors.NotFound, errors.Conflict):  # deleted, or deleted and made again
            return
        except errors.ClientError as problem:
            if not self._is_failing:
                log.warning("the status of policy %s cannot be written: %s", policy.name, problem)
            self._is_failing = True
            return
        self._is_failing = False

    async def note_growth(
        self, policy: ScalingPolicy, in_flight: Sequence[InFlight], stockouts: Sequence[StockOut], deed: Deed | None,
        now: Instant, *, stood: Mapping[str, Any] | None = None,
    ) -> None:
        """At once, beside all else that stands there, or `stood`. Raises what the server says."""
        status = {
            **(self.find(policy) if stood is None else stood), "inFlight": scaling_status.write_in_flight(in_flight),
            "stockouts": scaling_status.write_stockouts(stockouts), **(_write_deed(deed, now) if deed else {}),
        }
        await self._apply(policy, status)

    async def note_deed(self, policy: ScalingPolicy, deed: Deed, now: Instant) -> None:
        """A node has gone: from then on the cooldown runs. Raises what the server says."""
        await self._apply(policy, {**self.find(policy), **_write_deed(deed, now)})

    async def _apply(self, policy: ScalingPolicy, status: Mapping[str, Any]) -> None:
        resource = kube.SCALING_POLICIES
        body = {
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"name": policy.name, "uid": policy.uid}, "status": status,
        }
        await self._api.apply(
            resource, None, policy.name, body, field_manager=names.FIELD_MANAGER, force=True, subresource="status"
        )
        self._sent[policy.uid] = time.monotonic(), dict(status)


def make(
    plan: PolicyPlan, before: Mapping[str, Any], now: Instant, *, interruptions: int, savings: float | None,
    prewarms: tuple[int, int] = (0, 0), failed: tuple[int, Instant] | None = None, watch: SpotRuns | None = None,
) -> dict[str, Any]:
    """What is not known is left out; times and deeds stay as they are. `savings`: of an hour, by removed nodes.
    `prewarms`: used and not, of the last nodes that were started ahead of demand. `failed`: how often its cloud did in
    a row, and when last."""
    policy = plan.policy
    was_full = scaling_status.read(policy.status).full_at
    full_at = before.get("fullAtGPUs")
    if full_at == was_full and plan.full_at is None:  # somebody came to what was added
        full_at = None
    made = scaling_crd.ScalingPolicyStatus(
        observed_generation=policy.generation, driver=str(plan.driver), current_nodes=plan.nodes,
        desired_nodes=plan.desired, spot_nodes=plan.by_tier.get(CapacityType.spot, 0),
        on_demand_nodes=plan.by_tier.get(CapacityType.on_demand, 0),
        reserved_nodes=plan.by_tier.get(CapacityType.reserved, 0), average_gpu_utilization=_round(plan.use),
        pending_pods=plan.pending, last_scale_up_time=before.get("lastScaleUpTime"),
        last_scale_down_time=before.get("lastScaleDownTime"), last_scaling_action=before.get("lastScalingAction"),
        last_scaling_reason=before.get("lastScalingReason"), full_at_gpus=full_at,
        provider_failures=failed[0] if failed else None,
        last_provider_failure_time=units.rfc3339(failed[1]) if failed else None, spot_interruptions=interruptions,
        estimated_monthly_cost=_money(plan.cost), estimated_monthly_savings=_money(savings),
        predictive_scaling=_predict(plan, prewarms), gangs=tuple(map(_tell_gang, plan.gangs)) if plan.acts else (),
        spot_watch=None if watch is None else scaling_crd.SpotWatchStatus(
            since=units.rfc3339(watch.since), node_hours=watch.node_hours, interruptions=watch.interruptions
        ),
        conditions=crd.conditions(scaling_crd.ScalingCondition, _find_conditions(plan), policy.generation, before, now),
    )
    status: dict[str, Any] = without_none(msgspec.to_builtins(made))
    if "predictiveScaling" in status:
        rooms = plan.headroom if plan.acts else ()
        status["predictiveScaling"]["headroom"] = scaling_status.write_rooms(rooms)
    return {
        **status, "inFlight": scaling_status.write_in_flight(plan.in_flight),
        "stockouts": scaling_status.write_stockouts(plan.stockouts),
    }


def _find_conditions(plan: PolicyPlan) -> dict[str, tuple[str, str, str]]:
    blocked = next((why for why in _READY if why in plan.blocked), None)
    ready = ("True", "AsSpecified", plan.because or "it is carried out" if plan.acts else plan.because or "advice only")
    if blocked is not None:
        ready = ("False", str(blocked), plan.blocked[blocked])
    brake = next((each for each in Brake if each in plan.brakes), None)
    halted = ("False", "NoBrake", "nothing halts it") if brake is None else ("True", str(brake), plan.brakes[brake])
    return {"Ready": ready, "ScalingHalted": halted}


def _tell_gang(gang: GangAsk) -> scaling_crd.GangStatus:
    request = gang.request
    return scaling_crd.GangStatus(
        gang=gang.gang[:256], nodes=gang.nodes, request=gang.name,
        state=str(request.state if request is not None else GangState.asked),
        message=request.because[:256] if request is not None else "",
    )


def _predict(plan: PolicyPlan, prewarms: tuple[int, int]) -> scaling_crd.PredictionStatus | None:
    """Switched off it forgets how nodes fared: that is how trust is given anew."""
    if plan.policy.prewarming is None:
        return None
    found = plan.guess or DemandGuess()
    return scaling_crd.PredictionStatus(
        enabled=True, predicted_utilization=_round(found.utilization),
        recommended_nodes=found.nodes, confidence=_round(found.confidence),
        next_busy_period=None if found.busy_at is None else units.rfc3339(found.busy_at), hits=prewarms[0],
        misses=prewarms[1],
    )


def _write_deed(deed: Deed, now: Instant) -> dict[str, Any]:
    said = {"lastScalingAction": deed.action, "lastScalingReason": deed.reason[:256]}
    at = units.rfc3339(now)
    return {**said, **({"lastScaleUpTime": at} if deed.grew else {}),
            **({"lastScaleDownTime": at} if deed.shrank else {}),
            **({"fullAtGPUs": deed.full_at} if deed.full_at is not None else {})}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _money(hourly: float | None) -> str | None:
    return None if hourly is None else f"{hourly * _MONTH:.2f}"


def _differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """In more than a mean that wavers."""
    was, now = before.get(_UTILIZATION), after.get(_UTILIZATION)
    if (was is None) != (now is None) or (was is not None and now is not None and abs(was - now) >= _STEP):
        return True
    return _rest(before) != _rest(after)


def _rest(status: Mapping[str, Any]) -> dict[str, Any]:
    return {key: without_none(value) for key, value in status.items() if key != _UTILIZATION}
