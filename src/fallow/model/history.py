"""What happened, as it is kept: what was decided and done, by whom; and in which state every workload was, since when.

An AuditEntry says one thing that people may ask for later; entries of the same workload, type and instant are one.
"""

from enum import StrEnum
from typing import Final

import msgspec

from fallow.model import cluster
from fallow.model.units import DAY, MINUTE, Instant, Seconds

REGRET_WITHIN: Final[Seconds] = 15 * MINUTE  # a pause that is undone sooner was a mistake
KEPT_FOR: Final[Seconds] = 180 * DAY


class Happened(StrEnum):
    notified = "told"
    paused = "paused"
    would_pause = "wouldPause"
    resumed = "resumed"
    kept = "kept"
    released = "released"
    keep_ended = "keepEnded"
    brought_back = "broughtBack"  # by others than us
    regretted = "regretted"  # a pause undone within REGRET_WITHIN
    left = "left"  # held after a fight
    not_paused = "notPaused"  # the second look said no
    restarted = "restarted"  # rolling, because sharing hurt it
    refused = "refused"
    failed = "failed"
    frozen = "frozen"
    unfrozen = "unfrozen"
    no_decision = "noDecision"
    nodes_added = "nodesAdded"
    drain_begun = "drainBegun"
    drain_undone = "drainUndone"
    node_removed = "nodeRemoved"
    interrupted = "spotInterrupted"  # a cloud takes a node back
    move_begun = "moveBegun"  # of a pod, so that another fits in its place
    pod_moved = "podMoved"
    move_stopped = "moveStopped"
    alert_seen = "alertSeen"  # of a budget


class CameBy(StrEnum):
    """By which door it came."""

    cycle = "cycle"
    cli = "cli"
    api = "api"
    slack = "slack"
    annotation = "annotation"
    outside = "outside"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    at: Instant
    type: Happened
    sentence: str
    actor: str
    source: CameBy
    ref: cluster.Ref | None = None  # None: about all
    gpus: int | None = None
    detail: str = ""
    reason: str = ""
    policy: str = ""
    code: str = ""
    per_hour: float | None = None  # what its GPUs cost, where that is known
    shares: float | None = None  # how many physical GPUs `gpus` are, where that is known
    number: int = 0  # given when it is kept


class Condition(StrEnum):
    """In which state a workload is, as a letter."""

    busy = "b"
    idle = "i"
    unknown = "u"
    paused = "p"


class Turned(msgspec.Struct, frozen=True):
    """From then on a workload is in that condition; None: it is gone."""

    uid: str
    at: Instant
    condition: Condition | None


class HeldIdle(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-seconds, of physical GPUs, that a workload held idle from `at` on. `kept`: of these, under an
    acknowledgement; `model`: by which they have a price."""

    at: Instant
    namespace: str
    kind: str
    name: str
    model: str
    idle: float
    kept: float


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs by state at one instant. None = not known."""

    at: Instant
    total: float | None
    busy: float
    idle: float
    kept: float
    unknown: float
    free: float | None
