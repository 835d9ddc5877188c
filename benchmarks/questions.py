"""Prometheus's own time for our questions, with a day of history of idle pods, beside gpu-pruner's one query.

A real Prometheus gets a day of three series of each GPU (gr_engine, gpu_util, power; every 30 s) and of each exporter's
`up` by remote write. Then our source asks as a daemon does, first knowing nothing and then again, a cycle later, in
this process (what one look asks, which is less: one_shot.py); how long the engine worked for it is read from
Prometheus's own counters, several times: the least is what it takes, the median what a busy machine makes of it. How
many samples it reads does not depend on the machine. The query of the original asks what it asks by default: both
signals, joined with node-exporter's node_dmi_info.
"""

import asyncio
import contextlib
import pathlib
import re
import statistics
import struct
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from tests.real import build
from tests.unit.observe.usage import gpu_pods

from benchmarks import cycle, figures
from fallow.clients.prometheus import auth, client
from fallow.model import usage
from fallow.observe.usage import prometheus as eyes
from fallow.observe.usage import rows

WINDOW, DAY, EVERY, NODE = 1800.0, 86400, 30, 64
GPUS = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.0, "DCGM_FI_DEV_GPU_UTIL": 0.0, "DCGM_FI_DEV_POWER_USAGE": 72.0}
_PEAK = 'max_over_time({}{{exported_pod!="", exported_namespace!=""}}[30m])'.format
_HOSTS = 'label_replace(label_replace(node_dmi_info, "Hostname", "$1", "instance", "(.+)"), {})'.format(
    '"node_type", "$1", "product_name", "(.+)"'
)
ORIGINAL = (
    "sum by (Hostname, exported_container, exported_pod, exported_namespace, gpu, modelName) "
    f"({_PEAK('DCGM_FI_PROF_GR_ENGINE_ACTIVE')} or {_PEAK('DCGM_FI_DEV_GPU_UTIL')} / 100) "
    f"* on (Hostname) group_left (node_type) {_HOSTS} == 0"
)
STRICTEST = usage.Strictest(quiet=0.01, busy=0.01, coverage=0.8, max_sample_age=180.0)  # as the flags have it
BARS = {"first": 2.0, "later": 0.3}  # seconds at 5,000 pods
CYCLES = {"first": "a daemon's first cycle", "later": "a daemon's later cycle"}
ROUNDS = 3

L = TypeVar("L")
Series: TypeAlias = Sequence[tuple[dict[str, str], float]]  # labels, and the one value that it always has


# ---- a day of history, by remote write: protobuf by hand, and snappy that compresses nothing ----


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _labels(labels: Mapping[str, str]) -> bytes:
    pairs = (_field(1, key.encode()) + _field(2, value.encode()) for key, value in sorted(labels.items()))
    return b"".join(_field(1, pair) for pair in pairs)


def _samples(stamps: Iterable[float], value: float) -> bytes:
    made = (b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(int(at * 1000)) for at in stamps)
    return b"".join(_field(2, each) for each in made)


def _snappy(content: bytes) -> bytes:
    parts = (content[start : start + 65536] for start in range(0, len(content), 65536))
    return _varint(len(content)) + b"".join(b"\xf4" + struct.pack("<H", len(part) - 1) + part for part in parts)


def label(metric: str, number: int, node: str, namespace: str, pod: str) -> dict[str, str]:
    """What dcgm-exporter's series of that GPU is called."""
    index = str(number % NODE)
    return {
        "__name__": metric, "gpu": index, "UUID": f"GPU-{number:08d}", "device": f"nvidia{index}", "Hostname": node,
        "modelName": "NVIDIA A10G", "job": "dcgm", "instance": f"{node}:9400", "pod": f"nvidia-dcgm-exporter-{node}",
        "namespace": "gpu-operator", "container": "dcgm", "exported_pod": pod, "exported_namespace": namespace,
        "exported_container": "main",
    }


def ups(nodes: Iterable[str]) -> Series:
    """What every Prometheus writes of the targets that it scrapes."""
    return [({"__name__": "up", "job": "dcgm", "instance": f"{node}:9400"}, 1.0) for node in nodes]


def hosts(nodes: Iterable[str]) -> Series:
    """What node-exporter says of each node: the original finds nothing on a node without it."""
    dmi = {"__name__": "node_dmi_info", "job": "node", "product_name": "g5.48xlarge"}
    return [({**dmi, "instance": node}, 1.0) for node in nodes]


