"""Whom sharing hurt, by the real engine of Prometheus: whole GPUs back, and nobody is hurt by what cannot be asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fallow import names, telemetry
from fallow.act import hands as doing
from fallow.act import share_statuses
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.clients.prometheus import auth, client
from fallow.model.policies.sharing import HurtGuard
from fallow.model.seen import Known
from fallow.model.share_hurts import HurtReason
from fallow.observe.usage import hurting, owning
from fallow.stories import share_guard
from fallow.stories.turn import Turn
from tests import builders
from tests.real import history
from tests.unit.act import server as servers
from tests.unit.decide.sharing import scenes

RESTARTS, XID = "kube_pod_container_status_restarts_total", "DCGM_FI_DEV_XID_ERRORS"
HOUR = 60  # minutes
LATENCY = 'latency_seconds{app="$name",ns="$namespace"}'
SHARED = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "mps", names.OPTIMIZATION_POLICY: "small"}
POLICY = scenes.policy(guard=HurtGuard(latency_query=LATENCY))


class Yard:
    """Owners that share for two hours, a Prometheus that knows them, an API server that keeps them."""

    def __init__(self, prometheus: history.PrometheusWorld, server: servers.Server) -> None:
        self.prometheus, self.server, self.now = prometheus, server, time.time()
        self.world = builders.World()
        self.metrics = telemetry.Telemetry()

    def owner(self, name: str, restarts: list[float | None] | None = None, before: float | None = 0.0) -> str:
        """`restarts`: every five minutes, the last now. Gives the name of its pod."""
        pod = f"{name}-7d9f8b6c5d-abcde"
        place = self.world.pod(pod, annotations=SHARED, created_at=self.now - 2 * 3600)
        self.world.workload(f"ml/{name}", pods=[place])
        self.server.add({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": "ml", "uid": f"uid-ml/{name}", "resourceVersion": "1"},
        })
        labels = {"namespace": "ml", "container": "main"}
        if restarts is not None:
            self.prometheus.series(RESTARTS, {**labels, "pod": pod}, values=list(restarts), every=300)
        if before is not None:
            self.prometheus.series(RESTARTS, {**labels, "pod": f"{name}-6c5d-fghij"}, constant=before,
                                   minutes=20 * HOUR, every=300, until=self.now - 3 * 3600)
        return pod

    def busy(self, pod: str, board: int, value: float, xid: list[float] | None = None) -> None:
        more: dict[str, Any] = {} if xid is None else {XID: xid}
        self.prometheus.dcgm_gpu("gpu-1", board, pod=pod, namespace="ml", gr_engine=value, gpu_util=value * 100,
                                 more=more, minutes=HOUR, every=60)

    async def tick(self, api: kube.Api) -> share_guard.GuardCycle:
        words = owning.UseWords(exporters="gpu-operator|monitoring")
        async with client.Prometheus(
            self.prometheus.url, login=auth.Login(method="none"), backoff=0.01, timeout=5.0
        ) as asked:
            self.story = share_guard.ShareGuardStory(
                sights=share_guard.GuardSights(
                    policies=lambda: Known((POLICY,)), pods=lambda: self.world.pods,
                    workloads=lambda: self.world.workloads, read=hurting.HurtReader(asked, words).read,
                ),
                acts=share_guard.GuardHands(
                    hands=doing.Hands(api, servers.lookup, reporting_instance="t"),
                    statuses=share_statuses.ShareStatuses(api),
                ),
                metrics=self.metrics,
            )
            return await self.story.tick(Turn(
                clock=lambda: self.now, monotonic=time.monotonic, budget=60.0, stopping=asyncio.Event(),
                leads=lambda: True,
            ))

    def marks(self, name: str) -> dict[str, str]:
        found = self.server.objects[f"/apis/apps/v1/namespaces/ml/deployments/{name}"]
        return found["metadata"].get("annotations") or {}


@pytest.fixture
async def yard(prometheus: history.PrometheusWorld) -> AsyncIterator[Yard]:
    async with servers.Server() as server:
        made = Yard(prometheus, server)
        server.objects[kube.SHARING_POLICIES.path(None, "small", "status")] = {
            "metadata": {"name": "small", "uid": "p-1", "resourceVersion": "1"}, "spec": {},
        }
        yield made


@pytest.fixture
async def api(yard: Yard, tmp_path: Path) -> AsyncIterator[kube.Api]:
    written = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": yard.server.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(written))
    access = config.load_access(kubeconfig=str(tmp_path / "kubeconfig"), context=None, environment={})
    async with kube.Api(access, qps=10_000) as ready:
        yield ready


@pytest.mark.accepts("packing", 21)
async def test_three_restarts_in_half_an_hour_give_whole_gpus_back(yard: Yard, api: kube.Api) -> None:
    yard.owner("hurt", [0.0] * 18 + [1.0, 2.0, 3.0])
    yard.owner("slow", [float(count) / 6 // 1 for count in range(21)])  # three restarts, over an hour and a half
    yard.owner("gap", [0.0, 1.0, 2.0, 3.0, *[None] * 14, 3.0, 3.0, 3.0])  # long ago, and then nothing was measured
    yard.owner("always", [0.0] * 18 + [1.0, 2.0, 3.0], before=4.0)
    yard.owner("new", [0.0] * 18 + [1.0, 2.0, 3.0], before=None)
    yard.owner("unseen")
    await yard.prometheus.start()
    made = await yard.tick(api)
    assert (made.watched, made.because) == (6, "")
    assert [(owner.workload.ref.name, hurt.reason) for owner, hurt in made.hurt] == [("hurt", HurtReason.Restarts)]
    assert set(yard.marks("hurt")) == set(names.BACKOFF_MARKS)
    assert [yard.marks(name) for name in ("slow", "gap", "always", "new", "unseen")] == [{}] * 5
    counted = 'gpu_autoscaler_sharing_reverts_total{reason="Restarts",strategy="mps"} 1.0'
    assert counted in yard.metrics.text().decode().splitlines()
    told = [each.body["reason"] for each in yard.server.requests if each.path.endswith("/events")]
    assert told == [names.Event.SHARING_REVERTED]
    status = [each.body["status"] for each in yard.server.requests if each.path.endswith("/small/status")]
    assert [[one["owner"] for one in each["recentReverts"]] for each in status] == [["uid-ml/hurt"]]
    counts = yard.story.find_reverts("small")
    assert counts is not None
    assert (counts.recent, counts.owners) == (1, 6)


async def test_a_fault_a_full_share_and_a_latency_that_grew(yard: Yard, api: kube.Api) -> None:
    for board, (name, busy, xid) in enumerate((
        ("fault", 0.2, [0.0] * 30 + [31.0] * 31), ("stale", 0.2, [31.0] * 61), ("other", 0.2, [0.0] * 30 + [63.0] * 31),
        ("full", 0.98, None), ("late", 0.2, None), ("quick", 0.2, None),
    )):
        yard.busy(yard.owner(name), board, busy, xid)
    for name, latency in (("late", 1.3), ("quick", 1.2)):
        labels = {"app": name, "ns": "ml"}
        values = [1.0] * (22 * 12) + [latency] * 25  # every five minutes: a day that was good, then two hours
        yard.prometheus.series("latency_seconds", labels, values=values, every=300)
    await yard.prometheus.start()
    made = await yard.tick(api)
    assert {owner.workload.ref.name: str(hurt.reason) for owner, hurt in made.hurt} == {
        "fault": "GpuFault", "full": "ShareFull", "late": "Latency",
    }
    last = [each.body["status"] for each in yard.server.requests if each.path.endswith("/small/status")][-1]
    assert len(last["recentReverts"]) == 3


async def test_a_state_exporter_that_is_made_anew_or_runs_twice_makes_no_restarts(yard: Yard, api: kube.Api) -> None:
    """Its new series have three restarts from their beginning: of the last day, and not of half an hour."""
    labels = {"namespace": "ml", "container": "main", "uid": "u"}
    pods = {name: yard.owner(name) for name in ("anew", "twice", "hurt")}
    anew, twice, hurt = ({**labels, "pod": pod} for pod in pods.values())
    before = {"every": 300, "until": yard.now - 600}
    yard.prometheus.series(RESTARTS, {**anew, "instance": "a"}, values=[0.0] * 12 + [3.0] * 12, **before)
    yard.prometheus.series(RESTARTS, {**anew, "instance": "b"}, values=[3.0] * 3, every=300)
    yard.prometheus.series(RESTARTS, {**hurt, "instance": "a"}, values=[0.0] * 22, **before)
    yard.prometheus.series(RESTARTS, {**hurt, "instance": "b"}, values=[3.0] * 3, every=300)
    for instance in ("a", "b"):
        yard.prometheus.series(RESTARTS, {**twice, "instance": instance}, values=[0.0] * 20 + [2.0] * 3, every=300)
    await yard.prometheus.start()
    made = await yard.tick(api)
    assert [owner.workload.ref.name for owner, _ in made.hurt] == ["hurt"]


@pytest.mark.accepts("packing", 21)
async def test_without_prometheus_nobody_is_reverted(yard: Yard, api: kube.Api) -> None:
    yard.owner("hurt", [0.0] * 18 + [1.0, 2.0, 3.0])
    await yard.prometheus.start()
    await yard.prometheus.kill()
    made = await yard.tick(api)
    assert (made.watched, made.hurt, bool(made.because)) == (1, (), True)
    assert yard.marks("hurt") == {}
    assert not [each for each in yard.server.requests if each.method != "GET"]
