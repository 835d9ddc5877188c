"""`fallow scale simulate`: a month of jobs on a pretend cloud, by our own brain, by a rival, and what it must cost.

In: a mix of jobs, made up or from a trace, days, a seed. Out: cost, waiting, nodes added and released; as a table, or
for machines. With --faults everything goes wrong that can, and a promise that was broken ends it with 1.
Nothing is asked of any cluster or cloud.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fallow.doors.cli import interrupts, pasts, show
from fallow.model import units
from fallow.sim import shelf
from fallow.sim.traces import openb, published

if TYPE_CHECKING:
    from fallow.sim.month import jobs, play

_MIXES = {
    "weekly": "40 GPUs on weekdays from 9 to 18 h, else 4, made up", "sweeps": "many small jobs at once, made up",
}
_COLUMNS = ("WHO", "COST", "OF BOUND", "OF WORK", "WAITED", "P95", "LONGEST", "ADDED", "RELEASED", "MOVED")
_NOTES = (
    "OF WORK: the cost by that of the work alone, by the fraction of the cheapest machine that each job may be on; no "
    "boot, no empty GPU, no want of stock. OF BOUND: by what somebody would pay who knows every job before, and lives "
    "by the same cloud and the same policy: machines boot and end, and an empty node stays as long as the policy says. "
    "WAITED: for a GPU, on average.",
    "fallow: the brain of the controller, by the policy of this cluster (docs/backtest.md). requests only: Karpenter's "
    "rule with its defaults, which grows for who waits at once and moves pods onto fewer nodes. fallow, defaults: a "
    "policy in which only the share of spot is set.",
)


_KEPT = (
    "No promise was broken: no pod was sent away without room elsewhere, nothing was grown twice, no node is left "
    "cordoned."
)


def list_and_leave(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value == "help":
        found = [each for each in shelf.list_traces(pasts.traces_folder()).values() if each.kind != shelf.GENTD26]
        show.table(["TRACE", "WHAT IT TELLS"], [*_MIXES.items(), *((each.name, each.about) for each in found)])
        ctx.exit()
    return value


def simulate(trace: str, days: float, seed: int, faults: bool, output: str) -> None:
    from fallow.sim.month import play  # numpy: --help does without

    found, notes = _read_jobs(trace, days, seed)
    if not found:
        raise click.UsageError(show.plain(f"--trace: nobody asks for GPUs in the first {days:g} days of {trace}"))
    hours = play.count_hours(days)
    if faults:
        with show.progress(f"playing {days:g} days", hours) as tell:
            month = interrupts.run_busily(play.play_troubled(found, days, seed=seed, tell=tell))
        _tell_troubled(month, notes, output)
        return
    with show.progress(f"playing {days:g} days, three times", 3 * hours) as tell:
        results = interrupts.run_busily(play.compare(found, days, seed=seed, tell=tell))
        results.append(interrupts.run_busily(play.play_untuned(found, days, seed=seed, tell=tell)))
    if show.data({"trace": trace, "days": days, "seed": seed, "results": msgspec.to_builtins(results)}, output):
        return
    ours = results[0]
    show.table(_COLUMNS, [*map(_row, results), ["the work alone", _money(ours.work), "", "1.000", *[""] * 6]])
    show.sentence(
        f"{ours.jobs} jobs, {ours.gpu_hours:,.0f} GPU-hours of work in {days:g} days of {trace}, seed {seed}.",
        *notes, *_NOTES,
    )


def _read_jobs(trace: str, days: float, seed: int) -> tuple[list[jobs.GpuJob], list[str]]:
    from fallow.sim.month import jobs

    if trace in jobs.MADE_UP:
        return jobs.draw(trace, days, seed), ["All of it is made up."]
    folder = pasts.traces_folder()
    with pasts.refusals():
        try:
            path = shelf.find(trace, folder)
        except openb.NoTrace as problem:
            raise openb.NoTrace(f"{problem}; made up are {', '.join(_MIXES)}") from None
        header = published.read_header(path)
        if set(published.HELIOS_COLUMNS) <= set(header):
            demands, report = published.read_helios(path)
            made_up = "the jobs that ask for them are made up"
            notes = [f"How many GPUs were asked for is from {trace} ({report}); {made_up}."]
            return jobs.of_helios(demands, days, seed), notes
        pods, report = openb.read_pods(shelf.find_pods(trace, folder).pods)
    made_up = "when they come is made up, and a part of a GPU counts as a whole one"
    notes = [f"What pods ask for and how long is from {trace} ({report}); {made_up}."]
    return jobs.of_openb(pods.values(), days, seed), notes


def _row(one: play.MonthResult) -> list[Any]:
    waits = (units.humane(round(seconds)) for seconds in (one.wait_mean, one.wait_p95, one.wait_longest))
    shares = (f"{share:.3f}" for share in (one.ratio, one.of_work))
    return [one.name, _money(one.cost), *shares, *waits, one.added, one.released, one.moved]


def _money(amount: float) -> str:
    return f"${amount:,.0f}"


def _tell_troubled(month: play.TroubledMonth, notes: list[str], output: str) -> None:
    if not show.data(month, output):
        show.table(_COLUMNS, [_row(month.result)])
        came = ", ".join(f"{name} {count}x" for name, count in sorted(month.faults.items()))
        show.sentence(f"Faults: {came}; killed {month.killed} times between two steps.", *notes)
        show.sentence(*(month.broken or [_KEPT]))
    if month.broken:
        sys.exit(1)
