"""What nodes cost, on a real API server: their labels, their annotation, and the operator's table in a ConfigMap."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import price_table
from fallow.model.cost import UNIT
from fallow.model.price_book import Origin, PriceBook
from fallow.model.seen import Known, Unseen
from fallow.observe import prices
from fallow.observe.cluster import mirror
from tests.real import cluster as clusters

HEAD = ",".join(price_table.COLUMNS)
OWN = "aws,,,p5.48xlarge,,8,on-demand,node_hour,40,USD,,,contract,2026-11-01"
LABELS = {
    "node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/region": "us-east-1",
    "karpenter.sh/capacity-type": "on-demand",
}
NODES = [{"apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"]}]


@contextlib.asynccontextmanager
async def opened(
    kubeconfig: Path, namespace: str
) -> AsyncIterator[tuple[prices.PriceWatch, mirror.Mirror]]:
    access = config.load_access(kubeconfig=str(kubeconfig), context=None, environment={})
    async with kube.Api(access, qps=1000) as api, mirror.Mirror(api) as seen:
        watch = prices.PriceWatch(
            api, namespace=namespace, currency="USD",
            make_book=lambda given, fetched: PriceBook(given=given, fetched=fetched),
        )
        yield watch, seen


async def test_table_annotation_and_node_are_read_as_they_stand(cluster: clusters.Cluster) -> None:
    node = await cluster.gpu_node("gpu-1", gpus=8, labels=LABELS)
    table = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.PRICES},
        "data": {names.PRICES_KEY: f"{HEAD}\n{OWN}\n{OWN.replace('40', '-1')}\n"},
    }

    async def find() -> tuple[Decimal, Origin] | None:
        now = time.time()
        await seen.list_all(now)
        found = await watch.look([seen.nodes.known["gpu-1"]], now)
        assert isinstance(found.book, Known)
        price = found.book.value.find(found.nodes[0], now)
        assert bool(found.problems) is bool(isinstance(found.given, Known) and found.given.value.refused)
        return None if price is None else (Decimal(price.rate.nano) / UNIT, price.origin)

    async with opened(cluster.kubeconfig, cluster.namespace) as (watch, seen):
        assert await find() is None, "nobody knows what an H100 costs"
        made = await cluster.apply(table)
        assert await find() == (5, Origin.given)
        await cluster.patch(node, {"metadata": {"annotations": {names.PRICE_PER_HOUR: "16"}}})
        assert await find() == (2, Origin.annotation)
        await cluster.patch(node, {"metadata": {"annotations": {names.PRICE_PER_HOUR: "-16"}}})
        assert await find() == (5, Origin.given), "what nobody can mean does not count"
        await cluster.delete(made)
        assert await find() is None


async def test_a_table_that_may_not_be_read_leaves_nothing_priced(cluster: clusters.Cluster) -> None:
    await cluster.gpu_node("gpu-1", gpus=8, labels=LABELS)
    blind = await cluster.user("eve", NODES)
    async with opened(blind, cluster.namespace) as (watch, seen):
        await seen.list_all(time.time())
        found = await watch.look(seen.nodes.known.values(), time.time())
    assert isinstance(found.book, Unseen)
    assert "nothing has a price until it can be" in found.problems[0]
    assert "forbidden" in found.problems[0]
