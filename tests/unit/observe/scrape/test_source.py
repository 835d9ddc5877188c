"""Direct scrape against exporters and an API server on 127.0.0.1, at instants that the test says: what is judged, kept,
forgotten, and
what an exporter that misbehaves does to itself and not to others."""

import asyncio
import dataclasses
import logging
import math
import pathlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import re2
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend
from tests.unit.observe.usage.gpu_pods import BELIEF, held, node, nodes, pod
from tests.unit.observe.usage.gpu_pods import wanted as candidates

from fallow.clients import exporters
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import cluster, usage
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.model.usage import Signal
from fallow.observe.scrape import buckets, by_row, kept, samples, targets
from fallow.observe.scrape import source as scrape
from fallow.observe.usage import floors, labels, queries, readings, rows, trust

NOW = 1_800_000_000.0  # a full minute
WINDOW = 30 * MINUTE
ONLY = frozenset({WINDOW})
STEP = 15.0
GR, UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"

TWO = pod("llm", resources={"nvidia.com/gpu": 2})

Page = str | Callable[[loopback.Asked], Any]


def line(metric: str, value: object, number: int = 0, name: str = "llm", **more: str) -> str:
    labels = {"gpu": str(number), "UUID": f"GPU-{number}", "modelName": "A100", "pod": name, "namespace": "ml", **more}
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{metric}{{{inner}}} {value}\n"


def exporter_pod(name: str, port: int, where: str = "gpu-1", address: str = "127.0.0.1", **more: Any) -> pretend.Object:
    spec = {"containers": [{"name": "main", "ports": [{"name": "metrics", "containerPort": port}]}]}
    labels = {"app.kubernetes.io/name": "dcgm-exporter"}
    status = {"phase": "Running", "podIP": address}
    return pretend.pod(
        name, gpus=0, node=where, namespace="gpu", **{"spec": spec, "labels": labels, "status": status, **more}
    )


@dataclasses.dataclass
class Scene:
    """Exporters, one to a node; `pages` may be changed at any time."""

    source: scrape.ScrapeSource
    finder: targets.Finder
    server: pretend.Server
    exporters: dict[str, loopback.Loopback]
    pages: dict[str, Page]
    pods: tuple[cluster.Pod, ...] = (pod("llm"),)
    nodes: dict[str, cluster.Node] = dataclasses.field(default_factory=lambda: nodes(node("gpu-1"), node("gpu-2")))

    async def scrape(self, start: float, end: float, step: float = STEP) -> None:
        """Rounds from start to end, both included, in seconds from NOW."""
        for moment in np.arange(start, end + 0.1, step):
            await self.source.scrape(NOW + float(moment))

    async def evidence(self, at: float = 0.0, windows: frozenset[float] = ONLY) -> usage.Evidence:
        return await self.source.evidence(held(self.pods, self.nodes, version=1), windows, NOW + at)

    async def usage(self, at: float = 0.0) -> usage.Usage:
        found = await self.evidence(at)
        assert found.trouble is None
        return found.usage[WINDOW]


@asynccontextmanager
async def scene(
    pages: dict[str, Page], *, timeout: float = 2.0, keeper: kept.Keeper | None = None, **options: Any
) -> AsyncIterator[Scene]:
    def answer_of(where: str) -> loopback.Answer:
        def answer(asked: loopback.Asked) -> Any:
            page = pages[where]
            return web.Response(text=page) if isinstance(page, str) else page(asked)

        return answer

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(pretend.Server())
        api = await stack.enter_async_context(server.api())
        running = {where: await stack.enter_async_context(loopback.serve(answer_of(where))) for where in pages}
        for where, exporter in running.items():
            server.put("pods", exporter_pod(f"dcgm-{where}", int(exporter.url.rpartition(":")[2]), where))
        finder = targets.Finder(api, BELIEF, follows=True)
        source = scrape.ScrapeSource(finder, exporters.Exporters(timeout=timeout), keeper=keeper, **options)
        yield Scene(await stack.enter_async_context(source), finder, server, running, pages)


# ---- which exporters ----


def found(item: pretend.Object) -> targets.ScrapeTarget | None:
    return targets.read_pod(msgspec.convert(item, targets.ExporterItem))


def bare(labels: dict[str, str], ports: Iterable[dict[str, Any]] = (), **more: Any) -> pretend.Object:
    return exporter_pod("x", 1, labels=labels, spec={"containers": [{"name": "main", "ports": list(ports)}]}, **more)


DCGM, OWN = {"app.kubernetes.io/name": "dcgm-exporter"}, {"app.kubernetes.io/name": "gpu-idle-exporter"}
PORTS = {
    "metrics": (
        bare(DCGM, [{"containerPort": 1}, {"name": "metrics", "containerPort": 7}]),
        "http://127.0.0.1:7/metrics",
    ),
    "gpu-metrics": (bare(OWN, [{"name": "gpu-metrics", "containerPort": 7}]), "http://127.0.0.1:7/metrics"),
    "dcgm": (bare(DCGM, [{"name": "http", "containerPort": 7}]), "http://127.0.0.1:9400/metrics"),
    "operator": (bare({"app": "nvidia-dcgm-exporter"}), "http://127.0.0.1:9400/metrics"),
    "ours": (bare(OWN), "http://127.0.0.1:9835/metrics"),
    "IPv6": (bare(OWN, status={"phase": "Running", "podIP": "fd00::7"}), "http://[fd00::7]:9835/metrics"),
}


@pytest.mark.parametrize("name", PORTS)
def test_where_an_exporter_is_asked(name: str) -> None:
    item, url = PORTS[name]
    target = found(item)
    assert target is not None
    assert (target.url, target.node) == (url, "gpu-1")


