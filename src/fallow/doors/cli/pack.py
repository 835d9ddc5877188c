"""`fallow pack simulate|plan|defrag|compare`: how full GPUs get under each policy, which one to take, what to move.

In: a trace, or the live cluster (pack_scenes.py). Out: tables, the allocation curve against the bound and the published
curves in the terminal and as SVG, or everything for machines (answers/packing.py). Nothing is changed anywhere: these
are answers, not acts.
"""

from __future__ import annotations

import csv
import io
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from fallow.decide import packing, sharing
from fallow.doors.answers import layouts, subjects
from fallow.doors.answers import packing as answers
from fallow.doors.cli import main, pack_policies, pack_scenes, pasts, plot, show
from fallow.model import cluster
from fallow.model.seen import Input
from fallow.model.units import Instant
from fallow.sim import packs, shelf
from fallow.sim.traces import openb, samples

COLUMNS: Final = ("POLICY", "ARRIVED %", "ALLOCATED %", "FRAGMENTED %", "IDLE GPUS", "BOUND %", "PODS/S")
MOVES: Final = ("MOVE", "FROM", "TO", "THEN", "GETS", "GPUS GAINED")
COMPARISON: Final = (
    "TRACE", "POLICY", "DECIDED", "ALLOCATED %", "IDLE GPUS", "GAIN ON FGD", "BOUND %", "TO BOUND", "PODS/S",
)
_SPARE: Final = ("PODS/S", "BOUND %", "IDLE GPUS", "DECIDED")  # columns that a narrow terminal does without
COMPARED: Final = ("FGD", "SPP", "Auto")
DRAWN: Final = ("FGD", "BestFit", "Random")  # of the published curves: the best, one in the middle, the worst
_USELESS: Final = "of no use to the pods that usually come"
# For who reads such a table the first time, below it.
TERMS: Final = {
    "ALLOCATED %": "of all GPUs, given to pods, once 100 % of them had been asked for",
    "MARGIN": "points by which the first is ahead",
    "FRAGMENTED %": f"of what is free, {_USELESS}",
    "BOUND %": "what no packer could exceed with these pods", "TO BOUND": "points below it",
    "GAIN ON FGD": "GPUs more than the published rule FGD fills",
}
REHEARSAL_SECONDS: Final = 60.0  # of CPU
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_STEP: Final = 200  # arrivals between two steps of the progress bar

Cell = str | int | float | None
Curves = Mapping[str, Sequence[float | None]]  # of others on the same arrivals, by policy


