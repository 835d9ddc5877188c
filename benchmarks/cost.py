"""What costs take to be told: a 7-day report by namespace of 5,000 pods, and /allocation of 1,000, on a SQLite file
that is rolled up as a daemon's is; and one refresh of the metrics.

In seconds of CPU, threads included: what else the machine does does not count. The server is called as uvicorn calls
it, so that no client shares its core. Every request is of another moment, so that no answer is given twice; what the
ledger remembers of its roll-ups until the next one it remembers here, too. The first answer after a roll-up has to do
without, and the very first one of a daemon reads all names besides.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from starlette.requests import Request
from tests import builders, cost_scenes

from benchmarks import figures
from benchmarks.api import ask
from fallow import loop, settings, telemetry
from fallow.account import cost_gauges, ledger
from fallow.doors.answers import cost_books
from fallow.doors.answers.cost_books import CostBooks, SpendAsk
from fallow.doors.api import app, auth, editions
from fallow.model import windows
from fallow.model.cost import DAY, HOUR, CostBatch

DAYS, NOW = 7, int(builders.NOW) // DAY * DAY + 12 * HOUR + 1234


async def only_from_here(request: Request) -> None:
    auth.check_from_here(request)


async def fill(folder: str, pods: int) -> ledger.Ledger:
    made = ledger.on_file(Path(folder) / f"{pods}.sqlite")
    await made.open()
    for day in range(DAYS + 1, 0, -1):
        end = NOW // DAY * DAY - (day - 1) * DAY
        some = tuple(cost_scenes.crowd(pods, 1, end))
        await made.write(CostBatch(at=end, intervals=some, prices=(cost_scenes.price(),)), 1)
    today = tuple(cost_scenes.crowd_today(pods, NOW // DAY * DAY, NOW))
    await made.write(CostBatch(at=NOW, intervals=today), 1)
    await made.roll_up(NOW - 6 * HOUR, 1)
    return made


class Story:
    """What the API needs of a loop, where no cycle has ended."""

    health = loop.Health({})

    async def read(self, name: str) -> None:
        return None


async def measure() -> None:
    with tempfile.TemporaryDirectory() as folder:
        large = await fill(folder, 5000)
        await large.roll_up(NOW - 2 * HOUR, 1)
        span = windows.read_window("7d", NOW)
        took = []
        for _ in range(5):
            began = time.process_time()
            page = await cost_books.read_report(CostBooks(ledger=large), SpendAsk(span=span))
            took.append(time.process_time() - began)
        assert len(page.rows) == 500
        figures.show("7-day report by namespace, 5,000 pods", f"{median(took):.3f} s", "1 s", median(took) <= 1.0)
        began = time.process_time()
        await cost_gauges.read_levels(large, NOW, energy_since=NOW - HOUR)
        taken = time.process_time() - began
        figures.show("all metrics of costs anew, 5,000 pods", f"{taken:.3f} s, once a minute", "2 s", taken <= 2.0)
        await large.close()
        await allocate(folder)


async def allocate(folder: str) -> None:
    small = await fill(folder, 1000)
    options = settings.read_flags({"daemon_mode": True}, {})
    clock = iter(range(10**6))
    told = editions.Editions(Story(), options, lambda: NOW + next(clock) * 10.0)  # type: ignore[arg-type]
    told.books = CostBooks(ledger=small)
    reads = app.Reads(editions=told, guard=only_from_here)
    server = app.make_app(Story.health, telemetry.Telemetry(), time.monotonic, reads=reads, files={})
    taken: dict[str, list[float]] = {", the very first": [], ", the first after a roll-up": [], "": []}
    for number in range(20):
        what = "" if number % 4 else ", the first after a roll-up" if number else ", the very first"
        await small.roll_up(NOW - (6 - number // 4) * HOUR, 1)
        began = time.process_time()
        size = await ask(server, "window=7d&aggregate=namespace", "/allocation")
        taken[what].append((time.process_time() - began) * 1000)
    assert size > 10_000
    for what, some in taken.items():
        found = median(some)
        figures.show(
            f"/allocation?window=7d&aggregate=namespace, 1,000 pods{what}", f"{found:.0f} ms", "50 ms", found <= 50
        )
    await small.close()


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    main()
