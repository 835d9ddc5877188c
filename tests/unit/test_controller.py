"""The story against a small API server and a small Prometheus: budgets, clocks, stopping, giving up, health."""

import asyncio
import contextlib
import json
import time

import msgspec
import pytest
from aiohttp import web
from tests import builders
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend

from fallow import controller, settings
from fallow.decide.idle import plan as brain
from fallow.model import decision
from fallow.model.decision import Outcome, Status

LABELS = {
    "exported_pod": "llm-0", "exported_namespace": "ml", "exported_container": "main", "Hostname": "n1", "UUID": "GPU-1", "gpu": "0",
    "modelName": "NVIDIA A10G", "job": "dcgm", "instance": "n1:9400",
}  # fmt: skip


def busy(asked: loopback.Asked) -> web.Response:
    """One GPU, measured all the time, and busy."""
    query, at = asked.form["query"], float(asked.form["time"])
    value = at - 5 if "timestamp" in query else 60 if "count_over_time" in query else 0.9
    result = [{"metric": LABELS, "value": [at, str(value)]}] if "GR_ENGINE_ACTIVE" in query else []
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


def nothing(asked: loopback.Asked) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})


async def hang(asked: loopback.Asked) -> web.Response:
    await asyncio.sleep(60)
    return nothing(asked)


class Clock:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@contextlib.asynccontextmanager
async def story_of(tmp_path, answer, *, clock=None, interval=0.05, budget=20.0, failures=0, forbidden=()):
    """A controller in dry-run, wired as always; gives it with what Prometheus was asked."""
    async with pretend.Server() as server, loopback.serve(answer) as prometheus:
        server.put_all(pretend.deployed("llm"))
        server.forbidden |= {(verb, plural) for verb in ("list", "watch") for plural in forbidden}
        cluster = {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}], "current-context": "c"}
        context = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}
        (tmp_path / "config").write_text(json.dumps(cluster | context))
        given = {"kubeconfig": str(tmp_path / "config"), "prometheus_url": prometheus.url, "prometheus_auth": "none"}
        told = settings.read_flags({**given, "daemon_mode": True, "leader_elect": "false"}, {})
        loop = msgspec.structs.replace(told.loop, interval=interval, budget=budget, max_consecutive_failures=failures)
        async with controller.assemble(msgspec.structs.replace(told, loop=loop), clock or time.time) as story:
            yield story, prometheus


def sample(story: controller.Controller, name: str) -> float:
    [line] = [line for line in story.metrics.text().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


async def until(holds) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_runs_until_it_is_stopped_and_tells_that_it_is_well(tmp_path):
    async with story_of(tmp_path, busy) as (story, _):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 3)
        assert story.health.why_not_ready(time.monotonic()) == []
        story.stop()
        assert await running == 0
        assert sample(story, "gpu_pruner_pods_checked") == 1


async def test_what_cannot_be_seen_is_told_once(tmp_path, caplog):
    async with story_of(tmp_path, busy, forbidden=["poddisruptionbudgets"]) as (story, _):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 4)
        story.stop()
        assert await running == 0
    assert [record.levelname for record in caplog.records if "not seen: poddisruptionbudgets" in record.getMessage()] == ["WARNING"]


async def test_it_gives_up_after_so_many_failures_in_a_row(tmp_path, caplog):
    async with story_of(tmp_path, nothing, failures=3) as (story, _):
        assert await story.run() == controller.NO_DECISION
        assert sample(story, "gpu_pruner_query_failures_total") == 3
    assert "giving up after 3 failed cycles in a row" in caplog.text


async def test_a_good_cycle_forgives_the_failures_before_it(tmp_path):
    async with story_of(tmp_path, nothing, interval=0.5, failures=10) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: story.health.failures >= 2)
        assert story.health.why_not_ready(time.monotonic()) != []
        prometheus.answer = busy
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 1)
        assert story.health.failures == 0
        assert story.health.why_not_ready(time.monotonic()) == []
        story.stop()
        assert await running == 0


async def test_a_look_that_takes_too_long_is_a_failure(tmp_path):
    async with story_of(tmp_path, hang, budget=2.0) as (story, _):
        running = asyncio.create_task(story.run())
        await until(lambda: story.health.failures)
        because = story.health.failed_because
        assert because == "the cycle did not end within its budget of 2s" or because.endswith("did not answer within 2s")
        story.stop()
        assert await running == 0


