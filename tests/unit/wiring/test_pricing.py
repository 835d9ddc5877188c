"""Prices, wired by the flags alone: against a small API server and a small price list."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.clients import loopback
from tests.unit.observe import market
from tests.unit.observe.cluster import pretend

from fallow import settings
from fallow.clients.clouds import pricing as wires
from fallow.clients.clouds.aws.prices import AwsPrices
from fallow.clients.clouds.azure.prices import AzurePrices
from fallow.clients.clouds.gcp.prices import GooglePrices
from fallow.model.cost import UNIT
from fallow.model.price_book import NodeSplit, PriceBook
from fallow.model.seen import Known
from fallow.stories.prices import PricesTurn
from fallow.wiring import daemon, pricing


def options(tmp_path: Path, address: str = "http://127.0.0.1:9", **given: Any) -> settings.Settings:
    cluster = {"clusters": [{"name": "c", "cluster": {"server": address}}], "current-context": "c"}
    context = {
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]
    }
    (tmp_path / "config").write_text(json.dumps(cluster | context))
    where = {"kubeconfig": str(tmp_path / "config"), "leader_elect": "false", "daemon_mode": True}
    return settings.read_flags({**where, **given}, {"POD_NAMESPACE": market.HOME})


NODE = {
    "labels": {
        "node.kubernetes.io/instance-type": "Standard_NC6s_v3", "topology.kubernetes.io/region": "eastus",
        "nvidia.com/gpu.product": "Tesla-V100-PCIE-16GB",
    },
    "spec": {"providerID": "azure:///x"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "2"}},
}


async def test_a_daemon_that_keeps_books_knows_what_its_nodes_cost(tmp_path: Path) -> None:
    async with market.opened() as here, pretend.Server("v1 configmaps ConfigMap") as server, loopback.serve(
        here.sell
    ) as azure:
        server.put("nodes", pretend.made("n1", namespace=None, kind="Node", **NODE))
        said = options(
            tmp_path, f"http://127.0.0.1:{server.url[1]}", cost="true", cost_provider="azure", cost_node_split="ratio",
            cost_azure_prices_url=azure.url,
        )
        async with daemon.assemble(said, time.time) as made:
            assert made.loop.latest(pricing.PRICES) is None
            assert await made.loop.begin()
            await made.loop.tick(pricing.PRICES)
            found = made.loop.latest(pricing.PRICES)
            shown = made.loop.metrics.text().decode()
        assert server.asked("get", "configmaps") == 1
    assert isinstance(found, PricesTurn)
    assert found.seen is not None
    assert isinstance(found.seen.book, Known)
    rate = found.seen.book.value.find_rate(found.seen.nodes[0], time.time())
    assert rate is not None
    assert rate.nano == 3 * UNIT * 95 // 200
    assert 'gpu_autoscaler_price_age_seconds{capacity_type="on-demand",provider="azure"}' in shown


@pytest.mark.parametrize("given", [{}, {"cost": "true", "daemon_mode": False}], ids=["not asked for", "one look"])
async def test_who_keeps_no_books_asks_for_no_price(given: dict[str, Any], tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(pretend.Server())
        said = options(tmp_path, f"http://127.0.0.1:{server.url[1]}", **given)
        made = await stack.enter_async_context(daemon.assemble(said, time.time))
        assert pricing.PRICES not in made.loop.names


@pytest.mark.parametrize(("provider", "kind"), [
    ("aws", AwsPrices), ("gcp", GooglePrices), ("azure", AzurePrices), ("onprem", type(None)), ("none", type(None)),
])
async def test_each_cloud_is_asked_in_its_own_way(provider: str, kind: type, tmp_path: Path) -> None:
    async with wires.PriceWire("x", {}) as wire:
        assert type(pricing.make_fetcher(options(tmp_path, cost_provider=provider), wire)) is kind


def test_the_book_is_as_the_flags_say(tmp_path: Path) -> None:
    said = options(tmp_path, cost_currency="EUR", cost_prices_max_age_days="7", cost_node_split="opencost")
    book = pricing.make_book(said, [], [])
    assert isinstance(book, PriceBook)
    assert (book.currency, book.max_age, book.split) == ("EUR", 7 * 86400, NodeSplit.opencost)
