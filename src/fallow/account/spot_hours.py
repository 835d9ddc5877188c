"""How long spot nodes ran and how often their clouds took one back, for each policy: by that the share of spot is
advised.

In: counts at every look. Out: the SpotRuns that its status keeps: whole node-hours, told once an hour. What runs when
the process ends before is not counted, so that clouds look worse than they are, never better.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from fallow.model.scaling import SpotRuns
from fallow.model.units import DAY, HOUR, Instant, Seconds

_LONGEST_LOOK: Final[Seconds] = 120.0  # that one count may stand for
_LONGEST: Final[Seconds] = 28 * DAY  # after which what was counted fades by half


class _SpotRunning(msgspec.Struct):
    at: Instant
    nodes: int
    seconds: float = 0.0


class SpotHours:
    def __init__(self) -> None:
        self._running: dict[str, _SpotRunning] = {}

    def enter(self, counts: Mapping[str, int], now: Instant) -> None:
        """Spot nodes of each policy."""
        for policy, nodes in counts.items():
            before = self._running.setdefault(policy, _SpotRunning(now, nodes))
            before.seconds += before.nodes * min(max(0.0, now - before.at), _LONGEST_LOOK)
            before.at, before.nodes = now, nodes

    def watch(self, policy: str, before: SpotRuns | None, interruptions: int, now: Instant) -> SpotRuns | None:
        """What the status has, with what came since; None: there was no spot node yet."""
        running = self._running.get(policy)
        if before is None and (running is None or not running.nodes):
            return None
        kept = before or SpotRuns(since=now)
        hours = 0
        if running is not None and (running.seconds >= HOUR * max(1, running.nodes) or interruptions):
            hours = int(running.seconds // HOUR)
            running.seconds -= hours * HOUR
        made = SpotRuns(
            since=kept.since, node_hours=kept.node_hours + hours, interruptions=kept.interruptions + interruptions
        )
        if now - made.since <= _LONGEST:
            return made
        return SpotRuns(
            since=made.since + _LONGEST / 2, node_hours=made.node_hours // 2,
            interruptions=(made.interruptions + 1) // 2,
        )
