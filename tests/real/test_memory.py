"""What we remember on the Lease of a real cluster, and the freeze that the daemon answers: caps and baseline outlive a
restart, what is refused holds up nobody, and when `fallow freeze` says frozen no pause begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fallow import names, verbs
from fallow.clients.kubernetes.lease import Heard
from fallow.model import long_memory, units
from fallow.wiring import reach
from tests.real import cluster as clusters
from tests.real import faults, history, product, world

StartControlPlane = Callable[[world.Options], Awaitable[clusters.Cluster]]

ACT = ("-r", "scale-down")
READ = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}
EVENTS = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> product.Stage:
    made = product.Stage(cluster, prometheus)
    await made.build(gpus=32)
    return made


async def workloads(stage: product.Stage, *given: str, **said: Any) -> dict[str, product.Object]:
    return {name: await stage.workload(name, **said) for name in given}


async def which_are_paused(stage: product.Stage, found: dict[str, product.Object]) -> list[str]:
    return [name for name, each in found.items() if await stage.is_paused(each)]


async def annotations(stage: product.Stage) -> dict[str, str]:
    lease = await stage.lease()
    return ((lease or {}).get("metadata") or {}).get("annotations") or {}


def silence(pods: str) -> faults.Fault:
    """From now on the GPUs of these pods never did anything."""

    async def fault(exchange: faults.Exchange) -> faults.web.StreamResponse:
        answer = await exchange.fetch()
        is_peak = any(name in exchange.text for name in ("GR_ENGINE", "GPU_UTIL")) and not any(
            word in exchange.text for word in ("count_over_time", "timestamp")
        )
        for sample in answer["data"]["result"] if is_peak else ():
            if sample["metric"].get("exported_pod", "").startswith(pods):
                sample["value"][1] = "0"
        return faults.web.json_response(answer)

    return fault


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 48)
async def test_twelve_refused_workloads_do_not_hold_up_six_others(stage: product.Stage, folder: pathlib.Path) -> None:
    refused = await workloads(stage, *(f"no-{index}" for index in range(12)), gpus=2)  # more GPUs: they go first
    others = await workloads(stage, *(f"yes-{index}" for index in range(6)))
    await stage.prometheus.start()
    patch = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["patch"], "resourceNames": [*others]}
    async with product.product_on(stage, folder, rules=[READ, LEASES, EVENTS, patch]) as pruner:
        for _ in range(3):  # cap 10: each a process of its own, so that all it knows stands on the Lease
            cycle = await pruner.prune(*ACT, "--max-actions-per-namespace", "10")
            assert cycle.code in (0, 3), cycle.said
        assert await which_are_paused(stage, others) == [*others]
        assert await which_are_paused(stage, refused) == []
        shown = json.loads((await pruner.fallow("idle", "--all", "-o", "json", *pruner.flags)).out)
        held = next(row for row in shown if row["name"] == "no-0")
        assert held["skip"] == "BackingOff"
        assert "403" in held["skipBecause"]


# ---- a restart -------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 49)
async def test_a_restart_between_a_busy_and_an_all_idle_cluster_freezes(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet", replicas=3, busy=0.5)
    await stage.workload("busy", replicas=4, busy=0.5)
    await stage.prometheus.start()
    hold = ("--freeze-min-gpus", "3", "--confirm-cycles", "1")
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        there = {"PROMETHEUS_URL": proxy.url}
        first = await pruner.start(*ACT, *hold, env={**there, "POD_NAME": "one"})
        await first.more_cycles(3)
        await first.terminate()
        proxy.fault = silence("quiet-")
        end = await pruner.prune(*ACT, *hold, env=there)  # a run of its own
        assert end.code == 4, end.said
        assert "jumped from 0% to 43%" in (await annotations(stage))[names.FROZEN_BECAUSE]
        second = await pruner.start(*ACT, *hold, env={**there, "POD_NAME": "two"})
        await second.more_cycles(3)
        assert await second.metric("fallow_idle_frozen") == 1
        assert await stage.is_paused(quiet) is False


@pytest.mark.accepts("idle", 49)
async def test_pauses_that_were_resumed_still_count_and_forged_ones_do_not(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    every = await workloads(stage, "one", "two", "three", "four")
    forged = {
        names.PAUSED_AT: "2099-01-01T00:00:00Z", names.PAUSED_GPUS: "99999", names.PAUSED_BY: "fallow",
        names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":1}}',
    }
    evil = clusters.replicated("apps/v1", "Deployment", "evil", 0, 1)
    evil["metadata"]["annotations"] = forged
    await stage.cluster.apply(evil)
    await stage.prometheus.start()
    half = ("--max-percent-per-hour", "50")
    async with product.product_on(stage, folder) as pruner:
        first = await pruner.prune(*ACT, *half)
        assert first.code == 0, first.said
        paused = await which_are_paused(stage, every)
        assert len(paused) == 2
        for name in paused:
            assert (await pruner.fallow("resume", f"Deployment/{name}", "-n", stage.namespace)).code == 0
        again = await pruner.prune(*ACT, *half)
        assert again.code == 0, again.said
        assert await which_are_paused(stage, every) == []
        known, _ = long_memory.read(await annotations(stage), 0.0)
        uids = {each["metadata"]["uid"] for name, each in every.items() if name in paused}
        assert {each.uid for each in known.pauses} == uids


async def test_memory_that_cannot_be_read_is_said_and_nothing_is_paused(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    metadata = {"name": names.LEASE, "namespace": stage.system, "annotations": {names.MEMORY: "{"}}
    await stage.cluster.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})
    async with product.product_on(stage, folder) as pruner:
        end = await pruner.prune(*ACT)
        assert (end.code, f"{names.MEMORY} on the Lease cannot be read" in end.err) == (0, True), end.said
        assert long_memory.read(await annotations(stage), 0.0)[1] == ""  # mended, and the loss remembered
        assert (await pruner.prune(*ACT)).code == 0
    assert not await stage.is_paused(idle)


async def test_what_cannot_be_remembered_is_not_done(stage: product.Stage, folder: pathlib.Path) -> None:
    """A pause of which nobody would know after a restart."""
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):
        proxy.fault = faults.only(names.MEMORY, faults.status(500))
        end = await pruner.prune(*ACT)
        assert (end.code, "our memory could not be written on the Lease" in end.err) == (1, True), end.said
        assert pruner.writes("quiet") == []
        assert not await stage.is_paused(idle)


# ---- the freeze ------------------------------------------------------------------------------------------------------


async def type_freeze(*words: str, kubeconfig: pathlib.Path) -> product.Ended:
    """From somebody's laptop."""
    return await product.run("fallow", *words, "--kubeconfig", str(kubeconfig), env={"HOME": str(kubeconfig.parent)})


