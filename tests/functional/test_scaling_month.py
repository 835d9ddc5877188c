"""Days on the pretend cloud: near the bound, no slower than the rival, and faithful while everything fails. For whole
months, and more seeds: `python -m tests.functional.scaling_month`."""

import asyncio
import itertools
import os

import msgspec
import pytest

from fallow.model import scaling_status
from fallow.model.classes import WorkClass
from fallow.model.machines import CloudMachine
from fallow.model.scaling_plan import GrowReason
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.sim.cloud import Drought, PretendCloud
from fallow.sim.month import faults, jobs, play, pools
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.scene import Scene
from tests.functional import scaling_month

FOLDER = os.environ.get("FALLOW_TRACES")


@pytest.mark.parametrize("mix", [jobs.WEEKLY, "default"], ids=["weekly", "openb"])
def test_a_stretch_costs_little_more_than_it_must_and_nobody_waits_longer_than_by_requests(mix: str) -> None:
    if mix not in jobs.MADE_UP and not FOLDER:
        pytest.skip("FALLOW_TRACES names no folder of traces")
    days = 2.0 if mix in jobs.MADE_UP else 1.0
    some = scaling_month.make_jobs(mix, days, 11, FOLDER)
    ours, rival = asyncio.run(play.compare(some, days, seed=11))
    assert scaling_month.find_misses(ours, rival) == []
    assert scaling_month.find_untuned_misses(asyncio.run(play.play_untuned(some, days, seed=11))) == []
    assert ours.added > ours.released > 50


def test_a_full_and_busy_cluster_that_nobody_waits_for_is_at_rest() -> None:
    """R3 adds a node once; nobody comes, it goes, and that it was in vain is known after a restart, too."""
    job = GpuJob(
        name="serve", at=0.0, seconds=9 * DAY, gpus=8, work=WorkClass.inference, use=0.95, spot=False, may_move=False,
    )
    scene = Scene([job], list(pools.list_groups()), play.MONDAY)
    ours = play.make_ours(scene)
    for hour in range(1, 25):
        while scene.now < play.MONDAY + hour * HOUR:
            scene.advance(ours.next_look())
            asyncio.run(ours.tick())
        ours.forget()
    assert ours.reasons == {GrowReason.PendingPods: 1, GrowReason.HighUtilization: 1}
    assert ours.released == 1


@pytest.mark.accepts("scaling", 9)
def test_whatever_fails_no_pod_is_lost_nothing_is_grown_twice_and_no_node_stays_cordoned() -> None:
    days, seed = 2.5, 2
    month = asyncio.run(play.play_troubled(jobs.draw(jobs.WEEKLY, days, seed), days, seed=seed))
    assert month.broken == []
    assert month.result.released > 50
    assert set(month.faults) == set(faults.LENGTHS)
    assert month.killed > 0


def test_a_cloud_that_tells_later_what_it_lacks_is_asked_once_and_gives_once_what_was_asked_for() -> None:
    """For four hours there is none: the pool is shut for longer each time, and its target does not rise."""
    job = GpuJob(
        name="large", at=0.0, seconds=HOUR, gpus=8, work=WorkClass.batch, use=0.6, spot=False, may_move=False,
    )
    dry = Drought(0.0, play.MONDAY + 4 * HOUR)
    scene = Scene([job], list(pools.list_groups(tells_later=True)), play.MONDAY, droughts=[dry])
    ours, shut, most = play.make_ours(scene), list[float](), 0
    while scene.now < play.MONDAY + 7 * HOUR:
        scene.advance(min(ours.next_look(), play.MONDAY + 7 * HOUR))
        asyncio.run(ours.tick())
        most = max(most, sum(scene.cloud.lacking(group.id) for group in pools.list_groups()))
        for each in scaling_status.read(ours.status).stockouts:
            if not shut or each.until > shut[-1]:
                shut.append(each.until)
    assert (ours.laws.broken, most, scene.joined, ours.released) == ([], 1, 1, 1)
    gaps = [later - sooner for sooner, later in itertools.pairwise(shut)]
    assert [round(gap / MINUTE) for gap in gaps] == pytest.approx([10, 20, 40, 60, 60, 60], abs=1)


def test_the_laws_would_have_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that forgets what was asked for, and a cloud that does not say since when its machines run, make us grow
    twice: that is found. The status alone does not, for what the cloud lists is known to be on its way."""
    monkeypatch.setattr("fallow.model.scaling_status.write_in_flight", lambda some: [])
    listed = asyncio.run(play.play_troubled(jobs.draw(jobs.WEEKLY, 0.3, 3), 0.3, seed=3))
    assert not any("who fit onto none that comes" in broken for broken in listed.broken)

    listing = PretendCloud.machines

    async def list_undated(cloud: PretendCloud, group: str) -> tuple[CloudMachine, ...]:
        return tuple(msgspec.structs.replace(one, launched_at=None) for one in await listing(cloud, group))

    monkeypatch.setattr(PretendCloud, "machines", list_undated)
    month = asyncio.run(play.play_troubled(jobs.draw(jobs.WEEKLY, 0.6, 3), 0.6, seed=3))
    assert any("who fit onto none that comes" in broken for broken in month.broken)
