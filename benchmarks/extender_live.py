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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from tests.real import cluster as clusters
from tests.real import test_extender, world

from benchmarks import figures
from benchmarks import packing as packing_bench
from fallow.decide import packing
from fallow.decide.packing import tracking
from fallow.model import units
from fallow.model.capacity import Machine, Needs

NODES, PODS, SEED, EVERY = 1000, 1000, 42, 6
SHARING, SHARES = 12, 2  # every so many nodes share each GPU by so many
BOUND: Final = "bound"
KWOK = {"kwok.x-k8s.io/node": "fake"}


class Wish(msgspec.Struct, frozen=True):
    """What a pod asks for. `is_part`: of a GPU that is shared."""

    pod: packing.PackingPod
    is_part: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(
            cpu=self.pod.cpu, memory=self.pod.memory, products=self.pod.models, shared=int(self.is_part),
            gpus=0 if self.is_part else self.pod.gpus,
        )

    @property
    def gpus(self) -> float:
        return 1 / SHARES if self.is_part else self.pod.gpus


async def _make_node(cluster: clusters.Cluster, row: Machine) -> None:
    resource, count = ("nvidia.com/gpu", row.gpus) if row.replicas == 1 else (
        "nvidia.com/gpu.shared", row.gpus * row.replicas)
    has = {"cpu": f"{row.cpu}m", "memory": f"{row.memory}Mi", "pods": str(row.pods), resource: str(count)}
    labels = {
        "kubernetes.io/hostname": row.name, "nvidia.com/gpu.product": row.product,
        "nvidia.com/gpu.replicas": str(row.replicas),
    }
    named = {"name": row.name, "labels": labels, "annotations": KWOK}
    made = await cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": named})
    await cluster.patch(made, {"status": {"capacity": has, "allocatable": has}}, part="status")


async def _make_nodes(cluster: clusters.Cluster, rows: Sequence[Machine]) -> None:
    slots = asyncio.Semaphore(8)

    async def one(row: Machine) -> None:
        async with slots:
            await _make_node(cluster, row)

    await asyncio.gather(*map(one, rows))

    async def are_usable() -> bool:
        found = await cluster.objects("v1", "Node")
        return len(found) == len(rows) and not any(each["spec"].get("taints") for each in found)

    await cluster.wait_until(are_usable, timeout=300)


