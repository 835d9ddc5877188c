"""Custom resources from structs: a schema for the API server, objects read with a sentence for each fault, conditions.

A field is `Annotated[type, form, description]`; a list also has its bounds, and what this version does not do yet its
NotYet. What must hold between the fields of a struct is its `law`, or are its `laws`. Values stay as people write them
(`30m`, `"0.8"`): what they mean is made by the module of each resource (idle_crd.py), which holds its fields and
nothing of this.
In: structs, and objects as the API server gives them. Out: definitions; what was read, and what is wrong with it.
Invariant: schema and reader are made from the same lines; reading never raises, and a fault leaves the default.
Pure, but for one thing: a time zone is looked up in the zone database of the machine.
"""

import difflib
import functools
import re
import types
import typing
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from fallow import names
from fallow.model import patterns, units
from fallow.model.units import Instant, Seconds

S = TypeVar("S", bound=msgspec.Struct)
N = TypeVar("N")
C = TypeVar("C", bound="PolicyCondition")

MOST_KEYS = 64
_LONGEST_TEXT = 4096
_LONGEST_MESSAGE = 2048
_LONGEST: Seconds = 366 * units.DAY  # beyond it somebody mistyped, and no metrics reach back that far


# ---- what may stand in a field: a schema for the API server, and a check that says it in our own sentence ------------


class Form(msgspec.Struct, frozen=True, eq=False):
    """How one value is written. `check` raises ValueError with the rest of a sentence that begins with the field."""

    schema: Mapping[str, Any]
    check: Callable[[Any], object]


class NotYet(msgspec.Struct, frozen=True):
    """Of a field that does nothing in this version: any value but its default, and those that `work`, is refused."""

    because: str
    works: tuple[Any, ...] = ()


class Law(msgspec.Struct, frozen=True):
    """What must hold between fields: for the API server in CEL, for us in Python. `at`: the field that it is said of;
    "": the struct."""

    cel: str
    message: str
    holds: Callable[[Any], bool]
    at: str = ""


def text(pattern: str, most: int, such_as: str, check: Callable[[str], object] = str) -> Form:
    def check_text(value: Any) -> None:
        if not isinstance(value, str) or len(value) > most or not re.fullmatch(pattern, value):
            raise ValueError(f"{_show(value)} is not {such_as}")
        check(value)

    return Form({"type": "string", "pattern": f"^{pattern}$", "maxLength": most}, check_text)


def duration(least: str) -> Form:
    def check_length(text: str) -> None:
        if not units.parse_duration(least) <= units.parse_duration(text) <= _LONGEST:
            raise ValueError(f"{text!r} is not between {least} and {units.humane(_LONGEST)}")

    part = r"([0-9]+(\.[0-9]+)?|\.[0-9]+)(ns|us|µs|ms|s|m|h|d)"
    return text(rf"(0|({part})+)", 32, "a duration such as 90s, 30m, 1h30m or 7d", check_length)


def ratio(*, above_zero: bool) -> Form:
    def check_ratio(text: str) -> None:
        if units.parse_ratio(text) == 0 and above_zero:
            raise ValueError(f"{text!r} is not above 0")

    such_as = 'a ratio between 0 and 1 in quotes, such as "0.8"'
    return text(r"(0(\.[0-9]+)?|1(\.0+)?|\.[0-9]+)", 16, such_as, check_ratio)