def test_who_does_not_run_is_no_exporter() -> None:
    going = bare(DCGM)
    going["metadata"]["deletionTimestamp"] = "2026-11-15T08:00:00Z"
    pending, homeless = (
        bare(DCGM, status={"phase": "Pending", "podIP": "10.0.0.1"}),
        bare(DCGM, status={"phase": "Running"}),
    )
    assert [found(item) for item in (going, pending, homeless)] == [None] * 3


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, {("", "app.kubernetes.io/name in (dcgm-exporter, gpu-idle-exporter)"), ("", "app=nvidia-dcgm-exporter")}),
        ({"selectors": [("gpu", "app=x")]}, {("gpu", "app=x")}),
        ({"selectors": [("gpu", "app=x")], "namespaces": ["ml"]}, {("gpu", "app=x")}),
        ({"namespaces": ["ml"]}, {("ml", selector) for selector in targets.SELECTORS}),
    ],
    ids=["all", "given", "given beats namespaces", "where we may look"],
)
async def test_what_is_looked_for(options: dict[str, Any], asked: set[tuple[str, str]]) -> None:
    seen = set()

    def answer(one: loopback.Asked) -> web.Response:
        parts = one.path.split("/")
        seen.add((parts[4] if "namespaces" in parts else "", one.query["labelSelector"]))
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async with loopback.serve(answer) as server:
        access = config.Access(server=server.url, context="test")
        async with (
            kube.Api(access) as api,
            targets.Finder(api, BELIEF, addresses=["http://a:1", "http://b/m"], **options) as finder,
        ):
            await finder.begin()
            assert [(target.url, target.instance) for target in finder.targets] == [
                ("http://a:1/metrics", "a:1"),
                ("http://b/m", "b:80"),
            ]
    assert seen == asked


async def test_new_exporters_are_found_and_old_ones_forgotten_while_following() -> None:
    async with pretend.Server() as server, server.api() as api, targets.Finder(api, BELIEF, follows=True) as finder:
        await finder.begin()
        assert finder.targets == ()
        await pretend.until(lambda: len(server.kinds["pods"].watchers) == len(targets.SELECTORS))
        server.put("pods", exporter_pod("one", 7))
        await pretend.until(lambda: len(finder.targets) == 1)
        server.remove("pods", "Pod-one")
        await pretend.until(lambda: finder.targets == ())
        assert finder.problem is None


# ---- one window ----


async def test_a_busy_and_a_quiet_gpu() -> None:
    quiet = (
        line(GR, 0)
        + line(UTIL, 0)
        + line("DCGM_FI_DEV_POWER_USAGE", 72)
        + line("DCGM_FI_DEV_FB_USED", 1000)
        + line(GR, 0, 1, "")
    )
    async with scene({"gpu-1": quiet, "gpu-2": line(GR, 0, 9, "far")}) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1800, -1005)
        stage.pages["gpu-2"] = line(GR, 0.4, 9, "far")
        stage.pages["gpu-1"] = quiet.replace(" 1000\n", " 1300\n")
        await stage.scrape(-990, -990)
        stage.pages |= {"gpu-1": quiet, "gpu-2": line(GR, 0, 9, "far")}
        await stage.scrape(-975, 0)
        found = await stage.evidence()
    seen = found.usage[WINDOW]
    assert (seen.gpu, seen.pod.tolist(), seen.model) == (("GPU-0", "GPU-9"), [0, 1], ("A100", "A100"))
    assert seen.peak[Signal.gr_engine] == pytest.approx([0.0, 0.4])
    assert seen.peak[Signal.gr_engine][1] >= 0.4, "what is kept in fewer bits is never less than it was"
    assert seen.peak[Signal.fb_growth][0] == 300.0
    assert seen.peak[Signal.power][0] == 72.0
    assert seen.count[Signal.gr_engine] == pytest.approx([120, 120], abs=1.1)
    assert seen.interval.tolist() == [STEP, STEP]
    assert seen.newest[Signal.gr_engine].tolist() == [NOW, NOW]
    assert seen.exporter_up.all()
    assert not (seen.exporter_frozen | seen.mig | seen.shared).any()
    assert (found.unallocated, found.gpus_per_node) == (1, {"gpu-1": 2, "gpu-2": 1})


async def test_while_nothing_changes_the_rows_are_the_same() -> None:
    async with scene({"gpu-1": line(GR, 0)}) as stage:
        await stage.scrape(-1860, 0, 60)
        first, second = await stage.usage(), await stage.usage(1)
        stage.pages["gpu-1"] += line(GR, 0, 1)
        await stage.scrape(15, 15)
        third = await stage.usage(15)
    assert second.pod is first.pod
    assert second.gpu is first.gpu
    assert first.version == second.version != third.version
    assert third.gpu == ("GPU-0", "GPU-1")


async def test_one_busy_sample_clears_the_window_until_it_is_out_of_it() -> None:
    async with scene({"gpu-1": line(GR, 0)}) as stage:
        await stage.scrape(-3600, -1815)
        stage.pages["gpu-1"] = line(GR, 0.9)
        await stage.scrape(-1800, -1800)
        stage.pages["gpu-1"] = line(GR, 0)
        await stage.scrape(-1785, 75)
        peaks = [(await stage.usage(at)).peak[Signal.gr_engine][0] for at in (-60.0, 0.0, 75.0)]
    assert peaks == [pytest.approx(0.9), pytest.approx(0.9), 0.0]


async def test_missing_rounds_are_missing_coverage() -> None:
    async with scene({"gpu-1": line(GR, 0)}) as stage:
        await stage.scrape(-3600, -900)
        await stage.usage(-900)
        await stage.scrape(-300, 0)
        seen = await stage.usage()
    share = seen.count[Signal.gr_engine][0] * seen.interval[0] / WINDOW
    assert share == pytest.approx(1200 / 1800, abs=0.03)


