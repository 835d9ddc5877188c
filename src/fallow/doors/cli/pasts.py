"""The past that `fallow backtest` and `fallow tune` look at: the user's own Prometheus, a trace, or a made-up day.

In: the options below. Out: a PastWorld (sim/shelf.py), of which a World can be made as often as policies are to be
compared, and what it is. Prometheus is only asked for what it measured; nothing is changed anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fallow import logs, settings
from fallow.doors.answers import status as statuses
from fallow.doors.cli import flags, interrupts, show
from fallow.model import units
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds
from fallow.sim import cast, shelf
from fallow.sim.traces import history, openb, published
from fallow.wiring import daemon

NODES = 40  # of a past that is made up
TRACE_HELP = "A trace by its name, or a file; `--trace help` lists the names."


def list_and_leave(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """`--trace help`: every name with a line on it. An empty name (of a variable that nobody set) is none."""
    asked = value if isinstance(value, tuple) else (value,)
    if "" in asked:
        raise click.BadParameter("it is empty; `--trace help` lists the names", ctx, param)
    if "help" in asked:
        tell_traces()
        ctx.exit()
    return value


def tell_traces() -> None:
    found = shelf.list_traces(traces_folder()).values()
    show.table(["TRACE", "WHAT IT TELLS"], [[each.name, each.about] for each in found])
    show.sentence("A file is a trace too. The folder FALLOW_TRACES may hold more: docs/traces.md.")


def trace_option(**more: Any) -> click.Option:
    """The same in every command."""
    return click.Option(["--trace"], metavar="NAME|FILE", help=TRACE_HELP, callback=list_and_leave, **more)


class NotThere(click.ClickException):
    """A trace that was asked for is not there: nothing is wrong with the words."""

    exit_code = 3


class Duration(click.ParamType[Seconds]):
    """`30m`, `1h30m`."""

    name = "duration"

    def __init__(self, least: Seconds = MINUTE, most: Seconds = 31 * DAY) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Seconds:
        if isinstance(value, float):
            return value
        try:
            seconds = units.parse_duration(str(value))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)
        if not self._least <= seconds <= self._most:
            bounds = f"{units.humane(self._least)} and {units.humane(self._most)}"
            self.fail(f"{show.plain(value)!r} is not between {bounds}", param, ctx)
        return seconds


def list_options() -> list[click.Parameter]:
    source = ("--prometheus-", "--aws-", "--honor-")
    return [
        trace_option(),
        click.Option(["--hours"], type=show.Number(1, 24 * 31), default=24.0, show_default=True,
                     help="Length of the past; that of GenTD26 is its own."),
        click.Option(["--nodes"], type=click.IntRange(1, 5000), default=None,
                     help=f"Its nodes.  [default: {NODES} of eight GPUs, or all that a trace has]"),
        click.Option(["--seed"], type=click.IntRange(0), default=7, show_default=True,
                     help="The same seed gives the same past."),
        *(flags.flag_option(flag) for flag in settings.FLAGS if flag.name.startswith(source)),
    ]


def traces_folder() -> Path | None:
    """None: FALLOW_TRACES is absent or empty, and there are only files, and what is made up."""
    folder = settings.environment().get("FALLOW_TRACES")
    return Path(folder) if folder else None


def read_trace(name: str, *, seed: int, hours: float, nodes: int | None) -> shelf.PastWorld:
    """The past of a trace by its name or file. What is not there ends with exit code 3, what is no trace with 2."""
    folder = traces_folder()
    with refusals():
        return shelf.open_past(shelf.find(name, folder), folder, seed=seed, hours=hours, nodes=nodes)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except openb.NoTrace as problem:
        raise NotThere(f"--trace: {show.plain(problem)}") from None
    except (published.TraceError, OSError, ValueError) as problem:  # a name with a NUL is a ValueError
        raise click.UsageError(f"--trace: {show.plain(problem)}") from None


def read(asked: dict[str, Any]) -> shelf.PastWorld:
    """A trace if one is named, else Prometheus if its address was given, else a past that is made up."""
    hours, nodes, seed = asked.pop("hours"), asked.pop("nodes"), asked.pop("seed")
    if name := asked.pop("trace"):
        return read_trace(name, seed=seed, hours=hours, nodes=nodes)
    options = flags.read_settings(asked)
    if options.prometheus is not None:
        return shelf.of_trace(_ask_prometheus(options, options.prometheus, hours), seed=seed, source="Prometheus")
    nodes = nodes or NODES
    return shelf.PastWorld(
        functools.partial(cast.make_world, seed=seed, nodes=nodes, hours=hours),
        f"a made-up past of {units.humane(hours * HOUR)} on {nodes} nodes of eight GPUs (seed {seed})",
    )


def _ask_prometheus(options: settings.Settings, where: settings.PrometheusSettings, hours: float) -> published.Trace:
    async def ask(now: Instant) -> published.Trace:
        end, honor = now // MINUTE * MINUTE, where.honor_labels
        async with daemon.make_prometheus(options, where, tell=show.tell) as prometheus:
            return await history.read_history(prometheus, end - hours * HOUR, end, now=now, honor_labels=honor)

    logs.set_up("default", "error")
    try:
        with show.refusals(helps=statuses.REACH_PROMETHEUS):
            return interrupts.run(ask(time.time()))
    except published.TraceError as problem:
        raise click.ClickException(show.plain(problem)) from None
