"""When periods begin and end, whose cost counts in them, and what it will come to."""

from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.budgets import builders
from tests.unit.decide.budgets.builders import DAY, DAY0, HOUR

from fallow.decide import forecast
from fallow.decide.budgets import period, plan
from fallow.model import budgets, cluster, cost
from fallow.model.policies import budget
from fallow.model.seen import ABSENT, Known, Register, Unseen
from fallow.model.selectors import Selector

NEW_YORK = "America/New_York"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def find(word: str, zone: str, now: str) -> tuple[str, str]:
    bounds = period.find(budget.BudgetPeriod(word=budget.PeriodWord(word), zone=zone), at(now))
    return tuple(datetime.fromtimestamp(each, ZoneInfo(zone)).isoformat() for each in (bounds.start, bounds.end))


@pytest.mark.accepts("cost", 20)
@pytest.mark.parametrize(("now", "start", "end"), [
    ("2026-03-10T12:00:00+00:00", "2026-03-01T00:00:00-05:00", "2026-04-01T00:00:00-04:00"),
    ("2026-11-30T23:59:59-05:00", "2026-11-01T00:00:00-04:00", "2026-12-01T00:00:00-05:00"),
    ("2026-12-01T00:00:00-05:00", "2026-12-01T00:00:00-05:00", "2027-01-01T00:00:00-05:00"),
])
def test_a_month_ends_at_local_midnight_although_the_clocks_change(now, start, end):
    assert find("month", NEW_YORK, now) == (start, end)


@pytest.mark.accepts("cost", 20)
@pytest.mark.parametrize(("zone", "last", "first", "next_end"), [
    # The clocks go from 00:00 to 01:00 in the night in which September ends: it ends when they do.
    ("America/Asuncion", "2017-09-30T23:59:59-04:00", "2017-10-01T01:00:00-03:00", "2017-11-01T00:00:00-03:00"),
    # They go from 01:00 back to 00:00 in the night in which October ends: midnight comes twice, the first one counts.
    ("America/Havana", "2020-10-31T23:59:59-04:00", "2020-11-01T00:00:00-04:00", "2020-12-01T00:00:00-05:00"),
])
def test_where_the_clocks_change_at_the_very_end_of_a_month_it_ends_once(zone, last, first, next_end):
    assert find("month", zone, last)[1] == first
    for now in (at(first), at(first) + 1800, at(first) + 5400):  # before, in and after the hour that comes twice
        assert find("month", zone, datetime.fromtimestamp(now, UTC).isoformat()) == (first, next_end)


@pytest.mark.parametrize(("word", "start", "end"), [
    ("week", "2026-11-09T00:00:00+00:00", "2026-11-16T00:00:00+00:00"),
    ("quarter", "2026-10-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"),
])
def test_weeks_begin_on_monday_and_quarters_in_their_month(word, start, end):
    assert find(word, "UTC", "2026-11-15T22:00:00+00:00") == (start, end)


@given(
    st.sampled_from(["month", "week", "quarter"]), st.sampled_from([NEW_YORK, "Asia/Beirut", "Pacific/Apia", "UTC"]),
    st.integers(1_000_000_000, 2_500_000_000),
)
def test_calendar_periods_follow_each_other_without_a_gap(word, zone, now):
    rule = budget.BudgetPeriod(word=budget.PeriodWord(word), zone=zone)
    bounds = period.find(rule, now)
    assert bounds.start <= now < bounds.end
    assert period.find(rule, bounds.end).start == bounds.end
    assert period.find(rule, bounds.start) == bounds


@given(st.integers(1, 5000), st.integers(0, 10**8))
def test_durations_follow_each_other_from_their_start(hours, later):
    rule = budget.BudgetPeriod(length=hours * HOUR, start=float(DAY0))
    bounds = period.find(rule, DAY0 + later)
    assert bounds.start <= DAY0 + later < bounds.end
    assert (bounds.start - DAY0) % (hours * HOUR) == 0
    assert bounds.end - bounds.start == hours * HOUR


def test_before_its_start_there_is_no_period():
    of = builders.make(period=budget.BudgetPeriod(length=DAY, start=float(DAY0 + DAY)))
    assert builders.look(of, 0, DAY0).ready is budgets.WhyReady.NotBegun


# ---- whose cost ------------------------------------------------------------------------------------------------------

BY_LABEL = budget.SpendScope(
    type=budget.ScopeType.namespace, namespace_selector=Selector(match_labels={"team": "ml"}), teams=("x",)
)


def namespaces(*names: str, rest=ABSENT) -> Register[cluster.Namespace]:
    return Register({name: cluster.Namespace(name, {"team": "ml"}, {}) for name in names}, rest)


