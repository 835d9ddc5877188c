"""What the controller makes of our exporter's own pages, as the only source: 90 minutes of them, from several nodes.

The pages are the exporter's, poll by poll, on a pretend driver, /proc and kubelet. They are given to a real Prometheus
as it would have stored them, to the scrape source one by one, and to a scrape source that sees only the last one and
has to take the exporter's word for what was before. All three must come to the same verdicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import parser

from fallow.clients import exporters
from fallow.clients.prometheus import auth, client
from fallow.model.units import MINUTE
from fallow.model.usage import Signal
from fallow.observe.scrape import source as scrape
from fallow.observe.scrape import targets
from fallow.observe.usage import prometheus as eyes
from tests import builders
from tests.fakes.nvml import fake
from tests.real import gpu_node, history, test_scrape
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend
from tests.unit.observe.usage.gpu_pods import BELIEF, held

EVERY, STEPS = test_scrape.EVERY, test_scrape.STEPS
MODEL = "NVIDIA H100 80GB HBM3"
SLICE = "nvidia.com/mig-1g.10gb"


def gpu(node: str, index: int, *tasks: tuple[int, int], now: float, **more: Any) -> fake.Device:
    """A device with processes, each (PID, percent); the driver has one sample of each that works."""
    stamp = int((now - 1) * 1e6)
    listed = [fake.Process(pid) for pid, _ in tasks]
    samples = [fake.Sample(pid, percent, stamp) for pid, percent in tasks if percent]
    busy = min(100, sum(percent for _, percent in tasks))
    return fake.Device(
        **{"uuid": f"GPU-{node}-{index}", "utilization": busy, "processes": listed, "samples": samples, **more}
    )


def whole(node: gpu_node.GpuNode, now: float, end: float) -> None:
    """Whole GPUs, each in one pod's hands."""
    ago = end - now
    node.drive(
        gpu("a", 0, (100, 0), now=now),
        gpu("a", 1, (101, 0 if ago <= 45 * MINUTE else 80), now=now),
        gpu("a", 2, (102, 60), now=now),
        gpu("a", 3, now=now),
        gpu("a", 4, (104, 1 if ago == 10 * MINUTE else 0), now=now),
        gpu("a", 5, (105, 0), now=now, utilization=70),  # somebody works there whom the driver does not list
        gpu("a", 6, now=now),  # nobody's
    )


def sliced(node: gpu_node.GpuNode, now: float, end: float) -> None:
    """Time slices: GPU 0 of a busy pod, one that does nothing, one that never started anything; GPU 1 of quiet ones."""
    node.drive(gpu("d", 0, (200, 65), (201, 0), now=now), gpu("d", 1, (203, 0), now=now))


def divided(node: gpu_node.GpuNode, now: float, end: float) -> None:
    """MIG: an instance is measured as a whole."""
    instances = [fake.Instance(1, uuid="MIG-1"), fake.Instance(2, uuid="MIG-2", sm=57.0, graphics=57.0)]
    listed = [fake.Process(300, gi=1, ci=0), fake.Process(301, gi=2, ci=0)]
    node.drive(gpu("m", 0, now=now, mig=1, gpm=True, instances=instances, processes=listed))


def blind(node: gpu_node.GpuNode, now: float, end: float) -> None:
    """MIG of a generation whose instances cannot be measured."""
    node.drive(gpu(
        "n", 0, now=now, mig=1, instances=[fake.Instance(1, uuid="MIG-3")], processes=[fake.Process(310, gi=1, ci=0)]
    ))


def old(node: gpu_node.GpuNode, now: float, end: float) -> None:
    """A driver that does not tell processes apart: what is left is the device, for whoever has it alone."""
    calls = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
    until = 90 if end - now > 45 * MINUTE else 0
    node.drive(
        gpu("u", 0, (400, 0), now=now, utilization=until), gpu("u", 1, (401, 0), now=now, utilization=50),
        errors=[fake.Error(call, 3) for call in calls],
    )


def slow(node: gpu_node.GpuNode, now: float, end: float) -> None:
    """The same, and time slices: nobody can say whose work it is, unless there is none."""
    calls = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
    node.drive(
        gpu("v", 0, (500, 0), (501, 0), now=now, utilization=50), gpu("v", 1, (502, 0), now=now),
        errors=[fake.Error(call, 3) for call in calls],
    )


