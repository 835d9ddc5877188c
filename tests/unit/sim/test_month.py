"""The month without sockets: who comes, who is put where, what the rival does, and that the bound is one."""

import asyncio
from typing import Any

import pytest

from fallow.model.classes import WorkClass
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.sim.month import claims, jobs, play, pools, rival
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.scene import Scene


def job(name: str = "one", *, at: float = 0.0, hours: float = 1.0, gpus: int = 1, **more: Any) -> GpuJob:
    said = {"work": WorkClass.batch, "use": 0.6, "spot": False, "may_move": True, **more}
    return GpuJob(name=name, at=at, seconds=hours * HOUR, gpus=gpus, **said)


def run(*some: GpuJob, hours: float = 6.0, who: Any = play.make_ours) -> play.MonthResult:
    return asyncio.run(play.play("it", sorted(some, key=lambda each: each.at), hours / 24, who, seed=1))


def test_a_policy_as_people_write_it_is_valid() -> None:
    policy = pools.read_policy()
    assert policy.invalid == ()
    assert {pool.tier for pool in policy.pools} == {CapacityType.spot, CapacityType.on_demand}


@pytest.mark.parametrize("mix", list(jobs.MADE_UP))
def test_the_same_seed_gives_the_same_jobs(mix: str) -> None:
    assert jobs.draw(mix, 3, 1) == jobs.draw(mix, 3, 1) != jobs.draw(mix, 3, 2)


def test_a_working_week_is_busy_by_day() -> None:
    found = jobs.draw(jobs.WEEKLY, 7, 1)
    by_day = sum(9 <= each.at % DAY / HOUR < 18 and each.at < 5 * DAY for each in found)
    assert by_day > 0.6 * len(found)


@pytest.mark.parametrize("who", [play.make_ours, rival.Rival], ids=["ours", "rival"])
def test_one_job_has_one_machine_for_as_long_as_it_runs(who: Any) -> None:
    done = run(job(at=60.0, hours=2.0), who=who)
    assert (done.added, done.released, done.moved) == (1, 1, 0)
    assert 2 * MINUTE < done.wait_mean < 5 * MINUTE
    assert done.bound == pytest.approx(2 * 3.67)
    assert 1.02 < done.ratio < 1.2


def test_eight_gpus_come_on_one_machine_and_small_jobs_are_kept_off_it() -> None:
    done = run(job("large", gpus=8), job("small", at=65 * MINUTE))
    assert done.added == 2


def test_work_that_is_done_again_is_not_in_the_bound() -> None:
    scene = Scene([job(hours=3.0)], list(pools.list_groups()), play.MONDAY, seed=1)
    asyncio.run(scene.cloud.grow(Growth(group="on-demand-1g", count=1, base=0, token="t")))
    scene.advance(play.MONDAY + HOUR)
    (pod,) = scene.pods.values()
    before = pod.carried_out(scene.now)
    scene.send_away(pod)
    assert pod.carried_out(scene.now) == pytest.approx(before - 10 * MINUTE)
    scene.place()
    assert pod.node
    assert pod.turn == 1


def test_the_rival_puts_who_waits_onto_few_machines_and_moves_who_may_be_moved() -> None:
    bought = claims.bundle([job("a"), job("b"), job("c", spot=True), job("d", gpus=4)])
    assert sorted((claim.tier, claim.size) for claim in bought) == [
        (CapacityType.on_demand, 2), (CapacityType.on_demand, 4), (CapacityType.spot, 1),
    ]
    done = run(job("a", hours=1.0), job("b", hours=4.0), who=rival.Rival)
    assert done.moved == 1  # from the machine with two onto one of its own


@pytest.mark.parametrize("mix", list(jobs.MADE_UP))
def test_nobody_is_below_the_bound(mix: str) -> None:
    for done in asyncio.run(play.compare(jobs.draw(mix, 1, 3), 1, seed=3)):
        assert done.ratio > 1