def answer(output: str, data: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """For machines: everything as JSON or YAML, the rows as CSV. Whether that was it."""
    if output == "csv":
        text, cells = io.StringIO(), (["" if cell is None else cell for cell in row] for row in rows)
        csv.writer(text, lineterminator="\n").writerows([columns, *cells])
        click.echo(text.getvalue(), nl=False)
        return True
    return show.data(msgspec.to_builtins(data, str_keys=True), output)


def say(cell: Cell) -> str:
    if isinstance(cell, int | float):
        return f"{cell:,.2f}" if isinstance(cell, float) else f"{cell:,}"
    return cell or "-"


def _show_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    click.echo()
    click.echo(show.grid(columns, [[say(cell) for cell in row] for row in rows], spare=_SPARE))
    if meant := [f"{name}: {TERMS[name]}" for name in columns if name in TERMS]:
        click.echo()
        show.prose("; ".join(meant))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _describe(scene: packs.Setup) -> dict[str, Any]:
    return {"scene": scene.summary, "notes": scene.notes}


def look(asked: Mapping[str, Any], now: Instant) -> tuple[packs.Setup, packing.LiveCluster]:
    found = pack_scenes.look(dict(asked), now)
    return packs.of_live(found, asked["seed"]), found


def open_scene(asked: Mapping[str, Any]) -> packs.Setup:
    """The trace, or the live cluster with pods drawn from its own."""
    if asked["cluster"]:
        scene, _ = look(asked, time.time())
    else:
        scene = packs.of_trace(pack_scenes.read_trace(asked["trace"]), asked["seed"])
    if not scene.nodes.capacity:
        raise click.ClickException(show.plain(f"there is no GPU to pack: {'; '.join([scene.summary, *scene.notes])}"))
    return scene


# ---- simulate -------------------------------------------------------------------------------------------------------


def _simulate(policy: Sequence[str], svg: str | None, output: str, **asked: Any) -> None:
    pack_scenes.check(asked)
    scene = open_scene(asked)
    bounds, unbounded = packs.find_bounds(scene, packs.POINTS)
    results = [_play(scene, name, asked["seed"], bounds) for name in dict.fromkeys(policy)]
    published = {} if asked["cluster"] else _read_published(asked["trace"], asked["seed"])
    chart = make_chart(scene, results, bounds, published)
    rows = [row for result in results for row in _rows(result)]
    played = [
        answers.replayed(each.asked, each.curve, each.fallback, each.points, each.pods_per_second) for each in results
    ]
    data = {"boundUnknown": unbounded or None, "published": published, "results": played}
    if not answer(output, {**_describe(scene), **data}, COLUMNS, rows):
        _show_simulated(scene, results, chart, rows, unbounded)
    plot.save(chart, svg)


def _show_simulated(
    scene: packs.Setup, results: Sequence[packs.PackResult], chart: plot.Chart, rows: Sequence[Any], unbounded: str
) -> None:
    show.prose(scene.summary, *scene.notes)
    for result in results:
        _tell_result(result)
    if unbounded:
        show.prose(f"the bound is not known: {unbounded}")
    if not rows:
        show.prose("what arrived never asked for about 80 to 130 % of the GPUs: there is nothing to compare")
        return
    click.echo()
    click.echo(plot.draw_text(chart, columns=max(40, min(110, shutil.get_terminal_size().columns - 12)), rows=22))
    _show_table(COLUMNS, rows)


def _play(scene: packs.Setup, policy: str, seed: int, bounds: dict[int, float | None]) -> packs.PackResult:
    with show.progress(policy, len(scene.arrivals), every=_STEP) as tell:
        return packs.play(scene, policy, seed, cpu=time.process_time, bounds=bounds, tell=tell)


def _read_published(trace: str | None, seed: int) -> Curves:
    files, folder = pack_scenes.find_trace(trace), pasts.traces_folder()
    with pasts.refusals():
        curves, _ = openb.read_published(folder)
    return {policy: curve for (mix, policy, number), curve in curves.items() if (mix, number) == (files.mix, seed)}


def _rows(result: packs.PackResult) -> Iterator[list[Cell]]:
    for each in result.points:
        idle, speed = _whole(each.idle_gpus), _whole(result.pods_per_second)
        yield [result.label, each.arrived, each.allocated, each.fragmented, idle, each.bound, speed]


def _tell_result(result: packs.PackResult) -> None:
    curve = result.curve
    if result.fallback:
        show.prose(f"{result.asked} could not be prepared ({result.fallback}): {curve.policy} decided instead")
    if others := [f"{count} {why}" for why, count in curve.refused.items() if why is not packing.Refusal.NoRoom]:
        show.prose(f"{result.label}: never to be placed: {', '.join(others)}")


def make_chart(
    scene: packs.Setup, results: Sequence[packs.PackResult], bounds: Mapping[int, float | None], published: Curves
) -> plot.Chart:
    """Allocated against arrived; every curve has a letter, each somewhere else along it."""
    lines = [(result.label, [(percent, result.curve.at(percent)) for percent in range(131)]) for result in results]
    lines += [(f"{name} (published)", list(enumerate(published[name]))) for name in DRAWN if name in published]
    known = [(percent, bound) for percent, bound in bounds.items() if bound is not None]
    lines.append(("what no packer could exceed", [(0, 0.0), *known] if known else []))
    curves, marks = list[plot.ChartCurve](), list[plot.ChartMark]()
    for number, (label, points) in enumerate(lines):
        seen = [(float(percent), share) for percent, share in points if share is not None]
        if seen:
            curves.append(plot.ChartCurve(label, tuple(seen)))
            marks.append(_mark(_LETTERS[number % 26], label, seen, 100 + 6 * number))
    across = "% of the cluster's GPUs asked for so far"
    return plot.Chart(f"GPUs allocated, {scene.name}", across, "% allocated", tuple(curves), tuple(marks))


def _mark(letter: str, label: str, points: Sequence[plot.Point], wanted: float) -> plot.ChartMark:
    at = min(points, key=lambda point: abs(point[0] - wanted))
    full = [share for percent, share in points if percent == 100]
    return plot.ChartMark(letter, f"{label}: {full[0]:.2f} at 100" if full else label, at)


# ---- plan -----------------------------------------------------------------------------------------------------------


def _plan(output: str, **asked: Any) -> None:
    pack_scenes.check(asked)
    now = time.time()
    if output == "policy" and not asked["cluster"]:
        raise click.UsageError("-o policy is for --cluster: a trace has nobody to apply policies to")
    seen = pack_scenes.read_capacity(dict(asked)) if asked["cluster"] else None
    if output == "policy" and seen is not None:
        _print_policies(seen, pack_scenes.read_sharers(dict(asked), now), now)
        return
    live = packing.settle(seen, now) if seen is not None else None
    scene = packs.of_live(live, asked["seed"]) if live is not None else open_scene(asked)
    began = time.process_time()
    found = packing.rehearse(
        scene.nodes, scene.sample, scene.order, seed=asked["seed"],
        may_go_on=lambda: time.process_time() - began < REHEARSAL_SECONDS,
    )
    columns, margins = ("POLICY", "ALLOCATED %", "MARGIN"), found.margins
    rows = [[name, round(found.shares[name], 2), margin and round(margin, 2)] for name, margin in margins.items()]
    data = {**_describe(scene), **answers.rehearsal(found, now)}
    if live is not None and seen is not None:
        data |= answers.standing(packing.stand(live, packs.prepare(scene, found.chosen, asked["seed"])))
        data |= answers.consolidation(packing.plan_consolidation(seen, now))
        crowd = pack_policies.advise(seen, pack_scenes.read_sharers(dict(asked), now))
        data |= answers.sharers(crowd)
    if answer(output, data, columns, rows):
        return
    show.prose(scene.summary, *scene.notes)
    show.prose(f"Auto, as of {data['asOf']}: {found.because}")
    if rows:
        _show_table(columns, rows)
    if live:
        _tell_standing(data)
        show.prose(f"Who could share a GPU: {subjects.tell_crowd(crowd)}")
        show.sentence("The same as objects to apply: the same command with -o policy.")


def _print_policies(seen: cluster.Capacity, sharers: Input[tuple[sharing.Sharer, ...]], now: Instant) -> None:
    import yaml

    if not pack_policies.count_small(seen):
        raise click.ClickException("no pod asks for exactly one whole GPU, so there is nobody to share one")
    node = pack_policies.find_node(seen, packing.plan_consolidation(seen, now))
    advice = pack_policies.advise(seen, sharers, node[0] if node is not None else "")
    for line in pack_policies.explain(seen, node, advice):
        click.echo(show.plain(f"# {line}"))
    made = pack_policies.make_objects(node, pack_policies.count_replicas(advice))
    click.echo(yaml.safe_dump_all(made, sort_keys=False, explicit_start=True), nl=False)


def _tell_standing(data: Mapping[str, Any]) -> None:
    """The cluster as it is now: what the words mean stands beside the figures."""
    allocated, gpus, useless = data["allocatedGpus"], data["gpus"], data["fragmentedPercentOfFree"]
    share = f" ({100 * allocated / gpus:.2f} %)" if gpus else ""
    bound = f"{say(data['boundPercent'])} %: no packer could allocate more with the pods that run and wait now"
    unknown = "not known: nothing is free, or nothing is known of what usually comes"
    click.echo(f"\n{show.heading('NOW')}")
    click.echo(show.fields([
        ("allocated", f"{allocated:,.1f} of {gpus} GPUs are allocated{share}"),
        ("fragmented", unknown if useless is None else f"{say(useless)} % of what is free is {_USELESS}"),
        ("bound", bound if data["boundPercent"] is not None else f"not known: {data['boundUnknown']}"),
    ]))
    if causes := [[say(free), layouts.CAUSES[cause]] for cause, free in data["freeGpusByCause"].items() if free]:
        click.echo()
        show.table(["FREE GPUS", "WHY"], causes)
    if data["waiting"]:
        rows = [[each.pod, each.node, " ".join(map(str, each.gpus)), each.why] for each in data["waiting"]]
        _show_table(["WAITING", "NODE", "GPU", "WHY"], rows)
    _tell_consolidation(data["consolidation"])


def _tell_consolidation(found: Mapping[str, Any]) -> None:
    click.echo()
    if found["node"] is None:
        show.prose("no node could be emptied")
    else:
        show.prose(f"{found['node']} could be emptied: {found['because']}")
        _show_table(["POD", "WOULD FIT ON"], [[move["pod"], move["node"]] for move in found["moves"]])
    for reason, count in found["staying"].items():
        show.prose(f"  {count} GPU nodes stay: {reason}")


# ---- defrag ---------------------------------------------------------------------------------------------------------


def _defrag(policy: str, budget: int, output: str, **asked: Any) -> None:
    pack_scenes.check(asked)
    if asked["cluster"]:
        scene, live = look(asked, time.time())
        found = packing.plan_moves(live.room, live.running, live.waiting, live.order, budget)
    else:
        scene = open_scene(asked)
        found = packs.plan_moves(scene, _play(scene, policy, asked["seed"], {}).curve, 100, budget)
    data = {**_describe(scene), **answers.moves(found, budget)}
    rows = [list(move.values()) for move in data["moves"]]
    if answer(output, data, MOVES, rows):
        return
    show.prose(scene.summary, *scene.notes)
    show.prose(
        f"moves: {len(found.moves)} (budget {budget}); places without one: {len(found.direct)}; "
        f"{say(data['allocatedBefore'])} % of GPUs allocated before, {say(data['allocatedAfter'])} % after"
    )
    for why, count in data["left"].items():
        show.prose(f"  {count} pods still wait: {why}")
    if rows:
        _show_table(MOVES, rows)


# ---- compare --------------------------------------------------------------------------------------------------------


def _compare(trace: Sequence[str], policy: Sequence[str], seed: Sequence[int], output: str) -> None:
    names, wanted = list(dict.fromkeys(trace)) or _list_openb(), list(dict.fromkeys(policy))
    files = [pack_scenes.find_trace(name) for name in names]
    with show.progress("playing", len(names) * (len({*wanted, packs.REFERENCE}) + 1)) as tell, pasts.refusals():
        found = packs.compare(files, wanted, list(dict.fromkeys(seed)), cpu=time.process_time, tell=tell)
    rows = [_line(row) for row in found]
    if answer(output, {"seeds": list(seed), "rows": found}, COMPARISON, rows):
        return
    which = f"trace {names[0]}" if len(names) == 1 else f"{len(names)} traces"
    where = "where 100 % of the GPUs had been asked for; gains in GPUs, distances in points"
    show.prose(f"{which}, seeds {', '.join(map(str, seed))}, {where}")
    _show_table(COMPARISON, rows)


def _list_openb() -> list[str]:
    """All of the folder, or what is shipped."""
    there = [each.name for each in shelf.list_traces(pasts.traces_folder()).values() if each.kind == shelf.OPENB]
    return [name for name in there if name != samples.SAMPLE_PODS] or there


def _line(row: packs.PackRow) -> list[Cell]:
    gain, idle = None if row.gain_gpus is None else round(row.gain_gpus, 1), _whole(row.idle_gpus)
    speed = _whole(row.pods_per_second)
    return [row.trace, row.policy, row.decided, row.allocated, idle, gain, row.bound, row.to_bound, speed]


# ---- the commands ---------------------------------------------------------------------------------------------------


def policy_option(*default: str, multiple: bool) -> click.Option:
    kind = click.Choice(packing.POLICIES, case_sensitive=False)
    text = f"Packing policy{' (repeatable)' if multiple else ''}.  [default: {', '.join(default)}]"
    first = default if multiple else default[0]
    return click.Option(["--policy"], type=kind, multiple=multiple, default=first, help=text)


output_option = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "json", "csv", "yaml"]), default="table", show_default=True,
    help="How to show it.",
)


