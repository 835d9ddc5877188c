"""Requests a second of GET /api/v1/workloads with 2,000 workloads, whole and from the cache, on one core; what the API
adds to the memory of a daemon that looks at 5,000, and to its CPU while nobody looks (open pages: benchmarks/live.py).

Uncached: every request asks for something else, so that its answer is chosen, sorted and encoded anew. The server is
called as uvicorn calls it, so that no client shares its core.
"""

import asyncio
import gc
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from tests import builders
from tests.browser import many

from benchmarks import figures
from fallow import loop, settings, telemetry
from fallow.doors.api import app, auth, editions, events, live
from fallow.model import decision

WORKLOADS, MANY, SECONDS = 2_000, 5_000, 10


async def only_from_here(request: Request) -> None:
    auth.check_from_here(request)


def edit(cycle: decision.Cycle) -> editions.Editions:
    options = settings.read_flags({"daemon_mode": True}, {})
    return editions.Editions(many.Story(cycle), options, lambda: builders.NOW)  # type: ignore[arg-type]


def make(cycle: decision.Cycle) -> Any:
    reads = app.Reads(editions=edit(cycle), guard=only_from_here)
    return app.make_app(loop.Health({}), telemetry.Telemetry(), time.monotonic, reads=reads, files={})


async def ask(server: Any, query: str, path: str = "/api/v1/workloads") -> int:
    """One request as uvicorn hands it over; the bytes of its answer."""
    sent = list[dict[str, Any]]()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"localhost:8080")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080),
        "state": {},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await server(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    return sum(len(message.get("body", b"")) for message in sent)


async def rate(server: Any, queries: Sequence[str]) -> float:
    began = time.process_time()
    for query in queries:
        await ask(server, query)
    return len(queries) / (time.process_time() - began)


async def rest(cycle: decision.Cycle) -> float:
    """CPU a second of what tells live pages, with none open: the share of a core that every cycle is served with."""
    telling = asyncio.create_task(live.LiveTeller(edit(cycle), events.Changes()).run())
    began = time.process_time()
    await asyncio.sleep(SECONDS)
    used = time.process_time() - began
    telling.cancel()
    return used / SECONDS


def resident() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure() -> None:
    server = make(many.build(WORKLOADS))
    began = time.process_time()
    size = await ask(server, "view=all")
    first = time.process_time() - began
    figures.show("first answer after a cycle", f"{first:.3f} s of CPU", "1 s", first <= 1.0)
    for order in ("idle", "gpus"):
        await ask(server, f"view=all&sort={order}")
    uncached = await rate(server, [f"view=all&sort=idle&q=job-{number}" for number in range(300)])
    pages = [f"view=all&sort=gpus&limit={number}" for number in range(100, 300)]
    large = await rate(server, pages)
    figures.show("uncached, few rows of all", f"{uncached:,.0f} requests/s", "500", uncached >= 500)
    figures.show("uncached, pages of 100 to 300 rows", f"{large:,.0f} requests/s", "500", large >= 500)
    cached = await rate(server, ["view=all"] * 3000)
    figures.show(f"cached, {size / 1024:.0f} KiB each", f"{cached:,.0f} requests/s", "3,000", cached >= 3000)
    cycle = many.build(MANY)
    before = resident()
    server = make(cycle)
    for path in ("/api/v1/overview", "/api/v1/gpus", "/api/v1/nodes", "/api/v1/policies"):
        await ask(server, "", path)
    for view in ("all", "idle", "busy"):
        await ask(server, f"view={view}&limit=1000")
    more = resident() - before
    figures.show(f"memory with {MANY:,} workloads", f"{more:.0f} MB more", "60 MB", more <= 60)
    used = await rest(cycle)
    figures.show("added to a daemon that nobody looks at", f"{used:.3%} of a core", "0.1 %", used <= 0.001)


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    main()
