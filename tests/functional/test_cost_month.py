"""A month of a small cluster in the books, to the nano: whoever is killed when, and whenever the store is away."""

from __future__ import annotations

import asyncio
import functools
import pathlib
import random
from typing import Any

import msgspec
import pytest

from fallow import telemetry
from fallow.account import spool
from fallow.account.ledger import Ledger
from fallow.clients import errors
from fallow.decide.idle import plan as brain
from fallow.model import cluster, cost, decision
from fallow.model.cost import DAY, Amounts, CostQuery, CostStep
from fallow.stories import books as story
from fallow.stories.turn import Turn
from fallow.wiring import books as wiring
from tests import builders, ledger_month, ledgers
from tests.ledger_month import BEGIN, END, Look, Month

SEED = 16
BY = tuple(map(cost.read_dimension, ("namespace", "team", "node", "model", "capacity", "sharing")))


class Killed(BaseException):
    """As by signal 9: nothing that comes after it is done."""


class Store:
    """Any store, which may be away, and in whose transactions a writer may die: before they are whole, or after."""

    def __init__(self, real: Any) -> None:
        self._real, self.is_away, self.dies_at = real, False, None

    @property
    def dialect(self) -> Any:
        return self._real.dialect

    async def open(self) -> None:
        self._check()
        await self._real.open()

    async def close(self) -> None:
        await self._real.close()

    async def read(self, work: Any) -> Any:
        self._check()
        return await self._real.read(work)

    async def write(self, work: Any) -> Any:
        self._check()
        done = await self._real.write(lambda on: self._within(work, on))
        self._count_down(5)
        return done

    def _within(self, work: Any, on: Any) -> Any:
        done = work(on)
        self._count_down(1)
        return done

    def _count_down(self, by: int) -> None:
        if self.dies_at is not None:
            self.dies_at -= by
            if self.dies_at <= 0:
                raise Killed

    def _check(self) -> None:
        if self.is_away:
            raise errors.Unreachable("the store is away")


class Eyes:
    """On the month. Who starts anew has not heard who went before."""

    def __init__(self, month: Month) -> None:
        self._month, self._heard = month, None

    async def take_inventory(self, now: float, expected: Any) -> cluster.Inventory:
        at, since = int(now), self._heard
        self._heard = at
        return cluster.Inventory(
            pods=self._month.pods_at(at), workloads=(), sees_all=True, **ledger_month.registers(self._month, at),
            departures=() if since is None else self._month.departures(since, at),
        )

    async def read_hour(self, hour: float, now: float) -> Any:
        return self._month.read_hour(int(hour))


class Life:
    """One process: it knows what the store has, and no more."""

    def __init__(self, month: Month, place: Any, path: Any, term: int) -> None:
        self._month, self._now = month, float(BEGIN)
        self.ledger = place.ledger(spool=spool.Spool(path))
        self.store = self.ledger._store = Store(self.ledger._store)
        self._cycle = plain_cycle()
        self.story = story.BooksStory(
            eyes=Eyes(month), latest=self._look_idle, metrics=telemetry.Telemetry(), term=lambda: term,
            ledger=wiring.LedgerWriter(self.ledger, term=lambda: term, billing=Prices()), cluster_name="c1",
            bill=lambda node: month.bill(node.name, int(self._now)), interval=float(ledger_month.INTERVAL),
        )

    def _look_idle(self) -> decision.Cycle:
        pods = self._month.pods_at(int(self._now))
        replace, rows = msgspec.structs.replace, self._month.rows_at(int(self._now), pods)
        plan, seen = self._cycle.plan, self._cycle.snapshot
        return replace(self._cycle, plan=replace(plan, at=self._now, rows=rows), snapshot=replace(seen, pods=pods))

    async def tick(self, look: Look, chance: random.Random) -> story.BooksTurn:
        self.store.is_away, self._now = look.is_away, float(look.at)
        self.store.dies_at = chance.randrange(1, 20) if look.fault == "dies" else None
        turn = Turn(
            clock=lambda: self._now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        )
        try:
            return await self.story.tick(turn)
        except errors.ClientError as problem:
            return self.story.fail(str(problem), turn)


