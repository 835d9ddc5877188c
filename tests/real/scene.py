"""GPU workloads whose past is known, and the commands as a person types them about them: `fallow`, `gpu-pruner`, with
their real output.

In: a fresh namespace on a real cluster, a real Prometheus that is not started yet. Out: `Scene`.
Use: `run` (or `quiet`) workloads, `measure` what their GPUs did, `await begin()`, then ask and act by commands.
Invariant: every command is kept to the scene's own namespace, and its Lease stands in a namespace of its own, so that
scenes on the same control plane do not meet.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from fallow import names
from fallow.model.policies import idle_crd
from tests.real import cluster as clusters
from tests.real import history, product, world

Object = clusters.Object
MINUTES = 90  # how long the past is, unless a test says otherwise
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")


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

    async def deployment(
        self, name: str = "llm", replicas: int = 1, gpus: int = 1, busy: history.Values = 0.0
    ) -> list[Object]:
        return await self.quiet(clusters.replicated("apps/v1", "Deployment", name, replicas, gpus), replicas, busy)

    async def stateful(self, name: str = "llm", replicas: int = 1) -> list[Object]:
        """Its pods keep their names when they come back, so their past is still theirs."""
        return await self.quiet(clusters.replicated("apps/v1", "StatefulSet", name, replicas, 1), replicas)

    def measure(self, pod: Object, busy: history.Values = 0.0, **more: Any) -> str:
        """One more GPU of the node, in this pod's hands; its UUID. `busy` is the share of time it worked."""
        index, self._gpus = self._gpus, self._gpus + 1
        percent = busy * 100 if isinstance(busy, int | float) else [None if one is None else one * 100 for one in busy]
        said: dict[str, Any] = {"gr_engine": busy, "gpu_util": percent, "minutes": MINUTES, **more}
        whose = {"pod": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        return self.prometheus.dcgm_gpu(self.node, index, **whose, **said)

    async def make_policy(self, **spec: Any) -> None:
        """One for this namespace that asks for a notice, by Event, five minutes before a pause."""
        await self.cluster.apply_crds(idle_crd.define())
        polite = {
            "namespaces": [self.namespace], "notice": {"required": True, "grace": "5m"}, "action": {"type": "pause"}
        }
        version, metadata = f"{names.GROUP}/{names.POLICY_VERSION}", {"name": f"tell-{self.namespace}"}
        await self.cluster.apply(
            {"apiVersion": version, "kind": names.POLICY_KIND, "metadata": metadata, "spec": {**polite, **spec}}
        )

    async def begin(self) -> None:
        await self.prometheus.start()

    # --- commands ---

    async def type(
        self, *words: str, code: int = 0, kubeconfig: pathlib.Path | None = None, **variables: str
    ) -> product.Ended:
        """One command, as typed; it must end with `code`."""
        said = {
            "KUBECONFIG": str(kubeconfig or self.kubeconfig), "PROMETHEUS_URL": self.prometheus.url,
            "POD_NAMESPACE": self._own,
        }
        done = await product.run(*words, env={"PATH": os.environ["PATH"], **said, **variables})
        assert done.code == code, f"{' '.join(words)} ended with {done.code}, not {code}:\n{done.said}"
        return done

    async def prune(self, *flags: str, code: int = 0, **more: Any) -> str:
        """One acting cycle; what it said. Where a controller of the cluster overtook it, the next one too: so a daemon
        gets there."""
        words = (
            "gpu-pruner", "-r", "scale-down", "--watch-namespaces", self.namespace, "--max-percent-per-hour", "100",
            *flags,
        )
        said = (await self.type(*words, code=code, **more)).err
        return said + (await self.type(*words, code=code, **more)).err if " overtaken: it changed " in said else said

    async def fallow(self, verb: str, target: str, *flags: str, code: int = 0, **more: Any) -> str:
        """A verb about one workload; what it said."""
        return (await self.type("fallow", verb, target, "-n", self.namespace, *flags, code=code, **more)).said

    async def rows(self, *flags: str) -> dict[str, Any]:
        """`fallow idle --all`, by name."""
        done = await self.type("fallow", "idle", "--all", "-o", "json", "--watch-namespaces", self.namespace, *flags)
        return {row["name"]: row for row in json.loads(done.out)}

    async def verdicts(self, *flags: str) -> dict[str, tuple[str, str]]:
        return {name: (row["verdict"], row["reason"]) for name, row in (await self.rows(*flags)).items()}

    async def explain(self, target: str, *flags: str) -> Any:
        scope = ("--watch-namespaces", self.namespace)
        return json.loads(
            (await self.type("fallow", "explain", target, "-n", self.namespace, "-o", "json", *scope, *flags)).out
        )

    # --- after ---

    def writes(self, contains: str = "") -> list[world.Request]:
        """What our commands wrote in the scene's namespace so far, Events included; a rehearsal writes nothing."""
        place, verbs = f"/namespaces/{self.namespace}/", ("create", "update", "patch", "delete")
        return [
            asked
            for asked in self.cluster.requests(verbs=verbs, agent="fallow/", contains=place)
            if contains in asked.uri and "dryRun=All" not in asked.uri
        ]

    async def reasons(self) -> list[str]:
        """The reasons of our Events, oldest first; those of one cycle are of one instant, by name."""
        found = [event for event in await self.cluster.events() if event.get("reportingController") == "gpu-pruner"]
        return [reason for _, reason in sorted((event["eventTime"], event["reason"]) for event in found)]


def count_gpus(pod: Object) -> int:
    limits = (container["resources"].get("limits") or {} for container in pod["spec"]["containers"])
    return sum(int(count) for each in limits for name, count in each.items() if name.startswith(GPU_RESOURCES))


def marks_of(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"].get("annotations") or {}
    return found
