"""What people wrote that we can only take one way: read as they mean it, and said, one line each.

In: a document of YAML or JSON. Out: the object as the API server takes it, and what was corrected. Numbers keep the
text they were written in (Decimal); what may be wrong in more than one way is left for the reader of the resource to
refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import yaml

from fallow import names

VERSION = f"{names.GROUP}/{names.POLICY_VERSION}"
KINDS = (names.POLICY_KIND, names.BUDGET_KIND, names.ATTRIBUTION_KIND)
_MISTAKEN = ("v1alpha1.gpuautoscaler.io", "gpu-autoscaler.io/v1alpha1", "gpuautoscaler.io")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_SPACED = re.compile(r"([0-9]+)\s+([a-z]+)")
_DURATIONS = frozenset({
    "period", "gracePeriod", "reportingPeriod", "goneIdle", "neverUsed", "grace", "maxSampleAge", "maxAck", "immunity",
    "timeout",
})
Say = Callable[[str], None]


class _NumberLoader(yaml.SafeLoader):
    """Numbers as they are written; times stay text."""


def _make_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Decimal:
    return Decimal(str(node.value).replace("_", ""))


_NumberLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag not in ("tag:yaml.org,2002:timestamp",
                                                                  "tag:yaml.org,2002:float")]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_NumberLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9_]+|[0-9]+)([eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)
_NumberLoader.add_constructor("tag:yaml.org,2002:float", _make_number)


def read(text: str) -> list[Any]:
    """Every document that is not empty; of a List, its items. Raises yaml.YAMLError."""
    found: list[Any] = []
    for document in yaml.load_all(text, _NumberLoader):
        if isinstance(document, dict) and document.get("kind") == "List":
            found += document.get("items") or []
        elif document is not None:
            found.append(document)
    return found


def correct(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The same object, corrected, and a line for each correction."""
    said: list[str] = []
    made: dict[str, Any] = _copy(document)
    version = made.get("apiVersion")
    if version in _MISTAKEN:
        said.append(f"apiVersion: {version} is read as {VERSION}")
        made["apiVersion"] = VERSION
    spec = made.get("spec")
    if isinstance(spec, dict):
        if made.get("kind") == names.BUDGET_KIND:
            _fold_budget(spec, said.append)
        for path, holder, key in _walk(spec, "spec"):
            _unspace(path, holder, key, said.append)
    return made, said


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(member) for key, member in value.items()}
    return [_copy(member) for member in value] if isinstance(value, list) else value


def _fold_budget(spec: dict[str, Any], say: Say) -> None:
    _unquote(spec, "monthlyLimit", "spec", say)
    budget = spec.get("budget") or {}
    if isinstance(budget, dict):
        if "monthlyLimit" in spec and "amount" not in budget:
            limit = spec.pop("monthlyLimit")
            spec["budget"] = budget = {**budget, "amount": limit, "period": "month"}
            say(f"spec.monthlyLimit: is read as spec.budget.amount {limit} with spec.budget.period month")
        _unquote(budget, "amount", "spec.budget", say)
    alerts = spec.get("alerts")
    for index, alert in enumerate(alerts if isinstance(alerts, list) else ()):
        if isinstance(alert, dict):
            path = f"spec.alerts[{index}]"
            _rename(alert, "thresholdPercent", "threshold", path, say)
            _unquote(alert, "threshold", path, say)
    enforcement = spec.get("enforcement")
    if isinstance(enforcement, dict):
        _rename(enforcement, "action", "mode", "spec.enforcement", say)
        if "gracePeriodMinutes" in enforcement and "gracePeriod" not in enforcement:
            minutes = enforcement.pop("gracePeriodMinutes")
            enforcement["gracePeriod"] = f"{minutes}m"
            say(f"spec.enforcement.gracePeriodMinutes: is read as spec.enforcement.gracePeriod {minutes}m")


def _rename(holder: dict[str, Any], old: str, new: str, path: str, say: Say) -> None:
    if old in holder and new not in holder:
        holder[new] = holder.pop(old)
        say(f"{path}.{old}: is read as {path}.{new}")


def _unquote(holder: dict[str, Any], key: str, path: str, say: Say) -> None:
    value = holder.get(key)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        holder[key] = Decimal(value.strip())
        say(f"{path}.{key}: {value!r} is read as the number {holder[key]}")


def _unspace(path: str, holder: dict[str, Any], key: str, say: Say) -> None:
    value = holder[key]
    if key in _DURATIONS and isinstance(value, str) and (found := _SPACED.fullmatch(value.strip())):
        holder[key] = f"{found[1]}{found[2]}"
        say(f"{path}: {value!r} is read as {holder[key]}")


def _walk(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    if isinstance(value, dict):
        for key in list(value):
            yield f"{path}.{key}", value, key
            yield from _walk(value[key], f"{path}.{key}")
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _walk(member, f"{path}[{index}]")