@pytest.mark.accepts("idle", 50, 58)
async def test_a_freeze_from_a_laptop_reaches_the_daemon_or_fails(
    start_control_plane: StartControlPlane, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    stage = product.Stage(await start_control_plane(world.PLAIN), prometheus)
    await stage.build()
    quiet = await stage.workload("quiet")
    opt_out = {"metadata": {"annotations": {names.OPT_OUT: names.OPT_OUT_VALUE}}}
    await stage.cluster.patch(quiet, opt_out)
    await stage.prometheus.start()
    ada = await stage.cluster.user("ada", [READ, LEASES])  # her context is the namespace of her workloads
    nobody = await type_freeze("freeze", kubeconfig=ada)
    assert (nobody.code, "no Lease gpu-pruner is there" in nobody.said) == (1, True), nobody.said
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start(*ACT, env={"POD_NAME": "gpu-pruner-0"})
        await daemon.more_cycles(4)
        frozen = await type_freeze("freeze", "--for", "2h", kubeconfig=ada)
        assert frozen.code == 0, frozen.said
        assert f"the daemon gpu-pruner-0 in namespace {stage.system} has confirmed it" in frozen.out
        said = await annotations(stage)
        assert said[names.FROZEN_SEEN] == said[names.FROZEN_UNTIL]
        await stage.cluster.patch(quiet, {"metadata": {"annotations": {names.OPT_OUT: None}}})
        await daemon.more_cycles(3)
        assert pruner.pauses("quiet") == []
        blind = await stage.cluster.user("bob", [])
        refused = await type_freeze("freeze", kubeconfig=blind)
        assert refused.code == 1
        assert "whether a daemon runs could not be seen" in refused.said
        assert "gpu-pruner-system, fallow-system" in refused.said
        metadata = {"name": names.LEASE, "namespace": stage.namespace}
        held = {"holderIdentity": "another", "leaseDurationSeconds": 15}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": held}
        await stage.cluster.apply(lease)
        several = await type_freeze("unfreeze", kubeconfig=ada)
        assert (several.code, stage.system in several.said, stage.namespace in several.said) == (1, True, True)
        over = await type_freeze("unfreeze", "-n", stage.system, kubeconfig=ada)
        assert (over.code, "has confirmed it" in over.said) == (0, True), over.said
        await stage.cluster.wait_until(lambda: stage.is_paused(quiet))
        await daemon.terminate()
        unheld = await type_freeze("freeze", "-n", stage.system, kubeconfig=ada)
        assert (unheld.code, "no daemon runs" in unheld.said) == (0, True), unheld.said


@pytest.mark.accepts("idle", 58)
async def test_a_freeze_waits_for_the_pause_in_flight_and_no_other_begins(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = [await stage.workload(name) for name in ("one", "two", "three")]
    await stage.prometheus.start()
    ada = await stage.cluster.user("ada", [READ, LEASES])
    begun, ended = asyncio.Event(), list[bool]()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):

        async def dawdle(exchange: faults.Exchange) -> faults.web.StreamResponse:
            begun.set()
            await asyncio.sleep(4.0)  # the server is slow just now
            ended.append(True)
            return await exchange.forward()

        proxy.fault = faults.only(names.PAUSED_AT, dawdle)
        daemon = await pruner.start(*ACT)
        await asyncio.wait_for(begun.wait(), 30)
        frozen = await type_freeze("freeze", "-n", stage.system, kubeconfig=ada)
        assert (frozen.code, "has confirmed it" in frozen.said) == (0, True), frozen.said
        assert ended == [True]  # one was under way, and it was waited for
        await daemon.more_cycles(2)
        assert ended == [True]
        assert [await stage.is_paused(each) for each in quiet].count(True) == 1


@pytest.mark.accepts("idle", 58)
async def test_a_late_answer_to_the_holder_itself_opens_no_gate(stage: product.Stage, folder: pathlib.Path) -> None:
    quiet = [await stage.workload(name) for name in ("one", "two", "three")]
    uids = [each["metadata"]["uid"] for each in quiet]
    await stage.prometheus.start()
    ada = await stage.cluster.user("ada", [READ, LEASES])
    begun = asyncio.Event()
    async with (
        product.proxy_to_api_server(stage.cluster.plane) as proxy,
        product.product_on(stage, folder, through=proxy.url) as pruner,
    ):

        async def dawdle(exchange: faults.Exchange) -> faults.web.StreamResponse:
            """What is about to be paused was written down; that arrives late."""
            is_note = "/leases/" in exchange.text and any(uid in exchange.text for uid in uids)
            if exchange.request.method != "PUT" or begun.is_set() or not is_note:
                return await exchange.forward()
            answer = await exchange.fetch()
            begun.set()
            await asyncio.sleep(4.5)
            return faults.web.json_response(answer)

        proxy.fault = dawdle
        daemon = await pruner.start(*ACT)
        await asyncio.wait_for(begun.wait(), 60)
        frozen = await type_freeze("freeze", "-n", stage.system, kubeconfig=ada)
        assert (frozen.code, "has confirmed it" in frozen.said) == (0, True), frozen.said
        before = await which_are_paused(stage, dict(zip(uids, quiet, strict=True)))
        await daemon.more_cycles(3)
        assert await which_are_paused(stage, dict(zip(uids, quiet, strict=True))) == before


@pytest.mark.accepts("idle", 58)
async def test_only_a_freeze_that_is_in_force_is_confirmed(stage: product.Stage, folder: pathlib.Path) -> None:
    quiet = await stage.workload("quiet")
    await stage.cluster.patch(quiet, {"metadata": {"annotations": {names.OPT_OUT: names.OPT_OUT_VALUE}}})
    await stage.prometheus.start()
    ada, behind = await stage.cluster.user("ada", [READ, LEASES]), time.time() - units.HOUR
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start(*ACT)
        await daemon.more_cycles(4)
        over = {names.FROZEN_UNTIL: units.rfc3339(behind)}
        await stage.cluster.patch(await must_have_lease(stage), {"metadata": {"annotations": over}})
        await daemon.more_cycles(4)
        assert names.FROZEN_SEEN not in await annotations(stage)
        async with reach.open_lease(str(ada), None, stage.system) as on:
            frozen = await verbs.freeze(on, 30 * units.MINUTE, "maintenance", behind)
            again = await verbs.freeze(on, 5 * units.MINUTE, "lunch", time.time())
        assert (frozen.heard, frozen.is_longer) == (Heard.answered, False)
        assert time.time() + 20 * units.MINUTE < (units.read_instant(frozen.until) or 0.0)
        assert (again.until, again.heard, again.is_longer) == (frozen.until, Heard.answered, True)
        await stage.cluster.patch(quiet, {"metadata": {"annotations": {names.OPT_OUT: None}}})
        await daemon.more_cycles(3)
        assert pruner.pauses("quiet") == []


async def test_a_freeze_outlives_the_lease_it_stands_on(stage: product.Stage, folder: pathlib.Path) -> None:
    quiet = await stage.workload("quiet")
    await stage.cluster.patch(quiet, {"metadata": {"annotations": {names.OPT_OUT: names.OPT_OUT_VALUE}}})
    await stage.prometheus.start()
    ada = await stage.cluster.user("ada", [READ, LEASES])
    async with product.product_on(stage, folder) as pruner:
        daemon = await pruner.start(*ACT)
        await daemon.more_cycles(4)
        assert (await type_freeze("freeze", "-n", stage.system, kubeconfig=ada)).code == 0
        before = await annotations(stage)
        await stage.cluster.patch(quiet, {"metadata": {"annotations": {names.OPT_OUT: None}}})
        await stage.cluster.delete(await must_have_lease(stage))

        async def is_back() -> bool:
            return await stage.lease() is not None

        await stage.cluster.wait_until(is_back)
        after = await annotations(stage)
        assert {key: after[key] for key in before if key != names.MEMORY} == {
            key: text for key, text in before.items() if key != names.MEMORY
        }
        await daemon.more_cycles(3)
        assert pruner.pauses("quiet") == []


async def must_have_lease(stage: product.Stage) -> product.Object:
    found = await stage.lease()
    assert found is not None
    return found


@pytest.mark.accepts("idle", 58)
async def test_a_holder_that_lives_and_does_not_answer_is_said(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    """As one of an older release would."""
    await stage.prometheus.start()
    ada = await stage.cluster.user("ada", [READ, LEASES])
    spec = {"holderIdentity": "old", "leaseDurationSeconds": 15}
    metadata = {"name": names.LEASE, "namespace": stage.system}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    made = await stage.cluster.apply(lease)

    async def renew() -> None:
        for second in range(60):
            await stage.cluster.patch(made, {"spec": {"renewTime": f"2026-05-04T12:00:{second:02}.000000Z"}})
            await asyncio.sleep(1.0)

    renewing = asyncio.create_task(renew())
    try:
        silent = await type_freeze("freeze", "-n", stage.system, kubeconfig=ada)
    finally:
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing
    assert (silent.code, "NOT CONFIRMED: no answer within 15 s" in silent.said) == (1, True), silent.said
