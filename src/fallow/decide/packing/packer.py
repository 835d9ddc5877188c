"""Where does a pod go? The one choice that all policies share: best score among the nodes with room, ties by tie order.

In: the room, a pod, a policy (`policies.prepare`), and the tie order as a rank per node. Out: a Placement, or None
where there is no room. `place` looks at every node. `Packer` gives the same answers over a stream of pods: it keeps the
scores of each class of pods and scores again only the nodes that changed since that class came last.
Invariant: both answers depend on what nodes have and on the tie order, never on names or on how scores were kept.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod, Placement, Room

NO_ROOM: Final = np.iinfo(np.int64).min
MOST_KEPT: Final = 4096  # classes of pods whose scores are kept


class Refusal(StrEnum):
    """Why a pod was not placed."""

    Invalid = "Invalid"
    UnknownModel = "UnknownModel"
    LargerThanAnyNode = "LargerThanAnyNode"
    NoRoom = "NoRoom"


class Ask(msgspec.Struct, frozen=True, eq=False):
    """What a class of pods asks for. Memory is not part of it: it says where a pod may go, never where it is better."""

    cpu: int
    gpus: int
    milli: int
    may: NDArray[np.bool_]  # per node: is its model accepted?
    is_choosy: bool  # there are models that are not

    @property
    def is_sharing(self) -> bool:
        return 0 < self.milli < GPU


Scores = tuple[Ints, Ints]  # per node: the score, and the GPU that a sharing pod would take there


class PackingPolicy(msgspec.Struct, frozen=True, eq=False):
    """What makes a node good. `score` is asked only for nodes with room."""

    name: str  # that decides; where it stands in for another one, `fallback` says why
    score: Callable[[Room, Ints, Ask], Scores]
    scarcity: Callable[[Room], tuple[int, ...]] | None = None  # per model: what else its nodes' scores depend on
    draw: np.random.Generator | None = None  # chooses among all nodes with room
    fallback: str = ""


def order_nodes(names: Sequence[str], cluster: str) -> Ints:
    """The tie order of a live cluster, as a rank per node: stable, and blind to what names look like.

    Names that sort by GPU model make greedy rules fill one model first and strand the rest, so names are hashed.
    """
    hashes = [hashlib.blake2b(f"{cluster}/{name}".encode(), digest_size=8).digest() for name in names]
    ranks = np.empty(len(names), np.int64)
    ranks[np.array(sorted(range(len(names)), key=lambda i: (hashes[i], names[i])), np.int64)] = np.arange(len(names))
    return ranks


def place(room: Room, pod: PackingPod, policy: PackingPolicy, order: Ints) -> Placement | None:
    """Where one pod goes; the room is left as it is."""
    kept = _begin(room.nodes, pod)
    if kept is None:
        return None
    kept.rank(room, np.arange(len(room.nodes)), policy, order)
    return _choose(room, pod, policy, kept)


def make_ask(nodes: Nodes, pod: PackingPod) -> Ask:
    accepted = np.array([not pod.gpus or pod.accepts(model) for model in nodes.models], np.bool_)
    return Ask(pod.cpu, pod.gpus, pod.milli, accepted[nodes.model], not accepted.all())


class KeptScores:
    """The scores of one class of pods, and how old they are."""

    def __init__(self, ask: Ask, nodes: int) -> None:
        self.ask = ask
        self.key: Ints = np.full(nodes, NO_ROOM, np.int64)  # larger is better: the score, then the tie order
        self.gpu: Ints = np.zeros(nodes, np.int64)
        self.seen: int | None = None
        self.scarcity: tuple[int, ...] | None = None

    def rank(self, room: Room, rows: Ints, policy: PackingPolicy, order: Ints) -> None:
        """Scores these nodes again; NO_ROOM where the pod cannot go."""
        self.key[rows] = NO_ROOM
        rows = rows[has_room(room, rows, self.ask)]
        if rows.size:
            score, gpu = policy.score(room, rows, self.ask)
            self.key[rows] = score * len(room.nodes) - order.take(rows)
            if self.ask.is_sharing:
                self.gpu[rows] = gpu


def _begin(nodes: Nodes, pod: PackingPod) -> KeptScores | None:
    return None if pod.find_fault() or not len(nodes) else KeptScores(make_ask(nodes, pod), len(nodes))


def has_room(room: Room, rows: Ints, ask: Ask) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = room.cpu.take(rows) >= ask.cpu
    if ask.is_choosy:
        fits &= ask.may.take(rows)
    if room.nodes.has_pod_limits:
        fits &= room.pods.take(rows) > 0
    if ask.gpus:
        fits &= room.most.take(rows) >= ask.milli if ask.gpus == 1 else room.whole.take(rows) >= ask.gpus
    return fits


def refuse(nodes: Nodes, pod: PackingPod) -> Refusal:
    """Why a pod is not placed: the first that holds."""
    if pod.find_fault():
        return Refusal.Invalid
    ask = make_ask(nodes, pod)
    if not ask.may.any():
        return Refusal.UnknownModel if pod.models and pod.gpus else Refusal.LargerThanAnyNode
    large_enough = ask.may & (nodes.cpu >= pod.cpu) & (nodes.memory >= pod.memory) & (nodes.gpus >= pod.gpus)
    return Refusal.NoRoom if large_enough.any() else Refusal.LargerThanAnyNode


def _choose(room: Room, pod: PackingPod, policy: PackingPolicy, kept: KeptScores) -> Placement | None:
    key = kept.key
    if policy.draw is not None:
        return _draw(room, pod, policy.draw, key)
    node = int(key.argmax())
    if room.memory.item(node) < pod.memory:
        key = np.where(room.memory >= pod.memory, key, NO_ROOM)
        node = int(key.argmax())
    if key.item(node) == NO_ROOM:
        return None
    return Placement(node, _take(room, pod, node, kept.gpu.item(node)), pod.milli)


def _take(room: Room, pod: PackingPod, node: int, gpu: int) -> tuple[int, ...]:
    if pod.milli == GPU:  # whole GPUs: the first free ones
        return tuple([i for i, free in enumerate(room.gpu[node].tolist()) if free == GPU][: pod.gpus])
    return (gpu,) if pod.gpus else ()


def _draw(room: Room, pod: PackingPod, draw: np.random.Generator, key: Ints) -> Placement | None:
    rows = np.flatnonzero((key > NO_ROOM) & (room.memory >= pod.memory))
    if not rows.size:
        return None
    node = int(draw.choice(rows))
    gpus = draw.permutation(np.flatnonzero(room.gpu[node] >= pod.milli))[: pod.gpus]
    return Placement(node, tuple(sorted(gpus.tolist())), pod.milli)


class Packer:
    """Places a stream of pods; who goes again is removed from its `room`."""

    def __init__(self, nodes: Nodes, policy: PackingPolicy, order: Ints, *, most_kept: int = MOST_KEPT) -> None:
        """`most_kept`: each class costs memory, and anybody may ask for a new one."""
        if sorted(order.tolist()) != list(range(len(nodes))):
            raise ValueError(f"the tie order must rank each of the {len(nodes)} nodes once")
        self.nodes, self.policy, self.order, self._most_kept = nodes, policy, order, most_kept
        self.room = Room(nodes)
        self.refused: Counter[Refusal] = Counter()
        self.fallbacks: Counter[str] = Counter()  # decisions of a policy that stood in for another one, by reason
        self._of_model = [np.flatnonzero(nodes.model == model) for model in range(len(nodes.models))]
        self._kept: dict[tuple[int, int, int, tuple[str, ...]], KeptScores] = {}
        # Reasons hang on what nodes have, not on what is free.
        self._reasons: dict[tuple[int, int, int, int, tuple[str, ...]], Refusal] = {}

    def arrive(self, pod: PackingPod) -> Placement | None:
        """The pod comes in where it is best, or None and `refused` counts why."""
        placement = self.find(pod)
        if self.policy.fallback:
            self.fallbacks[self.policy.fallback] += 1
        if placement is None:
            self.refused[self._refuse(pod)] += 1
        else:
            self.room.add(pod, placement)
        return placement

    def find(self, pod: PackingPod) -> Placement | None:
        """Where `arrive` would put it."""
        kept = self._rank(pod)
        return None if kept is None else _choose(self.room, pod, self.policy, kept)

    def rank(self, pod: PackingPod, among: Ints, most: int) -> list[Placement]:
        """The best of these nodes, best first: the first is where `arrive` would put it if there were no others."""
        kept = self._rank(pod)
        if kept is None:
            return []
        key = np.where(self.room.memory.take(among) >= pod.memory, kept.key.take(among), NO_ROOM)
        best = np.argpartition(key, len(key) - most)[-most:] if len(key) > most else np.arange(len(key))
        best = best[np.argsort(key[best])[::-1]]  # keys are never alike, but where there is no room
        rows = among[best[key[best] > NO_ROOM]].tolist()
        return [Placement(row, _take(self.room, pod, row, kept.gpu.item(row)), pod.milli) for row in rows]

    def _rank(self, pod: PackingPod) -> KeptScores | None:
        asked = (pod.cpu, pod.gpus, pod.milli, pod.models)
        kept = self._kept.pop(asked, None) or _begin(self.nodes, pod)
        if kept is None:
            return None
        self._kept[asked] = kept  # the last of them: who was not asked for longest goes first
        if len(self._kept) > self._most_kept:
            del self._kept[next(iter(self._kept))]
        rows = self._find_old(kept)
        if rows.size:
            kept.rank(self.room, rows, self.policy, self.order)
        kept.seen = self.room.clock
        return kept

    def _find_old(self, kept: KeptScores) -> Ints:
        """The nodes whose score may have changed since this class came last."""
        before, now = kept.scarcity, None
        if self.policy.scarcity and kept.ask.gpus:
            kept.scarcity = now = self.policy.scarcity(self.room)
        if kept.seen is None:
            return np.arange(len(self.nodes))
        rows = self.room.changed_since(kept.seen)
        if now is not None and before is not None and now != before:
            every = zip(self._of_model, now, before, strict=True)
            rows = np.concatenate([rows, *[of_model for of_model, new, old in every if new != old]])
        return rows

    def _refuse(self, pod: PackingPod) -> Refusal:
        shape = (pod.cpu, pod.memory, pod.gpus, pod.milli, pod.models)
        if shape not in self._reasons:
            self._reasons[shape] = refuse(self.nodes, pod)
        return self._reasons[shape]
