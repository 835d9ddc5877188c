"""Instants, durations and ratios: how they are read from people and how they are written for people and machines.

An instant is a float of epoch seconds (columns of numbers need no conversion), written as RFC 3339 UTC in whole seconds
with `Z`. A duration is a float of seconds, written Go style plus days: `1h30m`, `7d`. What cannot be read raises
ValueError with one sentence; nothing unreadable ever becomes 0.
"""

import math
import re
from datetime import UTC, datetime
from typing import TypeAlias

Instant: TypeAlias = float
Seconds: TypeAlias = float

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
WEEK = 7 * DAY
_LAST = 253402300799.0  # the end of the year 9999

_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": MINUTE, "h": HOUR, "d": DAY}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")


def parse_duration(text: str) -> Seconds:
    """`90s`, `1h30m`, `1.5h`, `7d`; `0` alone is allowed. Negative, empty and unitless durations are refused."""
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s, 30m, 1h30m or 7d")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_ratio(text: str) -> float:
    """A ratio written as a string between 0 and 1, such as "0.8"."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number between 0 and 1") from None
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{text!r} is not between 0 and 1")
    return value


def parse_instant(text: str) -> Instant:
    """RFC 3339 with any offset and fraction; a time without a zone is refused, for nobody can know what it meant."""
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-11-15T09:30:00Z") from None
    if parsed.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it as 2026-11-15T09:30:00Z")
    return parsed.timestamp()


def read_instant(text: str | None) -> Instant | None:
    """Like parse_instant, for annotations that may be absent or odd: what cannot be read is not known."""
    try:
        return parse_instant(text) if text else None
    except (ValueError, OverflowError):
        return None


def rfc3339(instant: Instant) -> str:
    """UTC, whole seconds, `Z`. What no calendar holds is written as the nearest instant that one does."""
    return datetime.fromtimestamp(math.floor(min(max(instant, 0.0), _LAST)), UTC).isoformat().replace("+00:00", "Z")


def rfc3339_micros(instant: Instant) -> str:
    """UTC with microseconds, as Kubernetes' MicroTime wants it."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def clock_time(instant: Instant) -> str:
    """Hours and minutes in UTC, for sentences."""
    return datetime.fromtimestamp(instant, UTC).strftime("%H:%M")


def spoken(seconds: Seconds) -> str:
    """As one says it, in messages and on pages: `9 s`, `25 min`, `2 h 14 min`, `3 d 4 h`."""
    return " ".join(f"{number} {'min' if unit == 'm' else unit}" for number, unit in _split(seconds))


def humane(seconds: Seconds) -> str:
    """As one types it, on a terminal and in a log: `45s`, `47m`, `4h40m`, `3d2h`."""
    return "".join(f"{number}{unit}" for number, unit in _split(seconds))


def _split(seconds: Seconds) -> list[tuple[int, str]]:
    """Never more than two units."""
    whole = max(0, round(seconds))
    if whole < 60:
        return [(whole, "s")]
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    parts = ((days, "d"), (hours, "h"), (0 if days else minutes, "m"))
    return [(number, unit) for number, unit in parts if number]


def many(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`, `1,200 GPUs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def hours(seconds: Seconds) -> str:
    """As it is typed after `--hours`, and never more than that."""
    return f"{math.floor(seconds / HOUR * 100) / 100:g}"
