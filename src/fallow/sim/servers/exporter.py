"""The exporters of a pretend cluster: one HTTP server that answers for the dcgm-exporter of every node, each at a port of its own.

In: a World. Out: pages as dcgm.py writes them, of what the GPUs did since the same node was last asked.
A node whose exporter is silent, or that is lost, answers 503; one that zero-fills tells 0 in its profiling counters, the truth elsewhere.
Invariant: what a GPU did between two reads is in the later one; a page tells of one instant of the world, its `now`.
"""

import socket
from collections.abc import Sequence

import msgspec
import numpy as np
from aiohttp import web

from fallow.model.units import Instant
from fallow.model.usage import Floats
from fallow.sim.servers import dcgm
from fallow.sim.world import lives
from fallow.sim.world import world as worlds

IDLE_WATTS, BUSY_WATTS = 62.0, 520.0  # of an accelerator that holds a context and does nothing, and at full load
HELD_MIB = 30_000.0  # frameworks take most of the memory at their start and keep it


class _Past(msgspec.Struct):
    """What the last read of a node left behind."""

    column: int  # first that was not told yet
    at: Instant
    joules: list[float]  # per GPU


class ExporterServer:
    """One port per node: an exporter is known by its address."""

    def __init__(self, world: worlds.World) -> None:
        self._world = world
        self._pages = {name: dcgm.DcgmPage(name) for name in world.nodes}
        self._pasts = {name: _Past(world.taken, world.now, [1e6] * node.gpus) for name, node in world.nodes.items()}
        self._nodes: dict[int, str] = {}  # by port
        self._held: dict[str, tuple[int, tuple[dcgm.Hold, ...]]] = {}
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1") -> dict[str, int]:
        """The port of each node's exporter."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        for name in self._world.nodes:
            listener = socket.create_server((host, 0))
            self._nodes[listener.getsockname()[1]] = name
            await web.SockSite(self._runner, listener).start()
        return {name: port for port, name in self._nodes.items()}

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        listening = request.transport.get_extra_info("sockname") if request.transport else ("", 0)
        node = self._world.nodes[self._nodes[listening[1]]]
        if self._is_struck(worlds.Fault.exporter_silent, node) or self._is_struck(worlds.Fault.node_lost, node):
            return web.Response(status=503, text="the exporter does not answer")
        return web.Response(body=self.read(node), content_type="text/plain", charset="utf-8")

    def _is_struck(self, fault: worlds.Fault, node: worlds.SimNode) -> bool:
        broken = self._world.faults.get(fault)
        return broken is not None and node.name in broken.nodes

    def read(self, node: worlds.SimNode) -> bytes:
        """The page of a node, and from here on the time since."""
        past, activity = self._pasts[node.name], self._activity(node)
        by_gpu = activity.reshape(node.gpus, -1).max(axis=1)  # of a shared GPU nobody can tell who did it
        watts = (IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * by_gpu).tolist()
        seconds = self._world.now - past.at
        joules = [before + power * seconds for before, power in zip(past.joules, watts, strict=True)]
        self._pasts[node.name] = _Past(self._world.taken, self._world.now, joules)
        holds = self._holds(node)
        told = by_gpu if node.mode == "time-sliced" else activity
        readings = [
            dcgm.HoldReading(float(told[_place(node, hold)]), HELD_MIB if hold.pod else 0.0, watts[hold.gpu], joules[hold.gpu])
            for hold in holds
        ]
        lie: dcgm.Lie = "zero" if self._is_struck(worlds.Fault.exporter_zero, node) else ""
        return self._pages[node.name].render(holds, readings, lie)

    def _activity(self, node: worlds.SimNode) -> Floats:
        """The most that each slot did since the last read, 0-1."""
        world, since = self._world, self._pasts[node.name].column
        first = max(min(since, world.taken - 1), world.taken - world.span.columns, 0)
        columns = np.arange(first, world.taken) % world.span.columns
        seats = world.seat_at[node.first : node.first + node.slots]
        if not columns.size:
            return np.zeros(node.slots)
        done = world.done[np.ix_(np.maximum(seats, 0), columns)]
        most = np.where(done == lives.NONE, 0, done).max(axis=1)
        return np.where(seats >= 0, most, 0) / 100.0

    def _holds(self, node: worlds.SimNode) -> Sequence[dcgm.Hold]:
        """Who has what; the same again while no pod of the world changed."""
        version, holds = self._held.get(node.name, (-1, ()))
        if version != self._world.pods_version:
            holds = tuple(self._find_holds(node))
            self._held[node.name] = self._world.pods_version, holds
        return holds

    def _find_holds(self, node: worlds.SimNode) -> Sequence[dcgm.Hold]:
        found = [self._hold(node, reading) for reading in self._world.readings(node.name)]
        if node.mode != "time-sliced":
            return found
        shares = [hold for hold in found if hold.pod]
        taken = {hold.gpu for hold in shares}
        free = {hold.gpu: msgspec.structs.replace(hold, vgpu="") for hold in found if hold.gpu not in taken}
        return [*shares, *free.values()]

    def _hold(self, node: worlds.SimNode, reading: worlds.SlotReading) -> dcgm.Hold:
        is_mig, is_shared = node.mode == "mig", node.mode == "time-sliced"
        return dcgm.Hold(
            reading.gpu, reading.uuid, node.model.replace("-", " "), reading.namespace, reading.pod,
            instance=str(reading.part) if is_mig else "", profile=worlds.MIG_PROFILE if is_mig else "",
            vgpu=str(reading.part) if is_shared else "",
        )


def _place(node: worlds.SimNode, hold: dcgm.Hold) -> int:
    """Where its activity stands: slot by slot, or by GPU where that is all there is."""
    parts = worlds.PARTS[node.mode]
    return hold.gpu * parts + int(hold.instance or 0) if node.mode == "mig" else hold.gpu
