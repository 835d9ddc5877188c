"""What the admission webhook of budgets takes for a review: 500 a second over TLS, beside what the machine takes alone.

    python -m benchmarks webhook

The webhook as a process of its own, over a pretend API server with 50 budgets and 1,000 namespaces; connections that
are kept, as the API server keeps them. Reviews come at even distances, whether the one before was answered or not: what
waits in line counts. What does not is that the generator's own sleep ended late: timers of an event loop are of whole
milliseconds, so it is made of threads that sleep. Pods that are denied, patched and admitted.

How to read it. The floor is a server of a few lines in a process of its own that reads the same request over TLS and
answers a constant: no webhook in Python is quicker on this machine. Both are asked in turns of a second, in the same
run, by the same generator. Where the floor's own p99 is below 1 ms the machine is calm, and the bars of milliseconds
are judged. Where it is not (others have the cores, or the host has them) a p99 in milliseconds tells of the others, and
what is judged is how many times the floor's ours is. CPU for each review, of either process, is told with both.

The last figure is taken while another process lists 20,000 pods again and again, beside one that is taken while nobody
does; the webhook itself lists none.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks import figures
from fallow import names
from fallow.act import certificates
from fallow.clients.kubernetes import config
from fallow.model import units
from fallow.model.policies import budget_crd
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server as servers

RATE, SECONDS, CONNECTIONS = 500, 10, 8
BUDGETS, NAMESPACES = 50, 1000
GOAL_P50, GOAL_P99 = 0.6, 2.0  # ms
CALM_P99 = 1.0  # ms, of the floor
GOAL_TIMES = 2.0  # the floor's, where the machine is not calm
LISTED = 20_000  # pods, beside


def _review(namespace: str, gpus: int) -> bytes:
    """As large as the reviews of a real API server are: 5 KB."""
    limits = {"cpu": "8", "memory": "64Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    variables = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(40)]
    container = {"name": "main", "image": "registry.example/app:1", "env": variables, "resources": {"limits": limits}}
    spec = {"containers": [container], "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    fields: dict[str, Any] = {f"f:{number}": {} for number in range(60)}
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


class Line:
    """One kept connection, one review at a time, by blocking calls: between a review and its answer nothing runs here
    but TLS."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=30.0)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = trust.wrap_socket(plain, server_hostname="localhost")

    def ask(self, request: bytes) -> bytes:
        """The status."""
        self._socket.sendall(request)
        got = self._socket.recv(65536)
        while not _is_whole(got):
            got += self._socket.recv(65536)
        return got.split(b" ", 2)[1]

    def pace(self, request: bytes, begin: float, distance: float, count: int) -> tuple[list[float], float]:
        """Seconds for each. One that is due while another is answered waits, and that counts; that we woke up late from
        our own sleep does not, and is told: the most of it."""
        took, latest = list[float](), 0.0
        for number in range(count):
            due = begin + number * distance
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
                woke = time.perf_counter()
                latest, due = max(latest, woke - due), woke
            assert self.ask(request) == b"200"
            took.append(time.perf_counter() - due)
        return took, latest


def _is_whole(got: bytes) -> bool:
    head, blank, body = got.partition(b"\r\n\r\n")
    return bool(blank) and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])


