"""GPUs wanted, hour by hour: the mean of what was watched, a gap where too little was."""

import math

import pytest

from fallow.account.demand_hours import HOURS, DemandHours
from fallow.model.cost import DemandHour
from fallow.model.units import HOUR

BEGIN = 1_800_000_000 // 3600 * 3600.0


def watch(hours: DemandHours, gpus: float, begin: float, end: float, step: float = 60.0) -> list[DemandHour]:
    found, at = [], begin
    while at <= end:
        found += hours.enter({"p": gpus}, at)
        at += step
    return found


def test_an_hour_is_kept_once_it_is_over_as_the_mean_of_its_time() -> None:
    hours = DemandHours()
    assert watch(hours, 8.0, BEGIN, BEGIN + HOUR / 2) == []
    found = watch(hours, 4.0, BEGIN + HOUR / 2 + 60, BEGIN + HOUR + 60)
    (one,) = found
    assert (one.policy, one.hour) == ("p", BEGIN)
    assert one.gpus == pytest.approx(6.0, abs=0.1)
    past = hours.find("p")
    assert past is not None
    assert (past.ends_at, len(past.hours), past.hours[-1]) == (BEGIN + HOUR, HOURS, one.gpus)
    assert all(math.isnan(each) for each in past.hours[:-1])


@pytest.mark.parametrize(("watched", "is_kept"), [(0.45, False), (0.6, True)])
def test_less_than_half_of_an_hour_is_a_gap(watched: float, is_kept: bool) -> None:
    hours = DemandHours()
    watch(hours, 8.0, BEGIN, BEGIN + watched * HOUR)
    assert bool(hours.enter({"p": 8.0}, BEGIN + HOUR + 1)) is is_kept
    assert (hours.find("p") is not None) is is_kept


def test_one_look_stands_for_two_minutes_at_most_and_a_clock_that_went_back_begins_anew() -> None:
    hours = DemandHours()
    assert watch(hours, 8.0, BEGIN, BEGIN + HOUR, step=600.0) == []
    hours.enter({"p": 8.0}, BEGIN + HOUR + 1800)
    assert hours.enter({"p": 8.0}, BEGIN) == []


def test_what_the_ledger_has_is_recalled_does_not_overrule_and_ends_after_weeks() -> None:
    hours = DemandHours([DemandHour("p", int(BEGIN), 5.0), DemandHour("q", int(BEGIN), 1.0)])
    hours.recall([DemandHour("p", int(BEGIN), 9.0)])
    past = hours.find("p")
    assert past is not None
    assert past.hours[-1] == 5.0
    later = BEGIN + (HOURS + 1) * HOUR
    watch(hours, 7.0, later, later + HOUR)
    found = hours.find("p")
    assert found is not None
    assert [each for each in found.hours if not math.isnan(each)] == [7.0]
    assert hours.find("nobody") is None
