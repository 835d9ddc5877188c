"""What a real daemon tells of budgets on a real API server, with no right but the shipped ones: Events on the
CostBudget, a budget in another currency than the books, and metrics that name theirs."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest
import yaml

from fallow import names
from fallow.model import units
from fallow.model.policies import attribution_crd, budget_crd, scaling_crd
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import history, product

VERSION = "gpuautoscaler.io/v1alpha1"
SHIPPED = ("deploy/base/20-reader.yaml", "deploy/cost/15-role.yaml", "deploy/enforcement/10-role.yaml")


class Accountant(product.Product):
    @property
    def flags(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig), "-r", "dry-run"]


def shipped_rules() -> list[dict[str, Any]]:
    files = (each for path in SHIPPED for each in yaml.safe_load_all((ROOT / path).read_text()))
    return [rule for each in files if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]


class Desk:
    """A node with a price, two budgets, and the daemon that evaluates them."""

    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path) -> None:
        self.cluster, self.stage, self.folder = cluster, product.Stage(cluster, prometheus), folder

    async def prepare(self) -> Accountant:
        await self.cluster.apply_crds(budget_crd.define(), attribution_crd.define(), scaling_crd.define())
        await self.cluster.make_namespace(self.stage.system)
        made = await self.cluster.gpu_node(f"priced-{self.cluster.namespace}", 1)
        await self.cluster.patch(made, {"metadata": {"annotations": {names.PRICE_PER_HOUR: "7200"}}})
        await self.stage.workload("quiet")
        await self.stage.prometheus.start()
        account = await self.cluster.service_account("books", shipped_rules(), namespace=self.stage.system)
        return Accountant(self.stage, account, self.folder, f"system:serviceaccount:{self.stage.system}:books")

    async def start(self, accountant: Accountant) -> product.Daemon:
        daemon = await accountant.start(
            "--cost", "true", "--cost-tracking-interval", "1s", "--cost-currency", "EUR", "--cost-enforcement", "true",
            "--webhook-certificate", "false", "--state-dir", str(self.folder / "state"),
            env={"POD_NAME": "books-0"},
        )
        await daemon.until(daemon.is_ready)
        return daemon

    def name(self, of: str) -> str:
        return f"{of}-{self.cluster.namespace}"

    async def budget(self, of: str, mode: str = "block", **budget: Any) -> dict[str, Any]:
        return await self.cluster.create({
            "apiVersion": VERSION, "kind": "CostBudget", "metadata": {"name": self.name(of)}, "spec": {
                "scope": {"type": "namespace", "namespaces": [self.cluster.namespace]}, "budget": budget,
                "enforcement": {"mode": mode, "gracePeriod": "0s"},
            },
        })

    async def scaling_policy(self) -> dict[str, Any]:
        spec = {"provider": "custom", "enableSpotInstances": True, "nodePools": [{"name": "a", "capacityType": "spot"}]}
        return await self.cluster.create({
            "apiVersion": VERSION, "kind": "AutoscalingPolicy", "metadata": {"name": self.name("nodes")}, "spec": spec,
        })

    async def condition(self, of: str, kind: str) -> tuple[str, str]:
        found = await self.cluster.get(VERSION, "CostBudget", self.name(of))
        said = found.get("status", {}).get("conditions", [])
        return next(((each["status"], each["reason"]) for each in said if each["type"] == kind), ("", ""))

    async def reasons(self, of: str) -> list[str]:
        """In the order in which they were told."""
        found = await self.cluster.events(namespace="default")
        mine = [each for each in found if each["regarding"]["name"] == self.name(of)]
        assert all(each["regarding"]["apiVersion"] == VERSION for each in mine)
        return [each["reason"] for each in sorted(mine, key=lambda each: int(each["metadata"]["resourceVersion"]))]


@pytest.mark.accepts("cost", 17)
async def test_events_and_currencies_on_a_real_api_server(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    desk = Desk(cluster, prometheus, folder)
    accountant = await desk.prepare()
    try:
        await desk.budget("euros", amount=1, currency="EUR")
        await desk.budget("dollars", amount=1, currency="USD")
        daemon = await desk.start(accountant)
        await daemon.until(lambda: told(desk, "euros", ["BudgetExceeded", "BudgetEnforced"]))
        assert await desk.condition("dollars", "Ready") == ("False", "CurrencyMismatch")
        assert await desk.condition("dollars", "Enforcing") == ("False", "NotReady")
        await check_metrics(daemon, desk)
        await override(desk)
        after = ["BudgetExceeded", "BudgetEnforced", "BudgetOverridden", "BudgetLifted"]
        await daemon.until(lambda: told(desk, "euros", after))
        await throttle_and_lift(desk, daemon)
        assert await desk.reasons("dollars") == []
        assert "no Event" not in daemon.log
    finally:
        await accountant.close()


async def told(desk: Desk, of: str, reasons: list[str]) -> bool:
    return await desk.reasons(of) == reasons


async def throttle_and_lift(desk: Desk, daemon: product.Daemon) -> None:
    """Whoever scales nodes is told of it, and finds what people asked for as they wrote it."""
    policy = await desk.scaling_policy()
    made = await desk.budget("slowed", "throttle", amount=1, currency="EUR")
    await daemon.until(lambda: told(desk, "slowed", ["BudgetExceeded", "BudgetEnforced"]))
    began = time.monotonic()
    await desk.cluster.patch(made, {"spec": {"budget": {"amount": 1_000_000_000}}})
    await daemon.until(lambda: told(desk, "slowed", ["BudgetExceeded", "BudgetEnforced", "BudgetLifted"]))
    assert time.monotonic() - began < 60
    assert await desk.cluster.get(VERSION, "AutoscalingPolicy", desk.name("nodes")) == policy


async def check_metrics(daemon: product.Daemon, desk: Desk) -> None:
    """Once the look that sent the Events has ended: it tells its figures last."""
    spent = f'gpu_autoscaler_budget_spend_cost{{budget="{desk.name("euros")}",currency="EUR"}}'

    async def counted() -> dict[str, float] | None:
        found = await daemon.metrics()
        return found if found.get(spent, 0.0) > 1.0 else None

    found = await daemon.until(counted)
    assert not [each for each in found if "_usd" in each]
    assert not [each for each in found if desk.name("dollars") in each and "enforcement_active" not in each]


async def override(desk: Desk) -> None:
    found = await desk.cluster.get(VERSION, "CostBudget", desk.name("euros"))
    said = {names.OVERRIDE_UNTIL: units.rfc3339(time.time() + 3600), names.OVERRIDE_BY: "ada",
            names.OVERRIDE_REASON: "release"}
    await desk.cluster.patch(found, {"metadata": {"annotations": said}})
