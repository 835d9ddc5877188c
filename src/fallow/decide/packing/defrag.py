"""One-move defragmentation: a pod that fits nowhere is let in by moving one other pod.

In: the room, who runs where, the pods that wait, the tie order. Out: an ordered MovePlan with what each move gains.
Pure: the room is not touched.
For each waiting pod of one GPU: if it fits now, no move is needed. Else, of the movable pods (of one GPU at the most)
whose leaving would let it in and which fit on another node, the one that is least trouble: least GPU, then least CPU.
The moved pod takes the tightest GPU.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing.packer import Ask, has_room, make_ask
from fallow.decide.packing.room import GPU, Ints, PackingPod, Placement, Room

BUDGET: Final = 50  # moves in one plan
NOWHERE: Final = 1 << 60


class Running(msgspec.Struct, frozen=True):
    pod: PackingPod
    placement: Placement
    is_movable: bool = True


class Move(msgspec.Struct, frozen=True):
    """First `number` of the running pods goes to another node, then `pod` comes in."""

    number: int
    moved: PackingPod
    source: Placement
    target: Placement
    pod: PackingPod
    placement: Placement

    @property
    def gain(self) -> int:
        """GPU milli that were of no use before."""
        return self.pod.gpu_milli


class MovePlan(msgspec.Struct, frozen=True, eq=False):
    moves: tuple[Move, ...]
    direct: tuple[tuple[PackingPod, Placement], ...]  # fit without a move, in between
    left: tuple[PackingPod, ...]  # for which no single move helps, or for which the budget did not last
    room: Room  # as it would be

    @property
    def gain(self) -> int:
        return sum(move.gain for move in self.moves) + sum(pod.gpu_milli for pod, _ in self.direct)


def plan_moves(
    room: Room, running: Sequence[Running], waiting: Sequence[PackingPod], order: Ints, budget: int = BUDGET,
    barred: Collection[int] = (),
) -> MovePlan:
    """Pods that ask for several GPUs, or none, are left: one move is no help for them. `barred`: nodes to which nobody
    is to be moved."""
    table, moves = _MoveTable(room.copy(), running, order, barred), list[Move]()
    direct, left = list[tuple[PackingPod, Placement]](), list[PackingPod]()
    for pod in waiting:
        if pod.gpus != 1 or pod.find_fault():
            left.append(pod)
        elif placement := table.find_tightest(pod):
            table.let_in(pod, placement)
            direct.append((pod, placement))
        elif len(moves) < budget and (move := table.find_move(pod)):
            table.make(move)
            moves.append(move)
        else:
            left.append(pod)
    return MovePlan(tuple(moves), tuple(direct), tuple(left), table.room)


_Shape = tuple[int, int, int, int, tuple[str, ...]]


class _MoveTable:
    """Who runs where, as columns; a copy of the room that the moves are tried on."""

    def __init__(self, room: Room, running: Sequence[Running], order: Ints, barred: Collection[int]) -> None:
        self.room, self.order, self._barred = room, order, list(barred)
        self.running = list(running)
        columns: Ints = np.array([_row(each) for each in running], np.int64).reshape(len(running), 6).T.copy()
        self.cpu, self.memory, self.milli, self.node, self.gpu, self.trouble = columns
        numbers: dict[_Shape, int] = {}
        shapes = [numbers.setdefault(_shape(each.pod), len(numbers)) for each in running]
        self.shape: Ints = np.array(shapes, np.int64)
        # Until the next change of the room, what was found once holds for all pods that ask for the same.
        self._homes: dict[_Shape, Ints] = {}
        self._hopeless: set[_Shape] = set()

    def let_in(self, pod: PackingPod, placement: Placement) -> None:
        """Who comes in by this plan stays where it is."""
        self.room.add(pod, placement)
        self._homes.clear()
        self._hopeless.clear()

    def make(self, move: Move) -> None:
        self.room.remove(move.moved, move.source)
        self.room.add(move.moved, move.target)
        self.let_in(move.pod, move.placement)
        self.node[move.number] = move.target.node
        self.gpu[move.number] = move.target.gpus[0] if move.target.gpus else 0
        self.running[move.number] = Running(move.moved, move.target)

    def find_move(self, pod: PackingPod) -> Move | None:
        if _shape(pod) in self._hopeless:
            return None
        helpful = np.flatnonzero(self._would_help(pod, make_ask(self.room.nodes, pod)))
        helpful = helpful[np.argsort(self.trouble[helpful], kind="stable")]
        shapes = self.shape[helpful]
        for first in sorted(np.unique(shapes, return_index=True)[1].tolist()):  # who asks for the same finds the same
            homes = self._find_homes(self.running[helpful[first]].pod)
            homes = homes[~np.isin(homes, self._barred)] if self._barred else homes
            alike = helpful[shapes == shapes[first]]
            able = alike[self.node[alike] != homes[0]] if homes.size == 1 else alike
            if homes.size and able.size:
                return self._draw_up(int(able[0]), pod, homes)
        self._hopeless.add(_shape(pod))
        return None

    def _would_help(self, pod: PackingPod, ask: Ask) -> NDArray[np.bool_]:
        """Per running pod: would the waiting one fit on its node without it?"""
        room, node = self.room, self.node
        has_gpu = np.maximum(room.most[node], room.gpu[node, self.gpu] + self.milli) >= pod.milli
        has_cpu, has_memory = room.cpu[node] + self.cpu >= pod.cpu, room.memory[node] + self.memory >= pod.memory
        helps: NDArray[np.bool_] = ask.may[node] & has_cpu & has_memory & has_gpu & (self.trouble < NOWHERE)
        return helps

    def _find_homes(self, pod: PackingPod) -> Ints:
        """Nodes with room, the tightest first."""
        if (kept := self._homes.get(_shape(pod))) is not None:
            return kept
        room = self.room
        rows = np.flatnonzero(has_room(room, np.arange(len(room.nodes)), make_ask(room.nodes, pod)))
        rows = rows[room.memory[rows] >= pod.memory]
        left = room.free[rows]  # without GPUs it is best beside GPUs that are taken: its CPU strands nothing there
        if pod.gpus:
            free = room.gpu[rows]
            left = np.where(free >= pod.milli, free, GPU + 1).min(axis=1, initial=GPU + 1)
        homes: Ints = rows[np.lexsort((self.order[rows], left))]
        self._homes[_shape(pod)] = homes
        return homes

    def _draw_up(self, number: int, pod: PackingPod, homes: Ints) -> Move:
        moved, source = self.running[number].pod, self.running[number].placement
        target = self._settle(moved, int(homes[homes != source.node][0]))
        self.room.remove(moved, source)
        placement = self._settle(pod, source.node)
        self.room.add(moved, source)
        return Move(number, moved, source, target, pod, placement)

    def find_tightest(self, pod: PackingPod) -> Placement | None:
        homes = self._find_homes(pod)
        return self._settle(pod, int(homes[0])) if homes.size else None

    def _settle(self, pod: PackingPod, node: int) -> Placement:
        free = self.room.gpu[node]
        gpu = int(np.where(free >= pod.milli, free, GPU + 1).argmin())
        return Placement(node, (gpu,) if pod.gpus else (), pod.milli)


def _shape(pod: PackingPod) -> _Shape:
    return pod.cpu, pod.memory, pod.gpus, pod.milli, pod.models


def _row(each: Running) -> tuple[int, int, int, int, int, int]:
    pod, placement = each.pod, each.placement
    trouble = pod.milli * 1000 + pod.cpu // 100 if each.is_movable and pod.gpus <= 1 else NOWHERE
    return pod.cpu, pod.memory, pod.milli, placement.node, placement.gpus[0] if placement.gpus else 0, trouble
