"""The pretend Prometheus: what it remembers, what it answers, what it refuses, and in whose time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio

from fallow.clients.prometheus import auth, client
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.observe.usage import inquiry, spans
from fallow.sim.servers import exporter
from fallow.sim.servers.prometheus import promql, samples, server
from fallow.sim.world import nouns, world
from fallow.sim.world.lives import LifeSpan

SPAN = LifeSpan(1000 * DAY, MINUTE, 240)
AHEAD = 7 * HOUR  # of those who ask
GR = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


class Scene:
    """A node with two GPUs; ml/llm has one of them, and worked in its minute 10 only."""

    def __init__(self) -> None:
        wanted = np.zeros((1, SPAN.columns), np.uint8)
        wanted[0, 10] = 80
        self.world = world.World([nouns.SimNode("gpu-1", gpus=2)], [nouns.Part("ml", "llm")], wanted, SPAN)
        self.exporters = exporter.ExporterServer(self.world)
        self.server = server.PrometheusServer(
            self.world, self.exporters, samples.KeptSamples({"gpu-1": 9400}), lambda: self.world.now + AHEAD
        )

    def play(self, minutes: int) -> None:
        for _ in range(minutes):
            self.world.advance(MINUTE)
            self.server.scrape()

    def ask(self, text: str) -> promql.Vector:
        return promql.read(text)(promql.Asked(self.world.now, self.server.kept))


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(("question", "values"), [
    (GR + '{exported_pod="llm-0"}', [0.0]),
    ("max_over_time(" + GR + '{exported_pod="llm-0"}[1h])', [0.8]),
    ("max_over_time(" + GR + '{exported_pod="llm-0"}[10m])', [0.0]),
    ("max_over_time(" + GR + '{exported_pod="llm-0"}[1h]) * 0.01', [0.008]),
    ("max_over_time(" + GR + '{exported_pod=~"llm-.*"}[10m] offset 15m)', [0.8]),
    ("count_over_time(" + GR + '{exported_pod!="llm-0"}[10m])', [10.0]),
    ("avg_over_time(" + GR + '{exported_pod="llm-0"}[25m])', [0.032]),
    ("min_over_time(" + GR + '{exported_pod!~"llm.*",job="nvidia-dcgm-exporter"}[20m])', [0.0]),
    ("max by (Hostname)(timestamp(" + GR + "{}))", [SPAN.start + 30 * MINUTE]),
    ("max by (Hostname)(max_over_time(" + GR + "{}[1h])) == 0", []),
    ("(max_over_time(" + GR + '{exported_pod="llm-0"}[1h]) >= 0.5)', [0.8]),
    ("(max_over_time(" + GR + '{gpu="0"}[1h]) - min_over_time(' + GR + '{gpu="0"}[1h]))', [0.8]),
    ("min by (Hostname)(up{} or " + GR + "{})", [1.0, 0.0]),
    ('label_replace(max by (job)(up{}), "part", "1", "", "")', [1.0]),
    ("max by (job)(up)", [1.0]), ("max by (Hostname)(max_over_time(" + GR + "[5m]))", [0.0]),
    ("nothing_of_that_name{}", []),
    ("avg by (Hostname)(max_over_time(" + GR + "[1h]))", [0.4]),
    ("avg_over_time((" + GR + '{exported_pod="llm-0"} or up / 100)[25m:1m])', [0.032, 0.01]),
    ("count_over_time(" + GR + '{exported_pod="llm-0"}[7d:5m])', [6.0]),
    ("count by (Hostname) (count_over_time(" + GR + '{exported_pod="llm-0"}[7d:5m]) < 7)', [1.0]),
    ("count_over_time(" + GR + '{exported_pod="llm-0"}[7d:5m]) < 6', []),
    ("quantile_over_time(0.95, " + GR + '{exported_pod="llm-0"}[25m:1m])', [0.0]),
    ("quantile_over_time(0.98, " + GR + '{exported_pod="llm-0"}[25m])', [0.8 * 0.52]),
    ("count_over_time((" + GR + '{exported_pod="llm-0"} / 100)[10m:2m])', [5.0]),
    ("max_over_time(" + GR + '{gpu="0"}[9m:3m]) and count_over_time(' + GR + "[9m:3m]) >= 3", [0.0]),
    ("changes(" + GR + '{exported_pod="llm-0"}[1h])', [2.0]),
    ("sum(max_over_time(" + GR + '{exported_pod="llm-0"}[1h]))', [0.8]),
    (GR + '{exported_pod="llm-0"} and changes(' + GR + "[1h]) > 0", [0.0]),
    (GR + '{exported_pod="llm-0"} and changes(' + GR + "[1h]) > 5", []),
    (GR + '{exported_pod="llm-0"} unless changes(' + GR + "[1h]) > 5", [0.0]),
    (GR + '{exported_pod="llm-0"} unless changes(' + GR + "[1h]) > 0", []),
    (GR + '{exported_pod="llm-0"} offset 20m', [0.8]),
    ("present_over_time(" + GR + '{exported_pod="llm-0"}[2m])', [1.0]),
    ("last_over_time(" + GR + '{exported_pod="llm-0"}[20m] offset 20m)', [0.8]),
    ('(DCGM_FI_DEV_FB_USED{gpu="0"} + DCGM_FI_DEV_FB_FREE{gpu="0"})', [81920.0]),
    ('DCGM_FI_DEV_FB_USED{gpu="0"} / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)', [0.3]),
])
def test_what_our_source_may_ask_is_computed(scene: Scene, question: str, values: list[float]) -> None:
    scene.play(30)
    assert [each.value for each in scene.ask(question)] == pytest.approx(values)


def test_a_rise_is_carried_on_to_the_borders_and_resets_are_counted() -> None:
    part = promql.RangePart(samples.array("d", [60, 120, 180]), samples.array("d", [100, 160, 20]), 30.0, 200.0)
    assert promql._increase(part) == pytest.approx((20 - 100 + 160) * (120 + 30 + 20) / 120)
    one = promql.RangePart(samples.array("d", [60]), samples.array("d", [100]), 30.0, 200.0)
    assert promql._increase(one) is None


@pytest.mark.parametrize("question", [
    "", "rate(up{}[5m])", "group by (job)(up{})", "up{} ^ up{}", "up{} % up{}", "up{", "up{job=}", 'up{job="a}',
    "max without (job)(up{})", "up{}[5m]", "max_over_time(up{}[5m:1s])", "max_over_time((up{})[5m])",
    "max_over_time((max_over_time(up{}[1d:1m]))[1d:1m])", "quantile_over_time(up{}[5m])",
    "up{} @ 5", "up{} up{}", "§", 'up{job=~"("}',
    'label_replace(up{}, "a", "$1", "job", "(.*)")', "count_over_time(up{}[5m]) <= 1", "topk(3, up{})",
    pytest.param("(" * 3000 + "up{}" + ")" * 3000, id="3000 brackets"),
    pytest.param("max by (job)(" * 5000 + "up{}" + ")" * 5000, id="5000 aggregations"),
    pytest.param(" or ".join(["up{}"] * 20_000), id="20000 parts"),
    pytest.param(" - ".join(["up{}"] * 20_000), id="20000 differences"),
])
async def test_a_question_that_is_not_known_is_an_error_and_never_an_empty_success(
    served: tuple[Scene, str], question: str
) -> None:
    scene, url = served
    scene.play(1)
    code, body = await post(url, query=question)
    assert code == 400
    assert body["status"] == "error"
    assert body["errorType"] == "bad_data"
    assert body["error"].startswith('invalid parameter "query": ')
    assert "data" not in body


def test_a_series_that_the_page_does_not_show_any_more_is_stale_at_once(scene: Scene) -> None:
    scene.play(5)
    assert len(scene.ask(GR + '{exported_pod="llm-0"}')) == 1
    scene.world._leave(scene.world.workloads[0], nouns.SimState.finished)
    scene.play(1)
    assert scene.ask(GR + '{exported_pod="llm-0"}') == []
    assert scene.ask("count_over_time(" + GR + '{exported_pod="llm-0"}[10m])')[0].value == 5.0


def test_an_exporter_that_does_not_answer_is_down_and_its_series_stale(scene: Scene) -> None:
    scene.play(5)
    scene.world.switch_on(nouns.Fault.exporter_silent, ["gpu-1"])
    scene.play(1)
    assert [each.value for each in scene.ask("max by (job,instance)(up{}) == 0")] == [0.0]
    assert scene.ask(GR + "{}") == []


def test_what_is_older_than_any_question_is_forgotten(scene: Scene) -> None:
    scene.play(round((samples.KEPT + 2 * HOUR) / MINUTE))
    least = min(series.times[0] for series in scene.server.kept.all())
    assert scene.world.now - samples.KEPT - HOUR <= least
    assert {len(series.times) - len(series.values) for series in scene.server.kept.all()} == {0}


# ---- on the wire -----------------------------------------------------------------------------------------------------


async def post(url: str, verb: str = "query", **form: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/api/v1/{verb}", data=form) as answer:
        return answer.status, await answer.json()


@pytest_asyncio.fixture
async def served(scene: Scene) -> AsyncIterator[tuple[Scene, str]]:
    yield scene, await scene.server.start()
    await scene.server.stop()


async def test_answers_are_in_the_time_of_who_asks_and_one_look_is_one_instant(served: tuple[Scene, str]) -> None:
    scene, url = served
    scene.play(30)
    at = scene.world.now + AHEAD
    newest = "max by (Hostname)(timestamp(" + GR + "{}))"
    for _ in range(2):
        code, body = await post(url, query=newest, time=f"{at:.3f}")
        assert code == 200
        assert body["data"]["result"] == [{"metric": {"Hostname": "gpu-1"}, "value": [at, f"{at:.0f}"]}]
        scene.play(10)  # the world goes on, and what is asked about the same instant is answered as before
    _, body = await post(url, query=newest)
    assert body["data"]["result"][0]["value"][1] == f"{scene.world.now + AHEAD:.0f}"


async def test_a_time_that_is_none_is_refused_and_other_paths_are_not_there(served: tuple[Scene, str]) -> None:
    _, url = served
    for time in ("soon", "NaN", "Inf"):
        code, body = await post(url, query="up{}", time=time)
        assert (code, body["errorType"]) == (400, "bad_data")
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/api/v1/series") as unknown:
            assert (unknown.status, (await unknown.json())["status"]) == (404, "error")
        async with http.get(f"{url}/api/v1/query", params={"query": "up{}"}) as asked:
            assert (await asked.json())["status"] == "success"
        async with http.get(f"{url}/-/ready") as ready:
            assert ready.status == 200


async def test_a_range_is_answered_step_by_step_in_the_time_of_who_asks(served: tuple[Scene, str]) -> None:
    scene, url = served
    scene.play(30)
    end, text = scene.world.now + AHEAD, "max_over_time(" + GR + '{exported_pod="llm-0"}[1m])'
    asked = {"query": text, "start": f"{end - 8 * DAY:.3f}", "end": f"{end:.3f}", "step": "120"}
    code, body = await post(url, "query_range", **asked)
    assert (code, body["data"]["resultType"]) == (200, "matrix")
    (row,) = body["data"]["result"]
    assert row["metric"]["exported_pod"] == "llm-0"
    assert [at for at, _ in row["values"]] == [end - 120 * step for step in range(14, -1, -1)]
    _, now = await post(url, query=text, time=f"{end:.3f}")
    assert row["values"][-1] == now["data"]["result"][0]["value"]
    assert {value for _, value in row["values"]} == {"0", "0.8"}


@pytest.mark.parametrize("wrong", [
    {"start": "soon"}, {"end": ""}, {"step": "0"}, {"step": "-1"}, {"end": "0"}, {"step": "0.001"}, {"query": "up{"},
], ids=str)
async def test_a_range_that_is_none_is_refused(served: tuple[Scene, str], wrong: dict[str, str]) -> None:
    scene, url = served
    scene.play(1)
    asked = {"query": "up{}", "start": "1000", "end": "2000", "step": "60", **wrong}
    code, body = await post(url, "query_range", **asked)
    assert (code, body["errorType"]) == (400, "bad_data")
    assert body["error"].startswith(f'invalid parameter "{next(iter(wrong))}": ')


async def test_every_question_of_our_own_source_is_known(scene: Scene) -> None:
    scene.play(5)
    prometheus = client.Prometheus("http://127.0.0.1:1", login=auth.Login(method="none"), matchers='cluster!="b"')
    asked = inquiry.Inquiry(prometheus, inquiry.LabelBooks(False))
    few = inquiry.Focus(("llm-0", "a.b"), ("GPU-1",))
    metric, stretch = inquiry.queries.PRIMARIES[0], spans.Stretch(3600.0, 1800.0)
    questions = [
        *asked.about([1800.0, 5400.0]), *asked.about([1800.0], few), *asked.about_paces(True), *asked.about_floors(),
        *asked.about_scrapes({"dcgm", "own"}, True),
        asked.about_activity(metric, few, stretch, 0.01, 0), asked.about_samples(metric, None, stretch, 0),
    ]
    assert len(questions) > 80
    for question in questions:
        scene.ask(question.promql)


async def test_a_range_is_the_same_question_at_every_step_and_gaps_stay_gaps(served: tuple[Scene, str]) -> None:
    scene, url = served
    scene.play(30)
    end = scene.world.now + AHEAD
    async with client.Prometheus(url, login=auth.Login(method="none")) as prometheus:
        asked = inquiry.Inquiry(prometheus, inquiry.LabelBooks(False))
        promql_text = asked.about_activity_of(inquiry.Focus(("llm-0",), ()), MINUTE)
        answer = await prometheus.query_range(promql_text, end - HOUR, end, MINUTE, row=dict[str, str], now=end)
    [series] = answer.rows
    assert len(series.values) == 30  # half of the hour is before the first sample
    found = {round((sample.at - end) / MINUTE): float(sample.value) for sample in series.values}
    assert {minute for minute, value in found.items() if value} == {-20}
    assert found[-20] == 0.8
    much = {"query": "up{}", "start": "0", "end": "1e9", "step": "1"}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/api/v1/query_range", data=much) as refused:
        assert (refused.status, (await refused.json())["errorType"]) == (400, "bad_data")
