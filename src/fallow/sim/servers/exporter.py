"""The exporters of a pretend cluster: one HTTP server that answers for every dcgm-exporter, each at its own port.

In: a World. Out: pages as dcgm.py writes them, of what the GPUs did since the instant at which the same node was last
asked. A node whose exporter is silent, or that is lost, answers 503; one that zero-fills tells 0 in its profiling
counters, the truth elsewhere.
Invariant: what a GPU did between two reads is in the later one; a page is of one instant, the `now`, and whoever asks
at the same instant is shown the same. Of a GPU of which a trace does not know what it did there is no line: a gap in
what was measured is a gap here, and never a 0.
"""

import math
import socket
from collections.abc import Sequence

import msgspec
import numpy as np
from aiohttp import web

from fallow.model import gpus
from fallow.model.units import Instant
from fallow.model.usage import Floats
from fallow.sim.servers import dcgm
from fallow.sim.world import lives
from fallow.sim.world.nouns import MIG_PROFILE, SHARED, Fault, SimNode
from fallow.sim.world.world import World

HOST = "127.0.0.1"
IDLE_SHARE = 0.2  # of its rated power that a board draws which holds a context and does nothing
UNRATED_WATTS = 300.0  # of a model that nobody knows
UNRATED_GIB = 40.0
HELD_SHARE = 0.3  # of the memory: a model and its context, taken at the start and kept


class _LastRead(msgspec.Struct):
    """What the last read of a node left behind."""

    column: int  # first that was not shown yet
    at: Instant
    joules: list[float]  # per GPU


def rate(model: str) -> float:
    """The power at full load, in watts."""
    known = gpus.find(model)
    return float(known.watts) if known else UNRATED_WATTS


def size(model: str, profile: str = "") -> float:
    """The memory of a GPU, or of an instance of it, in MiB."""
    known = gpus.find(model)
    instance = known.mig.find(profile) if known and known.mig and profile else None
    return 1024.0 * ((instance.memory_gib if instance else None) or (known.memory_gib if known else UNRATED_GIB))