@functools.cache
def plain_cycle() -> decision.Cycle:
    plain = builders.World().snapshot()
    return decision.Cycle(brain.make_plan(plain, builders.mandate(), decision.Memory(), 0.0), plain, (), "", 0.0)


class Prices:
    def list_booked(self, ids: Any) -> tuple[cost.BookedPrice, ...]:
        return tuple(cost.BookedPrice(price_id=one) for one in sorted(ids) if one)


@functools.cache
def month() -> Month:
    return Month(SEED)


@functools.cache
def truth() -> list[cost.Interval]:
    return list(month().truth())


def is_killed_while_away(look: Look) -> bool:
    """The one after which nobody can look until the store is back."""
    looks = month().looks
    return look.is_away and not look.fault and looks[looks.index(look) + 1].fault == "blind"


async def keep_books(place: Any, path: pathlib.Path) -> tuple[Ledger, int]:
    """All looks of the month. Out: the ledger, and how often who kept it was killed."""
    chance, term, killed = random.Random(SEED), 1, 0
    life = Life(month(), place, path, term)
    await life.ledger.open()
    for look in month().looks:
        try:
            done = await life.tick(look, chance)
            assert (bool(done.failure), done.odd) == (look.fault == "blind", ()), done.failure
            is_dead = look.fault == "dies" or is_killed_while_away(look)
        except Killed:
            is_dead = True
        if is_dead:
            await life.ledger.close()
            term, killed = term + 1, killed + 1
            life = Life(month(), place, path, term)
            life.store.is_away = look.is_away
            await life.ledger.open()
    return life.ledger, killed


@pytest.mark.timeout(900)  # of a machine that does much else; alone it takes some seconds
@pytest.mark.accepts("cost", 1, 3, 4, 5, 6, 8, 25)
async def test_a_month_with_kills_and_outages_is_the_bill_to_the_nano(new_place, tmp_path, caplog):
    kept, killed = await keep_books(new_place(), tmp_path / "spool")
    try:
        assert killed > 20
        assert "not booked" not in caplog.text
        found = await kept.read_intervals(BEGIN, END)
        assert ledger_month.facts_of(found, END) == ledger_month.facts_of(truth(), END)
        await check_sums(kept)
    finally:
        await kept.close()


async def check_sums(kept: Ledger) -> None:
    """Of days, which are rolled up; of hours, which are too; of odd seconds by pod, which intervals alone can tell."""
    days = await kept.sums(CostQuery(begin=BEGIN, end=END, by=BY, step=CostStep.day))
    assert {(str(one.begin), *one.key): one.parts for one in days} == every_day()
    hours = await kept.sums(CostQuery(begin=BEGIN, end=END, by=BY, step=CostStep.hour))
    assert ledgers.total(hours) == ledgers.total(days) == await total_of_pods(kept, BEGIN, END)
    begin, end = BEGIN + 10 * DAY + 1234, BEGIN + 13 * DAY - 4321
    by_pod = await kept.sums(CostQuery(begin=begin, end=end, by=tuple(map(cost.read_dimension, ("team", "pod")))))
    assert ledgers.as_groups(by_pod) == ledgers.second_by_second(truth(), begin, end, ledgers.by_team_and_pod)
    assert (await kept.read_meta()).rolled_until > END


async def total_of_pods(kept: Ledger, begin: int, end: int) -> Amounts:
    return ledgers.total(await kept.sums(CostQuery(begin=begin, end=end, by=(cost.read_dimension("pod"),))))


@functools.cache
def every_day() -> dict[tuple[str, ...], dict[cost.SpendState, Amounts]]:
    """By the oracle."""
    return ledgers.second_by_second(truth(), BEGIN, END, name_by_day)


def name_by_day(one: cost.Interval) -> tuple[str, ...]:
    key, missing = one.slice.key, cost.UNALLOCATED if one.slice.state is ledgers.FREE else cost.NONE
    return (
        str(one.t0 // DAY * DAY), key.namespace or missing, key.dims.team or missing, key.node, key.gpu_model,
        str(key.capacity_type), str(key.sharing),
    )
