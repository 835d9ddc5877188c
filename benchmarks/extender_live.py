"""The extender beside the real kube-scheduler: what a burst of pods takes with and without it, and how full the GPUs of
openb get through the live path, beside the engine's own replay and the scheduler alone.

    python -m benchmarks extender_live [burst|replay]

A real control plane with pretend kubelets. The burst: 1,000 pods of one GPU wait while their scheduler stands still,
then it goes on; the time is until the last is bound. One that asks and one that does not take turns on one cluster,
with as many requests a second. The replay: every sixth node of openb and as many pods as ask for all its GPUs, one
after the other in the stored order. With the device plugin a node shares all of its GPUs or none, in equal parts:
every twelfth node of the cut shares them by two, and a pod that asks for half a GPU or less asks for such a part; a
larger share is asked for as a whole GPU. What does not fit is dropped.
"""

import asyncio
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec
import yaml
from tests.real import build, replaying, test_extender, world
from tests.real import cluster as clusters

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


class _Scheduler:
    """A kube-scheduler of ours beside the cluster's own, for pods that name it."""

    def __init__(self, plane: world.ControlPlane, folder: pathlib.Path, name: str, config: dict[str, Any]) -> None:
        file, self.name = folder / f"{name}.yaml", name
        file.write_text(yaml.safe_dump({
            **config, "clientConnection": {"kubeconfig": str(plane.kubeconfig), **world.PACE},
            "leaderElection": {"leaderElect": False}, "profiles": [{"schedulerName": name}],
        }))
        words = [str(build.need("kube-scheduler")), "--config", str(file), "--secure-port", "0"]
        with (folder / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def let(self, *, run: bool) -> None:
        self.process.send_signal(signal.SIGCONT if run else signal.SIGSTOP)

    def stop(self) -> None:
        self.let(run=True)
        self.process.kill()
        self.process.wait(30)


class _Round(msgspec.Struct):
    """What bursts took until their last pod was bound, and who used how much of the CPU, in seconds."""

    took: float = 0.0
    scheduler: float = 0.0
    extender: float = 0.0

    def __str__(self) -> str:
        return f"{self.took:.1f} s (CPU: the scheduler {self.scheduler:.1f} s, the extender {self.extender:.1f} s)"


async def _make_pods(cluster: clusters.Cluster, prefix: str, scheduler: str) -> None:
    slots = asyncio.Semaphore(8)

    async def create(number: int) -> None:
        async with slots:
            wish = replaying.Wish(packing.PackingPod("", 4000, 8192, 1, packing.GPU))
            made = replaying.make_manifest(f"{prefix}-{number:04}", wish, cluster.namespace)
            made["spec"]["schedulerName"] = scheduler
            await cluster.create(made)

    await asyncio.gather(*map(create, range(PODS)))


async def _wait_for(plane: world.ControlPlane, bound: int) -> None:
    while len(_bindings(plane)) < bound:  # noqa: ASYNC110
        await asyncio.sleep(1)


async def _burst(folder: pathlib.Path, configs: dict[str, dict[str, Any]], extender: Any) -> dict[str, _Round]:
    """Of one scheduler after the other and back again, so that a machine that is busier for a while is so for both."""
    found = {name: _Round() for name in configs}
    with world.running(world.PLAIN) as plane:
        async with clusters.Cluster(plane, folder) as cluster:
            rows = [
                Machine(name=f"gpu-{number:04}", product="A100", cpu=64_000, memory=262_144, gpus=8, pods=110)
                for number in range(NODES)
            ]
            await replaying.make_nodes(cluster, rows)
            await extender.start(cluster, "FGD")
            schedulers = [_Scheduler(plane, folder, name, config) for name, config in configs.items()]
            asked = extender.process.pid
            try:
                for number, each in enumerate((*schedulers, *reversed(schedulers)), start=1):
                    for one in schedulers:
                        one.let(run=False)
                    await _make_pods(cluster, f"p{number}", each.name)
                    before, began = (_cpu(each.process.pid), _cpu(asked)), time.time()
                    each.let(run=True)
                    await _wait_for(plane, number * PODS)
                    seen = found[each.name]
                    seen.took += max(_bindings(plane)) - began
                    seen.scheduler += _cpu(each.process.pid) - before[0]
                    seen.extender += _cpu(asked) - before[1]
                    for one in schedulers:  # what was bound meanwhile is read by all
                        one.let(run=True)
                    print(f"  {each.name}: {seen}", flush=True)
                    await asyncio.sleep(2)
            finally:
                for each in schedulers:
                    each.stop()
                extender.stop()
            cluster._made.clear()
    return found


def burst() -> None:
    with tempfile.TemporaryDirectory() as folder:
        extender = test_extender.Extender(pathlib.Path(folder))
        shipped = test_extender.scheduler(extender.url)
        alone = {key: shipped[key] for key in ("apiVersion", "kind")}
        found = asyncio.run(_burst(pathlib.Path(folder), {"alone": alone, "asking": shipped}, extender))
    times = found["asking"].took / found["alone"].took
    shown = f"{found['asking']}, without it {found['alone']}: {times:.2f} times"
    figures.show(f"{PODS} pods at once on {NODES} nodes, twice", shown, "1.3 times", times <= 1.3)


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
