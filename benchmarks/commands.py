"""How long a command takes that asks the cluster, and how many requests it sends: 1,000 GPU pods of 250 Deployments.

The cluster is the pretend one, with every kind of the table installed, so that none is skipped for not being there;
Prometheus is the small server of benchmarks/cycle.py, for which all these GPUs do nothing. Both answer in this process.
The best of a few runs counts, by the wall clock, the start of the interpreter included; the CPU time beside it is less
at the mercy of a busy machine. Looks are taken twice: as answers of a daemon that runs beside, and on their own.
"""

import asyncio
import contextlib
import pathlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from tests.real import crds

from benchmarks import cycle, figures
from fallow.model.policies import idle_crd
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server
from fallow.sim.world import shapes

BIN = pathlib.Path(sys.executable).parent
PODS, PER_NODE, NAMESPACES = 1000, 8, 20
ROUNDS, BAR, SINCE = 5, 0.6, "2026-01-01T00:00:00Z"
NAME = "Deployment/app-0"
LOOKS = ("status", "idle", f"why {NAME} -n team-0")
VERBS = (f"ack {NAME} -n team-0", f"resume {NAME} -n team-0", "paused -A")


class Counted(server.KubernetesServer):
    """A pretend API server that counts what it is asked."""

    asked = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return await super()._answer(request)


def _fill(store: stores.Store) -> list[Any]:
    for definition in [*crds.KINDS.values(), idle_crd.define()]:
        store.create(definition)
    for number in range(NAMESPACES):
        store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}})
    for number in range(PODS // PER_NODE):
        store.create(shapes.make_node(
            f"node-{number}", model="NVIDIA A10G", gpus=PER_NODE, ip=f"10.0.0.{number}", mode="whole", slices=1,
            resource="nvidia.com/gpu",
        ))
    return [pod for number in range(PODS // 4) for pod in _deploy(store, number)]


def _deploy(store: stores.Store, number: int) -> list[Any]:
    """A Deployment with its ReplicaSet and four running pods."""
    namespace, name = f"team-{number % NAMESPACES}", f"app-{number}"
    labels, container = {"app": name}, {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 4, "selector": {"matchLabels": labels}, "template": template}
    above: list[Any] = []
    for kind, called in (("Deployment", name), ("ReplicaSet", f"{name}-7c9d8b6f5d")):
        metadata = {"name": called, "namespace": namespace, "labels": labels, "ownerReferences": above}
        made = store.create({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}).object
        about = {"apiVersion": "apps/v1", "kind": kind, "name": called, "uid": made["metadata"]["uid"]}
        above = [{**about, "controller": True}]
    return [_run(store, namespace, f"{above[0]['name']}-{index}", template, above, number) for index in range(4)]


def _run(store: stores.Store, namespace: str, name: str, template: Any, above: list[Any], number: int) -> Any:
    metadata = {**template["metadata"], "name": name, "namespace": namespace, "ownerReferences": above}
    spec = {**template["spec"], "nodeName": f"node-{number * 4 // PER_NODE}"}
    status = {
        "phase": "Running", "startTime": SINCE,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": SINCE}],
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": SINCE}}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
    return store.create(pod).object


async def measure(
    words: str, environment: dict[str, str], count: Callable[[], int]
) -> tuple[float, float, int]:
    """Seconds by the wall clock, seconds of CPU, requests by who counts them."""
    before, used, began = count(), figures.children_cpu(), time.perf_counter()
    running = await asyncio.create_subprocess_exec(
        str(BIN / "fallow"), *words.split(), env=environment, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, wrong = await running.communicate()
    taken = time.perf_counter() - began
    if running.returncode != 0:
        raise SystemExit(f"fallow {words} ended with {running.returncode}: {(said + wrong).decode()[-1000:]}")
    return taken, figures.children_cpu() - used, count() - before


@contextlib.asynccontextmanager
async def _daemon(environment: dict[str, str]) -> AsyncIterator[str]:
    """Where one answers that has looked once."""
    address = f"127.0.0.1:{cycle.free_port()}"
    flags = ("run", "--dashboard-addr", address, "--dashboard-auth", "email", "--leader-elect", "false")
    running = await asyncio.create_subprocess_exec(
        str(BIN / "fallow"), *flags, "--metrics-addr", f"127.0.0.1:{cycle.free_port()}", env=environment,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.wait_for(_has_looked(f"http://{address}/api/v1/overview"), 60)
        yield f"http://{address}"
    finally:
        running.terminate()
        await running.wait()


async def _has_looked(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    if answer.status == 200 and (await answer.json())["asOf"]:
                        return
            await asyncio.sleep(0.1)


async def _show(words: str, environment: dict[str, str], asked: Counted, whose: str = "") -> None:
    runs = [await measure(words, environment, lambda: asked.asked) for _ in range(ROUNDS)]
    best, cpu, requests = (min(each) for each in zip(*runs, strict=True))
    said = f"{best:.2f} s ({cpu:.2f} s CPU), {requests:.0f} requests to the API server"
    figures.show(f"fallow {words.partition(' -n')[0]}{whose}", said, f"{BAR} s", best <= BAR)


async def _run_all() -> None:
    store = stores.Store(time.time)
    kubernetes, zeros = Counted(store, time.time), cycle.Zeros(_fill(store))
    await kubernetes.start()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = pathlib.Path(folder, "config")
        kubeconfig.write_bytes(msgspec.json.encode(kubernetes.kubeconfig()))  # noqa: ASYNC240  nobody waits
        environment = {"KUBECONFIG": str(kubeconfig), "PROMETHEUS_URL": await zeros.serve(), "HOME": folder}
        async with _daemon(environment) as url:
            for words in LOOKS:
                await _show(words, {**environment, "FALLOW_DAEMON_URL": url}, kubernetes, ", by the daemon")
        for words in LOOKS:
            await _show(f"{words} --look", environment, kubernetes)
        for words in VERBS:
            await _show(words, environment, kubernetes)
    await kubernetes.stop()


def main() -> None:
    asyncio.run(_run_all())


if __name__ == "__main__":
    main()
