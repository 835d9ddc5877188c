"""What a period will have cost when it ends.

In: what was spent, the scope's cost in the hours of the last 28 days, since when the books know. Out: a projection and
the pace. With two weeks of books each hour that is left costs what that hour of the week cost on average; with less,
the mean of the last 7 days of the period counts for all.
Invariant: none in the first 6 hours of a period, nor of the books within it: an early guess would wake people for
nothing.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from fallow.model import budgets
from fallow.model.budgets import PeriodBounds, SpendForecast
from fallow.model.cost import DAY, HOUR, UNIT, Nano, Second
from fallow.model.units import Instant

LOOK_BACK: Final[Second] = 28 * DAY
ENOUGH: Final[Second] = 14 * DAY
SHORT: Final[Second] = 7 * DAY
SILENT: Final[Second] = 6 * HOUR
_WEEK: Final = 168  # hours


def project(
    period: PeriodBounds, amount: Decimal, spend: budgets.SpendSeen, began: Instant | None, now: Instant
) -> SpendForecast:
    """`began`: of the books; None: there are none."""
    at = int(now)
    elapsed = at - period.start
    share = Decimal(elapsed) / (period.end - period.start)
    pace = budgets.money(spend.total) / (amount * share) if elapsed > 0 else None
    known_from = at if began is None else max(period.start, int(began))
    if at - known_from < SILENT:
        return SpendForecast(None, pace)
    left = _by_week(spend.hours, int(began or 0), at, period.end)
    if left is None:
        window = min(SHORT, at - known_from)
        left = Decimal(spend.recent) / window * (period.end - at)
    return SpendForecast(budgets.money(spend.total) + left / UNIT, pace)


def _by_week(hours: Mapping[Second, Nano], began: Second, now: Second, end: Second) -> Decimal | None:
    """Of the hours that are left, each as that hour of the week usually is; None: the books are too young."""
    this_hour = now - now % HOUR
    first = max(began + -began % HOUR, this_hour - LOOK_BACK)
    if this_hour - first < ENOUGH:
        return None
    sums, counts = [0] * _WEEK, [0] * _WEEK
    for hour in range(first, this_hour, HOUR):
        sums[hour // HOUR % _WEEK] += hours.get(hour, 0)
        counts[hour // HOUR % _WEEK] += 1
    means = [Decimal(total) / count for total, count in zip(sums, counts, strict=True)]
    return _sum_up(means, now, end)


def _sum_up(means: list[Decimal], now: Second, end: Second) -> Decimal:
    """From now to the end, by the hour; of hours that are cut, their part. Whole weeks cost what a week costs."""
    weeks, rest = divmod(end - now, _WEEK * HOUR)
    total, at = weeks * sum(means, Decimal(0)), now
    until = now + rest
    while at < until:
        upto = min(at - at % HOUR + HOUR, until)
        total += means[at // HOUR % _WEEK] * (upto - at) / HOUR
        at = upto
    return total
