"""A pretend cluster with its own clock: nodes with GPUs, workloads on them, owners who react, and faults.

In: nodes, Parts (who lives there) and a matrix of what each of their GPUs wants to do, one column per step. Out: at any
instant what runs where, what was done and what of that was seen, and a log of what happened. It moves only by
`advance`; nothing here reads a clock.
Two matrices keep the past, one row per seat: `done` is the truth, `seen` is what the exporters made of it (NONE =
nothing). They are rings as long as the lives: after the last column the lives begin anew.
Invariant: the same parts, seed and writes give the same day.
"""

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from fallow import names
from fallow.model import cluster
from fallow.model.units import Instant, Seconds
from fallow.model.usage import Bools, Indices
from fallow.sim.world import edits, slots
from fallow.sim.world.lives import ACTIVE, NONE, LifeSpan, Percents
from fallow.sim.world.nouns import (
    PARTS,
    Fault,
    Mode,
    Part,
    SimChange,
    SimNode,
    SimPod,
    SimState,
    SimWorkload,
    make_uid,
    move,
    name_devices,
    settle,
)
from fallow.sim.world.owners import SimOwners


class _Broken(msgspec.Struct, frozen=True):
    nodes: frozenset[str] = frozenset()
    amount: float = 0.0


_WELL: Final = _Broken()


class KeptPlace(NamedTuple):
    """For a workload, by its uid. No slots: whoever has them is to leave them, or they were taken."""

    uid: str
    slots: tuple[int, ...] = ()


