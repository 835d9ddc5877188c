"""The shapes of objects as a real API server publishes them, as files that kubeconform reads.

In: a Cluster, a folder. Out: GROUP_VERSION_KIND.json for every kind that it serves, custom ones too, each whole by
itself and closed: a field that the server does not know is a mistake.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from tests.real import cluster as clusters

_INT_OR_STRING = {"anyOf": [{"type": "string"}, {"type": "integer"}]}


async def write(cluster: clusters.Cluster, folder: pathlib.Path) -> None:
    """The folder must be there, and the custom resources defined."""
    custom = await cluster.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    groups = {each["spec"]["group"] for each in custom}

    async def published() -> Any:
        paths = json.loads(await cluster.request("GET", "/openapi/v3"))["paths"]
        return groups <= {each.split("/")[1] for each in paths if each.startswith("apis/")} and paths

    paths = await cluster.wait_until(published)
    for path in (each for each in paths if each.startswith("api")):
        found = (await cluster.request("GET", f"/openapi/v3/{path}")).get("components", {}).get("schemas", {})
        for name, schema in found.items():
            for kind in schema.get("x-kubernetes-group-version-kind", ()):
                needed = {each: _close(one) for each, one in _needed(found, name).items()}
                whole = {"$ref": f"#/definitions/{name}", "definitions": needed}
                called = f"{kind['group'] or kind['version']}_{kind['version']}_{kind['kind'].lower()}.json"
                (folder / called).write_text(json.dumps(whole).replace("#/components/schemas/", "#/definitions/"))


def _needed(found: dict[str, Any], name: str) -> dict[str, Any]:
    """A shape and all that it refers to."""
    needed, todo = dict[str, Any](), [name]
    while todo:
        one = todo.pop()
        if one not in needed:
            needed[one] = found[one]
            todo += [part.split('"')[0] for part in json.dumps(found[one]).split("#/components/schemas/")[1:]]
    return needed


def _close(shape: Any) -> Any:
    if isinstance(shape, list):
        return [_close(each) for each in shape]
    if not isinstance(shape, dict):
        return shape
    if shape.get("format") == "int-or-string" or shape.get("x-kubernetes-int-or-string"):
        return _INT_OR_STRING
    made = {key: _close(each) for key, each in shape.items() if key not in ("format", "default", "properties")}
    if "properties" in shape:
        made["properties"] = {name: _close(each) for name, each in shape["properties"].items()}
        is_open = shape.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in shape
        made |= {} if is_open else {"additionalProperties": False}
    return made
