"""Label and field selectors, as queries carry them: text in, a function of an object out, or a Refusal that says why.

Also label selectors as objects (matchLabels, matchExpressions), which budgets and Scales use.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fallow.model import pointers, selectors
from fallow.sim.servers.kubernetes import catalogue, refusals

Object: TypeAlias = dict[str, Any]
Test: TypeAlias = Callable[[Mapping[str, Any]], bool]

_TERM = re.compile(
    r"\s*(?:(!)\s*([^\s!=,()]+)|([^\s!=,()]+)\s*(?:(=|==|!=)\s*([^\s,()]*)|(in|notin)\s*\(([^()]*)\)|))\s*(?:,|$)"
)
_EVERYWHERE = ("metadata.name", "metadata.namespace")
_FIELDS = {
    ("", "Pod"): (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    ("", "Node"): ("spec.unschedulable",),
    ("", "Namespace"): ("status.phase",),
    ("", "Secret"): ("type",),
    ("batch", "Job"): ("status.successful",),
    ("apps", "ReplicaSet"): ("status.replicas",),
    ("", "Event"): (
        *(f"involvedObject.{name}" for name in
          ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")),
        "reason", "reportingComponent", "source", "type",
    ),
}


def read(kind: catalogue.ServedKind, labels: str, fields: str) -> Test | None:
    """One test for both selectors; None if everything is meant."""
    tests = [*_read_labels(labels), *_read_fields(kind, fields)]
    return (lambda obj: all(test(obj) for test in tests)) if tests else None


def _read_labels(text: str) -> list[Test]:
    tests, at = [], 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            raise refusals.bad(f"unable to parse requirement: {text[at:]!r}")
        tests.append(_label_test(match))
        at = match.end()
    return tests


def _label_test(match: "re.Match[str]") -> Test:
    """The text as an expression, which is evaluated as all are."""
    _, absent, name, sign, value, word, listed = match.groups()
    if sign is None and word is None:
        return lambda obj: selectors.holds(_labels(obj), name or absent, "DoesNotExist" if absent else "Exists", ())
    values = [each.strip() for each in listed.split(",")] if word else [value]
    operator = "NotIn" if sign == "!=" or word == "notin" else "In"
    return lambda obj: selectors.holds(_labels(obj), name, operator, values)


def _labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _read_fields(kind: catalogue.ServedKind, text: str) -> list[Test]:
    return [_field_test(kind, term) for term in text.split(",") if term]


def _field_test(kind: catalogue.ServedKind, term: str) -> Test:
    match = re.fullmatch(r"([^=!]*)(!=|==|=)(.*)", term, re.DOTALL)
    if match is None:
        raise refusals.bad(f"invalid selector: '{term}'; can't understand '{term}'")
    name, sign, value = match.groups()
    if name not in (*_EVERYWHERE, *_FIELDS.get(kind.home, ())):
        raise refusals.bad(f"field label not supported: {name}")
    pointer = "/" + name.replace(".", "/")
    return lambda obj: (_text(pointers.read(obj, pointer)) == value) is (sign != "!=")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A selector object; None selects nothing and an empty one everything."""
    read_one = selectors.read(selector)
    return read_one is not None and read_one.matches(labels)


def write(selector: Any) -> str:
    """A selector object as text, as a Scale's status shows it; text stays."""
    if not isinstance(selector, Mapping):
        return selector if isinstance(selector, str) else ""
    terms = [f"{name}={value}" for name, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        values = f" ({','.join(term.get('values') or ())})"
        key, operator = term["key"], term["operator"]
        forms = {"In": f"{key} in{values}", "NotIn": f"{key} notin{values}", "DoesNotExist": f"!{key}"}
        terms.append(forms.get(operator, key))
    return ",".join(terms)
