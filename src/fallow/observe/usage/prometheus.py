"""What Prometheus measured, as evidence for the brain.

In: who holds GPUs, the windows that the rules ask for, the instant. Out: one Usage per window, or the reason why
nothing can be said; exact idle times; the same anew for a few pods (source.Source).
Invariant: never raises for what the server does. A primary signal that cannot be asked for ends the cycle
(Evidence.trouble); any other is missing and named in lost_signals. Nothing that was measured is kept from one cycle to
the next but what labels mean, how often jobs are scraped, the lowest power of a day, and idle times while a GPU stays
idle.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from fallow.clients.prometheus import client
from fallow.model import cluster, usage
from fallow.model.seen import Input
from fallow.model.units import DAY, Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import asking, columns, floors, inquiry, labels, past, readings, rows
from fallow.observe.usage.readings import INSTANT, NOTHING, Topic, What

log = logging.getLogger(__name__)

_PODS_PER_QUERY = 100
_TOO_MANY_GONE = 10_000  # label sets of series that are no more, before all are read anew

T = TypeVar("T")


class PrometheusSource:
    """Asks a Prometheus-compatible server."""

    def __init__(
        self, prometheus: client.Prometheus, *, honor_labels: bool = False, expected_interval: Seconds | None = None,
        lookback: Seconds = DAY, budget: Seconds = 120.0,
    ) -> None:
        self._prometheus = prometheus
        self._asker = asking.Asker(prometheus, budget)
        self._honor_labels = honor_labels
        self._expected_interval = expected_interval
        self._lookback = lookback
        self._layouts = rows.Layouts()
        self._intervals: dict[Seconds, dict[str, Seconds]] = {}
        self._floors = floors.Floors()
        self._found_idle = past.IdleTimes()
        self._open_books()

    def _open_books(self) -> None:
        self._books = inquiry.LabelBooks(self._honor_labels)
        self._inquiry = inquiry.Inquiry(self._prometheus, self._books)
        self._jobs = labels.Jobs()
        self._layouts.forget()

    @property
    def clock(self) -> Input[Instant]:
        return self._prometheus.clock

    async def evidence(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        self._forget_gone()
        wants_floors = self._floors.are_due(now)
        questions = [*self._inquiry.about(windows), *(self._inquiry.about_floors() if wants_floors else ())]
        try:
            answers = await self._ask(questions, now)
        except asking.NoEvidence as nothing:
            return columns.no_evidence(now, nothing.trouble)
        if wants_floors:
            self._floors.learn(answers.readings, self._books.facts, None, now)
        layouts, found, targets = {}, answers.readings, self._books.targets.facts
        current = self._current_of(found)
        for window in windows:
            self._intervals[window] = columns.learn_intervals(found, self._jobs, window, targets)
            series = self._series_of(found, window)
            layouts[window] = self._layouts.lay_out(window, held, self._books.facts, series, current)
        return self._compose(answers, held, layouts, now)

    async def _ask(self, questions: Iterable[asking.Question], now: Instant) -> asking.Answers:
        answers = await self._asker.ask(questions, now)
        self._jobs.catch_up(self._books.facts)
        if not readings.has_gpus(answers.readings):
            raise asking.NoEvidence("NoData", f"Prometheus at {self._prometheus.address} has no series of any GPU")
        return answers

    def _series_of(self, found: readings.Readings, window: Seconds) -> tuple[int, ...]:
        return readings.series_of(found, len(self._books.facts), {window, INSTANT})

    def _current_of(self, found: readings.Readings) -> tuple[int, ...]:
        return readings.current_of(found, len(self._books.facts))

    def _compose(
        self, answers: asking.Answers, held: rows.Holders, layouts: Mapping[Seconds, rows.RowLayout], now: Instant
    ) -> usage.Evidence:
        down = [self._books.targets.facts[number] for number in answers.readings.get(Topic(What.down), NOTHING).series]
        measured = columns.Measured(
            readings=answers.readings, facts=self._books.facts, serving=self._books.serving.facts, jobs=self._jobs,
            expected_interval=self._expected_interval, intervals=self._intervals,
            down=frozenset((one.job, one.target) for one in down), floors=self._floors.watts, lost=answers.lost,
            unreadable=self._books.unreadable,
        )
        return columns.build_evidence(measured, held, layouts, now)

    def _forget_gone(self) -> None:
        seen = max((len(layout.series) for layout in self._layouts.current.values()), default=0)
        if self._layouts.current and len(self._books) > 2 * seen + _TOO_MANY_GONE:
            self._open_books()

    async def again(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        questions = [one for focus in self._focus(held.pods) for one in self._inquiry.about(windows, focus)]
        try:
            answers = await self._ask(questions, now)
        except asking.NoEvidence as nothing:
            return columns.no_evidence(now, nothing.trouble)
        for window in windows:  # these few may all be thin: how often their jobs are scraped is better known from all
            learned = columns.learn_intervals(answers.readings, self._jobs, window)
            before = self._intervals.setdefault(window, {})
            before |= {job: min(seconds, before.get(job, math.inf)) for job, seconds in learned.items()}
        facts, found = self._books.facts, answers.readings
        current = self._current_of(found)
        layouts = {
            window: rows.RowLayout(held, facts, self._series_of(found, window), current=current) for window in windows
        }
        return self._compose(answers, held, layouts, now)

    def _focus(self, pods: Sequence[cluster.Pod]) -> Iterator[inquiry.Focus]:
        """Batches of pods, with the boards on which other names speak of their GPUs."""
        boards: dict[tuple[str, str], set[str]] = {}
        for layout in self._layouts.current.values():
            for pod, board in layout.borrowed_boards():
                boards.setdefault((pod.namespace, pod.name), set()).add(board)
        for some in _batches(pods):
            uuids = {uuid for pod in some for uuid in boards.get((pod.namespace, pod.name), ())}
            yield inquiry.Focus(tuple(sorted({pod.name for pod in some})), tuple(sorted(uuids)))

    async def look_back(
        self, seen: usage.Usage, wanted: Sequence[int], held: rows.Holders, now: Instant, threshold: float
    ) -> usage.Usage:
        result = past.copy_of(seen)
        known, others = self._found_idle.recall(seen, wanted, held.pods, threshold, now)
        at = list(known)
        result.last_active[at] = [found.last_active for found in known.values()]
        result.observed_since[at] = [found.observed_since for found in known.values()]
        unknown: dict[int, list[int]] = {}
        for row in others:
            unknown.setdefault(int(seen.pod[row]), []).append(row)
        try:
            speakers = past.find_speakers(seen)
            for some in _batches(tuple(unknown)):
                rows_of_some = [row for pod in some for row in unknown[pod]]
                await self._look_up(result, rows_of_some, speakers, held, now, threshold)
        except asking.NoEvidence as nothing:
            log.warning("exact idle times could not be looked up: %s", nothing)
        self._found_idle.forget_before(now - self._lookback)
        return result

    async def _look_up(
        self, result: usage.Usage, wanted: list[int], speakers: past.Speakers, held: rows.Holders, now: Instant,
        threshold: float,
    ) -> None:
        speaking = [metric for metric, speaks in speakers.items() if speaks[wanted].any()]
        asked = [metric for metric in speaking if metric.signal is not Signal.last_kernel]
        some = list(self._focus([held.pods[pod] for pod in sorted({int(result.pod[row]) for row in wanted})]))
        questions = [
            question
            for focus in some
            for metric in asked
            for question in self._inquiry.about_past(metric, focus, self._lookback, threshold)
        ]
        if any(metric.own for metric in asked):
            questions += map(self._inquiry.about_holders, some)
        answers = await self._asker.ask(questions, now)
        past.Past(held, self._books.facts, answers.readings, self._lookback, now).fill(result, wanted, speakers)
        self._found_idle.keep(result, wanted, held.pods, threshold, now)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _PODS_PER_QUERY):
        yield items[start : start + _PODS_PER_QUERY]
