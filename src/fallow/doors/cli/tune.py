"""`fallow tune`: how long a GPU should be quiet before it is paused, for a stated price of one resume.

In: a past (pasts.py), the price of a resume in GPU-minutes, today's window. Out: the curve of savings against interruptions, with today and
the recommendation marked, in the terminal and as SVG or PNG; the windows of classes and workloads that deserve one of their own.
"""

from typing import Any

import click
import msgspec

from fallow.doors.cli import main, pasts, plot, show
from fallow.model import units
from fallow.model.units import DAY, HOUR, MINUTE, Seconds
from fallow.sim import tuning

_MOST_SHOWN = 20  # workloads in the table: those with the longest history


def make_chart(points: list[tuning.Point], today: tuning.Point, advised: tuning.Advice, days: float) -> plot.Chart:
    def place(point: tuning.Point) -> plot.Point:
        return point.interruptions / days, point.saved_gpu_hours / days

    marks = (
        plot.Mark("T", f"today, {units.humane(today.window)}: {_costs(today)}", place(today)),
        plot.Mark("R", f"recommended, {units.humane(advised.window)}: {_costs(advised.point)}", place(advised.point)),
    )
    shortest, longest = units.humane(points[0].window), units.humane(points[-1].window)
    return plot.Chart(
        f"Savings against interruptions, windows from {shortest} (right) to {longest} (left)",
        "interruptions a day", "GPU-hours saved a day",
        (plot.Curve("all workloads", tuple(map(place, points)), tuple(units.humane(point.window) for point in points)),), marks,
    )


def _costs(point: tuning.Point) -> str:
    return f"saves {point.saved_gpu_hours:,.0f} GPU-hours, {point.interruptions} interruptions, costs {point.cost_gpu_hours:,.0f} GPU-hours"


def _rows(points: list[tuning.Point], best: float) -> list[list[Any]]:
    return [
        [units.humane(point.window), f"{point.saved_gpu_hours:,.1f} h", f"{point.burned_gpu_hours:,.1f} h", point.pauses,
         point.interruptions, point.regrets, f"{point.cost_gpu_hours:,.1f} h", f"{point.cost_gpu_hours / best:.3f}" if best else "-"]
        for point in points
    ]


def _show(points: list[tuning.Point], chart: plot.Chart, today: tuning.Point, found: tuning.Recommendation, cost: Seconds) -> None:
    import shutil

    click.echo(plot.draw_text(chart, columns=max(40, min(100, shutil.get_terminal_size().columns - 12))))
    click.echo()
    every = sorted({point.window: point for point in [*points, today, found.all.point]}.values(), key=lambda point: point.window)
    columns = ["WINDOW", "SAVED", "BURNED", "PAUSES", "INTERRUPTIONS", "REGRETTED", "COST", "OF BEST"]
    show.table(columns, _rows(every, min(point.cost_gpu_hours for point in every)))
    click.echo()
    show.sentence(
        f"Recommended for a resume that costs {cost / MINUTE:.0f} GPU-minutes: {units.humane(found.all.window)} "
        f"(rests on {found.all.silences} silences); today's {units.humane(today.window)} costs "
        f"{today.cost_gpu_hours / found.all.point.cost_gpu_hours if found.all.point.cost_gpu_hours else 1.0:.3f} times as much."
    )
    rows = [[name, units.humane(advice.window), advice.rests_on, advice.silences] for name, advice in found.by_class.items()]
    own = sorted(_own(found).items(), key=lambda item: -item[1].silences)
    rows += [[name, units.humane(advice.window), "workload", advice.silences] for name, advice in own[:_MOST_SHOWN]]
    click.echo()
    show.table(["CLASS OR WORKLOAD", "WINDOW", "RESTS ON", "SILENCES"], rows)
    if len(own) > _MOST_SHOWN:
        show.sentence(f"... and {len(own) - _MOST_SHOWN} more workloads with a window of their own: -o json lists them all.")


def _own(found: tuning.Recommendation) -> dict[str, tuning.Advice]:
    """Workloads whose history carries a window of their own."""
    return {name: advice for name, advice in found.by_workload.items() if advice.rests_on == "workload"}


def _tune(resume_cost: float, today: Seconds, svg: str | None, png: str | None, output: str, **asked: Any) -> None:
    past = pasts.read(asked)
    silences, parts, length = pasts.find_silences(past)
    if not len(silences.seconds):
        raise click.ClickException("nothing was ever quiet in this past: there is no window to choose")
    cost = resume_cost * MINUTE
    points, found = tuning.draw_curve(silences, cost), tuning.recommend(silences, parts, cost)
    now = tuning.measure(silences, today, cost)
    chart = make_chart(points, now, found.all, max(length, HOUR) / DAY)
    try:
        written = plot.save(chart, svg, png)
    except plot.CannotDraw as problem:
        raise click.UsageError(show.plain(problem)) from None
    if output in ("json", "yaml"):
        told = msgspec.to_builtins({"curve": points, "today": now, "advice": found})
        show.data({"past": past.summary, "notes": list(past.notes), "resumeCostSeconds": cost, **told}, output)
        return
    pasts.tell(past)
    click.echo()
    _show(points, chart, now, found, cost)
    for name in written:
        show.sentence(f"written: {name}")


tune = click.Command(
    "tune", callback=_tune, context_settings=main.CONTEXT,
    params=[
        *pasts.options(),
        click.Option(["--resume-cost"], type=click.FloatRange(0, 100_000), default=30.0, show_default=True, metavar="GPU-MINUTES",
                     help="What one resume costs: the start of a model server, the patience of a person."),
        click.Option(["--today"], type=pasts.Duration(), default="30m", show_default=True, help="The window in use now."),
        click.Option(["--svg"], metavar="FILE", help="Write the curve as SVG."),
        click.Option(["--png"], metavar="FILE", help="Write the curve as PNG; needs Pillow (pip install 'fallow[png]')."),
        show.output_option,
    ],
    help="Find out how long a GPU should be quiet before it is paused: the curve of savings against interruptions, and the window that "
    "costs least in idle GPU time and resumes; for classes and workloads of their own where the history carries it.",
)
