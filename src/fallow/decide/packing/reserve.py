"""Placements that were promised and are not taken yet.

Between the moment a scheduler hears where a pod should go and the moment the pod is seen there, its share must count as
taken, or the next pod is sent to the same one. In: pods by uid, and `now`. Out: placements, each kept for a while and
then given back.
Invariant: a promise ends in exactly one way, settled or too old; both give its room back, and a pod that is seen bound
is added by whoever sees it, where it really is.
"""

from typing import Final

from fallow.decide.packing.packer import Packer
from fallow.decide.packing.room import PackingPod, Placement
from fallow.model.units import Instant, Seconds

PROMISED_FOR: Final[Seconds] = 30.0


class Reservations:
    """Promises on the room of one packer."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._promised: dict[str, tuple[PackingPod, Placement, Instant]] = {}  # by uid; until when

    def __len__(self) -> int:
        return len(self._promised)

    def promise(self, uid: str, pod: PackingPod, now: Instant) -> Placement | None:
        """The best placement for the pod, taken from now on, or the one that was promised before; None: no room."""
        self.expire(now)
        if uid in self._promised:
            return self._promised[uid][1]
        placement = self._packer.arrive(pod)
        if placement is not None:
            self._promised[uid] = pod, placement, now + PROMISED_FOR
        return placement

    def settle(self, uid: str) -> bool:
        """The pod was seen bound, or is gone: its promise ends. Whether there was one."""
        if uid not in self._promised:
            return False
        pod, placement, _ = self._promised.pop(uid)
        self._packer.room.remove(pod, placement)
        return True

    def expire(self, now: Instant) -> None:
        for uid in [uid for uid, (_, _, until) in self._promised.items() if until <= now]:
            self.settle(uid)
