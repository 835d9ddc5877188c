"""The list of prices for people: what holds for which machines, and what is wrong with it."""

from decimal import Decimal
from typing import Any

import msgspec

from fallow.model import price_list
from fallow.model.cost import CapacityType, PriceUnit
from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import Origin, PriceBook
from fallow.model.price_changes import SuspiciousPrice
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


def test_nodes_that_are_alike_are_one_line_and_the_unpriced_come_first() -> None:
    book = PriceBook(fetched=[row("32", retrieved_at=NOW - 100 * DAY)])
    foo = NodeFacts(node="n9", gpu_model="FOO-9000", gpus=2)
    unpriced, line = price_list.list_prices(book, [P4D, like(P4D, "n2"), foo], NOW)
    assert (unpriced.gpu_model, unpriced.price, unpriced.is_model_known, unpriced.nodes) == ("FOO-9000", None, False, 1)
    assert unpriced.because == "FOO-9000 is a GPU model that nobody here knows, and no row has its machine"
    assert (line.instance_type, line.nodes, line.gpus, line.price, line.currency) == ("p4d.24xlarge", 2, 16, 4, "USD")
    assert (line.origin, line.source, line.age) == (Origin.fetched, "AWS Price List", 100 * DAY)
    assert (line.is_stale, line.is_estimated, line.because) == (True, False, "")


def test_what_else_is_to_be_said() -> None:
    book = PriceBook(fetched=[row("32")])
    far = SuspiciousPrice(row("3200", retrieved_at=NOW), row("32"))
    other = SuspiciousPrice(row("3200", instance_type="p5.48xlarge"), row("32", instance_type="p5.48xlarge"))
    [own, line] = price_list.list_prices(
        book, [like(P4D, "n1", annotated="cheap"), like(P4D, "n2", annotated="8")], NOW, [far, other]
    )
    assert {own.origin, line.origin} == {Origin.annotation, Origin.fetched}
    [fetched] = [each for each in (own, line) if each.origin is Origin.fetched]
    [annotated] = [each for each in (own, line) if each.origin is Origin.annotation]
    assert fetched.notes == (
        "annotation gpuautoscaler.io/price-per-hour: price_per_hour 'cheap' is not a number such as 32.77 (node n1)",
    )
    assert fetched.quarantined == (far.because,)
    assert (annotated.price, annotated.age, annotated.notes) == (1, None, ())


def test_why_there_is_no_price() -> None:
    facts = [
        NodeFacts(
            node="a", gpu_model="H100-80GB", gpus=8, instance_type="p5.48xlarge", capacity_type=CapacityType.spot
        ),
        NodeFacts(node="b", gpus=8), NodeFacts(node="c", instance_type="p5.48xlarge", gpu_model="H100-80GB"),
    ]
    assert {line.because for line in price_list.list_prices(PriceBook(), facts, NOW)} == {
        "no row has p5.48xlarge (spot), and none H100-80GB",
        "its GPU model is not known, and no row has its machine",
        "how many GPUs it has is not known, or no row has its machine or its GPU model",
    }


def test_ages_are_of_the_oldest_price_in_use() -> None:
    own = row("1", provider="", region="", instance_type="", gpu_model="T4", unit=PriceUnit.gpu_hour, source="contract",
              retrieved_at=NOW - 9 * DAY)
    book = PriceBook(given=[own], fetched=[row("32"), row("16", zone="us-east-1b", retrieved_at=NOW - 2 * DAY)])
    nodes = [
        P4D, like(P4D, "n2", zone="us-east-1b"), NodeFacts(node="t", gpu_model="T4", gpus=1),
        NodeFacts(node="x", gpu_model="FOO", gpus=1), like(P4D, "n3", annotated="3"),
    ]
    assert price_list.list_ages(book, nodes, NOW) == {("aws", "on-demand"): 2 * DAY, ("any", "on-demand"): 9 * DAY}
