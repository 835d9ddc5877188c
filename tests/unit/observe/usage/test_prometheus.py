"""The eyes for usage against a server with canned answers: what is kept between cycles, limits, and how little is
asked.

What the queries mean is tested on a real Prometheus (tests/real/test_prometheus.py).
"""

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.observe.usage.gpu_pods import exporters, held, node, nodes, pod
from tests.unit.observe.usage.gpu_pods import wanted as candidates

from fallow.clients.prometheus import auth, client
from fallow.model.usage import Signal
from fallow.observe.usage import prometheus as eyes

NOW = 1_800_000_000.0
WINDOW = 1800.0
ONLY = frozenset({WINDOW})
GR = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
UTIL = "DCGM_FI_DEV_GPU_UTIL"

Canned = Mapping[tuple[str, str], list[tuple[dict[str, str], float]]]


def kind_of(promql: str) -> str:
    for word, what in (
        ("[300s]", "pace"),
        ("[149999ms] offset 150s", "older pace"),
        ("count_over_time", "count"),
        ("timestamp", "newest"),
        ("increase", "increase"),
        ("min_over_time", "lowest"),
    ):
        if word in promql:
            return what
    return "peak"


def stretch_of(promql: str) -> tuple[float, float] | None:
    """From so many seconds ago to so many, if it asks about a stretch of the past."""
    found = re.search(r"\[(\d+)ms\](?: offset (\d+)s)?", promql)
    if not found or kind_of(promql) in ("pace", "older pace"):
        return None
    near = float(found[2] or 0)
    return near + round(int(found[1]) / 1000), near


def remembered(answers: Canned, name: str, promql: str) -> list[tuple[dict[str, str], float]]:
    """("past", name) holds when each series was last active; it was measured all the time, as densely as of late."""
    far, near = stretch_of(promql) or (0.0, 0.0)
    if "count_over_time" not in promql:
        value = 90.0 if "percent" in name else 0.9
        return [(one, value) for one, at in answers.get(("past", name), []) if NOW - far < at <= NOW - near]
    known = {str(one) for one, _ in answers.get(("past", name), [])}
    counts = answers.get(("count", name), [])
    return [(one, count * (far - near) / WINDOW) for one, count in counts if far <= WINDOW or str(one) in known]


