"""GPU workloads whose past is known, and the commands as a person types them about them: `fallow`, `gpu-pruner`, with their real output.

In: a fresh namespace on a real cluster, a real Prometheus that is not started yet. Out: `Scene`.
Use: `run` (or `quiet`) workloads, `measure` what their GPUs did, `await begin()`, then ask and act by commands.
Invariant: every command is kept to the scene's own namespace, and its Lease stands in a namespace of its own, so that scenes on the same
control plane do not meet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pathlib
import sys
from typing import Any

from tests.real import cluster as clusters
from tests.real import history, world

Object = clusters.Object
BIN = pathlib.Path(sys.executable).parent
MINUTES = 90  # how long the past is, unless a test says otherwise
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
OWN_VARIABLES = ("KUBECONFIG", "PROMETHEUS_URL", "PROMETHEUS_TOKEN", "POD_NAME", "FALLOW_LOG", "RUST_LOG", "NO_COLOR", "COLUMNS")


@dataclasses.dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


class Scene:
    """One GPU node, one namespace, one Prometheus, one terminal."""

    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> None:
        self.cluster = cluster
        self.prometheus = prometheus
        self.namespace = cluster.namespace
        self.node = f"gpu-{cluster.namespace}"
        self.kubeconfig = cluster.kubeconfig
        self._own = f"{cluster.namespace}-own"  # the Lease's
        self._gpus = 0

    # --- before ---

    async def prepare(self, gpus: int = 16, **node: Any) -> Scene:
        await self.cluster.make_namespace(self._own)
        await self.cluster.gpu_node(self.node, gpus, **node)
        return self

    async def run(self, manifest: Object, pods: int = 1, minutes: float = MINUTES) -> list[Object]:
        """The pods of a workload that runs for so long already. They carry the label app=<its name>."""
        await self.cluster.run(manifest, pods)
        return await self.cluster.age(f"app={manifest['metadata']['name']}", minutes)

    async def quiet(self, manifest: Object, pods: int = 1, busy: history.Values = 0.0) -> list[Object]:
        """The same, with all its GPUs measured: idle, or as busy as said."""
        found = await self.run(manifest, pods)
        for pod in found:
            for _ in range(count_gpus(pod)):
                self.measure(pod, busy)
        return found

    async def deployment(self, name: str = "llm", replicas: int = 1, gpus: int = 1, busy: history.Values = 0.0) -> list[Object]:
        return await self.quiet(clusters.replicated("apps/v1", "Deployment", name, replicas, gpus), replicas, busy)

    async def stateful(self, name: str = "llm", replicas: int = 1) -> list[Object]:
        """Its pods keep their names when they come back, so their past is still theirs."""
        return await self.quiet(clusters.replicated("apps/v1", "StatefulSet", name, replicas, 1), replicas)

    def measure(self, pod: Object, busy: history.Values = 0.0, **more: Any) -> str:
        """One more GPU of the node, in this pod's hands; its UUID. `busy` is the share of time it worked."""
        index, self._gpus = self._gpus, self._gpus + 1
        percent = busy * 100 if isinstance(busy, int | float) else [None if one is None else one * 100 for one in busy]
        said: dict[str, Any] = {"gr_engine": busy, "gpu_util": percent, "minutes": MINUTES, **more}
        return self.prometheus.dcgm_gpu(self.node, index, pod=pod["metadata"]["name"], namespace=self.namespace, **said)

    async def begin(self) -> None:
        await self.prometheus.start()

    # --- commands ---

    async def type(self, *words: str, code: int = 0, kubeconfig: pathlib.Path | None = None, **variables: str) -> Done:
        """One command, as typed; it must end with `code`."""
        clean = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        said = {"KUBECONFIG": str(kubeconfig or self.kubeconfig), "PROMETHEUS_URL": self.prometheus.url, "POD_NAMESPACE": self._own}
        process = await asyncio.create_subprocess_exec(
            str(BIN / words[0]), *words[1:], env={**clean, **said, **variables}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
        done = Done(process.returncode or 0, out.decode(), err.decode())
        assert done.code == code, f"{' '.join(words)} ended with {done.code}, not {code}:\n{done.out}{done.err}"
        return done

    async def prune(self, *flags: str, code: int = 0, **more: Any) -> str:
        """One acting cycle; what it said."""
        words = ("gpu-pruner", "-r", "scale-down", "--watch-namespaces", self.namespace, "--max-percent-per-hour", "100", *flags)
        return (await self.type(*words, code=code, **more)).err

    async def fallow(self, verb: str, target: str, *flags: str, code: int = 0, **more: Any) -> str:
        """A verb about one workload; what it said."""
        done = await self.type("fallow", verb, target, "-n", self.namespace, *flags, code=code, **more)
        return done.out + done.err

    async def rows(self, *flags: str) -> dict[str, Any]:
        """`fallow idle --all`, by name."""
        done = await self.type("fallow", "idle", "--all", "-o", "json", "--watch-namespaces", self.namespace, *flags)
        return {row["name"]: row for row in json.loads(done.out)}

    async def verdicts(self, *flags: str) -> dict[str, tuple[str, str]]:
        return {name: (row["verdict"], row["reason"]) for name, row in (await self.rows(*flags)).items()}

    async def explain(self, target: str, *flags: str) -> Any:
        scope = ("--watch-namespaces", self.namespace)
        return json.loads((await self.type("fallow", "explain", target, "-n", self.namespace, "-o", "json", *scope, *flags)).out)

    # --- after ---

    def writes(self, contains: str = "") -> list[world.Request]:
        """What our commands wrote in the scene's namespace so far, Events included."""
        ours = self.cluster.requests(verbs=["create", "update", "patch", "delete"], agent="fallow/", contains=f"/namespaces/{self.namespace}/")
        return [asked for asked in ours if contains in asked.uri]

    async def reasons(self) -> list[str]:
        """The reasons of our Events, oldest first."""
        found = [event for event in await self.cluster.events() if event.get("reportingController") == "gpu-pruner"]
        return [event["reason"] for event in sorted(found, key=lambda event: event["eventTime"])]


def count_gpus(pod: Object) -> int:
    limits = (container["resources"].get("limits") or {} for container in pod["spec"]["containers"])
    return sum(int(count) for each in limits for name, count in each.items() if name.startswith(GPU_RESOURCES))


def annotations(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"].get("annotations") or {}
    return found
