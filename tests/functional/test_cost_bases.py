"""Both bases over what real GPUs did (GenTD26), booked hour by hour at one price."""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fallow.account.reports import Basis
from fallow.doors.answers import cost_books
from fallow.doors.answers.cost_books import CostBooks, SpendAsk
from fallow.model.cost import DAY, HOUR, UNIT, WHOLE, Interval
from fallow.model.windows import TimeSpan
from fallow.sim.traces import published as traces
from tests import cost_scenes
from tests.unit.sim import folder


def read_duty(path: Path) -> dict[str, dict[int, list[float]]]:
    """By pod and hour: what was measured."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["duty_percent"]:  # without one it is not known
                found[row["pod"]][int(row["timestamp"]) // HOUR].append(float(row["duty_percent"]) / 100)
    return found


def book(duty: dict[str, dict[int, list[float]]]) -> Iterator[Interval]:
    """A GPU each, from its first hour to its last; an hour without a sample is not measured."""
    for pod, hours in duty.items():
        begin, end = min(hours) * HOUR, (max(hours) + 1) * HOUR
        for one in cost_scenes.held(f"GPU-{pod}", begin, end, cost_scenes.key("lab", pod), rate=UNIT):
            used = tuple(
                round(sum(some) / len(some) * WHOLE) if (some := hours.get(hour)) else None
                for hour in range(one.t0 // HOUR, -(-one.t1 // HOUR))
            )
            yield msgspec.structs.replace(one, use=used)


@pytest.mark.accepts("cost", 11)
async def test_both_bases_of_a_real_trace_come_to_the_same_total():
    intervals = list(book(read_duty(folder.find(traces.GENTD26))))
    span = TimeSpan(min(one.t0 for one in intervals) // DAY * DAY, max(one.t1 for one in intervals))
    async with cost_scenes.opened(intervals, at=span.end) as ledger:
        books = CostBooks(ledger=ledger)
        held, used = [
            await cost_books.read_report(books, SpendAsk(span=span, basis=basis)) for basis in Basis
        ]
    assert held.total == used.total > 0
    assert held.gpu_hours == sum(one.t1 - one.t0 for one in intervals) / HOUR
    assert held.rows[0].use == pytest.approx(0.069, abs=0.004)
    assert used.rows[0].cost / used.total == pytest.approx(0.069, abs=0.004)