def of_late(answers: Canned, kind: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Unless a test says it, the last five minutes were as dense as the window, and their halves alike."""
    if kind == "older pace" and (kind, name) not in answers:
        return [(one, count // 2) for one, count in of_late(answers, "pace", name)]
    if kind == "pace" and (kind, name) not in answers:
        return [(one, round(count * 300.0 / WINDOW) + 1.0) for one, count in answers.get(("count", name), [])]
    return answers.get((kind, name), [])


def canned(answers: Canned, **more: Any) -> loopback.Answer:
    def answer(asked: loopback.Asked) -> web.Response:
        promql, at = asked.form["query"], float(asked.form["time"])
        names = dict.fromkeys(re.findall(r"[a-zA-Z_:]+(?=\{)", promql))
        if stretch_of(promql):
            samples = [sample for name in names for sample in remembered(answers, name, promql)]
        else:
            samples = [sample for name in names for sample in of_late(answers, kind_of(promql), name)]
        result = [{"metric": metric, "value": [at, str(value)]} for metric, value in samples]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}, **more})

    return answer


def gpu(number: int, name: str = "llm", job: str = "dcgm", **more: str) -> dict[str, str]:
    return {
        "exported_pod": name, "exported_namespace": "ml", "UUID": f"GPU-{number}", "job": job,
        "instance": "172.16.0.1:9400", **more,
    }


def measured(
    *series: dict[str, str], peak: float = 0.0, count: float = 60.0, metric: str = GR
) -> dict[tuple[str, str], list[tuple[dict[str, str], float]]]:
    return {
        ("peak", metric): [(one, peak) for one in series],
        ("count", metric): [(one, count) for one in series],
        ("newest", metric): [(one, NOW) for one in series],
    }


@asynccontextmanager
async def source(
    answer: loopback.Answer, **options: Any
) -> AsyncIterator[tuple[loopback.Loopback, eyes.PrometheusSource]]:
    async with (
        loopback.serve(answer) as server,
        client.Prometheus(server.url, login=auth.Login(method="none"), backoff=0.001) as prometheus,
    ):
        yield server, eyes.PrometheusSource(prometheus, **options)


# ---- what is kept between cycles ----


async def test_while_nothing_changes_the_rows_are_the_same() -> None:
    pods = (pod("llm"),)
    async with source(canned(measured(gpu(0), gpu(1)))) as (server, asked):
        first = (await asked.evidence(held(pods, version=1), ONLY, NOW)).usage[WINDOW]
        second = (await asked.evidence(held(pods, version=1), ONLY, NOW + 60)).usage[WINDOW]
        server.answer = canned(measured(gpu(0), gpu(1), gpu(2)))
        third = (await asked.evidence(held(pods, version=1), ONLY, NOW + 120)).usage[WINDOW]
        fourth = (await asked.evidence(held((pod("other"), *pods), version=2), ONLY, NOW + 180)).usage[WINDOW]
        fifth, sixth = [(await asked.evidence(held(pods), ONLY, NOW + 240)).usage[WINDOW] for _ in range(2)]
    assert second.pod is first.pod
    assert second.gpu is first.gpu
    assert second.peak[Signal.gr_engine] is not first.peak[Signal.gr_engine]
    assert (third.gpu, third.pod.tolist()) == (("GPU-0", "GPU-1", "GPU-2"), [0, 0, 0])
    assert fourth.pod.tolist() == [1, 1, 1]
    assert first.version == second.version
    assert len({use.version for use in (first, third, fourth, fifth, sixth)}) == 5, (
        "without a version nothing is as before"
    )


async def test_series_that_are_gone_are_forgotten_and_nothing_is_mixed_up() -> None:
    many = [gpu(number, name=f"gone-{number}") for number in range(12_000)]
    pods = (pod("llm"),)
    async with source(canned(measured(*many))) as (server, asked):
        await asked.evidence(held(pods), ONLY, NOW)
        server.answer = canned(measured(gpu(7), peak=0.5))
        for cycle in range(1, 4):
            seen = (await asked.evidence(held(pods), ONLY, NOW + cycle)).usage[WINDOW]
            assert (seen.gpu, seen.peak[Signal.gr_engine].tolist()) == (("GPU-7",), [0.5])
        assert len(asked._books) < 10


async def test_long_labels_of_a_tenant_fill_no_memory_and_hide_nobody() -> None:
    real, cycle = measured(gpu(1)), 0

    def answer(asked: loopback.Asked) -> web.Response:
        junk = [
            ({"junk": f"{cycle}-{number}-" + "j" * 15_000, "job": "tenant", "UUID": "GPU-x"}, 0.0)
            for number in range(1500)
        ]
        return canned({**real, ("peak", GR): [*real["peak", GR], *junk]})(asked)

    async with source(answer) as (_, asked):
        for cycle in range(4):
            found = await asked.evidence(held((pod("llm"),)), ONLY, NOW + cycle)
            assert found.usage[WINDOW].count[Signal.gr_engine].tolist() == [60.0]
            assert sum(map(len, asked._books.foreign._numbers)) < 2**20


async def test_labels_that_are_too_long_are_named() -> None:
    long = ({"junk": "j" * 30_000, "job": "tenant", "UUID": "GPU-x"}, 0.0)
    answers = measured(gpu(1))
    async with source(canned({**answers, ("peak", GR): [*answers["peak", GR], long]})) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert [(one.who, "too long" in one.because) for one in found.ignored] == [("1 series", True)]


async def test_who_holds_a_gpu_gets_what_its_device_says() -> None:
    """Our exporter knows the pod, and measures only the device; also when one looks again, or back."""
    util, holds = "gpu_idle_device_utilization_percent", "gpu_idle_pod_gpu_info"
    device = {"uuid": "GPU-0", "model": "A100", "job": "own"}
    holder = {"uuid": "GPU-0", "workload_pod": "llm", "workload_namespace": "ml", "job": "own"}
    answers = {
        **measured(device, peak=0.0, metric=util),
        ("peak", holds): [(holder, 1.0)],
        ("past", util): [(device, NOW - 7200)],
    }
    pods = (pod("llm"),)
    async with source(canned(answers)) as (server, asked):
        seen = (await asked.evidence(held(pods), ONLY, NOW)).usage[WINDOW]
        again = (await asked.again(held(pods), ONLY, NOW)).usage[WINDOW]
        looked = await asked.look_back(seen, candidates([0]), held(pods), NOW, 0.01)
    for each in (seen, again):
        assert (each.gpu, each.pod.tolist(), each.model) == (("GPU-0",), [0], ("A100",))
        assert each.peak[Signal.device_util].tolist() == [0.0]
    assert looked.last_active.tolist() == [NOW - 7200]
    assert any(f'{holds}{{workload_pod="llm"}}' in one.form["query"] for one in server.asked)


# ---- intervals ----

INTERVALS = {
    "best series of the job": (60.0, 30.0), "faster than believed": (3600.0, 1.0),
    "slower than is believed unseen": (15.0, 60.0),
}


@pytest.mark.parametrize("name", INTERVALS)
async def test_the_interval_is_that_of_the_jobs_best_series(name: str) -> None:
    most, interval = INTERVALS[name]
    answers = measured(gpu(0), gpu(1))
    answers["count", GR] = [(gpu(0), most), (gpu(1), 1.0)]
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.interval.tolist() == [interval, interval]


async def test_a_job_that_began_a_moment_ago_is_not_one_that_is_scraped_rarely() -> None:
    answers = measured(gpu(0), count=12.0) | {("pace", GR): [(gpu(0), 12.0)]}
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.interval == pytest.approx([300.0 / 11])  # not 120: twelve samples in five minutes, not in a window


def scraped(count: float, **more: str) -> tuple[dict[str, str], float]:
    return {"job": "dcgm", "instance": "172.16.0.1:9400", **more}, count


SPARSE = {  # samples in the window; how often targets were scraped in the last 5 min; the interval
    "scraped every 30 s, and mostly not there": (17.0, [scraped(11.0)], 30.0),
    "really scraped every 2 min": (15.0, [scraped(3.0)], 120.0),
    "slower than is believed, which is as good as not known": (3.0, [scraped(1.0)], 1.0),
    "only its series tell it": (17.0, [], 60.0),
    "its densest target": (17.0, [scraped(3.0), scraped(11.0, instance="172.16.0.2:9400")], 30.0),
    "a target of which no series is believed": (15.0, [scraped(3.0), scraped(61.0, instance="10.6.6.6:1")], 120.0),
    "another job": (15.0, [scraped(3.0), scraped(61.0, job="other")], 120.0),
}


@pytest.mark.parametrize("name", SPARSE)
async def test_a_series_with_holes_is_not_a_slow_one_that_is_complete(name: str) -> None:
    count, up, interval = SPARSE[name]
    answers = measured(gpu(0), gpu(1, instance="172.16.0.2:9400"), count=count) | {("pace", "up"): up}
    async with source(canned(answers)) as (_, asked):
        for look in (asked.evidence, asked.again):
            seen = (await look(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
            assert seen.interval.tolist() == [interval, interval]


EXPORTER = {"namespace": "gpu-operator", "pod": "dcgm-x"}
STRANGER = {"namespace": "evil", "pod": "evil-0", "instance": "10.6.6.6:8000"}


async def test_a_stranger_under_the_exporters_job_hurries_nobody() -> None:
    real, forged = gpu(0, **EXPORTER), gpu(9, name="nobody", **STRANGER)
    answers = measured(real, forged) | {("pace", GR): [(real, 11.0), (forged, 60.0)]}
    answers["count", GR] = [(real, 60.0), (forged, 360.0)]
    believed = exporters("gpu-operator/dcgm-x gpu-1 10.1.0.5")
    async with source(canned(answers)) as (_, asked):
        for look in (asked.evidence, asked.again):
            seen = (await look(held((pod("llm"),), known=believed), ONLY, NOW)).usage[WINDOW]
            assert seen.interval.tolist() == [30.0]


@pytest.mark.parametrize("job", ["dcgm", "evil"])
async def test_a_stranger_makes_no_floor_and_hides_none(job: str) -> None:
    real, forged = gpu(0, **EXPORTER), gpu(9, name="nobody", job=job, **STRANGER)
    power = "DCGM_FI_DEV_POWER_USAGE"
    answers = measured(real, forged) | {
        ("lowest", power): [(real, 60.0), (forged, 1.0)], ("count", power): [(real, 2880.0), (forged, 17280.0)],
    }
    believed = exporters("gpu-operator/dcgm-x gpu-1 10.1.0.5")
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),), known=believed), ONLY, NOW)).usage[WINDOW]
    assert seen.power_floor.tolist() == [60.0]


async def test_of_two_believed_jobs_each_has_its_own_day() -> None:
    slow, fast = gpu(0), gpu(1, job="fast")
    power = "DCGM_FI_DEV_POWER_USAGE"
    answers = measured(slow, fast) | {
        ("lowest", power): [(slow, 60.0), (fast, 70.0)], ("count", power): [(slow, 2880.0), (fast, 17280.0)],
    }
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.power_floor.tolist() == [60.0, 70.0]


async def test_who_cannot_be_told_shows_activity_but_never_that_a_gpu_was_watched() -> None:
    believed = exporters("gpu-operator/dcgm-x gpu-1 10.1.0.5")
    elsewhere, unknown = gpu(1, name="other", **EXPORTER), gpu(0, instance="10.6.6.6:8000")
    pods = held((pod("llm"), pod("other")), known=believed)
    async with source(canned(measured(elsewhere, unknown, peak=0.4))) as (server, asked):
        for look in (asked.evidence, asked.again):
            seen = (await look(pods, ONLY, NOW)).usage[WINDOW]
            (row,) = (seen.pod == 0).nonzero()[0]
            assert seen.peak[Signal.gr_engine][row] == 0.4
            assert np.isnan([seen.count[Signal.gr_engine][row], seen.newest[Signal.gr_engine][row]]).all()
        server.answer = canned(measured(unknown))
        seen = (await asked.again(held((pod("llm"),), known=believed), ONLY, NOW)).usage[WINDOW]
        assert np.isnan(seen.count[Signal.gr_engine]).all(), "a second look at few still knows that exporters speak"


async def test_an_expected_interval_overrules() -> None:
    async with source(canned(measured(gpu(0))), expected_interval=15.0) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.interval.tolist() == [15.0]


async def test_of_two_jobs_the_more_frequent_one_is_asked_for() -> None:
    answers = measured(gpu(0)) | measured(gpu(0, job="fast"), count=120.0, metric=UTIL)
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.interval.tolist() == [15.0]


async def test_the_second_look_does_not_take_thin_series_for_a_slow_job() -> None:
    full, thin = gpu(0, name="full"), gpu(1, name="thin")
    answers = measured(full, thin)
    answers["count", GR] = [(full, 60.0), (thin, 20.0)]
    async with source(canned(answers)) as (server, asked):
        await asked.evidence(held((pod("full"), pod("thin"))), ONLY, NOW)
        server.answer = canned(measured(thin, count=20.0))
        seen = (await asked.again(held((pod("thin"),)), ONLY, NOW)).usage[WINDOW]
    assert (seen.count[Signal.gr_engine].tolist(), seen.interval.tolist()) == ([20.0], [30.0])


@pytest.mark.parametrize("warned", [math.nan, NOW - 72_000.0], ids=["nobody was warned", "warned 20 h ago"])
async def test_where_thousands_turn_idle_at_once_it_is_looked_back_less_far_but_to_every_notice(warned: float) -> None:
    series = [gpu(number, name=f"app-{number}") for number in range(6000)]
    pods = tuple(pod(f"app-{number}") for number in range(6000))
    answers = measured(*series) | {("past", GR): [(one, 0.0) for one in series]}
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held(pods), ONLY, NOW)).usage[WINDOW]
        found = await asked.look_back(seen, candidates(range(6000), warned), held(pods), NOW, 0.01)
    watched = set((NOW - found.observed_since).tolist())
    assert (found.last_active == -math.inf).all()
    # 6,000 rows at a sample every 30 s, once for activity and once to count: three quarters of 15 million of them are
    # 28,125 s, and the last quarter a day of 651 rows.
    assert watched == {28_125.0 if math.isnan(warned) else 72_000.0, 86_400.0}
    assert np.count_nonzero(NOW - found.observed_since == 86_400.0) == 651


# ---- what is no number ----


def as_histograms(name: str, answer: loopback.Answer) -> loopback.Answer:
    """Native histograms instead of the values of this pod's series; their samples are counted as any other's."""

    def spoil(asked: loopback.Asked) -> web.Response:
        told = msgspec.json.decode(answer(asked).body)
        for one in told["data"]["result"]:
            is_asked_for_values = kind_of(asked.form["query"]) not in ("count", "newest", "pace")
            if one["metric"].get("exported_pod") == name and is_asked_for_values:
                at, _ = one.pop("value")
                one["histogram"] = [at, {"count": "3", "sum": "0", "buckets": [[3, "-0.001", "0.001", "3"]]}]
        return web.json_response(told)

    return spoil


async def test_a_native_histogram_is_no_reading_and_is_said() -> None:
    answers = measured(gpu(0, name="odd"), gpu(1, name="llm"), gpu(2, name="llm"))
    async with source(as_histograms("odd", canned(answers))) as (_, asked):
        for look in (asked.evidence, asked.again):
            found = await look(held((pod("odd"), pod("llm"))), ONLY, NOW)
            seen = found.usage[WINDOW]
            is_odd = seen.pod == 0
            assert np.isnan(seen.peak[Signal.gr_engine][is_odd]).all()
            assert np.isnan(seen.count[Signal.gr_engine][is_odd]).all()
            assert np.isnan(seen.newest[Signal.gr_engine][is_odd]).all()
            assert seen.peak[Signal.gr_engine][~is_odd].tolist() == [0.0, 0.0]
            assert [(one.signal, "native histograms" in one.because) for one in found.lost_signals] == [
                (Signal.gr_engine.label, True)
            ]


# ---- health ----


@pytest.mark.parametrize(
    ("increase", "count", "frozen"),
    [(0.0, 60.0, True), (0.0, 29.0, False), (5.0, 60.0, False), (math.nan, 60.0, False)],
    ids=["stands still", "too few samples", "moves", "unknown"],
)
async def test_energy_that_stands_still_means_a_frozen_exporter(increase: float, count: float, frozen: bool) -> None:
    answers = measured(gpu(0), count=count) | {
        ("increase", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"): [(gpu(0), increase)]
    }
    async with source(canned(answers), expected_interval=30.0) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.exporter_frozen.tolist() == [frozen]


@pytest.mark.parametrize(("job", "up"), [("dcgm", False), ("other", True)])
async def test_up_belongs_to_a_job_and_its_target(job: str, up: bool) -> None:
    answers = {**measured(gpu(0)), ("peak", "up"): [({"job": job, "instance": "172.16.0.1:9400"}, 0.0)]}
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.exporter_up.tolist() == [up]


async def test_a_peak_that_is_no_reading_takes_its_count_along() -> None:
    async with source(canned(measured(gpu(0), peak=2147483632.0))) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert [
        np.isnan(column).all()
        for column in (seen.peak[Signal.gr_engine], seen.count[Signal.gr_engine], seen.newest[Signal.gr_engine])
    ] == [True] * 3


async def test_samples_of_the_future_are_told_as_they_are() -> None:
    answers = measured(gpu(0))
    answers["newest", GR] = [(gpu(0), NOW + 3600)]
    async with source(canned(answers)) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is None
    assert found.usage[WINDOW].newest[Signal.gr_engine].tolist() == [NOW + 3600]


# ---- the server ----


async def test_never_more_than_four_questions_at_once() -> None:
    now_open, most = 0, 0
    answer = canned(measured(gpu(0)))

    async def counting(asked: loopback.Asked) -> web.Response:
        nonlocal now_open, most
        now_open += 1
        most = max(most, now_open)
        await asyncio.sleep(0)
        now_open -= 1
        result = answer(asked)
        assert isinstance(result, web.Response)
        return result

    async with source(counting) as (server, asked):
        await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert 1 < most <= 4
    assert {one.form["time"] for one in server.asked} == {f"{NOW:.3f}"}, "one instant for all"


async def test_the_budget_of_a_cycle_ends_it() -> None:
    async def never(_: loopback.Asked) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with source(never, budget=0.1) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is not None
    assert found.trouble.reason == "SourceError"
    assert "within" in found.trouble.because


async def test_a_failing_primary_ends_the_cycle_without_asking_on() -> None:
    async with source(lambda _: web.Response(status=400)) as (server, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is not None
    assert len(server.asked) <= 8


@pytest.mark.parametrize("value", ["x", ""])
async def test_a_value_that_is_no_number_is_a_bad_response(value: str) -> None:
    def answer(asked: loopback.Asked) -> web.Response:
        row = {"metric": gpu(0), "value": [float(asked.form["time"]), value]}
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": [row]}})

    async with source(answer) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is not None
    assert found.trouble.reason == "BadResponse"


async def test_labels_that_do_not_decode_cost_their_series_and_not_the_cycle() -> None:
    odd: Any = {"UUID": 7}
    async with source(canned(measured(gpu(0), odd))) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert (found.trouble, found.usage[WINDOW].gpu) == (None, ("GPU-0",))
    assert [one.who for one in found.ignored] == ["1 series"]


async def test_infos_are_logged_once_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with source(canned(measured(gpu(0)), infos=["PromQL info: look here"])) as (_, asked):
        with caplog.at_level(logging.INFO):
            for cycle in range(2):
                assert (await asked.evidence(held((pod("llm"),)), ONLY, NOW + cycle)).trouble is None
    assert [record.getMessage().endswith("PromQL info: look here") for record in caplog.records] == [True]


@pytest.mark.parametrize("only", [("peak", "DCGM_FI_DEV_POWER_USAGE"), ("peak", "DCGM_FI_PROF_DRAM_ACTIVE")])
async def test_any_gpu_series_is_data(only: tuple[str, str]) -> None:
    async with source(canned({only: [(gpu(0), 0.5)]})) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is None
    assert found.usage[WINDOW].rows == 1
    assert found.usage[WINDOW].count == {}


async def test_requests_alone_are_no_gpu_data() -> None:
    async with source(
        canned({("increase", "vllm:num_requests_running"): [({"pod": "llm", "namespace": "ml"}, 3.0)]})
    ) as (_, asked):
        found = await asked.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is not None
    assert found.trouble.reason == "NoData"


# ---- few pods ----


async def test_questions_about_few_pods_name_at_most_five_hundred() -> None:
    pods = tuple(pod(f"p.{number}") for number in range(1400))
    series = [gpu(number, name=f"p.{number}") for number in range(1400)]
    async with source(canned(measured(*series))) as (server, asked):
        seen = (await asked.evidence(held(pods), ONLY, NOW)).usage[WINDOW]
        server.asked.clear()
        await asked.look_back(seen, candidates(range(1100)), held(pods), NOW, 0.01)
        looked_back = [one.form["query"] for one in server.asked]
        server.asked.clear()
        await asked.again(held(pods[:1100]), ONLY, NOW)
        looked_again = [one.form["query"] for one in server.asked if "up{" not in one.form["query"]]
        server.asked.clear()
        await asked.look_back(seen, candidates(range(1400)), held(pods), NOW + 2 * WINDOW, 0.01)
        all_of_them = [one.form["query"] for one in server.asked]
    for questions in (looked_back, looked_again):
        named = [set(re.findall(r"p\\\\\.\d+", question)) for question in questions]
        assert {len(names) for names in named} == {500, 100}
        assert len(set().union(*named)) == 1100
        assert len(questions) % 3 == 0
    assert all(f"{GR}{{exported_pod=~" in question for question in looked_back)
    assert all("workload_pod" in question or "pod=~" in question for question in looked_again)
    assert all(f"{GR}{{}}" in question for question in all_of_them), "nearly all need no names"


async def test_a_past_that_nobody_answers_for_was_not_watched() -> None:
    async with source(canned(measured(gpu(0)))) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
        found = await asked.look_back(seen, candidates([0]), held((pod("llm"),)), NOW, 0.01)
    assert found.observed_since.tolist() == [NOW - WINDOW], "no series came back: nobody watched before the window"


async def test_idle_times_of_kernels_need_no_question() -> None:
    answers = measured(
        {"pod": "llm", "namespace": "ml", "device_uuid": "GPU-1"}, peak=7200.0,
        metric="hami_container_last_kernel_elapsed_seconds",
    )
    async with source(canned(answers)) as (server, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
        server.asked.clear()
        found = await asked.look_back(seen, candidates([0]), held((pod("llm"),)), NOW, 0.01)
    assert server.asked == []
    assert found.last_active.tolist() == [NOW - 7200]


async def test_of_several_containers_the_last_kernel_counts() -> None:
    one, other = (
        {"pod": "llm", "namespace": "ml", "device_uuid": "GPU-1", "instance": target} for target in ("a:1", "b:1")
    )
    answers = {("peak", "hami_container_last_kernel_elapsed_seconds"): [(one, 20.0), (other, 5000.0)]}
    async with source(canned(answers)) as (_, asked):
        seen = (await asked.evidence(held((pod("llm"),)), ONLY, NOW)).usage[WINDOW]
    assert seen.peak[Signal.last_kernel].tolist() == [20.0]


async def test_a_recreated_pod_is_asked_about_anew() -> None:
    pods = (pod("llm"),)
    answers = measured(gpu(0)) | {("past", GR): [(gpu(0), NOW - 7200)]}
    async with source(canned(answers)) as (server, asked):
        seen = (await asked.evidence(held(pods), ONLY, NOW)).usage[WINDOW]
        found = await asked.look_back(seen, candidates([0]), held(pods), NOW, 0.01)
        assert found.last_active.tolist() == [NOW - 7200]
        server.asked.clear()
        await asked.look_back(seen, candidates([0]), held(pods), NOW, 0.01)
        assert server.asked == []
        await asked.look_back(seen, candidates([0]), held((pod("llm", uid="another"),)), NOW, 0.01)
        assert server.asked


async def test_on_a_shared_gpu_the_pods_own_past_counts() -> None:
    own = {"workload_pod": "llm", "workload_namespace": "ml", "uuid": "GPU-0", "job": "own"}
    process = "gpu_idle_pod_gpu_utilization_percent"
    answers = (
        measured(gpu(0))
        | measured(own, metric=process)
        | {("past", GR): [(gpu(0), NOW - 3600)], ("past", process): [(own, NOW - 7200)]}
    )
    async with source(canned(answers)) as (_, asked):
        pods, on = (pod("llm"),), nodes(node(shared=True))
        seen = (await asked.evidence(held(pods, on), ONLY, NOW)).usage[WINDOW]
        found = await asked.look_back(seen, candidates([0]), held(pods, on), NOW, 0.01)
    assert found.last_active.tolist() == [NOW - 7200]


async def test_a_day_of_power_may_speak_of_gpus_that_the_window_does_not() -> None:
    """Of a model without a rating the floor is learned; a pod that ended, or a label that changed, is in it too."""
    old = gpu(7, name="ended", modelName="NVIDIA Unheard-of")
    unrated = [gpu(number, modelName="NVIDIA Unheard-of") for number in (1, 2)]
    answers = measured(*unrated) | {("lowest", "DCGM_FI_DEV_POWER_USAGE"): [(old, 40.0)]}
    async with source(canned(answers)) as (_, prometheus):
        found = await prometheus.evidence(held((pod("llm"),)), ONLY, NOW)
    assert found.trouble is None
    assert found.usage[WINDOW].gpu == ("GPU-1", "GPU-2")
