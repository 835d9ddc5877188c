"""What is asked in a cycle: every question about all series, or about those of a few pods.

In: the windows; for a few pods also their names and boards (a Focus). Out: questions with keys (what, metric, window).
Invariant: names of pods and GPUs enter PromQL only as escaped literals; with a Focus, no selector is without one of them.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fallow.clients.prometheus import client
from fallow.model.units import DAY, Seconds
from fallow.observe.usage import asking, labels, queries

OF_GPUS: Final = frozenset({"peak", "count", "newest", "increase", "holds"})  # what makes rows
INSTANT: Final[Seconds] = 0.0  # the window of questions that have none

_any_of = functools.lru_cache(maxsize=16)(client.any_of)  # a second look asks many questions about the same few pods


class Focus(NamedTuple):
    """The few pods that a question is about, and boards where other names speak of their GPUs, too."""

    pods: tuple[str, ...]
    uuids: tuple[str, ...]


class Books:
    """All label sets met so far."""

    def __init__(self, honor_labels: bool) -> None:
        self.facts: list[labels.Facts] = []  # of GPU series, in any dialect
        self.foreign = labels.Book(labels.foreign(honor_labels), self.facts)
        self.own = labels.Book(labels.OWN, self.facts)
        self.serving = labels.Book(labels.serving(honor_labels), [])
        self.targets = labels.Book(labels.TARGETS, [])

    def __len__(self) -> int:
        return len(self.facts) + len(self.serving.facts) + len(self.targets.facts)

    def of(self, metric: queries.Metric) -> labels.Book:
        return self.own if metric.own else self.foreign


class Inquiry:
    """Writes the questions for one server."""

    def __init__(self, prometheus: client.Prometheus, books: Books) -> None:
        self._prometheus = prometheus
        self._books = books

    def about(self, windows: Iterable[Seconds], focus: Focus | None = None) -> Iterator[asking.Question]:
        for metric in queries.PRIMARIES:
            book, selectors = self._books.of(metric), self._selectors(metric, focus)
            newest = queries.newest(selectors, book.dialect.by)
            yield asking.Question(("newest", metric.name, INSTANT), newest, book, metric.signal.label, required=True)
            if focus is None:
                pace = queries.pace(self._prometheus.selector(metric.name, metric.matcher))
                yield asking.Question(("pace", metric.name, queries.PACE), pace, self._books.targets, metric.signal.label, required=True)
        yield self.about_holders(focus)
        for window in windows:
            yield from self._about_primaries(window, focus)
            yield from self._about_others(window, focus)
            yield self._about_energy(window, focus)
            yield self._about_requests(window, focus)
        down = queries.down(self._prometheus.selector("up"))
        yield asking.Question(("down", "", INSTANT), down, self._books.targets, "up")

    def about_holders(self, focus: Focus | None) -> asking.Question:
        book = self._books.own
        holds = queries.holds(self._narrow(queries.HOLDS, "", book, focus), book.dialect.by)
        return asking.Question(("holds", queries.HOLDS, INSTANT), holds, book, "holders", required=True)

    def about_floors(self) -> Iterator[asking.Question]:
        for metric in queries.POWER:
            book, selectors = self._books.of(metric), self._selectors(metric, None)
            lowest = queries.lowest(selectors, book.dialect.by, DAY)
            yield asking.Question(("lowest", metric.name, DAY), lowest, book, "power_floor")
            samples = queries.count(selectors, book.dialect.by, DAY)
            yield asking.Question(("samples", metric.name, DAY), samples, book, "power_floor")

    def about_past(self, metric: queries.Metric, focus: Focus, lookback: Seconds, threshold: float) -> Iterator[asking.Question]:
        book, selectors = self._books.of(metric), self._selectors(metric, focus)
        by, name = book.dialect.by, metric.signal.label
        active = queries.last_active(metric, selectors, by, lookback, threshold)
        yield asking.Question(("active", metric.name, lookback), active, book, name, required=True)
        yield asking.Question(("first", metric.name, lookback), queries.first_seen(selectors, by, lookback), book, name, required=True)
        yield asking.Question(("minutes", metric.name, lookback), queries.minutes_seen(selectors, by, lookback), book, name, required=True)

    def _about_primaries(self, window: Seconds, focus: Focus | None) -> Iterator[asking.Question]:
        for metric in queries.PRIMARIES:
            book, selectors = self._books.of(metric), self._selectors(metric, focus)
            by, name = book.dialect.by, metric.signal.label
            yield asking.Question(("peak", metric.name, window), queries.peak(metric, selectors, by, window), book, name, required=True)
            yield asking.Question(("count", metric.name, window), queries.count(selectors, by, window), book, name, required=True)

    def _about_others(self, window: Seconds, focus: Focus | None) -> Iterator[asking.Question]:
        for metric in queries.OTHERS:
            book, selectors = self._books.of(metric), self._selectors(metric, focus)
            peak = queries.peak(metric, selectors, book.dialect.by, window)
            yield asking.Question(("peak", metric.name, window), peak, book, metric.signal.label)

    def _about_energy(self, window: Seconds, focus: Focus | None) -> asking.Question:
        book = self._books.foreign
        increase = queries.increase(self._narrow(queries.ENERGY, "", book, focus), book.dialect.by, window)
        return asking.Question(("increase", queries.ENERGY, window), increase, book, "energy")

    def _about_requests(self, window: Seconds, focus: Focus | None) -> asking.Question:
        book = self._books.serving
        gauges = [selector for name in queries.REQUEST_GAUGES for selector in self._narrow(name, "", book, focus)]
        counters = [selector for name in queries.REQUEST_COUNTERS for selector in self._narrow(name, "", book, focus)]
        return asking.Question(("requests", "", window), queries.requests(gauges, counters, book.dialect.by, window), book, "requests")

    def _selectors(self, metric: queries.Metric, focus: Focus | None) -> list[str]:
        return self._narrow(metric.name, metric.matcher, self._books.of(metric), focus)

    def _narrow(self, name: str, matcher: str, book: labels.Book, focus: Focus | None) -> list[str]:
        """One selector for all, or one for each form of labels in which the few may be named."""
        if focus is None:
            return [self._prometheus.selector(name, matcher)]
        pod_labels = sorted(book.pod_labels) or book.dialect.pod  # before anything was seen, any form
        forms = [_any_of(label, focus.pods) for label in pod_labels]
        if focus.uuids:
            forms += [_any_of(label, focus.uuids) for label in sorted(book.uuid_labels)]
        return [self._prometheus.selector(name, matcher, form) for form in forms]
