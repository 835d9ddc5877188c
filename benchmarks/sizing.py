"""How much memory and CPU a daemon takes, by the size of the cluster: the table of docs/operators/large.md.

The daemon is a process of its own, as it is shipped (dry-run, dashboard and audit in memory). The cluster is a pretend
one, served from here, with a GPU for each pod and four pods for each Deployment; Prometheus is a small server for which
three of ten GPUs did nothing, with three series of each GPU. Memory is the most that it ever had, by the kernel; CPU is
that of a cycle in which nothing changed, and of all before the second one.
`python -m benchmarks sizing` takes four sizes; as a module, `python -m benchmarks.sizing 1000`, one.
"""

import asyncio
import pathlib
import re
import sys
import tempfile
import time
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from benchmarks import cycle, questions
from fallow.sim.servers import objects
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server
from fallow.sim.world import nouns
from fallow.sim.world import world as worlds
from fallow.sim.world.lives import LifeSpan

SIZES = (1_000, 5_000, 10_000, 20_000, 50_000)  # GPU pods
REPLICAS, NODE = 4, 8
CYCLES, INTERVAL, LONGEST = 3, 15, 1200
FLAGS = ("-d", "-c", str(INTERVAL), "-t", "30", "--prometheus-auth", "none", "--log-format", "json",
         "--dashboard-auth", "email")


class Measured(cycle.Zeros):
    """Three of ten did nothing, by each of their signals; the others half of what they can."""

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        query, now = str(form["query"]), float(str(form["time"]))
        value = _value(query, now)
        labels = [{"job": "dcgm"}] if "by (job)(" in query else self._asked_for(query)
        found = [{"metric": each, "value": [now, _of(each, value)]} for each in labels] if value else []
        data = {"status": "success", "data": {"resultType": "vector", "result": found}}
        return web.Response(body=msgspec.json.encode(data), content_type="application/json")


def _value(query: str, now: float) -> str | None:
    named = next((metric for metric in questions.GPUS if metric in query), None)
    return cycle._value(query.replace(named, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), now) if named else None


def _of(labels: dict[str, str], value: str) -> str:
    return "0.5" if value == "0" and int(labels.get("number", "0")) % 10 >= 3 else value


def make_world(pods: int, now: float) -> worlds.World:
    span = LifeSpan(now - 90_000, 3600.0, 26)
    parts = [nouns.Part(f"team-{number % 50}", f"app-{number:05}", replicas=REPLICAS)
             for number in range(pods // REPLICAS)]
    nodes = [nouns.SimNode(f"node-{number:05}", gpus=NODE) for number in range(pods // NODE)]
    made = worlds.World(nodes, parts, np.zeros((pods, span.columns), np.uint8), span)
    made.advance(now - made.now)
    return made


def label(number: int, pod: Any, namespace: str) -> dict[str, str]:
    return {
        "Hostname": pod.node, "UUID": f"GPU-{number:08}", "exported_pod": pod.name, "exported_namespace": namespace,
        "modelName": "NVIDIA A10G", "job": "dcgm", "instance": pod.node, "number": str(number),
    }


async def measure(pods: int, folder: pathlib.Path) -> None:
    now = float(int(time.time()))
    world, store = make_world(pods, now), stores.Store(time.time)
    kubernetes = server.KubernetesServer(store, time.time)
    objects.Objects(world, store)
    await kubernetes.start()
    source = Measured([])
    every = [(each.part.namespace, pod) for each in world.workloads for pod in each.pods]
    source._labels = {pod.name: label(number, pod, space) for number, (space, pod) in enumerate(every)}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(msgspec.json.encode(kubernetes.kubeconfig()))
    try:
        await _run(pods, await source.serve(), kubeconfig)
    finally:
        await kubernetes.stop()


async def _run(pods: int, url: str, kubeconfig: pathlib.Path) -> None:
    port = cycle.free_port()
    at = f"127.0.0.1:{port}"
    where = ("--prometheus-url", url, "--kubeconfig", kubeconfig, "--metrics-addr", at, "--dashboard-addr", at)
    words = [cycle.BIN / "gpu-pruner", *FLAGS, *where]
    daemon = await asyncio.create_subprocess_exec(*map(str, words), stderr=asyncio.subprocess.DEVNULL)
    try:
        await _reach(port, 1)
        start = cycle.cpu_of(daemon.pid)
        first = await _reach(port, 2)
        before = cycle.cpu_of(daemon.pid)
        await asyncio.sleep(CYCLES * INTERVAL)  # without a question meanwhile: an answer is not part of a cycle
        last = await _reach(port, first + 1)
        spent = (cycle.cpu_of(daemon.pid) - before) / (last - first)
        peak, now = read_memory(daemon.pid)
        print(f"  {pods:>6,} GPU pods, {pods // NODE:,} nodes: {peak:.0f} MB at most, {now:.0f} MB then; "
              f"{start:.1f} CPU s until the first cycle ended, {spent:.2f} CPU s a cycle", flush=True)
    finally:
        daemon.terminate()
        await daemon.wait()


async def _reach(port: int, wanted: int) -> int:
    """A second apart: an answer costs the daemon something, too, and the pretend servers are slow."""
    deadline = time.monotonic() + LONGEST
    while (found := await asyncio.to_thread(cycle._cycles, port)) < wanted:
        if time.monotonic() > deadline:
            raise SystemExit(f"the daemon did not get through {wanted} cycles in {LONGEST} s")
        await asyncio.sleep(1)
    return found


def read_memory(pid: int) -> tuple[float, float]:
    """The most and the present, in MB."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    peak, now = (int(re.findall(rf"{key}:\s+(\d+) kB", text)[0]) / 1024 for key in ("VmHWM", "VmRSS"))
    return peak, now


def main() -> None:
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(measure(size, pathlib.Path(place)))


if __name__ == "__main__":
    main()
