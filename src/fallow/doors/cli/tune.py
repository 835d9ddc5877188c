"""`fallow tune`: how long a GPU should be quiet before it is paused, so that much is reclaimed and few are disturbed.

In: a past (pasts.py), the price of a resume in GPU-minutes, the share of pauses that may be regretted, today's window.
Out: what each window would have done, as `fallow backtest` plays it, in a table, a chart and as SVG, with today's and
the recommended one marked; windows for classes that deserve their own; or all of it as IdlePolicies.
Invariant: a figure that is shown was played, and is over the whole past. Without a recommendation it says why.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from fallow import names
from fallow.doors.cli import backtest, main, pasts, plot, show
from fallow.model.units import MINUTE, Seconds, humane
from fallow.sim import shelf, tuning
from fallow.sim.tuning import PlayedWindow

COLUMNS = ("WINDOW", "RECLAIMED", "MONEY", "PAUSES", "REGRETTED", "RESUMES", "COST", "MARK", "WAITED")
CLASS_COLUMNS = ("CLASS", "WINDOW", "RECLAIMED", "PAUSES", "REGRETTED", "SILENCES", "RESTS ON")


class Tuned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`asked`: what the silences ask for. `recommended` is None where `none_because` says why."""

    length: Seconds
    resume_cost: Seconds
    accepted_regrets: float
    windows: tuple[PlayedWindow, ...]
    today: PlayedWindow
    asked: tuning.Recommendation
    recommended: PlayedWindow | None
    none_because: str
    by_class: Mapping[str, PlayedWindow | None]  # None: no window of it is regretted so seldom


def tune_past(
    past: shelf.PastWorld, today: Seconds, cost: Seconds, accepted: float, interval: Seconds, given: Any
) -> Tuned:
    world = past.make_world()
    silences, length = tuning.of_world(world), world.span.columns * world.span.step
    asked = tuning.recommend(silences, [one.part for one in world.workloads], cost)
    windows = sorted({*tuning.WINDOWS, today})
    results = dict(zip(
        windows, backtest.play(past, [backtest.try_window(each) for each in windows], interval, given), strict=True
    ))
    played = tuple(tuning.weigh(window, results[window].total, cost) for window in windows)
    found = tuning.settle(asked.all.window, played, accepted)
    why = tuning.find_lack(silences, length) or find_refusal(found, played, accepted)
    by_class = {
        name: tuning.settle(advice.window if advice.rests_on == "class" or not found else found.window, [
            tuning.weigh(window, results[window].by_class[name], cost) for window in windows
        ], accepted)
        for name, advice in asked.by_class.items()
    }
    return Tuned(
        length=length, resume_cost=cost, accepted_regrets=accepted, windows=played, asked=asked, by_class=by_class,
        today=next(one for one in played if one.window == today), recommended=None if why else found, none_because=why,
    )


def find_refusal(found: PlayedWindow | None, played: Sequence[PlayedWindow], accepted: float) -> str:
    """Why what was played allows no recommendation; "": it does."""
    acting = [one for one in played if one.pauses]
    if not acting:
        return "no window that was played pauses anything"
    if found is None or not found.pauses:
        best = min(acting, key=lambda one: one.regretted)
        fewest = f"the fewest are {best.regretted:.0%}, at {humane(best.window)}"
        return f"none that was played has {accepted:.0%} of its pauses regretted or fewer; {fewest} (--accept-regrets)"
    return ""


# ---- as policies ----------------------------------------------------------------------------------------------------


def make_policies(found: Tuned) -> Iterator[dict[str, Any]]:
    """One for all, and one for each class that should have another window; a class that none suits is only reported."""
    assert found.recommended is not None
    yield _make_policy("tuned", found.recommended.window, {})
    for name, own in found.by_class.items():
        if own is None:
            yield _make_policy(f"tuned-{name}", found.windows[-1].window, {"priority": 10, "classes": [name]}, "report")
        elif own.window != found.recommended.window:
            yield _make_policy(f"tuned-{name}", own.window, {"priority": 10, "classes": [name]})


def _make_policy(name: str, window: Seconds, whom: Mapping[str, Any], action: str = "pause") -> dict[str, Any]:
    spec = {**whom, "windows": {"goneIdle": humane(window)}, "action": {"type": action}}
    version = f"{names.GROUP}/{names.POLICY_VERSION}"
    return {"apiVersion": version, "kind": names.POLICY_KIND, "metadata": {"name": name}, "spec": spec}


def _print_policies(past: shelf.PastWorld, found: Tuned) -> None:
    import yaml

    if found.recommended is None:
        raise click.ClickException(show.plain(f"no window is recommended, so there is no policy: {found.none_because}"))
    for line in (past.summary, *_explain(found), "Owners are told first, and nothing is paused in dry-run."):
        click.echo(show.plain(f"# {line}"))
    click.echo(yaml.safe_dump_all(make_policies(found), sort_keys=False, explicit_start=True), nl=False)


def _write_out(found: Tuned) -> dict[str, Any]:
    """For machines. Of what the silences ask for only the windows: their figures were not played."""
    data: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)
    asked = data["asked"]
    for advice in (asked["all"], *asked["byClass"].values(), *asked["byWorkload"].values()):
        del advice["point"]
    return data


# ---- for people -----------------------------------------------------------------------------------------------------


