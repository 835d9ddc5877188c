"""The cluster of the month: nodes that a pretend cloud brings and takes, pods that wait, run, end and have a node.

In: jobs, a cloud, the clock that both share. Out: at any instant who runs where and who waits; how long everybody
waited and what was carried out. Pods are put onto the fullest node that has room, as a scheduler that packs does; who
wants spot nodes says so, and is on no others. Only GPUs can run short here: every pod asks for less CPU and memory by
GPU than any node has.
Invariant: a pod that is sent away, or whose node dies, waits again and does its last ten minutes of work once more.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model.cluster import Owner, PodId
from fallow.model.cost import CapacityType
from fallow.model.policies.scaling import PoolTaint
from fallow.model.scaling import DrainRecord, EvictionRank, NodeToleration, ScaledNode, ScaledPod, SpotRecord
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.sim.cloud import PretendCloud, PretendGroup, PretendMachine
from fallow.sim.month.jobs import GpuJob

SPOT_TAINT: Final = PoolTaint("pretend.cloud/spot", "true", "NoSchedule")
LARGE_TAINT: Final = PoolTaint("pretend.cloud/large", "true", "NoSchedule")
LARGE: Final = 4  # GPUs from which on a machine is for jobs that need more than half of that
SPOT_LABEL: Final = "pretend.cloud/spot"
_ON_SPOT: Final = {SPOT_LABEL: "true"}
KEPT: Final[Seconds] = 10 * MINUTE  # work that was not saved yet when a pod is stopped
CPU, MEMORY = 8_000, 32_768  # that a pod asks for, by GPU
_RANKS: Final = {"training": EvictionRank.high, "inference": EvictionRank.medium}


class MonthPod(msgspec.Struct, kw_only=True, eq=False):
    """A job as it now is. `left`: what it has still to do when it begins; `waited`: in all its turns."""

    job: GpuJob
    left: Seconds
    since: Instant  # it waits, or runs
    turn: int = 0
    node: str = ""
    waited: Seconds = 0.0
    ran: list[tuple[Instant, Instant]] = msgspec.field(default_factory=list)  # without what it does once more
    is_done: bool = False
    seen: ScaledPod | None = None

    @property
    def id(self) -> PodId:
        return PodId("month", self.job.name, f"{self.job.name}-{self.turn}")

    def carried_out(self, now: Instant) -> Seconds:
        """Work that counts, without what is done once more."""
        left = self.left - (now - self.since) if self.node else self.left
        return min(self.job.seconds, self.job.seconds - left)

    def list_runs(self, now: Instant) -> list[tuple[Instant, Instant]]:
        """From when until when it did work that counts."""
        return [*self.ran, *([(self.since, now)] if self.node else [])]


class MonthNode(msgspec.Struct, kw_only=True, eq=False):
    """A machine that is a node, with what we wrote on it."""

    machine: PretendMachine
    created_at: Instant
    gpus: int
    free: int
    pods: dict[str, MonthPod] = {}  # by the name of their job
    version: int = 0
    is_ready: bool = True
    cordoned_by: str = ""
    drain: DrainRecord | None = None
    spot: SpotRecord | None = None
    warned_at: Instant | None = None
    ends_at: Instant | None = None
    rests_until: Instant | None = None
    prewarmed_until: Instant | None = None
    seen: tuple[Any, ScaledNode] | None = None  # as the brain saw it last, and what that hung on

    @property
    def name(self) -> str:
        return self.machine.node

    @property
    def is_spot(self) -> bool:
        return self.machine.group.tier is CapacityType.spot

    @property
    def is_open(self) -> bool:
        return self.is_ready and not self.cordoned_by

    def may_host(self, job: GpuJob) -> bool:
        is_meant = job.is_large or self.gpus < LARGE
        return self.is_open and self.free >= job.gpus and job.spot == self.is_spot and is_meant


class Scene:
    """Its cloud lives by its clock. It moves only by `advance`."""

    def __init__(self, jobs: Sequence[GpuJob], groups: Sequence[PretendGroup], begins: Instant, **more: Any) -> None:
        self.now, self.begins = begins, begins
        self.cloud = PretendCloud(groups, lambda: self.now, **more)
        self.nodes: dict[str, MonthNode] = {}
        self.pods: dict[str, MonthPod] = {}  # that wait or run, by the name of their job
        self.waiting: dict[str, MonthPod] = {}
        self.over: list[MonthPod] = []
        self.version = 0  # how often anything changed
        self.joined = self.left = self.killed = 0
        self._coming: Iterator[GpuJob] = iter(jobs)
        self._next: GpuJob | None = next(self._coming, None)
        self._ends: list[tuple[Instant, int, str]] = []

    # ---- time -------------------------------------------------------------------------------------------------------

    def next_change(self) -> Instant:
        """When anything next happens by itself."""
        return min(self._next_times())

    def next_arrival(self) -> Instant:
        return self._next_times()[0]

    def _next_times(self) -> tuple[Instant, Instant, Instant]:
        comes = self.begins + self._next.at if self._next else float("inf")
        return comes, self._ends[0][0] if self._ends else float("inf"), self.cloud.next_change()

    def advance(self, until: Instant) -> None:
        """What happens until then happens, in its order."""
        while True:
            comes, ends, moves = self._next_times()
            at = min(comes, ends, moves)
            if at > until:
                break
            self.now = max(self.now, at)
            if moves <= at:
                self.meet()
            elif ends <= at:
                self._finish(*heapq.heappop(self._ends))
            else:
                self._arrive()
        self.now = until
        self.meet()

    def _arrive(self) -> None:
        assert self._next is not None
        job, self._next = self._next, next(self._coming, None)
        pod = self.pods[job.name] = MonthPod(job=job, left=job.seconds, since=self.now)
        self._wait(pod)
        self.place()

    def _wait(self, pod: MonthPod) -> None:
        pod.since, pod.node, pod.seen = self.now, "", None
        self.waiting[pod.job.name] = pod
        self.version += 1

    def _finish(self, at: Instant, turn: int, name: str) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.turn != turn or not pod.node:
            return
        self._take_off(pod)
        pod.left, pod.is_done = 0.0, True
        self.over.append(self.pods.pop(name))
        self.place()

    def _take_off(self, pod: MonthPod, again: Seconds = 0.0) -> None:
        """`again`: what of its work it does once more."""
        node = self.nodes[pod.node]
        node.free += pod.job.gpus
        del node.pods[pod.job.name]
        node.version += 1
        self.version += 1
        pod.left -= self.now - pod.since
        pod.ran.append((pod.since, self.now - again))
        pod.node, pod.seen = "", None

    def send_away(self, pod: MonthPod) -> None:
        """It is evicted, or its node died: its owner makes it anew, and it waits."""
        again = min(self.now - pod.since, KEPT)
        self._take_off(pod, again)
        pod.left += again
        pod.turn += 1
        self._wait(pod)

    # ---- who goes where ---------------------------------------------------------------------------------------------

    def place(self) -> None:
        """Who waits, in the order in which they came; of those who ask alike none passes the first."""
        failed = set[tuple[int, bool]]()
        for pod in list(self.waiting.values()):
            asks = pod.job.gpus, pod.job.spot
            if asks in failed:
                continue
            node = self.find_room(pod.job)
            if node is None:
                failed.add(asks)
            else:
                self._bind(pod, node)

    def find_room(self, job: GpuJob, but: frozenset[str] = frozenset()) -> MonthNode | None:
        """The fullest that has any."""
        fitting = [node for node in self.nodes.values() if node.may_host(job) and node.name not in but]
        return min(fitting, key=lambda node: (node.free, node.gpus, node.name), default=None)

    def _bind(self, pod: MonthPod, node: MonthNode) -> None:
        del self.waiting[pod.job.name]
        node.free -= pod.job.gpus
        node.pods[pod.job.name] = pod
        node.version += 1
        pod.waited += self.now - pod.since
        pod.node, pod.since, pod.seen = node.name, self.now, None
        heapq.heappush(self._ends, (self.now + pod.left, pod.turn, pod.job.name))
        self.version += 1

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """New machines become nodes; those that are gone leave, and whoever was there waits again."""
        there = {machine.node: machine for machine in self.cloud.standing()}
        for name in [name for name in self.nodes if name not in there]:
            self._lose(self.nodes[name])
        for name, machine in there.items():
            if name not in self.nodes:
                gpus = machine.group.shape.gpus or 0
                self.nodes[name] = MonthNode(machine=machine, created_at=self.now, gpus=gpus, free=gpus, pods={})
                self.joined += 1
                self.version += 1
        self.place()

    def _lose(self, node: MonthNode) -> None:
        for pod in list(node.pods.values()):
            self.killed += 1
            self.send_away(pod)
        del self.nodes[node.name]
        self.left += 1
        self.version += 1

    # ---- as the brain sees it ---------------------------------------------------------------------------------------

    def find_use(self, node: MonthNode) -> float | None:
        """Mean of its GPUs; None: not known."""
        return sum(pod.job.use * pod.job.gpus for pod in node.pods.values()) / node.gpus

    def list_taints(self, node: MonthNode) -> tuple[PoolTaint, ...]:
        return tuple(list_taints(node.machine.group))

    def see(self, pod: MonthPod) -> ScaledPod:
        if pod.seen is None:
            job = pod.job
            pod.seen = ScaledPod(
                id=pod.id, node=pod.node,
                asks={names.GPU: job.gpus, "cpu": CPU * job.gpus, "memory": MEMORY * job.gpus},
                fixed="" if job.may_move else "it would lose its work", is_ready=bool(pod.node),
                owner=Owner("batch", "v1", "Job", job.name, f"of-{job.name}"), created_at=pod.since,
                waits_since=None if pod.node else pod.since, work=job.work, replicas=1, spot_ok=job.spot,
                rank=_RANKS.get(job.work, EvictionRank.low), tolerations=tuple(_tolerate(job)),
                node_selector=_ON_SPOT if job.spot else {},
            )
        return pod.seen


def list_taints(group: PretendGroup) -> Iterator[PoolTaint]:
    """Of a node of this group."""
    if group.tier is CapacityType.spot:
        yield SPOT_TAINT
    if (group.shape.gpus or 0) >= LARGE:
        yield LARGE_TAINT


def _tolerate(job: GpuJob) -> Iterator[NodeToleration]:
    if job.spot:
        yield NodeToleration(SPOT_TAINT.key, "Exists")
    if job.is_large:
        yield NodeToleration(LARGE_TAINT.key, "Exists")
