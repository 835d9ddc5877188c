"""Nodes that are hardly used, emptied one at a time; without leave to act, only told.

    look    nodes that are being emptied; where none is, what all nodes have and who is on them
    plan    the next step of that node, or which node to begin with
    act     that one step
    tell    what was done, or which node could be emptied, in a sentence; the node's record and Events say the rest

Whatever is on a node because of us is ended first, also where emptying was switched off meanwhile. One step a turn:
what is killed between two turns goes on, or is given back, in the next. All nodes and pods are only listed every few
minutes: nobody waits for the answer.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from fallow import telemetry
from fallow.act.emptying import Emptier
from fallow.clients import errors
from fallow.decide import packing
from fallow.model import cluster, emptying
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe.cluster.emptied import NodeEyes, TouchedNode
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 30.0
BUDGET: Final[Seconds] = 60.0
PLANNED: Final[Seconds] = 5 * MINUTE  # between two looks at everything
_FORGOTTEN: Final[Seconds] = 3 * PLANNED  # a figure as old tells nothing
_MOST_SCORES: Final = 10_000  # GPUs of which one is told, the worst first


class ConsolidationEyes(msgspec.Struct, frozen=True):
    """`why_kept`: what else keeps a pod, by what is known now; asking for it raises where that is not seen."""

    nodes: NodeEyes
    capacity: Callable[[], Awaitable[cluster.Capacity]]
    why_kept: Callable[[], Awaitable[packing.WhyKept]]


class ConsolidationTerms(msgspec.Struct, frozen=True):
    """`held`: why nothing may be done now, asked each time; "": it may. `plans`: nodes are looked for at all."""

    held: Callable[[Instant], str]
    plans: bool = True
    threshold: float = packing.THRESHOLD
    timeout: Seconds = packing.EVICT_TIMEOUT


class ConsolidationCycle(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`, `room`: the latest that were made, and when."""

    plan: packing.ConsolidationPlan | None = None
    room: packing.ClusterRoom | None = None
    planned_at: Instant | None = None
    done: str = ""
    failure: str = ""


