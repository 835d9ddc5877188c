"""`make bench`: every figure we claim, measured now, beside what it is compared to, with the machine's load.

`python -m benchmarks NAME...` runs only these. Nothing here is a test: a figure that is missed is printed as missed.
"""

import os
import platform
import subprocess
import sys

BENCHMARKS = (
    "help_time", "commands", "commands_live", "listing", "plan", "cycle", "questions", "one_shot", "scrape", "backtest",
    "exporter", "packing", "departures", "api", "live", "pages", "books", "cost", "ledger", "webhook", "extender",
    "extender_live", "node_stories", "scaling",
)


def main() -> None:
    wanted = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every program that is measured compiles all of itself anew
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}")
    for name in wanted:
        print(f"\n== {name}", flush=True)
        call = f"from benchmarks import {name}; {name}.main()"
        subprocess.run([sys.executable, "-c", call], check=True)  # alone: what ran before leaves a full memory behind


if __name__ == "__main__":
    main()
