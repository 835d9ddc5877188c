"""The rows of the latest idle cycle, by pod: which pods are judged otherwise than a cycle before.

In: HeldRows and the pods that they count by. Out: uids of pods whose state changed, and the rows of one pod when it is
asked for. Of thousands of pods that go on working nothing is made: their means differ in every cycle, their state does
not.
"""

import itertools
import math
import operator
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from fallow.model import cluster, decision
from fallow.model.cost import WHOLE, Micro, Second

_uid_of = operator.attrgetter("uid")


class JudgedRow(NamedTuple):
    """One GPU in a pod's hands. `use` None: not measured; `since`: idle since then, None = it is not."""

    gpu: str  # the board's name; "" = only an instance is known
    since: Second | None
    use: Micro | None


class JudgedRows:
    def __init__(self) -> None:
        self._rows: decision.HeldRows | None = None
        self._places: dict[str, int] = {}  # uid -> which of those that have rows
        self._order = self._bounds = np.zeros(0, np.int64)  # rows in order of pods; where each pod's begin
        self._working: set[str] = set()  # all rows measured, none idle
        self._others: dict[str, tuple[JudgedRow, ...]] = {}
        self.named: set[str] = set()  # pods whose GPUs were told

    def see(
        self, rows: decision.HeldRows | None, pods: tuple[cluster.Pod, ...], leaving: Collection[str]
    ) -> tuple[set[str], set[str]]:
        """Pods in another state than before, and pods that were not among the rows. Who is leaving is judged no more,
        and stays as he was."""
        if rows is not None and rows is self._rows:
            return set(), set()
        working, others = self._working, self._others
        kept = {uid: self.of(uid) for uid in leaving if uid in working or uid in others} if rows is not None else {}
        self._rows = rows
        self._arrange(pods)
        gone = working.difference(self._places).union(set(others).difference(self._places))
        self._others |= {uid: found for uid, found in kept.items() if uid in gone}
        changed = self._working.difference(working).union(gone.difference(kept))
        changed |= {uid for uid, found in self._others.items() if others.get(uid) != found and uid not in kept}
        return changed, set(itertools.filterfalse(self.named.__contains__, self._places))

    def _arrange(self, pods: tuple[cluster.Pod, ...]) -> None:
        rows, self._places, self._working, self._others = self._rows, {}, set(), {}
        if rows is None or not len(rows.pod):
            return
        self._order = np.argsort(rows.pod, kind="stable")
        holders, starts = np.unique(rows.pod[self._order], return_index=True)
        self._bounds = np.append(starts, len(rows.pod))
        uids = list(map(_uid_of, map(pods.__getitem__, holders.tolist())))
        self._places = dict(zip(uids, range(len(uids)), strict=True))
        works = np.isnan(rows.idle_since) & ~np.isnan(rows.use)
        is_plain = np.logical_and.reduceat(works[self._order], starts)
        self._working = set(itertools.compress(uids, is_plain.tolist()))
        self._others = {(uid := uids[at]): self._read(uid) for at in np.flatnonzero(~is_plain).tolist()}

    def of(self, uid: str) -> tuple[JudgedRow, ...]:
        """() = nothing is known of it."""
        return self._read(uid) if uid in self._places else self._others.get(uid, ())

    def _read(self, uid: str) -> tuple[JudgedRow, ...]:
        rows, place = self._rows, self._places[uid]
        assert rows is not None
        found = []
        for at in self._order[self._bounds[place] : self._bounds[place + 1]].tolist():
            since, use, gpu = float(rows.idle_since[at]), float(rows.use[at]), rows.gpu[at]
            found.append(JudgedRow(
                gpu.rpartition("/")[0] if rows.mig[at] else gpu, None if math.isnan(since) else math.floor(since),
                None if math.isnan(use) else round(use * WHOLE),
            ))
        return tuple(found)

    def forget(self, uid: str) -> None:
        self.named.discard(uid)
        self._working.discard(uid)
        self._others.pop(uid, None)
