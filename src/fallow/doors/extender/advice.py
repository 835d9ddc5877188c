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
from fallow.model import moving
from fallow.model.units import HOUR, Instant, Seconds
from fallow.observe.cluster import capacity, pods, tenants
from fallow.telemetry import Telemetry

log = logging.getLogger("fallow")

PORTION: Final = 2000  # pods taken in before others have their turn
NOT_READY, UNREADABLE_POD, DEFECT = "NotReady", "UnreadablePod", "Defect"
# kube-scheduler asks nothing about a pod that fits nowhere, so that a quiet cluster is long silent.
ASKED_WITHIN: Final[Seconds] = HOUR
_MOST_SCHEDULERS: Final = 100  # anybody may name one
_DECISIONS: Final = "gpu_autoscaler_packing_decisions_total"
_FALLBACKS: Final = "gpu_autoscaler_packing_fallback_total"
_NO_POLICY: Final = "none"
_NEED: Final = names.GPU_MEMORY_NEED.partition("/")[2]  # under our group or the seed's


class Advisor:
    def __init__(
        self, eyes: tenants.Tenants, api: kube.Api, metrics: Telemetry,
        monotonic: Callable[[], Instant] = time.monotonic, clock: Callable[[], Instant] = time.time,
    ) -> None:
        self._eyes, self._api, self._metrics, self._monotonic = eyes, api, metrics, monotonic
        self.room: packing.LiveRoom | None = None
        self._coming: packing.LiveRoom | None = None  # the next one, while it is filled
        self._clock, self._defect = clock, ""
        self._asked: dict[str, Instant] = {}  # by scheduler: when it asked last
        metrics.before_scrape(self._tell)

    def _tell(self) -> None:
        self._metrics.set("gpu_autoscaler_packing_places_kept", sum(self.find_kept().values()))
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
            self._note_asked(offer.find_scheduler())
            failed = self._find_failed(offer)
        except Exception as problem:  # a defect of ours must not keep anybody's pod waiting
            self._be_defect(problem)
            failed = {}
        return wire.passed(offer, failed)

    def _note_asked(self, scheduler: str) -> None:
        if len(self._asked) >= _MOST_SCHEDULERS:
            self._asked.clear()
        self._asked[scheduler] = self._monotonic()

    def _find_failed(self, offer: wire.Offer) -> dict[str, str]:
        held = self._find_held()
        if not held and not offer.says(_NEED):  # there is nothing that the scheduler cannot see
            return {}
        pod, room = offer.read_pod(), self._find_room()
        if pod is None or isinstance(room, str):
            self._count_fallback(UNREADABLE_POD if pod is None else str(room))
            return {}
        need = tenants.read_gpu_memory(pod.metadata.annotations or {})
        kept = {name for name, place in held.items() if offer.has(name) and _is_kept_from(room, name, place, pod)}
        if need is None and not kept:
            return {}
        failed = dict.fromkeys(kept, "a place there is kept for a pod that is moved, or let in by a move")
        if need is not None:
            lacking = room.lacks_gpu_memory(need, offer.names())
            failed |= dict.fromkeys(lacking, f"less than {need} MiB of GPU memory is free on its shared GPUs")
        self._metrics.add(_DECISIONS, 1, (room.policy.name, "dropped" if failed else "passed"))
        return failed

    def _find_held(self) -> dict[str, moving.HeldPlace]:
        """Places that are kept now, and not taken yet, by the name of the node."""
        if not self._eyes.held:
            return {}
        now, taken = self._clock(), self._eyes.taken
        return {
            name: place for name, place in self._eyes.held.items()
            if place.is_kept(now) and moving.name_place(place.move, name) not in taken
        }

    def find_kept(self) -> dict[str, bool]:
        """By place, whether it is really kept: there is room for whom it is meant, and their scheduler asks this very
        process, which neither the one beside a scheduler that does not lead nor a name in a flag tells. Of a place that
        it could keep, and is not asked about, nothing is said."""
        try:
            room = self._find_room()
            judged = {
                moving.name_place(place.move, name): self._keeps(room, name, place)
                for name, place in self._find_held().items()
            }
            return {name: is_kept for name, is_kept in judged.items() if is_kept is not None}
        except Exception as problem:  # who is told so moves nobody
            self._be_defect(problem)
            return {moving.name_place(place.move, name): False for name, place in self._eyes.held.items()}

    def _keeps(self, room: packing.LiveRoom | str, name: str, place: moving.HeldPlace) -> bool | None:
        if isinstance(room, str) or not room.has_place(name, place):
            return False
        return True if self._is_asked_by(place.scheduler) else None

    def _is_asked_by(self, scheduler: str) -> bool:
        asked = self._asked.get(scheduler)
        return asked is not None and self._monotonic() - asked <= ASKED_WITHIN

    def prioritize(self, body: bytes) -> bytes:
        """Raises wire.UNREADABLE."""
        offer = wire.read_offer(body)
        try:
            best = self._find_best(offer)
        except Exception as problem:
            self._be_defect(problem)
            best = ()
        return wire.scored(best)

    def _find_best(self, offer: wire.Offer) -> tuple[str, ...]:
        pod, room = offer.read_pod(), self._find_room()
        if pod is None or isinstance(room, str):
            return self._have_no_opinion(UNREADABLE_POD if pod is None else str(room))
        who, held = pods.identify(pod), self._find_held()
        kept = next((name for name, place in held.items() if place.is_for(*who)), "")
        found = room.rank(
            who[0], capacity.see_needs(pod), packing.Offered(offer.names, offer.has), self._monotonic(), kept
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

    def _be_defect(self, problem: Exception) -> None:
        """Counted each time, and said when it becomes another: some of what may fail is tried every second."""
        if repr(problem) != self._defect:
            log.exception("a question of the scheduler was not answered, or no place is kept; it decides alone")
        self._defect = repr(problem)
        self._count_fallback(DEFECT)

    def _count_fallback(self, reason: str) -> None:
        self._metrics.add(_FALLBACKS, 1, (reason,))


def _is_kept_from(
    room: packing.LiveRoom, node: str, place: moving.HeldPlace, pod: capacity.CountedPodItem
) -> bool:
    """Only where both do not fit. Who has more priority than whom it is kept for is never kept away."""
    if place.is_for(*pods.identify(pod)) or (pod.spec.priority or 0) > place.priority:
        return False
    return room.has_place(node, place, capacity.see_needs(pod)) is False
