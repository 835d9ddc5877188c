"""A cluster with prices around it: an API server with the operator's table and our Events, and a cloud's price list."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.kubernetes import wire as kube_wire

from fallow.clients import retry
from fallow.clients.clouds import pricing
from fallow.clients.clouds.azure.prices import AzurePrices
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, price_table
from fallow.model.price_book import PriceBook
from fallow.model.units import parse_instant
from fallow.observe import prices
from fallow.observe.cluster import objects

NOW = parse_instant("2026-11-17T10:00:00Z")
HOME, TABLE = "gpu", "/api/v1/namespaces/gpu/configmaps/gpu-autoscaler-prices"
EVENTS = "/apis/events.k8s.io/v1/namespaces/gpu/events"
HEAD = ",".join(price_table.COLUMNS)


def node(
    name: str = "aks-0", *, spot: bool = False, kind: str = "Standard_NC6s_v3", **annotations: str
) -> cluster.Node:
    labels = {
        "node.kubernetes.io/instance-type": kind, "topology.kubernetes.io/region": "eastus",
        "nvidia.com/gpu.product": "Tesla-V100-PCIE-16GB", "nvidia.com/gpu.count": "1",
        **({"kubernetes.azure.com/scalesetpriority": "spot"} if spot else {}),
    }
    body = {
        "metadata": {"uid": name, "name": name, "labels": labels, "annotations": annotations},
        "spec": {"providerID": f"azure:///{name}"}, "status": {"allocatable": {"nvidia.com/gpu": "1"}},
    }
    return objects.see_node(msgspec.convert(body, objects.NodeItem))


PLAIN = cluster.Node(
    name="web-0", hostname="web-0", addresses=(), ready=True, gpu_product=None, shared=False, labels={}, gpus=0
)


class Market:
    """`listed`, `spot`: what the cloud says now; None: it is down. `table`: the operator's own; None: there is none."""

    def __init__(self, api_server: kube_wire.Server) -> None:
        self.server, self.api = api_server, kube.Api(api_server.access, qps=10_000)
        self.listed: float | None = 3.0
        self.spot: float | None = 1.0
        self.asked: list[loopback.Asked] = []
        self.cloud: AzurePrices
        self.give(None)
        self.server.on("POST", EVENTS, _echo)

    def give(self, table: str | None, *, status: int = 404, key: str = "prices.csv", **more: str) -> None:
        """The operator's table, or what is answered instead of it. `more`: further keys of the ConfigMap."""
        async def answer(_: web.Request) -> web.Response:
            if table is None:
                return web.json_response({"kind": "Status", "code": status, "message": "no"}, status=status)
            return web.json_response({"metadata": {"name": "x"}, "data": {key: table, **more}})

        self.server.on("GET", TABLE, answer)

    def sell(self, asked: loopback.Asked) -> web.Response:
        self.asked.append(asked)
        kind = asked.query["$filter"].partition("armSkuName eq '")[2].partition("'")[0]
        if self.listed is None or self.spot is None:
            return web.Response(status=400)
        return web.json_response({"Items": [
            {
                "retailPrice": price, "currencyCode": "USD", "armRegionName": "eastus", "armSkuName": kind,
                "serviceName": "Virtual Machines",
                "meterName": name, "productName": "Virtual Machines", "unitOfMeasure": "1 Hour", "type": "Consumption",
            }
            for name, price in (("x", self.listed), ("x Spot", self.spot))
        ]})

    def watch(self, **said: Any) -> prices.PriceWatch:
        def make(given: Sequence[price_table.PriceRow], fetched: Sequence[price_table.PriceRow]) -> PriceBook:
            return PriceBook(given=given, fetched=fetched)

        return prices.PriceWatch(self.api, **{
            "namespace": HOME, "make_book": make, "currency": "USD", "fetcher": self.cloud, **said
        })


async def _echo(request: web.Request) -> web.Response:
    return web.json_response(await request.json())


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Market]:
    async with contextlib.AsyncExitStack() as stack:
        market = Market(await stack.enter_async_context(kube_wire.Server()))
        await stack.enter_async_context(market.api)
        server = await stack.enter_async_context(loopback.serve(market.sell))
        wire = pricing.PriceWire("the price list", {}, patience=retry.Patience(tries=1, first_wait=0.001))
        market.cloud = AzurePrices(await stack.enter_async_context(wire), url=server.url)
        yield market
