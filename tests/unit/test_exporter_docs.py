"""docs/operators/exporter.md says what the code does: variables, metrics, endpoints, the web configuration, commands,
queries."""

import re

import pytest
from click.testing import CliRunner
from tests import ROOT

from fallow.doors.cli import main
from fallow.doors.exporter import access, expose, run
from fallow.observe.node import attribution
from fallow.settings import exporter as options

TEXT = (ROOT / "docs" / "operators" / "exporter.md").read_text()


def rows(title):
    """The cells of the tables of a section."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def test_the_variables_are_those_of_the_code():
    said = [(f"`{each.name}`", f"`{each.default}`" if each.default else "", each.help) for each in options.VARIABLES]
    assert rows("Variables") == said


def test_the_metrics_are_those_of_the_code():
    said = [(
        f"`{each.name}`", each.type, ", ".join(f"`{label}`" for label in each.label_set.labels), each.help
    ) for each in expose.METRICS]
    assert rows("Metrics") == said


def test_the_endpoints_are_those_of_the_code():
    exporter = run.NodeExporter(options.Options(), None, None, attribution.Attribution(options.Options(), {}))
    assert [row[0] for row in rows("Endpoints")] == [f"`{path}`" for path in exporter.routes()]


def test_the_keys_of_the_web_configuration_are_those_of_the_code():
    for key in (*access.WebConfig.__struct_fields__, *access.ServerTls.__struct_fields__):
        assert f"`{key}`" in TEXT


@pytest.mark.parametrize("line", re.findall(r"^fallow (exporter .*?) *(?:#.*)?$", TEXT, re.MULTILINE))
def test_the_commands_are_understood(line):
    shown = CliRunner().invoke(main.fallow, [*line.split(), "--help"])
    assert shown.exit_code == 0, shown.output


def test_the_queries_name_metrics_and_labels_that_exist():
    queries = TEXT.split("```promql")[1].split("```")[0]
    known = {metric.name: set(metric.label_set.labels) for metric in expose.METRICS}
    named = set(re.findall(r"gpu_idle_\w+", queries))
    assert named
    assert named <= set(known)
    grouped = {label for group in re.findall(r"(?:by|on) \(([^)]*)\)", queries) for label in group.split(", ")}
    matched = set(re.findall(r"(\w+)!?=", queries))
    assert grouped | matched <= {"node"}.union(*(known[name] for name in named))
