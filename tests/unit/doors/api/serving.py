"""The real server on loopback over a World of the tests, and a plain HTTP client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec
from starlette.requests import Request

from fallow import loop, settings, telemetry, verbs
from fallow.account import audit
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import packing
from fallow.decide.idle import plan as brain
from fallow.doors import listen
from fallow.doors.api import app, auth, editions
from fallow.doors.api import clusters as peering
from fallow.model import cluster, decision
from fallow.observe.cluster import mirror
from fallow.wiring import forecasts as forecasting
from fallow.wiring import peers


class StandingLoop:
    """What the API needs of a loop: the latest cycle, and health."""

    def __init__(self, now: float) -> None:
        self.ended: decision.Cycle | None = None
        self.health = loop.Health({name: loop.Pulse(60.0, 60.0, now) for name in ("idle", "prices")})
        self.health.synced = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset({"idle"})

    async def read(self, name: str) -> decision.Cycle | None:
        assert name == "idle"
        return self.ended

    def look_at(self, world: Any, mandate: Any, memory: decision.Memory | None = None, **said: Any) -> decision.Cycle:
        seen = world.snapshot(**said)
        plan = brain.make_plan(seen, mandate, memory or decision.Memory(), world.now)
        self.ended = decision.Cycle(plan, seen, (), "", 0.1)
        return self.ended


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, standing: StandingLoop, kept: audit.Audit) -> None:
        self.session, self.url, self.loop, self.kept = session, url, standing, kept

    async def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        async with self.session.request(method, self.url + path, headers=headers) as response:
            body = await response.read()
            is_json = response.content_type == "application/json" and body
            return response.status, msgspec.json.decode(body) if is_json else body, response.headers

    async def get(self, path: str) -> Any:
        status, body, _ = await self.ask(path)
        assert status == 200, (path, body)
        return body


async def only_from_here(request: Request) -> None:
    auth.check_from_here(request)


async def nothing(*asked: Any) -> dict[str, Any]:
    """A source that measured nothing."""
    return {}


def make_forecasts(world: Any, ledger: Any = None) -> forecasting.Forecasts:
    """Over the pods of the world, of whom nobody keeps any."""

    async def see() -> cluster.Capacity:
        return cluster.Capacity((), tuple(world.pods), "", 0)

    async def keep() -> packing.WhyKept:
        return lambda pod: ""

    return forecasting.Forecasts(ledger, forecasting.RoomEyes(see, keep))


@contextlib.asynccontextmanager
async def serving(
    world: Any, mandate: Any, *, guard: Any = None, files: Any = None, draw: Any = None, clusters: tuple[str, ...] = (),
    suspects: Any = None, may_in: Any = None, books: Any = None, only_costs: bool = False, leader: Any = None,
    listener: Any = None, explainer: Any = None, forecasts: Any = None, flags: Mapping[str, Any] | None = None,
    **said: Any,
) -> AsyncIterator[Client]:
    standing, kept = StandingLoop(world.now), audit.Audit(None)
    await kept.open()
    given = {"daemon_mode": True, "cluster": clusters, **(flags or {})}
    options = msgspec.structs.replace(settings.read_flags(given, {}), mandate=mandate)
    if world.workloads:
        standing.look_at(world, mandate, **said)
    told = editions.Editions(
        standing, options, lambda: world.now, kept=kept, draw=draw or nothing, suspects=lambda: suspects,  # type: ignore[arg-type]
    )
    blind = mirror.Mirror(kube.Api(config.Access(server="http://127.0.0.1:1", context="")))  # nothing is listed by it
    told.reach = verbs.Reach(blind, None, "", "")  # type: ignore[arg-type]
    told.books, told.explainer, told.forecasts = books, explainer, forecasts
    reads = app.Reads(editions=told, guard=guard or only_from_here, may_in=may_in, leader=leader)
    metrics, clock = telemetry.Telemetry(), lambda: world.now
    served = app.make_app(standing.health, metrics, clock, reads=reads, files=files or {})
    if only_costs:
        served = app.make_cost_app(standing.health, metrics, clock, reads)
    listener, server = listener or listen.open_listener(("127.0.0.1", 0)), app.Server(served)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    try:
        async with aiohttp.ClientSession() as session, peers.open_peers(options, patience=1.0) as doors:
            told.peers = peering.PeerSights(doors, lambda: world.now)
            yield Client(session, "http://{}:{}".format(*listener.getsockname()), standing, kept)
    finally:
        server.stop()
        await asyncio.wait_for(task, 5)
        listener.close()
        await kept.close()
