"""The ledger's bars: reports, size and writing, on a SQLite file and (by COPY) on a real PostgreSQL.

    python -m benchmarks ledger

Of sixteen pods four are alone, four and eight belong to one workload each, eight to a node: what a roll-up sums is a
workload's part of a node. The size is also told where every pod is alone. Every pod has four intervals a day (midnight,
and two idle times), every hour an energy, and every hour that is not idle a use. The collector of garbage is told that
what is there stays, as the daemon does. Times are the best of several, with our CPU time beside them where others may
have had the machine. PostgreSQL is left out, and that is said, where there is no server.
"""

import asyncio
import gc
import itertools
import pathlib
import random
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import figures
from fallow.account import ledger, ledger_postgres
from fallow.model import cost
from fallow.model.cost import (
    DAY,
    HOUR,
    WHOLE,
    CapacityType,
    CostBatch,
    CostKey,
    CostQuery,
    CostStep,
    Dims,
    Interval,
    Slice,
    SpendState,
)
from fallow.model.secret import Secret

BEGIN = 1_789_257_600
CUTS = (0, 5 * HOUR + 17, 9 * HOUR + 1234, 19 * HOUR + 59, DAY)
NAMESPACE = cost.read_dimension("namespace")


def slice_of(pod: int, state: SpendState = SpendState.used, life: int = 0, is_alone: bool = False) -> Slice:
    place = pod % 16
    owner = pod if is_alone or place < 4 else pod - place + (4 if place < 8 else 8)
    namespace = f"team-{owner % 40}"
    key = CostKey(
        cluster="prod", node=f"gpu-node-{pod // 8}", instance_type="p4d.24xlarge", region="eu-central-1",
        capacity_type=CapacityType.on_demand, gpu_model="A100-40GB", namespace=namespace, owner_kind="Deployment",
        owner_name=f"workload-{owner}", workload_type="training",
        dims=Dims(team=namespace, project=f"p{owner % 100}", labels=(("app", f"app-{owner % 300}"),)),
    )
    return Slice(
        gpu=f"GPU-{pod:08d}-c0de-4a11-9f3c-000000000000", slot="", share=WHOLE, key=key, state=state,
        rate_nano=4_096_250_000, price_id="aws-p4d-eu", pod_uid=f"{pod:08d}-{life:04d}-4000-8000-000000000000",
        pod_name=f"workload-{pod}-7d9f8b6c5-{life:05d}",
    )


def day_of(pods: int, day: int, chance: random.Random, is_alone: bool = False) -> Iterator[Interval]:
    for pod in range(pods):
        for number, (first, last) in enumerate(itertools.pairwise(CUTS)):
            hours, state = (last - 1) // HOUR - first // HOUR + 1, (SpendState.used, SpendState.held_idle)[number % 2]
            yield Interval(
                slice=slice_of(pod, state, is_alone=is_alone),
                t0=BEGIN + day * DAY + first, t1=BEGIN + day * DAY + last,
                use=() if number % 2 else tuple(chance.randrange(WHOLE) for _ in range(hours)),
                energy_mj=tuple(chance.randrange(10**9) for _ in range(hours)),
            )


async def fill(books: ledger.Ledger, pods: int, days: int, is_alone: bool = False) -> None:
    chance = random.Random(1)
    for day in range(days):
        await books.write(CostBatch(intervals=tuple(day_of(pods, day, chance, is_alone))), 1)
        await books.roll_up(BEGIN + (day + 1) * DAY, 1)


async def timed(books: ledger.Ledger, asked: CostQuery, times: int = 5) -> tuple[float, int]:
    """The best of some, with all names read once: a daemon's second report."""
    best, found = 1e9, 0
    for _ in range(times):
        began = time.perf_counter()
        found = len(await books.sums(asked))
        best = min(best, time.perf_counter() - began)
    return best, found


async def measure_reports(folder: pathlib.Path) -> None:
    for pods, bar in ((1000, 0.1), (5000, 1.0)):
        books = ledger.on_file(folder / f"week-{pods}.sqlite")
        await books.open()
        await fill(books, pods, 7)
        week = CostQuery(begin=BEGIN, end=BEGIN + 7 * DAY, by=(NAMESPACE,), step=CostStep.day)
        took, groups = await timed(books, week)
        what = f"{pods} pods, 7 days by namespace and day ({groups} sums)"
        figures.show(what, f"{took:.3f} s", f"{bar} s", took <= bar)
        odd = CostQuery(begin=BEGIN + 1234, end=BEGIN + 7 * DAY - 4321, by=(NAMESPACE,))
        took, _ = await timed(books, odd, 2)
        figures.show(f"{pods} pods, 7 days by namespace, odd seconds", f"{took:.3f} s", f"{bar} s", took <= bar)
        local = CostQuery(begin=BEGIN, end=BEGIN + 7 * DAY, by=(NAMESPACE,), step=CostStep.day, zone="Asia/Kolkata")
        took, _ = await timed(books, local, 2)
        print(f"         {pods} pods, days of a zone half an hour off (hours and intervals): {took:.3f} s")
        by_pod = CostQuery(begin=BEGIN, end=BEGIN + 7 * DAY, by=(cost.read_dimension("pod"),))
        took, _ = await timed(books, by_pod, 2)
        print(f"         {pods} pods, 7 days by pod (intervals alone): {took:.3f} s")
        await books.close()


