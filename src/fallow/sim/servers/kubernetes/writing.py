"""Create, replace, patch, apply and delete; /status and /scale; eviction.

In: a Call. Out: an Answer, or a Refusal. Each is one synchronous stretch: nobody sees half a write.
Invariant: a write that names a uid or a resourceVersion is done on that very object, in that very version, or not at
all; a dry run answers as if, and leaves nothing behind.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from fallow.model import pointers, units
from fallow.sim.servers import ownership
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import admission, calls, catalogue, patches, reading, refusals, subresources

Object: TypeAlias = dict[str, Any]
Clock: TypeAlias = Callable[[], float]

_MERGE, _JSON = "application/merge-patch+json", "application/json-patch+json"
_STRATEGIC, _APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_MADE_BY_PUT = ("Lease", "Event")
_SHOWN_WHEN_DELETED = ("Pod", "Namespace")
_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class ObjectWriter:
    """Where writes are taken in."""

    def __init__(self, store: stores.Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def create(self, call: calls.Call) -> calls.ApiAnswer:
        obj = admission.read_new(call)
        if obj["metadata"].get("resourceVersion"):
            raise refusals.ApiRefusal(500, "resourceVersion should not be set on objects to be created")
        return self._create(call, obj)

    def _create(self, call: calls.Call, obj: Object) -> calls.ApiAnswer:
        kind, namespace = call.kind, call.path.namespace
        if kind.namespaced and self._store.find(stores.Key("", "Namespace", "", namespace)) is None:
            raise refusals.absent("namespaces", "", namespace)
        admitted, warnings = admission.admit(call, self._store.name(obj), None)
        try:
            made = self._store.create(admitted, _writer(call))
        except stores.Exists:
            raise refusals.exists(kind.plural, kind.group, admitted["metadata"]["name"]) from None
        return calls.ApiAnswer(reading.represent(call, made, self._clock()), 201, warnings)

    def replace(self, call: calls.Call) -> calls.ApiAnswer:
        obj = admission.read_new(call)
        admission.check_name(call, obj)
        found = reading.find(call, self._store)
        if found is None:
            if call.kind.kind not in _MADE_BY_PUT or call.path.subresource:
                raise call.refuse_absent()
            return self._create(call, obj)
        self._check_version(call, obj, found)
        _check_uid(call, obj["metadata"].get("uid"), found)
        return self._store_changed(call, found, obj)

    def _check_version(self, call: calls.Call, obj: Object, found: stores.Entry) -> None:
        kind, version = call.kind, obj["metadata"].get("resourceVersion")
        if not version and (kind.is_custom or kind.kind in ("Lease", "CustomResourceDefinition")):
            why = "Invalid value: 0: must be specified for an update"
            fault = ("metadata.resourceVersion", "FieldValueInvalid", why)
            raise refusals.invalid(kind.plural, kind.group, call.path.name, [fault])
        if version and version != found.object["metadata"]["resourceVersion"]:
            raise call.refuse_conflict()

    def patch(self, call: calls.Call) -> calls.ApiAnswer:
        allowed = (_MERGE, _JSON, _APPLY) if call.kind.is_custom else (_MERGE, _JSON, _APPLY, _STRATEGIC)
        if call.content_type not in allowed:
            raise refusals.unknown_format(*allowed)
        if call.content_type == _APPLY:
            return self._apply(call)
        found = reading.get(call, self._store)
        live = json.loads(reading.encode(call.kind, found))
        changed = _apply_patch(call, live)
        if not isinstance(changed.get("metadata"), dict):
            why = "json: cannot unmarshal into Go struct field of type ObjectMeta: metadata"
            raise refusals.bad_patch(json.dumps(changed), why)
        if changed.get("kind") != live["kind"] or changed.get("apiVersion") != live["apiVersion"]:
            raise refusals.bad_patch(json.dumps(changed), f"converting to ({call.kind.kind}): unknown conversion")
        admission.check_name(call, changed)
        self._check_identity(call, changed["metadata"], found)
        return self._store_changed(call, found, changed, is_patch=True)

    def _check_identity(self, call: calls.Call, metadata: Mapping[str, Any], found: stores.Entry) -> None:
        known = found.object["metadata"]
        version, uid = metadata.get("resourceVersion"), metadata.get("uid")
        if version and not str(version).isdecimal():
            raise refusals.ApiRefusal(500, f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if version and version != known["resourceVersion"]:
            raise call.refuse_conflict()
        if uid and uid != known["uid"]:
            fault = ("metadata.uid", "FieldValueInvalid", f'Invalid value: "{uid}": field is immutable')
            raise call.invalid(call.path.name, fault, fault)

    def _apply(self, call: calls.Call) -> calls.ApiAnswer:
        applied = self._read_applied(call)
        found = reading.find(call, self._store)
        if found is None and call.path.subresource:
            raise call.refuse_absent()
        live = json.loads(reading.encode(call.kind, found)) if found else {}
        try:
            merged = ownership.apply(
                live, applied, call.manager, time=units.rfc3339(self._clock()), custom=call.kind.is_custom,
                force=call.query.get("force") in ("true", "1"), subresource=call.path.subresource,
            )
        except ownership.Conflicts as conflicts:
            raise refusals.field_conflicts(conflicts.fields) from None
        if found is None:
            return self._create(call, merged)
        self._check_identity(call, merged["metadata"], found)
        return self._store_changed(call, found, merged, is_owned=True)

    def _read_applied(self, call: calls.Call) -> Object:
        if "fieldManager" not in call.query:
            fault = ("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
            raise refusals.invalid("PatchOptions", "meta.k8s.io", "", [fault])
        body = call.read_object()
        if (body.get("apiVersion"), body.get("kind")) != (call.kind.api_version, call.kind.kind):
            group, _, version = str(body.get("apiVersion") or "").rpartition("/")
            raise refusals.bad(f"invalid object type: {group}/{version}, Kind={body.get('kind') or ''}")
        metadata = dict(body.get("metadata") or {})
        if metadata.get("managedFields"):
            raise refusals.bad("metadata.managedFields must be nil")
        if reading.find(call, self._store) is None:
            admission.check_name(call, {"metadata": metadata})
        identity = {"name": call.path.name} | ({"namespace": call.path.namespace} if call.kind.namespaced else {})
        return {**body, "metadata": metadata | identity}

    def _store_changed(
        self, call: calls.Call, found: stores.Entry, obj: Object, *, is_patch: bool = False, is_owned: bool = False
    ) -> calls.ApiAnswer:
        admitted, warnings = admission.admit(call, obj, found.object, is_patch=is_patch)
        written = self._store.write(found.key, admitted, _writer(call), is_owned=is_owned)
        return calls.ApiAnswer(reading.represent(call, written, self._clock()), 200, warnings)

    def read_scale(self, call: calls.Call, scale: catalogue.Scale) -> calls.ApiAnswer:
        return _answer(subresources.show_scale(reading.get(call, self._store), scale))

    def write_scale(self, call: calls.Call, scale: catalogue.Scale) -> calls.ApiAnswer:
        found = reading.get(call, self._store)
        shown = subresources.show_scale(found, scale)
        wanted = call.read_object() if call.method == "PUT" else _apply_patch(call, shown)
        replicas = subresources.read_scale(call, wanted)
        metadata, known = wanted.get("metadata") or {}, found.object["metadata"]
        if (version := metadata.get("resourceVersion")) and version != known["resourceVersion"]:
            raise call.refuse_conflict()
        if not call.kind.is_custom:  # there, the real one does not look
            _check_uid(call, metadata.get("uid"), found)
        changed = pointers.replace(found.object, pointers.parts(scale.replicas), replicas)
        admitted, _ = admission.admit(call, changed, found.object)
        if not replicas:  # a Scale leaves out a 0, so whoever asks for it owns nothing
            admitted = ownership.disown(admitted, pointers.parts(scale.replicas))
        written = self._store.write(found.key, admitted, _writer(call), is_owned=not replicas)
        return _answer(subresources.show_scale(written, scale))

    def delete(self, call: calls.Call) -> calls.ApiAnswer:
        found = reading.get(call, self._store)
        gone = self._delete(call, found, call.read_object())
        if call.kind.kind in _SHOWN_WHEN_DELETED or gone.object["metadata"].get("finalizers"):
            return calls.ApiAnswer(reading.encode(call.kind, gone))
        kind, uid = call.kind, gone.object["metadata"]["uid"]
        return _answer({**_SUCCESS, "details": refusals.details(call.path.name, kind.group, kind.plural, uid=uid)})

    def delete_all(self, call: calls.Call, reader: reading.ObjectReader) -> calls.ApiAnswer:
        options = call.read_object()
        listed = reader.list(call, self._clock())
        for entry in reader.choose(call)[1]:
            self._delete(call, entry, options)
        return calls.ApiAnswer(listed)

    def _delete(self, call: calls.Call, found: stores.Entry, options: Mapping[str, Any]) -> stores.Entry:
        guards = options.get("preconditions") or {}
        policy = options.get("propagationPolicy") or call.query.get("propagationPolicy")
        orphan = policy == "Orphan" or bool(options.get("orphanDependents"))
        writer = stores.Writer(
            call.manager, uid=guards.get("uid"), version=guards.get("resourceVersion"),
            dry_run=call.is_dry or bool(options.get("dryRun")),
        )
        try:
            return self._store.delete(found.key, writer, orphan=orphan)
        except stores.Overtaken as overtaken:
            raise _refuse_delete(call.kind, found.key.name, overtaken) from None

    def evict(self, call: calls.Call) -> calls.ApiAnswer:
        found = reading.get(call, self._store)
        options = call.read_object().get("deleteOptions") or {}
        subresources.check_budgets(self._store, found)
        uid = (options.get("preconditions") or {}).get("uid")
        self._delete(call, found, {"preconditions": {"uid": uid}, "dryRun": options.get("dryRun")})
        return _answer({**_SUCCESS, "code": 201}, 201)


def _answer(thing: Object, code: int = 200) -> calls.ApiAnswer:
    return calls.ApiAnswer(msgspec.json.encode(thing), code)


def _writer(call: calls.Call) -> stores.Writer:
    return stores.Writer(call.manager, call.path.subresource, dry_run=call.is_dry)


def _check_uid(call: calls.Call, uid: str | None, found: stores.Entry) -> None:
    known = found.object["metadata"]["uid"]
    if uid and uid != known:
        raise call.refuse_conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}")


def _apply_patch(call: calls.Call, live: Object) -> Object:
    body = call.read()
    if call.content_type == _JSON:
        try:
            return patches.json_patch(live, body)
        except patches.Unfit:
            raise refusals.unfit_patch() from None
    if not isinstance(body, dict):
        why = "json: cannot unmarshal array into Go value of type map[string]interface {}"
        raise refusals.bad(f"error decoding patch: {why}")
    merge = patches.strategic if call.content_type == _STRATEGIC else pointers.apply_merge_patch
    changed: Object = merge(live, body)
    return changed


def _refuse_delete(kind: catalogue.ServedKind, name: str, overtaken: stores.Overtaken) -> refusals.ApiRefusal:
    is_uid = overtaken.field == "uid"
    word, since = ("UID", "deleted and then recreated") if is_uid else ("ResourceVersion", "modified")
    why = f"the {word} in the precondition ({overtaken.asked}) does not match the {word} in record ({overtaken.found})."
    return refusals.conflict(kind.kind, kind.group, name, f"{why} The object might have been {since}")
