"""Evidence from a real Prometheus: the PromQL is answered by its own engine."""

import dataclasses
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import numpy as np
import pytest

from fallow.clients.prometheus import auth, client
from fallow.model import cluster, usage
from fallow.model.usage import Signal
from fallow.observe.usage import prometheus as eyes
from fallow.observe.usage import queries
from tests.real import faults, history
from tests.unit.observe.usage.gpu_pods import held, node, nodes, pod
from tests.unit.observe.usage.gpu_pods import wanted as candidates

HALF_HOUR = 1800.0
DAY = 86400.0


@asynccontextmanager
async def source(url: str, **options: object) -> AsyncIterator[eyes.PrometheusSource]:
    async with client.Prometheus(url, login=auth.Login(method="none"), backoff=0.001) as prometheus:
        yield eyes.PrometheusSource(prometheus, **options)  # type: ignore[arg-type]


@dataclasses.dataclass
class Case:
    """A Prometheus with a history, and the pods that it should speak of."""

    world: history.PrometheusWorld
    pods: tuple[cluster.Pod, ...]
    nodes: Mapping[str, cluster.Node] = dataclasses.field(default_factory=nodes)

    async def evidence(self, **options: object) -> usage.Evidence:
        await self.world.start()
        async with source(self.world.url, **options) as asked:
            return await asked.evidence(held(self.pods, self.nodes), frozenset({HALF_HOUR}), self.world.now)

    async def usage(self, **options: object) -> usage.Usage:
        found = await self.evidence(**options)
        assert (found.trouble, found.lost_signals) == (None, ())
        return found.usage[HALF_HOUR]


def told(seen: usage.Usage) -> dict[str, object]:
    """Everything that the brain may look at, comparable."""
    by_signal = {
        f"{kind} {signal.name}": np.round(column, 3).tolist()
        for kind, columns in (("peak", seen.peak), ("count", seen.count), ("newest", seen.newest))
        for signal, column in columns.items()
    }
    return {
        "pod": seen.pod.tolist(), "gpu": seen.gpu, "model": seen.model, "interval": seen.interval.tolist(), **by_signal
    }


# ---- one window ------------------------------------------------------------------------------------------------------


