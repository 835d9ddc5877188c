"""A month, and the example of the documents, on real PostgreSQL and real TimescaleDB (Apache edition): as on a file."""

from __future__ import annotations

import pytest

from tests.functional.test_cost_example import *  # noqa: F403
from tests.functional.test_cost_month import *  # noqa: F403
from tests.real.ledger_places import ServerPlace


@pytest.fixture(params=["postgres", "timescale"])
def new_place(request):
    server = request.getfixturevalue(f"{request.param}_server")
    return lambda: ServerPlace(server)
