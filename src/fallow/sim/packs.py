"""Packing, played through: a cluster, the pods that come to it, and what each policy makes of them.

In: a Setup: nodes, arrivals and tie order, of a trace or of a live cluster. Out: a PackResult per policy: the curve,
and at chosen points how much was allocated, how much of the rest was fragmented, and what no packer could have
exceeded; several side by side on all cores.
Invariant: nothing is written anywhere; what could not be computed is None with a reason, never 0.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Final

import msgspec

from fallow.decide import packing
from fallow.sim.traces import openb

POINTS: Final = (80, 90, 95, 100, 110, 120, 130)  # % of GPUs arrived
REFERENCE: Final = "FGD"  # what gains are measured against
_ENOUGH: Final = 1.01  # of the cluster's GPUs: all arrivals that count for 100 %

Clock = Callable[[], float]


class Setup(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """`sample`: the mix that popularity and prices come from. `summary`: what it is; `notes`: what was left out."""

    name: str
    nodes: packing.Nodes
    sample: tuple[packing.PackingPod, ...]
    arrivals: tuple[packing.PackingPod, ...]
    order: packing.Ints
    summary: str
    notes: tuple[str, ...] = ()


class PackPoint(msgspec.Struct, frozen=True, rename="camel"):
    """In % of the cluster's GPUs; `fragmented` in % of what is free."""

    arrived: int
    allocated: float | None
    fragmented: float | None
    idle_gpus: float | None
    bound: float | None


class PackResult(msgspec.Struct, frozen=True, eq=False):
    asked: str
    fallback: str  # why another one stood in
    points: tuple[PackPoint, ...]
    pods_per_second: float | None
    curve: packing.Curve  # of who decided: what Auto chose, or what stood in

    @property
    def label(self) -> str:
        return self.asked if self.curve.policy == self.asked else f"{self.asked}: {self.curve.policy}"


def of_trace(trace: openb.OpenbTrace, seed: int) -> Setup:
    nodes, run = packing.Nodes(list(trace.nodes.values())), trace.arrive(seed)
    notes = [f"{what}: {report}" for what, report in trace.reports.items() if any(report.left_out.values())]
    notes += [f"{what}: {example}" for what, report in trace.reports.items() for example in report.examples[:3]]
    return Setup(
        name=trace.name, nodes=nodes, sample=tuple(trace.sample), arrivals=run.pods, order=run.order,
        notes=tuple(notes), summary=f"trace {trace.name}, {run.origin}: {_describe(nodes)}, {len(run.pods)} arrivals",
    )


def of_live(found: packing.LiveCluster, seed: int) -> Setup:
    """Pods like the cluster's own in any order, some of them more than once, until they asked for 130 % of the GPUs."""
    nodes, drawn = found.room.nodes, openb.draw(found.room.nodes.rows, found.sample, seed).pods
    arrivals = f"{len(drawn)} arrivals drawn from {len(found.sample)} pods (seed {seed})"
    return Setup(
        name="the cluster", nodes=nodes, sample=found.sample, arrivals=drawn, order=found.order, notes=found.notes,
        summary=f"the cluster: {_describe(nodes)}, {arrivals}",
    )


def _describe(nodes: packing.Nodes) -> str:
    return f"{len(nodes)} nodes, {nodes.capacity // packing.GPU} GPUs"


def prepare(setup: Setup, policy: str, seed: int) -> packing.PackingPolicy:
    return packing.prepare(policy, setup.nodes, setup.sample, seed, setup.order)


def play(
    setup: Setup, policy: str, seed: int, *, cpu: Clock, points: Sequence[int] = POINTS,
    bounds: dict[int, float | None] | None = None, tell: Callable[[int], None] | None = None,
) -> PackResult:
    """`cpu`: the processor's time so far, for the speed. `bounds`: as `find_bounds` gives them."""
    prepared = prepare(setup, policy, seed)
    began = cpu()
    curve = packing.replay(setup.nodes, setup.arrivals, prepared, setup.order, tell=tell)
    took = cpu() - began
    tables = packing.make_tables(setup.nodes, setup.sample)
    known = tuple(
        PackPoint(
            percent, share, tables.find_share(find_room(setup, curve, percent)) if tables else None,
            curve.idle_gpus(percent), (bounds or {}).get(percent),
        )
        for percent in points if (share := curve.at(percent)) is not None
    )
    speed = len(setup.arrivals) / took if took and setup.arrivals else None
    return PackResult(packing.spell(policy), prepared.fallback, known, speed, curve)


