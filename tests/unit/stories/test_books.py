"""The story of the books over the wire: pods that come and go, a ledger that fails, another leader, roll-ups."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.unit.account.paper import Paper, bill
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend

from fallow import names, telemetry
from fallow.account.intervals import Batch
from fallow.account.ledger_names import LedgerWentBack
from fallow.clients import errors
from fallow.clients.prometheus import auth, client
from fallow.model import units
from fallow.model.cost import Interval
from fallow.observe.cluster import mirror, snapshot
from fallow.observe.usage import prometheus as measured
from fallow.stories import books
from fallow.stories.turn import Turn

START = units.parse_instant("2026-11-15T08:00:00Z")
HOUR = 3600


class Ledger:
    """On paper, with its epoch; it may be down."""

    def __init__(self) -> None:
        self.paper, self.rolled, self.is_down, self.epochs = Paper(), list[int](), False, list[int]()
        self.shared, self.went_back = set[str](), False

    async def read_open(self) -> books.OpenBook:
        rolled = self.rolled[-1] if self.rolled else None
        found = [each for each in self.paper.rows.values() if each.is_open or each.t1 > (rolled or 0)]
        return books.OpenBook(found, self.paper.at or None, rolled)

    async def write(
        self, *, intervals: Collection[Interval], removed: Collection[str], shared: Collection[str], at: int, epoch: int
    ) -> None:
        if self.is_down:
            raise errors.Unreachable("the database is away")
        self.epochs.append(epoch)
        self.shared.update(shared)
        self.paper.write(Batch(at, tuple(intervals), tuple(removed)))
        if self.went_back:
            self.went_back = False
            raise LedgerWentBack("the ledger is older than we left it")

    async def roll_up(self, until: int, epoch: int) -> None:
        self.rolled.append(until)


class Scene:
    def __init__(self, server: pretend.Server, eyes: snapshot.Eyes, seen: mirror.Mirror, clock: list[float]) -> None:
        self.server, self.ledger, self.term, self.seen, self._clock = server, Ledger(), 1, seen, clock
        self.questions: list[str] = []
        self.story = self.make(eyes)

    def make(self, eyes: snapshot.Eyes) -> books.BooksStory:
        self.eyes = eyes
        return books.BooksStory(
            eyes=eyes, latest=lambda: None, ledger=self.ledger, bill=lambda _: bill(10**9),
            metrics=telemetry.Telemetry(), term=lambda: self.term,
        )

    async def tick(self, seconds: float) -> books.BooksTurn:
        self._clock[0] = START + seconds
        turn = Turn(
            clock=lambda: self._clock[0], monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(),
            leads=lambda: True,
        )
        try:
            return await self.story.tick(turn)
        except errors.ClientError as problem:
            return self.story.fail(str(problem), turn)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    clock, asked = [START], list[str]()

    def answer(one: loopback.Asked) -> Any:
        asked.append(one.form.get("query", ""))
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(pretend.Server())
        server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", labels={"team": "red"}))
        server.put("nodes", pretend.made("n1", namespace=None, kind="Node", status={
            "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "2"},
        }))
        api = await stack.enter_async_context(server.api())
        seen = await stack.enter_async_context(mirror.Mirror(api, clock=lambda: clock[0]))
        prom = await stack.enter_async_context(loopback.serve(answer))
        asks = await stack.enter_async_context(client.Prometheus(prom.url, login=auth.Login(method="none")))
        await seen.follow(START)
        made = Scene(server, snapshot.Eyes(seen, measured.PrometheusSource(asks), clock=time.time), seen, clock)
        made.questions = asked
        yield made


def bound(name: str, seconds: float) -> pretend.Object:
    thing = pretend.pod(name)
    thing["status"]["conditions"].append({
        "type": "PodScheduled", "status": "True", "lastTransitionTime": units.rfc3339(START + seconds),
    })
    return thing


def end(thing: pretend.Object, seconds: float) -> pretend.Object:
    finished = {"name": "main", "state": {"terminated": {"finishedAt": units.rfc3339(START + seconds)}}}
    thing["status"] = {**thing["status"], "phase": "Succeeded", "containerStatuses": [finished]}
    return thing


async def test_who_came_and_went_between_two_looks_is_in_the_ledger() -> None:
    async with scene() as running:
        assert (await running.tick(0)).gpus == 2
        short, stays = bound("short", 10), bound("stays", 20)
        running.server.put("pods", short)
        running.server.put("pods", stays)
        running.server.kinds["pods"].objects[short["metadata"]["uid"]] = end(short, 40)
        running.server.remove("pods", short["metadata"]["uid"])
        await pretend.until(lambda: [pod.name for pod in running.seen.pods] == ["stays"])
        done = await running.tick(60)
        assert (done.failure, done.odd) == ("", ())
        paper = running.ledger.paper
        assert paper.hours(pod="short") * HOUR == 30
        assert paper.hours(pod="stays", team="red") * HOUR == 40
        assert paper.hours() * HOUR == 120


async def test_what_could_not_be_written_is_written_with_the_next_batch() -> None:
    async with scene() as running:
        await running.tick(0)
        running.server.put("pods", bound("a", 30))
        await pretend.until(lambda: bool(running.seen.pods))
        running.ledger.is_down = True
        assert "the database is away" in (await running.tick(60)).failure
        assert (await running.tick(120)).failure
        running.ledger.is_down = False
        assert (await running.tick(180)).failure == ""
        assert running.ledger.paper.hours(pod="a") * HOUR == 150
        assert running.ledger.paper.hours() * HOUR == 360


async def test_a_ledger_that_came_back_older_is_read_anew() -> None:
    """What is open and does not change is written once: where the ledger lost it, it would be missing for ever."""
    async with scene() as running:
        await running.tick(0)
        older = dict(running.ledger.paper.rows)
        running.server.put("pods", bound("a", 30))
        await pretend.until(lambda: bool(running.seen.pods))
        await running.tick(60)
        running.ledger.paper.rows, running.ledger.went_back = older, True
        assert "older than we left it" in (await running.tick(120)).failure
        assert (await running.tick(180)).failure == ""
        assert running.ledger.paper.hours(pod="a") * HOUR == 150


async def test_a_new_leader_goes_on_where_the_ledger_is() -> None:
    async with scene() as running:
        await running.tick(0)
        running.server.put("pods", bound("a", 30))
        await pretend.until(lambda: bool(running.seen.pods))
        await running.tick(60)
        before = dict(running.ledger.paper.rows)
        running.term = 2
        await running.tick(120)
        running.story = running.make(running.eyes)  # and another process
        await running.tick(180)
        assert running.ledger.paper.rows.keys() == before.keys()
        assert running.ledger.paper.hours(pod="a") * HOUR == 150
        assert running.ledger.epochs == [1, 1, 2, 2]


async def test_each_hour_is_asked_for_once_and_rolled_up_two_hours_late() -> None:
    async with scene() as running:
        running.server.put("pods", bound("a", 0))
        await pretend.until(lambda: bool(running.seen.pods))
        for minute in range(191):
            assert (await running.tick(60.0 * minute)).failure == ""
        assert running.ledger.rolled == [int(START) + HOUR]
        assert running.ledger.paper.hours(pod="a") == pytest.approx(190 / 60)
        means = [one for one in running.questions if "avg_over_time" in one]
        assert len(means) == 3 * 7  # one for each metric and hour
        assert all("[3600s]" in one for one in means)


async def test_whom_we_made_share_a_gpu_is_told_the_ledger_also_if_he_went_meanwhile() -> None:
    marks = {names.OPTIMIZED: "true", names.ORIGINAL_GPU_REQUEST: "1"}
    async with scene() as running:
        await running.tick(0)
        things = {name: bound(name, 10) for name in ("ours", "went", "claims-it", "whole")}
        for name in ("ours", "went"):
            things[name]["metadata"]["annotations"] = dict(marks)
        things["claims-it"]["metadata"]["annotations"] = {names.OPTIMIZED: "true"}
        for thing in things.values():
            running.server.put("pods", thing)
        gone = things["went"]["metadata"]["uid"]
        running.server.kinds["pods"].objects[gone] = end(things["went"], 40)
        running.server.remove("pods", gone)
        await pretend.until(lambda: len(running.seen.pods) == 3)
        await running.tick(60)
        assert running.ledger.shared == {things[name]["metadata"]["uid"] for name in ("ours", "went")}
