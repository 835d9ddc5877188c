"""The real API server asks the sharing webhook, as it is shipped: a whole GPU becomes a part of one, nobody's manifest
is touched, and whatever goes wrong the pod is made."""

from __future__ import annotations

import asyncio
import functools
import pathlib
import signal
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fallow import names
from fallow.act import certificates
from fallow.model import owner_use
from fallow.model.policies import budget_crd, sharing_crd
from fallow.model.sharing import OwnerUse
from fallow.model.units import DAY
from tests.real import cluster as clusters
from tests.real.test_webhook import Gate, pod

VERSION = "gpuautoscaler.io/v1alpha1"
NEEDS_8 = {names.GPU_MEMORY_NEED: "8Gi"}
MIG = "nvidia.com/mig-1g.10gb"


@pytest.fixture
async def gate(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> AsyncIterator[Gate]:
    await cluster.apply_crds(budget_crd.define(), sharing_crd.define())
    made = Gate(cluster, tmp_path)
    try:
        await made.start("--rewrite-requests", "true")
        await made.configure()
        yield made
    finally:
        await made.stop()


async def make_policy(gate: Gate, name: str = "small", **spec: Any) -> dict[str, Any]:
    """For the test's own namespaces and node alone."""
    labels = {"test": gate.cluster.namespace}
    body = {"strategy": "mig", "mode": "enforce", "namespaceSelector": {"matchLabels": labels},
            "nodeSelector": {"pool": gate.cluster.namespace}, **spec}
    named = {"name": f"{name}-{gate.cluster.namespace}"}
    made = {"apiVersion": VERSION, "kind": "GPUSharingPolicy", "metadata": named, "spec": body}
    return await gate.cluster.apply(made)


async def cut_node(gate: Gate, mig: dict[str, int]) -> None:
    """A node as NVIDIA's plugin leaves it after MIG was switched on."""
    await gate.cluster.gpu_node(
        f"cut-{gate.cluster.namespace}", gpus=0, product="NVIDIA-A100-SXM4-80GB", mig=mig,
        labels={"pool": gate.cluster.namespace},
    )


async def create(gate: Gate, place: str, of: dict[str, Any], **query: str) -> dict[str, Any]:
    found: dict[str, Any] = await gate.cluster.request("POST", f"/api/v1/namespaces/{place}/pods", of, **query)
    return found


async def counted(gate: Gate) -> str:
    return (await gate.ask("/metrics"))[1]


def asked(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["containers"][0]["resources"]
    return found


@pytest.mark.accepts("packing", 4, 5, 6)
async def test_a_whole_gpu_becomes_a_part_and_others_are_left_alone(gate: Gate) -> None:
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3, "2g.20gb": 1})
    await make_policy(gate)

    async def is_shared() -> Any:
        made = await create(gate, place, pod("probe", annotations=NEEDS_8), dryRun="All")
        return made if MIG in asked(made)["limits"] else None

    made = await gate.cluster.wait_until(is_shared)
    assert asked(made)["limits"][MIG] == asked(made)["requests"][MIG] == "1"
    assert names.GPU not in {**asked(made)["limits"], **asked(made)["requests"]}
    assert made["metadata"]["annotations"][names.OPTIMIZED] == "true"
    assert made["spec"]["nodeSelector"]["pool"] == gate.cluster.namespace
    again = pod("again", annotations=made["metadata"]["annotations"])
    again["spec"]["containers"][0]["resources"] = asked(made)
    again["spec"]["nodeSelector"] = made["spec"]["nodeSelector"]
    same = await create(gate, place, again, dryRun="All")
    assert (asked(same), same["metadata"]["annotations"]) == (asked(made), made["metadata"]["annotations"])
    for gpus, marks in ((2, NEEDS_8), (1, {**NEEDS_8, names.OPTIMIZE: "false"}), (1, {names.SHARING_MODE: "turbo"})):
        kept = await create(gate, place, pod("kept", gpus, annotations=marks), dryRun="All")
        assert asked(kept)["limits"][names.GPU] == str(gpus)
        assert names.OPTIMIZED not in kept["metadata"]["annotations"]


async def test_an_audit_tells_who_makes_the_pod_and_changes_nothing(gate: Gate) -> None:
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3})
    await make_policy(gate, mode="audit")

    async def is_counted() -> bool:
        made = await create(gate, place, pod("probe", annotations=NEEDS_8), dryRun="All")
        assert asked(made)["limits"][names.GPU] == "1"
        return 'outcome="audited",reason="PolicyAudits"' in await counted(gate)

    await gate.cluster.wait_until(is_counted)


ODD: dict[str, dict[str, Any]] = {
    "an init container and a thousand others": {
        "initContainers": [{"name": "first", "image": "sh"}],
        "containers": [{"name": f"c{number}", "image": "app"} for number in range(1000)],
    },
    "a megabyte": {"containers": [{"name": "large", "image": "app", "args": ["x" * 1_000_000]}]},
    "its own tolerations and nodes": {
        "nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": [{"operator": "Exists"}],
        "priority": None, "hostNetwork": True, "terminationGracePeriodSeconds": 7,
    },
}


