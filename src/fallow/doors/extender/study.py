"""Which policy packs this cluster's mix best, and at what prices: worked out beside, so that no scheduler waits.

In: what is followed, and the policy asked for. Out: a new room, made of the nodes as they are and the
policy that was chosen; anew every hour, when the mix of pods moved, and (with the policy in force) when nodes changed.
The work, up to a minute of CPU, is done by a process of its own that ends when it is done.
Invariant: until something is chosen FGD decides, which needs no prices; what fails leaves in force what was.
"""

import asyncio
import concurrent.futures
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fallow.decide import packing
from fallow.doors.extender.advice import Advisor
from fallow.model.units import HOUR, MINUTE, Seconds
from fallow.observe.cluster.tenants import Tenants

log = logging.getLogger("fallow")

LOOK_EVERY: Final[Seconds] = 1.0
MOVE_IN_EVERY: Final[Seconds] = 5.0  # at most so often, however often nodes come and go
STUDY_EVERY: Final[Seconds] = HOUR
MIX_EVERY: Final[Seconds] = 5 * MINUTE
GROWN: Final = 1.1  # times as many pods as were learned from: looked at sooner
SOONEST: Final[Seconds] = 10.0
MOVED: Final = 0.1  # total variation of the mix
REHEARSAL: Final[Seconds] = 60.0  # of CPU
LONGEST: Final[Seconds] = 10 * MINUTE
FIRST: Final = "FGD"
LEARNING: Final = ("Auto", "SPP", "Balanced")  # go by prices, or by a rehearsal


class Studied(msgspec.Struct, frozen=True, eq=False):
    policy: str
    prices: packing.Prices | None = None
    because: str = ""
    fallback: str = ""  # in one word, why it is not the one that was asked for


Mix = Counter[packing.PackingPod]


class Student:
    def __init__(self, eyes: Tenants, advisor: Advisor, strategy: str) -> None:
        self._eyes, self._advisor, self._strategy = eyes, advisor, strategy
        self._found = Studied(FIRST, fallback="NotStudied") if strategy in LEARNING else Studied(strategy)
        self._mix: Mix = Counter()
        self._task: asyncio.Task[None] | None = None
        self._stamp: object = None
        self._moved_at = self._studied_at = self._mixed_at = float("-inf")

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._look(time.monotonic())
                await asyncio.sleep(LOOK_EVERY)
        finally:
            if self._task is not None:
                self._task.cancel()

    async def _look(self, now: float) -> None:
        if self._eyes.why_doubted() is not None:
            return
        self._advisor.take_in()
        has_new_nodes = self._stamp != self._eyes.nodes_stamp and now - self._moved_at >= MOVE_IN_EVERY
        if has_new_nodes and self._changed_ground():
            await self._move_in()
        is_idle = self._task is None or self._task.done()
        if is_idle and (now - self._studied_at >= STUDY_EVERY or self._has_mix_moved(now)):
            self._studied_at = now
            self._task = asyncio.create_task(self._study())

    def _changed_ground(self) -> bool:
        """Heartbeats change nodes, too; what counts is what they have."""
        self._stamp, room = self._eyes.nodes_stamp, self._advisor.room
        if room is None:
            return True
        ground = packing.lay_out(self._eyes.machines.values(), self._eyes.cluster)
        return (ground.nodes.rows, ground.replicas.tolist()) != (
            room.ground.nodes.rows, room.ground.replicas.tolist()
        )

    async def _move_in(self) -> None:
        self._moved_at = time.monotonic()
        ground = packing.lay_out(self._eyes.machines.values(), self._eyes.cluster)
        sample = packing.draw_sample(ground, self._eyes.tenants.values(), time.time())
        self._mix = Counter(sample)
        await self._advisor.move_in(ground, _prepare(self._found, ground, sample))

    def _has_mix_moved(self, now: float) -> bool:
        room, has_grown = self._advisor.room, len(self._eyes.tenants) > GROWN * self._mix.total()
        if room is None or now - self._mixed_at < (SOONEST if has_grown else MIX_EVERY):
            return False
        self._mixed_at = now
        sample = Counter(packing.draw_sample(room.ground, self._eyes.tenants.values(), time.time()))
        return find_distance(self._mix, sample) > MOVED

    async def _study(self) -> None:
        if self._strategy not in LEARNING:
            await self._move_in()
            return
        ground = packing.lay_out(self._eyes.machines.values(), self._eyes.cluster)
        sample = packing.draw_sample(ground, self._eyes.tenants.values(), time.time())
        if not ground.nodes.capacity or not any(pod.gpus for pod in sample):
            self._studied_at = time.monotonic() - STUDY_EVERY + MINUTE  # nothing to learn from yet
            return
        try:
            asked = self._strategy, ground.nodes.rows, ground.order.tolist(), sample, self._found.policy
            self._found = await _work_beside(*asked)
        except (TimeoutError, concurrent.futures.BrokenExecutor, OSError) as problem:
            log.warning("the packing policy in force stays: the study failed: %r", problem)
            return
        log.info("the packing policy in force is %s: %s", self._found.policy, self._found.because)
        await self._move_in()


async def _work_beside(*asked: Any) -> Studied:
    """A process that is ended with the work, however that ends."""
    beside = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        async with asyncio.timeout(LONGEST):
            return await asyncio.get_running_loop().run_in_executor(beside, study, *asked)
    finally:
        for process in list(beside._processes.values()):
            process.kill()
        beside.shutdown(wait=False, cancel_futures=True)


def find_distance(before: Mix, after: Mix) -> float:
    """Total variation, 0 to 1."""
    first, second = max(1, before.total()), max(1, after.total())
    return sum(abs(before[each] / first - after[each] / second) for each in before | after) / 2


def _prepare(
    found: Studied, ground: packing.PackingGround, sample: Sequence[packing.PackingPod]
) -> packing.PackingPolicy:
    is_learned = found.policy in (FIRST, *LEARNING)
    name = "BestFit" if is_learned and not sample else found.policy  # of nothing nothing can be learned
    made = packing.prepare(name, ground.nodes, sample, known=found.prices)
    return msgspec.structs.replace(made, fallback=made.fallback or found.fallback)


def study(
    strategy: str, rows: Sequence[packing.PackingNode], ranks: Sequence[int], sample: Sequence[packing.PackingPod],
    in_force: str,
) -> Studied:
    """In the process beside."""
    import numpy as np

    nodes, order, began = packing.Nodes(rows), np.array(ranks, np.int64), time.process_time()
    try:
        prices: packing.Prices | None = packing.solve_prices(nodes, sample)
    except packing.Unsolved as problem:
        return Studied(FIRST, because=f"there are no prices: {problem}", fallback=str(problem))
    if strategy != "Auto":
        return Studied(strategy, prices, "it was asked for")
    chosen = packing.rehearse(
        nodes, sample, order, in_force="SPP" if in_force == FIRST else in_force, known=prices,
        may_go_on=lambda: time.process_time() - began < REHEARSAL,
    )
    return Studied(chosen.chosen, prices, chosen.because)
