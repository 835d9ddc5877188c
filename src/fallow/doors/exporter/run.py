"""The exporter's story: poll, find out whose it is, show it all at once; answer scrapes meanwhile; remember over a restart.

In: the options, a Driver, a Table of processes, Attribution, two clocks. Out: an exit code, when told to stop.
The driver has a thread of its own, and whose GPUs these are is asked beside it: neither a call that hangs nor a silent kubelet holds up an
answer. A scrape sees one complete poll. What the driver said before it fell silent is not told for long: a frozen value is a false one.
"""

import asyncio
import contextlib
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fallow import __version__
from fallow.clients import errors, worker
from fallow.decide.node import tenancies
from fallow.doors.exporter import access, collect, expose, keeping, serve
from fallow.doors.exporter.health import Health
from fallow.model import processes
from fallow.model.units import Instant, Seconds
from fallow.settings.exporter import Options

log = logging.getLogger("fallow.exporter")

SAVE_EVERY: Seconds = 30.0
_WAIT_FOR_OWNERS: Seconds = 0.2  # an answering kubelet takes milliseconds; one that does not is heard at the next poll
_TO_CLOSE: Seconds = 1.0  # for each farewell: all of them are done within 5 s

Clock: TypeAlias = Callable[[], float]
Cgroups: TypeAlias = Mapping[expose.Key, str]
Tenants: TypeAlias = Mapping[expose.Key, processes.Tenant]


class Exporter:
    """Polls, and knows what to answer."""

    def __init__(
        self, options: Options, driver: processes.Driver, table: processes.Table, owners: processes.Owners,
        clock: Clock = time.time, monotonic: Clock = time.monotonic,
    ) -> None:
        self.health = Health(options.poll_interval)
        self.board = expose.Board(options.constant_labels)
        self._options, self._table, self._owners = options, table, owners
        self._clock, self._monotonic = clock, monotonic
        self._collector = collect.Collector(driver, table, options)
        self._memory = tenancies.Memory()
        self._totals = expose.Totals()
        self._worker = worker.Worker("driver")
        self._asking: asyncio.Task[None] | None = None
        self._last_success: Instant | None = None
        self._saved = monotonic()
        self._said = ""
        self._withhold()

    # ---- polling -----------------------------------------------------------------------------------------------------------------

    async def poll_forever(self) -> None:
        """The first poll at once, then one each interval; what is late is left out. A driver that is gone may be due earlier."""
        interval, started = self._options.poll_interval, self._monotonic()
        while True:
            await self.poll()
            await self._save_if_due()
            now = self._monotonic()
            due = find_next_turn(started, now, interval)
            await asyncio.sleep(max(0.0, min(due, self._collector.retry_at or due) - now))

    async def poll(self) -> None:
        """One poll; nobody sees it before it is complete. A defect spoils this one, not the next."""
        now, began = self._clock(), self._monotonic()
        self.health.begin(began)
        self._ask_for_owners(now)
        try:
            await self._look(now, began)
        except Exception:
            log.exception("a poll failed by a defect")
            self._totals.add(processes.Poll(now, processes.Result.error, "", [], [], [], {}))
            self.health.end(processes.Result.error, (), self._monotonic())
            self._withhold()

    async def _look(self, now: Instant, began: Seconds) -> None:
        poll, cgroups = await self._worker.do(lambda: self._read(now, began))
        ended = self._monotonic()
        tenants, held = await self._find_owners(poll, cgroups, now, began)
        is_up = poll.result is not processes.Result.error
        self._last_success = now if is_up else self._last_success
        self._totals.add(poll)
        scene = self._scene(poll, tenants, held, is_up=is_up, poll_duration=ended - began)
        self.board.show(await self._worker.do(lambda: self.board.prepare(scene)))
        self.health.end(poll.result, poll.problems, ended)
        self._say(poll)

    def _read(self, now: Instant, began: Seconds) -> tuple[processes.Poll, Cgroups]:
        """In the worker: all that blocks."""
        poll = self._collector.poll(now, began)
        held = {(process.pid, process.start) for judged in poll.devices for process in judged.processes or ()}
        is_wanted = self._options.attribution != "off"
        return poll, {key: self._table.cgroup_of(*key) for key in held} if is_wanted else {}

    def _ask_for_owners(self, now: Instant) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._owners.refresh(now))
            self._asking.add_done_callback(_report)

    async def _find_owners(
        self, poll: processes.Poll, cgroups: Cgroups, now: Instant, began: Seconds
    ) -> tuple[Tenants, list[processes.Tenancy]]:
        """Whose each process is, and what each pod has of the GPUs."""
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_WAIT_FOR_OWNERS)
        tenants = {(pid, start): self._owners.tenant_of(pid, start, text) for (pid, start), text in cgroups.items()}
        grants = self._owners.grants(poll.devices)
        # As the ledger does it: seen at one poll and again right after STALE_AFTER is no gap.
        patience = self._options.stale_after + self._options.poll_interval
        return tenants, tenancies.tenancies(poll, tenants, grants, self._memory, now, began, patience)

    def _scene(
        self, poll: processes.Poll | None, tenants: Tenants, held: list[processes.Tenancy], *, is_up: bool,
        poll_duration: Seconds | None = None,
    ) -> expose.Scene:
        return expose.Scene(
            poll, tenants, held, most_processes=self._options.max_processes_per_gpu, is_up=is_up, last_success=self._last_success,
            poll_duration=poll_duration, attribution_up=dict(self._owners.up), totals=self._totals.copy(),
        )

    def _withhold(self) -> None:
        """Show nothing that the driver said."""
        self.board.show(expose.Page(self._scene(None, {}, [], is_up=False), self._options.constant_labels))

    def _say(self, poll: processes.Poll) -> None:
        """In the log: when the driver comes, goes, or fails for another reason."""
        if poll.result is processes.Result.error:
            said = f"the driver does not work: {self.why_down()}"
        else:
            said = f"the driver answers: version {poll.driver_version or 'unknown'}, GPUs: {len(poll.devices)}"
        if said != self._said:
            log.log(logging.INFO if self.health.is_up else logging.WARNING, "%s", said)
        self._said = said

    def why_down(self) -> str:
        return str(self._collector.trouble or "see above")

    # ---- answers -----------------------------------------------------------------------------------------------------------------

    def routes(self) -> dict[str, serve.Route]:
        return {
            "/metrics": serve.Route(self._show_metrics),
            "/healthz": serve.Route(lambda _: _verdict(self.health.why_unwell(self._monotonic())), is_open=True),
            "/readyz": serve.Route(lambda _: _verdict(self.health.why_not_ready(self._monotonic())), is_open=True),
        }

    def _show_metrics(self, accept: str) -> serve.Answer:
        is_over = bool(self.health.died) or self.health.is_stuck(self._monotonic())
        if is_over and self.board.scene.poll is not None:
            self._withhold()
        form = expose.choose_form(accept)
        return serve.Answer(200, self.board.text(form), form)

    # ---- remembering -------------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        if self._options.state_dir is None:
            return
        now, monotonic = self._clock(), self._monotonic()
        state, why = keeping.load(self._options.state_dir, self._table.boot_id(), self._options.state_max_gap, now, monotonic)
        if state is not None:
            self._collector.restore(state.processes, monotonic)
            why = self._memory.restore(state.tenancies, monotonic) if state.tenancies is not None else ""
        if why:
            log.warning("%s", why)

    async def _save_if_due(self) -> None:
        if self._monotonic() - self._saved >= SAVE_EVERY:
            await self._worker.do(self.save)

    def save(self) -> None:
        """In any thread, also while a call to the driver hangs. Who has seen nothing knows nothing better than the file does."""
        if self._options.state_dir is None or self._last_success is None:
            return
        self._saved = monotonic = self._monotonic()
        state = keeping.State(
            self._table.boot_id(), self._clock(), monotonic, self._collector.state(monotonic), self._memory.export()
        )
        try:
            keeping.save(self._options.state_dir, state)
        except errors.Misconfigured as problem:
            log.warning("%s; idle times will not survive a restart", problem)

    async def close(self, *, is_remembered: bool = True) -> None:
        """Each farewell has its time, and none can keep us."""
        if is_remembered:
            self.save()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._owners.close(), _TO_CLOSE)
        with contextlib.suppress(TimeoutError, errors.ClientError):
            await asyncio.wait_for(self._worker.do(self._collector.close), _TO_CLOSE)