@pytest.mark.accepts("packing", 4, 6)
@pytest.mark.parametrize("shape", ODD)
async def test_of_pods_of_every_shape_only_what_the_table_names_is_touched(gate: Gate, shape: str) -> None:
    """The same pod, made without the webhook and with it."""
    inside, outside = await gate.place("in"), "default"
    labels = {"pool": gate.cluster.namespace, "kubernetes.io/os": "linux"}
    await gate.cluster.gpu_node(f"cut-{gate.cluster.namespace}", gpus=0, product="NVIDIA-A100-SXM4-80GB",
                                mig={"1g.10gb": 3}, labels=labels)
    await make_policy(gate)
    wanted = pod("odd", annotations=NEEDS_8)
    wanted["spec"]["containers"] += ODD[shape].get("containers", [])
    wanted["spec"] |= {key: value for key, value in ODD[shape].items() if key != "containers"}

    async def is_shared() -> Any:
        made = await create(gate, inside, wanted, dryRun="All")
        return made if MIG in asked(made)["limits"] else None

    changed, plain = await gate.cluster.wait_until(is_shared), await create(gate, outside, wanted, dryRun="All")
    assert names.GPU in asked(plain)["limits"]
    assert without_what_may_change(changed) == without_what_may_change(plain)


def without_what_may_change(made: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in made["spec"].items() if key not in ("tolerations", "nodeSelector")}
    first, *others = spec["containers"]
    kept = {where: {name: count for name, count in some.items() if not name.startswith("nvidia.com/")}
            for where, some in first["resources"].items()}
    for container in (first, *others):  # the token of the namespace's account is called otherwise in each pod
        container.pop("volumeMounts", None)
    for container in spec.get("initContainers", ()):
        container.pop("volumeMounts", None)
    spec.pop("volumes", None)
    return {"labels": made["metadata"].get("labels"), **spec, "containers": [{**first, "resources": kept}, *others]}


def without_laws(value: Any) -> Any:
    """A definition of before there were any, by which what is wrong could be stored."""
    if isinstance(value, dict):
        return {key: without_laws(each) for key, each in value.items() if key != "x-kubernetes-validations"}
    return [without_laws(each) for each in value] if isinstance(value, list) else value


@pytest.mark.accepts("packing", 8)
async def test_a_policy_that_is_wrong_leaves_pods_as_they_are_and_the_counter_says_so(gate: Gate) -> None:
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3})
    await make_policy(gate)

    async def is_shared() -> bool:
        made = await create(gate, place, pod("probe", annotations=NEEDS_8), dryRun="All")
        return MIG in asked(made)["limits"]

    await gate.cluster.wait_until(is_shared)
    await gate.cluster.apply_crds(without_laws(sharing_crd.define()))
    try:
        broken = await make_policy(gate, "broken", priority=9, podSelector={
            "matchExpressions": [{"key": "app", "operator": "In", "values": []}],
        })
    finally:
        await gate.cluster.apply_crds(sharing_crd.define())

    async def is_whole() -> bool:
        return not await is_shared()

    await gate.cluster.wait_until(is_whole)
    await gate.cluster.delete(broken)
    assert 'outcome="unchanged",reason="PolicyInvalid"' in await counted(gate)


def owned(name: str, by: dict[str, Any]) -> dict[str, Any]:
    made = pod(name, annotations=NEEDS_8)
    made["metadata"]["ownerReferences"] = [refer(by)]
    return made


def refer(to: dict[str, Any]) -> dict[str, Any]:
    named = {key: to["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": to["apiVersion"], "kind": to["kind"], **named, "controller": True}


@pytest.mark.accepts("packing", 21)
async def test_the_next_pod_of_who_was_hurt_is_whole_also_in_the_next_run_of_a_schedule(gate: Gate) -> None:
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3})
    await make_policy(gate)
    marks = {names.BACKOFF_UNTIL: "2099-01-01T00:00:00Z"}
    template = clusters.pod_template("job", 0)
    template["spec"]["restartPolicy"] = "Never"
    owners = {}
    for name, marked in (("fine", {}), ("hurt", marks)):
        kept = {"name": name, "namespace": place, "annotations": marked}
        schedule = await gate.cluster.create({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": kept,
            "spec": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": {"template": template}}},
        })
        owners[name] = await gate.cluster.create({
            **clusters.replicated("apps/v1", "Deployment", name, 0, 1), "metadata": kept,
        }), await gate.cluster.create({
            "apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": template},
            "metadata": {"name": f"{name}-2", "namespace": place, "ownerReferences": [refer(schedule)]},
        })

    async def share(by: dict[str, Any]) -> bool:
        return MIG in asked(await create(gate, place, owned("next", by), dryRun="All"))["limits"]

    for fine, hurt in zip(owners["fine"], owners["hurt"], strict=True):
        await gate.cluster.wait_until(functools.partial(share, fine))
        assert not await share(hurt)
    assert 'outcome="unchanged",reason="BackOff"} 2.0' in await counted(gate)


