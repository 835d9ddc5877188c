"""Pause, resume, acknowledge and mark, as request bodies. Everything here is pure; act/hands.py sends it.

In: a workload as it was just read, its row of model/kinds.py, the record of the way back.
Out: Writes (one merge patch on one object each), in the order in which they are to be sent, with what the server's answer must show.
Invariant: the way back is in the first Write of a pause, never later than the act; a record that counts is never overwritten;
every Write carries the uid of the object that was looked at, and every Write of a pause its resourceVersion.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fallow import names
from fallow.model import cluster, decision, kinds, pointers, record, units
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.units import Instant

RECORD_BYTES = 4096  # an object's annotations may hold 256 KiB together; ours is never a noticeable part of that
REASON_CHARACTERS = 200
ACK_REASON_CHARACTERS = 256
_ALIASES = {
    names.PENDING_SINCE: names.PENDING_SINCE_ALIAS, names.ACK_UNTIL: names.ACK_UNTIL_ALIAS, names.ACK_BY: names.ACK_BY_ALIAS,
}
_CLEARED_BY_PAUSE = (*names.PENDING_KEYS, names.RESUMED_AT, names.RESUMED_BY)


class Write(msgspec.Struct, frozen=True):
    """One merge patch on one object. `shows`: what the answer must have, or the patch did not do what it was for."""

    ref: cluster.Ref
    body: dict[str, Any]
    shows: Mapping[str, Any] = {}
    subresource: str | None = None


class CannotWrite(Exception):
    """We refuse to build the patch: one word, one sentence."""

    def __init__(self, code: Detail, because: str) -> None:
        super().__init__(f"{code}: {because}")
        self.code, self.because = code, because


# ---- pause --------------------------------------------------------------------------------------------------------------------


def pause_writes(
    workload: cluster.Workload, kind: kinds.Kind, rule: idle.Rule, now: Instant, *, by: str, reason_text: str, gpus: int,
    schedule: cluster.Ref | None = None,
) -> tuple[Write, ...]:
    """The pause and its way back: one Write, or record first and act second where two objects must change.

    `schedule`: the CronJob that is to be paused and resumed along with its Job.
    """
    place, target = kinds.way(kind, workload), kinds.pause_target(kind, workload)
    fields = kinds.pause_fields(kind, workload, rule, now)
    marks = _pause_marks(kind, workload, now, by, reason_text, gpus)
    if place is kinds.Way.own or place is kinds.Way.kueue:
        # Where touching the object restarts its pods, the marks of a pause that others ended are left on it until the next one.
        is_left = workload.marks_ref.uid != workload.ref.uid and place is kinds.Way.own
        along = (_name(schedule),) if schedule else ()
        marks[names.ORIGINAL_STATE] = _write_record(_void(target) if is_left else target, fields, along)
        return (_conditional(target, fields | _as_fields(marks), shows=fields),)
    holder = kinds.record_target(kind, workload)
    companions = (_name(target.ref),) if place is kinds.Way.keda else ()
    marks[names.ORIGINAL_STATE] = _write_record(holder, [kind.replica_path or "/spec/replicas"], companions)
    first = _conditional(holder, _as_fields(marks), shows={})
    if place is kinds.Way.scale:
        return first, Write(workload.ref, {"metadata": {"uid": workload.ref.uid}, "spec": {"replicas": 0}}, fields, "scale")
    # `paused` is not changed, but recorded: whoever removes it meanwhile gets it back. A record that is left on a ScaledObject which is
    # not paused at 0 is void, like every mark of a pause whose value is no longer set.
    remembered = _write_record(_void(target), [*fields, pointers.annotation(names.KEDA_PAUSED)])
    second = _conditional(target, fields | _as_fields({names.ORIGINAL_STATE: remembered}), shows=fields)
    return first, second


def _pause_marks(
    kind: kinds.Kind, workload: cluster.Workload, now: Instant, by: str, reason_text: str, gpus: int
) -> dict[str, str | None]:
    marks: dict[str, str | None] = dict.fromkeys(_CLEARED_BY_PAUSE)
    marks |= {
        names.PAUSED_AT: units.rfc3339(now), names.PAUSED_BY: by, names.PAUSED_REASON: reason_text[:REASON_CHARACTERS],
        names.PAUSED_GPUS: str(gpus),
    }
    if (replicas := current_replicas(kind, workload)) is not None:
        marks[names.ORIGINAL_REPLICAS] = str(replicas)
    return marks


def current_replicas(kind: kinds.Kind, workload: cluster.Workload) -> int | None:
    """How many it has now; None for kinds that are not counted, and where the count is absent."""
    found = pointers.read(workload.body, kind.replica_path) if kind.replica_path else None
    return found if isinstance(found, int) else None


def _write_record(target: kinds.Target, written: Iterable[str], companions: tuple[record.CompanionName, ...] = ()) -> str:
    if names.ORIGINAL_STATE in target.annotations:
        because = f"{target.ref.short} still carries the record of an earlier pause, which is never overwritten"
        raise CannotWrite(Detail.RecordPresent, because)
    text = record.write(record.Record(1, record.remember(target.body, written), companions))
    size = len(text.encode())
    if size > RECORD_BYTES:
        raise CannotWrite(Detail.RecordTooLarge, f"the way back of {target.ref.short} would take {size} bytes, more than {RECORD_BYTES}")
    return text


def _void(target: kinds.Target) -> kinds.Target:
    """The same, with no record that counts."""
    return msgspec.structs.replace(target, annotations={})


def _name(ref: cluster.Ref) -> record.CompanionName:
    return record.CompanionName(ref.api_version, ref.kind, ref.name)


def _as_fields(annotations: Mapping[str, str | None]) -> dict[str, Any]:
    return {pointers.annotation(name): value for name, value in annotations.items()}


def _conditional(target: kinds.Target, fields: Mapping[str, Any], *, shows: Mapping[str, Any]) -> Write:
    """A merge patch that only fits the very object, in the very version, that was looked at."""
    body = pointers.merge_patch(target.body, fields)
    body.setdefault("metadata", {}).update(uid=target.ref.uid, resourceVersion=target.resource_version)
    return Write(target.ref, body, shows)


def recorded_fields(write: Write) -> dict[str, Any]:
    """The way back that a Write of a pause carries."""
    found = record.read(write.body["metadata"]["annotations"][names.ORIGINAL_STATE])
    return dict(found.fields) if found else {}


def forget_write(write: Write) -> Write:
    """Takes a record away again whose act did not follow. Without resourceVersion: whatever else changed, the record is void."""
    return annotate(write.ref, dict.fromkeys(names.PAUSE_KEYS))


# ---- resume -------------------------------------------------------------------------------------------------------------------


def resume_way(kind: kinds.Kind, workload: cluster.Workload) -> kinds.Way:
    """Through which object it was paused, as the record tells it: autoscalers may have come or gone since."""
    if any(names.ORIGINAL_STATE in companion.annotations for companion in workload.kueue):
        return kinds.Way.kueue
    own = record.read(workload.annotations.get(names.ORIGINAL_STATE))
    if own is None:
        return kinds.way(kind, workload)
    if any(companion.kind == kinds.SCALED_OBJECT.kind for companion in own.companions):
        return kinds.Way.keda
    return kinds.own_way(kind, workload)


def restored_fields(kind: kinds.Kind, workload: cluster.Workload, target: kinds.Target, found: record.Record) -> dict[str, Any]:
    """What stood there before, with a parent that was absent taken away again only if nobody else has put anything into it."""
    written = [*kind.pauses(workload, idle.Rule(), 0.0), *found.fields]
    fields: dict[str, Any] = {}
    for pointer, value in found.fields.items():
        below = [leaf for leaf in written if leaf.startswith(f"{pointer}/")]
        if value is None and below and not _is_only(pointers.read(target.body, pointer), pointer, below):
            fields |= dict.fromkeys(below)
        else:
            fields[pointer] = value
    return fields | dict(kind.resumes)


def _is_only(subtree: Any, pointer: str, leaves: Sequence[str]) -> bool:
    rest = pointers.apply_merge_patch(subtree, pointers.merge_patch({}, {leaf.removeprefix(pointer): None for leaf in leaves}))
    return not _has_leaf(rest)


def _has_leaf(value: Any) -> bool:
    return any(_has_leaf(member) for member in value.values()) if isinstance(value, Mapping) else value is not None


def raise_replicas(kind: kinds.Kind, workload: cluster.Workload, fields: dict[str, Any], *floors: int | None) -> dict[str, Any]:
    """Replicas = max(recorded, what its autoscalers ask at least): fewer would be corrected at once, and pods started twice."""
    path = kind.replica_path
    if path is None or not isinstance(fields.get(path), int):
        return fields
    least = [pointers.read(hpa.body, "/spec/minReplicas") for hpa in workload.hpas]
    return fields | {path: max(fields[path], *(floor for floor in (*least, *floors) if isinstance(floor, int)), 0)}


def resume_marks(
    kind: kinds.Kind, annotations: Mapping[str, str], now: Instant, by: str, remember: Mapping[str, str]
) -> dict[str, str | None]:
    """The pause forgotten, who ended it and when."""
    marks: dict[str, str | None] = dict.fromkeys((*names.PAUSE_KEYS, names.RESUME_REQUESTED))
    marks |= {name: units.rfc3339(now) for name in kind.touches if name in annotations}
    return marks | {names.RESUMED_AT: units.rfc3339(now), names.RESUMED_BY: by} | dict(remember)


def resume_write(target: kinds.Target, fields: Mapping[str, Any], marks: Mapping[str, str | None]) -> Write:
    """One patch with the recorded fields and the end of the pause."""
    kept = {pointer: value for pointer, value in fields.items() if value is not None}
    return _conditional(target, dict(fields) | _as_fields(marks), shows=kept)


def companion_refs(found: record.Record | None, namespace: str, kind: str) -> list[cluster.Ref]:
    """The objects of that kind that were changed for the pause; their uids are not recorded."""
    refs = []
    for companion in found.companions if found else ():
        group, _, version = companion.api_version.rpartition("/")
        if companion.kind == kind:
            refs.append(cluster.Ref(group, version, kind, namespace, companion.name, ""))
    return refs


def is_stale(annotations: Mapping[str, str]) -> bool:
    """Marks that were copied back by an undo: the pause they tell of ended already."""
    paused, resumed = units.read_instant(annotations.get(names.PAUSED_AT)), units.read_instant(annotations.get(names.RESUMED_AT))
    return paused is not None and resumed is not None and paused <= resumed


def release_operations(obj: Mapping[str, Any], written: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON patch that takes the fields of a pause out of our managedFields entries; [] if there is nothing of ours to take out.

    As long as we own spec.replicas, a user's server-side apply with another number is a conflict with us. Only our own entries are tested
    and changed: right after a resume the status of the object changes all the time. From the last to the first, for removing one moves
    those behind it.
    """
    paths = [_owned_path(pointer) for pointer in written]
    operations: list[dict[str, Any]] = []
    entries = (obj.get("metadata") or {}).get("managedFields") or []
    for index, entry in reversed(list(enumerate(entries))):
        path, after = f"/metadata/managedFields/{index}", _without(entry, paths)
        if after == entry:
            continue
        operations.append({"op": "test", "path": path, "value": entry})
        gone = after.get("fieldsV1") == {}
        operations.append({"op": "remove", "path": path} if gone else {"op": "replace", "path": path, "value": after})
    return operations


