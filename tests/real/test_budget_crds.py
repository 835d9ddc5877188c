"""CostBudget and CostAttribution on a real API server: what it takes, what it refuses and how, what it gives back."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import pytest
import yaml

from fallow.model.policies import attribution_crd, budget_crd
from tests import bad_budgets
from tests.real import build, product
from tests.real import cluster as clusters
from tests.unit.model.policies import seed_documents

VERSION = "gpuautoscaler.io/v1alpha1"


@pytest.fixture
async def ready(cluster: clusters.Cluster) -> clusters.Cluster:
    await cluster.apply_crds(budget_crd.define(), attribution_crd.define())
    return cluster


def written(cluster: clusters.Cluster, spec: dict[str, Any], kind: str = "CostBudget") -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": cluster.namespace}, "spec": spec}


@pytest.mark.accepts("cost", 13)
async def test_the_api_server_refuses_what_is_wrong_and_names_the_field(ready: clusters.Cluster) -> None:
    unrefused, unnamed = [], {}
    for name, (spec, field) in bad_budgets.BAD.items():
        try:
            await ready.create(written(ready, spec))
        except clusters.Refused as refused:
            causes = [cause.get("field") for cause in refused.status.get("details", {}).get("causes", [])]
            if field not in causes:
                unnamed[name] = str(refused)
        else:
            unrefused.append(name)
    assert (unrefused, unnamed) == ([], {})


async def test_the_api_server_takes_what_is_right(ready: clusters.Cluster) -> None:
    for spec in bad_budgets.GOOD.values():
        made = await ready.create(written(ready, spec))
        assert budget_crd.parse(made).invalid == ()
        await ready.delete(made)


@pytest.mark.accepts("cost", 12)
async def test_an_amount_of_50000_0_reads_back_as_50000(ready: clusters.Cluster) -> None:
    await ready.create(written(ready, bad_budgets.spec(budget={"amount": 50000.0})))
    text = await ready.request("GET", f"/apis/{VERSION}/costbudgets/{ready.namespace}")
    assert repr(text["spec"]["budget"]["amount"]) == "50000"


@pytest.mark.parametrize(("spec", "field"), [
    ({"trackBy": ["colour"]}, "spec.trackBy[0]"), ({"reportingPeriod": "1y"}, "spec.reportingPeriod"),
    ({"scope": {"type": "team"}}, "spec.scope.teams"), ({"retentionDays": 366}, "spec.retentionDays"),
    ({"trackBy": []}, "spec.trackBy"),
])
async def test_an_attribution_is_checked_too(ready: clusters.Cluster, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(clusters.Refused) as refused:
        await ready.create(written(ready, spec, "CostAttribution"))
    assert field in [cause["field"] for cause in refused.value.status["details"]["causes"]]
    read = attribution_crd.parse({"metadata": {"name": "a"}, "spec": spec})
    assert [fault.partition(": ")[0] for fault in read.invalid] == [field]


async def test_kubectl_shows_the_amount_whichever_way_it_was_written(ready: clusters.Cluster) -> None:
    ways: dict[str, dict[str, Any]] = {
        "new": {"budget": {"amount": 1250.5}}, "old": {"budget": {}, "monthlyLimit": 800},
        "both": {"budget": {"currency": "USD"}, "monthlyLimit": 900},
    }
    for name, way in ways.items():
        made = written(ready, bad_budgets.spec(**way))
        made["metadata"]["name"] = f"{ready.namespace}-{name}"
        await ready.create(made)
    kubectl = [str(build.need("kubectl")), "--kubeconfig", str(ready.kubeconfig), "get", "costbudgets", "--no-headers"]
    done = await asyncio.to_thread(subprocess.run, kubectl, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    amounts = {row.split()[0]: row.split()[1] for row in done.stdout.decode().splitlines()}
    assert [amounts[f"{ready.namespace}-{name}"] for name in ways] == ["1250.5", "800", "900"]
    for name in ways:
        await ready.delete(await ready.get(VERSION, "CostBudget", f"{ready.namespace}-{name}"))


# ---- fallow apply ----------------------------------------------------------------------------------------------------


async def apply(cluster: clusters.Cluster, text: str, *words: str) -> tuple[int, str, str]:
    """`fallow apply -f -`, as typed."""
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig)}
    process = await asyncio.create_subprocess_exec(
        str(product.BIN / "fallow"), "apply", "-f", "-", *words, env=environ, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.accepts("cost", 12)
async def test_the_two_documents_of_the_old_readme_are_stored_and_what_was_corrected_is_said(
    ready: clusters.Cluster,
) -> None:
    own = seed_documents.TEXT.replace("name: ml-team", f"name: {ready.namespace}")
    code, out, err = await apply(ready, own)
    assert code == 0, err
    names_of = [f"{ready.namespace}-monthly-budget", f"{ready.namespace}-attribution"]
    assert out.splitlines() == [
        f"costbudget.gpuautoscaler.io/{names_of[0]} applied", f"costattribution.gpuautoscaler.io/{names_of[1]} applied",
    ]
    assert err.splitlines() == [
        f"{name}: apiVersion: v1alpha1.gpuautoscaler.io is read as gpuautoscaler.io/v1alpha1" for name in names_of
    ]
    stored = await ready.get(VERSION, "CostBudget", names_of[0])
    assert repr(stored["spec"]["budget"]["amount"]) == "50000"
    assert [each["manager"] for each in stored["metadata"]["managedFields"]] == ["fallow"]
    await ready.delete(stored)
    corrected = own.replace("v1alpha1.gpuautoscaler.io", VERSION)
    kubectl = [str(build.need("kubectl")), "--kubeconfig", str(ready.kubeconfig), "apply", "-f", "-"]
    done = await asyncio.to_thread(
        subprocess.run, kubectl, input=corrected.encode(), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    again = await ready.get(VERSION, "CostBudget", names_of[0])
    assert repr(again["spec"]["budget"]["amount"]) == "50000"
    for name, kind in zip(names_of, ("CostBudget", "CostAttribution"), strict=True):
        await ready.delete(await ready.get(VERSION, kind, name))


async def test_a_dry_run_stores_nothing_and_what_the_server_refuses_ends_with_two(ready: clusters.Cluster) -> None:
    text = yaml.safe_dump(written(ready, bad_budgets.spec()))
    code, out, _ = await apply(ready, text, "--dry-run", "server")
    assert (code, "server dry run" in out) == (0, True)
    assert await ready.find(VERSION, "CostBudget", ready.namespace) is None
    code, _, err = await apply(ready, text.replace(f"name: {ready.namespace}", "name: Not_A_Name"))
    assert (code, "Not_A_Name" in err) == (2, True)
