"""The loop with the idle story, against a small API server and a small Prometheus: budgets, clocks, stopping, giving
up, health; and with several stories that only count."""

import asyncio
import contextlib
import json
import time

import msgspec
import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend

from fallow import loop, settings, telemetry
from fallow.clients import errors
from fallow.decide.idle import plan as brain
from fallow.observe.cluster import mirror, owners
from fallow.stories.turn import Turn
from fallow.wiring import daemon

LABELS = {
    "exported_pod": "llm-0", "exported_namespace": "ml", "exported_container": "main", "Hostname": "n1",
    "UUID": "GPU-1", "gpu": "0", "modelName": "NVIDIA A10G", "job": "dcgm", "instance": "n1:9400",
}


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
    """The loop of a dry run, wired as always; gives it with what Prometheus was asked."""
    async with pretend.Server() as server, loopback.serve(answer) as prometheus:
        server.put_all(pretend.deployed("llm"))
        server.forbidden |= {(verb, plural) for verb in ("list", "watch") for plural in forbidden}
        cluster = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}],
            "current-context": "c",
        }
        context = {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]
        }
        (tmp_path / "config").write_text(json.dumps(cluster | context))
        given = {"kubeconfig": str(tmp_path / "config"), "prometheus_url": prometheus.url, "prometheus_auth": "none"}
        told = settings.read_flags({**given, "daemon_mode": True, "leader_elect": "false"}, {})
        pace = msgspec.structs.replace(told.loop, interval=interval, budget=budget, max_consecutive_failures=failures)
        async with daemon.assemble(msgspec.structs.replace(told, loop=pace), clock or time.time) as made:
            yield made.loop, prometheus


def sample(story: loop.Loop, name: str) -> float:
    [line] = [line for line in story.metrics.text().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def pulse(story: loop.Loop) -> loop.Pulse:
    return story.health.pulses["idle"]


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
        assert await running
        assert sample(story, "gpu_pruner_pods_checked") == 1


@pytest.mark.parametrize("where", ["owners.resolve", "brain.make_plan"])
async def test_what_nobody_foresaw_fails_the_cycle_and_not_the_daemon(tmp_path, caplog, monkeypatch, where):
    module, name = {"owners.resolve": (owners, "resolve"), "brain.make_plan": (brain, "make_plan")}[where]
    usual = getattr(module, name)

    def stumble(*given):
        raise RecursionError("nobody foresaw this")

    async with story_of(tmp_path, busy) as (story, _):
        monkeypatch.setattr(module, name, stumble)
        running = asyncio.create_task(story.run())
        await until(lambda: pulse(story).failures)
        assert any("unexpected RecursionError" in why for why in story.health.why_not_ready(time.monotonic()))
        assert sample(story, "gpu_pruner_query_failures_total") >= 1
        assert any(record.exc_info for record in caplog.records)
        monkeypatch.setattr(module, name, usual)
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 1)
        story.stop()
        assert await running


async def test_what_cannot_be_seen_is_told_once(tmp_path, caplog):
    async with story_of(tmp_path, busy, forbidden=["poddisruptionbudgets"]) as (story, _):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 4)
        story.stop()
        assert await running
    assert [
        record.levelname for record in caplog.records if "not seen: poddisruptionbudgets" in record.getMessage()
    ] == ["WARNING"]


def one_signal_less(asked: loopback.Asked) -> web.Response:
    is_tensor = "PIPE_TENSOR" in asked.form["query"]
    return web.json_response({"status": "error", "error": "too many"}, status=422) if is_tensor else busy(asked)


async def test_a_signal_that_was_lost_is_told_once_and_counted(tmp_path, caplog):
    async with story_of(tmp_path, one_signal_less) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 3)
        assert sample(story, 'fallow_idle_lost_signals{signal="tensor"}') == 1
        told = [record for record in caplog.records if "not seen: signal tensor" in record.getMessage()]
        assert ["too many" in record.getMessage() for record in told] == [True]
        prometheus.answer = busy
        await until(lambda: "signal=" not in story.metrics.text().decode())
        story.stop()
        assert await running


