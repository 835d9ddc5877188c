"""The history in the user's own Prometheus, as a Trace: what their GPUs did, minute by minute, for a backtest of their own cluster.

In: a Prometheus client, a range. Out: a Trace with one Part per pod that held GPUs, joined by the labels that observe/labels.py reads.
The primaries are asked for by range, the maximum of each minute, page by page; of several that speak of one GPU the highest counts.
Invariant: bounded in series and in samples; a minute without a believable sample is not known. Prometheus does not tell whose pod it was
above the pod, so that every pod stands alone, and a pod is taken for training where it has several GPUs, else for batch work.
"""

import math
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from fallow.clients.prometheus import client
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.model.usage import Floats, Signal
from fallow.observe.usage import labels, queries
from fallow.sim.lives import NONE, Percents, Span
from fallow.sim.traces import Report, Trace, TraceError
from fallow.sim.world import Part

MOST_ROWS: Final = 20_000  # GPUs in pods' hands
MOST_SAMPLES: Final = 200_000_000
_PAGE: Final = 6 * HOUR
_ASKED: Final = tuple(metric for metric in queries.PRIMARIES if metric.signal is not Signal.last_kernel)
_OF_DEVICE: Final = frozenset({Signal.gpu_util, Signal.device_util})  # never valid on MIG


async def read_history(
    prometheus: client.Prometheus, start: Instant, end: Instant, *, now: Instant, honor_labels: bool = False, step: Seconds = MINUTE
) -> Trace:
    """Raises TraceError where there is too much, or nothing; errors of clients/errors.py where the server fails."""
    columns = int((end - start) // step)
    if columns < 1:
        raise TraceError("the range to look at is empty: its end must come after its start")
    books = _Books(Span(start, step, columns), honor_labels)
    for metric in _ASKED:
        for first in range(0, columns, round(_PAGE / step)):
            last = min(first + round(_PAGE / step), columns) - 1
            promql = queries.peak(metric, [prometheus.selector(metric.name, metric.matcher)], books.by(metric), step)
            answer = await prometheus.query_range(
                promql, start + first * step, start + last * step, step, row=msgspec.Raw, now=now
            )
            if answer.partial:
                raise TraceError(f"Prometheus at {prometheus.address} gave only a part of {metric.name}: nothing is guessed from that")
            books.enter(metric, answer.rows)
    return books.close()


class _Books:
    """Rows by pod and GPU, filled page by page."""

    def __init__(self, span: Span, honor_labels: bool) -> None:
        facts: list[labels.Facts] = []
        self._foreign, self._own = labels.LabelBook(labels.foreign(honor_labels), facts), labels.LabelBook(labels.OWN, facts)
        self._span, self._report = span, Report()
        self._rows: dict[tuple[str, str], dict[str, Percents]] = {}
        self._models: dict[tuple[str, str], str] = {}
        self._count = 0

    def by(self, metric: queries.GpuMetric) -> str:
        return (self._own if metric.own else self._foreign).dialect.by

    def enter(self, metric: queries.GpuMetric, lines: list[client.RangeSeries[msgspec.Raw]]) -> None:
        book = self._own if metric.own else self._foreign
        numbers = book.number([line.metric for line in lines])
        facts = [book.facts[number] for number in numbers]
        is_plain = not any(one.sure and one.pod for one in facts)  # else a plain `pod` label names the exporter
        for line, one in zip(lines, facts, strict=True):
            self._report.rows += 1
            if not one.pod or not (one.sure or is_plain):
                self._report.leave_out("of a GPU that no pod holds")
            elif one.mig and metric.signal in _OF_DEVICE:
                self._report.leave_out("of a whole device cut by MIG")
            else:
                self._fill(self._row(one), line, metric)

    def _row(self, one: labels.Facts) -> Percents:
        pod, gpu = (one.namespace, one.pod), f"{one.uuid or one.spot}/{one.instance}"
        held = self._rows.setdefault(pod, {})
        self._models.setdefault(pod, one.model)
        if gpu not in held:
            self._count += 1
            if self._count > MOST_ROWS or self._count * self._span.columns > MOST_SAMPLES:
                raise TraceError(f"the range holds more than {self._count - 1} GPUs in pods' hands: ask for a shorter one")
            held[gpu] = np.full(self._span.columns, NONE, np.uint8)
        return held[gpu]

    def _fill(self, row: Percents, line: client.RangeSeries[msgspec.Raw], metric: queries.GpuMetric) -> None:
        places = np.array([round((sample.at - self._span.start) / self._span.step) for sample in line.values], np.int64)
        values = queries.believe(_numbers(sample.value for sample in line.values), metric)
        is_good = ~np.isnan(values) & (places >= 0) & (places < len(row))
        self._report.left_out["no believable reading: not known"] += int((~is_good).sum())
        percents, at = np.floor(values[is_good] * 100 + 1e-6).astype(np.uint8), places[is_good]
        row[at] = np.where(row[at] == NONE, percents, np.maximum(row[at], percents))

    def close(self) -> Trace:
        if not self._rows:
            raise TraceError("Prometheus holds no series of GPUs in pods' hands in this range")
        parts = [self._part(pod, list(held.values())) for pod, held in self._rows.items()]
        percents = np.stack([row for held in self._rows.values() for row in held.values()])
        return Trace(self._span, tuple(parts), percents, self._report)

    def _part(self, pod: tuple[str, str], rows: list[Percents]) -> Part:
        """It was there from its first to its last sample."""
        span, told = self._span, np.flatnonzero((np.stack(rows) != NONE).any(axis=0))
        first, last = (int(told[0]), int(told[-1])) if len(told) else (0, 0)
        return Part(
            pod[0], pod[1], class_="training" if len(rows) > 1 else "batch", life="trace", gpus=len(rows), model=self._models[pod],
            owner="machine", arrives_at=span.start + first * span.step if first else None,
            ends_at=span.start + (last + 1) * span.step if last + 1 < span.columns else None,
        )


def _numbers(texts: Iterable[str]) -> Floats:
    return np.array([_number(text) for text in texts], np.float64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