def _series(pods: int) -> Series:
    gpus = [
        (label(metric, number, f"node-{number // NODE}", "bench", f"app-{number}"), value)
        for number in range(pods) for metric, value in GPUS.items()
    ]
    nodes = [f"node-{number}" for number in range(pods // NODE + 1)]
    return [*gpus, *ups(nodes), *hosts(nodes)]


def fill(url: str, series: Series, begin: float, now: float) -> None:
    known = [(_labels(labels), value) for labels, value in series]
    for start in range(int(begin), int(now), 1800):
        stamps = range(start, min(start + 1800, int(now) + 1), EVERY)
        encoded = {value: _samples(stamps, value) for value in {value for _, value in known}}
        for first in range(0, len(known), 1000):
            body = b"".join(_field(1, labels + encoded[value]) for labels, value in known[first : first + 1000])
            headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
            request = urllib.request.Request(f"{url}/api/v1/write", data=_snappy(body), headers=headers)
            urllib.request.urlopen(request, timeout=60).read()


# ---- the question ----


def worked(url: str) -> float:
    """Seconds that the engine has worked so far."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    parts = re.findall(r'prometheus_engine_query_duration_seconds_sum\{slice="(\w+)"\} (\S+)', text)
    return sum(float(seconds) for _, seconds in parts)


def ask_as_the_original(url: str, now: float) -> float:
    before, form = worked(url), urllib.parse.urlencode({"query": ORIGINAL, "time": now}).encode()
    found = msgspec.json.decode(urllib.request.urlopen(f"{url}/api/v1/query", data=form, timeout=60).read())
    assert found["data"]["result"], "it finds the idle ones"
    return worked(url) - before


class Noting(client.Prometheus):
    """Remembers what it was asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url, login=auth.Login(method="none"))
        self.asked: list[tuple[str, float]] = []

    async def query(self, promql: str, at: float, *, row: type[L]) -> client.QueryAnswer[client.InstantSeries[L]]:
        self.asked.append((promql, at))
        return await super().query(promql, at, row=row)


def count_samples(url: str, asked: Iterable[tuple[str, float]]) -> int:
    """How many samples the server reads for these: the same on any machine, however busy."""
    total = 0
    for promql, at in asked:
        form = urllib.parse.urlencode({"query": promql, "time": at, "stats": "1"}).encode()
        found = msgspec.json.decode(urllib.request.urlopen(f"{url}/api/v1/query", data=form, timeout=60).read())
        total += found["data"]["stats"]["samples"]["totalQueryableSamples"]
    return total


async def ask(source: eyes.PrometheusSource, held: rows.Holders, url: str, now: float) -> float:
    """One cycle in which all are idle."""
    before = worked(url)
    asked = source.evidence(held, frozenset({WINDOW}), now, with_floors=False, strictest=STRICTEST)
    seen = (await asked).usage[WINDOW]
    everyone = usage.Candidates(np.arange(seen.rows), np.full(seen.rows, np.nan))
    found = await source.look_back(seen, everyone, held, now, 0.01)
    assert (found.last_active == -np.inf).all(), "none was ever active"
    return worked(url) - before


async def measure(url: str, pods: int, now: float) -> None:
    holders = tuple(gpu_pods.pod(f"app-{number}", f"node-{number // NODE}", "bench") for number in range(pods))
    places = gpu_pods.nodes(*(gpu_pods.node(f"node-{number}") for number in range(pods // NODE + 1)))
    held = gpu_pods.held(holders, places, version=1)
    first, later, original, walls = list[float](), list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        original.append(ask_as_the_original(url, now))
        async with Noting(url) as prometheus:
            source, began = eyes.PrometheusSource(prometheus), time.monotonic()
            first.append(await ask(source, held, url, now))
            walls.append(time.monotonic() - began)
            of_first, prometheus.asked = prometheus.asked, []
            later += [await ask(source, held, url, now + step) for step in (1, 2, 3)]
            of_later = prometheus.asked[: len(prometheus.asked) // 3]
    print(f"         gpu-pruner's query: {min(original):.2f} s, median {statistics.median(original):.2f}")
    for name, taken, asked in (("first", first, of_first), ("later", later, of_later)):
        bar, least = BARS[name] * pods / 5000, min(taken)
        ratio = f"{least / min(original):.1f} times gpu-pruner's query"
        told = f"{least:.2f} s of Prometheus, median {statistics.median(taken):.2f}, {ratio}"
        figures.show(f"{CYCLES[name]}, {pods:,} idle pods", told, f"{bar:.2f} s", least <= bar)
        print(f"         {len(asked)} questions, {count_samples(url, asked) / 1e6:.1f} million samples", flush=True)
    print(f"         the first took {min(walls):.1f} s on the wall")


@contextlib.contextmanager
def prometheus(folder: pathlib.Path) -> Iterator[str]:
    """The address of a new one."""
    port = cycle.free_port()
    (folder / "prometheus.yml").write_text("global: {}\n")
    command = [
        str(build.need("prometheus")), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/db",
        f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", "--log.level=error",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(f"{url}/-/ready")
            yield url
        finally:
            server.terminate()


def run(pods: int) -> None:
    with tempfile.TemporaryDirectory() as place, prometheus(pathlib.Path(place)) as url:
        now = float(int(time.time()))
        print(f"  writing a day of {pods:,} GPUs ...", flush=True)
        fill(url, _series(pods), now - DAY, now)
        asyncio.run(measure(url, pods, now))


def _wait(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("Prometheus did not start")


def main() -> None:
    for pods in (1000, 5000):
        run(pods)
