"""Whom sharing hurt: a Job ends, so that its CronJob bears the back-off too, and it lasts longer each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import yaml
from tests import builders
from tests.unit.act import server as servers
from tests.unit.decide.sharing import scenes

from fallow import names, telemetry
from fallow.act import hands as doing
from fallow.act import share_statuses
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import cluster, units
from fallow.model.seen import Known
from fallow.model.share_hurts import HurtSeen, SharedOwner
from fallow.model.units import HOUR
from fallow.stories import share_guard
from fallow.stories.turn import Turn

NOW = builders.NOW
SHARED = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "timeslicing", names.OPTIMIZATION_POLICY: "small"}


class Night:
    """A Job of a CronJob shares a GPU, which reports a fault."""

    def __init__(self, server: servers.Server, api: kube.Api) -> None:
        self.server, self.api, self.world = server, api, builders.World()
        above = cluster.Owner("batch", "v1", "CronJob", "night", "uid-cron")
        place = self.world.pod("night-1-abcde", annotations=SHARED, created_at=NOW - HOUR)
        self.world.workload("ml/night-1", kind="Job", pods=[place])
        (job,) = self.world.workloads
        chain = (cluster.Owner("batch", "v1", "Job", "night-1", job.ref.uid), above)
        self.world.workloads = [msgspec.structs.replace(job, chain=chain)]
        for kind, name, uid in (("Job", "night-1", job.ref.uid), ("CronJob", "night", "uid-cron")):
            server.add({"apiVersion": "batch/v1", "kind": kind, "metadata": {
                "name": name, "namespace": "ml", "uid": uid, "resourceVersion": "1",
                "annotations": {names.SHARING_REVERTS: "1"} if kind == "CronJob" else {},
            }})
        server.objects[kube.SHARING_POLICIES.path(None, "small", "status")] = {
            "metadata": {"name": "small", "uid": "p-1", "resourceVersion": "1"}, "spec": {},
        }

    async def tick(self) -> None:
        async def read(owners: Sequence[SharedOwner], now: float) -> Mapping[str, HurtSeen]:
            return {each.workload.ref.uid: HurtSeen(fault=31) for each in owners}

        story = share_guard.ShareGuardStory(
            sights=share_guard.GuardSights(
                policies=lambda: Known((scenes.policy(name="small"),)), pods=lambda: self.world.pods,
                workloads=lambda: self.world.workloads, read=read,
            ),
            acts=share_guard.GuardHands(
                hands=doing.Hands(self.api, servers.lookup, reporting_instance="t"),
                statuses=share_statuses.ShareStatuses(self.api),
            ),
            metrics=telemetry.Telemetry(),
        )
        await story.tick(Turn(
            clock=lambda: NOW, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        ))

    def until(self, plural: str, name: str) -> str | None:
        metadata = self.server.objects[f"/apis/batch/v1/namespaces/ml/{plural}/{name}"]["metadata"]
        return (metadata.get("annotations") or {}).get(names.BACKOFF_UNTIL)


@pytest.fixture
async def night(tmp_path: Path) -> AsyncIterator[Night]:
    async with servers.Server() as server:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))
        access = config.load_access(kubeconfig=str(tmp_path / "kubeconfig"), context=None, environment={})
        async with kube.Api(access, qps=10_000) as api:
            yield Night(server, api)


@pytest.mark.accepts("packing", 21)
async def test_the_schedule_of_a_job_bears_the_back_off_too_and_for_longer_each_time(night: Night) -> None:
    await night.tick()
    assert night.until("jobs", "night-1") == units.rfc3339(NOW + 24 * HOUR)
    assert night.until("cronjobs", "night") == units.rfc3339(NOW + 72 * HOUR)
    told = [each.body["regarding"]["kind"] for each in night.server.requests if each.path.endswith("/events")]
    assert told == ["Job"]


async def test_without_the_right_to_mark_schedules_the_job_itself_has_whole_gpus(
    night: Night, caplog: pytest.LogCaptureFixture
) -> None:
    night.server.fail("PATCH", "/cronjobs/", 403)
    await night.tick()
    assert (night.until("jobs", "night-1") is None, night.until("cronjobs", "night")) == (False, None)
    assert "begins next shares GPUs again" in caplog.text


async def test_a_schedule_that_could_not_be_marked_now_is_in_the_next_look(night: Night) -> None:
    night.server.fail("PATCH", "/cronjobs/", 500, times=10)
    await night.tick()
    assert night.until("jobs", "night-1") is None
    night.server._faults.clear()
    await night.tick()
    assert night.until("cronjobs", "night") == units.rfc3339(NOW + 72 * HOUR)