async def test_requests_and_watches_are_counted(tmp_path):
    async with story_of(tmp_path, busy) as (story, _):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 1)
        await until(lambda: 'fallow_api_requests_total{code="200",verb="watch"}' in story.metrics.text().decode())
        assert sample(story, 'fallow_api_requests_total{code="200",verb="list"}') > 5
        assert 0 <= sample(story, 'fallow_watch_age_seconds{resource="pods"}') < 60
        assert 0 <= sample(story, 'fallow_watch_age_seconds{resource="deployments.apps"}') < 60
        story.stop()
        assert await running


async def test_it_gives_up_after_so_many_failures_in_a_row(tmp_path, caplog):
    async with story_of(tmp_path, nothing, failures=3) as (story, _):
        assert not await story.run()
        assert sample(story, "gpu_pruner_query_failures_total") == 3
    assert "giving up after 3 failed cycles in a row" in caplog.text


async def test_a_good_cycle_forgives_the_failures_before_it(tmp_path):
    async with story_of(tmp_path, nothing, interval=0.5, failures=10) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: pulse(story).failures >= 2)
        assert story.health.why_not_ready(time.monotonic()) != []
        prometheus.answer = busy
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") >= 1 and pulse(story).failures == 0)
        assert story.health.why_not_ready(time.monotonic()) == []
        story.stop()
        assert await running


async def test_a_look_that_takes_too_long_is_a_failure(tmp_path):
    async with story_of(tmp_path, hang, budget=2.0) as (story, _):
        running = asyncio.create_task(story.run())
        await until(lambda: pulse(story).failures)
        because = pulse(story).failed_because
        assert (
            because == "the cycle did not end within its budget of 2s" or because.endswith("did not answer within 2s")
        )
        story.stop()
        assert await running


async def test_who_is_asked_to_stop_does_not_wait_for_a_slow_source(tmp_path):
    async with story_of(tmp_path, hang) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: prometheus.asked)
        began = time.monotonic()
        story.stop()
        assert await running
        assert time.monotonic() - began < 5
        assert sample(story, "gpu_pruner_query_failures_total") == 0  # nothing went wrong


@pytest.mark.accepts("idle", 53)
@pytest.mark.parametrize(("jump", "words"), [(600.0, "10m ahead"), (-600.0, "10m back")], ids=["ahead", "back"])
async def test_a_clock_that_jumps_decides_nothing_until_it_is_right_again(tmp_path, jump, words):
    clock = Clock()
    async with story_of(tmp_path, busy, clock=clock, interval=3600.0) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") == 1)
        asked = len(prometheus.asked)
        clock.ahead = jump
        cycle = await story.tick(daemon.IDLE)
        assert words in cycle.failure
        assert cycle.plan is None
        assert len(prometheus.asked) == asked
        assert story.health.why_stuck(time.monotonic()) == []  # a clock that is set must not get us restarted
        apart = await story.tick(daemon.IDLE)
        assert (apart.plan, "the clock of the API server says" in apart.failure) == (None, True)
        clock.ahead = 0.0
        assert "the clock jumped" in (await story.tick(daemon.IDLE)).failure
        assert (await story.tick(daemon.IDLE)).failure == ""
        story.stop()
        assert await running


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(tmp_path):
    (tmp_path / "config").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    }))
    given = {"kubeconfig": str(tmp_path / "config"), "prometheus_url": "http://127.0.0.1:9", "prometheus_auth": "none"}
    told = settings.read_flags({**given, "daemon_mode": True, "leader_elect": "false"}, {})
    pace = msgspec.structs.replace(told.loop, interval=0.05, budget=0.5)
    async with daemon.assemble(msgspec.structs.replace(told, loop=pace), time.time) as made:
        story = made.loop
        running = asyncio.create_task(story.run())
        await until(lambda: pulse(story).failures >= 1)
        assert sample(story, 'fallow_api_requests_total{code="error",verb="get"}') > 0
        reasons = story.health.why_not_ready(time.monotonic())
        assert "the cluster has not been seen yet" in reasons
        assert any("the cluster cannot be seen" in each for each in reasons)
        story.stop()
        assert await running


