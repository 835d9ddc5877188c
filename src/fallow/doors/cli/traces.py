"""`fallow trace list|convert`: which traces there are, and how published ones become ones that every command reads.

In: files as their authors publish them. Out: a CSV file, gzipped where its name says so, and a sentence on what was
left out. It is written beside its place and moved there when it is whole; a file that is there already is kept.
"""

import contextlib
import datetime
import gzip
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from fallow.doors.cli import main, pasts, show
from fallow.sim.traces import convert as converting
from fallow.sim.traces import published


def save(lines: Iterable[str], to: Path) -> None:
    """All or nothing."""
    if to.exists():
        raise click.UsageError(show.plain(f"-o: {to} is there already"))
    half = to.with_name(f".{to.name}.half")
    try:
        opened = gzip.open if to.suffix == ".gz" else open
        with opened(half, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(half, to)
    except OSError as problem:
        raise click.UsageError(show.plain(f"-o: {to} cannot be written: {problem.strerror}")) from None
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def _save(lines: Iterable[str], report: published.TraceReport, output: str) -> None:
    try:
        save(lines, Path(output))
    except published.TraceError as problem:
        raise click.UsageError(show.plain(problem)) from None
    show.sentence(f"written: {output}, from {report}", *report.examples)


def _gentd26(duty: str, output: str) -> None:
    report = published.TraceReport()
    _save(converting.gentd26(Path(duty), report), report, output)


def _helios(jobs: str, sizes: str, start: datetime.datetime, days: int, output: str) -> None:
    report = published.TraceReport()
    _save(converting.helios(Path(jobs), Path(sizes), start.date(), days, report), report, output)


def _command(name: str, callback: Any, params: list[click.Parameter], help: str) -> click.Command:
    return click.Command(name, callback=callback, params=params, context_settings=main.CONTEXT, help=help)


output = click.Option(["-o", "--output"], metavar="FILE", required=True, help="Where to; gzipped if it ends in .gz.")

trace = main.SpellingGroup("trace", context_settings=main.CONTEXT, commands=[
    _command("list", pasts.tell_traces, [], "List the traces that --trace takes."),
    main.SpellingGroup("convert", context_settings=main.CONTEXT, commands=[
        _command(
            "gentd26", _gentd26, [click.Argument(["duty"], metavar="pod_gpu_duty_cycle_anon.csv"), output],
            "GenTD26 (alibaba/clusterdata, cluster-trace-v2026-GenAI): what each GPU did.",
        ),
        _command(
            "helios", _helios, [
                click.Argument(["jobs"], metavar="cluster_log.csv"),
                click.Argument(["sizes"], metavar="cluster_gpu_number.csv"),
                click.Option(["--start"], type=click.DateTime(["%Y-%m-%d"]), required=True, help="The first day."),
                click.Option(["--days"], type=click.IntRange(1, 366), default=31, show_default=True, help="How many."),
                output,
            ],
            "Helios (S-Lab-System-Group/HeliosData): how many GPUs each virtual cluster had and was asked for.",
        ),
    ], short_help="Make a trace of one that was published.",
        help="Make a trace that fallow reads of one that was published. openb needs none of it: it is read as it is."),
], help="The traces that demo, backtest, tune, pack and scale take by --trace.")
