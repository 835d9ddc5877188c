"""For `fallow doctor`: what the API server says of itself, of us and of our kinds.

In: what a kubeconfig says. Out: ClusterFacts; what could not be read is unseen, with the reason. Raises what the client
does where the API server itself does not answer.
"""

import time
from typing import Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.units import Instant
from fallow.wiring import reach

_BOUNDS: Final = "/apis/admissionregistration.k8s.io/v1"


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`at`, `server_at`: one instant by our clock and by the server's. `kinds`: plural names of ours that are served.
    `has_bounds`: whether it knows ValidatingAdmissionPolicies."""

    version: str
    who: str
    at: Instant
    server_at: Input[Instant]
    kinds: Input[tuple[str, ...]]
    has_bounds: Input[bool]


class _Version(msgspec.Struct):
    git_version: str = msgspec.field(default="", name="gitVersion")


class _Served(msgspec.Struct):
    name: str


class _ServedList(msgspec.Struct):
    resources: list[_Served] = []


async def gather(kubeconfig: str | None, context: str | None) -> ClusterFacts:
    async with reach.open_api(kubeconfig, context) as (api, _):
        version = _read_version(await api.request("GET", "/version"))
        who = await api.who_am_i() or ""
        kinds, bounds = await _list_served(api, f"/apis/{names.GROUP}/v1alpha1"), await _list_served(api, _BOUNDS)
        return ClusterFacts(
            version=version, who=who, at=time.time(), server_at=api.clock, kinds=kinds, has_bounds=_has(bounds)
        )


def _read_version(body: bytes) -> str:
    """Raises BadAnswer where it is no API server that answers, as a proxy's page of login."""
    try:
        return msgspec.json.decode(body, type=_Version).git_version
    except msgspec.MsgspecError as problem:
        raise errors.BadAnswer(f"what answers is no API server of Kubernetes: /version: {problem}") from None


async def _list_served(api: kube.Api, path: str) -> Input[tuple[str, ...]]:
    try:
        found = msgspec.json.decode(await api.request("GET", path), type=_ServedList)
    except errors.NotFound:
        return ABSENT
    except (errors.ClientError, msgspec.MsgspecError) as problem:
        return Unseen(str(problem))
    return Known(tuple(sorted(each.name for each in found.resources if "/" not in each.name)))


def _has(served: Input[tuple[str, ...]]) -> Input[bool]:
    match served:
        case Known(value=some):
            return Known("validatingadmissionpolicies" in some)
        case Unseen():
            return served
        case _:
            return Known(False)
