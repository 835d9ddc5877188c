"""What one row of the table of kinds says: everything that is particular to a kind, so that no other module spells one.

Eyes read `reads`, `relays`, `is_schedule`, `outlived_by`, `named_by`, `marks_on` and `deletes_claims` (what is kept of
an object, and who is the workload when one object owns another); the brain `work`, `in_order`, `ignores_stop`; the
hands `verb`, `warns`, `touches`; the flags and the roles in deploy/ `letter`, `group` and `plural`. How it is paused,
what then stands paused, and what speaks against it: functions.
Invariant: a row is data, and what is not said in it is not true of the kind; adding a kind is adding a row.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.model import cluster
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.units import Instant

Key: TypeAlias = tuple[str, str]  # group, kind
Fields: TypeAlias = dict[str, Any]  # JSON pointer -> value
Objection: TypeAlias = tuple[Detail, str]  # the word after `ReportOnly:`, and a sentence
Pauses: TypeAlias = Callable[[cluster.Workload, idle.Rule, Instant], Fields]
Holds: TypeAlias = Callable[[Mapping[str, Any]], bool]
Objects: TypeAlias = Callable[[cluster.Workload, idle.Rule], Objection | None]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `pauses` gives the fields of a pause; `holds` says of an object, annotations included, that they stand.
    """

    kind: str
    group: str
    versions: tuple[str, ...]  # acceptable, best first; () = whatever discovery prefers
    letter: str  # of --enabled-resources; "" = no workload of its own: a companion
    needs_group: bool = False  # typed with its group, because another API has a kind of that name
    work: str | None = None  # the class of work its pods do, where the kind tells

    reads: tuple[str, ...]  # JSON pointers kept in Workload.body; annotations and labels are kept beside it
    verb: Literal["scaled to 0", "suspended", "stopped"]
    pauses: Pauses
    holds: Holds
    replica_path: str | None = None
    ends: tuple[str, frozenset[str]] | None = None  # where the end is read: a phase, or conditions that are True
    resumes: Mapping[str, Any] = {}  # written at resume whatever was recorded
    touches: tuple[str, ...] = ()  # annotations that, where they exist, are set to now at resume

    objects: tuple[Objects, ...] = ()
    manager: tuple[str, str] | None = None  # where `managedBy` stands, and the controller that is the kind's own
    is_queued: bool = False  # Kueue suspends and resumes it itself; serving kinds under Kueue keep their own row
    deletes_claims: tuple[str, ...] = ()  # makes volume claims; when their retention policy counts in a pause
    in_order: bool = False  # stops its pods one after another, unless podManagementPolicy says otherwise
    ignores_stop: Callable[[cluster.Workload], bool] | None = None  # was its stop annotation not heeded?
    loses_work: bool = False  # a pause throws away the work since the last checkpoint
    is_lasting: bool = False  # its pods do work that an eviction would lose
    warns: tuple[str, ...] = ()  # what a pause of it brings
    warns_below: str = ""  # what a pause of something that it owns brings

    relays: bool = False  # others make it to make their pods; these bear the labels that its maker selects
    is_schedule: bool = False  # pausing it stops nothing that runs: what it started is the workload
    outlived_by: str = ""  # the kind it runs in, which is the workload once this one is finished
    named_by: tuple[str, Mapping[str, str]] | None = None  # label of a pod with its name, and those beside it
    marks_on: Key | None = None  # annotations on it restart its pods: marks go to the object of this kind that it owns

    @property
    def key(self) -> Key:
        return self.group, self.kind

    @property
    def plural(self) -> str:
        """The resource, as roles name it."""
        return f"{self.kind.lower()}s"

    @property
    def event(self) -> str:
        return names.Event.SUSPENDED if self.verb == "suspended" else names.Event.SCALED_TO_ZERO
