"""Tables of prices: what is good in one is read, what is bad is refused with its line and why."""

from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some
from tests import ROOT

from fallow import names
from fallow.model import commitments, price_table
from fallow.model.cost import CapacityType, PriceUnit
from fallow.model.units import parse_instant

HEAD = ",".join(price_table.COLUMNS)
GOOD = "aws,us-east-1,,p4d.24xlarge,A100-40GB,8,on-demand,node_hour,32.77,USD,,,contract,2026-11-01"


def cells(**said: str) -> str:
    row = dict(zip(price_table.COLUMNS, GOOD.split(","), strict=True))
    return ",".join({**row, **said}.values())


def test_a_row_says_what_it_says() -> None:
    table = price_table.read_csv(f"{HEAD}\n{GOOD}\n", "USD")
    assert table.refused == ()
    [row] = table.rows
    assert (row.provider, row.region, row.zone, row.instance_type) == ("aws", "us-east-1", "", "p4d.24xlarge")
    assert (row.gpu_model, row.gpus, row.capacity_type, row.unit) == (
        "A100-40GB", 8, CapacityType.on_demand, PriceUnit.node_hour
    )
    assert (row.price, row.source) == (Decimal("32.77"), "contract")
    assert row.retrieved_at == parse_instant("2026-11-01T00:00:00Z")
    assert row.per_gpu == Decimal("4.09625")


BAD = {
    "negative": (cells(price_per_hour="-1"), "price_per_hour -1 is negative"),
    "absurd": (cells(price_per_hour="3277000"), "price_per_hour 3277000 is absurd: more than 10,000 USD"),
    "not a number": (cells(price_per_hour="NaN"), "price_per_hour 'NaN' is not a number such as 32.77"),
    "infinite": (cells(price_per_hour="inf"), "price_per_hour 'inf' is not a number such as 32.77"),
    "underscores": (cells(price_per_hour="1_0"), "price_per_hour '1_0' is not a number such as 32.77"),
    "other digits": (cells(price_per_hour="٣"), "price_per_hour '٣' is not a number such as 32.77"),
    "no price": (cells(price_per_hour=""), "price_per_hour '' is not a number such as 32.77"),
    "too fine": (cells(price_per_hour="1e-30"), "price_per_hour has more than 18 digits behind the point"),
    "no source": (cells(source=""), "source is empty: where is this price from?"),
    "no day": (cells(retrieved_at=""), "retrieved_at is empty: of which day is this price?"),
    "no real day": (
        cells(retrieved_at="yesterday"),
        "retrieved_at 'yesterday' is not a day such as 2026-11-15 or a time with its zone",
    ),
    "time without zone": (
        cells(valid_from="2026-11-15T10:00:00"),
        "valid_from '2026-11-15T10:00:00' is not a day such as 2026-11-15 or a time with its zone",
    ),
    "unknown unit": (cells(unit="month"), "unit 'month' is none of node_hour, gpu_hour"),
    "unknown capacity": (
        cells(capacity_type="cheap"), "capacity_type 'cheap' is none of on-demand, spot, reserved, unknown"
    ),
    "wrong currency": (cells(currency="EUR"), "currency is 'EUR', and the books are kept in USD"),
    "ends before it begins": (
        cells(valid_from="2026-11-02", valid_to="2026-11-01"), "valid_from is not before valid_to"
    ),
    "GPUs": (cells(gpus="0"), "gpus '0' is not a whole number between 1 and 128"),
    "of nothing": (
        cells(instance_type="", gpu_model=""), "neither instance_type nor gpu_model says of what it is the price"
    ),
    "NUL": (cells(source="list\0"), "source is longer than 253 letters, or holds one that cannot be printed"),
    "without end": (
        cells(instance_type="x" * 254), "instance_type is longer than 253 letters, or holds one that cannot be printed"
    ),
    "twice": (GOOD, "an earlier line has a price of the same for the same time"),
}


def test_a_price_of_a_hundred_thousand_digits_is_refused_in_one_line():
    """A cloud may say anything."""
    with pytest.raises(ValueError, match=r"^price_per_hour 1\.11111e\+99999 is absurd: more than 10,000 USD$"):
        price_table.check_price(Decimal("1" * 100_000), "USD")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_refused_by_its_line_and_the_rest_is_read(name: str) -> None:
    bad, because = BAD[name]
    table = price_table.read_csv("\n".join([HEAD, GOOD, bad, cells(region="eu-west-1")]), "USD")
    assert [row.region for row in table.rows] == ["us-east-1", "eu-west-1"]
    assert table.refused == (price_table.RefusedRow(3, because),)


