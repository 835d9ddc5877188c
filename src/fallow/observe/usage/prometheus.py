"""What Prometheus measured, as evidence for the brain.

In: the GPU pods and nodes of the cluster, the windows that the rules ask for, the instant. Out: one Usage per window, or the reason why
nothing can be said. `look_back` adds exact idle times for candidates, `again` asks anew for a few pods just before an act.
Invariant: never raises for what the server does. A primary signal that cannot be asked for ends the cycle (Evidence.trouble); any other
is missing and named in lost_signals. Nothing that was measured is kept from one cycle to the next but what labels mean, how often jobs
are scraped, the lowest power ever seen, and idle times while a GPU stays idle.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from fallow.clients.prometheus import client
from fallow.model import cluster, usage
from fallow.model.units import DAY, HOUR, Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import asking, columns, inquiry, labels, past, queries, rows

log = logging.getLogger(__name__)

_PODS_PER_QUERY = 100
_FLOOR_HOLDS: Seconds = HOUR
_TOO_MANY_GONE = 10_000  # label sets of series that are no more, before all are read anew


T = TypeVar("T")


class PrometheusSource:
    """Asks a Prometheus-compatible server."""

    def __init__(
        self,
        prometheus: client.Prometheus,
        *,
        honor_labels: bool = False,
        expected_interval: Seconds | None = None,
        lookback: Seconds = DAY,
        budget: Seconds = 120.0,
    ) -> None:
        self._prometheus = prometheus
        self._asker = asking.Asker(prometheus, budget)
        self._honor_labels = honor_labels
        self._expected_interval = expected_interval
        self._lookback = lookback
        self._place = rows.Place((), {})
        self._intervals: dict[Seconds, dict[str, Seconds]] = {}
        self._floors: dict[str, float] = {}
        self._floors_at: Instant = -math.inf
        self._found_idle = past.Memory()
        self._open_books()

    def _open_books(self) -> None:
        self._books = inquiry.Books(self._honor_labels)
        self._inquiry = inquiry.Inquiry(self._prometheus, self._books)
        self._jobs = labels.Jobs()
        self._layouts: dict[Seconds, rows.Layout] = {}

    # ---- the whole cluster ---------------------------------------------------------------------------------------------------

    async def evidence(
        self,
        pods: tuple[cluster.Pod, ...],
        nodes: Mapping[str, cluster.Node],
        windows: frozenset[Seconds],
        now: Instant,
    ) -> usage.Evidence:
        self._forget_gone()
        if pods is not self._place.pods or nodes is not self._place.nodes:
            self._place = rows.Place(pods, nodes)
            self._layouts = {}
        wants_floor = now - self._floors_at >= _FLOOR_HOLDS  # the canary needs them, whatever the rules say
        questions = [*self._inquiry.about(windows), *(self._inquiry.about_floors() if wants_floor else ())]
        try:
            answers = await self._ask(questions, now)
        except asking.NoEvidence as nothing:
            return no_evidence(now, nothing.trouble)
        if wants_floor:
            self._learn_floors(answers.readings, now)
        for window in windows:
            self._intervals[window] = columns.learn_intervals(answers.readings, self._jobs, window, self._books.targets.facts)
            self._layouts[window] = self._lay_out(answers.readings, window)
        return self._compose(answers, self._place, {window: self._layouts[window] for window in windows}, now)

    async def _ask(self, questions: Iterable[asking.Question], now: Instant) -> asking.Answers:
        answers = await self._asker.ask(questions, now)
        self._jobs.catch_up(self._books.facts)
        if not any(len(reading.series) for (what, _, _), reading in answers.readings.items() if what in inquiry.OF_GPUS):
            raise asking.NoEvidence("NoData", f"Prometheus at {self._prometheus.address} has no series of any GPU")
        return answers

    def _lay_out(self, readings: Mapping[asking.Key, asking.Reading], window: Seconds) -> rows.Layout:
        """Rows for the series of this window; the same layout again while pods, nodes and series are the same."""
        series = self._series_of(readings, window)
        before = self._layouts.get(window)
        if before is not None and before.series == series:
            return before
        return rows.Layout(self._place, self._books.facts, series)

    def _series_of(self, readings: Mapping[asking.Key, asking.Reading], window: Seconds) -> tuple[int, ...]:
        seen = np.zeros(len(self._books.facts), dtype=np.bool_)
        for (what, _, over), reading in readings.items():
            if what in inquiry.OF_GPUS and over in (window, inquiry.INSTANT):
                seen[reading.series] = True
        return tuple(np.flatnonzero(seen).tolist())

    def _compose(self, answers: asking.Answers, place: rows.Place, layouts: Mapping[Seconds, rows.Layout], now: Instant) -> usage.Evidence:
        if not layouts:
            return no_evidence(now, None)
        found = {}
        for window, layout in layouts.items():
            known = columns.Known(
                readings=answers.readings,
                facts=self._books.facts,
                jobs=self._jobs,
                layout=layout,
                window=window,
                expected_interval=self._expected_interval,
                intervals=self._intervals[window],
                requests=columns.count_requests(answers.readings.get(("requests", "", window)), self._books.serving.facts, place),
                down=self._find_down(answers.readings.get(("down", "", inquiry.INSTANT))),
                floors=self._floors,
            )
            found[window] = columns.build_usage(known)
        shortest = layouts[min(layouts)]
        return usage.Evidence(
            at=now,
            usage=found,
            trouble=None,
            unallocated=shortest.unallocated,
            gpus_per_node=shortest.per_node,
            lost_signals=answers.lost,
        )

    def _find_down(self, reading: asking.Reading | None) -> frozenset[tuple[str, str]]:
        facts = [self._books.targets.facts[number] for number in (reading or asking.NOTHING).series]
        return frozenset((one.job, one.target) for one in facts)

    def _learn_floors(self, readings: Mapping[asking.Key, asking.Reading], now: Instant) -> None:
        """What was learned only ever goes down; what was lost is asked again in the next cycle."""
        lowest = columns.find_floors(readings, self._books.facts, None)
        if lowest is not None:
            self._floors |= {uuid: min(watts, self._floors.get(uuid, math.inf)) for uuid, watts in lowest.items()}
            self._floors_at = now

    def _forget_gone(self) -> None:
        seen = max((len(layout.series) for layout in self._layouts.values()), default=0)
        if self._layouts and len(self._books) > 2 * seen + _TOO_MANY_GONE:
            self._open_books()

    # ---- a few pods ----------------------------------------------------------------------------------------------------------

    async def again(
        self,
        pods: tuple[cluster.Pod, ...],
        nodes: Mapping[str, cluster.Node],
        windows: frozenset[Seconds],
        now: Instant,
    ) -> usage.Evidence:
        """Like `evidence`, asked anew and for these pods only; indices are into `pods` as given here. Floors are as learned before."""
        questions = [question for focus in self._focus(pods) for question in self._inquiry.about(windows, focus)]
        try:
            answers = await self._ask(questions, now)
        except asking.NoEvidence as nothing:
            return no_evidence(now, nothing.trouble)
        for window in windows:  # these few may all be thin: how often their jobs are scraped is better known from all
            learned = columns.learn_intervals(answers.readings, self._jobs, window)
            before = self._intervals.setdefault(window, {})
            before |= {job: min(seconds, before.get(job, math.inf)) for job, seconds in learned.items()}
        place = rows.Place(pods, nodes)
        layouts = {window: rows.Layout(place, self._books.facts, self._series_of(answers.readings, window)) for window in windows}
        return self._compose(answers, place, layouts, now)

    def _focus(self, pods: Sequence[cluster.Pod]) -> Iterator[inquiry.Focus]:
        """Batches of pods, with the boards on which other names speak of their GPUs."""
        boards: dict[tuple[str, str], set[str]] = {}
        for layout in self._layouts.values():
            for pod, board in layout.borrowed_boards():
                boards.setdefault((pod.namespace, pod.name), set()).add(board)
        for some in _batches(pods):
            uuids = {uuid for pod in some for uuid in boards.get((pod.namespace, pod.name), ())}
            yield inquiry.Focus(tuple(sorted({pod.name for pod in some})), tuple(sorted(uuids)))

    # ---- exact idle times ----------------------------------------------------------------------------------------------------

    async def look_back(
        self, seen: usage.Usage, wanted: Sequence[int], pods: tuple[cluster.Pod, ...], now: Instant, threshold: float
    ) -> usage.Usage:
        """`seen` with last_active and observed_since of the wanted rows; nan where the server could not say."""
        result = msgspec.structs.replace(seen, last_active=seen.last_active.copy(), observed_since=seen.observed_since.copy())
        known, others = self._found_idle.recall(seen, wanted, pods, threshold, now)
        at = list(known)
        result.last_active[at] = [found.last_active for found in known.values()]
        result.observed_since[at] = [found.observed_since for found in known.values()]
        unknown: dict[int, list[int]] = {}
        for row in others:
            unknown.setdefault(int(seen.pod[row]), []).append(row)
        try:
            for some in _batches(tuple(unknown)):
                await self._look_up(result, [row for pod in some for row in unknown[pod]], pods, now, threshold)
        except asking.NoEvidence as nothing:
            log.warning("exact idle times could not be looked up: %s", nothing)
        self._found_idle.forget_before(now - self._lookback)
        return result

    async def _look_up(self, result: usage.Usage, wanted: list[int], pods: tuple[cluster.Pod, ...], now: Instant, threshold: float) -> None:
        speaks = {metric: past.may_speak(result, metric.signal, wanted) for metric in queries.PRIMARIES}
        asked = [metric for metric, held in speaks.items() if held.any() and metric.signal is not Signal.last_kernel]
        some = list(self._focus([pods[pod] for pod in sorted({int(result.pod[row]) for row in wanted})]))
        questions = [
            question
            for focus in some
            for metric in asked
            for question in self._inquiry.about_past(metric, focus, self._lookback, threshold)
        ]
        if any(metric.own for metric in asked):
            questions += map(self._inquiry.about_holders, some)
        answers = await self._asker.ask(questions, now)
        place = self._place if pods is self._place.pods else rows.Place(pods, self._place.nodes)
        series = sorted({int(number) for reading in answers.readings.values() for number in reading.series})
        layout = rows.Layout(place, self._books.facts, series)
        found = past.Past(layout, answers.readings, len(self._books.facts))
        last, since = found.find(result, wanted, speaks, self._lookback, now)
        result.last_active[wanted], result.observed_since[wanted] = last, since
        self._found_idle.keep(result, wanted, pods, threshold, now)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _PODS_PER_QUERY):
        yield items[start : start + _PODS_PER_QUERY]


def no_evidence(now: Instant, trouble: usage.SourceTrouble | None) -> usage.Evidence:
    return usage.Evidence(at=now, usage={}, trouble=trouble, unallocated=0, gpus_per_node={}, lost_signals=())
