"""Idle pausing, sharing and scaling over one past: each GPU-hour counts once, and only what left the bill is money."""

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fallow.doors.cli import backtest as door
from fallow.doors.cli import main
from fallow.model import price_book
from fallow.model.units import MINUTE
from fallow.sim import cast, together
from fallow.sim.together import IDLE, SCALING, SHARING
from fallow.sim.world.lives import LifeSpan
from fallow.sim.world.nouns import Part, SimNode
from fallow.sim.world.world import World

HOURS = 6


def make(*parts: Part, nodes: int = 2, **lives: int) -> World:
    span = LifeSpan(cast.MONDAY, MINUTE, HOURS * 60)
    rows = [np.full(span.columns, lives[part.name], np.uint8) for part in parts for _ in range(part.seats)]
    return World([SimNode(f"n{number}", "Tesla-T4") for number in range(nodes)], parts, np.stack(rows), span)


def play(world: World, *asked: str) -> together.Together:
    trial = door.try_window(30 * MINUTE)
    return together.play(lambda: world, trial, frozenset(asked), interval=180.0, book=price_book.LIST)


def held(**more: Any) -> Part:
    return Part("ml", "held", gpus=8, **more)


def test_a_node_that_a_pause_emptied_goes_and_is_the_pauses() -> None:
    done = play(make(held(), Part("ml", "busy", gpus=8), held=0, busy=90), SCALING)
    idle, scaling = done.find(IDLE), done.find(SCALING)
    assert done.nodes_released == 1
    assert 8 * 4 < idle.gone_gpu_hours <= idle.freed_gpu_hours <= 8 * 5.5
    assert idle.money == pytest.approx(idle.gone_gpu_hours * 0.526, rel=0.01)
    assert scaling.gone_gpu_hours == 0


def test_a_node_that_nobody_held_is_scalings() -> None:
    done = play(make(Part("ml", "busy", gpus=8), busy=90), SCALING)
    assert done.find(IDLE).freed_gpu_hours == 0
    assert 8 * 5 < done.find(SCALING).gone_gpu_hours <= 8 * HOURS
    assert done.pauses == 0


def test_nothing_is_counted_twice() -> None:
    done = play(make(held(), Part("ml", "busy", gpus=3), nodes=3, held=0, busy=90), SCALING)
    gone = sum(each.gone_gpu_hours for each in done.parts)
    assert gone <= done.gpu_hours
    assert done.gpu_hours == pytest.approx(3 * 8 * HOURS)
    assert sum(each.money for each in done.parts) < done.money


def test_without_scaling_nothing_leaves_the_bill() -> None:
    done = play(make(held(), held=0), SHARING)
    assert done.find(IDLE).freed_gpu_hours > 0
    assert [each.money for each in done.parts] == [0, 0]


def test_a_quarter_is_given_where_it_is_enough_and_memory_that_nobody_measured_is_unknown() -> None:
    small = [Part("ml", f"nb{number}", class_="notebook", memory=1024.0) for number in range(4)]
    blind = Part("ml", "blind", class_="notebook")
    lives = {part.name: 10 for part in (*small, blind)}
    done = play(make(*small, blind, **lives), SHARING)
    assert done.workloads_sharing == 4
    assert done.find(SHARING).freed_gpu_hours == pytest.approx(4 * 0.75 * HOURS, rel=0.05)
    assert done.unknown_gpu_hours == pytest.approx(HOURS)


def test_the_command_tells_the_parts_apart_and_refuses_what_it_does_not_know() -> None:
    def ask(*words: str) -> Any:
        return CliRunner().invoke(main.fallow, ["backtest", "--nodes", "4", "--hours", "3", *words])

    told = json.loads(ask("--with", "scaling", "-o", "json").output)["together"]
    assert [each["part"] for each in told["parts"]] == [IDLE, SCALING]
    assert "LEFT THE BILL" in ask("--with", "sharing,scaling").output
    for words, because in ((["--with", "magic"], "is no part"), (["--with", ","], "is no part"),
                           (["--with", "scaling", "-w", "1h", "-w", "2h"], "one window or policy file at a time")):
        refused = ask(*words)
        assert refused.exit_code == 2
        assert because in refused.output
