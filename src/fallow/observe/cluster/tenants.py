"""All pods and nodes as slim as whoever chooses places can do with, and which of them changed since it was asked last.

In: an Api; `run` follows both by short watches. Out: `tenants` and `machines`; `take_changes`, the pods that came, went
or differ; `why_doubted`, in one word, when what is here must not be relied on; `held`, the places that nodes say are
kept for a pod that is moved, and `taken`, those of them whose pod is there.
A quiet watch says nothing, alive or cut off. So each is opened anew within 20 seconds: the server then either says what
came meanwhile or is not heard, and nobody has to guess.
Invariant: of a change that was not taken in, `take_changes` says so the next time; what is older than 30 seconds, or
could not be read in full, is in doubt.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import classes, moving, quantities
from fallow.model.capacity import Machine, Needs, Tenant
from fallow.model.units import Seconds
from fallow.observe.cluster import capacity, following, objects, pods

OLDEST: Final[Seconds] = 30.0
WATCH_SECONDS: Final = (12, 18)
_LARGEST: Final = 1 << 30  # MiB


class Doubt(StrEnum):
    """Why what is seen must not be relied on."""

    NotListed = "NotListed"
    StaleMirror = "StaleMirror"
    UnreadablePods = "UnreadablePods"


class Tenants:
    def __init__(self, api: kube.Api) -> None:
        area = following.Area(api)
        self.cluster = ""  # uid of kube-system; "": not known
        self._api = api
        self._shared: dict[Needs, Needs] = {}
        self._changed: set[str] = set()
        self.held: dict[str, moving.HeldPlace] = {}  # by the name of the node
        self.taken: set[str] = set()  # as moving.name_place calls them
        self._pods = area.follow(
            kube.PODS, capacity.CountedPodItem, self._keep, field_selector=pods.ALIVE, parted=self._part,
            watch_seconds=WATCH_SECONDS,
        )
        self._nodes = area.follow(
            kube.NODES, capacity.CountedNodeItem, self._see_machine, parted=self._lose_machine,
            watch_seconds=WATCH_SECONDS,
        )

    async def run(self) -> None:
        """Until cancelled."""
        await self._identify()
        async with following.Starter() as starter:
            starter.stays = True
            await starter.begin([self._nodes, self._pods])
            while True:
                await asyncio.sleep(OLDEST)
                starter.check()
                await self._identify()

    async def _identify(self) -> None:
        if not self.cluster:
            with contextlib.suppress(errors.ClientError):
                found = await self._api.get(kube.NAMESPACES, None, "kube-system", kind=objects.Bare)
                self.cluster = found.metadata.uid

    def _keep(self, item: capacity.CountedPodItem) -> Tenant:
        self._changed.add(item.metadata.uid)
        needs = capacity.see_needs(item)
        self._note_taken(item)
        if len(self._shared) > objects.MOST_SHARED:  # of pods long gone, mostly; those alive keep theirs
            self._shared.clear()
        return Tenant(
            uid=item.metadata.uid, node=sys.intern(item.spec.node_name), needs=self._shared.setdefault(needs, needs),
            created_at=item.metadata.creation_timestamp.timestamp(),
            gpu_memory=read_gpu_memory(item.metadata.annotations or {}),
        )

    def _note_taken(self, item: capacity.CountedPodItem) -> None:
        place = self.held.get(item.spec.node_name) if self.held else None
        if place is not None and place.is_taken_by(*pods.identify(item), item.metadata.creation_timestamp.timestamp()):
            self.taken.add(moving.name_place(place.move, item.spec.node_name))

    def _see_machine(self, item: capacity.CountedNodeItem) -> Machine:
        name = item.metadata.name
        place = moving.read_place((item.metadata.annotations or {}).get(names.PLACE_HELD))
        if place is not None:
            self.held[name] = place
        elif self.held.pop(name, None) is not None and not self.held:
            self.taken.clear()
        return capacity.see_machine(item, is_offered=True)

    def _lose_machine(self, kept: Machine, _: object) -> None:
        self.held.pop(kept.name, None)

    def _part(self, kept: Tenant, _: object) -> None:
        self._changed.add(kept.uid)

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """By uid."""
        return self._pods.store

    @property
    def machines(self) -> Mapping[str, Machine]:
        """By the uid of the node."""
        return self._nodes.store

    @property
    def nodes_stamp(self) -> following.Stamp:
        return self._nodes.stamp

    def take_changes(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed

    def why_doubted(self, monotonic: float | None = None) -> Doubt | None:
        now = time.monotonic() if monotonic is None else monotonic
        for each in (self._pods, self._nodes):
            if each.heard_at is None or each.why_blind() is not None:
                return Doubt.NotListed
            if now - each.heard_at > OLDEST:
                return Doubt.StaleMirror
        return Doubt.UnreadablePods if self._pods.unreadable else None


def read_gpu_memory(annotations: Mapping[str, str]) -> int | None:
    """MiB of GPU memory that a pod says it needs: a quantity, or a bare number of MiB. What cannot be read says
    nothing."""
    text = classes.read_key(annotations, names.GPU_MEMORY_NEED)[0]
    if not text or len(text) > 40:
        return None
    try:
        need = int(text) if text.isdecimal() else quantities.parse_mebi(text)
    except ValueError:
        return None
    return need if 0 < need < _LARGEST else None