def test_a_selector_asks_for_the_namespaces_that_fit_now_and_all_parts_of_a_scope():
    asked = builders.asked_of(builders.make(scope=BY_LABEL), namespaces("a", "b"), DAY0 + 10 * DAY)
    assert {(str(one.on), one.values) for one in asked.total.where} == {
        ("namespace", frozenset({"a", "b"})), ("team", frozenset({"x"})),
    }
    assert (asked.total.begin, asked.total.end) == (DAY0, DAY0 + 10 * DAY)
    assert asked.recent.begin == DAY0 + 3 * DAY


def test_a_selector_that_fits_nobody_asks_for_nothing_rather_than_for_all():
    assert builders.asked_of(builders.make(scope=BY_LABEL), namespaces(), DAY0 + DAY).total is None


@pytest.mark.accepts("cost", 21)
def test_a_namespace_that_was_deleted_still_counts_in_the_period_in_which_it_was_meant():
    standing = budget.BudgetStanding(period_start=float(DAY0), namespaces=("a", "gone"))
    of = builders.make(scope=BY_LABEL, standing=standing)
    assert builders.asked_of(of, namespaces("a", "b"), DAY0 + DAY).namespaces == ("a", "b", "gone")
    later = builders.asked_of(of, namespaces("a", "b"), DAY0 + 31 * DAY)
    assert later.namespaces == ("a", "b")


def test_namespaces_that_are_not_all_seen_make_the_scope_unknown_and_nothing_happens():
    of = builders.make(scope=BY_LABEL, enforcement=budget.EnforcementRule(mode=budget.EnforcementMode.block))
    seen = Known(builders.books(DAY0 + DAY))
    state = plan.question(of, namespaces("a", rest=Unseen("forbidden")), seen, builders.ALLOWED, DAY0 + DAY)
    assert state.ready is budgets.WhyReady.ScopeUnknown
    made = plan.plan([state], {}, DAY0 + DAY)
    assert (made.records, made.restricts) == ((), ())


@pytest.mark.parametrize(("of", "seen", "ready"), [
    (builders.make(currency="EUR"), Known(builders.books(DAY0)), "CurrencyMismatch"),
    (builders.make(), Unseen("the database is away"), "LedgerUnavailable"),
    (builders.make(enabled=False), ABSENT, "Disabled"),
    (builders.make(currency="USD"), Known(builders.books(DAY0)), None),
])
def test_what_cannot_be_compared_says_why(of, seen, ready):
    found = plan.question(of, Register({}), seen, builders.ALLOWED, DAY0 + 1)
    assert (found.ready if isinstance(found, budgets.BudgetState) else None) == ready


# ---- what it will come to --------------------------------------------------------------------------------------------

BOUNDS = budgets.PeriodBounds(DAY0, DAY0 + 28 * DAY)


def project(total, now, *, hours=None, recent=0, began=DAY0 - 60 * DAY):
    spend = builders.spent(total, hours=hours or {}, recent=int(recent * cost.UNIT))
    return forecast.project(BOUNDS, Decimal(1000), spend, began, now)


def test_nothing_is_projected_in_the_first_six_hours_of_a_period_or_of_its_books():
    assert project(1, DAY0 + 6 * HOUR - 1, began=DAY0).projected is None
    assert project(1, DAY0 + 10 * DAY, began=DAY0 + 10 * DAY - 5 * HOUR).projected is None
    assert project(1, DAY0 + 10 * DAY, began=None).projected is None
    assert project(1, DAY0 + 6 * HOUR, began=DAY0, recent=1).projected is not None


def test_young_books_project_by_the_mean_of_the_last_week():
    made = project(100, DAY0 + 8 * DAY, recent=70, began=DAY0)  # 10 a day
    assert made.projected == pytest.approx(Decimal(100 + 20 * 10))


def test_old_books_project_by_the_hour_of_the_week():
    """It costs 1 an hour on Mondays and nothing else."""
    now = DAY0 + 14 * DAY + HOUR // 2
    hours = {hour: cost.UNIT for hour in range(DAY0 - 14 * DAY, now - HOUR // 2, HOUR) if (hour // DAY - 4) % 7 == 0}
    assert datetime.fromtimestamp(min(hours), UTC).weekday() == 0
    made = project(48, now, hours=hours)
    assert made.projected == Decimal(48) + Decimal("23.5") + 24  # the rest of this Monday, and the next one


@given(st.integers(15 * DAY, 28 * DAY - 1), st.integers(0, 1000))
def test_an_even_past_projects_evenly(elapsed, nano):
    now = DAY0 + elapsed
    this_hour = now - now % HOUR
    hours = dict.fromkeys(range(this_hour - 28 * DAY, this_hour, HOUR), nano)
    left = Decimal(nano) * (BOUNDS.end - now) / HOUR / cost.UNIT
    assert project(5, now, hours=hours).projected == pytest.approx(5 + left)


def test_the_pace_is_what_was_spent_by_what_an_even_spend_would_be():
    assert project(500, DAY0 + 7 * DAY).pace == 2
    assert project(500, DAY0).pace is None
