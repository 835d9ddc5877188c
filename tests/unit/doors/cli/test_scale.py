"""`fallow scale backtest`: who could have foretold the demand, on the real trace and on made ones."""

import datetime
import io
import json
import os
import pathlib

import pytest
from click.testing import CliRunner, Result

from fallow.doors.cli import main, scale_simulate

HEADER = "vc,time,total_gpu,running_gpu,pending_gpu"


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main.fallow, ["scale", "backtest", *words], env=variables)


def write(path: pathlib.Path, *, days: int, cluster: str = "vc1") -> str:
    """Weekdays from 9 to 18 h 40 GPUs, else 4; a line an hour."""
    begin = datetime.datetime(2026, 1, 5)
    hours = [begin + datetime.timedelta(hours=number) for number in range(days * 24)]
    wanted = [40 if hour.weekday() < 5 and 9 <= hour.hour < 18 else 4 for hour in hours]
    rows = [f"{cluster},{hour:%Y-%m-%d %H:%M:%S},64,{gpus},0" for hour, gpus in zip(hours, wanted, strict=True)]
    path.write_text("\n".join([HEADER, *rows, ""]))
    return str(path)


@pytest.mark.accepts("scaling", 24)
def test_on_helios_the_chosen_guess_is_as_good_as_the_best() -> None:
    folder = os.environ.get("FALLOW_TRACES")
    if not folder:
        pytest.skip("FALLOW_TRACES names no folder of traces")
    done = run("--trace", "helios", "-o", "json", FALLOW_TRACES=folder)
    told = json.loads(done.output)["all"]
    assert told["chosen"] <= 0.275
    assert told["errors"] == pytest.approx(
        {"persistence": 0.267, "holt-winters": 0.293, "hour-of-week": 0.432}, abs=0.01
    )


@pytest.mark.accepts("scaling", 24)
def test_a_working_week_is_foretold_from_a_file(tmp_path: pathlib.Path) -> None:
    done = run("--trace", write(tmp_path / "weeks.csv", days=35), "-o", "json")
    told = json.loads(done.output)["clusters"][0]
    assert told["chosen"] <= 0.15
    assert told["errors"]["persistence"] > 1


def test_the_table_has_a_line_for_each_and_one_for_all(tmp_path: pathlib.Path) -> None:
    done = run("--trace", write(tmp_path / "weeks.csv", days=28))
    assert [line.split()[0] for line in done.output.splitlines()[:3]] == ["CLUSTER", "vc1", "all"]
    assert "who is not believed starts no node ahead of time" in " ".join(done.output.split())


@pytest.mark.parametrize(("words", "because"), [
    (["--vc", "nope"], "no virtual cluster of"), (["--after", "60"], "the past is 672 hours long"),
    (["--vc", "("], "--vc"), (["--horizon", "0"], "--horizon"),
], ids=["no-such-cluster", "too-short", "no-regex", "no-horizon"])
def test_what_cannot_be_answered_says_why(tmp_path: pathlib.Path, words: list[str], because: str) -> None:
    done = run("--trace", write(tmp_path / "weeks.csv", days=28), *words)
    assert done.exit_code == 2
    assert because in done.output


def test_minutes_that_are_missing_are_not_nought(tmp_path: pathlib.Path) -> None:
    """A night without a line: were it taken for an empty one, the error would be another."""
    path = tmp_path / "weeks.csv"
    write(path, days=35)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:600], *lines[606:], ""]))
    done = run("--trace", str(path), "-o", "json")
    assert json.loads(done.output)["clusters"][0]["chosen"] <= 0.15


# ---- simulate --------------------------------------------------------------------------------------------------------


def simulate(*words: str) -> Result:
    return CliRunner().invoke(main.fallow, ["scale", "simulate", *words])


def test_a_simulated_day_is_told_beside_the_rival_and_the_bound() -> None:
    done = simulate("--days", "0.5")
    lines = [line.split()[0] for line in done.output.splitlines()[:5]]
    assert lines == ["WHO", "fallow", "requests", "fallow,", "the"]
    told = json.loads(simulate("--days", "0.5", "-o", "json").output)["results"]
    assert all(each["ratio"] > 1 for each in told)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("faults", [False, True])
def test_how_far_it_is_stands_on_a_terminal(monkeypatch: pytest.MonkeyPatch, faults: bool) -> None:
    monkeypatch.setattr("sys.stderr", told := Terminal())
    scale_simulate.simulate("weekly", 0.5, 7, faults, "json")
    assert "playing 0.5 days" in told.getvalue()
    assert "100%" in told.getvalue()


@pytest.mark.parametrize(("words", "code", "because"), [
    (["--trace", "nothing-like-it"], 3, "no trace"), (["--days", "0"], 2, "--days"),
    (["--trace", "sample"], 2, "tells of no pods"),
], ids=["no-such-trace", "no-time", "no-demand"])
def test_what_cannot_be_simulated_says_why(words: list[str], code: int, because: str) -> None:
    done = simulate(*words)
    assert done.exit_code == code
    assert because in done.output


def test_mixes_and_traces_are_listed() -> None:
    assert {"weekly", "sweeps", "sample-pods"} <= set(simulate("--trace", "help").output.split())


def test_a_month_of_nobody_names_what_can_be_played() -> None:
    done = CliRunner().invoke(main.fallow, ["scale", "simulate", "--trace", "nosuch"])
    assert (done.exit_code, "made up are weekly, sweeps" in done.output) == (3, True), done.output
