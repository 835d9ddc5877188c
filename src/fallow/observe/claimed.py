"""Does a pod that is not there yet ask for GPUs by ResourceClaims, and for how many?

In: the claims that its spec names, by name or by template. Out: whether one of their requests is for a class of GPUs,
or how many GPUs all of them ask for; not seen, where one that might be cannot be read; absent, where one of what they
name is not there: no pod can run with that, and whoever makes it afterwards chooses what it is. A class is one of GPUs
where NVIDIA's driver made it, or where what it selects by names that driver. Read from the API server each time: such
pods are few, and only those that a spent budget means are asked about.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model.policies.budget import ClaimWanted
from fallow.model.seen import ABSENT, Input, Known, Unseen

_GROUP: Final = "resource.k8s.io"


class ClaimItem(msgspec.Struct, frozen=True):
    """A ResourceClaim, a ResourceClaimTemplate or a DeviceClass."""

    spec: dict[str, Any] = {}


class ClaimReader:
    def __init__(self, api: kube.Api) -> None:
        self._api, self._served = api, discovery.Discovery((), {})

    async def ask_for_gpus(self, namespace: str, claims: Sequence[ClaimWanted]) -> Input[bool]:
        """All are looked at: one that cannot be read hides no other."""
        found: Input[bool] = Known(False)
        for claim in dict.fromkeys(claims):
            try:
                if await self._asks(namespace, claim):
                    return Known(True)
            except errors.NotFound:
                found = ABSENT if isinstance(found, Known) else found
            except errors.ClientError as problem:
                found = Unseen(f"its claims: {problem}")
        return found

    async def count_gpus(self, namespace: str, claims: Sequence[ClaimWanted]) -> Input[int]:
        """Of alternatives the most. Who asks for all of a node asks for nobody knows how many."""
        total = 0
        for claim in claims:
            try:
                for request in (await self._read_devices(namespace, claim)).get("requests") or ():
                    counts = [await self._count(one) for one in _list_wanted(request)]
                    if None in counts:
                        return Unseen("a claim asks for all GPUs of a node")
                    total += max(filter(None, counts), default=0)
            except errors.NotFound:
                return ABSENT
            except errors.ClientError as problem:
                return Unseen(f"its claims: {problem}")
        return Known(total)

    async def _count(self, wanted: Mapping[str, Any]) -> int | None:
        name = wanted.get("deviceClassName")
        if not name or wanted.get("adminAccess"):
            return 0
        if not _is_of_gpus(name) and not _selects_gpus(await self._read("DeviceClass", None, name)):
            return 0
        return None if wanted.get("allocationMode") == "All" else int(wanted.get("count") or 1)

    async def _asks(self, namespace: str, claim: ClaimWanted) -> bool:
        for name in sorted(set(_find_classes(await self._read_devices(namespace, claim)))):
            if _is_of_gpus(name) or _selects_gpus(await self._read("DeviceClass", None, name)):
                return True
        return False

    async def _read_devices(self, namespace: str, claim: ClaimWanted) -> Mapping[str, Any]:
        if claim.resource_claim_name:
            found: Any = await self._read("ResourceClaim", namespace, claim.resource_claim_name)
        else:
            made = await self._read("ResourceClaimTemplate", namespace, claim.resource_claim_template_name)
            found = made.get("spec") or {}
        return found.get("devices") or {}

    async def _read(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        resource = self._served.find(_GROUP, kind)
        if resource is None:
            self._served = await discovery.discover(self._api)
            resource = self._served.find(_GROUP, kind)
        if resource is None:
            raise errors.NotFound(404, f"the API server does not know {kind}")
        return (await self._api.get(resource, namespace, name, kind=ClaimItem)).spec


def _find_classes(devices: Mapping[str, Any]) -> Iterator[str]:
    for request in devices.get("requests") or ():
        yield from (one["deviceClassName"] for one in _list_wanted(request) if one.get("deviceClassName"))


def _list_wanted(request: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """As v1 has them (`exactly`, `firstAvailable`), and as v1beta1 had."""
    return (request, request.get("exactly") or {}, *(request.get("firstAvailable") or ()))


def _is_of_gpus(name: str) -> bool:
    return name == names.DRA_DRIVER or name in names.DRA_CLASSES


def _selects_gpus(spec: Mapping[str, Any]) -> bool:
    said = ((one.get("cel") or {}).get("expression", "") for one in spec.get("selectors") or ())
    return any(names.DRA_DRIVER in text for text in said)
