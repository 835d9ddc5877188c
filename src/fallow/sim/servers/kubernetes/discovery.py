"""What is served, told three ways: the aggregated documents of today, the lists of old, and as much OpenAPI as kubectl
asks for.

In: the catalogue and a path. Out: the document, or None for a path that is no document of this kind.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from fallow.sim.servers.kubernetes import calls, catalogue

Object: TypeAlias = dict[str, Any]

VERSION: Object = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "", "compiler": "", "platform": "linux/amd64",
}  # fmt: skip
_AGGREGATED = "APIGroupDiscoveryList"
_STABLE = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
_PART_VERBS = ("get", "patch", "update")
_SCALE = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
_EVICTION = {"group": "policy", "version": "v1", "kind": "Eviction"}


def describe(kinds: Sequence[catalogue.ServedKind], path: str, accept: str) -> Object | None:
    parts = path.strip("/").split("/")
    if parts == ["version"]:
        return VERSION
    if parts[0] == "openapi":
        return _describe_openapi(kinds, "/".join(parts[1:]))
    if parts in (["api"], ["apis"]) and calls.accepts(accept, _AGGREGATED):
        return _aggregate(kinds, is_core=parts == ["api"])
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in _groups(kinds) if name]}
    if parts[0] == "apis" and len(parts) == 2 and parts[1] in _groups(kinds):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, parts[1])}
    group, version = ("", parts[1]) if parts[0] == "api" and len(parts) == 2 else (parts[1], parts[2]) if len(parts) == 3 else ("", "")
    found = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    return _list(found) if found else None


def _groups(kinds: Sequence[catalogue.ServedKind]) -> list[str]:
    return list(dict.fromkeys(kind.group for kind in kinds))


def _versions(kinds: Sequence[catalogue.ServedKind], group: str) -> list[str]:
    """The preferred one first: stable before beta before alpha, high before low."""

    def rank(version: str) -> tuple[int, int, int]:
        match = _STABLE.fullmatch(version)
        return ({None: 2, "beta": 1, "alpha": 0}[match[2]], int(match[1]), int(match[3] or 0)) if match else (-1, 0, 0)

    return sorted({kind.version for kind in kinds if kind.group == group}, key=rank, reverse=True)


def _group(kinds: Sequence[catalogue.ServedKind], group: str) -> Object:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in _versions(kinds, group)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _aggregate(kinds: Sequence[catalogue.ServedKind], *, is_core: bool) -> Object:
    items = []
    for group in _groups(kinds):
        if (group == "") is not is_core:
            continue
        versions = [
            {"version": version, "freshness": "Current", "resources": [_resource(kind) for kind in kinds if _is_of(kind, group, version)]}
            for version in _versions(kinds, group)
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": versions})
    return {"kind": _AGGREGATED, "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _is_of(kind: catalogue.ServedKind, group: str, version: str) -> bool:
    return (kind.group, kind.version) == (group, version)


def _resource(kind: catalogue.ServedKind) -> Object:
    own = {"group": "", "version": "", "kind": kind.kind}
    found: Object = {
        "resource": kind.plural, "responseKind": own, "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.kind.lower(), "verbs": list(kind.verbs),
    }  # fmt: skip
    optional = {"shortNames": list(kind.short), "categories": list(kind.categories), "subresources": _parts(kind, own)}
    return found | {name: value for name, value in optional.items() if value}


def _parts(kind: catalogue.ServedKind, own: Object) -> list[Object]:
    special = {"scale": _SCALE, "eviction": _EVICTION}
    return [
        {"subresource": part, "responseKind": special.get(part, own), "verbs": ["create"] if part == "eviction" else list(_PART_VERBS)}
        for part in kind.subresources
    ]


def _list(kinds: Sequence[catalogue.ServedKind]) -> Object:
    resources = []
    for kind in kinds:
        one: Object = {
            "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": list(kind.verbs),
        }  # fmt: skip
        optional = {"shortNames": list(kind.short), "categories": list(kind.categories)}
        resources.append(one | {name: value for name, value in optional.items() if value})
        for part in _parts(kind, {"kind": kind.kind}):
            own = {"name": f"{kind.plural}/{part['subresource']}", "singularName": "", "namespaced": kind.namespaced}
            resources.append(own | part["responseKind"] | {"verbs": part["verbs"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": resources}


# ---- OpenAPI: that the server checks fields itself is all kubectl wants to know ---------------------------------------------------


def _describe_openapi(kinds: Sequence[catalogue.ServedKind], path: str) -> Object | None:
    if path == "v2":
        info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
        return {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}
    roots = {_root(kind): kind.api_version for kind in kinds}
    if path == "v3":
        return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash=0"} for root in roots}}
    root = path.removeprefix("v3/")
    if root not in roots:
        return None
    served = [kind for kind in kinds if _root(kind) == root]
    paths = {f"/{root}/{kind.plural}/{{name}}": {"patch": _patch_operation(kind)} for kind in served}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]}, "paths": paths}


def _root(kind: catalogue.ServedKind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _patch_operation(kind: catalogue.ServedKind) -> Object:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    own = {"group": kind.group, "kind": kind.kind, "version": kind.version}
    return {"parameters": parameters, "responses": {"200": {"description": "OK"}}, "x-kubernetes-group-version-kind": own}
