"""A short month on the pretend cloud: near the bound, no slower than the rival, and faithful while everything fails."""

import asyncio
import os

import pytest

from fallow.model.classes import WorkClass
from fallow.model.machines import CloudMachine
from fallow.model.scaling import GrowReason
from fallow.model.units import DAY, HOUR
from fallow.sim.cloud import PretendCloud
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
    ours, rival = asyncio.run(play.compare(scaling_month.make_jobs(mix, days, 11, FOLDER), days, seed=11))
    assert scaling_month.find_misses(ours, rival) == []
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
    days, seed = 2.5, 3
    month = asyncio.run(play.play_troubled(jobs.draw(jobs.WEEKLY, days, seed), days, seed=seed))
    assert month.broken == []
    assert month.result.released > 50
    assert set(month.faults) <= set(faults.LENGTHS)
    assert sum(month.faults.values()) >= 8


def test_the_laws_would_have_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that forgets what was asked for, and a cloud that lists no machines, make us grow twice: that is found.
    The status alone does not, for what the cloud lists is known to be on its way."""
    monkeypatch.setattr("fallow.sim.month.ours.scaling_status.write_in_flight", lambda some: [])
    listed = asyncio.run(play.play_troubled(jobs.draw(jobs.WEEKLY, 0.3, 3), 0.3, seed=3))
    assert not any("who fit onto none that comes" in broken for broken in listed.broken)

    async def list_none(cloud: PretendCloud, group: str) -> tuple[CloudMachine, ...]:
        return ()

    monkeypatch.setattr(PretendCloud, "machines", list_none)
    month = asyncio.run(play.play_troubled(jobs.draw(jobs.WEEKLY, 0.6, 3), 0.6, seed=3))
    assert any("who fit onto none that comes" in broken for broken in month.broken)
