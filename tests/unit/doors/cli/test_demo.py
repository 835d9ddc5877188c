"""The demo's doors: its options, its picture, a short day from start to report, and a port that is taken."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import time
from decimal import Decimal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from tests import ROOT

from fallow.doors.cli import demo, main
from fallow.doors.cli import demo_view as view
from fallow.model.units import HOUR, parse_instant
from fallow.sim import backtest
from fallow.sim.world import world

NOW = parse_instant("2026-11-16T08:35:00Z")


def make_moment(**said: object) -> view.Moment:
    nodes = (
        view.NodeCells("gpu-1", (view.BUSY, view.IDLE, view.NOTICE, view.FREE)),
        view.NodeCells("gpu-2", (view.UNKNOWN, view.STARTING), ready=False),
    )
    total = backtest.BacktestSums(
        gpu_hours=100.0, idle_gpu_hours=40.0, reclaimed_gpu_hours=12.5, money=Decimal("64.00"), acks=1, pauses=2,
        resumes=1, regrets=1,
    )
    began, ends = NOW - 8 * HOUR, NOW + 16 * HOUR
    sums = backtest.BacktestResult(
        name="day", start=began, end=NOW, total=total, by_namespace={}, by_class={}, notices=3,
    )
    feed = (view.Happening(NOW, "pause", "ml/llm\x1b[31m 2 GPUs free"),)
    facts = {"began": began, "now": NOW, "ends": ends, "nodes": nodes, "sums": sums, "feed": feed, "paused": 1}
    return view.Moment(**{**facts, **said})  # type: ignore[arg-type]


def draw(moment: view.Moment, width: int = 220, height: int = 40) -> str:
    console = Console(width=width, height=height, file=io.StringIO())
    with console.capture() as captured:
        console.print(view.Picture(moment))
    return captured.get()


def test_every_gpu_is_counted_once_and_the_picture_says_what_happens() -> None:
    shown = draw(make_moment(frozen="a jump", faults=("node-lost",)))
    for text in ("1 busy", "1 idle", "1 cannot tell", "1 free", "gpu-1", "ml/llm", "12 GPU-hours", "$64", "node-lost"):
        assert text in shown
    assert "frozen: a jump" in shown
    assert sum(make_moment().count().values()) == 6


def test_what_a_name_holds_is_shown_and_not_obeyed() -> None:
    assert "\x1b" not in draw(make_moment())


@pytest.mark.parametrize("height", [10, 24, 60])
def test_more_nodes_than_fit_are_counted(height: int) -> None:
    nodes = tuple(view.NodeCells(f"gpu-{number}", (view.FREE,)) for number in range(400))
    shown = draw(make_moment(nodes=nodes), height=height)
    assert re.search(r"and \d+ more nodes", shown)
    assert "gpu-0 " in shown


def test_money_without_a_price_is_told_beside_the_sum() -> None:
    unpriced = backtest.BacktestSums(money=Decimal(10), unpriced_gpu_hours=3.0)
    assert view.say_money(unpriced) == "$10 (+ 3 GPU-hours of models without a price)"
    assert view.say_money(backtest.BacktestSums(money=Decimal(10))) == "$10"


def test_where_nobody_watches_an_hour_is_a_line() -> None:
    line = view.hour_line(make_moment(frozen="a jump", faults=("api-slow",)))
    assert "\n" not in line
    assert line.startswith("08:35  1 busy, 2 idle, 1 cannot tell, 1 free; 3 notices, 2 pauses (1 stand)")
    assert line.endswith("frozen; fault api-slow")


@pytest.mark.parametrize(("text", "faults"), [
    ("", []), ("node-lost", [world.Fault.node_lost]), ("all", list(world.Fault)),
    ("api-slow, clock-jump", [world.Fault.api_slow, world.Fault.clock_jump]),
], ids=["none", "one", "all", "two"])
def test_faults_are_named(text: str, faults: list[world.Fault]) -> None:
    assert demo.read_faults(text) == faults


def test_an_unknown_fault_names_the_known_ones() -> None:
    with pytest.raises(click.UsageError, match="'fire' is no fault; known are all, exporter-silent"):
        demo.read_faults("fire")


def test_a_port_that_is_taken_is_said_and_another_is_offered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = rf"--port: {port} is taken by another program; \d+ is free: --port \d+"
        with pytest.raises(click.UsageError, match=sentence):
            demo.find_port(port)
        done = CliRunner().invoke(main.fallow, ["demo", "--port", str(port)])
    assert done.exit_code == 2
    assert f"{port} is taken" in done.output


def test_the_usual_port_being_taken_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(demo, "PORT", taken.getsockname()[1])
        assert demo.find_port(None) != demo.PORT


@pytest.mark.parametrize(
    ("trace", "code"), [("no-such-file.csv", 3), ("helios", 3), (__file__, 2)], ids=["no file", "no name", "garbage"]
)
def test_a_trace_that_is_not_there_or_is_none_is_a_clear_sentence(tmp_path: Path, trace: str, code: int) -> None:
    runner = CliRunner(env={"FALLOW_TRACES": str(tmp_path)})
    done = runner.invoke(main.fallow, ["demo", "--trace", trace, "--port", "0"])
    assert done.exit_code == code
    assert "--trace: " in done.output


def test_every_fault_is_documented() -> None:
    page = (ROOT / "docs" / "demo.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [str(fault) for fault in world.Fault]


async def test_sigterm_ends_a_slow_day_at_once() -> None:
    past = demo.choose_past(1.0, 7, 1, None)
    how = {"speed": 1.0, "hours": 1.0, "port": 0, "faults": [], "is_watched": False}
    playing = asyncio.create_task(demo.play(past.make_world(), **how))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await playing == 0
    assert time.monotonic() - began < 20
