"""The wire of the pretend Prometheus: /api/v1/query and query_range, as a real one answers them.

In: an ExporterServer whose pages it remembers, and the clock of those who ask. Out: instant vectors and matrices; for
every question that is not known, Prometheus's own shape of an error and 400, never an empty success.
While the pretend day plays, its clock is behind that of whoever asks: an instant that is asked for is that instant of
the day which is as far from its present, and all that is answered is in the time of the asker.
Invariant: all questions of one look (they ask for the same instant) are answered for one instant of the day.
"""

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
_MOST_POINTS: Final = 11_000


class PrometheusServer:
    def __init__(
        self, world: World, exporters: exporter.ExporterServer, ports: Mapping[str, int], clock: Callable[[], Instant]
    ) -> None:
        """`ports`: of the exporters; `clock`: of those who ask."""
        self.kept, self.url = samples.KeptSamples(ports), ""
        self._world, self._exporters, self._clock = world, exporters, clock
        self._behind: OrderedDict[Instant, Seconds] = OrderedDict()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_route("*", "/api/v1/query", self._answer)
        app.router.add_route("*", "/api/v1/query_range", self._answer_range)
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
            self.kept.note(node.name, self._exporters.measure(node), self._world.now)
        self.kept.sweep(self._world.now)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "POST"):
            return web.Response(status=405)
        given = {**request.query, **(await request.post() if request.method == "POST" else {})}
        try:
            return self._ask(str(given.get("query", "")), _read_time(given.get("time"), self._clock()))
        except promql.NotAsked as problem:
            return _refuse(400, "bad_data", f'invalid parameter "query": {problem}')
        except ValueError as problem:
            return _refuse(400, "bad_data", f'invalid parameter "time": {problem}')

    async def _answer_range(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "POST"):
            return web.Response(status=405)
        given = {**request.query, **(await request.post() if request.method == "POST" else {})}
        try:
            start, end, step = (float(str(given.get(name, ""))) for name in ("start", "end", "step"))
            if not (step > 0 and 0 <= (end - start) / step <= _MOST_POINTS):
                raise ValueError("exceeded maximum resolution of 11,000 points per timeseries")
            return self._ask_range(str(given.get("query", "")), start, end, step)
        except promql.NotAsked as problem:
            return _refuse(400, "bad_data", f'invalid parameter "query": {problem}')
        except ValueError as problem:
            return _refuse(400, "bad_data", f'invalid parameter "step": {problem}')

    def _ask_range(self, text: str, start: Instant, end: Instant, step: Seconds) -> web.Response:
        """The same question at every step."""
        question, behind = promql.read(text), self._clock() - self._world.now
        series: dict[frozenset[tuple[str, str]], list[tuple[float, str]]] = {}
        for number in range(int((end - start) // step) + 1):
            at = start + number * step
            for labels, value in question(promql.Asked(at - behind, self.kept, behind)):
                series.setdefault(frozenset(labels.items()), []).append((at, write_number(value)))
        result = [{"metric": dict(labels), "values": values} for labels, values in series.items()]
        return _respond(200, {"status": "success", "data": {"resultType": "matrix", "result": result}})

    def _ask(self, text: str, at: Instant) -> web.Response:
        behind = self._find_behind(at)
        vector = promql.read(text)(promql.Asked(at - behind, self.kept, behind))
        result = [{"metric": labels, "value": (at, write_number(value))} for labels, value in vector]
        return _respond(200, {"status": "success", "data": {"resultType": "vector", "result": result}})

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
    known = "this pretend Prometheus knows only /api/v1/query and query_range"
    return _refuse(404, "not_found", f"{request.path}: {known}")


def _read_time(text: Any, now: Instant) -> Instant:
    if not text:
        return now
    at = float(str(text))
    if not math.isfinite(at):
        raise ValueError(f"cannot parse {str(text)!r} to a valid timestamp")
    return at


def write_number(value: float) -> str:
    """As Prometheus does: no exponent, as many digits as it takes."""
    return np.format_float_positional(value, trim="-")


def _refuse(code: int, sort: str, words: str) -> web.Response:
    return _respond(code, {"status": "error", "errorType": sort, "error": words})


def _respond(code: int, body: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=code, content_type="application/json")
