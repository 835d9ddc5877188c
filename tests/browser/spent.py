"""Servers with books: a month of eight teams and the month before it, the same every time; empty ones; and none.

    python -m tests.browser.spent

Out: the address of each, as JSON; the dashboard and the API over a real ledger, until it is ended. The intervals are as
the books write them; nobody measures anything, and nothing can be written. They are said when the books are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from fallow import loop, settings, telemetry
from fallow.account import audit, counterfactuals, ledger
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.api import app, bounds, editions, events
from fallow.model import cost, units
from fallow.model.cost import DAY, HOUR, UNIT, BookedSaving, CapacityType, Interval, SavingKind, SpendState
from fallow.model.policies import budget_crd
from fallow.model.policies.budget import CostBudget
from tests import builders, cost_scenes
from tests.browser import many, playing

NOW = int(builders.NOW)
TODAY = NOW // DAY * DAY
BEGIN = TODAY - 61 * DAY  # so that a month has one before it
TEAMS = {  # GPUs that it has, its model, the price of a GPU-hour, how much of its time is idle, how well it is used
    "team-chat": (36, "H100-80GB", 6_880, 0.08, 0.66), "team-vision": (24, "A100-80GB", 5_120, 0.24, 0.55),
    "team-search": (16, "A100-80GB", 5_120, 0.18, 0.57), "team-bio": (12, "A100-80GB", 5_120, 0.30, 0.62),
    "team-speech": (12, "A100-40GB", 4_096, 0.11, 0.59), "team-robotics": (8, "A100-80GB", 5_120, 0.28, 0.57),
    "team-maps": (6, "L40S", 2_710, 0.08, 0.56), "team-ads": (6, "L4", 1_920, 0.14, 0.59),
}
_GREW = {"team-chat": 0.94, "team-bio": 0.86, "team-search": 1.0, "team-maps": 0.99}  # the month before, of this one
_KINDS = ("Deployment", "StatefulSet", "Job")
_NAMES = ("serve", "train", "lab", "eval")
KEPT = {"sim-rollouts": 26, "nb-lidar": 3}  # by team-robotics: idle for so many hours, and kept


# ---- the intervals ---------------------------------------------------------------------------------------------------


def month() -> list[Interval]:
    chance, found = random.Random(7), list[Interval]()
    for team, (gpus, model, mills, idle, use) in TEAMS.items():
        for number in range(gpus):
            found += _gpu(chance, team, number, model, mills * 1_000_000, idle, use)
    found += _kept()
    odd = cost_scenes.key("team-ads", "odd", gpu_model="Foo-9000", node="odd-1")
    found += cost_scenes.held("GPU-foo-0", NOW - 13 * HOUR, NOW - 36 * 60, odd, rate=None, use=0.4)
    unused = cost_scenes.key(
        cost.UNUSED_COMMITMENT, gpu_model="A100-80GB", node="", capacity_type=CapacityType.reserved
    )
    found += cost_scenes.held(
        "commitment-0", TODAY - 28 * DAY, NOW, unused, SpendState.unallocated, rate=5 * UNIT, is_open=True
    )
    return found


def _gpu(
    chance: random.Random, team: str, number: int, model: str, rate: cost.Nano, idle: float, use: float
) -> Iterator[Interval]:
    """One GPU of a team: every day it works, is idle, is not measured for a while, and is free at the end."""
    index = number % len(_NAMES)
    capacity = CapacityType.spot if index == 3 else CapacityType.on_demand
    place = {"gpu_model": model, "node": f"{team.removeprefix('team-')}-{number // 8}", "capacity_type": capacity}
    tier = ("tier", "gold" if index < 2 else "silver")
    of = cost_scenes.key(team, _NAMES[index], owner_kind=_KINDS[index % 3], labels=(tier,), **place)
    pod = f"uid-{team}-{_NAMES[index]}-{number // len(_NAMES)}"
    gpu, rate = f"GPU-{team}-{number}", rate // 2 if capacity is CapacityType.spot else rate
    for day in range(BEGIN, NOW, DAY):
        is_weekend = day // DAY % 7 in (2, 3)
        was = _GREW.get(team, 0.97) if day < TODAY - 30 * DAY else 1.0
        ends = round(((16 if is_weekend else 21) + 3 * chance.random()) * was, 1)
        quiet = round(ends * idle * (0.6 + 0.8 * chance.random()), 1)
        blind = 2.0 if chance.random() < 0.06 else 0.0
        at = day
        for hours, state, used in (
            (ends - quiet - blind, SpendState.used, round(use * (0.85 + 0.3 * chance.random()), 3)),
            (quiet, SpendState.held_idle, None), (blind, SpendState.use_unknown, None),
        ):
            until = min(at + int(hours * HOUR), NOW)
            yield from cost_scenes.held(gpu, at, until, of, state, use=used, rate=rate, pod=pod, is_open=until == NOW)
            at = max(at, until)
        until = min(day + DAY, NOW)
        yield from cost_scenes.free(gpu, at, until, of=place, rate=rate, is_open=until == NOW)


def _kept() -> Iterator[Interval]:
    for name, hours in KEPT.items():
        of = cost_scenes.key("team-robotics", name, gpu_model="A100-80GB", node="robotics-9", owner_kind="StatefulSet")
        yield from cost_scenes.held(
            f"GPU-kept-{name}", NOW - hours * HOUR, NOW, of, SpendState.held_idle, rate=5_120_000_000,
            ack=f"ack-{name}", is_open=True,
        )


def savings() -> list[BookedSaving]:
    def row(kind: SavingKind, day: int, hours: float, each: float, *, realised: bool = True) -> BookedSaving:
        worth = round(hours * each * UNIT)
        details = json.dumps({"method": counterfactuals.METHODS[kind], "gpuHours": hours})
        return BookedSaving(
            id=f"{kind}-{day}-{realised}", at=TODAY - day * DAY, namespace="team-chat", kind=kind,
            saved=worth if realised else 0, baseline=worth, actual=0, details=details, realised=realised,
        )

    found = [row(SavingKind.waste, day, 78.8 + day, 5.12) for day in range(1, 29)]
    found += [row(SavingKind.waste, day, 73.7, 5.12, realised=False) for day in range(1, 29)]
    found += [row(SavingKind.autoscaling, day, 47.7, 5.12) for day in range(1, 29)]
    found += [row(SavingKind.sharing, day, 34.1, 5.12) for day in range(1, 29)]
    dry = row(SavingKind.waste, 29, 12.0, 5.12, realised=False)
    return [*found, msgspec.structs.replace(dry, id="dry", is_dry_run=True)]


# ---- the budgets -----------------------------------------------------------------------------------------------------


def budgets(spent: dict[str, float]) -> list[CostBudget]:
    """`spent`: this month so far, by team; "" is all."""
    fired = {
        "alertName": "forecast", "timestamp": units.rfc3339(TODAY - 2 * DAY), "threshold": 110.0, "acknowledged": False,
    }
    override = {
        "until": units.rfc3339(TODAY + DAY), "by": "ana@example.com", "reason": "paper deadline", "cost": "412.00",
        "since": units.rfc3339(TODAY - DAY), "asked": "24h",
    }
    return [
        _budget("chat-november", 80_000, spent, 1.85, "team-chat", alertsFired=[fired]),
        _budget("vision-november", 60_000, spent, 2.0, "team-vision"),
        _budget("all-gpus", 480_000, spent, 2.0, unpricedGPUHours=12.4),
        _budget("bio-november", 10_000, spent, 2.0, "team-bio", override=override),
        _budget("ads-november", 9_000, spent, None, "team-ads"),
    ]


def _budget(
    name: str, amount: int, by_team: dict[str, float], grows: float | None, team: str = "", **more: Any
) -> CostBudget:
    scope = {"type": "team", "teams": [team]} if team else {"type": "cluster"}
    spent = by_team[team]
    used = spent / amount * 100
    status: dict[str, Any] = {
        "currentSpend": f"{spent:.2f}", "percentageUsed": round(used, 2), "lastUpdated": units.rfc3339(NOW - 40),
        "budgetStatus": "exceeded" if used >= 100 else "warning" if used >= 80 else "ok", "currency": "USD",
        "period": {"start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}, **more,
    }
    if grows is not None:
        status["projectedMonthlySpend"] = f"{spent * grows:.2f}"
    return budget_crd.parse({
        "metadata": {"name": name, "uid": name, "generation": 1}, "status": status,
        "spec": {"scope": scope, "budget": {"amount": amount}},
    })


# ---- the server ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def books_of(which: str) -> AsyncIterator[CostBooks | None]:
    if which == "none":
        yield None
        return
    full = which == "month"
    prices = (cost_scenes.price(retrieved_at=NOW - 2 * DAY),)
    async with cost_scenes.opened(
        month() if full else (), at=NOW - 40, prices=prices, savings=tuple(savings()) if full else (),
        roll=TODAY - DAY if full else 0,
    ) as kept:
        there = budgets(await _spent(kept)) if full else []
        yield CostBooks(ledger=kept, invested=400 * UNIT, budgets=lambda: there)


async def _spent(kept: ledger.Ledger) -> dict[str, float]:
    first = int(units.parse_instant("2026-11-01T00:00:00Z"))
    sums = await kept.sums(cost.CostQuery(begin=first, end=NOW - 40, by=(cost.read_dimension("team"),)))
    by_team = {one.key[0]: one.total.cost / UNIT for one in sums}
    return {**by_team, "": sum(by_team.values())}


@contextlib.asynccontextmanager
async def make(which: str) -> AsyncIterator[app.Server]:
    options = settings.read_flags({"daemon_mode": True}, {})
    kept = audit.Audit(None)
    await kept.open()
    latest = editions.Editions(many.Story(many.build(12)), options, lambda: builders.NOW, kept=kept)  # type: ignore[arg-type]
    live = events.make_route(events.Changes(latest.revision), many.everybody)
    async with books_of(which) as books:
        latest.books = books
        made = app.make_app(
            loop.Health({}), telemetry.Telemetry(), time.monotonic, routes=[live],
            reads=app.Reads(editions=latest, guard=many.everybody),
        )
        yield app.Server(made, bounds.PageProtocol)


async def serve() -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = {which: await stack.enter_async_context(make(which)) for which in ("none", "empty", "month")}
        found = {which: many.listen() for which in servers}
        print(json.dumps({which: base for which, (_, base) in found.items()}), flush=True)
        await asyncio.gather(*(servers[which].serve([listener]) for which, (listener, _) in found.items()))


def start(said: pathlib.Path) -> int:
    """Its pid, once it has said its addresses."""
    return playing.hear(playing.spawn(said, "-m", "tests.browser.spent"), said, r"\n")


if __name__ == "__main__":
    asyncio.run(serve())
