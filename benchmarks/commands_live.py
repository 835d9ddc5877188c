"""How long a command takes that asks the cluster, on real parts: 1,000 GPU pods of 250 Deployments on a real control
plane with pretend kubelets, and a real Prometheus for which all their GPUs have done nothing for an hour.

The same as commands.py, whose servers are written in Python and take most of the time that is measured there. The best
of a few runs counts, by the wall clock, the start of the interpreter included.
"""

import asyncio
import pathlib
import tempfile
import time
from typing import Any

from tests.real import cluster as clusters
from tests.real import crds, world

from benchmarks import commands, figures, questions
from fallow.model.policies import idle_crd

NODES, PER_NODE, REPLICAS = 125, 8, 4
KWOK = {"kwok.x-k8s.io/node": "fake"}
NAME = "Deployment/app-000"


async def _fill(cluster: clusters.Cluster) -> list[clusters.Object]:
    """The pods, once all of them run."""
    await cluster.apply_crds(*crds.KINDS.values(), idle_crd.define())
    slots = asyncio.Semaphore(8)

    async def make(manifest: dict[str, Any]) -> None:
        async with slots:
            made = await cluster.create(manifest)
            if made["kind"] == "Node":
                has = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(PER_NODE)}
                await cluster.patch(made, {"status": {"capacity": has, "allocatable": has}}, part="status")

    await asyncio.gather(*(make(_node(number)) for number in range(NODES)))
    count = NODES * PER_NODE // REPLICAS
    await asyncio.gather(*(make(_deployment(cluster.namespace, number)) for number in range(count)))
    found: list[clusters.Object] = await cluster.wait_until(
        lambda: cluster.ready_pods("bench=true", NODES * PER_NODE), timeout=300
    )
    return found


def _node(number: int) -> dict[str, Any]:
    name = f"node-{number:03}"
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-A10G"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": KWOK}}


def _deployment(namespace: str, number: int) -> dict[str, Any]:
    name = f"app-{number:03}"
    labels, limits = {"app": name, "bench": "true"}, {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "example.invalid/app:1", "resources": {"limits": limits}}
    spec = {
        "replicas": REPLICAS, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _measured(pods: list[clusters.Object]) -> questions.Series:
    named = [(pod["spec"]["nodeName"], pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods]
    gpus = [
        (questions.label(metric, number, node, namespace, name), value)
        for number, (node, namespace, name) in enumerate(named) for metric, value in questions.GPUS.items()
    ]
    return [*gpus, *questions.ups(sorted({node for node, _, _ in named}))]


async def _show(words: str, environment: dict[str, str], plane: world.ControlPlane) -> None:
    taken, asked = list[tuple[float, float]](), 0
    for _ in range(commands.ROUNDS):
        mark = plane.audit_mark()
        wall, cpu, _ = await commands.measure(words, environment, lambda: 0)
        taken.append((wall, cpu))
        asked = sum("fallow" in request.agent for request in plane.requests(mark))
    wall, cpu = min(wall for wall, _ in taken), min(cpu for _, cpu in taken)
    said = f"{wall:.2f} s ({cpu:.2f} s CPU), {asked} requests to the API server"
    figures.show(f"fallow {words.partition(' -n')[0]}", said, f"{commands.BAR} s", wall <= commands.BAR)


async def _run_all(plane: world.ControlPlane, place: pathlib.Path) -> None:
    async with clusters.Cluster(plane, place) as cluster:
        print("  making 125 nodes and 1,000 pods ...", flush=True)
        pods = await _fill(cluster)
        with questions.prometheus(place) as url:
            now = time.time()
            questions.fill(url, _measured(pods), now - 3600, now)
            questions.fill(url, _measured(pods), now + questions.EVERY, now + 900)
            environment = {"KUBECONFIG": str(cluster.kubeconfig), "PROMETHEUS_URL": url, "HOME": str(place)}
            of = f"{NAME} -n {cluster.namespace}"
            for words in ("status --look", "idle --look", f"why {of} --look", f"ack {of}", f"resume {of}", "paused -A"):
                await _show(words, environment, plane)


def main() -> None:
    with world.running() as plane, tempfile.TemporaryDirectory() as place:
        asyncio.run(_run_all(plane, pathlib.Path(place)))


if __name__ == "__main__":
    main()
