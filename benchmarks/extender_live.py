"""The extender beside the real kube-scheduler: what a burst of pods takes with and without it, and how full the GPUs of
openb get through the live path, beside the engine's own replay and the scheduler alone.

    python -m benchmarks extender_live [burst|replay]

A real control plane with pretend kubelets. The burst: 1,000 pods of one GPU wait while the scheduler stands still, then
it goes on; the time is until the last is bound. The replay: every sixth node of openb and as many pods as ask for all
its GPUs, one after the other in the stored order. With the device plugin a node shares all of its GPUs or none, in
equal parts: every twelfth node of the cut shares them by two, and a pod that asks for half a GPU or less asks for such
a part; a larger share is asked for as a whole GPU. What does not fit is dropped.
"""

import asyncio
import functools
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
from typing import Any

from tests.real import cluster as clusters
from tests.real import replaying, test_extender, world

from benchmarks import figures
from benchmarks import packing as packing_bench
from fallow.decide import packing
from fallow.model import units
from fallow.model.capacity import Machine

NODES, PODS, SEED, EVERY = 1000, 1000, 42, 6
SHARING = 12  # every so many nodes share each GPU by two


def _bindings(plane: world.ControlPlane) -> list[float]:
    """When each pod was bound, by the API server's audit log: to ask it would be part of what is timed."""
    with plane.audit_log.open("rb") as log:
        lines = [json.loads(line) for line in log if b"/binding" in line and line.endswith(b"\n")]
    return [units.read_instant(each["stageTimestamp"]) or 0.0 for each in lines if each["verb"] == "create"]


def _cpu(pid: int) -> float:
    """Seconds so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _burst(folder: pathlib.Path, *, is_asked: bool) -> tuple[float, str]:
    """Seconds until the last was bound, and CPU seconds of who took part."""
    extender = test_extender.Extender(folder)
    options = world.Options(scheduler=test_extender.scheduler(extender.url)) if is_asked else world.PLAIN
    with world.running(options) as plane:
        async with clusters.Cluster(plane, folder) as cluster:
            rows = [
                Machine(name=f"gpu-{number:04}", product="A100", cpu=64_000, memory=262_144, gpus=8, pods=110)
                for number in range(NODES)
            ]
            await replaying.make_nodes(cluster, rows)
            if is_asked:
                await extender.start(cluster, "FGD")
            pid = int(plane._pid_file("kube-scheduler").read_text())
            os.kill(pid, signal.SIGSTOP)
            slots = asyncio.Semaphore(8)

            async def create(number: int) -> None:
                async with slots:
                    wish = replaying.Wish(packing.PackingPod("", 4000, 8192, 1, packing.GPU))
                    await cluster.create(replaying.make_manifest(f"p{number:04}", wish, cluster.namespace))

            await asyncio.gather(*map(create, range(PODS)))
            asked = [extender.process.pid] if extender.process is not None else []
            before = [_cpu(each) for each in (pid, *asked)]
            began = time.time()
            os.kill(pid, signal.SIGCONT)
            while len(_bindings(plane)) < PODS:  # noqa: ASYNC110
                await asyncio.sleep(1)
            took = max(_bindings(plane)) - began
            used = [_cpu(each) - was for each, was in zip((pid, *asked), before, strict=True)]
            extender.stop()
            cluster._made.clear()
            named = zip(("the scheduler", "the extender"), used, strict=False)
            return took, "CPU: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in named)


def burst() -> None:
    with tempfile.TemporaryDirectory() as folder:
        alone, used_alone = asyncio.run(_burst(pathlib.Path(folder), is_asked=False))
        print(f"  without the extender {alone:.1f} s; {used_alone}", flush=True)
        asked, used = asyncio.run(_burst(pathlib.Path(folder), is_asked=True))
    shown = f"{asked:.1f} s ({used}), without it {alone:.1f} s: {asked / alone:.2f} times"
    figures.show(f"{PODS} pods at once on {NODES} nodes", shown, "1.3 times", asked / alone <= 1.3)


def cut(every: int = EVERY, seed: int = SEED) -> tuple[list[Machine], list[replaying.Wish]]:
    """Nodes of openb, and the first pods of a stored order that ask for all of their GPUs."""
    trace = packing_bench.read("default")
    rows = [_make_machine(number, row) for number, row in enumerate(list(trace.nodes.values())[::every])]
    left, wishes = float(sum(row.gpus for row in rows)), list[replaying.Wish]()
    for pod in trace.arrive(seed).pods:
        if left <= 0:
            break
        is_part = pod.gpus == 1 and pod.milli * replaying.SHARES <= packing.GPU
        wishes.append(replaying.Wish(pod, is_part))
        left -= wishes[-1].gpus
    return rows, wishes


def _make_machine(number: int, row: packing.PackingNode) -> Machine:
    replicas = 1 if number % SHARING else replaying.SHARES
    return Machine(
        name=row.name, product=row.model, cpu=row.cpu, memory=row.memory, gpus=row.gpus, pods=110, replicas=replicas,
        is_renamed=replicas > 1,
    )


async def _replay(folder: pathlib.Path, policy: str = "", *, is_for_all: bool = False) -> tuple[float, str]:
    """GPUs in use at the end, and the uid of kube-system. `is_for_all`: pods without GPUs are asked about, too."""
    rows, wishes = cut()
    extender = test_extender.Extender(folder)
    managed: dict[str, Any] = {"managedResources": []} if is_for_all else {}
    options = world.Options(scheduler=test_extender.scheduler(extender.url, **managed)) if policy else world.PLAIN
    with world.running(options) as plane:
        async with clusters.Cluster(plane, folder) as cluster:
            start = functools.partial(extender.start, cluster, policy) if policy else None
            used = await replaying.live(cluster, rows, wishes, start)
            uid = (await cluster.get("v1", "Namespace", "kube-system"))["metadata"]["uid"]
            extender.stop()
            return used, uid


def replay() -> None:
    rows, wishes = cut()
    gpus = sum(row.gpus for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        alone, _ = asyncio.run(_replay(pathlib.Path(folder)))
        print(f"  without us {100 * alone / gpus:.2f} %", flush=True)
        some, _ = asyncio.run(_replay(pathlib.Path(folder), "FGD"))
        print(f"  asked about GPU pods alone {100 * some / gpus:.2f} %", flush=True)
        through, uid = asyncio.run(_replay(pathlib.Path(folder), "FGD", is_for_all=True))
    played = replaying.play(rows, wishes, uid)
    own, without, steered, partly = (100 * each / gpus for each in (played, alone, through, some))
    shown = (
        f"{steered:.2f} % through the scheduler, {own:.2f} % by the engine alone, {without:.2f} % without us; "
        f"{partly:.2f} % where it is asked about GPU pods alone"
    )
    held = abs(steered - own) <= 0.3 and steered - without >= 1
    figures.show(f"openb on {len(rows)} nodes, {len(wishes)} pods", shown, "0.3 points; 1 point more", held)


def main() -> None:
    wanted = sys.argv[1:] or ["burst", "replay"]
    for name in wanted:
        {"burst": burst, "replay": replay}[name]()


if __name__ == "__main__":
    main()
