"""What the extender knows, and its answers.

In: Tenants, which follow the cluster; a policy (`study`). Out: the bytes of an answer to each question, and how it was
counted. Questions are answered from memory, one after the other, so that no share is promised twice.
Invariant: on doubt there is no opinion: all nodes pass, none has a score, a binding is the plain one, and why is
counted. Doubt is: the mirror is old or incomplete, a pod or its nodes cannot be counted, a defect of ours.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import packing
from fallow.doors.extender import wire
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import capacity, tenants
from fallow.telemetry import Telemetry

log = logging.getLogger("fallow")

PORTION: Final = 2000  # pods taken in before others have their turn
NOT_READY, UNREADABLE_POD, DEFECT = "NotReady", "UnreadablePod", "Defect"
_DECISIONS: Final = "gpu_autoscaler_packing_decisions_total"
_FALLBACKS: Final = "gpu_autoscaler_packing_fallback_total"
_NO_POLICY: Final = "none"
_NEED: Final = names.GPU_MEMORY_NEED.partition("/")[2]  # under our group or the seed's


class Advisor:
    def __init__(
        self, eyes: tenants.Tenants, api: kube.Api, metrics: Telemetry,
        monotonic: Callable[[], Instant] = time.monotonic,
    ) -> None:
        self._eyes, self._api, self._metrics, self._monotonic = eyes, api, metrics, monotonic
        self.room: packing.LiveRoom | None = None
        self._coming: packing.LiveRoom | None = None  # the next one, while it is filled
        metrics.before_scrape(self._tell)

    def _tell(self) -> None:
        promised = len(self.room.promises) if self.room is not None else 0
        self._metrics.set("gpu_autoscaler_packing_reservations", promised)

    def take_in(self) -> None:
        """What changed since the last time."""
        changes, known = self._eyes.take_changes(), self._eyes.tenants
        for room in filter(None, (self.room, self._coming)):
            for uid in changes:
                room.see(uid, known.get(uid))

    async def move_in(self, ground: packing.PackingGround, policy: packing.PackingPolicy) -> None:
        """A new room, filled while the old one answers."""
        self.take_in()
        room = self._coming = packing.LiveRoom(ground, policy)
        everybody = list(self._eyes.tenants)
        for first in range(0, len(everybody), PORTION):
            known = self._eyes.tenants
            for uid in everybody[first : first + PORTION]:
                room.see(uid, known.get(uid))
            await asyncio.sleep(0)
        self.take_in()
        if self.room is not None:
            room.adopt(self.room)
        self.room, self._coming = room, None
        self._metrics.replace("gpu_autoscaler_packing_policy", {(policy.name,): 1})

    def _find_room(self) -> packing.LiveRoom | str:
        """The room as it is now, or why nothing is to be said."""
        doubt = self._eyes.why_doubted()
        if doubt is not None:
            return doubt
        self.take_in()
        return self.room if self.room is not None else NOT_READY

    def filter(self, body: bytes) -> bytes:
        """Raises wire.UNREADABLE."""
        offer = wire.read_offer(body)
        try:
            failed = self._find_failed(offer)
        except Exception:  # a defect of ours must not keep anybody's pod waiting
            failed = self._be_defect()
        return wire.passed(offer, failed)

    def _find_failed(self, offer: wire.Offer) -> dict[str, str]:
        if not offer.says(_NEED):  # there is nothing that the scheduler cannot see
            return {}
        pod, room = offer.read_pod(), self._find_room()
        if pod is None or isinstance(room, str):
            self._count_fallback(UNREADABLE_POD if pod is None else str(room))
            return {}
        need = tenants.read_gpu_memory(pod.metadata.annotations or {})
        if need is None:
            return {}
        lacking = room.lacks_gpu_memory(need, offer.names())
        outcome = "dropped" if lacking else "passed"
        self._metrics.add(_DECISIONS, 1, (room.policy.name, outcome))
        return dict.fromkeys(lacking, f"less than {need} MiB of GPU memory is free on its shared GPUs")

    def prioritize(self, body: bytes) -> bytes:
        """Raises wire.UNREADABLE."""
        offer = wire.read_offer(body)
        try:
            best = self._find_best(offer)
        except Exception:
            self._be_defect()
            best = ()
        return wire.scored(best)

    def _find_best(self, offer: wire.Offer) -> tuple[str, ...]:
        pod, room = offer.read_pod(), self._find_room()
        if pod is None or isinstance(room, str):
            return self._have_no_opinion(UNREADABLE_POD if pod is None else str(room))
        found = room.rank(
            pod.metadata.uid, capacity.see_needs(pod), packing.Offered(offer.names, offer.has), self._monotonic()
        )
        if isinstance(found, packing.NoOpinion):
            return self._have_no_opinion(found)
        if room.policy.fallback:
            self._count_fallback(room.policy.fallback)
        self._metrics.add(_DECISIONS, 1, (room.policy.name, "steered" if found.nodes else "full"))
        return found.nodes

    async def bind(self, body: bytes, patience: Seconds = 1.5) -> bytes:
        """Raises wire.UNREADABLE. The scheduler waits for 2 seconds, and binds by itself where we do not answer."""
        asked = wire.read_bind(body)
        if self.room is not None:
            self.room.bind(asked.uid, asked.node, self._monotonic())
        path = kube.PODS.path(asked.namespace, asked.name, "binding")
        policy = self.room.policy.name if self.room is not None else _NO_POLICY
        try:
            async with asyncio.timeout(patience):
                await self._api.request("POST", path, body=wire.make_binding(asked), patience=kube.ONCE)
        except (errors.ClientError, TimeoutError) as problem:
            self._metrics.add(_DECISIONS, 1, (policy, "refused"))
            return wire.bound(str(problem) or "the API server did not answer in time")
        self._metrics.add(_DECISIONS, 1, (policy, "bound"))
        return wire.bound()

    def _have_no_opinion(self, reason: str) -> tuple[str, ...]:
        self._count_fallback(reason)
        self._metrics.add(_DECISIONS, 1, (_NO_POLICY, "no_opinion"))
        return ()

    def _be_defect(self) -> dict[str, str]:
        log.exception("a question of the scheduler was not answered; it decides alone")
        self._count_fallback(DEFECT)
        return {}

    def _count_fallback(self, reason: str) -> None:
        self._metrics.add(_FALLBACKS, 1, (reason,))
