"""A node that is emptied: its record, the node as it is now, and the steps that may come next.

In: the annotation `emptying` of a node. Out: an EmptyingRecord, or None where there is none that can be read. The
record is written in the very patch that cordons, and before every eviction: whoever finds it knows what was meant.
Invariant: a record that cannot be read is no record of ours to follow, and the node is given back (`is_broken`).
"""

from enum import StrEnum
from typing import Final, Literal, TypeAlias

import msgspec

from fallow.model.units import Instant


class StopReason(StrEnum):
    """Why a node is no longer emptied."""

    Refused = "Refused"  # an eviction was refused for too long, by a PodDisruptionBudget for instance
    ReplacementLate = "ReplacementLate"  # a pod that was evicted did not come back in time
    Unmovable = "Unmovable"  # somebody is there now who must not be moved
    ChangedByOther = "ChangedByOther"  # somebody uncordoned it
    SwitchedOff = "SwitchedOff"
    RecordBroken = "RecordBroken"
    NotTaken = "NotTaken"  # it was empty, and nobody took it away


# Somebody was or may have been evicted, and it did not help; or people want the node as it is.
IN_VAIN: Final = frozenset({
    StopReason.Refused, StopReason.ReplacementLate, StopReason.Unmovable, StopReason.ChangedByOther,
})


class Leaving(msgspec.Struct, frozen=True, rename="camel"):
    """The one pod that is being evicted. `ready`: how many of its owner's pods were Ready before."""

    uid: str
    namespace: str
    name: str
    owner: str  # its uid
    ready: int
    since: Instant


class EmptyingRecord(msgspec.Struct, frozen=True, rename="camel"):
    v: Literal[1]
    since: Instant
    cordoned_by_us: bool
    because: str
    leaving: Leaving | None = None
    refusal: str = ""  # what was last said to it
    empty_since: Instant | None = None


class EmptiedPod(msgspec.Struct, frozen=True):
    """A pod on the node. `stays`: it belongs to the node. `fixed`: why it must not be moved; "": it may be."""

    uid: str
    namespace: str
    name: str
    owner: str
    stays: bool = False
    is_going: bool = False
    fixed: str = ""
    ready: int = 0  # pods of its owner that are Ready elsewhere, and itself if it is


class NodeNow(msgspec.Struct, frozen=True):
    name: str
    uid: str
    version: str
    is_cordoned: bool
    record: EmptyingRecord | None
    is_broken: bool  # there is a record, and it cannot be read
    pods: tuple[EmptiedPod, ...]
    ready: int = 0  # of the pods of the owner whose pod is leaving, those that are Ready elsewhere
    has_place_held: bool = False  # for a pod that is moved there


class Begin(msgspec.Struct, frozen=True):
    """Cordon, with the record in the same patch."""

    record: EmptyingRecord


class Evict(msgspec.Struct, frozen=True):
    """The record first, then the eviction."""

    record: EmptyingRecord


class WriteRecord(msgspec.Struct, frozen=True):
    record: EmptyingRecord


class Wait(msgspec.Struct, frozen=True):
    because: str


class Stop(msgspec.Struct, frozen=True):
    """Give the node back: the record goes, and with it the cordon if it was ours."""

    reason: StopReason
    because: str
    uncordons: bool


EmptyingStep: TypeAlias = Begin | Evict | WriteRecord | Wait | Stop


def read(text: str | None) -> EmptyingRecord | None:
    try:
        return msgspec.json.decode(text, type=EmptyingRecord) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def write(record: EmptyingRecord) -> str:
    return msgspec.json.encode(record).decode()
