"""Requests a second of GET /api/v1/workloads with 2,000 workloads, whole and from the cache, on one core; what the API
adds to the memory of a daemon that looks at 5,000.

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

import msgspec
from tests import builders

from benchmarks import figures
from fallow import loop, settings, telemetry
from fallow.decide.idle import plan
from fallow.doors.api import app, editions
from fallow.model import decision
from fallow.model.units import HOUR

WORKLOADS, MANY = 2_000, 5_000


class _Loop:
    def __init__(self, cycle: decision.Cycle) -> None:
        self.health, self._cycle = loop.Health([]), cycle

    async def read(self, name: str) -> decision.Cycle:
        return self._cycle


def build(count: int) -> decision.Cycle:
    world = builders.World()
    for index in range(count):
        gpus = [builders.idle(HOUR + index) if index % 10 < 3 else builders.busy()] * 2
        world.workload(f"team-{index % 50}/job-{index}", gpus=gpus, pod={"node": f"node-{index % 400}"})
    seen = world.snapshot(version=1)
    nodes = {name: msgspec.structs.replace(node, gpus=16) for name, node in world.nodes.items()}
    seen = msgspec.structs.replace(seen, nodes=type(seen.nodes)(nodes))
    return decision.Cycle(plan.make_plan(seen, builders.mandate(), decision.Memory(), world.now), seen, (), "", 0.1)


def make(cycle: decision.Cycle) -> Any:
    options = settings.read_flags({"daemon_mode": True}, {})
    latest = editions.Editions(_Loop(cycle), options, lambda: builders.NOW)  # type: ignore[arg-type]
    reads = app.Reads(editions=latest, guard=app.only_from_here)
    return app.make_app(loop.Health([]), telemetry.Telemetry(), time.monotonic, reads=reads, files={})


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


def resident() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure() -> None:
    server = make(build(WORKLOADS))
    began = time.process_time()
    size = await ask(server, "view=all")
    figures.show("first answer after a cycle", f"{time.process_time() - began:.3f} s of CPU", "1 s", True)
    for order in ("idle", "gpus"):
        await ask(server, f"view=all&sort={order}")
    uncached = await rate(server, [f"view=all&sort=idle&q=job-{number}" for number in range(300)])
    pages = [f"view=all&sort=gpus&limit={number}" for number in range(100, 300)]
    large = await rate(server, pages)
    figures.show("uncached, few rows of all", f"{uncached:,.0f} requests/s", "500", uncached >= 500)
    figures.show("uncached, pages of 100 to 300 rows", f"{large:,.0f} requests/s", "500", large >= 500)
    cached = await rate(server, ["view=all"] * 3000)
    figures.show(f"cached, {size / 1024:.0f} KiB each", f"{cached:,.0f} requests/s", "3,000", cached >= 3000)
    many = build(MANY)
    before = resident()
    server = make(many)
    for path in ("/api/v1/overview", "/api/v1/gpus", "/api/v1/nodes", "/api/v1/policies"):
        await ask(server, "", path)
    for view in ("all", "idle", "busy"):
        await ask(server, f"view={view}&limit=1000")
    more = resident() - before
    figures.show(f"memory with {MANY:,} workloads", f"{more:.0f} MB more", "60 MB", more <= 60)


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    main()
