"""Months of scaling, as many as one has patience for: `python -m tests.functional.scaling_month [days [seeds]]`.

Without faults every mix is played by our brain and by the rival: cost by the bound, and waiting. With faults it is
played once more, and what was promised is checked at every step. Ends with 1 where a bar is missed or a promise broken.
"""

import asyncio
import os
import sys
from pathlib import Path

from fallow.sim import shelf
from fallow.sim.month import jobs, play
from fallow.sim.month.jobs import GpuJob
from fallow.sim.traces import openb, published

MOST = 1.15  # of the bound
OPENB = ("default", "multigpu30", "cpu200")


def list_mixes(folder: str | None) -> list[str]:
    return [*jobs.MADE_UP, *(["helios", *OPENB] if folder else [])]


def make_jobs(mix: str, days: float, seed: int, folder: str | None) -> list[GpuJob]:
    if mix in jobs.MADE_UP:
        return jobs.draw(mix, days, seed)
    home = Path(folder or "")
    if mix == "helios":
        return jobs.of_helios(published.read_helios(shelf.find("helios", home))[0], days, seed)
    pods, _ = openb.read_pods(home / "openb" / f"{openb.PODS_PREFIX}{mix}.csv.gz")
    return jobs.of_openb(pods.values(), days, seed)


def find_misses(ours: play.MonthResult, rival: play.MonthResult) -> list[str]:
    """Which bars are missed."""
    dear = [f"cost {ours.ratio:.3f} of the bound"] if ours.ratio > MOST else []
    slow = [f"waited {ours.wait_mean:.0f}s, {rival.name} {rival.wait_mean:.0f}s"]
    return [*dear, *(slow if ours.wait_mean > rival.wait_mean else [])]


def main(days: float, seeds: int) -> int:
    folder, wrong = os.environ.get("FALLOW_TRACES"), 0
    for mix in list_mixes(folder):
        for seed in range(100, 100 + seeds):
            some = make_jobs(mix, days, seed, folder)
            ours, rival = asyncio.run(play.compare(some, days, seed=seed))
            troubled = asyncio.run(play.play_troubled(some, days, seed=seed))
            found = [*find_misses(ours, rival), *troubled.broken]
            wrong += bool(found)
            told = "; ".join(found) or "as promised"
            print(
                f"{mix} seed {seed}: {ours.ratio:.3f} of the bound ({rival.name} {rival.ratio:.3f}), waited "
                f"{ours.wait_mean:.0f}s ({rival.wait_mean:.0f}s), killed {troubled.killed}x: {told}", flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    said = [float(word) for word in sys.argv[1:]]
    sys.exit(main(said[0] if said else 30.0, int(said[1]) if len(said) > 1 else 3))
