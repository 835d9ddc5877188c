"""`fallow tune`: how long a GPU should be quiet before it is paused, for a stated price of one resume.

In: a past (pasts.py), the price of a resume in GPU-minutes, today's window. Out: the curve of savings against
interruptions, with today and the recommendation marked, in the terminal and as SVG; the windows of classes and
workloads that deserve one of their own.
"""

from __future__ import annotations

import shutil
from typing import Any

import click
import msgspec

from fallow.doors.cli import main, pasts, plot, show
from fallow.model.units import DAY, HOUR, MINUTE, Seconds, humane
from fallow.sim import tuning

_MOST_SHOWN = 20  # workloads in the table: those with the longest history


def make_chart(points: list[tuning.Point], today: tuning.Point, best: tuning.Point, days: float) -> plot.Chart:
    def locate(point: tuning.Point) -> plot.Point:
        return point.interruptions / days, point.saved_gpu_hours / days

    def mark(name: str, point: tuning.Point) -> plot.ChartMark:
        saves = f"saves {point.saved_gpu_hours:,.0f} GPU-hours, {point.interruptions} interruptions"
        label = f"{name}, {humane(point.window)}: {saves}, costs {point.cost_gpu_hours:,.0f} GPU-hours"
        return plot.ChartMark(name[0].upper(), label, locate(point))

    windows = tuple(humane(point.window) for point in points)
    return plot.Chart(
        f"Savings against interruptions, windows from {windows[0]} (right) to {windows[-1]} (left)",
        "interruptions a day", "GPU-hours saved a day",
        (plot.ChartCurve("all workloads", tuple(map(locate, points)), windows),),
        (mark("today", today), mark("recommended", best)),
    )


def _show_windows(points: list[tuning.Point]) -> None:
    every = sorted({point.window: point for point in points}.values(), key=lambda point: point.window)
    best = min(point.cost_gpu_hours for point in every)
    rows = [
        [humane(point.window), f"{point.saved_gpu_hours:,.1f} h", f"{point.burned_gpu_hours:,.1f} h", point.pauses,
         point.interruptions, point.regrets, f"{point.cost_gpu_hours:,.1f} h",
         f"{point.cost_gpu_hours / best:.3f}" if best else "-"]
        for point in every
    ]
    show.table(["WINDOW", "SAVED", "BURNED", "PAUSES", "INTERRUPTIONS", "REGRETTED", "COST", "OF BEST"], rows)


def _show_advice(found: tuning.Recommendation, today: tuning.Point, cost: Seconds) -> None:
    best = found.all.point.cost_gpu_hours
    show.sentence(
        f"Recommended for a resume that costs {cost / MINUTE:.0f} GPU-minutes: {humane(found.all.window)} "
        f"(rests on {found.all.silences} silences); today's {humane(today.window)} costs "
        f"{today.cost_gpu_hours / best if best else 1.0:.3f} times as much."
    )
    own = [(name, advice) for name, advice in found.by_workload.items() if advice.rests_on == "workload"]
    own.sort(key=lambda item: -item[1].silences)
    shown = [*found.by_class.items(), *own[:_MOST_SHOWN]]
    click.echo()
    rows = [[name, humane(advice.window), advice.rests_on, advice.silences] for name, advice in shown]
    show.table(["CLASS OR WORKLOAD", "WINDOW", "RESTS ON", "SILENCES"], rows)
    if len(own) > _MOST_SHOWN:
        more = f"{len(own) - _MOST_SHOWN} more workloads with a window of their own"
        show.sentence(f"... and {more}: -o json lists them all.")


def _tune(resume_cost: float, today: Seconds, svg: str | None, output: str, **asked: Any) -> None:
    past = pasts.read(asked)
    world = past.make_world()
    silences, length = tuning.of_world(world), world.span.columns * world.span.step
    if not len(silences.seconds):
        raise click.ClickException("nothing was ever quiet in this past: there is no window to choose")
    cost = resume_cost * MINUTE
    points, now = tuning.draw_curve(silences, cost), tuning.measure(silences, today, cost)
    found = tuning.recommend(silences, [one.part for one in world.workloads], cost)
    chart = make_chart(points, now, found.all.point, max(length, HOUR) / DAY)
    plot.save(chart, svg)
    data = msgspec.to_builtins({"curve": points, "today": now, "advice": found})
    if show.data({"past": past.summary, "notes": list(past.notes), "resumeCostSeconds": cost, **data}, output):
        return
    show.sentence(past.summary, *past.notes)
    click.echo()
    click.echo(plot.draw_text(chart, columns=max(40, min(100, shutil.get_terminal_size().columns - 12))))
    click.echo()
    _show_windows([*points, now, found.all.point])
    click.echo()
    _show_advice(found, now, cost)
    if svg is not None:
        show.sentence(f"written: {svg}")


tune = click.Command(
    "tune", callback=_tune, context_settings=main.CONTEXT,
    params=[
        *pasts.list_options(),
        click.Option(["--resume-cost"], type=click.FloatRange(0, 100_000), default=30.0, show_default=True,
                     metavar="GPU-MINUTES",
                     help="What one resume costs: the start of a model server, the patience of a person."),
        click.Option(["--today"], type=pasts.Duration(), default="30m", show_default=True,
                     help="The window in use now."),
        click.Option(["--svg"], metavar="FILE", help="Write the curve as SVG."),
        show.output_option,
    ],
    help="Find out how long a GPU should be quiet before it is paused: the curve of savings against interruptions, and "
    "the window that costs least in idle GPU time and resumes; for classes and workloads of their own where the "
    "history carries it.",
)
