"""What owners used of GPUs in seven days, measured once an hour where there are policies of sharing, told the webhook.

In: GPU pods with their owners, Prometheus. Out: an OwnerUseTurn, and a ConfigMap that the webhook follows. A table that
could not be made anew stays, and is too old after some hours: then nothing is known, and nobody shares by it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow.clients import errors
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.sharing import OwnerUse
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.observe.usage.owning import OwnedPod
from fallow.stories.turn import Complaint, Turn

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = MINUTE
MEASURED: Final[Seconds] = HOUR
BUDGET: Final[Seconds] = 5 * MINUTE
Measure: TypeAlias = Callable[[Sequence[OwnedPod], Instant], Awaitable[Mapping[str, OwnerUse]]]


class OwnerUseTurn(msgspec.Struct, frozen=True, kw_only=True):
    """`because`: why nothing is known; it is no failure of the daemon."""

    at: Instant
    used: Mapping[str, OwnerUse] = {}
    because: str = ""
    failure: str = ""


class OwnerUseStory:
    """`is_wanted`: there are policies. `measure` None: there is no Prometheus to ask, or none to believe."""

    def __init__(
        self, *, is_wanted: Callable[[], bool], pods: Callable[[], Sequence[OwnedPod]], measure: Measure | None,
        tell: Callable[[Mapping[str, OwnerUse], Instant], Awaitable[None]],
    ) -> None:
        self._is_wanted, self._pods, self._measure, self._tell = is_wanted, pods, measure, tell
        self._last: OwnerUseTurn | None = None
        self._is_told, self._complaint = False, Complaint("what owners used of GPUs is not told the webhook: %s")

    async def tick(self, turn: Turn) -> OwnerUseTurn:
        last = self._last
        if last is None or last.because or not 0 <= turn.now - last.at < MEASURED:
            self._last, self._is_told = await self._look(turn), False
            if self._last.because and (last is None or last.because != self._last.because):
                log.info("what owners used of GPUs is not known: %s", self._last.because)
        assert self._last is not None
        if not self._last.because and not self._is_told and turn.may_act():  # what failed is tried anew, not measured
            await self._tell(self._last.used, self._last.at)
            self._is_told = True
            self._complaint.note("")
        return self._last

    async def look(self, turn: Turn) -> OwnerUseTurn:
        return OwnerUseTurn(at=turn.now, because="the leader knows")

    def fail(self, because: str, turn: Turn) -> OwnerUseTurn:
        self._complaint.note(because)
        return OwnerUseTurn(at=turn.now, because=because)

    def find(self, uid: str) -> Input[OwnerUse]:
        """As it was last measured."""
        if self._last is None or self._last.because:
            return Unseen(self._last.because if self._last is not None else "it is not measured yet")
        found = self._last.used.get(uid)
        return ABSENT if found is None else Known(found)

    async def _look(self, turn: Turn) -> OwnerUseTurn:
        if not self._is_wanted():
            return OwnerUseTurn(at=turn.now, because="there is no GPUSharingPolicy")
        if self._measure is None:
            return OwnerUseTurn(at=turn.now, because="there is no Prometheus that keeps seven days and is believed")
        try:
            return OwnerUseTurn(at=turn.now, used=await turn.in_time(self._measure(self._pods(), turn.now)))
        except errors.ClientError as problem:
            return OwnerUseTurn(at=turn.now, because=str(problem))
