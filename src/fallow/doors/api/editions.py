"""The latest cycle, ready to be told: rows, the field and the first page are made when somebody asks, once for a cycle.

In: the loop (its latest cycle; a follower's own look), the audit, a clock. Out: Editions, each with a number that
rises with every cycle and every write, and from one replica to the next: it is never behind the clock.
What was written on a workload since its cycle (an acknowledgement, a pause, a resume) is judged anew, by the same brain
and measurements, when somebody asks.
Invariant: nothing is made of a cycle that nobody asks about. After a cycle that saw no cluster the one before is told,
with its age, and why there is none; one that saw it without measurements is told as it is, unknown.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fallow import loop, settings, verbs
from fallow.account import acks as acknowledging
from fallow.account import audit
from fallow.account.ack_costs import AckCosts
from fallow.clients import errors
from fallow.doors import answers
from fallow.doors.answers import field as fields
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.doors.answers.cost_books import CostBooks
from fallow.model import cluster, decision, kinds, price_book, units, usage
from fallow.model.units import DAY, Instant, Seconds
from fallow.stories import gaming
from fallow.stories import idle as stories
from fallow.stories.turn import Clock, Stumbled
from fallow.wiring import daemon, share_why

if TYPE_CHECKING:
    from fallow.doors.api.clusters import PeerSights
    from fallow.wiring.forecasts import Forecasts

log = logging.getLogger(__name__)

Strips = Mapping[str, str]
Draw = Callable[
    [Sequence[cluster.Pod], Collection[str], usage.DrawnSpan, Instant], Awaitable[Mapping[str, usage.Floats]]
]
Amended = Mapping[str, tuple[tuple[Instant, telling.Amendment], ...]]  # by uid: what was done since, and when

_REST = 10  # times as long as looking took: who writes annotations or makes pods all the time costs us at most a tenth
_MOST_DEEDS = 100  # of one workload, while no cycle sees them
_UNSURE: Seconds = 2.0  # a cycle that began so soon after a deed may not have seen it


class Edition:
    """What is told of one cycle."""

    def __init__(
        self, revision: int, seen: cluster.Snapshot, plan: decision.Plan, *, cycle: decision.Cycle | None,
        options: settings.Settings, strips: Strips, book: price_book.ModelPrices,
        amended: Amended | None = None, acks: AckCosts | None = None,
    ) -> None:
        self.revision, self.seen, self.plan, self.cycle = revision, seen, plan, cycle
        self.options, self.book, self._acks = options, book, acks
        self._strips, self._amended = strips, dict(amended or {})
        self._orders: dict[tuple[str, bool], list[telling.ApiRow]] = {}

    @functools.cached_property
    def indices(self) -> list[int]:
        found = self.plan.findings
        return [index for index in range(len(found)) if telling.is_shown(found[index], self.plan.at)]

    @functools.cached_property
    def rows(self) -> list[telling.ApiRow]:
        return [self._amend(self._make_row(index)) for index in self.indices]

    def _make_row(self, index: int) -> telling.ApiRow:
        return telling.make_row(
            naming.count(self.plan, index), self.seen, self.plan.at, revision=self.revision, book=self.book,
            strip=self._strips.get(self.seen.workloads[index].ref.uid), spent=self._find_spent(index),
        )

    def _find_spent(self, index: int) -> float | None:
        """What the acknowledgement that stands has cost, where that is booked."""
        if self._acks is None or index not in self._kept:
            return None
        found = self._acks.find(self.seen.workloads[index].ref, self._kept[index])
        return None if found is None else found.amount

    @functools.cached_property
    def _kept(self) -> dict[int, str]:
        return {index: acknowledging.name_ack(ack) for index, ack in acknowledging.find_covered(self.seen)}

    def _amend(self, row: telling.ApiRow) -> telling.ApiRow:
        for _, change in self._amended.get(row.uid, ()):
            row = change(row)
        return row

    @functools.cached_property
    def encoded(self) -> dict[str, msgspec.Raw]:
        """Every row as it goes over the wire, by uid: a list is put together of these."""
        encode = msgspec.json.Encoder().encode
        return {row.uid: msgspec.Raw(encode(row)) for row in self.rows}

    @functools.cached_property
    def words(self) -> dict[str, str]:
        """What each row is searched by, in lower case, a line each: name, namespace and kind."""
        return {row.uid: f"{row.name}\n{row.namespace}\n{row.kind}".lower() for row in self.rows}

    def order(self, by: str, key: Callable[[telling.ApiRow], Any], *, down: bool) -> list[telling.ApiRow]:
        """All rows, sorted once; those that are alike by their names."""
        if (by, down) not in self._orders:
            named = sorted(self.rows, key=lambda row: (row.namespace, row.name, row.uid))
            self._orders[by, down] = sorted(named, key=key, reverse=down)
        return self._orders[by, down]

    @functools.cached_property
    def by_uid(self) -> dict[str, telling.ApiRow]:
        return {row.uid: row for row in self.rows}

    @functools.cached_property
    def counts(self) -> telling.ViewCounts:
        return telling.count_views(self.rows)

    @functools.cached_property
    def maker(self) -> fields.FieldMaker:
        return fields.FieldMaker(self.seen, self.by_uid, book=self.book)

    @functools.cached_property
    def field(self) -> fields.FieldPage:
        return self.maker.page(self.revision)

    @functools.cached_property
    def gpus(self) -> fields.GpuSums:
        return fields.add_up(self.field, self.rows, self.seen)

    @functools.cached_property
    def nodes_of(self) -> dict[str, set[str]]:
        """The nodes on which each workload has pods, by uid."""
        found: dict[str, set[str]] = {}
        for workload in self.seen.workloads:
            nodes = {self.seen.pods[pod].node for pod in workload.pods}
            found[workload.ref.uid] = nodes - {""}
        return found

    def find(self, namespace: str, kind: str, name: str) -> int | None:
        """The index of the workload that is called so; `kind` as people type it."""
        for index in self.indices:
            ref = self.seen.workloads[index].ref
            if ref.name == name and ref.namespace == namespace and kinds.is_called((ref.group, ref.kind), kind):
                return index
        return None


class Editions:
    """`touch`: for a door that wrote something, so that whoever asks gets it anew."""

    def __init__(
        self, story: loop.Loop, options: settings.Settings, clock: Clock, *, kept: audit.Audit | None = None,
        book: price_book.ModelPrices = price_book.LIST, draw: Draw | None = None,
        suspects: Callable[[], gaming.GamingTurn | None] = lambda: None, monotonic: Clock = time.monotonic,
    ) -> None:
        """`draw`: what GPUs did over time; None: nobody knows. `suspects`: who may be kept busy to be left alone.
        `reach`, `list_now`: the objects and the workloads as they are now, from when there is somebody who looks at
        them. `books`, `acks`: what GPUs and acknowledgements cost, from when somebody keeps books. `explainer`: why
        pods share GPUs or not, and `forecasts`: how long they will run, where somebody sees to it. `peers`: fallow in
        further clusters, from when there is a way to ask it."""
        self.draw, self.suspects = draw, suspects
        self.reach: verbs.Reach | None = None
        self.list_now: Callable[[], Sequence[cluster.Workload]] = tuple
        self._there: object = ()  # as it was when we last looked what was written
        self._monotonic, self._looks_from = monotonic, 0.0
        self.books: CostBooks | None = None
        self.acks: AckCosts | None = None
        self.explainer: share_why.ShareExplainer | None = None
        self.forecasts: Forecasts | None = None
        self.peers: PeerSights | None = None
        self.story, self.options, self.clock, self._kept, self.book = story, options, clock, kept, book
        self.currency = options.cost.currency if options.cost.enabled else price_book.LIST_CURRENCY
        self.revision = int(clock())  # rises over restarts, too
        self.failure: answers.FailureTold | None = None
        self._latest: Edition | None = None
        self._of: object = None  # the cycle or look that it is of
        self._heard: object = None  # the last that was heard of, good or not
        self._amended: Amended = {}
        self._lock = asyncio.Lock()

    @property
    def leads(self) -> bool:
        return self.story.health.leading

    @property
    def kept(self) -> audit.Audit | None:
        """What happened, as far as it is written down here: only who leads sees all of it."""
        return self._kept if self.leads else None

    def touch(self) -> int:
        self.revision += 1
        if self._latest is not None:
            self._latest = self._edit(self._latest.seen, self._latest.plan, self._latest.cycle, self._latest._strips)
        return self.revision

    def amend(self, ref: cluster.Ref, change: telling.Amendment) -> telling.ApiRow | None:
        """Somebody did something to it: it is told so until a cycle has seen it. The row as it will be after the next
        `touch`; None where it is not known."""
        done = (*self._amended.get(ref.uid, ()), (self.clock(), change))
        self._amended = {**self._amended, ref.uid: done[-_MOST_DEEDS:]}
        row = self._latest.by_uid.get(ref.uid) if self._latest else None
        return None if row is None else msgspec.structs.replace(change(row), revision=self.revision + 1)

    async def latest(self) -> Edition | None:
        """None before the first cycle."""
        async with self._lock:
            try:
                ended = await self.story.read(daemon.IDLE)
            except errors.ClientError as problem:
                self._note_failure(str(problem))
                return self._latest
            if ended is not self._heard:
                self._heard = ended
                self.revision = max(self.revision + 1, int(self.clock()))
                await self._take(ended)
            self._see_written()
            return self._latest

    def _see_written(self) -> None:
        """What was written on the workloads since the cycle, by whomever: who acts and asks sees it at once."""
        before, began = self._latest, self._monotonic()
        if before is None or began < self._looks_from:
            return
        there = self.list_now()  # whatever changed in the cluster, who owns what is found out anew
        if there is not self._there:
            self._there = there
            self._judge_written(before, there)
        took = self._monotonic() - began
        self._looks_from = began + took + _REST * took

    def _judge_written(self, before: Edition, there: Sequence[cluster.Workload]) -> None:
        seen = stories.find_written(before.seen, there)
        if seen is before.seen:
            return
        with contextlib.suppress(Stumbled):  # the log has it; what the cycle saw is told
            plan = stories.judge_anew(before.plan, seen, self.options.mandate)
            self.revision += 1
            self._latest = self._edit(seen, plan, before.cycle, before._strips)

    async def _take(self, ended: loop.Ended | None) -> None:
        if not isinstance(ended, decision.Cycle | stories.Look):
            return
        self.failure = None
        if ended.failure:
            self._note_failure(ended.failure)
        if ended.plan is None or ended.snapshot is None:
            return
        strips = await self._read_strips(ended.snapshot, ended.plan.at)
        if self.acks is not None:
            await self.acks.read(ended.plan.at)
        cycle = ended if isinstance(ended, decision.Cycle) else None
        self._there = ()
        self._amended = _drop_seen(self._amended, ended.plan.at)
        self._latest = self._edit(ended.snapshot, ended.plan, cycle, strips)

    def _edit(
        self, seen: cluster.Snapshot, plan: decision.Plan, cycle: decision.Cycle | None, strips: Strips
    ) -> Edition:
        return Edition(
            self.revision, seen, plan, cycle=cycle, options=self.options, strips=strips, book=self.book,
            amended=self._amended, acks=self.acks,
        )

    def _note_failure(self, because: str) -> None:
        since = self._latest.plan.at if self._latest else self.clock()
        cycles = max(1, self.story.health.pulses[daemon.IDLE].failures)  # a follower counts none of its own
        self.failure = answers.FailureTold(because=because, since=units.rfc3339(since), cycles=cycles)

    async def _read_strips(self, seen: cluster.Snapshot, now: Instant) -> Strips:
        if self.kept is None:
            return {}
        try:
            past = await self.kept.conditions([each.ref.uid for each in seen.workloads], now - DAY)
        except errors.ClientError as problem:  # what is now is told all the same
            log.warning("the last day of the workloads is not shown: %s", problem)
            return {}
        drawn = ((uid, telling.draw_strip(some, now)) for uid, some in past.items())
        return {uid: strip for uid, strip in drawn if strip is not None}


def _drop_seen(amended: Amended, at: Instant) -> Amended:
    """Those of which a cycle of that instant may not know."""
    left = {uid: tuple(one for one in some if one[0] + _UNSURE >= at) for uid, some in amended.items()}
    return {uid: some for uid, some in left.items() if some}
