"""What GPUs cost: the share of a whole one, model by model; what has no price is named and never guessed."""

from decimal import Decimal

import msgspec
import pytest
from tests import builders
from tests.builders import World

from fallow.model import bills, price_book
from fallow.model.bills import ModelHolding as Held
from fallow.model.cost import NodeRates
from fallow.model.seen import ABSENT, Known, Register, Unseen

BOOK = {"A100-80GB": Decimal(8), "T4": Decimal(1)}
A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla-T4"


def hold(*pods, measured=None):
    """What a workload of these pods holds: each its node's product, its resources and what is shared."""
    world = World()
    for number, (product, resources, labels) in enumerate(pods):
        world.node(f"n{number}", product=product, labels=labels, shared=bool(labels))
        world.pod(node=f"n{number}", resources=resources)
    index = world.workload("ml/llm", pods=list(range(len(pods))))
    return bills.hold(world.workloads[index], world.snapshot(), measured or {})


def test_a_workload_holds_its_gpus_by_model_and_by_share():
    whole, slices = {"nvidia.com/gpu": 2}, {"nvidia.com/gpu.replicas": "4"}
    assert hold((A100, whole, {}), (T4, whole, slices)) == (Held("A100-80GB", 2.0, 2), Held("T4", 0.5, 2))


def test_what_was_measured_names_the_model_where_the_node_names_another_or_none():
    assert hold((T4, {"nvidia.com/gpu": 2}, {}), measured={0: [A100]}) == (
        Held("A100-80GB", 1.0, 1), Held("T4", 1.0, 1)
    )
    assert hold((None, {"nvidia.com/gpu": 1}, {}), measured={0: [A100]}) == (Held("A100-80GB", 1.0, 1),)
    assert hold((None, {"nvidia.com/gpu": 1}, {})) == (Held("", 1.0, 1),)


@pytest.mark.parametrize(("rates", "per_hour", "currency", "is_list"), [
    (ABSENT, 10.0, "USD", True),
    (Known(NodeRates("EUR", {"n0": Decimal(3), "n1": Decimal(2)})), 7.0, "EUR", False),
    (Known(NodeRates("EUR", {"n0": Decimal(3)})), None, "EUR", False),
    (Unseen("prices have not been looked up yet"), None, "USD", True),
], ids=["no-books", "by-its-nodes", "one-without", "not-looked-up"])
def test_where_books_are_kept_a_gpu_costs_what_its_node_does(rates, per_hour, currency, is_list):
    """And what the node has no price for has none: list prices are not asked."""
    world = World()
    for number, product in enumerate((A100, T4)):
        world.node(f"n{number}", product=product)
        world.pod(node=f"n{number}", resources={"nvidia.com/gpu": 1 + number})
    whole = msgspec.structs.replace(world.snapshot(), rates=rates)
    index = world.workload("ml/llm", pods=[0, 1])
    bill = bills.make(bills.hold(world.workloads[index], whole, {}), BOOK)
    assert (bill.per_hour, bill.currency, bill.is_list) == (per_hour, currency, is_list)


@pytest.mark.parametrize(("held", "per_hour", "unpriced"), [
    ([Held("A100-80GB", 2.5, 5)], 20.0, 0), ([Held("A100-80GB", 1.0, 1), Held("T4", 0.25, 1)], 8.25, 0),
    ([Held("A100-80GB", 1.0, 1), Held("H100-80GB", 1.0, 1)], None, 1), ([Held("", 1.0, 3)], None, 3),
    ([], None, 0), ([Held("T4", 0.0, 0)], None, 0),
], ids=["parts", "mixed", "one-unpriced", "unknown", "nothing", "none-of-it"])
def test_a_bill_is_of_all_of_it_or_not_known(held, per_hour, unpriced):
    bill = bills.make(held, BOOK)
    assert (bill.per_hour, sum(each.pieces for each in bill.unpriced)) == (per_hour, unpriced)


@pytest.mark.parametrize(("held", "counts", "part"), [
    ([Held("T4", 0.5, 2)], {T4: 1}, [Held("T4", 0.25, 1)]),
    ([Held("T4", 0.5, 2)], {"": 2}, [Held("T4", 0.5, 2)]),  # of one model it is enough to know how many
    ([Held("T4", 0.5, 2)], {T4: 9}, [Held("T4", 0.5, 9)]),  # never more than it holds
    ([Held("A100-80GB", 2.0, 2), Held("T4", 1.0, 1)], {A100: 1}, [Held("A100-80GB", 1.0, 1)]),
    ([Held("A100-80GB", 2.0, 2), Held("T4", 1.0, 1)], {"": 2}, [Held("", 0.0, 2)]),
], ids=["half", "all-of-one-model", "too-many", "one-of-two", "not-told-which"])
def test_a_part_of_what_is_held_costs_its_part(held, counts, part):
    assert list(bills.take_part(held, counts)) == part


def test_on_a_node_that_is_not_seen_nothing_has_a_price():
    world = World()
    index = world.workload("ml/llm", gpus=[builders.idle(model=A100)])
    hidden = world.snapshot(nodes=Register({}, Unseen("nodes may not be listed")))
    assert bills.hold(world.workloads[index], hidden, {0: [A100]}) == (Held("", 1.0, 1),)


def test_hours_held_are_of_its_models_by_share():
    assert bills.split(hold((A100, {"nvidia.com/mig-1g.10gb": 3}, {}))) == (("A100-80GB", 1.0),)
    assert bills.split([Held("A100-80GB", 1.5, 2), Held("T4", 0.5, 2)]) == (("A100-80GB", 0.75), ("T4", 0.25))
    assert bills.split([]) == (("", 1.0),)


def test_a_gpu_is_never_free_of_charge_for_want_of_a_price():
    assert price_book.find_by_model("T4", {}) is None
    assert bills.make([Held("T4", 1.0, 1)], {}) == bills.Bill(Decimal(0), 0, (Held("T4", 1.0, 1),))


def test_idle_gpus_of_a_mixed_workload_cost_what_they_are():
    world = World()
    world.node("node-1", product=T4)
    index = world.workload("ml/mixed", gpus=[builders.idle(model=A100), builders.busy(model=T4)])
    held = bills.hold(world.workloads[index], world.snapshot(), {0: [A100, T4]})
    assert bills.make(bills.take_part(held, {A100: 1}), BOOK).per_hour == 8.0
