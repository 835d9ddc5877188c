"""`fallow demo` as a process of its own: short days from start to report, well and with every fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fallow.sim.world import world


def play(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A day in a process of its own; `folder` is where the traces are."""
    command = [
        sys.executable, "-c", "from fallow.doors.cli.main import fallow; fallow()", "demo", "--nodes", "2", "--port",
        "0", *words,
    ]
    environment = {**os.environ, "FALLOW_TRACES": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_a_short_day_ends_by_itself_with_its_report(tmp_path: Path) -> None:
    done = play(tmp_path, "--hours", "3")
    assert done.returncode == 0, done.stderr
    why = f"there is no GenTD26 trace in {tmp_path} (FALLOW_TRACES)"
    assert done.stdout.startswith(f"a made-up day (seed 7); all lives are made up: {why}\n")
    assert [
        line[:5] for line in done.stdout.splitlines() if re.match(r"\d\d:\d\d  ", line)
    ] == ["01:00", "02:00", "03:00"]
    for text in (
        "The day of 2026-11-16", "GPU-hours asked for", "pauses regretted", "every pause was checked against the truth"
    ):
        assert text in done.stdout
    assert done.stderr == ""


def test_with_real_duty_cycles_the_day_says_so_and_is_the_same_again(tmp_path: Path) -> None:
    lines = [
        "pod,timestamp,duty_percent",
        *(f"p{pod},{57 * step},{step // 50 % 2 * 40}" for pod in range(3) for step in range(1440)),
    ]
    (tmp_path / "duty.csv").write_text("\n".join(lines))
    first, second = (play(tmp_path, "--hours", "3") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(
        "a made-up day (seed 7) in which services and notebooks do what real GPUs did: 3 pods of duty.csv, 4320 rows\n"
    )
    hours = [[line for line in done.stdout.splitlines() if re.match(r"\d\d:\d\d  ", line)] for done in (first, second)]
    assert hours[0] == hours[1] != []


@pytest.mark.parametrize("fault", world.Fault, ids=str)
def test_each_fault_comes_in_the_day_and_harms_nobody(tmp_path: Path, fault: world.Fault) -> None:
    done = play(tmp_path, "--hours", "5", "--faults", str(fault))
    assert done.returncode == 0, done.stdout + done.stderr
    struck = [line[:5] for line in done.stdout.splitlines() if line.endswith(f"; fault {fault}")]
    assert struck == ["01:00"]  # from a fifth of the day on, for a twentieth of it
    assert ("without a decision" in done.stdout) == (fault is world.Fault.clock_jump)
    assert "quiet, measured, announced, and the way back exact" in done.stdout