@pytest.mark.accepts("idle", 4)
async def test_a_lone_series_that_is_on_every_third_page_is_no_slow_one_that_is_complete() -> None:
    async with scene({"gpu-1": ""}) as stage:
        for at in range(-1800, 1, 15):
            stage.pages["gpu-1"] = line(GR, 0) if at % 45 == 0 else ""
            await stage.scrape(at, at)
        seen = await stage.usage()
    share = seen.count[Signal.gr_engine][0] * seen.interval[0] / WINDOW
    assert share == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-1", "2147483632", "9.223372036854776e+18", "1.2"])
async def test_what_is_no_reading_is_no_sample(bad: str) -> None:
    async with scene({"gpu-1": line(GR, bad) + line(GR, 1.03, 1)}) as stage:
        stage.pods = (TWO,)
        await stage.scrape(-1800, 0, 60)
        seen = await stage.usage()
    assert seen.gpu == ("GPU-0", "GPU-1"), "the GPU is there, though nothing is known of it"
    assert math.isnan(seen.peak[Signal.gr_engine][0])
    assert math.isnan(seen.count[Signal.gr_engine][0])
    assert seen.peak[Signal.gr_engine][1] == 1.0


async def test_a_series_that_is_said_twice_is_counted_once_and_heeded_twice() -> None:
    async with scene({"gpu-1": line(GR, 0.5) + line(GR, 0)}) as stage:
        await stage.scrape(-1800, 0)
        seen = await stage.usage()
    assert seen.peak[Signal.gr_engine].tolist() == [0.5]
    assert seen.count[Signal.gr_engine] == pytest.approx([120], abs=1.1)


async def test_a_series_that_is_gone_has_no_newest_sample() -> None:
    async with scene({"gpu-1": line(GR, 0) + line(GR, 0, 1)}) as stage:
        stage.pods = (TWO,)
        await stage.scrape(-1800, -15)
        stage.pages["gpu-1"] = line(GR, 0)
        await stage.scrape(0, 0)
        seen = await stage.usage()
    assert seen.newest[Signal.gr_engine][0] == NOW
    assert math.isnan(seen.newest[Signal.gr_engine][1])


async def test_a_sample_with_a_time_of_its_own_counts_once_and_then() -> None:
    old, ahead = f"0 {int((NOW - 600) * 1000)}", f"0 {int((NOW + 3600) * 1000)}"
    async with scene({"gpu-1": line(GR, old) + line(GR, ahead, 1) + line(GR, 0, 2)}) as stage:
        stage.pods = (pod("llm", resources={"nvidia.com/gpu": 3}),)
        await stage.scrape(-1800, 0, 60)
        seen = await stage.usage()
    assert seen.newest[Signal.gr_engine][1] == NOW + 3600, "a clock that is wrong is the brain's to see"
    assert seen.count[Signal.gr_engine][0] == 1
    assert math.isnan(seen.newest[Signal.gr_engine][0]), "ten minutes old is no value of now"


async def test_the_label_that_names_the_exporters_own_host_does_not_hide_a_pod() -> None:
    async with scene({"gpu-1": line(GR, 0, Hostname="dcgm-exporter-abcde")}) as stage:
        await stage.scrape(-1800, 0, 60)
        seen = await stage.usage()
    assert seen.gpu == ("GPU-0",), "the exporter's pod is on this node: that is known for sure"


async def test_the_next_exporter_on_a_node_goes_on_where_the_last_one_ended() -> None:
    async with (
        scene({"gpu-1": line(GR, 0)}) as stage,
        loopback.serve(lambda _: web.Response(text=line(GR, 0))) as other,
    ):
        await stage.scrape(-1800, -900)
        stage.server.remove("pods", "Pod-dcgm-gpu-1")
        stage.server.put("pods", exporter_pod("dcgm-new", int(other.url.rpartition(":")[2])))
        await pretend.until(lambda: [target.pod for target in stage.finder.targets] == ["dcgm-new"])
        await stage.scrape(-885, 0)
        seen = await stage.usage()
    assert seen.count[Signal.gr_engine] == pytest.approx([120], abs=1.1)
    assert other.asked


ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


@pytest.mark.parametrize(
    ("rise", "frozen"), [(0, True), (1e6, False), (-1e6, False)], ids=["stands still", "moves", "began anew"]
)
async def test_energy_that_stands_still_means_a_frozen_exporter(rise: float, frozen: bool) -> None:
    async with scene({"gpu-1": line(GR, 0) + line(ENERGY, 5e9)}) as stage:
        await stage.scrape(-1860, -900, 60)
        stage.pages["gpu-1"] = line(GR, 0) + line(ENERGY, 5e9 + rise)
        await stage.scrape(-885, 0)
        seen = await stage.usage()
    assert seen.exporter_frozen.tolist() == [frozen]


@pytest.mark.parametrize("rise", [0, 1])
async def test_a_model_server_speaks_of_itself(rise: int) -> None:
    def served(total: int) -> str:
        served = "vllm:request_success_total"
        return f'{served}{{finished_reason="stop"}} 9\n{served}{{finished_reason="length"}} {total}\n'

    async with scene({"gpu-1": line(GR, 0, name="dcgm-gpu-1", namespace="gpu") + served(4)}) as stage:
        stage.pods = (pod("dcgm-gpu-1", namespace="gpu"),)
        await stage.scrape(-1800, -900, 60)
        stage.pages["gpu-1"] = line(GR, 0, name="dcgm-gpu-1", namespace="gpu") + served(4 + rise)
        await stage.scrape(-840, 0, 60)
        seen = await stage.usage()
    assert seen.peak[Signal.requests].tolist() == [rise]


