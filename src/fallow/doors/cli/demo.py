"""`fallow demo`: a pretend GPU cluster through a day that ends now, with the real controller at work in it.

On a terminal the day is a live picture, and then the cluster goes on in real time, for kubectl and for our own
commands, until Ctrl-C; elsewhere it is a line per hour and the report, and with --stay the cluster goes on until
SIGTERM. Nothing outside this process is touched: the API server, Prometheus and the exporters are ours, on loopback.
Exit codes: 1 if a promise was broken, else 130 after Ctrl-C, else 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import click
import msgspec

from fallow import loop
from fallow.doors.cli import demo_director, demo_nodes, demo_report, main, pasts, show
from fallow.doors.cli import demo_view as view
from fallow.model import units
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.sim import cast, fleet, paying, shelf, stage
from fallow.sim.servers import boxes
from fallow.sim.world import nouns
from fallow.sim.world import world as worlds

PORT, PROMETHEUS_PORT, DASHBOARD_PORT = 6440, 6441, 8080
INTERRUPTED: Final = 130  # as a shell says of who was ended by SIGINT
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
TellPace: TypeAlias = Callable[[Seconds], None]  # to whoever asks how often it looks
LIVE_INTERVAL: Final[Seconds] = 30.0  # between two cycles once the day is over: somebody watches what they asked for
_ENDED = "ended by Ctrl-C: the pretend cluster is gone, and nothing else was touched"


class Playing(msgspec.Struct, frozen=True, kw_only=True):
    """How the day is played."""

    hours: float
    port: int  # 0: any, and any for Prometheus
    speed: float = 0.0
    faults: tuple[nouns.Fault, ...] = ()
    is_watched: bool = False
    stays: bool = False
    dashboard_port: int = 0


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """Until the day begins, a signal ends it where it stands: there is a cluster to be made, and nothing to tell."""
    before = {number: signal.signal(number, _leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(0)


class Ending:
    """Whether to end, and by which signal, once the day has begun."""

    def __init__(self) -> None:
        self.asked, self.signals = asyncio.Event(), set[int]()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)

    def _hear(self, number: int) -> None:
        self.signals.add(number)
        self.asked.set()

    @property
    def is_interrupted(self) -> bool:
        return signal.SIGINT in self.signals


def find_port(asked: int | None, usual: int = PORT, flag: str = "--port") -> int:
    """The port asked for, or the usual, or any; one that was asked for and is taken is an error that names a free
    one."""
    wanted = usual if asked is None else asked
    try:
        socket.create_server(("127.0.0.1", wanted)).close()
        return wanted
    except OSError:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            other: int = listener.getsockname()[1]
    if asked is not None:
        raise click.UsageError(f"{flag}: {asked} is taken by another program; {other} is free: {flag} {other}")
    show.sentence(f"port {wanted} is taken by another program: {other} is used instead")
    return other


def choose_past(hours: float, seed: int, nodes: int, trace: str | None) -> shelf.PastWorld:
    """The day of a trace, or a day of our own; better with real duty cycles in it where they are at hand."""
    if trace is not None:
        return pasts.read_trace(trace, seed=seed, hours=hours, nodes=nodes)
    real, why = shelf.open_real_lives(pasts.traces_folder())
    make = functools.partial(cast.make_world, seed=seed, nodes=nodes, hours=hours, real=real, bursts=True)
    what = "; all lives are made up" if real is None else " in which services and notebooks do what real GPUs did"
    return shelf.PastWorld(make, f"a made-up day (seed {seed}){what}: {why}")


def end_now(world: worlds.World, hours: float, now: Instant) -> tuple[worlds.World, Seconds]:
    """The same day, so that its end is now, to the minute; and how long it is."""
    length = min(hours * HOUR, world.span.columns * world.span.step)
    return world.moved((now - length) // MINUTE * MINUTE), length


async def play(past: worlds.World, how: Playing) -> int:
    """The day, the report, and what comes after; the exit code."""
    world, length = end_now(past, how.hours, time.time())
    stage.plan_faults(world, how.faults)
    outside = stage.Outside(time.time, how.port, find_port(None, PROMETHEUS_PORT) if how.port else 0)
    with tempfile.TemporaryDirectory(prefix="fallow-demo-") as folder:
        async with _open_stage(world, Path(folder), outside, how.dashboard_port, length) as (on, link, tell_pace):
            assert on.addresses is not None
            ending = Ending()
            commands = [*say_commands(on.addresses, link), f"# in a browser: {link}"]
            director = demo_director.Director(on, speed=how.speed, length=length, stop=ending.asked, commands=commands)
            await _play_day(director, how, ending, tell_pace)
            return _conclude(on, ending)


@contextlib.asynccontextmanager
async def _open_stage(
    world: worlds.World, folder: Path, outside: stage.Outside, port: int, length: Seconds
) -> AsyncIterator[tuple[stage.Stage, str, TellPace]]:
    """The cluster, the boxes that its owners read, and the dashboard with its address."""
    from fallow.doors.cli import demo_dashboard, demo_gate  # a web server, a webhook: who asks for help does without

    read = boxes.Boxes(lambda: world.clock)
    async with contextlib.AsyncExitStack() as stack:
        await read.start()
        stack.push_async_callback(read.stop)
        listener = stack.enter_context(contextlib.closing(demo_dashboard.listen(port)))
        on = await stack.enter_async_context(stage.open_stage(
            world, folder, flags={**demo_dashboard.flags(listener, read), **demo_nodes.ACTING}, outside=outside,
            policies=stage.make_policies(functools.partial(boxes.channels, read)),
            others=[
                paying.make_prices("default", world.now), *paying.make_budgets(world, length, read.webhook),
                *demo_gate.make_policies(world),
            ],
            gate=demo_gate.opened, fleet=fleet.Fleet(world, length),
        ))
        demo_gate.plan_force(on, length)
        demo_nodes.plan_cut(on, length)
        shown = await stack.enter_async_context(demo_dashboard.serving(on, read, listener))
        yield on, demo_dashboard.link_to(listener), functools.partial(demo_dashboard.tell_pace, shown)


async def _play_day(
    director: demo_director.Director, how: Playing, ending: Ending, tell_pace: TellPace
) -> None:
    show.sentence("while it plays, in another terminal:", *director.commands())
    await (_watch if how.is_watched else _recite)(director)
    if not ending.is_interrupted:
        await director.close_books()
        director.report()
    if how.stays and not ending.asked.is_set():
        await _catch_up(director)
        tell_pace(LIVE_INTERVAL)
        await (_watch_on if how.is_watched else _recite_on)(director)


def _conclude(on: stage.Stage, ending: Ending) -> int:
    for broken in on.broken:
        show.sentence(f"  broken: {broken}")
    if ending.is_interrupted:
        show.sentence(_ENDED)
    return 1 if on.broken else INTERRUPTED if ending.is_interrupted else 0


def say_commands(addresses: stage.Addresses, link: str) -> Iterator[str]:
    """What to type to look in, exactly as it works."""
    if shutil.which("fallow") is None:
        yield f'export PATH="{Path(sys.argv[0]).absolute().parent}:$PATH"'
    yield f"export KUBECONFIG={addresses.kubeconfig}"
    yield f"export PROMETHEUS_URL={addresses.prometheus}"
    yield f"export FALLOW_DAEMON_URL={link.rstrip('/')}"
    yield "fallow status; fallow idle; kubectl get idlepolicies,gsp; fallow top"
    yield "fallow cost report --last 24h; fallow cost budget; fallow cost roi"


async def _recite(director: demo_director.Director) -> None:
    hour = director.began
    while director.on.world.now < director.ends and not director.stop.is_set():
        await director.step()
        if director.on.world.now >= hour + HOUR:
            hour += HOUR
            show.sentence(demo_report.hour_line(director.look()))


@contextlib.contextmanager
def _shown(director: demo_director.Director) -> Iterator[view.Picture]:
    from rich.live import Live

    picture = view.Picture(director.look())
    with Live(picture, refresh_per_second=8, screen=True, redirect_stdout=False, redirect_stderr=False):
        yield picture


async def _watch(director: demo_director.Director) -> None:
    with _shown(director) as picture:
        while director.on.world.now < director.ends and not director.stop.is_set():
            await director.step()
            picture.moment = director.look()


# ---- when the day is over --------------------------------------------------------------------------------------------


async def _catch_up(director: demo_director.Director) -> None:
    """To the present: the day was played in less time than it has, and it was to end when it began to be played."""
    world, interval = director.on.world, director.on.interval
    director.speed, director.is_live, director.on.hurries = 0.0, True, False
    while time.time() - world.now > interval and not director.stop.is_set():
        await director.step()
    await director.on.pass_time(max(0.0, time.time() - world.now))


async def _watch_on(director: demo_director.Director) -> None:
    with _shown(director) as picture:
        while not director.stop.is_set():
            await _go_on(director)
            picture.moment = director.look()


async def _recite_on(director: demo_director.Director) -> None:
    """A line for whatever happens."""
    click.echo()
    show.sentence("The cluster goes on in real time, and fallow with it, until SIGTERM:", *director.commands())
    while not director.stop.is_set():
        for one in await _go_on(director):
            show.sentence(f"{units.clock_time(one.at)}  {one.kind:<7} {one.say()}")


async def _go_on(director: demo_director.Director) -> list[view.Happening]:
    """A second of the world in a second, and now and then a cycle."""
    world = director.on.world
    await loop.nap(director.stop, 1.0)
    await director.on.pass_time(max(0.0, time.time() - world.now))
    if world.now - director.ticked_at < LIVE_INTERVAL or director.stop.is_set():
        return director.hear()
    return await director.tick()


# ---- the command -----------------------------------------------------------------------------------------------------


def read_faults(text: str) -> tuple[nouns.Fault, ...]:
    known = [str(fault) for fault in nouns.Fault]
    asked = known if text == "all" else [word.strip() for word in text.split(",") if word.strip()]
    if text and not asked:
        raise click.UsageError(f"--faults: {text!r} names none; known are all, {', '.join(known)}")
    if unknown := [word for word in asked if word not in known]:
        raise click.UsageError(f"--faults: {unknown[0]!r} is no fault; known are all, {', '.join(known)}")
    return tuple(nouns.Fault(word) for word in asked)


@click.command("demo", context_settings=main.CONTEXT)
@click.option("--hours", type=show.Number(0.5, 24 * 14), default=24.0, show_default=True,
              help="How much of the day to replay; it ends now.")
@click.option("--speed", type=show.Number(0), default=0.0,
              help="Simulated seconds per second; 0: as fast as it goes.  [default: 0]")
@click.option("--nodes", type=click.IntRange(1, 500), default=16, show_default=True,
              help="Nodes of eight GPUs each, or so many of a trace.")
@click.option("--seed", type=click.IntRange(0), default=7, show_default=True, help="The same seed gives the same day.")
@click.option("--faults", default="", metavar="A,B", help="Faults to switch on during the day, or all: "
              f"{', '.join(map(str, nouns.Fault))}.")
@click.option("--trace", metavar="NAME|FILE", help=pasts.TRACE_HELP, callback=pasts.list_and_leave)
@click.option("--stay/--no-stay", default=None, help="Whether the cluster goes on afterwards, in real time, until "
              "Ctrl-C or SIGTERM.  [default: on a terminal]")
@click.option("--port", type=click.IntRange(0, 65535), default=None,
              help=f"Port of the pretend API server.  [default: {PORT}]")
@click.option("--dashboard-port", type=click.IntRange(0, 65535), default=None,
              help=f"Port of the dashboard and the API.  [default: {DASHBOARD_PORT}]")
def demo(**asked: Any) -> None:
    """Watch a pretend GPU cluster through a day, with the real controller at work in it.

    Needs no cluster, no GPU and no Prometheus. It says how to look in from another terminal, with kubectl and with
    `fallow status`, `idle`, `why`, `ack`, `freeze` and the like; on a terminal the cluster stays up afterwards.
    """
    try:
        with leaving_at_once():
            sys.exit(_run(asked))
    except KeyboardInterrupt:  # before the day began, or after it
        show.sentence(_ENDED)
        sys.exit(INTERRUPTED)


def _run(asked: dict[str, Any]) -> int:
    is_watched, stays, faults = sys.stdout.isatty(), asked["stay"], read_faults(asked["faults"])
    past = choose_past(asked["hours"], asked["seed"], asked["nodes"], asked["trace"])
    how = Playing(
        hours=asked["hours"], port=find_port(asked["port"]), speed=asked["speed"], faults=faults,
        is_watched=is_watched, stays=is_watched if stays is None else stays,
        dashboard_port=find_port(asked["dashboard_port"], DASHBOARD_PORT, "--dashboard-port"),
    )
    show.sentence(past.summary, *past.notes)
    logging.getLogger("fallow").addHandler(logging.NullHandler())  # what the controller would log is in the picture
    logging.getLogger("fallow").propagate = False
    return asyncio.run(play(past.make_world(), how))
