"""`fallow pack simulate|plan|defrag|compare`: how full GPUs get under each packing policy, which one to take, and what one move would free.

In: a trace, or the live cluster (pack_scenes.py). Out: tables, the allocation curve against the bound and the published curves in the
terminal and as SVG or PNG, or everything for machines. Nothing is changed anywhere: these are answers, not acts.
"""

import contextlib
import csv
import io
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from fallow.decide.packing import defrag, fragments, live, place, policies, rehearse, state
from fallow.doors import answers
from fallow.doors.cli import main, pack_scenes, pasts, plot, show
from fallow.model.units import Instant
from fallow.sim import packs
from fallow.sim.traces import openb
from fallow.sim.traces import published as traces

COLUMNS: Final = ("POLICY", "ARRIVED%", "ALLOC%", "FRAG%", "IDLE_GPUS", "LP_BOUND%", "PODS/S")
COMPARED: Final = ("FGD", "SPP", "Auto")
DRAWN: Final = ("FGD", "BestFit", "Random")  # of the published curves: the best, one in the middle, the worst
REHEARSAL_SECONDS: Final = 60.0  # of CPU
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_STEP: Final = 200  # arrivals between two steps of the progress bar

output_option = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "json", "csv", "yaml"]), default="table", show_default=True, help="How to show it."
)
Cell = str | int | float | None


def policy_option(*default: str, multiple: bool) -> click.Option:
    kind = click.Choice(policies.NAMES, case_sensitive=False)
    told = f"Packing policy{' (repeatable)' if multiple else ''}.  [default: {', '.join(default)}]"
    return click.Option(["--policy"], type=kind, multiple=multiple, default=default if multiple else default[0], help=told)


def answer(output: str, told: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """For machines: everything as JSON or YAML, the rows as CSV. Whether that was it."""
    if output in ("json", "yaml"):
        show.data(msgspec.to_builtins(told, str_keys=True), output)
    elif output == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *(["" if cell is None else cell for cell in row] for row in rows)])
        click.echo(text.getvalue(), nl=False)
    return output != "table"


def say(cell: Cell) -> str:
    return "-" if cell is None else f"{cell:,.2f}" if isinstance(cell, float) else str(cell)


def tell(scene: packs.Setup) -> None:
    show.sentence(scene.summary)
    for note in scene.notes:
        show.sentence(f"  {note}")


