"""The Scale of an object: autoscaling/v1, shown and read. A count of 0 is left out, as Go leaves out zeroes."""

from typing import Any, TypeAlias

import msgspec

from fallow.model import pointers
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, catalogue, refusals, selectors

Object: TypeAlias = dict[str, Any]
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def show(entry: stores.Entry, scale: catalogue.Scale) -> Object:
    obj = entry.object
    replicas, selector = pointers.read(obj, scale.replicas), pointers.read(obj, scale.selector) if scale.selector else None
    status: Object = {"replicas": pointers.read(obj, scale.status) or 0}
    if text := selectors.write(selector):
        status["selector"] = text
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1", "status": status, "spec": {"replicas": replicas} if replicas else {},
        "metadata": {name: obj["metadata"][name] for name in _SHOWN if name in obj["metadata"]},
    }  # fmt: skip


def encode(scale: Object) -> bytes:
    return msgspec.json.encode(scale)


def read(call: calls.Call, wanted: Object) -> int:
    """The count somebody asks for through a Scale."""
    spec = wanted.get("spec") or {}
    unknown = [f'unknown field "spec.{name}"' for name in spec if name != "replicas"]
    if unknown and call.query.get("fieldValidation") == "Strict":
        why = f"strict decoding error: {', '.join(unknown)}"
        raise refusals.bad_patch(encode(wanted).decode(), why) if call.method == "PATCH" else refusals.bad(why)
    replicas = spec.get("replicas", 0)
    if not isinstance(replicas, int):
        raise refusals.bad_patch(encode(wanted).decode(), "json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas")
    return replicas
