"""Days made of real traces, played by the real controller over sockets: no law is broken on any tick of them."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from fallow.sim import cast, shelf, stage
from fallow.sim.traces import published
from fallow.sim.world import nouns, world
from fallow.sim.world.lives import NONE, LifeSpan
from tests.unit.sim import folder

HOURS = 4
SPAN = LifeSpan(1_800_000_000.0, 57.0, 158)


def make_day(kind: str) -> world.World:
    where = folder.find(published.GENTD26).parent
    if kind == "real lives":
        real, why = shelf.open_real_lives(where)
        assert real is not None, why
        return cast.make_world(seed=3, nodes=4, hours=HOURS, real=real)
    return shelf.open_past(shelf.find(kind, where), where, seed=3, hours=HOURS, nodes=6).make_world()


@pytest.mark.parametrize(("kind", "faults"), [
    pytest.param("real lives", [], id="real lives-well"),
    *(pytest.param(kind, list(nouns.Fault), id=f"{kind}-all-faults") for kind in ("real lives", *shelf.KINDS)),
])
async def test_no_law_is_broken_on_any_tick_of_a_day_of_a_trace(
    tmp_path: pathlib.Path, kind: str, faults: list[nouns.Fault]
) -> None:
    made = make_day(kind)
    stage.plan_faults(made, faults)
    told = 0
    async with stage.open_stage(made, tmp_path) as on:
        for _ in range(int(HOURS * 3600 / on.interval)):
            cycle = await on.step()
            told += len(cycle.outcomes)
        assert on.broken == []
    assert told > 0 or kind == "helios"  # whose made-up jobs may all be busy for so long


@pytest.mark.accepts("idle", 4)
async def test_a_gpu_of_which_half_is_not_known_is_not_paused_and_its_idle_neighbour_is(tmp_path: pathlib.Path) -> None:
    wanted = np.zeros((2, SPAN.columns), np.uint8)
    wanted[0, np.random.default_rng(1).random(SPAN.columns) < 0.5] = NONE
    parts = [nouns.Part("ml", name, class_="inference") for name in ("sparse", "idle")]
    made = world.World([nouns.SimNode("node-1", gpus=2)], parts, wanted, SPAN)
    reasons = set[str]()
    async with stage.open_stage(made, tmp_path) as on:
        for _ in range(int(SPAN.columns * SPAN.step / on.interval) - 1):
            cycle = await on.step()
            assert cycle.plan is not None
            reasons |= {each.reason.name for each in cycle.plan.findings if each.workload.ref.name == "sparse"}
        assert on.broken == []
    assert [one.part.name for one in made.workloads if one.state is nouns.SimState.paused] == ["idle"]
    assert "LowCoverage" in reasons
