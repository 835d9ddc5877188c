"""The parts of which a month is played, hours at a time: who comes, who is put where, the rival, and the bound."""

import asyncio
from typing import Any

import pytest

from fallow.model.classes import WorkClass
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.sim.month import bounds, claims, jobs, play, pools, rival
from fallow.sim.month.bounds import MonthSpan
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.scene import MonthPod, Scene


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
    assert done.work == pytest.approx(2 * 3.67)
    assert 1.02 < done.of_work < 1.2
    assert 1.0 < done.ratio < done.of_work


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
    some = jobs.draw(mix, 1, 3)
    for done in (*asyncio.run(play.compare(some, 1, seed=3)), asyncio.run(play.play_untuned(some, 1, seed=3))):
        assert done.of_work > done.ratio > 1


def bound(*runs: tuple[float, float, int], hours: float = 6.0, stays: float = 600.0, **more: Any) -> float:
    """In GPU-seconds beyond the work, on demand: so many GPUs, from when until when."""
    pods = []
    for begins, ends, gpus in runs:
        pods.append(MonthPod(job=job(gpus=gpus, **more), left=0.0, since=0.0, ran=[(begins, ends)], is_done=True))
    month = MonthSpan(begins=0.0, ends=hours * HOUR, stays=stays)
    price = pools.PER_GPU[CapacityType.spot if more.get("spot") else CapacityType.on_demand]
    return (bounds.find_clairvoyant(pods, month) - bounds.find_work(pods, month)) / price * HOUR


def test_a_clairvoyant_boots_a_machine_keeps_it_as_the_policy_says_and_has_it_end() -> None:
    assert bound((HOUR, 2 * HOUR, 1)) == pytest.approx(120 + 600 + 30)
    assert bound((HOUR, 2 * HOUR, 4)) == pytest.approx(4 * (120 + 600 + 30))
    assert bound((HOUR, 2 * HOUR, 1), stays=0.0) == pytest.approx(120 + 30)
    assert bound((HOUR, 2 * HOUR, 1), spot=True) == pytest.approx(750)


def test_a_clairvoyant_keeps_a_gpu_for_who_comes_soon_and_gives_it_back_for_who_comes_late() -> None:
    soon = bound((HOUR, 2 * HOUR, 1), (2 * HOUR + 100, 3 * HOUR, 1))
    assert soon == pytest.approx(120 + 100 + 630)
    assert bound((HOUR, 2 * HOUR, 1), (4 * HOUR, 5 * HOUR, 1)) == pytest.approx(2 * 750)
    assert bound((HOUR, 2 * HOUR, 1), (2 * HOUR, 3 * HOUR, 1)) == pytest.approx(750)  # one goes, one comes


def test_a_clairvoyant_pays_for_nothing_outside_the_month() -> None:
    assert bound((0.0, 6 * HOUR, 1)) == 0.0
    assert bound((50.0, 6 * HOUR - 40, 1)) == pytest.approx(50 + 40)


def test_small_and_large_jobs_share_no_machine_in_the_bound_either() -> None:
    apart = bound((HOUR, 2 * HOUR, 1)) + bound((2 * HOUR, 3 * HOUR, 4))
    assert bound((HOUR, 2 * HOUR, 1), (2 * HOUR, 3 * HOUR, 4)) == pytest.approx(apart)


def test_the_rival_waits_a_second_for_who_comes_together() -> None:
    """Karpenter's batch is never shorter, however calm it is."""
    scene = Scene([job(at=600.0)], list(pools.list_groups()), play.MONDAY, seed=1)
    one = rival.Rival(scene)
    while not scene.cloud.started:
        scene.advance(one.next_look())
        asyncio.run(one.tick())
    assert scene.now == play.MONDAY + 601
