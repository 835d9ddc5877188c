"""What the pretend cluster pays: its table is a good one, each of its machines has the price meant, and its budgets are
such as our own CRD takes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from fallow import names
from fallow.model import cluster, gpus, node_facts, price_book, price_table
from fallow.model.cost import UNIT
from fallow.model.policies import budget_crd
from fallow.model.units import HOUR, MINUTE, parse_instant
from fallow.sim import cast, paying, stage
from fallow.sim.servers import store as stores
from fallow.sim.world.lives import LifeSpan
from fallow.sim.world.nouns import Part, SimNode
from fallow.sim.world.world import World

NOW = parse_instant("2026-11-16T08:35:00Z")


def rows() -> price_table.PriceTable:
    text = paying.make_prices("default", NOW)["data"][names.PRICES_KEY]
    return price_table.read_csv(text, "USD")


def price_of(node: SimNode) -> Decimal | None:
    """What one of its GPUs costs an hour, by the product's own price book."""
    labels, annotations = paying.mark_node(node)
    seen = cluster.Node(
        name=node.name, hostname=node.name, addresses=(), ready=True, gpu_product=node.model, shared=False,
        gpus=node.gpus, labels={names.GPU_PRODUCT: node.model, names.GPU_COUNT: str(node.gpus), **labels},
        price_per_hour=annotations.get(names.PRICE_PER_HOUR),
    )
    book = price_book.PriceBook(given=rows().rows, currency="USD")
    found = book.find(node_facts.read(seen), NOW)
    return None if found is None else Decimal(found.rate.nano) / UNIT


def test_every_row_of_the_table_is_taken() -> None:
    table = rows()
    assert table.refused == ()
    assert {row.source for row in table.rows} == {"made up for the demo"}


@pytest.mark.parametrize(("model", "price"), [
    ("NVIDIA-A100-SXM4-80GB", "5.12"), ("NVIDIA-A100-SXM4-40GB", "4.09625"), ("Tesla-V100-SXM2-16GB", "1.225"),
    ("Tesla-T4", "0.5"), ("NVIDIA-Foo-9000", None),
])
def test_a_machine_costs_what_stands_in_the_table_or_on_it(model: str, price: str | None) -> None:
    assert price_of(SimNode("gpu-1", model)) == (None if price is None else Decimal(price))


def test_a_machine_of_another_size_has_the_price_of_its_gpus() -> None:
    assert price_of(SimNode("gpu-1", "Tesla-V100-SXM2-16GB", 2)) == Decimal("3.06"), "not known to be spot"


@pytest.mark.parametrize("seed", range(3))
def test_one_budget_is_too_small_for_its_team_and_one_suffices(seed: int) -> None:
    world = cast.make_world(seed=seed, nodes=8, hours=6)
    tight, ample = (budget_crd.parse(each) for each in paying.make_budgets(world, 6 * HOUR, "http://127.0.0.1:1/x"))
    assert (tight.invalid, ample.invalid) == ((), ())
    assert [rule.threshold for rule in tight.alerts] == [80, 100]
    assert tight.amount is not None
    assert ample.amount is not None
    rate = sum(paying.MACHINES[gpus.normalise(node.model)].per_hour() for node in world.nodes.values())
    assert ample.amount > rate * 48


def test_a_cluster_that_nobody_has_a_price_for_has_no_budgets() -> None:
    span = LifeSpan(NOW, MINUTE, 60)
    world = World([SimNode("x", "Foo-9000")], [Part("ml", "llm")], np.zeros((1, 60), np.uint8), span)
    assert paying.make_budgets(world, HOUR, "") == ()


async def test_a_pod_says_when_it_was_given_its_node_and_when_it_ended(tmp_path: Path) -> None:
    """The books are exact to the second only if the cluster is."""
    span = LifeSpan(NOW, MINUTE, 60)
    parts = [Part("ml", "job", kind="Job", arrives_at=NOW + 90, ends_at=NOW + 1000)]
    world = World([SimNode("gpu-1")], parts, np.full((1, 60), 50, np.uint8), span)
    ended: list[stores.Change] = []
    async with stage.open_stage(world, tmp_path) as on:
        on.store.subscribe(ended.append, ("", "Pod"))
        await on.pass_time(20 * MINUTE)
    mine = [each for each in ended if each.entry.key.namespace == "ml"]
    assert mine[-1].type == "DELETED"
    status = mine[-1].entry.object["status"]
    bound = next(each for each in status["conditions"] if each["type"] == "PodScheduled")
    assert bound["lastTransitionTime"] == "2026-11-16T08:36:30Z"
    assert status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] == "2026-11-16T08:51:40Z"
