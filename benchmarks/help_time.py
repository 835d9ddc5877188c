"""How long `--help` takes, of every command: against the bare interpreter for the two that people start, and by the
clock for all verbs. The best of 15 (5 for verbs), wall clock, in turn."""

import pathlib
import subprocess
import sys
import time

from benchmarks import figures
from fallow.doors.cli import main as cli

BIN = pathlib.Path(sys.executable).parent
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "gpu-pruner --help": [str(BIN / "gpu-pruner"), "--help"],
    "fallow --help": [str(BIN / "fallow"), "--help"],
}
ROUNDS, VERB_ROUNDS, VERB_BAR = 15, 5, 0.25


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            taken[name].append(_seconds(command))
    best = {name: min(values) for name, values in taken.items()}
    bare = best.pop("python -c pass")
    for name, seconds in best.items():
        ratio = seconds / bare
        figures.show(
            name, f"{seconds * 1000:.0f} ms, {ratio:.1f} times `python -c pass` ({bare * 1000:.0f} ms)", "8 times",
            ratio <= 8,
        )
    for verb in cli.VERBS:
        seconds = min(_seconds([str(BIN / "fallow"), verb, "--help"]) for _ in range(VERB_ROUNDS))
        figures.show(f"fallow {verb} --help", f"{seconds:.2f} s", f"{VERB_BAR} s", seconds <= VERB_BAR)
