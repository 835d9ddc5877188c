"""What is not asked changes no verdict: small random pasts, each asked in full and sparingly, and judged alike."""

import random
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.observe.usage.gpu_pods import held, node, nodes, pod

from fallow.clients.prometheus import auth, client
from fallow.decide.idle import judge
from fallow.model import usage
from fallow.model.decision import Reason
from fallow.model.usage import Signal
from fallow.observe.usage import prometheus as eyes
from fallow.sim.servers.prometheus import promql, samples, server

NOW, WINDOW, EVERY = 1_800_000_000.0, 1800.0, 30.0
GR, SM, UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
POWER = "DCGM_FI_DEV_POWER_USAGE"
STRICTEST = usage.Strictest(quiet=0.01, busy=0.01, coverage=0.8, max_sample_age=180.0)
PODS, NODES = 12, 3
ONCE = {"strictest": STRICTEST, "only_verdicts": True}
EITHER_WAY = pytest.mark.parametrize(
    "asked", [{}, {"strictest": STRICTEST}, ONCE], ids=["in full", "sparingly", "for verdicts only"]
)


class Past:
    """As much of samples.KeptSamples as questions need."""

    def __init__(self) -> None:
        self._series: dict[str, list[samples.KeptSeries]] = {}

    def add(self, metric: str, labels: dict[str, str], points: dict[float, float]) -> None:
        times = array("d", sorted(points))
        target = samples.KeptTarget(labels, array("d"))
        values = array("d", (points[at] for at in times))
        self._series.setdefault(metric, []).append(samples.KeptSeries(metric, labels, target, times, values))

    def of(self, metric: str) -> list[samples.KeptSeries]:
        return self._series.get(metric, [])

    def all(self) -> Iterator[samples.KeptSeries]:
        return (one for some in self._series.values() for one in some)


def scrapes(rng: random.Random) -> list[float]:
    """Mostly all of two windows; else late, dead for a while, or thinned."""
    whole = [NOW - 5.0 - EVERY * step for step in range(int(2 * WINDOW / EVERY))]
    kind = rng.choice(["whole"] * 6 + ["late", "dead", "thin", "hole"])
    cut = rng.uniform(60.0, WINDOW)
    return {
        "whole": whole, "late": [at for at in whole if at > NOW - cut], "dead": [at for at in whole if at < NOW - cut],
        "thin": [at for at in whole if rng.random() < 0.7],
        "hole": [at for at in whole if not NOW - cut - 400.0 < at < NOW - cut],
    }[kind]


def level(rng: random.Random) -> float:
    return rng.choice([0.0] * 9 + [0.9, 0.004, 0.0005, 0.06])


def draw(rng: random.Random) -> Past:
    """GPUs of a few nodes, in most pasts with twins only; else some metrics are missing, or others export them."""
    past, mixed = Past(), rng.random() < 0.3
    sets = [(GR, UTIL)] * 5 + [(UTIL,), (GR,), (GR, SM, UTIL), (SM, UTIL), ()] if mixed else [(GR, UTIL)]
    for number in range(NODES):
        up = {"job": "dcgm", "instance": f"10.0.0.{number}:9400"}
        past.add("up", up, dict.fromkeys(scrapes(rng), 1.0))
    for number in range(PODS + 2):
        on = number % NODES
        labels = {
            "UUID": f"GPU-{number}", "Hostname": f"gpu-{on}", "job": "dcgm", "instance": f"10.0.0.{on}:9400",
            "modelName": "NVIDIA A10G",
        }
        if number < PODS:
            labels |= {"exported_pod": f"app-{number}", "exported_namespace": "ml"}
        page, exported = scrapes(rng), rng.choice(sets)
        for metric in exported if rng.random() < 0.2 else ():  # some GPUs are measured twice
            measure(past, metric, labels | {"exported_container": "second"}, page, rng)
        for metric in (*exported, POWER):
            stranger = {"job": rng.choice(["other", "dcgm"]), "instance": "10.9.9.9:1"}
            measure(past, metric, labels | (stranger if mixed and rng.random() < 0.1 else {}), page, rng)
    return past


