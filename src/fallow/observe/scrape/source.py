"""What the exporters show, scraped by ourselves: the source without Prometheus.

In: exporters found by their labels or named; a round of scrapes each interval. Out: the same evidence, look-back and
second look as from Prometheus, made by the same code from the same readings (usage/source.py: Source).
`run` keeps scraping (a daemon). Without it every look scrapes once: it can judge only what was kept in the state
directory, or what an exporter of ours remembers itself; else it says since when it measures, and when it can tell.
Invariant: never raises for what an exporter does. One that hangs, fails or lies takes its own time-out and harms only
what it covers; after three failures in a row everything it covers is unknown. In a second look nothing counts that was
not answered just now.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np

from fallow import names
from fallow.clients import errors, exporters, exposition
from fallow.model import cluster, usage
from fallow.model.seen import ABSENT, Input
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds, clock_time, humane, rfc3339
from fallow.model.usage import Signal
from fallow.observe.scrape import kept, samples, targets
from fallow.observe.usage import columns, device_use, floors, hours, labels, past, readings, rows, trust

log = logging.getLogger(__name__)

MANY: Final = 200  # exporters, past which Prometheus does this better
_DOWN_AFTER = 3
_BACK_IN_TIME: Seconds = 2 * MINUTE  # a clock that is set back by more makes all instants wrong

Key = samples.Key
_MOST_NAMED = 10


class TargetHealth(msgspec.Struct):
    """How one exporter answers."""

    known: samples.Exporter
    failures: int = 0  # in a row
    has_answered: bool = False
    problem: str = ""

    @property
    def is_down(self) -> bool:
        return self.failures >= _DOWN_AFTER


class ScrapeSource:
    """Scrapes exporters. An async context manager."""

    def __init__(
        self, finder: targets.Finder, client: exporters.Exporters, *, interval: Seconds = 15.0, lookback: Seconds = DAY,
        honor_labels: bool = False, keeper: kept.Keeper | None = None, stays: bool = True,
    ) -> None:
        """`stays`: it goes on measuring, and may say from when on it can judge."""
        self._finder = finder
        self._client = client
        self._interval = interval
        self._lookback = lookback
        self._keeper = keeper
        self._stays = stays
        self._samples = samples.Scraped(honor_labels=honor_labels, interval=interval, horizon=lookback + HOUR)
        self._longest: Seconds = HOUR
        self._health: dict[str, TargetHealth] = {}
        self._by_key: dict[Key, targets.ScrapeTarget] = {}
        self._round = asyncio.Lock()
        self._scraped_at: Instant = -math.inf
        self._is_open = False
        self._is_warm = False
        self._said: set[str] = set()  # once, and needs no repeating
        self._floors = floors.Floors()
        self._found_idle = past.IdleTimes()
        self._layouts = rows.Layouts()
        self._generation = 0  # of the samples when they were laid out last

    @property
    def clock(self) -> Input[Instant]:
        return ABSENT

    async def __aenter__(self) -> Self:
        """Raises Misconfigured where the state directory cannot be used."""
        if self._keeper is not None:
            await self._keeper.open()
        await self._finder.__aenter__()
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *why: Any) -> None:
        await self._client.__aexit__(*why)
        await self._finder.__aexit__(*why)
        if self._keeper is not None:
            await self._keeper.close()

    async def run(self, clock: Callable[[], Instant]) -> None:
        """A round each interval, until cancelled. A round that is late is skipped and not made up for."""
        while True:
            began = time.monotonic()
            await self.scrape(clock())
            elapsed = time.monotonic() - began
            await asyncio.sleep(self._interval - elapsed % self._interval)

    async def scrape(self, now: Instant) -> None:
        """One regular round: every exporter once, and what is over is kept."""
        async with self._round:
            await self._open(now)
            if now < self._scraped_at - _BACK_IN_TIME:
                log.warning("the clock was set back by %.0f s: measuring begins anew", self._scraped_at - now)
                self._samples.forget_all()
                self._is_warm = False
            self._meet(self._finder.targets)
            await self._scrape(self._health.values(), now, counts=True)
            self._scraped_at = now
            self._samples.tidy(now - self._longest)
            if self._keeper is not None:
                await self._keeper.write(self._samples, now)

    async def _open(self, now: Instant) -> None:
        if not self._is_open:
            if self._keeper is not None:
                await self._keeper.restore(self._samples, now)
            self._is_open = True
        await self._finder.begin()

    def _meet(self, found: Sequence[targets.ScrapeTarget]) -> None:
        """Exporters that are new, and those that are gone."""
        before = self._health
        self._health = {
            target.url: before[target.url]
            if target.url in before and before[target.url].known.target == target
            else TargetHealth(samples.Exporter(target))
            for target in found
        }
        self._by_key = {target.key: target for target in found}
        if len(found) > MANY:
            self._say_once("many", logging.WARNING, (
                f"{len(found)} exporters are scraped by one process: past {MANY} let Prometheus do that, and give its "
                "address with --prometheus-url"
            ))
        if self._finder.problem is not None:
            self._say_once("problem", logging.WARNING, f"not all exporters can be looked for: {self._finder.problem}")

    def _say_once(self, what: str, level: int, sentence: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.log(level, "%s", sentence)

    async def _scrape(self, some: Iterable[TargetHealth], now: Instant, *, counts: bool) -> set[Key]:
        """One page of each of these; who answered."""
        asked = list(some)
        pages = await asyncio.gather(*(self._ask(one) for one in asked))
        taken = [samples.Taken(one.known, page) for one, page in zip(asked, pages, strict=True) if page is not None]
        refused = self._samples.take(taken, now, counts=counts)
        for one in taken:
            health = self._health[one.known.target.url]
            if why := refused.get(one.known.target.url):
                _note_failure(health, f"the exporter at {exporters.name_of(one.known.target.url)} shows {why}")
            else:
                _note_answer(health)
        return {one.known.target.key for one in taken if one.known.target.url not in refused}

    async def _ask(self, one: TargetHealth) -> exposition.Page | None:
        try:
            return await self._client.scrape(one.known.target.url, one.known.reader)
        except errors.ClientError as problem:
            _note_failure(one, str(problem))
            return None

    async def evidence(
        self, held: rows.Holders, windows: frozenset[Seconds], now: Instant, *, with_floors: bool = True,
        strictest: usage.Strictest | None = None,
    ) -> usage.Evidence:
        self._samples.gpus_of_node = _count_gpus(held.nodes.values())
        found = await self._measure(held, windows, now)
        strangers = {f"{one.namespace}/{one.pod}": NOT_BELIEVED for one in self._finder.strangers}
        return msgspec.structs.replace(found, ignored=(*found.ignored, *trust.name_untrusted(strangers)))

    async def read_hour(self, held: rows.Holders, hour: Instant, now: Instant) -> tuple[usage.HourReading, ...]:
        found, facts = self._samples.hour(hour), self._samples.facts
        return hours.fold(found, facts, held, self._witness, has_believed=True, floors=self._floors.watts)

    async def read_use(self, held: rows.Holders, now: Instant) -> device_use.DeviceUse:
        found = self._samples.readings((device_use.WINDOW,), now)
        return device_use.fold(
            found, self._samples.facts, held, lambda job: self._interval, witnesses=self._witness, has_believed=True
        )

    async def draw(
        self, held: rows.Holders, pods: Sequence[cluster.Pod], gpus: Collection[str], span: usage.DrawnSpan,
        now: Instant,
    ) -> Mapping[str, usage.Floats]:
        return self._samples.draw(gpus, span, self._believes)

    def _witness(self, facts: labels.Facts) -> trust.Witness:
        """What was scraped by ourselves comes from whom we asked; each speaks of its own node only."""
        if facts.job == targets.NAMED:
            return trust.Witness(trust.Credit.trusted, called=facts.target)
        known = self._by_key.get((facts.job, facts.target))
        believed = self._finder.believes(facts.job.partition("/")[0])  # of one that is gone, by what was kept of it
        credit = trust.Credit.trusted if believed else trust.Credit.untrusted
        node, pod = (known.node, known.pod) if known else (facts.target, "")
        return trust.Witness(credit, node, pod.lower(), f"{facts.job} on {facts.target}", binds=True)

    def _believes(self, facts: labels.Facts) -> bool:
        return rows.counts(facts, self._witness(facts), has_believed=True)

    async def _measure(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        self._reach_back(windows)
        if now - self._scraped_at >= 2 * self._interval:  # nobody scrapes for us, or not well
            await self.scrape(now)
        if trouble := self._find_trouble():
            return columns.no_evidence(now, trouble)
        found, facts = self._samples.readings(windows, now), self._samples.facts
        if trouble := self._find_gap(found, windows, now):
            return columns.no_evidence(now, trouble)
        if self._floors.are_due(now):
            self._floors.learn(self._samples.floors(now), facts, self._interval, now, self._believes)
        if self._generation != self._samples.generation:
            self._generation = self._samples.generation
            self._layouts.forget()
        series = {window: _series_of(found, facts, window) for window in windows}
        current = readings.current_of(found, len(facts))
        layouts = {
            window: self._layouts.lay_out(window, held, facts, series[window], current, self._witness)
            for window in windows
        }
        down = {one.known.target.key for one in self._health.values() if one.is_down}
        return self._compose(found, held, layouts, frozenset(down), now)

    def _reach_back(self, windows: Collection[Seconds]) -> None:
        self._longest = max((self._longest, *windows))
        self._samples.table.stretch(self._lookback + self._longest)

    def _find_trouble(self) -> usage.SourceTrouble | None:
        """Why nothing at all can be said."""
        if not self._health:
            problem = self._finder.problem
            if problem is not None:
                return usage.SourceTrouble("SourceError", f"exporters cannot be looked for: {problem}")
            return usage.SourceTrouble("NoData", NOT_FOUND + self._hint_at_strangers())
        if any(one.has_answered and not one.is_down for one in self._health.values()):
            return None
        first = next(iter(self._health.values()))
        return usage.SourceTrouble("SourceError", f"none of {len(self._health)} exporters answers; {first.problem}")

    def _hint_at_strangers(self) -> str:
        found = sorted({one.namespace for one in self._finder.strangers})[:_MOST_NAMED]
        return f"; pods that call themselves so in {', '.join(found)} are {NOT_BELIEVED}" if found else ""

    def _find_gap(
        self, found: readings.Readings, windows: Collection[Seconds], now: Instant
    ) -> usage.SourceTrouble | None:
        """No GPU at all, or not measured for long enough yet."""
        if not readings.has_gpus(found):
            return usage.SourceTrouble("NoData", f"none of {len(self._health)} exporters shows any GPU")
        if self._is_warm or self._samples.is_vouched(now) or not windows:
            return None
        since, needed = self._samples.measuring_since(now), min(windows)
        self._is_warm = since is not None and now - since >= needed
        if self._is_warm:
            return None
        start = now if since is None else since
        because = f"measuring since {rfc3339(start)}, can judge from {clock_time(start + needed)} UTC on"
        if not self._stays:
            because = f"exporters answer, but there are no measurements of the {humane(needed)} before this look"
        self._say_once("warming up", logging.INFO, because)
        return usage.SourceTrouble("WarmingUp", because)

    def _compose(
        self, found: readings.Readings, held: rows.Holders, layouts: Mapping[Seconds, rows.RowLayout],
        down: frozenset[Key], now: Instant,
    ) -> usage.Evidence:
        facts = self._samples.facts
        measured = columns.Measured(
            readings=found, facts=facts, serving=facts, jobs=labels.Jobs(), expected_interval=self._interval,
            intervals={}, down=down, floors=self._floors.watts,
        )
        seen = columns.build_evidence(measured, held, layouts, now)
        counted = {window: self._samples.count_rows(use, layouts[window], now) for window, use in seen.usage.items()}
        return msgspec.structs.replace(seen, usage=counted)

    async def again(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        """Of exporters scraped anew; what none of them said just now is as if its exporter were down."""
        async with self._round:
            await self._open(now)
            self._meet(self._finder.targets)
            answered = await self._scrape(self._concerning(held.pods), now, counts=False)
        if trouble := self._find_trouble():
            return columns.no_evidence(now, trouble)
        found, facts = self._samples.readings(windows, now), self._samples.facts
        current = readings.current_of(found, len(facts))
        layouts = {
            window: rows.RowLayout(
                held, facts, _series_of(found, facts, window), current=current, witnesses=self._witness
            )
            for window in windows
        }
        silent = frozenset((one.job, one.target) for one in facts) - answered
        return self._compose(found, held, layouts, silent, now)

    def _concerning(self, pods: Collection[cluster.Pod]) -> list[TargetHealth]:
        """The exporters on the nodes of these pods, and those of which nobody knows where they are."""
        wanted = {pod.node for pod in pods}
        return [one for one in self._health.values() if not one.known.target.node or one.known.target.node in wanted]

    async def look_back(
        self, seen: usage.Usage, wanted: usage.Candidates, held: rows.Holders, now: Instant, threshold: float
    ) -> usage.Usage:
        result, speakers = past.copy_of(seen), past.find_speakers(seen)
        counted = past.count_window(seen, speakers)
        known, unknown = self._found_idle.recall(seen, wanted.rows, held.pods, threshold, counted, now)
        past.fill_known(result, known)
        if unknown:
            at = np.array(unknown, dtype=np.int64)
            self._look_up(result, at, speakers, held, threshold, now)
            self._found_idle.keep(result, at, held.pods, threshold, counted, now)
        self._found_idle.forget_before(now - self._lookback)
        return result

    def _look_up(
        self, result: usage.Usage, at: readings.Numbers, speakers: past.Speakers, held: rows.Holders, threshold: float,
        now: Instant,
    ) -> None:
        """Last activity and start of the watch, into each of these rows; nan where no series was found."""
        lookback = max(self._lookback, result.window)
        series = self._samples.has_past(lookback, now)
        layout = rows.RowLayout(held, self._samples.facts, series, witnesses=self._witness)
        place = past.place_rows(result, layout)[at]
        last = since = past.read_kernels(result, speakers)[at]
        for metric, speaks in speakers.items():
            if metric.signal is not Signal.last_kernel:
                active, watched = (
                    np.append(column, np.nan)[place]
                    for column in self._samples.watch(metric, layout, lookback, threshold, now)
                )
                never = np.where(np.isnan(watched), np.nan, -math.inf)
                last = np.fmax(last, np.where(speaks[at], np.fmax(active, never), np.nan))
                since = np.fmin(since, np.where(speaks[at], watched, np.nan))
        # The window itself was silent; a minute that began before it may still have been counted as active.
        result.last_active[at], result.observed_since[at] = np.minimum(last, now - result.window), since


NOT_BELIEVED: Final = "not read: their namespace is not one of --exporter-namespaces"
NOT_FOUND: Final = (
    "no exporter was found: no running pod is labelled app.kubernetes.io/name=dcgm-exporter or gpu-idle-exporter, or "
    "app=nvidia-dcgm-exporter; name it with --scrape-selector NAMESPACE/SELECTOR or --scrape-target URL, or give "
    "--prometheus-url"
)


def _count_gpus(nodes: Iterable[cluster.Node]) -> dict[str, int]:
    said = ((node.name, node.labels.get(names.GPU_COUNT, "")) for node in nodes)
    return {name: int(count) for name, count in said if count.isdecimal() and len(count) < 4}


def _note_answer(one: TargetHealth) -> None:
    if one.is_down:
        log.info("the exporter at %s answers again", exporters.name_of(one.known.target.url))
    one.failures, one.has_answered, one.problem = 0, True, ""


def _note_failure(one: TargetHealth, problem: str) -> None:
    one.failures += 1
    one.problem = problem
    if one.failures == _DOWN_AFTER:
        log.warning("%s; what it covers is not known until it answers", problem)


def _series_of(found: readings.Readings, facts: Sequence[labels.Facts], window: Seconds) -> tuple[int, ...]:
    return readings.series_of(found, len(facts), {window, readings.INSTANT})
