"""A server with as many workloads as asked for, for what depends on their number.

    python -m tests.browser.many N

In: a number. Out: its address; the dashboard and the API over one cycle that does not change, until it is ended. There
is no cluster behind it, and nothing can be written. The address is said when the cycle is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Iterator

import msgspec
from starlette.requests import Request

from fallow import loop, settings, telemetry
from fallow.decide.idle import plan
from fallow.doors import listen as opening
from fallow.doors.api import app, bounds, editions, events
from fallow.model import decision
from fallow.model.units import HOUR
from tests import builders
from tests.browser import playing


class Story:
    """A loop whose only cycle has ended."""

    def __init__(self, cycle: decision.Cycle) -> None:
        self.health, self._cycle = loop.Health({}), cycle

    async def read(self, name: str) -> decision.Cycle:
        return self._cycle


def build(count: int) -> decision.Cycle:
    world = builders.World()
    for index in range(count):
        gpus = [builders.idle(HOUR + index) if index % 10 < 3 else builders.busy()] * 2
        world.workload(f"team-{index % 50}/job-{index}", gpus=gpus, pod={"node": f"node-{index % 400}"})
    seen = world.snapshot(version=1)
    nodes = {name: msgspec.structs.replace(node, gpus=32) for name, node in world.nodes.items()}
    seen = msgspec.structs.replace(seen, nodes=type(seen.nodes)(nodes))
    made = plan.make_plan(seen, builders.mandate(), decision.Memory(), world.now)
    return decision.Cycle(made, seen, (), "", 0.1)


async def everybody(request: Request) -> None:
    """May read."""


def listen() -> tuple[socket.socket, str]:
    listener = opening.open_listener(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


async def serve(count: int) -> None:
    listener, base = listen()
    options = settings.read_flags({"daemon_mode": True}, {})
    latest = editions.Editions(Story(build(count)), options, lambda: builders.NOW)  # type: ignore[arg-type]
    live = events.make_route(events.Changes(latest.revision), everybody)
    made = app.make_app(
        loop.Health({}), telemetry.Telemetry(), time.monotonic, routes=[live],
        reads=app.Reads(editions=latest, guard=everybody),
    )
    await latest.latest()
    print(base, flush=True)
    await app.Server(made, bounds.PageProtocol).serve([listener])


def start(said: pathlib.Path, count: int) -> int:
    """Its pid, once it has said its address."""
    return playing.hear(playing.spawn(said, "-m", "tests.browser.many", count), said, r"\n")


@contextlib.contextmanager
def serving(count: int) -> Iterator[str]:
    """Its address."""
    with (
        tempfile.TemporaryDirectory() as folder,
        playing.shared(pathlib.Path(folder), lambda said: start(said, count)) as base,
    ):
        yield base.strip()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
