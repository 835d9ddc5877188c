"""Prometheus's own time for our questions, with a day of history of idle pods, beside gpu-pruner's one query.

A real Prometheus gets a day of three series of each GPU (gr_engine, gpu_util, power; every 30 s) by remote write. Then
our source asks as a one-shot does (once, knowing nothing) and as a daemon does (again, a cycle later), in this process;
how long the engine worked for it is read from Prometheus's own counters. The query of the original is written as it
writes it, without its join on node_dmi_info, which is not there.
"""

import asyncio
import pathlib
import re
import struct
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping

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
ORIGINAL = (
    "sum by (Hostname, exported_container, exported_pod, exported_namespace, gpu, modelName)"
    '(max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{exported_pod!="", exported_namespace!=""}[30m])) == 0'
)
BARS = {"first": 2.0, "later": 0.3}  # seconds at 5,000 pods


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


def _gpu(number: int, metric: str) -> dict[str, str]:
    node, index = f"node-{number // NODE}", str(number % NODE)
    return {
        "__name__": metric, "gpu": index, "UUID": f"GPU-{number:08d}", "device": f"nvidia{index}", "Hostname": node,
        "modelName": "NVIDIA A10G", "job": "dcgm", "instance": f"{node}:9400", "pod": f"nvidia-dcgm-exporter-{node}",
        "namespace": "gpu-operator", "container": "dcgm", "exported_pod": f"app-{number}",
        "exported_namespace": "bench", "exported_container": "main",
    }


def fill(url: str, pods: int, now: float) -> None:
    known = [(_labels(_gpu(number, metric)), value) for number in range(pods) for metric, value in GPUS.items()]
    for start in range(int(now) - DAY, int(now), 1800):
        stamps = range(start, min(start + 1800, int(now) + 1), EVERY)
        encoded = {value: _samples(stamps, value) for value in set(GPUS.values())}
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


async def ask(source: eyes.PrometheusSource, held: rows.Holders, url: str, now: float) -> float:
    """One cycle in which all are idle."""
    before = worked(url)
    seen = (await source.evidence(held, frozenset({WINDOW}), now, with_floors=False)).usage[WINDOW]
    everyone = usage.Candidates(np.arange(seen.rows), np.full(seen.rows, np.nan))
    found = await source.look_back(seen, everyone, held, now, 0.01)
    assert (found.last_active == -np.inf).all(), "none was ever active"
    return worked(url) - before


async def measure(url: str, pods: int, now: float) -> None:
    holders = tuple(gpu_pods.pod(f"app-{number}", f"node-{number // NODE}", "bench") for number in range(pods))
    places = gpu_pods.nodes(*(gpu_pods.node(f"node-{number}") for number in range(pods // NODE + 1)))
    held = gpu_pods.held(holders, places, version=1)
    original = min(ask_as_the_original(url, now) for _ in range(3))
    async with client.Prometheus(url, login=auth.Login(method="none")) as prometheus:
        source = eyes.PrometheusSource(prometheus)
        began = time.monotonic()
        first, wall = await ask(source, held, url, now), time.monotonic() - began
        later = sorted([await ask(source, held, url, now + step) for step in (1, 2, 3)])[1]
    share = pods / 5000
    for what, took in (("one-shot, and a daemon's first cycle", first), ("a daemon's later cycle", later)):
        bar = BARS["first" if took is first else "later"] * share
        told = f"{took:.2f} s of Prometheus (gpu-pruner's query: {original:.2f} s)"
        figures.show(f"{what}, {pods:,} idle pods", told, f"{bar:.2f} s", took <= bar)
    print(f"         the first took {wall:.1f} s on the wall")


def run(pods: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, port, now = pathlib.Path(place), cycle.free_port(), float(int(time.time()))
        (folder / "prometheus.yml").write_text("global: {}\n")
        command = [
            str(build.need("prometheus")), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/db",
            f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", "--log.level=error",
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait(f"{url}/-/ready")
                print(f"  writing a day of {pods:,} GPUs ...", flush=True)
                fill(url, pods, now)
                asyncio.run(measure(url, pods, now))
            finally:
                server.terminate()


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
