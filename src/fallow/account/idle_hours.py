"""GPU-seconds that workloads held idle, and of these under an acknowledgement, added up between good cycles.

In: the plans of good cycles. Out: every few minutes, a HeldIdle for each workload that held any.
What was seen in one cycle holds until the next; a failed cycle breaks the chain, for nobody knows what happened
meanwhile. While the workloads are the same objects a cycle costs two additions of columns and a look at those that
somebody keeps, whatever the number of the others.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from fallow.account import acks
from fallow.model import bills, cluster, decision
from fallow.model.history import HeldIdle
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.model.usage import Floats

EVERY: Final[Seconds] = 5 * MINUTE
LONGEST: Final[Seconds] = 30 * MINUTE  # two cycles further apart have nothing to do with each other


class IdleHours:
    def __init__(self) -> None:
        self._seen: cluster.Snapshot | None = None
        self._plan: decision.Plan | None = None
        self._idle, self._kept = np.zeros(0), np.zeros(0)
        self._rate, self._kept_rate = np.zeros(0), np.zeros(0)  # physical GPUs, since the last cycle
        self._keeping: tuple[int, ...] = ()
        self._since: Instant = 0.0  # of the sums
        self._taken_at: Instant | None = None
        self._done: list[HeldIdle] = []
        # By uid, of those that were idle last: to describe each anew would cost.
        self._models: dict[str, tuple[tuple[str, float], ...]] = {}

    def enter(self, plan: decision.Plan, seen: cluster.Snapshot, share: Floats) -> None:
        """`share`: what of a physical GPU each GPU of a workload is."""
        if self._plan is not None and 0 < plan.at - self._plan.at <= LONGEST:
            self._idle += self._rate * (plan.at - self._plan.at)
            self._kept += self._kept_rate * (plan.at - self._plan.at)
        before = self._seen
        if before is None or seen.workloads is not before.workloads or seen.namespaces is not before.namespaces:
            self._done += self._sum_up(plan.at)
            self._idle, self._kept = np.zeros(len(seen.workloads)), np.zeros(len(seen.workloads))
            self._keeping = tuple(index for index, _ in acks.find_covered(seen))
        self._plan, self._seen, self._rate = plan, seen, plan.held.idle * share
        self._kept_rate = np.zeros(len(seen.workloads))
        for index in self._keeping:
            if self._rate[index] and plan.findings[index].skip is decision.Reason.Acknowledged:
                self._kept_rate[index] = self._rate[index]

    def forget(self) -> None:
        """A cycle failed: until the next good one nothing is known."""
        if self._plan is not None:
            self._done += self._sum_up(self._plan.at)
        self._plan = None

    def take(self, now: Instant) -> tuple[HeldIdle, ...]:
        """What has come together, once in a while."""
        self._taken_at = now if self._taken_at is None else self._taken_at
        if now - self._taken_at < EVERY:
            return ()
        found, self._done, self._taken_at = (*self._done, *self._sum_up(now)), [], now
        return found

    def _sum_up(self, now: Instant) -> Iterator[HeldIdle]:
        since, self._since = self._since, now
        if self._plan is None or self._seen is None:
            return
        known, self._models = self._models, {}
        for index in np.flatnonzero(self._idle).tolist():
            ref = self._seen.workloads[index].ref
            parts = known[ref.uid] if ref.uid in known else _find_models(self._plan.findings[index])
            self._models[ref.uid] = parts
            for model, part in parts:
                yield HeldIdle(
                    at=since, namespace=ref.namespace, kind=ref.kind, name=ref.name, model=model,
                    idle=round(float(self._idle[index]) * part, 1), kept=round(float(self._kept[index]) * part, 1),
                )
        self._idle[:], self._kept[:] = 0, 0


def _find_models(finding: decision.Finding) -> tuple[tuple[str, float], ...]:
    """Where only some of its GPUs are idle and they are of several models, which ones is not told here."""
    held = finding.holdings
    return bills.split(held) if len(held) == 1 or finding.verdict is decision.Verdict.idle else (("", 1.0),)
