"""Pause and resume as request bodies. Everything here is pure; pausing.py and resuming.py send it.

In: a workload as it was just read, its row of model/kinds.py, the record of the way back.
Out: Writes, in the order in which they are to be sent, with what the server's answer must show; and the JSON patch by
which we give up the fields of a pause when it is over.
Invariant: the way back is in the first Write of a pause, never later than the act; a record that counts is never
overwritten; every Write carries the uid of the object that was looked at, and every Write of a pause its version; the
Writes of a pause are sent once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fallow import names
from fallow.act.sending import Write
from fallow.model import cluster, decision, kinds, pointers, record, units
from fallow.model import marks as reading
from fallow.model.decision import Detail
from fallow.model.seen import sure
from fallow.model.units import Instant

Marks: TypeAlias = Mapping[str, str | None]  # annotation -> value; None removes it

RECORD_BYTES = 4096  # an object's annotations may hold 256 KiB together; ours is never a noticeable part of that


class CannotWrite(Exception):
    """We refuse to build the patch: one word, one sentence."""

    def __init__(self, code: Detail, because: str) -> None:
        super().__init__(f"{code}: {because}")
        self.code, self.because = code, because


def pause_writes(
    workload: cluster.Workload, kind: kinds.Kind, pause: decision.Pause, now: Instant, *, by: str = names.FIELD_MANAGER,
    schedule: cluster.Ref | None = None, pods: Iterable[cluster.Pod] = (),
) -> tuple[Write, ...]:
    """The pause and its way back: one Write, or record first and act second where two objects must change.

    `schedule`: the CronJob that is to be paused and resumed along with its Job. `pods`: those that hold its GPUs.
    """
    way, target = kinds.way(kind, workload), kinds.pause_target(kind, workload)
    row = kinds.target_row(kind, workload)
    fields = row.pauses(workload, pause.finding.rule, now)
    marks = _pause_marks(kind, workload, pause, now, by) | _place_marks(pods)
    if way is kinds.Way.own or way is kinds.Way.kueue:
        # Where touching the object restarts its pods, the marks of a pause that others ended stay until the next.
        is_left = workload.has_marks_elsewhere and way is kinds.Way.own
        along = (_name(schedule),) if schedule else ()
        marks[names.ORIGINAL_STATE] = _write_record(row, target, fields, along, is_void=is_left)
        return (_conditional(target, fields | _as_fields(marks), fields),)
    holder = kinds.record_target(kind, workload)
    companions = (_name(target.ref),) if way is kinds.Way.keda else ()
    marks[names.ORIGINAL_STATE] = _write_record(kind, holder, [kind.replica_path or "/spec/replicas"], companions)
    first = _conditional(holder, _as_fields(marks))
    if way is kinds.Way.scale:
        return first, scale_write(workload.ref, holder.resource_version, 0)
    return first, pause_scaler(target)


def pause_scaler(scaler: kinds.Target) -> Write:
    """KEDA told to hold its target at 0.

    `paused` is not changed, but recorded: whoever removes it meanwhile gets it back. A record that is left on a
    ScaledObject which is not paused at 0 is void, like every mark of a pause whose value is no longer set.
    """
    row = kinds.SCALED_OBJECT
    fields = dict.fromkeys(row.writes, "0")
    marks = {
        names.ORIGINAL_STATE: _write_record(row, scaler, (*row.writes, *row.remembers), is_void=True),
        names.RESUME_REQUESTED: None,
    }
    return _conditional(scaler, fields | _as_fields(marks), fields)


def scale_write(
    ref: cluster.Ref, resource_version: str, replicas: int, manager: str = names.FIELD_MANAGER
) -> Write:
    body = {"metadata": {"uid": ref.uid, "resourceVersion": resource_version}, "spec": {"replicas": replicas}}
    return Write(ref, body, {"/spec/replicas": replicas}, "scale", manager, manager == names.FIELD_MANAGER)


def _pause_marks(
    kind: kinds.Kind, workload: cluster.Workload, pause: decision.Pause, now: Instant, by: str
) -> dict[str, str | None]:
    replicas, reason = current_replicas(kind, workload), pause.reason_text[: decision.REASON_CHARACTERS]
    counted = {} if replicas is None else {names.ORIGINAL_REPLICAS: str(replicas)}
    return dict.fromkeys(names.CLEARED_BY_PAUSE) | reading.fight(workload, now) | counted | {
        names.PAUSED_AT: units.rfc3339(now), names.PAUSED_BY: by, names.PAUSED_REASON: reason,
        names.PAUSED_GPUS: str(pause.finding.gpus), names.PAUSED_POLICY: pause.finding.rule.name,
    }


def _place_marks(pods: Iterable[cluster.Pod]) -> dict[str, str | None]:
    """Where it was: once its pods are gone nobody else knows what the pause gave back."""
    text = reading.write_nodes(pods)
    return {names.PAUSED_NODES: text} if text else {}


def current_replicas(kind: kinds.Kind, workload: cluster.Workload) -> int | None:
    """How many it has now; None for kinds that are not counted, and where the count is absent."""
    found = pointers.read(workload.body, kind.replica_path) if kind.replica_path else None
    return found if isinstance(found, int) else None


def _write_record(
    row: kinds.Kind, target: kinds.Target, written: Iterable[str], companions: tuple[record.CompanionName, ...] = (),
    *, is_void: bool = False,
) -> str:
    """`is_void`: a record that is there already counts for nothing."""
    short = target.ref.short
    if names.ORIGINAL_STATE in target.annotations and not is_void:
        earlier = "the record of an earlier pause, which is never overwritten"
        raise CannotWrite(Detail.RecordPresent, f"{short} still carries {earlier}")
    cleared = {name: target.annotations[name] for name in names.CLEARED_BY_PAUSE if name in target.annotations}
    made = record.Record(1, record.remember(target.body, written), companions, cleared)
    if fault := kinds.find_fault(row, made):  # what could not be put back is not taken away
        raise CannotWrite(Detail.UnsupportedField, f"{short} has {fault}")
    text = record.write(made)
    if (size := len(text.encode())) > RECORD_BYTES:
        because = f"the way back of {short} would take {size} bytes, more than {RECORD_BYTES}"
        raise CannotWrite(Detail.RecordTooLarge, because)
    return text


def _name(ref: cluster.Ref) -> record.CompanionName:
    return record.CompanionName(ref.api_version, ref.kind, ref.name)


def _as_fields(marks: Marks) -> dict[str, Any]:
    return {pointers.annotation(name): value for name, value in marks.items()}


def _conditional(
    target: kinds.Target, fields: Mapping[str, Any], shows: Mapping[str, Any] | None = None,
    manager: str = names.FIELD_MANAGER,
) -> Write:
    """A merge patch that only fits the very object, in the very version, that was looked at."""
    body = pointers.merge_patch(target.body, fields)
    body.setdefault("metadata", {}).update(uid=target.ref.uid, resourceVersion=target.resource_version)
    return Write(target.ref, body, shows or {}, manager=manager, is_sent_once=manager == names.FIELD_MANAGER)


def restored_fields(row: kinds.Kind, target: kinds.Target, found: record.Record) -> dict[str, Any]:
    """What stood there before; a parent that was absent goes again only if nobody else has put anything into it."""
    fields: dict[str, Any] = {}
    for pointer, value in found.fields.items():
        below = _leaves_below(row, pointer)
        if pointers.is_lost(target.body, pointer):
            continue  # a role that somebody removed meanwhile stays removed
        if value is None and below and not _is_only(pointers.read(target.body, pointer), pointer, below):
            fields |= dict.fromkeys(below)
        else:
            fields[pointer] = value
    return fields | dict(row.resumes)


def _leaves_below(row: kinds.Kind, pointer: str) -> list[str]:
    """What a pause of this row may have written further down."""
    path = pointers.parts(pointer)
    leading = [pointers.parts(pattern) for pattern in row.writes if pointers.leads_to(pointer, pattern)]
    return [pointers.join((*path, *wanted[len(path):])) for wanted in leading if len(wanted) > len(path)]


def _is_only(subtree: Any, pointer: str, leaves: Sequence[str]) -> bool:
    gone = pointers.merge_patch({}, {leaf.removeprefix(pointer): None for leaf in leaves})
    return not _has_leaf(pointers.apply_merge_patch(subtree, gone))


def _has_leaf(value: Any) -> bool:
    return any(_has_leaf(member) for member in value.values()) if isinstance(value, Mapping) else value is not None


def raise_replicas(
    kind: kinds.Kind, workload: cluster.Workload, fields: dict[str, Any], *floors: int | None
) -> dict[str, Any]:
    """At least what its autoscalers ask for: fewer would be corrected at once, and pods started twice."""
    path = kind.replica_path
    if path is None or not isinstance(fields.get(path), int):
        return fields
    least = [pointers.read(hpa.body, "/spec/minReplicas") for hpa in sure(workload.hpas)]
    return fields | {path: max(fields[path], *(floor for floor in (*least, *floors) if isinstance(floor, int)), 0)}


def resume_marks(
    kind: kinds.Kind, annotations: Mapping[str, str], now: Instant, by: str, remember: Mapping[str, str]
) -> dict[str, str | None]:
    """The pause forgotten, who ended it and when."""
    touched = {name: units.rfc3339(now) for name in kind.touches if name in annotations}
    ended = {names.RESUMED_AT: units.rfc3339(now), names.RESUMED_BY: by}
    return dict.fromkeys((*names.PAUSE_KEYS, names.RESUME_REQUESTED)) | touched | ended | dict(remember)


def resume_write(target: kinds.Target, fields: Mapping[str, Any], marks: Marks) -> Write:
    """One patch with the recorded fields and the end of the pause."""
    return _conditional(target, {**fields, **_as_fields(marks)}, fields, names.RESUME_FIELD_MANAGER)


def describe(fields: Mapping[str, Any]) -> str:
    """`/spec/replicas 3`, for people."""
    return ", ".join(f"{pointer} {'absent' if value is None else value}" for pointer, value in fields.items())


def undo_marks(found: record.Record) -> dict[str, str | None]:
    """The pause forgotten, as if it had never been asked for."""
    return {**dict.fromkeys(names.PAUSE_KEYS), **found.marks}


def restore_write(target: kinds.Target, fields: Mapping[str, Any]) -> Write:
    """The recorded fields alone: the record stays until the answer shows them."""
    return resume_write(target, fields, {})


def companion_refs(found: record.Record | None, namespace: str, row: kinds.Kind) -> list[cluster.Ref]:
    """The objects of that row that were changed for the pause; their uids are not recorded."""
    refs = (read_name(companion, namespace) for companion in (found.companions if found else ()))
    return [ref for ref in refs if is_of(row, ref)]


def read_name(companion: record.CompanionName, namespace: str) -> cluster.Ref:
    group, _, version = companion.api_version.rpartition("/")
    return cluster.Ref(group, version, companion.kind, namespace, companion.name, "")


def is_of(row: kinds.Kind, ref: cluster.Ref) -> bool:
    return (ref.group, ref.kind) == row.key and ref.version in row.versions


def release_operations(obj: Mapping[str, Any], written: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON patch that takes the fields of a pause out of our managedFields entries; [] if nothing of ours is there.

    As long as we own spec.replicas, a user's server-side apply with another number is a conflict with us. Only our own
    entries are tested and changed: right after a resume the status of the object changes all the time. From the last to
    the first, for removing one moves those behind it.
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
    parts = pointers.parts(pointer)  # lists we wrote, we give up as a whole
    crossing = next((index for index, part in enumerate(parts) if part.startswith("name=")), len(parts))
    return tuple(f"f:{part}" for part in parts[:crossing])


def _without(entry: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    is_ours = entry.get("manager") in (names.FIELD_MANAGER, names.RESUME_FIELD_MANAGER)
    if not is_ours or entry.get("subresource") == "status":
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
    if set(below) - {"."}:
        rest[path[0]] = below
    else:
        del rest[path[0]]
    return rest