def measure(past: Past, metric: str, labels: dict[str, str], page: list[float], rng: random.Random) -> None:
    scale, usual = {UTIL: 100.0, POWER: 100.0}.get(metric, 1.0), level(rng)
    if rng.random() < 0.4:  # on some pages, and not on others
        page = scrapes(rng)
    points = {at: (usual if usual < 0.01 or rng.random() < 0.1 else 0.0) * scale for at in page}
    for at in rng.sample(page, min(len(page), rng.choice([0] * 3 + [1]))):
        points[at] = rng.choice([float("nan"), -1.0, 1e12, -0.2 * scale, float("inf")])
    past.add(metric, labels, points)


async def look(past: Past, *, only_verdicts: bool = False, **more: Any) -> tuple[usage.Usage, int]:
    """What is seen, and how many series were answered."""
    answered = 0

    def answer(asked: loopback.Asked) -> web.Response:
        nonlocal answered
        at = float(asked.form["time"])
        vector = promql.read(asked.form["query"])(promql.Asked(at, past))  # type: ignore[arg-type]
        answered += len(vector)
        result = [{"metric": labels, "value": (at, server.write_number(value))} for labels, value in vector]
        body = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    pods = tuple(pod(f"app-{number}", f"gpu-{number % NODES}") for number in range(PODS))
    places = nodes(*(node(f"gpu-{number}") for number in range(NODES)))
    login = auth.Login(method="none")
    async with loopback.serve(answer) as behind, client.Prometheus(behind.url, login=login) as prometheus:
        source = eyes.PrometheusSource(prometheus, only_verdicts=only_verdicts)
        found = await source.evidence(held(pods, places), frozenset({WINDOW}), NOW, with_floors=False, **more)
        assert found.trouble is None
        return found.usage[WINDOW], answered


def verdicts(use: usage.Usage) -> dict[tuple[int, str], Any]:
    def same(value: float) -> usage.Floats:
        return np.full(use.rows, value)

    no, rows = np.zeros(use.rows, np.bool_), np.arange(use.rows)
    terms = judge.Terms(
        gone_idle=same(WINDOW), never_used=same(WINDOW), grace=same(300.0), activity=same(0.01), coverage=same(0.8),
        max_sample_age=same(180.0), idle_gpu_fraction=same(1.0), power_watts=same(np.nan), power_floor=no, disabled={},
        mig=use.mig, shared=use.shared, node=use.pod % NODES, device=rows, contested=no, watts=same(150.0),
        on_unseen_node=no,
    )
    codes = judge.judge_rows(use, terms, NOW).tolist()
    return {(each, gpu): judge.CODES[code] for each, gpu, code in zip(use.pod.tolist(), use.gpu, codes, strict=True)}


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_not_asked_changes_no_verdict(seed: int) -> None:
    past = draw(random.Random(seed))
    in_full, sparingly = await look(past), await look(past, strictest=STRICTEST)
    assert verdicts(sparingly[0]) == verdicts(in_full[0])


def scrape_all(past: Past) -> Past:
    """The server writes `up` with every page that it reads."""
    pages: dict[tuple[str, str], dict[float, float]] = {}
    for one in past.all():
        pages.setdefault((one.labels["job"], one.labels["instance"]), {}).update(dict.fromkeys(one.times, 1.0))
    scraped = Past()
    for metric in (GR, SM, UTIL, POWER):
        for one in past.of(metric):
            scraped.add(metric, one.labels, dict(zip(one.times, one.values, strict=True)))
    for (job, instance), points in pages.items():
        scraped.add("up", {"job": job, "instance": instance}, points)
    return scraped


@pytest.mark.parametrize("seed", range(40))
async def test_what_is_not_asked_about_those_that_work_changes_no_verdict(seed: int) -> None:
    past = scrape_all(draw(random.Random(seed)))
    (in_full, many), (once, few) = await look(past), await look(past, **ONCE)
    assert verdicts(once) == verdicts(in_full)
    assert few < many