def test_the_power_floor_needs_a_day() -> None:
    found = samples.Scraped(honor_labels=False, interval=60.0, horizon=DAY)
    exporter = samples.Exporter(targets.read_address("http://n1:9400"))
    lowest = []
    for minute in range(int(0.9 * DAY / MINUTE)):
        reading = exporter.reader.begin(is_openmetrics=False)
        reading.feed(line("DCGM_FI_DEV_POWER_USAGE", 61 if minute == 0 else 90).encode())
        found.take([samples.Taken(exporter, reading.end())], NOW + minute * MINUTE, counts=True)
        if minute % 600 == 599:
            lowest.append(floors.find_floors(found.floors(NOW + minute * MINUTE), found.facts, 60.0, lambda _: True))
    assert lowest == [{}, {"GPU-0": 61.0}]


def test_a_floor_is_of_the_last_day_and_expires() -> None:
    known = floors.Floors()

    def learn(watts: float | None, at: float) -> dict[str, float]:
        series = np.arange(0 if watts is None else 1)
        day = {readings.What.lowest: np.full(len(series), watts), readings.What.samples: np.full(len(series), 1440.0)}
        by_dcgm, by_us = (metric.name for metric in queries.POWER)
        found = {readings.Topic(what, by_us, DAY): readings.NOTHING for what in day}
        found |= {readings.Topic(what, by_dcgm, DAY): readings.SeriesReading(series, day[what]) for what in day}
        facts = [msgspec.structs.replace(labels.NOTHING_SAID, uuid="GPU-0")]
        known.learn(found, facts, 60.0, at, lambda _: True)
        return known.watts

    assert learn(34.0, NOW) == {"GPU-0": 34.0}
    assert learn(90.0, NOW + HOUR) == {"GPU-0": 90.0}, "it goes up again, once the low day is over"
    assert learn(None, NOW + 5 * HOUR) == {"GPU-0": 90.0}
    assert learn(None, NOW + 26 * HOUR) == {}


# ---- warming up ----


async def test_it_says_since_when_it_measures_and_when_it_can_judge() -> None:
    async with scene({"gpu-1": line(GR, 0)}) as stage:
        await stage.scrape(-1740, 0, 60)
        found = await stage.evidence(0)
        assert found.trouble is not None
        assert (found.trouble.reason, found.usage) == ("WarmingUp", {})
        assert found.trouble.because == "measuring since 2027-01-15T07:31:00Z, can judge from 08:01 UTC on"
        await stage.scrape(60, 60)
        assert (await stage.evidence(60)).trouble is None


async def test_who_looks_once_promises_no_time() -> None:
    async with scene({"gpu-1": line(GR, 0)}, stays=False) as stage:
        await stage.scrape(-1740, 0, 60)
        trouble = (await stage.evidence(0)).trouble
        assert trouble is not None
        said = "exporters answer, but there are no measurements of the 30m before this look"
        assert (trouble.reason, trouble.because) == ("WarmingUp", said)


async def test_a_look_without_a_past_scrapes_once_and_cannot_judge() -> None:
    async with scene({"gpu-1": line(GR, 0)}) as stage:
        found = await stage.evidence()
        assert found.trouble is not None
        assert found.trouble.reason == "WarmingUp"
        assert len(stage.exporters["gpu-1"].asked) == 1


PROCESS, LAST, SINCE = (
    f"gpu_idle_pod_gpu_{what}"
    for what in ("utilization_percent", "last_active_timestamp_seconds", "observed_since_timestamp_seconds")
)


def own(metric: str, value: object, scope: str = "process") -> str:
    labels = 'gpu="0",uuid="GPU-0",gi="",workload_namespace="ml",workload_pod="llm",workload_container="main"'
    return f'{metric}{{{labels},scope="{scope}"}} {value}\n'


@pytest.mark.parametrize(
    ("since", "last", "covered"),
    [(HOUR, None, 1.0), (HOUR, 45 * MINUTE, 1.0), (HOUR, 5 * MINUTE, 0.0), (15 * MINUTE, None, 0.5)],
    ids=["never active", "active before", "active within", "watched too short"],
)
async def test_an_exporter_of_ours_remembers_for_us(since: float, last: float | None, covered: float) -> None:
    page = own(PROCESS, 0) + own(SINCE, NOW - since) + (own(LAST, NOW - last) if last else "")
    async with scene({"gpu-1": page + own(SINCE, 1.0, "device")}) as stage:
        seen = await stage.usage()
        looked = await stage.source.look_back(seen, candidates([0]), held(stage.pods, stage.nodes), NOW, 0.01)
    assert seen.peak[Signal.process_sm].tolist() == [0.0]
    assert seen.count[Signal.process_sm][0] * seen.interval[0] / WINDOW == pytest.approx(covered, abs=0.04)
    if covered == 1.0:
        assert looked.last_active.tolist() == [NOW - last if last else -math.inf]
        assert looked.observed_since.tolist() == [NOW - since]


async def test_who_holds_a_gpu_is_judged_by_the_device_where_it_cannot_be_measured_itself() -> None:
    device = 'gpu_idle_device_utilization_percent{gpu="0",model="A100",uuid="GPU-0"} 30\n'
    async with scene(
        {"gpu-1": own("gpu_idle_pod_gpu_info", 1, "device") + own(PROCESS, 30, "device") + device}
    ) as stage:
        for minutes in range(40, -1, -2):
            await stage.source.scrape(NOW - minutes * MINUTE)
        seen = await stage.usage()
        looked = await stage.source.look_back(seen, candidates([0]), held(stage.pods, stage.nodes), NOW, 0.5)
    assert (seen.gpu, seen.pod.tolist(), seen.model) == (("GPU-0",), [0], ("A100",))
    assert seen.peak[Signal.device_util].tolist() == [0.3]
    assert Signal.process_sm not in seen.peak
    assert looked.last_active.tolist() == [-math.inf]


