"""Plays a month: the same jobs and the same cloud, once for each who scales; what it cost, how long people waited.

In: jobs, days, a seed, who scales. Out: a MonthResult for each, with two amounts that it cannot be below (bounds.py):
the work alone, and what somebody would pay who knows all of it before and lives by the same cloud and policy.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from fallow.model.cost import CapacityType
from fallow.model.units import DAY, HOUR, Instant, Seconds, parse_instant
from fallow.sim.cloud import Drought
from fallow.sim.month import bounds, faults, pools
from fallow.sim.month.bounds import MonthSpan
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.ours import PACE, Ours
from fallow.sim.month.rival import Rival
from fallow.sim.month.scene import Scene

MONDAY: Instant = parse_instant("2026-11-02T00:00:00Z")


class Scaler(Protocol):
    """Who adds and removes nodes, and when it next has to look. `keeps`: how long it leaves a node alone that nobody
    is on."""

    grown: int
    released: int
    keeps: Seconds

    def next_look(self) -> Instant: ...

    async def tick(self) -> None: ...


class MonthResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Times in seconds. `work`, `bound`: what the work alone costs, and what a clairvoyant pays by the same policy;
    `of_work`, `ratio`: the cost by them. `moved`: pods that were sent away or lost their node."""

    name: str
    cost: float
    work: float
    bound: float
    of_work: float
    ratio: float
    jobs: int
    gpu_hours: float  # of work
    wait_mean: float
    wait_p95: float
    wait_longest: float
    added: int
    released: int
    taken_back: int
    moved: int
    ticks: int


Tell = Callable[[object], None]  # hears of every hour that was played


def _tell_nobody(hour: object) -> None:
    pass


async def play(
    name: str, jobs: Sequence[GpuJob], days: float, make: Callable[[Scene], Scaler], *, seed: int,
    tell: Tell = _tell_nobody,
) -> MonthResult:
    """With a zone that has no spot machines now and then, and spot machines that are taken back."""
    scene = Scene(jobs, list(pools.list_groups()), MONDAY, seed=seed, droughts=list(_plan_droughts(days, seed)))
    scaler, end, ticks = make(scene), MONDAY + days * DAY, 0
    while scene.now < end:
        before = scene.now
        scene.advance(min(end, scaler.next_look()))
        await scaler.tick()
        ticks += 1
        _tell_hours(before, scene.now, tell)
    return add_up(name, scene, scaler, ticks)


def count_hours(days: float) -> int:
    """How often one play tells."""
    return int(days * DAY / HOUR)


def _tell_hours(before: Instant, now: Instant, tell: Tell) -> None:
    for hour in range(int((before - MONDAY) / HOUR), int((now - MONDAY) / HOUR)):
        tell(hour)


def _plan_droughts(days: float, seed: int) -> Iterator[Drought]:
    """One zone or the other, for a few hours a week."""
    rng = np.random.default_rng([seed, 24])
    for day in range(0, int(days), 3):
        begins = MONDAY + (day + float(rng.uniform(0, 2.5))) * DAY
        yield Drought(begins, begins + 3 * HOUR, str(rng.choice(pools.ZONES)), CapacityType.spot)


def make_ours(scene: Scene) -> Ours:
    return Ours(scene, pools.read_policy())


async def compare(
    jobs: Sequence[GpuJob], days: float, *, seed: int, tell: Tell = _tell_nobody
) -> list[MonthResult]:
    """Ours, and the rival, on the same demand."""
    ours = await play("fallow", jobs, days, make_ours, seed=seed, tell=tell)
    return [ours, await play("requests only", jobs, days, Rival, seed=seed, tell=tell)]


async def play_untuned(
    jobs: Sequence[GpuJob], days: float, *, seed: int, tell: Tell = _tell_nobody
) -> MonthResult:
    """Ours, by a policy in which nothing is set but that spot may be all there is: these jobs want it or refuse it."""
    policy = pools.read_policy({"spotInstancePercentage": 1.0})
    return await play("fallow, defaults", jobs, days, lambda scene: Ours(scene, policy), seed=seed, tell=tell)


class TroubledMonth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`broken`: promises that were, with where. `faults`: how often each came."""

    result: MonthResult
    faults: dict[str, int]
    killed: int
    broken: list[str]


async def play_troubled(
    jobs: Sequence[GpuJob], days: float, *, seed: int, tell: Tell = _tell_nobody
) -> TroubledMonth:
    """Ours, with everything that can go wrong; it then has three hours to put all in order."""
    droughts = list(faults.plan_droughts(MONDAY, days, seed))
    scene = Scene(jobs, list(faults.list_groups()), MONDAY, seed=seed, droughts=droughts)
    ours, planned, ticks = make_ours(scene), faults.plan_faults(MONDAY, days, seed), 0
    trouble = faults.MonthTrouble(ours, planned, seed)
    while scene.now < MONDAY + days * DAY:
        before = scene.now
        scene.advance(min(ours.next_look(), scene.now + PACE if trouble.is_near() else trouble.next_at()))
        trouble.strike()
        await ours.tick()
        ticks += 1
        _tell_hours(before, scene.now, tell)
    came = Counter(fault.name for fault in planned)
    return TroubledMonth(
        result=add_up("fallow", scene, ours, ticks), faults=dict(came), killed=ours.killed,
        broken=[*ours.laws.broken, *faults.find_cordoned(ours)],
    )


def add_up(name: str, scene: Scene, scaler: Scaler, ticks: int) -> MonthResult:
    everybody = [*scene.over, *scene.pods.values()]
    month = MonthSpan(begins=scene.begins, ends=scene.now, stays=scaler.keeps)
    work, bound = bounds.find_work(everybody, month), bounds.find_clairvoyant(everybody, month)
    waits = np.array([pod.waited + (0.0 if pod.node or pod.is_done else scene.now - pod.since) for pod in everybody])
    cost = scene.cloud.bill()
    return MonthResult(
        name=name, cost=cost, work=work, bound=bound, of_work=cost / work if work else 0.0,
        ratio=cost / bound if bound else 0.0, jobs=len(everybody),
        gpu_hours=sum(pod.job.gpus * pod.carried_out(scene.now) for pod in everybody) / HOUR,
        wait_mean=float(waits.mean()), wait_p95=float(np.percentile(waits, 95)), wait_longest=float(waits.max()),
        added=scene.joined, released=scaler.released, taken_back=scene.left - scaler.released,
        moved=sum(pod.turn for pod in everybody), ticks=ticks,
    )
