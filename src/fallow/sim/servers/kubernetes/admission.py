"""What stands between a request's object and the store: is it of the kind, known, valid, and what is added.

In: a Call and the object it wants to write. Out: the object to store and warnings, or a Refusal in its words.
Invariant: nothing reaches the store that the kind's schema does not have; the status of a kind that reports it
separately is changed only through /status, and then nothing else is.
"""

from typing import Any, TypeAlias

import msgspec

from fallow.model import pointers
from fallow.sim.servers.kubernetes import built_in, calls, events, refusals, schema

Object: TypeAlias = dict[str, Any]


def read_new(call: calls.Call) -> Object:
    """The body of a create or replace, and that it is what the address says."""
    body, kind, path = call.read_object(), call.kind, call.path
    given = body.get("apiVersion"), body.get("kind")
    if kind.is_custom and not given[1]:
        raise call.unrecognized("Object 'Kind' is missing")
    if given[1] not in (None, "", kind.kind) or given[0] not in (None, "", kind.api_version):
        version = str(given[0]).rpartition("/")[2]
        raise refusals.bad(f'{given[1]} in version "{version}" cannot be handled as a {kind.kind}: unknown conversion')
    metadata = {name: part for name, part in (body.get("metadata") or {}).items() if part is not None}
    if kind.namespaced:
        if metadata.setdefault("namespace", path.namespace) != path.namespace:
            raise refusals.bad("the namespace of the provided object does not match the namespace sent on the request")
    else:
        metadata.pop("namespace", None)
    return {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def check_name(call: calls.Call, obj: Object) -> None:
    name, asked = obj["metadata"].get("name"), call.path.name
    if not name:
        raise refusals.bad(f"the name of the object ({asked} based on URL) was undeterminable: name must be provided")
    if name != asked:
        raise refusals.bad(f"the name of the object ({name}) does not match the name on the URL ({asked})")


def admit(
    call: calls.Call, obj: Object, old: Object | None, *, is_patch: bool = False
) -> tuple[Object, tuple[str, ...]]:
    """The object as it will be stored, and warnings."""
    kind = call.kind
    if kind.group == events.GROUP:
        obj = events.to_core(obj)
    elif kind.home == ("", "Event"):
        obj = {**events.to_core({}), **obj}
    if not isinstance(obj.get("spec"), dict | None):
        raise _refuse_content(call, obj, "json: cannot unmarshal string into Go struct", is_patch)
    pruned, unknown = _drop_unknown(call, obj)
    validation, warnings = call.query.get("fieldValidation"), tuple(f'unknown field "{name}"' for name in unknown)
    if unknown and validation == "Strict":
        raise _refuse_content(call, obj, f"strict decoding error: {', '.join(warnings)}", is_patch)
    if fault := built_in.find_type_fault(pruned, custom=kind.is_custom):
        raise _refuse_content(call, obj, fault, is_patch)
    filled = _fill(call, pruned, old)
    faults = list(built_in.check(kind, filled))
    if kind.schema is not None:
        faults += [*schema.check(filled, kind.schema), *_check_scale(call, filled)]
    if faults:
        raise call.invalid(filled["metadata"].get("name") or "", *faults)
    return filled, () if validation == "Ignore" else warnings


def _drop_unknown(call: calls.Call, obj: Object) -> tuple[Object, list[str]]:
    if call.kind.schema is not None:
        unknown: list[str] = []
        pruned: Object = schema.prune(obj, call.kind.schema, unknown)
        return pruned, unknown
    unknown = built_in.find_unknown(call.kind.kind, obj)
    return built_in.drop_unknown(obj, unknown), unknown


def _fill(call: calls.Call, obj: Object, old: Object | None) -> Object:
    kind, part = call.kind, call.path.subresource
    if old is not None and part == "status":
        return {**old, "status": obj.get("status") or {}, "metadata": _only_managed(old, obj)}
    if "status" in kind.subresources and (old is not None or kind.is_custom):
        reported = {"status": old["status"]} if old is not None and "status" in old else {}
        obj = {name: member for name, member in obj.items() if name != "status"} | reported
    return obj if kind.is_custom else built_in.fill(kind, obj, is_new=old is None)


def _only_managed(old: Object, new: Object) -> Object:
    managed = new["metadata"].get("managedFields")
    return {**old["metadata"], **({"managedFields": managed} if managed else {})}


def _refuse_content(call: calls.Call, obj: Object, why: str, is_patch: bool) -> refusals.ApiRefusal:
    if is_patch:
        return refusals.bad_patch(msgspec.json.encode(obj).decode(), why)
    kind = call.kind.kind
    return refusals.bad(f'{kind} in version "{call.kind.version}" cannot be handled as a {kind}: {why}')


def _check_scale(call: calls.Call, obj: Object) -> list[built_in.Fault]:
    """A count that /scale shows must be one."""
    if call.kind.scale is None:
        return []
    count, field = pointers.read(obj, call.kind.scale.replicas), call.kind.scale.replicas.replace("/", ".")
    if isinstance(count, int) and count < 0:
        return [(field, "FieldValueInvalid", f"Invalid value: {count}: should be a non-negative integer")]
    if not isinstance(count, int | None):
        why = f"{field} accessor error: {count} is of the type string, expected int64"
        return [(field, "FieldValueInvalid", f"Invalid value: 0: {why}")]
    return []
