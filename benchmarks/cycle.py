"""A cycle over 5,000 idle pods on a real API server, beside the requests that gpu-pruner's own way would send.

gpu-pruner asks for each idle pod, its ReplicaSet and its Deployment by name, every cycle: 3 GETs per idle pod. A bare
loop sends just these (no decision, no decoding) to the same API server, for the CPU that they cost there; what the
original program itself takes for them was measured once elsewhere and is a constant here. Then our daemon and our
one-shot run on the same cluster. Prometheus is a small server that answers zeros: its CPU is nobody's.
"""

import asyncio
import contextlib
import os
import pathlib
import re
import socket
import sys
import tempfile
import time
import urllib.request
from typing import Any

import msgspec
from aiohttp import web
from tests.real import cluster as clusters
from tests.real import world

from benchmarks import figures

BIN = pathlib.Path(sys.executable).parent
ORIGINAL_CPU, ORIGINAL_SERVER_CPU = (
    2.3,
    6.9,
)  # CPU seconds of the Rust program and of the API server, 5,000 idle pods, one cycle
SMALL, LARGE = "bench-small", "bench-large"
SIZES = {SMALL: 250, LARGE: 1000}  # Deployments of four pods
CYCLES, INTERVAL = 6, 10
FLAGS = ("-t", "1", "-g", "0", "--max-sample-age", "60", "--prometheus-auth", "none")
FAST = (
    "kube-controller-manager=concurrent-deployment-syncs=20",
    "kube-controller-manager=concurrent-replicaset-syncs=20",
)


class Zeros:
    """A Prometheus for which every GPU of the cluster did nothing."""

    def __init__(self, pods: list[Any]) -> None:
        self._labels = {pod["metadata"]["name"]: _labels_of(pod) for pod in pods}

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        query, now = str(form["query"]), float(str(form["time"]))
        value, labels = _value(query, now), [{"job": "dcgm"}] if "by (job)(" in query else self._asked_for(query)
        found = [{"metric": each, "value": [now, value]} for each in labels] if value else []
        data = {"status": "success", "data": {"resultType": "vector", "result": found}}
        return web.Response(body=msgspec.json.encode(data), content_type="application/json")

    def _asked_for(self, query: str) -> list[dict[str, str]]:
        """All, or the pods that the question names."""
        named = re.search(r'exported_pod=~"([^"]*)"', query)
        return (
            [self._labels[name] for name in named.group(1).replace("\\\\", "").split("|")]
            if named
            else list(self._labels.values())
        )

    async def serve(self) -> str:
        app = web.Application()
        app.router.add_post("/api/v1/query", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"


def _labels_of(pod: Any) -> dict[str, str]:
    node, meta = pod["spec"]["nodeName"], pod["metadata"]
    return {
        "Hostname": node, "UUID": f"GPU-{meta['uid']}", "exported_pod": meta["name"],
        "exported_namespace": meta["namespace"], "modelName": "NVIDIA A10G", "job": "dcgm", "instance": node,
    }


def _value(query: str, now: float) -> str | None:
    """What each GPU's answer is; None for series that nobody has."""
    if "DCGM_FI_PROF_GR_ENGINE_ACTIVE" not in query or (
        "max_over_time" in query and ">= " in query
    ):  # activity in a stretch of the past: there was none
        return None
    if "count_over_time" in query:
        stretch = re.search(r"\[(\d+)(m?s)\]", query)
        assert stretch, "everything that is counted is counted over a stretch"
        return str(round(int(stretch[1]) / {"s": 15, "ms": 15_000}[stretch[2]]))
    return str(now - 2) if "timestamp(" in query else "0"


def cpu_of(pid: int) -> float:
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def server_pid(plane: world.ControlPlane) -> int:
    return int((plane.folder / "pids" / "kube-apiserver.pid").read_text())


async def fill(cluster: clusters.Cluster) -> list[Any]:
    """5,000 GPU pods of 1,250 Deployments, running."""
    print("  making 5,000 pods ...", flush=True)
    for index in range(80):
        await cluster.gpu_node(f"node-{index}", 64)
    for namespace in SIZES:
        await cluster.make_namespace(namespace)
    slots = asyncio.Semaphore(30)

    async def make(namespace: str, index: int) -> None:
        manifest = clusters.replicated("apps/v1", "Deployment", f"app-{index}", 4, 1)
        manifest["metadata"]["namespace"] = namespace
        async with slots:
            await cluster.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", manifest)

    await asyncio.gather(*(make(namespace, index) for namespace, size in SIZES.items() for index in range(size)))

    async def running() -> bool:
        await asyncio.sleep(5)  # a question costs the server as much as the work it is busy with
        found = [made for namespace in SIZES for made in await cluster.objects("apps/v1", "Deployment", namespace)]
        ready: int = sum(made["status"].get("readyReplicas", 0) for made in found)
        return ready == 4 * sum(SIZES.values())

    await cluster.wait_until(running, timeout=600)
    return [pod for namespace in SIZES for pod in await cluster.pods(namespace=namespace)]


async def ask_as_the_original(cluster: clusters.Cluster, pods: list[Any], pid: int) -> float:
    """3 GETs for each pod, 10 at a time; the API server's CPU."""
    slots, before = asyncio.Semaphore(10), cpu_of(pid)

    async def ask(pod: Any) -> None:
        namespace, owner = pod["metadata"]["namespace"], pod["metadata"]["ownerReferences"][0]["name"]
        async with slots:
            await cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
            await cluster.request("GET", f"/apis/apps/v1/namespaces/{namespace}/replicasets/{owner}")
            await cluster.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{owner.rpartition('-')[0]}")

    await asyncio.gather(*(ask(pod) for pod in pods))
    return cpu_of(pid) - before


async def run_daemon(cluster: clusters.Cluster, url: str, pid: int) -> dict[str, float]:
    """CPU per cycle, of ours and of the API server, once nothing changes any more."""
    port = free_port()
    kubeconfig = await cluster.user("bench-daemon", groups=("system:masters",))
    command = [
        BIN / "gpu-pruner", "-d", "-c", str(INTERVAL), *FLAGS, "--prometheus-url", url, "--metrics-addr",
        f"127.0.0.1:{port}",
    ]
    arguments = [*map(str, command), "--kubeconfig", str(kubeconfig)]
    daemon = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.DEVNULL)
    try:
        first = await _reach_cycle(port, 3)
        ours, theirs, asked = cpu_of(daemon.pid), cpu_of(pid), len(cluster.requests("bench-daemon"))
        await asyncio.sleep(
            CYCLES * INTERVAL
        )  # without a question meanwhile: answering /metrics is not part of a cycle
        cycles = await _reach_cycle(port, first + 1) - first
        return {
            "ours": (cpu_of(daemon.pid) - ours) / cycles, "server": (cpu_of(pid) - theirs) / cycles,
            "requests": (len(cluster.requests("bench-daemon")) - asked) / cycles,
        }
    finally:
        daemon.terminate()
        await daemon.wait()


