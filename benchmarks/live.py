"""Five hundred open pages: what they take of a core while cycles change rows, and how soon each sees a change.

The pages are a process of its own, so that only our side is measured. Every two seconds a cycle changes twenty rows
(a daemon looks every three minutes): what is measured is far more than there is.
"""

import asyncio
import re
import statistics
import sys
import time

from starlette.applications import Starlette
from starlette.requests import Request

from benchmarks import figures
from fallow.doors import listen
from fallow.doors.api import app, bounds, events

_MADE = re.compile(rb'data: \{"at":([0-9.]+)\}')
PAGES, SECONDS, EVERY, ROWS = 500, 40, 2.0, 20


async def anybody(request: Request) -> None:
    """May read."""


async def serve() -> dict[str, float]:
    changes, listener = events.Changes(), listen.open_listener(("127.0.0.1", 0))
    server = app.Server(Starlette(routes=[events.make_route(changes, anybody)]), bounds.PageProtocol)
    serving = asyncio.create_task(server.serve([listener]))
    command = (sys.executable, "-m", "benchmarks.live", "pages", str(listener.getsockname()[1]))
    pages = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    while changes.listeners < PAGES:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    before, began = figures.usage_now()["cpu"], time.monotonic()
    while time.monotonic() - began < SECONDS:
        row = {"name": "w", "because": "x" * 200, "reason": "y" * 200, "at": time.time()}
        rows = [("workload", {**row, "uid": str(at)}) for at in range(ROWS)]
        changes.publish([*rows, ("cycle", {"at": time.time()})])
        await asyncio.sleep(EVERY)
    used = (figures.usage_now()["cpu"] - before) / (time.monotonic() - began)
    changes.close()
    said, _ = await pages.communicate()
    server.stop()
    await serving
    return {"core": used, "late": float(said)}


async def _open_page(port: int, late: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    while said := await reader.read(2**20):
        late.extend(time.time() - float(made) for made in _MADE.findall(said))
    writer.close()


async def read_pages(port: int) -> float:
    late: list[float] = []
    await asyncio.gather(*(_open_page(port, late) for _ in range(PAGES)))
    return statistics.quantiles(late, n=100)[98]


def main() -> None:
    found = asyncio.run(serve())
    core, late = found["core"], found["late"]
    figures.show(f"{PAGES} open pages, {ROWS} rows every {EVERY:.0f} s", f"{core:.1%} of a core", "10 %", core <= 0.10)
    figures.show("a change is on every page (99 of 100)", f"after {late:.2f} s", "2 s", late <= 2)


if __name__ == "__main__" and sys.argv[1] == "pages":
    print(asyncio.run(read_pages(int(sys.argv[2]))))
