"""Times, durations and ratios: what people write is read exactly or refused, and never becomes 0 by mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model import units

# Years 1970 to 2200: what an annotation may sensibly hold.
INSTANTS = st.floats(min_value=0, max_value=7_258_118_400, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("0s", 0.0), ("90s", 90.0), ("30m", 1800.0), ("1h30m", 5400.0), ("1.5h", 5400.0), (".5m", 30.0),
        ("7d", 604800.0),
        ("1d12h", 129600.0), ("250ms", 0.25), ("1us", 1e-6), ("1µs", 1e-6), ("1ns", 1e-9), ("1m1m", 120.0),
    ],
)
def test_a_duration_is_read(text, seconds):
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "", "30", "m", "-5m", "+5m", "1h 30m", "5 m", "30min", "1w", "1H", "1h30", "0.", "1..5h", "30m\n", "inf", "nan",
        "1e3s",
    ],
    ids=repr,
)
def test_what_is_no_duration_is_refused_in_a_sentence(text):
    with pytest.raises(ValueError) as refused:
        units.parse_duration(text)
    assert str(refused.value) == f"{text!r} is not a duration such as 90s, 30m, 1h30m or 7d"


@given(days=st.integers(0, 400), hours=st.integers(0, 23), minutes=st.integers(0, 59), seconds=st.integers(0, 59))
def test_units_add_up(days, hours, minutes, seconds):
    expected = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert units.parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == expected


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1", 1.0), ("0.8", 0.8), (".25", 0.25), ("1.0", 1.0)])
def test_a_ratio_is_read(text, value):
    assert units.parse_ratio(text) == value


@pytest.mark.parametrize("text", ["", "x", "80%", "-0.1", "1.01", "nan", "inf", "0,8"], ids=repr)
def test_what_is_no_ratio_is_refused(text):
    with pytest.raises(ValueError, match="between 0 and 1"):
        units.parse_ratio(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15T09:30:00Z", "2026-11-15T10:30:00+01:00", "2026-11-15T04:30:00-05:00", "2026-11-15T09:30:00.000000Z",
        " 2026-11-15T09:30:00Z ", "2026-11-15 09:30:00Z",
    ],
    ids=["utc", "east", "west", "micros", "blanks", "space"],
)
def test_one_instant_in_many_spellings(text):
    assert units.parse_instant(text) == 1794735000.0


def test_a_fraction_is_kept():
    assert units.parse_instant("2026-11-15T09:30:00.25Z") == 1794735000.25


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("2026-11-15T09:30:00", "has no time zone"), ("2026-11-15", "has no time zone"), ("tomorrow", "is not a time"),
        ("", "is not a time"),
    ],
    ids=["no-zone", "day-only", "word", "empty"],
)
def test_a_time_that_could_mean_several_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        units.parse_instant(text)


@pytest.mark.parametrize("text", [None, "", "soon", "2026-11-15T09:30:00", "2026-13-01T00:00:00Z"], ids=repr)
def test_an_odd_annotation_is_not_known_rather_than_zero(text):
    assert units.read_instant(text) is None


@given(text=st.text(max_size=40))
def test_reading_an_annotation_never_raises(text):
    read = units.read_instant(text)
    assert read is None or isinstance(read, float)


@given(instant=INSTANTS)
def test_what_is_written_reads_back_to_the_second(instant):
    written = units.rfc3339(instant)
    assert written.endswith("Z")
    assert len(written) == len("2026-11-15T09:30:00Z")
    assert 0 <= instant - units.parse_instant(written) < 1


def test_micros_are_six_digits_in_utc():
    assert units.rfc3339_micros(units.parse_instant("2026-05-04T12:00:00+02:00")) == "2026-05-04T10:00:00.000000Z"


@given(instant=INSTANTS)
def test_micros_read_back_to_the_microsecond(instant):
    assert units.parse_instant(units.rfc3339_micros(instant)) == pytest.approx(instant, abs=2e-6)


def test_the_clock_of_sentences_is_utc():
    assert units.clock_time(1794735000.0) == "09:30"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0s"), (-3, "0s"), (45, "45s"), (59.6, "1m"), (60, "1m"), (2820, "47m"), (3600, "1h"), (16800, "4h40m"),
        (86400, "1d"),
        (266400, "3d2h"), (86400 + 59, "1d"), (7 * 86400, "7d"),
    ],
)
def test_a_person_says_it_in_two_units_at_most(seconds, said):
    assert units.humane(seconds) == said


@given(seconds=st.floats(min_value=0, max_value=1e8))
def test_what_is_said_is_a_duration_and_not_longer_than_it_was(seconds):
    """Never longer: `idle for 47m` must be true. Rounding is to the second at most."""
    assert units.parse_duration(units.humane(seconds)) <= seconds + 0.5
