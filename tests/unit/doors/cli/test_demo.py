"""The demo's doors: its options, its picture, a short day from start to report, and a port that is taken."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pytest
import rich.color
from click.testing import CliRunner
from docs import pictures
from rich.console import Console
from rich.style import Style
from tests import ROOT

from fallow import names
from fallow.doors.answers import cost
from fallow.doors.cli import demo, demo_books, demo_director, demo_gate, demo_nodes, demo_report, main
from fallow.doors.cli import demo_view as view
from fallow.model.units import HOUR, MINUTE, parse_instant, rfc3339
from fallow.sim import backtest, cast, stage
from fallow.sim.servers import store as stores
from fallow.sim.world import nouns, world
from fallow.sim.world.lives import LifeSpan

NOW = parse_instant("2026-11-16T08:35:00Z")


def make_moment(**said: object) -> view.Moment:
    nodes = (
        view.NodeCells("gpu-1", (view.BUSY, view.IDLE, view.NOTICE, view.FREE)),
        view.NodeCells("gpu-2", (view.UNKNOWN, view.STARTING), ready=False),
    )
    total = backtest.BacktestSums(acks=1, pauses=2, resumes=1, regrets=1)
    money = view.DayMoney(
        currency="USD", cost=250.0, held=120.5, held_idle=40.25, given_back=12.5, saved=64.0, regretted=1
    )
    began, ends = NOW - 8 * HOUR, NOW + 16 * HOUR
    sums = backtest.BacktestResult(
        name="day", start=began, end=NOW, total=total, by_namespace={}, by_class={}, notices=3,
    )
    feed = (view.Happening(NOW, "pause", "ml/llm\x1b[31m 2 GPUs free"),)
    facts = {
        "began": began, "now": NOW, "ends": ends, "nodes": nodes, "sums": sums, "feed": feed, "paused": 1,
        "money": money,
    }
    return view.Moment(**{**facts, **said})  # type: ignore[arg-type]


def draw(moment: view.Moment, width: int = 220, height: int = 40) -> str:
    console = Console(width=width, height=height, file=io.StringIO())
    with console.capture() as captured:
        console.print(view.Picture(moment), end="")
    return captured.get()


SIZES = [(80, 24), (100, 30), (120, 35), (160, 45), (220, 60)]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("is_live", [False, True], ids=["day", "after it"])
def test_the_picture_fills_the_room_it_has_and_no_more(width: int, height: int, is_live: bool) -> None:
    moment = msgspec.structs.replace(pictures.load(), is_live=is_live)
    lines = draw(moment, width, height).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert sum(not line.strip("│ ") for line in lines) <= height // 4, "most of it is used"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_state_is_in_the_legend_and_every_sum_in_the_footer_at_any_size(width: int, height: int) -> None:
    moment = pictures.load()
    shown, counted = draw(moment, width, height), moment.count()
    for state, (words, _, letter) in view.CELLS.items():
        assert f"{letter} {counted[state]} {words}" in shown
    for words in (
        "GPU-hours", "saved by that", "teams paid", "notices", "kept by their owners", "pauses", "taken by others",
        "resumes", "regretted", "missed within 15m",
    ):
        assert words in shown
    for node in moment.nodes:
        assert node.name in shown


def test_what_nobody_can_tell_is_explained_and_who_waits_is_named() -> None:
    unknowns = (view.Unknown(8, "gpu-2", "SharedDevice: others share this GPU"),)
    shown = draw(make_moment(unknowns=unknowns, waiting="2 workloads for 12 GPUs"), 80, 24)
    assert "? 8 on gpu-2: SharedDevice: others share this GPU" in shown
    assert "waiting 2 workloads for 12 GPUs" in shown


def test_a_reason_whose_gpus_the_map_shows_otherwise_is_not_counted() -> None:
    shown = draw(make_moment(unknowns=(view.Unknown(0, "mig-01", "TooYoung: it runs for 5m only"),)), 80, 24)
    assert "TooYoung" not in shown


def test_at_80x24_every_address_to_type_stands_uncut() -> None:
    addresses = stage.Addresses(Path("/tmp/fallow-demo-r9r9ukcx/kubeconfig"), "http://127.0.0.1:64410")
    typed = [*demo.say_commands(addresses, "http://localhost:48080/"), "# in a browser: http://localhost:48080/"]
    shown = draw(make_moment(commands=tuple(typed), is_live=True), 80, 24)
    for each in typed:
        if not each.startswith("export PATH="):
            assert each in shown


@pytest.mark.parametrize("width", [80, 120])
def test_why_nothing_can_be_told_is_folded_and_not_cut(width: int) -> None:
    because = "SharedDevice: others share this GPU and nothing tells whose the activity is; the end of it."
    nodes = tuple(view.NodeCells(f"gpu-{number}", (view.UNKNOWN,) * 8) for number in range(16))
    shown = draw(make_moment(nodes=nodes, unknowns=(view.Unknown(8, "gpu-2", because),)), width, 40)
    assert because in " ".join(re.sub("[│╭╮╰╯]", " ", shown).split())


def luminance(color: rich.color.Color) -> float:
    """Of sRGB, as the rules for legible pages define it."""
    parts = [part / 255 for part in color.get_truecolor()]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("style", sorted({style for _, style, _ in view.CELLS.values()} | set(view.STYLES.values())))
def test_every_colour_can_be_read_on_black_and_on_white(style: str) -> None:
    color = Style.parse(style).color
    assert color is not None
    light = luminance(color)
    assert (1.0 + 0.05) / (light + 0.05) >= 3.7
    assert (light + 0.05) / 0.05 >= 3.7


@pytest.mark.parametrize("width", [80, 129])
def test_the_command_that_undoes_a_pause_is_shown_whole_or_not_at_all(width: int) -> None:
    back = "fallow resume LLMInferenceService/inference-00021 -n team-maps"
    paused = view.Happening(60.0, "pause", "team-maps/inference-00021: frees 3 GPUs", back)
    shown = draw(make_moment(feed=(paused,)), width, 30)
    assert "frees 3 GPUs" in shown
    assert (back in shown, "back:" in shown) == ((True, True) if width == 129 else (False, False))


@pytest.mark.parametrize("text", [",", " , "])
def test_faults_that_name_none_are_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="names none"):
        demo.read_faults(text)


def test_one_is_not_several() -> None:
    sums = backtest.BacktestResult(
        name="", start=0.0, end=0.0, total=backtest.BacktestSums(pauses=1, resumes=1), by_namespace={}, by_class={},
        notices=1,
    )
    footer = " ".join(draw(make_moment(sums=sums, taken=1), 160, 45).split())
    line = demo_report.hour_line(make_moment(sums=sums, taken=1))
    assert "1 notice, 1 pause (1 stand), 1 resume, 0 missed within 15m" in line
    for words in ("1 notice 0 kept", "1 pause (1 stand) 1 freed GPU taken by others 1 resume 1 regretted 0 missed"):
        assert words in footer


def test_every_state_has_a_letter_of_its_own() -> None:
    assert len({letter for _, _, letter in view.CELLS.values()}) == len(view.CELLS)


@pytest.mark.parametrize("name", pictures.FILES)
def test_the_pictures_in_the_documents_are_of_this_layout(name: str) -> None:
    kept = (pictures.FOLDER / name).read_text()
    assert kept == pictures.draw(pictures.load(), *pictures.FILES[name]), "run `python -m docs.pictures`"
    assert len(kept) < 100_000
    assert re.findall(r"https?://[^\s\"'<]+", kept.replace("http://127.0.0.1:6441", "")) == ["http://www.w3.org/2000/svg"]
    assert "@font-face" not in kept


def test_every_gpu_is_counted_once_and_the_picture_says_what_happens() -> None:
    shown = draw(make_moment(frozen="a jump", faults=("node-lost",)))
    states = ("1 busy", "1 idle", "1 cannot tell", "1 free")
    for text in (*states, "gpu-1", "ml/llm", "12 GPU-hours", "$64.00", "$120.50", "node-lost"):
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


def test_before_the_books_were_read_no_money_is_shown() -> None:
    assert "$" not in draw(make_moment(money=None))
    assert "$" not in demo_report.hour_line(make_moment(money=None))


def test_where_nobody_watches_an_hour_is_a_line() -> None:
    line = demo_report.hour_line(make_moment(frozen="a jump", faults=("api-slow",)))
    assert "\n" not in line
    assert line.startswith("08:35  1 busy, 2 idle, 1 cannot tell, 1 free; 3 notices, 2 pauses (1 stand)")
    assert line.endswith("frozen; fault api-slow")


@pytest.mark.parametrize(("text", "faults"), [
    ("", []), ("node-lost", [nouns.Fault.node_lost]), ("all", list(nouns.Fault)),
    ("api-slow, clock-jump", [nouns.Fault.api_slow, nouns.Fault.clock_jump]),
], ids=["none", "one", "all", "two"])
def test_faults_are_named(text: str, faults: list[nouns.Fault]) -> None:
    assert list(demo.read_faults(text)) == faults


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


@pytest.mark.parametrize("words", [("--faults", "fire"), ("--trace", "no-such-file.csv")], ids=["faults", "trace"])
def test_what_was_typed_is_read_before_a_port_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(demo, "PORT", taken.getsockname()[1])
        done = CliRunner().invoke(main.fallow, ["demo", *words])
    assert done.exit_code in (2, 3)
    assert "taken" not in done.output


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
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [str(fault) for fault in nouns.Fault]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
async def test_a_signal_ends_a_slow_day_at_once(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    past = demo.choose_past(1.0, 7, 1, None)
    playing = asyncio.create_task(demo.play(past.make_world(), demo.Playing(speed=1.0, hours=1.0, port=0)))
    async with asyncio.timeout(10):
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    began = time.monotonic()
    os.kill(os.getpid(), number)
    assert await playing == code
    assert time.monotonic() - began < 20
    assert ("ended by Ctrl-C" in capsys.readouterr().out) is (number is signal.SIGINT)


def test_ctrl_c_before_the_day_begins_is_a_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "choose_past", interrupt)
    done = CliRunner().invoke(main.fallow, ["demo", "--port", "0", "--dashboard-port", "0"])
    assert (done.exit_code, done.output) == (130, f"{demo._ENDED}\n")


def test_the_day_ends_now_and_is_the_same_whenever_it_is_played() -> None:
    past = cast.make_world(seed=7, nodes=2, hours=6)
    days = [demo.end_now(past, 6.0, now)[0] for now in (NOW + 7, NOW + 5 * HOUR)]
    assert [day.span.start + 6 * HOUR for day in days] == [NOW, NOW + 5 * HOUR]
    for day in days:
        day.advance(6 * HOUR)
    logs = [[(one.at - day.span.start, one.what, one.uid) for one in day.changes_since(0)] for day in days]
    assert logs[0] == logs[1] != []
    assert (days[0].done == days[1].done).all()


def test_the_demo_needs_no_tools_of_developers(tmp_path: Path) -> None:
    """On a machine where nothing is installed yet."""
    command = ["make", "--dry-run", f"VENV={tmp_path}/venv"]
    plans = [
        subprocess.run([*command, target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for target in ("demo", "setup")
    ]
    assert ["--group dev" in plan for plan in plans] == [False, True]
    assert all("--editable ." in plan for plan in plans)


# ---- what is told ----------------------------------------------------------------------------------------------------


async def test_who_takes_what_a_pause_freed_and_who_was_stopped_by_hand_is_told(tmp_path: Path) -> None:
    """Two GPUs, and a third workload that waits for one of them until somebody pauses the first by hand."""
    span = LifeSpan(NOW, MINUTE, 120)
    parts = [nouns.Part("ml", name) for name in ("first", "second", "third")]
    made = world.World([nouns.SimNode("gpu-1", gpus=2)], parts, np.full((3, 120), 50, np.uint8), span)
    async with stage.open_stage(made, tmp_path) as on:
        director = demo_director.Director(on, speed=0.0, length=2 * HOUR, stop=asyncio.Event())
        await director.step()
        waiting = director.look()
        assert waiting.waiting == "1 workload for 1 GPU; the longest, ml/third for 1, for 5m"
        key = stores.Key("apps", "Deployment", "ml", "first")
        on.store.patch(key, {"spec": {"replicas": 0}}, stores.Writer(manager="kubectl-scale"))
        await director.step()
        assert on.broken == []
    told = [(one.kind, one.text) for one in director.look().feed]
    assert ("person", "ml/first is stopped by hand, by somebody, not by the controller") in told
    assert ("taken", "ml/third waited 5m and takes one GPU that a pause freed") in told
    assert (director.taken, director.by_hand) == (1, ["ml/first"])
    moment = director.look()
    assert (moment.paused, moment.sums.total.pauses, moment.sums.total.regrets) == (0, 0, 0), "of the controller"


async def test_a_pause_stands_also_when_its_job_would_have_ended_meanwhile(tmp_path: Path) -> None:
    """What `fallow paused` lists: nobody brought it back."""
    parts = [nouns.Part("ml", "first", ends_at=NOW + HOUR), nouns.Part("ml", "second")]
    made = world.World(
        [nouns.SimNode("gpu-1", gpus=2)], parts, np.zeros((2, 180), np.uint8), LifeSpan(NOW, MINUTE, 180)
    )
    async with stage.open_stage(made, tmp_path) as on:
        director = demo_director.Director(on, speed=0.0, length=3 * HOUR, stop=asyncio.Event())
        while made.now < NOW + 2 * HOUR:
            await director.step()
        total = director.look().sums.total
        assert (director.look().paused, total.pauses, total.resumes) == (2, 2, 0)
        assert {one.state for one in made.workloads} == {nouns.SimState.finished, nouns.SimState.paused}


async def test_one_pod_makes_room_for_another_and_that_is_told(tmp_path: Path) -> None:
    """The only GPU of a model has one who could be anywhere, when one comes who needs just that."""
    span, model = LifeSpan(NOW, MINUTE, 180), "NVIDIA-L40S"
    parts = [
        nouns.Part("ml", "roamer", roams=True), nouns.Part("ml", "other"),
        nouns.Part("ml", "picky", kind="PyTorchJob", model=model, arrives_at=NOW + 20 * MINUTE),
    ]
    nodes = [nouns.SimNode("l40s-01", model, 1), nouns.SimNode("gpu-1", gpus=2)]
    made = world.World(nodes, parts, np.full((3, 180), 50, np.uint8), span)
    async with stage.open_stage(made, tmp_path, flags=demo_nodes.ACTING, gate=demo_gate.opened) as on:
        director = demo_director.Director(on, speed=0.0, length=3 * HOUR, stop=asyncio.Event())
        while not director.news.moves and made.now < NOW + 2 * HOUR:
            await director.step()
        assert on.broken == []
    assert [pod.node for one in made.workloads for pod in one.pods] == ["gpu-1", "gpu-1", "l40s-01"]
    assert list(demo_nodes.say(director.news)) == [
        "ml/picky-0 waited and is on l40s-01: one pod, ml/roamer-0, made room and went elsewhere",
    ]
    told = [one.text for one in director.look().feed if one.kind == "node"]
    assert told == [
        "l40s-01: ml/picky-0 waits and fits where ml/roamer-0 is, which fits on gpu-1",
        "l40s-01: Moved: ml/roamer-0 is Ready elsewhere, and ml/picky-0 on l40s-01",
    ]
    assert made.kept == {}


async def test_what_people_do_by_hand_is_told_and_the_hints_name_who_is_in_notice(tmp_path: Path) -> None:
    span, wanted = LifeSpan(NOW, MINUTE, 120), np.zeros((3, 120), np.uint8)
    wanted[2] = 50
    parts = [nouns.Part("ml", name, owner="absent") for name in ("first", "second", "busy")]
    made = world.World([nouns.SimNode("gpu-1")], parts, wanted, span)
    first, second = (stores.Key("apps", "Deployment", "ml", name) for name in ("first", "second"))
    async with stage.open_stage(made, tmp_path, flags={"freeze_jump": "100"}) as on:
        director = demo_director.Director(on, speed=0.0, length=2 * HOUR, stop=asyncio.Event())
        while director.notices < 2:
            await director.step()
        director.is_live = True
        await director.tick()
        assert "fallow ack Deployment/first -n ml --hours 1" in director.commands()
        ack = {names.ACK_UNTIL: rfc3339(NOW + HOUR), names.ACK_BY: "user:ada"} | dict.fromkeys(names.PENDING_KEYS)
        on.store.patch(first, {"metadata": {"annotations": ack}}, stores.Writer(manager=names.FIELD_MANAGER))
        resumed = {names.RESUMED_AT: rfc3339(NOW), names.RESUMED_BY: "user:bob"}
        on.store.patch(second, {"metadata": {"annotations": resumed}}, stores.Writer(manager="kubectl"))
        assert [(one.kind, one.text) for one in director.hear()] == [
            ("ack", "ml/first: user:ada keeps it until 09:35; its notice is withdrawn"),
            ("resume", "ml/second: brought back by user:bob"),
        ]
        assert director.hear() == []
        await director.tick()
        assert not any("Deployment/first" in each for each in director.commands())


async def test_a_notice_that_lapses_is_told(tmp_path: Path) -> None:
    """Quiet until its owner is told, then at work again."""
    span, wanted = LifeSpan(NOW, MINUTE, 120), np.zeros((2, 120), np.uint8)
    wanted[0, 45:], wanted[1] = 50, 50
    made = world.World([nouns.SimNode("gpu-1")], [nouns.Part("ml", "llm"), nouns.Part("ml", "busy")], wanted, span)
    async with stage.open_stage(made, tmp_path, flags={"freeze_jump": "100"}) as on:
        director = demo_director.Director(on, speed=0.0, length=2 * HOUR, stop=asyncio.Event())
        while made.now < NOW + HOUR:
            await director.step()
    kinds = [(one.kind, one.text.partition(":")[0]) for one in director.look().feed]
    assert kinds.index(("notice", "ml/llm")) < kinds.index(("lapse", "ml/llm"))


def test_hours_that_the_books_count_of_sharing_are_not_those_that_were_not_asked_for() -> None:
    """The Cost page has another figure, which is said beside this one."""
    shared = demo_report.DayShared(by_way={"on 1/8 by MPS": 2}, spared_gpu_hours=55.9, taken_back=())
    line = cost.SavingLine(
        type="sharing", baseline=9.0, actual=4.0, saved=5.0, gpu_hours=38.3, realised_gpu_hours=1.0, method="m",
    )
    nothing: Any = None
    books = demo_books.DayBooks(
        report=nothing, classes=nothing, budgets=nothing, given_back={}, counted={},
        savings=cost.CostSavingsPage(
            window=nothing, as_of="", currency="USD", lines=(line,), baseline=9.0, actual=4.0, saved=5.0,
            freed_gpu_hours=0.0, dry_run_gpu_hours=0.0, dry_run_worth=0.0, roi=nothing,
        ),
    )
    asked, booked = demo_report._tell_shared(shared, books)
    assert asked.endswith("(2 on 1/8 by MPS): they held 55.9 GPU-hours less than they asked for")
    assert booked.startswith("of sharing the books, and the Cost page, count 38.3 GPU-hours as freed: another figure")
    assert len(list(demo_report._tell_shared(shared, None))) == 1
