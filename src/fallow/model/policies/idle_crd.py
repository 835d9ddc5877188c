"""IdlePolicy objects: read into `policy.IdlePolicy`, defined for the API server by `crd()`, answered by `status()`.

In: an object as the API server gives it. Out: the policy, with a sentence in `invalid` for each thing that is wrong with it.
Invariant: `parse` never raises, and what cannot be read never makes a policy do more: a selector that cannot be read selects all, a
priority that cannot be read is the highest, and the action of an invalid policy is `report`. So a broken policy shields its workloads
from the policies below it instead of leaving them to those.
"""

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from fallow import names
from fallow.model import selectors, units, usage
from fallow.model.policies import idle
from fallow.model.policies import idle_fields as fields
from fallow.model.units import Instant

S = TypeVar("S", bound=msgspec.Struct)

_LONGEST_MESSAGE = 2048


# ---- reading --------------------------------------------------------------------------------------------------------------------


def parse(obj: Mapping[str, Any]) -> idle.IdlePolicy:
    """Never raises. What is wrong is said in `.invalid`, one sentence per field."""
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = str(metadata.get("name", ""))
    faults: list[str] = []
    spec = _read(fields.Spec, obj.get("spec"), "spec", faults) or fields.Spec()
    priority_is_known = not any(fault.startswith(("spec: ", "spec.priority: ")) for fault in faults)
    rule = _make_rule(name, spec)
    generation = metadata.get("generation")
    return idle.IdlePolicy(
        name=name,
        uid=str(metadata.get("uid", "")),
        generation=generation if isinstance(generation, int) else 0,
        rule=msgspec.structs.replace(rule, action=idle.Action()) if faults else rule,
        priority=spec.priority if priority_is_known else fields.HIGHEST_PRIORITY + 1,
        namespace_selector=_make_selector(spec.namespace_selector),
        workload_selector=_make_selector(spec.workload_selector),
        pod_selector=_make_selector(spec.pod_selector),
        namespaces=tuple(fields.compile_regex(text) for text in spec.namespaces),
        gpu_models=tuple(fields.compile_regex(text) for text in spec.gpu_models),
        classes=frozenset(spec.classes),
        invalid=tuple(faults),
    )


def _read(kind: type[S], value: Any, path: str, faults: list[str]) -> S | None:
    """The Struct, with the default where a field could not be read; None where it has no default."""
    if not isinstance(value, Mapping):
        faults.append(f"{path}: is missing" if value is None else f"{path}: is not a set of fields")
        return None
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    faults.extend(f"{path}.{_plain(key)}: there is no such field{_guess(str(key), known)}" for key in value if key not in known)
    read: dict[str, Any] = {}
    for key, field in known.items():
        if value.get(key) is not None:
            inside: list[str] = []
            got = _read_value(field.type, value[key], f"{path}.{key}", inside)
            faults.extend(inside)
            if got is not None and (not inside or isinstance(got, msgspec.Struct)):  # half a list would select other things than the whole
                read[field.name] = got
        elif field.required:
            faults.append(f"{path}.{key}: is missing")
    if any(field.required and field.name not in read for field in known.values()):
        return None
    made = kind(**read)
    if (law := fields.LAWS.get(kind)) and not law.holds(made):
        faults.append(f"{path}: {law.message}")
    return made


def _read_value(kind: Any, value: Any, path: str, faults: list[str]) -> Any:
    bare, notes = _unwrap(kind)
    for form in (note for note in notes if isinstance(note, fields.Form)):
        try:
            form.check(value)
        except ValueError as error:
            faults.append(f"{path}: {error}")
        return value
    if typing.get_origin(bare) is tuple:
        return _read_list(typing.get_args(bare)[0], notes, value, path, faults)
    if typing.get_origin(bare) is Mapping:
        return _read_mapping(typing.get_args(bare)[1], value, path, faults)
    return _read(bare, value, path, faults)


def _read_list(kind: Any, notes: tuple[Any, ...], value: Any, path: str, faults: list[str]) -> Any:
    bounds = _bounds(notes)
    if not isinstance(value, list | tuple):
        faults.append(f"{path}: is not a list")
    elif not bounds.get("minItems", 0) <= len(value) <= bounds["maxItems"]:
        faults.append(f"{path}: has {len(value)} entries, not {bounds.get('minItems', 0)} to {bounds['maxItems']}")
    else:
        return tuple(_read_value(kind, one, f"{path}[{index}]", faults) for index, one in enumerate(value))
    return None


def _read_mapping(kind: Any, value: Any, path: str, faults: list[str]) -> Any:
    if not isinstance(value, Mapping):
        faults.append(f"{path}: is not a set of names and values")
        return None
    if len(value) > fields.MOST_KEYS:
        faults.append(f"{path}: has {len(value)} entries, not 0 to {fields.MOST_KEYS}")
    return {key: _read_value(kind, one, f"{path}.{_plain(key)}", faults) for key, one in value.items()}


