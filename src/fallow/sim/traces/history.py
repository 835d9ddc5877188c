"""The history in the user's own Prometheus, as a Trace: what their GPUs did, minute by minute, for a backtest.

In: a Prometheus client, a range. Out: a Trace with one Part per pod that held GPUs, joined by the labels that
observe/usage/labels.py reads. The primaries are asked for by range, the maximum of each minute, page by page; of
several that speak of one GPU the highest counts. Prometheus does not tell whose pod it was above the pod, so that every
pod stands alone, and is taken for training where it has several GPUs, else for batch work. A name that comes back on
other GPUs (a StatefulSet's pod) is another pod: nobody holds what a pod of that name left.
Invariant: bounded in series and in samples; a minute without a believable sample is not known.
"""

import math
from typing import Final

import msgspec
import numpy as np

from fallow.clients.prometheus import client
from fallow.model.units import HOUR, MINUTE, Instant
from fallow.model.usage import Signal
from fallow.observe.usage import labels, queries
from fallow.sim.traces.published import Trace, TraceError, TraceReport, lone_pod
from fallow.sim.world.lives import NONE, LifeSpan, Percents
from fallow.sim.world.nouns import Part

MOST_ROWS: Final = 20_000  # GPUs in pods' hands
MOST_SAMPLES: Final = 200_000_000
_PAGE: Final = 6 * HOUR
_HICCUP: Final = 5  # columns; samples come this late from a GPU that is held all the time
_ASKED: Final = tuple(metric for metric in queries.PRIMARIES if metric.signal is not Signal.last_kernel)
_OF_DEVICE: Final = frozenset({Signal.gpu_util, Signal.device_util})  # never valid on MIG


async def read_history(
    prometheus: client.Prometheus, start: Instant, end: Instant, *, now: Instant, honor_labels: bool = False
) -> Trace:
    """Raises TraceError where there is too much, or nothing; errors of clients/errors.py where the server fails."""
    columns, page = int((end - start) // MINUTE), round(_PAGE / MINUTE)
    if columns < 1:
        raise TraceError("the range to look at is empty: its end must come after its start")
    rows = _RowsByPod(LifeSpan(start, MINUTE, columns), honor_labels)
    for metric in _ASKED:
        promql = queries.peak(metric, [prometheus.selector(metric.name, metric.matcher)], rows.by(metric), MINUTE)
        for first in range(0, columns, page):
            last = min(first + page, columns) - 1
            answer = await prometheus.query_range(
                promql, start + first * MINUTE, start + last * MINUTE, MINUTE, row=msgspec.Raw, now=now
            )
            if answer.partial:
                part = f"only a part of {metric.name}: nothing is guessed from that"
                raise TraceError(f"Prometheus at {prometheus.address} gave {part}")
            rows.enter(metric, answer.rows)
    return rows.close()


class _RowsByPod:
    """Rows by pod and GPU, filled page by page."""

    def __init__(self, span: LifeSpan, honor_labels: bool) -> None:
        facts, room = list[labels.Facts](), labels.LabelRoom()
        self._foreign = labels.LabelBook(labels.foreign(honor_labels), facts, room)
        self._own = labels.LabelBook(labels.OWN, facts, room)
        self._span, self._report = span, TraceReport()
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
                most = f"more than {self._count - 1} GPUs in pods' hands"
                raise TraceError(f"the range holds {most}: ask for a shorter one")
            held[gpu] = np.full(self._span.columns, NONE, np.uint8)
        return held[gpu]

    def _fill(self, row: Percents, line: client.RangeSeries[msgspec.Raw], metric: queries.GpuMetric) -> None:
        start, step = self._span.start, self._span.step
        columns = np.array([round((sample.at - start) / step) for sample in line.values], np.int64)
        values = queries.believe(np.array([_number(sample.value) for sample in line.values], np.float64), metric)
        is_good = ~np.isnan(values) & (columns >= 0) & (columns < len(row))
        self._report.left_out["no believable reading: not known"] += int((~is_good).sum())
        percents, at = np.floor(values[is_good] * 100 + 1e-6).astype(np.uint8), columns[is_good]
        row[at] = np.where(row[at] == NONE, percents, np.maximum(row[at], percents))

    def close(self) -> Trace:
        if not self._rows:
            raise TraceError("Prometheus holds no series of GPUs in pods' hands in this range")
        parts, percents = list[Part](), list[Percents]()
        for (namespace, pod), held in self._rows.items():
            every = list(held.values())
            for number, stay in enumerate(_find_stays(every), start=1):
                name = pod if number == 1 else f"{pod}#{number}"  # no pod can be called so
                rows = [_cut(every[place], stay) for place in sorted(stay.places)]
                percents += rows
                parts.append(lone_pod(
                    self._span, stay.first, stay.last, namespace, name, gpus=len(rows),
                    class_="training" if len(rows) > 1 else "batch", model=self._models[namespace, pod],
                ))
        return Trace(self._span, tuple(parts), np.stack(percents), self._report)


class _Stay(msgspec.Struct):
    """From when to when a pod spoke of these of its GPUs."""

    first: int
    last: int
    places: set[int]


def _find_stays(rows: list[Percents]) -> list[_Stay]:
    """GPUs that speak at one time are held together. Silence is no farewell: who speaks again of the same GPU, with
    none of other GPUs between, never left."""
    runs = sorted((first, last, place) for place, row in enumerate(rows) for first, last in _find_runs(row))
    stays: list[_Stay] = []
    for first, last, place in runs:
        if stays and first <= stays[-1].last:
            stays[-1].places.add(place)
            stays[-1].last = max(stays[-1].last, last)
        else:
            stays.append(_Stay(first, last, {place}))
    joined = stays[:1]
    for stay in stays[1:]:
        if joined[-1].places.isdisjoint(stay.places):
            joined.append(stay)
        else:
            joined[-1] = _Stay(joined[-1].first, stay.last, joined[-1].places | stay.places)
    return joined or [_Stay(0, 0, set(range(len(rows))))]


def _find_runs(row: Percents) -> list[tuple[int, int]]:
    known = np.flatnonzero(row != NONE)
    if not len(known):
        return []
    runs = np.split(known, np.flatnonzero(np.diff(known) > _HICCUP) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs]


def _cut(row: Percents, stay: _Stay) -> Percents:
    cut = np.full(len(row), NONE, np.uint8)
    cut[stay.first:stay.last + 1] = row[stay.first:stay.last + 1]
    return cut


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
