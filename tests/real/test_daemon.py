"""`gpu-pruner -d` on a real cluster: it survives its source and its API server, leads alone, freezes, stops politely,
tells its numbers."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from fallow import names, telemetry
from tests.real import cluster as clusters
from tests.real import faults, history, product, world

StartControlPlane = Callable[[world.Options], Awaitable[clusters.Cluster]]

ACT = ("-r", "scale-down")


# ---- what it lives through -------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 26)
async def test_a_source_that_is_away_for_ten_cycles_and_returns(stage: product.Stage, folder: pathlib.Path) -> None:
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        proxy.fault = faults.html
        there = {"PROMETHEUS_URL": proxy.url}
        daemon = await pruner.start(*ACT, env=there)
        other = {**there, "POD_NAMESPACE": stage.namespace}  # with a Lease of its own
        impatient = await pruner.start("--max-consecutive-failures", "7", env=other)
        await daemon.until(lambda: _tells(daemon, "failed cycle(s) in a row: "))
        assert "web page" in (await daemon.get("/readyz"))[1]
        assert await impatient.ended() == 1
        assert "giving up after 7 failed cycles in a row" in impatient.log
        assert impatient.log.count("no decision: ") == 7
        await daemon.more_cycles(10 - int(await daemon.cycles("failure")), "failure")
        assert (await daemon.get("/healthz"), await daemon.is_unready()) == ((200, "ok"), True)
        assert pruner.writes() == []
        proxy.fault = None
        await daemon.until(daemon.is_ready)
        await stage.cluster.wait_until(lambda: stage.is_paused(idle))


async def _tells(daemon: product.Daemon, words: str) -> bool:
    status, text = await daemon.get("/readyz")
    return status == 503 and words in text


async def test_an_api_server_that_goes_and_comes_back(
    start_control_plane: StartControlPlane, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    stage = product.Stage(await start_control_plane(world.PLAIN), prometheus)
    await stage.build()
    idle = await stage.workload("quiet")
    busy = await stage.workload("busy", busy=0.5)
    await stage.cluster.patch(idle, {"metadata": {"annotations": {names.OPT_OUT: names.OPT_OUT_VALUE}}})
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start(*ACT)
        await daemon.until(daemon.is_ready)
        async with stage.cluster.without_api_server():
            await daemon.until(daemon.is_unready)
        await daemon.until(daemon.is_ready)
        await stage.cluster.patch(idle, {"metadata": {"annotations": {names.OPT_OUT: None}}})
        await stage.cluster.wait_until(lambda: stage.is_paused(idle))
        assert len(pruner.pauses("quiet")) == 1
        assert daemon.process.poll() is None
    assert not await stage.is_paused(busy)


# ---- one leader ------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 27)
async def test_two_replicas_and_two_changes_of_leader(stage: product.Stage, folder: pathlib.Path) -> None:
    first = await stage.workload("first")
    # GPUs that stay: what was paused in the last hour counts against them.
    await stage.workload("busy", replicas=4, busy=0.5)
    later = [await stage.workload(name) for name in ("second", "third")]
    for each in later:
        await stage.cluster.patch(each, {"metadata": {"annotations": {names.OPT_OUT: names.OPT_OUT_VALUE}}})
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        leader = await pruner.start(*ACT, env={"POD_NAME": "one"})
        await leader.until(leader.is_leading)
        heir = await pruner.start(*ACT, env={"POD_NAME": "two"})
        await stage.cluster.wait_until(lambda: stage.is_paused(first))
        await heir.until(heir.is_ready)
        assert (await heir.is_leading(), await heir.cycles()) == (False, 0)
        assert await leader.terminate() == 0
        assert (await _holder(stage)) in ("", "two")  # let go, not left to run out
        await heir.until(heir.is_leading)
        await _consent(stage, later[0])
        await stage.cluster.wait_until(lambda: stage.is_paused(later[0]))
        last = await pruner.start(*ACT, env={"POD_NAME": "three"})
        await last.until(last.is_ready)
        began = time.monotonic()
        await heir.kill()
        await last.until(last.is_leading)
        assert time.monotonic() - began > 5  # it waited until the Lease had run out
        await _consent(stage, later[1])
        await stage.cluster.wait_until(lambda: stage.is_paused(later[1]))
        await last.more_cycles(2)
        assert [len(pruner.pauses(name)) for name in ("first", "second", "third")] == [1, 1, 1]


async def _holder(stage: product.Stage) -> str:
    lease = await stage.lease()
    return lease["spec"]["holderIdentity"] if lease else ""


async def _consent(stage: product.Stage, workload: product.Object) -> None:
    await stage.cluster.patch(workload, {"metadata": {"annotations": {names.OPT_OUT: None}}})


async def test_a_lease_that_may_not_be_had_is_told(stage: product.Stage, folder: pathlib.Path) -> None:
    """Such a daemon would never act: it must not look ready."""
    await stage.workload("quiet")
    await stage.prometheus.start()
    read = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
    async with product.product_on(stage, folder, rules=read) as pruner:
        daemon = await pruner.start(*ACT, "--max-consecutive-failures", "2")
        await daemon.until(daemon.is_unready)
        assert await daemon.ended() == 1
        assert "the Lease gpu-pruner cannot be had" in daemon.log


# ---- the freeze ------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 24)
async def test_too_many_turning_idle_at_once_freezes_us(stage: product.Stage, folder: pathlib.Path) -> None:
    metadata = {"name": "gpu-pruner-0", "namespace": stage.system}
    spec = clusters.pod_template("gpu-pruner", 0)["spec"]
    pod = await stage.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    quiet = await stage.workload("quiet", replicas=3, busy=0.5)  # 3 of 7 GPUs: 43 %
    await stage.workload("busy", replicas=4, busy=0.5)
    await stage.prometheus.start()
    hold = ("--freeze-min-gpus", "3", "--freeze-hold", "6", "--confirm-cycles", "1")
    ours = {"POD_NAME": "gpu-pruner-0", "POD_UID": pod["metadata"]["uid"]}
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        daemon = await pruner.start(*ACT, *hold, env={**ours, "PROMETHEUS_URL": proxy.url})
        await daemon.more_cycles(3)
        proxy.fault = _silence("quiet-")
        await daemon.until(lambda: _is(daemon, "fallow_idle_frozen", 1))
        lease = await stage.lease()
        assert lease is not None
        assert "jumped from 0% to 43%" in lease["metadata"]["annotations"][names.FROZEN_BECAUSE]
        [event] = await stage.cluster.events(names.Event.IDLE_SHARE_JUMP, stage.system)
        assert (event["type"], event["regarding"]["uid"]) == ("Warning", pod["metadata"]["uid"])
        await daemon.more_cycles(2)
        assert await daemon.metric("fallow_idle_frozen") == 1
        assert [one.uri for one in pruner.writes() if "/events" not in one.uri] == []
        assert await stage.cluster.events(names.Event.IDLE_DETECTED) == []
        await stage.cluster.wait_until(lambda: stage.is_paused(quiet))
        await daemon.until(lambda: _is(daemon, "fallow_idle_frozen", 0))


async def _is(daemon: product.Daemon, name: str, value: float) -> bool:
    return await daemon.metric(name) == value


def _silence(pods: str) -> faults.Fault:
    """From now on the GPUs of these pods never did anything."""

    async def fault(exchange: faults.Exchange) -> faults.web.StreamResponse:
        answer = await exchange.fetch()
        is_peak = (
            any(name in exchange.text for name in ("GR_ENGINE", "GPU_UTIL")) and "count_over_time" not in exchange.text
        )
        for sample in answer["data"]["result"] if is_peak and "timestamp" not in exchange.text else ():
            if sample["metric"].get("exported_pod", "").startswith(pods):
                sample["value"][1] = "0"
        return faults.web.json_response(answer)

    return fault


# ---- stopping, health, numbers ---------------------------------------------------------------------------------------


async def test_sigterm_finishes_the_patch_in_flight_and_begins_no_other(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = [await stage.workload(name) for name in ("one", "two")]
    await stage.prometheus.start()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):
        stopped: list[str] = []

        async def stop_and_dawdle(exchange: faults.Exchange) -> faults.web.StreamResponse:
            stopped.append(exchange.text)
            if len(stopped) == 1:
                daemon.process.terminate()
                await asyncio.sleep(1.0)  # the server is slow just now
            return await exchange.forward()

        proxy.fault = faults.only(names.PAUSED_AT, stop_and_dawdle)
        daemon = await pruner.start(*ACT)
        assert await daemon.ended() == 0
        assert await _holder(stage) == ""
        assert sorted([await stage.is_paused(each) for each in quiet]) == [False, True]
        assert len(stopped) == 1
        assert "pause" in daemon.log
        assert daemon.log.count(" done: Scaled") == 1


async def test_sigterm_does_not_wait_for_a_slow_source(stage: product.Stage, folder: pathlib.Path) -> None:
    await stage.workload("quiet")
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        proxy.fault = faults.slow(600.0)
        daemon = await pruner.start(*ACT, env={"PROMETHEUS_URL": proxy.url})
        await daemon.until(lambda: _has_asked(proxy))
        began = time.monotonic()
        assert await daemon.terminate() == 0
        assert time.monotonic() - began < 60, "a tenth of what the source takes"
        assert await _holder(stage) == ""


async def _has_asked(proxy: faults.FaultyProxy) -> bool:
    return bool(proxy.seen)


async def test_a_port_that_is_taken_is_a_usage_error(stage: product.Stage, folder: pathlib.Path) -> None:
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start()
        second = pruner.spawn("-d", "--metrics-addr", daemon.url.removeprefix("http://"))
        assert await second.ended() == 2
        assert "--metrics-addr: cannot listen" in second.log


async def test_the_numbers_after_a_pause_an_ack_and_a_fight(stage: product.Stage, folder: pathlib.Path) -> None:
    quiet = await stage.workload("quiet", replicas=2, gpus=2)
    await stage.workload("kept")
    await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start("--confirm-cycles", "99")  # nothing is done yet, nor would be
        await daemon.more_cycles(2)
        seen = await daemon.metrics()
        expected = {
            "idle_gpus": 5, "idle_workloads": 2, "pods_checked": 4, "scale_successes_total": 0,
            "scale_failures_total": 0, "acknowledged_workloads": 0, "acknowledgments_total": 0,
            "scaledowns_prevented_total": 0, "query_failures_total": 0,
        }
        assert {name: seen[f"gpu_pruner_{name}"] for name in expected} == expected
        plain = {metric.name for metric in telemetry.METRICS if not (metric.labels or metric.is_late)}
        assert plain - {re_named(name) for name in seen} == set()
        acked = await pruner.fallow("ack", "Deployment/kept", "-n", stage.namespace, "--hours", "8")
        assert acked.code == 0, acked.said
        await daemon.until(lambda: _is(daemon, "gpu_pruner_acknowledged_workloads", 1))
        await daemon.more_cycles(2)
        seen = await daemon.metrics()
        assert (seen["gpu_pruner_acknowledgments_total"], seen["gpu_pruner_scaledowns_prevented_total"]) == (1, 1)
        assert seen['fallow_idle_coverage_ratio{node="gpu-1"}'] == 1
        assert seen["fallow_idle_pressure_gpus"] == 0
        place = f'namespace="{stage.namespace}"'
        idle = seen[f'fallow_workload_idle_gpu_seconds_total{{kind="Deployment",name="quiet",{place}}}']
        active = seen[f'fallow_workload_active_gpu_seconds_total{{kind="Deployment",name="busy",{place}}}']
        assert idle == pytest.approx(4 * active)
        assert active > 1
        assert await daemon.terminate() == 0

        acting = await pruner.start(*ACT, "--immunity", "0")
        await stage.cluster.wait_until(lambda: stage.is_paused(quiet))
        await acting.until(lambda: _is(acting, 'fallow_idle_paused_workloads{kind="Deployment"}', 1))
        seen = await acting.metrics()
        assert (seen["gpu_pruner_scale_successes_total"], seen["gpu_pruner_scale_failures_total"]) == (1, 0)
        assert seen[f'gpu_pruner_scales_total{{kind="Deployment",name="quiet",{place}}}'] == 1
        assert seen['gpu_pruner_scales_by_kind_total{kind="Deployment"}'] == 1
        assert seen['fallow_idle_actions_total{action="pause",kind="Deployment",mode="scale-down",result="done"}'] == 1
        assert (seen["fallow_idle_leader"], seen['fallow_idle_source_up{source="prometheus"}']) == (1, 1)
        # Given to another process.
        assert (seen["gpu_pruner_acknowledgments_total"], seen["gpu_pruner_acknowledged_workloads"]) == (0, 1)
        await stage.cluster.patch(quiet, {"spec": {"replicas": 2}})  # somebody else brings it back
        await acting.until(lambda: _is(acting, 'fallow_idle_fights_total{kind="Deployment"}', 1))
        assert await acting.metric('fallow_idle_resumes_total{actor="external",kind="Deployment"}') == 1


def re_named(sample: str) -> str:
    """The metric that a sample belongs to."""
    return sample.partition("{")[0].removesuffix("_count").removesuffix("_sum").removesuffix("_bucket")


async def test_readiness_tells_its_reasons_as_json(stage: product.Stage, folder: pathlib.Path) -> None:
    await stage.prometheus.start()  # it knows of no GPU at all
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start()
        await daemon.until(daemon.is_unready)
        await daemon.more_cycles(1, "failure")
        status, text = await daemon.get("/readyz")
        assert status == 503
        [reason] = msgspec.json.decode(text)["reasons"]
        assert "failed cycle(s) in a row: " in reason
        assert "no series of any GPU" in reason
        assert (await daemon.get("/healthz")) == (200, "ok")
        assert (await daemon.get("/nothing"))[0] == 404
