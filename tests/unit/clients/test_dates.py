"""The time elsewhere, by the Date of answers."""

import pytest

from fallow.clients import dates
from fallow.model.seen import Known, Unseen

DATE = "Sun, 15 Nov 2026 12:00:00 GMT"
AT = 1_794_744_000.0


def test_the_last_date_is_carried_on_by_our_monotonic_clock() -> None:
    passed = [100.0]
    clock = dates.OtherClock(lambda: passed[0])
    assert isinstance(clock.read(), Unseen)
    clock.note({"Date": DATE})
    assert clock.read() == Known(AT)
    passed[0] = 160.0
    assert clock.read() == Known(AT + 60)
    clock.note({"Date": "Sun, 15 Nov 2026 12:00:30 GMT"})
    assert clock.read() == Known(AT + 30)


@pytest.mark.parametrize(("silent", "is_known"), [
    (0.0, True), (dates.CARRIED, True), (dates.CARRIED + 1, False),
], ids=["no-answer-since", "a-few-without", "too-many-without"])
def test_a_clock_that_is_told_no_longer_is_not_carried_on_for_ever(silent: float, is_known: bool) -> None:
    passed = [100.0]
    clock = dates.OtherClock(lambda: passed[0])
    clock.note({"Date": DATE})
    passed[0] += silent
    clock.note({"Age": "30", "Date": DATE})
    passed[0] = 90_000.0  # how long ago the last answer was does not matter
    assert isinstance(clock.read(), Known if is_known else Unseen)
    clock.note({"Date": DATE})
    assert clock.read() == Known(AT)


@pytest.mark.parametrize("headers", [
    {}, {"Date": ""}, {"Date": "noon"}, {"Date": "Sun, 99 Nov 2026 12:00:00 GMT"}, {"Date": DATE, "Age": "30"},
], ids=["none", "empty", "no-date", "no-such-day", "from-a-cache"])
def test_what_is_no_date_of_this_answer_tells_nothing(headers: dict[str, str]) -> None:
    clock = dates.OtherClock()
    clock.note(headers)
    assert isinstance(clock.read(), Unseen)
