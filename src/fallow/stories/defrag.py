"""A pod moved so that another, which waits, fits in its place; without leave to act, only told.

    look    nodes that take part in a move; where none does, and somebody waits, all nodes and who is on them
    plan    the next step of that move, or which pod to move
    act     that one step
    tell    what was done, or which move would help, in a sentence; the node's record, Events and the audit say the rest

A move that runs is ended first, also where moves were switched off meanwhile, and a place that is kept for no move is
free again. One step a turn: what is killed between two turns goes on, or is given back, in the next. All nodes and pods
are only listed where a pod has waited for long, and every five minutes at the most.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import msgspec

from fallow import names, telemetry
from fallow.act.moving import Mover
from fallow.clients import errors
from fallow.decide import packing
from fallow.model import cluster, moving
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.model.moving import MoveEnd, MoveNode, MoveRecord
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds
from fallow.observe.cluster.moved import MoveEyes, MovingNode
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 10.0
BUDGET: Final[Seconds] = 60.0
PLANNED: Final[Seconds] = 5 * MINUTE  # between two looks at everything


class DefragEyes(msgspec.Struct, frozen=True):
    """`waits`: whether any GPU pod has waited long enough for a node. `served`: uids of pods for which a machine is on
    its way. `why_kept`: what else keeps a pod, by what is known now; asking for it raises where that is not seen."""

    moves: MoveEyes
    waits: Callable[[Instant], bool]
    served: Callable[[], Collection[str]]
    capacity: Callable[[], Awaitable[cluster.Capacity]]
    why_kept: Callable[[], Awaitable[packing.WhyKept]]


class DefragTerms(msgspec.Struct, frozen=True):
    """`held`: why nothing may be done now, asked each time; "": it may. `plans`: moves are looked for at all.
    `schedulers`: those that ask the extender. `enter`: into the audit."""

    held: Callable[[Instant], str]
    plans: bool = True
    schedulers: Collection[str] = frozenset({names.DEFAULT_SCHEDULER})
    enter: Callable[[AuditEntry], Awaitable[None]] | None = None


class DefragCycle(msgspec.Struct, frozen=True, kw_only=True):
    """`choice`: the latest that was made, and when; None: nobody waits. `move`: the one that runs, and from where."""

    choice: packing.MoveChoice | None = None
    planned_at: Instant | None = None
    move: MoveRecord | None = None
    source: str = ""
    done: str = ""
    failure: str = ""


class DefragStory:
    def __init__(
        self, *, eyes: DefragEyes, hands: Mover, terms: DefragTerms, metrics: telemetry.Telemetry
    ) -> None:
        self._eyes, self._hands, self._terms, self._metrics = eyes, hands, terms, metrics
        self._last = DefragCycle()
        self._said, self._complaint = "", Complaint("which pod could be moved is not known: %s")
        self._untidy = Complaint("what is left of a move could not be tidied away: %s")

    async def tick(self, turn: Turn) -> DefragCycle:
        nodes = await turn.in_time(self._eyes.moves.find_nodes())
        left = next((each for each in nodes if each.state == names.BEING_LEFT), None)
        moved = await self._advance(left.name, turn) if left is not None else None
        await self._tidy(nodes, left, turn)
        if moved is not None or not self._is_due(turn.now):
            return moved or self._keep(turn.now)
        self._last = msgspec.structs.replace(self._last, planned_at=turn.now)  # also where nothing can be seen now
        seen, choice = await self._choose(nodes, turn)
        done = await self._begin(seen, choice, nodes, turn)
        if not done:
            self._tell(choice)
        self._last = DefragCycle(choice=choice, planned_at=turn.now)
        return self._keep(turn.now, done=done)

    def _keep(self, now: Instant, *, done: str = "") -> DefragCycle:
        self._complaint.note("")
        if not self._eyes.waits(now):
            self._last = msgspec.structs.replace(self._last, choice=None)
        return msgspec.structs.replace(self._last, done=done)

    async def look(self, turn: Turn) -> DefragCycle:
        _, choice = await self._choose((), turn)
        return DefragCycle(choice=choice, planned_at=turn.now)

    def fail(self, because: str, turn: Turn) -> DefragCycle:
        self._complaint.note(because)
        return DefragCycle(failure=because)

    def _is_due(self, now: Instant) -> bool:
        last = self._last.planned_at
        return self._terms.plans and self._eyes.waits(now) and (last is None or not 0 <= now - last < PLANNED)

    async def _choose(
        self, nodes: Sequence[MovingNode], turn: Turn
    ) -> tuple[cluster.Capacity, packing.MoveChoice]:
        why_kept = await turn.in_time(self._eyes.why_kept())
        seen = await turn.in_time(self._eyes.capacity())
        rests = packing.MoveRests(
            nodes={each.name for each in nodes}, owners={each.owner for each in nodes if each.owner},
            in_vain={each.in_vain for each in nodes if each.in_vain}, served=self._eyes.served(),
        )
        # In a thread: on a large cluster it takes long enough for a Lease to be renewed late.
        return seen, await turn.in_time(asyncio.to_thread(
            packing.choose_move, seen, turn.now, why_kept=why_kept, schedulers=self._terms.schedulers, rests=rests,
        ))

    async def _begin(
        self, seen: cluster.Capacity, choice: packing.MoveChoice, nodes: Sequence[MovingNode], turn: Turn
    ) -> str:
        if choice.moved is None or self._terms.held(turn.now):
            return ""
        gpu_nodes = sum(machine.gpus > 0 for machine in seen.machines)
        begun = [each.since if each.since is not None else turn.now for each in nodes]
        emptied = await turn.in_time(self._eyes.moves.find_emptied())
        if emptied or not packing.may_begin(gpu_nodes, begun, turn.now):
            return ""
        source = await turn.in_time(self._look_again(choice, turn.now))
        if source is None:
            return f"{choice.source} or {choice.target} is not as it was: nothing was begun"
        owner = choice.moved.owner.uid if choice.moved.owner is not None else ""
        ready = await turn.in_time(self._eyes.moves.count_ready(choice.moved.namespace, owner))
        step = packing.begin_move(choice, ready, turn.now)
        if step is None or not turn.may_act():
            return ""
        if await self._say(choice.source, self._hands.begin(source, step, turn.now)):
            await self._enter(Happened.move_begun, source, step.record.because, turn.now)
        return self._said

    async def _look_again(self, choice: packing.MoveChoice, now: Instant) -> MoveNode | None:
        """The node that is left, where both nodes and both pods are as they were."""
        if choice.moved is None or choice.waits is None:
            return None
        eyes = self._eyes.moves
        source, target = await eyes.look_at(choice.source), await eyes.look_at(choice.target)
        moved, waits = await eyes.find_again(choice.moved), await eyes.find_again(choice.waits)
        if moved is None or moved.terminating or moved.node != choice.source:
            return None
        if waits is None or waits.terminating or waits.node:
            return None
        if (moved.needs, waits.needs) != (choice.moved.needs, choice.waits.needs):
            return None
        shut = (node is None or node.closed or node.other or node.find_held(now) for node in (source, target))
        return None if any(shut) else source

    async def _advance(self, name: str, turn: Turn) -> DefragCycle:
        is_on = not self._terms.held(turn.now)
        if is_on:  # whoever is moved, what people said of it is seen as it is now; giving back waits for nothing
            await turn.in_time(self._eyes.why_kept())
        there = await turn.in_time(self._eyes.moves.look(name, turn.now))
        if there is None or not turn.may_act():
            return self._keep(turn.now)
        with stumbling():
            step = packing.advance_move(there, turn.now, is_on=is_on)
        is_done = await self._say(name, self._hands.carry_out(there, step, turn.now))
        if is_done and isinstance(step, moving.EndMove):
            self._metrics.add("gpu_autoscaler_defrag_moves_total", 1, (str(step.reason),))
            what = Happened.pod_moved if step.reason is MoveEnd.Moved else Happened.move_stopped
            await self._enter(what, there.source, f"{step.reason}: {step.because}", turn.now)
            return self._keep(turn.now, done=self._said)
        kept = self._keep(turn.now, done=self._said)
        return msgspec.structs.replace(kept, choice=None, move=there.record, source=name)

    async def _say(self, node: str, act: Awaitable[str]) -> bool:
        """Whether it was done."""
        try:
            said, is_done = f"{node}: {await act}", True
        except errors.Conflict:
            said, is_done = f"{node} changed meanwhile: it is looked at again", False
        if said != self._said:
            log.info("%s", said)
        self._said = said
        return is_done

    async def _enter(self, what: Happened, node: MoveNode, sentence: str, now: Instant) -> None:
        if self._terms.enter is not None:
            ref = cluster.node_ref(node.name, node.uid)
            await self._terms.enter(AuditEntry(
                at=now, type=what, sentence=sentence, actor=names.FIELD_MANAGER, source=CameBy.cycle, ref=ref
            ))

    async def _tidy(self, nodes: Sequence[MovingNode], left: MovingNode | None, turn: Turn) -> None:
        """Places that are kept for no move, and what was done long ago. What cannot be tidied now is so later."""
        problem = ""
        for each in nodes:
            if not turn.may_act():
                return
            try:
                await self._tidy_one(each, left, turn)
            except errors.Conflict:
                continue
            except errors.ClientError as found:
                problem = f"{each.name}: {found}"
        self._untidy.note(problem)

    async def _tidy_one(self, each: MovingNode, left: MovingNode | None, turn: Turn) -> None:
        lasts = DAY if each.in_vain else HOUR
        if each.state == names.BEING_HELD and (left is None or each.name != left.target):
            node = await turn.in_time(self._eyes.moves.look_at(each.name))
            if node is not None:
                await self._hands.free(node)
        elif each.state == names.MOVE_DONE and (each.since is None or not -MINUTE <= turn.now - each.since < lasts):
            await self._hands.forget(each.name)

    def _tell(self, choice: packing.MoveChoice) -> None:
        """A line when another move is chosen."""
        moved, waits = choice.moved, choice.waits
        if moved is None or waits is None:
            return
        said = (
            f"{waits.namespace}/{waits.name} waits and would fit on {choice.source}, if "
            f"{moved.namespace}/{moved.name} went to {choice.target}"
        )
        if said != self._said:
            log.info("%s", said)
        self._said = said
