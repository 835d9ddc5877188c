"""Pieces of a calendar: side by side, and as the clock on the wall has them."""

from __future__ import annotations

import datetime
import itertools
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model import calendar
from fallow.model.cost import DAY, HOUR, CostStep

ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Cairo"]


def at(text, zone="UTC"):
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp())


@given(
    begin=st.integers(1_600_000_000, 1_900_000_000), length=st.integers(1, 90 * DAY), zone=st.sampled_from(ZONES),
    step=st.sampled_from([CostStep.day, CostStep.week, CostStep.month]),
)
def test_pieces_are_the_window_and_begin_at_local_midnight(begin, length, zone, step):
    pieces = calendar.cut(begin, begin + length, step, zone)
    assert (pieces[0][0], pieces[-1][1]) == (begin, begin + length)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(pieces))
    for first, _ in pieces[1:]:
        now, before = (datetime.datetime.fromtimestamp(when, zoneinfo.ZoneInfo(zone)) for when in (first, first - 1))
        assert now.date() == before.date() + datetime.timedelta(days=1)
        assert step is not CostStep.week or now.weekday() == 0
        assert step is not CostStep.month or now.day == 1


@pytest.mark.accepts("cost", 20)
@pytest.mark.parametrize(("day", "hours"), [("2026-03-08", 23), ("2026-11-01", 25), ("2026-06-01", 24)])
def test_a_day_has_the_hours_that_its_clocks_show(day, hours):
    begin = at(day, "America/New_York")
    (piece,) = calendar.cut(begin, begin + hours * HOUR, CostStep.day, "America/New_York")
    assert piece == (begin, begin + hours * HOUR)
    assert len(calendar.cut(begin, begin + hours * HOUR, CostStep.hour, "America/New_York")) == hours
    assert len(calendar.cut(begin, begin + hours * HOUR + 1, CostStep.day, "America/New_York")) == 2


def test_hours_are_those_of_the_wall():
    pieces = calendar.cut(at("2026-06-01T00:00"), at("2026-06-01T02:00"), CostStep.hour, "Asia/Kolkata")
    assert [first % HOUR for first, _ in pieces] == [0, 1800, 1800]


def test_no_step_is_one_piece_and_no_time_is_none():
    assert calendar.cut(5, 9, None, "UTC") == [(5, 9)]
    assert calendar.cut(9, 9, CostStep.day, "UTC") == []
