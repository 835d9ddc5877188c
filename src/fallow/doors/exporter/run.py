"""The exporter as a process: when it polls, what it answers, how it begins and ends.

In: the options, and those of whom the node's story asks. Out: an exit code, when a signal comes; or one printed page.
A scrape sees one complete poll. What the driver said before it fell silent is not shown for long: a frozen value is a
false one. A defect spoils one poll, and is said.
"""

import asyncio
import logging
import math
import signal
import sys
import time
from typing import Any

from fallow import __version__
from fallow.clients import worker
from fallow.doors import listen
from fallow.doors.exporter import access, expose, serve
from fallow.model import processes
from fallow.model.units import Seconds
from fallow.settings.exporter import Options
from fallow.stories import node

log = logging.getLogger("fallow.exporter")


class NodeExporter:
    """Polls, and knows what to answer."""

    def __init__(
        self, options: Options, driver: processes.Driver, table: processes.Table, owners: processes.Owners,
        clock: node.Clock = time.time, monotonic: node.Clock = time.monotonic,
    ) -> None:
        self._thread = worker.Worker("driver")
        self.story = node.NodeStory(options, driver, table, owners, self._thread, clock, monotonic)
        self.page = expose.LatestPage(options.constant_labels, self.story.withhold())
        self._interval, self._monotonic = options.poll_interval, monotonic

    async def poll(self) -> None:
        """One poll; nobody sees it before it is complete. A defect spoils this one, not the next."""
        try:
            view = await self.story.poll()
            self.page.show(view, await self._thread.do(lambda: self.page.prepare(view)))
        except Exception:
            log.exception("a poll failed by a defect")
            self.page.show(self.story.spoil(), {})

    async def poll_forever(self) -> None:
        """At once, then one each interval; what is late is left out. A driver that is gone may be due earlier."""
        started = self._monotonic()
        while True:
            await self.poll()
            await self.story.save_if_due()
            now = self._monotonic()
            due = find_next_turn(started, now, self._interval)
            await asyncio.sleep(max(0.0, min(due, self.story.collector.retry_at or due) - now))

    def routes(self) -> dict[str, serve.Route]:
        health = self.story.health
        return {
            "/metrics": serve.Route(self._show_metrics),
            "/healthz": serve.Route(lambda _: _verdict(health.why_unwell(self._monotonic())), is_open=True),
            "/readyz": serve.Route(lambda _: _verdict(health.why_not_ready(self._monotonic())), is_open=True),
        }

    def _show_metrics(self, accept: str) -> serve.HttpAnswer:
        health = self.story.health
        is_over = bool(health.died) or health.is_stuck(self._monotonic())
        if is_over and self.page.view.poll is not None:
            self.page.show(self.story.withhold(), {})
        form = expose.choose_format(accept)
        return serve.HttpAnswer(200, self.page.text(form), form)


def find_next_turn(started: Seconds, now: Seconds, interval: Seconds) -> Seconds:
    """The first multiple of the interval that is still to come."""
    return started + (math.floor((now - started) / interval) + 1) * interval


def _verdict(why: str) -> serve.HttpAnswer:
    return serve.HttpAnswer(503, f"{why}\n".encode()) if why else serve.HttpAnswer(200, b"ok\n")


async def run(options: Options, exporter: NodeExporter) -> int:
    """The daemon, until a signal; raises settings.UsageError before anything has begun."""
    gate = access.Gate(options.web_config_file, time.monotonic)
    listener = listen.open_listener((options.bind_address, options.http_port), "BIND_ADDRESS, HTTP_PORT")
    scheme = "https" if gate.current().tls else "http"
    host = f"[{options.bind_address}]" if ":" in options.bind_address else options.bind_address
    where = f"{scheme}://{host}:{options.http_port}"
    log.info("version %s on %s, polling every %gs", __version__, where, options.poll_interval)
    exporter.story.restore()
    stopped = _wait_for_signal()
    serving = asyncio.create_task(serve.PageServer(listener, gate, exporter.routes()).serve())
    polling = asyncio.create_task(_poll(exporter, is_driver_required=options.require_driver))
    await asyncio.wait({serving, polling, stopped}, return_when=asyncio.FIRST_COMPLETED)
    code = 0 if stopped.done() else 1
    await _end(serving, polling, stopped)
    exporter.story.save()
    await exporter.story.close()
    return code


async def _poll(exporter: NodeExporter, *, is_driver_required: bool) -> None:
    """Ends only if the driver is required and not there. Whoever restarts us sees that a loop ended by a defect."""
    story = exporter.story
    try:
        if is_driver_required:
            await exporter.poll()
            if not story.health.is_up:
                log.error("REQUIRE_DRIVER: %s", story.why_down())
                return
        await exporter.poll_forever()
    except Exception as problem:
        log.exception("the loop ended by a defect")
        story.health.died = type(problem).__name__
    await asyncio.Event().wait()


async def run_once(options: Options, exporter: NodeExporter) -> int:
    """Polls often enough to tell what is idle, prints the page, ends."""
    stopped = _wait_for_signal()
    polling = asyncio.create_task(_poll_some(options, exporter))
    story = exporter.story
    patience = options.idle_polls * options.poll_interval + story.health.patience
    await asyncio.wait({polling, stopped}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    is_done = polling.done() and story.health.is_up
    if not is_done:
        hanging = "stopped" if stopped.done() else "a call to the driver does not return"
        log.error("no answer from the driver: %s", story.why_down() if polling.done() else hanging)
    sys.stdout.buffer.write(exporter.page.text(expose.Format.text))
    sys.stdout.flush()
    await _end(polling, stopped)
    await story.close()
    return 0 if is_done else 1


async def _poll_some(options: Options, exporter: NodeExporter) -> None:
    for turn in range(options.idle_polls):
        await asyncio.sleep(options.poll_interval if turn else 0.0)
        await exporter.poll()


def _wait_for_signal() -> "asyncio.Task[bool]":
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return asyncio.create_task(stop.wait())


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("ended by a defect", exc_info=outcome)
