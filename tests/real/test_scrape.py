"""Direct scrape beside a real Prometheus, on the same samples: for each workload the same verdict, by the same reason,
since the same time.

What each exporter showed at each moment is said once. Prometheus gets it as its own scrape would have stored it (the
exporter's pod in `pod`, what was there in `exported_pod`); the scrape source reads it as pages, moment by moment, by a
clock that the test sets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fallow.clients import exporters
from fallow.clients.prometheus import auth, client
from fallow.decide.idle import plan as brain
from fallow.model import decision, usage
from fallow.model.units import MINUTE
from fallow.observe.scrape import source as scrape
from fallow.observe.scrape import targets
from fallow.observe.usage import prometheus as eyes
from tests import builders
from tests.real import history
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend
from tests.unit.observe.usage.gpu_pods import BELIEF, held

EVERY = 30.0
STEPS = 181  # an hour and a half
GR, UTIL, ENERGY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
PROCESS, DEVICE = "gpu_idle_pod_gpu_utilization_percent", "gpu_idle_device_utilization_percent"
KERNEL = "hami_container_last_kernel_elapsed_seconds"

Values = Sequence[float | None] | float


def last(some: Sequence[float | None]) -> list[float | None]:
    """The last values up to now; before them there was nothing."""
    return [None] * (STEPS - len(some)) + list(some)


def until(minutes_ago: float, value: float = 0.0, then: float | None = None) -> list[float | None]:
    steps = int(minutes_ago * MINUTE / EVERY)
    return [value] * (STEPS - steps) + [then] * steps


@dataclasses.dataclass
class Day:
    """What there is, and what every exporter showed when."""

    now: float
    world: builders.World
    shown: list[tuple[str, str, dict[str, str], list[float | None]]] = dataclasses.field(default_factory=list)
    # node -> rounds at the end in which its exporter failed
    silent: dict[str, int] = dataclasses.field(default_factory=dict)

    def workload(self, name: str, node: str = "a", gpus: int = 1, minutes: float = 85, **said: Any) -> None:
        started = self.now - minutes * MINUTE
        pod = {"node": node, "started_at": started, "ready_since": started, "created_at": started, **said}
        self.world.workload(f"ml/{name}", gpus=[builders.Gpu()] * gpus, pod=pod)

    def show(self, node: str, metric: str, values: Values, labels: Mapping[str, str]) -> None:
        row: list[float | None] = [float(values)] * STEPS if isinstance(values, int | float) else list(values)
        cut = STEPS - self.silent.get(node, 0)
        self.shown.append((node, metric, dict(labels), row[:cut] + [None] * (STEPS - cut)))

    def gpu(
        self, name: str, number: int, node: str = "a", labels: Mapping[str, str] | None = None, **signals: Values
    ) -> None:
        said = labels or {
            "gpu": str(number), "UUID": f"GPU-{node}-{number}", "modelName": "NVIDIA H100", "Hostname": node,
            "pod": f"{name}-0", "namespace": "ml", "container": "main",
        }
        for metric, values in signals.items():
            self.show(node, metric, values, said)


def a_day(now: float) -> Day:
    day = Day(now, builders.World(now))
    for node in "abcdefg":
        day.world.node(node, shared=node in "de")
    _plain(day)
    _gaps(day)
    _parts(day)
    _dialects(day)
    _others(day)
    return day


def _plain(day: Day) -> None:
    for number, (name, values) in enumerate({
        "quiet": 0.0, "busy": 0.7, "stopped": until(45, 0.8, 0.0), "flicker": last([0.0] * 150 + [0.02] + [0.0] * 30),
        "long-ago": last([0.0] * 20 + [0.5] + [0.0] * 160), "at-threshold": until(10, 0.01, 0.0), "below": 0.0019,
        "cap": 1.04,
    }.items()):
        day.workload(name)
        day.gpu(
            name, number, **{GR: values, UTIL: 0.0, "DCGM_FI_DEV_FB_USED": 40_000.0, "DCGM_FI_DEV_POWER_USAGE": 72.0}
        )
    day.workload("young", minutes=20)
    day.gpu("young", 20, **{GR: last([0.0] * 40)})
    day.workload("pair", gpus=2)
    day.gpu("pair", 30, **{GR: 0.0})
    day.gpu("pair", 31, **{GR: until(20, 0.3, 0.0)})


def _gaps(day: Day) -> None:
    day.workload("unseen")
    day.workload("lacking", gpus=2)
    day.gpu("lacking", 40, **{GR: 0.0})
    day.workload("thin")
    day.gpu("thin", 41, **{GR: last([0.0] * 10)})
    day.workload("holes")
    day.gpu("holes", 42, **{GR: [0.0 if step % 2 else None for step in range(STEPS - 1)] + [0.0]})
    day.workload("old")
    day.gpu("old", 43, **{GR: until(10)})
    for number, (name, bad) in enumerate({"nan": math.nan, "blank": 2147483632.0, "minus": -1.0}.items(), start=44):
        day.workload(name)
        day.gpu(name, number, **{GR: bad})
    day.silent["f"] = 3
    day.workload("mute", "f")
    day.gpu("mute", 0, "f", **{GR: 0.0})
    day.workload("frozen", "g")
    day.gpu("frozen", 0, "g", **{GR: 0.0, ENERGY: 5e9})
    day.workload("thawed", "g")
    day.gpu("thawed", 1, "g", **{GR: 0.0, ENERGY: [5e9 + 1e6 * step for step in range(STEPS)]})


def _parts(day: Day) -> None:
    for number, (name, signals) in enumerate(
        {"mig-quiet": {GR: 0.0}, "mig-busy": {GR: 0.5}, "mig-blind": {UTIL: 0.0}}.items(), start=1
    ):
        day.workload(name, resources={"nvidia.com/mig-1g.10gb": 1})
        sliced = {
            "gpu": "7", "UUID": "GPU-sliced", "GPU_I_ID": str(number), "GPU_I_PROFILE": "1g.10gb", "Hostname": "a",
            "pod": f"{name}-0", "namespace": "ml", "container": "main",
        }
        day.gpu(name, 7, labels=sliced, **signals)
    for node, has_process in (("d", True), ("e", False)):
        for name, percent in ((f"{node}-one", 65.0), (f"{node}-two", 0.0)):
            day.workload(name, node)
            shared = {
                "gpu": "0", "UUID": f"GPU-{node}", "Hostname": node, "pod": f"{name}-0", "namespace": "ml",
                "container": "main",
            }
            day.gpu(name, 0, node, shared, **{GR: 0.65, UTIL: percent})
            if has_process:
                own = {
                    "gpu": "0", "uuid": f"GPU-{node}", "workload_pod": f"{name}-0", "workload_namespace": "ml",
                    "scope": "process",
                }
                day.show(node, PROCESS, percent, own)
                day.show(node, PROCESS, 0.0, {**own, "scope": "device"})
        day.show(node, DEVICE, 66.0, {"gpu": "0", "uuid": f"GPU-{node}", "model": "NVIDIA H100"})


def _dialects(day: Day) -> None:
    forms: dict[str, dict[str, str]] = {
        "lower-case": {"uuid": "GPU-lower", "hostname": "A", "pod": "lower-case-0", "namespace": "ml"},
        "old-names": {
            "UUID": "GPU-old", "Hostname": "a", "pod_name": "old-names-0", "pod_namespace": "ml",
            "container_name": "main",
        },
        "no-uuid": {"device": "nvidia9", "Hostname": "a", "pod": "no-uuid-0", "namespace": "ml"},
        "elsewhere": {"UUID": "GPU-elsewhere", "Hostname": "b", "pod": "elsewhere-0", "namespace": "ml"},
    }
    for name, labels in forms.items():
        day.workload(name, "b" if name == "elsewhere" else "a")
        day.gpu(name, 0, "b" if name == "elsewhere" else "a", labels, **{GR: until(35, 0.4, 0.0)})
    day.workload("nameless")
    day.gpu("nameless", 60, **{GR: 0.0})
    day.show("a", "DCGM_FI_PROF_DRAM_ACTIVE", 0.4, {"gpu": "60", "UUID": "GPU-a-60", "Hostname": "a"})


def _others(day: Day) -> None:
    signals: dict[str, tuple[str, Values]] = {
        "copies": ("DCGM_FI_DEV_MEM_COPY_UTIL", 3.0), "encodes": ("DCGM_FI_DEV_ENC_UTIL", until(10, 5.0, 0.0)),
        "tensors": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.2), "moves": ("DCGM_FI_PROF_PCIE_TX_BYTES", 5e7),
        "grows": ("DCGM_FI_DEV_FB_USED", until(10, 1000.0, 2000.0)), "stays": ("DCGM_FI_DEV_FB_USED", 2000.0),
        "kernels": (KERNEL, [10.0 + EVERY * step for step in range(STEPS)]), "launches": (KERNEL, 20.0),
    }
    for number, (name, (metric, values)) in enumerate(signals.items(), start=70):
        day.workload(name, "b")
        day.gpu(name, number, "b", **{metric: values, **({} if metric == KERNEL else {GR: 0.0})})
    day.workload("lied-to", "c")
    day.gpu("lied-to", 0, "c", **{GR: 0.0, UTIL: 80.0})
    day.workload("beside", "c")
    day.gpu("beside", 1, "c", **{GR: 0.0, UTIL: 0.0})


# ---- the two ways ----------------------------------------------------------------------------------------------------


def store(day: Day, prometheus: history.PrometheusWorld) -> None:
    """As Prometheus stores what it scrapes: its own labels win, and those that were there are renamed."""
    for node, metric, labels, values in day.shown:
        own = {"job": "dcgm", "instance": f"{node}:9400"}
        if "pod_name" not in labels:  # those who have such old names have no pod of the exporter's beside them
            own |= {"pod": f"dcgm-{node}", "namespace": "gpu-operator", "container": "exporter"}
        renamed = {(f"exported_{name}" if name in own else name): value for name, value in labels.items()}
        prometheus.series(metric, renamed | own, values=values, every=EVERY)
    for node in sorted({shown[0] for shown in day.shown}):
        down = day.silent.get(node, 0)
        prometheus.series(
            "up", {"job": "dcgm", "instance": f"{node}:9400"}, values=[1.0] * (STEPS - down) + [0.0] * down, every=EVERY
        )


def page(day: Day, node: str, step: int) -> str:
    lines = []
    for where, metric, labels, values in day.shown:
        if where == node and values[step] is not None:
            inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
            lines.append(f"{metric}{{{inner}}} {values[step]!r}\n")
    return "".join(lines)


@contextlib.asynccontextmanager
async def scraped(day: Day) -> AsyncIterator[scrape.ScrapeSource]:
    """The scrape source, after all moments."""
    at = 0

    def answer_of(node: str) -> loopback.Answer:
        def answer(_: loopback.Asked) -> web.Response:
            failed = at >= STEPS - day.silent.get(node, 0)
            return web.Response(status=500) if failed else web.Response(text=page(day, node, at))

        return answer

    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(pretend.Server())
        for node in sorted({shown[0] for shown in day.shown}):
            exporter = await stack.enter_async_context(loopback.serve(answer_of(node)))
            cluster.put("pods", exporter_pod(node, int(exporter.url.rpartition(":")[2])))
        finder = targets.Finder(await stack.enter_async_context(cluster.api()), BELIEF, follows=True)
        source = await stack.enter_async_context(
            scrape.ScrapeSource(finder, exporters.Exporters(timeout=5.0), interval=EVERY)
        )
        for at in range(STEPS):
            await source.scrape(day.now - EVERY * (STEPS - 1 - at))
        yield source


def exporter_pod(node: str, port: int) -> pretend.Object:
    ports = [{"name": "metrics", "containerPort": port}]
    return pretend.pod(
        f"dcgm-{node}", gpus=0, node=node, namespace="gpu-operator",
        spec={"containers": [{"name": "exporter", "ports": ports}]}, status={"phase": "Running", "podIP": "127.0.0.1"},
        labels={"app.kubernetes.io/name": "dcgm-exporter"},
    )


async def judge(source: Any, day: Day, mandate: Any) -> dict[str, decision.Finding]:
    seen = day.world.snapshot()
    windows = frozenset({builders.WINDOW})
    evidence: usage.Evidence = await source.evidence(held(seen.pods, seen.nodes.known), windows, day.now)
    assert evidence.trouble is None
    seen = msgspec.structs.replace(seen, evidence=evidence)
    for (window, threshold), rows in brain.candidate_rows(seen, mandate, day.now).items():
        looked = await source.look_back(
            evidence.usage[window], rows, held(seen.pods, seen.nodes.known), day.now, threshold
        )
        evidence.usage[window] = looked  # type: ignore[index]
    plan = brain.make_plan(seen, mandate, decision.Memory(), day.now)
    again: usage.Evidence = await source.again(held(seen.pods, seen.nodes.known), windows, day.now)
    first, second = evidence.usage[builders.WINDOW], again.usage[builders.WINDOW]
    assert sorted(zip(second.pod.tolist(), second.gpu, strict=True)) == sorted(
        zip(first.pod.tolist(), first.gpu, strict=True)
    )
    return {
        finding.workload.ref.name: finding for finding in (plan.findings[index] for index in range(len(plan.findings)))
    }


EXPECTED = {
    "quiet": "NeverUsed", "busy": "Busy", "stopped": "GoneIdle", "flicker": "Busy", "long-ago": "GoneIdle",
    "at-threshold": "Busy", "below": "NeverUsed", "cap": "Busy", "young": "TooYoung", "pair": "Busy",
    "unseen": "MissingGpuSeries", "lacking": "MissingGpuSeries", "thin": "LowCoverage", "holes": "LowCoverage",
    "old": "Stale", "nan": "NoSignal", "blank": "NoSignal", "minus": "NoSignal", "mute": "ExporterDown",
    "frozen": "FrozenSeries", "thawed": "NeverUsed", "mig-quiet": "NeverUsed", "mig-busy": "Busy",
    "mig-blind": "MigUtilOnly", "d-one": "Busy", "d-two": "NeverUsed", "e-one": "SharedDevice", "e-two": "SharedDevice",
    "lower-case": "GoneIdle", "old-names": "GoneIdle", "no-uuid": "GoneIdle", "elsewhere": "GoneIdle",
    "nameless": "Busy", "copies": "Busy", "encodes": "Busy", "tensors": "Busy", "moves": "Busy", "grows": "Busy",
    "stays": "NeverUsed", "kernels": "NeverUsed", "launches": "Busy", "lied-to": "ExporterSuspect",
    "beside": "ExporterSuspect",
}


@pytest.mark.accepts("idle", 1, 3, 4, 6, 7, 8, 9)
async def test_both_sources_give_the_same_verdicts(prometheus: history.PrometheusWorld) -> None:
    now = prometheus.now = math.floor(time.time() / 60) * 60 + 7.0
    day = a_day(now)
    mandate = builders.mandate()
    store(day, prometheus)
    await prometheus.start()
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none")) as asked:
        stored = await judge(eyes.PrometheusSource(asked), day, mandate)
    async with scraped(day) as source:
        ours = await judge(source, day, mandate)
    assert {name: str(finding.reason) for name, finding in stored.items()} == EXPECTED
    assert {name: str(finding.reason) for name, finding in ours.items()} == EXPECTED
    for name, one in stored.items():
        other = ours[name]
        assert (one.verdict, one.gpus, one.models, one.at_least) == (
            other.verdict, other.gpus, other.models, other.at_least
        ), name
        if one.idle_since is None or other.idle_since is None:
            assert one.idle_since is other.idle_since, name
        else:
            # Prometheus is asked until it is known to a tenth, or to 5 minutes.
            close = max(5 * MINUTE, 0.1 * (now - other.idle_since))
            assert other.idle_since == pytest.approx(one.idle_since, abs=close), name
