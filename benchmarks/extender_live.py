"""The extender beside the real kube-scheduler: what a burst of pods takes with and without it, and how full the GPUs of
openb get through the live path, beside the engine's own replay and the scheduler alone.

    python -m benchmarks extender_live [burst|replay]

A real control plane with pretend kubelets. The burst: 1,000 pods of one GPU wait while the scheduler stands still, then
it goes on; the time is until the last is bound. The replay: every sixth node of openb and as many pods as ask for all
its GPUs, one after the other in a stored order; a share of a GPU is asked for as a whole one, because with the device
plugin nodes share all of their GPUs or none. What does not fit is dropped.
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

import msgspec
import numpy as np
from tests.real import cluster as clusters
from tests.real import test_extender, world

from benchmarks import figures
from benchmarks import packing as packing_bench
from fallow.decide import packing
from fallow.model import units

NODES, PODS, SEED, EVERY = 1000, 1000, 42, 6
KWOK = {"kwok.x-k8s.io/node": "fake"}


async def _make_node(cluster: clusters.Cluster, row: packing.PackingNode) -> None:
    has = {"cpu": f"{row.cpu}m", "memory": f"{row.memory}Mi", "pods": "110", "nvidia.com/gpu": str(row.gpus)}
    labels = {"kubernetes.io/hostname": row.name, "nvidia.com/gpu.product": row.model}
    named = {"name": row.name, "labels": labels, "annotations": KWOK}
    made = await cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": named})
    await cluster.patch(made, {"status": {"capacity": has, "allocatable": has}}, part="status")


async def _make_nodes(cluster: clusters.Cluster, rows: list[packing.PackingNode]) -> None:
    slots = asyncio.Semaphore(8)

    async def one(row: packing.PackingNode) -> None:
        async with slots:
            await _make_node(cluster, row)

    await asyncio.gather(*map(one, rows))

    async def are_usable() -> bool:
        found = await cluster.objects("v1", "Node")
        return len(found) == len(rows) and not any(each["spec"].get("taints") for each in found)

    await cluster.wait_until(are_usable, timeout=300)


def _manifest(name: str, pod: packing.PackingPod, namespace: str) -> dict[str, Any]:
    limits = {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}
    limits |= {"nvidia.com/gpu": str(pod.gpus)} if pod.gpus else {}
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "example.invalid/app:1",
                                            "resources": {"limits": limits, "requests": limits}}]}
    if len(pod.models) == 1:
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
            rows = [packing.PackingNode(f"gpu-{number:04}", "A100", 64_000, 262_144, 8) for number in range(NODES)]
            await _make_nodes(cluster, rows)
            if is_asked:
                await extender.start(cluster, "FGD")
            pid = int(plane._pid_file("kube-scheduler").read_text())
            os.kill(pid, signal.SIGSTOP)
            slots = asyncio.Semaphore(8)

            async def create(number: int) -> None:
                async with slots:
                    pod = packing.PackingPod("", 4000, 8192, 1, packing.GPU)
                    await cluster.create(_manifest(f"p{number:04}", pod, cluster.namespace))

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


def _cut(seed: int) -> tuple[list[packing.PackingNode], list[packing.PackingPod]]:
    trace = packing_bench.read("default")
    rows = list(trace.nodes.values())[::EVERY]
    wanted, arrivals = sum(row.gpus for row in rows), list[packing.PackingPod]()
    draw = np.random.default_rng(seed)
    sample = [msgspec.structs.replace(pod, milli=packing.GPU if pod.gpus else 0) for pod in trace.sample]
    sample = [pod for pod in sample if len(pod.models) <= 1]
    while sum(pod.gpus for pod in arrivals) < wanted:
        arrivals.append(sample[int(draw.integers(len(sample)))])
    return rows, arrivals


async def _replay(folder: pathlib.Path, policy: str | None, *, is_for_all: bool = False) -> tuple[int, str]:
    """GPUs in use at the end, and the uid of kube-system. `is_for_all`: pods without GPUs are asked about, too."""
    rows, arrivals = _cut(SEED)
    extender = test_extender.Extender(folder)
    managed: dict[str, Any] = {"managedResources": []} if is_for_all else {}
    options = world.Options(scheduler=test_extender.scheduler(extender.url, **managed)) if policy else world.PLAIN
    with world.running(options) as plane:
        async with clusters.Cluster(plane, folder) as cluster:
            await _make_nodes(cluster, rows)
            if policy:
                await extender.start(cluster, policy)
            for number, pod in enumerate(arrivals):
                made = await cluster.create(_manifest(f"p{number:05}", pod, cluster.namespace))
                await cluster.wait_until(functools.partial(_is_judged, cluster, made), timeout=60)
            pods = await cluster.pods("app=bench")
            used = sum(_gpus(each) for each in pods if each["spec"].get("nodeName"))
            uid = (await cluster.get("v1", "Namespace", "kube-system"))["metadata"]["uid"]
            extender.stop()
            cluster._made.clear()
            return used, uid


async def _is_judged(cluster: clusters.Cluster, made: dict[str, Any]) -> bool:
    found = await cluster.refresh(made)
    if found["spec"].get("nodeName"):
        return True
    conditions = found.get("status", {}).get("conditions") or []
    if any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions):
        await cluster.delete(made, gracePeriodSeconds="0")
        return True
    return False


def _gpus(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get("nvidia.com/gpu", 0))


def replay() -> None:
    rows, arrivals = _cut(SEED)
    gpus = sum(row.gpus for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        alone, _ = asyncio.run(_replay(pathlib.Path(folder), None))
        some, _ = asyncio.run(_replay(pathlib.Path(folder), "FGD"))
        live, uid = asyncio.run(_replay(pathlib.Path(folder), "FGD", is_for_all=True))
    nodes = packing.Nodes([msgspec.structs.replace(row, pods=110) for row in sorted(rows, key=lambda row: row.name)])
    order = packing.order_nodes(nodes.names, uid)
    engine = packing.Packer(nodes, packing.prepare("FGD", nodes, arrivals), order)
    for pod in arrivals:
        engine.arrive(pod)
    played, shares = engine.room.allocated / packing.GPU, [100 * each / gpus for each in (alone, live)]
    own = 100 * played / gpus
    shown = (
        f"{shares[1]:.2f} % through the scheduler, {own:.2f} % by the engine alone, {shares[0]:.2f} % without us; "
        f"{100 * some / gpus:.2f} % where it is asked about GPU pods alone"
    )
    held = abs(shares[1] - own) <= 0.3 and shares[1] - shares[0] >= 1
    figures.show(f"openb on {len(rows)} nodes, {len(arrivals)} pods", shown, "0.3 points; 1 point more", held)


def main() -> None:
    wanted = sys.argv[1:] or ["burst", "replay"]
    for name in wanted:
        {"burst": burst, "replay": replay}[name]()


if __name__ == "__main__":
    main()
