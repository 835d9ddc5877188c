"""What the exporters show, scraped by ourselves: the source without Prometheus.

In: exporters found by their labels or named; a round of scrapes each interval. Out: the same evidence, look-back and second look as from
Prometheus, made by the same code from the same readings.
`run` keeps scraping (a daemon). Without it every look scrapes once: it can judge only what was kept in the state directory, or what an
exporter of ours remembers itself; else it says since when it measures and from when on it can tell.
Invariant: never raises for what an exporter does. One that hangs, fails or lies takes its own time-out and harms only what it covers;
after three failures in a row everything it covers is unknown. In a second look nothing counts that was not answered just now.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from fallow.clients import errors, exporters, exposition
from fallow.model import cluster, usage
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds, clock_time, rfc3339
from fallow.observe.scrape import kept, samples, targets
from fallow.observe.usage import asking, columns, inquiry, labels, past, prometheus, queries, rows

log = logging.getLogger(__name__)

MANY: Final = 200  # exporters, past which Prometheus does this better
_DOWN_AFTER = 3
_FLOORS_HOLD: Seconds = HOUR
_BACK_IN_TIME: Seconds = 2 * MINUTE  # a clock that is set back by more makes all instants wrong

Key = tuple[str, str]


class Health(msgspec.Struct):
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
        self,
        finder: targets.Finder,
        client: exporters.Exporters,
        *,
        interval: Seconds = 15.0,
        lookback: Seconds = DAY,
        honor_labels: bool = False,
        keeper: kept.Keeper | None = None,
    ) -> None:
        self._finder = finder
        self._client = client
        self._interval = interval
        self._lookback = lookback
        self._keeper = keeper
        self._samples = samples.Samples(honor_labels=honor_labels, interval=interval, horizon=lookback + HOUR)
        self._longest: Seconds = HOUR
        self._health: dict[str, Health] = {}
        self._round = asyncio.Lock()
        self._scraped_at: Instant = -math.inf
        self._is_open = False
        self._is_warm = False
        self._told: set[str] = set()  # what was said once and needs no repeating
        self._floors: dict[str, float] = {}
        self._floors_at: Instant = -math.inf
        self._place = rows.Place((), {})
        self._layouts: dict[Seconds, tuple[int, rows.Layout]] = {}

    async def __aenter__(self) -> Self:
        """Raises Misconfigured where the state directory cannot be used."""
        if self._keeper is not None:
            await self._keeper.open()
        await self._finder.__aenter__()
        await self._client.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.__aexit__(kind, problem, trace)
        await self._finder.__aexit__(kind, problem, trace)
        if self._keeper is not None:
            await self._keeper.close()

    # ---- scraping ------------------------------------------------------------------------------------------------------------------

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

    def _meet(self, found: Sequence[targets.Target]) -> None:
        """Exporters that are new, and those that are gone."""
        before = self._health
        self._health = {
            target.url: before[target.url]
            if target.url in before and before[target.url].known.target == target
            else Health(samples.Exporter(target))
            for target in found
        }
        if len(found) > MANY:
            self._tell_once("many", logging.WARNING, (
                f"{len(found)} exporters are scraped by one process: past {MANY} let Prometheus do that, and give its address with "
                "--prometheus-url"
            ))  # fmt: skip
        if self._finder.problem is not None:
            self._tell_once("problem", logging.WARNING, f"not all exporters can be looked for: {self._finder.problem}")

    def _tell_once(self, what: str, level: int, sentence: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.log(level, "%s", sentence)

    async def _scrape(self, some: Iterable[Health], now: Instant, *, counts: bool) -> set[Key]:
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

    async def _ask(self, one: Health) -> exposition.Page | None:
        try:
            return await self._client.scrape(one.known.target.url, one.known.reader)
        except errors.ClientError as problem:
            _note_failure(one, str(problem))
            return None

    # ---- the whole cluster ---------------------------------------------------------------------------------------------------------

    async def evidence(
        self,
        pods: tuple[cluster.Pod, ...],
        nodes: Mapping[str, cluster.Node],
        windows: frozenset[Seconds],
        now: Instant,
    ) -> usage.Evidence:
        self._reach_back(windows)
        if now - self._scraped_at >= 2 * self._interval:  # nobody scrapes for us, or not well
            await self.scrape(now)
        if pods is not self._place.pods or nodes is not self._place.nodes:
            self._place = rows.Place(pods, nodes)
            self._layouts = {}
        if trouble := self._find_trouble():
            return prometheus.no_evidence(now, trouble)
        readings = self._samples.readings(windows, now)
        if trouble := self._find_gap(readings, windows, now):
            return prometheus.no_evidence(now, trouble)
        self._learn_floors(now)
        layouts = {window: self._lay_out(readings, window) for window in windows}
        down = {one.known.target.key for one in self._health.values() if one.is_down}
        return self._compose(readings, self._place, layouts, frozenset(down), now)

    def _reach_back(self, windows: Collection[Seconds]) -> None:
        self._longest = max((self._longest, *windows))
        self._samples.table.stretch(self._lookback + self._longest)

    def _find_trouble(self) -> usage.SourceTrouble | None:
        """Why nothing at all can be said."""
        if not self._health:
            problem = self._finder.problem
            if problem is not None:
                return usage.SourceTrouble("SourceError", f"exporters cannot be looked for: {problem}")
            return usage.SourceTrouble("NoData", NOT_FOUND)
        if any(one.has_answered and not one.is_down for one in self._health.values()):
            return None
        first = next(iter(self._health.values()))
        return usage.SourceTrouble("SourceError", f"none of {len(self._health)} exporters answers; {first.problem}")

    def _find_gap(
        self, readings: Mapping[asking.Key, asking.Reading], windows: Collection[Seconds], now: Instant
    ) -> usage.SourceTrouble | None:
        """No GPU at all, or not measured for long enough yet."""
        if not any(len(reading.series) for (what, _, _), reading in readings.items() if what in inquiry.OF_GPUS):
            return usage.SourceTrouble("NoData", f"none of {len(self._health)} exporters shows any GPU")
        if self._is_warm or self._samples.is_vouched(now) or not windows:
            return None
        since, needed = self._samples.measuring_since(now), min(windows)
        self._is_warm = since is not None and now - since >= needed
        if self._is_warm:
            return None
        start = now if since is None else since
        because = f"measuring since {rfc3339(start)}, can judge from {clock_time(start + needed)} UTC on"
        self._tell_once("warming up", logging.INFO, because)
        return usage.SourceTrouble("WarmingUp", because)

    def _learn_floors(self, now: Instant) -> None:
        if now - self._floors_at < _FLOORS_HOLD:
            return
        lowest = columns.find_floors(self._samples.floors(now), self._samples.facts, self._interval) or {}
        self._floors |= {uuid: min(watts, self._floors.get(uuid, math.inf)) for uuid, watts in lowest.items()}
        self._floors_at = now

    def _lay_out(self, readings: Mapping[asking.Key, asking.Reading], window: Seconds) -> rows.Layout:
        """The same layout again while pods, nodes and series are the same."""
        series = _series_of(readings, {window, inquiry.INSTANT}, inquiry.OF_GPUS)
        generation, before = self._layouts.get(window, (-1, None))
        if before is None or generation != self._samples.generation or before.series != series:
            before = rows.Layout(self._place, self._samples.facts, series)
            self._layouts[window] = self._samples.generation, before
        return before

    def _compose(
        self,
        readings: Mapping[asking.Key, asking.Reading],
        place: rows.Place,
        layouts: Mapping[Seconds, rows.Layout],
        down: frozenset[Key],
        now: Instant,
    ) -> usage.Evidence:
        if not layouts:
            return prometheus.no_evidence(now, None)
        facts = self._samples.facts
        found = {}
        for window, layout in layouts.items():
            requests = columns.count_requests(readings.get(("requests", "", window)), facts, place)
            known = columns.Known(
                readings=readings, facts=facts, jobs=labels.Jobs(), layout=layout, window=window, expected_interval=self._interval,
                intervals={}, requests=requests, down=down, floors=self._floors,
            )  # fmt: skip
            found[window] = columns.build_usage(known)
        shortest = layouts[min(layouts)]
        return usage.Evidence(
            at=now, usage=found, trouble=None, unallocated=shortest.unallocated, gpus_per_node=shortest.per_node, lost_signals=()
        )

    # ---- a few pods ----------------------------------------------------------------------------------------------------------------

    async def again(
        self,
        pods: tuple[cluster.Pod, ...],
        nodes: Mapping[str, cluster.Node],
        windows: frozenset[Seconds],
        now: Instant,
    ) -> usage.Evidence:
        """Like `evidence`, of exporters scraped anew; what none of them said just now is as if its exporter were down."""
        async with self._round:
            await self._open(now)
            self._meet(self._finder.targets)
            answered = await self._scrape(self._concerning(pods), now, counts=False)
        if trouble := self._find_trouble():
            return prometheus.no_evidence(now, trouble)
        readings = self._samples.readings(windows, now)
        place, facts = rows.Place(pods, nodes), self._samples.facts
        layouts = {
            window: rows.Layout(place, facts, _series_of(readings, {window, inquiry.INSTANT}, inquiry.OF_GPUS)) for window in windows
        }
        silent = frozenset((one.job, one.target) for one in facts) - answered
        return self._compose(readings, place, layouts, silent, now)

    def _concerning(self, pods: Collection[cluster.Pod]) -> list[Health]:
        """The exporters on the nodes of these pods, and those of which nobody knows where they are."""
        wanted = {pod.node for pod in pods}
        return [one for one in self._health.values() if not one.known.target.node or one.known.target.node in wanted]

    # ---- exact idle times ----------------------------------------------------------------------------------------------------------

    async def look_back(
        self, seen: usage.Usage, wanted: Sequence[int], pods: tuple[cluster.Pod, ...], now: Instant, threshold: float
    ) -> usage.Usage:
        """`seen` with last_active and observed_since of the wanted rows; nan where nothing is known."""
        result = msgspec.structs.replace(seen, last_active=seen.last_active.copy(), observed_since=seen.observed_since.copy())
        at = list(map(int, wanted))
        readings = self._samples.past(self._lookback, threshold, now)
        place = self._place if pods is self._place.pods else rows.Place(pods, self._place.nodes)
        layout = rows.Layout(place, self._samples.facts, _series_of(readings, {self._lookback}, frozenset({"first", "holds"})))
        speaks = {metric: past.may_speak(seen, metric.signal, at) for metric in queries.PRIMARIES}
        found = past.Past(layout, readings, len(self._samples.facts))
        result.last_active[at], result.observed_since[at] = found.find(seen, at, speaks, self._lookback, now)
        return result


NOT_FOUND: Final = (
    "no exporter was found: no running pod is labelled app.kubernetes.io/name=dcgm-exporter or gpu-idle-exporter, or "
    "app=nvidia-dcgm-exporter; name it with --scrape-selector NAMESPACE/SELECTOR or --scrape-target URL, or give --prometheus-url"
)


def _note_answer(one: Health) -> None:
    if one.is_down:
        log.info("the exporter at %s answers again", exporters.name_of(one.known.target.url))
    one.failures, one.has_answered, one.problem = 0, True, ""


def _note_failure(one: Health, problem: str) -> None:
    one.failures += 1
    one.problem = problem
    if one.failures == _DOWN_AFTER:
        log.warning("%s; what it covers is not known until it answers", problem)


def _series_of(
    readings: Mapping[asking.Key, asking.Reading], windows: Collection[Seconds], wanted: Collection[str]
) -> tuple[int, ...]:
    found = [reading.series for (what, _, over), reading in readings.items() if what in wanted and over in windows]
    return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()
