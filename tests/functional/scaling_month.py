"""Months of scaling, as many as one has patience for: `python -m tests.functional.scaling_month [days [seeds]]`.

Without faults every mix is played by our brain and by the rival: cost by the work alone, and waiting; then by a policy
in which all is left as it is: cost by what a clairvoyant pays who keeps to it. With faults it is played once more, and
what was promised is checked at every step. Ends with 1 where a bar is missed or a promise broken.
"""

import asyncio
import os
import sys
from pathlib import Path

from fallow.sim import shelf
from fallow.sim.month import jobs, play
from fallow.sim.month.jobs import GpuJob
from fallow.sim.traces import openb, published

MOST = 1.15  # of what it must cost
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
    dear = [f"cost {ours.of_work:.3f} of the work alone"] if ours.of_work > MOST else []
    slow = [f"waited {ours.wait_mean:.1f}s, {rival.name} {rival.wait_mean:.1f}s"]
    return [*dear, *(slow if ours.wait_mean > rival.wait_mean else [])]


def find_untuned_misses(untuned: play.MonthResult) -> list[str]:
    return [f"cost {untuned.ratio:.3f} of the bound by the defaults"] if untuned.ratio > MOST else []


def main(days: float, seeds: int) -> int:
    folder, wrong = os.environ.get("FALLOW_TRACES"), 0
    for mix in list_mixes(folder):
        for seed in range(100, 100 + seeds):
            some = make_jobs(mix, days, seed, folder)
            ours, rival = asyncio.run(play.compare(some, days, seed=seed))
            untuned = asyncio.run(play.play_untuned(some, days, seed=seed))
            troubled = asyncio.run(play.play_troubled(some, days, seed=seed))
            found = [*find_misses(ours, rival), *find_untuned_misses(untuned), *troubled.broken]
            wrong += bool(found)
            print(f"{mix} seed {seed}: {_tell(ours, rival, untuned)}, killed {troubled.killed}x:", flush=True)
            print(f"    {'; '.join(found) or 'as promised'}", flush=True)
    return 1 if wrong else 0


def _tell(*results: play.MonthResult) -> str:
    return ", ".join(
        f"{each.name} {each.of_work:.3f} of the work, {each.ratio:.3f} of the bound, waited {each.wait_mean:.1f}s"
        for each in results
    )


if __name__ == "__main__":
    said = [float(word) for word in sys.argv[1:]]
    sys.exit(main(said[0] if said else 30.0, int(said[1]) if len(said) > 1 else 3))
