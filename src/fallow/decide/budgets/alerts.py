"""When an alert of a budget fires, and when it is over.

In: what was spent in percent, the records of this budget. Out: the records that are new or changed.
An alert fires once in a period; it is resolved when the percentage falls 2 points below its threshold, or with the end
of the period (a message that was not delivered by then still goes); after that it may fire again, a day after it did.
Of a budget that is new and already over several, only the highest is told.
Invariant: while nothing is known nothing fires and nothing is resolved.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Final

import msgspec

from fallow.model.budgets import AlertEvent, AlertMemory, AlertRecord, AlertState, PeriodBounds, Sending, SendState
from fallow.model.policies.budget import AlertBasis, AlertRule, CostBudget
from fallow.model.policies.idle import ChannelType
from fallow.model.units import DAY, Instant, Seconds

BELOW: Final = Decimal(2)  # points
AGAIN_AFTER: Final[Seconds] = DAY
IN_A_ROW: Final = 3
ELAPSED: Final = Decimal("0.1")
# People read that it is over in the next bill; programs must be told.
_HEAR_THE_END: Final = frozenset({ChannelType.pagerduty, ChannelType.webhook})


def evaluate(
    of: CostBudget, period: PeriodBounds, used: Mapping[str, Decimal | None], memory: AlertMemory, now: Instant
) -> tuple[AlertRecord, ...]:
    """`used`: by alert, the percentage that counts for it; None: it cannot fire now."""
    mine = [record for record in memory.values() if record.budget_uid == of.uid]
    is_new = of.standing.last_updated is None and not mine
    changed = list(close(of, [record for record in mine if record.period_start != period.start], now))
    changed += _evaluate_period(of, period, used, memory, now)
    return tuple(_tell_highest(of, changed) if is_new else changed)


def close(of: CostBudget | None, records: Iterable[AlertRecord], now: Instant) -> Iterator[AlertRecord]:
    """Of periods that are over, or budgets that are gone. What was true to the end of its period is still told; whoever
    heard it only after that hears the end of it then."""
    rules = {rule.name: rule for rule in of.alerts} if of is not None else {}
    for record in records:
        rule = rules.get(record.alert)
        if record.state is not AlertState.resolved:
            yield _resolve(record, rule, now, stays_true=of is not None)
        elif over := _list_ends(record, rule, now):
            yield msgspec.structs.replace(record, sendings=(*record.sendings, *over))


def _evaluate_period(
    of: CostBudget, period: PeriodBounds, used: Mapping[str, Decimal | None], memory: AlertMemory, now: Instant
) -> Iterator[AlertRecord]:
    for rule in of.alerts:
        record, percent = memory.get((of.uid, period.start, rule.name)), used.get(rule.name)
        if percent is None:
            continue
        if record is None or record.state is AlertState.resolved:
            rested = record is None or now - record.fired_at >= AGAIN_AFTER
            if percent >= rule.threshold and rested:
                yield _fire(of, period, rule, now)
        elif percent < rule.threshold - BELOW:
            yield _resolve(record, rule, now)


def _fire(of: CostBudget, period: PeriodBounds, rule: AlertRule, now: Instant) -> AlertRecord:
    sendings = (Sending(channel=channel.name, event=AlertEvent.fired, since=now) for channel in rule.channels)
    return AlertRecord(
        budget_uid=of.uid, period_start=period.start, alert=rule.name, state=AlertState.fired, fired_at=now,
        sendings=tuple(sendings),
    )


def _resolve(record: AlertRecord, rule: AlertRule | None, now: Instant, *, stays_true: bool = False) -> AlertRecord:
    """What still waits to be told is dropped, unless it stays true."""
    kept = (each for each in record.sendings if stays_true or each.state is not SendState.pending)
    return msgspec.structs.replace(
        record, state=AlertState.resolved, resolved_at=now, sendings=(*kept, *_list_ends(record, rule, now))
    )


def _list_ends(record: AlertRecord, rule: AlertRule | None, now: Instant) -> list[Sending]:
    """Who never heard of it need not hear that it is over. `rule` None: it is gone, and with it where its channels
    are."""
    ended = {each.channel for each in record.sendings if each.event is AlertEvent.resolved}
    heard = {each.channel for each in record.sendings
             if each.event is AlertEvent.fired and each.state is SendState.delivered}
    return [
        Sending(channel=channel.name, event=AlertEvent.resolved, since=now)
        for channel in (rule.channels if rule is not None else ())
        if channel.name in heard - ended and channel.type in _HEAR_THE_END
    ]


def _tell_highest(of: CostBudget, changed: Iterable[AlertRecord]) -> Iterator[AlertRecord]:
    rules = {rule.name: rule for rule in of.alerts}
    found = list(changed)
    actual = [rules[record.alert].threshold for record in found if rules[record.alert].basis is AlertBasis.actual]
    for record in found:
        rule = rules[record.alert]
        is_lower = rule.basis is AlertBasis.actual and rule.threshold < max(actual)
        yield msgspec.structs.replace(record, state=AlertState.passed, sendings=()) if is_lower else record


def count_streaks(
    of: CostBudget, projected: Decimal | None, share: Decimal, before: Mapping[str, int]
) -> dict[str, int]:
    """For each alert by forecast: in how many evaluations in a row it would fire. Forgotten, it only comes later."""
    counts = {}
    for rule in of.alerts:
        is_told = rule.basis is AlertBasis.forecast and share >= ELAPSED
        if is_told and projected is not None and projected >= rule.threshold:
            counts[rule.name] = min(before.get(rule.name, 0) + 1, IN_A_ROW)
    return counts


def choose_percents(
    of: CostBudget, actual: Decimal, projected: Decimal | None, streaks: Mapping[str, int], memory: AlertMemory,
    period: PeriodBounds,
) -> dict[str, Decimal | None]:
    """What counts for each alert. One by forecast that has not been above for long enough cannot fire; one that fired
    can always be resolved."""
    found: dict[str, Decimal | None] = {}
    for rule in of.alerts:
        if rule.basis is AlertBasis.actual:
            found[rule.name] = actual
            continue
        record = memory.get((of.uid, period.start, rule.name))
        is_fired = record is not None and record.state is AlertState.fired
        found[rule.name] = projected if is_fired or streaks.get(rule.name, 0) >= IN_A_ROW else None
    return found
