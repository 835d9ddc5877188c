"""One request, read: which kind, object and subresource it is about, what it asks for and who asks.

In: method, path, query, headers and body of an HTTP request. Out: a `Call`, or a Refusal.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib import parse

import msgspec
import yaml

from fallow.sim.servers.kubernetes import catalogue, refusals

Object: TypeAlias = dict[str, Any]
_NAMESPACE_PARTS = ("status", "finalize")


class ObjectPath(msgspec.Struct, frozen=True):
    """What a path names: /apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME/SUBRESOURCE."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class ApiUser(msgspec.Struct, frozen=True):
    name: str
    groups: tuple[str, ...] = ()


class ApiAnswer(msgspec.Struct, frozen=True):
    body: bytes
    code: int = 200
    warnings: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    kind: catalogue.ServedKind
    path: ObjectPath
    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: ApiUser

    @property
    def manager(self) -> str:
        """Who shall own the fields: as asked, or the first word of the program's name."""
        agent = self.headers.get("User-Agent", "").partition("/")[0]
        return (self.query.get("fieldManager") or agent or "unknown")[:128]

    @property
    def is_dry(self) -> bool:
        return self.query.get("dryRun") == "All"

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip() or "application/json"

    def refuse_absent(self) -> refusals.ApiRefusal:
        return refusals.absent(self.kind.plural, self.kind.group, self.path.name)

    def refuse_conflict(self, why: str = "") -> refusals.ApiRefusal:
        return refusals.conflict(self.kind.plural, self.kind.group, self.path.name, why)

    def unrecognized(self, why: str) -> refusals.ApiRefusal:
        return refusals.bad(f"the object provided is unrecognized (must be of type {self.kind.kind}): {why}")

    def invalid(self, name: str, *faults: tuple[str, str, str]) -> refusals.ApiRefusal:
        return refusals.invalid(self.kind.kind, self.kind.group, name, faults)

    def read(self) -> Any:
        """The body; YAML is taken too, as it is by the real one. JSON is YAML, and read far faster as what it is."""
        if not self.body:
            return {}
        if "protobuf" in self.content_type or "cbor" in self.content_type:
            raise refusals.unknown_format("application/json", "application/yaml")
        try:
            return json.loads(self.body)
        except ValueError as problem:
            if "yaml" not in self.content_type:
                raise self.unrecognized(str(problem)) from problem
        try:
            return yaml.safe_load(self.body)
        except (ValueError, yaml.YAMLError) as problem:
            raise self.unrecognized(str(problem)) from problem

    def read_object(self) -> Object:
        body = self.read()
        if not isinstance(body, dict):
            raise self.unrecognized("couldn't get version/kind")
        for name in ("metadata", "spec", "status"):
            if not isinstance(body.get(name), dict | None):
                found = json.dumps(body[name])[:80]
                raise refusals.bad(f"{self.kind.kind} cannot be handled: {name} must be an object, not {found}")
        return body


def read_path(path: str) -> ObjectPath | None:
    """None for a path that is not about objects."""
    parts = [parse.unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in _NAMESPACE_PARTS):
        namespace, rest = rest[1], rest[2:]
    return ObjectPath(group, version, rest[0], namespace, *rest[1:3])


def accepts(header: str, what: str) -> bool:
    """Whether a client asks for `as=what` rather than, or before, the plain object."""
    return any(f"as={what}" in map(str.strip, choice.split(";")) for choice in header.split(","))


def is_json_acceptable(header: str) -> bool:
    names = {choice.partition(";")[0].strip() for choice in header.split(",")}
    return not header or bool(names & {"application/json", "*/*", "application/*", "application/yaml"})
