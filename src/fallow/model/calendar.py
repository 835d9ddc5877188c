"""A window of time in pieces of somebody's calendar: hours, days, weeks and months as the clock on their wall has them.

In: [begin, end) in UTC seconds, a step (of the calendar, or so many seconds), a time zone. Out: the pieces, the first
and the last one cut to the window.
Invariant: the pieces lie side by side and are the window. A day has 23 or 25 hours where clocks change.
"""

import datetime
import functools
import zoneinfo
from typing import Final

from fallow.model.cost import HOUR, CostStep, Second

MOST_PIECES: Final = 20_000  # two years of hours
_TOO_MANY: Final = f"more than {MOST_PIECES} pieces; ask for larger ones, or for less time"


def find_zone(name: str) -> zoneinfo.ZoneInfo:
    """ValueError, in a sentence, where there is none."""
    try:
        return _zone(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError(f"{name!r} is no time zone such as UTC or Europe/Berlin") from None


@functools.lru_cache(64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(name)


def cut(begin: Second, end: Second, step: CostStep | Second | None, zone: str) -> list[tuple[Second, Second]]:
    if begin >= end:
        return []
    if step is None:
        return [(begin, end)]
    if isinstance(step, int):
        return _cut_evenly(begin, end, step)
    clock, pieces = find_zone(zone), list[tuple[Second, Second]]()
    while begin < end:
        after = min(_next(begin, step, clock), end)
        pieces.append((begin, after))
        if len(pieces) > MOST_PIECES:
            raise ValueError(_TOO_MANY)
        begin = after
    return pieces


def _cut_evenly(begin: Second, end: Second, length: Second) -> list[tuple[Second, Second]]:
    if length < 1 or (end - begin) // length >= MOST_PIECES:
        raise ValueError(_TOO_MANY)
    return [(at, min(at + length, end)) for at in range(begin, end, length)]


def _next(at: Second, step: CostStep, zone: zoneinfo.ZoneInfo) -> Second:
    """The first second of the piece after the one that holds `at`."""
    local = datetime.datetime.fromtimestamp(at, zone)
    if step is CostStep.hour:  # as the wall's clock has them: some zones are off by half an hour
        return at + HOUR - (local.minute * 60 + local.second) % HOUR
    day = _next_day(local.date(), step)
    midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=zone)
    return max(int(midnight.timestamp()), at + 1)


def _next_day(today: datetime.date, step: CostStep) -> datetime.date:
    if step is CostStep.day:
        return today + datetime.timedelta(days=1)
    if step is CostStep.week:  # from Monday on
        return today + datetime.timedelta(days=7 - today.weekday())
    return datetime.date(today.year + today.month // 12, today.month % 12 + 1, 1)