def integer(least: int, most: int) -> Form:
    def check_integer(value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{_show(value)} is not a whole number from {least} to {most}")

    return Form({"type": "integer", "minimum": least, "maximum": most}, check_integer)


def one_of(*words: str) -> Form:
    def check_word(value: Any) -> None:
        if value not in words:
            # YAML reads a bare `off` as false, and people then wonder which false is meant.
            hint = "; write 'off' in quotes" if value is False and "off" in words else ""
            raise ValueError(f"{_show(value)} is not one of {', '.join(words)}{hint}")

    return Form({"type": "string", "enum": list(words)}, check_word)


def _check_flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{_show(value)} is not true or false")


def _check_string(value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:  # may hold a secret: not shown
        raise ValueError(f"is not a string of at most {_LONGEST_TEXT} characters")


def _check_moment(value: Any) -> None:
    _check_string(value)
    units.parse_instant(value)


def _check_zone(text: str) -> None:
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: `America` is a folder
        raise ValueError(f"{text!r} is not a known IANA time zone such as Europe/Berlin") from None


def compile_regex(text: str) -> patterns.Pattern:
    try:
        return patterns.compile_pattern(text)
    except ValueError as problem:
        raise ValueError(f"{_show(text)} is not a regular expression (RE2): {problem}") from None


def _check_regex(value: Any) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= 512:
        raise ValueError(f"{_show(value)} is not a regular expression of 1 to 512 characters")
    compile_regex(value)


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
Flag = Annotated[bool, Form({"type": "boolean"}, _check_flag)]
Text = Annotated[str, Form({"type": "string", "maxLength": _LONGEST_TEXT}, _check_string)]
Duration = Annotated[str, duration("0s")]
Timeout = Annotated[str, duration("1s")]
Window = Annotated[str, duration("1m")]
Ratio = Annotated[str, ratio(above_zero=False)]
Share = Annotated[str, ratio(above_zero=True)]
Regex = Annotated[str, Form({"type": "string", "minLength": 1, "maxLength": 512}, _check_regex)]
KindName = Annotated[
    str, text(r"[A-Z][A-Za-z0-9]*(\.[a-z0-9][-a-z0-9.]*)?", 253, "a kind such as Deployment or Rollout.argoproj.io")
]
Clock = Annotated[str, text(_CLOCK, 5, "a time of day such as '08:30', in quotes")]
ClockOrMidnight = Annotated[str, text(rf"({_CLOCK}|24:00)", 5, "a time of day such as '17:00' or '24:00', in quotes")]
Zone = Annotated[
    str, text(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", 64, "an IANA time zone such as Europe/Berlin", _check_zone)
]
Name = Annotated[str, text(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", 63, "a name of lower case letters, digits and dashes")]
LabelKey = Annotated[str, text(rf"([a-z0-9][-a-z0-9.]*/)?{_LABEL}", 317, "a label key")]
LabelValue = Annotated[str, text(rf"({_LABEL})?", 63, "a label value")]
Count = Annotated[int, Form({"type": "integer", "format": "int64"}, integer(0, 2**53).check)]
Number = Annotated[float, Form({"type": "number"}, float)]
Moment = Annotated[str, Form({"type": "string", "format": "date-time"}, _check_moment)]


# ---- structs that several resources have -----------------------------------------------------------------------------

Operator = Annotated[str, one_of("In", "NotIn", "Exists", "DoesNotExist")]


class ExpressionSpec(msgspec.Struct, frozen=True):
    key: Annotated[LabelKey, "Label key."]
    operator: Annotated[Operator, "How the label is compared with the values."]
    values: Annotated[tuple[LabelValue, ...], {"maxItems": 64}, "Values for In and NotIn."] = ()

    law: ClassVar = Law(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "In and NotIn need values, Exists and DoesNotExist take none",
        lambda expression: (expression.operator in ("In", "NotIn")) == bool(expression.values),
    )


class SelectorSpec(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: Annotated[Mapping[str, LabelValue], "Labels that must be there, with these values."] = {}
    match_expressions: Annotated[tuple[ExpressionSpec, ...], {"maxItems": 32}, "Conditions that must all hold."] = ()


class SecretRef(msgspec.Struct, frozen=True):
    name: Annotated[Name, "Secret in the controller's own namespace."]
    key: Annotated[Text, "Key in that Secret."]


class PolicyCondition(msgspec.Struct, frozen=True, rename="camel"):
    """Of a status. Each resource has its own, with its own set of types."""

    type: Annotated[str, "What is said."]
    status: Annotated[str, one_of("True", "False", "Unknown"), "Whether it holds."]
    reason: Annotated[Text, "Why, in one word."]
    message: Annotated[Text, "Why, in a sentence."]
    last_transition_time: Annotated[Moment, "Since when."]
    observed_generation: Annotated[Count, "For which generation of the policy."]


def conditions(
    kind: type[C], said: Mapping[str, tuple[str, str, str]], generation: int, previous: Mapping[str, Any], now: Instant
) -> tuple[C, ...]:
    """`said`: type -> status, reason, message. While one holds it keeps the time it has in `previous`."""
    before = {(one.get("type"), one.get("status")): one for one in previous.get("conditions") or ()}
    made = []
    for type_, (status, reason, message) in said.items():
        since = before.get((type_, status), {}).get("lastTransitionTime") or units.rfc3339(now)
        made.append(kind(type_, status, reason, message[:_LONGEST_MESSAGE], since, generation))
    return tuple(made)


def keyed(by: str) -> dict[str, Any]:
    """The bounds of a short list in which each entry has a name of its own."""
    return {"maxItems": 8, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [by]}


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts and lists as JSON has them, and the caller's own: forms are shared between fields."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
    return made


# ---- reading ---------------------------------------------------------------------------------------------------------


class FieldFault(NamedTuple):
    path: str
    because: str

    def __str__(self) -> str:
        return f"{self.path}: {self.because}"


class Written(msgspec.Struct, Generic[S], frozen=True):
    """An object as it was read, with the default wherever a field could not be, and a fault for each of these."""

    name: str
    uid: str
    generation: int
    spec: S
    faults: tuple[FieldFault, ...]


def read(kind: type[S], obj: Mapping[str, Any]) -> Written[S]:
    """Never raises. `kind` is the struct of the spec; all its fields have a default."""
    metadata = found if isinstance(found := obj.get("metadata"), Mapping) else {}
    name, uid, generation = metadata.get("name", ""), metadata.get("uid", ""), metadata.get("generation")
    faults: list[FieldFault] = []
    spec = _read_struct(kind, obj.get("spec"), "spec", faults) or kind()
    return Written(str(name), str(uid), generation if isinstance(generation, int) else 0, spec, tuple(faults))


def _read_struct(kind: type[S], value: Any, path: str, faults: list[FieldFault]) -> S | None:
    """The Struct, with the default where a field could not be read; None where it has no default."""
    if not isinstance(value, Mapping):
        faults.append(FieldFault(path, "is missing" if value is None else "is not a set of fields"))
        return None
    before, known = len(faults), _fields(kind)
    strange = {f"{path}.{_plain(key)}": _guess(str(key), known) for key in value if key not in known}
    faults.extend(FieldFault(where, f"there is no such field{guess}") for where, guess in strange.items())
    got: dict[str, Any] = {}
    for key, field in known.items():
        if value.get(key) is not None:
            found = _read_field(field, value[key], f"{path}.{key}", faults)
            got |= {} if found is None else {field.name: found}
        elif field.required:
            faults.append(FieldFault(f"{path}.{key}", "is missing"))
    if any(field.required and field.name not in got for field in known.values()):
        return None
    made = kind(**got)
    if len(faults) > before:  # what could not be read is not given here: a law would complain of that again
        return made
    broken = [law for law in _laws(kind) if not law.holds(made)]
    faults.extend(FieldFault(f"{path}.{law.at}" if law.at else path, law.message) for law in broken)
    return made


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """By the name that people write. Found once: msgspec evaluates all annotations at every call."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _laws(kind: type[msgspec.Struct]) -> tuple[Law, ...]:
    law: Law | None = getattr(kind, "law", None)
    return (law,) if law is not None else getattr(kind, "laws", ())


def _read_field(field: msgspec.structs.FieldInfo, value: Any, path: str, faults: list[FieldFault]) -> Any:
    inside: list[FieldFault] = []
    got = _read_value(field.type, value, path, inside)
    not_yet = _note(field.type, NotYet)
    if not_yet is not None and not inside and got != field.default and got not in not_yet.works:
        inside.append(FieldFault(path, not_yet.because))
    faults.extend(inside)
    return None if inside and not isinstance(got, msgspec.Struct) else got  # half a list would select other things


def _read_value(kind: Any, value: Any, path: str, faults: list[FieldFault]) -> Any:
    bare, notes = _unwrap(kind)
    if form := _note(kind, Form):
        try:
            form.check(value)
        except ValueError as error:
            faults.append(FieldFault(path, str(error)))
        return value
    if typing.get_origin(bare) is tuple:
        return _read_list(typing.get_args(bare)[0], _bounds(notes), value, path, faults)
    if typing.get_origin(bare) is Mapping:
        return _read_mapping(typing.get_args(bare)[1], value, path, faults)
    return _read_struct(bare, value, path, faults)


def _read_list(kind: Any, bounds: Mapping[str, Any], value: Any, path: str, faults: list[FieldFault]) -> Any:
    least, most = bounds.get("minItems", 0), bounds["maxItems"]
    if not isinstance(value, list | tuple):
        faults.append(FieldFault(path, "is not a list"))
    elif not least <= len(value) <= most:
        faults.append(FieldFault(path, f"has {len(value)} entries, not {least} to {most}"))
    else:
        return tuple(_read_value(kind, one, f"{path}[{index}]", faults) for index, one in enumerate(value))
    return None


def _read_mapping(kind: Any, value: Any, path: str, faults: list[FieldFault]) -> Any:
    if not isinstance(value, Mapping):
        faults.append(FieldFault(path, "is not a set of names and values"))
        return None
    if len(value) > MOST_KEYS:
        faults.append(FieldFault(path, f"has {len(value)} entries, not 0 to {MOST_KEYS}"))
    return {key: _read_value(kind, one, f"{path}.{_plain(key)}", faults) for key, one in value.items()}


def _unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """`Annotated[X | None, notes]`, however nested, as (X, notes)."""
    if typing.get_origin(kind) is Annotated:
        bare, notes = _unwrap(kind.__origin__)
        return bare, notes + kind.__metadata__
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _unwrap(next(one for one in typing.get_args(kind) if one is not type(None)))
    return kind, ()


def _note(kind: Any, of: type[N]) -> N | None:
    return next((note for note in _unwrap(kind)[1] if isinstance(note, of)), None)


def _bounds(notes: tuple[Any, ...]) -> dict[str, Any]:
    return {key: value for note in notes if isinstance(note, dict) for key, value in note.items()}


def _plain(key: object) -> str:
    """A key as somebody wrote it, on one line."""
    written = str(key)
    return written if written.isprintable() else ascii(written)


def _guess(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


# ---- the definition for the API server -------------------------------------------------------------------------------


def define(
    kind: str, plural: str, short: str, about: str, *, version: str, spec: type[msgspec.Struct],
    status: type[msgspec.Struct], columns: Iterable[tuple[str, str, str]],
) -> dict[str, Any]:
    """The CustomResourceDefinition to install. A column: its name, its type, the path of its value."""
    properties = {"spec": _describe_struct(spec), "status": _describe_struct(status)}
    schema = {"type": "object", "description": about, "required": ["spec"], "properties": properties}
    shown = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns]
    served = {
        "name": version, "served": True, "storage": True, "subresources": {"status": {}},
        "additionalPrinterColumns": shown, "schema": {"openAPIV3Schema": schema},
    }
    called = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return plain({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP, "names": {**called, "shortNames": [short]}, "scope": "Cluster", "versions": [served],
        },
    })


def _describe_struct(kind: type[msgspec.Struct]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    known = msgspec.structs.fields(kind)
    if required := [field.encode_name for field in known if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _describe_field(field) for field in known}
    if laws := _laws(kind):
        schema["x-kubernetes-validations"] = [
            {"rule": law.cel, "message": law.message, **({"fieldPath": f".{law.at}"} if law.at else {})} for law in laws
        ]
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
    description, not_yet = _note(kind, str), _note(kind, NotYet)
    if not_yet is not None and not not_yet.works:
        description = f"{description} Not in this version yet."
    described: dict[str, Any] = {"description": description} if description else {}
    if form := _note(kind, Form):
        return described | dict(form.schema)
    if typing.get_origin(bare) is tuple:
        items = _describe(typing.get_args(bare)[0])
        return described | {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"} | _bounds(notes)
    if typing.get_origin(bare) is Mapping:
        inner = _describe(typing.get_args(bare)[1])
        return described | {"type": "object", "additionalProperties": inner, "maxProperties": MOST_KEYS}
    return described | _describe_struct(bare)
