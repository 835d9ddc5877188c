"""All budgets at one instant: what each has come to, which alerts fire or are over, what is restricted or lifted.

In: the budgets, what the books said of each (in two steps: `question` says what to ask for), the memory of their
alerts. Out: a BudgetPlan.
Invariant: what is not known changes nothing but that it is said: no alert fires or ends, nobody is restricted.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

import msgspec

from fallow.decide import forecast
from fallow.decide.budgets import alerts, enforce, node_pools, period, scope
from fallow.decide.budgets.node_pools import PoolEdits
from fallow.model import cost, units
from fallow.model.budgets import (
    AlertMemory,
    AlertRecord,
    BooksSeen,
    BudgetLevel,
    BudgetNews,
    BudgetPlan,
    BudgetState,
    Lift,
    NewsKind,
    PeriodBounds,
    Restrict,
    SpendSeen,
    WhyEnforced,
    WhyReady,
    money,
)
from fallow.model.cluster import Namespace
from fallow.model.cost import CostSum, Nano, Second
from fallow.model.policies.budget import FULL, WARNING, CostBudget, EnforcementMode
from fallow.model.seen import Input, Known, Register, Unseen
from fallow.model.units import Instant, Seconds

_TITLES = ("byNamespace", "byInstanceType", "spotVsOnDemand", "byLabel")  # as the dimensions of scope.ask


class BudgetTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator allows."""

    enforces: bool = False
    longest_override: Seconds = 72 * 3600.0
    pools: PoolEdits = PoolEdits.off


class BudgetAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that can be evaluated, and what the books must be asked for it."""

    budget: CostBudget
    period: PeriodBounds
    questions: scope.BudgetQuestions


def question(
    of: CostBudget, namespaces: Register[Namespace], books: Input[BooksSeen], terms: BudgetTerms, now: Instant
) -> BudgetAsked | BudgetState:
    """What to ask; or what it is, where nothing needs or can be asked."""
    if not of.enabled:
        return BudgetState(budget=of, ready=WhyReady.Disabled, ready_because="spec.enabled is false")
    if of.amount is None:
        why = WhyReady.InvalidScope if of.invalid[0].startswith("spec.scope") else WhyReady.Invalid
        return BudgetState(budget=of, ready=why, ready_because="; ".join(of.invalid))
    if not isinstance(books, Known):
        because = books.why if isinstance(books, Unseen) else "there are no books yet"
        return BudgetState(budget=of, ready=WhyReady.LedgerUnavailable, ready_because=because)
    if of.currency and of.currency != books.value.currency:
        because = f"the budget is in {of.currency}, the books are in {books.value.currency}"
        return BudgetState(budget=of, ready=WhyReady.CurrencyMismatch, ready_because=because)
    bounds = period.find(of.period, now)
    if bounds is None:
        return BudgetState(budget=of, ready=WhyReady.NotBegun, ready_because="its startDate lies ahead")
    override = enforce.find_override(of, terms.longest_override, now)
    asked = scope.ask(
        of, namespaces, bounds, override, now, look_back=forecast.LOOK_BACK, short=forecast.SHORT
    )
    if isinstance(asked, Unseen):
        because = f"whom it is for is not known: {asked.why}"
        return BudgetState(budget=of, ready=WhyReady.ScopeUnknown, ready_because=because, period=bounds)
    return BudgetAsked(budget=of, period=bounds, questions=asked)


def read_spend(
    total: Iterable[CostSum], hours: Mapping[Second, Nano], recent: Iterable[CostSum],
    overridden: Iterable[CostSum] | None, vouched: Iterable[CostSum] | None = None,
) -> SpendSeen:
    found = list(total)
    breakdowns: dict[str, dict[str, Nano]] = {title: {} for title in _TITLES}
    for each in found:
        spent = each.total.cost
        for title, value in zip(_TITLES, each.key, strict=True):
            breakdowns[title][value] = breakdowns[title].get(value, 0) + spent
    return SpendSeen(
        total=sum(each.total.cost for each in found), unpriced=sum(each.total.unpriced for each in found),
        breakdowns=breakdowns, hours=hours, recent=sum(each.total.cost for each in recent),
        overridden=None if overridden is None else sum(each.total.cost for each in overridden),
        vouched=None if vouched is None else sum(each.total.cost for each in vouched),
    )


def evaluate(
    asked: BudgetAsked, spend: SpendSeen, books: BooksSeen, streaks: Mapping[str, int], terms: BudgetTerms, now: Instant
) -> BudgetState:
    of, bounds = asked.budget, asked.period
    assert of.amount is not None
    percent = money(spend.total) / of.amount * FULL
    projection = forecast.project(bounds, of.amount, spend, books.began, now)
    gaps, override = _find_gaps(spend, books), enforce.find_override(of, terms.longest_override, now)
    sure = percent if spend.vouched is None else money(spend.vouched) / of.amount * FULL
    since = enforce.find_exceeded(of, sure, bounds, now)
    enforced, because = enforce.judge(
        of, since=since, books=books, override=override, is_allowed=terms.enforces, now=now, is_claimed=sure < percent
    )
    if enforced is WhyEnforced.Enforced and terms.pools is not PoolEdits.off and node_pools.is_narrow(of):
        because = f"{because}; {node_pools.NARROW}"
    share = Decimal(int(now) - bounds.start) / (bounds.end - bounds.start)
    projected = None if projection.projected is None else projection.projected / of.amount * FULL
    ready, ready_because = _find_ready(asked, spend)
    return BudgetState(
        budget=of, ready=ready, ready_because=ready_because, currency=books.currency, period=bounds,
        namespaces=asked.questions.namespaces, spend=spend, percent=percent, level=_level(percent),
        forecast=projection, gaps=gaps, exceeded_since=since, enforced=enforced, enforced_because=because,
        override=override, streaks=alerts.count_streaks(of, projected, share, streaks),
    )


def _find_ready(asked: BudgetAsked, spend: SpendSeen) -> tuple[WhyReady, str]:
    if asked.budget.invalid:
        return WhyReady.Invalid, "; ".join(asked.budget.invalid)
    if asked.questions.total is None:
        because = "no namespace has the labels that spec.scope.namespaceSelector asks for: nobody's cost counts"
        return WhyReady.NoNamespace, because
    if not (absent := asked.questions.absent):
        return WhyReady.Valid, "every field was understood"
    because = f"there is no namespace {' and no namespace '.join(absent)}"
    if set(absent) == set(asked.budget.scope.namespaces) and not spend.total and not spend.unpriced:
        return WhyReady.NoNamespace, f"{because}, and nothing was spent in this period: nobody's cost counts"
    return WhyReady.Valid, f"every field was understood; {because} now, and what was spent there counts"


def _level(percent: Decimal) -> BudgetLevel:
    if percent >= FULL:
        return BudgetLevel.exceeded
    return BudgetLevel.warning if percent >= WARNING else BudgetLevel.ok


def _find_gaps(spend: SpendSeen, books: BooksSeen) -> tuple[str, ...]:
    hours = spend.unpriced / cost.GPU_HOUR
    unpriced = (f"{hours:,.1f} GPU-hours have no price",) if spend.unpriced else ()
    return (*unpriced, *books.missing)


def plan(states: Iterable[BudgetState], memory: AlertMemory, now: Instant) -> BudgetPlan:
    """`states`: of all budgets that there are; records of others are closed."""
    found = tuple(states)
    records = [record for state in found for record in _alert(state, memory, now)]
    there = {state.budget.uid for state in found}
    records += alerts.close(None, [record for record in memory.values() if record.budget_uid not in there], now)
    restricts = tuple(_restrict(state) for state in found if state.is_enforced)
    before = {state.budget.uid for state in found if state.budget.standing.is_enforced}
    return BudgetPlan(
        states=found, records=tuple(records), restricts=restricts,
        begun=tuple(each for each in restricts if each.uid not in before),
        lifts=tuple(
            Lift(state.budget.name, state.budget.uid, state.enforced_because or state.ready_because)
            for state in found if not state.is_enforced and state.budget.uid in before
        ),
        news={state.budget.uid: tuple(_find_news(state, now)) for state in found},
    )


def _find_news(state: BudgetState, now: Instant) -> Iterator[BudgetNews]:
    """What our own last status does not say yet. It is news once for each such status."""
    standing = state.budget.standing
    episode = "" if standing.last_updated is None else units.rfc3339(standing.last_updated)
    if state.exceeded_since is not None and state.exceeded_since != standing.exceeded_since:
        yield BudgetNews(NewsKind.exceeded, episode)
    held, known = state.override, standing.override
    if held is not None and held.holds(now) and (known is None or known.asked != held.asked):
        yield BudgetNews(NewsKind.overridden, held.asked)
    if state.is_enforced != standing.is_enforced:
        yield BudgetNews(NewsKind.enforced if state.is_enforced else NewsKind.lifted, episode)


def _alert(state: BudgetState, memory: AlertMemory, now: Instant) -> tuple[AlertRecord, ...]:
    of = state.budget
    if state.period is None or state.percent is None or of.amount is None:
        return ()
    projected = state.forecast.projected
    percents = alerts.choose_percents(
        of, state.percent, None if projected is None else projected / of.amount * FULL, state.streaks, memory,
        state.period,
    )
    return alerts.evaluate(of, state.period, percents, memory, now)


def _restrict(state: BudgetState) -> Restrict:
    of = state.budget
    return Restrict(of.name, of.uid, of.enforcement.mode, of.enforcement.throttle, state.enforced_because)


def may_hold(of: CostBudget) -> bool:
    """Are pods put behind a gate for it while it restricts? Where it caps, or closes nodes that a pod needs."""
    rule = of.enforcement
    return rule.mode is EnforcementMode.throttle and (rule.throttle.has_cap or rule.throttle.block_on_demand)
