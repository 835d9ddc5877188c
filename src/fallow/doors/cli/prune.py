"""`gpu-pruner`, `fallow prune` and `fallow run`: one look, or the daemon with listener, Lease and signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fallow import logs, loop, settings
from fallow.clients import errors
from fallow.doors import listen
from fallow.doors.cli import flags, interrupts, processes, reloading
from fallow.model import decision, units
from fallow.settings import config_file
from fallow.wiring import daemon, gaming, helping

if TYPE_CHECKING:
    from fallow.doors.api import app, people

log = logging.getLogger("fallow")
Address: TypeAlias = tuple[str, int]


def start(options: settings.Settings, given: dict[str, Any], usual: Mapping[str, Any] | None = None) -> int:
    """Runs what was asked for; the exit code. `given`, `usual`: by which settings are read anew when their file
    changes."""
    logs.set_up(options.log_format, options.log_level)
    try:
        if options.loop.daemon:
            return interrupts.run(_watch_on(options, given, usual))
        return interrupts.run_shortly(_look_once(options))
    except (settings.UsageError, errors.Misconfigured) as problem:
        log.error("%s", problem)
        return flags.EXIT_USAGE
    except errors.ClientError as problem:
        log.error("no decision: %s", problem)
        return flags.EXIT_NO_DECISION
    except Exception:  # a defect of ours: it ends the process, and its traceback is one line of the log like all else
        log.exception("ended by a defect")
        return flags.EXIT_NO_DECISION


async def _look_once(options: settings.Settings) -> int:
    opened = daemon.assemble(options, time.time, tell=lambda why: log.warning("%s", why), only_verdicts=True)
    with helping.say_what_to_do(helping.OF_A_LOOK):
        async with opened as made:
            cycle = await made.loop.run_once(daemon.IDLE, acting=options.mandate.acting)
    _tell_help(cycle, options)
    return exit_code(cycle)


def _tell_help(cycle: loop.Ended | None, options: settings.Settings) -> None:
    """Behind "no decision": what to do about it."""
    seen = cycle.snapshot if isinstance(cycle, decision.Cycle) else None
    if seen is not None and (trouble := seen.evidence.trouble) is not None:
        from fallow.doors.answers import status as statuses  # all that is shown to people: mostly nothing is wrong

        helps = statuses.help_source(trouble, asks_prometheus=options.prometheus is not None)
        log.error("what helps: %s", helps)


def exit_code(cycle: loop.Ended | None) -> int:
    """What one cycle amounts to; None: there was none."""
    if not isinstance(cycle, decision.Cycle) or cycle.failure or cycle.plan is None:
        return flags.EXIT_NO_DECISION
    if any(outcome.status is decision.Status.failed for outcome in cycle.outcomes):
        return flags.EXIT_ACTION_FAILED
    return flags.EXIT_FROZEN if cycle.plan.freeze is not None else 0


async def _watch_on(
    options: settings.Settings, given: dict[str, Any], usual: Mapping[str, Any] | None
) -> int:
    """The daemon, put together anew whenever its file of settings says something else. Those that turn out not to work
    give way to the former."""
    path, ending = config_file.find(given, options.environment), asyncio.Event()
    file = reloading.SettingsFile(path, lambda: _read_again(given, usual), options) if path is not None else None
    former: settings.Settings | None = None
    while True:
        begun = asyncio.Event()
        try:
            ended = await _watch(options, file, ending, begun)
        except Exception as problem:  # whatever it is: by the former settings it has worked
            if former is None or begun.is_set():
                raise
            options, former = _go_back(file, former, problem), None
            continue
        if isinstance(ended, int):
            return ended
        former, options = options, ended
        logs.set_up(options.log_format, options.log_level)


def _go_back(
    file: reloading.SettingsFile | None, former: settings.Settings, problem: Exception
) -> settings.Settings:
    logs.set_up(former.log_format, former.log_level)
    defect = None if isinstance(problem, settings.UsageError | errors.ClientError) else problem
    log.error("the new settings do not work; the former hold on: %s", problem, exc_info=defect)
    if file is not None:
        file.holds = former
    return former


def _read_again(given: dict[str, Any], usual: Mapping[str, Any] | None) -> settings.Settings:
    environ = settings.environment()
    found = settings.read_flags(config_file.complete(given, environ, usual), environ)
    if not found.loop.daemon:
        raise settings.UsageError("a daemon cannot become one look: daemon-mode")
    return found


async def _watch(
    options: settings.Settings, file: reloading.SettingsFile | None, ending: asyncio.Event, begun: asyncio.Event
) -> int | settings.Settings:
    """The daemon, and its exit code; or the settings by which it goes on. Whatever task ends unexpectedly ends the
    process: half a daemon would look alive and do nothing. `ending`: it was told to end, by whichever settings.
    `begun`: it is put together, so that its settings do work."""
    processes.calm_collector()
    # A web server: a tenth of a second that one look can do without.
    from fallow.doors.api import costs, editions, people

    with contextlib.ExitStack() as stack:
        listeners = {
            address: stack.enter_context(contextlib.closing(listen.open_listener(address, flag)))
            for address, flag in _list_addresses(options).items()
        }
        async with contextlib.AsyncExitStack() as opened:
            made = await opened.enter_async_context(daemon.assemble(options, time.time))
            story = made.loop
            _heed_signals(story, ending)
            latest = editions.Editions(
                story, options, time.time, kept=made.audit, draw=made.eyes.draw,
                suspects=lambda: gaming.find_suspects(story),
            )
            latest.books, latest.acks = costs.make_books(options, made), made.books.acks if made.books else None
            latest.explainer, latest.forecasts = made.explainer, made.forecasts
            who = await opened.enter_async_context(people.open_people(options, made, latest, time.time))
            async with asyncio.TaskGroup() as tasks:
                servers = {address: _make_server(address, options, story, who) for address in listeners}
                for address, server in servers.items():
                    tasks.create_task(server.serve([listeners[address]]))
                watching = [tasks.create_task(task) for task in [*story.background(), who.live.run()]]
                following = tasks.create_task(_follow(file, story)) if file is not None else None
                mode = "acting" if options.mandate.acting else "in dry-run"
                log.info("watching, %s, every %s", mode, units.humane(options.loop.interval))
                begun.set()
                is_well = await story.run()
                then = following.result() if following is not None and following.done() else None
                if following is not None:
                    following.cancel()
                who.changes.close()
                for server in servers.values():
                    server.stop()
                for task in watching:
                    task.cancel()
            await story.release()
            if then is not None and not ending.is_set():
                return then
            return 0 if is_well else flags.EXIT_NO_DECISION


def _list_addresses(options: settings.Settings) -> dict[Address, str]:
    """Where it listens, with the flag that says so."""
    from fallow.doors.api import costs

    flags_of = {
        options.serving.slack_address: "--slack-interaction-addr", options.loop.dashboard_address: "--dashboard-addr",
        options.loop.metrics_address: "--metrics-addr", costs.find_address(options): "--cost-api-port",
    }
    return {address: flag for address, flag in flags_of.items() if address is not None}


def _make_server(address: Address, options: settings.Settings, story: loop.Loop, who: people.People) -> app.Server:
    from fallow.doors.api import app, costs

    is_page, is_slack = address == options.loop.dashboard_address, address == options.serving.slack_address
    if address == costs.find_address(options) and not (is_page or is_slack):  # the dashboard's has its answers, too
        return app.make_cost_server(story.health, story.metrics, who.reads)
    return app.make_server(
        story.health, story.metrics, who.reads if is_page else None,
        [*(who.routes if is_page else []), *(who.buttons if is_slack else [])],
    )


def _heed_signals(story: loop.Loop, ending: asyncio.Event) -> None:
    """Who is told to end while settings change is not put together anew."""
    def end() -> None:
        ending.set()
        story.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    if ending.is_set():
        story.stop()


async def _follow(file: reloading.SettingsFile, story: loop.Loop) -> settings.Settings:
    found = await file.follow()
    story.stop()
    return found


_LOGIN: Final = {"dashboard_auth": "kube"}  # by our own name people are asked who they are


def _run(**given: Any) -> None:
    asked = {**given, "daemon_mode": True}
    sys.exit(start(flags.read_settings(asked, usual=_LOGIN), asked, _LOGIN))


def _prune(**given: Any) -> None:
    sys.exit(start(flags.read_settings(given, usual=_LOGIN), given, _LOGIN))


run = flags.FlagCommand(
    "run", callback=_run, context_settings=flags.CONTEXT,
    params=[*flags.flag_options("--daemon-mode")],
    help="Keep watching a cluster: look every --check-interval seconds, say what is idle, and with --run-mode "
    "scale-down pause it.\n\nServes /metrics, /healthz and /readyz at --metrics-addr, with --dashboard-port also the "
    "dashboard and its API. Several replicas may run; the "
    "holder of the Lease acts.",
)
prune = flags.FlagCommand(
    "prune", callback=_prune, params=[*flags.flag_options()], context_settings=flags.CONTEXT,
    help="The same as gpu-pruner: look once (or with -d keep looking) and say, or do, what is to be done.",
)