plan_output = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "json", "csv", "yaml", "policy"]), default="table",
    show_default=True, help="How to show it; policy: as GPUSharingPolicy and GPUNodeConfig to apply, in audit.",
)


def _command(
    name: str, callback: Callable[..., None], params: Iterable[click.Parameter], short: str, help: str,
    output: click.Option = output_option,
) -> click.Command:
    return click.Command(
        name, callback=callback, params=[*params, output], context_settings=main.CONTEXT, help=help,
        short_help=short,
    )


pack = main.SpellingGroup("pack", context_settings=main.CONTEXT, commands=[
    _command(
        "simulate", _simulate, [
            *pack_scenes.options(), policy_option("Auto", multiple=True),
            plot.svg_option("Write the curves as SVG."),
        ],
        "How full the GPUs get when pods arrive one by one.",
        "Let the pods of a trace arrive one by one, or pods like those of the live cluster, and tell how full the GPUs "
        "get: allocated, fragmented and idle, beside the bound that no packer could exceed and the published curves.",
    ),
    _command(
        "plan", _plan, pack_scenes.options(), "Which policy packs your mix of pods best, and why.",
        "Rehearse the cluster's own mix of pods and say which policy packs it best, by how much, and why; of a live "
        "cluster also what of its free GPUs is of no use and for what cause, and where each pod that waits would go. "
        "-o policy prints the objects by which small work would share GPUs.", plan_output,
    ),
    _command(
        "defrag", _defrag, [
            *pack_scenes.options(), policy_option("Auto", multiple=False),
            click.Option(["--budget"], type=click.IntRange(0, 100_000), default=packing.BUDGET, show_default=True,
                         help="Moves at most."),
        ],
        "Moves that would let waiting pods in.",
        "List moves of single pods that would each let a waiting one-GPU pod in, with what each gains. Nothing is "
        "moved.",
    ),
    _command(
        "compare", _compare, [
            pasts.trace_option(multiple=True),
            policy_option(*COMPARED, multiple=True),
            click.Option(["--seed"], type=click.IntRange(0), multiple=True, default=(42,),
                         help="Which order (repeatable).  [default: 42]"),
        ],
        "Policies side by side on several traces.",
        "Play several policies on several traces, on all cores, and print one table: GPUs gained against FGD, distance "
        "to the bound. A narrow terminal shows fewer columns; -o csv has all.",
    ),
], help="Which node and which GPU each pod should take, so that the fewest GPUs are stranded.\n\nNothing is changed "
"anywhere. Without --trace: openb where the folder FALLOW_TRACES holds it, else the small one that comes with fallow.")
