"""Which kinds the server has, in which versions, and which of them can be scaled.

In: an Api. Out: a `Discovery`, from the two aggregated documents of a current server, or from a list per group and
version of an older one. A group whose own server is down is in `unavailable` and does not fail the others.
Invariant: a kind that is not found in a group that is unavailable is not known to be absent: ask `is_unavailable`.
"""

import asyncio
import re
from collections.abc import Sequence

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_ACCEPT = ",".join([_AGGREGATED.format("v2"), _AGGREGATED.format("v2beta1"), "application/json"])
_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
_STABILITY = {None: 2, "beta": 1, "alpha": 0}


class Discovery(msgspec.Struct, frozen=True):
    """`resources` are in the server's order, the preferred version of each group first.

    `unavailable`: "group/version" -> why.
    """

    resources: tuple[kube.Resource, ...]
    preferred: dict[str, str]
    unavailable: dict[str, str] = {}

    def find(self, group: str, kind: str) -> kube.Resource | None:
        """The preferred version's if that has the kind, else the highest version's that has it."""

        def rank(each: kube.Resource) -> tuple[bool, tuple[int, int, int, str]]:
            return each.version == self.preferred.get(each.group), rank_version(each.version)

        there = (each for each in self.resources if (each.group, each.kind) == (group, kind))
        return max(there, key=rank, default=None)

    def find_called(self, text: str) -> frozenset[tuple[str, str]]:
        """Group and kind of whatever people call so: as kubectl, one or several, for short, with or without group."""
        word, _, group = text.lower().partition(".")
        there = (each for each in self.resources if group in ("", each.group, f"{each.version}.{each.group}"))
        return frozenset((each.group, each.kind) for each in there if word in each.words)

    def find_version(self, group: str, version: str, kind: str) -> kube.Resource | None:
        wanted = (group, version, kind)
        return next((each for each in self.resources if (each.group, each.version, each.kind) == wanted), None)

    def is_unavailable(self, group: str) -> bool:
        """True if some version of the group could not be asked, so that not finding a kind there says nothing."""
        return any(name.rpartition("/")[0] == group for name in self.unavailable)


def rank_version(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' own order: v2 > v1 > v2beta1 > v1beta2 > v1alpha1 > anything else."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return -1, 0, 0, version
    return _STABILITY[match[2]], int(match[1]), int(match[3] or 0), version


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Subresource(msgspec.Struct, frozen=True):
    subresource: str


class _AggregatedResource(msgspec.Struct, frozen=True, rename="camel"):
    resource: str
    response_kind: _Kind | None = None
    scope: str = "Namespaced"
    singular_resource: str = ""
    short_names: list[str] | None = None
    subresources: list[_Subresource] | None = None


class _AggregatedVersion(msgspec.Struct, frozen=True):
    version: str
    freshness: str = "Current"
    resources: list[_AggregatedResource] | None = None


class _Name(msgspec.Struct, frozen=True):
    name: str = ""


class _AggregatedGroup(msgspec.Struct, frozen=True):
    metadata: _Name = _Name()
    versions: list[_AggregatedVersion] | None = None


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str


class _ClassicGroup(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    versions: list[_GroupVersion] | None = None
    preferred_version: _GroupVersion | None = None


class _Root(msgspec.Struct, frozen=True):
    """/api or /apis, in whichever of the three shapes the server answers with."""

    kind: str
    items: list[_AggregatedGroup] | None = None  # APIGroupDiscoveryList
    versions: list[str] | None = None  # APIVersions
    groups: list[_ClassicGroup] | None = None  # APIGroupList


class _ClassicResource(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    kind: str = ""
    namespaced: bool = False
    singular_name: str = ""
    short_names: list[str] | None = None


class _ClassicList(msgspec.Struct, frozen=True):
    resources: list[_ClassicResource] | None = None


_ROOT = msgspec.json.Decoder(_Root)
_CLASSIC_LIST = msgspec.json.Decoder(_ClassicList)


async def discover(api: kube.Api) -> Discovery:
    """Ask the server what it has: two requests, or one per group and version where it is too old for that."""
    core, rest = await _discover_root(api, "/api"), await _discover_root(api, "/apis")
    unavailable = core.unavailable | rest.unavailable
    return Discovery(core.resources + rest.resources, core.preferred | rest.preferred, unavailable)


async def _discover_root(api: kube.Api, path: str) -> Discovery:
    body = await api.request("GET", path, accept=_ACCEPT)
    try:
        root = _ROOT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise errors.BadAnswer(f"{path}: the server's list of kinds cannot be read: {problem}") from problem
    if root.kind == "APIGroupDiscoveryList":
        return _read_aggregated(root.items or ())
    core = [_ClassicGroup("", [_GroupVersion(version) for version in root.versions])] if root.versions else []
    return await _ask_each(api, [*core, *(root.groups or ())])


def _read_aggregated(groups: Sequence[_AggregatedGroup]) -> Discovery:
    found: list[kube.Resource] = []
    preferred: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    for group in groups:
        name = group.metadata.name
        for version in group.versions or ():
            preferred.setdefault(name, version.version)
            found += [
                kube.Resource(
                    name, version.version, each.resource, each.response_kind.kind, each.scope == "Namespaced",
                    _Subresource("scale") in (each.subresources or ()),
                    _names(each.singular_resource, each.short_names),
                )
                for each in version.resources or () if each.response_kind
            ]
            if version.freshness == "Stale":
                unavailable[f"{name}/{version.version}"] = "the server that serves it does not answer"
    return Discovery(tuple(found), preferred, unavailable)


async def _ask_each(api: kube.Api, groups: Sequence[_ClassicGroup]) -> Discovery:
    wanted = [(group.name, each.version) for group in groups for each in group.versions or ()]
    answers = await asyncio.gather(*(_ask_version(api, group, version) for group, version in wanted))
    preferred = {group.name: group.preferred_version.version for group in groups if group.preferred_version}
    found: list[kube.Resource] = []
    unavailable: dict[str, str] = {}
    for (group, version), answer in zip(wanted, answers, strict=True):
        if isinstance(answer, errors.ClientError):
            unavailable[f"{group}/{version}"] = str(answer)
        else:
            found += answer
    return Discovery(tuple(found), preferred, unavailable)


async def _ask_version(api: kube.Api, group: str, version: str) -> list[kube.Resource] | errors.ClientError:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        listed = _CLASSIC_LIST.decode(await api.request("GET", path)).resources or []
    except errors.ClientError as problem:
        return problem
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        return errors.BadAnswer(f"{path}: the list of kinds cannot be read: {problem}")
    scalable = {each.name.removesuffix("/scale") for each in listed if each.name.endswith("/scale")}
    return [
        kube.Resource(
            group, version, each.name, each.kind, each.namespaced, each.name in scalable,
            _names(each.singular_name, each.short_names),
        )
        for each in listed if "/" not in each.name
    ]


def _names(singular: str, short: Sequence[str] | None) -> tuple[str, ...]:
    return (*filter(None, [singular]), *(short or ()))