async def test_how_often_a_job_is_scraped_is_told_by_its_targets_where_only_the_thin_are_asked_about() -> None:
    """The one that works is whole; of the quiet one 40 of 60 samples are there, of late as often as of the other."""
    past, thin = Past(), [at for number, at in enumerate(PAGE) if number < 20 or number >= 40]
    for number, (page, level) in enumerate(((PAGE, 0.9), (thin, 0.0))):
        past.add("up", {"job": "dcgm", "instance": f"10.0.0.{number}:9400"}, dict.fromkeys(page, 1.0))
        labels = {"exported_pod": f"app-{number}", "instance": f"10.0.0.{number}:9400"}
        past.add(GR, one_page(f"GPU-{number}") | labels, dict.fromkeys(page, level))
    found, _ = await look(past, **ONCE)
    assert list(verdicts(found).values()) == [Reason.Busy, Reason.LowCoverage]
    assert found.interval[1] == 30.0
    assert np.isnan(found.count[Signal.gr_engine][0])


def works(past: Past, name: str) -> bool:
    """By the samples that are readings, one by one, of any series that names the pod."""
    for metric, scale in ((GR, 1.0), (SM, 1.0), (UTIL, 100.0)):
        for series in (one for one in past.of(metric) if one.labels.get("exported_pod") == name):
            points = zip(series.times, series.values, strict=True)
            read = [value / scale for at, value in points if NOW - WINDOW < at <= NOW and 0.0 <= value <= 1.05 * scale]
            if read and (max(read) >= 0.01 or sum(read) / len(read) >= 0.002):
                return True
    return False


@pytest.mark.accepts("idle", 51)
@EITHER_WAY
@pytest.mark.parametrize("seed", range(20))
async def test_no_sample_that_is_none_makes_a_working_gpu_idle(seed: int, asked: dict[str, Any]) -> None:
    past = draw(random.Random(seed))
    found, _ = await look(past, **asked)
    idle = {f"app-{pod}" for (pod, _), reason in verdicts(found).items() if reason is Reason.GoneIdle}
    assert [name for name in sorted(idle) if works(past, name)] == []


async def test_twins_are_asked_once_how_complete_they_are() -> None:
    past, page = Past(), [NOW - 5.0 - EVERY * step for step in range(60)]
    past.add("up", {"job": "dcgm", "instance": "10.0.0.0:9400"}, dict.fromkeys(page, 1.0))
    for number in range(PODS):
        labels = {"exported_pod": f"app-{number}", "exported_namespace": "ml", "UUID": f"GPU-{number}", "job": "dcgm"}
        for metric in (GR, UTIL):
            past.add(metric, {**labels, "instance": "10.0.0.0:9400"}, dict.fromkeys(page, 0.0))
    (full, many), (seen, few) = await look(past), await look(past, strictest=STRICTEST)
    assert set(verdicts(seen).values()) == set(verdicts(full).values()) == {judge.CODES[judge.IDLE]}
    assert (set(full.count), set(seen.count)) == ({Signal.gr_engine, Signal.gpu_util}, {Signal.gr_engine})
    assert many - few == 2 * PODS  # without the samples and the newest of one of them; a mean of 0 is no answer


PAGE = [NOW - 5.0 - EVERY * step for step in range(60)]


def one_page(gpu: str, **more: str) -> dict[str, str]:
    named = {"exported_pod": "app-0", "exported_namespace": "ml", "UUID": gpu}
    return {**named, "job": "dcgm", "instance": "10.0.0.0:9400", **more}


def scraped() -> Past:
    past = Past()
    past.add("up", {"job": "dcgm", "instance": "10.0.0.0:9400"}, dict.fromkeys(PAGE, 1.0))
    return past


async def test_a_claim_is_not_dropped_because_only_its_twin_still_makes_it() -> None:
    """Profiling ended ten minutes ago on the busy one of two GPUs that are named for a pod that asked for one."""
    past = scraped()
    past.add(GR, one_page("GPU-A"), {at: 0.0 for at in PAGE if at < NOW - 600.0})
    past.add(UTIL, one_page("GPU-A"), dict.fromkeys(PAGE, 90.0))
    for metric in (GR, UTIL):
        past.add(metric, one_page("GPU-B"), dict.fromkeys(PAGE, 0.0))
    (full, _), (seen, _) = await look(past), await look(past, strictest=STRICTEST)
    assert verdicts(seen) == verdicts(full)
    assert set(seen.gpu) == {"GPU-A", "GPU-B"}
    assert judge.CODES[judge.IDLE] not in verdicts(seen).values()


