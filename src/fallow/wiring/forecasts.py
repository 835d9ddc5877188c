"""How long pods will run and how busy they will be, by the ledger; and whether room is worth making for one that waits.

In: the ledger where books are kept, workloads with their pods, for advice all pods of the cluster with what keeps them
where they are. Out: an Outlook; RoomAdvice. Nothing is ever done by it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fallow.account.ledger import Ledger
from fallow.clients import errors
from fallow.decide import packing, runs
from fallow.model import cluster, work
from fallow.model.runs import Contender, Outlook, RoomAdvice, Task, name_owner
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import DAY, MINUTE, Instant, Seconds
from fallow.wiring import consolidation
from fallow.wiring.ground import Groundwork

NO_BOOKS: Final = "no books are kept that would tell how long others ran (--cost true)"
_LOOKS_BACK: Final[Seconds] = 30 * DAY
_FRESH: Final[Seconds] = 15 * MINUTE  # as long a past is believed, and
_LOOKED: Final[Seconds] = 30.0  # all pods of the cluster


class RoomEyes(msgspec.Struct, frozen=True):
    """All pods of the cluster, and what keeps one on its node. Both raise what the server says."""

    capacity: Callable[[], Awaitable[cluster.Capacity]]
    why_kept: Callable[[], Awaitable[packing.WhyKept]]


class Forecasts:
    """`ledger` None: nobody keeps books. `owned`: whose pods are whose."""

    def __init__(self, ledger: Ledger | None, eyes: RoomEyes) -> None:
        self._ledger, self._eyes, self._turn = ledger, eyes, asyncio.Lock()
        self._past: tuple[Instant, runs.RunPast] | None = None
        self._seen: tuple[Instant, cluster.Capacity, packing.WhyKept] | None = None

    async def foretell(
        self, workload: cluster.Workload, pod: cluster.Pod, owned: cluster.Snapshot, now: Instant
    ) -> Outlook:
        past = await self._read(now)
        if not isinstance(past, Known):
            return Outlook(because=past.why if isinstance(past, Unseen) else NO_BOOKS)
        return await asyncio.to_thread(past.value.foretell, _make_task(workload, pod, owned, now), _age_of(pod, now))

    async def advise(self, owned: cluster.Snapshot, now: Instant, most: int) -> RoomAdvice:
        """For so many of those that wait. Raises what the server says."""
        past, (seen, why_kept) = await self._read(now), await self._look(now)
        return await asyncio.to_thread(_advise, past, seen, why_kept, owned, now, most)

    async def _read(self, now: Instant) -> Input[runs.RunPast]:
        if self._ledger is None:
            return Unseen(NO_BOOKS)
        async with self._turn:
            if self._past is None or not 0 <= now - self._past[0] < _FRESH:
                try:
                    found = await self._ledger.read_runs(int(now - _LOOKS_BACK), runs.LONGEST)
                except errors.ClientError as problem:
                    return Unseen(f"the ledger cannot be read: {problem}")
                self._past = now, await asyncio.to_thread(runs.RunPast, found)
            return Known(self._past[1])

    async def _look(self, now: Instant) -> tuple[cluster.Capacity, packing.WhyKept]:
        async with self._turn:
            if self._seen is None or not 0 <= now - self._seen[0] < _LOOKED:
                why_kept = await self._eyes.why_kept()
                self._seen = now, await self._eyes.capacity(), why_kept
            return self._seen[1:]


def make(ground: Groundwork, ledger: Ledger | None) -> Forecasts:
    """The daemon's."""
    eyes = consolidation.make_eyes(ground)
    return Forecasts(ledger, RoomEyes(eyes.capacity, eyes.why_kept))


def _make_task(workload: cluster.Workload, pod: cluster.Pod, owned: cluster.Snapshot, now: Instant) -> Task:
    """As the books call it and count it."""
    ref = workload.ref
    kind, _ = work.classify(workload, (pod,), owned.namespaces.find(ref.namespace))
    return Task(
        owner=name_owner(ref.namespace, ref.kind, ref.name), namespace=ref.namespace, work_class=kind,
        gpus=pod.gpu_count or 0, begins_at=pod.bound_at or pod.started_at or now,
    )


def _age_of(pod: cluster.Pod, now: Instant) -> float | None:
    """Minutes; None: it waits, or nobody knows since when it runs."""
    began = pod.bound_at or pod.started_at
    return None if not pod.node or began is None else max(0.0, (now - began) / MINUTE)


def _advise(
    past: Input[runs.RunPast], seen: cluster.Capacity, why_kept: packing.WhyKept, owned: cluster.Snapshot, now: Instant,
    most: int,
) -> RoomAdvice:
    owners = {owned.pods[place].uid: each for each in owned.workloads for place in each.pods}
    there = [pod for pod in seen.pods if pod.resources and not pod.has_ended and not pod.terminating]
    first = sorted((pod for pod in there if not pod.node), key=lambda pod: (-(pod.priority or 0), pod.created_at))
    running = list(_see_running(there, past, why_kept, owners, owned, now)) if first else []
    waiting = (_contend(pod, past, owners, owned, now) for pod in first[:most])
    return RoomAdvice(
        waiting=tuple(runs.ask_for_room(each, running) for each in waiting), all_waiting=len(first),
        runs=past.value.count if isinstance(past, Known) else 0,
        because="" if isinstance(past, Known) else past.why if isinstance(past, Unseen) else NO_BOOKS,
    )


def _see_running(
    there: Sequence[cluster.Pod], past: Input[runs.RunPast], why_kept: packing.WhyKept,
    owners: Mapping[str, cluster.Workload], owned: cluster.Snapshot, now: Instant,
) -> Iterator[Contender]:
    for pod in there:
        if pod.node and pod.phase == "Running":
            fixed = "it belongs to its node" if pod.belongs_to_node else ""
            fixed = fixed or why_kept(pod) or packing.why_fixed(pod, now)
            contender = _contend(pod, past, {} if fixed else owners, owned, now)
            yield msgspec.structs.replace(contender, fixed=fixed)


def _contend(
    pod: cluster.Pod, past: Input[runs.RunPast], owners: Mapping[str, cluster.Workload], owned: cluster.Snapshot,
    now: Instant,
) -> Contender:
    workload, minutes = owners.get(pod.uid), None
    if workload is not None and isinstance(past, Known):
        task, age, known = _make_task(workload, pod, owned, now), _age_of(pod, now), past.value
        if not pod.node:
            minutes = known.minutes.predict(task)
        elif age is not None:
            minutes = known.rests.predict(task, age)
    return Contender(
        namespace=pod.namespace, name=pod.name, resources=pod.resources, priority=pod.priority, minutes=minutes,
        node=pod.node, owner=workload.ref.short if workload is not None else "", since=pod.created_at,
    )
