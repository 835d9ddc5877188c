"""Windows as people type them: whole seconds, the calendar of a zone, and a sentence for what is none."""

import datetime
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fallow.model import calendar, windows
from fallow.model.cost import DAY, HOUR, CostStep
from fallow.model.windows import TimeSpan

NOW = 1_795_005_296.7  # Wednesday, 2026-11-18T12:34:56.7Z


def at(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(("text", "begin", "end"), [
    ("today", "2026-11-18T00:00Z", "2026-11-18T12:34:56Z"), ("yesterday", "2026-11-17T00:00Z", "2026-11-18T00:00Z"),
    ("week", "2026-11-15T00:00Z", "2026-11-18T12:34:56Z"), ("lastweek", "2026-11-08T00:00Z", "2026-11-15T00:00Z"),
    ("month", "2026-11-01T00:00Z", "2026-11-18T12:34:56Z"), ("lastmonth", "2026-10-01T00:00Z", "2026-11-01T00:00Z"),
    ("30m", "2026-11-18T12:04:56Z", "2026-11-18T12:34:56Z"), ("12h", "2026-11-18T00:34:56Z", "2026-11-18T12:34:56Z"),
    ("7d", "2026-11-11T12:34:56Z", "2026-11-18T12:34:56Z"), ("2w", "2026-11-04T12:34:56Z", "2026-11-18T12:34:56Z"),
    ("2026-11-01T00:00:00Z,2026-11-02T01:00:00+01:00", "2026-11-01T00:00Z", "2026-11-02T00:00Z"),
    ("1793491200,1793577600", "2026-11-01T00:00Z", "2026-11-02T00:00Z"),
])
def test_a_window_is_what_it_is_to_opencost(text, begin, end):
    assert windows.read_window(text, NOW) == TimeSpan(at(begin), at(end))


@pytest.mark.parametrize(("word", "begin", "end"), [
    ("today", "2026-11-18T00:00-05:00", None), ("yesterday", "2026-11-17T00:00-05:00", "2026-11-18T00:00-05:00"),
    ("month", "2026-11-01T00:00-04:00", None), ("lastmonth", "2026-10-01T00:00-04:00", "2026-11-01T00:00-04:00"),
])
def test_a_word_is_of_the_calendar_of_its_zone(word, begin, end):
    """Clocks changed on the first of November there: the month began in summer time."""
    found = windows.read_window(word, NOW, "America/New_York")
    assert found == TimeSpan(at(begin), int(NOW) if end is None else at(end))


@pytest.mark.parametrize(("text", "says"), [
    ("banana", "'banana' is no window; there are today"), ("", "is no window"), ("7", "is no window"),
    ("-7d", "is no window"), ("7y", "is no window"), ("1.5h", "is no window"), ("٧d", "is no window"),
    ("0d", "has no length"), ("1793577600,1793491200", "ends before it begins"), ("5,5", "has no length"),
    ("2026-11-01T00:00:00,2026-11-02T00:00:00", "has no time zone"), ("x,y", "is not a time such as"),
    ("999999w", "reaches beyond"), ("0,400000000", "longer than 3660 days"), ("1,2,3", "is not a time"),
])
def test_what_is_no_window_is_a_sentence(text, says):
    with pytest.raises(ValueError, match=says):
        windows.read_window(text, NOW)


def test_from_and_to_are_days_or_instants():
    assert windows.read_between("2026-11-01", "2026-11-02", NOW) == TimeSpan(at("2026-11-01T00:00Z"),
                                                                            at("2026-11-02T00:00Z"))
    berlin = windows.read_between("2026-11-01", None, NOW, "Europe/Berlin")
    assert berlin == TimeSpan(at("2026-11-01T00:00+01:00"), int(NOW))
    assert windows.read_between("2026-11-01T05:00:00Z", "1793577600", NOW).seconds == 19 * HOUR
    with pytest.raises(ValueError, match="no day"):
        windows.read_between("2026-13-01", None, NOW)


def test_what_one_compares_with_is_as_long_and_just_before():
    found = windows.read_window("7d", NOW)
    assert found.before == TimeSpan(found.begin - 7 * DAY, found.begin)


@given(some.integers(0, 10**9), some.integers(1, 10**6), some.integers(60, 10**5))
def test_pieces_of_so_many_seconds_are_the_window(begin, length, step):
    pieces = calendar.cut(begin, begin + length, step, "UTC")
    assert (pieces[0][0], pieces[-1][1]) == (begin, begin + length)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(pieces))
    assert {end - start for start, end in pieces[:-1]} <= {step}


def test_too_many_pieces_are_refused():
    with pytest.raises(ValueError, match="more than 20000 pieces"):
        calendar.cut(0, 10**7, 60, "UTC")
    with pytest.raises(ValueError, match="more than 20000 pieces"):
        calendar.cut(0, 10 * 366 * DAY, CostStep.hour, "UTC")
