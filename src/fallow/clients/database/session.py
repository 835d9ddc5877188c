"""What work is given within one transaction, whichever the database: four verbs, and how a list is asked for.

In: SQL with `?` for each value. Out: rows as tuples.
Invariant: a session is used by the one thread that holds its transaction, and is worth nothing after it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

SqlRow: TypeAlias = tuple[Any, ...]


class SqlSession(Protocol):
    """`among`: what follows a column that must be one of the values of a list, which `listed` makes a value of."""

    among: str

    def listed(self, values: Sequence[int] | Sequence[str]) -> Any: ...

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[SqlRow]: ...

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """How many rows it changed."""
        ...

    def add(self, table: str, columns: Sequence[str], rows: Iterable[SqlRow]) -> None:
        """Many new rows, in the way that is quickest there."""
        ...

    def replace(
        self, table: str, columns: Sequence[str], rows: Sequence[SqlRow], *, key: int, there: Sequence[SqlRow],
        gone: Sequence[SqlRow],
    ) -> None:
        """Rows of a table whose first `key` columns, whole numbers, are its key: `rows` are written, `there` has the
        keys of those among them that stand there already, and the rows with the keys of `gone` go."""
        ...
