"""Bookkeeping on objects, as annotations: what a notice leaves, who keeps it until when. Pure; the hands write it.

Invariant: only annotations are touched, and only where the workload's marks are.
"""

from collections.abc import Mapping

from fallow import names
from fallow.model import cluster, decision, units
from fallow.model.units import Instant

ACK_REASON_CHARACTERS = 256
_ALIASES = {
    names.PENDING_SINCE: names.PENDING_SINCE_ALIAS, names.ACK_UNTIL: names.ACK_UNTIL_ALIAS,
    names.ACK_BY: names.ACK_BY_ALIAS,
}


def with_aliases(changes: Mapping[str, str | None], compat: bool) -> dict[str, str | None]:
    """The same under the names of the older tool: written only if asked for, removed always."""
    known = {name: value for name, value in changes.items() if name in _ALIASES and (compat or value is None)}
    return {_ALIASES[name]: value for name, value in known.items()} | dict(changes)


def notice_changes(warn: decision.Warn, whom: str, now: Instant) -> dict[str, str | None]:
    """What a delivered notice leaves on the object."""
    return {
        names.IDLE_SINCE: units.rfc3339(warn.idle_since), names.IDLE_EPISODE: warn.episode,
        names.PENDING_SINCE: units.rfc3339(now), names.TOLD: whom,
    }


def ack_mark(workload: cluster.Workload, *, until: Instant, by: str, reason: str, now: Instant) -> decision.Mark:
    """One patch: kept until then, by whom, why; the notice it answers is withdrawn."""
    end, why = units.rfc3339(until), reason[:ACK_REASON_CHARACTERS]
    changes = dict.fromkeys(names.PENDING_KEYS) | {
        names.ACK_UNTIL: end, names.ACK_BY: by, names.ACK_AT: units.rfc3339(now), names.ACK_REASON: why or None,
    }
    because = f"{by} keeps it until {end}" + (f": {why}" if why else "")
    version = workload.marks_version
    return decision.Mark(workload, workload.marks_ref, version, changes, names.Event.ACKNOWLEDGED, because)


def unack_marks(workload: cluster.Workload, *, by: str) -> tuple[decision.Mark, ...]:
    """Every object on which an ack stands, freed of it; the first one tells."""
    marked = {workload.marks_ref: workload.marks} | {workload.ref: workload.annotations}
    found = [ref for ref, said in marked.items() if any(name in said for name in names.ACK_KEYS)]
    gone, because = dict.fromkeys(names.ACK_KEYS), f"{by} no longer keeps it"
    return tuple(
        decision.Mark(workload, ref, None, gone, None if index else names.Event.UNACKNOWLEDGED, because)
        for index, ref in enumerate(found)
    )
