"""Which nodes are measured, over time: a turn for each that falls silent or speaks again.

In: the snapshots of good cycles, and that one failed. Out: Turned, by `uid_of` the node: busy = measured, unknown =
not, None = it is gone. A node counts that holds GPU pods; it is measured while one of their GPUs has a sample that is
young enough. Looked at once in a few minutes: a strip of a day shows no less.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from fallow.model import cluster
from fallow.model.history import Condition, Turned
from fallow.model.units import MINUTE, Instant, Seconds

EVERY: Final[Seconds] = 5 * MINUTE
_YOUNG: Final[Seconds] = 3 * MINUTE  # as long as a sample may be the newest one


def uid_of(node: str) -> str:
    """No object has a uid with a slash in it."""
    return f"node/{node}"


class NodeHours:
    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._looked_at: Instant | None = None

    def enter(self, seen: cluster.Snapshot, now: Instant) -> tuple[Turned, ...]:
        if self._looked_at is not None and now - self._looked_at < EVERY:
            return ()
        self._looked_at = now
        return tuple(self._compare(find_measured(seen, now), now))

    def forget(self, now: Instant) -> tuple[Turned, ...]:
        """A cycle failed: nothing was measured."""
        self._looked_at = None
        return tuple(self._compare(dict.fromkeys(self._known, False), now))

    def _compare(self, found: Mapping[str, bool], now: Instant) -> Iterator[Turned]:
        before, self._known = self._known, dict(found)
        for node, is_measured in found.items():
            if before.pop(node, None) is not is_measured:
                yield Turned(uid_of(node), now, Condition.busy if is_measured else Condition.unknown)
        yield from (Turned(uid_of(node), now, None) for node in before)


def find_measured(seen: cluster.Snapshot, now: Instant) -> dict[str, bool]:
    """By node that holds GPU pods."""
    found = {pod.node: False for pod in seen.pods if pod.node and pod.resources and not pod.has_ended}
    use = seen.evidence.usage[min(seen.evidence.usage)] if seen.evidence.usage else None
    if use is None or not use.rows or not use.newest:
        return found
    newest = np.full(use.rows, -np.inf)
    for column in use.newest.values():
        newest = np.fmax(newest, column)
    for pod in np.unique(use.pod[(newest > now - _YOUNG) & use.exporter_up]).tolist():
        if (node := seen.pods[pod].node) in found:
            found[node] = True
    return found
