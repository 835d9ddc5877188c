"""One look at a node: ask the driver, and the kernel whose PIDs these are.

In: a Driver, a Table of processes, two clocks, and who says since when samples are wanted. Out: Collected. It blocks
for as long as the driver does, so it is done in a thread of its own.
A driver that does not work is opened again after 1, 2, 4 .. 60 s; what the devices cannot do is said once, not always.
Invariant: nothing of an earlier look is in this one. If the devices cannot be counted there are none; a GPU that fell
off the bus or is no longer there is in `lost` for an hour and nowhere else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from fallow.clients import errors
from fallow.model.processes import Collected, Device, Driver, Fact, Problem, Result, Table
from fallow.model.units import HOUR, Instant, Seconds
from fallow.names import NvmlCode

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
LOST_FOR: Final = HOUR
_ERRORS: Final = {
    None: "LibraryNotFound", NvmlCode.UNINITIALIZED: "Uninitialized", NvmlCode.NO_PERMISSION: "NoPermission",
    NvmlCode.DRIVER_NOT_LOADED: "DriverNotLoaded", NvmlCode.LIBRARY_NOT_FOUND: "LibraryNotFound",
    NvmlCode.GPU_IS_LOST: "GpuIsLost", NvmlCode.VERSION_MISMATCH: "LibRmVersionMismatch", NvmlCode.UNKNOWN: "Unknown",
}

Since: TypeAlias = Callable[[Device, Mapping[int, Fact]], int | None]  # stamp after which samples are wanted, if any


class Collector:
    """`trouble` says why the driver does not work, None while it does; `retry_at` when it is opened again."""

    def __init__(self, driver: Driver, table: Table) -> None:
        self.trouble: errors.DriverDown | None = None
        self.retry_at: Seconds | None = None  # of the monotonic clock; None: at the next poll
        self._driver, self._table = driver, table
        self._is_open = False
        self._wait = FIRST_WAIT
        self._facts: dict[int, Fact] = {}  # by PID, of the last poll
        self._announced: set[tuple[str, str]] = set()  # (gpu, call) that are unsupported
        self._here: dict[str, int] = {}  # UUID -> index at the last reading
        self._lost: dict[str, tuple[int, Seconds]] = {}  # UUID -> index, since when

    def look(self, since: Since, now: Instant, monotonic: Seconds) -> Collected:
        call = "nvmlInit"
        try:
            if not self._open(monotonic):
                return Collected(result=Result.error)
            call = "nvmlDeviceGetCount"
            reading = self._driver.read()
            facts = self._learn_facts(reading.devices)
            wanted = ((device.uuid, since(device, facts)) for device in reading.devices)
            samples = {uuid: self._driver.read_samples(uuid, stamp) for uuid, stamp in wanted if stamp is not None}
        except errors.DriverDown as down:
            return self._fail(call, down)
        self.trouble = None
        problems = [*reading.problems, *(problem for each in samples.values() for problem in each.problems)]
        # What a device or a driver cannot do is no failure of a poll, and does not change until it is reopened.
        is_whole = all(problem.code in NvmlCode.ABSENT for problem in problems)
        return Collected(
            result=Result.ok if is_whole else Result.partial, driver_version=reading.driver_version,
            devices=reading.devices, samples=samples, facts=facts, lost=self._follow_lost(reading.devices, monotonic),
            problems=[problem for problem in problems if self._is_news(problem)],
        )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._driver.close()

    def _open(self, monotonic: Seconds) -> bool:
        """Whether the driver is open; False: it is not time yet to try again. Raises DriverDown."""
        if self._is_open:
            return True
        if self.retry_at is not None and monotonic < self.retry_at:
            return False
        self.retry_at, self._wait = monotonic + self._wait, min(self._wait * 2, LONGEST_WAIT)
        self._driver.open()
        self._is_open, self.retry_at, self._wait = True, None, FIRST_WAIT
        self._announced.clear()
        return True

    def _fail(self, call: str, down: errors.DriverDown) -> Collected:
        """A driver that cannot count its devices may have been reloaded beneath us: it is opened anew next time."""
        self.trouble = down
        self.close()
        problem = Problem("", call, _ERRORS.get(down.code, f"Code{down.code}"), down.code or 0)
        return Collected(result=Result.error, problems=[problem])

    def _learn_facts(self, devices: Sequence[Device]) -> dict[int, Fact]:
        before, start_of = self._facts, self._table.start_of
        facts = {}
        for pid in {holder.pid for device in devices for holder in device.holders or ()}:
            start, fact = start_of(pid), before.get(pid)
            if fact is None or not start or fact.start != start:
                fact = Fact(start, self._table.name_of(pid, start), self._table.started_at(start))
            facts[pid] = fact
        if facts != before:
            self._facts = facts
            self._table.keep_only({(pid, fact.start) for pid, fact in facts.items()})
        return facts

    def _is_news(self, problem: Problem) -> bool:
        if problem.code not in NvmlCode.ABSENT:
            return True
        before = len(self._announced)
        self._announced.add((problem.gpu, problem.call))
        return len(self._announced) > before

    def _follow_lost(self, devices: Iterable[Device], monotonic: Seconds) -> list[tuple[int, str]]:
        here = {device.uuid: device.index for device in devices if device.uuid and not device.is_lost}
        fallen = {device.uuid: device.index for device in devices if device.uuid and device.is_lost}
        for uuid, index in {**self._here, **fallen}.items():
            self._lost.setdefault(uuid, (index, monotonic))
        self._here = here
        self._lost = {uuid: lost for uuid, lost in self._lost.items() if uuid not in here}
        return [(index, uuid) for uuid, (index, since) in self._lost.items() if monotonic - since < LOST_FOR]