async def _reach_cycle(port: int, wanted: int) -> int:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if (found := await asyncio.to_thread(_cycles, port)) >= wanted:
            return found
        await asyncio.sleep(0.1)
    raise SystemExit("the daemon did not get through its cycles")


def _cycles(port: int) -> int:
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    except OSError:
        return 0
    found = re.search(r'^fallow_idle_cycles_total\{result="success"\} (\S+)', text, re.MULTILINE)
    return int(float(found.group(1))) if found else 0


async def run_once(cluster: clusters.Cluster, url: str, namespaces: str) -> tuple[float, int]:
    """CPU seconds and requests of one dry run."""
    user = f"bench-{namespaces.replace(',', '-')}"
    kubeconfig = await cluster.user(user, groups=("system:masters",))
    before = figures.children_cpu()
    command = [
        BIN / "gpu-pruner", *FLAGS, "--prometheus-url", url, "--kubeconfig", kubeconfig, "--watch-namespaces",
        namespaces,
    ]
    process = await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"gpu-pruner ended with {process.returncode}: {said.decode()[-500:]}")
    print(f"    {said.decode().strip().splitlines()[-1]}")
    return figures.children_cpu() - before, len(cluster.requests(user))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def measure(cluster: clusters.Cluster, plane: world.ControlPlane) -> None:
    pid = server_pid(plane)
    pods = await fill(cluster)
    url = await Zeros(pods).serve()
    await asyncio.sleep(75)  # -t 1: a pod is judged after a minute
    asked = await ask_as_the_original(cluster, pods, pid)
    print(
        f"    3 GETs for each of {len(pods)} pods cost the API server {asked:.1f} CPU s "
        f"({ORIGINAL_SERVER_CPU} for the original program)"
    )
    small_cpu, small_requests = await run_once(cluster, url, SMALL)
    what = "one-shot, 1,000 idle pods of 250 Deployments"
    figures.show(what, f"{small_requests} requests, {small_cpu:.2f} CPU s", "40 requests", small_requests <= 40)
    cpu, requests = await run_once(cluster, url, f"{SMALL},{LARGE}")
    figures.show(
        "one-shot, 5,000 idle pods", f"{cpu:.2f} CPU s, {requests} requests", f"{ORIGINAL_CPU} CPU s",
        cpu <= ORIGINAL_CPU,
    )
    daemon = await run_daemon(cluster, url, pid)
    ours, server = daemon["ours"], daemon["server"]
    figures.show(
        "daemon cycle, 5,000 idle pods", f"{ours:.3f} CPU s of ours", f"{ORIGINAL_CPU / 10:.2f} CPU s",
        ours <= ORIGINAL_CPU / 10,
    )
    bar = min(asked, ORIGINAL_SERVER_CPU) / 10
    figures.show(
        "the same, of the API server", f"{server:.3f} CPU s, {daemon['requests']:.1f} requests", f"{bar:.2f} CPU s",
        server <= bar,
    )


async def run() -> None:
    options = world.Options(flags=FAST)
    # At leaving, a cluster deletes its pods, and 5,000 of them take longer than it waits; but the whole world ends here
    # anyway.
    with tempfile.TemporaryDirectory() as folder, world.running(options) as plane, contextlib.suppress(TimeoutError):
        async with clusters.Cluster(plane, pathlib.Path(folder)) as cluster:
            await measure(cluster, plane)


def main() -> None:
    asyncio.run(run())
