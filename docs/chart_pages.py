"""What people read of the Helm chart, made from its table of values: values.yaml, the schema, the page, Chart.yaml.

In: chart_values.ROWS, the beginning of the page as somebody wrote it. Out: the texts of these files.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

import yaml

import fallow
from docs import chart_values

ROOT = Path(__file__).parent.parent
CHART = "charts/fallow"
MADE = "Made from the code by `make docs`."


def spell(value: Any) -> str:
    """As an argument or a table has it."""
    if isinstance(value, list | dict | bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def values() -> str:
    return "\n".join([f"# {MADE} What each means is said above it.", *_tree("", 0)]) + "\n"


def _tree(prefix: str, depth: int) -> list[str]:
    lines: list[str] = []
    for key, below in _children(prefix).items():
        path = f"{prefix}{key}"
        if isinstance(below, chart_values.Value):
            lines += [f"{'  ' * depth}# {line}" for line in textwrap.wrap(below.help, 116, break_on_hyphens=False)]
            lines += [f"{'  ' * depth}{key}: {json.dumps(below.default)}"]
        else:
            lines += [f"{'  ' * depth}{key}:", *_tree(f"{path}.", depth + 1)]
    return lines


def _children(prefix: str) -> dict[str, chart_values.Value | None]:
    """The next part of every path that begins so; the row itself where it ends there."""
    found: dict[str, chart_values.Value | None] = {}
    for row in chart_values.ROWS:
        if row.path.startswith(prefix):
            key, _, rest = row.path.removeprefix(prefix).partition(".")
            found.setdefault(key, None if rest else row)
    return found


def schema() -> str:
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of fallow", "$comment": MADE}
    return json.dumps({**head, **_object("")}, indent=1) + "\n"


def _object(prefix: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key, below in _children(prefix).items():
        properties[key] = _object(f"{prefix}{key}.") if below is None else _described(below)
    if not prefix:
        properties["global"] = {"type": "object"}  # helm puts it there
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _described(row: chart_values.Value) -> dict[str, Any]:
    if row.schema == {"flags": True}:
        free = {
            flag.name.removeprefix("--"): {"description": flag.help, **chart_values.describe(flag)}
            for flag in chart_values.FREE
        }
        return {"description": row.help, "type": "object", "additionalProperties": False, "properties": free}
    return {"description": row.help, **row.schema}


def page() -> str:
    head = (ROOT / CHART / "README.head").read_text()
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for row in chart_values.ROWS:
        shown = f"`{spell(row.default)}`" if row.default != "" else ""
        flag = f" (`{row.flag}`)" if row.flag else ""
        lines.append(f"| `{row.path}` | {shown} | {row.help}{flag} |".replace("a|b", "a\\|b"))
    free = ", ".join(f"`{flag.name.removeprefix('--')}`" for flag in chart_values.FREE)
    more = f"`flags` and `settings` take, as [docs/operators/flags.md](../../docs/operators/flags.md) says: {free}."
    return f"{head}\n## Values\n\n{MADE}\n\n" + "\n".join(lines) + f"\n\n{more}\n"


def chart(name: str) -> str:
    made = {
        "apiVersion": "v2", "name": name, "type": "application", "version": fallow.__version__,
        "description": "Finds idle GPUs, pauses politely, packs, shares, and keeps the books.",
        "appVersion": fallow.__version__, "kubeVersion": ">=1.28.0-0", "keywords": ["gpu", "idle", "cost", "nvidia"],
        "annotations": {"artifacthub.io/license": "Apache-2.0"},
    }
    return f"# {MADE}\n{yaml.safe_dump(made, sort_keys=False, width=140)}"
