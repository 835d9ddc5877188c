"""A window of time as people type it: `today`, `lastmonth`, `7d`, two instants with a comma between.

In: a text, now, a time zone for the words that are about a calendar. Out: [begin, end) in whole UTC seconds.
A word means what it means to OpenCost, whose clients ask us: a week begins on Sunday at midnight, and `today`, `week`
and `month` last until now. A duration is the time before now, in days as in minutes (OpenCost rounds days up to
midnight; here a command and the API mean the same window by the same word).
Invariant: what is no window raises ValueError, one sentence; no window is empty, and none begins after its end.
"""

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from fallow.model import calendar, units
from fallow.model.cost import DAY, HOUR, Second

LONGEST: Final[Second] = 10 * 366 * DAY
_UNITS: Final[Mapping[str, Second]] = {"m": 60, "h": HOUR, "d": DAY, "w": 7 * DAY}
_DURATION: Final = re.compile(r"([0-9]{1,6})([mhdw])")
_LAST: Final[Second] = 253_402_300_799  # the end of the year 9999
_SUCH: Final = (
    "today, yesterday, week, lastweek, month, lastmonth, a duration such as 30m, 12h, 7d or 2w, or two times with a"
    " comma between (2026-11-01T00:00:00Z,2026-11-08T00:00:00Z, or seconds since 1970)"
)


class TimeSpan(msgspec.Struct, frozen=True):
    """[begin, end)."""

    begin: Second
    end: Second

    @property
    def seconds(self) -> Second:
        return self.end - self.begin

    @property
    def before(self) -> "TimeSpan":
        """As long, and just before it: what one compares with."""
        return TimeSpan(max(0, self.begin - self.seconds), self.begin)


Days: TypeAlias = tuple[datetime.date, datetime.date | None]  # the first, and the one after the last; None: until now


def read_window(text: str, now: units.Instant, zone: str = "UTC") -> TimeSpan:
    said, at = text.strip(), int(now)
    if said in _WORDS:
        return _read_word(said, at, zone)
    if "," in said:
        return _check(*_read_pair(said), said)
    if _DURATION.fullmatch(said) is None:
        raise ValueError(f"{text!r} is no window; there are {_SUCH}")
    return read_last(said, now)


def read_last(text: str, now: units.Instant) -> TimeSpan:
    """So much before now: `30m`, `12h`, `7d`, `2w`."""
    found, end = _DURATION.fullmatch(text.strip()), int(now)
    if found is None:
        raise ValueError(f"{text!r} is no window such as 30m, 12h, 7d or 2w")
    return _check(end - int(found[1]) * _UNITS[found[2]], end, text)


def read_between(begin: str, end: str | None, now: units.Instant, zone: str = "UTC") -> TimeSpan:
    """Two instants, or days of the zone's calendar (`2026-11-01`): from midnight to midnight. None: until now."""
    last = int(now) if end is None else _read_instant(end, zone)
    return _check(_read_instant(begin, zone), last, f"{begin},{end or 'now'}")


def _read_instant(text: str, zone: str) -> Second:
    said = text.strip()
    if said.isdecimal() and said.isascii() and len(said) > 8:
        return int(said)
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", said):
        try:
            return _midnight(datetime.date.fromisoformat(said), zone)
        except ValueError:
            raise ValueError(f"{text!r} is no day such as 2026-11-15") from None
    return int(units.parse_instant(said))


def _read_pair(text: str) -> tuple[Second, Second]:
    first, _, second = text.partition(",")
    pair = first.strip(), second.strip()
    if all(re.fullmatch(r"[0-9]{1,12}", each) for each in pair):
        return int(pair[0]), int(pair[1])
    begin, end = map(units.parse_instant, pair)
    return int(begin), int(end)


def _check(begin: Second, end: Second, said: str) -> TimeSpan:
    if begin >= end:
        raise ValueError(f"{said!r} ends before it begins, or has no length")
    if begin < 0 or end > _LAST:
        raise ValueError(f"{said!r} reaches beyond what a calendar has")
    if end - begin > LONGEST:
        raise ValueError(f"{said!r} is longer than {LONGEST // DAY} days")
    return TimeSpan(begin, end)


# ---- words -----------------------------------------------------------------------------------------------------------


def _read_word(word: str, now: Second, zone: str) -> TimeSpan:
    today = datetime.datetime.fromtimestamp(now, calendar.find_zone(zone)).date()
    first, after = _WORDS[word](today)
    end = now if after is None else _midnight(after, zone)
    begin = _midnight(first, zone)
    return TimeSpan(begin, max(end, begin + 1))  # in the first second of a day `today` has no length yet


def _midnight(day: datetime.date, zone: str) -> Second:
    return int(datetime.datetime(day.year, day.month, day.day, tzinfo=calendar.find_zone(zone)).timestamp())


def _sunday(today: datetime.date) -> datetime.date:
    return today - datetime.timedelta(days=today.isoweekday() % 7)


def _last_month(today: datetime.date) -> Days:
    first = today.replace(day=1)
    return (first - datetime.timedelta(days=1)).replace(day=1), first


_DAY: Final = datetime.timedelta(days=1)
_WORDS: Final[Mapping[str, Callable[[datetime.date], Days]]] = {
    "today": lambda today: (today, None),
    "yesterday": lambda today: (today - _DAY, today),
    "week": lambda today: (_sunday(today), None),
    "lastweek": lambda today: (_sunday(today) - 7 * _DAY, _sunday(today)),
    "month": lambda today: (today.replace(day=1), None),
    "lastmonth": _last_month,
}
