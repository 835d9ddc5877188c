"""The cluster as a linear program: how much of each class of pods could each group of nodes hold, if pods could be cut?

In: groups of alike nodes with their numbers, classes with their demand. Out: the value and the shadow prices, by HiGHS
(an optional extra).

    y[t,c]  pods of class c on group t                 max  sum of y[t,c] * worth[c]
    x[t,p]  GPUs of group t cut by pattern p, a multiset of sharing sizes that leaves a rest below the smallest size

    cpu, memory:  what the pods on t ask for            <= what t has       -> mu[t], per core
    gpu:          whole GPUs taken + GPUs cut           <= GPUs of t        -> lam[t], per GPU
    size s:       sharing pods of size s - pieces cut   <= 0                -> sig[t,s], per piece
    demand:       pods of c over all groups             <= demand[c]

Every program here is feasible (nothing placed) and bounded (demand); a solver that says otherwise, or takes too long,
is `Unsolved`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing.room import GPU, Ints

Floats = NDArray[np.float64]
Pattern = tuple[int, ...]  # how many pieces of each size

CORE: Final = 1000
PATTERNS: Final = 5_000  # more of them make the program slow; the sizes are then made coarser
SECONDS: Final = 30.0  # for one program; the shipped mixes take below one
REASONS: Final = {  # why there are no prices, by what HiGHS says
    "kInfeasible": "Infeasible", "kUnboundedOrInfeasible": "Infeasible", "kUnbounded": "Unbounded",
    "kTimeLimit": "TimedOut",
}


class Unsolved(Exception):
    """No prices. The first argument is the reason, one CamelCase word."""


class Stock(msgspec.Struct, frozen=True):
    """Nodes that are alike, and how many."""

    count: int
    cpu: int
    gpus: int
    memory: int = 0


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that are alike, how many, and the stocks (by number) whose model they accept."""

    count: float
    worth: float
    cpu: int
    gpus: int
    milli: int  # of each GPU, on the grid of sizes
    accepted: frozenset[int]
    memory: int = 0

    def fits(self, stock: Stock, number: int) -> bool:
        is_large_enough = self.gpus <= stock.gpus and self.cpu <= stock.cpu and self.memory <= stock.memory
        return is_large_enough and (not self.gpus or number in self.accepted)


class Solution(msgspec.Struct, frozen=True, eq=False):
    value: float
    mu: Floats  # per stock
    lam: Floats
    sig: Floats  # per stock and size
    sizes: tuple[int, ...]


