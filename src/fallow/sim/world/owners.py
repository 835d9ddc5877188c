"""What the owners of workloads in a pretend cluster do about notices and pauses: keep, miss, bring back.

In: a workload that was written on, or that is wanted and not there. Out: what its owner does, by their character, at
its time. Invariant: the same seed gives the same answers.
"""

import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from fallow import names
from fallow.model.units import MINUTE
from fallow.sim.world import edits
from fallow.sim.world.nouns import SimState, SimWorkload

if TYPE_CHECKING:
    from fallow.sim.world.world import World

REGRET: Final = 15 * MINUTE  # activity wanted within so long after a pause makes it a regretted one


class SimOwners:
    def __init__(self, world: "World", seed: int) -> None:
        self._world, self._rng = world, np.random.default_rng([seed, 1])

    def read(self, workload: SimWorkload) -> None:
        episode = workload.view.marks.get(names.IDLE_EPISODE, "")
        pending = workload.view.marks.get(names.PENDING_SINCE, "")
        if pending != workload.pending:
            workload.pending, workload.noticed_at = pending, self._world.now if pending else None
        if not episode or episode == workload.noticed:
            return
        workload.noticed = episode
        self._world.note_of("noticed", workload.uid, "product")
        after = workload.owner.answer(self._rng)
        if after is not None:
            self._world.at(self._world.now + after, functools.partial(self._acknowledge, workload, episode))

    def _acknowledge(self, workload: SimWorkload, episode: str) -> None:
        if workload.view.marks.get(names.IDLE_EPISODE) != episode or workload.state is not SimState.running:
            return
        workload.acks += 1
        self._world.note_of("acknowledged", workload.uid, "person")
        kept = edits.acknowledge(workload.object, self._world.now, workload.owner.keeps_hours, workload.who)
        self._world.notice(kept, "person")

    def miss(self, workload: SimWorkload) -> None:
        """Its owner wants to use it, and it is not there."""
        if workload.missed_since is not None:
            return
        workload.missed_since = self._world.now
        if self._world.now - workload.since <= REGRET and not workload.by_hand:
            workload.regrets += 1
            self._world.note_of("regretted", workload.uid, "person")
        self._world.note_of("missed", workload.uid, "person")
        self._world.at(self._world.now + workload.owner.miss(self._rng), functools.partial(self._bring_back, workload))

    def _bring_back(self, workload: SimWorkload) -> None:
        if workload.state is not SimState.paused:
            return
        thing, by = workload.object, workload.who
        match workload.owner.way:
            case "command":
                thing = edits.resume(thing, self._world.now, by)
            case "annotation":
                thing = edits.annotate(thing, {names.RESUME_REQUESTED: by})
            case "hand":
                workload.complaints += 1
                self._world.note_of("complained", workload.uid, "person")
                thing = edits.undo(thing)
        self._world.notice(thing, "person")
