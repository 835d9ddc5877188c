"""The story of savings: once an hour, what pauses and spot nodes saved is worked out and written down, and what is
older than is kept is forgotten.

In: the pauses that the audit knows, the latest cycle of the idle story, the ledger; what a GPU costs on demand. Out: a
SavingsTurn. Yesterday and today are made anew each time: what was missed while the ledger was away comes by itself, and
a pause that somebody took back claims nothing.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from fallow.account import audit, digest, saving_books, savings
from fallow.account.counterfactuals import OnDemand
from fallow.account.ledger import Ledger
from fallow.clients import errors
from fallow.model import cost, decision
from fallow.model.cost import CostBatch, CostRetention
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.stories.turn import Turn

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = HOUR
BUDGET: Final[Seconds] = 10 * MINUTE


class SavingBooks(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger, as far as savings ask it. `write`, `forget`: as the one writer; each may raise a ClientError."""

    ledger: Ledger
    write: Callable[[CostBatch], Awaitable[None]]
    forget: Callable[[CostRetention, Instant], Awaitable[None]]
    on_demand: OnDemand


class SavingsTurn(msgspec.Struct, frozen=True):
    """`rows`: how many stand for yesterday and today."""

    at: Instant
    rows: int = 0
    failure: str = ""


class SavingsStory:
    """`is_dry`: nothing is paused, and what would be saved is told apart, too. `worked_out`: up to when it stands in
    the ledger; None: not since we started."""

    def __init__(
        self, *, kept: audit.Audit, latest: Callable[[], decision.Cycle | None], books: SavingBooks,
        retention: CostRetention, is_dry: bool,
    ) -> None:
        self._kept, self._latest, self._books = kept, latest, books
        self._retention, self._is_dry = retention, is_dry
        self.worked_out: Instant | None = None

    async def tick(self, turn: Turn) -> SavingsTurn:
        if turn.may_act():  # whatever else is not known now
            await self._books.forget(self._retention, turn.now)
        # 1. Look: which pauses reach into yesterday or today; 2. plan: what each of them saved.
        found = [await turn.in_time(self._find(turn.now, is_dry=is_dry)) for is_dry in {False, self._is_dry}]
        # 3. Act: nothing is changed outside. 4. Account: into the ledger.
        if turn.may_act():
            for batch in found:
                await self._books.write(batch)
            self.worked_out = turn.now
        # 5. Tell.
        return SavingsTurn(turn.now, sum(len(batch.savings) for batch in found))

    async def _find(self, now: Instant, *, is_dry: bool) -> CostBatch:
        begin = (int(now) // cost.DAY - 1) * cost.DAY
        cycle = self._latest()
        if cycle is None or cycle.snapshot is None:
            raise errors.BadAnswer("what rests now is not known before the first good cycle")
        spans = await savings.read_spans(
            self._kept, begin, now, standing=digest.find_standing(cycle.snapshot, is_dry=is_dry), is_dry=is_dry
        )
        removed = [] if is_dry else await saving_books.read_removed(self._kept, begin - cost.DAY, now)
        books = self._books
        return await saving_books.find_savings(
            books.ledger, spans, begin, int(now), books.on_demand, is_dry=is_dry, removed=removed
        )

    async def look(self, turn: Turn) -> SavingsTurn:
        return SavingsTurn(turn.now, failure="the leader works out what was saved")

    def fail(self, because: str, turn: Turn) -> SavingsTurn:
        log.info("what was saved is worked out later: %s", because)
        return SavingsTurn(turn.now, failure=because)
