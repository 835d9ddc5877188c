"""`fallow backtest`, `fallow tune` and the pictures they draw."""

from __future__ import annotations

import gzip
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from fallow.doors.cli import backtest, main, plot, tune
from fallow.model import price_book
from fallow.model.policies import idle_crd
from fallow.sim import backtest as running
from fallow.sim import tuning

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
    assert [result["name"] for result in results] == ["30m", "1h", "polite"]
    assert results[0]["total"]["reclaimedGpuHours"] >= results[1]["total"]["reclaimedGpuHours"] > 0
    assert [result["notices"] > 0 for result in results] == [False, False, True]
    assert set(results[0]["byClass"]) <= {"inference", "notebook", "training", "batch"}


@pytest.mark.parametrize("words", [
    ("backtest", "--hours", "nan"), ("backtest", "--seed", "-1"), ("backtest", "--trace", ""),
    ("tune", "--accept-regrets", "nan"), ("tune", "--resume-cost", "nan"), ("tune", "--seed", "-1"),
    ("demo", "--hours", "nan"), ("demo", "--speed", "inf"), ("demo", "--seed", "-1"), ("demo", "--trace", ""),
    ("pack", "compare", "--trace", ""),
], ids=" ".join)
def test_what_is_no_number_or_no_name_is_refused_in_a_sentence(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert f"Invalid value for '{words[-2]}': " in done.output


def find_keys(value: object) -> Iterator[str]:
    match value:
        case dict():
            yield from value
            yield from (key for each in value.values() for key in find_keys(each))
        case list():
            yield from (key for each in value for key in find_keys(each))


@pytest.mark.parametrize("verb", ["backtest", "tune"])
def test_machines_are_spoken_to_in_camel_case_only(verb: str) -> None:
    keys = set(find_keys(json.loads(run(verb, *SMALL, "-o", "json").output)))
    assert keys
    assert not {key for key in keys if "_" in key}


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
    ("{metadata: {name: a}, spec: {thresholds: {activity: '0.005'}}}",
     "p.yaml cannot be tried: rule a counts activity from 0.5 %: a backtest knows whole percents only"),
], ids=["bad-window", "no-name", "not-yaml", "words", "empty", "half-percent"])
def test_a_file_that_holds_no_policy_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    done = run("backtest", *SMALL, "--policy", str(file))
    assert done.exit_code == 2
    assert why in done.output


@pytest.mark.parametrize("verb", ["backtest", "tune"])
def test_a_prometheus_that_does_not_answer_is_said_with_what_helps(verb: str) -> None:
    done = run(verb, "--prometheus-url", "http://127.0.0.1:1")
    assert done.exit_code == 1
    assert "What helps: check --prometheus-url (PROMETHEUS_URL); from outside of the cluster: " in done.output


def test_prices_are_told_or_refused() -> None:
    assert price_book.find_by_model("NVIDIA H100 PCIe", backtest.read_prices(("H100-80GB-HBM3=2.5",))) == Decimal("2.5")
    for text in ("H100", "H100=", "=3", "H100=-1", "H100=NaN", "H100=much"):
        with pytest.raises(click.UsageError, match="is not MODEL=DOLLARS"):
            backtest.read_prices((text,))


@pytest.mark.parametrize("verb", ["backtest", "tune"])
def test_a_price_that_nobody_pays_is_refused_or_said(verb: str) -> None:
    has = "this past has A100-40GB, A100-80GB, V100-16GB"
    done = run(verb, *SMALL, "--price", "FOO=3")
    assert done.exit_code == 2
    assert f"--price: no GPU model is known as FOO; {has}" in done.output
    told = run("backtest", *SMALL, "--price", "NVIDIA-H100-NVL=3", "-o", "json")
    assert told.exit_code == 0, told.output
    assert f"the price of H100-94GB is not used: {has}" in json.loads(told.output)["notes"]


