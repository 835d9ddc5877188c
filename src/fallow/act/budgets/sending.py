"""Each message of a record once: what failed is tried again, what was delivered is not.

In: an AlertRecord with messages that are due. Out: the record as it is then. After 30 s, then twice as long up to an
hour, for a day; a channel that says how long to wait is heeded.
Invariant: one channel that fails keeps no other one waiting, and no error shows a secret.
"""

import asyncio
import logging

import msgspec

from fallow import telemetry
from fallow.act.budgets.wires import AlertWires
from fallow.act.budgets.words import AlertFacts
from fallow.act.notices.facts import Letterhead
from fallow.clients import errors
from fallow.model import units
from fallow.model.budgets import AlertRecord, BudgetState, Sending, SendState, find_rule
from fallow.model.policies.budget import AlertRule
from fallow.model.policies.idle import ChannelType
from fallow.model.units import DAY, HOUR, Instant, Seconds

log = logging.getLogger("fallow")

FIRST_WAIT: Seconds = 30.0
LONGEST_WAIT: Seconds = HOUR
GIVE_UP_AFTER: Seconds = DAY


class AlertSender:
    def __init__(self, wires: AlertWires, head: Letterhead, metrics: telemetry.Telemetry) -> None:
        self._wires, self._head, self._metrics = wires, head, metrics

    async def send_due(self, state: BudgetState, record: AlertRecord, now: Instant) -> AlertRecord:
        """`state`: of its budget, as it is now."""
        rule = find_rule(state, record.alert)
        made = await asyncio.gather(*(self._send(state, rule, record, each, now) for each in record.sendings))
        return msgspec.structs.replace(record, sendings=tuple(made))

    async def _send(
        self, state: BudgetState, rule: AlertRule | None, record: AlertRecord, one: Sending, now: Instant
    ) -> Sending:
        if one.state is not SendState.pending or one.next_at > now:
            return one
        channel = next((each for each in rule.channels if each.name == one.channel), None) if rule else None
        if rule is None or channel is None:
            return msgspec.structs.replace(one, state=SendState.given_up, because="the channel is gone")
        facts = AlertFacts(
            event=one.event, state=state, rule=rule, head=self._head, now=now, period_start=record.period_start
        )
        try:
            await self._wires.send(channel, facts)
        except errors.ClientError as problem:
            self._count(state, channel.type, "failed")
            return _put_off(state, rule, one, problem, now)
        except Exception as problem:  # an odd address, or a bug in one message: the others go out
            log.exception("budget %s, alert %s by %s failed", state.budget.name, rule.name, one.channel)
            self._count(state, channel.type, "failed")
            return _put_off(state, rule, one, errors.BadAnswer(f"unexpected {type(problem).__name__}"), now)
        self._count(state, channel.type, "delivered")
        log.info("budget %s, alert %s: %s by %s", state.budget.name, rule.name, one.event, one.channel)
        return msgspec.structs.replace(one, state=SendState.delivered, tries=one.tries + 1, because="")

    def _count(self, state: BudgetState, kind: ChannelType, outcome: str) -> None:
        self._metrics.add("gpu_autoscaler_budget_alerts_total", 1, (state.budget.name, kind, outcome))


def _put_off(
    state: BudgetState, rule: AlertRule, one: Sending, problem: errors.ClientError, now: Instant
) -> Sending:
    wait = min(FIRST_WAIT * 2.0 ** min(one.tries, 30), LONGEST_WAIT)
    wait = max(wait, min(getattr(problem, "retry_after", None) or 0.0, LONGEST_WAIT))
    is_over = now + wait - one.since > GIVE_UP_AFTER
    if one.tries == 0 or is_over:  # said once, and at the end
        after = "it is not tried again" if is_over else f"tried again in {units.humane(wait)}"
        about = state.budget.name, rule.name, one.channel, after, problem
        log.warning("budget %s, alert %s was not delivered by %s, %s: %s", *about)
    return msgspec.structs.replace(
        one, state=SendState.given_up if is_over else SendState.pending, tries=one.tries + 1,
        next_at=one.next_at if is_over else now + wait, because=str(problem),
    )
