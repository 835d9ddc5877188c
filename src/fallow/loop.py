"""Time: the Lease, health, and several stories, each at its own interval and within its own budget, over one mirror.

In: stories, the mirror, the Lease, two clocks. Out: cycles until asked to stop; the latest of each story for those who
ask. No rule of its own. A story has at most one cycle at a time; its next start is the last start plus the interval,
and a late one is skipped, not queued; `wake` begins it early. Only the holder of the Lease lets a story look and act; a
follower looks when somebody asks, and acts on nothing. A failed cycle turns readiness red and the next one tries again,
until the first good one after 1, 2, 4 ... seconds; after several in a row, where so configured, everything ends.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fallow import names, telemetry
from fallow.clients import errors
from fallow.clients.kubernetes import lease
from fallow.model import units
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import mirror
from fallow.stories.turn import Clock, Turn

log = logging.getLogger("fallow")

CLOCK_JUMP: Seconds = 60.0  # an NTP step on a healthy machine is far smaller
LEASE_PATIENCE: Seconds = 15.0
FIRST_LEASE: Seconds = 5.0
FIRST_RETRY: Seconds = 1.0


class Ended(Protocol):
    """What a story says at the end of a cycle: whatever it likes, and why no decision was possible ("" = one was)."""

    @property
    def failure(self) -> str: ...


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What one capability does in its turn, how often. `look`: `tick` up to the plan; `fail`: it could not begin.
    `is_vital`: we are ready only while it is well; others say themselves what ails them."""

    name: str
    interval: Seconds
    budget: Seconds
    tick: Callable[[Turn], Awaitable[Ended]]
    look: Callable[[Turn], Awaitable[Ended]]
    fail: Callable[[str, Turn], Ended]
    is_vital: bool = True


class Pulse:
    """How one story fares. Times are of the monotonic clock: a wall clock that is set must not get us restarted."""

    def __init__(self, interval: Seconds, budget: Seconds, now: float) -> None:
        self._patience = 3 * interval + budget
        self.began_at = now
        self.succeeded_at: float | None = None
        self.failures = 0
        self.failed_because = ""

    def note(self, failure: str, now: float) -> None:
        if failure:
            self.failures, self.failed_because = self.failures + 1, failure
        else:
            self.failures, self.succeeded_at = 0, now

    @property
    def back_off(self) -> Seconds:
        """At most so long until the next try: who has never been well asks sooner, for others wait for it."""
        is_starting = self.succeeded_at is None and self.failures
        return FIRST_RETRY * 2.0 ** min(self.failures - 1, 30) if is_starting else math.inf

    def why_stuck(self, now: float) -> list[str]:
        silent = now - self.began_at
        return [f"no cycle began for {units.humane(silent)}"] if silent > self._patience else []

    def why_failing(self) -> list[str]:
        return [f"{self.failures} failed cycle(s) in a row: {self.failed_because}"] if self.failures else []

    def why_late(self, now: float) -> list[str]:
        """Of a leader that does not fail: has it ended a cycle lately?"""
        if self.succeeded_at is None:
            return ["no cycle has ended yet"]
        since = now - self.succeeded_at
        return [f"the last good cycle ended {units.humane(since)} ago"] if since > self._patience else []


class Health:
    """What the loop knows of itself, for /healthz and /readyz; every answer is a list of reasons, empty = well."""

    def __init__(self, pulses: Mapping[str, Pulse]) -> None:
        """`pulses`: by the name of the story, which every reason of its begins with."""
        self.pulses = pulses
        self.synced = False
        self.leading = True

    def why_stuck(self, now: float) -> list[str]:
        return [f"{name}: {why}" for name, pulse in self.pulses.items() for why in pulse.why_stuck(now)]

    def why_not_ready(self, now: float) -> list[str]:
        reasons = self.why_stuck(now)
        if not self.synced:
            reasons.append("the cluster has not been seen yet")
        for name, pulse in self.pulses.items():
            found = pulse.why_failing()
            if self.leading and self.synced and not found:
                found = pulse.why_late(now)
            reasons += [f"{name}: {why}" for why in found]
        return reasons


class _Course:
    """A story under way: its pulse, its wake-up call, and what was seen last."""

    def __init__(self, story: Story, now: float) -> None:
        self.story, self.pulse = story, Pulse(story.interval, story.budget, now)
        self.woken = asyncio.Event()
        self.clocks: tuple[Instant, float] | None = None  # wall and monotonic at the last cycle
        self.latest: Ended | None = None
        self.looked: tuple[float, Ended | errors.ClientError] | None = None  # when a follower last did, and at what


