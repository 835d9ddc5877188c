"""What sharing does to those who share: an owner that is watched, what was measured of it, what hurt it.

A HurtSeen is of one owner at one instant, beside how it was before it shared. None is what nobody knows: an empty
answer, a question that failed, too little of the time measured. Of what is not known nobody makes a verdict.
"""

from enum import StrEnum
from typing import Final

import msgspec

from fallow.model import cluster
from fallow.model.policies.sharing import HurtGuard
from fallow.model.units import DAY, MINUTE, Instant, Seconds

WATCHED: Final[Seconds] = DAY  # after an owner's first shared pod
BEFORE: Final[Seconds] = 7 * DAY  # what it is compared with
RECENT: Final[Seconds] = 30 * MINUTE  # in which restarts are counted, and a share is full
EVALUATIONS: Final = 3  # of a latency, running
EVALUATED: Final[Seconds] = 5 * MINUTE  # between two of them
FAULTS: Final = (13, 31, 43, 45)  # XIDs: of the engine, of its memory, and what the driver stops because of them


class HurtReason(StrEnum):
    Restarts = "Restarts"
    GpuFault = "GpuFault"
    Latency = "Latency"
    ShareFull = "ShareFull"


class SharedOwner(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: the names of those that share. `since`: the first of them is as old. `times`: how often before now
    sharing hurt it."""

    workload: cluster.Workload
    policy: str
    strategy: str
    guard: HurtGuard
    pods: tuple[str, ...]
    since: Instant
    times: int = 0


class HurtSeen(msgspec.Struct, frozen=True, kw_only=True):
    """`restarts`: in RECENT; `restarts_before`: in BEFORE. `fault`: the XID that came since it shares. `latencies`: of
    EVALUATIONS. `full`: the 95th percentile of how busy its share was in RECENT."""

    restarts: int | None = None
    restarts_before: int | None = None
    fault: int | None = None
    latencies: tuple[float | None, ...] = ()
    latency_before: float | None = None
    full: float | None = None


class Hurt(msgspec.Struct, frozen=True):
    reason: HurtReason
    because: str


class ShareRevert(msgspec.Struct, frozen=True):
    """As the policy's status keeps it. `owner`: its uid."""

    owner: str
    at: Instant


class RevertsKept(msgspec.Struct, frozen=True):
    """What a policy's status keeps of a day. `recent`: of each owner the last, the newest of them; `earlier`: of those
    for whom there was no room any more how many there were, by the hour."""

    recent: tuple[ShareRevert, ...] = ()
    earlier: tuple[tuple[Instant, int], ...] = ()

    def __len__(self) -> int:
        return len(self.recent) + sum(many for _, many in self.earlier)


class ShareRestart(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody whom sharing hurt, whose policy wants its pods anew. `until`: of the back-off, as it is written."""

    workload: cluster.Workload
    policy: str
    until: str


class RestartRefusal(StrEnum):
    OtherKind = "OtherKind"
    NotAsItWas = "NotAsItWas"
    Paused = "Paused"
    NotRolling = "NotRolling"


class RestartEnded(msgspec.Struct, frozen=True, kw_only=True):
    """`may_follow`: it was not done, and may be done by a later look."""

    because: str
    is_done: bool = False
    may_follow: bool = False


class PolicyReverts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a policy: owners in back-off now; owners it has; how many were hurt within a day."""

    reverted: int = 0
    owners: int = 0
    recent: int = 0
