"""What becomes of known prices when others come: any history leaves one price at every instant."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from fallow.model import price_changes
from fallow.model.price_table import PriceRow, PriceSource
from fallow.model.units import DAY, HOUR, parse_instant

NOW = parse_instant("2026-11-17T10:00:00Z")


def row(price: float | str, **said: Any) -> PriceRow:
    return PriceRow(**{
        "provider": "aws", "region": "r", "instance_type": "x.large", "price": Decimal(str(price)),
        "source": PriceSource.aws, "retrieved_at": NOW, **said,
    })


@pytest.mark.parametrize(("new", "old", "suspicious"), [
    ("5", "1", False), ("5.01", "1", True), ("0.2", "1", False), ("0.19", "1", True), ("100", "1", True),
    ("1", "1", False),
])
def test_five_times_and_a_fifth_are_the_bounds(new: str, old: str, suspicious: bool) -> None:
    assert price_changes.is_suspicious(Decimal(new), Decimal(old)) is suspicious


def test_each_zone_machine_and_kind_has_a_price_of_its_own() -> None:
    rows = [row(1), row(2, zone="a"), row(3, instance_type="y"), row(4, gpus=2), row(5, gpu_model="T4")]
    assert len({each.what for each in rows}) == len(rows)
    assert len(price_changes.absorb([], rows, NOW).rows) == len(rows)


def test_what_is_long_over_or_was_never_confirmed_is_forgotten() -> None:
    rows = [
        row(1, valid_from=NOW - 9 * DAY, valid_to=NOW - 3 * DAY), row(2, zone="b", valid_to=NOW - DAY, valid_from=0.0),
        row(3, zone="c", retrieved_at=NOW - 401 * DAY), row(4, zone="d", retrieved_at=NOW - 399 * DAY),
    ]
    assert [int(each.price) for each in price_changes.absorb(rows, [], NOW).rows] == [2, 4]


@pytest.mark.accepts("cost", 8)
@given(some.lists(some.decimals("0.01", 100, places=2), min_size=1, max_size=12))
def test_at_every_instant_one_price_holds_and_it_is_the_one_that_was_known_then(said: list[Decimal]) -> None:
    rows: tuple[PriceRow, ...] = ()
    known: list[Decimal] = []  # hour by hour
    for hour, price in enumerate(said):
        at = NOW + hour * HOUR
        taken = price_changes.absorb(rows, [row(str(price), retrieved_at=at)], at)
        is_far = bool(known) and price_changes.is_suspicious(price, known[-1])
        assert bool(taken.suspicious) is is_far
        rows, known = taken.rows, [*known, known[-1] if is_far else price]
        assert set(taken.changed) <= set(rows)
    for hour, price in enumerate(known):
        for at in (NOW + hour * HOUR, NOW + hour * HOUR + HOUR - 1):
            assert [each.price for each in rows if each.holds_at(at)] == [price]


def test_a_spot_price_holds_since_the_cloud_says_so_and_the_next_since_we_know_it() -> None:
    first = price_changes.absorb([], [row(1, zone="a", valid_from=NOW - HOUR)], NOW).rows
    then = price_changes.absorb(first, [row(2, zone="a", valid_from=NOW + 60)], NOW + 600)
    assert [(each.price, each.valid_from, each.valid_to) for each in then.rows] == [
        (1, NOW - HOUR, NOW + 600), (2, NOW + 600, None)
    ]
    assert first[0].id == then.rows[0].id, "that it ended does not make it another"


def test_a_quarantined_price_names_both() -> None:
    [found] = price_changes.absorb([row("1.50")], [row("150.00", zone="")], NOW).suspicious
    assert found.because == (
        "AWS Price List says 150 USD for x.large (on-demand) in r, more than five times the price before, 1.5: the old "
        "one stays; if the new one is right, put it into your own table"
    )
    assert msgspec.structs.replace(found.row, price=Decimal(1)).what == found.before.what
