"""The story of budgets as the daemon would have it: over a mirror of a pretend cluster, with its own watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fallow import names, settings, telemetry
from fallow.act import events
from fallow.act.notices import facts
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.clients.messages import post
from fallow.model import budgets, cost, units
from fallow.model.policies import attribution_crd, budget_crd
from fallow.model.seen import Known
from fallow.observe.cluster import mirror
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server as servers
from fallow.stories import budgets as told
from fallow.stories.turn import Turn
from fallow.wiring import budgets as wiring

NOW = units.parse_instant("2026-11-10T00:00:00Z")


async def look() -> Any:
    return Known(budgets.BooksSeen(currency="USD", until=NOW, began=NOW - 60 * units.DAY))


async def sums(asked: cost.CostQuery) -> Sequence[cost.CostSum]:
    parts = {cost.SpendState.used: cost.Amounts(cost=1200 * cost.UNIT, gpu_micro_seconds=1)}
    return [cost.CostSum(key=("ml",) * len(asked.by), begin=asked.begin, end=asked.end, parts=parts)]


async def savings(begin: int, end: int) -> Sequence[cost.BookedSaving]:
    return ()


async def recall() -> budgets.AlertMemory:
    return {}


async def keep(records: Sequence[budgets.AlertRecord]) -> None:
    """Nothing of it is looked at here."""


def fill(store: stores.Store) -> None:
    for definition in (budget_crd.define(), attribution_crd.define()):
        store.create(definition)
    for name in ("ml", "books"):
        metadata = {"name": name, "labels": {"team": "ml-team"}}
        store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    limits = {"limits": {names.GPU: "2"}}
    spec = {"containers": [{"name": "main", "image": "x", "resources": limits}], "nodeName": "n"}
    for name in ("one", "two"):
        store.create({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "labels": {"team": "x"}},
            "spec": spec, "status": {"phase": "Running"},
        })
    store.create({
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget", "metadata": {"name": "team"},
        "spec": {
            "scope": {"type": "namespace", "namespaceSelector": {"matchLabels": {"team": "ml-team"}}},
            "budget": {"amount": 1000}, "enforcement": {"mode": "block", "gracePeriod": "0s"},
        },
    })
    store.create({
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostAttribution", "metadata": {"name": "team"},
        "spec": {"team": "x"},
    })


async def test_the_daemon_evaluates_budgets_over_its_mirror(tmp_path: Path) -> None:
    store = stores.Store(lambda: NOW)
    server = servers.KubernetesServer(store, lambda: NOW)
    fill(store)
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(server.kubeconfig()))
        options = settings.read_flags({"cost_enforcement": "true", "daemon_mode": True}, {"POD_NAMESPACE": "books"})
        access = config.load_access(kubeconfig=str(path), context=None, environment={})
        api = await stack.enter_async_context(kube.Api(access, qps=10_000))
        seen = await stack.enter_async_context(mirror.Mirror(api))
        await seen.list_all(NOW)
        parts = wiring.make_story(
            options, api=api, seen=seen, namespace="books", head=facts.Letterhead(), metrics=telemetry.Telemetry(),
            poster=await stack.enter_async_context(post.Poster({})),
            books=told.BudgetBooks(look=look, sums=sums, savings=savings, recall=recall, keep=keep, track=keep),
            announcer=events.Announcer(api, reporting_instance="pod-0"), frozen=lambda now: "",
        )
        watching = [asyncio.create_task(run()) for run in parts.background]
        turn = Turn(
            clock=lambda: NOW, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        )
        cycle = await parts.story.tick(turn)
        while "not seen yet" in cycle.failure:
            await asyncio.sleep(0.02)
            cycle = await parts.story.tick(turn)
        for each in watching:
            each.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    assert isinstance(cycle, told.BudgetCycle)
    assert [each.budget for each in cycle.restricts] == ["team"]
    stored = store.find(stores.Key(names.GROUP, "CostBudget", "", "team"))
    assert stored is not None
    assert stored.object["status"]["enforcementActive"] is True
    shown = store.find(stores.Key(names.GROUP, "CostAttribution", "", "team"))
    assert shown is not None
    assert (shown.object["status"]["activePods"], shown.object["status"]["activeGPUs"]) == (2, 4)
