"""A digest: what became of the cluster's GPUs in a window of days, for those who look once a week.

Plain values, the same in Slack, in mail, on a terminal and as JSON. Instants are RFC 3339, hours are GPU-hours of
physical GPUs, money is in `currency`; None is "not known". Who makes one: account/digest.py.
"""

from typing import Literal

import msgspec


class DigestPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every part of a digest is: fields only, by name."""


class DigestCounts(DigestPart, frozen=True, kw_only=True):
    notices: int
    paused: int
    would_pause: int  # workloads that a dry run would have paused
    resumed: int  # by whomever
    regretted: int  # of the pauses, undone within a quarter of an hour
    kept: int
    failed: int  # pauses and notices that failed or were refused


class IdlePlace(DigestPart, frozen=True, kw_only=True):
    """A namespace, or a workload in it (`kind` and `name`), by what it held idle. `cost`: of the hours whose price is
    known; None: of none is."""

    namespace: str
    kind: str | None
    name: str | None
    gpu_hours: float
    kept_gpu_hours: float  # of these, under an acknowledgement
    cost: float | None
    unpriced_gpu_hours: float


class DigestAck(DigestPart, frozen=True, kw_only=True):
    """An acknowledgement that stands, and what its workload held idle under one in the window."""

    namespace: str
    kind: str
    name: str
    by: str
    until: str
    reason: str | None
    gpu_hours: float
    cost: float | None


class DigestSavings(DigestPart, frozen=True, kw_only=True):
    """What pauses of ours gave back. Of a dry run: what they would have, and how many of them would have been wrong.
    `taken_gpu_hours`: somebody else held them, or their node went; only the books know, and by them only these are
    money."""

    mode: Literal["acting", "dry-run"]
    gpu_hours: float | None  # None: what rests now could not be seen, or is not worked out yet
    until: str | None  # what is later is not in it; None: not known
    taken_gpu_hours: float | None
    cost: float | None  # of the hours whose price is known; None: of none is
    unpriced_gpu_hours: float | None
    pauses: int
    wrong: int | None  # of a dry run: those whose GPUs worked again within a quarter of an hour


class DataHealth(DigestPart, frozen=True, kw_only=True):
    """How much of the window was seen, and how much of what was seen could be told."""

    seen_share: float  # of the time of the window
    known_share: float | None  # of the allocated GPUs while it was seen; None: nothing was seen
    no_decision: int  # times that a decision became impossible
    trouble: str | None  # what is wrong now


class Digest(DigestPart, frozen=True, kw_only=True):
    """`source`: where hours held idle and given back are from. `books`: the ledger, idle from when the silence began;
    `audit`: no books are kept, and idle counts from the verdict on, at list prices."""

    cluster: str
    since: str
    until: str
    source: Literal["books", "audit"]
    currency: str
    counts: DigestCounts
    idle: IdlePlace  # all of it: of no namespace
    namespaces: tuple[IdlePlace, ...]  # the first so many, who held most idle first
    workloads: tuple[IdlePlace, ...]
    acks: tuple[DigestAck, ...] | None  # None: the cluster could not be seen
    savings: DigestSavings
    health: DataHealth
