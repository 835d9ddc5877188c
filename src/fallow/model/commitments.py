"""Machines that are paid for whether they run or not: reservations, as the operator writes them down.

In: CSV beside the table of prices (key `commitments.csv` of the same ConfigMap). Out: Commitments, and the rows that
were refused, each with its line and why. What a reserved machine costs an hour stands in the table of prices, in a row
of `reserved` capacity: the upfront payment over its term, and the hourly part.
"""

import csv
import io
from collections.abc import Mapping
from typing import Final

import msgspec

from fallow.model import price_table
from fallow.model.price_table import RefusedRow
from fallow.model.units import Instant

COLUMNS: Final = ("provider", "region", "instance_type", "count", "valid_from", "valid_to", "source")
_NEEDED: Final = ("instance_type", "count", "source")
_MOST: Final = 10_000  # machines of one row
_MOST_ROWS: Final = 1000


class Commitment(msgspec.Struct, frozen=True, kw_only=True):
    """`count` machines, in [valid_from, valid_to); None = open. `region` "": of nodes that name none."""

    provider: str = ""
    region: str = ""
    instance_type: str
    count: int
    valid_from: Instant | None = None
    valid_to: Instant | None = None
    source: str

    def holds_at(self, at: Instant) -> bool:
        return (self.valid_from is None or self.valid_from <= at) and (self.valid_to is None or at < self.valid_to)


class CommitmentTable(msgspec.Struct, frozen=True):
    rows: tuple[Commitment, ...] = ()
    refused: tuple[RefusedRow, ...] = ()


NONE: Final = CommitmentTable()


def read_csv(text: str) -> CommitmentTable:
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), restkey="", strict=True)
    rows, refused = list[Commitment](), list[RefusedRow]()
    try:
        if missing := [name for name in _NEEDED if name not in (reader.fieldnames or ())]:
            return CommitmentTable((), (RefusedRow(1, f"the columns {', '.join(missing)} are missing"),))
        for cells in reader:
            if len(rows) >= _MOST_ROWS:
                refused.append(RefusedRow(reader.line_num, f"there are more than {_MOST_ROWS:,} rows"))
                break
            try:
                rows.append(_read_row({name: (cells.get(name) or "").strip() for name in COLUMNS}))
            except ValueError as problem:
                refused.append(RefusedRow(reader.line_num, str(problem)))
    except csv.Error as problem:
        refused.append(RefusedRow(reader.reader.line_num, f"this is no CSV: {problem}; nothing below it is read"))
    return CommitmentTable(tuple(rows), tuple(refused))


def _read_row(cells: Mapping[str, str]) -> Commitment:
    """ValueError says what is wrong with it."""
    count = cells["count"]
    if not cells["instance_type"]:
        raise ValueError("instance_type is empty: which machines are reserved?")
    if not (count.isascii() and count.isdigit() and len(count) < 6 and 1 <= int(count) <= _MOST):
        raise ValueError(f"count {count[:40]!r} is not a whole number between 1 and {_MOST:,}")
    if not cells["source"]:
        raise ValueError("source is empty: which contract is this?")
    begin, end = (price_table.read_instant(name, cells[name]) for name in ("valid_from", "valid_to"))
    if begin is not None and end is not None and begin >= end:
        raise ValueError("valid_from is not before valid_to")
    return Commitment(
        provider=cells["provider"].lower(), region=cells["region"], instance_type=cells["instance_type"],
        count=int(count), valid_from=begin, valid_to=end, source=cells["source"],
    )
