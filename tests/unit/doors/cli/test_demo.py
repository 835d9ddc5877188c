"""The demo's doors: its options, its picture, a short day from start to report, and a port that is taken."""

from __future__ import annotations

import io
import re
import socket
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
from fallow.sim.world import world

NOW = parse_instant("2026-11-16T08:35:00Z")


def make_scene(**said: object) -> view.Scene:
    rows = (
        view.NodeRow("gpu-1", "A100", (view.BUSY, view.IDLE, view.NOTICE, view.FREE)),
        view.NodeRow("gpu-2", "T4", (view.UNKNOWN, view.STARTING), ready=False),
    )
    sums = view.Sums(100.0, 40.0, 12.5, Decimal("64.00"), notices=3, acks=1, pauses=2, resumes=1, regrets=1)
    feed = (view.Happening(NOW, "pause", "ml/llm\x1b[31m 2 GPUs free"),)
    facts = {"began": NOW - 8 * HOUR, "now": NOW, "ends": NOW + 16 * HOUR, "nodes": rows, "sums": sums, "feed": feed, "paused": 1}
    return view.Scene(**{**facts, **said})  # type: ignore[arg-type]


def draw(scene: view.Scene, width: int = 220, height: int = 40) -> str:
    console = Console(width=width, height=height, file=io.StringIO())
    with console.capture() as captured:
        console.print(view.View(scene))
    return captured.get()


def test_every_gpu_is_counted_once_and_the_picture_says_what_happens() -> None:
    shown = draw(make_scene(frozen="a jump", faults=("node-lost",)))
    for text in ("1 busy", "1 idle", "1 cannot tell", "1 free", "gpu-1", "ml/llm", "12 GPU-hours", "$64", "frozen: a jump", "node-lost"):
        assert text in shown
    assert sum(make_scene().count().values()) == 6


def test_what_a_name_holds_is_shown_and_not_obeyed() -> None:
    assert "\x1b" not in draw(make_scene())


@pytest.mark.parametrize("height", [10, 24, 60])
def test_more_nodes_than_fit_are_counted(height: int) -> None:
    rows = tuple(view.NodeRow(f"gpu-{number}", "T4", (view.FREE,)) for number in range(400))
    shown = draw(make_scene(nodes=rows), height=height)
    assert re.search(r"and \d+ more nodes", shown)
    assert "gpu-0 " in shown


def test_money_without_a_price_is_told_beside_the_sum() -> None:
    assert view.tell_money(view.Sums(money=Decimal(10), unpriced_gpu_hours=3.0)) == "$10 (+ 3 GPU-hours of models without a price)"
    assert view.tell_money(view.Sums(money=Decimal(10))) == "$10"


def test_where_nobody_watches_an_hour_is_a_line() -> None:
    line = view.hour_line(make_scene(frozen="a jump", faults=("api-slow",)))
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
        with pytest.raises(click.UsageError, match=rf"--port: {port} is taken by another program; \d+ is free: --port \d+"):
            demo.find_port(port)
        done = CliRunner().invoke(main.fallow, ["demo", "--port", str(port)])
    assert done.exit_code == 2
    assert f"{port} is taken" in done.output


def test_the_usual_port_being_taken_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(demo, "PORT", taken.getsockname()[1])
        assert demo.find_port(None) != demo.PORT


@pytest.mark.parametrize(("trace", "code"), [("no-such-file.csv", 3), ("helios", 3), (__file__, 2)], ids=["no file", "no name", "garbage"])
def test_a_trace_that_is_not_there_or_is_none_is_a_clear_sentence(tmp_path: Path, trace: str, code: int) -> None:
    done = CliRunner().invoke(main.fallow, ["demo", "--trace", trace, "--port", "0"], env={"FALLOW_TRACES": str(tmp_path)})
    assert done.exit_code == code
    assert "--trace: " in done.output


def test_every_fault_is_documented() -> None:
    page = (ROOT / "docs" / "demo.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [str(fault) for fault in world.Fault]
