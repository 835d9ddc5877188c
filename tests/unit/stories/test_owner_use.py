"""What owners used is measured once an hour where somebody wants to know, told the webhook, and not guessed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from fallow.clients import errors
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.model.sharing import OwnerUse
from fallow.observe.usage.owning import OwnedPod
from fallow.stories.owner_use import OwnerUseStory
from fallow.stories.turn import Turn

USE = OwnerUse(coverage=1.0, peak_memory=100)


class Desk:
    """A story, its clock, and what it asked and told."""

    def __init__(self) -> None:
        self.now, self.is_wanted, self.problem, self.refusal = 0.0, True, "", ""
        self.asked: list[float] = []
        self.told: list[float] = []
        self.story = OwnerUseStory(
            is_wanted=lambda: self.is_wanted, pods=lambda: (), measure=self.measure, tell=self.tell
        )

    async def measure(self, pods: Sequence[OwnedPod], now: float) -> Mapping[str, OwnerUse]:
        self.asked.append(now)
        if self.problem:
            raise errors.Unreachable(self.problem)
        return {"u-1": USE}

    async def tell(self, used: Mapping[str, OwnerUse], at: float) -> None:
        if self.refusal:
            raise errors.Unreachable(self.refusal)
        self.told.append(at)

    async def tick(self, at: float, *, leads: bool = True) -> str:
        self.now = at
        return (await self.story.tick(self.turn(at, leads=leads))).because

    def turn(self, at: float, *, leads: bool = True) -> Turn:
        return Turn(clock=lambda: at, monotonic=lambda: 0.0, budget=9.0, stopping=asyncio.Event(), leads=lambda: leads)


async def test_it_is_measured_once_an_hour_and_told() -> None:
    desk = Desk()
    assert [await desk.tick(at) for at in (0.0, 60.0, 3599.0, 3600.0)] == [""] * 4
    assert (desk.asked, desk.told) == ([0.0, 3600.0], [0.0, 3600.0])
    assert (desk.story.find("u-1"), desk.story.find("u-2")) == (Known(USE), ABSENT)


async def test_without_policies_nobody_is_asked_and_nothing_is_known() -> None:
    desk = Desk()
    desk.is_wanted = False
    assert "no GPUSharingPolicy" in await desk.tick(0.0)
    assert (desk.asked, desk.told, isinstance(desk.story.find("u-1"), Unseen)) == ([], [], True)
    desk.is_wanted = True
    assert await desk.tick(60.0) == ""


async def test_a_source_that_is_away_is_asked_again_and_makes_nobody_known() -> None:
    desk = Desk()
    desk.problem = "away"
    assert "away" in await desk.tick(0.0)
    assert isinstance(desk.story.find("u-1"), Unseen)
    desk.problem = ""
    assert await desk.tick(60.0) == ""
    assert desk.told == [60.0]


async def test_who_does_not_lead_tells_nobody() -> None:
    desk = Desk()
    assert await desk.tick(0.0, leads=False) == ""
    assert desk.told == []


async def test_what_could_not_be_told_is_told_in_the_next_turn_and_not_measured_again(
    caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.refusal = "configmaps is forbidden"
    for at in (0.0, 60.0):
        with pytest.raises(errors.Unreachable) as refused:
            await desk.tick(at)
        desk.story.fail(str(refused.value), desk.turn(at))  # as the loop does
    assert [each.getMessage() for each in caplog.records] == [
        "what owners used of GPUs is not told the webhook: configmaps is forbidden"
    ]
    desk.refusal = ""
    assert await desk.tick(120.0) == ""
    assert (desk.asked, desk.told) == ([0.0], [0.0])  # as old as it is


async def test_who_begins_to_lead_tells_what_it_knows() -> None:
    desk = Desk()
    await desk.tick(0.0, leads=False)
    await desk.tick(60.0)
    assert (desk.asked, desk.told) == ([0.0], [0.0])