@pytest.mark.accepts("idle", 51)
@EITHER_WAY
@pytest.mark.parametrize("odd", ["a series beside it", "a sample of it"])
@pytest.mark.parametrize("trickling", [GR, UTIL])
async def test_nothing_odd_hides_a_steady_trickle(trickling: str, odd: str, asked: dict[str, Any]) -> None:
    past = scraped()
    for metric in (GR, UTIL):
        usual = (0.6 if metric == UTIL else 0.006) if metric == trickling else 0.0
        points = dict.fromkeys(PAGE, usual)
        if metric == trickling and odd == "a sample of it":
            points[PAGE[7]] = float("nan")
        past.add(metric, one_page("GPU-0"), points)
        if metric == trickling and odd == "a series beside it":
            past.add(metric, one_page("GPU-0", container="forged"), dict.fromkeys(PAGE, 1e12))
    found, _ = await look(past, **asked)
    assert set(verdicts(found).values()) == {judge.CODES[judge.BUSY]}


BLANK = 9.2e18  # what DCGM writes where it has no value


def trickle_beside(metric: str, odd: dict[float, float], usual: float = 0.006) -> Past:
    """A steady trickle by one primary with a few odd samples in it, where the other reads 0."""
    past = scraped()
    for each in (GR, UTIL):
        scale = 100.0 if each == UTIL else 1.0
        points = dict.fromkeys(PAGE, usual * scale) | odd if each == metric else dict.fromkeys(PAGE, 0.0)
        past.add(each, one_page("GPU-0"), points)
    return past


@pytest.mark.accepts("idle", 51)
@EITHER_WAY
@pytest.mark.parametrize("blank", [BLANK, float("inf")])
@pytest.mark.parametrize("metric", [GR, UTIL])
async def test_a_blank_among_readings_leaves_no_silence_to_believe(
    metric: str, blank: float, asked: dict[str, Any]
) -> None:
    found, _ = await look(trickle_beside(metric, {PAGE[7]: blank}), **asked)
    assert set(verdicts(found).values()) == {Reason.BlankSamples}


@EITHER_WAY
@pytest.mark.parametrize("metric", [GR, UTIL])
async def test_what_is_blank_all_the_time_leaves_the_row_to_the_others(metric: str, asked: dict[str, Any]) -> None:
    found, _ = await look(trickle_beside(metric, dict.fromkeys(PAGE, BLANK)), **asked)
    assert set(verdicts(found).values()) == {Reason.GoneIdle}


@EITHER_WAY
async def test_a_blank_series_beside_a_good_one_hides_nothing_of_it(asked: dict[str, Any]) -> None:
    """Of two series of one row the blank one had readings, too."""
    past = trickle_beside(GR, {}, usual=0.0)
    for metric in (GR, UTIL):
        points = dict.fromkeys(PAGE, 0.6) | {PAGE[7]: BLANK} if metric == UTIL else dict.fromkeys(PAGE, 0.0)
        past.add(metric, one_page("GPU-0", exported_container="second"), points)
    found, _ = await look(past, **asked)
    assert set(verdicts(found).values()) == {Reason.BlankSamples}


@pytest.mark.accepts("idle", 51)
@EITHER_WAY
@pytest.mark.parametrize("metric", [GR, UTIL])
async def test_a_small_negative_sample_lowers_no_mean(metric: str, asked: dict[str, Any]) -> None:
    scale = 100.0 if metric == UTIL else 1.0
    found, _ = await look(trickle_beside(metric, {PAGE[7]: -0.3 * scale}), **asked)
    assert set(verdicts(found).values()) == {Reason.Busy}


ENC = "DCGM_FI_DEV_ENC_UTIL"


@EITHER_WAY
@pytest.mark.parametrize(("odd", "reason"), [
    ({}, Reason.Busy), ({PAGE[7]: BLANK}, Reason.BlankSamples), (dict.fromkeys(PAGE, BLANK), Reason.GoneIdle),
], ids=["none", "one", "all"])
async def test_a_blank_hides_no_encoder_at_work(
    odd: dict[float, float], reason: Reason, asked: dict[str, Any]
) -> None:
    past = trickle_beside(GR, {}, usual=0.0)
    past.add(ENC, one_page("GPU-0"), dict.fromkeys(PAGE, 90.0) | odd)
    found, _ = await look(past, **asked)
    assert set(verdicts(found).values()) == {reason}
