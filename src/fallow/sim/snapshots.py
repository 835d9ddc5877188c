"""The eyes of a backtest: a World as the brain wants to see it, without any socket.

In: a World that somebody moves on. Out: Snapshots in the model's own nouns, with one Usage per window that the rules
ask for. The last activity of a GPU is known exactly here, from what the exporters told. While no pod and no object
changed, snapshots have the same version, as those of the real eyes do. A pause that stands for more than an hour, and
that nobody asks to end, is left out: no brake counts it any more, and no decision can come of it.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from fallow import names
from fallow.model import cluster, usage
from fallow.model.policies import idle
from fallow.model.seen import Register, several
from fallow.model.units import HOUR, Instant, Seconds
from fallow.model.usage import Signal
from fallow.sim.world import nouns
from fallow.sim.world.lives import NONE
from fallow.sim.world.nouns import MIG_PROFILE, RESOURCES, SHARED, SimState
from fallow.sim.world.world import World

_HOLE: Final = 180.0  # a silence of the exporter that is longer is not looked across
_MARKS: Final = frozenset({*names.ACK_KEYS, *names.PENDING_KEYS, *names.PAUSE_KEYS, names.RESUME_REQUESTED})
_RUNS: Final = frozenset({SimState.waiting, SimState.starting, SimState.running})
_SPENT: Final = HOUR + 60  # the brakes count the pauses of one hour


class Rows(msgspec.Struct):
    """What stays of the Usage while the pods are the same: one entry per GPU that a pod holds, or per slot."""

    seats: usage.Indices
    pod: usage.Ints
    gpu: tuple[str, ...]
    model: tuple[str, ...]
    mig: usage.Bools
    shared: usage.Bools
    device: usage.Indices
    version: int = 0


class Viewer:
    """Looks at one World; `threshold` is the percent from which a GPU counts as active."""

    def __init__(self, world: World, threshold: int) -> None:
        self._world, self._threshold = world, threshold
        self._versions = (-1, -1)
        self._version = 0  # of what a snapshot shows
        self._looked = 0  # columns
        seats = world.wanted.shape[0]
        self._newest, self._since = np.full(seats, np.nan), np.full(seats, np.nan)
        self._active = np.full(seats, -np.inf)
        self._policies: tuple[idle.IdlePolicy, ...] = ()
        self._pods: tuple[cluster.Pod, ...] = ()
        self._workloads: tuple[cluster.Workload, ...] = ()
        namespaces = {one.part.namespace for one in world.workloads}
        self._namespaces = {name: cluster.Namespace(name, {}, {}) for name in namespaces}
        self._nodes: dict[str, cluster.Node] = {}
        self._ready: tuple[bool, ...] = ()
        self._every = _know_slots(world)
        parts = [one.part for one in world.workloads]
        self._whose = np.repeat(np.arange(len(parts)), [part.seats for part in parts])
        self._pod_of = np.array([seat // part.gpus for part in parts for seat in range(part.seats)], np.int64)
        self._views: dict[int, tuple[cluster.Workload, Any, cluster.Workload]] = {}
        self._made: dict[int, tuple[Any, SimState, tuple[cluster.Pod, ...]]] = {}
        self._rows: Rows | None = None
        self.is_marked = False  # does anything wait for an answer, though it may not be idle?

    def look(self, windows: Iterable[Seconds], policies: tuple[idle.IdlePolicy, ...] = ()) -> cluster.Snapshot:
        world = self._world
        self._catch_up()
        self._arrange()
        if policies != self._policies:
            self._policies, self._version = policies, self._version + 1
        evidence = usage.Evidence(world.clock, {window: self._measure(window) for window in windows}, None, 0, {}, ())
        return cluster.Snapshot(
            taken_at=world.clock, pods=self._pods, nodes=Register(self._nodes), namespaces=Register(self._namespaces),
            workloads=self._workloads, evidence=evidence, policies=several(policies), freeze=None,
            missing=(), version=self._version,
        )

    def longest_quiet(self) -> Seconds:
        """How long the quietest GPU in anybody's hands has been so, as far as was seen."""
        self._catch_up()
        self._arrange()
        seats = self._rows.seats if self._rows is not None else np.zeros(0, np.int64)
        started = np.fmax(self._active[seats], self._since[seats])
        return float(self._world.now - np.nanmin(started)) if np.isfinite(started).any() else 0.0

    def _catch_up(self) -> None:
        world = self._world
        for number in range(max(self._looked, world.taken - world.span.columns), world.taken):
            at, column = world.span.start + number * world.span.step, number % world.span.columns
            is_seen = world.seen[:, column] != NONE
            self._since[is_seen & ~(at - self._newest <= _HOLE)] = at
            self._newest[is_seen] = at
            # By any primary: the utilisation does not lie.
            self._active[is_seen & (world.done[:, column] >= self._threshold)] = at
        self._looked = world.taken

    def _measure(self, window: Seconds) -> usage.Usage:
        rows, world = self._rows, self._world
        assert rows is not None
        columns = world.columns_before(window)
        seen, done = (past[np.ix_(rows.seats, columns)] for past in (world.seen, world.done))
        is_seen = seen != NONE
        count = is_seen.sum(axis=1).astype(np.float64)
        profiling = self._spread(rows, _highest(seen, is_seen))
        used = np.where(rows.mig, np.nan, self._spread(rows, _highest(done, is_seen)))
        newest = self._newest[rows.seats]
        return usage.Usage(
            window=window, pod=rows.pod, gpu=rows.gpu, model=rows.model, mig=rows.mig, shared=rows.shared,
            peak={Signal.gr_engine: profiling, Signal.gpu_util: used},
            mean={},
            count={Signal.gr_engine: count, Signal.gpu_util: np.where(rows.mig, np.nan, count)},
            newest={Signal.gr_engine: newest, Signal.gpu_util: np.where(rows.mig, np.nan, newest)},
            interval=np.full(len(count), world.span.step), exporter_up=np.ones(len(count), np.bool_),
            exporter_frozen=np.zeros(len(count), np.bool_), power_floor=np.full(len(count), np.nan),
            last_active=self._active[rows.seats], observed_since=self._since[rows.seats], version=rows.version,
        )

    def _spread(self, rows: Rows, values: usage.Floats) -> usage.Floats:
        """The values of a shared device, whichever pod they name."""
        if not rows.shared.any():
            return values
        highest = np.full(int(rows.device.max()) + 1, np.nan)
        np.fmax.at(highest, rows.device, values)
        return np.where(rows.shared, highest[rows.device], values)

    def _arrange(self) -> None:
        world = self._world
        versions = (world.pods_version, world.objects_version)
        if versions == self._versions:
            return
        self._versions = versions
        self._version += 1
        ready = tuple(node.there and node.ready for node in world.nodes.values())
        if ready != self._ready:
            there = {name: node for name, node in world.nodes.items() if node.there}
            self._ready, self._nodes = ready, {name: _see_node(node) for name, node in there.items()}
        pods: list[cluster.Pod] = []
        workloads: list[cluster.Workload] = []
        firsts = np.zeros(len(world.workloads), np.int64)
        for one in self._present():
            first = firsts[one.number] = len(pods)
            pods += self._see_pods(one)
            workloads.append(self._see_workload(one, first))
        self._workloads = tuple(workloads)
        self.is_marked = any(map(_waits, world.workloads))
        is_same = len(pods) == len(self._pods) and all(map(operator.is_, pods, self._pods))
        if self._rows is None or not is_same:
            self._pods = tuple(pods)
            self._rows = self._lay_rows(firsts)

    def _present(self) -> Iterable[nouns.SimWorkload]:
        long_ago = min(self._world.now, self._world.clock) - _SPENT
        for one in self._world.workloads:
            is_spent = one.since <= long_ago and names.RESUME_REQUESTED not in one.view.marks
            if one.state in _RUNS or (one.state is SimState.paused and not is_spent):
                yield one

    def _see_workload(self, one: nouns.SimWorkload, first: int) -> cluster.Workload:
        """The same object as long as nothing about it, nor its slot, changed."""
        if not one.pods:
            return one.view
        known = self._views.get(one.number)
        if known is None or known[0] is not one.view or known[1] is not one.pods or known[2].pods[0] != first:
            pods = tuple(range(first, first + len(one.pods)))
            known = self._views[one.number] = (one.view, one.pods, msgspec.structs.replace(one.view, pods=pods))
        return known[2]

    def _see_pods(self, one: nouns.SimWorkload) -> tuple[cluster.Pod, ...]:
        if not one.pods:
            return ()
        known = self._made.get(one.number)
        if known is None or known[0] is not one.pods or known[1] is not one.state:
            known = self._made[one.number] = (one.pods, one.state, tuple(_see_pod(one, pod) for pod in one.pods))
        return known[2]

    def _lay_rows(self, firsts: usage.Indices) -> Rows:
        """Only of pods that have a slot. `firsts`: of each workload, the index of its first pod."""
        seats = np.flatnonzero(self._world.slot_of >= 0)
        slots, whose = self._world.slot_of[seats], self._whose[seats]
        listed = slots.tolist()
        return Rows(
            seats=seats, pod=(firsts[whose] + self._pod_of[seats]).astype(np.int32),
            gpu=tuple([self._every.gpu[slot] for slot in listed]),
            model=tuple([self._every.model[slot] for slot in listed]),
            mig=self._every.mig[slots], shared=self._every.shared[slots], device=self._every.device[slots],
            version=self._version,
        )


