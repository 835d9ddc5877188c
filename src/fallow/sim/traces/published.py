"""Real traces, read into a world: what GPUs did in a production service, how demand went up and down (openb: `openb`).

In: files as they were published (CSV, gzipped or not). Out: a Trace or demand, and a TraceReport of what is left out.
Invariant: nothing is guessed. A row that cannot be read is named and counted; a sample that is missing, or that two
rows tell differently, is not known. Only a row that is out of order is used where it belongs.
"""

import csv
import datetime
import gzip
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np

from fallow.model.units import DAY, MINUTE, Instant
from fallow.sim.world.lives import NONE, LifeSpan, Percents
from fallow.sim.world.nouns import Part, SimNode
from fallow.sim.world.world import World

T = TypeVar("T")
Sample: TypeAlias = tuple[int, int, int]  # timestamp, percent, line

GENTD26: Final = "gentd26_gpu_a.csv.gz"
HELIOS: Final = "helios_earth_a.csv.gz"
GENTD26_COLUMNS: Final = ("pod", "timestamp", "duty_percent")
_ABOUT_POD: Final = ("namespace", "class", "model")  # columns that may be there too
_MEMORY: Final = "memory_used_bytes"
_CLASSES: Final = ("training", "inference", "notebook", "batch")
HELIOS_COLUMNS: Final = ("vc", "time", "total_gpu", "running_gpu", "pending_gpu")
_MODEL: Final = "NVIDIA-A100-SXM4-80GB"  # where a trace does not say
_MOST_EXAMPLES: Final = 10
_FURTHEST: Final = 31 * DAY  # from the middle of the trace; a stray timestamp must not stretch it to years
_MOST_SAMPLES: Final = 500_000_000
_MOST_GPUS: Final = 100_000  # of one virtual cluster
_WHOLE: Final = 0.95  # of a trace: a GPU that was measured for so much of it counts as there all the time


class TraceError(Exception):
    """One sentence: which file cannot be used, and why."""


class TraceReport(msgspec.Struct):
    """What was read, and what was left out and why; the first few with their line."""

    rows: int = 0
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    examples: list[str] = msgspec.field(default_factory=list)

    def leave_out(self, why: str, line: int | None = None, detail: str = "") -> None:
        """`detail`: what the example says instead of why."""
        self.left_out[why] += 1
        if line is not None and len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(f"line {line}: {detail or why}")

    def __str__(self) -> str:
        left_out = ", ".join(f"{count} {why}" for why, count in sorted(self.left_out.items()) if count)
        return f"{self.rows} rows" + (f"; {left_out}" if left_out else "")


class Trace(msgspec.Struct):
    """What GPUs did: a row per GPU in the order of `parts`, a column per step, in whole percents; NONE = not known."""

    span: LifeSpan
    parts: tuple[Part, ...]
    percents: Percents
    report: TraceReport


def to_world(trace: Trace, *, seed: int = 0) -> World:
    """Everybody has room: a trace does not tell how full its cluster was. Pods of one GPU share nodes of eight, unless
    larger ones could then find every node half full."""
    homes = [(part.model or _MODEL, part.gpus) for part in trace.parts for _ in range(part.pods)]
    if all(gpus == 1 for _, gpus in homes):
        counts = Counter(name for name, _ in homes)
        homes = [(name, min(8, counts[name] - first)) for name in counts for first in range(0, counts[name], 8)]
    nodes = [SimNode(f"node-{number:05}", name, gpus) for number, (name, gpus) in enumerate(homes)]
    return World(nodes, trace.parts, trace.percents, trace.span, seed=seed)


