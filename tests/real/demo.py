"""`make demo`: the product at work on a throw-away real cluster.

A real kube-apiserver, scheduler and controller-manager with pretend nodes, a real Prometheus with an hour and a half of dcgm-exporter
history, and the commands a person would type, one after the other, with their real output. Everything is removed at the end.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tests.real import cluster as clusters
from tests.real import history, world

BOLD, DIM, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")
BIN = pathlib.Path(sys.executable).parent
H100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A10G"
MINUTES = 95


def say(text: str) -> None:
    print(f"\n{BOLD}{text}{PLAIN}", flush=True)


class Demo:
    """A namespace `ml` on a throw-away cluster, a Prometheus that knows its past, and a terminal."""

    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> None:
        self.cluster = cluster
        self.prometheus = prometheus
        self.gpus: dict[str, int] = {}

    async def workload(
        self, name: str, replicas: int, gpus: int, busy: list[float] | float, kind: str = "Deployment", known: bool = True
    ) -> None:
        """A workload whose pods started long ago; `busy` is how active each GPU was, over time or always."""
        manifest = clusters.replicated("apps/v1", kind, name, replicas, gpus)
        await self.cluster.run(manifest, replicas)
        await self.cluster.age(f"app={name}", MINUTES)
        if known:
            for pod in await self.cluster.pods(f"app={name}"):
                for index in range(gpus):
                    self.measure(pod, busy if index == 0 or isinstance(busy, list) else 0.0)

    def measure(self, pod: clusters.Object, busy: list[float] | float) -> None:
        node = pod["spec"]["nodeName"]
        index = self.gpus[node] = self.gpus.get(node, -1) + 1
        percent = [value * 100 for value in busy] if isinstance(busy, list) else busy * 100
        self.prometheus.dcgm_gpu(
            node, index, pod=pod["metadata"]["name"], namespace=self.cluster.namespace, model=A10G if "a10g" in node else H100,
            gr_engine=busy, gpu_util=percent, minutes=MINUTES,
        )

    def run(self, *command: str) -> None:
        """One command, as typed, and what it says."""
        print(f"{DIM}${PLAIN} {' '.join(command)}", flush=True)
        environment = {
            **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.cluster.kubeconfig), "PROMETHEUS_URL": self.prometheus.url,
        }
        done = subprocess.run([str(BIN / command[0]), *command[1:]], env=environment, check=False)
        if done.returncode not in (0, 3):
            raise SystemExit(f"{command[0]} ended with exit code {done.returncode}")

    async def show_sizes(self) -> None:
        found = await self.cluster.objects("apps/v1", "Deployment") + await self.cluster.objects("apps/v1", "StatefulSet")
        for thing in found:
            print(f"  {thing['kind']}/{thing['metadata']['name']}: {thing['spec']['replicas']} replicas wanted")


async def fill(demo: Demo) -> None:
    """One node of eight H100 and two of A10G, and five workloads with different pasts."""
    for name, gpus, product in (("h100-1", 8, H100), ("a10g-1", 4, A10G), ("a10g-2", 4, A10G)):
        await demo.cluster.gpu_node(name, gpus, product.replace(" ", "-"))
    every = MINUTES * 2 + 1
    went_quiet = [0.8] * (every - 90) + [0.0] * 90  # busy until 45 minutes ago
    await demo.workload("chat", 3, 1, went_quiet)
    await demo.workload("search", 2, 1, 0.6)
    await demo.workload("trainer", 1, 4, 0.9)  # one of its four GPUs is busy
    await demo.workload("notebook", 1, 1, 0.0, kind="StatefulSet")
    await demo.workload("unmeasured", 1, 1, 0.0, known=False)


async def play(demo: Demo, namespace: str) -> None:
    say("What is there? (read-only)")
    demo.run("fallow", "status")
    demo.run("fallow", "idle", "--all")
    say("Why is the trainer not idle, and why can nobody tell about `unmeasured`?")
    demo.run("fallow", "why", "Deployment/trainer", "-n", namespace)
    demo.run("fallow", "why", "Deployment/unmeasured", "-n", namespace)
    say("Somebody wants to keep the notebook.")
    demo.run("fallow", "ack", "StatefulSet/notebook", "-n", namespace, "--hours", "8", "--reason", "demo at noon")
    say("A dry run, as gpu-pruner always did: it says what it would do.")
    demo.run("gpu-pruner", "-t", "30")
    say("Now for real.")
    demo.run("gpu-pruner", "-t", "30", "-r", "scale-down", "--max-percent-per-hour", "50")
    await demo.show_sizes()
    say("And back, exactly as it was.")
    demo.run("fallow", "resume", "Deployment/chat", "-n", namespace)
    await demo.show_sizes()


async def main() -> None:
    started = time.monotonic()
    say("Starting a real Kubernetes control plane and a real Prometheus (throw-away, on this machine only) ...")
    with world.running() as plane, tempfile.TemporaryDirectory() as folder:
        prometheus = history.PrometheusWorld(pathlib.Path(folder))
        try:
            async with clusters.Cluster(plane, pathlib.Path(folder)) as cluster:
                demo = Demo(cluster, prometheus)
                await fill(demo)
                await prometheus.start()
                await play(demo, cluster.namespace)
        finally:
            await prometheus.kill()
    say(f"Done in {time.monotonic() - started:.0f} s; the cluster is gone. Against your own: see README.md.")


if __name__ == "__main__":
    asyncio.run(main())
