"""`gpu-pruner`, `fallow prune` and `fallow run`: one look, or the daemon with listener, Lease and signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from typing import Any

from fallow import logs, loop, settings
from fallow.clients import errors
from fallow.doors.answers import status as statuses
from fallow.doors.cli import flags
from fallow.model import decision, units
from fallow.wiring import daemon

log = logging.getLogger("fallow")


def start(options: settings.Settings) -> int:
    """Runs what was asked for; the exit code."""
    logs.set_up(options.log_format, options.log_level)
    try:
        return asyncio.run(_watch(options) if options.loop.daemon else _look_once(options))
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
    gc.disable()  # the process ends before there is garbage worth looking for
    async with daemon.assemble(options, time.time, tell=lambda why: log.warning("%s", why)) as made:
        cycle = await made.loop.run_once(daemon.IDLE, acting=options.mandate.acting)
    _tell_help(cycle, options)
    return exit_code(cycle)


def _tell_help(cycle: loop.Ended | None, options: settings.Settings) -> None:
    """Behind "no decision": what to do about it."""
    seen = cycle.snapshot if isinstance(cycle, decision.Cycle) else None
    if seen is not None and (trouble := seen.evidence.trouble) is not None:
        helps = statuses.help_source(trouble, asks_prometheus=options.prometheus is not None)
        log.error("what helps: %s", helps)


def exit_code(cycle: loop.Ended | None) -> int:
    """What one cycle amounts to; None: there was none."""
    if not isinstance(cycle, decision.Cycle) or cycle.failure or cycle.plan is None:
        return flags.EXIT_NO_DECISION
    if any(outcome.status is decision.Status.failed for outcome in cycle.outcomes):
        return flags.EXIT_ACTION_FAILED
    return flags.EXIT_FROZEN if cycle.plan.freeze is not None else 0


def calm_collector() -> None:
    """A cycle makes tens of thousands of rows, and none of them is garbage that only the collector finds."""
    gc.set_threshold(50_000, 20, 50)


async def _watch(options: settings.Settings) -> int:
    """The daemon. Whatever task ends unexpectedly ends the process: half a daemon would look alive and do nothing."""
    calm_collector()
    from fallow.doors.api import app  # a web server: a tenth of a second that one look can do without

    address = options.loop.metrics_address
    listener = app.open_listener(address) if address else None
    with contextlib.ExitStack() as stack:
        if listener is not None:
            stack.enter_context(contextlib.closing(listener))
        async with daemon.assemble(options, time.time) as made:
            story = made.loop
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, story.stop)
            async with asyncio.TaskGroup() as tasks:
                server = app.Server(app.make_app(story.health, story.metrics, time.monotonic))
                if listener is not None:
                    tasks.create_task(server.serve([listener]))
                watching = [tasks.create_task(task) for task in story.background()]
                mode, pace = "acting" if options.mandate.acting else "in dry-run", units.humane(options.loop.interval)
                log.info("watching, %s, every %s", mode, pace)
                is_well = await story.run()
                server.stop()
                for task in watching:
                    task.cancel()
            await story.release()
            return 0 if is_well else flags.EXIT_NO_DECISION


def _run(**given: Any) -> None:
    sys.exit(start(flags.read_settings({**given, "daemon_mode": True})))


def _prune(**given: Any) -> None:
    sys.exit(start(flags.read_settings(given)))


run = flags.FlagCommand(
    "run", callback=_run, context_settings=flags.CONTEXT,
    params=[*flags.flag_options("--daemon-mode"), *flags.later_options()],
    help="Keep watching a cluster: look every --check-interval seconds, say what is idle, and with --run-mode "
    "scale-down pause it.\n\nServes /metrics, /healthz and /readyz at --metrics-addr. Several replicas may run; the "
    "holder of the Lease acts.",
)
prune = flags.FlagCommand(
    "prune", callback=_prune, params=[*flags.flag_options(), *flags.later_options()], context_settings=flags.CONTEXT,
    help="The same as gpu-pruner: look once (or with -d keep looking) and say, or do, what is to be done.",
)
