"""A cluster as columns of whole numbers: what its nodes have, what of it is free.

In: nodes (rows) and, one by one, pods with the placement they take or leave. Out: columns that policies score many
nodes at a time with. Units: CPU in milli-cores, memory in MiB, GPU in milli (1000 = one GPU).
Invariants: nothing is ever overfilled (`add` refuses); `add` then `remove` restores the room exactly; every change is
logged, so that whoever keeps scores knows which of them are old. A GPU that a node does not have has nothing free.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

GPU: Final = 1000  # milli of one whole GPU
MANY: Final = 1 << 40  # a node that does not say how many pods it takes
LARGEST: Final = 1 << 40  # no machine has this many milli-cores or MiB; keeps sums of whole clusters inside 64 bits


class PackingNode(msgspec.Struct, frozen=True):
    name: str
    model: str  # "" where there is no GPU
    cpu: int
    memory: int
    gpus: int
    pods: int = MANY

    def find_fault(self) -> str:
        """What is wrong with a node, in one sentence; "" if nothing is."""
        if not 0 <= self.cpu < LARGEST or not 0 <= self.memory < LARGEST or self.pods < 0:
            has = f"{self.cpu} milli-cores, {self.memory} MiB and room for {self.pods} pods"
            return f"node {self.name} has {has}, which no machine has"
        return "" if 0 <= self.gpus <= 64 else f"node {self.name} has {self.gpus} GPUs; 0 to 64 are believed"


class PackingPod(msgspec.Struct, frozen=True):
    name: str
    cpu: int
    memory: int
    gpus: int = 0
    milli: int = 0  # of each of its GPUs; below 1000 only with one GPU
    models: tuple[str, ...] = ()  # that it accepts, as written; empty = any

    @property
    def gpu_milli(self) -> int:
        """Of all its GPUs."""
        return self.gpus * self.milli

    def accepts(self, model: str) -> bool:
        return not self.models or model in self.models

    def find_fault(self) -> str:
        """What is wrong with a request, in one sentence; "" if nothing is."""
        asks = f"pod {self.name} asks for"
        if not 0 <= self.cpu < LARGEST or not 0 <= self.memory < LARGEST:
            return f"{asks} {self.cpu} milli-cores and {self.memory} MiB, which no machine has"
        if self.gpus < 0 or self.milli < 0 or self.milli > GPU:
            return f"{asks} {self.gpus} GPUs of {self.milli} milli each; a GPU has {GPU}"
        if (self.gpus > 0) != (self.milli > 0):
            return f"{asks} {self.gpus} GPUs and for {self.milli} milli of each: only one of the two is nothing"
        if self.gpus > 1 and self.milli < GPU:
            return f"{asks} {self.milli} milli of {self.gpus} GPUs; only one GPU can be shared"
        return ""


class Placement(msgspec.Struct, frozen=True):
    node: int
    gpus: tuple[int, ...]
    milli: int  # taken of each of them


class Group(msgspec.Struct, frozen=True, order=True):
    """Nodes that are alike: prices are set per group."""

    cpu: int
    gpus: int
    model: str


class Overfull(Exception):
    """A placement that does not fit: the caller's fault, not the pod's."""


class Nodes:
    """What the nodes have, as columns; row i is node i everywhere in packing."""

    def __init__(self, rows: Sequence[PackingNode]) -> None:
        faults = [fault for row in rows if (fault := row.find_fault())]
        if faults:
            raise ValueError(f"{len(faults)} nodes cannot be believed; the first: {faults[0]}")
        groups = [Group(row.cpu, row.gpus, row.model) for row in rows]
        self.rows = tuple(rows)
        self.names = tuple(row.name for row in rows)
        self.cpu, self.memory, self.gpus, self.pods = (
            np.array([getattr(row, column) for row in rows], np.int64) for column in ("cpu", "memory", "gpus", "pods")
        )
        self.models, self.groups = tuple(sorted({row.model for row in rows})), tuple(sorted(set(groups)))
        self.model, self.group = _index([row.model for row in rows], self.models), _index(groups, self.groups)
        self.has_pod_limits = any(row.pods < MANY for row in rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def capacity(self) -> int:
        """GPU milli of all nodes together."""
        return int(self.gpus.sum()) * GPU


def _index(values: Sequence[object], distinct: Sequence[object]) -> Ints:
    where = {value: i for i, value in enumerate(distinct)}
    return np.array([where[value] for value in values], np.int64)


class Room:
    """What is free, and who runs where as far as a policy asks."""

    def __init__(self, nodes: Nodes) -> None:
        width = max(1, int(nodes.gpus.max(initial=0)))
        self.nodes = nodes
        self.cpu, self.memory, self.pods = nodes.cpu.copy(), nodes.memory.copy(), nodes.pods.copy()
        self.gpu: Ints = np.where(np.arange(width) < nodes.gpus[:, None], GPU, 0)
        self.free = nodes.gpus * GPU  # GPU milli of the node
        self.whole = nodes.gpus.copy()  # GPUs that nobody uses
        self.most = np.where(nodes.gpus > 0, GPU, 0)  # milli of the GPU with most room
        self.takers: Ints = np.zeros((len(nodes), width + 1), np.int64)  # pods that share a GPU, take one, two, ...
        self.free_of_model: Ints = np.bincount(nodes.model, self.free, len(nodes.models)).astype(np.int64)
        self.allocated = 0  # GPU milli of all nodes
        self.clock = 0  # changes so far
        self._log: Ints = np.zeros(1024, np.int64)  # the node of each change

    def copy(self) -> "Room":
        twin = Room(self.nodes)
        for column in ("cpu", "memory", "pods", "gpu", "free", "whole", "most", "takers", "free_of_model"):
            setattr(twin, column, getattr(self, column).copy())
        twin.allocated = self.allocated
        return twin

    def add(self, pod: PackingPod, placement: Placement) -> None:
        """The pod comes in. Raises Overfull, and changes nothing, if there is no room."""
        if not self.fits(pod, placement):
            where = f"{self.nodes.names[placement.node]}, GPUs {placement.gpus}"
            raise Overfull(f"no room for pod {pod.name} on {where}")
        self._move(pod, placement, 1)

    def remove(self, pod: PackingPod, placement: Placement) -> None:
        """The pod leaves: the exact opposite of `add`."""
        self._move(pod, placement, -1)

    def fits(self, pod: PackingPod, placement: Placement) -> bool:
        n, gpus = placement.node, placement.gpus
        if len(set(gpus)) != pod.gpus or (gpus and min([self.gpu.item(n, gpu) for gpu in gpus]) < placement.milli):
            return False
        return self.cpu.item(n) >= pod.cpu and self.memory.item(n) >= pod.memory and self.pods.item(n) > 0

    def _move(self, pod: PackingPod, placement: Placement, sign: int) -> None:
        n, taken = placement.node, sign * placement.milli * len(placement.gpus)
        self.cpu[n] -= sign * pod.cpu
        self.memory[n] -= sign * pod.memory
        self.pods[n] -= sign
        if placement.gpus:
            row = self.gpu[n]
            for gpu in placement.gpus:
                row[gpu] -= sign * placement.milli
            self.free[n] -= taken
            self.free_of_model[self.nodes.model[n]] -= taken
            self.allocated += taken
            left = row.tolist()
            self.whole[n], self.most[n] = left.count(GPU), max(left)
            self.takers[n, count_whole(pod.gpus, pod.milli)] += sign
        if self.clock == len(self._log):
            self._log = np.concatenate([self._log, np.zeros_like(self._log)])
        self._log[self.clock] = n
        self.clock += 1

    def changed_since(self, clock: int) -> Ints:
        """Nodes that changed after that many changes, some more than once; all nodes where that is shorter."""
        return self._log[clock : self.clock] if self.clock - clock < len(self.nodes) else np.arange(len(self.nodes))


def count_whole(gpus: int, milli: int) -> int:
    """How many whole GPUs that is: 0 for a share."""
    return 0 if milli < GPU else gpus