DRIVES = {"a": whole, "d": sliced, "m": divided, "n": blind, "u": old, "v": slow}
SHARED = "dv"
# node, workload, device, resource, PID
HOLDS = (
    ("a", "quiet", "GPU-a-0", "", 100), ("a", "stopped", "GPU-a-1", "", 101), ("a", "busy", "GPU-a-2", "", 102),
    ("a", "empty", "GPU-a-3", "", 0), ("a", "flicker", "GPU-a-4", "", 104), ("a", "haunted", "GPU-a-5", "", 105),
    ("d", "d-busy", "GPU-d-0::0", "", 200), ("d", "d-quiet", "GPU-d-0::1", "", 201),
    ("d", "d-empty", "GPU-d-0::2", "", 0),
    ("d", "d-alone", "GPU-d-1::0", "", 203),
    ("m", "mig-quiet", "MIG-1", SLICE, 300), ("m", "mig-busy", "MIG-2", SLICE, 301),
    ("n", "mig-blind", "MIG-3", SLICE, 310),
    ("u", "old-stopped", "GPU-u-0", "", 400), ("u", "old-busy", "GPU-u-1", "", 401),
    ("v", "slow-one", "GPU-v-0::0", "", 500), ("v", "slow-two", "GPU-v-0::1", "", 501),
    ("v", "slow-quiet", "GPU-v-1::0", "", 502),
)
CLOSE = 5 * MINUTE  # as closely as Prometheus is asked for the last activity
EXPECTED = {
    "quiet": "NeverUsed", "stopped": "GoneIdle", "busy": "Busy", "empty": "NeverUsed", "flicker": "Busy",
    "haunted": "Busy",
    "d-busy": "Busy", "d-quiet": "NeverUsed", "d-empty": "NeverUsed", "d-alone": "NeverUsed",
    "mig-quiet": "NeverUsed", "mig-busy": "Busy", "mig-blind": "NoSignal",
    "old-stopped": "GoneIdle", "old-busy": "Busy", "slow-one": "SharedDevice", "slow-two": "SharedDevice",
    "slow-quiet": "NeverUsed",
}
# One page: what was active within the window is known to have been, but not how much; and devices themselves have no
# past in it.
AT_ONCE = {**EXPECTED, "flicker": "LowCoverage", "old-stopped": "LowCoverage", "slow-quiet": "LowCoverage"}


def describe(now: float) -> test_scrape.Day:
    day = test_scrape.Day(now, builders.World(now))
    for name in DRIVES:
        day.world.node(name, shared=name in SHARED)
    for node, name, _, resource, _ in HOLDS:
        day.workload(name, node, minutes=85, **({"resources": {resource: 1}} if resource else {}))
    return day


async def record(folder: pathlib.Path, now: float) -> dict[str, list[str]]:
    """The pages of every node's exporter, one each half minute up to now."""
    pages: dict[str, list[str]] = {}
    with gpu_node.nodes(folder, list(DRIVES)) as nodes:
        for node, name, device, resource, pid in HOLDS:
            nodes[node].host(f"{name}-0", device, pid=pid, **({"resource": resource} if resource else {}))
        for name, place in nodes.items():
            past = gpu_node.Past(place, EVERY)
            pages[name] = []
            for step in range(STEPS):
                at = now - EVERY * (STEPS - 1 - step)
                DRIVES[name](place, at, now)
                pages[name].append(await past.page(at))
            await past.close()
    return pages


def store(
    pages: dict[str, list[str]], prometheus: history.PrometheusWorld, target: dict[str, str] | None = None
) -> None:
    """As Prometheus stores what it scrapes from the exporter's pod, with labels of a PodMonitor or of this target."""
    for node, some in pages.items():
        own = {
            "job": "gpu-idle-exporter", "instance": f"10.9.0.{ord(node[0])}:9835", "pod": f"exporter-{node}",
            "namespace": "gpu-system",
        }
        own |= target or {}
        found: dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]] = {}
        for step, page in enumerate(some):
            for sample in (
                sample for family in parser.text_string_to_metric_families(page) for sample in family.samples
            ):
                key = sample.name, tuple(sorted(sample.labels.items()))
                found.setdefault(key, [None] * STEPS)[step] = float(sample.value)
        for (metric, labels), values in found.items():
            said = {name: value for name, value in labels if value}  # an empty label is none
            prometheus.series(metric, said | own, values=values, every=EVERY)
        prometheus.series("up", {"job": own["job"], "instance": own["instance"]}, constant=1.0, minutes=90, every=EVERY)


