"""`fallow backtest`: what policies would have done to a cluster, side by side, before any of them is switched on.

In: a past (pasts.py) and what to try on it: idle windows, files of IdlePolicies. Out: GPU-hours and money reclaimed,
pauses, regrets and waiting, for each; with one of them also by class and namespace. No socket is opened and nothing is
changed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from fallow import names
from fallow.doors.cli import backtest_together, main, pasts, show
from fallow.model import gpus, kinds, price_book, units
from fallow.model.policies import idle, idle_crd
from fallow.model.units import MINUTE, Seconds
from fallow.sim import backtest as running
from fallow.sim import shelf

WINDOW: Seconds = 30 * MINUTE  # as --duration of the controller
ALL_LETTERS = frozenset(names.LETTERS) - {kinds.CRON_JOB.letter}
BASE = idle.Mandate(scope=idle.Scope(letters=ALL_LETTERS), acting=True)
COLUMNS = ("RECLAIMED", "OF HELD", "MONEY", "PAUSES", "REGRETTED", "RESUMES", "WAITED")
WIDE_COLUMNS = ("NOTICES", "FROZEN")
PART_COLUMNS = ("HELD", "IDLE", "RECLAIMED", "MONEY", "PAUSES", "REGRETTED")
WIDE_PART_COLUMNS = ("RESUMES", "WAITED", "WORKLOADS")


def try_window(window: Seconds) -> running.Trial:
    """Everything that is quiet for so long is paused, by every kind and without a notice."""
    rule = msgspec.structs.replace(BASE.rule, action=idle.Action(type=idle.ActionType.pause))
    mandate = running.with_window(msgspec.structs.replace(BASE, rule=rule), window)
    return running.Trial(name=units.humane(window), mandate=mandate)


def make_trials(windows: Sequence[Seconds], files: Sequence[str]) -> Iterator[running.Trial]:
    """What is tried: each window by itself, and each file of policies by itself."""
    for window in windows or (() if files else (WINDOW,)):
        yield try_window(window)
    for name in files:
        trial = running.Trial(name=Path(name).stem, mandate=BASE, policies=tuple(_read_policies(Path(name))))
        if why := running.find_obstacle(trial):
            raise _refuse(Path(name), f"cannot be tried: {why}")
        yield trial


def _read_policies(path: Path) -> Iterator[idle.IdlePolicy]:
    import yaml

    try:
        found = list(yaml.safe_load_all(path.read_text("utf-8")))
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


# ---- money ----------------------------------------------------------------------------------------------------------


def read_prices(texts: Sequence[str]) -> price_book.ModelPrices:
    """Those that were given, by the one name of each model."""
    try:
        return price_book.read_prices(texts)
    except ValueError as problem:
        raise click.UsageError(f"--price: {show.plain(problem)}") from None


def find_unused(given: price_book.ModelPrices, past: shelf.PastWorld) -> Iterator[str]:
    """What is to be said of prices that nobody will pay: a model that neither the past nor anybody knows is refused."""
    there = {gpus.normalise(node.model) for node in past.make_world().nodes.values()} if given else set()
    for model in [model for model in given if model not in there]:
        has = f"this past has {', '.join(sorted(there))}"
        if gpus.find(model) is None:
            raise click.UsageError(show.plain(f"--price: no GPU model is known as {model}; {has}"))
        yield f"the price of {model} is not used: {has}"


def money(line: Any) -> str:
    return f"${line.money:,.0f}"


def regretted(line: Any) -> str:
    """How many, and which share of the pauses."""
    return f"{line.regrets} ({line.regrets / line.pauses:.0%})" if line.pauses else "0"


def tell_unpriced(hours: float) -> None:
    """What has no price is no 0: it is said."""
    if hours >= 0.05:
        show.prose(f"MONEY leaves out up to {hours:,.1f} GPU-hours of models without a price: --price MODEL=DOLLARS")


# ---- tables ---------------------------------------------------------------------------------------------------------


def _cells(result: running.BacktestResult) -> list[Any]:
    total = result.total
    asked = total.gpu_hours + total.reclaimed_gpu_hours
    return [
        result.name, f"{total.reclaimed_gpu_hours:,.1f} h",
        f"{total.reclaimed_gpu_hours / asked:.0%}" if asked else "-", money(total), total.pauses, regretted(total),
        total.resumes, units.humane(total.waited), result.notices, result.frozen_ticks,
    ]


def _part_cells(name: str, line: running.BacktestSums) -> list[Any]:
    hours = (f"{hours:,.1f} h" for hours in (line.gpu_hours, line.idle_gpu_hours, line.reclaimed_gpu_hours))
    return [
        name, *hours, money(line), line.pauses, regretted(line), line.resumes, units.humane(line.waited), line.workloads
    ]


def _show(columns: Sequence[str], wide: Sequence[str], rows: Sequence[Sequence[Any]], output: str) -> None:
    """What fits in eighty columns; the rest with -o wide."""
    shown = [*columns, *(wide if output == "wide" else ())]
    show.table(shown, [row[: len(shown)] for row in rows])


def _show_parts(result: running.BacktestResult, output: str) -> None:
    for title, lines in (("CLASS", result.by_class), ("NAMESPACE", result.by_namespace)):
        click.echo()
        most_first = sorted(lines.items(), key=lambda item: -item[1].reclaimed_gpu_hours)
        _show([title, *PART_COLUMNS], WIDE_PART_COLUMNS, [_part_cells(*item) for item in most_first], output)
    click.echo()
    show.prose("HELD: while it ran by this rule; IDLE: without activity, of that; RECLAIMED: besides, while paused.")


def play(
    past: shelf.PastWorld, trials: Sequence[running.Trial], interval: Seconds, given: price_book.ModelPrices
) -> list[running.BacktestResult]:
    book = {**price_book.LIST, **given}
    with show.progress("playing", len(trials)) as tell:
        return running.play(past.make_world, trials, interval=interval, book=book, tell=tell)


def _backtest(
    window: tuple[Seconds, ...], policies: tuple[str, ...], price: tuple[str, ...], interval: Seconds, output: str,
    parts: str, **asked: Any,
) -> None:
    given, trials = read_prices(price), list(make_trials(window, policies))
    others = backtest_together.read_parts(parts)
    if others and len(trials) > 1:
        raise click.UsageError("--with: one window or policy file at a time, so that the parts can be told apart")
    past = pasts.read(asked)
    notes = [*past.notes, *find_unused(given, past)]
    if others:
        book = {**price_book.LIST, **given}
        backtest_together.tell(past, notes, trials[0], others, interval=interval, book=book, output=output)
        return
    results = play(past, trials, interval, given)
    data = msgspec.to_builtins(results, enc_hook=str)
    if show.data({"past": past.summary, "notes": notes, "results": data}, output):
        return
    show.prose(f"{past.summary}; looked at every {units.humane(interval)}", *notes)
    click.echo()
    _show(["TRIED", *COLUMNS], WIDE_COLUMNS, [_cells(result) for result in results], output)
    if len(results) == 1:
        _show_parts(results[0], output)
    tell_unpriced(max(result.total.unpriced_gpu_hours for result in results))


def playing_options() -> list[click.Parameter]:
    return [
        click.Option(["--interval"], type=pasts.Duration(least=10.0, most=units.DAY), default="3m", show_default=True,
                     help="Between two looks."),
        click.Option(["--price"], metavar="MODEL=DOLLARS", multiple=True,
                     help="What an hour of a GPU costs (repeatable)."),
    ]


backtest = click.Command(
    "backtest", callback=_backtest, context_settings=main.CONTEXT,
    params=[
        *pasts.list_options(),
        click.Option(["-w", "--window"], type=pasts.Duration(), multiple=True,
                     help="Idle window to try, such as 45m (repeatable)."),
        click.Option(["--policy", "policies"], metavar="FILE", multiple=True,
                     help="File of IdlePolicies to try (repeatable)."),
        click.Option(["--with", "parts"], metavar="PART,PART", default="",
                     help="Play sharing, scaling or both besides, with what each freed apart."),
        *playing_options(),
        show.output_option,
    ],
    help="Tell what policies would have done: GPU-hours and money reclaimed, how many pauses, how many of them "
    "regretted (the GPU was wanted within 15 minutes), and how long people waited.\n\nThe very brain of the controller "
    "decides, tick by tick, over a trace or a made-up past. Several windows and policies are shown side by side. "
    "Nothing is contacted but a Prometheus whose address you give, and nothing is changed.",
)