async def test_who_is_asked_to_stop_does_not_wait_for_a_slow_source(tmp_path):
    async with story_of(tmp_path, hang) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: prometheus.asked)
        began = time.monotonic()
        story.stop()
        assert await running == 0
        assert time.monotonic() - began < 5
        assert sample(story, "gpu_pruner_query_failures_total") == 0  # nothing went wrong


@pytest.mark.parametrize(("jump", "words"), [(600.0, "10m ahead"), (-600.0, "10m back")], ids=["ahead", "back"])
async def test_a_clock_that_jumps_costs_one_cycle_and_decides_nothing(tmp_path, jump, words):
    clock = Clock()
    async with story_of(tmp_path, busy, clock=clock, interval=3600.0) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") == 1)
        asked = len(prometheus.asked)
        clock.ahead = jump
        cycle = await story.tick()
        assert words in cycle.failure
        assert cycle.plan is None
        assert len(prometheus.asked) == asked
        assert story.health.why_stuck(time.monotonic()) == []  # a clock that is set must not get us restarted
        assert (await story.tick()).failure == ""
        story.stop()
        assert await running == 0


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(tmp_path):
    (tmp_path / "config").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    }))  # fmt: skip
    given = {"kubeconfig": str(tmp_path / "config"), "prometheus_url": "http://127.0.0.1:9", "prometheus_auth": "none"}
    told = settings.read_flags({**given, "daemon_mode": True, "leader_elect": "false"}, {})
    loop = msgspec.structs.replace(told.loop, interval=0.05, budget=0.5)
    async with controller.assemble(msgspec.structs.replace(told, loop=loop), time.time) as story:
        running = asyncio.create_task(story.run())
        await until(lambda: story.health.failures >= 1)
        reasons = story.health.why_not_ready(time.monotonic())
        assert reasons[0] == "the cluster has not been seen yet"
        assert "the cluster cannot be seen" in reasons[1]
        story.stop()
        assert await running == 0


# ---- health -------------------------------------------------------------------------------------------------------------------


def health(**said) -> controller.Health:
    """At 1000, a cycle every 10 s with a budget of 60 s; well unless said otherwise."""
    made = controller.Health(10.0, 60.0, 1000.0)
    made.synced, made.succeeded_at = True, 1000.0
    for name, value in said.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("said", "after", "stuck", "unready"),
    [
        ({}, 0, False, ""),
        ({}, 90, False, ""),
        ({}, 91, True, "no cycle began for 1m"),
        ({"began_at": 1091.0}, 91, False, "the last good cycle ended 1m ago"),
        ({"synced": False}, 0, False, "the cluster has not been seen yet"),
        ({"succeeded_at": None}, 0, False, "no cycle has ended yet"),
        ({"succeeded_at": None, "leading": False}, 0, False, ""),
        ({"failures": 1, "failed_because": "no Prometheus"}, 0, False, "1 failed cycle(s) in a row: no Prometheus"),
        ({"failures": 9, "failed_because": "no Prometheus", "began_at": 1500.0}, 500, False, "9 failed cycle(s) in a row: no Prometheus"),
    ],
    ids=["well", "just-in-time", "stuck", "only-failing", "blind", "starting", "follower", "first-failure", "many-failures"],
)
def test_health_and_readiness(said, after, stuck, unready):
    found = health(**said)
    assert bool(found.why_stuck(1000.0 + after)) is stuck
    reasons = found.why_not_ready(1000.0 + after)
    assert (unready in reasons) if unready else reasons == []


# ---- the exit code ------------------------------------------------------------------------------------------------------------


def cycle(*statuses: Status, frozen=None, failure="", planned=True) -> decision.Cycle:
    world = builders.World()
    world.workload()
    made = brain.make_plan(world.snapshot(), builders.mandate(), decision.Memory(), world.now)
    made = msgspec.structs.replace(made, frozen_until=frozen)
    outcomes = tuple(Outcome(made.decisions[-1], status, 0.0, "") for status in statuses)
    return decision.Cycle(made if planned else None, None, outcomes, failure, 0.0)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (cycle(), 0), (cycle(Status.done), 0), (cycle(Status.dry_run), 0), (cycle(Status.refused), 0), (cycle(Status.overtaken), 0),
        (cycle(failure="no Prometheus"), 1), (cycle(planned=False, failure="no API server"), 1),
        (cycle(Status.done, Status.failed), 3), (cycle(frozen=1.0), 4), (cycle(Status.failed, frozen=1.0), 3),
    ],
    ids=["nothing", "done", "dry", "refused", "overtaken", "source", "cluster", "one-failed", "frozen", "frozen-and-failed"],
)  # fmt: skip
def test_exit_codes(ended, code):
    assert controller.exit_code(ended) == code