@pytest.mark.parametrize(("text", "line", "because"), [
    ("", 1, "the columns unit, price_per_hour, currency, source, retrieved_at are missing"),
    ("<html>", 1, "the columns unit, price_per_hour, currency, source, retrieved_at are missing"),
    (f'{HEAD}\n"{GOOD}', 2, "this is no CSV: unexpected end of data"),
], ids=["empty", "a web page", "an open quote"])
def test_what_is_no_table_is_said(text: str, line: int, because: str) -> None:
    assert price_table.read_csv(text, "USD") == price_table.PriceTable((), (price_table.RefusedRow(line, because),))


def test_columns_may_stand_in_any_order_and_be_more_or_fewer() -> None:
    head = "source,price_per_hour,note,unit,currency,retrieved_at,gpu_model"
    line = "contract,2,cheap!,gpu_hour,EUR,2026-11-01,NVIDIA-H100-NVL"
    [row] = price_table.read_csv(f"\ufeff{head}\n{line}\n", "EUR").rows
    assert (row.gpu_model, row.price, row.capacity_type) == ("H100-94GB", 2, CapacityType.unknown)


def test_a_table_is_no_larger_than_anybody_needs() -> None:
    lines = [cells(instance_type=f"t{number}") for number in range(price_table.MOST_ROWS + 2)]
    table = price_table.read_csv("\n".join([HEAD, *lines]), "USD")
    assert len(table.rows) == price_table.MOST_ROWS
    assert [each.because for each in table.refused] == ["there are more than 10,000 rows"]


@given(some.text(max_size=400))
def test_no_text_breaks_the_reader(text: str) -> None:
    for whole in (text, f"{HEAD}\n{text}"):
        table = price_table.read_csv(whole, "USD")
        assert all(row.price.is_finite() and row.price >= 0 for row in table.rows)


def test_what_is_written_is_read_again() -> None:
    rows = price_table.shipped().rows
    assert price_table.read_csv(price_table.write_csv(rows), "USD") == price_table.PriceTable(rows)


def test_the_table_in_the_documents_is_one() -> None:
    page = (ROOT / "docs" / "operators" / "prices.md").read_text()
    shown, reserved = (
        yaml.safe_load(text.removeprefix("yaml")) for text in page.split("```") if text.startswith("yaml")
    )
    assert (shown["metadata"]["name"], list(shown["data"])) == (names.PRICES, [names.PRICES_KEY])
    table = price_table.read_csv(shown["data"][names.PRICES_KEY], "USD")
    assert table.refused == ()
    assert len(table.rows) == 3
    committed = commitments.read_csv(reserved["data"][names.COMMITMENTS_KEY])
    assert (len(committed.rows), committed.refused) == (1, ())


# ---- what is shipped ------------------------------------------------------------------------------------------------


SHIPPED = {
    ("p4d.24xlarge", "on-demand"): "32.77", ("p4de.24xlarge", "on-demand"): "40.96",
    ("p3.2xlarge", "on-demand"): "3.06",
    ("p3.8xlarge", "on-demand"): "12.24", ("p3.16xlarge", "on-demand"): "24.48", ("g5.xlarge", "on-demand"): "1.006",
    ("g5.2xlarge", "on-demand"): "1.212", ("g4dn.xlarge", "on-demand"): "0.526", ("g4dn.2xlarge", "on-demand"): "0.752",
    ("a2-highgpu-1g", "on-demand"): "3.67", ("a2-highgpu-1g", "spot"): "1.10", ("a2-highgpu-8g", "on-demand"): "29.39",
    ("a2-highgpu-8g", "spot"): "8.82", ("", "on-demand"): "0.95", ("", "spot"): "0.29",
    ("Standard_NC6s_v3", "on-demand"): "3.06", ("Standard_NC6s_v3", "spot"): "1.07",
    ("Standard_NC4as_T4_v3", "on-demand"): "0.526", ("Standard_NC4as_T4_v3", "spot"): "0.184",
}


def test_the_shipped_rows_are_those_of_the_seed_document_and_no_others() -> None:
    table = price_table.shipped()
    assert table.refused == ()
    assert {(row.instance_type, row.capacity_type): row.price for row in table.rows} == {
        key: Decimal(price) for key, price in SHIPPED.items()
    }
    assert len(table.rows) == len(SHIPPED)
    assert {row.source for row in table.rows} == {"seed document: undated list price"}
    assert {row.gpu_model for row in table.rows if not row.instance_type} == {"T4"}


@pytest.mark.parametrize("bad", [f'"{GOOD}', GOOD.replace(",", "\r,", 1)])
def test_a_line_that_is_no_csv_swallows_none_but_itself(bad: str) -> None:
    table = price_table.read_csv("\n".join((HEAD, bad, "", GOOD)), "USD")
    assert [row.line for row in table.refused] == [2]
    assert len(table.rows) == 1
