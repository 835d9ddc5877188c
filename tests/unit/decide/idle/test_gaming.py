"""Who is listed as kept busy only to be left alone, and who is not; through the story and over the API."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from tests import builders
from tests.builders import NOW, World
from tests.unit.clients import loopback
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow import telemetry
from fallow.clients.prometheus import client
from fallow.decide.idle import gaming
from fallow.doors.answers import suspects
from fallow.model import decision
from fallow.model.gaming import SPAN, STEP, Burned, Burner
from fallow.model.usage import Signal
from fallow.observe.usage import burning
from fallow.stories import gaming as stories
from fallow.stories.turn import Turn

POINTS = round(SPAN / STEP) + 1
BURN = {Signal.gr_engine: 0.3, Signal.sm_active: 0.0, Signal.tensor: 0.0, Signal.dram: 0.0}


def bursts(every: int = 20, jitter: int = 0, height: float = 0.3) -> np.ndarray:
    values, rng, at = np.zeros(POINTS), np.random.default_rng(7), 3
    while at < POINTS:
        values[at] = height
        at += every + int(rng.integers(-jitter, jitter + 1))
    return values


def did(**said: Any) -> dict[str, Burned]:
    usual = {"activity": bursts(), "mean": 0.015, "tensor": 0.0, "dram": 0.002, "sm": 0.0}
    return {"GPU-1": Burned(**{**usual, **said})}


def burner() -> list[Burner]:
    return [Burner(burning_world().workloads[0].ref, "GPU-1")]


def test_even_bursts_with_nothing_behind_them_are_listed_with_the_evidence() -> None:
    [found] = gaming.find_suspects(burner(), did(), NOW)
    assert (found.workload.name, found.gpus, found.every) == ("burner", ("GPU-1",), 20 * STEP)
    assert (found.mean, found.tensor, found.dram, found.variation) == (0.015, 0.0, 0.002, 0.0)
    assert found.bursts == 36
    assert (found.since, found.until) == (NOW - SPAN, NOW)


@pytest.mark.parametrize("said", [
    {"mean": 0.02}, {"tensor": 0.01}, {"dram": 0.01}, {"sm": 0.05}, {"activity": bursts(jitter=15)},
    {"activity": np.zeros(POINTS)}, {"activity": np.full(POINTS, 0.3)}, {"activity": bursts(every=200)},
    {"mean": np.nan}, {"tensor": np.nan}, {"dram": np.nan}, {"activity": np.full(POINTS, np.nan)},
    {"activity": np.where(np.arange(POINTS) % 3 == 0, np.nan, bursts())},
], ids=["mean", "tensor", "dram", "sm", "uneven", "quiet", "steady", "few", "no-mean", "no-tensor", "no-dram",
        "no-activity", "holes"])
def test_whoever_does_something_or_was_not_measured_is_not(said: dict[str, Any]) -> None:
    assert gaming.find_suspects(burner(), did(**said), NOW) == []


def test_one_gpu_that_nothing_is_known_of_speaks_for_its_workload() -> None:
    [one] = burner()
    assert gaming.find_suspects([one, Burner(one.workload, "GPU-2")], did(), NOW) == []


@pytest.mark.parametrize(("held", "asked"), [
    ([120, 100, 60], {"one": 120, "three": 60}), ([250, 1], {"one": 250}), ([200, 1], {"one": 200}),
], ids=["what-fits", "larger-than-all", "just"])
def test_of_a_workload_all_gpus_are_asked_about_or_none(held: list[int], asked: dict[str, int]) -> None:
    """By some of its GPUs nobody is listed: the others may work."""
    made, number = World(), 0
    for name, count in zip(("one", "two", "three"), held, strict=False):
        uuids = [f"GPU-{number + at}" for at in range(count)]
        number += count
        made.workload(f"ml/{name}", gpus=[builders.busy(uuid=uuid, signals=BURN, primaries=()) for uuid in uuids])
    seen = made.snapshot()
    seen.evidence.usage = {
        window: msgspec.structs.replace(each, mean={Signal.gr_engine: np.full(number, 0.015)})
        for window, each in seen.evidence.usage.items()
    }
    found = gaming.find_burners(seen)
    assert Counter(each.workload.name for each in found) == asked


# ---- asked over the wire ---------------------------------------------------------------------------------------------


def prometheus(asked: loopback.Asked) -> web.Response:
    query = asked.form["query"]
    if asked.path.endswith("query_range"):
        start = float(asked.form["start"])
        values = [[start + STEP * at, str(value)] for at, value in enumerate(bursts().tolist())]
        result: list[Any] = [{"metric": {"UUID": "GPU-1"}, "values": values}]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})
    value = "0.015" if "avg_over_time" in query else "0.001"
    row = {"metric": {"UUID": "GPU-1"}, "value": [float(asked.form["time"]), value]}
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": [row]}})


class GamingScene:
    """The story over a Prometheus on loopback."""

    def __init__(self, asked: client.Prometheus, seen: Any) -> None:
        self.metrics, self.now = telemetry.Telemetry(), NOW
        self.story = stories.GamingStory(
            latest=lambda: decision.Cycle(None, seen, (), "", 0.1), metrics=self.metrics,
            measure=lambda gpus, now: burning.read(asked, gpus, now),
        )

    async def tick(self, after: float = 0.0) -> stories.GamingTurn:
        self.now += after
        return await self.story.tick(Turn(
            clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        ))


def burning_world(signals: dict[Signal, float] = BURN, mean: float = 0.015, **said: Any) -> Any:
    made = World()
    made.workload("ml/burner", gpus=[builders.busy(uuid="GPU-1", signals=signals, primaries=(), **said)])
    seen = made.snapshot()
    use = {window: msgspec.structs.replace(each, mean={Signal.gr_engine: np.array([mean])})
           for window, each in seen.evidence.usage.items()}
    seen.evidence.usage = use
    return seen


@pytest.mark.parametrize(("signals", "mean", "said", "asked"), [
    (BURN, 0.015, {}, ["GPU-1"]), (BURN | {Signal.tensor: 0.2}, 0.015, {}, []),
    (BURN | {Signal.sm_active: 0.2}, 0.015, {}, []),
    (BURN | {Signal.requests: 1.0}, 0.015, {}, []), (BURN | {Signal.requests: 0.0}, 0.015, {}, ["GPU-1"]),
    (BURN | {Signal.enc: 3.0}, 0.015, {}, []), (BURN | {Signal.pcie: 2e7}, 0.015, {}, []),
    (BURN, 0.5, {}, []), (BURN | {Signal.gr_engine: 0.0}, 0.0, {}, []), ({Signal.gr_engine: 0.3}, 0.015, {}, []),
    (BURN, 0.015, {"mig": True}, []), (BURN, 0.015, {"shared": True}, []),
], ids=["burns", "tensor", "sm", "served", "not-served", "encodes", "copies", "busy", "idle", "unmeasured", "mig",
        "shared"])
def test_only_gpus_that_nothing_but_the_engine_calls_active_are_asked_about(
    signals: dict[Signal, float], mean: float, said: dict[str, Any], asked: list[str]
) -> None:
    assert [each.gpu for each in gaming.find_burners(burning_world(signals, mean, **said))] == asked


async def test_it_is_looked_for_once_an_hour_with_few_questions_and_shown() -> None:
    async with loopback.serve(prometheus) as server, client.Prometheus(server.url) as asked:
        scene = GamingScene(asked, burning_world())
        first = await scene.tick()
        for _ in range(10):
            assert await scene.tick(60.0) is first
        assert len(server.asked) == 5
        await scene.tick(3600.0)
        assert len(server.asked) == 10
    assert all(":" not in each.form["query"].rpartition("[")[2] for each in server.asked), "no subquery"
    page = suspects.show_suspects(first)
    [told] = page.items
    assert (told.workload.name, told.gpus, told.every_seconds, page.because) == ("burner", ("GPU-1",), 600.0, None)
    assert "a burst every 10m" in told.sentence
    assert b"fallow_idle_suspect_gaming 1.0" in scene.metrics.text()


async def test_without_an_answer_nobody_is_listed_and_it_is_said_once_and_tried_again(
    caplog: pytest.LogCaptureFixture
) -> None:
    def half(asked: loopback.Asked) -> web.Response:
        return web.json_response({"status": "success", "warnings": ["half"], "data": {
            "resultType": "vector", "result": []}})

    async with (
        loopback.serve(loopback.in_turn(half, half, prometheus)) as server, client.Prometheus(server.url) as asked
    ):
        scene = GamingScene(asked, burning_world())
        first = await scene.tick()
        assert b"fallow_idle_suspect_gaming NaN" in scene.metrics.text()  # nobody knows: that is no 0
        again, last = await scene.tick(61.0), await scene.tick(61.0)
    assert (first.suspects, first.failure) == ((), "")
    assert "only in part" in first.because
    assert again.because == first.because
    assert len(last.suspects) == 1
    assert len([each for each in caplog.records if "could not be found out" in each.getMessage()]) == 1
    assert b"fallow_idle_suspect_gaming 1.0" in scene.metrics.text()
    assert suspects.show_suspects(None).because == "nobody has looked yet"


async def test_a_cycle_that_saw_nothing_is_not_one_that_never_was() -> None:
    story = stories.GamingStory(
        latest=lambda: decision.Cycle(None, None, (), "the API server is away", 0.1), metrics=telemetry.Telemetry(),
        measure=lambda gpus, now: asyncio.sleep(0, {}),
    )
    turn = Turn(clock=lambda: NOW, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True)
    assert (await story.tick(turn)).because == "the last cycle saw nothing: the API server is away"


async def test_where_nobody_burns_nobody_is_asked() -> None:
    async with loopback.serve(prometheus) as server, client.Prometheus(server.url) as asked:
        found = await GamingScene(asked, World().snapshot()).tick()
    assert (server.asked, found.asked, found.because) == ([], 0, "")


async def test_the_api_tells_them() -> None:
    async with serving(make_world(), MANDATE) as api:
        page = await api.get("/api/v1/gaming")
    assert page == {"items": [], "asOf": None, "asked": 0, "because": "nobody has looked yet"}
