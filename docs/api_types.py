"""`python -m docs.api_types [FILE]`: the types of the dashboard, made of the API's own OpenAPI document.

In: the document (paths, components). Out: TypeScript, one type for each struct, by the names that the pages use; the
same every time. Without FILE it is ui/src/api.ts.
Invariant: no field is written by hand: what the server does not say does not exist for the pages.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fallow.doors.answers import field, overview, past
from fallow.doors.answers import rows as telling
from fallow.doors.api import endpoints, openapi
from fallow.model.cost import PART_WORDS

TARGET = Path(__file__).parents[1] / "ui" / "src" / "api.ts"

# What the pages call a struct, where that is not its own name.
NAMES = {
    "WorkloadName": "Ref", "StepTold": "Next", "KeepTold": "Keep", "RestTold": "Rest", "MayTold": "May",
    "FrozenTold": "Frozen", "FailureTold": "Failure", "GpuSums": "Gpus", "ViewCounts": "Counts", "ComingStep": "Coming",
    "OverviewPage": "Overview", "SlotShown": "Slot", "GpuShown": "Gpu", "NodeShown": "FieldNode", "PoolShown": "Pool",
    "FieldPage": "Field", "SourceTold": "Source", "NodesPage": "Nodes", "ApiRow": "Row", "WorkloadsPage": "Workloads",
    "CheckTold": "Check", "EpisodeStep": "Episode", "FullExplanation": "Explanation", "TimelinePage": "Timeline",
    "DecisionsPage": "Decisions", "StatesPage": "States", "PacePage": "Pace", "SavingsPage": "Savings",
    "RegretsPage": "Regrets", "PolicyTold": "Policy", "PoliciesPage": "Policies", "ErrorAnswer": "Failed",
    "HistoryPage": "History", "AcksPage": "Acks", "GamingPage": "Gaming", "WidenedTold": "Widened",
    "SharingPage": "Sharing", "ScalingPage": "Scaling",
}
# Sets of words that the pages have a name for.
WORDS = {
    "State": telling.WorkloadState, "SlotState": field.SlotState, "Step": telling.StepName, "View": telling.RowView,
    "Group": telling.RowGroup, "Layout": field.NodeLayout, "AuthMode": overview.AuthMode,
    "DecidedType": get_type_hints(past.Decided)["type"],
}
# What the doors that write and tell answer with; they are no part of what is read.
BESIDE = """\
export type Series = (number | null)[];
export type Outcome = { status: string; sentence: string; code: string | null };
export type Me = { user: string | null; mode: AuthMode; mayFreeze: May; maySeeAlerts: May; csrf: string };
/** What a `cycle` event carries. */
export type CycleNews = {
  revision: number; asOf: string | null; counts: Counts; gpus: Gpus; frozen: Frozen | null; failure: Failure | null;
};
export type RowNews = Row | { uid: string; gone: true };
"""


def write_types() -> str:
    document = openapi.make_document(endpoints.ENDPOINTS)
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    words = {tuple(sorted(get_args(kind))): name for name, kind in WORDS.items()}
    lines = [
        "// Made by `python -m docs.api_types` of the server's own OpenAPI document: do not change it here.",
        "// Instants are RFC 3339 UTC, spans seconds, ratios 0..1, GPUs shares of physical ones; null: not known.",
        "",
    ]
    lines += [f"export type {name} = {_join(get_args(kind))};" for name, kind in WORDS.items()]
    lines += ["", *_write_parts()]
    lines += ["", *(_struct(name, schema, words) for name, schema in schemas.items()), BESIDE]
    return "\n".join(lines)


def _write_parts() -> Iterator[str]:
    """A page begins them with a capital."""
    yield "/** The five parts of all that is paid for, by the keys of a report. */"
    yield "export const PART_WORDS = {"
    yield from (f'  {_camel(part)}: "{word.capitalize()}",' for part, word in PART_WORDS.items())
    yield "} as const;"


def _camel(part: str) -> str:
    head, *tail = part.split("_")
    return head + "".join(map(str.capitalize, tail))


def _join(words: tuple[str, ...]) -> str:
    return " | ".join(f'"{word}"' for word in words)


def _struct(name: str, schema: Mapping[str, Any], words: Mapping[tuple[str, ...], str]) -> str:
    required = set(schema.get("required", ()))
    fields = [
        f"  {field}{'' if field in required else '?'}: {_type(kind, words)};"
        for field, kind in schema.get("properties", {}).items()
    ]
    about = f"/** {schema['description']} */\n" if "description" in schema else ""
    return "\n".join([f"{about}export type {NAMES.get(name, name)} = {{", *fields, "};"])


def _type(schema: Mapping[str, Any], words: Mapping[tuple[str, ...], str]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return NAMES.get(name, name)
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one, words) for one in schema["anyOf"]))
    if "enum" in schema:
        return words.get(tuple(sorted(schema["enum"]))) or _join(tuple(schema["enum"]))
    match schema.get("type"):
        case "array":
            return _array(schema, words)
        case "object":
            inner = schema.get("additionalProperties")
            return f"Record<string, {_type(inner, words)}>" if isinstance(inner, dict) and inner else "object"
        case "integer" | "number":
            return "number"
        case "string" | "boolean" | "null" as plain:
            return str(plain)
    return "unknown"


def _array(schema: Mapping[str, Any], words: Mapping[tuple[str, ...], str]) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type(one, words) for one in schema['prefixItems'])}]"
    inner = _type(schema["items"], words)
    return f"({inner})[]" if "|" in inner else f"{inner}[]"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(write_types())
