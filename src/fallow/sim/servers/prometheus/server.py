"""The wire of the pretend Prometheus: /api/v1/query and query_range, as a real one answers them.

In: an ExporterServer whose pages it remembers, and the clock of those who ask. Out: instant vectors, and matrices step
by step; for every question that is not known, Prometheus's own shape of an error and 400, never an empty success.
While the pretend day plays, its clock is behind that of whoever asks: an instant that is asked for is that instant of
the day which is as far from its present, and all that is answered is in the time of the asker.
Invariant: all questions of one look (they ask for the same instant, or for ranges with one end) are answered for one
instant of the day.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from aiohttp import web

from fallow.model.units import Instant, Seconds
from fallow.sim.servers import exporter
from fallow.sim.servers.prometheus import promql, samples
from fallow.sim.world.world import World

_LOOKS: Final = 64  # whose instants are remembered
_LARGEST: Final = 4 * 1024 * 1024
_MOST_STEPS: Final = 11_000  # of a range, as in a real one


class PrometheusServer:
    def __init__(
        self, world: World, exporters: exporter.ExporterServer, kept: samples.KeptSamples, clock: Callable[[], Instant]
    ) -> None:
        """`kept`: what it remembers, and maybe another does, too; `clock`: of those who ask."""
        self.kept, self.url = kept, ""
        self._world, self._exporters, self._clock = world, exporters, clock
        self._behind: OrderedDict[Instant, Seconds] = OrderedDict()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_route("*", "/api/v1/query", self._answer)
        app.router.add_route("*", "/api/v1/query_range", self._answer)
        app.router.add_get("/-/ready", _be_ready)
        app.router.add_route("*", "/{path:.*}", _know_nothing)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def scrape(self) -> None:
        """One round, at this instant of the world."""
        for node in self._world.nodes.values():
            if self.kept.follows(node.name):
                self.kept.note(node.name, self._exporters.measure(node), self._world.now)
            if not node.there:  # once more, which fails: then its target goes with its exporter
                self.kept.forget(node.name)
        self.kept.sweep(self._world.now)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "POST"):
            return web.Response(status=405)
        given = {**request.query, **(await request.post() if request.method == "POST" else {})}
        try:
            data = await (self._ask_range if request.path.endswith("_range") else self._ask)(given)
        except promql.NotAsked as problem:
            return _refuse(400, "bad_data", f'invalid parameter "query": {problem}')
        except ValueError as problem:
            return _refuse(400, "bad_data", f"invalid parameter {problem}")
        return _respond(200, {"status": "success", "data": data})

    async def _ask(self, given: Mapping[str, Any]) -> dict[str, Any]:
        at, question = _read_number(given, "time", self._clock()), promql.read(str(given.get("query", "")))
        behind = self._find_behind(at)
        vector = question(promql.Asked(at - behind, self.kept, behind))
        result = [{"metric": labels, "value": (at, write_number(value))} for labels, value in vector]
        return {"resultType": "vector", "result": result}

    async def _ask_range(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Step by step, both ends included; others have their turn between two steps."""
        question, steps = promql.read(str(given.get("query", ""))), _read_steps(given)
        behind, oldest = self._find_behind(steps[-1]), self.kept.oldest()
        rows: dict[frozenset[tuple[str, str]], list[tuple[Instant, str]]] = {}
        for at in steps:
            if at - behind < oldest:  # every question looks back
                continue
            for labels, value in question(promql.Asked(at - behind, self.kept, behind)):
                rows.setdefault(frozenset(labels.items()), []).append((at, write_number(value)))
            await asyncio.sleep(0)
        return {
            "resultType": "matrix", "result": [{"metric": dict(labels), "values": row} for labels, row in rows.items()]
        }

    def _find_behind(self, at: Instant) -> Seconds:
        """How far the world was behind when this instant was first asked for."""
        behind = self._behind.setdefault(at, self._clock() - self._world.now)
        self._behind.move_to_end(at)
        while len(self._behind) > _LOOKS:
            self._behind.popitem(last=False)
        return behind


async def _be_ready(request: web.Request) -> web.Response:
    return web.Response(text="Prometheus Server is Ready.\n")


async def _know_nothing(request: web.Request) -> web.Response:
    known = "/api/v1/query and /api/v1/query_range"
    return _refuse(404, "not_found", f"{request.path}: this pretend Prometheus knows only {known}")


def _read_number(given: Mapping[str, Any], name: str, usual: float = math.nan) -> float:
    text = str(given.get(name, ""))
    try:
        number = float(text) if text else usual
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f'"{name}": cannot parse {text!r} to a valid number')
    return number


def _read_steps(given: Mapping[str, Any]) -> list[Instant]:
    """The instants that a range asks for; at least one."""
    start, end, step = (_read_number(given, name) for name in ("start", "end", "step"))
    if end < start:
        raise ValueError('"end": end timestamp must not be before start time')
    if step <= 0:
        raise ValueError('"step": zero or negative query resolution step widths are not accepted')
    if (end - start) / step > _MOST_STEPS:
        raise ValueError(f'"step": exceeded maximum resolution of {_MOST_STEPS:,} points per timeseries')
    return [start + number * step for number in range(int((end - start) / step + 1e-9) + 1)]


def write_number(value: float) -> str:
    """As Prometheus does: no exponent, as many digits as it takes."""
    return np.format_float_positional(value, trim="-")


def _refuse(code: int, sort: str, words: str) -> web.Response:
    return _respond(code, {"status": "error", "errorType": sort, "error": words})


def _respond(code: int, body: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=code, content_type="application/json")
