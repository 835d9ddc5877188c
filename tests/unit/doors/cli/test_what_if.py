"""`fallow backtest`, `fallow tune` and the pictures they draw."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from decimal import Decimal
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from fallow.doors.cli import backtest, main, plot

SMALL = ["--nodes", "3", "--hours", "6"]
POLICY = """
apiVersion: gpuautoscaler.io/v1alpha1
kind: IdlePolicy
metadata: {name: told}
spec:
  windows: {goneIdle: 45m}
  notice: {grace: 15m, channels: [{name: event, type: event}]}
  action: {type: pause}
"""


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main.fallow, list(words), env={"PROMETHEUS_URL": "", **variables})


def test_windows_and_policies_stand_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "polite.yaml"
    file.write_text(POLICY)
    done = run("backtest", *SMALL, "-w", "30m", "-w", "1h", "--policy", str(file), "-o", "json")
    assert done.exit_code == 0, done.output
    results = json.loads(done.output)["results"]
    assert [result["name"] for result in results] == ["idle for 30m", "idle for 1h", "polite"]
    assert results[0]["total"]["reclaimedGpuHours"] >= results[1]["total"]["reclaimedGpuHours"] > 0
    assert [result["notices"] > 0 for result in results] == [False, False, True]
    assert set(results[0]["byClass"]) <= {"inference", "notebook", "training", "batch"}


def test_one_policy_alone_is_told_by_class_and_namespace() -> None:
    done = run("backtest", *SMALL)
    assert done.exit_code == 0, done.output
    assert "a made-up past of 6h on 3 nodes" in done.output
    assert "CLASS" in done.output
    assert "team-" in done.output


@pytest.mark.parametrize(("text", "why"), [
    ("{metadata: {name: a}, spec: {windows: {goneIdle: soon}}}", "goneIdle"),
    ("{metadata: {}, spec: {}}", "no metadata.name"), ("- [", "no YAML"),
    ("just words", "spec: is missing"), ("", "holds no IdlePolicy"),
], ids=["bad-window", "no-name", "not-yaml", "words", "empty"])
def test_a_file_that_holds_no_policy_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    done = run("backtest", *SMALL, "--policy", str(file))
    assert done.exit_code == 2
    assert why in done.output


def test_prices_are_told_or_refused() -> None:
    assert backtest.read_prices(("H100-80GB-HBM3=2.5",))["H100-80GB-HBM3"] == Decimal("2.5")
    for text in ("H100", "H100=", "=3", "H100=-1", "H100=NaN", "H100=much"):
        with pytest.raises(click.UsageError, match="is not MODEL=DOLLARS"):
            backtest.read_prices((text,))


@pytest.mark.parametrize("words", [["-w", "soon"], ["-w", "30"], ["--nodes", "0"], ["--trace", __file__]], ids=" ".join)
def test_bad_words_are_usage_errors(words: list[str]) -> None:
    assert run("backtest", *words).exit_code == 2


def test_tune_marks_today_and_recommends(tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    done = run("tune", *SMALL, "--today", "20m", "--svg", str(picture))
    assert done.exit_code == 0, done.output
    recommended = "Recommended for a resume that costs 30 GPU-minutes"
    for text in ("GPU-hours saved a day", "T  today, 20m", "R  recommended, ", recommended):
        assert text in done.output
    assert f"written: {picture}" in done.output
    drawn = picture.read_text()
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert all(colour in drawn for colour in ("white", "#2563eb", "#dc2626"))  # paper, curve, marks


def test_tune_speaks_to_machines() -> None:
    done = run("tune", *SMALL, "--resume-cost", "60", "-o", "yaml")
    data = yaml.safe_load(done.output)
    assert data["resumeCostSeconds"] == 3600.0
    assert data["advice"]["all"]["window"] >= 300
    costs = {point["window"]: point["costGpuHours"] for point in data["curve"]}
    assert data["advice"]["all"]["point"]["costGpuHours"] <= 1.2 * min(costs.values())


@pytest.mark.parametrize("verb", ["backtest", "tune"])
@pytest.mark.parametrize("text", ["no-such-file.csv", "gentd26", "openb_pod_list_cpu100"])
def test_a_trace_that_is_not_there_has_an_exit_code_of_its_own(tmp_path: Path, verb: str, text: str) -> None:
    done = run(verb, "--trace", text, FALLOW_TRACES=str(tmp_path / "none"))
    assert done.exit_code == 3
    assert f"--trace: no trace {text}: it is no file, and there is no folder" in done.output


@pytest.mark.parametrize("verb", ["backtest", "tune"])
def test_a_trace_without_a_folder_says_what_to_set(verb: str) -> None:
    done = run(verb, "--trace", "gentd26", FALLOW_TRACES="")
    assert done.exit_code == 3
    assert "--trace: no trace gentd26: it is no file; set FALLOW_TRACES to the folder of the traces" in done.output


@pytest.mark.parametrize("name", ["duty", "gentd26"])
def test_a_trace_is_found_by_its_name_and_says_what_was_left_out(tmp_path: Path, name: str) -> None:
    rows = (f"p{pod},{60 * step},{step // 90 % 2 * 40}" for pod in "ab" for step in range(720))
    lines = ["pod,timestamp,duty_percent", *rows, "p,x,1"]
    (tmp_path / "duty.csv").write_text("\n".join(lines))
    for verb, sentence in (("backtest", "idle for 30m"), ("tune", "Recommended for a resume")):
        done = run(verb, "--trace", name, FALLOW_TRACES=str(tmp_path))
        assert done.exit_code == 0, done.output
        assert "2 pods over 12h from duty.csv: 1441 rows; 1 timestamp is no whole number" in done.output
        assert "left out, for example: line 1442: timestamp is no whole number" in done.output
        assert sentence in done.output
    notes = json.loads(run("backtest", "--trace", name, "-o", "json", FALLOW_TRACES=str(tmp_path)).output)["notes"]
    assert notes[0].startswith("real: who was there")


def test_a_picture_that_cannot_be_written_is_said() -> None:
    done = run("tune", *SMALL, "--svg", "no/such/folder/curve.svg")
    assert done.exit_code == 2
    assert "cannot be written" in done.output


# ---- pictures -------------------------------------------------------------------------------------------------------

CHART = plot.Chart(
    "title <b>", "across & more", "up", (plot.ChartCurve("one", ((0.0, 0.0), (5.0, 40.0), (10.0, 50.0))),),
    (plot.ChartMark("T", "today \x1b", (5.0, 40.0)),),
)


def test_the_terminal_plot_has_axes_curve_and_marks() -> None:
    lines = plot.draw_text(CHART, columns=40, rows=10).splitlines()
    assert lines[0] == "title <b>"
    assert any("T" in line and max(line) >= "⠀" for line in lines[2:12])
    assert "10" in lines[-3]
    assert max(map(len, lines[2:12])) <= 40 + 6


def test_the_svg_is_well_formed_and_escaped() -> None:
    drawn = plot.draw_svg(CHART)
    root = ET.fromstring(drawn)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "title <b>" in texts
    assert "T  today \N{REPLACEMENT CHARACTER}" in texts
    assert "<script" not in drawn


def test_the_picture_holds_every_mark_and_the_names_of_points_that_are_apart() -> None:
    names = ("none", "near", "far")
    curve = plot.ChartCurve("c", ((0.0, 0.0), (0.1, 0.5), (10.0, 50.0)), names)
    named = plot.Chart("t", "x", "y", (curve,), CHART.marks)
    drawn = plot.draw_svg(named)
    assert [name in drawn for name in names] == [True, False, True]
    red = [plot.draw_svg(chart).count("#dc2626") for chart in (plot.Chart("t", "x", "y", named.curves), named)]
    assert red == [0, 3]  # the circle, its letter, and the line of the legend


def test_what_is_not_finite_is_not_drawn() -> None:
    odd = plot.Chart("t", "x", "y", (plot.ChartCurve("c", ((math.nan, 1.0), (1.0, math.inf), (2.0, 3.0))),))
    assert "nan" not in plot.draw_svg(odd)
    with pytest.raises(plot.CannotDraw, match="nothing to draw"):
        plot.draw_text(plot.Chart("t", "x", "y", (plot.ChartCurve("c", ((math.nan, 1.0),)),)))