def find_next_turn(started: Seconds, now: Seconds, interval: Seconds) -> Seconds:
    """The first multiple of the interval that is still to come."""
    return started + (math.floor((now - started) / interval) + 1) * interval


def _verdict(why: str) -> serve.Answer:
    return serve.Answer(503, f"{why}\n".encode()) if why else serve.Answer(200, b"ok\n")


def _report(asking: "asyncio.Task[None]") -> None:
    if not asking.cancelled() and (problem := asking.exception()) is not None:
        log.error("whose processes these are could not be asked", exc_info=problem)


# ---- the process ---------------------------------------------------------------------------------------------------------------


async def run(options: Options, exporter: Exporter) -> int:
    """The daemon, until a signal; raises settings.UsageError before anything has begun."""
    gate = access.Gate(options.web_config_file, time.monotonic)
    listener = serve.open_listener(options.bind_address, options.http_port)
    scheme = "https" if gate.current().tls else "http"
    host = f"[{options.bind_address}]" if ":" in options.bind_address else options.bind_address
    log.info("version %s on %s://%s:%d, polling every %gs", __version__, scheme, host, options.http_port, options.poll_interval)
    exporter.restore()
    stopped = _wait_for_signal()
    serving = asyncio.create_task(serve.Server(listener, gate, exporter.routes()).serve())
    polling = asyncio.create_task(_poll(exporter, is_driver_required=options.require_driver))
    await asyncio.wait({serving, polling, stopped}, return_when=asyncio.FIRST_COMPLETED)
    code = 0 if stopped.done() else 1
    await _end(serving, polling, stopped)
    await exporter.close()
    return code


async def _poll(exporter: Exporter, *, is_driver_required: bool) -> None:
    """Ends only if the driver is required and not there. A loop that ends by a defect is told by /healthz, for whoever restarts us."""
    try:
        if is_driver_required:
            await exporter.poll()
            if not exporter.health.is_up:
                log.error("REQUIRE_DRIVER: %s", exporter.why_down())
                return
        await exporter.poll_forever()
    except Exception as problem:
        log.exception("the loop ended by a defect")
        exporter.health.died = type(problem).__name__
    await asyncio.Event().wait()


async def run_once(options: Options, exporter: Exporter) -> int:
    """Polls often enough to tell what is idle, prints the page, ends."""
    stopped = _wait_for_signal()
    polling = asyncio.create_task(_poll_some(options, exporter))
    patience = options.idle_polls * options.poll_interval + exporter.health.patience
    await asyncio.wait({polling, stopped}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    is_done = polling.done() and exporter.health.is_up
    if not is_done:
        why = exporter.why_down() if polling.done() else "stopped" if stopped.done() else "a call to the driver does not return"
        log.error("no answer from the driver: %s", why)
    sys.stdout.buffer.write(exporter.board.text(expose.Form.text))
    sys.stdout.flush()
    await _end(polling, stopped)
    await exporter.close(is_remembered=False)
    return 0 if is_done else 1


async def _poll_some(options: Options, exporter: Exporter) -> None:
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
