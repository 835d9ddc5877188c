"""What `kubectl get` shows: a Table with the columns of the kind and a row for each object.

In: a kind, entries, the time. Out: a Table. Built-in kinds have their usual columns, custom ones those they define.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fallow.model import pointers, units
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import catalogue

Object: TypeAlias = dict[str, Any]
Cell: TypeAlias = Callable[[Mapping[str, Any]], Any]
_WIDE = ("Node",)  # shown with -o wide
_FILTER = re.compile(r"\[\?\(@\.(\w+)\s*==\s*[\"']([^\"']*)[\"']\)\]")


def _at(pointer: str, otherwise: Any = "") -> Cell:
    def read(obj: Mapping[str, Any]) -> Any:
        found = pointers.read(obj, pointer)
        return otherwise if found is None else found

    return read


def _of(part: str, whole: str) -> Cell:
    return lambda obj: f"{pointers.read(obj, part) or 0}/{pointers.read(obj, whole) or 0}"


def _pod_ready(obj: Mapping[str, Any]) -> str:
    statuses = pointers.read(obj, "/status/containerStatuses") or ()
    return f"{sum(bool(one.get('ready')) for one in statuses)}/{len(pointers.read(obj, '/spec/containers') or ())}"


def _pod_status(obj: Mapping[str, Any]) -> str:
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    return str(pointers.read(obj, "/status/reason") or pointers.read(obj, "/status/phase") or "Unknown")


def _restarts(obj: Mapping[str, Any]) -> int:
    return sum(one.get("restartCount") or 0 for one in pointers.read(obj, "/status/containerStatuses") or ())


def _node_status(obj: Mapping[str, Any]) -> str:
    conditions = pointers.read(obj, "/status/conditions") or ()
    state = next((one.get("status") for one in conditions if one.get("type") == "Ready"), "Unknown")
    word = {"True": "Ready", "False": "NotReady"}.get(str(state), "Unknown")
    return word + (",SchedulingDisabled" if pointers.read(obj, "/spec/unschedulable") else "")


def _target(obj: Mapping[str, Any]) -> str:
    target = obj.get("involvedObject") or {}
    return f"{str(target.get('kind', '')).lower()}/{target.get('name', '')}"


def _count(pointer: str) -> Cell:
    return lambda obj: len(pointers.read(obj, pointer) or ())


_SUSPEND = _at("/spec/suspend", False)
_COLUMNS: dict[stores.GroupKind, dict[str, Cell]] = {
    ("", "Pod"): {
        "Ready": _pod_ready, "Status": _pod_status, "Restarts": _restarts, "Node": _at("/spec/nodeName", "<none>"),
    },
    ("", "Node"): {"Status": _node_status, "Version": _at("/status/nodeInfo/kubeletVersion")},
    ("", "Namespace"): {"Status": _at("/status/phase")},
    ("", "ConfigMap"): {"Data": _count("/data")},
    ("", "Secret"): {"Type": _at("/type", "Opaque"), "Data": _count("/data")},
    ("", "Service"): {"Type": _at("/spec/type", "ClusterIP"), "Cluster-IP": _at("/spec/clusterIP", "<none>")},
    ("", "Event"): {"Type": _at("/type"), "Reason": _at("/reason"), "Object": _target, "Message": _at("/message")},
    ("apps", "Deployment"): {
        "Ready": _of("/status/readyReplicas", "/spec/replicas"), "Up-to-date": _at("/status/updatedReplicas", 0),
        "Available": _at("/status/availableReplicas", 0),
    },
    ("apps", "StatefulSet"): {"Ready": _of("/status/readyReplicas", "/spec/replicas")},
    ("apps", "ReplicaSet"): {
        "Desired": _at("/spec/replicas", 0), "Current": _at("/status/replicas", 0),
        "Ready": _at("/status/readyReplicas", 0),
    },
    ("apps", "DaemonSet"): {
        "Desired": _at("/status/desiredNumberScheduled", 0), "Ready": _at("/status/numberReady", 0),
    },
    ("batch", "Job"): {"Completions": _of("/status/succeeded", "/spec/completions"), "Suspend": _SUSPEND},
    ("batch", "CronJob"): {"Schedule": _at("/spec/schedule"), "Suspend": _SUSPEND},
    ("autoscaling", "HorizontalPodAutoscaler"): {
        "Reference": _at("/spec/scaleTargetRef/name"), "MinPods": _at("/spec/minReplicas", "<unset>"),
        "MaxPods": _at("/spec/maxReplicas", 0), "Replicas": _at("/status/currentReplicas", 0),
    },
    ("policy", "PodDisruptionBudget"): {
        "Min Available": _at("/spec/minAvailable", "N/A"), "Max Unavailable": _at("/spec/maxUnavailable", "N/A"),
        "Allowed Disruptions": _at("/status/disruptionsAllowed", 0),
    },
    ("coordination.k8s.io", "Lease"): {"Holder": _at("/spec/holderIdentity")},
}


def write(
    kind: catalogue.ServedKind, entries: Sequence[stores.Entry], now: units.Instant, metadata: Object,
    include: str = "Metadata",
) -> Object:
    """`include`: what of each object goes into its row (None, Metadata, Object)."""
    columns = _find_columns(kind, now)
    definitions = [
        {"name": name, "type": type_, "format": "name" if name == "Name" else "", "description": "", "priority": rank}
        for name, type_, rank, _ in columns
    ]
    rows = [
        {"cells": [cell(entry.object) for *_, cell in columns], "object": _include(kind, entry, include)}
        for entry in entries
    ]
    table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**table, "columnDefinitions": definitions, "rows": rows}


def _find_columns(kind: catalogue.ServedKind, now: units.Instant) -> list[tuple[str, str, int, Cell]]:
    name: tuple[str, str, int, Cell] = ("Name", "string", 0, _at("/metadata/name"))
    age: tuple[str, str, int, Cell] = ("Age", "string", 0, _since("/metadata/creationTimestamp", now))
    if kind.is_custom:
        return [name, *(_custom_column(column, now) for column in kind.columns)] if kind.columns else [name, age]
    known = _COLUMNS.get(kind.home, {}).items()
    return [name, *((title, "string", int(title in _WIDE), cell) for title, cell in known), age]


def _custom_column(column: Mapping[str, Any], now: units.Instant) -> tuple[str, str, int, Cell]:
    path = column["jsonPath"]
    cell = _since(path.replace(".", "/"), now) if column["type"] == "date" else _read_path(path)
    return column["name"], column["type"], column.get("priority", 0), cell


def _read_path(path: str) -> Cell:
    """As definitions have them: `.status.state`, `.status.conditions[?(@.type=="Ready")].status`, names in brackets."""

    def read(obj: Mapping[str, Any]) -> Any:
        before, *after = _FILTER.split(path)
        value = pointers.read(obj, _pointer(before))
        for name, wanted, rest in zip(after[::3], after[1::3], after[2::3], strict=True):
            value = next((item for item in value or () if item.get(name) == wanted), None)
            value = pointers.read(value, _pointer(rest)) if rest else value
        return value

    return read


def _pointer(path: str) -> str:
    names = re.findall(r"\['([^']+)'\]|((?:\\.|[^.\[\\])+)", path)
    return pointers.join(quoted or plain.replace("\\", "") for quoted, plain in names)


def _since(pointer: str, now: units.Instant) -> Cell:
    def read(obj: Mapping[str, Any]) -> str:
        then = units.read_instant(pointers.read(obj, pointer))
        return "<unknown>" if then is None else units.humane(now - then)

    return read


def _include(kind: catalogue.ServedKind, entry: stores.Entry, include: str) -> Any:
    if include == "None":
        return None
    if include == "Object":
        return {**entry.object, "kind": kind.kind, "apiVersion": kind.api_version}
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": entry.object["metadata"]}
