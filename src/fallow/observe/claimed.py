"""Does a pod that is not there yet ask for GPUs by ResourceClaims, and for how many?

In: the claims that its spec names, by name or by template. Out: whether one of their requests is for a class of GPUs,
or how many GPUs all of them ask for; not seen, where one that might be cannot be read; absent, where one of what they
name is not there: no pod can run with that, and whoever makes it afterwards chooses what it is. A class is one of GPUs
where NVIDIA's driver made it, or where what it selects by names that driver. Only pods that a spent budget means are
asked about.
Invariant: no pod costs more requests than are made within a second, whatever it names.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import discovery
from fallow.model.policies.budget import MOST_CLAIMS, ClaimWanted
from fallow.model.seen import ABSENT, Absent, Input, Known, Unseen
from fallow.model.units import MINUTE, Seconds

_GROUP: Final = "resource.k8s.io"
_REMEMBERED: Final[Seconds] = MINUTE

T = TypeVar("T")


class ClaimItem(msgspec.Struct, frozen=True):
    """A ResourceClaim, a ResourceClaimTemplate or a DeviceClass."""

    spec: dict[str, Any] = {}


class ClaimReader:
    """What classes are of is remembered for a minute. Claims are read anew: their makers may put another one in a
    claim's place."""

    def __init__(self, api: kube.Api, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._monotonic, self._served = api, monotonic, discovery.Discovery((), {})
        self._discovering = asyncio.Lock()
        self._classes: dict[str, tuple[Seconds, bool]] = {}

    async def ask_for_gpus(self, namespace: str, claims: Sequence[ClaimWanted]) -> Input[bool]:
        """All are looked at, at the same time: one that cannot be read hides no other. Who names more of them, or more
        classes, than are looked at asks for GPUs: else its second would be over before the one that does."""
        if len(set(claims)) > MOST_CLAIMS:
            return Known(True)
        read = await _try_all(self._read_devices(namespace, claim) for claim in dict.fromkeys(claims))
        named = {name for each in read if not isinstance(each, errors.ClientError) for name in _find_classes(each)}
        if len(named) > MOST_CLAIMS:
            return Known(True)
        answers = await _try_all(self._is_of_gpus(name) for name in sorted(named))
        if True in answers:
            return Known(True)
        unread = _find_unread((*read, *answers))
        return Known(False) if unread is None else unread

    async def count_gpus(self, namespace: str, claims: Sequence[ClaimWanted]) -> Input[int]:
        """Of alternatives the most. Who asks for all of a node asks for nobody knows how many."""
        if len(set(claims)) > MOST_CLAIMS:
            return Unseen(f"it names more than {MOST_CLAIMS} claims")
        wanted = tuple(dict.fromkeys(claims))
        read = await _try_all(self._read_devices(namespace, claim) for claim in wanted)
        counted = await _try_all(
            self._count_devices({} if isinstance(each, errors.ClientError) else each) for each in read
        )
        if (unread := _find_unread((*read, *counted))) is not None:
            return unread
        by_claim = dict(zip(wanted, counted, strict=True))
        counts = [by_claim[claim] for claim in claims]
        known = [count for count in counts if isinstance(count, int)]
        return Known(sum(known)) if len(known) == len(counts) else Unseen("a claim asks for all GPUs of a node")

    async def _count_devices(self, devices: Mapping[str, Any]) -> int | None:
        total = 0
        for request in devices.get("requests") or ():
            counts = [await self._count(one) for one in _list_wanted(request)]
            if None in counts:
                return None
            total += max(filter(None, counts), default=0)
        return total

    async def _count(self, wanted: Mapping[str, Any]) -> int | None:
        name = wanted.get("deviceClassName")
        if not name or wanted.get("adminAccess") or not await self._is_of_gpus(name):
            return 0
        return None if wanted.get("allocationMode") == "All" else int(wanted.get("count") or 1)

    async def _is_of_gpus(self, name: str) -> bool:
        if name == names.DRA_DRIVER or name in names.DRA_CLASSES:
            return True
        known, now = self._classes.get(name), self._monotonic()
        if known is None or now - known[0] > _REMEMBERED:
            known = self._classes[name] = now, _selects_gpus(await self._read("DeviceClass", None, name))
        return known[1]

    async def _read_devices(self, namespace: str, claim: ClaimWanted) -> Mapping[str, Any]:
        if claim.resource_claim_name:
            found: Any = await self._read("ResourceClaim", namespace, claim.resource_claim_name)
        else:
            made = await self._read("ResourceClaimTemplate", namespace, claim.resource_claim_template_name)
            found = made.get("spec") or {}
        return found.get("devices") or {}

    async def _read(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        async with self._discovering:
            resource = self._served.find(_GROUP, kind)
            if resource is None:
                self._served = await discovery.discover(self._api)
                resource = self._served.find(_GROUP, kind)
        if resource is None:
            raise errors.NotFound(404, f"the API server does not know {kind}")
        return (await self._api.get(resource, namespace, name, kind=ClaimItem)).spec


async def _try_all(looks: Iterable[Awaitable[T]]) -> list[T | errors.ClientError]:
    """At the same time; what one raises stands in its place."""

    async def attempt(look: Awaitable[T]) -> T | errors.ClientError:
        try:
            return await look
        except errors.ClientError as problem:
            return problem

    return await asyncio.gather(*(attempt(look) for look in looks))


def _find_unread(found: Iterable[object]) -> Absent | Unseen | None:
    """None: all could be read."""
    problems = [each for each in found if isinstance(each, errors.ClientError)]
    for each in problems:
        if not isinstance(each, errors.NotFound):
            return Unseen(f"its claims: {each}")
    return ABSENT if problems else None


def _find_classes(devices: Mapping[str, Any]) -> Iterator[str]:
    for request in devices.get("requests") or ():
        yield from (one["deviceClassName"] for one in _list_wanted(request) if one.get("deviceClassName"))


def _list_wanted(request: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """As v1 has them (`exactly`, `firstAvailable`), and as v1beta1 had."""
    return (request, request.get("exactly") or {}, *(request.get("firstAvailable") or ()))


def _selects_gpus(spec: Mapping[str, Any]) -> bool:
    said = ((one.get("cel") or {}).get("expression", "") for one in spec.get("selectors") or ())
    return any(names.DRA_DRIVER in text for text in said)
