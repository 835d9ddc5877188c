"""Drives the pretend day, and knows what to tell of it.

In: a Stage, cycle by cycle. Out: Moments for the picture, and the sums for the report.
Invariant: what is told happened: what the controller did is taken from its outcomes, what people and the cluster did
from the log of the world and from what stands on the workloads.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fallow import loop, names
from fallow.doors.cli import demo_books, demo_nodes, demo_report
from fallow.doors.cli import demo_view as view
from fallow.model import cluster, decision, gpus, kinds, marks, units
from fallow.model.units import DAY, HOUR, Instant, Seconds
from fallow.sim import backtest, stage
from fallow.sim.world import nouns
from fallow.sim.world.nouns import SimState

_KEPT = 100  # happenings remembered for the picture
_PERSON = {
    "acknowledged": ("ack", "keeps it"), "complained": ("person", "scales it up by hand, without a word"),
    "regretted": ("person", "needs it within 15m of its pause"),
    "missed": ("person", "needs it and finds it paused"),
}
_MODES = {"whole": "", "mig": " MIG", "time-sliced": " shared", "mps": " MPS"}
_WAYS = {"mig": "MIG", "time-sliced": "time-slicing", "mps": "MPS"}
_LIVELIEST = (view.BUSY, view.UNKNOWN, view.STARTING, view.NOTICE, view.IDLE)
_KEPT_ALREADY = (decision.Reason.Acknowledged, decision.Reason.OptedOut)
_RSS_UNIT = 1024.0 * 1024 if sys.platform == "darwin" else 1024.0


class Said(NamedTuple):
    """What stands on a workload that people read."""

    kept_until: str = ""
    kept_by: str = ""
    resumed_at: str = ""
    resumed_by: str = ""
    notice: str = ""
    whole_until: str = ""  # sharing hurt it


class Director:
    """`commands`: to be typed in another terminal, whatever happens."""

    def __init__(
        self, on: stage.Stage, *, speed: float, length: Seconds, stop: asyncio.Event, commands: Sequence[str] = ()
    ) -> None:
        self.on, self.speed, self.stop = on, speed, stop
        self.began, self.ends = on.world.now, on.world.now + length
        self.is_live = False  # the day is over
        self._first = [node for node in on.world.nodes.values() if node.there]
        self.feed: list[view.Happening] = []
        self.by_hand: list[str] = []  # who was paused by somebody who looked in
        self.notices = self.frozen = self.failed = self.taken = 0
        self.took: list[float] = []  # seconds of each cycle
        self.ticked_at = on.world.now
        self.books: demo_books.DayBooks | None = None  # as they were read last
        self._read_at = on.world.now
        self._commands, self._started = tuple(commands), time.monotonic()
        self._past: list[tuple[Instant, dict[str, int]]] = []
        self._seen = 0  # changes of the world
        self._findings: dict[tuple[str, str, str], decision.Finding] = {}
        self._held: dict[str, tuple[int, ...]] = {}  # slots by the uid of who had them a cycle ago
        self._said: dict[str, Said] = {}  # by uid, what was told of
        self._freed: dict[int, str] = {}  # slots that a pause freed and nobody took: whose they were
        self._shared_by: dict[str, nouns.Mode] = {}  # by uid: of what it was given a part, though it asked for more
        self.news = demo_nodes.NodeNews(on)
        self._taken_back: list[str] = []  # who has whole GPUs again, because sharing hurt it

    # ---- time -------------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One interval, in no less time than the speed asks for."""
        began = time.monotonic()
        await self.on.pass_time(self.on.interval)
        await self.tick()
        if self.speed:
            await loop.nap(self.stop, max(0.0, self.on.interval / self.speed - (time.monotonic() - began)))

    async def tick(self) -> list[view.Happening]:
        """One cycle of the controller, and what there is to tell since the last."""
        ticked = time.monotonic()
        cycle, now = await self.on.tick(), self.on.world.now
        self.took.append(time.monotonic() - ticked)
        self.ticked_at = now
        self.failed += bool(cycle.failure)
        self.frozen += cycle.plan is not None and cycle.plan.freeze is not None
        if cycle.plan is not None and cycle.snapshot is not None:
            found = (cycle.plan.findings[index] for index in range(len(cycle.snapshot.workloads)))
            by_ref = ((each.workload.ref, each) for each in found)
            self._findings = {(ref.kind, ref.namespace, ref.name): each for ref, each in by_ref}
        new = self.hear()
        done = [*filter(None, (self._tell(outcome, now) for outcome in cycle.outcomes))]
        done += [view.Happening(now, "fault", cycle.failure)] if cycle.failure else []
        self.feed = [*self.feed, *done][-_KEPT:]
        self._past = [*(each for each in self._past if each[0] > now - DAY), (now, self._count())]
        if now - self._read_at >= HOUR or (self.is_live and self.books is not None):
            await self.read_books()
        return [*new, *done]

    async def read_books(self) -> None:
        self._read_at = self.on.world.now
        fleet = self.on.rented.fleet if self.on.rented is not None else None
        self.books = await demo_books.read(self.on.product, self.began, self._read_at, fleet)

    async def close_books(self) -> None:
        """So that the report has all of the day, and no more."""
        await self.on.keep_books(closes=True)
        await self.read_books()

    def hear(self) -> list[view.Happening]:
        """What people and the cluster did since this was last asked."""
        new = sorted((*self._hear(), *self.news.hear()), key=lambda one: one.at)
        self.feed = [*self.feed, *new][-_KEPT:]
        return new

    # ---- what happened ----------------------------------------------------------------------------------------------

    def _hear(self) -> Iterator[view.Happening]:
        """By the log of the world."""
        changes = self.on.world.changes_since(self._seen)
        self._seen += len(changes)
        for before, change in zip((None, *changes), changes, strict=False):
            workload, after = self.on.world.find(change.uid), before.what if before else ""
            if change.what == "sharing is in force":
                yield view.Happening(change.at, "person", "GPUSharingPolicies go from audit to enforce")
            elif change.what.startswith("asks for "):
                yield view.Happening(change.at, "person", f"somebody {change.what}, by a GPUNodeConfig")
            elif change.by == "cloud":
                yield view.Happening(change.at, "node", f"the cloud {change.what}: its machine ends in two minutes")
            elif change.what == "joined":
                node = self.on.world.nodes[change.uid]
                yield view.Happening(change.at, "node", f"{node.name} is there, a machine of {node.pool} ({node.tier})")
            elif change.what == "left":
                yield view.Happening(change.at, "node", f"{change.uid} is gone")
            elif change.what.endswith((" begins", " over")):
                yield view.Happening(change.at, "fault", f"{change.what} {change.uid}")
            elif workload is not None and (change.what, after) != ("missed", "regretted"):  # that was told
                yield from self._hear_of(workload, change)
        self._held = {
            one.uid: tuple(slot for pod in one.pods for slot in pod.slots)
            for one in self.on.world.workloads if one.pods
        }

    def _hear_of(self, workload: nouns.SimWorkload, change: nouns.SimChange) -> Iterator[view.Happening]:
        name = f"{workload.part.namespace}/{workload.part.name}"
        if change.what in _PERSON:
            kind, words = _PERSON[change.what]
            yield view.Happening(change.at, kind, f"{name}: its owner {words}")
        if change.what in ("acknowledged", "edited"):
            before, self._said[change.uid] = self._said.get(change.uid, Said()), _read_said(workload)
            for kind, words in _compare(before, self._said[change.uid]) if change.what == "edited" else ():
                yield view.Happening(change.at, kind, f"{name}: {words}")
            if self._said[change.uid].whole_until and name not in self._taken_back:
                self._taken_back.append(name)
        elif change.what == "shares":
            self._shared_by[change.uid] = workload.mode
            part = f"1/{nouns.PARTS[workload.mode]} of one ({_WAYS[workload.mode]})"
            yield view.Happening(change.at, "share", f"{name} asks for a whole GPU and is given {part}")
        elif change.what == SimState.paused:
            self._freed |= dict.fromkeys(self._held.get(change.uid, ()), change.uid)
            if who := workload.by_hand:
                self.by_hand.append(name)
                yield view.Happening(change.at, "person", f"{name} is stopped by hand, by {who}, not by the controller")
        elif change.what == SimState.starting:
            yield from self._hear_taken(workload, change, name)

    def _hear_taken(
        self, workload: nouns.SimWorkload, change: nouns.SimChange, name: str
    ) -> Iterator[view.Happening]:
        """Whoever comes back has no claim any more on what it left; whoever else takes of that profits from a pause."""
        self._freed = {slot: whose for slot, whose in self._freed.items() if whose != workload.uid}
        every = [slot for pod in workload.pods for slot in pod.slots]
        freed = self._devices(slot for slot in every if self._freed.pop(slot, None) is not None)
        if freed:
            self.taken += len(freed)
            waited = change.at - workload.pods[0].created_at
            how = f"waited {units.humane(waited)} and takes" if waited >= 1 else "takes"
            count = "one GPU" if len(freed) == 1 else f"{len(freed)} GPUs"
            yield view.Happening(change.at, "taken", f"{name} {how} {count} that a pause freed")

    def _tell(self, outcome: decision.Outcome, now: Instant) -> view.Happening | None:
        """What the controller did."""
        is_done = outcome.status is decision.Status.done
        match outcome.decision:
            case decision.Warn(finding=finding, pauses_at=at) if is_done:
                self.notices += 1
                idle = units.humane(now - finding.idle_since) if finding.idle_since is not None else "?"
                until = f", pauses at {units.clock_time(at)}" if at is not None else ""
                return view.Happening(now, "notice", f"{_name(finding.workload)}: idle for {idle}{until}")
            case decision.Pause(finding=finding):
                freed = f"frees {units.many(finding.gpus, 'GPU')}"
                what = freed if is_done else f"{outcome.status}: {outcome.detail}"
                back = _say_resume(finding) if is_done else ""
                return view.Happening(now, "pause", f"{_name(finding.workload)}: {what}", back)
            case decision.Mark(workload=marked, changes=changes, because=because) if is_done:
                if changes.get(names.PENDING_SINCE, "") is None and names.PAUSED_AT not in changes:
                    return view.Happening(now, "lapse", f"{_name(marked)}: its notice is withdrawn, {because}")
        return None

    # ---- what is ----------------------------------------------------------------------------------------------------

    def look(self) -> view.Moment:
        world, plan = self.on.world, self.on.cycle.plan if self.on.cycle else None
        spent = time.monotonic() - self._started
        return view.Moment(
            began=self.began, now=world.now, ends=self.ends, nodes=tuple(self._nodes()), sums=self.add_up(),
            feed=tuple(self.feed), money=self.books.in_short() if self.books else None,
            paused=sum(marks.paused_at(one.view) is not None and not one.by_hand for one in world.workloads),
            past=tuple(self._past), unknowns=self._find_unknowns(), waiting=self._say_waiting(), taken=self.taken,
            commands=self.commands(), is_live=self.is_live,
            frozen=plan.freeze.because if plan is not None and plan.freeze is not None else "",
            faults=tuple(map(str, world.faults)), speed=(world.now - self.began) / spent if spent else 0.0,
        )

    def commands(self) -> tuple[str, ...]:
        """Those that always work, and when the day is over some with names of this moment."""
        if not self.is_live:
            return self._commands
        found = self._findings.values()
        left = [each for each in found if each.verdict is decision.Verdict.idle and each.skip not in _KEPT_ALREADY]
        idle = min(left, key=lambda each: each.skip is not decision.Reason.InNotice, default=None)
        paused = next((each for each in found if marks.paused_at(each.workload) is not None), None)
        return (
            *self._commands,
            *([f"fallow why {_typed(idle)}", f"fallow ack {_typed(idle)} --hours 1"] if idle else []),
            *([_say_resume(paused)] if paused else []), "fallow freeze --for 10m; fallow unfreeze",
        )

    def _count(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for cell in (cell for node in self._nodes() for cell in node.cells):
            counted[cell] = counted.get(cell, 0) + 1
        return counted

    def _nodes(self) -> Iterator[view.NodeCells]:
        """Of a GPU that is cut or shared, the liveliest state."""
        world = self.on.world
        states: dict[tuple[str, int], set[str]] = {}
        for workload in world.workloads:
            for slot in (slot for pod in workload.pods for slot in pod.slots):
                node, gpu, _ = world.device_of(slot)
                states.setdefault((node.name, gpu), set()).add(self._state(workload))
        freed = self._devices(self._freed)
        for node in (node for node in world.nodes.values() if node.there):
            every = [(node.name, gpu) for gpu in range(node.gpus)]
            cells = [
                next((state for state in _LIVELIEST if state in states.get(each, ())), None)
                or (view.FREED if each in freed else view.FREE) for each in every
            ]
            note = f"{gpus.shorten(node.model.replace('-', ' '))}{_MODES[node.mode]}"
            yield view.NodeCells(node.name, tuple(cells), node.ready, note)

    def _devices(self, slots: Iterable[int]) -> set[tuple[str, int]]:
        """The GPUs of these slots, by node and index."""
        return {(node.name, gpu) for node, gpu, _ in map(self.on.world.device_of, slots)}

    def _find(self, workload: nouns.SimWorkload) -> decision.Finding | None:
        return self._findings.get((workload.part.kind, workload.part.namespace, workload.part.name))

    def _state(self, workload: nouns.SimWorkload) -> str:
        found = self._find(workload)
        if workload.state is SimState.starting or (found and found.reason is decision.Reason.PodStarting):
            return view.STARTING
        if found is None or found.verdict is decision.Verdict.unknown:
            return view.UNKNOWN
        if found.verdict is decision.Verdict.active:
            return view.BUSY
        return view.NOTICE if marks.notice_at(found.workload) is not None else view.IDLE

    def _find_unknowns(self) -> tuple[view.Unknown, ...]:
        """By reason, that of the most GPUs first; only GPUs that the map marks so are counted."""
        of: dict[str, list[tuple[nouns.SimWorkload, str]]] = {}
        for one in self.on.world.workloads:
            if one.state is SimState.running and self._state(one) == view.UNKNOWN:
                found = self._find(one)
                because = f"{found.reason}: {found.because}" if found else "not looked at yet"
                of.setdefault(found.reason if found else "", []).append((one, because))
        marked = {
            (node.name, gpu) for node in self._nodes() for gpu, cell in enumerate(node.cells) if cell == view.UNKNOWN
        }
        return tuple(sorted((self._explain(some, marked) for some in of.values()), key=lambda one: -one.gpus))

    def _explain(
        self, some: Sequence[tuple[nouns.SimWorkload, str]], marked: set[tuple[str, int]]
    ) -> view.Unknown:
        nodes = list(dict.fromkeys(pod.node for one, _ in some for pod in one.pods))
        more = f" and {len(nodes) - 2} more" if len(nodes) > 2 else ""
        count = len(marked & self._devices(slot for one, _ in some for pod in one.pods for slot in pod.slots))
        return view.Unknown(count, f"{', '.join(nodes[:2])}{more}", some[0][1])

    def _say_waiting(self) -> str:
        waiting = [one for one in self.on.world.workloads if one.state is SimState.waiting]
        if not waiting:
            return ""
        first = min(waiting, key=lambda one: one.since)
        wanted, longest = sum(one.part.seats for one in waiting), units.humane(self.on.world.now - first.since)
        name = f"{first.part.namespace}/{first.part.name} for {first.part.seats}"
        all_of_them = f"{units.many(len(waiting), 'workload')} for {units.many(wanted, 'GPU')}"
        return f"{all_of_them}; the longest, {name}, for {longest}"

    # ---- at the end -------------------------------------------------------------------------------------------------

    def add_up(self) -> backtest.BacktestResult:
        sums = backtest.add_up(self.on.world, "demo")
        sums.notices, sums.frozen_ticks, sums.lost_ticks = self.notices, self.frozen, self.failed
        return sums

    def _find_by_class(self) -> dict[str, float]:
        """GPU-hours that pauses gave back."""
        given, found = self.books.given_back if self.books else {}, dict[str, float]()
        for one in self.on.world.workloads:
            hours = given.get((one.part.namespace, f"{one.part.kind}/{one.part.name}"), 0.0)
            found[one.part.class_] = found.get(one.part.class_, 0.0) + hours
        return found

    def _find_shared(self) -> demo_report.DayShared:
        """Of those who asked for whole GPUs and ran on less: how, how long, and who was taken back."""
        world, hours, by_way = self.on.world, 0.0, dict[str, int]()
        for one in world.workloads:
            steps = int(world.given_steps[one.seats].sum())
            if steps:
                way = self._shared_by[one.uid]
                said = f"on 1/{nouns.PARTS[way]} by {_WAYS[way]}"
                by_way[said] = by_way.get(said, 0) + 1
                hours += steps * world.span.step / HOUR * (1 - 1 / nouns.PARTS[way])
        return demo_report.DayShared(by_way=by_way, spared_gpu_hours=hours, taken_back=tuple(self._taken_back))

    def report(self) -> None:
        """By the books as they were closed."""
        world = self.on.world
        day, spent = world.now - self.began, time.monotonic() - self._started
        every, mean = sum(node.gpus for node in self._first), sum(self.took) / max(1, len(self.took))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _RSS_UNIT
        broken = f"{len(self.on.broken)} broke a promise" if self.on.broken else ""
        hands = ", ".join(self.by_hand)
        by_hand = f"stopped by hand while it played, and counted neither as a pause nor as a regret: {hands}"
        summary = demo_report.DayTold(
            title=f"The day until {units.rfc3339(world.now)}", gpus=every, day=day, books=self.books,
            sums=self.add_up(), by_class=self._find_by_class(), window=demo_books.say_window(self.began, world.now),
            shared=self._find_shared(), nodes=tuple(demo_nodes.say(self.news)),
        )
        demo_report.tell(summary, (
            f"{units.humane(day)} of {every} GPUs on {len(self._first)} nodes with {len(world.workloads)} workloads in "
            f"{spent:.1f} s ({day / max(spent, 1e-9):,.0f} times as fast as life)",
            f"{len(self.took)} cycles of the controller over sockets, {1000 * mean:.0f} ms each, the longest "
            f"{max(self.took, default=0.0):.2f} s; {memory:.0f} MB of memory at most",
            "every pause of the controller was checked against the truth of the world: "
            + (broken or "quiet, measured, announced, and the way back exact"),
            *([by_hand] if self.by_hand else []),
        ))


def _read_said(workload: nouns.SimWorkload) -> Said:
    said = workload.view.marks
    return Said(
        said.get(names.ACK_UNTIL) or said.get(names.ACK_UNTIL_ALIAS) or "",
        said.get(names.ACK_BY) or said.get(names.ACK_BY_ALIAS) or "somebody",
        said.get(names.RESUMED_AT, ""), said.get(names.RESUMED_BY, "somebody"), said.get(names.PENDING_SINCE, ""),
        said.get(names.BACKOFF_UNTIL, ""),
    )


def _compare(before: Said, after: Said) -> Iterator[tuple[str, str]]:
    """What people did to it meanwhile: kind and words."""
    if after.kept_until and after.kept_until != before.kept_until:
        until = units.read_instant(after.kept_until)
        withdrawn = "; its notice is withdrawn" if before.notice and not after.notice else ""
        yield "ack", f"{after.kept_by} keeps it until {units.clock_time(until) if until else '?'}{withdrawn}"
    elif before.kept_until and not after.kept_until:
        yield "ack", "it is kept no longer"
    if after.whole_until and after.whole_until != before.whole_until:
        yield "share", f"sharing hurt it: its next pods have whole GPUs until {after.whole_until}"
    if after.resumed_at and after.resumed_at != before.resumed_at:
        past_us = ", past fallow" if after.resumed_by.startswith(names.BY_OTHERS) else ""
        yield "resume", f"brought back by {after.resumed_by}{past_us}"


def _name(workload: cluster.Workload) -> str:
    return f"{workload.ref.namespace}/{workload.ref.name}"


def _typed(finding: decision.Finding) -> str:
    return f"{kinds.typed(finding.workload.ref)} -n {finding.workload.ref.namespace}"


def _say_resume(finding: decision.Finding) -> str:
    return f"fallow resume {_typed(finding)}"
