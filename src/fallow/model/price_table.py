"""A table of prices: one row says what one kind of machine, or one GPU of a model, costs an hour, from where and when.

In: CSV as people and we ourselves write it. Out: PriceRows, and the rows that were refused, each with its line and why:
a bad row never hides the others, and is never half read.
Invariant: a price is an exact Decimal of the one currency, neither negative nor absurd; every row says its source and
the day it was looked up.
"""

import csv
import functools
import hashlib
import io
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from fallow.model import gpus, units
from fallow.model.cost import MOST_LETTERS, BookedPrice, CapacityType, PriceUnit
from fallow.model.units import Instant

T = TypeVar("T", PriceUnit, CapacityType)

USD: Final = "USD"
COLUMNS: Final = (
    "provider", "region", "zone", "instance_type", "gpu_model", "gpus", "capacity_type", "unit", "price_per_hour",
    "currency", "valid_from", "valid_to", "source", "retrieved_at",
)
MOST_ROWS: Final = 10_000
MOST_GPUS: Final = 128
_NEEDED: Final = ("unit", "price_per_hour", "currency", "source", "retrieved_at")  # columns that no table may lack
# The dearest machine that clouds list costs some hundreds of dollars an hour. Where a unit of money is worth little
# (yen, won, rupees) the same machine costs some millions.
_MOST_PER_HOUR: Final = Decimal(10_000)
_LARGE_MONEY: Final = frozenset({USD, "EUR", "GBP", "CHF", "CAD", "AUD", "NZD", "SGD"})
_SMALL_MONEY_FACTOR: Final = 30_000
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_FINEST: Final = -18  # digits behind the point: more say nothing


