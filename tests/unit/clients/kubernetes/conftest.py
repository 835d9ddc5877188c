"""Fixtures: a plain server and a client of it; a certificate authority made for the run."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import trustme
from tests.unit.clients.kubernetes import wire

from fallow.clients.kubernetes import api


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[wire.Server]:
    async with wire.Server() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: wire.Server) -> AsyncIterator[api.Api]:
    async with api.Api(server.access, qps=10_000, in_flight=10) as running:
        yield running
