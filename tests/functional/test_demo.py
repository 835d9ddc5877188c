"""`fallow demo` as a process of its own: short days from start to report, well and with every fault; and what our own
commands say of it while it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fallow.sim.world import nouns

PROGRAM = [sys.executable, "-c", "from fallow.doors.cli.main import fallow; fallow()"]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A day in a process of its own; `folder` is where the traces are."""
    environment = {**os.environ, "FALLOW_TRACES": str(folder)}
    return subprocess.Popen(
        [*PROGRAM, "demo", "--nodes", "2", "--port", "0", "--dashboard-port", "0", *words], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment,
    )


def play(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    playing = start(folder, *words)
    out, err = playing.communicate(timeout=300)
    return subprocess.CompletedProcess(playing.args, playing.returncode, out, err)


def hours_of(out: str) -> list[str]:
    """The lines of the hours without the clock, which is that of the day on which they are played."""
    return [line[7:] for line in out.splitlines() if re.match(r"\d\d:\d\d  \d+ busy", line)]


def test_a_short_day_ends_by_itself_with_its_report(tmp_path: Path) -> None:
    began = time.time()
    done = play(tmp_path, "--hours", "3")
    assert done.returncode == 0, done.stderr
    why = f"there is no GenTD26 trace in {tmp_path} (FALLOW_TRACES)"
    assert done.stdout.startswith(f"a made-up day (seed 7); all lives are made up: {why}\n")
    assert len(hours_of(done.stdout)) == 3
    ends = re.search(r"The day until (\S+)", done.stdout)
    assert ends is not None
    told = time.mktime(time.strptime(ends[1], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert began - 60 <= told <= time.time(), "it ended when it began to be played, to the minute"
    for text in ("GPU-hours for $", "regretted, which is taken back", "every pause of the controller was checked"):
        assert text in done.stdout
    assert done.stderr == ""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The tenth node shares its GPUs by MPS, one of several that are alike is cut anew, seven are rented."""
    played = play(tmp_path_factory.mktemp("traces"), "--hours", "6", "--nodes", "16")
    assert played.returncode == 0, played.stdout + played.stderr
    return played


def test_who_asks_for_a_whole_gpu_runs_on_a_part_and_who_suffers_is_given_a_whole_one_again(
    done: subprocess.CompletedProcess[str],
) -> None:
    told = re.search(
        r"asked for whole GPUs ran on parts of them \(.*on 1/4 by time-slicing.*on 1/8 by MPS.*held ([\d.]+) GPU-hours "
        "less than they asked for",
        done.stdout,
    )
    assert told is not None, done.stdout
    assert float(told[1]) > 0
    assert "sharing hurt team-vision/video-upscale, whose next pods have whole GPUs" in done.stdout
    assert re.search(r"node a100-\d+ was cut anew in \d+m: 56 mig-1g.10gb", done.stdout), done.stdout
    assert "style-tune-0 waited and is on l40s-01: one pod, team-vision/thumb-render-0, made room" in done.stdout


def test_nodes_come_and_go_and_the_day_stands_beside_one_with_pausing_alone(
    done: subprocess.CompletedProcess[str],
) -> None:
    """A burst adds nodes, of the next pool where one is sold out; one is taken back; those that nobody needs go. A
    quarter of a day with the whole burst in it need not be cheaper; it says what it was."""
    counted = re.search(
        r"nodes: (\d+) added, (\d+) released, 1 taken back by the cloud.*(once|times) a pool was sold out", done.stdout
    )
    assert counted is not None, done.stdout
    assert min(int(counted[1]), int(counted[2])) >= 2
    told = re.search(
        r"with scaling the day cost \$(\S+); with pausing alone .* which is \$(\S+) at .*%\) (less|more), because",
        done.stdout,
    )
    assert told is not None, done.stdout
    with_scaling, alone = (float(text.replace(",", "")) for text in told.groups()[:2])
    assert (with_scaling <= alone) == (told[3] == "less")


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
    assert hours_of(first.stdout) == hours_of(second.stdout) != []


@pytest.mark.parametrize("fault", nouns.Fault, ids=str)
def test_each_fault_comes_in_the_day_and_harms_nobody(tmp_path: Path, fault: nouns.Fault) -> None:
    done = play(tmp_path, "--hours", "5", "--faults", str(fault))
    assert done.returncode == 0, done.stdout + done.stderr
    struck = [line.endswith(f"; fault {fault}") for line in hours_of(done.stdout)]
    assert struck == [True, False, False, False, False]  # from a fifth of the day on, for a twentieth of it
    assert ("without a decision" in done.stdout) == (fault is nouns.Fault.clock_jump)
    assert "quiet, measured, announced, and the way back exact" in done.stdout


# ---- looking in ------------------------------------------------------------------------------------------------------


class LookingIn:
    """Somebody in another terminal, who types what the demo told them to."""

    def __init__(self, playing: subprocess.Popen[str], heading: str) -> None:
        self.playing = playing
        assert playing.stdout is not None
        self.heard: list[str] = []
        for line in playing.stdout:
            self.heard.append(line)
            if line.startswith("  fallow status") and any(heading in each for each in self.heard):
                break
        exports = re.findall(r"export (KUBECONFIG|PROMETHEUS_URL)=(\S+)", "".join(self.heard))
        self.environment = {**os.environ, **dict(exports)}

    def type(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*PROGRAM, *words], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def find(self, verdict: str) -> tuple[str, str]:
        """KIND/NAME and namespace of a workload of which that is said."""
        found = json.loads(self.type("idle", "--all", "-o", "json"))
        one = next(each for each in found if each["verdict"] == verdict)
        return f"{one['kind']}/{one['name']}", one["namespace"]

    def hear(self, *words: str) -> None:
        """Waits for a line with these words."""
        assert self.playing.stdout is not None
        next(line for line in self.playing.stdout if all(word in line for word in words))

    def end(self, number: int) -> tuple[int, str]:
        self.playing.send_signal(number)
        out, err = self.playing.communicate(timeout=60)
        assert err == ""
        return self.playing.returncode, "".join(self.heard) + out


@pytest.fixture
def staying(tmp_path: Path) -> Iterator[LookingIn]:
    playing = start(tmp_path, "--hours", "2", "--stay")
    yield LookingIn(playing, "The cluster goes on in real time")
    playing.kill()
    playing.communicate()


def test_our_own_commands_work_on_the_cluster_that_stays_until_sigterm(staying: LookingIn) -> None:
    told = staying.type("status")
    assert re.search(r"HELD +\d+ by \d+ pods?", told)
    (link,) = set(re.findall(r"export FALLOW_DAEMON_URL=(\S+)", "".join(staying.heard)))
    assert "it looks every 30s" in staying.type("status", "--daemon-url", link)
    assert "UTIL" in staying.type("status", "--pods")  # as gpu-autoscaler status, which asks Prometheus itself
    target, namespace = staying.find("idle")
    assert target.split("/")[1] in staying.type("why", target, "-n", namespace)
    staying.type("ack", target, "-n", namespace, "--hours", "1", "--reason", "a test")
    staying.hear(f"{namespace}/{target.split('/')[1]}: user:", "keeps it until")
    assert "Acknowledged" in staying.type("why", target, "-n", namespace)
    assert "from Prometheus" in staying.type("backtest", "--hours", "168")
    assert "Together " in staying.type("optimize", "--min-waste-score", "0")
    assert "has confirmed it" in staying.type("freeze", "--for", "10m", "--reason", "a test")
    for asked in ([], ["--daemon-url", link]):  # the daemon has not looked again since
        assert re.search(r"FROZEN +until", staying.type("status", *asked))
    assert "has confirmed it" in staying.type("unfreeze")
    code, out = staying.end(signal.SIGTERM)
    assert code == 0, out
    assert "\N{REPLACEMENT CHARACTER}" not in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_it_while_a_large_cluster_is_made(tmp_path: Path, number: int, code: int) -> None:
    playing = start(tmp_path, "--nodes", "500", "--stay")
    try:
        assert playing.stdout is not None
        assert playing.stdout.readline().startswith("a made-up day")
        playing.send_signal(number)
        out, err = playing.communicate(timeout=60)
    finally:
        playing.kill()
    assert (playing.returncode, err) == (code, "")
    assert "while it plays" not in out


def test_a_pause_by_hand_is_nobodys_broken_promise(staying: LookingIn) -> None:
    target, namespace = staying.find("active")
    staying.type("pause", target, "-n", namespace, "--force", "--reason", "a test")
    staying.hear(f"{namespace}/{target.split('/')[1]} is stopped by hand, by user:", "not by the controller")
    code, out = staying.end(signal.SIGINT)
    assert code == 130, out
    assert out.endswith("ended by Ctrl-C: the pretend cluster is gone, and nothing else was touched\n")
    assert "broken" not in out


def test_a_look_works_while_the_day_plays(tmp_path: Path) -> None:
    """The day is behind the clock of who looks, and goes faster."""
    playing = start(tmp_path, "--hours", "12", "--speed", "400")
    try:
        looking = LookingIn(playing, "while it plays")
        assert playing.stdout is not None
        next(line for line in playing.stdout if re.match(r"\d\d:\d\d  \d+ busy", line))
        assert re.search(r"HELD +\d+ by \d+ pods?", looking.type("status"))
        assert json.loads(looking.type("idle", "--all", "-o", "json"))
        code, out = looking.end(signal.SIGTERM)
        assert code == 0, out
    finally:
        playing.kill()
        playing.communicate()