async def test_a_busy_and_a_quiet_gpu(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu(
        "gpu-1", 0, pod="llm", namespace="ml", gr_engine=[0.0] * 30 + [0.4] + [0.0] * 30, gpu_util=[0] * 60 + [37],
        power=310.0,
    )
    prometheus.dcgm_gpu("gpu-1", 1, pod="llm", namespace="ml")
    prometheus.dcgm_gpu("gpu-1", 2)
    found = await Case(prometheus, (pod("llm"),)).evidence()
    seen = found.usage[HALF_HOUR]
    assert seen.gpu == ("GPU-gpu-1-0", "GPU-gpu-1-1")
    assert seen.pod.tolist() == [0, 0]
    assert seen.model == ("NVIDIA H100 80GB HBM3",) * 2
    assert seen.peak[Signal.gr_engine].tolist() == [0.4, 0.0]
    assert seen.peak[Signal.gpu_util].tolist() == [0.37, 0.0]
    assert seen.peak[Signal.power].tolist() == [310.0, 72.0]
    assert seen.peak[Signal.fb_growth].tolist() == [0.0, 0.0]
    assert set(seen.peak) == {Signal.gr_engine, Signal.gpu_util, Signal.power, Signal.fb_growth}
    assert seen.newest[Signal.gr_engine] == pytest.approx([prometheus.now] * 2, abs=0.01)
    assert seen.exporter_up.all()
    assert not (seen.exporter_frozen | seen.mig | seen.shared).any()
    assert np.isnan(seen.last_active).all()
    assert np.isnan(seen.power_floor).all()
    assert (found.unallocated, found.gpus_per_node) == (1, {"gpu-1": 3})


@pytest.mark.accepts("idle", 4)
async def test_a_lone_series_with_holes_is_not_a_slow_one_that_is_complete(
    prometheus: history.PrometheusWorld,
) -> None:
    prometheus.exporter_up("gpu-1", 1.0, every=30)
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml", every=90)
    seen = await Case(prometheus, (pod("llm"),)).usage()
    assert (seen.count[Signal.gr_engine] * seen.interval / HALF_HOUR)[0] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.accepts("idle", 4)
async def test_a_job_that_is_scraped_every_two_minutes_is_complete(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml", every=120)
    seen = await Case(prometheus, (pod("llm"),)).usage()
    assert (seen.count[Signal.gr_engine] * seen.interval / HALF_HOUR)[0] > 0.9


@pytest.mark.accepts("idle", 4)
async def test_one_sample_in_the_window_is_counted_as_one(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="full", namespace="ml")
    prometheus.dcgm_gpu("gpu-1", 1, pod="thin", namespace="ml", gr_engine=[0.0], gpu_util=None)
    prometheus.dcgm_gpu("gpu-1", 2, pod="old", namespace="ml", until=prometheus.now - 600)
    seen = await Case(prometheus, (pod("full"), pod("thin"), pod("old"))).usage()
    assert seen.count[Signal.gr_engine].tolist() in ([60.0, 1.0, 40.0], [61.0, 1.0, 41.0])
    assert seen.interval == pytest.approx([HALF_HOUR / seen.count[Signal.gr_engine][0]] * 3, abs=0.6)
    assert np.isnan(seen.newest[Signal.gr_engine][2]), (
        "no sample in the five minutes that Prometheus looks back: surely stale"
    )


@pytest.mark.accepts("idle", 4)
async def test_three_minutes_are_no_window_though_the_job_is_new(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml", minutes=3, every=15)
    seen = await Case(prometheus, (pod("llm"),)).usage()
    assert (seen.count[Signal.gr_engine] * seen.interval / HALF_HOUR)[0] < 0.25


async def coverage_at(asked: eyes.PrometheusSource, at: float) -> float:
    """The higher of both looks'; 0 where there is no evidence."""
    pods, best = held((pod("llm"),)), 0.0
    for look in (asked.evidence, asked.again):
        found = await look(pods, frozenset({HALF_HOUR}), at)
        if found.trouble is None:
            seen = found.usage[HALF_HOUR]
            best = max(best, *(seen.count[Signal.gr_engine] * seen.interval / HALF_HOUR).tolist())
    return best


LOOKS = (20.0, 50.0, 80.0, 170.0, 290.0)  # seconds of data, when we look first; then every 3 min


@pytest.mark.accepts("idle", 4)
@pytest.mark.parametrize("before", [0, 200], ids=["newly installed", "after an outage of 35 min"])
@pytest.mark.parametrize("every", [5.0, 15.0])
async def test_minutes_of_data_are_no_window_however_early_we_looked(
    prometheus: history.PrometheusWorld, before: int, every: float
) -> None:
    age = 840.0
    row = [0.9] * before + [None] * int(2100 / every) * bool(before) + [0.0] * int(age / every)
    percent = [None if value is None else value * 100 for value in row]
    prometheus.exporter_up("gpu-1", [None if value is None else 1.0 for value in row], every=every)
    prometheus.dcgm_gpu(
        "gpu-1", 0, pod="llm", namespace="ml", gr_engine=row, gpu_util=percent, power=None, memory_used=None,
        every=every,
    )
    await prometheus.start()
    began = prometheus.now - age
    for first in LOOKS:
        async with source(prometheus.url) as asked:
            await coverage_at(asked, began - 60)  # while there is nothing
            for late in np.arange(first, age, 180.0).tolist():
                share, measured = await coverage_at(asked, began + late), late / HALF_HOUR
                assert share < measured + 0.1, f"first look after {first} s: {late} s of data cover {share:.0%}"


@pytest.mark.accepts("idle", 3)
async def test_a_gpu_without_series_has_no_row(prometheus: history.PrometheusWorld) -> None:
    for gpu in range(3):
        prometheus.dcgm_gpu("gpu-1", gpu, pod="four", namespace="ml")
    seen = await Case(prometheus, (pod("four", resources={"nvidia.com/gpu": 4}),)).usage()
    assert seen.rows == 3


@pytest.mark.parametrize(
    "bad",
    [math.nan, math.inf, -1.0, 2147483632.0, 9223372036854775794.0, 1.2],
    ids=["NaN", "Inf", "negative", "int32-blank", "int64-blank", "too-high"],
)
@pytest.mark.parametrize("share", ["all", "some"])
async def test_what_is_no_reading_never_makes_a_covered_quiet_window(
    prometheus: history.PrometheusWorld, bad: float, share: str
) -> None:
    values = [bad] * 61 if share == "all" else [0.0] + [bad] * 60
    prometheus.dcgm_gpu("gpu-1", 0, pod="odd", namespace="ml", gr_engine=values, gpu_util=None)
    prometheus.dcgm_gpu("gpu-1", 1, pod="fine", namespace="ml", gr_engine=1.03, gpu_util=None)
    seen = await Case(prometheus, (pod("odd"), pod("fine"))).usage()
    covered_and_quiet = (seen.peak[Signal.gr_engine] == 0) & (seen.count[Signal.gr_engine] > 10)
    assert covered_and_quiet.tolist() == [False, False]
    assert seen.peak[Signal.gr_engine][1] == 1.0


@pytest.mark.accepts("idle", 51)
async def test_blanks_among_readings_are_told_from_blanks_alone(prometheus: history.PrometheusWorld) -> None:
    int64, trickle = 9223372036854775794.0, [0.006] * 61
    odd = {
        "some": [*trickle[:40], int64, *trickle[41:]], "infinite": [math.inf, *trickle[1:]], "all": [int64] * 61,
        "minus": [*trickle[:40], -0.3, *trickle[41:]], "fine": trickle,
    }
    for number, (name, values) in enumerate(odd.items()):
        prometheus.dcgm_gpu("gpu-1", number, pod=name, namespace="ml", gr_engine=values)
    await prometheus.start()
    pods = held(tuple(map(pod, odd)))
    async with source(prometheus.url) as asked:
        for look in (asked.evidence, asked.again):
            seen = (await look(pods, frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
            of = {list(odd)[index]: row for row, index in enumerate(seen.pod.tolist())}
            blank = {name for name, row in of.items() if seen.blank[Signal.gr_engine][row]}
            assert blank == {"some", "infinite"}
            assert [seen.mean[Signal.gr_engine][of[name]] for name in ("minus", "fine")] == pytest.approx([0.006] * 2)
            assert np.isnan(seen.peak[Signal.gr_engine][of["all"]])


@pytest.mark.accepts("idle", 7)
async def test_mig_instances_are_rows_of_their_own(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu(
        "gpu-1", 0, pod="a", namespace="ml", mig=(1, "1g.10gb"), gr_engine=0.0, gpu_util=None, power=None
    )
    prometheus.dcgm_gpu(
        "gpu-1", 0, pod="b", namespace="ml", mig=(2, "1g.10gb"), gr_engine=None, gpu_util=0.0, power=None
    )
    prometheus.dcgm_gpu("gpu-1", 0, gr_engine=0.7, gpu_util=None, power=200.0, memory_used=None)
    found = await Case(prometheus, (pod("a"), pod("b"))).evidence()
    seen = found.usage[HALF_HOUR]
    assert dict(zip(seen.gpu, seen.pod.tolist(), strict=True)) == {"GPU-gpu-1-0/1": 0, "GPU-gpu-1-0/2": 1}
    a, b = seen.gpu.index("GPU-gpu-1-0/1"), seen.gpu.index("GPU-gpu-1-0/2")
    assert seen.mig.all()
    assert seen.peak[Signal.gr_engine][a] == 0.0, "the board's own activity is not the instance's"
    assert np.isnan(seen.peak[Signal.gr_engine][b])
    assert seen.peak[Signal.gpu_util][b] == 0.0
    assert seen.peak[Signal.power].tolist() == [200.0, 200.0], "power is the board's"
    assert (found.unallocated, found.gpus_per_node) == (0, {"gpu-1": 2})


@pytest.mark.accepts("idle", 8)
async def test_on_a_shared_gpu_only_the_pods_own_signals_differ(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="a", namespace="ml", gr_engine=0.6, gpu_util=60)
    labels = {
        "gpu": "0",
        "uuid": "GPU-gpu-1-0",
        "gi": "",
        "job": "gpu-idle-exporter",
        "instance": "10.1.2.3:9835",
        "node": "gpu-1",
        "pod": "gpu-idle-exporter-x",
        "namespace": "gpu",
    }
    for name, percent in (("a", 60.0), ("b", 0.0)):
        prometheus.series(
            "gpu_idle_pod_gpu_utilization_percent",
            labels | {"workload_pod": name, "workload_namespace": "ml", "scope": "process"},
            constant=percent,
        )
    prometheus.series("gpu_idle_device_utilization_percent", labels, constant=61.0)
    seen = await Case(prometheus, (pod("a"), pod("b")), nodes(node(shared=True))).usage()
    assert sorted(zip(seen.pod.tolist(), seen.gpu, strict=True)) == [(0, "GPU-gpu-1-0"), (1, "GPU-gpu-1-0")]
    of = {int(index): row for row, index in enumerate(seen.pod)}
    assert seen.shared.all()
    assert [seen.peak[Signal.process_sm][of[0]], seen.peak[Signal.process_sm][of[1]]] == [0.6, 0.0]
    assert seen.peak[Signal.gr_engine].tolist() == [0.6, 0.6]
    assert seen.peak[Signal.device_util].tolist() == [0.61, 0.61]


VARIANTS = {
    "exported_pod+Hostname": {
        "exported_pod": "llm", "exported_namespace": "ml", "pod": "dcgm-x", "namespace": "gpu", "Hostname": "gpu-1"
    },
    "pod+hostname": {"pod": "llm", "namespace": "ml", "hostname": "gpu-1"},
    "pod_name+node": {"pod_name": "llm", "pod_namespace": "ml", "node": "GPU-1"},
    "pod+kubernetes_node": {"pod": "llm", "namespace": "ml", "kubernetes_node": "10.0.0.7"},
    "pod alone": {"pod": "llm", "namespace": "ml"},
}


@pytest.mark.accepts("idle", 9)
async def test_label_variants_give_equal_rows(
    prometheus: history.PrometheusWorld, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = nodes(node(addresses=("10.0.0.7",)))
    results = {}
    for name, variant in VARIANTS.items():
        labels = {"UUID": "GPU-7", "modelName": "A100", "job": "dcgm", "instance": "172.16.0.9:9400", **variant}
        world = history.PrometheusWorld(tmp_path_factory.mktemp("variant"), now=prometheus.now)
        world.series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, constant=0.0)
        world.series("DCGM_FI_DEV_GPU_UTIL", labels, values=[0, 3, 0])
        try:
            results[name] = told(await Case(world, (pod("llm"),), place).usage())
        finally:
            await world.kill()
    assert results == dict.fromkeys(VARIANTS, results["pod alone"])
    assert results["pod alone"]["peak gpu_util"] == [0.03]


async def test_all_other_signals_arrive(prometheus: history.PrometheusWorld) -> None:
    rising = [float(1000 + 10 * step) for step in range(61)]
    more: dict[str, history.Values] = {
        "DCGM_FI_PROF_SM_ACTIVE": 0.2,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.1,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.3,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 4.0,
        "DCGM_FI_DEV_ENC_UTIL": 5.0,
        "DCGM_FI_DEV_DEC_UTIL": 6.0,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 7e6,
        "DCGM_FI_PROF_PCIE_RX_BYTES": 9e6,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5e9,
    }
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml", memory_used=rising, more=more)
    prometheus.dcgm_gpu(
        "gpu-1", 1, pod="llm", namespace="ml",
        more={"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": [1e6 * step for step in range(61)]},
    )
    prometheus.series(
        "hami_container_last_kernel_elapsed_seconds", {"namespace": "ml", "pod": "llm", "device_uuid": "GPU-gpu-1-0"},
        values=[900.0, 930.0],
    )
    serving = {"pod": "llm", "namespace": "ml", "model_name": "m"}
    prometheus.series("vllm:num_requests_running", serving, constant=0.0)
    prometheus.series("vllm:num_requests_waiting", serving, values=[0.0, 2.0, 0.0])
    seen = await Case(prometheus, (pod("llm"),)).usage()
    expected = {
        Signal.sm_active: 0.2,
        Signal.tensor: 0.1,
        Signal.dram: 0.3,
        Signal.copy: 4.0,
        Signal.enc: 5.0,
        Signal.dec: 6.0,
        Signal.pcie: 9e6,
        Signal.last_kernel: 930.0,
        Signal.requests: 2.0,
    }
    assert {signal: seen.peak[signal][0] for signal in expected} == expected
    assert seen.peak[Signal.fb_growth][0] == pytest.approx(600, abs=10)
    assert seen.exporter_frozen.tolist() == [True, False]


@pytest.mark.parametrize("rise", [0.0, 1.0], ids=["none served", "one served"])
async def test_one_request_served_is_a_request(prometheus: history.PrometheusWorld, rise: float) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml")
    prometheus.series(
        "vllm:request_success_total", {"pod": "llm", "namespace": "ml"}, values=[10.0] * 30 + [10.0 + rise] * 31
    )
    seen = await Case(prometheus, (pod("llm"),)).usage()
    assert (seen.peak[Signal.requests][0] >= 1) == (rise > 0)


@pytest.mark.parametrize("up", [1.0, 0.0], ids=["up", "down"])
async def test_an_exporter_that_is_down_now(prometheus: history.PrometheusWorld, up: float) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml")
    prometheus.exporter_up("gpu-1", [1.0] * 60 + [up])
    seen = await Case(prometheus, (pod("llm"),)).usage()
    assert seen.exporter_up.tolist() == [up == 1.0]


async def test_the_power_floor_needs_a_day(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu(
        "gpu-1",
        0,
        pod="long",
        namespace="ml",
        gr_engine=0.0,
        gpu_util=None,
        memory_used=None,
        power=[90.0] * 700 + [61.0] + [88.0] * 740,
        every=60,
    )
    prometheus.dcgm_gpu(
        "gpu-1", 1, pod="short", namespace="ml", gr_engine=0.0, gpu_util=None, memory_used=None, power=50.0,
        minutes=120, every=60,
    )
    await prometheus.start()
    pods = (pod("long"), pod("short"))
    async with source(prometheus.url) as asked:
        found = await asked.evidence(held(pods), frozenset({HALF_HOUR}), prometheus.now)
    floor = dict(zip(found.usage[HALF_HOUR].gpu, found.usage[HALF_HOUR].power_floor.tolist(), strict=True))
    assert floor["GPU-gpu-1-0"] == 61.0
    assert math.isnan(floor["GPU-gpu-1-1"])


async def test_two_windows_are_two_usages(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml", gr_engine=[0.9] + [0.0] * 100, gpu_util=None)
    prometheus.dcgm_gpu("gpu-1", 1, pod="llm", namespace="ml", until=prometheus.now - 2400)
    await prometheus.start()
    async with source(prometheus.url) as asked:
        pods = (pod("llm", resources={"nvidia.com/gpu": 2}),)
        found = await asked.evidence(held(pods), frozenset({HALF_HOUR, 3600.0}), prometheus.now)
    assert found.usage[HALF_HOUR].peak[Signal.gr_engine].tolist() == [0.0]
    assert found.usage[3600.0].peak[Signal.gr_engine].tolist() == [0.9, 0.0]


# ---- looking back ----------------------------------------------------------------------------------------------------


def history_of(active_minutes_ago: float | None, hours: float, every: int = 30) -> list[float | None]:
    steps = int(hours * 3600 / every) + 1
    values: list[float | None] = [0.0] * steps
    if active_minutes_ago is not None:
        values[-1 - int(active_minutes_ago * 60 / every)] = 0.8
    return values


async def test_exact_idle_times(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="was.busy", namespace="ml", gr_engine=history_of(95.5, 6), gpu_util=None)
    prometheus.dcgm_gpu("gpu-1", 1, pod="never", namespace="ml", gr_engine=history_of(None, 6), gpu_util=None)
    gap: list[float | None] = history_of(None, 6)
    gap[120:360] = [None] * 240
    prometheus.dcgm_gpu("gpu-1", 2, pod="gap", namespace="ml", gr_engine=gap, gpu_util=None)
    prometheus.dcgm_gpu("gpu-1", 3, pod="busy", namespace="ml", gr_engine=0.5, gpu_util=None)
    await prometheus.start()
    pods = tuple(map(pod, ("was.busy", "never", "gap", "busy")))
    async with faults.FaultyProxy(prometheus.url) as proxy, source(proxy.url) as asked:
        seen = (await asked.evidence(held(pods), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        row = {pods[index].name: place for place, index in enumerate(seen.pod)}
        wanted = [row["was.busy"], row["never"], row["gap"]]
        proxy.seen.clear()
        found = await asked.look_back(seen, candidates(wanted), held(pods), prometheus.now, 0.01)
        ago = (prometheus.now - found.last_active) / 60
        assert 0.9 * 95.5 <= ago[row["was.busy"]] <= 95.5, "a tenth, and never too long"
        assert found.last_active[row["never"]] == found.last_active[row["gap"]] == -math.inf
        assert math.isnan(found.last_active[row["busy"]])
        since = (prometheus.now - found.observed_since) / 3600
        assert since[row["never"]] == pytest.approx(6, abs=0.06)
        assert since[row["gap"]] == pytest.approx(3, abs=0.06)
        assert all("DCGM_FI_PROF_GR_ENGINE_ACTIVE" in text for text in proxy.seen)
        assert np.isnan(seen.last_active).all(), "what was handed in stays as it was"

        proxy.seen.clear()
        later = prometheus.now + 60
        kept = await asked.look_back(seen, candidates(wanted), held(pods), later, 0.01)
        assert proxy.seen == [], "a row that stays idle is not asked again"
        assert kept.last_active[wanted].tolist() == found.last_active[wanted].tolist()
        await asked.look_back(seen, candidates(wanted), held(pods), later + HALF_HOUR + 1, 0.01)
        assert proxy.seen, "after more than a window nobody knows what happened between"


async def test_a_look_back_that_fails_says_nothing(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml")
    await prometheus.start()
    async with faults.FaultyProxy(prometheus.url) as proxy, source(proxy.url) as asked:
        seen = (await asked.evidence(held((pod("llm"),)), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        proxy.fault = faults.status(500)
        found = await asked.look_back(seen, candidates([0]), held((pod("llm"),)), prometheus.now, 0.01)
        assert np.isnan(found.last_active).all()
        assert np.isnan(found.observed_since).all()
        proxy.fault = None
        found = await asked.look_back(seen, candidates([0]), held((pod("llm"),)), prometheus.now, 0.01)
        assert found.last_active.tolist() == [-math.inf]


# ---- exporters that restart ------------------------------------------------------------------------------------------

GR = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
_OLD = {"instance": "10.0.0.1:9400", "pod": "dcgm-a"}
RESTARTS = {  # what tells the two series apart
    "another pod and address": (_OLD, {"instance": "10.0.0.7:9400", "pod": "dcgm-b"}),
    "the same pod at another address": (_OLD, {**_OLD, "instance": "10.0.0.7:9400"}),
    "a label that is not read": ({**_OLD, "uid": "1"}, {**_OLD, "uid": "2"}),
}
WHOLE, HALF = [0.0] * 30, [value for _ in range(31) for value in (0.0, None)]


def one_gpu(prometheus: history.PrometheusWorld, told_apart: Mapping[str, str], values: list[float | None],
            until: float = 0.0, gpu: int = 0) -> None:
    labels = {"UUID": f"GPU-{gpu}", "exported_pod": f"p{gpu}", "exported_namespace": "ml", "job": "dcgm"}
    prometheus.series(GR, {**labels, **told_apart}, values=values, until=prometheus.now - until)


async def coverages(prometheus: history.PrometheusWorld, pods: tuple[cluster.Pod, ...]) -> list[dict[str, float]]:
    """By GPU, after looking back, and at the second look."""
    await prometheus.start()
    async with source(prometheus.url) as asked:
        seen = (await asked.evidence(held(pods), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        back = await asked.look_back(seen, candidates(range(seen.rows)), held(pods), prometheus.now, 0.01)
        again = (await asked.again(held(pods), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
    return [
        dict(zip(use.gpu, (use.count[Signal.gr_engine] * use.interval / HALF_HOUR).tolist(), strict=True))
        for use in (back, again)
    ]


@pytest.mark.accepts("idle", 55)
@pytest.mark.parametrize("name", RESTARTS)
async def test_an_exporter_that_restarted_without_a_gap_covers_the_window(
    prometheus: history.PrometheusWorld, name: str
) -> None:
    old, new = RESTARTS[name]
    one_gpu(prometheus, old, WHOLE * 3, until=930)
    one_gpu(prometheus, new, [*WHOLE, 0.0])
    for covered in await coverages(prometheus, (pod("p0"),)):
        assert covered["GPU-0"] >= 0.95


@pytest.mark.accepts("idle", 55)
async def test_two_halves_that_overlap_are_no_whole(prometheus: history.PrometheusWorld) -> None:
    one_gpu(prometheus, _OLD, [0.0] * 121)  # how often this job is scraped
    one_gpu(prometheus, _OLD, HALF, gpu=1)
    one_gpu(prometheus, RESTARTS["another pod and address"][1], [None, *HALF], gpu=1)
    one_gpu(prometheus, _OLD, WHOLE, until=900, gpu=2)  # twice the same half, by two of them
    one_gpu(prometheus, RESTARTS["another pod and address"][1], WHOLE, until=900, gpu=2)
    for covered in await coverages(prometheus, (pod("p0"), pod("p1"), pod("p2"))):
        assert covered["GPU-0"] >= 0.98
        assert 0.4 < covered["GPU-1"] < 0.6
        assert covered["GPU-2"] < 0.6


async def test_an_idle_time_never_begins_before_the_end_of_a_gap(prometheus: history.PrometheusWorld) -> None:
    """Ten missing scrapes in a row are a gap, and nine single ones are none."""
    gap: list[float | None] = [0.0] * 1201
    gap[-400:-388] = [None] * 12
    single: list[float | None] = [0.0] * 1201
    for step in range(300, 1000, 70):
        single[step] = None
    for number, values in enumerate((gap, single)):
        one_gpu(prometheus, _OLD, values, gpu=number)
    await prometheus.start()
    pods = (pod("p0"), pod("p1"))
    async with source(prometheus.url) as asked:
        seen = (await asked.evidence(held(pods), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        found = await asked.look_back(seen, candidates([0, 1]), held(pods), prometheus.now, 0.01)
    since = ((prometheus.now - found.observed_since) / 60).tolist()
    assert 387 * 0.5 - 3 <= since[0] <= 388 * 0.5
    assert since[1] == pytest.approx(600, abs=4)


# ---- the second look -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("honor", [False, True], ids=["exported", "honoured"])
async def test_the_second_look_asks_anew_for_those_pods_only(prometheus: history.PrometheusWorld, honor: bool) -> None:
    for number, name in enumerate(("one", 'o"dd\\name', "other")):
        prometheus.dcgm_gpu("gpu-1", number, pod=name, namespace="ml", honor_labels=honor)
    await prometheus.start()
    pods = tuple(map(pod, ("one", 'o"dd\\name', "other")))
    async with faults.FaultyProxy(prometheus.url) as proxy, source(proxy.url, honor_labels=honor) as asked:
        first = (await asked.evidence(held(pods), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        proxy.seen.clear()
        found = await asked.again(held(pods[:2]), frozenset({HALF_HOUR}), prometheus.now)
        assert found.trouble is None
        assert (told(found.usage[HALF_HOUR])["gpu"], found.usage[HALF_HOUR].pod.tolist()) == (first.gpu[:2], [0, 1])
        assert found.usage[HALF_HOUR].interval.tolist() == first.interval[:2].tolist()
        assert proxy.seen
        await prometheus.kill()
        found = await asked.again(held(pods[:2]), frozenset({HALF_HOUR}), prometheus.now)
        assert found.trouble is not None, "nothing is answered from memory"


async def test_the_second_look_sees_a_shared_gpu_whole(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="a", namespace="ml", gr_engine=0.6, gpu_util=None)
    prometheus.dcgm_gpu("gpu-1", 0, pod="b", namespace="ml", gr_engine=0.0, gpu_util=None)
    await prometheus.start()
    pods, place = (pod("a"), pod("b")), nodes(node(shared=True))
    async with source(prometheus.url) as asked:
        full = (await asked.evidence(held(pods, place), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        assert full.peak[Signal.gr_engine].tolist() == [0.6, 0.6]
        small = (await asked.again(held(pods[1:], place), frozenset({HALF_HOUR}), prometheus.now)).usage[HALF_HOUR]
        assert small.peak[Signal.gr_engine].tolist() == [0.6]


# ---- faults ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "500": (faults.status(500), "SourceError"),
    "401": (faults.status(401), "SourceError"),
    "400": (faults.status(400), "SourceError"),
    "web page": (faults.html, "BadResponse"),
    "nothing": (faults.empty, "NoData"),
    "warnings": (faults.warnings, "PartialResponse"),
    "isPartial": (faults.partial, "PartialResponse"),
    "broken": (faults.cut, "SourceError"),
    "lying about the time": (faults.ahead(3600), "BadResponse"),
    "one primary fails": (faults.only("SM_ACTIVE", faults.status(422)), "SourceError"),
}


@pytest.mark.accepts("idle", 5)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_source_with_trouble_gives_no_usage(prometheus: history.PrometheusWorld, name: str) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml")
    await prometheus.start()
    async with faults.FaultyProxy(prometheus.url) as proxy, source(proxy.url) as asked:
        proxy.fault, reason = FAULTS[name]
        found = await asked.evidence(held((pod("llm"),)), frozenset({HALF_HOUR}), prometheus.now)
        assert (found.trouble and found.trouble.reason, found.usage) == (reason, {})
        assert found.trouble is not None
        assert proxy.url in found.trouble.because
        proxy.fault = None
        found = await asked.evidence(held((pod("llm"),)), frozenset({HALF_HOUR}), prometheus.now)
        assert found.trouble is None
        assert found.usage[HALF_HOUR].rows == 1


@pytest.mark.parametrize(
    "fault", [faults.status(422), faults.html, faults.warnings], ids=["422", "web page", "warnings"]
)
async def test_another_signal_that_fails_is_only_lost(prometheus: history.PrometheusWorld, fault: faults.Fault) -> None:
    prometheus.dcgm_gpu(
        "gpu-1", 0, pod="llm", namespace="ml",
        more={"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.3, "DCGM_FI_PROF_DRAM_ACTIVE": 0.2},
    )
    await prometheus.start()
    async with faults.FaultyProxy(prometheus.url) as proxy, source(proxy.url) as asked:
        proxy.fault = faults.only("TENSOR", fault)
        found = await asked.evidence(held((pod("llm"),)), frozenset({HALF_HOUR}), prometheus.now)
    assert found.trouble is None
    assert [lost.signal for lost in found.lost_signals] == ["tensor"]
    assert Signal.tensor not in found.usage[HALF_HOUR].peak
    assert found.usage[HALF_HOUR].peak[Signal.dram].tolist() == [0.2]


SHOWN = (
    *(metric.name for metric in (*queries.PRIMARIES, *queries.OTHERS)), queries.ENERGY, queries.HOLDS,
    *queries.REQUEST_GAUGES, *queries.REQUEST_COUNTERS, "up",
)


async def test_no_page_of_a_tenant_can_make_a_question_fail(prometheus: history.PrometheusWorld) -> None:
    prometheus.dcgm_gpu("gpu-1", 0, pod="llm", namespace="ml", power=60.0)
    prometheus.series("vllm:num_requests_running", {"pod": "llm", "namespace": "ml", "job": "pods"}, constant=3.0)
    forged = {
        "job": "pods", "instance": "10.6.6.6:8000", "namespace": "evil", "pod": "evil-0", "exported_pod": "llm",
        "exported_namespace": "nowhere", "workload_pod": "llm", "UUID": "GPU-gpu-1-0", "scope": "process",
    }
    for name in SHOWN:
        for label in ("fallow_part", "le", "quantile", "container"):
            for odd in "01xy":
                prometheus.series(name, {**forged, label: odd}, constant=0.0)
    endless = {"pod": "llm", "namespace": "ml", "job": "pods", "instance": "10.6.6.6:8000"}
    prometheus.series("vllm:num_requests_running", endless, constant=math.inf)
    await prometheus.start()
    async with source(prometheus.url) as asked:
        for look in (asked.evidence, asked.again):
            found = await look(held((pod("llm"),)), frozenset({HALF_HOUR}), prometheus.now)
            assert (found.trouble, found.lost_signals) == (None, ())
            assert (found.usage[HALF_HOUR].peak[Signal.requests] >= 3.0).all()


async def test_matchers_choose_one_cluster_of_several(prometheus: history.PrometheusWorld) -> None:
    for name, value in (("a", 0.0), ("b", 0.9)):
        labels = {
            "UUID": f"GPU-{name}", "pod": "llm", "namespace": "ml", "cluster": name, "job": "dcgm", "instance": "x:1"
        }
        prometheus.series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, constant=value)
    await prometheus.start()
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none"), matchers='cluster="a"') as asked:
        found = await eyes.PrometheusSource(asked).evidence(held((pod("llm"),)), frozenset({HALF_HOUR}), prometheus.now)
    assert found.usage[HALF_HOUR].gpu == ("GPU-a",)