# ---- trouble ----


async def test_no_exporter_at_all() -> None:
    async with scene({}) as stage:
        found = await stage.evidence()
    assert found.trouble is not None
    assert (found.trouble.reason, found.trouble.because) == ("NoData", scrape.NOT_FOUND)


async def test_pods_that_may_not_be_listed() -> None:
    async with scene({}) as stage:
        stage.server.forbidden |= {("list", "pods"), ("watch", "pods")}
        found = await stage.evidence()
    assert found.trouble is not None
    assert found.trouble.reason == "SourceError"
    assert "forbidden" in found.trouble.because


async def test_exporters_without_a_gpu() -> None:
    async with scene({"gpu-1": "other 1\n"}) as stage:
        found = await stage.evidence()
    assert found.trouble is not None
    assert (found.trouble.reason, found.trouble.because) == ("NoData", "none of 1 exporters shows any GPU")


async def test_exporters_none_of_which_answers() -> None:
    async with scene({"gpu-1": lambda _: web.Response(status=500)}) as stage:
        found = await stage.evidence()
    assert found.trouble is not None
    assert found.trouble.reason == "SourceError"
    assert "none of 1 exporters answers; the exporter at http://127.0.0.1:" in found.trouble.because


async def _hang(_: loopback.Asked) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


BUSY = line(GR, 0.9, 9, "far")
FAULTS: dict[str, Page] = {
    "hangs": _hang, "500": lambda _: web.Response(status=500, text=BUSY), "cut": BUSY[:-1],
    "garbage": BUSY + line(GR, "busy", 9, "far"), "web page": "<html></html>\n",
    "too many series": "".join(line(GR, 0, number, f"p-{number}") for number in range(21_000)),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_bad_exporter_harms_only_what_it_covers(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with scene({"gpu-1": line(GR, 0), "gpu-2": line(GR, 0, 9, "far")}, timeout=0.5) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1860, -60, 60)
        stage.pages["gpu-2"] = FAULTS[name]
        ups, counts = [], []
        for at in (-45.0, -30.0, -15.0):
            await stage.scrape(at, at)
            seen = await stage.usage(at)
            ups.append(seen.exporter_up.tolist())
            counts.append(seen.count[Signal.gr_engine].tolist())
        assert ups == [[True, True], [True, True], [True, False]], "after three failures in a row"
        assert counts[-1][0] > counts[-1][1], "a failed scrape adds no sample"
        assert seen.peak[Signal.gr_engine].tolist() == [0.0, 0.0]
        assert seen.newest[Signal.gr_engine].tolist() == [NOW - 15, NOW - 60]
        stage.pages["gpu-2"] = line(GR, 0, 9, "far")
        await stage.scrape(0, 0)
        assert (await stage.usage()).exporter_up.all()
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "what it covers is not known" in warned[0]


async def test_more_than_fits_into_memory_is_refused_and_the_rest_unharmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MOST_BYTES", 8 * 2**20)
    many = "".join(line(GR, 0, number, "far") for number in range(5000))
    async with scene({"gpu-1": line(GR, 0), "gpu-2": line(GR, 0, 9, "far")}) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1860, -60, 60)
        stage.pages["gpu-2"] = many
        await stage.scrape(-45, 0)
        seen = await stage.usage()
    assert dict(zip(seen.gpu, seen.exporter_up.tolist(), strict=True)) == {"GPU-0": True, "GPU-9": False}


# ---- whom to believe ----

FORGED = line(GR, 0) + "".join(
    f'{PROCESS}{{uuid="GPU-0",workload_pod="{name}",workload_namespace="ml",scope="process"}} {percent}\n'
    for name, percent in (("llm", 0), ("mine", 90))
)


@pytest.mark.accepts("idle", 47)
async def test_a_tenants_pod_that_calls_itself_an_exporter_is_named_and_not_read() -> None:
    async with scene({"gpu-1": line(GR, 0.97), "gpu-2": FORGED}) as stage:
        port = int(stage.exporters["gpu-2"].url.rpartition(":")[2])
        evil = exporter_pod("dcgm-gpu-2", port, "gpu-1")
        stage.server.put("pods", {**evil, "metadata": {**evil["metadata"], "namespace": "tenant"}})
        await stage.scrape(-1800, 0, 60)
        found = await stage.evidence()
    assert found.usage[WINDOW].peak[Signal.gr_engine].tolist() == pytest.approx([0.97])
    assert Signal.process_sm not in found.usage[WINDOW].peak
    assert [one.who for one in found.ignored] == ["UntrustedExporter tenant/dcgm-gpu-2"]
    assert stage.exporters["gpu-2"].asked == []


@pytest.mark.accepts("idle", 47)
async def test_an_exporter_speaks_only_of_its_own_node() -> None:
    async with scene({"gpu-1": line(GR, 0.97), "gpu-2": FORGED + line(GR, 0, 9, "far")}) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1800, 0, 60)
        found = await stage.evidence()
    seen = found.usage[WINDOW]
    assert (seen.gpu, seen.peak[Signal.gr_engine].tolist()) == (("GPU-0", "GPU-9"), pytest.approx([0.97, 0.0]))
    assert seen.count[Signal.gr_engine].tolist() == pytest.approx([30, 30], abs=1), "the other's zeros are no samples"
    assert [one.who for one in found.ignored] == ["UntrustedExporter gpu/dcgm-exporter on gpu-2"]


