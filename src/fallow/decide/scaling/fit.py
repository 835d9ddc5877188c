"""Does a pod fit a node? By what it asks for and what is free, by selectors, required node affinity and taints.

In: nodes, and all pods that run on them. Out: FreeRoom, columns of what is free, in which runs of pods are placed one
after the other, each on the tightest node that has room. `accepts` and `holds` say the same of one node alone.
GPUs of every kind (whole, shared, MIG) are resources beside CPU and memory: none stands for another.
Invariant: a node of which it is not known what its pods take has no room; nothing is ever overfilled.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow import names
from fallow.model import selectors
from fallow.model.policies.scaling import PoolTaint
from fallow.model.scaling import NodeToleration, ScaledNode, ScaledPod

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Asks: TypeAlias = Mapping[str, int]
Constraint: TypeAlias = tuple[tuple[tuple[str, str], ...], bytes, tuple[NodeToleration, ...]]

PODS: Final = "pods"
SHARES: Final = 4  # of a GPU, where it is not known how many there are
BOUNDLESS: Final = 1 << 40  # of what a node sets no limit to, or nobody said one
_MOST: Final = 1 << 50  # no machine has this much of anything
_FREE: Final[Constraint] = ((), b"", ())
_MOST_KEPT: Final = 4096  # masks; anybody may ask for a new one
_MOST_KEYS: Final = 256  # of labels, likewise: what is kept of one is as long as there are nodes


@functools.lru_cache(maxsize=4096)
def is_gpu(resource: str) -> bool:
    return resource in (names.GPU, names.GPU_SHARED) or resource.startswith(names.MIG_PREFIX)


def count_gpus(asks: Asks) -> int:
    """In pieces of any kind."""
    total = 0
    for resource in asks:  # of tens of thousands in a cycle
        if is_gpu(resource):
            total += asks[resource]
    return total


def weigh(resource: str, replicas: int = SHARES) -> int:
    """Milli-GPU of one piece."""
    if resource == names.GPU:
        return 1000
    if resource == names.GPU_SHARED:
        return 1000 // max(1, replicas)
    slices = resource.removeprefix(names.MIG_PREFIX)[:1]
    return 1000 * int(slices) // 7 if slices.isdecimal() else 1000


def measure(asks: Asks, replicas: int = SHARES) -> int:
    """Milli-GPU of all that is asked for."""
    return sum(count * weigh(resource, replicas) for resource, count in asks.items() if is_gpu(resource))


def constrain(pod: ScaledPod) -> Constraint:
    """All that decides where a pod may go but for room; alike for pods that are alike."""
    if not pod.node_selector and pod.affinity is None and not pod.tolerations:
        return _FREE
    affinity = b"" if pod.affinity is None else msgspec.json.encode(pod.affinity)
    return tuple(sorted(pod.node_selector.items())), affinity, pod.tolerations


def accepts(wanted: Constraint, labels: Mapping[str, str], taints: Iterable[PoolTaint], name: str = "") -> bool:
    """Of one node. `name` "": it is still to come."""
    selector, affinity, tolerations = wanted
    if any(labels.get(key) != value for key, value in selector):
        return False
    return selectors.accepts(_read_terms(affinity), name, labels) and tolerates(tolerations, taints)


def _read_terms(affinity: bytes) -> Any:
    if not affinity:
        return None
    found = msgspec.json.decode(affinity)
    return found.get("nodeSelectorTerms") if isinstance(found, dict) else found


def tolerates(tolerations: Sequence[NodeToleration], taints: Iterable[PoolTaint]) -> bool:
    return all(
        any(_covers(toleration, taint) for toleration in tolerations)
        for taint in taints if taint.effect in names.KEEP_OUT
    )


def _covers(toleration: NodeToleration, taint: PoolTaint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def holds(has: Asks, asks: Asks) -> bool:
    return all(has.get(resource, 0) >= count for resource, count in asks.items() if count > 0)


def clip(amount: int) -> int:
    return min(max(amount, 0), _MOST)


class FreeRoom:
    """What is free on nodes, as columns; row i is node i. A copy shares all that placing does not change."""

    def __init__(self, nodes: Sequence[ScaledNode], pods: Iterable[ScaledPod]) -> None:
        self.nodes = tuple(nodes)
        self.rows = {node.name: row for row, node in enumerate(self.nodes)}
        self.columns: dict[str, int] = {}
        for node in self.nodes:
            for resource in node.has:
                self.columns.setdefault(resource, len(self.columns))
        self._gpu_columns = frozenset(column for resource, column in self.columns.items() if is_gpu(resource))
        self.free: Ints = np.zeros((len(self.columns) + 1, len(self.nodes)), np.int64)
        self.gpus: Ints = np.zeros(len(self.nodes), np.int64)  # free pieces
        self.unknown: Ints = np.zeros(len(self.nodes), np.int64)  # pods of which it is not known what they take
        self._fill()
        self.shift(pods, 1)
        self._masks: dict[Constraint, Bools] = {}
        self._values: dict[str, tuple[Ints, dict[str, int]]] = {}
        self._taints: tuple[Ints, list[tuple[PoolTaint, ...]]] | None = None

    def _fill(self) -> None:
        """Room for pods is the last row."""
        for row, node in enumerate(self.nodes):
            for resource, amount in node.has.items():
                self.free[self.columns[resource], row] = clip(amount)
        pods = self.columns.get(PODS)
        self.free[-1] = BOUNDLESS
        if pods is not None:
            limited = np.array([PODS in node.has for node in self.nodes], np.bool_)
            self.free[-1] = np.where(limited, self.free[pods], BOUNDLESS)
        for resource, column in self.columns.items():
            if is_gpu(resource):
                self.gpus += self.free[column]
        self.pieces: Ints = self.gpus.copy()  # free or not
        self.tie: Ints = (self.gpus > 0).astype(np.int64)  # who needs none of its GPUs is better off elsewhere

    def shift(self, pods: Iterable[ScaledPod], sign: int) -> None:
        """Pods that are there (1), or there no longer (-1)."""
        rows, columns, last = self.rows, self.columns, len(self.columns)
        where: list[int] = []
        amounts: list[int] = []
        width = len(self.nodes)
        for pod in pods:
            row = rows.get(pod.node)
            if row is None:
                continue
            where.append(last * width + row)
            amounts.append(1)
            if pod.unclear:
                self.unknown[row] += sign
            for resource, amount in pod.asks.items():
                column = columns.get(resource)
                if column is not None and amount > 0:
                    where.append(column * width + row)
                    amounts.append(amount if amount < _MOST else _MOST)
        if where:
            self._take(np.array(where, np.int64), sign * np.array(amounts, np.int64))

    def _take(self, where: Ints, amounts: Ints) -> None:
        before = self.free[list(self._gpu_columns)].sum(axis=0)
        np.subtract.at(self.free.reshape(-1), where, amounts)
        self.gpus -= before - self.free[list(self._gpu_columns)].sum(axis=0)

    def copy(self) -> "FreeRoom":
        twin = object.__new__(FreeRoom)
        twin.__dict__.update(self.__dict__)
        twin.free, twin.gpus, twin.unknown = self.free.copy(), self.gpus.copy(), self.unknown.copy()
        return twin

    def find_rows(self, chosen: Iterable[str]) -> Bools:
        mask = np.zeros(len(self.nodes), np.bool_)
        mask[[self.rows[name] for name in chosen if name in self.rows]] = True
        return mask

    def find_whole(self) -> Bools:
        """Nodes of whose GPUs nobody has any."""
        return np.asarray(self.gpus >= self.pieces)

    # ---- placing

    def place(self, asks: Asks, count: int, may: Bools) -> list[tuple[int, int]]:
        """Up to so many pods alike, on the nodes with the fewest free GPUs that have room, each filled before the next:
        what placing one after the other on the tightest node gives. Row and how many."""
        wanted = [(self.columns.get(resource), min(amount, _MOST)) for resource, amount in asks.items() if amount > 0]
        if any(column is None for column, _ in wanted):
            return []
        wanted.sort(key=lambda each: each[0] not in self._gpu_columns)  # what is scarce tells first
        rows = np.flatnonzero(may)
        for column, amount in (*wanted, (-1, 1)):
            rows = rows[self.free[column, rows] >= amount]
        rows = rows[self.unknown[rows] == 0]
        if not rows.size:
            return []
        left = self.gpus[rows] + self.tie[rows]
        order = rows[np.argsort(left, kind="stable")] if count > 1 else rows[[int(left.argmin())]]
        return self._fill_up(wanted, order.tolist(), count)

    def give_back(self, asks: Asks, row: int) -> None:
        """The opposite of placing one."""
        for resource, amount in asks.items():
            if amount > 0:
                self.free[self.columns[resource], row] += min(amount, _MOST)
                self.gpus[row] += min(amount, _MOST) if is_gpu(resource) else 0
        self.free[-1, row] += 1

    def _fill_up(self, wanted: list[tuple[int | None, int]], order: list[int], count: int) -> list[tuple[int, int]]:
        placed: list[tuple[int, int]] = []
        for row in order:
            room = [int(self.free[-1, row]), *(int(self.free[column, row]) // amount for column, amount in wanted)]
            many = min(count, *room)
            for column, amount in wanted:
                self.free[column, row] -= many * amount
            self.free[-1, row] -= many
            self.gpus[row] -= many * self._count(wanted)
            placed.append((row, many))
            count -= many
            if not count:
                break
        return placed

    def _count(self, wanted: list[tuple[int | None, int]]) -> int:
        return sum(amount for column, amount in wanted if column in self._gpu_columns)

    # ---- who may go where

    def mask(self, wanted: Constraint) -> Bools:
        """The nodes that a pod accepts and that accept it; room is another question."""
        found = self._masks.get(wanted)
        if found is None:
            if len(self._masks) >= _MOST_KEPT:
                self._masks.clear()
            found = self._masks[wanted] = self._make_mask(wanted)
        return found

    def _make_mask(self, wanted: Constraint) -> Bools:
        selector, affinity, tolerations = wanted
        mask = self._accept_taints(tolerations)
        for key, value in selector:
            mask &= self._match(key, "In", [value])
        terms = _read_terms(affinity)
        return mask if terms is None else mask & self._match_terms(terms)

    def _accept_taints(self, tolerations: tuple[NodeToleration, ...]) -> Bools:
        if self._taints is None:
            kinds: dict[tuple[PoolTaint, ...], int] = {}
            codes = [kinds.setdefault(node.taints, len(kinds)) for node in self.nodes]
            self._taints = np.array(codes, np.int64), list(kinds)
        codes_of, every = self._taints
        allowed = np.array([tolerates(tolerations, taints) for taints in every], np.bool_)
        return allowed[codes_of] if len(every) else np.zeros(0, np.bool_)

    def _match_terms(self, terms: Any) -> Bools:
        """One of the terms, all of it; an empty one accepts nothing."""
        mask = np.zeros(len(self.nodes), np.bool_)
        for term in terms if isinstance(terms, list) else []:
            if not isinstance(term, Mapping):
                continue
            asked = [(False, one) for one in term.get("matchExpressions") or []]
            asked += [(True, one) for one in term.get("matchFields") or []]
            held = np.full(len(self.nodes), bool(asked))
            for is_field, one in asked:
                held &= self._match_one(one, is_field)
            mask |= held
        return mask

    def _match_one(self, one: Any, is_field: bool) -> Bools:
        if not isinstance(one, Mapping):
            return np.zeros(len(self.nodes), np.bool_)
        key = str(one.get("key", ""))
        if is_field and key != "metadata.name":
            key = "\0"  # no label is called so
        return self._match("\0name" if is_field and key == "metadata.name" else key, one.get("operator"),
                           one.get("values") or [])

    def _match(self, key: str, operator: object, values: Sequence[str]) -> Bools:
        """Of a label, at once for all its values."""
        codes, kinds = self._find_values(key)
        allowed = np.zeros(len(kinds) + 1, np.bool_)  # the last: nodes without it
        if operator in ("In", "NotIn"):
            allowed[[kinds[value] for value in values if isinstance(value, str) and value in kinds]] = True
            return allowed[codes] if operator == "In" else ~allowed[codes]
        for value, code in kinds.items():
            allowed[code] = selectors.holds({key: value}, key, operator, values)
        allowed[-1] = selectors.holds({}, key, operator, values)
        return allowed[codes]

    def _find_values(self, key: str) -> tuple[Ints, dict[str, int]]:
        if key not in self._values:
            if len(self._values) >= _MOST_KEYS:
                self._values.clear()
            kinds: dict[str, int] = {}
            found = [node.name if key == "\0name" else node.labels.get(key) for node in self.nodes]
            codes = [-1 if value is None else kinds.setdefault(value, len(kinds)) for value in found]
            self._values[key] = np.array(codes, np.int64), kinds
        return self._values[key]
