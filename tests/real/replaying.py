"""Pods that come one after the other, through a real scheduler and by the packing engine alone: how many GPUs get used.

In: machines, and what each pod asks for. Out: GPUs in use, of either. A node shares all of its GPUs or none: those that
do offer parts of them under a name of their own, and a pod asks for a part or for whole GPUs. What does not fit is
dropped.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from fallow.decide import packing
from fallow.decide.packing import tracking
from fallow.model.capacity import Machine, Needs
from tests.real import cluster as clusters

SHARES: Final = 2  # of a GPU that is shared
BOUND: Final = "bound"
KWOK: Final = {"kwok.x-k8s.io/node": "fake"}


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


async def make_nodes(cluster: clusters.Cluster, rows: Sequence[Machine]) -> None:
    slots = asyncio.Semaphore(8)

    async def one(row: Machine) -> None:
        async with slots:
            await _make_node(cluster, row)

    await asyncio.gather(*map(one, rows))

    async def are_usable() -> bool:
        found = await cluster.objects("v1", "Node")
        return len(found) == len(rows) and not any(each["spec"].get("taints") for each in found)

    await cluster.wait_until(are_usable, timeout=300)


def make_manifest(name: str, wish: Wish, namespace: str) -> dict[str, Any]:
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
    await make_nodes(cluster, rows)
    if start is not None:
        await start()
    bound = 0.0
    for number, wish in enumerate(wishes):
        made = await cluster.create(make_manifest(f"p{number:05}", wish, cluster.namespace))
        found = await cluster.wait_until(functools.partial(_is_judged, cluster, made), timeout=60)
        bound += wish.gpus if found == BOUND else 0
    cluster._made.clear()
    return bound


async def _is_judged(cluster: clusters.Cluster, made: dict[str, Any]) -> str:
    found = await cluster.refresh(made)
    if found["spec"].get("nodeName"):
        return BOUND
    conditions = found.get("status", {}).get("conditions") or []
    if any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions):
        await cluster.delete(made, gracePeriodSeconds="0")
        return "dropped"
    return ""