def make_chart(found: Tuned) -> plot.Chart:
    def locate(one: PlayedWindow) -> plot.Point:
        return float(one.resumes), one.reclaimed_gpu_hours

    def mark(name: str, one: PlayedWindow) -> plot.ChartMark:
        counts = f"{one.reclaimed_gpu_hours:,.0f} GPU-hours, {one.resumes} resumes, {one.regretted:.0%} regretted"
        return plot.ChartMark(name[0].upper(), f"{name}, {humane(one.window)}: {counts}", locate(one))

    windows = tuple(humane(one.window) for one in found.windows)
    marks = [mark("today", found.today), *([mark("recommended", found.recommended)] if found.recommended else [])]
    return plot.Chart(
        f"Reclaimed against resumes over {humane(found.length)}, windows from {windows[-1]} (left) to {windows[0]}",
        "resumes", "GPU-hours reclaimed",
        (plot.ChartCurve("all workloads", tuple(map(locate, found.windows)), windows),), tuple(marks),
    )


def _mark(one: PlayedWindow, found: Tuned) -> str:
    if one is found.recommended:
        return "recommended"
    return "today" if one is found.today else "too many" if one.regretted > found.accepted_regrets else ""


def _show_windows(found: Tuned, output: str) -> None:
    columns = COLUMNS if output == "wide" else COLUMNS[:-1]
    rows = [
        [humane(one.window), f"{one.reclaimed_gpu_hours:,.1f} h", backtest.money(one), one.pauses,
         backtest.regretted(one), one.resumes, f"{one.cost_gpu_hours:,.1f} h", _mark(one, found), humane(one.waited)]
        for one in found.windows
    ]
    show.table(columns, [row[: len(columns)] for row in rows], styled="MARK")


def _show_classes(found: Tuned) -> None:
    rows = [
        [name, humane(own.window), f"{own.reclaimed_gpu_hours:,.1f} h", own.pauses, backtest.regretted(own),
         advice.silences, advice.rests_on]
        if (own := found.by_class[name]) else [name, "none", "-", "-", "too many", advice.silences, advice.rests_on]
        for name, advice in found.asked.by_class.items()
    ]
    show.table(CLASS_COLUMNS, rows)


def _explain(found: Tuned) -> Iterator[str]:
    """What is recommended, by which measure, and what changes against today."""
    one, today = found.recommended, found.today
    if one is None:
        yield f"No window is recommended: {found.none_because}."
        return
    yield f"Recommended: {humane(one.window)}; {one.regretted:.0%} of its pauses are regretted, and " \
        f"{found.accepted_regrets:.0%} are accepted (--accept-regrets)."
    yield f"Today's {humane(today.window)} reclaims {today.reclaimed_gpu_hours:,.0f} GPU-hours with {today.resumes} " \
        f"resumes, {humane(one.window)} reclaims {one.reclaimed_gpu_hours:,.0f} with {one.resumes}."


def _tell(past: shelf.PastWorld, notes: Sequence[str], found: Tuned, chart: plot.Chart, output: str) -> None:
    show.prose(past.summary, *notes)
    click.echo()
    click.echo(plot.draw_text(chart, columns=max(40, min(100, shutil.get_terminal_size().columns - 12)), rows=12))
    click.echo()
    _show_windows(found, output)
    click.echo()
    show.prose(f"All figures are over {humane(found.length)}, each window as `fallow backtest -w` plays it.")
    show.prose(f"COST: what idled all the same, and {found.resume_cost / MINUTE:g} GPU-minutes for each resume.")
    for line in _explain(found):
        show.prose(line)
    if found.recommended is None:
        return
    click.echo()
    _show_classes(found)
    own = sum(advice.rests_on == "workload" for advice in found.asked.by_workload.values())
    if own:
        show.prose(f"{own} workloads would do better with a window of their own: -o json lists them.")
    show.sentence("To apply it: the same command with -o policy.")


def _tune(
    resume_cost: float, accept_regrets: float, today: Seconds, interval: Seconds, price: tuple[str, ...],
    svg: str | None, output: str, **asked: Any,
) -> None:
    given = backtest.read_prices(price)
    past = pasts.read(asked)
    notes = [*past.notes, *backtest.find_unused(given, past)]
    found = tune_past(past, today, resume_cost * MINUTE, accept_regrets / 100, interval, given)
    chart = make_chart(found)
    if output == "policy":
        _print_policies(past, found)
    elif not show.data({"past": past.summary, "notes": notes, **_write_out(found)}, output):
        _tell(past, notes, found, chart, output)
        backtest.tell_unpriced(max(one.unpriced_gpu_hours for one in found.windows))
    plot.save(chart, svg)


tune = click.Command(
    "tune", callback=_tune, context_settings=main.CONTEXT,
    params=[
        *pasts.list_options(),
        click.Option(["--resume-cost"], type=show.Number(0, 100_000), default=30.0, show_default=True,
                     metavar="GPU-MINUTES",
                     help="What one resume costs: the start of a model server, the patience of a person."),
        click.Option(["--accept-regrets"], type=show.Number(0, 100), default=10.0, show_default=True,
                     metavar="PERCENT",
                     help="Share of pauses that may be regretted (the GPU was wanted within 15 minutes). A window "
                     "above it is never recommended."),
        click.Option(["--today"], type=pasts.Duration(), default="30m", show_default=True,
                     help="The window in use now."),
        *backtest.playing_options(),
        plot.svg_option("Write the chart as SVG."),
        click.Option(["-o", "--output"], type=click.Choice(["table", "wide", "json", "yaml", "policy"]),
                     default="table", show_default=True, help="How to show it; policy: as IdlePolicies to apply."),
    ],
    help="Find out how long a GPU should be quiet before it is paused.\n\nEvery window is played by the very brain of "
    "the controller, as `fallow backtest` does. Of those whose pauses are seldom regretted the one is recommended that "
    "costs least in idle GPU time and resumes; for classes where the history carries it. Too little history gives no "
    "recommendation.",
)