def _owned_path(pointer: str) -> tuple[str, ...]:
    parts = pointers.parts(pointer)
    crossing = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))  # lists we wrote, we own as a whole
    return tuple(f"f:{part}" for part in parts[:crossing])


def _without(entry: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    if entry.get("manager") not in (names.FIELD_MANAGER, names.RESUME_FIELD_MANAGER) or entry.get("subresource") == "status":
        return dict(entry)
    owned = entry.get("fieldsV1") or {}
    for path in paths:
        owned = _drop(owned, path)
    return {**entry, "fieldsV1": owned}


def _drop(owned: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The set of owned fields without that path, and without parents that it leaves empty."""
    rest = dict(owned)
    if path[0] not in rest:
        return rest
    below = _drop(rest[path[0]], path[1:]) if len(path) > 1 else {}
    if len(path) > 1 and (set(below) - {"."}):
        rest[path[0]] = below
    else:
        del rest[path[0]]
    return rest


# ---- marks --------------------------------------------------------------------------------------------------------------------


def annotate(ref: cluster.Ref, changes: Mapping[str, str | None], *, resource_version: str | None = None) -> Write:
    """Only annotations, on that very object; with a resourceVersion, only if it has not changed since."""
    metadata: dict[str, Any] = {"uid": ref.uid, "annotations": dict(changes)}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    return Write(ref, {"metadata": metadata})


def with_aliases(changes: Mapping[str, str | None], compat: bool) -> dict[str, str | None]:
    """The same under the names of the older tool: written only if asked for, removed always."""
    aliases = {_ALIASES[name]: value for name, value in changes.items() if name in _ALIASES and (compat or value is None)}
    return aliases | dict(changes)


def notice_changes(warn: decision.Warn, now: Instant) -> dict[str, str | None]:
    """What a delivered notice leaves on the object."""
    return {names.IDLE_SINCE: units.rfc3339(warn.idle_since), names.IDLE_EPISODE: warn.episode, names.PENDING_SINCE: units.rfc3339(now)}


def ack_mark(workload: cluster.Workload, *, until: Instant, by: str, reason: str, now: Instant) -> decision.Mark:
    """One patch: kept until then, by whom, why; the notice it answers is withdrawn."""
    changes: dict[str, str | None] = dict.fromkeys(names.PENDING_KEYS)
    changes |= {
        names.ACK_UNTIL: units.rfc3339(until), names.ACK_BY: by, names.ACK_AT: units.rfc3339(now),
        names.ACK_REASON: reason[:ACK_REASON_CHARACTERS] or None,
    }
    because = f"{by} keeps it until {units.rfc3339(until)}" + (f": {reason[:ACK_REASON_CHARACTERS]}" if reason else "")
    return decision.Mark(workload, workload.marks_ref, None, changes, names.Event.ACKNOWLEDGED, because)


def unack_marks(workload: cluster.Workload, *, by: str) -> tuple[decision.Mark, ...]:
    """Every place where an ack stands, emptied; the first one tells."""
    gone: dict[str, str | None] = dict.fromkeys(names.ACK_KEYS)
    because = f"{by} no longer keeps it"
    places = {workload.marks_ref: workload.marks} | {workload.ref: workload.annotations}
    found = [ref for ref, annotations in places.items() if any(name in annotations for name in names.ACK_KEYS)]
    events = [names.Event.UNACKNOWLEDGED, *[None] * len(found)]
    return tuple(decision.Mark(workload, ref, None, gone, event, because) for ref, event in zip(found, events, strict=False))