class Loop:
    """The stories of one process. Drive it with `run`, look once with `run_once`, or cycle by cycle after `begin`."""

    def __init__(
        self, stories: Sequence[Story], *, seen: mirror.Mirror, leadership: lease.Leadership, needs_lease: bool,
        metrics: telemetry.Telemetry, clock: Clock, monotonic: Clock = time.monotonic, most_failures: int = 0,
        background: Callable[[], list[Coroutine[Any, Any, None]]] = list,
    ) -> None:
        """`most_failures`: in a row, after which a daemon gives up; 0 = never. `background`: what else goes on."""
        self._courses = {story.name: _Course(story, monotonic()) for story in stories}
        vital = {name: course.pulse for name, course in self._courses.items() if course.story.is_vital}
        self.health = Health(vital)
        self.metrics = metrics
        self._mirror, self._leadership, self._needs_lease = seen, leadership, needs_lease
        self._clock, self._monotonic, self._most_failures = clock, monotonic, most_failures
        self._background = background
        self._followed: str | None = None  # who led when that was last said
        self._stopping = asyncio.Event()
        self._following = asyncio.Lock()

    async def tick(self, name: str) -> Ended | None:
        """One cycle of one story, whoever leads; None if it was stopped before it could decide.

        Whatever goes wrong outside is the failure of this cycle, not our end.
        """
        course = self._courses[name]
        turn, course.pulse.began_at = self._turn_of(course.story), self._monotonic()
        try:
            jump = self._find_clock_jump(course, turn.now)
            course.latest = course.story.fail(jump, turn) if jump else await course.story.tick(turn)
        except errors.ClientError as problem:
            if self._stopping.is_set():
                log.info("stopped while looking; nothing was changed")
                return None
            course.latest = course.story.fail(str(problem), turn)
        except Exception as problem:  # a bug of ours in one story does not end the others
            log.exception("%s: this cycle failed in a way that nobody foresaw", name)
            course.latest = course.story.fail(f"unexpected {type(problem).__name__}; the log has more", turn)
        course.pulse.note(course.latest.failure, self._monotonic())
        return course.latest

    def _turn_of(self, story: Story) -> Turn:
        return Turn(
            clock=self._clock, monotonic=self._monotonic, budget=story.budget, stopping=self._stopping,
            leads=self._leads,
        )

    def _leads(self) -> bool:
        return self._leadership.is_leader if self._needs_lease else True

    def _find_clock_jump(self, course: _Course, now: Instant) -> str:
        """The wall clock against the monotonic one: after a jump every age is wrong, so this cycle does nothing."""
        before, course.clocks = course.clocks, (now, self._monotonic())
        jumped = 0.0 if before is None else (now - before[0]) - (course.clocks[1] - before[1])
        if abs(jumped) <= CLOCK_JUMP:
            return ""
        way = "ahead" if jumped > 0 else "back"
        return f"the clock jumped by {units.humane(abs(jumped))} {way}: nothing is decided in this cycle"

    @property
    def names(self) -> frozenset[str]:
        """Of its stories."""
        return frozenset(self._courses)

    def latest(self, name: str) -> Ended | None:
        """The latest cycle of a story here; None before the first."""
        return self._courses[name].latest

    async def read(self, name: str) -> Ended | None:
        """The latest cycle of a story; None before the first. A follower looks itself, once an interval at most: what
        stopped that look is raised until the next, for an open page asks every second."""
        course = self._courses[name]
        if self._leads():
            return course.latest
        now = self._monotonic()
        if self.health.synced and (course.looked is None or now - course.looked[0] >= course.story.interval):
            course.looked = now, await self._try_to_look(course.story)
        found = course.looked[1] if course.looked else None
        if isinstance(found, errors.ClientError):
            raise found.with_traceback(None)
        return found

    async def _try_to_look(self, story: Story) -> Ended | errors.ClientError:
        try:
            return await story.look(self._turn_of(story))
        except errors.ClientError as problem:
            return problem

    async def run_once(self, name: str, *, acting: bool) -> Ended | None:
        """One cycle. To act it must hold the Lease, so that it never works against a daemon; None: there was none."""
        if acting and not await self._leadership.acquire(LEASE_PATIENCE):
            held = self._leadership.problem or f"{self._leadership.holder} holds it"
            log.error("no decision: the Lease %s could not be had within %.0f s: %s", names.LEASE, LEASE_PATIENCE, held)
            return None
        renewing = [asyncio.create_task(task) for task in self.background()]
        try:
            await self._fill()
            return await self.tick(name)
        finally:
            for task in renewing:
                task.cancel()
            await asyncio.gather(*renewing, return_exceptions=True)
            await self.release()

    async def look(self, name: str) -> Ended:
        """One look at everything, without any act and without the Lease."""
        await self._fill()
        story = self._courses[name].story
        return await story.look(self._turn_of(story))

    async def _fill(self) -> None:
        """Who holds the Lease knows what is on it; who only looks reads it, and who may not is not told of a freeze."""
        if not self._needs_lease:
            try:
                await self._leadership.read()
            except errors.ClientError as problem:
                self._leadership.problem = problem
        await self._mirror.list_all(self._clock())

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What must go on while run() does: whoever runs us ends with the first of these that ends."""
        return [*([self._leadership.run()] if self._needs_lease else []), *self._background()]

    async def begin(self) -> bool:
        """For whoever drives the cycles one by one: follow the cluster, take the Lease; whether we lead."""
        await self._mirror.follow(self._clock())
        self.health.synced = True
        leads = not self._needs_lease or await self._leadership.acquire(LEASE_PATIENCE)
        self._note_leadership()
        return leads

    async def run(self) -> bool:
        """Cycles until stop(); False if a story failed too often. Afterwards end the background, then release()."""
        return all(await asyncio.gather(*(self._repeat(course) for course in self._courses.values())))

    async def release(self) -> None:
        """Lets the next one lead at once."""
        await self._leadership.release()

    def stop(self) -> None:
        """Ends run() after the request in flight."""
        self._stopping.set()
        for course in self._courses.values():
            course.woken.set()

    def wake(self, name: str) -> None:
        """Begin this story's next cycle now: something urgent happened."""
        self._courses[name].woken.set()

    async def _repeat(self, course: _Course) -> bool:
        while not self._stopping.is_set():
            began = self._monotonic()
            await self._turn(course)
            if course.story.is_vital and 0 < self._most_failures <= course.pulse.failures:
                because = course.pulse.failed_because
                log.error("giving up after %d failed cycles in a row: %s", self._most_failures, because)
                self.stop()
                return False
            await self._wait(course, began)
        return True

    async def _turn(self, course: _Course) -> None:
        """Follow the cluster from the first turn on; look and act only as leader."""
        course.pulse.began_at = self._monotonic()
        self._note_leadership()
        if not self.health.synced and not (await self._begin_to_follow(course) and await self._leads_soon()):
            self._note_leadership()
            return
        self._note_leadership()
        if self._stopping.is_set():
            return
        if self.health.leading:
            await self.tick(course.story.name)
        elif self._leadership.problem is not None:  # nobody can tell who leads: perhaps nobody does
            self._fail(course, f"the Lease {names.LEASE} cannot be had: {self._leadership.problem}")
        else:
            course.pulse.failures = 0

    def _note_leadership(self) -> None:
        self.health.leading = self._leads()
        self.metrics.set("fallow_idle_leader", self.health.leading)
        if not self.health.leading and self._leadership.holder not in (None, self._followed):
            idle = "nothing is looked at here until it lets go"
            log.info("%s holds the Lease %s: %s", self._leadership.holder, names.LEASE, idle)
        self._followed = None if self.health.leading else self._leadership.holder

    async def _begin_to_follow(self, course: _Course) -> bool:
        async with self._following:
            if self.health.synced:  # another story was faster
                return True
            turn = self._turn_of(course.story)
            try:
                await turn.in_time(self._mirror.follow(turn.now))
            except errors.ClientError as problem:
                if not self._stopping.is_set():
                    self._fail(course, f"the cluster cannot be seen: {problem}")
                return False
        self.health.synced, course.pulse.failures = True, 0
        return True

    def _fail(self, course: _Course, because: str) -> None:
        """A cycle that ended before it could look."""
        course.latest = course.story.fail(because, self._turn_of(course.story))
        course.pulse.note(because, self._monotonic())

    async def _leads_soon(self) -> bool:
        """The first replica takes the Lease within a moment; a follower finds it taken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LEASE):
                while not self._leads() and not self._leadership.holder and not self._leadership.problem:
                    await nap(self._stopping, 0.05)
                    if self._stopping.is_set():
                        break
        return self._leads()

    async def _wait(self, course: _Course, began: float) -> None:
        """Until the last start plus the interval, past starts skipped, or woken. A new leader starts at once."""
        interval = course.story.interval
        wait = min(interval - (self._monotonic() - began) % interval, course.pulse.back_off)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not course.woken.is_set() and not self._became_leader():
                    await nap(course.woken, wait if self.health.leading else 1.0)
        if not self._stopping.is_set():
            course.woken.clear()

    def _became_leader(self) -> bool:
        return not self.health.leading and self._leads()


async def nap(until: asyncio.Event, seconds: Seconds) -> None:
    """For so long, or until the event."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(until.wait(), seconds)