@pytest.mark.accepts("packing", 9)
async def test_while_the_webhook_is_killed_pods_are_made_as_they_are(gate: Gate) -> None:
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3})
    await make_policy(gate)

    async def is_shared() -> bool:
        made = await create(gate, place, pod("probe", annotations=NEEDS_8), dryRun="All")
        return MIG in asked(made)["limits"]

    await gate.cluster.wait_until(is_shared)
    assert gate.process is not None
    gate.process.send_signal(signal.SIGSTOP)  # the kernel still takes connections: nothing is ever answered
    async with asyncio.timeout(15):  # of three webhooks each is waited for, for three seconds
        slow = await create(gate, place, pod("slow", annotations=NEEDS_8))
    assert asked(slow)["limits"][names.GPU] == "1"
    gate.process.send_signal(signal.SIGCONT)
    await gate.cluster.wait_until(is_shared)
    burst = [asyncio.create_task(create(gate, place, pod(f"p{number}", annotations=NEEDS_8))) for number in range(40)]
    await asyncio.wait(burst, return_when=asyncio.FIRST_COMPLETED)
    gate.process.kill()
    gate.process.wait(30)
    parts = [asked(each)["limits"] for each in await asyncio.gather(*burst)]
    assert all((MIG in each) != (names.GPU in each) for each in parts)
    made = await create(gate, place, pod("alive", annotations=NEEDS_8))
    assert (made["metadata"]["name"], asked(made)["limits"][names.GPU]) == ("alive", "1")
    await gate.start("--rewrite-requests", "true")
    await gate.cluster.wait_until(is_shared)


def _shown_leaf(gate: Gate) -> bytes:
    """What a new connection is shown."""
    return ssl.get_server_certificate(("localhost", gate.port)).encode()


@pytest.mark.accepts("packing", 10)
async def test_a_leaf_that_is_renewed_under_load_fails_no_call(gate: Gate) -> None:
    """A call that fails lets the pod pass as it is: each of them was changed, so none failed."""
    old = certificates.renew(None, "localhost", time.time() - 61 * DAY)
    gate.write_papers(old)
    await gate.configure(bundle=old.bundle)
    await gate.cluster.wait_until(gate.is_ready)
    place = await gate.place("in")
    await cut_node(gate, {"1g.10gb": 3})
    await make_policy(gate)
    made, is_over = list[bool](), asyncio.Event()

    async def is_shared() -> bool:
        return MIG in asked(await create(gate, place, pod("probe", annotations=NEEDS_8), dryRun="All"))["limits"]

    async def ask_on() -> None:
        while not is_over.is_set():
            made.append(await is_shared())

    await gate.cluster.wait_until(is_shared)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(ask_on())
        await gate.cluster.wait_until(lambda: len(made) >= 50)
        new = certificates.renew(old, "localhost", time.time())
        assert (new.bundle, new.leaf == old.leaf) == (old.bundle, False)
        (gate.folder / "tls.crt").write_bytes(new.leaf)  # without its key: the old pair stays
        await gate.cluster.wait_until(lambda: "cannot be read" in gate.log.read_text())
        half = len(made)
        await gate.cluster.wait_until(lambda: len(made) >= half + 50)
        gate.write_papers(new)

        async def is_new() -> bool:
            return (await asyncio.to_thread(_shown_leaf, gate)).split() == new.leaf.split()

        await gate.cluster.wait_until(is_new)
        after = len(made)
        await gate.cluster.wait_until(lambda: len(made) >= after + 50)
        is_over.set()
    assert all(made)
    assert 'outcome="error"' not in await counted(gate)


async def test_who_never_named_its_memory_shares_by_what_the_daemon_measured_and_not_by_what_is_old(gate: Gate) -> None:
    place = await gate.place("in")
    await gate.cluster.make_namespace("our-own")
    await cut_node(gate, {"1g.10gb": 3, "2g.20gb": 1})
    await make_policy(gate)
    owner = await gate.cluster.apply({
        **clusters.replicated("apps/v1", "Deployment", "llm", 0, 1), "metadata": {"name": "llm", "namespace": place},
    })
    made = pod("llm-0")
    made["metadata"]["ownerReferences"] = [{
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "llm", "uid": owner["metadata"]["uid"],
        "controller": True,
    }]
    use = OwnerUse(coverage=0.9, peak_memory=6000, mean=0.2, p95=0.1)

    async def tell(at: float) -> None:
        data = {owner_use.KEY: owner_use.write({owner["metadata"]["uid"]: use}, at)}
        await gate.cluster.apply({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": names.OWNER_USE, "namespace": "our-own"},
        })

    async def is_shared() -> bool:
        return MIG in asked(await create(gate, place, made, dryRun="All"))["limits"]

    async def is_whole() -> bool:
        return not await is_shared()

    assert await is_whole()
    await tell(time.time())
    await gate.cluster.wait_until(is_shared)
    await tell(time.time() - owner_use.OLDEST - 60)
    await gate.cluster.wait_until(is_whole)
