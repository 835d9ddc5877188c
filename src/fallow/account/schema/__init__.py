"""The SQL of the ledger, all of it: its tables, how they came to be, its views for others, and its questions.

`tables`: the migrations, one after the other. `views`: the wide tables that people and the documents know, for reading.
`questions`: what the ledger itself asks. `timescale`: what is different where that extension is.
Invariant: one text for every database. What they spell differently is in a SqlDialect, and that is short.
"""

from typing import Final

import msgspec


class SqlDialect(msgspec.Struct, frozen=True):
    """Words that databases spell differently. `narrow`: after the columns of a table that has no row number of its own.
    `instant`, `units`: whole seconds and nano units of money as people read them; `{}` is the column. `has_chunks`:
    intervals are in TimescaleDB's chunks."""

    integer: str
    binary: str
    narrow: str
    instant: str
    units: str
    has_chunks: bool = False


SQLITE: Final = SqlDialect("INTEGER", "BLOB", " WITHOUT ROWID", "datetime({}, 'unixepoch')", "({} / 1000000000.0)")
POSTGRES: Final = SqlDialect("BIGINT", "BYTEA", "", "to_timestamp({})", "({} / 1000000000.0)")
