"""The story of GPUs that look as if they were kept busy only to be left alone: looked for once an hour, told, no more.

In: the latest cycle of the idle story, Prometheus. Out: a GamingTurn: suspects with their evidence, or why nobody could
be asked about. There is no third step: nothing is ever done because of it.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import telemetry
from fallow.clients import errors
from fallow.decide.idle import gaming
from fallow.model import decision
from fallow.model.gaming import Burned, Suspect
from fallow.model.units import HOUR, Instant, Seconds
from fallow.stories.turn import Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = HOUR
FIRST: Final[Seconds] = 60.0  # until the first cycle has ended
Measure: TypeAlias = Callable[[Sequence[str], Instant], Awaitable[Mapping[str, Burned]]]


class GamingTurn(msgspec.Struct, frozen=True):
    """`because`: why nothing is known. It is no failure of the daemon. `is_trouble`: it does not pass by itself."""

    at: Instant
    suspects: tuple[Suspect, ...] = ()
    asked: int = 0  # GPUs
    because: str = ""
    is_trouble: bool = False
    failure: str = ""


class GamingStory:
    """Asked every minute, it looks once an hour. `measure` None: there is no Prometheus to ask."""

    def __init__(
        self, *, latest: Callable[[], decision.Cycle | None], measure: Measure | None, metrics: telemetry.Telemetry
    ) -> None:
        self._latest, self._measure, self._metrics = latest, measure, metrics
        self._last: GamingTurn | None = None

    async def tick(self, turn: Turn) -> GamingTurn:
        if self._last is None or turn.now - self._last.at >= (FIRST if self._last.because else INTERVAL):
            before, self._last = self._last, await self._look(turn)
            self._tell(before, self._last)
        return self._last

    def _tell(self, before: GamingTurn | None, now: GamingTurn) -> None:
        """What is the matter is said once. Nobody listed because nobody could be asked is no 0."""
        self._metrics.set("fallow_idle_suspect_gaming", math.nan if now.because else len(now.suspects))
        if now.is_trouble and (before is None or before.because != now.because):
            log.warning("who is kept busy only to be left alone could not be found out: %s", now.because)

    async def look(self, turn: Turn) -> GamingTurn:
        return self.fail("the leader knows", turn)

    def fail(self, because: str, turn: Turn) -> GamingTurn:
        return GamingTurn(turn.now, because=because)

    async def _look(self, turn: Turn) -> GamingTurn:
        latest = self._latest()
        if self._measure is None:
            return GamingTurn(turn.now, because="only Prometheus keeps what GPUs did in six hours, and there is none")
        if latest is None:
            return GamingTurn(turn.now, because="no cycle has ended yet")
        if latest.snapshot is None:
            return GamingTurn(turn.now, because=f"the last cycle saw nothing: {latest.failure}")
        try:
            with stumbling():
                burners = gaming.find_burners(latest.snapshot)
                gpus = sorted({each.gpu for each in burners})
                did = await turn.in_time(self._measure(gpus, turn.now)) if gpus else {}
                found = gaming.find_suspects(burners, did, turn.now)
        except errors.ClientError as problem:
            return GamingTurn(turn.now, because=str(problem), is_trouble=True)
        return GamingTurn(turn.now, tuple(found), len(gpus))
