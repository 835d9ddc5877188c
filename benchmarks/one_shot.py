"""One look at a large cluster: 1,000 idle among 10,000 GPU pods, beside the Rust original.

The cluster is a pretend one, served from this process; Prometheus is a real one, with a day of the idle pods and an
hour of the busy ones. gpu-pruner runs once, as a program. What the original itself takes was measured once on a quiet
machine and is a constant here; its query is asked of the same Prometheus. Every figure is taken several times: the
least is what the program needs, the median what a busy machine makes of it.
"""

import asyncio
import pathlib
import statistics
import tempfile
import time
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks import cycle, figures, questions
from fallow.sim.servers import objects
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server
from fallow.sim.world import nouns
from fallow.sim.world import world as worlds
from fallow.sim.world.lives import LifeSpan

PODS, IDLE, REPLICAS, NODE = 10_000, 1_000, 4, 8
ORIGINAL_CPU, ORIGINAL_WALL = 0.72, 2.7  # seconds, at this size
RATIO_CPU, RATIO_WALL, RATIO_QUERY = 1.3, 1.0, 2.0
AHEAD = 900  # seconds of samples that are not there yet for who asks now: what is asked later is as fresh
ROUNDS = 5
FLAGS = ("-t", "30", "--prometheus-auth", "none")


class Took(NamedTuple):
    cpu: float
    wall: float
    prometheus: float


def make_world(now: float) -> worlds.World:
    """Deployments of four pods that began a day and an hour ago; who is busy is told by Prometheus alone."""
    span = LifeSpan(now - 90_000, 3600.0, 26)
    parts = [nouns.Part("bench", f"app-{number:04}", replicas=REPLICAS) for number in range(PODS // REPLICAS)]
    nodes = [nouns.SimNode(f"node-{number:04}", gpus=NODE) for number in range(PODS // NODE)]
    made = worlds.World(nodes, parts, np.zeros((PODS, span.columns), np.uint8), span)
    made.advance(now - made.now)
    return made


def series(world: worlds.World, *, idle: bool) -> questions.Series:
    pods = list(enumerate(pod for workload in world.workloads for pod in workload.pods))
    return [
        (questions.label(metric, number, pod.node, "bench", pod.name), quiet if idle else quiet + 0.5)
        for number, pod in pods[slice(IDLE) if idle else slice(IDLE, None)]
        for metric, quiet in questions.GPUS.items()
    ]


async def look_once(url: str, kubeconfig: pathlib.Path) -> Took:
    command = [cycle.BIN / "gpu-pruner", *FLAGS, "--prometheus-url", url, "--kubeconfig", kubeconfig]
    before, worked, began = figures.children_cpu(), questions.worked(url), time.monotonic()
    process = await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    wall = time.monotonic() - began
    if process.returncode != 0 or f" {IDLE} idle ({IDLE // REPLICAS} workloads" not in said.decode():
        raise SystemExit(f"gpu-pruner ended with {process.returncode}: {said.decode()[-800:]}")
    return Took(figures.children_cpu() - before, wall, questions.worked(url) - worked)


async def measure(url: str, folder: pathlib.Path, world: worlds.World, now: float) -> None:
    store = stores.Store(lambda: now)
    kubernetes = server.KubernetesServer(store, time.time)
    objects.Objects(world, store)
    await kubernetes.start()
    try:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_bytes(msgspec.json.encode(kubernetes.kubeconfig()))
        taken = [await look_once(url, kubeconfig) for _ in range(ROUNDS)]
        original = [questions.ask_as_the_original(url, now) for _ in range(ROUNDS)]
        show(taken, original)
    finally:
        await kubernetes.stop()


def show(taken: list[Took], original: list[float]) -> None:
    what = f"one-shot, {IDLE:,} idle among {PODS:,} GPU pods"
    cpu, wall, asked = ([one[index] for one in taken] for index in range(3))
    for name, values, of_original, most in (
        ("CPU", cpu, ORIGINAL_CPU, RATIO_CPU), ("wall", wall, ORIGINAL_WALL, RATIO_WALL),
        ("Prometheus", asked, min(original), RATIO_QUERY),
    ):
        bar, beside = most * of_original, f"{most:g} times"
        ratio = f"{min(values) / of_original:.1f} times the original's {of_original:.2f} s"
        told = f"{min(values):.2f} s of {name}, {ratio} (median {statistics.median(values):.2f})"
        figures.show(what, told, f"{bar:.2f} s, {beside}", min(values) <= bar)


def main() -> None:
    now = float(int(time.time()))
    with tempfile.TemporaryDirectory() as place, questions.prometheus(pathlib.Path(place)) as url:
        world = make_world(now)
        print(f"  writing a day of {IDLE:,} GPUs and an hour of {PODS - IDLE:,} ...", flush=True)
        idle, others = series(world, idle=True), [
            *series(world, idle=False), *questions.ups(world.nodes), *questions.hosts(world.nodes),
        ]
        questions.fill(url, idle, now - questions.DAY, now)
        questions.fill(url, others, now - 3600, now)
        questions.fill(url, [*idle, *others], now + questions.EVERY, now + AHEAD)
        asyncio.run(measure(url, pathlib.Path(place), world, now))
