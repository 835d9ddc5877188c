"""The one rule of prices: where one is looked for, in which order, and what becomes of it."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from fallow.model import cost, gpus, price_book, price_table
from fallow.model.cost import CapacityType, PriceUnit
from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import NodeSplit, Origin, PriceBook
from fallow.model.price_table import PriceRow
from fallow.model.units import DAY, HOUR, Instant, parse_instant

NOW: Instant = parse_instant("2026-11-18T12:00:00Z")
P4D = NodeFacts(
    node="n1", provider="aws", region="us-east-1", zone="us-east-1a", instance_type="p4d.24xlarge",
    capacity_type=CapacityType.on_demand, gpu_model="A100-40GB", gpus=8, cpu=96_000, memory=1152 * 1024,
)


def at(facts: NodeFacts, **said: Any) -> NodeFacts:
    return msgspec.structs.replace(facts, **said)


def row(price: str, **said: Any) -> PriceRow:
    usual = {"instance_type": "p4d.24xlarge", "source": "test", "retrieved_at": NOW - DAY}
    return PriceRow(**{**usual, "price": Decimal(price), **said})


def rate(book: PriceBook, facts: NodeFacts, when: Instant = NOW) -> Decimal | None:
    """USD for a GPU and hour."""
    found = book.find_rate(facts, when)
    return None if found is None else Decimal(found.nano) / cost.UNIT


# ---- where it is looked for -----------------------------------------------------------------------------------------


GIVEN, FETCHED = row("16"), row("24", region="us-east-1", provider="aws")
SHIPPED_HERE, SHIPPED_ELSEWHERE = row("32", region="us-east-1"), row("40", region="eu-west-1")
OF_MODEL = row("6", instance_type="", gpu_model="A100-40GB", unit=PriceUnit.gpu_hour)
LADDER = [
    (Origin.annotation, {"annotated": "8"}, "1"), (Origin.given, {}, "2"), (Origin.fetched, {}, "3"),
    (Origin.shipped, {}, "4"), (Origin.other_region, {}, "5"), (Origin.model, {}, "6"),
]


@pytest.mark.parametrize("step", range(len(LADDER)), ids=[origin.name for origin, *_ in LADDER])
def test_the_first_place_that_has_one_counts(step: int) -> None:
    origin, said, price = LADDER[step]
    book = PriceBook(
        given=[GIVEN] if step <= 1 else [], fetched=[FETCHED] if step <= 2 else [],
        shipped=[*([SHIPPED_HERE] if step <= 3 else []), *([SHIPPED_ELSEWHERE] if step <= 4 else []), OF_MODEL],
    )
    facts = at(P4D, **said)
    found = book.find(facts, NOW)
    assert found is not None
    assert (found.origin, rate(book, facts)) == (origin, Decimal(price))
    assert found.rate.estimated == (origin in (Origin.other_region, Origin.model))
    assert found.rate.price_id.removesuffix(cost.ESTIMATE) == found.row.id
    assert found.rate.price_id.endswith(cost.ESTIMATE) == found.rate.estimated


@pytest.mark.accepts("cost", 7)
@pytest.mark.parametrize("facts", [
    NodeFacts(node="n", gpu_model="FOO-9000", gpus=1, capacity_type=CapacityType.on_demand),
    NodeFacts(node="n", gpu_model="", gpus=1), NodeFacts(node="n", gpu_model="A100", gpus=8),
    NodeFacts(node="n", gpu_model="H100-80GB", gpus=8, instance_type="p5.48xlarge", provider="aws"),
    NodeFacts(node="n", gpu_model="A100-40GB", gpus=8, instance_type="Standard_ND96asr_v4", provider="azure",
              capacity_type=CapacityType.spot),
], ids=["a model nobody knows", "no model", "a size nobody knows", "a machine without a row", "spot elsewhere"])
def test_what_no_row_names_is_unpriced_and_never_another_models_price(facts: NodeFacts) -> None:
    assert PriceBook().find(facts, NOW) is None


def test_shipped_rows_name_no_region_and_are_estimates_everywhere() -> None:
    found = PriceBook().find(P4D, NOW)
    assert found is not None
    assert (found.rate.nano, found.rate.estimated, found.origin) == (4_096_250_000, True, Origin.other_region)


def test_azure_is_found_with_and_without_its_standard() -> None:
    facts = NodeFacts(
        node="n", provider="azure", instance_type="standard_nc6s_v3", gpu_model="V100-16GB", gpus=1,
        capacity_type=CapacityType.spot,
    )
    assert rate(PriceBook(), facts) == Decimal("1.07")
    assert rate(PriceBook(), at(facts, instance_type="NC6s_v3")) == Decimal("1.07")


@pytest.mark.parametrize(("said", "price"), [
    ({"zone": "us-east-1a"}, "1.5"), ({"zone": "us-east-1b"}, "1"), ({"zone": "us-east-1b", "region": "eu-1"}, "0.5"),
    ({"capacity_type": CapacityType.spot}, "0.25"), ({"capacity_type": CapacityType.reserved}, None),
    ({"instance_type": "other"}, "0.125"), ({"instance_type": "other", "gpu_model": "T4"}, None),
    ({"provider": "gcp", "zone": "us-east-1a"}, "1"), ({"provider": "", "zone": "us-east-1a"}, "1.5"),
], ids=["zone", "region", "anywhere", "spot", "reserved", "model", "other model", "other cloud", "no cloud"])
def test_of_own_rows_the_one_that_says_most_counts(said: dict[str, Any], price: str | None) -> None:
    book = PriceBook(shipped=[], given=[
        row("4", capacity_type=CapacityType.on_demand), row("8", region="us-east-1"),
        row("12", region="us-east-1", zone="us-east-1a", provider="aws"), row("2", capacity_type=CapacityType.spot),
        row("0.125", instance_type="", gpu_model="A100-40GB", unit=PriceUnit.gpu_hour, region="us-east-1"),
    ])
    found = book.find(at(P4D, **said), NOW)
    assert rate(book, at(P4D, **said)) == (None if price is None else Decimal(price))
    assert found is None or not found.rate.estimated


def test_a_row_without_a_capacity_type_is_for_all() -> None:
    book = PriceBook(given=[row("8", capacity_type=CapacityType.unknown)], shipped=[])
    for capacity in CapacityType:
        found = book.find_rate(at(P4D, capacity_type=capacity), NOW)
        assert found == cost.Rate(1_000_000_000, book.given[0].id)


def test_of_whom_nobody_knows_how_it_was_bought_the_list_price_is_an_estimate() -> None:
    facts = at(P4D, capacity_type=CapacityType.unknown)
    [fetched] = (book.find_rate(facts, NOW) for book in [PriceBook(fetched=[FETCHED])])
    assert fetched is not None
    assert fetched.estimated
    own = PriceBook(given=[GIVEN]).find_rate(facts, NOW)
    assert own is not None
    assert not own.estimated, "the operator's own word"


def test_spot_is_by_its_own_zone() -> None:
    zones = [
        row(price, region="us-east-1", zone=zone, capacity_type=CapacityType.spot, provider="aws")
        for zone, price in (("us-east-1a", "8"), ("us-east-1b", "16"))
    ]
    book = PriceBook(fetched=zones, shipped=[])
    assert rate(book, at(P4D, capacity_type=CapacityType.spot, zone="us-east-1b")) == 2
    assert book.find(at(P4D, capacity_type=CapacityType.spot, zone=""), NOW) is None


def test_one_machine_with_more_or_other_gpus_is_another_one() -> None:
    n1 = NodeFacts(
        node="n", provider="gcp", region="r", instance_type="n1-standard-8", gpu_model="T4", gpus=1,
        capacity_type=CapacityType.on_demand,
    )
    fetched = [
        row(price, provider="gcp", region="r", instance_type="n1-standard-8", gpu_model=model, gpus=count)
        for model, count, price in (("T4", 1, "1"), ("T4", 2, "1.5"), ("V100-16GB", 1, "3"))
    ]
    book = PriceBook(fetched=fetched, shipped=[])
    assert rate(book, n1) == 1
    assert rate(book, at(n1, gpus=2)) == Decimal("0.75")
    assert rate(book, at(n1, gpu_model="V100-16GB")) == 3
    assert book.find(at(n1, gpus=4, gpu_model="L4"), NOW) is None


# ---- the price on the node ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "because"), [
    ("-3", "price_per_hour -3 is negative"), ("free", "price_per_hour 'free' is not a number such as 32.77"),
    ("1e9", "price_per_hour 1e+9 is absurd: more than 10,000 USD"),
    ("", "price_per_hour '' is not a number such as 32.77"),
    ("nan", "price_per_hour 'nan' is not a number such as 32.77"),
])
def test_an_absurd_price_on_a_node_is_refused_and_the_next_place_counts(text: str, because: str) -> None:
    facts, book = at(P4D, annotated=text), PriceBook(given=[GIVEN])
    found = book.find(facts, NOW)
    assert found is not None
    assert found.origin is Origin.given
    assert price_book.why_refused(facts, "USD") == f"annotation gpuautoscaler.io/price-per-hour: {because}"


def test_a_rate_that_no_ledger_takes_is_no_price() -> None:
    """In yen a table may say so much of a machine; of one GPU it would have its hours refused instead of unpriced."""
    book = PriceBook(given=[row("200000000", gpus=8, currency="JPY")], shipped=(), currency="JPY")
    assert rate(book, P4D) is None
    assert rate(PriceBook(given=[row("8000000", gpus=8, currency="JPY")], shipped=(), currency="JPY"), P4D) == 10**6


def test_a_price_on_the_node_is_of_all_of_it_and_keeps_its_id() -> None:
    facts, book = at(P4D, annotated=" 20.5 "), PriceBook(split=NodeSplit.ratio)
    assert rate(book, facts) == Decimal("20.5") * Decimal("0.95") / 8
    first, later = (book.find(facts, when) for when in (NOW, NOW + HOUR))
    assert first is not None
    assert later is not None
    assert first.rate.price_id == later.rate.price_id
    assert not first.rate.estimated
    assert not first.rate.stale


# ---- what a GPU's part is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "part"), [
    (NodeSplit.gpu, 1.0), (NodeSplit.ratio, 0.95),
    (NodeSplit.opencost, 8 * 0.95 / (8 * 0.95 + 96 * 0.031611 + 1152 * 0.004237)),
])
def test_the_gpus_part_of_a_node(split: NodeSplit, part: float) -> None:
    book = PriceBook(given=[GIVEN, OF_MODEL], split=split)
    assert float(rate(book, P4D) or 0) == pytest.approx(2 * part)
    assert rate(book, at(P4D, instance_type="")) == 6, "the price of a GPU is never divided"


def test_without_cores_and_memory_nobody_can_split_by_components() -> None:
    book = PriceBook(given=[GIVEN], shipped=[], split=NodeSplit.opencost)
    assert book.find(at(P4D, cpu=None), NOW) is None
    assert book.find(at(P4D, memory=None), NOW) is None


def test_gpus_are_counted_by_the_node_and_else_by_the_row() -> None:
    book = PriceBook(given=[row("24", gpus=8)], shipped=[])
    assert rate(book, at(P4D, gpus=None)) == 3
    assert rate(book, at(P4D, gpus=6)) == 4, "the node's price is that of the GPUs it has"
    assert PriceBook(given=[row("24")], shipped=[]).find(at(P4D, gpus=None), NOW) is None, "of how many?"


@given(some.decimals(0, 10_000, places=9), some.integers(1, 128))
def test_a_rate_is_exact_to_the_last_nano(price: Decimal, count: int) -> None:
    book = PriceBook(given=[row(str(price))], shipped=[])
    found = book.find_rate(NodeFacts(node="n", instance_type="p4d.24xlarge", gpus=count), NOW)
    assert found is not None
    assert abs(found.nano * count - int(price * cost.UNIT)) * 2 <= count


# ---- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 8)
def test_a_price_that_changes_at_noon_leaves_the_hours_before() -> None:
    noon = NOW
    book = PriceBook(shipped=[], fetched=[
        row("16", region="us-east-1", valid_from=noon - DAY, valid_to=noon),
        row("24", region="us-east-1", valid_from=noon),
    ])
    assert rate(book, P4D, noon - 1) == 2
    assert rate(book, P4D, noon) == 3
    assert book.find(P4D, noon - 2 * DAY) is None, "nothing was known then"
    ids = {found.rate.price_id for when in (noon - 1, noon) if (found := book.find(P4D, when))}
    assert len(ids) == 2


@pytest.mark.accepts("cost", 9)
@pytest.mark.parametrize(("days", "stale"), [(0, False), (90, False), (91, True)])
def test_an_old_price_is_marked(days: int, stale: bool) -> None:
    book = PriceBook(given=[GIVEN])
    found = book.find_rate(P4D, GIVEN.retrieved_at + days * DAY)
    assert found is not None
    assert found.stale is stale


def test_that_it_was_looked_up_again_does_not_make_it_another_price() -> None:
    again = msgspec.structs.replace(FETCHED, retrieved_at=NOW, valid_to=NOW + DAY)
    assert again.id == FETCHED.id
    assert msgspec.structs.replace(FETCHED, price=Decimal("24.00")).id == FETCHED.id
    assert msgspec.structs.replace(FETCHED, price=Decimal("24.01")).id != FETCHED.id


# ---- spot savings ---------------------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 22)
def test_only_a_known_price_of_the_same_machine_here_may_be_saved_against() -> None:
    spot = at(P4D, capacity_type=CapacityType.spot, annotated="1")
    assert PriceBook().find_on_demand(spot, NOW) is None, "the shipped price is an estimate"
    assert PriceBook(shipped=[], fetched=[FETCHED]).find_on_demand(spot, NOW) == cost.Rate(3_000_000_000, FETCHED.id)
    assert PriceBook(shipped=[]).find_on_demand(spot, NOW) is None


# ---- money of one kind ----------------------------------------------------------------------------------------------


def test_a_book_has_one_currency() -> None:
    book = PriceBook(currency="EUR", given=[row("8", currency="EUR"), GIVEN])
    assert rate(book, P4D) == 1
    assert book.shipped == ()


# ---- by the model alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [("NVIDIA-A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
     ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-80GB"), ("Tesla-T4-SHARED", "T4"), ("V100M16", "V100-16GB"),
     ("Tesla-V100-DGXS-16GB", "V100-16GB")],
)
def test_models_are_priced_by_what_they_are(model: str, name: str) -> None:
    assert gpus.normalise(model) == name
    assert price_book.find_by_model(model) == price_book.LIST[name]


@pytest.mark.parametrize("model", ["NVIDIA-Foo-9000", "NVIDIA-A100", "A10", ""])
def test_what_is_not_in_the_book_has_no_price(model: str) -> None:
    assert price_book.find_by_model(model) is None


@pytest.mark.parametrize("name", list(price_book.LIST))
def test_by_its_model_alone_a_gpu_costs_the_same_wherever_one_asks(name: str) -> None:
    assert gpus.normalise(name) == name
    assert gpus.find(name) is not None
    facts = NodeFacts(node="n", gpu_model=name, gpus=3)
    assert rate(PriceBook(), facts) == price_book.LIST[name]
    assert price_book.find_by_model(name, {name: Decimal(1)}) == 1


def test_list_prices_by_model_are_the_lowest_of_the_shipped_rows() -> None:
    assert dict(price_book.LIST) == {
        "A100-80GB": Decimal("5.12"), "A100-40GB": Decimal("3.67"), "V100-16GB": Decimal("3.06"),
        "A10G": Decimal("1.006"), "T4": Decimal("0.526"),
    }
    assert set(price_book.LIST) == {row.gpu_model for row in price_table.shipped().rows}


@pytest.mark.parametrize("text", ["H100", "=2", "H100=", "H100=-1", "H100=nan", "H100=1e9"])
def test_a_price_that_cannot_be_meant_is_no_price(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not MODEL=DOLLARS such as H100-80GB-HBM3=2\.99"):
        price_book.read_prices([text])
