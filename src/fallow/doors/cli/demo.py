"""`fallow demo`: a pretend GPU cluster through a day, with the real controller at work in it over real sockets.

On a terminal the day is a live picture, then the report, then the cluster goes on in real time for kubectl until
Ctrl-C; elsewhere it is a line per hour and the report. Nothing outside this process is touched: the API server and the
exporters are ours, on loopback.
"""

import asyncio
import functools
import logging
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fallow import loop, names
from fallow.doors.cli import demo_view as view
from fallow.doors.cli import main, pasts, show
from fallow.model import decision, marks, units
from fallow.model.units import HOUR, Instant
from fallow.sim import backtest, cast, shelf, stage
from fallow.sim.world import world as worlds

PORT = 6440
_KEPT = 60  # happenings remembered for the picture
_PERSON = {
    "acknowledged": ("ack", "keeps it"), "complained": ("person", "scaled it up by hand"),
    "regretted": ("person", "wanted it within 15m"), "missed": ("person", "needs it and finds it paused"),
}
_LIVELIEST = (view.BUSY, view.UNKNOWN, view.STARTING, view.NOTICE, view.IDLE)
_RSS_UNIT = 1024.0 * 1024 if sys.platform == "darwin" else 1024.0


class Director:
    """Drives the stage, and knows what to tell of it."""

    def __init__(self, on: stage.Stage, *, speed: float, stop: asyncio.Event) -> None:
        self.on, self.speed, self.stop = on, speed, stop
        self.began = on.world.now
        self.started = time.monotonic()
        self.ends = on.world.span.start + on.world.span.columns * on.world.span.step
        self.feed: list[view.Happening] = []
        self.notices = self.frozen = self.failed = 0
        self.took: list[float] = []  # seconds of each cycle
        self._seen = 0  # changes of the world
        self._findings: dict[tuple[str, str, str], decision.Finding] = {}

    async def step(self) -> None:
        """One interval, in no less time than the speed asks for."""
        world, began = self.on.world, time.monotonic()
        await self.on.pass_time(self.on.interval)
        ticked = time.monotonic()
        self._learn(await self.on.tick(), world.now)
        self.took.append(time.monotonic() - ticked)
        if self.speed:
            await loop.nap(self.stop, max(0.0, self.on.interval / self.speed - (time.monotonic() - began)))

    def _learn(self, cycle: decision.Cycle, now: Instant) -> None:
        self.failed += bool(cycle.failure)
        self.frozen += cycle.plan is not None and cycle.plan.freeze is not None
        if cycle.plan is not None and cycle.snapshot is not None:
            found = (cycle.plan.findings[index] for index in range(len(cycle.snapshot.workloads)))
            by_ref = ((each.workload.ref, each) for each in found)
            self._findings = {(ref.kind, ref.namespace, ref.name): each for ref, each in by_ref}
        self.feed += self._people()
        self.feed += filter(None, (self._tell(outcome, now) for outcome in cycle.outcomes))
        self.feed += [view.Happening(now, "fault", cycle.failure)] if cycle.failure else []
        del self.feed[:-_KEPT]

    def _people(self) -> Iterator[view.Happening]:
        changes = self.on.world.changes_since(self._seen)
        self._seen += len(changes)
        for change in changes:
            workload = self.on.world.find(change.uid)
            if workload is not None and change.what in _PERSON:
                (kind, words), part = _PERSON[change.what], workload.part
                yield view.Happening(change.at, kind, f"{part.namespace}/{part.name}: its {part.owner} owner {words}")
            elif change.what.endswith((" begins", " over")):
                yield view.Happening(change.at, "fault", f"{change.what} {change.uid}")

    def _tell(self, outcome: decision.Outcome, now: Instant) -> view.Happening | None:
        match outcome:
            case decision.Outcome(decision=decision.Warn(finding=finding, pauses_at=at), status=decision.Status.done):
                self.notices += 1
                idle = units.humane(now - finding.idle_since) if finding.idle_since is not None else "?"
                until = f", pauses at {units.clock_time(at)}" if at is not None else ""
                return view.Happening(now, "notice", f"{_name(finding)} idle for {idle}{until}")
            case decision.Outcome(decision=decision.Pause(finding=finding), status=status, detail=detail):
                ref, gpus = finding.workload.ref, f"{finding.gpus} GPU{'' if finding.gpus == 1 else 's'}"
                done = f"{gpus} free, resume: fallow resume {ref.short} -n {ref.namespace}"
                what = done if status is decision.Status.done else f"{status}: {detail}"
                return view.Happening(now, "pause", f"{_name(finding)} {what}")
            case decision.Outcome(decision=decision.Resume(workload=resumed, by=by), status=decision.Status.done):
                return view.Happening(now, "resume", f"{resumed.ref} asked for by {by}")
        return None

    def look(self) -> view.Moment:
        world, plan = self.on.world, self.on.cycle.plan if self.on.cycle else None
        spent = time.monotonic() - self.started
        return view.Moment(
            began=self.began, now=world.now, ends=self.ends, nodes=tuple(self._nodes()),
            sums=self.add_up(), feed=tuple(self.feed),
            paused=sum(one.state is worlds.SimState.paused for one in world.workloads),
            frozen=plan.freeze.because if plan is not None and plan.freeze is not None else "",
            faults=tuple(map(str, world.faults)), speed=(world.now - self.began) / spent if spent else 0.0,
        )

    def _nodes(self) -> Iterator[view.NodeCells]:
        """Of a GPU that is cut or shared, the liveliest state."""
        world = self.on.world
        states: dict[tuple[str, int], set[str]] = {}
        for workload in world.workloads:
            for slot in (slot for pod in workload.pods for slot in pod.slots):
                node, gpu, _ = world.device_of(slot)
                states.setdefault((node.name, gpu), set()).add(self._state(workload))
        for node in world.nodes.values():
            found = (states.get((node.name, gpu), ()) for gpu in range(node.gpus))
            cells = (next((state for state in _LIVELIEST if state in each), view.FREE) for each in found)
            yield view.NodeCells(node.name, tuple(cells), node.ready)

    def _state(self, workload: worlds.SimWorkload) -> str:
        found = self._findings.get((workload.part.kind, workload.part.namespace, workload.part.name))
        if workload.state is worlds.SimState.starting:
            return view.STARTING
        if found is None or found.verdict is decision.Verdict.unknown:
            return view.UNKNOWN
        if found.verdict is decision.Verdict.active:
            return view.BUSY
        return view.NOTICE if marks.notice_at(found.workload) is not None else view.IDLE

    def add_up(self) -> backtest.BacktestResult:
        sums = backtest.add_up(self.on.world, "demo")
        sums.notices, sums.frozen_ticks, sums.lost_ticks = self.notices, self.frozen, self.failed
        return sums

    def report(self) -> None:
        world = self.on.world
        day, spent = world.now - self.began, time.monotonic() - self.started
        gpus, mean = sum(node.gpus for node in world.nodes.values()), sum(self.took) / max(1, len(self.took))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _RSS_UNIT
        broken = f"{len(self.on.broken)} broke a promise" if self.on.broken else ""
        view.tell(f"The day of {units.rfc3339(self.began)[:10]}", self.add_up(), (
            f"{units.humane(day)} of {gpus} GPUs on {len(world.nodes)} nodes with {len(world.workloads)} workloads in "
            f"{spent:.1f} s ({day / max(spent, 1e-9):,.0f} times as fast as life)",
            f"{len(self.took)} cycles of the controller over sockets, {1000 * mean:.0f} ms each, the longest "
            f"{max(self.took, default=0.0):.2f} s; {memory:.0f} MB of memory at most",
            "every pause was checked against the truth of the world: "
            + (broken or "quiet, measured, announced, and the way back exact"),
        ))


