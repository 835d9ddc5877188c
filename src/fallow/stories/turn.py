"""What the loop grants a story for one cycle: an instant, some time, and the right to act while nothing speaks against.

In: two clocks, a budget, whether we are to stop, whether we lead. Out: `now`, `took`, `may_act`, and `in_time` for
whatever only looks.
Invariant: a look ends with its budget or when we are to stop; what writes is never cut short, and nothing is begun
after either. What nobody foresaw fails the look that came upon it, loudly: it never ends the process.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from fallow.clients import errors
from fallow.model import units
from fallow.model.units import Instant, Seconds

log = logging.getLogger("fallow")

Clock = Callable[[], Instant]
T = TypeVar("T")


class GivenUp(errors.ClientError):
    """A look that was cut short: its time was over, or we were asked to stop."""


class Stumbled(errors.ClientError):
    """A look that came upon what nobody foresaw: a bug, mostly, that something in the cluster has woken."""


@contextlib.contextmanager
def stumbling() -> Iterator[None]:
    """While nothing is written: whatever goes wrong in here is a Stumbled, with its traceback in the log."""
    try:
        yield
    except errors.ClientError:
        raise
    except Exception as problem:
        log.exception("looking at the cluster failed in a way that nobody foresaw")
        raise Stumbled(f"unexpected {type(problem).__name__} ({problem}); the log has more") from problem


class Complaint:
    """What ails a story: in the log when it becomes another, and anew once it was well. `sentence` has a %s for it."""

    def __init__(self, sentence: str) -> None:
        self._sentence, self._said = sentence, ""

    def note(self, because: str) -> None:
        """"": it is well."""
        if because and because != self._said:
            log.warning(self._sentence, because)
        self._said = because


class Turn:
    """One cycle of one story. `clock` is the wall clock, `monotonic` one that nobody sets."""

    def __init__(
        self, *, clock: Clock, monotonic: Clock, budget: Seconds, stopping: asyncio.Event, leads: Callable[[], bool]
    ) -> None:
        self.clock, self.now = clock, clock()
        self._monotonic, self._began, self._budget = monotonic, monotonic(), budget
        self._stopping, self._leads = stopping, leads

    @property
    def took(self) -> Seconds:
        return self._monotonic() - self._began

    def may_act(self) -> bool:
        """Stopping, out of time, or not the leader any more: nothing further is begun."""
        return not self._stopping.is_set() and self.took < self._budget and self._leads()

    async def in_time(self, look: Awaitable[T]) -> T:
        """What only looks ends with the budget, or when we are to stop."""
        looking, stopping = asyncio.ensure_future(look), asyncio.ensure_future(self._stopping.wait())
        try:
            left = self._budget - self.took
            await asyncio.wait({looking, stopping}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                with stumbling():
                    return looking.result()
        finally:
            looking.cancel()
            stopping.cancel()
            await asyncio.gather(looking, stopping, return_exceptions=True)
        if self._stopping.is_set():
            raise GivenUp("we were asked to stop")
        raise GivenUp(f"the cycle did not end within its budget of {units.humane(self._budget)}")
