"""The story of savings over a real ledger and a real audit: claimed once, taken back, told apart, and never guessed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests import builders, cost_scenes
from tests.builders import NOW

from fallow.account import audit
from fallow.clients import errors
from fallow.model import cluster, decision
from fallow.model.cost import HOUR, CostRetention, SpendState
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.stories import savings
from fallow.stories.turn import Turn

AT = int(NOW)
PAUSED, BACK = AT - 4 * HOUR, AT - HOUR
REF = cluster.Ref("apps", "v1", "Deployment", "red", "train", "uid-red/train")
# It held a GPU until it was paused; then another had the GPU for two hours, and nobody for the last.
BOOKED = [
    *cost_scenes.held("GPU-0", PAUSED - HOUR, PAUSED, cost_scenes.key("red", "train"), SpendState.held_idle),
    *cost_scenes.held("GPU-0", PAUSED, PAUSED + 2 * HOUR, cost_scenes.key("blue", "serve"), use=0.5),
    *cost_scenes.free("GPU-0", PAUSED + 2 * HOUR, AT),
]


def cycle() -> decision.Cycle:
    """In which nothing rests."""
    return decision.Cycle(None, builders.World().snapshot(), (), "", 0.0)


def resting() -> decision.Cycle:
    """In which it rests, as we paused it."""
    world = builders.World()
    stopped = {"spec": {"replicas": 0}}
    world.workload("red/train", pods=[], annotations=builders.paused_marks(PAUSED), body=stopped)
    return decision.Cycle(None, world.snapshot(), (), "", 0.0)


def happened(at: int, what: Happened) -> AuditEntry:
    return AuditEntry(at=float(at), type=what, sentence="", actor="", ref=REF, gpus=1, source=CameBy.cycle)


class Scene:
    def __init__(self, ledger: Any, kept: audit.Audit) -> None:
        self.ledger, self.kept, self.forgot = ledger, kept, list[tuple[CostRetention, float]]()

    async def tick(self, latest: Any = cycle, *, is_dry: bool = False, leads: bool = True) -> savings.SavingsTurn:
        async def write(batch: Any) -> None:
            await self.ledger.write(batch, 1)

        async def forget(retention: CostRetention, now: float) -> None:
            self.forgot.append((retention, now))

        story = savings.SavingsStory(
            kept=self.kept, latest=latest, retention=CostRetention(), is_dry=is_dry,
            books=savings.SavingBooks(ledger=self.ledger, write=write, forget=forget, on_demand=lambda key, at: None),
        )
        return await story.tick(Turn(
            clock=lambda: NOW, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: leads,
        ))

    async def rows(self) -> list[tuple[bool, int, bool]]:
        found = await self.ledger.read_savings(0, AT + 1)
        return sorted((row.realised, row.saved, row.is_dry_run) for row in found)


@contextlib.asynccontextmanager
async def scene(*entries: AuditEntry) -> AsyncIterator[Scene]:
    kept = audit.Audit(None)
    await kept.open()
    for each in entries:
        await kept.enter(each)
    async with cost_scenes.opened(BOOKED, at=AT) as ledger:
        yield Scene(ledger, kept)
    await kept.close()


@pytest.mark.accepts("cost", 22)
async def test_a_pause_is_claimed_once_however_often_it_is_worked_out_and_only_what_somebody_had_is_money() -> None:
    async with scene(happened(PAUSED, Happened.paused), happened(BACK, Happened.resumed)) as made:
        for _ in range(3):
            await made.tick()
        realised = [saved for is_realised, saved, _ in await made.rows() if is_realised]
        assert realised == [2 * cost_scenes.P4D]
        assert made.forgot == [(CostRetention(), NOW)] * 3


async def test_a_pause_that_somebody_takes_back_takes_its_claim_with_it() -> None:
    async with scene(happened(PAUSED, Happened.paused)) as made:
        await made.tick(resting)
        assert (True, 2 * cost_scenes.P4D, False) in await made.rows()
        await made.kept.enter(happened(PAUSED + 300, Happened.resumed))
        await made.tick()
        assert [saved for _, saved, _ in await made.rows() if saved] == []


async def test_a_dry_run_is_told_apart() -> None:
    async with scene(happened(PAUSED, Happened.would_pause)) as made:
        await made.tick(resting, is_dry=True)
        assert {(is_realised, is_dry) for is_realised, _, is_dry in await made.rows()} == {(False, True)}


async def test_who_does_not_lead_writes_nothing() -> None:
    async with scene(happened(PAUSED, Happened.paused), happened(BACK, Happened.resumed)) as made:
        await made.tick(leads=False)
        assert (await made.rows(), made.forgot) == ([], [])


async def test_before_the_first_cycle_nobody_knows_what_rests() -> None:
    async with scene(happened(PAUSED, Happened.paused)) as made:
        with pytest.raises(errors.ClientError, match="before the first good cycle"):
            await made.tick(latest=lambda: None)
        assert await made.rows() == []