def _name(finding: decision.Finding) -> str:
    return f"{finding.workload.ref.namespace}/{finding.workload.ref.name} ({finding.workload.ref.kind})"


# ---- running it -----------------------------------------------------------------------------------------------------


def find_port(asked: int | None) -> int:
    """The port asked for, or ours, or any; a port that was asked for and is taken is an error that names a free one."""
    wanted = PORT if asked is None else asked
    try:
        socket.create_server(("127.0.0.1", wanted)).close()
        return wanted
    except OSError:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            other: int = listener.getsockname()[1]
    if asked is not None:
        raise click.UsageError(f"--port: {asked} is taken by another program; {other} is free: --port {other}")
    show.sentence(f"port {wanted} is taken by another program: {other} is used instead")
    return other


def choose_past(hours: float, seed: int, nodes: int, trace: str | None) -> shelf.PastWorld:
    """The day of a trace, or a day of our own; better with real duty cycles in it where they are at hand."""
    if trace is not None:
        return pasts.read_trace(trace, seed=seed, hours=hours, nodes=nodes)
    real, why = shelf.open_real_lives(pasts.traces_folder())
    make = functools.partial(cast.make_world, seed=seed, nodes=nodes, hours=hours, real=real)
    what = "; all lives are made up" if real is None else " in which services and notebooks do what real GPUs did"
    return shelf.PastWorld(make, f"a made-up day (seed {seed}){what}: {why}")


