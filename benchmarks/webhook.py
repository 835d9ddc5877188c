"""What the admission webhook of budgets takes for a review: 500 a second over TLS.

The webhook as a process of its own, over a pretend API server with 50 budgets and 1,000 namespaces; connections that
are kept, as the API server keeps them. Reviews come at even distances, whether the one before was answered or not: what
waits in line counts. Pods that are denied, patched and admitted.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import figures
from fallow import names
from fallow.act import certificates
from fallow.model import units
from fallow.model.policies import budget_crd
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server as servers

RATE, SECONDS, CONNECTIONS = 500, 10, 8
BUDGETS, NAMESPACES = 50, 1000
GOAL_MS = 2.0


def _review(namespace: str, gpus: int) -> bytes:
    """As large as the reviews of a real API server are: 5 KB."""
    limits = {"cpu": "8", "memory": "64Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    variables = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(40)]
    container = {"name": "main", "image": "registry.example/app:1", "env": variables, "resources": {"limits": limits}}
    spec = {"containers": [container], "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    fields = {f"f:{number}": {} for number in range(60)}
    metadata = {
        "generateName": "llm-", "namespace": namespace, "labels": {"app": "llm", "pod-template-hash": "abc"},
        "managedFields": [{"manager": "kube-controller-manager", "fieldsV1": fields}],
    }
    user = {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:authenticated"]}
    request = {
        "uid": "0b4c6f3e-0000-4000-8000-000000000000", "operation": "CREATE", "namespace": namespace, "userInfo": user,
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def _fill(store: stores.Store) -> None:
    store.create(budget_crd.define())
    for number in range(NAMESPACES):
        metadata = {"name": f"team-{number}", "labels": {"team": f"t{number % BUDGETS}"}}
        store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    for number in range(BUDGETS):
        spec = {
            "scope": {"type": "namespace", "namespaceSelector": {"matchLabels": {"team": f"t{number}"}}},
            "budget": {"amount": 1000},
            "enforcement": {"mode": "block" if number % 2 else "throttle", "throttleConfig": {"blockOnDemand": True}},
        }
        status = {"enforcementActive": True, "lastUpdated": units.rfc3339(time.time()), "currentSpend": "1200.00"}
        store.create({
            "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget", "metadata": {"name": f"b{number}"},
            "spec": spec, "status": status,
        })


async def _start(folder: Path, kubeconfig: dict[str, Any], port: int) -> tuple[subprocess.Popen[bytes], ssl.SSLContext]:
    papers = certificates.renew(None, "localhost", time.time())
    (folder / "tls.crt").write_bytes(papers.leaf)
    (folder / "tls.key").write_bytes(papers.leaf_key)
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    words = [
        str(Path(sys.executable).parent / "fallow"), "webhook", "--webhook-addr", f"127.0.0.1:{port}",
        "--webhook-cert-dir", str(folder), "--kubeconfig", str(folder / "kubeconfig"),
    ]
    process = await asyncio.to_thread(
        subprocess.Popen, words, env={"PATH": os.environ["PATH"]}, stderr=subprocess.DEVNULL
    )
    return process, ssl.create_default_context(cadata=papers.bundle.decode())


class Line(asyncio.Protocol):
    """One kept connection, one review at a time; no more than it takes to know when the answer is whole."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] | None = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, blank, body = self._got.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self._got = b""
            if self.answered is not None:
                self.answered.set_result(head.split(b" ", 2)[1])

    async def ask(self, request: bytes) -> bytes:
        self.answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)  # type: ignore[attr-defined]
        return await self.answered


async def _connect(port: int, trust: ssl.SSLContext) -> list[Line]:
    here = asyncio.get_running_loop()
    made = [
        await here.create_connection(Line, "127.0.0.1", port, ssl=trust, server_hostname="localhost")
        for _ in range(CONNECTIONS)
    ]
    return [line for _, line in made]


async def _until_ready(port: int, trust: ssl.SSLContext) -> list[Line]:
    while True:
        try:
            lines = await _connect(port, trust)
            if await lines[0].ask(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n") == b"200":
                return lines
        except OSError:
            pass
        await asyncio.sleep(0.2)


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _pace(lines: list[Line], request: bytes) -> list[float]:
    """Seconds for each, from when it was due: whoever waits for a line waits too."""
    took: list[float] = []
    free: asyncio.Queue[Line] = asyncio.Queue()
    for line in lines:
        free.put_nowait(line)

    async def one(due: float) -> None:
        line = await free.get()
        assert await line.ask(request) == b"200"
        took.append(time.perf_counter() - due)
        free.put_nowait(line)

    begin = time.perf_counter() + 0.05
    async with asyncio.TaskGroup() as tasks:
        for number in range(RATE * SECONDS):
            due = begin + number / RATE
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.create_task(one(due))
    return sorted(took)


def _cpu(process: subprocess.Popen[bytes]) -> float:
    """Seconds so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure() -> None:
    store = stores.Store(time.time)
    server = servers.KubernetesServer(store, time.time)
    _fill(store)
    await server.start()
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        probe.close()
        process, trust = await _start(Path(name), server.kubeconfig(), port)
        try:
            lines = await _until_ready(port, trust)
            for what, namespace, gpus, path in (
                ("denied", "team-1", 1, names.VALIDATE_PATH), ("patched", "team-2", 1, names.MUTATE_PATH),
                ("admitted", "team-1", 0, names.VALIDATE_PATH),
            ):
                request = _post(path, _review(namespace, gpus))
                await _pace(lines, request)  # warm
                before = _cpu(process)
                took = await _pace(lines, request)
                _show(what, took, _cpu(process) - before)
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 10)
            await server.stop()


def _show(what: str, took: list[float], cpu: float) -> None:
    p50, p99 = (took[int(len(took) * share)] * 1000 for share in (0.5, 0.99))
    figures.show(
        f"{what}, {RATE}/s over TLS: p99", f"{p99:.2f} ms, p50 {p50:.2f} ms, CPU {cpu / len(took) * 1000:.2f} ms each",
        f"p99 {GOAL_MS:g} ms", p99 <= GOAL_MS,
    )


def main() -> None:
    asyncio.run(measure())