def _cut_at(setup: Setup, percent: int) -> Sequence[packing.PackingPod]:
    """Those who come until they asked for so much of the cluster."""
    return packing.cut_at(setup.arrivals, percent * setup.nodes.capacity // 100)


def find_room(setup: Setup, curve: packing.Curve, percent: int) -> packing.Room:
    """What is free once that much has arrived."""
    room = packing.Room(setup.nodes)
    for pod, placement in zip(_cut_at(setup, percent), curve.placements, strict=False):
        if placement:
            room.add(pod, placement)
    return room


def find_bounds(setup: Setup, points: Sequence[int]) -> tuple[dict[int, float | None], str]:
    """What no packer could have exceeded, by % arrived; and why it is not known, where it is not.

    Where all that arrived can be hosted, that is what was asked for, on average near that percent, as in a curve.
    """
    bounds: dict[int, float | None] = {}
    asked, capacity = packing.add_up(setup.arrivals), max(setup.nodes.capacity, 1)
    for percent in points:
        arrived = _cut_at(setup, percent)
        try:
            most = packing.find_bound(setup.nodes, arrived)
        except packing.Unsolved as reason:
            return dict.fromkeys(points), str(reason)
        near = packing.find_near(asked, capacity, percent)
        is_all = near.any() and arrived and round(most - 100 * asked[len(arrived) - 1] / capacity, 6) >= 0
        bounds[percent] = round(100 * float(asked[near].mean()) / capacity if is_all else most, 2)
    return bounds, ""


def plan_moves(setup: Setup, curve: packing.Curve, percent: int, budget: int) -> packing.MovePlan:
    """One-move repair of the state where that much has arrived, for what was refused until then."""
    both = list(zip(_cut_at(setup, percent), curve.placements, strict=False))
    running = [packing.Running(pod, placement) for pod, placement in both if placement]
    waiting = [pod for pod, placement in both if not placement]
    return packing.plan_moves(find_room(setup, curve, percent), running, waiting, setup.order, budget)


class PackRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One policy on one trace, the mean over the seeds where 100 % arrived; gains in GPUs, distances in points."""

    trace: str
    policy: str
    decided: str
    allocated: float | None
    idle_gpus: float | None
    gain_gpus: float | None
    bound: float | None
    to_bound: float | None
    pods_per_second: float | None


class _PackPart(msgspec.Struct, frozen=True):
    trace: str
    policy: str  # "" = the bound
    decided: str
    shares: tuple[float | None, ...]
    gpus: int
    pods_per_second: float | None


def compare(
    traces: Sequence[openb.OpenbFiles], wanted: Sequence[str], seeds: Sequence[int], *, cpu: Clock,
    tell: Callable[[str], None] = lambda what: None, workers: int | None = None,
) -> list[PackRow]:
    """Every policy on every trace. `tell` hears what was done; `workers`: processes, by default one per processor."""
    asked = [*dict.fromkeys([*wanted, REFERENCE])]
    jobs = [(trace, policy, tuple(seeds), cpu) for trace in traces for policy in ("", *asked)]
    parts: dict[tuple[str, str], _PackPart] = {}
    for part in _spread(jobs, min(workers or os.cpu_count() or 1, len(jobs))):
        parts[part.trace, part.policy] = part
        tell(f"{part.trace} {part.policy or 'bound'}")
    return [_line_up(parts, trace.name, policy) for trace in traces for policy in wanted]


def _spread(jobs: Sequence[tuple[openb.OpenbFiles, str, tuple[int, ...], Clock]], workers: int) -> Iterator[_PackPart]:
    if workers < 2:
        yield from (_run(*job) for job in jobs)
        return
    with futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        for done in futures.as_completed([pool.submit(_run, *job) for job in jobs]):
            yield done.result()


def _run(files: openb.OpenbFiles, policy: str, seeds: tuple[int, ...], cpu: Clock) -> _PackPart:
    """Prices come from the whole pod list, so they serve for all seeds; what Auto chooses and Random draws does not."""
    trace = openb.read_files(files)
    shares, decided, pods, took = list[float | None](), list[str](), 0, 0.0
    prepared: packing.PackingPolicy | None = None
    for seed in seeds:
        setup = of_trace(trace, seed)
        if not policy:
            shares.append(find_bounds(setup, [100])[0][100])
            continue
        if prepared is None or policy in ("Auto", "Random"):
            prepared = prepare(setup, policy, seed)
        arrivals, began = packing.cut_at(setup.arrivals, int(_ENOUGH * setup.nodes.capacity)), cpu()
        shares.append(packing.replay(setup.nodes, arrivals, prepared, setup.order).at(100))
        took, pods = took + cpu() - began, pods + len(arrivals)
        decided.append(prepared.name)
    gpus = sum(node.gpus for node in trace.nodes.values())
    speed = pods / took if took else None
    return _PackPart(files.name, policy, "/".join(dict.fromkeys(decided)), tuple(shares), gpus, speed)


def _line_up(parts: dict[tuple[str, str], _PackPart], trace: str, policy: str) -> PackRow:
    part = parts[trace, policy]
    allocated, other, bound = (find_mean(parts[trace, name].shares) for name in (policy, REFERENCE, ""))
    return PackRow(
        trace=trace, policy=policy, decided=part.decided, allocated=allocated, bound=bound,
        idle_gpus=_points(100.0, allocated, part.gpus / 100), gain_gpus=_points(allocated, other, part.gpus / 100),
        to_bound=_points(bound, allocated), pods_per_second=part.pods_per_second,
    )


def find_mean(values: Sequence[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 2) if known and len(known) == len(values) else None


def _points(more: float | None, less: float | None, times: float = 1.0) -> float | None:
    return None if more is None or less is None else round((more - less) * times, 2)
