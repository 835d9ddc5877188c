"""The rows of the latest idle cycle, by pod: which pods are judged otherwise than a cycle before.

In: HeldRows and the pods that they count by. Out: uids of pods whose state changed, and the rows of one pod when it is
asked for. Of thousands of pods that go on working nothing is made: their means differ in every cycle, their state does
not. So every pod has a place, which it keeps from cycle to cycle, and what was and what is are compared as columns.
"""

import itertools
import math
import operator
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fallow.model import cluster, decision
from fallow.model.cost import WHOLE, Micro, Second

_uid_of = operator.attrgetter("uid")
_UNKNOWN, _WORKS, _OTHER = 0, 1, 2  # nothing is known of it; all its rows are measured and none idle; all else
_NOWHERE: Final = -1
_FEWEST: Final = 1_000  # places, from which on it is worth giving those of pods that are gone to others
_SPARE: Final = 2  # times as many places as pods have rows


class JudgedRow(NamedTuple):
    """One GPU in a pod's hands. `use` None: not measured; `since`: idle since then, None = it is not."""

    gpu: str  # the board's name; "" = only an instance is known
    since: Second | None
    use: Micro | None


class JudgedRows:
    def __init__(self) -> None:
        self._rows: decision.HeldRows | None = None
        self._order = np.zeros(0, np.int64)  # rows in order of pods
        self._places: dict[str, int] = {}  # by uid
        self._uids: list[str] = []  # by place, as all that follows
        self._states: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        self._spans = np.zeros((0, 2), np.int64)  # from where to where in `_order`; 0, 0: it has no rows
        self._others: dict[str, tuple[JudgedRow, ...]] = {}
        self._told: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)  # are all of its GPUs named?
        self.named: set[str] = set()  # those of which it is so

    def see(
        self, rows: decision.HeldRows | None, pods: tuple[cluster.Pod, ...], leaving: Collection[str]
    ) -> tuple[set[str], set[str]]:
        """Pods in another state than before, and pods with rows whose GPUs are not named yet. Who is leaving is judged
        no more, and stays as he was."""
        if rows is not None and rows is self._rows:
            return set(), set()
        kept = {uid: self.of(uid) for uid in leaving if self._is_known(uid)} if rows is not None else {}
        self._rows, others = rows, self._others
        before = self._arrange(pods)
        gone = self._name_all((before != _UNKNOWN) & (self._states == _UNKNOWN))
        for uid in kept.keys() & gone:
            self._others[uid], self._states[self._places[uid]] = kept[uid], _OTHER
        changed = self._name_all((self._states == _WORKS) & (before != _WORKS)) | gone.difference(kept)
        changed |= {uid for uid, found in self._others.items() if others.get(uid) != found and uid not in kept}
        return changed, self._name_all((self._spans[:, 1] > 0) & ~self._told)

    def _arrange(self, pods: tuple[cluster.Pod, ...]) -> npt.NDArray[np.int8]:
        """By place, in which state all were before."""
        rows, self._others = self._rows, {}
        starts = np.zeros(0, np.int64)
        if rows is not None and len(rows.pod):
            self._order = np.argsort(rows.pod, kind="stable")
            whose = rows.pod[self._order]
            starts = np.append(0, np.flatnonzero(np.diff(whose)) + 1)
            has_rows = np.zeros(len(pods), np.bool_)
            has_rows[whose] = True
            places = self._find_places(list(map(_uid_of, itertools.compress(pods, has_rows.tobytes()))))
        before, self._states = self._states, np.zeros_like(self._states)
        self._spans = np.zeros((len(before), 2), np.int64)
        if rows is not None and len(starts):
            self._spans[places] = np.column_stack((starts, np.append(starts[1:], len(rows.pod))))
            works = np.isnan(rows.idle_since) & ~np.isnan(rows.use)
            self._states[places] = np.where(np.logical_and.reduceat(works[self._order], starts), _WORKS, _OTHER)
            self._others = {uid: self._read(uid) for uid in self._name_all(self._states == _OTHER)}
        return before

    def _find_places(self, uids: list[str]) -> npt.NDArray[np.int64]:
        """Who has none yet gets one."""
        if len(self._places) > _SPARE * len(uids) + _FEWEST:
            self._forget_all_but(uids)
        found = np.fromiter(map(self._places.get, uids, itertools.repeat(_NOWHERE)), np.int64, len(uids))
        is_new = found == _NOWHERE
        if is_new.any():
            new = list(itertools.compress(uids, is_new.tobytes()))
            places = range(len(self._uids), len(self._uids) + len(new))
            found[is_new] = places
            self._places.update(zip(new, places, strict=True))
            self._uids += new
            self._states = np.append(self._states, np.zeros(len(new), np.int8))
            self._told = np.append(self._told, np.array([uid in self.named for uid in new], np.bool_))
        return found

    def _forget_all_but(self, uids: Iterable[str]) -> None:
        """Places of pods that are long gone."""
        kept = [*dict.fromkeys((*uids, *self._name_all(self._states != _UNKNOWN)))]
        known = [uid for uid in kept if uid in self._places]
        places = [self._places[uid] for uid in known]
        self._states, self._told = self._states[places], self._told[places]
        self._uids, self._places = known, {uid: place for place, uid in enumerate(known)}

    def _name_all(self, chosen: npt.NDArray[np.bool_]) -> set[str]:
        return {self._uids[place] for place in np.flatnonzero(chosen).tolist()}

    def _is_known(self, uid: str) -> bool:
        place = self._places.get(uid)
        return place is not None and bool(self._states[place] != _UNKNOWN)

    def _has_rows(self, uid: str) -> bool:
        place = self._places.get(uid)
        return place is not None and bool(self._spans[place, 1])

    def of(self, uid: str) -> tuple[JudgedRow, ...]:
        """() = nothing is known of it."""
        return self._read(uid) if self._has_rows(uid) else self._others.get(uid, ())

    def _read(self, uid: str) -> tuple[JudgedRow, ...]:
        rows, (begin, end) = self._rows, self._spans[self._places[uid]].tolist()
        assert rows is not None
        found = []
        for at in self._order[begin:end].tolist():
            since, use, gpu = float(rows.idle_since[at]), float(rows.use[at]), rows.gpu[at]
            found.append(JudgedRow(
                gpu.rpartition("/")[0] if rows.mig[at] else gpu, None if math.isnan(since) else math.floor(since),
                None if math.isnan(use) else round(use * WHOLE),
            ))
        return tuple(found)

    def name(self, uid: str) -> None:
        """All of its GPUs are told."""
        self.named.add(uid)
        if (place := self._places.get(uid)) is not None:
            self._told[place] = True

    def forget(self, uid: str) -> None:
        self.named.discard(uid)
        self._others.pop(uid, None)
        if (place := self._places.get(uid)) is not None:
            self._states[place], self._told[place] = _UNKNOWN, False
