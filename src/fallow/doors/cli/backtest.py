"""`fallow backtest`: what policies would have done to a cluster, side by side, before any of them is switched on.

In: a past (pasts.py) and what to try on it: idle windows, files of IdlePolicies. Out: GPU-hours and money reclaimed,
pauses, regrets and waiting, for each; with one of them also by class and namespace. No socket is opened and nothing is
changed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click
import msgspec

from fallow import names
from fallow.doors.cli import main, pasts, show
from fallow.model import gpus, kinds, units
from fallow.model.policies import idle, idle_crd
from fallow.model.units import MINUTE, Seconds
from fallow.sim import backtest as running
from fallow.sim import prices

WINDOW: Seconds = 30 * MINUTE  # as --duration of the controller
ALL_LETTERS = frozenset(names.LETTERS) - {kinds.CRON_JOB.letter}
COLUMNS = ("RECLAIMED", "MONEY", "OF HELD", "PAUSES", "REGRETTED", "RESUMES", "WAITED", "NOTICES", "FROZEN")
PART_COLUMNS = ("WORKLOADS", "HELD", "IDLE", "RECLAIMED", "MONEY", "PAUSES", "REGRETTED", "WAITED")

Trial = tuple[str, idle.Mandate, tuple[idle.IdlePolicy, ...]]


def make_trials(windows: tuple[Seconds, ...], files: tuple[str, ...]) -> Iterator[Trial]:
    """What is tried: each window by itself, and each file of policies by itself."""
    base = idle.Mandate(scope=idle.Scope(letters=ALL_LETTERS), acting=True)
    rule = msgspec.structs.replace(base.rule, action=idle.Action(type=idle.ActionType.pause))
    for window in windows or (() if files else (WINDOW,)):
        mandate = running.with_window(msgspec.structs.replace(base, rule=rule), window)
        yield f"idle for {units.humane(window)}", mandate, ()
    for name in files:
        yield Path(name).stem, base, tuple(_read_policies(Path(name)))


def _read_policies(path: Path) -> Iterator[idle.IdlePolicy]:
    import yaml

    try:
        found = list(yaml.safe_load_all(path.read_text()))
    except OSError as problem:
        raise _refuse(path, f"cannot be read: {problem.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise _refuse(path, "is no YAML") from None
    if not any(found):
        raise _refuse(path, "holds no IdlePolicy")
    for each in filter(None, found):
        parsed = idle_crd.parse(each if isinstance(each, Mapping) else {})
        if parsed.invalid or not parsed.name:
            why = parsed.invalid[0] if parsed.invalid else "it has no metadata.name"
            raise _refuse(path, f"holds no valid IdlePolicy: {why}")
        yield parsed


def _refuse(path: Path, why: str) -> click.UsageError:
    return click.UsageError(show.plain(f"--policy: {path} {why}"))


def read_prices(texts: tuple[str, ...]) -> prices.Book:
    """The usual prices, and those that were given."""
    given = {}
    for text in texts:
        model, _, amount = text.partition("=")
        try:
            given[gpus.normalise(model)] = cost = Decimal(amount)
        except InvalidOperation:
            cost = Decimal("NaN")
        if not model.strip() or not (cost.is_finite() and cost >= 0):
            raise click.UsageError(f"--price: {show.plain(text)!r} is not MODEL=DOLLARS such as H100-80GB-HBM3=2.99")
    return {**prices.DEFAULT, **given}


def _cells(result: running.BacktestResult) -> list[Any]:
    total = result.total
    asked = total.gpu_hours + total.reclaimed_gpu_hours
    return [
        result.name, f"{total.reclaimed_gpu_hours:,.1f} h", _money(total),
        f"{total.reclaimed_gpu_hours / asked:.0%}" if asked else "-",
        total.pauses, total.regrets, total.resumes, units.humane(total.waited), result.notices, result.frozen_ticks,
    ]


def _part_cells(name: str, line: running.BacktestSums) -> list[Any]:
    hours = (f"{hours:,.1f} h" for hours in (line.gpu_hours, line.idle_gpu_hours, line.reclaimed_gpu_hours))
    return [name, line.workloads, *hours, _money(line), line.pauses, line.regrets, units.humane(line.waited)]


def _money(line: running.BacktestSums) -> str:
    """What has no price is no 0: it is said beside the sum."""
    unpriced = f" + {line.unpriced_gpu_hours:,.0f} h unpriced" if line.unpriced_gpu_hours >= 0.05 else ""
    return f"${line.money:,.2f}{unpriced}"


def _show_parts(result: running.BacktestResult) -> None:
    for title, lines in (("CLASS", result.by_class), ("NAMESPACE", result.by_namespace)):
        click.echo()
        most_first = sorted(lines.items(), key=lambda item: -item[1].reclaimed_gpu_hours)
        show.table([title, *PART_COLUMNS], [_part_cells(*item) for item in most_first])


def _backtest(
    window: tuple[Seconds, ...], policies: tuple[str, ...], price: tuple[str, ...], interval: Seconds, output: str,
    **asked: Any,
) -> None:
    trials, book = list(make_trials(window, policies)), read_prices(price)
    past = pasts.read(asked)
    try:
        results = [
            running.run(past.make_world(), mandate, name=name, policies=chosen, interval=interval, book=book)
            for name, mandate, chosen in trials
        ]
    except ValueError as problem:
        raise click.UsageError(show.plain(problem)) from None
    data = msgspec.to_builtins(results, enc_hook=str)
    if show.data({"past": past.summary, "notes": list(past.notes), "results": data}, output):
        return
    show.sentence(f"{past.summary}; looked at every {units.humane(interval)}", *past.notes)
    click.echo()
    show.table(["TRIED", *COLUMNS], [_cells(result) for result in results])
    if len(results) == 1:
        _show_parts(results[0])


backtest = click.Command(
    "backtest", callback=_backtest, context_settings=main.CONTEXT,
    params=[
        *pasts.list_options(),
        click.Option(["-w", "--window"], type=pasts.Duration(), multiple=True,
                     help="Idle window to try, such as 45m (repeatable)."),
        click.Option(["--policy", "policies"], metavar="FILE", multiple=True,
                     help="File of IdlePolicies to try (repeatable)."),
        click.Option(["--interval"], type=pasts.Duration(), default="3m", show_default=True, help="Between two looks."),
        click.Option(["--price"], metavar="MODEL=DOLLARS", multiple=True,
                     help="What an hour of a GPU costs (repeatable)."),
        show.output_option,
    ],
    help="Tell what policies would have done: GPU-hours and money reclaimed, how many pauses, how many of them "
    "regretted (the GPU was wanted within 15 minutes), and how long people waited.\n\nThe very brain of the controller "
    "decides, tick by tick, over a trace or a made-up past. Several windows and policies are shown side by side. "
    "Nothing is contacted and nothing is changed.",
)
