"""What holds for all tests: the `accepts` mark is checked before a test and its outcome is written down after the run.

Property tests try the same examples on every run, so that a run can be repeated; `make fuzz` tries others, and many
more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests import acceptance

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # User properties travel with the reports, so a run with several workers is written down by the one that leads it.
    for item in items:
        item.user_properties += [("accepts", line) for line in _lines_of(item)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("accepts"):
        fault = acceptance.find_fault(mark.args[0], mark.args[1:], _SPECS)
        if fault:
            pytest.fail(fault, pytrace=False)


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
