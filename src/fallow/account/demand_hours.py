"""How many GPUs were in use and waited for, hour by hour, for each policy: what foresight learns from.

In: a count at every look. Out: the mean of every hour that was watched well enough; the series of the last weeks, nan
where nobody looked. Invariant: an hour is kept once it is over; one of which less than half was watched is a gap.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow.model.cost import DEMAND_KEPT, HOUR, DemandHour, Second
from fallow.model.scaling import DemandPast
from fallow.model.units import Instant

HOURS: Final = DEMAND_KEPT // HOUR
_LEAST_WATCHED: Final = 0.5
_LONGEST_LOOK: Final = 120.0  # seconds that one count may stand for


class _OpenHour(msgspec.Struct):
    hour: Second
    at: Instant
    gpus: float
    seconds: float = 0.0
    summed: float = 0.0


class DemandHours:
    """The series of all policies, in memory; who keeps a ledger hands in what stands there, and keeps what is new."""

    def __init__(self, before: Iterable[DemandHour] = ()) -> None:
        self._known: dict[str, dict[Second, float]] = {}
        self._running: dict[str, _OpenHour] = {}
        self.recall(before)

    def recall(self, before: Iterable[DemandHour]) -> None:
        for each in before:
            self._known.setdefault(each.policy, {}).setdefault(each.hour, each.gpus)

    def enter(self, counts: Mapping[str, float], now: Instant) -> list[DemandHour]:
        """The hours that are over by now and were watched."""
        found = [hour for policy, gpus in counts.items() if (hour := self._enter(policy, gpus, now)) is not None]
        for each in found:
            kept = self._known.setdefault(each.policy, {})
            kept[each.hour] = each.gpus
            for old in [at for at in kept if at < each.hour - HOURS * HOUR]:
                del kept[old]
        return found

    def _enter(self, policy: str, gpus: float, now: Instant) -> DemandHour | None:
        hour = int(now) // HOUR * HOUR
        running = self._running.get(policy)
        if running is None or now < running.at:
            self._running[policy] = _OpenHour(hour, now, gpus)
            return None
        until = min(now, float(running.hour + HOUR))
        stretch = min(until - running.at, _LONGEST_LOOK)
        running.seconds, running.summed = running.seconds + stretch, running.summed + stretch * running.gpus
        if hour == running.hour:
            running.at, running.gpus = now, gpus
            return None
        self._running[policy] = _OpenHour(hour, now, gpus)
        if running.seconds < _LEAST_WATCHED * HOUR:
            return None
        return DemandHour(policy, running.hour, running.summed / running.seconds)

    def find(self, policy: str) -> DemandPast | None:
        """Up to the last hour that is known; None: none is."""
        kept = self._known.get(policy)
        if not kept:
            return None
        last = max(kept)
        hours = range(last - (HOURS - 1) * HOUR, last + 1, HOUR)
        return DemandPast(ends_at=float(last + HOUR), hours=tuple(kept.get(hour, math.nan) for hour in hours))
