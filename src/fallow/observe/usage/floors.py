"""The lowest power of a day of each board: what it draws when it does nothing.

In: readings of a day of power. Out: watts by UUID. Invariant: a floor is learned only where most of a day was measured,
and is forgotten a day after it was last found.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fallow.model.units import DAY, HOUR, Instant, Seconds
from fallow.observe.usage import labels, paces, queries, readings
from fallow.observe.usage.readings import Topic, What

_HOLD: Seconds = HOUR
_COVERAGE = 0.8  # of a day measured before the lowest power of that day says something


Counts: TypeAlias = Callable[[labels.Facts], bool]  # whether a series does: not everybody is believed


class Floors:
    """The lowest power of a day of each board, learned now and then: for rules that ask for it, for the canary of
    models whose rated power nobody knows, and for who burned what of a GPU in parts."""

    def __init__(self) -> None:
        self.watts: dict[str, float] = {}
        self._learned_at: Instant = -math.inf
        self._found_at: dict[str, Instant] = {}

    def are_due(self, now: Instant) -> bool:
        return now - self._learned_at >= _HOLD

    def learn(
        self, found: readings.Readings, facts: Sequence[labels.Facts], interval: Seconds | None, now: Instant,
        counts: Counts,
    ) -> None:
        """What could not be asked is asked again in the next cycle."""
        lowest = find_floors(found, facts, interval, counts)
        if lowest is not None:
            self._found_at |= dict.fromkeys(lowest, now)
            self._found_at = {uuid: at for uuid, at in self._found_at.items() if now - at < DAY}
            before = self.watts
            self.watts = {uuid: lowest.get(uuid, before.get(uuid, math.nan)) for uuid in self._found_at}
            self._learned_at = now


def find_floors(
    found: readings.Readings, facts: Sequence[labels.Facts], interval: Seconds | None, counts: Counts
) -> dict[str, float] | None:
    """The lowest power of each board, where a day of it was measured; None if that could not be asked."""
    floors: dict[str, float] = {}
    for metric in queries.POWER:
        lowest, samples = (found.get(Topic(what, metric.name, DAY)) for what in (What.lowest, What.samples))
        if lowest is None or samples is None:
            return None
        watched = _find_watched(samples, facts, interval, counts)
        for number, watts in zip(lowest.series.tolist(), queries.believe(lowest.values, metric), strict=True):
            uuid = facts[number].uuid
            if uuid and watts >= 0.0 and number in watched:
                floors[uuid] = min(floors.get(uuid, math.inf), float(watts))
    return floors


def _find_watched(
    samples: readings.SeriesReading, facts: Sequence[labels.Facts], interval: Seconds | None, counts: Counts
) -> set[int]:
    """The series that measured most of the day: by the interval, or by the best series of their job."""
    heard = [one for one in zip(samples.series.tolist(), samples.values, strict=True) if counts(facts[one[0]])]
    of_job: dict[str, list[float]] = defaultdict(list)
    for number, count in heard:
        of_job[facts[number].job].append(count)
    enough = {
        job: _COVERAGE * DAY / (interval or paces.interval_of(max(some), DAY)) for job, some in of_job.items()
    }
    return {number for number, count in heard if count >= enough[facts[number].job]}