class ExporterServer:
    """One port per node: an exporter is known by its address."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pages: dict[str, dcgm.DcgmPage] = {}
        self._last: dict[str, _LastRead] = {}
        for node in world.nodes.values():
            self._meet(node)
        self._nodes: dict[int, str] = {}  # by port
        self._held: dict[str, tuple[int, tuple[dcgm.Hold, ...]]] = {}
        self._shown: dict[str, tuple[tuple[float, ...], dcgm.PageValues]] = {}  # by node: of which moment, and what
        self._runner: web.AppRunner | None = None

    async def start(self) -> dict[str, int]:
        """The port of each node's exporter."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        return {node.name: await self.open(node) for node in self._world.nodes.values()}

    async def open(self, node: SimNode) -> int:
        """Of a node that has come: its port."""
        assert self._runner is not None
        if node.name not in self._pages:
            self._meet(node)
        listener = socket.create_server((HOST, 0))
        port: int = listener.getsockname()[1]
        self._nodes[port] = node.name
        await web.SockSite(self._runner, listener).start()
        return port

    def _meet(self, node: SimNode) -> None:
        self._pages[node.name] = dcgm.DcgmPage(node.name)
        self._last[node.name] = _LastRead(self._world.taken, self._world.now, [1e6] * node.gpus)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        listening = request.transport.get_extra_info("sockname") if request.transport else ("", 0)
        node = self._world.nodes[self._nodes[listening[1]]]
        shown = self.measure(node)
        if shown is None:
            return web.Response(status=503, text="the exporter does not answer")
        page = self._pages[node.name].render(shown)
        return web.Response(body=page, content_type="text/plain", charset="utf-8")

    def measure(self, node: SimNode) -> dcgm.PageValues | None:
        """What the page of a node shows, and from here on the time since; None while it shows nothing."""
        silent = (self._world.strikes(fault, node.name) for fault in (Fault.exporter_silent, Fault.node_lost))
        if not node.there or any(silent):
            return None
        world, lies = self._world, self._world.strikes(Fault.exporter_zero, node.name)
        moment = world.now, world.taken, world.pods_version, lies
        if node.name not in self._shown or self._shown[node.name][0] != moment:
            self._shown[node.name] = moment, dcgm.make_values(*self._read(node), lies=lies)
        return self._shown[node.name][1]

    def _read(self, node: SimNode) -> tuple[Sequence[dcgm.Hold], list[dcgm.HoldReading]]:
        last, activity = self._last[node.name], self._activity(node)
        by_gpu = _add_up(activity.reshape(node.gpus, -1), is_shared=node.mode in SHARED)
        watts = (rate(node.model) * (IDLE_SHARE + (1.0 - IDLE_SHARE) * np.nan_to_num(by_gpu))).tolist()
        seconds = self._world.now - last.at
        joules = [before + power * seconds for before, power in zip(last.joules, watts, strict=True)]
        self._last[node.name] = _LastRead(self._world.taken, self._world.now, joules)
        visible = by_gpu if node.mode in SHARED else activity  # of a shared GPU nobody can tell who did it
        parts = len(visible) // node.gpus
        acts = {hold: float(visible[hold.gpu * parts + int(hold.instance or 0)]) for hold in self._holds(node)}
        readings = {
            hold: _read_hold(hold, act, watts[hold.gpu], joules[hold.gpu])
            for hold, act in acts.items() if not math.isnan(act)
        }
        return list(readings), list(readings.values())

    def _activity(self, node: SimNode) -> Floats:
        """The most that each slot did since the last read, 0-1; nan = its pod runs, and nobody knows what it did."""
        world, since = self._world, self._last[node.name].column
        first = max(min(since, world.taken - 1), world.taken - world.span.columns, 0)
        columns = np.arange(first, world.taken) % world.span.columns
        seats = world.seat_at[node.first : node.first + node.slots]
        if not columns.size:
            return np.zeros(node.slots)
        done = world.done[np.ix_(np.maximum(seats, 0), columns)]
        is_known, is_used = done != lives.NONE, (seats >= 0) & world.running[np.maximum(seats, 0)]
        most = np.where(is_known, done, 0).max(axis=1) / 100.0
        is_told = is_known.all(axis=1) | (most > 0)  # of a silence with a hole in it nobody says that it was one
        return np.where(seats >= 0, np.where(is_used & ~is_told, np.nan, most), 0.0)

    def _holds(self, node: SimNode) -> Sequence[dcgm.Hold]:
        """Who has what; the same again while no pod of the world changed."""
        version, holds = self._held.get(node.name, (-1, ()))
        if version != self._world.pods_version:
            holds = tuple(self._find_holds(node))
            self._held[node.name] = self._world.pods_version, holds
        return holds

    def _find_holds(self, node: SimNode) -> Sequence[dcgm.Hold]:
        found = [self._hold(slot) for slot in range(node.first, node.first + node.slots)]
        if node.mode not in SHARED:
            return found
        shares = [hold for hold in found if hold.pod]
        taken = {hold.gpu for hold in shares}
        free = {hold.gpu: msgspec.structs.replace(hold, vgpu="") for hold in found if hold.gpu not in taken}
        return [*shares, *free.values()]

    def _hold(self, slot: int) -> dcgm.Hold:
        (node, gpu, part), holder = self._world.device_of(slot), self._world.holder_of(slot)
        namespace, pod = (holder[0].namespace, holder[1].name) if holder else ("", "")
        is_mig, is_shared = node.mode == "mig", node.mode in SHARED
        return dcgm.Hold(
            gpu, self._world.uuids[slot], node.model.replace("-", " "), namespace, pod, str(part) if is_mig else "",
            profile=MIG_PROFILE if is_mig else "", vgpu=str(part) if is_shared else "",
        )


def _add_up(activity: Floats, *, is_shared: bool) -> Floats:
    """What each GPU did: pods that share one fill it together; of instances the busiest counts. nan: nobody knows."""
    if not is_shared:
        return np.asarray(np.fmax.reduce(activity, axis=1), np.float64)
    return np.where(np.isnan(activity).all(axis=1), np.nan, np.minimum(1.0, np.nansum(activity, axis=1)))


def _read_hold(hold: dcgm.Hold, activity: float, watts: float, joules: float) -> dcgm.HoldReading:
    memory = size(hold.model, hold.profile)
    used = round(memory * HELD_SHARE) if hold.pod else 0
    return dcgm.HoldReading(activity, float(used), memory - used, watts, joules)