async def test_a_namespace_that_was_named_by_hand_is_believed() -> None:
    nobody = trust.Belief(re2.compile("nobody"))
    async with pretend.Server() as server, server.api() as api:
        server.put("pods", exporter_pod("x", 1))
        for namespace, is_read in (("", False), ("gpu", True)):
            selectors = [(namespace, "app.kubernetes.io/name=dcgm-exporter")]
            async with targets.Finder(api, nobody, selectors=selectors, follows=True) as finder:
                await finder.begin()
                assert (len(finder.targets), len(finder.strangers)) == ((1, 0) if is_read else (0, 1))


@pytest.mark.parametrize("named", ["at once", "again and again"])
async def test_no_page_crowds_out_the_others(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by one page with more than its GPUs can mean, nor by other names on every page."""
    monkeypatch.setattr(samples, "PER_GPU", 1)

    def page_of(moment: int) -> str:
        names = [f"far-{moment}"] * 15 if named == "again and again" else ["far"] * 1000
        return "".join(line(GR, 0, 100 + number, name) for number, name in enumerate(names))

    async with scene({"gpu-1": line(GR, 0), "gpu-2": line(GR, 0, 9, "far")}) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1800, -900, 60)
        for moment in range(-840, 1, 60):
            stage.pages["gpu-2"] = line(GR, 0, 9, "far") + page_of(moment)
            await stage.scrape(moment, moment)
        seen = await stage.usage()
        kept_in_all = len(stage.source._samples.table)
    assert dict(zip(seen.gpu, seen.exporter_up.tolist(), strict=True)) == {"GPU-0": True, "GPU-9": False}
    assert kept_in_all <= 1 + 4 * samples.USUAL_GPUS


async def test_past_a_stated_size_it_recommends_prometheus_once(caplog: pytest.LogCaptureFixture) -> None:
    async with pretend.Server() as server, server.api() as api:
        many = [f"http://127.0.0.1:1/{number}" for number in range(scrape.MANY + 1)]
        finder = targets.Finder(api, BELIEF, addresses=many)
        async with scrape.ScrapeSource(finder, exporters.Exporters(timeout=5.0)) as source:
            for at in (0.0, 15.0):
                await source.scrape(NOW + at)
    assert [record.getMessage() for record in caplog.records if "--prometheus-url" in record.getMessage()] == [
        "201 exporters are scraped by one process: past 200 let Prometheus do that, and give its address "
        "with --prometheus-url"
    ]


async def test_a_clock_that_is_set_back_begins_anew() -> None:
    async with scene({"gpu-1": line(GR, 0)}) as stage:
        await stage.scrape(-1860, 0, 60)
        assert (await stage.evidence()).trouble is None
        await stage.scrape(-3600, -3600)
        found = await stage.evidence(-3600)
    assert found.trouble is not None
    assert found.trouble.reason == "WarmingUp"


# ---- looking back, and again ----


async def test_exact_idle_times() -> None:
    quiet = line(GR, 0) + line(GR, 0, 1, "never")
    async with scene({"gpu-1": quiet}, interval=60.0) as stage:
        stage.pods = (pod("llm"), pod("never"))
        await stage.scrape(-6 * HOUR, -2 * HOUR - 60, 60)
        stage.pages["gpu-1"] = quiet.replace(" 0\n", " 0.02\n", 1)
        await stage.scrape(-2 * HOUR, -2 * HOUR, 60)
        stage.pages["gpu-1"] = quiet
        await stage.scrape(-2 * HOUR + 60, 0, 60)
        seen = await stage.usage()
        found = await stage.source.look_back(seen, candidates([0, 1]), held(stage.pods, stage.nodes), NOW, 0.01)
        higher = await stage.source.look_back(seen, candidates([0]), held(stage.pods, stage.nodes), NOW, 0.05)
    assert found.last_active.tolist() == [NOW - 2 * HOUR + 60, -math.inf]
    assert found.observed_since == pytest.approx([NOW - 6 * HOUR] * 2, abs=61)
    assert higher.last_active[0] == -math.inf
    assert math.isnan(higher.last_active[1])
    assert np.isnan(seen.last_active).all(), "what was handed in stays as it was"


async def test_the_second_look_asks_the_node_anew() -> None:
    async with scene({"gpu-1": line(GR, 0), "gpu-2": line(GR, 0, 9, "far")}) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1860, 0, 60)
        before = (await stage.usage()).count[Signal.gr_engine].tolist()
        asked = {where: len(exporter.asked) for where, exporter in stage.exporters.items()}
        stage.pages["gpu-1"] = line(GR, 0.7)
        again = (await stage.source.again(held(stage.pods[:1], stage.nodes), ONLY, NOW + 5)).usage[WINDOW]
        assert (again.gpu, again.exporter_up.tolist()) == (("GPU-0",), [True])
        assert again.peak[Signal.gr_engine] == pytest.approx([0.7])
        assert again.count[Signal.gr_engine] == pytest.approx(before[:1], abs=0.4), "an extra look is no extra coverage"
        assert {where: len(exporter.asked) - asked[where] for where, exporter in stage.exporters.items()} == {
            "gpu-1": 1,
            "gpu-2": 0,
        }
        stage.pages["gpu-1"] = lambda _: web.Response(status=500)
        again = (await stage.source.again(held(stage.pods[:1], stage.nodes), ONLY, NOW + 6)).usage[WINDOW]
        assert again.exporter_up.tolist() == [False], "nothing is answered from memory"


async def test_an_exporter_that_is_gone_answers_no_second_look() -> None:
    async with scene({"gpu-1": line(GR, 0), "gpu-2": line(GR, 0, 9, "far")}) as stage:
        stage.pods = (pod("llm"), pod("far", "gpu-2"))
        await stage.scrape(-1860, 0, 60)
        stage.server.remove("pods", "Pod-dcgm-gpu-1")
        await pretend.until(lambda: len(stage.finder.targets) == 1)
        again = (await stage.source.again(held(stage.pods, stage.nodes), ONLY, NOW + 5)).usage[WINDOW]
    assert dict(zip(again.gpu, again.exporter_up.tolist(), strict=True)) == {"GPU-0": False, "GPU-9": True}


# ---- over a restart ----


def keep_in(folder: pathlib.Path, *, interval: float = 15.0, writes: bool = True) -> kept.Keeper:
    return kept.Keeper(str(folder), interval=interval, writes=writes)


async def test_what_was_counted_at_another_interval_is_not_read(tmp_path: pathlib.Path) -> None:
    """Ten minutes of samples every 5 s would pass for a whole window of samples every 15 s."""
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path, interval=5.0), interval=5.0) as stage:
        await stage.scrape(-660, 0, 5)
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(15, 15)
        found = await stage.evidence(15)
    assert found.trouble is not None
    assert found.trouble.reason == "WarmingUp"


async def test_a_restart_loses_at_most_one_minute(tmp_path: pathlib.Path) -> None:
    page = line(GR, 0.3) + line("DCGM_FI_DEV_FB_USED", 1000) + line(ENERGY, 5e9) + line(GR, 0, 1)
    async with scene({"gpu-1": page}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(-3600, -3000)
        stage.pages["gpu-1"] = page.replace("0.3", "0")
        await stage.scrape(-2985, 0)
        before = await stage.usage()
        looked = await stage.source.look_back(before, candidates([0, 1]), held(stage.pods, stage.nodes), NOW, 0.01)
    async with scene({"gpu-1": page.replace("0.3", "0")}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(30, 30)
        after = await stage.usage(30)
        again = await stage.source.look_back(after, candidates([0, 1]), held(stage.pods, stage.nodes), NOW, 0.01)
    assert after.gpu == before.gpu
    assert after.count[Signal.gr_engine] == pytest.approx(before.count[Signal.gr_engine] - 2, abs=2.5)
    assert again.last_active.tolist() == looked.last_active.tolist() == [NOW - 2940, -math.inf]
    assert again.observed_since.tolist() == looked.observed_since.tolist()


async def test_one_look_reads_what_a_daemon_keeps(tmp_path: pathlib.Path) -> None:
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path)) as daemon:
        await daemon.scrape(-1860, 0)
        async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path, writes=False)) as stage:
            seen = await stage.usage(20)
            assert len(stage.exporters["gpu-1"].asked) == 1
    assert seen.count[Signal.gr_engine][0] * STEP / WINDOW > 0.95
    assert seen.newest[Signal.gr_engine].tolist() == [NOW + 20]


@pytest.mark.parametrize("fault", ["another layout", "broken page", "long ago"])
async def test_what_was_kept_and_cannot_be_used_is_not_guessed_at(
    tmp_path: pathlib.Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(-1860, 0, 60)
    if fault == "another layout":
        monkeypatch.setattr(kept, "_LAYOUT", 99)
    if fault == "broken page":
        with sqlite3.connect(tmp_path / kept.FILE) as database:
            database.execute("UPDATE pages SET content = x'00ff'")
        database.close()
    later = 3600.0 if fault == "long ago" else 60.0
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path)) as stage:
        found = await stage.evidence(later)
    assert found.trouble is not None
    assert found.trouble.reason == "WarmingUp"


async def test_a_file_that_cannot_be_written_any_more_stops_nothing(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(-1860, -1000, 60)
        with sqlite3.connect(tmp_path / kept.FILE) as database:
            database.execute("DROP TABLE pages")
        database.close()
        await stage.scrape(-960, 0, 60)
        assert (await stage.evidence()).trouble is None
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "measurements are not kept for a restart"
    ]


async def test_what_was_kept_of_a_forgotten_series_never_becomes_anothers(tmp_path: pathlib.Path) -> None:
    quiet, gone = line(GR, 0), "".join(line(GR, 0.9, number, f"gone-{number}") for number in range(1, 1200))
    async with scene({"gpu-1": quiet + gone}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(-6000, -5880, 60)
        stage.pages["gpu-1"] = quiet
        await stage.scrape(-5820, -120, 60)
        assert len(stage.source._samples.table) == 1
    async with scene(
        {"gpu-1": quiet + line(GR, 0, 5000, "new")}, keeper=keep_in(tmp_path)
    ) as stage:
        await stage.scrape(-60, 120, 60)
    async with scene(
        {"gpu-1": quiet + line(GR, 0, 5000, "new")}, keeper=keep_in(tmp_path)
    ) as stage:
        stage.pods = (pod("new"),)
        seen = await stage.usage(180)
        found = await stage.source.look_back(seen, candidates([0]), held(stage.pods, stage.nodes), NOW + 180, 0.01)
    assert (seen.gpu, found.last_active.tolist()) == (("GPU-5000",), [-math.inf])


async def test_after_a_clock_was_set_back_what_follows_is_kept(tmp_path: pathlib.Path) -> None:
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path)) as stage:
        await stage.scrape(7200, 7320, 60)
        await stage.scrape(-1860, 0, 60)
    async with scene({"gpu-1": line(GR, 0)}, keeper=keep_in(tmp_path), interval=60.0) as stage:
        seen = await stage.usage(30)
    assert seen.count[Signal.gr_engine] == pytest.approx([30], abs=1.1)


# ---- bounds ----


async def test_pods_that_come_and_go_are_forgotten_and_nothing_is_mixed_up() -> None:
    async with scene({"gpu-1": ""}) as stage:
        for hour in range(6):
            for part in range(6):
                here = (hour * 6 + part) * 600
                stage.pages["gpu-1"] = "".join(
                    line(GR, 0, number, f"gone-{here}-{number}") for number in range(200)
                ) + line(GR, 0.5, 999)
                await stage.scrape(here, here + 300, 60)
        seen = await stage.usage(here + 300)
        assert (seen.gpu, seen.peak[Signal.gr_engine].tolist()) == (("GPU-999",), [0.5])
        table = stage.source._samples.table
        assert len(table) < 3000, "of 7,200 series that there were"
        assert len(stage.source._samples.facts) < 3000


async def test_a_longer_window_is_kept_from_now_on_and_nothing_is_lost() -> None:
    async with scene({"gpu-1": line(GR, 0.5)}, lookback=HOUR, interval=60.0) as stage:
        await stage.scrape(-2 * HOUR, -2 * HOUR, 60)
        stage.pages["gpu-1"] = line(GR, 0)
        await stage.scrape(-2 * HOUR + 60, 0, 60)
        both = frozenset({WINDOW, 4 * HOUR})
        await stage.evidence(0, both)
        await stage.scrape(60, 2 * HOUR, 60)
        found = await stage.evidence(2 * HOUR, both)
    assert found.usage[WINDOW].peak[Signal.gr_engine].tolist() == [0.0]
    assert found.usage[4 * HOUR].peak[Signal.gr_engine].tolist() == [0.5]
    assert found.usage[4 * HOUR].count[Signal.gr_engine] == pytest.approx([241], abs=1.1)


MOMENTS = st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([0.0, 0.005, 0.01, 0.3, math.nan])), max_size=40)


@given(MOMENTS, st.integers(60, 3000), st.integers(0, 59))
def test_buckets_never_lose_activity_nor_invent_coverage(
    moments: list[tuple[int, float]], window: int, offset: int
) -> None:
    table = buckets.Tracks({"m": ("high", "low", "count")}, 2 * HOUR)
    column = np.array([table.add("m", b"{}", 0)])
    for second, value in sorted(dict(moments).items()):
        table.advance(NOW + second)
        table.tracks["m"].take(column, np.array([value]), np.array([NOW + second]), NOW + second, counts=True)
    now = NOW + 5000 + offset
    table.advance(now)
    span = table.ring.span(now - window, now)
    inside = [value for second, value in dict(moments).items() if NOW + second > now - window and not math.isnan(value)]
    wider = [
        value for second, value in dict(moments).items() if NOW + second >= now - window - 60 and not math.isnan(value)
    ]
    peak, count = table.tracks["m"].peak(span)[0], table.tracks["m"].count(span)[0]
    assert math.isnan(peak) == (not wider) or not inside
    if inside:
        assert max(inside) <= peak <= np.nextafter(np.float32(max(wider)), np.float32(2))
    assert count <= len(wider)
    assert count >= sum(
        NOW + second >= now - window + 60 for second, value in dict(moments).items() if not math.isnan(value)
    )


# ---- exporters that restart, and trickles ----


async def coverage_of(stage: Scene) -> float:
    seen = await stage.usage()
    return float(seen.count[Signal.gr_engine][0] * seen.interval[0] / WINDOW)


@pytest.mark.accepts("idle", 55)
async def test_an_exporter_that_restarts_without_a_gap_goes_on_where_it_was() -> None:
    async with scene({"gpu-1": line(GR, 0), "spare": line(GR, 0)}) as stage:
        stage.server.remove("pods", "Pod-dcgm-spare")
        await stage.scrape(-2400, -900)
        port = int(stage.exporters["spare"].url.rpartition(":")[2])
        stage.server.remove("pods", "Pod-dcgm-gpu-1")
        stage.server.put("pods", exporter_pod("dcgm-new", port, "gpu-1"))
        await pretend.until(lambda: [one.pod for one in stage.finder.targets] == ["dcgm-new"])
        await stage.scrape(-885, 0)
        assert await coverage_of(stage) >= 0.95
        seen = await stage.usage()
        found = await stage.source.look_back(seen, candidates([0]), held(stage.pods, stage.nodes), NOW, 0.01)
    assert found.observed_since == pytest.approx([NOW - 2400], abs=61)


async def test_in_each_minute_the_best_series_counts() -> None:
    """Two that follow each other are a whole, two that overlap are not."""
    table = buckets.Tracks({"m": ("high", "count", "sum")}, HOUR)
    table.advance(NOW)
    track = table.tracks["m"]
    for name, offset, step, first, last in (("a", 0, 120, -3600, 0), ("b", 60, 120, -3600, 0), ("c", 0, 60, -1800, 0)):
        column = np.array([table.add("m", name.encode(), ord(name))])
        for moment in range(first + offset, last + 1, step):
            track.take(column, np.array([0.0067]), np.array([NOW + moment]), NOW + moment, True)
    span = table.ring.span(NOW - 1800, NOW)
    edges = rows.Edges(np.array([97, 98, 99]), np.array([0, 0, 1]))
    together = by_row.count_together(track, by_row.pair(track, edges), 2, span)
    assert together[0] == pytest.approx(30, abs=2)
    assert np.isnan(together[1]), "one series alone needs no help"
    assert track.mean(span).tolist() == pytest.approx([0.0067] * 3)


@pytest.mark.accepts("idle", 51)
async def test_a_steady_trickle_has_a_mean() -> None:
    async with scene({"gpu-1": line(GR, 0.0067)}) as stage:
        await stage.scrape(-1800, 0)
        seen = await stage.usage()
    assert seen.mean[Signal.gr_engine].tolist() == pytest.approx([0.0067])
    assert seen.peak[Signal.gr_engine].tolist() == pytest.approx([0.0067])
