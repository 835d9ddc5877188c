"""A ledger on a real server, for the tests that are the same everywhere."""

from __future__ import annotations

from typing import Any

from fallow.account import ledger, ledger_postgres
from fallow.model.secret import Secret
from tests.real import databases


class ServerPlace:
    """An empty schema of a server."""

    def __init__(self, server: databases.Server) -> None:
        self.server, self.dsn = server, server.schema()

    def ledger(self, **options: Any) -> ledger.Ledger:
        return ledger_postgres.on_postgres(Secret(self.dsn), **options)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.server.run(sql, self.dsn)