class ConsolidationStory:
    def __init__(
        self, *, eyes: ConsolidationEyes, hands: Emptier, terms: ConsolidationTerms, metrics: telemetry.Telemetry
    ) -> None:
        self._eyes, self._hands, self._terms, self._metrics = eyes, hands, terms, metrics
        self._last, self._is_measured = ConsolidationCycle(), False
        self._said, self._complaint = "", Complaint("which nodes could be emptied is not known: %s")

    async def tick(self, turn: Turn) -> ConsolidationCycle:
        if self._last.planned_at is not None and turn.now - self._last.planned_at > _FORGOTTEN:
            self._forget_room()
        touched = await turn.in_time(self._eyes.nodes.find_touched())
        emptied = next((each for each in touched if each.is_emptying), None)
        if emptied is not None:
            return self._keep(done=await self._advance(emptied.name, turn))
        await self._forget_old(touched, turn)
        if not self._is_due(turn.now):
            return self._keep()
        seen, found = await self._plan(turn, touched)
        done = await self._begin(seen, found, touched, turn)
        self._tell(found)
        with stumbling():
            room = packing.measure_room(seen, turn.now)
        await self._measure(room, seen, turn)
        self._last = ConsolidationCycle(plan=found, room=room, planned_at=turn.now)
        return self._keep(done=done)

    def _keep(self, *, done: str = "") -> ConsolidationCycle:
        self._complaint.note("")
        return msgspec.structs.replace(self._last, done=done)

    async def look(self, turn: Turn) -> ConsolidationCycle:
        seen, found = await self._plan(turn, await turn.in_time(self._eyes.nodes.find_touched()))
        with stumbling():
            return ConsolidationCycle(plan=found, room=packing.measure_room(seen, turn.now), planned_at=turn.now)

    def fail(self, because: str, turn: Turn) -> ConsolidationCycle:
        self._complaint.note(because)
        self._forget_room()
        return ConsolidationCycle(failure=because)

    def _is_due(self, now: Instant) -> bool:
        last = self._last.planned_at
        return self._terms.plans and (last is None or not 0 <= now - last < PLANNED)

    async def _plan(
        self, turn: Turn, touched: Sequence[TouchedNode]
    ) -> tuple[cluster.Capacity, packing.ConsolidationPlan]:
        why_kept = await turn.in_time(self._eyes.why_kept())
        seen = await turn.in_time(self._eyes.capacity())
        with stumbling():
            return seen, packing.plan_consolidation(
                seen, turn.now, why_kept=why_kept, threshold=self._terms.threshold,
                resting={each.name for each in touched if _rests(each, turn.now)},
            )

    async def _begin(
        self, seen: cluster.Capacity, found: packing.ConsolidationPlan, touched: Sequence[TouchedNode], turn: Turn
    ) -> str:
        now, chosen = turn.now, found.chosen
        if chosen is None or self._terms.held(now):
            return ""
        gpu_nodes = sum(machine.gpus > 0 for machine in seen.machines)
        begun = [each.began_at if each.began_at is not None else now for each in touched]
        if not packing.may_begin(gpu_nodes, begun, now):
            return ""
        there = await turn.in_time(self._eyes.nodes.look(chosen.node, now))
        if there is None or there.is_cordoned or there.has_place_held or any(pod.fixed for pod in there.pods):
            return f"{chosen.node} is not as it was: nothing was begun"
        return await self._carry_out(there, packing.begin_emptying(there, chosen.because, now), turn)

    async def _advance(self, name: str, turn: Turn) -> str:
        is_on = not self._terms.held(turn.now)
        if is_on:  # whoever is moved, what people said of it is seen as it is now; giving back waits for nothing
            await turn.in_time(self._eyes.why_kept())
        there = await turn.in_time(self._eyes.nodes.look(name, turn.now))
        if there is None:
            return ""
        step = packing.advance_emptying(there, turn.now, is_on=is_on, timeout=self._terms.timeout)
        return await self._carry_out(there, step, turn) if step is not None else ""

    async def _carry_out(self, there: emptying.NodeNow, step: emptying.EmptyingStep, turn: Turn) -> str:
        if not turn.may_act():
            return ""
        try:
            done = f"{there.name}: {await self._hands.carry_out(there, step, turn.now)}"
        except errors.Conflict:
            done = f"{there.name} changed meanwhile: it is looked at again"
        log.info("%s", done)
        return done

    async def _forget_old(self, touched: Sequence[TouchedNode], turn: Turn) -> None:
        for each in touched:
            if turn.may_act() and not _rests(each, turn.now):
                await self._hands.forget(each.name)

    async def _measure(self, room: packing.ClusterRoom, seen: cluster.Capacity, turn: Turn) -> None:
        bound = await asyncio.to_thread(packing.measure_bound, seen, turn.now)
        self._metrics.set("gpu_autoscaler_packing_bound_ratio", math.nan if bound is None else bound)
        worst = sorted(room.scores.items(), key=lambda one: (-one[1], one[0]))[:_MOST_SCORES]
        self._metrics.replace("gpu_memory_fragmentation_score", {(node, str(gpu)): at for (node, gpu), at in worst})
        self._metrics.set("gpu_autoscaler_capacity_gpus", room.gpus)
        self._metrics.set("gpu_autoscaler_allocated_gpus", room.allocated_gpus)
        fragmented = math.nan if room.fragmented is None else room.fragmented
        self._metrics.set("gpu_autoscaler_fragmentation_ratio", fragmented)
        causes = {(str(cause),): free for cause, free in room.free_by_cause.items()}
        self._metrics.replace("gpu_autoscaler_fragmented_gpus", causes)
        self._is_measured = True

    def _forget_room(self) -> None:
        """Nobody looked for too long: what was free then tells nothing of now."""
        if self._is_measured:
            for name in ("capacity_gpus", "allocated_gpus", "fragmentation_ratio", "packing_bound_ratio"):
                self._metrics.set(f"gpu_autoscaler_{name}", math.nan)
            for name in ("gpu_autoscaler_fragmented_gpus", "gpu_memory_fragmentation_score"):
                self._metrics.replace(name, {})
        self._is_measured = False

    def _tell(self, found: packing.ConsolidationPlan) -> None:
        """A line when another node is chosen."""
        said = "" if found.chosen is None else f"{found.chosen.node} could be emptied: {found.chosen.because}"
        if said and said != self._said:
            log.info("%s", said)
        self._said = said


def _rests(node: TouchedNode, now: Instant) -> bool:
    return packing.rests_after_emptying(node.ended, node.began_at, now)
