"""The latest cycle, ready to be told: rows, the field and the first page are made when somebody asks, once for a cycle.

In: the loop (its latest cycle; a follower's own look), the audit, a clock. Out: Editions, each with a number that
rises with every cycle and every write.
Invariant: nothing is made of a cycle that nobody asks about. After a cycle that gave no decision the one before is
told, with its age, and why there is none.
"""

import asyncio
import functools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from fallow import loop, settings
from fallow.account import audit
from fallow.clients import errors
from fallow.doors.answers import field as fields
from fallow.doors.answers import overview
from fallow.doors.answers import rows as telling
from fallow.model import cluster, decision, kinds, marks, prices, shares, units, usage
from fallow.model.units import DAY, Instant
from fallow.stories import idle as stories
from fallow.stories.turn import Clock
from fallow.wiring import daemon

Strips = Mapping[str, str]
Draw = Callable[
    [Sequence[cluster.Pod], Collection[str], usage.DrawnSpan, Instant], Awaitable[Mapping[str, usage.Floats]]
]
Freed = Mapping[str, Sequence[tuple[float, str]]]  # by node: how much, and the uid of whose pause gave it back


class Edition:
    """What is told of one cycle."""

    def __init__(
        self, revision: int, seen: cluster.Snapshot, plan: decision.Plan, *, cycle: decision.Cycle | None,
        options: settings.Settings, strips: Strips, freed: Freed, book: prices.Book,
    ) -> None:
        self.revision, self.seen, self.plan, self.cycle = revision, seen, plan, cycle
        self.options, self.book = options, book
        self._strips, self._freed = strips, freed
        self._orders: dict[tuple[str, bool], list[telling.ApiRow]] = {}

    @functools.cached_property
    def indices(self) -> list[int]:
        found = self.plan.findings
        return [index for index in range(len(found)) if telling.is_shown(found[index], self.plan.at)]

    @functools.cached_property
    def rows(self) -> list[telling.ApiRow]:
        return [
            telling.make_row(
                self.plan.findings[index], self.seen, self.plan.at, revision=self.revision, book=self.book,
                strip=self._strips.get(self.seen.workloads[index].ref.uid),
            )
            for index in self.indices
        ]

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
        freed = {
            node: [(share, self.by_uid[uid]) for share, uid in some if uid in self.by_uid]
            for node, some in self._freed.items()
        }
        return fields.FieldMaker(self.seen, self.by_uid, freed=freed, book=self.book)

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
        book: prices.Book = prices.DEFAULT, draw: Draw | None = None,
    ) -> None:
        """`draw`: what GPUs did over time; None: nobody knows."""
        self.draw = draw
        self.story, self.options, self.clock, self.kept, self.book = story, options, clock, kept, book
        self.revision = int(clock())  # rises over restarts, too
        self.failure: overview.FailureTold | None = None
        self._latest: Edition | None = None
        self._of: object = None  # the cycle or look that it is of
        self._heard: object = None  # the last that was heard of, good or not
        self._freed: dict[str, list[tuple[float, str]]] = {}
        self._lock = asyncio.Lock()

    def touch(self) -> int:
        self.revision += 1
        if self._latest is not None:
            self._latest = self._edit(self._latest.seen, self._latest.plan, self._latest.cycle, self._latest._strips)
        return self.revision

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
                self.revision += 1
                await self._take(ended)
            return self._latest

    async def _take(self, ended: loop.Ended | None) -> None:
        if not isinstance(ended, decision.Cycle | stories.Look):
            return
        self.failure = None
        if ended.failure:
            self._note_failure(ended.failure)
        if ended.plan is None or ended.snapshot is None:
            return
        self._note_freed(ended.snapshot)
        strips = await self._read_strips(ended.snapshot, ended.plan.at)
        cycle = ended if isinstance(ended, decision.Cycle) else None
        self._latest = self._edit(ended.snapshot, ended.plan, cycle, strips)

    def _edit(
        self, seen: cluster.Snapshot, plan: decision.Plan, cycle: decision.Cycle | None, strips: Strips
    ) -> Edition:
        return Edition(
            self.revision, seen, plan, cycle=cycle, options=self.options, strips=strips, freed=self._freed,
            book=self.book,
        )

    def _note_failure(self, because: str) -> None:
        since = self._latest.plan.at if self._latest else self.clock()
        cycles = max((pulse.failures for pulse in self.story.health.pulses), default=0)
        self.failure = overview.FailureTold(because=because, since=units.rfc3339(since), cycles=max(1, cycles))

    async def _read_strips(self, seen: cluster.Snapshot, now: Instant) -> Strips:
        if self.kept is None:
            return {}
        past = await self.kept.conditions([each.ref.uid for each in seen.workloads], now - DAY)
        drawn = ((uid, telling.draw_strip(some, now)) for uid, some in past.items())
        return {uid: strip for uid, strip in drawn if strip is not None}

    def _note_freed(self, seen: cluster.Snapshot) -> None:
        """What a workload held on which node when it was last seen at work, for those that rest now."""
        if self._latest is None or self._latest.seen.workloads is seen.workloads:
            return
        before = self._latest.seen
        resting = {each.ref.uid for each in seen.workloads if marks.paused_at(each) is not None}
        freed = {node: [one for one in some if one[1] in resting] for node, some in self._freed.items()}
        known = {uid for some in freed.values() for _, uid in some}
        for workload in before.workloads:
            if workload.ref.uid in resting - known:
                for node, share in _held_by_node(workload, before).items():
                    freed.setdefault(node, []).append((share, workload.ref.uid))
        self._freed = freed


def _held_by_node(workload: cluster.Workload, seen: cluster.Snapshot) -> Mapping[str, float]:
    held: dict[str, float] = defaultdict(float)
    for index in workload.pods:
        pod = seen.pods[index]
        held[pod.node] += sum(unit.share for unit in shares.held_by(pod, seen.nodes.known.get(pod.node)))
    return {node: share for node, share in held.items() if share}
