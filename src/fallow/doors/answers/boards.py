"""Which GPU of a node each hold sits on, and what is left of it.

In: what pods hold of a node, with the GPU that a series names where one does. Out: the node's GPUs, filled; UsageRows
says which one that is, and how busy it was. Invariant: a hold that no series places has a place all the same, in a
stable order, and nothing is given out that the node does not offer.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.doors.answers import rows as telling
from fallow.model import cluster, shares, usage

NEARLY: Final = 1e-6


class BoardHold(msgspec.Struct, frozen=True):
    """A piece of a GPU in somebody's hands; `board`: the GPU that a series names, "" = none does."""

    unit: shares.PhysicalUnit
    row: telling.ApiRow | None
    board: str
    index: int | None
    activity: float | None


class Board(msgspec.Struct):
    """A GPU while it is filled."""

    uuid: str | None = None
    holds: list[BoardHold] = []
    room: float = 1.0
    left: tuple[float, float] = (1.0, 1.0)  # of compute and of memory, where it is cut

    def fits(self, unit: shares.PhysicalUnit) -> bool:
        """Instances by what they take, of both; anything else by its share."""
        if unit.takes is None:
            return self.room >= unit.share - NEARLY
        return all(left >= takes - NEARLY for left, takes in zip(self.left, unit.takes, strict=True))

    def take(self, hold: BoardHold) -> None:
        compute, memory = hold.unit.takes or (hold.unit.share, hold.unit.share)
        self.holds.append(hold)
        self.room -= hold.unit.share
        self.left = self.left[0] - compute, self.left[1] - memory

    @property
    def worth(self) -> float:
        """What it is all of. Nothing is left to others where all compute, or all memory, is taken."""
        held = sum(hold.unit.share for hold in self.holds)
        return held if held > 1.0 or min(self.left) <= NEARLY else 1.0


class UsageRows:
    """The rows of one window, by pod: on which GPU, and how busy it was."""

    def __init__(self, evidence: usage.Evidence) -> None:
        self.use = evidence.usage[min(evidence.usage)] if evidence.usage else None
        self._of: dict[int, list[int]] = defaultdict(list)
        for row, pod in enumerate(self.use.pod.tolist() if self.use else ()):
            self._of[pod].append(row)
        self._activity = _find_activity(self.use) if self.use else ()

    def of(self, pod: int) -> Sequence[int]:
        return self._of.get(pod, ())

    def activity(self, row: int) -> float | None:
        found = self._activity[row]
        return None if math.isnan(found) else round(float(found), 4)

    def board(self, row: int) -> str:
        assert self.use is not None
        parts = self.use.gpu[row].split("/")
        return parts[0] if parts[0].startswith(("GPU-", "MIG-")) else "/".join(parts[:2])

    def index(self, row: int) -> int | None:
        assert self.use is not None
        text = self.use.index[row] if self.use.index else ""
        text = text or (self.board(row).rpartition("/")[2])
        return int(text) if text.isdecimal() and len(text) < 4 else None


def _find_activity(use: usage.Usage) -> Sequence[float]:
    """Of each row the mean of its first ratio that has one, else its highest."""
    found = np.full(use.rows, np.nan)
    for columns in (use.mean, use.peak):
        for signal in usage.RATIOS:
            if signal in columns:
                found = np.where(np.isnan(found), columns[signal], found)
    return found.tolist()


def fill(holds: Iterable[BoardHold], count: int) -> list[Board]:
    """Every hold on the GPU that its series names, by its index; the others where there is room."""
    named = {hold.board: hold.index for hold in holds if hold.board}
    boards = [Board(holds=[]) for _ in range(max(count, len(named)))]
    places: dict[str, Board] = {}
    free = list(range(len(boards)))
    for board, index in sorted(named.items(), key=lambda each: (each[1] is None, each[1] or 0, each[0])):
        at = index if index is not None and index in free else free[0]
        free.remove(at)
        places[board] = boards[at]
        boards[at].uuid = board if board.startswith(("GPU-", "MIG-")) else None
    unplaced = []
    for hold in holds:
        place = places.get(hold.board)
        if place is not None and place.fits(hold.unit):
            place.take(hold)
        else:
            unplaced.append(hold)
    for hold in sorted(unplaced, key=lambda each: (each.row.namespace, each.row.name) if each.row else ("", "")):
        place = next((board for board in boards if board.fits(hold.unit)), None)
        if place is None:
            place = Board(holds=[])
            boards.append(place)
        place.take(hold)
    return boards


def add_free(node: cluster.Node, boards: Sequence[Board]) -> Sequence[Board]:
    """What nobody has, in the pieces in which the node offers it; what is left over of a GPU is a piece, too."""
    left = Counter(shares.offered_by(node) or {})
    for board in boards:
        left.subtract(Counter(hold.unit.resource for hold in board.holds))
    pieces = sorted((shares.unit_on(node, name) for name in left), key=lambda unit: -unit.share)
    for board in boards:
        for unit in pieces:
            while left[unit.resource] > 0 and board.fits(unit):
                left[unit.resource] -= 1
                board.take(BoardHold(unit, None, "", None, None))
        if board.room > NEARLY and min(board.left) > NEARLY:
            board.take(BoardHold(shares.PhysicalUnit("", board.room), None, "", None, None))
    return boards