class PriceSource(StrEnum):
    """Whom we ask for prices, as a row of theirs says it."""

    aws = "AWS Price List"
    aws_spot = "AWS spot price history"
    gcp = "Google Cloud Billing Catalog"
    azure = "Azure Retail Prices"


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the book. "" in provider, region, zone, instance_type or gpu_model: any; `capacity_type` unknown:
    any. `gpus`: of a machine of this type; None = not said. [valid_from, valid_to); None = open."""

    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    gpu_model: str = ""
    gpus: int | None = None
    capacity_type: CapacityType = CapacityType.on_demand
    unit: PriceUnit = PriceUnit.node_hour
    price: Decimal
    currency: str = USD
    valid_from: Instant | None = None
    valid_to: Instant | None = None
    source: str
    retrieved_at: Instant

    @property
    def what(self) -> tuple[str, ...]:
        """What it is the price of: a newer price of the same takes its place."""
        return (
            self.provider, self.region, self.zone, fold_type(self.instance_type), self.gpu_model, self.capacity_type,
            self.unit, str(self.gpus or ""),
        )

    @property
    def id(self) -> str:
        """The same while the price is the same: that it was looked up again, or ended, does not make it another."""
        since = "" if self.valid_from is None else units.rfc3339(self.valid_from)
        said = "\n".join((*self.what, f"{self.price.normalize():f}", self.currency, since, self.source))
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()

    @property
    def is_fetched(self) -> bool:
        return self.source in set(PriceSource)

    def holds_at(self, at: Instant) -> bool:
        return (self.valid_from is None or self.valid_from <= at) and (self.valid_to is None or at < self.valid_to)

    @property
    def per_gpu(self) -> Decimal | None:
        """None where it cannot be said, because nobody says how many GPUs the machine has."""
        if self.unit is PriceUnit.gpu_hour:
            return self.price
        return self.price / self.gpus if self.gpus else None


def book(row: PriceRow) -> BookedPrice:
    """As the ledger has it, beside the intervals that name it."""
    return BookedPrice(
        price_id=row.id, provider=row.provider, region=row.region, zone=row.zone, instance_type=row.instance_type,
        gpu_model=row.gpu_model, gpus=row.gpus, capacity_type=row.capacity_type, unit=row.unit,
        price_per_hour=f"{row.price:f}", currency=row.currency, source=row.source, retrieved_at=int(row.retrieved_at),
        valid_from=None if row.valid_from is None else int(row.valid_from),
        valid_to=None if row.valid_to is None else int(row.valid_to),
    )


def unbook(booked: BookedPrice) -> PriceRow:
    """The row again."""
    return PriceRow(
        provider=booked.provider, region=booked.region, zone=booked.zone, instance_type=booked.instance_type,
        gpu_model=booked.gpu_model, gpus=booked.gpus, capacity_type=booked.capacity_type, unit=booked.unit,
        price=Decimal(booked.price_per_hour), currency=booked.currency, source=booked.source,
        retrieved_at=float(booked.retrieved_at or 0),
        valid_from=None if booked.valid_from is None else float(booked.valid_from),
        valid_to=None if booked.valid_to is None else float(booked.valid_to),
    )


class RefusedRow(msgspec.Struct, frozen=True):
    line: int
    because: str


class PriceTable(msgspec.Struct, frozen=True):
    rows: tuple[PriceRow, ...] = ()
    refused: tuple[RefusedRow, ...] = ()


EMPTY: Final = PriceTable()


@functools.lru_cache(4096)
def fold_type(instance_type: str) -> str:
    """`Standard_NC6s_v3` and `NC6s_v3` are one machine."""
    return instance_type.lower().removeprefix("standard_")


@functools.cache
def shipped() -> PriceTable:
    """What comes with the product: list prices in dollars."""
    text = pkgutil.get_data(__name__.rpartition(".")[0], "prices.csv")
    return read_csv((text or b"").decode(), USD)


# ---- reading --------------------------------------------------------------------------------------------------------


def read_csv(text: str, currency: str) -> PriceTable:
    """Rows in the order they stand there. Line 1 names the columns, in any order; further ones are not read."""
    head, *lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    rows: dict[tuple[str, ...], PriceRow] = {}
    refused = list[RefusedRow]()
    try:
        columns = _split(head)
    except ValueError as problem:
        return PriceTable((), (RefusedRow(1, str(problem)),))
    if missing := [name for name in _NEEDED if name not in columns]:
        return PriceTable((), (RefusedRow(1, f"the columns {', '.join(missing)} are missing"),))
    for number, line in enumerate(lines, 2):
        if len(rows) >= MOST_ROWS:
            refused.append(RefusedRow(number, f"there are more than {MOST_ROWS:,} rows"))
            break
        if line.strip():
            _take(line, columns, number, currency, rows, refused)
    return PriceTable(tuple(rows.values()), tuple(refused))


def _split(line: str) -> list[str]:
    """A row is a line, so that a quote which nobody closes swallows none but its own."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as problem:
        raise ValueError(f"this is no CSV: {problem}") from problem


def _take(
    line: str, columns: Sequence[str], number: int, currency: str, rows: dict[tuple[str, ...], PriceRow],
    refused: list[RefusedRow],
) -> None:
    try:
        cells = dict(zip(columns, _split(line), strict=False))  # cells too few are empty, those too many nobody's
        row = read_row({name: cells.get(name, "").strip() for name in COLUMNS}, currency)
        key = (*row.what, str(row.valid_from), str(row.valid_to))
        if key in rows:
            raise ValueError("an earlier line has a price of the same for the same time")
        rows[key] = row
    except ValueError as problem:
        refused.append(RefusedRow(number, str(problem)))


