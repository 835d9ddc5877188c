"""Real traces, read into a world: what GPUs did in a production service, who asked for GPUs on which nodes, how demand went up and down.

In: files as they were published (CSV, gzipped or not). Out: a Trace, nodes, pods or demand, each with a Report of what was left out.
Invariant: nothing is guessed. A row that cannot be read is named and counted; a sample that is missing, or that two rows tell differently,
is not known. Only a row that is out of order is used where it belongs.
"""

import csv
import gzip
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

import msgspec
import numpy as np

from fallow.model.units import DAY, MINUTE, Instant, Seconds
from fallow.sim.lives import NONE, Percents, Span
from fallow.sim.world import Node, Part, World

T = TypeVar("T")

GENTD26: Final = "gentd26_gpu_a.csv.gz"
HELIOS: Final = "helios_earth_a.csv.gz"
_MOST_EXAMPLES: Final = 10
_FURTHEST: Final = 31 * DAY  # from the middle of the trace; a stray timestamp must not stretch it to years
_MOST_SAMPLES: Final = 500_000_000


class TraceError(Exception):
    """One sentence: which file cannot be used, and why."""


class Report(msgspec.Struct):
    """What was read, and what was left out and why; the first few with their line."""

    rows: int = 0
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    examples: list[str] = msgspec.field(default_factory=list)

    def leave_out(self, why: str, line: int | None = None) -> None:
        self.left_out[why] += 1
        if line is not None and len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(f"line {line}: {why}")

    def __str__(self) -> str:
        told = ", ".join(f"{count} {why}" for why, count in sorted(self.left_out.items()) if count)
        return f"{self.rows} rows" + (f"; {told}" if told else "")


class Trace(msgspec.Struct):
    """What GPUs did: one row per GPU in the order of `parts`, one column per step, in whole percents; NONE = not known."""

    span: Span
    parts: tuple[Part, ...]
    percents: Percents
    report: Report


def to_world(trace: Trace, *, model: str = "NVIDIA-A100-SXM4-80GB", seed: int = 0, start_seconds: Seconds = 120.0) -> World:
    """Everybody has room: a trace does not tell how full its cluster was."""
    homes = [part for part in trace.parts for _ in range(part.pods)]
    nodes = [Node(f"node-{number:05}", part.model or model, part.gpus) for number, part in enumerate(homes)]
    return World(nodes, trace.parts, trace.percents, trace.span, seed=seed, start_seconds=start_seconds)


# ---- rows ---------------------------------------------------------------------------------------------------------------------