def read_lines(path: Path, report: TraceReport) -> Iterator[tuple[int, list[str]]]:
    """Every line, cut at commas, with its number; the report counts them."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            for line in lines:
                report.rows += 1
                yield lines.line_num, line
    except UnicodeDecodeError as problem:
        raise TraceError(f"the trace {path.name} is no UTF-8 text") from problem
    except (OSError, EOFError, zlib.error, csv.Error) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise TraceError(f"the trace {path.name} cannot be read: {why}") from problem


def read_header(path: Path) -> list[str]:
    """What the first line names, by which a trace is known."""
    return next(read_lines(path, TraceReport()), (0, list[str]()))[1]


def read_rows(
    path: Path, columns: tuple[str, ...], report: TraceReport, optional: tuple[str, ...] = ()
) -> Iterator[tuple[int, list[str]]]:
    """The wanted columns of every row that has them all, with its line. An optional one that is not there reads ""."""
    lines = read_lines(path, report)
    _, header = next(lines, (0, []))
    report.rows = 0
    if missing := [name for name in columns if name not in header]:
        known = f"its first line must name {', '.join(columns)}"
        raise TraceError(f"the trace {path.name} has no column {missing[0]!r}; {known}")
    indices = [header.index(name) if name in header else -1 for name in (*columns, *optional)]
    for number, line in lines:
        if len(line) <= max(indices):
            report.leave_out("too few fields", number)
        else:
            yield number, [line[index] if index >= 0 else "" for index in indices]


def read_as(kind: Callable[[str], T], text: str, why: str, line: int, report: TraceReport) -> T | None:
    try:
        return kind(text)
    except (ValueError, OverflowError):
        report.leave_out(why, line)
        return None


def _percent(text: str) -> int:
    """Whole percents, rounded down, so that what is under a threshold stays under it."""
    value = float(text)
    if not 0 <= value <= 105:
        raise ValueError(text)
    return min(math.floor(value), 100)


def read_gentd26(path: Path) -> Trace:
    """One GPU per pod; each pod stands for itself. Without a column that says so it is a service (GenTD26 is one)."""
    report = TraceReport()
    samples, about, peaks = _read_samples(path, report)
    times = [at for each in samples.values() for at, _, _ in each]
    if not times:
        raise TraceError(f"the trace {path.name} holds no sample that can be used")
    middle = median(times)
    samples = {pod: [each for each in found if _is_near(each, middle, report)] for pod, found in samples.items()}
    return _arrange({pod: found for pod, found in samples.items() if found}, about, peaks, report)


def _read_samples(
    path: Path, report: TraceReport
) -> tuple[dict[str, list[Sample]], dict[str, tuple[str, ...]], dict[str, float]]:
    """Samples by pod, NONE where the row says that it was not measured; what else its first row says of it; and the
    most memory that it had, in MiB, where that is told."""
    samples: dict[str, list[Sample]] = {}
    about: dict[str, tuple[str, ...]] = {}
    peaks: dict[str, float] = {}
    for line, (pod, timestamp, duty, *more, memory) in read_rows(
        path, GENTD26_COLUMNS, report, (*_ABOUT_POD, _MEMORY)
    ):
        at = read_as(int, timestamp, "timestamp is no whole number", line, report)
        if not pod:
            report.leave_out("no pod", line)
        elif at is not None:
            percent = read_as(_percent, duty, "duty is no percentage", line, report) if duty else NONE
            report.left_out["without a duty: not known"] += not duty
            if percent is not None:
                samples.setdefault(pod, []).append((at, percent, line))
                about.setdefault(pod, tuple(more))
                if memory.isdecimal():
                    peaks[pod] = max(peaks.get(pod, 0.0), int(memory) / 2**20)
    return samples, about, peaks


def _is_near(sample: Sample, middle: float, report: TraceReport) -> bool:
    if abs(sample[0] - middle) <= _FURTHEST:
        return True
    report.leave_out("timestamp is a month away from the rest", sample[2])
    return False


def _arrange(
    samples: Mapping[str, list[Sample]], about: Mapping[str, tuple[str, ...]], peaks: Mapping[str, float],
    report: TraceReport,
) -> Trace:
    """Samples in columns, as far apart as most of them are."""
    step, times = _find_step(samples), [at for found in samples.values() for at, _, _ in found]
    start, columns = min(times), (max(times) - min(times)) // step + 1
    if columns * len(samples) > _MOST_SAMPLES:
        has = f"{len(samples)} pods over {columns} steps"
        raise TraceError(f"the trace has {has}; {_MOST_SAMPLES} samples are the most")
    span = LifeSpan(float(start), float(step), columns)
    percents, parts = np.full((len(samples), columns), NONE, np.uint8), []
    for row, (pod, found) in enumerate(samples.items()):
        first, last = _fill(percents[row], found, start, step, report)
        namespace, class_, model = about[pod]
        class_ = class_ if class_ in _CLASSES else "inference"
        more = {"class_": class_, "model": model, "memory": peaks.get(pod)}
        parts.append(lone_pod(span, first, last, namespace or "gentd26", pod, **more))
    return Trace(span, tuple(parts), percents, report)


def lone_pod(span: LifeSpan, first: int, last: int, namespace: str, name: str, **more: Any) -> Part:
    """A pod that was there from its first to its last column, and that nobody waits to bring back."""
    begins, ends = span.start + first * span.step, span.start + (last + 1) * span.step
    return Part(
        namespace, name, life="trace", owner="machine", arrives_at=begins if first else None,
        ends_at=ends if last + 1 < span.columns else None, **more,
    )


def _find_step(samples: Mapping[str, list[Sample]]) -> int:
    gaps = [int(gap) for found in samples.values() for gap in np.diff(sorted(at for at, _, _ in found)) if gap > 0]
    return round(median(gaps)) if gaps else round(MINUTE)


def _fill(row: Percents, found: list[Sample], start: int, step: int, report: TraceReport) -> tuple[int, int]:
    """Gives the first and the last column that a sample speaks of."""
    known: dict[int, int] = {}
    before = -math.inf
    for at, percent, line in found:
        column = round((at - start) / step)
        report.left_out["out of order: put in place"] += at < before
        before = max(before, at)
        if column not in known:
            known[column] = percent
        elif known[column] == percent:
            report.leave_out("told twice", line)
        else:
            report.leave_out("told twice, differently: not known", line)
            known[column] = NONE
    first, last = min(known), min(max(known), len(row) - 1)
    report.left_out["missing: not known"] += last - first + 1 - len(known)
    row[[min(column, len(row) - 1) for column in known]] = list(known.values())
    return first, last


def whole_days(trace: Trace) -> list[int]:
    """Rows of GPUs that were measured nearly all the time."""
    return np.flatnonzero((trace.percents != NONE).mean(axis=1) >= _WHOLE).tolist()


def cut_lives(trace: Trace, span: LifeSpan, pods: int, gpus: int, rng: np.random.Generator) -> Percents:
    """What so many pods do: each as some GPU of the trace did, all from the same moment of it on, and on from its
    beginning where it ends. The GPUs of one pod do the same."""
    rows, shift = rng.choice(whole_days(trace), pods), float(rng.uniform(0, trace.span.columns * trace.span.step))
    columns = ((shift + span.step * np.arange(span.columns)) // trace.span.step).astype(np.int64) % trace.span.columns
    return np.repeat(trace.percents[rows][:, columns], gpus, axis=0)


class Demand(msgspec.Struct):
    """How many GPUs a virtual cluster had, and how many were asked for, minute by minute; -1 = not known.

    `first`: the minute since 1970 with which it begins.
    """

    name: str
    total: int
    first: int
    wanted: np.ndarray[tuple[int], np.dtype[np.int64]]


def read_helios(path: Path) -> tuple[list[Demand], TraceReport]:
    report = TraceReport()
    rows: dict[str, dict[int, tuple[int, int]]] = {}
    for line, (name, at, *numbers) in read_rows(path, HELIOS_COLUMNS, report):
        counts = [read_as(read_count, text, "GPUs are no whole number", line, report) for text in numbers]
        minute = read_as(_minute, at, "time is no time", line, report)
        total, running, pending = counts
        if total is None or running is None or pending is None or minute is None:
            continue
        if not name:
            report.leave_out("no virtual cluster", line)
        elif max(total, running + pending) > _MOST_GPUS:
            report.leave_out("more GPUs than any cluster has", line)
        elif minute in rows.setdefault(name, {}):
            report.leave_out("told twice", line)
        else:
            rows[name][minute] = total, running + pending
    if not any(rows.values()):
        raise TraceError(f"the trace {path.name} holds no minute that can be used")
    return [_line_up(name, minutes, report) for name, minutes in rows.items()], report


def _minute(text: str) -> int:
    """Since 1970; a time without a zone is UTC."""
    time = datetime.datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp() // MINUTE)


def read_count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _line_up(name: str, minutes: Mapping[int, tuple[int, int]], report: TraceReport) -> Demand:
    """Minute after minute; where one is missing nothing is known of it."""
    first, last = min(minutes), max(minutes)
    if (last - first) * MINUTE > 2 * _FURTHEST + 366 * DAY:
        raise TraceError(f"virtual cluster {name} spans {(last - first) // 1440} days; a year is the most")
    line = np.full(last - first + 1, -1, np.int64)
    line[[minute - first for minute in minutes]] = [wanted for _, wanted in minutes.values()]
    report.left_out["missing: not known"] += int((line < 0).sum())
    return Demand(name, max(total for total, _ in minutes.values()), first, line)


def choose_demands(demands: Sequence[Demand], nodes: int | None, *, seed: int = 0) -> list[Demand]:
    """Virtual clusters that fit on so many nodes of eight GPUs, first come by the seed; at least the smallest."""
    if nodes is None:
        return list(demands)
    order, room, chosen = np.random.default_rng([seed, 4]).permutation(len(demands)).tolist(), 8 * nodes, list[Demand]()
    for number in order:
        if demands[number].total <= room:
            room -= demands[number].total
            chosen.append(demands[number])
    return chosen or [min(demands, key=lambda one: one.total)]


def demand_parts(demand: Demand, span: LifeSpan) -> list[Part]:
    """Jobs that together ask for as many GPUs as were asked for: a rise is a new job, a fall ends the oldest.
    Those of eight GPUs are taken for training, the others for batch work. Unknown minutes change nothing."""
    parts, open_jobs, level = list[Part](), deque[tuple[int, Instant]](), 0
    for minute, wanted in enumerate(demand.wanted[: int(span.columns * span.step // MINUTE)].tolist()):
        now = span.start + minute * MINUTE
        while wanted > level:
            size = min(8, wanted - level)
            open_jobs.append((size, now))
            level += size
        while wanted >= 0 and open_jobs and level - open_jobs[0][0] >= wanted:
            size, began = open_jobs.popleft()
            level -= size
            parts.append(_job(demand.name, len(parts), size, began, now))
    return parts + [_job(demand.name, number, *job, None) for number, job in enumerate(open_jobs, len(parts))]


def _job(name: str, number: int, gpus: int, began: Instant, ends: Instant | None) -> Part:
    what, namespace = "training" if gpus == 8 else "batch", f"helios-{name.lower()}"
    return Part(namespace, f"job-{number:05}", "Job", what, what, gpus=gpus, arrives_at=began, ends_at=ends)