def cut_patterns(sizes: Sequence[int], limit: int = PATTERNS) -> list[Pattern] | None:
    """How many pieces of each size a GPU is cut into, all ways that leave less than the smallest; None if too many."""
    if not sizes:
        return []
    patterns, ordered = list[Pattern](), sorted(sizes, reverse=True)
    stack: list[tuple[Pattern, int]] = [((), GPU)]
    while stack:
        head, left = stack.pop()
        size = ordered[len(head)]
        if len(head) == len(ordered) - 1:
            patterns.append((*head, left // size)[::-1])
        else:
            stack += [((*head, n), left - n * size) for n in range(left // size + 1)]
        if len(patterns) > limit:
            return None
    return patterns


def coarsen(milli: int, grid: int, *, up: bool) -> int:
    """A sharing size on the grid: up where a plan must be possible, down where a bound must hold."""
    if not 0 < milli < GPU:
        return milli
    return min(GPU, -(-milli // grid) * grid) if up else milli // grid * grid


class _Matrix:
    """A sparse matrix that grows by columns."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.starts, self.index, self.value, self.worth = [0], list[int](), list[float](), list[float]()

    def row(self, upper: float) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def column(self, worth: float, entries: Sequence[tuple[int, float]]) -> None:
        self.index += [row for row, _ in entries]
        self.value += [value for _, value in entries]
        self.starts.append(len(self.index))
        self.worth.append(worth)


class Program:
    """One cluster and one set of classes, solved for several demands."""

    def __init__(self, stocks: Sequence[Stock], wishes: Sequence[Wish], seconds: float = SECONDS) -> None:
        try:
            import highspy
        except ImportError as absent:
            raise Unsolved("NoSolver") from absent
        self._highs: Any = highspy
        self._seconds, self._wishes = seconds, wishes
        self._sizes = tuple(sorted({wish.milli for wish in wishes if 0 < wish.milli < GPU}))
        patterns = cut_patterns(self._sizes)
        if patterns is None:
            raise Unsolved("TooManySizes")
        rows = _Matrix()
        self._demand = [rows.row(wish.count) for wish in wishes]
        self._stocks = [self._lay(rows, stock, number, patterns) for number, stock in enumerate(stocks)]
        self.is_empty = not rows.worth  # no class fits anywhere
        self._solver = self._open(rows)

    def _lay(self, rows: _Matrix, stock: Stock, number: int, patterns: list[Pattern]) -> tuple[int, int, list[int]]:
        cpu, gpu = rows.row(stock.count * stock.cpu / CORE), rows.row(stock.count * stock.gpus)
        memory = rows.row(stock.count * stock.memory / CORE)
        sizes = [rows.row(0) for _ in self._sizes]
        for demand, wish in zip(self._demand, self._wishes, strict=True):
            if not wish.fits(stock, number):
                continue
            entries = [(demand, 1.0), (cpu, wish.cpu / CORE), (memory, wish.memory / CORE)]
            if wish.milli == GPU:
                entries.append((gpu, wish.gpus))
            elif wish.milli:
                entries.append((sizes[self._sizes.index(wish.milli)], 1.0))
            rows.column(wish.worth, [entry for entry in entries if entry[1]])
        for pattern in patterns if stock.gpus else ():
            rows.column(0.0, [(gpu, 1.0), *((row, -float(n)) for row, n in zip(sizes, pattern, strict=True) if n)])
        return cpu, gpu, sizes

    def _open(self, rows: _Matrix) -> Any:
        lp = self._highs.HighsLp()
        lp.num_col_, lp.num_row_ = len(rows.worth), len(rows.upper)
        lp.col_cost_, lp.col_lower_ = np.array(rows.worth), np.zeros(lp.num_col_)
        lp.col_upper_ = np.full(lp.num_col_, self._highs.kHighsInf)
        lp.row_lower_, lp.row_upper_ = np.full(lp.num_row_, -self._highs.kHighsInf), np.array(rows.upper)
        lp.a_matrix_.format_ = self._highs.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array(rows.starts, np.int32), np.array(rows.index, np.int32)
        lp.a_matrix_.value_ = np.array(rows.value)
        lp.sense_ = self._highs.ObjSense.kMaximize
        solver = self._highs.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.passModel(lp)
        return solver

    def solve(self, load: float) -> Solution:
        """With every demand times `load`."""
        cpu, gpu = (np.array([stock[i] for stock in self._stocks], np.int64) for i in (0, 1))
        shape = len(self._stocks), len(self._sizes)
        sizes: Ints = np.array([stock[2] for stock in self._stocks], np.int64).reshape(shape)
        dual = np.zeros(self._solver.getNumRow()) if self.is_empty else self._run(load)
        return Solution(self._solver.getObjectiveValue(), dual[cpu], dual[gpu], dual[sizes], self._sizes)

    def _run(self, load: float) -> Floats:
        for row, wish in zip(self._demand, self._wishes, strict=True):
            self._solver.changeRowBounds(row, -self._highs.kHighsInf, wish.count * load)
        # Its clock runs on from solve to solve.
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + self._seconds)
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != self._highs.HighsModelStatus.kOptimal:
            raise Unsolved(REASONS.get(status.name, "SolverFailed"))
        dual: Floats = np.abs(np.array(self._solver.getSolution().row_dual))
        return dual
