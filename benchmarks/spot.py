"""Spot nodes: what a node's watch takes, and how soon a notice is heeded once the controller's own watch tells it.

    python -m benchmarks spot [watch|notice]

`watch`: `fallow spot-watch` as shipped, for a minute at its usual pace, against a metadata server on loopback.
`notice`: the story over its watches, on a real API server with two hundred nodes; the cloud is pretended. Timed from
the moment that the watch tells of the notice until the node is cordoned and the cloud was asked for a replacement, in
this order.
"""

import asyncio
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator

from aiohttp import web
from tests.real import cluster as clusters
from tests.real import product, scaling_scene, world
from tests.real.test_spot_watch import read_peak
from tests.unit.clients import loopback

from benchmarks import figures
from fallow import names
from fallow.model import units
from fallow.model.machines import Growth
from fallow.stories.turn import Turn

WATCHED, NODES, ROUNDS = 60.0, 200, 7
MOST_MB, MOST_CORE, MOST_BEYOND = 25, 0.002, 1.0


def _answer(asked: loopback.Asked) -> web.Response:
    return web.Response(text="tok") if asked.method == "PUT" else web.Response(status=404)


def _cpu(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def watch(folder: pathlib.Path) -> None:
    (folder / "token").write_text("nobody's")
    async with loopback.serve(_answer) as cloud:
        process = await asyncio.create_subprocess_exec(*[
            str(product.BIN / "fallow"), "spot-watch", "--node-name", "gpu-1", "--aws-metadata-url", cloud.url,
            "--gcp-metadata-url", cloud.url, "--azure-metadata-url", cloud.url, "--server", "http://127.0.0.1:1",
            "--metrics-addr", f"127.0.0.1:{product.free_port()}", "--token-file", str(folder / "token"),
        ], env={"PATH": os.environ["PATH"]})
        try:
            while not cloud.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)
            before = _cpu(process.pid)
            await asyncio.sleep(WATCHED)
            share, peak = (_cpu(process.pid) - before) / WATCHED, read_peak(process.pid) / 1024
        finally:
            process.terminate()
            await process.wait()
    figures.show("memory of a node's watch, at its most", f"{peak:.1f} MB", f"{MOST_MB} MB", peak <= MOST_MB)
    figures.show("its share of a core", f"{share:.2%}", f"{MOST_CORE:.1%}", share <= MOST_CORE)


@contextlib.asynccontextmanager
async def _following(scene: scaling_scene.Scene) -> AsyncIterator[asyncio.Event]:
    """`told`: the watch has told of a notice."""
    told = asyncio.Event()
    scene.fresh(wake=told.set)
    task = asyncio.create_task(scene.eyes.run())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _turn() -> Turn:
    return Turn(clock=time.time, monotonic=time.monotonic, budget=60.0, stopping=asyncio.Event(), leads=lambda: True)


class _TimedMachines(scaling_scene.PretendMachines):
    """`at`: when it was last asked for more."""

    at = 0.0

    async def grow(self, growth: Growth) -> None:
        self.at = time.monotonic()
        await super().grow(growth)


async def _time_one(scene: scaling_scene.Scene, node: str, told: asyncio.Event) -> tuple[float, float]:
    """Seconds beyond the watch, and CPU seconds."""
    assert isinstance(scene.cloud, _TimedMachines)
    await scene.story.tick(_turn())
    told.clear()
    now = time.time()
    said = {names.SPOT_WARNING: units.rfc3339(now), names.SPOT_TERMINATION: units.rfc3339(now + 120)}
    await scene.cluster.patch(await scene.cluster.get("v1", "Node", node), {"metadata": {"annotations": said}})
    await told.wait()
    began, cpu = time.monotonic(), time.process_time()
    await scene.story.tick(_turn())
    spent = time.process_time() - cpu
    assert scene.cloud.at > began, "nothing replaces it"
    assert (await scene.marks(node))[0], "it is not cordoned"
    return scene.cloud.at - began, spent


async def _are_bound(cluster: clusters.Cluster) -> bool:
    found = await cluster.pods("app=llm")
    return len(found) == ROUNDS and all(pod["spec"].get("nodeName") for pod in found)


async def notice(folder: pathlib.Path) -> None:
    with world.running(world.PLAIN) as plane:
        async with clusters.Cluster(plane, folder) as cluster, scaling_scene.open_scene(cluster) as scene:
            scene.cloud = _TimedMachines(cluster, **scene.cloud.targets)
            await scene.policy(maxNodes=1000, spotInstancePercentage=1, scaleUpCooldownSeconds=0)
            here = [await scene.node(f"n{number}", "spot") for number in range(ROUNDS)]
            await cluster.apply(scaling_scene.waiting("llm", ROUNDS, scene, annotations={names.SPOT_OK: "true"}))
            await cluster.wait_until(lambda: _are_bound(cluster), 120)
            for number in range(ROUNDS, NODES):  # nobody is put there
                other = await cluster.get("v1", "Node", await scene.node(f"n{number}", "spot"))
                await cluster.patch(other, {"spec": {"unschedulable": True}})
            scene.busy(**{f"n{number}": 0.9 for number in range(NODES)})
            async with _following(scene) as told:
                await asyncio.sleep(5)
                timed = [await _time_one(scene, name, told) for name in here]
            cluster._made.clear()
    took, spent = (sorted(each) for each in zip(*timed, strict=True))
    what = "a notice, from the watch to cordon and request of a replacement"
    figures.show(what, f"{took[ROUNDS // 2]:.2f} s", "1 s", took[ROUNDS // 2] <= MOST_BEYOND)
    print(f"         medians of {ROUNDS}, {NODES} nodes; the slowest {took[-1]:.2f} s, CPU {spent[ROUNDS // 2]:.2f} s")


def main() -> None:
    chosen = sys.argv[1:] or ["watch", "notice"]
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen:
            asyncio.run({"watch": watch, "notice": notice}[part](pathlib.Path(folder)))


if __name__ == "__main__":
    main()