@contextlib.contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal's standard error; nothing where that is none."""
    with click.progressbar(length=length, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        yield bar.update


def look(asked: Mapping[str, Any], now: Instant) -> tuple[packs.Setup, live.Live]:
    found = pack_scenes.look(dict(asked), now)
    return packs.of_live(found, asked["seed"]), found


def open_scene(asked: Mapping[str, Any]) -> packs.Setup:
    """The trace, or the live cluster with pods drawn from its own."""
    scene = look(asked, time.time())[0] if asked["cluster"] else packs.of_trace(pack_scenes.read_trace(asked["trace"]), asked["seed"])
    if not scene.nodes.capacity:
        raise click.ClickException(show.plain(f"there is no GPU to pack: {'; '.join([scene.summary, *scene.notes])}"))
    return scene


# ---- simulate -----------------------------------------------------------------------------------------------------------------


def _simulate(policy: Sequence[str], svg: str | None, png: str | None, output: str, **asked: Any) -> None:
    pack_scenes.check(asked)
    scene = open_scene(asked)
    bounds, unbounded = packs.find_bounds(scene, packs.POINTS)
    results = [_play(scene, name, asked["seed"], bounds) for name in dict.fromkeys(policy)]
    published = {} if asked["cluster"] else _read_published(scene.name, asked["seed"])
    chart = make_chart(scene, results, bounds, published)
    written = _save(chart, svg, png)
    rows = [row for result in results for row in _rows(result)]
    told = {
        "scene": scene.summary, "notes": scene.notes, "boundUnknown": unbounded or None, "published": published,
        "results": [_describe(result) for result in results],
    }
    if answer(output, told, COLUMNS, rows):
        return
    tell(scene)
    for result in results:
        _tell_result(result)
    if unbounded:
        show.sentence(f"the bound is not known: {unbounded}")
    if not rows:
        show.sentence("what arrived never asked for about 80 to 130 % of the GPUs: there is nothing to compare")
        return
    click.echo()
    if chart.curves and any(curve.points for curve in chart.curves):
        click.echo(plot.draw_text(chart, columns=max(40, min(110, shutil.get_terminal_size().columns - 12)), rows=22))
        click.echo()
    show.table(COLUMNS, [[say(cell) for cell in row] for row in rows])
    for name in written:
        show.sentence(f"written: {name}")


def _play(scene: packs.Setup, policy: str, seed: int, bounds: dict[int, float | None]) -> packs.PackResult:
    with progress(policy, len(scene.arrivals)) as advance:
        def step(number: int) -> None:
            if number % _STEP == _STEP - 1:
                advance(_STEP)

        return packs.play(scene, policy, seed, cpu=time.process_time, bounds=bounds, tell=step)


def _read_published(trace: str, seed: int) -> dict[str, tuple[float | None, ...]]:
    try:
        curves, _ = openb.read_published(pasts.traces_folder())
    except traces.TraceError as problem:
        raise click.UsageError(show.plain(problem)) from None
    return {policy: curve for (name, policy, number), curve in curves.items() if (name, number) == (trace, seed)}


def _save(chart: plot.Chart, svg: str | None, png: str | None) -> list[str]:
    try:
        return plot.save(chart, svg, png)
    except plot.CannotDraw as problem:
        raise click.UsageError(show.plain(problem)) from None


def _rows(result: packs.PackResult) -> Iterator[list[Cell]]:
    speed = None if result.pods_per_second is None else round(result.pods_per_second)
    for point in result.points:
        idle = None if point.idle_gpus is None else round(point.idle_gpus)
        yield [result.label, point.arrived, point.allocated, point.fragmented, idle, point.bound, speed]


def _describe(result: packs.PackResult) -> dict[str, Any]:
    curve = {percent: share for percent in range(131) if (share := result.curve.at(percent)) is not None}
    return {
        "policy": result.asked, "decidedBy": result.policy, "fallback": result.fallback or None, "points": result.points,
        "podsPerSecond": result.pods_per_second, "refused": result.refused, "curve": curve,
    }  # fmt: skip


def _tell_result(result: packs.PackResult) -> None:
    if result.fallback:
        show.sentence(f"{result.asked} could not be prepared ({result.fallback}): {result.policy} decided instead")
    if others := {reason: count for reason, count in result.refused.items() if reason is not place.Refusal.NoRoom}:
        show.sentence(f"{result.label}: never to be placed: {', '.join(f'{count} {reason}' for reason, count in others.items())}")


def make_chart(
    scene: packs.Setup, results: Sequence[packs.PackResult], bounds: Mapping[int, float | None],
    published: Mapping[str, Sequence[float | None]],
) -> plot.Chart:
    """Allocated against arrived; every curve has a letter, each at another place along it."""
    lines = [(result.label, [(percent, result.curve.at(percent)) for percent in range(131)]) for result in results]
    lines += [(f"{name} (published)", list(enumerate(published[name]))) for name in DRAWN if name in published]
    known = [(percent, bound) for percent, bound in bounds.items() if bound is not None]
    lines.append(("what no packer could exceed", [(0, 0.0), *known] if known else []))
    curves, marks = list[plot.Curve](), list[plot.Mark]()
    for number, (label, points) in enumerate(lines):
        seen = [(float(percent), share) for percent, share in points if share is not None]
        if seen:
            curves.append(plot.Curve(label, tuple(seen)))
            marks.append(_mark(_LETTERS[number % 26], label, seen, 100 + 6 * number))
    across = "% of the cluster's GPUs asked for so far"
    return plot.Chart(f"GPUs allocated, {scene.name}", across, "% allocated", tuple(curves), tuple(marks))


def _mark(letter: str, label: str, points: Sequence[plot.Point], wanted: float) -> plot.Mark:
    at = min(points, key=lambda point: abs(point[0] - wanted))
    full = [share for percent, share in points if percent == 100]
    return plot.Mark(letter, f"{label}: {full[0]:.2f} at 100" if full else label, at)


# ---- plan ---------------------------------------------------------------------------------------------------------------------


def _plan(output: str, **asked: Any) -> None:
    pack_scenes.check(asked)
    now = time.time()
    scene, cluster = look(asked, now) if asked["cluster"] else (open_scene(asked), None)
    found = _rehearse(scene, asked["seed"])
    columns, rows = ("POLICY", "ALLOC%", "MARGIN"), _margins(found)
    told: dict[str, Any] = {
        "scene": scene.summary, "notes": scene.notes, "policy": found.chosen, "because": found.because, "shares": found.shares,
        "asOf": answers.instant(now),
    }
    stand = _stand(scene, cluster, found.chosen, asked["seed"]) if cluster else None
    if stand:
        told |= stand
    if answer(output, told, columns, rows):
        return
    tell(scene)
    show.sentence(f"Auto, as of {answers.instant(now)}: {found.because}")
    if rows:
        click.echo()
        show.table(columns, [[say(cell) for cell in row] for row in rows])
    if stand:
        _tell_stand(stand)


def _rehearse(scene: packs.Setup, seed: int) -> rehearse.Rehearsal:
    began = time.process_time()
    return policies.rehearse_all(
        scene.nodes, scene.sample, scene.order, seed=seed, may_go_on=lambda: time.process_time() - began < REHEARSAL_SECONDS
    )


def _margins(found: rehearse.Rehearsal) -> list[list[Cell]]:
    """Points by which the chosen one is ahead of each."""
    best = found.shares.get(found.chosen)
    ordered = sorted(found.shares.items(), key=lambda item: -item[1])
    return [[name, round(share, 2), None if best is None else round(best - share, 2)] for name, share in ordered]


def _stand(scene: packs.Setup, cluster: live.Live, policy: str, seed: int) -> dict[str, Any]:
    """How the cluster stands, and where the pods that wait would go."""
    at = cluster.at.copy()
    popular = fragments.find_popular(scene.sample)
    bound, why = packs.find_bounds(
        msgspec.structs.replace(scene, arrivals=(*(each.pod for each in cluster.running), *cluster.waiting)), [10**6]
    )
    told: dict[str, Any] = {
        "gpus": scene.nodes.capacity // state.GPU, "allocatedGpus": at.allocated / state.GPU,
        "fragmentedPercentOfFree": packs.find_fragmented(at, packs.make_tables(scene)),
        "freeGpusByCause": {str(cause): round(gpus, 2) for cause, gpus in fragments.split_by_cause(at, popular).items()},
        "boundPercent": bound[10**6], "boundUnknown": why or None,
        "waiting": [{"pod": name, "node": None, "gpus": [], "why": why} for name, why in cluster.unclear],
    }  # fmt: skip
    prepared = packs.prepare(scene, policy, seed)
    for pod in cluster.waiting:
        found = place.place(at, pod, prepared, scene.order)
        if found:
            at.add(pod, found)
        told["waiting"].append({
            "pod": pod.name, "node": scene.nodes.names[found.node] if found else None, "gpus": found.gpus if found else [],
            "why": "" if found else str(place.refuse(scene.nodes, pod)),
        })  # fmt: skip
    return told


def _tell_stand(stand: Mapping[str, Any]) -> None:
    useless = f"of what is free {say(stand['fragmentedPercentOfFree'])} % is of no use to what usually comes"
    click.echo()
    show.sentence(f"{stand['allocatedGpus']:,.1f} of {stand['gpus']} GPUs are allocated; {useless}")
    bound = "is not known: " + str(stand["boundUnknown"]) if stand["boundPercent"] is None else f"is {stand['boundPercent']:.2f} %"
    show.sentence(f"what no packer could exceed with these pods {bound}")
    rows = [[cause, say(gpus)] for cause, gpus in stand["freeGpusByCause"].items() if gpus]
    if rows:
        show.table(["CAUSE", "FREE GPUS"], rows)
    if stand["waiting"]:
        click.echo()
        lines = [[each["pod"], each["node"] or "-", " ".join(map(str, each["gpus"])), each["why"]] for each in stand["waiting"]]
        show.table(["WAITING", "NODE", "GPU", "WHY"], lines)


# ---- defrag -------------------------------------------------------------------------------------------------------------------

MOVES: Final = ("MOVE", "FROM", "TO", "THEN", "GETS", "GAIN_GPUS")


def _defrag(policy: str, budget: int, output: str, **asked: Any) -> None:
    pack_scenes.check(asked)
    if asked["cluster"]:
        scene, cluster = look(asked, time.time())
        before = cluster.at.allocated
        found = defrag.plan(cluster.at, cluster.running, cluster.waiting, scene.order, budget)
    else:
        scene = open_scene(asked)
        curve = _play(scene, policy, asked["seed"], {}).curve
        before = packs.stand(scene, curve, 100).allocated
        found = packs.plan_moves(scene, curve, 100, budget)
    rows = [_move(scene.nodes, move) for move in found.moves]
    shares = [round(100 * milli / scene.nodes.capacity, 2) if scene.nodes.capacity else None for milli in (before, found.state.allocated)]
    told = {
        "scene": scene.summary, "notes": scene.notes, "budget": budget, "allocatedBefore": shares[0], "allocatedAfter": shares[1],
        "moves": [dict(zip(("pod", "from", "to", "waiting", "placedOn", "gainGpus"), row, strict=True)) for row in rows],
        "direct": [{"pod": pod.name, "node": scene.nodes.names[at.node]} for pod, at in found.direct],
        "left": Counter(_why_left(pod) for pod in found.left),
    }
    if answer(output, told, MOVES, rows):
        return
    tell(scene)
    show.sentence(
        f"{len(found.moves)} moves (budget {budget}) and {len(found.direct)} places without one: "
        f"{say(shares[0])} % of GPUs allocated before, {say(shares[1])} % after"
    )
    for why, count in Counter(_why_left(pod) for pod in found.left).items():
        show.sentence(f"  {count} pods still wait: {why}")
    if rows:
        click.echo()
        show.table(MOVES, [[say(cell) for cell in row] for row in rows])


def _move(nodes: state.Nodes, move: defrag.Move) -> list[Cell]:
    source, target, home = (nodes.names[at.node] for at in (move.source, move.target, move.placement))
    return [move.moved.name, source, target, move.pod.name, home, move.gain / state.GPU]


def _why_left(pod: state.Pod) -> str:
    if pod.gpus == 1:
        return "no single move helps them, or the budget is used up"
    return "they want several GPUs" if pod.gpus else "they want no GPU"


# ---- compare ------------------------------------------------------------------------------------------------------------------

COMPARISON: Final = ("TRACE", "POLICY", "DECIDED", "ALLOC%", "IDLE_GPUS", "GAIN_VS_FGD", "LP_BOUND%", "TO_BOUND", "PODS/S")


def _compare(trace: Sequence[str], policy: Sequence[str], seed: Sequence[int], output: str) -> None:
    folder = pasts.traces_folder()
    names = list(dict.fromkeys(trace)) or openb.find_names(folder)
    for name in names or ["default"]:
        _require(name)
    wanted = list(dict.fromkeys(policy))
    with progress("playing", len(names) * (len({*wanted, packs.REFERENCE}) + 1)) as advance:
        try:
            found = packs.compare(folder, names, wanted, list(dict.fromkeys(seed)), cpu=time.process_time, tell=lambda what: advance(1))
        except traces.TraceError as problem:
            raise click.UsageError(show.plain(problem)) from None
    rows = [_line(row) for row in found]
    if answer(output, {"seeds": list(seed), "rows": found}, COMPARISON, rows):
        return
    seeds = ", ".join(map(str, seed))
    show.sentence(f"{_many(names)}, seeds {seeds}, where 100 % of the GPUs had been asked for; gains in GPUs, distances in points")
    click.echo()
    show.table(COMPARISON, [[say(cell) for cell in row] for row in rows])


def _require(name: str) -> None:
    if name not in openb.find_names(pasts.traces_folder()):
        pack_scenes.read_trace(name)  # says what is missing


def _many(names: Sequence[str]) -> str:
    return f"trace {names[0]}" if len(names) == 1 else f"{len(names)} traces"


def _line(row: packs.PackRow) -> list[Cell]:
    speed, idle = (None if value is None else round(value) for value in (row.pods_per_second, row.idle_gpus))
    gain = None if row.gain_gpus is None else round(row.gain_gpus, 1)
    return [row.trace, row.policy, row.decided, row.allocated, idle, gain, row.bound, row.to_bound, speed]


# ---- the commands -------------------------------------------------------------------------------------------------------------


def _command(name: str, callback: Callable[..., None], params: Iterable[click.Parameter], help: str) -> click.Command:
    return click.Command(name, callback=callback, params=[*params, output_option], context_settings=main.CONTEXT, help=help)


pack = click.Group("pack", context_settings=main.CONTEXT, commands=[
    _command(
        "simulate", _simulate, [
            *pack_scenes.options(), policy_option("Auto", multiple=True),
            click.Option(["--svg"], metavar="FILE", help="Write the curves as SVG."),
            click.Option(["--png"], metavar="FILE", help="Write the curves as PNG; needs Pillow (pip install 'fallow[png]')."),
        ],
        "Let the pods of a trace arrive one by one, or pods like those of the live cluster, and tell how full the GPUs get: allocated, "
        "fragmented and idle, beside the bound that no packer could exceed and the published curves.",
    ),
    _command(
        "plan", _plan, pack_scenes.options(),
        "Rehearse the cluster's own mix of pods and say which policy packs it best, by how much, and why; of a live cluster also what of "
        "its free GPUs is of no use and for what cause, and where each pod that waits would go.",
    ),
    _command(
        "defrag", _defrag, [
            *pack_scenes.options(), policy_option("Auto", multiple=False),
            click.Option(["--budget"], type=click.IntRange(0, 100_000), default=defrag.BUDGET, show_default=True, help="Moves at most."),
        ],
        "List moves of single pods that would each let a waiting one-GPU pod in, with what each gains. Nothing is moved.",
    ),
    _command(
        "compare", _compare, [
            click.Option(["--trace"], metavar="NAME", multiple=True, help="Trace of openb (repeatable).  [default: all]"),
            policy_option(*COMPARED, multiple=True),
            click.Option(["--seed"], type=click.IntRange(0), multiple=True, default=(42,), help="Which order (repeatable).  [default: 42]"),
        ],
        "Play several policies on several traces, on all cores, and print one table: GPUs gained against FGD, distance to the bound.",
    ),
], help="Which node and which GPU each pod should take, so that the fewest GPUs are stranded.\n\nTraces are read from the folder "
"FALLOW_TRACES; nothing is changed anywhere.")  # fmt: skip
