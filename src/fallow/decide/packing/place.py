"""Where does a pod go? The one choice that all policies share: best score among the nodes with room, ties by tie order.

In: a state, a pod, a policy (`policies.prepare`), and the tie order as a rank per node. Out: a Placement, or None where there is no room.
`place` looks at every node. `Packer` gives the same answers over a stream of pods: it keeps the scores of each class of pods and scores
again only the nodes that changed since that class came last.
Invariant: what the two answer depends on what nodes have and on the tie order, never on names or on how the scores were kept.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing.state import GPU, Ints, Nodes, Placement, Pod, State, find_fault

NO_ROOM: Final = np.iinfo(np.int64).min


class Refusal(StrEnum):
    """Why a pod was not placed."""

    Invalid = "Invalid"
    UnknownModel = "UnknownModel"
    LargerThanAnyNode = "LargerThanAnyNode"
    NoRoom = "NoRoom"


class Ask(msgspec.Struct, frozen=True, eq=False):
    """What a class of pods asks for. Memory is not part of it: it says where a pod may go, never which place is better."""

    cpu: int
    gpus: int
    milli: int
    may: NDArray[np.bool_]  # per node: is its model accepted?
    is_choosy: bool  # there are models that are not

    @property
    def kind(self) -> int:
        return 0 if self.milli < GPU else self.gpus

    @property
    def is_sharing(self) -> bool:
        return 0 < self.milli < GPU


Scores = tuple[Ints, Ints]  # per node: the score, and the GPU that a sharing pod would take there


class Policy(msgspec.Struct, frozen=True, eq=False):
    """What makes a place good. `score` is asked only for nodes with room."""

    name: str  # that decides; where it stands in for another one, `fallback` says why
    score: Callable[[State, Ints, Ask], Scores]
    mood: Callable[[State], tuple[int, ...]] | None = None  # per model: what else the scores of its nodes depend on
    draw: np.random.Generator | None = None  # chooses among all places with room
    fallback: str = ""


def order_nodes(names: Sequence[str], cluster: str) -> Ints:
    """The tie order of a live cluster, as a rank per node: stable, and blind to what names look like.

    Names that sort by GPU model make greedy rules fill one model first and strand the rest, so names are hashed.
    """
    hashes = [hashlib.blake2b(f"{cluster}/{name}".encode(), digest_size=8).digest() for name in names]
    ranks = np.empty(len(names), np.int64)
    ranks[np.array(sorted(range(len(names)), key=lambda i: (hashes[i], names[i])), np.int64)] = np.arange(len(names))
    return ranks


def place(state: State, pod: Pod, policy: Policy, order: Ints) -> Placement | None:
    """The place of one pod; the state is left as it is."""
    if find_fault(pod) or not len(state.nodes):
        return None
    kept = Kept(make_ask(state.nodes, pod), len(state.nodes))
    rank(state, np.arange(len(state.nodes)), kept, policy, order)
    return _choose(state, pod, policy, kept)


def make_ask(nodes: Nodes, pod: Pod) -> Ask:
    accepted = np.array([not pod.models or not pod.gpus or model in pod.models for model in nodes.models], np.bool_)
    return Ask(pod.cpu, pod.gpus, pod.milli, accepted[nodes.model], not accepted.all())


class Kept:
    """The scores of one class of pods, and how old they are."""

    def __init__(self, ask: Ask, nodes: int) -> None:
        self.ask = ask
        self.key: Ints = np.full(nodes, NO_ROOM, np.int64)  # larger is better: the score, then the tie order
        self.gpu: Ints = np.zeros(nodes, np.int64)
        self.seen: int | None = None
        self.mood: tuple[int, ...] | None = None


def rank(state: State, rows: Ints, kept: Kept, policy: Policy, order: Ints) -> None:
    """Scores these nodes again; NO_ROOM where the pod cannot go."""
    kept.key[rows] = NO_ROOM
    rows = rows[has_room(state, rows, kept.ask)]
    if rows.size:
        score, gpu = policy.score(state, rows, kept.ask)
        kept.key[rows] = score * len(state.nodes) - order.take(rows)
        if kept.ask.is_sharing:
            kept.gpu[rows] = gpu


def has_room(state: State, rows: Ints, ask: Ask) -> NDArray[np.bool_]:
    room: NDArray[np.bool_] = state.cpu.take(rows) >= ask.cpu
    if ask.is_choosy:
        room &= ask.may.take(rows)
    if state.nodes.has_pod_limits:
        room &= state.pods.take(rows) > 0
    if ask.gpus:
        room &= state.most.take(rows) >= ask.milli if ask.gpus == 1 else state.whole.take(rows) >= ask.gpus
    return room


def refuse(nodes: Nodes, pod: Pod) -> Refusal:
    """Why a pod has no place: the first that holds."""
    if find_fault(pod):
        return Refusal.Invalid
    ask = make_ask(nodes, pod)
    if not ask.may.any():
        return Refusal.UnknownModel if pod.models and pod.gpus else Refusal.LargerThanAnyNode
    large_enough = ask.may & (nodes.cpu >= pod.cpu) & (nodes.memory >= pod.memory) & (nodes.gpus >= pod.gpus)
    return Refusal.NoRoom if large_enough.any() else Refusal.LargerThanAnyNode


def _choose(state: State, pod: Pod, policy: Policy, kept: Kept) -> Placement | None:
    key = kept.key
    if policy.draw is not None:
        return _draw(state, pod, policy.draw, key)
    node = int(key.argmax())
    if state.memory.item(node) < pod.memory:
        key = np.where(state.memory >= pod.memory, key, NO_ROOM)
        node = int(key.argmax())
    if key.item(node) == NO_ROOM:
        return None
    return Placement(node, _take(state, pod, node, kept.gpu.item(node)), pod.milli)


def _take(state: State, pod: Pod, node: int, gpu: int) -> tuple[int, ...]:
    if pod.milli == GPU:  # whole GPUs: the first free ones
        return tuple([i for i, free in enumerate(state.gpu[node].tolist()) if free == GPU][: pod.gpus])
    return (gpu,) if pod.gpus else ()


def _draw(state: State, pod: Pod, draw: np.random.Generator, key: Ints) -> Placement | None:
    rows = np.flatnonzero((key > NO_ROOM) & (state.memory >= pod.memory))
    if not rows.size:
        return None
    node = int(draw.choice(rows))
    gpus = draw.permutation(np.flatnonzero(state.gpu[node] >= pod.milli))[: pod.gpus]
    return Placement(node, tuple(sorted(gpus.tolist())), pod.milli)


class Packer:
    """Places a stream of pods, and lets them go again."""

    def __init__(self, nodes: Nodes, policy: Policy, order: Ints) -> None:
        if sorted(order.tolist()) != list(range(len(nodes))):
            raise ValueError(f"the tie order must rank each of the {len(nodes)} nodes once")
        self.nodes, self.policy, self.order = nodes, policy, order
        self.state = State(nodes)
        self.refused: Counter[Refusal] = Counter()
        self.fallbacks: Counter[str] = Counter()  # decisions of a policy that stood in for another one, by reason
        self._of_model = [np.flatnonzero(nodes.model == model) for model in range(len(nodes.models))]
        self._kept: dict[tuple[int, int, int, tuple[str, ...]], Kept] = {}
        self._reasons: dict[tuple[int, int, int, int, tuple[str, ...]], Refusal] = {}  # they hang on what nodes have, not on what is free

    def arrive(self, pod: Pod) -> Placement | None:
        """The pod takes the best place, or None and `refused` counts why."""
        placement = self.find(pod)
        if self.policy.fallback:
            self.fallbacks[self.policy.fallback] += 1
        if placement is None:
            self.refused[self._refuse(pod)] += 1
        else:
            self.state.add(pod, placement)
        return placement

    def find(self, pod: Pod) -> Placement | None:
        """Where `arrive` would put it."""
        kept = self._kept.get((pod.cpu, pod.gpus, pod.milli, pod.models)) or self._begin(pod)
        if kept is None:
            return None
        self._refresh(kept)
        return _choose(self.state, pod, self.policy, kept)

    def _refuse(self, pod: Pod) -> Refusal:
        shape = (pod.cpu, pod.memory, pod.gpus, pod.milli, pod.models)
        if shape not in self._reasons:
            self._reasons[shape] = refuse(self.nodes, pod)
        return self._reasons[shape]

    def leave(self, pod: Pod, placement: Placement) -> None:
        self.state.remove(pod, placement)

    def _begin(self, pod: Pod) -> Kept | None:
        if find_fault(pod) or not len(self.nodes):
            return None
        kept = Kept(make_ask(self.nodes, pod), len(self.nodes))
        self._kept[pod.cpu, pod.gpus, pod.milli, pod.models] = kept
        return kept

    def _refresh(self, kept: Kept) -> None:
        rows = self._find_old(kept)
        if rows.size:
            rank(self.state, rows, kept, self.policy, self.order)
        kept.seen = self.state.clock

    def _find_old(self, kept: Kept) -> Ints:
        mood = self.policy.mood(self.state) if self.policy.mood and kept.ask.gpus else None
        before, kept.mood = kept.mood, mood
        if kept.seen is None:
            return np.arange(len(self.nodes))
        rows = self.state.changed_since(kept.seen)
        if mood is not None and before is not None and mood != before:
            rows = np.concatenate([rows, *[every for every, now, then in zip(self._of_model, mood, before, strict=True) if now != then]])
        return rows