@pytest.mark.parametrize("leader_elect", ["false", "true"], ids=["lists", "lease"])
async def test_who_is_asked_to_stop_does_not_wait_for_a_server_that_does_not_answer(tmp_path, leader_elect):
    async with silence() as port:
        (tmp_path / "config").write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}], "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
        }))
        given = {"kubeconfig": str(tmp_path / "config"), "prometheus_url": "http://127.0.0.1:9", "daemon_mode": True}
        told = settings.read_flags({**given, "leader_elect": leader_elect}, {})
        async with daemon.assemble(told, time.time) as made:
            running = asyncio.create_task(made.loop.run())
            await asyncio.sleep(0)
            began = time.monotonic()
            made.loop.stop()
            assert await running
        assert time.monotonic() - began < 2
        assert sample(made.loop, "gpu_pruner_query_failures_total") == 0


@contextlib.asynccontextmanager
async def silence():
    """A port at which somebody listens and never says anything."""

    async def listen(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_who_was_never_well_tries_again_after_1_2_4_seconds_and_then_at_its_interval():
    own, waits = loop.Pulse(180.0, 180.0, 0.0), []
    for _ in range(5):
        own.note("no Prometheus", 0.0)
        waits.append(own.back_off)
    assert waits == [1, 2, 4, 8, 16]
    own.note("", 0.0)
    own.note("no Prometheus", 0.0)
    assert own.back_off == float("inf")


async def test_a_source_that_comes_up_late_is_found_long_before_the_next_interval(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FIRST_RETRY", 0.01)
    async with story_of(tmp_path, nothing, interval=3600.0) as (story, prometheus):
        running = asyncio.create_task(story.run())
        await until(lambda: pulse(story).failures >= 3)
        prometheus.answer = busy
        await until(lambda: sample(story, "gpu_pruner_query_successes_total") == 1)
        story.stop()
        assert await running


# ---- health ----------------------------------------------------------------------------------------------------------


def health(**said) -> loop.Health:
    """At 1000, a cycle every 10 s with a budget of 60 s; well unless said otherwise."""
    own = loop.Pulse(10.0, 60.0, 1000.0)
    made = loop.Health({"idle": own})
    made.synced, own.succeeded_at = True, 1000.0
    for name, value in said.items():
        setattr(made if hasattr(made, name) else own, name, value)
    return made


@pytest.mark.parametrize(
    ("said", "after", "stuck", "unready"),
    [
        ({}, 0, False, ""),
        ({}, 90, False, ""),
        ({}, 91, True, "idle: no cycle began for 1m"),
        ({"began_at": 1091.0}, 91, False, "idle: the last good cycle ended 1m ago"),
        ({"synced": False}, 0, False, "the cluster has not been seen yet"),
        ({"succeeded_at": None}, 0, False, "idle: no cycle has ended yet"),
        ({"succeeded_at": None, "leading": False}, 0, False, ""),
        (
            {"failures": 1, "failed_because": "no Prometheus"}, 0, False,
            "idle: 1 failed cycle(s) in a row: no Prometheus",
        ),
        (
            {"failures": 9, "failed_because": "no Prometheus", "began_at": 1500.0}, 500, False,
            "idle: 9 failed cycle(s) in a row: no Prometheus",
        ),
    ],
    ids=[
        "well", "just-in-time", "stuck", "only-failing", "blind", "starting", "follower", "first-failure",
        "many-failures",
    ],
)
def test_health_and_readiness(said, after, stuck, unready):
    found = health(**said)
    assert bool(found.why_stuck(1000.0 + after)) is stuck
    reasons = found.why_not_ready(1000.0 + after)
    assert (unready in reasons) if unready else reasons == []


# ---- several stories -------------------------------------------------------------------------------------------------


class Ended(msgspec.Struct, frozen=True):
    number: int
    failure: str = ""
    is_look: bool = False


class Counting:
    """A story that counts its cycles, and ends each as it is asked to."""

    def __init__(self, *failures: str) -> None:
        self.cycles, self.looks, self._failures = 0, 0, list(failures)
        self.problem: errors.ClientError | None = None  # of a look

    async def tick(self, turn: Turn) -> Ended:
        self.cycles += 1
        assert turn.may_act()
        return Ended(self.cycles, self._failures.pop(0) if self._failures else "")

    async def look(self, turn: Turn) -> Ended:
        self.looks += 1
        assert not turn.may_act()
        if self.problem is not None:
            raise self.problem
        return Ended(self.looks, is_look=True)

    def fail(self, because: str, turn: Turn) -> Ended:
        return Ended(0, because)

    def under(self, name: str, interval: float) -> loop.Story:
        return loop.Story(name=name, interval=interval, budget=5.0, tick=self.tick, look=self.look, fail=self.fail)


class Lease:
    """What the loop asks of a Leadership."""

    problem = None

    def __init__(self, *, leads: bool) -> None:
        self.is_leader, self.holder = leads, "another"


@contextlib.asynccontextmanager
async def loop_of(*stories: loop.Story, leads=True, **more):
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api) as seen:
        given = {"seen": seen, "leadership": Lease(leads=leads), "needs_lease": True, "clock": time.time, **more}
        yield loop.Loop(stories, metrics=telemetry.Telemetry(), **given), given["leadership"]


async def test_each_story_has_its_own_interval_and_a_wake_up_comes_early():
    often, seldom = Counting(), Counting()
    async with loop_of(often.under("often", 0.02), seldom.under("seldom", 3600.0)) as (made, _):
        running = asyncio.create_task(made.run())
        await until(lambda: often.cycles >= 3)
        assert seldom.cycles == 1
        made.wake("seldom")
        await until(lambda: seldom.cycles == 2)
        assert (await made.read("seldom")).number == 2
        made.stop()
        assert await running


async def test_one_story_that_keeps_failing_ends_them_all_and_health_names_only_its_failures():
    well, ill = Counting(), Counting("no prices", "no prices", "no prices")
    async with loop_of(well.under("well", 3600.0), ill.under("ill", 0.02), most_failures=3) as (made, _):
        assert not await made.run()
        assert made.health.why_not_ready(time.monotonic()) == ["ill: 3 failed cycle(s) in a row: no prices"]
        assert well.cycles == 1


async def test_a_story_that_is_not_vital_may_fail_for_ever():
    well, books = Counting(), Counting(*["the database is away"] * 5)
    beside = msgspec.structs.replace(books.under("books", 0.02), is_vital=False)
    async with loop_of(well.under("well", 3600.0), beside, most_failures=3) as (made, _):
        running = asyncio.create_task(made.run())
        await until(lambda: books.cycles >= 5 and well.cycles)
        assert made.latest("books").failure == "the database is away"
        assert made.health.why_not_ready(time.monotonic()) == []
        made.stop()
        assert await running


async def test_a_follower_answers_reads_and_does_nothing_else():
    story = Counting()
    async with loop_of(story.under("idle", 3600.0), leads=False) as (made, lease):
        assert await made.read("idle") is None  # the cluster has not been seen yet
        running = asyncio.create_task(made.run())
        await until(lambda: made.health.synced)
        assert (await made.read("idle")).is_look
        assert (await made.read("idle")).number == 1  # the same: it looks once an interval at most
        assert (story.cycles, made.health.why_not_ready(time.monotonic())) == (0, [])
        lease.is_leader = True
        await until(lambda: story.cycles == 1)  # a new leader begins within a second
        assert not (await made.read("idle")).is_look
        made.stop()
        assert await running


async def test_a_follower_whose_look_fails_says_so_and_does_not_look_again_before_its_time():
    story, now = Counting(), [1000.0]
    story.problem = errors.Unreachable("Prometheus is away")
    async with loop_of(story.under("idle", 60.0), leads=False, monotonic=lambda: now[0]) as (made, _):
        made.health.synced = True
        for _ in range(3):
            with pytest.raises(errors.Unreachable, match="Prometheus is away"):
                await made.read("idle")
        assert story.looks == 1
        story.problem, now[0] = None, now[0] + 60.0
        assert (await made.read("idle")).number == 2
