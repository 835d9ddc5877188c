"""What is asked in a cycle: every question about all series, or about those of a few pods.

In: the windows; for a few pods also their names and boards (a Focus). Out: questions with keys (readings.py).
Invariant: names of pods and GPUs enter PromQL only as escaped literals; with a Focus, no selector is without one of
them.
"""

import functools
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from fallow.clients.prometheus import client
from fallow.model import usage
from fallow.model.units import DAY, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import labels, queries
from fallow.observe.usage.asking import Question
from fallow.observe.usage.readings import Topic, What
from fallow.observe.usage.spans import Stretch

_MOST_NAMED = 50  # jobs in a question
_HALVES: Final = {
    What.pace: ((What.pace, 0.0), (What.pace_before, queries.PACE / 2)),
    What.scrapes: ((What.scrapes, 0.0), (What.scrapes_before, queries.PACE / 2)),
}
_any_of = functools.lru_cache(maxsize=32)(client.any_of)  # a second look asks many questions about the same few pods


class Focus(NamedTuple):
    """The few pods that a question is about, and boards where other names speak of their GPUs, too."""

    pods: tuple[str, ...]
    uuids: tuple[str, ...]


class LabelBooks:
    """All label sets met so far."""

    def __init__(self, honor_labels: bool) -> None:
        self.room = labels.LabelRoom()
        self.facts: list[labels.Facts] = []  # of GPU series, in any dialect
        self.foreign = labels.LabelBook(labels.foreign(honor_labels), self.facts, self.room)
        self.own = labels.LabelBook(labels.OWN, self.facts, self.room)
        self.kernels = labels.LabelBook(labels.kernels(honor_labels), self.facts, self.room)
        self.serving = labels.LabelBook(labels.serving(honor_labels), [], self.room)
        self.targets = labels.LabelBook(labels.TARGETS, [], self.room)

    def __len__(self) -> int:
        return len(self.facts) + len(self.serving.facts) + len(self.targets.facts)

    def of(self, metric: queries.GpuMetric) -> labels.LabelBook:
        if metric.signal is Signal.last_kernel:
            return self.kernels
        return self.own if metric.own else self.foreign

    @property
    def unreadable(self) -> int:
        books = (self.foreign, self.own, self.kernels, self.serving, self.targets)
        return sum(book.unreadable for book in books)


