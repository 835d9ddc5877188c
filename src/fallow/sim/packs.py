"""Packing, played through: a cluster, the pods that come to it, and what each policy makes of them.

In: a Scene: nodes, arrivals and tie order, of a trace or of a live cluster. Out: a Result per policy: the curve, and at
chosen points how much was allocated, how much of the rest was fragmented, and what no packer could have exceeded;
several side by side on all cores.
Invariant: nothing is written anywhere; what could not be computed is None with a reason, never 0.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Final

import msgspec

from fallow.decide import packing
from fallow.sim import openb

POINTS: Final = (80, 90, 95, 100, 110, 120, 130)  # % of GPUs arrived
REFERENCE: Final = "FGD"  # what gains are told against
_ENOUGH: Final = 1.01  # of the cluster's GPUs: all arrivals that count for 100 %

Clock = Callable[[], float]


class Scene(msgspec.Struct, frozen=True, eq=False):
    """`sample`: what popularity and prices come from. `told`: what it is, one sentence; `notes`: what was left out."""

    name: str
    nodes: packing.Nodes
    sample: tuple[packing.PackingPod, ...]
    arrivals: tuple[packing.PackingPod, ...]
    order: packing.Ints
    told: str
    notes: tuple[str, ...] = ()


class Point(msgspec.Struct, frozen=True):
    """In % of the cluster's GPUs; `fragmented` in % of what is free."""

    arrived: int
    allocated: float | None
    fragmented: float | None
    idle_gpus: float | None
    bound: float | None


class Result(msgspec.Struct, frozen=True, eq=False):
    asked: str
    fallback: str  # why another one stood in
    points: tuple[Point, ...]
    pods_per_second: float | None
    curve: packing.Curve  # of who decided: what Auto chose, or what stood in

    @property
    def label(self) -> str:
        return self.asked if self.curve.policy == self.asked else f"{self.asked}: {self.curve.policy}"


def of_trace(trace: openb.Trace, seed: int) -> Scene:
    nodes, run = packing.Nodes(list(trace.nodes.values())), trace.arrive(seed)
    told = f"trace {trace.name}, {run.told}: {_count(nodes)}, {len(run.pods)} arrivals"
    notes = [f"{what}: {report}" for what, report in trace.reports.items() if any(report.left_out.values())]
    notes += [f"{what}: {example}" for what, report in trace.reports.items() for example in report.examples[:3]]
    return Scene(trace.name, nodes, tuple(trace.sample), run.pods, run.order, told, tuple(notes))


def of_live(found: packing.LiveCluster, seed: int) -> Scene:
    """Pods like the cluster's own in any order, some of them more than once, until they asked for 130 % of the GPUs."""
    nodes, drawn = found.room.nodes, openb.draw(found.room.nodes.rows, found.sample, seed).pods
    told = f"the cluster: {_count(nodes)}, {len(drawn)} arrivals drawn from {len(found.sample)} pods (seed {seed})"
    return Scene("the cluster", nodes, found.sample, drawn, found.order, told, found.notes)


def _count(nodes: packing.Nodes) -> str:
    return f"{len(nodes)} nodes, {nodes.capacity // packing.GPU} GPUs"


def prepare(scene: Scene, policy: str, seed: int) -> packing.PackingPolicy:
    return packing.prepare(policy, scene.nodes, scene.sample, seed, scene.order)


def play(
    scene: Scene, policy: str, seed: int, *, cpu: Clock, points: Sequence[int] = POINTS,
    bounds: dict[int, float | None] | None = None, tell: Callable[[int], None] | None = None,
) -> Result:
    """`cpu`: the processor's time so far, for the speed. `bounds`: as `find_bounds` gives them."""
    prepared = prepare(scene, policy, seed)
    began = cpu()
    curve = packing.replay(scene.nodes, scene.arrivals, prepared, scene.order, tell=tell)
    took = cpu() - began
    tables = packing.make_tables(scene.nodes, scene.sample)
    known = tuple(
        Point(
            percent, share, tables.find_share(find_room(scene, curve, percent)) if tables else None,
            curve.idle_gpus(percent), (bounds or {}).get(percent),
        )
        for percent in points if (share := curve.at(percent)) is not None
    )
    speed = len(scene.arrivals) / took if took and scene.arrivals else None
    return Result(packing.spell(policy), prepared.fallback, known, speed, curve)


