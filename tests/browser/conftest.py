"""The browser as a fixture, and a demo to look at. Whatever is in this folder is marked `browser`.

One browser serves all tests of an xdist worker, in an event loop of its own that lasts as long; one demo serves all
workers of a run, so a test takes for its own only what it asked the demo for, and changes no more than that.
Invariant: what is missing skips a test by name with the reason, and under CI=true fails it; what a page complains of
fails the test that opened it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from playwright import async_api as play

from tests.browser import browsing, many, playing, spent

play.expect.set_options(timeout=15_000)  # a machine that tests with all it has answers late; who is right does not wait
Opening = Callable[..., contextlib.AbstractAsyncContextManager[browsing.Visit]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/browser/"):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def need_browser() -> None:
    if lack := browsing.find_lack():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(lack)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[play.Browser]:
    need_browser()
    async with browsing.browser() as started:
        yield started


@pytest.fixture(scope="session")
def tabs(browser: play.Browser) -> browsing.Tabs:
    return browsing.Tabs(browser)


@contextlib.contextmanager
def share(factory: pytest.TempPathFactory, name: str, begin: Callable[[pathlib.Path], int]) -> Iterator[str]:
    """What a server says that all workers of a run share."""
    need_browser()
    own = factory.getbasetemp()
    with playing.shared((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name, begin) as said:
        yield said


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[playing.Demo]:
    with share(tmp_path_factory, "demo", lambda said: playing.start(said, hours=3, nodes=8, seed=11)) as said:
        yield playing.Demo(said)


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of five thousand workloads."""
    with share(tmp_path_factory, "crowd", lambda said: many.start(said, 5_000)) as base:
        yield base.strip()


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of servers with a month's books, with empty ones and with none."""
    with share(tmp_path_factory, "books", spent.start) as said:
        yield json.loads(said)


@pytest.fixture
def visit(tabs: browsing.Tabs, request: pytest.FixtureRequest) -> Opening:
    """`async with visit(size=PHONE) as tab`: a tab, on the demo unless another address is given; afterwards nothing
    must have been complained of."""

    @contextlib.asynccontextmanager
    async def opening(base: str = "", **how: Any) -> AsyncIterator[browsing.Visit]:
        async with tabs.visit(base or request.getfixturevalue("demo").base, **how) as tab:
            yield tab
            assert tab.complaints == []

    return opening