class Inquiry:
    """Writes the questions for one server."""

    def __init__(self, prometheus: client.Prometheus, books: LabelBooks) -> None:
        self._prometheus = prometheus
        self._books = books

    def about(self, windows: Collection[Seconds], focus: Focus | None = None) -> Iterator[Question]:
        """All of it."""
        yield from self.about_peaks(windows, focus)
        for metric in queries.PRIMARIES:
            yield from self.about_cover(metric, windows, focus)

    def about_peaks(self, windows: Collection[Seconds], focus: Focus | None = None) -> Iterator[Question]:
        """All of it but how completely the primaries were measured."""
        yield self.about_holders(focus)
        for window in windows:
            for metric in (*queries.PRIMARIES, *queries.OTHERS):
                yield self._about_peak(metric, window, focus)
            yield self._about_energy(window, focus)
            yield self._about_requests(window, focus)
        yield Question(Topic(What.down), queries.down(self._prometheus.selector("up")), self._books.targets, "up")

    def about_cover(
        self, metric: queries.GpuMetric, windows: Collection[Seconds], focus: Focus | None
    ) -> Iterator[Question]:
        """Of a primary: how many samples, their mean, and when the newest is of."""
        book, selectors, name = self._books.of(metric), self._selectors(metric, focus), metric.signal.label
        yield Question(Topic(What.newest, metric.name), queries.newest(selectors), book, name, required=True)
        for window in windows:
            for what, write in ((What.count, queries.count), (What.mean, queries.mean)):
                yield Question(Topic(what, metric.name, window), write(selectors, window), book, name, required=True)

    def about_lowest(
        self, metric: queries.GpuMetric, windows: Collection[Seconds], focus: Focus | None
    ) -> Iterator[Question]:
        book, selectors = self._books.of(metric), self._selectors(metric, focus)
        for window in windows:
            topic, promql = Topic(What.lowest, metric.name, window), queries.lowest(selectors, window)
            yield Question(topic, promql, book, metric.signal.label, required=metric in queries.PRIMARIES)

    def about_paces(self, is_due: bool) -> Iterator[Question]:
        """How often series are written; with its older half apart where that is to be learned."""
        for metric in queries.PRIMARIES:
            book, selectors = self._books.of(metric), self._selectors(metric, None)
            for what, offset in _HALVES[What.pace][: 1 + is_due]:
                key, promql = Topic(what, metric.name, queries.PACE), queries.pace(selectors, offset)
                yield Question(key, promql, book, metric.signal.label, required=True)

    def about_scrapes(self, jobs: Collection[str], is_due: bool) -> Iterator[Question]:
        """The same of the targets of these jobs: most of what a server scrapes has no GPU."""
        for what, offset in _HALVES[What.scrapes][: 1 + is_due]:
            yield Question(Topic(what), queries.scrapes(self._ups(jobs), offset), self._books.targets, "up")

    def about_scrapes_within(self, jobs: Collection[str], windows: Iterable[Seconds]) -> Iterator[Question]:
        for window in windows:
            topic, promql = Topic(What.scrapes, "", window), queries.scrapes_within(self._ups(jobs), window)
            yield Question(topic, promql, self._books.targets, "up")

    def _ups(self, jobs: Collection[str]) -> str:
        only = _any_of("job", tuple(sorted(jobs))) if len(jobs) <= _MOST_NAMED else ""
        return self._prometheus.selector("up", only)

    def about_holders(self, focus: Focus | None) -> Question:
        book = self._books.own
        holds = queries.holds(self._narrow(queries.HOLDS, "", book, focus), book.dialect.by)
        return Question(Topic(What.holds, queries.HOLDS), holds, book, "holders", required=True)

    def about_floors(self) -> Iterator[Question]:
        for metric in queries.POWER:
            book, selectors = self._books.of(metric), self._selectors(metric, None)
            lowest = queries.lowest(selectors, DAY)
            yield Question(Topic(What.lowest, metric.name, DAY), lowest, book, "power_floor")
            samples = queries.count(selectors, DAY)
            yield Question(Topic(What.samples, metric.name, DAY), samples, book, "power_floor")

    def about_activity(
        self, metric: queries.GpuMetric, focus: Focus | None, part: Stretch, threshold: float, number: int
    ) -> Question:
        """`number`: of the stretch, to tell the answers of several apart."""
        book, selectors = self._books.of(metric), self._selectors(metric, focus)
        promql = queries.busy(metric, selectors, part.between, threshold)
        return Question(Topic(What.busy, metric.name, float(number)), promql, book, metric.signal.label, required=True)

    def about_samples(
        self, metric: queries.GpuMetric, focus: Focus | None, part: Stretch, number: int
    ) -> Question:
        book, selectors = self._books.of(metric), self._selectors(metric, focus)
        promql = queries.samples(selectors, part.between)
        return Question(Topic(What.past, metric.name, float(number)), promql, book, metric.signal.label, required=True)

    def about_activity_of(self, focus: Focus, step: Seconds) -> str:
        """The highest of every step, as a ratio, by the best signal that each GPU has: one question for all of it."""
        ratios = [metric for metric in queries.PRIMARIES if metric.signal in usage.RATIOS]
        return " or ".join(queries.highest(metric, self._selectors(metric, focus), step) for metric in ratios)

    def _about_peak(self, metric: queries.GpuMetric, window: Seconds, focus: Focus | None) -> Question:
        book = self._books.of(metric)
        peak = queries.peak(metric, self._selectors(metric, focus), book.dialect.by, window)
        key, is_primary = Topic(What.peak, metric.name, window), metric in queries.PRIMARIES
        return Question(key, peak, book, metric.signal.label, required=is_primary)

    def _about_energy(self, window: Seconds, focus: Focus | None) -> Question:
        book = self._books.foreign
        increase = queries.increase(self._narrow(queries.ENERGY, "", book, focus), window)
        return Question(Topic(What.increase, queries.ENERGY, window), increase, book, "energy")

    def _about_requests(self, window: Seconds, focus: Focus | None) -> Question:
        book = self._books.serving
        gauges = [one for name in queries.REQUEST_GAUGES for one in self._narrow(name, "", book, focus)]
        counters = [one for name in queries.REQUEST_COUNTERS for one in self._narrow(name, "", book, focus)]
        promql = queries.requests(gauges, counters, book.dialect.by, window)
        return Question(Topic(What.requests, "", window), promql, book, "requests")

    def _selectors(self, metric: queries.GpuMetric, focus: Focus | None) -> list[str]:
        return self._narrow(metric.name, metric.matcher, self._books.of(metric), focus)

    def _narrow(self, name: str, matcher: str, book: labels.LabelBook, focus: Focus | None) -> list[str]:
        """One selector for all, or one for each form of labels in which the few may be named."""
        if focus is None:
            return [self._prometheus.selector(name, matcher)]
        pod_labels = sorted(book.pod_labels) or book.dialect.pod  # before anything was seen, any form
        forms = [_any_of(label, focus.pods) for label in pod_labels]
        if focus.uuids:
            forms += [_any_of(label, focus.uuids) for label in sorted(book.uuid_labels)]
        return [self._prometheus.selector(name, matcher, form) for form in forms]
