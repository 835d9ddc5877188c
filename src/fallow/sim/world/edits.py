"""How a write lands on an object where there is no API server: merge patches, the version, and the ways back.

In: objects as plain JSON, and the very Writes that the hands would send (act/workloads). Out: new objects.
Invariant: what is refused by a server for its uid or resourceVersion is refused here too.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from fallow import names
from fallow.act import marking
from fallow.act.workloads import bodies
from fallow.model import cluster, decision, kinds, pointers, record, units
from fallow.model.seen import ABSENT
from fallow.model.units import Instant
from fallow.sim.world import shapes

Object: TypeAlias = dict[str, Any]


class Refused(Exception):
    """The write was meant for another object, or for an older version of it."""


def see(thing: Object) -> cluster.Workload:
    """As the eyes would see it, without its pods. Marks that belong on a Deployment below it the world keeps here."""
    group, _, version = str(thing["apiVersion"]).rpartition("/")
    meta = thing["metadata"]
    ref = cluster.Ref(group, version, thing["kind"], meta["namespace"], meta["name"], meta["uid"])
    row, marks = kinds.find(group, thing["kind"]), meta.get("annotations") or {}
    holder, said = ref, marks
    if row and row.marks_on:
        lower, kind = row.marks_on
        holder = cluster.Ref(lower, "v1", kind, ref.namespace, f"{ref.name}-predictor", f"{ref.uid}-1")
        said = {key: value for key, value in marks.items() if key not in (*names.ACK_KEYS, *names.PENDING_KEYS)}
    return cluster.Workload(
        ref=ref, resource_version=meta["resourceVersion"], labels=meta.get("labels") or {}, annotations=said,
        body=pointers.prune(thing, row.reads) if row else {}, pods=(), chain=(), chain_bodies=(), trouble=None,
        trouble_because="", marks_ref=holder, marks=marks, hpas=ABSENT, scaled_objects=ABSENT, kueue=ABSENT,
        budgets=ABSENT,
    )


def apply(thing: Object, patch: Mapping[str, Any]) -> Object:
    """What a server would make of this merge patch."""
    meta, asked = thing["metadata"], patch.get("metadata") or {}
    for field in ("uid", "resourceVersion"):
        if field in asked and asked[field] != meta[field]:
            raise Refused(f"{thing['kind']}/{meta['name']} has {field} {meta[field]}, not {asked[field]}")
    changed: Object = pointers.apply_merge_patch(thing, patch)
    changed["metadata"] = {**changed["metadata"], "resourceVersion": str(int(meta["resourceVersion"]) + 1)}
    return changed


def annotate(thing: Object, changes: Mapping[str, str | None]) -> Object:
    return apply(thing, {"metadata": {"annotations": dict(changes)}})


def pause(thing: Object, act: decision.Pause, now: Instant) -> Object:
    """The pause with its way back, as the hands would send it."""
    workload = see(thing)
    for write in bodies.pause_writes(workload, _row(workload), act, now):
        thing = apply(thing, write.body)
    return thing


def resume(thing: Object, now: Instant, by: str) -> Object:
    """`fallow resume`: the recorded state, and who asked. Without a record nothing is changed."""
    workload, fields = see(thing), _find_former(thing)
    if fields is None:
        return thing
    row = _row(workload)
    marks = bodies.resume_marks(row, workload.annotations, now, by, {})
    return apply(thing, bodies.resume_write(kinds.record_target(row, workload), fields, marks).body)


def undo(thing: Object) -> Object:
    """What a person does by hand: the old values back, and not a word to us."""
    fields = _find_former(thing)
    return thing if fields is None else apply(thing, pointers.merge_patch(thing, fields))


def _find_former(thing: Object) -> dict[str, Any] | None:
    """The fields as they were before the pause; None without a record."""
    workload = see(thing)
    found, row = record.read(workload.annotations.get(names.ORIGINAL_STATE)), _row(workload)
    if found is None:
        return None
    return bodies.restored_fields(row, kinds.record_target(row, workload), found)


def acknowledge(thing: Object, now: Instant, hours: float, by: str) -> Object:
    mark = marking.ack_mark(see(thing), until=now + hours * units.HOUR, by=by, reason="still needed", now=now)
    return annotate(thing, mark.changes)


def has_stopped(thing: Object) -> bool:
    """Would its operator take all its pods away?"""
    return shapes.wanted(thing) == 0


def _row(workload: cluster.Workload) -> kinds.Kind:
    row = kinds.of(workload)
    if row is None:
        raise Refused(f"there is no way to pause a {workload.ref.kind}")
    return row
