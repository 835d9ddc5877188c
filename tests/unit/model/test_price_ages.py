"""How old the prices are that are in use."""

from decimal import Decimal
from typing import Any

import msgspec

from fallow.model import price_ages
from fallow.model.cost import CapacityType, PriceUnit
from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import PriceBook
from fallow.model.price_table import PriceRow
from fallow.model.units import DAY, parse_instant

NOW = parse_instant("2026-11-18T12:00:00Z")
P4D = NodeFacts(
    node="n1", provider="aws", region="us-east-1", zone="us-east-1a", instance_type="p4d.24xlarge",
    capacity_type=CapacityType.on_demand, gpu_model="A100-40GB", gpus=8,
)


def like(facts: NodeFacts, node: str, **said: Any) -> NodeFacts:
    return msgspec.structs.replace(facts, node=node, **said)


def row(price: str, **said: Any) -> PriceRow:
    usual = {"provider": "aws", "region": "us-east-1", "instance_type": "p4d.24xlarge", "source": "AWS Price List"}
    return PriceRow(**{**usual, "price": Decimal(price), "retrieved_at": NOW - DAY, **said})


def test_ages_are_of_the_oldest_price_in_use() -> None:
    own = row("1", provider="", region="", instance_type="", gpu_model="T4", unit=PriceUnit.gpu_hour, source="contract",
              retrieved_at=NOW - 9 * DAY)
    book = PriceBook(given=[own], fetched=[row("32"), row("16", zone="us-east-1b", retrieved_at=NOW - 2 * DAY)])
    nodes = [
        P4D, like(P4D, "n2", zone="us-east-1b"), NodeFacts(node="t", gpu_model="T4", gpus=1),
        NodeFacts(node="x", gpu_model="FOO", gpus=1), like(P4D, "n3", annotated="3"),
    ]
    assert price_ages.list_ages(book, nodes, NOW) == {("aws", "on-demand"): 2 * DAY, ("any", "on-demand"): 9 * DAY}
