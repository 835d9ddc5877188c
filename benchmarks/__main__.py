"""`make bench`: every figure we claim, measured now, beside what it is compared to, with the machine's load.

`python -m benchmarks NAME [PART...]...` runs only these, and of one that has parts only those named behind it. Nothing
here is a test: a figure that is missed is printed as missed.
"""

import os
import platform
import subprocess
import sys

BENCHMARKS = (
    "help_time", "commands", "commands_live", "listing", "plan", "cycle", "questions", "one_shot", "scrape", "backtest",
    "exporter", "packing", "departures", "api", "live", "pages", "books", "cost", "ledger", "webhook", "extender",
    "extender_live", "node_stories", "scaling", "spot", "sizing",
)
PARTS = {"extender_live": ("burst", "replay"), "spot": ("watch", "notice")}


def read(words: list[str]) -> list[list[str]]:
    """Each benchmark that is wanted, with the parts of it behind its name. Raises ValueError, with the sentence."""
    runs: list[list[str]] = []
    for word in words:
        if word in BENCHMARKS:
            runs.append([word])
        elif runs and word in PARTS.get(runs[-1][0], ()):
            runs[-1].append(word)
        else:
            parts = "; ".join(f"{name} has {' and '.join(own)}" for name, own in PARTS.items())
            raise ValueError(f"no benchmark {word}; there are {', '.join(BENCHMARKS)}; {parts}")
    return runs


def main() -> None:
    try:
        runs = read(sys.argv[1:] or list(BENCHMARKS))
    except ValueError as problem:
        sys.exit(str(problem))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every program that is measured compiles all of itself anew
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}")
    for name, *parts in runs:
        print(f"\n== {' '.join((name, *parts))}", flush=True)
        call = f"from benchmarks import {name}; {name}.main()"
        # alone: what ran before leaves a full memory behind
        subprocess.run([sys.executable, "-c", call, *parts], check=True)


if __name__ == "__main__":
    main()