@contextlib.asynccontextmanager
async def scraped(pages: dict[str, list[str]], now: float, first: int) -> AsyncIterator[scrape.ScrapeSource]:
    """A scrape source that has found the exporters' pods, and read their pages from this one on."""
    at = first

    def answer_of(node: str) -> loopback.Answer:
        return lambda _: web.Response(text=pages[node][at])

    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(pretend.Server())
        for node in pages:
            exporter = await stack.enter_async_context(loopback.serve(answer_of(node)))
            ports = [{"name": "metrics", "containerPort": int(exporter.url.rpartition(":")[2])}]
            cluster.put("pods", pretend.pod(
                f"exporter-{node}", gpus=0, node=node, namespace="gpu-system",
                spec={"containers": [{"name": "exporter", "ports": ports}]},
                status={"phase": "Running", "podIP": "127.0.0.1"},
                labels={"app.kubernetes.io/name": "gpu-idle-exporter"},
            ))
        finder = targets.Finder(await stack.enter_async_context(cluster.api()), BELIEF, follows=True)
        source = await stack.enter_async_context(
            scrape.ScrapeSource(finder, exporters.Exporters(timeout=5.0), interval=EVERY)
        )
        for at in range(first, STEPS):
            await source.scrape(now - EVERY * (STEPS - 1 - at))
        yield source


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, dict[str, list[str]]]:
    now = math.floor(time.time() / 60) * 60 + 7.0
    return now, asyncio.run(record(tmp_path_factory.mktemp("nodes"), now))


@pytest.mark.accepts("idle", 7, 8)
@pytest.mark.accepts("exporter", 20)
async def test_with_our_exporter_alone_all_ways_to_read_it_come_to_the_same_verdicts(
    recorded: tuple[float, dict[str, list[str]]], prometheus: history.PrometheusWorld
) -> None:
    (now, pages), mandate = recorded, builders.mandate()
    prometheus.now = now
    store(pages, prometheus)
    await prometheus.start()
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none")) as asked:
        stored = await test_scrape.judge(eyes.PrometheusSource(asked), describe(now), mandate)
    async with scraped(pages, now, 0) as source:
        followed = await test_scrape.judge(source, describe(now), mandate)
    async with scraped(pages, now, STEPS - 1) as source:
        at_once = await test_scrape.judge(source, describe(now), mandate)
    assert {name: str(finding.reason) for name, finding in stored.items()} == EXPECTED
    assert {name: str(finding.reason) for name, finding in followed.items()} == EXPECTED
    assert {name: str(finding.reason) for name, finding in at_once.items()} == AT_ONCE
    for name, reason in EXPECTED.items():
        assert {tuple(found[name].models) for found in (stored, followed, at_once)} == {(MODEL,)}, name
        if reason == AT_ONCE[name]:
            times = [found[name].idle_since for found in (stored, followed, at_once)]
            assert all(when is None for when in times) or times == pytest.approx([times[0]] * 3, abs=CLOSE), name
    assert stored["stopped"].idle_since == pytest.approx(now - 45 * MINUTE, abs=CLOSE)
    assert stored["old-stopped"].idle_since == pytest.approx(now - 45 * MINUTE, abs=CLOSE)


async def test_rows_are_of_pods_and_carry_what_devices_say(recorded: tuple[float, dict[str, list[str]]]) -> None:
    now, pages = recorded
    seen = describe(now).world.snapshot()
    async with scraped(pages, now, 0) as source:
        found = await source.evidence(held(seen.pods, seen.nodes.known), frozenset({builders.WINDOW}), now)
    use = found.usage[builders.WINDOW]
    by_name = {seen.pods[pod].name.removesuffix("-0"): row for row, pod in enumerate(use.pod.tolist())}

    def peak(name: str, signal: Signal) -> float:
        return float(use.peak[signal][by_name[name]])

    assert by_name.keys() == EXPECTED.keys()
    assert [peak(name, Signal.process_sm) for name in ("d-busy", "d-quiet", "d-empty")] == [0.65, 0.0, 0.0]
    assert [
        peak(name, Signal.device_util) for name in ("d-busy", "d-quiet", "d-alone", "busy")
    ] == [0.65, 0.65, 0.0, 0.6]
    assert [peak(name, Signal.process_sm) for name in ("mig-quiet", "mig-busy")] == pytest.approx([0.0, 0.57])
    assert all(
        math.isnan(peak(name, Signal.process_sm)) for name in ("mig-blind", "old-busy", "slow-one", "slow-quiet")
    )
    assert [use.gpu[by_name[name]] for name in ("d-quiet", "mig-busy")] == ["GPU-d-0", "GPU-m-0/2"]
    assert all(peak(name, Signal.power) == pytest.approx(75.5) for name in by_name)
    assert [bool(use.shared[by_name[name]]) for name in ("d-alone", "quiet", "mig-quiet")] == [True, False, False]
    assert (found.unallocated, found.gpus_per_node) == (1, {"a": 7, "d": 2, "m": 2, "n": 1, "u": 2, "v": 2})