def _know_slots(world: World) -> Rows:
    """What never changes of the slots: one entry per slot."""
    devices = [world.device_of(slot) for slot in range(len(world.slot_node))]
    nodes, parts = [node for node, _, _ in devices], np.array([part for _, _, part in devices], np.int64)
    named = zip(world.uuids, devices, strict=True)
    return Rows(
        seats=np.zeros(0, np.int64), pod=np.zeros(0, np.int32), model=tuple(node.model for node in nodes),
        gpu=tuple(f"{uuid}/{part}" if node.mode == "mig" else uuid for uuid, (node, _, part) in named),
        mig=np.array([node.mode == "mig" for node in nodes], np.bool_),
        shared=np.array([node.mode in SHARED for node in nodes], np.bool_),
        device=np.arange(len(nodes)) - parts,
    )


def _waits(one: nouns.SimWorkload) -> bool:
    """Are there marks on it that the brain may want to put in order? Those of a pause that stands are in order."""
    if one.state is SimState.paused:
        return names.RESUME_REQUESTED in one.view.marks
    return not _MARKS.isdisjoint(one.view.marks)


def _highest(values: Any, is_seen: Any) -> usage.Floats:
    """Of each row, as a ratio; nan where nothing was seen."""
    if not values.shape[1]:
        return np.full(values.shape[0], np.nan)
    return np.where(is_seen.any(axis=1), np.where(is_seen, values, 0).max(axis=1) / 100, np.nan)


def _see_node(node: nouns.SimNode) -> cluster.Node:
    product = f"{node.model}-MIG-{MIG_PROFILE}" if node.mode == "mig" else node.model
    return cluster.Node(
        name=node.name, hostname=node.name, addresses=(), ready=node.ready, gpu_product=product,
        shared=node.mode in SHARED, labels={},
    )


def _see_pod(one: nouns.SimWorkload, pod: nouns.SimPod) -> cluster.Pod:
    is_running, part = one.state is SimState.running, one.part
    started: Instant | None = pod.ready_at if is_running else None
    nothing: Mapping[str, str] = {}
    return cluster.Pod(
        namespace=part.namespace, name=pod.name, uid=pod.uid, node=pod.node,
        phase="Running" if is_running else "Pending", terminating=False, owner=None, labels=nothing,
        annotations=nothing, resources={RESOURCES[part.mode]: part.gpus}, claims=(), claimed=0,
        created_at=pod.created_at, started_at=started, ready=is_running, ready_since=started, ip="", static=False,
        node_selector=nothing, affinity=None, unschedulable_since=None if pod.node else pod.created_at,
    )