def _until_ready(port: int, trust: ssl.SSLContext) -> list[Line]:
    while True:
        try:
            if Line(port, trust).ask(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n") == b"200":
                return [Line(port, trust) for _ in range(CONNECTIONS)]
        except OSError:
            pass
        time.sleep(0.2)


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _pace(lines: list[Line], request: bytes, seconds: int = SECONDS) -> tuple[list[float], float]:
    """Each line its own thread, one after the other in even distances."""
    begin, distance = time.perf_counter() + 0.05, len(lines) / RATE
    with concurrent.futures.ThreadPoolExecutor(len(lines)) as threads:
        paced = [
            threads.submit(line.pace, request, begin + at / RATE, distance, RATE * seconds // len(lines))
            for at, line in enumerate(lines)
        ]
        done = [each.result() for each in paced]
    return sorted(one for took, _ in done for one in took), max(late for _, late in done)


class Asked:
    """A server that is asked, and what it took so far."""

    def __init__(self, process: subprocess.Popen[bytes], lines: list[Line]) -> None:
        self.process, self.lines = process, lines
        self.took, self.late, self.cpu = list[float](), 0.0, 0.0

    def ask(self, request: bytes) -> None:
        before = _cpu(self.process)
        took, late = _pace(self.lines, request, 1)
        self.cpu += _cpu(self.process) - before
        self.took, self.late = sorted((*self.took, *took)), max(self.late, late)

    def percentile(self, share: float) -> float:
        """ms."""
        return self.took[int(len(self.took) * share)] * 1000

    @property
    def cpu_each(self) -> float:
        """ms."""
        return self.cpu / len(self.took) * 1000


def _ask_in_turns(
    webhook: tuple[subprocess.Popen[bytes], list[Line]], floor: tuple[subprocess.Popen[bytes], list[Line]],
    request: bytes,
) -> tuple[Asked, Asked]:
    for _, lines in (webhook, floor):
        _pace(lines, request, 2)  # warm
    ours, theirs = Asked(*webhook), Asked(*floor)
    for _ in range(SECONDS):
        ours.ask(request)
        theirs.ask(request)
    return ours, theirs


def _cpu(process: subprocess.Popen[bytes]) -> float:
    """Seconds so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure() -> None:
    store = stores.Store(time.time)
    server = servers.KubernetesServer(store, time.time)
    _fill(store)
    await server.start()
    with tempfile.TemporaryDirectory() as name:
        port, floor_port = _find_ports()
        process, trust = await _start(Path(name), server.kubeconfig(), port)
        floor = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, "-m", "benchmarks.webhook", "floor", str(floor_port), name]
        )
        try:
            lines = await asyncio.to_thread(_until_ready, port, trust)
            bare = await asyncio.to_thread(_until_ready, floor_port, trust)
            for what, namespace, gpus, path in (
                ("denied", "team-1", 1, names.VALIDATE_PATH), ("patched", "team-2", 1, names.MUTATE_PATH),
                ("admitted", "team-1", 0, names.VALIDATE_PATH),
            ):
                request = _post(path, _review(namespace, gpus))
                _show(what, *await asyncio.to_thread(_ask_in_turns, (process, lines), (floor, bare), request))
            await asyncio.to_thread(_compare_beside, process, lines, _post(names.MUTATE_PATH, _review("team-2", 1)))
        finally:
            for each in (process, floor):
                each.send_signal(signal.SIGTERM)
                await asyncio.to_thread(each.wait, 10)
            await server.stop()


def _find_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _compare_beside(process: subprocess.Popen[bytes], lines: list[Line], request: bytes) -> None:
    """Alone, beside a process that lists, alone: p99 and CPU of each."""
    told = list[tuple[float, float]]()
    for is_beside in (False, True, False):
        with _listing() if is_beside else contextlib.nullcontext():
            before = _cpu(process)
            took, _ = _pace(lines, request)
            told.append((took[int(len(took) * 0.99)] * 1000, (_cpu(process) - before) / len(took) * 1000))
    (alone, used), (beside, used_beside), (after, _) = told
    shown = (
        f"p99 {beside:.2f} ms (CPU {used_beside:.2f} ms each), {alone:.2f} before and {after:.2f} after it (CPU "
        f"{used:.2f} ms each), {beside / max(alone, after):.2f} times"
    )
    figures.show(f"patched while {LISTED:,} pods are listed", shown, "unchanged", beside <= 1.2 * max(alone, after))


@contextlib.contextmanager
def _listing() -> Iterator[None]:
    words = [sys.executable, "-m", "benchmarks.pods", str(LISTED), "10"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        with subprocess.Popen([sys.executable, "-m", "benchmarks.webhook", str(port)]) as lister:
            try:
                yield
            finally:
                lister.kill()
                server.kill()


async def _list(port: int) -> None:
    """In a process of its own, until it is killed: as the daemon does."""
    from fallow.clients.kubernetes import api as kube
    from fallow.observe.cluster import tenants

    async with kube.Api(config.Access(server=f"http://127.0.0.1:{port}", context="bench"), qps=10_000) as api:
        while True:
            await next(iter(tenants.Tenants(api)._pods.followers.values())).list_once()


class Floor(asyncio.Protocol):
    """The least a server can do: it waits until a request is whole, and answers a constant."""

    def __init__(self) -> None:
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._got.startswith(b"GET") or _is_whole(self._got):
            self._got = b""
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"x" * 300)


async def _serve_floor(port: int, folder: str) -> None:
    """In a process of its own, until it is told to go."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    server = await asyncio.get_running_loop().create_server(Floor, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


def _show(what: str, ours: Asked, floor: Asked) -> None:
    late = max(ours.late, floor.late) * 1000
    print(
        f"         {what}: CPU {ours.cpu_each:.2f} ms each, of the floor {floor.cpu_each:.2f}; the generator at most "
        f"{late:.1f} ms late"
    )
    is_calm = floor.percentile(0.99) < CALM_P99
    for name, share, goal in (("p50", 0.5, GOAL_P50), ("p99", 0.99, GOAL_P99)):
        found, least = ours.percentile(share), floor.percentile(share)
        times = found / least
        shown = f"{found:.2f} ms, the floor {least:.2f} ms: {times:.2f} times"
        bar = f"{goal:g} ms" if is_calm else f"{GOAL_TIMES:g} times: the machine is not calm"
        held = found <= goal if is_calm else times <= GOAL_TIMES
        figures.show(f"{what}, {RATE}/s over TLS: {name}", shown, bar, held)


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    if sys.argv[1] == "floor":
        asyncio.run(_serve_floor(int(sys.argv[2]), sys.argv[3]))
    else:
        asyncio.run(_list(int(sys.argv[1])))