def read_row(cells: Mapping[str, str], currency: str) -> PriceRow:
    """ValueError says what is wrong with it."""
    unit = _one_of(PriceUnit, "unit", cells["unit"])
    if odd := [name for name, text in cells.items() if not text.isprintable() or len(text) > MOST_LETTERS]:
        raise ValueError(f"{odd[0]} is longer than {MOST_LETTERS} letters, or holds one that cannot be printed")
    if cells["currency"].upper() != currency:
        raise ValueError(f"currency is {cells['currency']!r}, and the books are kept in {currency}")
    if not cells["source"]:
        raise ValueError("source is empty: where is this price from?")
    if not (cells["instance_type"] or cells["gpu_model"]):
        raise ValueError("neither instance_type nor gpu_model says of what it is the price")
    begin, end = read_instant("valid_from", cells["valid_from"]), read_instant("valid_to", cells["valid_to"])
    if begin is not None and end is not None and begin >= end:
        raise ValueError("valid_from is not before valid_to")
    retrieved = read_instant("retrieved_at", cells["retrieved_at"])
    if retrieved is None:
        raise ValueError("retrieved_at is empty: of which day is this price?")
    return PriceRow(
        provider=cells["provider"].lower(), region=cells["region"], zone=cells["zone"],
        instance_type=cells["instance_type"], gpu_model=gpus.normalise(cells["gpu_model"]), gpus=_gpus(cells["gpus"]),
        capacity_type=_one_of(CapacityType, "capacity_type", cells["capacity_type"] or CapacityType.unknown),
        unit=unit, price=read_price(cells["price_per_hour"], currency), currency=currency, valid_from=begin,
        valid_to=end, source=cells["source"], retrieved_at=retrieved,
    )


def read_price(text: str, currency: str) -> Decimal:
    """ValueError says why it is none."""
    if not _NUMBER.fullmatch(text):  # Decimal itself also reads nan, 1_000 and the digits of all scripts
        raise ValueError(f"price_per_hour {text[:40]!r} is not a number such as 32.77")
    return check_price(Decimal(text), currency)


def check_price(price: Decimal, currency: str) -> Decimal:
    """As it is, or a ValueError that says why nobody can mean it."""
    most = _MOST_PER_HOUR if currency in _LARGE_MONEY else _MOST_PER_HOUR * _SMALL_MONEY_FACTOR
    if not price.is_finite():
        raise ValueError(f"price_per_hour is {price}")
    if price < 0:
        raise ValueError(f"price_per_hour {price:.6g} is negative")
    if price > most:
        raise ValueError(f"price_per_hour {price:.6g} is absurd: more than {most:,} {currency}")
    exponent = price.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < _FINEST:
        raise ValueError(f"price_per_hour has more than {-_FINEST} digits behind the point")
    return price


def _gpus(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_GPUS):
        raise ValueError(f"gpus {text[:40]!r} is not a whole number between 1 and {MOST_GPUS}")
    return int(text)


def _one_of(kind: type[T], column: str, text: str) -> T:
    if text not in set(kind):
        raise ValueError(f"{column} {text[:40]!r} is none of {', '.join(kind)}")
    return kind(text)


def read_instant(column: str, text: str) -> Instant | None:
    """A day, which begins at midnight UTC, or a time."""
    if not text:
        return None
    try:
        return units.parse_instant(f"{text}T00:00:00Z" if len(text) == 10 else text)
    except ValueError:
        raise ValueError(f"{column} {text[:40]!r} is not a day such as 2026-11-15 or a time with its zone") from None


# ---- writing --------------------------------------------------------------------------------------------------------


def write_csv(rows: Iterable[PriceRow]) -> str:
    """As read_csv takes it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    return out.getvalue()


def _cells(row: PriceRow) -> Iterator[str]:
    times = {name: getattr(row, name) for name in ("valid_from", "valid_to", "retrieved_at")}
    written = {name: "" if at is None else units.rfc3339(at) for name, at in times.items()}
    any_capacity = {"capacity_type": ""} if row.capacity_type is CapacityType.unknown else {}
    cells = {**msgspec.structs.asdict(row), "price_per_hour": f"{row.price:f}", **any_capacity, **written}
    yield from ("" if cells[name] is None else str(cells[name]) for name in COLUMNS)
