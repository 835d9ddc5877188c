"""What holds for all tests: the `accepts` mark is checked before a test and its outcome is written down after the run.

Property tests try the same examples on every run, so that a run can be repeated; `make fuzz` tries others, and many
more. Several workers begin with the files that take long, each with its share of them, and end with quick tests, which
can be dealt anew: none works on alone. `control_plane` is one cluster for the whole session of a worker.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import acceptance

if TYPE_CHECKING:
    from tests.real import world

hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("same"), max_examples=20)
hypothesis.settings.register_profile("fuzz", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("same")

_SPECS = acceptance.read_specs()


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A test that sets up the product's logs leaves none of that to the next."""
    loggers = [logging.getLogger(), logging.getLogger("fallow")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays for the whole run: a collector that looks at it again and again, here and in every test,
    takes a quarter of the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = _deal(items, config.workerinput["workercount"])
    # User properties travel with the reports, so a run with several workers is written down by the one that leads it.
    for item in items:
        item.user_properties += [("accepts", line) for line in _lines_of(item)]


def _deal(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """As `--dist worksteal` hands them out at first: to each worker as many as to the others, one stretch each."""
    quick = [item for item in items if item.nodeid.startswith("tests/unit/")]
    slow = [item for item in items if not item.nodeid.startswith("tests/unit/")]
    files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in slow))}
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        own = [item for item in slow if files[item.path] % workers == worker]
        room = max(0, (len(items) - len(dealt)) // (workers - worker) - len(own))
        dealt += own + quick[:room]
        del quick[:room]
    return dealt + quick


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("accepts"):
        fault = acceptance.find_fault(mark.args[0], mark.args[1:], _SPECS)
        if fault:
            pytest.fail(fault, pytrace=False)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[world.ControlPlane]:
    from tests.real import build, world  # only where it is asked for: most tests ask for none
    from tests.real.conftest import need

    need(*build.CLUSTER)
    with world.running() as plane:
        yield plane


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Witness(), "acceptance-witness")


class Witness:
    """Sees every report of the run, and writes down those of tests that prove something."""

    def __init__(self) -> None:
        self.outcomes: dict[str, tuple[list[tuple[str, int]], str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: list[tuple[str, Any]] = report.user_properties
        lines = [(value[0], value[1]) for key, value in properties if key == "accepts"]
        if lines:
            before = self.outcomes.get(report.nodeid, (lines, "passed"))[1]
            self.outcomes[report.nodeid] = (lines, acceptance.worst(before, report.outcome))

    def pytest_sessionfinish(self) -> None:
        if self.outcomes:
            acceptance.record(self.outcomes)


def _lines_of(item: pytest.Item) -> list[tuple[str, int]]:
    return [(mark.args[0], line) for mark in item.iter_markers("accepts") for line in mark.args[1:]]