async def play(
    world: worlds.World, *, speed: float, hours: float, port: int, faults: list[worlds.Fault], is_watched: bool
) -> int:
    """The day, the report, and on a terminal what comes after; the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stage.plan_faults(world, faults)
    with tempfile.TemporaryDirectory(prefix="fallow-demo-") as folder:
        async with stage.open_stage(world, Path(folder), port=port) as on:
            director = Director(on, speed=speed, stop=stop)
            director.ends = min(director.ends, director.began + hours * HOUR)
            await (_watch(director, stop) if is_watched else _recite(director, stop))
            director.report()
            for broken in on.broken:
                show.sentence(f"  broken: {broken}")
            if is_watched and not stop.is_set():
                await _stay(director, stop, Path(folder) / "kubeconfig")
            return 1 if on.broken else 0


async def _recite(director: Director, stop: asyncio.Event) -> None:
    hour = director.began
    while director.on.world.now < director.ends and not stop.is_set():
        await director.step()
        if director.on.world.now >= hour + HOUR:
            hour += HOUR
            show.sentence(view.hour_line(director.look()))


async def _watch(director: Director, stop: asyncio.Event) -> None:
    from rich.live import Live

    picture = view.Picture(director.look())
    with Live(picture, refresh_per_second=8, screen=True, redirect_stdout=False, redirect_stderr=False):
        while director.on.world.now < director.ends and not stop.is_set():
            await director.step()
            picture.moment = director.look()


async def _stay(director: Director, stop: asyncio.Event, kubeconfig: Path) -> None:
    """The cluster goes on, a second a second."""
    click.echo("\nThe cluster goes on in real time, and fallow with it, until Ctrl-C. In another terminal:")
    show.sentence(f"  export KUBECONFIG={kubeconfig}")
    events = f"kubectl get events -A | grep {names.EVENT_PREFIX}"
    show.sentence(f"  kubectl get idlepolicies; kubectl get deployments -A; {events}")
    resume = f"kubectl annotate KIND/NAME -n NAMESPACE {names.RESUME_REQUESTED}=me"
    show.sentence(f"  {resume}    # brings back what is paused")
    next_cycle = director.on.world.now + director.on.interval
    while not stop.is_set():
        await director.on.pass_time(1.0)
        if director.on.world.now >= next_cycle:
            next_cycle += director.on.interval
            await director.on.tick()
        await loop.nap(stop, 1.0)


def read_faults(text: str) -> list[worlds.Fault]:
    known = [str(fault) for fault in worlds.Fault]
    asked = known if text == "all" else [word.strip() for word in text.split(",") if word.strip()]
    if unknown := [word for word in asked if word not in known]:
        raise click.UsageError(f"--faults: {unknown[0]!r} is no fault; known are all, {', '.join(known)}")
    return [worlds.Fault(word) for word in asked]


@click.command("demo", context_settings=main.CONTEXT)
@click.option("--hours", type=click.FloatRange(0.5, 24 * 14), default=24.0, show_default=True,
              help="How much of the day to replay.")
@click.option("--speed", type=click.FloatRange(0), default=0.0,
              help="Simulated seconds per second; 0: as fast as it goes.  [default: 0]")
@click.option("--nodes", type=click.IntRange(1, 500), default=16, show_default=True,
              help="Nodes of eight GPUs each, or so many of a trace.")
@click.option("--seed", type=int, default=7, show_default=True, help="The same seed gives the same day.")
@click.option("--faults", default="", metavar="A,B", help="Faults to switch on during the day, or all: "
              f"{', '.join(map(str, worlds.Fault))}.")
@click.option("--trace", metavar="NAME|FILE", help=pasts.TRACE_HELP)
@click.option("--port", type=click.IntRange(0, 65535), default=None,
              help=f"Port of the pretend API server.  [default: {PORT}]")
def demo(**asked: Any) -> None:
    """Watch a pretend GPU cluster through a day, with the real controller at work in it.

    Needs no cluster, no GPU and no Prometheus. On a terminal the cluster stays up afterwards, for kubectl, until
    Ctrl-C.
    """
    faults, port, hours = read_faults(asked["faults"]), find_port(asked["port"]), asked["hours"]
    past = choose_past(hours, asked["seed"], asked["nodes"], asked["trace"])
    show.sentence(past.summary, *past.notes)
    logging.getLogger("fallow").addHandler(logging.NullHandler())  # what the controller would log is in the picture
    logging.getLogger("fallow").propagate = False
    how = {"speed": asked["speed"], "hours": hours, "port": port, "faults": faults, "is_watched": sys.stdout.isatty()}
    sys.exit(asyncio.run(play(past.make_world(), **how)))
