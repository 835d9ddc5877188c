"""How long `--help` takes, against the bare interpreter: the best of 15, wall clock, in turn."""

import pathlib
import subprocess
import sys
import time

from benchmarks import figures

BIN = pathlib.Path(sys.executable).parent
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "gpu-pruner --help": [str(BIN / "gpu-pruner"), "--help"],
    "fallow --help": [str(BIN / "fallow"), "--help"],
}
ROUNDS = 15


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
