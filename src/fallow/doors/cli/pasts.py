"""The past that `fallow backtest` and `fallow tune` look at: the user's own Prometheus, a trace, or a made-up day.

In: the options below. Out: a Past, of which a World can be made as often as policies are to be compared, and what was left out of it.
Prometheus is only asked for what it measured; nothing is changed anywhere.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from fallow import controller, settings, telemetry
from fallow.clients import errors
from fallow.doors.cli import flags, show
from fallow.model import units
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.sim import cast, history, traces, tuning
from fallow.sim import world as worlds


class Past(msgspec.Struct, frozen=True):
    """`told`: one sentence on what it is."""

    make_world: Callable[[], worlds.World]
    told: str


class Duration(click.ParamType[Seconds]):
    """`30m`, `1h30m`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Seconds:
        if isinstance(value, float):
            return value
        try:
            return units.parse_duration(str(value))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def options() -> list[click.Parameter]:
    prometheus = [flag.name for flag in settings.FLAGS if flag.name.startswith(("--prometheus-", "--aws-", "--honor-"))]
    source = [flags.flag_option(flag) for flag in settings.FLAGS if flag.name in prometheus]
    return [
        click.Option(["--trace"], metavar="FILE", help="What GPUs did, as the GenTD26 trace tells it (CSV, gzipped or not)."),
        click.Option(["--hours"], type=click.FloatRange(1, 24 * 31), default=24.0, show_default=True,
                     help="Length of the past, in Prometheus or made up."),
        click.Option(["--nodes"], type=click.IntRange(1, 5000), default=40, show_default=True, help="Its nodes, of eight GPUs each."),
        click.Option(["--seed"], type=int, default=7, show_default=True, help="The same seed gives the same past."),
        *source,
    ]


def read(asked: dict[str, Any]) -> Past:
    """A trace if one is named, else Prometheus if its address was given, else a past that is made up."""
    hours, nodes, seed = asked.pop("hours"), asked.pop("nodes"), asked.pop("seed")
    if name := asked.pop("trace"):
        return _of_trace(_read_trace(Path(name)), seed)
    told = flags.read_settings(asked)
    if told.prometheus is not None:
        return _of_trace(_ask_prometheus(told, told.prometheus, hours), seed)
    return Past(
        lambda: cast.make_world(seed=seed, nodes=nodes, hours=hours),
        f"a made-up past of {units.humane(hours * HOUR)} on {nodes} nodes of eight GPUs (seed {seed})",
    )


def _of_trace(trace: traces.Trace, seed: int) -> Past:
    length = units.humane(trace.span.columns * trace.span.step)
    return Past(lambda: traces.to_world(trace, seed=seed), f"{len(trace.parts)} pods over {length}: {trace.report}")


def _ask_prometheus(told: settings.Settings, where: settings.Prometheus, hours: float) -> traces.Trace:
    telemetry.set_up_logs("default", "error")
    try:
        return asyncio.run(_read_history(told, where, time.time(), hours))
    except errors.Misconfigured as problem:
        raise click.UsageError(show.plain(problem)) from None
    except (errors.ClientError, traces.TraceError) as problem:
        raise click.ClickException(show.plain(problem)) from None


async def _read_history(told: settings.Settings, where: settings.Prometheus, now: Instant, hours: float) -> traces.Trace:
    async with controller.make_prometheus(told, where) as prometheus:
        end = now // MINUTE * MINUTE
        return await history.read_history(prometheus, end - hours * HOUR, end, now=now, honor_labels=where.honor_labels)


def _read_trace(path: Path) -> traces.Trace:
    try:
        return traces.read_gentd26(path)
    except OSError as problem:
        raise click.UsageError(f"--trace: {show.plain(path)} cannot be read: {problem.strerror}") from None
    except traces.TraceError as problem:
        raise click.UsageError(f"--trace: {show.plain(problem)}") from None


def find_silences(past: Past) -> tuple[tuning.Silences, list[worlds.Part], Seconds]:
    """The silences of all workloads, whose they are, and over how long."""
    world = past.make_world()
    return tuning.of_world(world), [one.part for one in world.workloads], world.span.columns * world.span.step
