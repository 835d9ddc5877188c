"""Placements that were promised and are not taken yet.

Between the moment a scheduler hears where a pod should go and the moment the pod is seen there, its share must count as
taken, or the next pod is sent to the same one. In: pods by uid, and `now`. Out: placements, each kept for a while and
then given back.
Invariant: a promise ends in exactly one way, settled or too old; both give its room back, and a pod that is seen bound
is added by whoever sees it, where it really is.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from fallow.decide.packing.packer import Packer
from fallow.decide.packing.room import PackingPod, Placement
from fallow.model.units import Instant, Seconds

PROMISED_FOR: Final[Seconds] = 30.0


class Promise(msgspec.Struct, frozen=True):
    uid: str
    pod: PackingPod
    placement: Placement
    until: Instant


class Reservations:
    """Promises on the room of one packer, the oldest first."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._promised: dict[str, Promise] = {}  # by uid

    def __len__(self) -> int:
        return len(self._promised)

    def __iter__(self) -> Iterator[Promise]:
        return iter(tuple(self._promised.values()))

    def promise(self, uid: str, pod: PackingPod, now: Instant) -> Placement | None:
        """The best placement for the pod, taken from now on, or the one that was promised before; None: no room."""
        self.expire(now)
        if uid in self._promised:
            return self._promised[uid].placement
        placement = self._packer.arrive(pod)
        if placement is not None:
            self._promised[uid] = Promise(uid, pod, placement, now + PROMISED_FOR)
        return placement

    def hold(self, promise: Promise) -> bool:
        """This very placement, taken from now on instead of one promised before; whether there is room."""
        self.settle(promise.uid)
        if not self._packer.room.fits(promise.pod, promise.placement):
            return False
        self._packer.room.add(promise.pod, promise.placement)
        self._promised[promise.uid] = promise
        return True

    def settle(self, uid: str) -> bool:
        """The pod was seen bound, or is gone: its promise ends. Whether there was one."""
        promise = self._promised.pop(uid, None)
        if promise is None:
            return False
        self._packer.room.remove(promise.pod, promise.placement)
        return True

    def release(self, node: int) -> None:
        """Somebody is there who was not expected: what was promised of that node can no longer be kept."""
        for promise in self:
            if promise.placement.node == node:
                self.settle(promise.uid)

    def expire(self, now: Instant) -> None:
        for promise in self:
            if promise.until > now:
                break
            self.settle(promise.uid)
