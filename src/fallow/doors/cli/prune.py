"""`gpu-pruner`, `fallow prune` and `fallow run`: one look, or the daemon with listener, Lease and signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from typing import Any

from fallow import logs, loop, settings
from fallow.clients import errors
from fallow.doors import listen
from fallow.doors.cli import flags, interrupts, processes
from fallow.model import decision, units
from fallow.wiring import daemon, gaming, helping

log = logging.getLogger("fallow")


def start(options: settings.Settings) -> int:
    """Runs what was asked for; the exit code."""
    logs.set_up(options.log_format, options.log_level)
    try:
        if options.loop.daemon:
            return interrupts.run(_watch(options))
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


async def _watch(options: settings.Settings) -> int:
    """The daemon. Whatever task ends unexpectedly ends the process: half a daemon would look alive and do nothing."""
    processes.calm_collector()
    # A web server: a tenth of a second that one look can do without.
    from fallow.doors.api import app, costs, editions, people

    pace, slack_address, cost_address = options.loop, options.serving.slack_address, costs.find_address(options)
    with contextlib.ExitStack() as stack:
        flags_of = {
            slack_address: "--slack-interaction-addr", pace.dashboard_address: "--dashboard-addr",
            pace.metrics_address: "--metrics-addr", cost_address: "--cost-api-port",
        }
        listeners = {
            address: stack.enter_context(contextlib.closing(listen.open_listener(address, flag)))
            for address, flag in flags_of.items() if address is not None
        }
        async with contextlib.AsyncExitStack() as opened:
            made = await opened.enter_async_context(daemon.assemble(options, time.time))
            story = made.loop
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, story.stop)
            latest = editions.Editions(
                story, options, time.time, kept=made.audit, draw=made.eyes.draw,
                suspects=lambda: gaming.find_suspects(story),
            )
            latest.books, latest.acks = costs.make_books(options, made), made.books.acks if made.books else None
            latest.explainer, latest.forecasts = made.explainer, made.forecasts
            who = await opened.enter_async_context(people.open_people(options, made, latest, time.time))
            async with asyncio.TaskGroup() as tasks:
                servers = []
                for address, listener in listeners.items():
                    is_page, is_slack = address == pace.dashboard_address, address == slack_address
                    if address == cost_address and not (is_page or is_slack):  # the dashboard's has its answers, too
                        server = app.make_cost_server(story.health, story.metrics, who.reads)
                    else:
                        server = app.make_server(
                            story.health, story.metrics, who.reads if is_page else None,
                            [*(who.routes if is_page else []), *(who.buttons if is_slack else [])],
                        )
                    tasks.create_task(server.serve([listener]))
                    servers.append(server)
                watching = [tasks.create_task(task) for task in [*story.background(), who.live.run()]]
                mode = "acting" if options.mandate.acting else "in dry-run"
                log.info("watching, %s, every %s", mode, units.humane(pace.interval))
                is_well = await story.run()
                who.changes.close()
                for server in servers:
                    server.stop()
                for task in watching:
                    task.cancel()
            await story.release()
            return 0 if is_well else flags.EXIT_NO_DECISION


def _run(**given: Any) -> None:
    sys.exit(start(flags.read_settings({**_with_login(given), "daemon_mode": True})))


def _prune(**given: Any) -> None:
    sys.exit(start(flags.read_settings(_with_login(given))))


def _with_login(given: dict[str, Any]) -> dict[str, Any]:
    """By our own name people are asked who they are, unless somebody says otherwise."""
    return {**given, "dashboard_auth": given.get("dashboard_auth") or "kube"}


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
