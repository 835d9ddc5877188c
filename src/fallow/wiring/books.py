"""For the books: the ledger in its store, the one writer of it, what nodes cost, and the stories that write.

In: the Groundwork of a daemon, and its audit. Out: BookParts: stories for the loop, what must run beside it, the ledger
to read.
A store that is away at the start is no reason not to start: the books wait, and say so.
Invariant: only who leads writes. Each time we begin to lead we take the ledger by an epoch higher than all before, and
whoever wrote until then is refused: by how often the Lease changed hands, or one more than the ledger has seen, where
that is more, because a Lease that was deleted counts anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from fallow import loop, names, settings
from fallow.account import audit, cost_gauges, ledger, ledger_postgres, whose
from fallow.account.ack_costs import AckCosts
from fallow.account.ledger import Ledger, StaleWriter
from fallow.account.spool import Spool
from fallow.clients import errors
from fallow.model import budgets, long_memory, price_table
from fallow.model.cost import (
    UNUSED_COMMITMENT,
    BudgetReading,
    CostBatch,
    CostQuery,
    CostRetention,
    CostSum,
    DemandHour,
    Interval,
    IntervalRef,
    Second,
)
from fallow.model.energy import EnergyTerms
from fallow.model.policies import budget as policies
from fallow.model.policies.budget import CostAttribution, CostBudget
from fallow.model.price_table import PriceRow
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import Instant, Seconds
from fallow.stories import books as story_of_books
from fallow.stories import budgets as story_of_budgets
from fallow.stories import commitments as story_of_commitments
from fallow.stories import prices as story_of_prices
from fallow.stories import savings as story_of_savings
from fallow.stories.turn import Turn
from fallow.wiring import budgets as budgeting
from fallow.wiring import pricing
from fallow.wiring.billing import NodeBilling
from fallow.wiring.ground import Groundwork

log = logging.getLogger("fallow")

BOOKS, SAVINGS, COMMITMENTS = "books", "savings", "commitments"  # the names of the stories
_LEAST_SCRAPE: Final[Seconds] = 15.0  # metrics of money are read no more often than anybody scrapes them


class BookParts(msgspec.Struct, frozen=True, kw_only=True):
    """`attributions`, `budgets`: as the cluster has them. `sums`: of the ledger, as budgets count. `saved_until`: up to
    when what was saved is worked out; None: not since we started."""

    ledger: Ledger
    sums: story_of_budgets.Sums
    billing: NodeBilling
    stories: tuple[loop.Story, ...]
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
    attributions: Callable[[], Input[tuple[CostAttribution, ...]]]
    budgets: Callable[[], Input[tuple[CostBudget, ...]]]
    acks: AckCosts
    saved_until: Callable[[], Instant | None]
    keep_demand: Callable[[Sequence[DemandHour]], Coroutine[Any, Any, None]]


async def make_parts(ground: Groundwork, kept: audit.Audit, stack: contextlib.AsyncExitStack) -> BookParts:
    options, opened = ground.options, await open_ledger(ground.options, stack)
    billing = NodeBilling(region=options.cost.region, clock=ground.clock)
    writer = LedgerWriter(opened, term=ground.term, billing=billing)
    priced = await pricing.make_story(
        options, ground.api, namespace=ground.namespace, seen=ground.seen, hands=ground.hands, metrics=ground.metrics,
        stack=stack, recall=writer.recall_prices, keep=writer.keep_prices,
    )
    acks = AckCosts(opened, options.cost.currency)
    spent = make_budget_books(writer, billing, options.cost_doors.energy)
    budgeted = budgeting.make_story(
        options, api=ground.api, seen=ground.seen, namespace=ground.namespace, poster=ground.poster, head=ground.head,
        metrics=ground.metrics, announcer=ground.hands.announcer, books=spent,
        frozen=lambda now: _why_frozen(ground, now),
    )
    labels = LabelKeys({*whose.DIMS.values(), *options.cost_store.labels}, budgeted)
    books = _make_books(ground, writer, billing, acks, labels)
    saved = _make_savings(ground, kept, writer, billing)
    return BookParts(
        saved_until=lambda: saved.worked_out, keep_demand=writer.keep_demand,
        ledger=opened, sums=spent.sums, billing=billing, acks=acks, background=budgeted.background,
        attributions=budgeted.attributions, budgets=budgeted.budgets,
        stories=(
            _handing_on(priced, billing), books, _tell_savings(saved),
            _make_commitments(ground, writer, billing), budgeted.story,
        ),
    )


def _why_frozen(ground: Groundwork, now: Instant) -> str:
    freeze = long_memory.read_freeze(ground.leadership.annotations, now)
    return str(freeze) if freeze is not None and freeze.holds(now) else ""


# ---- the store -------------------------------------------------------------------------------------------------------


async def open_ledger(options: settings.Settings, stack: contextlib.AsyncExitStack) -> Ledger:
    """Raises errors.Misconfigured where what is there cannot be ours."""
    wanted, currency = options.cost_store, options.cost.currency
    spool = Spool(Path(wanted.spool)) if wanted.spool else None
    if wanted.dsn is not None:
        opened = ledger_postgres.on_postgres(wanted.dsn, currency=currency, spool=spool)
    else:
        opened = ledger.on_file(Path(wanted.path) if wanted.path else None, currency=currency, spool=spool)
    if wanted.dsn is None and wanted.path is None:
        log.warning("costs are kept in memory only, and gone with this process: give --state-dir or --cost-store")
    stack.push_async_callback(opened.close)
    try:
        await opened.open()
    except errors.Unreachable as problem:
        log.warning("the store of costs is away, and the books wait for it: %s", problem)
    return opened


class LedgerWriter:
    """The one writer, as the stories know it."""

    def __init__(self, of: Ledger, *, term: Callable[[], int | None], billing: NodeBilling) -> None:
        self.ledger, self.term, self._billing = of, term, billing
        self._claimed: tuple[int, int] | None = None  # of which term, and the epoch
        self._turn = asyncio.Lock()

    async def claim(self) -> int:
        """The epoch of our term: taken once for each, so that of two who both believe to lead one stays refused."""
        term = self.term() or 0
        async with self._turn:
            if self._claimed is None or self._claimed[0] != term:
                epoch = max(term, (await self.ledger.read_meta()).epoch + 1)
                with _refusals():
                    await self.ledger.claim(epoch)
                self._claimed = term, epoch
            return self._claimed[1]

    def _epoch_of(self, term: int) -> int:
        """Of a book that was read in that term."""
        if self._claimed is None or self._claimed[0] != term:
            raise errors.BadAnswer("the Lease has changed hands since the books were read")
        return self._claimed[1]

    # ---- for the books ----

    async def read_open(self) -> story_of_books.OpenBook:
        await self.write_batch(CostBatch())  # what waits in the spool comes first
        meta = await self.ledger.read_meta()
        if not meta.seen_until:
            return story_of_books.OpenBook((), None, None)
        ended = await self.ledger.read_intervals(meta.rolled_until, meta.seen_until + 1)
        held = [each for each in ended if each.slice.key.namespace != UNUSED_COMMITMENT]  # that is no GPU of a node
        found = {each.id: each for each in (*held, *await self.ledger.read_open())}
        return story_of_books.OpenBook(tuple(found.values()), meta.seen_until, meta.rolled_until or None)

    async def write(
        self, *, intervals: Collection[Interval], removed: Collection[IntervalRef], at: Second, epoch: int,
        shared: Collection[str] = (),
    ) -> None:
        named = {each.slice.price_id for each in intervals}
        batch = CostBatch(
            at=at, intervals=tuple(intervals), removed=tuple(removed), shared=tuple(sorted(shared)),
            prices=self._billing.list_booked(named),
        )
        await self._write(batch, self._epoch_of(epoch))

    async def _write(self, batch: CostBatch, epoch: int) -> None:
        """What is refused of it is said, whoever writes: it may be of a batch that waited. One that not even the spool
        takes was not written, and raises: whoever has it still keeps it for the next time."""
        with _refusals():
            booked = await self.ledger.write(batch, epoch)
        for each in booked.refused:
            log.error("not booked: %s", each)
        if booked.unwritten:
            raise errors.Unreachable(booked.unwritten)

    async def roll_up(self, until: Second, epoch: int) -> None:
        with _refusals():
            await self.ledger.roll_up(until, self._epoch_of(epoch))

    # ---- for savings, prices and budgets ----

    async def write_batch(self, batch: CostBatch) -> None:
        await self._write(batch, await self.claim())

    async def forget(self, retention: CostRetention, now: Instant) -> None:
        with _refusals():
            await self.ledger.forget(retention, int(now), await self.claim())

    async def recall_prices(self) -> Sequence[PriceRow]:
        booked = await self.ledger.read_prices()
        return [price_table.unbook(each) for each in booked if each.price_per_hour]

    async def keep_prices(self, rows: Sequence[PriceRow]) -> None:
        await self.write_batch(CostBatch(prices=tuple(price_table.book(row) for row in rows)))

    async def recall_alerts(self) -> budgets.AlertMemory:
        return budgets.join(await self.ledger.read_alerts())

    async def keep_alerts(self, records: Sequence[budgets.AlertRecord]) -> None:
        booked = [row for record in records for row in budgets.rows(record)]
        with _refusals():
            await self.ledger.write_budgets((), booked, await self.claim())

    async def keep_demand(self, hours: Sequence[DemandHour]) -> None:
        with _refusals():
            await self.ledger.write_demand(hours, await self.claim())

    async def track(self, readings: Sequence[BudgetReading]) -> None:
        with _refusals():
            await self.ledger.write_budgets(readings, (), await self.claim())


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except StaleWriter as problem:
        raise errors.BadAnswer(f"{problem}; is another daemon writing to the same store?") from None


# ---- the stories -----------------------------------------------------------------------------------------------------


def _handing_on(story: loop.Story, billing: NodeBilling) -> loop.Story:
    """What prices there are goes to who bills by them."""

    async def tick(turn: Turn) -> loop.Ended:
        ended = await story.tick(turn)
        if isinstance(ended, story_of_prices.PricesTurn):
            billing.take(ended)
        return ended

    return msgspec.structs.replace(story, tick=tick, is_vital=False)


class LabelKeys(Iterable[str]):
    """The labels that are kept: those the operator names, and those by which an attribution or a budget groups or
    chooses, as these are now. While they cannot be seen, as they were."""

    def __init__(self, given: Iterable[str], asked: budgeting.BudgetParts) -> None:
        self._given, self._asked = frozenset(given), asked
        self._named: tuple[tuple[CostAttribution, ...], tuple[CostBudget, ...]] = (), ()

    def __iter__(self) -> Iterator[str]:
        shown, kept = self._asked.attributions(), self._asked.budgets()
        self._named = (
            self._named[0] if isinstance(shown, Unseen) else shown.value if isinstance(shown, Known) else (),
            self._named[1] if isinstance(kept, Unseen) else kept.value if isinstance(kept, Known) else (),
        )
        return iter(self._given | policies.find_label_keys(*self._named))


def _make_books(
    ground: Groundwork, writer: LedgerWriter, billing: NodeBilling, acks: AckCosts, labels: Iterable[str]
) -> loop.Story:
    options = ground.options
    interval = options.cost_store.interval
    story = story_of_books.BooksStory(
        eyes=ground.eyes, latest=ground.latest, ledger=writer, bill=billing.bill, metrics=ground.metrics,
        term=ground.term, cluster_name=options.telling.cluster_name or names.DEFAULT_CLUSTER, interval=interval,
        own=(ground.namespace,), labels=labels,
    )

    gauges = cost_gauges.CostGauges(
        ground.metrics, most_pods=options.cost_doors.most_pods, max_age=options.cost.max_age
    )

    measured_at = float("-inf")

    async def tick(turn: Turn) -> loop.Ended:
        """After prices were looked up once: else the first minute of each life would have none."""
        await turn.in_time(billing.ready())
        ended = await story.tick(turn)
        await acks.read(turn.now)
        nonlocal measured_at
        if time.monotonic() - measured_at < _LEAST_SCRAPE:
            return ended
        measured_at = time.monotonic()
        try:
            await gauges.read(writer.ledger, turn.now)
        except errors.ClientError as problem:  # what was looked at waits in the spool all the same
            log.info("metrics of costs stay as they were: %s", problem)
        return ended

    return loop.Story(
        name=BOOKS, interval=interval, budget=max(interval, story_of_books.INTERVAL), tick=tick, look=story.look,
        fail=story.fail, is_vital=False,
    )


def _make_savings(
    ground: Groundwork, kept: audit.Audit, writer: LedgerWriter, billing: NodeBilling
) -> story_of_savings.SavingsStory:
    return story_of_savings.SavingsStory(
        kept=kept, latest=ground.latest, retention=ground.options.cost_store.retention,
        is_dry=not ground.options.mandate.acting,
        books=story_of_savings.SavingBooks(
            ledger=writer.ledger, write=writer.write_batch, forget=writer.forget, on_demand=billing.find_on_demand
        ),
    )


def _tell_savings(story: story_of_savings.SavingsStory) -> loop.Story:
    return loop.Story(
        name=SAVINGS, interval=story_of_savings.INTERVAL, budget=story_of_savings.BUDGET, tick=story.tick,
        look=story.look, fail=story.fail, is_vital=False,
    )


def _make_commitments(ground: Groundwork, writer: LedgerWriter, billing: NodeBilling) -> loop.Story:
    story = story_of_commitments.CommitmentsStory(story_of_commitments.CommitmentBooks(
        ledger=writer.ledger, known=lambda: billing.committed, find=billing.find_reserved,
        name_prices=billing.list_booked, write=writer.write_batch,
        cluster=ground.options.telling.cluster_name or names.DEFAULT_CLUSTER,
    ))
    return loop.Story(
        name=COMMITMENTS, interval=story_of_commitments.INTERVAL, budget=story_of_commitments.BUDGET, tick=story.tick,
        look=story.look, fail=story.fail, is_vital=False,
    )


def make_budget_books(
    writer: LedgerWriter, billing: NodeBilling, energy: EnergyTerms
) -> story_of_budgets.BudgetBooks:
    began: Second | None = None

    async def sums(asked: CostQuery) -> Sequence[CostSum]:
        return energy.charge(await writer.ledger.sums(asked))

    async def look() -> Input[budgets.BooksSeen]:
        nonlocal began
        meta, began = await writer.ledger.read_meta(), began or await writer.ledger.read_began()
        trouble = writer.ledger.trouble
        missing = (*billing.missing, *([f"costs wait in the spool: {trouble}"] if trouble else []))
        return Known(budgets.BooksSeen(
            currency=meta.currency, until=float(meta.seen_until), began=None if began is None else float(began),
            missing=missing,
        ))

    return story_of_budgets.BudgetBooks(
        look=look, sums=sums, savings=writer.ledger.read_savings, recall=writer.recall_alerts,
        keep=writer.keep_alerts, track=writer.track, term=writer.term,
    )
