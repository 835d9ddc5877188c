"""The product as a person or a Deployment runs it: `gpu-pruner` and `fallow` as processes, against a real cluster and a
real Prometheus.

In: a Cluster, a PrometheusWorld, flags. Out: `Ended` (exit code and output), `Daemon` (a running one to scrape, stop or
kill), and `Stage`, a namespace of workloads with a past, on which a Product looks and which it may change.
Invariant: a product sees only its stage's namespace and writes its Lease into a namespace of its own, so tests do not
meet each other; no process outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from fallow import names
from tests.real import cluster as clusters
from tests.real import commands, faults, history, world

BIN = pathlib.Path(sys.executable).parent
ALL_RIGHTS = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
WRITES = ("create", "update", "patch", "delete", "deletecollection")
MINUTES = 60
Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def records(self) -> list[Object]:
        """The lines of --log-format json."""
        return [json.loads(line) for line in self.err.splitlines()]


class Stage:
    """A namespace of workloads, each with the past that a test gives it."""

    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> None:
        self.cluster = cluster
        self.prometheus = prometheus
        self.namespace = cluster.namespace
        self.system = f"{cluster.namespace}-system"
        self.ahead = 0.0  # seconds for which measurements are known that are yet to come, for a test that takes long
        self._boards: dict[str, int] = {}

    async def build(self, gpus: int = 8) -> None:
        await self.cluster.make_namespace(self.system)
        await self.cluster.gpu_node("gpu-1", gpus)

    async def workload(
        self, name: str, replicas: int = 1, gpus: int = 1, busy: history.Values = 0.0, kind: str = "Deployment",
        **template: Any,
    ) -> Object:
        """Pods that have run for long; `busy` is how active their GPUs were, over time or always."""
        made = await self.cluster.apply(clusters.replicated("apps/v1", kind, name, replicas, gpus, **template))
        await self.cluster.wait_until(lambda: self.cluster.ready_pods(f"app={name}", replicas))
        made = await self.cluster.refresh(made)
        for pod in await self.cluster.age(f"app={name}", MINUTES):
            for _ in range(gpus):
                self.measure(pod, busy)
        return made

    def measure(self, pod: Object, busy: history.Values) -> None:
        node = pod["spec"]["nodeName"]
        board = self._boards[node] = self._boards.get(node, -1) + 1
        percent = (
            busy * 100 if isinstance(busy, int | float) else [None if value is None else value * 100 for value in busy]
        )
        whose = {"pod": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        until = self.prometheus.now + self.ahead
        minutes = MINUTES + self.ahead / 60
        self.prometheus.dcgm_gpu(node, board, **whose, gr_engine=busy, gpu_util=percent, minutes=minutes, until=until)

    async def now(self, thing: Object) -> Object:
        return await self.cluster.refresh(thing)

    async def is_paused(self, thing: Object) -> bool:
        now = await self.now(thing)
        return bool(now["spec"]["replicas"] == 0 and names.PAUSED_AT in (now["metadata"].get("annotations") or {}))

    async def lease(self) -> Object | None:
        return await self.cluster.find("coordination.k8s.io/v1", "Lease", names.LEASE, self.system)


class Product:
    """How one account runs the commands on a stage."""

    def __init__(self, stage: Stage, kubeconfig: pathlib.Path, folder: pathlib.Path, account: str) -> None:
        self.stage = stage
        self.kubeconfig = kubeconfig
        self.prometheus_url = stage.prometheus.url
        self._account = account
        self._folder = folder
        self._daemons: list[Daemon] = []

    @property
    def flags(self) -> list[str]:
        """Only our namespace, and no cap in the way of a small cluster."""
        return [
            "--watch-namespaces", self.stage.namespace, "--max-percent-per-hour", "100", "--kubeconfig",
            str(self.kubeconfig),
        ]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Little of ours: a variable of whoever runs the tests must not decide them."""
        given = {"POD_NAMESPACE": self.stage.system, "PROMETHEUS_URL": self.prometheus_url, "HOME": str(self._folder)}
        return {"PATH": os.environ["PATH"], **given, **(more or {})}

    async def prune(self, *flags: str, env: Mapping[str, str] | None = None, timeout: float = 60.0) -> Ended:
        """One look of `gpu-pruner`."""
        return await run("gpu-pruner", *self.flags, *flags, env=self.environment(env), timeout=timeout)

    async def fallow(self, *arguments: str) -> Ended:
        return await run("fallow", *arguments, "--kubeconfig", str(self.kubeconfig), env=self.environment())

    async def start(self, *flags: str, env: Mapping[str, str] | None = None) -> Daemon:
        """`gpu-pruner -d`, a cycle every second, as soon as it answers."""
        daemon = self.spawn("-d", "-c", "1", *flags, env=env)
        await daemon.until(daemon.answers)
        return daemon

    def spawn(self, *flags: str, env: Mapping[str, str] | None = None) -> Daemon:
        port = free_port()
        log = self._folder / f"{port}.log"
        arguments = [str(BIN / "gpu-pruner"), *self.flags, "--metrics-addr", f"127.0.0.1:{port}", *flags]
        with log.open("wb") as output:
            process = subprocess.Popen(
                arguments, env=self.environment(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._daemons.append(Daemon(process, port, log))
        return self._daemons[-1]

    def writes(self, contains: str = "", lease: bool = False) -> list[world.Request]:
        """What the API server was asked to change by this account, by its audit log; without the Lease's renewals, and
        without reviews, which are created only to ask a question."""
        asked = self.stage.cluster.requests(user=self._account, verbs=WRITES, contains=contains)
        return [one for one in asked if (lease or "/leases" not in one.uri) and "reviews" not in one.uri]

    def pauses(self, name: str) -> list[world.Request]:
        """The pause patches that the server took for this workload."""
        return [one for one in self.writes(f"/{name}") if one.verb == "patch" and one.code == 200 and is_pause(one)]

    async def close(self) -> None:
        for daemon in self._daemons:
            await daemon.kill()


def is_pause(asked: world.Request) -> bool:
    """Not a dry run; and one that marks, rather than one that takes the marks away."""
    marks = ((asked.body or {}).get("metadata") or {}).get("annotations") or {}
    return "dryRun" not in asked.uri and bool(marks.get(names.PAUSED_AT))


class Daemon:
    """A running `gpu-pruner -d`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def get(self, path: str) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(5)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.text()

    async def answers(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            return (await self.get("/healthz"))[0] in (200, 503)
        return False

    async def is_ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def is_unready(self) -> bool:
        return (await self.get("/readyz"))[0] == 503

    async def is_leading(self) -> bool:
        return await self.metric("fallow_idle_leader") == 1

    async def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels, as written."""
        _, text = await self.get("/metrics")
        return {
            sample[0]: float(sample[1]) for sample in re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
        }

    async def metric(self, name: str) -> float | None:
        return (await self.metrics()).get(name)

    async def cycles(self, result: str = "success") -> float:
        return await self.metric(f'fallow_idle_cycles_total{{result="{result}"}}') or 0.0

    async def until(self, holds: Callable[[], Any], timeout: float = clusters.PATIENCE) -> Any:
        """Looks until it holds; a daemon that has ended meanwhile, or does not come round, is told with its log."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                if answer := await holds():
                    return answer
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it did not come so (exit code {self.process.poll()}); log:\n{self.log[-4000:]}")
            await asyncio.sleep(0.05)

    async def more_cycles(self, count: int, result: str = "success", timeout: float = clusters.PATIENCE) -> None:
        """So many further cycles have ended."""
        before = await self.cycles(result)

        async def have_ended() -> bool:
            return await self.cycles(result) >= before + count

        await self.until(have_ended, timeout)

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self, timeout: float = 30.0) -> int:
        return await asyncio.to_thread(self.process.wait, timeout)

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()


async def run(command: str, *arguments: str, env: Mapping[str, str], timeout: float = 60.0) -> Ended:
    return Ended(*await commands.run(command, arguments, env, timeout))


@contextlib.asynccontextmanager
async def product_on(
    stage: Stage, folder: pathlib.Path, rules: Sequence[Object] = ALL_RIGHTS, name: str = "gpu-pruner",
    through: str | None = None,
) -> AsyncIterator[Product]:
    """With an account that has these rights. Start the Prometheus before."""
    kubeconfig = await stage.cluster.service_account(name, list(rules), namespace=stage.system, through=through)
    made = Product(stage, kubeconfig, folder, f"system:serviceaccount:{stage.system}:{name}")
    try:
        yield made
    finally:
        await made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def proxy_to_api_server(plane: world.ControlPlane) -> faults.FaultyProxy:
    """With no certificate of its own: the server sees the account whose token passes through."""
    return faults.FaultyProxy(plane.url, tls=ssl.create_default_context(cafile=str(plane.ca)))
