"""The story of commitments: every ten minutes, which reserved machines were paid for and not there in the last hours.

In: the commitments that the operator wrote down, what their machines cost, the ledger. Out: a CommitmentsTurn. Hours
that are over and not summed up yet are made anew each time, so that what the books learn late is heeded; they are
closed when the hour is rolled up.
Invariant: where prices or the ledger cannot be read nothing is written, and what was written stays.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from fallow.account import commitments
from fallow.account.commitments import ReservedPrice
from fallow.account.ledger import Ledger
from fallow.model.commitments import Commitment
from fallow.model.cost import HOUR, BookedPrice, CostBatch, Interval, Second
from fallow.model.seen import Input, Known
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.stories.turn import Turn

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 10 * MINUTE
BUDGET: Final[Seconds] = 5 * MINUTE
_MOST_HOURS: Final = 48  # at once, after a long time away


class CommitmentBooks(msgspec.Struct, frozen=True, kw_only=True):
    """`find`: what a GPU of such a machine costs at that time, None where nobody knows how many it has. `name_prices`:
    the rows of the book that were named. `write`: as the one writer."""

    ledger: Ledger
    known: Callable[[], Input[tuple[Commitment, ...]]]
    find: Callable[[Commitment, Second], ReservedPrice | None]
    name_prices: Callable[[set[str]], tuple[BookedPrice, ...]]
    write: Callable[[CostBatch], Awaitable[None]]
    cluster: str


class CommitmentsTurn(msgspec.Struct, frozen=True):
    """`unused`: intervals that stand for hours that may still change."""

    at: Instant
    unused: int = 0
    failure: str = ""


class CommitmentsStory:
    def __init__(self, books: CommitmentBooks) -> None:
        self._books = books
        self._said: frozenset[str] = frozenset()

    async def tick(self, turn: Turn) -> CommitmentsTurn:
        # 1. Look: what is reserved, which hours are over and not summed up yet, what ran in them.
        seen = self._books.known()
        if not isinstance(seen, Known):
            return CommitmentsTurn(turn.now)
        meta = await self._books.ledger.read_meta()
        end = min(meta.seen_until, int(turn.now)) // HOUR * HOUR
        began = await self._books.ledger.read_began()
        if began is None:
            return CommitmentsTurn(turn.now)
        first = -(-began // HOUR) * HOUR  # of the hour in which the books began a part was not seen
        begin = max(meta.rolled_until, meta.intervals_from, end - _MOST_HOURS * HOUR, first)
        if begin >= end:
            return CommitmentsTurn(turn.now)
        before = await self._books.ledger.read_intervals(begin, end, commitments.OURS)
        # 2. Plan: what of it was not there. 3. Act: nothing is changed outside.
        found = await self._find(seen.value, begin, end) if seen.value else []
        # 4. Account: into the ledger, what is new or another than before.
        if turn.may_act() and found != before:
            await self._write(before, found)
        # 5. Tell.
        return CommitmentsTurn(turn.now, len(found))

    async def _find(self, rows: Sequence[Commitment], begin: Second, end: Second) -> list[Interval]:
        use = commitments.read_use(await self._books.ledger.sums_of_keys(commitments.ask(begin, end)))
        found, blind = list[Interval](), set[str]()
        for hour in range(begin, end, HOUR):
            priced = list[tuple[Commitment, ReservedPrice]]()
            for row in rows:
                price = self._books.find(row, hour) if row.holds_at(float(hour)) else None
                if price is not None:
                    priced.append((row, price))
                elif row.holds_at(float(hour)):
                    blind.add(row.instance_type)
            found += commitments.book(priced, use, hour, self._books.cluster)
        self._tell(frozenset(blind))
        return sorted(found, key=lambda one: (one.t0, one.slice.gpu, one.slice.slot))

    async def _write(self, before: Sequence[Interval], found: Sequence[Interval]) -> None:
        named = {one.slice.price_id for one in found if one.slice.price_id}
        await self._books.write(CostBatch(
            intervals=tuple(found), removed=tuple(one.ref for one in before), prices=self._books.name_prices(named)
        ))

    def _tell(self, blind: frozenset[str]) -> None:
        """Each once."""
        for each in sorted(blind - self._said):
            log.warning("commitments: how many GPUs a %s has is not known; a row of its price with `gpus` helps", each)
        self._said = blind

    async def look(self, turn: Turn) -> CommitmentsTurn:
        return CommitmentsTurn(turn.now, failure="the leader keeps the books")

    def fail(self, because: str, turn: Turn) -> CommitmentsTurn:
        log.info("unused commitments are booked later: %s", because)
        return CommitmentsTurn(turn.now, failure=because)