def find_room(scene: Scene, curve: packing.Curve, percent: int) -> packing.Room:
    """What is free once that much has arrived."""
    room, arrived = packing.Room(scene.nodes), packing.cut_at(scene.arrivals, percent * scene.nodes.capacity // 100)
    for pod, placement in zip(arrived, curve.placements, strict=False):
        if placement:
            room.add(pod, placement)
    return room


def find_bounds(scene: Scene, points: Sequence[int]) -> tuple[dict[int, float | None], str]:
    """What no packer could have exceeded, by % arrived; and why it is not known, where it is not.

    Where all that arrived can be hosted, that is what was asked for: on average near that percent, as curves count it.
    """
    bounds: dict[int, float | None] = {}
    asked, capacity = packing.add_up(scene.arrivals), max(scene.nodes.capacity, 1)
    for percent in points:
        arrived = packing.cut_at(scene.arrivals, percent * scene.nodes.capacity // 100)
        try:
            most = packing.find_bound(scene.nodes, arrived)
        except packing.Unsolved as reason:
            return dict.fromkeys(points), str(reason)
        near = packing.find_near(asked, capacity, percent)
        is_all = near.any() and arrived and round(most - 100 * asked[len(arrived) - 1] / capacity, 6) >= 0
        bounds[percent] = round(100 * float(asked[near].mean()) / capacity if is_all else most, 2)
    return bounds, ""


def plan_moves(scene: Scene, curve: packing.Curve, percent: int, budget: int) -> packing.MovePlan:
    """One-move repair of the state where that much has arrived, for what was refused until then."""
    arrived = packing.cut_at(scene.arrivals, percent * scene.nodes.capacity // 100)
    both = list(zip(arrived, curve.placements, strict=False))
    running = [packing.Running(pod, placement) for pod, placement in both if placement]
    waiting = [pod for pod, placement in both if not placement]
    return packing.plan_moves(find_room(scene, curve, percent), running, waiting, scene.order, budget)


class Row(msgspec.Struct, frozen=True):
    """One policy on one trace, the mean over the seeds at 100 %; gain in GPUs against FGD, points to the bound."""

    trace: str
    policy: str
    decided: str
    allocated: float | None
    idle_gpus: float | None
    gain_gpus: float | None
    bound: float | None
    to_bound: float | None
    pods_per_second: float | None


class _Part(msgspec.Struct, frozen=True):
    trace: str
    policy: str  # "" = the bound
    decided: str
    shares: tuple[float | None, ...]
    gpus: int
    pods_per_second: float | None


def compare(
    folder: Path, names: Sequence[str], wanted: Sequence[str], seeds: Sequence[int], *, cpu: Clock,
    tell: Callable[[str], None] = lambda what: None, workers: int | None = None,
) -> list[Row]:
    """Every policy on every trace. `tell` hears what was done; `workers`: processes, by default one per processor."""
    asked = [*dict.fromkeys([*wanted, REFERENCE])]
    jobs = [(folder, name, policy, tuple(seeds), cpu) for name in names for policy in ("", *asked)]
    parts: dict[tuple[str, str], _Part] = {}
    for part in _spread(jobs, min(workers or os.cpu_count() or 1, len(jobs))):
        parts[part.trace, part.policy] = part
        tell(f"{part.trace} {part.policy or 'bound'}")
    return [_line_up(parts, name, policy) for name in names for policy in wanted]


def _spread(jobs: Sequence[tuple[Path, str, str, tuple[int, ...], Clock]], workers: int) -> Iterator[_Part]:
    if workers < 2:
        yield from (_run(*job) for job in jobs)
        return
    with futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        for done in futures.as_completed([pool.submit(_run, *job) for job in jobs]):
            yield done.result()


def _run(folder: Path, name: str, policy: str, seeds: tuple[int, ...], cpu: Clock) -> _Part:
    """Prices are of the trace's whole pod list and serve for all seeds; what Auto chooses and Random draws does not."""
    trace = openb.read(folder, name)
    shares, decided, pods, took = list[float | None](), list[str](), 0, 0.0
    prepared: packing.PackingPolicy | None = None
    for seed in seeds:
        scene = of_trace(trace, seed)
        if not policy:
            shares.append(find_bounds(scene, [100])[0][100])
            continue
        if prepared is None or policy in ("Auto", "Random"):
            prepared = prepare(scene, policy, seed)
        arrivals, began = packing.cut_at(scene.arrivals, int(_ENOUGH * scene.nodes.capacity)), cpu()
        shares.append(packing.replay(scene.nodes, arrivals, prepared, scene.order).at(100))
        took, pods = took + cpu() - began, pods + len(arrivals)
        decided.append(prepared.name)
    gpus = sum(node.gpus for node in trace.nodes.values())
    return _Part(name, policy, "/".join(dict.fromkeys(decided)), tuple(shares), gpus, pods / took if took else None)


def _line_up(parts: dict[tuple[str, str], _Part], trace: str, policy: str) -> Row:
    part = parts[trace, policy]
    allocated, other, bound = (_find_mean(parts[trace, name].shares) for name in (policy, REFERENCE, ""))
    idle, gain = (_points(*pair, part.gpus / 100) for pair in ((100.0, allocated), (allocated, other)))
    to_bound = _points(bound, allocated)
    return Row(trace, policy, part.decided, allocated, idle, gain, bound, to_bound, part.pods_per_second)


def _find_mean(values: Sequence[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 2) if known and len(known) == len(values) else None


def _points(more: float | None, less: float | None, times: float = 1.0) -> float | None:
    return None if more is None or less is None else round((more - less) * times, 2)
