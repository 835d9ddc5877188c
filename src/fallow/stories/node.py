"""A GPU node's story: look at driver and kernel, judge, find out whose it is, show it whole; keep it over a restart.

In: the options, those who are asked (Driver, Table, Owners), the thread for what blocks, two clocks. Out: a NodeView at
each poll, and the exporter's health; who serves them is handed the values.
The driver has a thread of its own, and whose GPUs these are is asked beside it: neither a call that hangs nor a silent
kubelet holds up anything else.
Invariant: a view is of one complete poll. Without a poll that worked nothing of the driver is in it.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fallow.clients import errors, worker
from fallow.decide.node import health, tenancies
from fallow.decide.node import processes as judge
from fallow.model import processes
from fallow.model.units import Instant, Seconds
from fallow.observe.node import collect, keeping
from fallow.settings.exporter import Options

log = logging.getLogger("fallow.exporter")

SAVE_EVERY: Seconds = 30.0
_WAIT_FOR_OWNERS: Seconds = 0.2  # an answering kubelet takes milliseconds; one that does not is heard at the next poll
_TO_CLOSE: Seconds = 1.0  # for each farewell: all of them are done within 5 s

Clock: TypeAlias = Callable[[], float]


class NodeStory:
    def __init__(
        self, options: Options, driver: processes.Driver, table: processes.Table, owners: processes.Owners,
        thread: worker.Worker, clock: Clock, monotonic: Clock,
    ) -> None:
        self.health = health.ExporterHealth(options.poll_interval)
        self.collector = collect.Collector(driver, table)
        self.processes = judge.ProcessHistory(judge.Rules(
            idle_polls=options.idle_polls, threshold=options.idle_threshold_percent, stale_after=options.stale_after,
            poll_interval=options.poll_interval, include_graphics=options.include_graphics,
            only_visible=options.scope == "pod",
        ))
        self._tenancies = tenancies.TenancyHistory()
        self._options, self._table, self._owners, self._thread = options, table, owners, thread
        self._clock, self._monotonic = clock, monotonic
        self._turn = threading.Lock()  # what is saved is read by another thread than the one that polls, and may hang
        self._totals = processes.PollTotals()
        self._asking: asyncio.Task[None] | None = None
        self._last_success: Instant | None = None
        self._saved = monotonic()
        self._said = ""

    async def poll(self) -> processes.NodeView:
        """One poll, from the first question to what is shown. A defect raises: see `spoil`."""
        now, began = self._clock(), self._monotonic()
        self.health.began = began
        self._ask_for_owners(now)
        # 1. Look and judge: all that blocks, in the thread.
        poll, cgroups = await self._thread.do(lambda: self._look(now, began))
        ended = self._monotonic()
        # 2. Whose it is, as far as that is known by now.
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_WAIT_FOR_OWNERS)
        owners = {(pid, start): self._owners.owner_of(pid, start, text) for (pid, start), text in cgroups.items()}
        # 3. Judge what each pod does with what it holds.
        grants, patience = self._owners.grants(poll.devices), self.processes.patience
        held = tenancies.tenancies(poll, owners, grants, self._tenancies, now, began, patience)
        # 4. Account.
        self._totals = self._totals.plus(poll)
        self.health.end(poll.result, poll.problems, ended)
        self._last_success = now if self.health.is_up else self._last_success
        # 5. Tell.
        self._say(poll)
        is_up, took = self.health.is_up, ended - began
        return self._view(poll=poll, owners=owners, tenancies=held, is_up=is_up, poll_duration=took)

    def _ask_for_owners(self, now: Instant) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._owners.refresh(now))
            self._asking.add_done_callback(_report)

    def look(self, now: Instant, monotonic: Seconds) -> processes.Poll:
        """In the thread. Samples are asked for since those that were used last."""

        def since(device: processes.Device, facts: Mapping[int, processes.Fact]) -> int | None:
            with self._turn:
                return self.processes.since(device, facts, now, monotonic)

        found = self.collector.look(since, now, monotonic)
        if found.result is processes.Result.error:  # nothing is known of any process: none is judged, or forgotten
            return processes.Poll(at=now, result=found.result, problems=found.problems)
        with self._turn:
            devices, discarded = self.processes.judge(found.devices, found.samples, found.facts, now, monotonic)
        return processes.Poll(
            at=now, result=found.result, driver_version=found.driver_version, devices=devices, lost=found.lost,
            problems=found.problems, discarded=discarded,
        )

    def _look(self, now: Instant, monotonic: Seconds) -> tuple[processes.Poll, Mapping[processes.Key, str]]:
        """Also the cgroups of the processes, by which their pods are known."""
        poll = self.look(now, monotonic)
        if self._options.attribution == "off":
            return poll, {}
        held = {(process.pid, process.start) for judged in poll.devices for process in judged.processes or ()}
        return poll, {key: self._table.cgroup_of(*key) for key in held}

    def _view(self, **found: Any) -> processes.NodeView:
        return processes.NodeView(
            most_processes=self._options.max_processes_per_gpu, last_success=self._last_success,
            sources_up=dict(self._owners.up), totals=self._totals, **found,
        )

    def withhold(self) -> processes.NodeView:
        """Nothing that the driver said."""
        return self._view()

    def spoil(self) -> processes.NodeView:
        """After a defect: that poll failed, and nothing of it holds."""
        self._totals = self._totals.plus(processes.Poll(at=self._clock(), result=processes.Result.error))
        self.health.end(processes.Result.error, (), self._monotonic())
        return self.withhold()

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
        return str(self.collector.trouble or "see above")

    def restore(self) -> None:
        """Before the first poll."""
        folder, now, monotonic = self._options.state_dir, self._clock(), self._monotonic()
        if folder is None:
            return
        state, why = keeping.load(folder, self._table.boot_id(), self._options.state_max_gap, now, monotonic)
        if state is not None:
            self.processes.restore(state.processes, monotonic)
            why = self._tenancies.restore(state.tenancies, monotonic) if state.tenancies is not None else ""
        if why:
            log.warning("%s", why)

    async def save_if_due(self) -> None:
        if self._monotonic() - self._saved >= SAVE_EVERY:
            await self._thread.do(self.save)

    def save(self) -> None:
        """In any thread, also while the driver hangs. Who has seen nothing knows nothing better than the file does."""
        if self._options.state_dir is None or self._last_success is None:
            return
        self._saved = monotonic = self._monotonic()
        with self._turn:
            kept = self.processes.export(monotonic)
        state = keeping.SavedState(self._table.boot_id(), self._clock(), monotonic, kept, self._tenancies.export())
        try:
            keeping.save(self._options.state_dir, state)
        except errors.Misconfigured as problem:
            log.warning("%s; idle times will not survive a restart", problem)

    async def close(self) -> None:
        """Each farewell has its time, and none can keep us."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._owners.close(), _TO_CLOSE)
        with contextlib.suppress(TimeoutError, errors.ClientError):
            await asyncio.wait_for(self._thread.do(self.collector.close), _TO_CLOSE)


def _report(asking: "asyncio.Task[None]") -> None:
    if not asking.cancelled() and (problem := asking.exception()) is not None:
        log.error("whose processes these are could not be asked", exc_info=problem)
