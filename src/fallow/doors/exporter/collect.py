"""One poll: ask the driver, ask the kernel whose PIDs these are, let the ledger judge.

In: a Driver, a Table of processes, the options, two clocks. Out: a Poll, whole and final; the door runs this in its worker thread.
A driver that does not work is opened again after 1, 2, 4 .. 60 s; what the devices cannot do is told once, not at every poll.
Invariant: nothing of an earlier poll is in a Poll. If the devices cannot be counted there are none; a GPU that fell off the bus or
is no longer there is in `lost` for an hour and nowhere else.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from fallow.clients import errors
from fallow.decide.node import processes as judge
from fallow.model.processes import Device, Driver, Poll, Problem, Reading, Result, Samples, Table
from fallow.model.units import HOUR, Instant, Seconds
from fallow.settings.exporter import Options

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
LOST_FOR: Final = HOUR
# What a device or a driver cannot do is no failure of a poll, and does not change until it is reopened.
UNSUPPORTED: Final = frozenset({3, 13, 25})  # not supported; no such function; no such version of its argument
_ERRORS: Final = {
    None: "LibraryNotFound", 1: "Uninitialized", 4: "NoPermission", 9: "DriverNotLoaded", 12: "LibraryNotFound", 15: "GpuIsLost",
    18: "LibRmVersionMismatch", 999: "Unknown",
}  # fmt: skip


class Collector:
    """Polls one node. `trouble` says why the driver does not work, None while it does; `retry_at` when it is opened again."""

    def __init__(self, driver: Driver, table: Table, options: Options) -> None:
        self.trouble: errors.DriverDown | None = None
        self.retry_at: Seconds | None = None  # of the monotonic clock; None: at the next poll
        self._driver = driver
        self._table = table
        self._ledger = judge.Ledger(rules_of(options))
        self._turn = threading.Lock()  # the state is saved by another thread than the one that polls, which may hang in the driver
        self._is_open = False
        self._wait = FIRST_WAIT
        self._facts: dict[int, judge.Fact] = {}  # by PID, of the last poll
        self._told: set[tuple[str, str]] = set()  # (gpu, call) that are unsupported
        self._here: dict[str, int] = {}  # UUID -> index at the last reading
        self._lost: dict[str, tuple[int, Seconds]] = {}  # UUID -> index, since when

    @property
    def is_up(self) -> bool:
        return self._is_open and self.trouble is None

    def poll(self, now: Instant, monotonic: Seconds) -> Poll:
        """Blocks for as long as the driver does."""
        call = "nvmlInit"
        try:
            if not self._open(monotonic):
                return Poll(now, Result.error, "", [], [], [], {})
            call = "nvmlDeviceGetCount"
            reading = self._driver.read()
            facts = self._learn_facts(reading.devices)
            samples = self._read_samples(reading.devices, facts, now, monotonic)
        except errors.DriverDown as down:
            return self._fail(call, down, now, monotonic)
        self.trouble = None
        return self._judge(reading, samples, facts, now, monotonic)

    def state(self, monotonic: Seconds) -> list[judge.Kept]:
        with self._turn:
            return self._ledger.export(monotonic)

    def restore(self, kept: Iterable[judge.Kept], monotonic: Seconds) -> None:
        """Before the first poll."""
        with self._turn:
            self._ledger.restore(kept, monotonic)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._driver.close()

    # ---- the driver, up and down ------------------------------------------------------------------------------------------------

    def _open(self, monotonic: Seconds) -> bool:
        """Whether the driver is open; False: it is not time yet to try again. Raises DriverDown."""
        if self._is_open:
            return True
        if self.retry_at is not None and monotonic < self.retry_at:
            return False
        self.retry_at, self._wait = monotonic + self._wait, min(self._wait * 2, LONGEST_WAIT)
        self._driver.open()
        self._is_open, self.retry_at, self._wait = True, None, FIRST_WAIT
        self._told.clear()
        return True

    def _fail(self, call: str, down: errors.DriverDown, now: Instant, monotonic: Seconds) -> Poll:
        """A driver that cannot even count its devices may have been reloaded beneath us: it is opened anew at the next poll."""
        self.trouble = down
        self.close()
        problem = Problem("", call, _ERRORS.get(down.code, f"Code{down.code}"), down.code or 0)
        return Poll(now, Result.error, "", [], [], [problem], {})

    def _read_samples(
        self, devices: Sequence[Device], facts: dict[int, judge.Fact], now: Instant, monotonic: Seconds
    ) -> dict[str, Samples]:
        samples = {}
        for device in devices:
            with self._turn:
                since = self._ledger.since(device, facts, now, monotonic)
            if since is not None:
                samples[device.uuid] = self._driver.read_samples(device.uuid, since)
        return samples

    # ---- what was found ---------------------------------------------------------------------------------------------------------

    def _learn_facts(self, devices: Sequence[Device]) -> dict[int, judge.Fact]:
        before, start_of = self._facts, self._table.start_of
        facts = {}
        for pid in {holder.pid for device in devices for holder in device.holders or ()}:
            start, fact = start_of(pid), before.get(pid)
            facts[pid] = fact if fact is not None and start and fact.start == start else self._learn_fact(pid, start)
        if facts != before:
            self._facts = facts
            self._table.keep_only({(pid, fact.start) for pid, fact in facts.items()})
        return facts

    def _learn_fact(self, pid: int, start: int) -> judge.Fact:
        return judge.Fact(start, self._table.name_of(pid, start), self._table.started_at(start))

    def _judge(
        self, reading: Reading, samples: dict[str, Samples], facts: dict[int, judge.Fact], now: Instant, monotonic: Seconds
    ) -> Poll:
        with self._turn:
            devices, discarded = self._ledger.judge(reading.devices, samples, facts, now, monotonic)
        problems = [*reading.problems, *(problem for each in samples.values() for problem in each.problems)]
        result = Result.partial if any(problem.code not in UNSUPPORTED for problem in problems) else Result.ok
        lost = self._follow_lost(reading.devices, monotonic)
        return Poll(now, result, reading.driver_version, devices, lost, self._tell_once(problems), discarded)

    def _tell_once(self, problems: Iterable[Problem]) -> list[Problem]:
        told = []
        for problem in problems:
            what = (problem.gpu, problem.call)
            if problem.code not in UNSUPPORTED or what not in self._told:
                told.append(problem)
            if problem.code in UNSUPPORTED:
                self._told.add(what)
        return told

    def _follow_lost(self, devices: Sequence[Device], monotonic: Seconds) -> list[tuple[int, str]]:
        here = {device.uuid: device.index for device in devices if device.uuid and not device.is_lost}
        fallen = {device.uuid: device.index for device in devices if device.uuid and device.is_lost}
        for uuid, index in {**self._here, **fallen}.items():
            if uuid not in here:
                self._lost.setdefault(uuid, (index, monotonic))
        self._here = here
        self._lost = {uuid: place for uuid, place in self._lost.items() if uuid not in here}
        return [(index, uuid) for uuid, (index, since) in self._lost.items() if monotonic - since < LOST_FOR]


def rules_of(options: Options) -> judge.Rules:
    return judge.Rules(
        idle_polls=options.idle_polls, threshold=options.idle_threshold_percent, stale_after=options.stale_after,
        poll_interval=options.poll_interval, include_graphics=options.include_graphics, only_visible=options.scope == "pod",
    )  # fmt: skip
