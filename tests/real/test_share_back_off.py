"""Whom sharing hurt has whole GPUs next, of every kind: by the shipped roles and bounds, where only the default letters
are paused. With that account nothing else of such a kind can be changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from fallow import names, telemetry
from fallow.act import share_statuses
from fallow.model import cluster as model
from fallow.model import units
from fallow.model.seen import Known, Register
from fallow.model.share_hurts import HurtSeen, SharedOwner
from fallow.model.units import HOUR
from fallow.stories import share_guard
from fallow.stories.turn import Turn
from tests import builders
from tests.real import cluster as clusters
from tests.real import shipped, test_bounds, test_deploy, test_hands, test_sharing_webhook
from tests.real.test_sharing_webhook import NEEDS_8, cut_node, make_policy, refer
from tests.real.test_webhook import Gate
from tests.unit.act.examples import workload_of

Object = dict[str, Any]
gate = test_sharing_webhook.gate
CHANGES: dict[str, list[Object]] = {
    "Job": [{"suspend": False}, {"parallelism": 0}],
    "CronJob": [{"suspend": False}, {"jobTemplate": {"spec": {"template": {"spec": test_bounds.OPENED}}}}],
    "DaemonSet": [{"template": {"spec": test_bounds.OPENED}}, {"minReadySeconds": 5}],
}
FILES = ("base/20-reader.yaml", "acting/10-role.yaml", "sharing/10-role.yaml", "sharing/15-back-off-role.yaml")


async def bind(cluster: clusters.Cluster, rules: list[Object]) -> None:
    """Our account, with these rights."""
    system = f"{cluster.namespace}-own"
    await cluster.make_namespace(system)
    for thing in test_deploy.manifests(test_bounds.BOUNDS, namespace=system):
        await cluster.apply(thing)
    cluster.kubeconfig = await cluster.service_account("gpu-pruner", rules, namespace=system)


async def wait_bound(thief: test_bounds.Thief, thing: Object) -> None:
    async def is_bound() -> bool:
        try:
            await thief.send(thing, {"metadata": {"labels": {"a": "b"}}}, dryRun="All")
        except clusters.Refused as refused:
            return "gpu-pruner-bounds" in str(refused)
        return False

    await thief.cluster.wait_until(is_bound)


def make_template() -> Object:
    made: Object = clusters.pod_template("job", 1, annotations=NEEDS_8)
    made["spec"]["restartPolicy"] = "Never"
    return made


async def make_job(cluster: clusters.Cluster, place: str, name: str, above: Sequence[Object] = ()) -> Object:
    return await cluster.create({
        "apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": make_template()},
        "metadata": {"name": name, "namespace": place, "ownerReferences": above},
    })


async def make_owners(cluster: clusters.Cluster, place: str) -> dict[str, Object]:
    """A Job of a CronJob, one of its own, a Deployment, a DaemonSet; nothing of them runs."""
    night = await cluster.create({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "night", "namespace": place},
        "spec": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": {"template": make_template()}}},
    })
    run, alone = await make_job(cluster, place, "night-1", [refer(night)]), await make_job(cluster, place, "alone")
    kept = {"name": "llm", "namespace": place}
    llm = await cluster.create({**clusters.replicated("apps/v1", "Deployment", "llm", 0, 1), "metadata": kept})
    agents = clusters.replicated("apps/v1", "DaemonSet", "agents", 0, 1)
    del agents["spec"]["replicas"]
    agents["spec"]["template"]["spec"]["nodeSelector"] = {"no": "where"}
    agents = await cluster.create({**agents, "metadata": {"name": "agents", "namespace": place}})
    found = {"night": night, "night-1": run, "alone": alone, "llm": llm, "agents": agents}
    return {name: await test_hands.settled(cluster, each) for name, each in found.items()}


async def hurt(cluster: clusters.Cluster, *owners: tuple[Object, Object | None], policy: str) -> None:
    """One turn of the guard: each shares by the policy and had a fault. Beside an owner what stands above it."""
    now, world = time.time(), builders.World()
    marks = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "mig", names.OPTIMIZATION_POLICY: policy}
    for thing, above in owners:
        place = world.pod(f"{thing['metadata']['name']}-0", annotations=marks, created_at=now - HOUR)
        made = msgspec.structs.replace(workload_of(thing), pods=(place,))
        if above is not None:
            at = model.Owner("batch", "v1", above["kind"], above["metadata"]["name"], above["metadata"]["uid"])
            made = msgspec.structs.replace(made, chain=(at,))
        world.workloads.append(made)

    async def read(watched: Sequence[SharedOwner], at: float) -> Mapping[str, HurtSeen]:
        return {each.workload.ref.uid: HurtSeen(fault=31) for each in watched}

    async with test_hands.hands_on(cluster) as hands:
        story = share_guard.ShareGuardStory(
            sights=share_guard.GuardSights(
                policies=lambda: Known(()), pods=lambda: world.pods, workloads=lambda: world.workloads, read=read,
                namespaces=lambda: Register(world.namespaces), nodes=lambda: Register(world.nodes),
            ),
            acts=share_guard.GuardHands(hands=hands, statuses=share_statuses.ShareStatuses(hands.writer._api)),
            metrics=telemetry.Telemetry(),
        )
        await story.tick(Turn(
            clock=lambda: now, monotonic=time.monotonic, budget=60.0, stopping=asyncio.Event(), leads=lambda: True,
        ))


@pytest.mark.accepts("packing", 21)
async def test_a_job_and_the_next_run_of_its_schedule_have_whole_gpus_though_jobs_are_not_paused(gate: Gate) -> None:
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3})
    policy = await make_policy(gate)
    owners = await make_owners(gate.cluster, place)
    await bind(gate.cluster, shipped.rules(*FILES))

    async def shares(name: str) -> bool:
        probe = test_sharing_webhook.owned("next", owners[name])
        made = await test_sharing_webhook.create(gate, place, probe, dryRun="All")
        return test_sharing_webhook.MIG in test_sharing_webhook.asked(made)["limits"]

    await gate.cluster.wait_until(lambda: shares("llm"))
    pairs = [(owners[name], owners["night"] if name == "night-1" else None)
             for name in ("night-1", "alone", "llm", "agents")]

    async def is_marked() -> bool:
        """New rights and bounds come to the API server by its own watch: the guard tries again, as it does."""
        await hurt(gate.cluster, *pairs, policy=policy["metadata"]["name"])
        now = [await gate.cluster.refresh(each) for each in owners.values()]
        return all(names.BACKOFF_UNTIL in each["metadata"].get("annotations", {}) for each in now)

    await gate.cluster.wait_until(is_marked)
    for name, thing in owners.items():
        now = await gate.cluster.refresh(thing)
        assert now["spec"] == thing["spec"], name
        if name != "night":  # the webhook remembers an owner for a minute, and has not asked for these yet
            assert name == "llm" or not await shares(name)
    owners["night-2"] = await make_job(gate.cluster, place, "night-2", [refer(owners["night"])])
    assert not await shares("night-2")


@pytest.mark.accepts("idle", 56)
async def test_with_the_rights_of_a_back_off_nothing_else_of_a_job_can_be_changed(cluster: clusters.Cluster) -> None:
    owners = await make_owners(cluster, cluster.namespace)
    await bind(cluster, shipped.rules(*FILES))
    until = units.rfc3339(time.time() + HOUR)
    async with test_bounds.thief_on(cluster) as thief:
        await wait_bound(thief, owners["llm"])
        for name in ("night", "night-1", "alone", "agents"):
            thing = owners[name]
            for spec in CHANGES[thing["kind"]]:
                assert "right to pause" in await thief.is_refused(thing, {"spec": spec})
            for notes in (
                {names.ORIGINAL_STATE: "{}"}, {names.ACK_UNTIL: until}, {names.SHARING: "enabled"}, {"other/x": "y"},
                {names.BACKOFF_UNTIL: until, names.OPTIMIZE: "false"},
            ):
                assert "right to pause" in await thief.is_refused(thing, {"metadata": {"annotations": notes}})
            for more in test_bounds.METADATA.values():
                await thief.is_refused(thing, {"metadata": more})
            for body in ({names.BACKOFF_UNTIL: until}, {names.BACKOFF_UNTIL: None}):
                await thief.send(thing, {"metadata": {"annotations": body}})
        # What is paused by the default letters is so still.
        await thief.send(owners["llm"], {"metadata": {"annotations": {names.ORIGINAL_STATE: "{}"}}})
        await thief.send(owners["llm"], {"spec": {"replicas": 1}})
    for name, thing in owners.items():
        if name != "llm":
            assert (await cluster.refresh(thing))["spec"] == thing["spec"]


async def test_a_role_from_before_the_verbs_pauses_as_before(cluster: clusters.Cluster) -> None:
    """What was paused must come back though only the bounds were made anew."""
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]}]
    await bind(cluster, rules)
    job = await make_job(cluster, cluster.namespace, "alone")
    async with test_bounds.thief_on(cluster) as thief:
        await wait_bound(thief, job)
        await thief.send(job, {"metadata": {"annotations": {names.ORIGINAL_STATE: "{}"}}})
        await thief.send(job, {"spec": {"suspend": False}})
