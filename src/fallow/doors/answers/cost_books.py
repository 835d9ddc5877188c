"""Questions to the books, answered: the same for a command that opens the ledger and for the API of a daemon.

In: CostBooks (a ledger, and what stands beside it), what is asked, now. Out: pages of answers/cost.py.
Invariant: nothing is written. A window ends where somebody said; what nobody has looked at yet is not in it, and
`as_of` says up to when somebody has.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from fallow.account import reports
from fallow.account.ledger import Ledger
from fallow.account.reports import Basis, ReportAsk
from fallow.doors import answers
from fallow.doors.answers import cost as telling
from fallow.model import calendar, cost, units, windows
from fallow.model.cost import CostFilter, CostKey, CostQuery, CostStep, CostSum, Dimension, KeySum, Nano, Second
from fallow.model.energy import EnergyTerms
from fallow.model.policies.budget import CostBudget
from fallow.model.units import Instant, Seconds
from fallow.model.windows import TimeSpan

TEAM: Final = cost.read_dimension("team")
NAMESPACE: Final = cost.read_dimension("namespace")
MOST_SERIES: Final = 12
_PLATFORM: Final = (CostFilter(TEAM, frozenset({cost.PLATFORM})),)


class AttributionAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A CostAttribution, as the books are asked for it. `problem`: why it cannot be."""

    name: str
    by: tuple[Dimension, ...]
    where: tuple[CostFilter, ...]
    seconds: Second
    problem: str = ""


class CostBooks(msgspec.Struct, frozen=True, kw_only=True):
    """`max_age`: of a price, before it is stale. `invested`: what we cost a month beside our pods. `attributions`: what
    somebody asked for by a CostAttribution. `budgets`: the CostBudgets of the cluster, with our last status on them.
    `saved_until`: up to when what was saved is worked out; None: not since we started. `energy`: what a kWh is worth;
    sums are asked for here, so that it is in all of them or in none. `list_price`: what a GPU of such a key costs an
    hour on demand by the price book, as of then; None: nobody knows, as where there is a ledger and no book."""

    ledger: Ledger
    max_age: Seconds = 90 * units.DAY
    invested: Nano = 0
    attributions: Callable[[], Sequence[AttributionAsk]] = tuple
    budgets: Callable[[], Sequence[CostBudget]] = tuple
    energy: EnergyTerms = EnergyTerms()
    saved_until: Callable[[], Instant | None] = lambda: None
    list_price: Callable[[CostKey, Second], Nano | None] = lambda key, at: None

    async def sums(self, asked: CostQuery) -> Sequence[CostSum]:
        return self.energy.charge(await self.ledger.sums(asked))

    async def sums_of_keys(self, asked: CostQuery) -> Sequence[KeySum]:
        return self.energy.charge(await self.ledger.sums_of_keys(asked))


class SpendAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`compares`: with the window before. `most`: rows; the others are one."""

    span: TimeSpan
    by: tuple[Dimension, ...] = (NAMESPACE,)
    where: tuple[CostFilter, ...] = ()
    basis: Basis = Basis.allocation
    zone: str = "UTC"
    compares: bool = False
    most: int | None = None


async def read_report(books: CostBooks, asked: SpendAsk) -> telling.CostReportPage:
    ledger, span = books.ledger, asked.span
    meta, began, sums, doubtful = await asyncio.gather(
        ledger.read_meta(), ledger.read_began(), books.sums(_query(asked, span)), _find_doubtful(books, span)
    )
    compares = asked.compares and _covers(began, span.before)
    before = await books.sums(_query(asked, span.before)) if compares else []
    wanted = ReportAsk(
        by=asked.by, begin=span.begin, end=span.end, currency=meta.currency, basis=asked.basis, most=asked.most,
        energy=books.energy,
    )
    total = sum(one.total.cost for one in before) if compares else None
    return telling.show_report(reports.make_report(sums, wanted, before), meta.seen_until, doubtful, total)


def _covers(began: Second | None, span: TimeSpan) -> bool:
    """Were books kept all that time? Else nobody knows what it cost, and nothing is compared with it."""
    return began is not None and began <= span.begin


def _query(asked: SpendAsk, span: TimeSpan, step: CostStep | None = None) -> CostQuery:
    return CostQuery(begin=span.begin, end=span.end, by=asked.by, where=asked.where, step=step, zone=asked.zone)


async def _find_doubtful(books: CostBooks, span: TimeSpan) -> telling.DoubtfulPrices:
    prices, used = await asyncio.gather(
        books.ledger.read_prices(), books.ledger.read_used_prices(span.begin, span.end)
    )
    return telling.find_doubtful(prices, used, span.end, books.max_age)


async def read_series(
    books: CostBooks, asked: SpendAsk, step: CostStep = CostStep.day
) -> telling.CostSeriesPage:
    """ValueError where there are too many pieces."""
    span = asked.span
    meta, began, sums = await asyncio.gather(
        books.ledger.read_meta(), books.ledger.read_began(), books.sums(_query(asked, span, step))
    )
    return telling.show_series(
        sums, calendar.cut(span.begin, span.end, step, asked.zone), span=span, seen_until=meta.seen_until, began=began,
        currency=meta.currency, by=asked.by, step=step, most=asked.most or MOST_SERIES,
    )


async def read_savings(books: CostBooks, asked: TimeSpan) -> telling.CostSavingsPage:
    """From the beginning of its first UTC day: savings are booked by the day, and our own cost must be of no less."""
    ledger, span = books.ledger, TimeSpan(asked.begin // cost.DAY * cost.DAY, asked.end)
    meta, rows, own = await asyncio.gather(
        ledger.read_meta(), ledger.read_savings(span.begin, span.end),
        books.sums(CostQuery(begin=span.begin, end=span.end, where=_PLATFORM)),
    )
    return telling.show_savings(
        rows, span=span, seen_until=meta.seen_until, currency=meta.currency,
        own=sum(one.total.cost for one in own), invested=books.invested * span.seconds // telling.MONTH,
    )


async def read_acks(books: CostBooks, now: Instant) -> telling.AckSpendPage:
    """Of all that is kept."""
    span = TimeSpan(0, int(now) + 1)
    meta, kept = await asyncio.gather(books.ledger.read_meta(), books.ledger.read_acked(span.begin, span.end))
    return telling.show_acks(kept, span=span, seen_until=meta.seen_until, currency=meta.currency)


async def read_prices(books: CostBooks, now: Instant) -> telling.PricesPage:
    meta, prices, opened = await asyncio.gather(
        books.ledger.read_meta(), books.ledger.read_prices(), books.ledger.read_open()
    )
    return telling.show_prices(
        prices, opened, at=int(now), seen_until=meta.seen_until, currency=meta.currency, longest=books.max_age
    )


# ---- the summary -----------------------------------------------------------------------------------------------------


async def read_summary(books: CostBooks, now: Instant, zone: str = "UTC") -> telling.CostSummaryPage:
    ledger = books.ledger
    today, month = (windows.read_window(word, now, zone) for word in ("today", "month"))
    week = windows.read_window("7d", now)
    meta, began, opened, savings, acks, prices = await asyncio.gather(
        ledger.read_meta(), ledger.read_began(), ledger.read_open(), read_savings(books, month), read_acks(books, now),
        read_prices(books, now),
    )
    of_month, of_today, of_week, of_before = await asyncio.gather(*(
        books.sums(CostQuery(begin=span.begin, end=span.end, step=step, zone=zone))
        for span, step in ((month, None), (today, None), (week, CostStep.day), (week.before, None))
    ))
    spent, kept = _total(of_month), [one for one in acks.items if one.is_open]
    projected = reports.project_month(spent, month, min(meta.seen_until, int(now)), zone)
    return telling.CostSummaryPage(
        as_of=units.rfc3339(meta.seen_until), lag_seconds=max(0.0, round(now - meta.seen_until, 1)),
        currency=meta.currency, per_hour=telling.money(sum(one.slice.rate_nano or 0 for one in opened)),
        unpriced_gpus=sum(one.gpus for one in prices.unpriced), today=telling.money(_total(of_today)),
        month_to_date=telling.money(spent), projected=None if projected is None else telling.money(projected),
        week=_tell_week(of_week, _total(of_before) if _covers(began, week.before) else None),
        saved_this_month=savings.saved,
        freed_gpu_hours_this_month=savings.freed_gpu_hours, open_acks=len(kept),
        open_acks_cost=round(sum(one.cost for one in kept), 2),
        stale_prices=sum(one.is_stale and one.is_used for one in prices.items), trouble=ledger.trouble or None,
    )


def _total(sums: Sequence[CostSum]) -> Nano:
    return sum(one.total.cost for one in sums)


def _tell_week(days: Sequence[CostSum], before: Nano | None) -> telling.WeekTold:
    """`before`: what the week before it cost; None: nobody knows."""
    every = reports.make_report(days, ReportAsk(by=(), begin=0, end=1, currency=""))
    total = _total(days)
    return telling.WeekTold(
        total=float(every.total), used=float(every.held.used), allocated_unused=float(every.held.allocated_unused),
        held_idle=float(every.held.held_idle), use_unknown=float(every.held.use_unknown),
        unallocated=float(sum(one.cost for one in every.platform)),
        unpriced_gpu_hours=round(every.unpriced_gpu_hours, 4), change=round(total / before - 1, 6) if before else None,
        days=tuple(telling.money(one.total.cost) for one in days),
    )


# ---- attributions ----------------------------------------------------------------------------------------------------


class AttributedGroup(answers.Shape, frozen=True, kw_only=True):
    key: str
    cost: float
    use_cost: float
    idle_cost: float
    gpu_hours: float


class AttributionTold(answers.Shape, frozen=True, kw_only=True):
    """`problem`: why it is not told; then there are no figures. What nobody held is a group, too, where it counts."""

    name: str
    by: tuple[str, ...]
    period_seconds: int
    total_cost: float | None
    gpu_hours: float | None
    groups: tuple[AttributedGroup, ...]
    problem: str | None


class AttributionsPage(answers.Shape, frozen=True, kw_only=True):
    as_of: str
    currency: str
    items: tuple[AttributionTold, ...]


async def read_attributions(books: CostBooks, now: Instant) -> AttributionsPage:
    meta = await books.ledger.read_meta()
    items = [await attribute(books, one, now) for one in sorted(books.attributions(), key=lambda each: each.name)]
    return AttributionsPage(as_of=units.rfc3339(meta.seen_until), currency=meta.currency, items=tuple(items))


async def attribute(books: CostBooks, asked: AttributionAsk, now: Instant) -> AttributionTold:
    """What one CostAttribution comes to, of its last period."""
    span = TimeSpan(max(0, int(now) - asked.seconds), int(now))
    made = None
    if not asked.problem:
        sums = await books.sums(
            CostQuery(begin=span.begin, end=span.end, by=asked.by, where=asked.where)
        )
        made = reports.make_report(sums, ReportAsk(by=asked.by, begin=span.begin, end=span.end, currency=""))
    held = (
        AttributedGroup(
            key=telling.join(row.key), cost=float(row.cost), use_cost=float(row.used),
            idle_cost=float(row.allocated_unused + row.held_idle), gpu_hours=round(row.gpu_hours, 4),
        )
        for row in (made.rows if made else ())
    )
    unheld = (
        AttributedGroup(
            key=row.key, cost=float(row.cost), use_cost=0.0, idle_cost=float(row.cost),
            gpu_hours=round(row.gpu_hours, 4),
        )
        for row in (made.platform if made else ()) if row.cost
    )
    return AttributionTold(
        name=asked.name, by=tuple(map(str, asked.by)), period_seconds=asked.seconds, groups=(*held, *unheld),
        total_cost=float(made.total) if made else None, gpu_hours=round(made.gpu_hours, 4) if made else None,
        problem=asked.problem or None,
    )