def _manifest(name: str, wish: Wish, namespace: str) -> dict[str, Any]:
    pod = wish.pod
    limits = {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}
    if wish.is_part:
        limits["nvidia.com/gpu.shared"] = "1"
    elif pod.gpus:
        limits["nvidia.com/gpu"] = str(pod.gpus)
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "example.invalid/app:1",
                                            "resources": {"limits": limits, "requests": limits}}]}
    if pod.models:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": pod.models[0]}
    metadata = {"name": name, "namespace": namespace, "labels": {"app": "bench"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _bindings(plane: world.ControlPlane) -> list[float]:
    """When each pod was bound, by the API server's audit log: to ask it would be part of what is timed."""
    with plane.audit_log.open("rb") as log:
        lines = [json.loads(line) for line in log if b"/binding" in line and line.endswith(b"\n")]
    return [units.read_instant(each["stageTimestamp"]) or 0.0 for each in lines if each["verb"] == "create"]


async def _burst(folder: pathlib.Path, *, is_asked: bool) -> float:
    extender = test_extender.Extender(folder)
    options = world.Options(scheduler=test_extender.scheduler(extender.url)) if is_asked else world.PLAIN
    with world.running(options) as plane:
        async with clusters.Cluster(plane, folder) as cluster:
            rows = [
                Machine(name=f"gpu-{number:04}", product="A100", cpu=64_000, memory=262_144, gpus=8, pods=110)
                for number in range(NODES)
            ]
            await _make_nodes(cluster, rows)
            if is_asked:
                await extender.start(cluster, "FGD")
            pid = int(plane._pid_file("kube-scheduler").read_text())
            os.kill(pid, signal.SIGSTOP)
            slots = asyncio.Semaphore(8)

            async def create(number: int) -> None:
                async with slots:
                    wish = Wish(packing.PackingPod("", 4000, 8192, 1, packing.GPU))
                    await cluster.create(_manifest(f"p{number:04}", wish, cluster.namespace))

            await asyncio.gather(*map(create, range(PODS)))
            began = time.time()
            os.kill(pid, signal.SIGCONT)
            while len(_bindings(plane)) < PODS:  # noqa: ASYNC110
                await asyncio.sleep(1)
            took = max(_bindings(plane)) - began
            extender.stop()
            cluster._made.clear()
            return took


def burst() -> None:
    with tempfile.TemporaryDirectory() as folder:
        alone = asyncio.run(_burst(pathlib.Path(folder), is_asked=False))
        print(f"  without the extender {alone:.1f} s", flush=True)
        asked = asyncio.run(_burst(pathlib.Path(folder), is_asked=True))
    shown = f"{asked:.1f} s, without it {alone:.1f} s: {asked / alone:.2f} times"
    figures.show(f"{PODS} pods at once on {NODES} nodes", shown, "1.3 times", asked / alone <= 1.3)


def cut(every: int = EVERY, seed: int = SEED) -> tuple[list[Machine], list[Wish]]:
    """Nodes of openb, and the first pods of a stored order that ask for all of their GPUs."""
    trace = packing_bench.read("default")
    rows = [_make_machine(number, row) for number, row in enumerate(list(trace.nodes.values())[::every])]
    left, wishes = float(sum(row.gpus for row in rows)), list[Wish]()
    for pod in trace.arrive(seed).pods:
        if left <= 0:
            break
        is_part = pod.gpus == 1 and pod.milli * SHARES <= packing.GPU
        wishes.append(Wish(pod, is_part))
        left -= wishes[-1].gpus
    return rows, wishes


def _make_machine(number: int, row: packing.PackingNode) -> Machine:
    replicas = 1 if number % SHARING else SHARES
    return Machine(
        name=row.name, product=row.model, cpu=row.cpu, memory=row.memory, gpus=row.gpus, pods=110, replicas=replicas,
        is_renamed=replicas > 1,
    )


def play(rows: Sequence[Machine], wishes: Sequence[Wish], uid: str, policy: str = "FGD") -> float:
    """By the engine alone, in GPUs. `uid`: of kube-system, from which the tie order comes."""
    ground = packing.lay_out(rows, uid)
    asked = [tracking.read_request(ground, wish.needs, SHARES if wish.is_part else 1) for wish in wishes]
    pods = [pod for pod in asked if pod is not None]
    assert len(pods) == len(wishes)
    engine = packing.Packer(ground.nodes, packing.prepare(policy, ground.nodes, pods), ground.order)
    for pod in pods:
        engine.arrive(pod)
    return engine.room.allocated / packing.GPU


async def live(
    cluster: clusters.Cluster, rows: Sequence[Machine], wishes: Sequence[Wish],
    start: Callable[[], Awaitable[None]] | None = None,
) -> float:
    """Through the scheduler, in GPUs."""
    await _make_nodes(cluster, rows)
    if start is not None:
        await start()
    bound = 0.0
    for number, wish in enumerate(wishes):
        made = await cluster.create(_manifest(f"p{number:05}", wish, cluster.namespace))
        found = await cluster.wait_until(functools.partial(_is_judged, cluster, made), timeout=60)
        bound += wish.gpus if found == BOUND else 0
    cluster._made.clear()
    return bound


async def _replay(folder: pathlib.Path, policy: str = "", *, is_for_all: bool = False) -> tuple[float, str]:
    """GPUs in use at the end, and the uid of kube-system. `is_for_all`: pods without GPUs are asked about, too."""
    rows, wishes = cut()
    extender = test_extender.Extender(folder)
    managed: dict[str, Any] = {"managedResources": []} if is_for_all else {}
    options = world.Options(scheduler=test_extender.scheduler(extender.url, **managed)) if policy else world.PLAIN
    with world.running(options) as plane:
        async with clusters.Cluster(plane, folder) as cluster:
            start = functools.partial(extender.start, cluster, policy) if policy else None
            used = await live(cluster, rows, wishes, start)
            uid = (await cluster.get("v1", "Namespace", "kube-system"))["metadata"]["uid"]
            extender.stop()
            return used, uid


async def _is_judged(cluster: clusters.Cluster, made: dict[str, Any]) -> str:
    found = await cluster.refresh(made)
    if found["spec"].get("nodeName"):
        return BOUND
    conditions = found.get("status", {}).get("conditions") or []
    if any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions):
        await cluster.delete(made, gracePeriodSeconds="0")
        return "dropped"
    return ""


def replay() -> None:
    rows, wishes = cut()
    gpus = sum(row.gpus for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        alone, _ = asyncio.run(_replay(pathlib.Path(folder)))
        print(f"  without us {100 * alone / gpus:.2f} %", flush=True)
        some, _ = asyncio.run(_replay(pathlib.Path(folder), "FGD"))
        print(f"  asked about GPU pods alone {100 * some / gpus:.2f} %", flush=True)
        through, uid = asyncio.run(_replay(pathlib.Path(folder), "FGD", is_for_all=True))
    own, without, steered, partly = (100 * each / gpus for each in (play(rows, wishes, uid), alone, through, some))
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
