"""What the ledger promises, on real PostgreSQL and real TimescaleDB (Apache edition): the tests of the file store."""

from __future__ import annotations

import pytest

from tests.real.ledger_places import ServerPlace
from tests.unit.account.test_ledger import *  # noqa: F403


@pytest.fixture(params=["postgres", "timescale"])
def new_place(request):
    server = request.getfixturevalue(f"{request.param}_server")
    return lambda: ServerPlace(server)