def _rows(path: Path, columns: tuple[str, ...], report: Report) -> Iterator[tuple[int, list[str]]]:
    """The wanted columns of every row that has them all, with its line."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="") if path.suffix == ".gz" else path.open(
            encoding="utf-8", errors="replace", newline=""
        ) as file:
            lines = csv.reader(file)
            places = _find_columns(next(lines, []), columns, path)
            for line in lines:
                report.rows += 1
                if len(line) <= max(places):
                    report.leave_out("too few fields", lines.line_num)
                else:
                    yield lines.line_num, [line[place] for place in places]
    except (OSError, EOFError, csv.Error) as problem:
        raise TraceError(f"the trace {path.name} cannot be read: {getattr(problem, 'strerror', None) or problem}") from problem


def _find_columns(header: list[str], columns: tuple[str, ...], path: Path) -> list[int]:
    missing = [name for name in columns if name not in header]
    if missing:
        raise TraceError(f"the trace {path.name} has no column {missing[0]!r}; its first line must name {', '.join(columns)}")
    return [header.index(name) for name in columns]


def _read(kind: Callable[[str], T], text: str, why: str, line: int, report: Report) -> T | None:
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


# ---- GenTD26: per pod, what its GPU did ---------------------------------------------------------------------------------------


def read_gentd26(path: Path) -> Trace:
    """One GPU per pod of one image-generation service; each pod stands as a service of its own."""
    report = Report()
    samples = _read_samples(path, report)
    times = [at for each in samples.values() for at, _, _ in each]
    if not times:
        raise TraceError(f"the trace {path.name} holds no sample that can be used")
    middle = median(times)
    samples = {pod: [each for each in found if _is_near(each, middle, report)] for pod, found in samples.items()}
    return arrange({pod: found for pod, found in samples.items() if found}, report, namespace="gentd26", class_="inference")


def _read_samples(path: Path, report: Report) -> dict[str, list[tuple[int, int, int]]]:
    """Of each pod: (timestamp, percent, line); NONE where the row says that it was not measured."""
    samples: dict[str, list[tuple[int, int, int]]] = {}
    for line, (pod, timestamp, duty) in _rows(path, ("pod", "timestamp", "duty_percent"), report):
        at = _read(int, timestamp, "timestamp is no whole number", line, report)
        if not pod:
            report.leave_out("no pod", line)
        elif at is not None:
            percent = _read(_percent, duty, "duty is no percentage", line, report) if duty else NONE
            report.left_out["without a duty: not known"] += not duty
            if percent is not None:
                samples.setdefault(pod, []).append((at, percent, line))
    return samples


def _is_near(sample: tuple[int, int, int], middle: float, report: Report) -> bool:
    if abs(sample[0] - middle) <= _FURTHEST:
        return True
    report.leave_out("timestamp is a month away from the rest", sample[2])
    return False


def arrange(samples: Mapping[str, list[tuple[int, int, int]]], report: Report, *, namespace: str, class_: str) -> Trace:
    """Samples in columns, as far apart as most of them are."""
    step = _find_step(samples)
    start = min(at for found in samples.values() for at, _, _ in found)
    columns = max((at - start) // step for found in samples.values() for at, _, _ in found) + 1
    if columns * len(samples) > _MOST_SAMPLES:
        raise TraceError(f"the trace has {len(samples)} pods over {columns} steps; {_MOST_SAMPLES} samples are the most")
    span = Span(float(start), float(step), columns)
    percents = np.full((len(samples), columns), NONE, np.uint8)
    parts = []
    for row, (pod, found) in enumerate(samples.items()):
        first, last = _fill(percents[row], found, start, step, report)
        begins, ends = span.start + first * step if first else None, span.start + (last + 1) * step if last + 1 < columns else None
        parts.append(Part(namespace, pod, class_=class_, life="trace", owner="machine", arrives_at=begins, ends_at=ends))
    return Trace(span, tuple(parts), percents, report)


def _find_step(samples: Mapping[str, list[tuple[int, int, int]]]) -> int:
    gaps = [int(gap) for found in samples.values() for gap in np.diff(sorted(at for at, _, _ in found)) if gap > 0]
    return round(median(gaps)) if gaps else round(MINUTE)


def _fill(row: Percents, found: list[tuple[int, int, int]], start: int, step: int, report: Report) -> tuple[int, int]:
    """Gives the first and the last column that were told of."""
    told: dict[int, int] = {}
    before = -math.inf
    for at, percent, line in found:
        column = round((at - start) / step)
        report.left_out["out of order: put in place"] += at < before
        before = max(before, at)
        if column not in told:
            told[column] = percent
        elif told[column] == percent:
            report.leave_out("told twice", line)
        else:
            report.leave_out("told twice, differently: not known", line)
            told[column] = NONE
    first, last = min(told), min(max(told), len(row) - 1)
    report.left_out["missing: not known"] += last - first + 1 - len(told)
    row[[min(column, len(row) - 1) for column in told]] = list(told.values())
    return first, last


# ---- Alibaba's openb: nodes, and pods that asked for GPUs ---------------------------------------------------------------------

_OPENB_MODELS: Final = {"V100M16": "V100-16GB", "V100M32": "V100-32GB"}  # G2 and G3 are not told


class AskingPod(msgspec.Struct, frozen=True):
    """A pod as it asked for GPUs. Its times are seconds since the trace began."""

    name: str
    gpus: int
    milli: int  # of each GPU
    models: tuple[str, ...]  # () = any
    qos: str
    created: Seconds
    deleted: Seconds | None


def read_openb_nodes(path: Path) -> tuple[list[Node], Report]:
    report, nodes = Report(), []
    for line, (name, gpus, model) in _rows(path, ("sn", "gpu", "model"), report):
        count = _read(int, gpus, "gpu is no whole number", line, report)
        if count is not None and count > 0 and name:
            nodes.append(Node(name, _OPENB_MODELS.get(model, model), count))
        elif count is not None:
            report.leave_out("no GPUs, or no name", line)
    return nodes, report


def read_openb_pods(path: Path) -> tuple[list[AskingPod], Report]:
    report, pods = Report(), []
    wanted = ("name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")
    for line, (name, gpus, milli, spec, qos, created, deleted) in _rows(path, wanted, report):
        count, share = (_read(int, text, "GPUs are no whole number", line, report) for text in (gpus, milli))
        begins = _read(float, created, "creation_time is no number", line, report)
        ends = _read(float, deleted, "deletion_time is no number", line, report) if deleted else None
        if count is None or share is None or begins is None or (deleted and ends is None):
            continue
        if count < 1:
            report.left_out["without a GPU"] += 1
            continue
        models = tuple(_OPENB_MODELS.get(model, model) for model in spec.split("|") if model)
        pods.append(AskingPod(name, count, min(share, 1000), models, qos, begins, ends))
    return pods, report


# ---- Helios: demand -----------------------------------------------------------------------------------------------------------


class Demand(msgspec.Struct):
    """How many GPUs a virtual cluster had, and how many were asked for (running and pending), minute by minute; -1 = not known."""

    name: str
    total: int
    wanted: np.ndarray[tuple[int], np.dtype[np.int64]]


def read_helios(path: Path) -> tuple[list[Demand], Report]:
    report = Report()
    rows: dict[str, dict[str, tuple[int, int]]] = {}
    for line, (name, at, *numbers) in _rows(path, ("vc", "time", "total_gpu", "running_gpu", "pending_gpu"), report):
        counts = [_read(_count, text, "GPUs are no whole number", line, report) for text in numbers]
        total, running, pending = counts
        if total is None or running is None or pending is None:
            continue
        if at in rows.setdefault(name, {}):
            report.leave_out("told twice", line)
        else:
            rows[name][at] = total, running + pending
    return [_line_up(name, minutes, report) for name, minutes in rows.items()], report


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _line_up(name: str, minutes: Mapping[str, tuple[int, int]], report: Report) -> Demand:
    """Minute after minute; where one is missing nothing is known of it."""
    places: dict[int, int] = {}
    for at, (_, wanted) in minutes.items():
        try:
            places[int(np.datetime64(at, "m").astype(np.int64))] = wanted
        except ValueError:
            report.leave_out("time is no time")
    if not places:
        raise TraceError(f"virtual cluster {name} has no minute that can be used")
    first, last = min(places), max(places)
    if (last - first) * MINUTE > 2 * _FURTHEST + 366 * DAY:
        raise TraceError(f"virtual cluster {name} spans {(last - first) // 1440} days; a year is the most")
    line = np.full(last - first + 1, -1, np.int64)
    line[[place - first for place in places]] = list(places.values())
    report.left_out["missing: not known"] += int((line < 0).sum())
    return Demand(name, max(total for total, _ in minutes.values()), line)


def demand_parts(demand: Demand, span: Span, *, first_minute: int = 0) -> list[Part]:
    """Jobs that together ask for as many GPUs as were asked for: a rise is a new job, a fall ends the oldest. What they do is not told
    in the trace; they stand as batch work that is busy. Unknown minutes change nothing."""
    parts: list[Part] = []
    open_jobs: list[tuple[int, Instant]] = []
    level = 0
    for minute in range(min(len(demand.wanted) - first_minute, int(span.columns * span.step // MINUTE))):
        wanted, now = int(demand.wanted[first_minute + minute]), span.start + minute * MINUTE
        while wanted > level:
            size = min(8, wanted - level)
            open_jobs.append((size, now))
            level += size
        while wanted >= 0 and open_jobs and level - open_jobs[0][0] >= wanted:
            size, began = open_jobs.pop(0)
            level -= size
            parts.append(_job(demand.name, len(parts), size, began, now))
    return parts + [_job(demand.name, len(parts) + number, size, began, None) for number, (size, began) in enumerate(open_jobs)]


def _job(name: str, number: int, gpus: int, began: Instant, ends: Instant | None) -> Part:
    return Part(f"helios-{name.lower()}", f"job-{number:05}", "Job", "batch", "batch", gpus=gpus, arrives_at=began, ends_at=ends)
