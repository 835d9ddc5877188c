"""GPUSharingPolicy and GPUNodeConfig on a real API server: defaults, what it refuses and how, what cannot be changed,
the columns that people see."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import pytest
import yaml

from fallow.act import share_statuses
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import sharing
from fallow.model.policies import nodeconfig_crd, sharing_crd
from fallow.model.seen import ABSENT
from fallow.model.share_hurts import PolicyReverts, RevertsKept, ShareRevert
from tests import bad_sharing
from tests.real import build, product
from tests.real import cluster as clusters

VERSION = "gpuautoscaler.io/v1alpha1"
POLICY, NODE = "GPUSharingPolicy", "GPUNodeConfig"


@pytest.fixture
async def ready(cluster: clusters.Cluster) -> clusters.Cluster:
    await cluster.apply_crds(sharing_crd.define(), nodeconfig_crd.define())
    return cluster


def written(cluster: clusters.Cluster, spec: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": cluster.namespace}, "spec": spec}


@pytest.mark.accepts("packing", 15)
@pytest.mark.parametrize(("kind", "bad"), [(POLICY, bad_sharing.BAD_POLICIES), (NODE, bad_sharing.BAD_NODES)])
async def test_the_api_server_refuses_what_is_wrong_and_names_the_field(
    ready: clusters.Cluster, kind: str, bad: dict[str, tuple[dict[str, Any], str]]
) -> None:
    unrefused, unnamed = [], {}
    for name, (spec, field) in bad.items():
        try:
            await ready.create(written(ready, spec, kind))
        except clusters.Refused as refused:
            causes = [cause.get("field") for cause in refused.status.get("details", {}).get("causes", [])]
            if field not in causes:
                unnamed[name] = str(refused)
        else:
            unrefused.append(name)
    assert (unrefused, unnamed) == ([], {})


@pytest.mark.parametrize(("kind", "good"), [(POLICY, bad_sharing.GOOD_POLICIES), (NODE, bad_sharing.GOOD_NODES)])
async def test_the_api_server_takes_what_is_right_and_fills_in_the_same_defaults(
    ready: clusters.Cluster, kind: str, good: dict[str, dict[str, Any]]
) -> None:
    parse: Any = {POLICY: sharing_crd.parse, NODE: nodeconfig_crd.parse}[kind]
    for spec in good.values():
        made = await ready.create(written(ready, spec, kind))
        read = parse(made)
        assert read.invalid == ()
        assert parse({**made, "spec": spec}) == read  # ours are the server's
        await ready.delete(made)


async def test_the_node_of_a_config_never_changes(ready: clusters.Cluster) -> None:
    made = await ready.create(written(ready, bad_sharing.node(mode="enforce"), NODE))
    with pytest.raises(clusters.Refused, match="cannot be changed"):
        await ready.patch(made, {"spec": {"nodeName": "gpu-2"}})
    changed = await ready.patch(made, {"spec": {"mode": "audit"}})
    assert (changed["spec"]["nodeName"], changed["spec"]["mode"]) == ("gpu-1", "audit")
    with pytest.raises(clusters.Refused, match="MPS and MIG exclude each other"):
        await ready.patch(made, {"spec": {"mpsEnabled": True, "migEnabled": True}})


async def kubectl(cluster: clusters.Cluster, *words: str) -> list[list[str]]:
    line = [str(build.need("kubectl")), "--kubeconfig", str(cluster.kubeconfig), *words]
    done = await asyncio.to_thread(subprocess.run, line, capture_output=True, check=True, timeout=60)
    return [row.split() for row in done.stdout.decode().splitlines()]


async def test_columns_and_short_names(ready: clusters.Cluster) -> None:
    of_policy = await ready.create(written(ready, bad_sharing.policy(priority=7), POLICY))
    of_node = await ready.create(written(ready, bad_sharing.node(), NODE))
    moment = "2026-11-17T12:00:00Z"
    ready_condition = {"type": "Ready", "status": "True", "reason": "Fine", "message": "", "observedGeneration": 1,
                       "lastTransitionTime": moment}
    await ready.patch(of_policy, {"status": {"appliedPods": 3, "conditions": [ready_condition]}}, part="status")
    await ready.patch(of_node, {"status": {"phase": "Configuring", "step": "Draining"}}, part="status")
    head, row = await kubectl(ready, "get", "gsp", ready.namespace)
    assert head == ["NAME", "STRATEGY", "MODE", "PRIORITY", "APPLIEDPODS", "READY", "AGE"]
    assert row[:6] == [ready.namespace, "auto", "audit", "7", "3", "True"]
    head, row = await kubectl(ready, "get", "gnc", ready.namespace)
    assert head == ["NAME", "NODE", "PHASE", "STEP", "AGE"]
    assert row[:4] == [ready.namespace, "gpu-1", "Configuring", "Draining"]


async def test_fallow_apply_stores_both_and_refuses_in_one_sentence(ready: clusters.Cluster) -> None:
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(ready.kubeconfig)}
    both = [
        written(ready, bad_sharing.GOOD_POLICIES["most"], POLICY),
        written(ready, bad_sharing.GOOD_NODES["mps"], NODE),
    ]

    async def apply(text: str) -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_exec(
            str(product.BIN / "fallow"), "apply", "-f", "-", env=environ, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(text.encode())
        return process.returncode, out.decode(), err.decode()

    code, out, err = await apply(yaml.safe_dump_all(both))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"gpusharingpolicy.gpuautoscaler.io/{ready.namespace} applied",
        f"gpunodeconfig.gpuautoscaler.io/{ready.namespace} applied",
    ]
    code, _, err = await apply(yaml.safe_dump(written(ready, bad_sharing.node(mpsEnabled=True, migEnabled=True), NODE)))
    assert code == 2
    assert f"{ready.namespace}: spec.mpsEnabled: MPS and MIG exclude each other" in err


async def test_whom_a_policy_hurt_outlives_what_its_status_tells_otherwise(ready: clusters.Cluster) -> None:
    made = await ready.create(written(ready, bad_sharing.policy(mode="enforce"), POLICY))
    now, name = 1_794_900_000.0, ready.namespace
    access = config.load_access(kubeconfig=str(ready.kubeconfig), context=None, environment={})
    async with kube.Api(access) as api:
        statuses = share_statuses.ShareStatuses(api)
        policy = sharing_crd.parse(made)
        await statuses.note_reverts(policy, RevertsKept((ShareRevert("u-1", now),)))
        standing = sharing.stand_policy(policy, ABSENT, PolicyReverts(reverted=1, owners=2, recent=1))
        await statuses.report_policy(policy, standing, now)
        both = tuple(ShareRevert(f"u-{one}", now) for one in (1, 2))
        await statuses.note_reverts(policy, RevertsKept(both, ((now, 7),)))
        found = await api.get(kube.SHARING_POLICIES, None, name)
    status = found["status"]
    assert ([each["owner"] for each in status["recentReverts"]], status["revertedWorkloads"]) == (["u-1", "u-2"], 1)
    assert not sharing_crd.parse(found).enforces
    assert len(sharing_crd.read_reverts(status)) == 9