def test_a_given_price_is_what_it_costs() -> None:
    sums = [
        json.loads(run("backtest", *SMALL, "-o", "json", *words).output)["results"][0]["total"]
        for words in ([], ["--price", f"NVIDIA-A100-SXM4-40GB={2 * price_book.LIST['A100-40GB']}"])
    ]
    assert sums[0]["reclaimedGpuHours"] == sums[1]["reclaimedGpuHours"]
    assert Decimal(sums[1]["money"]) > Decimal(sums[0]["money"]) > 0


@pytest.mark.parametrize("words", [
    ["-w", "soon"], ["-w", "30"], ["-w", "0m"], ["-w", "-5m"], ["-w", "90d"], ["--nodes", "0"], ["--trace", __file__],
    ["--interval", "0"], ["--interval", "0s"], ["--interval", "1ns"], ["--interval", "9d"],
], ids=" ".join)
def test_bad_words_are_usage_errors(words: list[str]) -> None:
    done = run("backtest", *words)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert "Error: " in done.output


# ---- tune ------------------------------------------------------------------------------------------------------------

SOME = ["--nodes", "5", "--hours", "10"]


@pytest.fixture(scope="module")
def tuned() -> Any:
    done = run("tune", *SOME, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_a_window_has_the_same_figures_in_tune_and_in_backtest(tuned: Any) -> None:
    windows = [each for each in tuned["windows"] if each["window"] in (1800.0, 5400.0)]
    results = json.loads(run("backtest", *SOME, "-w", "30m", "-w", "90m", "-o", "json").output)["results"]
    for window, result in zip(windows, results, strict=True):
        same = set(window) & set(result["total"])
        assert same >= {"reclaimedGpuHours", "idleGpuHours", "money", "pauses", "regrets", "resumes", "waited"}
        assert {key: window[key] for key in same} == {key: result["total"][key] for key in same}
        assert window["costGpuHours"] == result["total"]["idleGpuHours"] + result["total"]["resumes"] / 2


def test_regrets_bound_what_is_recommended(tuned: Any) -> None:
    best, accepted = tuned["recommended"], tuned["acceptedRegrets"]
    assert (accepted, best["regrets"] / best["pauses"] <= accepted) == (0.1, True)
    cheaper = [one for one in tuned["windows"] if tuned["asked"]["all"]["window"] <= one["window"] < best["window"]]
    assert all(one["regrets"] / one["pauses"] > accepted for one in cheaper)


def test_tune_marks_today_and_recommends(tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    done = run("tune", *SOME, "--today", "25m", "--svg", str(picture))
    assert done.exit_code == 0, done.output
    for text in (
        "GPU-hours reclaimed", "T  today, 25m: ", "R  recommended, ", "Recommended: ", "10% are accepted",
        "All figures are over 10h, each window as `fallow backtest -w` plays it.", "too many",
    ):
        assert text in done.output
    assert f"written: {picture}" in done.output
    drawn = picture.read_text()
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert all(colour in drawn for colour in ("white", "#2563eb", "#dc2626"))  # paper, curve, marks


def test_too_little_history_recommends_nothing_and_says_what_is_needed() -> None:
    words = ["--nodes", "1", "--hours", "1"]
    done = run("tune", *words)
    assert done.exit_code == 0, done.output
    assert "No window is recommended: there are " in done.output
    assert "R  recommended" not in done.output
    refused = run("tune", *words, "-o", "policy")
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert "no window is recommended, so there is no policy: there are " in refused.stderr


@pytest.mark.parametrize(("counts", "why"), [
    ([(10, 4), (5, 1)], "none that was played has 10% of its pauses regretted or fewer; the fewest are 20%, at 1h"),
    ([(0, 0), (0, 0)], "no window that was played pauses anything"), ([(10, 4), (10, 1)], ""),
])
def test_what_is_always_regretted_is_not_recommended(counts: list[tuple[int, int]], why: str) -> None:
    played = [
        tuning.weigh(1800.0 * (1 + number), running.BacktestSums(pauses=pauses, regrets=regrets), 0.0)
        for number, (pauses, regrets) in enumerate(counts)
    ]
    found = tune.find_refusal(tuning.settle(1800.0, played, 0.1), played, 0.1)
    assert found.startswith(why)
    assert bool(found) is bool(why)


def test_the_recommendation_is_policies_that_a_backtest_takes(tmp_path: Path, tuned: Any) -> None:
    done = run("tune", *SOME, "-o", "policy")
    assert done.exit_code == 0, done.output
    policies = [idle_crd.parse(each) for each in yaml.safe_load_all(done.stdout)]
    assert [policy.invalid for policy in policies] == [()] * len(policies)
    assert (policies[0].name, policies[0].rule.gone_idle) == ("tuned", tuned["recommended"]["window"])
    others = {name for name, one in tuned["byClass"].items() if not one or one["window"] != policies[0].rule.gone_idle}
    assert {name for policy in policies[1:] for name in policy.classes} == others
    assert all(policy.priority > policies[0].priority for policy in policies[1:])
    file = tmp_path / "tuned.yaml"
    file.write_text(done.stdout)
    played = run("backtest", *SOME, "--policy", str(file), "-o", "json")
    assert played.exit_code == 0, played.output
    (result,) = json.loads(played.output)["results"]
    assert result["notices"] > 0


def test_a_class_that_no_window_suits_is_only_reported(tuned: Any) -> None:
    for advice in (tuned["asked"]["all"], *tuned["asked"]["byClass"].values(), *tuned["asked"]["byWorkload"].values()):
        assert "point" not in advice, "a figure that is shown was played"
        zeros = dict.fromkeys(("burnedGpuHours", "savedGpuHours", "costGpuHours"), 0.0)
        advice["point"] = {"window": 0.0, "pauses": 0, "interruptions": 0, "regrets": 0, **zeros}
    found = msgspec.convert(tuned, tune.Tuned, strict=False)
    refused = msgspec.structs.replace(found, by_class={"batch": None})
    general, batch = (idle_crd.parse(each) for each in tune.make_policies(refused))
    assert (general.rule.action.type, batch.rule.action.type) == ("pause", "report")
    assert (batch.classes, batch.invalid) == ({"batch"}, ())


def test_tune_speaks_to_machines() -> None:
    done = run("tune", *SMALL, "--resume-cost", "60", "-o", "yaml")
    data = yaml.safe_load(done.output)
    assert data["resumeCost"] == 3600.0
    assert [each["window"] for each in data["windows"]] == list(tuning.WINDOWS)
    assert not [key for key in _keys(data) if "_" in key]


def _keys(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        yield from (key for key in data if "/" not in key)
    for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _keys(each)


@pytest.mark.parametrize("verb", ["backtest", "tune"])
@pytest.mark.parametrize("text", ["no-such-file.csv", "gentd26", "openb-cpu100", "."])
def test_a_trace_that_is_not_there_has_an_exit_code_of_its_own(tmp_path: Path, verb: str, text: str) -> None:
    done = run(verb, "--trace", text, FALLOW_TRACES=str(tmp_path / "none"))
    assert done.exit_code == 3
    assert f"--trace: no trace {text}: it is no file, and the names are sample, sample-pods; " in done.output
    assert "there is no folder" in done.output


@pytest.mark.parametrize("verb", ["backtest", "tune"])
def test_a_trace_without_a_folder_says_what_to_set(verb: str) -> None:
    done = run(verb, "--trace", "gentd26", FALLOW_TRACES="")
    assert done.exit_code == 3
    assert "the names are sample, sample-pods; set FALLOW_TRACES to a folder with more (docs/traces.md)" in done.output


@pytest.mark.parametrize("words", [
    ["backtest"], ["tune"], ["demo"], ["pack", "simulate"], ["pack", "plan"], ["pack", "defrag"], ["pack", "compare"],
], ids=" ".join)
def test_every_command_lists_the_same_traces(words: list[str]) -> None:
    done = run(*words, "--trace", "help", FALLOW_TRACES="")
    assert (done.exit_code, done.output) == (0, run("trace", "list", FALLOW_TRACES="").output)
    assert "sample       what 30 GPUs did in a day, made up; comes with fallow" in done.output


@pytest.mark.parametrize(("content", "why"), [
    (gzip.compress(b"pod,timestamp,duty_percent\n" + b"a,1,1\n" * 4000)[:60], "cannot be read: Compressed file"),
    (b"no gzip at all", "cannot be read: Not a gzipped file"),
    (gzip.compress(b"pod,timestamp\na,1\n"), "is of no kind that is known: its first line must name pod, timestamp"),
    (gzip.compress("pod,timestamp,duty_percent\nä,1,1\n".encode("latin-1")), "is no UTF-8 text"),
    (gzip.compress("pod,timestamp,duty_percent\na,1,1\n".encode("utf-16")), "is no UTF-8 text"),
    (b"", "is of no kind that is known"),
], ids=["cut", "no gzip", "no column", "latin-1", "utf-16", "empty"])
@pytest.mark.parametrize("verb", ["backtest", "tune", "pack"])
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path, content: bytes, why: str, verb: str) -> None:
    file = tmp_path / "odd.csv.gz"
    file.write_bytes(content)
    done = run(verb, *(["simulate"] if verb == "pack" else []), "--trace", str(file))
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert "Error: --trace: the trace " in done.output
    assert why in done.output or (verb == "pack" and "tells of no pods that ask for GPUs" in done.output)


def test_damage_within_a_gzipped_file_is_said(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(("pod,timestamp,duty_percent\n" + "a,1,1\n" * 200_000).encode(), 1))
    whole[200:260] = b"\xff" * 60
    (tmp_path / "hurt.csv.gz").write_bytes(whole)
    done = run("backtest", "--trace", str(tmp_path / "hurt.csv.gz"))
    assert done.exit_code == 2
    assert "the trace hurt.csv.gz cannot be read: " in done.output


def test_a_trace_is_found_by_its_name_and_says_what_was_left_out(tmp_path: Path) -> None:
    name = "gentd26"
    rows = (f"p{pod},{60 * step},{step // 90 % 2 * 40}" for pod in "ab" for step in range(720))
    lines = ["pod,timestamp,duty_percent", *rows, "p,x,1"]
    (tmp_path / "duty.csv").write_text("\n".join(lines))
    for verb, sentence in (("backtest", "30m"), ("tune", "ecommended: ")):
        done = run(verb, "--trace", name, FALLOW_TRACES=str(tmp_path))
        assert done.exit_code == 0, done.output
        assert "2 pods over 12h from duty.csv: 1441 rows; 1 timestamp is no whole number" in done.output
        assert "left out, for example: line 1442: timestamp is no whole number" in done.output
        assert sentence in done.output
    notes = json.loads(run("backtest", "--trace", name, "-o", "json", FALLOW_TRACES=str(tmp_path)).output)["notes"]
    assert notes[0].startswith("real: who was there")


@pytest.mark.parametrize(("where", "why"), [
    ("no/such/folder/curve.svg", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte"),
    (f"{__file__}/curve.svg", "Not a directory"),
])
@pytest.mark.parametrize("words", [("tune", "--nodes", "1", "--hours", "1"), ("pack", "simulate")])
def test_a_picture_that_cannot_be_written_is_said_before_anything_is_worked_out(
    words: tuple[str, ...], where: str, why: str
) -> None:
    done = run(*words, "--svg", where)
    assert done.exit_code == 2
    assert f"cannot be written: {why}" in done.output
    assert not done.stdout


@pytest.mark.parametrize(("where", "why"), [("/dev/full", "No space left on device")])
def test_a_picture_that_could_not_be_written_is_said_and_nothing_else_is_lost(where: str, why: str) -> None:
    done = run("tune", "--nodes", "1", "--hours", "1", "--svg", where)
    assert done.exit_code == 2
    assert why in done.output
    assert "cannot be written" in done.output
    assert "WINDOW" in done.stdout


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
