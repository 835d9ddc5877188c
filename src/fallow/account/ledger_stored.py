"""What stands in the ledger, as its writer and its readers ask for it alike: its one row about itself, the intervals
of a window, rows that are named by a list.

In: one transaction, of either. Out: nouns and rows. Nothing is written here.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from fallow.account import ledger_rows
from fallow.account.ledger_rows import IntervalRow
from fallow.account.schema import questions
from fallow.clients.database.session import SqlSession
from fallow.model.cost import DAY, LedgerMeta, Second


class StoredMeta(msgspec.Struct, frozen=True):
    """The one row of ledger_meta. `generation`: counts what changes the roll-ups. `spooled`: up to which record.
    `writer`: who wrote last."""

    meta: LedgerMeta
    generation: int
    total: int
    spooled: str
    writer: str


def read_meta(on: SqlSession) -> StoredMeta:
    ((version, currency, epoch, rolled, seen, intervals, hours, *rest),) = on.rows(questions.META)
    generation, total, spooled, writer = rest
    meta = LedgerMeta(
        schema_version=version, currency=currency, epoch=epoch, rolled_until=rolled, seen_until=seen,
        intervals_from=intervals, hours_from=hours,
    )
    return StoredMeta(meta, generation, int(total), spooled, writer)


def read_window(
    on: SqlSession, begin: Second, end: Second, seen_until: Second, question: str = questions.OF_WINDOW,
    narrower: Sequence[Any] = (),
) -> list[IntervalRow]:
    """All that lie in it, in the order of day, part and begin. `question`: that of a window, perhaps a narrower one,
    with the values that make it so."""
    values = (begin // DAY, (end - 1) // DAY, begin // DAY * DAY, end, begin, *narrower)
    return [row for row in ledger_rows.extend(on.rows(question, values), seen_until) if row.t1 > begin]


def read_listed(on: SqlSession, question: str, values: Sequence[int] | Sequence[str]) -> list[Any]:
    """`question`: with `{among}`, which these values stand for. Of no values nothing is asked."""
    return on.rows(question.replace("{among}", on.among), (on.listed(values),)) if values else []