def _unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """`Annotated[X | None, notes]`, however nested, as (X, notes)."""
    if typing.get_origin(kind) is Annotated:
        bare, notes = _unwrap(kind.__origin__)
        return bare, notes + kind.__metadata__
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _unwrap(next(one for one in typing.get_args(kind) if one is not type(None)))
    return kind, ()


def _bounds(notes: tuple[Any, ...]) -> dict[str, Any]:
    return {key: value for note in notes if isinstance(note, dict) for key, value in note.items()}


def _plain(key: object) -> str:
    """A key as somebody wrote it, on one line."""
    text = str(key)
    return text if text.isprintable() else ascii(text)


def _guess(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


# ---- from what is written to what is meant ---------------------------------------------------------------------------------------


def _make_rule(name: str, spec: fields.Spec) -> idle.Rule:
    seconds, ratio = units.parse_duration, units.parse_ratio
    return idle.Rule(
        name=name,
        gone_idle=seconds(spec.windows.gone_idle),
        never_used=seconds(spec.windows.never_used or spec.windows.gone_idle),
        grace=seconds(spec.windows.grace),
        activity=ratio(spec.thresholds.activity),
        coverage=ratio(spec.thresholds.coverage),
        max_sample_age=seconds(spec.thresholds.max_sample_age),
        idle_gpu_fraction=ratio(spec.thresholds.idle_gpu_fraction),
        power_watts=spec.thresholds.power_watts,
        power_floor=spec.thresholds.power_floor == "auto",
        disabled_signals=frozenset(spec.signals.disable),
        kinds=frozenset(spec.kinds) or None,
        notice=_make_notice(spec.notice),
        consent=_make_consent(spec.consent),
        action=_make_action(spec.action),
        max_actions_per_cycle=spec.limits.max_actions_per_cycle,
        max_percent_per_hour=spec.limits.max_percent_per_hour,
        active_slots=tuple(_make_slot(slot) for slot in spec.schedule.active),
        freeze_slots=tuple(_make_slot(slot) for slot in spec.schedule.freeze),
        auto_widen=spec.regret.auto_widen,
        regret_threshold=ratio(spec.regret.threshold),
    )


def _make_notice(notice: fields.Notice) -> idle.Notice:
    channels = tuple(idle.Channel(name=channel.name, type=channel.type) for channel in notice.channels)
    return idle.Notice(notice.required, units.parse_duration(notice.grace), notice.require_all, channels)


def _make_consent(consent: fields.Consent) -> idle.Consent:
    return idle.Consent(
        max_ack=units.parse_duration(consent.max_ack),
        buttons=consent.buttons,
        allow_opt_out=consent.allow_opt_out,
        immunity=units.parse_duration(consent.immunity),
        slack_users=consent.slack_users,
        slack_groups=consent.slack_groups,
    )


def _make_action(action: fields.Action) -> idle.Action:
    wire = {key: getattr(action, key) for key in action.__struct_fields__ if key not in ("type", "look_past", "hook")}
    hook = idle.Hook(units.parse_duration(action.hook.timeout), typing.cast(Any, action.hook.on_failure))
    return idle.Action(type=idle.ActionType(action.type), look_past=frozenset(action.look_past), hook=hook, **wire)


def _make_slot(slot: fields.Slot) -> idle.Slot:
    days = frozenset(fields.DAYS.index(day) for day in slot.days)
    return idle.Slot(days, _minute(slot.start), _minute(slot.end), slot.time_zone)


def _minute(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def _make_selector(selector: fields.LabelSelector) -> selectors.Selector:
    expressions = tuple((one.key, one.operator, one.values) for one in selector.match_expressions)
    return selectors.Selector(match_labels=selector.match_labels, match_expressions=expressions)


# ---- the definition for the API server -------------------------------------------------------------------------------------------


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    plural = f"{names.POLICY_PLURAL}.{names.GROUP}"
    kind = names.POLICY_KIND
    naming = {"kind": kind, "listKind": f"{kind}List", "plural": names.POLICY_PLURAL, "singular": kind.lower(), "shortNames": ["idp"]}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": plural},
        "spec": {"group": names.GROUP, "names": naming, "scope": "Cluster", "versions": [_version()]},
    }
    return _make_plain(definition)


def _make_plain(content: dict[str, Any]) -> dict[str, Any]:
    """Dicts and lists as JSON has them, and the caller's own: forms are shared between fields."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
    return plain


def _version() -> dict[str, Any]:
    schema = {
        "type": "object",
        "description": "How idle GPU workloads are judged, whom to tell, and what may be done.",
        "required": ["spec"],
        "properties": {"spec": _describe_struct(fields.Spec), "status": _describe_struct(fields.Status)},
    }
    return {
        "name": names.POLICY_VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "Priority", "type": "integer", "jsonPath": ".spec.priority"},
            {"name": "Action", "type": "string", "jsonPath": ".spec.action.type"},
            {"name": "Idle", "type": "integer", "jsonPath": ".status.idleWorkloads"},
            {"name": "Paused", "type": "integer", "jsonPath": ".status.pausedWorkloads"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {"openAPIV3Schema": schema},
    }


def _describe_struct(kind: type[msgspec.Struct]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    known = msgspec.structs.fields(kind)
    if required := [field.encode_name for field in known if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _describe_field(field) for field in known}
    if law := fields.LAWS.get(kind):
        schema["x-kubernetes-validations"] = [{"rule": law.cel, "message": law.message}]
    return schema


def _describe_field(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = _describe(field.type)
    if isinstance(field.default, msgspec.Struct):
        if any("default" in inner for inner in schema["properties"].values()):
            schema["default"] = {}  # the API server then fills in the defaults within
    elif field.default is not msgspec.NODEFAULT and field.default not in (None, ()):
        schema["default"] = msgspec.to_builtins(field.default)
    return schema


def _describe(kind: Any) -> dict[str, Any]:
    bare, notes = _unwrap(kind)
    description = next((note for note in notes if isinstance(note, str)), None)
    described: dict[str, Any] = {"description": description} if description else {}
    form = next((note for note in notes if isinstance(note, fields.Form)), None)
    if form is not None:
        return described | dict(form.schema)
    if typing.get_origin(bare) is tuple:
        items = _describe(typing.get_args(bare)[0])
        return described | {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"} | _bounds(notes)
    if typing.get_origin(bare) is Mapping:
        inner = _describe(typing.get_args(bare)[1])
        return described | {"type": "object", "additionalProperties": inner, "maxProperties": fields.MOST_KEYS}
    return described | _describe_struct(bare)


# ---- the answer ------------------------------------------------------------------------------------------------------------------


def status(
    of: idle.IdlePolicy,
    tally: idle.Tally,
    *,
    previous: Mapping[str, Any],
    trouble: usage.SourceTrouble | None,
    frozen_until: Instant | None,
    frozen_because: str,
    now: Instant,
) -> dict[str, Any]:
    """The merge patch for the status subresource. `previous` is the status as it stands: a condition keeps its time while it holds."""
    conditions = (
        ("Ready", *_tell_ready(of)),
        ("DataHealthy", *_tell_data(trouble)),
        ("Frozen", *_tell_freeze(frozen_until, frozen_because, now)),
    )
    soonest = sorted(tally.next_actions, key=lambda action: action.at)[: fields.MOST_NEXT_ACTIONS]
    written = fields.Status(
        observed_generation=of.generation,
        matched_workloads=tally.matched_workloads,
        idle_workloads=tally.idle_workloads,
        idle_gpus=tally.idle_gpus,
        paused_workloads=tally.paused_workloads,
        acknowledged_workloads=tally.acknowledged_workloads,
        pauses_7d=tally.pauses_7d,
        regrets_7d=tally.regrets_7d,
        effective_gone_idle=None if tally.effective_gone_idle is None else units.humane(tally.effective_gone_idle),
        saved_gpu_hours=tally.saved_gpu_hours,
        last_evaluation_time=units.rfc3339(now),
        next_actions=tuple(fields.NextAction(one.kind, one.namespace, one.name, units.rfc3339(one.at)) for one in soonest),
        conditions=tuple(_make_condition(said, of.generation, previous, now) for said in conditions),
    )
    return _make_plain({"status": written})


def _tell_ready(of: idle.IdlePolicy) -> tuple[str, str, str]:
    if of.invalid:
        return "False", "Invalid", "; ".join(of.invalid)
    return "True", "Valid", "every field was understood"


def _tell_data(trouble: usage.SourceTrouble | None) -> tuple[str, str, str]:
    if trouble is not None:
        return "False", trouble.reason, trouble.because
    return "True", "Measured", "the source of the measurements answered"


def _tell_freeze(until: Instant | None, because: str, now: Instant) -> tuple[str, str, str]:
    if until is not None and until > now:
        return "True", "Frozen", f"no notice or pause until {units.rfc3339(until)}: {because}"
    return "False", "NotFrozen", "notices and pauses are allowed"


def _make_condition(said: tuple[str, str, str, str], generation: int, previous: Mapping[str, Any], now: Instant) -> fields.Condition:
    kind, holds, reason, message = said
    before: Mapping[str, Any] = next((one for one in previous.get("conditions") or () if one.get("type") == kind), {})
    since = before.get("lastTransitionTime") if before.get("status") == holds else None
    return fields.Condition(kind, holds, reason, message[:_LONGEST_MESSAGE], since or units.rfc3339(now), generation)
