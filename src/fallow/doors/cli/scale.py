"""`fallow scale backtest`: how well the coming demand of GPUs could have been foretold (`simulate`: scale_simulate.py).

In: a trace of what was asked for. Out: the error of every model on each virtual cluster, and of the one that would have
been believed; as a table, or for machines. Nothing is asked of any cluster.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from fallow.doors.cli import cost_pages, main, pasts, scale_plan, scale_simulate, show
from fallow.settings import readers
from fallow.sim import foretelling, shelf
from fallow.sim.traces import published


class ForetoldPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    horizon_hours: int
    after_days: int
    clusters: list[foretelling.ForetoldDemand]
    all: foretelling.ForetoldDemand


def _backtest(trace: str, vc: str | None, horizon: int, after: int, output: str) -> None:
    from fallow.decide import scaling  # numpy: --help does without

    folder = pasts.traces_folder()
    with pasts.refusals():
        demands, report = published.read_helios(shelf.find(trace, folder))
    matching = readers.regex(vc) if vc is not None else None
    some = [one for one in demands if matching is None or matching.fullmatch(one.name)]
    if not some:
        called = ", ".join(sorted(one.name for one in demands)[:12])
        raise click.UsageError(show.plain(f"--vc: no virtual cluster of {trace} matches {vc!r}; it has {called}"))
    try:
        lines, whole = foretelling.rehearse(some, horizon=horizon, after_days=after)
    except foretelling.TooShort as problem:
        raise click.UsageError(show.plain(problem)) from None
    page = ForetoldPage(horizon_hours=horizon, after_days=after, clusters=lines, all=whole)
    models = [each.value for each in scaling.Guesser]
    columns = ("CLUSTER", "GPUS", *(name.upper() for name in models), "BELIEVED")
    rows = [_row(each, models) for each in (*lines, whole)]
    if output == "csv":
        click.echo(cost_pages.write_csv(columns, rows), nl=False)
    elif not show.data(page, output):
        show.table(columns, rows)
        show.sentence(
            f"How far guesses of the next {horizon} hours were off, as a share of what was asked for: from day {after} "
            "on, every 6 hours, each from what was known then.",
            "persistence: as now. hour-of-week: as that hour of the week usually is. holt-winters: level, trend and "
            "time of day. BELIEVED: a season only where it was a tenth better than persistence over the 14 days "
            "before; who is not believed starts no node ahead of time.",
            f"from {trace}: {report}",
        )


def _row(one: foretelling.ForetoldDemand, models: Sequence[str]) -> list[str]:
    return [one.name, str(one.gpus), *(f"{one.errors[name]:.3f}" for name in models), f"{one.chosen:.3f}"]


_option = functools.partial(click.Option, show_default=True)
_backtest_options: list[Any] = [
    pasts.trace_option(required=True),
    click.Option(["--vc"], metavar="REGEX", callback=show.checked(readers.regex),
                 help="Only virtual clusters whose name matches this as a whole."),
    _option(["--horizon"], type=click.IntRange(1, 168), default=24, metavar="HOURS", help="How far ahead is guessed."),
    _option(["--after"], type=click.IntRange(1, 366), default=21, metavar="DAYS", help="From which day on it counts."),
    _option(["-o", "--output"], type=click.Choice(["table", "json", "yaml", "csv"]), default="table",
            help="How to show it."),
]

_simulate_options: list[Any] = [
    click.Option(["--trace"], metavar="MIX|NAME|FILE", default="weekly", show_default=True,
                 callback=scale_simulate.list_and_leave,
                 help="Who asks for GPUs: weekly, sweeps, or a trace of Helios or openb; `--trace help` lists them."),
    _option(["--days"], type=show.Number(0.5, 31), default=30.0, help="How long it is played."),
    _option(["--seed"], type=click.IntRange(0), default=7, help="The same seed gives the same month."),
    click.Option(["--faults"], is_flag=True, help="With everything that can go wrong, and what was promised checked."),
    show.output_option,
]

scale = main.SpellingGroup("scale", context_settings=main.CONTEXT, help="The right nodes, the cheapest way.", commands=[
    click.Command(
        "backtest", callback=_backtest, params=_backtest_options, context_settings=main.CONTEXT,
        help="How well the coming demand of GPUs could have been foretold: the error of each model, and of the one "
        "that would have been believed.\n\n\b\n  fallow scale backtest --trace helios\n"
        "  fallow scale backtest --trace helios --vc 'vc3.*' --horizon 1",
        short_help="How well the coming demand could have been foretold.",
    ),
    scale_plan.plan,
    click.Command(
        "simulate", callback=scale_simulate.simulate, params=_simulate_options, context_settings=main.CONTEXT,
        help="Play a month of jobs on a pretend cloud: what the nodes cost and how long jobs waited, by the brain of "
        "the controller, by a rule that looks at requests only, and at least.\n\n\b\n"
        "  fallow scale simulate --days 7\n  fallow scale simulate --trace helios --days 7 --seed 3\n"
        "  fallow scale simulate --days 7 --faults",
        short_help="A month of jobs on a pretend cloud: cost and waiting.",
    ),
])
