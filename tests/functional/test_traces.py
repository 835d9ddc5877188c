"""Days made of real traces, played by the real controller over sockets: no law is broken on any tick of them."""

from __future__ import annotations

import pathlib

import pytest

from fallow.sim import cast, shelf, stage
from fallow.sim.traces import published
from fallow.sim.world import world
from tests.unit.sim import folder

HOURS = 4


def make_day(kind: str) -> world.World:
    where = folder.find(published.GENTD26).parent
    if kind == "real lives":
        real, why = shelf.open_real_lives(where)
        assert real is not None, why
        return cast.make_world(seed=3, nodes=4, hours=HOURS, real=real)
    return shelf.open_past(shelf.find(kind, where), where, seed=3, hours=HOURS, nodes=6).make_world()


@pytest.mark.parametrize("faults", [[], list(world.Fault)], ids=["well", "all-faults"])
@pytest.mark.parametrize("kind", ["real lives", *shelf.KINDS])
async def test_no_law_is_broken_on_any_tick_of_a_day_of_a_trace(
    tmp_path: pathlib.Path, kind: str, faults: list[world.Fault]
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
