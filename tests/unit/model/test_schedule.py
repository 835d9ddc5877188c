"""Times that come again: the latest one, in its own zone, also where clocks are changed."""

import pytest

from fallow.model import schedule
from fallow.model.schedule import Schedule
from fallow.model.units import parse_instant, rfc3339


@pytest.mark.parametrize(("when", "zone", "now", "latest"), [
    ("0 17 * * 5", "UTC", "2026-11-15T12:00:00Z", "2026-11-13T17:00:00Z"),
    ("0 17 * * 5", "Europe/Berlin", "2026-11-15T12:00:00Z", "2026-11-13T16:00:00Z"),
    ("0 17 * * fri", "UTC", "2026-11-13T17:00:00Z", "2026-11-13T17:00:00Z"),
    ("0 17 * * 5", "UTC", "2026-11-13T16:59:59Z", "2026-11-06T17:00:00Z"),
    ("30 2 * * *", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29T01:00:00Z"),  # 02:30 is not there that day
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25T00:30:00Z"),  # and twice on this one
])
def test_the_latest_time_that_is_not_in_the_future(when: str, zone: str, now: str, latest: str) -> None:
    assert rfc3339(Schedule.parse(when, zone).latest(parse_instant(now))) == latest


@pytest.mark.parametrize("when", ["", "0 17 * *", "* * * * * *", "61 * * * *", "0 0 31 2 *", "soon", "@weekly"])
def test_what_is_no_time_of_cron_is_refused_in_words(when: str) -> None:
    with pytest.raises(ValueError, match="is no time of cron such as"):
        Schedule.parse(when, "UTC")


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../etc/passwd"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        schedule.read_zone(zone)