class World:
    """`start_seconds`: how long a pod takes from its creation until it serves."""

    def __init__(
        self, nodes: Sequence[SimNode], parts: Sequence[Part], wanted: Percents, span: LifeSpan, *, seed: int = 0,
        start_seconds: Seconds = 120.0,
    ) -> None:
        self.span, self.now, self.seed, self.start_seconds = span, span.start, seed, start_seconds
        self.nodes, self.wanted = {node.name: node for node in nodes}, wanted
        self.taken = 0  # columns that were sampled
        self.pods_version = self.objects_version = 0  # how often pods and objects changed
        self.faults: dict[Fault, _Broken] = {}
        self._log: list[SimChange] = []
        self._owners = SimOwners(self, seed)
        self._events: list[tuple[Instant, int, Callable[[], None]]] = []
        self._order, self._queue = itertools.count(), list[SimWorkload]()
        self.is_gated = False  # new pods wait until somebody lets them in
        self.at_gate: list[SimWorkload] = []
        self.kept: dict[str, KeptPlace] = {}  # by node
        self._lay_slots(list(nodes))
        firsts = itertools.accumulate((part.seats for part in parts), initial=0)
        self.workloads = [settle(*each) for each in zip(parts, itertools.count(), firsts, strict=False)]
        self._by_uid = {workload.uid: workload for workload in self.workloads}
        self._lay_seats()
        self._invite()

    def moved(self, start: Instant) -> "World":
        """The same world from its begin, at another date: its midnight is when it begins, whatever the hour then is."""
        by = start - self.span.start
        parts = [move(workload.part, by) for workload in self.workloads]
        nodes = [msgspec.structs.replace(node, ready=True) for node in self._nodes]
        return self.remade(nodes, parts, msgspec.structs.replace(self.span, start=start))

    def remade(self, nodes: Sequence[SimNode], parts: Sequence[Part], span: LifeSpan | None = None) -> "World":
        """The same lives from their begin, on other nodes."""
        return World(
            nodes, parts, self.wanted, span or self.span, seed=self.seed, start_seconds=self.start_seconds
        )

    # ---- where everything is ----------------------------------------------------------------------------------------

    def _lay_slots(self, nodes: list[SimNode]) -> None:
        self._nodes = nodes
        self._free = slots.FreeSlots(
            [node.slots for node in nodes], [(node.mode, node.model) for node in nodes],
            [node.crowd for node in nodes],
        )
        for node, first in zip(nodes, self._free.firsts, strict=True):
            node.first = first
        self.slot_node = self._free.node_of
        for node in nodes:
            self._open(node)
        self.seat_at = np.full(len(self.slot_node), -1, np.int64)
        self.uuids = [uuid for node in nodes for uuid in name_devices(node)]  # of each slot

    def _lay_seats(self) -> None:
        seats = sum(workload.part.seats for workload in self.workloads)
        if self.wanted.shape != (seats, self.span.columns):
            needed = f"{seats} GPUs for {self.span.columns} steps are needed"
            raise ValueError(f"the lives are {self.wanted.shape}, and {needed}")
        self._firsts = np.array([workload.first_seat for workload in self.workloads], np.int64)
        self.slot_of = np.full(seats, -1, np.int64)
        self.last_node = np.full(seats, -1, np.int64)  # where it ran last; stays while it is paused
        self.running, self._paused = np.zeros(seats, np.bool_), np.zeros(seats, np.bool_)
        self._is_paused = np.zeros(len(self.workloads), np.bool_)
        self.done, self.seen = np.full_like(self.wanted, NONE), np.full_like(self.wanted, NONE)
        self._gives = np.zeros(seats, np.bool_)  # less was given than was asked for
        self.held_steps, self.idle_steps, self.paused_steps, self.given_steps = (
            np.zeros(seats, np.int64) for _ in range(4)
        )

    def device_of(self, slot: int) -> tuple[SimNode, int, int]:
        """Node, index of the GPU, which part of it."""
        node = self._nodes[int(self.slot_node[slot])]
        return node, *divmod(slot - node.first, PARTS[node.mode])

    def holder_of(self, slot: int) -> tuple[Part, SimPod] | None:
        """Who was given it; None while it is free."""
        seat = int(self.seat_at[slot])
        if seat < 0:
            return None
        workload = self.workloads[int(np.searchsorted(self._firsts, seat, "right")) - 1]
        return workload.part, workload.pods[(seat - workload.first_seat) // workload.part.gpus]

    def find(self, uid: str) -> SimWorkload | None:
        return self._by_uid.get(uid)

    def changes_since(self, number: int) -> list[SimChange]:
        """Everything that happened from this number on."""
        return self._log[number:]

    def note(self, what: str, by: str = "person") -> None:
        """Something happened that is about nobody in particular."""
        self.note_of(what, "", by)

    def note_of(self, what: str, uid: str, by: str = "world") -> None:
        self._log.append(SimChange(len(self._log), self.now, what, uid, by))

    # ---- time -------------------------------------------------------------------------------------------------------

    def at(self, when: Instant, act: Callable[[], None]) -> None:
        """Let something happen then, or at the next step if that is past."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), act))

    def advance(self, seconds: Seconds) -> None:
        """What happens until then happens, in its order; a sample is taken at the begin of every step."""
        until = self.now + seconds
        while True:
            sample = self.span.start + self.taken * self.span.step
            event = self._events[0][0] if self._events else float("inf")
            if min(sample, event) > until:
                break
            self.now = max(self.now, min(sample, event))
            if event <= sample:
                heapq.heappop(self._events)[2]()
            else:
                self._sample()
        self.now = until

    @property
    def clock(self) -> Instant:
        """What a clock in this world shows."""
        return self.now + self.amount(Fault.clock_jump)

    @property
    def paused(self) -> Bools:
        """Of each seat: whether it would be held, were it not paused."""
        return self._paused

    def columns_before(self, window: Seconds) -> Indices:
        """The columns sampled within the window that ends now, oldest first; at most one round of the ring."""
        count = min(self.taken, self.span.columns, round(window / self.span.step))
        return np.arange(self.taken - count, self.taken) % self.span.columns

    def _sample(self) -> None:
        column = self.taken % self.span.columns
        wanted = self.wanted[:, column]
        done = np.where(self.running, wanted, NONE).astype(np.uint8)
        self.done[:, column] = done
        self.seen[:, column] = self._cover_up(done)
        self.held_steps += self.running
        self.idle_steps += done < ACTIVE
        self.paused_steps += self._paused
        self.given_steps += self.running & self._gives
        self.taken += 1
        if self._is_paused.any():
            needs = np.maximum.reduceat(np.where(wanted == NONE, 0, wanted), self._firsts) >= ACTIVE
            for number in np.flatnonzero(needs & self._is_paused).tolist():
                self._owners.miss(self.workloads[number])

    def _cover_up(self, done: Percents) -> Percents:
        """What the exporters make of the truth."""
        if not self.faults:
            return done
        on = self.slot_node[self.slot_of]
        silent = self._struck(Fault.exporter_silent) | self._struck(Fault.node_lost)
        seen = np.where((done != NONE) & self._struck(Fault.exporter_zero)[on], 0, done)
        return np.where(silent[on], NONE, seen).astype(np.uint8)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def switch_on(self, fault: Fault, nodes: Sequence[str] = (), amount: float = 0.0) -> None:
        """Profiling of MIG instances is never zeroed: nothing else speaks of them, so nobody could find that out."""
        struck = {name for name in nodes if fault is not Fault.exporter_zero or self.nodes[name].mode != "mig"}
        self.faults[fault] = _Broken(self.faults.get(fault, _WELL).nodes | struck, amount)
        self._note_fault(fault, nodes, is_well=False)

    def switch_off(self, fault: Fault) -> None:
        broken = self.faults.pop(fault, None)
        if broken is not None:
            self._note_fault(fault, sorted(broken.nodes), is_well=True)
            self._serve_queue()

    def _note_fault(self, fault: Fault, nodes: Sequence[str], *, is_well: bool) -> None:
        for name in nodes if fault is Fault.node_lost else ():
            self.nodes[name].ready = is_well
            self._open(self.nodes[name])
        self.pods_version += 1
        self.note_of(f"{fault} {'over' if is_well else 'begins'}", ",".join(nodes))

    # ---- nodes that are cordoned, emptied, cut anew ------------------------------------------------------------------

    def cordon(self, name: str, cordoned: bool) -> None:
        self.nodes[name].cordoned = cordoned
        self._open(self.nodes[name])
        self._serve_queue()

    def _open(self, node: SimNode) -> None:
        self._free.set_open(self._nodes.index(node), node.is_open)

    def bring(self, name: str) -> None:
        """A machine becomes this node."""
        node = self.nodes[name]
        node.there, node.cordoned = True, False
        self._open(node)
        self.pods_version += 1
        self.note_of("joined", name)
        self._serve_queue()

    def join(self, node: SimNode) -> None:
        """A machine that was never here becomes a node."""
        self.nodes[node.name] = node
        self._nodes.append(node)
        node.first = self._free.add(node.slots, (node.mode, node.model), node.crowd)
        self._lengthen(node)
        self.bring(node.name)

    def take(self, name: str) -> None:
        """Its machine is gone; whoever was there begins anew."""
        node = self.nodes[name]
        node.there = node.cordoned = False
        self._open(node)
        self.pods_version += 1
        for workload in [one for one in self.workloads if any(pod.node == name for pod in one.pods)]:
            self._leave(workload, SimState.absent)
            self._wait(workload)
        self.note_of("left", name)

    def cut_anew(self, name: str, mode: Mode) -> bool:
        """Its GPUs are given out otherwise from now on; whether nobody was on it."""
        node = self.nodes[name]
        if (self.seat_at[node.first : node.first + node.slots] >= 0).any():
            return False
        node.mode = mode
        node.first = self._free.lay_anew(self._nodes.index(node), node.slots, (mode, node.model), node.crowd)
        self._lengthen(node)
        self.pods_version += 1
        self.note_of("cut anew", name)
        self._serve_queue()
        return True

    def _lengthen(self, node: SimNode) -> None:
        """Its slots are the last."""
        self.slot_node = self._free.node_of
        self.seat_at = np.append(self.seat_at, np.full(node.slots, -1))
        self.uuids += name_devices(node)

    def keep_place(self, name: str, workload: SimWorkload, *, is_left: bool) -> bool:
        """For its next pod. `is_left`: who is there leaves it, and this one comes before all who wait. Whether there is
        such a place."""
        found = () if is_left else self._free.take_on(self._nodes.index(self.nodes[name]), workload.part.gpus)
        if found is not None:
            self.kept[name] = KeptPlace(workload.uid, found)
        return found is not None

    def free_place(self, name: str) -> None:
        self._free.give_back(self.kept.pop(name).slots)
        self._serve_queue()

    def _find_room(self, workload: SimWorkload) -> tuple[int, ...] | None:
        """Where a place is kept for it, or anywhere."""
        for name, place in self.kept.items():
            if place.uid == workload.uid and place.slots and self.nodes[name].mode == workload.mode:
                self.kept[name] = KeptPlace(workload.uid)
                return place.slots
        return self._free.take(workload.mode, workload.part.model, workload.part.gpus)

    def evict(self, workload: SimWorkload, number: int) -> None:
        """One of its pods had to go: another comes elsewhere; where there is no room for it alone, all begin anew."""
        self.note_of("evicted", workload.uid, "product")
        found = self._find_room(workload) if workload.part.pods > 1 else None
        if found is None or workload.state is not SimState.running:
            self._free.give_back(found or ())
            self._leave(workload, SimState.absent)
            self._wait(workload)
            return
        before, seats = workload.pods[number], self._seats_of(workload, number)
        self._free.give_back(before.slots)
        self.seat_at[list(before.slots)] = -1
        node, uid = self._nodes[int(self.slot_node[found[0]])].name, make_uid(f"{before.uid}/evicted")
        ready_at = self.now + self.start_seconds
        moved = SimPod(before.name, uid, self.now, self.now, ready_at, node, found)
        workload.pods = (*workload.pods[:number], moved, *workload.pods[number + 1 :])
        self.slot_of[seats], self.last_node[seats], self.running[seats] = found, self.slot_node[found[0]], False
        self.seat_at[list(found)] = np.arange(seats.start, seats.stop)
        self.pods_version += 1
        self.at(ready_at, functools.partial(self._serve_again, workload, number, uid))
        self._serve_queue()

    def _seats_of(self, workload: SimWorkload, number: int) -> slice:
        first = workload.first_seat + number * workload.part.gpus
        return slice(first, first + workload.part.gpus)

    def _serve_again(self, workload: SimWorkload, number: int, uid: str) -> None:
        if workload.state is SimState.running and workload.pods[number].uid == uid:
            self.running[self._seats_of(workload, number)] = True
            self.note_of("moved", workload.uid)

    def amount(self, fault: Fault) -> float:
        return self.faults.get(fault, _WELL).amount

    def strikes(self, fault: Fault, node: str) -> bool:
        return node in self.faults.get(fault, _WELL).nodes

    def _struck(self, fault: Fault) -> Bools:
        return np.array([self.strikes(fault, node.name) for node in self._nodes], np.bool_)

    # ---- lives ------------------------------------------------------------------------------------------------------

    def _invite(self) -> None:
        for workload in self.workloads:
            part = workload.part
            if part.arrives_at is None or part.arrives_at <= self.span.start:
                self._arrive(workload)
            else:
                self.at(part.arrives_at, functools.partial(self._arrive, workload))
            if part.ends_at is not None:
                self.at(part.ends_at, functools.partial(self._leave, workload, SimState.finished))  # paused or not
            if part.restarts_at is not None:
                self.at(part.restarts_at, functools.partial(self._restart, workload))

    def _arrive(self, workload: SimWorkload) -> None:
        self.note_of("arrived", workload.uid)
        self._wait(workload)

    def _restart(self, workload: SimWorkload) -> None:
        if workload.state is SimState.running:
            self.note_of("restarted", workload.uid, "person")
            self._leave(workload, SimState.absent)
            self._wait(workload)

    def _wait(self, workload: SimWorkload) -> None:
        workload.life += 1
        workload.mode, workload.patch = workload.part.mode, ()
        workload.pods = tuple(
            SimPod(f"{workload.part.name}-{number}", make_uid(f"{workload.uid}/{workload.life}/{number}"), self.now)
            for number in range(workload.part.pods)
        )
        self._turn(workload, SimState.waiting)
        if self.is_gated:
            self.at_gate.append(workload)
        else:
            self._queue.append(workload)
            self._serve_queue()

    def let_in(self, workload: SimWorkload, mode: Mode, patch: tuple[dict[str, Any], ...] = ()) -> None:
        """Its pods may be placed: as they asked, or, changed like this, on less."""
        self.at_gate.remove(workload)
        if workload.state is not SimState.waiting:
            return
        workload.mode, workload.patch = mode, patch
        self._gives[workload.seats] = mode != workload.part.mode
        self.note_of("admitted" if mode == workload.part.mode else "shares", workload.uid)
        self._queue.append(workload)
        self._serve_queue()

    def _serve_queue(self) -> None:
        """First come, first served, but for whom a place is kept; whoever does not fit lets the others pass."""
        first = {place.uid for place in self.kept.values()}
        self._queue.sort(key=lambda each: each.uid not in first)
        self._queue = [each for each in self._queue if each.state is SimState.waiting and not self._start(each)]

    def _start(self, workload: SimWorkload) -> bool:
        taken = list[tuple[int, ...]]()
        for _ in workload.pods:
            found = self._find_room(workload)
            if found is None:
                self._free.give_back(itertools.chain(*taken))
                return False
            taken.append(found)
        was_there = workload.life == 1 and self.now == self.span.start
        ready_at = self.now if was_there else self.now + self.start_seconds
        self._move_in(workload, taken, ready_at)
        self._turn(workload, SimState.starting)
        begin = functools.partial(self._begin, workload, workload.life)
        if was_there:
            begin()
        else:
            self.at(ready_at, begin)
        return True

    def _move_in(self, workload: SimWorkload, taken: Sequence[tuple[int, ...]], ready_at: Instant) -> None:
        nodes = [self._nodes[int(self.slot_node[found[0]])].name for found in taken]
        workload.pods = tuple(
            msgspec.structs.replace(pod, node=node, slots=found, bound_at=self.now, ready_at=ready_at)
            for pod, node, found in zip(workload.pods, nodes, taken, strict=True)
        )
        every = list(itertools.chain(*taken))
        self.slot_of[workload.seats] = every
        self.last_node[workload.seats] = self.slot_node[every]
        self.seat_at[every] = np.arange(workload.first_seat, workload.first_seat + len(every))

    def _begin(self, workload: SimWorkload, life: int) -> None:
        if workload.state is not SimState.starting or workload.life != life:
            return
        if workload.missed_since is not None:
            workload.waited += self.now - workload.missed_since
            workload.missed_since = None
        self._turn(workload, SimState.running)

    def _leave(self, workload: SimWorkload, state: SimState) -> None:
        for pod in workload.pods:
            self._free.give_back(pod.slots)
            self.seat_at[list(pod.slots)] = -1
        self.slot_of[workload.seats] = -1
        workload.pods, workload.left_at = (), self.now
        self._turn(workload, state)
        self._serve_queue()

    def _turn(self, workload: SimWorkload, state: SimState) -> None:
        workload.state, workload.since = state, self.now
        self.running[workload.seats] = state is SimState.running
        self._paused[workload.seats] = self._is_paused[workload.number] = state is SimState.paused
        self.pods_version += 1
        self.note_of(state, workload.uid)

    # ---- pauses, resumes, and people --------------------------------------------------------------------------------

    def notice(self, thing: dict[str, Any], by: str = "product") -> None:
        """An object of this world was written: its operator does what it now says, its owner reads its marks."""
        workload = self._by_uid[thing["metadata"]["uid"]]
        workload.object, workload.view = thing, edits.see(thing)
        self.objects_version += 1
        self.note_of("edited", workload.uid, by)
        is_stopped = edits.has_stopped(thing)
        if is_stopped and workload.state in (SimState.waiting, SimState.starting, SimState.running):
            workload.by_hand = _find_hand(workload.view, by)
            workload.pauses += not workload.by_hand
            self._leave(workload, SimState.paused)
        elif not is_stopped and workload.state is SimState.paused:
            workload.resumes += not workload.by_hand
            self._wait(workload)
        self._owners.read(workload)


def _find_hand(stopped: cluster.Workload, by: str) -> str:
    """Which person stopped it, with our command or without a word; empty: the controller."""
    named = stopped.annotations.get(names.PAUSED_BY, "")
    return named if named.startswith(names.BY_USER) else "somebody" if by == "person" else ""
