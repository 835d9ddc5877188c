"""A real Prometheus that remembers what the test says happened.

In: series in the language of tests (`series`, `dcgm_gpu`), each a row of values that ends now.
Out: a Prometheus on 127.0.0.1 whose TSDB holds them, so a window of half an hour needs no waiting and PromQL is the
real one's.
Invariant: unless a test gives it `scrape_configs`, the server scrapes nothing and nobody writes to it: it answers only
what was written before `start`, and instant queries find it for the five minutes that Prometheus looks back.
"""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import yaml

from tests.real import build

Values = float | Sequence[float | None]  # one value throughout, or the last ones up to now (None: not scraped)
_EXPORTER = {"namespace": "gpu-operator", "container": "nvidia-dcgm-exporter"}


_ACTIVITY = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.9, "DCGM_FI_DEV_GPU_UTIL": 90.0}


class PrometheusWorld:
    """Say what was measured, then `await start()`; `url` is the base address."""

    def __init__(self, folder: pathlib.Path, now: float | None = None) -> None:
        self.now = time.time() if now is None else now
        self.url = ""
        self.scrape_configs: list[Any] = []  # none: it answers only what was written before
        self._folder = folder
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
        self._process: subprocess.Popen[bytes] | None = None

    # --- what was measured ---

    def series(
        self,
        name: str,
        labels: Mapping[str, str],
        values: Sequence[float | None] | None = None,
        constant: float | None = None,
        minutes: float = 60,
        every: float = 30,
        until: float | None = None,
    ) -> None:
        """One series: `values` (the last of them at `until`; None leaves a gap), or `constant` for so many minutes."""
        if (values is None) == (constant is None):
            raise ValueError(f"series {name}: say either values or constant")
        row = [constant] * (int(minutes * 60 / every) + 1) if values is None else values
        end = self.now if until is None else until
        first = end - every * (len(row) - 1)
        samples = [(first + every * step, value) for step, value in enumerate(row) if value is not None]
        self._series[name, tuple(sorted(labels.items()))] = samples

    def remember(self, name: str, labels: Mapping[str, str], samples: Sequence[tuple[float, float]]) -> None:
        """One series as another server has it: instants and values."""
        self._series[name, tuple(sorted(labels.items()))] = list(samples)

    def copies(self, *said: Mapping[str, str], busy: Sequence[int] = ()) -> None:
        """All that was said so far, once for each of these further labels, as where a server holds several clusters or
        replicas; in those of `busy` all GPUs work."""
        before, self._series = self._series, {}
        for at, more in enumerate(said):
            for (name, labels), samples in before.items():
                works = at in busy and name in _ACTIVITY
                values = [(when, _ACTIVITY[name]) for when, _ in samples] if works else samples
                self.remember(name, {**dict(labels), **more}, values)

    def dcgm_gpu(
        self,
        node: str,
        gpu: int,
        *,
        pod: str | None = None,
        namespace: str = "default",
        container: str = "main",
        uuid: str | None = None,
        model: str = "NVIDIA H100 80GB HBM3",
        gr_engine: Values | None = 0.0,
        gpu_util: Values | None = 0.0,
        power: Values | None = 72.0,
        memory_used: Values | None = 40_000.0,
        more: Mapping[str, Values] | None = None,
        honor_labels: bool = False,
        mig: tuple[int, str] | None = None,
        minutes: float = 60,
        every: float = 30,
        until: float | None = None,
    ) -> str:
        """What dcgm-exporter shows of one GPU (or of one MIG instance: its id and profile); its UUID.

        None leaves that signal out; `more` adds others by their DCGM name. Without `honor_labels` the workload's labels
        arrive as exported_pod and so on, because the scrape's own pod, namespace and container are the exporter's.
        """
        uuid = uuid or f"GPU-{node}-{gpu}"
        labels = _dcgm_labels(node, gpu, uuid, model, mig) | _pod_labels(node, pod, namespace, container, honor_labels)
        signals = {
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": gr_engine,
            "DCGM_FI_DEV_GPU_UTIL": gpu_util,
            "DCGM_FI_DEV_POWER_USAGE": power,
            "DCGM_FI_DEV_FB_USED": memory_used,
            **(more or {}),
        }
        for name, values in signals.items():
            if values is not None:
                self._measure(name, labels, values, minutes, every, until)
        if ("up", tuple(sorted(_target(node).items()))) not in self._series:
            self.exporter_up(node, 1.0, minutes, every, until)
        return uuid

    def exporter_up(
        self, node: str, values: Values, minutes: float = 60, every: float = 30, until: float | None = None
    ) -> None:
        self._measure("up", _target(node), values, minutes, every, until)

    def _measure(
        self, name: str, labels: Mapping[str, str], values: Values, minutes: float, every: float, until: float | None
    ) -> None:
        if isinstance(values, int | float):
            self.series(name, labels, constant=float(values), minutes=minutes, every=every, until=until)
        else:
            self.series(name, labels, values=values, every=every, until=until)

    # --- the server ---

    async def start(self) -> str:
        """Write the history, start, and wait until queries are answered."""
        await asyncio.to_thread(self._write_blocks)
        await self._launch(_free_port())
        return self.url

    async def stop(self) -> None:
        """Politely; `start` may follow, with what was added meanwhile."""
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 20)
            self._process = None

    async def kill(self) -> None:
        """As if the machine had gone; `revive` brings it back at the same address."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, 20)
            self._process = None

    async def revive(self) -> None:
        await self._launch(int(self.url.rpartition(":")[2]))

    async def query(self, promql: str, at: float | None = None) -> list[Any]:
        """What the server itself says, as the test's own witness."""
        form = {"query": promql, "time": str(self.now if at is None else at)}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as http,
            http.post(f"{self.url}/api/v1/query", data=form) as answer,
        ):
            found: list[Any] = (await answer.json())["data"]["result"]
            return found

    async def _launch(self, port: int) -> None:
        self._process = self._spawn(port)
        self.url = f"http://127.0.0.1:{port}"
        await self._wait_until_ready()

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump({"global": {}, "scrape_configs": self.scrape_configs}))
        command = [
            str(build.need("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={self._blocks}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.retention.time=10y",
            "--log.level=warn",
        ]
        with (self._folder / "prometheus.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 90
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2)) as http:
            while not await _answers(http, f"{self.url}/-/ready"):
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    words = (self._folder / "prometheus.log").read_text()[-800:]
                    raise RuntimeError(f"Prometheus did not start: {words}")
                await asyncio.sleep(0.02)

    @property
    def _blocks(self) -> pathlib.Path:
        return self._folder / "tsdb"

    def _write_blocks(self) -> None:
        """Anew at each start, or samples said twice would be there twice."""
        shutil.rmtree(self._blocks, ignore_errors=True)
        self._blocks.mkdir(parents=True)
        if not self._series:
            return
        text = self._folder / "history.om"
        text.write_text(self._openmetrics())
        command = [
            str(build.need("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(text), str(self._blocks)
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"promtool refused the history: {done.stderr.strip()[-800:]}")

    def _openmetrics(self) -> str:
        lines = [
            line for (name, labels), samples in sorted(self._series.items()) for line in _lines(name, labels, samples)
        ]
        return "\n".join([*lines, "# EOF", ""])


def _lines(name: str, labels: tuple[tuple[str, str], ...], samples: list[tuple[float, float]]) -> list[str]:
    inner = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
    return [f"{name}{{{inner}}} {value!r} {at:.3f}" for at, value in samples]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _dcgm_labels(node: str, gpu: int, uuid: str, model: str, mig: tuple[int, str] | None) -> dict[str, str]:
    labels = {"gpu": str(gpu), "UUID": uuid, "device": f"nvidia{gpu}", "modelName": model, "Hostname": node}
    labels["pci_bus_id"] = f"00000000:{0x10 + gpu:02X}:00.0"
    labels["DCGM_FI_DRIVER_VERSION"] = "570.86.15"
    if mig is not None:
        labels |= {"GPU_I_ID": str(mig[0]), "GPU_I_PROFILE": mig[1]}
    return labels


def _pod_labels(node: str, pod: str | None, namespace: str, container: str, honor_labels: bool) -> dict[str, str]:
    target = _target(node)
    workload = {"pod": pod, "namespace": namespace, "container": container} if pod else {}
    if honor_labels:
        return target | workload
    return target | {f"exported_{key}": value for key, value in workload.items()}


def _target(node: str) -> dict[str, str]:
    """What the scrape itself adds: the exporter's pod on that node."""
    return {
        "job": "nvidia-dcgm-exporter", "instance": f"{node}:9400", "pod": f"nvidia-dcgm-exporter-{node}", **_EXPORTER
    }


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
