"""The story of the books: who held which GPU since the last look, at what rate and in which state. Every minute.

In: the eyes on the cluster, the latest cycle of the idle story, what nodes cost, the ledger. Out: a BooksTurn.
A look that could not see changes nothing: what is open stays open, and the next look finds the gap. What could not be
written is written with the next batch. Who becomes the leader begins with what the ledger has.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from fallow import names, telemetry
from fallow.account import acks as acknowledging
from fallow.account import attribution, hour_use, intervals, whose
from fallow.account.ledger_names import LedgerWentBack
from fallow.clients import errors
from fallow.model import cluster, decision, usage
from fallow.model.cost import HOUR, Interval, IntervalRef, Second
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import snapshot
from fallow.stories.turn import Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 60.0
LATE: Final[Second] = 2 * HOUR  # so long after it an hour is rolled up: idleness is dated back, use comes late
_SETTLED_AFTER: Final[Second] = 90  # seconds until the last samples of an hour are scraped
_LONGEST_AGO: Final[Seconds] = 900.0  # of the last cycle: what it says of use holds no longer


Measurements: TypeAlias = list[tuple[Second, tuple[usage.HourReading, ...]]]  # by hour


class OpenBook(NamedTuple):
    """What the ledger has that may still change: open intervals, and those that ended after `rolled_until`. Open ones
    last until the checkpoint. None: there is no ledger yet."""

    intervals: Collection[Interval]
    checkpoint: Second | None
    rolled_until: Second | None


class BookKeeper(Protocol):
    """The ledger. Each call names the epoch of the writer and is refused where a later one has written."""

    async def read_open(self) -> OpenBook: ...

    async def write(
        self, *, intervals: Collection[Interval], removed: Collection[IntervalRef], shared: Collection[str],
        at: Second, epoch: int,
    ) -> None:
        """`shared`: uids of those of their pods that we made share a GPU."""

    async def roll_up(self, until: Second, epoch: int) -> None: ...


class BooksTurn(msgspec.Struct, frozen=True):
    """What one look amounted to. `odd`: what did not add up."""

    at: Instant
    gpus: int = 0
    written: int = 0
    odd: tuple[str, ...] = ()
    failure: str = ""


class BooksStory:
    """`term`: how often the Lease has changed hands; None: nobody else writes. `labels`: asked again and again."""

    def __init__(
        self, *, eyes: snapshot.Eyes, latest: Callable[[], decision.Cycle | None], ledger: BookKeeper,
        bill: attribution.Bill, metrics: telemetry.Telemetry, term: Callable[[], int | None] = lambda: None,
        cluster_name: str = names.DEFAULT_CLUSTER, labels: Iterable[str] = whose.KEPT_LABELS, own: Iterable[str] = (),
        interval: Seconds = INTERVAL,
    ) -> None:
        self._eyes, self._latest, self._ledger, self._bill = eyes, latest, ledger, bill
        self._metrics, self._term, self._interval = metrics, term, interval
        self._about = {"cluster_name": cluster_name, "labels": labels, "own": tuple(own)}
        self._books: attribution.GpuAttribution | None = None
        self._epoch = 0
        self._pending = intervals.Batch(0)
        self._unread: list[Second] = []  # hours that are over, and not measured yet
        self._next_hour: Second = 0
        self._acks: tuple[object, dict[str, attribution.KeepingAck]] = (None, {})
        self._shared: set[str] = set()  # pods that we made share, until they are written
        self._said = ""

    async def tick(self, turn: Turn) -> BooksTurn:
        # 1. Look: what the last hour measured, who is there, and who went since: that is told once.
        books = await self._open(turn)
        measured = await self._read_hours(books.book, turn)
        seen = await turn.in_time(self._eyes.take_inventory(turn.now, books.expected))
        # 2. Plan: whose each part of each GPU is, as intervals.
        self._plan(books, seen, measured, turn.now)
        # 3. Act: nothing is changed outside.
        # 4. Account: into the ledger, and what is old enough into its sums.
        written = await self._write(books.book, turn)
        # 5. Tell.
        return self._tell(BooksTurn(turn.now, len(books.book.gpus), written, tuple(books.odd)))

    def _plan(
        self, books: attribution.GpuAttribution, seen: cluster.Inventory, measured: Measurements, now: Instant
    ) -> None:
        """A book that stumbled is made anew from the ledger."""
        self._books = None
        with stumbling():
            books.take(self._make_look(seen, now))
            for hour, readings in measured:
                hour_use.apply(books.book, hour, readings)
            self._pending = intervals.join(self._pending, books.book.flush())
            self._shared.update(_find_shared(seen))
        self._books = books

    async def look(self, turn: Turn) -> BooksTurn:
        return BooksTurn(turn.now, failure="the leader keeps the books")

    def fail(self, because: str, turn: Turn) -> BooksTurn:
        """Said once, until they go on."""
        if because != self._said:
            log.warning("the books wait: %s", because)
        self._said = because
        return BooksTurn(turn.now, failure=because)

    async def _open(self, turn: Turn) -> attribution.GpuAttribution:
        """The book, from the ledger where we have none, or where somebody else may have written since."""
        epoch = self._term() or 0
        if self._books is not None and epoch == self._epoch:
            return self._books
        found = await self._ledger.read_open()
        begin = min((each.t0 for each in found.intervals), default=int(turn.now))
        self._epoch, self._pending = epoch, intervals.Batch(0)
        book = intervals.Book(begin if found.rolled_until is None else found.rolled_until, round(3 * self._interval))
        books = attribution.GpuAttribution(book, self._bill, **self._about)  # type: ignore[arg-type]
        if found.checkpoint is not None:
            book.resume(found.intervals, found.checkpoint)
            books.resume(found.checkpoint)
        self._next_hour, self._unread = book.settled // HOUR * HOUR, []
        self._books = books
        return books

    async def _read_hours(self, book: intervals.Book, turn: Turn) -> Measurements:
        """Of hours that are over; one that cannot be read now is asked for again, until it is rolled up."""
        while self._next_hour + HOUR + _SETTLED_AFTER <= turn.now:
            self._unread.append(self._next_hour)
            self._next_hour += HOUR
        self._unread = [hour for hour in self._unread if hour + HOUR > book.settled]
        found = []
        for hour in list(self._unread):
            try:
                found.append((hour, await turn.in_time(self._eyes.read_hour(float(hour), turn.now))))
                self._unread.remove(hour)
            except errors.ClientError as problem:
                log.info("what GPUs did in the hour before is asked for again: %s", problem)
                break
        return found

    def _make_look(self, seen: cluster.Inventory, now: Instant) -> attribution.BookLook:
        cycle = self._latest()
        plan, snap = (cycle.plan, cycle.snapshot) if cycle is not None else (None, None)
        is_fresh = plan is not None and snap is not None and now - plan.at <= _LONGEST_AGO
        if plan is not None and snap is not None and self._acks[0] is not plan:
            self._acks = plan, acknowledging.find_open(plan, snap)
        return attribution.BookLook(
            at=now, pods=seen.pods, nodes=seen.nodes, namespaces=seen.namespaces, workloads=seen.workloads,
            departures=seen.departures, sees_all=seen.sees_all, acks=self._acks[1],
            rows=plan.rows if is_fresh and plan is not None else None, row_pods=snap.pods if snap is not None else (),
        )

    async def _write(self, book: intervals.Book, turn: Turn) -> int:
        """Raises what the ledger does: then it is written with the next batch. Where the ledger lacks what was written,
        the book is made anew from it."""
        batch = self._pending
        if not turn.may_act():
            return 0
        shared = self._shared & {each.slice.pod_uid for each in batch.intervals}
        try:
            await self._ledger.write(
                intervals=batch.intervals, removed=batch.removed, shared=shared, at=batch.at, epoch=self._epoch
            )
        except LedgerWentBack:
            self._books = None
            raise
        self._pending, self._shared = intervals.Batch(batch.at), set()
        until = (batch.at - LATE) // HOUR * HOUR
        if until > book.settled:
            await self._ledger.roll_up(until, self._epoch)
            book.settle(until)
        return len(batch.intervals)

    def _tell(self, done: BooksTurn) -> BooksTurn:
        if self._said:
            log.info("the books go on")
        self._said = ""
        self._metrics.add("fallow_books_intervals_total", done.written)
        self._metrics.set("fallow_books_contradictions", len(done.odd))
        self._metrics.set("fallow_books_last_success_timestamp_seconds", done.at)
        return done


def _find_shared(seen: cluster.Inventory) -> Iterator[str]:
    """Pods that asked for a whole GPU and got a part of one by us, also those that went."""
    for pod in (*seen.pods, *(each.pod for each in seen.departures)):
        if pod.annotations.get(names.OPTIMIZED) == "true" and names.ORIGINAL_GPU_REQUEST in pod.annotations:
            yield pod.uid