async def measure_size(folder: pathlib.Path) -> None:
    for is_alone, days in ((False, 30), (True, 6)):
        name = f"month-{is_alone}.sqlite"
        books = ledger.on_file(folder / name)
        await books.open()
        began = time.perf_counter()
        await fill(books, 5000, days, is_alone)
        took = time.perf_counter() - began
        await books.close()
        size = size_of(folder, name) / 1e6
        if is_alone:
            print(f"         where every pod is alone, 30 days by what {days} are: {size / days * 30:.0f} MB")
        else:
            figures.show("5000 pods, 30 days, 4 intervals a day each", f"{size:.0f} MB", "200 MB", size <= 200)
            print(f"         written and summed up in {took:.0f} s")


def size_of(folder: pathlib.Path, name: str) -> int:
    return sum(each.stat().st_size for each in folder.glob(f"{name}*"))


async def measure_writing(folder: pathlib.Path) -> None:
    books = ledger.on_file(folder / "writing.sqlite")
    await books.open()
    now, lives = BEGIN, [0] * 10_000
    going = [Interval(slice=slice_of(pod), t0=BEGIN, t1=BEGIN, is_open=True) for pod in range(10_000)]
    for first in range(0, 10_000, 1000):
        await books.write(CostBatch(at=now, intervals=tuple(going[first : first + 1000])), 1)
    thousand, changes = list[tuple[float, float]](), list[tuple[float, float]]()
    for number in range(20):
        now += 60
        some = tuple(
            Interval(slice=one.slice, t0=one.t0, t1=now, is_open=True, use=(500_000,))
            for one in going[number % 10 * 1000 : number % 10 * 1000 + 1000]
        )
        thousand.append(await clocked(books, CostBatch(at=now, intervals=some)))
        fresh = [
            Interval(slice=slice_of(20_000 + number * 1000 + pod), t0=now - 50, t1=now, is_open=False)
            for pod in range(1000)
        ]
        await books.write(CostBatch(at=now, intervals=tuple(fresh)), 1)
    for number in range(50):
        now += 60
        written = list[Interval]()
        for pod in range(number * 100, number * 100 + 100):
            one = going[pod]
            lives[pod] += 1
            written.append(Interval(slice=one.slice, t0=one.t0, t1=now, is_open=False, use=(500_000,)))
            going[pod] = Interval(slice=slice_of(pod, life=lives[pod]), t0=now, t1=now, is_open=True)
            written.append(going[pod])
        changes.append(await clocked(books, CostBatch(at=now, intervals=tuple(written))))
    await books.close()
    for what, found, bar in (
        ("1000 intervals written in one commit", thousand, 10), ("100 changes among 10,000 GPU pods", changes, 20),
    ):
        taken, cpu = min(one for one, _ in found) * 1000, min(one for _, one in found) * 1000
        figures.show(what, f"{taken:.1f} ms ({cpu:.1f} ms of CPU)", f"{bar} ms", taken <= bar)


async def clocked(books: ledger.Ledger, batch: CostBatch) -> tuple[float, float]:
    """Seconds of the clock, and of our CPU."""
    gc.freeze()
    began, cpu = time.perf_counter(), time.process_time()
    done = await books.write(batch, 1)
    assert not done.refused
    return time.perf_counter() - began, time.process_time() - cpu


async def measure_copy(dsn: str) -> None:
    books = ledger_postgres.on_postgres(Secret(dsn))
    await books.open()
    chance, taken = random.Random(1), list[tuple[float, float]]()
    for day in range(5):
        batch = CostBatch(intervals=tuple(day_of(10_000, day, chance)))
        taken.append(await clocked(books, batch))
    await books.roll_up(BEGIN + 3 * DAY, 1)
    week = CostQuery(begin=BEGIN, end=BEGIN + 3 * DAY, by=(NAMESPACE,), step=CostStep.day)
    report, _ = await timed(books, week)
    await books.close()
    count = 4 * 10_000
    rate, cpu = count / min(one for one, _ in taken), min(one for _, one in taken) / count * 1e6
    what = "intervals written to PostgreSQL by COPY"
    figures.show(what, f"{rate:,.0f}/s ({cpu:.1f} µs of our CPU each)", "100,000/s", rate >= 100_000)
    print(f"         10,000 pods, 3 days by namespace and day from PostgreSQL: {report:.3f} s")


def run_on_postgres() -> None:
    from tests.real import build, databases

    if build.find("postgresql-server") is None:
        print("  left out: no PostgreSQL server (python -m tests.real.build postgresql-server)")
        return
    with databases.postgres() as server:
        asyncio.run(measure_copy(server.schema()))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        steps: tuple[Any, ...] = (measure_writing, measure_reports, measure_size)
        for step in steps:
            asyncio.run(step(folder))
    run_on_postgres()
