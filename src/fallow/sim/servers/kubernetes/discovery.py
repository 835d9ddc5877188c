"""What is served, in three ways: the aggregated documents of today, the lists of old, what OpenAPI kubectl asks for.

In: the catalogue and a path. Out: the document, or None for a path that is no document of this kind.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from fallow.sim.servers.kubernetes import calls, catalogue

Object: TypeAlias = dict[str, Any]

VERSION: Object = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
}
AGGREGATED = "APIGroupDiscoveryList"
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
    if parts in (["api"], ["apis"]) and calls.accepts(accept, AGGREGATED):
        return _aggregate(kinds, is_core=parts == ["api"])
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        groups = [_group(kinds, name) for name in _groups(kinds) if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if parts[0] == "apis" and len(parts) == 2 and parts[1] in _groups(kinds):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, parts[1])}
    found = [kind for kind in kinds if _root(kind).split("/") == parts]
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
        if (group == "") is is_core:
            versions = [_aggregate_version(kinds, group, version) for version in _versions(kinds, group)]
            items.append({"metadata": {"name": group} if group else {}, "versions": versions})
    return {"kind": AGGREGATED, "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregate_version(kinds: Sequence[catalogue.ServedKind], group: str, version: str) -> Object:
    resources = [_resource(kind) for kind in kinds if (kind.group, kind.version) == (group, version)]
    return {"version": version, "freshness": "Current", "resources": resources}


def _resource(kind: catalogue.ServedKind) -> Object:
    own = {"group": "", "version": "", "kind": kind.kind}
    found: Object = {
        "resource": kind.plural, "responseKind": own, "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.kind.lower(), "verbs": kind.verbs,
    }
    optional = {"shortNames": kind.short, "categories": kind.categories, "subresources": _parts(kind, own)}
    return found | {name: value for name, value in optional.items() if value}


def _parts(kind: catalogue.ServedKind, own: Object) -> list[Object]:
    special = {"scale": (_SCALE, _PART_VERBS), "eviction": (_EVICTION, ("create",))}
    found = [(part, *special.get(part, (own, _PART_VERBS))) for part in kind.subresources]
    return [{"subresource": part, "responseKind": response, "verbs": verbs} for part, response, verbs in found]


def _list(kinds: Sequence[catalogue.ServedKind]) -> Object:
    resources = []
    for kind in kinds:
        one: Object = {
            "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": kind.verbs,
        }
        optional = {"shortNames": kind.short, "categories": kind.categories}
        resources.append(one | {name: value for name, value in optional.items() if value})
        for part in _parts(kind, {"kind": kind.kind}):
            own = {"name": f"{kind.plural}/{part['subresource']}", "singularName": "", "namespaced": kind.namespaced}
            resources.append(own | part["responseKind"] | {"verbs": part["verbs"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": resources}


def _describe_openapi(kinds: Sequence[catalogue.ServedKind], path: str) -> Object | None:
    """That the server checks fields itself is all kubectl wants to know."""
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    if path == "v2":
        return {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}
    roots = {_root(kind): kind.api_version for kind in kinds}
    if path == "v3":
        return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash=0"} for root in roots}}
    root = path.removeprefix("v3/")
    if root not in roots:
        return None
    served = [kind for kind in kinds if _root(kind) == root]
    paths = {f"/{root}/{kind.plural}/{{name}}": {"patch": _patch_operation(kind)} for kind in served}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _root(kind: catalogue.ServedKind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _patch_operation(kind: catalogue.ServedKind) -> Object:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    own, responses = {"group": kind.group, "kind": kind.kind, "version": kind.version}, {"200": {"description": "OK"}}
    return {"parameters": parameters, "responses": responses, "x-kubernetes-group-version-kind": own}
