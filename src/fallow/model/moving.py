"""A pod that is moved so that another, which waits, fits in its place: the record, the two places that are kept, the
move as it is now, and the steps that may come next.

In: annotations of two nodes. `move` stands on the node that the pod leaves, and `place-held` there, for the pod that
waits; the node where it is to come has only `place-held`. Out: MoveRecord and HeldPlace, or None where there is none
that can be read.
Invariant: `place-held` says something of its node alone. Whoever may write the node that is left can, by a record that
they made up, have one place kept on an open node that they name, for a pod of one GPU on their own node, as that pod
is: no more, and no longer than a place is ever kept. Nobody has to be alive for it to end.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.model.capacity import Needs
from fallow.model.cluster import Pod
from fallow.model.units import MINUTE, Instant, Seconds

KEPT_FOR: Final[Seconds] = 20 * MINUTE  # from the beginning of a move; no move lasts as long
_LONGEST: Final[Seconds] = 2 * KEPT_FOR  # what is kept beyond that was written by nobody of ours, or a clock jumped

# A name that can be asked for: what is none makes a record that cannot be read.
_Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]


class MoveEnd(StrEnum):
    """How a move ended."""

    Moved = "Moved"
    NotNeeded = "NotNeeded"  # the pod that waited does not wait any more, or the other went by itself
    NotKept = "NotKept"  # no extender said that it keeps both places, or it does not say so any more
    Refused = "Refused"  # the eviction was refused for too long, by a PodDisruptionBudget for instance
    ReplacementLate = "ReplacementLate"  # the pod that was evicted did not come back in time
    NotTaken = "NotTaken"  # the pod that waited did not come
    Unmovable = "Unmovable"
    ChangedByOther = "ChangedByOther"
    SwitchedOff = "SwitchedOff"
    RecordBroken = "RecordBroken"
    Overdue = "Overdue"  # it began longer ago than any move lasts


IN_VAIN: Final = frozenset({MoveEnd.NotTaken, MoveEnd.ReplacementLate})  # somebody was evicted, and it did not help


class MovedPod(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    namespace: _Name
    name: _Name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class HeldPlace(msgspec.Struct, frozen=True, rename="camel"):
    """`pod`: the uid for which it is kept; or, where that is "", the next pod of `owner` (a uid) but `leaving`.
    `leaving`: who has it now. `priority`: who has more is not kept away. `scheduler`: of whom it is kept for."""

    v: Literal[1]
    move: str  # an id
    namespace: str
    until: Instant
    cpu: int
    memory: int
    gpus: int
    shared: int
    pod: str = ""
    owner: str = ""
    leaving: str = ""
    products: tuple[str, ...] = ()
    priority: int = 0
    scheduler: str = names.DEFAULT_SCHEDULER

    @property
    def needs(self) -> Needs:
        return Needs(cpu=self.cpu, memory=self.memory, gpus=self.gpus, shared=self.shared, products=self.products)

    def is_kept(self, now: Instant) -> bool:
        return now < self.until < now + _LONGEST

    def is_taken_by(self, uid: str, namespace: str, owner: str, created_at: Instant) -> bool:
        """Of a pod on that node. One of the same owner that was there before is not who was to come."""
        is_new = bool(self.pod) or created_at > self.until - KEPT_FOR
        return is_new and self.is_for(uid, namespace, owner)

    def is_for(self, uid: str, namespace: str, owner: str) -> bool:
        """`owner`: the uid of its controller."""
        if namespace != self.namespace:
            return False
        return uid == self.pod if self.pod else bool(owner) and owner == self.owner and uid != self.leaving


class MoveRecord(msgspec.Struct, frozen=True, rename="camel"):
    """`moved` leaves for `target`, and `waits` comes. `ready`: how many pods of the owner were Ready before."""

    v: Literal[1]
    move: str
    since: Instant
    because: str
    moved: MovedPod
    owner: str
    ready: int
    waits: MovedPod
    target: _Name
    evicting: Instant | None = None  # since when
    refusal: str = ""  # what was last said

    def is_overdue(self, now: Instant) -> bool:
        """Also where its beginning is yet to come: a clock was set back, or nobody of ours wrote it."""
        return not -MINUTE <= now - self.since < KEPT_FOR


class PlacesSaid(msgspec.Struct, frozen=True, rename="camel"):
    """What one process of the extender says of places, as `name_place` calls them, and when by the API server's clock.
    Of a place that it could keep, and is not asked about, it says neither."""

    v: Literal[1]
    at: Instant
    kept: tuple[str, ...]
    refused: tuple[str, ...]


class MoveNode(msgspec.Struct, frozen=True):
    """`closed`: why nobody new is to come there. `held`: as it stands there. `other`: what else is being done with it,
    which a move must not meet."""

    name: str
    uid: str
    version: str
    closed: str = ""
    held: HeldPlace | None = None
    other: str = ""

    def find_held(self, now: Instant) -> HeldPlace | None:
        """What is kept there now: a place that is over is none."""
        return self.held if self.held is not None and self.held.is_kept(now) else None


class MoveNow(msgspec.Struct, frozen=True, kw_only=True):
    """`target` None: it is gone. `moved` None: it is not there any more; `fixed`: why it must stay. `waits` None: it is
    gone. `ready`: of the owner's pods, those that are Ready elsewhere. `is_kept`: whether the extender says that it
    keeps both places."""

    source: MoveNode
    record: MoveRecord | None
    target: MoveNode | None = None
    moved: Pod | None = None
    fixed: str = ""
    waits: Pod | None = None
    ready: int = 0
    is_kept: bool = False


class BeginMove(msgspec.Struct, frozen=True):
    """The record and the place on the node that is left, in one request."""

    record: MoveRecord
    here: HeldPlace


class HoldTarget(msgspec.Struct, frozen=True):
    place: HeldPlace


class EvictMoved(msgspec.Struct, frozen=True):
    """The record first, then the eviction."""

    record: MoveRecord


class WaitMove(msgspec.Struct, frozen=True):
    because: str


class EndMove(msgspec.Struct, frozen=True):
    """Both places are free again, then the record goes."""

    reason: MoveEnd
    because: str


MoveStep: TypeAlias = HoldTarget | EvictMoved | WaitMove | EndMove


def read_record(text: str | None) -> MoveRecord | None:
    try:
        return msgspec.json.decode(text, type=MoveRecord) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def read_place(text: str | None) -> HeldPlace | None:
    try:
        return msgspec.json.decode(text, type=HeldPlace) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def read_said(text: str) -> PlacesSaid | None:
    try:
        return msgspec.json.decode(text, type=PlacesSaid)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def write(what: MoveRecord | HeldPlace | PlacesSaid) -> str:
    return msgspec.json.encode(what).decode()


def name_place(move: str, node: str) -> str:
    """As the extender calls a place that it keeps."""
    return f"{move}@{node}"
