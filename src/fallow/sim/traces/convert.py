"""Published traces into the formats that fallow reads (docs/traces.md): GenTD26 and Helios; openb is read as it is.

In: the files as their authors publish them. Out: lines of CSV, and a TraceReport of what was left out.
GenTD26: samples of one metric with the hash of a container's address. Helios: one row a job, and how many GPUs each
virtual cluster had on each day; of these, minute by minute, how many GPUs ran jobs and how many were waited for.
Invariant: as in published.py, nothing is guessed; a row that cannot be read is named and counted.
"""

import datetime
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fallow.model.units import DAY, MINUTE
from fallow.sim.traces import published
from fallow.sim.traces.published import TraceError, TraceReport

_MINUTES: Final = round(DAY / MINUTE)
_NOTHING: Final = ("", "None", "NULL")


def gentd26(duty: Path, report: TraceReport) -> Iterator[str]:
    """`pod_gpu_duty_cycle_anon.csv`: each container address stands for a pod."""
    yield ",".join(published.GENTD26_COLUMNS)
    for line, (pod, at, value) in published.read_rows(duty, ("container_ip", "timestamp_anon", "value"), report):
        time = published.read_as(_whole_seconds, at, "timestamp is no number", line, report)
        if pod in _NOTHING:
            report.leave_out("no container", line)
        elif time is not None:
            yield f"{pod},{time},{value}"


def _whole_seconds(text: str) -> int:
    return round(float(text))


def helios(jobs: Path, sizes: Path, start: datetime.date, days: int, report: TraceReport) -> Iterator[str]:
    """`cluster_log.csv` and `cluster_gpu_number.csv`: so many days from a day on."""
    totals = _read_sizes(sizes, start, days)
    changes = {name: np.zeros((2, days * _MINUTES + 1), np.int64) for name in totals}
    first = _minute(f"{start} 00:00:00")
    columns = ("vc", "gpu_num", "submit_time", "start_time", "end_time")
    for line, (name, gpus, *times) in published.read_rows(jobs, columns, report):
        count = published.read_as(published.read_count, gpus, "GPUs are no whole number", line, report)
        spots = _read_times(times, first, line, report)
        if count is not None and spots and name in totals:
            submitted, began, ended = (min(max(spot, 0), days * _MINUTES) for spot in spots)
            np.add.at(changes[name], ([0, 0, 1, 1], [began, ended, submitted, began]), [count, -count, count, -count])
    yield ",".join(published.HELIOS_COLUMNS)
    for name, change in changes.items():
        running, pending = change.cumsum(axis=1)
        for minute in range(days * _MINUTES):
            at = datetime.datetime.combine(start, datetime.time()) + datetime.timedelta(minutes=minute)
            yield f"{name},{at},{totals[name][minute // _MINUTES]},{running[minute]},{pending[minute]}"


def _read_times(texts: list[str], first: int, line: int, report: TraceReport) -> list[int]:
    """When it was submitted, began and ended, in minutes of the range; [] where that is not known. A job that never
    began waited until its end."""
    submitted, began, ended = texts
    texts = [submitted, ended if began in _NOTHING else began, ended]
    found = [published.read_as(_minute, text, "a time is no time", line, report) for text in texts]
    return [minute - first for minute in found if minute is not None] if None not in found else []


def _minute(text: str) -> int:
    time = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return math.floor(time.timestamp() / MINUTE)


def _read_sizes(path: Path, start: datetime.date, days: int) -> Mapping[str, list[int]]:
    """How many GPUs each virtual cluster had on each day; those that had any."""
    report = TraceReport()
    names = [name for name in published.read_header(path) if name not in ("date", "total")]
    wanted = {str(start + datetime.timedelta(days=day)): day for day in range(days)}
    found = dict[int, list[int]]()
    for line, (date, *cells) in published.read_rows(path, ("date", *names), report):
        counts = [published.read_as(published.read_count, cell, "no whole number", line, report) for cell in cells]
        if date in wanted and None not in counts:
            found[wanted[date]] = [count for count in counts if count is not None]
    if len(found) < days:
        raise TraceError(f"{path.name} tells of {len(found)} of the {days} days from {start} on")
    table = {name: [found[day][number] for day in range(days)] for number, name in enumerate(names)}
    return {name: line for name, line in table.items() if any(line)}
