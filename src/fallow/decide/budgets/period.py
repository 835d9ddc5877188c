"""When a budget's periods begin and end: durations in a row from a start, or months, weeks and quarters of a calendar.

In: a BudgetPeriod, an instant. Out: the bounds of the period that runs, or None before the first one.
Invariant: two periods in a row share a bound; a calendar's lie at local midnight, whatever the clocks did in between.
"""

import zoneinfo
from datetime import date, datetime, timedelta

from fallow.model.budgets import PeriodBounds
from fallow.model.policies.budget import BudgetPeriod, PeriodWord
from fallow.model.units import Instant


def find(period: BudgetPeriod, now: Instant) -> PeriodBounds | None:
    if now < period.start:
        return None
    if period.length is not None:
        start = int(period.start)
        begun = start + (int(now) - start) // period.length * period.length
        return PeriodBounds(begun, begun + period.length)
    zone = zoneinfo.ZoneInfo(period.zone)
    first = _first_day(period.word, datetime.fromtimestamp(now, zone).date())
    return PeriodBounds(_midnight(first, zone), _midnight(_following(period.word, first), zone))


def _first_day(word: PeriodWord, today: date) -> date:
    match word:
        case PeriodWord.week:
            return today - timedelta(days=today.weekday())
        case PeriodWord.month:
            return today.replace(day=1)
        case PeriodWord.quarter:
            return date(today.year, (today.month - 1) // 3 * 3 + 1, 1)


def _following(word: PeriodWord, first: date) -> date:
    match word:
        case PeriodWord.week:
            return first + timedelta(days=7)
        case PeriodWord.month:
            months = 1
        case PeriodWord.quarter:
            months = 3
    month = first.month - 1 + months
    return date(first.year + month // 12, month % 12 + 1, 1)


def _midnight(day: date, zone: zoneinfo.ZoneInfo) -> int:
    """Where the clocks skip midnight, the moment they do."""
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
