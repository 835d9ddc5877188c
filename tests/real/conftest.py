"""The real world as fixtures. Whatever is in this folder is marked `real`.

`cluster` is a fresh namespace on the session's `control_plane` for one test; `start_control_plane` makes another
cluster with other options for one test; `prometheus` is a PrometheusWorld to fill and start; `postgres_server` and
`timescale_server` are one database server each for the session.
Invariant: a program that cannot be had skips the test by name with the reason, and under CI=true fails it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.real import build, databases, history, product, shipped, world
from tests.real import cluster as clusters


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/real/"):
            item.add_marker(pytest.mark.real)


def need(*programs: str) -> None:
    """Skip the test, or under CI fail it, unless all these programs are there."""
    missing = [program for program in programs if build.find(program) is None]
    for program in missing:
        if why_not := build.expected(program):
            pytest.skip(f"{program} not there: {why_not}")
    if missing:
        reason = f"{', '.join(missing)} not there: run `python -m tests.real.build`"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture
async def cluster(control_plane: world.ControlPlane, tmp_path: pathlib.Path) -> AsyncIterator[clusters.Cluster]:
    async with clusters.Cluster(control_plane, tmp_path) as handle:
        yield handle
        shipped.note(handle)


@pytest.fixture
async def start_control_plane(
    tmp_path: pathlib.Path,
) -> AsyncIterator[Callable[[world.Options], Awaitable[clusters.Cluster]]]:
    """`cluster = await start_control_plane(world.Options(feature_gates="..."))`"""
    need(*build.CLUSTER)
    async with contextlib.AsyncExitStack() as stack:

        async def start(options: world.Options) -> clusters.Cluster:
            plane = stack.enter_context(world.running(options))
            return await stack.enter_async_context(clusters.Cluster(plane, tmp_path))

        yield start


@pytest.fixture
async def prometheus(tmp_path: pathlib.Path) -> AsyncIterator[history.PrometheusWorld]:
    need("prometheus", "promtool")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    server = history.PrometheusWorld(folder)
    yield server
    await server.kill()


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> product.Stage:
    """A cluster with a node of GPUs, and its measurements; a file that needs another one has its own."""
    made = product.Stage(cluster, prometheus)
    await made.build()
    return made


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "product"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[databases.Server]:
    need("postgresql-server")
    with databases.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def timescale_server() -> Iterator[databases.Server]:
    need("timescaledb-root")
    with databases.timescale() as server:
        yield server
